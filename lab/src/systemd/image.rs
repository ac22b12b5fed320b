//! The root file system of a guest that boots Debian's own systemd: built once from the packages of the host's own apt
//! sources, kept in the lab's cache, copied for each run.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use surgetank_model::Bytes;

use crate::apt;
use crate::host::Lab;
use crate::initramfs;
use crate::interrupt::{Interrupt, output};
use crate::modules;
use crate::output::say;

/// The release: the host's own programs, built for it, must run in the guest.
const RELEASE: &str = "bookworm";
/// What the guest has beside what Debian calls essential.
const PACKAGES: &[&str] = &[
    "systemd-sysv",
    "systemd",
    "udev",
    "dbus",
    "libpam-systemd",
    "kmod",
    "mount",
    "e2fsprogs",
    "btrfs-progs",
    "lvm2",
    "dmsetup",
    "fuse3",
    "make",
    "procps",
    "psmisc",
];
/// Modules that the guest's udev and units load as a machine's would, and that the lab's kernel has as modules.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "btrfs",
    "ublk_drv",
    "fuse",
    "loop",
    "dm_mod",
    "autofs4",
    "efivarfs",
    "configfs",
    "crc32c_generic",
    "libcrc32c",
];
/// What the initramfs loads before there is a root.
const EARLY: &[&str] = &["virtio_pci", "virtio_blk", "ext4"];
/// Large enough for what is installed and written.
const SIZE: Bytes = Bytes::from_gib(2);

/// Finds the root by its serial, as the lab names disks, and goes there.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do
    busybox insmod "/modules/$module.ko" || echo "lab: cannot load $module"
done </modules/order
for disk in /sys/block/vd*; do
    [ "$(busybox cat "$disk/serial")" != root ] || root="/dev/${disk##*/}"
done
busybox mount -t ext4 -o ro "$root" /new || { echo "lab: cannot mount the root"; busybox poweroff -f; }
for place in proc sys dev; do busybox mount --move /$place /new/$place; done
exec busybox switch_root /new /sbin/init
"#;

/// Runs commands that the host sends, one after the other, and answers each with its status and what it said. A shell is
/// enough, and needs nothing of what is tested.
const AGENT: &str = r#"#!/bin/bash
export PATH=/source/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
until [ -c /dev/virtio-ports/lab ]; do sleep 0.1; done
for processor in /sys/devices/system/cpu/cpu[0-9]*/online; do echo 1 >"$processor"; done
# While the host is not connected the port has an end.
while :; do
    exec 3<>/dev/virtio-ports/lab
    while read -r -u 3 number command; do
        base64 -d <<<"$command" >/run/lab-command
        bash /run/lab-command </dev/null >/run/lab-answer 2>&1 3>&-
        echo "$number $? $(base64 -w0 /run/lab-answer)" >&3
    done
    exec 3>&-
    sleep 0.2
done
"#;

/// It lives as long as the machine does, so that the host hears of everything; nothing waits for it.
const AGENT_UNIT: &str = r"[Unit]
Description=What the lab says to this guest
DefaultDependencies=no
[Service]
ExecStart=/usr/local/sbin/lab-agent
Restart=always
[Install]
WantedBy=sysinit.target
";

/// The machine of the README's example: a data disk, a fast disk, and the source of the product to install.
pub const FSTAB: &str = "\
/dev/disk/by-id/virtio-root    /          ext4  errors=remount-ro  0  1
/dev/disk/by-id/virtio-source  /source    ext4  ro                 0  0
/dev/disk/by-id/virtio-nvme    /mnt/nvme  ext4  defaults,nofail    0  2
/dev/disk/by-id/virtio-data    /srv/data  ext4  defaults           0  2
";

/// `make install` calls cargo for a build that the host has made.
const CARGO: &str = "#!/bin/sh\n[ \"$1\" = build ] || echo '{\"target_directory\":\"/source/target\"}'\n";

/// What such a guest boots from.
pub struct Image {
    /// The initial file system.
    pub initramfs: PathBuf,
    /// The root file system, which no guest writes to.
    root: PathBuf,
}

