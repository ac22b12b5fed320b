//! `surgetank inspect --salvage VOLUME --to TARGET`: gets the newest data of a device out of a caching volume that no
//! daemon can recover, or without one.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use serde::Serialize;
use surgetank_cache::Epoch;
use surgetank_cache::format::{BLOCK, Content, Gap, Geometry, LogState, Superblock};
use surgetank_cache::replay::{Log, Newest, Version};
use surgetank_device::volume::exclusive::refuse_used;
use surgetank_model::Bytes;
use surgetank_report::progress::{self, ProgressBar};
use surgetank_report::{Doing, Failure, output};

use super::medium::{Generations, Medium};

const BLOCK64: u64 = BLOCK as u64;

/// What is asked for.
#[derive(Debug)]
pub struct Salvage<'a> {
    pub volume: &'a Path,
    pub to: &'a Path,
    /// The target exists and is written over in place.
    pub apply: bool,
}

/// A range of the device in bytes.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Extent {
    offset: u64,
    length: u64,
}

/// A record that is or may be missing, and nothing is known of it.
#[derive(Debug, Serialize)]
struct Missing {
    /// Its place in the order of all records; of one that no other record names, the highest that it may have.
    sequence: u64,
    segment: u32,
    /// 4 KiB block in the segment.
    position: u32,
    /// Its summary cannot be read; else it is damaged.
    unreadable: bool,
}

/// What was got out, and what was not.
#[derive(Debug, Serialize)]
struct Report {
    volume: PathBuf,
    target: PathBuf,
    /// Whether the target was there before, and was written over.
    applied: bool,
    /// Version of the layout.
    layout: u32,
    epoch: String,
    device_size_bytes: u64,
    superblocks_valid: u32,
    table_copies_valid: u32,
    table_copies: u32,
    records: u64,
    /// What was written to the target.
    data_bytes: u64,
    zeroed_bytes: u64,
    /// 4 KiB blocks of the volume that cannot be read.
    blocks_unreadable: u64,
    /// Ranges of the device whose newest version is damaged or cannot be read: they have an older one, or what was there.
    stale: Vec<Extent>,
    /// Ranges whose newest version does not match its checksum and is not known to have been flushed: a crash cut it short,
    /// or it was damaged since. They have the one before it.
    torn: Vec<Extent>,
    /// Records of which nothing is known.
    missing: Vec<Missing>,
    /// Ranges of the device of which missing records may have held a newer version.
    doubtful: Vec<Extent>,
    /// What else was assumed because nothing says so.
    doubts: Vec<String>,
    /// Nothing is lost, nothing is doubtful.
    complete: bool,
}

/// Which log there is, and what is doubtful about that.
struct Survey {
    geometry: Geometry,
    epoch: Epoch,
    /// As the superblock has it.
    device_size: Option<u64>,
    superblock: Superblock,
    table: Generations,
    doubts: Vec<String>,
}

/// Where the data go.
struct Target {
    file: File,
    path: PathBuf,
    size: u64,
    fresh: bool,
}

