//! Times of day in reports, as locales write them.

const DAY_S: u64 = 24 * 3600;

/// Times of day, in order, as seconds since the first one's midnight. No two reports are a day or more apart.
#[derive(Debug, Default)]
pub struct Clock {
    days: u64,
    last: u64,
}

impl Clock {
    /// The next time of day, in seconds.
    pub fn at(&mut self, of_day: u64) -> u64 {
        if of_day < self.last {
            self.days += 1;
        }
        self.last = of_day;
        self.days * DAY_S + of_day
    }
}

/// The time of day among the first three words, in seconds, and how many words it ends after: `20:25:03`, `08:25:03 PM`,
/// `11/24/2026 08:25:03 PM`, `2026-11-24T20:25:03+0000`, `Time: 20:25:03`.
pub fn time_of_day(words: &[&[u8]]) -> Option<(usize, u64)> {
    let (index, seconds) = words.iter().take(2).enumerate().find_map(|(index, word)| Some((index, clock(word)?)))?;
    let half = words.get(index + 1).copied().unwrap_or_default();
    let (hour, rest) = (seconds / 3600, seconds % 3600);
    match half {
        b"AM" | b"am" if hour <= 12 => Some((index + 2, hour % 12 * 3600 + rest)),
        b"PM" | b"pm" if hour <= 12 => Some((index + 2, (hour % 12 + 12) * 3600 + rest)),
        _ => Some((index + 1, seconds)),
    }
}

/// `20:25:03`, with a date before a `T` and a zone behind.
fn clock(word: &[u8]) -> Option<u64> {
    let word = word.rsplit(|byte| *byte == b'T').next()?;
    let number = |digits: &[u8]| match digits {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Some(u64::from(tens - b'0') * 10 + u64::from(ones - b'0')),
        _ => None,
    };
    let [hour, minute, second] = [word.get(0..2)?, word.get(3..5)?, word.get(6..8)?].map(number);
    let separated = word.get(2) == Some(&b':') && word.get(5) == Some(&b':');
    let zone = word.get(8..)?;
    let ends = zone.is_empty() || matches!(zone[0], b'+' | b'-' | b'Z' | b'.' | b',');
    let (hour, minute, second) = (hour?, minute?, second?);
    (separated && ends && hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}
