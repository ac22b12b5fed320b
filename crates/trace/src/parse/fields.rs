//! Numbers in text, exactly.

use std::collections::HashMap;

use surgetank_model::{Bytes, Instant};

use super::Line;
use crate::request::{Access, Request};

/// A decimal number that fits.
#[inline]
pub fn decimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    let digits = |sum: u64, byte: &u8| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    };
    word.iter().try_fold(0, digits)
}

/// A decimal fraction, as a count of `1 / scale` (a power of ten): "1.5" of 1000 is 1500. Digits beyond are dropped.
pub fn fraction(word: &[u8], scale: u64) -> Option<u64> {
    let mut parts = word.splitn(2, |byte| *byte == b'.');
    let whole = decimal(parts.next()?)?.checked_mul(scale)?;
    let Some(digits) = parts.next() else { return Some(whole) };
    let mut place = scale;
    let mut sum = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        place /= 10;
        sum += u64::from(digit) * place;
    }
    whole.checked_add(sum)
}

/// "R", "Read", "write"…
pub fn operation(word: &[u8]) -> Option<Access> {
    match word {
        b"R" | b"r" => Some(Access::Read),
        b"W" | b"w" => Some(Access::Write),
        _ if word.eq_ignore_ascii_case(b"read") => Some(Access::Read),
        _ if word.eq_ignore_ascii_case(b"write") => Some(Access::Write),
        _ => None,
    }
}

/// A request, unless its address or length are out of all bounds.
pub fn request(time_ns: u64, volume: u32, address: u64, length: u64, operation: Access) -> Line {
    if length > Request::LENGTH_MAX.get() {
        return Line::Broken(format!("a request of {length} bytes is longer than 4 GiB"));
    }
    if address.checked_add(length).is_none() {
        return Line::Broken(format!("a request at byte {address} ends beyond all volumes"));
    }
    let time = Instant::from_nanoseconds(time_ns);
    Line::Request(Request { time, volume, address, length: Bytes::new(length), operation })
}

/// The beginning of what stands in a file.
pub fn shown_shortly(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(40)]).into_owned()
}

/// What cannot be read, shown shortly.
pub fn not_a(what: &str, kind: &str, word: &[u8]) -> Line {
    let shown = shown_shortly(word);
    Line::Broken(format!("the {what} {shown:?} is not {kind}"))
}

const VOLUMES_MAX: usize = 1 << 16;

/// Numbers for names, in order of appearance.
#[derive(Debug, Default)]
pub struct Volumes {
    numbers: HashMap<Vec<u8>, u32>,
}

impl Volumes {
    /// The number of a name.
    ///
    /// # Errors
    /// Too many names.
    pub fn number(&mut self, name: &[u8]) -> Result<u32, Line> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = self.numbers.len();
        if number >= VOLUMES_MAX {
            return Err(Line::Broken(format!("there are more than {VOLUMES_MAX} volumes")));
        }
        self.numbers.insert(name.to_vec(), number as u32);
        Ok(number as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for none in [&b""[..], b"18446744073709551616", b"-1", b"1 ", b"0x1", b"1e3"] {
            assert_eq!(decimal(none), None);
        }
        assert_eq!(fraction(b"1.5", 1000), Some(1500));
        assert_eq!(fraction(b"0.000000001", 1_000_000_000), Some(1));
        assert_eq!(fraction(b"7.12345678901", 1_000_000_000), Some(7_123_456_789));
        assert_eq!(fraction(b"7", 1000), Some(7000));
        for none in [&b""[..], b".5", b"1.-5", b"1.5.5", b"99999999999999999999", b"-1.0"] {
            assert_eq!(fraction(none, 1000), None);
        }
    }
}
