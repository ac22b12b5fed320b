//! How much bursts write: what was seen of them, and how much more of the present one is likely.
//!
//! A burst is what the backing volume cannot serve in time, whether a cache absorbs it or not, so every one of them
//! teaches. Before the first has ended, a guess stands for it.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use crate::series::{Likely, Series};

/// A burst that is larger than all before by no more than this factor was expected to end.
const TOLERANCE: f64 = 1.1;

/// The weight of a burst's shape to that of the next one.
const FADING: f64 = 0.85;

/// A burst that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    last_hot: Instant,
    /// Bytes written in hot samples.
    written: u64,
    /// Those of them that the backing volume cannot have taken in the gaps between, and the most of them.
    left: u64,
    peak: u64,
    /// Time of the gaps.
    gaps: Duration,
    /// The gap that may end: its time, and bytes written in it.
    gap: (Duration, u64),
}

/// What bursts look like: the gaps in them, in which a cache drains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The most that a cache has to hold ÷ what is written.
    pub peak: f64,
    /// Seconds of gaps for each byte written.
    pub gaps: f64,
}

/// The bursts of one device. See the module.
#[derive(Clone, Debug)]
pub struct Bursts {
    /// Bytes written in each.
    sizes: Series,
    current: Option<Burst>,
    /// Bytes written, peaks and seconds of gaps, faded.
    shape: [f64; 3],
    /// What stands for the first burst.
    guess: u64,
}

impl Bursts {
    /// Those of a device that had `past` bursts, oldest first; without any, the first is expected to write `guess`.
    #[must_use]
    pub fn new(guess: u64, past: &[Bytes]) -> Self {
        let mut sizes = Series::default();
        past.iter().for_each(|size| sizes.push(size.get() as f64));
        Self { sizes, current: None, shape: [0.0; 3], guess }
    }

    /// A sample from `from` to `to`, in which so much was written, beside a backing volume that moves `rate` bytes a second.
    /// What is apart by less than `calm` is one burst. Answers whether a burst has ended.
    pub fn observe(
        &mut self,
        (from, to): (Instant, Instant),
        hot: bool,
        written: u64,
        rate: f64,
        calm: Duration,
    ) -> bool {
        let ends = hot && self.current.is_some_and(|burst| from.since(burst.last_hot) >= calm);
        if ends {
            self.end();
        }
        match &mut self.current {
            Some(burst) if hot => {
                let (time, between) = std::mem::take(&mut burst.gap);
                let drained = (rate * time.as_secs_f64()) as u64;
                burst.gaps += time;
                burst.written = burst.written.saturating_add(written);
                burst.left = burst.left.saturating_add(between).saturating_sub(drained).saturating_add(written);
                burst.peak = burst.peak.max(burst.left);
                burst.last_hot = to;
            }
            Some(burst) => {
                burst.gap.0 += to.since(from);
                burst.gap.1 = burst.gap.1.saturating_add(written);
            }
            None if hot => {
                let (gaps, gap) = (Duration::ZERO, (Duration::ZERO, 0));
                self.current = Some(Burst { last_hot: to, written, left: written, peak: written, gaps, gap });
            }
            None => {}
        }
        let ended = self.ends_at(calm).is_some_and(|end| end <= to);
        if ended {
            self.end();
        }
        ends || ended
    }

