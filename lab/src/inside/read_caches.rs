//! A read cache of ours and dm-cache, as lvmcache sets it up, before the same slow volume under the same skewed reads.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::arrays::{ArraysOrder, ArraysSample, CacheOrder, Side};
use super::mapper::ReadCache;
use crate::fio::{self, Measured};
use crate::machine::{disk, run};
use crate::output::say;
use crate::samples;
use crate::surgetank::{Places, Surgetank};

/// Where the daemon's own files are.
const FILES: &str = "/run/lab-read-cache";

/// One after the other, each from an empty cache. The kernel's has these volumes; ours rents volumes with the same limits.
pub fn all(order: &ArraysOrder, volumes: &[PathBuf], limits: &str) -> anyhow::Result<()> {
    let CacheOrder { members, member_mib, slow_mib_s, .. } = order.cache;
    let (slow, volumes) = (disk("slow")?, &volumes[..members as usize]);
    let lines = format!("member_size = \"{member_mib} MiB\"\n{limits}");
    // The array's volumes are another daemon's.
    let places = Places { files: FILES.into(), ..Places::plugged(order.service.clone()) };
    for turn in 0..order.rounds {
        for at in 0..2 {
            let sample = if (at + turn) % 2 == 0 {
                let cache = ReadCache::new(&slow, volumes, member_mib)?;
                measure(order, Side::Kernel, turn, cache.node(), ReadCache::reads)?
            } else {
                let slow = (&*slow, slow_mib_s);
                let cache = Surgetank::over_read_cache(&order.surgetank, slow, (members, &lines), &places)?;
                let sample = measure(order, Side::Surgetank, turn, &cache.device()?, || cache.cached_reads())?;
                cache.stop()?;
                sample
            };
            samples::add(&sample)?;
        }
    }
    Ok(())
}

/// `reads` answers what came from the cache, and what did not.
fn measure(
    order: &ArraysOrder,
    side: Side,
    turn: u32,
    device: &Path,
    reads: impl Fn() -> anyhow::Result<[f64; 2]> + Sync,
) -> anyhow::Result<ArraysSample> {
    let CacheOrder { warm_s, time_s, .. } = order.cache;
    let (measured, [before, after]) = thread::scope(|scope| -> anyhow::Result<(Measured, [[f64; 2]; 2])> {
        let before = scope.spawn(|| {
            thread::sleep(Duration::from_secs(warm_s));
            reads()
        });
        let shape = "--rw=randread --bs=4k --iodepth=16 --random_distribution=zipf:1.2 --direct=1 --ioengine=libaio --time_based";
        let mut words: Vec<String> = fio::words(shape).map(str::to_owned).collect();
        words.push(format!("--ramp_time={warm_s}"));
        words.push(format!("--runtime={time_s}"));
        words.push(format!("--filename={}", device.display()));
        let said = run("fio", &words.iter().map(String::as_str).collect::<Vec<_>>());
        let after = reads()?;
        let before = before.join().map_err(|_| anyhow::anyhow!("counting reads has failed"))??;
        Ok((fio::parse(&said?)?, [before, after]))
    })?;
    let [hits, missed] = [0, 1].map(|at| after[at] - before[at]);
    let hit_ratio = hits / (hits + missed);
    say(&format!(
        "lab: {}, a read cache after {warm_s} s: {:.0} IOPS, {:.1} % hits",
        side.read_cache(),
        measured.iops,
        hit_ratio * 100.0
    ));
    Ok(ArraysSample::Cache { side, turn, measured, hit_ratio })
}
