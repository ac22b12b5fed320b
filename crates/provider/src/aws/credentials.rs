//! Who the daemon is to AWS: by the role of its instance, the `AWS_*` variables, a shared credentials file, or a command of the
//! user's.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cloud::{Hidden, command, unix_ms};
use crate::service::secret::read_private;

/// Longer files are none of these, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The profile of a file of which no other is named.
const PROFILE: &str = "default";

/// Where credentials come from. They are read at each login, so that a changed one works at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What this command prints: JSON, as that of a `credential_process` of AWS's own clients.
    Command(Vec<String>),
    /// Keys in a shared credentials file of AWS's own clients.
    File {
        /// The file.
        path: PathBuf,
        /// Which of its profiles.
        profile: Option<String>,
    },
    /// The variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    Environment,
    /// The role of this instance, which the metadata service gives.
    Role,
}

/// What requests are signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The id of the access key, which is no secret.
    pub id: String,
    /// The secret access key.
    pub secret: Hidden,
    /// The session token of credentials that end.
    pub token: Option<Hidden>,
    /// When they end, in milliseconds since 1970-01-01 UTC.
    pub ends_ms: Option<u64>,
}

impl Credentials {
    fn new(place: &str, id: &str, secret: &str, token: Option<&str>, ends: Option<&str>) -> Result<Self, String> {
        let fits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        // The id is part of a header with commas and slashes.
        let is_id = |id: &str| fits(id) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_id(id) || !fits(secret) || !token.is_none_or(fits) {
            return Err(format!("{place} has keys of AWS with signs that are none: write them as AWS shows them"));
        }
        let ends_ms = match ends {
            None => None,
            Some(ends) => Some(unix_ms(ends).ok_or_else(|| {
                format!("{place} has an Expiration that is no time such as 2026-11-28T07:35:25Z: correct it")
            })?),
        };
        Ok(Self { id: id.to_owned(), secret: Hidden::new(secret), token: token.map(Hidden::new), ends_ms })
    }
}

impl Source {
    /// Reads them, but for [`Source::Role`], which only the metadata service knows.
    ///
    /// # Errors
    /// One sentence with the place and the remedy, without what is secret.
    pub fn read(&self) -> Result<Option<Credentials>, String> {
        match self {
            Self::Command(command) => {
                let place = format!("what the credential_command {:?} prints", command.first().map_or("", |name| name));
                of_json(&place, &command::output(command)?).map(Some)
            }
            Self::File { path, profile } => {
                let text = read_private("credentials file", path, FILE_BYTES_MAX)?;
                of_file(path, &text, profile.as_deref().unwrap_or(PROFILE)).map(Some)
            }
            Self::Environment => {
                let get = |name: &str| match std::env::var(name) {
                    Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
                    Err(std::env::VarError::NotPresent) => Ok(None),
                    Err(std::env::VarError::NotUnicode(_)) => {
                        Err(format!("the variable {name} is no text: set it anew"))
                    }
                };
                of_keys(
                    "the environment",
                    [get("AWS_ACCESS_KEY_ID")?, get("AWS_SECRET_ACCESS_KEY")?],
                    get("AWS_SESSION_TOKEN")?,
                )
                .map(Some)
            }
            Self::Role => Ok(None),
        }
    }
}

fn of_keys(place: &str, [id, secret]: [Option<String>; 2], token: Option<String>) -> Result<Credentials, String> {
    match (id, secret) {
        (Some(id), Some(secret)) => Credentials::new(place, &id, &secret, token.as_deref(), None),
        _ => Err(format!("{place} has no access key: set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")),
    }
}

/// As the metadata service and a `credential_process` write them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "Token")]
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Reads the credentials that a document of JSON has.
///
/// # Errors
/// One sentence with the place and the remedy, without what is secret.
pub fn of_json(place: &str, text: &str) -> Result<Credentials, String> {
    // The parser's message could quote a secret.
    let written: Written = serde_json::from_str(text).map_err(|error| {
        format!(
            "{place} is no JSON with AccessKeyId, SecretAccessKey and, of credentials that end, SessionToken and Expiration (line {}): write it as a credential_process does",
            error.line()
        )
    })?;
    let Written { access_key_id, secret_access_key, session_token, expiration } = written;
    Credentials::new(place, &access_key_id, &secret_access_key, session_token.as_deref(), expiration.as_deref())
}

