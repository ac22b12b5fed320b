//! `surgetank pool drain`: a benefactor is taken out of a pool that goes on.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use surgetank_model::units::Span;
use surgetank_pool::client::PoolClient;
use surgetank_pool::manager::Leaving;
use surgetank_pool_core::id::BenefactorId;
use surgetank_report::number::count;
use surgetank_report::{Failure, output};

use super::asked::Asked;
use super::{GIB, size};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Between two words about how far it has come.
const TELL: Duration = Duration::from_secs(10);

/// Flags of `pool drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool drain 3 --wait
  surgetank pool drain 3 --json --token key pool://node1
  surgetank pool drain 3 --undo

The benefactor is given nothing new from now on, and what it has is moved to others, or leaves the pool if its target has it. \
Once it may go, end its process, and say `surgetank pool leave N`. It goes on whatever ends this command, also while managers \
restart; said again, it tells how far it has come. It is refused if the others have no room for what no target has yet.")]
pub struct Drain {
    /// The benefactor's number, as `surgetank pool status` shows it
    #[arg(value_name = "N")]
    number: u32,
    /// Wait until it may go
    #[arg(long)]
    wait: bool,
    /// How long to wait; for ever if it is not given
    #[arg(long, value_name = "TIME", requires = "wait")]
    timeout: Option<Span>,
    /// It stays: it is given new chunks again
    #[arg(long, conflicts_with = "wait")]
    undo: bool,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asked: Asked,
}

/// What is left at a benefactor that is taken out.
#[derive(Serialize)]
pub struct Left {
    groups_left: u64,
    left_gib: f64,
    /// Writers have there what they have not committed.
    uncommitted: bool,
    may_go: bool,
}

impl Left {
    pub fn of(how: &Leaving) -> Self {
        let (groups_left, left_gib) = (how.groups, how.bytes as f64 / GIB);
        Self { groups_left, left_gib, uncommitted: how.drafts, may_go: how.may_go }
    }

    /// As the table of benefactors says it.
    pub fn people(&self) -> String {
        match self.may_go {
            true => "leaving (may go)".to_owned(),
            false => format!("leaving ({} left)", size(self.left_gib)),
        }
    }

    fn sentence(&self, number: u32) -> String {
        match (self.may_go, self.groups_left) {
            (true, _) => format!(
                "benefactor {number} holds nothing that is needed: end its process, and say `surgetank pool leave {number}`"
            ),
            (false, 0) => {
                format!("benefactor {number} is taken out: writers have not committed yet what they have there")
            }
            (false, groups) => format!(
                "benefactor {number} is taken out: about {} in {} are still to be moved or drained",
                size(self.left_gib),
                count(usize::try_from(groups).unwrap_or(usize::MAX), "group")
            ),
        }
    }
}

#[derive(Serialize)]
struct Answer {
    benefactor: String,
    /// `None`: it is not taken out.
    leaving: Option<Left>,
}

impl Drain {
    pub fn run(&self) -> Result<(), Failure> {
        let id = BenefactorId(self.number);
        if self.undo {
            self.asked.ask(async |config| PoolClient::take_back(config, id).await)?;
            return self.answer(None);
        }
        self.asked.ask(async |config| PoolClient::take_out(config, id).await)?;
        let until = self.timeout.map(|timeout| Instant::now() + timeout.0);
        let (mut tell_at, mut has_looked) = (Instant::now(), false);
        loop {
            let how = match self.asked.ask(async |config| PoolClient::leaving(config, id).await) {
                // Managers may restart meanwhile: what they have begun goes on.
                Err(Failure::Failed(why)) if has_looked && until.is_none_or(|until| Instant::now() < until) => {
                    output::note(&format!("surgetank: {why}; it is asked again"));
                    std::thread::sleep(LOOK);
                    continue;
                }
                how => how?,
            };
            has_looked = true;
            // Another operator may have taken it back, or it has left.
            let Some(left) = how.as_ref().map(Left::of) else {
                self.answer(None)?;
                return Err(Failure::Failed(format!("somebody else has ended that benefactor {id} is taken out")));
            };
            if left.may_go || !self.wait {
                return self.answer(Some(left));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let why = format!("the time is over: {}; it goes on", left.sentence(self.number));
                if self.json {
                    self.answer(Some(left))?;
                }
                return Err(Failure::Failed(why));
            }
            if Instant::now() >= tell_at {
                output::note(&format!("surgetank: {}", left.sentence(self.number)));
                tell_at = Instant::now() + TELL;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn answer(&self, leaving: Option<Left>) -> Result<(), Failure> {
        if self.json {
            return output::print_json(&Answer { benefactor: self.number.to_string(), leaving });
        }
        output::print(&match leaving {
            Some(left) => left.sentence(self.number),
            None => format!("benefactor {} stays", self.number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_with_what_to_do_once_nothing_is() {
        let left = |groups, drafts, may_go| Left::of(&Leaving { groups, bytes: groups << 30, drafts, may_go });
        assert!(
            left(2, true, false).sentence(3).ends_with("about 2.0 GiB in 2 groups are still to be moved or drained")
        );
        assert!(left(0, true, false).sentence(3).contains("have not committed yet"));
        assert!(left(0, false, true).sentence(3).ends_with("say `surgetank pool leave 3`"));
        assert_eq!(
            (left(1, false, false).people(), left(0, false, true).people()),
            ("leaving (1.0 GiB left)".to_owned(), "leaving (may go)".to_owned())
        );
    }
}
