//! What a correct device may answer: a naive model per 512-byte sector.
//!
//! Every write, discard and write-zeroes is a *version* with a span of oracle time, submission to reply. For each
//! sector the oracle keeps the versions that it may hold:
//! - a version is *live* while no write that was submitted after its completion has completed: reads may return it;
//!   writes in flight together stay live together until a read tells which won;
//! - a version that is not live may still come back after a power cut, until a *durable* version supersedes it;
//! - a read that returned a version fixes the sector: what lost may not come back (re-reads are stable), except by a
//!   power cut when the winner was not durable.

mod loss;

use self::loss::Loss;
use crate::content::{self, Found, SECTOR};

/// In flight: has not completed.
const NEVER: u32 = u32::MAX;
/// Content that the device held before the run: always version 0.
const INITIAL: u32 = 0;
/// Zeroes that the backing volume brought when it grew: always version 1.
const GROWN: u32 = 1;

/// Names one write, discard or write-zeroes.
pub type Version = u32;

/// A moment of the oracle; grows with every call.
pub type Moment = u32;

#[derive(Clone, Copy, Debug)]
struct Op {
    submitted: Moment,
    completed: Moment,
    first: u32,
    count: u32,
    zero: bool,
    durable: bool,
    /// It must be durable after the next flush: acknowledged, or seen after a crash.
    acknowledged: bool,
}

/// A version that a sector may hold.
#[derive(Clone, Copy, Debug)]
struct Entry {
    version: Version,
    /// 0 while live; else since when it is not.
    superseded_at: Moment,
    /// The version that a read showed in its place, if any (0: none).
    superseded_by: Version,
    /// When it was complete at the latest.
    completed: Moment,
}

/// Why an answer is wrong. The text names device, sector, and what was allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(pub String);

/// The model of one device. See the module.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    now: Moment,
    ops: Vec<Op>,
    /// The version of sectors that have just one.
    settled: Vec<Version>,
    /// Index into `lists` plus one, for sectors with several versions; 0 for settled ones.
    open: Vec<u32>,
    lists: Vec<Vec<Entry>>,
    free: Vec<u32>,
    /// Acknowledged and not durable.
    unflushed: Vec<Version>,
    reads: Vec<Moment>,
    loss: Vec<Loss>,
    /// Sectors that are being discarded.
    condemned: Vec<bool>,
    any_loss: bool,
    lost_at: Moment,
}

impl Oracle {
    /// A device of `sectors` sectors that holds version 0: zeroes, or the content that `content::fill` makes of
    /// version 0 when `filled`.
    #[must_use]
    pub fn new(seed: u64, sectors: u32, filled: bool) -> Self {
        let initial = Op {
            submitted: 0,
            completed: 0,
            first: 0,
            count: sectors,
            zero: !filled,
            durable: true,
            acknowledged: true,
        };
        let grown = Op { count: 0, zero: true, ..initial };
        Self {
            seed,
            now: 1,
            ops: vec![initial, grown],
            settled: vec![INITIAL; sectors as usize],
            open: vec![0; sectors as usize],
            lists: Vec::new(),
            free: Vec::new(),
            unflushed: Vec::new(),
            reads: Vec::new(),
            loss: Vec::new(),
            condemned: Vec::new(),
            any_loss: false,
            lost_at: 0,
        }
    }

    fn step(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Sectors of the device.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.settled.len() as u32
    }

    /// The bytes of a version of these sectors, as the application writes them.
    pub fn fill(&self, version: Version, first: u32, out: &mut [u8]) {
        for (index, sector) in out.chunks_exact_mut(SECTOR).enumerate() {
            content::fill(self.seed, u64::from(first) + index as u64, version, sector);
        }
    }

    fn list(&mut self, sector: u32) -> &mut Vec<Entry> {
        if self.open[sector as usize] == 0 {
            let slot = self.free.pop().unwrap_or_else(|| {
                self.lists.push(Vec::new());
                self.lists.len() as u32 - 1
            });
            let version = self.settled[sector as usize];
            let completed = self.ops[version as usize].completed;
            self.lists[slot as usize].push(Entry { version, superseded_at: 0, superseded_by: 0, completed });
            self.open[sector as usize] = slot + 1;
        }
        let slot = self.open[sector as usize] as usize - 1;
        &mut self.lists[slot]
    }

