//! What the machine says of itself, and how to tell it something.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::interrupt::{self, output};

/// The kernel's unit of processor time in `/proc`, the same on every architecture that we run on.
const TICKS_PER_S: f64 = 100.0;
/// How often a wait looks again.
const SELDOM: Duration = Duration::from_millis(100);

/// Where the kernel says how long cores have been busy.
pub const STAT: &str = "/proc/stat";

/// Processor seconds that all cores together had been busy since boot, by [`STAT`] or a copy of it.
pub fn busy_s(copy: &str) -> anyhow::Result<f64> {
    let text = fs::read_to_string(copy).with_context(|| format!("cannot read {copy}"))?;
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    let [user, nice, system, _, _, irq, softirq, ..] = fields[..] else { bail!("cannot read /proc/stat: {line}") };
    Ok((user + nice + system + irq + softirq) / TICKS_PER_S)
}

/// Processor seconds of one process, its dead children not counted.
pub fn process_s(process: u32) -> anyhow::Result<f64> {
    Ok(times(process)?[0])
}

/// Processor seconds of this process's children that have ended, and of theirs.
pub fn children_s() -> anyhow::Result<f64> {
    Ok(times(std::process::id())?[1])
}

/// Of a process, and of its children that have ended.
fn times(process: u32) -> anyhow::Result<[f64; 2]> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).context("the process is gone")?;
    // The name may hold blanks and parentheses; what follows the last one does not.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    Ok([(ticks(11) + ticks(12)) / TICKS_PER_S, (ticks(13) + ticks(14)) / TICKS_PER_S])
}

/// Memory of a process, in MiB: `VmRSS`, what it has, or `VmHWM`, the most that it has had.
pub fn memory_mib(process: u32, field: &str) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).context("the process is gone")?;
    field_mib(&text, field).context("the kernel does not say how much memory it has")
}

fn available_mib() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field_mib(&text, "MemAvailable").unwrap_or(0.0)
}

fn field_mib(text: &str, name: &str) -> Option<f64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next());
    Some(kib?.parse::<f64>().ok()? / 1024.0)
}

/// Runs `work`; also how much less memory was available at the worst moment than before, in MiB.
pub fn with_memory<T>(before_mib: f64, work: impl FnOnce() -> T) -> (T, f64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut least = available_mib();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
                least = least.min(available_mib());
            }
            least
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        (done, (before_mib - watcher.join().unwrap_or(before_mib)).max(0.0))
    })
}

/// What is available now, in MiB, after what can be forgotten has been.
pub fn settled_memory_mib() -> f64 {
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    available_mib()
}

/// Writes to a file of sysfs.
pub fn tell(file: impl AsRef<Path>, text: &str) -> anyhow::Result<()> {
    let file = file.as_ref();
    fs::write(file, text).with_context(|| format!("cannot write \"{text}\" to {}", file.display()))
}

/// What a file of sysfs says.
pub fn ask(file: impl AsRef<Path>) -> anyhow::Result<String> {
    let file = file.as_ref();
    Ok(fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?.trim().to_owned())
}

/// Runs a command to its end and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    Ok(String::from_utf8_lossy(&output(Command::new(program).args(arguments))?.stdout).into_owned())
}

/// Calls `done` until it answers something, at most `timeout`, and seldom enough to take no processor time.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    done: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    interrupt::wait_for(what, timeout, SELDOM, done)
}

/// The node of a disk by its serial: `/dev/vdb`, where sysfs knows it by.
pub fn disk(serial: &str) -> anyhow::Result<PathBuf> {
    fs::canonicalize(format!("/dev/lab/{serial}")).with_context(|| format!("there is no disk {serial}"))
}

/// A device's size in sectors of 512 bytes.
pub fn sectors(device: &Path) -> anyhow::Result<u64> {
    let name = device.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    ask(format!("/sys/class/block/{name}/size"))?.parse().context("sysfs does not say a size")
}

/// Overwrites a disk's first megabyte, where every cache has its marks.
pub fn forget(device: &Path) -> anyhow::Result<()> {
    let of = format!("of={}", device.display());
    run("dd", &["if=/dev/zero", &of, "bs=1M", "count=1", "oflag=direct", "conv=fsync", "status=none"]).map(|_| ())
}

/// Makes an ext4, with options for mkfs.
pub fn make_ext4(node: &Path, options: &[&str]) -> anyhow::Result<()> {
    run("mkfs.ext4", &[&["-q", "-F"], options, &[&node.display().to_string()]].concat()).map(|_| ())
}

/// Checks an ext4 that is not mounted, and repairs it as far as this option of e2fsck allows.
pub fn repair_ext4(node: &Path, option: &str) -> anyhow::Result<()> {
    let checked = Command::new("e2fsck").arg(option).arg(node).output().context("cannot run e2fsck")?;
    // 1: errors were corrected; a journal that is aborted leaves a mark.
    if !matches!(checked.status.code(), Some(0 | 1)) {
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        bail!("e2fsck cannot repair the file system: {}", said.trim().lines().last().unwrap_or_default());
    }
    Ok(())
}

/// A mounted ext4 that is unmounted when it is dropped.
pub struct Mounted(&'static str);

impl Mounted {
    /// Mounts it, with options for mount.
    pub fn at(node: &Path, place: &'static str, options: &[&str]) -> anyhow::Result<Self> {
        fs::create_dir_all(place)?;
        // What mount says last is where to read more.
        run("mount", &[&["-t", "ext4"], options, &[&node.display().to_string(), place]].concat())
            .with_context(|| format!("cannot mount the file system on {} at {place}", node.display()))?;
        Ok(Self(place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[self.0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read() {
        let process = std::process::id();
        assert!(busy_s(STAT).unwrap() > 0.0);
        assert!(process_s(process).unwrap() >= 0.0);
        assert!(children_s().unwrap() >= 0.0);
        assert!(memory_mib(process, "VmHWM").unwrap() > 0.1);
        assert!(process_s(4_194_999).is_err());
        let ((), used) = with_memory(available_mib(), || ());
        assert!(used.is_finite());
    }
}
