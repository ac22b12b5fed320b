//! A crash leaves no core dump with keys and users' data, unless it is asked for.

#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Nobody's.
const OTHER_USER: u32 = 65534;

/// A daemon that serves, with limits as generous as a machine can have them.
fn serve(directory: &Path, binary: &Path, arguments: &str, user: Option<u32>) -> Child {
    let at = |name: &str| directory.join(name).display().to_string();
    let text = format!(
        "state_directory = \"{}\"\nrun_directory = \"{}\"\n[device.data]\nbacking = \"memory:1 MiB\"\n\
         export = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n",
        at("state"),
        at("run")
    );
    std::fs::write(at("surgetank.toml"), text).unwrap();
    let script = format!("ulimit -c unlimited; exec \"$0\" serve --config surgetank.toml {arguments}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(binary).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut daemon = command.spawn().unwrap();
    let served = BufReader::new(daemon.stdout.take().unwrap()).lines().next();
    assert!(served.is_some_and(|line| line.is_ok_and(|line| line.contains("nbd+unix"))), "it serves");
    daemon
}

fn core_limits(daemon: &Child) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.id())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    limit.split_whitespace().skip(4).take(2).collect::<Vec<_>>().join(" ")
}

fn crash(mut daemon: Child) -> bool {
    // SAFETY: signals our own child, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(daemon.id() as i32, libc::SIGABRT) }, 0);
    daemon.wait().unwrap().core_dumped()
}

#[test]
fn a_crash_leaves_no_core_dump_unless_it_is_asked_for() {
    let binary = Path::new(env!("CARGO_BIN_EXE_surgetank"));
    let directory = tempfile::tempdir().unwrap();
    let daemon = serve(directory.path(), binary, "", None);
    assert_eq!(core_limits(&daemon), "0 0");
    assert!(!crash(daemon));
    let directory = tempfile::tempdir().unwrap();
    let daemon = serve(directory.path(), binary, "--core-dumps", None);
    assert_ne!(core_limits(&daemon), "0 0");
    if !crash(daemon) {
        eprintln!("skipped: a core dump for debugging: this machine makes none");
    }
}

#[test]
fn what_the_daemon_holds_is_kept_from_its_users_other_programs_and_from_crash_handlers() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can start a daemon as another user");
    }
    for (arguments, owner) in [("", 0), ("--core-dumps", OTHER_USER)] {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("surgetank");
        std::fs::copy(env!("CARGO_BIN_EXE_surgetank"), &binary).unwrap();
        chown(directory.path(), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
        let mut daemon = serve(directory.path(), &binary, arguments, Some(OTHER_USER));
        // The files of a process that cannot be dumped are root's (proc(5)): its user may not look into it.
        let memory = std::fs::metadata(format!("/proc/{}/mem", daemon.id())).unwrap();
        assert_eq!(memory.uid(), owner, "{arguments}");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
}
