//! Cache keys of requests.

use surgetank_model::Bytes;

use crate::request::{Access, Request};

/// Which requests count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Only {
    /// All of them.
    #[default]
    All,
    /// What is known to read.
    Reads,
    /// What is known to write.
    Writes,
}

/// Makes keys of requests: one of each request's address, or one of each block that it touches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys {
    /// Split requests into blocks of this size; `None` takes a request for one key, its first byte.
    pub block: Option<Bytes>,
    /// Which requests count.
    pub only: Only,
}

impl Keys {
    /// Whether each request is one key, so that nothing has to be looked at but its address.
    pub(crate) fn are_whole_requests(&self) -> bool {
        self.block.is_none() && self.only == Only::All
    }

    /// The key of a request that is not split. Disks are smaller than 2^48 bytes, so keys of different volumes differ;
    /// volume 0 leaves keys as they are.
    #[inline]
    pub(crate) fn whole(request: &Request) -> u64 {
        request.address ^ volume(request)
    }

    /// Gives the keys of a request to `sink`.
    #[inline]
    pub fn of(&self, request: &Request, mut sink: impl FnMut(u64)) {
        let counts = match self.only {
            Only::All => true,
            Only::Reads => request.operation == Access::Read,
            Only::Writes => request.operation == Access::Write,
        };
        if !counts {
            return;
        }
        match self.block.map(Bytes::get).filter(|size| *size > 0) {
            None => sink(Self::whole(request)),
            Some(size) => {
                let last = request.address.saturating_add(request.length.get().max(1) - 1);
                for block in request.address / size..=last / size {
                    sink(block ^ volume(request));
                }
            }
        }
    }
}

#[inline]
fn volume(request: &Request) -> u64 {
    u64::from(request.volume) << 48
}

/// As many keys as a curve is fed at once: they stay in the innermost cache.
const GATHERED: usize = 2048;

/// Keys on their way to a curve.
#[derive(Debug)]
pub struct Gathered {
    pub(crate) keys: Keys,
    buffer: Box<[u64; GATHERED]>,
    count: usize,
}

impl Gathered {
    /// Of requests as `keys` says.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self { keys, buffer: Box::new([0; GATHERED]), count: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, key: u64, feed: &mut impl FnMut(&[u64])) {
        self.buffer[self.count % GATHERED] = key;
        self.count += 1;
        if self.count == GATHERED {
            self.flush(feed);
        }
    }

    /// The keys of many records, which `key` makes of each: counting them apart costs as much as all the rest.
    #[inline]
    pub(crate) fn extend<R>(&mut self, records: &[R], key: impl Fn(&R) -> u64, feed: &mut impl FnMut(&[u64])) {
        self.flush(feed);
        for records in records.chunks(GATHERED) {
            self.buffer.iter_mut().zip(records).for_each(|(place, record)| *place = key(record));
            self.count = records.len();
            self.flush(feed);
        }
    }

    pub(crate) fn flush(&mut self, feed: &mut impl FnMut(&[u64])) {
        feed(&self.buffer[..self.count]);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Instant;

    use super::*;

    fn keys(block: Option<u64>, volume: u32, address: u64, length: u64) -> Vec<u64> {
        let request =
            Request { time: Instant::ZERO, volume, address, length: Bytes::new(length), operation: Access::Write };
        let mut keys = Vec::new();
        Keys { block: block.map(Bytes::new), only: Only::All }.of(&request, |key| keys.push(key));
        Keys { block: block.map(Bytes::new), only: Only::Reads }.of(&request, |_| panic!("it is a write"));
        keys
    }

    #[test]
    fn requests_are_split_where_asked() {
        assert_eq!(keys(None, 0, 4097, 10_000), [4097]);
        assert_eq!(keys(Some(4096), 0, 4097, 10_000), [1, 2, 3]);
        assert_eq!(keys(Some(4096), 0, 8192, 4096), [2]);
        assert_eq!(keys(Some(4096), 0, 8192, 0), [2]);
        assert_eq!(keys(Some(4096), 1, 8192, 1), [2 ^ 1 << 48]);
        assert_eq!(keys(Some(512), 0, u64::MAX - 1, 1), [u64::MAX / 512]);
    }
}
