//! The life of an array's volumes: from the intent to create the first until it is certain that the last is gone.
//!
//! Each volume is a [`Rental`](crate::Rental) in a place of its own; this is who says which of them is rented for what, when it
//! begins and ends to count, and when it is deleted. A volume that counts is neither detached nor deleted: it is one from before the
//! first byte of the array is written to it, until the array says that nothing is asked of it any more *and* the record names its
//! successor. All that the array's members say for themselves (who is active, what is copied) stays there: see `surgetank_array`.
//!
//! - [`ask`](mod@ask), [`record`]: the contract with the driver, and what is durable;
//! - `creating`, `serving`, `deleting`: from nothing to an array; members that are opened and replaced; back to nothing.

pub mod ask;
mod creating;
mod deleting;
pub mod record;
mod serving;
mod status;
mod writes;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume::VolumeId;
use surgetank_model::{Bytes, Instant, Lag};
use surgetank_policy::backoff::{Backoff, throttled};
use surgetank_policy::{Refusal, Step, StepId, StepOutcome};

pub use self::ask::{Answer, Ask, Event, Found};
pub use self::record::{ArrayRecord, Facts, Held, Stage, Wanted};
pub use self::status::{MemberStatus, Part, Status};
use self::writes::Writes;
use crate::ask::{self as of_rental, AskId, Command, Obstacle, Presence, VolumeAsk};
use crate::owner::OwnerRecord;
use crate::record::Slot;
use crate::rental::{self, Notice};
use crate::rentals::Rentals;

/// The pause before the state directory, or a provider that cannot delete, is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What an array is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in the configuration.
    pub name: String,
    /// The state directory's random name, for tags.
    pub owner_id: String,
    /// The provider's name of its volumes' type.
    pub volume_type: String,
    /// Members, at most 127.
    pub members: u32,
    /// Size of a member.
    pub member_size: Bytes,
    /// How long a replaced member is kept, detached; zero: it is deleted at once.
    pub hold: Duration,
    /// Members that are replaced at the same time, at most.
    pub replaced_at_once: u32,
    /// How long a volume may take to be created, and to be attached.
    pub timeouts: (Duration, Duration),
    /// How long a member that cannot be attached is waited for when the array is opened, or as long as the provider may not know
    /// its volume, if that is longer.
    pub open_patience: Duration,
    /// When a replacement that was refused is tried again.
    pub backoff: Backoff,
    /// The time of day at [`Instant::ZERO`], in milliseconds since 1970.
    pub unix_ms_at_zero: u64,
    /// For how long the provider may not know a volume that is there.
    pub lag: Lag,
    /// Seed of the back-off's jitter.
    pub seed: u64,
}

impl Config {
    /// How long a member is waited for when the array is opened: as long as the provider may not know its volume, at least.
    fn patience(&self) -> Duration {
        self.open_patience.max(self.lag.longest())
    }
}

/// What has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The array is there; or why not: then its volumes are being deleted.
    Created(Result<(), String>),
    /// The array is served; or why not.
    Opened(Result<(), String>),
    /// A slot has a new member.
    Replaced(u32),
    /// A slot has no new member yet: the volume that was to be one is not to be had, or failed. It is tried again, unless
    /// [`Array::forget`] says otherwise.
    NotReplaced {
        /// Which slot.
        slot: u32,
        /// Why.
        refusal: Refusal,
    },
    /// Nothing is left of it.
    Deleted,
}

/// What is being done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Idle,
    Creating,
    /// Since when.
    Opening(Instant),
    Serving,
    /// Everything is deleted.
    Deleting,
}

/// What becomes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It counted when the last run ended, and nobody has looked at it yet.
    Known,
    Creating,
    Attaching,
    /// It could not be attached, and is tried again then.
    AttachLater(Instant),
    Attached,
    /// That it counts from now on is being written down.
    Counting,
    /// It is on record as one that may count.
    Counted,
    /// The array was asked to let it join.
    Asked,
    Joining,
    Active,
    /// The array is asked to end its use of it.
    Leaving,
    /// It counts no more as soon as the record names its successor; from then on.
    Retire(Instant),
    Retiring,
    Detaching,
    /// It is detached and kept until then.
    Held,
    Discarding,
}

/// A volume of the array.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The slot of the stripe that it was rented for, as far as that is known.
    slot: Option<u32>,
    doing: Doing,
}

