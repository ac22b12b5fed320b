//! Files that are larger than the pool, and files that the target alone has: what is written into them rests on what is there.

use std::time::Duration;

use crate::support::{ENDING, LONG, MIB, Pool, aside, bytes, drained, free, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{self, PoolClient, Writer};
use surgetank_pool_core::meta::FileState;

/// Nothing is left in the pool, and no draft at the target.
async fn is_empty(pool: &Pool, client: &PoolClient, chunks: u64) {
    until("all memory is free, and no draft is left", async || {
        let status = client.status().await.unwrap();
        let free = free(&status);
        free == chunks && status.journal == 0 && aside(&pool.target()) == 0
    })
    .await;
}

/// Has the pool drop a file that the target has.
async fn evicted(client: &PoolClient, path: &str) {
    make_short(client).await;
    until("the pool has nothing of it", async || client.stat(path).await.unwrap().state == Some(FileState::Evicted))
        .await;
}

/// Fills a pool with files that it drops again, so that it drops others as well.
async fn make_short(client: &PoolClient) {
    for number in 0..6 {
        let name = format!("filler{number}");
        let _ = client.unlink(&name).await;
        write(client, &name, &bytes(number, 8 * MIB)).await.unwrap();
    }
}

/// Writes bytes anywhere, and keeps account of what the file is.
async fn scribble(writer: &mut Writer, content: &mut Vec<u8>, random: &mut Random) -> Result<(), client::Error> {
    let offset = usize::try_from(random.below(content.len() as u64)).unwrap();
    let length = usize::try_from(1 + random.below(3 * MIB as u64)).unwrap();
    let part = bytes(random.below(u64::MAX), length);
    writer.write_at(offset as u64, &part).await?;
    content.resize(content.len().max(offset + length), 0);
    content[offset..offset + length].copy_from_slice(&part);
    Ok(())
}

#[test]
fn an_open_file_is_several_times_as_large_as_the_pool() {
    run(async {
        for (seed, synced) in [(1, true), (2, false)] {
            // Each benefactor holds 24 chunks, and each chunk lies at both.
            let pool = Pool::new(1, 2, 24);
            let (client, other) = (pool.client(2).await, pool.client(2).await);
            let content = bytes(seed, 120 * MIB + 12345);
            let mut writer = client.create("large").await.unwrap();
            for part in content.chunks(3 * MIB + 1) {
                writer.write(part).await.unwrap();
                if synced {
                    writer.sync().await.unwrap();
                }
            }
            writer.sync().await.unwrap();
            assert!(!pool.target().join("large").exists(), "nobody has closed it");
            same("while it is open", &read(&other, "large").await.unwrap(), &content);
            writer.close().await.unwrap();
            drained(&pool, &client, "large", &content).await;
            same("afterwards", &read(&other, "large").await.unwrap(), &content);
            client.unlink("large").await.unwrap();
            is_empty(&pool, &client, 48).await;
        }
    });
}

#[test]
fn what_was_drained_early_is_written_over_cut_off_and_written_again() {
    run(async {
        for seed in 0..3 {
            let pool = Pool::new(2, 2, 24);
            let (client, other) = (pool.client(2).await, pool.client(2).await);
            let mut random = Random::from_seed(seed);
            let mut content = bytes(seed, 60 * MIB);
            let mut writer = client.create("file").await.unwrap();
            writer.write(&content).await.unwrap();
            for step in 0..40 {
                match random.below(8) {
                    0 => {
                        let size = usize::try_from(random.below(content.len() as u64 + 5 * MIB as u64)).unwrap();
                        writer.set_size(size as u64).await.unwrap();
                        content.resize(size, 0);
                    }
                    1 | 2 => {
                        writer.sync().await.unwrap();
                        let found = read(&other, "file").await.unwrap();
                        same(&format!("run {seed}, step {step}"), &found, &content);
                    }
                    _ => scribble(&mut writer, &mut content, &mut random).await.unwrap(),
                }
            }
            if seed == 2 {
                client.unlink("file").await.unwrap();
                writer.sync().await.unwrap();
                for offset in (0..content.len()).step_by(MIB) {
                    let found = writer.read_at(offset as u64, MIB).await.unwrap();
                    same("unlinked", &found, &content[offset..offset + found.len()]);
                }
                writer.close().await.unwrap();
            } else {
                writer.close().await.unwrap();
                drained(&pool, &client, "file", &content).await;
                client.unlink("file").await.unwrap();
            }
            is_empty(&pool, &client, 48).await;
        }
    });
}

#[test]
fn a_client_that_dies_in_a_file_that_the_pool_dropped_leaves_it_whole() {
    run(async {
        for seed in 0..3 {
            let pool = Pool::new(1, 2, 24).with_sessions_of(ENDING);
            let client = pool.client(2).await;
            let mut content = bytes(seed, 30 * MIB + 77);
            write(&client, "file", &content).await.unwrap();
            client.wait_drained("file", LONG).await.unwrap();
            evicted(&client, "file").await;

            let dying = pool.client(2).await;
            let mut writer = dying.append("file").await.unwrap();
            let mut random = Random::from_seed(seed);
            scribble(&mut writer, &mut content, &mut random).await.unwrap();
            writer.sync().await.unwrap();
            let committed = content.clone();
            let mut lost = content.clone();
            scribble(&mut writer, &mut lost, &mut random).await.unwrap();
            same("it reads what it has written", &writer.read_at(0, 100).await.unwrap(), &lost[..100]);
            drop((writer, dying));
            until("its session has ended", async || {
                let stat = client.stat("file").await.unwrap();
                stat.torn && stat.state != Some(FileState::Replicated)
            })
            .await;
            drained(&pool, &client, "file", &committed).await;
            same("in the pool", &read(&client, "file").await.unwrap(), &committed);
        }
    });
}

#[test]
fn a_byte_in_a_large_file_that_the_pool_dropped_takes_the_room_of_a_chunk() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        // More than the pool has room for.
        let mut content = bytes(5, 80 * MIB);
        write(&client, "file", &content).await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        evicted(&client, "file").await;
        for number in 0..6 {
            client.unlink(&format!("filler{number}")).await.unwrap();
        }
        is_empty(&pool, &client, 48).await;
        let mut writer = client.append("file").await.unwrap();
        content[70 * MIB] ^= 1;
        writer.write_at(70 * MIB as u64, &content[70 * MIB..=70 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        let free = free(&client.status().await.unwrap());
        assert!(free >= 46, "{free} of 48 chunks are free");
        same("while it is open", &read(&client, "file").await.unwrap(), &content);
        // Nothing of it need be read to cut it off.
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        evicted(&client, "file").await;
        let inode = client.stat("file").await.unwrap().inode;
        let mut writer = client.rewrite_node(inode, "file").await.unwrap();
        writer.write(b"anew").await.unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "file", b"anew").await;
        same("in the pool", &read(&client, "file").await.unwrap(), b"anew");
    });
}

