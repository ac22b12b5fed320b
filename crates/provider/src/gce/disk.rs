//! Disks as Compute Engine tells of them, and what its words mean here.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use surgetank_model::Bytes;
use surgetank_model::units::GIB;

use super::labels::{self, Labels};
use crate::account;
use crate::cloud::http::sentence;
use crate::cloud::unix_ms;
use crate::{AccountVolume, CreateVolume, DiskIdentity, ProviderError, VolumeDescription, VolumeId, VolumeState, tag};

/// The longest name.
const NAME_MAX: usize = 63;
/// What the names of our volumes begin with; the token follows.
const NAME: &str = "surgetank-";
/// The largest number of GiB that is asked for.
const GIB_MAX: u64 = i32::MAX as u64;

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name, which is its id.
    pub name: String,
    /// In GiB.
    pub gib: u64,
    /// What we call tags.
    pub labels: Labels,
    /// Changes with the labels; `None`: not known.
    pub fingerprint: Option<String>,
    /// URLs of the instances that have it.
    pub users: Vec<String>,
    status: String,
    volume_type: String,
    created_ms: Option<u64>,
}

/// As it is told.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    name: String,
    status: String,
    size_gb: String,
    r#type: String,
    #[serde(default)]
    labels: Labels,
    label_fingerprint: Option<String>,
    creation_timestamp: Option<String>,
    #[serde(default)]
    users: Vec<String>,
}

/// Whether an id is a name of Compute Engine's: what is none is no disk's, and is never put into a path.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(allowed)
}

