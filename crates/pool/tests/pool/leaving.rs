//! Benefactors are taken out of a pool that is in use.

use surgetank_model::Bandwidth;
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::manager::{Leaving, State};
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::meta::{Durability, FileState};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::Media;

use crate::support::{Disk, LONG, MIB, Pool, bytes, drained, read, run, same, until, write};

const fn copies(copies: u8) -> Durability {
    Durability::Copies { copies, media: Media::Any }
}

async fn take_out(pool: &Pool, id: u32) -> Result<(), client::Error> {
    PoolClient::take_out(&pool.config(1), BenefactorId(id)).await
}

async fn how(pool: &Pool, id: u32) -> Option<Leaving> {
    PoolClient::leaving(&pool.config(1), BenefactorId(id)).await.expect("managers answer")
}

async fn may_go(pool: &Pool, id: u32) {
    until("it may go", async || how(pool, id).await.expect("it is taken out").may_go).await;
}

/// As the operator does it who was told that it may go.
async fn ends(pool: &mut Pool, id: u32) {
    pool.benefactors[id as usize].kill();
    until("it has left", async || PoolClient::leave(&pool.config(1), BenefactorId(id)).await.is_ok()).await;
    assert_eq!(how(pool, id).await, None, "nothing of it is left");
}

/// Files that were closed, one that is being written, and one that is open: a benefactor that has a part of all of them goes.
async fn goes(mut pool: Pool, durability: Durability) {
    let stuck = pool.hold_drains();
    let client = pool.client_of(pool.config_of(durability)).await;
    let content = |file: u64| bytes(file, 3 * MIB + 77);
    for file in 0..4 {
        write(&client, &format!("file{file}"), &content(file)).await.unwrap();
    }
    // Of this one nothing is committed, and the end of the other is not.
    let (open, longer) = (bytes(10, 4 * MIB), bytes(11, 8 * MIB));
    let mut uncommitted = client.create("open").await.unwrap();
    uncommitted.write(&open).await.unwrap();
    let mut writer = client.create("longer").await.unwrap();
    writer.write(&longer[..3 * MIB]).await.unwrap();
    writer.sync().await.unwrap();
    writer.write(&longer[3 * MIB..5 * MIB]).await.unwrap();
    take_out(&pool, 0).await.unwrap();
    // Whatever manager is asked, and however often it begins anew.
    (0..pool.managers.len()).for_each(|at| pool.restart_manager(at));
    take_out(&pool, 0).await.unwrap();
    writer.write(&longer[5 * MIB..]).await.unwrap();
    writer.close().await.unwrap();
    uncommitted.close().await.unwrap();
    may_go(&pool, 0).await;
    let inventory = pool.alive(0).await;
    assert!(inventory.leaving && inventory.taken_out);
    write(&client, "later", &content(5)).await.unwrap();
    assert!(how(&pool, 0).await.unwrap().may_go, "nothing is placed there any more");
    ends(&mut pool, 0).await;
    for file in (0..4).chain([5]) {
        let path = if file == 5 { "later".to_owned() } else { format!("file{file}") };
        same(&path, &read(&client, &path).await.unwrap(), &content(file));
    }
    same("open", &read(&client, "open").await.unwrap(), &open);
    same("longer", &read(&client, "longer").await.unwrap(), &longer);
    std::fs::remove_file(stuck).unwrap();
    for file in 0..4 {
        drained(&pool, &client, &format!("file{file}"), &content(file)).await;
    }
    drained(&pool, &client, "longer", &longer).await;
    drained(&pool, &client, "open", &open).await;
}

#[test]
fn what_only_a_benefactor_has_that_is_taken_out_is_moved_before_it_may_go() {
    run(goes(Pool::new(2, 3, 96), copies(1)));
}

#[test]
fn copies_are_moved_before_a_benefactor_may_go() {
    run(goes(Pool::new(1, 4, 96), copies(2)));
}

