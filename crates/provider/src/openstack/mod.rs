//! OpenStack: volumes of Cinder, which Nova attaches to the server that this machine is.
//!
//! Not yet run on a real cloud, but against Keystone, Cinder and Nova themselves (`tests/openstack`).

mod account;
mod cinder;
mod config;
mod credentials;
mod errors;
mod keystone;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};
use ureq::http::{Method, StatusCode};

pub use config::OpenStackConfig;

use crate::account::takes_over;
use crate::clock::{Clock, SystemClock};
use crate::cloud::http::{Answer, Call, Client, encoded, sentence};
use crate::cloud::known::Known;
use crate::cloud::looks::Looks;
use crate::cloud::rates::Turns;
use crate::cloud::{check_url, metadata};
use crate::{
    Change, CreateVolume, Home, Lag, Provider, ProviderConfig, ProviderError, Tags, Transition, Verb,
    VolumeDescription, VolumeId, VolumeState, decide_growth, tag,
};
use cinder::Volume;
use keystone::{Keystone, Session};

/// Cinder's interface in which volumes grow while they are attached: Pike.
const CINDER_VERSION: (&str, &str) = ("OpenStack-API-Version", "volume 3.42");
/// Nova's in which an attachment says whether it is deleted with its server: Train. Later ones (2.101) answer before Cinder knows
/// of the attachment, and the volume would seem to be available meanwhile.
const NOVA_VERSION: (&str, &str) = ("OpenStack-API-Version", "compute 2.79");
/// More pages of a list than this come from no project that surgetank can serve.
const PAGES_MAX: usize = 1000;

/// The services that are asked.
#[derive(Clone, Copy, Debug)]
enum Service {
    Cinder,
    Nova,
}

impl Service {
    const fn name(self) -> &'static str {
        match self {
            Self::Cinder => "Cinder",
            Self::Nova => "Nova",
        }
    }
}

/// Whether an id is one of OpenStack's: what is none is no volume's, and is never put into a path.
fn is_id(id: &str) -> bool {
    id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
}

/// The names whose volumes this process is creating.
static CREATING: (Mutex<BTreeSet<String>>, Condvar) = (Mutex::new(BTreeSet::new()), Condvar::new());

/// Keeps other calls of this process from creating a volume of the same name: Cinder would make both. Those of other processes
/// are met by the election alone.
struct Creating(String);

impl Creating {
    /// Waits until nobody else does.
    fn of(name: &str) -> Self {
        let (names, ended) = &CREATING;
        let names = names.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ended.wait_while(names, |names| names.contains(name));
        waited.unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        Self(name.to_owned())
    }
}

impl Drop for Creating {
    fn drop(&mut self) {
        CREATING.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        CREATING.1.notify_all();
    }
}

/// Volumes of an OpenStack cloud.
#[derive(Debug)]
pub struct OpenStackProvider {
    config: OpenStackConfig,
    client: Client,
    keystone: Keystone,
    server: OnceLock<String>,
    turns: Turns,
    looks: Looks,
    /// How volumes were described a moment ago, for the change that follows.
    seen: Known<(), Volume>,
}

