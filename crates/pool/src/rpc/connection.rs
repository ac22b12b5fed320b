//! The bytes of a connection, with or without TLS.

use std::io::{IoSlice, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use crate::security::tls;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct From(pub(super) SocketAddr);

/// Why connections to a server fail: what the transport makes of an error says little.
#[derive(Debug, Default)]
pub(super) struct Why(Mutex<Option<String>>);

impl Why {
    pub(super) fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// See the module.
pub(super) struct Connection {
    io: Box<dyn Io>,
    from: SocketAddr,
    /// A client's: whom to tell what goes wrong.
    why: Option<(Arc<Why>, String)>,
    has_read: bool,
}

impl Connection {
    /// That a server has accepted.
    pub(super) fn served(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, from: SocketAddr) -> Self {
        Self { io: Box::new(io), from, why: None, has_read: false }
    }

    /// To a server of this name.
    pub(super) fn called(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        to: SocketAddr,
        name: &str,
        why: Arc<Why>,
    ) -> Self {
        Self { io: Box::new(io), from: to, why: Some((why, name.to_owned())), has_read: false }
    }

    /// Tells what is wrong with what has come.
    fn look_at(&mut self, came: &[u8]) {
        let Some((why, name)) = &self.why else { return };
        // An alert or a handshake of TLS, where a server without it begins with its settings.
        if !self.has_read && matches!(came.first(), Some(0x15 | 0x16)) {
            why.set(Some(format!("{name} speaks TLS: name certificates with --certificates")));
        }
        self.has_read |= !came.is_empty();
    }
}

impl Connected for Connection {
    type ConnectInfo = From;

    fn connect_info(&self) -> From {
        From(self.from)
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, into);
        match &polled {
            Poll::Ready(Ok(())) => self.look_at(&into.filled()[before..]),
            Poll::Ready(Err(error)) => {
                if let Some((why, name)) = &self.why {
                    why.set(Some(format!("{name}: {}", tls::why(error, "the server's", "this process's"))));
                }
            }
            Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
