//! A stock Debian cloud kernel, downloaded as packages and unpacked into the cache, never installed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::OnceLock;

use anyhow::{Context, bail};

use crate::apt::{self, Apt};
use crate::initramfs;
use crate::interrupt::output;
use crate::modules;

/// Packages of this kind, `linux-image-6.12.N+deb12-cloud-amd64`. One that names no third number is empty, and depends on
/// the newest of its kind.
const PATTERN: &str = "^linux-image-[0-9]+[.][0-9]+[.][0-9]+.*-cloud-amd64(-unsigned)?$";
/// Since Linux 7 the package of an image is empty, and what it depends on holds the image, its modules, and their list.
const PARTS: [&str; 3] = ["linux-base-", "linux-binary-", "linux-modules-"];

/// Names the kernel where no flag does.
pub const VARIABLE: &str = "SURGETANK_LAB_KERNEL";

/// Which kernel guests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The newest that Debian has.
    Newest,
    /// The newest whose version begins with these numbers.
    Version(Vec<u64>),
}

impl Default for Choice {
    fn default() -> Self {
        Self::Version(vec![6, 12])
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "newest" {
            return Ok(Self::Newest);
        }
        let numbers: Result<Vec<u64>, _> = text.split('.').map(str::parse).collect();
        let found = numbers.ok().filter(|numbers| (2..=3).contains(&numbers.len())).map(Self::Version);
        found.ok_or_else(|| format!("\"{text}\" names no kernel: write newest or a version, such as 6.12 or 6.17.13"))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::Version(numbers) => f.write_str(&numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".")),
        }
    }
}

/// All guests of a process run the same.
static CHOSEN: OnceLock<Choice> = OnceLock::new();

impl Choice {
    /// What a flag names, for all guests of this process.
    pub fn set(self) {
        // The command line is read once.
        let _ = CHOSEN.set(self);
    }

    /// What a flag names, or else the environment.
    ///
    /// # Errors
    /// If the environment's is no kernel's name.
    pub fn get() -> Result<Self, String> {
        let named = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
        match (CHOSEN.get(), named) {
            (Some(chosen), _) => Ok(chosen.clone()),
            (None, Some(text)) => text.parse().map_err(|error| format!("{VARIABLE}: {error}")),
            (None, None) => Ok(Self::default()),
        }
    }

    /// Where it is unpacked, in the cache.
    fn directory(&self) -> String {
        if *self == Self::default() { "kernel".to_owned() } else { format!("kernel-{self}") }
    }

    /// The newest of these packages that it means; one that is signed rather than one that is not.
    fn pick(&self, names: Vec<String>) -> Option<String> {
        let meant = |name: &String| match self {
            Self::Newest => true,
            Self::Version(wanted) => numbers(name).starts_with(wanted),
        };
        names.into_iter().filter(meant).max_by_key(|name| (numbers(name), !name.ends_with("-unsigned")))
    }
}

/// The numbers of a package's name: 6, 12, 117, 12, 64.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// What QEMU is given, and where it is from.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The initial file system.
    pub initramfs: PathBuf,
    /// As the kernel names itself.
    pub version: String,
    /// The directory of its modules.
    pub modules: PathBuf,
}

impl Kernel {
    /// Takes the kernel from the cache, or downloads the newest one there is of those that are meant.
    pub fn prepare(cache: &Path, choice: &Choice) -> anyhow::Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        // Several labs may start at once on a machine that has none yet.
        let lock = fs::File::create(cache.join("lock")).context("cannot lock the cache")?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).context("cannot lock the cache")?;
        let root = cache.join(choice.directory());
        if !root.is_dir() {
            download(cache, choice, &root)?;
        }
        let Unpacked { version, image, modules } = Unpacked::find(&root)?;
        let initramfs = cache.join(format!("initramfs-{version}-{:016x}.cpio", initramfs::fingerprint()));
        if !initramfs.exists() {
            let busybox = fs::read("/bin/busybox").context("cannot read /bin/busybox (Debian: busybox-static)")?;
            let loaded = modules::load_order(&modules, modules::NEEDED, modules::WANTED)?;
            let new = initramfs.with_extension("new");
            initramfs::archive(&busybox, initramfs::SCRIPTS, &loaded)
                .and_then(|archive| fs::write(&new, archive))
                .context("cannot write the initramfs")?;
            fs::rename(&new, &initramfs).context("cannot put the initramfs into its place")?;
        }
        let image = uncompressed(cache, &version, &image)?.unwrap_or(image);
        Ok(Self { image, initramfs, version, modules })
    }
}

/// What is in unpacked packages.
#[derive(Debug, PartialEq, Eq)]
struct Unpacked {
    version: String,
    image: PathBuf,
    modules: PathBuf,
}

impl Unpacked {
    /// Modules are in a directory of their version's name; the image is in `boot`, or since Linux 7 beside its modules.
    fn find(root: &Path) -> anyhow::Result<Self> {
        for directory in ["usr/lib/modules", "lib/modules"].map(|place| root.join(place)) {
            for modules in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
                let version = modules.file_name().to_string_lossy().into_owned();
                let images = [root.join(format!("boot/vmlinuz-{version}")), modules.path().join("vmlinuz")];
                if let Some(image) = images.into_iter().find(|image| image.exists()) {
                    return Ok(Self { version, image, modules: modules.path() });
                }
            }
        }
        bail!("{} holds no kernel: remove it and start again", root.display())
    }
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

