//! The SSD tier: its log under power cuts at every write, and pools whose benefactors return.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::disk::CutDisk;
use crate::support::{ENDING, LONG, MIB, Pool, bytes, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::benefactor::Benefactor;
use surgetank_pool::benefactor::ssd::{Directory, Disk as _, Found, Log, NotAppended, Owner};
use surgetank_pool::chunks::{Reply, Request, TableOf};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool::rpc::Peer;
use surgetank_pool_core::benefactor::Compaction;
use surgetank_pool_core::benefactor::compaction::Next;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table};
use surgetank_pool_core::benefactor::segments::At;
use surgetank_pool_core::id::{BenefactorId, Inode, SessionId, Version};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

const OWNER: Owner = Owner { pool: 77, benefactor: BenefactorId(3) };

/// A log beside what it must have.
struct Model {
    disk: Arc<CutDisk>,
    log: Log,
    random: Random,
    numbers: u64,
    /// Whatever was written, ever.
    contents: BTreeMap<Instance, Vec<u8>>,
    versions: BTreeMap<TableOf, Vec<Table>>,
    /// Flushed and not over.
    chunks: BTreeMap<Instance, At>,
    /// The same, with how many versions were written by then.
    tables: BTreeMap<TableOf, (At, usize)>,
    new_chunks: BTreeMap<Instance, At>,
    new_tables: BTreeMap<TableOf, (At, usize)>,
    /// Records that compaction has copied.
    copied: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let disk = CutDisk::new(6, 16 * 4096, seed);
        let log = Found::read(Arc::<CutDisk>::clone(&disk)).unwrap().begin(OWNER).unwrap();
        Self {
            disk,
            log,
            random: Random::from_seed(seed),
            numbers: 0,
            contents: BTreeMap::new(),
            versions: BTreeMap::new(),
            chunks: BTreeMap::new(),
            tables: BTreeMap::new(),
            new_chunks: BTreeMap::new(),
            new_tables: BTreeMap::new(),
            copied: 0,
        }
    }

    /// One thing happens; `false`: the power is cut.
    fn step(&mut self) -> bool {
        match self.random.below(14) {
            0..4 => self.chunk(),
            4..6 => self.table(),
            6 => self.flush(),
            7..11 => {
                let at = self.chunks.keys().copied().nth(self.random.below(8) as usize);
                if let Some(at) = at.and_then(|instance| self.chunks.remove(&instance)) {
                    self.log.over(at);
                }
                true
            }
            11..13 => self.compact(),
            _ => {
                let of = self.tables.keys().copied().nth(self.random.below(4) as usize);
                // One that is about to be replaced is over by that.
                if let Some(of) = of.filter(|of| !self.new_tables.contains_key(of))
                    && let Some((at, _)) = self.tables.remove(&of)
                {
                    self.log.over(at);
                    self.versions.remove(&of);
                }
                true
            }
        }
    }

    fn chunk(&mut self) -> bool {
        self.numbers += 1;
        let instance = Instance { session: SessionId(1), number: self.numbers };
        let content = bytes(self.numbers, 1 + self.random.below(7000) as usize);
        let entry = Entry { instance, length: content.len() as u32, crc: crc32c::crc32c(&content) };
        let appended = self.log.chunk(Inode(9), &entry, &content);
        self.contents.insert(instance, content);
        match appended {
            Ok(at) => drop(self.new_chunks.insert(instance, at)),
            Err(NotAppended::Full) => return self.compact(),
            Err(_) => return false,
        }
        true
    }

    fn table(&mut self) -> bool {
        let of = (GroupOf { inode: Inode(9), group: 0 }, Version(1 + self.random.below(6)), SessionId(1));
        if self.new_tables.contains_key(&of) {
            return true;
        }
        self.numbers += 1;
        let instance = Instance { session: SessionId(1), number: self.numbers };
        // Up to two blocks, which a cut may tear.
        let count = 1 + 200 * self.random.below(2) as u32;
        let table: Table = (0..count).map(|at| (at, Entry { instance, length: 1, crc: 2 })).collect();
        let versions = self.versions.entry(of).or_default();
        versions.push(table.clone());
        let count = versions.len();
        match self.log.table(of, &table) {
            Ok(at) => drop(self.new_tables.insert(of, (at, count))),
            Err(NotAppended::Full) => drop(self.versions.get_mut(&of).unwrap().pop()),
            Err(_) => return false,
        }
        true
    }

    fn flush(&mut self) -> bool {
        if !self.log.flush().is_empty() {
            return false;
        }
        self.chunks.append(&mut self.new_chunks);
        for (of, new) in std::mem::take(&mut self.new_tables) {
            // What was copied is over already.
            if let Some((former, _)) = self.tables.insert(of, new).filter(|(_, count)| *count != new.1) {
                self.log.over(former);
            }
        }
        true
    }

    /// A step of compaction, as somebody wants who waits for room.
    fn compact(&mut self) -> bool {
        if !self.flush() {
            return false;
        }
        let next = Compaction::default().next(surgetank_model::Instant::ZERO, self.log.segments(), true);
        let Next::Copy(records) = next else { return true };
        for from in records {
            let chunk = self.chunks.iter().find(|(_, at)| **at == from).map(|(instance, _)| *instance);
            let copied = if let Some(instance) = chunk {
                let content = &self.contents[&instance];
                let entry = Entry { instance, length: content.len() as u32, crc: crc32c::crc32c(content) };
                let copied = self.log.copy_chunk(from, Inode(9), &entry, content);
                copied.map(|to| {
                    self.new_chunks.insert(instance, to);
                })
            } else {
                let (of, count) =
                    self.tables.iter().find(|(_, (at, _))| *at == from).map(|(of, (_, n))| (*of, *n)).unwrap();
                let copied = self.log.copy_table(from, of, &self.versions[&of][count - 1]);
                copied.map(|to| {
                    self.new_tables.insert(of, (to, count));
                })
            };
            match copied {
                Ok(()) => self.copied += 1,
                Err(NotAppended::Full) => panic!("a copy has no room"),
                Err(_) => return false,
            }
        }
        self.flush()
    }

    /// The next life finds everything that was flushed and is not over, and nothing that was never written.
    fn check(&self, disk: Arc<CutDisk>) -> Found {
        let found = Found::read(disk).unwrap();
        for instance in self.chunks.keys() {
            assert!(found.chunks.contains_key(instance), "{instance:?} was flushed");
        }
        for (instance, (_, inode, entry)) in &found.chunks {
            let content = found.content(*instance).unwrap();
            assert_eq!((*inode, entry.length as usize), (Inode(9), content.len()));
            let is_same = self.contents.get(instance) == Some(&content);
            assert!(is_same, "{instance:?} has other bytes");
        }
        for (of, (_, count)) in &self.tables {
            // A later one that was torn hides it: it may have counted.
            let is_replaced = self.new_tables.get(of).is_some_and(|(_, new)| new != count);
            let Some((_, table)) = found.tables.get(of) else {
                assert!(is_replaced, "{of:?} was flushed");
                continue;
            };
            assert!(self.versions[of][count - 1..].contains(table), "{of:?} is an earlier one");
        }
        found
    }
}

