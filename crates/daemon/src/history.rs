//! The finished boosts of a device, over all runs of the daemon: why each began, what it moved, and what it cost.
//!
//! `STATE/DEVICE/history.jsonl` has one JSON object a line, the oldest first. A file that has grown to [`FILE_MAX`] becomes
//! `history.old.jsonl` and replaces the one before. A history that cannot be written stops no device, and a line that cannot
//! be read hides no other one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "history.jsonl";
const OLD: &str = "history.old.jsonl";
/// Some two thousand boosts.
const FILE_MAX: u64 = 1 << 20;
/// No line that we write is as long.
const LINE_MAX: u64 = 64 << 10;

/// A finished boost. The names of the fields are a contract. Times that were not reached are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PastBoost {
    /// When its caching volume was deleted, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Why it began, in one sentence; null: an earlier run of the daemon began it.
    pub cause: Option<String>,
    /// Size of the caching volume, as large as it became.
    pub cache_gib: f64,
    /// Its size at first, if it grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_cache_gib: Option<f64>,
    /// Its size on average over the time that it was rented, if it grew: what `cost_agbs` and `cost_usd` come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_cache_gib: Option<f64>,
    /// Over how many volumes it was striped; absent: it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<u32>,
    /// Why no caching volume came into use; absent: one did, or nobody refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How many attempts in a row ended so: they are one entry, with the cause and the end of the last one and the cost of all; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// From asking for the volume to the first absorbed write; null: it never came into use.
    pub attach_s: Option<f64>,
    /// From the first absorbed write to the last drain.
    pub absorb_s: Option<f64>,
    /// From the last drain until the engine released the volume.
    pub drain_s: Option<f64>,
    /// From asking for the volume until it was deleted.
    pub rented_s: f64,
    /// Written by the application while the volume was in use.
    pub written_gib: f64,
    /// Of that: straight to the backing volume, because it was faster.
    pub split_gib: f64,
    /// Drained from the caching volume.
    pub drained_gib: f64,
    /// Most of the caching volume in use.
    pub high_water_gib: f64,
    /// What a larger one would have taken.
    pub evicted_gib: f64,
    /// The time that the application was expected to wait less; null: nobody asked, as for a boost on request.
    pub expected_saved_s: Option<f64>,
    /// What the caching volume was expected to cost, in adjusted GB-seconds.
    pub expected_cost_agbs: Option<f64>,
    /// The time that the application waited less, by what was moved beyond what the backing volume can.
    pub saved_s: f64,
    /// Adjusted GB-seconds of the caching volume; null: its bandwidth is not known.
    pub cost_agbs: Option<f64>,
    /// Its price; null: not known.
    pub cost_usd: Option<f64>,
}

/// What is remembered of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceHistory {
    /// The device's name.
    pub name: String,
    /// Its boosts, the oldest first.
    pub boosts: Vec<PastBoost>,
    /// Entries that cannot be read.
    pub unreadable: u64,
}

/// The answer to `history`: all devices, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// The devices.
    pub devices: Vec<DeviceHistory>,
}

impl PastBoost {
    /// This one and the attempts before, if they were refused for the same reason.
    fn after(&self, before: &Self) -> Option<Self> {
        if self.refused.is_none() || self.refused != before.refused {
            return None;
        }
        let both = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
        Some(Self {
            attempts: Some(before.attempts.unwrap_or(1).saturating_add(self.attempts.unwrap_or(1))),
            rented_s: before.rented_s + self.rented_s,
            cost_agbs: both(before.cost_agbs, self.cost_agbs),
            cost_usd: both(before.cost_usd, self.cost_usd),
            ..self.clone()
        })
    }
}

impl HistoryReport {
    /// The last boosts of the devices of these names.
    ///
    /// # Errors
    /// One sentence: a file cannot be read.
    pub fn of<'a>(
        state_directory: &Path,
        names: impl Iterator<Item = &'a String>,
        last: usize,
    ) -> Result<Self, String> {
        let device = |name: &String| {
            let (boosts, unreadable) = History::of(&state_directory.join(name)).read(last)?;
            Ok(DeviceHistory { name: name.clone(), boosts, unreadable })
        };
        let devices: io::Result<_> = names.map(device).collect();
        devices.map(|devices| Self { devices }).map_err(|error| error.to_string())
    }
}

/// A device's history on disk.
#[derive(Clone, Debug)]
pub struct History {
    directory: PathBuf,
}