/// When a slot's replacement is tried again.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    failed: u32,
    next: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Array {
    config: Config,
    now: Instant,
    random: Random,
    rentals: Rentals,
    writes: Writes,
    goal: Goal,
    places: BTreeMap<Slot, Place>,
    attempts: BTreeMap<u32, Attempts>,
    /// An ask of the array's own that is not answered: `Draw`, `Format` or `Serve`.
    awaited: Option<(AskId, Ask)>,
    /// Asks to join that are not answered.
    joining: BTreeMap<AskId, Slot>,
    next_ask: u64,
    asks: VecDeque<(AskId, Ask)>,
    ended: VecDeque<Ended>,
    notices: VecDeque<Notice>,
    /// What keeps it from going on, for people.
    trouble: Option<String>,
}

impl Array {
    /// Goes on from the record that is durable. What was being created or deleted is deleted, and so are volumes that do not count.
    #[must_use]
    pub fn new(config: Config, now: Instant, record: Option<ArrayRecord>) -> Self {
        let rental = rental::Config {
            device: device_tag(&config.name),
            owner_id: config.owner_id.clone(),
            volume_type: config.volume_type.clone(),
            outage_patience: Duration::ZERO,
            longest_pause: config.backoff.cap,
            volumes_leave: false,
            lag: config.lag,
        };
        let volumes = record.iter().flat_map(|record| record.volumes.iter().cloned());
        let mut array = Self {
            now,
            random: Random::from_seed(config.seed),
            rentals: Rentals::keeping(rental, volumes),
            config,
            writes: Writes::new(record),
            goal: Goal::Idle,
            places: BTreeMap::new(),
            attempts: BTreeMap::new(),
            awaited: None,
            joining: BTreeMap::new(),
            next_ask: 0,
            asks: VecDeque::new(),
            ended: VecDeque::new(),
            notices: VecDeque::new(),
            trouble: None,
        };
        array.take_up();
        array.advance();
        array
    }

    /// Gives the volumes of the record their places.
    fn take_up(&mut self) {
        let Some(record) = self.writes.durable().cloned() else { return };
        for volume in &record.volumes {
            let slot = record.facts.members.iter().position(|place| *place == volume.slot);
            let doing = if volume.disposable { Doing::Retire(self.now) } else { Doing::Known };
            let place = Place { slot: slot.and_then(|slot| u32::try_from(slot).ok()), doing };
            self.places.insert(volume.slot, place);
        }
        if record.facts.stage != Stage::Made {
            self.delete_all();
        }
    }

    /// What is durable of it.
    #[must_use]
    pub fn record(&self) -> Option<&ArrayRecord> {
        self.writes.durable()
    }

    /// The volumes whose names are known, and whether there may be others.
    #[must_use]
    pub fn volumes(&self) -> (Vec<VolumeId>, bool) {
        self.rentals.volumes()
    }

    /// The volume in a place, once its name is known.
    #[must_use]
    pub fn volume(&self, place: Slot) -> Option<VolumeId> {
        self.rentals.rental(place)?.record()?.volume.clone()
    }

    /// Takes the answer to an ask. One that nobody waits for any more changes nothing.
    pub fn complete(&mut self, now: Instant, id: AskId, answer: Answer) {
        self.now = self.now.max(now);
        match answer {
            Answer::Persisted(result) => self.persisted(id, result),
            Answer::Rental(answer) => self.rentals.complete(self.now, id, answer),
            Answer::Joined(result) => {
                if let Some(place) = self.joining.remove(&id) {
                    self.joined(place, result);
                }
            }
            answer @ (Answer::Drawn(_) | Answer::Formatted(_) | Answer::Served(_)) => {
                if let Some((_, ask)) = self.awaited.take_if(|(awaited, _)| *awaited == id) {
                    self.answered(&ask, answer);
                }
            }
        }
        self.advance();
    }

    fn answered(&mut self, ask: &Ask, answer: Answer) {
        match (ask, answer) {
            (Ask::Draw, Answer::Drawn(random)) => self.drawn(random),
            (Ask::Format(places), Answer::Formatted(result)) => self.formatted(places, result),
            (Ask::Serve(_), Answer::Served(result)) => self.served(result),
            (ask, answer) => self.notices.push_back(Notice::Error(format!("{answer:?} is no answer to {ask:?}"))),
        }
    }