#[test]
fn the_log_has_what_was_flushed_wherever_the_power_is_cut() {
    let times = std::env::var("SURGETANK_TIMES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    for seed in 0..6 * times {
        let steps = 260;
        let mut whole = Model::new(seed);
        assert!((0..steps).all(|_| whole.step()), "nothing fails without a cut");
        whole.check(Arc::clone(&whole.disk));
        let calls = whole.disk.calls();
        assert!(calls > 100, "run {seed} has only {calls} writes");
        assert!(whole.copied > 10, "run {seed} has only {} copies", whole.copied);
        for call in 0..calls {
            let mut cut = Model::new(seed);
            cut.disk.cut_at(call);
            assert!(!(0..steps).all(|_| cut.step()) || call + 3 > calls, "run {seed} was not cut at {call}");
            let disk = cut.disk.again(seed ^ call);
            let found = cut.check(Arc::clone(&disk));
            // The next life goes on behind it, and what the former one flushed stays.
            cut.log = found.begin(OWNER).unwrap();
            cut.disk = disk;
            (cut.new_chunks, cut.new_tables) = (BTreeMap::new(), BTreeMap::new());
            // Nobody needs the others.
            let chunks = found.chunks.iter().filter(|(instance, _)| !cut.chunks.contains_key(*instance));
            chunks.for_each(|(_, (at, ..))| cut.log.over(*at));
            let tables = found.tables.iter().filter(|(of, _)| !cut.tables.contains_key(*of));
            tables.for_each(|(_, (at, _))| cut.log.over(*at));
            for (instance, at) in &mut cut.chunks {
                *at = found.chunks[instance].0;
            }
            cut.tables.retain(|of, _| found.tables.contains_key(of));
            let of_tables: Vec<_> = cut.tables.keys().copied().collect();
            for of in of_tables {
                let (at, table) = &found.tables[&of];
                let count = 1 + cut.versions[&of].iter().position(|version| version == table).unwrap();
                cut.tables.insert(of, (*at, count));
            }
            assert!((0..60).all(|_| cut.step()), "nothing fails after the cut");
            cut.check(cut.disk.again(seed + call));
        }
    }
}

