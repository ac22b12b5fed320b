//! The engine: requests and completions in, effects out.

mod change;
#[cfg(debug_assertions)]
mod check;
mod copy;
mod member;
mod membership;
mod opening;
mod read;
mod requests;
mod single;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use surgetank_model::{Bandwidth, Instant, Request, RequestId};

use self::change::{Part, Slot};
pub use self::copy::HURRIED_SHARE;
use self::copy::Join as Joining;
use self::member::{Member, Role};
use self::membership::{Purpose, Transition};
use self::read::ReadPart;
use self::requests::Active;
use self::single::Singles;
pub use self::single::{Ended, Single, is_single};
pub use self::status::{Event, JoinStatus, SlotStatus, Status};
use crate::assembly::Plan;
use crate::effect::{Effect, EffectId, IoFailure, Outcome, Rejected, ScratchId, Target};
use crate::format::{ArrayId, MemberId};
use crate::geometry::Geometry;

/// What a driver may choose.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How fast a joining member is copied to; `None`: as fast as the volumes are.
    pub copy_rate: Option<Bandwidth>,
    /// Regions in flight of one copy, at most; of a hurried one ([`Engine::set_hurried`]) more where its member's queue is long.
    pub copies_in_flight_max: u32,
    /// Regions after which a copy records how far it is.
    pub checkpoint_regions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { copy_rate: None, copies_in_flight_max: 4, checkpoint_regions: 64 }
    }
}

/// A blank volume that is to take the place of a slot's member.
#[derive(Clone, Copy, Debug)]
pub struct Join {
    /// Its number.
    pub target: Target,
    /// A fresh random name.
    pub member: MemberId,
    /// Bytes.
    pub size: u64,
}

/// The pause before something that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Generations of a start begin at a multiple of this. So they are newer than all of the start before it, also than those that
/// only members know that are not there.
const SESSION: u64 = 1 << 20;

/// What an effect in flight is for.
#[derive(Debug)]
enum Pending {
    Part(Part),
    Read(ReadPart),
    /// A version of a page of the bitmap, and the member's failed flushes when it began.
    Page {
        target: Target,
        page: u32,
        failures: u64,
    },
    /// A superblock that names this generation.
    Superblock {
        target: Target,
        generation: u64,
        failures: u64,
    },
    Bitmap(Target),
    Flush(Target),
    CopyRead {
        slot: u32,
        region: u64,
        scratch: ScratchId,
        from: Target,
        to: Target,
    },
    CopyWrite {
        slot: u32,
        region: u64,
        scratch: Option<ScratchId>,
        to: Target,
        failures: u64,
    },
}

/// An array and its members. See the crate.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    now: Instant,
    array: ArrayId,
    geometry: Geometry,
    /// Bytes of the array that are served: less than the geometry has while a growth is not durable.
    size: u64,
    generation: u64,
    /// The generation of this start.
    session: u64,
    /// The members of all slots.
    list: Vec<MemberId>,
    slots: Vec<Slot>,
    members: BTreeMap<Target, Member>,
    /// Every member has been opened, or could not be.
    opened: bool,
    requests: BTreeMap<RequestId, Active>,
    /// Byte ranges of the array of changes in flight, start → end: disjoint.
    locks: BTreeMap<u64, u64>,
    /// Requests in flight that are one I/O; they are not among the others.
    singles: Singles,
    waiting: VecDeque<Waiting>,
    retry_waiting: bool,
    /// A change has ended since copies were looked at.
    unlocked: bool,
    /// Changes that wait for bits to become durable.
    bit_waiters: Vec<RequestId>,
    pending: BTreeMap<EffectId, Pending>,
    next_effect: u64,
    next_scratch: u32,
    next_checkpoint: u32,
    effects: VecDeque<Effect>,
    events: VecDeque<Event>,
    transition: Option<Transition>,
    transitions: VecDeque<Purpose>,
}

/// A request that has not started.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    /// It is a read that starts when nothing that overlaps it is being changed.
    settled: bool,
}

