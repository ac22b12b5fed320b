//! EC2, as far as volumes go, and the metadata service of one of its instances.

mod actions;
pub(super) mod xml;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::cloud::Cloud;
use super::dialect::{Calls, Dialect};
use super::faults::Fault;
use super::server::{Outcome, Reply, Request, form};
use super::signature::{self, Key};
use super::{Fake, Settings, cloud};
use crate::clock::{Clock, whole_ms};

/// The region of the fake.
pub const REGION: &str = "eu-north-1";
/// The zone of its instance.
pub const ZONE: &str = "eu-north-1a";
/// Its instance.
pub const INSTANCE: &str = "i-0123456789abcdef0";
/// The account that owns the instance.
const ACCOUNT: &str = "123456789012";
/// How long credentials of the role last.
const ROLE_LIFE: Duration = Duration::from_secs(6 * 3600);
/// How long before these end there are new ones.
const RENEWAL: Duration = Duration::from_secs(600);
/// How long a client token is remembered.
const TOKEN_LIFE: Duration = Duration::from_secs(12 * 3600);
/// Answers of XML.
const XML: &str = "text/xml;charset=UTF-8";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What was called, such as `DescribeVolumes`.
    pub action: String,
    /// All parameters but `Action` and `Version`.
    pub parameters: BTreeMap<String, String>,
}

/// A refusal: a code and a message.
type Refused = (&'static str, String);

/// What is behind the dialect.
pub struct Ec2 {
    cloud: Cloud,
    /// Client tokens: what was asked for with them, the volume, and when.
    tokens: BTreeMap<String, (BTreeMap<String, String>, String, u64)>,
    keys: BTreeMap<String, Key>,
    role: Option<String>,
    metadata_tokens: BTreeSet<String>,
    issued: u64,
    instance_type: String,
    ahead_s: i64,
    is_key_denied: bool,
    /// Keys of tags that the policy lets nobody set on a volume that is there.
    denied_tags: BTreeSet<&'static str>,
    calls: Calls<Sent>,
}

/// A fake of EC2 on loopback.
pub type FakeEc2 = Fake<Ec2>;

impl FakeEc2 {
    /// A static access key of an account: its id and secret.
    #[must_use]
    pub fn key(&self, account: &str) -> (String, String) {
        self.state().issue(account, None)
    }

    /// The account that owns the instance.
    #[must_use]
    pub const fn account() -> &'static str {
        ACCOUNT
    }

    /// The role has new credentials, and the former ones end now.
    pub fn rotate(&self) {
        let mut state = self.state();
        let now_ms = state.now_ms();
        let former = state.role.clone();
        if let Some(key) = former.and_then(|id| state.keys.get_mut(&id)) {
            key.ends_ms = Some(now_ms);
        }
        state.rotate();
    }

    /// The instance has no role any more.
    pub fn take_role(&self) {
        self.state().role = None;
    }

    /// By how many seconds its clock is ahead of the test's.
    pub fn set_ahead_s(&self, ahead_s: i64) {
        self.state().ahead_s = ahead_s;
    }

    /// Whether nobody may use the key that volumes are encrypted with: they are accepted, and taken back without a word.
    pub fn deny_key(&self, is_denied: bool) {
        self.state().is_key_denied = is_denied;
    }

    /// The policy lets nobody set this tag on a volume that is there.
    pub fn deny_tag(&self, key: &'static str) {
        self.state().denied_tags.insert(key);
    }

    /// What kind of instance it is.
    pub fn set_instance_type(&self, name: &str) {
        name.clone_into(&mut self.state().instance_type);
    }

    /// Another instance calls from now on. The former one is left in this state, such as `terminated`; `None`: nothing is known of it any more.
    pub fn replace_instance(&self, instance: &str, former: Option<&'static str>) {
        self.state().cloud.replace_machine(instance, former);
    }

    /// The zone in which the instance is.
    pub fn set_zone(&self, name: &str) {
        name.clone_into(&mut self.state().cloud.machine.1);
    }

    /// Attachments under this device name hang.
    pub fn hang(&self, device: &str) {
        self.state().cloud.hung.insert(device.to_owned());
    }

    /// The volumes that are attached to the instance, for whoever plugs disks into a guest.
    #[must_use]
    pub fn attached(&self) -> BTreeSet<String> {
        self.state().cloud.attached()
    }
}