impl OpenStackProvider {
    /// Prepares the client, and asks nobody.
    ///
    /// # Errors
    /// `Invalid`: the configuration, or the credentials.
    pub fn open(config: OpenStackConfig) -> Result<Self, ProviderError> {
        config.check().map_err(ProviderError::Invalid)?;
        let client = Client::new(config.timeout.0, config.ca_file.as_deref()).map_err(ProviderError::Invalid)?;
        let source = config.source();
        // A command is left alone until it is needed: it may ask its user something.
        if !matches!(source, credentials::Source::Command(_)) {
            let credentials = source.read();
            let checked = credentials.and_then(|found| check_url("Keystone", &found.auth_url, config.allow_plain));
            checked.map_err(ProviderError::Invalid)?;
        }
        let keystone = Keystone::new(client.clone(), source, config.allow_plain, config.place_file.clone());
        let turns = Turns::new("its cloud", "[provider.openstack]", config.reads_per_s, config.writes_per_s);
        let server = config.server.clone().map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self { config, client, keystone, server, turns, looks: Looks::default(), seen: Known::default() })
    }

    /// The server that this machine is.
    fn here(&self) -> Result<&str, ProviderError> {
        if let Some(server) = self.server.get() {
            return Ok(server);
        }
        let document = metadata::read(&self.config.metadata_url, "/openstack/latest/meta_data.json").map_err(|error| {
            ProviderError::Transient(format!(
                "which server this machine is cannot be told ({error}): write server = \"ID\" in [provider.openstack] if there is no metadata service"
            ))
        })?;
        let server = keystone::server_id(&document)?;
        Ok(self.server.get_or_init(|| server))
    }

    /// Asks with the present token, and once more with a new one if it is refused.
    fn ask(&self, service: Service, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, ProviderError> {
        let session = self.keystone.session(None)?;
        let answer = self.ask_in(&session, service, method.clone(), path, body)?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let session = self.keystone.session(Some(&session))?;
        self.ask_in(&session, service, method, path, body)
    }

    fn ask_in(
        &self,
        session: &Arc<Session>,
        service: Service,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, ProviderError> {
        let (base, version) = match service {
            Service::Cinder => (&session.place.cinder, CINDER_VERSION),
            Service::Nova => (&session.place.nova, NOVA_VERSION),
        };
        let url = format!("{base}{path}");
        let headers = [("X-Auth-Token", session.token.reveal()), version];
        self.client.call(&Call { service: service.name(), method, url: &url, headers: &headers, body })
    }

    /// `None`: Cinder says that there is no such volume.
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>, ProviderError> {
        if !is_id(&id.0) {
            return Ok(None);
        }
        let changes = self.seen.changes();
        let answer = self.ask(Service::Cinder, Method::GET, &format!("/volumes/{}", id.0), None)?;
        if !answer.status.is_success() {
            return match errors::of_volume("Cinder", &answer, id, VolumeState::Creating) {
                ProviderError::NotFound(_) => {
                    self.seen.forget(&id.0);
                    Ok(None)
                }
                ProviderError::Conflict { reason, .. } => Err(ProviderError::Transient(reason)),
                error => Err(error),
            };
        }
        let volume = Volume::read(&answer.body["volume"])?;
        if volume.id == id.0 {
            self.seen.told(&id.0, volume.clone(), SystemClock.now_ms(), changes);
            return Ok(Some(volume));
        }
        Err(ProviderError::Transient(format!("Cinder was asked for the volume {} and describes {}", id.0, volume.id)))
    }

    /// All volumes that a filter of Cinder's lets pass, page by page. It lets pass too many in some clouds: who asks compares.
    fn all(&self, filter: &str) -> Result<Vec<Volume>, ProviderError> {
        let mut volumes: Vec<Volume> = Vec::new();
        let mut marker = String::new();
        for _ in 0..PAGES_MAX {
            // Its links to further pages may name a host that only the cloud reaches.
            let path = format!("/volumes/detail?{filter}{marker}");
            let answer = self.ask(Service::Cinder, Method::GET, &path, None)?;
            if answer.status == StatusCode::NOT_FOUND && !marker.is_empty() {
                return Err(ProviderError::Transient(
                    "a volume at which a page of Cinder's list begins is deleted: it is to be read anew".to_owned(),
                ));
            }
            if !answer.status.is_success() {
                return Err(errors::error("Cinder", &answer));
            }
            let Some(page) = answer.body["volumes"].as_array() else {
                return Err(ProviderError::Transient(
                    "Cinder lists no volumes in its list of volumes: check what answers for it".to_owned(),
                ));
            };
            for body in page {
                volumes.push(Volume::read(body)?);
            }
            let is_next = |link: &Value| link["rel"] == "next";
            match page.last() {
                Some(_) if answer.body["volumes_links"].as_array().is_some_and(|links| links.iter().any(is_next)) => {
                    marker = format!("&marker={}", volumes.last().map_or("", |volume| &volume.id));
                }
                _ => {
                    // One that was made meanwhile moves the pages.
                    volumes.sort_by(|a, b| a.id.cmp(&b.id));
                    volumes.dedup_by(|a, b| a.id == b.id);
                    return Ok(volumes);
                }
            }
        }
        Err(ProviderError::Transient(format!("Cinder's list of volumes does not end after {PAGES_MAX} pages")))
    }

    fn described(&self, volume: &Volume) -> Result<VolumeDescription, ProviderError> {
        let here = if volume.has_attachment() { self.here()? } else { "" };
        Ok(volume.describe(here))
    }

    /// The volume of a token, after the others of that token were deleted as far as that is possible now.
    fn elected(&self, name: &str, tags: &Tags, made: Option<&Volume>) -> Result<Option<Volume>, ProviderError> {
        let mut volumes = self.all(&format!("name={}", encoded(name)))?;
        // Lists may lag behind.
        if let Some(made) = made.filter(|made| volumes.iter().all(|volume| volume.id != made.id)) {
            volumes.push(made.clone());
        }
        let Some((stays, others)) = cinder::elect(volumes, name, tags) else { return Ok(None) };
        for id in others {
            // What cannot be deleted is found again by the sweep.
            match self.ask(Service::Cinder, Method::DELETE, &format!("/volumes/{}", id.0), None) {
                Ok(answer) if answer.status.is_success() => {
                    tracing::info!("the volume {} was made a second time for {name} and is deleted", id.0);
                }
                answer => {
                    let why = answer.map_or_else(|error| error, |answer| errors::error("Cinder", &answer));
                    tracing::warn!(
                        "the volume {} was made a second time for {name} and is not deleted: {}",
                        id.0,
                        sentence(&why.to_string())
                    );
                }
            }
        }
        Ok(Some(stays))
    }

    /// Asks for a change of a volume as it was found; `again`: what was told a moment ago has not served.
    fn change_found(&self, id: &VolumeId, transition: Transition, again: bool) -> Result<Change, ProviderError> {
        let (found, is_recent) = self.seen.recent_or(&id.0, SystemClock.now_ms(), |_| !again, || self.find(id))?;
        let Some(volume) = found else { return transition.decide(id, None) };
        let state = volume.state();
        let conflict = |reason: String| Err(ProviderError::Conflict { id: id.clone(), state, reason });
        let elsewhere = if volume.has_attachment() { volume.elsewhere(self.here()?) } else { None };
        let decided = match elsewhere {
            Some(server) if transition != Transition::Delete => {
                conflict(format!("the server {server} has it: detach it there"))
            }
            _ => transition.decide(id, Some(state)),
        };
        match decided {
            Ok(Change::Changed) => {}
            // Nothing is left undone because of what was so a moment ago.
            _ if is_recent => return self.change_found(id, transition, true),
            decided => return decided,
        }
        self.looks.forget(id);
        self.seen.forget(&id.0);
        let changed = self.change(id, transition);
        // What was read meanwhile may be from before.
        self.seen.forget(&id.0);
        let (service, answer) = changed?;
        if answer.status.is_success() {
            // The change is accepted, whether or not this machine can say where the volume was.
            if let Ok(described) = self.described(&volume) {
                let under_way =
                    VolumeDescription { state: transition.under_way(), device: None, disk: None, ..described };
                self.looks.keep(&under_way, SystemClock.now_ms());
            }
            return Ok(Change::Changed);
        }
        // Nova and Cinder refuse what does not fit the volume as it is.
        let does_not_fit =
            matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::CONFLICT);
        if is_recent && does_not_fit {
            return self.change_found(id, transition, true);
        }
        if let Some(remedy) = volume.remedy()
            && matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT)
        {
            let said = errors::message(&answer).unwrap_or_else(|| answer.status.to_string());
            return conflict(format!("{} says: {said} ({remedy})", service.name()));
        }
        match errors::of_volume(service.name(), &answer, id, state) {
            ProviderError::NotFound(_) if transition == Transition::Delete => Ok(Change::Identity),
            error => Err(error),
        }
    }

    /// Asks Nova to attach or detach, or Cinder to delete.
    fn change(&self, id: &VolumeId, transition: Transition) -> Result<(Service, Answer), ProviderError> {
        let (service, method, path, body) = match transition {
            Transition::Attach => {
                // The newest data may be on it when the server is deleted.
                let body = json!({ "volumeAttachment": { "volumeId": id.0, "delete_on_termination": false } });
                let path = format!("/servers/{}/os-volume_attachments", self.here()?);
                (Service::Nova, Method::POST, path, Some(body))
            }
            Transition::Detach => {
                let path = format!("/servers/{}/os-volume_attachments/{}", self.here()?, id.0);
                (Service::Nova, Method::DELETE, path, None)
            }
            Transition::Delete => (Service::Cinder, Method::DELETE, format!("/volumes/{}", id.0), None),
        };
        Ok((service, self.ask(service, method, &path, body.as_ref())?))
    }
}

