//! What goes to people and scripts: answers to stdout, everything else to stderr. Nothing in it commands a terminal; a part
//! that others wrote and that belongs on one line goes through [`text::line`] where it is put into an answer.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use surgetank_model::text;

use crate::failure::{Doing, Failure};

/// Writes an answer to stdout. A reader that went away ends the command quietly.
///
/// # Errors
/// `NoReader`, or the I/O error of stdout (a full disk behind a redirection).
pub fn print(answer: &str) -> Result<(), Failure> {
    write(&text::lines(answer))
}

fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| if text.ends_with('\n') { Ok(()) } else { stdout.write_all(b"\n") });
    written.and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::NoReader,
        _ => Failure::Failed(format!("cannot write the answer to stdout: {error}")),
    })
}

/// Writes exactly one JSON document to stdout.
///
/// # Errors
/// As [`print`].
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let document = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::Failed(format!("cannot write the answer as JSON: {error}")))?;
    write(&text::json(&document))
}

/// Writes a whole file or none.
///
/// # Errors
/// If it cannot be written.
pub fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| drop(fs::remove_file(&part))).doing(|| format!("cannot write {}", path.display()))
}

/// Tells people something beside the answer, in one line. Nobody reading it is no reason to stop.
pub fn note(note: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text::line(note));
}

/// Whether to colour what goes to stderr: a terminal, and `NO_COLOR` unset or empty (no-color.org).
#[must_use]
pub fn colours_on_stderr() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A plain table with this header; columns from the second on are right-aligned.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
