//! MQSim's traces: `938513000 4 264719034 16 0`: arrival in ns, device, first sector of 512 bytes, sectors, type.

use super::Line;
use super::fields::{Volumes, decimal, not_a, request};
use crate::request::Access;

/// See the module.
#[derive(Debug, Default)]
pub struct MqSim {
    volumes: Volumes,
}

impl MqSim {
    pub fn line(&mut self, line: &[u8]) -> Line {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut next = || words.next().unwrap_or_default();
        let [time, device, sector, count, kind] = [(); 5].map(|()| next());
        if kind.is_empty() {
            return Line::Broken("it has fewer than the five fields arrival, device, sector, sectors, type".to_owned());
        }
        let Some(time_ns) = decimal(time) else { return not_a("arrival", "a count of nanoseconds", time) };
        let in_bytes = |word| decimal(word).and_then(|count| count.checked_mul(512));
        let Some(address) = in_bytes(sector) else { return not_a("first sector", "a sector number", sector) };
        let Some(length) = in_bytes(count) else { return not_a("count of sectors", "a number", count) };
        let operation = match kind {
            b"0" => Access::Write,
            b"1" => Access::Read,
            _ => return not_a("type", "0 (writes) or 1 (reads)", kind),
        };
        match self.volumes.number(device) {
            Ok(volume) => request(time_ns, volume, address, length, operation),
            Err(broken) => broken,
        }
    }
}
