//! The bars that surgetank must clear, each a ratio of two things measured in the same guest.

use super::table::{Row, loads, of_load};
use crate::bar::{Bar, Limit};
use crate::inside::{Found, Load, PeerKind, Shape};

/// Judges every bar that the rows allow; `slow` and `fast` are what the disks are throttled to, in MiB/s.
pub fn judge(rows: &[Row], slow: f64, fast: f64) -> Vec<Bar> {
    let mut bars = Vec::new();
    for load in loads(rows) {
        let rows = Rows(of_load(rows, load));
        match load.shape {
            Shape::Burst if load.busy => bars.extend(rows.burst_beside_work(&load)),
            Shape::Burst if load.cache_mib < load.size_mib => bars.extend(rows.half_cache(&load, slow, fast)),
            Shape::Burst => bars.extend(rows.burst(&load, slow, fast)),
            Shape::RandomWrites => bars.extend(rows.requests("4 KiB random writes", &load)),
            Shape::SyncedWrites => bars.extend(rows.synced_writes()),
            Shape::Idle => bars.extend(rows.idle()),
            Shape::Mixed => bars.extend(rows.requests("reads and writes with a skew", &load)),
        }
    }
    bars
}

/// After the name of a load.
const BESIDE_WORK: &str = ", beside busy processors";

fn run_s(found: &Found) -> f64 {
    found.measured.run_s
}

/// The rows of one load.
struct Rows<'a>(Vec<&'a Row>);