impl Dialect for Ec2 {
    type Call = Sent;
    type Done = String;
    type Refused = Refused;

    const KIND: &'static str = XML;

    fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let mut ec2 = Self {
            cloud: Cloud::new(clock, settings, (INSTANCE.to_owned(), ZONE.to_owned())),
            tokens: BTreeMap::new(),
            keys: BTreeMap::new(),
            role: None,
            metadata_tokens: BTreeSet::new(),
            issued: 0,
            instance_type: "m7i.large".to_owned(),
            ahead_s: 0,
            is_key_denied: false,
            denied_tags: BTreeSet::new(),
            calls: Calls::default(),
        };
        ec2.rotate();
        ec2
    }

    fn cloud(&mut self) -> &mut Cloud {
        &mut self.cloud
    }

    fn calls(&mut self) -> &mut Calls<Sent> {
        &mut self.calls
    }

    fn answer(&mut self, request: &Request) -> Outcome {
        if request.path.starts_with("/latest/") {
            if self.calls.is_metadata_gone {
                return Outcome::Nothing;
            }
            let (status, text) = self.metadata(request);
            return Outcome::Answer(self.other(status, "text/plain", text.into()));
        }
        let mut parameters: BTreeMap<String, String> = form(&request.body).collect();
        let (action, version) = (parameters.remove("Action"), parameters.remove("Version"));
        let sent = Sent { action: action.unwrap_or_default(), parameters };
        let is_query = request.method == "POST" && request.path == "/" && version.as_deref() == Some("2016-11-15");
        if !is_query {
            let refused = ("InvalidAction", "no call of this version".to_owned());
            return Outcome::Answer(self.refuse(&refused));
        }
        self.meet(request, sent)
    }

    fn name(sent: &Sent) -> &str {
        &sent.action
    }

    fn permit(&self, request: &Request, sent: &Sent) -> Result<(), Refused> {
        let key = signature::verify(request, &self.keys, REGION, self.now_ms() / 1000);
        let key = key.map_err(|refusal| match refusal {
            signature::Refusal::Ended => ("RequestExpired", "Request has expired.".to_owned()),
            signature::Refusal::Unknown | signature::Refusal::Signature | signature::Refusal::Time => {
                ("AuthFailure", CREDENTIALS.to_owned())
            }
        })?;
        let is_denied_tag = |value: &String| self.denied_tags.contains(value.as_str());
        let has_denied_tag = sent.action == "CreateTags" && sent.parameters.values().any(is_denied_tag);
        if self.calls.denied.contains(&*sent.action) || has_denied_tag {
            let said = "You are not authorized to perform this operation. Encoded authorization failure message: kZdy9";
            return Err(("UnauthorizedOperation", said.to_owned()));
        }
        // Another account sees nothing of this one.
        if key.account != ACCOUNT {
            let said = |what: &str| format!("The {what} does not exist");
            return Err(match sent.parameters.get("InstanceId.1") {
                Some(id) => ("InvalidInstanceID.NotFound", said(&format!("instance ID '{id}'"))),
                None => ("InvalidVolume.NotFound", said("volume")),
            });
        }
        Ok(())
    }

    fn act(&mut self, sent: &Sent) -> Result<String, Refused> {
        self.carry_out(sent)
    }

    fn reply(&self, sent: &Sent, answer: Result<String, Refused>) -> Reply {
        match answer {
            Ok(inner) => self.other(200, XML, xml::answer(&sent.action, &inner).into()),
            Err(refused) => self.refuse(&refused),
        }
    }

    fn other(&self, status: u16, kind: &'static str, body: Vec<u8>) -> Reply {
        Reply { status, kind, body, headers: vec![("date", xml::http_time(self.now_ms()))] }
    }

    fn refusal(fault: Fault) -> Option<Refused> {
        match fault {
            Fault::Throttled => Some(("RequestLimitExceeded", "Request limit exceeded.".to_owned())),
            Fault::Unavailable => Some(("InternalError", "An internal error has occurred".to_owned())),
            Fault::Refused => Some(("AuthFailure", CREDENTIALS.to_owned())),
            _ => None,
        }
    }
}

