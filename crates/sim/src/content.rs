//! Sector content that names itself: a wrong sector says whose it is.

/// Bytes of a sector.
pub const SECTOR: usize = 512;

const WORDS: usize = SECTOR / 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a sector turned out to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All zeroes.
    Zero,
    /// Exactly what this version wrote to this sector.
    Written {
        /// Sector of the device that it was written to.
        sector: u64,
        /// Version that wrote it.
        version: u32,
    },
    /// Nothing that this run wrote: torn, or foreign.
    Foreign,
}

fn word(base: u64, index: u64) -> u64 {
    let mixed = base.wrapping_add(index.wrapping_mul(STEP));
    mixed ^ (mixed >> 29)
}

fn base(seed: u64, sector: u64, version: u64) -> u64 {
    let mixed = (seed ^ sector.wrapping_mul(0xd1b5_4a32_d192_ed03)).wrapping_mul(STEP) ^ version.rotate_left(32);
    mixed.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Fills one sector with (sector, version, seed) and a pattern that follows from them.
pub fn fill(seed: u64, sector: u64, version: u32, out: &mut [u8]) {
    let base = base(seed, sector, u64::from(version));
    for (index, bytes) in out.chunks_exact_mut(8).enumerate().take(WORDS) {
        let value = match index {
            0 => sector,
            1 => u64::from(version) | 1 << 40,
            2 => seed,
            _ => word(base, index as u64),
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

fn get(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// Whether all bytes are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte) == 0
}

/// What one sector holds.
#[must_use]
pub fn identify(seed: u64, bytes: &[u8]) -> Found {
    let tagged = get(bytes, 1);
    if tagged == 0 && is_zero(bytes) {
        return Found::Zero;
    }
    if tagged >> 32 != 1 << 8 || get(bytes, 2) != seed {
        return Found::Foreign;
    }
    let (sector, version) = (get(bytes, 0), tagged as u32);
    let base = base(seed, sector, u64::from(version));
    let whole = (3..WORDS).fold(0, |wrong, index| wrong | (get(bytes, index) ^ word(base, index as u64)));
    if whole == 0 { Found::Written { sector, version } } else { Found::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_name_themselves() {
        let mut bytes = [0; SECTOR];
        assert_eq!(identify(5, &bytes), Found::Zero);
        fill(5, 77, 3, &mut bytes);
        assert_eq!(identify(5, &bytes), Found::Written { sector: 77, version: 3 });
        assert_eq!(identify(6, &bytes), Found::Foreign);
        bytes[511] ^= 1;
        assert_eq!(identify(5, &bytes), Found::Foreign);
    }
}
