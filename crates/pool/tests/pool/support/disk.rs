//! An SSD whose power can be cut.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use surgetank_model::random::Random;
use surgetank_pool::benefactor::ssd::Disk;

/// Bytes that a cut leaves whole or not at all.
const BLOCK: usize = 4096;

/// What was written and not flushed may be there after a cut, or not, block by block.
pub struct CutDisk {
    size: u64,
    state: Mutex<State>,
}

struct State {
    /// As the process sees it.
    written: Vec<Vec<u8>>,
    /// What is flushed.
    durable: Vec<Vec<u8>>,
    /// Blocks of each segment that differ.
    dirty: Vec<std::collections::BTreeSet<usize>>,
    /// Writes and flushes so far.
    calls: u64,
    /// The power goes before this one.
    cut_at: Option<u64>,
    is_cut: bool,
    /// Bytes of the medium that are damaged, while the system still has them in memory.
    cached: Vec<(u32, u64)>,
    random: Random,
}

impl CutDisk {
    pub fn new(segments: usize, size: usize, seed: u64) -> Arc<Self> {
        Self::with(vec![vec![0; size]; segments], seed)
    }

    fn with(durable: Vec<Vec<u8>>, seed: u64) -> Arc<Self> {
        let state = State {
            written: durable.clone(),
            dirty: vec![std::collections::BTreeSet::new(); durable.len()],
            calls: 0,
            cut_at: None,
            is_cut: false,
            cached: Vec::new(),
            random: Random::from_seed(seed),
            durable,
        };
        Arc::new(Self { size: state.durable[0].len() as u64, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    /// Writes and flushes so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The power goes before this call.
    pub fn cut_at(&self, call: u64) {
        self.state().cut_at = Some(call);
    }

    /// The power goes now.
    pub fn cut(&self) {
        self.state().cut();
    }

    /// What is there when the power has returned.
    pub fn again(&self, seed: u64) -> Arc<Self> {
        let mut state = self.state();
        state.cut();
        Self::with(state.durable.clone(), seed)
    }

    /// The same for the next process: the former one reaches it no more.
    pub fn next_life(&self) -> Arc<Self> {
        let mut state = self.state();
        state.is_cut = true;
        let next = State {
            written: state.written.clone(),
            durable: state.durable.clone(),
            dirty: state.dirty.clone(),
            calls: 0,
            cut_at: None,
            is_cut: false,
            cached: state.cached.clone(),
            random: state.random.clone(),
        };
        Arc::new(Self { size: self.size, state: Mutex::new(next) })
    }

    /// Changes a byte that is there.
    pub fn damage(&self, segment: usize, offset: usize) {
        let mut state = self.state();
        state.written[segment][offset] ^= 1;
        state.durable[segment][offset] ^= 1;
    }

    /// Changes a byte of the medium that the system has in memory.
    pub fn damage_beneath(&self, segment: usize, offset: usize) {
        self.state().cached.push((segment as u32, offset as u64));
    }

    /// Where bytes are: segment and offset.
    pub fn find(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        let state = self.state();
        let at = |segment: &Vec<u8>| segment.windows(bytes.len()).position(|window| window == bytes);
        state.written.iter().enumerate().find_map(|(number, segment)| Some((number, at(segment)?)))
    }
}

impl State {
    fn cut(&mut self) {
        if std::mem::replace(&mut self.is_cut, true) {
            return;
        }
        for (segment, dirty) in std::mem::take(&mut self.dirty).into_iter().enumerate() {
            for block in dirty {
                let range = block * BLOCK..(block + 1) * BLOCK;
                match self.random.below(3) {
                    0 => {}
                    1 => self.durable[segment][range.clone()].copy_from_slice(&self.written[segment][range]),
                    // Not even a block is whole, for all that is known.
                    _ => {
                        let half = range.start..range.start + BLOCK / 2;
                        self.durable[segment][half.clone()].copy_from_slice(&self.written[segment][half]);
                    }
                }
            }
        }
    }

    fn call(&mut self) -> io::Result<()> {
        if self.cut_at == Some(self.calls) {
            self.cut();
        }
        self.calls += 1;
        if self.is_cut { Err(io::Error::other("the power is cut")) } else { Ok(()) }
    }
}

impl Disk for CutDisk {
    fn segments(&self) -> u32 {
        u32::try_from(self.state().durable.len()).expect("few segments")
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> String {
        "of a test".to_owned()
    }

    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        if state.is_cut {
            return Err(io::Error::other("the power is cut"));
        }
        let from = usize::try_from(offset).expect("small");
        into.copy_from_slice(&state.written[segment as usize][from..from + into.len()]);
        Ok(())
    }

    fn uncache(&self, segment: u32, offset: u64, length: u64) {
        let mut state = self.state();
        let is_in = |at: &(u32, u64)| at.0 == segment && (offset..offset + length).contains(&at.1);
        let (damaged, cached) = std::mem::take(&mut state.cached).into_iter().partition(is_in);
        state.cached = cached;
        for (segment, offset) in damaged {
            let (segment, offset) = (segment as usize, usize::try_from(offset).expect("small"));
            state.written[segment][offset] ^= 1;
            state.durable[segment][offset] ^= 1;
        }
    }

    fn write(&self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        let (segment, from) = (segment as usize, usize::try_from(offset).expect("small"));
        assert!(from.is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK), "writes are whole blocks");
        state.written[segment][from..from + bytes.len()].copy_from_slice(bytes);
        state.dirty[segment].extend(from / BLOCK..(from + bytes.len()) / BLOCK);
        Ok(())
    }

    fn sync(&self, segment: u32) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        let segment = segment as usize;
        for block in std::mem::take(&mut state.dirty[segment]) {
            let range = block * BLOCK..(block + 1) * BLOCK;
            let State { written, durable, .. } = &mut *state;
            durable[segment][range.clone()].copy_from_slice(&written[segment][range]);
        }
        Ok(())
    }
}
