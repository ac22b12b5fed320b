//! The kernel's caches and surgetank side by side in one guest.

mod bars;
mod chart;
mod table;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use surgetank_model::{Bandwidth, Bytes};

use crate::command_line::say;
use crate::host::Lab;
use crate::inside::{Kind, Load, Order, Sample, Shape};
use crate::interrupt::Interrupt;
use crate::plan::{Disk, Plan, quoted};
use crate::service::Provisioning;

/// The papers' volumes.
const SLOW_MIB_S: u64 = 33;
const FAST_MIB_S: u64 = 128;
/// Where the guest finds its order and leaves its samples.
const ORDER: &str = "/lab/order.json";
const SAMPLES: &str = "/lab/samples.jsonl";

/// Flags of the bench.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Share of the full sizes (bursts of 1 and 2 GiB) and times
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The bursts' full sizes in GiB
    #[arg(long = "size", value_name = "GIB", default_values_t = [1, 2])]
    sizes: Vec<u64>,
    /// Who is measured; all, if none is named
    #[arg(long = "peer", value_enum)]
    peers: Vec<Kind>,
    /// What is measured: bursts, random, mixed, synced, idle; all, if none is named
    #[arg(long = "load", value_enum)]
    loads: Vec<Group>,
    /// Where the table, the pictures and the samples go
    #[arg(long, default_value = "bench-out/peers")]
    out: PathBuf,
    /// The daemon; by default the release build beside this program
    #[arg(long)]
    surgetank: Option<PathBuf>,
    /// Make the table and the pictures again from the samples in --out
    #[arg(long)]
    again: bool,
}

/// Loads that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// 1 and 2 GiB with caches of 0.5, 1 and 1.5 times their size
    Bursts,
    /// 4 KiB random writes
    Random,
    /// Reads and writes with favourites
    Mixed,
    /// 4 KiB writes, each flushed
    Synced,
    /// Nothing
    Idle,
}

impl Arguments {
    /// Measures and reports; whether every bar was met.
    ///
    /// # Errors
    /// If no guest can be booted, or it fails.
    pub fn run(&self) -> anyhow::Result<bool> {
        if !(self.scale > 0.0 && self.scale <= 4.0) {
            bail!("--scale is {}: it is above 0 and at most 4", self.scale);
        }
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make {}", self.out.display()))?;
        let kept = self.out.join("samples.jsonl");
        if !self.again {
            fs::write(&kept, self.measure()?)?;
        }
        let samples = read(&fs::read_to_string(&kept).with_context(|| format!("cannot read {}", kept.display()))?)?;
        self.report(&samples)
    }

