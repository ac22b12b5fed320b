//! What systemd and udev must know of a configuration: which disks and mounts the service waits for, which mounts wait for
//! the service, and which block device is what. Decided here; the kernel's facts come as arguments.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::config::{Backing, Config, DeviceConfig};

/// Where block devices have their nodes.
const NODES: &str = "/dev";
/// Links that name what is on a disk, not the disk: with an elastic device over it they are that device's.
const CONTENTS: [&str; 2] = ["disk/by-uuid/", "disk/by-label/"];
/// The other links of a disk, as `packaging/udev/62-surgetank.rules` knows them. A disk with more keeps the first.
const LINKS: [&str; 8] = [
    "SURGETANK_LINK1",
    "SURGETANK_LINK2",
    "SURGETANK_LINK3",
    "SURGETANK_LINK4",
    "SURGETANK_LINK5",
    "SURGETANK_LINK6",
    "SURGETANK_LINK7",
    "SURGETANK_LINK8",
];

/// How the names begin by which device mapper tells our devices from others'.
pub const UNIQUE_NAME: &str = "SURGETANK-";

const SERVING: &str = ".serving-";

/// The link in the run directory to the block device that answers for a mapped one. No device has a name with a dot at its
/// beginning.
#[must_use]
pub fn serving_link(device: &str) -> String {
    format!("{SERVING}{device}")
}

/// The device that such a link is for.
#[must_use]
pub fn served_device(link: &str) -> Option<&str> {
    link.strip_prefix(SERVING)
}

/// The name under which udev knows an exported block device.
#[must_use]
pub fn node(device: &str) -> PathBuf {
    Path::new(NODES).join(format!("disk/by-id/surgetank-{device}"))
}

/// The drop-in of the service: everything is there before it starts, and what is mounted from its devices comes after it
/// and goes before it.
#[must_use]
pub fn drop_in(config: &Config) -> String {
    let (disks, files) = backing_volumes(config);
    let directories = config.providers.values().filter_map(|provider| provider.directory());
    let mut text =
        waiting_for(directories.map(Path::to_owned).chain([config.state_directory.clone()]).chain(files), &disks);
    for (name, _) in config.devices.iter().filter(|(_, device)| device.is_block_device()) {
        let target = format!("blockdev@{}.target", escaped(&node(name)));
        let _ = writeln!(text, "Wants={target}\nBefore={target}");
    }
    text
}

/// The drop-in of what maps devices before the service: it needs the disks and the owner records, and nothing of providers.
#[must_use]
pub fn map_drop_in(config: &Config) -> String {
    waiting_for([config.state_directory.clone()].into_iter(), &backing_volumes(config).0)
}

/// Disks, and files.
fn backing_volumes(config: &Config) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let backing = |device: &DeviceConfig| match &device.backing {
        Backing::Path(path) => Some(path.clone()),
        // Whose disks its members are, its provider says when it is asked.
        Backing::Memory(_) | Backing::Array(_) => None,
    };
    config.devices.values().filter_map(backing).partition(|path| path.starts_with(NODES))
}

fn waiting_for(paths: impl Iterator<Item = PathBuf>, disks: &[PathBuf]) -> String {
    let mut text = "[Unit]\n".to_owned();
    for path in paths.filter_map(|path| quoted(&path)) {
        let _ = writeln!(text, "RequiresMountsFor={path}");
    }
    // Awaited, as long as systemd waits for a device, but not required: without one of several disks only that one's device
    // is refused, and no slip of udev's about a disk that is there keeps a killed daemon from coming back.
    for disk in disks {
        let unit = escaped(disk) + ".device";
        let _ = writeln!(text, "Wants={unit}\nAfter={unit}");
    }
    text
}

/// A block device, as the kernel and udev know it.
#[derive(Clone, Debug, Default)]
pub struct Block<'a> {
    /// The kernel's name of it.
    pub name: &'a str,
    /// Its links, relative to `/dev`.
    pub links: &'a [String],
    /// The node by which it is mounted, if that is another than the kernel's name: device mapper's.
    pub mapped: Option<PathBuf>,
    /// It and those that it is on, to the bottom, by the kernel's names: partitions are on disks, volumes are on
    /// partitions and disks.
    pub on: &'a [String],
}