#[test]
fn members_of_rows_are_moved_before_a_benefactor_may_go() {
    run(goes(Pool::new(1, 4, 96), Durability::Parity("2+1".parse::<Parity>().unwrap())));
}

#[test]
fn what_is_on_ssd_is_moved_before_a_benefactor_may_go() {
    let ssds = tempfile::tempdir().unwrap();
    let disks = (0..3).map(|at| Some(Disk::Files(ssds.path().join(at.to_string()), 256 << 20))).collect();
    run(goes(Pool::with_ssds(1, 48, disks), Durability::Copies { copies: 1, media: Media::Ssd }));
}

#[test]
fn a_benefactor_that_begins_anew_while_it_is_taken_out_is_given_nothing_and_its_ssd_is_moved() {
    let ssds = tempfile::tempdir().unwrap();
    let disks = (0..3).map(|at| Some(Disk::Files(ssds.path().join(at.to_string()), 256 << 20))).collect();
    let mut pool = Pool::with_ssds(1, 48, disks);
    run(async {
        // Slow enough that it is in the middle of it.
        (pool.repair.idle, pool.repair.beside) = (Bandwidth::from_mib_s(8), Bandwidth::from_mib_s(8));
        pool.restart_manager(0);
        let stuck = pool.hold_drains();
        let client = pool.client_of(pool.config_of(Durability::Copies { copies: 1, media: Media::Ssd })).await;
        let content = |file: u64| bytes(file, 3 * MIB);
        for file in 0..12 {
            write(&client, &format!("file{file}"), &content(file)).await.unwrap();
        }
        let before = pool.alive(0).await;
        take_out(&pool, 0).await.unwrap();
        let all = how(&pool, 0).await.unwrap().groups;
        until("some are moved", async || how(&pool, 0).await.unwrap().groups < all).await;
        pool.restart_benefactor(0);
        until("it is back", async || {
            let alive = client.status().await.unwrap().states;
            alive.iter().any(|(lends, state, _)| {
                lends.place.id.0 == 0 && lends.place.incarnation > before.incarnation && *state == State::Leaving
            })
        })
        .await;
        assert!(how(&pool, 0).await.unwrap().groups > 0, "it was in the middle of it");
        may_go(&pool, 0).await;
        ends(&mut pool, 0).await;
        for file in 0..12 {
            let path = format!("file{file}");
            same(&path, &read(&client, &path).await.unwrap(), &content(file));
        }
        std::fs::remove_file(stuck).unwrap();
        for file in 0..12 {
            drained(&pool, &client, &format!("file{file}"), &content(file)).await;
        }
    });
}

#[test]
fn a_benefactor_that_dies_while_it_is_taken_out_is_replaced_as_any_other() {
    run(async {
        let mut pool = Pool::new(1, 3, 96);
        (pool.repair.idle, pool.repair.beside) = (Bandwidth::from_mib_s(8), Bandwidth::from_mib_s(8));
        pool.restart_manager(0);
        let stuck = pool.hold_drains();
        let client = pool.client(2).await;
        let content = |file: u64| bytes(file, 3 * MIB);
        for file in 0..8 {
            write(&client, &format!("file{file}"), &content(file)).await.unwrap();
        }
        take_out(&pool, 0).await.unwrap();
        let all = how(&pool, 0).await.unwrap().groups;
        until("some are moved", async || how(&pool, 0).await.unwrap().groups < all).await;
        pool.benefactors[0].kill();
        may_go(&pool, 0).await;
        assert_eq!(pool.missing().await, 0, "every copy is there");
        for file in 0..8 {
            let path = format!("file{file}");
            same(&path, &read(&client, &path).await.unwrap(), &content(file));
        }
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "file0", &content(0)).await;
    });
}