#[test]
fn a_log_is_nobody_elses_and_damage_hides_nothing_else() {
    let mut model = Model::new(1);
    while model.chunks.len() < 5 {
        assert!(model.chunk() && model.flush());
    }
    let disk = model.disk.again(1);
    let other = Owner { pool: 78, ..OWNER };
    let sentence = Found::read(Arc::<CutDisk>::clone(&disk)).unwrap().begin(other).err().unwrap().to_string();
    let expected = "SSD of a test: it has chunks of benefactor 3 of pool 4d, and this is benefactor 3 of pool 4e: name \
                    another directory, or empty this one";
    assert_eq!(sentence, expected);
    // The header of the segment, that of a record, and a record's bytes: the other records are found.
    let places: Vec<At> = model.chunks.values().copied().collect();
    let whole = |disk: &Arc<CutDisk>| Found::read(Arc::<CutDisk>::clone(disk)).unwrap();
    disk.damage(places[0].segment as usize, 40);
    assert_eq!((whole(&disk).chunks.len(), whole(&disk).damaged), (5, 1));
    disk.damage(places[0].segment as usize, 40);
    assert_eq!((whole(&disk).chunks.len(), whole(&disk).damaged), (5, 0));
    disk.damage(places[1].segment as usize, places[1].offset as usize + 50);
    assert_eq!((whole(&disk).chunks.len(), whole(&disk).damaged), (4, 1));
    disk.damage(places[2].segment as usize, places[2].offset as usize + 128);
    assert_eq!((whole(&disk).chunks.len(), whole(&disk).damaged), (3, 2));
}

#[test]
fn every_mistake_with_a_directory_is_told_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let said = |bytes: u64| Directory::with_segments(path, bytes, 1 << 20).err().unwrap().to_string();
    assert_eq!(said(3 << 20), "3 MiB of SSD make no 4 segments of 1 MiB: lend at least 4 MiB, or none");
    let first = Directory::with_segments(path, 4 << 20, 1 << 20).unwrap();
    assert_eq!((first.segments(), first.size()), (4, 1 << 20));
    let name = path.display();
    let used = format!("SSD directory {name}: another benefactor uses it; name one directory for each");
    assert_eq!(said(4 << 20), used);
    drop(first);
    // One that lends less than before keeps what is there.
    let more = Directory::with_segments(path, 6 << 20, 1 << 20).unwrap();
    drop(more);
    assert_eq!(Directory::with_segments(path, 4 << 20, 1 << 20).unwrap().segments(), 6);
    std::fs::write(path.join("00000002.chunks"), "what is this").unwrap();
    let strange = format!(
        "SSD directory {name}: 00000002.chunks has 12 bytes, and a segment has 1048576: name an empty directory, or the one that was \
         used before; if the file was cut off there, `truncate -s 1048576 {name}/00000002.chunks` makes it a segment again, without \
         what was lost"
    );
    assert_eq!(said(4 << 20), strange);
    let full = Directory::open(&path.join("huge"), 1 << 60).err().unwrap().to_string();
    assert_eq!(full, format!("SSD directory {name}/huge: there is no room for 1048576 TiB: lend less, or make room"));
    let left =
        std::fs::read_dir(path.join("huge")).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != "lock");
    assert_eq!(left.count(), 0, "what is of no use takes no room");
}

