//! The page: cost against time, and the candidates beside each other.

use std::path::Path;

use surgetank_planner::provision::{Considered, Provision, TradeOff, Verdict};
use surgetank_report::chart::{Axis, Bar, Bars, Colour, Mark, Picture, Plot};
use surgetank_report::number::duration;
use surgetank_report::{Failure, Page};

use super::text::{ROWS_MAX, advice, candidates, cost, notes, rate, size, trade_off};

const CURVE_HEIGHT: u32 = 360;
/// Candidates that are drawn.
const DRAWN_MAX: usize = 24;

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(file: &Path, answer: &Provision) -> Result<String, Failure> {
    let infeasible = answer.infeasible.as_ref().map(|infeasible| format!("No nodes suffice: {}.", infeasible.reason));
    let lead = answer.best.as_ref().map(advice).or(infeasible).unwrap_or_default();
    let feasible = answer.considered.iter().filter(|one| one.feasible).count();
    let mut cards = vec![(rate(answer.target_gib_s), "target")];
    if let Some(best) = &answer.best {
        cards.push((best.nodes.to_string(), "nodes"));
        cards.push((cost(best.cost_usd), "cost"));
    }
    cards.push((format!("{feasible} of {}", answer.considered.len()), "candidates suffice"));
    let mut page = Page::new("surgetank provision", "Nodes for a staging pool", &lead)
        .cards(&cards)
        .notes(&notes(answer))
        .facts(&facts(file, answer));
    if !answer.trade_off.is_empty() {
        page = page.section("Cost against time").picture(&curve(answer))?.table(&trade_off(answer));
    }
    page = page.section("Candidates").picture(&costs(answer))?.table(&candidates(answer, ROWS_MAX).words(0));
    if answer.considered.len() > ROWS_MAX {
        page = page.note(&format!("The cheapest {ROWS_MAX} are shown; surgetank provision --json has all."));
    }
    Ok(page.html(
        ". N nodes take in N·(T − (N−1)·δ) in-job and N·(T − N·δ) centre-wide, with T of one node and δ = 1 ÷ link_divisor GiB/s.",
    ))
}

fn facts(file: &Path, answer: &Provision) -> [(String, String); 5] {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    [
        fact("file", file.display().to_string()),
        fact("dataset", answer.dataset_gib.map_or_else(|| "unknown".to_owned(), size)),
        fact("nodes are", answer.mode.to_owned()),
        fact("link_divisor", answer.link_divisor.map_or_else(|| "none".to_owned(), |divisor| divisor.to_string())),
        fact("redundancy", answer.redundancy.clone()),
    ]
}

/// The cheapest cost for each tolerated time, as stairs: what suffices for a time suffices for all longer ones.
fn curve(answer: &Provision) -> Picture {
    let has_times = answer.trade_off.iter().all(|point| point.time_s.is_some());
    let time = |point: &TradeOff| point.time_s.filter(|_| has_times).unwrap_or(100.0 * point.longer);
    let place = |point: &TradeOff| (time(point), point.plan.cost_usd);
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    for point in &answer.trade_off {
        stairs.extend(stairs.last().map(|(_, cost)| (time(point), *cost)));
        stairs.push(place(point));
    }
    let x = Axis::around("time that a checkpoint may take", answer.trade_off.iter().map(time), 0.05);
    let x = if has_times { x.format(duration) } else { x.format(|longer| format!("{longer:+.0} %")) };
    let y = Axis::around("USD", answer.trade_off.iter().map(|point| point.plan.cost_usd), 0.1).format(cost);
    let dots = answer.trade_off.iter().map(|point| Mark::Dot { at: place(point), colour: Colour::BLUE, radius: 4 });
    let asked = answer.trade_off.iter().filter(|point| point.longer == 0.0);
    let plot = Plot::new("", CURVE_HEIGHT, x, y)
        .mark(Mark::line(stairs, Colour::BLUE.faint(0.6), 2))
        .marks(dots)
        .marks(asked.map(|point| Mark::Ring { at: place(point), colour: Colour::PINK }));
    Picture::new("Cost of the cheapest nodes against the time that a checkpoint may take")
        .entry(Colour::BLUE, "the cheapest nodes")
        .entry(Colour::PINK, "the target")
        .plot(plot)
}

/// What candidates cost; the longest bar has its text beside it.
fn costs(answer: &Provision) -> Picture {
    let mut all: Vec<&Considered> = answer.considered.iter().filter(|one| one.feasible).collect();
    let usd = |one: &Considered| one.cost_usd.unwrap_or(0.0);
    all.sort_by(|one, other| usd(one).total_cmp(&usd(other)));
    let bar = |one: &&Considered| Bar {
        name: format!("{} + {}", size(one.memory_gib), size(one.ssd_gib)),
        parts: vec![(usd(one), if one.verdict == Verdict::Best { Colour::PINK } else { Colour::BLUE })],
        text: format!("{} of them, {}", one.nodes.unwrap_or(0), cost(usd(one))),
    };
    let bars: Vec<Bar> = all.iter().take(DRAWN_MAX).map(bar).collect();
    let longest = bars.iter().flat_map(|bar| &bar.parts).map(|part| part.0).fold(1e-9, f64::max);
    Picture::new("Costs of the candidates that suffice")
        .entry(Colour::PINK, "the best")
        .entry(Colour::BLUE, "others")
        .bars(Bars { caption: "cost in USD".to_owned(), unit: "", until: Some(longest * 1.4), bars })
}
