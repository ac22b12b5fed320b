//! Disks as Azure tells of them, and what its words mean here.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use surgetank_model::Bytes;
use surgetank_model::units::GIB;
use surgetank_model::volume_type::Provision;

use super::account::Renter;
use super::arm::Place;
use super::config::{sku, type_of};
use super::machine::Machine;
use super::tags;
use crate::cloud::http::sentence;
use crate::cloud::unix_ms;
use crate::{
    AccountVolume, CreateVolume, DiskIdentity, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, account,
    tag,
};

/// The longest name.
const NAME_MAX: usize = 80;
/// What the names of our volumes begin with; the token follows.
const NAME: &str = "surgetank-";
/// The largest number of GiB that is asked for.
const GIB_MAX: u64 = i32::MAX as u64;
/// What Azure sells of bandwidth: a million bytes a second.
const MB: u64 = 1_000_000;
/// The sectors of disks that have a choice: those of all others.
const SECTOR: u32 = 512;

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name, which is its id.
    pub name: String,
    /// In GiB.
    pub gib: u64,
    /// All of them, also those that cannot be told.
    pub tags: Tags,
    /// The id of the machine that has it, in lower case.
    pub machine: Option<String>,
    /// Whether it is being changed.
    pub is_changing: bool,
    volume_type: String,
    provisioning: String,
    is_made: bool,
    created_ms: Option<u64>,
}

/// As it is told.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    name: String,
    sku: Sku,
    properties: Properties,
    #[serde(default)]
    managed_by: Option<String>,
    #[serde(default)]
    tags: Option<Tags>,
}

#[derive(Deserialize)]
struct Sku {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    #[serde(rename = "diskSizeGB")]
    disk_size_gb: u64,
    provisioning_state: String,
    #[serde(default)]
    disk_state: Option<String>,
    #[serde(default)]
    time_created: Option<String>,
}

/// Whether an id is a name of Azure's: what is none is no disk's, and is never put into a path.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
        && name.bytes().all(allowed)
}

/// Whether an id may be that of a disk of ours: Azure finds a disk by its name in whatever letters, and tells its own.
#[must_use]
pub fn is_our_id(id: &str) -> bool {
    is_name(id) && !has_upper(id)
}

fn has_upper(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_uppercase())
}

/// Whether a name is the one that a token gives, if there is a tag with one. Whoever copies our tags to a disk of his own gives it
/// another name.
#[must_use]
pub fn is_our_name(name: &str, token: Option<&str>) -> bool {
    let said = name.strip_prefix(NAME).filter(|said| !said.is_empty() && !has_upper(said));
    said.is_some_and(|said| token.is_none_or(|token| token == said))
}

