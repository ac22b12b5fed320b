//! Processes end in the middle of everything.

use std::time::Duration;

use crate::support::{ENDING, LONG, MIB, Pool, bytes, free, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::meta::FileState;

#[test]
fn a_benefactor_that_dies_under_a_writer_loses_nothing_with_two_copies() {
    run(async {
        let mut pool = Pool::new(1, 3, 96);
        let client = pool.client(2).await;
        let content = bytes(1, 30 * MIB + 11);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..10 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        writer.write(&content[10 * MIB..20 * MIB]).await.unwrap();
        pool.benefactors[1].kill();
        same("what was committed", &read(&client, "file").await.unwrap(), &content[..10 * MIB]);
        writer.write(&content[20 * MIB..]).await.unwrap();
        writer.close().await.unwrap();
        same("all of it", &read(&client, "file").await.unwrap(), &content);
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn a_commit_counts_no_acknowledgement_of_a_former_life() {
    run(async {
        let mut pool = Pool::new(1, 2, 96);
        let client = pool.client(1).await;
        let content = bytes(2, 12 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        // Both took chunks, and neither has them any more; one copy is all that there was.
        pool.restart_benefactor(0);
        pool.restart_benefactor(1);
        writer.sync().await.unwrap();
        same("committed", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
    });
}

#[test]
fn with_one_copy_a_lost_file_is_named_and_never_short() {
    run(async {
        let mut pool = Pool::new(1, 4, 48);
        let client = pool.client(1).await;
        let mut writer = client.create("lost").await.unwrap();
        writer.write(&bytes(3, 8 * MIB)).await.unwrap();
        writer.sync().await.unwrap();
        pool.benefactors[2].kill();
        writer.close().await.unwrap();
        let failed = client.wait_drained("lost", LONG).await.unwrap_err();
        let told = failed.to_string();
        assert!(told.starts_with("lost: the file will not reach its target: chunks of it are lost"), "{told}");
        assert_eq!(client.stat("lost").await.unwrap().state, Some(FileState::Failed));
        assert!(!pool.target().join("lost").exists(), "the target has no part of it");
        // What comes behind it goes on.
        write(&client, "next", &bytes(4, 3 * MIB)).await.unwrap();
        client.wait_drained("next", LONG).await.unwrap();
        let mut config = pool.config(1);
        config.timeout = Duration::from_millis(500);
        let other = PoolClient::begin(config).await.unwrap();
        let failed = read(&other, "lost").await.unwrap_err();
        assert!(matches!(failed, Error::Unreadable { .. }), "{failed}");
    });
}

#[test]
fn benefactors_die_one_after_the_other_and_their_copies_are_made_again() {
    run(async {
        let mut pool = Pool::new(2, 5, 96);
        let stuck = pool.hold_drains();
        let client = pool.client(2).await;
        let sizes = [9 * MIB + 7, 3, 14 * MIB];
        let mut contents: Vec<Vec<u8>> = (20..).zip(sizes).map(|(seed, size)| bytes(seed, size)).collect();
        for (number, content) in contents.iter().enumerate() {
            write(&client, &format!("file{number}"), content).await.unwrap();
        }
        // One is open, and is written to between the deaths.
        let mut writer = client.create("open").await.unwrap();
        contents.push(Vec::new());
        for (dead, seed) in (0..3).zip(30..) {
            let more = bytes(seed, 2 * MIB + 100);
            writer.write(&more).await.unwrap();
            writer.sync().await.unwrap();
            contents[3].extend(more);
            pool.benefactors[dead].kill();
            // One of the managers goes as well: whoever is the warden then goes on.
            if dead == 1 {
                pool.managers[0].kill();
                pool.restart_manager(0);
            }
            until("all copies are there again", async || pool.missing().await == 0).await;
        }
        let names = ["file0", "file1", "file2", "open"];
        for (name, content) in names.iter().zip(&contents) {
            same(name, &read(&client, name).await.unwrap(), content);
        }
        writer.close().await.unwrap();
        std::fs::remove_file(stuck).unwrap();
        for (name, content) in names.iter().zip(&contents) {
            client.wait_drained(name, LONG).await.unwrap();
            same(name, &std::fs::read(pool.target().join(name)).unwrap(), content);
        }
        for name in names {
            client.unlink(name).await.unwrap();
        }
        until("nothing is left of files and copies", async || {
            let status = client.status().await.unwrap();
            let free = free(&status);
            free == 2 * 96 && status.journal == 0
        })
        .await;
    });
}

#[test]
fn two_of_three_die_at_once_and_nothing_is_short() {
    run(async {
        let mut pool = Pool::new(1, 3, 96);
        let stuck = pool.hold_drains();
        let client = pool.client(2).await;
        let contents: Vec<Vec<u8>> = (40..48).map(|seed| bytes(seed, MIB + 5)).collect();
        for (number, content) in contents.iter().enumerate() {
            write(&client, &format!("file{number}"), content).await.unwrap();
        }
        pool.benefactors[0].kill();
        pool.benefactors[1].kill();
        let mut config = pool.config(2);
        config.timeout = Duration::from_millis(700);
        let hasty = PoolClient::begin(config).await.unwrap();
        let mut lost = Vec::new();
        for (number, content) in contents.iter().enumerate() {
            let path = format!("file{number}");
            match read(&hasty, &path).await {
                Ok(found) => same(&path, &found, content),
                Err(Error::Unreadable { .. }) => lost.push(number),
                Err(other) => panic!("{path}: {other}"),
            }
        }
        // The third has one of the copies of two files in three.
        assert!(lost.len() < contents.len(), "{lost:?}");
        std::fs::remove_file(stuck).unwrap();
        // With a third one there are two again: what was not lost is copied.
        pool.restart_benefactor(0);
        for (number, content) in contents.iter().enumerate() {
            let path = format!("file{number}");
            match client.wait_drained(&path, LONG).await {
                Ok(()) => {
                    assert!(!lost.contains(&number), "{path} was lost");
                    same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), content);
                }
                Err(Error::NotDrained(..)) => {
                    assert!(lost.contains(&number), "{path} was not lost");
                    assert!(!pool.target().join(&path).exists(), "the target has no part of {path}");
                }
                Err(other) => panic!("{path}: {other}"),
            }
        }
    });
}

#[test]
fn managers_end_and_a_commit_waits_for_the_next_one() {
    run(async {
        let mut pool = Pool::new(2, 3, 96);
        let client = pool.client(2).await;
        let content = bytes(5, 9 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..3 * MIB]).await.unwrap();
        pool.managers[0].kill();
        writer.sync().await.unwrap();
        same("one manager is left", &read(&client, "file").await.unwrap(), &content[..3 * MIB]);
        pool.managers[1].kill();
        // The group has been placed: it is filled on, without any manager.
        writer.write(&content[3 * MIB..]).await.unwrap();
        let sync = tokio::spawn(async move { writer.sync().await.map(|()| writer) });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!sync.is_finished(), "nobody can have committed it");
        pool.restart_manager(1);
        let writer = sync.await.unwrap().unwrap();
        same("committed", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn the_drain_goes_on_without_the_client_and_after_a_restart_of_the_store() {
    run(async {
        let mut pool = Pool::new(1, 3, 96).with_sessions_of(ENDING);
        let client = pool.client(2).await;
        write(&client, "closed", &bytes(6, 20 * MIB)).await.unwrap();
        let mut torn = client.create("torn").await.unwrap();
        torn.write(&bytes(7, 2 * MIB)).await.unwrap();
        torn.sync().await.unwrap();
        torn.write(&bytes(8, MIB)).await.unwrap();
        drop((torn, client));
        pool.kill_store();
        pool.open_store();
        pool.restart_manager(0);
        let target = pool.target();
        until("both are at the target", async || target.join("closed").exists() && target.join("torn").exists()).await;
        same("closed", &std::fs::read(target.join("closed")).unwrap(), &bytes(6, 20 * MIB));
        same("torn, at its last commit", &std::fs::read(target.join("torn")).unwrap(), &bytes(7, 2 * MIB));
        let client = PoolClient::begin(pool.config(2)).await.unwrap();
        assert!(client.stat("torn").await.unwrap().torn);
        assert!(!client.stat("closed").await.unwrap().torn);
    });
}

#[test]
fn kills_of_everything_under_writers_lose_no_byte() {
    hammer_all(Kind::Memory);
}

#[test]
fn kills_of_everything_with_ssds_lose_no_byte() {
    hammer_all(Kind::Ssd);
}

#[test]
fn kills_of_everything_over_etcd_lose_no_byte() {
    hammer_all(Kind::Etcd);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Ssd,
    /// Memory, three managers, and an etcd that ends and begins as well.
    Etcd,
}

fn hammer_all(kind: Kind) {
    // Runs: `SURGETANK_FIRST` begins elsewhere, `SURGETANK_TIMES` multiplies their number.
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SURGETANK_FIRST").unwrap_or(0);
    for seed in first..first + 2 * number("SURGETANK_TIMES").unwrap_or(1) {
        run(hammer(seed, kind));
    }
}

/// Writers write, sync and close while a benefactor or a manager at a time ends and begins again: with two copies, and the next benefactor's
/// end when the copies of the former are there again, nothing that was acknowledged is lost.
async fn hammer(seed: u64, kind: Kind) {
    let mut random = Random::from_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let disk = |id: usize| crate::support::Disk::Files(directory.path().join(id.to_string()), 64 << 20);
    let mut pool = match kind {
        Kind::Ssd => Pool::with_ssds(2, 48, (0..4).map(|id| Some(disk(id))).collect()),
        Kind::Memory => Pool::new(2, 4, 96),
        Kind::Etcd => match Pool::over_etcd(3, 4, 96) {
            Some(pool) => pool,
            None => return,
        },
    };
    let client = std::sync::Arc::new(pool.client(2).await);
    let mut writers = tokio::task::JoinSet::new();
    for file in 0..3 {
        let client = std::sync::Arc::clone(&client);
        writers.spawn(async move {
            let content = bytes(seed * 10 + file, 12 * MIB + 77 * usize::try_from(file).unwrap());
            let path = format!("file{file}");
            let mut writer = client.create(&path).await.map_err(|error| error.to_string())?;
            for (number, part) in content.chunks(600_000).enumerate() {
                writer.write(part).await.map_err(|error| error.to_string())?;
                if number % 5 == 4 {
                    writer.sync().await.map_err(|error| error.to_string())?;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            writer.close().await.map_err(|error| error.to_string())?;
            Ok::<_, String>((path, content))
        });
    }
    let mut kills = 0;
    while !writers.is_empty() && kills < 5 {
        tokio::time::sleep(Duration::from_millis(50 + random.below(200))).await;
        if kills % 2 == 0 {
            until("the copies of the former are there again", async || pool.missing().await == 0).await;
            let at = random.below(4) as usize;
            pool.benefactors[at].kill();
            pool.restart_benefactor(at);
        } else {
            if let Some(etcd) = &mut pool.etcd
                && kills % 4 == 3
            {
                etcd.kill();
                tokio::time::sleep(Duration::from_millis(random.below(500))).await;
                etcd.begin();
            }
            let at = random.below(pool.managers.len() as u64) as usize;
            pool.managers[at].kill();
            tokio::time::sleep(Duration::from_millis(random.below(100))).await;
            pool.restart_manager(at);
        }
        kills += 1;
    }
    while let Some(written) = writers.join_next().await {
        let (path, content) = written.unwrap().unwrap_or_else(|error| panic!("run {seed}: {error}"));
        same(&path, &read(&client, &path).await.unwrap(), &content);
        client.wait_drained(&path, LONG).await.unwrap();
        same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), &content);
    }
    for file in 0..3 {
        client.unlink(&format!("file{file}")).await.unwrap();
    }
    until("nothing is left", async || {
        let status = client.status().await.unwrap();
        let free = free(&status);
        free == if kind == Kind::Ssd { 4 * 48 } else { 4 * 96 } && status.journal == 0
    })
    .await;
}

#[test]
fn a_file_of_which_nothing_was_committed_is_torn_once_its_session_has_ended() {
    run(async {
        let pool = Pool::new(1, 2, 48).with_sessions_of(ENDING);
        let client = pool.client(2).await;
        let dying = pool.client(2).await;
        let mut writer = dying.create("file").await.unwrap();
        writer.write(&bytes(1, MIB)).await.unwrap();
        let removed = dying.create("removed").await.unwrap();
        client.unlink("removed").await.unwrap();
        tokio::time::sleep(ENDING + Duration::from_secs(2)).await;
        let stat = client.stat("file").await.unwrap();
        assert!(!stat.torn && stat.state == Some(FileState::Created), "its session goes on: {stat:?}");
        assert_eq!(client.status().await.unwrap().files[6], 0);
        let undrained = async || PoolClient::ask_undrained(&pool.config(1)).await.unwrap();
        assert!(undrained().await > 0, "it is written");
        drop((writer, removed, dying));
        until("it is torn", async || client.stat("file").await.unwrap().torn).await;
        // What was removed goes with the last session that has it open, in a step of its own.
        until("no benefactor waits for either", async || {
            let status = client.status().await.unwrap();
            (status.files[0], status.files[6], undrained().await) == (0, 1, 0)
        })
        .await;
        assert_eq!(read(&client, "file").await.unwrap(), b"");
        assert!(!pool.target().join("file").exists(), "its contents were never committed");
        // It is written as any other.
        let mut writer = client.append("file").await.unwrap();
        writer.write(b"more").await.unwrap();
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        assert_eq!(std::fs::read(pool.target().join("file")).unwrap(), b"more");
        assert!(!client.stat("file").await.unwrap().torn);
    });
}
