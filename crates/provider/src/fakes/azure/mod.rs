//! Azure's Resource Manager, as far as managed disks go, the login of applications, and the metadata service of one of its machines.

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

pub use calls::action;

use super::cloud::{Cloud, Volume, Wanted};
use super::dialect::{Calls, Dialect};
use super::faults::Fault;
use super::server::{Outcome, Reply, Request, form};
use super::tokens::{Bearer, Tokens};
use super::{Fake, Settings};
use crate::clock::{Clock, whole_ms};

/// The subscription of the fake.
pub const SUBSCRIPTION: &str = "11111111-2222-3333-4444-555555555555";
/// Its resource group, in the letters in which it was made.
pub const GROUP: &str = "Our-Group";
/// The region of its machine.
pub const LOCATION: &str = "westeurope";
/// The zone of its machine.
pub const ZONE: &str = "1";
/// Its machine.
pub const MACHINE: &str = "Our-Machine";
/// The tenant of its application.
pub const TENANT: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa";
/// The application, and the managed identity of the machine.
pub const CLIENT: &str = "bbbbbbbb-cccc-dddd-eeee-ffffffffffff";
/// A secret of the application.
pub const SECRET: &str = "swordfish~8Q+a/b=";
/// What answers are.
const JSON: &str = "application/json; charset=utf-8";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What was called, such as `disks.get`; empty: nothing that is known.
    pub call: String,
    /// How.
    pub method: String,
    /// The path.
    pub path: String,
    /// The query.
    pub query: BTreeMap<String, String>,
    /// The body; `Null` if there is none.
    pub body: Value,
    /// What `If-None-Match` says.
    pub if_none_match: Option<String>,
    /// To whom it was sent.
    host: String,
    /// The subscription, the resource group or the region, and what else the path names.
    names: Vec<String>,
}

