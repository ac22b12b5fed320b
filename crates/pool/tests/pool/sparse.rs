//! Files with holes: what was extended over and what was punched is zeros, takes no room, and lets nothing come through that was there.

use std::os::unix::fs::{FileExt, MetadataExt};

use crate::support::{LONG, MIB, Pool, bytes, drained, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{PoolClient, Writer};
use surgetank_pool_core::meta::FileState;

const TIB: u64 = 1 << 40;

/// Chunks that benefactors have room for: they are asked, since what managers know of it is a moment old.
async fn free(pool: &Pool) -> u64 {
    let mut all = 0;
    for id in 0..pool.benefactors.len() {
        all += pool.alive(id).await.credits;
    }
    all
}

/// Whether every benefactor is as empty as it was when it began. It may lend more than its three buffers have whole chunks.
async fn is_empty(pool: &Pool) -> bool {
    let mut all = true;
    for id in 0..pool.benefactors.len() {
        let alive = pool.alive(id).await;
        all &= alive.credits == alive.of;
    }
    all
}

/// Has the pool drop a file that the target has.
async fn evicted(client: &PoolClient, path: &str) {
    for number in 0..6 {
        let name = format!("filler{number}");
        let _ = client.unlink(&name).await;
        write(client, &name, &bytes(number, 8 * MIB)).await.unwrap();
    }
    until("the pool has nothing of it", async || client.stat(path).await.unwrap().state == Some(FileState::Evicted))
        .await;
}

/// Zeros over a range of what a file is.
fn zero(content: &mut [u8], offset: usize, length: usize) {
    let end = content.len().min(offset + length);
    content[offset.min(end)..end].fill(0);
}

#[test]
fn a_tebibyte_of_zeros_takes_no_room() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let (client, other) = (pool.client(2).await, pool.client(2).await);
        let mut writer = client.create("large").await.unwrap();
        writer.set_size(TIB).await.unwrap();
        writer.sync().await.unwrap();
        assert_eq!(free(&pool).await, 48, "nothing was put anywhere");
        same("here", &writer.read_at(TIB - 5, 100).await.unwrap(), &[0; 5]);
        same(
            "elsewhere",
            &other.open("large").await.unwrap().read_at(TIB / 2 - 3, 2 * MIB).await.unwrap(),
            &[0; 2 * MIB],
        );
        let at = TIB / 2 + 12_345;
        writer.write_at(at, b"in the middle").await.unwrap();
        writer.sync().await.unwrap();
        assert_eq!(free(&pool).await, 46);
        let mut expected = vec![0; 100];
        expected[50..63].copy_from_slice(b"in the middle");
        same("here", &writer.read_at(at - 50, 100).await.unwrap(), &expected);
        let mut reader = other.open("large").await.unwrap();
        assert_eq!(reader.size(), TIB);
        same("elsewhere", &reader.read_at(at - 50, 100).await.unwrap(), &expected);
        writer.close().await.unwrap();
        client.wait_drained("large", LONG).await.unwrap();
        let file = std::fs::File::open(pool.target().join("large")).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), TIB);
        assert!(found.blocks() * 512 <= 2 * MIB as u64, "the target has {} blocks of it", found.blocks());
        let mut part = [1; 100];
        file.read_exact_at(&mut part, at - 50).unwrap();
        same("at the target", &part, &expected);
        // Cut off again, and extended: the byte in the middle does not come back.
        let mut writer = client.append("large").await.unwrap();
        writer.set_size(7).await.unwrap();
        writer.set_size(TIB).await.unwrap();
        writer.sync().await.unwrap();
        same("here", &writer.read_at(at - 50, 100).await.unwrap(), &[0; 100]);
        same("elsewhere", &other.open("large").await.unwrap().read_at(at - 50, 100).await.unwrap(), &[0; 100]);
        writer.close().await.unwrap();
        client.wait_drained("large", LONG).await.unwrap();
        std::fs::File::open(pool.target().join("large")).unwrap().read_exact_at(&mut part, at - 50).unwrap();
        same("at the target", &part, &[0; 100]);
    });
}

#[test]
fn a_long_file_of_zeros_is_made_and_cut_off_over_etcd() {
    run(async {
        let Some(pool) = Pool::over_etcd(1, 2, 24) else { return };
        let client = pool.client(2).await;
        let mut writer = client.create("large").await.unwrap();
        // etcd takes fewer operations in a transaction than it has groups.
        writer.set_size(TIB / 4).await.unwrap();
        writer.write_at(TIB / 8, b"x").await.unwrap();
        writer.sync().await.unwrap();
        writer.set_size(1).await.unwrap();
        writer.write_at(2 * MIB as u64, b"y").await.unwrap();
        writer.close().await.unwrap();
        let mut content = vec![0; 2 * MIB + 1];
        content[2 * MIB] = b'y';
        drained(&pool, &client, "large", &content).await;
    });
}