impl Rows<'_> {
    fn of(&self, kind: PeerKind) -> Option<&Row> {
        self.0.iter().copied().find(|row| row.peer == kind)
    }

    /// Ours beside another.
    fn beside(&self, name: &str, unit: &'static str, pick: fn(&Found) -> f64, other: &Row) -> Option<Bar> {
        let ours = self.of(PeerKind::Adaptive)?;
        let bar = Bar::new(name, unit, pick(&ours.found), (pick(&other.found), other.peer.name()));
        Some(bar.spread(&ours.turns(other, pick)))
    }

    /// The kernel cache that does best, by something of which less is better.
    fn best(&self, pick: impl Fn(&Found) -> f64) -> Option<&Row> {
        let caches = self.0.iter().copied().filter(|row| row.peer.is_kernel_cache());
        caches.min_by(|a, b| pick(&a.found).total_cmp(&pick(&b.found)))
    }

    fn absorbed(&self, load: &Load, other: &Row) -> Option<Bar> {
        let Load { size_mib, cache_mib, busy, .. } = load;
        let beside = if *busy { BESIDE_WORK } else { "" };
        let name = format!("burst of {size_mib} MiB, cache of {cache_mib} MiB{beside}: absorbed");
        self.beside(&name, "s", run_s, other)
    }

    fn burst_beside_work(&self, load: &Load) -> Option<Bar> {
        Some(self.absorbed(load, self.best(run_s)?)?.must_be(Limit::AtMost(0.9)))
    }

    fn burst(&self, load: &Load, slow: f64, fast: f64) -> Vec<Bar> {
        let Some(ours) = self.of(PeerKind::Adaptive) else { return Vec::new() };
        let size = load.size_mib as f64;
        let what = format!("burst of {size} MiB, cache of {} MiB", load.cache_mib);
        let others = [self.best(run_s), self.of(PeerKind::RawFast)];
        let absorbed = others.into_iter().flatten().filter_map(|other| self.absorbed(load, other));
        let mut bars: Vec<Bar> = absorbed.map(|bar| bar.must_be(Limit::AtMost(0.85))).collect();
        let mut add = |name: &str, unit, ours, reference: (f64, &str), limit| {
            bars.push(Bar::new(format!("{what}: {name}"), unit, ours, reference).must_be(limit));
        };
        add("rate", "MiB/s", ours.mib_s(), (slow + fast, "Bb + Bc"), Limit::AtLeast(0.95));
        for kind in [PeerKind::Paper, PeerKind::Adaptive] {
            if let Some(rate) = self.of(kind).and_then(Row::drain_mib_s) {
                let name = format!("drain, {}", kind.name());
                add(&name, "MiB/s", rate, (slow, "Bb"), Limit::AtLeast(0.97));
            }
        }
        add("absorbed and drained", "s", ours.total_s(), (size / slow, "S ÷ Bb"), Limit::AtMost(1.05));
        let bcache = self.of(PeerKind::Bcache);
        let processor = bcache
            .and_then(|bcache| self.beside(&format!("{what}: processor time"), "s/GiB", Found::busy_s_per_gib, bcache));
        bars.extend(processor.map(|bar| bar.must_be(Limit::AtMost(1.5))));
        bars
    }

    /// The fluid bound of a cache smaller than the burst: it fills while both volumes write, then the slow one is left.
    fn half_cache(&self, load: &Load, slow: f64, fast: f64) -> Option<Bar> {
        let ours = self.of(PeerKind::Adaptive)?;
        let (size, cache) = (load.size_mib as f64, load.cache_mib as f64);
        let bound = ((size - cache) / slow).max(size / (slow + fast));
        let name = format!("burst of {size} MiB, cache of {cache} MiB: absorbed");
        let reference = (bound, "max((S − M) ÷ Bb, S ÷ (Bb + Bc))".to_owned());
        Some(Bar::new(name, "s", ours.found.measured.run_s, reference).must_be(Limit::AtMost(1.02)))
    }

    /// Against the kernel's cache that does most requests.
    fn requests(&self, name: &str, load: &Load) -> Option<Bar> {
        let (beside, least) = if load.busy { (BESIDE_WORK, 0.9) } else { ("", 1.0) };
        let best = self.best(|found| -found.measured.iops)?;
        let bar = self.beside(&format!("{name}{beside}"), "IOPS", |found| found.measured.iops, best)?;
        Some(bar.must_be(Limit::AtLeast(least)))
    }

    fn synced_writes(&self) -> Option<Bar> {
        let bar =
            self.beside("4 KiB write and fsync", "µs", |found| found.measured.write_us, self.of(PeerKind::Bcache)?);
        Some(bar?.must_be(Limit::AtMost(1.0)))
    }

    fn idle(&self) -> Option<Bar> {
        let found = &self.of(PeerKind::Adaptive)?.found;
        let share = 100.0 * found.daemon_s / found.measured.run_s;
        let reference = (0.5, "0.5 % of a processor");
        Some(Bar::new("idle daemon", "%", share, reference).must_be(Limit::AtMost(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{sample, table};
    use super::*;

    #[test]
    fn bars_are_judged_on_the_best_cache_of_the_kernel() {
        let load = Load { shape: Shape::Burst, size_mib: 1024, time_s: 0, cache_mib: 1024, busy: false };
        let samples = [
            sample(PeerKind::Bcache, load, 9.0),
            sample(PeerKind::DmWritecache, load, 8.0),
            sample(PeerKind::RawFast, load, 7.0),
            sample(PeerKind::Adaptive, load, 6.4),
        ];
        let bars = judge(&table::rows(&samples), 33.0, 128.0);
        let find = |name: &str| bars.iter().find(|bar| bar.reference_name == name).unwrap();
        assert_eq!(find("dm-writecache").met, Some(true));
        assert_eq!(find("raw fast").met, Some(false));
        assert_eq!(find("Bb + Bc").met, Some(true));
        assert_eq!(find("S ÷ Bb").met, Some(false));
    }

    #[test]
    fn a_half_cache_is_held_to_the_fluid_bound() {
        let load = Load { shape: Shape::Burst, size_mib: 1024, time_s: 0, cache_mib: 512, busy: false };
        let bound = 512.0 / 33.0;
        for (run_s, met) in [(bound * 1.019, true), (bound * 1.03, false)] {
            let bars = judge(&table::rows(&[sample(PeerKind::Adaptive, load, run_s)]), 33.0, 128.0);
            assert_eq!((bars.len(), bars[0].met), (1, Some(met)));
        }
    }
}
