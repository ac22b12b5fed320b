//! What the replay found.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use surgetank_report::Table;

use super::points::{CutMoment, PHASES, name};
use crate::inside::{Judged, LOGGED, Logged};
use crate::messages;
use crate::samples;

/// A log and the power cuts in it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What chance followed from.
    pub seed: u64,
    /// What was in the log; `None`: the guest did not come so far.
    pub logged: Option<Logged>,
    /// What was found after each power cut.
    pub judged: Vec<Judged>,
}

impl Report {
    /// What a guest has left, as far as it came.
    pub fn read(seed: u64, results: &Path) -> anyhow::Result<Self> {
        let logged = messages::heard(results, LOGGED)?;
        let judged = samples::read(results)?;
        Ok(Self { seed, logged, judged })
    }

    /// Whether something was judged, and nothing was lost anywhere.
    pub fn is_whole(&self) -> bool {
        !self.judged.is_empty() && self.judged.iter().all(Judged::is_whole)
    }

    /// A table of phases, and a line for each point at which something was lost.
    pub fn markdown(&self) -> String {
        let mut text = format!("Seed {}.", self.seed);
        let Some(logged) = &self.logged else {
            text.push_str(" The load was not logged to its end.\n");
            return text;
        };
        let _ = write!(
            text,
            " {} entries in the log, {} of them FLUSHes, {} writes with FUA; {:.0} MiB written; {} writes whose order beside \
             a forced one is not told.\n\nPower cuts at points checked of points there are:\n\n",
            logged.entries,
            logged.flushes,
            logged.forced,
            logged.written_bytes as f64 / 1_048_576.0,
            logged.untold_orders,
        );
        let ends = [
            "dirty when recovered, mean",
            "e2fsck complained",
            "not usable",
            "points with loss",
            "blocks and files lost",
        ];
        let row = |phase| {
            let judged: Vec<&Judged> = self.judged.iter().filter(|judged| judged.phase == phase).collect();
            let moments = CutMoment::ALL.map(|moment| {
                let there = logged.points.iter().filter(|point| (point.0, point.1) == (phase, moment));
                let there: usize = there.map(|point| point.2).sum();
                let checked = judged.iter().filter(|judged| judged.moment == moment).count();
                format!("{checked} of {there}")
            });
            let count = |bad: fn(&Judged) -> bool| judged.iter().filter(|judged| bad(judged)).count().to_string();
            let dirty_mib = judged.iter().fold(0.0, |sum, judged| sum + judged.dirty_mib) / judged.len().max(1) as f64;
            let ends = [
                format!("{dirty_mib:.1} MiB"),
                count(|judged| judged.fsck.is_some()),
                count(|judged| judged.unusable.is_some()),
                count(|judged| judged.lost_count > 0),
                judged.iter().map(|judged| judged.lost_count).sum::<usize>().to_string(),
            ];
            [name(phase)].into_iter().chain(moments).chain(ends)
        };
        let header = [""].into_iter().chain(CutMoment::ALL.map(CutMoment::name)).chain(ends);
        text.push_str(&Table::new(header).with(PHASES.into_iter().map(row)).markdown());
        for judged in self.judged.iter().filter(|judged| !judged.is_whole()) {
            let _ = write!(text, "\n- {}", judged.describe());
        }
        text
    }
}
