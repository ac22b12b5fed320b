//! What the runs show: bars, a table of policies, one of scenarios, and a picture.

use std::path::Path;

use surgetank_report::Table;
use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot};

use super::scenarios::Set;
use super::{Document, Found, Judged, Run, VALUES};
use crate::bar::{Bar, Limit};
use crate::bench::Report;
use crate::output;

const PICTURE: &str = "policy-regret.svg";
const PANEL_HEIGHT: u32 = 220;
/// The policy that is judged, and the one that it must not be worse than.
const JUDGED: &str = "adaptive";
const BASELINE: &str = "paper";
/// Never worse than the baseline, and than the best static volume, by more.
const OVER_BASELINE: f64 = 1.01;
const OVER_STATIC: f64 = 1.03;
/// Regret against hindsight.
const MEDIAN: f64 = 0.10;
const NINE_IN_TEN: f64 = 0.25;
/// Regret is judged where hindsight's plan, or some policy, is this near to its bound; elsewhere the bound may be too low.
const KNOWN: f64 = 0.10;

impl Found {
    fn run(&self, name: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.name == name)
    }

    /// Whether anything is near to hindsight's bound.
    fn is_known(&self, value: usize) -> bool {
        let elastic = self.runs.iter().filter(|run| !run.is_static).map(|run| run.at[value].regret_ratio);
        elastic.fold(self.hindsight[value].gap_ratio, f64::min) <= KNOWN
    }

    /// Hindsight's plan for an elastic device is no worse than the static volumes by more than the bar.
    fn can_be_as_good(&self, value: usize) -> bool {
        let optimum = &self.hindsight[value];
        optimum.bound * (1.0 + optimum.gap_ratio) <= OVER_STATIC * self.best_static(value)
    }

    /// The least objective of the static volumes.
    fn best_static(&self, value: usize) -> f64 {
        self.runs.iter().filter(|run| run.is_static).map(|run| run.at[value].objective).fold(f64::INFINITY, f64::min)
    }
}

/// The value below which this share of them is; NaN of none.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}

/// Writes the tables, the document and the picture, and adds the bars unless only one scenario ran.
pub fn write(document: &Document, out: &Path, is_one: bool, report: &mut Report) -> anyhow::Result<()> {
    let notes: String = document.notes.iter().map(|note| format!("Note: {note}.\n\n")).collect();
    let text = format!(
        "{notes}{}\n{}\n## Where {JUDGED} misses a bar\n\n{MISSES}\n\n{}\n",
        policies(document).markdown(),
        scenarios(document).markdown(),
        misses(document).markdown()
    );
    output::write(out, "policy", &text, document)?;
    if is_one {
        return Ok(());
    }
    std::fs::write(out.join(PICTURE), picture(document).file()?)?;
    for bar in bars(document) {
        report.add(bar);
    }
    Ok(())
}

