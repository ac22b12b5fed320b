//! Whether a history is linearizable: whether there is an order of all that was asked in which each takes place at one instant between
//! being asked and being heard, and every answer is the one that follows from the order. Depth first, and what was tried is
//! remembered: without that, a history that is not linearizable takes a time that doubles with every two calls that overlap. What the store
//! did is tried in its order first; it proves nothing, and if it is wrong everything else is tried. Whatever changes nothing takes place as soon
//! as its answer is right: whether it is first makes no difference to the others.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// What something is, and how it answers if it is asked by one at a time.
pub trait Spec: Clone + Debug + Ord {
    type Asked: Debug;
    type Heard: Debug;

    /// Carries out what was asked, and says whether that is the right answer; of one that nobody heard, whether it changes anything.
    fn step(&mut self, asked: &Self::Asked, heard: Option<&Self::Heard>) -> bool;
}

/// Something that was asked; when, and when its answer was heard.
#[derive(Debug)]
pub struct Call<S: Spec> {
    pub what: S::Asked,
    pub asked: u64,
    /// When the store did it, as far as that is known.
    pub done: Option<u64>,
    /// `None`: it may take place at any later time, or never.
    pub heard: Option<(u64, S::Heard)>,
}

/// States that are tried, at most.
const TRIED_MAX: usize = 2_000_000;

type Done = Vec<u64>;

struct Frame<S> {
    state: S,
    done: Done,
    /// What may come next, the last first.
    next: Vec<usize>,
}

/// Checks calls that are in the order in which they were asked.
pub fn check<S: Spec>(start: &S, calls: &[Call<S>]) -> Result<(), String> {
    // What was neither heard nor seen at the store took place hardly ever: first without these.
    search(start, calls, |call| call.heard.is_some() || call.done.is_some()).or_else(|_| search(start, calls, |_| true))
}

fn search<S: Spec>(start: &S, calls: &[Call<S>], counts: fn(&Call<S>) -> bool) -> Result<(), String> {
    let mut none = vec![0; calls.len().div_ceil(64)];
    for at in (0..calls.len()).filter(|at| !counts(&calls[*at])) {
        none[at / 64] |= 1 << (at % 64);
    }
    let Some(next) = candidates(start, calls, &none) else { return Ok(()) };
    let mut tried = BTreeSet::new();
    let (mut deepest, mut stuck) = (0, String::new());
    let mut stack = vec![Frame { state: start.clone(), done: none, next }];
    while let Some(frame) = stack.last_mut() {
        let Some(at) = frame.next.pop() else {
            stack.pop();
            continue;
        };
        let mut state = frame.state.clone();
        let call = &calls[at];
        if !state.step(&call.what, call.heard.as_ref().map(|(_, heard)| heard)) {
            continue;
        }
        let mut done = frame.done.clone();
        done[at / 64] |= 1 << (at % 64);
        if !tried.insert((done.clone(), state.clone())) {
            continue;
        }
        if tried.len() > TRIED_MAX {
            return Err(format!("{} calls are not decided after {TRIED_MAX} states", calls.len()));
        }
        let Some(next) = candidates(&state, calls, &done) else { return Ok(()) };
        if stack.len() >= deepest {
            deepest = stack.len();
            let open: Vec<_> = next.iter().map(|at| &calls[*at]).collect();
            stuck = format!("after {state:?} comes none of {open:?}");
        }
        stack.push(Frame { state, done, next });
    }
    Err(format!("no order of {} calls explains all answers: {deepest} may have taken place, and {stuck}", calls.len()))
}

/// Calls that may take place next: none that was asked after another one was heard comes before that one. `None`: everything that was heard
/// took place. What is to be tried first comes last.
fn candidates<S: Spec>(state: &S, calls: &[Call<S>], done: &Done) -> Option<Vec<usize>> {
    let is_open = |at: &usize| done[at / 64] & (1 << (at % 64)) == 0;
    let heard = |at: usize| calls[at].heard.as_ref().map_or(u64::MAX, |(heard, _)| *heard);
    let first = (0..calls.len()).filter(is_open).map(heard).min().filter(|first| *first < u64::MAX)?;
    let mut open: Vec<usize> = (0..calls.len()).take_while(|at| calls[*at].asked < first).filter(is_open).collect();
    let changes_nothing = |at: &&usize| {
        let mut after = state.clone();
        let heard = calls[**at].heard.as_ref().map(|(_, heard)| heard);
        heard.is_some() && after.step(&calls[**at].what, heard) && after == *state
    };
    if let Some(at) = open.iter().find(changes_nothing) {
        return Some(vec![*at]);
    }
    open.sort_unstable_by_key(|at| std::cmp::Reverse((calls[*at].done.unwrap_or_else(|| heard(*at)), *at)));
    Some(open)
}
