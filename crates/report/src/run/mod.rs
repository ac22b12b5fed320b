//! An application's run in the three modes, measured or simulated: the numbers, and their report.

mod answer;
mod hindsight;
mod summary;

use std::collections::BTreeMap;

use serde::Serialize;
use surgetank_planner::Mode;

pub use answer::{html, mode_colour, text, write};
pub use hindsight::{Hindsight, Regret};
pub use summary::{BoostSummary, BurstSummary, Spread};

/// Throughput of one sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// End of the interval, seconds since the mode began.
    pub at_s: f64,
    /// What the application wrote to the device.
    pub application_mib_s: f64,
    /// What was written to the caching volume.
    pub cache_mib_s: f64,
    /// What was written to the backing volume, drain included.
    pub backing_mib_s: f64,
    /// What was drained from the caching to the backing volume.
    pub drain_mib_s: f64,
    /// Where several samples became one, the highest `application_mib_s` of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_peak_mib_s: Option<f64>,
}

/// Accumulated cost at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostPoint {
    /// Seconds since the mode began.
    pub at_s: f64,
    /// GB × MB/s × seconds.
    pub agbs: f64,
    /// In money, as `cost_usd` counts it; `None`: a price is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

/// What the application did in a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseSpan {
    /// "initial dump", "compute", "checkpoint 2".
    pub name: String,
    /// Seconds since the mode began.
    pub start_s: f64,
    /// Seconds since the mode began.
    pub end_s: f64,
}

/// A size of a caching volume that grew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheSize {
    /// Billed as that from here on: seconds since the mode began.
    pub from_s: f64,
    /// The size.
    pub cache_gib: f64,
}

/// One boost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Boost {
    /// Seconds since the mode began.
    pub start_s: f64,
    /// From the decision until the caching volume absorbed.
    pub attach_s: f64,
    /// From the first absorbed write until the drain had priority.
    pub absorb_s: f64,
    /// From then until the caching volume was released.
    pub drain_s: f64,
    /// Size of the caching volume, as large as it became.
    pub cache_gib: f64,
    /// Its sizes, in order, if it grew; none if it did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<CacheSize>,
    /// Most of it in use.
    pub high_water_gib: f64,
    /// From the release until the bill ended.
    #[serde(skip_serializing_if = "is_zero")]
    pub delete_s: f64,
}

impl Boost {
    /// The end of the bill.
    fn ended_s(&self) -> f64 {
        self.start_s + self.attach_s + self.absorb_s + self.drain_s + self.delete_s
    }

    /// The size at first, if it grew.
    fn grew_from_gib(&self) -> Option<f64> {
        self.sizes.first().map(|first| first.cache_gib).filter(|first| *first != self.cache_gib)
    }
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// One mode's run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModeOutcome {
    /// After the initial dump, until the last checkpoint was durable.
    pub completion_s: f64,
    /// `completion_s` relative to static-fast's.
    pub overhead_ratio: f64,
    /// `completion_s` relative to static-slow's.
    pub overhead_of_slow_ratio: f64,
    /// Everything: from making the file system to the end of the last drain.
    pub wall_s: f64,
    /// The initial dump.
    pub initial_dump_s: f64,
    /// Everything that was rented, over `wall_s`: GB × MB/s × seconds.
    pub cost_agbs: f64,
    /// `cost_agbs` relative to static-fast's.
    pub cost_ratio: f64,
    /// `cost_agbs` relative to static-slow's.
    pub cost_of_slow_ratio: f64,
    /// `cost_agbs` of all VMs, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_total_agbs: Option<f64>,
    /// In money; the demo: at catalog prices, had the run been as large as the papers'. `None`: a price is unknown.
    pub cost_usd: Option<f64>,
    /// `cost_usd` relative to static-fast's; `None`: a price is unknown.
    pub cost_usd_ratio: Option<f64>,
    /// `cost_usd` relative to static-slow's; `None`: a price is unknown.
    pub cost_usd_of_slow_ratio: Option<f64>,
    /// `cost_usd` of all VMs, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_total_usd: Option<f64>,
    /// What the application saw while it wrote; `None`: a replay writes whether or not the device is ready.
    pub write_mib_s: Option<f64>,
    /// What the bursts of a replayed load had to wait for; `None`: an application writes when the device is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bursts: Option<BurstSummary>,
    /// Boosts, in order; none for the static modes. A report file has the first of very many.
    pub boosts: Vec<Boost>,
    /// The same in a few figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boost_summary: Option<BoostSummary>,
    /// I/O over time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub activity: Vec<Activity>,
    /// Cost over time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cost: Vec<CostPoint>,
    /// What the application did when.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseSpan>,
}

