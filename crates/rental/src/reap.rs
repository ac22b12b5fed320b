//! Which volumes of an account are deleted because the machine that rented them is gone: the decision behind `gc --account`. Pure.
//!
//! The [`sweep`](crate::sweep) deletes what a daemon itself has forgotten. What is left when the machine goes with its daemon, nobody
//! sweeps. Whoever decides here knows no daemon's records, so it goes by what the cloud says alone, and in doubt it keeps.

use std::time::Duration;

use surgetank_model::account::{AccountVolume, Machine};
use surgetank_model::volume::{VolumeState, tag};

use crate::planted::{Bug, planted};

/// How old a volume is at least before it is deleted, unless somebody says otherwise.
pub const DEAD_FOR: Duration = Duration::from_secs(2 * 3600);
/// The least age that may be said. A volume is rented, attached and tagged within minutes, and a cloud tells late of all three: an age
/// below this would delete what a boost is about to use.
pub const DEAD_FOR_MIN: Duration = Duration::from_secs(600);

/// What may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    dead_for: Duration,
    takes_unnamed: bool,
}

impl Default for Rule {
    /// What is older than [`DEAD_FOR`], and of which it is known that its machine is gone.
    fn default() -> Self {
        Self { dead_for: DEAD_FOR, takes_unnamed: false }
    }
}

impl Rule {
    /// What is older than this, also if no tag says which machine rented it: an age that somebody has written is a statement that
    /// whatever is so old and unattached is needed no more.
    ///
    /// # Errors
    /// One sentence: the age is below [`DEAD_FOR_MIN`].
    pub fn older_than(dead_for: Duration) -> Result<Self, String> {
        if dead_for < DEAD_FOR_MIN {
            return Err(format!(
                "volumes that are younger than {} min may be on their way to a machine: write a longer time, such as \"2 h\"",
                DEAD_FOR_MIN.as_secs() / 60
            ));
        }
        Ok(Self { dead_for, takes_unnamed: true })
    }

    /// How old a volume is at least.
    #[must_use]
    pub const fn dead_for(&self) -> Duration {
        self.dead_for
    }
}

/// What is known of the machine that rented a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renter {
    /// What the cloud says of it.
    Known(Machine),
    /// The cloud did not say whether it is there.
    Unanswered,
    /// The volume's tags do not say which one it is.
    Unnamed,
}

/// What is to be done with a volume of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is on it that anybody needs: it can be deleted.
    Delete,
    /// It may hold the newest data of a device, and no machine is known that will write it back. It is never deleted here.
    Dirty,
    /// It stays, or goes by itself.
    Keep(Reason),
}

/// Why a volume is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It does not bear the tag of an owner.
    NotOurs,
    /// It is being deleted.
    Leaving,
    /// A machine has it attached, or may have.
    Attached,
    /// The cloud has it attached to a machine that, as the cloud says, is gone.
    AttachedToNone,
    /// The machine that rented it is there: its daemon sweeps.
    MachineExists,
    /// It is being made.
    BeingMade,
    /// It is too young.
    Young,
    /// Nobody says how old it is.
    AgeUnknown,
    /// The cloud did not say whether its machine is there.
    MachineUnanswered,
    /// No tag says which machine rented it, and nobody has said how old such volumes must be.
    MachineUnnamed,
}

impl Reason {
    /// In a few words, for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotOurs => "it bears no owner's tag",
            Self::Leaving => "it is being deleted",
            Self::Attached => "a machine has it attached",
            Self::AttachedToNone => "the cloud has it attached to a machine that is gone: detach it there",
            Self::MachineExists => "a machine of its name exists, whose daemon sweeps",
            Self::BeingMade => "it is being made",
            Self::Young => "it is too young",
            Self::AgeUnknown => "its age is not known",
            Self::MachineUnanswered => "the cloud does not say whether its machine exists",
            Self::MachineUnnamed => "its tags name no machine: --dead-for says how old such volumes must be",
        }
    }
}

/// How old a volume is; `None`: nobody says. Clocks differ: one that is made in the future is new.
#[must_use]
pub fn age(of: &AccountVolume, now_ms: u64) -> Option<Duration> {
    of.created_ms.map(|created_ms| Duration::from_millis(now_ms.saturating_sub(created_ms)))
}

