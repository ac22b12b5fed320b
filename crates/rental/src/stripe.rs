//! Several volumes of a provider that are rented as one, a *stripe*: which calls on its members a call becomes, and what their
//! answers mean together. So a rental knows of one volume, and is the same for both.
//!
//! The name of a stripe consists of those of its members: nothing is needed to find them. Before that name is known, their tags
//! tell that they belong together, so that a listing shows what is there of each stripe as one volume, whole or not: a part of
//! one that a refused or lost creation left, or a deletion that was interrupted, is found and deleted as any volume.
//!
//! What must hold whatever fails in the middle:
//! - A stripe *is* something, attached or tagged, only when all of its members are: calls are repeated until they are.
//! - It *may hold data* as soon as one of its members is tagged so: whatever deletes sees that.
//! - It is gone only when nothing of it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::volume::{
    Change, CreateVolume, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState, tag,
};

use crate::planted::{Bug, planted};

/// How the name of a stripe begins.
const PREFIX: &str = "stripe:";
/// What is between the names of its members.
const BETWEEN: char = '+';
/// Members are aligned to this, in bytes.
const GRAIN: u64 = 4096;

/// The most members of a stripe.
pub const MEMBERS_MAX: u32 = 32;

/// The provider's names of a volume's members, in their order: its own name, if it is no stripe.
#[must_use]
pub fn members(id: &VolumeId) -> Vec<VolumeId> {
    match id.0.strip_prefix(PREFIX) {
        Some(names) => names.split(BETWEEN).map(|name| VolumeId(name.to_owned())).collect(),
        None => vec![id.clone()],
    }
}

/// Whether a volume is a stripe.
#[must_use]
pub fn is_stripe(id: &VolumeId) -> bool {
    id.0.starts_with(PREFIX)
}

/// Whether two volumes have a member in common.
#[must_use]
pub fn overlap(one: &VolumeId, other: &VolumeId) -> bool {
    let members_of_one = members(one);
    members(other).iter().any(|member| members_of_one.contains(member))
}

/// Whether a volume is another one, or a part of it.
#[must_use]
pub fn is_part(part: &VolumeId, of: &VolumeId) -> bool {
    let whole = members(of);
    members(part).iter().all(|member| whole.contains(member))
}

/// Whether everything of a volume is there.
#[must_use]
pub fn is_whole(volume: &VolumeDescription) -> bool {
    volume.members.is_empty() || volume.members.len() == members(&volume.id).len()
}

fn name<'a>(members: impl Iterator<Item = &'a VolumeId>) -> VolumeId {
    let names: Vec<&str> = members.map(|VolumeId(name)| &**name).collect();
    VolumeId(format!("{PREFIX}{}", names.join(&BETWEEN.to_string())))
}

/// The size of each member of a stripe of this size.
///
/// # Errors
/// `Invalid`: it cannot be divided.
fn member_size(size: Bytes, volumes: u64) -> Result<Bytes, ProviderError> {
    if volumes == 0 || !size.get().is_multiple_of(volumes * GRAIN) {
        return Err(ProviderError::Invalid(format!(
            "a stripe of {size} cannot be divided into {volumes} equal volumes: ask for a multiple of {}",
            Bytes::new(volumes.max(1) * GRAIN)
        )));
    }
    Ok(Bytes::new(size.get() / volumes))
}

/// The volumes to rent for a stripe, all at once. Creating them again with the same token gives the same ones.
///
/// # Errors
/// `Invalid`: there is no such stripe.
pub fn requests(request: &CreateVolume, volumes: u32) -> Result<Vec<CreateVolume>, ProviderError> {
    let CreateVolume { token, volume_type, size, tags } = request;
    if token.is_empty() || !(2..=MEMBERS_MAX).contains(&volumes) {
        return Err(ProviderError::Invalid(format!(
            "a stripe has a token and 2 to {MEMBERS_MAX} volumes, not {token:?} and {volumes}"
        )));
    }
    let size = member_size(*size, u64::from(volumes))?;
    let member = |index: u32| {
        let place = Place { token: token.clone(), index, of: volumes };
        let mut tags = tags.clone();
        tags.insert(tag::STRIPE.to_owned(), place.to_string());
        CreateVolume { token: format!("{token}-{index}"), volume_type: volume_type.clone(), size, tags }
    };
    Ok((0..volumes).map(member).collect())
}

