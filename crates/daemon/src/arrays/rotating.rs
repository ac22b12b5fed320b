//! Members are replaced before their burst credits end: what they did is told to the policy ([`surgetank_policy::rotation`]), and what
//! it asks for to the life cycle.
//!
//! A slot that the policy chose is tried again when the policy says so. One that somebody asked for stays wanted, also over a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_array::effect::Target;
use surgetank_array::geometry::region_for;
use surgetank_device::volume::array::{ArrayStatus, Served};
use surgetank_model::units::Span;
use surgetank_model::volume_type::BilledTime;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy::Refusal;
use surgetank_policy::backoff::Backoff;
use surgetank_policy::budget::{Budget, BudgetUse, PastRental, Tariff};
use surgetank_policy::rotation::{self, Config, Copying, Learned, Progress, Rotation, Sample, Trouble};
use surgetank_rental::array::{MemberStatus, Part};

use super::carrying::CHUNK;
use super::manager::Manager;
use crate::clock::unix_ms;
use crate::config::{ArrayConfig, Use};
use crate::files;

/// How often the policy looks.
const EVERY: Duration = Duration::from_secs(1);
/// What creating and attaching a volume, and detaching and deleting one, are assumed to take until they are learned.
const ASSUMED: Duration = Duration::from_secs(10);
/// How fast a copy is assumed to be where neither `copy_rate` nor the type's bandwidth says.
const COPY_RATE: Bandwidth = Bandwidth::from_mib_s(128);
const VERSION: u32 = 1;

/// What was learned, on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Written {
    version: u32,
    learned: Learned,
    /// When: what was rented goes on from then.
    #[serde(default)]
    written_unix_ms: u64,
    /// The credits of volumes, as the policy accounts for them.
    levels: BTreeMap<String, Vec<f64>>,
}

/// How far the replacement of a slot's member is, as the policy was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Attached,
    Replaced,
}

/// The rotation of an array that is served.
#[derive(Debug)]
pub(super) struct Rotating {
    pub policy: Rotation,
    look_at: Instant,
    /// What members had done at the last look, and what was copied to them.
    before: BTreeMap<Target, (Served, u64)>,
    told: Vec<Told>,
    /// Slots whose copies were told to take a share of what their members still give.
    hurried: Vec<bool>,
    /// Slots that nobody but the policy asked for.
    chosen: BTreeSet<u32>,
    /// Whether it was said what keeps the rotation from being in time.
    is_checked: bool,
}

/// The policy's settings.
fn settings(config: &ArrayConfig, seed: u64) -> Config {
    let rate = config.copy_rate.or(config.limits.bandwidth).unwrap_or(COPY_RATE);
    Config {
        way: config.rotate,
        slots: config.members,
        size: config.member_size,
        credits: config.credits.clone(),
        io_unit: None,
        limits: config.limits,
        copy: Copying { rate, io_size: Bytes::new(region_for(config.member_size.get(), CHUNK).into()) },
        at_once: config.rotate_at_once,
        swaps_when_empty: matches!(config.usage, Use::Ephemeral { .. }),
        room: None,
        setup: ASSUMED,
        removal: ASSUMED,
        rest: Duration::ZERO,
        backoff: Backoff::default(),
        tariff: Tariff {
            bandwidth: config.limits.bandwidth.unwrap_or(rate),
            usd_per_gib_hour: config.usd_per_gib_hour(),
            // A member that has been there for long is what goes.
            billed_time: BilledTime::default(),
        },
        seed,
    }
}

/// What keeps members that hold so much from being replaced in time.
pub(crate) fn remarks(config: &ArrayConfig, holds: Bytes) -> Vec<String> {
    let troubles = settings(config, 0).check(holds).into_iter();
    // Rotation is the default, and where there is nothing to rotate nothing happens.
    troubles
        .filter(|trouble| !matches!(trouble, Trouble::NoCredits { .. }))
        .map(|trouble| trouble.to_string())
        .collect()
}

impl Manager {
    /// The array is served from now on.
    pub(super) fn begin_rotating(&mut self) {
        let written = read(&self.store.rotation());
        let status = self.life.status();
        let level = |slot: u32| {
            let is_member = |volume: &&MemberStatus| volume.slot == Some(slot) && volume.part == Part::Active;
            let volume = status.volumes.iter().find(is_member);
            volume.and_then(|volume| written.levels.get(&volume.volume.as_ref()?.0)).cloned().unwrap_or_default()
        };
        let rentals = since_written(&written, unix_ms());
        let levels = (0..self.config.members).map(level).collect();
        let learned = Learned { levels, rentals, ..written.learned.clone() };
        let now = self.now();
        let mut policy = Rotation::new(now, settings(&self.config, rand::random()), self.config.budget, &learned);
        // What was asked for before the restart goes on.
        status.wanted.iter().for_each(|slot| policy.ask(*slot));
        self.rotating = Some(Rotating {
            policy,
            look_at: now,
            before: BTreeMap::new(),
            told: vec![Told::Nothing; self.config.members as usize],
            hurried: vec![false; self.config.members as usize],
            chosen: BTreeSet::new(),
            is_checked: false,
        });
    }