/// So many SSDs of so many MiB, whose power can be cut.
fn disks(count: usize, mib: usize) -> Vec<Option<crate::support::Disk>> {
    let disk = |seed| Some(crate::support::Disk::Cut(CutDisk::new(mib / 8, 8 * MIB, seed)));
    (0..).take(count).map(disk).collect()
}

/// The SSD of a benefactor, as its present life has it.
fn disk(pool: &Pool, id: usize) -> Arc<CutDisk> {
    match &pool.disks[id] {
        Some(crate::support::Disk::Cut(disk)) => Arc::clone(disk),
        _ => panic!("it has another"),
    }
}

/// Everything has left memory.
async fn all_moved(pool: &Pool) {
    until("everything is on SSD", async || {
        let mut all = true;
        for id in 0..pool.benefactors.len() {
            let alive = pool.alive(id).await;
            all &= alive.credits == alive.of;
        }
        all
    })
    .await;
}

#[test]
fn benefactors_return_with_what_their_ssds_have_and_drain_it() {
    run(async {
        let mut pool = Pool::with_ssds(1, 24, disks(3, 64));
        let stuck = pool.hold_drains();
        let client = pool.client(1).await;
        // More than memory has room for.
        let contents: Vec<Vec<u8>> = (0..3).map(|seed| bytes(seed, 34 * MIB + 1000 * seed as usize)).collect();
        for (number, content) in contents.iter().enumerate() {
            write(&client, &format!("file{number}"), content).await.unwrap();
        }
        all_moved(&pool).await;
        // All at once, and no copy of anything.
        (0..3).for_each(|id| pool.benefactors[id].kill());
        (0..3).for_each(|id| pool.restart_benefactor(id));
        for (number, content) in contents.iter().enumerate() {
            let path = format!("file{number}");
            same(&path, &read(&client, &path).await.unwrap(), content);
        }
        until("layouts name the new lives", async || pool.missing().await == 0).await;
        // One at a time, and a manager that has never heard of the former lives.
        for id in 0..3 {
            pool.restart_benefactor(id);
        }
        pool.restart_manager(0);
        std::fs::remove_file(stuck).unwrap();
        for (number, content) in contents.iter().enumerate() {
            let path = format!("file{number}");
            client.wait_drained(&path, LONG).await.unwrap();
            same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), content);
            client.unlink(&path).await.unwrap();
        }
        until("the SSDs are empty again", async || {
            let mut all = true;
            for id in 0..3 {
                let (free, of) = pool.alive(id).await.ssd;
                all &= free == of;
            }
            all
        })
        .await;
    });
}

