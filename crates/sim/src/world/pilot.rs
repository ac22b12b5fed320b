//! The production controller steers the boosts, and a provider carries out its steps, or does not.
//!
//! Fault model of the provider: a step is refused (quota, capacity, attachment slots, for a while, for good); takes
//! longer than anybody waits and then has been carried out, has not, or is carried out later, also after a crash of
//! the daemon; is answered twice. Steps are idempotent, and a later step voids an earlier one that is still to come.

use std::time::Duration;

use surgetank_cache::{Event, Mode, Stage};
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy::backoff::Backoff;
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Controller, Learned, Name, Outcome, Phase, Refusal, ResumeAt, Step as Ask, StepId};

use crate::disk::{Disk, Latency};
use crate::world::{Happening, Step, World};

/// How often the controller looks at the device.
const SAMPLING: Duration = Duration::from_millis(5);
/// Longest answer time of the provider.
const ANSWER_MAX: Duration = Duration::from_millis(30);
const GRAIN: u64 = 256 << 10;
const SMALLEST: u64 = 768 << 10;

/// The controller and its provider.
#[derive(Debug)]
pub(super) struct Pilot {
    controller: Controller,
    /// Probability that a step of the provider goes wrong, while faults last.
    faults: f64,
    /// What the daemon's journal says is rented, from the intent to create it on.
    rented: Option<Bytes>,
    /// The volume as the provider has it, unless the engine has its disk.
    volume: Option<Disk>,
    attached: bool,
    /// A step that is carried out late, and when.
    late: Option<(Instant, Ask)>,
    /// Steps in the provider's or the engine's hands.
    outstanding: Vec<(StepId, Ask)>,
}

/// The controller as it starts; what it has learnt is not kept over a crash.
fn controller(now: Instant, seed: u64, size: u64) -> Controller {
    let name = if seed.is_multiple_of(2) { Name::Adaptive } else { Name::Paper };
    let (backing, caching) = (Bandwidth::from_mib_s(33), Bandwidth::from_mib_s(128));
    // For every fourth: enough for one full cache and some tenths of a second, at 0.125 AGBs a second for each MiB.
    let budgeted = (seed % 4 == 3).then_some(0.125 * (0.2 + 0.01 * (seed % 50) as f64));
    let config = Config {
        budget: Budget { agbs_per_hour: budgeted, ..Budget::default() },
        budget_reserve: Duration::from_millis(100),
        initial_size: Bytes::new(1 << 20),
        grain: Bytes::new(GRAIN),
        size_min: Bytes::new(SMALLEST),
        inactivity_delay: Duration::from_millis(10 + seed % 40),
        boost_interval_min: Duration::ZERO,
        backoff: Backoff {
            first: Duration::from_millis(5),
            cap: Duration::from_millis(100),
            permanent: Duration::from_millis(200),
        },
        seed,
        ..Config::new(name, backing, Bytes::new(size.max(SMALLEST)), caching)
    };
    Controller::new(now, config, Learned::default())
}

impl Pilot {
    pub(super) fn new(seed: u64, size: u64, faults: f64) -> Self {
        Self {
            controller: controller(Instant::ZERO, seed, size),
            faults,
            rented: None,
            volume: None,
            attached: false,
            late: None,
            outstanding: Vec::new(),
        }
    }

    /// Nothing is rented, and nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.controller.phase() == Phase::Idle && self.rented.is_none() && self.outstanding.is_empty()
    }

    /// Volumes that the provider bills.
    pub(super) fn volumes(&self) -> usize {
        usize::from(self.volume.is_some())
    }
}

