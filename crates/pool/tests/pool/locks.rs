//! Locks of sessions: over restarts of managers, over the ends of sessions, and with several managers.

use crate::support::{ENDING, Pool, run, until, write};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::locks::{Lock, Range, Ranges};
use surgetank_pool_core::meta::operation::{Granted, Locking};

fn alone(first: u64, last: u64) -> Ranges {
    Ranges::of([(Range { first, last }, Lock::Alone)])
}

async fn lock(client: &PoolClient, inode: Inode, ranges: &Ranges) -> Granted {
    lock_more(client, inode, &Ranges::default(), ranges).await
}

async fn lock_more(client: &PoolClient, inode: Inode, had: &Ranges, ranges: &Ranges) -> Granted {
    client.lock_node(inode, had, ranges, Locking::Whole, "file").await.expect("a manager answers")
}

/// Two sessions, of which one has the locks, while managers end; then it ends without a word.
async fn over_restarts(mut pool: Pool) {
    let (one, other) = (pool.client(1).await, pool.client(1).await);
    write(&one, "file", b"content").await.unwrap();
    let inode = one.stat("file").await.unwrap().inode;
    assert_eq!(lock(&one, inode, &alone(0, 9)).await, Granted::Whole);
    let restart_all = |pool: &mut Pool| (0..pool.managers.len()).for_each(|at| pool.restart_manager(at));
    restart_all(&mut pool);
    assert_eq!(lock(&other, inode, &alone(50, 60)).await, Granted::Recalled);
    assert_eq!(one.locked_by_others(vec![inode]).await.unwrap(), [inode]);
    assert_eq!(lock(&one, inode, &alone(0, 9)).await, Granted::Ranges, "another wants some");
    assert_eq!(lock(&other, inode, &alone(50, 60)).await, Granted::Ranges);
    restart_all(&mut pool);
    let in_the_way = Granted::Locked(Range { first: 0, last: 9 }, Lock::Alone);
    assert_eq!(lock_more(&other, inode, &alone(50, 60), &alone(9, 60)).await, in_the_way);
    // What was asked for and is locked changes nothing of what a session has.
    let refused = lock_more(&one, inode, &alone(0, 9), &alone(0, 50)).await;
    assert_eq!(refused, Granted::Locked(Range { first: 50, last: 60 }, Lock::Alone));
    assert_eq!(other.locked_by_others(vec![inode]).await.unwrap(), [inode]);
    one.leave_locks(inode, "file").await.unwrap();
    assert_eq!(lock(&other, inode, &alone(0, 60)).await, Granted::Whole);
    assert_eq!(lock(&one, inode, &alone(0, 0)).await, Granted::Recalled);
    drop(other);
    until("the locks of a session that is over are free", async || {
        lock(&one, inode, &alone(0, 0)).await == Granted::Whole
    })
    .await;
    one.finish().await.unwrap();
    let refused = one.lock_node(inode, &Ranges::default(), &alone(0, 0), Locking::Whole, "file").await;
    assert!(matches!(refused, Err(Error::SessionEnded(_))), "{refused:?}");
}

#[test]
fn a_lock_outlasts_managers_and_ends_with_its_session() {
    run(over_restarts(Pool::new(1, 1, 16).with_sessions_of(ENDING)));
}

#[test]
fn several_managers_over_etcd_never_grant_a_lock_twice() {
    let Some(pool) = Pool::over_etcd(2, 1, 16) else { return };
    run(over_restarts(pool.with_sessions_of(ENDING)));
    let Some(pool) = Pool::over_etcd(2, 1, 16) else { return };
    run(async move {
        // Each client asks another manager first.
        let mut clients = Vec::new();
        for first in 0..2 {
            let mut config = pool.config(1);
            config.managers.rotate_left(first);
            clients.push(pool.client_of(config).await);
        }
        write(&clients[0], "file", b"content").await.unwrap();
        let inode = clients[0].stat("file").await.unwrap().inode;
        let (low, high) = (alone(0, 9), alone(5, 19));
        for _ in 0..40 {
            let (one, other) = tokio::join!(lock(&clients[0], inode, &low), lock(&clients[1], inode, &high));
            let has = |granted| matches!(granted, Granted::Whole | Granted::Ranges);
            assert!(!(has(one) && has(other)), "{one:?} and {other:?}");
            assert!(has(one) || has(other), "{one:?} and {other:?}");
            for client in &clients {
                client.leave_locks(inode, "file").await.unwrap();
            }
        }
    });
}