#[test]
fn a_dead_benefactor_with_an_ssd_is_awaited_and_one_without_is_not() {
    run(async {
        let mut all = disks(2, 64);
        all.push(None);
        let mut pool = Pool::with_ssds(1, 24, all);
        let client = pool.client(1).await;
        let mut writers = Vec::new();
        // A file has one chunk, on one benefactor.
        for number in 0..12 {
            let mut writer = client.create(&format!("file{number}")).await.unwrap();
            writer.write(&bytes(number, 70_000)).await.unwrap();
            writer.sync().await.unwrap();
            writers.push(writer);
        }
        all_moved_but(&pool, 2).await;
        (0..3).for_each(|id| pool.benefactors[id].kill());
        for writer in writers {
            writer.close().await.unwrap();
        }
        pool.restart_benefactor(2);
        let mut kept = 0;
        // Those of the one without are named, though others before them wait: they return.
        pool.restart_benefactor(0);
        pool.restart_benefactor(1);
        for number in 0..12 {
            let path = format!("file{number}");
            match client.wait_drained(&path, LONG).await {
                Ok(()) => {
                    kept += 1;
                    same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), &bytes(number, 70_000));
                }
                Err(error) => assert!(matches!(error, Error::NotDrained(..)), "{error}"),
            }
        }
        assert!(kept > 0 && kept < 12, "{kept} of 12 were on SSD");
        // Who never returns has left: the pool does not know it by itself.
        let mut held = Vec::new();
        for number in 12..18 {
            let mut writer = client.create(&format!("file{number}")).await.unwrap();
            writer.write(&bytes(number, 70_000)).await.unwrap();
            writer.sync().await.unwrap();
            held.push(writer);
        }
        all_moved_but(&pool, 2).await;
        let config = pool.config(2);
        let alive = PoolClient::leave(&config, BenefactorId(0)).await.unwrap_err().to_string();
        assert_eq!(alive, "benefactor 0 is alive: end its process first, once nothing is left to drain");
        (0..3).for_each(|id| pool.benefactors[id].kill());
        for writer in held {
            writer.close().await.unwrap();
        }
        let within = Duration::from_secs(5);
        let mut waiting = 0;
        for number in 12..18 {
            let waited = client.wait_drained(&format!("file{number}"), within / 5).await;
            waiting += u32::from(matches!(waited, Err(Error::Timeout(..))));
        }
        assert!(waiting > 0, "those with an SSD are awaited");
        for id in [BenefactorId(0), BenefactorId(1)] {
            until("it has left", async || PoolClient::leave(&config, id).await.is_ok()).await;
        }
        for number in 12..18 {
            let waited = client.wait_drained(&format!("file{number}"), LONG).await;
            assert!(matches!(waited, Err(Error::NotDrained(..))), "{waited:?}");
        }
    });
}

async fn all_moved_but(pool: &Pool, but: usize) {
    until("everything is on SSD", async || {
        let mut all = true;
        for id in (0..pool.benefactors.len()).filter(|id| *id != but) {
            let alive = pool.alive(id).await;
            all &= alive.credits == alive.of;
        }
        all
    })
    .await;
}

#[test]
fn a_power_cut_of_everything_loses_nothing_that_was_synced() {
    let times = std::env::var("SURGETANK_TIMES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    for seed in 0..2 * times {
        run(cut_all(seed));
    }
}

async fn cut_all(seed: u64) {
    let mut random = Random::from_seed(seed);
    // One lends memory as well.
    let mut pool =
        Pool::with_ssds(1, if seed.is_multiple_of(2) { 0 } else { 24 }, disks(3, 96)).with_sessions_of(ENDING);
    let stuck = pool.hold_drains();
    let durable = pool.config_of(Durability::Copies { copies: 2, media: Media::Ssd });
    let client = Arc::new(pool.client_of(durable.clone()).await);
    let mut writers = Vec::new();
    for file in 0..3_u64 {
        let client = Arc::clone(&client);
        let synced = Arc::new(AtomicUsize::new(0));
        let content = bytes(seed * 10 + file, 20 * MIB);
        let told = (Arc::clone(&synced), content.clone());
        let task = tokio::spawn(async move {
            let mut writer = client.create(&format!("file{file}")).await?;
            let mut written = 0;
            for part in content.chunks(400_000) {
                writer.write(part).await?;
                written += part.len();
                writer.sync().await?;
                synced.store(written, Ordering::SeqCst);
            }
            writer.close().await
        });
        writers.push((task, told));
    }
    let is_some_synced = |(_, (synced, _)): &(_, (Arc<AtomicUsize>, _))| synced.load(Ordering::SeqCst) > 0;
    until("something is synced", async || writers.iter().any(is_some_synced)).await;
    tokio::time::sleep(Duration::from_millis(random.below(1200))).await;
    // The power goes everywhere at once: nobody acknowledges anything after this.
    (0..3).for_each(|id| disk(&pool, id).cut());
    (0..3).for_each(|id| pool.benefactors[id].kill());
    pool.kill_store();
    let mut synced = Vec::new();
    for (task, (synced_now, content)) in writers {
        task.abort();
        let _ = task.await;
        synced.push((synced_now.load(Ordering::SeqCst), content));
    }
    assert!(synced.iter().any(|(count, _)| *count > 0), "run {seed}: nothing was synced before the cut");
    drop(client);
    pool.disks = (0..3).map(|id| Some(crate::support::Disk::Cut(disk(&pool, id).again(seed)))).collect();
    pool.open_store();
    pool.restart_manager(0);
    (0..3).for_each(|id| pool.restart_benefactor(id));
    let client = pool.client_of(durable).await;
    let mut found = Vec::new();
    for (file, (count, content)) in synced.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
        let path = format!("file{file}");
        let now = read(&client, &path).await.unwrap_or_else(|error| panic!("run {seed}: {error}"));
        assert!(now.len() >= *count, "run {seed}: {path} has {} bytes, and {count} were synced", now.len());
        same(&path, &now, &content[..now.len()]);
        found.push((path, now));
    }
    std::fs::remove_file(stuck).unwrap();
    for (path, now) in found {
        client.wait_drained(&path, LONG).await.unwrap();
        same(&path, &std::fs::read(pool.target().join(&path)).unwrap(), &now);
    }
}

