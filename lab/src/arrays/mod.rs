//! An array of small volumes beside the paper's own way, in one guest: mdadm's RAID-0 over pairs that get a second half and lose the
//! first to replace a member; and a read cache beside lvmcache's.

mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use surgetank_model::{Bandwidth, Bytes, Iops};
use surgetank_report::output::print_json;

use crate::bar::{self, all_met};
use crate::experiment::Experiment;
use crate::flags::absolute;
use crate::inside::GuestJob;
use crate::inside::arrays::{ArraysOrder, ArraysSample, CacheOrder};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::Disk;
use crate::product::Product;
use crate::samples;
use crate::service::Limits;

const MEMBERS: u32 = 8;
/// Low, so that the volumes are the limit and not the emulated processors.
const MEMBER_MIB_S: u64 = 8;
const MEMBER_IOPS: u64 = 100;
/// A quarter of what a member moves.
const COPY_KIB_S: u64 = MEMBER_MIB_S * 1024 / 4;
/// The volume below the read caches: its requests are what is scarce.
const SLOW: (Bytes, u64, u64) = (Bytes::from_mib(512), 4, 50);
/// An eighth of that, over so many volumes.
const CACHE: (u32, u64) = (4, 16);
/// What a member has at most beside data: the superblock and the bitmap, or those of two layers of md.
const OWN_MIB: u64 = 4;

/// Flags of the bench.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Short loads: about three minutes instead of ten
    #[arg(long)]
    quick: bool,
    /// How often everything but the fill is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Print the bars and the samples as JSON
    #[arg(long)]
    json: bool,
    /// Where the table and the samples go
    #[arg(long, default_value = "bench-out/arrays", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
    /// Make the table again from the samples in --out
    #[arg(long)]
    again: bool,
}

impl Arguments {
    /// Measures and reports; whether every bar was met.
    pub fn run(&self) -> anyhow::Result<bool> {
        if !self.again {
            let limits = Limits { bandwidth: Bandwidth::from_mib_s(MEMBER_MIB_S), iops: Some(Iops::new(MEMBER_IOPS)) };
            let experiment = Experiment {
                fast: limits,
                // The array's members, the one that comes, and the read cache's.
                ports: MEMBERS + 1 + CACHE.0,
                timeout: Duration::from_secs(u64::from(self.rounds) * 1200),
                ..Experiment::new(GuestJob::Arrays, self.disks(), limits.bandwidth)
            };
            experiment.run(&Interrupt::install()?, &self.out, |service| self.order(service))?;
        }
        let samples = samples::read::<ArraysSample>(&self.out)?;
        let bars = report::judge(&samples);
        let text = bar::table(&bars).markdown() + "\n" + &report::table(&samples).markdown();
        let document = serde_json::json!({"bars": bars, "samples": samples});
        output::write(&self.out, "arrays", &text, &document)?;
        if self.json {
            print_json(&document).map_err(|failure| anyhow::anyhow!("{failure}"))?;
        }
        Ok(!bars.is_empty() && all_met(&bars))
    }

    /// Seconds of a load while a member is copied, of one of the stripe's, and of the read caches' before it counts and then.
    fn times_s(&self) -> [u64; 4] {
        if self.quick { [3, 2, 6, 4] } else { [16, 5, 40, 20] }
    }

    /// A member is copied for longer than a load takes to start and to end.
    fn member_mib(&self) -> u64 {
        OWN_MIB + (self.times_s()[0] + 6) * COPY_KIB_S / 1024
    }

    fn order(&self, service: String) -> anyhow::Result<ArraysOrder> {
        let [copy_s, stripe_s, warm_s, time_s] = self.times_s();
        let (members, member_mib) = CACHE;
        Ok(ArraysOrder {
            surgetank: self.product.binary()?,
            service,
            members: MEMBERS,
            member_mib: self.member_mib(),
            used_mib: self.member_mib() - OWN_MIB,
            member_mib_s: MEMBER_MIB_S,
            member_iops: MEMBER_IOPS,
            copy_kib_s: COPY_KIB_S,
            rounds: self.rounds,
            turns: if self.quick { 1 } else { 3 },
            stripe_s,
            copy_s,
            cache: CacheOrder { members, member_mib, slow_mib_s: SLOW.1, warm_s, time_s },
        })
    }

    /// mdadm's members and the spare, and the slow volume. Ours are plugged in, with the same limits.
    fn disks(&self) -> Vec<Disk> {
        let limited = |name: &str, size, mib_s, iops| Disk {
            iops: Some(Iops::new(iops)),
            threads: true,
            ..Disk::new(name, size).throttled(Bandwidth::from_mib_s(mib_s))
        };
        let names = (0..MEMBERS).map(|slot| format!("member-{slot}")).chain(["spare".to_owned()]);
        let size = Bytes::from_mib(self.member_mib());
        let members = names.map(|name| limited(&name, size, MEMBER_MIB_S, MEMBER_IOPS));
        members.chain([limited("slow", SLOW.0, SLOW.1, SLOW.2)]).collect()
    }
}
