//! A whole pool on loopback: what is promised of bytes and names.

use std::time::Duration;

use crate::support::{LONG, MIB, Pool, aside, bytes, free, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::meta::FileState;
use surgetank_pool_core::meta::operation::Refusal;

#[test]
fn what_is_written_is_read_back_and_reaches_the_target() {
    run(async {
        let pool = Pool::new(2, 3, 128);
        let client = pool.client(2).await;
        let sizes = [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17, 66 * MIB + 5];
        client.make_directory("run").await.unwrap();
        for (seed, size) in (0..).zip(sizes) {
            let (path, content) = (format!("run/{size}"), bytes(seed, size));
            let mut writer = client.create(&path).await.unwrap();
            for part in content.chunks(700_001) {
                writer.write(part).await.unwrap();
            }
            writer.close().await.unwrap();
            same(&path, &read(&client, &path).await.unwrap(), &content);
        }
        for (seed, size) in (0..).zip(sizes) {
            let path = format!("run/{size}");
            client.wait_drained(&path, LONG).await.unwrap();
            same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), &bytes(seed, size));
        }
        let mut names: Vec<String> =
            client.read_directory("run").await.unwrap().iter().map(|(name, _)| name.to_string()).collect();
        names.sort_unstable();
        let mut expected: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(aside(&pool.target()), 0, "nothing is left aside at the target");
    });
}

#[test]
fn a_commit_is_read_by_other_sessions_and_what_is_written_over_it_keeps_the_rest() {
    run(async {
        let pool = Pool::new(1, 3, 48);
        let (one, other) = (pool.client(2).await, pool.client(2).await);
        let mut content = bytes(1, 2 * MIB + 100);
        let mut writer = one.create("log").await.unwrap();
        writer.write(&content).await.unwrap();
        assert_eq!(read(&other, "log").await.unwrap(), b"", "nothing is committed yet");
        writer.sync().await.unwrap();
        same("committed", &read(&other, "log").await.unwrap(), &content);
        // Over a border of chunks, and behind the end with a gap.
        let over = bytes(2, 5000);
        writer.write_at(MIB as u64 - 1000, &over).await.unwrap();
        content[MIB - 1000..MIB + 4000].copy_from_slice(&over);
        writer.write_at(3 * MIB as u64 + 10, b"end").await.unwrap();
        content.resize(3 * MIB + 10, 0);
        content.extend_from_slice(b"end");
        writer.close().await.unwrap();
        same("over it", &read(&other, "log").await.unwrap(), &content);
        // Another session goes on at the end.
        let mut writer = other.append("log").await.unwrap();
        writer.write(&content.clone()).await.unwrap();
        writer.close().await.unwrap();
        content.extend_from_within(..);
        same("appended", &read(&one, "log").await.unwrap(), &content);
        one.wait_drained("log", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("log")).unwrap(), &content);
    });
}

