//! The burst credits of volumes that this daemon itself holds to their types, across its restarts.
//!
//! A volume begins with full credits. Their balances are written down now and then, with the time; when the volume is opened
//! again it has what it had then, and what it has earned since. What it spent between the last writing and the death of a
//! process is forgotten: the balance is too high by at most what a volume spends between two writings.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use surgetank_device::volume::throttle::{CreditMeter, Credits};
use surgetank_model::{Instant, volume_type};
use surgetank_provider::VolumeId;

use crate::files;

const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Written {
    version: u32,
    /// When, in milliseconds since 1970.
    at_ms: u64,
    /// The balances of each volume's buckets.
    balances: BTreeMap<String, Vec<u64>>,
}

/// The balances of some volumes, on disk.
#[derive(Debug)]
pub struct CreditRecord {
    path: PathBuf,
    written: Written,
}

impl CreditRecord {
    /// What is on record at `path`. Nothing, if that cannot be read: credits are no data.
    #[must_use]
    pub fn open(path: PathBuf) -> Self {
        let written = match files::read(&path) {
            Ok(None) => Written::default(),
            Ok(Some(bytes)) => decode(&bytes).unwrap_or_else(|why| {
                tracing::warn!("{}; volumes begin with full credits", why.of("the record of credits", &path));
                Written::default()
            }),
            Err(error) => {
                tracing::warn!(%error, "the record of credits cannot be read; volumes begin with full credits");
                Written::default()
            }
        };
        Self { path, written }
    }

    /// The credits of a volume that is opened at `now_ms`.
    #[must_use]
    pub fn of(&self, volume: &VolumeId, credits: &[volume_type::Credits], now_ms: u64) -> Vec<Credits> {
        let balances = self.written.balances.get(&volume.0).filter(|balances| balances.len() == credits.len());
        let elapsed_ms = u128::from(now_ms.saturating_sub(self.written.at_ms));
        let known = |place: usize, full: Credits| {
            let Some(balance) = balances.map(|balances| balances[place]) else { return full };
            let earned = u128::from(full.baseline_per_s) * elapsed_ms / 1000;
            let balance = (u128::from(balance) + earned).min(full.capacity.into());
            Credits { initial: u64::try_from(balance).unwrap_or(full.capacity), ..full }
        };
        credits.iter().enumerate().map(|(place, credits)| known(place, credits.into())).collect()
    }

    /// Writes down what volumes have at `now`, which is `now_ms`, in place of what was on record.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn write<'a>(
        &mut self,
        meters: impl IntoIterator<Item = (&'a VolumeId, &'a CreditMeter)>,
        now: Instant,
        now_ms: u64,
    ) -> io::Result<()> {
        let balances = |(volume, meter): (&VolumeId, &CreditMeter)| {
            (volume.0.clone(), meter.balances(now).into_iter().map(|(_, balance)| balance).collect())
        };
        let written = Written { version: VERSION, at_ms: now_ms, balances: meters.into_iter().map(balances).collect() };
        files::write_atomically(&self.path, &serde_json::to_vec_pretty(&written).map_err(io::Error::other)?)?;
        self.written = written;
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<Written, files::Unreadable> {
    files::version(bytes, VERSION)?;
    serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}").into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use surgetank_device::volume::Memory;
    use surgetank_device::{MemoryVolume, Operation, Throttle, Volume, VolumeIo};
    use surgetank_model::Limits;
    use surgetank_model::volume_type::CreditUnit;

    use super::*;

    #[test]
    fn a_volume_that_is_opened_again_has_what_it_had_and_what_it_has_earned() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credits.json");
        let unit = CreditUnit::Operations;
        let of_type = [volume_type::Credits { unit, baseline_per_s: 10, burst_per_s: 1000, bucket: 500 }];
        let id = VolumeId("vol-1".to_owned());
        let mut record = CreditRecord::open(path.clone());
        let first = record.of(&id, &of_type, 5000);
        assert_eq!((first[0].initial, first[0].capacity), (500, 500), "full at creation");
        let now = Instant::ZERO;
        let mut volume = Throttle::new(MemoryVolume::new(1 << 20, 512).unwrap(), Limits::NONE, now);
        let meter = volume.set_credits(&first, now);
        for token in 0..300 {
            let memory = Memory::new();
            volume.submit(now, VolumeIo { token, operation: Operation::Discard, offset: 0, length: 512, memory });
        }
        record.write([(&id, &meter)], now + Duration::from_secs(1), 6000).unwrap();
        let again = |now_ms| CreditRecord::open(path.clone()).of(&id, &of_type, now_ms)[0].initial;
        assert_eq!([again(6000), again(16_000), again(600_000), again(0)], [210, 310, 500, 210]);
        let other = VolumeId("vol-2".to_owned());
        assert_eq!(CreditRecord::open(path.clone()).of(&other, &of_type, 6000)[0].initial, 500);
        std::fs::write(&path, "no record").unwrap();
        assert_eq!(again(6000), 500, "what is damaged says nothing");
    }
}
