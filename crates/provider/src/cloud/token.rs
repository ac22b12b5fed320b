//! Access tokens: renewed before they end, and used on until they do if that fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Hidden, command};
use crate::ProviderError;
use crate::clock::{Clock, whole_ms};

/// So long before it ends a token is replaced.
const EARLY: Duration = Duration::from_secs(300);
/// How long a token is used of which nobody says when it ends.
const LIFE: Duration = Duration::from_secs(900);
/// How long a token is used on that could not be renewed, before that is tried again.
const AGAIN: Duration = Duration::from_secs(60);
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// An access token.
#[derive(Debug)]
pub struct Token {
    /// With `Bearer`, for `Authorization`.
    pub header: Hidden,
    renew_at_ms: u64,
    /// It counts until then.
    ends_ms: u64,
}

/// A text that should be a token.
pub struct Drawn {
    /// Where it comes from, for sentences.
    pub from: String,
    /// The text.
    pub text: String,
    /// How long it counts; `None`: nobody says, and it is refused then.
    pub life: Option<Duration>,
}

impl Drawn {
    /// What a command prints.
    ///
    /// # Errors
    /// `Invalid`, with a sentence.
    pub fn printed(command: &[String]) -> Result<Self, ProviderError> {
        let printed = command::output(command).map_err(ProviderError::Invalid)?;
        let from = format!("what the credential_command {:?} prints", command.first().map_or("", |name| name));
        Ok(Self { from, text: printed.trim().to_owned(), life: None })
    }
}

/// The present token.
pub struct Tokens {
    /// Of what, for sentences.
    cloud: &'static str,
    /// What prints one, for sentences.
    printed_by: &'static str,
    clock: Arc<dyn Clock>,
    present: Mutex<Option<Arc<Token>>>,
}

impl Tokens {
    /// None yet.
    #[must_use]
    pub fn new(cloud: &'static str, printed_by: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self { cloud, printed_by, clock, present: Mutex::default() }
    }

    /// The present token, or a new one if there is none or it ends soon; one that cannot be renewed is used until it ends. `refused`: one
    /// that counts no more.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn get(
        &self,
        refused: Option<&Arc<Token>>,
        draw: impl FnOnce() -> Result<Drawn, ProviderError>,
    ) -> Result<Arc<Token>, ProviderError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.clock.now_ms();
        let is_refused = |token: &Arc<Token>| refused.is_some_and(|refused| Arc::ptr_eq(refused, token));
        if let Some(token) = present.as_ref().filter(|token| now_ms < token.renew_at_ms && !is_refused(token)) {
            return Ok(Arc::clone(token));
        }
        let token = match (draw().and_then(|drawn| self.token_of(&drawn, now_ms)), present.as_ref()) {
            (Err(error), Some(token)) if now_ms < token.ends_ms && !is_refused(token) => {
                tracing::warn!("a token of {} that ends soon cannot be renewed yet: {error}", self.cloud);
                let renew_at_ms = now_ms.saturating_add(whole_ms(AGAIN)).min(token.ends_ms);
                Token { header: token.header.clone(), renew_at_ms, ends_ms: token.ends_ms }
            }
            (token, _) => token?,
        };
        let token = Arc::new(token);
        *present = Some(Arc::clone(&token));
        Ok(token)
    }

    fn token_of(&self, drawn: &Drawn, now_ms: u64) -> Result<Token, ProviderError> {
        let Drawn { from, text, life } = drawn;
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ProviderError::Invalid(format!(
                "{from} is no access token: let it be one line, such as `{}` prints",
                self.printed_by
            )));
        }
        let (life, ends) = life.map_or((LIFE, Duration::MAX), |life| (life, life));
        // One that lives for less than that is used for half of its life.
        let at = |life: Duration| now_ms.saturating_add(whole_ms(life));
        let renew_at_ms = at(life.saturating_sub(EARLY).max(life / 2));
        Ok(Token { header: Hidden::new(format!("Bearer {text}")), renew_at_ms, ends_ms: at(ends) })
    }
}