/// A refusal: a status, a code and a message.
type Refused = (u16, &'static str, String);

/// What is answered: a status, a body, and the operation that was begun.
pub struct Done {
    status: u16,
    body: Value,
    operation: Option<Link>,
}

/// Where an operation is told.
struct Link {
    path: String,
    /// In both headers, and not in `Location` alone.
    is_in_both: bool,
}

/// An operation.
struct Operation {
    name: String,
    /// What was called.
    call: String,
    disk: String,
    done_ms: u64,
    /// A code and a message.
    error: Option<(&'static str, String)>,
    /// The tags that the disk has when it is done.
    tags: Option<BTreeMap<String, String>>,
}

/// What is behind the dialect.
pub struct Azure {
    cloud: Cloud,
    operations: Vec<Operation>,
    begun: u64,
    tokens: Tokens,
    failing: Vec<(&'static str, &'static str, String)>,
    /// Disks that stay in the machine's model although they could not be attached, with their units.
    stuck: BTreeMap<String, u32>,
    is_stuck_next: bool,
    is_of_scale_set: bool,
    has_conditions: bool,
    /// How long tags take to be set.
    tags_ms: u64,
    /// What is answered to whoever asks for an operation, in place of what has become of it: a status and a body.
    told_of_operations: Option<(u16, Value)>,
    /// Disks of which a change has failed, which did not unmake them.
    spoiled: BTreeSet<String>,
    /// How many machines there were, and which one of them has a name.
    machines: u64,
    of_name: BTreeMap<String, u64>,
    /// Each page of a list is followed by itself.
    repeats_pages: bool,
    /// What each page of a list says of the next one, in place of where that is.
    next_link: Option<Value>,
    calls: Calls<Sent>,
}

/// A fake of Azure on loopback, whose machine has a managed identity.
pub type FakeAzure = Fake<Azure>;

impl FakeAzure {
    /// The machine is a member of a scale set in uniform orchestration.
    pub fn join_scale_set(&self) {
        self.state().is_of_scale_set = true;
    }

    /// Disks are made only if there is none of the name, where that is asked for.
    pub fn have_conditions(&self) {
        self.state().has_conditions = true;
    }

    /// The next operation of this call is accepted, and fails.
    pub fn fail_operation(&self, call: &'static str, code: &'static str, said: &str) {
        self.state().failing.push((call, code, said.to_owned()));
    }

    /// The next attach fails, and the disk stays in the machine's model.
    pub fn fail_attach_and_keep_it(&self, code: &'static str, said: &str) {
        self.fail_operation("virtualMachines.attachDetachDataDisks", code, said);
        self.state().is_stuck_next = true;
    }

    /// How long tags take to be set.
    pub fn set_tag_time(&self, time: Duration) {
        self.state().tags_ms = whole_ms(time);
    }

    /// Whoever asks for an operation is answered so from now on; `None`: by what has become of it.
    pub fn tell_of_operations(&self, told: Option<(u16, Value)>) {
        self.state().told_of_operations = told;
    }

    /// A change of the disk has failed: it says so, and is there.
    pub fn spoil(&self, disk: &str) {
        self.state().spoiled.insert(disk.to_owned());
    }

    /// Each page of a list is followed by itself.
    pub fn repeat_pages(&self) {
        self.state().repeats_pages = true;
    }

    /// Each page of a list says so of the next one.
    pub fn lead_on_to(&self, link: Value) {
        self.state().next_link = Some(link);
    }

    /// Somebody else makes a disk of this name with the tags of another one.
    pub fn copy(&self, disk: &str, name: &str) {
        let cloud = &mut self.state().cloud;
        let Ok(seen) = cloud.made(disk) else { return };
        let Volume { gib, kind, zone, tags, encrypted, iops, throughput, .. } = seen.volume;
        let _ = cloud.create(Wanted { id: Some(name.to_owned()), gib, kind, zone, tags, encrypted, iops, throughput });
    }

    /// Another machine calls from now on. The former one is left in this state, or deleted, also if the name is the same.
    pub fn replace_instance(&self, machine: &str, former: Option<&'static str>) {
        let mut state = self.state();
        state.cloud.replace_machine(machine, former);
        state.machines += 1;
        let number = state.machines;
        state.of_name.insert(machine.to_owned(), number);
    }

    /// Somebody else changes the tags of a disk.
    pub fn tag(&self, disk: &str, key: &str, value: &str) {
        let change = |tags: &mut BTreeMap<String, String>| drop(tags.insert(key.to_owned(), value.to_owned()));
        let _ = self.state().cloud.set_tags(disk, change);
    }

    /// The tags of a disk.
    #[must_use]
    pub fn tags(&self, disk: &str) -> BTreeMap<String, String> {
        self.state().cloud.made(disk).map(|seen| seen.volume.tags).unwrap_or_default()
    }

    /// Operations are forgotten.
    pub fn forget_operations(&self) {
        self.state().operations.clear();
    }

    /// The disks that are attached to the machine, with their units, for whoever plugs disks into a guest.
    #[must_use]
    pub fn attached(&self) -> BTreeMap<String, u32> {
        let state = self.state();
        let attached = state.cloud.attached();
        let units = state.units().into_iter().filter(|(disk, ..)| attached.contains(disk));
        units.map(|(disk, unit, _)| (disk, unit)).collect()
    }

    /// How many disks there are, without those that are being deleted.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.volumes()
    }
}

/// A text is a page for people.
fn json_reply(status: u16, body: &Value) -> Reply {
    if let Value::String(page) = body {
        return Reply { status, kind: "text/html", body: page.clone().into_bytes(), headers: Vec::new() };
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    Reply { status, kind: JSON, body, headers: Vec::new() }
}

fn refusal((status, code, said): &Refused) -> Reply {
    let mut reply = json_reply(*status, &json!({ "error": { "code": code, "message": said } }));
    if *status == 429 {
        reply.headers.push(("retry-after", "3".to_owned()));
    }
    reply
}

impl Dialect for Azure {
    type Call = Sent;
    type Done = Done;
    type Refused = Refused;

    const KIND: &'static str = JSON;

    fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        Self {
            cloud: Cloud::new(Arc::clone(&clock), settings, (MACHINE.to_owned(), ZONE.to_owned())),
            operations: Vec::new(),
            begun: 0,
            tokens: Tokens::new(clock, "eyJ0eXAi"),
            failing: Vec::new(),
            stuck: BTreeMap::new(),
            is_stuck_next: false,
            is_of_scale_set: false,
            has_conditions: false,
            tags_ms: calls::TAGS_MS,
            told_of_operations: None,
            spoiled: BTreeSet::new(),
            machines: 0,
            of_name: BTreeMap::new(),
            repeats_pages: false,
            next_link: None,
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
        if let Some(path) = request.path.strip_prefix("/metadata/") {
            if self.calls.is_metadata_gone {
                return Outcome::Nothing;
            }
            return Outcome::Answer(self.metadata(request, path));
        }
        if request.path.ends_with("/oauth2/v2.0/token") {
            return Outcome::Answer(self.log_in(request));
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
            let action = action(&sent.call).unwrap_or_default();
            let said = format!(
                "The client '{CLIENT}' with object id '{CLIENT}' does not have authorization to perform action '{action}' over scope '{}' or the scope is invalid.",
                sent.path
            );
            return Err((403, "AuthorizationFailed", said));
        }
        Ok(())
    }

    fn act(&mut self, sent: &Sent) -> Result<Done, Refused> {
        self.carry_out(sent)
    }

    fn reply(&self, sent: &Sent, answer: Result<Done, Refused>) -> Reply {
        let done = match answer {
            Ok(done) => done,
            Err(refused) => return refusal(&refused),
        };
        let mut reply = json_reply(done.status, &done.body);
        if let Some(Link { path, is_in_both }) = done.operation {
            let url = format!("http://{}{path}", sent.host);
            reply.headers.push(("location", format!("{url}&monitor=true")));
            reply.headers.push(("retry-after", "0".to_owned()));
            if is_in_both {
                reply.headers.push(("azure-asyncoperation", url));
            }
        }
        reply
    }

    fn other(&self, status: u16, kind: &'static str, body: Vec<u8>) -> Reply {
        Reply { status, kind, body, headers: Vec::new() }
    }

    fn refusal(fault: Fault) -> Option<Refused> {
        match fault {
            Fault::Throttled => Some((429, "TooManyRequests", "The request is being throttled.".to_owned())),
            Fault::Unavailable => Some((503, "ServiceUnavailable", "The service is unavailable now.".to_owned())),
            Fault::Refused => Some(unknown_token()),
            _ => None,
        }
    }
}

impl Bearer for Azure {
    fn tokens(&mut self) -> &mut Tokens {
        &mut self.tokens
    }
}

impl Azure {
    fn metadata(&mut self, request: &Request, path: &str) -> Reply {
        let wrong = |said: &str| json_reply(400, &json!({ "error": "invalid_request", "error_description": said }));
        if request.header("metadata") != Some("true") {
            return wrong("Required metadata header not specified");
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query: BTreeMap<String, String> = form(query).collect();
        let asked = |key: &str| query.get(key).map(String::as_str);
        match (path, asked("api-version"), self.tokens.told()) {
            ("instance/compute", Some("2021-02-01"), _) => {
                let kind = if self.is_of_scale_set {
                    "virtualMachineScaleSets/set/virtualMachines"
                } else {
                    "virtualMachines"
                };
                let machine = &self.cloud.machine.0;
                json_reply(
                    200,
                    &json!({
                        "azEnvironment": "AzurePublicCloud", "location": LOCATION, "name": machine, "zone": ZONE,
                        "resourceGroupName": GROUP, "subscriptionId": SUBSCRIPTION, "vmSize": "Standard_D4s_v3",
                        "resourceId": format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/{kind}/{machine}"),
                    }),
                )
            }
            ("identity/oauth2/token", Some("2018-02-01"), Some((token, left_s)))
                if asked("resource") == Some("https://management.azure.com/")
                    && asked("client_id").is_none_or(|id| id == CLIENT) =>
            {
                // Numbers are texts there.
                json_reply(
                    200,
                    &json!({
                        "access_token": token, "client_id": CLIENT, "expires_in": left_s.to_string(),
                        "resource": "https://management.azure.com/", "token_type": "Bearer",
                    }),
                )
            }
            ("identity/oauth2/token", ..) => wrong("Identity not found"),
            _ => json_reply(404, &json!({ "error": "Not found" })),
        }
    }

    fn log_in(&mut self, request: &Request) -> Reply {
        let form: BTreeMap<String, String> = form(&request.body).collect();
        let said = |key: &str| form.get(key).map(String::as_str);
        let is_right = request.method == "POST"
            && request.path == format!("/{TENANT}/oauth2/v2.0/token")
            && said("grant_type") == Some("client_credentials")
            && said("scope") == Some("https://management.azure.com/.default")
            && (said("client_id"), said("client_secret")) == (Some(CLIENT), Some(SECRET));
        if is_right {
            let token = self.tokens.issue();
            return json_reply(200, &json!({ "token_type": "Bearer", "expires_in": 3600, "access_token": token }));
        }
        json_reply(
            401,
            &json!({
                "error": "invalid_client",
                "error_description": format!("AADSTS7000215: Invalid client secret provided for app '{CLIENT}'.\r\nTrace ID: 1"),
            }),
        )
    }
}

fn unknown_token() -> Refused {
    (401, "InvalidAuthenticationToken", "The access token is invalid.".to_owned())
}

impl Sent {
    fn read(request: &Request) -> Self {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        // Azure does not regard the case of the fixed parts.
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let lower: Vec<String> = parts.iter().map(|part| part.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        let of_group = |count: usize| [1, 3].into_iter().chain(7..7 + count).map(|at| parts[at].to_owned()).collect();
        let (call, names): (&str, Vec<String>) = match (&*request.method, &*lower) {
            (_, ["subscriptions", _, "resourcegroups", _, "providers", "microsoft.compute", rest @ ..]) => {
                match (&*request.method, rest) {
                    ("GET", ["disks"]) => ("disks.list", of_group(0)),
                    ("GET", ["disks", _]) => ("disks.get", of_group(1)),
                    ("PUT", ["disks", _]) => ("disks.createOrUpdate", of_group(1)),
                    ("PATCH", ["disks", _]) => ("disks.update", of_group(1)),
                    ("DELETE", ["disks", _]) => ("disks.delete", of_group(1)),
                    ("GET", ["virtualmachines", _]) => ("virtualMachines.get", of_group(1)),
                    ("POST", ["virtualmachines", _, "attachdetachdatadisks"]) => {
                        ("virtualMachines.attachDetachDataDisks", of_group(1))
                    }
                    _ => ("", Vec::new()),
                }
            }
            ("GET", ["subscriptions", _, "providers", "microsoft.compute", "locations", _, kind, _]) => {
                let call = if *kind == "diskoperations" { "diskOperations.get" } else { "operations.get" };
                (call, [1, 5, 7].map(|at| parts[at].to_owned()).to_vec())
            }
            _ => ("", Vec::new()),
        };
        Self {
            call: call.to_owned(),
            names,
            method: request.method.clone(),
            path: path.to_owned(),
            query: form(query).collect(),
            body: serde_json::from_str(&request.body).unwrap_or_default(),
            if_none_match: request.header("if-none-match").map(str::to_owned),
            host: request.header("host").unwrap_or_default().to_owned(),
        }
    }
}
