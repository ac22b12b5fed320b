//! `--sweep KEY=VALUES`: the same scenario with other values, all cores at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Once;

use rayon::prelude::*;
use serde::Serialize;
use surgetank_model::toml_error::Source;
use surgetank_report::chart::{Axis, Mark, Picture, Plot};
use surgetank_report::number::{AGBS_EXPLAINED, difference, duration, gibibytes, prefixed};
use surgetank_report::progress::{self, ProgressBar};
use surgetank_report::run::mode_colour;
use surgetank_report::{Doing, Failure, Page, Table, output};
use surgetank_whatif::{self as whatif, Fidelity, Mode, Setup};
use toml::Value;

use super::values::{self, RUNS_MAX, Sweep, number_and_unit};
use super::{Arguments, setup};
use crate::source;

/// With fewer runs nobody needs to see progress.
const PROGRESS_MIN: usize = 2000;
const CURVES_HEIGHT: u32 = 320;

/// One run of a sweep.
#[derive(Debug, Serialize)]
struct Run {
    settings: BTreeMap<String, Value>,
    modes: BTreeMap<&'static str, ModeRun>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ModeRun {
    completion_s: f64,
    overhead_ratio: f64,
    cost_agbs: f64,
    cost_ratio: f64,
    cost_usd: Option<f64>,
    boosts: usize,
    largest_cache_gib: f64,
}

#[derive(Serialize)]
struct SweepAnswer<'a> {
    model: &'static str,
    sweep: &'a [Run],
}

/// Runs the grid and answers.
///
/// # Errors
/// A value that does not make sense, or an answer that cannot be written.
pub fn run(arguments: &Arguments, source: &Source) -> Result<(), Failure> {
    let table: toml::Table = source.parse().map_err(Failure::invalid)?;
    let fixed: Vec<_> = arguments.set.iter().map(values::Setting::pair).collect();
    let grid = grid(&arguments.sweep, &fixed)?;
    let fidelity = arguments.model.map_or(Fidelity::Fluid, Fidelity::from);
    let progress = if grid.len() < PROGRESS_MIN {
        ProgressBar::hidden()
    } else {
        progress::bar("{bar:40.colour} {pos}/{len}  {eta} left", grid.len() as u64)
    };
    // What is to be known of a load is the same in every run.
    let told = Once::new();
    let runs: Result<Vec<Run>, Failure> = grid
        .par_iter()
        .map(|settings| {
            let run = one(arguments, &table, settings, fidelity, &told);
            progress.inc(1);
            run
        })
        .collect();
    progress.finish_and_clear();
    answer(arguments, &runs?, fidelity)
}

/// Every run's settings: the fixed ones, then each sweep's.
fn grid<'a>(sweeps: &'a [Sweep], fixed: &[(&'a str, &'a Value)]) -> Result<Vec<Vec<(&'a str, &'a Value)>>, Failure> {
    let count = sweeps.iter().try_fold(1usize, |count, sweep| count.checked_mul(sweep.values.len()));
    if count.is_none_or(|count| count > RUNS_MAX) {
        return Err(Failure::Invalid(format!("the sweeps make more than {RUNS_MAX} runs: take larger steps")));
    }
    let mut grid: Vec<Vec<(&str, &Value)>> = vec![fixed.to_vec()];
    for sweep in sweeps {
        grid = grid
            .iter()
            .flat_map(|settings| {
                sweep.values.iter().map(|value| {
                    let mut settings = settings.clone();
                    settings.push((sweep.key.as_str(), value));
                    settings
                })
            })
            .collect();
    }
    Ok(grid)
}

fn one(
    arguments: &Arguments,
    table: &toml::Table,
    settings: &[(&str, &Value)],
    fidelity: Fidelity,
    told: &Once,
) -> Result<Run, Failure> {
    let scenario = values::scenario(&arguments.file, table, settings)?;
    let (setup, load) = setup(&scenario, arguments.policy, arguments.reading, &ProgressBar::hidden())?;
    told.call_once(|| source::tell(&load));
    Ok(Run {
        settings: settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).clone())).collect(),
        modes: modes(&setup, fidelity)?,
    })
}

