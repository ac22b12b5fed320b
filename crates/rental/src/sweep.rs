//! Which rented volumes nobody knows of any more: the decision behind `gc` and the start-up sweep. Pure.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::volume::{VolumeDescription, VolumeId, VolumeState, tag};

use crate::planted::{Bug, planted};
use crate::stripe;

/// What is known of the volumes beside what the provider lists.
///
/// Read it *after* the listing: a volume that was rented in between is then expected rather than an orphan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Volumes that a device uses or that its persisted intent names. A listing that lags behind may show a part of a stripe:
    /// ask [`Known::expects`].
    pub expected: BTreeSet<VolumeId>,
    /// Devices whose persisted intent is a `create` that is not answered yet: a volume tagged with one of them may be
    /// its outcome, so it is left alone.
    pub creating: BTreeSet<String>,
    /// Volumes whose log was read again and says CLEAN, with the epoch it says so for (as in [`tag::DIRTY_EPOCH`]).
    pub reread_clean: BTreeMap<VolumeId, String>,
}

impl Known {
    /// Whether a volume is one of the expected ones, or has a member of one.
    #[must_use]
    pub fn expects(&self, id: &VolumeId) -> bool {
        let overlaps = |expected| stripe::overlap(expected, id) && !planted(Bug::SweepIgnoresParts);
        self.expected.contains(id) || self.expected.iter().any(overlaps)
    }
}

/// What is listed, with the members that are not expected each for itself where others of their stripe are. Of two volumes that were
/// made for one place of a stripe one is expected, and a listing cannot know which one belongs to the others.
#[must_use]
pub fn singled(listed: &[VolumeDescription], known: &Known) -> Vec<VolumeDescription> {
    let is_expected =
        |member: &VolumeDescription| known.expected.iter().any(|volume| stripe::overlap(volume, &member.id));
    let mut singled = Vec::new();
    for volume in listed {
        if known.expects(&volume.id) && !volume.members.is_empty() {
            singled.extend(volume.members.iter().filter(|member| !is_expected(member)).cloned());
        } else {
            singled.push(volume.clone());
        }
    }
    singled
}

/// What to do about an orphan. Actions are idempotent; the sweep after the next one does what follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Detach it; once it is available the next sweep deletes it.
    Detach(VolumeId),
    /// Delete it.
    Delete(VolumeId),
    /// Its tag says that it holds the newest data of a device: never delete it. Adopt it, or read its log again and
    /// say so in [`Known::reread_clean`].
    Keep {
        /// Which volume.
        id: VolumeId,
        /// The device it serves, if its tags say.
        device: Option<String>,
        /// The epoch in its tag.
        dirty_epoch: String,
    },
}

impl Action {
    /// The volume it is about.
    #[must_use]
    pub const fn id(&self) -> &VolumeId {
        match self {
            Self::Detach(id) | Self::Delete(id) | Self::Keep { id, .. } => id,
        }
    }
}

/// Decides on every listed volume, [`singled`]: sorted by id, at most one action for each.
///
/// Volumes of other owners, expected ones, and those on their way out of a machine or of existence need nothing. A
/// volume that may hold data is kept, whatever else is true of it: the tag is set before the first dirty byte and
/// removed after CLEAN is durable, so its absence proves that nothing would be lost.
#[must_use]
pub fn orphans(listed: &[VolumeDescription], owner_id: &str, known: &Known) -> Vec<Action> {
    let mut actions = BTreeMap::new();
    for volume in listed {
        if let Some(action) = decide(volume, owner_id, known) {
            // Should a provider list a volume twice, caution wins: keep, else detach, else delete.
            let caution = |action: &Action| match action {
                Action::Delete(_) => 0,
                Action::Detach(_) => 1,
                Action::Keep { .. } => 2,
            };
            let there = actions.entry(volume.id.clone()).or_insert_with(|| action.clone());
            if caution(&action) > caution(there) {
                *there = action;
            }
        }
    }
    actions.into_values().collect()
}

/// Whether the volume of an action is to be treated so, now that it was described: listings lag behind. It may be gone, or in
/// another state, or carry a tag that the listing did not show; then the next sweep decides anew.
#[must_use]
pub fn is_confirmed(action: &Action, described: &VolumeDescription, owner_id: &str, known: &Known) -> bool {
    let is_whole = stripe::is_whole(described);
    is_whole && described.id == *action.id() && decide(described, owner_id, known).as_ref() == Some(action)
}

