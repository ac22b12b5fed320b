//! Reads what the benefactor has when [`Scrub`] says so, and verifies it. What is damaged counts as what a reader finds damaged does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_pool_core::benefactor::Scrub;
use surgetank_pool_core::benefactor::holdings::Location;
use surgetank_pool_core::benefactor::scrub::{Config, Next, Report};

use super::Benefactor;
use crate::chunks::Request;

/// What is looked at again after this at the latest.
const LOOK: Duration = Duration::from_secs(60);

/// A [`Scrub`] with a clock; `None` there: nothing is scrubbed. Whoever takes its lock and that of the holdings takes this one first.
pub(super) struct Scrubbing {
    began: tokio::time::Instant,
    scrub: Option<Mutex<Scrub>>,
}

impl Scrubbing {
    pub(super) fn new(config: Option<Config>) -> Arc<Self> {
        let scrub = config.map(|config| Mutex::new(Scrub::new(config)));
        Arc::new(Self { began: tokio::time::Instant::now(), scrub })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed()
    }

    fn scrub(&self) -> Option<MutexGuard<'_, Scrub>> {
        self.scrub.as_ref().map(|scrub| scrub.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request is under way until the answer is dropped; `None`: it is none that scrubbing makes way for.
    pub(super) fn request(self: &Arc<Self>, request: &Request) -> Option<Foreground> {
        let moves_bytes = match request {
            Request::Put(_) | Request::Get(_) | Request::Draft(_) => true,
            Request::Seal(_) | Request::DrainPart(_) | Request::Copy(_) => true,
            Request::Rebuild(_) | Request::DrainLost(_) | Request::SendPart(_) => true,
            Request::Table(_)
            | Request::Forget(_)
            | Request::Inventory
            | Request::Leaving(_)
            | Request::Probe
            | Request::Adopt(_) => false,
        };
        self.scrub().filter(|_| moves_bytes)?.request_began();
        Some(Foreground(Arc::clone(self)))
    }

    /// What it has come to.
    pub(super) fn report(&self) -> Report {
        self.scrub().map(|scrub| scrub.report(self.now())).unwrap_or_default()
    }
}

/// A request that is under way.
pub(super) struct Foreground(Arc<Scrubbing>);

impl Drop for Foreground {
    fn drop(&mut self) {
        let now = self.0.now();
        if let Some(mut scrub) = self.0.scrub() {
            scrub.request_ended(now);
        }
    }
}

/// Scrubs for ever.
pub(super) async fn run(benefactor: Arc<Benefactor>) {
    if benefactor.scrubbing.scrub.is_none() {
        return std::future::pending().await;
    }
    loop {
        let reading = Arc::clone(&benefactor);
        let next = tokio::task::spawn_blocking(move || reading.scrub_next()).await;
        let pause = next.unwrap_or(Some(LOOK));
        if let Some(pause) = pause {
            tokio::time::sleep(pause.min(LOOK)).await;
        }
    }
}

impl Benefactor {
    /// Reads what is to be read now; how long to wait if that is nothing.
    fn scrub_next(&self) -> Option<Duration> {
        let now = self.scrubbing.now();
        let next = self.scrubbing.scrub()?.next(now, &mut self.holdings());
        let (entry, location) = match next {
            Next::Read(entry, location) => (entry, location),
            Next::Wait(at) => return Some(at.since(now)),
        };
        let crc = match (location, &self.tier) {
            (Location::Memory(piece), _) => Ok(crc32c::crc32c(self.bytes(piece))),
            // What was written or read lately is in the system's memory, and says nothing of the medium.
            (Location::Ssd, Some(tier)) => tier.read_medium(&entry).map(|bytes| crc32c::crc32c(&bytes)),
            (Location::Ssd, None) => unreachable!("nothing is moved to an SSD that is not lent"),
        };
        let is_intact = crc.as_ref().is_ok_and(|crc| *crc == entry.crc);
        let mut scrub = self.scrubbing.scrub()?;
        let mut holdings = self.holdings();
        if scrub.read(&mut holdings, is_intact) {
            let why = crc.err().map(|error| format!(": {error}")).unwrap_or_default();
            tracing::error!("scrubbing: {:?} is damaged{why}", entry.instance);
            self.count_damaged();
        }
        self.look_at(&holdings);
        None
    }
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::benefactor::holdings::{GroupOf, Instance, SealOrder, Table};
    use surgetank_pool_core::id::{Inode, SessionId, Version};

    use super::super::fixture::{self, LIFE};
    use super::*;
    use crate::chunks::{Get, Put, Reply};
    use crate::security::token::Ticket;

    const OF: (GroupOf, Version, SessionId) = (GroupOf { inode: Inode(9), group: 0 }, Version(1), SessionId(1));

    /// It scrubs at once.
    fn benefactor() -> Arc<Benefactor> {
        let scrub = Config { period: Duration::from_nanos(1), quiet: Duration::ZERO, ..Config::default() };
        Arc::new(fixture::benefactor(None, Some(scrub)))
    }

