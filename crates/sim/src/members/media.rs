//! What is on the members, as far as it decides who counts: a superblock each, with the list of the members of all slots.
//!
//! Simplified from `surgetank_array::format`: one superblock, written at once. A change of the membership goes to the new member and
//! to one other first, then to the rest, then to the replaced one; the process may die in between.

use std::collections::BTreeMap;

use surgetank_model::volume::VolumeId;
use surgetank_rental::Slot;
use surgetank_rental::array::Found;

/// What a volume says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Superblock {
    slot: usize,
    generation: u64,
    state: State,
    list: Vec<VolumeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    Joining,
    Retired,
}

/// All superblocks.
#[derive(Clone, Debug, Default)]
pub struct Media {
    blocks: BTreeMap<VolumeId, Superblock>,
    /// The members that hold the data, whoever knows.
    truth: Vec<VolumeId>,
}

impl Media {
    /// Whether something of an array is on a volume.
    #[must_use]
    pub fn is_written(&self, id: &VolumeId) -> bool {
        self.blocks.contains_key(id)
    }

    /// Whether a volume has data that no other one has.
    #[must_use]
    pub fn counts(&self, id: &VolumeId) -> bool {
        self.truth.contains(id)
    }

    /// Who counts.
    #[must_use]
    pub fn members(&self) -> &[VolumeId] {
        &self.truth
    }

    /// The volumes become an array, or some of them do before that fails.
    pub fn format(&mut self, volumes: &[VolumeId], done: usize) {
        for (slot, id) in volumes.iter().enumerate().take(done) {
            let list = volumes.to_vec();
            self.blocks.insert(id.clone(), Superblock { slot, generation: 1, state: State::Active, list });
        }
        if done == volumes.len() {
            self.truth = volumes.to_vec();
        }
    }

    /// What open volumes make: the list of the highest generation counts.
    ///
    /// # Errors
    /// A member is missing.
    pub fn assemble(&mut self, open: &[(Slot, VolumeId)]) -> Result<Found, String> {
        let known: Vec<(Slot, &VolumeId, Superblock)> =
            open.iter().filter_map(|(place, id)| Some((*place, id, self.blocks.get(id)?.clone()))).collect();
        let newest = known.iter().filter(|(.., block)| block.state != State::Joining);
        let newest = newest.max_by_key(|(.., block)| block.generation).ok_or("no superblock is there")?.2.clone();
        let mut found = Found::default();
        for (slot, id) in newest.list.iter().enumerate() {
            let place =
                known.iter().find(|(_, other, block)| *other == id && block.slot == slot).map(|(place, ..)| *place);
            found.active.push(place.ok_or_else(|| format!("the member of slot {slot} is missing"))?);
        }
        for (place, _, block) in &known {
            match block.state {
                _ if found.active.contains(place) => {}
                State::Joining if block.generation == newest.generation => {
                    found.joining.push((u32::try_from(block.slot).unwrap_or_default(), *place));
                }
                State::Active => found.superseded.push(*place),
                State::Joining | State::Retired => {}
            }
        }
        Ok(found)
    }

    /// A volume begins to be copied to.
    pub fn join(&mut self, slot: usize, id: &VolumeId) {
        let generation = self.generation();
        let list = self.truth.clone();
        self.blocks.insert(id.clone(), Superblock { slot, generation, state: State::Joining, list });
    }

    fn generation(&self) -> u64 {
        self.blocks
            .values()
            .filter(|block| block.state == State::Active)
            .map(|block| block.generation)
            .max()
            .unwrap_or(0)
    }

    /// The copy is complete, and the new member counts.
    pub fn switch(&mut self, slot: usize, id: &VolumeId) {
        let generation = self.generation() + 1;
        if let Some(member) = self.truth.get_mut(slot) {
            *member = id.clone();
        }
        let list = self.truth.clone();
        for member in &list {
            if let Some(block) = self.blocks.get_mut(member) {
                (block.generation, block.list, block.state) = (generation, list.clone(), State::Active);
            }
        }
    }

    /// A replaced or dropped member is told.
    pub fn retire(&mut self, id: &VolumeId) {
        if let Some(block) = self.blocks.get_mut(id) {
            block.state = State::Retired;
        }
    }
}
