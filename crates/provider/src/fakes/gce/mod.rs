//! Compute Engine, as far as disks go, and the metadata service of one of its instances.

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::dialect::{Calls, Dialect};
use super::faults::Fault;
use super::server::{Outcome, Reply, Request, form};
use super::tokens::{Bearer, Tokens};
use super::{Fake, Settings};
use crate::clock::{Clock, whole_ms};

/// The project of the fake.
pub const PROJECT: &str = "our-project";
/// The zone of its instance.
pub const ZONE: &str = "europe-west1-b";
/// Its instance.
pub const INSTANCE: &str = "our-machine";
/// What answers are.
const JSON: &str = "application/json; charset=UTF-8";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What was called, such as `disks.insert`; empty: nothing that is known.
    pub call: String,
    /// How.
    pub method: String,
    /// The path, without `/compute/v1/`.
    pub path: String,
    /// The query.
    pub query: BTreeMap<String, String>,
    /// The body; `Null` if there is none.
    pub body: Value,
    /// The project, the zone, and what else the path names.
    names: Vec<String>,
}

/// A refusal: a status, a reason and a message.
type Refused = (u16, &'static str, String);

/// An operation.
struct Operation {
    name: String,
    /// What was called.
    call: String,
    target: String,
    request: Option<String>,
    inserted_ms: u64,
    done_ms: u64,
    /// A status, a code and a message.
    error: Option<(u16, String, String)>,
    /// The labels that a disk has when it is done, and the fingerprint of those before.
    labels: Option<(String, BTreeMap<String, String>, String)>,
}

/// What is behind the dialect.
pub struct Gce {
    cloud: Cloud,
    operations: Vec<Operation>,
    tokens: Tokens,
    failing: Vec<(&'static str, u16, String, String)>,
    /// For how long an operation is not known.
    operation_lag_ms: u64,
    /// How long labels take to be set.
    labels_ms: u64,
    calls: Calls<Sent>,
}

/// A fake of Compute Engine on loopback, whose machine has a service account.
pub type FakeGce = Fake<Gce>;

impl FakeGce {
    /// The next operation of this call is accepted, and fails.
    pub fn fail_operation(&self, call: &'static str, status: u16, code: &str, said: &str) {
        self.state().failing.push((call, status, code.to_owned(), said.to_owned()));
    }

    /// For how long an operation that was begun is not known.
    pub fn set_operation_lag(&self, lag: Duration) {
        self.state().operation_lag_ms = whole_ms(lag);
    }

    /// How long labels take to be set.
    pub fn set_label_time(&self, time: Duration) {
        self.state().labels_ms = whole_ms(time);
    }

    /// Another instance calls from now on. The former one is left in this state, such as `TERMINATED`; `None`: nothing is known of it any more.
    pub fn replace_instance(&self, instance: &str, former: Option<&'static str>) {
        self.state().cloud.replace_machine(instance, former);
    }

    /// Somebody else changes the labels of a disk.
    pub fn label(&self, disk: &str, label: &str, value: &str) {
        let change = |labels: &mut BTreeMap<String, String>| drop(labels.insert(label.to_owned(), value.to_owned()));
        let _ = self.state().cloud.set_tags(disk, change);
    }

    /// The labels of a disk.
    #[must_use]
    pub fn labels(&self, disk: &str) -> BTreeMap<String, String> {
        self.state().cloud.made(disk).map(|seen| seen.volume.tags).unwrap_or_default()
    }

    /// Operations are forgotten.
    pub fn forget_operations(&self) {
        self.state().operations.clear();
    }

    /// The disks that are attached to the instance, for whoever plugs disks into a guest.
    #[must_use]
    pub fn attached(&self) -> BTreeSet<String> {
        self.state().cloud.attached()
    }

    /// How many disks there are, without those that are being deleted.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.volumes()
    }
}

fn json_reply(status: u16, body: &Value) -> Reply {
    Reply { status, kind: JSON, body: body.to_string().into_bytes(), headers: Vec::new() }
}

fn refusal((status, reason, said): &Refused) -> Reply {
    let error = json!({ "message": said, "domain": "global", "reason": reason });
    json_reply(*status, &json!({ "error": { "code": status, "message": said, "errors": [error] } }))
}

impl Dialect for Gce {
    type Call = Sent;
    type Done = Value;
    type Refused = Refused;

    const KIND: &'static str = JSON;

    fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        Self {
            cloud: Cloud::new(Arc::clone(&clock), settings, (INSTANCE.to_owned(), ZONE.to_owned())),
            operations: Vec::new(),
            tokens: Tokens::new(clock, "ya29"),
            failing: Vec::new(),
            operation_lag_ms: 0,
            labels_ms: calls::LABELS_MS,
            calls: Calls::default(),
        }
    }

    fn cloud(&mut self) -> &mut Cloud {
        &mut self.cloud
    }

    fn calls(&mut self) -> &mut Calls<Sent> {
        &mut self.calls
    }

    fn answer(&mut self, request: &Request) -> Outcome {
        if let Some(path) = request.path.strip_prefix("/computeMetadata/v1/") {
            if self.calls.is_metadata_gone {
                return Outcome::Nothing;
            }
            return Outcome::Answer(self.metadata(request, path));
        }
        // Google's front end takes no POST without a length, also of nothing.
        if request.method == "POST" && request.header("content-length").is_none() {
            return Outcome::Answer(self.web_page(411));
        }
        self.meet(request, Sent::read(request))
    }

    fn name(sent: &Sent) -> &str {
        &sent.call
    }

    fn permit(&self, request: &Request, sent: &Sent) -> Result<(), Refused> {
        if !self.tokens.admit(request) {
            return Err(unknown_token());
        }
        if self.calls.denied.contains(&*sent.call) {
            let resource = sent.path.rsplit_once('/').map_or(&*sent.path, |(resource, _)| resource);
            return Err((403, "forbidden", format!("Required 'compute.{}' permission for '{resource}'", sent.call)));
        }
        Ok(())
    }

    fn act(&mut self, sent: &Sent) -> Result<Value, Refused> {
        self.carry_out(sent)
    }

    fn reply(&self, _: &Sent, answer: Result<Value, Refused>) -> Reply {
        answer.map_or_else(|refused| refusal(&refused), |body| json_reply(200, &body))
    }

    fn other(&self, status: u16, kind: &'static str, body: Vec<u8>) -> Reply {
        Reply { status, kind, body, headers: Vec::new() }
    }

    fn refusal(fault: Fault) -> Option<Refused> {
        match fault {
            Fault::Throttled => {
                let said = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'";
                Some((403, "rateLimitExceeded", said.to_owned()))
            }
            Fault::Unavailable => Some((503, "backendError", "Service Unavailable".to_owned())),
            Fault::Refused => Some(unknown_token()),
            _ => None,
        }
    }
}

