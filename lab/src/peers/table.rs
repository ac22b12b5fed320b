//! Medians of the samples, and the tables.

use std::fmt::Write;

use clap::ValueEnum;
use serde::Serialize;
use surgetank_report::Table;
use surgetank_report::number::digits;

use crate::bar::{self, Bar, median};
use crate::fio::Measured;
use crate::inside::{Found, Load, PeerKind, PeerSample, Shape};

/// The medians of one peer under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub load: Load,
    pub peer: PeerKind,
    /// Of how many samples.
    pub samples: usize,
    /// Medians, each field by itself.
    pub found: Found,
    /// Each round by itself.
    #[serde(skip)]
    pub rounds: Vec<(u32, Found)>,
}

impl Row {
    /// This one's and another's measurement in each round that has both.
    pub fn turns(&self, other: &Self, pick: fn(&Found) -> f64) -> Vec<[f64; 2]> {
        let same = |round| other.rounds.iter().find(move |(other, _)| *other == round);
        let turns = self.rounds.iter().filter_map(|(round, found)| Some([pick(found), pick(&same(*round)?.1)]));
        turns.collect()
    }

    /// MiB/s of what was moved by the load itself.
    pub fn mib_s(&self) -> f64 {
        self.found.measured.mib_s()
    }

    /// Until everything was on the slow disk.
    pub fn total_s(&self) -> f64 {
        self.found.measured.run_s + self.found.drain_s
    }

    /// MiB/s of the drain; `None` if there was too little to measure.
    pub fn drain_mib_s(&self) -> Option<f64> {
        (self.found.drain_s > 0.5).then_some(self.found.dirty_mib / self.found.drain_s)
    }
}

/// One row for each load and peer, in the order in which they were measured first.
pub fn rows(samples: &[PeerSample]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for sample in samples {
        if rows.iter().any(|row| (row.load, row.peer) == (sample.load, sample.peer)) {
            continue;
        }
        let same = samples.iter().filter(|other| (other.load, other.peer) == (sample.load, sample.peer));
        let rounds: Vec<(u32, Found)> =
            same.filter_map(|sample| Some((sample.round, sample.outcome.as_ref().ok()?.clone()))).collect();
        if !rounds.is_empty() {
            let found: Vec<&Found> = rounds.iter().map(|(_, found)| found).collect();
            let (samples, found) = (rounds.len(), medians(&found));
            rows.push(Row { load: sample.load, peer: sample.peer, samples, found, rounds });
        }
    }
    rows
}

fn medians(found: &[&Found]) -> Found {
    let of = |pick: fn(&Found) -> f64| median(found.iter().map(|found| pick(found)).collect());
    let mut medians = found[0].clone();
    medians.attach_s = of(|found| found.attach_s);
    medians.dirty_mib = of(|found| found.dirty_mib);
    medians.drain_s = of(|found| found.drain_s);
    medians.detach_s = of(|found| found.detach_s);
    medians.busy_s = of(|found| found.busy_s);
    medians.daemon_s = of(|found| found.daemon_s);
    medians.memory_mib = of(|found| found.memory_mib);
    medians.daemon_mib = of(|found| found.daemon_mib);
    medians.measured.run_s = of(|found| found.measured.run_s);
    medians.measured.moved_mib = of(|found| found.measured.moved_mib);
    medians.measured.written_mib = of(|found| found.measured.written_mib);
    medians.measured.iops = of(|found| found.measured.iops);
    medians.measured.write_us = of(|found| found.measured.write_us);
    medians
}

/// Loads in the order in which they were measured.
pub fn loads(rows: &[Row]) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for row in rows {
        if !loads.contains(&row.load) {
            loads.push(row.load);
        }
    }
    loads
}

/// Rows of one load, in the order of [`PeerKind`]. Disks by themselves are measured once for each size of a load.
pub fn of_load(rows: &[Row], load: Load) -> Vec<&Row> {
    let same = |row: &Row| row.load.is_same_without_cache(&load);
    let fits = |row: &Row| row.load == load || (row.peer.is_raw() && same(row));
    let find = |kind| rows.iter().find(|row| fits(row) && row.peer == kind);
    PeerKind::value_variants().iter().copied().filter_map(find).collect()
}

