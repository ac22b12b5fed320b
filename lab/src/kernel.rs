//! A stock Debian 6.12 cloud kernel, downloaded as a package and unpacked into the cache, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::initramfs;
use crate::interrupt::output;
use crate::modules;

/// Packages of this kind, `linux-image-6.12.N+deb12-cloud-amd64`.
const PATTERN: &str = "^linux-image-6[.]12[.][0-9].*-cloud-amd64(-unsigned)?$";

/// What QEMU is given.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The initial file system.
    pub initramfs: PathBuf,
}

impl Kernel {
    /// Takes the kernel from the cache, or downloads the newest one there is.
    pub fn prepare(cache: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        // Several labs may start at once on a machine that has none yet.
        let lock = fs::File::create(cache.join("lock")).context("cannot lock the cache")?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).context("cannot lock the cache")?;
        let root = cache.join("kernel");
        if !root.join("boot").is_dir() {
            download(cache, &root)?;
        }
        let (version, image) = unpacked(&root)?;
        let initramfs = cache.join(format!("initramfs-{version}-{:016x}.cpio", initramfs::fingerprint()));
        if !initramfs.exists() {
            let busybox = fs::read("/bin/busybox").context("cannot read /bin/busybox (Debian: busybox-static)")?;
            let load_order = |directory: &Path| modules::load_order(directory, modules::NEEDED, modules::WANTED);
            let modules = load_order(&root.join("lib/modules").join(&version))
                .or_else(|_| load_order(&root.join("usr/lib/modules").join(&version)))?;
            let new = initramfs.with_extension("new");
            initramfs::archive(&busybox, initramfs::SCRIPTS, &modules)
                .and_then(|archive| fs::write(&new, archive))
                .context("cannot write the initramfs")?;
            fs::rename(&new, &initramfs).context("cannot put the initramfs into its place")?;
        }
        let image = uncompressed(cache, &version, &image)?.unwrap_or(image);
        Ok(Self { image, initramfs })
    }
}

/// The version and image of an unpacked package.
pub fn unpacked(root: &Path) -> anyhow::Result<(String, PathBuf)> {
    for entry in fs::read_dir(root.join("boot")).context("cannot read the unpacked kernel")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(version) = name.strip_prefix("vmlinuz-") {
            return Ok((version.to_owned(), path.clone()));
        }
    }
    bail!("{} holds no kernel: remove it and start again", root.display())
}

/// The kernel without its compression: QEMU boots it directly (PVH), and an emulated processor takes seconds less.
/// `None` if it is compressed in a way that we cannot undo.
///
/// The boot protocol says where in the image it is: x86-boot (`docs/REFERENCES.md`).
fn uncompressed(cache: &Path, version: &str, image: &Path) -> anyhow::Result<Option<PathBuf>> {
    let kernel = cache.join(format!("vmlinux-{version}"));
    if kernel.exists() {
        return Ok(Some(kernel));
    }
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let Some((program, payload)) = payload(&bytes) else { return Ok(None) };
    let packed = kernel.with_extension("packed");
    fs::write(&packed, payload).context("cannot write to the cache")?;
    let unpacked = output(Command::new(program).arg("-dc").arg(&packed));
    let _ = fs::remove_file(&packed);
    let Some(output) = unpacked.ok().filter(|output| output.stdout.starts_with(b"\x7fELF")) else { return Ok(None) };
    let new = kernel.with_extension("new");
    fs::write(&new, &output.stdout).context("cannot write the kernel")?;
    fs::rename(&new, &kernel).context("cannot put the kernel into its place")?;
    Ok(Some(kernel))
}

/// The compressed kernel in an image, and what unpacks it.
fn payload(image: &[u8]) -> Option<(&'static str, &[u8])> {
    let word = |at: usize| image.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let set_up = (usize::from(*image.get(0x1f1)?).max(4) + 1) * 512;
    let start = set_up + word(0x248)? as usize;
    let payload = image.get(start..start.checked_add(word(0x24c)? as usize)?)?;
    // All but gzip are followed by four bytes of the unpacked size.
    let body = payload.get(..payload.len().checked_sub(4)?)?;
    match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zstd", body)),
        [0xfd, b'7', b'z', b'X', ..] => Some(("xz", body)),
        [0x1f, 0x8b, ..] => Some(("gzip", payload)),
        _ => None,
    }
}

fn download(cache: &Path, root: &Path) -> anyhow::Result<()> {
    let package = newest()?;
    let work = tempfile::Builder::new().prefix("download-").tempdir_in(cache).context("cannot make a directory")?;
    output(Command::new("apt-get").args(["--quiet", "download", &package]).current_dir(work.path()))
        .with_context(|| format!("cannot download {package}"))?;
    let file = fs::read_dir(work.path())?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|suffix| suffix == "deb"))
        .with_context(|| format!("apt-get brought no package for {package}"))?;
    let tree = work.path().join("tree");
    output(Command::new("dpkg").arg("-x").arg(&file).arg(&tree)).with_context(|| format!("cannot unpack {package}"))?;
    fs::rename(&tree, root).context("cannot put the kernel into its place")?;
    Ok(())
}

/// The newest package of the kind; one that is signed rather than one that is not.
fn newest() -> anyhow::Result<String> {
    let found = output(Command::new("apt-cache").args(["search", "--names-only", PATTERN]))
        .context("no apt to ask for a kernel")?;
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    pick(text.lines().filter_map(|line| line.split_whitespace().next()))
        .context("apt offers no linux-image-6.12.*-cloud-amd64 (run apt-get update)")
}

fn pick<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    names.max_by_key(|name| (numbers(name), !name.ends_with("-unsigned"))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_an_image_is_found() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 4;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12u32.to_le_bytes());
        assert_eq!(payload(&image), None);
        image[2576..2588].copy_from_slice(b"\x28\xb5\x2f\xfdbodysize");
        assert_eq!(payload(&image), Some(("zstd", &b"\x28\xb5\x2f\xfdbody"[..])));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(b"MZ"), None);
    }

    #[test]
    fn the_newest_signed_kernel_is_picked() {
        let names = [
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.30+deb12-cloud-amd64",
        ];
        assert_eq!(pick(names.into_iter()).unwrap(), names[2]);
        assert_eq!(pick(names[..2].iter().copied()).unwrap(), names[1]);
        assert_eq!(pick([].into_iter()), None);
    }
}
