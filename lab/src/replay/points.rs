//! At which points of a log the power fails, and what must be there then.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;

use super::log::{Entry, EntryKind};
use crate::cuts::phase::BoostPhase;
use crate::flags;

/// What the load tells the log, as JSON, which here has no blanks: dmsetup takes them for the ends of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The device is in this phase from now on; `None`: idle.
    Phase(Option<BoostPhase>),
    /// This writer's operations up to this one are durable.
    Durable(usize, u64),
}

/// All phases, as they follow one another.
pub const PHASES: [Option<BoostPhase>; 5] =
    [None, Some(BoostPhase::Attach), Some(BoostPhase::Absorb), Some(BoostPhase::Drain), Some(BoostPhase::Detach)];

/// A phase as it stands in tables.
pub fn name(phase: Option<BoostPhase>) -> String {
    phase.map_or_else(|| "idle".to_owned(), flags::name)
}

/// Where between the entries the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutMoment {
    /// Right after a FLUSH: all that no FLUSH has covered is lost.
    Flush,
    /// Right after an application's fsync returned; lost is the same.
    Mark,
    /// Right before a FLUSH completes: of the writes that it covers chance keeps some sectors.
    Torn,
}

impl CutMoment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Flush, Self::Mark, Self::Torn];

    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "after a flush",
            Self::Mark => "after an fsync",
            Self::Torn => "within a flush",
        }
    }
}

/// A power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Where it is.
    pub moment: CutMoment,
    pub phase: Option<BoostPhase>,
    /// All entries before this one were durable.
    pub entry: usize,
    /// Those that are in doubt: what was forced was durable, of the rest chance decides.
    pub torn: Range<usize>,
    /// For each writer the last operation that must be there.
    pub durable: Vec<u64>,
}

/// All points of a log. The first ones are before the load's first note of a phase, and nobody's: they are left out.
pub fn all(entries: &[Entry], writers: usize) -> Vec<Point> {
    let mut points = Vec::new();
    let mut phase = None;
    let mut durable = vec![0; writers];
    let mut since_flush = 0;
    for (index, entry) in entries.iter().enumerate() {
        let mut found = Vec::new();
        match &entry.kind {
            EntryKind::Flush => {
                if entries[since_flush..index].iter().any(Entry::waits_for_a_flush) {
                    found.push((CutMoment::Torn, since_flush, since_flush..index));
                }
                since_flush = index + 1;
                found.push((CutMoment::Flush, index + 1, 0..0));
            }
            EntryKind::Mark(text) => match serde_json::from_str(text) {
                Ok(Note::Phase(now)) => phase = Some(now),
                Ok(Note::Durable(writer, number)) => {
                    // Messages of one writer are in order, so the last one holds.
                    durable.iter_mut().skip(writer).take(1).for_each(|last| *last = number);
                    found.push((CutMoment::Mark, index + 1, 0..0));
                }
                // The kernel's own, at the end.
                Err(_) => {}
            },
            EntryKind::Write | EntryKind::Forced | EntryKind::Discard => {}
        }
        let Some(phase) = phase else { continue };
        let durable = &durable;
        points.extend(found.into_iter().map(|(moment, entry, torn)| {
            let durable = durable.clone();
            Point { moment, phase, entry, torn, durable }
        }));
    }
    points
}

/// So many of them, by chance: as many of each moment, and of each moment as many in each phase, as there are. In the
/// order of the log.
pub fn chosen(all: Vec<Point>, count: usize, chance: &mut Random) -> Vec<Point> {
    let mut heaps: Vec<Vec<Point>> = Vec::new();
    for phase in PHASES {
        for moment in CutMoment::ALL {
            let of_both = all.iter().filter(|point| point.moment == moment && point.phase == phase);
            let mut heap: Vec<Point> = of_both.cloned().collect();
            chance.shuffle(&mut heap);
            heaps.push(heap);
        }
    }
    let mut chosen = Vec::new();
    while chosen.len() < count && heaps.iter().any(|heap| !heap.is_empty()) {
        let wanted = count - chosen.len();
        chosen.extend(heaps.iter_mut().filter_map(Vec::pop).take(wanted));
    }
    chosen.sort_by_key(|point| (point.entry, point.torn.end));
    chosen
}

