//! Who the daemon is to Keystone: from a `clouds.yaml`, the `OS_*` variables, or a command of the user's.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::cloud::{Hidden, command};
use crate::service::secret::read_private;

/// Longer files are none of these, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The domain of users and projects of which no other is named.
const DOMAIN: &str = "default";

/// Where credentials come from. They are read at each login, so that a changed one works at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What this command prints: the `auth` section of a `clouds.yaml`, as YAML or JSON.
    Command(Vec<String>),
    /// A file as OpenStack's own clients read it; no cloud named: it has one alone.
    File {
        /// The file.
        path: PathBuf,
        /// Which of its clouds.
        cloud: Option<String>,
    },
    /// The variables `OS_*`.
    Environment,
}

/// What is known of a cloud and of the daemon's account there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Where Keystone is.
    pub auth_url: String,
    /// Who logs in.
    pub login: Login,
    /// The region, if there are several.
    pub region: Option<String>,
    /// Which of a service's endpoints: `public` unless it says otherwise.
    pub interface: Option<String>,
}

/// How to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// By an application credential, which belongs to one project and may have fewer rights than its user.
    ApplicationCredential {
        /// Its id.
        id: String,
        /// Its secret.
        secret: Hidden,
    },
    /// By a user's password, in a project.
    Password {
        /// The user: `{"id"}`, or `{"name", "domain"}`.
        user: Value,
        /// The password.
        password: Hidden,
        /// The project: `{"id"}`, or `{"name", "domain"}`.
        project: Value,
    },
}

impl Login {
    /// The body that asks Keystone for a token.
    #[must_use]
    pub fn body(&self) -> Value {
        match self {
            Self::ApplicationCredential { id, secret } => json!({ "auth": { "identity": {
                "methods": ["application_credential"],
                "application_credential": { "id": id, "secret": secret.reveal() },
            } } }),
            Self::Password { user, password, project } => {
                let mut user = user.clone();
                user["password"] = json!(password.reveal());
                json!({ "auth": {
                    "identity": { "methods": ["password"], "password": { "user": user } },
                    "scope": { "project": project },
                } })
            }
        }
    }
}

impl Source {
    /// Reads them.
    ///
    /// # Errors
    /// One sentence with the place and the remedy, without what is secret.
    pub fn read(&self) -> Result<Credentials, String> {
        match self {
            Self::Command(command) => {
                let place = format!("what the credential_command {:?} prints", command.first().map_or("", |name| name));
                let section = parsed(&place, &command::output(command)?)?;
                credentials(&place, |key| scalar(&place, key, &section[key]))
            }
            Self::File { path, cloud } => {
                let text = read_private("file of clouds", path, FILE_BYTES_MAX)?;
                of_file(path, &text, cloud.as_deref())
            }
            Self::Environment => credentials("the environment", |key| {
                let name = format!("OS_{}", key.to_ascii_uppercase());
                match std::env::var(&name) {
                    Ok(value) if value.is_empty() => Ok(None),
                    Ok(value) => Ok(Some(value)),
                    Err(std::env::VarError::NotPresent) => Ok(None),
                    Err(std::env::VarError::NotUnicode(_)) => {
                        Err(format!("the variable {name} is no text: set it anew"))
                    }
                }
            }),
        }
    }
}

fn of_file(path: &Path, text: &str, cloud: Option<&str>) -> Result<Credentials, String> {
    let file = format!("the file of clouds {}", path.display());
    let document = parsed(&file, text)?;
    let names = || -> Vec<&str> {
        document["clouds"].as_hash().map(|clouds| clouds.keys().filter_map(Yaml::as_str).collect()).unwrap_or_default()
    };
    let name = match (cloud, &*names()) {
        (Some(name), _) => name.to_owned(),
        (None, [name]) => (*name).to_owned(),
        (None, []) => {
            return Err(format!(
                "{file} has no section clouds: let OpenStack's client write it, or name another clouds_file"
            ));
        }
        (None, several) => {
            return Err(format!(
                "{file} has the clouds {}: name one of them, as in cloud = {:?}",
                several.join(", "),
                several[0]
            ));
        }
    };
    let section = &document["clouds"][name.as_str()];
    if section.is_badvalue() {
        return Err(format!("{file} has no cloud {name:?} but {}: correct the key cloud", names().join(", ")));
    }
    let place = format!("{file}, cloud {name:?}");
    credentials(&place, |key| {
        let of = if matches!(key, "region_name" | "interface" | "endpoint_type") { section } else { &section["auth"] };
        scalar(&place, key, &of[key])
    })
}

fn parsed(place: &str, text: &str) -> Result<Yaml, String> {
    // The parser's message could quote a secret.
    let documents = YamlLoader::load_from_str(text).map_err(|error| {
        format!("{place} is no YAML (line {}): let OpenStack's client write it", error.marker().line())
    })?;
    documents.into_iter().next().ok_or_else(|| format!("{place} is empty: let OpenStack's client write it"))
}

fn scalar(place: &str, key: &str, value: &Yaml) -> Result<Option<String>, String> {
    match value {
        Yaml::BadValue | Yaml::Null => Ok(None),
        Yaml::String(text) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        // As a number 007 would become 7.
        _ => Err(format!("{place} has a {key} that is no text: write it in quotes")),
    }
}

