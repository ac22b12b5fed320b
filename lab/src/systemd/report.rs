//! What came of each step: a table for people, a document for scripts.

use serde::Serialize;
use surgetank_report::Table;

use crate::output::say;

/// All steps.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Serialize)]
struct Step {
    name: String,
    passed: bool,
    /// What it took, if that is of interest.
    took_s: Option<f64>,
    /// The most that it may take.
    limit_s: Option<f64>,
    /// What went wrong, or is worth knowing.
    note: String,
}

/// What a step has measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// What it took.
    pub took_s: Option<f64>,
    /// The most that it may take.
    pub limit_s: Option<f64>,
    /// What is worth knowing.
    pub note: String,
}

impl Measured {
    /// A time that is judged.
    pub fn within(took_s: f64, limit_s: f64, note: impl Into<String>) -> Self {
        Self { took_s: Some(took_s), limit_s: Some(limit_s), note: note.into() }
    }
}

impl Report {
    /// Adds what came of a step, and says it.
    pub fn add(&mut self, name: &str, result: anyhow::Result<Measured>) {
        let step = match result {
            Ok(Measured { took_s, limit_s, note }) => {
                let passed = took_s.zip(limit_s).is_none_or(|(took_s, limit_s)| took_s <= limit_s);
                Step { name: name.to_owned(), passed, took_s, limit_s, note }
            }
            Err(error) => {
                Step { name: name.to_owned(), passed: false, took_s: None, limit_s: None, note: format!("{error:#}") }
            }
        };
        say(&format!("{}  {name}  {}  {}", step.word(), step.time(), step.note));
        self.steps.push(step);
    }

    /// Whether every step passed.
    pub fn good(&self) -> bool {
        self.steps.iter().all(|step| step.passed)
    }

    /// One row a step.
    pub fn markdown(&self) -> String {
        let rows = self.steps.iter().map(|step| {
            [step.name.clone(), step.word().to_owned(), step.time(), step.note.replace('|', "/").replace('\n', " ")]
        });
        Table::of("step | result | time | ").with(rows).markdown()
    }
}

impl Step {
    fn word(&self) -> &'static str {
        if self.passed { "passed" } else { "FAILED" }
    }

    fn time(&self) -> String {
        match (self.took_s, self.limit_s) {
            (Some(took_s), Some(limit_s)) => format!("{took_s:.2} s (at most {limit_s:.0} s)"),
            (Some(took_s), None) => format!("{took_s:.2} s"),
            _ => String::new(),
        }
    }
}
