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
    written_out(written.and_then(|()| stdout.flush()))
}

/// What became of writing to stdout.
///
/// # Errors
/// As [`print`].
pub fn written_out(written: io::Result<()>) -> Result<(), Failure> {
    written.map_err(|error| match error.kind() {
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

/// Writes a whole file or none. What is no file, such as a device or a pipe, is written to as it is, and where a symbolic link leads, the file is.
///
/// # Errors
/// If it cannot be written.
pub fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let is_link = path.is_symlink();
    let written = match path.metadata() {
        Ok(there) if !there.is_file() => fs::write(path, text),
        Ok(_) if is_link => path.canonicalize().and_then(|path| replace(&path, text)),
        // The link leads to nothing yet.
        Err(_) if is_link => fs::write(path, text),
        Ok(_) | Err(_) => replace(path, text),
    };
    written.doing(|| format!("cannot write {}", path.display()))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| drop(fs::remove_file(&part)))
}

/// Refuses a path that can be no directory, before anything is computed for it.
///
/// # Errors
/// What is there instead.
pub fn check_directory(directory: &Path) -> Result<(), Failure> {
    // Of what is not there, symbolic links that lead nowhere included, making it tells more.
    let there = directory.ancestors().find(|path| path.exists());
    match there.filter(|path| !path.is_dir()) {
        Some(file) if file == directory => {
            Err(Failure::Invalid(format!("{} is no directory: name one", directory.display())))
        }
        Some(file) => Err(Failure::Invalid(format!(
            "{} cannot be a directory, because {} is none: name another",
            directory.display(),
            file.display()
        ))),
        None => Ok(()),
    }
}

/// Writes whole files into a directory, which is made if it is not there. Returns the first one's path.
///
/// # Errors
/// If the directory cannot be made or a file cannot be written.
pub fn write_into(directory: &Path, page: (&str, &str), beside: &[(&str, &str)]) -> Result<PathBuf, Failure> {
    let was_there = directory.exists();
    fs::create_dir_all(directory).doing(|| format!("cannot make the directory {}", directory.display()))?;
    let files = || beside.iter().copied().chain([page]);
    let all = files().try_for_each(|(name, text)| write_whole(&directory.join(name), text));
    if all.is_err() && !was_there {
        // A full disk leaves nothing of a report that is not whole.
        files().for_each(|(name, _)| drop(fs::remove_file(directory.join(name))));
        let _ = fs::remove_dir(directory);
    }
    all.map(|()| directory.join(page.0))
}

/// A document as JSON, for a file.
///
/// # Errors
/// If it has no form in JSON.
pub fn json(document: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(document).doing(|| "cannot write the report as JSON".to_owned())
}

/// More characters in one line are somebody's data rather than our words.
const NOTE_MAX: usize = 1500;

/// Tells people something beside the answer, in one line of bounded length. Nobody reading it is no reason to stop.
pub fn note(note: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text::line(&text::shortened(note, NOTE_MAX)));
}

/// Whether to colour what goes to stderr: a terminal, and `NO_COLOR` unset or empty (no-color.org).
#[must_use]
pub fn colours_on_stderr() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_written_to_and_a_link_stays_one() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let place = tempfile::tempdir().unwrap();
        let of = |name: &str| place.path().join(name);
        fs::write(of("file"), "before").unwrap();
        for (link, to) in [("link", "file"), ("ahead", "new")] {
            std::os::unix::fs::symlink(to, of(link)).unwrap();
            write_whole(&of(link), "text").unwrap();
            assert!(of(link).is_symlink());
            assert_eq!(fs::read_to_string(of(to)).unwrap(), "text");
        }
        let (mut reader, writer) = io::pipe().unwrap();
        write_whole(&PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd())), "text").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn a_file_is_no_directory_and_that_is_told_before_anything_is_computed() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        let told = |name: &str| check_directory(&place.path().join(name)).map_err(|failure| failure.to_string());
        assert!(told("file").unwrap_err().ends_with("file is no directory: name one"));
        assert!(told("file/in/it").unwrap_err().contains("file is none: name another"));
        assert_eq!((told("new/in/it"), told("")), (Ok(()), Ok(())));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing was made");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        // A page that is a directory cannot be replaced by a file.
        fs::create_dir_all(place.path().join("old/report.html/x")).unwrap();
        for name in ["old", "new"] {
            let directory = place.path().join(name);
            let page = if name == "old" { "report.html" } else { "no/report.html" };
            assert!(write_into(&directory, (page, "page"), &[]).is_err());
        }
        let left: Vec<_> =
            fs::read_dir(place.path().join("old")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["report.html"]);
        assert!(!place.path().join("new").exists());
        let path = write_into(&place.path().join("new"), ("report.html", "page"), &[("report.json", "{}")]).unwrap();
        assert_eq!(
            (fs::read_to_string(path).unwrap(), fs::read_dir(place.path().join("new")).unwrap().count()),
            ("page".to_owned(), 2)
        );
    }
}