/// The kernel's names of block devices of ours, each with the device of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Ours {
    /// What users mount.
    pub exported: Vec<(String, String)>,
    /// To what device mapper sends the requests of an exported device while the daemon answers them.
    pub serving: Vec<(String, String)>,
}

/// What udev is told of a block device, as `KEY=VALUE`. `leads_to` says which kernel's name a path has.
#[must_use]
pub fn properties(
    config: &Config,
    block: &Block<'_>,
    Ours { exported, serving }: &Ours,
    leads_to: impl Fn(&Path) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let mut properties = Vec::new();
    if let Some((device, _)) = exported.iter().find(|(_, name)| name == block.name) {
        properties.push(("SURGETANK_DEVICE", device.clone()));
    }
    if exported.iter().any(|(_, name)| block.on.contains(name)) {
        let node = block.mapped.clone().unwrap_or_else(|| Path::new(NODES).join(block.name));
        // Read as words with backslashes by systemd.
        let instance = escaped(&node).replace('\\', r"\\");
        properties.push(("SURGETANK_WANTS", format!("surgetank-device@{instance}.target")));
    } else if let Some((device, _)) = serving.iter().find(|(_, name)| block.on.contains(name)) {
        properties.push(("SURGETANK_BACKING", device.clone()));
    } else if let Some((device, _)) = config.devices.iter().find(|(_, device)| is_beneath(device, block, &leads_to)) {
        let links = block.links.iter().filter(|link| !CONTENTS.iter().any(|kind| link.starts_with(kind)));
        properties.push(("SURGETANK_BACKING", device.clone()));
        // udev takes a value for one link, whatever blanks are in it.
        properties.extend(LINKS.into_iter().zip(links.cloned()));
    }
    properties
}

/// Whether a block device is what a device has beneath it, or a partition of that.
fn is_beneath(device: &DeviceConfig, block: &Block<'_>, leads_to: impl Fn(&Path) -> Option<String>) -> bool {
    let Backing::Path(path) = &device.backing else { return false };
    let Ok(relative) = path.strip_prefix(NODES) else { return false };
    // Its links are not there yet when the disk is new.
    block.links.iter().any(|link| Path::new(link) == relative)
        || relative == Path::new(block.name)
        || leads_to(path).is_some_and(|name| block.on.contains(&name))
}

