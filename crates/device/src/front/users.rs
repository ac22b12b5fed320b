//! Who uses a block device of ours.

use std::fs;
use std::path::Path;

use crate::holders::{Tables, Use};

/// Who uses the block device at `path`: mounts, swap, devices on top of it, other processes. `sysfs` is its directory
/// in `/sys/block`.
pub(super) fn of(path: &Path, sysfs: &Path) -> Vec<String> {
    let mut users: Vec<String> = Tables::read().uses(sysfs).iter().map(Use::user).collect();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name().to_string_lossy().into_owned();
        if name == own || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let mut open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        if open.any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path)) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            users.push(format!("process {name} ({})", command.trim()));
        }
    }
    users
}
