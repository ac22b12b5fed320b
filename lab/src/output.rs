//! What the lab says: lines on stderr; reports, which are a table for people and a document for scripts.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// Writes `NAME.md` and `NAME.json`, and says the table.
pub fn write(out: &Path, name: &str, table: &str, document: &impl Serialize) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    fs::write(out.join(format!("{name}.md")), table)?;
    fs::write(out.join(format!("{name}.json")), serde_json::to_vec_pretty(document)?)?;
    say(&format!("{table}\nwritten to {}", out.display()));
    Ok(())
}

/// Says a line on stderr, beside cargo's own words.
#[allow(clippy::print_stderr)] // the one place that prints
pub fn say(line: &str) {
    eprintln!("{line}");
}