/// A path as a part of a unit's name (systemd.unit(5), "string escaping").
#[must_use]
pub fn escaped(path: &Path) -> String {
    let parts = path.as_os_str().as_bytes().split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let plain = parts.collect::<Vec<_>>().join(&b'/');
    if plain.is_empty() {
        return "-".to_owned();
    }
    let mut name = String::with_capacity(plain.len());
    for (at, &byte) in plain.iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at > 0 => name.push('.'),
            b':' | b'_' => name.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => name.push(char::from(byte)),
            _ => {
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    name
}

/// A path as a word of a unit file. `None`: a unit file cannot hold it.
fn quoted(path: &Path) -> Option<String> {
    let text = path.to_str().filter(|text| text.starts_with('/') && !text.contains(char::is_control))?;
    Some(format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(more: &str) -> Config {
        let text = format!(
            "[provider.local]\ndirectory = \"/mnt/nvme/surgetank/volumes\"\n[device.data]\nbacking = \
             \"/dev/disk/by-id/virtio-data\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n{more}"
        );
        Config::from_text(Path::new("s.toml"), &text).unwrap()
    }

    const SECOND: &str =
        "[device.second]\nbacking = \"/images/100% \\\"x\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 MiB/s\"";

    #[test]
    fn the_service_waits_for_its_disk_and_its_mounts_wait_for_the_service() {
        let expected = "[Unit]\nRequiresMountsFor=\"/mnt/nvme/surgetank/volumes\"\nRequiresMountsFor=\"/var/lib/surgetank\"\n\
            Wants=dev-disk-by\\x2did-virtio\\x2ddata.device\nAfter=dev-disk-by\\x2did-virtio\\x2ddata.device\n\
            Wants=blockdev@dev-disk-by\\x2did-surgetank\\x2ddata.target\n\
            Before=blockdev@dev-disk-by\\x2did-surgetank\\x2ddata.target\n";
        assert_eq!(drop_in(&config("")), expected);
    }

    #[test]
    fn an_image_is_waited_for_with_the_mount_on_which_it_lies() {
        let text = drop_in(&config(SECOND));
        assert!(text.contains("\nRequiresMountsFor=\"/images/100%% \\\"x\"\n"), "{text}");
        assert!(!text.contains("second"), "an NBD export is no block device: {text}");
    }

    fn told(config: &Config, block: &Block<'_>) -> Vec<String> {
        let named = |names: &[&str]| names.iter().map(|name| ("data".to_owned(), (*name).to_owned())).collect();
        let ours = Ours { exported: named(&["ublkb0", "dm-7"]), serving: named(&["ublkb7"]) };
        let leads_to = |path: &Path| (path == Path::new("/dev/disk/by-id/virtio-data")).then(|| "vdb".to_owned());
        let told = properties(config, block, &ours, leads_to);
        told.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn what_is_mapped_at_boot_waits_for_disks_and_records_alone() {
        let expected = "[Unit]\nRequiresMountsFor=\"/var/lib/surgetank\"\n\
            Wants=dev-disk-by\\x2did-virtio\\x2ddata.device\nAfter=dev-disk-by\\x2did-virtio\\x2ddata.device\n";
        assert_eq!(map_drop_in(&config(SECOND)), expected);
    }

    #[test]
    fn udev_knows_our_devices_what_is_on_them_and_what_is_beneath() {
        let config = config("");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let on = names(&["ublkb0"]);
        let ours = Block { name: "ublkb0", on: &on, ..Block::default() };
        assert_eq!(
            told(&config, &ours),
            ["SURGETANK_DEVICE=data", "SURGETANK_WANTS=surgetank-device@dev-ublkb0.target"]
        );
        let on = names(&["dm-1", "dm-0", "ublkb0"]);
        let volume = Block { name: "dm-1", mapped: Some("/dev/mapper/a-b".into()), on: &on, ..Block::default() };
        assert_eq!(told(&config, &volume), [r"SURGETANK_WANTS=surgetank-device@dev-mapper-a\\x2db.target"]);
        let (on, links) = (names(&["vdb"]), names(&["disk/by-uuid/1-2", "disk/by-id/virtio-data", "disk/by-label/x"]));
        let beneath = Block { name: "vdb", links: &links, on: &on, ..Block::default() };
        assert_eq!(told(&config, &beneath), ["SURGETANK_BACKING=data", "SURGETANK_LINK1=disk/by-id/virtio-data"]);
        let on = names(&["vdb1", "vdb"]);
        assert_eq!(told(&config, &Block { name: "vdb1", on: &on, ..Block::default() })[0], "SURGETANK_BACKING=data");
        let on = names(&["dm-7", "ublkb7"]);
        let mapped = Block { name: "dm-7", mapped: Some("/dev/mapper/data".into()), on: &on, ..Block::default() };
        assert_eq!(
            told(&config, &mapped),
            ["SURGETANK_DEVICE=data", "SURGETANK_WANTS=surgetank-device@dev-mapper-data.target"]
        );
        assert_eq!(
            told(&config, &Block { name: "ublkb7", on: &on[1..], ..Block::default() }),
            ["SURGETANK_BACKING=data"]
        );
        let on = names(&["vdc"]);
        assert_eq!(told(&config, &Block { name: "vdc", on: &on, ..Block::default() }), [""; 0]);
    }

    /// As `systemd-escape --path` has it.
    #[test]
    fn paths_are_escaped_as_systemd_does_it() {
        for (path, expected) in [
            ("/", "-"),
            ("/dev/vdb", "dev-vdb"),
            ("//dev//disk/by-id/virtio-data/", r"dev-disk-by\x2did-virtio\x2ddata"),
            ("/.a/.b", r"\x2ea-.b"),
            ("/ä ", r"\xc3\xa4\x20"),
            ("/dev/mapper/a:b_c", "dev-mapper-a:b_c"),
        ] {
            assert_eq!(escaped(Path::new(path)), expected);
        }
    }

    proptest! {
        /// Whatever a path holds, a unit file has one line more, and a unit's name only what names may have.
        #[test]
        fn no_path_breaks_a_unit_file(path in "/.*") {
            let allowed = |c: char| c.is_ascii_alphanumeric() || r"-\:_.".contains(c);
            prop_assert!(escaped(Path::new(&path)).chars().all(allowed));
            prop_assert!(quoted(Path::new(&path)).is_none_or(|word| word.lines().count() == 1 && word.ends_with('"')));
        }
    }
}
