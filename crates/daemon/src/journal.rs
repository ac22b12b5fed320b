//! What a device must know after a crash: the caching volume that is rented and how far it is, what the controller
//! has learned, and the accounts. Written before every call of a provider that changes something.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use surgetank_model::Bytes;
use surgetank_policy::Learned;
use surgetank_rental::{RentalRecord, RentalStage, Slot};

use crate::accounting::Totals;
use crate::files::{self, Unreadable};
use crate::identity::Identity;

const FILE: &str = "journal.json";
/// Version 1 counted in seconds, and knew no rentals that had ended. Version 2 knew one rental of a device at a time; a journal
/// that has no more is still written as such.
const VERSION: u32 = 3;
const ONE_RENTAL: u32 = 2;

/// A rental that has ended and that `learned` and `totals` do not know of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbooked {
    /// The volume's size.
    pub size: Bytes,
    /// From when, in milliseconds since 1970.
    pub from_unix_ms: u64,
    /// Until when.
    pub until_unix_ms: u64,
}

/// How the daemon ended that served the device last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastRun {
    /// An older build, which did not say.
    #[default]
    Unknown,
    /// It runs, or it was killed.
    Running,
    /// In order.
    Stopped,
}

/// The whole journal of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JournalState {
    version: u32,
    /// Milliseconds since 1970 at which `learned` and `totals` were last right; 0: never.
    pub saved_unix_ms: u64,
    /// The backing volume that all this speaks of.
    #[serde(default)]
    pub backing: Option<Identity>,
    /// The volume with the newest data could not be read back when it was last tried.
    #[serde(default)]
    pub recovery_failed: bool,
    /// How the last run ended, for people.
    #[serde(default)]
    pub last_run: LastRun,
    /// The volume that the engine uses, or is to use.
    #[serde(default)]
    pub rental: Option<RentalRecord>,
    /// Those in other slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    other_rentals: Vec<RentalRecord>,
    /// What ended after `saved_unix_ms`; of a volume that has grown, also what it was before.
    #[serde(default)]
    pub unbooked: Vec<Unbooked>,
    /// Since when the volume that the engine uses is billed as the size that it has, in milliseconds since 1970; 0: ever since it
    /// is rented.
    #[serde(default, skip_serializing_if = "is_zero")]
    resized_unix_ms: u64,
    /// What the controller has learned.
    #[serde(default)]
    pub learned: Learned,
    /// What everything cost so far.
    #[serde(default)]
    pub totals: Totals,
    /// Of it: what the volume in the engine's slot has cost; `None`: nothing, as far as is booked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rental_cost: Option<Totals>,
}

