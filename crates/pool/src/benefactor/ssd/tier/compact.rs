//! Copies records as [`Compaction`](surgetank_pool_core::benefactor::Compaction) says. The log stays locked until a step's copies are flushed,
//! so that nothing comes between them and what they are copies of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_pool_core::benefactor::compaction::Next;
use surgetank_pool_core::benefactor::holdings::{Entry, Instance};
use surgetank_pool_core::benefactor::segments::At;

use super::super::log::{self, Log};
use super::{Benefactor, Tier, lock};
use crate::chunks::TableOf;

/// What came of a step.
pub(super) enum Step {
    /// Records were copied, or it is known that they cannot be.
    Done,
    /// There is one after so long.
    Later(Duration),
    /// There is none.
    Nothing,
    Failed,
}

/// What a record is.
#[derive(Clone, Copy)]
enum Name {
    Chunk(Instance),
    Table(TableOf),
}

impl Tier {
    /// The names of records; one that is over has none.
    fn names(&self, records: Vec<At>) -> Vec<(At, Name)> {
        let records: BTreeSet<At> = records.into_iter().collect();
        let index = lock(&self.index);
        let chunks = index.chunks.iter().map(|(instance, at)| (*at, Name::Chunk(*instance)));
        let tables = index.tables.iter().map(|(of, at)| (*at, Name::Table(*of)));
        let mut names: Vec<_> = chunks.chain(tables).filter(|(at, _)| records.contains(at)).collect();
        names.sort_unstable_by_key(|(at, _)| *at);
        names
    }

    /// A chunk's bytes, if they are those that came. What the system has in memory may be wrong, so the medium is asked before it is said.
    fn whole(&self, at: At, entry: &Entry) -> Option<Vec<u8>> {
        let read = || log::content(&*self.disk, at, entry.length).ok();
        let is_whole = |bytes: &Vec<u8>| crc32c::crc32c(bytes) == entry.crc;
        read().filter(is_whole).or_else(|| {
            self.disk.uncache(at.segment, at.offset, at.length);
            read().filter(is_whole)
        })
    }
}

impl Benefactor {
    /// A step of compaction, if there is one; `wanted`: somebody waits for room.
    pub(super) fn compact(&self, tier: &Tier, wanted: bool) -> Step {
        let mut log = lock(&tier.log);
        let began = tier.now();
        let records = match lock(&tier.compaction).next(began, log.segments(), wanted) {
            Next::Copy(records) => records,
            Next::Wait(until) => return Step::Later(until.since(began)),
            Next::Nothing => return Step::Nothing,
        };
        let (mut well, mut kept, mut copies) = (true, false, BTreeMap::new());
        for (from, name) in tier.names(records) {
            match self.copy_record(tier, &mut log, (from, name), &mut well) {
                Copied::To(to) => drop(copies.insert(to, name)),
                Copied::Never => kept = true,
                Copied::NotNow => {}
            }
        }
        let failed = tier.flush(&mut log);
        well &= failed.is_empty();
        let mut some = kept;
        let mut index = lock(&tier.index);
        for (to, name) in copies.into_iter().filter(|(to, _)| !log.segments().has_failed(to.segment)) {
            some = true;
            match name {
                Name::Chunk(instance) => drop(index.chunks.insert(instance, to)),
                Name::Table(of) => drop(index.tables.insert(of, to)),
            }
        }
        drop(index);
        lock(&tier.compaction).stepped(began, tier.now());
        tier.rooms(&log);
        drop(log);
        tier.ended(well, some);
        match (well, some) {
            (false, _) => Step::Failed,
            (true, true) => Step::Done,
            (true, false) => Step::Nothing,
        }
    }

    fn copy_record(&self, tier: &Tier, log: &mut Log, (from, name): (At, Name), well: &mut bool) -> Copied {
        let to = match name {
            Name::Chunk(instance) => {
                // One that nobody needs is over with the next batch.
                let Some((inode, entry)) = self.holdings().record(instance) else { return Copied::NotNow };
                let Some(bytes) = tier.whole(from, &entry) else {
                    let mut holdings = self.holdings();
                    // It may have been replaced a moment ago: then what has come is whole.
                    if holdings.is_on_ssd(instance) {
                        tracing::error!("SSD {}: {instance:?} is damaged, and stays where it is", tier.disk.name());
                        self.damaged(&mut holdings, instance);
                    }
                    drop(holdings);
                    log.keep(from);
                    return Copied::Never;
                };
                log.copy_chunk(from, inode, &entry, &bytes)
            }
            Name::Table((of, version, by)) => {
                // What it says in memory is never older than its record.
                let Some(table) = self.holdings().table(of, version, by).cloned() else { return Copied::NotNow };
                log.copy_table(from, (of, version, by), &table)
            }
        };
        tier.appended(to, well).map_or(Copied::NotNow, Copied::To)
    }
}

enum Copied {
    To(At),
    NotNow,
    /// It is damaged.
    Never,
}
