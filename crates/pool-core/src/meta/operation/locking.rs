//! The locks of a file, as sessions have them.
//!
//! One key has all of them, so that two sessions never get what excludes each other, whichever managers they ask. A session counts as long
//! as its own key is there, of which the numbers are used once: whoever is gone stays so, which needs no comparison.

use super::recorder::{Recorder, Stop};
use super::{Granted, Locking, Refusal, Reply};
use crate::id::{Inode, SessionId};
use crate::locks::Ranges;
use crate::meta::key::Key;
use crate::meta::value::{Held, Locker, Value};
use crate::planted::{Bug, planted};

impl Recorder<'_> {
    pub(super) fn lock(
        &mut self,
        inode: Inode,
        (session, number): (SessionId, u64),
        ranges: &Ranges,
        how: Locking,
    ) -> Result<Reply, Stop> {
        if self.seen(&Key::Node(inode))?.is_none() {
            return Err(Refusal::NotFound.into());
        }
        if self.seen(&Key::Session(session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        let all = match self.get(Key::Locks(inode))?.map(|stored| &stored.value) {
            Some(Value::Locks(all)) => all.clone(),
            _ => Vec::new(),
        };
        let mut others = Vec::with_capacity(all.len());
        let mut own = None;
        for locker in &all {
            if locker.session == session {
                own = Some(locker.clone());
            } else if self.seen(&Key::Session(locker.session))?.is_some() || planted(Bug::LockOutlivesSession) {
                others.push(locker.clone());
            }
        }
        let late = own.as_ref().is_some_and(|own| own.number >= number) && !planted(Bug::LateLockCounts);
        if let Some(own) = own.as_ref().filter(|_| late) {
            // It took place already, or a later one has.
            return Ok(Reply::Granted(match &own.held {
                Held::Whole => Granted::Whole,
                Held::Ranges(held) if held.has(ranges) => Granted::Ranges,
                Held::Ranges(_) => Granted::Recalled,
            }));
        }
        if how == Locking::Leave {
            return self.write_locks(inode, (session, all.is_empty()), others, Reply::Granted(Granted::Ranges));
        }
        let in_the_way = others.iter().find_map(|other| match &other.held {
            Held::Whole if !planted(Bug::WholeIgnored) => Some(Granted::Recalled),
            Held::Ranges(held) if !planted(Bug::LockedTwice) => {
                held.in_the_way_of(ranges).map(|(range, lock)| Granted::Locked(range, lock))
            }
            _ => None,
        });
        // Who returns something is in nobody's way, and needs nobody's leave.
        let in_the_way = in_the_way.filter(|_| !ranges.is_empty());
        match (in_the_way, own) {
            (Some(granted), Some(_)) => Ok(Reply::Granted(granted)),
            (Some(granted), None) => {
                // That it waits keeps others from having all locks to themselves.
                others.push(Locker { session, number: 0, held: Held::Ranges(Ranges::default()) });
                self.write_locks(inode, (session, false), others, Reply::Granted(granted))
            }
            (None, _) if how == Locking::Look => Ok(Reply::Granted(Granted::Ranges)),
            (None, _) => {
                let whole = how == Locking::Whole && others.is_empty();
                let held = if whole { Held::Whole } else { Held::Ranges(ranges.clone()) };
                others.push(Locker { session, number, held });
                let granted = if whole { Granted::Whole } else { Granted::Ranges };
                self.write_locks(inode, (session, false), others, Reply::Granted(granted))
            }
        }
    }

    fn write_locks(
        &mut self,
        inode: Inode,
        (session, nothing_before): (SessionId, bool),
        lockers: Vec<Locker>,
        reply: Reply,
    ) -> Result<Reply, Stop> {
        // Both stay as they are until it takes place: who has ended gets nothing.
        if self.stays(Key::Node(inode))?.is_none() || self.stays(Key::Session(session))?.is_none() {
            return Err(Refusal::NotFound.into());
        }
        match lockers.is_empty() {
            true if nothing_before => {}
            true => self.delete(Key::Locks(inode)),
            false => self.put(Key::Locks(inode), Value::Locks(lockers)),
        }
        Ok(reply)
    }
}
