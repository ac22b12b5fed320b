//! A writer keeps only a part of what it has not committed: the rest lies at benefactors alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, bytes, drained, free, read, run, same, until, write};
use bytes::Bytes;
use surgetank_model::random::Random;
use surgetank_pool::client::{self, Error, PoolClient, Writer};
use surgetank_pool_core::id::Version;
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

/// Two chunks are kept of a file.
fn keeps_little(pool: &Pool, copies: u8) -> client::Config {
    let mut config = pool.config(copies);
    (config.kept_max, config.puts) = (2 * MIB as u64, 1);
    config
}

async fn reads(writer: &mut Writer, content: &[u8], (from, length): (usize, usize)) {
    let mut found = Vec::new();
    while found.len() < length {
        let part = writer.read_at((from + found.len()) as u64, length - found.len()).await.unwrap();
        assert!(!part.is_empty(), "the file has a byte {}", from + found.len());
        found.extend_from_slice(&part);
    }
    same(&format!("its writer reads from {from} on"), &found, &content[from..from + length]);
}

#[test]
pub fn a_file_of_which_little_is_kept_is_one_commit() {
    for copies in [1, 2] {
        run(async {
            let pool = Pool::new(1, 3, 240);
            let client = pool.client_of(keeps_little(&pool, copies)).await;
            let mut content = bytes(1, 70 * MIB + 1234);
            let mut writer = client.create("file").await.unwrap();
            for part in content.chunks(3 * MIB / 2) {
                writer.write(part).await.unwrap();
            }
            // What is dropped here is read, written over whole and in part, and cut off.
            reads(&mut writer, &content, (0, 3 * MIB)).await;
            for (seed, (at, length)) in (2..).zip([(5 * MIB, MIB), (7 * MIB + 11, 5000), (64 * MIB - 3, 6), (MIB, 1)]) {
                let part = bytes(seed, length);
                writer.write_at(at as u64, &part).await.unwrap();
                content[at..at + length].copy_from_slice(&part);
            }
            content.truncate(66 * MIB + 7);
            writer.set_size(content.len() as u64).await.unwrap();
            reads(&mut writer, &content, (4 * MIB, 4 * MIB)).await;
            reads(&mut writer, &content, (65 * MIB, MIB + 7)).await;
            assert_eq!(writer.version(), Version::NONE, "nothing was committed so far");
            writer.close().await.unwrap();
            assert_eq!(client.stat("file").await.unwrap().version, Version::NONE.next(), "one commit");
            same("committed", &read(&client, "file").await.unwrap(), &content);
            drained(&pool, &client, "file", &content).await;
            client.unlink("file").await.unwrap();
            until("nothing is left of what was written over", async || {
                let status = client.status().await.unwrap();
                status.benefactors.iter().map(|(_, free)| free).sum::<u64>() == 3 * 240
            })
            .await;
        });
    }
}

