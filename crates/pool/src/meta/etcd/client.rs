//! Calls of etcd: one member at a time is asked, and the next one when it does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prost::Message;
use tokio::sync::Mutex;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::config::Config;
use super::messages::{AuthenticateRequest, AuthenticateResponse};

/// How long one answer is waited for.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// Pings of a connection, and how long one may take. etcd ends connections that ping more often than each 5 seconds.
const PINGS: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));
/// Bytes of an answer at most.
const MESSAGE_MAX: usize = 256 << 20;

pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

type Token = MetadataValue<Ascii>;

/// See the module.
pub(super) struct Client {
    members: Vec<Channel>,
    current: AtomicUsize,
    user: Option<(String, String)>,
    token: RwLock<Option<Token>>,
    /// One at a time asks for a token.
    asking: Mutex<()>,
}

impl Client {
    /// Nothing is sent yet.
    pub(super) fn new(config: &Config) -> Result<Arc<Self>, String> {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let member = |at: &String| {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{at}"))?
                .connect_timeout(CONNECT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PINGS.0)
                .keep_alive_timeout(PINGS.1);
            Ok(match &config.tls {
                Some(tls) => endpoint.tls_config(tls.config())?,
                None => endpoint,
            }
            .connect_lazy())
        };
        let members: Result<Vec<Channel>, tonic::transport::Error> = config.endpoints.iter().map(member).collect();
        Ok(Arc::new(Self {
            members: members.map_err(|error| deepest(&error))?,
            current: AtomicUsize::new(0),
            user: config.user.clone(),
            token: RwLock::new(None),
            asking: Mutex::new(()),
        }))
    }

    /// Asks once. An error of the connection, or no answer in time, does not say whether etcd has acted.
    pub(super) async fn ask<Q, R>(&self, method: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.with_token(|member, token| unary(member, method, with(request.clone(), token))).await
    }

    /// Renews a lease: what is left of it in seconds.
    pub(super) async fn keep_alive<Q, R>(&self, request: Q) -> Result<R, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.with_token(|member, token| {
            let requests = tokio_stream::once(request.clone());
            async move {
                let mut answers: Streaming<R> = streaming(member, KEEP_ALIVE, with(requests, token)).await?;
                answers.message().await?.ok_or_else(|| Status::unavailable("the answer did not come"))
            }
        })
        .await
    }

    /// Follows changes, as long as the stream lasts.
    pub(super) async fn watch<Q, R>(&self, request: Q) -> Result<Streaming<R>, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.with_token(|member, token| {
            let requests = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
            streaming(member, WATCH, with(requests, token))
        })
        .await
    }

    /// Asks the present member; another one next time if this one does not answer. A token that has ended is renewed.
    async fn with_token<T, F>(&self, ask: impl Fn(Channel, Option<Token>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut again = false;
        loop {
            let at = self.current.load(Ordering::Relaxed);
            let attempt = async {
                if again || (self.user.is_some() && self.token().is_none()) {
                    self.authenticate(at).await?;
                }
                ask(self.members[at].clone(), self.token()).await
            };
            let answer = match tokio::time::timeout(ANSWER, attempt).await {
                Ok(answer) => answer,
                Err(_) => Err(Status::deadline_exceeded("no answer in time")),
            };
            match &answer {
                Err(status) if status.code() == Code::Unauthenticated && self.user.is_some() && !again => again = true,
                Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown) => {
                    let next = (at + 1) % self.members.len();
                    let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
                    return answer;
                }
                _ => return answer,
            }
        }
    }

    fn token(&self) -> Option<Token> {
        self.token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn authenticate(&self, at: usize) -> Result<(), Status> {
        let before = self.token();
        let _one = self.asking.lock().await;
        if self.token() != before {
            return Ok(());
        }
        let Some((name, password)) = self.user.clone() else { return Ok(()) };
        let request = with(AuthenticateRequest { name, password }, None);
        let answer: AuthenticateResponse = unary(self.members[at].clone(), AUTHENTICATE, request).await?;
        let token = answer.token.parse().map_err(|_| Status::data_loss("its token is none"))?;
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(())
    }
}

/// A request that only a member with a leader answers.
fn with<T>(request: T, token: Option<Token>) -> Request<T> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

async fn ready(member: Channel) -> Result<tonic::client::Grpc<Channel>, Status> {
    let mut grpc = tonic::client::Grpc::new(member).max_decoding_message_size(MESSAGE_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(deepest(&error)))?;
    Ok(grpc)
}

async fn unary<Q: Message + 'static, R: Message + Default + 'static>(
    member: Channel,
    method: &'static str,
    request: Request<Q>,
) -> Result<R, Status> {
    let mut grpc = ready(member).await?;
    let codec = ProstCodec::<Q, R>::default();
    Ok(grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
}

async fn streaming<Q: Message + 'static, R: Message + Default + 'static>(
    member: Channel,
    method: &'static str,
    requests: Request<impl Stream<Item = Q> + Send + 'static>,
) -> Result<Streaming<R>, Status> {
    let mut grpc = ready(member).await?;
    let codec = ProstCodec::<Q, R>::default();
    Ok(grpc.streaming(requests, PathAndQuery::from_static(method), codec).await?.into_inner())
}

/// What is at the bottom of an error: what the system said.
pub(super) fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
