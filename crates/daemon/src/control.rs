//! The control socket: newline-delimited JSON, one request and one answer a line.
//!
//! Only root and the user who runs the daemon may connect; the socket's mode says so and the peer's credentials are
//! checked as well. What a client can ask for is bounded in length, number and time.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files;
use crate::status::StatusReport;
use crate::sweep::Swept;

/// The longest request line, in bytes.
const REQUEST_MAX: u64 = 64 << 10;
/// Connections that are served at the same time.
const CONNECTIONS_MAX: usize = 32;
/// Requests of one connection.
const REQUESTS_MAX: usize = 1024;
/// How long a connection's requests may keep us waiting, all in all; and how long it may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// What can be asked of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The status of all devices: answers a [`StatusReport`].
    Status,
    /// Boost a device now.
    Boost {
        /// Its name.
        device: String,
    },
    /// End a device's boost.
    Drain {
        /// Its name.
        device: String,
    },
    /// End a device's boost and give its caching volume back without waiting.
    Detach {
        /// Its name.
        device: String,
        /// Give up data that is lost.
        #[serde(default)]
        accept_loss: bool,
    },
    /// Follow a backing volume that has grown: answers `{"size_bytes"}`.
    Resize {
        /// The device's name.
        device: String,
    },
    /// Give back volumes that nobody knows of: answers a [`Swept`].
    Gc,
    /// Take up new certificates, as SIGHUP does: answers `{"reloaded": [names of devices]}`.
    Reload,
    /// Stop the daemon, as SIGTERM does.
    Stop,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Ok(Value),
    Error(String),
}

/// Answers a request with a JSON value, or with one sentence on why not.
pub type Handler = Arc<dyn Fn(Request) -> Result<Value, String> + Send + Sync>;