    fn persisted(&mut self, id: AskId, result: Result<(), String>) {
        let Some(waiting) = self.writes.complete(self.now, id, &result) else { return };
        if let Err(why) = &result {
            let name = &self.config.name;
            let notice = format!("the record of array {name} cannot be written: {why}; it is tried again");
            self.notices.push_back(Notice::Warning(notice));
        }
        for id in waiting {
            self.rentals.complete(self.now, id, of_rental::Answer::Persisted(result.clone()));
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.rentals.tick(self.now);
        self.advance();
    }

    /// A disk came or went.
    pub fn disk_changed(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.rentals.disk_changed(self.now, false);
        self.advance();
    }

    /// When [`Array::tick`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let places = self.places.values().filter_map(|place| match place.doing {
            Doing::AttachLater(at) | Doing::Retire(at) => Some(at).filter(|at| *at > self.now),
            _ => None,
        });
        let held =
            self.writes.facts.iter().flat_map(|facts| &facts.held).map(|held| self.at_unix_ms(held.until_unix_ms));
        let opening = match self.goal {
            Goal::Opening(since) => Some(since + self.config.patience()).filter(|at| *at > self.now),
            _ => None,
        };
        let attempts = self.attempts.values().map(|attempts| attempts.next).filter(|next| *next > self.now);
        let others = [self.rentals.next_deadline(), self.writes.next_deadline(), opening];
        places.chain(held).chain(attempts).chain(others.into_iter().flatten()).min()
    }

    /// What is to be done next.
    pub fn next_ask(&mut self) -> Option<(AskId, Ask)> {
        self.asks.pop_front()
    }

    /// What has ended.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// What operators should know.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn unix_ms(&self) -> u64 {
        let since = self.now.since(Instant::ZERO).as_millis();
        self.config.unix_ms_at_zero.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn at_unix_ms(&self, unix_ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(unix_ms.saturating_sub(self.config.unix_ms_at_zero))
    }

    fn new_ask(&mut self) -> AskId {
        let number = self.next_ask;
        self.next_ask += 1;
        // Those of volumes have their places, of which this is none.
        AskId { slot: Slot::CACHE, number }
    }

    /// Asks something of the array's own, unless it has asked and waits.
    fn ask(&mut self, ask: Ask) {
        if self.awaited.is_none() {
            let id = self.new_ask();
            self.awaited = Some((id, ask.clone()));
            self.asks.push_back((id, ask));
        }
    }

    /// Goes as far as the answers and the time allow.
    fn advance(&mut self) {
        loop {
            let before = (self.next_ask, self.ended.len());
            let mut moved = false;
            while let Some((id, ask)) = self.rentals.next_ask() {
                self.ask_of_rental(id, ask);
                moved = true;
            }
            while let Some((place, rental::Ended::Step(_, outcome))) = self.rentals.next_ended() {
                self.step_ended(place, outcome);
                moved = true;
            }
            moved |= self.go_on();
            if let Some(record) = self.writes.next(self.now, AskId { slot: Slot::CACHE, number: self.next_ask }) {
                let id = self.new_ask();
                self.asks.push_back((id, Ask::Persist(record)));
            }
            if !moved && before == (self.next_ask, self.ended.len()) {
                break;
            }
        }
        while let Some(notice) = self.rentals.next_notice() {
            self.notices.push_back(notice);
        }
    }

    fn ask_of_rental(&mut self, id: AskId, ask: of_rental::Ask) {
        use of_rental::{Answer, Ask as Asked};

        let answer = match ask {
            Asked::Persist(record) => {
                self.writes.add(id, record);
                return;
            }
            // There is nothing that the volume's contents would have to be drained to.
            Asked::Owner => Answer::Owner(Ok(OwnerRecord::default())),
            Asked::Serve => Answer::Served(Ok(())),
            Asked::Volume(VolumeAsk::Look) => Answer::Looked(Presence::Here),
            Asked::Volume(VolumeAsk::Superblock(_)) => {
                Answer::Superblock(Err(Obstacle::Failed("it may be a member of an array".to_owned())))
            }
            Asked::Engine(command) if command != Command::Close => {
                Answer::Began(Err(format!("an array has no use for {command:?}")))
            }
            ask @ (Asked::Draw | Asked::Provider(_) | Asked::Volume(_) | Asked::Engine(_)) => {
                self.asks.push_back((id, Ask::Rental(ask)));
                return;
            }
        };
        self.rentals.complete(self.now, id, answer);
    }

    fn set(&mut self, place: Slot, doing: Doing) {
        if let Some(place) = self.places.get_mut(&place) {
            place.doing = doing;
        }
    }

    fn begin(&mut self, place: Slot, step: Step, timeout: Option<Duration>) {
        self.rentals.begin(self.now, place, StepId(0), step, timeout);
    }

    fn attach(&mut self, place: Slot) {
        self.set(place, Doing::Attaching);
        self.begin(place, Step::Attach, Some(self.config.timeouts.1));
    }

    fn count(&mut self, place: Slot, counts: bool) {
        self.set(place, if counts { Doing::Counting } else { Doing::Retiring });
        self.rentals.begin_counting(self.now, place, StepId(0), counts);
    }

    /// It was never on record as one that may count, or is on record as one that counts no more.
    fn discard(&mut self, place: Slot) {
        self.set(place, Doing::Discarding);
        self.rentals.discard(self.now, place);
    }

    fn step_ended(&mut self, place: Slot, outcome: StepOutcome) {
        let Some(Place { doing, .. }) = self.places.get(&place).copied() else { return };
        match (doing, outcome) {
            (Doing::Creating, StepOutcome::Done) => self.attach(place),
            (Doing::Attaching, StepOutcome::Done) => self.attached(place),
            (Doing::Counting, StepOutcome::Done) => self.set(place, Doing::Counted),
            (Doing::Retiring, StepOutcome::Done) => self.retired(place),
            (Doing::Detaching, StepOutcome::Done) => self.set(place, Doing::Held),
            (Doing::Retiring | Doing::Detaching, StepOutcome::Refused(refusal)) => {
                self.set(place, Doing::Retire(self.again(&refusal)));
            }
            (Doing::Retiring | Doing::Detaching, StepOutcome::Cancelled) => {
                self.set(place, Doing::Retire(self.now + RETRY));
            }
            (Doing::Creating | Doing::Attaching | Doing::Counting, StepOutcome::Refused(refusal)) => {
                self.refused(place, doing, &refusal);
            }
            (doing, outcome) => {
                let notice = format!("{outcome:?} of {doing:?} in {place:?}");
                self.notices.push_back(Notice::NotDone(notice));
            }
        }
    }

    /// When what was refused is tried again.
    fn again(&self, refusal: &Refusal) -> Instant {
        self.now + throttled(RETRY, refusal, self.config.backoff.cap)
    }

    fn attached(&mut self, place: Slot) {
        self.set(place, Doing::Attached);
        if self.goal == Goal::Serving {
            self.count(place, true);
        }
    }

    fn refused(&mut self, place: Slot, doing: Doing, refusal: &Refusal) {
        let why = refusal_text(refusal);
        match self.goal {
            Goal::Creating => self.creation_refused(place, doing, refusal),
            Goal::Opening(_) => {
                self.trouble = Some(why);
                self.set(place, Doing::AttachLater(self.again(refusal)));
            }
            Goal::Serving => self.replacement_failed(place, doing, refusal.clone()),
            // What is there, is discarded.
            Goal::Idle | Goal::Deleting => self.set(place, Doing::Retire(self.now)),
        }
    }

    /// Everything that can go on without an answer. True: something did.
    fn go_on(&mut self) -> bool {
        let mut moved = self.go_on_retiring();
        moved |= match self.goal {
            Goal::Idle => false,
            Goal::Creating => self.go_on_creating(),
            Goal::Opening(since) => self.go_on_opening(since),
            Goal::Serving => self.go_on_serving(),
            Goal::Deleting => self.go_on_deleting(),
        };
        moved
    }

    /// What must hold between any two calls.
    ///
    /// # Panics
    /// If it does not.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        self.rentals.check();
        for record in self.rentals.records() {
            assert!(self.places.contains_key(&record.slot), "a volume that nobody knows of: {record:?}");
        }
        if let Some(facts) = &self.writes.facts
            && self.goal == Goal::Serving
        {
            for place in &facts.members {
                let doing = self.places.get(place).map(|place| place.doing);
                assert_eq!(doing, Some(Doing::Active), "a member that counts is not treated as one: {place:?}");
            }
        }
    }
}

/// What the volumes of an array are tagged with in place of a device's name, which never contains a colon.
#[must_use]
pub fn device_tag(array: &str) -> String {
    format!("array:{array}")
}

/// A refusal, for people.
pub(crate) fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Quota => "the provider's quota is used up: raise it, or delete volumes".to_owned(),
        Refusal::Capacity => "the provider has no capacity of this volume type now".to_owned(),
        Refusal::AttachLimit => {
            "no more volumes can be attached to this machine: use fewer members, or detach others".to_owned()
        }
        Refusal::Timeout => "the provider took too long".to_owned(),
        Refusal::Throttled { text, .. } => format!("the provider has had too many requests ({text})"),
        Refusal::Failed(why) | Refusal::Transient(why) | Refusal::NoRoom(why) | Refusal::Permanent(why) => why.clone(),
    }
}
