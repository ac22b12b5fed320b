//! Calls of Compute Engine in one zone of a project, and the operations that they begin.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::http::Method;

use super::GceConfig;
use super::errors::{Failure, Refusal};
use super::login::Login;
use crate::ProviderError;
use crate::clock::Clock;
use crate::cloud::http::{Answer, Call, Client, encoded, sentence};
use crate::cloud::token::Token;
use crate::cloud::{place, unix_ms};

/// What asks, for sentences.
const SERVICE: &str = "Compute Engine";
/// Where it is.
const ENDPOINT: &str = "https://compute.googleapis.com";
/// How many members a page of a list has.
const PAGE: u32 = 500;
/// More pages of a list than this come from no project that surgetank can serve.
const PAGES_MAX: usize = 1000;
/// How long an operation is waited for at a time: the service holds who waits for up to two minutes.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Where volumes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The project.
    pub project: String,
    /// Its zone, which is this machine's.
    pub zone: String,
}

impl Place {
    /// The path of what the zone has. All signs of the names may stand in a URL as they are.
    #[must_use]
    pub fn path(&self, of: &str) -> String {
        format!("projects/{}/zones/{}/{of}", self.project, self.zone)
    }
}

/// A change of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Create,
    Attach,
    Detach,
    Delete,
    Grow,
    Label,
}

impl Doing {
    /// Those whose operations say where a disk is in its life.
    pub const SHOWN: [Self; 5] = [Self::Create, Self::Attach, Self::Detach, Self::Delete, Self::Grow];

    const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Delete => "delete",
            Self::Grow => "grow",
            Self::Label => "label",
        }
    }

    /// With what the ids of requests for it begin, whoever sends them. The list of operations repeats the id, and tells of an attach
    /// the instance alone.
    #[must_use]
    pub fn mark(self, disk: &str) -> String {
        let id = request_id(self, disk, [0; 10]);
        id[..13].to_owned()
    }
}

/// The id of a request: a UUID, of which 48 bits tell what is done with which disk, and the others whether it is the same request.
/// Its version is never 0, and so neither is it.
fn request_id(doing: Doing, disk: &str, which: Which) -> String {
    let of = digest(&SHA256, format!("{}/{disk}", doing.name()).as_bytes());
    let mut id: Vec<u8> = of.as_ref()[..6].iter().copied().chain(which).collect();
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// An operation, as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its name, by which it is asked for.
    pub name: String,
    /// The id of the request that began it.
    pub request: Option<String>,
    /// When it was begun, in milliseconds since 1970, which is compared with that of others.
    pub inserted_ms: u64,
    /// How it has ended; `None`: it has not.
    pub ended: Option<Result<(), Refusal>>,
}

impl Operation {
    pub fn read(body: &Value) -> Result<Self, ProviderError> {
        let text = |key: &str| body[key].as_str().map(str::to_owned);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = text("name").filter(|name| !name.is_empty() && name.bytes().all(allowed));
        // Disks have a name and a status as well.
        let status = text("status").filter(|_| body["kind"] == "compute#operation");
        let (Some(name), Some(status)) = (name, status) else {
            return Err(ProviderError::Transient(
                "Compute Engine answers with no operation that has a name and a status: check what answers for it"
                    .to_owned(),
            ));
        };
        let ended = (status == "DONE").then(|| Refusal::of_operation(body).map_or(Ok(()), Err));
        let inserted_ms = text("insertTime").and_then(|text| unix_ms(&text)).unwrap_or_default();
        Ok(Self { name, request: text("clientOperationId"), inserted_ms, ended })
    }

    /// The operation that was asked for.
    fn read_as(name: &str, body: &Value) -> Result<Self, ProviderError> {
        let operation = Self::read(body)?;
        if operation.name == name {
            return Ok(operation);
        }
        Err(ProviderError::Transient(format!(
            "Compute Engine was asked for the operation {name} and tells of {}",
            operation.name
        )))
    }
}

/// A client.
pub struct Compute {
    client: Client,
    /// The same for whoever waits, and not for long.
    waiting: Client,
    login: Login,
    endpoint: String,
    /// What the configuration says of the place.
    project: Option<String>,
    zone: Option<String>,
    place_file: Option<PathBuf>,
    place: OnceLock<Place>,
    instance: OnceLock<String>,
    /// Tells requests of this process from those of others.
    process: [u8; 16],
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compute").field("login", &self.login).field("place", &self.place).finish_non_exhaustive()
    }
}