/// What a load is called.
pub fn title(load: &Load) -> String {
    let Load { size_mib, cache_mib, time_s, .. } = load;
    let title = match load.shape {
        Shape::Burst => format!("Burst of {size_mib} MiB, cache of {cache_mib} MiB"),
        Shape::RandomWrites => {
            format!("4 KiB random writes over {size_mib} MiB for {time_s} s, depth 32, cache of {cache_mib} MiB")
        }
        Shape::Mixed => format!(
            "16 KiB, 70 % reads, skewed (zipf 1.1) over {size_mib} MiB for {time_s} s, depth 16, cache of {cache_mib} MiB"
        ),
        Shape::SyncedWrites => {
            format!("4 KiB random writes, each followed by fsync, for {time_s} s, cache of {cache_mib} MiB")
        }
        Shape::Idle => format!("Nothing for {time_s} s"),
    };
    title + if load.busy { ", beside a computing thread for each processor" } else { "" }
}

/// Everything for people.
pub fn markdown(rows: &[Row], bars: &[Bar], samples: &[PeerSample]) -> String {
    let mut text = String::new();
    let rounds = samples.iter().map(|sample| sample.round + 1).max().unwrap_or(0);
    let _ = writeln!(text, "Medians of {rounds}.\n");
    text.push_str(&bar::table(bars).markdown());
    for load in loads(rows) {
        let _ = writeln!(text, "\n**{}**\n", title(&load));
        text.push_str(&load_table(&of_load(rows, load)));
    }
    for sample in samples {
        if let Err(error) = &sample.outcome {
            let _ = writeln!(
                text,
                "\nFailed: {}, {}, round {}: {error}",
                sample.peer.name(),
                title(&sample.load),
                sample.round
            );
        }
    }
    text
}

fn load_table(rows: &[&Row]) -> String {
    let Some(shape) = rows.first().map(|row| row.load.shape) else { return String::new() };
    let header = match shape {
        Shape::Burst => {
            " | absorbed | rounds | MiB/s | drain | MiB/s | both | attach | detach | CPU s/GiB | memory | the daemon's highest"
        }
        Shape::Idle => " | CPU | of it the daemon's",
        _ => " | IOPS | rounds | a write takes | drain | CPU s/GiB | memory | the daemon's highest",
    };
    Table::of(header).with(rows.iter().map(|row| load_row(shape, row))).markdown()
}

fn load_row(shape: Shape, row: &Row) -> Vec<String> {
    let Found { measured, drain_s, attach_s, detach_s, memory_mib, daemon_mib, export, .. } = &row.found;
    let name = match export.as_str() {
        "kernel" => row.peer.name().to_owned(),
        export => format!("{} ({export})", row.peer.name()),
    };
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let share = |busy_s: f64| format!("{:.2} %", 100.0 * busy_s / measured.run_s);
    let processor = if row.load.busy { String::new() } else { format!("{:.1}", row.found.busy_s_per_gib()) };
    let memory = format!("{memory_mib:.0} MiB");
    let rounds = |unit: &str, pick: fn(&Measured) -> f64| {
        let all = || row.rounds.iter().map(|(_, found)| pick(&found.measured));
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        format!("{} to {}{unit}", digits(least), digits(most))
    };
    let daemon = if *daemon_mib > 0.0 { format!("{daemon_mib:.1} MiB") } else { String::new() };
    match shape {
        Shape::Burst => vec![
            name,
            seconds(measured.run_s),
            rounds(" s", |measured| measured.run_s),
            format!("{:.1}", row.mib_s()),
            seconds(*drain_s),
            row.drain_mib_s().map_or(String::new(), |rate| format!("{rate:.1}")),
            seconds(row.total_s()),
            seconds(*attach_s),
            seconds(*detach_s),
            processor,
            memory,
            daemon,
        ],
        Shape::Idle => vec![name, share(row.found.busy_s), share(row.found.daemon_s)],
        _ => vec![
            name,
            format!("{:.0}", measured.iops),
            rounds("", |measured| measured.iops),
            format!("{:.0} µs", measured.write_us),
            seconds(*drain_s),
            processor,
            memory,
            daemon,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    const LOAD: Load = Load { shape: Shape::Burst, size_mib: 256, time_s: 0, cache_mib: 128, busy: false };

    #[test]
    fn rows_are_medians_and_failures_are_told() {
        let mut samples: Vec<PeerSample> = [3.0, 1.0, 2.0].map(|run_s| sample(PeerKind::Bcache, LOAD, run_s)).to_vec();
        samples.push(PeerSample { outcome: Err("no such luck".to_owned()), ..sample(PeerKind::Bcache, LOAD, 9.0) });
        let rows = rows(&samples);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].samples, rows[0].found.measured.run_s), (3, 2.0));
        assert_eq!(rows[0].mib_s(), 128.0);
        let text = markdown(&rows, &[], &samples);
        assert!(
            text.contains("| bcache | 2.00 s | 1.00 to 3.00 s | 128.0 |") && text.contains("no such luck"),
            "{text}"
        );
    }
}
