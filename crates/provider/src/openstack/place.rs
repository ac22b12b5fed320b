//! Where volumes are: project, Cinder and Nova. Elsewhere each volume would seem to be gone.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::ProviderError;
use crate::cloud::http::sentence;

/// What a login leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The project.
    pub project: String,
    /// Where Cinder is, without a slash at the end.
    pub cinder: String,
    /// Where Nova is.
    pub nova: String,
}

impl Place {
    /// Checks that a login leads to the same place as the first one, which is this, and is kept in `file`.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn check(&self, now: &Self, file: Option<&Path>) -> Result<(), ProviderError> {
        let parts = [
            ("the project", &self.project, &now.project),
            ("Cinder's endpoint", &self.cinder, &now.cinder),
            ("Nova's endpoint", &self.nova, &now.nova),
        ];
        let differ = parts.iter().filter(|(_, first, now)| first != now);
        let differ: Vec<String> =
            differ.map(|(what, first, now)| format!("{what} {} (it was {})", sentence(now), sentence(first))).collect();
        if differ.is_empty() {
            return Ok(());
        }
        let remove = file.map(|file| format!("remove {} and ", file.display())).unwrap_or_default();
        Err(ProviderError::Transient(format!(
            "the credentials, or the catalog of Keystone, now lead to {}, where volumes that are rented cannot be seen: restore them, or {remove}restart the daemon if nothing is rented",
            differ.join(" and ")
        )))
    }
}

/// The place that a file keeps; without the file it keeps `now` from here on. If it cannot, because the disk is full, say, the place counts
/// in this process all the same: nothing could be detached otherwise.
///
/// # Errors
/// `Transient`, with a sentence: it cannot be read.
pub fn first(file: &Path, now: &Place) -> Result<Place, ProviderError> {
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
fn write(file: &Path, place: &Place) -> std::io::Result<()> {
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

    fn place(project: &str) -> Place {
        Place { project: project.to_owned(), cinder: "https://c.example/v3".to_owned(), nova: String::new() }
    }

    #[test]
    fn a_file_keeps_the_first_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("place");
        assert_eq!(first(&file, &place("a")), Ok(place("a")));
        assert_eq!(first(&file, &place("b")), Ok(place("a")));
        assert_eq!(place("a").check(&place("a"), Some(&file)), Ok(()));
        let error = place("a").check(&place("b"), Some(&file)).unwrap_err().to_string();
        assert!(error.contains("the project b (it was a)") && error.contains("remove /"), "{error}");
        assert!(!error.contains("endpoint"), "{error}");
        for (text, why) in [("", "keeps no place"), ("{}", "keeps no place")] {
            fs::write(&file, text).unwrap();
            assert!(first(&file, &place("b")).unwrap_err().to_string().contains(why));
        }
        assert_eq!(first(&directory.path().join("none/place"), &place("a")), Ok(place("a")), "it cannot be written");
    }
}