/// Where a member belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The token of the stripe.
    pub token: String,
    /// Which member it is, from 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.token, self.index, self.of)
    }
}

impl Place {
    /// What the tags of a volume say.
    #[must_use]
    pub fn of(tags: &Tags) -> Option<Self> {
        let mut parts = tags.get(tag::STRIPE)?.rsplitn(3, '-');
        let (of, index) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { of, index, token: parts.next()?.to_owned() })
    }
}

/// What a stripe was made of. Whoever makes the first member has made the stripe.
///
/// # Errors
/// If a member could not be made. The others may be there: a listing shows them, and creating again completes them.
pub fn created(
    answers: Vec<Result<(VolumeDescription, Change), ProviderError>>,
) -> Result<(VolumeDescription, Change), ProviderError> {
    let made = all(answers)?;
    let change = made.first().map_or(Change::Identity, |(_, change)| *change);
    let members: Vec<_> = made.into_iter().map(|(volume, _)| volume).collect();
    let id = name(members.iter().map(|volume| &volume.id));
    together(id, members).map(|volume| (volume, change))
}

/// What is known of a stripe, by what is known of each of its members.
///
/// # Errors
/// `NotFound` if none of them is there; or why one of them could not be described.
pub fn described(
    id: &VolumeId,
    answers: Vec<Result<VolumeDescription, ProviderError>>,
) -> Result<VolumeDescription, ProviderError> {
    let there = answers.into_iter().filter(|answer| !matches!(answer, Err(ProviderError::NotFound(_))));
    let there = all(there.collect()).map_err(|error| of_stripe(error, id))?;
    together(id.clone(), there)
}

/// What became of a change of state that all members were asked for. A deletion is `Changed` only if it was accepted of all of them.
///
/// # Errors
/// Why it was not carried out: what has become of each member is described then. Whoever detaches or deletes what is left of a
/// stripe does without those that are gone; to attach it, all are needed.
pub fn changed(
    id: &VolumeId,
    transition: Transition,
    answers: Vec<Result<Change, ProviderError>>,
) -> Result<Change, ProviderError> {
    match transition {
        Transition::Attach => of_all(id, answers),
        Transition::Detach => of_those_there(id, answers),
        Transition::Delete => {
            // Those that are attached yet tell so when the stripe is described, and then that is deleted again.
            let (begun, all) = (Ok(Change::Changed), answers.iter().all(|answer| *answer == Ok(Change::Changed)));
            let begun = answers.contains(&begun);
            let later = |answer: &Result<_, _>| begun && matches!(answer, Err(ProviderError::Conflict { .. }));
            let change = of_those_there(id, answers.into_iter().filter(|answer| !later(answer)).collect())?;
            Ok(if all { change } else { Change::Identity })
        }
    }
}

/// It has changed if a member has; an error of one is an error.
fn of_all(id: &VolumeId, answers: Vec<Result<Change, ProviderError>>) -> Result<Change, ProviderError> {
    let changes = all(answers).map_err(|error| of_stripe(error, id))?;
    Ok(if changes.contains(&Change::Changed) { Change::Changed } else { Change::Identity })
}

/// The same, without those that are gone, unless all are.
fn of_those_there(id: &VolumeId, answers: Vec<Result<Change, ProviderError>>) -> Result<Change, ProviderError> {
    let gone = |answer: &Result<Change, ProviderError>| matches!(answer, Err(ProviderError::NotFound(_)));
    let all_gone = answers.iter().all(gone);
    of_all(id, answers.into_iter().filter(|answer| all_gone || !gone(answer)).collect())
}

/// What became of a tag that was set on all members, or removed from them.
///
/// # Errors
/// If it is not so on all that are there, or, of a tag that is set, on all.
pub fn tagged(id: &VolumeId, set: bool, answers: Vec<Result<Change, ProviderError>>) -> Result<Change, ProviderError> {
    if planted(Bug::PartlyTaggedIsTagged) && answers.iter().any(Result::is_ok) {
        return Ok(Change::Changed);
    }
    if set { of_all(id, answers) } else { of_those_there(id, answers) }
}

