//! Where volumes are: elsewhere each of them would seem to be gone. The place of the first use counts.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::http::sentence;
use crate::ProviderError;

/// Checks that volumes are looked for where they were at the first use. `leads` says what leads to a place now, of which each part
/// is a name, what it was, and what it is. The first place is kept in `file`.
///
/// # Errors
/// `Transient`, with a sentence.
pub fn check(leads: &str, parts: &[(&str, &str, &str)], file: Option<&Path>) -> Result<(), ProviderError> {
    let differ = parts.iter().filter(|(_, first, now)| first != now);
    let differ: Vec<String> =
        differ.map(|(what, first, now)| format!("{what} {} (it was {})", sentence(now), sentence(first))).collect();
    if differ.is_empty() {
        return Ok(());
    }
    let remove = file.map(|file| format!("remove {} and ", file.display())).unwrap_or_default();
    Err(ProviderError::Transient(format!(
        "{leads} to {}, where volumes that are rented cannot be seen: restore them, or {remove}restart the daemon if nothing is rented",
        differ.join(" and ")
    )))
}

/// The place that a file keeps; without the file it keeps `now` from here on. If it cannot, because the disk is full, say, the place counts
/// in this process all the same: nothing could be detached otherwise.
///
/// # Errors
/// `Transient`, with a sentence: it cannot be read.
pub fn first<P: Clone + Serialize + DeserializeOwned>(file: &Path, now: &P) -> Result<P, ProviderError> {
    let failed = |why: &str| {
        let file = file.display();
        Err(ProviderError::Transient(format!("the place_file {file} {why}")))
    };
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).or_else(|_| failed("keeps no place: remove it if nothing is rented")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Err(error) = write(file, now) {
                tracing::warn!(
                    "the place_file {} cannot be written ({error}), so a restart does not notice credentials that lead elsewhere: make \
                     room, or name one in a directory of the daemon's user",
                    file.display()
                );
            }
            Ok(now.clone())
        }
        Err(error) => failed(&format!("cannot be read ({error}): let the daemon's user read it")),
    }
}

/// Whole, or not at all.
fn write(file: &Path, place: &impl Serialize) -> std::io::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = file.with_extension("new");
    let mut writing = fs::File::create(&new)?;
    serde_json::to_writer(&mut writing, place)?;
    writing.write_all(b"\n")?;
    writing.sync_all()?;
    fs::rename(&new, file)?;
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_the_first_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("place");
        let (a, b) = (["a".to_owned(), "c".to_owned()], ["b".to_owned(), "c".to_owned()]);
        assert_eq!(first(&file, &a), Ok(a.clone()));
        assert_eq!(first(&file, &b), Ok(a.clone()));
        let checked = |now: &[String; 2]| {
            let parts = [("the project", &*a[0], &*now[0]), ("the zone", &*a[1], &*now[1])];
            check("the credentials now lead", &parts, Some(&file))
        };
        assert_eq!(checked(&a), Ok(()));
        let error = checked(&b).unwrap_err().to_string();
        assert!(error.contains("the project b (it was a)") && error.contains("remove /"), "{error}");
        assert!(!error.contains("zone"), "{error}");
        for (text, why) in [("", "keeps no place"), ("{}", "keeps no place")] {
            fs::write(&file, text).unwrap();
            assert!(first(&file, &b).unwrap_err().to_string().contains(why));
        }
        assert_eq!(first(&directory.path().join("none/place"), &a), Ok(a.clone()), "it cannot be written");
    }
}
