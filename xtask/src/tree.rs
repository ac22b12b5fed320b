//! The text files of the project, read once.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The project's text files.
pub struct Tree {
    /// Where the workspace is.
    pub root: PathBuf,
    /// In order of their paths.
    pub files: Vec<File>,
}

/// A text file.
pub struct File {
    /// From the root of the tree, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Directories that hold nothing of ours.
const SKIPPED: &[&str] = &[
    ".git",
    "target",
    "surgetank-demo-report",
    "bench-out",
    "lab-out",
    "reproduce-out",
    "validate-out",
    "node_modules",
];
/// What is read; the rest is data.
const SUFFIXES: &[&str] = &["rs", "md", "toml", "service", "socket", "yml"];

impl Tree {
    /// Reads the workspace that this program was built from, or that it is run in.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn load() -> anyhow::Result<Self> {
        let root = workspace_root()?;
        let mut files = Vec::new();
        walk(&root, &root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root, files })
    }

    /// The file at a path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust sources below a folder.
    pub fn sources<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.path.starts_with(folder) && file.path.ends_with(".rs"))
    }
}

/// Cargo runs us with the manifest directory of xtask in the environment; started by hand, look upwards.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => std::env::current_dir()?,
    };
    start
        .ancestors()
        .find(|directory| directory.join("Cargo.lock").is_file())
        .map(Path::to_owned)
        .with_context(|| format!("{} is not inside the workspace; run `cargo xtask` in it", start.display()))
}

fn walk(root: &Path, directory: &Path, files: &mut Vec<File>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) && !name.starts_with("target-") {
                walk(root, &path, files)?;
            }
            continue;
        }
        if !is_text(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let relative = path.strip_prefix(root).expect("walked from the root").to_string_lossy().into_owned();
        files.push(File { path: relative, text });
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    name == "Makefile" || name.rsplit_once('.').is_some_and(|(_, suffix)| SUFFIXES.contains(&suffix))
}
