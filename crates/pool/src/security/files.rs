//! Files with keys and tokens.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::revoked::Revoked;
use super::token::{Key, Token};
use super::{Access, Credentials, tls};

/// The key's file in a pool's directory.
pub const KEY_FILE: &str = "key";
/// Longer files are none of these, in bytes.
const LENGTH_MAX: u64 = 64 << 10;

/// What a file with a key or a token has.
#[derive(Debug)]
enum Secret {
    Key(Key),
    Token(Token),
}

/// Why there is no key or token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSecret(pub String);

/// The text of a file that nobody but its owner reads, and its owner.
pub(super) fn private(path: &Path, what: &str, remedy: &str) -> Result<(String, u32), NoSecret> {
    let shown = path.display();
    let failed = |error: std::io::Error| NoSecret(format!("{what} {shown} cannot be read: {error}: {remedy}"));
    let file = File::open(path).map_err(failed)?;
    // Of the open file, not of the path: another could take its place in between.
    let found = file.metadata().map_err(failed)?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(NoSecret(format!(
            "{what} {shown} can be read by others than its owner (its mode is {mode:04o}): run `chmod 600 {shown}`, and make a new \
             one if somebody may have read it"
        )));
    }
    let mut text = String::new();
    file.take(LENGTH_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok((text, found.uid()))
}

fn secret(path: &Path, remedy: &str) -> Result<(Secret, u32), NoSecret> {
    let (text, owner) = private(path, "the pool's key or token", remedy)?;
    let key = Key::from_text(&text).map(Secret::Key);
    match key.or_else(|| Token::from_text(&text).map(Secret::Token)) {
        Some(secret) => Ok((secret, owner)),
        // What it has is not repeated.
        None => Err(NoSecret(format!("{} has neither a key nor a token of a pool: {remedy}", path.display()))),
    }
}

impl Access {
    /// With the key or the token that a file has.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn read(path: &Path) -> Result<Self, NoSecret> {
        let remedy = "ask whoever runs the pool for a token (`surgetank pool token`), and name its file with --token";
        let (secret, owner) = secret(path, remedy)?;
        let mut access = match secret {
            Secret::Key(key) => Self::member(&key),
            Secret::Token(token) => Self::with(token),
        };
        access.believes.push(owner);
        Ok(access)
    }
}

impl Credentials {
    /// With the key that a file has.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn read(path: &Path, tls: Option<tls::Tls>) -> Result<Self, NoSecret> {
        let remedy = format!(
            "it is the file `{KEY_FILE}` in the directory of the pool, where that began: name that directory, or a copy of the key"
        );
        match secret(path, &remedy)? {
            (Secret::Key(key), owner) => Ok(Self { key, owner, tls, revoked: Revoked::default() }),
            (Secret::Token(_), _) => Err(NoSecret(format!(
                "{} has a token, which lets mounts in: managers and benefactors need the pool's key, the file `{KEY_FILE}` in its \
                 directory",
                path.display()
            ))),
        }
    }

    /// With the key in a pool's directory, which is made if there is none.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn of_directory(directory: &Path, tls: Option<tls::Tls>) -> Result<Self, NoSecret> {
        let path = directory.join(KEY_FILE);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            _ => return Self::read(&path, tls),
        }
        let failed = |error: std::io::Error| {
            NoSecret(format!("cannot make {}: {error}: name another directory", path.display()))
        };
        let key = Key::generate().map_err(failed)?;
        write_private(&path, &format!("{}\n", key.to_text())).map_err(failed)?;
        // Whoever was faster has made the one that counts.
        Self::read(&path, tls)
    }
}

/// Writes a file that is there whole or not at all, and that nobody but its owner reads, from its first moment; one that is there stays.
///
/// # Errors
/// The system's.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match std::fs::hard_link(&aside, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    })();
    let _ = std::fs::remove_file(&aside);
    written
}
