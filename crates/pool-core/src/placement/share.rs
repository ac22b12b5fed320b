//! How much of a group memory takes, and how much SSD, so that both are done at the same time.

use surgetank_model::Bytes;

/// What a ring of benefactors can take, counted in bytes of the group (a byte with *k* copies takes *k* bytes of room).
#[derive(Clone, Copy, Debug)]
pub(super) struct Supply {
    /// Bytes per second while there is room.
    pub(super) rate: f64,
    /// Room at the beginning, in bytes.
    pub(super) room: f64,
    /// Bytes per second that become free.
    pub(super) drain: f64,
}

impl Supply {
    /// Bytes that it has taken after some seconds.
    fn taken(&self, seconds: f64) -> f64 {
        (self.rate * seconds).min(self.room + self.drain * seconds)
    }

    /// Whether it must wait for what it drains before it has taken that much.
    pub(super) fn is_narrow(&self, bytes: Bytes) -> bool {
        let bytes = bytes.get() as f64;
        self.taken(bytes / self.rate) < bytes
    }

    /// When it has taken so much: never, if it has no room and drains nothing.
    pub(super) fn time(&self, bytes: f64) -> f64 {
        let waits = if bytes <= self.room { 0.0 } else { (bytes - self.room) / self.drain };
        waits.max(bytes / self.rate)
    }
}

/// What each tier takes of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Bytes for memory.
    pub(super) memory: u64,
    /// Bytes for SSD.
    pub(super) ssd: u64,
    /// When both have taken theirs, in seconds.
    pub(super) time: f64,
}

/// What each tier takes so that both are done at the same time; `None`: they never have room.
pub(super) fn split(bytes: Bytes, memory: Option<Supply>, ssd: Option<Supply>) -> Option<Split> {
    let all = bytes.get() as f64;
    let alone = |supply: Supply, memory, ssd| {
        let time = supply.time(all);
        time.is_finite().then_some(Split { memory, ssd, time })
    };
    match (memory, ssd) {
        (None, None) => None,
        (Some(memory), None) => alone(memory, bytes.get(), 0),
        (None, Some(ssd)) => alone(ssd, 0, bytes.get()),
        (Some(memory), Some(ssd)) => {
            let until = |time: f64| memory.taken(time) + ssd.taken(time);
            // Both are at their final slopes after this time: from there on it is a straight line.
            let bent = |supply: &Supply| match supply.rate > supply.drain {
                true => supply.room / (supply.rate - supply.drain),
                false => 0.0,
            };
            let bent = bent(&memory).max(bent(&ssd));
            let slope = memory.rate.min(memory.drain) + ssd.rate.min(ssd.drain);
            let missing = all - until(bent);
            if missing > 0.0 && slope <= 0.0 {
                return None;
            }
            let (mut from, mut to) = (0.0, if missing > 0.0 { bent + missing / slope * 1.000_001 } else { bent });
            for _ in 0..60 {
                let middle = f64::midpoint(from, to);
                if until(middle) < all { from = middle } else { to = middle }
            }
            let memory = (memory.taken(to).min(all)) as u64;
            Some(Split { memory, ssd: bytes.get() - memory, time: to })
        }
    }
}

/// The weight of a column of memory and of one of SSD, from the bytes of each tier and its columns. 0: it takes nothing.
pub(super) fn weights(memory: (u64, usize), ssd: (u64, usize)) -> (u8, u8) {
    /// The largest ratio that a round has: a larger one is a column that takes next to nothing.
    const RATIO_MAX: f64 = 64.0;
    let each = |(bytes, columns): (u64, usize)| if columns == 0 { 0.0 } else { bytes as f64 / columns as f64 };
    let (memory, ssd) = (each(memory), each(ssd));
    if memory == 0.0 || ssd == 0.0 {
        return (u8::from(memory > 0.0), u8::from(ssd > 0.0));
    }
    // The fraction with the smallest numbers that is within 3 %.
    let ratio = memory / ssd;
    if ratio > RATIO_MAX {
        return (1, 0);
    }
    if ratio < RATIO_MAX.recip() {
        return (0, 1);
    }
    let of = |ssd: u8| {
        let memory = (ratio * f64::from(ssd)).round().clamp(1.0, 255.0);
        let off = (memory / f64::from(ssd) / ratio).ln().abs();
        (memory as u8, ssd, off)
    };
    let candidates = (1..=64).map(of);
    let best = candidates.clone().find(|(_, _, off)| *off < 0.03);
    let (memory, ssd, _) = best.unwrap_or_else(|| candidates.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap_or((1, 1, 0.0)));
    (memory, ssd)
}