/// The last part of a URL.
fn last(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

impl Disk {
    /// Reads one, if it is fit to be told.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn read(body: &Value) -> Result<Self, ProviderError> {
        let odd = |why: &str| {
            ProviderError::Transient(format!("Compute Engine describes a disk {why}: check what answers for it"))
        };
        let told = Told::deserialize(body)
            .map_err(|error| odd(&format!("in other words ({})", sentence(&error.to_string()))))?;
        let volume_type = last(&told.r#type).to_owned();
        let gib = told.size_gb.parse().ok().filter(|gib| (1..=GIB_MAX).contains(gib));
        match gib {
            Some(gib) if is_name(&told.name) && is_name(&volume_type) => Ok(Self {
                name: told.name,
                gib,
                labels: told.labels,
                fingerprint: told.label_fingerprint,
                users: told.users,
                status: told.status,
                volume_type,
                created_ms: told.creation_timestamp.as_deref().and_then(unix_ms),
            }),
            _ => Err(odd(&format!("\"{}\" with a name, a type or a size that is none", sentence(&told.name)))),
        }
    }

    /// One that is being made.
    ///
    /// # Errors
    /// `Invalid`: the tags do not fit.
    pub fn wanted(request: &CreateVolume, name: &str, gib: u64) -> Result<Self, ProviderError> {
        let mut labels = Labels::new();
        for (key, value) in &request.tags {
            labels::set(&mut labels, key, Some(value))?;
        }
        Ok(Self {
            name: name.to_owned(),
            gib,
            labels,
            fingerprint: None,
            users: Vec::new(),
            status: "CREATING".to_owned(),
            volume_type: request.volume_type.clone(),
            created_ms: None,
        })
    }

    /// The same, rented on the instance `host`.
    ///
    /// # Errors
    /// `Invalid`: its name does not fit.
    pub fn marked(mut self, host: &str) -> Result<Self, ProviderError> {
        for (key, value) in account::marks(host) {
            labels::set(&mut self.labels, &key, Some(&value))?;
        }
        Ok(self)
    }

    /// The body that asks for it.
    #[must_use]
    pub fn body(&self, types: &str) -> Value {
        let mut body = json!({
            "name": self.name, "sizeGb": self.gib.to_string(), "type": format!("{types}/{}", self.volume_type),
            "labels": self.labels,
        });
        // What is included in the price: without these two, Compute Engine provisions more of both for a larger disk, and bills it.
        if self.volume_type == "hyperdisk-balanced" {
            body["provisionedIops"] = json!("3000");
            body["provisionedThroughput"] = json!("140");
        }
        body
    }

    /// The instance that has it, if it is another one than that whose URL ends so.
    #[must_use]
    pub fn elsewhere(&self, here: &str) -> Option<String> {
        let first = self.users.first()?;
        (!self.is_here(here)).then(|| sentence(last(first)))
    }

    fn is_here(&self, here: &str) -> bool {
        self.users.iter().any(|user| user.ends_with(here))
    }

    /// Where it is in its life, if nothing is under way. Only what is `CREATING` is `Creating`: that is deleted without proof that
    /// nothing newer is on it. `RESTORING` and `UNAVAILABLE` pass, and Compute Engine refuses until they have.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match &*self.status {
            "DELETING" => VolumeState::Deleting,
            _ if !self.users.is_empty() => VolumeState::Attached,
            "CREATING" => VolumeState::Creating,
            "FAILED" => VolumeState::Failed,
            _ => VolumeState::Available,
        }
    }

    /// It is made, and attached to that instance or to none.
    #[must_use]
    pub fn ready(mut self, user: Option<&str>) -> Self {
        "READY".clone_into(&mut self.status);
        self.users = user.map(str::to_owned).into_iter().collect();
        self
    }

    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        Bytes::from_gib(self.gib)
    }

    /// What is said of it in a state, on the instance whose URL ends so.
    #[must_use]
    pub fn describe(&self, state: VolumeState, here: &str) -> VolumeDescription {
        let is_located = state == VolumeState::Attached && self.is_here(here);
        VolumeDescription {
            id: VolumeId(self.name.clone()),
            state,
            volume_type: self.volume_type.clone(),
            size: self.size(),
            tags: account::shown(labels::tags(&self.labels)),
            // The link that the guest's rules make of the device name, for people: the hypervisor shows that name itself.
            device: is_located.then(|| PathBuf::from(format!("/dev/disk/by-id/google-{}", self.name))),
            disk: is_located.then(|| DiskIdentity::Name(self.name.clone())),
            members: Vec::new(),
        }
    }

    /// The same for whoever looks at the whole zone. Labels that are there and say nothing keep the disk as those do that say something.
    #[must_use]
    pub fn in_account(&self, state: VolumeState) -> AccountVolume {
        let unread = |key| labels::has(&self.labels, key).then(|| "?".to_owned());
        let mut volume = self.describe(state, "");
        if let Some(epoch) = unread(tag::DIRTY_EPOCH) {
            volume.tags.entry(tag::DIRTY_EPOCH.to_owned()).or_insert(epoch);
        }
        AccountVolume {
            volume,
            machine: labels::tags(&self.labels).remove(tag::HOST).or_else(|| unread(tag::HOST)),
            attached_to: self.users.first().map(|user| sentence(last(user))),
            created_ms: self.created_ms,
        }
    }

    /// Whether it is what was asked for. It may have grown since.
    ///
    /// # Errors
    /// `Invalid`: the token was used for another disk.
    pub fn check(&self, request: &CreateVolume, gib: u64) -> Result<(), ProviderError> {
        let tags = labels::tags(&self.labels);
        let has_tags = request.tags.iter().all(|(key, value)| tags.get(key) == Some(value));
        if self.volume_type == request.volume_type && self.gib >= gib && has_tags {
            return Ok(());
        }
        Err(ProviderError::Invalid(format!(
            "the disk {} of {} GiB and the type {} is another one than is asked for with the token {:?}: draw a fresh token",
            self.name, self.gib, self.volume_type, request.token
        )))
    }
}

/// A size as Compute Engine takes it.
///
/// # Errors
/// `Invalid`: it has none such.
pub fn gib(size: Bytes) -> Result<u64, ProviderError> {
    let gib = size.get() / GIB;
    if gib * GIB == size.get() && (1..=GIB_MAX).contains(&gib) {
        return Ok(gib);
    }
    Err(ProviderError::Invalid(format!(
        "Compute Engine has no disks of {size}: ask for a whole number of GiB, at least 1"
    )))
}

