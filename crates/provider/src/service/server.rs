//! The provisioning service: any [`Provider`] over HTTP, for whoever has the token. `docs/PROVISIONING.md` has the
//! routes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Extension, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::connections::{self, Visitor};
use super::secret::Secret;
use super::tls::Credentials;
use super::wire::{
    ChangeBody, CreateBody, ErrorBody, ErrorDetail, Kind, ListBody, REQUEST_BYTES_MAX, TagBody, VolumeBody,
};
use crate::{Change, Provider, ProviderError, Transition, VolumeId};

/// Requests carried out at once, each on a thread of its own; more are put off with `transient`.
const CALLS_MAX: usize = 16;
/// How long a request's body and its answer may take together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A service that listens and does not serve yet.
pub struct Service {
    listener: std::net::TcpListener,
    provider: Arc<dyn Provider>,
    secret: Secret,
    tls: Option<Credentials>,
}

impl Service {
    /// Takes the address.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr, provider: Arc<dyn Provider>, secret: Secret) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, provider, secret, tls: None })
    }

    /// Speaks TLS, and nothing else.
    #[must_use]
    pub fn with_tls(self, credentials: Credentials) -> Self {
        Self { tls: Some(credentials), ..self }
    }

    /// Where it listens: the port is known even if any would do.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` returns, then finishes what it has begun.
    ///
    /// # Errors
    /// If a thread, the asynchronous runtime or the listener cannot be had.
    pub fn serve(self, stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let runtime = runtime()?;
        let router = router(Shared::new(self.provider, self.secret));
        let tls = self.tls.map(|Credentials(config)| TlsAcceptor::from(config));
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("provisioning-stop".into()).spawn(move || {
            stop();
            // Whoever served may have failed meanwhile.
            let _ = ended.send(());
        })?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(self.listener)?;
            let end = async {
                let _ = end.await;
            };
            connections::serve(listener, router, tls, end).await;
            Ok(())
        })
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(CALLS_MAX)
        .thread_name("provisioning")
        .build()
}

/// Answers what a client sends on one connection, up to its end, without a network.
///
/// # Errors
/// Why the connection broke off: what was sent is no HTTP.
pub fn converse(provider: Arc<dyn Provider>, secret: Secret, sent: &[u8], answers: &mut Vec<u8>) -> io::Result<()> {
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let stream = tokio::io::join(sent, answers);
    let router = router(Shared::new(provider, secret));
    runtime()?.block_on(connections::converse(stream, router, Visitor::alone(), stopped))
}

/// What every request is answered with.
#[derive(Clone)]
struct Shared {
    provider: Arc<dyn Provider>,
    secret: Secret,
    calls: Arc<Semaphore>,
}

impl Shared {
    fn new(provider: Arc<dyn Provider>, secret: Secret) -> Self {
        Self { provider, secret, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
    }
}

fn router(shared: Shared) -> Router {
    let asks_for = |transition| {
        move |State(shared): State<Shared>, Path(id): Path<String>| {
            change(shared, move |provider| provider.change_state(&VolumeId(id), transition))
        }
    };
    Router::new()
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{id}", get(describe).delete(asks_for(Transition::Delete)))
        .route("/v1/volumes/{id}/attachment", put(asks_for(Transition::Attach)).delete(asks_for(Transition::Detach)))
        .route("/v1/volumes/{id}/tags", put(set_tag))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

/// Nothing is looked at, not even whether there is such a route, before the token.
async fn guard(
    State(shared): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    if !given.is_some_and(|given| shared.secret.is(given)) {
        return last(ErrorDetail::new(
            Kind::Unauthorized,
            "the bearer token is missing or not the one of this service",
        ));
    }
    if !visitor.admit() {
        return last(ErrorDetail::new(Kind::Throttled, "too many connections are open: try again"));
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ErrorDetail::new(Kind::Transient, "the request took too long").into_response(),
    }
}

/// An answer that ends its connection.
fn last(refusal: ErrorDetail) -> Response {
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn no_route(request: Request) -> ErrorDetail {
    let message = format!("there is no {} {}: see docs/PROVISIONING.md", request.method(), request.uri().path());
    ErrorDetail::new(Kind::Invalid, message)
}

impl IntoResponse for ErrorDetail {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let after = self.after;
        let mut response = answer(status, &ErrorBody { error: self });
        if let Some(after) = after {
            // Whole seconds; a part of one is one.
            let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    // Our own bodies are strings and numbers: they have a place in JSON.
    let text = serde_json::to_vec(body).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Carries a call out where it may block.
async fn call<T: Send + 'static>(
    shared: &Shared,
    act: impl FnOnce(&dyn Provider) -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ErrorDetail> {
    let busy = |_| ErrorDetail::new(Kind::Throttled, "too many requests are under way: try again");
    let permit = shared.calls.clone().try_acquire_owned().map_err(busy)?;
    let provider = shared.provider.clone();
    let calling = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        act(&*provider)
    });
    match calling.await {
        Ok(answer) => answer.map_err(ErrorDetail::from),
        Err(_) => Err(ErrorDetail::new(Kind::Transient, "the call failed inside the service: see its log")),
    }
}

async fn change(
    shared: Shared,
    act: impl FnOnce(&dyn Provider) -> Result<Change, ProviderError> + Send + 'static,
) -> Result<Response, ErrorDetail> {
    let change = call(&shared, act).await?;
    Ok(answer(StatusCode::OK, &ChangeBody { change, volume: None }))
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, ErrorDetail> {
    let invalid = |message: String| ErrorDetail::new(Kind::Invalid, message);
    let text: Bytes = to_bytes(body, REQUEST_BYTES_MAX)
        .await
        .map_err(|_| invalid(format!("the body is cut short or has more than {REQUEST_BYTES_MAX} bytes")))?;
    serde_json::from_slice(&text).map_err(|error| invalid(format!("the body is not what belongs here: {error}")))
}

async fn create(State(shared): State<Shared>, body: Body) -> Result<Response, ErrorDetail> {
    let request = read::<CreateBody>(body).await?.into();
    let (volume, change) = call(&shared, move |provider| provider.create(&request)).await?;
    let status = if change == Change::Changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer(status, &ChangeBody { change, volume: Some(volume.into()) }))
}

async fn describe(State(shared): State<Shared>, Path(id): Path<String>) -> Result<Response, ErrorDetail> {
    let volume = call(&shared, move |provider| provider.describe(&VolumeId(id))).await?;
    Ok(answer(StatusCode::OK, &VolumeBody::from(volume)))
}

async fn set_tag(State(shared): State<Shared>, Path(id): Path<String>, body: Body) -> Result<Response, ErrorDetail> {
    let TagBody { key, value } = read(body).await?;
    change(shared, move |provider| provider.set_tag(&VolumeId(id), &key, value.as_deref())).await
}

/// Which volumes are listed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    key: String,
    value: String,
}

async fn list(State(shared): State<Shared>, request: Request) -> Result<Response, ErrorDetail> {
    let wanted = Query::<Wanted>::try_from_uri(request.uri())
        .map_err(|rejection| ErrorDetail::new(Kind::Invalid, format!("write ?key=KEY&value=VALUE: {rejection}")))?;
    let Query(Wanted { key, value }) = wanted;
    let volumes = call(&shared, move |provider| provider.list(&key, &value)).await?;
    Ok(answer(StatusCode::OK, &ListBody { volumes: volumes.into_iter().map(VolumeBody::from).collect() }))
}
