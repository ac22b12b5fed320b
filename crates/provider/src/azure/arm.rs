//! Calls of Azure's Resource Manager in one resource group, and the operations that they begin.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::http::{Method, StatusCode, Uri};

use super::AzureConfig;
use super::errors::{Failure, Refusal};
use super::login::{Here, Login};
use super::machine::Machine;
use crate::ProviderError;
use crate::clock::Clock;
use crate::cloud::http::{Answer, Call, Client};
use crate::cloud::place;
use crate::cloud::token::Token;

/// What asks, for sentences.
const SERVICE: &str = "Azure";
/// Where it is.
const ENDPOINT: &str = "https://management.azure.com";
/// The versions of the interface: of disks, and of machines. The second one is the first with `attachDetachDataDisks`.
const DISKS: &str = "api-version=2024-03-02";
const MACHINES: &str = "api-version=2024-03-01";
/// More pages of a list than this, and more disks of ours, come from no resource group that surgetank can serve.
const PAGES_MAX: usize = 1000;
const DISKS_MAX: usize = 100_000;

/// Where volumes are. Azure compares names without regard to case: both are in lower case here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The subscription.
    pub subscription: String,
    /// Its resource group, with this machine and its disks.
    pub resource_group: String,
}

impl Place {
    /// The id of a disk, or of a machine (`kind`).
    #[must_use]
    pub fn id(&self, kind: &str, name: &str) -> String {
        let Self { subscription, resource_group } = self;
        let name = name.to_ascii_lowercase();
        format!(
            "/subscriptions/{subscription}/resourcegroups/{resource_group}/providers/microsoft.compute/{kind}/{name}"
        )
    }

    /// The path of what the resource group has. All signs of the names may stand in a URL as they are.
    fn path(&self, of: &str) -> String {
        let Self { subscription, resource_group } = self;
        format!("/subscriptions/{subscription}/resourceGroups/{resource_group}/providers/Microsoft.Compute/{of}")
    }
}

/// Where the end of an operation is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    path: String,
    /// It is told as a status. Else the result is told, or why there is none.
    has_status: bool,
}

/// A change that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Where its end is told; `None`: it has ended, or nobody tells.
    pub operation: Option<Operation>,
    /// There is nothing to change.
    pub is_vain: bool,
}

/// Whether an operation cannot be read, be it that the cloud says so or a gateway that has forgotten the way.
fn is_hidden(status: StatusCode) -> bool {
    matches!(status.as_u16(), 403 | 404 | 410)
}

/// What is told of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Running,
    /// It has ended.
    Ended(Result<(), Refusal>),
    /// Nobody tells yet or any more, or may, or tells clearly.
    Hidden,
}

impl Progress {
    /// What an answer tells of an operation; `None`: nothing, and nothing is refused for good.
    fn of(operation: &Operation, answer: &Answer) -> Option<Self> {
        let (status, body) = (answer.status.as_u16(), &answer.body);
        if !answer.status.is_success() {
            if is_hidden(answer.status) {
                return Some(Self::Hidden);
            }
            // Of a result it is the reason why there is none. Of a status it is why that is not told.
            let refusal = Refusal::of_answer(answer).filter(|refusal| !refusal.is_passing())?;
            return Some(if operation.has_status { Self::Hidden } else { Self::Ended(Err(refusal)) });
        }
        if !body.is_object() && !body.is_null() {
            return None;
        }
        let said = body["status"].as_str();
        let says = |word: &str| said.is_some_and(|said| said.eq_ignore_ascii_case(word));
        Some(match said {
            _ if status == 202 => Self::Running,
            _ if says("Failed") || says("Canceled") || !body["error"].is_null() => {
                Self::Ended(Err(Refusal::of_operation(body)))
            }
            _ if says("Succeeded") => Self::Ended(Ok(())),
            Some(_) => Self::Running,
            None if operation.has_status => Self::Hidden,
            None => Self::Ended(Ok(())),
        })
    }
}

