//! Moves the bytes of the engine's effects between memory and volumes; what they are, and what their end means, is
//! [`surgetank_cache::io`]'s.

use slab::Slab;
use surgetank_cache::effect::Slices;
use surgetank_cache::format::BLOCK;
use surgetank_cache::io::{Encoder, Io, Meaning};
use surgetank_cache::{EffectId, IoFailure, Outcome, Slice, Target};
use surgetank_device::seldom::Seldom;
use surgetank_device::volume::Memory;
use surgetank_device::{Buffer, BufferSlice, Completion, Failure, Operation, Volume, VolumeIo};
use surgetank_model::Instant;

use crate::buffers::Buffers;

const BLOCK_BYTES: usize = BLOCK as usize;

/// Bytes that have moved on one volume since the shard started (counters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, zeroed ranges included.
    pub written_bytes: u64,
}

#[derive(Debug)]
struct InFlight {
    effect: EffectId,
    target: Target,
    operation: Operation,
    length: u64,
    meaning: Meaning,
    /// What is read, if the meaning depends on it.
    into: Option<BufferSlice>,
}

/// A volume in use, with what is in flight on it.
struct Attached {
    volume: Box<dyn Volume>,
    in_flight: usize,
    moved: Moved,
    /// It answered that it was unplugged.
    gone: bool,
}

/// The volumes of one device and everything in flight on them.
pub struct Volumes {
    backing: Attached,
    cache: Option<Attached>,
    /// Indexed by I/O token, so tokens are unique on both volumes.
    table: Slab<InFlight>,
    /// Outcomes that are known without any I/O.
    ready: Vec<(EffectId, Outcome)>,
    completions: Vec<Completion>,
    /// What the caching volumes of the past have moved.
    cache_moved_before: Moved,
    encoder: Encoder,
    /// When damage was logged: an application may read it as often as it likes.
    damage: Seldom,
}

impl Volumes {
    /// A device on its backing volume alone.
    pub fn new(backing: Box<dyn Volume>) -> Self {
        Self {
            backing: Attached { volume: backing, in_flight: 0, moved: Moved::default(), gone: false },
            cache: None,
            table: Slab::new(),
            ready: Vec::new(),
            completions: Vec::new(),
            cache_moved_before: Moved::default(),
            encoder: Encoder::default(),
            damage: Seldom::default(),
        }
    }

    /// The backing volume.
    pub fn backing(&mut self) -> &mut dyn Volume {
        &mut *self.backing.volume
    }

    /// The caching volume, if one is in use.
    pub fn cache(&self) -> Option<&dyn Volume> {
        self.cache.as_ref().map(|attached| &*attached.volume)
    }

    /// The same, to ask it how large it is.
    pub fn cache_mut(&mut self) -> Option<&mut Box<dyn Volume>> {
        self.cache.as_mut().map(|attached| &mut attached.volume)
    }

    /// Takes a caching volume into use. The last one has been released.
    pub fn attach(&mut self, volume: Box<dyn Volume>) {
        self.detach();
        self.cache = Some(Attached { volume, in_flight: 0, moved: Moved::default(), gone: false });
    }

    /// Lets the caching volume go: closed when this returns. What was still in flight on it fails as `Gone`.
    pub fn detach(&mut self) {
        let Some(attached) = self.cache.take() else { return };
        self.cache_moved_before.read_bytes += attached.moved.read_bytes;
        self.cache_moved_before.written_bytes += attached.moved.written_bytes;
        let lost = self.table.iter().filter(|(_, io)| io.target == Target::Cache);
        let gone = lost.map(|(token, _)| Completion { token: token as u64, result: Err(Failure::Gone) });
        self.completions.extend(gone);
        for completion in std::mem::take(&mut self.completions) {
            self.finish(&completion);
        }
    }

    /// Takes the outcomes that are known without polling the volumes.
    pub fn take_ended(&mut self, outcomes: &mut Vec<(EffectId, Outcome)>) {
        outcomes.append(&mut self.ready);
    }

