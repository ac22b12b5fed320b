//! The life of a read cache's volumes: each place has one, from the intent to create it until it is certain that it is gone.
//!
//! Each volume is a [`Rental`](crate::Rental). Nothing on it ever counts, so it may be deleted at any time, and each place goes its own
//! way: a volume that is refused, fails or vanishes is deleted, and another one rented after a pause that grows. After a restart the
//! volumes on record are taken into use again, empty; those that the configuration does not ask for any more are deleted, whether or
//! not a device is served.
//!
//! A volume is on record as one that was written before the cache is given it, so that no restart takes it for a blank one of
//! somebody else.

mod status;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume::VolumeId;
use surgetank_model::{Bytes, Instant, Lag};
use surgetank_policy::backoff::Backoff;
use surgetank_policy::{Refusal, Step, StepId, StepOutcome};

pub use self::status::{Part, Status, VolumeStatus};
use crate::array::refusal_text;
use crate::ask::{self as of_rental, AskId, Command, Obstacle, Presence, VolumeAsk};
use crate::owner::OwnerRecord;
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, RentalStage, Slot};
use crate::rental::{self, Notice};
use crate::rentals::Rentals;

/// Volumes of a read cache, at most.
pub const VOLUMES_MAX: u32 = 127;

/// What a read cache is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of its device.
    pub device: String,
    /// Which one of that device.
    pub level: Level,
    /// The state directory's random name, for tags.
    pub owner_id: String,
    /// The provider's name of its volumes' type.
    pub volume_type: String,
    /// Volumes, at most [`VOLUMES_MAX`]; 0: those on record are deleted.
    pub members: u32,
    /// Size of each.
    pub member_size: Bytes,
    /// How long a volume may take to be created, and to be attached.
    pub timeouts: (Duration, Duration),
    /// When a volume that was refused or failed is replaced.
    pub backoff: Backoff,
    /// For how long the provider may not know a volume that is there.
    pub lag: Lag,
    /// Seed of the back-off's jitter.
    pub seed: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Of the volume in the place that the ask's id names: persist its record, draw, call the provider, open, close.
    Rental(of_rental::Ask),
    /// The cache is given the open volume in a place. It is not open for anybody else any more, whatever the answer is.
    Add(Slot),
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `Rental`.
    Rental(of_rental::Answer),
    /// To `Add`. On an error the volume is closed.
    Added(Result<(), String>),
}

/// What the cache says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A volume failed, and holds nothing of the cache any more.
    Failed {
        /// Where it is.
        place: Slot,
        /// How, for people.
        why: String,
    },
    /// Nothing is asked of a volume any more, and it is closed.
    Released(Slot),
}

/// What becomes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It was rented before, and nobody uses it now.
    Known,
    Creating,
    Attaching,
    /// That it will be written is being written down.
    Noting,
    /// It is open.
    Ready,
    /// The cache was asked to take it.
    Asked,
    /// The cache has it, since then.
    Serving(Instant),
    /// It failed, and the cache ends its use of it.
    Leaving,
    Discarding,
}

/// When a place is rented again.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    failed: u32,
    next: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ReadCache {
    config: Config,
    now: Instant,
    random: Random,
    rentals: Rentals,
    places: BTreeMap<Slot, Doing>,
    attempts: BTreeMap<Slot, Attempts>,
    /// A device is served over it.
    served: bool,
    /// Asks to add that are not answered.
    adding: BTreeMap<AskId, Slot>,
    next_ask: u64,
    asks: VecDeque<(AskId, Ask)>,
    notices: VecDeque<Notice>,
    /// Why volumes are missing, by place.
    troubles: BTreeMap<Slot, String>,
}

impl ReadCache {
    /// Goes on from the records that are durable.
    #[must_use]
    pub fn new(config: Config, now: Instant, records: Vec<RentalRecord>) -> Self {
        let rental = rental::Config {
            device: device_tag(config.level, &config.device),
            owner_id: config.owner_id.clone(),
            volume_type: config.volume_type.clone(),
            outage_patience: Duration::ZERO,
            longest_pause: config.backoff.cap,
            volumes_leave: false,
            lag: config.lag,
        };
        let places = records.iter().map(|record| (record.slot, Doing::Known)).collect();
        let mut cache = Self {
            now,
            random: Random::from_seed(config.seed),
            rentals: Rentals::keeping(rental, records),
            places,
            attempts: BTreeMap::new(),
            served: false,
            adding: BTreeMap::new(),
            next_ask: 0,
            asks: VecDeque::new(),
            notices: VecDeque::new(),
            troubles: BTreeMap::new(),
            config,
        };
        cache.discard_unwanted();
        cache.advance();
        cache
    }

    /// Deletes what is on record and is not what the configuration asks for.
    fn discard_unwanted(&mut self) {
        let is_wanted = |record: &RentalRecord| {
            u32::from(record.slot.0) <= self.config.members
                && (&record.volume_type, record.size) == (&self.config.volume_type, self.config.member_size)
                && !matches!(record.stage, RentalStage::Detaching | RentalStage::Deleting)
        };
        let unwanted: Vec<Slot> =
            self.rentals.records().filter(|record| !is_wanted(record)).map(|record| record.slot).collect();
        unwanted.into_iter().for_each(|place| self.discard(place));
    }

