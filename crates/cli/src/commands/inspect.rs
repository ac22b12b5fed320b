//! `surgetank inspect VOLUME`: reads a caching volume as it lies there, without changing it.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surgetank_cache::format::{
    self, LogState, SUPERBLOCKS_LENGTH, SegmentTable, Superblock, choose_superblock, read_table, scan_segment,
};
use surgetank_model::Bytes;

use crate::failure::{Doing, Failure};
use crate::output;

/// Flags of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank inspect /dev/vdc
  surgetank inspect --json /var/lib/surgetank/volumes/vol-1.img

Nothing is written. A volume that is in use changes while it is read: stop its device for an exact answer.")]
pub struct Arguments {
    /// A block device or a file that is, or was, a caching volume
    volume: PathBuf,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    volume: PathBuf,
    size_gib: f64,
    /// Of the attachment that the volume serves or served.
    epoch: String,
    /// "active": its records must be replayed after a crash; "clean": released, nothing on it counts.
    state: &'static str,
    /// Where the newest data of the device are.
    owner: &'static str,
    /// Size of the elastic device that it serves.
    device_size_gib: f64,
    superblocks_valid: u32,
    superblock_sequence: u64,
    segment_size_mib: f64,
    segments: u32,
    segments_in_use: u32,
    records: u64,
    sequence_last: Option<u64>,
    data_blocks: u64,
    data_gib: f64,
    /// Data blocks whose bytes do not match their checksum: torn by a crash, or damaged.
    data_blocks_corrupt: u64,
    zeroed_blocks: u64,
    discarded_blocks: u64,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let findings = inspect(&self.volume)?;
        if self.json { output::print_json(&findings) } else { output::print(&people(&findings)) }
    }
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let shown = path.display();
    let mut file = File::open(path).map_err(|error| {
        Failure::Invalid(format!("cannot open {shown}: {error}; name a file or block device that you may read"))
    })?;
    let kind = file.metadata().doing(|| format!("cannot examine {shown}"))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::Invalid(format!("{shown} is neither a file nor a block device: name a caching volume")));
    }
    let size = file.seek(SeekFrom::End(0)).doing(|| format!("cannot find the size of {shown}"))?;
    Ok((file, size))
}

fn read(file: &File, path: &Path, offset: u64, length: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; usize::try_from(length).map_err(Failure::failed)?];
    file.read_exact_at(&mut bytes, offset).doing(|| format!("cannot read {} at byte {offset}", path.display()))?;
    Ok(bytes)
}

fn inspect(path: &Path) -> Result<Findings, Failure> {
    let (file, size) = open(path)?;
    let not_ours = |why: &str| {
        Failure::Invalid(format!("{} is not a surgetank caching volume: {why}; check the path", path.display()))
    };
    if size < u64::from(SUPERBLOCKS_LENGTH) {
        return Err(not_ours("it is too small for one"));
    }
    let area = read(&file, path, 0, SUPERBLOCKS_LENGTH.into())?;
    let superblock = choose_superblock(&area).ok_or_else(|| not_ours("it has no valid superblock"))?;
    let superblocks_valid =
        area.chunks(format::BLOCK as usize).filter(|block| Superblock::decode(block).is_some()).count() as u32;
    let geometry = superblock.geometry();
    if geometry.end() > size {
        return Err(Failure::Failed(format!(
            "{} is cut off: its log ends at byte {} but the volume has {size} bytes; inspect the whole volume",
            path.display(),
            geometry.end()
        )));
    }
    let table = read(&file, path, SUPERBLOCKS_LENGTH.into(), geometry.table_length())?;
    let pages = read_table(&table, superblock.epoch, superblock.segments).ok_or_else(|| {
        Failure::Failed(format!(
            "the segment table of {} is damaged, so its records cannot be told from stale ones",
            path.display()
        ))
    })?;
    let mut findings = blank(path, size, &superblock, superblocks_valid);
    for (segment, generation) in generations(&pages) {
        let bytes = read(&file, path, geometry.segment_offset(segment), geometry.segment_size.into())?;
        findings.count(&scan_segment(&bytes, superblock.epoch, segment, generation));
    }
    findings.data_gib = Bytes::new(findings.data_blocks * u64::from(format::BLOCK)).as_gib();
    Ok(findings)
}

fn generations(pages: &[SegmentTable]) -> impl Iterator<Item = (u32, u32)> + '_ {
    (0..).zip(pages.iter().flat_map(|page| page.generations.iter().copied()))
}

fn blank(path: &Path, size: u64, superblock: &Superblock, superblocks_valid: u32) -> Findings {
    let (state, owner) = match superblock.state {
        LogState::Active => ("active", "caching volume"),
        LogState::Clean => ("clean", "backing volume"),
    };
    Findings {
        volume: path.to_owned(),
        size_gib: Bytes::new(size).as_gib(),
        epoch: superblock.epoch.to_string(),
        state,
        owner,
        device_size_gib: Bytes::new(superblock.device_size).as_gib(),
        superblocks_valid,
        superblock_sequence: superblock.sequence,
        segment_size_mib: Bytes::new(superblock.segment_size.into()).as_mib(),
        segments: superblock.segments,
        segments_in_use: 0,
        records: 0,
        sequence_last: None,
        data_blocks: 0,
        data_gib: 0.0,
        data_blocks_corrupt: 0,
        zeroed_blocks: 0,
        discarded_blocks: 0,
    }
}