/// How large each member has to become for a stripe of this size.
///
/// # Errors
/// `Invalid`: it cannot be divided.
pub fn growth_of_members(id: &VolumeId, size: Bytes) -> Result<Bytes, ProviderError> {
    member_size(size, members(id).len() as u64)
}

/// What became of a growth that all members were asked for.
///
/// # Errors
/// Why one of them does not grow. It is `Transient` if another one does, which is larger, and billed, from then on.
pub fn grown(id: &VolumeId, answers: Vec<Result<Change, ProviderError>>) -> Result<Change, ProviderError> {
    // Who was asked before may have grown then, and says that nothing is left to do.
    let begun = answers.iter().any(Result::is_ok);
    of_all(id, answers).map_err(|error| match error {
        error @ ProviderError::Transient(_) => error,
        error if begun => ProviderError::Transient(format!("a part of {} has grown, and the rest not: {error}", id.0)),
        error => error,
    })
}

/// A listing with what there is of each stripe in the place of its members.
///
/// A creation that was repeated may have left two volumes for one place: each is shown, in two stripes.
#[must_use]
pub fn listed(volumes: Vec<VolumeDescription>) -> Vec<VolumeDescription> {
    let mut listed = Vec::new();
    let mut stripes: BTreeMap<(String, u32), BTreeMap<u32, Vec<VolumeDescription>>> = BTreeMap::new();
    for volume in volumes {
        match Place::of(&volume.tags) {
            Some(Place { token, index, of }) => {
                stripes.entry((token, of)).or_default().entry(index).or_default().push(volume);
            }
            None => listed.push(volume),
        }
    }
    for ((_, of), mut places) in stripes {
        places.values_mut().for_each(|volumes| volumes.sort_by(|one, other| other.id.cmp(&one.id)));
        loop {
            let members: Vec<_> = places.values_mut().filter_map(Vec::pop).collect();
            if members.is_empty() {
                break;
            }
            if members.len() < of as usize && planted(Bug::PartialStripeForgotten) {
                continue;
            }
            let id = name(members.iter().map(|volume| &volume.id));
            listed.extend(together(id, members));
        }
    }
    listed
}

/// The description of a stripe, by those of its members that are there.
fn together(id: VolumeId, members: Vec<VolumeDescription>) -> Result<VolumeDescription, ProviderError> {
    let Some(first) = members.first() else { return Err(ProviderError::NotFound(id)) };
    let smallest = members.iter().map(|volume| volume.size).min().unwrap_or_default();
    Ok(VolumeDescription {
        state: state(&members),
        volume_type: first.volume_type.clone(),
        size: Bytes::new(smallest.get().saturating_mul(self::members(&id).len() as u64)),
        tags: tags(&members),
        device: None,
        disk: None,
        id,
        members,
    })
}

/// Where a stripe is in its life: what has to be done next to attach it, or to delete it, is done for all members.
fn state(members: &[VolumeDescription]) -> VolumeState {
    use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};

    let has = |state: VolumeState| members.iter().any(|member| member.state == state);
    let in_machine = has(Attaching) || has(Attached);
    if has(Attached) && planted(Bug::PartlyAttachedIsAttached) {
        Attached
    } else if has(Failed) {
        // It is never a whole again. Whoever deletes deletes what can be, and then finds the others.
        Failed
    } else if has(Creating) {
        Creating
    } else if has(Detaching) {
        // Whoever detaches goes on to; whoever attaches waits until it is detached.
        if in_machine { Attaching } else { Detaching }
    } else if has(Available) {
        // Whoever attaches goes on to. Whoever deletes deletes these, and finds the others attached.
        Available
    } else if has(Attaching) {
        Attaching
    } else if has(Attached) {
        Attached
    } else {
        Deleting
    }
}

/// A tag of one member is one of the stripe. Should they differ, all values are told, which is none that anybody knows.
fn tags(members: &[VolumeDescription]) -> Tags {
    let mut values: BTreeMap<&String, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in members.iter().flat_map(|member| &member.tags).filter(|(key, _)| *key != tag::STRIPE) {
        values.entry(key).or_default().insert(value);
    }
    let joined = |values: BTreeSet<&str>| values.into_iter().collect::<Vec<_>>().join(&BETWEEN.to_string());
    values.into_iter().map(|(key, values)| (key.clone(), joined(values))).collect()
}

