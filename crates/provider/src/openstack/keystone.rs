//! Tokens of Keystone, and where its catalog says that the other services are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::http::{Method, StatusCode};

use super::credentials::Source;
use super::errors;
use crate::ProviderError;
use crate::cloud::http::{Answer, Call, Client};
use crate::cloud::{Hidden, check_url, moment, place};

/// So long before it ends a token is replaced.
const EARLY: Duration = Duration::from_secs(300);
/// How long a token is used whose end cannot be read.
const LIFE: Duration = Duration::from_secs(900);
/// What the catalog calls Cinder, the official name first.
const CINDER: &[&str] = &["block-storage", "volumev3", "block-store"];
/// What it calls Nova.
const NOVA: &[&str] = &["compute"];

/// Where volumes are: what a login leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The project.
    pub project: String,
    /// Where Cinder is, without a slash at the end.
    pub cinder: String,
    /// Where Nova is.
    pub nova: String,
}

impl Place {
    /// Checks that a login leads to the same place as the first one, which is this, and is kept in `file`.
    fn check(&self, now: &Self, file: Option<&Path>) -> Result<(), ProviderError> {
        let parts = [
            ("the project", &*self.project, &*now.project),
            ("Cinder's endpoint", &self.cinder, &now.cinder),
            ("Nova's endpoint", &self.nova, &now.nova),
        ];
        place::check("the credentials, or the catalog of Keystone, now lead", &parts, file)
    }
}

/// A login.
#[derive(Debug)]
pub struct Session {
    /// The token, for `X-Auth-Token`.
    pub token: Hidden,
    /// Where it counts.
    pub place: Place,
    renew_at: Instant,
}

/// Logs in, and again before the token ends.
#[derive(Debug)]
pub struct Keystone {
    client: Client,
    source: Source,
    allow_plain: bool,
    place_file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// That of the first login, by this daemon or as the file says.
    place: Option<Place>,
}

impl Keystone {
    /// Logs nobody in yet.
    #[must_use]
    pub fn new(client: Client, source: Source, allow_plain: bool, place_file: Option<PathBuf>) -> Self {
        Self { client, source, allow_plain, place_file, state: Mutex::default() }
    }

    /// The present session, or a new one if there is none or it ends soon. `refused`: a session whose token a service has
    /// refused, which counts no more.
    ///
    /// # Errors
    /// `Invalid`: credentials, or the catalog. `Transient`: they lead to another place than the first login's. Else as
    /// [`ProviderError`] says.
    pub fn session(&self, refused: Option<&Arc<Session>>) -> Result<Arc<Session>, ProviderError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = |session: &Arc<Session>| refused.is_some_and(|refused| Arc::ptr_eq(refused, session));
        let now = Instant::now();
        if let Some(session) = state.session.as_ref().filter(|session| now < session.renew_at && !is_refused(session)) {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(self.login(now)?);
        let first = match (&state.place, &self.place_file) {
            (Some(place), _) => place.clone(),
            (None, Some(file)) => place::first(file, &session.place)?,
            (None, None) => session.place.clone(),
        };
        first.check(&session.place, self.place_file.as_deref())?;
        state.place = Some(first);
        state.session = Some(Arc::clone(&session));
        Ok(session)
    }

    fn login(&self, now: Instant) -> Result<Session, ProviderError> {
        let credentials = self.source.read().map_err(ProviderError::Invalid)?;
        check_url("Keystone", &credentials.auth_url, self.allow_plain).map_err(ProviderError::Invalid)?;
        let base = with_version(&credentials.auth_url, "v3");
        let url = format!("{base}/auth/tokens");
        let body = credentials.login.body();
        let call = Call { service: "Keystone", method: Method::POST, url: &url, headers: &[], body: Some(&body) };
        let answer = self.client.call(&call)?;
        match (answer.status, errors::message(&answer)) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(said)) => return Err(refused(&base, &said)),
            // Keystone's words for an application credential that is not there; else 404 is a path that is not there.
            (StatusCode::NOT_FOUND, Some(said)) if said.starts_with("Could not find") => {
                return Err(refused(&base, &said));
            }
            (StatusCode::NOT_FOUND, _) => {
                return Err(ProviderError::Transient(format!(
                    "what answers at {base} has no /auth/tokens (status 404): check auth_url, which is Keystone's"
                )));
            }
            _ => {}
        }
        if !answer.status.is_success() {
            return Err(errors::error("Keystone", &answer));
        }
        let region = credentials.region.as_deref();
        let interface = credentials.interface.as_deref().unwrap_or("public");
        session(&answer, now, region, interface, self.allow_plain)
            .map_err(|why| ProviderError::Invalid(format!("Keystone at {base} has let the daemon in, but {why}")))
    }
}

