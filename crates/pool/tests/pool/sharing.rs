//! Mounts whose targets take nothing, beside others whose targets do.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, Small, bytes, run, same, until, write};
use surgetank_pool::client::{Config, Error, PoolClient};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

/// Bytes of each file.
const FILE: usize = 2 * MIB;

/// A session of a mount with a target of its own, and that target.
async fn mount(pool: &Pool, name: &str, media: Media, timeout: Duration) -> (PoolClient, PathBuf) {
    let target = pool.directory.path().join(name);
    std::fs::create_dir_all(&target).unwrap();
    let mut config = Config::new(pool.addresses(), pool.credentials.access(), name);
    config.make = Some((target.clone(), Durability::Copies { copies: 1, media }));
    config.timeout = timeout;
    (pool.client_of(config).await, target)
}

/// It writes a file and has it drained, several times.
async fn goes_on((client, target): &(PoolClient, PathBuf)) {
    for round in 0..6 {
        let (path, content) = (format!("round-{round}"), bytes(100 + round, FILE));
        write(client, &path, &content).await.unwrap();
        client.wait_drained(&path, LONG).await.unwrap();
        same(&path, &std::fs::read(target.join(&path)).unwrap(), &content);
    }
}

/// A mount that takes nothing any more.
struct Stuck {
    client: PoolClient,
    target: PathBuf,
    taken: u64,
    _small: Small,
}

impl Stuck {
    /// It has filled what it may. `None`: this machine cannot mount a small target.
    async fn begin(pool: &Pool, name: &str, media: Media) -> Option<Self> {
        let (target, short) = (pool.directory.path().join(name), Duration::from_secs(3));
        std::fs::create_dir_all(&target).unwrap();
        let _small = Small::mount(&target, "size=1m")?;
        let (client, _) = mount(pool, name, media, short).await;
        // A slow machine may make it seem full for a moment.
        let (mut taken, mut full) = (0, 0);
        while full < 2 {
            (taken, full) = if write_more(&client, taken).await { (taken + 1, 0) } else { (taken, full + 1) };
        }
        Some(Self { client, target, taken, _small })
    }

    /// There is room: all that was acknowledged is drained.
    async fn drains(self) {
        Small::remount(&self.target, "size=500m");
        for file in 0..self.taken {
            let path = name(file);
            self.client.wait_drained(&path, LONG).await.unwrap();
            same(&path, &std::fs::read(self.target.join(&path)).unwrap(), &bytes(file, FILE));
        }
    }
}

fn name(file: u64) -> String {
    format!("file-{file}")
}

/// Writes a file, if there is room.
async fn write_more(client: &PoolClient, file: u64) -> bool {
    match write(client, &name(file), &bytes(file, FILE)).await {
        Ok(()) => true,
        Err(Error::NoRoom { .. }) => {
            client.unlink(&name(file)).await.unwrap();
            false
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
pub fn a_mount_whose_target_is_full_leaves_room_to_others() {
    run(async {
        let pool = Pool::new(1, 2, 96);
        let Some(stuck) = Stuck::begin(&pool, "stuck", Media::Any).await else { return };
        assert!(stuck.taken >= 80, "one alone has most of the room: {}", stuck.taken);
        until("it is told who has it", async || {
            let mounts = stuck.client.status().await.unwrap().mounts;
            let of = mounts.into_iter().find(|mount| mount.name == "stuck").unwrap();
            (of.memory, of.ssd, of.journal) == (stuck.taken * FILE as u64, 0, stuck.taken)
        })
        .await;
        // One that begins when there is no room for the first.
        goes_on(&mount(&pool, "second", Media::Any, LONG).await).await;
        assert!(!write_more(&stuck.client, stuck.taken + 1).await, "what the second one drains is not the first one's");
        let also = Stuck::begin(&pool, "stuck as well", Media::Any).await.expect("one could be mounted");
        assert!(also.taken > 0);
        goes_on(&mount(&pool, "third", Media::Any, LONG).await).await;
        stuck.drains().await;
        also.drains().await;
    });
}

#[test]
pub fn a_mount_that_has_filled_what_it_may_of_memory_and_ssds_leaves_some_of_both() {
    run(async {
        let disk = |seed| Some(Disk::Cut(CutDisk::new(16, 8 * MIB, seed)));
        let pool = Pool::with_ssds(1, 48, (0..2).map(disk).collect());
        let Some(stuck) = Stuck::begin(&pool, "stuck", Media::Any).await else { return };
        assert!(stuck.taken >= 120, "one alone has most of both: {}", stuck.taken);
        // More than is free in memory, where nothing is drained: it is moved.
        let also = Stuck::begin(&pool, "stuck as well", Media::Any).await.expect("one could be mounted");
        assert!(also.taken >= 9, "{}", also.taken);
        stuck.drains().await;
        also.drains().await;
    });
}

#[test]
pub fn a_mount_whose_target_is_full_leaves_room_on_ssds_to_others_also_in_their_next_lives() {
    run(async {
        let disk = |seed| Some(Disk::Cut(CutDisk::new(16, 8 * MIB, seed)));
        let mut pool = Pool::with_ssds(1, 24, (0..2).map(disk).collect());
        let Some(stuck) = Stuck::begin(&pool, "stuck", Media::Ssd).await else { return };
        goes_on(&mount(&pool, "second", Media::Ssd, LONG).await).await;
        for id in 0..pool.benefactors.len() {
            pool.restart_benefactor(id);
        }
        // They have heard by then whose files these are.
        goes_on(&mount(&pool, "third", Media::Ssd, LONG).await).await;
        assert!(!write_more(&stuck.client, stuck.taken + 1).await, "a benefactor's next life knows what it has");
        goes_on(&mount(&pool, "fourth", Media::Ssd, LONG).await).await;
        stuck.drains().await;
    });
}
