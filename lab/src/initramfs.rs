//! The initial file system of a guest: busybox, modules and two scripts, as a cpio archive ("newc").
//!
//! Source: initramfs (`docs/REFERENCES.md`).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};

use cpio::newc;

use crate::modules::{self, Module};

/// Counts changes of how modules are put into the archive.
const FORMAT: u32 = 3;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

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

/// What the lab's own guests run.
pub const SCRIPTS: &[(&str, &str)] = &[("init", INIT), ("second", SECOND)];

/// The whole archive: scripts of these names, `init` first of all. The kernel's own holds `/dev/console`.
pub fn archive(busybox: &[u8], scripts: &[(&str, &str)], modules: &[Module]) -> io::Result<Vec<u8>> {
    let mut archive = Vec::new();
    let mut add = |name: &str, mode: u32, content: &[u8]| {
        let mut entry = newc::Builder::new(name).mode(mode).write(&mut archive, content.len() as u32);
        entry.write_all(content)?;
        entry.finish().map(drop)
    };
    for directory in ["bin", "proc", "sys", "dev", "modules", "below", "above", "new"] {
        add(directory, DIRECTORY, &[])?;
    }
    add("bin/busybox", EXECUTABLE, busybox)?;
    for (name, text) in scripts {
        add(name, EXECUTABLE, text.as_bytes())?;
    }
    let mut order = String::new();
    for module in modules {
        order = order + &module.name + "\n";
        add(&format!("modules/{}.ko", module.name), FILE, &module.code)?;
    }
    add("modules/order", FILE, order.as_bytes())?;
    newc::trailer(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_read_back() {
        let module = Module { name: "odd".to_owned(), code: vec![7; 4097] };
        let archive = archive(b"#!busybox", SCRIPTS, &[module]).unwrap();
        let (mut rest, mut entries) = (&archive[..], Vec::new());
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            entries.push((reader.entry().name().to_owned(), reader.entry().mode(), reader.entry().file_size()));
            rest = reader.finish().unwrap();
        }
        assert_eq!(entries.len(), 8 + 3 + 2);
        let expected = [("bin/busybox", EXECUTABLE, 9), ("modules/odd.ko", FILE, 4097), ("modules/order", FILE, 4)];
        for (name, mode, size) in expected {
            assert!(entries.contains(&(name.to_owned(), mode, size)), "{entries:?}");
        }
    }
}
