//! Faults while open files are drained early: what somebody else does at the target, a target without room, and publishers that take over.

use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, Small, aside, bytes, drained, has_free, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::meta::{Durability, FileState};
use surgetank_pool_core::placement::Media;

/// Has the pool drop a file that the target has.
async fn evicted(client: &PoolClient, path: &str) {
    client.wait_drained(path, LONG).await.unwrap();
    for number in 0..6 {
        let name = format!("filler{number}");
        let _ = client.unlink(&name).await;
        write(client, &name, &bytes(number, 8 * MIB)).await.unwrap();
    }
    until("the pool has nothing of it", async || client.stat(path).await.unwrap().state == Some(FileState::Evicted))
        .await;
}

async fn in_conflict(client: &PoolClient, path: &str) {
    until("it is told", async || client.stat(path).await.unwrap().state == Some(FileState::Conflict)).await;
}

#[test]
fn a_file_in_conflict_that_is_written_again_is_never_published_with_holes() {
    run(async {
        for size in [30, 3, 70] {
            let pool = Pool::new(1, 2, 24);
            let client = pool.client(2).await;
            let content = bytes(5, size * MIB);
            write(&client, "file", &content).await.unwrap();
            evicted(&client, "file").await;
            let mut writer = client.append("file").await.unwrap();
            let last = ((size - 1) * MIB) as u64;
            writer.write_at(last, &content[..MIB]).await.unwrap();
            writer.sync().await.unwrap();
            std::fs::remove_file(pool.target().join("file")).unwrap();
            writer.close().await.unwrap();
            in_conflict(&client, "file").await;
            if let Ok(mut writer) = client.append("file").await {
                writer.write_at(last, &content[..MIB]).await.unwrap();
                writer.close().await.unwrap();
            }
            write(&client, "next", b"goes on").await.unwrap();
            drained(&pool, &client, "next", b"goes on").await;
            assert!(!pool.target().join("file").exists(), "it has lost what the target had");
            // What was written anew has all that it needs.
            write(&client, "other", &content).await.unwrap();
            client.rename("other", "file").await.unwrap();
            // A file may be drained at its former name first.
            until("it is renamed there", async || client.status().await.unwrap().journal == 0).await;
            drained(&pool, &client, "file", &content).await;
        }
    });
}

#[test]
fn a_shorter_file_of_somebody_else_stops_no_publisher_that_takes_over() {
    run(async {
        let mut pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        let content = bytes(5, 20 * MIB);
        write(&client, "file", &content).await.unwrap();
        evicted(&client, "file").await;
        let mut writer = client.append("file").await.unwrap();
        writer.write_at(3, b"of the pool").await.unwrap();
        writer.sync().await.unwrap();
        until("nothing waits", async || client.status().await.unwrap().journal == 0).await;
        pool.restart_manager(0);
        std::fs::write(pool.target().join("file"), b"theirs").unwrap();
        writer.close().await.unwrap();
        in_conflict(&client, "file").await;
        same("theirs", &std::fs::read(pool.target().join("file")).unwrap(), b"theirs");
        write(&client, "next", b"goes on").await.unwrap();
        drained(&pool, &client, "next", b"goes on").await;
    });
}

#[test]
fn a_file_that_cannot_be_drained_early_keeps_no_other_from_it() {
    run(async {
        for is_unlinked in [true, false] {
            let pool = Pool::new(1, 2, 24);
            let client = pool.client(2).await;
            let content = bytes(5, 20 * MIB);
            write(&client, "file", &content).await.unwrap();
            evicted(&client, "file").await;
            for number in 0..6 {
                client.unlink(&format!("filler{number}")).await.unwrap();
            }
            let mut writer = client.append("file").await.unwrap();
            writer.write_at(3, b"of the pool").await.unwrap();
            writer.sync().await.unwrap();
            match is_unlinked {
                true => client.unlink("file").await.unwrap(),
                false => std::fs::write(pool.target().join("file"), b"theirs").unwrap(),
            }
            // It is the one of which the pool has most.
            writer.write_at(0, &content[..12 * MIB]).await.unwrap();
            writer.sync().await.unwrap();
            write(&client, "other", &bytes(6, 60 * MIB)).await.unwrap();
            drained(&pool, &client, "other", &bytes(6, 60 * MIB)).await;
            drop(writer);
        }
    });
}

#[test]
fn writers_that_cut_off_their_files_do_not_wait_for_each_other() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        for file in 0..5 {
            write(&client, &format!("file{file}"), &bytes(file, 3 * MIB)).await.unwrap();
            client.wait_drained(&format!("file{file}"), LONG).await.unwrap();
        }
        let mut writers = tokio::task::JoinSet::new();
        for file in 0..5_u64 {
            let config = pool.config(2);
            writers.spawn(async move {
                let client = PoolClient::begin(config).await.unwrap();
                let path = format!("file{file}");
                let inode = client.stat(&path).await.unwrap().inode;
                let mut writer = client.rewrite_node(inode, &path).await.unwrap();
                let content = bytes(10 + file, 20 * MIB);
                for part in content.chunks(MIB / 2 + 7) {
                    writer.write(part).await.unwrap();
                }
                writer.close().await.unwrap();
                (path, content)
            });
        }
        while let Some(written) = writers.join_next().await {
            let (path, content) = written.unwrap();
            drained(&pool, &client, &path, &content).await;
        }
    });
}

