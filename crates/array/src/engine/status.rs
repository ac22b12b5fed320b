//! What the engine tells of itself.

use super::Engine;
use super::member::Member;
use crate::effect::Target;

/// What a driver may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slot's member was replaced; the new one counts.
    Replaced {
        /// Which slot.
        slot: u32,
        /// The new member.
        by: Target,
    },
    /// A replacement has ended without effect: the joining member failed, or the driver cancelled it.
    Dropped {
        /// Which slot.
        slot: u32,
        /// The joining member.
        joining: Target,
    },
    /// Nothing is asked of a volume any more: it may be detached and deleted.
    Released(Target),
    /// The array is larger.
    Grown {
        /// Bytes.
        size: u64,
    },
}

/// A replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinStatus {
    /// The joining member.
    pub target: Target,
    /// Regions that both members hold the same.
    pub regions_synced: u64,
    /// Regions of a member.
    pub regions: u64,
    /// Bytes that were copied since the engine started.
    pub copied_bytes: u64,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// Its active member.
    pub active: Target,
    /// Whether it is served; else its ranges answer EIO.
    pub serves: bool,
    /// Regions of its member that were ever written.
    pub regions_written: u64,
    /// Its replacement.
    pub join: Option<JoinStatus>,
}

/// The array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes of the array.
    pub size: u64,
    /// Its members have been opened, or could not be.
    pub opened: bool,
    /// Generation of its membership.
    pub generation: u64,
    /// Its slots, in order.
    pub slots: Vec<SlotStatus>,
    /// Regions that were ever written, over all members.
    pub regions_written: u64,
}

impl Engine {
    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let regions = self.geometry.regions();
        let written = |member: &Member| (0..regions).filter(|region| member.is_written(*region)).count() as u64;
        let slots = self.slots.iter().map(|slot| SlotStatus {
            active: slot.active,
            serves: slot.serves,
            regions_written: self.members.get(&slot.active).map_or(0, written),
            join: slot.join.as_ref().map(|join| JoinStatus {
                target: join.target,
                regions_synced: regions - join.unsynced,
                regions,
                copied_bytes: join.copied_bytes,
            }),
        });
        let slots: Vec<SlotStatus> = slots.collect();
        Status {
            size: self.size,
            opened: self.opened,
            generation: self.generation,
            regions_written: slots.iter().map(|slot| slot.regions_written).sum(),
            slots,
        }
    }
}
