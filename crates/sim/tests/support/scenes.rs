//! What the campaigns cannot show: an engine alone, and what it must say.

use surgetank_cache::planted::Bug;
use surgetank_cache::{Config, Effect, Engine, Epoch, IoFailure, Outcome, ReplyError};
use surgetank_model::{Instant, Limits, Operation, Request, RequestId};

const BLOCK: u64 = 4096;

/// A scene for a bug: what is wrong, if something is.
pub type Scene = fn() -> Result<(), &'static str>;

/// In the simulated world the note of a failed flush is not passed on to the next daemon, and a healing that is forgotten is
/// hidden by the flush that fails with it.
pub const SCENES: [(Bug, Scene); 2] =
    [(Bug::OwnFlushTakesNote, own_flush_fails), (Bug::ForgottenHealingCounts, healing_is_forgotten)];

fn config() -> Config {
    let outage_patience = std::time::Duration::from_secs(60);
    Config { size: 16 * BLOCK, logical_block: 512, backing_limits: Limits::NONE, outage_patience }
}

/// Carries out what the engine asks; flushes fail. Answers what it replies.
fn turn(engine: &mut Engine) -> Vec<Result<(), ReplyError>> {
    let mut replies = Vec::new();
    while let Some(effect) = engine.next_effect() {
        let (id, outcome) = match effect {
            Effect::Flush { id, .. } => (id, Outcome::Failed(IoFailure::Io)),
            Effect::Write { id, .. } | Effect::Read { id, .. } => (id, Outcome::Done),
            Effect::Reply { result, .. } => {
                replies.push(result);
                continue;
            }
            _ => continue,
        };
        engine.complete(Instant::ZERO, id, outcome);
    }
    replies
}

fn first_block(id: u64, operation: Operation) -> Request {
    Request { id: RequestId(id), operation, offset: 0, length: BLOCK }
}

/// The last flush before a stop fails: the application is still to be told.
fn own_flush_fails() -> Result<(), &'static str> {
    let mut engine = Engine::new(config());
    engine.submit(Instant::ZERO, first_block(1, Operation::Write { fua: false }));
    turn(&mut engine);
    engine.flush(Instant::ZERO, RequestId(2));
    turn(&mut engine);
    if engine.owes_flush_failure() { Ok(()) } else { Err("nobody will be told that a flush failed") }
}

/// A lost block is overwritten, and the flush fails: it is lost still.
fn healing_is_forgotten() -> Result<(), &'static str> {
    let mut engine = Engine::with_lost(config(), Epoch([1; 16]), &[(0, BLOCK), (8 * BLOCK, BLOCK)]);
    engine.submit(Instant::ZERO, first_block(1, Operation::Write { fua: false }));
    turn(&mut engine);
    engine.submit(Instant::ZERO, first_block(2, Operation::Read));
    match turn(&mut engine).last() {
        Some(Err(_)) => Ok(()),
        _ => Err("what a failed flush may have forgotten is read as the backing volume has it"),
    }
}