/// The last part of an id.
#[must_use]
pub fn last(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

impl Disk {
    /// Reads one, if it is fit to be told.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn read(body: &Value) -> Result<Self, ProviderError> {
        let odd =
            |why: &str| ProviderError::Transient(format!("Azure describes a disk {why}: check what answers for it"));
        let told = Told::deserialize(body)
            .map_err(|error| odd(&format!("in other words ({})", sentence(&error.to_string()))))?;
        let volume_type = type_of(&told.sku.name).to_owned();
        let gib = told.properties.disk_size_gb;
        if !is_name(&told.name) || !is_name(&volume_type) || !(1..=GIB_MAX).contains(&gib) {
            let name = sentence(&told.name);
            return Err(odd(&format!("\"{name}\" with a name, a type or a size that is none")));
        }
        let provisioning = told.properties.provisioning_state;
        Ok(Self {
            name: told.name,
            gib,
            tags: tags::spelled(told.tags.unwrap_or_default()),
            machine: told.managed_by.filter(|id| !id.is_empty()).map(|id| id.to_ascii_lowercase()),
            is_changing: matches!(&*provisioning, "Creating" | "Updating"),
            volume_type,
            is_made: told.properties.disk_state.is_some(),
            provisioning,
            created_ms: told.properties.time_created.as_deref().and_then(unix_ms),
        })
    }

    /// Whether it has a token, and the name that this gives.
    #[must_use]
    pub fn has_our_name(&self) -> bool {
        self.tags.get(tag::TOKEN).is_some_and(|token| is_our_name(&self.name, Some(token)))
    }

    /// One that is being made.
    ///
    /// # Errors
    /// `Invalid`: the tags do not fit.
    pub fn wanted(request: &CreateVolume, name: &str, gib: u64) -> Result<Self, ProviderError> {
        let mut tags = Tags::new();
        for (key, value) in &request.tags {
            tags::set(&mut tags, key, Some(value))?;
        }
        Ok(Self {
            name: name.to_owned(),
            gib,
            tags,
            machine: None,
            is_changing: true,
            volume_type: request.volume_type.clone(),
            provisioning: "Creating".to_owned(),
            is_made: false,
            created_ms: None,
        })
    }

    /// The same, rented on a machine.
    ///
    /// # Errors
    /// `Invalid`: the tags do not fit.
    pub fn marked(mut self, renter: &Renter) -> Result<Self, ProviderError> {
        for (key, value) in account::marks(&renter.to_string()) {
            tags::set(&mut self.tags, &key, Some(&value))?;
        }
        Ok(self)
    }

    /// The body that asks for it, where a machine is.
    #[must_use]
    pub fn body(&self, machine: &Machine, bought: &Provision) -> Value {
        let mut properties = json!({
            "creationData": { "createOption": "Empty" }, "diskSizeGB": self.gib,
            // Nobody reads or writes it but a machine that has it.
            "networkAccessPolicy": "DenyAll", "publicNetworkAccess": "Disabled",
        });
        if matches!(&*self.volume_type, "premium-ssd-v2" | "ultra") {
            properties["creationData"]["logicalSectorSize"] = json!(SECTOR);
        }
        if let Some(iops) = bought.iops {
            properties["diskIOPSReadWrite"] = json!(iops.get());
        }
        if let Some(bandwidth) = bought.bandwidth {
            properties["diskMBpsReadWrite"] = json!(bandwidth.get() / MB);
        }
        let mut body = json!({
            "location": machine.location, "sku": { "name": sku(&self.volume_type) }, "properties": properties,
            "tags": self.tags,
        });
        if let Some(zone) = &machine.zone {
            body["zones"] = json!([zone]);
        }
        body
    }

    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        Bytes::from_gib(self.gib)
    }

    /// Where it is in its life, and its unit, by what a machine (`here` is its id) says of it. A disk does not show itself that it is
    /// on the way to a machine or from it.
    #[must_use]
    pub fn state(&self, id: &str, here: &str, machine: &Machine) -> (VolumeState, Option<u32>) {
        use VolumeState::{Attached, Attaching, Deleting, Detaching};

        let held = machine.held(id);
        match (&self.machine, held) {
            _ if self.provisioning == "Deleting" => (Deleting, None),
            (Some(there), _) if there != here => (Attached, None),
            // Should a detach have failed, it is asked for again.
            (Some(_), Some(held)) if held.is_leaving && machine.is_changing => (Detaching, None),
            (Some(_), Some(held)) => (Attached, Some(held.unit)),
            (Some(_), None) => (Detaching, None),
            // Also what stays there after it could not be attached, so that it is taken out.
            (None, Some(held)) if !held.is_leaving => (Attaching, None),
            (None, _) => (self.own_state(), None),
        }
    }

    /// Where it is in its life, as far as it says so itself.
    #[must_use]
    pub fn own_state(&self) -> VolumeState {
        match &*self.provisioning {
            "Deleting" => VolumeState::Deleting,
            _ if self.machine.is_some() => VolumeState::Attached,
            // A change that failed does not unmake a disk, which may hold data.
            "Failed" | "Canceled" if !self.is_made => VolumeState::Failed,
            // Only that is deleted without proof that nothing newer is on it.
            _ if self.is_changing && !self.is_made => VolumeState::Creating,
            _ => VolumeState::Available,
        }
    }

    /// The machine that has it, if it is another one than that with this id.
    #[must_use]
    pub fn elsewhere(&self, here: &str) -> Option<String> {
        self.machine.as_deref().filter(|there| *there != here).map(|there| sentence(last(there)))
    }

    /// What is said of it to whoever looks at the whole resource group; `attached_to` is the machine that has it. Tags that say nothing
    /// keep it as those do that say something.
    #[must_use]
    pub fn in_account(&self, state: VolumeState, attached_to: Option<String>) -> AccountVolume {
        let mut volume = Seen::under_way(self.clone(), state).describe();
        for key in [tag::OWNER, tag::DIRTY_EPOCH] {
            if let Some(value) = self.tags.get(key) {
                volume.tags.entry(key.to_owned()).or_insert_with(|| sentence(value));
            }
        }
        let machine = self.tags.get(tag::HOST).map(|host| sentence(host));
        AccountVolume { volume, machine, attached_to, created_ms: self.created_ms }
    }

    /// Whether it is what was asked for. It may have grown since.
    ///
    /// # Errors
    /// `Invalid`: the token was used for another disk.
    pub fn check(&self, request: &CreateVolume, gib: u64) -> Result<(), ProviderError> {
        let has_tags = request.tags.iter().all(|(key, value)| self.tags.get(key) == Some(value));
        if self.volume_type == request.volume_type && self.gib >= gib && has_tags {
            return Ok(());
        }
        Err(ProviderError::Invalid(format!(
            "the disk {} of {} GiB and the type {} is another one than is asked for with the token {:?}: draw a fresh token",
            self.name, self.gib, self.volume_type, request.token
        )))
    }
}