impl History {
    /// The history in a device's state directory. It need not exist yet.
    #[must_use]
    pub fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Adds a boost, durably. One that was refused as the last one was takes its place, with a count: a quota that refuses for days is
    /// one entry.
    ///
    /// # Errors
    /// Whatever the file system answers. The entries before stay readable.
    pub fn add(&self, boost: &PastBoost) -> io::Result<()> {
        let path = self.directory.join(FILE);
        if fs::metadata(&path).is_ok_and(|found| found.len() >= FILE_MAX) {
            fs::rename(&path, self.directory.join(OLD))?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        if boost.refused.is_some()
            && let Some((at, before)) = last(&mut file)?
            && let Some(all) = boost.after(&before)
        {
            // A crash in between loses an entry about what was not done.
            file.set_len(at)?;
            return append(&mut file, Vec::new(), &all);
        }
        // What a full disk or a crash left of the entry before stays a line of its own.
        let line = if ends_in_a_line(&mut file)? { Vec::new() } else { vec![b'\n'] };
        append(&mut file, line, boost)
    }

    /// The last `most` boosts, the oldest first, and how many entries cannot be read.
    ///
    /// # Errors
    /// Whatever the file system answers, with the file's name.
    pub fn read(&self, most: usize) -> io::Result<(Vec<PastBoost>, u64)> {
        let (mut boosts, mut unreadable) = (Vec::new(), 0);
        for name in [OLD, FILE] {
            let path = self.directory.join(name);
            read_into(&path, &mut boosts, &mut unreadable).map_err(|error| {
                io::Error::new(error.kind(), format!("the history {} cannot be read: {error}", path.display()))
            })?;
        }
        boosts.drain(..boosts.len().saturating_sub(most));
        Ok((boosts, unreadable))
    }
}

fn append(file: &mut File, mut line: Vec<u8>, boost: &PastBoost) -> io::Result<()> {
    serde_json::to_writer(&mut line, boost)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

/// Where the last entry begins, and what it says; `None`: there is none that can be read.
fn last(file: &mut File) -> io::Result<Option<(u64, PastBoost)>> {
    let length = file.seek(SeekFrom::End(0))?;
    let from = length.saturating_sub(LINE_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(LINE_MAX).read_to_end(&mut tail)?;
    let Some(line) = tail.strip_suffix(b"\n") else { return Ok(None) };
    let start = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let entry = line.get(start..).and_then(|entry| serde_json::from_slice(entry).ok());
    Ok(entry.map(|entry| (from + start as u64, entry)))
}

fn ends_in_a_line(file: &mut File) -> io::Result<bool> {
    let length = file.seek(SeekFrom::End(0))?;
    if length == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::Start(length - 1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn read_into(path: &Path, boosts: &mut Vec<PastBoost>, unreadable: &mut u64) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // A file of ours is hardly longer; what somebody else put there does not fill the memory.
    let mut reader = BufReader::new(file).take(FILE_MAX + LINE_MAX);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        match serde_json::from_slice(&line) {
            Ok(boost) => boosts.push(boost),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => *unreadable += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boost(number: u64) -> PastBoost {
        PastBoost { ended_unix_ms: number, attach_s: Some(12.5), saved_s: 25.0, ..PastBoost::default() }
    }

    fn numbers(history: &History, most: usize) -> (Vec<u64>, u64) {
        let (boosts, unreadable) = history.read(most).unwrap();
        (boosts.iter().map(|boost| boost.ended_unix_ms).collect(), unreadable)
    }

    #[test]
    fn boosts_are_kept_in_order_and_the_last_ones_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::of(directory.path());
        assert_eq!(numbers(&history, 10), (vec![], 0), "none yet");
        (0..5).for_each(|number| history.add(&boost(number)).unwrap());
        assert_eq!(history.read(9).unwrap().0[3], boost(3));
        assert_eq!(numbers(&History::of(directory.path()), 2), (vec![3, 4], 0), "after a restart");
    }

    #[test]
    fn a_torn_entry_hides_no_other_one() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::of(directory.path());
        (0..2).for_each(|number| history.add(&boost(number)).unwrap());
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        // Whatever a crash left of the second one.
        let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in second + 1..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            history.add(&boost(7)).unwrap();
            let unreadable = u64::from(cut < whole.len() - 1);
            let expected = if unreadable == 1 { vec![0, 7] } else { vec![0, 1, 7] };
            assert_eq!(numbers(&history, 10), (expected, unreadable), "cut after {cut}");
        }
        fs::write(&path, b"\xff\x00nothing of ours").unwrap();
        history.add(&boost(8)).unwrap();
        assert_eq!(numbers(&history, 10), (vec![8], 1));
    }

    #[test]
    fn attempts_that_are_refused_for_the_same_reason_are_one_entry() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::of(directory.path());
        let refused = |number: u64, why: &str| PastBoost {
            refused: Some(why.to_owned()),
            attach_s: None,
            rented_s: 1.5,
            cost_agbs: Some(2.0),
            ..boost(number)
        };
        history.add(&boost(0)).unwrap();
        (1..500).for_each(|number| history.add(&refused(number, "the quota is used up")).unwrap());
        let (entries, _) = history.read(10).unwrap();
        assert_eq!((entries.len(), &entries[0]), (2, &boost(0)));
        assert_eq!((entries[1].attempts, entries[1].ended_unix_ms, entries[1].rented_s), (Some(499), 499, 748.5));
        assert_eq!((entries[1].cost_agbs, entries[1].cost_usd), (Some(998.0), None));
        // Another reason, a boost in between, and a torn entry each begin a new one.
        history.add(&refused(500, "no capacity")).unwrap();
        history.add(&boost(501)).unwrap();
        (502..504).for_each(|number| history.add(&refused(number, "no capacity")).unwrap());
        assert_eq!(numbers(&History::of(directory.path()), 10), (vec![0, 499, 500, 501, 503], 0));
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        history.add(&refused(504, "no capacity")).unwrap();
        assert_eq!(numbers(&history, 10), (vec![0, 499, 500, 501, 504], 1));
    }

    #[test]
    fn a_long_history_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::of(directory.path());
        let path = directory.path().join(FILE);
        let line = serde_json::to_string(&boost(1)).unwrap() + "\n";
        for number in 2..5 {
            fs::write(&path, line.repeat(FILE_MAX as usize / line.len() + 1)).unwrap();
            history.add(&boost(number)).unwrap();
        }
        let (boosts, unreadable) = numbers(&history, usize::MAX);
        assert_eq!((boosts.last(), unreadable), (Some(&4), 0));
        let bytes: u64 =
            fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < 2 * (FILE_MAX + LINE_MAX), "{bytes}");
    }

    #[test]
    fn entries_of_newer_builds_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut newer = serde_json::to_value(boost(9)).unwrap();
        newer["a_new_field"] = 1.into();
        fs::write(directory.path().join(FILE), newer.to_string()).unwrap();
        assert_eq!(numbers(&History::of(directory.path()), 1), (vec![9], 0));
    }
}
