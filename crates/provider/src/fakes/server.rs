//! An HTTP server on loopback that also answers as networks do: not at all, half, or late.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(there, _)| there == name).map(|(_, value)| &**value)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub kind: &'static str,
    pub body: Vec<u8>,
    /// More headers.
    pub headers: Vec<(&'static str, String)>,
}

/// What becomes of an answer.
pub enum Outcome {
    Answer(Reply),
    /// The connection ends without one.
    Nothing,
    /// It breaks off.
    Half(Reply),
    Late(Reply, Duration),
}

/// A server, which ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    _stop: oneshot::Sender<Infallible>,
}

/// Serves each connection as the handler says.
pub fn serve(handler: impl Fn(Request) -> Outcome + Send + Sync + 'static) -> io::Result<Server> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<Infallible>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handler: Arc<dyn Fn(Request) -> Outcome + Send + Sync> = Arc::new(handler);
    std::thread::Builder::new().name("fake-cloud".into()).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            tokio::select! {
                () = accept(listener, handler) => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(Server { address, _stop: stop })
}

async fn accept(listener: TcpListener, handler: Arc<dyn Fn(Request) -> Outcome + Send + Sync>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&handler)));
            // Whoever asked may have gone.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    handler: Arc<dyn Fn(Request) -> Outcome + Send + Sync>,
) -> Result<hyper::Response<Body>, io::Error> {
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), REQUEST_BYTES_MAX).await.map_err(io::Error::other)?;
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let request = Request {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    match handler(request) {
        Outcome::Answer(reply) => response(&reply, Body::from(reply.body.clone())),
        Outcome::Nothing => Err(io::ErrorKind::ConnectionAborted.into()),
        Outcome::Half(reply) => {
            let half = Bytes::copy_from_slice(&reply.body[..reply.body.len() / 2]);
            response(&reply, Body::new(Half { bytes: Some(half), is_flushed: false }))
        }
        Outcome::Late(reply, wait) => {
            tokio::time::sleep(wait).await;
            response(&reply, Body::from(reply.body.clone()))
        }
    }
}

fn response(reply: &Reply, body: Body) -> Result<hyper::Response<Body>, io::Error> {
    let response = hyper::Response::builder().status(reply.status).header("content-type", reply.kind);
    let response = reply.headers.iter().fold(response, |response, (name, value)| response.header(*name, value));
    response.body(body).map_err(io::Error::other)
}

/// The first half of a body.
struct Half {
    bytes: Option<Bytes>,
    is_flushed: bool,
}

impl HttpBody for Half {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(bytes) = self.bytes.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if !std::mem::replace(&mut self.is_flushed, true) {
            // What is written so far leaves before the connection ends.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())))
    }
}

/// The parameters of a form, or of a query.
pub fn form(body: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| {
        let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
        while let Some(byte) = bytes.get(at) {
            let hex = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    decoded.push(byte);
                    at += 3;
                }
                None => {
                    decoded.push(if *byte == b'+' { b' ' } else { *byte });
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&decoded).into_owned()
    };
    body.split('&').filter_map(|pair| pair.split_once('=')).map(move |(name, value)| (decoded(name), decoded(value)))
}
