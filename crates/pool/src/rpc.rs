//! Requests and replies over gRPC, in the pool's own encoding: the largest part of a message is a chunk, which is to be copied
//! once, into the socket's buffer, and not looked at.
//!
//! Without TLS nothing but a loopback address is served or called.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service as Tower, http};
use tonic::server::UnaryService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

use crate::wire::Wire;

/// What a connection and a stream may have under way, in bytes.
const WINDOWS: (u32, u32) = (32 << 20, 8 << 20);
/// A frame, at most: the usual ones, of 16 KiB, are read by 8 KiB at a time.
const FRAME: u32 = 1 << 20;
/// A message, at most.
const MESSAGE_MAX: usize = 16 << 20;
/// Connections to each server: one alone is bound to one core.
const CONNECTIONS: usize = 2;

/// A request names its method.
pub trait Method {
    /// `/package.Service/Method`.
    fn method(&self) -> &'static str;
}

/// What a process serves.
pub trait Service: Send + Sync + 'static {
    /// What is asked.
    type Request: Wire + Method + Send + Sync + 'static;
    /// What is answered.
    type Reply: Wire + Send + Sync + 'static;

    /// Answers a request.
    fn answer(self: Arc<Self>, request: Self::Request) -> impl Future<Output = Result<Self::Reply, Status>> + Send;
}

struct WireCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for WireCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Wire + Send + 'static, D: Wire + Send + 'static> Codec for WireCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Wire, D> Encoder for WireCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.put(out);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(64 << 10, 4 << 20)
    }
}

impl<E, D: Wire> Decoder for WireCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let message = from.copy_to_bytes(from.remaining());
        D::from_bytes(message).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

/// A service as tonic calls it.
struct Served<S>(Arc<S>);

impl<S> Clone for Served<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Service> UnaryService<S::Request> for Served<S> {
    type Response = S::Reply;
    type Future = BoxFuture<Response<S::Reply>, Status>;

    fn call(&mut self, request: Request<S::Request>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move { service.answer(request.into_inner()).await.map(Response::new) })
    }
}

impl<S: Service> Tower<http::Request<tonic::body::Body>> for Served<S> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let codec = WireCodec::<S::Reply, S::Request>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(MESSAGE_MAX);
            Ok(grpc.unary(service, request).await)
        })
    }
}

/// Something is wrong with an address.
#[derive(Debug, thiserror::Error)]
pub enum BadAddress {
    /// It is none.
    #[error("`{0}` is no address: write HOST:PORT, such as 127.0.0.1:7440")]
    Unreadable(String),
    /// It is seen from outside.
    #[error(
        "`{0}` is not a loopback address: the pool has no TLS yet, and sends nothing in the clear beyond its machine"
    )]
    NotLoopback(String),
    /// It cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, String),
}

/// Reads an address.
///
/// # Errors
/// [`BadAddress`].
pub fn address(text: &str) -> Result<SocketAddr, BadAddress> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    let address = found.ok_or_else(|| BadAddress::Unreadable(text.to_owned()))?;
    if address.ip().is_loopback() { Ok(address) } else { Err(BadAddress::NotLoopback(text.to_owned())) }
}

/// A port that is listened on.
pub struct Listener(TcpIncoming);

impl Listener {
    /// Listens; port 0 is any that is free.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn bind(text: &str) -> Result<Self, BadAddress> {
        let address = address(text)?;
        let bound = TcpIncoming::bind(address).map_err(|error| BadAddress::Listen(address, error.to_string()))?;
        Ok(Self(bound.with_nodelay(Some(true))))
    }

    /// Where.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until the end.
    ///
    /// # Errors
    /// What ended it.
    pub async fn serve<S: Service>(self, service: Arc<S>) -> Result<(), tonic::transport::Error> {
        Server::builder()
            .initial_connection_window_size(WINDOWS.0)
            .initial_stream_window_size(WINDOWS.1)
            .max_frame_size(FRAME)
            .serve_with_incoming(Served(service), self.0)
            .await
    }
}

/// A server, from the outside. It connects when it is first asked, and again whenever it has to.
#[derive(Clone, Debug)]
pub struct Peer {
    channels: Arc<[Channel]>,
    next: Arc<AtomicUsize>,
}

impl Peer {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn new(text: &str) -> Result<Self, BadAddress> {
        let address = address(text)?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| BadAddress::Unreadable(text.to_owned()))?
            .connect_timeout(Duration::from_secs(2))
            .tcp_nodelay(true)
            .initial_connection_window_size(WINDOWS.0)
            .initial_stream_window_size(WINDOWS.1)
            .max_frame_size(FRAME)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2));
        let channels = (0..CONNECTIONS).map(|_| endpoint.connect_lazy()).collect();
        Ok(Self { channels, next: Arc::default() })
    }

    /// Asks, and waits at most that long for the reply.
    ///
    /// # Errors
    /// The server's refusal; or `Unavailable`, `DeadlineExceeded` and the like: whether it acted is unknown then.
    pub async fn ask<S: Service>(&self, request: S::Request, within: Duration) -> Result<S::Reply, Status> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len();
        let mut grpc = tonic::client::Grpc::new(self.channels[at].clone()).max_decoding_message_size(MESSAGE_MAX);
        let method = http::uri::PathAndQuery::from_static(request.method());
        let exchange = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = WireCodec::<S::Request, S::Reply>::default();
            grpc.unary(Request::new(request), method, codec).await.map(Response::into_inner)
        };
        match tokio::time::timeout(within, exchange).await {
            Ok(reply) => reply,
            Err(_) => Err(Status::new(Code::DeadlineExceeded, "no answer in time")),
        }
    }
}
