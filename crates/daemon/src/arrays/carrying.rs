//! How the life cycle of an array is carried out: the record, the provider's calls, volumes that are opened, formatted, assembled.
//!
//! What may take long runs on threads of its own.

use surgetank_array::assembly::Place as Membership;
use surgetank_array::geometry::region_for;
use surgetank_array::{ArrayId, Assembly, Device, MemberId, Options, Plan, Regions};
use surgetank_device::volume::array::{ArrayVolume, Member, read_head, write_creation};
use surgetank_model::Limits;
use surgetank_rental::array::{Answer, Ask, Found};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::{Answer as Answered, Ask as Asked, AskId, Obstacle, Slot, VolumeAsk, ask};

use super::manager::{Manager, answer};
use crate::crash::crash_point;
use crate::members::{self, Done, Known};
use crate::opening::{Opened, Opener};

/// Bytes of a chunk: large enough for one I/O a member to be efficient, small enough that a burst uses all members.
pub(super) const CHUNK: u32 = 256 << 10;

impl Manager {
    /// The answer, unless it comes later.
    pub(super) fn answer(&mut self, id: AskId, ask: Ask) -> Option<Answer> {
        Some(match ask {
            Ask::Persist(record) => {
                crash_point("array-persist", "before");
                let written = self.store.write(record.as_ref()).map_err(|error| error.to_string());
                crash_point("array-persist", "after");
                if let Err(why) = &written {
                    self.not_recorded(why);
                }
                Answer::Persisted(written)
            }
            Ask::Draw => Answer::Drawn(rand::random()),
            Ask::Rental(ask) => return self.rental(id, ask).map(Answer::Rental),
            Ask::Format(places) => {
                crash_point("array-format", "before");
                let formatted = self.format(&places);
                crash_point("array-format", "after");
                Answer::Formatted(formatted)
            }
            Ask::Serve(places) => Answer::Served(self.serve(&places)),
            Ask::Join { place, slot } => return self.join(id, place, slot).map(Answer::Joined),
        })
    }

    /// Nothing is deleted as long as the record does not say so: whoever waits for that hears why at once.
    fn not_recorded(&mut self, why: &str) {
        let (name, place) = (&self.name, self.context.state_directory.display());
        let sentence = format!(
            "the array {name} is not deleted yet, as that cannot be put on record in {place}: {why}; once that is settled a daemon goes on, \
             else delete the array again"
        );
        self.deleters.drain(..).for_each(|reply| answer(&reply, Err(sentence.clone())));
    }

    fn rental(&mut self, id: AskId, ask: Asked) -> Option<Answered> {
        Some(match ask {
            Asked::Draw => Answered::Drawn { random: rand::random(), unix_ms: crate::clock::unix_ms() },
            Asked::Provider(call) => return members::call(&self.provider, &self.done.0, id, call),
            Asked::Volume(VolumeAsk::Identities) => Answered::Identities(self.context.disks.identities().ok()),
            Asked::Volume(VolumeAsk::Open { description, size, opening }) => {
                self.open.remove(&id.slot);
                let opener = (self.opener(), self.provider.home());
                let asked = (description, size, opening);
                return members::open(opener, &self.done.0, id, asked, Known::ByHead);
            }
            Asked::Volume(VolumeAsk::Close(opened)) => {
                self.open.retain(|_, (by, _)| *by != opened);
                Answered::Closed
            }
            Asked::Engine(_) => {
                self.open.remove(&id.slot);
                Answered::Began(Ok(()))
            }
            ask => Answered::Began(Err(format!("an array does not do this: {ask:?}"))),
        })
    }

    /// Takes what another thread has done.
    pub(super) fn done(&mut self, done: Done) {
        let (id, answer) = match done {
            Done::Answer(id, answer) => (id, answer),
            Done::Opened(id, Ok(Some(opened))) => {
                let opened = self.throttled(id.slot, opened);
                self.open.insert(id.slot, (id, opened));
                (id, Answered::Opened(Ok(ask::Opened::Open)))
            }
            Done::Opened(id, Ok(None)) => (id, Answered::Opened(Ok(ask::Opened::Absent))),
            Done::Opened(id, Err(refused)) => (id, Answered::Opened(refused)),
        };
        let now = self.now();
        self.life.complete(now, id, Answer::Rental(answer));
    }

