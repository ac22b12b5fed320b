//! Credentials from a command of the user's: whatever keeps them, what it prints is read.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::http::sentence;

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much it may print, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

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
    let child =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| failed(&format!("cannot be started ({error})")))?;
    let (pid, output) = (Pid::from_child(&child), child.stdout.take());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map_or(Ok(0), |output| output.take(OUTPUT_BYTES_MAX + 1).read_to_string(&mut text));
        // Nobody listens any more if it took too long.
        let _ = sender.send((read.map(|_| text), child.wait()));
    });
    match receiver.recv_timeout(timeout) {
        Err(_) => {
            // The thread has not waited for it yet, so the number is still its own.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            Err(failed(&format!("does not end within {timeout:?}")))
        }
        Ok((Err(error), _)) => {
            Err(failed(&format!("prints something that cannot be read ({})", sentence(&error.to_string()))))
        }
        Ok((Ok(text), _)) if text.len() as u64 > OUTPUT_BYTES_MAX => Err(failed("prints more than 64 KiB")),
        Ok((Ok(text), Ok(status))) if status.success() => Ok(text),
        Ok((Ok(_), status)) => {
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
}
