//! One machine's production controller and rental, and the provider that they rent from.

use surgetank_cache::{EngineStage, Event, Owner};
use surgetank_model::random::Random;
use surgetank_model::volume::{
    Change, CreateVolume, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState,
};
use surgetank_model::{Instant, Observation};
use surgetank_planner::scenario::Latencies;
use surgetank_policy::{Controller, Learned, Phase, Steady};
use surgetank_rental::{
    Answer, Ask, AskId, Call, Command, Ended, Label, Opened, OwnerRecord, OwnerWrite, OwnerWriter, Presence, Rental,
    Slot, VolumeAsk,
};

use crate::report::{Boost, boost};
use crate::setup::Setup;

/// Decides when a caching volume is rented, and rents it.
#[derive(Debug)]
pub struct Control {
    controller: Controller,
    rental: Rental,
    owner: OwnerRecord,
    writer: OwnerWriter,
    cloud: Cloud,
    /// As of the last call: it is asked for more often than it changes.
    deadline: Option<Instant>,
    /// So many random numbers were drawn: all that the simulation needs of them is that they differ.
    drawn: u64,
    /// The attachment that is or was in use, and whether its log reads as clean.
    superblock: Option<Label>,
    boosts: Vec<Boost>,
}

/// A provider that has room for one volume: calls take their time, and fail by chance.
#[derive(Debug)]
struct Cloud {
    provider: Latencies,
    random: Random,
    made: u64,
    volume: Option<VolumeDescription>,
    call: Option<(Instant, AskId, Call)>,
}

impl Control {
    /// That of machine `vm`.
    #[must_use]
    pub fn new(setup: &Setup, vm: u32) -> Self {
        let seed = setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(vm));
        let billed_time = setup.caching.tariff.billed_time();
        let grows = setup.provider.grow.is_some();
        let config = surgetank_policy::Config { seed, billed_time, grows, ..setup.policy.clone() };
        let rental = surgetank_rental::Config {
            device: "simulated".to_owned(),
            owner_id: format!("vm-{vm}"),
            volume_type: "caching".to_owned(),
            outage_patience: crate::OUTAGE_TIMEOUT,
            longest_pause: config.backoff.cap,
            volumes_leave: false,
            lag: surgetank_model::Lag::NONE,
        };
        let owner = OwnerRecord::default();
        let mut control = Self {
            controller: Controller::new(Instant::ZERO, config, Learned::default()),
            rental: Rental::new(rental, Slot::CACHE, None),
            writer: OwnerWriter::new(&owner),
            owner,
            cloud: Cloud {
                provider: setup.provider,
                random: Random::from_seed(seed),
                made: 0,
                volume: None,
                call: None,
            },
            deadline: None,
            drawn: u64::from(vm) << 32,
            superblock: None,
            boosts: Vec::new(),
        };
        control.note_deadline();
        control
    }

    /// Nothing is rented, and without traffic nothing ever will be: also no volume for a burst that is only expected.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.controller.phase() == Phase::Idle && self.rental.record().is_none() && self.deadline.is_none()
    }

    /// For how long samples of the same traffic decide nothing.
    #[must_use]
    pub fn steady(&self) -> Option<Steady> {
        self.controller.steady()
    }

    /// A sample.
    pub fn observe(&mut self, now: Instant, observation: Observation) {
        self.controller.observe(now, observation);
        self.note_deadline();
    }

    /// When time must pass for it besides the samples.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if let Some((_, id, call)) = self.cloud.call.take_if(|(at, ..)| *at <= now) {
            let answer = self.cloud.end(&call);
            self.rental.complete(now, id, answer);
        }
        if self.rental.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.rental.tick(now);
        }
        if self.controller.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.controller.tick(now);
        }
        self.note_deadline();
    }

    /// What is asked of the engine next, for [`Control::answer`].
    pub fn next_command(&mut self, now: Instant) -> Option<(AskId, Command)> {
        let command = loop {
            if let Some(ended) = self.rental.next_ended() {
                if let Ended::Step(id, outcome) = ended {
                    self.controller.complete(now, id, outcome);
                }
            } else if let Some((id, step)) = self.controller.next_step() {
                let timeout = self.controller.config().timeout(&step);
                self.rental.begin(now, id, step, timeout);
            } else if let Some((id, ask)) = self.rental.next_ask() {
                match self.ask(now, id, ask) {
                    Asked::Answered(answer) => self.rental.complete(now, id, answer),
                    Asked::Later => {}
                    Asked::Command(command) => break Some((id, command)),
                }
            } else {
                break None;
            }
        };
        while self.rental.next_notice().is_some() {}
        self.note_deadline();
        command
    }

    /// The engine's answer to a command.
    pub fn answer(&mut self, now: Instant, id: AskId, answer: Answer) {
        self.rental.complete(now, id, answer);
        self.note_deadline();
    }

    /// Bytes of the volume that is rented.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.rental.record().map_or(0, |record| record.size.get())
    }

    /// An event of the engine.
    pub fn event(&mut self, now: Instant, event: &Event) {
        if *event == Event::Released {
            self.superblock = self.superblock.map(|label| Label { clean: true, ..label });
        }
        self.rental.event(now, event);
        self.note_deadline();
    }

    /// Writes down where the newest data is.
    pub fn set_owner(&mut self, owner: Owner) {
        let mut write = self.writer.begin(owner);
        loop {
            match write {
                OwnerWrite::Tag { .. } => {}
                OwnerWrite::Record(record) => self.owner = record,
                OwnerWrite::Done(_) => return,
            }
            write = self.writer.written(Ok(()));
        }
    }

    /// The boosts that have ended.
    #[must_use]
    pub fn into_boosts(mut self) -> Vec<Boost> {
        self.note_deadline();
        self.boosts
    }

    fn ask(&mut self, now: Instant, id: AskId, ask: Ask) -> Asked {
        Asked::Answered(match ask {
            Ask::Persist(_) => Answer::Persisted(Ok(())),
            Ask::Draw => {
                self.drawn += 1;
                let mut random = [0; 16];
                random[..8].copy_from_slice(&self.drawn.to_le_bytes());
                Answer::Drawn { random, unix_ms: now.as_nanoseconds() / 1_000_000 }
            }
            Ask::Owner => Answer::Owner(Ok(self.owner.clone())),
            Ask::Provider(call) => return self.cloud.begin(now, id, call),
            Ask::Volume(VolumeAsk::Identities) => Answer::Identities(Some(Vec::new())),
            Ask::Volume(VolumeAsk::Open { description, .. }) => {
                self.writer.set_volume(Some(description.id));
                Answer::Opened(Ok(Opened::Open))
            }
            Ask::Volume(VolumeAsk::Close(_)) => Answer::Closed,
            Ask::Volume(VolumeAsk::Superblock(_)) => Answer::Superblock(Ok(self.superblock)),
            Ask::Volume(VolumeAsk::Look) => Answer::Looked(Presence::Here),
            Ask::Engine(Command::Adopt(epoch)) => {
                self.superblock = Some(Label { epoch, clean: false, written: false });
                return Asked::Command(Command::Adopt(epoch));
            }
            Ask::Engine(command) => return Asked::Command(command),
            Ask::Serve => Answer::Served(Ok(())),
        })
    }

    /// After every call.
    fn note_deadline(&mut self) {
        let call = self.cloud.call.as_ref().map(|(at, ..)| *at);
        let deadlines = [self.controller.next_deadline(), self.rental.next_deadline(), call];
        self.deadline = deadlines.into_iter().flatten().min();
        while let Some(record) = self.controller.next_record() {
            self.boosts.push(boost(record));
        }
    }
}