    /// Nothing is rented, and nothing on record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.rentals.records().next().is_none()
    }

    /// The volumes whose names are known, and whether there may be others.
    #[must_use]
    pub fn volumes(&self) -> (Vec<VolumeId>, bool) {
        self.rentals.volumes()
    }

    /// What is durable of the volume in a place.
    #[must_use]
    pub fn record(&self, place: Slot) -> Option<&RentalRecord> {
        self.rentals.rental(place)?.record()
    }

    /// A device is served over the cache, which has no volumes yet: they are rented, and given to it.
    pub fn serve(&mut self, now: Instant) {
        self.closed(now);
        self.served = true;
        self.advance();
    }

    /// That device has ended, and with it the cache and its use of volumes.
    pub fn closed(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.served = false;
        self.adding.clear();
        let places: Vec<(Slot, Doing)> = self.places.iter().map(|(place, doing)| (*place, *doing)).collect();
        for (place, doing) in places {
            match doing {
                Doing::Asked | Doing::Serving(_) => self.set(place, Doing::Known),
                Doing::Leaving => self.discard(place),
                // One that is ready stays so.
                _ => {}
            }
        }
        self.advance();
    }

    /// Takes the answer to an ask. One that nobody waits for any more changes nothing.
    pub fn complete(&mut self, now: Instant, id: AskId, answer: Answer) {
        self.now = self.now.max(now);
        match answer {
            Answer::Rental(answer) => self.rentals.complete(self.now, id, answer),
            Answer::Added(result) => {
                if let Some(place) = self.adding.remove(&id) {
                    self.added(place, result);
                }
            }
        }
        self.advance();
    }

    fn added(&mut self, place: Slot, result: Result<(), String>) {
        match (self.places.get(&place).copied(), result) {
            (Some(Doing::Asked), Ok(())) => {
                self.set(place, Doing::Serving(self.now));
                self.troubles.remove(&place);
            }
            (Some(Doing::Asked), Err(why)) => {
                self.failed(place, why);
                self.discard(place);
            }
            // It has failed already.
            _ => {}
        }
    }

    /// Takes what the cache says.
    pub fn event(&mut self, now: Instant, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Failed { place, why } => {
                if let Some(Doing::Serving(_) | Doing::Asked) = self.places.get(&place) {
                    self.failed(place, why);
                    self.set(place, Doing::Leaving);
                }
            }
            Event::Released(place) => {
                if let Some(Doing::Leaving) = self.places.get(&place) {
                    self.discard(place);
                }
            }
        }
        self.advance();
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

    /// When [`ReadCache::tick`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let free = self.attempts.iter().filter(|(place, _)| self.served && !self.places.contains_key(place));
        let attempts = free.map(|(_, attempts)| attempts.next).filter(|next| *next > self.now);
        attempts.chain(self.rentals.next_deadline()).min()
    }

    /// What is to be done next.
    pub fn next_ask(&mut self) -> Option<(AskId, Ask)> {
        self.asks.pop_front()
    }

    /// What operators should know.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn new_ask(&mut self) -> AskId {
        let number = self.next_ask;
        self.next_ask += 1;
        // Those of volumes have their places, of which this is none.
        AskId { slot: Slot::CACHE, number }
    }

    /// Goes as far as the answers and the time allow.
    fn advance(&mut self) {
        loop {
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
            if !moved {
                break;
            }
        }
        while let Some(notice) = self.rentals.next_notice() {
            self.notices.push_back(notice);
        }
    }

    /// Everything that can go on without an answer. True: something did.
    fn go_on(&mut self) -> bool {
        let before = self.places.len();
        let rentals = &self.rentals;
        self.places.retain(|place, doing| *doing != Doing::Discarding || !rentals.is_free(*place));
        let mut moved = before > self.places.len();
        if !self.served {
            return moved;
        }
        for place in (1..=self.config.members).filter_map(|place| u8::try_from(place).ok()).map(Slot) {
            match self.places.get(&place) {
                None if self.is_due(place) => {
                    let stage = Step::Create { size: self.config.member_size };
                    self.start(place, Doing::Creating, stage, self.config.timeouts.0);
                }
                Some(Doing::Known) => {
                    let created = self.record(place).is_some_and(|record| record.stage != RentalStage::Creating);
                    match created {
                        true => self.start(place, Doing::Attaching, Step::Attach, self.config.timeouts.1),
                        false => {
                            let step = Step::Create { size: self.config.member_size };
                            self.start(place, Doing::Creating, step, self.config.timeouts.0);
                        }
                    }
                }
                Some(Doing::Ready) => {
                    self.set(place, Doing::Asked);
                    self.rentals.give(place);
                    let id = self.new_ask();
                    self.adding.insert(id, place);
                    self.asks.push_back((id, Ask::Add(place)));
                }
                _ => continue,
            }
            moved = true;
        }
        moved
    }

    fn is_due(&self, place: Slot) -> bool {
        let due = self.attempts.get(&place).is_none_or(|attempts| attempts.next <= self.now);
        due && self.rentals.is_free(place)
    }

    fn start(&mut self, place: Slot, doing: Doing, step: Step, timeout: Duration) {
        self.places.insert(place, doing);
        self.rentals.begin(self.now, place, StepId(0), step, Some(timeout));
    }

    fn ask_of_rental(&mut self, id: AskId, ask: of_rental::Ask) {
        use of_rental::{Answer as Answered, Ask as Asked};

        let answer = match ask {
            // Nothing on it counts, whatever anybody says.
            Asked::Owner => Answered::Owner(Ok(OwnerRecord::default())),
            Asked::Serve => Answered::Served(Ok(())),
            Asked::Volume(VolumeAsk::Look) => Answered::Looked(Presence::Here),
            Asked::Volume(VolumeAsk::Superblock(_)) => {
                Answered::Superblock(Err(Obstacle::Failed("a read cache has no superblock".to_owned())))
            }
            Asked::Engine(command) if command != Command::Close => {
                Answered::Began(Err(format!("a read cache has no use for {command:?}")))
            }
            ask @ (Asked::Persist(_) | Asked::Draw | Asked::Provider(_) | Asked::Volume(_) | Asked::Engine(_)) => {
                self.asks.push_back((id, Ask::Rental(ask)));
                return;
            }
        };
        self.rentals.complete(self.now, id, answer);
    }

    fn step_ended(&mut self, place: Slot, outcome: StepOutcome) {
        let Some(doing) = self.places.get(&place).copied() else { return };
        match (doing, outcome) {
            (Doing::Creating, StepOutcome::Done) => {
                self.start(place, Doing::Attaching, Step::Attach, self.config.timeouts.1);
            }
            (Doing::Attaching, StepOutcome::Done) if planted(Bug::WrittenBeforeRecorded) => {
                self.set(place, Doing::Ready);
            }
            (Doing::Attaching, StepOutcome::Done) => {
                self.set(place, Doing::Noting);
                self.rentals.begin_use(self.now, place, StepId(0));
            }
            (Doing::Noting, StepOutcome::Done) => self.set(place, Doing::Ready),
            (Doing::Creating | Doing::Attaching | Doing::Noting, StepOutcome::Refused(refusal)) => {
                self.try_later(place, refusal_text(&refusal), &refusal);
                self.discard(place);
            }
            (doing, outcome) => {
                self.notices.push_back(Notice::NotDone(format!("{outcome:?} of {doing:?} in {place:?}")));
            }
        }
    }

    fn set(&mut self, place: Slot, doing: Doing) {
        self.places.insert(place, doing);
    }

    fn discard(&mut self, place: Slot) {
        if planted(Bug::FailedMemberForgotten) && self.served {
            self.places.remove(&place);
            return;
        }
        self.set(place, Doing::Discarding);
        self.rentals.discard(self.now, place);
    }

    /// The cache cannot use the volume, or can no more.
    fn failed(&mut self, place: Slot, why: String) {
        self.try_later(place, why.clone(), &Refusal::Transient(why));
    }

    /// The next volume of a place is rented after a pause, which grows unless the last one has served for long.
    fn try_later(&mut self, place: Slot, why: String, refusal: &Refusal) {
        if let Some(Doing::Serving(since)) = self.places.get(&place)
            && self.now.since(*since) >= self.config.backoff.cap
        {
            self.attempts.remove(&place);
        }
        let attempts = self.attempts.entry(place).or_default();
        attempts.failed += 1;
        attempts.next = self.now + self.config.backoff.wait(refusal, attempts.failed, &mut self.random);
        let notice = format!(
            "a volume of the read cache is not to be had or failed: {why}; the backing volume answers, and another try follows"
        );
        self.notices.push_back(Notice::Warning(notice));
        self.troubles.insert(place, why);
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
            assert!(record.disposable, "what is on a read cache counts: {record:?}");
        }
        for (place, doing) in &self.places {
            if matches!(doing, Doing::Ready | Doing::Asked | Doing::Serving(_) | Doing::Leaving) {
                let written = self.record(*place).is_some_and(|record| record.epoch.is_some());
                assert!(written, "the volume in {place:?} is not on record as written");
            }
        }
    }
}

/// Which read cache of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The one that is asked first.
    #[default]
    First,
    /// The one beneath it.
    Second,
}

impl Level {
    /// From the first one on.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];
}

/// What the volumes of a device's read cache are tagged with in place of the device's name, which never contains a colon. Providers
/// take no longer ones than that of a first level.
#[must_use]
pub fn device_tag(level: Level, device: &str) -> String {
    let prefix = match level {
        Level::First => "read-cache",
        Level::Second => "level2",
    };
    format!("{prefix}:{device}")
}
