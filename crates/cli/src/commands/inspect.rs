//! `surgetank inspect VOLUME`: reads a caching volume or a member of an array as it lies there, without changing it.

mod medium;
mod member;
mod salvage;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use surgetank_cache::format::{self, LogState, Records};
use surgetank_model::Bytes;
use surgetank_report::{Failure, output};

use medium::{Generations, Medium};
use salvage::Salvage;

/// Flags of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank inspect /dev/vdc
  surgetank inspect --json /var/lib/surgetank/volumes/vol-1.img
  surgetank inspect --salvage /dev/vdc --to newest.img
  surgetank inspect --salvage /dev/vdc --to copy-of-vdb.img --apply
  surgetank inspect --salvage damaged.img --to /dev/vdb --apply --json

VOLUME is a caching volume, or a volume of an array or of a boost that is striped over several: then the answer says which \
array, which of its volumes, and how much of it was written. No daemon is needed.

Nothing is written to VOLUME. A volume that is in use changes while it is read: stop its device for an exact \
answer.

--salvage copies all readable data out of a volume that was not released, also of a damaged one. A new TARGET \
becomes a sparse file of the device's size with holes where the log has nothing. With --apply, TARGET is the \
backing volume or, better, a copy of it: afterwards it holds the newest data of both, as the device would. Blocks \
whose newest version cannot be read stay as they are, or get the newest readable version, and are listed. Exit \
status: 0 if everything was recovered, 1 if something is lost or doubtful (the report has the details), 2 if \
VOLUME or TARGET is unusable.")]
pub struct Arguments {
    /// A block device or a file that is, or was, a caching volume or a member of an array
    #[arg(value_name = "VOLUME", required_unless_present = "salvage", conflicts_with = "salvage")]
    volume: Option<PathBuf>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
    /// Write the newest version of every block of the device that this volume holds to --to
    #[arg(long, value_name = "VOLUME", requires = "to")]
    salvage: Option<PathBuf>,
    /// Where --salvage writes: a file that does not exist yet, or with --apply a file or block device that does
    #[arg(long, value_name = "TARGET", requires = "salvage")]
    to: Option<PathBuf>,
    /// TARGET exists and is (a copy of) the backing volume: write over it in place
    #[arg(long, requires = "salvage")]
    apply: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    volume: PathBuf,
    size_gib: f64,
    /// Version of the layout.
    layout: u32,
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
    /// Copies of pages of the segment table that are valid, of `table_copies`.
    table_copies_valid: u32,
    table_copies: u32,
    segment_size_mib: f64,
    segments: u32,
    segments_in_use: u32,
    records: u64,
    /// Records that are known to be missing, and not merely cut short by a crash.
    records_missing: u64,
    sequence_last: Option<u64>,
    /// Records up to this one are known to be durable.
    sequence_durable: u64,
    data_blocks: u64,
    data_gib: f64,
    /// Data blocks whose bytes do not match their checksum: torn by a crash, or damaged.
    data_blocks_corrupt: u64,
    /// Data blocks that cannot be read.
    data_blocks_unreadable: u64,
    /// 4 KiB blocks of the volume, of those that have a meaning, that cannot be read.
    blocks_unreadable: u64,
    zeroed_blocks: u64,
    discarded_blocks: u64,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        if let Some((volume, to)) = self.salvage.as_ref().zip(self.to.as_ref()) {
            return Salvage { volume, to, apply: self.apply }.run(self.json);
        }
        if self.to.is_some() || self.apply {
            return Err(Failure::invalid(
                "--to and --apply are for --salvage: write `inspect --salvage VOLUME --to TARGET`",
            ));
        }
        let volume = self.volume.as_ref().ok_or_else(|| Failure::invalid("name a volume to inspect"))?;
        if let Some(member) = member::inspect(&mut Medium::open(volume)?)? {
            return if self.json { output::print_json(&member) } else { output::print(&member.people()) };
        }
        let findings = inspect(volume)?;
        if self.json { output::print_json(&findings) } else { output::print(&people(&findings)) }
    }
}

fn inspect(path: &Path) -> Result<Findings, Failure> {
    let mut medium = Medium::open(path)?;
    let Some(superblock) = medium.superblock.clone() else {
        if medium.superblocks_damaged == 0 {
            return Err(medium.not_ours("it has no valid superblock"));
        }
        return Err(Failure::Failed(format!(
            "no superblock of {} can be read; surgetank inspect --salvage may still get data out of it",
            path.display()
        )));
    };
    let geometry = superblock.geometry();
    if geometry.end() > medium.size {
        return Err(Failure::Failed(format!(
            "{} is cut off: its log ends at byte {} but the volume has {} bytes; inspect the whole volume",
            path.display(),
            geometry.end(),
            medium.size
        )));
    }
    let generations = medium.generations(geometry, superblock.epoch);
    if let Some(page) = generations.pages.iter().position(Option::is_none) {
        return Err(Failure::Failed(format!(
            "page {page} of the segment table of {} is damaged, so its records cannot be told from stale ones; surgetank \
             inspect --salvage takes the newest it finds",
            path.display()
        )));
    }
    let mut findings = blank(path, &medium, &superblock, &generations);
    let log = medium.log(&superblock, &generations, |_| ());
    log.segments().for_each(|records| findings.count(records));
    findings.records_missing = log.missing().len() as u64;
    findings.sequence_durable = log.durable();
    findings.blocks_unreadable = medium.unreadable;
    findings.data_gib = Bytes::new(findings.data_blocks * u64::from(format::BLOCK)).as_gib();
    Ok(findings)
}