fn modes(setup: &Setup, fidelity: Fidelity) -> Result<BTreeMap<&'static str, ModeRun>, Failure> {
    let mut runs = Vec::new();
    for mode in Mode::ALL {
        runs.push(whatif::run(setup, mode, fidelity).map_err(Failure::invalid)?);
    }
    let fast = runs.iter().find(|run| run.mode == Mode::StaticFast);
    let (time, cost) = fast.map_or((0.0, 0.0), |fast| (fast.completion().as_secs_f64(), fast.cost.agbs));
    let ratio = |value: f64, of: f64| if of > 0.0 { value / of } else { 0.0 };
    let of = |run: &whatif::RunReport| ModeRun {
        completion_s: run.completion().as_secs_f64(),
        overhead_ratio: ratio(run.completion().as_secs_f64(), time),
        cost_agbs: run.cost.agbs,
        cost_ratio: ratio(run.cost.agbs, cost),
        cost_usd: run.cost.usd,
        boosts: run.boosts.len(),
        largest_cache_gib: run.boosts.iter().map(|boost| boost.size.as_gib()).fold(0.0, f64::max),
    };
    Ok(runs.iter().map(|run| (run.mode.key(), of(run))).collect())
}

/// A value without the quotes that TOML would write.
struct Plain<'a>(&'a Value);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => f.write_str(text),
            other => other.fmt(f),
        }
    }
}

fn header(arguments: &Arguments) -> Vec<String> {
    let keys = arguments.sweep.iter().map(|sweep| sweep.key.clone());
    let of_modes = Mode::ALL
        .iter()
        .flat_map(|mode| ["completion_s", "cost_agbs", "cost_usd"].map(|field| format!("{}_{field}", mode.key())));
    let elastic = ["elastic_overhead_ratio", "elastic_cost_ratio", "elastic_boosts", "elastic_largest_cache_gib"];
    keys.chain(of_modes).chain(elastic.map(str::to_owned)).collect()
}

fn record(arguments: &Arguments, run: &Run) -> Vec<String> {
    let keys = arguments.sweep.iter().filter_map(|sweep| run.settings.get(&sweep.key));
    let of_modes = Mode::ALL.iter().filter_map(|mode| run.modes.get(mode.key())).flat_map(|found| {
        let usd = found.cost_usd.map_or_else(String::new, |usd| usd.to_string());
        [found.completion_s.to_string(), found.cost_agbs.to_string(), usd]
    });
    let elastic = run.modes.get(Mode::Elastic.key()).map(|found| {
        [
            found.overhead_ratio.to_string(),
            found.cost_ratio.to_string(),
            found.boosts.to_string(),
            found.largest_cache_gib.to_string(),
        ]
    });
    let keys = keys.map(|value| Plain(value).to_string());
    keys.chain(of_modes).chain(elastic.into_iter().flatten()).collect()
}

fn answer(arguments: &Arguments, runs: &[Run], fidelity: Fidelity) -> Result<(), Failure> {
    if let Some(path) = &arguments.csv {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let written = writer
            .write_record(header(arguments))
            .and_then(|()| runs.iter().try_for_each(|run| writer.write_record(record(arguments, run))));
        written.doing(|| "cannot make the table".to_owned())?;
        let bytes = writer.into_inner().doing(|| "cannot make the table".to_owned())?;
        output::write_whole(path, &String::from_utf8_lossy(&bytes))?;
    }
    let model = match fidelity {
        Fidelity::Block => "block",
        Fidelity::Fluid => "fluid",
    };
    let document = SweepAnswer { model, sweep: runs };
    if let Some(directory) = &arguments.out {
        let (page, data) = (html(arguments, runs)?, output::json(&document)?);
        output::write_into(directory, ("report.html", &page), &[("report.json", &data)])?;
    }
    if arguments.json {
        return output::print_json(&document);
    }
    let table = table(arguments, runs);
    output::print(&format!("The elastic mode, {} runs:\n{table}\n{AGBS_EXPLAINED}, of one VM.", runs.len()))
}