impl JournalState {
    /// Reads what a file holds.
    ///
    /// # Errors
    /// Why it is no journal that can be read.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let damaged = |error: serde_json::Error| Unreadable::Damaged(format!("is damaged: {error}"));
        let version = files::version(bytes, VERSION)?;
        let mut written: Value = serde_json::from_slice(bytes).map_err(damaged)?;
        if version == 1 {
            count_in_milliseconds(&mut written, "saved_unix");
            if let Some(rental) = written.get_mut("rental") {
                count_in_milliseconds(rental, "started_unix");
            }
        }
        let state: Self = serde_json::from_value(written).map_err(damaged)?;
        let slots: BTreeSet<Slot> = state.other_rentals.iter().map(|rental| rental.slot).collect();
        let of_engine = state.rental.as_ref().is_none_or(|rental| rental.slot == Slot::CACHE);
        if !of_engine || slots.contains(&Slot::CACHE) || slots.len() < state.other_rentals.len() {
            return Err("is damaged: its rentals contradict each other about their slots".to_owned().into());
        }
        Ok(Self { version: VERSION, ..state })
    }

    /// All volumes that are rented now.
    pub fn rentals(&self) -> impl Iterator<Item = RentalRecord> {
        self.rental.iter().chain(&self.other_rentals).cloned()
    }

    /// What all of them have, or may have.
    #[must_use]
    pub fn rented(&self) -> Bytes {
        let sizes = self.rental.iter().chain(&self.other_rentals).map(|rental| rental.size_at_most().get());
        Bytes::new(sizes.fold(0, u64::saturating_add))
    }

    /// What is rented in a slot.
    #[must_use]
    pub fn rental_in(&self, slot: Slot) -> Option<&RentalRecord> {
        self.rental.iter().chain(&self.other_rentals).find(|rental| rental.slot == slot)
    }

    /// Something is rented in the record's slot. A volume that has come into use is a boost, which is counted with that: a
    /// crash right after it takes nothing back. One that is billed for another size from now on ends as the size that it had.
    pub fn set_rental(&mut self, record: RentalRecord, now_unix_ms: u64) {
        if let Some(before) = self.take_rental(record.slot) {
            if before.stage == RentalStage::Adopting && record.stage == RentalStage::Adopted {
                self.learned.boosts += 1;
            }
            let is_resized = before.token == record.token && before.size_at_most() != record.size_at_most();
            if is_resized && record.slot == Slot::CACHE {
                self.book(&before, now_unix_ms);
                self.resized_unix_ms = now_unix_ms;
            }
        }
        match record.slot {
            Slot::CACHE => self.rental = Some(record),
            _ => self.other_rentals.push(record),
        }
    }

    fn take_rental(&mut self, slot: Slot) -> Option<RentalRecord> {
        match slot {
            Slot::CACHE => self.rental.take(),
            slot => self.other_rentals.extract_if(.., |rental| rental.slot == slot).next(),
        }
    }

    /// The rental in a slot is over: what it cost is booked with the next accounts.
    pub fn forget_rental(&mut self, slot: Slot, now_unix_ms: u64) {
        let Some(rental) = self.take_rental(slot) else { return };
        self.book(&rental, now_unix_ms);
        if slot == Slot::CACHE {
            self.resized_unix_ms = 0;
        }
    }

    /// What a rental has cost since it was last right, at the size that it has.
    fn book(&mut self, rental: &RentalRecord, now_unix_ms: u64) {
        let resized = if rental.slot == Slot::CACHE { self.resized_unix_ms } else { 0 };
        let from_unix_ms = match rental.started_unix_ms.max(self.saved_unix_ms).max(resized) {
            0 => now_unix_ms,
            from => from,
        };
        let until_unix_ms = now_unix_ms.max(from_unix_ms);
        self.unbooked.push(Unbooked { size: rental.size_at_most(), from_unix_ms, until_unix_ms });
    }

    /// The journal as its file holds it.
    ///
    /// # Errors
    /// If something in it has no place in JSON.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let version = if self.other_rentals.is_empty() { ONE_RENTAL } else { VERSION };
        serde_json::to_vec_pretty(&Self { version, ..self.clone() }).map_err(io::Error::other)
    }
}

fn is_zero(unix_ms: &u64) -> bool {
    *unix_ms == 0
}

/// Renames `NAME_s` to `NAME_ms`.
fn count_in_milliseconds(object: &mut Value, name: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    if let Some(seconds) = fields.remove(&format!("{name}_s")) {
        let milliseconds = seconds.as_u64().map_or(seconds, |seconds| seconds.saturating_mul(1000).into());
        fields.insert(format!("{name}_ms"), milliseconds);
    }
}

/// The journal of one device on disk.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: JournalState,
}

