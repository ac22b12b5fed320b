//! What holds of the segments: see [`crate::engine::check`].

use super::{Space, Use};
use crate::engine::check::{Bag, equal, holds};
use crate::index::{CHUNK_BLOCKS, ExtentState, Index, Kind};

impl Space {
    /// The sums over segments, and what each use allows. Answers the segments that are read and those that are written, each as
    /// often as that.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(Bag, Bag), String> {
        let (mut pins, mut appends) = (Bag::default(), Bag::default());
        let (mut in_use, mut tombstones, mut dirty) = (0, 0, 0);
        for (number, segment) in (0..).zip(&self.segments) {
            pins.add(u64::from(number), u64::from(segment.pins));
            appends.add(u64::from(number), u64::from(segment.appends));
            tombstones += segment.tombstones;
            dirty += segment.dirty;
            let (is_open, takes_copies) = (self.open == Some(number), self.open_copies == Some(number));
            let clean = segment.dirty == 0 && segment.tombstones == 0;
            let legal = match segment.usage {
                Use::Free => clean && segment.held == 0 && !is_open && !takes_copies,
                Use::Open => is_open && !takes_copies,
                Use::Sealed => !is_open && !takes_copies,
                Use::Copies => clean && !is_open,
            };
            if !legal || segment.position > self.geometry.segment_blocks() {
                return Err(format!("segment {number} is not what it is used for: {segment:?}"));
            }
            in_use += u32::from(matches!(segment.usage, Use::Open | Use::Sealed));
        }
        equal("segments in use", self.in_use, in_use)?;
        equal("extents without data", self.tombstones, tombstones)?;
        equal("dirty blocks", self.dirty, dirty)?;
        holds("what is bad is dirty", self.bad <= self.dirty)?;
        holds("the high-water mark is not below what is in use", self.in_use <= self.high_water)?;
        Ok((pins, appends))
    }

    /// The sums over the index.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check_sums(&self, index: &Index) -> Result<(), String> {
        let mut sums = vec![(0, 0); self.segments.len()];
        let (mut bad, mut end) = (0, 0);
        for extent in index.iter() {
            let number = self.segment_of(extent.location);
            let Some(segment) = self.segments.get(number as usize) else {
                return Err(format!("{extent:?} is behind the end of the log"));
            };
            let position = extent.location % self.geometry.segment_blocks();
            let last = position + if extent.kind == Kind::Data { extent.blocks } else { 1 };
            let is_used = matches!(segment.usage, Use::Open | Use::Sealed);
            let lies = last <= segment.position && (is_used || extent.state == ExtentState::Copy);
            let chunk = (extent.block / CHUNK_BLOCKS) as u32;
            let is_data = extent.state != ExtentState::Copy || extent.kind == Kind::Data;
            if extent.block < end || !lies || !is_data || !segment.chunks.contains(&chunk) {
                return Err(format!("{extent:?} does not lie in segment {number}: {segment:?}"));
            }
            end = extent.end();
            let (dirty, held) = &mut sums[number as usize];
            *dirty += if extent.state.dirty() { u64::from(extent.blocks) } else { 0 };
            *held += if extent.kind == Kind::Data { extent.blocks } else { 0 };
            bad += if extent.state == ExtentState::Bad { u64::from(extent.blocks) } else { 0 };
        }
        equal("blocks that could not be read", self.bad, bad)?;
        for (segment, counted) in self.segments.iter().zip(sums) {
            equal("dirty blocks and blocks of data of a segment", (segment.dirty, segment.held), counted)?;
        }
        Ok(())
    }
}
