//! Creations that rest on what a manager has read before, while another manager changes that.

use std::time::Duration;

use crate::support::etcd::Proxy;
use crate::support::etcd_server::Server;
use crate::support::{Pool, run};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::operation::Refusal;
use tokio::runtime::{Builder, Runtime};

const OWNER: (u32, u32, u32) = (0o755, 0, 0);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Two clients, each of which asks a manager of its own first.
async fn clients(pool: &Pool) -> [PoolClient; 2] {
    let mut other = pool.config(1);
    other.managers.rotate_left(1);
    [pool.client(1).await, pool.client_of(other).await]
}

async fn create(client: &PoolClient, directory: Inode, file: &str) -> Result<(), Error> {
    client.create_at((directory, name(file)), file, OWNER).await?.close().await
}

fn is(refusal: &Refusal, answer: Result<(), Error>) {
    assert!(matches!(&answer, Err(Error::Refused(_, refused)) if refused == refusal), "{answer:?}, not {refusal:?}");
}

/// What one has done, the other's manager finds, though it has read otherwise before.
async fn each_finds_what_the_other_did(pool: Pool) {
    let clients = clients(&pool).await;
    clients[0].make_directory("top").await.unwrap();
    let top = clients[0].stat("top").await.unwrap().inode;
    for round in 0..12 {
        let (one, other) = (&clients[round % 2], &clients[(round + 1) % 2]);
        let (here, there) = (format!("here{round}"), format!("there{round}"));
        let directory = one.make_directory_at((top, name(&here)), &here, OWNER).await.unwrap();
        // Both managers have read the directory and both sessions.
        create(one, directory, "own").await.unwrap();
        create(other, directory, "other").await.unwrap();
        is(&Refusal::Exists, create(one, directory, "other").await);
        is(&Refusal::Exists, create(other, directory, "own").await);
        // What is made below a directory that has moved is made where that is now.
        other.rename_at((top, name(&here)), (top, name(&there)), false, &here).await.unwrap();
        let below = one.make_directory_at((directory, name("below")), "below", OWNER).await.unwrap();
        assert_eq!(other.stat(&format!("top/{there}/below")).await.unwrap().inode, below);
        // A name that has gone is free, and nothing is made in a directory that has.
        other.unlink_at((directory, name("own")), "own").await.unwrap();
        create(one, directory, "own").await.unwrap();
        for file in ["own", "other"] {
            other.unlink_at((directory, name(file)), file).await.unwrap();
        }
        other.remove_directory_at((directory, name("below")), "below").await.unwrap();
        other.remove_directory_at((top, name(&there)), &there).await.unwrap();
        is(&Refusal::NotFound, create(one, directory, "late").await);
        is(&Refusal::NotFound, one.make_directory_at((below, name("late")), "late", OWNER).await.map(drop));
    }
}

#[test]
fn a_manager_that_has_read_a_directory_finds_what_another_has_changed_in_it() {
    run(each_finds_what_the_other_did(Pool::new(2, 1, 96)));
    let Some(pool) = Pool::over_etcd(2, 1, 96) else { return };
    run(each_finds_what_the_other_did(pool));
}

/// Of two that do the same at the same time one alone has done it.
async fn one_alone(
    one: impl Future<Output = Result<(), Error>>,
    other: impl Future<Output = Result<(), Error>>,
    but: &Refusal,
) {
    match tokio::join!(one, other) {
        (Ok(()), refused @ Err(_)) | (refused @ Err(_), Ok(())) => is(but, refused),
        answers => panic!("{answers:?}"),
    }
}

#[test]
fn one_alone_creates_a_name_and_one_alone_removes_it_though_answers_of_etcd_are_lost() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime: Runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(Proxy::start(server.address));
    let pool = Pool::over(proxy.address.to_string(), 2, 1, 96);
    run(async {
        let clients = clients(&pool).await;
        clients[0].make_directory("top").await.unwrap();
        let top = clients[0].stat("top").await.unwrap().inode;
        let [one, other] = &clients;
        let losing = async {
            loop {
                tokio::time::sleep(Duration::from_millis(150)).await;
                proxy.lose(Duration::from_millis(30)).await;
            }
        };
        let rounds = async {
            for round in 0..30 {
                let file = format!("file{}", round % 3);
                let at = || (top, name(&file));
                let creates = async |client: &PoolClient| create(client, top, &file).await;
                let makes = async |client: &PoolClient| client.make_directory_at(at(), &file, OWNER).await.map(drop);
                let unlinks = async |client: &PoolClient| client.unlink_at(at(), &file).await;
                let removes = async |client: &PoolClient| client.remove_directory_at(at(), &file).await;
                match round % 2 {
                    0 => {
                        one_alone(creates(one), creates(other), &Refusal::Exists).await;
                        one_alone(unlinks(one), unlinks(other), &Refusal::NotFound).await;
                    }
                    _ => {
                        one_alone(makes(one), makes(other), &Refusal::Exists).await;
                        one_alone(removes(one), removes(other), &Refusal::NotFound).await;
                    }
                }
            }
        };
        tokio::select! {
            () = losing => {}
            () = rounds => {}
        }
    });
}