    /// Opens volumes without limits: see `throttled`.
    pub(super) fn opener(&self) -> Opener {
        let (disks, clock, decorator) =
            (self.context.disks.clone(), self.context.clock, self.context.decorator.clone());
        Opener { disks, clock, decorator, throttle: Limits::NONE }
    }

    /// The name of the array on its members.
    pub(super) fn array_id(&self) -> Result<ArrayId, String> {
        let record = self.life.record().map(|record| record.facts.array.clone()).unwrap_or_default();
        let id = parse_epoch(&record).ok_or_else(|| format!("the array's name on record is none: {record:?}"))?;
        Ok(ArrayId(id.0))
    }

    /// The name of the member in a place, and what people call its volume.
    fn member(&self, place: Slot) -> Result<(MemberId, String), String> {
        let record = self.life.record().and_then(|record| record.volume(place));
        let named = record.and_then(|record| Some((parse_epoch(&record.token)?, record.volume.clone()?)));
        let (token, volume) = named.ok_or_else(|| format!("the volume in place {} is not on record", place.0))?;
        Ok((MemberId(token.0), format!("volume {}", volume.0)))
    }

    /// Takes the open volume in a place, for the array.
    fn give(&mut self, place: Slot) -> Result<Member, String> {
        let (_, name) = self.member(place)?;
        let (_, opened) = self.open.remove(&place).ok_or_else(|| format!("{name} is not open"))?;
        let target = surgetank_array::Target(self.next_target);
        self.next_target += 1;
        self.targets.insert(target, place);
        Ok(Member { id: target, name, volume: opened.volume })
    }

    /// Makes the open volumes an array. They stay open.
    fn format(&mut self, places: &[Slot]) -> Result<(), String> {
        let mut members = Vec::new();
        let mut found = Vec::new();
        for place in places {
            if let Some((by, opened)) = self.open.get(place) {
                found.push((*place, *by, opened.place.clone(), opened.identity.clone()));
            }
            members.push(self.give(*place)?);
        }
        let formatted = self.write_structures(places, &mut members);
        for (member, (slot, by, place, identity)) in members.into_iter().zip(found) {
            self.targets.remove(&member.id);
            self.open.insert(slot, (by, Opened { volume: member.volume, place, identity, geometry: None }));
        }
        formatted
    }

    fn write_structures(&self, places: &[Slot], members: &mut [Member]) -> Result<(), String> {
        let logical_block = members.iter().map(|member| member.volume.logical_block()).max().unwrap_or(512);
        let region = region_for(self.config.member_size.get(), CHUNK);
        let options = Options { array: self.array_id()?, logical_block, chunk: CHUNK, region, regions: Regions::Blank };
        let volumes = places.iter().zip(&*members).map(|(place, member)| {
            let (id, _) = self.member(*place)?;
            Ok((member.id, id, member.volume.size()))
        });
        let volumes = volumes.collect::<Result<Vec<_>, String>>()?;
        let creation = surgetank_array::create(&options, &volumes).map_err(|refusal| refusal.to_string())?;
        let clock = self.context.clock;
        write_creation(members, &creation, || clock.now()).map_err(|error| error.to_string())
    }

