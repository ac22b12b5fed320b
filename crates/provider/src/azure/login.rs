//! Access tokens: of a managed identity of this machine, of an application with a secret, or from a command. And which machine this
//! is, by Azure's metadata service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use ureq::http::Method;

use super::AzureConfig;
use crate::ProviderError;
use crate::clock::Clock;
use crate::cloud::http::{Client, Text, encoded, sentence};
use crate::cloud::metadata;
use crate::cloud::token::{Drawn, Token, Tokens};
use crate::service::secret::read_private;

/// What asks, for sentences.
const METADATA: &str = "the metadata service";
/// The same.
const LOGIN: &str = "Azure's login";
/// What tokens are for.
const RESOURCE: &str = "https://management.azure.com/";
/// What the metadata service wants to see: a browser that was misled does not send it.
const ASKED: (&str, &str) = ("Metadata", "true");
/// Where it tells tokens.
const TOKEN_PATH: &str = "/metadata/identity/oauth2/token?api-version=2018-02-01";
/// Where it tells what machine this is.
const MACHINE_PATH: &str = "/metadata/instance/compute?api-version=2021-02-01&format=json";
/// The longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 1024;

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// What this command prints.
    Command(Vec<String>),
    /// A managed identity; `None`: the only one.
    Metadata(Option<String>),
    /// An application, by a secret of its own.
    Application { tenant: String, id: String, secret: PathBuf },
}

impl Source {
    fn of(config: &AzureConfig) -> Self {
        match (&config.credential_command, &config.client_secret_file) {
            (Some(command), _) => Self::Command(command.clone()),
            (None, Some(secret)) => Self::Application {
                tenant: config.tenant.clone().unwrap_or_default(),
                id: config.client_id.clone().unwrap_or_default(),
                secret: secret.clone(),
            },
            (None, None) => Self::Metadata(config.client_id.clone()),
        }
    }
}

/// Gets tokens, and new ones before they end.
pub struct Login {
    source: Source,
    near: Client,
    far: Client,
    metadata_url: String,
    login_url: String,
    tokens: Tokens,
}

/// As it is told: one service has the time as a number, the other one as a text.
#[derive(Deserialize)]
struct Told {
    access_token: String,
    expires_in: Value,
}

/// Which machine this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    pub subscription: String,
    pub resource_group: String,
    pub instance: String,
}

/// As the metadata service tells it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldHere {
    subscription_id: String,
    resource_group_name: String,
    name: String,
    #[serde(default)]
    resource_id: String,
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
    /// `Invalid`: the configuration.
    pub fn new(config: &AzureConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        let far = Client::new(config.timeout.0, config.ca_file.as_deref()).map_err(ProviderError::Invalid)?;
        Ok(Self {
            source: Source::of(config),
            near: metadata::client(&config.metadata_url)?,
            far,
            metadata_url: config.metadata_url.trim_end_matches('/').to_owned(),
            login_url: config.login_url.trim_end_matches('/').to_owned(),
            tokens: Tokens::new("Azure", "az account get-access-token --query accessToken --output tsv", clock),
        })
    }

    /// The present token, or a new one: see [`Tokens::get`].
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, ProviderError> {
        self.tokens.get(refused, || match &self.source {
            Source::Command(command) => Drawn::printed(command),
            Source::Metadata(identity) => {
                let which = identity.as_ref().map(|id| format!("&client_id={id}")).unwrap_or_default();
                let path = format!("{TOKEN_PATH}&resource={}{which}", encoded(RESOURCE));
                read(METADATA, &self.metadata(&path)?)
            }
            Source::Application { tenant, id, secret } => self.log_in(tenant, id, secret),
        })
    }

    fn log_in(&self, tenant: &str, id: &str, file: &std::path::Path) -> Result<Drawn, ProviderError> {
        let text = read_private("client_secret_file", file, SECRET_BYTES_MAX).map_err(ProviderError::Invalid)?;
        let secret = text.trim();
        if secret.is_empty() || secret.contains(char::is_control) {
            return Err(ProviderError::Invalid(format!(
                "the client_secret_file {} must hold one line, the secret's value (not its id)",
                file.display()
            )));
        }
        let url = format!("{}/{tenant}/oauth2/v2.0/token", self.login_url);
        let form = format!(
            "grant_type=client_credentials&client_id={id}&client_secret={}&scope={}",
            encoded(secret),
            encoded(&format!("{RESOURCE}.default"))
        );
        let body = Some(("application/x-www-form-urlencoded", &*form));
        let call = Text { service: LOGIN, method: &Method::POST, url: &url, headers: &[], body };
        let answer = self.far.exchange(&call)?;
        let told: Value =
            serde_json::from_slice(&answer.text).map_err(|error| answer.foreign("JSON", &error.to_string()))?;
        if answer.status.is_success() {
            return read(LOGIN, &told);
        }
        // What it says may repeat parts of what was sent, and never the secret.
        match (answer.status.as_u16(), told["error_description"].as_str()) {
            (400 | 401 | 403, Some(said)) if !said.contains(secret) => Err(ProviderError::Invalid(format!(
                "{LOGIN} refuses the application: {} (check tenant, client_id and client_secret_file in [provider.azure])",
                sentence(said)
            ))),
            (status, _) => Err(ProviderError::Transient(format!(
                "{LOGIN} answers with status {status}: check login_url in [provider.azure], and what stands before it"
            ))),
        }
    }

    /// Reads what the metadata service tells.
    fn metadata(&self, path: &str) -> Result<Value, ProviderError> {
        let url = format!("{}{path}", self.metadata_url);
        let call = Text { service: METADATA, method: &Method::GET, url: &url, headers: &[ASKED], body: None };
        let remedy = "if this machine has none, or no managed identity, say what it would tell in [provider.azure]: subscription, resource_group, instance, and client_secret_file or credential_command";
        let failed = |why: String| ProviderError::Transient(format!("{why}: {remedy}"));
        let answer = self.near.exchange(&call).map_err(|error| failed(error.to_string()))?;
        let told: Value =
            serde_json::from_slice(&answer.text).map_err(|error| answer.foreign("JSON", &error.to_string()))?;
        if answer.status.is_success() {
            return Ok(told);
        }
        let said = told["error_description"].as_str().map(|said| format!(" ({})", sentence(said))).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        Err(failed(format!("{METADATA} answers {path} with status {}{said}", answer.status.as_u16())))
    }

    /// Which machine this is.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn here(&self) -> Result<Here, ProviderError> {
        let told = ToldHere::deserialize(&self.metadata(MACHINE_PATH)?).map_err(|error| {
            ProviderError::Transient(format!(
                "{METADATA} tells no machine ({}): check what answers for it",
                sentence(&error.to_string())
            ))
        })?;
        if told.resource_id.to_ascii_lowercase().contains("/virtualmachinescalesets/") {
            return Err(ProviderError::Invalid(format!(
                "this machine is a member of a scale set ({}) in uniform orchestration, to which no single disks are attached here: use one in flexible orchestration",
                sentence(&told.resource_id)
            )));
        }
        let here =
            Here { subscription: told.subscription_id, resource_group: told.resource_group_name, instance: told.name };
        for (key, text, fits) in [
            ("subscription", &here.subscription, is_id(&here.subscription)),
            ("resource_group", &here.resource_group, is_part(&here.resource_group)),
            ("instance", &here.instance, is_part(&here.instance)),
        ] {
            if !fits {
                return Err(ProviderError::Transient(format!(
                    "{METADATA} tells the {key} {:?}, which is none: write {key} in [provider.azure]",
                    sentence(text)
                )));
            }
        }
        Ok(here)
    }
}

