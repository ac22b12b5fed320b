//! What the outages found.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use surgetank_report::Table;

use super::plan::{Failure, Outage, OutageMoment, Target};
use crate::flags::name;
use crate::inside::outages::Judged;

/// An outage that was.
#[derive(Clone, Debug, Serialize)]
pub struct Struck {
    /// Which, from 0.
    pub index: usize,
    /// Which guest it struck, from 0.
    pub life: usize,
    /// Its controller's policy.
    pub policy: &'static str,
    /// How.
    pub kind: Failure,
    pub target: Target,
    /// Where in a boost.
    pub moment: OutageMoment,
    /// From its beginning to its end.
    pub lasted_s: f64,
    /// What was on the caching volume alone when it began.
    pub dirty_mib: f64,
    /// What the guest found afterwards.
    #[serde(flatten)]
    pub judged: Judged,
}

impl Struck {
    /// Whether requests may have failed: errors of the backing volume reach whoever needs it.
    fn may_fail_requests(&self) -> bool {
        self.kind == Failure::Errors && self.target.has_backing()
    }

    /// Whether everything that was synced was there, in time, and something was.
    pub fn is_whole(&self) -> bool {
        let Judged { fault_count, lost_bytes, verified_mib, .. } = self.judged;
        fault_count == 0 && lost_bytes == 0 && verified_mib > 0.0
    }

    /// Requests that failed and had no reason to.
    pub fn wrongly_failed(&self) -> u64 {
        if self.may_fail_requests() { 0 } else { self.judged.failed_requests }
    }

    /// One line, and what was wrong.
    pub fn describe(&self) -> String {
        let Self { index, life, policy, kind, target, moment, lasted_s, dirty_mib, judged } = self;
        let Judged { recovered_s, drained_s, failed_requests, remounts, verified_mib, fault_count, .. } = judged;
        let (kind, target, moment) = (name(*kind), name(*target), name(*moment));
        let mut text = format!(
            "outage {index} (guest {life}, {policy}): {target} {kind} in {moment} for {lasted_s:.1} s, {dirty_mib:.1} MiB dirty; \
             recovered in {recovered_s:.1} s, drained in {drained_s:.1} s, {failed_requests} requests failed, {remounts} remounts, \
             {verified_mib:.0} MiB compared, {fault_count} faults"
        );
        for line in judged.faults.iter().chain(judged.failures.iter().filter(|_| self.wrongly_failed() > 0)) {
            let _ = write!(text, "\n  {line}");
        }
        text
    }
}

/// How a guest's life ended.
#[derive(Clone, Debug, Serialize)]
pub struct End {
    /// Which guest, from 0.
    pub life: usize,
    /// What it found on the backing volume alone.
    #[serde(flatten)]
    pub judged: Judged,
    /// What the backing volume had been written and nobody had flushed.
    pub forgotten_bytes: u64,
    /// What the provider still had.
    pub left: Vec<String>,
}

/// A campaign.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What chance followed from.
    pub seed: u64,
    /// How many outages there were to be.
    pub planned: usize,
    /// Those that struck nothing: what they were of had been deleted, or nobody met the errors. They were planned again.
    pub missed: u32,
    /// Guests that died of their emulator; what they had not been struck by struck others.
    pub emulator_failures: u32,
    /// Those that were.
    pub outages: Vec<Struck>,
    /// Ends of guests that had lost nothing.
    pub ends: Vec<End>,
}

impl Report {
    /// Whether all outages were, and nothing was lost, failed without a reason, or was left behind.
    pub fn is_good(&self) -> bool {
        let end_is_good = |end: &End| {
            let Judged { fault_count, lost_bytes, verified_mib, failed_requests, .. } = end.judged;
            fault_count == 0 && lost_bytes == 0 && failed_requests == 0 && verified_mib > 0.0 && end.left.is_empty()
        };
        self.outages.len() == self.planned
            && self.outages.iter().all(|outage| outage.is_whole() && outage.wrongly_failed() == 0)
            && !self.ends.is_empty()
            && self.ends.iter().all(end_is_good)
    }

    /// A table of kinds.
    pub fn markdown(&self) -> String {
        let mut kinds: BTreeMap<(Target, Failure), Vec<&Struck>> = BTreeMap::new();
        for outage in &self.outages {
            kinds.entry((outage.target, outage.kind)).or_default().push(outage);
        }
        let mut table = Table::of(
            "volume | failure | outages | in absorb, drain | seconds | dirty when it struck, MiB | \
             recovered in at most | requests failed | remounts | compared | outages with loss",
        )
        .words(2);
        for ((target, kind), outages) in &kinds {
            table.row(row([name(*target), name(*kind)], outages));
        }
        if !self.outages.is_empty() {
            table.row(row(["all", ""].map(str::to_owned), &self.outages.iter().collect::<Vec<_>>()));
        }
        let mut text = format!(
            "Seed {}; {} of {} outages, {} more struck nothing; {} guests died of their emulator.\n\n{}",
            self.seed,
            self.outages.len(),
            self.planned,
            self.missed,
            self.emulator_failures,
            table.markdown()
        );
        for end in &self.ends {
            let _ = write!(
                text,
                "\nGuest {}: backing volume alone, without {} bytes that were not flushed, {:.0} MiB compared, {} faults; {} volumes left at the provider.",
                end.life,
                end.forgotten_bytes,
                end.judged.verified_mib,
                end.judged.fault_count,
                end.left.len()
            );
            for line in end.judged.faults.iter().chain(&end.judged.failures).chain(&end.left) {
                let _ = write!(text, "\n  {line}");
            }
        }
        text.push('\n');
        text
    }
}