#[test]
fn what_is_punched_is_zeros_here_elsewhere_and_at_the_target() {
    run(async {
        for is_evicted in [false, true] {
            let pool = Pool::new(1, 2, 24);
            let (client, other) = (pool.client(2).await, pool.client(2).await);
            let mut content = bytes(1, 9 * MIB + 77);
            write(&client, "file", &content).await.unwrap();
            drained(&pool, &client, "file", &content).await;
            if is_evicted {
                evicted(&client, "file").await;
            }
            let mut writer = client.append("file").await.unwrap();
            for (offset, length) in [(MIB - 100, 2 * MIB + 200), (5 * MIB, MIB), (6 * MIB + 5, 10), (8 * MIB, 5 * MIB)]
            {
                writer.punch(offset as u64, length as u64).await.unwrap();
                zero(&mut content, offset, length);
            }
            assert_eq!(writer.size(), content.len() as u64, "it is as long as before");
            let mut found = Vec::new();
            while found.len() < content.len() {
                found.extend_from_slice(&writer.read_at(found.len() as u64, 3 * MIB).await.unwrap());
            }
            same("here", &found, &content);
            writer.sync().await.unwrap();
            same("elsewhere", &read(&other, "file").await.unwrap(), &content);
            // A part of a hole is written.
            writer.write_at(MIB as u64 + 7, b"here").await.unwrap();
            content[MIB + 7..MIB + 11].copy_from_slice(b"here");
            writer.close().await.unwrap();
            drained(&pool, &client, "file", &content).await;
            let blocks = std::fs::metadata(pool.target().join("file")).unwrap().blocks();
            assert!(blocks * 512 <= 8 * MIB as u64, "the target has {blocks} blocks");
            same("afterwards", &read(&other, "file").await.unwrap(), &content);
            if is_evicted {
                evicted(&client, "file").await;
                same("of the target", &read(&other, "file").await.unwrap(), &content);
            }
        }
    });
}

#[test]
fn a_hole_replaces_what_an_early_draft_has() {
    run(async {
        // Each benefactor holds 24 chunks, and each chunk lies at both.
        let pool = Pool::new(1, 2, 24);
        let (client, other) = (pool.client(2).await, pool.client(2).await);
        let mut content = bytes(2, 70 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        // Most of it lies in a draft at the target.
        writer.punch(3 * MIB as u64 - 1, 40 * MIB as u64).await.unwrap();
        zero(&mut content, 3 * MIB - 1, 40 * MIB);
        same("elsewhere", &read(&other, "file").await.unwrap(), &content);
        writer.set_size(55 * MIB as u64 + 1).await.unwrap();
        writer.set_size(70 * MIB as u64).await.unwrap();
        zero(&mut content, 55 * MIB + 1, 70 * MIB);
        writer.sync().await.unwrap();
        same("elsewhere", &read(&other, "file").await.unwrap(), &content);
        let more = bytes(3, 20 * MIB);
        writer.write_at(10 * MIB as u64 + 3, &more).await.unwrap();
        content[10 * MIB + 3..30 * MIB + 3].copy_from_slice(&more);
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        same("afterwards", &read(&other, "file").await.unwrap(), &content);
    });
}

#[test]
fn a_hole_needs_no_benefactor() {
    run(async {
        let mut pool = Pool::new(1, 2, 24);
        let held = pool.hold_drains();
        let (client, other) = (pool.client(1).await, pool.client(1).await);
        let mut writer = client.create("file").await.unwrap();
        writer.write_at(70 * MIB as u64, b"x").await.unwrap();
        writer.sync().await.unwrap();
        writer.close().await.unwrap();
        let mut writer = client.append("file").await.unwrap();
        pool.benefactors.iter_mut().for_each(crate::support::Process::kill);
        let mut reader = other.open("file").await.unwrap();
        for at in [0, 63 * MIB, 64 * MIB, 69 * MIB] {
            same("elsewhere", &reader.read_at(at as u64, MIB).await.unwrap(), &[0; MIB]);
            same("here", &writer.read_at(at as u64, MIB).await.unwrap(), &[0; MIB]);
        }
        std::fs::remove_file(held).unwrap();
    });
}

#[test]
pub fn a_hole_by_an_extension_never_wins_over_what_others_have_written() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, two) = (pool.client(2).await, pool.client(2).await);
        let mut first = one.create("file").await.unwrap();
        first.sync().await.unwrap();
        let mut second = two.append("file").await.unwrap();
        first.set_size(10 * MIB as u64).await.unwrap();
        first.write_at(20 * MIB as u64, b"end").await.unwrap();
        let part = bytes(1, 3 * MIB);
        second.write_at(4 * MIB as u64 + 9, &part).await.unwrap();
        second.sync().await.unwrap();
        first.sync().await.unwrap();
        let mut content = vec![0; 20 * MIB + 3];
        content[4 * MIB + 9..7 * MIB + 9].copy_from_slice(&part);
        content[20 * MIB..].copy_from_slice(b"end");
        same("both", &read(&two, "file").await.unwrap(), &content);
        // One that is punched is laid below what the other writes afterwards, and above what it wrote before.
        second.write_at(5 * MIB as u64, &[7; 10]).await.unwrap();
        first.punch(4 * MIB as u64, 3 * MIB as u64).await.unwrap();
        second.sync().await.unwrap();
        zero(&mut content, 4 * MIB, 3 * MIB);
        content[5 * MIB..5 * MIB + 10].fill(7);
        same("punched", &read(&one, "file").await.unwrap(), &content);
        first.close().await.unwrap();
        second.close().await.unwrap();
        drained(&pool, &one, "file", &content).await;
    });
}

