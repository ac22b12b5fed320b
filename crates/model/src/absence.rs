//! When it is believed that a volume is not there: clouds may not know one that was just made, nor, for a moment, any other.

use std::time::Duration;

use crate::Instant;

/// For how long a provider's `describe` may say that there is no such volume although there is. Of listings it says nothing: that
/// a volume is not listed never proves that it is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Of a volume that was made and has not been described yet.
    pub created: Duration,
    /// Of any other.
    pub known: Duration,
}

impl Lag {
    /// What it says is so.
    pub const NONE: Self = Self { created: Duration::ZERO, known: Duration::ZERO };

    /// What is assumed of clouds, which promise no time.
    pub const CLOUD: Self = Self { created: Duration::from_secs(60), known: Duration::from_secs(30) };

    /// Of a volume of which nothing is known, not even when it was made.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.created.max(self.known)
    }

    /// How long ago a volume may have been looked for last, for the next look to go on from that one: an absence is told at least twice in
    /// the time that it takes.
    #[must_use]
    pub fn gap(lag: Duration) -> Duration {
        lag / 2
    }

    /// How often one has to look at least, whatever is waited for; `None`: nothing has to be waited for.
    #[must_use]
    pub fn look_every(self) -> Option<Duration> {
        let shortest = if self.known.is_zero() { self.created } else { self.known };
        Some(shortest / 4).filter(|_| !shortest.is_zero())
    }
}

/// Since when a volume is said not to be there, with nothing else said in between.
///
/// Two such answers far apart prove little: the volume may have been known in between, with nobody there to ask. So whoever waits
/// has to ask often enough, or it begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absence {
    /// The first and the last such answer.
    told: Option<(Instant, Instant)>,
    /// For how long it had been said already when the first one came.
    before: Duration,
}

impl Absence {
    /// The provider says now that it is not there, and may be wrong for so long. Whether it is believed: it is if it has said so
    /// for that long, and was asked at least twice in any such time.
    pub fn is_believed(&mut self, now: Instant, lag: Duration) -> bool {
        let lasts = self.told.filter(|(_, last)| now.since(*last) <= Lag::gap(lag));
        if lasts.is_none() {
            self.before = Duration::ZERO;
        }
        self.told = Some((lasts.map_or(now, |(since, _)| since), now));
        self.lasts() >= lag
    }

    /// For how long that was said, with nothing else said in between.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        self.told.map_or(Duration::ZERO, |(since, last)| self.before + last.since(since))
    }

    /// It had been said for so long already when this process first asked, as another one has written down a short time before.
    pub fn was_told_before(&mut self, before: Duration) {
        self.before = before;
    }

    /// The provider says that it is there.
    pub fn ends(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_believed_when_it_was_told_for_so_long_and_nothing_else_in_between() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let (mut absence, lag) = (Absence::default(), Lag::CLOUD.known);
        let mut believes = |seconds: &[u64]| seconds.iter().map(|&at_s| absence.is_believed(at(at_s), lag)).last();
        assert_eq!(believes(&[10, 25, 39]), Some(false));
        assert_eq!(believes(&[40]), Some(true));
        assert_eq!(believes(&[56, 71, 85]), Some(false), "nobody asked for more than half of the time");
        assert_eq!(believes(&[86]), Some(true));
        absence.ends();
        let mut believes = |seconds: &[u64]| seconds.iter().map(|&at_s| absence.is_believed(at(at_s), lag)).last();
        assert_eq!(believes(&[87, 102]), Some(false), "it was there in between");
        assert_eq!(believes(&[117]), Some(true));
        assert!(Absence::default().is_believed(at(0), Lag::NONE.known), "whose word counts is believed at once");
        absence.ends();
        assert!(!absence.is_believed(at(200), lag));
        absence.was_told_before(Duration::from_secs(20));
        let mut believes = |seconds: &[u64]| seconds.iter().map(|&at_s| absence.is_believed(at(at_s), lag)).last();
        assert_eq!((believes(&[209]), believes(&[210])), (Some(false), Some(true)), "what was told before counts");
        assert_eq!(believes(&[226, 241, 255]), Some(false), "unless nobody asked for too long");
        assert_eq!(believes(&[256]), Some(true));
    }
}