    /// Tells the policy what has happened and has replaced what it says. True: something is to be done.
    pub(super) fn rotate(&mut self) -> bool {
        let Some(mut rotating) = self.rotating.take() else { return false };
        let now = self.now();
        let opened = self.handle.as_ref().map(|handle| handle.status()).filter(|served| served.engine.opened);
        if let Some(served) = opened.filter(|_| now >= rotating.look_at) {
            rotating.look_at = now + EVERY;
            let region = u64::from(self.region);
            if !std::mem::replace(&mut rotating.is_checked, true) {
                let most = served.engine.slots.iter().map(|slot| slot.regions_written).max().unwrap_or(0);
                for remark in remarks(&self.config, Bytes::new(most * region)) {
                    tracing::warn!(array = self.name, "{remark}");
                }
            }
            let samples = rotating.samples(&served, region);
            rotating.policy.observe(now, &samples);
            self.correct(&mut rotating.policy, &served);
            self.hurry(&mut rotating);
        }
        let extra = rotating.policy.extra();
        self.progress(&mut rotating);
        let mut moved = false;
        while let Some(slot) = rotating.policy.next(now) {
            let is_wanted = self.life.status().wanted.contains(&slot);
            self.life.set_replaced_at_once(rotating.policy.at_once());
            match self.life.replace(now, &[slot]) {
                Ok(()) => {
                    if !is_wanted {
                        tracing::info!(
                            array = self.name,
                            "the member of slot {slot} is replaced by one with full credits"
                        );
                        rotating.chosen.insert(slot);
                    }
                    moved = true;
                }
                Err(why) => rotating.policy.tell(now, slot, Progress::Refused(Refusal::Transient(why))),
            }
        }
        let is_billed_anew = moved || extra != rotating.policy.extra();
        self.rotating = Some(rotating);
        if is_billed_anew {
            // A crash forgets nothing of what the budget pays for.
            self.write_learned();
        }
        moved
    }

    /// The credits that the daemon itself holds members to are known.
    fn correct(&self, policy: &mut Rotation, served: &ArrayStatus) {
        for (slot, at) in (0..).zip(&served.engine.slots) {
            let meter = self.targets.get(&at.active).and_then(|place| self.meters.get(place));
            if let Some(metered) = meter {
                let levels: Vec<f64> =
                    metered.meter.balances(self.now()).into_iter().map(|(_, balance)| balance as f64).collect();
                policy.correct(slot, &levels);
            }
        }
    }

    /// Copies of members without credits are not to wait behind all that the application asks for.
    fn hurry(&self, rotating: &mut Rotating) {
        let Some(handle) = &self.handle else { return };
        for ((slot, queues), told) in (0..).zip(rotating.policy.queueing()).zip(&mut rotating.hurried) {
            if *told != queues {
                // It is told again only after a change: an array that cannot be told ends anyhow.
                drop(handle.hurry(slot, queues));
                *told = queues;
            }
        }
    }

    /// What has become of replacements since the policy was told.
    fn progress(&self, rotating: &mut Rotating) {
        let (now, status) = (self.now(), self.life.status());
        for (slot, told) in (0..).zip(&mut rotating.told) {
            let is_there = |part| status.volumes.iter().any(|volume| volume.slot == Some(slot) && volume.part == part);
            match *told {
                Told::Nothing if is_there(Part::Joining) => {
                    rotating.policy.tell(now, slot, Progress::Attached);
                    *told = Told::Attached;
                }
                Told::Replaced if !is_there(Part::Leaving) => {
                    rotating.policy.tell(now, slot, Progress::Deleted);
                    *told = Told::Nothing;
                }
                _ => {}
            }
        }
    }

    /// Whether the budget pays for the replacement of so many members that somebody asks for.
    pub(super) fn affords(&self, members: usize) -> Result<(), String> {
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        self.rotating.as_ref().map_or(Ok(()), |rotating| rotating.policy.affords(self.now(), members))
    }

    /// Somebody asks for these slots.
    pub(super) fn asked_for(&mut self, slots: &[u32]) {
        let Some(rotating) = &mut self.rotating else { return };
        for slot in slots {
            rotating.chosen.remove(slot);
            rotating.policy.ask(*slot);
        }
    }

    /// A slot has a new member.
    pub(super) fn was_replaced(&mut self, slot: u32) {
        let now = self.now();
        let Some(rotating) = &mut self.rotating else { return };
        let Some(told) = rotating.told.get_mut(slot as usize) else { return };
        if *told != Told::Attached {
            rotating.policy.tell(now, slot, Progress::Attached);
        }
        rotating.policy.tell(now, slot, Progress::Replaced);
        *told = Told::Replaced;
        rotating.chosen.remove(&slot);
    }