fn sets() -> [(&'static str, Set); 2] {
    [("training", Set::Training), ("held out", Set::HeldOut)]
}

fn of(document: &Document, set: Set) -> impl Iterator<Item = &Found> + Clone {
    document.scenarios.iter().filter(move |found| found.set == set)
}

fn names(document: &Document) -> Vec<String> {
    document.scenarios.first().map(|found| found.runs.iter().map(|run| run.name.clone()).collect()).unwrap_or_default()
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", ratio * 100.0)
}

/// One row for each set, value of time and policy; regret where hindsight is known well.
fn policies(document: &Document) -> Table {
    let mut table = Table::of(
        "set | value of time | policy | regret, median | 9 in 10 | worst | of | ÷ best static, worst | ÷ paper, worst | \
         cost ÷ static-slow, median | boosts | in vain",
    );
    for (set_name, set) in sets() {
        for (value, factor) in VALUES.iter().enumerate() {
            for name in names(document) {
                let runs = || of(document, set).filter_map(|found| Some((found, found.run(&name)?)));
                if runs().next().is_none() {
                    continue;
                }
                let known = || runs().filter(|(found, _)| found.is_known(value));
                let regrets: Vec<f64> = known().map(|(_, run)| run.at[value].regret_ratio).collect();
                let worst = known()
                    .max_by(|one, other| one.1.at[value].regret_ratio.total_cmp(&other.1.at[value].regret_ratio));
                let slow = |found: &Found| found.runs.first().map_or(1.0, |slow| slow.at[value].cost);
                let static_ratio = runs().map(|(found, run)| run.at[value].objective / found.best_static(value));
                table = table.with([[
                    set_name.to_owned(),
                    format!("{factor} ×"),
                    name.clone(),
                    percent(quantile(regrets.clone(), 0.5)),
                    percent(quantile(regrets.clone(), 0.9)),
                    percent(quantile(regrets, 1.0)),
                    worst.map_or_else(String::new, |(found, _)| found.name.clone()),
                    format!("{:.3}", static_ratio.fold(0.0, f64::max)),
                    format!("{:.3}", runs().map(|(found, run)| over_baseline(found, run, value)).fold(0.0, f64::max)),
                    format!(
                        "{:.3}",
                        quantile(runs().map(|(found, run)| run.at[value].cost / slow(found)).collect(), 0.5)
                    ),
                    runs().map(|(_, run)| run.at[value].boosts).sum::<usize>().to_string(),
                    runs().map(|(_, run)| run.at[value].boosts_in_vain).sum::<usize>().to_string(),
                ]]);
            }
        }
    }
    table
}

fn over_baseline(found: &Found, run: &Run, value: usize) -> f64 {
    found.run(BASELINE).map_or(0.0, |paper| run.at[value].objective / paper.at[value].objective)
}

/// One row for each scenario: regret by value of time of each policy; cost and delay at the middle one.
fn scenarios(document: &Document) -> Table {
    let names = names(document);
    let mut header = "scenario | set | hindsight's gap | boosts | cost | delay".to_owned();
    for name in &names {
        header += &format!(" | {name}: regret | cost | delay | boosts (in vain)");
    }
    let join = |numbers: &mut dyn Iterator<Item = f64>| {
        numbers.map(|ratio| format!("{:.1}", ratio * 100.0)).collect::<Vec<_>>().join(" / ") + " %"
    };
    let row = |found: &Found| {
        let middle = &found.hindsight[1];
        let mut cells = vec![
            found.name.clone(),
            sets().iter().find(|(_, set)| *set == found.set).map_or("", |(name, _)| name).to_owned(),
            join(&mut found.hindsight.iter().map(|optimum| optimum.gap_ratio)),
            found.hindsight.iter().map(|optimum| optimum.boosts.to_string()).collect::<Vec<_>>().join(" / "),
            surgetank_report::number::digits(middle.cost),
            format!("{:.0} s", middle.delay_s),
        ];
        for run in &found.runs {
            let each = |of: &dyn Fn(&Judged) -> String| run.at.iter().map(of).collect::<Vec<_>>().join(" / ");
            cells.extend([
                join(&mut run.at.iter().map(|at| at.regret_ratio)),
                percent(run.at[1].cost / middle.cost - 1.0),
                format!("{:.0} s", run.at[1].delay_s),
                each(&|at| {
                    if at.boosts == 0 { "0".to_owned() } else { format!("{} ({})", at.boosts, at.boosts_in_vain) }
                }),
            ]);
        }
        cells
    };
    Table::of(&header).with(document.scenarios.iter().map(row))
}

/// What the table of misses means.
const MISSES: &str = "Columns: the objective ÷ the baseline's and ÷ that of the better static volume; hindsight's bound, and its \
plan, ÷ the better static volume: where they are above 1.03, no elastic device, and none that is known, can meet that bar; and the \
share of the bound that is lost before a volume can be there that was asked for after the first late sample.";

/// One row for each pair of a scenario and a value of time that misses a bar.
fn misses(document: &Document) -> Table {
    let header = "scenario | set | value of time | ÷ paper | ÷ best static | bound ÷ best static | plan ÷ best static | regret | \
                  first surprise";
    let pairs = document.scenarios.iter().filter_map(|found| Some((found, found.run(JUDGED)?)));
    let rows = pairs.flat_map(|(found, run)| (0..VALUES.len()).map(move |value| (found, run, value)));
    let missing = rows.filter_map(|(found, run, value)| {
        let (paper, at) = (over_baseline(found, run, value), &run.at[value]);
        let (fixed, optimum) = (found.best_static(value), &found.hindsight[value]);
        let is_wide = found.is_known(value) && at.regret_ratio > NINE_IN_TEN;
        let misses = paper > OVER_BASELINE || at.objective > OVER_STATIC * fixed || is_wide;
        misses.then(|| {
            let ratio = |value: f64| format!("{value:.3}");
            [
                found.name.clone(),
                sets().iter().find(|(_, set)| *set == found.set).map_or("", |(name, _)| name).to_owned(),
                format!("{} ×", VALUES[value]),
                ratio(paper),
                ratio(at.objective / fixed),
                ratio(optimum.bound / fixed),
                ratio(optimum.bound * (1.0 + optimum.gap_ratio) / fixed),
                if found.is_known(value) { percent(at.regret_ratio) } else { "unknown".to_owned() },
                percent(found.first_surprise_ratio[value]),
            ]
        })
    });
    Table::of(header).with(missing)
}

/// The bars, for training and held-out scenarios alone: worst cases, and quantiles of the regret.
fn bars(document: &Document) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (set_name, set) in sets() {
        let judged = || {
            let runs = of(document, set).filter_map(|found| Some((found, found.run(JUDGED)?)));
            runs.flat_map(|(found, run)| (0..VALUES.len()).map(move |value| (found, run, value)))
        };
        if judged().next().is_none() {
            continue;
        }
        let worst = |ratio: &dyn Fn(&Found, &Run, usize) -> f64| {
            let ratios = judged().map(|(found, run, value)| (ratio(found, run, value), found.name.as_str(), value));
            ratios.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::NAN, "", 0))
        };
        let named = |name: &str, (_, scenario, value): (f64, &str, usize)| {
            format!("{JUDGED}, {set_name}: {name} ({scenario}, {} ×)", VALUES[value])
        };
        let paper = worst(&over_baseline);
        let bar = Bar::new(named("worst objective", paper), "", paper.0, (1.0, BASELINE));
        bars.push(bar.must_be(Limit::AtMost(OVER_BASELINE)));
        let fixed = worst(&|found, run, value| run.at[value].objective / found.best_static(value));
        let bar = Bar::new(named("worst objective", fixed), "", fixed.0, (1.0, "the best static volume"));
        bars.push(bar.must_be(Limit::AtMost(OVER_STATIC)));
        let possible = judged().filter(|(found, _, value)| found.can_be_as_good(*value));
        let ratios =
            possible.map(|(found, run, value)| (run.at[value].objective / found.best_static(value), found, value));
        if let Some((ratio, found, value)) = ratios.max_by(|one, other| one.0.total_cmp(&other.0)) {
            let name = named("worst objective where hindsight's plan meets the bar", (ratio, &found.name, value));
            bars.push(Bar::new(name, "", ratio, (1.0, "the best static volume")));
        }
        let known = judged().filter(|(found, _, value)| found.is_known(*value));
        let regrets: Vec<f64> = known.map(|(_, run, value)| 1.0 + run.at[value].regret_ratio).collect();
        for (name, share, most) in [("median", 0.5, MEDIAN), ("nine in ten", 0.9, NINE_IN_TEN)] {
            let name = format!("{JUDGED}, {set_name}: objective, {name} of {} of {}", regrets.len(), judged().count());
            let bar = Bar::new(name, "", quantile(regrets.clone(), share), (1.0, "hindsight"));
            bars.push(bar.must_be(Limit::AtMost(1.0 + most)));
        }
    }
    bars
}