fn download(cache: &Path, choice: &Choice, root: &Path) -> anyhow::Result<()> {
    let work = tempfile::Builder::new().prefix("download-").tempdir_in(cache).context("cannot make a directory")?;
    let (apt, image) = offered(work.path(), choice)?;
    let files = work.path().join("packages");
    fs::create_dir_all(&files).context("cannot make a directory")?;
    apt.download(std::slice::from_ref(&image), &files)?;
    let parts = match &apt::packages_in(&files)?[..] {
        [package] => parts(&String::from_utf8_lossy(
            &output(Command::new("dpkg-deb").arg("--field").arg(package).arg("Depends"))?.stdout,
        )),
        _ => bail!("apt-get brought no package for {image}"),
    };
    if !parts.is_empty() {
        apt.download(&parts, &files)?;
    }
    let tree = work.path().join("tree");
    for file in apt::packages_in(&files)? {
        output(Command::new("dpkg").arg("-x").arg(&file).arg(&tree))
            .with_context(|| format!("cannot unpack {}", file.display()))?;
    }
    Unpacked::find(&tree).with_context(|| format!("{image} is packed in a way that the lab does not know"))?;
    fs::rename(&tree, root).context("cannot put the kernel into its place")?;
    Ok(())
}

/// The package that is meant, and the apt that offers it. The host's own sources first, which need nothing fetched.
fn offered(work: &Path, choice: &Choice) -> anyhow::Result<(Apt, String)> {
    if *choice != Choice::Newest {
        let host = Apt::of_the_host();
        if let Some(image) = choice.pick(host.search(PATTERN)?) {
            return Ok((host, image));
        }
    }
    let newer = Apt::of_newer_suites(&work.join("apt"))?;
    let image = choice.pick(newer.search(PATTERN)?);
    let image =
        image.with_context(|| format!("Debian offers no linux-image-{choice}*-cloud-amd64 (run apt-get update)"))?;
    Ok((newer, image))
}

/// What else holds a part of the kernel, by the `Depends:` of its package.
fn parts(depends: &str) -> Vec<String> {
    let names = depends.split(',').filter_map(|entry| entry.split_whitespace().next());
    let is_part = |name: &&str| {
        let rest = PARTS.iter().find_map(|part| name.strip_prefix(part));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    names.filter(is_part).map(str::to_owned).collect()
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

    const NAMES: [&str; 6] = [
        "linux-image-6.12.9+deb12-cloud-amd64",
        "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
        "linux-image-6.12.117+deb12-cloud-amd64",
        "linux-image-6.12.30+deb12-cloud-amd64",
        "linux-image-6.1.0-56-cloud-amd64",
        "linux-image-7.3.4+deb13-cloud-amd64",
    ];

    #[test]
    fn the_newest_signed_kernel_of_those_meant_is_picked() {
        let pick = |choice: &str, names: &[&str]| {
            choice.parse::<Choice>().unwrap().pick(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(pick("6.12", &NAMES).unwrap(), NAMES[2]);
        assert_eq!(pick("6.12", &NAMES[..2]).unwrap(), NAMES[1]);
        assert_eq!(pick("6.1", &NAMES).unwrap(), NAMES[4], "6.12 is not a 6.1");
        assert_eq!(pick("6.12.9", &NAMES).unwrap(), NAMES[0]);
        assert_eq!(pick("newest", &NAMES).unwrap(), NAMES[5]);
        assert_eq!(pick("6.17", &NAMES), None);
    }

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for text in ["newest", "6.12", "6.17.13"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["", "6", "6.", "oldest", "6.12.1.1", "-1.2", "6.x", "../../6.12"] {
            let error = text.parse::<Choice>().unwrap_err();
            assert!(error.contains("write newest or a version"), "{error}");
        }
        assert_eq!(Choice::default().directory(), "kernel");
        assert_eq!(Choice::Newest.directory(), "kernel-newest");
    }

    #[test]
    fn a_kernel_may_be_in_several_packages() {
        let depends = "kmod, linux-base-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), linux-binary-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), \
                       linux-base (>= 4.17~), initramfs-tools (>= 0.120) | linux-initramfs-tool, \
                       linux-modules-7.3.4+deb13-cloud-amd64 (= 7.3.4-1)";
        let expected =
            ["linux-base", "linux-binary", "linux-modules"].map(|name| format!("{name}-7.3.4+deb13-cloud-amd64"));
        assert_eq!(parts(depends), expected);
        assert_eq!(parts("kmod, linux-base (>= 4.3~), initramfs-tools"), [""; 0]);
    }

    #[test]
    fn an_image_is_found_where_either_kind_of_package_has_it() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            file
        };
        let find = || Unpacked::find(root.path());
        let modules = write("lib/modules/6.12.9/modules.order").parent().unwrap().to_owned();
        assert!(find().unwrap_err().to_string().contains("holds no kernel"));
        let image = write("boot/vmlinuz-6.12.9");
        assert_eq!(find().unwrap(), Unpacked { version: "6.12.9".to_owned(), image, modules });
        let image = write("usr/lib/modules/7.3.4/vmlinuz");
        let modules = image.parent().unwrap().to_owned();
        assert_eq!(find().unwrap(), Unpacked { version: "7.3.4".to_owned(), image, modules });
    }
}