impl Engine {
    /// Serves an array that [`assemble`](crate::assemble) has found; it opens its members first.
    #[must_use]
    pub fn new(config: Config, now: Instant, plan: &Plan) -> Self {
        let generation = (plan.generation / SESSION + 1) * SESSION;
        let mut engine = Self {
            config,
            now,
            array: plan.array,
            geometry: plan.geometry,
            size: plan.geometry.size(),
            generation,
            session: generation,
            list: plan.active.iter().map(|place| place.member).collect(),
            slots: plan.active.iter().map(|place| Slot::new(place.target)).collect(),
            members: BTreeMap::new(),
            opened: false,
            requests: BTreeMap::new(),
            locks: BTreeMap::new(),
            singles: Singles::new(),
            waiting: VecDeque::new(),
            retry_waiting: false,
            unlocked: false,
            bit_waiters: Vec::new(),
            pending: BTreeMap::new(),
            next_effect: 0,
            next_scratch: 0,
            next_checkpoint: 0,
            effects: VecDeque::new(),
            events: VecDeque::new(),
            transition: None,
            transitions: VecDeque::new(),
        };
        for place in &plan.joining {
            let join = Joining::resumed(engine.geometry.regions(), place.target);
            engine.slots[place.slot as usize].join = Some(join);
        }
        let roles =
            [(&plan.active, Role::Active), (&plan.joining, Role::Joining), (&plan.superseded, Role::Superseded)];
        for (places, role) in roles {
            for place in places {
                let member = Member::new(place.target, place.member, place.slot, role, place.sequence);
                engine.members.insert(place.target, member);
            }
        }
        for (target, generation) in &plan.unknown {
            if let Some(member) = engine.members.get_mut(target) {
                (member.confirms, member.unknown) = (Some(*generation), true);
            }
        }
        let targets: Vec<Target> = engine.members.keys().copied().collect();
        targets.into_iter().for_each(|target| engine.open(target));
        engine.pump();
        engine
    }

    /// A blank volume begins to take the place of a slot's member.
    ///
    /// # Errors
    /// If the slot has none to replace now, or the volume does not fit.
    pub fn replace(&mut self, now: Instant, slot: u32, join: Join) -> Result<(), Rejected> {
        self.pass_to(now);
        let needed = self.geometry.member_length();
        let Some(place) = self.slots.get(slot as usize) else {
            return Err(Rejected(format!("slot {slot} does not exist: this array has {}", self.slots.len())));
        };
        if place.join.is_some() || !self.opened {
            return Err(Rejected(format!(
                "the member of slot {slot} is being opened or replaced: try again when that ends"
            )));
        }
        if join.size < needed {
            let size = join.size;
            return Err(Rejected(format!("a member needs {needed} bytes and the volume has {size}: use a larger one")));
        }
        if self.members.contains_key(&join.target) || self.list.contains(&join.member) {
            return Err(Rejected("the volume is a member already: use a blank one".to_owned()));
        }
        let mut member = Member::new(join.target, join.member, slot, Role::Joining, 0);
        member.begin_blank(self.array, self.geometry.bitmap_pages);
        self.members.insert(join.target, member);
        let joining = Joining::fresh(self.geometry.regions(), join.target);
        self.slots[slot as usize].join = Some(joining);
        self.pump();
        Ok(())
    }

    /// The replacement of a slot's member ends without effect; the joining volume is released.
    ///
    /// # Errors
    /// If there is none.
    pub fn cancel(&mut self, now: Instant, slot: u32) -> Result<(), Rejected> {
        self.pass_to(now);
        if self.slots.get(slot as usize).is_none_or(|slot| slot.join.is_none()) {
            return Err(Rejected(format!("the member of slot {slot} is not being replaced")));
        }
        let told = |transition: &Transition| transition.is_told(slot);
        if self.transition.as_ref().is_some_and(told) {
            return Err(Rejected(format!("the new member of slot {slot} is taking over: that cannot be cancelled")));
        }
        self.drop_join(slot);
        self.pump();
        Ok(())
    }

