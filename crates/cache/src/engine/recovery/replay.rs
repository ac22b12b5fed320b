//! What was read of a log becomes the engine's state, or shows what is missing.

use std::ops::Range;

use super::super::failure::Unknown;
use super::super::{Boost, Engine, EngineStage, Event};
use super::Recovery;
use crate::format::{BLOCK, Content, Flaw, Gap, IN_FLIGHT_BLOCKS_MAX, Layout, Place, Records};
use crate::index::{Bulk, Change, Extent, ExtentState, Kind};
use crate::planted::{Bug, planted};
use crate::ranges::RangeSet;
use crate::space::{Indexed, Space};

const BLOCK64: u64 = BLOCK as u64;

impl Engine {
    /// Everything is read: the device goes on with what was found. `sound`: the volume can be written, too.
    pub(in crate::engine) fn replay(&mut self, sound: bool) {
        let Some(mut recovery) = self.recovery.take() else { return };
        let unknown = recovery.unknown;
        let marked = recovery.marked();
        // What repeats a record that cannot be read may be freed before what that record covers: nothing is to be freed.
        let repeated = recovery.repeats.values().any(|repeats| !repeats.is_empty());
        let segments = recovery.superblock.as_ref().map_or(0, |superblock| superblock.segments);
        let indexed: Vec<bool> = (0..segments).map(|segment| recovery.is_indexed(segment)).collect();
        let cut_short = recovery.gaps().next().is_some();
        let Recovery { attach, restoring, superblock: Some(superblock), table, ref mut found, .. } = recovery else {
            return;
        };
        self.recovery_attempts = 0;
        self.unrecovered_since = None;
        let mut found: Vec<Records> = std::mem::take(found).into_values().collect();
        found.sort_unstable_by_key(Records::order);
        if planted(Bug::OlderRecordWins) {
            found.reverse();
        }
        let generations: Vec<u32> = table.iter().flat_map(|page| page.generations.iter().copied()).collect();
        let mut space = Space::new(superblock.geometry(), |segment| generations[segment as usize]);
        found.iter().filter(|records| !records.is_empty()).for_each(|records| {
            let has_index = indexed[records.segment as usize];
            space.restore(records.segment, records.order(), if has_index { Indexed::Marked } else { Indexed::No });
            space.add_tombstones(records.segment, records.tombstones);
        });
        space.listed(superblock.unindexed.as_deref());
        let sequences = table.iter().map(|page| page.sequence).collect();
        let mut boost = Boost::new(self.now, attach, superblock, sequences, space);
        boost.durable = marked;
        if !sound {
            // A superblock may have been written, and not made durable.
            boost.superblock_written = Some(u64::MAX);
        }
        boost.durable_frozen = cut_short || self.cache_forgot;
        let last = found.iter().filter_map(|records| {
            let (sequence, position) = records.last()?;
            let generation = generations[records.segment as usize];
            Some(Place { sequence, segment: records.segment, generation, position })
        });
        boost.last_record = last.max_by_key(|place| place.sequence);
        boost.last_appended = boost.last_record;
        let missing = unknown.map(|(sequence, _)| sequence);
        let mut newer = RangeSet::default();
        let mut bulk = Bulk::default();
        // Each goes as soon as it is replayed: they take as much memory as the index that comes of them.
        for records in found {
            boost.next_sequence = boost.next_sequence.max(records.sequence_max + 1);
            let all_durable = indexed[records.segment as usize];
            boost.replay(&records, restoring || all_durable, missing, &mut newer, &mut bulk);
        }
        let Boost { index, space, .. } = &mut boost;
        bulk.fill(index, |change| match change {
            Change::Added(extent) => {
                space.added(&extent);
                space.bad += if extent.state == ExtentState::Bad { u64::from(extent.blocks) } else { 0 };
            }
            Change::Covered { old, by } => space.removed(&old, Some(space.segment_of(by.location))),
        });
        space.segments.iter_mut().for_each(|segment| segment.chunks.shrink_to_fit());
        boost.trouble.unknown = missing.map(|_| Unknown { newer });
        // A superblock outlives the records that it speaks of: what it says of them must not be taken for said of new ones.
        let spoken_of = boost.superblock.void.iter().copied().chain(boost.superblock.last.map(|last| last.sequence));
        if !planted(Bug::SequencesReused) {
            let next = boost.next_sequence.max(marked + 1);
            boost.next_sequence = spoken_of.fold(next, |next, sequence| next.max(sequence + 1));
        }
        if !boost.durable_frozen {
            boost.durable = boost.next_sequence - 1;
        }
        if restoring {
            self.restore_only(&mut boost);
        }
        let dirty_bytes = boost.space.dirty * BLOCK64;
        let whole = boost.space.bad == 0 && boost.trouble.unknown.is_none();
        self.boost = Some(boost);
        self.abandon_step();
        self.retry_waiting = true;
        self.needs_pump = true;
        if restoring {
            self.stage = EngineStage::Failing;
            return;
        }
        self.stage = EngineStage::Drain;
        self.events.push_back(Event::Recovered { dirty_bytes });
        if !whole || !sound || repeated || self.cache_forgot {
            self.cache_failing();
        }
    }

