//! Whether a volume is there: the provider may not know one for a while that is.

use std::collections::BTreeSet;

use surgetank_model::volume::{VolumeDescription, VolumeId, VolumeState};
use surgetank_model::{Absence, Instant, Lag};

use crate::planted::{Bug, planted};
use crate::stripe;

/// What is known of the volumes of a rental's token beside what is on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// The volume that a creation has made, or a listing has shown, and whose name may not be on record.
    pub(super) made: Option<VolumeId>,
    /// Members of volumes that are known to be gone, or on their way, whatever a listing shows.
    gone: BTreeSet<VolumeId>,
}

impl Names {
    /// A volume is gone.
    pub(super) fn is_gone(&mut self, volume: &VolumeId) {
        self.gone.extend(stripe::members(volume));
    }

    /// Whether something of a volume may be there.
    pub(super) fn may_be_there(&self, volume: &VolumeId) -> bool {
        stripe::members(volume).iter().any(|member| !self.gone.contains(member))
    }
}

/// What the provider has said of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    volume: VolumeId,
    /// It was there as a whole, in the life of this process.
    seen: bool,
    /// The provider has accepted its deletion, and nothing has shown since that it failed: then nothing is wrong when it does not
    /// know it.
    deleted: bool,
    absence: Absence,
}

