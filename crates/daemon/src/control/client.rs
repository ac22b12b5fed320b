//! Whoever talks to a daemon.
//!
//! A client believes root, its own user, and the user to whom root gave the socket's directory; others may listen where a
//! daemon is not, and are told nothing. What a daemon answers is bounded in length and time.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;

use super::{Request, Response, TimedRead, peer};
use crate::history::HistoryReport;
use crate::places;
use crate::status::StatusReport;
use crate::sweep::Swept;

/// The longest answer, in bytes: some hundred devices with as many lost ranges as a status lists.
const ANSWER_MAX: u64 = 16 << 20;
/// How long an answer may take: a sweep asks the provider about one volume after the other.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Why a daemon did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no daemon at this control socket.
    #[error("no daemon answers at {path}: start one with `surgetank serve`, or name its control socket", path = .0.display())]
    NoDaemon(PathBuf),
    /// There may be no daemon, or it may not be asked by this user, or it cannot be believed.
    #[error("{0}")]
    Unreachable(String),
    /// It said no; one sentence.
    #[error("{0}")]
    Refused(String),
}

/// Talks to a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    patience: Duration,
}

impl Client {
    /// A client of the daemon with this control socket.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), patience: TIMEOUT }
    }

    /// Asks, and answers the daemon's JSON.
    ///
    /// # Errors
    /// There is no daemon, it refuses, or somebody else answers.
    pub fn ask(&self, request: &Request) -> Result<Value, ClientError> {
        let path = self.path.display();
        let late = || format!("the daemon at {path} has not answered for {} s: see its log", self.patience.as_secs());
        let stream = connect(&self.path, self.patience).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Unreachable(format!(
                "the control socket {path} may not be opened by this user: run as root or as the daemon's user"
            )),
            io::ErrorKind::WouldBlock => ClientError::Unreachable(late()),
            _ => ClientError::NoDaemon(self.path.clone()),
        })?;
        self.check_peer(&stream)?;
        let broken = |error: io::Error| {
            ClientError::Unreachable(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
                io::ErrorKind::InvalidData => format!("what answers at {path} is no surgetank daemon: {error}"),
                _ => format!("the daemon at {path} went away: {error}"),
            })
        };
        let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        // A daemon that refuses us may have said so and gone before we asked.
        let asked = (&stream).write_all(&line);
        match read_answer(BufReader::new(TimedRead { stream: &stream, left: self.patience })) {
            Ok(answer) => answer.map_err(ClientError::Refused),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(broken(asked.err().unwrap_or(error))),
            Err(error) => Err(broken(error)),
        }
    }

    /// Refuses an answer of another user.
    fn check_peer(&self, stream: &UnixStream) -> Result<(), ClientError> {
        let path = self.path.display();
        let unknown = |error| ClientError::Unreachable(format!("nobody knows whose daemon answers at {path}: {error}"));
        let user = peer::user(stream).map_err(unknown)?;
        let we = rustix::process::geteuid().as_raw();
        let given_to = || self.path.parent().and_then(places::owner_of);
        if user == 0 || user == we || given_to() == Some(user) {
            return Ok(());
        }
        Err(ClientError::Unreachable(format!(
            "what answers at {path} belongs to the user {user}, who is neither root nor you, and is not believed: name the \
             control socket of your daemon"
        )))
    }

    /// The status of all devices.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn status(&self) -> Result<StatusReport, ClientError> {
        self.typed(&Request::Status)
    }

    /// The last boosts of each device, at most so many.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn history(&self, last: usize) -> Result<HistoryReport, ClientError> {
        self.typed(&Request::History { last })
    }

    /// Delete volumes that nobody knows of.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn gc(&self) -> Result<Swept, ClientError> {
        self.typed(&Request::Gc)
    }

    fn typed<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let value = self.ask(request)?;
        serde_json::from_value(value)
            .map_err(|error| ClientError::Unreachable(format!("the daemon speaks another version: {error}")))
    }
}