    /// Of a volume that was lost only the lost ranges are wanted, and of those not what is being overwritten.
    fn restore_only(&mut self, boost: &mut Boost) {
        let mut only = self.loss.as_ref().map_or_else(RangeSet::default, |loss| loss.ranges().clone());
        if planted(Bug::RestoreOverHealed) {
            only.insert(0..self.config.size);
        }
        for (start, end) in &self.locks {
            only.remove(&(start * BLOCK64..end * BLOCK64));
        }
        let unwanted: Vec<Range<u64>> = boost
            .index
            .iter()
            .flat_map(|extent| {
                let mut unwanted: RangeSet = std::iter::once(extent.block..extent.end()).collect();
                let bytes = extent.block * BLOCK64..extent.end() * BLOCK64;
                for (piece, wanted) in only.pieces(&bytes) {
                    if wanted {
                        unwanted.remove(&(piece.start / BLOCK64..piece.end.div_ceil(BLOCK64)));
                    }
                }
                unwanted.iter().collect::<Vec<_>>()
            })
            .collect();
        let Boost { index, space, .. } = boost;
        for blocks in unwanted {
            index.replace(blocks, None, |old| space.removed(&old, None));
        }
        boost.trouble.only = Some(only);
    }
}

impl Recovery {
    /// Records that others name and that are neither here nor freed.
    fn gaps(&self) -> impl Iterator<Item = Gap> + '_ {
        self.breaks().filter(|gap| !self.is_void(gap.place.sequence))
    }

    /// Whether nothing in a record was ever acknowledged.
    pub(super) fn is_void(&self, sequence: u64) -> bool {
        self.superblock.as_ref().is_some_and(|superblock| superblock.void.contains(&sequence))
    }

    /// Whether another record stands where this one was to be.
    fn is_overwritten(&self, place: Place) -> bool {
        self.found.get(&place.segment).is_some_and(|records| records.covers(place.position))
    }

    /// The same, with those that never were written: all that cannot name the record before them.
    fn breaks(&self) -> impl Iterator<Item = Gap> + '_ {
        let missing = |place: Place| Gap { place, unreadable: self.is_unreadable(place.segment, place.position) };
        let last = self.superblock.iter().filter_map(|superblock| superblock.last);
        let last = last.filter(|place| !self.is_known(place)).map(missing);
        let between = self.found.values().flat_map(move |records| {
            let across = records.previous.filter(|place| !self.is_known(place)).map(missing);
            records.gaps.iter().copied().chain(across)
        });
        last.chain(between)
    }

    /// Records up to this sequence were durable.
    pub(super) fn marked(&self) -> u64 {
        if planted(Bug::DurableMarkIgnored) {
            return 0;
        }
        let marked = self.found.values().map(|records| records.durable);
        marked.chain(self.superblock.iter().map(|superblock| superblock.durable)).max().unwrap_or(0)
    }

    /// The highest sequence of records that may be missing and were not merely cut short by a crash, if there are any, and
    /// whether any is missing because something cannot be read.
    pub(super) fn find_unknown(&self) -> Option<(u64, bool)> {
        let marked = self.marked();
        let mut missing: Option<(u64, bool)> = None;
        let mut miss = |sequence: u64, unreadable: bool| {
            let (highest, any) = missing.unwrap_or((0, false));
            missing = Some((highest.max(sequence), any || unreadable));
        };
        // All that a segment with an index holds is durable, but for what a crash cut short before, where others are now.
        let promised = |place: Place| self.is_indexed(place.segment) && !self.is_overwritten(place);
        for gap in self.gaps() {
            if gap.unreadable || gap.place.sequence <= marked || promised(gap.place) {
                miss(gap.place.sequence, gap.unreadable);
            }
        }
        if self.superblock.as_ref().is_some_and(|superblock| superblock.layout == Layout::One) {
            // Its records do not name the ones before them: whatever cannot be read may have been one.
            for records in self.found.values() {
                let unreadable = self.unreadable.get(&records.segment).into_iter().flatten();
                if unreadable.filter(|block| **block <= records.end).any(|block| !records.covers(*block)) {
                    miss(records.sequence_max, true);
                }
            }
        }
        // A record that was freed, or that a crash cut short, names nothing any more: what cannot be read may be a record from
        // before it.
        let is_freed = |place: &Place| place.generation != self.generation(place.segment);
        let last = self.superblock.iter().filter_map(|superblock| superblock.last);
        let named = || self.found.values().filter_map(|records| records.previous);
        let cut = |gap: &Gap| self.is_void(gap.place.sequence) || !gap.unreadable && gap.place.sequence > marked;
        let cut = || self.breaks().filter(cut).filter(|_| !planted(Bug::HoleHidesRecords)).map(|gap| gap.place);
        let silent = named().chain(last).filter(is_freed).chain(cut()).map(|place| place.sequence).max();
        if let Some(silent) = silent {
            let followed = |sequence| named().any(|place| place.sequence == sequence);
            let open = |records: &&Records| records.end_unreadable && records.order() < silent;
            let open = self.found.values().filter(open);
            let open = open.filter(|records| !records.last().is_some_and(|(sequence, _)| followed(sequence)));
            let hidden = |records: &Records| {
                records.hidden_before(silent, |sequence| self.is_void(sequence), self.found.values())
            };
            open.filter_map(hidden).for_each(|sequence| miss(sequence, true));
        }
        // In its own segment such a record has others before it.
        for place in cut() {
            let Some(records) = self.found.get(&place.segment) else { continue };
            let unreadable = self.unreadable.get(&place.segment).into_iter().flatten().copied();
            let before = unreadable.filter(|block| *block < place.position && !records.covers(*block));
            let hidden = |block| records.hidden_at(block, place.sequence, |sequence| self.is_void(sequence));
            before.filter_map(hidden).for_each(|sequence| miss(sequence, true));
        }
        // Where the next record would begin, there may be one that cannot be read; also behind some that never arrived.
        if self.is_closed() {
            return missing;
        }
        let blank = || self.found.values().any(|records| records.is_empty() && records.end_unreadable);
        // Nothing follows the first record of a segment if its write failed.
        let with_records = self.found.values().filter(|records| !records.is_empty() && !self.is_void(records.order()));
        if let Some(last) = with_records.max_by_key(|records| records.order()) {
            let blocks = self.superblock.as_ref().map_or(0, |superblock| superblock.geometry().segment_blocks());
            let mut unreadable = self.unreadable.get(&last.segment).into_iter().flatten();
            let window = last.end..last.end + IN_FLIGHT_BLOCKS_MAX;
            let full = window.end + 2 > blocks;
            if unreadable.any(|block| window.contains(block)) || full && blank() {
                miss(last.sequence_max + 1, true);
            }
        } else if blank() {
            miss(1, true);
        }
        missing
    }
}

