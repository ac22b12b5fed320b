//! The offline optimum beside the modes: in a table, and its caching volumes beside the controller's.

use std::collections::BTreeMap;

use serde::Serialize;
use surgetank_planner::Mode;

use super::{Boost, CacheSize, ModeOutcome, RunOutcome};
use crate::chart::{Axis, Colour, Mark, Picture, Plot};
use crate::number::{difference, digits, duration, plain, prefixed};
use crate::table::Table;

const PANEL_HEIGHT: u32 = 150;

/// The best that could have been made of a run: cost + value of time × delay, for one VM.
#[derive(Clone, Debug, Serialize)]
pub struct Hindsight {
    /// What costs and objectives are counted in: "AGBs" or "USD".
    pub currency: &'static str,
    /// Of a second of delay, in that currency; `None`: infinite, and objectives are delays in seconds.
    pub value_of_time_per_s: Option<f64>,
    /// No controller's objective is below it.
    pub bound: f64,
    /// The plan that comes near it.
    pub plan: Regret,
    /// The plan's time as the modes' is counted.
    pub completion_s: f64,
    /// What the plan rents.
    pub boosts: Vec<Boost>,
    /// How far the modes are from it.
    pub modes: BTreeMap<Mode, Regret>,
}

/// A run beside the optimum.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Regret {
    /// Cost + value of time × delay.
    pub objective: f64,
    /// Relative to the bound: 0 is as good as can be.
    pub regret_ratio: f64,
    /// In the objective's currency.
    pub cost: f64,
    /// Relative to the plan's, less 1.
    pub cost_regret_ratio: f64,
    /// Time lost against an infinitely fast volume, in seconds.
    pub delay_s: f64,
    /// Beyond the plan's, in seconds.
    pub delay_regret_s: f64,
}

impl Hindsight {
    fn unit(&self) -> &'static str {
        if self.value_of_time_per_s.is_some() { self.currency } else { "s" }
    }

    fn value_of_time(&self) -> String {
        match self.value_of_time_per_s {
            Some(value) if self.currency == "USD" => {
                format!("a value of time of {} USD an hour", plain(value * 3600.0))
            }
            Some(value) => format!("a value of time of {} {} a second", plain(value), self.currency),
            None => "an infinite value of time".to_owned(),
        }
    }

    pub(super) fn table(&self) -> Table {
        let row = |name: String, found: &Regret| {
            [
                name,
                format!("{} {}", amount(found.objective), self.unit()),
                difference(1.0 + found.regret_ratio, 1),
                amount(found.cost),
                difference(1.0 + found.cost_regret_ratio, 1),
                duration(found.delay_s),
                format!(
                    "{}{}",
                    if found.delay_regret_s < 0.0 { "-" } else { "+" },
                    duration(found.delay_regret_s.abs())
                ),
            ]
        };
        let modes = self.modes.iter().map(|(mode, found)| row(mode.name().to_owned(), found));
        let plan = row("hindsight".to_owned(), &self.plan);
        let columns = ["mode", "objective", "regret", self.currency, "vs hindsight", "delay", "vs hindsight"];
        Table::new(columns).with(modes.chain([plan]))
    }

    /// In one sentence.
    pub(super) fn verdict(&self) -> String {
        let elastic = self.modes.get(&Mode::Elastic).map_or(0.0, |elastic| elastic.regret_ratio);
        format!(
            "At {}, no controller is below {} {}: the elastic mode is {} above that, hindsight's plan {}.",
            self.value_of_time(),
            amount(self.bound),
            self.unit(),
            percent(elastic),
            percent(self.plan.regret_ratio)
        )
    }
}

/// AGBs by their prefix, or a fraction of a dollar.
fn amount(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => prefixed(value),
        small if small < 1.0 => format!("{value:.5}"),
        _ => digits(value),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// The sizes of what is rented over time: the controller's, and the plan's below.
pub(super) fn picture(outcome: &RunOutcome, found: &Hindsight, until: f64) -> Picture {
    let elastic = outcome.modes.get(&Mode::Elastic).map_or(&[][..], |elastic: &ModeOutcome| &elastic.boosts);
    let largest = elastic.iter().chain(&found.boosts).map(|boost| boost.cache_gib).fold(1.0, f64::max);
    let panel = |name: &str, boosts: &[Boost], colour: Colour| {
        let plot = Plot::new(name, PANEL_HEIGHT, Axis::seconds(until), Axis::linear("GiB", 0.0..largest * 1.08));
        let rented = boosts.iter().map(|boost| Mark::Area { points: stair(boost), colour });
        let used = boosts.iter().map(|boost| {
            let from = boost.start_s + boost.attach_s;
            let until = from + boost.absorb_s + boost.drain_s;
            Mark::line(vec![(from, boost.high_water_gib), (until, boost.high_water_gib)], Colour::INK, 2)
        });
        plot.marks(rented.chain(used))
    };
    Picture::new("Rented by the controller and in hindsight")
        .entry(Colour::BLUE, "rented by the controller")
        .entry(Colour::ORANGE, "rented in hindsight")
        .entry(Colour::INK, "most used of it, while it absorbs and drains")
        .plot(panel(&format!("elastic ({})", outcome.policy), elastic, Colour::BLUE))
        .plot(panel("hindsight", &found.boosts, Colour::ORANGE))
}

/// From the start of the bill to its end.
fn stair(boost: &Boost) -> Vec<(f64, f64)> {
    let ended = boost.ended_s();
    let whole = [CacheSize { from_s: boost.start_s, cache_gib: boost.cache_gib }];
    let sizes = if boost.sizes.is_empty() { &whole[..] } else { &boost.sizes };
    let mut height = 0.0;
    let mut points = Vec::with_capacity(2 * sizes.len() + 2);
    for size in sizes {
        points.extend([(size.from_s, height), (size.from_s, size.cache_gib)]);
        height = size.cache_gib;
    }
    points.extend([(ended, height), (ended, 0.0)]);
    points
}
