//! Which files the programs of this machine have open, by `/proc`.

use std::fs;
use std::path::Path;

/// Descriptors of a process that are looked at: with more of them that would take longer than it is worth.
const LOOKED_AT: usize = 1024;

/// Whether a process, or the one that has started it, has a descriptor of a file with this number, as far as that can be seen. A shell
/// opens a file under one number and gives it to commands under another, which they close.
///
/// Files of other file systems may have the same number. Whoever takes one of them for this file waits until the kernel releases the handle.
pub(crate) fn have(process: u32, inode: u64) -> bool {
    has(process, inode) || parent(process).is_some_and(|parent| has(parent, inode))
}

fn has(process: u32, inode: u64) -> bool {
    // Zero: a process that this one cannot see.
    if process == 0 {
        return false;
    }
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fdinfo")) else { return false };
    let mut descriptors = descriptors.take(LOOKED_AT).flatten();
    descriptors.any(|descriptor| number(&descriptor.path()) == Some(inode))
}

/// The number of the file behind a descriptor.
fn number(descriptor: &Path) -> Option<u64> {
    let about = fs::read_to_string(descriptor).ok()?;
    about.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_a_process_or_its_parent_has_open_is_seen_until_the_last_descriptor_is_closed() {
        let file = tempfile::tempfile().unwrap();
        let inode = file.metadata().unwrap().ino();
        let own = std::process::id();
        let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let again = file.try_clone().unwrap();
        drop(file);
        assert!(have(own, inode) && have(child.id(), inode));
        // The kernel lets the parent go on before it closes what a program is not to have: one that answers has begun.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(!has(child.id(), inode), "it is closed when a program is started");
        drop(again);
        assert!(!have(own, inode) && !have(child.id(), inode));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!have(0, inode) && !have(u32::MAX, inode));
    }
}
