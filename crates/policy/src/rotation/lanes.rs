//! Which replacement must begin first, and how long it can wait.
//!
//! Replacements queue for lanes, of which there are as many as extra volumes are allowed. Each must begin before its member's
//! credits are too few to carry it to the end; whoever must begin first goes first, which keeps all in time if any order does.

/// A member that will have to be replaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub slot: u32,
    /// From now until its replacement must begin; negative: it is late.
    pub latest_s: f64,
    /// How long its replacement takes a lane.
    pub takes_s: f64,
}

/// The one that goes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct First {
    /// Which.
    pub slot: u32,
    /// How long all can wait.
    pub slack_s: f64,
}

/// When each lane is free, in seconds from now.
#[derive(Clone, Debug, PartialEq)]
pub struct Lanes(Vec<f64>);

impl Lanes {
    /// So many, some of them busy for a time.
    #[must_use]
    pub fn new(count: u32, busy_s: impl Iterator<Item = f64>) -> Self {
        let mut lanes: Vec<f64> = busy_s.collect();
        let count = (count.max(1) as usize).max(lanes.len());
        lanes.resize(count, 0.0);
        Self(lanes)
    }

    /// Who goes first; `None`: nobody has to.
    #[must_use]
    pub fn first(&self, candidates: &[Candidate]) -> Option<First> {
        let mut order: Vec<Candidate> = candidates.to_vec();
        order.sort_by(|one, other| one.latest_s.total_cmp(&other.latest_s).then(one.slot.cmp(&other.slot)));
        let slot = order.first()?.slot;
        let mut free_s = self.0.clone();
        let mut slack_s = f64::INFINITY;
        for candidate in order {
            let Some(earliest) = free_s.iter_mut().min_by(|one, other| one.total_cmp(other)) else { break };
            slack_s = slack_s.min(candidate.latest_s - *earliest);
            *earliest += candidate.takes_s;
        }
        Some(First { slot, slack_s })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(parts: &[(f64, f64)]) -> Vec<Candidate> {
        let of = |(slot, (latest_s, takes_s)): (usize, &(f64, f64))| Candidate {
            slot: u32::try_from(slot).unwrap(),
            latest_s: *latest_s,
            takes_s: *takes_s,
        };
        parts.iter().enumerate().map(of).collect()
    }

    #[test]
    fn those_that_queue_before_the_last_one_bring_the_first_forward() {
        let lanes = Lanes::new(1, std::iter::empty());
        assert_eq!(lanes.first(&[]), None);
        let found = lanes.first(&candidates(&[(100.0, 30.0), (110.0, 30.0), (90.0, 30.0)])).unwrap();
        // Slot 2 at once, slot 0 after 30 s, slot 1 after 60 s: 50 s before it must.
        assert_eq!(found, First { slot: 2, slack_s: 50.0 });
        let busy = Lanes::new(1, std::iter::once(20.0));
        assert_eq!(busy.first(&candidates(&[(100.0, 30.0)])).unwrap().slack_s, 80.0);
        assert_eq!(Lanes::new(2, std::iter::once(20.0)).first(&candidates(&[(100.0, 30.0)])).unwrap().slack_s, 100.0);
    }

    proptest! {
        /// If all begin when the slack is over, none is late.
        #[test]
        fn all_can_wait_for_as_long_as_said(
            parts in prop::collection::vec((0.0f64..1000.0, 1.0f64..100.0), 1..12), busy in 0.0f64..50.0,
        ) {
            let found = Lanes::new(1, std::iter::once(busy)).first(&candidates(&parts)).unwrap();
            let mut order = parts.clone();
            order.sort_by(|one, other| one.0.total_cmp(&other.0));
            let mut free = busy.max(0.0) + found.slack_s;
            for (latest, takes) in order {
                prop_assert!(free <= latest + 1e-9);
                free += takes;
            }
        }
    }
}
