//! The tables, beside the papers'.

use std::fmt::Write;

use serde::Serialize;
use surgetank_report::Table;

use crate::inside::modes::{Mode, sizes_mib};
use crate::inside::reproduce::{ApplicationPhase, Bonnie, Found, Load, Rates, Sample, Workload};

/// The papers' microbenchmark (NRK15, IV-B and Figure 2(a)), each ÷ static-fast's: write, rewrite, read.
const PAPERS_SLOW: [&str; 3] = ["0.26", "well below 1", "not told"];
const PAPERS_FIRST: [&str; 3] = ["0.78", "almost 1", "about 1"];
const PAPERS_REST: [&str; 3] = ["0.78", "almost 1", "0.75"];
/// Their LAMMPS (NRK15, Table II and Figure 4(a)).
const PAPERS_COMPLETION_S: (f64, f64, f64) = (1680.0, 1454.0, 1476.0);

/// One mode of one workload that came to its end.
pub struct Row<'a> {
    pub sample: &'a Sample,
    pub found: &'a Found,
}

fn finished(samples: &[Sample]) -> impl Iterator<Item = Row<'_>> {
    samples.iter().filter_map(|sample| Some(Row { sample, found: sample.outcome.as_ref().ok()? }))
}

/// What came to its end of one kind of workload, in the order measured.
pub fn rows(samples: &[Sample], workload: Workload) -> Vec<Row<'_>> {
    finished(samples).filter(|row| row.sample.load.workload() == workload).collect()
}

/// What a mode took and cost, for scripts.
#[derive(Serialize)]
pub struct Taken {
    workload: &'static str,
    mode: Mode,
    completion_s: f64,
    cost_agbs: f64,
}

/// Every mode that came to its end.
pub fn modes(samples: &[Sample]) -> Vec<Taken> {
    let taken = |row: Row<'_>| Taken {
        workload: row.sample.load.workload().name(),
        mode: row.sample.mode,
        completion_s: row.found.completion_s,
        cost_agbs: row.sample.agbs(row.found),
    };
    finished(samples).map(taken).collect()
}

/// All of it.
pub fn markdown(samples: &[Sample]) -> String {
    let mut text = String::from("# The papers' experiments in one guest\n");
    bonnie(&mut text, &rows(samples, Workload::Bonnie));
    melt(&mut text, &rows(samples, Workload::Lammps));
    for sample in samples {
        if let Err(error) = &sample.outcome {
            let _ = writeln!(text, "\n{} did not come to its end: {error}", sample.mode.name());
        }
    }
    text
}

fn setting(text: &mut String, row: &Row<'_>) {
    let (slow, fast) = row.sample.rates_mib_s;
    let setting = &row.sample.setting;
    let _ = writeln!(
        text,
        "Backing disk {} MiB at {slow} MiB/s, caching volumes at {fast} MiB/s, the first of {} MiB, sizes in steps of {} MiB; \
         threshold 30 %, inactivity delay {:.1} s, a look each {:.2} s.\n",
        setting.backing_mib, setting.initial_mib, setting.grain_mib, setting.inactivity_s, setting.sampling_s
    );
}

fn reference<'a, 'b>(rows: &'a [Row<'b>], mode: Mode) -> Option<&'a Row<'b>> {
    rows.iter().find(|row| row.sample.mode == mode)
}

