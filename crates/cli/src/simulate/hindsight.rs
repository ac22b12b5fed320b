//! `--hindsight`: the offline optimum beside the modes.

use surgetank_policy::ValueOfTime;
use surgetank_report::Failure;
use surgetank_report::run::{Hindsight, Regret};
use surgetank_whatif::hindsight::{Currency, Objective, hindsight};
use surgetank_whatif::{Fidelity, RunReport, Setup};

use super::answer;

/// Cost + value of time × delay.
fn objective(value: ValueOfTime) -> Objective {
    match value {
        ValueOfTime::Agbs(value_of_time) => Objective { currency: Currency::Agbs, value_of_time },
        ValueOfTime::UsdPerHour(usd) => Objective { currency: Currency::Usd, value_of_time: usd / 3600.0 },
    }
}

/// The optimum of a run, and how far its modes are from it.
///
/// # Errors
/// If a price is unknown, or the plan cannot be simulated.
pub fn compare(
    setup: &Setup,
    value_of_time: ValueOfTime,
    fidelity: Fidelity,
    runs: &[RunReport],
) -> Result<Hindsight, Failure> {
    let objective = objective(value_of_time);
    let found = hindsight(setup, &objective, fidelity).map_err(Failure::invalid)?;
    let regret = |run: &RunReport| {
        let value = objective.of(run)?;
        let (cost, least) = (objective.cost(&run.cost)?, objective.cost(&found.plan.cost)?);
        Some(Regret {
            objective: value,
            regret_ratio: ratio(value, found.bound),
            cost,
            cost_regret_ratio: ratio(cost, least),
            delay_s: run.delay().as_secs_f64(),
            delay_regret_s: run.delay().as_secs_f64() - found.plan.delay().as_secs_f64(),
        })
    };
    let unknown = || Failure::Invalid("the price of a volume is unknown: write the value of time in AGBs".to_owned());
    let modes = runs.iter().map(|run| Some((run.mode, regret(run)?))).collect::<Option<_>>();
    Ok(Hindsight {
        currency: match objective.currency {
            Currency::Agbs => "AGBs",
            Currency::Usd => "USD",
        },
        value_of_time_per_s: objective.value_of_time.is_finite().then_some(objective.value_of_time),
        bound: found.bound,
        plan: regret(&found.plan).ok_or_else(unknown)?,
        completion_s: found.plan.completion().as_secs_f64(),
        boosts: found.plan.boosts.iter().map(answer::boost).collect(),
        modes: modes.ok_or_else(unknown)?,
    })
}

/// Beyond the least, relative to it.
fn ratio(value: f64, least: f64) -> f64 {
    if least > 0.0 { value / least - 1.0 } else { 0.0 }
}
