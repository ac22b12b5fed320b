//! Damage at rest that nobody reads: it is found, and repaired as long as one copy is whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::damage::damage;
use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, bytes, read, run, same, until, write};
use surgetank_model::Bandwidth;
use surgetank_pool::benefactor::Benefactor;
use surgetank_pool::chunks::{Reply, Request};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool::rpc::Peer;
use surgetank_pool_core::benefactor::scrub::Config;
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::meta::FileState;
use tempfile::TempDir;

/// All is read some times a second.
const OFTEN: Config =
    Config { period: Duration::from_millis(400), rate: Bandwidth::from_mib_s(1000), quiet: Duration::from_millis(5) };

/// Benefactors that lend SSD alone, each a directory of files.
struct World {
    pool: Pool,
    ssds: TempDir,
    /// The target takes nothing as long as this is there.
    stuck: PathBuf,
}

impl World {
    fn new(benefactors: usize) -> Self {
        Self::scrubbed(benefactors, Some(OFTEN))
    }

    fn scrubbed(benefactors: usize, scrub: Option<Config>) -> Self {
        let ssds = tempfile::tempdir().unwrap();
        let disk = |id| Some(Disk::Files(directory(&ssds, id), 64 << 20));
        Self::with((0..benefactors).map(disk).collect(), ssds, scrub)
    }

    fn with(disks: Vec<Option<Disk>>, ssds: TempDir, scrub: Option<Config>) -> Self {
        let pool = Pool::scrubbed(1, 0, disks, scrub);
        let stuck = pool.hold_drains();
        Self { pool, ssds, stuck }
    }

    /// Changes a byte of a chunk on these SSDs.
    fn damage(&self, content: &[u8], chunk: usize, benefactors: &[usize]) {
        let beginning = &content[chunk * MIB..chunk * MIB + 64];
        benefactors.iter().for_each(|id| damage(&directory(&self.ssds, *id), beginning));
    }

    async fn ask(&self, id: usize, request: Request) -> Reply {
        let peer = Peer::new(&self.pool.benefactors[id].address, &self.pool.credentials.access()).unwrap();
        peer.ask::<Benefactor>(request, LONG).await.unwrap()
    }

    /// Chunks that are damaged and not repaired.
    async fn damaged(&self, id: usize) -> Vec<u32> {
        match self.ask(id, Request::Inventory).await {
            Reply::Inventory(inventory) => inventory.damaged.into_iter().map(|(_, chunk)| chunk).collect(),
            other => panic!("{other:?}"),
        }
    }

    async fn all_moved(&self) {
        until("everything is on SSD", async || {
            let mut all = true;
            for id in 0..self.pool.benefactors.len() {
                let alive = self.pool.alive(id).await;
                all &= alive.credits == alive.of;
            }
            all
        })
        .await;
    }

    /// So many more passes of each have ended.
    async fn passes(&self, more: u64) {
        for id in 0..self.pool.benefactors.len() {
            let before = self.pool.alive(id).await.scrubbed.passes;
            until("passes end", async || self.pool.alive(id).await.scrubbed.passes >= before + more).await;
        }
    }

    async fn drained(&self, client: &PoolClient, path: &str, content: &[u8]) {
        client.wait_drained(path, LONG).await.unwrap();
        same(path, &std::fs::read(self.pool.target().join(path)).unwrap(), content);
    }
}

fn directory(ssds: &TempDir, id: usize) -> PathBuf {
    Path::new(ssds.path()).join(id.to_string())
}

#[test]
fn damage_that_nobody_reads_is_repaired_before_the_other_copy_dies() {
    run(async {
        let mut world = World::new(2);
        let client = world.pool.client(2).await;
        let content = bytes(5, 6 * MIB);
        write(&client, "file", &content).await.unwrap();
        world.all_moved().await;
        // The pass that was under way when the last chunk came, and a whole one.
        world.passes(2).await;
        let scrubbed = world.pool.alive(0).await.scrubbed;
        assert!(scrubbed.chunks >= 6 && scrubbed.damaged == 0, "{scrubbed:?}");
        // Some of each, so that each is repaired from the other.
        world.damage(&content, 1, &[0]);
        world.damage(&content, 4, &[0]);
        world.damage(&content, 2, &[1]);
        until("scrubbing finds it", async || {
            let found = [world.pool.alive(0).await.scrubbed.damaged, world.pool.alive(1).await.scrubbed.damaged];
            found == [2, 1]
        })
        .await;
        until("it is repaired", async || world.damaged(0).await.is_empty() && world.damaged(1).await.is_empty()).await;
        world.all_moved().await;
        // The pass that was under way when it was repaired, and a whole one.
        world.passes(2).await;
        let status = client.status().await.unwrap();
        let integrity: BTreeMap<BenefactorId, _> = status.integrity.into_iter().collect();
        for (id, damaged) in [(0, 2), (1, 1)] {
            let of = integrity[&BenefactorId(id)];
            assert_eq!((of.damaged, of.scrubbed.damaged), (damaged, damaged), "{of:?}");
            let last = of.scrubbed.last.expect("passes have ended");
            assert_eq!((last.chunks, last.damaged), (6, 0), "{last:?}");
        }
        world.pool.benefactors[1].kill();
        same("file", &read(&client, "file").await.unwrap(), &content);
        std::fs::remove_file(&world.stuck).unwrap();
        world.drained(&client, "file", &content).await;
    });
}