fn bonnie(text: &mut String, rows: &[Row<'_>]) {
    let Some(first) = rows.first() else { return };
    let Load::Bonnie { bonnie: Bonnie { file_mib, memory_mib, chunk_kib }, runs, pause_s } = first.sample.load else {
        return;
    };
    let _ = writeln!(
        text,
        "\n## bonnie++\n\n{runs} runs on a file of {file_mib} MiB in {memory_mib} MiB of memory, {chunk_kib} KiB a request, at least \
         {pause_s:.1} s between two, and until nothing is rented."
    );
    setting(text, first);
    let mut table = Table::of(
        "mode | runs | write MiB/s | rewrite | read | ÷ static-fast: write | rewrite | read | \
             the papers' write | rewrite | read",
    )
    .words(2);
    let fast = reference(rows, Mode::StaticFast).and_then(|row| mean(row.found, 0..row.found.work.runs.len()));
    for row in rows {
        let all = row.found.work.runs.len();
        let (elastic, slow) = (row.sample.mode.is_elastic(), row.sample.mode == Mode::StaticSlow);
        let parts = match (elastic, slow) {
            (true, _) => vec![("first", 0..1.min(all), PAPERS_FIRST), ("rest", 1.min(all)..all, PAPERS_REST)],
            (_, true) => vec![("all", 0..all, PAPERS_SLOW)],
            _ => vec![("all", 0..all, ["1"; 3])],
        };
        for (name, range, papers) in parts {
            let Some(rates) = mean(row.found, range) else { continue };
            let measured = values(&rates).map(|value| format!("{value:.1}"));
            let of_fast = fast.as_ref().map_or([f64::NAN; 3], values);
            let ratios = values(&rates).into_iter().zip(of_fast).map(|(value, fast)| ratio(value / fast));
            let names = [row.sample.mode.name().to_owned(), name.to_owned()];
            table.row(names.into_iter().chain(measured).chain(ratios).chain(papers.map(str::to_owned)));
        }
    }
    text.push_str(&table.markdown());
    let caches = "10 GB, then 6 GB (of a first 10 GB: 1.00, then 0.60)";
    costs(text, rows, caches, None);
}

fn values(rates: &Rates) -> [f64; 3] {
    [rates.write_mib_s, rates.rewrite_mib_s, rates.read_mib_s]
}

fn mean(found: &Found, range: std::ops::Range<usize>) -> Option<Rates> {
    let runs = found.work.runs.get(range).filter(|runs| !runs.is_empty())?;
    let of = |pick: fn(&Rates) -> f64| runs.iter().map(|run| pick(&run.rates)).sum::<f64>() / runs.len() as f64;
    Some(Rates {
        write_mib_s: of(|rates| rates.write_mib_s),
        rewrite_mib_s: of(|rates| rates.rewrite_mib_s),
        read_mib_s: of(|rates| rates.read_mib_s),
    })
}

fn melt(text: &mut String, rows: &[Row<'_>]) {
    let Some(first) = rows.first() else { return };
    let Load::Melt(melt) = first.sample.load else { return };
    let _ = writeln!(
        text,
        "\n## LAMMPS\n\n{} atoms, a checkpoint of {:.0} MiB at the start and after each of {} phases of {} time steps, each made \
         durable before computing goes on.",
        4 * melt.cells.pow(3),
        melt.checkpoint_bytes() as f64 / 1_048_576.0,
        melt.phases,
        melt.steps
    );
    setting(text, first);
    let (slow, fast, elastic) = PAPERS_COMPLETION_S;
    costs(text, rows, "10 GB at first, then smaller", Some([slow / fast, 1.0, elastic / fast]));
    let mut table = Table::of("mode | phase | compute s | write s | until durable s");
    for row in rows {
        let line = |name: String, times: [f64; 3]| {
            [row.sample.mode.name().to_owned(), name].into_iter().chain(times.map(|time| format!("{time:.1}")))
        };
        let all = |pick: fn(&ApplicationPhase) -> f64| row.found.work.phases.iter().map(pick).sum::<f64>();
        table.row(line(
            "all".to_owned(),
            [all(|phase| phase.compute_s), all(|phase| phase.write_s), all(|phase| phase.sync_s)],
        ));
        for (index, phase) in row.found.work.phases.iter().enumerate() {
            table.row(line(index.to_string(), [phase.compute_s, phase.write_s, phase.sync_s]));
        }
    }
    let _ = write!(text, "\n{}", table.markdown());
}

/// Completion, AGBs and caches; `papers`: their completion ÷ static-fast's, slow, fast and elastic.
fn costs(text: &mut String, rows: &[Row<'_>], papers_caches: &str, papers: Option<[f64; 3]>) {
    let mut table = Table::of(
        "mode | completion s | ÷ static-fast | the papers' | AGBs | ÷ static-fast | the papers' | \
             ÷ static-slow | the papers' | caches MiB | next",
    );
    let fast = reference(rows, Mode::StaticFast)
        .map_or((f64::NAN, f64::NAN), |row| (row.found.completion_s, row.sample.agbs(row.found)));
    let slow = reference(rows, Mode::StaticSlow).map_or(f64::NAN, |row| row.sample.agbs(row.found));
    for row in rows {
        let (completion, cost) = (row.found.completion_s, row.sample.agbs(row.found));
        let sizes: Vec<String> = sizes_mib(&row.found.ticks).iter().map(|size| format!("{size:.0}")).collect();
        let kind = match row.sample.mode {
            Mode::StaticSlow => 0,
            Mode::StaticFast => 1,
            _ => 2,
        };
        // Theirs cost more than 70 % less than static-fast and about 1 % less than static-slow.
        let told = |figures: [&'static str; 3]| papers.map_or("", |_| figures[kind]);
        table.row([
            row.sample.mode.name().to_owned(),
            format!("{completion:.1}"),
            ratio(completion / fast.0),
            papers.map_or(String::new(), |papers| ratio(papers[kind])),
            format!("{cost:.0}"),
            ratio(cost / fast.1),
            told(["0.30", "1", "below 0.30"]).to_owned(),
            ratio(cost / slow),
            told(["1", "3.36", "0.99"]).to_owned(),
            sizes.join(", "),
            if kind == 2 { format!("{:.0}", row.found.next_mib) } else { String::new() },
        ]);
    }
    let _ = writeln!(text, "\n{}\nThe papers' caches: {papers_caches}.", table.markdown());
}

fn ratio(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { String::new() }
}

#[cfg(test)]
pub mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::inside::modes::{Setting, Tick};
    use crate::inside::reproduce::{Melt, Run, Work};

    pub fn samples() -> Vec<Sample> {
        let setting = Setting {
            backing_mib: 2048,
            initial_mib: 640,
            grain_mib: 64,
            inactivity_s: 2.0,
            sampling_s: 0.5,
            writeback_delay_s: 2.0,
        };
        let melt = Load::Melt(Melt { cells: 20, phases: 1, steps: 2 });
        let bonnie =
            Load::Bonnie { bonnie: Bonnie { file_mib: 256, memory_mib: 128, chunk_kib: 32 }, runs: 2, pause_s: 7.5 };
        let mut samples = Vec::new();
        for (index, &mode) in Mode::value_variants().iter().enumerate() {
            for load in [bonnie, melt] {
                let rates =
                    |add: f64| Rates { write_mib_s: 30.0 + add, rewrite_mib_s: 15.0 + add, read_mib_s: 33.0 + add };
                let run = |began_s, add| Run { began_s, ended_s: began_s + 2.0, rates: rates(add) };
                let rented_mib = if mode.is_elastic() { 640.0 } else { 0.0 };
                let tick =
                    |at_s, rented_mib| Tick { at_s, written_mib: 8.0, backing_mib: 4.0, rented_mib, ..Tick::default() };
                let phase = |began_s| ApplicationPhase { began_s, compute_s: 2.0, write_s: 1.0, sync_s: 1.0 };
                let found = Found {
                    completion_s: 10.0 + index as f64,
                    settled_s: 12.0,
                    work: Work {
                        runs: if load == bonnie { vec![run(0.0, 0.0), run(5.0, 60.0)] } else { Vec::new() },
                        phases: if load == melt { vec![phase(0.0), phase(5.0)] } else { Vec::new() },
                    },
                    boosts: 1,
                    next_mib: 384.0,
                    ticks: vec![tick(4.0, 0.0), tick(6.0, rented_mib), tick(12.0, 0.0)],
                };
                samples.push(Sample { mode, load, setting, rates_mib_s: (33, 128), outcome: Ok(found) });
            }
        }
        samples
    }

    #[test]
    fn costs_are_of_both_volumes() {
        let samples = samples();
        let rows = rows(&samples, Workload::Lammps);
        let agbs: Vec<f64> = rows.iter().map(|row| row.sample.agbs(row.found)).collect();
        // 2 GiB at 33 MiB/s for 10 s; at 128 for 11 s; at 33 for 12 s, and 640 MiB at 128 MiB/s for 2 s.
        for (found, expected) in agbs.iter().zip([660.0, 2816.0, 792.0 + 160.0]) {
            assert!((found - expected).abs() < 1e-6, "{agbs:?}");
        }
    }

    #[test]
    fn tables_have_every_mode_and_tell_failures() {
        let mut samples = samples();
        samples[9].outcome = Err("no such luck".to_owned());
        let text = markdown(&samples);
        assert!(text.contains("| static-slow | all | 60.0 | 45.0 | 63.0 | 1.00 |"), "{text}");
        assert!(text.contains("| surgetank paper | first | 30.0 |") && text.contains("| rest | 90.0 |"), "{text}");
        assert!(text.contains("| static-slow | 10.0 | 0.91 | 1.16 | 660 | 0.23 |"), "{text}");
        assert!(text.contains("surgetank adaptive did not come to its end: no such luck"), "{text}");
        assert!(markdown(&[]).lines().count() == 1);
    }
}
