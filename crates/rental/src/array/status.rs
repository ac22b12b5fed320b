//! What people may know of an array's volumes.

use surgetank_model::Bytes;
use surgetank_model::volume::VolumeId;

use super::{Array, Doing, Goal};
use crate::array::record::Stage;
use crate::record::Slot;

/// What a volume is to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rented, and attached; not a member yet.
    Coming,
    /// A member that has its slot's data.
    Active,
    /// A member that is being given them.
    Joining,
    /// It counts, as far as is known, and is not reached.
    Missing,
    /// Kept for a while after it was replaced.
    Held,
    /// On its way to deletion.
    Leaving,
}

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Where it is among the volumes.
    pub place: Slot,
    /// Its slot in the stripe, as far as that is known.
    pub slot: Option<u32>,
    /// The provider's name, once known.
    pub volume: Option<VolumeId>,
    /// Its size.
    pub size: Bytes,
    /// Milliseconds since 1970 at which its creation was asked for.
    pub started_unix_ms: u64,
    /// What it is to the array.
    pub part: Part,
    /// Until when it is kept, in milliseconds since 1970.
    pub held_until_unix_ms: Option<u64>,
}

/// How an array stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How far it is; `None`: there is none.
    pub stage: Option<Stage>,
    /// A device uses it.
    pub is_served: bool,
    /// Its volumes, by slot.
    pub volumes: Vec<MemberStatus>,
    /// Slots whose member is to be replaced.
    pub wanted: Vec<u32>,
    /// What keeps it from going on.
    pub trouble: Option<String>,
}

impl Array {
    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let facts = self.writes.facts.as_ref();
        let held_until = |place: Slot| {
            let held = facts.iter().flat_map(|facts| &facts.held).find(|held| held.place == place)?;
            Some(held.until_unix_ms)
        };
        let volumes = self.places.iter().filter_map(|(place, what)| {
            let record = self.rentals.rental(*place).and_then(crate::Rental::record)?;
            Some(MemberStatus {
                place: *place,
                slot: what.slot,
                volume: record.volume.clone(),
                size: record.size_at_most(),
                started_unix_ms: record.started_unix_ms,
                part: part(what.doing, facts.is_some_and(|facts| facts.members.contains(place))),
                held_until_unix_ms: held_until(*place),
            })
        });
        let mut volumes: Vec<MemberStatus> = volumes.collect();
        volumes.sort_by_key(|volume| (volume.slot.unwrap_or(u32::MAX), volume.place));
        Status {
            stage: facts.map(|facts| facts.stage),
            is_served: self.goal == Goal::Serving,
            volumes,
            wanted: facts.iter().flat_map(|facts| &facts.wanted).map(|wanted| wanted.slot).collect(),
            trouble: self.writes.trouble().map(str::to_owned).or_else(|| self.trouble.clone()),
        }
    }
}

fn part(doing: Doing, is_member: bool) -> Part {
    match doing {
        Doing::Active => Part::Active,
        Doing::Known | Doing::Attached | Doing::Attaching if is_member => Part::Active,
        Doing::Creating | Doing::Attaching | Doing::Attached | Doing::Counting | Doing::Counted => Part::Coming,
        Doing::Asked | Doing::Joining => Part::Joining,
        Doing::Known | Doing::AttachLater(_) => Part::Missing,
        Doing::Held | Doing::Detaching => Part::Held,
        Doing::Leaving | Doing::Retire(_) | Doing::Retiring | Doing::Discarding => Part::Leaving,
    }
}
