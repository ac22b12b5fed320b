//! Files with parity, while benefactors and their SSDs are lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::damage::damage;
use crate::support::{Disk, LONG, MIB, Pool, bytes, drained, free, read, run, same, until, write};
use surgetank_model::Bandwidth;
use surgetank_model::random::Random;
use surgetank_pool::client::{Config, Error, PoolClient, Writer};
use surgetank_pool_core::benefactor::scrub;
use surgetank_pool_core::meta::{Durability, FileState};
use surgetank_pool_core::parity::Parity;
use tempfile::TempDir;

pub fn config(pool: &Pool, data: u8, parity: u8) -> Config {
    pool.config_of(Durability::Parity(Parity::new(data, parity).unwrap()))
}

pub async fn client(pool: &Pool, data: u8, parity: u8) -> PoolClient {
    pool.client_of(config(pool, data, parity)).await
}

#[test]
pub fn a_row_takes_the_room_of_its_data_and_its_parity_and_reaches_the_target_without_it() {
    run(async {
        let pool = Pool::new(1, 5, 48);
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        let content = bytes(1, 40 * MIB);
        write(&client, "file", &content).await.unwrap();
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        until("nothing else has room", async || free(&client.status().await.unwrap()) == 5 * 48 - 50).await;
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "file", &content).await;
        // A short one.
        write(&client, "short", b"seven").await.unwrap();
        same("a short one", &read(&client, "short").await.unwrap(), b"seven");
        drained(&pool, &client, "short", b"seven").await;
        let other = PoolClient::begin(pool.config(2)).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(other.contains("with parity=4+1"), "{other}");
    });
}

/// So many benefactors are lost under a writer, at every moment that a chunk is.
async fn dies_under_a_writer((data, parity): (u8, u8), benefactors: usize, seed: u64) {
    let mut pool = Pool::new(1, benefactors, 96);
    let client = client(&pool, data, parity).await;
    let content = bytes(seed, 41 * MIB + 11);
    let mut writer = client.create("file").await.unwrap();
    writer.write(&content[..10 * MIB]).await.unwrap();
    writer.sync().await.unwrap();
    writer.write(&content[10 * MIB..21 * MIB]).await.unwrap();
    (0..parity.into()).for_each(|id| pool.benefactors[id].kill());
    same("what was committed", &read(&client, "file").await.unwrap(), &content[..10 * MIB]);
    writer.write(&content[21 * MIB..]).await.unwrap();
    writer.close().await.unwrap();
    same("all of it", &read(&client, "file").await.unwrap(), &content);
    client.wait_drained("file", LONG).await.unwrap();
    same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
}

#[test]
pub fn as_many_benefactors_as_there_is_parity_die_under_a_writer_and_nothing_is_lost() {
    run(dies_under_a_writer((4, 1), 6, 1));
    run(dies_under_a_writer((3, 2), 7, 2));
}

#[test]
pub fn files_are_read_and_drained_without_those_that_are_lost_where_nobody_takes_their_place() {
    for (data, parity) in [(4, 1), (4, 2)] {
        run(async {
            let members = usize::from(data + parity);
            let mut pool = Pool::new(1, members, 48);
            let stuck = pool.hold_drains();
            let client = client(&pool, data, parity).await;
            let content = bytes(2, 33 * MIB + 5);
            write(&client, "file", &content).await.unwrap();
            (0..parity.into()).for_each(|id| pool.benefactors[2 * id].kill());
            same("with all that may be lost", &read(&client, "file").await.unwrap(), &content);
            std::fs::remove_file(stuck).unwrap();
            drained(&pool, &client, "file", &content).await;
        });
    }
}

#[test]
pub fn a_short_row_is_protected_by_its_commit() {
    // Whoever has its only chunk.
    for lost in 0..5 {
        run(async {
            let mut pool = Pool::new(1, 5, 48);
            let stuck = pool.hold_drains();
            let client = client(&pool, 4, 1).await;
            let mut writer = client.create("file").await.unwrap();
            writer.write(b"short").await.unwrap();
            writer.sync().await.unwrap();
            pool.benefactors[lost].kill();
            same("a short one", &read(&client, "file").await.unwrap(), b"short");
            std::fs::remove_file(stuck).unwrap();
        });
    }
}

