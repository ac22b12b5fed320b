//! The server's end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use super::address::{BadAddress, allowed};
use super::connection::{Connection, From};
use super::{FRAME, Served, Service, WINDOWS};
#[cfg(feature = "metrics")]
use crate::metrics::Watched;
use crate::security::tls;
use crate::security::{Credentials, tls::Tls};

/// How long a client may take to show its certificate.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a client may say nothing before it is asked whether it is there, and then once more.
const ALIVE: Duration = Duration::from_secs(20);
/// Clients that may be about it at a time.
const HANDSHAKES: usize = 256;
/// The pause after a connection that the system did not give, as when there are too many.
const PAUSE: Duration = Duration::from_millis(100);
/// Refusals are told at most this often: who is refused may try again at once.
const TOLD: Duration = Duration::from_secs(1);

/// A port that is listened on.
pub struct Listener {
    listener: TcpListener,
    credentials: Credentials,
    #[cfg(feature = "metrics")]
    watched: Watched,
}

/// Listens at an address, in a runtime.
pub(crate) fn bound(address: SocketAddr) -> std::io::Result<TcpListener> {
    let bound = std::net::TcpListener::bind(address)?;
    bound.set_nonblocking(true)?;
    TcpListener::from_std(bound)
}

impl Listener {
    /// Listens; port 0 is any that is free. Requests are held to these credentials.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn bind(text: &str, credentials: &Credentials) -> Result<Self, BadAddress> {
        let address = allowed(text, credentials.tls.is_some())?;
        let failed = |error: std::io::Error| BadAddress::Listen(address, error.to_string());
        let (listener, credentials) = (bound(address).map_err(failed)?, credentials.clone());
        Ok(Self {
            listener,
            credentials,
            #[cfg(feature = "metrics")]
            watched: Watched::default(),
        })
    }

    /// What is served has metrics here.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn watched_by(mut self, watched: &Watched) -> Self {
        self.watched = watched.clone();
        self
    }

    /// Where what is served has metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn watched(&self) -> Watched {
        self.watched.clone()
    }

    /// Where.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What requests are held to, and what who listens shows when it asks others.
    #[must_use]
    pub const fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Serves until the end.
    ///
    /// # Errors
    /// What ended it.
    pub async fn serve<S: Service>(self, service: Arc<S>) -> Result<(), tonic::transport::Error> {
        let Self { listener, credentials, .. } = self;
        let refusals = Arc::new(Refusals::default());
        let (give, connections) = mpsc::channel(1);
        let (key, revoked) = (credentials.key().clone(), credentials.revoked.clone());
        let served = Served { service, key, revoked, refusals: Arc::clone(&refusals) };
        let serving = Server::builder()
            .initial_connection_window_size(WINDOWS.0)
            .initial_stream_window_size(WINDOWS.1)
            .max_frame_size(FRAME)
            // What is answered to somebody who has gone is kept until that is noticed, and chunks with it.
            .http2_keepalive_interval(Some(ALIVE))
            .http2_keepalive_timeout(Some(ALIVE))
            .serve_with_incoming(served, ReceiverStream::new(connections));
        tokio::select! {
            served = serving => served,
            () = accept(&listener, credentials.tls, &give, &refusals) => Ok(()),
        }
    }
}

type Give = mpsc::Sender<Result<Connection, Infallible>>;

/// Takes connections, and passes on those whose other end has a certificate if that is wanted. Whoever has none ends nothing.
async fn accept(listener: &TcpListener, tls: Option<Tls>, give: &Give, refusals: &Arc<Refusals>) {
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if handshakes.len() < HANDSHAKES => accepted,
            Some(_) = handshakes.join_next() => continue,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a connection is not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let _ = socket.set_nodelay(true);
        match tls.as_ref().map(|tls| tls.current().server) {
            Some(None) => refusals.tell(Some(From(from)), &"this server has no certificate to show"),
            Some(Some(config)) => {
                let (give, refusals) = (give.clone(), Arc::clone(refusals));
                handshakes.spawn(async move {
                    match shake_hands(TlsAcceptor::from(config), socket).await {
                        Ok(stream) => drop(give.send(Ok(Connection::served(stream, from))).await),
                        Err(why) => refusals.tell(Some(From(from)), &why),
                    }
                });
            }
            None => drop(give.send(Ok(Connection::served(socket, from))).await),
        }
    }
}

async fn shake_hands(
    acceptor: TlsAcceptor,
    socket: TcpStream,
) -> Result<tokio_rustls::server::TlsStream<TcpStream>, String> {
    match timeout(HANDSHAKE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(tls::why(&error, "its", "this server's")),
        Err(_) => Err(format!("it has not shown a certificate within {HANDSHAKE:?}")),
    }
}

/// Tells who was refused, now and then.
#[derive(Default)]
pub(super) struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    pub(super) fn tell(&self, from: Option<From>, why: &dyn std::fmt::Display) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.0.is_some_and(|told| told.elapsed() < TOLD) {
            told.1 += 1;
            return;
        }
        let others = std::mem::replace(&mut *told, (Some(Instant::now()), 0)).1;
        let from = from.map_or_else(|| "somebody".to_owned(), |from| from.0.to_string());
        let more =
            if others > 0 { format!(" ({others} more were refused since the last message)") } else { String::new() };
        tracing::warn!("{from} is refused: {why}{more}");
    }
}