impl Salvage<'_> {
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let medium = Medium::open(self.volume)?;
        let report =
            self.salvage(medium, &progress::bar("{msg} {bar:40.colour} {bytes} of {total_bytes}, {eta} left", 0))?;
        if json {
            output::print_json(&report)?
        } else {
            output::print(&people(&report))?
        }
        if report.complete {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "not everything could be got out of {}: the report names what is lost or doubtful",
            self.volume.display()
        )))
    }

    fn salvage(&self, mut medium: Medium, bar: &ProgressBar) -> Result<Report, Failure> {
        self.check_volume(&medium)?;
        // What is refused is refused before hours of reading.
        let existing = self.existing(&medium)?;
        let mut survey = survey(&mut medium, self.volume)?;
        let geometry = survey.geometry;
        begin(bar, "reading", u64::from(geometry.segments) * u64::from(geometry.segment_size));
        let log = medium.log(&survey.superblock, &survey.table, |bytes| bar.inc(bytes));
        let size = device_size(&log, &mut survey, existing.as_ref())?;
        let newest = log.newest(size / BLOCK64);
        let target = match existing {
            Some(target) => target,
            None => self.create(size)?,
        };
        let mut report = self.report(&medium, &survey, &log, &newest, size);
        write(&mut medium, &target, &newest, &mut report, bar)?;
        bar.finish_and_clear();
        report.blocks_unreadable = medium.unreadable;
        // What is not marked as durable may have been flushed all the same: the mark comes with the next record.
        let whole = report.stale.is_empty() && report.torn.is_empty() && report.missing.is_empty();
        report.complete = whole && report.doubts.is_empty();
        Ok(report)
    }

    fn check_volume(&self, medium: &Medium) -> Result<(), Failure> {
        let shown = self.volume.display();
        let kind = medium.file.metadata().doing(|| format!("cannot examine {shown}"))?.file_type();
        let in_use = if kind.is_block_device() {
            let exclusive = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.volume);
            exclusive.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
        } else {
            flock(&medium.file, FlockOperation::NonBlockingLockShared).is_err()
        };
        if in_use {
            return Err(Failure::Invalid(format!(
                "{shown} is in use; stop the daemon whose caching volume it is first"
            )));
        }
        Ok(())
    }

    /// The target, if it exists.
    fn existing(&self, medium: &Medium) -> Result<Option<Target>, Failure> {
        let shown = self.to.display();
        let Ok(metadata) = std::fs::metadata(self.to) else {
            if self.apply {
                return Err(Failure::Invalid(format!(
                    "{shown} does not exist; --apply writes over (a copy of) the backing volume, so make the copy first \
                     or leave the flag out"
                )));
            }
            return Ok(None);
        };
        if !self.apply {
            return Err(Failure::Invalid(format!(
                "{shown} exists; name a new file, or if it is (a copy of) the backing volume, add --apply to write the \
                 newest data over it"
            )));
        }
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::Invalid(format!("{shown} is neither a file nor a block device")));
        }
        let volume = medium.file.metadata().doing(|| format!("cannot examine {}", self.volume.display()))?;
        let same_file = (volume.dev(), volume.ino()) == (metadata.dev(), metadata.ino());
        let same_disk =
            kind.is_block_device() && volume.file_type().is_block_device() && volume.rdev() == metadata.rdev();
        if same_file || same_disk {
            return Err(Failure::Invalid(format!("{shown} is the caching volume itself; name another target")));
        }
        refuse_used(self.to).map_err(|error| Failure::Invalid(error.to_string()))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if kind.is_block_device() {
            options.custom_flags(libc::O_EXCL);
        }
        let mut file = options
            .open(self.to)
            .map_err(|error| Failure::Invalid(format!("cannot open {shown} to write it: {error}; is it in use?")))?;
        if kind.is_file() && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Failure::Invalid(format!("{shown} is in use; stop the daemon that has it first")));
        }
        let size = file.seek(SeekFrom::End(0)).doing(|| format!("cannot find the size of {shown}"))?;
        Ok(Some(Target { file, path: self.to.to_owned(), size, fresh: false }))
    }

    fn create(&self, size: u64) -> Result<Target, Failure> {
        let shown = self.to.display();
        let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.to);
        let file = created.map_err(|error| Failure::Invalid(format!("cannot create {shown}: {error}")))?;
        file.set_len(size).doing(|| format!("cannot give {shown} the {size} bytes of the device"))?;
        Ok(Target { file, path: self.to.to_owned(), size, fresh: true })
    }

    fn report(&self, medium: &Medium, survey: &Survey, log: &Log, newest: &Newest, size: u64) -> Report {
        let missing = |gap: Gap| Missing {
            sequence: gap.place.sequence,
            segment: gap.place.segment,
            position: gap.place.position,
            unreadable: gap.unreadable,
        };
        let mut doubts = survey.doubts.clone();
        let beyond: u64 = newest.beyond().map(|range| range.end - range.start).sum();
        if beyond > 0 {
            doubts.push(format!("{beyond} blocks lie beyond the end of the target and were left out"));
        }
        Report {
            volume: self.volume.to_owned(),
            target: self.to.to_owned(),
            applied: self.apply,
            layout: survey.geometry.layout.version(),
            epoch: survey.epoch.to_string(),
            device_size_bytes: size,
            superblocks_valid: medium.superblocks_valid,
            table_copies_valid: survey.table.copies_valid,
            table_copies: survey.table.copies,
            records: log.segments().map(|records| records.iter().count() as u64).sum(),
            data_bytes: 0,
            zeroed_bytes: 0,
            blocks_unreadable: medium.unreadable,
            stale: extents(newest.stale()),
            torn: extents(newest.torn()),
            missing: log.missing().into_iter().map(missing).collect(),
            doubtful: extents(newest.doubtful()),
            doubts,
            complete: false,
        }
    }
}

