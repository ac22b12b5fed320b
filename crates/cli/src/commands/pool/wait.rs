//! `surgetank pool wait`: until files of a mounted pool are where somebody needs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use surgetank_model::text::line;
use surgetank_model::units::Span;
use surgetank_mount::{STATE, point};
use surgetank_report::number::count;
use surgetank_report::{Failure, output};

use super::LOOK_AGAIN;

/// How long the mount may take for one file while the first look lasts, whatever the time: one of nothing asks how things are now.
const SILENT: Duration = Duration::from_secs(2);
/// Files of a state that are named at most.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Wanted {
    /// As many benefactors have it as its durability says
    Replicated,
    /// The target has it
    Drained,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool wait /mnt/pool/checkpoint --state drained
  surgetank pool wait /mnt/pool/rank0 --state replicated --timeout '5 min'

PATH is a file, or a directory with all files below it. The exit status is 1 if some of them will not get there, with their \
names and the reasons, once all others are there; or if the time is over.")]
pub struct Wait {
    /// A file or directory of a mounted pool
    path: PathBuf,
    /// What to wait for
    #[arg(long, value_enum)]
    state: Wanted,
    /// How long; for ever if it is not given
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

/// What waiting comes to.
#[derive(Serialize)]
struct Reached {
    state: Wanted,
    /// All files are there.
    is_reached: bool,
    files: usize,
    /// How many are in which state.
    states: BTreeMap<String, usize>,
}

/// What a look at all files has found.
#[derive(Default)]
struct Seen {
    files: usize,
    /// How many are in which state.
    states: BTreeMap<String, usize>,
    /// One that is on its way, and its state.
    waiting: Option<(PathBuf, String)>,
    /// Which do not get there, by their states.
    never: BTreeMap<String, Vec<PathBuf>>,
}

impl Wait {
    pub fn run(&self) -> Result<(), Failure> {
        let until = self.timeout.map(|timeout| Instant::now() + timeout.0);
        let looks = looks(self.path.clone(), self.state);
        let mut last: Option<Seen> = None;
        loop {
            let look = match until {
                Some(until) => {
                    let least = if last.is_none() { SILENT } else { Duration::ZERO };
                    looks.recv_timeout(until.saturating_duration_since(Instant::now()).max(least))
                }
                None => looks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match look {
                Ok(None) => {}
                Ok(Some(seen)) => {
                    let seen = seen?;
                    if seen.waiting.is_none() {
                        return self.answer(&seen);
                    }
                    last = Some(seen);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::Failed("the look has failed".to_owned())),
                Err(RecvTimeoutError::Timeout) => return Err(self.over(last)?),
            }
        }
    }

    /// All files are there, or none is on its way any more.
    fn answer(&self, seen: &Seen) -> Result<(), Failure> {
        self.print(seen)?;
        match seen.never.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(told(&seen.never, seen.files))),
        }
    }

    /// The time is over; what was seen last.
    fn over(&self, last: Option<Seen>) -> Result<Failure, Failure> {
        let shown = |path: &Path| line(&path.display().to_string()).to_string();
        let Some(seen) = last else {
            let path = shown(&self.path);
            let why =
                format!("the time is over, and the mount of {path} has not answered: see `surgetank pool status`");
            return Ok(Failure::Failed(why));
        };
        self.print(&seen)?;
        let (file, state) = seen.waiting.unwrap_or_default();
        let never = if seen.never.is_empty() { String::new() } else { format!("; {}", told(&seen.never, seen.files)) };
        Ok(Failure::Failed(format!(
            "the time is over, and {} is {state}: wait longer, or see `surgetank pool status`{never}",
            shown(&file)
        )))
    }

    fn print(&self, seen: &Seen) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        output::print_json(&Reached {
            state: self.state,
            is_reached: seen.waiting.is_none() && seen.never.is_empty(),
            files: seen.files,
            states: seen.states.clone(),
        })
    }
}

/// Looks again and again, on a thread of its own: while a pool does not answer, a call of its mount does not return. `None`: one has returned.
fn looks(path: PathBuf, wanted: Wanted) -> Receiver<Option<Result<Seen, Failure>>> {
    let (tell, looks) = mpsc::channel();
    std::thread::spawn(move || {
        let full = match full(&path) {
            Ok(full) => full,
            Err(failure) => return drop(tell.send(Some(Err(failure)))),
        };
        let answered = || drop(tell.send(None));
        while tell.send(Some(look(&path, &full, wanted, &answered))).is_ok() {
            std::thread::sleep(LOOK_AGAIN);
        }
    });
    looks
}

