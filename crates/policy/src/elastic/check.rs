//! What holds of a controller between two events. Debug builds alone have it, and check it after every event.

use super::lifecycle::{Stage, Wish, Work};
use super::{Controller, RECORDS_MAX};

impl Controller {
    /// Whether the stage goes with the work, the volume, the bill and what was asked for.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        let (stage, work, rental) = (self.stage, self.work, self.rental.as_ref());
        let step = match work {
            Work::Outstanding(step) => Some(step),
            Work::Settled | Work::Due | Work::Retry(_) => None,
        };
        let adopted = rental.is_some_and(|rental| rental.adopted.is_some());
        let rules = [
            ("a volume is rented in every stage but the first", (stage == Stage::Idle) == rental.is_none()),
            ("what is rented is paid for", self.ledger.open_size() == rental.map(|rental| rental.size)),
            (
                "every stage that has a step is waiting for it",
                match stage {
                    Stage::Idle | Stage::Boost => work == Work::Settled,
                    Stage::Drain => true,
                    Stage::Create | Stage::Adopt | Stage::Grow | Stage::Absorb => {
                        matches!(work, Work::Due | Work::Outstanding(_))
                    }
                    Stage::Attach | Stage::Release | Stage::Detach | Stage::Delete => work != Work::Settled,
                },
            ),
            ("a step is due only after the one that overtook", work != Work::Due || self.overtaking.is_some()),
            (
                "two steps are outstanding only if one overtakes a release",
                step.is_none() || self.overtaking.is_none() || stage == Stage::Release,
            ),
            (
                "what the driver has not taken is outstanding",
                self.queue.iter().all(|(id, _)| Some(*id) == step || Some(*id) == self.overtaking),
            ),
            ("only a release is overtaken", !self.overtaken || stage == Stage::Release),
            (
                "what absorbs or drains is adopted, and nothing before",
                match stage {
                    Stage::Idle | Stage::Create | Stage::Attach | Stage::Adopt => !adopted,
                    Stage::Boost | Stage::Grow | Stage::Absorb | Stage::Drain => adopted,
                    Stage::Release | Stage::Detach | Stage::Delete => true,
                },
            ),
            ("a drain has begun", stage != Stage::Drain || rental.is_some_and(|rental| rental.drain_started.is_some())),
            (
                "changes wait only for a drain",
                !rental.is_some_and(|rental| rental.finishing)
                    || !matches!(stage, Stage::Create | Stage::Attach | Stage::Adopt | Stage::Boost | Stage::Grow),
            ),
            (
                "a cache that failed is being released",
                !self.degraded
                    || matches!(
                        stage,
                        Stage::Grow | Stage::Absorb | Stage::Drain | Stage::Release | Stage::Detach | Stage::Delete
                    ),
            ),
            (
                "what was asked for waits for a step",
                match self.wish {
                    Wish::None => true,
                    Wish::Boost => {
                        !matches!(stage, Stage::Idle | Stage::Boost | Stage::Grow | Stage::Absorb)
                            && work != Work::Settled
                    }
                    Wish::End => !matches!(stage, Stage::Idle | Stage::Boost | Stage::Drain),
                },
            ),
            ("a growth that is asked for is under way", self.growth.is_asked() == (stage == Stage::Grow)),
            ("the next size is within bounds", self.config.bounds().clamp(self.next_size) == self.next_size),
            ("records have an end", self.records.len() <= RECORDS_MAX),
        ];
        rules.iter().find(|(_, holds)| !holds).map_or(Ok(()), |(what, _)| Err(what))
    }
}