/// What is said of credentials that Keystone does not take.
fn refused(base: &str, said: &str) -> ProviderError {
    ProviderError::Invalid(format!(
        "Keystone at {base} refuses the credentials ({said}): check them, and whether the application credential has ended"
    ))
}

#[derive(Deserialize)]
struct Granted {
    token: Token,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    issued_at: String,
    #[serde(default)]
    expires_at: String,
    project: Option<Project>,
    #[serde(default)]
    catalog: Vec<Service>,
}

#[derive(Deserialize)]
struct Project {
    id: String,
}

#[derive(Deserialize)]
struct Service {
    r#type: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default)]
    interface: String,
    region_id: Option<String>,
    region: Option<String>,
    url: String,
}

fn session(
    answer: &Answer,
    now: Instant,
    region: Option<&str>,
    interface: &str,
    allow_plain: bool,
) -> Result<Session, String> {
    let token = answer.headers.get("x-subject-token").and_then(|token| token.to_str().ok());
    let token = Hidden::new(token.ok_or("without a token: check that auth_url is Keystone's")?);
    // The parser's message could quote the answer.
    let granted = Granted::deserialize(&answer.body)
        .map_err(|_| "its answer is not that of Identity v3: check that auth_url is Keystone's".to_owned())?;
    let project = granted.token.project.ok_or("in no project: name a project, or use an application credential")?.id;
    let find = |names: &[&str], version: &str| {
        endpoint(&granted.token.catalog, names, region, interface).and_then(|url| {
            check_url(names[0], &url, allow_plain)?;
            Ok(with_version(&url, version))
        })
    };
    let life = life(&granted.token.issued_at, &granted.token.expires_at).unwrap_or(LIFE);
    // A token that lives for less than that is used for half of its life.
    let renew_at = now + life.saturating_sub(EARLY).max(life / 2);
    let place = Place { cinder: find(CINDER, "v3")?, nova: find(NOVA, "v2.1")?, project };
    Ok(Session { token, place, renew_at })
}