#[test]
pub fn a_hole_that_is_not_committed_stays_when_others_have_committed_elsewhere() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, two) = (pool.client(2).await, pool.client(2).await);
        // The first group has 64 chunks.
        let mut content = vec![0; 66 * MIB];
        let end = bytes(1, 2 * MIB);
        content[64 * MIB..].copy_from_slice(&end);
        let mut first = one.create("file").await.unwrap();
        first.write_at(64 * MIB as u64, &end).await.unwrap();
        first.sync().await.unwrap();
        let mut second = two.append("file").await.unwrap();
        first.set_size(80 * MIB as u64).await.unwrap();
        content.resize(80 * MIB, 0);
        second.write_at(5 * MIB as u64 + 9, &end).await.unwrap();
        second.sync().await.unwrap();
        content[5 * MIB + 9..7 * MIB + 9].copy_from_slice(&end);
        first.sync().await.unwrap();
        same("both", &read(&two, "file").await.unwrap(), &content);
        first.close().await.unwrap();
        second.close().await.unwrap();
        drained(&pool, &one, "file", &content).await;
    });
}

#[test]
pub fn a_hole_stays_while_what_is_written_over_it_has_no_room() {
    run(async {
        // One mount alone may have 22 of the 24 chunks of a benefactor, and each chunk lies at both.
        let pool = Pool::new(1, 2, 24);
        let held = pool.hold_drains();
        let (client, other) = (pool.client(2).await, pool.client(2).await);
        let mut writer = client.create("file").await.unwrap();
        writer.set_size(60 * MIB as u64).await.unwrap();
        writer.sync().await.unwrap();
        let part = bytes(1, MIB);
        let writing = async {
            for chunk in (0..60).step_by(2) {
                writer.write_at((chunk * MIB) as u64, &part).await.unwrap();
            }
            writer.close().await.unwrap();
        };
        let watching = async {
            // As many are committed as there is room for. The others are holes.
            until("all room is taken by what is committed", async || {
                let found = read(&other, "file").await.unwrap();
                assert_eq!(found.len(), 60 * MIB);
                let written = (0..60).filter(|chunk| found[chunk * MIB..(chunk + 1) * MIB] == part).count();
                let zeros = found.chunks(MIB).filter(|chunk| chunk.iter().all(|byte| *byte == 0)).count();
                assert_eq!(written + zeros, 60);
                written == 22
            })
            .await;
            std::fs::remove_file(held).unwrap();
        };
        tokio::join!(writing, watching);
        let mut content = vec![0; 60 * MIB];
        for chunk in (0..60).step_by(2) {
            content[chunk * MIB..(chunk + 1) * MIB].copy_from_slice(&part);
        }
        drained(&pool, &client, "file", &content).await;
        same("elsewhere", &read(&other, "file").await.unwrap(), &content);
    });
}

#[test]
pub fn a_file_is_committed_when_very_many_groups_of_it_have_holes() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let (client, other) = (pool.client(2).await, pool.client(2).await);
        let mut writer = client.create("file").await.unwrap();
        writer.set_size(TIB / 16).await.unwrap();
        let committed = other.stat("file").await.unwrap().size;
        assert!(committed > TIB / 64 && committed < TIB / 16, "of it {committed} bytes are committed");
        writer.close().await.unwrap();
        assert_eq!(other.stat("file").await.unwrap().size, TIB / 16);
    });
}