/// Of at least one outage.
fn row([target, kind]: [String; 2], outages: &[&Struck]) -> [String; 11] {
    let most = |pick: fn(&Struck) -> f64| outages.iter().map(|outage| pick(outage)).fold(0.0, f64::max);
    let least = |pick: fn(&Struck) -> f64| outages.iter().map(|outage| pick(outage)).fold(f64::MAX, f64::min);
    let sum = |pick: fn(&Struck) -> f64| outages.iter().map(|outage| pick(outage)).sum::<f64>();
    let drains = outages.iter().filter(|outage| outage.moment == OutageMoment::Drain).count();
    let lasted = |outage: &Struck| outage.lasted_s;
    let dirty = |outage: &Struck| outage.dirty_mib;
    [
        target,
        kind,
        outages.len().to_string(),
        format!("{}, {drains}", outages.len() - drains),
        format!("{:.1} to {:.1}, {:.0} together", least(lasted), most(lasted), sum(lasted)),
        format!("{:.0} on average, {:.0} at most", sum(dirty) / outages.len() as f64, most(dirty)),
        format!("{:.1} s", most(|outage| outage.judged.recovered_s)),
        sum(|outage| outage.judged.failed_requests as f64).to_string(),
        sum(|outage| f64::from(outage.judged.remounts)).to_string(),
        format!("{:.1} GiB", sum(|outage| outage.judged.verified_mib) / 1024.0),
        outages.iter().filter(|outage| !outage.is_whole()).count().to_string(),
    ]
}

/// Not judged yet.
pub fn struck(index: usize, life: usize, policy: &'static str, outage: &Outage) -> Struck {
    let Outage { kind, target, moment, .. } = *outage;
    let judged = Judged::default();
    Struck { index, life, policy, kind, target, moment, lasted_s: 0.0, dirty_mib: 0.0, judged }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn compared() -> Judged {
        Judged { verified_mib: 30.0, ..Judged::default() }
    }

    fn one(kind: Failure, target: Target) -> Struck {
        let (length, delay) = (Duration::from_secs(3), Duration::ZERO);
        let outage = Outage { kind, target, moment: OutageMoment::Absorb, length, delay, keep: false };
        Struck { lasted_s: 3.0, dirty_mib: 20.0, judged: compared(), ..struck(0, 0, "paper", &outage) }
    }

    fn good() -> Report {
        let outages = vec![one(Failure::Errors, Target::Caching), one(Failure::Errors, Target::Both)];
        let ends = vec![End { life: 0, judged: compared(), forgotten_bytes: 0, left: Vec::new() }];
        Report { planned: 2, outages, ends, ..Report::default() }
    }

    #[test]
    fn a_campaign_is_good_only_if_all_of_it_is() {
        assert!(good().is_good());
        let spoilt: &[fn(&mut Report)] = &[
            |report| drop(report.outages.pop()),
            |report| report.outages[0].judged.fault_count = 1,
            |report| report.outages[1].judged.lost_bytes = 1,
            |report| report.outages[0].judged.failed_requests = 1,
            |report| report.outages[0].judged.verified_mib = 0.0,
            |report| report.ends[0].judged.verified_mib = 0.0,
            |report| report.ends[0].judged.lost_bytes = 1,
            |report| report.ends[0].judged.failed_requests = 1,
            |report| report.ends.clear(),
            |report| report.ends[0].judged.fault_count = 1,
            |report| report.ends[0].left.push("vol-1".to_owned()),
        ];
        for spoil in spoilt {
            let mut report = good();
            spoil(&mut report);
            assert!(!report.is_good(), "{report:?}");
        }
        // Errors of the backing volume are its users', too.
        let mut report = good();
        report.outages[1].judged.failed_requests = 9;
        assert!(report.is_good());
    }

    #[test]
    fn the_table_has_a_row_for_every_kind() {
        let table = good().markdown();
        assert!(
            table.contains("| caching | errors | 1 | 1, 0 | 3.0 to 3.0, 3 together | 20 on average, 20 at most |"),
            "{table}"
        );
        assert!(table.contains("| both | errors | 1 |") && table.contains("| all |  | 2 |"), "{table}");
    }
}
