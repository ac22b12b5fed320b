//! What a calm device costs: the raw disk and the same disk under the device, in one guest.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use surgetank_model::{Bandwidth, Bytes};

use crate::bar::{Bar, Limit, all_met, table};
use crate::experiment::Experiment;
use crate::flags::{absolute, within};
use crate::inside::{CalmOrder, CalmSample, GuestJob, SHAPES, Side};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::{Disk, Media};
use crate::product::Product;
use crate::samples;

/// Where the disk's bytes are: memory, so that the device is what is measured.
const MEMORY: &str = "/dev/shm";
const SIZE: Bytes = Bytes::from_mib(512);

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
        let memory = tempfile::Builder::new().prefix("surgetank-lab-").tempfile_in(MEMORY);
        let memory = memory.with_context(|| format!("cannot make a disk in {MEMORY}"))?;
        memory.as_file().set_len(SIZE.get())?;
        let disk = Disk { media: Media::File(memory.path().to_owned()), ..Disk::new("plain", SIZE) };
        let experiment = Experiment {
            job: GuestJob::Calm,
            memory: Bytes::from_gib(1),
            disks: vec![disk],
            fast: Bandwidth::from_mib_s(128),
        };
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
    for (index, (name, shape)) in SHAPES.iter().enumerate() {
        let turns = |pick: fn(&Side) -> f64| -> Vec<[f64; 2]> {
            let turns = samples.iter().filter_map(|sample| match sample {
                CalmSample::Turn { load, raw, mapped } if *load == index => Some([pick(mapped), pick(raw)]),
                _ => None,
            });
            turns.collect()
        };
        let unit = if shape.contains("rand") { "IOPS" } else { "MiB/s" };
        let rate = Bar::paired(*name, unit, &turns(|side| side.rate), "the raw disk");
        bars.push(rate.must_be(Limit::AtLeast(0.97)));
        let busy = Bar::paired(format!("{name}: processor time"), "µs", &turns(|side| side.busy_us), "the raw disk");
        bars.push(busy.must_be(Limit::AtMost(1.05)));
    }
    for sample in samples {
        if let CalmSample::Daemon { busy_s, of_s, moved_bytes } = sample {
            let idle = Bar::new("the daemon's processor time", "s", *busy_s, (*of_s, "one processor"));
            bars.push(idle.must_be(Limit::AtMost(0.001)));
            bars.push(
                Bar::new("bytes that the daemon moved", "B", *moved_bytes as f64, (1.0, "a byte"))
                    .must_be(Limit::AtMost(0.0)),
            );
        }
    }
    bars
}
