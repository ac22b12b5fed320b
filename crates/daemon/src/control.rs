//! The control socket: newline-delimited JSON, one request and one answer a line.
//!
//! Only root and the user who runs the daemon may connect; the socket's mode says so and the peer's credentials are
//! checked as well. What a client can ask for is bounded in length, number and time.

mod client;
mod listener;
mod peer;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use surgetank_device::seldom::Seldom;

pub use client::{Client, ClientError, read_answer};
use listener::Listener;
pub use listener::is_stale;

/// The longest request line, in bytes.
const REQUEST_MAX: u64 = 64 << 10;
/// Connections that are served at the same time.
const CONNECTIONS_MAX: usize = 32;
/// Requests of one connection.
const REQUESTS_MAX: usize = 1024;
/// How long a connection's requests may keep us waiting, all in all; and how long it may leave an answer unread.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the socket waits for requests that were read and are not answered: whoever asks for a stop hears of it.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What can be asked of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The status of all devices: answers a [`StatusReport`].
    Status,
    /// Boost a device for a burst.
    Boost {
        /// Its name.
        device: String,
        /// Bytes that the burst writes, if that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burst_bytes: Option<u64>,
        /// When it begins, in milliseconds; now if it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        starts_in_ms: Option<u64>,
    },
    /// End a device's boost.
    Drain {
        /// Its name.
        device: String,
    },
    /// End a device's boost and delete its caching volume without waiting.
    Detach {
        /// Its name.
        device: String,
        /// Discard data that is lost.
        #[serde(default)]
        accept_loss: bool,
    },
    /// Follow a backing volume that has grown: answers `{"size_bytes"}`.
    Resize {
        /// The device's name.
        device: String,
    },
    /// The last boosts of all devices: answers a [`HistoryReport`](crate::history::HistoryReport).
    History {
        /// So many of each, at most.
        last: usize,
    },
    /// Delete volumes that nobody knows of: answers a [`Swept`].
    Gc,
    /// How an array stands, or all of them: answers an [`ArraysReport`](crate::arrays::status::ArraysReport).
    ArrayStatus {
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Create an array: answers `{"remarks"}` when it is there.
    ArrayCreate {
        /// Its name.
        name: String,
    },
    /// Find the volumes of an array that is not on record: answers `{"remarks"}`.
    ArrayAssemble {
        /// Its name.
        name: String,
        /// Its name on its members.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// Replace members of an array: answers `{"replacing": [slots]}` at once.
    ArrayRotate {
        /// Its name.
        name: String,
        /// The slot; all of them, one after the other, if it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
    },
    /// Delete an array with its data: answers when nothing is left of it.
    ArrayDelete {
        /// Its name.
        name: String,
    },
    /// Take up new certificates, as SIGHUP does: answers `{"reloaded": [names of devices]}`.
    Reload,
    /// Stop the daemon, as SIGTERM does.
    Stop,
}

impl Request {
    /// To boost a device now.
    #[must_use]
    pub fn boost(device: &str) -> Self {
        Self::Boost { device: device.to_owned(), burst_bytes: None, starts_in_ms: None }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Ok(Value),
    Error(String),
}

/// Answers a request with a JSON value, or with one sentence on why not.
pub type Handler = Arc<dyn Fn(Request) -> Result<Value, String> + Send + Sync>;

/// Requests that were read and are not answered yet.
#[derive(Debug, Default)]
pub struct Pending {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Pending {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, until the answer is dropped.
    fn begin(&self) -> impl Drop + '_ {
        struct Begun<'a>(&'a Pending);
        impl Drop for Begun<'_> {
            fn drop(&mut self) {
                *self.0.count() -= 1;
                self.0.fewer.notify_all();
            }
        }
        *self.count() += 1;
        Begun(self)
    }

    /// Waits until there is none, for so long at most.
    fn wait(&self, most: Duration) {
        drop(self.fewer.wait_timeout_while(self.count(), most, |count| *count > 0));
    }
}

/// The listening socket and its thread. Dropping it ends both, whoever is connected; what was asked before is answered first, unless
/// that takes long.
pub struct Server {
    listener: Listener,
    ending: Arc<AtomicBool>,
    pending: Arc<Pending>,
    thread: Option<JoinHandle<()>>,
}

/// The bound socket of a daemon that is still starting: clients wait. Dropping it removes the socket.
pub struct Bound(Listener);

impl Bound {
    /// Makes the socket.
    ///
    /// # Errors
    /// One sentence: it cannot be made, another daemon listens on it, or something else lies there.
    pub fn new(path: &Path) -> Result<Self, String> {
        Listener::bind(path).map(Self)
    }

