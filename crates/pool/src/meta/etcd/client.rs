//! Calls of etcd: one member is asked, and the next one as well when it does not answer soon.
//!
//! A member that stands still keeps its connections, so that only time tells. What may be asked twice is asked elsewhere after a
//! moment, and whoever answers first is asked from then on. A change is not: copies of it could all take place, and whoever sends one
//! has to know of each. It is waited for less long once another member is known to answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use prost::Message;
use tokio::sync::{Mutex, watch};
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
/// How long a member may take before another one is asked as well.
const SOON: Duration = Duration::from_millis(500);
/// How long a change is waited for at a member when others are asked instead, and members that are silent when others have failed.
const LATE: Duration = Duration::from_secs(1);
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
pub(super) const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

type Token = MetadataValue<Ascii>;

/// See the module.
pub(super) struct Client {
    members: Vec<Channel>,
    /// The one that is asked.
    present: watch::Sender<usize>,
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
            present: watch::Sender::new(0),
            user: config.user.clone(),
            token: RwLock::new(None),
            asking: Mutex::new(()),
        }))
    }

    /// Asks one member, once. An error of the connection, or no answer in time, does not say whether etcd has acted.
    pub(super) async fn ask<Q, R>(&self, method: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let (at, ask) = (self.present(), asking(method, &request));
        let answer = tokio::select! {
            answer = self.at(at, &ask) => answer,
            () = self.left(at) => Err(Status::deadline_exceeded("other members answer, and the one that was asked does not")),
        };
        if answer.as_ref().is_err_and(is_silent) {
            self.leave(at);
        }
        answer
    }

    /// Asks what may be asked several times: one member after the other, until one answers.
    pub(super) async fn ask_any<Q, R>(&self, method: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        Ok(self.any(asking(method, &request)).await?.1)
    }

    /// Asks all members at once: what those say that answer, or why none does.
    pub(super) async fn ask_each<Q, R>(&self, method: &'static str, request: Q) -> Result<Vec<R>, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let ask = asking(method, &request);
        let mut asked: Vec<Asked<'_, R>> = (0..self.members.len()).map(|at| self.begin(at, &ask)).collect();
        let (mut answers, mut failed) = (Vec::new(), None);
        while !asked.is_empty() {
            let patience = if answers.is_empty() { 2 * ANSWER } else { SOON };
            match tokio::time::timeout(patience, first(&mut asked)).await {
                Ok((_, Ok(answer))) => answers.push(answer),
                Ok((_, Err(error))) => failed = Some(error),
                Err(_) => break,
            }
        }
        if answers.is_empty() { Err(failed.unwrap_or_else(late)) } else { Ok(answers) }
    }

    /// Renews a lease: what is left of it in seconds.
    pub(super) async fn keep_alive<Q, R>(&self, request: Q) -> Result<R, Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let ask = |member, token| {
            let requests = tokio_stream::once(request.clone());
            async move {
                let mut answers: Streaming<R> = streaming(member, KEEP_ALIVE, with(requests, token)).await?;
                answers.message().await?.ok_or_else(|| Status::unavailable("the answer did not come"))
            }
        };
        Ok(self.any(ask).await?.1)
    }

    /// Follows changes, as long as the stream lasts; and which member says them.
    pub(super) async fn watch<Q, R>(&self, request: Q) -> Result<(usize, Streaming<R>), Status>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.any(|member, token| {
            let requests = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
            streaming(member, WATCH, with(requests, token))
        })
        .await
    }

    fn present(&self) -> usize {
        *self.present.borrow()
    }

    /// A member does not answer: the next one is asked, unless that has happened.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        self.present.send_if_modified(|present| {
            let is_it = *present == at && next != at;
            *present = if is_it { next } else { *present };
            is_it
        });
    }

    /// Returns some time after another member is asked in this one's place.
    pub(super) async fn left(&self, at: usize) {
        // The sender lives as long as this.
        let _ = self.present.subscribe().wait_for(|present| *present != at).await;
        tokio::time::sleep(LATE).await;
    }

    /// Asks one member after the other until one answers; which, and what.
    async fn any<T, F>(&self, ask: impl Fn(Channel, Option<Token>) -> F + Send + Sync) -> Result<(usize, T), Status>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let (from, members) = (self.present(), self.members.len());
        let mut others = (0..members).map(|more| (from + more) % members);
        let (mut asked, mut failed) = (Vec::new(), None);
        loop {
            let next = others.next();
            asked.extend(next.map(|at| self.begin(at, &ask)));
            if asked.is_empty() {
                break;
            }
            let patience = match (next, &failed) {
                (Some(_), _) if members > 1 => SOON,
                (None, Some(_)) => LATE,
                _ => 2 * ANSWER,
            };
            match tokio::time::timeout(patience, first(&mut asked)).await {
                Ok((at, Err(error))) if is_silent(&error) => {
                    self.leave(at);
                    // One that may be over in a moment is told.
                    failed = failed.filter(|former: &Status| former.code() == Code::Unavailable).or(Some(error));
                }
                Ok((at, answer)) => {
                    if at != from {
                        self.present.send_if_modified(|present| std::mem::replace(present, at) != at);
                    }
                    return Ok((at, answer?));
                }
                Err(_) if next.is_none() => break,
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(late))
    }

    fn begin<'a, T: 'a, F>(
        &'a self,
        at: usize,
        ask: &'a (impl Fn(Channel, Option<Token>) -> F + Send + Sync),
    ) -> Asked<'a, T>
    where
        F: Future<Output = Result<T, Status>> + Send + 'a,
    {
        (at, Box::pin(self.at(at, ask)))
    }

    /// Asks one member. A token that has ended is renewed.
    async fn at<T, F>(&self, at: usize, ask: &(impl Fn(Channel, Option<Token>) -> F + Sync)) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut again = false;
        loop {
            let attempt = async {
                if again || (self.user.is_some() && self.token().is_none()) {
                    self.authenticate(at).await?;
                }
                ask(self.members[at].clone(), self.token()).await
            };
            let answer = tokio::time::timeout(ANSWER, attempt).await.unwrap_or_else(|_| Err(late()));
            match &answer {
                Err(status) if status.code() == Code::Unauthenticated && self.user.is_some() && !again => again = true,
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

/// What will be answered.
type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// A member that was asked.
type Asked<'a, T> = (usize, Answer<'a, T>);

/// The first one that answers is taken out.
async fn first<T>(asked: &mut Vec<Asked<'_, T>>) -> (usize, Result<T, Status>) {
    poll_fn(|context| {
        for place in 0..asked.len() {
            if let Poll::Ready(answer) = asked[place].1.as_mut().poll(context) {
                return Poll::Ready((asked.swap_remove(place).0, answer));
            }
        }
        Poll::Pending
    })
    .await
}

fn late() -> Status {
    Status::deadline_exceeded("no answer in time")
}

/// Whether another member may answer.
fn is_silent(status: &Status) -> bool {
    use Code::{Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown};
    matches!(status.code(), Unavailable | DeadlineExceeded | Unknown | Cancelled | Internal)
}

fn asking<Q, R>(
    method: &'static str,
    request: &Q,
) -> impl Fn(Channel, Option<Token>) -> Answer<'static, R> + Send + Sync
where
    Q: Message + Clone + 'static,
    R: Message + Default + 'static,
{
    move |member, token| Box::pin(unary(member, method, with(request.clone(), token)))
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