impl Provider for OpenStackProvider {
    fn home(&self) -> Home {
        Home::Disks
    }

    /// Cinder makes a volume of each request.
    fn create_is_exclusive(&self) -> bool {
        false
    }

    /// Services behind balancers read copies of a database that may be late.
    fn lag(&self) -> Lag {
        Lag::CLOUD
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let (name, gib) = (cinder::name(&request.token)?, cinder::gib(request.size)?);
        self.turns.take(Verb::Create)?;
        let _alone = Creating::of(&name);
        if let Some(volume) = self.elected(&name, &request.tags, None)? {
            volume.check(request, gib)?;
            return Ok((self.described(&volume)?, Change::Identity));
        }
        let body = cinder::wanted(request, &name, gib, self.config.availability_zone.as_deref(), self.here()?);
        let answer = self.ask(Service::Cinder, Method::POST, "/volumes", Some(&body))?;
        if !answer.status.is_success() {
            return Err(errors::error("Cinder", &answer));
        }
        let made = Volume::read(&answer.body["volume"])?;
        // Carried out, whatever is said now: asked again, it is found by its name.
        let unknown = |error: ProviderError| {
            ProviderError::Transient(format!(
                "the volume {} is made, and whether it is alone cannot be told: {error}",
                made.id
            ))
        };
        let stays = self.elected(&name, &request.tags, Some(&made)).map_err(unknown)?.unwrap_or_else(|| made.clone());
        stays.check(request, gib)?;
        let change = if stays.id == made.id { Change::Changed } else { Change::Identity };
        let described = self.described(&stays).map_err(unknown)?;
        self.looks.keep(&described, SystemClock.now_ms());
        Ok((described, change))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.turns.take(transition.into())?;
        self.change_found(id, transition, false)
    }

