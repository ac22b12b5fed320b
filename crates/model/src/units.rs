//! Units as types: sizes, rates, and how people write them.
//!
//! Text always carries its unit (`"50 GiB"`, `"33 MiB/s"`, `"3000 IOPS"`, `"30 s"`). `GB` = 10⁹ bytes, `GiB` = 2³⁰.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// A rate in bytes per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(u64);

/// A rate in operations per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iops(u64);

/// A duration as people write it in files and flags: `"30 s"`, `"5 min"`, `"1.5 h"`, `"200 ms"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Why a quantity could not be read. One sentence, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseUnitError(pub String);

/// 2¹⁰ bytes.
pub const KIB: u64 = 1 << 10;
/// 2²⁰ bytes.
pub const MIB: u64 = 1 << 20;
/// 2³⁰ bytes.
pub const GIB: u64 = 1 << 30;
/// 2⁴⁰ bytes.
pub const TIB: u64 = 1 << 40;

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// From a count of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// From MiB (2²⁰ bytes).
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib * MIB)
    }

    /// From GiB (2³⁰ bytes).
    #[must_use]
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib * GIB)
    }

    /// The count of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// In MiB, for reports.
    #[must_use]
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / MIB as f64
    }

    /// In GiB, for reports and cost formulas.
    #[must_use]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// Rounded up to a multiple of `grain`; unchanged if `grain` is zero, the largest number of bytes if it overflows.
    #[must_use]
    pub const fn round_up(self, grain: Self) -> Self {
        match self.0.checked_next_multiple_of(grain.0) {
            Some(rounded) => Self(rounded),
            None if grain.0 == 0 => self,
            None => Self(u64::MAX),
        }
    }
}

impl Bandwidth {
    /// From bytes per second; at least 1.
    #[must_use]
    pub const fn new(bytes_per_s: u64) -> Self {
        Self(if bytes_per_s == 0 { 1 } else { bytes_per_s })
    }

    /// From MiB/s (2²⁰ bytes per second).
    #[must_use]
    pub const fn from_mib_s(mib_s: u64) -> Self {
        Self::new(mib_s * MIB)
    }

    /// Bytes per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// In MiB/s, for reports and cost formulas.
    #[must_use]
    pub fn as_mib_s(self) -> f64 {
        self.0 as f64 / MIB as f64
    }

    /// The time to move `bytes`, rounded up to a nanosecond.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        nanoseconds(bytes, self.0)
    }
}

impl Iops {
    /// From operations per second; at least 1.
    #[must_use]
    pub const fn new(per_s: u64) -> Self {
        Self(if per_s == 0 { 1 } else { per_s })
    }

    /// Operations per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The time for `operations`, rounded up to a nanosecond.
    #[must_use]
    pub fn time_for(self, operations: u64) -> Duration {
        nanoseconds(operations, self.0)
    }
}

fn nanoseconds(amount: u64, per_s: u64) -> Duration {
    let nanoseconds = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(per_s));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// A decimal number, kept exact: `digits` × 10^-`decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

/// Splits `"1.5 GiB"` into its number and its unit.
fn split(text: &str, what: &str, example: &str) -> Result<(Decimal, String), ParseUnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    if text.starts_with('-') {
        return Err(ParseUnitError(format!(
            "\"{text}\" is negative: a {what} is at least zero, such as \"{example}\""
        )));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || digits.len() > 24 || fraction.contains('.') {
        return Err(ParseUnitError(format!(
            "\"{text}\" is not a {what}: write a number and a unit, such as \"{example}\""
        )));
    }
    if unit.is_empty() {
        return Err(ParseUnitError(format!("\"{text}\" has no unit: write a {what} such as \"{example}\"")));
    }
    let digits =
        digits.parse().map_err(|_| ParseUnitError(format!("\"{text}\" is not a {what}, such as \"{example}\"")))?;
    Ok((Decimal { digits, decimals: fraction.len() as u32 }, unit.to_owned()))
}

/// number × factor, which must be a whole number that fits.
fn scale(text: &str, number: &Decimal, factor: u128, smallest: &str) -> Result<u64, ParseUnitError> {
    let divisor = 10u128.pow(number.decimals);
    let scaled = number.digits.checked_mul(factor).ok_or_else(|| ParseUnitError(format!("\"{text}\" is too large")))?;
    if scaled % divisor != 0 {
        return Err(ParseUnitError(format!(
            "\"{text}\" is not a whole number of {smallest}: write it in a smaller unit"
        )));
    }
    u64::try_from(scaled / divisor).map_err(|_| ParseUnitError(format!("\"{text}\" is too large")))
}