    /// What bursts looked like lately, the present one included.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let [written, peak, gaps] = self.current.map_or(self.shape, |burst| add(self.shape, &burst));
        if written > 0.0 {
            Shape { peak: (peak / written).min(1.0), gaps: gaps / written }
        } else {
            Shape { peak: 1.0, gaps: 0.0 }
        }
    }

    /// When the present burst is over, if no hot sample comes; `None`: there is none.
    #[must_use]
    pub fn ends_at(&self, calm: Duration) -> Option<Instant> {
        self.current.map(|burst| burst.last_hot + calm)
    }

    fn end(&mut self) {
        if let Some(burst) = self.current.take() {
            self.sizes.push(burst.written as f64);
            self.shape = add(self.shape, &burst);
        }
    }

    /// Bytes that the present burst has written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.current.map_or(0, |burst| burst.written)
    }

    /// Those that have ended, oldest first.
    #[must_use]
    pub fn past(&self) -> Vec<Bytes> {
        self.sizes.values().map(|size| Bytes::new(size as u64)).collect()
    }

    /// Whether any burst has been seen to its end.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// What a burst that has written `so_far` is likely to write from now on.
    #[must_use]
    pub fn likely(&self, so_far: u64) -> Vec<Likely> {
        let so_far = so_far as f64;
        let guess = [(self.guess as f64, 1.0)];
        let all = if self.is_known() { self.sizes.forecast() } else { &guess };
        let more = all.iter().filter(|(size, _)| *size > so_far).map(|(size, weight)| (size - so_far, *weight));
        let likely: Vec<Likely> = more.collect();
        if !likely.is_empty() {
            return likely;
        }
        // Larger than all before: as much again as it is larger.
        let largest = all.iter().map(|(size, _)| *size).fold(0.0, f64::max);
        vec![((so_far - TOLERANCE * largest).max(0.0), 1.0)]
    }
}

fn add(shape: [f64; 3], burst: &Burst) -> [f64; 3] {
    let [written, peak, gaps] = shape.map(|sum| sum * FADING);
    [written + burst.written as f64, peak + burst.peak as f64, gaps + burst.gaps.as_secs_f64()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(30);

    fn second(at: u64) -> Instant {
        Instant::from_nanoseconds(at * 1_000_000_000)
    }

    /// Samples of a second each, hot with 10 bytes in `bursts`, else with one.
    fn after(guess: u64, bursts: &[(u64, u64)], end: u64) -> Bursts {
        let mut seen = Bursts::new(guess, &[]);
        for at in 0..end {
            let hot = bursts.iter().any(|(onset, end)| (*onset..*end).contains(&at));
            seen.observe((second(at), second(at + 1)), hot, if hot { 10 } else { 1 }, 5.0, CALM);
        }
        seen
    }

    #[test]
    fn what_is_apart_by_less_than_the_delay_is_one_burst() {
        let bursts = after(7, &[(0, 10), (20, 30), (100, 105)], 200);
        assert_eq!(bursts.past(), [Bytes::new(200), Bytes::new(50)]);
        assert_eq!((bursts.written(), bursts.ends_at(CALM)), (0, None));
        let continues = after(7, &[(0, 10), (20, 30)], 35);
        assert_eq!((continues.written(), continues.ends_at(CALM)), (200, Some(second(60))));
        assert!(!continues.is_known());
        // In ten seconds of gap the backing volume takes 50 bytes, and 10 more are written: 160 are the most that is left.
        assert_eq!(continues.shape(), Shape { peak: 160.0 / 200.0, gaps: 10.0 / 200.0 });
    }

    #[test]
    fn a_guess_stands_for_the_first() {
        let bursts = after(100, &[(0, 3)], 3);
        assert_eq!(bursts.likely(30), [(70.0, 1.0)]);
        // It was wrong: as much again as the burst is larger.
        let [(more, _)] = bursts.likely(310)[..] else { panic!("one is likely") };
        assert!((more - 200.0).abs() < 1e-9, "{more}");
    }

    #[test]
    fn only_what_is_larger_than_the_burst_so_far_is_likely() {
        let bursts = after(7, &[(0, 10), (100, 150), (200, 210), (300, 350)], 400);
        assert!(bursts.likely(0).iter().any(|(size, _)| *size < 150.0));
        assert!(bursts.likely(200).iter().all(|(more, _)| *more > 250.0));
        // As large as the largest: it is expected to end.
        assert_eq!(bursts.likely(100_000).len(), 1);
    }

    #[test]
    fn bursts_are_known_over_a_restart() {
        let before = after(7, &[(0, 10), (100, 150)], 200);
        let restarted = Bursts::new(7, &before.past());
        assert_eq!(restarted.likely(0), before.likely(0));
    }
}
