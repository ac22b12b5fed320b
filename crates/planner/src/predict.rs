//! Completion time and cost of a bulk-synchronous application in the three modes (NRK15, III-C).
//!
//! ```text
//! T = I·It + K·Sc/B(Sc)                                            completion; excludes the initial dump
//! C = Bb·N·(T + Si/B(Si)) + Bc·M(Si)·D(Si) + K·Bc·M(Sc)·D(Sc)      cost of one VM;   Ca = n·C
//! ```
//!
//! The article prints Si/D(Si) where Si/B(Si) is meant: with it the static rows of its Tables III and IV reproduce to
//! all printed digits. Static-slow is Bc = 0 and B = Bb; static-fast is a backing volume of bandwidth Bc.

use serde::Serialize;
use surgetank_model::cost::Cost;
use surgetank_model::{Bandwidth, Bytes};

use crate::calibration::{Calibration, Measured, Spread};
use crate::cost::Tariff;
use crate::fluid::{Absorb, Delays, Pipes};
use crate::scenario::{App, Scenario};

/// What a mode takes and costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModePrediction {
    /// From the end of the initial dump to the end of the last checkpoint.
    pub completion_s: f64,
    /// The same if everything goes as the best repeat of the calibration; `None`: not known.
    pub completion_low_s: Option<f64>,
    /// The same if everything goes as the worst repeat.
    pub completion_high_s: Option<f64>,
    /// With the initial dump: so long the backing volume is billed.
    pub billed_s: f64,
    /// Of one VM.
    pub cost_agbs: f64,
    /// Of one VM, as the best repeat.
    pub cost_low_agbs: Option<f64>,
    /// Of one VM, as the worst repeat.
    pub cost_high_agbs: Option<f64>,
    /// Of all VMs.
    pub cost_total_agbs: f64,
    /// Of one VM; `None`: a price is unknown.
    pub cost_usd: Option<f64>,
    /// Of all VMs.
    pub cost_total_usd: Option<f64>,
}

/// A burst of the elastic mode, as predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BurstPrediction {
    /// Bytes written.
    pub dataset_gib: f64,
    /// Size of the caching volume.
    pub cache_gib: f64,
    /// B.
    pub throughput_mib_s: f64,
    /// D.
    pub attached_s: f64,
    /// Whether this comes from calibration points; else from the fluid model.
    pub calibrated: bool,
}

/// The three modes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// "calibrated" if the checkpoints of the elastic mode are, else "fluid".
    pub model: &'static str,
    /// A slow volume alone.
    pub static_slow: ModePrediction,
    /// A fast volume alone.
    pub static_fast: ModePrediction,
    /// The slow volume with caching volumes for the bursts.
    pub elastic: ModePrediction,
    /// The elastic mode's initial dump; `None`: there is none.
    pub initial: Option<BurstPrediction>,
    /// One of the elastic mode's checkpoints; `None`: there is none.
    pub checkpoint: Option<BurstPrediction>,
    /// What to know about these figures: assumptions, and where prices come from.
    pub notes: Vec<String>,
}

/// Everything that predictions for one scenario need.
pub struct Predictor<'a> {
    scenario: &'a Scenario,
    app: &'a App,
    calibration: Calibration,
    pipes: Pipes,
    absorb: Absorb,
    delays: Delays,
    backing: Tariff,
    fast: Tariff,
    /// Of a static-fast volume.
    alone: Bandwidth,
}

/// One burst's part of a prediction.
struct Part {
    measured: Measured,
    burst: BurstPrediction,
    outside: Option<String>,
}

impl<'a> Predictor<'a> {
    /// Of a scenario with an application.
    ///
    /// # Errors
    /// One sentence: it has none.
    pub fn new(scenario: &'a Scenario) -> Result<Self, &'static str> {
        let (backing, caching) = (&scenario.backing, &scenario.caching);
        let latencies = &scenario.provider;
        Ok(Self {
            scenario,
            app: scenario.app()?,
            calibration: Calibration::new(&scenario.calibration),
            pipes: Pipes { backing: backing.bandwidth, caching: caching.bandwidth },
            absorb: Absorb::of(&scenario.controller()),
            delays: Delays {
                boost: latencies.create + latencies.attach,
                quiet: scenario.controller().inactivity_delay,
                release: latencies.detach + latencies.delete,
            },
            backing: Tariff::new(backing.bandwidth, backing.volume_type.as_ref(), backing.usd_per_gib_month),
            fast: caching.tariff(),
            alone: caching.striping.alone,
        })
    }

    /// The calibration points.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The scenario.
    #[must_use]
    pub fn scenario(&self) -> &'a Scenario {
        self.scenario
    }