const COLUMNS: [&str; 6] = ["completion", "vs fast", "AGBs", "vs fast", "boosts", "largest cache"];

fn table(arguments: &Arguments, runs: &[Run]) -> Table {
    let cells = |run: &Run| {
        let keys = arguments.sweep.iter().filter_map(|sweep| run.settings.get(&sweep.key));
        let mut cells: Vec<String> = keys.map(|value| Plain(value).to_string()).collect();
        if let Some(found) = run.modes.get(Mode::Elastic.key()) {
            cells.extend([
                duration(found.completion_s),
                difference(found.overhead_ratio, 1),
                prefixed(found.cost_agbs),
                difference(found.cost_ratio, 1),
                found.boosts.to_string(),
                gibibytes(found.largest_cache_gib),
            ]);
        }
        cells
    };
    let columns = arguments.sweep.iter().map(|sweep| sweep.key.as_str()).chain(COLUMNS);
    Table::new(columns).with(runs.iter().map(cells))
}

/// A page with the table, and curves if one key is swept over numbers.
fn html(arguments: &Arguments, runs: &[Run]) -> Result<String, Failure> {
    let lead = format!("{} runs of {}.", runs.len(), arguments.file.display());
    let mut page = Page::new("surgetank sweep", "surgetank sweep", &lead);
    if let [sweep] = arguments.sweep.as_slice()
        && let Some(numbers) = sweep.values.iter().map(first_number).collect::<Option<Vec<f64>>>()
    {
        for (title, unit, value) in [
            ("Completion time", "s", (|run: &ModeRun| run.completion_s) as fn(&ModeRun) -> f64),
            ("Cost of one VM", "AGBs", |run: &ModeRun| run.cost_agbs),
        ] {
            let curve = |mode: Mode| -> Vec<(f64, f64)> {
                let points = numbers.iter().zip(runs);
                points.filter_map(|(x, run)| Some((*x, value(run.modes.get(mode.key())?)))).collect()
            };
            page = page.section(title).picture(&curves(title, &sweep.key, unit, &Mode::ALL.map(curve)))?;
        }
    }
    Ok(page.section("The elastic mode").table(&table(arguments, runs)).html(""))
}

/// A curve for each mode.
fn curves(title: &str, x: &str, y: &str, curves: &[Vec<(f64, f64)>; 3]) -> Picture {
    let points = || curves.iter().flatten();
    let x = Axis::around(x, points().map(|point| point.0), 0.0);
    let y = Axis::around(y, points().map(|point| point.1), 0.08);
    let lines = Mode::ALL.iter().zip(curves).map(|(mode, curve)| Mark::line(curve.clone(), mode_colour(*mode), 3));
    let legend =
        Mode::ALL.iter().fold(Picture::new(title), |picture, mode| picture.entry(mode_colour(*mode), mode.name()));
    legend.plot(Plot::new("", CURVES_HEIGHT, x, y).marks(lines))
}

fn first_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => number_and_unit(text).ok().map(|(number, _)| number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_sweeps_make_a_grid() {
        let sweeps: Vec<Sweep> = ["a=1..3", "b.c=4,5"].map(|text| text.parse().unwrap()).to_vec();
        let grid = grid(&sweeps, &[]).unwrap();
        assert_eq!(grid.len(), 6);
        assert_eq!(grid[5], [("a", &Value::Integer(3)), ("b.c", &Value::Integer(5))]);
        let mut table = toml::Table::new();
        for (key, value) in &grid[5] {
            values::set(&mut table, key, value).unwrap();
        }
        assert_eq!(toml::to_string(&table).unwrap(), "a = 3\n\n[b]\nc = 5\n");
        assert!(values::set(&mut table, "a.b", &Value::Integer(1)).is_err());
    }
}