fn extents(blocks: impl Iterator<Item = Range<u64>>) -> Vec<Extent> {
    blocks.map(|range| Extent { offset: range.start * BLOCK64, length: (range.end - range.start) * BLOCK64 }).collect()
}

/// Finds out which log there is.
fn survey(medium: &mut Medium, volume: &Path) -> Result<Survey, Failure> {
    let mut doubts = Vec::new();
    let (geometry, epoch, device_size, superblock) = match medium.superblock.clone() {
        Some(superblock) if superblock.state == LogState::Clean => {
            return Err(Failure::Invalid(format!(
                "{} was released: nothing on it counts, and the backing volume has everything",
                volume.display()
            )));
        }
        Some(superblock) => {
            if medium.superblocks_damaged > 0 {
                doubts.push(
                    "one superblock is damaged or cannot be read: if it said that the volume was released, nothing here is \
                     newer than the backing volume"
                        .to_owned(),
                );
            }
            (superblock.geometry(), superblock.epoch, Some(superblock.device_size), superblock)
        }
        None => {
            let guess = medium.guess();
            let (geometry, epoch, by_pages) =
                guess.ok_or_else(|| medium.not_ours("it has no superblock, segment table or record"))?;
            let by = if by_pages { "the segment table names" } else { "most records name" };
            doubts.push(format!(
                "no superblock can be read: the layout follows from the volume's size, the attachment is the one that {by}, \
                 and whether the volume was released is not known"
            ));
            (geometry, epoch, None, Superblock::unread(epoch, geometry, 0))
        }
    };
    if geometry.end() > medium.size {
        doubts.push(format!(
            "the volume is cut off: its log ends at byte {}, but the volume has {} bytes",
            geometry.end(),
            medium.size
        ));
    }
    let table = medium.generations(geometry, epoch);
    for (page, found) in (0..).zip(&table.pages) {
        let segments = geometry.segments_of_page(page);
        let (first, last) = (segments.start, segments.end - 1);
        if found.is_none() {
            doubts.push(format!(
                "page {page} of the segment table is lost: in segments {first} to {last} the newest records were taken, \
                 though they may have been discarded before, with what is newer on the backing volume"
            ));
        } else if table.aged.contains(&page) {
            doubts.push(format!(
                "one copy of page {page} of the segment table cannot be read and may be the newer one: records in segments \
                 {first} to {last} may have been discarded before, with what is newer on the backing volume"
            ));
        }
    }
    Ok(Survey { geometry, epoch, device_size, superblock, table, doubts })
}

/// Bytes of the device.
fn device_size(log: &Log, survey: &mut Survey, existing: Option<&Target>) -> Result<u64, Failure> {
    let entries = log.segments().flat_map(|records| {
        let entries: Vec<_> = records.iter().flat_map(|record| record.entries().collect::<Vec<_>>()).collect();
        entries
    });
    let replayed = entries.filter(|entry| entry.content != Content::Copied);
    let end = replayed.map(|entry| entry.block + u64::from(entry.blocks)).max().unwrap_or(0) * BLOCK64;
    if let Some(target) = existing {
        let needed = survey.device_size.unwrap_or(0);
        if target.size < needed {
            return Err(Failure::Invalid(format!(
                "{} has {} bytes but the device has {needed}; it is not (a whole copy of) the backing volume",
                target.path.display(),
                target.size
            )));
        }
        return Ok(target.size);
    }
    match survey.device_size {
        Some(size) if end > size => {
            survey.doubts.push(format!("the device has grown from {size} bytes to at least {end}"));
        }
        Some(size) => return Ok(size),
        None => survey
            .doubts
            .push("the size of the device is not known: the target ends with the last block found".to_owned()),
    }
    Ok(end)
}

