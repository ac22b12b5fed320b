//! Where a caching volume is found.

use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use surgetank_device::FileVolume;
use surgetank_device::discovery::Disks;
use surgetank_device::volume::{Options, look_beneath};
use surgetank_model::Bytes;
use surgetank_provider::{DiskIdentity, Home, PoolConfig, VolumeDescription, VolumeId};
use surgetank_rental::{self as rental, Obstacle};

use super::{Before, Found, Identity, open_patiently, pool, status_of};

/// Where to look for a caching volume. A provider never chooses a path: it says what tells a disk from the others, or names a
/// file beneath a directory that its configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The disk that shows this.
    Disk(DiskIdentity),
    /// A file of this machine.
    File {
        /// Beneath what.
        directory: PathBuf,
        /// Its name there, without links and without `..`.
        name: PathBuf,
    },
    /// A file of a staging pool.
    Pool {
        /// The pool.
        pool: Arc<PoolConfig>,
        /// The volume, whose name the file has.
        id: VolumeId,
    },
    /// Where each member of a stripe is, in their order.
    Stripe(Vec<Place>),
}

impl Place {
    /// Where an attached volume is, by what its provider says of it; `home` is where its provider's volumes are found.
    ///
    /// # Errors
    /// One sentence with the remedy: it is no place that a volume can have.
    pub fn of(description: &VolumeDescription, home: &Home) -> Result<Self, String> {
        let id = &description.id.0;
        if rental::stripe::is_stripe(&description.id) {
            let members = &description.members;
            let missing: Vec<String> = rental::stripe::members(&description.id)
                .into_iter()
                .filter(|id| members.iter().all(|member| member.id != *id))
                .map(|VolumeId(id)| id)
                .collect();
            if !missing.is_empty() {
                return Err(format!(
                    "{} of the stripe {id} cannot be found at its provider: look there for what became of it",
                    missing.join(", ")
                ));
            }
            return members.iter().map(|member| Self::of(member, home)).collect::<Result<_, _>>().map(Self::Stripe);
        }
        if let Home::Pool(pool) = home {
            return Ok(Self::Pool { pool: Arc::clone(pool), id: description.id.clone() });
        }
        match (&description.disk, &description.device) {
            (Some(disk), _) => Ok(Self::Disk(disk.clone())),
            (None, None) => Err(format!("the volume {id} is attached, but the provider does not say where")),
            (None, Some(device)) => match home {
                Home::Files(directory) => match name_beneath(directory, device) {
                    Some(name) => Ok(Self::File { directory: directory.to_owned(), name }),
                    None => Err(format!(
                        "the provider says that the volume {id} is the file {device:?}, which is not beneath {}, where its \
                         files may lie: fix the service, or files = \"…\" of [provider.host]",
                        directory.display()
                    )),
                },
                Home::Disks | Home::Pool(_) => Err(format!(
                    "the provider says that the volume {id} is at {device:?} and names no serial of a disk: let the service \
                     say the serial, or if it rents out files of this machine add files = \"/their/directory\" to \
                     [provider.host]"
                )),
            },
        }
    }

    /// What the disks among them show.
    pub fn disks(&self) -> Vec<&DiskIdentity> {
        match self {
            Self::Disk(identity) => vec![identity],
            Self::File { .. } | Self::Pool { .. } => Vec::new(),
            Self::Stripe(members) => members.iter().flat_map(Self::disks).collect(),
        }
    }

    /// A disk among them that has no serial. No serial is given twice, but another disk may have the name or the number of one that
    /// has gone.
    pub fn without_a_serial(&self) -> Option<&DiskIdentity> {
        self.disks().into_iter().find(|disk| !matches!(disk, DiskIdentity::Serial(_)))
    }

