//! The owner record, and how its file holds it.
//!
//! A loss may be long: it is written range by range.

use serde::{Deserialize, Serialize};
use surgetank_cache::{Epoch, Owner};
use surgetank_provider::VolumeId;
use surgetank_rental::owner::{OwnerRecord, parse_epoch};

use crate::files::{self, Unreadable};
use crate::healed::{Id, Named, Pair};

/// Version 1 had no journal beside a loss, and version 2 one that came with its first entry. Other records are as they were,
/// and say so.
const VERSION: u32 = 3;
const VERSION_OF_LATE_JOURNALS: u32 = 2;
const VERSION_WITHOUT_JOURNAL: u32 = 1;

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    version: u32,
    owner: Kind,
    /// Of `Cache` and `Lost`; of `Backing` the one that has ended. Older builds leave it out there, and pass over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<VolumeId>,
    /// The journal of what was healed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    /// Offset and length in bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost_ranges: Vec<Pair>,
}

/// A loss as it is written, range by range.
#[derive(Serialize)]
pub(super) struct LossWritten<'a, R> {
    version: u32,
    owner: Kind,
    epoch: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<&'a VolumeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    lost_ranges: R,
}

/// Ranges that are made while they are written.
pub(super) struct Ranges<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = Pair>> Serialize for Ranges<F> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Backing,
    Cache,
    Lost,
}

/// The record as its file holds it.
#[must_use]
pub fn encode(record: &OwnerRecord) -> Vec<u8> {
    let (owner, epoch) = match &record.owner {
        Owner::Backing => (Kind::Backing, record.ended.map(|epoch| epoch.to_string())),
        Owner::Cache { epoch } => (Kind::Cache, Some(epoch.to_string())),
        Owner::Lost { epoch, ranges } => {
            let written = loss(*epoch, record.volume.as_ref(), None, || ranges.iter().copied());
            return serde_json::to_vec(&written).expect("a record of strings and numbers is always JSON");
        }
    };
    let version = VERSION_WITHOUT_JOURNAL;
    let volume = record.volume.clone();
    let written = Written { version, owner, epoch, volume, journal: None, lost_ranges: Vec::new() };
    serde_json::to_vec_pretty(&written).expect("a record of strings and numbers is always JSON")
}

/// Reads what a file holds.
///
/// # Errors
/// Why it is no record that can be read.
pub fn decode(bytes: &[u8]) -> Result<OwnerRecord, Unreadable> {
    decode_with_journal(bytes).map(|(record, _)| record)
}

pub(super) fn decode_with_journal(bytes: &[u8]) -> Result<(OwnerRecord, Option<Named>), Unreadable> {
    files::version(bytes, VERSION)?;
    Ok(of(serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?)?)
}

pub(super) fn of(written: Written) -> Result<(OwnerRecord, Option<Named>), String> {
    let not_an_epoch = "is damaged: its epoch is not 32 hex digits";
    let epoch = written.epoch.as_deref().map(|text| parse_epoch(text).ok_or(not_an_epoch));
    let epoch = epoch.transpose()?;
    let ended = epoch.filter(|_| written.owner == Kind::Backing);
    let owner = match (written.owner, epoch) {
        (Kind::Backing, _) => Owner::Backing,
        (Kind::Cache, Some(epoch)) => Owner::Cache { epoch },
        (Kind::Lost, Some(epoch)) => Owner::Lost { epoch, ranges: written.lost_ranges },
        (Kind::Cache | Kind::Lost, None) => return Err("is damaged: its epoch is missing".to_owned()),
    };
    let not_a_journal = "is damaged: its journal is not 32 hex digits";
    let is_there = written.version > VERSION_OF_LATE_JOURNALS;
    let named = |name: Epoch| Named { id: Id(name.0), is_there };
    let journal = written.journal.map(|text| parse_epoch(&text).map(named).ok_or(not_a_journal));
    Ok((OwnerRecord { owner, volume: written.volume, ended }, journal.transpose()?))
}

/// A record of a loss as its file holds it.
pub(super) fn loss<F: Fn() -> I, I: Iterator<Item = Pair>>(
    epoch: Epoch,
    volume: Option<&VolumeId>,
    journal: Option<Id>,
    ranges: F,
) -> LossWritten<'_, Ranges<F>> {
    let journal = journal.map(|Id(name)| Epoch(name).to_string());
    LossWritten {
        version: VERSION,
        owner: Kind::Lost,
        epoch: epoch.to_string(),
        volume,
        journal,
        lost_ranges: Ranges(ranges),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_owner() -> impl Strategy<Value = Owner> {
        let epoch = any::<[u8; 16]>().prop_map(Epoch);
        let ranges = prop::collection::vec((any::<u64>(), any::<u64>()), 0..4);
        prop_oneof![
            Just(Owner::Backing),
            epoch.clone().prop_map(|epoch| Owner::Cache { epoch }),
            (epoch, ranges).prop_map(|(epoch, ranges)| Owner::Lost { epoch, ranges }),
        ]
    }

    proptest! {
        #[test]
        fn records_are_read_back(
            owner in any_owner(),
            volume in prop::option::of("[a-z0-9-]{1,12}"),
            ended in prop::option::of(any::<[u8; 16]>()),
        ) {
            let ended = ended.map(Epoch).filter(|_| owner == Owner::Backing);
            let record = OwnerRecord { owner, volume: volume.map(VolumeId), ended };
            prop_assert_eq!(decode(&encode(&record)).unwrap(), record);
        }

        #[test]
        fn damage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[a-zé0-9]{0,40}") {
            let _ = decode(&bytes);
            let _ = parse_epoch(&text);
        }
    }

    #[test]
    fn what_builds_wrote_that_did_not_name_it_is_read() {
        let record = decode(b"{\"version\": 1, \"owner\": \"backing\"}").unwrap();
        assert_eq!(record, OwnerRecord::default());
        // They refuse fields that they do not know, so there is no new one.
        let ended =
            OwnerRecord { owner: Owner::Backing, volume: Some(VolumeId("a".into())), ended: Some(Epoch([7; 16])) };
        let written: serde_json::Map<_, _> = serde_json::from_slice(&encode(&ended)).unwrap();
        let known = ["version", "owner", "epoch", "volume", "lost_ranges"];
        assert!(written.keys().all(|key| known.contains(&key.as_str())), "{written:?}");
    }
}
