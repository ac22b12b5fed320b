//! The SSD's segments under random records, against what lies in them.

use std::collections::BTreeMap;

use surgetank_model::random::Random;
use surgetank_pool_core::benefactor::segments::{At, BLOCK, Former, Kind, Segments};

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let (count, blocks) = (4 + random.below(5), 4 + random.below(12));
    let former = |filling| Former { filling, ..Former::default() };
    let mut segments = Segments::new(blocks * BLOCK, (0..count).map(former));
    let mut live: Vec<At> = Vec::new();
    // Which record wrote each block last.
    let mut wrote: BTreeMap<(u32, u64), At> = BTreeMap::new();
    let mut latest = count - 1;
    for step in 0..300 {
        if random.chance(0.55) {
            let kind = if random.chance(0.8) { Kind::Chunk } else { Kind::Table };
            let (length, room) = (1 + random.below(BLOCK * 3), segments.room());
            let Some(append) = segments.append(length, kind) else {
                if length <= BLOCK && room >= BLOCK {
                    return Err(format!("step {step}: {room} bytes of room, and none for a block"));
                }
                continue;
            };
            let at = append.at;
            if append.begins != (at.filling > latest) || at.filling < latest {
                return Err(format!("step {step}: {at:?} after filling {latest}"));
            }
            latest = at.filling;
            // The header of a filling, the record, and behind it one block for the mark.
            if at.offset < BLOCK || at.offset + at.length + BLOCK > blocks * BLOCK || at.length < length {
                return Err(format!("step {step}: {at:?} is beyond its segment"));
            }
            let header = append.begins.then_some(0);
            if let Some(mark) = append.closed
                && let Some(other) = wrote.get(&(mark.segment, mark.offset)).filter(|other| live.contains(other))
            {
                return Err(format!("step {step}: the mark at {mark:?} overwrites {other:?}"));
            }
            let own = (at.offset..at.offset + at.length).step_by(BLOCK as usize);
            let blocks = header.into_iter().chain(own).map(|offset| (at.segment, offset));
            for block in blocks {
                if let Some(other) = wrote.insert(block, at).filter(|other| *other != at && live.contains(other)) {
                    return Err(format!("step {step}: {at:?} overwrites {other:?}"));
                }
            }
            live.push(at);
            let (record, mut filled, mut taken) = ((1 + random.below(3)) * BLOCK, segments.clone(), 0);
            while filled.append(record, Kind::Chunk).is_some() {
                taken += record;
            }
            if taken != segments.room_for(record) {
                let said = segments.room_for(record);
                return Err(format!(
                    "step {step}: room for {said} bytes of records of {record}, and {taken} were taken"
                ));
            }
        } else if !live.is_empty() {
            let at = live.swap_remove(random.below(live.len() as u64) as usize);
            segments.over(at);
        }
    }
    live.into_iter().for_each(|at| segments.over(at));
    // All but the one that is left to compaction, and what is left to tables.
    if segments.room() != segments.of() || segments.free() != segments.of() {
        return Err(format!("nothing is left, and there is room for {} bytes of {}", segments.room(), segments.of()));
    }
    Ok(())
}