    /// A write (or with `zero` a discard or write-zeroes) is submitted.
    pub fn begin_write(&mut self, first: u32, count: u32, zero: bool) -> Version {
        let submitted = self.step();
        let version = self.ops.len() as u32;
        let op = Op { submitted, completed: NEVER, first, count, zero, durable: false, acknowledged: false };
        self.ops.push(op);
        for sector in first..first + count {
            let entry = Entry { version, superseded_at: 0, superseded_by: 0, completed: NEVER };
            self.list(sector).push(entry);
        }
        version
    }

    /// The write was answered. A failed one may have happened or not, sector by sector.
    pub fn end_write(&mut self, version: Version, ok: bool, fua: bool) {
        let now = self.step();
        let op = &mut self.ops[version as usize];
        op.completed = now;
        op.acknowledged = ok;
        op.durable = ok && fua;
        let (submitted, sectors) = (op.submitted, op.first..op.first + op.count);
        if ok && !fua {
            self.unflushed.push(version);
        }
        for sector in sectors {
            let slot = self.open[sector as usize] as usize - 1;
            for entry in &mut self.lists[slot] {
                if entry.version == version {
                    entry.completed = now;
                } else if ok && entry.superseded_at == 0 && entry.completed < submitted {
                    entry.superseded_at = now;
                }
            }
            if ok && self.any_loss {
                self.heal(sector);
            }
            self.prune(sector);
        }
    }

    /// A read is submitted; give the moment to `end_read` or `drop_read`.
    pub fn begin_read(&mut self) -> Moment {
        let now = self.step();
        self.reads.push(now);
        now
    }

    /// The read was not answered with data.
    pub fn drop_read(&mut self, read: Moment) {
        self.reads.retain(|&other| other != read);
    }

