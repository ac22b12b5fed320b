//! Values of flags that several tasks take.

use std::path::PathBuf;

use clap::ValueEnum;

/// A number between two others, both allowed.
pub fn within(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("write a number from {least} to {most}")),
    }
}

/// A path from the root on. The lab's servers change their root and directory, so that a relative one would lead them
/// elsewhere.
pub fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| format!("{error}"))
}

/// What a value is called, the same in flags and in tables.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
