//! This machine as Azure tells of it: where it is, and the disks that it has or is to have. The unit of a disk is told here alone, and
//! so is that it is on its way.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::login::is_id;
use crate::ProviderError;
use crate::cloud::http::sentence;

/// How many units a machine may have, whatever its size.
pub const UNITS: u32 = 64;

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// What tells it from another one that had or gets its name, in lower case.
    pub unique: String,
    /// The region, in which disks have to be.
    pub location: String,
    /// The zone within it; `None`: in none.
    pub zone: Option<String>,
    /// Whether it is being changed: Azure takes one change at a time.
    pub is_changing: bool,
    held: Vec<Held>,
}

/// A disk that a machine has or is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its id, in lower case; empty: it is no managed one.
    disk: String,
    /// Its unit.
    pub unit: u32,
    /// Whether it is to be detached.
    pub is_leaving: bool,
}

#[derive(Deserialize)]
struct Told {
    name: String,
    location: String,
    #[serde(default)]
    zones: Option<Vec<String>>,
    properties: Properties,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    vm_id: String,
    provisioning_state: String,
    storage_profile: StorageProfile,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StorageProfile {
    #[serde(default)]
    data_disks: Option<Vec<DataDisk>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataDisk {
    lun: u32,
    managed_disk: Option<ManagedDisk>,
    #[serde(default)]
    to_be_detached: Option<bool>,
}

#[derive(Deserialize)]
struct ManagedDisk {
    #[serde(default)]
    id: Option<String>,
}

/// Whether a text is the name of a region or of a zone.
fn is_word(text: &str) -> bool {
    (1..=60).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"- ".contains(&byte))
}

impl Machine {
    /// Reads the one of this name.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn read(body: &Value, name: &str) -> Result<Self, ProviderError> {
        let odd =
            |why: &str| ProviderError::Transient(format!("Azure describes a machine {why}: check what answers for it"));
        let told = Told::deserialize(body)
            .map_err(|error| odd(&format!("in other words ({})", sentence(&error.to_string()))))?;
        if !told.name.eq_ignore_ascii_case(name) {
            return Err(odd(&format!("{:?} in place of {name}", sentence(&told.name))));
        }
        let zone = told.zones.unwrap_or_default().into_iter().next();
        if !is_word(&told.location) || !zone.iter().all(|zone| is_word(zone)) {
            return Err(odd("with a location or a zone that is none"));
        }
        let unique = told.properties.vm_id.to_ascii_lowercase();
        if !is_id(&unique) {
            return Err(odd("with an id that is none"));
        }
        let disks = told.properties.storage_profile.data_disks.unwrap_or_default();
        let held = disks.into_iter().map(|disk| Held {
            disk: disk.managed_disk.and_then(|disk| disk.id).unwrap_or_default().to_ascii_lowercase(),
            unit: disk.lun,
            is_leaving: disk.to_be_detached == Some(true),
        });
        let is_changing = !matches!(&*told.properties.provisioning_state, "Succeeded" | "Failed" | "Canceled");
        Ok(Self { name: told.name, unique, location: told.location, zone, is_changing, held: held.collect() })
    }

    /// What it has of a disk.
    #[must_use]
    pub fn held(&self, disk: &str) -> Option<&Held> {
        self.held.iter().find(|held| held.disk == disk)
    }

    /// A unit that nothing has: the first one from `from` on, round and round. One that was just used is used again as late as possible,
    /// as the guest may still show its former disk.
    ///
    /// # Errors
    /// `AttachLimit`: there is none.
    pub fn free_unit(&self, from: u32) -> Result<u32, ProviderError> {
        let taken: BTreeSet<u32> = self.held.iter().map(|held| held.unit).collect();
        let mut units = (0..UNITS).map(|unit| (from % UNITS + unit) % UNITS);
        units
            .find(|unit| !taken.contains(unit))
            .ok_or_else(|| ProviderError::AttachLimit(format!("all {UNITS} units of this machine are taken")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(disks: Value) -> Value {
        json!({
            "name": "Machine", "location": "westeurope", "zones": ["1"],
            "properties": {
                "vmId": "01234567-89AB-cdef-0123-456789abcdef", "provisioningState": "Succeeded",
                "storageProfile": { "osDisk": {}, "dataDisks": disks },
            },
        })
    }

    #[test]
    fn disks_are_found_by_id_without_regard_to_case_and_free_units_go_round() {
        let disks = json!([
            { "lun": 0, "managedDisk": { "id": "/Subscriptions/S/A" } },
            { "lun": 1, "managedDisk": { "id": "/b" }, "toBeDetached": true },
            { "lun": 63, "vhd": {} },
        ]);
        let machine = Machine::read(&told(disks), "machine").unwrap();
        assert_eq!(machine.held("/subscriptions/s/a").map(|held| (held.unit, held.is_leaving)), Some((0, false)));
        assert_eq!(machine.held("/b").map(|held| held.is_leaving), Some(true));
        assert_eq!(machine.held("/c"), None);
        assert_eq!([0, 3, 63, 64, 130].map(|from| machine.free_unit(from)), [Ok(2), Ok(3), Ok(2), Ok(2), Ok(2)]);
        let full: Vec<_> = (0..64).map(|lun| json!({ "lun": lun })).collect();
        let full = Machine::read(&told(json!(full)), "machine").unwrap();
        assert!(matches!(full.free_unit(5), Err(ProviderError::AttachLimit(_))));
    }

    #[test]
    fn odd_machines_are_refused_in_one_sentence() {
        assert!(Machine::read(&told(Value::Null), "machine").is_ok(), "it has no disks");
        for (pointer, value) in [
            ("/name", json!("other")),
            ("/location", json!("a/b")),
            ("/zones/0", json!("\n")),
            ("/properties/vmId", json!("../x")),
            ("/properties/vmId", Value::Null),
            ("/properties/provisioningState", Value::Null),
            ("/properties/storageProfile", Value::Null),
            ("/properties/storageProfile/dataDisks", json!([{}])),
            ("/properties/storageProfile/dataDisks", json!([{ "lun": -1 }])),
        ] {
            let mut body = told(json!([]));
            *body.pointer_mut(pointer).unwrap() = value;
            let error = Machine::read(&body, "machine").unwrap_err().to_string();
            assert!(error.starts_with("Azure describes a machine") && !error.contains(char::is_control), "{error}");
        }
    }
}
