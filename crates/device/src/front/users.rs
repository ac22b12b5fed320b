//! Who uses a block device of ours.

use std::fs;
use std::path::Path;

/// Who uses the block device at `path`: mounts, swap, devices on top of it, other processes. `sysfs` is its directory
/// in `/sys/block`.
pub(super) fn of(path: &Path, sysfs: &Path) -> Vec<String> {
    let mut users = Vec::new();
    let numbers = numbers(sysfs);
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.get(2).is_some_and(|number| numbers.iter().any(|own| own == number)) {
            users.push(format!("the mount {}", fields.get(4).unwrap_or(&"?")));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == path.to_str()) {
        users.push("swap".into());
    }
    for holder in fs::read_dir(sysfs.join("holders")).into_iter().flatten().flatten() {
        users.push(format!("/dev/{}", holder.file_name().to_string_lossy()));
    }
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

/// The device's number and those of its partitions, as `major:minor`.
fn numbers(sysfs: &Path) -> Vec<String> {
    let parts = fs::read_dir(sysfs).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = parts.filter(|path| path.join("partition").exists());
    std::iter::once(sysfs.to_owned())
        .chain(parts)
        .filter_map(|path| Some(fs::read_to_string(path.join("dev")).ok()?.trim().to_owned()))
        .collect()
}