/// Reads the static keys of a profile.
fn of_file(path: &Path, text: &str, profile: &str) -> Result<Credentials, String> {
    let file = format!("the credentials file {}", path.display());
    let place = format!("{file}, profile {profile:?}");
    let (mut section, mut found, mut names) = (String::new(), false, Vec::new());
    let (mut keys, mut other) = ([None, None, None], None);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            name.0.trim().clone_into(&mut section);
            found |= section == profile;
            names.push(section.clone());
        } else if let Some((key, value)) = line.split_once('=').filter(|_| section == profile) {
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match key.trim() {
                "aws_access_key_id" => keys[0] = value,
                "aws_secret_access_key" => keys[1] = value,
                "aws_session_token" => keys[2] = value,
                key if key.starts_with("sso_")
                    || matches!(key, "role_arn" | "credential_process" | "web_identity_token_file") =>
                {
                    other = Some(key.to_owned());
                }
                _ => {}
            }
        }
    }
    if !found {
        return Err(format!("{file} has no profile {profile:?} but {}: correct the key profile", names.join(", ")));
    }
    let [id, secret, token] = keys;
    match (id, secret, other) {
        (Some(id), Some(secret), _) => Credentials::new(&place, &id, &secret, token.as_deref(), None),
        (_, _, Some(key)) => Err(format!(
            "{place} has {key}, which is not read: name a program as credential_command that prints the credentials, or let the instance have a role"
        )),
        _ => Err(format!("{place} has no access key: add both aws_access_key_id and aws_secret_access_key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
# of this machine
[default]
aws_access_key_id = AKIDDEFAULT
aws_secret_access_key=sword/fish+==
region = eu-north-1

[burst]
aws_access_key_id = ASIDBURST
aws_secret_access_key = swordfish
aws_session_token = swordfish-token==
[person]
sso_session = work
[half]
aws_access_key_id = AKIDHALF
";

    fn file(profile: &str) -> Result<Credentials, String> {
        of_file(Path::new("/credentials"), FILE, profile)
    }

    #[test]
    fn static_keys_of_a_shared_file() {
        let found = file("default").unwrap();
        assert_eq!((&*found.id, found.secret.reveal(), &found.token), ("AKIDDEFAULT", "sword/fish+==", &None));
        assert_eq!(file("burst").unwrap().token, Some(Hidden::new("swordfish-token==")));
        assert!(!format!("{:?}", file("burst")).contains("swordfish"), "secrets are not printed");
        for (profile, why) in [
            ("none", "has no profile \"none\" but default, burst, person, half"),
            ("person", "has sso_session, which is not read"),
            ("half", "add both"),
        ] {
            let error = file(profile).unwrap_err();
            assert!(error.contains(why) && error.contains("/credentials"), "{error}");
        }
        let odd = of_file(Path::new("/c"), "[default]\naws_access_key_id=A\naws_secret_access_key=sword fish", PROFILE);
        assert!(odd.unwrap_err().contains("signs that are none"));
    }

    #[test]
    fn credentials_in_json_end_when_they_say_and_odd_ones_are_told_without_secrets() {
        let role = "{\"Code\": \"Success\", \"LastUpdated\": \"2026-11-28T01:00:00Z\", \"Type\": \"AWS-HMAC\", \
            \"AccessKeyId\": \"ASID\", \"SecretAccessKey\": \"s\", \"Token\": \"t\", \"Expiration\": \"1970-01-02T00:00:01Z\"}";
        assert_eq!(of_json("p", role).unwrap().ends_ms, Some(86_401_000));
        let command =
            "{\"Version\": 1, \"AccessKeyId\": \"ASID\", \"SecretAccessKey\": \"s\", \"SessionToken\": \"t\"}";
        assert_eq!(of_json("p", command).unwrap().token, Some(Hidden::new("t")));
        for (text, why) in [
            ("", "is no JSON"),
            ("{\"AccessKeyId\": \"swordfish\"}", "is no JSON with"),
            ("{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"sword\\nfish\"}", "signs that are none"),
            ("{\"AccessKeyId\": \"A/B\", \"SecretAccessKey\": \"swordfish\"}", "signs that are none"),
            ("{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"swordfish\", \"Expiration\": \"soon\"}", "is no time"),
            (
                "{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"swordfish\", \"Expiration\": \"2026-11-28T01:00:00+0200\"}",
                "is no time",
            ),
        ] {
            let error = of_json("the place", text).unwrap_err();
            assert!(error.contains(why) && error.contains("the place"), "{error}");
            assert!(!error.contains("sword") && !error.contains('\n'), "{error}");
        }
    }
}