    /// Where the type's driver can; else Cinder refuses.
    fn grows(&self) -> bool {
        self.config.grow_in_place
    }

    fn grow(&self, id: &VolumeId, size: surgetank_model::Bytes) -> Result<Change, ProviderError> {
        if !self.grows() {
            return Err(ProviderError::Invalid(
                "volumes do not grow in place unless grow_in_place in [provider.openstack] is true".to_owned(),
            ));
        }
        self.turns.take(Verb::Grow)?;
        let volume = self.find(id)?;
        let present = volume.as_ref().map(|volume| (volume.state(), volume.describe("").size));
        if decide_growth(id, present, size)? == Change::Identity || volume.as_ref().is_some_and(Volume::is_extending) {
            return Ok(Change::Identity);
        }
        let body = json!({ "os-extend": { "new_size": cinder::gib(size)? } });
        let answer = self.ask(Service::Cinder, Method::POST, &format!("/volumes/{}/action", id.0), Some(&body))?;
        if answer.status.is_success() {
            return Ok(Change::Changed);
        }
        let state = present.map_or(VolumeState::Creating, |(state, _)| state);
        Err(errors::of_volume("Cinder", &answer, id, state))
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        if let Some(told) = self.looks.recent(id, SystemClock.now_ms()) {
            return Ok(told);
        }
        self.turns.take(Verb::Describe)?;
        let volume = self.find(id)?.ok_or_else(|| ProviderError::NotFound(id.clone()))?;
        let described = self.described(&volume)?;
        self.looks.keep(&described, SystemClock.now_ms());
        Ok(described)
    }

    fn disk_changed(&self) {
        self.looks.disk_changed(SystemClock.now_ms());
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.turns.take(Verb::List)?;
        // The filter is a literal of Python's, in which other texts may mean something else; without one all volumes are read.
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte));
        let filter = if is_plain(key) && is_plain(value) {
            format!("metadata={}", encoded(&json!({ key: value }).to_string()))
        } else {
            String::new()
        };
        let volumes = self.all(&filter)?;
        let found = volumes.iter().filter(|volume| volume.metadata.get(key).is_some_and(|there| there == value));
        found.map(|volume| self.described(volume)).collect()
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.turns.take(Verb::SetTag)?;
        let mut marks = BTreeMap::new();
        if takes_over(key, value) {
            marks.insert(tag::HOST, self.here()?);
        }
        let has = |volume: &Volume| {
            let is = |key: &str| volume.metadata.get(key).map(String::as_str);
            is(key) == value && marks.iter().all(|(key, host)| is(key) == Some(*host))
        };
        // Nothing is left undone because of what was so a moment ago.
        let (found, _) = self.seen.recent_or(&id.0, SystemClock.now_ms(), |volume| !has(volume), || self.find(id))?;
        let volume = found.ok_or_else(|| ProviderError::NotFound(id.clone()))?;
        if has(&volume) {
            return Ok(Change::Identity);
        }
        self.looks.forget(id);
        let path = format!("/volumes/{}/metadata", id.0);
        let answer = match value {
            Some(value) => {
                marks.insert(key, value);
                let body = json!({ "metadata": marks });
                self.ask(Service::Cinder, Method::POST, &path, Some(&body))?
            }
            None => self.ask(Service::Cinder, Method::DELETE, &format!("{path}/{}", encoded(key)), None)?,
        };
        self.seen.alters(&id.0, |entry| match &mut entry.told {
            Some((_, told)) if answer.status.is_success() => {
                told.metadata.remove(key);
                told.metadata.extend(value.map(|value| (key.to_owned(), value.to_owned())));
            }
            _ => entry.told = None,
        });
        if answer.status.is_success() {
            return Ok(Change::Changed);
        }
        let is_absent = errors::message(&answer).is_some_and(|said| said.contains("has no metadata"));
        if answer.status == StatusCode::NOT_FOUND && value.is_none() && is_absent {
            return Ok(Change::Identity);
        }
        Err(errors::of_volume("Cinder", &answer, id, volume.state()))
    }
}
