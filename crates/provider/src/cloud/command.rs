//! Credentials from a command of the user's: whatever keeps them, what it prints is read.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::http::sentence;

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

/// Runs a command and returns what it prints.
///
/// # Errors
/// One sentence with the remedy. What it printed is not repeated.
pub fn output(command: &[String]) -> Result<String, String> {
    output_within(command, TIMEOUT)
}

fn output_within(command: &[String], timeout: Duration) -> Result<String, String> {
    let [program, arguments @ ..] = command else {
        return Err("credential_command is empty: write the program and its arguments, such as [\"/usr/local/bin/credentials\"]".to_owned());
    };
    let failed =
        |why: &str| format!("the credential_command {program:?} {why}: run it by hand, as the user of the daemon");
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
    fn what_a_command_prints_is_read_and_its_failures_are_told_without_it() {
        assert_eq!(output(&shell("echo a: b")), Ok("a: b\n".to_owned()));
        for (command, why) in [
            (shell("echo swordfish; exit 3"), "fails (exit status: 3)"),
            (shell("head -c 70000 /dev/zero"), "more than 64 KiB"),
            (shell("printf '\\377'"), "cannot be read"),
            (vec!["/nonexistent/program".to_owned()], "cannot be started"),
            (Vec::new(), "is empty"),
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
