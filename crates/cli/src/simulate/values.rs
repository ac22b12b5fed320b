//! Keys of a scenario file that are set or varied on the command line.

use std::path::Path;
use std::str::FromStr;

use surgetank_model::toml_error::Source;
use surgetank_planner::scenario::Scenario;
use surgetank_report::Failure;
use toml::{Table, Value};

use super::parse;

/// More runs are not a sweep but a mistake.
pub const RUNS_MAX: usize = 1_000_000;

/// A key of the file and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    key: String,
    value: Value,
}

impl Setting {
    /// Both parts.
    pub fn pair(&self) -> (&str, &Value) {
        (&self.key, &self.value)
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = split(text).ok_or("write KEY=VALUE, such as \"policy.sampling=5 s\"")?;
        Ok(Self { key: key.to_owned(), value: scalar(value) })
    }
}

fn split(text: &str) -> Option<(&str, &str)> {
    let (key, value) = text.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    (!key.is_empty() && !value.is_empty()).then_some((key, value))
}

/// A key of the file and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Dotted.
    pub key: String,
    /// In order.
    pub values: Vec<Value>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = split(text)
            .ok_or("write KEY=VALUES, such as caching.checkpoint_cache=2..12GiB or policy.name=paper,adaptive")?;
        let values = match values.split_once("..") {
            Some((low, high)) => range(low, high)?,
            None => values.split(',').map(|value| scalar(value.trim())).collect(),
        };
        Ok(Self { key: key.to_owned(), values })
    }
}

/// A number, or text.
fn scalar(text: &str) -> Value {
    let integer = text.parse().map(Value::Integer);
    let number = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::Float);
    integer.ok().or_else(number).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// `LOW..HIGHUNIT[/STEP[UNIT]]`.
fn range(low: &str, high: &str) -> Result<Vec<Value>, String> {
    let (high, step) = high.split_once('/').map_or((high, None), |(high, step)| (high, Some(step)));
    let (low, low_unit) = number_and_unit(low)?;
    let (high, unit) = number_and_unit(high)?;
    let (step, step_unit) = step.map_or(Ok((1.0, unit)), number_and_unit)?;
    for other in [low_unit, step_unit] {
        if !other.is_empty() && other != unit {
            return Err(format!("{other:?} is not the unit of the range's end, {unit:?}: write all in one unit"));
        }
    }
    if step <= 0.0 || high < low {
        return Err("a range goes from the lower to the higher value in steps above zero, such as 2..12GiB/2".into());
    }
    let count = ((high - low) / step + 1e-9).floor();
    if count >= RUNS_MAX as f64 {
        return Err(format!("the range has more than {RUNS_MAX} values: take larger steps, such as 2..12GiB/2"));
    }
    let value = |number: f64| match (unit, number.fract() == 0.0) {
        ("", true) => Value::Integer(number as i64),
        ("", false) => Value::Float(number),
        (unit, _) => Value::String(format!("{number} {unit}")),
    };
    // Rounded to what people write: 0.1 + 0.2 is 0.3.
    Ok((0..=count as u64).map(|number| value(((low + number as f64 * step) * 1e9).round() / 1e9)).collect())
}

/// A number and what follows it.
pub fn number_and_unit(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().map_err(|_| format!("{text:?} is no number: write a range such as 2..12GiB"))?;
    Ok((number, unit.trim()))
}

/// The scenario of a file with other values.
///
/// # Errors
/// What does not make sense with them.
pub fn scenario(file: &Path, table: &Table, settings: &[(&str, &Value)]) -> Result<Scenario, Failure> {
    with(file, table, settings, parse)
}

/// What a file says with other values.
///
/// # Errors
/// What does not make sense with them.
pub fn with<T>(
    file: &Path,
    table: &Table,
    settings: &[(&str, &Value)],
    parse: impl Fn(&Source) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut table = table.clone();
    for (key, value) in settings {
        set(&mut table, key, value)?;
    }
    let text = toml::to_string(&table).map_err(Failure::invalid)?;
    parse(&Source { file: file.to_owned(), text }).map_err(|failure| {
        let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        Failure::Invalid(format!("with {}: {}", settings.join(", "), without_place(&failure)))
    })
}

/// The message alone: lines of a file that nobody wrote would mislead.
fn without_place(failure: &Failure) -> String {
    let text = failure.to_string();
    let is_place = |part: &str| part.chars().all(|letter| letter.is_ascii_digit() || letter == ':');
    match text.split_once(": ") {
        Some((place, message)) if place.rsplit_once(".toml:").is_some_and(|(_, rest)| is_place(rest)) => {
            message.to_owned()
        }
        _ => text,
    }
}

/// Sets a dotted key.
///
/// # Errors
/// If a part of it is no section.
pub fn set(table: &mut Table, key: &str, value: &Value) -> Result<(), Failure> {
    let mut table = table;
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            table.insert(part.to_owned(), value.clone());
            return Ok(());
        }
        let inner = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = inner.as_table_mut().ok_or_else(|| {
            Failure::Invalid(format!("{key} cannot be swept: {part} is a value in the file, not a section"))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        text.parse::<Sweep>().unwrap().values.iter().map(|value| value.to_string()).collect()
    }

    #[test]
    fn ranges_and_lists() {
        assert_eq!(values("a.b=2..4GiB"), ["\"2 GiB\"", "\"3 GiB\"", "\"4 GiB\""]);
        assert_eq!(values("a.b=2..4 GiB/0.5 GiB")[1], "\"2.5 GiB\"");
        assert_eq!(values("a=1..3"), ["1", "2", "3"]);
        assert_eq!(values("a=0.1..0.3/0.1"), ["0.1", "0.2", "0.3"]);
        assert_eq!(values("policy.name=paper,adaptive"), ["\"paper\"", "\"adaptive\""]);
        assert_eq!(values("a=10 s,1 min"), ["\"10 s\"", "\"1 min\""]);
        for wrong in ["", "a", "a=", "=1", "a=3..1", "a=1..2/0", "a=1..2GiB/1MiB", "a=x..y", "a=1..9999999999"] {
            assert!(wrong.parse::<Sweep>().is_err(), "{wrong}");
        }
    }
}