impl World<'_> {
    pub(super) fn observe(&mut self) -> Step {
        let now = self.now;
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        // A daemon that still recovers its cache has no controller yet.
        if self.engine.status().stage != Stage::Recovering {
            pilot.controller.observe(now, self.engine.observation());
            if pilot.controller.next_deadline().is_some_and(|deadline| deadline <= now) {
                pilot.controller.tick(now);
            }
        }
        let after = if self.outages.is_any_passing() { SAMPLING * 40 } else { SAMPLING };
        self.schedule(after, Happening::Observe);
        self.take_steps()
    }

    fn take_steps(&mut self) -> Step {
        loop {
            let Some(pilot) = &mut self.pilot else { return Ok(()) };
            let Some((id, ask)) = pilot.controller.next_step() else { return Ok(()) };
            if let Ask::Create { size } = ask {
                if pilot.rented.is_some() {
                    return Err("a volume is created while another one is rented".into());
                }
                pilot.rented = Some(size);
            }
            let overtakes =
                matches!(ask, Ask::Absorb | Ask::Finish) && matches!(pilot.outstanding[..], [(_, Ask::Release)]);
            if !pilot.outstanding.is_empty() && !overtakes {
                return Err(format!("{ask:?} while {:?} is outstanding", pilot.outstanding));
            }
            pilot.outstanding.push((id, ask.clone()));
            let after = match ask {
                Ask::Absorb | Ask::Drain | Ask::Finish | Ask::Release => Duration::ZERO,
                _ => Duration::from_nanos(self.random.below(ANSWER_MAX.as_nanos() as u64)),
            };
            self.schedule(after, Happening::Answer(id));
        }
    }

    /// A step's time has come.
    pub(super) fn answer(&mut self, id: StepId) -> Step {
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        let ask = pilot.outstanding.iter().find(|(outstanding, _)| *outstanding == id).map(|(_, ask)| ask.clone());
        let Some(ask) = ask else { return Ok(()) };
        match ask {
            Ask::Absorb | Ask::Drain | Ask::Finish => {
                let mode = match ask {
                    Ask::Absorb => Mode::Absorb,
                    Ask::Finish => Mode::Finish,
                    _ => Mode::Drain,
                };
                self.set_mode(mode);
                self.end_step(id, Outcome::Done)
            }
            Ask::Release if self.engine.status().stage == Stage::PassThrough => self.end_step(id, Outcome::Done),
            // The engine's event ends these two.
            Ask::Release => match self.engine.release(self.now) {
                Ok(()) => Ok(()),
                Err(rejected) => self.end_step(id, Outcome::Refused(Refusal::Transient(rejected.to_string()))),
            },
            Ask::Adopt => self.hand_over(id),
            Ask::Create { .. } | Ask::Attach | Ask::Detach | Ask::Delete => self.call_provider(id, &ask),
        }
    }

    fn call_provider(&mut self, id: StepId, ask: &Ask) -> Step {
        let faulty = self.faulty;
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        let wrong = faulty && self.random.chance(pilot.faults);
        // Asked again, or made void by what follows.
        pilot.late = None;
        if !wrong {
            self.carry_out(ask)?;
            self.end_step(id, Outcome::Done)?;
            if faulty && self.random.below(8) == 0 {
                self.end_step(id, Outcome::Done)?;
            }
            return Ok(());
        }
        self.report.provider_faults += 1;
        let refusal = match self.random.below(7) {
            0 => Refusal::Quota,
            1 => Refusal::Capacity,
            2 => Refusal::AttachLimit,
            3 => Refusal::Permanent("no permission".to_owned()),
            4 => Refusal::Transient("a fault".to_owned()),
            _ => {
                match self.random.below(3) {
                    0 => self.carry_out(ask)?,
                    1 => self.carry_out_late(ask.clone()),
                    _ => {}
                }
                Refusal::Timeout
            }
        };
        self.end_step(id, Outcome::Refused(refusal))
    }

    fn carry_out_late(&mut self, ask: Ask) {
        let after = Duration::from_nanos(self.random.below(3 * ANSWER_MAX.as_nanos() as u64));
        if let Some(pilot) = &mut self.pilot {
            pilot.late = Some((self.now + after, ask));
            self.schedule(after, Happening::Late);
        }
    }

    /// What the provider was asked long ago happens now.
    pub(super) fn late(&mut self) -> Step {
        let now = self.now;
        let due = self.pilot.as_mut().and_then(|pilot| pilot.late.take_if(|(at, _)| *at <= now));
        due.map_or(Ok(()), |(_, ask)| self.carry_out(&ask))
    }

    fn carry_out(&mut self, ask: &Ask) -> Step {
        // A lost volume is kept: it may come back.
        let held = self.disks.cache.is_some() || self.kept.is_some();
        let seed = self.random.next_u64();
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        match ask {
            Ask::Create { size } if pilot.volume.is_none() && !held => {
                pilot.volume = Some(Disk::new(size.get(), Latency::default(), seed));
            }
            Ask::Attach => pilot.attached = pilot.volume.is_some() || held,
            Ask::Detach | Ask::Delete if held => return Err(format!("{ask:?} of a volume that the engine holds")),
            Ask::Detach => pilot.attached = false,
            Ask::Delete => {
                if pilot.attached {
                    return Err("a volume is deleted that is attached".into());
                }
                pilot.volume = None;
            }
            Ask::Create { .. } | Ask::Adopt | Ask::Absorb | Ask::Drain | Ask::Finish | Ask::Release => {}
        }
        Ok(())
    }

    fn hand_over(&mut self, id: StepId) -> Step {
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        let disk = pilot.volume.take_if(|_| pilot.attached);
        let Some(disk) = disk else {
            return self.end_step(id, Outcome::Refused(Refusal::Transient("the disk is not there".to_owned())));
        };
        self.cache_size = disk.size();
        self.disks.cache = Some(disk);
        self.adopt()
    }

    fn end_step(&mut self, id: StepId, outcome: Outcome) -> Step {
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        if let Some(index) = pilot.outstanding.iter().position(|(outstanding, _)| *outstanding == id) {
            let (_, ask) = pilot.outstanding.remove(index);
            if ask == Ask::Delete && outcome == Outcome::Done {
                pilot.rented = None;
                self.report.rentals += 1;
            }
        }
        pilot.controller.complete(self.now, id, outcome);
        self.take_steps()
    }

    fn end_of(&mut self, ask: &Ask, outcome: Outcome) -> Step {
        let outstanding =
            self.pilot.as_ref().and_then(|pilot| pilot.outstanding.iter().find(|(_, other)| other == ask));
        match outstanding {
            Some(&(id, _)) => self.end_step(id, outcome),
            None => Ok(()),
        }
    }

    /// What the engine says ends steps, and gives its disk back.
    pub(super) fn tell_pilot(&mut self, event: &Event) -> Step {
        let spare = self.disks.cache.is_none().then(|| self.spare.take()).flatten();
        let now = self.now;
        let Some(pilot) = &mut self.pilot else {
            self.spare = spare.or(self.spare.take());
            return Ok(());
        };
        if let Some(disk) = spare {
            pilot.volume = Some(disk);
        }
        match event {
            Event::Adopted => self.end_of(&Ask::Adopt, Outcome::Done),
            Event::AdoptFailed => {
                self.end_of(&Ask::Adopt, Outcome::Refused(Refusal::Transient("the cache could not be made".to_owned())))
            }
            Event::Released | Event::CacheDropped => self.end_of(&Ask::Release, Outcome::Done),
            Event::ReleaseCancelled => self.end_of(&Ask::Release, Outcome::Cancelled),
            Event::Recovered { .. } => {
                let size = Bytes::new(self.cache_size);
                pilot.controller.resume(now, ResumeAt::Adopted { size });
                self.take_steps()
            }
            Event::RecoverFailed { .. }
            | Event::CacheFailing
            | Event::CacheLost { .. }
            | Event::RestoreFailed { .. }
            | Event::Stopped => Ok(()),
        }
    }

    /// The daemon has started again: the journal says what is rented, the provider goes on with what it was asked.
    pub(super) fn restart_pilot(&mut self) -> Step {
        let (now, size) = (self.now, self.size);
        let recovers = self.disks.cache.is_some();
        let spare = if self.pilot.is_some() && !recovers { self.spare.take() } else { None };
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        pilot.outstanding.clear();
        pilot.controller = controller(now, self.scenario.seed, size);
        if spare.is_some() {
            pilot.volume = spare;
        }
        if let Some((at, _)) = pilot.late {
            self.schedule_at(at, Happening::Late);
        }
        self.schedule(SAMPLING, Happening::Observe);
        let is_lost = self.kept.is_some();
        let Some(pilot) = &mut self.pilot else { return Ok(()) };
        if is_lost && let Some(size) = pilot.rented {
            // It is given back when nothing on it is missed any more.
            pilot.controller.resume(now, ResumeAt::Adopted { size });
        } else if let Some(size) = pilot.rented.filter(|_| !recovers) {
            // Whether it is attached is not known for sure: detaching what is not attached does no harm.
            pilot.controller.resume(now, ResumeAt::Attached { size });
        }
        self.take_steps()
    }
}
