//! Moves chunks from memory to the log, many with one flush, and says what survives a power cut.

mod compact;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::{Effect, Entry, Instance, Table, bytes_on_ssd};
use surgetank_pool_core::benefactor::segments::{At, Report};
use surgetank_pool_core::benefactor::{Compaction, Piece, Segments};
use surgetank_pool_core::id::Inode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use self::compact::Step;
use super::super::Benefactor;
use super::log::{self, Found, Log, NotAppended, NotOurs, RECORD_MAX};
use super::{Disk, Owner};
use crate::chunks::TableOf;

/// What was put for so long is moved, though its buffer is not full.
const IDLE: Duration = Duration::from_millis(500);
/// Batches in sequence that must fail until the SSD counts as broken.
const FAILURES: u32 = 3;
/// The pause before a batch that failed is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Where things are in the log.
#[derive(Default)]
struct Index {
    chunks: BTreeMap<Instance, At>,
    tables: BTreeMap<TableOf, At>,
}

/// Tables that are to be logged.
#[derive(Default)]
struct Tables {
    wanted: BTreeSet<TableOf>,
    /// Those of which the log gets a record at this moment.
    writing: BTreeSet<TableOf>,
    /// How often one was wanted.
    asked: u64,
    /// Those of the first so many times are logged.
    done: u64,
}

/// See the module.
pub(in super::super) struct Tier {
    disk: Arc<dyn Disk>,
    log: Mutex<Log>,
    index: Mutex<Index>,
    tables: Mutex<Tables>,
    wake: Notify,
    /// It changes when a batch has ended.
    batches: watch::Sender<u64>,
    failures: AtomicU64,
    broken: AtomicBool,
    compaction: Mutex<Compaction>,
    began: Instant,
    rooms: Mutex<Rooms>,
}

/// The room of the log, in bytes.
#[derive(Clone, Copy)]
struct Rooms {
    /// That chunks can take now, or once all that is worth it is compacted; and when nothing is there.
    free: u64,
    of: u64,
    report: Report,
}

impl Rooms {
    fn new(log: &Log) -> Self {
        let segments = log.segments();
        Self { free: segments.free(), of: segments.of(), report: segments.report() }
    }
}