    /// The application.
    #[must_use]
    pub fn app(&self) -> &App {
        self.app
    }

    /// Size of the backing volume: no cache is larger.
    #[must_use]
    pub fn backing_size(&self) -> Bytes {
        self.scenario.backing.size
    }

    /// How the fluid model absorbs.
    #[must_use]
    pub fn absorb(&self) -> Absorb {
        self.absorb
    }

    /// The cache size that absorbs a checkpoint as fast as any, by the fluid model.
    #[must_use]
    pub fn fluid_cache(&self) -> Bytes {
        self.pipes.cache_for(self.app.checkpoint_size, self.absorb)
    }

    /// One of the static modes: a volume of this bandwidth that costs `tariff`.
    fn static_mode(&self, tariff: &Tariff, bandwidth: Bandwidth) -> ModePrediction {
        let bandwidth = bandwidth.as_mib_s();
        let completion_s = self.completion_s(self.app.checkpoint_size.as_mib() / bandwidth);
        let billed_s = completion_s + self.app.initial_dump.as_mib() / bandwidth;
        self.priced(completion_s, billed_s, tariff.cost(self.scenario.backing.size, billed_s))
    }

    /// A slow volume alone.
    #[must_use]
    pub fn static_slow(&self) -> ModePrediction {
        self.static_mode(&self.backing, self.scenario.backing.bandwidth)
    }

    /// A fast volume alone: of a stripe's volumes, as many that hold the backing volume's size.
    #[must_use]
    pub fn static_fast(&self) -> ModePrediction {
        self.static_mode(&self.fast, self.alone)
    }

    fn completion_s(&self, checkpoint_s: f64) -> f64 {
        self.app.compute.as_secs_f64() + f64::from(self.app.checkpoints) * checkpoint_s
    }

    fn priced(&self, completion_s: f64, billed_s: f64, cost: Cost) -> ModePrediction {
        let vms = f64::from(self.app.vms);
        ModePrediction {
            completion_s,
            billed_s,
            cost_agbs: cost.agbs,
            cost_total_agbs: cost.agbs * vms,
            cost_usd: cost.usd,
            cost_total_usd: cost.usd.map(|usd| usd * vms),
            ..ModePrediction::default()
        }
    }

    /// What a burst takes, from the points if they answer, else from the fluid model.
    fn part(&self, dataset: Bytes, cache: Bytes) -> Part {
        let (measured, outside) = match self.calibration.at(dataset, cache) {
            Ok(measured) => (measured, None),
            Err(outside) => {
                let burst = self.pipes.delayed(dataset, cache, self.absorb, &self.delays);
                let exactly = |value| Spread { low: value, median: value, high: value };
                let (write_s, attached_s) = (exactly(burst.absorb_s), exactly(burst.occupied_s));
                (Measured { write_s, attached_s, repeats: 0 }, Some(outside.why))
            }
        };
        let burst = BurstPrediction {
            dataset_gib: dataset.as_gib(),
            cache_gib: cache.as_gib(),
            throughput_mib_s: dataset.as_mib() / measured.write_s.median,
            attached_s: measured.attached_s.median,
            calibrated: outside.is_none(),
        };
        Part { measured, burst, outside }
    }

    /// What the initial dump's caching volume is: the file's, or what the controller takes.
    fn initial_cache(&self) -> Bytes {
        let policy = self.scenario.controller();
        let taken =
            || self.scenario.initial_cache(policy.preset).round_up(policy.grain).min(self.scenario.backing.size);
        self.scenario.caching.initial_cache.unwrap_or_else(taken)
    }

