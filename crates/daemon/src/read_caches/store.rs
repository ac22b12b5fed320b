//! The records of a read cache's volumes on disk, a file each, so that none is forgotten.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use surgetank_rental::read_cache::{Level, device_tag};
use surgetank_rental::{RentalRecord, Slot};

use crate::files;

const VERSION: u32 = 1;
const SUFFIX: &str = ".json";

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// From whom it is rented.
    provider: String,
    #[serde(flatten)]
    record: RentalRecord,
}

/// The records of one read cache on disk.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// The read caches of which something is on record: devices and levels.
pub(super) fn caches(state_directory: &Path) -> io::Result<Vec<(String, Level)>> {
    let mut caches = Vec::new();
    for entry in std::fs::read_dir(state_directory)? {
        let name = entry?.file_name();
        let of = |level| Some((name.to_str()?.strip_prefix(&device_tag(level, ""))?.to_owned(), level));
        caches.extend(Level::ALL.into_iter().find_map(of));
    }
    Ok(caches)
}

impl Store {
    /// That of a device, in a state directory. Devices have directories of their names there, which have no colon in them.
    pub fn new(state_directory: &Path, device: &str, level: Level) -> Self {
        Self { directory: state_directory.join(device_tag(level, device)) }
    }

    fn path(&self, place: Slot) -> PathBuf {
        self.directory.join(format!("{}{SUFFIX}", place.0))
    }

    /// What is on record, and from whom it is rented.
    ///
    /// # Errors
    /// One sentence: a record cannot be read, or makes no sense.
    pub fn read(&self) -> Result<Vec<(String, RentalRecord)>, String> {
        let unreadable = |error: io::Error| format!("{} cannot be read: {error}", self.directory.display());
        let entries = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unreadable)?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            let place = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok()).map(Slot);
            let Some(place) = place.filter(|place| *place != Slot::CACHE) else { continue };
            let Some(bytes) = files::read(&path).map_err(|error| error.to_string())? else { continue };
            let written = decode(&bytes, place).map_err(|why| why.of("the record", &path).to_string())?;
            records.push((written.provider, written.record));
        }
        records.sort_by_key(|(_, record)| record.slot);
        Ok(records)
    }

    /// Makes a record durable; `None`: nothing is rented in that place any more.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn write(&self, provider: &str, place: Slot, record: Option<&RentalRecord>) -> io::Result<()> {
        let Some(record) = record else {
            files::remove(&self.path(place))?;
            // Not while there are others.
            let _ = std::fs::remove_dir(&self.directory);
            return Ok(());
        };
        files::make_directory(&self.directory)?;
        let written = Written { version: VERSION, provider: provider.to_owned(), record: record.clone() };
        files::write_atomically(&self.path(place), &serde_json::to_vec_pretty(&written).map_err(io::Error::other)?)
    }
}

fn decode(bytes: &[u8], place: Slot) -> Result<Written, files::Unreadable> {
    files::version(bytes, VERSION)?;
    let written: Written = serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?;
    if written.record.slot != place {
        return Err("is damaged: it is that of another place".to_owned().into());
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bytes;
    use surgetank_rental::RentalStage;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_what_contradicts_itself_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), "data", Level::Second);
        assert_eq!(store.read(), Ok(Vec::new()));
        let record = |place| RentalRecord {
            slot: Slot(place),
            token: "t".to_owned(),
            volume_type: "slow".to_owned(),
            size: Bytes::from_gib(1),
            growing_to: None,
            started_unix_ms: 5,
            stage: RentalStage::Creating,
            volume: None,
            epoch: None,
            disposable: true,
            discarded: None,
            missing: None,
        };
        for place in [2, 1] {
            store.write("local", Slot(place), Some(&record(place))).unwrap();
        }
        assert_eq!(caches(state.path()).unwrap(), [("data".to_owned(), Level::Second)]);
        assert_eq!(Store::new(state.path(), "data", Level::First).read(), Ok(Vec::new()));
        assert_eq!(store.read(), Ok(vec![("local".to_owned(), record(1)), ("local".to_owned(), record(2))]));
        std::fs::copy(store.path(Slot(1)), store.path(Slot(3))).unwrap();
        assert!(store.read().unwrap_err().contains("is that of another place"));
        std::fs::write(store.path(Slot(3)), "{").unwrap();
        assert!(store.read().unwrap_err().contains("is damaged"));
        std::fs::write(store.path(Slot(3)), "{\"version\": 9}").unwrap();
        assert!(store.read().unwrap_err().contains("newer surgetank"));
        (1..4).for_each(|place| store.write("local", Slot(place), None).unwrap());
        assert!(caches(state.path()).unwrap().is_empty());
    }
}
