//! What is known of a volume: one record, in the store of the pool.
//!
//! A record is the text of a symbolic link in the mount's directory `records`. So it is as durable as the pool's names, whatever happens
//! to benefactors, and it is made in one step. Its name is the volume's and a generation: a record takes the place of another by being made
//! under the next generation, which only one can do. The highest generation counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use crate::{Tags, VolumeDescription, VolumeId, VolumeState};

/// How the volumes' names begin; what follows is the token.
const PREFIX: &str = "vol-";
/// Bytes of a token, at most: names of files have 255.
pub(super) const TOKEN_MAX: usize = 200;
/// Bytes of a record, at most: the text of a link at the target has so many.
pub(super) const TEXT_MAX: usize = 4000;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub state: VolumeState,
    pub volume_type: String,
    pub bytes: u64,
    /// It was attached once, and has a file since.
    pub has_file: bool,
    pub tags: Tags,
}

impl Record {
    pub fn from_text(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// `None`: it is too long.
    pub fn to_text(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok().filter(|text| text.len() <= TEXT_MAX)
    }

    pub fn describe(&self, id: &VolumeId, device: &str) -> VolumeDescription {
        let attached = self.state == VolumeState::Attached;
        VolumeDescription {
            id: id.clone(),
            state: self.state,
            volume_type: self.volume_type.clone(),
            size: Bytes::new(self.bytes),
            tags: self.tags.clone(),
            device: attached.then(|| device.into()),
            disk: None,
            members: Vec::new(),
        }
    }
}

/// The volume that a token makes; `None`: it makes none.
pub(super) fn id_of(token: &str) -> Option<VolumeId> {
    let id = VolumeId(format!("{PREFIX}{token}"));
    is_ours(&id).then_some(id)
}

/// Whether a volume may be one of a pool, by its name.
pub(super) fn is_ours(id: &VolumeId) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    id.0.strip_prefix(PREFIX)
        .is_some_and(|token| !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(plain))
}

/// A record's name.
pub(super) fn name(id: &VolumeId, generation: u64) -> String {
    format!("{}.{generation}", id.0)
}

/// Of what volume and generation a record is, by its name.
pub(super) fn parse(name: &str) -> Option<(VolumeId, u64)> {
    let (id, generation) = name.rsplit_once('.')?;
    let id = VolumeId(id.to_owned());
    Some((id, generation.parse().ok()?)).filter(|(id, _)| is_ours(id))
}

/// All records of a volume: of which generations they are, and the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub generations: Vec<u64>,
    pub newest: u64,
    pub record: Record,
}

/// The volumes among links, by their names and texts.
///
/// # Errors
/// The name of a record that cannot be read: what it says of a volume is not known.
pub(super) fn collect(links: impl IntoIterator<Item = (String, Vec<u8>)>) -> Result<BTreeMap<VolumeId, Known>, String> {
    let mut newest: BTreeMap<VolumeId, (Vec<u64>, u64, Vec<u8>)> = BTreeMap::new();
    for (name, text) in links {
        let Some((id, generation)) = parse(&name) else { continue };
        let known = newest.entry(id).or_default();
        known.0.push(generation);
        if known.2.is_empty() || generation > known.1 {
            (known.1, known.2) = (generation, text);
        }
    }
    let mut found = BTreeMap::new();
    for (id, (mut generations, newest, text)) in newest {
        generations.sort_unstable();
        let record = Record::from_text(&text).ok_or_else(|| name(&id, newest))?;
        found.insert(id, Known { generations, newest, record });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_generation_counts_and_names_of_others_do_not() {
        let record = |bytes| Record {
            state: VolumeState::Available,
            volume_type: "fast".into(),
            bytes,
            has_file: false,
            tags: Tags::new(),
        };
        let link = |name: &str, bytes| (name.to_owned(), record(bytes).to_text().unwrap());
        let links =
            [link("vol-a.9", 9), link("vol-a.10", 10), link("vol-b-0.1", 1), link("other.1", 1), link("vol-c", 1)];
        let found = collect(links).unwrap();
        assert_eq!(found.keys().map(|id| &*id.0).collect::<Vec<_>>(), ["vol-a", "vol-b-0"]);
        let a = &found[&VolumeId("vol-a".into())];
        assert_eq!((a.newest, a.record.bytes, &*a.generations), (10, 10, &[9, 10][..]));
        assert_eq!(collect([("vol-x.1".to_owned(), b"{".to_vec())]), Err("vol-x.1".to_owned()));
    }

    #[test]
    fn tokens_that_make_no_name_of_a_file_make_no_volume() {
        for token in ["", "a/b", "..", "a.b", "\0", "\u{e9}", "a+b"] {
            assert_eq!(id_of(token), None, "{token:?}");
        }
        assert_eq!(id_of(&"a".repeat(TOKEN_MAX + 1)), None);
        assert_eq!(id_of("3f-0"), Some(VolumeId("vol-3f-0".into())));
    }
}
