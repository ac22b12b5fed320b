//! Pools and mounts as processes, and the directories of a test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const LONG: Duration = Duration::from_secs(300);

pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        println!("skipped: needs root and /dev/fuse");
    }
    can
}

pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    command.env_remove("SURGETANK_LOG").env_remove("SURGETANK_POOL_TOKEN").stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    binary().args(arguments).output().unwrap()
}

#[track_caller]
pub(crate) fn done(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The status and the one sentence of a command that fails.
#[track_caller]
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told.trim_end().lines().count(), 1, "{told}");
    (output.status.code().unwrap(), told)
}

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, signal).unwrap();
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that differ from place to place.
pub(crate) fn bytes(seed: u32, length: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..length)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8
        })
        .collect()
}

/// A pool that runs.
pub(crate) struct Pool {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// The file that has its key.
    pub(crate) key: String,
}

impl Pool {
    pub(crate) fn up(directory: &Path, listen: &str, benefactors: &str) -> Self {
        Self::up_with(directory, listen, benefactors, &[])
    }

    pub(crate) fn up_with(directory: &Path, listen: &str, benefactors: &str, more: &[&str]) -> Self {
        Self::begin(binary(), directory, listen, benefactors, more)
    }

    /// One whose processes have more in their environment.
    pub(crate) fn up_with_variables(directory: &Path, variables: &[(&str, String)]) -> Self {
        let mut command = binary();
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Self::begin(command, directory, "127.0.0.1:0", "2", &[])
    }

    /// One whose files have so many bytes at most, as if its targets had no longer ones.
    pub(crate) fn up_with_short_files(directory: &Path, bytes: u64) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec prlimit \"$@\"", "sh", &format!("--fsize={bytes}")]);
        command.arg(binary().get_program()).env_remove("SURGETANK_LOG").env_remove("SURGETANK_POOL_TOKEN");
        Self::begin(command, directory, "127.0.0.1:0", "2", &[])
    }

    fn begin(mut command: Command, directory: &Path, listen: &str, benefactors: &str, more: &[&str]) -> Self {
        let mut child = command
            .args(["pool", "up", "--benefactors", benefactors, "--memory", "96 MiB", "--listen", listen, "--directory"])
            .arg(directory)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once(": ").unwrap_or_else(|| panic!("{line}")).0.to_owned();
        let key = directory.join("key").display().to_string();
        let pool = Self { child, address, key };
        until("all benefactors have joined", || {
            let status = pool.status();
            let joined = status["benefactors"].as_array().unwrap().iter().filter(|of| of["state"] == "joined");
            joined.count().to_string() == benefactors
        });
        pool
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&done(&["pool", "status", &self.address, "--token", &self.key, "--json"])).unwrap()
    }

    /// Its status and what it has said on stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let told = self.told().collect::<Vec<_>>().join("\n");
        (self.child.wait().unwrap().code(), told)
    }

    /// The same, at a signal, and at a second one as soon as it has said what it waits for.
    pub(crate) fn end_without_waiting(mut self) -> (Option<i32>, String) {
        let told = self.told();
        signal(&self.child, rustix::process::Signal::INT);
        let mut all = Vec::new();
        for line in told {
            if line.contains("or at a second signal") {
                signal(&self.child, rustix::process::Signal::INT);
            }
            all.push(line);
        }
        (self.child.wait().unwrap().code(), all.join("\n"))
    }

    /// What it says on stderr, but for the log.
    fn told(&mut self) -> impl Iterator<Item = String> + use<> {
        let told = BufReader::new(self.child.stderr.take().unwrap()).lines().map(Result::unwrap);
        told.filter(|line| !line.contains(" INFO ") && !line.contains(" WARN "))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directories of a test; what is still mounted there is taken away.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        ["target", "mnt", "mnt2"].iter().for_each(|name| fs::create_dir(place.at(name)).unwrap());
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// A file with the key of a pool that is none.
    pub(crate) fn key(&self) -> String {
        let made = surgetank_pool::security::token::Key::generate().unwrap();
        surgetank_pool::security::files::write_private(&self.at("key"), &made.to_text()).unwrap();
        self.text("key")
    }

    pub(crate) fn mount(&self, pool: &Pool, point: &str) {
        self.mount_durable(pool, point, "copies=2");
    }

    /// Mounts in a process that can be killed.
    pub(crate) fn mount_in_front(&self, pool: &Pool, point: &str) -> Started {
        let (point, target) = (self.text(point), self.text("target"));
        let arguments = ["mount", &pool.address, &point, "--target", &target, "--token", &pool.key, "--foreground"];
        let (mount, line) = Started::new(&arguments);
        assert!(line.starts_with("mounted on"), "{line}");
        mount
    }

    pub(crate) fn mount_durable(&self, pool: &Pool, point: &str, durable: &str) {
        let (point, target) = (self.text(point), self.text("target"));
        done(&["mount", &pool.address, &point, "--target", &target, "--token", &pool.key, "--durable", durable]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["mnt", "mnt2"] {
            let _ = rustix::mount::unmount(self.at(name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A process that says a line when it has begun, and does not outlive the test.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    /// Starts `surgetank`; and what it has said.
    #[track_caller]
    pub(crate) fn new(arguments: &[&str]) -> (Self, String) {
        let process = binary().args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut process = Self(process.unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{arguments:?} says nothing");
        (process, line)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