impl Boost {
    /// Puts what the records of a segment hold, as far as it is sound, over what older records left.
    /// Of `promised` records nothing may be missing, whatever the durable mark says.
    fn replay(
        &mut self,
        records: &Records,
        promised: bool,
        missing: Option<u64>,
        newer: &mut RangeSet,
        bulk: &mut Bulk,
    ) {
        let segment = records.segment;
        let marked = self.durable;
        for record in records.iter() {
            self.keep_checksums(segment, record.position, record.checksums);
            if self.superblock.void.contains(&record.sequence) && !planted(Bug::FailedRecordsReplayed) {
                // Nothing in it was ever acknowledged, and what is older may have been.
                continue;
            }
            let summary = self.space.location(segment, record.position);
            let mut data = 0;
            for entry in record.entries() {
                let (first, blocks) = (data, entry.data_blocks());
                data += blocks;
                let mut put = |extent: Extent| {
                    if missing.is_some_and(|missing| record.sequence > missing) {
                        newer.insert(extent.block * BLOCK64..extent.end() * BLOCK64);
                    }
                    bulk.push(&extent);
                };
                let tombstone = |kind| Extent {
                    block: entry.block,
                    blocks: entry.blocks,
                    location: summary,
                    kind,
                    state: ExtentState::Dirty,
                };
                match entry.content {
                    Content::Zeroes => put(tombstone(Kind::Zeroes)),
                    Content::Discarded if planted(Bug::DiscardsNotReplayed) => {}
                    Content::Discarded => put(tombstone(Kind::Discarded)),
                    Content::Copied => {}
                    Content::Data => {
                        for (run, flaw) in record.runs(first..first + blocks) {
                            let state = match flaw {
                                None => ExtentState::Dirty,
                                Some(Flaw::Unreadable) if planted(Bug::UnreadableIsTorn) => continue,
                                Some(Flaw::Unreadable) => {
                                    // Once it can be read again, it may turn out never to have arrived whole.
                                    self.durable_frozen |= record.sequence > marked;
                                    ExtentState::Bad
                                }
                                // It was durable: this is damage. What was not may just never have arrived; but of what
                                // was lost once, nothing older may appear.
                                Some(Flaw::Mismatch) if record.sequence <= marked || promised => ExtentState::Bad,
                                Some(Flaw::Mismatch) => {
                                    self.durable_frozen = true;
                                    continue;
                                }
                            };
                            let blocks = run.end - run.start;
                            put(Extent {
                                block: entry.block + u64::from(run.start - first),
                                blocks,
                                location: summary + 1 + run.start,
                                kind: Kind::Data,
                                state,
                            });
                        }
                    }
                }
            }
        }
    }
}