    /// Answers clients from now on.
    ///
    /// # Errors
    /// One sentence: a thread cannot be started.
    pub fn serve(self, handler: Handler) -> Result<Server, String> {
        let failed = |error: io::Error| format!("the control socket cannot be served: {error}");
        let accepting = self.0.socket.try_clone().map_err(failed)?;
        let ending = Arc::new(AtomicBool::new(false));
        let pending = Arc::new(Pending::default());
        let (flag, counted) = (ending.clone(), pending.clone());
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || listen(&accepting, &handler, &flag, &counted))
            .map_err(failed)?;
        Ok(Server { listener: self.0, ending, pending, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // Ends the accept that the thread waits in. A connection would not do: the file may be gone, or another's.
        let _ = rustix::net::shutdown(&self.listener.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.pending.wait(LAST_ANSWERS);
    }
}

fn listen(listener: &UnixListener, handler: &Handler, ending: &AtomicBool, pending: &Arc<Pending>) {
    let served = Arc::new(AtomicUsize::new(0));
    let mut failures = Seldom::default();
    loop {
        let accepted = listener.accept();
        if ending.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(untold) = failures.next(Instant::now()) {
                    tracing::warn!(%error, untold, "the control socket cannot accept");
                }
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
        let (handler, counter, pending) = (handler.clone(), served.clone(), pending.clone());
        let serving = move || {
            if let Err(error) = serve(&stream, &handler, &pending) {
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
    peer::user(stream).is_ok_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

fn serve(stream: &UnixStream, handler: &Handler, pending: &Pending) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    converse(BufReader::new(TimedRead { stream, left: TIMEOUT }), stream, &**handler, pending)
}

/// Waits for bytes for so long altogether, however few of them come at a time.
struct TimedRead<'a> {
    stream: &'a UnixStream,
    left: Duration,
}

impl Read for TimedRead<'_> {
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
    pending: &Pending,
) -> io::Result<()> {
    for _ in 0..REQUESTS_MAX {
        let mut line = String::new();
        if reader.by_ref().take(REQUEST_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let _pending = pending.begin();
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        let handler: Handler = Arc::new(|request| match request {
            Request::Boost { device, .. } => Ok(Value::String(device)),
            _ => Err("no".to_owned()),
        });
        let server = Bound::new(&path).unwrap().serve(handler).unwrap();
        let client = Client::new(&path);
        assert_eq!(client.ask(&Request::boost("data")), Ok(Value::String("data".into())));
        assert_eq!(client.ask(&Request::Stop), Err(ClientError::Refused("no".into())));
        assert!(Bound::new(&path).is_err_and(|error| error.contains("another surgetank daemon")));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"command\":\"fly\"}\n{\"command\":\"stop\"}\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.next().unwrap().unwrap().contains("not a request"));
        assert!(lines.next().unwrap().unwrap().contains("no"));
        drop(server);
        assert!(!path.exists());
        assert!(matches!(client.status(), Err(ClientError::NoDaemon(_))));
    }

    #[test]
    fn what_was_asked_before_the_end_is_answered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (asked, told) = std::sync::mpsc::channel();
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        let handler: Handler = Arc::new(move |_| {
            asked.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            flag.store(true, Ordering::Release);
            Ok(Value::Null)
        });
        let server = Bound::new(&path).unwrap().serve(handler).unwrap();
        let client = std::thread::spawn(move || Client::new(&path).ask(&Request::Stop));
        told.recv().unwrap();
        drop(server);
        assert!(done.load(Ordering::Acquire), "the process could have ended before the answer");
        assert_eq!(client.join().unwrap(), Ok(Value::Null));
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

    /// Whether the server ends, however long it may take.
    fn ends(server: Server) -> bool {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            let _ = ended.send(());
        });
        end.recv_timeout(Duration::from_secs(60)).is_ok()
    }

    #[test]
    fn a_server_ends_without_its_file_and_leaves_that_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let server = serve_at(&path);
        fs::remove_file(&path).unwrap();
        assert!(ends(server), "its file is gone");
        let server = serve_at(&path);
        fs::remove_file(&path).unwrap();
        let another = UnixListener::bind(&path).unwrap();
        assert!(ends(server), "another's file has taken its place");
        assert!(UnixStream::connect(&path).is_ok(), "and stays");
        drop(another);
        let bound = Bound::new(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(bound);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_server_ends_whoever_holds_its_connections() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (asked, is_asked) = std::sync::mpsc::channel();
        let (go_on, stuck) = std::sync::mpsc::channel::<()>();
        let (asked, stuck) = (std::sync::Mutex::new(asked), std::sync::Mutex::new(stuck));
        let handler: Handler = Arc::new(move |_| {
            asked.lock().unwrap().send(()).unwrap();
            let _ = stuck.lock().unwrap().recv();
            Ok(Value::Null)
        });
        let server = Bound::new(&path).unwrap().serve(handler).unwrap();
        let mut one = UnixStream::connect(&path).unwrap();
        one.write_all(b"{\"command\":\"status\"}\n").unwrap();
        is_asked.recv_timeout(Duration::from_secs(60)).expect("its request is being carried out");
        // As many as are served, and some that are refused or still wait to be accepted.
        let idle: Vec<UnixStream> = (0..CONNECTIONS_MAX + 8).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(ends(server));
        assert!(!path.exists() && UnixStream::connect(&path).is_err());
        drop((go_on, idle));
    }

    #[test]
    fn a_client_that_trickles_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let trickling = std::thread::spawn(move || {
            while theirs.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let timed = TimedRead { stream: &ours, left: Duration::from_millis(50) };
        assert!(converse(BufReader::new(timed), &mut Vec::new(), &|_| Ok(Value::Null), &Pending::default()).is_err());
        drop(ours);
        trickling.join().unwrap();
    }
}