/// A disk as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The disk.
    pub disk: Disk,
    /// Where it is.
    pub state: VolumeState,
    /// Its unit on this machine.
    pub unit: Option<u32>,
    /// The machine, as it was seen at the same time.
    pub machine: Option<Arc<Machine>>,
}

impl Seen {
    /// A disk that may be on this machine.
    #[must_use]
    pub fn at(disk: Disk, place: &Place, here: &str, machine: &Arc<Machine>) -> Self {
        let (state, unit) = disk.state(&place.id("disks", &disk.name), here, machine);
        Self { disk, state, unit, machine: Some(Arc::clone(machine)) }
    }

    /// A disk as it says itself; `unit` is the one at which this machine (`here` is its id) has it, if it does.
    #[must_use]
    pub fn alone(disk: Disk, here: &str, unit: Option<u32>) -> Self {
        let (state, unit) = (disk.own_state(), unit.filter(|_| disk.machine.as_deref() == Some(here)));
        Self { disk, state, unit, machine: None }
    }

    /// One of which a change is on the way.
    #[must_use]
    pub const fn under_way(disk: Disk, state: VolumeState) -> Self {
        Self { disk, state, unit: None, machine: None }
    }

    /// What is said of it.
    #[must_use]
    pub fn describe(&self) -> VolumeDescription {
        VolumeDescription {
            id: VolumeId(self.disk.name.clone()),
            state: self.state,
            volume_type: self.disk.volume_type.clone(),
            size: self.disk.size(),
            tags: account::shown(tags::told(&self.disk.tags)),
            // The link that the guest's rules make of the unit, for people.
            device: self.unit.map(|unit| PathBuf::from(format!("/dev/disk/azure/data/by-lun/{unit}"))),
            disk: self.unit.map(DiskIdentity::Lun),
            members: Vec::new(),
        }
    }
}

/// A size as Azure takes it.
///
/// # Errors
/// `Invalid`: it has none such.
pub fn gib(size: Bytes) -> Result<u64, ProviderError> {
    let gib = size.get() / GIB;
    if gib * GIB == size.get() && (1..=GIB_MAX).contains(&gib) {
        return Ok(gib);
    }
    Err(ProviderError::Invalid(format!("Azure has no disks of {size}: ask for a whole number of GiB, at least 1")))
}

