//! `--hindsight`: the offline optimum beside the modes.

use std::str::FromStr;

use surgetank_report::Failure;
use surgetank_report::run::{Hindsight, Regret};
use surgetank_whatif::hindsight::{Currency, Objective, hindsight};
use surgetank_whatif::{Fidelity, RunReport, Setup};

use super::answer;

/// What time is worth, as people write it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueOfTime {
    /// AGBs per second of delay; infinite: the fastest run.
    Agbs(f64),
    /// USD per hour of delay.
    UsdPerHour(f64),
}

impl FromStr for ValueOfTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let money = text.strip_suffix("USD/h").or_else(|| text.strip_prefix('$')?.strip_suffix("/h"));
        let number: f64 = money.unwrap_or(text).trim().parse().map_err(|_| remedy())?;
        match money {
            _ if number.is_nan() || number < 0.0 => Err(remedy()),
            Some(_) if number.is_infinite() => Ok(Self::Agbs(number)),
            Some(_) => Ok(Self::UsdPerHour(number)),
            None => Ok(Self::Agbs(number)),
        }
    }
}

fn remedy() -> String {
    "write AGBs per second such as 1650, money per hour such as \"3 USD/h\", 0 for the cheapest run, or inf for the fastest"
        .to_owned()
}

impl ValueOfTime {
    fn objective(self) -> Objective {
        match self {
            Self::Agbs(value_of_time) => Objective { currency: Currency::Agbs, value_of_time },
            Self::UsdPerHour(usd) => Objective { currency: Currency::Usd, value_of_time: usd / 3600.0 },
        }
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
    let objective = value_of_time.objective();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_time_has_a_unit_or_is_in_agbs() {
        let read = |text: &str| text.parse::<ValueOfTime>();
        assert_eq!(read("1650"), Ok(ValueOfTime::Agbs(1650.0)));
        assert_eq!(read("inf"), Ok(ValueOfTime::Agbs(f64::INFINITY)));
        assert_eq!(read("3.5 USD/h"), Ok(ValueOfTime::UsdPerHour(3.5)));
        assert_eq!(read("$3.5/h"), Ok(ValueOfTime::UsdPerHour(3.5)));
        for wrong in ["", "-1", "NaN", "3 EUR/h", "3 USD", "much"] {
            assert!(read(wrong).unwrap_err().contains("USD/h"), "{wrong}");
        }
    }
}