/// The name of the disk that a token makes.
///
/// # Errors
/// `Invalid`: it is no token.
pub fn name(token: &str) -> Result<String, ProviderError> {
    let name = format!("{NAME}{token}");
    if is_name(&name) {
        return Ok(name);
    }
    Err(ProviderError::Invalid(format!(
        "the token \"{}\" is no part of a name: use at most {} lower-case letters, digits and -",
        sentence(token),
        NAME_MAX - NAME.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "/zones/z/instances/here";

    fn told(status: &str, user: Option<&str>) -> Value {
        let users: Vec<_> =
            user.map(|user| format!("https://x/compute/v1/projects/p/zones/z/instances/{user}")).into_iter().collect();
        json!({
            "kind": "compute#disk", "id": "1", "name": "surgetank-t", "status": status, "sizeGb": "10", "users": users,
            "type": "https://x/compute/v1/projects/p/zones/z/diskTypes/pd-ssd", "labels": { "surgetank-owner": "o" },
            "labelFingerprint": "42WmSpB8rSM=",
        })
    }

    #[test]
    fn states_by_word_and_users() {
        use VolumeState::{Attached, Available, Creating, Deleting, Failed};
        for (status, alone, attached) in [
            ("CREATING", Creating, Attached),
            ("READY", Available, Attached),
            ("FAILED", Failed, Attached),
            ("DELETING", Deleting, Deleting),
            ("RESTORING", Available, Attached),
            ("UNAVAILABLE", Available, Attached),
            ("UNHEARD_OF", Available, Attached),
        ] {
            let state = |user| Disk::read(&told(status, user)).unwrap().state();
            assert_eq!((state(None), state(Some("here"))), (alone, attached), "{status}");
        }
    }

    #[test]
    fn a_disk_is_located_on_the_instance_that_has_it_and_found_by_its_name() {
        let disk = Disk::read(&told("READY", Some("here"))).unwrap();
        let described = disk.describe(disk.state(), HERE);
        assert_eq!(described.disk, Some(DiskIdentity::Name("surgetank-t".to_owned())));
        assert_eq!(described.tags, crate::Tags::from([("surgetank:owner".to_owned(), "o".to_owned())]));
        assert_eq!(disk.elsewhere(HERE), None);
        assert!(!disk.describe(VolumeState::Detaching, HERE).is_located());
        for other in ["there", "nowhere", "x-here"] {
            let disk = Disk::read(&told("READY", Some(other))).unwrap();
            assert_eq!(disk.elsewhere(HERE).as_deref(), Some(other));
            assert!(!disk.describe(disk.state(), HERE).is_located());
        }
    }

    #[test]
    fn odd_descriptions_are_refused_in_one_sentence() {
        for (key, value) in [
            ("name", json!("../x")),
            ("name", json!("a\u{1b}[2J")),
            ("sizeGb", json!("-1")),
            ("sizeGb", json!("0")),
            ("sizeGb", json!(10)),
            ("type", json!("")),
            ("type", json!("x/\n")),
            ("status", Value::Null),
            ("labels", json!([])),
        ] {
            let mut body = told("READY", None);
            body[key] = value;
            let error = Disk::read(&body).unwrap_err().to_string();
            assert!(
                error.starts_with("Compute Engine describes a disk") && !error.contains(char::is_control),
                "{error}"
            );
        }
        assert!(Disk::read(&json!([])).is_err());
    }

    #[test]
    fn sizes_and_tokens_that_compute_engine_has_not() {
        assert_eq!(gib(Bytes::from_gib(3)), Ok(3));
        for size in [Bytes::ZERO, Bytes::from_mib(1), Bytes::new(GIB + 1), Bytes::new(u64::MAX)] {
            assert!(matches!(gib(size), Err(ProviderError::Invalid(_))), "{size}");
        }
        assert_eq!(name("0123-0"), Ok("surgetank-0123-0".to_owned()));
        for token in ["", "a b", "A", "a/b", "a-", "a_b", &"a".repeat(54)] {
            assert!(matches!(name(token), Err(ProviderError::Invalid(_))), "{token}");
        }
        assert!(name(&"f".repeat(53)).is_ok());
    }
}
