//! The papers' experiments in one guest: bonnie++ and LAMMPS on a slow disk, a fast one, and elastic ones.

mod allocation;
mod arrays;
mod picture;
pub mod simulated;
mod staging;
mod table;

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use surgetank_model::{Bandwidth, Bytes};

use crate::experiment::Experiment;
use crate::flags::{absolute, within};
use crate::inside::GuestJob;
use crate::inside::modes::{Mode, Setting, Site};
use crate::inside::reproduce::{BYTES_PER_ATOM, Bonnie, Load, Melt, Order, Sample, Workload};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::Disk;
use crate::product::Product;
use crate::samples;

/// An emulated guest takes 20 s for a time step of a larger melt, and its memory grows with it.
const CELLS_MAX: u64 = 80;
/// Sizes are whole multiples of this.
const GRAIN_MIB: u64 = 8;

/// The papers' numbers (NRK15, IV-B to IV-D), sizes in MiB.
mod paper {
    /// Of the slow and the fast disk, MiB/s.
    pub const RATES_MIB_S: (u64, u64) = (33, 128);
    /// The first caching volume.
    pub const INITIAL_MIB: f64 = 10.0 * 1024.0;
    /// Sizes are multiples of this.
    pub const GRAIN_MIB: f64 = 1024.0;
    /// ID, and the controller's interval.
    pub const INACTIVITY_S: f64 = 30.0;
    pub const SAMPLING_S: f64 = 5.0;
    /// Between two runs of bonnie++, which ran three times in a row.
    pub const PAUSE_S: f64 = 120.0;
    pub const RUNS: u32 = 3;
    /// The microbenchmark's machine and its disk. bonnie++'s file is by default twice the memory.
    pub const MEMORY_MIB: f64 = 2.0 * 1024.0;
    pub const BONNIE_DISK_MIB: f64 = 10.0 * 1024.0;
    pub const BONNIE_CHUNK_KIB: u64 = 32;
    /// LAMMPS's disk, checkpoint, and how many follow the dump of the initial state.
    pub const MELT_DISK_MIB: f64 = 50.0 * 1024.0;
    pub const CHECKPOINT_MIB: f64 = 3.0 * 1024.0;
    pub const PHASES: u32 = 3;
    /// bcache's own default.
    pub const WRITEBACK_DELAY_S: f64 = 30.0;
}

/// Flags of the experiments.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Share of the papers' sizes and times
    #[arg(long, default_value_t = 0.031_25, conflicts_with = "full", value_parser = within(0.015_625, 1.0))]
    scale: f64,
    /// The papers' sizes: a 4 GiB file on a disk of 10 GiB in 2 GiB of memory (LAMMPS stays as small as emulation asks for)
    #[arg(long)]
    full: bool,
    /// Share of the papers' 33 and 128 MiB/s, which an emulated guest cannot fill through a file system; times grow with it
    #[arg(long, default_value_t = 0.25, value_parser = within(0.05, 1.0))]
    rate: f64,
    /// On what; everything, if nothing is named
    #[arg(long = "mode", value_enum)]
    modes: Vec<Mode>,
    /// What runs; both, if none is named
    #[arg(long = "load", value_enum)]
    loads: Vec<Workload>,
    /// Cells of LAMMPS's lattice along an edge, by default after the scale
    #[arg(long, value_name = "CELLS", value_parser = clap::value_parser!(u64).range(8..=CELLS_MAX))]
    cells: Option<u64>,
    /// LAMMPS's time steps before a checkpoint
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Where the table, the pictures and the samples go
    #[arg(long, default_value = "reproduce-out/lab", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
    /// Make the table and the pictures again from the samples in --out
    #[arg(long)]
    again: bool,
}

impl Arguments {
    /// Measures and reports; whether every mode came to its end.
    pub fn run(&self) -> anyhow::Result<bool> {
        if !self.again {
            let experiment = Experiment {
                memory: Bytes::from_mib(3 * 1024 + whole(paper::MEMORY_MIB * self.scale())),
                ..Experiment::new(GuestJob::Reproduce, self.disks(), self.fast())
            };
            experiment.run(&Interrupt::install()?, &self.out, |service| self.order(service))?;
        }
        self.report(&samples::read::<Sample>(&self.out)?)
    }

    fn scale(&self) -> f64 {
        if self.full { 1.0 } else { self.scale }
    }

    fn rates_mib_s(&self) -> (u64, u64) {
        let (slow, fast) = paper::RATES_MIB_S;
        let scaled = |mib_s: u64| ((mib_s as f64 * self.rate).round() as u64).max(1);
        (scaled(slow), scaled(fast))
    }

