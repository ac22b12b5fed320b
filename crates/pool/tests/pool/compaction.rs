//! Compaction of the SSD tier's log in pools, and directories that earlier releases left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::disk::CutDisk;
use crate::support::{Disk, LONG, MIB, Pool, bytes, drained, read, run, same, until};
use surgetank_pool::benefactor::Benefactor;
use surgetank_pool::benefactor::ssd::{Directory, Found, Owner};
use surgetank_pool::chunks::{Alive, Reply, Request};
use surgetank_pool::client::{Config, PoolClient};
use surgetank_pool::rpc::Peer;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance};
use surgetank_pool_core::id::{BenefactorId, Inode, SessionId, Version};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

#[test]
fn a_directory_that_the_first_releases_wrote_is_opened_and_gone_on_with() {
    // As the release before compaction left it when it was killed, without the zeros behind it.
    let former = include_bytes!("fixtures/ssd-log-1.chunks");
    let directory = tempfile::tempdir().unwrap();
    for segment in 0..4 {
        let file = std::fs::File::create(directory.path().join(format!("{segment:08}.chunks"))).unwrap();
        if segment == 0 {
            std::io::Write::write_all(&mut &file, former).unwrap();
        }
        file.set_len(64 << 20).unwrap();
    }
    let open = || Found::read(Arc::new(Directory::as_it_is(directory.path()).unwrap())).unwrap();
    let content = |number: u64| match number {
        0 => "first contents ".repeat(400),
        1 => "second contents ".repeat(500),
        _ => "another file ".repeat(300),
    };
    let instance = |number| Instance { session: SessionId(8), number };
    let check = |found: &Found, records: u64| {
        assert_eq!((found.chunks.len() as u64, found.tables.len(), found.damaged), (records, 3, 0));
        for number in 0..records {
            assert_eq!(found.content(instance(number)).unwrap(), content(number).as_bytes());
        }
        for (inode, version, number) in [(0x0a00_0000, 1, 0), (0x0a00_0000, 2, 1), (0x0a00_0001, 1, 2)] {
            let of = (GroupOf { inode: Inode(inode), group: 0 }, Version(version), SessionId(8));
            let (_, table) = found.tables.get(&of).unwrap_or_else(|| panic!("{of:?} is there"));
            assert_eq!(table[&0].instance, instance(number));
        }
    };
    let found = open();
    check(&found, 3);
    let mut log = found.begin(Owner { pool: 0xe6ec_3d0a_0cab_f25b, benefactor: BenefactorId(0) }).unwrap();
    let entry = Entry { instance: instance(3), length: 3900, crc: crc32c::crc32c(content(3).as_bytes()) };
    let at = log.chunk(Inode(12), &entry, content(3).as_bytes()).unwrap();
    assert_eq!((at.segment, at.offset), (0, former.len() as u64), "it goes on behind what is there");
    assert!(log.flush().is_empty());
    drop((found, log));
    check(&open(), 4);
}

/// Of four segments of 8 MiB each.
fn small(seed: u64) -> Option<Disk> {
    Some(Disk::Cut(CutDisk::new(4, 8 * MIB, seed)))
}

fn durable(pool: &Pool, copies: u8) -> Config {
    pool.config_of(Durability::Copies { copies, media: Media::Ssd })
}

async fn is_whole(pool: &Pool, id: usize) -> bool {
    let peer = Peer::new(&pool.benefactors[id].address, &pool.credentials.access()).unwrap();
    match peer.ask::<Benefactor>(Request::Inventory, LONG).await.unwrap() {
        Reply::Inventory(inventory) => inventory.damaged.is_empty(),
        other => panic!("{other:?}"),
    }
}

/// Writes a file whose chunks stay, between writings of another that is written over: so each segment has one that stays. What both have.
async fn write_among_garbage(client: &PoolClient, rounds: u64, stays: usize) -> (Vec<u8>, Vec<u8>) {
    let (kept, mut last) = (bytes(1, stays * MIB), Vec::new());
    let mut writer = client.create("kept").await.unwrap();
    let mut over = client.create("over").await.unwrap();
    for round in 0..rounds {
        if let Some(part) = kept.chunks(MIB).nth(round as usize) {
            writer.write(part).await.unwrap();
            writer.sync().await.unwrap();
        }
        last = bytes(100 + round, 5 * MIB);
        over.write_at(0, &last).await.unwrap();
        over.sync().await.unwrap();
    }
    writer.close().await.unwrap();
    over.close().await.unwrap();
    (kept, last)
}