    fn put(number: u64) -> Put {
        put_of(number, u8::try_from(number).unwrap())
    }

    fn put_of(number: u64, byte: u8) -> Put {
        fixture::put(number, byte, 70_000)
    }

    /// Changes a byte of a chunk in memory.
    fn damage(benefactor: &Benefactor, instance: Instance) {
        let mut holdings = benefactor.holdings();
        let Some((_, Location::Memory(piece))) = holdings.find_instance(instance) else { panic!("it is in memory") };
        let mut bytes = benefactor.bytes(piece).to_vec();
        bytes[500] ^= 1;
        // SAFETY: nothing else runs that could read or write it.
        unsafe { benefactor.memory.write(piece, &bytes) };
        holdings.read(instance);
    }

    /// Until a pass has ended.
    fn scrub(benefactor: &Benefactor) {
        let before = benefactor.scrubbing.report().passes;
        while benefactor.scrubbing.report().passes == before {
            if let Some(pause) = benefactor.scrub_next() {
                std::thread::sleep(pause);
            }
        }
    }

    #[test]
    fn damage_in_memory_is_found_and_what_comes_anew_takes_its_place() {
        let benefactor = benefactor();
        let puts: Vec<Put> = (1..=4).map(put).collect();
        puts.iter().for_each(|put| assert!(matches!(benefactor.put(put, None), Reply::Stored(_))));
        let table = |of: &[Put]| (0..).zip(of).map(|(at, put)| (at, put.entry)).collect::<Table>();
        benefactor.holdings().seal(OF.0, OF.1, OF.2, SealOrder::default(), table(&puts[..2])).unwrap();
        scrub(&benefactor);
        assert_eq!((benefactor.scrubbing.report().chunks, benefactor.alive().damaged), (4, 0));
        // One that a table names, and one that its session has not sealed yet.
        damage(&benefactor, puts[1].entry.instance);
        damage(&benefactor, puts[3].entry.instance);
        scrub(&benefactor);
        let report = benefactor.scrubbing.report();
        assert_eq!((report.damaged, report.last.unwrap().damaged, benefactor.alive().damaged), (2, 2, 2));
        assert_eq!(benefactor.inventory().damaged, [(OF, 1)]);
        let get = |chunk| benefactor.get(&Get { incarnation: LIFE, of: OF, chunk, ticket: Ticket::default() });
        assert!(matches!(get(0), Reply::Chunk(..)) && matches!(get(1), Reply::NotHere));
        let missing = benefactor.holdings().seal(OF.0, OF.1, OF.2, SealOrder::default(), table(&puts)).unwrap_err();
        assert_eq!(missing.0, [1, 3], "its session is told");
        [1, 3].iter().for_each(|at| assert!(matches!(benefactor.put(&puts[*at], None), Reply::Stored(_))));
        benefactor.holdings().seal(OF.0, OF.1, OF.2, SealOrder::default(), table(&puts)).unwrap();
        assert!(benefactor.inventory().damaged.is_empty());
        for (chunk, put) in (0..).zip(&puts) {
            let Reply::Chunk(_, bytes) = get(chunk) else { panic!("{chunk} is served") };
            assert_eq!(bytes, put.bytes);
        }
        scrub(&benefactor);
        assert_eq!(benefactor.scrubbing.report().last.unwrap().damaged, 0);
    }

    #[test]
    fn a_chunk_that_is_being_answered_keeps_its_room() {
        let benefactor = benefactor();
        let first = put(1);
        assert!(matches!(benefactor.put(&first, None), Reply::Stored(_)));
        let table = [(0, first.entry)].into_iter().collect::<Table>();
        benefactor.holdings().seal(OF.0, OF.1, OF.2, SealOrder::default(), table).unwrap();
        let empty = benefactor.holdings().credits();
        let get = Get { incarnation: LIFE, of: OF, chunk: 0, ticket: Ticket::default() };
        let Reply::Chunk(_, bytes) = benefactor.get(&get) else { panic!("it is served") };
        // The file ends, and others take all the room that there is.
        benefactor.holdings().forgotten(Inode(9));
        let fill = || {
            let mut instances = Vec::new();
            for number in 100..1000 {
                let next = Put { inode: Inode(10), ..put_of(number, 9) };
                match benefactor.put(&next, None) {
                    Reply::Stored(_) => instances.push(next.entry.instance),
                    Reply::Full => break,
                    other => panic!("{other:?}"),
                }
            }
            instances
        };
        let stored = fill();
        assert!(stored.len() > 100, "{} chunks were stored", stored.len());
        assert_eq!(bytes, first.bytes, "nobody has written over it");
        drop(bytes);
        stored.into_iter().for_each(|instance| benefactor.holdings().withdraw(instance));
        assert!(benefactor.holdings().credits() >= empty, "all room is there again");
    }
}