    /// Whether the caching volume has answered that it was unplugged.
    #[must_use]
    pub fn cache_gone(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.gone)
    }

    /// I/Os in flight on the caching volume.
    #[must_use]
    pub fn cache_in_flight(&self) -> usize {
        self.cache.as_ref().map_or(0, |attached| attached.in_flight)
    }

    /// I/Os in flight on both volumes.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.backing.in_flight + self.cache_in_flight()
    }

    /// Whether I/Os have ended that can be taken without the kernel.
    pub fn have_ended(&mut self) -> bool {
        self.backing.volume.has_ended() || self.cache.as_mut().is_some_and(|cache| cache.volume.has_ended())
    }

    /// Bytes moved on the backing volume and on all caching volumes so far.
    #[must_use]
    pub fn moved(&self) -> (Moved, Moved) {
        let now = self.cache.as_ref().map_or(Moved::default(), |attached| attached.moved);
        let before = self.cache_moved_before;
        let cache = Moved {
            read_bytes: before.read_bytes + now.read_bytes,
            written_bytes: before.written_bytes + now.written_bytes,
        };
        (self.backing.moved, cache)
    }

    /// When a volume wants to be polled even if its descriptor stays silent.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let cache = self.cache.as_ref().and_then(|attached| attached.volume.next_deadline());
        [self.backing.volume.next_deadline(), cache].into_iter().flatten().min()
    }

    /// Starts what waits on the volumes and appends what has ended to `outcomes`.
    pub fn poll(&mut self, now: Instant, outcomes: &mut Vec<(EffectId, Outcome)>) {
        let mut completions = std::mem::take(&mut self.completions);
        self.backing.volume.poll(now, &mut completions);
        if let Some(cache) = &mut self.cache {
            let before = completions.len();
            cache.volume.poll(now, &mut completions);
            cache.gone |= completions[before..].iter().any(|ended| matches!(ended.result, Err(Failure::Gone)));
        }
        for completion in completions.drain(..) {
            self.finish(&completion);
        }
        self.completions = completions;
        outcomes.append(&mut self.ready);
    }

    /// Turns a completion into an outcome.
    fn finish(&mut self, completion: &Completion) {
        let taken = usize::try_from(completion.token).ok().and_then(|token| self.table.try_remove(token));
        let Some(io) = taken else {
            tracing::error!(token = completion.token, "a volume completed an I/O that is not in flight");
            return;
        };
        let attached = match io.target {
            Target::Backing => Some(&mut self.backing),
            Target::Cache => self.cache.as_mut(),
        };
        if let Some(attached) = attached {
            attached.in_flight -= 1;
            match io.operation {
                Operation::Read => attached.moved.read_bytes += io.length,
                Operation::Write { .. } | Operation::WriteZeroes { .. } => attached.moved.written_bytes += io.length,
                Operation::Flush | Operation::Discard => {}
            }
        }
        if let Err(failure) = completion.result {
            let (target, operation) = (io.target, io.operation);
            tracing::debug!(?target, ?operation, %failure, "an I/O failed");
        }
        // SAFETY: the read into this memory has ended and the engine has not been told yet.
        let bytes = || io.into.as_ref().map_or(&[][..], |into| unsafe { into.bytes() });
        let outcome = io.meaning.outcome(completion.result.map_err(IoFailure::from), bytes);
        if matches!(outcome, Outcome::Failed(IoFailure::Corrupt))
            && let Some(untold) = self.damage.next(std::time::Instant::now())
        {
            tracing::warn!(untold, "data on the caching volume does not match its checksum");
        }
        self.ready.push((io.effect, outcome));
    }

    /// Starts an I/O, or has it fail if there is nothing to start it on.
    pub fn start(&mut self, now: Instant, io: Io, buffers: &Buffers) {
        let Io { id, target, operation, offset, length, memory, content } = io;
        let Some(mut memory) = self.gather(id, buffers, &memory, usize::from(content.head_length() > 0)) else {
            return;
        };
        // SAFETY: the I/O is not in flight yet, and the engine has nothing else write to its memory.
        let blocks = memory.iter().flat_map(|slice| unsafe { slice.bytes() }.chunks_exact(BLOCK_BYTES));
        let (head, meaning) = self.encoder.encode(content, blocks);
        if let Some(head) = head {
            memory.insert(0, memory_of(&head));
        }
        let into = if meaning.needs_bytes() { memory.first().cloned() } else { None };
        let attached = match target {
            Target::Backing => &mut self.backing,
            Target::Cache => match &mut self.cache {
                Some(attached) => attached,
                None => return self.ready.push((id, Outcome::Failed(IoFailure::Gone))),
            },
        };
        let token = self.table.insert(InFlight { effect: id, target, operation, length, meaning, into }) as u64;
        attached.in_flight += 1;
        attached.volume.submit(now, VolumeIo { token, operation, offset, length, memory });
    }

    /// Looks at what has been read.
    pub fn look(&mut self, id: EffectId, from: Slice, meaning: Meaning, buffers: &Buffers) {
        if let Some(slice) = self.memory(id, buffers, from) {
            // SAFETY: the reads into this memory have ended; nobody else has a handle on it.
            let outcome = meaning.outcome(Ok(()), || unsafe { slice.bytes() });
            self.ready.push((id, outcome));
        }
    }

    /// A handle on memory that the engine names. If there is none, the effect fails instead of touching anything.
    fn memory(&mut self, id: EffectId, buffers: &Buffers, slice: Slice) -> Option<BufferSlice> {
        let found = buffers.slice(slice);
        if found.is_none() {
            tracing::error!(?id, ?slice, "the engine named memory that does not exist");
            self.ready.push((id, Outcome::Failed(IoFailure::Io)));
        }
        found
    }

    /// Handles on memory in order, with room for `before` handles in front.
    fn gather(&mut self, id: EffectId, buffers: &Buffers, slices: &Slices, before: usize) -> Option<Memory> {
        let mut memory = Memory::with_capacity(slices.len() + before);
        for slice in slices {
            memory.push(self.memory(id, buffers, *slice)?);
        }
        Some(memory)
    }
}

