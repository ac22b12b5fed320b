//! Segments are freed in an order that lets no recovery see what was superseded, also across pages of the table.

use proptest::prelude::*;

use super::*;
use crate::format::SEGMENTS_PER_PAGE;
use crate::index::ExtentState;

const PAGES: u32 = 3;

fn geometry() -> Geometry {
    Geometry {
        layout: crate::format::Layout::Two,
        segment_size: 64 << 10,
        segments: PAGES * SEGMENTS_PER_PAGE,
        indexed: false,
        grown_at: [0; crate::format::GROWTHS_MAX],
    }
}

/// A block of data in a segment.
fn extent(space: &Space, segment: u32, block: u64) -> Extent {
    Extent { block, blocks: 1, location: space.location(segment, 1), kind: Kind::Data, state: ExtentState::Dirty }
}

/// Records in the order of the log, each in a segment of its own, and which older records each supersedes.
fn log() -> impl Strategy<Value = Vec<(u32, Vec<prop::sample::Index>)>> {
    let number = (0..PAGES, 0..SEGMENTS_PER_PAGE).prop_map(|(page, number)| page * SEGMENTS_PER_PAGE + number);
    let record = (number, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
    prop::collection::vec(record, 1..24).prop_map(|mut log| {
        let mut seen = std::collections::BTreeSet::new();
        log.retain(|(number, _)| seen.insert(*number));
        log
    })
}

proptest! {
    #[test]
    fn what_supersedes_is_freed_after_what_it_superseded(log in log(), drained in any::<u32>()) {
        let mut space = Space::new(geometry(), |_| 1);
        // Which segments have a record that an older one's was superseded by.
        let mut superseded: Vec<(u32, u32)> = Vec::new();
        let mut live: Vec<Extent> = Vec::new();
        for (order, (number, older)) in log.iter().enumerate() {
            space.start(*number, Use::Open, order as u64 + 1);
            space.seal();
            for index in older {
                if live.is_empty() {
                    break;
                }
                let old = live.swap_remove(index.index(live.len()));
                space.removed(&old, Some(*number));
                superseded.push((space.segment_of(old.location), *number));
            }
            let new = extent(&space, *number, order as u64);
            space.added(&new);
            live.push(new);
        }
        let mut gone = std::collections::BTreeSet::new();
        for step in 0..2 {
            // First some are drained, then all.
            let (now, later): (Vec<_>, Vec<_>) =
                live.into_iter().partition(|extent| step == 1 || drained >> (extent.block % 32) & 1 == 1);
            now.iter().for_each(|extent| space.drained(extent));
            live = later;
            while let Some((page, freed)) = space.reclaimable() {
                prop_assert!(!freed.is_empty());
                for &number in &freed {
                    prop_assert_eq!(number / SEGMENTS_PER_PAGE, page);
                    prop_assert_eq!(space.segments[number as usize].dirty, 0);
                    prop_assert!(gone.insert(number));
                }
                // The page is written at once: a power cut leaves all of it or nothing.
                for (old, new) in &superseded {
                    prop_assert!(gone.contains(old) || !gone.contains(new), "{new} is freed before {old}");
                }
                freed.iter().for_each(|&number| space.free(number));
            }
        }
        prop_assert!(space.is_unused(), "something is never freed");
    }
}
