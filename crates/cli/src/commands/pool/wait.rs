//! `surgetank pool wait`: until files of a mounted pool are where somebody needs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use surgetank_model::text::line;
use surgetank_model::units::Span;
use surgetank_mount::{STATE, point};
use surgetank_report::number::count;
use surgetank_report::{Failure, output};

use super::LOOK_AGAIN;

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

impl Wait {
    pub fn run(&self) -> Result<(), Failure> {
        let until = self.timeout.map(|timeout| Instant::now() + timeout.0);
        let path = std::fs::canonicalize(&self.path).map_err(|error| {
            Failure::Invalid(format!("{}: {error}: name a file that is there", self.path.display()))
        })?;
        if point::of(&path).is_none_or(|mount| !point::is_pool(&mount)) {
            return Err(Failure::Invalid(format!(
                "{} is not in a mounted staging pool: mount one with `surgetank mount`",
                self.path.display()
            )));
        }
        loop {
            let mut files = Vec::new();
            collect(&path, &mut files).map_err(|error| Failure::Failed(format!("{}: {error}", self.path.display())))?;
            let (mut waiting, mut never) = (None, BTreeMap::<String, Vec<&Path>>::new());
            let mut states = BTreeMap::<String, usize>::new();
            for file in &files {
                let Some(state) = state(file)? else { continue };
                *states.entry(state.clone()).or_default() += 1;
                match (&*state, self.state) {
                    ("drained", _) | ("replicated" | "draining", Wanted::Replicated) => {}
                    ("staged" | "repairing" | "replicated" | "draining", _) => {
                        waiting = waiting.or(Some((file, state)))
                    }
                    // The others are waited for all the same.
                    _ => never.entry(state).or_default().push(file),
                }
            }
            let is_reached = waiting.is_none() && never.is_empty();
            let answer = || match self.json {
                true => output::print_json(&Reached { state: self.state, is_reached, files: files.len(), states }),
                false => Ok(()),
            };
            let Some((file, state)) = waiting else {
                answer()?;
                return if is_reached { Ok(()) } else { Err(Failure::Failed(told(&never, files.len()))) };
            };
            if until.is_some_and(|until| Instant::now() >= until) {
                answer()?;
                let never = if never.is_empty() { String::new() } else { format!("; {}", told(&never, files.len())) };
                return Err(Failure::Failed(format!(
                    "the time is over, and {} is {state}: wait longer, or see `surgetank pool status`{never}",
                    line(&file.display().to_string())
                )));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Which files do not get there, of how many, and why, by their states.
fn told(never: &BTreeMap<String, Vec<&Path>>, of: usize) -> String {
    let name = |file: &Path| line(&file.display().to_string()).to_string();
    let of_state = |(state, files): (&String, &Vec<&Path>)| {
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
fn collect(path: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.is_file() {
        into.push(path.to_owned());
    } else if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            collect(&entry?.path(), into)?;
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
        let of = |state: &str, from: usize, to: usize| {
            (state.to_owned(), paths[from..to].iter().map(PathBuf::as_path).collect::<Vec<_>>())
        };
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
