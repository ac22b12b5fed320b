//! The connections of the provisioning service. Whoever has shown the token is served; whoever has not yet is an unauthenticated peer:
//! these are few and stay briefly, the newest displaces one that came before, and nobody who has shown the token ever
//! waits for them.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::peer::Peer;

/// Connections that have not shown the token.
const UNAUTHENTICATED_MAX: usize = 64;
/// How long they may take for that, TLS included.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that have shown it.
const ADMITTED_MAX: usize = 64;
/// How long a connection may last, whatever its client does: the next request comes on another.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest head of a request, in bytes: a token, an id or a tag, and what clients say of themselves.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The pause after the system has no connection to give, as when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is connected; `H` ends a connection.
struct Table<H> {
    next: u64,
    /// In the order in which they came.
    unauthenticated: VecDeque<Unauthenticated<H>>,
    admitted: usize,
}

struct Unauthenticated<H> {
    id: u64,
    peer: Peer,
    handle: H,
}

impl<H> Table<H> {
    const fn new() -> Self {
        Self { next: 0, unauthenticated: VecDeque::new(), admitted: 0 }
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes an unauthenticated peer in. Answers whom it displaces: of the address with the most of them the one that came first, so
    /// that no number of connections displaces another peer's.
    fn arrive(&mut self, id: u64, peer: Peer, handle: H) -> Option<H> {
        self.unauthenticated.push_back(Unauthenticated { id, peer, handle });
        if self.unauthenticated.len() <= UNAUTHENTICATED_MAX {
            return None;
        }
        let held = |peer: Peer| self.unauthenticated.iter().filter(|one| one.peer == peer).count();
        // Of equals the last one counts: seen from the end that is who came first.
        let victim = (0..self.unauthenticated.len()).rev().max_by_key(|at| held(self.unauthenticated[*at].peer))?;
        self.unauthenticated.remove(victim).map(|peer| peer.handle)
    }

    /// An unauthenticated peer has shown the token; `false`: there are too many who have.
    fn admit(&mut self, id: u64) -> bool {
        let Some(at) = self.unauthenticated.iter().position(|peer| peer.id == id) else { return false };
        let room = self.admitted < ADMITTED_MAX;
        if room {
            self.unauthenticated.remove(at);
            self.admitted += 1;
        }
        room
    }

    fn leave(&mut self, id: u64, admitted: bool) {
        if admitted {
            self.admitted -= 1;
        } else {
            self.unauthenticated.retain(|peer| peer.id != id);
        }
    }
}

type Shared = Arc<Mutex<Table<AbortHandle>>>;

fn locked(table: &Shared) -> MutexGuard<'_, Table<AbortHandle>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection as its requests see it.
#[derive(Clone)]
pub struct Visitor {
    id: u64,
    admitted: Arc<AtomicBool>,
    /// `None`: there are no others.
    table: Option<Shared>,
}

impl Visitor {
    /// The only one there is.
    pub fn alone() -> Self {
        Self { id: 0, admitted: Arc::default(), table: None }
    }

    /// A request has shown the token; `false`: too many connections have.
    pub fn admit(&self) -> bool {
        if !self.is_admitted() {
            let admitted = self.table.as_ref().is_none_or(|table| locked(table).admit(self.id));
            self.admitted.store(admitted, Ordering::Relaxed);
        }
        self.is_admitted()
    }

    fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }
}

/// Takes a connection out of the table when it ends, however it does.
struct Leaving(Visitor);

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(table) = &self.0.table {
            locked(table).leave(self.0.id, self.0.is_admitted());
        }
    }
}

