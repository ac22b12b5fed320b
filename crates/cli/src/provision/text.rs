//! Nodes for people.

use std::fmt::Write as _;

use surgetank_planner::provision::{Considered, Plan, Provision, TradeOff, Verdict};
use surgetank_report::Table;
use surgetank_report::number::{count, digits, dollars, duration, gibibytes};

/// Candidates that a terminal shows; JSON has all.
pub const ROWS_MAX: usize = 32;

/// GiB; nothing is no number of KiB.
pub fn size(gib: f64) -> String {
    if gib == 0.0 { "none".to_owned() } else { gibibytes(gib) }
}

/// A rate in the unit that suits.
pub fn rate(gib_s: f64) -> String {
    match gib_s {
        _ if gib_s < 0.1 => format!("{} MiB/s", digits(gib_s * 1024.0)),
        _ => format!("{gib_s:.3} GiB/s"),
    }
}

/// USD of a whole pool.
pub fn cost(usd: f64) -> String {
    dollars(Some(usd), 2)
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

/// "29 nodes with 2 GiB of memory and 4 GiB of SSD each".
pub fn nodes(plan: &Plan) -> String {
    let each = match (plan.memory_gib > 0.0, plan.ssd_gib > 0.0) {
        (true, true) => format!("{} of memory and {} of SSD", size(plan.memory_gib), size(plan.ssd_gib)),
        (false, _) => format!("{} of SSD", size(plan.ssd_gib)),
        (true, false) => format!("{} of memory", size(plan.memory_gib)),
    };
    let each_of = if plan.nodes == 1 { "" } else { " each" };
    format!("{} with {each}{each_of}", count(usize::try_from(plan.nodes).unwrap_or(usize::MAX), "node"))
}

/// What to take, in a sentence.
pub fn advice(plan: &Plan) -> String {
    let take = if plan.nodes == 1 { "takes" } else { "take" };
    format!("{} {take} in {} for {}.", nodes(plan), rate(plan.throughput_gib_s), cost(plan.cost_usd))
}

/// What is to be known of the answer.
pub fn notes(answer: &Provision) -> Vec<String> {
    let mut notes = Vec::new();
    if answer.redundancy_ratio == 1.0 {
        notes.push(
            "One copy of each byte is counted. A mount keeps two unless it is told otherwise (--durable): add copies = 2 to [target] for that."
                .to_owned(),
        );
    }
    if answer.link_divisor.is_none() {
        notes.push(
            "Links cost nothing here, so twice as many nodes take in twice as much: add link_divisor to [target] for a loss of each link."
                .to_owned(),
        );
    }
    notes
}

/// Candidates, the cheapest first; those that are too slow are the last.
pub fn candidates(answer: &Provision, most: usize) -> Table {
    let mut all: Vec<&Considered> = answer.considered.iter().collect();
    let is_other = |one: &Considered| one.verdict != Verdict::Best;
    all.sort_by(|one, other| {
        let cost = |of: &Considered| of.cost_usd.unwrap_or(f64::MAX);
        cost(one).total_cmp(&cost(other)).then(is_other(one).cmp(&is_other(other)))
    });
    let row = |one: &&Considered| {
        let verdict = match (one.verdict, one.more_usd) {
            (Verdict::Best, _) => "the best".to_owned(),
            (Verdict::AsDear, _) => "costs as much, more nodes or larger ones".to_owned(),
            (Verdict::Dearer, more) => format!("costs {} more", cost(more.unwrap_or(0.0))),
            (Verdict::TooSlow, _) => "too slow, whatever its number".to_owned(),
        };
        [
            size(one.memory_gib),
            size(one.ssd_gib),
            one.nodes.map_or_else(|| "none".to_owned(), |nodes| nodes.to_string()),
            one.throughput_gib_s.map_or_else(|| "none".to_owned(), rate),
            one.cost_usd.map_or_else(|| "none".to_owned(), cost),
            verdict,
        ]
    };
    Table::of("memory a node | SSD a node | nodes | together | cost | verdict").with(all.iter().take(most).map(row))
}

/// What longer checkpoints cost.
pub fn trade_off(answer: &Provision) -> Table {
    let row = |point: &TradeOff| {
        [
            format!("+{:.0} %", 100.0 * point.longer),
            point.time_s.map_or_else(|| "unknown".to_owned(), duration),
            rate(point.target_gib_s),
            point.plan.nodes.to_string(),
            size(point.plan.memory_gib),
            size(point.plan.ssd_gib),
            cost(point.plan.cost_usd),
            point.saved.map_or_else(|| "unknown".to_owned(), percent),
        ]
    };
    Table::of("longer by | time | target | nodes | memory a node | SSD a node | cost | saved")
        .with(answer.trade_off.iter().map(row))
}

/// The answer.
pub fn answer(answer: &Provision) -> String {
    let mut text = answer.best.as_ref().map(advice).unwrap_or_default();
    let _ = write!(text, "\n\n{}", candidates(answer, ROWS_MAX));
    if let Some(left) = answer.considered.len().checked_sub(ROWS_MAX).filter(|left| *left > 0) {
        let _ = write!(text, "\n{} more in --json", count(left, "candidate"));
    }
    let _ = write!(text, "\n\nIf a checkpoint may take longer:\n{}", trade_off(answer));
    for note in notes(answer) {
        let _ = write!(text, "\n{note}");
    }
    text
}