/// Memory that holds these bytes.
fn memory_of(bytes: &[u8]) -> BufferSlice {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.unique().expect("a new buffer has one handle").copy_from_slice(bytes);
    let length = buffer.len();
    buffer.slice(0, length)
}

#[cfg(test)]
mod tests {
    use surgetank_cache::io::Action;
    use surgetank_cache::{BufferId, Effect, ScratchId};
    use surgetank_device::MemoryVolume;

    use super::*;

    #[test]
    fn damage_is_logged_seldom() {
        let mut volumes = Volumes::new(Box::new(MemoryVolume::new(1 << 20, 512).unwrap()));
        let mut buffers = Buffers::default();
        buffers.allocate(ScratchId(1), BLOCK);
        let into = Slice { buffer: BufferId::Scratch(ScratchId(1)), offset: 0, length: BLOCK };
        for number in 0..1000 {
            let (id, target, checksums) = (EffectId(number), Target::Backing, Some([0].into()));
            let Action::Io(io) = Effect::Read { id, target, offset: 0, into, checksums }.into() else {
                unreachable!("a read is an I/O");
            };
            volumes.start(Instant::ZERO, io, &buffers);
        }
        let mut outcomes = Vec::new();
        volumes.poll(Instant::ZERO, &mut outcomes);
        let is_corrupt = |outcome: &Outcome| matches!(outcome, Outcome::Failed(IoFailure::Corrupt));
        assert_eq!(outcomes.iter().filter(|(_, outcome)| is_corrupt(outcome)).count(), 1000);
        // What the next message will tell is what this one did not.
        let later = std::time::Instant::now() + std::time::Duration::from_secs(3600);
        assert!(volumes.damage.next(later).is_some_and(|untold| untold > 0));
    }
}
