//! What a guest is made of: cores, memory, disks with their limits, a script.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_model::{Bandwidth, Bytes, Iops};

/// Where a disk's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Media {
    /// A new sparse file that goes when the guest goes.
    New,
    /// A file or block device that stays.
    File(PathBuf),
    /// An NBD server's Unix socket.
    Nbd(PathBuf),
}

/// A virtio disk. The guest finds it as `/dev/lab/NAME`; the name is its serial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Serial, at most 20 letters, digits, `-` or `_`.
    pub name: String,
    /// Size.
    pub size: Bytes,
    /// What QEMU throttles it to, reads and writes together; `None`: nothing.
    pub bandwidth: Option<Bandwidth>,
    /// The same for requests.
    pub iops: Option<Iops>,
    /// Where its bytes are.
    pub media: Media,
    /// The disk whose limits it shares, instead of having its own: two names of one allowance.
    pub shares: Option<String>,
    /// Whether threads of QEMU's do its requests, as those of volumes that are plugged in, and not the host's kernel.
    pub threads: bool,
}

/// The longest serial that virtio has room for.
const SERIAL_MAX: usize = 20;

/// The most that a disk may be given; larger is a slip of the unit.
const DISK_MAX: Bytes = Bytes::from_gib(16 * 1024);

impl Disk {
    /// A new disk without limits.
    #[must_use]
    pub fn new(name: &str, size: Bytes) -> Self {
        Self {
            name: name.to_owned(),
            size,
            bandwidth: None,
            iops: None,
            media: Media::New,
            shares: None,
            threads: false,
        }
    }

    /// The same disk, throttled.
    #[must_use]
    pub fn throttled(self, bandwidth: Bandwidth) -> Self {
        Self { bandwidth: Some(bandwidth), ..self }
    }

    fn check_name(name: &str) -> Result<(), String> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > SERIAL_MAX || !name.chars().all(good) {
            return Err(format!(
                "\"{name}\" cannot be a disk's name: it becomes the serial, up to {SERIAL_MAX} letters, digits, - or _"
            ));
        }
        Ok(())
    }

    /// QEMU's arguments for it. `file` is where the bytes of a new disk are.
    #[must_use]
    pub fn arguments(&self, file: &Path) -> Vec<String> {
        let name = &self.name;
        let group = format!("limits-{}", self.shares.as_ref().unwrap_or(name));
        // 0: no limit.
        let (bps, iops) = (self.bandwidth.map_or(0, Bandwidth::get), self.iops.map_or(0, Iops::get));
        let limits = json!({"bps-total": bps, "iops-total": iops});
        let bytes = self.protocol(file);
        let throttle = json!({"qom-type": "throttle-group", "id": group, "limits": limits});
        let node = json!({
            "driver": "throttle", "node-name": format!("disk-{name}"), "throttle-group": group,
            "file": bytes,
        });
        let device = json!({
            "driver": "virtio-blk-pci", "id": format!("device-{name}"), "drive": format!("disk-{name}"), "serial": name,
            "bus": "pcie.0", "write-cache": "on", "num-queues": 2,
        });
        [("-object", throttle), ("-blockdev", node), ("-device", device)]
            .into_iter()
            .filter(|(flag, _)| *flag != "-object" || self.shares.is_none())
            .flat_map(|(flag, value)| [flag.to_owned(), value.to_string()])
            .collect()
    }

    fn protocol(&self, new: &Path) -> Value {
        let file = match &self.media {
            Media::New => new,
            Media::File(file) => file,
            Media::Nbd(socket) => {
                return json!({
                    "driver": "nbd", "node-name": format!("bytes-{}", self.name), "discard": "unmap",
                    "server": {"type": "unix", "path": socket},
                });
            }
        };
        let is_device = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
        json!({
            "driver": if is_device { "host_device" } else { "file" }, "node-name": format!("bytes-{}", self.name),
            "filename": file, "cache": {"direct": true}, "aio": if self.threads { "threads" } else { "native" },
            "discard": "unmap",
        })
    }
}

