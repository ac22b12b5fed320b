//! The QEMU machine protocol over a Unix socket: JSON lines, one command at a time.
//!
//! QEMU serves one client of a socket at a time, so a connection is made for a few commands and closed. Events pass by
//! unread: what they would tell is read from QEMU's state, which also survives a restart of ours.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use crate::ProviderError;

/// The longest line taken from QEMU, in bytes: a list of all its block nodes is some tens of kilobytes.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Why a command was not carried out, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QmpError {
    /// QEMU cannot be reached, or does not answer; one sentence.
    #[error("{0}")]
    Gone(String),
    /// QEMU answered that it will not do it.
    #[error("QEMU refuses {command}: {text}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's class of errors: `DeviceNotFound`, most often `GenericError`.
        class: String,
        /// QEMU's text.
        text: String,
    },
}

impl QmpError {
    /// Whether QEMU says that there is no such device, node or object.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        // Only devices have a class of their own; the texts of the others are those of QEMU 2.9 to 10.
        matches!(self, Self::Refused { class, text, .. }
            if class == "DeviceNotFound" || text.starts_with("Failed to find node with") || text.ends_with("not found"))
    }
}

impl From<QmpError> for ProviderError {
    /// May pass: QEMU does not answer, or refuses something for a reason that we do not know.
    fn from(error: QmpError) -> Self {
        Self::Transient(error.to_string())
    }
}

/// A connection.
pub struct Qmp {
    path: PathBuf,
    stream: UnixStream,
    patience: Duration,
    /// What has come and was not looked at yet.
    buffer: Vec<u8>,
    next_id: u64,
}

impl Qmp {
    /// Connects and negotiates; every answer is waited for `patience` at most.
    ///
    /// # Errors
    /// `Gone`, with the remedy.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self, QmpError> {
        let gone = |why: &dyn std::fmt::Display| {
            QmpError::Gone(format!(
                "QEMU cannot be reached at {}: {why}; is the guest running, with -qmp unix:{},server=on,wait=off?",
                path.display(),
                path.display()
            ))
        };
        let stream = connect(path).map_err(|error| gone(&error))?;
        let mut qmp = Self { path: path.to_owned(), stream, patience, buffer: Vec::new(), next_id: 0 };
        let deadline = Instant::now() + patience;
        loop {
            let message = qmp.receive(deadline)?;
            if message.get("QMP").is_some() {
                break;
            }
            // Until QEMU has noticed that this is another client, it may have something to say to the one before.
            if message.get("event").is_none() && message.get("id").is_none() {
                return Err(gone(&"something else than QEMU answers"));
            }
        }
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Executes a command; `Value::Null` stands for no arguments.
    ///
    /// # Errors
    /// See [`QmpError`]. After `Gone` the command may have been carried out.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let id = self.next_id;
        self.next_id += 1;
        let mut message = json!({ "execute": command, "id": id });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        let deadline = Instant::now() + self.patience;
        self.send(&format!("{message}\r\n"), deadline)?;
        loop {
            let mut answer = self.receive(deadline)?;
            if answer.get("id").and_then(Value::as_u64) != Some(id) {
                // An event, or the late answer to a command that was abandoned.
                continue;
            }
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
            let text = |name: &str| {
                answer.pointer(&format!("/error/{name}")).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            return Err(QmpError::Refused { command: command.to_owned(), class: text("class"), text: text("desc") });
        }
    }

    fn send(&mut self, text: &str, deadline: Instant) -> Result<(), QmpError> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(text.as_bytes()));
        sent.map_err(|error| self.lost(&error))
    }

    /// The next line.
    fn receive(&mut self, deadline: Instant) -> Result<Value, QmpError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                return serde_json::from_slice(&line).map_err(|error| self.lost(&error.into()));
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Err(self.lost(&io::Error::other("its answer is too long")));
            }
            self.fill(deadline).map_err(|error| self.lost(&error))?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.buffer.extend_from_slice(&bytes[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn lost(&self, error: &io::Error) -> QmpError {
        let path = self.path.display();
        QmpError::Gone(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
                "QEMU has not answered for {:.1} s at {path}: it hangs, or another program holds this socket (give \
                 surgetank a -qmp socket of its own)",
                self.patience.as_secs_f64()
            ),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                format!("QEMU closed the connection at {path}: has the guest been stopped?")
            }
            _ => format!("QEMU cannot be understood at {path}: {error}"),
        })
    }
}

