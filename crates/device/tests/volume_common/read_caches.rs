//! Read caches for tests, of small segments.

use std::time::Duration;

use surgetank_device::volume::read_cache::{Member, ReadCacheHandle, ReadCacheVolume};
use surgetank_device::{MemoryVolume, Volume};
use surgetank_model::Instant;
use surgetank_readcache::{Config, MemberId};

pub const SEGMENT: u32 = 16 << 10;
/// Bytes of a member: a quarter of the devices of the tests.
pub const MEMBER: u64 = 256 << 10;
/// Long enough for any answer.
pub const SOON: Duration = Duration::from_secs(60);

pub fn member(id: u32, volume: Box<dyn Volume>) -> Member {
    Member { id: MemberId(id), name: format!("member {id}"), volume }
}

pub fn memory_member(id: u32) -> Member {
    member(id, Box::new(MemoryVolume::new(MEMBER, 512).unwrap()))
}

pub fn new(backing: Box<dyn Volume>, members: Vec<Member>) -> (ReadCacheVolume, ReadCacheHandle) {
    let config = Config { segment: SEGMENT, ..Config::new(0, 512) };
    let (mut cache, handle) = ReadCacheVolume::new(backing, config).unwrap();
    // Time that jumps to the next deadline would jump over answers of files.
    cache.set_timeout(Duration::MAX);
    let answers: Vec<_> = members.into_iter().map(|member| handle.add(member)).collect();
    cache.poll(Instant::ZERO, &mut Vec::new());
    assert!(answers.iter().all(|answer| answer.wait(SOON) == Some(Ok(()))));
    (cache, handle)
}
