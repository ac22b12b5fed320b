//! Access tokens, and which machine this is: both from the metadata service of Compute Engine, or the token from a command.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use ureq::http::Method;

use super::GceConfig;
use crate::ProviderError;
use crate::clock::{Clock, whole_ms};
use crate::cloud::http::{Client, Text, sentence};
use crate::cloud::{Hidden, command, metadata};

/// What asks, for sentences.
const SERVICE: &str = "the metadata service";
/// What the metadata service wants to see, and shows: nothing else on the link does by accident.
const FLAVOR: (&str, &str) = ("Metadata-Flavor", "Google");
/// So long before it ends a token is replaced.
const EARLY: Duration = Duration::from_secs(300);
/// How long a token is used of which nobody says when it ends.
const LIFE: Duration = Duration::from_secs(900);
/// How long a token is used on that could not be renewed, before that is tried again.
const AGAIN: Duration = Duration::from_secs(60);
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What this command prints.
    Command(Vec<String>),
    /// The service account of this machine.
    Metadata,
}

/// An access token.
#[derive(Debug)]
pub struct Token {
    /// With `Bearer`, for `Authorization`.
    pub header: Hidden,
    renew_at_ms: u64,
    /// It counts until then.
    ends_ms: u64,
}

/// Gets tokens, and new ones before they end.
pub struct Login {
    source: Source,
    client: Client,
    metadata_url: String,
    clock: Arc<dyn Clock>,
    token: Mutex<Option<Arc<Token>>>,
}

/// As the metadata service tells it.
#[derive(Deserialize)]
struct Told {
    access_token: String,
    expires_in: u64,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Login {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// `Invalid`: the URL of the metadata service.
    pub fn new(config: &GceConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        Ok(Self {
            source: config.credential_command.clone().map_or(Source::Metadata, Source::Command),
            client: metadata::client(&config.metadata_url)?,
            metadata_url: config.metadata_url.trim_end_matches('/').to_owned(),
            clock,
            token: Mutex::default(),
        })
    }

    /// The present token, or a new one if there is none or it ends soon; one that cannot be renewed is used until it ends. `refused`: one
    /// that counts no more.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, ProviderError> {
        let mut present = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.clock.now_ms();
        let is_refused = |token: &Arc<Token>| refused.is_some_and(|refused| Arc::ptr_eq(refused, token));
        if let Some(token) = present.as_ref().filter(|token| now_ms < token.renew_at_ms && !is_refused(token)) {
            return Ok(Arc::clone(token));
        }
        let token = match (self.new_token(now_ms), present.as_ref()) {
            (Err(error), Some(token)) if now_ms < token.ends_ms && !is_refused(token) => {
                tracing::warn!("a token of Compute Engine that ends soon cannot be renewed yet: {error}");
                let renew_at_ms = now_ms.saturating_add(whole_ms(AGAIN)).min(token.ends_ms);
                Token { header: token.header.clone(), renew_at_ms, ends_ms: token.ends_ms }
            }
            (token, _) => token?,
        };
        let token = Arc::new(token);
        *present = Some(Arc::clone(&token));
        Ok(token)
    }

    fn new_token(&self, now_ms: u64) -> Result<Token, ProviderError> {
        let (place, text, life, ends) = match &self.source {
            Source::Command(command) => {
                let printed = command::output(command).map_err(ProviderError::Invalid)?;
                let place = format!("what the credential_command {:?} prints", command.first().map_or("", |name| name));
                // Nobody says when it ends: it is refused then.
                (place, printed.trim().to_owned(), LIFE, Duration::MAX)
            }
            Source::Metadata => {
                let told = self.metadata("/computeMetadata/v1/instance/service-accounts/default/token")?;
                // The parser's message could quote the token.
                let told = Told::deserialize(&told).map_err(|_| {
                    ProviderError::Transient(format!(
                        "{SERVICE} answers with no access token: check what answers for it"
                    ))
                })?;
                let life = Duration::from_secs(told.expires_in);
                (SERVICE.to_owned(), told.access_token, life, life)
            }
        };
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ProviderError::Invalid(format!(
                "{place} is no access token: let it be one line, such as `gcloud auth print-access-token` prints"
            )));
        }
        // One that lives for less than that is used for half of its life.
        let at = |life: Duration| now_ms.saturating_add(whole_ms(life));
        let renew_at_ms = at(life.saturating_sub(EARLY).max(life / 2));
        Ok(Token { header: Hidden::new(format!("Bearer {text}")), renew_at_ms, ends_ms: at(ends) })
    }

    /// Reads what the metadata service tells, as JSON.
    fn metadata(&self, path: &str) -> Result<Value, ProviderError> {
        let url = format!("{}{path}", self.metadata_url);
        let call = Text { service: SERVICE, method: &Method::GET, url: &url, headers: &[FLAVOR], body: None };
        let remedy = "if this machine has none, or no service account, say what it would tell in [provider.gce]: project, zone, instance and credential_command";
        let failed = |why: String| ProviderError::Transient(format!("{why}: {remedy}"));
        let answer = self.client.exchange(&call).map_err(|error| failed(error.to_string()))?;
        if answer.headers.get(FLAVOR.0).is_none_or(|flavor| flavor != FLAVOR.1) {
            return Err(failed(format!("what answers for {SERVICE} is not Compute Engine's")));
        }
        // What it refuses, it refuses with a page.
        if !answer.status.is_success() {
            return Err(failed(format!("{SERVICE} answers {path} with status {}", answer.status.as_u16())));
        }
        serde_json::from_slice(&answer.text).map_err(|error| answer.foreign("JSON", &error.to_string()))
    }

    /// One text that the metadata service tells, such as the zone; only the last part of a path.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn told(&self, what: &str, path: &str) -> Result<String, ProviderError> {
        let told = self.metadata(&format!("/computeMetadata/v1/{path}?alt=json"))?;
        let text = told.as_str().and_then(|text| text.rsplit('/').next()).unwrap_or_default();
        if is_part(text) {
            return Ok(text.to_owned());
        }
        Err(ProviderError::Transient(format!(
            "{SERVICE} tells the {what} {:?}, which is none: write {what} in [provider.gce]",
            sentence(text)
        )))
    }
}

/// Whether a text is the name of a project, a zone or an instance, and so one part of a path. Projects of old have a domain with a
/// colon.
#[must_use]
pub fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte);
    (1..=100).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && text.bytes().all(allowed)
}
