//! Rows that lack chunks, and members that are damaged, while the places of others are taken over or nobody knows yet whether they return.

use std::time::Duration;

use crate::parity::{client, config, disks, has, ssd};
use crate::support::damage::damage;
use crate::support::{MIB, Pool, bytes, drained, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::PoolClient;
use surgetank_pool_core::meta::FileState;

/// A row of one chunk that is this one of it: all that have no member of it are lost, one after the other, then whoever has the chunk.
async fn short_row(at: usize) {
    let mut pool = Pool::new(1, 8, 48);
    let stuck = pool.hold_drains();
    let reader = client(&pool, 4, 1).await;
    let new = bytes(1, MIB);
    let mut writer = reader.create("file").await.unwrap();
    writer.write_at((at * MIB) as u64, &new).await.unwrap();
    writer.close().await.unwrap();
    let content = [vec![0; at * MIB], new].concat();
    same("before", &read(&reader, "file").await.unwrap(), &content);
    let inode = reader.stat("file").await.unwrap().inode;
    for other in (0..4).filter(|other| *other != at) {
        let places = pool.columns(inode).await.remove(0);
        pool.benefactors[places[other]].kill();
        until("another has its place", async || pool.missing().await == 0).await;
    }
    let places = pool.columns(inode).await.remove(0);
    pool.benefactors[places[at]].kill();
    let another = PoolClient::begin(config(&pool, 4, 1)).await.unwrap();
    for (who, client) in [("who has read it", &reader), ("who has made it", &reader), ("another", &another)] {
        same(who, &read(client, "file").await.unwrap(), &content);
    }
    // Its writer reads what a row has.
    let mut writer = another.append("file").await.unwrap();
    same("a writer", &writer.read_at((at * MIB) as u64, MIB).await.unwrap(), &content[at * MIB..]);
    writer.close().await.unwrap();
    std::fs::remove_file(stuck).unwrap();
    drained(&pool, &reader, "file", &content).await;
}

#[test]
fn a_chunk_is_read_once_all_that_have_none_of_its_row_were_replaced_and_its_own_is_lost() {
    for at in [0, 2] {
        run(short_row(at));
    }
}

#[test]
fn a_file_is_drained_while_it_is_written_and_places_of_its_short_rows_are_taken_over() {
    for seed in 0..2 {
        run(async {
            let mut pool = Pool::new(1, 7, 16);
            let client = client(&pool, 4, 1).await;
            let mut random = Random::from_seed(seed);
            let mut writer = client.create("file").await.unwrap();
            let mut content = Vec::new();
            for step in 0..60 {
                if random.chance(0.3) {
                    content.resize(content.len().next_multiple_of(MIB) + MIB * random.below(5) as usize, 0);
                }
                let part = bytes(random.next_u64(), 1 + random.below(3 * MIB as u64) as usize);
                writer.write_at(content.len() as u64, &part).await.unwrap();
                content.extend(part);
                writer.sync().await.unwrap();
                if step == 3 || step == 30 {
                    let inode = client.stat("file").await.unwrap().inode;
                    // None if all of it has just left the pool.
                    let Some(last) = pool.columns(inode).await.pop() else { continue };
                    pool.benefactors[last[random.below(5) as usize]].kill();
                    until("another has its place", async || pool.missing().await == 0).await;
                }
            }
            same("while it is open", &read(&client, "file").await.unwrap(), &content);
            writer.close().await.unwrap();
            drained(&pool, &client, "file", &content).await;
        });
    }
}

#[test]
fn a_file_is_not_lost_while_whoever_has_its_chunk_may_return_though_its_parity_is_damaged() {
    run(async {
        let ssds = tempfile::tempdir().unwrap();
        let mut pool = Pool::with_ssds(1, 0, disks(&ssds, 5));
        let stuck = pool.hold_drains();
        let client = client(&pool, 4, 1).await;
        let content = bytes(5, 4 * MIB);
        write(&client, "file", &content).await.unwrap();
        let inode = client.stat("file").await.unwrap().inode;
        let places = pool.columns(inode).await.remove(0);
        let parity: Vec<u8> = (0..MIB).map(|at| (0..4).fold(0, |sum, chunk| sum ^ content[chunk * MIB + at])).collect();
        for id in 0..5 {
            until("all is on SSD", async || pool.alive(id).await.credits == pool.alive(id).await.of).await;
        }
        let of_parity = ssd(&ssds, places[4]);
        until("parity is on its SSD", async || has(&of_parity, &parity[..64])).await;
        damage(&of_parity, &parity[..64]);
        pool.benefactors[places[0]].kill();
        std::fs::remove_file(stuck).unwrap();
        until("it is found", async || pool.alive(places[4]).await.damaged > 0).await;
        // What the drain says of it comes a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_ne!(client.stat("file").await.unwrap().state, Some(FileState::Failed), "nothing is lost");
        pool.restart_benefactor(places[0]);
        drained(&pool, &client, "file", &content).await;
    });
}
