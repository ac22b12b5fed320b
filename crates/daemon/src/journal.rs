//! What a device must know after a crash: the caching volume that is rented and how far it is, what the controller
//! has learned, and the accounts. Written before every call of a provider that changes something.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_policy::Learned;
use surgetank_provider::VolumeId;

use crate::accounting::Totals;
use crate::files;
use crate::identity::Identity;

const FILE: &str = "journal.json";
const VERSION: u32 = 1;

/// How far a rented volume is. The present participles are intents: the call may or may not have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// `create` is being called.
    Creating,
    /// It is there.
    Created,
    /// `attach` is being called.
    Attaching,
    /// It is attached; the engine has nothing on it.
    Attached,
    /// The engine is formatting it.
    Adopting,
    /// The engine uses it.
    Adopted,
    /// The engine has let go of it.
    Released,
    /// `detach` is being called.
    Detaching,
    /// `delete` is being called.
    Deleting,
}

/// A caching volume from before its creation until after its deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rental {
    /// The client token it is created with; also on the volume as a tag.
    pub token: String,
    /// Its type.
    pub volume_type: String,
    /// Its size.
    pub size: Bytes,
    /// Seconds since 1970 at which its creation was asked for.
    pub started_unix_s: u64,
    /// How far it is.
    pub stage: Stage,
    /// The provider's name, once known.
    pub volume: Option<VolumeId>,
    /// The attachment, once the engine was given it.
    pub epoch: Option<String>,
    /// Nothing on it counts: it was never adopted, or CLEAN was read from it after its release. Only then may it be
    /// deleted.
    pub disposable: bool,
}

/// The whole journal of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Seconds since 1970 at which `learned` and `totals` were last right; 0: never.
    pub saved_unix_s: u64,
    /// The backing volume that all this speaks of.
    #[serde(default)]
    pub backing: Option<Identity>,
    /// The volume with the newest data could not be read back when it was last tried.
    #[serde(default)]
    pub recovery_failed: bool,
    /// The volume that is rented now.
    #[serde(default)]
    pub rental: Option<Rental>,
    /// What the controller has learned.
    #[serde(default)]
    pub learned: Learned,
    /// What everything cost so far.
    #[serde(default)]
    pub totals: Totals,
}

impl State {
    /// Reads what a file holds.
    ///
    /// # Errors
    /// Why it is no journal.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let state: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if state.version != VERSION {
            return Err(format!("it has version {}, this daemon knows {VERSION}", state.version));
        }
        Ok(state)
    }

    /// The journal as its file holds it.
    ///
    /// # Errors
    /// If something in it has no place in JSON.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(io::Error::other)
    }
}

/// The journal of one device on disk.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: State,
}

impl Journal {
    /// Reads the journal in a device's state directory.
    ///
    /// # Errors
    /// If the file cannot be read or makes no sense.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let damaged = |why: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the journal {} is damaged: {why}", path.display()))
        };
        let state = match files::read(&path)? {
            None => State { version: VERSION, ..State::default() },
            Some(bytes) => State::decode(&bytes).map_err(damaged)?,
        };
        Ok(Self { path, state })
    }

    /// What it says.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Changes it, durably. On an error nothing has changed in memory, and the file may hold either.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn update(&mut self, change: impl FnOnce(&mut State)) -> io::Result<()> {
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
        let rental = Rental {
            token: "t".to_owned(),
            volume_type: "fast".to_owned(),
            size: Bytes::from_gib(1),
            started_unix_s: 1,
            stage: Stage::Creating,
            volume: None,
            epoch: None,
            disposable: true,
        };
        journal.update(|state| state.rental = Some(rental.clone())).unwrap();
        let again = Journal::open(directory.path()).unwrap();
        assert_eq!(again.state(), journal.state());
        assert_eq!(again.state().rental.as_ref(), Some(&rental));
        std::fs::write(directory.path().join(FILE), "[]").unwrap();
        assert!(Journal::open(directory.path()).unwrap_err().to_string().contains("is damaged"));
    }
}
