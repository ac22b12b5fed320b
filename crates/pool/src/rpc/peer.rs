//! The client's end.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::{Service as Tower, http};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::address::{BadAddress, allowed, parts};
use super::connection::{Connection, Why};
use super::{FRAME, MESSAGE_MAX, PROTOCOL, Service, WINDOWS, WireCodec, protocol};
use crate::security::{Access, tls};

/// Connections to each server: one alone is bound to one core.
const CONNECTIONS: usize = 2;
/// How long a connection may take to be made; requests wait for less, and leave it to the next one.
const CONNECT: Duration = Duration::from_secs(12);

/// A server, from the outside. It connects when it is first asked, and again whenever it has to.
#[derive(Clone, Debug)]
pub struct Peer {
    channels: Arc<[Channel]>,
    next: Arc<AtomicUsize>,
    token: MetadataValue<Ascii>,
    text: Arc<str>,
    why: Arc<Why>,
}

impl Peer {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn new(text: &str, access: &Access) -> Result<Self, BadAddress> {
        let unreadable = || BadAddress::Unreadable(text.to_owned());
        // With TLS a name is looked up whenever it is called.
        let fixed = match access.tls {
            Some(_) => parts(text).map(|_| None)?,
            None => Some(allowed(text, false)?),
        };
        let why = Arc::<Why>::default();
        let text: Arc<str> = text.into();
        let connector =
            Connector { text: Arc::clone(&text), fixed, access: Arc::new(access.clone()), why: Arc::clone(&why) };
        let endpoint = Endpoint::from_shared(format!("http://{text}"))
            .map_err(|_| unreadable())?
            .initial_connection_window_size(WINDOWS.0)
            .initial_stream_window_size(WINDOWS.1)
            .max_frame_size(FRAME)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2));
        let channels = (0..CONNECTIONS).map(|_| endpoint.connect_with_connector_lazy(connector.clone())).collect();
        let mut token: MetadataValue<Ascii> = access.token.to_text().parse().map_err(|_| unreadable())?;
        // It is shown by no log, and kept in no table of the connection.
        token.set_sensitive(true);
        Ok(Self { channels, next: Arc::default(), token, text, why })
    }

    /// Asks, and waits at most that long for the reply.
    ///
    /// # Errors
    /// The server's refusal; or `Unavailable`, `DeadlineExceeded` and the like: whether it acted is unknown then.
    pub async fn ask<S: Service>(&self, request: S::Request, within: Duration) -> Result<S::Reply, Status> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len();
        let mut grpc = tonic::client::Grpc::new(self.channels[at].clone()).max_decoding_message_size(MESSAGE_MAX);
        let method = http::uri::PathAndQuery::from_static(super::Method::method(&request));
        let mut request = Request::new(request);
        request.metadata_mut().insert("authorization", self.token.clone());
        request.metadata_mut().insert(protocol::HEADER, PROTOCOL.into());
        let failed = |error: &dyn Error| Status::unavailable(self.why.get().unwrap_or_else(|| deepest(error)));
        let exchange = async {
            grpc.ready().await.map_err(|error| failed(&error))?;
            let codec = WireCodec::<S::Request, S::Reply>::default();
            match grpc.unary(request, method, codec).await {
                // What the server says has no source.
                Err(status) if status.source().is_some() => Err(failed(&status)),
                Err(status) => {
                    self.why.set(None);
                    Err(status)
                }
                Ok(answer) => {
                    self.why.set(None);
                    let header = answer.metadata().get(protocol::HEADER).map(|header| header.to_str().unwrap_or(""));
                    protocol::check(&self.text, header).map_err(Status::unimplemented)?;
                    Ok(answer.into_inner())
                }
            }
        };
        tokio::time::timeout(within, exchange).await.unwrap_or_else(|_| {
            let why = self.why.get().unwrap_or_else(|| "no answer in time".to_owned());
            Err(Status::new(Code::DeadlineExceeded, why))
        })
    }
}

/// What an error comes from: the transport's own words are "transport error".
fn deepest(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}

/// Makes the connections of a peer.
#[derive(Clone)]
struct Connector {
    text: Arc<str>,
    /// Where it leads, if that is settled.
    fixed: Option<SocketAddr>,
    access: Arc<Access>,
    why: Arc<Why>,
}

impl Tower<http::Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let late = Err(format!("{} does not answer within {CONNECT:?}", connector.text));
            let connected = tokio::time::timeout(CONNECT, connector.connect()).await.unwrap_or(late);
            connected.map(TokioIo::new).map_err(|why| {
                connector.why.set(Some(why.clone()));
                std::io::Error::other(why)
            })
        })
    }
}

impl Connector {
    async fn connect(&self) -> Result<Connection, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.text);
        let socket = match self.fixed {
            Some(address) => TcpStream::connect(address).await,
            None => TcpStream::connect(&*self.text).await,
        };
        let socket = socket.map_err(failed)?;
        let ends = (socket.peer_addr().map_err(failed)?, socket.local_addr().map_err(failed)?);
        socket.set_nodelay(true).map_err(failed)?;
        let why = Arc::clone(&self.why);
        let Some(tls) = &self.access.tls else {
            self.access.may_see(ends.0, ends.1).await?;
            return Ok(Connection::called(socket, ends.0, &self.text, why));
        };
        let host = parts(&self.text).map_err(|error| error.to_string())?.0.to_owned();
        let name = ServerName::try_from(host)
            .map_err(|_| format!("{}: that is no name that a certificate can have", self.text))?;
        let connected = TlsConnector::from(tls.current().client).connect(name, socket).await;
        let stream = connected
            .map_err(|error| format!("{}: {}", self.text, tls::why(&error, "the server's", "this process's")))?;
        Ok(Connection::called(stream, ends.0, &self.text, why))
    }
}
