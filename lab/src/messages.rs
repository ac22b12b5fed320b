//! What a guest and the host tell each other while the guest runs: files of the directory that both see, each a document
//! that is there as a whole or not at all.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::Guest;
use crate::interrupt::Interrupt;

/// Where a guest sees the directory.
pub const SHARE: &str = "/lab";

/// Writes a message.
pub fn tell(directory: &Path, message: &str, what: &impl Serialize) -> anyhow::Result<()> {
    let (file, new) = (directory.join(message), directory.join(format!("{message}.new")));
    fs::write(&new, serde_json::to_vec(what)?).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads a message, if it is there.
pub fn heard<T: DeserializeOwned>(directory: &Path, message: &str) -> anyhow::Result<Option<T>> {
    let Ok(text) = fs::read(directory.join(message)) else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).with_context(|| format!("cannot read {message}"))
}

/// Writes a message in a guest.
pub fn tell_host(message: &str, what: &impl Serialize) -> anyhow::Result<()> {
    tell(Path::new(SHARE), message, what)
}

/// Reads a message in a guest, if it is there.
pub fn host_told<T: DeserializeOwned>(message: &str) -> anyhow::Result<Option<T>> {
    heard(Path::new(SHARE), message)
}

/// Waits for a message of a guest's, as long as `hope` has no error.
pub fn wait<T: DeserializeOwned>(
    interrupt: &Interrupt,
    guest: &mut Guest,
    message: &str,
    timeout: Duration,
    mut hope: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    interrupt.wait_for(&format!("the guest's {message}"), timeout, || {
        let ended = guest.has_ended();
        if let Some(heard) = heard(guest.results(), message)? {
            return Ok(Some(heard));
        }
        if ended {
            let said = format!("{} {}", guest.stdout(), guest.stderr());
            let said = said.trim().lines().last().unwrap_or("nothing").to_owned();
            bail!("the guest ended before its {message}: {}; it said {said}", guest.wait(interrupt)?.describe());
        }
        hope().map(|()| None)
    })
}
