//! The regret bench: what every policy and the static volumes cost, beside the best that could have been made of each
//! scenario ([`surgetank_whatif::hindsight`]). Flows, not requests: the whole table takes seconds.
//!
//! The objective is cost + value of time × delay, at three values of a second of delay: nothing (the volumes' bill alone, as
//! the papers count it), 10 and 100 times what the backing volume costs. A virtual machine costs some ten times as much as
//! the disk that it waits for; one of a hundred that wait for each other, or a large one, a hundred times. Controllers are
//! told what a second is worth: that, and for an application the backing volume's own bill, which ends when it does.

mod loads;
mod sample;
mod scenarios;
mod summary;
mod traces;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;
use surgetank_model::toml_error::Source;
use surgetank_model::units::Span;
use surgetank_model::volume_type::{CreditUnit, Credits};
use surgetank_model::{Bytes, Catalog, Limits};
use surgetank_planner::Mode;
use surgetank_planner::cost::Money;
use surgetank_planner::scenario::Scenario as File;
use surgetank_policy::Preset;
use surgetank_whatif::hindsight::{Currency, Objective, hindsight};
use surgetank_whatif::{Boost, Fidelity, RunReport, Setup, run as simulate};
use toml::{Table, Value};

use self::loads::Load;
use self::scenarios::{PLATFORM, SCENARIOS, Set};
use super::{Bench, Report};
use crate::flags::absolute;

/// Values of a second of delay, in what a second of the backing volume costs.
pub const VALUES: [f64; 3] = [0.0, 10.0, 100.0];

/// Flags of this part.
#[derive(Args, Clone, Debug)]
pub struct Policies {
    /// Policy: only this scenario, by its name
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Policy: recorded traces; by default ../shared/data beside the tree
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    data: Option<PathBuf>,
    /// Policy: leave out what controllers are judged by
    #[arg(long)]
    training: bool,
}

/// What is run: one scenario or trace.
struct Row {
    name: String,
    set: Set,
    load: Box<dyn Fn() -> anyhow::Result<(Load, String)> + Send + Sync>,
}

/// One scenario's runs.
#[derive(Debug, Serialize)]
pub struct Found {
    pub name: String,
    pub set: Set,
    pub currency: &'static str,
    /// By value of time.
    pub hindsight: Vec<Optimum>,
    /// Share of the bound that a boost which begins with the first late sample has lost by then, by value of time: no controller
    /// that rents nothing before can know better.
    pub first_surprise_ratio: Vec<f64>,
    /// Every policy, and the static volumes.
    pub runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub struct Optimum {
    /// Of a second of delay, in the currency.
    pub value_of_time_per_s: f64,
    pub bound: f64,
    /// Of the plan: how far it is above the bound (how much too low that may be), its cost, its delay.
    pub gap_ratio: f64,
    pub cost: f64,
    pub delay_s: f64,
    pub boosts: usize,
}

#[derive(Debug, Serialize)]
pub struct Run {
    /// The policy's name, or the mode's.
    pub name: String,
    pub is_static: bool,
    /// By value of time.
    pub at: Vec<Judged>,
}

/// A run at one value of time.
#[derive(Debug, Serialize)]
pub struct Judged {
    pub cost: f64,
    pub delay_s: f64,
    pub boosts: usize,
    pub objective: f64,
    /// Objective ÷ hindsight's bound − 1.
    pub regret_ratio: f64,
    /// Boosts that cost more than all that they absorbed can have saved.
    pub boosts_in_vain: usize,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Document {
    pub values_of_time: [f64; 3],
    /// Why only a part of it ran.
    pub notes: Vec<String>,
    pub scenarios: Vec<Found>,
}

/// Runs every scenario and judges.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let arguments = &bench.policy;
    let (mut rows, mut notes) = (generated(), Vec::new());
    match traces::rows(arguments.data.as_deref()) {
        Ok(recorded) => rows.extend(recorded),
        Err(reason) => notes.push(format!("{reason:#}: the generated scenarios ran alone")),
    }
    if let Some(name) = &arguments.scenario {
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        rows.retain(|row| row.name == *name);
        if rows.is_empty() {
            bail!("there is no scenario {name:?}; there are: {}", names.join("; "));
        }
        notes.push("one scenario ran".to_owned());
    }
    rows.retain(|row| !arguments.training || row.set == Set::Training);
    let document = Document { values_of_time: VALUES, notes, scenarios: all(&rows)? };
    summary::write(&document, &bench.out, arguments.scenario.is_some(), report)?;
    if arguments.scenario.is_some() { Ok(()) } else { sample::run(bench, report) }
}

fn generated() -> Vec<Row> {
    let row = |scenario: &'static scenarios::Scenario| Row {
        name: scenario.name.to_owned(),
        set: scenario.set,
        load: Box::new(|| Ok(((scenario.load)(), scenario.platform.to_owned()))),
    };
    SCENARIOS.iter().map(row).collect()
}