impl Image {
    /// Takes it from the cache, or builds it.
    ///
    /// # Errors
    /// If the packages cannot be had.
    pub fn prepare(lab: &Lab, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let cache = crate::host::cache();
        let (version, directory) = (&lab.kernel.version, &lab.kernel.modules);
        let mut hasher = DefaultHasher::new();
        (version, RELEASE, PACKAGES, MODULES, EARLY, INIT, AGENT, AGENT_UNIT, FSTAB, CARGO).hash(&mut hasher);
        let name = format!("systemd-{:016x}", hasher.finish());
        let image = Self { initramfs: cache.join(format!("{name}.cpio")), root: cache.join(format!("{name}.ext4")) };
        let lock = fs::File::create(cache.join("systemd.lock")).context("cannot lock the cache")?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).context("cannot lock the cache")?;
        if !image.initramfs.exists() {
            let busybox = fs::read("/bin/busybox").context("cannot read /bin/busybox (Debian: busybox-static)")?;
            let early = modules::load_order(directory, EARLY, &[])?;
            let new = image.initramfs.with_extension("new");
            fs::write(&new, initramfs::archive(&busybox, &[("init", INIT)], &early)?)?;
            fs::rename(&new, &image.initramfs)?;
        }
        if !image.root.exists() {
            say("lab: building a Debian with systemd, once");
            image.build(lab, interrupt, directory, version)?;
        }
        Ok(image)
    }

    /// A copy for one guest.
    pub fn copy(&self, to: &Path) -> anyhow::Result<()> {
        output(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(&self.root).arg(to)).map(drop)
    }

    fn build(&self, lab: &Lab, interrupt: &Interrupt, modules: &Path, version: &str) -> anyhow::Result<()> {
        let work = lab.directory()?;
        let (root, sources) = (work.path().join("root"), work.path().join("debian.sources"));
        fs::write(&sources, apt::sources(RELEASE)?)?;
        let mut install = Command::new("mmdebstrap");
        install.args(["--quiet", "--mode=root", "--variant=essential"]);
        install.arg(format!("--include={}", PACKAGES.join(",")));
        install.arg(RELEASE).arg(&root).arg(&sources).env("SOURCE_DATE_EPOCH", "0");
        interrupt.run(&mut install).context("no Debian can be built here")?;
        furnish(&root, modules, version)?;
        let new = self.root.with_extension("new");
        make_ext4(&new, "root", SIZE, Some(&root))?;
        fs::rename(&new, &self.root).context("cannot put the image into its place")
    }
}

/// A new ext4 in a file, which holds a copy of a directory.
pub fn make_ext4(file: &Path, label: &str, size: Bytes, from: Option<&Path>) -> anyhow::Result<()> {
    fs::File::create(file).and_then(|new| new.set_len(size.get())).context("cannot make a disk")?;
    let mut make = Command::new("mke2fs");
    make.args(["-t", "ext4", "-q", "-F", "-L", label, "-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0"]);
    if let Some(from) = from {
        make.arg("-d").arg(from);
    }
    output(make.arg(file)).map(drop)
}

/// The source of the product, its release build beside it, on a disk.
pub fn make_source(work: &Path, disk: &Path, tree: &Path, surgetank: &Path) -> anyhow::Result<()> {
    let source = work.join("source");
    fs::create_dir_all(source.join("target/release"))?;
    fs::create_dir_all(source.join("bin"))?;
    let parts = ["README.md", "LICENSE", "Makefile", "docs", "packaging", "scripts"];
    output(Command::new("cp").arg("-r").args(parts.map(|part| tree.join(part))).arg(&source))?;
    fs::copy(surgetank, source.join("target/release/surgetank"))?;
    executable(&source.join("bin/cargo"), CARGO)?;
    make_ext4(disk, "source", Bytes::from_mib(256), Some(&source))
}

fn executable(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

/// What makes a Debian this guest.
fn furnish(root: &Path, modules: &Path, version: &str) -> anyhow::Result<()> {
    // Without their compression and signatures, which an emulated processor takes long to undo and to verify.
    let into = root.join("lib/modules").join(version);
    fs::create_dir_all(into.join("kernel"))?;
    for module in modules::load_order(modules, &[], MODULES)? {
        fs::write(into.join(format!("kernel/{}.ko", module.name)), module.code)?;
    }
    for list in ["modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(modules.join(list), into.join(list)).with_context(|| format!("the kernel has no {list}"))?;
    }
    output(Command::new("chroot").arg(root).args(["depmod", version]))?;
    executable(&root.join("usr/local/sbin/lab-agent"), AGENT)?;
    fs::write(root.join("etc/systemd/system/lab-agent.service"), AGENT_UNIT)?;
    let wants = root.join("etc/systemd/system/sysinit.target.wants");
    fs::create_dir_all(&wants)?;
    symlink("../lab-agent.service", wants.join("lab-agent.service"))?;
    // Another boot than the first: units are enabled as the packages have them.
    fs::write(root.join("etc/machine-id"), "5c1a0f6e9d7b4e0f8a6b3c2d1e0f9a8b\n")?;
    fs::write(root.join("etc/hostname"), "elastic\n")?;
    fs::write(root.join("etc/fstab"), FSTAB)?;
    for place in ["source", "mnt/nvme", "srv/data", "var/log/journal"] {
        fs::create_dir_all(root.join(place))?;
    }
    Ok(())
}
