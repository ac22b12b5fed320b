//! A caching volume that lies in a staging pool.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use smallvec::smallvec;
use surgetank_device::volume::{NotOpened, PoolFile, PoolVolume};
use surgetank_model::Bytes;
use surgetank_provider::{PoolConfig, VolumeId, pool};
use surgetank_rental::Obstacle;

use super::{Before, Found, Identity};

/// How long the session of a process that was killed may have the volume: those of a pool last for ten seconds.
const LINGER_TIMEOUT: Duration = Duration::from_secs(20);

/// A volume of a pool, by its name: nothing else ever has it.
pub(super) fn identity(VolumeId(id): &VolumeId) -> Identity {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    // No file system of this machine has this number.
    Identity(smallvec![(u64::MAX, hasher.finish() | 1)])
}

/// Opens a volume, once a process that had it has ended for the pool as well.
pub(super) fn open(config: &PoolConfig, id: &VolumeId, size: Bytes, before: Before) -> Result<Found, Obstacle> {
    let file = PoolFile { client: config.client()?, path: pool::path_of(id), size: size.get() };
    let begun = std::time::Instant::now();
    loop {
        match PoolVolume::open(file.clone()) {
            Err(NotOpened::InUse(_)) if begun.elapsed() < LINGER_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(volume) => {
                return Ok(Found { volume: Box::new(volume), name: id.0.clone(), identity: identity(id) });
            }
            Err(error @ NotOpened::InUse(_)) if before == Before::Unused => {
                return Err(Obstacle::Held(error.to_string()));
            }
            Err(error) => return Err(Obstacle::Failed(error.to_string())),
        }
    }
}
