//! What the demo sees of an array over time.

use std::collections::BTreeMap;

use serde::Serialize;
use surgetank_daemon::arrays::status::ArrayStatus;

/// The array at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Since the begin of the run.
    pub at_s: f64,
    /// The share of credits that the member of each slot has left.
    pub credits_ratio: Vec<f64>,
    /// Volumes that are rented.
    pub volumes: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Record {
    moments: Vec<Moment>,
    /// By the provider's name of a volume: when its creation was asked for, and when it was seen last.
    rented: BTreeMap<String, (f64, f64)>,
}

impl Record {
    /// Takes in how the array stands at a moment of the run.
    pub fn see(&mut self, at_s: f64, status: &ArrayStatus) {
        let credits = (0..status.members).map(|slot| {
            let member = status.volumes.iter().find(|volume| volume.slot == Some(slot) && volume.part == "active");
            let before = || self.moments.last()?.credits_ratio.get(slot as usize).copied();
            member.and_then(|member| member.credits_share).or_else(before).unwrap_or(1.0)
        });
        let moment = Moment { at_s, credits_ratio: credits.collect(), volumes: status.volumes.len() };
        self.moments.push(moment);
        for volume in &status.volumes {
            if let Some(name) = &volume.volume {
                self.rented.entry(name.clone()).or_insert((at_s - volume.age_s, at_s)).1 = at_s;
            }
        }
    }

    /// The moments in order.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// For how many seconds of the first `until_s` each volume was rented.
    pub fn rented_s(&self, until_s: f64) -> impl Iterator<Item = f64> {
        self.rented.values().map(move |(from_s, to_s)| (to_s.min(until_s) - from_s.max(0.0)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_daemon::arrays::status::VolumeStatus;

    use super::*;

    fn status(volumes: &[(&str, &str, f64)]) -> ArrayStatus {
        let volume = |(name, part, age_s): &(&str, &str, f64)| VolumeStatus {
            slot: Some(0),
            volume: Some((*name).to_owned()),
            part: (*part).to_owned(),
            size_gib: 1.0,
            age_s: *age_s,
            copied_share: None,
            copied_gib: None,
            read_gib: None,
            written_gib: None,
            ios: None,
            credits_share: Some(0.25),
            credits_end_s: None,
            held_s: None,
        };
        let volumes = volumes.iter().map(volume).collect();
        ArrayStatus { members: 1, volumes, ..ArrayStatus::refused("demo", String::new()) }
    }

    #[test]
    fn a_volume_is_rented_from_its_request_until_it_is_gone() {
        let mut record = Record::default();
        record.see(1.0, &status(&[("a", "active", 30.0)]));
        record.see(2.0, &status(&[("a", "active", 31.0), ("b", "joining", 0.5)]));
        record.see(4.0, &status(&[("b", "active", 2.5)]));
        assert_eq!(record.rented_s(10.0).collect::<Vec<_>>(), [2.0, 2.5]);
        assert_eq!(record.rented_s(3.0).collect::<Vec<_>>(), [2.0, 1.5]);
        assert_eq!(record.moments().iter().map(|moment| moment.volumes).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(record.moments()[2].credits_ratio, [0.25]);
    }
}
