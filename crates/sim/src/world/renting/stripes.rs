//! Calls of volumes that are stripes over several: every member is called for itself, and may have a fate of its own.

use surgetank_model::volume::{Change, ProviderError};
use surgetank_rental::stripe;
use surgetank_rental::{Answer, Call};

use crate::world::{Step, World};

/// The calls on members that a call becomes.
pub(super) fn parts(call: &Call, volumes: u32) -> Result<Vec<Call>, ProviderError> {
    Ok(match call {
        Call::Create(request) if volumes > 1 => {
            stripe::requests(request, volumes)?.into_iter().map(Call::Create).collect()
        }
        Call::ChangeState(id, transition) => {
            stripe::members(id).into_iter().map(|member| Call::ChangeState(member, *transition)).collect()
        }
        Call::Grow(id, size) => {
            let size = stripe::growth_of_members(id, *size)?;
            stripe::members(id).into_iter().map(|member| Call::Grow(member, size)).collect()
        }
        Call::Describe(id) => stripe::members(id).into_iter().map(Call::Describe).collect(),
        Call::SetTag { id, key, value } => {
            let set = |id| Call::SetTag { id, key: key.clone(), value: value.clone() };
            stripe::members(id).into_iter().map(set).collect()
        }
        // A listing shows stripes.
        Call::Create(_) | Call::List { .. } => vec![call.clone()],
    })
}

/// What the answers mean together.
pub(super) fn together(call: &Call, volumes: u32, mut answers: Vec<Answer>) -> Step<Answer> {
    let is_stripe = match call {
        Call::Create(_) => volumes > 1,
        Call::ChangeState(id, _) | Call::Grow(id, _) | Call::Describe(id) | Call::SetTag { id, .. } => {
            stripe::is_stripe(id)
        }
        Call::List { .. } => false,
    };
    if !is_stripe {
        return answers.pop().ok_or_else(|| "a call without an answer".to_owned());
    }
    let described = |answers: Vec<Answer>| {
        let described = |answer| if let Answer::Described(answer) = answer { Some(answer) } else { None };
        answers.into_iter().filter_map(described)
    };
    let changed = |answers: Vec<Answer>| {
        let changed = |answer| if let Answer::Changed(answer) = answer { Some(answer) } else { None };
        answers.into_iter().filter_map(changed).collect()
    };
    Ok(match call {
        Call::Create(_) => {
            let created = described(answers).map(|answer| answer.map(|volume| (volume, Change::Changed)));
            Answer::Described(stripe::created(created.collect()).map(|(volume, _)| volume))
        }
        Call::Describe(id) => Answer::Described(stripe::described(id, described(answers).collect())),
        Call::ChangeState(id, transition) => Answer::Changed(stripe::changed(id, *transition, changed(answers))),
        Call::Grow(id, _) => Answer::Changed(stripe::grown(id, changed(answers))),
        Call::SetTag { id, .. } => Answer::Changed(stripe::tagged(id, true, changed(answers))),
        Call::List { .. } => return Err("a listing is no stripe".to_owned()),
    })
}

impl World<'_> {
    /// Carries a call out at once, on all members.
    pub(super) fn carry_out_whole(&mut self, call: &Call) -> Step<Answer> {
        let volumes = self.scenario.volumes;
        match parts(call, volumes) {
            Ok(parts) => {
                let answers = parts.iter().map(|part| self.carry_out_call(part)).collect::<Step<Vec<_>>>()?;
                together(call, volumes, answers)
            }
            Err(error) => Ok(call.failed(error)),
        }
    }
}