#[test]
fn who_writes_on_while_benefactors_are_taken_out_and_back_loses_nothing() {
    run(async {
        let mut pool = Pool::new(1, 3, 64);
        let client = pool.client(1).await;
        let content = bytes(1, 64 * MIB);
        let mut writer = client.create("file").await.unwrap();
        for (step, part) in content.chunks(MIB).enumerate() {
            writer.write(part).await.unwrap();
            if step % 3 == 0 {
                writer.sync().await.unwrap();
            }
            let id = u32::try_from(step / 16 % 3).unwrap();
            match step % 16 {
                // The others have room again once something is drained.
                2 => until("it is taken out", async || take_out(&pool, id).await.is_ok()).await,
                14 => PoolClient::take_back(&pool.config(1), BenefactorId(id)).await.unwrap(),
                _ => {}
            }
        }
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        // All of them are given chunks again.
        until("all are as before", async || {
            client.status().await.unwrap().states.iter().all(|(_, state, _)| *state == State::Joined)
        })
        .await;
        take_out(&pool, 0).await.unwrap();
        take_out(&pool, 1).await.unwrap();
        may_go(&pool, 0).await;
        may_go(&pool, 1).await;
        ends(&mut pool, 0).await;
        ends(&mut pool, 1).await;
        same("from the target", &read(&client, "file").await.unwrap(), &content);
        write(&client, "next", &content[..5 * MIB]).await.unwrap();
        drained(&pool, &client, "next", &content[..5 * MIB]).await;
    });
}

#[test]
fn a_benefactor_that_was_taken_back_is_given_chunks_and_commits_name_it() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let stuck = pool.hold_drains();
        drop(pool.client(1).await);
        take_out(&pool, 0).await.unwrap();
        may_go(&pool, 0).await;
        PoolClient::take_back(&pool.config(1), BenefactorId(0)).await.unwrap();
        assert_eq!(how(&pool, 0).await, None);
        let content = bytes(1, 8 * MIB);
        // Two copies need both.
        let both = PoolClient::begin(client::Config { mount: "both".to_owned(), ..pool.config(2) }).await.unwrap();
        write(&both, "file", &content).await.unwrap();
        same("file", &read(&both, "file").await.unwrap(), &content);
        std::fs::remove_file(stuck).unwrap();
        both.wait_drained("file", LONG).await.unwrap();
    });
}

#[test]
fn what_the_target_has_leaves_the_pool_when_its_benefactor_is_taken_out() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let client = pool.client(2).await;
        let content = bytes(1, 6 * MIB);
        write(&client, "file", &content).await.unwrap();
        drained(&pool, &client, "file", &content).await;
        take_out(&pool, 0).await.unwrap();
        may_go(&pool, 0).await;
        assert_eq!(client.stat("file").await.unwrap().state, Some(FileState::Evicted));
        same("from the target", &read(&client, "file").await.unwrap(), &content);
    });
}

#[test]
fn a_benefactor_is_not_taken_out_if_the_others_have_no_room_or_are_too_few() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let stuck = pool.hold_drains();
        let client = pool.client(2).await;
        write(&client, "file", &bytes(1, MIB)).await.unwrap();
        let refused = |error: client::Error| error.to_string();
        let why = refused(take_out(&pool, 0).await.unwrap_err());
        assert!(
            why.contains("cannot be taken out: mount scratch has files on their way that need 2 failure domains"),
            "{why}"
        );
        assert!(why.contains("let another benefactor join first"), "{why}");
        assert_eq!(how(&pool, 0).await, None, "it goes on as before");
        std::fs::remove_file(stuck).unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        // With one copy of everything, two domains are enough.
        let pool = Pool::new(1, 2, 24);
        let _stuck = pool.hold_drains();
        let one = pool.client(1).await;
        for file in 0..15 {
            write(&one, &format!("file{file}"), &bytes(file, 2 * MIB)).await.unwrap();
        }
        let why = refused(take_out(&pool, 0).await.unwrap_err());
        assert!(why.contains("no target has yet, and the others have room for"), "{why}");
        let why = refused(take_out(&pool, 7).await.unwrap_err());
        assert!(why.starts_with("no benefactor 7 lends"), "{why}");
    });
}