#[test]
pub fn a_benefactor_that_dies_in_the_middle_of_a_drain_holds_up_nothing() {
    run(async {
        let mut pool = Pool::new(1, 5, 64);
        let client = client(&pool, 4, 1).await;
        let contents: Vec<Vec<u8>> = (0..6).map(|seed| bytes(seed, 21 * MIB)).collect();
        for (number, content) in contents.iter().enumerate() {
            write(&client, &format!("file{number}"), content).await.unwrap();
        }
        pool.benefactors[3].kill();
        for (number, content) in contents.iter().enumerate() {
            drained(&pool, &client, &format!("file{number}"), content).await;
        }
    });
}

#[test]
pub fn what_is_lost_is_made_again_of_the_rest_of_its_rows() {
    run(async {
        let mut pool = Pool::new(2, 7, 96);
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        let sizes = [40 * MIB + 3, 5, 9 * MIB, 80 * MIB];
        let contents: Vec<Vec<u8>> = (20..).zip(sizes).map(|(seed, size)| bytes(seed, size)).collect();
        for (number, content) in contents.iter().enumerate() {
            write(&client, &format!("file{number}"), content).await.unwrap();
        }
        for dead in 0..2 {
            pool.benefactors[dead].kill();
            until("all members are there again", async || pool.missing().await == 0).await;
        }
        // One more, which nobody replaces in time.
        pool.benefactors[2].kill();
        for (number, content) in contents.iter().enumerate() {
            same(&format!("file{number}"), &read(&client, &format!("file{number}")).await.unwrap(), content);
        }
        std::fs::remove_file(stuck).unwrap();
        for (number, content) in contents.iter().enumerate() {
            drained(&pool, &client, &format!("file{number}"), content).await;
        }
        for number in 0..contents.len() {
            client.unlink(&format!("file{number}")).await.unwrap();
        }
        until("nothing is left of files and what was made", async || {
            let status = client.status().await.unwrap();
            free(&status) == 4 * 96 && status.journal == 0
        })
        .await;
    });
}