impl Bearer for Gce {
    fn tokens(&mut self) -> &mut Tokens {
        &mut self.tokens
    }
}

impl Gce {
    fn metadata(&mut self, request: &Request, path: &str) -> Reply {
        let flavor = ("metadata-flavor", "Google".to_owned());
        if request.header(flavor.0) != Some(&flavor.1) {
            return self.web_page(403);
        }
        let told = match (path, self.tokens.told()) {
            ("project/project-id?alt=json", _) => json!(PROJECT),
            ("instance/zone?alt=json", _) => json!(format!("projects/123456789012/zones/{}", self.cloud.machine.1)),
            ("instance/name?alt=json", _) => json!(self.cloud.machine.0),
            ("instance/service-accounts/default/token", Some((token, left_s))) => {
                json!({ "access_token": token, "expires_in": left_s, "token_type": "Bearer" })
            }
            _ => return Reply { headers: vec![flavor], ..self.web_page(404) },
        };
        Reply { headers: vec![flavor], ..json_reply(200, &told) }
    }
}

fn unknown_token() -> Refused {
    let said = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.";
    (401, "authError", said.to_owned())
}

impl Sent {
    fn read(request: &Request) -> Self {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let path = path.strip_prefix("/compute/v1/").unwrap_or_default().to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let (call, names): (&str, Vec<&str>) = match (&*request.method, &*parts) {
            ("POST", ["projects", p, "zones", z, "disks"]) => ("disks.insert", vec![p, z]),
            ("GET", ["projects", p, "zones", z, "disks"]) => ("disks.list", vec![p, z]),
            ("GET", ["projects", p, "zones", z, "disks", d]) => ("disks.get", vec![p, z, d]),
            ("DELETE", ["projects", p, "zones", z, "disks", d]) => ("disks.delete", vec![p, z, d]),
            ("POST", ["projects", p, "zones", z, "disks", d, "setLabels"]) => ("disks.setLabels", vec![p, z, d]),
            ("POST", ["projects", p, "zones", z, "disks", d, "resize"]) => ("disks.resize", vec![p, z, d]),
            ("POST", ["projects", p, "zones", z, "instances", i, "attachDisk"]) => {
                ("instances.attachDisk", vec![p, z, i])
            }
            ("POST", ["projects", p, "zones", z, "instances", i, "detachDisk"]) => {
                ("instances.detachDisk", vec![p, z, i])
            }
            ("GET", ["projects", p, "zones", z, "instances", i]) => ("instances.get", vec![p, z, i]),
            ("GET", ["projects", p, "zones", z, "operations"]) => ("zoneOperations.list", vec![p, z]),
            ("GET", ["projects", p, "zones", z, "operations", o]) => ("zoneOperations.get", vec![p, z, o]),
            ("POST", ["projects", p, "zones", z, "operations", o, "wait"]) => ("zoneOperations.wait", vec![p, z, o]),
            _ => ("", Vec::new()),
        };
        Self {
            call: call.to_owned(),
            names: names.into_iter().map(str::to_owned).collect(),
            method: request.method.clone(),
            query: form(query).collect(),
            body: serde_json::from_str(&request.body).unwrap_or_default(),
            path,
        }
    }
}
