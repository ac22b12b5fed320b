//! QEMU's monitor, as far as the lab itself needs it: one command, one answer; events are passed over.
//!
//! <https://www.qemu.org/docs/master/interop/qmp-spec.html>

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection that is past its greeting.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// # Errors
    /// If nobody listens there, or it is not QEMU.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot reach QEMU at {}", socket.display()))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut qmp = Self { lines: BufReader::new(stream) };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            bail!("what listens at {} is not QEMU", socket.display());
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs one command.
    ///
    /// # Errors
    /// What QEMU says, or that it does not answer.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.lines.get_mut(), "{line}").with_context(|| format!("cannot ask QEMU for {command}"))?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {}", error.get("desc").and_then(Value::as_str).unwrap_or("no reason"));
            }
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).context("QEMU does not answer")? == 0 {
            bail!("QEMU has gone");
        }
        serde_json::from_str(&line).context("QEMU's answer cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn answers_are_told_from_events_and_errors() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            stream.write_all(b"{\"QMP\": {}}\n").unwrap();
            for answer in
                ["{\"return\": {}}", "{\"event\": \"STOP\"}\n{\"return\": 7}", "{\"error\": {\"desc\": \"no\"}}"]
            {
                lines.read_line(&mut String::new()).unwrap();
                writeln!(stream, "{answer}").unwrap();
            }
        });
        let mut qmp = Qmp::connect(&socket).unwrap();
        assert_eq!(qmp.execute("one", &json!({})).unwrap(), json!(7));
        assert_eq!(qmp.execute("two", &json!({})).unwrap_err().to_string(), "QEMU refuses two: no");
        server.join().unwrap();
        assert!(qmp.execute("three", &json!({})).is_err());
    }
}