fn byte_factor(unit: &str) -> Option<u128> {
    Some(match unit {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => u128::from(KIB),
        "MiB" => u128::from(MIB),
        "GiB" => u128::from(GIB),
        "TiB" => u128::from(TIB),
        _ => return None,
    })
}

impl FromStr for Bytes {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let (number, unit) = split(text, "size", "50 GiB")?;
        let factor = byte_factor(&unit).ok_or_else(|| {
            ParseUnitError(format!(
                "\"{text}\" has the unknown unit \"{unit}\": sizes are in B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
            ))
        })?;
        // A fraction of a byte in "0.3 GiB" is rounded down: people mean the size, not the byte.
        let divisor = 10u128.pow(number.decimals);
        let scaled = number.digits.checked_mul(factor).map(|scaled| scaled / divisor);
        scaled
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| ParseUnitError(format!("\"{text}\" is too large")))
    }
}

impl FromStr for Bandwidth {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let (number, unit) = split(text, "rate", "33 MiB/s")?;
        let factor = unit.strip_suffix("/s").and_then(|unit| byte_factor(unit.trim())).ok_or_else(|| {
            ParseUnitError(format!(
                "\"{text}\" has the unknown unit \"{unit}\": rates are in KiB/s, MiB/s, GiB/s, kB/s, MB/s or GB/s"
            ))
        })?;
        let divisor = 10u128.pow(number.decimals);
        let scaled = number.digits.checked_mul(factor).map(|scaled| scaled / divisor);
        let rate = scaled
            .and_then(|rate| u64::try_from(rate).ok())
            .ok_or_else(|| ParseUnitError(format!("\"{text}\" is too large")))?;
        if rate == 0 {
            return Err(ParseUnitError(format!("\"{text}\" is zero: a rate is above zero, such as \"33 MiB/s\"")));
        }
        Ok(Self(rate))
    }
}

impl FromStr for Iops {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let (number, unit) = split(text, "rate of operations", "3000 IOPS")?;
        if !unit.eq_ignore_ascii_case("iops") {
            return Err(ParseUnitError(format!("\"{text}\" has the unknown unit \"{unit}\": write \"3000 IOPS\"")));
        }
        match scale(text, &number, 1, "operations")? {
            0 => Err(ParseUnitError(format!("\"{text}\" is zero: a rate is above zero, such as \"3000 IOPS\""))),
            rate => Ok(Self(rate)),
        }
    }
}

impl FromStr for Span {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let (number, unit) = split(text, "time", "30 s")?;
        let factor: u128 = match unit.as_str() {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => {
                return Err(ParseUnitError(format!(
                    "\"{text}\" has the unknown unit \"{unit}\": times are in ns, us, ms, s, min, h or d"
                )));
            }
        };
        scale(text, &number, factor, "nanoseconds").map(|ns| Self(Duration::from_nanos(ns)))
    }
}

/// Writes `value` with the largest unit that keeps it a whole number, so that parsing restores it.
fn write_exact(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    let (factor, unit) =
        units.iter().rev().find(|(factor, _)| value.is_multiple_of(*factor) && value >= *factor).unwrap_or(&units[0]);
    f.pad(&format!("{} {unit}", value / factor))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_exact(f, self.0, &[(1, "B"), (KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB")])
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_exact(f, self.0, &[(1, "B/s"), (KIB, "KiB/s"), (MIB, "MiB/s"), (GIB, "GiB/s")])
    }
}

impl fmt::Display for Iops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} IOPS", self.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        write_exact(
            f,
            ns,
            &[
                (1, "ns"),
                (1_000, "us"),
                (1_000_000, "ms"),
                (1_000_000_000, "s"),
                (60_000_000_000, "min"),
                (3_600_000_000_000, "h"),
            ],
        )
    }
}

/// In files a quantity is a string with its unit; a bare number is an error that names what is missing.
macro_rules! text_serde {
    ($($name:ty, $what:literal, $example:literal;)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $what, " with its unit, such as \"", $example, "\""))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
                        Err(E::custom(format_args!(concat!("{} has no unit: write a ", $what, " such as \"", $example, "\""), number)))
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$name, E> {
                        Err(E::custom(format_args!(concat!("{} has no unit: write a ", $what, " such as \"", $example, "\""), number)))
                    }
                    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<$name, E> {
                        Err(E::custom(format_args!(concat!("{} has no unit: write a ", $what, " such as \"", $example, "\""), number)))
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    )*};
}

text_serde! {
    Bytes, "size", "50 GiB";
    Bandwidth, "rate", "33 MiB/s";
    Iops, "rate of operations", "3000 IOPS";
    Span, "time", "30 s";
}