fn blank(path: &Path, medium: &Medium, superblock: &format::Superblock, generations: &Generations) -> Findings {
    let (state, owner) = match superblock.state {
        LogState::Active => ("active", "caching volume"),
        LogState::Clean => ("clean", "backing volume"),
    };
    Findings {
        volume: path.to_owned(),
        size_gib: Bytes::new(medium.size).as_gib(),
        layout: superblock.layout.version(),
        epoch: superblock.epoch.to_string(),
        state,
        owner,
        device_size_gib: Bytes::new(superblock.device_size).as_gib(),
        superblocks_valid: medium.superblocks_valid,
        superblock_sequence: superblock.sequence,
        table_copies_valid: generations.copies_valid,
        table_copies: generations.copies,
        segment_size_mib: Bytes::new(superblock.segment_size.into()).as_mib(),
        segments: superblock.segments,
        segments_in_use: 0,
        records: 0,
        records_missing: 0,
        sequence_last: None,
        sequence_durable: 0,
        data_blocks: 0,
        data_gib: 0.0,
        data_blocks_corrupt: 0,
        data_blocks_unreadable: 0,
        blocks_unreadable: 0,
        zeroed_blocks: 0,
        discarded_blocks: 0,
    }
}

impl Findings {
    fn count(&mut self, records: &Records) {
        self.segments_in_use += u32::from(!records.is_empty());
        for record in records.iter() {
            self.records += 1;
            self.sequence_last = self.sequence_last.max(Some(record.sequence));
            self.data_blocks += record.checksums.len() as u64;
            for (run, flaw) in record.runs(0..record.checksums.len() as u32) {
                match flaw {
                    Some(format::Flaw::Mismatch) => self.data_blocks_corrupt += run.len() as u64,
                    Some(format::Flaw::Unreadable) => self.data_blocks_unreadable += run.len() as u64,
                    None => {}
                }
            }
            for entry in record.entries() {
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
    let unreadable = match found.blocks_unreadable {
        0 => "none".to_owned(),
        bad => format!("{bad} blocks of 4 KiB, {} of them data", found.data_blocks_unreadable),
    };
    let missing = match found.records_missing {
        0 => String::new(),
        missing => format!(", {missing} are missing"),
    };
    let rows = [
        ("volume", format!("{} ({:.3} GiB)", found.volume.display(), found.size_gib)),
        ("state", state.to_owned()),
        ("epoch", found.epoch.clone()),
        ("owner", format!("the {} has the newest data", found.owner)),
        ("device", format!("{:.3} GiB", found.device_size_gib)),
        ("superblocks", format!("{} of 2 valid, sequence {}", found.superblocks_valid, found.superblock_sequence)),
        ("table", format!("{} of {} copies of pages valid", found.table_copies_valid, found.table_copies)),
        (
            "segments",
            format!(
                "{} of {} hold records, {} MiB each",
                found.segments_in_use, found.segments, found.segment_size_mib
            ),
        ),
        ("records", format!("{}{missing}", found.records)),
        ("data", format!("{:.3} GiB in {} blocks of 4 KiB", found.data_gib, found.data_blocks)),
        ("checksums", checksums),
        ("unreadable", unreadable),
    ];
    rows.iter().map(|(name, value)| format!("{name:12} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use surgetank_cache::Epoch;
    use surgetank_cache::format::{
        Content, Entry, Geometry, Layout, Place, SegmentTable, Summary, Superblock, TableCopy,
    };

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
        let superblock = Superblock { sequence: 3, state, ..Superblock::new(EPOCH, geometry, 1 << 30) };
        put(superblock.offset(), &superblock.encode()[..]);
        for page in 0..geometry.table_pages() {
            let segments = geometry.segments_of_page(page).len();
            let (generations, indexed) = (vec![1; segments], vec![false; segments]);
            let table = SegmentTable { layout: Layout::Two, page, sequence: 1, epoch: EPOCH, generations, indexed };
            TableCopy::ALL.iter().for_each(|copy| put(geometry.table_offset(page, *copy), &table.encode()[..]));
        }
        let data = vec![0x5a; 2 * format::BLOCK as usize];
        let summary = Summary {
            layout: Layout::Two,
            epoch: EPOCH,
            place: Place { sequence: 9, segment: 0, generation: 1, position: 0 },
            durable: 8,
            previous: None,
            repeat: None,
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
        assert_eq!((found.superblocks_valid, found.layout, found.sequence_durable), (1, 2, 8));
        assert_eq!((found.table_copies_valid, found.table_copies), (2, 2));
        assert_eq!((found.blocks_unreadable, found.records_missing), (0, 0));
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
    fn one_copy_of_the_table_is_enough() {
        let (file, geometry) = volume(LogState::Active);
        file.as_file().write_all_at(&[1], geometry.table_offset(0, TableCopy::First) + 50).unwrap();
        let found = inspect(file.path()).unwrap();
        assert_eq!((found.records, found.table_copies_valid, found.table_copies), (1, 1, 2));
        file.as_file().write_all_at(&[1], geometry.table_offset(0, TableCopy::Second) + 50).unwrap();
        assert!(inspect(file.path()).unwrap_err().to_string().contains("--salvage"));
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