impl Journal {
    /// Reads the journal in a device's state directory.
    ///
    /// # Errors
    /// If the file cannot be read or makes no sense.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let state = match files::read(&path)? {
            None => JournalState { version: VERSION, ..JournalState::default() },
            Some(bytes) => JournalState::decode(&bytes).map_err(|why| why.of("the journal", &path))?,
        };
        Ok(Self { path, state })
    }

    /// What it says.
    #[must_use]
    pub fn state(&self) -> &JournalState {
        &self.state
    }

    /// Changes it, durably. On an error nothing has changed in memory, and the file may hold either.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn update(&mut self, change: impl FnOnce(&mut JournalState)) -> io::Result<()> {
        let mut state = self.state.clone();
        change(&mut state);
        let bytes = state.encode()?;
        files::write_atomically(&self.path, &bytes)?;
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        assert_eq!(journal.state().rental, None);
        let rental = RentalRecord {
            slot: Slot::CACHE,
            token: "t".to_owned(),
            volume_type: "fast".to_owned(),
            size: Bytes::from_gib(1),
            growing_to: None,
            started_unix_ms: 1,
            stage: RentalStage::Creating,
            volume: None,
            epoch: None,
            disposable: true,
            discarded: None,
            missing: None,
        };
        journal.update(|state| state.rental = Some(rental.clone())).unwrap();
        let again = Journal::open(directory.path()).unwrap();
        assert_eq!(again.state(), journal.state());
        assert_eq!(again.state().rental.as_ref(), Some(&rental));
        let version = |journal: &Journal| files::version(&journal.state().encode().unwrap(), VERSION).unwrap();
        assert_eq!(version(&journal), ONE_RENTAL, "the last release reads it");
        let other = RentalRecord { slot: Slot(1), token: "u".to_owned(), ..rental.clone() };
        journal.update(|state| state.set_rental(other.clone(), 1)).unwrap();
        assert_eq!(version(&journal), VERSION);
        assert_eq!(Journal::open(directory.path()).unwrap().state().rental_in(Slot(1)), Some(&other));
        journal.update(|state| state.forget_rental(Slot(1), 2)).unwrap();
        assert_eq!(journal.state().rentals().collect::<Vec<_>>(), [rental]);
        std::fs::write(directory.path().join(FILE), "[]").unwrap();
        let error = Journal::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains("put a copy of it in its place"), "{error}");
    }

    #[test]
    fn after_a_crash_each_size_of_a_volume_that_grew_is_booked_for_its_time() {
        let (gib, mut state) = (Bytes::from_gib, JournalState { saved_unix_ms: 500, ..JournalState::default() });
        let rental = |size, growing_to| RentalRecord {
            slot: Slot::CACHE,
            token: "t".to_owned(),
            volume_type: "fast".to_owned(),
            size,
            growing_to,
            started_unix_ms: 1000,
            stage: RentalStage::Adopted,
            volume: None,
            epoch: None,
            disposable: false,
            discarded: None,
            missing: None,
        };
        let booked = |state: &JournalState| {
            let times = |part: &Unbooked| (part.size.as_gib(), part.from_unix_ms, part.until_unix_ms);
            state.unbooked.iter().map(times).collect::<Vec<_>>()
        };
        state.set_rental(rental(gib(2), None), 1000);
        assert_eq!(booked(&state), []);
        // It is asked to grow, has grown, and is asked again, which is refused.
        state.set_rental(rental(gib(2), Some(gib(6))), 3000);
        state.set_rental(rental(gib(6), None), 3500);
        state.set_rental(rental(gib(6), Some(gib(9))), 5000);
        state.set_rental(rental(gib(6), None), 6000);
        state = JournalState::decode(&state.encode().unwrap()).unwrap();
        state.forget_rental(Slot::CACHE, 9000);
        assert_eq!(booked(&state), [(2.0, 1000, 3000), (6.0, 3000, 5000), (9.0, 5000, 6000), (6.0, 6000, 9000)]);
        // The next one is another volume.
        state.set_rental(RentalRecord { token: "u".to_owned(), started_unix_ms: 8000, ..rental(gib(1), None) }, 8000);
        state.forget_rental(Slot::CACHE, 9500);
        assert_eq!(booked(&state).last(), Some(&(1.0, 8000, 9500)));
    }

    /// As the first version wrote it, in the middle of a boost.
    const VERSION_1: &str = r#"{
        "version": 1, "saved_unix_s": 1700000000,
        "backing": { "name": "disk 7", "size_bytes": 4096 },
        "rental": {
            "token": "t", "volume_type": "fast", "size": "1 GiB", "started_unix_s": 1700000100, "stage": "adopted",
            "volume": "vol-1", "epoch": "00000000000000000000000000000001", "disposable": false
        },
        "learned": { "next_size": null, "boosts": 3, "rentals": [] },
        "totals": { "agbs": 1.5, "usd": null }
    }"#;

    #[test]
    fn what_the_first_version_wrote_is_read() {
        let state = JournalState::decode(VERSION_1.as_bytes()).unwrap();
        let rental = state.rental.clone().unwrap();
        assert_eq!((state.saved_unix_ms, rental.started_unix_ms), (1_700_000_000_000, 1_700_000_100_000));
        assert_eq!((rental.stage, state.totals.agbs, state.unbooked.len()), (RentalStage::Adopted, 1.5, 0));
        assert_eq!(JournalState::decode(&state.encode().unwrap()).unwrap(), state, "and written as this one does");
    }

    #[test]
    fn a_boost_is_counted_with_the_record_of_its_volume() {
        let mut state = JournalState::decode(VERSION_1.as_bytes()).unwrap();
        assert_eq!((state.learned.boosts, state.last_run), (3, LastRun::Unknown));
        let rental = state.rental.clone().unwrap();
        let mut at = |stage| {
            state.set_rental(RentalRecord { stage, ..rental.clone() }, 1);
            state.learned.boosts
        };
        use RentalStage::{Adopted, Adopting, Attached, Created, Released};
        let counts = [Created, Attached, Adopting, Adopted, Adopted, Released, Adopting, Attached, Adopting, Adopted];
        assert_eq!(counts.map(&mut at), [3, 3, 3, 4, 4, 4, 4, 4, 4, 5]);
    }

    #[test]
    fn rentals_that_contradict_each_other_are_refused() {
        let state = JournalState::decode(VERSION_1.as_bytes()).unwrap();
        let written: Value = serde_json::from_slice(&state.encode().unwrap()).unwrap();
        let of = |slot: u8| {
            let mut rental = written["rental"].clone();
            rental["slot"] = slot.into();
            rental
        };
        let with = |rental: Value, others: Vec<Value>| {
            let mut written = written.clone();
            (written["version"], written["rental"], written["other_rentals"]) = (3.into(), rental, others.into());
            JournalState::decode(written.to_string().as_bytes())
        };
        assert!(with(of(0), vec![of(1), of(2)]).is_ok());
        for (rental, others) in [(of(1), vec![]), (of(0), vec![of(0)]), (of(0), vec![of(3), of(3)])] {
            assert!(with(rental, others).unwrap_err().to_string().contains("contradict each other"));
        }
    }

    #[test]
    fn what_a_newer_version_wrote_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{\"version\": 4, \"everything\": \"else\"}").unwrap();
        let error = Journal::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("was written by a newer surgetank (its version is 4"), "{error}");
        assert!(error.contains("upgrade this one") && !error.contains("in its place"), "it is whole: {error}");
    }

    #[test]
    fn a_rental_that_has_ended_stays_until_it_is_booked() {
        let mut state = JournalState::decode(VERSION_1.as_bytes()).unwrap();
        state.forget_rental(Slot::CACHE, 1_700_000_200_000);
        assert_eq!(state.rental, None);
        let (from_unix_ms, until_unix_ms) = (1_700_000_100_000, 1_700_000_200_000);
        assert_eq!(state.unbooked, [Unbooked { size: Bytes::from_gib(1), from_unix_ms, until_unix_ms }]);
        state.forget_rental(Slot::CACHE, 1_700_000_300_000);
        assert_eq!(state.unbooked.len(), 1, "there was nothing more to forget");
    }
}