/// Serves until `end`, and then ends what it has begun.
pub async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, end: impl Future<Output = ()>) {
    let table: Shared = Arc::new(Mutex::new(Table::new()));
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut end = pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted.and_then(|(stream, theirs)| Ok((stream.local_addr()?, stream, theirs))) {
                Ok((ours, stream, theirs)) => {
                    let visitor = Visitor { id: locked(&table).name(), admitted: Arc::default(), table: Some(table.clone()) };
                    let (id, leaving) = (visitor.id, Leaving(visitor));
                    let connection = connection(stream, router.clone(), tls.clone(), leaving, stopped.clone());
                    let handle = connections.spawn(connection);
                    let displaced = locked(&table).arrive(id, Peer::of(theirs, ours), handle);
                    if let Some(displaced) = displaced {
                        displaced.abort();
                    }
                    // So that what it has sent already is seen before the next one comes.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    // Unauthenticated peers have begun nothing.
    locked(&table).unauthenticated.iter().for_each(|peer| peer.handle.abort());
    let _ = stop.send(true);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    router: Router,
    tls: Option<TlsAcceptor>,
    leaving: Leaving,
    stopped: watch::Receiver<bool>,
) {
    let visitor = &leaving.0;
    let serving = async {
        match tls {
            None => converse(stream, router, visitor.clone(), stopped).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => converse(stream, router, visitor.clone(), stopped).await,
                Err(error) => Err(error),
            },
        }
    };
    let patience = async {
        tokio::time::sleep(UNAUTHENTICATED_TIMEOUT).await;
        if visitor.is_admitted() {
            tokio::time::sleep(CONNECTION_TIMEOUT - UNAUTHENTICATED_TIMEOUT).await;
        }
    };
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::debug!(%error, "a connection broke off");
        },
        () = patience => {}
    }
}

/// Answers the requests of one connection.
pub async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    router: Router,
    visitor: Visitor,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let service = TowerToHyperService::new(router.layer(Extension(visitor)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_header_size(HEAD_BYTES_MAX);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = serving.as_mut() => return served.map_err(io::Error::other),
        // One whose sender has gone does not stop.
        Ok(_) = stopped.wait_for(|stopped| *stopped) => {}
    }
    serving.as_mut().graceful_shutdown();
    serving.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(peers: &[(Peer, usize)]) -> Table<u64> {
        let mut table = Table::new();
        for (peer, count) in peers {
            for _ in 0..*count {
                let id = table.name();
                assert_eq!(table.arrive(id, *peer, id), None);
            }
        }
        table
    }

    #[test]
    fn a_newcomer_displaces_the_oldest_of_whoever_has_most() {
        let (one, other) = (Peer::User(1), Peer::User(2));
        let mut table = filled(&[(other, 3), (one, UNAUTHENTICATED_MAX - 3)]);
        // Ids 1 to 3 are the other's; 4 is the oldest of the many.
        assert_eq!(table.arrive(100, one, 100), Some(4));
        assert_eq!(table.arrive(101, other, 101), Some(5));
        for id in 200..1200 {
            assert!(table.arrive(id, one, id).is_some_and(|victim| victim > 3 && victim != 101));
            assert_eq!(table.unauthenticated.len(), UNAUTHENTICATED_MAX);
        }
        // Of equals the one that came first.
        let mut table = filled(&[(one, UNAUTHENTICATED_MAX / 2), (other, UNAUTHENTICATED_MAX / 2)]);
        assert_eq!(table.arrive(100, Peer::User(3), 100), Some(1));
    }

    #[test]
    fn who_has_shown_the_token_is_displaced_by_nobody_and_counted_apart() {
        let mut table = filled(&[(Peer::User(1), UNAUTHENTICATED_MAX)]);
        assert!(table.admit(1));
        assert_eq!(table.arrive(100, Peer::User(1), 100), None, "it has made room");
        for id in 200..400 {
            assert!(table.arrive(id, Peer::User(1), id).is_some_and(|victim| victim != 1));
        }
        assert!(!table.admit(2), "it has gone");
        for id in 1000..1000 + ADMITTED_MAX as u64 - 1 {
            table.arrive(id, Peer::User(1), id);
            assert!(table.admit(id));
        }
        table.arrive(2000, Peer::User(1), 2000);
        assert!(!table.admit(2000), "as many as there may be");
        table.leave(1, true);
        assert!(table.admit(2000));
        table.leave(399, false);
        assert_eq!((table.admitted, table.unauthenticated.iter().any(|peer| peer.id == 399)), (ADMITTED_MAX, false));
    }
}