/// The regret of each scenario from least to largest, a panel for each value of time.
fn picture(document: &Document) -> Picture {
    let colours = [Colour::GREEN, Colour::ORANGE, Colour::GREY, Colour::BLUE, Colour::PINK, Colour::INK];
    let names = names(document);
    let legend = names
        .iter()
        .zip(colours)
        .fold(Picture::new("Regret against hindsight"), |picture, (name, colour)| picture.entry(colour, name));
    (0..VALUES.len()).fold(legend, |picture, value| {
        let count = document.scenarios.len().max(2) as f64;
        let x = Axis::linear("scenarios, from the least regret", 0.0..count);
        // Above, all is equally bad.
        let y = Axis::linear("regret, %", 0.0..100.0);
        let caption = format!("value of time {} ×", VALUES[value]);
        let lines = names.iter().zip(colours).map(|(name, colour)| {
            let runs = document.scenarios.iter().filter_map(|found| found.run(name));
            let mut regrets: Vec<f64> =
                runs.map(|run| (run.at[value].regret_ratio * 100.0).clamp(0.0, 100.0)).collect();
            regrets.sort_by(f64::total_cmp);
            Mark::line((1..).map(f64::from).zip(regrets).collect(), colour, 3)
        });
        picture.plot(Plot::new(&caption, PANEL_HEIGHT, x, y).marks(lines))
    })
}