/// `NAME=SIZE[,RATE][,IOPS][,file=PATH][,nbd=SOCKET]`, such as `slow=2GiB,33MiB/s`.
impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            format!("\"{text}\" is not a disk: write NAME=SIZE[,RATE][,IOPS], such as slow=2GiB,33MiB/s")
        })?;
        Self::check_name(name)?;
        let mut parts = rest.split(',');
        let size: Bytes = parts.next().unwrap_or_default().parse().map_err(|error| format!("{error}"))?;
        if size == Bytes::ZERO || !size.get().is_multiple_of(512) || size > DISK_MAX {
            return Err(format!("a disk of {size}: its size is a multiple of 512 bytes, from there to {DISK_MAX}"));
        }
        let mut disk = Self::new(name, size);
        for part in parts {
            if let Some(file) = part.strip_prefix("file=") {
                disk.media = Media::File(file.into());
            } else if let Some(socket) = part.strip_prefix("nbd=") {
                disk.media = Media::Nbd(socket.into());
            } else if part.trim_end().to_ascii_lowercase().ends_with("iops") {
                disk.iops = Some(part.parse().map_err(|error| format!("{error}"))?);
            } else {
                disk.bandwidth = Some(part.parse().map_err(|error| format!("{error}"))?);
            }
        }
        Ok(disk)
    }
}

/// A guest to boot.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its host name.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
    /// Its cores.
    pub cores: u32,
    /// Free PCI Express root ports, for disks that are plugged while it runs: `port0`, `port1`, …
    pub ports: u32,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What it runs, by the host's `/bin/sh`.
    pub script: String,
    /// Where the script starts.
    pub directory: PathBuf,
    /// Where QEMU's monitor listens; `None`: in the guest's own directory.
    pub qmp: Option<PathBuf>,
    /// Where results stay; `None`: in a directory that goes with the guest.
    pub results: Option<PathBuf>,
    /// Whether what the script says is said here too, while it says it.
    pub echo: bool,
    /// How long booting may take.
    pub boot_timeout: Duration,
    /// How long the script may take.
    pub timeout: Duration,
    /// More of the kernel's command line.
    pub kernel_arguments: String,
}

impl Plan {
    /// A guest of two cores and 1 GiB that runs a script.
    #[must_use]
    pub fn new(name: &str, script: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            memory: Bytes::from_gib(1),
            cores: 2,
            ports: 8,
            disks: Vec::new(),
            script: script.into(),
            directory: "/".into(),
            qmp: None,
            results: None,
            echo: false,
            boot_timeout: Duration::from_secs(120),
            timeout: Duration::from_secs(600),
            kernel_arguments: String::new(),
        }
    }

    /// The same guest with one more disk.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }
}

/// A command as a line for `/bin/sh`.
#[must_use]
pub fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_read_from_one_word() {
        let disk: Disk = "slow=2GiB,33MiB/s,3000IOPS,file=/x/y".parse().unwrap();
        assert_eq!((disk.name.as_str(), disk.size), ("slow", Bytes::from_gib(2)));
        assert_eq!(disk.bandwidth, Some(Bandwidth::from_mib_s(33)));
        assert_eq!(disk.iops, Some(Iops::new(3000)));
        assert_eq!(disk.media, Media::File("/x/y".into()));
        for (text, expected) in [
            ("slow", "is not a disk"),
            ("slow=2", "has no unit"),
            ("slow=2GiB,33", "has no unit"),
            ("slow=0GiB", "a disk of 0 B"),
            ("a b=2GiB", "cannot be a disk's name"),
            ("=2GiB", "cannot be a disk's name"),
            ("a-name-that-is-far-too-long=2GiB", "cannot be a disk's name"),
        ] {
            let error = text.parse::<Disk>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn words_survive_the_shell() {
        let words = ["echo", "it's", "$HOME \"x\"", ""].map(str::to_owned);
        let output = std::process::Command::new("sh").arg("-c").arg(quoted(&words)).output().unwrap();
        assert_eq!(output.stdout, b"it's $HOME \"x\" \n");
    }
}