    fn loads(&self) -> Vec<(Load, Setting)> {
        let wanted = |program| self.loads.is_empty() || self.loads.contains(&program);
        let mut loads = Vec::new();
        if wanted(Workload::Bonnie) {
            let scale = self.scale();
            let memory_mib = whole(paper::MEMORY_MIB * scale);
            let bonnie = Bonnie { file_mib: 2 * memory_mib, memory_mib, chunk_kib: paper::BONNIE_CHUNK_KIB };
            let pause_s = paper::PAUSE_S * scale / self.rate;
            let load = Load::Bonnie { bonnie, runs: paper::RUNS, pause_s };
            loads.push((load, self.setting(scale, paper::BONNIE_DISK_MIB)));
        }
        if wanted(Workload::Lammps) {
            let cells = self.cells.unwrap_or_else(|| cells_for(paper::CHECKPOINT_MIB * self.scale()).min(CELLS_MAX));
            let melt = Melt { cells, phases: paper::PHASES, steps: self.steps };
            // The setting is the papers' by what a checkpoint is against theirs.
            let scale = melt.checkpoint_bytes() as f64 / 1_048_576.0 / paper::CHECKPOINT_MIB;
            loads.push((Load::Melt(melt), self.setting(scale, paper::MELT_DISK_MIB)));
        }
        loads
    }

    /// Sizes shrink with the scale, and so do times, which a slower disk stretches.
    fn setting(&self, scale: f64, disk_mib: f64) -> Setting {
        let time = scale / self.rate;
        Setting {
            backing_mib: whole(disk_mib * scale),
            initial_mib: whole(paper::INITIAL_MIB * scale),
            grain_mib: whole(paper::GRAIN_MIB * scale),
            inactivity_s: (paper::INACTIVITY_S * time).max(1.0),
            // In less than a second a mount is as much as a burst, and the first caching volume would be spent on it.
            sampling_s: (paper::SAMPLING_S * time).clamp(1.0, 5.0),
            writeback_delay_s: (paper::WRITEBACK_DELAY_S * time).max(1.0),
        }
    }

    fn fast(&self) -> Bandwidth {
        Bandwidth::from_mib_s(self.rates_mib_s().1)
    }

    fn order(&self, service: String) -> anyhow::Result<Order> {
        let modes = if self.modes.is_empty() { Mode::value_variants().to_vec() } else { self.modes.clone() };
        let site = Site { surgetank: self.product.binary()?, service, rates_mib_s: self.rates_mib_s() };
        Ok(Order { site, modes, loads: self.loads() })
    }

    fn disks(&self) -> Vec<Disk> {
        let slow = Bandwidth::from_mib_s(self.rates_mib_s().0);
        let disk = |load: &Load, setting: &Setting, fast| {
            let rate = if fast { self.fast() } else { slow };
            Disk::new(load.workload().serial(fast), Bytes::from_mib(setting.backing_mib)).throttled(rate)
        };
        let loads = self.loads();
        loads.iter().flat_map(|(load, setting)| [disk(load, setting, false), disk(load, setting, true)]).collect()
    }

    fn report(&self, samples: &[Sample]) -> anyhow::Result<bool> {
        for (name, picture) in picture::all(samples)? {
            fs::write(self.out.join(name), picture)?;
        }
        output::write(&self.out, "reproduce", &table::markdown(samples), &table::modes(samples))?;
        Ok(!samples.is_empty() && samples.iter().all(|sample| sample.outcome.is_ok()))
    }
}

fn whole(mib: f64) -> u64 {
    ((mib / GRAIN_MIB as f64).round() as u64).max(1) * GRAIN_MIB
}

/// The lattice whose checkpoint is nearest to so much.
fn cells_for(checkpoint_mib: f64) -> u64 {
    (checkpoint_mib * 1_048_576.0 / (4 * BYTES_PER_ATOM) as f64).cbrt().round() as u64
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(words: &[&str]) -> Arguments {
        Line::parse_from(["lab"].iter().chain(words)).arguments
    }

    #[test]
    fn full_is_the_papers_setting() {
        let loads = arguments(&["--full", "--rate", "1", "--cells", "64"]).loads();
        let (Load::Bonnie { bonnie, runs: 3, pause_s }, setting) = loads[0] else { panic!("{loads:?}") };
        assert_eq!((bonnie.file_mib, bonnie.memory_mib, pause_s), (4096, 2048, 120.0));
        assert_eq!((setting.backing_mib, setting.initial_mib, setting.grain_mib), (10240, 10240, 1024));
        assert_eq!((setting.inactivity_s, setting.sampling_s), (30.0, 5.0));
        let (Load::Melt(melt), setting) = loads[1] else { panic!("{loads:?}") };
        assert_eq!((melt.cells, melt.phases), (64, 3));
        assert!((2500..2600).contains(&setting.backing_mib), "{setting:?}");
    }

    #[test]
    fn a_slower_disk_stretches_times_and_not_sizes() {
        let (fast, slow) =
            (arguments(&["--scale", "0.1", "--rate", "1"]), arguments(&["--scale", "0.1", "--rate", "0.25"]));
        assert_eq!((fast.rates_mib_s(), slow.rates_mib_s()), ((33, 128), (8, 32)));
        let (fast, slow) = (fast.loads()[0].1, slow.loads()[0].1);
        assert_eq!(fast.initial_mib, slow.initial_mib);
        assert_eq!((fast.inactivity_s, slow.inactivity_s), (3.0, 12.0));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (words, why) in [
            (["--scale", "2"], "from 0.015625 to 1"),
            (["--rate", "0"], "from 0.05 to 1"),
            (["--cells", "500"], "8..=80"),
            (["--steps", "0"], "1.."),
        ] {
            let error = Line::try_parse_from(["lab"].iter().chain(&words)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
