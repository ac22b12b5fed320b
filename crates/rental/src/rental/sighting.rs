//! Whether a volume is there: the provider may not know one for a while that is.

use std::collections::BTreeSet;
use std::time::Duration;

use surgetank_model::volume::{VolumeDescription, VolumeId, VolumeState};
use surgetank_model::{Absence, Instant, Lag};

use crate::planted::{Bug, planted};
use crate::record::Missing;
use crate::stripe;

/// Two clocks tell the same time if they differ by less, in milliseconds.
const CLOCKS_MS: u64 = 1000;

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
    /// The members of a stripe that were there nevertheless when that was told last.
    there: BTreeSet<VolumeId>,
    /// What an earlier process has written down of its absence has been looked at.
    recalled: bool,
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
            there: BTreeSet::new(),
            recalled: false,
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
            (self.seen, self.recalled) = (true, true);
            self.absence.ends();
            return true;
        }
        let members = described.into_iter().flat_map(|volume| &volume.members);
        let there: BTreeSet<VolumeId> = members.map(|member| member.id.clone()).collect();
        if self.there != there {
            // That a part is gone says nothing of the others.
            self.absence.ends();
            self.there = there;
        }
        // One that was not seen yet may have been made only now, by this process or the one before.
        let lag = if self.seen { lag.known } else { lag.longest() };
        self.absence.is_believed(now, lag) || self.deleted || planted(Bug::AbsenceBelieved)
    }

    /// It is not known, which is not believed: goes on from what is on record of that, and answers what is to be on record from now on, if it
    /// is something else. `lag`: how long a process waits that has not seen the volume.
    pub(super) fn note_missing(&mut self, record: Option<&Missing>, unix_ms: u64, lag: Duration) -> Option<Missing> {
        let record = record.filter(|missing| missing.there == self.there);
        // A clock that has stepped backwards proves nothing.
        let ago = |then_ms: u64| unix_ms.checked_sub(then_ms).map(Duration::from_millis);
        if !std::mem::replace(&mut self.recalled, true)
            && let Some(missing) = record
            && ago(missing.told_unix_ms).is_some_and(|ago| ago <= Lag::gap(lag))
        {
            self.absence.was_told_before(ago(missing.since_unix_ms).unwrap_or_default());
        }
        let lasts_ms = u64::try_from(self.absence.lasts().as_millis()).unwrap_or(u64::MAX);
        let since_unix_ms = unix_ms.saturating_sub(lasts_ms);
        let is_so = |missing: &Missing| {
            since_unix_ms <= missing.since_unix_ms + CLOCKS_MS
                && ago(missing.told_unix_ms).is_some_and(|ago| ago < Lag::gap(lag) / 2)
        };
        let there = self.there.clone();
        (!record.is_some_and(is_so)).then_some(Missing { since_unix_ms, told_unix_ms: unix_ms, there })
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
    use crate::record::{RentalStage, Slot};
    use crate::rental::{Config, Ended, Rental};
    use crate::rented::{self, described, rented};

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
        /// When this process has begun, by the wall clock.
        begun: Duration,
        calls: Vec<Call>,
    }

    impl Cloud {
        fn of(stage: RentalStage) -> Self {
            let mut rental = rented(stage, true);
            rental.config.lag = Lag::CLOUD;
            let (changes, lists, calls) = (Change::Changed, Vec::new(), Vec::new());
            let begun = Duration::from_secs(1_000_000);
            Self { rental, now: Instant::ZERO, says: None, changes, lists, persists: true, begun, calls }
        }

        /// Ends the process, and begins another one after a while.
        fn restarts(&mut self, after: Duration) {
            self.begun += self.now.since(Instant::ZERO) + after;
            (self.now, self.calls) = (Instant::ZERO, Vec::new());
            let record = self.rental.record().cloned();
            let config = Config { lag: Lag::CLOUD, ..rented::config() };
            self.rental = Rental::new(config, Slot::CACHE, record);
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
                Ask::Draw => {
                    let unix = self.begun + self.now.since(Instant::ZERO);
                    Answer::Drawn { random: [0; 16], unix_ms: unix.as_millis() as u64 }
                }
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

    /// After how long the deletion of a volume that is not known ends, if each process lives for so long and the next one begins so long
    /// after it.
    fn ends_after(
        lives: Duration,
        pause: Duration,
        restarts: u32,
        meanwhile: impl Fn(&mut Cloud, u32),
    ) -> Option<Duration> {
        let (mut cloud, mut before) = (Cloud::of(RentalStage::Deleting), Duration::ZERO);
        for number in 0..restarts {
            cloud.rental.begin(cloud.now, StepId(number.into()), Step::Delete, None);
            if let Some(outcome) = cloud.runs(lives) {
                assert_eq!(outcome, StepOutcome::Done);
                return Some(before + cloud.now.since(Instant::ZERO));
            }
            meanwhile(&mut cloud, number);
            before += cloud.now.since(Instant::ZERO) + pause;
            cloud.restarts(pause);
        }
        None
    }

    #[test]
    fn a_wait_for_a_volume_that_is_not_known_goes_on_after_a_restart() {
        let seconds = Duration::from_secs;
        let ends = |lives: u64, pause: u64| ends_after(seconds(lives), seconds(pause), 30, |_, _| {});
        for (lives, pause) in [(100, 0), (20, 0), (20, 12), (3, 3)] {
            let ended = ends(lives, pause).unwrap_or_else(|| panic!("lives of {lives} s, {pause} s between"));
            assert!(ended >= seconds(60) && ended <= seconds(60 + pause + 1), "lives of {lives} s: {ended:?}");
        }
        assert_eq!(ends(20, 31), None, "nobody has looked for half of the time");
        let ended = ends_after(seconds(20), seconds(1), 30, |cloud, number| {
            if number == 1 {
                cloud.says = Some(VolumeState::Detaching);
                assert_eq!(cloud.runs(seconds(1)), None);
                cloud.says = None;
            }
        });
        assert!(ended.is_some_and(|ended| ended >= seconds(100)), "it was known in between: {ended:?}");
        let ended = ends_after(seconds(20), seconds(1), 30, |cloud, number| {
            if number == 1 {
                cloud.begun -= seconds(3600);
            }
        });
        assert!(ended.is_some_and(|ended| ended >= seconds(100)), "the clock was set back: {ended:?}");
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
    fn that_a_member_of_a_stripe_is_gone_says_nothing_of_the_others() {
        let stripe = VolumeId("stripe:a+b".to_owned());
        let members = vec![described(VolumeState::Available, Tags::new())];
        let part = VolumeDescription { id: stripe.clone(), members, ..described(VolumeState::Available, Tags::new()) };
        let mut sighting = None;
        let mut at = |seconds: u64, part: Option<&VolumeDescription>| {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            Sighting::of(&mut sighting, &stripe).is_believed(now, part, Lag::CLOUD)
        };
        assert!(!at(0, Some(&part)) && !at(30, Some(&part)) && at(60, Some(&part)));
        assert!(!at(61, None) && !at(90, None) && !at(120, None) && at(121, None));
        let noted = |part, record: Option<&Missing>, unix_ms| {
            let mut sighting = None;
            let sighting = Sighting::of(&mut sighting, &stripe);
            sighting.is_believed(Instant::ZERO, part, Lag::CLOUD);
            sighting.note_missing(record, unix_ms, Lag::CLOUD.longest())
        };
        let first = noted(Some(&part), None, 1_000_000).expect("it is written down");
        assert_eq!(noted(Some(&part), Some(&first), 1_010_000), None, "the next process goes on");
        let later = noted(Some(&part), Some(&first), 1_029_000).map(|missing| missing.since_unix_ms);
        assert_eq!(later, Some(1_000_000));
        let of_all = noted(None, Some(&first), 1_010_000).map(|missing| (missing.since_unix_ms, missing.there.len()));
        assert_eq!(of_all, Some((1_010_000, 0)), "and begins anew where less is there");
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