    /// Serves the array that the open volumes make.
    fn serve(&mut self, places: &[Slot]) -> Result<Found, String> {
        let id = self.array_id()?;
        let mut heads = Vec::new();
        for place in places {
            let (_, name) = self.member(*place)?;
            let clock = self.context.clock;
            let (_, opened) = self.open.get_mut(place).ok_or_else(|| format!("{name} is not open"))?;
            let head = read_head(&mut *opened.volume, || clock.now());
            heads.push((*place, name, opened.volume.size(), head));
        }
        let plan = self.assembled(Some(id), &heads)?;
        self.region = plan.geometry.region;
        let used = plan.active.iter().chain(&plan.joining).chain(&plan.superseded);
        let mut found = Found::default();
        let mut members = Vec::new();
        // Whatever the volumes are called in the plan, the array is told the numbers under which it is given them.
        let mut numbers = std::collections::BTreeMap::new();
        for membership in used {
            let place = heads[membership.target.0 as usize].0;
            let member = self.give(place)?;
            numbers.insert(membership.target, member.id);
            members.push(member);
        }
        let place_of = |membership: &Membership| heads[membership.target.0 as usize].0;
        found.active = plan.active.iter().map(place_of).collect();
        found.joining = plan.joining.iter().map(|joining| (joining.slot, place_of(joining))).collect();
        found.superseded = plan.superseded.iter().map(place_of).collect();
        let plan = renumbered(plan, |target| numbers.get(&target).copied().unwrap_or(target));
        let config = surgetank_array::Config { copy_rate: self.config.copy_rate, ..Default::default() };
        let (volume, handle) = ArrayVolume::open(&plan, members, config, self.now())
            .map_err(|error| format!("the array {} cannot be served: {error}", self.name))?;
        self.handle = Some(handle);
        self.opened = Some(Box::new(volume));
        Ok(found)
    }

    /// What volumes make, by their places in the list.
    pub(super) fn assembled(
        &self,
        id: Option<ArrayId>,
        heads: &[(Slot, String, u64, Option<Vec<u8>>)],
    ) -> Result<Plan, String> {
        let devices: Vec<Device<'_>> = (0..)
            .zip(heads)
            .map(|(number, (_, name, size, head))| Device {
                target: surgetank_array::Target(number),
                name,
                size: *size,
                head: head.as_deref(),
            })
            .collect();
        let plan = match surgetank_array::assemble(id, &devices) {
            Assembly::Whole(plan) => plan,
            Assembly::Degraded(plan, reasons) => {
                reasons.iter().for_each(|reason| tracing::warn!(array = self.name, "{reason}"));
                plan
            }
            Assembly::Refused(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                return Err(format!("the array {} cannot be assembled: {}", self.name, reasons.join("; ")));
            }
        };
        if plan.geometry.members != self.config.members {
            return Err(format!(
                "the array {0} has {1} members, and its section says {2}: write members = {1}",
                self.name, plan.geometry.members, self.config.members
            ));
        }
        Ok(plan)
    }

    /// Gives the array a new member for a slot. The answer, unless it comes later.
    fn join(&mut self, id: AskId, place: Slot, slot: u32) -> Option<Result<(), String>> {
        let Some(handle) = self.handle.clone() else { return Some(Err("the array is not served".to_owned())) };
        crash_point("array-join", "before");
        let given = self.member(place).and_then(|(member, _)| Ok((member, self.give(place)?)));
        match given {
            Ok((member, volume)) => {
                self.joins.push((id, handle.replace(slot, member, volume)));
                None
            }
            Err(why) => Some(Err(why)),
        }
    }
}

/// A plan with other numbers for its volumes.
fn renumbered(plan: Plan, number: impl Fn(surgetank_array::Target) -> surgetank_array::Target) -> Plan {
    let all = |places: Vec<Membership>| {
        places.into_iter().map(|place| Membership { target: number(place.target), ..place }).collect()
    };
    Plan {
        active: all(plan.active),
        joining: all(plan.joining),
        superseded: all(plan.superseded),
        unknown: plan.unknown.into_iter().map(|(target, generation)| (number(target), generation)).collect(),
        ..plan
    }
}

/// Why a volume that was to be opened was refused, or kept from being opened.
pub(super) fn why_not(refused: &Result<ask::Opened, Obstacle>) -> String {
    match refused {
        Ok(ask::Opened::Refused(why)) => why.clone(),
        Ok(_) => "its disk has not appeared".to_owned(),
        Err(obstacle) => obstacle.to_string(),
    }
}
