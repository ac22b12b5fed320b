//! A place for a demo, in which nothing may be left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A directory for a demo's report and one for its work.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        Self(directory)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    /// `surgetank demo` with its report and its work here.
    pub(crate) fn demo(&self, arguments: &[&str]) -> Command {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        demo.arg("demo").args(arguments).arg("--out").arg(self.out());
        demo.env("TMPDIR", self.work()).env_remove("SURGETANK_LOG").stdin(Stdio::null());
        demo
    }

    /// What a demo has found, every byte of which was verified.
    #[track_caller]
    pub(crate) fn found(&self, arguments: &[&str]) -> Value {
        let output = self.demo(arguments).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["verified"], true, "{found}");
        found
    }

    /// The page that it has written.
    pub(crate) fn page(&self) -> String {
        fs::read_to_string(self.out().join("report.html")).unwrap()
    }

    /// No file, mount, loop device or process of a demo is left.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        let work = self.work();
        assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
        let name = work.to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(name), "{mounts}");
        for entry in fs::read_dir("/sys/block").unwrap().flatten() {
            let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            assert!(!file.contains(name), "{}: {file}", entry.path().display());
        }
        for arguments in processes() {
            assert!(!(arguments.contains("demo-writer") && arguments.contains(name)), "{arguments}");
        }
    }
}

/// What a command has said on stderr.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The arguments of all processes.
pub(crate) fn processes() -> impl Iterator<Item = String> {
    let is_number = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok());
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_number);
    all.map(|process| String::from_utf8_lossy(&fs::read(process.join("cmdline")).unwrap_or_default()).into_owned())
}

/// Whether a demo can have file systems here; if not, it says why.
pub(crate) fn has_file_systems() -> bool {
    let opens = |path: &str| File::options().read(true).write(true).open(path).is_ok();
    let missing = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !opens(path));
    let obstacle = if rustix::process::geteuid().is_root() { missing } else { Some("root") };
    if let Some(missing) = obstacle {
        println!("skipped: needs {missing}");
    }
    obstacle.is_none()
}

/// A small file system of its own over a directory; `None`: only root can have one.
pub(crate) struct Small(PathBuf);

impl Small {
    pub(crate) fn over(directory: &Path) -> Option<Self> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", directory, "tmpfs", flags, c"size=64m").ok()?;
        Some(Self(directory.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
