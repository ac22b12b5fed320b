//! When to look for events a little before sleeping for them.
//!
//! A client on another core answers within microseconds, but a thread that sleeps meanwhile costs both of them a
//! wake-up, in a guest an interrupt from core to core and often a halted core. The classic answer is QEMU's
//! `poll-max-ns`; ours needs no clock of its own to learn.

use std::time::Duration;

/// The longest look before a sleep.
pub const SPIN_TIME: Duration = Duration::from_micros(50);
/// Sleeps without a look after a run of looks in vain, as a power of two.
const PENALTY_MAX: u32 = 10;

/// Learns whether a look pays: one that found nothing is followed by twice as many sleeps without one, up to 1024; one
/// that found something starts anew. A quiet device thus spins for 50 µs in 1024 wake-ups.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin {
    skip: u32,
    penalty: u32,
}

impl Spin {
    /// Whether to look before this sleep.
    pub fn pays(&mut self) -> bool {
        let pays = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        pays
    }

    /// What the look came to.
    pub fn learn(&mut self, found: bool) {
        if found {
            *self = Self::default();
        } else {
            self.skip = 1 << self.penalty;
            self.penalty = (self.penalty + 1).min(PENALTY_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_one_hit_brings_them_back() {
        let mut spin = Spin::default();
        let mut looks = 0;
        for _ in 0..100_000 {
            if spin.pays() {
                looks += 1;
                spin.learn(false);
            }
        }
        assert!(looks < 120, "{looks} looks in 100,000 quiet waits");
        while !spin.pays() {}
        spin.learn(true);
        assert!((0..1000).all(|_| {
            let pays = spin.pays();
            spin.learn(true);
            pays
        }));
    }
}
