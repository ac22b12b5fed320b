//! Requests and replies over gRPC, in the pool's own encoding: the largest part of a message is a chunk, which is to be copied
//! once, into the socket's buffer, and not looked at.
//!
//! Every request shows a token, and is refused before it is read if that is none of the pool. Without TLS nothing but a loopback address is
//! served or called.

mod address;
mod connection;
mod listener;
mod peer;
mod protocol;

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service as Tower, http};
use tonic::server::UnaryService;
use tonic::{Code, Request, Response, Status};

pub use self::address::{BadAddress, advertised, check};
pub use self::listener::Listener;
#[cfg(feature = "metrics")]
pub(crate) use self::listener::bound;
pub use self::peer::Peer;
pub use self::protocol::PROTOCOL;
use crate::security::revoked::Revoked;
use crate::security::token::{Claims, Key, now};
use crate::wire::Wire;

/// What a connection and a stream may have under way, in bytes.
const WINDOWS: (u32, u32) = (32 << 20, 8 << 20);
/// A frame, at most: the usual ones, of 16 KiB, are read by 8 KiB at a time.
const FRAME: u32 = 1 << 20;
/// A message, at most.
const MESSAGE_MAX: usize = 16 << 20;

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

    /// Answers a request of somebody who has shown a token that allows this; whether it allows the request is the service's to say.
    fn answer(
        self: Arc<Self>,
        by: Claims,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Reply, Status>> + Send;
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
struct Served<S> {
    service: Arc<S>,
    key: Key,
    revoked: Revoked,
    refusals: Arc<listener::Refusals>,
}

impl<S> Clone for Served<S> {
    fn clone(&self) -> Self {
        Self {
            service: Arc::clone(&self.service),
            key: self.key.clone(),
            revoked: self.revoked.clone(),
            refusals: Arc::clone(&self.refusals),
        }
    }
}

/// A service that cannot do it at present has answered all the same: callers make `Unavailable` of a connection that fails.
fn told(status: Status) -> Status {
    match status.code() {
        Code::Unavailable => Status::aborted(status.message()),
        _ => status,
    }
}

/// A request whose token was looked at.
struct Admitted<S> {
    service: Arc<S>,
    by: Claims,
}

impl<S: Service> UnaryService<S::Request> for Admitted<S> {
    type Response = S::Reply;
    type Future = BoxFuture<Response<S::Reply>, Status>;

    fn call(&mut self, request: Request<S::Request>) -> Self::Future {
        let (service, by) = (Arc::clone(&self.service), self.by.clone());
        Box::pin(async move {
            let mut response = Response::new(service.answer(by, request.into_inner()).await.map_err(told)?);
            response.metadata_mut().insert(protocol::HEADER, PROTOCOL.into());
            Ok(response)
        })
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
        let Self { service, key, revoked, refusals } = self.clone();
        Box::pin(async move {
            let token = request.headers().get(http::header::AUTHORIZATION).map(|token| token.to_str().unwrap_or(""));
            let by = match key.check(token, now(), &revoked) {
                Ok(by) => by,
                Err(rejected) => {
                    let from = request.extensions().get::<connection::From>().copied();
                    refusals.tell(from, &rejected);
                    return Ok(Status::new(rejected.code(), rejected.to_string()).into_http());
                }
            };
            let header = request.headers().get(protocol::HEADER).map(|header| header.to_str().unwrap_or(""));
            if let Err(why) = protocol::check("the caller", header) {
                return Ok(Status::unimplemented(why).into_http());
            }
            let codec = WireCodec::<S::Reply, S::Request>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(MESSAGE_MAX);
            Ok(grpc.unary(Admitted { service, by }, request).await)
        })
    }
}