/// What becomes of what the rental asks.
enum Asked {
    Answered(Answer),
    /// The provider takes its time.
    Later,
    Command(Command),
}

impl Cloud {
    /// Looks are answered at once, changes after their time.
    fn begin(&mut self, now: Instant, id: AskId, call: Call) -> Asked {
        let nominal = match &call {
            Call::Create(_) => self.provider.create,
            Call::ChangeState(_, Transition::Attach) => self.provider.attach,
            Call::ChangeState(_, Transition::Detach) => self.provider.detach,
            Call::ChangeState(_, Transition::Delete) => self.provider.delete,
            Call::Grow(..) => self.provider.grow.unwrap_or_default(),
            Call::Describe(_) | Call::List { .. } | Call::SetTag { .. } => {
                return Asked::Answered(self.carry_out(&call));
            }
        };
        let jitter = self.provider.jitter;
        let time = if jitter > 0.0 { nominal.mul_f64(1.0 + jitter * self.random.unit()) } else { nominal };
        self.call = Some((now + time, id, call));
        Asked::Later
    }

    fn end(&mut self, call: &Call) -> Answer {
        let fails = self.provider.faults > 0.0 && self.random.chance(self.provider.faults);
        if fails {
            return call.failed(ProviderError::Transient("a simulated fault".to_owned()));
        }
        self.carry_out(call)
    }

    fn carry_out(&mut self, call: &Call) -> Answer {
        match call {
            Call::Create(request) => Answer::Described(Ok(self.create(request))),
            Call::ChangeState(_, transition) => {
                self.volume = self.volume.take().and_then(|volume| match transition {
                    Transition::Attach => Some(VolumeDescription { state: VolumeState::Attached, ..volume }),
                    Transition::Detach => Some(VolumeDescription { state: VolumeState::Available, ..volume }),
                    Transition::Delete => None,
                });
                Answer::Changed(Ok(Change::Changed))
            }
            Call::Grow(_, size) => {
                if let Some(volume) = &mut self.volume {
                    volume.size = volume.size.max(*size);
                }
                Answer::Changed(Ok(Change::Changed))
            }
            Call::SetTag { key, value, .. } => {
                if let Some(volume) = &mut self.volume {
                    volume.tags.insert(key.clone(), value.clone());
                }
                Answer::Changed(Ok(Change::Changed))
            }
            Call::Describe(id) => {
                Answer::Described(self.volume.clone().ok_or_else(|| ProviderError::NotFound(id.clone())))
            }
            Call::List { key, value } => {
                let has_tag = |volume: &VolumeDescription| volume.tags.get(key) == Some(value);
                Answer::Listed(Ok(self.volume.clone().filter(has_tag).into_iter().collect()))
            }
        }
    }

    fn create(&mut self, request: &CreateVolume) -> VolumeDescription {
        self.made += 1;
        let volume = VolumeDescription {
            id: VolumeId(self.made.to_string()),
            state: VolumeState::Available,
            volume_type: request.volume_type.clone(),
            size: request.size,
            tags: Tags::clone(&request.tags),
            device: None,
            disk: None,
            members: Vec::new(),
        };
        self.volume.insert(volume).clone()
    }
}

/// The answer to a command that no simulated volume gives rise to: none fails or leaves.
#[must_use]
pub fn unexpected(command: &Command) -> Answer {
    Answer::EngineEnded(format!("{command:?} is asked of a volume that never fails"))
}

/// The answer to a command of an engine that is there.
#[must_use]
pub fn sampled(stage: EngineStage) -> Answer {
    Answer::Sampled { stage, unplugged: false }
}
