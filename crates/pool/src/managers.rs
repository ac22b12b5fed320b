//! The pool's managers, as clients and benefactors ask them: whichever answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::manager::{Manager, Reply, Request};
use crate::rpc::{BadAddress, Peer};
use crate::security::Access;

/// How long a manager may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause before all are asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// No manager has answered a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Lost {
    /// None answers, or those that do cannot do it at present.
    #[error("{0}")]
    Unanswered(String),
    /// One refused the request as such.
    #[error("{0}")]
    Declined(String),
    /// The token does not allow it, or is not of this pool.
    #[error("{0}")]
    NotAllowed(String),
}

/// See the module.
#[derive(Debug)]
pub struct Managers {
    peers: Vec<Peer>,
    /// The one that is asked first.
    current: AtomicUsize,
    /// One of them has taken the token for its pool's.
    is_known: AtomicBool,
}

impl Managers {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// [`BadAddress`]; no address at all is one.
    pub fn new(addresses: &[String], access: &Access) -> Result<Self, BadAddress> {
        if addresses.is_empty() {
            return Err(BadAddress::Unreadable(String::new()));
        }
        let peers = addresses.iter().map(|address| Peer::new(address, access)).collect::<Result<_, _>>()?;
        Ok(Self { peers, current: AtomicUsize::new(0), is_known: AtomicBool::new(false) })
    }

    /// Asks each manager once, until one answers.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn ask(&self, request: &Request) -> Result<Reply, Lost> {
        self.ask_until(Instant::now(), |_| request.clone()).await
    }

    /// Asks one after the other until one answers, as long as the time is not over. The request is told whether it was sent before, so
    /// that it may have taken place.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn ask_until(&self, until: Instant, request: impl Fn(bool) -> Request) -> Result<Reply, Lost> {
        let mut again = false;
        loop {
            let (mut last, mut foreign, mut refusal) = (None, 0, None);
            for _ in 0..self.peers.len() {
                let at = self.current.load(Ordering::Relaxed);
                let status = match self.peers[at].ask::<Manager>(request(again), ANSWER).await {
                    Ok(reply) => {
                        self.is_known.store(true, Ordering::Relaxed);
                        return Ok(reply);
                    }
                    Err(status) => status,
                };
                match status.code() {
                    Code::PermissionDenied => return Err(Lost::NotAllowed(status.message().to_owned())),
                    // Another manager would say the same.
                    Code::InvalidArgument | Code::FailedPrecondition => {
                        return Err(Lost::Declined(status.message().to_owned()));
                    }
                    // Not this pool's: the place of a manager that has ended may be somebody else's by now.
                    Code::Unauthenticated | Code::Unimplemented => {
                        foreign += 1;
                        refusal = Some(status.message().to_owned());
                    }
                    _ => again = true,
                }
                last = Some(status);
                // Whoever else has moved on meanwhile has done so for all.
                let next = (at + 1) % self.peers.len();
                let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            if let Some(why) = refusal
                && (foreign == self.peers.len() || !self.is_known.load(Ordering::Relaxed))
            {
                return Err(Lost::NotAllowed(why));
            }
            if Instant::now() >= until {
                let what = match &last {
                    Some(status) if status.code() == Code::Aborted => "no manager can do it at present",
                    _ => "no manager answers",
                };
                let why = last.as_ref().map(tonic::Status::message).unwrap_or_default();
                return Err(Lost::Unanswered(format!("{what}: {why}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