/// Connects without waiting for a place in the queue of a QEMU that hangs.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// For answers that come.
    const TIMEOUT: Duration = Duration::from_secs(60);
    /// For answers that do not.
    const SHORT: Duration = Duration::from_millis(50);
    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";

    /// Answers as scripted: before the first line, after it, and so on; then it hangs up.
    fn server(script: Vec<String>) -> (TempDir, PathBuf, JoinHandle<Vec<String>>) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut received = Vec::new();
            for (index, answer) in script.iter().enumerate() {
                if stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
                let mut line = String::new();
                if index + 1 == script.len() || reader.read_line(&mut line).is_err() {
                    break;
                }
                received.push(line);
            }
            received
        });
        (directory, path, serving)
    }

    fn texts(script: &[&str]) -> Vec<String> {
        script.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn events_and_other_answers_are_passed_over() {
        let (_directory, path, serving) = server(texts(&[
            &format!("{{\"event\": \"DEVICE_DELETED\"}}\n{{\"return\": {{}}, \"id\": 9}}\n{GREETING}"),
            "{\"event\": \"RESUME\"}\n{\"return\": {}, \"id\": 0}\n",
            "{\"return\": 1, \"id\": 7}\n{\"event\": \"X\"}\n{\"retu",
        ]));
        let mut qmp = Qmp::connect(&path, TIMEOUT).unwrap();
        let error = qmp.execute("query-status", Value::Null).unwrap_err();
        assert!(matches!(error, QmpError::Gone(_)), "a line that never ends");
        drop(qmp);
        assert_eq!(serving.join().unwrap()[1], "{\"execute\":\"query-status\",\"id\":1}\r\n");
    }

    #[test]
    fn refusals_keep_their_class() {
        let (_directory, path, serving) = server(texts(&[
            GREETING,
            "{\"return\": {}, \"id\": 0}\n",
            "{\"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"Device 'x' not found\"}, \"id\": 1}\n",
            "{\"error\": {\"class\": \"GenericError\", \"desc\": \"Node is busy\"}, \"id\": 2}\n",
        ]));
        let mut qmp = Qmp::connect(&path, TIMEOUT).unwrap();
        assert!(qmp.execute("device_del", json!({ "id": "x" })).unwrap_err().is_absence());
        let error = qmp.execute("blockdev-del", json!({ "node-name": "x" })).unwrap_err();
        assert!(!error.is_absence());
        assert_eq!(error.to_string(), "QEMU refuses blockdev-del: Node is busy");
        drop(qmp);
        serving.join().unwrap();
    }

    #[test]
    fn silence_and_absence_are_told_in_one_sentence() {
        let directory = TempDir::new().unwrap();
        let missing = directory.path().join("missing");
        let error = Qmp::connect(&missing, TIMEOUT).err().unwrap().to_string();
        assert!(error.contains("is the guest running") && !error.contains('\n'), "{error}");
        let path = directory.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let error = Qmp::connect(&path, SHORT).err().unwrap().to_string();
        assert!(error.contains("another program holds this socket"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_answers_is_no_panic(lines in prop::collection::vec(".{0,80}", 1..5)) {
            let script = lines.iter().map(|line| format!("{line}\n")).collect();
            let (_directory, path, serving) = server(script);
            if let Ok(mut qmp) = Qmp::connect(&path, Duration::from_millis(20)) {
                let _ = qmp.execute("query-status", Value::Null);
            }
            serving.join().unwrap();
        }
    }
}
