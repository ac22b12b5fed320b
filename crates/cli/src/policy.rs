//! A policy as a flag names it.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use surgetank_policy::Preset;

/// The names of all policies.
pub fn preset() -> impl TypedValueParser<Value = Preset> {
    let names = Preset::ALL.iter().map(|preset| PossibleValue::new(preset.name).help(preset.about));
    PossibleValuesParser::new(names).map(|name| Preset::named(&name).unwrap_or_default())
}