#[test]
fn what_a_conflict_leaves_at_the_target_is_removed() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        std::fs::create_dir(pool.target().join("sub")).unwrap();
        let mut writer = client.create("file").await.unwrap();
        writer.write(&bytes(1, 4 * MIB)).await.unwrap();
        writer.sync().await.unwrap();
        std::fs::write(pool.target().join("file"), b"theirs").unwrap();
        writer.close().await.unwrap();
        in_conflict(&client, "file").await;
        until("nothing is left aside", async || aside(&pool.target()) == 0).await;
        let _ = read(&client, "file").await;
    });
}

#[test]
fn what_has_left_the_pool_has_no_room_while_its_file_is_open() {
    run(async {
        for seed in 0..6 {
            let pool = Pool::new(1, 2, 24);
            let client = pool.client(2).await;
            let mut writer = client.create("file").await.unwrap();
            writer.write(&bytes(seed, 70 * MIB)).await.unwrap();
            writer.set_size(0).await.unwrap();
            writer.sync().await.unwrap();
            has_free(&client, 48).await;
            drop(writer);
        }
    });
}

/// So many chunks are free.
#[test]
fn a_target_that_is_full_keeps_a_writer_waiting_and_loses_nothing() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let Some(_small) = Small::mount(&pool.target(), "size=30m") else { return };
        let client = pool.client(2).await;
        let content = bytes(7, 90 * MIB);
        let mut writer = client.create("file").await.unwrap();
        let written = content.clone();
        let writing = tokio::spawn(async move {
            for part in written.chunks(MIB) {
                writer.write(part).await.unwrap();
            }
            writer.sync().await.unwrap();
            writer
        });
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        assert!(!writing.is_finished(), "there is no room");
        Small::remount(&pool.target(), "size=200m");
        let writer = writing.await.unwrap();
        same("while it is open", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
fn a_draft_that_nobody_needs_leaves_its_room_to_what_waits_for_it() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let Some(_small) = Small::mount(&pool.target(), "size=28m") else { return };
        let client = pool.client(2).await;
        let mut writer = client.create("open").await.unwrap();
        writer.write(&bytes(1, 22 * MIB)).await.unwrap();
        writer.sync().await.unwrap();
        has_free(&client, 48).await;
        write(&client, "file", &bytes(2, 10 * MIB)).await.unwrap();
        assert!(client.wait_drained("file", std::time::Duration::from_secs(2)).await.is_err(), "there is no room");
        client.unlink("open").await.unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &bytes(2, 10 * MIB)).await;
    });
}

#[test]
fn power_cuts_while_files_are_drained_early_lose_no_byte() {
    run(async {
        for seed in 0..2_u64 {
            let disks: Vec<_> = (0..2).map(|at| CutDisk::new(12, 4 << 20, seed * 2 + at)).collect();
            let mut pool = Pool::with_ssds(1, 16, disks.into_iter().map(|disk| Some(Disk::Cut(disk))).collect());
            let mut config = pool.config_of(Durability::Copies { copies: 1 + (seed % 2) as u8, media: Media::Ssd });
            config.timeout = LONG;
            let client = pool.client_of(config.clone()).await;
            let content = bytes(seed, 120 * MIB);
            let (written, config) = (content.clone(), config);
            let writing = tokio::spawn(async move {
                let client = PoolClient::begin(config).await.unwrap();
                let mut writer = client.create("file").await?;
                for (at, part) in written.chunks(MIB + 7).enumerate() {
                    writer.write(part).await?;
                    if at % 4 == 0 {
                        writer.sync().await?;
                    }
                }
                writer.sync().await?;
                Ok::<_, Error>((client, writer))
            });
            let mut random = Random::from_seed(seed);
            for cut in 0..4 {
                tokio::time::sleep(std::time::Duration::from_millis(200 + random.below(600))).await;
                let at = cut % 2;
                pool.benefactors[at].kill();
                if let Some(Disk::Cut(disk)) = &mut pool.disks[at] {
                    *disk = disk.again(seed * 100 + cut as u64);
                }
                pool.restart_benefactor(at);
            }
            let (_client, writer) = writing.await.unwrap().unwrap_or_else(|error| panic!("run {seed}: {error}"));
            same("while it is open", &read(&client, "file").await.unwrap(), &content);
            writer.close().await.unwrap();
            drained(&pool, &client, "file", &content).await;
        }
    });
}
