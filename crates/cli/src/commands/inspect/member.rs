//! A member of an array, or of the stripe over which a boost is spread, as it lies there.

use std::path::PathBuf;

use serde::Serialize;
use surgetank_array::Said;
use surgetank_array::format::{BLOCK, MemberState, Pages, SUPERBLOCKS_LENGTH, Superblock};
use surgetank_cache::format::{self as cache, LogState};
use surgetank_model::Bytes;
use surgetank_report::Failure;

use super::medium::Medium;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Member {
    volume: PathBuf,
    size_gib: f64,
    /// "array member", or "stripe member": a volume of a boost that is striped over several.
    kind: &'static str,
    /// Name of the array or stripe.
    array: String,
    /// Name of this member.
    member: String,
    /// Which of `members` it is, from 0.
    slot: u32,
    members: u32,
    /// Grows with every start of the array and every change of its membership.
    generation: u64,
    /// "active", "joining" or "retired".
    state: &'static str,
    superblocks_valid: u32,
    superblock_sequence: u64,
    /// Names of the members of all slots, as of this generation.
    member_names: Vec<String>,
    logical_block_bytes: u32,
    chunk_kib: f64,
    region_kib: f64,
    /// Data on this member.
    data_gib: f64,
    array_size_gib: f64,
    regions: u64,
    /// Regions that were ever written; `null`: it is joining.
    regions_written: Option<u64>,
    /// Regions that a joining member has; `null`: it is not joining.
    regions_copied: Option<u64>,
    bitmap_pages: u32,
    /// Pages of the bitmap of which a copy is damaged: their regions count as written, or as not copied.
    bitmap_pages_damaged: u32,
    /// What the stripe holds, on the member that has its beginning.
    caching: Option<Caching>,
}

/// The log that begins on the first member of a stripe.
#[derive(Debug, Serialize)]
struct Caching {
    epoch: String,
    /// "active" or "clean", as of a caching volume.
    state: &'static str,
    device_size_gib: f64,
}

/// What is on a member. `None`: the volume is none.
pub fn inspect(medium: &mut Medium) -> Result<Option<Member>, Failure> {
    let (head, _) = medium.read(0, SUPERBLOCKS_LENGTH as usize);
    let blocks = head.chunks(BLOCK as usize);
    if medium.superblock.is_some() || !blocks.clone().any(Superblock::is_marked) {
        return Ok(None);
    }
    let path = medium.path.display().to_string();
    let valid: Vec<Superblock> = blocks.filter_map(Superblock::decode).collect();
    if let [first, second] = &*valid
        && first.array != second.array
    {
        return Err(Failure::Failed(format!(
            "{path} is claimed by the arrays {} and {}: detach it, and find out which of them wrote to it last",
            first.array, second.array
        )));
    }
    let superblocks_valid = valid.len() as u32;
    let Some(superblock) = valid.into_iter().max_by_key(|superblock| superblock.sequence) else {
        return Err(Failure::Failed(format!(
            "{path} was a member of an array, and both of its superblocks are damaged: restore its first 8 KiB, or the volume, from a \
             copy; `surgetank array status` says whether its array misses it"
        )));
    };
    let geometry = superblock.geometry;
    if geometry.member_length() > medium.size {
        return Err(Failure::Failed(format!(
            "{path} is cut off: the array uses {} bytes of it but it has {}; inspect the whole volume",
            geometry.member_length(),
            medium.size
        )));
    }
    let (bitmap, _) = medium.read(geometry.bitmap_offset(), geometry.bitmap_length() as usize);
    let said = Said::of(&superblock, &Pages::read(&bitmap));
    let joins = superblock.state == MemberState::Joining;
    let caching = (said.filled && superblock.slot == 0).then(|| caching(medium, geometry.data_offset())).flatten();
    Ok(Some(Member {
        volume: medium.path.clone(),
        size_gib: Bytes::new(medium.size).as_gib(),
        kind: if said.filled { "stripe member" } else { "array member" },
        array: superblock.array.to_string(),
        member: superblock.member.to_string(),
        slot: superblock.slot,
        members: geometry.members,
        generation: superblock.generation,
        state: match superblock.state {
            MemberState::Active => "active",
            MemberState::Joining => "joining",
            MemberState::Retired => "retired",
        },
        superblocks_valid,
        superblock_sequence: superblock.sequence,
        member_names: superblock.members.iter().map(ToString::to_string).collect(),
        logical_block_bytes: geometry.logical_block,
        chunk_kib: f64::from(geometry.chunk) / 1024.0,
        region_kib: f64::from(geometry.region) / 1024.0,
        data_gib: Bytes::new(geometry.data_length).as_gib(),
        array_size_gib: Bytes::new(geometry.size()).as_gib(),
        regions: geometry.regions(),
        regions_written: (!joins).then_some(said.regions),
        regions_copied: joins.then_some(said.regions),
        bitmap_pages: geometry.bitmap_pages,
        bitmap_pages_damaged: said.pages_damaged,
        caching,
    }))
}