impl Sighting {
    /// That of a volume, which begins anew with another one.
    pub(super) fn of<'a>(sighting: &'a mut Option<Self>, volume: &VolumeId) -> &'a mut Self {
        let same = sighting.take().filter(|sighting| sighting.volume == *volume);
        sighting.insert(same.unwrap_or_else(|| Self {
            volume: volume.clone(),
            seen: false,
            deleted: false,
            absence: Absence::default(),
        }))
    }

    /// Whether what the provider says now of what is there is all that there is of the volume; `None`: it knows none.
    pub(super) fn is_believed(&mut self, now: Instant, described: Option<&VolumeDescription>, lag: Lag) -> bool {
        let is_whole = described.is_some_and(stripe::is_whole);
        if let Some(volume) = described {
            // A deletion that was accepted may fail, and then the volume is seen again.
            self.deleted = volume.state == VolumeState::Deleting && (self.deleted || is_whole);
        }
        if is_whole {
            self.seen = true;
            self.absence.ends();
            return true;
        }
        // One that was not seen yet may have been made only now, by this process or the one before.
        let lag = if self.seen { lag.known } else { lag.longest() };
        self.absence.is_believed(now, lag) || self.deleted || planted(Bug::AbsenceBelieved)
    }

    /// The provider has accepted the deletion of all that is there of it.
    pub(super) fn is_deleted(&mut self) {
        self.deleted = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use surgetank_model::Bytes;
    use surgetank_model::volume::{Change, ProviderError, Tags, Transition, tag};
    use surgetank_policy::{Step, StepId, StepOutcome};

    use super::*;
    use crate::ask::{Answer, Ask, Call};
    use crate::owner::OwnerRecord;
    use crate::record::RentalStage;
    use crate::rental::{Ended, Rental};
    use crate::rented::{described, rented};

    /// A volume whose provider may lag, and which is at the moment not known.
    struct Cloud {
        rental: Rental,
        now: Instant,
        /// What it says of the volume; `None`: it does not know it.
        says: Option<VolumeState>,
        /// What it answers to changes.
        changes: Change,
        /// What it lists.
        lists: Vec<VolumeDescription>,
        /// Whether the state directory can be written.
        persists: bool,
        calls: Vec<Call>,
    }

    impl Cloud {
        fn of(stage: RentalStage) -> Self {
            let mut rental = rented(stage, true);
            rental.config.lag = Lag::CLOUD;
            let (changes, lists, calls) = (Change::Changed, Vec::new(), Vec::new());
            Self { rental, now: Instant::ZERO, says: None, changes, lists, persists: true, calls }
        }

        /// Lets the rental act until it waits for so long, or has ended a step.
        fn runs(&mut self, time: Duration) -> Option<StepOutcome> {
            let until = self.now + time;
            loop {
                while let Some((id, ask)) = self.rental.next_ask() {
                    let answer = self.answer(ask);
                    self.rental.complete(self.now, id, answer);
                }
                if let Some(Ended::Step(_, outcome)) = self.rental.next_ended() {
                    return Some(outcome);
                }
                self.now = self.rental.next_deadline().filter(|at| *at <= until)?;
                self.rental.tick(self.now);
            }
        }

        fn answer(&mut self, ask: Ask) -> Answer {
            match ask {
                Ask::Persist(_) => Answer::Persisted(self.persists.then_some(()).ok_or_else(|| "full".to_owned())),
                Ask::Owner => Answer::Owner(Ok(OwnerRecord::default())),
                Ask::Provider(Call::Describe(id)) => {
                    let there = self.says.map(|state| described(state, Tags::new()));
                    Answer::Described(there.ok_or(ProviderError::NotFound(id)))
                }
                Ask::Provider(call) => {
                    self.calls.push(call.clone());
                    if matches!(call, Call::List { .. }) {
                        Answer::Listed(Ok(self.lists.clone()))
                    } else {
                        Answer::Changed(Ok(self.changes))
                    }
                }
                ask => panic!("{ask:?}"),
            }
        }
    }

    const LONG: Duration = Duration::from_secs(59);

    #[test]
    fn a_volume_that_is_not_known_yet_is_being_made() {
        let mut cloud = Cloud::of(RentalStage::Creating);
        cloud.rental.begin(cloud.now, StepId(1), Step::Create { size: Bytes::from_gib(1) }, None);
        assert_eq!(cloud.runs(LONG), None);
        cloud.says = Some(VolumeState::Available);
        assert_eq!(cloud.runs(LONG), Some(StepOutcome::Done));
    }

    #[test]
    fn a_volume_that_is_not_known_for_a_while_is_not_forgotten() {
        let mut cloud = Cloud::of(RentalStage::Released);
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!((cloud.runs(LONG), &*cloud.calls), (None, &[][..]), "nothing is decided");
        cloud.says = Some(VolumeState::Available);
        assert_eq!(cloud.runs(Duration::from_secs(1)), None);
        let delete = Call::ChangeState(described(VolumeState::Available, Tags::new()).id, Transition::Delete);
        assert_eq!(cloud.calls.first(), Some(&delete));
        cloud.says = None;
        let begun = cloud.now;
        assert_eq!(cloud.runs(LONG), Some(StepOutcome::Done));
        assert!(cloud.now.since(begun) < Duration::from_secs(1), "its deletion was accepted");
    }

    #[test]
    fn a_volume_that_is_not_known_for_long_is_gone() {
        let mut cloud = Cloud::of(RentalStage::Released);
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!(cloud.runs(Duration::from_secs(61)), Some(StepOutcome::Done));
        assert!(
            matches!(&*cloud.calls, [Call::List { .. }]),
            "another one of its token is looked for: {:?}",
            cloud.calls
        );
        assert!(cloud.rental.record().is_none());
    }

    #[test]
    fn a_deletion_that_finds_no_volume_proves_nothing() {
        let mut cloud = Cloud::of(RentalStage::Released);
        (cloud.says, cloud.changes) = (Some(VolumeState::Available), Change::Identity);
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!(cloud.runs(Duration::from_secs(1)), None);
        cloud.says = None;
        assert_eq!(cloud.runs(Duration::from_secs(29)), None);
        assert_eq!(cloud.runs(Duration::from_secs(3)), Some(StepOutcome::Done));
    }

    #[test]
    fn a_deletion_that_fails_after_it_was_accepted_is_asked_for_again() {
        let mut cloud = Cloud::of(RentalStage::Released);
        let delete = Call::ChangeState(described(VolumeState::Available, Tags::new()).id, Transition::Delete);
        cloud.says = Some(VolumeState::Deleting);
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!((cloud.runs(LONG), &*cloud.calls), (None, &[][..]), "it is waited for");
        (cloud.says, cloud.changes) = (Some(VolumeState::Available), Change::Identity);
        assert_eq!(cloud.runs(Duration::from_secs(1)), None);
        assert_eq!(cloud.calls.first(), Some(&delete), "it has failed");
        cloud.says = None;
        assert_eq!(cloud.runs(Duration::from_secs(29)), None, "it may be there");
        cloud.says = Some(VolumeState::Deleting);
        assert_eq!(cloud.runs(Duration::from_secs(1)), None);
        cloud.says = None;
        let begun = cloud.now;
        assert_eq!(cloud.runs(LONG), Some(StepOutcome::Done));
        assert!(cloud.now.since(begun) < Duration::from_secs(1), "it was being deleted");
    }

    #[test]
    fn what_is_known_of_a_volume_is_kept_until_the_record_is_gone() {
        let mut cloud = Cloud::of(RentalStage::Released);
        cloud.says = Some(VolumeState::Available);
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!(cloud.runs(Duration::from_secs(1)), None);
        (cloud.says, cloud.persists) = (None, false);
        assert!(matches!(cloud.runs(LONG), Some(StepOutcome::Refused(_))));
        cloud.persists = true;
        cloud.rental.begin(cloud.now, StepId(2), Step::Delete, None);
        assert_eq!(cloud.runs(Duration::from_secs(1)), Some(StepOutcome::Done), "its deletion was accepted");
        assert_eq!((&cloud.rental.names, &cloud.rental.sighting), (&Names::default(), &None));
    }

    #[test]
    fn a_listing_that_stays_from_before_ends_a_deletion_all_the_same() {
        let mut cloud = Cloud::of(RentalStage::Released);
        let token = || Tags::from([(tag::TOKEN.to_owned(), "t".to_owned())]);
        let listed =
            |id: &str| VolumeDescription { id: VolumeId(id.to_owned()), ..described(VolumeState::Available, token()) };
        cloud.lists = vec![listed("a"), listed("b")];
        cloud.rental.begin(cloud.now, StepId(1), Step::Delete, None);
        assert_eq!(cloud.runs(Duration::from_secs(200)), Some(StepOutcome::Done), "none of both is there");
    }

    #[test]
    fn what_is_known_in_between_is_waited_for_anew() {
        let (mut sighting, there) = (None, described(VolumeState::Attached, Tags::new()));
        let mut at = |seconds: u64, is_there: bool| {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            Sighting::of(&mut sighting, &there.id).is_believed(now, is_there.then_some(&there), Lag::CLOUD)
        };
        assert!(at(0, true) && !at(10, false) && !at(25, false) && at(30, true));
        assert!(!at(39, false) && !at(54, false) && at(69, false), "30 s after it was not known any more");
    }

    #[test]
    fn a_stripe_of_which_a_member_is_not_known_is_waited_for() {
        let stripe = VolumeId("stripe:a+b".to_owned());
        let member = described(VolumeState::Available, Tags::new());
        let part = VolumeDescription {
            id: stripe.clone(),
            members: vec![member],
            ..described(VolumeState::Available, Tags::new())
        };
        let mut sighting = None;
        let mut at = |seconds: u64| {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            Sighting::of(&mut sighting, &stripe).is_believed(now, Some(&part), Lag::CLOUD)
        };
        assert!(!at(0) && !at(30) && at(60));
        Sighting::of(&mut sighting, &stripe).is_deleted();
        let part = |state| VolumeDescription { state, ..part.clone() };
        let mut at = |seconds: u64, state| {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            Sighting::of(&mut sighting, &stripe).is_believed(now, Some(&part(state)), Lag::CLOUD)
        };
        assert!(at(100, VolumeState::Deleting), "the other one is gone already");
        assert!(!at(140, VolumeState::Available), "its deletion has failed");
        assert!(!at(180, VolumeState::Deleting), "and who knows what the other one's has done");
    }
}
