//! Copies that wardens have fetched, and that nobody takes over.

use crate::support::{LONG, MIB, Pool, bytes, drained, run, until, write};
use surgetank_pool::benefactor::Benefactor;
use surgetank_pool::chunks::{self, Fence, Get, Inventory, Reply, Request};
use surgetank_pool::rpc::Peer;
use surgetank_pool::security::token::Ticket;

async fn ask(pool: &Pool, id: usize, request: Request) -> Reply {
    let peer = Peer::new(&pool.benefactors[id].address, &pool.credentials.access()).unwrap();
    peer.ask::<Benefactor>(request, LONG).await.unwrap()
}

async fn inventory(pool: &Pool, id: usize) -> Inventory {
    match ask(pool, id, Request::Inventory).await {
        Reply::Inventory(inventory) => *inventory,
        other => panic!("{other:?}"),
    }
}

/// One benefactor fetches all that another has, for a warden that ends before it has a place taken over; how many chunks.
async fn fetched_in_vain(pool: &Pool, from: usize, to: usize) -> usize {
    let (source, target) = (inventory(pool, from).await, inventory(pool, to).await);
    let sources = vec![(pool.benefactors[from].address.clone(), source.incarnation)];
    let mut fetched = 0;
    for table in source.has.tables {
        let of = (table.group, table.version, table.by);
        let get = Get { incarnation: source.incarnation, of, chunk: 0, ticket: Ticket::default() };
        let Reply::Table(table) = ask(pool, from, Request::Table(get)).await else { panic!("it has the table") };
        fetched += table.len();
        let part = table.into_iter().map(|(chunk, entry)| (chunk, entry, 0)).collect();
        let fence = Fence(pool.warden_since().await, 0);
        let copy =
            chunks::Copy { incarnation: target.incarnation, fence, mount: None, of, part, sources: sources.clone() };
        match ask(pool, to, Request::Copy(copy)).await {
            Reply::Done => {}
            other => panic!("{other:?}"),
        }
    }
    fetched
}

#[test]
fn what_was_fetched_in_vain_takes_no_room_while_a_file_is_written() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let client = pool.client(1).await;
        let content = bytes(1, 20 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        assert_eq!(fetched_in_vain(&pool, 0, 1).await, 10, "half of the file");
        until("the room is free again", async || inventory(&pool, 1).await.has.copies.is_empty()).await;
        assert_eq!(pool.alive(1).await.credits, 38);
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        write(&client, "next", b"goes on").await.unwrap();
        drained(&pool, &client, "next", b"goes on").await;
    });
}

#[test]
fn a_file_is_replicated_only_while_all_its_copies_are_at_living_benefactors() {
    run(async {
        let mut pool = Pool::new(2, 3, 48);
        let at_once = pool.repair.at_once;
        let stuck = pool.hold_drains();
        let client = pool.client(2).await;
        let mut inodes = Vec::new();
        for number in 0..12 {
            let path = format!("file{number}");
            write(&client, &path, &bytes(number, MIB + 5)).await.unwrap();
            inodes.push(client.stat(&path).await.unwrap().inode);
        }
        let files = async || client.status().await.unwrap().files;
        let whole = async || {
            let mut whole = 0;
            for inode in &inodes {
                whole += usize::from(client.is_whole(*inode, "it").await.unwrap());
            }
            whole
        };
        until("all are replicated", async || files().await[1] == 12 && whole().await == 12).await;
        for returns in [true, false] {
            // Nothing is made again before it is seen.
            pool.repair.at_once = 0;
            (0..2).for_each(|at| pool.restart_manager(at));
            pool.benefactors[0].kill();
            if returns {
                pool.restart_benefactor(0);
            }
            until("it is told that copies are lost", async || {
                let found = files().await;
                found[7] > 0 && found[1] + found[7] == 12 && whole().await < 12
            })
            .await;
            pool.repair.at_once = at_once;
            (0..2).for_each(|at| pool.restart_manager(at));
            until("all are replicated again", async || {
                let all = whole().await == 12 && files().await[1] == 12;
                assert!(!all || pool.missing().await == 0, "copies are missing");
                all
            })
            .await;
        }
        std::fs::remove_file(stuck).unwrap();
    });
}