/// All rows, on all cores.
fn all(rows: &[Row]) -> anyhow::Result<Vec<Found>> {
    let next = Mutex::new(0..rows.len());
    let found: Mutex<BTreeMap<usize, anyhow::Result<Found>>> = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some(index) = next.lock().ok().and_then(|mut next| next.next()) {
            let row = &rows[index];
            let one = one(row).with_context(|| row.name.clone());
            if let Ok(mut found) = found.lock() {
                found.insert(index, one);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().map_err(|_| anyhow!("a scenario panicked"))?.into_values().collect()
}

/// One row under every policy.
fn one(row: &Row) -> anyhow::Result<Found> {
    let (load, platform) = (row.load)()?;
    let mut runs = Vec::new();
    let first = setup(&load, &platform, Preset::PAPER)?;
    let currency = currency(&platform)?;
    let per_s = Objective { currency, value_of_time: 0.0 }
        .cost(&first.backing.tariff.per_second(first.backing.size))
        .context("the backing volume has no price")?;
    let objectives = VALUES.map(|value| Objective { currency, value_of_time: value * per_s });
    let mut hindsights = Vec::new();
    for objective in &objectives {
        let found = hindsight(&first, objective, Fidelity::Fluid)?;
        hindsights.push(Optimum {
            value_of_time_per_s: objective.value_of_time,
            bound: found.bound,
            gap_ratio: found.objective / found.bound - 1.0,
            cost: objective.cost(&found.plan.cost).context("a volume has no price")?,
            delay_s: found.plan.delay().as_secs_f64(),
            boosts: found.plan.boosts.len(),
        });
    }
    for mode in [Mode::StaticSlow, Mode::StaticFast] {
        let found = simulate(&first, mode, Fidelity::Fluid)?;
        let judged = |(objective, optimum)| judged(&first, &found, objective, optimum);
        let at = objectives.iter().zip(&hindsights).map(judged).collect::<anyhow::Result<_>>()?;
        runs.push(Run { name: mode.name().to_owned(), is_static: true, at });
    }
    let waits = matches!(load, Load::Application(_));
    let surprised_s = first_surprise_s(&first);
    let first_surprise_ratio = objectives.iter().zip(&hindsights).map(|(objective, optimum)| {
        let per_s = objective.value_of_time + if waits { per_s } else { 0.0 };
        if optimum.boosts == 0 { 0.0 } else { surprised_s * per_s / optimum.bound }
    });
    let first_surprise_ratio = first_surprise_ratio.collect();
    for preset in Preset::ALL {
        let mut setup = setup(&load, &platform, *preset)?;
        if currency == Currency::Usd {
            setup.judge_by_bills();
        }
        let backing_agbs = setup.backing.tariff.per_second(setup.backing.size).agbs;
        let mut at = Vec::new();
        for ((value, objective), optimum) in VALUES.iter().zip(&objectives).zip(&hindsights) {
            setup.policy.value_of_time = backing_agbs * (value + f64::from(u8::from(waits)));
            let found = simulate(&setup, Mode::Elastic, Fidelity::Fluid)?;
            at.push(judged(&setup, &found, objective, optimum)?);
        }
        runs.push(Run { name: preset.name.to_owned(), is_static: false, at });
    }
    let currency = match currency {
        Currency::Agbs => "AGBs",
        Currency::Usd => "USD",
    };
    Ok(Found { name: row.name.clone(), set: row.set, currency, hindsight: hindsights, first_surprise_ratio, runs })
}

/// Seconds that both volumes would have saved by the time at which one that is asked for after the first late sample is there.
fn first_surprise_s(setup: &Setup) -> f64 {
    let rate = |limits: Limits| limits.bandwidth.map_or(0.0, |bandwidth| bandwidth.get() as f64);
    let (backing, caching) = (rate(setup.backing.limits), rate(setup.caching.limits));
    let until = setup.sampling + setup.provider.create + setup.provider.attach;
    until.as_secs_f64() * caching / (backing + caching).max(1.0)
}

fn judged(setup: &Setup, found: &RunReport, objective: &Objective, optimum: &Optimum) -> anyhow::Result<Judged> {
    let value = objective.of(found).context("a volume has no price")?;
    Ok(Judged {
        cost: objective.cost(&found.cost).context("a volume has no price")?,
        delay_s: found.delay().as_secs_f64(),
        boosts: found.boosts.len(),
        objective: value,
        regret_ratio: value / optimum.bound - 1.0,
        boosts_in_vain: found.boosts.iter().filter(|boost| is_in_vain(boost, setup, objective)).count(),
    })
}

/// What a boost absorbed at most saved the backing volume's time for it, with all that a second is worth.
fn is_in_vain(boost: &Boost, setup: &Setup, objective: &Objective) -> bool {
    let cost = |cost| objective.cost(&cost).unwrap_or(0.0);
    let paid = cost(setup.caching.tariff.cost_of_sizes(boost.held(boost.ended)));
    let per_s = cost(setup.backing.tariff.per_second(setup.backing.size)) + objective.value_of_time;
    let rate = setup.backing.limits.bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth.get() as f64);
    boost.high_water.get() as f64 / rate * per_s < paid
}

/// Costs are money where a scenario is about bills.
fn currency(platform: &str) -> anyhow::Result<Currency> {
    let table: Table = toml::from_str(platform)?;
    Ok(if table.contains_key("minimum") { Currency::Usd } else { Currency::Agbs })
}

/// A load on the papers' platform, or what a row says of it.
fn setup(load: &Load, platform: &str, preset: Preset) -> anyhow::Result<Setup> {
    let mut table: Table = toml::from_str(PLATFORM)?;
    let mut own: Table = toml::from_str(platform)?;
    let (minimum, size_max, credits) = (own.remove("minimum"), own.remove("size_max"), own.remove("credits"));
    merge(&mut table, own);
    match load.first_mib() {
        Some(mib) => {
            let app = format!("vms = 1\ncompute = \"1 s\"\ncheckpoints = 1\ncheckpoint_size = \"{} MiB\"", mib.ceil());
            table.insert("app".to_owned(), Value::Table(toml::from_str(&app)?));
        }
        None => {
            table.insert("trace".to_owned(), Value::String("generated".to_owned()));
        }
    }
    let source = Source { file: "generated".into(), text: toml::to_string(&table)? };
    let scenario = File::parse(&source, &Catalog::builtin()).map_err(|error| anyhow!("{error}"))?;
    let mut setup = Setup::of(&scenario, Some(preset));
    setup.application.phases = load.phases();
    setup.application.initial_phases = 0;
    if let Some(Value::String(size)) = size_max {
        setup.policy.size_max = size.parse::<Bytes>().map_err(|error| anyhow!("{error}"))?;
    }
    if let (Some(Value::String(minimum)), Money::Type(volume_type)) = (minimum, &mut setup.caching.tariff.money) {
        volume_type.billing.minimum = minimum.parse::<Span>().map_err(|error| anyhow!("{error}"))?;
    }
    if let Some(Value::Table(credits)) = credits {
        let of = |key: &str| credits.get(key).and_then(Value::as_integer).map_or(0, |mib| (mib.unsigned_abs()) << 20);
        setup.backing.credits = Some(Credits {
            unit: CreditUnit::Bytes,
            baseline_per_s: of("baseline"),
            burst_per_s: of("burst"),
            bucket: of("bucket"),
        });
    }
    Ok(setup)
}

/// Keys of tables one by one, other values as a whole.
fn merge(table: &mut Table, own: Table) {
    for (key, value) in own {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(table)), Value::Table(own)) => merge(table, own),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