/// Tells requests apart that do the same with the same disk.
pub type Which = [u8; 10];

/// Random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], ProviderError> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| ProviderError::Transient(format!("the system has no random bytes: {error}")))?;
    Ok(bytes)
}

fn call(
    client: &Client,
    token: &Token,
    method: &Method,
    url: &str,
    body: Option<&Value>,
) -> Result<Answer, ProviderError> {
    let headers = [("Authorization", token.header.reveal())];
    client.call(&Call { service: SERVICE, method: method.clone(), url, headers: &headers, body })
}

impl Compute {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// `Invalid`: the configuration.
    pub fn new(config: &GceConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        let client = |timeout| Client::new(timeout, config.ca_file.as_deref()).map_err(ProviderError::Invalid);
        let (client, waiting) = (client(config.timeout.0)?, client(config.timeout.0.min(WAIT_MAX))?);
        let endpoint = config.endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/').to_owned();
        Ok(Self {
            client,
            waiting,
            login: Login::new(config, clock)?,
            endpoint,
            project: config.project.clone(),
            zone: config.zone.clone(),
            place_file: config.place_file.clone(),
            place: OnceLock::new(),
            instance: config.instance.clone().map_or_else(OnceLock::new, OnceLock::from),
            process: random()?,
        })
    }

