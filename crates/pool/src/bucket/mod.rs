//! Buckets of object stores that speak S3, as targets.
//!
//! Managers alone have credentials: from their environment, as the clients of these stores take them. Benefactors get single requests, signed for
//! minutes. The clients are the feature `objects`: without it every bucket is refused.

#[cfg(not(feature = "objects"))]
mod absent;
mod address;
#[cfg(feature = "objects")]
mod client;
#[cfg(feature = "objects")]
mod failed;
#[cfg(feature = "objects")]
mod web;

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

#[cfg(not(feature = "objects"))]
pub use self::absent::{Bucket, Web};
pub use self::address::{Address, BadAddress, is_address};
#[cfg(feature = "objects")]
pub use self::client::Bucket;
#[cfg(feature = "objects")]
pub use self::web::Web;

/// Bytes of a part: every store takes it, and wants all but the last to be equal.
pub const PART: u64 = 8 << 20;
/// Parts of an object, at most.
pub const PARTS_MAX: u64 = 10_000;
/// Bytes of an object, at most.
pub const OBJECT_MAX: u64 = 5 << 40;
/// Bytes of a key, at most.
const KEY_MAX: usize = 1024;
/// Bytes of what a store copies at a time. A larger object is copied as an upload of parts, which can be ended: a copy that the store completes after its
/// time is over would replace what is there by then.
pub const COPY_MAX: u64 = 64 << 20;
/// Bytes of what the pool says of itself in a bucket, at most.
#[cfg(feature = "objects")]
const TEXT_MAX: u64 = 16 << 10;
/// What the pool says of an object that it has put there.
const MARK: &str = "surgetank";

/// How stores are reached, beyond their addresses: variables as their clients know them, such as `AWS_ENDPOINT_URL`.
#[derive(Clone, Default)]
pub struct Options(Arc<[(String, String)]>);

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are among the values.
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Options {
    /// What the environment of this process says.
    #[must_use]
    pub fn from_env() -> Self {
        let all =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self(all.filter(|(name, _)| name.starts_with("AWS_")).collect())
    }

    /// These.
    #[must_use]
    pub fn of(all: &[(&str, &str)]) -> Self {
        Self(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// As the store has it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// That of names below a target; without names the target's own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidFilename`]: no object can be called so.
    pub fn below<'a>(address: &Address, names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let mut key = address.prefix.clone();
        for name in names {
            let refused =
                |why: &str| Err(Error::new(ErrorKind::InvalidFilename, format!("no object is called so: {why}")));
            let Ok(name) = std::str::from_utf8(name) else { return refused("its name is not UTF-8") };
            if !is_name(name.as_bytes()) {
                return refused("its name has control characters");
            }
            if !key.is_empty() {
                key.push('/');
            }
            key.push_str(name);
            if key.len() > KEY_MAX {
                return refused("its path is longer than 1024 bytes");
            }
        }
        Ok(Self(key))
    }
}

/// Whether a name can be part of a key.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    let is_plain = |name: &str| !name.contains(|of: char| of.is_ascii_control());
    !matches!(name, b"" | b"." | b"..") && std::str::from_utf8(name).is_ok_and(is_plain)
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes.
    pub size: u64,
    /// What the store calls its content.
    pub tag: String,
    /// What it calls this content among all that was there, if it tells them apart.
    pub version: Option<String>,
    /// When it was put there, in nanoseconds since 1970.
    pub modified: u64,
    /// What the pool says of it, if it has put it there. A listing does not have it.
    pub mark: Option<String>,
}

impl Found {
    /// The number that stands for its content.
    #[must_use]
    pub fn number(&self) -> u64 {
        number(self.tag.trim_matches('"').as_bytes())
    }
}

/// A number that two texts do not share by chance.
#[must_use]
pub fn number(text: &[u8]) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// On what a put rests.
#[derive(Clone, Copy, Debug)]
pub enum Put<'a> {
    /// Nothing is there.
    New,
    /// This is there.
    Instead(&'a Found),
    /// Whatever is there.
    Over,
}

/// What is directly below a key: objects, and names below which others are.
pub type Children = (Vec<(String, Found)>, Vec<String>);

/// Bytes of each part of an object: so that there are not too many.
#[must_use]
pub fn part_of(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).div_ceil(PART).max(1) * PART
}

/// What the pool says of an object.
#[must_use]
pub fn marked(mark: &str) -> (String, String) {
    (MARK.to_owned(), mark.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_key_of_its_path_or_none() {
        let (address, root) = ("s3://b/run 1/x".parse().unwrap(), "s3://b".parse().unwrap());
        let key = |names: &[&[u8]]| Key::below(&address, names.iter().copied()).map(|key| key.text().to_owned());
        assert_eq!(key(&[b"d", b"a#b%20 c"]).unwrap(), "run 1/x/d/a#b%20 c");
        assert_eq!(Key::below(&root, [&b"a"[..]]).unwrap().text(), "a");
        let long: &[u8] = &[b'a'; 255];
        let wrong: [&[&[u8]]; 4] = [&[b"\xff"], &[b"a\nb"], &[b"..", b"x"], &[long; 5]];
        for wrong in wrong {
            assert_eq!(key(wrong).unwrap_err().kind(), ErrorKind::InvalidFilename, "{wrong:?}");
        }
    }

    #[test]
    fn parts_are_equal_and_never_too_many() {
        assert_eq!([0, 1, PART, PART * PARTS_MAX].map(part_of), [PART; 4]);
        for size in [PART * PARTS_MAX + 1, 1 << 40, OBJECT_MAX] {
            assert!(size.div_ceil(part_of(size)) <= PARTS_MAX && part_of(size).is_multiple_of(PART), "{size}");
        }
    }

    #[test]
    fn options_are_shown_without_their_values() {
        let shown = format!("{:?}", Options::of(&[("AWS_SECRET_ACCESS_KEY", "secret")]));
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("\"secret\""), "{shown}");
    }
}
