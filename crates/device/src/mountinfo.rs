//! What is mounted where, as the kernel tells it: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of its device. File systems that may have several devices, and those without one, have numbers that begin with `0:`.
    pub number: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of its file system.
    pub kind: String,
    /// What is mounted: a device, or what the file system calls itself.
    pub source: PathBuf,
}

/// All mounts that this process sees, in order of mounting.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// The mounts of such a file's text. Lines of another form are passed over.
#[must_use]
pub fn parse(text: &str) -> Vec<Mount> {
    // Fields: mount, parent, device, root, mount point, options, ... "-", type, source, options.
    let mount = |line: &str| {
        let (fields, file_system) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(2);
        let (number, point) = (fields.next()?.to_owned(), unescape(fields.nth(1)?));
        let mut file_system = file_system.split(' ');
        Some(Mount { number, point, kind: file_system.next()?.to_owned(), source: unescape(file_system.next()?) })
    };
    text.lines().filter_map(mount).collect()
}

/// The mount that a path lies in: the innermost; of several at one place the last, which hides the others.
#[must_use]
pub fn innermost<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// Undoes the octal escapes with which the kernel's tables write spaces, tabs, newlines and backslashes.
#[must_use]
pub fn unescape(field: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let digits =
            tail.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        for (escaped, path) in [
            (r"/a\040b\134c", "/a b\\c"),
            (r"/a\04", r"/a\04"),
            ("ends\\", "ends\\"),
            (r"\+12", r"\+12"),
            (r"\777", r"\777"),
        ] {
            assert_eq!(unescape(escaped), PathBuf::from(path), "{escaped}");
        }
    }

    #[test]
    fn a_path_lies_in_the_innermost_mount_and_in_the_last_of_several() {
        let text = "1 0 8:0 / / rw shared:1 - ext4 /dev/sda rw\nno mount\n2 1 0:44 / /a\\040b rw - tmpfs none rw\n\
                    3 2 0:45 / /a\\040b rw master:2 - fuse.x pool://h\\040st rw\n";
        let mounts = parse(text);
        assert_eq!(mounts.iter().map(|mount| &*mount.number).collect::<Vec<_>>(), ["8:0", "0:44", "0:45"]);
        assert_eq!(innermost(&mounts, Path::new("/a b/c")), mounts.last());
        assert_eq!(mounts[2].kind, "fuse.x");
        assert_eq!(mounts[2].source, PathBuf::from("pool://h st"));
        assert_eq!(innermost(&mounts, Path::new("/a bc")), mounts.first());
        assert!(read().unwrap().iter().any(|mount| mount.point == Path::new("/")));
    }
}