/// The full path of what is in a mounted pool.
fn full(path: &Path) -> Result<PathBuf, Failure> {
    let full = std::fs::canonicalize(path)
        .map_err(|error| Failure::Invalid(format!("{}: {error}: name a file that is there", path.display())))?;
    match point::of(&full).is_some_and(|mount| point::is_pool(&mount)) {
        true => Ok(full),
        false => Err(Failure::Invalid(format!(
            "{} is not in a mounted staging pool: mount one with `surgetank mount`",
            path.display()
        ))),
    }
}

fn look(path: &Path, full: &Path, wanted: Wanted, answered: &dyn Fn()) -> Result<Seen, Failure> {
    let (mut files, mut seen) = (Vec::new(), Seen::default());
    collect(full, &mut files, answered).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    seen.files = files.len();
    for file in files {
        answered();
        let Some(state) = state(&file)? else { continue };
        *seen.states.entry(state.clone()).or_default() += 1;
        match (&*state, wanted) {
            ("drained", _) | ("replicated" | "draining", Wanted::Replicated) => {}
            ("staged" | "repairing" | "replicated" | "draining", _) => {
                seen.waiting = seen.waiting.or(Some((file, state)))
            }
            // The others are waited for all the same.
            _ => seen.never.entry(state).or_default().push(file),
        }
    }
    Ok(seen)
}

/// Which files do not get there, of how many, and why, by their states.
fn told(never: &BTreeMap<String, Vec<PathBuf>>, of: usize) -> String {
    let name = |file: &Path| line(&file.display().to_string()).to_string();
    let of_state = |(state, files): (&String, &Vec<PathBuf>)| {
        let mut names: Vec<String> = files.iter().take(NAMED).map(|file| name(file)).collect();
        if files.len() > NAMED {
            names.push(format!("and {} more", files.len() - NAMED));
        }
        (names.join(", "), reason(state))
    };
    let total: usize = never.values().map(Vec::len).sum();
    if total == 1 {
        return never.iter().map(of_state).map(|(name, reason)| format!("{name}: {reason}")).collect();
    }
    let states = never.iter().map(|(state, files)| {
        let (names, reason) = of_state((state, files));
        format!("{} {state} ({names}): {reason}", files.len())
    });
    let states: Vec<String> = states.collect();
    format!("{} of {} will not get there: {}", total, count(of, "file"), states.join("; "))
}

/// Why a file does not get to its target, and what to do.
fn reason(state: &str) -> &'static str {
    match state {
        "failed" => {
            "chunks of it are lost with their benefactors, or it is longer than a file at its target may be: write it again, or remove it (`rm`)"
        }
        "conflict" => {
            "somebody else has put or changed what is at its name at the target, where that stays: move that away and write the file again, or copy \
         the file to another name"
        }
        "torn" => {
            "its writer ended before it closed the file: what was committed is drained, the rest is lost: write it again, or remove it (`rm`)"
        }
        _ => "it is in a state that this program does not know: use the version of the mount",
    }
}

/// A file's state; `None`: it is gone.
fn state(file: &Path) -> Result<Option<String>, Failure> {
    let mut value = [0_u8; 64];
    match rustix::fs::getxattr(file, STATE, &mut value) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&value[..length]).into_owned())),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::STALE) => Ok(None),
        Err(error) => Err(Failure::Failed(format!("{}: {error}", file.display()))),
    }
}

/// All regular files at a path and below it.
fn collect(path: &Path, into: &mut Vec<PathBuf>, answered: &dyn Fn()) -> std::io::Result<()> {
    answered();
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.is_file() {
        into.push(path.to_owned());
    } else if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            collect(&entry?.path(), into, answered)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_get_there_are_named_and_counted_with_a_remedy() {
        let paths: Vec<PathBuf> = (0..8).map(|number| PathBuf::from(format!("/m/{number}"))).collect();
        let of = |state: &str, from: usize, to: usize| (state.to_owned(), paths[from..to].to_vec());
        let one = told(&BTreeMap::from([of("torn", 0, 1)]), 1);
        assert!(
            one.starts_with("/m/0: its writer ended") && one.ends_with("write it again, or remove it (`rm`)"),
            "{one}"
        );
        let more = told(&BTreeMap::from([of("torn", 0, 7), of("failed", 7, 8)]), 20);
        assert!(more.starts_with("8 of 20 files will not get there: 1 failed (/m/7): chunks of it"), "{more}");
        assert!(more.contains("; 7 torn (/m/0, /m/1, /m/2, /m/3, /m/4, and 2 more): its writer"), "{more}");
    }
}