fn credentials(place: &str, get: impl Fn(&str) -> Result<Option<String>, String>) -> Result<Credentials, String> {
    let need = |key: &str| get(key)?.ok_or_else(|| format!("{place} has no {key}: add it"));
    let auth_url = need("auth_url")?;
    let interface = get("interface")?;
    if interface.is_none() && get("endpoint_type")?.is_some() {
        return Err(format!(
            "{place} has an endpoint_type, which is not read: write it as interface, such as internal"
        ));
    }
    let login = if let Some(id) = get("application_credential_id")? {
        Login::ApplicationCredential { id, secret: Hidden::new(need("application_credential_secret")?) }
    } else if get("password")?.is_some() {
        let named = |kind: &str, name: &str| -> Result<Value, String> {
            if let Some(id) = get(&format!("{kind}_id"))? {
                return Ok(json!({ "id": id }));
            }
            let domain = match get(&format!("{kind}_domain_name"))? {
                Some(name) => json!({ "name": name }),
                None => json!({ "id": get(&format!("{kind}_domain_id"))?.unwrap_or_else(|| DOMAIN.to_owned()) }),
            };
            Ok(json!({ "name": need(name)?, "domain": domain }))
        };
        Login::Password {
            user: named("user", "username")?,
            password: Hidden::new(need("password")?),
            project: named("project", "project_name")?,
        }
    } else if get("application_credential_name")?.is_some() {
        return Err(format!(
            "{place} has an application_credential_name, which is not read: write its application_credential_id, as `openstack application credential list` shows it"
        ));
    } else {
        return Err(format!(
            "{place} has neither application_credential_id nor password: make an application credential, as `openstack application credential create surgetank` does, and add its id and secret"
        ));
    };
    Ok(Credentials { auth_url, login, region: get("region_name")?, interface })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, cloud: Option<&str>) -> Result<Credentials, String> {
        of_file(Path::new("/clouds.yaml"), text, cloud)
    }

    const FILE: &str = "
clouds:
  one:
    auth_type: v3applicationcredential
    auth:
      auth_url: https://keystone.example/v3
      application_credential_id: abc
      application_credential_secret: swordfish
    region_name: north
    interface: internal
  two:
    auth: {auth_url: https://keystone.example, username: alice, password: '0042', project_name: work, user_domain_name: people}
";

    #[test]
    fn clouds_of_a_file() {
        let one = read(FILE, Some("one")).unwrap();
        assert_eq!((one.region.as_deref(), one.interface.as_deref()), (Some("north"), Some("internal")));
        assert_eq!(one.login.body()["auth"]["identity"]["application_credential"]["secret"], "swordfish");
        assert!(!format!("{one:?}").contains("swordfish"), "secrets are not printed");
        let two = read(FILE, Some("two")).unwrap();
        let expected = json!({ "auth": {
            "identity": { "methods": ["password"], "password": { "user":
                { "name": "alice", "domain": { "name": "people" }, "password": "0042" } } },
            "scope": { "project": { "name": "work", "domain": { "id": "default" } } },
        } });
        assert_eq!(two.login.body(), expected);
        assert!(!format!("{two:?}").contains("0042"), "secrets are not printed");
    }

    #[test]
    fn what_is_missing_or_odd_is_told_with_its_place_and_without_secrets() {
        for (text, cloud, why) in [
            (FILE, None, "has the clouds one, two: name one of them"),
            (FILE, Some("three"), "has no cloud \"three\" but one, two"),
            ("", None, "is empty"),
            ("a: b", None, "has no section clouds"),
            ("clouds: {c: {auth: {}}}", None, "has no auth_url"),
            ("clouds: {c: {auth: {auth_url: u}, endpoint_type: internal}}", None, "write it as interface"),
            (
                "clouds: {c: {auth: {auth_url: u, application_credential_name: n, application_credential_secret: swordfish}}}",
                None,
                "write its application_credential_id",
            ),
            ("clouds: {c: {auth: {auth_url: u}}}", None, "neither application_credential_id nor password"),
            (
                "clouds: {c: {auth: {auth_url: u, application_credential_id: i}}}",
                None,
                "has no application_credential_secret",
            ),
            (
                "clouds: {c: {auth: {auth_url: u, username: a, password: 42, project_name: p}}}",
                None,
                "password that is no text",
            ),
            ("clouds: {c: {auth: {auth_url: u, password: swordfish, project_name: p}}}", None, "has no username"),
            ("clouds: {c: {auth: {auth_url: u, password: 'swordfish}}}", None, "is no YAML"),
        ] {
            let error = read(text, cloud).unwrap_err();
            assert!(error.contains(why) && error.contains("/clouds.yaml"), "{error}");
            assert!(!error.contains("swordfish") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_command_prints_the_section() {
        let script = |text: &str| Source::Command(["/bin/echo", text].map(str::to_owned).to_vec());
        let json = "{\"auth_url\": \"https://k.example\", \"application_credential_id\": \"i\", \"application_credential_secret\": \"s\"}";
        assert_eq!(script(json).read().unwrap().auth_url, "https://k.example");
        assert!(
            script("nothing").read().unwrap_err().contains("credential_command \"/bin/echo\" prints has no auth_url")
        );
    }
}
