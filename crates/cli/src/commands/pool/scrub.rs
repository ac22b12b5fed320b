//! How benefactors scrub, and what that has come to.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use surgetank_model::Bandwidth;
use surgetank_model::units::Span;
use surgetank_pool_core::benefactor::scrub::{Config, Report};
use surgetank_report::number::duration;

/// Flags of whatever lends.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Read and verify everything that is lent once in so long, beside requests only if there is no other time; `off`: never
    #[arg(long = "scrub", value_name = "TIME", default_value = "24 h")]
    every: Every,
    /// How fast a benefactor scrubs at most, though it takes longer then
    #[arg(long, value_name = "RATE", default_value = "50 MiB/s")]
    scrub_rate: Bandwidth,
}

/// A shorter period is a mistake, such as a wrong unit.
const LEAST: Duration = Duration::from_secs(1);

/// How often; `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Every(Option<Duration>);

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        match Span::from_str(text) {
            Ok(Span(every)) if every < LEAST => {
                Err(format!("\"{text}\" is too short: name a second at least, such as \"24 h\", or \"off\""))
            }
            Ok(Span(every)) => Ok(Self(Some(every))),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Scrub {
    pub fn config(&self) -> Option<Config> {
        self.every.0.map(|period| Config { period, rate: self.scrub_rate, ..Config::default() })
    }
}

/// What scrubbing has come to in a benefactor's present life.
#[derive(Serialize)]
pub struct Scrubbed {
    passes: u64,
    chunks: u64,
    gib: f64,
    damaged: u64,
    last: Option<Last>,
}

/// The last pass that has ended.
#[derive(Serialize)]
struct Last {
    ended_s_ago: f64,
    chunks: u64,
    damaged: u64,
}

impl Scrubbed {
    pub fn of(report: &Report) -> Self {
        let last = report.last.map(|last| Last {
            ended_s_ago: last.ended.as_secs_f64(),
            chunks: last.chunks,
            damaged: last.damaged,
        });
        let Report { passes, chunks, bytes, damaged, .. } = *report;
        Self { passes, chunks, gib: bytes as f64 / super::GIB, damaged, last }
    }

    pub fn people(&self) -> String {
        match &self.last {
            Some(last) => format!("{} ago, {} damaged", duration(last.ended_s_ago), last.damaged),
            None => "not yet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrubbing_has_a_period_or_is_off() {
        assert_eq!("off".parse(), Ok(Every(None)));
        assert_eq!("12h".parse(), Ok(Every(Some(Duration::from_secs(43_200)))));
        assert_eq!("1 s".parse(), Ok(Every(Some(LEAST))));
        for text in ["0 s", "1ns", "999 ms"] {
            let told = text.parse::<Every>().unwrap_err();
            assert!(told.contains("is too short: name a second at least"), "{told}");
        }
        assert!("never".parse::<Every>().is_err());
    }
}