    fn measure(&self) -> anyhow::Result<String> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().context("no guest can be booted here")?;
        let results = tempfile::tempdir().context("cannot make a directory for the results")?;
        // The guest's daemon rents its caching volumes from the host, which plugs them in.
        let qmp = results.path().join("qmp.socket");
        let volumes = lab.directory().context("cannot make a directory for volumes")?;
        let service = Provisioning::start(
            &qmp,
            volumes.path(),
            &results.path().join("token"),
            Bandwidth::from_mib_s(FAST_MIB_S),
        )?;
        let order = self.order(service.url.clone())?;
        fs::write(results.path().join("order.json"), serde_json::to_vec_pretty(&order)?)?;
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let words = [program.to_string_lossy().as_ref(), "inside-peers", ORDER, SAMPLES].map(str::to_owned);
        let plan = Plan {
            memory: Bytes::from_gib(2),
            results: Some(results.path().to_owned()),
            qmp: Some(qmp),
            echo: true,
            timeout: Duration::from_secs(24 * 3600),
            disks: self.disks(),
            ..Plan::new("peers", quoted(&words))
        };
        let outcome = plan.boot(&lab, &interrupt)?.wait(&interrupt);
        // What was measured before a failure or Ctrl-C is kept: hours may be in it.
        let samples = fs::read_to_string(results.path().join("samples.jsonl")).unwrap_or_default();
        fs::write(self.out.join("samples.jsonl"), &samples)?;
        let outcome = outcome?;
        if !outcome.passed() {
            bail!("the guest failed: {}", outcome.describe());
        }
        Ok(samples)
    }

    fn order(&self, service: String) -> anyhow::Result<Order> {
        let surgetank = match &self.surgetank {
            Some(path) => fs::canonicalize(path).with_context(|| format!("there is no {}", path.display()))?,
            None => beside("release/surgetank")?,
        };
        let peers = if self.peers.is_empty() { Kind::ALL.to_vec() } else { self.peers.clone() };
        Ok(Order {
            surgetank,
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
        let wanted = |group| self.loads.is_empty() || self.loads.contains(&group);
        let mut loads = Vec::new();
        if wanted(Group::Bursts) {
            for size in self.sizes.iter().map(|gib| gib * 1024) {
                for half in 1..=3 {
                    let (size_mib, cache_mib) = (self.scaled(size), self.scaled(size * half / 2));
                    loads.push(Load { shape: Shape::Burst, size_mib, time_s: 0, cache_mib });
                }
            }
        }
        let cache_mib = self.scaled(1024);
        let (size_mib, time_s) = (cache_mib / 2, ((20.0 * self.scale) as u64).clamp(5, 60));
        for (group, shape) in [
            (Group::Random, Shape::RandomWrites),
            (Group::Mixed, Shape::Mixed),
            (Group::Synced, Shape::SyncedWrites),
            (Group::Idle, Shape::Idle),
        ] {
            if wanted(group) {
                loads.push(Load { shape, size_mib, time_s, cache_mib });
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
            disks.push(Disk::new(&name, Bytes::from_mib(size)).sharing("fast"));
        }
        disks
    }

    fn report(&self, samples: &[Sample]) -> anyhow::Result<bool> {
        let rows = table::rows(samples);
        let bars = bars::judge(&rows, SLOW_MIB_S as f64, FAST_MIB_S as f64);
        let text = table::markdown(&rows, &bars, samples, self.scale);
        fs::write(self.out.join("peers.md"), &text)?;
        let document = serde_json::json!({"scale": self.scale, "rows": rows, "bars": bars});
        fs::write(self.out.join("peers.json"), serde_json::to_vec_pretty(&document)?)?;
        for (name, picture) in chart::pictures(&rows)? {
            fs::write(self.out.join(name), picture)?;
        }
        say(&format!("{text}\nwritten to {}", self.out.display()));
        Ok(bars.iter().all(|bar| bar.met != Some(false)))
    }
}

/// A file in the target directory that this program lies in.
///
/// # Errors
/// If it is not built.
pub fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("cannot tell where this program is")?;
    let target = here.ancestors().nth(2).context("this program lies in a target directory")?;
    let file = target.join(name);
    if !file.exists() {
        bail!("{} is not built: use make, which builds it", file.display());
    }
    Ok(file)
}

fn read(text: &str) -> anyhow::Result<Vec<Sample>> {
    let samples = text.lines().map(serde_json::from_str).collect::<Result<Vec<Sample>, _>>();
    samples.context("cannot read the samples")
}

/// For tests of what is made of samples.
#[cfg(test)]
fn sample(peer: Kind, load: Load, run_s: f64) -> Sample {
    use crate::inside::{Found, Measured};
    let moved_mib = load.size_mib as f64;
    let measured =
        Measured { run_s, moved_mib, written_mib: moved_mib, iops: 1000.0 / run_s, write_us: run_s, busy_s: 1.0 };
    let found = Found {
        export: "kernel".to_owned(),
        measured,
        dirty_mib: moved_mib,
        drain_s: moved_mib / 33.0,
        ..Found::default()
    };
    Sample { peer, load, round: 0, outcome: Ok(found) }
}