    /// A slot has no new member yet.
    pub(super) fn was_not_replaced(&mut self, slot: u32, refusal: Refusal) {
        let now = self.now();
        let Some(rotating) = &mut self.rotating else { return };
        let Some(told) = rotating.told.get_mut(slot as usize) else { return };
        let progress = match *told {
            Told::Attached => {
                *told = Told::Nothing;
                Progress::Failed("the new volume failed".to_owned())
            }
            // Of the last replacement the deletion is still to be told.
            Told::Nothing | Told::Replaced => Progress::Refused(refusal),
        };
        rotating.policy.tell(now, slot, progress);
        if rotating.chosen.remove(&slot) {
            self.life.forget(now, slot);
        }
    }

    /// Writes down what was learned.
    pub(super) fn write_learned(&self) {
        let keeps = !self.config.credits.is_empty() || self.config.budget != Budget::default();
        let Some(rotating) = self.rotating.as_ref().filter(|_| keeps) else { return };
        let mut learned = rotating.policy.learned(self.now());
        let of_slots = std::mem::take(&mut learned.levels);
        let status = self.life.status();
        let active = status.volumes.into_iter().filter(|volume| volume.part == Part::Active);
        let levels = active.filter_map(|volume| Some((volume.volume?.0, of_slots.get(volume.slot? as usize)?.clone())));
        let written = Written { version: VERSION, learned, written_unix_ms: unix_ms(), levels: levels.collect() };
        let bytes = serde_json::to_vec_pretty(&written).map_err(io::Error::other);
        if let Err(error) = bytes.and_then(|bytes| files::write_atomically(&self.store.rotation(), &bytes)) {
            tracing::warn!(array = self.name, %error, "what was learned of the rotation cannot be written down");
        }
    }

    /// How the rotation stands.
    pub(super) fn rotation(&self) -> Option<rotation::Status> {
        self.rotating.as_ref().map(|rotating| rotating.policy.status())
    }

    /// How much of the budget is used.
    pub(super) fn budget(&self) -> Option<[BudgetUse; 2]> {
        self.rotating.as_ref().and_then(|rotating| rotating.policy.budget(self.now()))
    }
}

impl Rotating {
    /// What slots did since the last look.
    fn samples(&mut self, served: &ArrayStatus, region: u64) -> Vec<Sample> {
        let mut now: BTreeMap<Target, (Served, u64)> = BTreeMap::new();
        for member in &served.members {
            now.insert(member.target, (member.served, 0));
        }
        for join in served.engine.slots.iter().filter_map(|slot| slot.join.as_ref()) {
            now.entry(join.target).or_default().1 = join.copied_bytes;
        }
        let since = |target: Target| {
            let (is, copied) = now.get(&target).copied().unwrap_or_default();
            let (was, copied_before) = self.before.get(&target).copied().unwrap_or_default();
            let operations = (is.reads + is.writes).saturating_sub(was.reads + was.writes);
            let bytes = (is.read_bytes + is.written_bytes).saturating_sub(was.read_bytes + was.written_bytes);
            let served = rotation::Served { operations: operations as f64, bytes: bytes as f64 };
            (served, Bytes::new(copied.saturating_sub(copied_before)))
        };
        let sample = |slot: &surgetank_array::SlotStatus| {
            let (joining, copied) = slot.join.as_ref().map_or_else(Default::default, |join| since(join.target));
            Sample { served: since(slot.active).0, joining, copied, holds: Bytes::new(slot.regions_written * region) }
        };
        let samples = served.engine.slots.iter().map(sample).collect();
        self.before = now;
        samples
    }
}

/// The extra volumes of the last day as of now. What was rented when this was written may have been there, and billed, until now.
fn since_written(written: &Written, now_ms: u64) -> Vec<PastRental> {
    let meanwhile = match written.written_unix_ms {
        0 => Duration::ZERO,
        then => Duration::from_millis(now_ms.saturating_sub(then)),
    };
    let aged = |rental: &PastRental| {
        let more = if rental.lasted == rental.started_ago { meanwhile } else { Duration::ZERO };
        let (started_ago, lasted) = (rental.started_ago.0 + meanwhile, rental.lasted.0 + more);
        PastRental { started_ago: Span(started_ago), lasted: Span(lasted), ..*rental }
    };
    written.learned.rentals.iter().map(aged).collect()
}

/// What was learned before. Nothing, if that cannot be read: members have full credits then, as far as the policy knows.
fn read(path: &Path) -> Written {
    let decoded = match files::read(path) {
        Ok(None) => return Written::default(),
        Ok(Some(bytes)) => decode(&bytes).map_err(|why| why.of("what was learned of the rotation", path).to_string()),
        Err(error) => Err(error.to_string()),
    };
    decoded.unwrap_or_else(|why| {
        tracing::warn!("{why}; it is learned again");
        Written::default()
    })
}

fn decode(bytes: &[u8]) -> Result<Written, files::Unreadable> {
    files::version(bytes, VERSION)?;
    serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}").into())
}