/// Decides on one volume.
///
/// That no dirty tag is on a volume proves that nothing is lost with it: the tag is set before the first dirty byte, when the volume is
/// attached already, and removed after CLEAN is durable. So whatever changes after the volume was described, the cloud refuses to
/// delete it if it matters: it is attached by then.
#[must_use]
pub fn decide(of: &AccountVolume, renter: Renter, rule: &Rule, now_ms: u64) -> Verdict {
    use VolumeState::{Attached, Attaching, Creating, Deleting, Detaching};

    let volume = &of.volume;
    let is_attached = (of.attached_to.is_some() || matches!(volume.state, Attaching | Attached | Detaching))
        && !planted(Bug::ReaperIgnoresAttachments);
    let is_dirty = volume.tags.contains_key(tag::DIRTY_EPOCH);
    let age = age(of, now_ms);
    let is_young = age.is_some_and(|age| age < rule.dead_for);
    if !volume.tags.contains_key(tag::OWNER) {
        return Verdict::Keep(Reason::NotOurs);
    }
    if volume.state == Deleting {
        return Verdict::Keep(Reason::Leaving);
    }
    // To its renter, which may be gone, and the cloud has not noticed.
    let is_renters = of.attached_to.as_ref().is_none_or(|at| of.machine.as_ref() == Some(at));
    let is_left = renter == Renter::Known(Machine::Gone) && is_renters && age.is_some() && !is_young;
    if is_attached && !is_left {
        return Verdict::Keep(Reason::Attached);
    }
    if renter == Renter::Known(Machine::Exists) && !planted(Bug::ReaperIgnoresMachines) {
        return Verdict::Keep(Reason::MachineExists);
    }
    // Of a machine that is gone, data waits for somebody however young it is.
    if is_dirty && (renter == Renter::Known(Machine::Gone) || !is_young) && !planted(Bug::ReaperIgnoresTags) {
        return Verdict::Dirty;
    }
    if is_attached {
        return Verdict::Keep(Reason::AttachedToNone);
    }
    if volume.state == Creating {
        return Verdict::Keep(Reason::BeingMade);
    }
    if age.is_none() {
        return Verdict::Keep(Reason::AgeUnknown);
    }
    if is_young && !planted(Bug::ReaperIgnoresAge) {
        return Verdict::Keep(Reason::Young);
    }
    match renter {
        Renter::Unanswered => Verdict::Keep(Reason::MachineUnanswered),
        Renter::Unnamed if !rule.takes_unnamed => Verdict::Keep(Reason::MachineUnnamed),
        Renter::Known(_) | Renter::Unnamed => Verdict::Delete,
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bytes;
    use surgetank_model::volume::{Tags, VolumeDescription, VolumeId};

    use super::*;
    use crate::planted::shows;

    const NOW_MS: u64 = 1_795_859_878_000;
    const STATES: [VolumeState; 7] = {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};
        [Creating, Available, Attaching, Attached, Detaching, Deleting, Failed]
    };

    const RENTERS: [Renter; 4] =
        [Renter::Known(Machine::Exists), Renter::Known(Machine::Gone), Renter::Unanswered, Renter::Unnamed];

    fn volume(state: VolumeState, tags: Tags) -> VolumeDescription {
        let (id, volume_type, size) = (VolumeId("v".to_owned()), "fast".to_owned(), Bytes::from_gib(1));
        VolumeDescription { id, state, volume_type, size, tags, device: None, disk: None, members: Vec::new() }
    }

    /// Everything on which a decision may depend.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        state: VolumeState,
        is_ours: bool,
        is_dirty: bool,
        has_user: bool,
        renter: Renter,
        /// In minutes; negative: it was made in the future.
        age_min: Option<i64>,
        /// What somebody has written, in minutes.
        written_min: Option<u64>,
    }

    impl Case {
        fn rule(&self) -> Rule {
            let older_than = |minutes| Rule::older_than(Duration::from_secs(60 * minutes)).unwrap();
            self.written_min.map_or_else(Rule::default, older_than)
        }

        fn decide(&self) -> Verdict {
            let mut tags = Tags::new();
            if self.is_ours {
                tags.insert(tag::OWNER.to_owned(), "o".to_owned());
            }
            if self.is_dirty {
                tags.insert(tag::DIRTY_EPOCH.to_owned(), "1".to_owned());
            }
            let volume = volume(self.state, tags);
            let created_ms = self.age_min.map(|minutes| NOW_MS.checked_add_signed(-minutes * 60_000).unwrap());
            let attached_to = self.has_user.then(|| "m".to_owned());
            let of = AccountVolume { volume, machine: Some("m".to_owned()), attached_to, created_ms };
            decide(&of, self.renter, &self.rule(), NOW_MS)
        }

        /// Why it must not be deleted, as the promise has it; `None`: it must be.
        fn promise(&self) -> Option<&'static str> {
            let least_min = self.written_min.unwrap_or(120);
            let is_old = self.age_min.is_some_and(|age_min| age_min >= i64::try_from(least_min).unwrap());
            let is_at_rest = matches!(self.state, VolumeState::Available | VolumeState::Failed) && !self.has_user;
            match self {
                Self { is_ours: false, .. } => Some("it is foreign"),
                Self { is_dirty: true, .. } => Some("it may hold data"),
                Self { renter: Renter::Known(Machine::Exists), .. } => Some("its machine exists"),
                Self { renter: Renter::Unanswered, .. } => Some("its machine may exist"),
                Self { renter: Renter::Unnamed, written_min: None, .. } => Some("nobody has said so"),
                _ if !is_at_rest => Some("it is in use, or on its way"),
                _ if !is_old => Some("it may be on its way to a machine"),
                _ => None,
            }
        }
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for state in STATES {
            for bits in 0..8 {
                for renter in RENTERS {
                    for age_min in [None, Some(-5), Some(0), Some(9), Some(10), Some(119), Some(120), Some(100_000)] {
                        for written_min in [None, Some(10), Some(120)] {
                            let (is_ours, is_dirty, has_user) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                            cases.push(Case { state, is_ours, is_dirty, has_user, renter, age_min, written_min });
                        }
                    }
                }
            }
        }
        cases
    }

    /// Whether every case is decided as promised.
    fn holds() -> Result<(), String> {
        for case in cases() {
            let verdict = case.decide();
            if (verdict == Verdict::Delete) != case.promise().is_none() {
                return Err(format!("{verdict:?} of {case:?}: {:?}", case.promise()));
            }
        }
        Ok(())
    }

    #[test]
    fn what_is_deleted_is_ours_clean_unattached_old_and_of_a_machine_that_is_gone_and_nothing_else() {
        assert_eq!(holds(), Ok(()));
        assert!(cases().iter().any(|case| case.decide() == Verdict::Delete));
    }

    #[test]
    fn dirty_volumes_that_no_machine_will_write_back_are_told() {
        for case in cases().into_iter().filter(|case| case.is_ours && case.is_dirty) {
            let is_attached = case.has_user
                || matches!(case.state, VolumeState::Attaching | VolumeState::Attached | VolumeState::Detaching);
            let is_left = case.state != VolumeState::Deleting && case.renter != Renter::Known(Machine::Exists);
            let least_min = i64::try_from(case.rule().dead_for().as_secs() / 60).unwrap();
            let is_told = match (is_attached, case.renter) {
                // The machine that has it is that of its tag.
                (true, Renter::Known(Machine::Gone)) => case.age_min.is_some_and(|age_min| age_min >= least_min),
                (true, _) => false,
                (false, Renter::Known(Machine::Gone)) => true,
                // A boost of a machine that cannot be asked for may detach it and attach it again.
                (false, _) => case.age_min.is_none_or(|age_min| age_min >= least_min),
            };
            assert_eq!(case.decide() == Verdict::Dirty, is_left && is_told, "{case:?}");
        }
    }

    #[test]
    fn what_another_machine_than_its_renter_has_attached_is_that_machines_affair() {
        let of = |at: &str| AccountVolume {
            volume: volume(VolumeState::Attached, Tags::from([(tag::OWNER.to_owned(), "o".to_owned())])),
            machine: Some("m".to_owned()),
            attached_to: Some(at.to_owned()),
            created_ms: Some(0),
        };
        let decide = |at| decide(&of(at), Renter::Known(Machine::Gone), &Rule::default(), NOW_MS);
        assert_eq!(decide("rescue"), Verdict::Keep(Reason::Attached));
        assert_eq!(decide("m"), Verdict::Keep(Reason::AttachedToNone));
    }

    #[test]
    fn each_planted_bug_of_the_decision_is_found() {
        for bug in
            [Bug::ReaperIgnoresAttachments, Bug::ReaperIgnoresMachines, Bug::ReaperIgnoresTags, Bug::ReaperIgnoresAge]
        {
            assert!(shows(bug, holds).is_some(), "{bug:?} is not found");
        }
    }

    #[test]
    fn an_age_at_which_a_volume_may_be_on_its_way_to_a_machine_is_refused() {
        let rule = |seconds| Rule::older_than(Duration::from_secs(seconds));
        assert!(rule(599).unwrap_err().contains("10 min"));
        assert_eq!(rule(600).map(|rule| rule.dead_for()), Ok(DEAD_FOR_MIN));
    }
}