/// The bytes that belong to one writer after the other.
const CELL: usize = 3 * MIB + 12_345;
const CELLS: usize = 23;

/// What the model does with two writers of one file.
struct Work {
    random: Random,
    content: Vec<u8>,
    clients: [PoolClient; 2],
    writers: [Option<Writer>; 2],
    /// Chunks that each may have written and not committed: nobody else gets their room.
    uncommitted: [usize; 2],
}

impl Work {
    fn writer(&mut self, of: usize) -> &mut Writer {
        self.writers[of].as_mut().unwrap()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    /// Where somebody writes next, and how many bytes.
    fn range(&mut self, of: usize) -> (usize, usize) {
        let begins = (2 * self.below(CELLS / 2) + of) * CELL;
        let from = self.below(CELL);
        (begins + from, 1 + self.below(CELL - from))
    }

    async fn has_written(&mut self, of: usize, length: usize) {
        self.uncommitted[of] += length.div_ceil(MIB) + 1;
        if self.uncommitted[of] > 5 {
            self.writer(of).sync().await.unwrap();
            self.uncommitted[of] = 0;
        }
    }

    async fn sync(&mut self) {
        for of in [0, 1] {
            self.writer(of).sync().await.unwrap();
        }
        for of in [0, 1] {
            self.writer(of).refresh().await.unwrap();
        }
    }

    async fn step(&mut self, other: &PoolClient, what: &str) {
        let of = self.below(2);
        match self.below(12) {
            0..=3 => {
                let (offset, length) = self.range(of);
                let part = bytes(self.random.below(u64::MAX), length);
                self.writer(of).write_at(offset as u64, &part).await.unwrap();
                self.content.resize(self.content.len().max(offset + length), 0);
                self.content[offset..offset + length].copy_from_slice(&part);
                self.has_written(of, length).await;
            }
            4..=6 => {
                let (offset, length) = self.range(of);
                self.writer(of).punch(offset as u64, length as u64).await.unwrap();
                zero(&mut self.content, offset, length);
                self.has_written(of, length).await;
            }
            7 => self.writer(of).sync().await.unwrap(),
            8 => {
                let size = (self.content.len() + self.below(8 * MIB)).min(CELLS * CELL);
                let size = size.max(self.content.len());
                self.writer(of).set_size(size as u64).await.unwrap();
                self.content.resize(size, 0);
            }
            9 => {
                self.sync().await;
                let size = self.content.len() - self.below(self.content.len() / 4 + 1);
                self.writer(of).set_size(size as u64).await.unwrap();
                self.content.resize(size, 0);
                self.writer(1 - of).refresh().await.unwrap();
            }
            10 => {
                self.writers[of].take().unwrap().close().await.unwrap();
                self.writers[of] = Some(self.clients[of].append("file").await.unwrap());
            }
            _ => {
                self.sync().await;
                same(what, &read(other, "file").await.unwrap(), &self.content);
                let mut found = Vec::new();
                while found.len() < self.content.len() {
                    let part = self.writer(of).read_at(found.len() as u64, 5 * MIB).await.unwrap();
                    found.extend_from_slice(&part);
                }
                same(&format!("{what}, of a writer"), &found, &self.content);
            }
        }
    }
}

#[test]
fn files_with_holes_are_what_two_writers_make_of_them() {
    run(async {
        for (seed, memory_mib) in [(0, 96), (1, 32), (2, 24), (3, 32)] {
            // With less room than the file is long, most of it is drained while it is written.
            let pool = Pool::new(1, 2, memory_mib);
            let (clients, other) = ([pool.client(2).await, pool.client(2).await], pool.client(2).await);
            write(&clients[0], "file", b"").await.unwrap();
            let mut writers = [None, None];
            for of in [0, 1] {
                writers[of] = Some(clients[of].append("file").await.unwrap());
            }
            let random = Random::from_seed(seed);
            let mut work = Work { random, content: Vec::new(), clients, writers, uncommitted: [0; 2] };
            for step in 0..80 {
                work.step(&other, &format!("run {seed}, step {step}")).await;
            }
            work.sync().await;
            for of in [0, 1] {
                work.writers[of].take().unwrap().close().await.unwrap();
            }
            drained(&pool, &other, "file", &work.content).await;
            same(&format!("run {seed}"), &read(&other, "file").await.unwrap(), &work.content);
            // The sessions go on: what they do not withdraw would stay until the file is forgotten.
            until(&format!("run {seed}: drafts are withdrawn"), async || !pool.has_drafts().await).await;
            other.unlink("file").await.unwrap();
            until(&format!("run {seed}: all memory is free"), async || is_empty(&pool).await).await;
        }
    });
}
