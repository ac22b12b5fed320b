//! The parity of a row's bytes: their XOR if there is one parity chunk, else a Reed-Solomon code (Leopard-RS, by `reed-solomon-simd`).
//!
//! All members count as equally long: shorter ones, and those that a row lacks, as if zeros followed. A row's parity chunks are as long as its
//! longest data chunk, and of an even number of bytes, as the code wants it.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::Parity;
use crate::planted::{Bug, planted};

/// Too few members of a row are known for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too few members of the row are known")]
pub struct TooFew;

/// Bytes of each parity chunk of a row whose longest data chunk has so many.
#[must_use]
pub const fn length(longest: usize) -> usize {
    longest.next_multiple_of(2)
}

/// The parity chunks of a row, by its data chunks in order: those that it lacks are empty, or left out at its end.
#[must_use]
pub fn encode(of: Parity, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let bytes = length(data.iter().map(|chunk| chunk.len()).max().unwrap_or(0));
    if bytes == 0 {
        return vec![Vec::new(); of.parity() as usize];
    }
    if of.parity() == 1 {
        let mut sum = vec![0; bytes];
        data.iter().take(of.data() as usize).for_each(|chunk| add(&mut sum, chunk));
        return vec![sum];
    }
    let (originals, recoveries) = (of.data() as usize, of.parity() as usize);
    let encode = || {
        let mut encoder = ReedSolomonEncoder::new(originals, recoveries, bytes)?;
        for at in 0..originals {
            encoder.add_original_shard(padded(data.get(at).copied().unwrap_or_default(), bytes))?;
        }
        Ok::<_, reed_solomon_simd::Error>(encoder.encode()?.recovery_iter().map(<[u8]>::to_vec).collect())
    };
    encode().expect("the numbers and the length of the members are those that the code takes")
}

/// All data chunks of a row, each as long as its parity, from as many members of it as there are data chunks, by their places in the row. Those
/// that it lacks are known, too: as empty ones.
///
/// # Errors
/// [`TooFew`].
pub fn decode(of: Parity, bytes: usize, members: &[(u32, &[u8])]) -> Result<Vec<Vec<u8>>, TooFew> {
    let (originals, recoveries) = (of.data() as usize, of.parity() as usize);
    let is_data = |at: u32| at < of.data();
    let mut data: Vec<Option<Vec<u8>>> = vec![None; originals];
    for (at, chunk) in members.iter().filter(|(at, _)| is_data(*at)) {
        data[*at as usize] = Some(padded(chunk, bytes));
    }
    let lacking = data.iter().filter(|chunk| chunk.is_none()).count();
    let parity = || members.iter().filter(|(at, _)| !is_data(*at) && *at < of.members());
    if lacking == 0 || bytes == 0 {
        return Ok(data.into_iter().map(Option::unwrap_or_default).collect());
    }
    if parity().count() < lacking && !planted(Bug::DecodedOfTooFew) {
        return Err(TooFew);
    }
    if of.parity() == 1 {
        let mut sum = vec![0; bytes];
        parity().take(1).for_each(|(_, chunk)| add(&mut sum, chunk));
        data.iter().flatten().for_each(|chunk| add(&mut sum, chunk));
        return Ok(data.into_iter().map(|chunk| chunk.unwrap_or_else(|| sum.clone())).collect());
    }
    let decode = || {
        let mut decoder = ReedSolomonDecoder::new(originals, recoveries, bytes)?;
        for (at, chunk) in data.iter().enumerate() {
            if let Some(chunk) = chunk {
                decoder.add_original_shard(at, chunk)?;
            }
        }
        for (at, chunk) in parity() {
            decoder.add_recovery_shard((at - of.data()) as usize, padded(chunk, bytes))?;
        }
        let decoded = decoder.decode()?;
        Ok::<_, reed_solomon_simd::Error>(
            decoded.restored_original_iter().map(|(at, chunk)| (at, chunk.to_vec())).collect::<Vec<_>>(),
        )
    };
    for (at, chunk) in decode().map_err(|_| TooFew)? {
        data[at] = Some(chunk);
    }
    data.into_iter().collect::<Option<Vec<_>>>().ok_or(TooFew)
}

/// A member as long as the parity.
fn padded(chunk: &[u8], bytes: usize) -> Vec<u8> {
    let mut padded = Vec::with_capacity(bytes);
    padded.extend_from_slice(&chunk[..chunk.len().min(bytes)]);
    padded.resize(bytes, 0);
    padded
}

fn add(sum: &mut [u8], chunk: &[u8]) {
    sum.iter_mut().zip(chunk).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use surgetank_model::random::Random;

    /// Every set of members that may be lost is, of rows with short, empty and missing chunks.
    #[test]
    fn whatever_members_are_lost_the_data_is_what_it_was() {
        let mut random = Random::from_seed(1);
        for (data, parity) in [(1, 1), (2, 1), (4, 1), (1, 2), (3, 2), (4, 2), (5, 3), (8, 2)] {
            let of = Parity::new(data, parity).unwrap();
            for _ in 0..6 {
                let longest = [1, 2, 63, 64, 65, 257][random.below(6) as usize];
                let row: Vec<Vec<u8>> = (0..data)
                    .map(|_| {
                        let length = if random.chance(0.3) { 0 } else { 1 + random.below(longest) };
                        (0..length).map(|_| random.below(256) as u8).collect()
                    })
                    .collect();
                let slices: Vec<&[u8]> = row.iter().map(Vec::as_slice).collect();
                let coded = encode(of, &slices);
                let bytes = coded[0].len();
                let all: Vec<&[u8]> = slices.iter().copied().chain(coded.iter().map(Vec::as_slice)).collect();
                for lost in 0..1_u32 << of.members() {
                    let left = |at: &u32| lost >> at & 1 == 0;
                    let known: Vec<(u32, &[u8])> =
                        (0..of.members()).filter(left).map(|at| (at, all[at as usize])).collect();
                    let decoded = decode(of, bytes, &known);
                    let data_lost = (lost & ((1 << of.data()) - 1)).count_ones();
                    let parity_lost = lost.count_ones() - data_lost;
                    if data_lost > of.parity() - parity_lost && bytes > 0 {
                        assert_eq!(decoded, Err(TooFew), "{of}");
                        continue;
                    }
                    let decoded = decoded.unwrap();
                    for (found, chunk) in decoded.iter().zip(&row) {
                        let rest = found.get(chunk.len()..).unwrap_or_default();
                        let is_same = bytes == 0 || found.starts_with(chunk) && rest.iter().all(|byte| *byte == 0);
                        assert!(is_same, "{of}: {lost:b} lost");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_without_bytes_has_parity_without_bytes() {
        for of in [Parity::new(4, 1), Parity::new(4, 2)].map(Result::unwrap) {
            assert!(encode(of, &[]).iter().all(Vec::is_empty));
            assert_eq!(encode(of, &[&[7], &[]])[0].len(), 2);
        }
    }
}