/// A client.
pub struct Arm {
    client: Client,
    login: Login,
    endpoint: String,
    /// What the configuration says of the place.
    subscription: Option<String>,
    resource_group: Option<String>,
    instance: Option<String>,
    place_file: Option<PathBuf>,
    place: OnceLock<Place>,
    /// What the metadata service says.
    told: OnceLock<Here>,
}

impl std::fmt::Debug for Arm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arm").field("login", &self.login).field("place", &self.place).finish_non_exhaustive()
    }
}

/// The path and the query of a URL that was answered. Asked at the endpoint, it sends the token nowhere else.
fn path_of(url: &str) -> Option<String> {
    let uri = url.parse::<Uri>().ok()?;
    let path = uri.path_and_query()?.as_str();
    path.get(.."/subscriptions/".len()).filter(|head| head.eq_ignore_ascii_case("/subscriptions/"))?;
    Some(path.to_owned())
}

impl Arm {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// `Invalid`: the configuration.
    pub fn new(config: &AzureConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        let client = Client::new(config.timeout.0, config.ca_file.as_deref()).map_err(ProviderError::Invalid)?;
        let endpoint = config.endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/').to_owned();
        Ok(Self {
            client,
            login: Login::new(config, clock)?,
            endpoint,
            subscription: config.subscription.clone(),
            resource_group: config.resource_group.clone(),
            instance: config.instance.clone(),
            place_file: config.place_file.clone(),
            place: OnceLock::new(),
            told: OnceLock::new(),
        })
    }

    fn told(&self) -> Result<&Here, ProviderError> {
        if let Some(told) = self.told.get() {
            return Ok(told);
        }
        let told = self.login.here()?;
        Ok(self.told.get_or_init(|| told))
    }

