//! What the cuts found.

use std::fmt::Write;

use serde::Serialize;
use surgetank_report::Table;

use super::lossy::Lost;
use super::oracle::Fault;
use super::phase::BoostPhase;
use crate::flags::name;
use crate::inside::Verdict;

/// One power cut.
#[derive(Clone, Debug, Serialize)]
pub struct Cut {
    /// Which, from 0.
    pub index: u32,
    /// Where in a boost.
    pub phase: BoostPhase,
    /// What the disks had not flushed.
    pub pending_bytes: u64,
    /// What of it they lost.
    pub lost_bytes: u64,
    /// What had been flushed, and must be found.
    pub flushed_bytes: u64,
    /// What was wrong through the device after recovery: the first few.
    pub device: Vec<String>,
    /// What was wrong on the backing volume after a drain: the first few.
    pub backing: Vec<String>,
    /// How many blocks were wrong, on either.
    pub faults: usize,
}

impl Cut {
    /// Not judged yet.
    pub fn new(index: u32, phase: BoostPhase, lost: Lost, flushed_bytes: u64) -> Self {
        let Lost { pending_bytes, lost_bytes } = lost;
        let (device, backing) = (Vec::new(), Vec::new());
        Self { index, phase, pending_bytes, lost_bytes, flushed_bytes, device, backing, faults: 0 }
    }

    /// What the next life found.
    pub fn judged(&mut self, verdict: &Verdict) {
        let first = |faults: &[Fault]| faults.iter().take(5).map(Fault::to_string).collect();
        self.device = first(&verdict.device);
        self.backing = first(&verdict.backing);
        self.faults = verdict.device.len() + verdict.backing.len();
    }

    /// One line.
    pub fn describe(&self) -> String {
        let Self { index, phase, pending_bytes, lost_bytes, flushed_bytes, faults, .. } = self;
        let mib = |bytes: &u64| *bytes as f64 / 1_048_576.0;
        let mut text = format!(
            "cut {index} in {}: {:.1} MiB flushed before; of {:.1} MiB unflushed on the disks {:.1} MiB lost; {faults} blocks wrong",
            name(*phase),
            mib(flushed_bytes),
            mib(pending_bytes),
            mib(lost_bytes),
        );
        for fault in self
            .device
            .iter()
            .map(|fault| format!("device, {fault}"))
            .chain(self.backing.iter().map(|fault| format!("backing volume, {fault}")))
        {
            let _ = write!(text, "\n  {fault}");
        }
        text
    }
}

/// All cuts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What chance followed from.
    pub seed: u64,
    /// Of surgetank.
    pub surgetank: Vec<Cut>,
    /// Of bcache, after a drain and a detach.
    pub bcache: Vec<Cut>,
}

impl Report {
    /// After how many cuts surgetank had lost something.
    pub fn lost(&self) -> usize {
        self.surgetank.iter().filter(|cut| cut.faults > 0).count()
    }

    /// A table of phases.
    pub fn markdown(&self) -> String {
        let row = |(name, cuts): (&str, &Vec<Cut>)| {
            let count = |phase| cuts.iter().filter(|cut| cut.phase == phase).count();
            let phases = BoostPhase::ALL.map(|phase| count(phase).to_string());
            let mib = |pick: fn(&Cut) -> u64| cuts.iter().map(pick).sum::<u64>() as f64 / 1_048_576.0;
            [
                name.to_owned(),
                cuts.len().to_string(),
                phases.join(", "),
                format!("{:.0} MiB", mib(|cut| cut.pending_bytes)),
                format!("{:.0} MiB", mib(|cut| cut.lost_bytes)),
                cuts.iter().filter(|cut| cut.faults > 0).count().to_string(),
                cuts.iter().map(|cut| cut.faults).sum::<usize>().to_string(),
            ]
        };
        let table = Table::of(
            " | power cuts | in attach, absorb, drain, detach | unflushed on the disks | of it lost | \
             cuts with loss of flushed data | blocks lost",
        );
        let table = table.with([("surgetank", &self.surgetank), ("bcache, after a drain", &self.bcache)].map(row));
        format!("Seed {}.\n\n{}", self.seed, table.markdown())
    }
}
