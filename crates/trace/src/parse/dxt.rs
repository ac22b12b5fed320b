//! What darshan-dxt-parser prints (Darshan's documentation, "DXT"):
//!
//! ```text
//! # DXT, file_id: 6457971, file_name: /scratch/dump.0
//! # DXT, rank: 0, hostname: nid00012
//! # Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)
//!  X_POSIX       0  write        0               0      1048576      0.0029      0.0032
//! ```
//!
//! Times are since the application's start; files are told apart by their identifiers. An access through MPI-IO shows up
//! once more as those through POSIX that it led to, so one module is counted.

use super::Line;
use super::fields::{Volumes, decimal, fraction, not_a, operation, request};

/// See the module.
#[derive(Debug, Default)]
pub struct Dxt {
    volumes: Volumes,
    /// Of the file that the lines are about.
    volume: u32,
    /// Whether it is POSIX whose accesses count: the first module that the trace has.
    counts_posix: Option<bool>,
}

impl Dxt {
    pub fn line(&mut self, line: &[u8]) -> Line {
        if line.starts_with(b"#") {
            return self.comment(line);
        }
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut next = || words.next().unwrap_or_default();
        let [module, rank, kind, _segment, offset, length, start] = [(); 7].map(|()| next());
        let is_posix = match module {
            b"X_POSIX" => true,
            b"X_MPIIO" => false,
            _ => return not_a("module", "X_POSIX or X_MPIIO, as darshan-dxt-parser prints them", module),
        };
        if decimal(rank).is_none() {
            return not_a("rank", "a number", rank);
        }
        let Some(operation) = operation(kind) else { return not_a("kind of access", "read or write", kind) };
        let Some(offset) = decimal(offset) else { return not_a("offset", "a number", offset) };
        let Some(length) = decimal(length) else { return not_a("length", "a number", length) };
        let Some(start_ns) = fraction(start, 1_000_000_000) else {
            return not_a("start", "a count of seconds", start);
        };
        if *self.counts_posix.get_or_insert(is_posix) != is_posix {
            return Line::Other;
        }
        request(start_ns, self.volume, offset, length, operation)
    }

    /// Which file the next lines are about.
    fn comment(&mut self, line: &[u8]) -> Line {
        const NAME: &[u8] = b"file_id:";
        let Some(at) = line.windows(NAME.len()).position(|window| window == NAME) else { return Line::Other };
        let rest = line[at + NAME.len()..].trim_ascii_start();
        let id = rest.split(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
        match self.volumes.number(id) {
            Ok(volume) => {
                self.volume = volume;
                Line::Other
            }
            Err(broken) => broken,
        }
    }
}