/// What a batch writes.
struct Batch {
    over: Vec<Instance>,
    tables_over: Vec<TableOf>,
    tables: Vec<(TableOf, Table)>,
    asked: u64,
    moves: Vec<(Instance, Piece, Inode, Entry)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tier {
    /// Goes on with what a former life left.
    pub(in super::super) fn new(disk: Arc<dyn Disk>, found: &Found, owner: Owner) -> Result<Self, NotOurs> {
        let log = found.begin(owner)?;
        let index = Index {
            chunks: found.chunks.iter().map(|(instance, (at, ..))| (*instance, *at)).collect(),
            tables: found.tables.iter().map(|(of, (at, _))| (*of, *at)).collect(),
        };
        let rooms = Mutex::new(Rooms::new(&log));
        Ok(Self {
            disk,
            log: Mutex::new(log),
            index: Mutex::new(index),
            tables: Mutex::default(),
            wake: Notify::new(),
            batches: watch::Sender::new(0),
            failures: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            compaction: Mutex::default(),
            began: Instant::now(),
            rooms,
        })
    }

    /// Bytes that it has room for, some once it is compacted, and all that it lends; a broken one lends nothing.
    pub(in super::super) fn room(&self) -> (u64, u64) {
        let Rooms { free, of, .. } = *lock(&self.rooms);
        if self.broken.load(Ordering::Relaxed) { (0, 0) } else { (free, of) }
    }

    /// How the log is.
    pub(in super::super) fn report(&self) -> Report {
        lock(&self.rooms).report
    }

    fn rooms(&self, log: &Log) {
        *lock(&self.rooms) = Rooms::new(log);
    }

    fn now(&self) -> surgetank_model::Instant {
        surgetank_model::Instant::ZERO + self.began.elapsed()
    }

    /// There may be something to do.
    pub(in super::super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// A table was sealed or has grown: it is to be logged. Its number, and whether the log has an earlier one of that name.
    pub(in super::super) fn sealed(&self, of: TableOf) -> (u64, bool) {
        let (number, is_again) = {
            let mut tables = lock(&self.tables);
            tables.asked += 1;
            let is_again = !tables.wanted.insert(of) || tables.writing.contains(&of);
            (tables.asked, is_again)
        };
        // After that: what was being written then is in the index before it counts as written.
        (number, is_again || lock(&self.index).tables.contains_key(&of))
    }

    /// A chunk's bytes, as they are: whoever asks looks at the checksum.
    pub(in super::super) fn read(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        self.read_with(entry, |at| log::content(&*self.disk, at, entry.length))
    }

    /// [`Tier::read`] of what the medium has, which leaves nothing in the system's memory.
    pub(in super::super) fn read_medium(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        self.read_with(entry, |at| {
            self.disk.uncache(at.segment, at.offset, at.length);
            let bytes = log::content(&*self.disk, at, entry.length);
            self.disk.uncache(at.segment, at.offset, at.length);
            bytes
        })
    }

    /// Reads a chunk where it is. One that was copied elsewhere meanwhile is read again, since its former place may have something else.
    fn read_with(&self, entry: &Entry, read: impl Fn(At) -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        let place = || lock(&self.index).chunks.get(&entry.instance).copied();
        loop {
            let at = place().ok_or(io::ErrorKind::NotFound)?;
            let bytes = read(at);
            if place() == Some(at) {
                return bytes;
            }
        }
    }

    /// Waits until a table is logged, and until all these chunks are; `false`: not by then, or never.
    pub(in super::super) async fn survives(
        &self,
        benefactor: &Benefactor,
        table: u64,
        chunks: &[Instance],
        until: Instant,
    ) -> bool {
        let mut batches = self.batches.subscribe();
        loop {
            batches.mark_unchanged();
            let done = lock(&self.tables).done;
            if done >= table {
                let holdings = benefactor.holdings();
                if chunks.iter().all(|instance| holdings.is_on_ssd(*instance)) {
                    return true;
                }
            }
            if self.broken.load(Ordering::Relaxed) {
                return false;
            }
            if !chunks.is_empty() && self.room().0 >= RECORD_MAX {
                benefactor.holdings().close_filling();
            }
            self.wake();
            if !matches!(tokio::time::timeout_at(until, batches.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }
}

/// Moves chunks and logs tables for ever.
pub(in super::super) async fn run(benefactor: Arc<Benefactor>) {
    let Some(tier) = &benefactor.tier else { return std::future::pending().await };
    let (mut idle, mut later) = (Instant::now() + IDLE, None);
    loop {
        let until = later.map_or(idle, |later: Instant| later.min(idle));
        let is_woken = tokio::time::timeout_at(until, tier.wake.notified()).await.is_ok();
        if !is_woken && Instant::now() >= idle && tier.room().0 >= RECORD_MAX {
            benefactor.holdings().close_filling();
        }
        if is_woken || Instant::now() >= idle {
            idle = Instant::now() + IDLE;
        }
        later = work(&benefactor, tier).await;
    }
}

/// Works until there is nothing to do; when there is again, if that is known.
async fn work(benefactor: &Arc<Benefactor>, tier: &Tier) -> Option<Instant> {
    while !tier.broken.load(Ordering::Relaxed) {
        let working = Arc::clone(benefactor);
        match tokio::task::spawn_blocking(move || working.batch_and_step()).await {
            Ok(Work::Some) => {}
            Ok(Work::None) | Err(_) => return None,
            Ok(Work::Later(pause)) => return Some(Instant::now() + pause),
            Ok(Work::Failed) => tokio::time::sleep(PAUSE).await,
        }
    }
    None
}

/// What was done.
enum Work {
    Some,
    None,
    /// There is something after so long.
    Later(Duration),
    Failed,
}

/// What came of a batch.
struct Batched {
    /// Nothing failed.
    well: bool,
    /// Something was done.
    some: bool,
    /// There was no room for all of it.
    is_short: bool,
}

impl Benefactor {
    /// Writes a batch, and compacts a little: what is new comes first.
    fn batch_and_step(&self) -> Work {
        let Some(tier) = &self.tier else { return Work::None };
        let Batched { well, some, is_short } = self.write_batch(tier);
        if !well {
            return Work::Failed;
        }
        match self.compact(tier, is_short) {
            Step::Failed => Work::Failed,
            Step::Done => Work::Some,
            _ if some => Work::Some,
            Step::Later(pause) => Work::Later(pause),
            Step::Nothing => Work::None,
        }
    }

    /// What is to be written now. A chunk has room for sure.
    fn next_batch(&self, tier: &Tier, segments: &Segments) -> Batch {
        let mut holdings = self.holdings();
        let mut room = segments.room();
        // Also what is free once the log is compacted.
        let mut free = segments.room_for(RECORD_MAX) + segments.free().saturating_sub(room);
        if room >= RECORD_MAX && !holdings.has_effects() && holdings.fills_batch() {
            holdings.close_filling();
        }
        let mut left = holdings.batch();
        let mut tables = lock(&tier.tables);
        let wanted = std::mem::take(&mut tables.wanted);
        tables.writing.clone_from(&wanted);
        let found = |of: TableOf| Some((of, holdings.table(of.0, of.1, of.2)?.clone()));
        let mut batch = Batch {
            tables: wanted.into_iter().filter_map(found).collect(),
            asked: tables.asked,
            over: Vec::new(),
            tables_over: Vec::new(),
            moves: Vec::new(),
        };
        batch.tables_over.extend(std::iter::from_fn(|| holdings.next_table_over()));
        while let Some(effect) = holdings.next_effect((left > 0 && room >= RECORD_MAX).then_some(free)) {
            match effect {
                Effect::Move(instance, piece) => {
                    let Some((inode, entry)) = holdings.record(instance) else { continue };
                    room -= RECORD_MAX;
                    left = left.saturating_sub(piece.length);
                    free = free.saturating_sub(bytes_on_ssd(entry.length));
                    batch.moves.push((instance, piece, inode, entry));
                }
                Effect::FreeSsd(instance) => batch.over.push(instance),
            }
        }
        batch
    }

    /// Writes what is to be written, flushes it, and lets everybody know.
    fn write_batch(&self, tier: &Tier) -> Batched {
        let mut log = lock(&tier.log);
        let batch = self.next_batch(tier, log.segments());
        tier.over(&mut log, &batch);
        let (mut well, mut some) = (true, !batch.over.is_empty() || !batch.tables_over.is_empty());
        let tables: Vec<_> =
            batch.tables.iter().map(|(of, table)| (*of, tier.appended(log.table(*of, table), &mut well))).collect();
        let moves: Vec<_> = batch
            .moves
            .iter()
            .map(|(instance, piece, inode, entry)| {
                let bytes = self.bytes(*piece);
                let intact = crc32c::crc32c(bytes) == entry.crc;
                (*instance, intact, intact.then(|| tier.appended(log.chunk(*inode, entry, bytes), &mut well)).flatten())
            })
            .collect();
        let failed = tier.flush(&mut log);
        let is_well = |at: &At| !failed.contains_key(&at.segment);
        well &= failed.is_empty();
        let mut again = BTreeSet::new();
        for (of, at) in tables {
            match at.filter(is_well) {
                Some(at) => {
                    let former = lock(&tier.index).tables.insert(of, at);
                    former.into_iter().for_each(|former| log.over(former));
                    some = true;
                }
                None => {
                    at.into_iter().for_each(|at| log.over(at));
                    again.insert(of);
                }
            }
        }
        let mut holdings = self.holdings();
        for (instance, intact, at) in moves {
            let moved = at.filter(is_well);
            match moved {
                Some(at) => {
                    let former = lock(&tier.index).chunks.insert(instance, at);
                    former.into_iter().for_each(|former| log.over(former));
                }
                None => at.into_iter().for_each(|at| log.over(at)),
            }
            if !intact {
                tracing::error!("a chunk is damaged in memory");
                self.damaged(&mut holdings, instance);
            }
            // One that is damaged needs no room any more.
            holdings.moved(instance, moved.is_some() || !intact);
            some |= moved.is_some() || !intact;
        }
        // What is left waits for room, as nothing else keeps it.
        let mut is_short = holdings.has_effects() && log.segments().room() < RECORD_MAX;
        drop(holdings);
        is_short |= well && !again.is_empty();
        {
            let mut tables = lock(&tier.tables);
            if again.is_empty() {
                tables.done = tables.done.max(batch.asked);
            }
            tables.wanted.extend(again);
            tables.writing.clear();
        }
        tier.rooms(&log);
        drop(log);
        tier.ended(well, some);
        Batched { well, some, is_short }
    }
}

impl Tier {
    fn over(&self, log: &mut Log, batch: &Batch) {
        let mut index = lock(&self.index);
        let Index { chunks, tables } = &mut *index;
        let chunks = batch.over.iter().filter_map(|instance| chunks.remove(instance));
        let tables = batch.tables_over.iter().filter_map(|of| tables.remove(of));
        chunks.chain(tables).for_each(|at| log.over(at));
    }

    /// Flushes the log; the segments of which that failed.
    fn flush(&self, log: &mut Log) -> BTreeMap<u32, io::Error> {
        let failed = log.flush();
        for error in failed.values() {
            tracing::error!("SSD {}: what was written is not flushed: {error}", self.disk.name());
        }
        failed
    }

    /// Where a record went; without room nowhere, which is no failure of the SSD's.
    fn appended(&self, appended: Result<At, NotAppended>, well: &mut bool) -> Option<At> {
        match appended {
            Ok(at) => Some(at),
            Err(NotAppended::Full) => None,
            Err(NotAppended::Failed(error)) => {
                tracing::error!("SSD {}: a record is not written: {error}", self.disk.name());
                *well = false;
                None
            }
        }
    }

    /// A batch has ended.
    fn ended(&self, well: bool, some: bool) {
        if well && !some {
            return;
        }
        if well {
            self.failures.store(0, Ordering::Relaxed);
        } else if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == u64::from(FAILURES) {
            let name = self.disk.name();
            tracing::error!(
                "SSD {name}: it counts as broken: chunks stay in memory, and what it has is read if it can be"
            );
            self.broken.store(true, Ordering::Relaxed);
        }
        self.batches.send_modify(|batches| *batches += 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use surgetank_pool_core::benefactor::holdings::{GroupOf, SealOrder};
    use surgetank_pool_core::id::{BenefactorId, SessionId, Version};

    use super::super::super::fixture::{self, benefactor};
    use super::*;
    use crate::chunks::Reply;

    const OF: TableOf = (GroupOf { inode: Inode(9), group: 0 }, Version(1), SessionId(1));

    /// Bytes in memory. Flushes say that they begin and wait until they may end, if somebody looks at them.
    struct Memory {
        bytes: Mutex<Vec<Vec<u8>>>,
        flushes: Option<(SyncSender<()>, Mutex<Receiver<()>>)>,
    }

    impl Memory {
        fn disk(flushes: Option<(SyncSender<()>, Mutex<Receiver<()>>)>) -> Arc<dyn Disk> {
            Arc::new(Self { bytes: Mutex::new(vec![vec![0; 8 << 20]; 8]), flushes })
        }
    }

    impl Disk for Memory {
        fn segments(&self) -> u32 {
            u32::try_from(lock(&self.bytes).len()).unwrap()
        }

        fn size(&self) -> u64 {
            lock(&self.bytes)[0].len() as u64
        }

        fn name(&self) -> String {
            "of a test".to_owned()
        }

        fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
            let from = usize::try_from(offset).unwrap();
            into.copy_from_slice(&lock(&self.bytes)[segment as usize][from..from + into.len()]);
            Ok(())
        }

        fn uncache(&self, _: u32, _: u64, _: u64) {}

        fn write(&self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
            let from = usize::try_from(offset).unwrap();
            lock(&self.bytes)[segment as usize][from..from + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn sync(&self, _: u32) -> io::Result<()> {
            if let Some((begins, may_end)) = &self.flushes {
                // Nobody looks at flushes before the test does, nor after it.
                let _ = begins.send(());
                let _ = lock(may_end).recv();
            }
            Ok(())
        }
    }

    fn put(benefactor: &Benefactor, number: u64, length: u32) -> Entry {
        let put = fixture::put(number, 7, length);
        assert!(matches!(benefactor.put(&put, None), Reply::Stored(_)));
        put.entry
    }

    #[test]
    fn an_ssd_with_nothing_to_do_takes_a_batch_before_a_buffer_is_full_and_no_more_at_a_time() {
        let disk = Memory::disk(None);
        let found = Found::read(Arc::clone(&disk)).unwrap();
        let tier = Tier::new(disk, &found, Owner { pool: 1, benefactor: BenefactorId(0) }).unwrap();
        let benefactor = benefactor(Some(tier), None);
        let tier = benefactor.tier.as_ref().unwrap();
        let is_there = |entry: &Entry| benefactor.holdings().is_on_ssd(entry.instance);
        // An eighth of a buffer of 4 MiB, but a chunk at least.
        let batch = 1 << 20;
        let few = put(&benefactor, 1, batch / 2);
        assert!(!benefactor.write_batch(tier).some && !is_there(&few), "others may come, for one flush");
        let rest = put(&benefactor, 2, batch / 2);
        let (next, last) = (put(&benefactor, 3, batch), put(&benefactor, 4, batch));
        for (moved, waiting) in [(&rest, Some(&next)), (&next, Some(&last)), (&last, None)] {
            assert!(benefactor.write_batch(tier).some);
            assert!(is_there(&few) && is_there(moved), "{moved:?}");
            assert!(waiting.is_none_or(|waiting| !is_there(waiting)), "what is written keeps its room until then");
        }
    }

    #[test]
    fn a_table_that_is_sealed_while_an_earlier_one_is_written_is_waited_for() {
        let ((begins, begun), (end, may_end)) = (sync_channel(0), sync_channel(0));
        let disk = Memory::disk(Some((begins, Mutex::new(may_end))));
        let found = Found::read(Arc::clone(&disk)).unwrap();
        let tier = std::thread::scope(|scope| {
            let beginning =
                scope.spawn(|| Tier::new(Arc::clone(&disk), &found, Owner { pool: 1, benefactor: BenefactorId(0) }));
            while !beginning.is_finished() {
                if begun.recv_timeout(Duration::from_millis(10)).is_ok() {
                    end.send(()).unwrap();
                }
            }
            beginning.join().unwrap().unwrap()
        });
        let benefactor = benefactor(Some(tier), None);
        let tier = benefactor.tier.as_ref().unwrap();
        let entry = put(&benefactor, 1, 70_000);
        let seal = |order, table| {
            benefactor.holdings().seal(OF.0, OF.1, OF.2, SealOrder(order, 0), table).unwrap();
            tier.sealed(OF).1
        };
        assert!(!seal(1, Table::from([(0, entry)])), "the log has none of that name");
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| benefactor.write_batch(tier));
            begun.recv().unwrap();
            let waits = seal(2, Table::new());
            while !writing.is_finished() {
                let _ = end.try_send(());
                let _ = begun.recv_timeout(Duration::from_millis(10));
            }
            assert!(writing.join().unwrap().well);
            assert!(waits, "a power cut may leave the first one alone");
        });
        assert!(seal(3, Table::new()), "the log has one");
        drop((begun, end));
    }
}
