//! Which of a set of volumes make an array: whole, degraded, or refused with the remedy.
//!
//! The list of members of the highest generation counts; see [`format`](mod@crate::format).

use std::collections::{BTreeMap, BTreeSet};

use crate::effect::Target;
use crate::format::{ArrayId, BLOCK, MemberId, MemberState, SUPERBLOCKS_LENGTH, Superblock};
use crate::geometry::Geometry;
use crate::planted::{Bug, planted};

/// A volume that may be a member.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// Its number.
    pub target: Target,
    /// What people call it.
    pub name: &'a str,
    /// Bytes.
    pub size: u64,
    /// Its first [`SUPERBLOCKS_LENGTH`] bytes; `None`: they cannot be read.
    pub head: Option<&'a [u8]>,
}

/// A volume that has a place in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub target: Target,
    /// Its name.
    pub member: MemberId,
    /// Its slot.
    pub slot: u32,
    /// Sequence of its newest superblock.
    pub sequence: u64,
}

/// What an engine may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which array.
    pub array: ArrayId,
    /// How it is divided.
    pub geometry: Geometry,
    /// Highest generation that any volume names.
    pub generation: u64,
    /// The active member of each slot, in order.
    pub active: Vec<Place>,
    /// Members whose copy goes on.
    pub joining: Vec<Place>,
    /// Members that were replaced and have not been told so.
    pub superseded: Vec<Place>,
    /// Active members that no other names, with the generation of their superblock. That they are active may not be durable: it is
    /// written again before any other member is told of them.
    pub unknown: Vec<(Target, u64)>,
}

/// What is wrong with a volume or an array. One sentence for people, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No volume has a superblock of the array.
    #[error("none of the volumes belongs to {0}: attach its members")]
    Nothing(String),
    /// More than one array is there, and none was named.
    #[error("the volumes belong to several arrays ({0}): name one of them")]
    Several(String),
    /// A volume cannot be read.
    #[error("{0} cannot be read: detach it and attach it again")]
    Unreadable(String),
    /// A volume has no superblock.
    #[error("{0} is no member of an array: detach it, and attach the volume that is")]
    NoMember(String),
    /// Both superblocks of a volume are damaged.
    #[error("both superblocks of {0} are damaged: restore its first 8 KiB, or the volume, from a copy")]
    Damaged(String),
    /// A volume is of another array.
    #[error("{0} belongs to array {1}: detach it")]
    Foreign(String, ArrayId),
    /// The superblocks of a volume are of two arrays.
    #[error("{0} is claimed by the arrays {1} and {2}: detach it, and find out which of them wrote to it last")]
    TwoArrays(String, ArrayId, ArrayId),
    /// Two volumes are one member.
    #[error("{0} and {1} both are member {2}: one is a copy of the other; detach the copy")]
    Twins(String, String, MemberId),
    /// A slot has no member.
    #[error("member {member} of slot {slot} is missing: attach its volume")]
    Missing {
        /// Which slot.
        slot: u32,
        /// Which member.
        member: MemberId,
    },
    /// A volume was replaced.
    #[error("{0} is stale: member {1} has replaced it in slot {2}; it may be deleted")]
    Stale(String, MemberId, u32),
    /// A joining member has missed a session, or its slot.
    #[error("{0} was being copied to and has missed writes since: delete it, and begin the replacement again")]
    StaleJoin(String),
    /// A member has become smaller.
    #[error("{name} has {size} bytes and the array uses {needed} of it: attach the volume at its full size")]
    Shrunk {
        /// Which volume.
        name: String,
        /// Bytes that it has.
        size: u64,
        /// Bytes that it needs.
        needed: u64,
    },
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assembly {
    /// All is as it was left.
    Whole(Plan),
    /// It may be served; people should know something.
    Degraded(Plan, Vec<Reason>),
    /// It may not be served.
    Refused(Vec<Reason>),
}

/// A volume and the newer of its superblocks.
struct Found<'a> {
    device: Device<'a>,
    superblock: Superblock,
}

impl Found<'_> {
    fn name(&self) -> String {
        self.device.name.to_owned()
    }

    fn place(&self) -> Place {
        let Superblock { member, slot, sequence, .. } = self.superblock;
        Place { target: self.device.target, member, slot, sequence }
    }
}