/// Connects, and waits no longer than that for a place in the listener's queue, nor later for what is sent.
pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Reads an answer: a line of at most 16 MiB, with what was asked for or one sentence on why not.
///
/// # Errors
/// Whatever reading answers; `UnexpectedEof` if there is no answer, `InvalidData` if it is none or too long.
pub fn read_answer(reader: impl BufRead) -> io::Result<Result<Value, String>> {
    let mut answer = String::new();
    reader.take(ANSWER_MAX).read_line(&mut answer)?;
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if answer.len() as u64 == ANSWER_MAX && !answer.ends_with('\n') {
        return Err(invalid(format!("its answer has more than {ANSWER_MAX} bytes")));
    }
    match serde_json::from_str(&answer) {
        Ok(Response::Ok(value)) => Ok(Ok(value)),
        Ok(Response::Error(why)) => Ok(Err(why)),
        // An answer that stops in the middle: the daemon has gone.
        Err(error) if error.is_eof() => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) => Err(invalid(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::process::{Uid, geteuid};

    use super::*;

    /// Answers one client with `answer`, and says what it asked.
    fn answering(listener: UnixListener, answer: &'static [u8]) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(answer);
            let mut asked = Vec::new();
            let _ = io::Read::read_to_end(&mut stream, &mut asked);
            asked
        })
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "says what it skips")]
    fn what_another_user_answers_is_not_believed() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let path = place.join("control.sock");
        let listening = || {
            let _ = std::fs::remove_file(&path);
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            let other = Uid::from_raw(65534);
            // The kernel notes who listens; a thread has credentials of its own.
            let listening = std::thread::spawn(move || {
                rustix::thread::set_thread_res_uid(other, other, other).unwrap();
                rustix::net::listen(&socket, 1).unwrap();
                UnixListener::from(socket)
            });
            listening.join().unwrap()
        };
        let answer = answering(listening(), b"{\"ok\":null}\n");
        let refusal = Client::new(&path).ask(&Request::Stop);
        assert!(
            matches!(&refusal, Err(ClientError::Unreachable(text)) if text.contains("belongs to the user 65534")),
            "{refusal:?}"
        );
        assert_eq!(answer.join().unwrap(), b"", "nothing is told");
        // To whom root has given the directory, root gave the daemon.
        std::os::unix::fs::chown(&place, Some(65534), None).unwrap();
        let answer = answering(listening(), b"{\"ok\":null}\n");
        assert_eq!(Client::new(&path).ask(&Request::Stop), Ok(Value::Null));
        assert!(answer.join().unwrap().starts_with(b"{\"command\":\"stop\"}"));
    }

    fn refusal(path: &Path, patience: Duration) -> String {
        let client = Client { path: path.to_owned(), patience };
        match client.ask(&Request::Status) {
            Err(ClientError::Unreachable(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_is_bounded_in_length_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let bind = || {
            let _ = std::fs::remove_file(&path);
            UnixListener::bind(&path).unwrap()
        };
        let long = vec![b' '; ANSWER_MAX as usize + 1].leak();
        let endless = answering(bind(), long);
        assert!(refusal(&path, TIMEOUT).contains("has more than 16777216 bytes"));
        endless.join().unwrap();
        for (answer, why) in [
            (&b"{\"ok\":[1,"[..], "went away"),
            (b"", "went away"),
            (b"\x1b[2J\n", "is no surgetank daemon"),
            (b"\xff\n", "is no surgetank daemon"),
            (b"{\"maybe\":null}\n", "is no surgetank daemon"),
        ] {
            let listener = bind();
            let silent = std::thread::spawn(move || drop(listener.accept().unwrap().0.write_all(answer)));
            let said = refusal(&path, TIMEOUT);
            assert!(said.contains(why), "{said}");
            silent.join().unwrap();
        }
        // Nobody accepts: the first waits for its answer, and others for a place in the queue.
        let listener = bind();
        rustix::net::listen(&listener, 0).unwrap();
        for _ in 0..3 {
            let said = refusal(&path, Duration::from_millis(50));
            assert!(said.contains("has not answered"), "{said}");
        }
    }
}
