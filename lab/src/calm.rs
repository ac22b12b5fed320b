//! What a calm device costs: the raw disk, the same disk under a linear map of the kernel's, and under the device, in one guest.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use surgetank_model::{Bandwidth, Bytes, Iops};

use crate::bar::{Bar, Limit, all_met, table};
use crate::experiment::Experiment;
use crate::flags::{absolute, within};
use crate::inside::{CalmOrder, CalmSample, DISKS, GuestJob, SHAPES, Side};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::{Disk, Media};
use crate::product::Product;
use crate::samples;

/// Where the disks' bytes are: memory, so that the device is what is measured.
const MEMORY: &str = "/dev/shm";
const SIZE: Bytes = Bytes::from_mib(512);
/// What the limited disk moves: a cloud's general-purpose volume.
const LIMIT: (Bandwidth, Iops) = (Bandwidth::from_mib_s(125), Iops::new(3000));

/// Flags of the bench.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How the device is exported
    #[arg(long, default_value = "dm", value_parser = ["dm", "ublk", "fuse"])]
    export: String,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each load
    #[arg(long, default_value_t = 5.0, value_parser = within(0.5, 600.0))]
    time: f64,
    /// Where the table and the samples go
    #[arg(long, default_value = "bench-out/calm", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
}

impl Arguments {
    /// Measures and reports; whether every bar was met.
    pub fn run(&self) -> anyhow::Result<bool> {
        let memory = tempfile::Builder::new().prefix("surgetank-lab-").tempdir_in(MEMORY);
        let memory = memory.with_context(|| format!("cannot make disks in {MEMORY}"))?;
        let disk = |name: &str| -> anyhow::Result<Disk> {
            let file = memory.path().join(name);
            File::create(&file)?.set_len(SIZE.get())?;
            Ok(Disk { media: Media::File(file), ..Disk::new(name, SIZE) })
        };
        let [unlimited, limited] = DISKS;
        let limited = Disk { bandwidth: Some(LIMIT.0), iops: Some(LIMIT.1), ..disk(limited)? };
        let disks = vec![disk(unlimited)?, limited];
        let experiment = Experiment::new(GuestJob::Calm, disks, Bandwidth::from_mib_s(128));
        let order = CalmOrder {
            surgetank: self.product.binary()?,
            export: self.export.clone(),
            rounds: self.rounds,
            time_s: self.time,
        };
        experiment.run(&Interrupt::install()?, &self.out, |_| Ok(order))?;
        let bars = judge(&samples::read::<CalmSample>(&self.out)?);
        output::write(&self.out, "calm", &table(&bars).markdown(), &bars)?;
        Ok(all_met(&bars))
    }
}

fn judge(samples: &[CalmSample]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (disk_index, disk) in DISKS.iter().enumerate() {
        for (load_index, (load, shape)) in SHAPES.iter().enumerate() {
            let turns: Vec<[Side; 3]> = samples
                .iter()
                .filter_map(|sample| match sample {
                    CalmSample::Turn { disk, load, raw, linear, mapped } => {
                        ((*disk, *load) == (disk_index, load_index)).then_some([*raw, *linear, *mapped])
                    }
                    CalmSample::Daemon { .. } => None,
                })
                .collect();
            if turns.is_empty() {
                continue;
            }
            let name = format!("{disk} disk, {load}");
            let unit = if shape.contains("rand") { "IOPS" } else { "MiB/s" };
            let pairs = |ours: usize, reference: usize, pick: fn(&Side) -> f64| -> Vec<[f64; 2]> {
                turns.iter().map(|turn| [pick(&turn[ours]), pick(&turn[reference])]).collect()
            };
            let rate =
                |ours, reference, peer| Bar::paired(&*name, unit, &pairs(ours, reference, |side| side.rate), peer);
            let time = |reference, peer| {
                let pairs = pairs(2, reference, |side| side.busy_us);
                Bar::paired(format!("{name}: processor time"), "µs", &pairs, peer)
            };
            bars.push(rate(2, 0, "the raw disk").must_be(Limit::AtLeast(0.97)));
            bars.push(rate(2, 1, "a linear map").must_be(Limit::AtLeast(0.97)));
            // A limited disk leaves the processors idle, and what wakes them costs more than the requests.
            if disk_index == 0 {
                bars.push(time(0, "the raw disk").must_be(Limit::AtMost(1.05)));
                bars.push(time(1, "a linear map").must_be(Limit::AtMost(1.05)));
            }
            bars.push(Bar { name: format!("{name}: a linear map"), ..rate(1, 0, "the raw disk") });
        }
    }
    for sample in samples {
        if let CalmSample::Daemon { busy_s, of_s, moved_bytes } = sample {
            let (busy, of) = (busy_s * 100.0 / of_s, (0.1, "of one processor"));
            bars.push(Bar::new("the daemon's processor time", "%", busy, of).must_be(Limit::AtMost(1.0)));
            let moved = Bar::new("bytes that the daemon moved", "B", *moved_bytes as f64, (1.0, "a byte"));
            bars.push(moved.must_be(Limit::AtMost(0.0)));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_judged_by_the_disk_and_by_the_kernels_own_map() {
        let side = |rate, busy_us| Side { rate, busy_us };
        let turn = |disk| CalmSample::Turn {
            disk,
            load: 1,
            raw: side(1000.0, 10.0),
            linear: side(900.0, 11.0),
            mapped: side(890.0, 11.5),
        };
        let daemon = CalmSample::Daemon { busy_s: 0.2, of_s: 100.0, moved_bytes: 0 };
        let met: Vec<Option<bool>> = judge(&[turn(0), daemon]).into_iter().map(|bar| bar.met).collect();
        let expected = [Some(false), Some(true), Some(false), Some(true), None, Some(false), Some(true)];
        assert_eq!(met, expected);
        assert_eq!(judge(&[turn(1)]).len(), 3, "without processor time");
    }
}