/// The name of the disk that a token makes. Azure compares names without regard to case, so there are no upper-case letters in them.
///
/// # Errors
/// `Invalid`: it is no token.
pub fn name(token: &str) -> Result<String, ProviderError> {
    let name = format!("{NAME}{token}");
    if is_our_id(&name) && !token.is_empty() {
        return Ok(name);
    }
    Err(ProviderError::Invalid(format!(
        "the token \"{}\" is no part of a name: use at most {} lower-case letters, digits, - and _",
        sentence(token),
        NAME_MAX - NAME.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/virtualmachines/here";
    const ID: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/disks/surgetank-t";

    fn told(provisioning: &str, state: Option<&str>, machine: Option<&str>) -> Value {
        json!({
            "id": ID, "name": "surgetank-t", "location": "westeurope", "sku": { "name": "Premium_LRS", "tier": "Premium" },
            "managedBy": machine, "tags": { "surgetank:owner": "o" },
            "properties": { "diskSizeGB": 10, "provisioningState": provisioning, "diskState": state },
        })
    }

    fn machine(provisioning: &str, disks: Value) -> Machine {
        let body = json!({
            "name": "here", "location": "westeurope",
            "properties": { "vmId": "01234567-89ab-cdef-0123-456789abcdef", "provisioningState": provisioning, "storageProfile": { "dataDisks": disks } },
        });
        Machine::read(&body, "here").unwrap()
    }

    #[test]
    fn states_are_told_by_the_disk_and_the_machine_together() {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};
        let (upper, made) = (HERE.to_ascii_uppercase(), Some("Unattached"));
        let listed = json!([{ "lun": 5, "managedDisk": { "id": ID.to_ascii_uppercase() } }]);
        let leaving = json!([{ "lun": 5, "managedDisk": { "id": ID }, "toBeDetached": true }]);
        let none = json!([]);
        for (disk, provisioning, disks, expected) in [
            (told("Updating", None, None), "Succeeded", &none, (Creating, None)),
            (told("Succeeded", made, None), "Succeeded", &none, (Available, None)),
            (told("Updating", made, None), "Succeeded", &none, (Available, None)),
            (told("Failed", None, None), "Succeeded", &none, (Failed, None)),
            (told("Canceled", None, None), "Succeeded", &none, (Failed, None)),
            (told("Failed", made, None), "Succeeded", &none, (Available, None)),
            (told("Deleting", made, None), "Succeeded", &none, (Deleting, None)),
            (told("Succeeded", made, None), "Updating", &listed, (Attaching, None)),
            (told("Succeeded", made, None), "Failed", &listed, (Attaching, None)),
            (told("Failed", made, None), "Failed", &listed, (Attaching, None)),
            (told("Succeeded", Some("Attached"), Some(&upper)), "Succeeded", &listed, (Attached, Some(5))),
            (told("Updating", Some("Attached"), Some(&upper)), "Updating", &listed, (Attached, Some(5))),
            (told("Failed", Some("Attached"), Some(HERE)), "Succeeded", &listed, (Attached, Some(5))),
            (told("Succeeded", Some("Attached"), Some(HERE)), "Updating", &leaving, (Detaching, None)),
            (told("Succeeded", Some("Attached"), Some(HERE)), "Failed", &leaving, (Attached, Some(5))),
            (told("Succeeded", Some("Attached"), Some(HERE)), "Succeeded", &none, (Detaching, None)),
            (told("Succeeded", made, None), "Updating", &leaving, (Available, None)),
            (told("Succeeded", Some("Attached"), Some("/other")), "Updating", &listed, (Attached, None)),
        ] {
            let read = Disk::read(&disk).unwrap();
            assert_eq!(read.state(ID, HERE, &machine(provisioning, disks.clone())), expected, "{disk} {provisioning}");
        }
    }

    #[test]
    fn an_attached_disk_is_found_by_its_unit() {
        let place = Place { subscription: "s".to_owned(), resource_group: "g".to_owned() };
        let machine = Arc::new(machine("Succeeded", json!([{ "lun": 5, "managedDisk": { "id": ID } }])));
        let seen =
            |by: Option<&str>| Seen::at(Disk::read(&told("Succeeded", Some("x"), by)).unwrap(), &place, HERE, &machine);
        let here = seen(Some(HERE)).describe();
        assert_eq!((here.state, here.disk), (VolumeState::Attached, Some(DiskIdentity::Lun(5))));
        assert_eq!(here.tags, Tags::from([("surgetank:owner".to_owned(), "o".to_owned())]));
        assert_eq!((&*here.volume_type, here.size), ("premium-ssd", Bytes::from_gib(10)));
        let there = seen(Some("/x/virtualMachines/there"));
        assert_eq!(there.disk.elsewhere(HERE).as_deref(), Some("there"));
        assert!(!there.describe().is_located());
        assert_eq!(seen(Some(HERE)).disk.elsewhere(HERE), None);
    }

    #[test]
    fn odd_descriptions_are_refused_in_one_sentence() {
        for (pointer, value) in [
            ("/name", json!("../x")),
            ("/name", json!("a\u{1b}[2J")),
            ("/sku/name", json!("")),
            ("/sku", Value::Null),
            ("/properties/diskSizeGB", json!(0)),
            ("/properties/diskSizeGB", json!("10")),
            ("/properties/provisioningState", Value::Null),
            ("/tags", json!([])),
        ] {
            let mut body = told("Succeeded", None, None);
            *body.pointer_mut(pointer).unwrap() = value;
            let error = Disk::read(&body).unwrap_err().to_string();
            assert!(error.starts_with("Azure describes a disk") && !error.contains(char::is_control), "{error}");
        }
        assert!(Disk::read(&json!([])).is_err());
    }

    #[test]
    fn sizes_and_tokens_that_azure_has_not() {
        assert_eq!(gib(Bytes::from_gib(3)), Ok(3));
        for size in [Bytes::ZERO, Bytes::from_mib(1), Bytes::new(GIB + 1), Bytes::new(u64::MAX)] {
            assert!(matches!(gib(size), Err(ProviderError::Invalid(_))), "{size}");
        }
        assert_eq!(name("0123-0"), Ok("surgetank-0123-0".to_owned()));
        for token in ["", "a b", "A", "a/b", "a-", "a.", "\u{e4}", &"a".repeat(71)] {
            assert!(matches!(name(token), Err(ProviderError::Invalid(_))), "{token}");
        }
        assert!(name(&"f".repeat(70)).is_ok());
    }
}
