//! The bearer token: a file that only its owner may read, on either side.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::rand::GetRandomFlags;

/// The shortest token, in bytes: below it guessing would be worth trying.
const TOKEN_BYTES_MIN: usize = 32;
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 1024;

/// A token. It is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads a token file.
    ///
    /// # Errors
    /// One sentence with the remedy: it cannot be read, others may read it, or what it holds is no token.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = read_private("token file", path, TOKEN_BYTES_MAX as u64 + 2)?;
        Self::parse(text.trim_end_matches(['\r', '\n']))
            .ok_or_else(|| format!("the token file {shown} must hold one line of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} letters, digits and signs: write one, as `openssl rand -hex 32` makes it"))
    }

    /// Reads a token file, or makes it with a random token if it is missing.
    ///
    /// # Errors
    /// As [`Secret::read`], or if it cannot be made.
    pub fn read_or_make(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the token file {} cannot be made: {error}", path.display());
        let mut bytes = [0; 32];
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => {
                let written = file.write_all(format!("{text}\n").as_bytes()).and_then(|()| file.sync_all());
                if let Err(error) = written {
                    let _ = std::fs::remove_file(path);
                    return Err(failed(error));
                }
                tracing::info!("the token file {} is made: give the guest a copy", path.display());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        Self::read(path)
    }

    fn parse(text: &str) -> Option<Self> {
        let fits = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len());
        (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }

    /// The value of the `Authorization` header.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether this is the value of the `Authorization` header; how long the comparison takes tells no more than the
    /// token's length.
    #[must_use]
    pub fn is(&self, header: &[u8]) -> bool {
        let expected = self.header();
        let differ = expected.bytes().zip(header).fold(0, |differ, (a, b)| differ | (a ^ b));
        expected.len() == header.len() && std::hint::black_box(differ) == 0
    }
}

/// Reads so many bytes of a file that only its owner may read, who is we or root; `what` is what it is called.
///
/// # Errors
/// One sentence with the remedy: it cannot be read, or others may read it.
pub(crate) fn read_private(what: &str, path: &Path, length_max: u64) -> Result<String, String> {
    let shown = path.display();
    let unreadable = |error: io::Error| format!("the {what} {shown} cannot be read: {error}");
    // NONBLOCK: a FIFO of that name must not hang us.
    let file = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path);
    let file = file.map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(format!("the {what} {shown} is not a regular file"));
    }
    let (owner, we) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if metadata.mode() & 0o077 != 0 || (owner != 0 && owner != we) {
        let mode = metadata.mode() & 0o7777;
        return Err(format!(
            "others may read the {what} {shown} (mode {mode:04o}, user {owner}): run `chmod 600 {shown}`, and let \
             it belong to whoever runs surgetank"
        ));
    }
    let mut text = String::new();
    file.take(length_max).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_for_us_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let made = Secret::read_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Secret::read_or_make(&path).unwrap();
        assert_eq!(made.header(), again.header());
        assert_eq!(format!("{made:?}"), "Secret", "it is not printed");
        assert!(again.is(made.header().as_bytes()));
        let mut other = made.header().into_bytes();
        *other.last_mut().unwrap() ^= 1;
        assert!(!made.is(&other) && !made.is(b"") && !made.is(b"Bearer ") && !made.is(&other[..other.len() - 1]));
    }

    #[test]
    fn a_token_that_others_may_read_or_guess_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(Secret::read(&path).unwrap_err().contains("cannot be read"));
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        for (mode, refused) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o644, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let answer = Secret::read(&path);
            assert_eq!(answer.is_err(), refused, "{mode:o}");
            assert!(answer.err().is_none_or(|error| error.contains("chmod 600")));
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        for text in
            ["", "short", &"a".repeat(1025), "0123456789abcdef 0123456789abcdef", "0123456789abcdef\n0123456789abcdef"]
        {
            fs::write(&path, text).unwrap();
            assert!(Secret::read(&path).unwrap_err().contains("must hold one line"), "{text:?}");
        }
        assert!(Secret::read(directory.path()).unwrap_err().contains("not a regular file"));
    }
}
