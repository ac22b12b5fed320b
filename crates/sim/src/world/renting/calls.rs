//! Calls of the provider, and what becomes of them.

use surgetank_cache::Owner;
use surgetank_model::volume::{ProviderError, Transition, VolumeId};
use surgetank_rental::stripe;
use surgetank_rental::{Answer, AskId, Call, Slot};

use super::{ANSWER_MAX, Fate, LATE_MAX, Renting, stripes};
use crate::world::{SimEvent, Step, World};

/// Whether a volume is another one, or a part of it.
pub(super) fn is_of(id: &VolumeId, other: Option<&VolumeId>) -> bool {
    other.is_some_and(|other| stripe::overlap(id, other))
}

impl World<'_> {
    /// The intent is durable before the call, and no call overtakes another one.
    pub(super) fn check_call(&self, slot: Slot, call: &Call) -> Step {
        let Some(renting) = &self.renting else { return Ok(()) };
        if let Call::Create(request) = call
            && renting.journal.get(&slot).is_none_or(|record| record.token != request.token)
        {
            return Err("a volume is created before that is on record".to_owned());
        }
        if let Call::Grow(volume, size) = call
            && renting
                .journal
                .get(&slot)
                .is_none_or(|record| record.volume.as_ref() != Some(volume) || record.size_at_most() < *size)
        {
            return Err("a volume is grown before that is on record".to_owned());
        }
        match renting.process.calls.iter().find(|(id, _)| id.slot == slot) {
            Some((_, (under_way, _))) => Err(format!("{call:?} is called while {under_way:?} is under way")),
            None => Ok(()),
        }
    }

    /// No volume is, or will be, larger than what is on record of it, and billed.
    pub(super) fn check_sizes(&self) -> Step {
        let Some(renting) = &self.renting else { return Ok(()) };
        let larger = renting.journal.values().find(|record| {
            let size = record.volume.as_ref().and_then(|id| renting.cloud.size_at_most(id));
            size.is_some_and(|size| size > record.size_at_most())
        });
        match larger {
            Some(record) => Err(format!("a volume is larger than what is on record of it: {record:?}")),
            None => Ok(()),
        }
    }

    /// Makes a call, on each member. The answer, if it needs none.
    pub(super) fn call(&mut self, id: AskId, call: Call) -> Option<Answer> {
        let parts = match stripes::parts(&call, self.scenario.volumes) {
            Ok(parts) => parts,
            Err(error) => return Some(call.failed(error)),
        };
        if let Some(renting) = &mut self.renting {
            renting.process.calls.insert(id, (call, vec![None; parts.len()]));
        }
        for (index, part) in parts.into_iter().enumerate() {
            self.call_member((id, index), part);
        }
        None
    }

    fn call_member(&mut self, id: (AskId, usize), call: Call) {
        let throttles = |renting: &mut Renting| renting.cloud.throttles();
        let fate = if self.faulty && self.renting.as_mut().is_some_and(throttles) {
            self.report.throttled += 1;
            Fate::Throttled
        } else if !self.fault() {
            Fate::Done { twice: self.faulty && self.random.below(8) == 0 }
        } else {
            match self.random.below(5) {
                0 => Fate::Refused,
                1 => Fate::Lost,
                2 => Fate::Later,
                3 => Fate::Late { done: self.random.below(2) == 0 },
                _ => Fate::Refused,
            }
        };
        let after = match fate {
            Fate::Late { .. } => ANSWER_MAX + self.soon(LATE_MAX),
            _ => self.soon(ANSWER_MAX),
        };
        if let Some(renting) = &mut self.renting {
            renting.process.member_calls.push((id, call, fate));
            self.schedule(after, SimEvent::Called(id));
        }
    }

    /// The provider answers, for a member.
    pub(in crate::world) fn called(&mut self, id: (AskId, usize)) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let calls = &mut renting.process.member_calls;
        let Some(place) = calls.iter().position(|(other, ..)| *other == id) else { return Ok(()) };
        let (_, call, fate) = calls.remove(place);
        let carried = match fate {
            Fate::Done { .. } | Fate::Lost | Fate::Late { done: true } => Some(self.carry_out_call(&call)?),
            Fate::Refused | Fate::Throttled | Fate::Later | Fate::Late { done: false } => None,
        };
        if fate == Fate::Later {
            let at = self.now + self.soon(LATE_MAX);
            if let Some(renting) = &mut self.renting {
                renting.late.push((at, call.clone()));
            }
            self.schedule_at(at, SimEvent::Late);
        }
        let too_many = |renting: &mut Renting| renting.cloud.too_many();
        let throttled = self.renting.as_mut().filter(|_| fate == Fate::Throttled).map(too_many);
        let answer = match (carried, fate) {
            (Some(answer), Fate::Done { .. }) => answer,
            _ if let Some(error) = throttled => call.failed(error),
            _ => {
                let error = match self.random.below(if fate == Fate::Refused { 6 } else { 1 }) {
                    1 => ProviderError::Quota("all of it".to_owned()),
                    2 => ProviderError::Capacity("none".to_owned()),
                    3 => ProviderError::AttachLimit("no slot".to_owned()),
                    4 => ProviderError::Invalid("no permission".to_owned()),
                    _ => ProviderError::Transient("a fault".to_owned()),
                };
                call.failed(error)
            }
        };
        self.answered_for(id, answer, fate == (Fate::Done { twice: true }))
    }

    /// A member's answer is there: the call is answered once all are.
    fn answered_for(&mut self, (id, index): (AskId, usize), answer: Answer, twice: bool) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let calls = &mut renting.process.calls;
        let Some((_, answers)) = calls.get_mut(&id) else { return Ok(()) };
        answers[index] = Some(answer);
        if answers.iter().any(Option::is_none) {
            return Ok(());
        }
        let Some((call, answers)) = calls.remove(&id) else { return Ok(()) };
        let answer = stripes::together(&call, self.scenario.volumes, answers.into_iter().flatten().collect())?;
        self.complete(id, answer.clone());
        if twice {
            self.complete(id, answer);
        }
        self.drive()
    }

    /// Carries a call out, unless that would lose data.
    pub(super) fn carry_out_call(&mut self, call: &Call) -> Step<Answer> {
        let (now, faulty) = (self.now, self.faulty);
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        if let Call::ChangeState(id, Transition::Detach) = call
            && is_of(id, renting.in_use.as_ref())
        {
            return Err(format!("the volume {} is detached, which the engine uses", id.0));
        }
        let answer = renting.cloud.carry_out(now, call, &mut self.random, faulty)?;
        (self.report.failed_volumes, self.report.undeleted) = (renting.cloud.failed, renting.cloud.undeleted);
        let lagging = &renting.cloud.lagging;
        (self.report.unknown, self.report.stale) = (lagging.unknown, lagging.stale);
        self.report.twins = lagging.twins;
        if let (Call::Grow(..), Answer::Changed(Ok(_))) = (call, &answer) {
            self.report.grown_volumes += 1;
        }
        if let (Call::ChangeState(id, Transition::Delete), Answer::Changed(Ok(_))) = (call, &answer) {
            let named = renting.owner.owner != Owner::Backing && is_of(id, renting.owner.volume.as_ref());
            if named || is_of(id, renting.in_use.as_ref()) {
                return Err(format!("the volume {} is deleted, which may hold the only copy", id.0));
            }
        }
        Ok(answer)
    }

    /// What the provider was asked long ago happens now.
    pub(in crate::world) fn late(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let due: Vec<Call> = renting.late.extract_if(.., |(at, _)| *at <= now).map(|(_, call)| call).collect();
        for call in due {
            self.carry_out_call(&call)?;
        }
        Ok(())
    }
}
