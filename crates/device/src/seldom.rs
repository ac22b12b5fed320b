//! How often the log is told of what others can make happen as often as they like.

use std::time::{Duration, Instant};

/// The least time between two messages of one kind.
const PERIOD: Duration = Duration::from_secs(10);

/// Says when the next message of a kind is due.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seldom {
    last: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// It has happened: `Some` if the log is to be told now, with how often it has happened untold since the last time.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PERIOD) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_one_in_a_while_with_the_number_of_the_others() {
        let (mut seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.next(start), Some(0));
        assert!((0..3417).all(|_| seldom.next(start).is_none()));
        assert_eq!(seldom.next(start + PERIOD), Some(3417));
        assert_eq!(seldom.next(start + 2 * PERIOD), Some(0));
    }
}