impl Ec2 {
    fn now_ms(&self) -> u64 {
        let now_s = self.cloud.now_ms() / 1000;
        now_s.saturating_add_signed(self.ahead_s) * 1000
    }

    fn issue(&mut self, account: &str, ends_ms: Option<u64>) -> (String, String) {
        self.issued += 1;
        let id = format!("A{}IDFAKE{:010}", if ends_ms.is_some() { "S" } else { "K" }, self.issued);
        let secret = format!("swordfish/{:040x}", self.issued);
        let token = ends_ms.map(|_| format!("swordfish-token-{}==", self.issued));
        let key = Key { secret: secret.clone(), token, ends_ms, account: account.to_owned() };
        self.keys.insert(id.clone(), key);
        (id, secret)
    }

    fn rotate(&mut self) {
        let ends_ms = self.cloud.now_ms() + whole_ms(ROLE_LIFE);
        self.role = Some(self.issue(ACCOUNT, Some(ends_ms)).0);
    }

    /// Gives the role new credentials before the former ones end, as the metadata service does.
    fn renew(&mut self) {
        let soon_ms = self.cloud.now_ms() + whole_ms(RENEWAL);
        let ends_ms = self.role.as_ref().and_then(|id| self.keys.get(id)?.ends_ms);
        if ends_ms.is_some_and(|ends_ms| ends_ms <= soon_ms) {
            self.rotate();
        }
    }

    fn refuse(&self, (code, said): &Refused) -> Reply {
        let status = match *code {
            "RequestLimitExceeded" => 503,
            "InternalError" => 500,
            "AuthFailure" => 401,
            "UnauthorizedOperation" => 403,
            _ => 400,
        };
        self.other(status, XML, xml::refusal(code, said).into())
    }

    /// The metadata service, in its second version.
    fn metadata(&mut self, request: &Request) -> (u16, String) {
        if request.method == "PUT" && request.path == "/latest/api/token" {
            let ttl = request.header("x-aws-ec2-metadata-token-ttl-seconds").and_then(|ttl| ttl.parse::<u32>().ok());
            if !ttl.is_some_and(|ttl| (1..=21600).contains(&ttl)) {
                return (400, String::new());
            }
            self.issued += 1;
            let token = format!("swordfish-metadata-{}", self.issued);
            self.metadata_tokens.insert(token.clone());
            return (200, token);
        }
        if !request.header("x-aws-ec2-metadata-token").is_some_and(|token| self.metadata_tokens.contains(token)) {
            return (401, String::new());
        }
        self.renew();
        let roles = "/latest/meta-data/iam/security-credentials/";
        match (&*request.path, self.role.as_ref().and_then(|id| Some((id, self.keys.get(id)?)))) {
            ("/latest/dynamic/instance-identity/document", _) => {
                let document = serde_json::json!({
                    "accountId": ACCOUNT, "availabilityZone": self.cloud.machine.1, "instanceId": self.cloud.machine.0,
                    "instanceType": self.instance_type, "region": REGION, "version": "2017-09-30",
                });
                (200, document.to_string())
            }
            (path, Some(_)) if path == roles => (200, "surgetank".to_owned()),
            (path, Some((id, key))) if path.strip_prefix(roles) == Some("surgetank") => {
                let document = serde_json::json!({
                    "Code": "Success", "LastUpdated": xml::time(self.cloud.now_ms()), "Type": "AWS-HMAC", "AccessKeyId": id,
                    "SecretAccessKey": key.secret, "Token": key.token, "Expiration": key.ends_ms.map(xml::time),
                });
                (200, document.to_string())
            }
            _ => (404, String::new()),
        }
    }
}

/// What EC2 says of credentials and signatures that it does not accept, and of clocks that differ.
const CREDENTIALS: &str = "AWS was not able to validate the provided access credentials";
