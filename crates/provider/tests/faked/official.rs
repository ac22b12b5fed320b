//! A cloud's own client in Python, and scripts that use it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python that `scripts/setup test` installs for a cloud, if it runs the probe; `None`, after a word about what is missing.
#[allow(clippy::print_stderr, reason = "tests say what they skip")]
pub fn python(cloud: &str, probe: &str, missing: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join(format!("target/tools/{cloud}-python"));
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let pins = read(root.join(format!("scripts/{cloud}/requirements.txt")));
    let python = installed.join("bin/python");
    let loads = || {
        let status = Command::new(&python).args(["-c", probe]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if pins.is_some() && read(installed.join("installed.txt")) == pins && loads() {
        return Some(python);
    }
    eprintln!("skipped: at {} {missing}", installed.display());
    None
}

/// The number that a script says of its input, or what it complains of.
pub fn run(python: &Path, script: &str, arguments: &[&str], input: &str) -> Result<u64, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let written = writing.join().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    written.unwrap();
    Ok(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
}

/// The number; what a script complains of is told in its lines.
pub fn said(answer: Result<u64, String>) -> u64 {
    answer.unwrap_or_else(|complaint| panic!("{complaint}"))
}