#[test]
pub fn two_that_are_lost_together_are_made_again_of_rows_that_lack_both() {
    run(async {
        let mut pool = Pool::new(1, 9, 64);
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 2).await;
        let content = bytes(9, 61 * MIB + 5);
        write(&client, "file", &content).await.unwrap();
        for dead in [[0, 1], [2, 3]] {
            dead.into_iter().for_each(|dead| pool.benefactors[dead].kill());
            if dead[0] == 0 {
                until("all members are there again", async || pool.missing().await == 0).await;
            }
        }
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
pub fn a_file_of_which_too_much_is_lost_is_named_and_never_short() {
    run(async {
        let mut pool = Pool::new(1, 5, 48);
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        write(&client, "lost", &bytes(3, 17 * MIB)).await.unwrap();
        pool.benefactors[1].kill();
        pool.benefactors[4].kill();
        std::fs::remove_file(stuck).unwrap();
        let failed = client.wait_drained("lost", LONG).await.unwrap_err();
        assert!(failed.to_string().starts_with("lost: the file will not reach its target: chunks of it are lost"));
        assert_eq!(client.stat("lost").await.unwrap().state, Some(FileState::Failed));
        assert!(!pool.target().join("lost").exists(), "the target has no part of it");
        let mut config = config(&pool, 4, 1);
        config.timeout = Duration::from_millis(500);
        let other = PoolClient::begin(config).await.unwrap();
        let failed = read(&other, "lost").await.unwrap_err();
        assert!(matches!(failed, Error::Unreadable { .. }), "{failed}");
    });
}

#[test]
pub fn a_mount_with_more_members_than_there_are_domains_says_so() {
    run(async {
        let pool = Pool::new(1, 4, 48);
        let mut config = config(&pool, 4, 1);
        config.timeout = Duration::from_secs(2);
        let client = pool.client_of(config).await;
        let mut writer = client.create("file").await.unwrap();
        let failed = writer.write(&bytes(1, MIB)).await.unwrap_err();
        let said = failed.to_string();
        assert!(said.contains("parity 4+1 needs benefactors in 5 failure domains; there are 4"), "{said}");
    });
}

/// What a file is to be, and how it is changed.
struct Model {
    random: Random,
    content: Vec<u8>,
}

impl Model {
    async fn change(&mut self, writer: &mut Writer) {
        let most = 14 * MIB as u64;
        let longest = [100, MIB as u64, 5 * MIB as u64][self.random.below(3) as usize];
        let length = 1 + self.random.below(longest) as usize;
        let at = self.random.below(most) as usize;
        match self.random.below(8) {
            0 => {
                writer.set_size(at as u64).await.unwrap();
                self.content.resize(at, 0);
            }
            1 => {
                writer.punch(at as u64, length as u64).await.unwrap();
                let end = self.content.len().min(at + length);
                self.content.get_mut(at..end).into_iter().for_each(|range| range.fill(0));
            }
            kind => {
                let at = if kind < 5 { self.content.len().min(most as usize) } else { at };
                let new = bytes(self.random.next_u64(), length);
                writer.write_at(at as u64, &new).await.unwrap();
                self.content.resize(self.content.len().max(at + length), 0);
                self.content[at..at + length].copy_from_slice(&new);
            }
        }
    }
}

/// A file is written anywhere, cut off, dug out and committed, by one session after the other, while benefactors are lost and return.
async fn anything(seed: u64, (data, parity): (u8, u8)) {
    let members = usize::from(data + parity);
    let mut pool = Pool::new(1, members + 1, 96);
    let client = client(&pool, data, parity).await;
    let mut model = Model { random: Random::from_seed(seed), content: Vec::new() };
    let mut writer = client.create("file").await.unwrap();
    let mut lost = None;
    for _ in 0..40 {
        model.change(&mut writer).await;
        if model.random.chance(0.3) {
            writer.sync().await.unwrap();
            same("committed", &read(&client, "file").await.unwrap(), &model.content);
        }
        if model.random.chance(0.1) {
            writer.close().await.unwrap();
            writer = client.append("file").await.unwrap();
        }
        match lost {
            None if model.random.chance(0.3) => {
                let id = model.random.below(members as u64 + 1) as usize;
                pool.benefactors[id].kill();
                lost = Some(id);
            }
            Some(id) if model.random.chance(0.3) => {
                writer.sync().await.unwrap();
                pool.restart_benefactor(id);
                until("all members are there again", async || pool.missing().await == 0).await;
                lost = None;
            }
            _ => {}
        }
    }
    writer.close().await.unwrap();
    same("in the end", &read(&client, "file").await.unwrap(), &model.content);
    drained(&pool, &client, "file", &model.content).await;
}

#[test]
pub fn every_byte_is_the_one_that_was_written_whatever_is_done_to_a_file_while_benefactors_are_lost() {
    for (seed, parity) in (0..).zip([(4, 1), (2, 1), (3, 2)]) {
        run(anything(seed, parity));
    }
}

#[test]
pub fn two_sessions_write_one_file_and_its_parity_is_that_of_both() {
    run(async {
        let mut pool = Pool::new(1, 5, 96);
        let stuck = pool.hold_drains();
        let (one, other) = (client(&pool, 4, 1).await, client(&pool, 4, 1).await);
        let mut content = vec![0; 12 * MIB];
        let mut writers = [one.create("file").await.unwrap(), other.append("file").await.unwrap()];
        let mut random = Random::from_seed(5);
        for round in 0..24_usize {
            let (at, length) = (random.below(11 * MIB as u64) as usize, 1 + random.below(MIB as u64) as usize);
            let new = bytes(round as u64, length);
            let writer = &mut writers[round % 2];
            writer.write_at(at as u64, &new).await.unwrap();
            content[at..at + length].copy_from_slice(&new);
            // Each is on top of what the other has committed.
            writer.sync().await.unwrap();
        }
        let [first, second] = writers;
        first.close().await.unwrap();
        second.close().await.unwrap();
        pool.benefactors[1].kill();
        let found = read(&one, "file").await.unwrap();
        same("both", &found, &content[..found.len()]);
        assert!(content[found.len()..].iter().all(|byte| *byte == 0));
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &one, "file", &found).await;
    });
}

#[test]
pub fn a_file_larger_than_the_pool_is_drained_while_it_is_written() {
    run(async {
        let pool = Pool::new(1, 5, 24);
        let client = client(&pool, 4, 1).await;
        let content = bytes(7, 200 * MIB);
        let mut writer = client.create("file").await.unwrap();
        for part in content.chunks(3 * MIB + 77) {
            writer.write(part).await.unwrap();
        }
        writer.close().await.unwrap();
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        drained(&pool, &client, "file", &content).await;
    });
}

pub fn ssd(ssds: &TempDir, id: usize) -> PathBuf {
    ssds.path().join(format!("ssd{id}"))
}

pub fn disks(ssds: &TempDir, benefactors: usize) -> Vec<Option<Disk>> {
    (0..benefactors).map(|id| Some(Disk::Files(ssd(ssds, id), 96 << 20))).collect()
}

#[test]
pub fn damaged_data_and_parity_are_made_again() {
    run(async {
        let ssds = tempfile::tempdir().unwrap();
        let often = scrub::Config {
            period: Duration::from_millis(400),
            rate: Bandwidth::from_mib_s(1000),
            quiet: Duration::from_millis(5),
        };
        let pool = Pool::scrubbed(1, 0, disks(&ssds, 5), Some(often));
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        let content = bytes(3, 8 * MIB);
        write(&client, "file", &content).await.unwrap();
        let parity: Vec<u8> = (0..MIB).map(|at| (0..4).fold(0, |sum, chunk| sum ^ content[chunk * MIB + at])).collect();
        let begins = |dir: &Path, beginning: &[u8]| has(dir, beginning);
        for beginning in [&content[MIB..MIB + 64], &parity[..64]] {
            until("it is on an SSD", async || (0..5).any(|id| begins(&ssd(&ssds, id), beginning))).await;
            let id = (0..5).find(|id| begins(&ssd(&ssds, *id), beginning)).unwrap();
            let before = pool.alive(id).await.damaged;
            damage(&ssd(&ssds, id), beginning);
            until("it is found", async || pool.alive(id).await.damaged > before).await;
            same("read", &read(&client, "file").await.unwrap(), &content);
            until("it is whole again", async || {
                let alive = pool.alive(id).await;
                alive.scrubbed.last.is_some_and(|last| last.damaged == 0)
            })
            .await;
        }
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

/// Whether a segment in a directory has a record of a chunk that begins so.
pub fn has(directory: &Path, beginning: &[u8]) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let segments = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "chunks"));
    segments
        .filter_map(|entry| std::fs::read(entry.path()).ok())
        .any(|content| (128..content.len()).step_by(4096).any(|at| content[at..].starts_with(beginning)))
}

#[test]
pub fn benefactors_that_all_return_with_their_ssds_have_their_rows_again() {
    run(async {
        let ssds = tempfile::tempdir().unwrap();
        let mut pool = Pool::with_ssds(1, 0, disks(&ssds, 5));
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        let content = bytes(4, 22 * MIB + 9);
        write(&client, "file", &content).await.unwrap();
        let on_ssd = async |id| pool.alive(id).await.credits == pool.alive(id).await.of;
        for id in 0..5 {
            until("all is on SSD", async || on_ssd(id).await).await;
        }
        (0..5).for_each(|id| pool.restart_benefactor(id));
        until("they are named in their new lives", async || pool.missing().await == 0).await;
        pool.benefactors[2].kill();
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}
