//! The record of an array on disk: which volumes it has, so that none is forgotten. The members themselves say which of them count.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use surgetank_rental::array::{ArrayRecord, device_tag};

use crate::files;

const FILE: &str = "array.json";
const CREDITS: &str = "credits.json";
const ROTATION: &str = "rotation.json";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// From whom its volumes are rented.
    provider: String,
    #[serde(flatten)]
    record: ArrayRecord,
}

/// The record of one array on disk.
#[derive(Debug)]
pub struct ArrayStore {
    directory: PathBuf,
    provider: String,
}

impl ArrayStore {
    /// That of an array, in a state directory. Devices have directories of their names there, which have no colon in them.
    #[must_use]
    pub fn new(state_directory: &Path, name: &str, provider: &str) -> Self {
        Self { directory: state_directory.join(device_tag(name)), provider: provider.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Where the credits of its members are on record.
    #[must_use]
    pub fn credits(&self) -> PathBuf {
        self.directory.join(CREDITS)
    }

    /// Where it is on record what was learned of its rotation.
    #[must_use]
    pub fn rotation(&self) -> PathBuf {
        self.directory.join(ROTATION)
    }

    /// What is on record; `None`: there is no such array.
    ///
    /// # Errors
    /// One sentence with the remedy: it cannot be read, makes no sense, or speaks of volumes of another provider.
    pub fn read(&self) -> Result<Option<ArrayRecord>, String> {
        let path = self.path();
        let Some(bytes) = files::read(&path).map_err(|error| error.to_string())? else { return Ok(None) };
        let written = decode(&bytes).map_err(|why| why.of("the record", &path).to_string())?;
        if written.provider != self.provider {
            return Err(format!(
                "the volumes of the array are rented from \"{0}\", and its section names \"{1}\": write provider = \"{0}\" there",
                written.provider, self.provider
            ));
        }
        Ok(Some(written.record))
    }

    /// Makes a record durable; `None`: there is no such array any more.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn write(&self, record: Option<&ArrayRecord>) -> io::Result<()> {
        let Some(record) = record else {
            files::remove(&self.path())?;
            files::remove(&self.credits())?;
            files::remove(&self.rotation())?;
            // What else lies there is not ours.
            let _ = std::fs::remove_dir(&self.directory);
            return Ok(());
        };
        files::make_directory(&self.directory)?;
        let written = Written { version: VERSION, provider: self.provider.clone(), record: record.clone() };
        files::write_atomically(&self.path(), &serde_json::to_vec_pretty(&written).map_err(io::Error::other)?)
    }
}

fn decode(bytes: &[u8]) -> Result<Written, files::Unreadable> {
    files::version(bytes, VERSION)?;
    let written: Written = serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?;
    written.record.check()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_what_contradicts_itself_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let store = ArrayStore::new(state.path(), "scratch", "local");
        assert_eq!(store.read(), Ok(None));
        let record = ArrayRecord::default();
        store.write(Some(&record)).unwrap();
        assert_eq!(store.read(), Ok(Some(record)));
        let other = ArrayStore::new(state.path(), "scratch", "host");
        assert!(other.read().unwrap_err().contains("write provider = \"local\" there"));
        let damage = |text: &str| {
            std::fs::write(store.path(), text).unwrap();
            store.read().unwrap_err()
        };
        assert!(damage("{").contains("is damaged"));
        assert!(damage("{\"version\": 9}").contains("newer surgetank"));
        let twice = r#"{"version": 1, "provider": "local", "facts": {"array": "", "stage": "made", "members": [3]}}"#;
        assert!(damage(twice).contains("names a member that is none of its volumes"));
        store.write(None).unwrap();
        assert_eq!(store.read(), Ok(None));
    }
}
