//! Who may ask what.
//!
//! A pool has a *key*. Managers and benefactors have it, and so has whoever administers the pool. Every request shows a *token* that was
//! made of the key, and is refused without being read if it does not. Beyond loopback both ends show certificates as well ([`tls`]); on
//! loopback without TLS a client looks whose the server is before it shows its token.
//!
//! - [`Credentials`]: what a manager or benefactor has;
//! - [`Access`]: what a client has, or a manager or benefactor that asks another;
//! - [`token`]: keys, tokens, tickets; [`revoked`]: tokens that were taken back; [`files`]: where they are kept; [`certificates`]: makes certificates.

pub mod certificates;
pub mod files;
mod owner;
pub mod revoked;
pub mod tls;
pub mod token;

use std::net::SocketAddr;
use std::time::Duration;

use self::revoked::Revoked;
use self::tls::Tls;
use self::token::{Claims, Key, Token};

pub use self::files::NoSecret;

/// How long a server on loopback may take to accept a connection.
const ACCEPTED: Duration = Duration::from_secs(10);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(1);

/// What a manager or benefactor has.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub(crate) key: Key,
    /// Whose file the key is.
    owner: u32,
    pub(crate) tls: Option<Tls>,
    /// Tokens that are let in no more.
    pub(crate) revoked: Revoked,
}

impl Credentials {
    /// With this key, on loopback alone.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, owner: rustix::process::geteuid().as_raw(), tls: None, revoked: Revoked::default() }
    }

    /// The same with certificates.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// The pool's key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// What it shows to others.
    #[must_use]
    pub fn access(&self) -> Access {
        let mut access = Access::member(&self.key).with_tls(self.tls.clone());
        access.believes.push(self.owner);
        access
    }
}

/// What whoever asks shows, and whom it asks.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) token: Token,
    /// Users of this machine whose servers on loopback are shown it, beside root and this process's own.
    pub(crate) believes: Vec<u32>,
    pub(crate) tls: Option<Tls>,
}

impl Access {
    /// As one who has the pool's key.
    #[must_use]
    pub fn member(key: &Key) -> Self {
        Self::with(key.token(&Claims::Member))
    }

    /// With a token.
    #[must_use]
    pub const fn with(token: Token) -> Self {
        Self { token, believes: Vec::new(), tls: None }
    }

    /// The same with certificates.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// The same with another token.
    #[must_use]
    pub fn instead(&self, token: Token) -> Self {
        Self { token, ..self.clone() }
    }

    /// Whether the server at the other end of a connection on loopback may see the token; else why not.
    pub(crate) async fn may_see(&self, server: SocketAddr, client: SocketAddr) -> Result<(), String> {
        let until = tokio::time::Instant::now() + ACCEPTED;
        let mut pause = LOOK;
        loop {
            let found = tokio::task::spawn_blocking(move || owner::of_server(server, client)).await;
            match found.ok().flatten() {
                Some(user) if user == 0 || user == own() || self.believes.contains(&user) => return Ok(()),
                Some(user) => {
                    return Err(format!(
                        "{server} is served by user {user}, who is neither root, nor this process's user, nor the owner of the \
                         token's file: it is shown no token"
                    ));
                }
                None if tokio::time::Instant::now() >= until => {
                    return Err(format!("{server} has not taken the connection within {ACCEPTED:?}"));
                }
                None => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}
