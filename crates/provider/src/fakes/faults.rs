//! What happens to calls on their way.

use std::collections::VecDeque;

use surgetank_model::random::Random;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not arrive.
    RequestLost,
    /// It is carried out, and nobody learns.
    AnswerLost,
    /// Nobody learns, and it is carried out after the next one like it.
    RequestLate,
    /// It arrives twice, and the second answer is told.
    Twice,
    /// The cloud refuses it, as there were too many.
    Throttled,
    /// The cloud has an error of its own, and has not carried it out.
    Unavailable,
    /// It is carried out, and the gateway says 502 in HTML.
    BadGateway,
    /// It is carried out, and half of the answer comes.
    Truncated,
    /// It is carried out, and the answer has no end. Not met by chance, as it takes time.
    Huge,
    /// A proxy's login page answers.
    LoginPage,
    /// Something else answers, in no language of the cloud's.
    Nonsense,
    /// The credentials are refused.
    Refused,
    /// It is carried out, and the answer comes when nobody waits for it any more. Not met by chance, as it takes time.
    AnswerLate,
}

impl Fault {
    /// Those that are met by chance.
    pub const BY_CHANCE: [Self; 11] = [
        Self::RequestLost,
        Self::AnswerLost,
        Self::RequestLate,
        Self::Twice,
        Self::Throttled,
        Self::Unavailable,
        Self::BadGateway,
        Self::Truncated,
        Self::LoginPage,
        Self::Nonsense,
        Self::Refused,
    ];
}

/// Which calls meet which faults.
#[derive(Default)]
pub struct Faults {
    /// The next call of this name meets the first of these.
    pub scripted: VecDeque<(&'static str, Fault)>,
    /// Calls meet one by chance, so many of a hundred.
    pub by_chance: Option<(Random, u64)>,
    /// What has happened, for the test to count.
    pub met: Vec<Fault>,
}

impl Faults {
    /// What happens to this call.
    pub(super) fn next(&mut self, call: &str) -> Option<Fault> {
        let scripted = self.scripted.iter().position(|(name, _)| *name == call);
        let fault = match scripted.and_then(|at| self.scripted.remove(at)) {
            Some((_, fault)) => Some(fault),
            None => self.by_chance.as_mut().and_then(|(random, of_hundred)| {
                let chance = random.below(100);
                let which = random.below(Fault::BY_CHANCE.len() as u64);
                (chance < *of_hundred).then(|| Fault::BY_CHANCE[usize::try_from(which).unwrap_or_default()])
            }),
        };
        self.met.extend(fault);
        fault
    }
}