/// A run of the demo, or of a simulation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunOutcome {
    /// The report's title.
    #[serde(skip)]
    pub title: &'static str,
    /// By mode.
    pub modes: BTreeMap<Mode, ModeOutcome>,
    /// Every byte that was written was read back from the backing volume alone and matched; `None`: there were no bytes,
    /// the run was simulated.
    pub verified: Option<bool>,
    /// Bytes read back, all modes together.
    pub verified_bytes: u64,
    /// Name of the controller's policy.
    pub policy: String,
    /// How the devices were exported: "fuse" or "nbd".
    #[serde(skip_serializing_if = "String::is_empty")]
    pub export: String,
    /// How it was simulated: "block" or "fluid".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'static str>,
    /// VMs that were simulated; costs and series are one VM's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vms: Option<u32>,
    /// The best that could have been made of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindsight: Option<Hindsight>,
    /// What was asked for and where it ran: name and value.
    #[serde(serialize_with = "as_map")]
    pub parameters: Vec<(String, String)>,
    /// Of the run's end, UTC.
    pub date: String,
    /// Of the whole demo.
    pub elapsed_s: f64,
}

impl ModeOutcome {
    /// Everything but what changes over time.
    #[must_use]
    pub fn clone_without_series(&self) -> Self {
        Self { boosts: Vec::new(), activity: Vec::new(), cost: Vec::new(), phases: Vec::new(), ..*self }
    }
}

impl RunOutcome {
    /// Fills in what relates the modes to the static ones.
    pub fn relate(&mut self) {
        let of = |mode| {
            let of = |found: &ModeOutcome| (found.completion_s, found.cost_agbs, found.cost_usd);
            self.modes.get(&mode).map(of)
        };
        let money = |usd: Option<f64>, of: Option<f64>| usd.zip(of.filter(|of| *of > 0.0)).map(|(usd, of)| usd / of);
        let (fast, slow) = (of(Mode::StaticFast), of(Mode::StaticSlow));
        for mode in self.modes.values_mut() {
            if let Some((completion, cost, usd)) = fast {
                mode.cost_usd_ratio = money(mode.cost_usd, usd);
                mode.overhead_ratio = ratio(mode.completion_s, completion);
                mode.cost_ratio = ratio(mode.cost_agbs, cost);
            }
            if let Some((completion, cost, usd)) = slow {
                mode.cost_usd_of_slow_ratio = money(mode.cost_usd, usd);
                mode.overhead_of_slow_ratio = ratio(mode.completion_s, completion);
                mode.cost_of_slow_ratio = ratio(mode.cost_agbs, cost);
            }
            mode.boost_summary = BoostSummary::of(&mode.boosts);
        }
    }

    /// The same with series as fine as a screen shows, for files.
    #[must_use]
    pub fn thinned(&self) -> Self {
        self.with_modes(ModeOutcome::thinned)
    }

    /// The same without what changes over time, for stdout.
    #[must_use]
    pub fn without_series(&self) -> Self {
        self.with_modes(|found| ModeOutcome { boosts: found.boosts.clone(), ..found.clone_without_series() })
    }

    fn with_modes(&self, change: impl Fn(&ModeOutcome) -> ModeOutcome) -> Self {
        Self {
            modes: self.modes.iter().map(|(mode, found)| (*mode, change(found))).collect(),
            policy: self.policy.clone(),
            export: self.export.clone(),
            parameters: self.parameters.clone(),
            date: self.date.clone(),
            hindsight: self.hindsight.clone(),
            ..*self
        }
    }
}

/// Pairs as an object that keeps their order.
fn as_map<S: serde::Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

fn ratio(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 0.0 }
}

#[cfg(test)]
pub mod sample {
    //! A made-up run, as the papers' numbers divided by sixteen.

    use super::*;

