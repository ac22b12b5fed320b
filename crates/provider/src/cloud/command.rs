//! Credentials from a command of the user's: whatever keeps them, what it prints is read.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::http::sentence;
use crate::ProviderError;

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much it may print, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// How often it is looked whether a command that has closed its output has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A command and what it has started, in a process group of its own. Dropped before it has ended, all of that is killed.
struct Running(Option<Child>);

impl Running {
    /// How it has ended; `None`: it has not until then.
    fn ended(&mut self, until: Instant) -> Option<std::io::Result<ExitStatus>> {
        loop {
            let status = self.0.as_mut()?.try_wait().transpose();
            if status.is_some() {
                self.0 = None;
                return status;
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // Nobody has waited for it, so the number is still its own, even if it has ended.
        let _ = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
        // In a thread, as what hangs in the kernel does not end.
        std::thread::spawn(move || child.wait());
    }
}

fn named(command: &[String]) -> Result<(&String, &[String]), String> {
    const EMPTY: &str =
        "credential_command is empty: write the program and its arguments, such as [\"/usr/local/bin/credentials\"]";
    command.split_first().filter(|(program, _)| !program.is_empty()).ok_or_else(|| EMPTY.to_owned())
}

fn failed(program: &str, why: &str) -> String {
    format!("the credential_command {program:?} {why}: run it by hand, as the user of the daemon")
}

/// Whether a command, if there is one, names a program.
///
/// # Errors
/// One sentence with the remedy.
pub fn check(command: Option<&Vec<String>>) -> Result<(), String> {
    command.map_or(Ok(()), |command| named(command).map(drop))
}

/// Looks whether a command could be started, and starts nothing.
///
/// # Errors
/// `Invalid`: there is no such program, or this user may not run it.
pub fn would_start(command: Option<&Vec<String>>) -> Result<(), ProviderError> {
    let Some(command) = command else { return Ok(()) };
    let (program, _) = named(command).map_err(ProviderError::Invalid)?;
    let may_be = |path: PathBuf| path.is_file() && rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok();
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let is_there = if program.contains('/') {
        may_be(program.into())
    } else {
        std::env::split_paths(&searched).any(|directory| may_be(directory.join(program)))
    };
    let missing = || ProviderError::Invalid(failed(program, "is no program that can be started"));
    is_there.then_some(()).ok_or_else(missing)
}

/// Runs a command and returns what it prints.
///
/// # Errors
/// One sentence with the remedy. What it printed is not repeated.
pub fn output(command: &[String]) -> Result<String, String> {
    output_within(command, TIMEOUT)
}

fn output_within(command: &[String], timeout: Duration) -> Result<String, String> {
    let (program, arguments) = named(command)?;
    let failed = |why: &str| failed(program, why);
    let until = Instant::now() + timeout;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(&format!("cannot be started ({error})")))?;
    let output = child.stdout.take();
    let mut running = Running(Some(child));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map_or(Ok(0), |output| output.take(OUTPUT_BYTES_MAX + 1).read_to_string(&mut text));
        // Nobody listens any more if it took too long.
        let _ = sender.send(read.map(|_| text));
    });
    let late = || failed(&format!("does not end within {timeout:?}"));
    let text = receiver
        .recv_timeout(timeout)
        .map_err(|_| late())?
        .map_err(|error| failed(&format!("prints something that cannot be read ({})", sentence(&error.to_string()))))?;
    if text.len() as u64 > OUTPUT_BYTES_MAX {
        return Err(failed("prints more than 64 KiB"));
    }
    match running.ended(until).ok_or_else(late)? {
        Ok(status) if status.success() => Ok(text),
        status => {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(failed(&format!("fails ({status})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn what_could_not_be_started_is_told_without_starting_it() {
        let command = |program: &str| vec![program.to_owned(), "-c".to_owned(), "exit 1".to_owned()];
        for program in ["/bin/sh", "sh"] {
            assert_eq!(would_start(Some(&command(program))), Ok(()));
        }
        assert_eq!((check(None), would_start(None)), (Ok(()), Ok(())));
        for program in ["/nonexistent/program", "no-such-program", "/etc/passwd", "/bin", ""] {
            let error = would_start(Some(&command(program))).unwrap_err().to_string();
            assert!(error.contains("credential_command"), "{error}");
            assert_eq!(check(Some(&command(program))).is_err(), program.is_empty());
        }
        assert!(check(Some(&Vec::new())).unwrap_err().contains("is empty"));
    }

    #[test]
    fn what_a_command_prints_is_read_and_its_failures_are_told_without_it() {
        assert_eq!(output(&shell("echo a: b")), Ok("a: b\n".to_owned()));
        for (command, why) in [
            (shell("echo swordfish; exit 3"), "fails (exit status: 3)"),
            (shell("head -c 70000 /dev/zero"), "more than 64 KiB"),
            (shell("printf '\\377'"), "cannot be read"),
            (vec!["/nonexistent/program".to_owned()], "cannot be started"),
            (Vec::new(), "is empty"),
            (vec![String::new(), "argument".to_owned()], "is empty"),
        ] {
            let error = output(&command).unwrap_err();
            assert!(error.contains(why) && !error.contains("swordfish\n"), "{error}");
        }
        let error = output_within(&shell("exec sleep 600"), Duration::from_millis(10)).unwrap_err();
        assert!(error.contains("does not end within 10ms"), "{error}");
    }

    #[test]
    fn what_a_late_command_has_started_ends_with_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // The second one has ended itself, and what it has started keeps the output.
        for script in
            ["sleep 600 & echo $! > $0; wait", "sleep 600 & echo $! > $0", "exec >&-; echo $$ > $0; sleep 600"]
        {
            std::fs::write(file.path(), "").unwrap();
            let mut command = shell(script);
            command.push(file.path().to_str().unwrap().to_owned());
            let pid = [1, 10, 60].into_iter().find_map(|timeout_s| {
                let error = output_within(&command, Duration::from_secs(timeout_s)).unwrap_err();
                assert!(error.contains("does not end within"), "{error}");
                let pid = std::fs::read_to_string(file.path()).unwrap();
                Some(pid.trim().to_owned()).filter(|pid| !pid.is_empty())
            });
            let stat = format!("/proc/{}/stat", pid.expect("it has been started"));
            // Killed, and perhaps nobody has waited for it yet.
            let is_there = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
            let mut looks = 0;
            while is_there() {
                assert!(looks < 6000, "{script}");
                looks += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
