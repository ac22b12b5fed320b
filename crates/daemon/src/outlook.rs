//! What a start of a configuration on this machine would meet, found out without starting: `serve --check`.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use surgetank_device::{FileVolume, Options, Volume};
use surgetank_model::Bytes;

use crate::config::{Backing, CachingConfig, Config, DeviceConfig, ReadCacheConfig};
use crate::daemon::refuse_own_ground;
use crate::exports::{self, check_certificates};
use crate::{arrays, control, places, starting};

/// What a start would meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// What would be refused, and the remedies: the whole start, or a device.
    pub refused: Vec<String>,
    /// What would be served all the same, and not as it may be meant.
    pub remarks: Vec<String>,
    /// Why nothing was looked at on this machine.
    pub unseen: Option<String>,
}

impl Outlook {
    /// Looks. The disks are left alone while a daemon serves them, and this user's rights tell nothing of another's.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let mut outlook = Self::default();
        let state = &config.state_directory;
        let owner = state.ancestors().find_map(|place| fs::metadata(place).ok()).map_or(0, |found| found.uid());
        if owner != geteuid().as_raw() {
            outlook.unseen =
                Some(format!("run it as the user {owner}, as the daemon, to have disks and directories looked at"));
            return outlook;
        }
        outlook.refused.extend(places::check_all(config).err());
        if is_served(state) {
            outlook.unseen = Some("a daemon serves it now, so its disks were not looked at".to_owned());
            return outlook;
        }
        outlook.refused.extend(control::is_stale(&config.control_socket).err());
        let directories = [("state_directory", state), ("run_directory", &config.run_directory)];
        outlook.refused.extend(directories.into_iter().filter_map(|(key, directory)| read_only(key, directory)));
        outlook.refused.extend(refuse_own_ground(config).err().map(|error| error.to_string()));
        let providers = config.providers.values().filter_map(|provider| provider.would_open().err());
        outlook.refused.extend(providers.map(|error| error.to_string()));
        outlook.refused.extend(check_certificates(config).err());
        for (name, array) in &config.arrays {
            let remarks = arrays::remarks(array, array.member_size).into_iter();
            outlook.remarks.extend(remarks.map(|remark| format!("array {name}, once it is full: {remark}")));
        }
        let shared = starting::shared_backing(config);
        for (name, device) in &config.devices {
            let size = match (&device.backing, shared.get(name)) {
                (_, Some(refused)) => Err(refused.clone()),
                (Backing::Memory(size), None) => Ok(*size),
                (Backing::Array(name), None) => array_size(config, name),
                (Backing::Path(path), None) => size(path, exports::dm::is_ours(name)),
            };
            for cache in device.read_cache.iter().flat_map(ReadCacheConfig::levels) {
                let remarks = read_cache_remarks(config, cache).into_iter();
                outlook.remarks.extend(remarks.map(|remark| format!("device {name}: {remark}")));
            }
            match (size, &device.caching) {
                (Err(why), _) => outlook.refused.push(format!("device {name}: {why}")),
                (Ok(size), Some(caching)) => {
                    let remarks = remarks(config, device, caching, size).into_iter();
                    outlook.remarks.extend(remarks.map(|remark| format!("device {name}: {remark}")));
                }
                (Ok(_), None) => {}
            }
        }
        outlook
    }
}

/// About how large an array is, if it is on record.
fn array_size(config: &Config, name: &str) -> Result<Bytes, String> {
    let Some(array) = config.arrays.get(name) else { return Err(format!("there is no section [array.{name}]")) };
    if !arrays::is_on_record(config, name)? {
        return Err(format!("there is no array {name} yet: create it with `surgetank array create {name}`"));
    }
    Ok(Bytes::new(array.member_size.get().saturating_mul(u64::from(array.members))))
}

/// Why a directory cannot be written or made.
fn read_only(key: &str, directory: &Path) -> Option<String> {
    let there = directory.ancestors().find(|place| place.exists())?;
    let error = access(there, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let shown = there.display();
    Some(format!("{shown} cannot be written, as {key} must be: {error}; make it writable, or name another directory"))
}

/// Whether a daemon has the state directory.
fn is_served(state: &Path) -> bool {
    let Ok(lock) = File::open(state.join("lock")) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// The size of a backing volume that could be opened as a start opens it: for itself, unless our own map `holds` it. It is
/// not written.
fn size(path: &Path, holds: bool) -> Result<Bytes, String> {
    let opened = FileVolume::open(path, Options { read_only: true, exclusive: !holds, ..Options::default() });
    opened.map(|volume| Bytes::new(volume.size())).map_err(|error| error.to_string())
}

/// What keeps a read cache from having all members, as far as the provider's limits tell.
fn read_cache_remarks(config: &Config, cache: &ReadCacheConfig) -> Option<String> {
    let provider = config.providers.get(cache.provider)?;
    let ReadCacheConfig { members, member_size, .. } = cache;
    if let Some(why) = provider.rents_nothing() {
        return Some(format!(
            "{why}: the read cache gets no member until you write a larger one, or leave it out for no limit"
        ));
    }
    if let Some(most) = provider.volumes_max().filter(|most| most < members) {
        return Some(format!(
            "the read cache has {members} members, and the provider rents {most} volumes at once: write fewer members, or raise its quota"
        ));
    }
    let all = Bytes::new(member_size.get().saturating_mul(u64::from(*members)));
    provider.has_no_room_for(all).map(|why| {
        format!("the read cache's {members} members of {member_size} take {all}, and {why}: write fewer or smaller ones, or make room")
    })
}

/// What the first caching volume is not, or cannot be, as it is configured.
pub fn remarks(config: &Config, device: &DeviceConfig, caching: &CachingConfig, backing: Bytes) -> Vec<String> {
    let provider = config.providers.get(caching.provider);
    if let Some(why) = provider.and_then(|provider| provider.rents_nothing()) {
        return vec![format!("{why}: no boost begins until you write a larger one, or leave it out for no limit")];
    }
    let initial = caching.initial_size;
    let first = device.controller(caching, backing, 0).first_size();
    let other = if initial > backing && caching.size.0 <= backing {
        Some(format!(
            "initial_size is {initial}, and the backing volume has {} MiB: a larger caching volume is of no use, so \
             none is rented that is larger than that, rounded up to size_grain",
            backing.get() >> 20
        ))
    } else {
        (first > initial).then(|| {
            let grain = device.policy.grain;
            let times = if caching.volumes > 1 { format!("{} volumes × ", caching.volumes) } else { String::new() };
            format!(
                "initial_size is {initial}, and sizes are multiples of {times}size_grain, {grain}: the first one has {first}"
            )
        })
    };
    let no_room = provider.and_then(|provider| provider.has_no_room_for(first)).map(|why| {
        let (is, smaller) = match first == initial {
            true => (format!("initial_size is {initial}"), "initial_size"),
            false => (format!("the first caching volume has {first}"), "initial_size or size_grain"),
        };
        format!("{is}, and {why}: no boost begins until you write a smaller {smaller} or make room")
    });
    other.into_iter().chain(no_room).collect()
}