/// How many plain writes follow a forced one of the same bytes before the next FLUSH. Which of the two came first the log
/// does not tell, for it holds plain ones back until their FLUSH.
pub fn untold_orders(entries: &[Entry]) -> usize {
    let mut forced: Vec<&Range<u64>> = Vec::new();
    let mut count = 0;
    for entry in entries {
        match entry.kind {
            EntryKind::Flush => forced.clear(),
            EntryKind::Forced => forced.push(&entry.bytes),
            EntryKind::Write | EntryKind::Discard => {
                let overlaps = |other: &&Range<u64>| other.start < entry.bytes.end && entry.bytes.start < other.end;
                count += usize::from(forced.iter().any(overlaps));
            }
            EntryKind::Mark(_) => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::log::{read, tests::made};
    use super::*;

    fn entries(list: &[(u64, u64, u64, &str)]) -> Vec<Entry> {
        read(&mut std::io::Cursor::new(made(list)), 1 << 20).unwrap()
    }

    const FLUSH: (u64, u64, u64, &str) = (0, 0, 1, "");

    fn mark(text: &str) -> (u64, u64, u64, &str) {
        (0, 0, 8, text)
    }

    const IDLE: &str = r#"{"phase":null}"#;
    const DRAIN: &str = r#"{"phase":"drain"}"#;

    #[test]
    fn a_mark_is_one_word() {
        for note in PHASES.map(Note::Phase).into_iter().chain([Note::Durable(3, u64::MAX)]) {
            let mark = serde_json::to_string(&note).unwrap();
            assert!(!mark.contains(' '), "{mark}");
            assert_eq!(serde_json::from_str::<Note>(&mark).unwrap(), note);
        }
    }

    #[test]
    fn points_know_their_phase_and_what_must_be_there() {
        let log = entries(&[
            (8, 1, 0, ""),
            FLUSH,
            mark(IDLE),
            mark(r#"{"durable":[1,4]}"#),
            mark(DRAIN),
            (8, 1, 2, ""),
            (16, 1, 0, ""),
            FLUSH,
            FLUSH,
            mark(r#"{"durable":[0,9]}"#),
            mark("dm-log-writes-end"),
        ]);
        let drain = Some(BoostPhase::Drain);
        let point = |moment, phase, entry, torn, durable: [u64; 2]| Point {
            moment,
            phase,
            entry,
            torn,
            durable: durable.to_vec(),
        };
        let expected = vec![
            point(CutMoment::Mark, None, 4, 0..0, [0, 4]),
            point(CutMoment::Torn, drain, 2, 2..7, [0, 4]),
            point(CutMoment::Flush, drain, 8, 0..0, [0, 4]),
            point(CutMoment::Flush, drain, 9, 0..0, [0, 4]),
            point(CutMoment::Mark, drain, 10, 0..0, [9, 4]),
        ];
        assert_eq!(all(&log, 2), expected);
        let mut chance = Random::from_seed(1);
        assert_eq!(chosen(expected.clone(), 2, &mut chance).len(), 2);
        let mut every = chosen(expected.clone(), 9, &mut chance);
        every.sort_by_key(|point| (point.torn.end.max(point.entry), point.moment != CutMoment::Torn));
        assert_eq!(every, expected);
        // One of each is chosen before a second one is.
        for seed in 0..20 {
            let four = chosen(expected.clone(), 4, &mut Random::from_seed(seed));
            assert_eq!(four.iter().filter(|point| point.moment == CutMoment::Flush).count(), 1);
        }
    }

    #[test]
    fn an_order_that_the_log_does_not_tell_is_counted() {
        assert_eq!(untold_orders(&entries(&[(8, 4, 2, ""), (10, 1, 0, ""), (12, 1, 0, ""), FLUSH, (9, 1, 0, "")])), 1);
        assert_eq!(untold_orders(&entries(&[(8, 4, 0, ""), (10, 1, 2, ""), FLUSH])), 0);
    }
}