/// The URL of a service in the catalog.
fn endpoint(catalog: &[Service], names: &[&str], region: Option<&str>, interface: &str) -> Result<String, String> {
    let is_there = |endpoint: &&Endpoint| {
        let regions = [&endpoint.region_id, &endpoint.region];
        endpoint.interface == interface
            && region.is_none_or(|region| regions.into_iter().any(|name| name.as_deref() == Some(region)))
    };
    let of = |name: &str| -> Vec<&str> {
        let services = catalog.iter().filter(|service| service.r#type == name);
        services.flat_map(|service| &service.endpoints).filter(is_there).map(|endpoint| &*endpoint.url).collect()
    };
    let mut found = names.iter().map(|name| of(name)).find(|found| !found.is_empty()).unwrap_or_default();
    // A catalog has no order: of several the same one is taken at each login.
    found.sort_unstable();
    found.dedup();
    match (&*found, region) {
        ([], _) => Err(format!(
            "its catalog has no {interface} endpoint of {}{}: check region_name and interface",
            names.join(" or "),
            region.map(|region| format!(" in the region {region}")).unwrap_or_default()
        )),
        ([_, _, ..], None) => Err(format!("its catalog has {} in several regions: name one as region_name", names[0])),
        ([first, ..], _) => Ok((*first).to_owned()),
    }
}

/// A URL with the version that we speak, if it ends before it, as catalogs of some clouds do.
fn with_version(url: &str, version: &str) -> String {
    let url = url.trim_end_matches('/');
    let path = url.splitn(4, '/').nth(3).unwrap_or_default();
    let is_version =
        |segment: &str| segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if path.split('/').any(is_version) { url.to_owned() } else { format!("{url}/{version}") }
}

/// How long a token lives, by the server's clock alone.
fn life(issued_at: &str, expires_at: &str) -> Option<Duration> {
    (moment(expires_at)? - moment(issued_at)?).try_into().ok()
}

/// The server that this machine is, as the metadata service tells.
///
/// # Errors
/// `Transient` or `Invalid`, with a sentence.
pub fn server_id(document: &Value) -> Result<String, ProviderError> {
    let id = document["uuid"].as_str().filter(|id| super::is_id(id));
    id.map(str::to_owned).ok_or_else(|| {
        ProviderError::Transient(
            "the metadata service does not say which server this machine is: write server = \"ID\" in [provider.openstack]".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use ureq::http::HeaderMap;

    use super::*;

    fn granted(body: Value) -> Answer {
        let headers = HeaderMap::from_iter([("x-subject-token".parse().unwrap(), "swordfish".parse().unwrap())]);
        Answer { status: StatusCode::CREATED, headers, body }
    }

    fn body(endpoints: Value) -> Value {
        json!({ "token": {
            "issued_at": "2026-11-28T23:35:25.000000Z", "expires_at": "2026-11-29T00:35:25.000000Z",
            "project": { "id": "p" },
            "catalog": [
                { "type": "volumev3", "endpoints": endpoints },
                { "type": "compute", "endpoints": [{ "interface": "public", "region_id": "north", "url": "https://nova.example/v2.1/" }] },
            ],
        } })
    }

    #[test]
    fn a_session_has_its_endpoints_and_is_renewed_five_minutes_early() {
        let now = Instant::now();
        let answer = granted(body(json!([
            { "interface": "admin", "region_id": "north", "url": "https://other.example" },
            { "interface": "public", "region_id": "north", "url": "https://cinder.example/v3/p" },
        ])));
        let session = session(&answer, now, Some("north"), "public", false).unwrap();
        assert_eq!(
            (&*session.place.cinder, &*session.place.nova),
            ("https://cinder.example/v3/p", "https://nova.example/v2.1")
        );
        assert_eq!(session.renew_at - now, Duration::from_secs(3600 - 300));
        assert!(!format!("{session:?}").contains("swordfish"));
    }

    #[test]
    fn of_several_endpoints_in_a_region_the_same_one_is_taken_whatever_their_order() {
        let public = |url: &str| json!({ "interface": "public", "region_id": "north", "url": url });
        let [a, b] = ["https://a.example/v3", "https://b.example/v3"].map(public);
        for endpoints in [json!([a, b, a]), json!([b, a])] {
            let session = session(&granted(body(endpoints)), Instant::now(), Some("north"), "public", false).unwrap();
            assert_eq!(session.place.cinder, "https://a.example/v3");
        }
    }

    #[test]
    fn a_catalog_that_does_not_do_is_told() {
        let public = |region: &str, url: &str| json!({ "interface": "public", "region_id": region, "url": url });
        for (endpoints, region, why) in [
            (json!([]), None, "no public endpoint of block-storage"),
            (json!([public("north", "https://a.example")]), Some("south"), "in the region south"),
            (
                json!([public("north", "https://a.example"), public("south", "https://b.example")]),
                None,
                "in several regions",
            ),
            (json!([public("north", "http://cinder.example")]), None, "allow_plain"),
        ] {
            let error = session(&granted(body(endpoints)), Instant::now(), region, "public", false).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let unscoped = granted(json!({ "token": { "catalog": [] } }));
        assert!(session(&unscoped, Instant::now(), None, "public", false).unwrap_err().contains("in no project"));
        let odd = granted(json!({ "links": [] }));
        assert!(session(&odd, Instant::now(), None, "public", false).unwrap_err().contains("not that of Identity v3"));
    }

    #[test]
    fn versions_are_added_where_a_catalog_has_none() {
        for (url, expected) in [
            ("https://c.example", "https://c.example/v3"),
            ("https://c.example/volume/", "https://c.example/volume/v3"),
            ("https://c.example/volume/v3/0123", "https://c.example/volume/v3/0123"),
            ("https://v3.example:8776", "https://v3.example:8776/v3"),
        ] {
            assert_eq!(with_version(url, "v3"), expected);
        }
    }

    #[test]
    fn lives_of_tokens() {
        assert_eq!(life("2026-02-28T23:59:59.000000Z", "2026-03-01T00:00:00Z"), Some(Duration::from_secs(1)));
        for (from, to) in
            [("", "2026-03-01T00:00:00Z"), ("2026-03-01T00:00:00Z", "2026-02-01T00:00:00Z"), ("yesterday", "ä")]
        {
            assert_eq!(life(from, to), None);
        }
    }
}
