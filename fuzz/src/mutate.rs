//! Seeded mutations, so that a plain test can look around the corpus without a fuzzer.

use surgetank_model::random::Random;

/// A mutation of `data`, perhaps crossed with `other`.
#[must_use]
pub fn mutate(data: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(9) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 if at < bytes.len() => {
                bytes.remove(at);
            }
            3 => {
                // A piece of the other one.
                let from = random.below(other.len() as u64 + 1) as usize;
                let length = random.below(32).min((other.len() - from) as u64) as usize;
                bytes.splice(at..at, other[from..from + length].iter().copied());
            }
            4 => {
                let length = random.below(16).min((bytes.len() - at) as u64) as usize;
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => bytes.extend((0..random.below(24)).map(|_| random.next_u64() as u8)),
            6 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'-', b'.'][random.below(8) as usize],
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    bytes.truncate(8192);
    bytes
}