/// A token as it is told. The parser's message could quote it.
fn read(from: &str, told: &Value) -> Result<Drawn, ProviderError> {
    let read = Told::deserialize(told).ok().and_then(|told| {
        let number = told.expires_in.as_u64();
        let life_s = number.or_else(|| told.expires_in.as_str().and_then(|text| text.parse().ok()))?;
        Some(Drawn { from: from.to_owned(), text: told.access_token, life: Some(Duration::from_secs(life_s)) })
    });
    read.ok_or_else(|| {
        ProviderError::Transient(format!("{from} answers with no access token: check what answers for it"))
    })
}

/// Whether a text is an id of Azure's: a UUID.
#[must_use]
pub fn is_id(text: &str) -> bool {
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Whether a text is the name of a resource group or of a machine, and so one part of a path, in which all its signs may stand as
/// they are.
#[must_use]
pub fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.()".contains(&byte);
    (1..=90).contains(&text.len()) && text.bytes().all(allowed) && !text.ends_with('.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lives_of_tokens_are_numbers_or_texts_and_whatever_else_is_told_is_not_repeated() {
        for life in [json!(3599), json!("3599")] {
            let drawn = read(LOGIN, &json!({ "access_token": "swordfish", "expires_in": life })).unwrap();
            assert_eq!((&*drawn.text, drawn.life), ("swordfish", Some(Duration::from_secs(3599))));
        }
        for odd in [
            json!({}),
            json!([]),
            json!({ "access_token": "swordfish", "expires_in": "soon" }),
            json!({ "access_token": ["swordfish"], "expires_in": 1 }),
        ] {
            let error = read(LOGIN, &odd).err().unwrap().to_string();
            assert!(error.contains("no access token") && !error.contains("swordfish"), "{error}");
        }
    }

    #[test]
    fn names_that_would_leave_a_path_are_none() {
        for name in ["a", "My_Group-(1)", "a.b"] {
            assert!(is_part(name), "{name}");
        }
        for name in ["", "a/b", "..", "a b", "a?b", "\u{e4}", "a%2f", &"a".repeat(91)] {
            assert!(!is_part(name), "{name}");
        }
        assert!(is_id("01234567-89ab-CDEF-0123-456789abcdef"));
        assert!(!is_id("0123456789abcdef0123456789abcdef") && !is_id("01234567-89ab-cdef-0123-456789abcdeg"));
    }
}