    /// The read was answered with these bytes.
    ///
    /// # Errors
    /// If a sector holds what it must not.
    pub fn end_read(&mut self, read: Moment, first: u32, bytes: &[u8]) -> Result<(), Wrong> {
        self.drop_read(read);
        self.step();
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            self.check(read, sector, bytes)?;
        }
        Ok(())
    }

    /// Checks bytes that nothing is writing to now, for example the backing volume's.
    ///
    /// # Errors
    /// If a sector holds what it must not.
    pub fn check_now(&mut self, first: u32, bytes: &[u8]) -> Result<(), Wrong> {
        let read = self.begin_read();
        self.end_read(read, first, bytes)
    }

    fn check(&mut self, read: Moment, sector: u32, bytes: &[u8]) -> Result<(), Wrong> {
        let found = content::identify(self.seed, bytes);
        if self.any_loss && self.loss[sector as usize].is_open() {
            let lost = self.check_lost(self.loss[sector as usize], sector, found);
            // Otherwise what is right without the loss is right with it too: a write in flight when the cache failed is
            // rescued with whole blocks, and a read from before the loss may bring what was right then.
            if lost.is_ok() || self.loss[sector as usize] == Loss::Accepted && read > self.lost_at {
                return lost;
            }
        }
        if self.any_loss
            && let Loss::Healed { accepted: true, at } = self.loss[sector as usize]
            && read < at
            && self.check_lost(Loss::Accepted, sector, found).is_ok()
        {
            return Ok(());
        }
        if self.open[sector as usize] == 0 {
            let version = self.settled[sector as usize];
            return if self.matches(version, sector, found) { Ok(()) } else { Err(self.wrong(read, sector, found)) };
        }
        let slot = self.open[sector as usize] as usize - 1;
        let mut winner = None;
        let mut winners = 0;
        let mut complete_by = 0;
        for entry in &self.lists[slot] {
            let allowed = entry.superseded_at == 0 || entry.superseded_at > read;
            if allowed && self.matches(entry.version, sector, found) {
                winner = Some(entry.version);
                winners += 1;
                complete_by = complete_by.max(entry.completed);
            }
        }
        let Some(winner) = winner else { return Err(self.wrong(read, sector, found)) };
        let by = if winners == 1 { winner } else { 0 };
        let mut list = std::mem::take(&mut self.lists[slot]);
        for entry in &mut list {
            if !self.matches(entry.version, sector, found) && entry.completed < read {
                if entry.superseded_at == 0 {
                    entry.superseded_at = self.now;
                }
                entry.superseded_by = by;
                entry.completed = entry.completed.min(complete_by);
            }
        }
        self.lists[slot] = list;
        self.prune(sector);
        Ok(())
    }

    fn matches(&self, version: Version, sector: u32, found: Found) -> bool {
        match found {
            Found::Zero => self.ops[version as usize].zero,
            Found::Written { sector: of, version: by } => {
                of == u64::from(sector) && by == version && !self.ops[version as usize].zero
            }
            Found::Foreign => false,
        }
    }

    fn wrong(&self, read: Moment, sector: u32, found: Found) -> Wrong {
        let describe = |version: Version, live: bool| {
            let op = &self.ops[version as usize];
            let kind = if op.zero { "zeroes" } else { "data" };
            let durable = if op.durable { " durable" } else { "" };
            let live = if live { " live" } else { "" };
            let (from, to) =
                (op.submitted, if op.completed == NEVER { "in flight".into() } else { op.completed.to_string() });
            format!("v{version} ({kind}{durable}{live}, [{from}, {to}], sectors {}+{})", op.first, op.count)
        };
        let allowed: Vec<String> = match self.open[sector as usize] {
            0 => vec![describe(self.settled[sector as usize], true)],
            slot => {
                let list = &self.lists[slot as usize - 1];
                list.iter().map(|e| describe(e.version, e.superseded_at == 0 || e.superseded_at > read)).collect()
            }
        };
        let found = match found {
            Found::Zero => "zeroes".to_owned(),
            Found::Foreign => "bytes that nobody wrote (torn or foreign)".to_owned(),
            Found::Written { sector: of, version } if of == u64::from(sector) => match self.ops.get(version as usize) {
                Some(_) => describe(version, false),
                None => format!("unknown v{version}"),
            },
            Found::Written { sector: of, version } => format!("v{version} of sector {of}"),
        };
        Wrong(format!(
            "sector {sector}: read (since {read}, now {}) found {found}; it may hold the live ones of: {}",
            self.now,
            allowed.join(", ")
        ))
    }

    /// A flush is submitted; give the moment to `end_flush`.
    pub fn begin_flush(&mut self) -> Moment {
        self.step()
    }

    /// The flush succeeded: everything acknowledged before its submission is durable.
    ///
    /// # Errors
    /// If some of that is lost, and no flush has failed since.
    pub fn end_flush(&mut self, flush: Moment) -> Result<(), Wrong> {
        self.step();
        if self.any_loss {
            let lost = self
                .unflushed
                .iter()
                .find(|&&version| self.ops[version as usize].completed < flush && self.lost_sector(version).is_some());
            if let Some(sector) = lost.and_then(|&version| self.lost_sector(version)) {
                return Err(Wrong(format!(
                    "a flush succeeds, but sector {sector}, written before it and never flushed, is lost"
                )));
            }
        }
        let unflushed = std::mem::take(&mut self.unflushed);
        let (durable, rest): (Vec<_>, Vec<_>) =
            unflushed.into_iter().partition(|&version| self.ops[version as usize].completed < flush);
        self.unflushed = rest;
        for &version in &durable {
            self.ops[version as usize].durable = true;
        }
        for version in durable {
            let op = &self.ops[version as usize];
            for sector in op.first..op.first + op.count {
                self.prune(sector);
            }
        }
        Ok(())
    }

    /// A flush failed, of a volume that forgets then: what was acknowledged before is promised no more.
    pub fn fail_flush(&mut self) {
        self.step();
        self.unflushed.clear();
    }

    /// The same of one write, which was in flight then.
    pub fn drop_promise(&mut self, version: Version) {
        self.unflushed.retain(|&other| other != version);
    }

    /// Whether the application takes these bytes of a sector, which it has written, for durable after its next flush.
    #[must_use]
    pub fn is_relied_on(&self, sector: u32, bytes: &[u8]) -> bool {
        let found = content::identify(self.seed, bytes);
        let covers = |op: &Op| (op.first..op.first + op.count).contains(&sector);
        let relied = |version: Version| covers(&self.ops[version as usize]) && self.matches(version, sector, found);
        self.unflushed.iter().any(|&version| relied(version))
    }

    /// The device has grown: what is new reads as zeroes.
    pub fn grow(&mut self, sectors: u32) {
        self.settled.resize(sectors as usize, GROWN);
        self.open.resize(sectors as usize, 0);
        if self.any_loss {
            self.loss.resize(sectors as usize, Loss::No);
            self.condemned.resize(sectors as usize, false);
        }
    }

    /// Drops what no longer matters: versions that are neither live (nor visible to a read in flight) nor can come
    /// back, because a durable one supersedes them.
    fn prune(&mut self, sector: u32) {
        let Some(slot) = (self.open[sector as usize] as usize).checked_sub(1) else { return };
        let oldest_read = self.reads.first().copied().unwrap_or(NEVER);
        let ops = &self.ops;
        let mut list = std::mem::take(&mut self.lists[slot]);
        loop {
            let durable = list.iter().map(|entry| &ops[entry.version as usize]).filter(|op| op.durable);
            let barrier = durable.map(|op| op.submitted).max().unwrap_or(0);
            let dead = list.iter().position(|entry| {
                let beaten = entry.superseded_by != 0 && ops[entry.superseded_by as usize].durable;
                let gone = entry.superseded_at != 0 && entry.superseded_at < oldest_read;
                gone && (entry.completed < barrier || beaten)
            });
            let Some(dead) = dead else { break };
            let entry = list.remove(dead);
            for other in &mut list {
                // What lost to the removed one has lost to its successor too; the removed one was complete by then.
                if other.superseded_by == entry.version && entry.version != 0 {
                    other.superseded_by = entry.superseded_by;
                    other.completed = other.completed.min(entry.completed);
                }
            }
        }
        if let [only] = list[..]
            && self.ops[only.version as usize].durable
            && only.superseded_at == 0
        {
            self.settled[sector as usize] = only.version;
            self.open[sector as usize] = 0;
            self.free.push(slot as u32);
            list.clear();
        }
        self.lists[slot] = list;
    }

    /// The daemon crashed: what was acknowledged stays; what was in flight may have happened or not.
    pub fn daemon_crash(&mut self) {
        self.reads.clear();
        let now = self.step();
        self.end_in_flight(now);
    }

    /// The power failed: what is durable stays; of the rest, anything may have survived.
    pub fn power_cut(&mut self) {
        self.reads.clear();
        let now = self.step();
        self.end_in_flight(now);
        self.unflushed.clear();
        for sector in 0..self.loss.len() as u32 {
            let Loss::Healed { accepted, .. } = self.loss[sector as usize] else { continue };
            // After an accepted loss writes are ordinary ones; before, they are durable when they are acknowledged.
            if accepted && self.may_be_older(sector) {
                self.loss[sector as usize] = Loss::Accepted;
            } else if !accepted && !self.healed_by(sector, |op| op.acknowledged) {
                self.loss[sector as usize] = Loss::Lost;
            }
        }
        for sector in 0..self.sectors() {
            let Some(slot) = (self.open[sector as usize] as usize).checked_sub(1) else { continue };
            for entry in &mut self.lists[slot] {
                *entry = Entry { version: entry.version, superseded_at: 0, superseded_by: 0, completed: now };
                // Whatever is there now is on the media.
                self.ops[entry.version as usize].durable = true;
            }
            self.prune(sector);
        }
    }

    fn end_in_flight(&mut self, now: Moment) {
        for list in &mut self.lists {
            for entry in list.iter_mut().filter(|entry| entry.completed == NEVER) {
                entry.completed = now;
                self.ops[entry.version as usize].completed = now;
            }
        }
    }
}

#[cfg(test)]
mod tests;
