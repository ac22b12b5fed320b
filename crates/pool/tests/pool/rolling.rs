//! A pool is restarted part by part while it is in use, as for an upgrade; and releases that speak another protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use surgetank_pool::client::PoolClient;
use surgetank_pool::manager::State;
use surgetank_pool::rpc::PROTOCOL;
use surgetank_pool::security::token::Claims;
use surgetank_pool_core::id::BenefactorId;
use tokio::task::JoinHandle;

use crate::support::{LONG, MIB, Pool, bytes, raw, read, run, same, until};

fn content(file: u64) -> Vec<u8> {
    bytes(file, 2 * MIB + 1234)
}

/// Writes one file after the other, each with a sync in the middle, until it is told to stop, and some in any case; how many. Nothing may fail.
fn writes(client: &Arc<PoolClient>, stops: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (client, stops) = (Arc::clone(client), Arc::clone(stops));
    tokio::spawn(async move {
        let mut file = 0;
        while file < 4 || !stops.load(Ordering::Relaxed) {
            let mut writer = client.create(&format!("file{file}")).await.expect("it is created");
            let content = content(file);
            writer.write(&content[..MIB + 7]).await.expect("it is written");
            writer.sync().await.expect("it is committed");
            writer.write(&content[MIB + 7..]).await.expect("it is written");
            writer.close().await.expect("it is closed");
            file += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        file
    })
}

async fn all_are_joined(pool: &Pool, client: &PoolClient) {
    until("all lend", async || {
        let states = client.status().await.unwrap().states;
        states.iter().filter(|(_, state, _)| *state == State::Joined).count() == pool.benefactors.len()
    })
    .await;
}

async fn compare(pool: &Pool, client: &PoolClient, files: u64) {
    for file in 0..files {
        let path = format!("file{file}");
        same(&path, &read(client, &path).await.unwrap(), &content(file));
        client.wait_drained(&path, LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join(&path)).unwrap(), &content(file));
    }
}

#[test]
fn every_part_of_a_pool_is_restarted_in_turn_under_a_writer_and_nothing_is_lost() {
    let mut pool = Pool::new(2, 3, 96);
    run(async {
        // Even what has one copy survives that, since benefactors are emptied first.
        let client = Arc::new(pool.client(1).await);
        let stops = Arc::new(AtomicBool::new(false));
        let writer = writes(&client, &stops);
        for at in 0..2 {
            pool.restart_manager(at);
            until("it answers", async || client.status().await.is_ok()).await;
        }
        for at in 0..3_usize {
            let id = BenefactorId(u32::try_from(at).unwrap());
            all_are_joined(&pool, &client).await;
            until("it is taken out", async || PoolClient::take_out(&pool.config(1), id).await.is_ok()).await;
            until("it may go", async || {
                PoolClient::leaving(&pool.config(1), id).await.unwrap().is_some_and(|how| how.may_go)
            })
            .await;
            pool.restart_benefactor(at);
            PoolClient::take_back(&pool.config(1), id).await.unwrap();
        }
        all_are_joined(&pool, &client).await;
        stops.store(true, Ordering::Relaxed);
        let files = writer.await.expect("nothing fails");
        compare(&pool, &client, files).await;
    });
}

#[test]
fn with_two_copies_benefactors_are_restarted_one_after_the_other_as_soon_as_nothing_is_missing() {
    let mut pool = Pool::new(1, 3, 96);
    run(async {
        let client = Arc::new(pool.client(2).await);
        let stops = Arc::new(AtomicBool::new(false));
        let writer = writes(&client, &stops);
        for at in 0..3 {
            until("nothing is missing", async || pool.missing().await == 0).await;
            pool.restart_benefactor(at);
            all_are_joined(&pool, &client).await;
        }
        until("nothing is missing", async || pool.missing().await == 0).await;
        stops.store(true, Ordering::Relaxed);
        let files = writer.await.expect("nothing fails");
        compare(&pool, &client, files).await;
    });
}

/// A status as another release asks for it: how that is answered.
async fn asked_by(pool: &Pool, protocol: Option<u32>) -> Result<(), tonic::Status> {
    let token = pool.credentials.key().token(&Claims::Member);
    let said = (Some(token.to_text()), protocol);
    raw::ask(&pool.managers[0].address, "/surgetank.pool.Manager/Status", said, vec![10]).await.map(drop)
}

#[test]
fn releases_that_speak_another_protocol_are_refused_in_one_sentence() {
    let pool = Pool::new(1, 0, 16);
    run(async {
        asked_by(&pool, Some(PROTOCOL)).await.unwrap();
        let next = format!("protocol {}", PROTOCOL + 1);
        for (other, what) in [(Some(PROTOCOL + 1), &*next), (None, "a protocol without a number")] {
            let refused = asked_by(&pool, other).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unimplemented);
            let told = refused.message();
            assert!(told.starts_with(&format!("the caller speaks {what}")), "{told}");
            assert!(told.contains("run releases of one protocol"), "{told}");
        }
    });
}
