//! What becomes of a call, in whichever dialect it is made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Settings;
use super::cloud::Cloud;
use super::faults::{Fault, Faults};
use super::server::{Outcome, Reply, Request};
use crate::clock::Clock;

/// How late an answer is that nobody waits for.
const LATE: Duration = Duration::from_secs(2);
/// More than any client reads.
const HUGE: usize = (32 << 20) + 1;

/// Calls that were made, that are yet to be carried out, and what happens to the next ones.
pub struct Calls<C> {
    pub faults: Faults,
    /// Those that arrived, since somebody has looked.
    pub sent: Vec<C>,
    late: Vec<C>,
    /// Those that the client has no right to.
    pub denied: BTreeSet<&'static str>,
    /// Whether the metadata service answers nobody.
    pub is_metadata_gone: bool,
}

impl<C> Default for Calls<C> {
    fn default() -> Self {
        let (sent, late, denied) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { faults: Faults::default(), sent, late, denied, is_metadata_gone: false }
    }
}

/// What a cloud does with calls.
pub trait Dialect: Sized + Send + 'static {
    /// A call as it came.
    type Call: Clone;
    /// What is answered if it is carried out.
    type Done;
    /// Why it is not.
    type Refused;

    /// What is behind a fake at first.
    fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self;

    /// The volumes.
    fn cloud(&mut self) -> &mut Cloud;

    /// The calls that were made, and what happens to the next ones.
    fn calls(&mut self) -> &mut Calls<Self::Call>;

    /// What becomes of a request, which is a call, or something else.
    fn answer(&mut self, request: &Request) -> Outcome;

    /// By what name faults are scripted.
    fn name(call: &Self::Call) -> &str;

    /// Whether whoever sends the request may make the call.
    fn permit(&self, request: &Request, call: &Self::Call) -> Result<(), Self::Refused>;

    /// Carries it out.
    fn act(&mut self, call: &Self::Call) -> Result<Self::Done, Self::Refused>;

    /// What is answered.
    fn reply(&self, call: &Self::Call, answer: Result<Self::Done, Self::Refused>) -> Reply;

    /// A reply of some other kind.
    fn other(&self, status: u16, kind: &'static str, body: Vec<u8>) -> Reply;

    /// As the cloud refuses what meets [`Fault::Throttled`], [`Fault::Unavailable`] or [`Fault::Refused`]; `None`: another fault.
    fn refusal(fault: Fault) -> Option<Self::Refused>;

    /// The kind of its replies.
    const KIND: &'static str;

    /// A page for people.
    fn web_page(&self, status: u16) -> Reply {
        let page = b"<!DOCTYPE html><html><title>Log in</title></html>".to_vec();
        self.other(status, "text/html", page)
    }

    /// What becomes of a call.
    fn meet(&mut self, request: &Request, call: Self::Call) -> Outcome {
        let fault = self.calls().faults.next(Self::name(&call));
        if fault == Some(Fault::RequestLost) {
            return Outcome::Nothing;
        }
        self.calls().sent.push(call.clone());
        if let Some(refused) = fault.and_then(Self::refusal) {
            return Outcome::Answer(self.reply(&call, Err(refused)));
        }
        match fault {
            Some(Fault::RequestLate) => {
                // Only one that would be accepted now is carried out later.
                if self.permit(request, &call).is_ok() {
                    self.calls().late.push(call);
                }
                return Outcome::Nothing;
            }
            Some(Fault::Twice) => {
                let _ = self.permit(request, &call).and_then(|()| self.act(&call));
            }
            Some(Fault::LoginPage) => return Outcome::Answer(self.web_page(200)),
            Some(Fault::Nonsense) => {
                return Outcome::Answer(self.other(200, "text/plain", b"\x1b[2J nonsense".to_vec()));
            }
            _ => {}
        }
        let carried_out = self.permit(request, &call).and_then(|()| self.act(&call));
        let is_late = |late: &mut Self::Call| Self::name(late) == Self::name(&call);
        let late: Vec<_> = self.calls().late.extract_if(.., is_late).collect();
        self.arrive(late);
        let reply = self.reply(&call, carried_out);
        match fault {
            Some(Fault::AnswerLost) => Outcome::Nothing,
            Some(Fault::Truncated) => Outcome::Half(reply),
            Some(Fault::AnswerLate) => Outcome::Late(reply, LATE),
            Some(Fault::BadGateway) => Outcome::Answer(self.web_page(502)),
            Some(Fault::Huge) => Outcome::Answer(self.other(200, Self::KIND, vec![b' '; HUGE])),
            _ => Outcome::Answer(reply),
        }
    }

    /// Carries out the calls that are late.
    fn settle(&mut self) {
        let late = std::mem::take(&mut self.calls().late);
        self.arrive(late);
    }

    /// Carries out these, of which nobody learns.
    fn arrive(&mut self, late: Vec<Self::Call>) {
        for call in late {
            let _ = self.act(&call);
        }
    }
}
