//! fio's iolog, versions 2 and 3 (fio(1), "Trace file format").

use super::Line;
use super::fields::{Volumes, decimal, not_a, operation, request};

/// Version 2: `file action [offset length]`, time by `wait` lines in µs; version 3: `µs file action [offset length]`.
#[derive(Debug, Default)]
pub struct Iolog {
    version: Option<u8>,
    volumes: Volumes,
    /// Sum of the waits of version 2.
    time_us: u64,
}

impl Iolog {
    pub fn line(&mut self, line: &[u8]) -> Line {
        let Some(version) = self.version else {
            return match line {
                b"fio version 2 iolog" => self.begin(2),
                b"fio version 3 iolog" => self.begin(3),
                _ => {
                    // One complaint is enough: the lines may be right all the same.
                    self.version = Some(2);
                    not_a("first line", "\"fio version 2 iolog\" or \"fio version 3 iolog\"", line)
                }
            };
        };
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        if version == 3 {
            let time = words.next().unwrap_or_default();
            let Some(time_us) = decimal(time) else { return not_a("timestamp", "a count of microseconds", time) };
            self.time_us = time_us;
        }
        let (Some(file), Some(action)) = (words.next(), words.next()) else {
            return Line::Broken("it has no file name and action".to_owned());
        };
        let is_wait = action == b"wait" && version == 2;
        let Some(operation) = operation(action) else {
            return match action {
                b"add" | b"open" | b"close" | b"sync" | b"datasync" | b"trim" => Line::Other,
                _ if is_wait => self.wait(words.next().unwrap_or_default()),
                _ => not_a("action", "one of fio's", action),
            };
        };
        let (offset, length) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let Some(offset) = decimal(offset) else { return not_a("offset", "a number", offset) };
        let Some(length) = decimal(length) else { return not_a("length", "a number", length) };
        match self.volumes.number(file) {
            Ok(volume) => request(self.time_us.saturating_mul(1000), volume, offset, length, operation),
            Err(broken) => broken,
        }
    }

    fn begin(&mut self, version: u8) -> Line {
        self.version = Some(version);
        Line::Other
    }

    fn wait(&mut self, word: &[u8]) -> Line {
        let Some(wait_us) = decimal(word) else { return not_a("wait", "a count of microseconds", word) };
        self.time_us = self.time_us.saturating_add(wait_us);
        Line::Other
    }
}