    /// Where volumes are: as at the first use.
    pub fn place(&self) -> Result<&Place, ProviderError> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        let or_told = |written: &Option<String>, told: fn(&Here) -> &String| match written {
            Some(written) => Ok(written.to_ascii_lowercase()),
            None => Ok::<_, ProviderError>(told(self.told()?).to_ascii_lowercase()),
        };
        let now = Place {
            subscription: or_told(&self.subscription, |told| &told.subscription)?,
            resource_group: or_told(&self.resource_group, |told| &told.resource_group)?,
        };
        if let Some(file) = &self.place_file {
            let first = place::first(file, &now)?;
            let parts = [
                ("the subscription", &*first.subscription, &*now.subscription),
                ("the resource group", &first.resource_group, &now.resource_group),
            ];
            place::check("the configuration, or the metadata service, now leads", &parts, Some(file))?;
        }
        Ok(self.place.get_or_init(|| now))
    }

    /// The name of the machine that this is.
    pub fn instance(&self) -> Result<&str, ProviderError> {
        match &self.instance {
            Some(instance) => Ok(instance),
            None => Ok(&self.told()?.instance),
        }
    }

    /// Asks at a path, and reads what is no refusal.
    fn ask_at(
        &self,
        method: &Method,
        path: &str,
        condition: Option<(&'static str, &str)>,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        read(self.send(method, path, condition, body, |_| false)?)
    }

    /// Asks at a path, with the present token, and once more with a new one if it is refused. Some statuses may say enough, whatever
    /// comes with them.
    fn send(
        &self,
        method: &Method,
        path: &str,
        condition: Option<(&'static str, &str)>,
        body: Option<&Value>,
        says_enough: impl Fn(StatusCode) -> bool,
    ) -> Result<Answer, Failure> {
        let url = format!("{}{path}", self.endpoint);
        let ask = |token: &Token| {
            let authorization = [("Authorization", token.header.reveal())];
            let headers: Vec<_> = authorization.into_iter().chain(condition).collect();
            let call = Call { service: SERVICE, method: method.clone(), url: &url, headers: &headers, body };
            self.client.call_for(&call, &says_enough)
        };
        let token = self.login.token(None)?;
        let answer = ask(&token)?;
        if answer.status.as_u16() != 401 {
            return Ok(answer);
        }
        Ok(ask(&*self.login.token(Some(&token))?)?)
    }

    /// Reads what the resource group has.
    fn get(&self, of: &str, version: &str) -> Result<Value, Failure> {
        let path = format!("{}?{version}", self.place()?.path(of));
        Ok(self.ask_at(&Method::GET, &path, None, None)?.body)
    }

    fn begin(
        &self,
        method: &Method,
        of: &str,
        condition: Option<(&'static str, &str)>,
        body: Option<&Value>,
    ) -> Result<Accepted, Failure> {
        let version = if of.starts_with("disks/") { DISKS } else { MACHINES };
        let path = format!("{}?{version}", self.place()?.path(of));
        let answer = self.ask_at(method, &path, condition, body)?;
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).and_then(path_of);
        // Both lead to the same operation. The first one tells more of it, and may come with 200 as well, though it has only begun.
        let told = header("azure-asyncoperation").map(|path| Operation { path, has_status: true });
        let location = || header("location").filter(|_| matches!(answer.status.as_u16(), 201 | 202));
        let operation = told.or_else(|| location().map(|path| Operation { path, has_status: false }));
        // Whoever deletes what is not there is answered so.
        let is_vain = *method == Method::DELETE && answer.status.as_u16() == 204;
        Ok(Accepted { operation, is_vain })
    }

    /// A disk as it is described.
    pub fn disk(&self, name: &str) -> Result<Value, Failure> {
        self.get(&format!("disks/{name}"), DISKS)
    }

    /// Makes a disk. Azure has conditions for machines, and says nothing of disks: where it has them, no other disk of the name is changed.
    pub fn create(&self, name: &str, body: &Value) -> Result<Accepted, Failure> {
        self.begin(&Method::PUT, &format!("disks/{name}"), Some(("If-None-Match", "*")), Some(body))
    }

    /// Changes a disk.
    pub fn update(&self, name: &str, body: &Value) -> Result<Accepted, Failure> {
        self.begin(&Method::PATCH, &format!("disks/{name}"), None, Some(body))
    }

    /// Deletes a disk.
    pub fn delete(&self, name: &str) -> Result<Accepted, Failure> {
        self.begin(&Method::DELETE, &format!("disks/{name}"), None, None)
    }

    /// Attaches disks to this machine, or detaches them.
    pub fn attach_or_detach(&self, body: &Value) -> Result<Accepted, Failure> {
        let of = format!("virtualMachines/{}/attachDetachDataDisks", self.instance()?);
        self.begin(&Method::POST, &of, None, Some(body))
    }

    /// This machine, with the disks that it has or is to have.
    pub fn machine(&self) -> Result<Machine, ProviderError> {
        self.machine_of(self.instance()?).map_err(Failure::general)
    }

    /// The machine of this name.
    pub fn machine_of(&self, name: &str) -> Result<Machine, Failure> {
        let body = self.get(&format!("virtualMachines/{name}"), MACHINES)?;
        Ok(Machine::read(&body, name)?)
    }

    /// What has become of an operation.
    pub fn operation(&self, operation: &Operation) -> Result<Progress, Failure> {
        let answer = self.send(&Method::GET, &operation.path, None, None, is_hidden)?;
        match Progress::of(operation, &answer) {
            Some(progress) => Ok(progress),
            // Whatever else answers has said nothing.
            None => read(answer).map(|_| Progress::Hidden),
        }
    }

    /// The disks of the resource group that pass, page by page: Azure filters by nothing, and lists what others have there as well.
    pub fn disks(&self, passes: impl Fn(&Value) -> bool) -> Result<Vec<Value>, ProviderError> {
        let odd = |what: &str| {
            ProviderError::Transient(format!("{SERVICE}'s list of disks {what}: check what answers for it"))
        };
        let (mut all, mut path) = (Vec::new(), format!("{}?{DISKS}", self.place()?.path("disks")));
        for _ in 0..PAGES_MAX {
            let mut body = self.ask_at(&Method::GET, &path, None, None).map_err(Failure::general)?.body;
            match body["value"].take() {
                Value::Array(disks) => all.extend(disks.into_iter().filter(&passes)),
                _ => return Err(odd("lists none")),
            }
            if all.len() > DISKS_MAX {
                return Err(odd(&format!("has more than {DISKS_MAX} of ours")));
            }
            match &body["nextLink"] {
                Value::Null => return Ok(all),
                Value::String(link) if link.is_empty() => return Ok(all),
                link => path = link.as_str().and_then(path_of).ok_or_else(|| odd("goes on nowhere"))?,
            }
        }
        Err(odd(&format!("does not end after {PAGES_MAX} pages")))
    }
}

/// An answer of Azure's that is no refusal.
fn read(answer: Answer) -> Result<Answer, Failure> {
    // Deletions and accepted changes are answered without a body as well.
    if answer.status.is_success() && (answer.body.is_object() || answer.body.is_null()) {
        return Ok(answer);
    }
    Err(Refusal::of_answer(&answer)
        .map_or_else(|| answer.foreign(SERVICE, "identity", "[provider.azure]").into(), Failure::Refused))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use ureq::http::HeaderMap;

    use super::*;

    #[test]
    fn urls_that_are_answered_lead_to_the_endpoint_alone() {
        let path = "/subscriptions/s/providers/Microsoft.Compute/locations/l/DiskOperations/1?api-version=2&t=a%20b";
        for url in
            [format!("https://management.azure.com{path}"), format!("http://elsewhere.example{path}"), path.to_owned()]
        {
            assert_eq!(path_of(&url).as_deref(), Some(path));
        }
        for url in ["", "https://management.azure.com", "https://x/other", "a b", "*"] {
            assert_eq!(path_of(url), None, "{url}");
        }
    }

    #[test]
    fn ids_are_compared_without_regard_to_case() {
        let place = Place { subscription: "s".to_owned(), resource_group: "g".to_owned() };
        assert_eq!(place.id("disks", "A-1"), "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/disks/a-1");
    }

    #[test]
    fn only_a_clear_word_of_an_operation_is_an_end() {
        let progress = |has_status: bool, status: u16, body: Value| {
            let operation = Operation { path: String::new(), has_status };
            let (status, headers) = (StatusCode::from_u16(status).unwrap(), HeaderMap::new());
            Progress::of(&operation, &Answer { status, headers, body })
        };
        let (running, ended, hidden) = (Some(Progress::Running), Some(Progress::Ended(Ok(()))), Some(Progress::Hidden));
        let error = json!({ "code": "Conflict", "message": "m" });
        for has_status in [true, false] {
            assert_eq!(progress(has_status, 202, Value::Null), running);
            assert_eq!(progress(has_status, 200, json!({ "status": "InProgress" })), running);
            for word in ["Succeeded", "succeeded", "SUCCEEDED"] {
                assert_eq!(progress(has_status, 200, json!({ "status": word })), ended);
            }
            for body in [
                json!({ "status": "Failed" }),
                json!({ "status": "canceled" }),
                json!({ "status": "Succeeded", "error": error }),
                json!({ "error": error }),
            ] {
                assert!(matches!(progress(has_status, 200, body), Some(Progress::Ended(Err(_)))));
            }
            for (status, body) in [(404, Value::Null), (410, json!("gone")), (403, json!({ "error": error }))] {
                assert_eq!(progress(has_status, status, body), hidden);
            }
            for (status, body) in
                [(200, json!([])), (502, Value::Null), (503, json!({ "error": error })), (409, json!({}))]
            {
                assert_eq!(progress(has_status, status, body), None, "{status}");
            }
        }
        // A result has no status, and 204 has no body.
        for body in [Value::Null, json!({}), json!({ "properties": {} })] {
            assert_eq!(
                (progress(true, 200, body.clone()), progress(false, 200, body)),
                (hidden.clone(), ended.clone())
            );
        }
        assert_eq!(progress(true, 409, json!({ "error": error })), hidden);
        assert!(matches!(progress(false, 409, json!({ "error": error })), Some(Progress::Ended(Err(_)))));
    }
}
