//! The first structures of an array.

use crate::effect::Rejected;
use crate::effect::Target;
use crate::format::{ArrayId, Kind, MemberId, MemberState, Superblock};
use crate::geometry::Geometry;
use crate::{bitmap::Bitmap, format::Page};

/// What an array is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A fresh random name.
    pub array: ArrayId,
    /// Logical block size, 512 or 4096 bytes: that of the members.
    pub logical_block: u32,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Bytes of a region.
    pub region: u32,
    /// What the bitmaps say at first.
    pub regions: Regions,
}

/// What the bitmaps of a new array say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regions {
    /// No region was ever written: the first write to each waits for its bit, and a replacement copies what was written.
    #[default]
    Blank,
    /// Every region was: no write waits for a bit, and a replacement copies everything. For arrays that live shortly.
    Written,
}

/// A structure to write: (volume, first byte, bytes).
pub type Structure = (Target, u64, Box<[u8]>);

/// What to write to blank volumes to make them an array.
#[derive(Debug)]
pub struct Creation {
    /// How it is divided.
    pub geometry: Geometry,
    /// Write these and flush all volumes,
    pub bitmaps: Vec<Structure>,
    /// then these, and flush again: an array that has no superblock yet is none.
    pub superblocks: Vec<Structure>,
}

/// Makes an array of blank volumes of one size: (volume, a fresh random name, bytes), by slot.
///
/// # Errors
/// If sizes differ, or do not go with the options.
pub fn create(options: &Options, volumes: &[(Target, MemberId, u64)]) -> Result<Creation, Rejected> {
    let size = volumes.iter().map(|volume| volume.2).min().unwrap_or(0);
    if let Some((slot, odd)) = volumes.iter().enumerate().find(|(_, volume)| volume.2 != size) {
        let odd = odd.2;
        return Err(Rejected(format!(
            "the volumes of an array have one size, and that of slot {slot} has {odd} bytes where another has {size}: use volumes of \
             one size"
        )));
    }
    let names: Vec<MemberId> = volumes.iter().map(|volume| volume.1).collect();
    if names.iter().enumerate().any(|(slot, name)| names[..slot].contains(name)) {
        return Err(Rejected("two volumes cannot be one member: list each volume once".to_owned()));
    }
    let geometry = Geometry::divide(names.len() as u32, size, options.logical_block, options.chunk, options.region)?;
    let (mut bitmaps, mut superblocks) = (Vec::new(), Vec::new());
    for (slot, &(target, member, _)) in volumes.iter().enumerate() {
        for copy in 0..2 {
            for content in Bitmap::first_pages(options, member, geometry.bitmap_pages) {
                bitmaps.push((target, geometry.page_offset(content.page, copy), content.encode()));
            }
            // Both places: whatever was there counts no more.
            let superblock = Superblock {
                array: options.array,
                member,
                sequence: 1 + u64::from(copy),
                generation: 1,
                slot: slot as u32,
                state: MemberState::Active,
                geometry,
                members: names.clone(),
            };
            superblocks.push((target, superblock.offset(), superblock.encode()));
        }
    }
    Ok(Creation { geometry, bitmaps, superblocks })
}

impl Bitmap {
    /// The pages of a new member.
    fn first_pages(options: &Options, member: MemberId, pages: u32) -> Vec<Page> {
        let mut bitmap = Self::empty(options.array, member, Kind::Written, pages);
        if options.regions == Regions::Written {
            bitmap.fill();
        }
        std::iter::from_fn(|| bitmap.next_version()).map(|version| version.content).collect()
    }
}