    /// Where volumes are: as at the first use.
    pub fn place(&self) -> Result<&Place, ProviderError> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        let or_told = |written: &Option<String>, what: &str, path: &str| match written {
            Some(written) => Ok(written.clone()),
            None => self.login.told(what, path),
        };
        let now = Place {
            project: or_told(&self.project, "project", "project/project-id")?,
            zone: or_told(&self.zone, "zone", "instance/zone")?,
        };
        if let Some(file) = &self.place_file {
            let first = place::first(file, &now)?;
            let parts = [("the project", &*first.project, &*now.project), ("the zone", &first.zone, &now.zone)];
            place::check("the configuration, or the metadata service, now leads", &parts, Some(file))?;
        }
        Ok(self.place.get_or_init(|| now))
    }

    /// The instance that this machine is.
    pub fn instance(&self) -> Result<&str, ProviderError> {
        if let Some(instance) = self.instance.get() {
            return Ok(instance);
        }
        let instance = self.login.told("instance", "instance/name")?;
        Ok(self.instance.get_or_init(|| instance))
    }

    /// How the URL of this machine ends.
    pub fn here(&self) -> Result<String, ProviderError> {
        Ok(format!("/zones/{}/instances/{}", self.place()?.zone, self.instance()?))
    }

    /// Asks for what the zone has, with the present token, and once more with a new one if it is refused.
    pub fn ask(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.ask_by(&self.client, method, path, body)
    }

    fn ask_by(&self, client: &Client, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let url = format!("{}/compute/v1/{}", self.endpoint, self.place()?.path(path));
        let token = self.login.token(None)?;
        let mut answer = call(client, &token, method, &url, body)?;
        if answer.status.as_u16() == 401 {
            let token = self.login.token(Some(&token))?;
            answer = call(client, &token, method, &url, body)?;
        }
        if answer.status.is_success() && answer.body.is_object() {
            return Ok(answer.body);
        }
        Err(Refusal::of_answer(&answer)
            .map_or_else(|| answer.foreign(SERVICE, "service account", "[provider.gce]").into(), Failure::Refused))
    }

    /// Asks for a change. `path` ends where its query goes on; `which` tells requests apart that do the same.
    pub fn begin(
        &self,
        doing: Doing,
        disk: &str,
        which: Which,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Operation, Failure> {
        self.begin_as(&request_id(doing, disk, which), method, path, body)
    }

    /// Asks for a disk. The same request has the same id in this process, so that one which arrives late is ignored; `tries` says
    /// how often it has failed, as what has failed is remembered as well.
    pub fn begin_creation(&self, disk: &str, tries: u64, body: &Value) -> Result<Operation, Failure> {
        let which = [&self.process[..], &tries.to_be_bytes(), disk.as_bytes()].concat();
        let mut first = [0; 10];
        first.copy_from_slice(&digest(&SHA256, &which).as_ref()[..10]);
        self.begin_as(&request_id(Doing::Create, disk, first), &Method::POST, "disks?", Some(body))
    }

    fn begin_as(&self, id: &str, method: &Method, path: &str, body: Option<&Value>) -> Result<Operation, Failure> {
        let body = self.ask(method, &format!("{path}requestId={id}"), body)?;
        Ok(Operation::read(&body)?)
    }

    /// What has become of an operation; `None`: it is forgotten, or not known yet.
    pub fn operation(&self, name: &str) -> Result<Option<Operation>, Failure> {
        match self.ask(&Method::GET, &format!("operations/{name}"), None) {
            Ok(body) => Ok(Some(Operation::read_as(name, &body)?)),
            Err(Failure::Refused(refusal)) if refusal.is_absent() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The same; it answers when the operation has ended, or when it does not want to wait any longer. `None`: it is not known yet, or
    /// nobody has answered in time.
    pub fn wait(&self, name: &str) -> Result<Option<Operation>, Failure> {
        match self.ask_by(&self.waiting, &Method::POST, &format!("operations/{name}/wait"), None) {
            Ok(body) => Ok(Some(Operation::read_as(name, &body)?)),
            Err(Failure::Refused(refusal)) if refusal.is_absent() => Ok(None),
            Err(Failure::Other(ProviderError::Transient(_))) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The operations of the zone that have not ended.
    pub fn operations(&self) -> Result<Vec<Operation>, Failure> {
        let listed = self.all("operations", Some("status != DONE"))?;
        let operations: Result<Vec<Operation>, _> = listed.iter().map(Operation::read).collect();
        Ok(operations?.into_iter().filter(|operation| operation.ended.is_none()).collect())
    }

    /// All members of a list, page by page.
    pub fn all(&self, path: &str, filter: Option<&str>) -> Result<Vec<Value>, Failure> {
        let filter = filter.map(|filter| format!("&filter={}", encoded(filter))).unwrap_or_default();
        let (mut all, mut page) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let mut body = self.ask(&Method::GET, &format!("{path}?maxResults={PAGE}{filter}{page}"), None)?;
            // A page may be empty, and then has no items.
            match body["items"].take() {
                Value::Array(items) => all.extend(items),
                Value::Null if body["kind"].as_str().is_some_and(|kind| kind.starts_with("compute#")) => {}
                _ => {
                    return Err(Failure::Other(ProviderError::Transient(format!(
                        "{SERVICE} lists no {path} in its list of {path}: check what answers for it"
                    ))));
                }
            }
            match body["nextPageToken"].as_str() {
                Some(token) if !token.is_empty() => page = format!("&pageToken={}", encoded(token)),
                _ => return Ok(all),
            }
        }
        let path = sentence(path);
        Err(Failure::Other(ProviderError::Transient(format!(
            "{SERVICE}'s list of {path} does not end after {PAGES_MAX} pages"
        ))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_the_operation_that_was_asked_for_says_nothing() {
        let told = json!({ "kind": "compute#operation", "name": "operation-1", "status": "RUNNING", "clientOperationId": "id" });
        assert_eq!(Operation::read_as("operation-1", &told).unwrap().request.as_deref(), Some("id"));
        assert!(Operation::read_as("operation-2", &told).is_err());
        for (key, value) in
            [("kind", json!("compute#disk")), ("name", json!("../x")), ("name", json!("")), ("status", Value::Null)]
        {
            let mut odd = told.clone();
            odd[key] = value;
            assert!(Operation::read(&odd).is_err(), "{odd}");
        }
        assert!(Operation::read(&json!([])).is_err());
    }

    #[test]
    fn ids_of_requests_are_uuids_that_tell_what_is_done_with_which_disk() {
        let id = request_id(Doing::Attach, "surgetank-a", [0xff; 10]);
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!((&id[14..15], "89ab".contains(&id[19..20])), ("4", true), "a random one, as those of other clients");
        let mut marks: Vec<String> =
            ["surgetank-a", "surgetank-b"].iter().flat_map(|disk| Doing::SHOWN.map(|doing| doing.mark(disk))).collect();
        assert!(id.starts_with(&marks[1]), "{id} {marks:?}");
        marks.sort();
        marks.dedup();
        assert_eq!(marks.len(), 10);
    }
}
