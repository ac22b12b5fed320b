//! What holds after every event.

use std::collections::BTreeMap;

use super::requests::Stage;
use super::{Engine, Pending};
use crate::placement::{Segment, State};

impl Engine {
    /// Whether what is kept agrees with itself. Takes time in proportion to the cache: for debug builds.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check(&self) -> Result<(), String> {
        self.placement.check()?;
        for active in self.requests.values() {
            let mut changing = self.touched(&active.request);
            let is_change = matches!(active.stage, Stage::Changing { .. });
            if let Some(block) = changing.find(|block| is_change && self.placement.find(*block).is_some()) {
                return Err(format!("block {block} is cached, and {:?} changes it", active.request));
            }
        }
        self.check_segments()?;
        self.check_effects()
    }

    /// What is in memory is what is open or being written, and what is free is not read.
    fn check_segments(&self) -> Result<(), String> {
        for (number, readers) in self.readers.iter().enumerate() {
            let segment = Segment(number as u32);
            let buffer = self.buffers.get(&segment);
            let agrees = match self.placement.state(segment) {
                State::Open(_) => buffer.is_some_and(|buffer| !buffer.writing) && *readers == 0,
                State::Full(_) | State::Dropped => buffer.is_none_or(|buffer| buffer.writing),
                State::Leaving(_) => buffer.is_none() && (*readers > 0 || self.evictions.contains_key(&segment)),
                State::Free | State::Parking | State::Parked => {
                    buffer.is_none() && *readers == 0 && !self.evictions.contains_key(&segment)
                }
            };
            if !agrees {
                let state = self.placement.state(segment);
                return Err(format!("{segment:?} is {state:?} with {readers} readers and memory {buffer:?}"));
            }
        }
        if self.run.is_some() {
            return Err("a copy was not emitted".to_owned());
        }
        Ok(())
    }

    /// Counters are as many as the effects in flight.
    fn check_effects(&self) -> Result<(), String> {
        let mut members = BTreeMap::new();
        let (mut readers, mut backing, mut parts) = (vec![0; self.readers.len()], 0, 0);
        let mut parking = 0;
        for pending in self.pending.values() {
            let member = match pending {
                Pending::Backing(_) => {
                    backing += 1;
                    continue;
                }
                Pending::Piece(piece) => {
                    readers[piece.segment.0 as usize] += 1;
                    parts += 1;
                    piece.member
                }
                Pending::Parking { segment, member } => {
                    parking += 1;
                    if self.placement.state(*segment) != State::Parking {
                        return Err(format!("{segment:?} is being parked and is {:?}", self.placement.state(*segment)));
                    }
                    *member
                }
                Pending::SegmentWrite { member, .. } | Pending::EvictionRead { member, .. } => *member,
            };
            *members.entry(member).or_insert(0) += 1;
        }
        let waits = |stage: &Stage| if let Stage::Cached { parts, .. } = stage { (0, *parts) } else { (1, 0) };
        let expected = self.requests.values().map(|active| waits(&active.stage));
        let expected = expected.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if parking != self.parking {
            return Err(format!("{parking} segments are being parked and {} are counted", self.parking));
        }
        if readers != self.readers || (backing, parts) != expected {
            return Err(format!("requests wait for {expected:?} effects, and {:?} are in flight", (backing, parts)));
        }
        for (id, member) in &self.members {
            let counted = members.remove(id).unwrap_or(0);
            if counted != member.effects_in_flight {
                return Err(format!("{id:?} has {counted} effects in flight and counts {}", member.effects_in_flight));
            }
        }
        if members.is_empty() { Ok(()) } else { Err(format!("{members:?} are asked and gone")) }
    }
}