fn decide(volume: &VolumeDescription, owner_id: &str, known: &Known) -> Option<Action> {
    let ours = volume.tags.get(tag::OWNER).is_some_and(|owner| owner == owner_id);
    let device = volume.tags.get(tag::DEVICE);
    let in_flight = device.is_some_and(|device| known.creating.contains(device));
    let in_flight = in_flight && !planted(Bug::SweepIgnoresCreations);
    if !ours || in_flight || known.expects(&volume.id) || planted(Bug::SweepIgnoresOrphans) {
        return None;
    }
    if let Some(epoch) = volume.tags.get(tag::DIRTY_EPOCH)
        && known.reread_clean.get(&volume.id) != Some(epoch)
        && !planted(Bug::SweepIgnoresTags)
    {
        return Some(Action::Keep { id: volume.id.clone(), device: device.cloned(), dirty_epoch: epoch.clone() });
    }
    match volume.state {
        VolumeState::Creating | VolumeState::Available | VolumeState::Failed => Some(Action::Delete(volume.id.clone())),
        VolumeState::Attaching | VolumeState::Attached => Some(Action::Detach(volume.id.clone())),
        VolumeState::Detaching | VolumeState::Deleting => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_model::Bytes;

    use super::*;

    fn volume(id: &str, owner: &str, state: VolumeState, dirty: Option<&str>) -> VolumeDescription {
        let mut tags =
            BTreeMap::from([(tag::OWNER.to_owned(), owner.to_owned()), (tag::DEVICE.to_owned(), "data".to_owned())]);
        tags.extend(dirty.map(|epoch| (tag::DIRTY_EPOCH.to_owned(), epoch.to_owned())));
        let (id, volume_type, size) = (VolumeId(id.to_owned()), "fast".to_owned(), Bytes::from_gib(1));
        VolumeDescription { id, state, volume_type, size, tags, device: None, disk: None, members: Vec::new() }
    }

    fn ids(ids: &[&str]) -> BTreeSet<VolumeId> {
        ids.iter().map(|&id| VolumeId(id.to_owned())).collect()
    }

    #[test]
    fn an_orphan_is_detached_then_deleted() {
        let known = Known::default();
        let id = VolumeId("a".to_owned());
        for (state, action) in [
            (VolumeState::Attaching, Some(Action::Detach(id.clone()))),
            (VolumeState::Attached, Some(Action::Detach(id.clone()))),
            (VolumeState::Detaching, None),
            (VolumeState::Available, Some(Action::Delete(id.clone()))),
            (VolumeState::Creating, Some(Action::Delete(id.clone()))),
            (VolumeState::Deleting, None),
            (VolumeState::Failed, Some(Action::Delete(id.clone()))),
        ] {
            let actions = orphans(&[volume("a", "us", state, None)], "us", &known);
            assert_eq!(actions, action.into_iter().collect::<Vec<_>>(), "{state:?}");
        }
    }

    #[test]
    fn dirty_volumes_go_only_after_the_same_epoch_was_reread_clean() {
        let listed = [volume("a", "us", VolumeState::Available, Some("e1"))];
        let keep = Action::Keep {
            id: VolumeId("a".to_owned()),
            device: Some("data".to_owned()),
            dirty_epoch: "e1".to_owned(),
        };
        let mut known = Known::default();
        assert_eq!(orphans(&listed, "us", &known), std::slice::from_ref(&keep));
        known.reread_clean.insert(VolumeId("a".to_owned()), "e0".to_owned());
        assert_eq!(orphans(&listed, "us", &known), [keep]);
        known.reread_clean.insert(VolumeId("a".to_owned()), "e1".to_owned());
        assert_eq!(orphans(&listed, "us", &known), [Action::Delete(VolumeId("a".to_owned()))]);
    }

    #[test]
    fn a_failed_volume_that_may_hold_data_is_kept() {
        let actions = orphans(&[volume("a", "us", VolumeState::Failed, Some("e1"))], "us", &Known::default());
        assert!(matches!(&*actions, [Action::Keep { .. }]), "{actions:?}");
    }

    #[test]
    fn a_volume_that_was_made_twice_for_a_place_of_a_stripe_is_an_orphan() {
        let member = |id: &str| volume(id, "us", VolumeState::Available, None);
        let stripe = |ids: &[&str]| VolumeDescription {
            members: ids.iter().map(|id| member(id)).collect(),
            ..member(&format!("stripe:{}", ids.join("+")))
        };
        let known = Known { expected: ids(&["stripe:b+c"]), ..Known::default() };
        let listed = singled(&[stripe(&["a", "c"]), stripe(&["b"]), stripe(&["d"]), member("e")], &known);
        let actions = orphans(&listed, "us", &known);
        let deleted = ["a", "e", "stripe:d"].map(|id| Action::Delete(VolumeId(id.to_owned())));
        assert_eq!(actions, deleted);
        assert!(is_confirmed(&actions[0], &member("a"), "us", &known));
    }

    #[test]
    fn a_sweep_takes_nothing_that_is_not_as_it_was_listed() {
        let known = Known::default();
        let listed = volume("a", "us", VolumeState::Available, None);
        let actions = orphans(std::slice::from_ref(&listed), "us", &known);
        let [action] = &*actions else { panic!("{actions:?}") };
        assert!(is_confirmed(action, &listed, "us", &known));
        let dirty = volume("a", "us", VolumeState::Available, Some("e1"));
        let attached = volume("a", "us", VolumeState::Attached, None);
        let theirs = volume("a", "them", VolumeState::Available, None);
        for now in [dirty, attached, theirs] {
            assert!(!is_confirmed(action, &now, "us", &known), "{now:?}");
        }
        let whole = VolumeDescription { id: VolumeId("stripe:a+b".to_owned()), ..listed.clone() };
        let actions = orphans(std::slice::from_ref(&whole), "us", &known);
        let part = VolumeDescription { members: vec![listed], ..whole };
        assert!(!is_confirmed(&actions[0], &part, "us", &known), "what is not known of it may carry a tag");
    }

    #[test]
    fn a_create_in_flight_is_no_orphan() {
        let listed = [volume("a", "us", VolumeState::Available, None)];
        let known = Known { creating: BTreeSet::from(["data".to_owned()]), ..Known::default() };
        assert_eq!(orphans(&listed, "us", &known), []);
        let known = Known { creating: BTreeSet::from(["other".to_owned()]), ..Known::default() };
        assert_eq!(orphans(&listed, "us", &known).len(), 1);
    }

    fn any_state() -> impl Strategy<Value = VolumeState> {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};
        prop::sample::select(vec![Creating, Available, Attaching, Attached, Detaching, Deleting, Failed])
    }

    fn any_volume() -> impl Strategy<Value = VolumeDescription> {
        let name = |names: &'static [&'static str]| prop::sample::select(names);
        (name(&["a", "b", "c", "d", "e"]), name(&["us", "them"]), any_state(), prop::option::of(name(&["e1", "e2"])))
            .prop_map(|(id, owner, state, dirty)| volume(id, owner, state, dirty))
    }

    proptest! {
        #[test]
        fn only_our_unexpected_clean_volumes_are_touched(
            listed in prop::collection::vec(any_volume(), 0..12),
            expected in prop::collection::btree_set(prop::sample::select(vec!["a", "b", "c"]), 0..3),
            clean in prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c", "d"]), prop::sample::select(vec!["e1", "e2"]), 0..3),
        ) {
            let known = Known {
                expected: ids(&expected.into_iter().collect::<Vec<_>>()),
                creating: BTreeSet::new(),
                reread_clean: clean.into_iter().map(|(id, epoch)| (VolumeId(id.to_owned()), epoch.to_owned())).collect(),
            };
            let actions = orphans(&listed, "us", &known);
            let mut sorted = actions.clone();
            sorted.sort_by(|a, b| a.id().cmp(b.id()));
            sorted.dedup_by(|a, b| a.id() == b.id());
            prop_assert_eq!(&actions, &sorted);
            for action in &actions {
                prop_assert!(!known.expected.contains(action.id()));
                let ours = listed.iter().filter(|volume| volume.id == *action.id() && volume.tags[tag::OWNER] == "us");
                let dirty = ours.clone().filter_map(|volume| volume.tags.get(tag::DIRTY_EPOCH));
                let all_clean = dirty.clone().all(|epoch| known.reread_clean.get(action.id()) == Some(epoch));
                prop_assert!(ours.count() > 0);
                prop_assert_eq!(all_clean, !matches!(action, Action::Keep { .. }));
            }
            // Completeness: what is ours, at rest, unexpected and known clean goes.
            for volume in listed.iter().filter(|volume| volume.state == VolumeState::Available) {
                let ours = volume.tags[tag::OWNER] == "us" && !known.expected.contains(&volume.id);
                prop_assert!(!ours || actions.iter().any(|action| *action.id() == volume.id));
            }
        }

        #[test]
        fn the_order_of_the_listing_does_not_matter(listed in prop::collection::vec(any_volume(), 0..8)) {
            let mut reversed = listed.clone();
            reversed.reverse();
            // A volume listed twice with different epochs keeps the first one's text; the decision is the same.
            let verdicts = |listed: &[VolumeDescription]| -> Vec<_> {
                let actions = orphans(listed, "us", &Known::default());
                actions.iter().map(|action| (action.id().clone(), std::mem::discriminant(action))).collect()
            };
            prop_assert_eq!(verdicts(&listed), verdicts(&reversed));
        }
    }
}