/// Each buffer keeps a few chunks that are not overwritten, and must not keep the room of all others for them.
#[test]
fn a_file_that_stays_open_is_overwritten_many_times_the_size_of_the_pool() {
    run(async {
        let pool = Pool::new(1, 3, 48);
        let client = pool.client(2).await;
        let mut content = bytes(1, 24 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        let mut random = Random::from_seed(7);
        for round in 0..100 {
            for part in 0..4 {
                let at = random.below(24) as usize * MIB;
                let over = bytes(2 + round * 4 + part, MIB);
                writer.write_at(at as u64, &over).await.unwrap();
                content[at..at + MIB].copy_from_slice(&over);
            }
            writer.sync().await.unwrap();
        }
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn a_second_writer_loses_nothing_of_the_first() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        write(&one, "file", b"first").await.unwrap();
        let (mut a, mut b) = (one.append("file").await.unwrap(), other.append("file").await.unwrap());
        assert!(matches!(one.append("file").await, Err(Error::Refused(_, Refusal::InUse))), "one handle a session");
        a.write(b" second").await.unwrap();
        b.write_at(0, b"FI").await.unwrap();
        b.write_at(20, b"third").await.unwrap();
        a.close().await.unwrap();
        b.sync().await.unwrap();
        assert_eq!(read(&one, "file").await.unwrap(), b"FIrst second\0\0\0\0\0\0\0\0third");
    });
}

#[test]
fn the_target_sees_changes_in_their_order() {
    run(async {
        let pool = Pool::new(2, 3, 96);
        let client = pool.client(2).await;
        let target = pool.target();
        let watched = target.clone();
        // Whenever the marker of a checkpoint is there, all of that checkpoint is, under its final name.
        let watch = std::thread::spawn(move || {
            for round in 0..5_u64 {
                let directory = watched.join(format!("step{round}"));
                while !directory.join("complete").exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for rank in 0..4 {
                    let found = std::fs::read(directory.join(format!("rank{rank}"))).expect("it is there");
                    same("a rank", &found, &bytes(round * 4 + rank, MIB + 333));
                }
            }
        });
        for round in 0..5_u64 {
            let draft = format!("draft{round}");
            client.make_directory(&draft).await.unwrap();
            for rank in 0..4 {
                write(&client, &format!("{draft}/rank{rank}"), &bytes(round * 4 + rank, MIB + 333)).await.unwrap();
            }
            client.rename(&draft, &format!("step{round}")).await.unwrap();
            write(&client, &format!("step{round}/complete"), b"yes").await.unwrap();
        }
        tokio::task::spawn_blocking(move || watch.join().expect("the order is kept")).await.unwrap();
        for round in 0..5 {
            for name in ["rank0", "rank1", "rank2", "rank3", "complete"] {
                client.unlink(&format!("step{round}/{name}")).await.unwrap();
            }
            client.remove_directory(&format!("step{round}")).await.unwrap();
        }
        until("the target is empty", async || std::fs::read_dir(&target).unwrap().count() == 1).await;
    });
}

#[test]
fn what_is_drained_makes_room_and_is_read_from_the_target() {
    run(async {
        // Each benefactor holds 24 chunks; all that is written takes 160.
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        for seed in 0..10 {
            write(&client, &format!("file{seed}"), &bytes(seed, 8 * MIB)).await.unwrap();
        }
        for seed in 0..10 {
            let path = format!("file{seed}");
            same(&path, &read(&client, &path).await.unwrap(), &bytes(seed, 8 * MIB));
            client.wait_drained(&path, LONG).await.unwrap();
            same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), &bytes(seed, 8 * MIB));
        }
        assert_eq!(client.stat("file0").await.unwrap().state, Some(FileState::Evicted));
        // A file that only the target has is read where a rename has left it, and can be written again.
        client.rename("file0", "moved").await.unwrap();
        same("moved", &read(&client, "moved").await.unwrap(), &bytes(0, 8 * MIB));
        let mut writer = client.append("moved").await.unwrap();
        writer.write(b"and more").await.unwrap();
        writer.close().await.unwrap();
        let expected = [&bytes(0, 8 * MIB)[..], b"and more"].concat();
        same("moved", &read(&client, "moved").await.unwrap(), &expected);
        client.wait_drained("moved", LONG).await.unwrap();
        same("moved", &std::fs::read(pool.target().join("moved")).unwrap(), &expected);
    });
}