#[test]
pub fn what_only_benefactors_have_survives_one_of_them_after_the_other() {
    run(async {
        let mut pool = Pool::new(1, 4, 128);
        let client = pool.client_of(keeps_little(&pool, 2)).await;
        let content = bytes(1, 40 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..20 * MIB]).await.unwrap();
        pool.benefactors[1].kill();
        // Its place is taken before anything else dies.
        writer.write(&content[20 * MIB..30 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        same("synced", &read(&client, "file").await.unwrap(), &content[..30 * MIB]);
        writer.write(&content[30 * MIB..]).await.unwrap();
        until("all copies are there again", async || pool.missing().await == 0).await;
        pool.restart_benefactor(2);
        writer.close().await.unwrap();
        same("closed", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
pub fn benefactors_that_answer_late_still_have_what_only_they_have() {
    run(async {
        let pool = Pool::new(1, 5, 128);
        let client = pool.client_of(keeps_little(&pool, 2)).await;
        let content = bytes(1, 24 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..16 * MIB]).await.unwrap();
        // Both of some chunks' copies are there: others take their places meanwhile.
        pool.benefactors[..3].iter().for_each(|benefactor| benefactor.stall(Duration::from_secs(8)));
        writer.write(&content[16 * MIB..]).await.unwrap();
        writer.close().await.unwrap();
        same("closed", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
pub fn what_no_benefactor_has_any_more_fails_the_writer_and_the_file_is_as_committed() {
    for copies in [1, 2] {
        run(async {
            let mut pool = Pool::new(1, 3, 128);
            let mut config = keeps_little(&pool, copies);
            config.timeout = LONG;
            let client = pool.client_of(config).await;
            let content = bytes(1, 40 * MIB);
            write(&client, "file", &content[..5 * MIB]).await.unwrap();
            drained(&pool, &client, "file", &content[..5 * MIB]).await;
            let mut writer = client.append("file").await.unwrap();
            writer.write(&content[5 * MIB..]).await.unwrap();
            (0..3).for_each(|benefactor| pool.restart_benefactor(benefactor));
            let failed = writer.sync().await.unwrap_err();
            assert!(matches!(failed, Error::Unreadable { .. }), "{failed}");
            assert!(failed.to_string().contains("it is not committed, and benefactor"), "{failed}");
            assert_eq!(writer.sync().await.unwrap_err(), failed, "and goes on failing");
            writer.abandon().await.unwrap();
            same("as committed", &read(&client, "file").await.unwrap(), &content[..5 * MIB]);
        });
    }
}

#[test]
pub fn with_one_copy_what_is_kept_survives_a_benefactor() {
    run(async {
        let mut pool = Pool::new(1, 3, 128);
        let client = pool.client(1).await;
        let content = bytes(1, 40 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        (0..3).for_each(|benefactor| pool.restart_benefactor(benefactor));
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
pub fn on_one_ssd_nothing_is_dropped_here_and_what_is_too_much_is_committed() {
    run(async {
        let disk = |seed| Some(Disk::Cut(CutDisk::new(16, 8 * MIB, seed)));
        let disks = (0..2).map(disk).collect();
        let mut pool = Pool::with_ssds(1, 96, disks);
        let mut config = pool.config_of(Durability::Copies { copies: 1, media: Media::Ssd });
        (config.kept_max, config.puts) = (8 * MIB as u64, 1);
        let client = pool.client_of(config).await;
        let content = bytes(1, 30 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        assert!(writer.version() > Version::NONE, "it was committed");
        (0..2).for_each(|benefactor| pool.restart_benefactor(benefactor));
        writer.close().await.unwrap();
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

/// Three sessions write one file, two chunks or less at a time, and little of it is kept; another one syncs much oftener than they.
#[test]
pub fn what_is_not_kept_is_laid_upon_what_others_commit() {
    run(async {
        for seed in 0..3 {
            let pool = Pool::new(1, 3, 192);
            let first = pool.client(2).await;
            write(&first, "file", &bytes(seed, 10 * MIB)).await.unwrap();
            let mut expected = bytes(seed, 10 * MIB);
            let mut random = Random::from_seed(seed);
            let mut others: Vec<(PoolClient, Writer)> = Vec::new();
            for _ in 0..3 {
                let client = PoolClient::begin(keeps_little(&pool, 2)).await.unwrap();
                let writer = client.append("file").await.unwrap();
                others.push((client, writer));
            }
            // Each has every third cell of 2 MiB: nobody writes what another one does.
            for round in 0..60_u64 {
                let who = usize::try_from(random.below(3)).unwrap();
                let cell = who + 3 * usize::try_from(random.below(4)).unwrap();
                let from = if random.chance(0.7) { 0 } else { usize::try_from(random.below(2 * MIB as u64)).unwrap() };
                let part = bytes(round * 7 + seed, 2 * MIB - from);
                let at = cell * 2 * MIB + from;
                let (_, writer) = &mut others[who];
                writer.write_at(at as u64, &part).await.unwrap();
                expected.resize(expected.len().max(at + part.len()), 0);
                expected[at..at + part.len()].copy_from_slice(&part);
                if random.chance(0.15) {
                    writer.sync().await.unwrap();
                }
            }
            for (_, writer) in others {
                writer.close().await.unwrap();
            }
            same(&format!("run {seed}"), &read(&first, "file").await.unwrap(), &expected);
            drained(&pool, &first, "file", &expected).await;
        }
    });
}

/// A chunk of which only a part was written is that of others elsewhere, however long ago it was written.
#[test]
pub fn a_part_of_a_chunk_is_laid_upon_what_others_commit_of_it() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        let client = pool.client(2).await;
        let mut content = bytes(1, 8 * MIB);
        write(&client, "file", &content).await.unwrap();
        let own = pool.client_of(keeps_little(&pool, 2)).await;
        let mut writer = own.append("file").await.unwrap();
        let mut other = client.append("file").await.unwrap();
        let (ours, theirs) = (5 * MIB + 100, 5 * MIB + 1000);
        let (part, of_other) = (bytes(2, 500), bytes(3, 500));
        writer.write_at(ours as u64, &part).await.unwrap();
        writes_over(&mut writer, &mut content, 4).await;
        other.write_at(theirs as u64, &of_other).await.unwrap();
        other.sync().await.unwrap();
        writer.sync().await.unwrap();
        content[ours..][..500].copy_from_slice(&part);
        content[theirs..][..500].copy_from_slice(&of_other);
        same("synced", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        other.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

/// What was written of a chunk when others commit is laid upon that as it is.
#[test]
pub fn a_chunk_that_is_being_written_is_whole_after_others_have_committed() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        for (seed, size) in (0..).zip([0, 10, MIB, 3 * MIB + 5]) {
            let name = format!("file{size}");
            let mut content = bytes(seed, size);
            write(&one, &name, &content).await.unwrap();
            let (mut a, mut b) = (one.append(&name).await.unwrap(), other.append(&name).await.unwrap());
            let (log, change) = (bytes(seed + 10, 500), bytes(seed + 20, 100));
            a.write(&log).await.unwrap();
            if size > 2 * MIB {
                a.write_at((MIB + 7) as u64, &change).await.unwrap();
                content[MIB + 7..MIB + 107].copy_from_slice(&change);
            }
            content.extend(log);
            b.write_at(0, b"x").await.unwrap();
            b.sync().await.unwrap();
            a.refresh().await.unwrap();
            a.sync().await.unwrap();
            if size > 0 {
                content[0] = b'x';
            }
            same(&name, &read(&one, &name).await.unwrap(), &content);
            a.close().await.unwrap();
            b.close().await.unwrap();
            drained(&pool, &one, &name, &content).await;
        }
    });
}

/// A chunk that says whether it is in memory.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn counted(bytes: Vec<u8>, counter: &Arc<AtomicUsize>) -> Bytes {
        counter.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self(bytes, Arc::clone(counter)))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
pub fn a_writer_keeps_no_more_of_a_file_than_it_may() {
    for (copies, media) in [(1, Media::Any), (2, Media::Any), (1, Media::Ssd)] {
        run(async {
            let disk = |seed| (media == Media::Ssd).then(|| Disk::Cut(CutDisk::new(16, 8 * MIB, seed)));
            let pool = Pool::with_ssds(1, 96, (0..3).map(disk).collect());
            let mut config = pool.config_of(Durability::Copies { copies, media });
            (config.kept_max, config.puts) = (4 * MIB as u64, 1);
            let client = pool.client_of(config).await;
            let (content, in_memory) = (bytes(1, 40 * MIB), Arc::default());
            let mut writer = client.create("file").await.unwrap();
            for (chunk, at) in content.chunks(MIB).zip((0..).step_by(MIB)) {
                writer.write_bytes_at(at, &Counted::counted(chunk.to_vec(), &in_memory)).await.unwrap();
                let kept = in_memory.load(Ordering::Relaxed);
                // Those that are under way besides.
                assert!(kept <= 4 + 2 * usize::from(copies), "{kept} chunks are in memory at {at}");
            }
            assert_eq!(writer.version() > Version::NONE, media == Media::Ssd, "what cannot be dropped is committed");
            writer.close().await.unwrap();
            drained(&pool, &client, "file", &content).await;
        });
    }
}

#[test]
pub fn what_no_benefactor_has_acknowledged_is_kept() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        let mut config = keeps_little(&pool, 1);
        config.puts = 16;
        let client = pool.client_of(config).await;
        let content = bytes(1, 12 * MIB);
        let mut writer = client.create("file").await.unwrap();
        // Twice as much as is kept is under way, and two of three do not answer before it is put elsewhere.
        pool.benefactors[..2].iter().for_each(|benefactor| benefactor.stall(Duration::from_secs(8)));
        writer.write(&content[..4 * MIB]).await.unwrap();
        writer.write(&content[4 * MIB..]).await.unwrap();
        writer.close().await.unwrap();
        same("closed", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

/// A session that goes on for ever would keep their room for ever.
#[test]
pub fn copies_in_the_place_of_lost_ones_take_no_room_in_the_end() {
    run(async {
        let mut pool = Pool::new(1, 4, 48);
        let client = pool.client(2).await;
        let mut content = bytes(1, 16 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        for id in 0..4 {
            until("the copies of the former are there again", async || pool.missing().await == 0).await;
            pool.benefactors[id].kill();
            pool.restart_benefactor(id);
            // Its writer may be faster than the pool's own repair.
            let part = bytes(2 + id as u64, MIB);
            writer.write_at((id * MIB) as u64, &part).await.unwrap();
            content[id * MIB..][..MIB].copy_from_slice(&part);
            writer.sync().await.unwrap();
        }
        writer.close().await.unwrap();
        same("closed", &read(&client, "file").await.unwrap(), &content);
        until("all that benefactors have is committed", async || !pool.has_drafts().await).await;
        drained(&pool, &client, "file", &content).await;
    });
}

/// Writes whole chunks over, so that all others are older.
async fn writes_over(writer: &mut Writer, content: &mut [u8], seed: u64) {
    for chunk in 0..4 {
        let part = bytes(seed + chunk as u64, MIB);
        writer.write_at((chunk * MIB) as u64, &part).await.unwrap();
        content[chunk * MIB..][..MIB].copy_from_slice(&part);
    }
}

#[test]
pub fn the_last_chunk_of_a_file_of_which_little_is_kept_grows() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        let client = pool.client_of(keeps_little(&pool, 2)).await;
        let mut content = bytes(1, 10 * MIB + 1234);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        writes_over(&mut writer, &mut content, 2).await;
        let more = bytes(6, 5000);
        writer.write(&more).await.unwrap();
        content.extend(more);
        writes_over(&mut writer, &mut content, 7).await;
        assert_eq!(writer.size(), content.len() as u64);
        reads(&mut writer, &content, (10 * MIB, 6234)).await;
        writer.close().await.unwrap();
        same("closed", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

/// A part of a file is committed without a group of which nobody but benefactors has chunks.
#[test]
pub fn a_group_that_is_not_committed_with_the_rest_stays_where_it_is() {
    run(async {
        let mut pool = Pool::new(1, 2, 108);
        let aside = pool.hold_drains();
        let client = pool.client_of(keeps_little(&pool, 1)).await;
        // The second group begins behind 64 MiB.
        let mut content = bytes(1, 70 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        assert_eq!(writer.version(), Version::NONE, "nothing was committed so far");
        let mut config = pool.config(1);
        // Longer than a busy machine takes: else it seems to be full.
        config.timeout = Duration::from_secs(3);
        let (filler, mut fillers) = (pool.client_of(config).await, 0);
        // What was withdrawn of one that found no room makes room again, a little later.
        let mut full = 0;
        while full < 3 {
            // One that comes to a benefactor without room takes none elsewhere.
            let taken = write(&filler, &format!("filler{fillers}"), &bytes(fillers, MIB)).await;
            (fillers, full) = (fillers + 1, if taken.is_ok() { 0 } else { full + 1 });
        }
        // One that has room, and none of the file's chunks.
        pool.start_benefactor();
        until("it is there", async || free(&client.status().await.unwrap()) > 96).await;
        let part = bytes(2, MIB);
        content[64 * MIB..65 * MIB].copy_from_slice(&part);
        writer.write_at(64 * MIB as u64, &part).await.unwrap();
        writer.sync().await.unwrap();
        assert!(writer.version() > Version::NONE.next(), "the first group was committed without the second");
        same("synced", &read(&client, "file").await.unwrap(), &content);
        std::fs::remove_file(aside).unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

/// Nothing makes room: all of them commit what they have all the same after a benefactor has died.
#[test]
pub fn writers_leave_room_for_what_a_benefactor_has_that_dies() {
    run(async {
        let mut pool = Pool::new(1, 3, 60);
        let aside = pool.hold_drains();
        let mut config = keeps_little(&pool, 2);
        config.timeout = LONG;
        let client = pool.client_of(config).await;
        let contents: Vec<_> = (0..4).map(|file| bytes(file, 30 * MIB)).collect();
        let mut writers = Vec::new();
        for file in 0..4 {
            writers.push(client.create(&format!("file{file}")).await.unwrap());
        }
        // As long as none of them commits since room is short.
        let mut written = 0;
        while writers.iter().all(|writer| writer.version() == Version::NONE) {
            for (writer, content) in writers.iter_mut().zip(&contents) {
                writer.write(&content[written..written + MIB]).await.unwrap();
            }
            written += MIB;
        }
        pool.benefactors[0].kill();
        for writer in &mut writers {
            writer.sync().await.unwrap();
        }
        std::fs::remove_file(aside).unwrap();
        for (file, writer) in writers.into_iter().enumerate() {
            writer.close().await.unwrap();
            drained(&pool, &client, &format!("file{file}"), &contents[file][..written]).await;
        }
    });
}

#[test]
pub fn a_file_is_committed_when_very_much_of_it_is_not() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        let mut config = keeps_little(&pool, 2);
        config.uncommitted_max = 8 * MIB as u64;
        let client = pool.client_of(config).await;
        let content = bytes(1, 8 * MIB + 1);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..8 * MIB]).await.unwrap();
        assert_eq!(writer.version(), Version::NONE, "it may have as much");
        writer.write(&content[8 * MIB..]).await.unwrap();
        writer.write_at(0, &content[..MIB]).await.unwrap();
        assert_eq!(writer.version(), Version::NONE.next(), "it was committed");
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
pub fn a_file_is_committed_when_very_many_groups_of_it_are_changed() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        // Nothing of it is copied to a draft.
        let _aside = pool.hold_drains();
        let client = pool.client(1).await;
        let gib = 1_u64 << 30;
        std::fs::File::create(pool.target().join("file")).unwrap().set_len(40 * gib).unwrap();
        let mut writer = client.append("file").await.unwrap();
        let first = writer.version();
        // From 1 GiB on each group has as much.
        for group in 1..=32 {
            writer.write_at(group * gib, &bytes(group, MIB)).await.unwrap();
        }
        assert_eq!(writer.version(), first, "so many may be");
        writer.write_at(33 * gib, &bytes(33, MIB)).await.unwrap();
        assert_eq!(writer.version(), first.next(), "it was committed");
        reads_at(&mut writer, 17 * gib, &bytes(17, MIB)).await;
        reads_at(&mut writer, 17 * gib + MIB as u64, &vec![0; MIB]).await;
        writer.abandon().await.unwrap();
    });
}

async fn reads_at(writer: &mut Writer, at: u64, content: &[u8]) {
    same(&format!("from {at} on"), &writer.read_at(at, content.len()).await.unwrap(), content);
}
