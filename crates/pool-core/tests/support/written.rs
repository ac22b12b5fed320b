//! Several writers of one chunk, each with what it has of it and what it has written, against an account of who wrote each byte last.

use surgetank_model::random::Random;
use surgetank_pool_core::written::Written;

/// Bytes of the chunk, at most.
const ROOM: u64 = 24;

/// A writer: what it has of the chunk, what it has written of that, and the same told byte for byte.
#[derive(Clone, Default)]
struct Writer {
    bytes: Vec<u8>,
    written: Written,
    account: Vec<Option<u8>>,
}

impl Writer {
    fn write(&mut self, first: usize, with: &[u8]) {
        let (before, end) = (self.bytes.len(), first + with.len());
        self.bytes.resize(before.max(end), 0);
        if before < first {
            self.written.add_gap(number(before), number(first));
        }
        self.bytes[first..end].copy_from_slice(with);
        self.written.add(number(first), number(end));
        self.account.resize(self.account.len().max(end), None);
        self.account[first..end].copy_from_slice(&with.iter().copied().map(Some).collect::<Vec<_>>());
    }

    fn agrees(&self) -> Result<(), String> {
        let end = self.account.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let gap = self.account.iter().position(Option::is_none).unwrap_or(self.account.len());
        let is = (self.written.end(), self.written.is_empty());
        if is != (number(end), end == 0) {
            return Err(format!("it ends at {is:?}, not {end}"));
        }
        for length in 0..number(ROOM as usize) {
            if self.written.covers(length) != (length as usize <= gap) {
                return Err(format!("whether {length} bytes of {:?} are written", self.account));
            }
        }
        Ok(())
    }
}

fn number(of: usize) -> u32 {
    u32::try_from(of).expect("chunks are short here")
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut committed: Vec<u8> = Vec::new();
    let mut writers = vec![Writer::default(); 3];
    for step in 0..60 {
        let at = random.below(3) as usize;
        let writer = &mut writers[at];
        match random.below(8) {
            0..=3 => {
                let first = random.below(ROOM) as usize;
                let length = 1 + random.below(ROOM - first as u64) as usize;
                let with: Vec<u8> =
                    (0..length).map(|_| 1 + u8::try_from(random.below(255)).unwrap_or_default()).collect();
                writer.write(first, &with);
            }
            4 => {
                let length = random.below(ROOM) as usize;
                writer.bytes.truncate(length);
                writer.written.cut(number(length));
                writer.account.truncate(length);
            }
            _ => {
                let length = committed.len().max(writer.written.end() as usize);
                let laid = writer.written.lay(&writer.bytes, &committed, number(length));
                committed.resize(length, 0);
                for (byte, written) in committed.iter_mut().zip(&writer.account) {
                    *byte = written.unwrap_or(*byte);
                }
                if laid != committed {
                    return Err(format!("step {step}: {laid:?} is committed, not {committed:?}"));
                }
                *writer = Writer { bytes: committed.clone(), ..Writer::default() };
            }
        }
        writers[at].agrees().map_err(|what| format!("step {step}: {what}"))?;
    }
    Ok(())
}
