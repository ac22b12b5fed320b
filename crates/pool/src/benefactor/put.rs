//! Chunks that come in, and wait a moment for room.

use std::sync::atomic::Ordering;
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::{self, Admission, Holdings};
use surgetank_pool_core::id::MountId;
use tokio::time::Instant;

use super::Benefactor;
use crate::chunks::{CHUNK, Put, Reply, Spare};
use crate::planted::writers::{Bug, planted};

/// How long a chunk waits here for room before its sender is told that there is none: one that is refused comes over the network again.
const ROOM: Duration = Duration::from_millis(100);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);
/// Chunks that wait here, at most: they are in memory that nobody has lent.
pub(super) const WAITING: usize = 8;

impl Benefactor {
    /// Keeps a chunk, in the room of a mount, once there is some.
    pub(super) async fn put_when_room(&self, put: Put, mount: Option<MountId>) -> Reply {
        let reply = self.put(&put, mount);
        if self.leaving || !matches!(reply, Reply::Full) {
            return reply;
        }
        let Ok(_waiting) = self.waiting.try_acquire() else { return reply };
        let until = Instant::now() + ROOM;
        loop {
            tokio::time::sleep(LOOK).await;
            match self.admit(&put, mount) {
                Reply::Full if Instant::now() < until => {}
                reply => return reply,
            }
        }
    }

    /// Keeps a chunk, in the room of a mount, if there is some.
    pub(super) fn put(&self, put: &Put, mount: Option<MountId>) -> Reply {
        let entry = put.entry;
        let length = u32::try_from(put.bytes.len()).ok();
        if self.leaving {
            return Reply::Full;
        }
        if length != Some(entry.length) || u64::from(entry.length) > CHUNK || crc32c::crc32c(&put.bytes) != entry.crc {
            return Reply::Corrupt;
        }
        self.admit(put, mount)
    }

    /// Keeps a chunk whose bytes are as they were sent.
    fn admit(&self, put: &Put, mount: Option<MountId>) -> Reply {
        let entry = put.entry;
        let asked = holdings::Put { incarnation: put.incarnation, inode: put.inode, mount, entry };
        let admission = {
            let mut holdings = self.holdings();
            // Under the lock: whoever has read that it is taken out, and then what it has, has seen everything.
            if self.is_taken_out() {
                return Reply::Stale;
            }
            holdings.put(&asked, self.free_ssd())
        };
        match admission {
            Admission::Room(piece) => {
                // SAFETY: the piece was reserved for this chunk alone, and nobody reads it before it counts as stored.
                unsafe { self.memory.write(piece, &put.bytes) };
                let mut holdings = self.holdings();
                holdings.stored(entry.instance, true);
                self.puts.fetch_add(1, Ordering::Relaxed);
                self.look_at(&holdings);
                Reply::Stored(self.spare(&holdings, mount))
            }
            Admission::Here => Reply::Stored(self.spare(&self.holdings(), mount)),
            // Whoever has withdrawn it waits for no answer.
            Admission::Stale | Admission::Withdrawn => Reply::Stale,
            Admission::UnknownSession => Reply::UnknownSession,
            Admission::Coming | Admission::Full => {
                self.look_at(&self.holdings());
                Reply::Full
            }
        }
    }

    /// What sessions of a mount are told.
    fn spare(&self, holdings: &Holdings, mount: Option<MountId>) -> Spare {
        let memory = match planted(Bug::RoomUncounted) {
            true => holdings.credits(),
            false => holdings.spare_credits(mount, self.free_ssd()),
        };
        Spare { memory, ssd: self.tier.as_ref().map(|tier| holdings.credits_on_ssd(mount, tier.room().0)) }
    }

    /// Bytes of the SSD that are free.
    pub(super) fn free_ssd(&self) -> u64 {
        self.tier.as_ref().map_or(0, |tier| tier.room().0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinHandle;

    use super::super::fixture::{self, benefactor};
    use super::*;

    fn put(number: u64) -> Put {
        fixture::put(number, 7, 1 << 20)
    }

    #[tokio::test]
    async fn few_chunks_wait_for_room_at_a_time_and_none_that_was_withdrawn_takes_it() {
        let benefactor = Arc::new(benefactor(None, None));
        let stored = (1..).take_while(|number| matches!(benefactor.put(&put(*number), None), Reply::Stored(_))).count();
        let waiting: Vec<_> = (0..WAITING as u64)
            .map(|at| {
                let benefactor = Arc::clone(&benefactor);
                tokio::spawn(async move { benefactor.put_when_room(put(100 + at), None).await })
            })
            .collect();
        while benefactor.waiting.available_permits() > 0 {
            assert!(!waiting.iter().any(JoinHandle::is_finished), "{stored} chunks take all the room");
            tokio::task::yield_now().await;
        }
        let one_more = tokio::time::timeout(Duration::ZERO, benefactor.put_when_room(put(200), None)).await;
        assert!(matches!(one_more, Ok(Reply::Full)), "it is told at once");
        // None of them has looked again, as this thread is theirs.
        benefactor.holdings().withdraw_for_good(put(100).entry.instance);
        benefactor.holdings().withdraw(put(1).entry.instance);
        let (mut took, mut full, mut stale) = (0, 0, 0);
        for waiting in waiting {
            match waiting.await.unwrap() {
                Reply::Stored(_) => took += 1,
                Reply::Full => full += 1,
                Reply::Stale => stale += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((took, full, stale), (1, WAITING - 2, 1));
        assert_eq!(benefactor.waiting.available_permits(), WAITING);
    }
}