#[test]
fn nothing_is_left_of_what_was_unlinked() {
    run(async {
        let pool = Pool::new(1, 3, 48);
        let client = pool.client(2).await;
        for seed in 0..4 {
            write(&client, &format!("file{seed}"), &bytes(seed, 3 * MIB + 1)).await.unwrap();
        }
        // One that is never closed, and one that is replaced by a rename.
        let mut open = client.create("open").await.unwrap();
        open.write(&bytes(9, 2 * MIB)).await.unwrap();
        open.sync().await.unwrap();
        client.rename("file0", "file1").await.unwrap();
        for path in ["file1", "file2", "file3", "open"] {
            client.unlink(path).await.unwrap();
        }
        drop(open);
        client.end().await.unwrap();
        let client = pool.client(2).await;
        is_empty(&client, 3 * 48).await;
        let at_target: Vec<_> =
            std::fs::read_dir(pool.target()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(at_target, [".surgetank"]);
    });
}

/// All memory is free again.
async fn is_empty(client: &PoolClient, chunks: u64) {
    until("all memory is free", async || {
        let status = client.status().await.unwrap();
        let free = free(&status);
        free == chunks && status.files.iter().sum::<u64>() == 0 && status.journal == 0
    })
    .await;
}

/// A warden compares what benefactors have with the sessions that there are: one that begins meanwhile is none that has ended.
#[test]
fn sessions_that_begin_while_wardens_look_are_left_alone() {
    run(async {
        let pool = Pool::swept(1, 3, 48, Duration::from_millis(1));
        let first = pool.client(2).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4_u64 {
            let config = pool.config(2);
            tasks.spawn(async move {
                for number in 0..60_u64 {
                    let client = PoolClient::begin(config.clone()).await.unwrap();
                    let (path, content) = (format!("{task}.{number}"), bytes(number, 3000));
                    let mut writer = client.create(&path).await.unwrap();
                    writer.write(&content).await.unwrap();
                    writer.sync().await.unwrap_or_else(|error| panic!("{path}: {error}"));
                    writer.write(&content).await.unwrap();
                    writer.close().await.unwrap_or_else(|error| panic!("{path}: {error}"));
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        same("the last one", &read(&first, "3.59").await.unwrap()[..3000], &bytes(59, 3000));
    });
}

#[test]
fn every_mistake_is_told_in_a_sentence() {
    run(async {
        let pool = Pool::new(1, 2, 12);
        let client = pool.client(1).await;
        let begin = async |change: &dyn Fn(&mut surgetank_pool::client::Config)| {
            let mut config = pool.config(1);
            config.timeout = Duration::from_millis(300);
            change(&mut config);
            PoolClient::begin(config).await.err().expect("it is refused").to_string()
        };
        let other = begin(&|config| config.make = Some(("/not/there".into(), pool.config(2).make.unwrap().1))).await;
        assert!(other.starts_with("target `/not/there` is no directory"), "{other}");
        let other = begin(&|config| config.make = pool.config(9).make).await;
        assert_eq!(other, "copies = 9: a chunk has 1 to 8 copies");
        let to_target = (pool.target(), surgetank_pool_core::meta::Durability::Target);
        let other = begin(&|config| config.make = Some(to_target.clone())).await;
        assert!(other.starts_with("durability = target: no sync waits for the target yet"), "{other}");
        let other = begin(&|config| config.make = pool.config(2).make).await;
        assert!(other.starts_with("mount `scratch` drains to"), "{other}");
        let other = begin(&|config| (config.mount, config.make) = ("other".to_owned(), None)).await;
        assert_eq!(other, "there is no mount `other`: begin it with a target first");
        let other = begin(&|config| config.managers = vec!["192.0.2.1:7440".to_owned()]).await;
        assert!(other.starts_with("`192.0.2.1:7440` is not a loopback address"), "{other}");
        let other = begin(&|config| config.managers = vec!["nowhere".to_owned()]).await;
        assert!(other.starts_with("`nowhere` is no address"), "{other}");
        let other = begin(&|config| config.managers = vec!["127.0.0.1:1".to_owned()]).await;
        assert!(other.starts_with("no manager answers"), "{other}");
        write(&client, "file", b"x").await.unwrap();
        for (path, sentence) in [
            ("file", "file: there is such an entry already"),
            ("file/below", "file/below: that is no directory"),
            ("none/file", "none/file: there is no such file or directory"),
            ("..", "path `..`: a name is not empty, neither `.` nor `..`, and has neither `/` nor a zero byte"),
            ("/", "path `/`: it is the mount itself"),
        ] {
            assert_eq!(client.create(path).await.err().unwrap().to_string(), sentence);
        }
        let small = surgetank_pool_core::benefactor::buffers::Buffers::new(2 << 20, 1 << 20).unwrap_err().to_string();
        assert_eq!(
            small,
            "2097152 bytes of memory make no three buffers of a chunk: lend at least 3145728 bytes, or none"
        );
        // More copies than there are failure domains.
        let mut config = pool.config(3);
        (config.mount, config.timeout) = ("wide".to_owned(), Duration::from_millis(300));
        let wide = PoolClient::begin(config).await.unwrap();
        let failed = write(&wide, "other", b"x").await.unwrap_err().to_string();
        assert!(failed.contains("3 copies need benefactors in 3 failure domains; there are 2"), "{failed}");
        // A file that is larger than the pool, while the target is gone.
        let mut config = pool.config(1);
        config.timeout = Duration::from_secs(2);
        let client = PoolClient::begin(config).await.unwrap();
        let mut writer = client.create("large").await.unwrap();
        std::fs::rename(pool.target(), pool.directory.path().join("away")).unwrap();
        let failed = writer.write(&bytes(1, 40 * MIB)).await.unwrap_err().to_string();
        assert!(failed.contains("has no room until something is drained"), "{failed}");
    });
}