/// All answers, or the error that says most of when it is worth trying again.
fn all<T>(answers: Vec<Result<T, ProviderError>>) -> Result<Vec<T>, ProviderError> {
    let rank = |error: &ProviderError| match error {
        ProviderError::Invalid(_) => 0,
        ProviderError::NotFound(_) => 1,
        ProviderError::Quota(_) => 2,
        ProviderError::Capacity(_) => 3,
        ProviderError::AttachLimit(_) => 4,
        ProviderError::Conflict { .. } => 5,
        ProviderError::Throttled { .. } => 6,
        ProviderError::Transient(_) => 7,
    };
    let asks_for = |error: &ProviderError| match error {
        ProviderError::Throttled { after, .. } => after.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    // Of two that throttle, the later one is heeded.
    let is_worse =
        |error: &ProviderError, worst: &ProviderError| (rank(error), asks_for(worst)) < (rank(worst), asks_for(error));
    let (mut there, mut worst) = (Vec::with_capacity(answers.len()), None);
    for answer in answers {
        match answer {
            Ok(answer) => there.push(answer),
            Err(error) if worst.as_ref().is_none_or(|worst| is_worse(&error, worst)) => worst = Some(error),
            Err(_) => {}
        }
    }
    worst.map_or(Ok(there), Err)
}

/// An error of a member, for whoever knows of the stripe alone.
fn of_stripe(error: ProviderError, id: &VolumeId) -> ProviderError {
    match error {
        ProviderError::NotFound(_) => ProviderError::NotFound(id.clone()),
        ProviderError::Conflict { id: member, state, reason } if member != *id => {
            let reason = format!("its member {} is: {reason}", member.0);
            ProviderError::Conflict { id: id.clone(), state, reason }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use VolumeState::{Attached, Available, Creating, Deleting, Detaching, Failed};

    use super::*;

    fn stripe_of(states: &[VolumeState]) -> VolumeState {
        let members = (0..).zip(states).map(|(index, state)| VolumeDescription {
            id: VolumeId(format!("vol-{index}")),
            ..crate::rented::described(*state, Tags::new())
        });
        state(&members.collect::<Vec<_>>())
    }

    /// Nothing is attached of which a part has failed, and whoever deletes begins with that.
    #[test]
    fn a_stripe_has_failed_when_one_of_its_members_has() {
        for other in [Creating, Available, Attached, Detaching, Deleting] {
            assert_eq!(stripe_of(&[other, Failed]), Failed, "{other:?}");
        }
        assert_eq!(stripe_of(&[Available, Available]), Available);
    }

    #[test]
    fn a_failed_stripe_is_deleted_without_its_attached_members_at_first() {
        let id = VolumeId("stripe:vol-0+vol-1".to_owned());
        let decide = |transition: Transition, states: [VolumeState; 2]| {
            let answers = states.map(|state| transition.decide(&id, Some(state))).to_vec();
            changed(&id, transition, answers)
        };
        assert!(decide(Transition::Attach, [Available, Failed]).is_err());
        assert_eq!(decide(Transition::Delete, [Attached, Failed]), Ok(Change::Identity), "not of all of it");
        assert_eq!(decide(Transition::Delete, [Deleting, Available]), Ok(Change::Identity), "not of all of it");
        assert_eq!(decide(Transition::Detach, [Attached, Failed]), Ok(Change::Changed));
        assert_eq!(decide(Transition::Delete, [Available, Failed]), Ok(Change::Changed));
    }

    #[test]
    fn of_members_that_are_throttled_the_latest_time_counts() {
        let throttled = |after: u64| ProviderError::Throttled {
            after: Some(Duration::from_secs(after)),
            text: "slower".to_owned(),
        };
        let worst = |errors: [ProviderError; 3]| all::<()>(errors.into_iter().map(Err).collect()).unwrap_err();
        let transient = || ProviderError::Transient("lost".to_owned());
        assert_eq!(worst([throttled(3), throttled(9), throttled(5)]), throttled(9));
        assert_eq!(worst([transient(), throttled(3), transient()]), throttled(3));
        let capacity = || ProviderError::Capacity("none".to_owned());
        assert_eq!(worst([throttled(3), capacity(), throttled(9)]), capacity());
    }
}
