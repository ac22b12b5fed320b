//! Access tokens, and which machine this is: both from the metadata service of Compute Engine, or the token from a command.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use ureq::http::Method;

use super::GceConfig;
use crate::ProviderError;
use crate::clock::Clock;
use crate::cloud::http::{Client, Text, sentence};
use crate::cloud::metadata;
use crate::cloud::token::{Drawn, Token, Tokens};

/// What asks, for sentences.
const SERVICE: &str = "the metadata service";
/// What the metadata service wants to see, and shows: nothing else on the link does by accident.
const FLAVOR: (&str, &str) = ("Metadata-Flavor", "Google");

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What this command prints.
    Command(Vec<String>),
    /// The service account of this machine.
    Metadata,
}

/// Gets tokens, and new ones before they end.
pub struct Login {
    source: Source,
    client: Client,
    metadata_url: String,
    tokens: Tokens,
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
            tokens: Tokens::new("Compute Engine", "gcloud auth print-access-token", clock),
        })
    }

    /// The present token, or a new one: see [`Tokens::get`].
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, ProviderError> {
        self.tokens.get(refused, || self.draw())
    }

    fn draw(&self) -> Result<Drawn, ProviderError> {
        match &self.source {
            Source::Command(command) => Drawn::printed(command),
            Source::Metadata => {
                let told = self.metadata("/computeMetadata/v1/instance/service-accounts/default/token")?;
                // The parser's message could quote the token.
                let told = Told::deserialize(&told).map_err(|_| {
                    ProviderError::Transient(format!(
                        "{SERVICE} answers with no access token: check what answers for it"
                    ))
                })?;
                let life = Some(Duration::from_secs(told.expires_in));
                Ok(Drawn { from: SERVICE.to_owned(), text: told.access_token, life })
            }
        }
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
