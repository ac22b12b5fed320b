//! The pool's managers, as clients and benefactors ask them: whichever answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

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
    /// None answers, or one refused the request as such.
    #[error("{0}")]
    Unanswered(String),
    /// The token does not allow it.
    #[error("{0}")]
    NotAllowed(String),
}

/// See the module.
#[derive(Debug)]
pub struct Managers {
    peers: Vec<Peer>,
    /// The one that is asked first.
    current: AtomicUsize,
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
        Ok(Self { peers, current: AtomicUsize::new(0) })
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
            let mut last = None;
            for _ in 0..self.peers.len() {
                let at = self.current.load(Ordering::Relaxed);
                match self.peers[at].ask::<Manager>(request(again), ANSWER).await {
                    Ok(reply) => return Ok(reply),
                    Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                        return Err(Lost::NotAllowed(status.message().to_owned()));
                    }
                    Err(status) if is_final(&status) => return Err(Lost::Unanswered(status.message().to_owned())),
                    Err(status) => {
                        again = true;
                        last = Some(status);
                        // Whoever else has moved on meanwhile has done so for all.
                        let _ = self.current.compare_exchange(
                            at,
                            (at + 1) % self.peers.len(),
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        );
                    }
                }
            }
            if Instant::now() >= until {
                let why = last.map(|status| status.message().to_owned()).unwrap_or_default();
                return Err(Lost::Unanswered(format!("no manager answers: {why}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether another manager would say the same.
fn is_final(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented)
}
