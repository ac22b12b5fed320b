//! The paper on cache allocation (PSKP10): its Figures 3 and 6 to 11 in kind, beside its figures.

mod page;
mod settings;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use surgetank_hierarchy::{CaseError, Interval, Judged, Outcome, Scheme};

use crate::bar::{Bar, Limit};
use crate::interrupt::Interrupt;
use crate::output::{say, write};
use settings::{Extent, Setting};

/// Simulated time of a run.
const SECONDS: f64 = 2400.0;
/// FS over the fair share, in percent: section 4.4.
const PAPER_HPC: f64 = 5.8;
const PAPER_ENTERPRISE: f64 = 12.6;

/// Simulates what the paper shows.
pub struct Allocation<'a> {
    /// Ends it.
    pub interrupt: &'a Interrupt,
    /// Where pages go.
    pub out: &'a Path,
    /// Share of the paper's caches.
    pub scale: f64,
    /// Where recorded traces are, if not beside the tree.
    pub data: Option<&'a Path>,
}

/// A setting under one scheme.
struct Ran {
    setting: usize,
    scheme: Scheme,
    intervals: Result<Vec<Interval>, CaseError>,
}

/// A setting, and what its schemes did.
pub struct Found {
    setting: Setting,
    schemes: Vec<(Scheme, Vec<Interval>, Outcome)>,
}

/// A row of the document for scripts.
#[derive(Serialize)]
struct Row<'a> {
    figure: &'a str,
    mix: &'a str,
    setting: &'a str,
    scheme: &'a str,
    fair_speedup: f64,
    applications: Vec<(&'a str, f64)>,
    broken: usize,
    judged: usize,
    worst: f64,
    /// In which intervals after the warm-up, by application.
    broken_in: Vec<(&'a str, Vec<usize>)>,
}

impl Allocation<'_> {
    /// Reports; the bars.
    pub fn reproduce(&self) -> anyhow::Result<Vec<Bar>> {
        let found = self.simulate(settings::all(Extent { seconds: SECONDS, scale: self.scale }, self.data)?)?;
        let mut bars = Vec::new();
        found.iter().for_each(|found| found.judge(&mut bars));
        let rows: Vec<Row<'_>> = found.iter().flat_map(Found::rows).collect();
        write(self.out, "allocation", &page::markdown(&found, &bars), &(&bars, &rows))?;
        for (name, picture) in page::pictures(&found)? {
            std::fs::write(self.out.join(name), picture)?;
        }
        Ok(bars)
    }

    /// Every scheme of every setting, on all processors.
    fn simulate(&self, settings: Vec<Setting>) -> anyhow::Result<Vec<Found>> {
        let with_fair = |setting: &Setting| std::iter::once(Scheme::FairShare).chain(setting.schemes.clone()).collect();
        let work: Vec<(usize, Scheme)> = settings
            .iter()
            .enumerate()
            .flat_map(|(index, setting)| {
                let schemes: Vec<Scheme> = with_fair(setting);
                schemes.into_iter().map(move |scheme| (index, scheme))
            })
            .collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::<Ran>::new()));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((setting, scheme)) = work.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                        if self.interrupt.check().is_err() {
                            return;
                        }
                        let intervals = settings[setting].case.run(scheme);
                        let count = done.lock().map(|mut done| {
                            done.push(Ran { setting, scheme, intervals });
                            done.len()
                        });
                        if let Ok(count) = count {
                            say(&format!(
                                "{count} of {} runs: {}, {}",
                                work.len(),
                                settings[setting].name,
                                scheme.name()
                            ));
                        }
                    }
                });
            }
        });
        self.interrupt.check()?;
        let mut ran = done.into_inner().unwrap_or_default();
        ran.sort_by_key(|ran| (ran.setting, ran.scheme));
        let mut found = Vec::new();
        for (index, setting) in settings.into_iter().enumerate() {
            let (mut fair, mut schemes) = (Vec::new(), Vec::new());
            for ran in ran.extract_if(.., |ran| ran.setting == index) {
                let intervals = ran.intervals?;
                if ran.scheme == Scheme::FairShare { fair = intervals } else { schemes.push((ran.scheme, intervals)) }
            }
            let judged = schemes.into_iter().map(|(scheme, intervals)| {
                let outcome = setting.case.judge(&intervals, &fair);
                (scheme, intervals, outcome)
            });
            let schemes = judged.collect();
            found.push(Found { setting, schemes });
        }
        Ok(found)
    }
}

impl Found {
    fn title(&self) -> String {
        format!("Figure {}, {}, {}", self.setting.figure, self.setting.mix, self.setting.name)
    }

    fn outcome(&self, scheme: Scheme) -> Option<&Outcome> {
        self.schemes.iter().find(|(other, ..)| *other == scheme).map(|(.., outcome)| outcome)
    }

    fn judge(&self, bars: &mut Vec<Bar>) {
        let (Some(optimal), Some(mlms)) = (self.outcome(Scheme::Optimal), self.outcome(Scheme::Mlms)) else { return };
        let (broken, all) = optimal.broken();
        let title = self.title();
        let mut add = |what: &str, ours: f64, reference: (f64, &str)| {
            bars.push(Bar::new(format!("{title}: {what}"), "", ours, reference).must_be(Limit::AtLeast(1.0)));
        };
        add("intervals in which optimal held the SLO", (all - broken) as f64, (all as f64, "all"));
        add("fair speedup of optimal", optimal.fair_speedup, (mlms.fair_speedup, "mlms"));
        add("fair speedup of mlms", mlms.fair_speedup, (1.0, "the fair share"));
        if self.setting.figure.starts_with('3') {
            let paper = if self.setting.mix == "HPC" { PAPER_HPC } else { PAPER_ENTERPRISE };
            for (name, outcome) in [("mlms", mlms), ("optimal", optimal)] {
                let gained = 100.0 * (outcome.fair_speedup - 1.0);
                bars.push(Bar::new(format!("{title}: {name} over the fair share"), "%", gained, (paper, "the paper")));
            }
        }
    }

    fn broken_in<'a>(&'a self, outcome: &'a Outcome) -> Vec<(&'a str, Vec<usize>)> {
        let of = |(one, slo): (&'a Judged, &f64)| {
            let broken = one.normalised.iter().enumerate().filter(|(_, ratio)| **ratio > 1.0 + slo);
            (&*one.name, broken.map(|(index, _)| index).collect())
        };
        outcome.applications.iter().zip(&self.setting.case.slos).map(of).collect()
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.schemes.iter().map(|(scheme, _, outcome)| {
            let (broken, judged) = outcome.broken();
            Row {
                figure: self.setting.figure,
                mix: self.setting.mix,
                setting: &self.setting.name,
                scheme: scheme.name(),
                fair_speedup: outcome.fair_speedup,
                applications: outcome
                    .applications
                    .iter()
                    .map(|one| (&*one.name, one.latency_ms / one.fair_ms))
                    .collect(),
                broken,
                judged,
                worst: outcome.worst(),
                broken_in: self.broken_in(outcome),
            }
        })
    }
}