impl Findings {
    fn count(&mut self, records: &[format::Record]) {
        self.segments_in_use += u32::from(!records.is_empty());
        for record in records {
            self.records += 1;
            self.sequence_last = self.sequence_last.max(Some(record.summary.sequence));
            self.data_blocks += record.intact.len() as u64;
            self.data_blocks_corrupt += record.intact.iter().filter(|intact| !**intact).count() as u64;
            for entry in &record.summary.entries {
                match entry.content {
                    format::Content::Zeroes => self.zeroed_blocks += u64::from(entry.blocks),
                    format::Content::Discarded => self.discarded_blocks += u64::from(entry.blocks),
                    format::Content::Data | format::Content::Copied => {}
                }
            }
        }
    }
}

fn people(found: &Findings) -> String {
    let state = match found.state {
        "clean" => "clean: released, nothing on it counts; it may be deleted",
        _ => "active: it may hold data that the backing volume lacks; do not delete it",
    };
    let checksums = match found.data_blocks_corrupt {
        0 => "all match".to_owned(),
        bad => format!("{bad} do not match: torn by a crash before they were durable, or damaged"),
    };
    let rows = [
        ("volume", format!("{} ({:.3} GiB)", found.volume.display(), found.size_gib)),
        ("state", state.to_owned()),
        ("epoch", found.epoch.clone()),
        ("owner", format!("the {} has the newest data", found.owner)),
        ("device", format!("{:.3} GiB", found.device_size_gib)),
        ("superblocks", format!("{} of 2 valid, sequence {}", found.superblocks_valid, found.superblock_sequence)),
        (
            "segments",
            format!(
                "{} of {} hold records, {} MiB each",
                found.segments_in_use, found.segments, found.segment_size_mib
            ),
        ),
        ("records", found.records.to_string()),
        ("data", format!("{:.3} GiB in {} blocks of 4 KiB", found.data_gib, found.data_blocks)),
        ("checksums", checksums),
    ];
    rows.iter().map(|(name, value)| format!("{name:12} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use surgetank_cache::Epoch;
    use surgetank_cache::format::{Content, Entry, Geometry, Summary};

    use super::*;

    const SIZE: u64 = 8 << 20;
    const EPOCH: Epoch = Epoch([7; 16]);

    /// A caching volume with one record of two data blocks in its first segment.
    fn volume(state: LogState) -> (tempfile::NamedTempFile, Geometry) {
        let geometry = Geometry::of_volume(SIZE).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        let mut put = |offset: u64, block: &[u8]| {
            bytes[offset as usize..offset as usize + block.len()].copy_from_slice(block);
        };
        let superblock = Superblock {
            sequence: 3,
            epoch: EPOCH,
            state,
            device_size: 1 << 30,
            segment_size: geometry.segment_size,
            segments: geometry.segments,
        };
        put(superblock.offset(), &superblock.encode()[..]);
        let mut left = geometry.segments;
        for page in 0..geometry.table_pages() {
            let count = left.min(format::SEGMENTS_PER_PAGE);
            left -= count;
            let table = SegmentTable { page, sequence: 1, epoch: EPOCH, generations: vec![1; count as usize] };
            put(table.offset(), &table.encode()[..]);
        }
        let data = vec![0x5a; 2 * format::BLOCK as usize];
        let summary = Summary {
            epoch: EPOCH,
            segment: 0,
            generation: 1,
            position: 0,
            sequence: 9,
            entries: vec![
                Entry { block: 5, blocks: 2, content: Content::Data },
                Entry { block: 90, blocks: 4, content: Content::Zeroes },
            ],
            checksums: data.chunks(format::BLOCK as usize).map(format::checksum).collect(),
        };
        put(geometry.segment_offset(0), &summary.encode()[..]);
        put(geometry.segment_offset(0) + u64::from(format::BLOCK), &data);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        (file, geometry)
    }

    #[test]
    fn what_is_on_a_volume_is_counted() {
        let (file, _) = volume(LogState::Active);
        let found = inspect(file.path()).unwrap();
        assert_eq!((found.state, found.owner), ("active", "caching volume"));
        assert_eq!(found.epoch, EPOCH.to_string());
        assert_eq!((found.records, found.data_blocks, found.data_blocks_corrupt), (1, 2, 0));
        assert_eq!((found.segments_in_use, found.zeroed_blocks, found.sequence_last), (1, 4, Some(9)));
        assert_eq!(found.superblocks_valid, 1);
        assert!(people(&found).contains("all match"));
    }

    #[test]
    fn a_clean_volume_says_that_it_may_be_deleted() {
        let (file, _) = volume(LogState::Clean);
        assert!(people(&inspect(file.path()).unwrap()).contains("may be deleted"));
    }

    #[test]
    fn a_damaged_data_block_is_found() {
        let (file, geometry) = volume(LogState::Active);
        file.as_file().write_all_at(&[1], geometry.segment_offset(0) + 5000).unwrap();
        let found = inspect(file.path()).unwrap();
        assert_eq!((found.data_blocks, found.data_blocks_corrupt), (2, 1));
    }

    #[test]
    fn what_is_no_caching_volume_is_refused() {
        let mut garbage = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(inspect(garbage.path()).unwrap_err().status(), 2);
        garbage.write_all(&vec![0xa5; 1 << 20]).unwrap();
        assert_eq!(inspect(garbage.path()).unwrap_err().status(), 2);
        assert_eq!(inspect(Path::new("/dev/null")).unwrap_err().status(), 2);
        assert_eq!(inspect(Path::new("/")).unwrap_err().status(), 2);
        let (cut, _) = volume(LogState::Active);
        cut.as_file().set_len(1 << 20).unwrap();
        assert_eq!(inspect(cut.path()).unwrap_err().status(), 1);
    }
}
