//! Whether the pool has room for another volume.

use std::collections::BTreeMap;

use surgetank_model::Bytes;
use surgetank_pool::chunks::CHUNK;
use surgetank_pool::client::PoolClient;
use surgetank_pool::manager::{State, Status};
use surgetank_pool_core::id::Domain;
use surgetank_pool_core::placement::Media;

use super::{Failed, VOLUMES};
use crate::{ProviderError, VolumeId};

/// Checks whether there is room for so many bytes more, beside what the volumes that are rented may still take: all of them may be
/// written to their ends. What others put into the pool afterwards may take the room all the same.
pub(super) async fn check(
    client: &PoolClient,
    rented: impl Iterator<Item = (&VolumeId, u64)>,
    bytes: u64,
    copies: u8,
    media: Media,
) -> Result<(), Failed> {
    let files = client.read_directory(VOLUMES).await?;
    let written: BTreeMap<Vec<u8>, u64> =
        files.into_iter().map(|(name, stat)| (name.bytes().to_vec(), stat.size)).collect();
    let outstanding =
        rented.map(|(id, bytes)| bytes.saturating_sub(written.get(id.0.as_bytes()).copied().unwrap_or(0)));
    let promised = outstanding.fold(0, u64::saturating_add);
    let free = by_domain(&client.status().await?, media);
    if holds(&free, bytes.saturating_add(promised), copies) {
        return Ok(());
    }
    let (all, domains) = (Bytes::new(free.values().fold(0, |sum: u64, free| sum.saturating_add(*free))), free.len());
    let others = if promised > 0 {
        format!(" beside the {} that other volumes may still take", Bytes::new(promised))
    } else {
        String::new()
    };
    Err(ProviderError::Capacity(format!(
        "the pool has no room for {copies} copies of {}{others}: {all} are free, of {domains} domains",
        Bytes::new(bytes)
    ))
    .into())
}

/// Free bytes of what fails together.
fn by_domain(status: &Status, media: Media) -> BTreeMap<Domain, u64> {
    let mut free: BTreeMap<Domain, u64> = BTreeMap::new();
    for ((lends, credits), (_, state, used)) in status.benefactors.iter().zip(&status.states) {
        if *state != State::Joined {
            continue;
        }
        let memory = if media == Media::Any { credits.saturating_mul(CHUNK) } else { 0 };
        let ssd = lends.ssd.get().saturating_sub(*used);
        let of = free.entry(lends.domain).or_default();
        *of = of.saturating_add(memory).saturating_add(ssd);
    }
    free
}

/// Whether so many copies of all of it fit, each in another domain: no domain holds more than one of any part.
fn holds(free: &BTreeMap<Domain, u64>, bytes: u64, copies: u8) -> bool {
    let usable = free.values().fold(0, |sum: u64, free| sum.saturating_add(*free.min(&bytes)));
    usable >= bytes.saturating_mul(copies.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_in_different_domains() {
        let free = |of: &[u64]| (0..).map(Domain).zip(of.iter().copied()).collect::<BTreeMap<_, _>>();
        for (of, bytes, copies, fits) in [
            (&[10, 10][..], 10, 2, true),
            (&[10, 10], 11, 2, false),
            (&[100, 1], 2, 2, false),
            (&[100, 1], 100, 1, true),
            (&[10, 5, 5], 10, 2, true),
            (&[10, 5, 4], 10, 2, false),
            (&[100], 1, 2, false),
            (&[], 1, 1, false),
            (&[u64::MAX, u64::MAX], u64::MAX, 2, true),
        ] {
            assert_eq!(holds(&free(of), bytes, copies), fits, "{of:?} {bytes} {copies}");
        }
    }
}
