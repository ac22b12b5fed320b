//! The initial file system of a guest: busybox, modules and two scripts, as a cpio archive ("newc").
//!
//! Source: initramfs (`docs/REFERENCES.md`).

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::modules::{self, Module};

/// Counts changes of how modules are put into the archive.
const FORMAT: u32 = 2;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Runs first: loads modules, puts the host's root under an overlay, and goes there.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
mark() { read -r now _ </proc/uptime && echo "lab: $now s: $*"; }
mark "loading modules"
while read -r module; do
    busybox insmod "/modules/$module.ko" || echo "lab: cannot load $module"
done </modules/order
mark "mounting the host's root"
lost() {
    echo "lab: $*"
    busybox sleep 1
    busybox poweroff -f
}
busybox mount -t virtiofs -o ro root /below || lost "cannot mount the host's root"
busybox mount -t tmpfs -o size=75% tmpfs /above
busybox mkdir /above/changes /above/work
busybox mount -t overlay -o lowerdir=/below,upperdir=/above/changes,workdir=/above/work overlay /new ||
    lost "cannot put an overlay on the host's root"
for place in proc sys dev; do busybox mount --move /$place /new/$place; done
busybox mount -t tmpfs tmpfs /new/run
busybox mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm 2>/dev/null ||
    { busybox mkdir -p /new/dev/shm && busybox mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm; }
busybox mkdir -p /new/dev/pts /new/lab /new/run/lab
busybox mount -t devpts devpts /new/dev/pts
busybox mount -t virtiofs lab /new/lab || lost "cannot mount the directory for results"
busybox cp /bin/busybox /second /new/run/lab/
exec busybox switch_root /new /run/lab/busybox sh /run/lab/second
"#;

/// Runs in the host's root: names the disks, runs the script, says how it ended, powers off.
const SECOND: &str = r#"export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LAB=/lab
busybox=/run/lab/busybox
$busybox hostname "$($busybox cat /lab/name)"
$busybox ip link set lo up
for link in /sys/class/net/*; do
    [ -e "$link/device" ] || continue
    $busybox ip link set "${link##*/}" up
    $busybox ip address add 10.0.2.15/24 dev "${link##*/}"
    $busybox ip route add default via 10.0.2.2
done
$busybox mkdir -p /dev/lab
for disk in /sys/block/*; do
    serial=$($busybox cat "$disk/serial" 2>/dev/null)
    [ -z "$serial" ] || $busybox ln -sf "/dev/${disk##*/}" "/dev/lab/$serial"
done
# Linux changes its own code on the first connection; see KERNEL_ARGUMENTS in guest.rs for why the other processors wait.
for address in 127.0.0.1 ::1; do $busybox nc "$address" 9 </dev/null 2>/dev/null; done
$busybox sleep 0.1
for processor in /sys/devices/system/cpu/cpu[0-9]*/online; do
    [ ! -e "$processor" ] || echo 1 >"$processor"
done
cd "$($busybox cat /lab/directory)" 2>/dev/null || cd /
$busybox cut -d ' ' -f 1 /proc/uptime >/lab/booted
/bin/sh /lab/script </dev/null >>/lab/stdout 2>>/lab/stderr
echo $? >/lab/status.new
$busybox mv /lab/status.new /lab/status
cd /
$busybox sync
$busybox poweroff -f
"#;

/// Names what decides the archive beside the kernel, so that a cached one is not taken for another.
pub fn fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    (FORMAT, INIT, SECOND, modules::NEEDED, modules::WANTED).hash(&mut hasher);
    hasher.finish()
}

/// The whole archive.
pub fn archive(busybox: &[u8], modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::default();
    for directory in ["bin", "proc", "sys", "dev", "modules", "below", "above", "new"] {
        archive.add(directory, DIRECTORY, &[]);
    }
    archive.add("dev/console", CHARACTER_DEVICE, &[]);
    archive.add("bin/busybox", EXECUTABLE, busybox);
    archive.add("init", EXECUTABLE, INIT.as_bytes());
    archive.add("second", EXECUTABLE, SECOND.as_bytes());
    let mut order = String::new();
    for module in modules {
        let _ = writeln!(order, "{}", module.name);
        archive.add(&format!("modules/{}.ko", module.name), FILE, &module.code);
    }
    archive.add("modules/order", FILE, order.as_bytes());
    archive.end()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // /dev/console is 5:1.
        let (major, minor) = if mode == CHARACTER_DEVICE { (5, 1) } else { (0, 0) };
        let fields = [
            self.entries,
            mode,
            0, // owner
            0, // group
            if mode == DIRECTORY { 2 } else { 1 },
            0, // time: the same input gives the same archive
            content.len() as u32,
            0,
            0,
            major,
            minor,
            name.len() as u32 + 1,
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_reads_the_archive() {
        let module = Module { name: "odd".to_owned(), code: vec![7; 4097] };
        let bytes = archive(b"#!busybox", &[module]);
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 8 + 4 + 2 + 1);
        assert!(text.contains("modules/odd.ko\0") && text.contains("TRAILER!!!"));
        // Where an entry's size says that the next one begins, it begins.
        let mut at = 0;
        let mut names = Vec::new();
        while at < bytes.len() {
            let field = |index: usize| {
                let digits = &bytes[at + 6 + index * 8..at + 14 + index * 8];
                usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let (size, name) = (field(6), field(11));
            names.push(String::from_utf8_lossy(&bytes[at + 110..at + 109 + name]).into_owned());
            at = (at + 110 + name).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        assert_eq!(names.last().unwrap(), "TRAILER!!!");
        assert!(names.contains(&"bin/busybox".to_owned()));
    }
}