#[test]
fn a_damaged_chunk_is_never_served_and_is_made_whole_from_its_copy() {
    run(async {
        let pool = Pool::with_ssds(1, 0, disks(2, 64));
        let _stuck = pool.hold_drains();
        let client = pool.client(2).await;
        let content = bytes(5, 6 * MIB);
        write(&client, "file", &content).await.unwrap();
        all_moved(&pool).await;
        let mut damaged = 0;
        for (chunk, id) in [(1, 0), (4, 0), (2, 1)] {
            let disk = disk(&pool, id);
            let (segment, offset) = disk.find(&content[chunk * MIB..chunk * MIB + 64]).expect("it is there");
            disk.damage(segment, offset + 5000);
            damaged += 1;
        }
        let counted = async || pool.alive(0).await.damaged + pool.alive(1).await.damaged;
        until("every copy was read", async || {
            same("file", &read(&client, "file").await.unwrap(), &content);
            // Which copy is read first goes by the chunk; the repair of one reads the other.
            counted().await > 0
        })
        .await;
        let whole = async |id: usize| {
            let peer = Peer::new(&pool.benefactors[id].address, &pool.credentials.access()).unwrap();
            match peer.ask::<Benefactor>(Request::Inventory, LONG).await.unwrap() {
                Reply::Inventory(inventory) => inventory.damaged.is_empty(),
                other => panic!("{other:?}"),
            }
        };
        until("all is whole", async || whole(0).await && whole(1).await).await;
        same("file", &read(&client, "file").await.unwrap(), &content);
        assert!(counted().await <= damaged, "what was made whole is not damaged again");
    });
}

#[test]
fn a_full_ssd_is_back_pressure_and_a_broken_one_acknowledges_nothing() {
    run(async {
        let pool = Pool::with_ssds(1, 9, disks(2, 32));
        let stuck = pool.hold_drains();
        let mut config = pool.config(2);
        config.timeout = Duration::from_secs(3);
        let hasty = pool.client_of(config).await;
        let failed = write(&hasty, "large", &bytes(1, 60 * MIB)).await.unwrap_err().to_string();
        assert!(failed.contains("has no room until something is drained"), "{failed}");
        hasty.finish().await.unwrap();
        std::fs::remove_file(stuck).unwrap();
        let client = pool.client(2).await;
        // What the target has makes room.
        for seed in 0..4 {
            let path = format!("file{seed}");
            write(&client, &path, &bytes(seed, 12 * MIB)).await.unwrap();
            client.wait_drained(&path, LONG).await.unwrap();
            same(&path, &read(&client, &path).await.unwrap(), &bytes(seed, 12 * MIB));
        }
        (0..2).for_each(|id| disk(&pool, id).cut());
        let mut config = pool.config_of(Durability::Copies { copies: 2, media: Media::Ssd });
        (config.mount, config.timeout) = ("durable".to_owned(), Duration::from_secs(3));
        let durable = PoolClient::begin(config).await.unwrap();
        let failed = write(&durable, "file", b"x").await.unwrap_err();
        assert!(matches!(failed, Error::NoRoom { .. }), "{failed}");
        // Memory goes on.
        until("memory takes it", async || write(&client, "small", b"x").await.is_ok()).await;
        assert_eq!(read(&client, "small").await.unwrap(), b"x");
    });
}
