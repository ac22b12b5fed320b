//! The kernel's caches and surgetank side by side in one guest.

mod bars;
mod chart;
mod table;

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use surgetank_model::{Bandwidth, Bytes};

use crate::bar::all_met;
use crate::experiment::Experiment;
use crate::flags::{absolute, within};
use crate::inside::{GuestJob, Load, Order, PeerKind, PeerSample, Shape};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::Disk;
use crate::product::Product;
use crate::samples;

/// The papers' volumes.
const SLOW_MIB_S: u64 = 33;
const FAST_MIB_S: u64 = 128;
/// Flags of the bench.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Share of the full sizes (bursts of 1 and 2 GiB) and times
    #[arg(long, default_value_t = 1.0, value_parser = within(0.015_625, 4.0))]
    scale: f64,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The bursts' full sizes in GiB
    #[arg(long = "size", value_name = "GIB", default_values_t = [1, 2])]
    sizes: Vec<u64>,
    /// Who is measured; all, if none is named
    #[arg(long = "peer", value_enum)]
    peers: Vec<PeerKind>,
    /// What is measured: bursts, random, mixed, synced, idle; all, if none is named
    #[arg(long = "load", value_enum)]
    loads: Vec<Shape>,
    /// Beside what: idle processors, or a computing thread for each; both, if none is named
    #[arg(long, value_enum)]
    processors: Option<Processors>,
    /// Where the table, the pictures and the samples go
    #[arg(long, default_value = "bench-out/peers", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
    /// Make the table and the pictures again from the samples in --out
    #[arg(long)]
    again: bool,
}

/// What else the guest's processors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Processors {
    /// Nothing.
    Idle,
    /// They compute, a thread for each.
    Busy,
}

impl Arguments {
    /// Measures and reports; whether every bar was met.
    pub fn run(&self) -> anyhow::Result<bool> {
        if !self.again {
            let experiment = Experiment {
                memory: Bytes::from_gib(2),
                ..Experiment::new(GuestJob::Peers, self.disks(), Bandwidth::from_mib_s(FAST_MIB_S))
            };
            experiment.run(&Interrupt::install()?, &self.out, |service| self.order(service))?;
        }
        self.report(&samples::read::<PeerSample>(&self.out)?)
    }

    fn order(&self, service: String) -> anyhow::Result<Order> {
        let peers = if self.peers.is_empty() { PeerKind::value_variants().to_vec() } else { self.peers.clone() };
        Ok(Order {
            surgetank: self.product.binary()?,
            peers,
            loads: self.loads(),
            rounds: self.rounds,
            slow_mib_s: SLOW_MIB_S,
            fast_mib_s: FAST_MIB_S,
            service,
        })
    }

    fn scaled(&self, mib: u64) -> u64 {
        // Whole multiples of 16 MiB, so that every cache is one of whole segments.
        ((mib as f64 * self.scale / 16.0).round() as u64).max(1) * 16
    }

    fn loads(&self) -> Vec<Load> {
        let mut loads = self.loads_beside_nothing();
        // A cache of the burst's size tells enough, and the other two loads are not the processors' matter.
        let tells = |load: &&Load| match load.shape {
            Shape::Burst => load.size_mib == load.cache_mib,
            Shape::RandomWrites | Shape::Mixed => true,
            Shape::SyncedWrites | Shape::Idle => false,
        };
        let busy: Vec<Load> = loads.iter().filter(tells).map(|load| Load { busy: true, ..*load }).collect();
        match self.processors {
            None => loads.extend(busy),
            Some(Processors::Idle) => {}
            Some(Processors::Busy) => loads = busy,
        }
        loads
    }

    fn loads_beside_nothing(&self) -> Vec<Load> {
        let wanted = |shape| self.loads.is_empty() || self.loads.contains(&shape);
        let mut loads = Vec::new();
        if wanted(Shape::Burst) {
            for size in self.sizes.iter().map(|gib| gib * 1024) {
                for half in 1..=3 {
                    let (size_mib, cache_mib) = (self.scaled(size), self.scaled(size * half / 2));
                    loads.push(Load { shape: Shape::Burst, size_mib, time_s: 0, cache_mib, busy: false });
                }
            }
        }
        let cache_mib = self.scaled(1024);
        let (size_mib, time_s) = (cache_mib / 2, ((20.0 * self.scale) as u64).clamp(5, 60));
        for shape in [Shape::RandomWrites, Shape::Mixed, Shape::SyncedWrites, Shape::Idle] {
            if wanted(shape) {
                loads.push(Load { shape, size_mib, time_s, cache_mib, busy: false });
            }
        }
        loads
    }

    /// One slow disk; many of the fast one's speed, all under one limit: whole, and as caches of every size for the
    /// kernel's caches. Surgetank's are plugged in while it runs.
    fn disks(&self) -> Vec<Disk> {
        let largest = self.scaled(1536 * self.sizes.iter().copied().max().unwrap_or(2).max(1));
        let slow = Disk::new("slow", Bytes::from_mib(largest + self.scaled(1024)))
            .throttled(Bandwidth::from_mib_s(SLOW_MIB_S));
        let fast = Disk::new("fast", Bytes::from_mib(largest)).throttled(Bandwidth::from_mib_s(FAST_MIB_S));
        let mut disks = vec![slow, fast];
        let mut sizes: Vec<u64> = self.loads().iter().map(|load| load.cache_mib).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let caches = sizes.into_iter().map(|size| (format!("cache-{size}"), size));
        for (name, size) in caches.chain([("meta".to_owned(), 64)]) {
            disks.push(Disk { shares: Some("fast".to_owned()), ..Disk::new(&name, Bytes::from_mib(size)) });
        }
        disks
    }

    fn report(&self, samples: &[PeerSample]) -> anyhow::Result<bool> {
        let rows = table::rows(samples);
        let bars = bars::judge(&rows, SLOW_MIB_S as f64, FAST_MIB_S as f64);
        let text = table::markdown(&rows, &bars, samples);
        let document = serde_json::json!({"rows": rows, "bars": bars});
        for (name, picture) in chart::pictures(&rows)? {
            fs::write(self.out.join(name), picture)?;
        }
        output::write(&self.out, "peers", &text, &document)?;
        let measured = !samples.is_empty() && samples.iter().all(|sample| sample.outcome.is_ok());
        Ok(measured && all_met(&bars))
    }
}

/// For tests of what is made of samples.
#[cfg(test)]
fn sample(peer: PeerKind, load: Load, run_s: f64) -> PeerSample {
    use crate::fio::Measured;
    use crate::inside::Found;
    let moved_mib = load.size_mib as f64;
    let measured = Measured {
        run_s,
        moved_mib,
        written_mib: moved_mib,
        iops: 1000.0 / run_s,
        write_us: run_s,
        busy_s: 1.0,
        ..Measured::default()
    };
    let found = Found {
        export: "kernel".to_owned(),
        measured,
        dirty_mib: moved_mib,
        drain_s: moved_mib / 33.0,
        ..Found::default()
    };
    PeerSample { peer, load, round: 0, outcome: Ok(found) }
}