    /// The members have these sizes now, in bytes: uses what all of them have.
    ///
    /// # Errors
    /// If that is no more than is used already, or a member is being replaced.
    pub fn grow(&mut self, now: Instant, sizes: &[(Target, u64)]) -> Result<(), Rejected> {
        self.pass_to(now);
        let of = |slot: &Slot| sizes.iter().find(|(target, _)| *target == slot.active).map_or(0, |(_, size)| *size);
        let least = self.slots.iter().map(of).min().unwrap_or(0);
        let geometry = self.geometry.with_member_size(least);
        if geometry.data_length <= self.geometry.data_length {
            return Err(Rejected(format!(
                "the smallest member has {least} bytes, and the array uses all of that: enlarge or replace every member first"
            )));
        }
        let busy = self.slots.iter().any(|slot| slot.join.is_some()) || !self.transitions.is_empty();
        if busy || self.transition.is_some() || !self.opened {
            return Err(Rejected(
                "a member is being opened or replaced: grow the array when that has ended".to_owned(),
            ));
        }
        self.transitions.push_back(Purpose::Grow(geometry));
        self.pump();
        Ok(())
    }

    /// Bytes of the array.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether its members have been opened, or could not be. Requests wait until then.
    #[must_use]
    pub const fn is_opened(&self) -> bool {
        self.opened
    }

    /// Takes the answer to an effect.
    pub fn complete(&mut self, now: Instant, effect: EffectId, outcome: Outcome) {
        self.pass_to(now);
        let result = match &outcome {
            Outcome::Failed(failure) => Err(*failure),
            Outcome::Done | Outcome::Bitmap(_) => Ok(()),
        };
        if is_single(effect) {
            let ended = self.complete_single(now, effect, result);
            let reply = |Ended { request, result }: Ended| Effect::Reply { request: request.id, result };
            return self.effects.extend(ended.map(reply));
        }
        let Some(pending) = self.pending.remove(&effect) else { return };
        match pending {
            Pending::Part(part) => self.part_ended(part, result),
            Pending::Read(read) => self.read_ended(effect, read, result),
            Pending::Page { target, page, failures } => self.page_written(target, page, failures, result.is_ok()),
            Pending::Superblock { target, generation, failures } => {
                self.superblock_written(target, generation, failures, result.is_ok());
            }
            Pending::Bitmap(target) => match outcome {
                Outcome::Bitmap(pages) => self.bitmap_loaded(target, Ok(pages)),
                Outcome::Done => self.bitmap_loaded(target, Err(IoFailure::Corrupt)),
                Outcome::Failed(failure) => self.bitmap_loaded(target, Err(failure)),
            },
            Pending::Flush(target) => self.flushed(target, result.is_ok()),
            Pending::CopyRead { slot, region, scratch, from, to } => {
                self.copy_read((slot, region), scratch, (from, to), result.is_ok());
            }
            Pending::CopyWrite { slot, region, scratch, to, failures } => {
                self.copy_written((slot, region), scratch, (to, failures), result.is_ok());
            }
        }
        self.pump();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.pass_to(now);
        self.retry_opening();
        self.pump();
    }

    /// When [`Engine::tick`] should be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let joins = self.slots.iter().filter_map(|slot| slot.join.as_ref()).filter_map(Joining::next_deadline);
        let openings = self.members.values().filter_map(|member| member.retry_at);
        joins.chain(openings).chain(self.transition.as_ref().and_then(|transition| transition.retry_at)).min()
    }

    /// Whether there is something that the driver must do.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// What the driver must do next.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What the driver may want to know.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn pass_to(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Starts whatever can start.
    fn pump(&mut self) {
        loop {
            self.unlocked = false;
            self.unpark_stranded();
            // A change of the membership that ends lets copies go on, and a copy that ends begins one.
            self.advance_transition();
            self.advance_copies();
            self.advance_transition();
            self.retry_waiting();
            self.advance_bits();
            // A copy may wait for a change that has just failed.
            if !self.unlocked {
                break;
            }
        }
        self.write_pages();
        self.write_superblocks();
        self.release_members();
    }

    fn emit(&mut self, pending: Pending, effect: impl FnOnce(EffectId) -> Effect) -> EffectId {
        let id = EffectId(self.next_effect);
        self.next_effect += 1;
        self.pending.insert(id, pending);
        self.effects.push_back(effect(id));
        id
    }

    fn member(&mut self, target: Target) -> Option<&mut Member> {
        self.members.get_mut(&target)
    }

    /// The active member of a slot, if it is served.
    fn serving(&self, slot: u32) -> Option<&Member> {
        let slot = self.slots.get(slot as usize).filter(|slot| slot.serves)?;
        self.members.get(&slot.active)
    }
}