/// The listening socket and its thread.
pub struct Server {
    path: PathBuf,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The bound socket of a daemon that is still starting: clients wait. Dropping it removes the socket.
pub struct Bound {
    path: PathBuf,
    listener: UnixListener,
    served: bool,
}

impl Bound {
    /// Makes the socket.
    ///
    /// # Errors
    /// One sentence: it cannot be made, another daemon listens on it, or something else lies there.
    pub fn new(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the control socket {} cannot be made: {error}", path.display());
        if let Some(directory) = path.parent() {
            files::make_directory(directory).map_err(failed)?;
        }
        remove_stale(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|error| failed(error.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
        let bound = Self { path: path.to_owned(), listener: UnixListener::from(socket), served: false };
        // Nobody can connect before `listen`, so there is no moment at which others could.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&bound.listener, BACKLOG).map_err(|error| failed(error.into()))?;
        Ok(bound)
    }

    /// Answers clients from now on.
    ///
    /// # Errors
    /// One sentence: a thread cannot be started.
    pub fn serve(mut self, handler: Handler) -> Result<Server, String> {
        let failed = |error: io::Error| format!("the control socket cannot be served: {error}");
        let listener = self.listener.try_clone().map_err(failed)?;
        let ending = Arc::new(AtomicBool::new(false));
        let flag = ending.clone();
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || listen(&listener, &handler, &flag))
            .map_err(failed)?;
        self.served = true;
        Ok(Server { path: self.path.clone(), ending, thread: Some(thread) })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if !self.served {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket that a killed daemon left behind, and nothing else.
fn remove_stale(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let unusable = |error: io::Error| format!("the control socket {shown} cannot be made: {error}");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!(
                "the control socket {shown} cannot be made: something that is no socket lies there; move it away or \
                 name another control_socket"
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(format!(
            "another surgetank daemon answers at {shown}: stop it first, or give this one another control_socket"
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(unusable),
        Err(error) => Err(unusable(error)),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // The thread sits in accept: a connection wakes it.
        let _ = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(listener: &UnixListener, handler: &Handler, ending: &AtomicBool) {
    let served = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if ending.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot accept");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if !may_control(&stream) {
            let _ = answer(&stream, Err("only root and the daemon's own user may control it".to_owned()));
            continue;
        }
        if served.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            let _ = answer(&stream, Err("too many control connections: try again".to_owned()));
            continue;
        }
        served.fetch_add(1, Ordering::Relaxed);
        let (handler, counter) = (handler.clone(), served.clone());
        let serving = move || {
            if let Err(error) = serve(&stream, &handler) {
                tracing::debug!(%error, "a control connection ended");
            }
            counter.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("control-client".into()).spawn(serving).is_err() {
            served.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the process that connected belongs to root or to our own user.
fn may_control(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn serve(stream: &UnixStream, handler: &Handler) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    converse(BufReader::new(Patient { stream, left: PATIENCE }), stream, &**handler)
}

/// Waits for bytes for so long altogether, however few of them come at a time.
struct Patient<'a> {
    stream: &'a UnixStream,
    left: Duration,
}

impl Read for Patient<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(self.left))?;
        let begun = Instant::now();
        let read = self.stream.read(room);
        self.left = self.left.saturating_sub(begun.elapsed());
        read
    }
}

/// Answers the requests of one client, a line each, until it leaves or has asked for enough.
///
/// # Errors
/// Whatever reading and writing answer; a line that is no text ends the conversation.
pub fn converse(
    mut reader: impl BufRead,
    mut writer: impl Write,
    handler: &dyn Fn(Request) -> Result<Value, String>,
) -> io::Result<()> {
    for _ in 0..REQUESTS_MAX {
        let mut line = String::new();
        if reader.by_ref().take(REQUEST_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let result = match serde_json::from_str::<Request>(&line) {
            Ok(request) => handler(request),
            Err(error) => Err(format!("not a request: {error}")),
        };
        answer(&mut writer, result)?;
        if !line.ends_with('\n') {
            return Ok(());
        }
    }
    Ok(())
}

fn answer(mut writer: impl Write, result: Result<Value, String>) -> io::Result<()> {
    let response = match result {
        Ok(value) => Response::Ok(value),
        Err(error) => Response::Error(error),
    };
    let mut line = serde_json::to_vec(&response)?;
    line.push(b'\n');
    writer.write_all(&line)
}

/// Why a daemon did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no daemon, or it may not be asked by this user.
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
}

impl Client {
    /// A client of the daemon with this control socket.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Asks, and answers the daemon's JSON.
    ///
    /// # Errors
    /// There is no daemon, or it refuses.
    pub fn ask(&self, request: &Request) -> Result<Value, ClientError> {
        let path = self.path.display();
        let stream = UnixStream::connect(&self.path).map_err(|error| {
            ClientError::Unreachable(match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!(
                        "the control socket {path} may not be opened by this user: run as root or as the daemon's user"
                    )
                }
                _ => {
                    format!("no daemon answers at {path}: start one with `surgetank serve`, or name its control socket")
                }
            })
        })?;
        let broken = |error: io::Error| ClientError::Unreachable(format!("the daemon at {path} went away: {error}"));
        let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        // A daemon that refuses us may have said so and gone before we asked.
        let asked = (&stream).write_all(&line);
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).map_err(broken)?;
        if answer.is_empty() {
            asked.map_err(broken)?;
        }
        match serde_json::from_str(&answer).map_err(|error| broken(error.into()))? {
            Response::Ok(value) => Ok(value),
            Response::Error(error) => Err(ClientError::Refused(error)),
        }
    }

    /// The status of all devices.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn status(&self) -> Result<StatusReport, ClientError> {
        self.typed(&Request::Status)
    }

    /// Gives back volumes that nobody knows of.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        let handler: Handler = Arc::new(|request| match request {
            Request::Boost { device } => Ok(Value::String(device)),
            _ => Err("no".to_owned()),
        });
        let server = Bound::new(&path).unwrap().serve(handler).unwrap();
        let client = Client::new(&path);
        assert_eq!(client.ask(&Request::Boost { device: "data".into() }), Ok(Value::String("data".into())));
        assert_eq!(client.ask(&Request::Stop), Err(ClientError::Refused("no".into())));
        assert!(Bound::new(&path).is_err_and(|error| error.contains("another surgetank daemon")));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"command\":\"fly\"}\n{\"command\":\"stop\"}\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.next().unwrap().unwrap().contains("not a request"));
        assert!(lines.next().unwrap().unwrap().contains("no"));
        drop(server);
        assert!(!path.exists());
        assert!(matches!(client.status(), Err(ClientError::Unreachable(_))));
    }

    #[test]
    fn nothing_but_a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        assert!(Bound::new(&path).is_err_and(|error| error.contains("no socket lies there")));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let bound = Bound::new(&path).unwrap();
        assert!(Bound::new(&path).is_err_and(|error| error.contains("another surgetank daemon")), "still starting");
        drop(bound);
        assert!(!path.exists());
    }

    fn serve_at(path: &Path) -> Server {
        let handler: Handler = Arc::new(|_| Ok(Value::Null));
        Bound::new(path).unwrap().serve(handler).unwrap()
    }

    #[test]
    #[allow(clippy::print_stderr, reason = "says what it skips")]
    fn another_user_cannot_control_the_daemon() {
        use rustix::process::{Uid, geteuid};
        if !geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(directory.path(), 0o755);
        let path = directory.path().join("run/control.sock");
        let server = serve_at(&path);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        // On Linux a thread has credentials of its own, until a library makes all threads follow; this goes below it.
        let as_another = |client: Client| {
            let other = Uid::from_raw(65534);
            let asking = std::thread::spawn(move || {
                rustix::thread::set_thread_res_uid(other, other, other).unwrap();
                client.ask(&Request::Stop)
            });
            asking.join().unwrap()
        };
        for (what, socket_mode, directory_mode) in
            [("as it is", 0o600, 0o700), ("in an open directory", 0o600, 0o755), ("in a closed one", 0o666, 0o700)]
        {
            open(&path, socket_mode);
            open(path.parent().unwrap(), directory_mode);
            let refusal = as_another(Client::new(&path));
            assert!(
                matches!(&refusal, Err(ClientError::Unreachable(text)) if text.contains("may not be opened")),
                "{what}: {refusal:?}"
            );
        }
        // Where the modes say yes, the credentials say no.
        open(&path, 0o666);
        open(path.parent().unwrap(), 0o755);
        let refusal = as_another(Client::new(&path));
        let expected = "only root and the daemon's own user may control it";
        assert_eq!(refusal, Err(ClientError::Refused(expected.to_owned())));
        assert_eq!(Client::new(&path).ask(&Request::Status), Ok(Value::Null));
        drop(server);
    }

    #[test]
    fn what_a_client_can_ask_for_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let server = serve_at(&path);
        // Length: no line longer than the limit is kept; the rest of it is not read.
        let mut long = UnixStream::connect(&path).unwrap();
        let _ = long.write_all(&vec![b' '; 4 * REQUEST_MAX as usize]);
        let mut answers = String::new();
        let _ = long.read_to_string(&mut answers);
        assert!(answers.is_empty() || answers.contains("not a request") && answers.lines().count() == 1, "{answers}");
        // Number of requests.
        let mut many = UnixStream::connect(&path).unwrap();
        let mut writer = many.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            for _ in 0..2 * REQUESTS_MAX {
                if writer.write_all(b"{\"command\":\"status\"}\n").is_err() {
                    return;
                }
            }
        });
        answers.clear();
        let _ = many.read_to_string(&mut answers);
        writing.join().unwrap();
        assert_eq!(answers.lines().count(), REQUESTS_MAX);
        // Number of connections.
        let idle: Vec<UnixStream> = (0..CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        answers.clear();
        BufReader::new(UnixStream::connect(&path).unwrap()).read_line(&mut answers).unwrap();
        assert!(answers.contains("too many control connections"), "{answers}");
        drop(idle);
        drop(server);
    }

    #[test]
    fn a_client_that_trickles_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let trickling = std::thread::spawn(move || {
            while theirs.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let patient = Patient { stream: &ours, left: Duration::from_millis(50) };
        assert!(converse(BufReader::new(patient), &mut Vec::new(), &|_| Ok(Value::Null)).is_err());
        drop(ours);
        trickling.join().unwrap();
    }
}
