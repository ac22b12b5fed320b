//! A figure of the paper beside ours.

use serde::Serialize;

use crate::bar::{Bar, table};

/// What was compared, and what is to be known of it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The paper's number.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The paper's values and ours.
    pub bars: Vec<Bar>,
    /// Fits, assumptions, slips.
    pub notes: Vec<String>,
}

impl Figure {
    /// Without notes.
    pub fn new(number: &'static str, title: &'static str, bars: Vec<Bar>) -> Self {
        Self { number, title, bars, notes: Vec::new() }
    }

    /// With one more note.
    pub fn says(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The bars, each with the figure's number.
    pub fn judged(&self) -> impl Iterator<Item = Bar> {
        self.bars.iter().map(|bar| Bar { name: format!("Figure {}: {}", self.number, bar.name), ..bar.clone() })
    }

    /// A section.
    pub fn markdown(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("- {note}\n")).collect();
        format!("## Figure {}: {}\n\n{}\n{notes}", self.number, self.title, table(&self.bars).markdown())
    }
}
