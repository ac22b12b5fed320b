//! Programs that are killed while their calls wait for a pool that does not answer.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fixture::{FUSE, LONG, MIB, Mounted, Pool, bytes, can_mount, pool, same, state, until, until_waits};

/// How long calls wait: longer than this file's tests do.
const NEVER: Duration = Duration::from_secs(3 * LONG.as_secs());

/// A pool whose sessions outlast their managers, and a mount of it; `None`: this machine cannot mount.
fn lasting() -> Option<(Pool, Mounted)> {
    if !can_mount() {
        return None;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::with_timeout(&pool, 1, NEVER);
    Some((pool, mounted))
}

fn ends(what: &str, mut program: Child) {
    until(what, || program.try_wait().unwrap().is_some());
    assert!(!program.wait().unwrap().success(), "{what}");
}

#[test]
fn a_program_that_is_killed_ends_though_nobody_answers() {
    let Some((mut pool, mounted)) = lasting() else { return };
    let content = bytes(1, MIB);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let at = |name: &str| mounted.at(&format!("{name}{}", signal.as_raw())).display().to_string();
        fs::write(mounted.at("file"), &content).unwrap();
        pool.managers[0].kill();
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).stderr(Stdio::null()).spawn().unwrap()
        };
        let programs = [
            run("cat", &[&at("read")]),
            run("ls", &[mounted.directory.path().to_str().unwrap()]),
            run("stat", &["--file-system", &at("looked up")]),
        ];
        for program in &programs {
            until_waits(program, FUSE);
            rustix::process::kill_process(rustix::process::Pid::from_child(program), signal).unwrap();
        }
        for program in programs {
            ends("it ends", program);
        }
        pool.restart_manager(0);
        same("what was written", &fs::read(mounted.at("file")).unwrap(), &content);
    }
    mounted.end();
}

#[test]
fn a_program_that_ends_by_itself_waits_until_its_files_are_closed() {
    let Some((mut pool, mounted)) = lasting() else { return };
    let file = mounted.at("file");
    let script = format!("exec 3> {}; read line; echo $line >&3; exit 0", file.display());
    let mut program = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    until_waits(&program, "pipe_read");
    pool.managers[0].kill();
    program.stdin.take().unwrap().write_all(b"written\n").unwrap();
    until_waits(&program, FUSE);
    // Several times as long as it takes to see that it was killed.
    std::thread::sleep(Duration::from_secs(4));
    assert!(program.try_wait().unwrap().is_none(), "it has not closed its file");
    pool.restart_manager(0);
    assert!(program.wait().unwrap().success());
    assert_ne!(state(&file), "staged");
    same("what was written", &fs::read(&file).unwrap(), b"written\n");
    mounted.end();
}
