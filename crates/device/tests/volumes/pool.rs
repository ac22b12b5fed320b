//! Volumes whose bytes lie in a staging pool, of which this process runs a whole one.

use std::time::Duration;

use crate::contract::{self, contract};
use crate::volume_common::{Driver, memory};
use surgetank_device::volume::{NotOpened, PoolFile, PoolVolume};
use surgetank_device::*;
use surgetank_model::Bytes;
use surgetank_pool::client::{Config, PoolClient};
use surgetank_pool::local::{self, Local};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::meta::value::Attributes;
use surgetank_pool_core::placement::Media;
use surgetank_pool_core::quota::Limit;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A pool, and a file of it.
struct World {
    pool: Local,
    directory: TempDir,
    copies: u8,
}

impl World {
    fn new(benefactors: u32, memory_mib: u64, copies: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = local::Config::of_memory(
            directory.path().join("pool"),
            "127.0.0.1:0",
            benefactors,
            Bytes::from_mib(memory_mib),
        );
        let pool = Local::start(&config).unwrap();
        pool.wait_joined(benefactors as usize, LONG).unwrap();
        std::fs::create_dir(directory.path().join("target")).unwrap();
        let world = Self { pool, directory, copies };
        world.ask(async |client| client.create("volume").await.unwrap().close().await.unwrap());
        world
    }

    fn client(&self) -> Config {
        let mut config = Config::new(vec![self.pool.address().to_owned()], self.pool.access().clone(), "volumes");
        let durability = Durability::Copies { copies: self.copies, media: Media::Any };
        config.make = Some((self.directory.path().join("target"), durability));
        config.timeout = Duration::from_secs(5);
        config
    }

    fn ask(&self, what: impl AsyncFnOnce(&PoolClient)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = PoolClient::begin(self.client()).await.unwrap();
            what(&client).await;
            client.end().await.unwrap();
        });
    }

    fn file(&self, size: u64) -> PoolFile {
        PoolFile { client: self.client(), path: "volume".to_owned(), size }
    }

    /// Opens the volume, once whoever had it has returned it.
    fn open(&self, size: u64) -> PoolVolume {
        loop {
            match PoolVolume::open(self.file(size)) {
                Err(NotOpened::InUse(_)) => std::thread::sleep(Duration::from_millis(20)),
                opened => return opened.unwrap(),
            }
        }
    }
}

fn content(block: u64, version: u8) -> Vec<u8> {
    (0..MIB).map(|at| version ^ (block * 31 + at / 512) as u8 ^ at as u8).collect()
}

fn write(volume: &mut PoolVolume, block: u64, version: u8) -> Result<(), Failure> {
    let data = memory(&content(block, version));
    let write = Operation::Write { fua: false };
    Driver::new(volume).one(write, block * MIB, MIB, vec![data.slice(0, MIB as usize)])
}

fn flush(volume: &mut PoolVolume) -> Result<(), Failure> {
    Driver::new(volume).one(Operation::Flush, 0, 0, Vec::new())
}

/// What is read, or why it is not.
fn read(volume: &mut PoolVolume, block: u64) -> Result<Vec<u8>, Failure> {
    let buffer = memory(&vec![0xee; MIB as usize]);
    Driver::new(volume).one(Operation::Read, block * MIB, MIB, vec![buffer.slice(0, MIB as usize)])?;
    // SAFETY: the read has ended.
    Ok(unsafe { buffer.bytes() }.to_vec())
}

#[test]
fn a_volume_in_the_pool_keeps_the_contract() {
    let world = World::new(2, 48, 2);
    contract(&mut world.open(contract::SIZE), 512);
}

#[test]
fn one_session_has_a_volume_at_a_time_and_the_next_finds_all_that_was_written() {
    let world = World::new(2, 96, 2);
    let mut volume = world.open(64 * MIB);
    (0..24).for_each(|block| write(&mut volume, block, 1).unwrap());
    assert_eq!(PoolVolume::open(world.file(64 * MIB)).err(), Some(NotOpened::InUse("volume".to_owned())));
    drop(volume);
    let mut volume = world.open(64 * MIB);
    for block in 0..64 {
        let expected = if block < 24 { content(block, 1) } else { vec![0; MIB as usize] };
        assert!(read(&mut volume, block).unwrap() == expected, "{block}");
    }
}

