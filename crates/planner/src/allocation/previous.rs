//! The plan that holds now, as the command itself answered it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use surgetank_allocation::{Basis, CACHE_MAX, Change, Plan, Share};
use surgetank_model::Bytes;

/// What of an answer the next plan needs. Other names are ignored, those of later versions among them.
#[derive(Clone, Debug, Deserialize)]
pub struct PreviousPlan {
    apps: Vec<PreviousShare>,
}

#[derive(Clone, Debug, Deserialize)]
struct PreviousShare {
    name: String,
    level1_mib: f64,
    level2_mib: BTreeMap<String, f64>,
}

impl PreviousPlan {
    /// The shares. Those of applications that a problem does not have do not count there.
    ///
    /// # Errors
    /// If a share is none, or an application has two: one sentence.
    pub fn plan(&self) -> Result<Plan, String> {
        let mut names = BTreeSet::new();
        if let Some(twice) = self.apps.iter().find(|of| !names.insert(&of.name)) {
            return Err(format!("it has two shares of {}", twice.name));
        }
        let all = self.apps.iter().flat_map(|of| of.level2_mib.values().chain([&of.level1_mib]));
        if all.sum::<f64>() > CACHE_MAX.as_mib() {
            return Err(format!("its shares are more than {CACHE_MAX} together"));
        }
        let share = |of: &PreviousShare| {
            let bytes = |mib: f64| {
                if mib >= 0.0 && mib.is_finite() {
                    // Bytes are whole MiB and fractions of a power of two: what was written is read back exactly.
                    return Ok(Bytes::new((mib * f64::from(1 << 20)).round() as u64));
                }
                Err(format!("the share of {} is {mib} MiB: a share is at least 0", of.name))
            };
            let level2: Result<_, String> =
                of.level2_mib.iter().map(|(server, mib)| Ok((server.clone(), bytes(*mib)?))).collect();
            Ok(Share {
                application: of.name.clone(),
                level1: bytes(of.level1_mib)?,
                level2: level2?,
                // Latencies follow from shares and curves, which may have changed.
                latency_ms: 0.0,
                fair_latency_ms: 0.0,
                bound_ms: 0.0,
                slo_met: false,
            })
        };
        let shares = self.apps.iter().map(share).collect::<Result<_, String>>()?;
        Ok(Plan { shares, fair_speedup: 1.0, basis: Basis::Baseline, change: Change::Within })
    }
}
