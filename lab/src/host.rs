//! What the lab finds on the host: QEMU, virtiofsd, busybox, a kernel, the rights.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use surgetank_model::Bytes;

use crate::interrupt::Interrupt;
use crate::kernel::{Choice, Kernel};
use crate::plan::Plan;

/// Where distributions put virtiofsd: not on the path.
const VIRTIOFSD: &[&str] = &["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/bin/virtiofsd"];
const QEMU: &str = "qemu-system-x86_64";
/// Directories of guests begin with this; the process that made them follows.
const PREFIX: &str = "surgetank-lab-";

/// Why no guest can be booted here. One sentence, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// A host that can boot guests.
#[derive(Clone, Debug)]
pub struct Lab {
    /// QEMU.
    pub(crate) qemu: PathBuf,
    /// The server of host directories.
    pub(crate) virtiofsd: PathBuf,
    /// The guests' kernel.
    pub(crate) kernel: Kernel,
    /// Where guests' directories and new disks are made.
    scratch: PathBuf,
}

impl Lab {
    /// Looks for everything; downloads the kernel once.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn open() -> Result<Self, Unavailable> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unavailable("guests share the host's root file system, which takes root: use sudo".to_owned()));
        }
        let install = "run scripts/setup lab";
        let qemu = on_path(QEMU)
            .ok_or_else(|| Unavailable(format!("there is no {QEMU} here (Debian: qemu-system-x86): {install}")))?;
        let virtiofsd = VIRTIOFSD.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
            Unavailable(format!("there is no virtiofsd here (Debian: qemu-system-common): {install}"))
        })?;
        if !Path::new("/bin/busybox").exists() {
            return Err(Unavailable(format!("there is no busybox here (Debian: busybox-static): {install}")));
        }
        let choice = Choice::get().map_err(Unavailable)?;
        let kernel = Kernel::prepare(&cache(), &choice);
        let kernel = kernel.map_err(|error| Unavailable(format!("no kernel: {error:#}")))?;
        let scratch = std::env::temp_dir();
        sweep(&scratch);
        Ok(Self { qemu, virtiofsd, kernel, scratch })
    }

    /// The same for tests, which have nothing to test where the emulator runs but no guest comes up: boots one, once a
    /// process. Why none does is also written to the process's own standard error: what a test that passes prints is
    /// not shown.
    ///
    /// # Errors
    /// What is missing, or how that guest ended.
    pub fn that_boots() -> Result<Self, Unavailable> {
        static FOUND: OnceLock<Result<Lab, Unavailable>> = OnceLock::new();
        let boots = || {
            let lab = Self::open()?;
            let plan =
                Plan { memory: Bytes::from_mib(512), timeout: Duration::from_secs(60), ..Plan::new("probe", "true") };
            let never = Interrupt::default();
            let outcome = plan.boot(&lab, &never).and_then(|mut guest| guest.wait(&never));
            match outcome {
                Ok(outcome) if outcome.passed() => Ok(lab),
                Ok(outcome) => Err(Unavailable(outcome.describe())),
                Err(error) => Err(Unavailable(format!("{error:#}"))),
            }
        };
        let boots = || {
            boots().inspect_err(|Unavailable(reason)| {
                let _ = writeln!(std::io::stderr(), "skipped: no guest can be booted here: {reason}");
            })
        };
        FOUND.get_or_init(boots).clone()
    }

    /// A directory for one guest.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn directory(&self) -> anyhow::Result<tempfile::TempDir> {
        let prefix = format!("{PREFIX}{}-", std::process::id());
        Ok(tempfile::Builder::new().prefix(&prefix).tempdir_in(&self.scratch)?)
    }
}

/// Where the kernel is kept between runs, outside of the tree.
pub fn cache() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("SURGETANK_LAB_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|path| path.join("surgetank-lab")))
        .unwrap_or_else(|| PathBuf::from("/var/cache/surgetank-lab"))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.exists())
}

/// Removes what a killed lab could not: directories whose process is gone.
fn sweep(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_is_removed_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let name = |process: &str| scratch.path().join(format!("{PREFIX}{process}-abc"));
        // Process ids end at 2^22.
        let (dead, alive, odd) = (name("4194999"), name(&std::process::id().to_string()), name("x"));
        for path in [&dead, &alive, &odd] {
            fs::create_dir(path).unwrap();
        }
        sweep(scratch.path());
        assert!(!dead.exists() && alive.exists() && odd.exists());
    }
}