    /// Whether it cannot be where the volume of this place is now. A disk without a serial may come back under another name or
    /// number, and is known by what is on it.
    #[must_use]
    pub fn is_other(&self, now: &Self) -> bool {
        match (self, now) {
            (Self::Disk(before), Self::Disk(now)) => {
                let is_serial = |disk: &DiskIdentity| matches!(disk, DiskIdentity::Serial(_));
                before != now && (is_serial(before) || is_serial(now))
            }
            (Self::Stripe(before), Self::Stripe(now)) => {
                before.len() != now.len() || before.iter().zip(now).any(|(before, now)| before.is_other(now))
            }
            (before, now) => before != now,
        }
    }

    /// The place of each volume of the provider.
    fn each(&self) -> &[Self] {
        match self {
            Self::Stripe(members) => members,
            one => std::slice::from_ref(one),
        }
    }

    /// Which disk or file is there now; `None`: none, or not all.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn look(&self, disks: &Disks) -> Result<Option<Identity>, String> {
        let status = match self {
            Self::Disk(identity) => match disks.find(identity).map_err(|error| error.to_string())? {
                Some(path) => rustix::fs::stat(&path).map_err(io::Error::from),
                None => return Ok(None),
            },
            Self::File { directory, name } => {
                look_beneath(directory, name).and_then(|found| Ok(rustix::fs::fstat(&found)?))
            }
            // The volume itself tells when it is gone.
            Self::Pool { id, .. } => return Ok(Some(pool::identity(id))),
            Self::Stripe(members) => {
                let found = members.iter().map(|member| member.look(disks)).collect::<Result<Option<Vec<_>>, _>>()?;
                return Ok(found.map(Identity::of_all));
            }
        };
        match status {
            Ok(status) => Ok(Some(Identity::of(&status))),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV) => Ok(None),
                _ => Err(error.to_string()),
            },
        }
    }

    /// Opens what is there, and makes sure of what was opened, not of what was found: the name of a disk may be another
    /// disk's a moment later. `None`: a disk is not there (yet).
    pub(super) fn open(
        &self,
        sizes: &[Bytes],
        disks: &Disks,
        options: Options,
        before: Before,
    ) -> Result<Option<Vec<Found>>, Obstacle> {
        let places = self.each();
        if places.len() != sizes.len() {
            return Err(format!("the provider says the sizes of {} volumes of {}", sizes.len(), places.len()).into());
        }
        let open = |(place, size): (&Self, &Bytes)| place.open_one(*size, disks, options, before);
        places.iter().zip(sizes).map(open).collect()
    }

    fn open_one(
        &self,
        size: Bytes,
        disks: &Disks,
        options: Options,
        before: Before,
    ) -> Result<Option<Found>, Obstacle> {
        match self {
            Self::Stripe(_) => Err("a stripe is no volume of the provider".to_owned().into()),
            Self::Disk(identity) => {
                let Some(path) = disks.find(identity).map_err(|error| error.to_string())? else { return Ok(None) };
                let volume =
                    open_patiently(|| FileVolume::open(&path, options)).map_err(|error| before.obstacle(&error))?;
                disks.verify(volume.as_fd(), identity, size.get()).map_err(|error| error.to_string())?;
                Ok(Some(Found::of(volume)?))
            }
            Self::File { directory, name } => {
                let volume = open_patiently(|| FileVolume::open_beneath(directory, name, options));
                let volume = volume.map_err(|error| before.obstacle(&error))?;
                let (path, bytes) = (volume.path().display(), status_of(&volume)?.st_size);
                if u64::try_from(bytes) != Ok(size.get()) {
                    let why = format!("{path} has {bytes} bytes instead of the {} that were rented", size.get());
                    return Err(why.into());
                }
                Ok(Some(Found::of(volume)?))
            }
            Self::Pool { pool, id } => pool::open(pool, id, size, before).map(Some),
        }
    }
}

/// What `path` is called beneath `directory`, if it is there by its words alone.
fn name_beneath(directory: &Path, path: &Path) -> Option<PathBuf> {
    let name = path.strip_prefix(directory).ok()?;
    let plain = name.components().all(|component| matches!(component, Component::Normal(_)));
    (plain && !name.as_os_str().is_empty()).then(|| name.to_owned())
}