#[test]
fn a_small_ssd_takes_any_number_of_overwrites_beside_what_stays_and_readers_see_nothing_of_it() {
    run(async {
        let mut pool = Pool::with_ssds(1, 0, vec![small(1), small(2)]);
        let stuck = pool.hold_drains();
        let client = Arc::new(pool.client_of(durable(&pool, 2)).await);
        let ended = Arc::new(AtomicBool::new(false));
        let (reader, is_over) = (Arc::clone(&client), Arc::clone(&ended));
        let reading = tokio::spawn(async move {
            let (content, mut reads) = (bytes(1, 5 * MIB), 0);
            while !is_over.load(Ordering::SeqCst) {
                let found = read(&reader, "kept").await.unwrap_or_default();
                same("kept", &found, &content[..found.len()]);
                reads += u64::from(!found.is_empty());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            reads
        });
        let (kept, over) = write_among_garbage(&client, 30, 5).await;
        ended.store(true, Ordering::SeqCst);
        assert!(reading.await.unwrap() > 0);
        for id in 0..2 {
            let Alive { log, damaged, ssd: (_, of), .. } = pool.alive(id).await;
            assert!(log.copied > 0 && log.written > 4 * of, "benefactor {id}: {log:?} of {of}");
            assert_eq!(damaged, 0, "what is copied meanwhile is not taken for damaged");
        }
        (0..2).for_each(|id| pool.restart_benefactor(id));
        same("kept", &read(&client, "kept").await.unwrap(), &kept);
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "kept", &kept).await;
        drained(&pool, &client, "over", &over).await;
    });
}

#[test]
fn a_damaged_chunk_is_not_copied_as_a_good_one_and_is_repaired_from_its_copy() {
    run(async {
        let pool = Pool::scrubbed(1, 0, vec![small(3), small(4)], None);
        let stuck = pool.hold_drains();
        let client = pool.client_of(durable(&pool, 2)).await;
        let content = bytes(77, MIB);
        let mut writer = client.create("damaged").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        let Some(Disk::Cut(disk)) = &pool.disks[0] else { panic!("it is one of these") };
        let (segment, offset) = disk.find(&content[..64]).expect("it is there");
        disk.damage(segment, offset + 5000);
        // Nobody reads it but compaction.
        let (kept, over) = write_among_garbage(&client, 12, 3).await;
        until("it is found", async || pool.alive(0).await.damaged == 1).await;
        until("it is repaired", async || is_whole(&pool, 0).await).await;
        let other = &pool.benefactors[1];
        assert_eq!((pool.alive(0).await.damaged, pool.alive(1).await.damaged), (1, 0), "{}", other.address);
        same("damaged", &read(&client, "damaged").await.unwrap(), &content);
        std::fs::remove_file(stuck).unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "damaged", &content).await;
        drained(&pool, &client, "kept", &kept).await;
        drained(&pool, &client, "over", &over).await;
    });
}

#[test]
fn what_one_copy_has_of_a_damaged_segment_is_served_and_the_ssd_goes_on() {
    run(async {
        let pool = Pool::scrubbed(1, 0, vec![Some(Disk::Cut(CutDisk::new(6, 8 * MIB, 5)))], None);
        let stuck = pool.hold_drains();
        let client = pool.client_of(durable(&pool, 1)).await;
        let content = bytes(78, 2 * MIB);
        let mut writer = client.create("damaged").await.unwrap();
        writer.write(&content).await.unwrap();
        writer.sync().await.unwrap();
        let Some(Disk::Cut(disk)) = &pool.disks[0] else { panic!("it is one of these") };
        let (segment, offset) = disk.find(&content[..64]).expect("it is there");
        disk.damage(segment, offset + 5000);
        let (kept, over) = write_among_garbage(&client, 20, 3).await;
        // Which segments are worth a copy depends on how fast it is written: sooner or later this one is.
        let (mut writer, end) = (client.append("over").await.unwrap(), tokio::time::Instant::now() + LONG);
        while pool.alive(0).await.damaged == 0 {
            assert!(tokio::time::Instant::now() < end, "compaction meets what is damaged");
            writer.write_at(0, &over).await.unwrap();
            writer.sync().await.unwrap();
        }
        writer.close().await.unwrap();
        let found = client.open("damaged").await.unwrap().read_at(MIB as u64, MIB).await.unwrap();
        same("what is whole", &found, &content[MIB..]);
        assert!(read(&client, "damaged").await.is_err(), "what is damaged is read with an error");
        std::fs::remove_file(stuck).unwrap();
        drained(&pool, &client, "kept", &kept).await;
        drained(&pool, &client, "over", &over).await;
    });
}

#[test]
fn kills_amid_compaction_lose_nothing_that_a_sync_acknowledged() {
    run(async {
        for seed in 0..2 {
            let mut pool = Pool::with_ssds(1, 0, vec![small(seed), small(seed + 10)]);
            let stuck = pool.hold_drains();
            let client = Arc::new(pool.client_of(durable(&pool, 2)).await);
            let writer = Arc::clone(&client);
            let writing = tokio::spawn(async move { write_among_garbage(&writer, 24, 5).await });
            for kill in 0..6 {
                tokio::time::sleep(Duration::from_millis(150 + 90 * kill)).await;
                let id = (kill % 2) as usize;
                // Half of them lose the power as well.
                if kill >= 3
                    && let Some(Disk::Cut(disk)) = &mut pool.disks[id]
                {
                    *disk = disk.again(seed * 100 + kill);
                }
                pool.restart_benefactor(id);
            }
            let (kept, over) = writing.await.unwrap();
            same("kept", &read(&client, "kept").await.unwrap(), &kept);
            same("over", &read(&client, "over").await.unwrap(), &over);
            std::fs::remove_file(stuck).unwrap();
            drained(&pool, &client, "kept", &kept).await;
            drained(&pool, &client, "over", &over).await;
        }
    });
}
