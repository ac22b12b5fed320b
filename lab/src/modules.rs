//! Which kernel modules a guest loads, and in which order.
//!
//! Modules name what they need in their `.modinfo` section; that is all it takes, so no depmod is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::interrupt::output;

/// Without these nothing boots.
pub const NEEDED: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "overlay"];

/// What experiments want. One that this kernel lacks is left out.
pub const WANTED: &[&str] = &[
    "virtiofs",
    "virtio_rng",
    "virtio_scsi",
    "sd_mod",
    "nvme",
    "ext4",
    "xfs",
    "fuse",
    "loop",
    "nbd",
    "ublk_drv",
    "bcache",
    "dm_mod",
    "dm_writecache",
    "dm_cache",
    "dm_cache_smq",
    "dm_log_writes",
    "dm_snapshot",
    "raid0",
    "raid1",
    "crc32c_intel",
    "crc32c_generic",
    "libcrc32c",
];

/// A module with its code.
#[derive(Clone, Debug)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// The object file, not compressed.
    pub code: Vec<u8>,
}

/// Modules, each after those that it needs: all of `needed`, and of `wanted` what this kernel has.
pub fn load_order(directory: &Path, needed: &[&str], wanted: &[&str]) -> anyhow::Result<Vec<Module>> {
    let available = available(directory)?;
    let built_in = built_in(directory);
    let mut order = Order { available: &available, seen: BTreeSet::new(), modules: Vec::new() };
    for name in needed {
        if !built_in.contains(*name) && !available.contains_key(*name) {
            bail!("the kernel in {} has no module {name}: remove it and start again", directory.display());
        }
    }
    for name in needed.iter().chain(wanted) {
        order.add(name)?;
    }
    Ok(order.modules)
}

struct Order<'a> {
    available: &'a BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Order<'_> {
    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(file) = self.available.get(name) else { return Ok(()) };
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let code = read(file)?;
        for needed in needs(&code) {
            self.add(&needed)?;
        }
        self.modules.push(Module { name: name.to_owned(), code: without_signature(code) });
        Ok(())
    }
}

fn module_name(file: &str) -> Option<String> {
    Some(Path::new(file).file_name()?.to_str()?.strip_suffix(".ko")?.replace('-', "_"))
}

/// By the list that every kernel has of its modules, which names them without compression.
fn available(directory: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let list = directory.join("modules.order");
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let file = |line: &str| {
        let suffixes = ["", ".xz", ".zst", ".gz"].into_iter();
        suffixes.map(|suffix| directory.join(format!("{line}{suffix}"))).find(|file| file.exists())
    };
    Ok(text.lines().filter_map(|line| Some((module_name(line)?, file(line)?))).collect())
}

fn built_in(directory: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
    text.lines().filter_map(module_name).collect()
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let unpack = match file.extension().and_then(|suffix| suffix.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).with_context(|| format!("cannot read {}", file.display())),
    };
    Ok(output(Command::new(unpack).arg("-dc").arg(file))?.stdout)
}

/// The module without the signature at its end, which an emulated processor takes half of the boot to verify.
///
/// Layout: signature, `struct module_signature` (its last four bytes are the signature's length), a magic text.
fn without_signature(mut code: Vec<u8>) -> Vec<u8> {
    const MAGIC: &[u8] = b"~Module signature appended~\n";
    const DESCRIPTION: usize = 12;
    let length = code.strip_suffix(MAGIC).and_then(|rest| {
        let signature = u32::from_be_bytes(*rest.last_chunk()?) as usize;
        rest.len().checked_sub(DESCRIPTION + signature)
    });
    if let Some(length) = length {
        code.truncate(length);
    }
    code
}

/// What `.modinfo` says a module needs: `depends=a,b` and `softdep=pre: c`, each ended by a zero byte.
fn needs(code: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for text in code.split(|&byte| byte == 0).filter(|text| text.len() < 4096) {
        let Ok(text) = std::str::from_utf8(text) else { continue };
        if let Some(names) = text.strip_prefix("depends=") {
            found.extend(names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")));
        } else if let Some(names) = text.strip_prefix("softdep=pre: ") {
            let before = names.split(" post:").next().unwrap_or_default();
            found.extend(before.split_whitespace().map(|name| name.replace('-', "_")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_module_is_loaded_after_what_it_needs() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, needs: &str| {
            let folder = directory.path().join("kernel/drivers");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), format!("\x7fELF\0license=GPL\0depends={needs}\0name=x\0")).unwrap();
            let list = fs::File::options().create(true).append(true).open(directory.path().join("modules.order"));
            writeln!(list.unwrap(), "kernel/drivers/{name}").unwrap();
        };
        write("virtio_pci.ko", "virtio-ring,virtio");
        write("virtio.ko", "");
        write("virtio_ring.ko", "virtio");
        write("virtio_net.ko", "");
        write("overlay.ko", "");
        write("dm-cache.ko", "dm-mod");
        write("dm-mod.ko", "");
        assert!(load_order(directory.path(), NEEDED, WANTED).unwrap_err().to_string().contains("no module virtio_blk"));
        fs::write(directory.path().join("modules.builtin"), "kernel/drivers/block/virtio_blk.ko\n").unwrap();
        let names: Vec<String> =
            load_order(directory.path(), NEEDED, WANTED).unwrap().into_iter().map(|module| module.name).collect();
        let at = |name: &str| names.iter().position(|found| found == name).unwrap();
        assert!(at("virtio") < at("virtio_ring") && at("virtio_ring") < at("virtio_pci"), "{names:?}");
        assert!(at("dm_mod") < at("dm_cache"), "{names:?}");
    }

    #[test]
    fn a_signature_is_cut_off_and_nothing_else() {
        let signed = |length: u32| {
            let mut code = b"codesignature".to_vec();
            code.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
            code.extend_from_slice(&length.to_be_bytes());
            code.extend_from_slice(b"~Module signature appended~\n");
            code
        };
        assert_eq!(without_signature(signed(9)), b"code");
        assert_eq!(without_signature(signed(4000)), signed(4000));
        assert_eq!(without_signature(b"code".to_vec()), b"code");
        assert_eq!(without_signature(Vec::new()), b"");
    }

    #[test]
    fn soft_needs_count_and_what_follows_does_not() {
        let code = b"\0softdep=pre: crc32c dm-bufio post: z\0depends=\0";
        assert_eq!(needs(code), ["crc32c", "dm_bufio"]);
    }
}