/// The superblocks of the log that begins there.
fn caching(medium: &mut Medium, offset: u64) -> Option<Caching> {
    let (head, _) = medium.read(offset, cache::SUPERBLOCKS_LENGTH as usize);
    let slots: Vec<_> = head.chunks(cache::BLOCK as usize).map(cache::Superblock::decode).collect();
    let superblock = cache::choose_among(&slots)?;
    Some(Caching {
        epoch: superblock.epoch.to_string(),
        state: match superblock.state {
            LogState::Active => "active",
            LogState::Clean => "clean",
        },
        device_size_gib: Bytes::new(superblock.device_size).as_gib(),
    })
}

impl Member {
    /// The same in words.
    pub fn people(&self) -> String {
        let (which, of) = (self.slot + 1, self.members);
        let what = match self.kind {
            "stripe member" => format!("volume {which} of {of} of a boost that is striped over {of} volumes"),
            _ => format!("the member of slot {} of an array of {of}", self.slot),
        };
        let named = self.member_names.get(self.slot as usize) == Some(&self.member);
        let state = match self.state {
            "active" if named => "active: it has its slot's data; do not delete it while its array is in use",
            "active" => "active, and its own superblock names another member for its slot: it was replaced",
            "joining" => "joining: it is being given its slot's data, and does not count yet",
            _ => "retired: it was replaced, nothing on it counts; it may be deleted",
        };
        let share = |regions: u64| format!("{regions} of {} ({:.0} KiB each)", self.regions, self.region_kib);
        let regions = match (self.kind, self.regions_written, self.regions_copied) {
            ("stripe member", ..) => "all count as written: members of a stripe are not replaced".to_owned(),
            (_, Some(written), _) => format!("{} were ever written", share(written)),
            (_, _, copied) => format!("{} are copied", share(copied.unwrap_or(0))),
        };
        let bitmap = match self.bitmap_pages_damaged {
            0 => format!("{} pages, all valid", self.bitmap_pages),
            bad => format!("{bad} of {} pages are damaged: their regions are copied again", self.bitmap_pages),
        };
        let mut rows = vec![
            ("volume", format!("{} ({:.3} GiB)", self.volume.display(), self.size_gib)),
            ("is", what),
            ("state", state.to_owned()),
            ("array", format!("{}, {:.3} GiB, generation {}", self.array, self.array_size_gib, self.generation)),
            ("member", self.member.clone()),
            ("superblocks", format!("{} of 2 valid, sequence {}", self.superblocks_valid, self.superblock_sequence)),
            ("data", format!("{:.3} GiB in chunks of {:.0} KiB", self.data_gib, self.chunk_kib)),
            ("regions", regions),
            ("bitmap", bitmap),
        ];
        if let Some(caching) = &self.caching {
            rows.push((
                "log",
                format!("{}, epoch {}, device {:.3} GiB", caching.state, caching.epoch, caching.device_size_gib),
            ));
        }
        rows.iter().map(|(name, value)| format!("{name:12} {value}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use surgetank_array::{ArrayId, MemberId, Options, Regions, Target, create};

    use super::*;

    const SIZE: u64 = 8 << 20;

    /// The volumes of a new array.
    fn volumes(regions: Regions) -> Vec<tempfile::NamedTempFile> {
        let options =
            Options { array: ArrayId([7; 16]), logical_block: 512, chunk: 128 << 10, region: 1 << 20, regions };
        let members: Vec<_> = (0..3).map(|number| (Target(number), MemberId([number as u8; 16]), SIZE)).collect();
        let creation = create(&options, &members).unwrap();
        let files: Vec<_> = members.iter().map(|_| tempfile::NamedTempFile::new().unwrap()).collect();
        files.iter().for_each(|file| file.as_file().set_len(SIZE).unwrap());
        for (target, offset, bytes) in creation.bitmaps.iter().chain(&creation.superblocks) {
            files[target.0 as usize].as_file().write_all_at(bytes, *offset).unwrap();
        }
        files
    }

    fn found(file: &tempfile::NamedTempFile) -> Result<Option<Member>, Failure> {
        inspect(&mut Medium::open(file.path()).unwrap())
    }

    #[test]
    fn a_member_says_which_it_is_and_what_of_it_was_written() {
        let files = volumes(Regions::Blank);
        let member = found(&files[1]).unwrap().unwrap();
        assert_eq!((member.kind, member.slot, member.members, member.state), ("array member", 1, 3, "active"));
        assert_eq!((&*member.array, &*member.member), (&*"07".repeat(16), &*"01".repeat(16)));
        assert_eq!((member.regions_written, member.regions_copied, member.regions), (Some(0), None, 8));
        let text = member.people();
        assert!(
            text.contains("slot 1 of an array of 3") && text.contains("0 of 8 (1024 KiB each) were ever"),
            "{text}"
        );
        assert!(text.contains("2 of 2 valid") && text.contains("1 pages, all valid"), "{text}");
    }

    #[test]
    fn a_volume_of_a_stripe_says_which_of_how_many_and_what_the_stripe_holds() {
        let files = volumes(Regions::Written);
        let last = found(&files[2]).unwrap().unwrap();
        assert_eq!((last.kind, last.caching.is_none()), ("stripe member", true));
        assert!(last.people().contains("volume 3 of 3 of a boost"), "{}", last.people());
        let geometry = cache::Geometry::of_volume(SIZE).unwrap();
        let log = cache::Superblock::new(surgetank_cache::Epoch([9; 16]), geometry, 1 << 30);
        files[0].as_file().write_all_at(&log.encode()[..], (64 << 10) + log.offset()).unwrap();
        let first = found(&files[0]).unwrap().unwrap();
        assert!(first.people().contains(&format!("epoch {}", "09".repeat(16))), "{}", first.people());
    }

    #[test]
    fn what_is_damaged_is_told_with_the_remedy() {
        let files = volumes(Regions::Blank);
        let spoil = |offset: u64| files[0].as_file().write_all_at(&[1; 100], offset).unwrap();
        spoil(8192 + 100);
        let member = found(&files[0]).unwrap().unwrap();
        assert_eq!((member.bitmap_pages_damaged, member.regions_written, member.kind), (1, Some(8), "array member"));
        spoil(100);
        assert_eq!(found(&files[0]).unwrap().unwrap().superblocks_valid, 1);
        spoil(4096 + 100);
        let failure = found(&files[0]).unwrap_err();
        assert!(failure.status() == 1 && failure.to_string().contains("restore its first 8 KiB"), "{failure}");
        files[1].as_file().set_len(1 << 20).unwrap();
        assert!(found(&files[1]).unwrap_err().to_string().contains("is cut off"));
        let mut other = tempfile::NamedTempFile::new().unwrap();
        other.write_all(&[0; 1 << 16]).unwrap();
        assert!(found(&other).unwrap().is_none());
    }
}