#[test]
fn a_benefactor_that_dies_in_the_middle_loses_nothing_of_a_volume_with_two_copies() {
    let world = World::new(3, 96, 2);
    let mut volume = world.open(64 * MIB);
    for block in 0..48 {
        write(&mut volume, block, 1).unwrap();
        match block {
            12 => assert!(world.pool.kill_benefactor(1)),
            8 | 20 => flush(&mut volume).unwrap(),
            _ => {}
        }
    }
    flush(&mut volume).unwrap();
    // Parts of chunks that are there already.
    (0..4).for_each(|block| {
        let data = memory(&[9; 4096]);
        let offset = block * MIB + 8192;
        Driver::new(&mut volume).must(Operation::Write { fua: true }, offset, 4096, vec![data.slice(0, 4096)]);
    });
    drop(volume);
    let mut volume = world.open(64 * MIB);
    for block in 0..48 {
        let mut expected = content(block, 1);
        if block < 4 {
            expected[8192..12288].fill(9);
        }
        assert!(read(&mut volume, block).unwrap() == expected, "{block}");
    }
}

#[test]
fn bytes_whose_last_copy_is_lost_fail_to_be_read_and_are_never_zeroes_or_others() {
    let world = World::new(2, 96, 1);
    let mut volume = world.open(64 * MIB);
    (0..32).for_each(|block| write(&mut volume, block, 1).unwrap());
    flush(&mut volume).unwrap();
    (0..32).for_each(|block| write(&mut volume, block, 2).unwrap());
    flush(&mut volume).unwrap();
    assert!(world.pool.kill_benefactor(0));
    let mut lost = 0;
    for block in 0..32 {
        match read(&mut volume, block) {
            Ok(bytes) => assert!(bytes == content(block, 2), "{block}"),
            Err(failure) => {
                assert_eq!(failure, Failure::Io);
                lost += 1;
                if lost == 2 {
                    break;
                }
            }
        }
    }
    assert_eq!(lost, 2, "half of the chunks were there alone");
}

#[test]
fn a_pool_without_room_is_told_and_what_was_flushed_stays_readable() {
    let world = World::new(1, 24, 1);
    let mut volume = world.open(64 * MIB);
    (0..8).for_each(|block| write(&mut volume, block, 1).unwrap());
    flush(&mut volume).unwrap();
    // What is flushed would be drained, to make room.
    std::fs::rename(world.directory.path().join("target"), world.directory.path().join("away")).unwrap();
    let written = (8..64).map(|block| write(&mut volume, block, 1)).find(Result::is_err);
    let told = written.unwrap_or_else(|| flush(&mut volume));
    assert_eq!(told, Err(Failure::NoSpace));
    (0..8).for_each(|block| assert!(read(&mut volume, block).unwrap() == content(block, 1), "{block}"));
}

#[test]
fn a_volume_over_its_users_quota_is_told_and_keeps_what_was_written_until_there_is_room() {
    let world = World::new(1, 96, 1);
    let limit = async |limit| PoolClient::set_quota(&world.client(), Some(7), Some(limit), None).await.unwrap();
    world.ask(async |client| {
        let inode = client.stat("volume").await.unwrap().inode;
        let attributes = Attributes { user: Some(7), ..Attributes::default() };
        client.set_attributes(inode, attributes, "volume").await.unwrap();
        limit(Limit::AtMost(4 * MIB)).await;
    });
    let mut volume = world.open(64 * MIB);
    let taken = (0..16).take_while(|block| write(&mut volume, *block, 1).is_ok()).count() as u64;
    assert_eq!(flush(&mut volume), Err(Failure::NoSpace));
    assert!((0..taken).all(|block| read(&mut volume, block).unwrap() == content(block, 1)));
    world.ask(async |_| limit(Limit::Unlimited).await);
    let end = std::time::Instant::now() + LONG;
    while let Err(failure) = flush(&mut volume) {
        assert_eq!(failure, Failure::NoSpace);
        assert!(std::time::Instant::now() < end, "there is room");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!((0..taken).all(|block| read(&mut volume, block).unwrap() == content(block, 1)));
}

#[test]
fn a_file_that_is_gone_or_has_another_size_is_not_opened() {
    let world = World::new(1, 24, 1);
    let absent = PoolFile { path: "absent".to_owned(), ..world.file(MIB) };
    assert!(matches!(PoolVolume::open(absent), Err(NotOpened::Failed(why)) if why.contains("no such file")));
    let odd = PoolVolume::open(world.file(MIB + 512));
    assert!(matches!(odd, Err(NotOpened::Failed(why)) if why.contains("multiple")));
}