    /// A run with all series filled.
    pub fn outcome() -> RunOutcome {
        let mut outcome = RunOutcome {
            title: "surgetank demo",
            verified: Some(true),
            verified_bytes: 3 << 30,
            policy: "adaptive".into(),
            export: "fuse".into(),
            date: "2026-01-01 12:00:00 UTC".into(),
            elapsed_s: 118.0,
            ..RunOutcome::default()
        };
        outcome.parameters = vec![("backing volume".into(), "3.1 GiB, 33 MiB/s".into())];
        for (mode, bandwidth, cost_rate) in
            [(Mode::StaticSlow, 33.0, 103.0), (Mode::StaticFast, 128.0, 400.0), (Mode::Elastic, 150.0, 110.0)]
        {
            outcome.modes.insert(mode, one(mode, bandwidth, cost_rate));
        }
        outcome.relate();
        outcome
    }

    fn one(mode: Mode, bandwidth: f64, cost_rate: f64) -> ModeOutcome {
        let mut found = ModeOutcome { write_mib_s: Some(bandwidth), ..ModeOutcome::default() };
        let mut clock = 0.0;
        for (number, (compute, size)) in [(0.0, 320.0), (23.0, 256.0), (23.0, 256.0), (23.0, 256.0)].iter().enumerate()
        {
            let begin = clock + compute;
            let end = begin + size / bandwidth;
            found.phases.push(PhaseSpan { name: "compute".into(), start_s: clock, end_s: begin });
            let name = if number == 0 { "initial dump".into() } else { format!("checkpoint {number}") };
            found.phases.push(PhaseSpan { name, start_s: begin, end_s: end });
            if mode == Mode::Elastic {
                found.boosts.push(Boost {
                    start_s: begin,
                    attach_s: 1.0,
                    absorb_s: end - begin,
                    drain_s: 6.0,
                    cache_gib: [0.625, 0.25, 0.25, 0.25][number],
                    sizes: Vec::new(),
                    high_water_gib: 0.2,
                    delete_s: 0.0,
                });
            }
            clock = end;
        }
        let dump = found.phases[1].end_s;
        found.initial_dump_s = dump;
        found.completion_s = clock - dump;
        found.wall_s = clock + 7.0;
        for step in 0..(found.wall_s * 4.0) as usize {
            let at_s = step as f64 / 4.0;
            let writes = found.phases.iter().any(|p| p.name != "compute" && p.start_s <= at_s && at_s < p.end_s);
            let drains = mode == Mode::Elastic
                && !writes
                && found.phases.iter().any(|p| p.end_s <= at_s && at_s < p.end_s + 6.0);
            let application_mib_s = if writes { bandwidth } else { 0.0 };
            let cache_mib_s = if mode == Mode::Elastic && writes { 120.0 } else { 0.0 };
            let drain_mib_s = if drains { 32.0 } else { 0.0 };
            let backing_mib_s = application_mib_s - cache_mib_s + drain_mib_s;
            found.activity.push(Activity {
                at_s,
                application_mib_s,
                cache_mib_s,
                backing_mib_s,
                drain_mib_s,
                application_peak_mib_s: None,
            });
            found.cost.push(CostPoint { at_s, agbs: at_s * cost_rate, usd: Some(at_s * cost_rate * 1e-5) });
        }
        found.cost_agbs = found.wall_s * cost_rate;
        found.cost_usd = Some(found.cost_agbs * 1e-5);
        found
    }

    #[test]
    fn ratios_are_relative_to_static_fast() {
        let outcome = outcome();
        let fast = &outcome.modes[&Mode::StaticFast];
        assert!((fast.overhead_ratio - 1.0).abs() < 1e-12 && (fast.cost_ratio - 1.0).abs() < 1e-12);
        assert!(outcome.modes[&Mode::StaticSlow].overhead_ratio > 1.0);
    }

    #[test]
    fn the_summary_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(outcome().without_series()).unwrap();
        for mode in ["static_slow", "static_fast", "elastic"] {
            for field in [
                "completion_s",
                "overhead_ratio",
                "cost_agbs",
                "cost_usd",
                "cost_usd_ratio",
                "cost_usd_of_slow_ratio",
                "write_mib_s",
                "wall_s",
            ] {
                assert!(json["modes"][mode][field].is_number(), "{mode} {field}");
            }
        }
        for field in ["attach_s", "absorb_s", "drain_s", "cache_gib"] {
            assert!(json["modes"]["elastic"]["boosts"][0][field].is_number(), "{field}");
        }
        assert_eq!(json["verified"], true);
        assert!(json["modes"]["elastic"].get("activity").is_none());
    }
}