    /// The elastic mode with this cache size for the checkpoints.
    #[must_use]
    pub fn elastic(&self, checkpoint_cache: Bytes) -> Elastic {
        let initial =
            (self.app.initial_dump > Bytes::ZERO).then(|| self.part(self.app.initial_dump, self.initial_cache()));
        let checkpoint = (self.app.checkpoints > 0).then(|| self.part(self.app.checkpoint_size, checkpoint_cache));
        let with = |pick: fn(&Spread) -> f64| {
            let seconds = |part: &Option<Part>| {
                part.as_ref().map_or((0.0, 0.0), |part| (pick(&part.measured.write_s), pick(&part.measured.attached_s)))
            };
            let ((dump_s, dump_attached_s), (checkpoint_s, attached_s)) = (seconds(&initial), seconds(&checkpoint));
            let completion_s = self.completion_s(checkpoint_s);
            let billed_s = completion_s + dump_s;
            let mut cost = self.backing.cost(self.scenario.backing.size, billed_s);
            if initial.is_some() {
                cost = cost.plus(self.fast.cost(self.initial_cache(), dump_attached_s));
            }
            if checkpoint.is_some() {
                let one = self.fast.cost(checkpoint_cache, attached_s);
                let times = f64::from(self.app.checkpoints);
                cost = cost.plus(Cost { agbs: one.agbs * times, usd: one.usd.map(|usd| usd * times) });
            }
            (completion_s, billed_s, cost)
        };
        let (completion_s, billed_s, cost) = with(|spread| spread.median);
        let mut prediction = self.priced(completion_s, billed_s, cost);
        // Without repeats nothing is known of the spread.
        let parts = || [&initial, &checkpoint].into_iter().flatten();
        if parts().any(|part| part.measured.repeats > 1) {
            let ((best_s, _, best), (worst_s, _, worst)) = (with(|spread| spread.low), with(|spread| spread.high));
            (prediction.completion_low_s, prediction.completion_high_s) = (Some(best_s), Some(worst_s));
            (prediction.cost_low_agbs, prediction.cost_high_agbs) = (Some(best.agbs), Some(worst.agbs));
        }
        Elastic {
            prediction,
            outside: [(&initial, "initial dump"), (&checkpoint, "checkpoints")]
                .into_iter()
                .filter_map(|(part, what)| Some((what, part.as_ref()?.outside.clone()?)))
                .collect(),
            initial: initial.map(|part| part.burst),
            checkpoint: checkpoint.map(|part| part.burst),
        }
    }

    /// The three modes with this cache size for the checkpoints.
    #[must_use]
    pub fn predict(&self, checkpoint_cache: Bytes) -> Prediction {
        let elastic = self.elastic(checkpoint_cache);
        let calibrated = match (&elastic.checkpoint, &elastic.initial) {
            (Some(burst), _) | (None, Some(burst)) => burst.calibrated,
            (None, None) => false,
        };
        Prediction {
            model: if calibrated { "calibrated" } else { "fluid" },
            static_slow: self.static_slow(),
            static_fast: self.static_fast(),
            notes: self.notes(&elastic),
            elastic: elastic.prediction,
            initial: elastic.initial,
            checkpoint: elastic.checkpoint,
        }
    }

    fn notes(&self, elastic: &Elastic) -> Vec<String> {
        let mut notes = Vec::new();
        let how = match self.absorb {
            Absorb::Split => "bursts split over both volumes",
            Absorb::WriteBack => "bursts go to the caching volume",
        };
        let policy = self.scenario.controller().preset.name;
        let how = format!("policy {policy}: {how}");
        if self.calibration.is_empty() {
            notes.push(format!(
                "no calibration points: the fluid model answers, a bound that no real volume beats ({how})"
            ));
        } else {
            notes.extend(
                elastic
                    .outside
                    .iter()
                    .map(|(what, why)| format!("{what}: {why}, so the fluid model answers for the {what} ({how})")),
            );
        }
        if self.app.initial_dump > Bytes::ZERO && self.scenario.caching.initial_cache.is_none() {
            notes
                .push(format!("initial_cache is not given: {} is taken, as the controller does", self.initial_cache()));
        }
        for (what, tariff) in [("backing volume", &self.backing), ("fast and caching volumes", &self.fast)] {
            match tariff.source() {
                Some(source) => notes.push(format!("price of {what}: {source}")),
                None => {
                    notes.push(format!("price of {what} unknown: add volume_type or usd_per_gib_month to the file"))
                }
            }
        }
        notes
    }
}

/// The elastic mode with one cache size.
#[derive(Clone, Debug, PartialEq)]
pub struct Elastic {
    /// What it takes and costs.
    pub prediction: ModePrediction,
    /// The initial dump.
    pub initial: Option<BurstPrediction>,
    /// A checkpoint.
    pub checkpoint: Option<BurstPrediction>,
    /// What the points did not answer: which burst, and why.
    pub outside: Vec<(&'static str, String)>,
}
