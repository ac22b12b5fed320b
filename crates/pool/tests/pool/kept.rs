//! A writer keeps only a part of what it has not committed: the rest lies at benefactors alone.

use std::time::Duration;

use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, bytes, drained, read, run, same, until, write};
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
fn a_file_of_which_little_is_kept_is_one_commit() {
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
fn what_only_benefactors_have_survives_one_of_them_after_the_other() {
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
fn benefactors_that_answer_late_still_have_what_only_they_have() {
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
fn what_no_benefactor_has_any_more_fails_the_writer_and_the_file_is_as_committed() {
    for copies in [1, 2] {
        run(async {
            let mut pool = Pool::new(1, 3, 128);
            let mut config = keeps_little(&pool, copies);
            config.timeout = Duration::from_secs(15);
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
fn with_one_copy_what_is_kept_survives_a_benefactor() {
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
fn on_one_ssd_nothing_is_dropped_here_and_what_is_too_much_is_committed() {
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
fn what_is_not_kept_is_laid_upon_what_others_commit() {
    run(async {
        for seed in 0..3 {
            let mut pool = Pool::new(1, 3, 192);
            pool.session = LONG;
            pool.restart_manager(0);
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

/// What was written of a chunk when others commit is laid upon that as it is.
#[test]
fn a_chunk_that_is_being_written_is_whole_after_others_have_committed() {
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