#[test]
fn what_no_copy_has_whole_is_named_and_never_short_and_the_rest_is_repaired() {
    for copies in [1, 2] {
        run(async {
            let world = World::new(usize::from(copies));
            let client = world.pool.client(copies).await;
            let (lost, whole) = (bytes(6, 4 * MIB), bytes(7, 3 * MIB + 5));
            write(&client, "lost", &lost).await.unwrap();
            write(&client, "whole", &whole).await.unwrap();
            world.all_moved().await;
            let all: Vec<usize> = (0..usize::from(copies)).collect();
            world.damage(&lost, 1, &all);
            if copies > 1 {
                world.damage(&lost, 0, &[0]);
                world.damage(&lost, 3, &[0]);
            }
            let expected = if copies > 1 { [3, 1] } else { [1, 0] };
            // Repair may be the first to read a copy, after scrubbing has found another one.
            until("it is found", async || {
                let mut found = true;
                for id in &all {
                    found &= world.pool.alive(*id).await.damaged == expected[*id];
                }
                found
            })
            .await;
            // One chunk that cannot be repaired is not in the way of others.
            for id in &all {
                until("what can be repaired is", async || world.damaged(*id).await == [1]).await;
            }
            std::fs::remove_file(&world.stuck).unwrap();
            let failed = client.wait_drained("lost", LONG).await.unwrap_err();
            let told = failed.to_string();
            assert!(told.starts_with("lost: the file will not reach its target: chunks of it are lost"), "{told}");
            assert_eq!(client.stat("lost").await.unwrap().state, Some(FileState::Failed));
            assert!(!world.pool.target().join("lost").exists(), "the target has no part of it");
            world.drained(&client, "whole", &whole).await;
            let mut config = world.pool.config(copies);
            config.timeout = Duration::from_millis(500);
            let other = PoolClient::begin(config).await.unwrap();
            let failed = read(&other, "lost").await.unwrap_err();
            assert!(matches!(failed, Error::Unreadable { .. }), "{failed}");
            same("whole", &read(&other, "whole").await.unwrap(), &whole);
        });
    }
}

#[test]
fn the_third_copy_repairs_what_the_first_two_have_damaged() {
    run(async {
        let world = World::new(3);
        let client = world.pool.client(3).await;
        let content = bytes(8, 5 * MIB);
        write(&client, "file", &content).await.unwrap();
        world.all_moved().await;
        world.damage(&content, 0, &[0, 1]);
        world.damage(&content, 2, &[1, 2]);
        world.damage(&content, 3, &[0, 2]);
        until("it is found", async || {
            let mut found = Vec::new();
            for id in 0..3 {
                found.push(world.pool.alive(id).await.damaged);
            }
            found == [2, 2, 2]
        })
        .await;
        for id in 0..3 {
            until("it is repaired", async || world.damaged(id).await.is_empty()).await;
        }
        same("file", &read(&client, "file").await.unwrap(), &content);
        std::fs::remove_file(&world.stuck).unwrap();
        world.drained(&client, "file", &content).await;
    });
}

#[test]
fn the_medium_is_read_and_not_what_the_system_has_in_memory() {
    run(async {
        let disk = |seed| Some(Disk::Cut(CutDisk::new(8, 8 * MIB, seed)));
        let mut world = World::with(vec![disk(1), disk(2)], tempfile::tempdir().unwrap(), Some(OFTEN));
        let client = world.pool.client(2).await;
        let content = bytes(10, 3 * MIB);
        write(&client, "file", &content).await.unwrap();
        world.all_moved().await;
        let Some(Disk::Cut(disk)) = &world.pool.disks[1] else { panic!("it is one of these") };
        let (segment, offset) = disk.find(&content[MIB..MIB + 64]).expect("it is there");
        disk.damage_beneath(segment, offset + 77_777);
        until("it is found", async || world.pool.alive(1).await.scrubbed.damaged == 1).await;
        until("it is repaired", async || world.damaged(1).await.is_empty()).await;
        world.pool.benefactors[0].kill();
        same("file", &read(&client, "file").await.unwrap(), &content);
    });
}

#[test]
fn different_chunks_damaged_in_both_copies_lose_nothing() {
    run(async {
        let world = World::scrubbed(2, None);
        let client = world.pool.client(2).await;
        let content = bytes(9, 5 * MIB);
        write(&client, "file", &content).await.unwrap();
        world.all_moved().await;
        world.damage(&content, 1, &[0]);
        // Of one column: each copy alone cannot be drained.
        world.damage(&content, 3, &[1]);
        std::fs::remove_file(&world.stuck).unwrap();
        world.drained(&client, "file", &content).await;
    });
}
