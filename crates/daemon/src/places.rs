//! Directories in which nobody can plant what we then believe: neither in them, nor on the way to them.
//!
//! The way is walked from the root, as `safe_path` of OpenSSH (StrictModes) and `chase` of systemd (safe transitions)
//! look at it. Whatever is on it must belong to root or to our own user: directories and symbolic links. Where others may
//! write to a directory on the way, they could put another one in the place of the next; but not of one that is ours in
//! a sticky directory. In the last one others could plant names of their own, so there nothing excuses it.
//!
//! A group may write to a directory on the way if it has no members but root and ourselves: root's own group, and one
//! that our user has for itself, which many systems give to every user together with a umask of 002.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

use crate::config::Config;
use crate::files;

/// Symbolic links that a path may lead through (as in the kernel).
const LINKS_MAX: usize = 40;
/// The group may write.
const GROUP_WRITES: u32 = 0o020;
/// Everybody may write.
const OTHERS_WRITE: u32 = 0o002;
/// Only its owner may rename or remove what lies there.
const STICKY: u32 = 0o1000;

/// Makes a directory (and its parents) that only its owner may enter, durably, unless others could modify it.
///
/// # Errors
/// One sentence: it cannot be made, or who could modify it and the remedy.
pub fn make(path: &Path) -> Result<(), String> {
    check(path)?;
    files::make_directory(path).map_err(|error| format!("the directory {} cannot be made: {error}", path.display()))?;
    // Somebody may have been faster than we where everybody may write.
    check(path)
}

/// Refuses the directories of a daemon, as [`check`] does. Those of NBD sockets are checked with their devices.
///
/// # Errors
/// One sentence: who could modify which, and the remedy.
pub fn check_all(config: &Config) -> Result<(), String> {
    let volumes = config.providers.values().map(|provider| provider.directory());
    let directories = [Some(&*config.state_directory), Some(&config.run_directory), config.control_socket.parent()];
    directories.into_iter().chain(volumes).flatten().try_for_each(check)
}

/// Refuses a directory in which others could plant something, or in whose place they could put another. What is not
/// there yet is not looked at.
///
/// # Errors
/// One sentence: who could, and the remedy.
pub fn check(path: &Path) -> Result<(), String> {
    let we = geteuid().as_raw();
    let trusted = |user| user == 0 || user == we;
    walk(path, |step| {
        let (shown, owner) = (step.path.display(), step.found.uid());
        let (way, comma) = match step.last {
            true => (String::new(), ""),
            false => (format!(", on the way to {}", path.display()), ","),
        };
        if !trusted(owner) {
            let follow = if step.found.is_symlink() { "-h " } else { "" };
            return Err(format!(
                "{shown}{way}{comma} belongs to the user {owner} and not to {we}, who runs surgetank: run `chown {follow}{we} \
                 {shown}`, or name another directory"
            ));
        }
        if step.may_be_changed_by_others(we) {
            let mode = step.found.mode() & 0o7777;
            return Err(format!("others may write to {shown}{way} (its mode is {mode:04o}): run `chmod go-w {shown}`"));
        }
        Ok(())
    })
}

/// The user, neither root nor our own, to whom a directory was given by those: nobody else could have put it there.
pub fn owner_of(directory: &Path) -> Option<u32> {
    let we = geteuid().as_raw();
    let (mut given, mut last) = (None, None);
    let walked = walk(directory, |step| {
        let owner = step.found.uid();
        last = Some(owner);
        let refused = || Err(String::new());
        if owner != 0 && owner != we && given != Some(owner) {
            let parent = step.path.parent().and_then(|parent| fs::symlink_metadata(parent).ok());
            let made_by_them = parent.is_some_and(|parent| !is_writable(&parent, we));
            if given.is_some() || !step.found.is_dir() || !made_by_them {
                return refused();
            }
            given = Some(owner);
        }
        if step.may_be_changed_by_others(we) { refused() } else { Ok(()) }
    });
    walked.ok().and(given).filter(|given| last == Some(*given))
}

/// Something that a path leads over: a directory or a symbolic link.
struct Step<'a> {
    path: &'a Path,
    found: &'a fs::Metadata,
    /// It is what the path leads to.
    last: bool,
}