/// Decides. `wanted` is the array to assemble; `None`: the only one that is there.
#[must_use]
pub fn assemble(wanted: Option<ArrayId>, devices: &[Device<'_>]) -> Assembly {
    let (mut reasons, mut fatal, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for &device in devices {
        match newest(&device) {
            Ok(superblock) => found.push(Found { device, superblock }),
            Err(reason @ Reason::TwoArrays(..)) => fatal.push(reason),
            Err(reason) => reasons.push(reason),
        }
    }
    let array = match choose(wanted, &found) {
        Ok(array) => array,
        Err(reason) => return refused(fatal, reasons, Some(reason)),
    };
    let (ours, foreign): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.superblock.array == array);
    reasons.extend(foreign.iter().map(|found| Reason::Foreign(found.name(), found.superblock.array)));
    let Some(newest) = ours.iter().filter(counts).max_by_key(|found| found.superblock.generation) else {
        return refused(fatal, reasons, Some(Reason::Nothing(format!("array {array}"))));
    };
    let plan = place(&ours, &newest.superblock, &mut reasons, &mut fatal);
    if !fatal.is_empty() {
        return refused(fatal, reasons, None);
    }
    if reasons.is_empty() { Assembly::Whole(plan) } else { Assembly::Degraded(plan, reasons) }
}

/// The array to assemble.
fn choose(wanted: Option<ArrayId>, found: &[Found<'_>]) -> Result<ArrayId, Reason> {
    let arrays: BTreeSet<ArrayId> = found.iter().map(|found| found.superblock.array).collect();
    match (wanted, arrays.len(), arrays.first()) {
        (Some(array), ..) | (None, 1, Some(&array)) => Ok(array),
        (None, 0, _) | (None, _, None) => Err(Reason::Nothing("an array".to_owned())),
        (None, _, Some(_)) => {
            let list: Vec<String> = arrays.iter().map(ArrayId::to_string).collect();
            Err(Reason::Several(list.join(", ")))
        }
    }
}

/// Whether a member may have a say in who the members are.
fn counts(found: &&Found<'_>) -> bool {
    found.superblock.state != MemberState::Joining || planted(Bug::JoiningCounts)
}

/// Gives the volumes of an array their places, by the list of its newest superblock.
fn place(ours: &[Found<'_>], newest: &Superblock, reasons: &mut Vec<Reason>, fatal: &mut Vec<Reason>) -> Plan {
    let (array, geometry, list) = (newest.array, newest.geometry, &newest.members);
    let generation = ours.iter().map(|found| found.superblock.generation).max().unwrap_or(0);
    let (active, joining, superseded, unknown) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut plan = Plan { array, geometry, generation, active, joining, superseded, unknown };
    let mut names = BTreeMap::new();
    for found in ours {
        if let Some(other) = names.insert(found.superblock.member, found.name()) {
            fatal.push(Reason::Twins(other, found.name(), found.superblock.member));
        }
        if found.device.size < geometry.member_length() && list.contains(&found.superblock.member) {
            let (size, needed) = (found.device.size, geometry.member_length());
            fatal.push(Reason::Shrunk { name: found.name(), size, needed });
        }
    }
    let mut session = 0;
    for (slot, &member) in (0..).zip(list) {
        let of_slot = |found: &&Found<'_>| found.superblock.slot == slot && counts(found);
        let named = ours.iter().filter(of_slot).find(|found| found.superblock.member == member);
        let any = ours.iter().filter(of_slot).min_by_key(|found| found.superblock.generation);
        // None, unless joining members count.
        let joining = ours.iter().filter(of_slot).find(|found| found.superblock.state == MemberState::Joining);
        let named = if planted(Bug::StaleCounts) { any } else { joining.or(named) };
        match named {
            Some(active) => {
                session = session.max(active.superblock.generation);
                plan.active.push(active.place());
            }
            None => fatal.push(Reason::Missing { slot, member }),
        }
    }
    let active: Vec<Target> = plan.active.iter().map(|place| place.target).collect();
    for found in ours.iter().filter(|found| !active.contains(&found.device.target)) {
        reasons.extend(place_other(&mut plan, found, session, list));
    }
    let names = |found: &&Found<'_>, place: &Place| {
        let other = found.superblock.slot != place.slot && active.contains(&found.device.target);
        other && found.superblock.members.get(place.slot as usize) == Some(&place.member)
    };
    let alone = list.len() == 1 && plan.superseded.is_empty();
    let unknown = |place: &&Place| !alone && !ours.iter().any(|found| names(&found, place));
    let generation = |place: &Place| {
        let of = ours.iter().find(|found| found.device.target == place.target);
        (place.target, of.map_or(0, |found| found.superblock.generation))
    };
    plan.unknown = plan.active.iter().filter(unknown).map(generation).collect();
    plan
}

/// What a volume without an active place is.
fn place_other(plan: &mut Plan, found: &Found<'_>, session: u64, list: &[MemberId]) -> Option<Reason> {
    let superblock = &found.superblock;
    let successor = list.get(superblock.slot as usize).copied().unwrap_or_default();
    match superblock.state {
        MemberState::Joining => {
            let missed = superblock.generation < session && !planted(Bug::StaleJoinResumes);
            let taken = plan.joining.iter().any(|place| place.slot == superblock.slot);
            if missed || taken || found.device.size < plan.geometry.member_length() {
                return Some(Reason::StaleJoin(found.name()));
            }
            plan.joining.push(found.place());
            None
        }
        MemberState::Active => {
            plan.superseded.push(found.place());
            Some(Reason::Stale(found.name(), successor, superblock.slot))
        }
        MemberState::Retired => Some(Reason::Stale(found.name(), successor, superblock.slot)),
    }
}

fn refused(mut fatal: Vec<Reason>, reasons: Vec<Reason>, last: Option<Reason>) -> Assembly {
    fatal.extend(last);
    fatal.extend(reasons);
    Assembly::Refused(fatal)
}

/// The newer superblock of a volume.
fn newest(device: &Device<'_>) -> Result<Superblock, Reason> {
    let name = || device.name.to_owned();
    let Some(head) = device.head else { return Err(Reason::Unreadable(name())) };
    let blocks = head[..head.len().min(SUPERBLOCKS_LENGTH as usize)].chunks(BLOCK as usize);
    let valid: Vec<Superblock> = blocks.clone().filter_map(Superblock::decode).collect();
    if let [first, second] = &valid[..]
        && first.array != second.array
    {
        return Err(Reason::TwoArrays(name(), first.array, second.array));
    }
    let marked = blocks.clone().any(Superblock::is_marked);
    let missing = if marked { Reason::Damaged(name()) } else { Reason::NoMember(name()) };
    valid.into_iter().max_by_key(|superblock| superblock.sequence).ok_or(missing)
}
