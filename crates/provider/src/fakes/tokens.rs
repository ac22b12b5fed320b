//! Access tokens that a cloud gives out, and the one that the account of a machine has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Fake;
use super::dialect::Dialect;
use super::server::Request;
use crate::clock::{Clock, whole_ms};

/// How long a token lasts.
const LIFE: Duration = Duration::from_secs(3600);
/// When the metadata service has a new one, before the former one ends.
const RENEWAL: Duration = Duration::from_secs(300);

/// Tokens.
pub struct Tokens {
    clock: Arc<dyn Clock>,
    /// How they begin.
    prefix: &'static str,
    /// Those that were issued, and when they end.
    ends_ms: BTreeMap<String, u64>,
    issued: u64,
    /// That of the account; `None`: the machine has no account.
    account: Option<String>,
    /// Whoever shows none may do everything.
    is_open: bool,
}

impl Tokens {
    /// The account has the first one.
    pub fn new(clock: Arc<dyn Clock>, prefix: &'static str) -> Self {
        let mut tokens = Self { clock, prefix, ends_ms: BTreeMap::new(), issued: 0, account: None, is_open: false };
        tokens.renew();
        tokens
    }

    /// One more.
    pub fn issue(&mut self) -> String {
        self.issued += 1;
        let token = format!("{}.swordfish-{:020}", self.prefix, self.issued);
        self.ends_ms.insert(token.clone(), self.clock.now_ms() + whole_ms(LIFE));
        token
    }

    fn renew(&mut self) {
        self.account = Some(self.issue());
    }

    /// Whether whoever sends the request may call at all.
    pub fn admit(&self, request: &Request) -> bool {
        let token = request.header("authorization").and_then(|header| header.strip_prefix("Bearer "));
        let counts = |token: &str| self.ends_ms.get(token).is_some_and(|ends_ms| self.clock.now_ms() < *ends_ms);
        token.map_or(self.is_open, counts)
    }

    /// What the metadata service tells of the account: its token, and how many seconds that lasts yet.
    pub fn told(&mut self) -> Option<(String, u64)> {
        let now_ms = self.clock.now_ms();
        let ends_soon = |ends_ms: &u64| *ends_ms <= now_ms + whole_ms(RENEWAL);
        if self.ends_ms.get(self.account.as_ref()?).is_none_or(ends_soon) {
            self.renew();
        }
        let token = self.account.clone()?;
        let left_s = self.ends_ms[&token].saturating_sub(now_ms) / 1000;
        Some((token, left_s))
    }
}

/// A cloud that wants access tokens.
pub trait Bearer: Dialect {
    /// Those that there are.
    fn tokens(&mut self) -> &mut Tokens;
}

impl<D: Bearer> Fake<D> {
    /// An access token that lasts as long as one of the account.
    #[must_use]
    pub fn token(&self) -> String {
        self.state().tokens().issue()
    }

    /// Whoever shows no token may do everything, as the cloud's own client does here.
    pub fn let_everybody_in(&self) {
        self.state().tokens().is_open = true;
    }

    /// All tokens end now, and the account has a new one.
    pub fn rotate(&self) {
        let mut state = self.state();
        let tokens = state.tokens();
        tokens.ends_ms.clear();
        tokens.renew();
    }

    /// The machine has no account any more.
    pub fn take_account(&self) {
        self.state().tokens().account = None;
    }
}
