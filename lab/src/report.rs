//! Reports: a table for people, a document for scripts.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::command_line::say;

/// Writes `NAME.md` and `NAME.json`, and says the table.
///
/// # Errors
/// If they cannot be written.
pub fn write(out: &Path, name: &str, table: &str, document: &impl Serialize) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    fs::write(out.join(format!("{name}.md")), table)?;
    fs::write(out.join(format!("{name}.json")), serde_json::to_vec_pretty(document)?)?;
    say(&format!("{table}\nwritten to {}", out.display()));
    Ok(())
}