#[test]
fn what_somebody_else_has_changed_under_a_writer_stays() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        let content = bytes(5, 30 * MIB);
        write(&client, "file", &content).await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        evicted(&client, "file").await;
        let mut writer = client.append("file").await.unwrap();
        writer.write_at(3, b"of the pool").await.unwrap();
        writer.sync().await.unwrap();
        let theirs = bytes(6, 30 * MIB);
        std::fs::write(pool.target().join("file"), &theirs).unwrap();
        writer.close().await.unwrap();
        until("it is told", async || client.stat("file").await.unwrap().state == Some(FileState::Conflict)).await;
        same("theirs", &std::fs::read(pool.target().join("file")).unwrap(), &theirs);
        // What is theirs is never read as the pool's. If it was drained early a moment before, the pool's draft has everything.
        if let Ok(found) = read(&client, "file").await {
            let mut ours = content.clone();
            ours[3..14].copy_from_slice(b"of the pool");
            same("the pool's", &found, &ours);
        }
        write(&client, "next", b"goes on").await.unwrap();
        drained(&pool, &client, "next", b"goes on").await;
    });
}

#[test]
fn a_target_that_is_gone_for_a_while_keeps_a_writer_waiting_and_loses_nothing() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        let content = bytes(7, 70 * MIB);
        let (target, away) = (pool.target(), pool.directory.path().join("away"));
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..8 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        std::fs::rename(&target, &away).unwrap();
        let rest = content[8 * MIB..].to_vec();
        let writing = tokio::spawn(async move {
            for part in rest.chunks(MIB) {
                writer.write(part).await.unwrap();
            }
            writer.sync().await.unwrap();
            writer
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!writing.is_finished(), "there is no room");
        std::fs::rename(&away, &target).unwrap();
        let writer = writing.await.unwrap();
        same("while it is open", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}

/// Managers and benefactors end one after the other while files that are larger than the pool are written, cut off and read.
#[test]
fn kills_while_files_are_drained_early_lose_no_byte() {
    run(async {
        for seed in 0..3 {
            let mut pool = Pool::new(2, 4, 24);
            let client = pool.client(2).await;
            let mut writers = tokio::task::JoinSet::new();
            for file in 0..2_u64 {
                let mut config = pool.config(2);
                config.managers.rotate_left(file as usize);
                writers.spawn(async move {
                    let client = PoolClient::begin(config).await.unwrap();
                    let (path, mut random) = (format!("file{file}"), Random::from_seed(seed * 10 + file));
                    let mut content = bytes(random.below(u64::MAX), 40 * MIB);
                    let mut writer = client.create(&path).await?;
                    for (at, part) in content.chunks(2 * MIB + 5).enumerate() {
                        writer.write(part).await?;
                        if at % 3 == 0 {
                            writer.sync().await?;
                        }
                    }
                    for _ in 0..20 {
                        scribble(&mut writer, &mut content, &mut random).await?;
                        if random.below(3) == 0 {
                            writer.sync().await?;
                        }
                    }
                    writer.close().await?;
                    Ok::<_, client::Error>((path, content))
                });
            }
            let mut random = Random::from_seed(seed);
            let mut kills = 0;
            while !writers.is_empty() && kills < 6 {
                tokio::time::sleep(Duration::from_millis(100 + random.below(400))).await;
                if kills % 2 == 0 {
                    let at = usize::try_from(random.below(2)).unwrap();
                    pool.managers[at].kill();
                    tokio::time::sleep(Duration::from_millis(random.below(100))).await;
                    pool.restart_manager(at);
                } else {
                    until("the copies of the former are there again", async || pool.missing().await == 0).await;
                    let at = usize::try_from(random.below(4)).unwrap();
                    pool.benefactors[at].kill();
                    pool.restart_benefactor(at);
                }
                kills += 1;
            }
            while let Some(written) = writers.join_next().await {
                let (path, content) = match written.unwrap() {
                    Ok(written) => written,
                    Err(error) => panic!("run {seed}: {error}: {:?}", client.status().await),
                };
                same(&path, &read(&client, &path).await.unwrap(), &content);
                drained(&pool, &client, &path, &content).await;
            }
            for file in 0..2 {
                client.unlink(&format!("file{file}")).await.unwrap();
            }
            is_empty(&pool, &client, 4 * 24).await;
        }
    });
}
