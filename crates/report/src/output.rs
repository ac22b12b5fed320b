//! What goes to people and scripts: answers to stdout, everything else to stderr. Nothing in it commands a terminal; a part
//! that others wrote and that belongs on one line goes through [`text::line`] where it is put into an answer.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

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

/// Writes whole files into a directory, which is made if it is not there. Returns the first one's path.
///
/// # Errors
/// If the directory cannot be made or a file cannot be written.
pub fn write_into(directory: &Path, page: (&str, &str), beside: &[(&str, &str)]) -> Result<PathBuf, Failure> {
    fs::create_dir_all(directory).doing(|| format!("cannot make the directory {}", directory.display()))?;
    for (name, text) in beside {
        write_whole(&directory.join(name), text)?;
    }
    let path = directory.join(page.0);
    write_whole(&path, page.1)?;
    Ok(path)
}

/// A document as JSON, for a file.
///
/// # Errors
/// If it has no form in JSON.
pub fn json(document: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(document).doing(|| "cannot write the report as JSON".to_owned())
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