impl Step<'_> {
    fn may_be_changed_by_others(&self, we: u32) -> bool {
        let excused = self.found.mode() & STICKY != 0 && !self.last;
        // The mode of a link says nothing.
        !self.found.is_symlink()
            && !excused
            && (is_writable(self.found, we) || self.last && self.found.mode() & GROUP_WRITES != 0)
    }
}

/// Whether others than root and our user may write. An access list counts as well: its mask is the group's bits.
fn is_writable(found: &fs::Metadata, we: u32) -> bool {
    let mode = found.mode();
    mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && !is_ours(found.gid(), we)
}

/// Whether nobody but root and our user is in a group.
fn is_ours(group: u32, we: u32) -> bool {
    if group == 0 {
        return true;
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    is_private(group, we, &read("/etc/group"), &read("/etc/passwd"))
}

/// Whether a group is the user's own and has no other members, as group(5) and passwd(5) have it.
fn is_private(group: u32, user: u32, groups: &str, users: &str) -> bool {
    fn number(line: &str, field: usize) -> Option<u32> {
        line.split(':').nth(field)?.parse().ok()
    }
    let Some(own) = users.lines().find(|line| number(line, 2) == Some(user) && number(line, 3) == Some(group)) else {
        return false;
    };
    let name = own.split(':').next();
    let mut known = groups.lines().filter(|line| number(line, 2) == Some(group)).peekable();
    let alone = |line: &str| {
        let members = line.split(':').nth(3).unwrap_or_default().split(',').map(str::trim);
        members.filter(|member| !member.is_empty()).all(|member| Some(member) == name || member == "root")
    };
    known.peek().is_some()
        && known.all(alone)
        && users
            .lines()
            .all(|line| number(line, 3) != Some(group) || matches!(number(line, 2), Some(id) if id == user || id == 0))
}

/// Shows `judge` all that a path leads over, from the root on, until something is not there. The parent of a mere name is
/// empty and means where we are.
fn walk(path: &Path, mut judge: impl FnMut(&Step<'_>) -> Result<(), String>) -> Result<(), String> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let unusable = |error: io::Error| format!("{} cannot be looked at: {error}", path.display());
    let mut left: VecDeque<OsString> = names(&std::path::absolute(path).map_err(unusable)?).collect();
    let mut at = PathBuf::from("/");
    let mut look = |path: &Path, last| -> Result<Option<fs::Metadata>, String> {
        match fs::symlink_metadata(path) {
            Ok(found) => judge(&Step { path, found: &found, last }).map(|()| Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{} cannot be looked at: {error}", path.display())),
        }
    };
    look(&at, false)?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        let Some(found) = look(&next, false)? else { return Ok(()) };
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(unusable(io::Error::from_raw_os_error(libc::ELOOP)));
        }
        let target = fs::read_link(&next).map_err(unusable)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left = names(&target).chain(left).collect();
    }
    look(&at, true).map(drop)
}

/// The names that a path consists of, `..` among them.
fn names(path: &Path) -> impl Iterator<Item = OsString> + use<'_> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    /// Neither root nor whoever runs the tests.
    const OTHER_USER: u32 = 65534;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn assert_refused(path: &Path, parts: &[&str]) {
        let refusal = check(path).expect_err("it is refused");
        assert!(parts.iter().all(|part| refusal.contains(part)) && !refusal.contains('\n'), "{refusal}");
    }

    #[test]
    fn a_directory_in_which_others_may_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for (mode, refused) in
            [(0o700, false), (0o755, false), (0o775, true), (0o707, true), (0o1777, true), (0o1775, true)]
        {
            set_mode(path, mode);
            assert_eq!(check(path).is_err(), refused, "{mode:o}");
        }
        assert_refused(path, &["others may write to", &format!("`chmod go-w {}`", path.display())]);
        set_mode(path, 0o700);
        if chown(path, Some(OTHER_USER), None).is_ok() && geteuid().is_root() {
            assert_refused(path, &["belongs to the user 65534", &format!("`chown 0 {}`", path.display())]);
        }
    }

    #[test]
    fn a_directory_in_whose_place_others_could_put_another_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (above, path) = (directory.path().join("above"), directory.path().join("above/between/path"));
        make(&path).unwrap();
        for (mode, refused) in [(0o755, false), (0o757, true), (0o777, true), (0o1777, false), (0o1757, false)] {
            set_mode(&above, mode);
            assert_eq!(check(&path).is_err(), refused, "{mode:o}");
            // What is not there yet could be made by others, too.
            assert_eq!(make(&above.join("new/path")).is_err(), refused, "{mode:o}");
            let _ = fs::remove_dir_all(above.join("new"));
        }
        set_mode(&above, 0o777);
        assert_refused(&path, &["others may write to", "on the way to", &format!("`chmod go-w {}`", above.display())]);
        set_mode(&above, 0o755);
        let between = above.join("between");
        if chown(&between, Some(OTHER_USER), None).is_ok() && geteuid().is_root() {
            assert_refused(&path, &["belongs to the user 65534", &format!("`chown 0 {}`", between.display())]);
        }
    }

    #[test]
    fn a_group_may_write_on_the_way_if_only_root_and_we_are_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let (above, path) = (directory.path().join("above"), directory.path().join("above/path"));
        make(&path).unwrap();
        if chown(&above, None, Some(0)).is_ok() {
            set_mode(&above, 0o2775);
            assert_eq!(check(&path), Ok(()), "root's own group");
            chown(&above, None, Some(OTHER_USER)).unwrap();
            set_mode(&above, 0o2775);
            assert_refused(&path, &["others may write to", "(its mode is 2775)"]);
        }
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:100::/home/bob:/bin/sh\n";
        for (groups, private) in [
            ("ann:x:1000:\n", true),
            ("ann:x:1000:ann,root\n", true),
            ("ann:x:1000:bob\n", false),
            ("ann:x:1000:\nalias:x:1000:bob\n", false),
            ("users:x:100:\n", false),
            ("", false),
        ] {
            assert_eq!(is_private(1000, 1000, groups, users), private, "{groups:?}");
        }
        assert!(!is_private(1000, 1000, "ann:x:1000:\n", &users.replace(":100:", ":1000:")), "another's first group");
        assert!(!is_private(100, 1000, "users:x:100:\n", users), "not our user's own");
    }

    #[test]
    fn links_are_followed_if_nobody_else_could_have_made_them() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        make(&at("real/path")).unwrap();
        symlink("real", at("relative")).unwrap();
        symlink(at("relative/../real"), at("absolute")).unwrap();
        assert_eq!(check(&at("relative/path")), Ok(()));
        assert_eq!(check(&at("absolute/path/../path")), Ok(()));
        set_mode(&at("real"), 0o777);
        assert_refused(&at("absolute/path"), &["others may write to", "real", "on the way to"]);
        assert_refused(&at("real/path/.."), &["others may write to"]);
        set_mode(&at("real"), 0o755);
        symlink("loop", at("loop")).unwrap();
        assert_refused(&at("loop/path"), &["cannot be looked at"]);
        if lchown(at("relative"), Some(OTHER_USER), None).is_ok() && geteuid().is_root() {
            assert_refused(&at("relative/path"), &["belongs to the user 65534", "`chown -h 0 "]);
        }
    }

    #[test]
    fn a_place_belongs_to_another_user_if_nobody_else_could_have_made_it() {
        let directory = tempfile::tempdir().unwrap();
        let (given, path) = (directory.path().join("given"), directory.path().join("given/path"));
        make(&path).unwrap();
        assert_eq!(owner_of(&path), None, "it is ours");
        if !geteuid().is_root()
            || chown(&given, Some(OTHER_USER), None).and_then(|()| chown(&path, Some(OTHER_USER), None)).is_err()
        {
            return;
        }
        assert_eq!((owner_of(&given), owner_of(&path)), (Some(OTHER_USER), Some(OTHER_USER)));
        // In a directory where everybody may write, everybody could have made it.
        for mode in [0o777, 0o1777] {
            set_mode(directory.path(), mode);
            assert_eq!((owner_of(&given), owner_of(&path)), (None, None), "{mode:o}");
        }
        set_mode(directory.path(), 0o700);
        set_mode(&given, 0o777);
        assert_eq!(owner_of(&path), None);
        set_mode(&given, 0o700);
        chown(&path, Some(OTHER_USER - 1), None).unwrap();
        assert_eq!(owner_of(&path), None, "two users");
    }
}
