//! What holds after every event.

use super::{Open, Placement, Queue, Segment, State};

impl Placement {
    /// Whether what is kept agrees with itself. Takes time in proportion to the cache: for debug builds.
    ///
    /// # Errors
    /// What does not agree.
    pub fn check(&self) -> Result<(), String> {
        let mut mapped = 0;
        for number in 0..self.segments.len() as u32 {
            let (segment, details) = (Segment(number), self.segments[number as usize]);
            let mut live = 0;
            for slot in self.slots_of(segment) {
                let Some(block) = self.slots.get(slot) else { continue };
                live += 1;
                if self.index.find(block, &self.slots) != Some(slot) {
                    return Err(format!("block {block} is at slot {slot}, and the index does not say so"));
                }
            }
            if live != details.live {
                return Err(format!("{segment:?} has {live} blocks and counts {}", details.live));
            }
            mapped += live as usize;
            self.check_state(segment, details.state, live)?;
        }
        if mapped != self.index.len() || mapped as u64 != self.coverage.total() {
            return Err(format!("{mapped} blocks, {} in the index, {}", self.index.len(), self.coverage.total()));
        }
        let owned: usize = self.spaces.iter().map(|space| space.segments as usize).sum();
        if owned + self.spare.len() != self.segments.len() {
            return Err(format!("{owned} segments of members and {} spare ones", self.spare.len()));
        }
        let parking = self.segments.iter().filter(|details| details.state == State::Parking).count();
        let counted: usize = self.spaces.iter().map(|space| space.parking as usize).sum();
        if parking != counted {
            return Err(format!("{parking} segments are being parked and {counted} are counted"));
        }
        Ok(())
    }

    fn check_state(&self, segment: Segment, state: State, live: u32) -> Result<(), String> {
        let times = |segments: &mut dyn Iterator<Item = &Segment>| segments.filter(|other| **other == segment).count();
        let queued = |queue: Queue| times(&mut self.queues[queue as usize].iter());
        let is_open = |open: &Option<Open>| open.is_some_and(|open| open.segment == segment);
        let free = times(&mut self.spaces.iter().flat_map(|space| &space.free).chain(&self.spare));
        let found = (
            free,
            queued(Queue::Small),
            queued(Queue::Main),
            self.open.iter().position(is_open),
            times(&mut self.dropped.iter()),
            times(&mut self.spaces.iter().flat_map(|space| &space.parked)),
        );
        let expected = match state {
            State::Free => (1, 0, 0, None, 0, 0),
            State::Open(queue) => (0, 0, 0, Some(queue as usize), 0, 0),
            State::Full(Queue::Small) => (0, 1, 0, None, 0, 0),
            State::Full(Queue::Main) => (0, 0, 1, None, 0, 0),
            State::Leaving(_) | State::Parking => (0, 0, 0, None, 0, 0),
            State::Dropped => (0, 0, 0, None, 1, 0),
            State::Parked => (0, 0, 0, None, 0, 1),
        };
        let is_empty = matches!(state, State::Free | State::Parking | State::Parked);
        if found != expected || is_empty && live > 0 {
            return Err(format!("{segment:?} is {state:?} with {live} blocks, and is at {found:?}"));
        }
        Ok(())
    }
}