/// Writes what is sound to the target.
fn write(
    medium: &mut Medium,
    target: &Target,
    newest: &Newest,
    report: &mut Report,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    begin(bar, "writing", newest.sound().map(|(blocks, _)| (blocks.end - blocks.start) * BLOCK64).sum());
    let failed = || format!("cannot write {}, which is incomplete now", target.path.display());
    for (blocks, version) in newest.sound() {
        let (offset, length) = (blocks.start * BLOCK64, (blocks.end - blocks.start) * BLOCK64);
        match version {
            Version::Data(from) => {
                let (bytes, unreadable) = medium.read(from, usize::try_from(length).map_err(Failure::failed)?);
                let mut at = 0;
                // Between the first and the second time they have become unreadable.
                for block in unreadable.iter().map(|block| *block as usize).chain([bytes.len() / BLOCK as usize]) {
                    let sound = &bytes[at * BLOCK as usize..block * BLOCK as usize];
                    target.file.write_all_at(sound, offset + at as u64 * BLOCK64).doing(failed)?;
                    report.data_bytes += sound.len() as u64;
                    at = block + 1;
                }
                let stale = unreadable.iter().map(|block| blocks.start + u64::from(*block));
                report.stale.extend(extents(stale.map(|block| block..block + 1)));
            }
            Version::Zeroes | Version::Discarded => {
                if !target.fresh {
                    zero(&target.file, offset, length).doing(failed)?;
                }
                report.zeroed_bytes += length;
            }
        }
        bar.inc(length);
    }
    report.stale.sort_by_key(|extent| extent.offset);
    target.file.sync_all().doing(failed)
}

/// Makes a range read as zeroes, as a hole where that is possible.
fn zero(file: &File, offset: u64, length: u64) -> std::io::Result<()> {
    if fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length).is_ok() {
        return Ok(());
    }
    let zeroes = vec![0; (1 << 20).min(length) as usize];
    let mut at = offset;
    while at < offset + length {
        let part = (offset + length - at).min(zeroes.len() as u64);
        file.write_all_at(&zeroes[..part as usize], at)?;
        at += part;
    }
    Ok(())
}

/// Starts a bar again for what takes so many bytes.
fn begin(bar: &ProgressBar, phase: &'static str, bytes: u64) {
    bar.reset();
    bar.set_message(phase);
    bar.set_length(bytes);
}

/// Ranges that people want to see before they turn to --json.
const SHOWN: usize = 8;

fn people(report: &Report) -> String {
    let mib = |bytes: u64| format!("{:.3} MiB", Bytes::new(bytes).as_mib());
    let ranges = |name: &str, extents: &[Extent]| {
        let total = mib(extents.iter().map(|extent| extent.length).sum());
        let mut text = format!("{name:12} {total} in {} ranges of the device\n", extents.len());
        for extent in extents.iter().take(SHOWN) {
            text += &format!("{:12} {} bytes at byte {}\n", "", extent.length, extent.offset);
        }
        if extents.len() > SHOWN {
            text += &format!("{:12} and {} more, see --json\n", "", extents.len() - SHOWN);
        }
        text
    };
    let target = report.target.display();
    let mut text = format!("volume       {}, epoch {}\n", report.volume.display(), report.epoch);
    text += &format!("target       {target}, {}\n", if report.applied { "written over in place" } else { "new" });
    text += &format!("device       {}\n", mib(report.device_size_bytes));
    text += &format!("got out      {} of data, {} of zeroes\n", mib(report.data_bytes), mib(report.zeroed_bytes));
    text += &format!("unreadable   {} blocks of the volume\n", report.blocks_unreadable);
    if !report.torn.is_empty() {
        text += &ranges("torn", &report.torn);
        text += "             cut short by a crash before they were flushed, or damaged since: they have the version before\n";
    }
    if !report.stale.is_empty() {
        text += &ranges("lost", &report.stale);
        text += "             their newest version is damaged: they have an older one, or what was there\n";
    }
    if !report.missing.is_empty() {
        text += &format!("missing      {} records of which nothing is known\n", report.missing.len());
        text += &ranges("doubtful", &report.doubtful);
    }
    report.doubts.iter().for_each(|doubt| text += &format!("doubt        {doubt}\n"));
    if report.complete {
        text += "complete     everything that the volume holds was got out\n";
    }
    text
}

#[cfg(test)]
mod tests;
