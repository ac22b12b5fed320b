//! The proof: the backing volume alone, mounted read-only without surgetank, has every byte that was written.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use surgetank_planner::Mode;
use surgetank_report::{Doing, Failure, Interrupt};

use crate::content::BLOCK;
use crate::filesystem::{self, Mount};
use crate::host::{Export, Layout};
use crate::mode::{WrittenFile, interrupted};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Reads everything back and compares it with what was written; says how many bytes that were.
///
/// # Errors
/// The first difference, in words, or why the volume cannot be read.
pub fn verify(
    mode: Mode,
    layout: &Layout,
    export: Export,
    files: &[WrittenFile],
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let mut bytes = 0;
    match export {
        Export::Fuse => {
            filesystem::check_ext4(&layout.backing())?;
            let mount = Mount::read_only_file(&layout.backing(), &layout.mount_point())?;
            for file in files {
                let path = mount.point().join(&file.file.path);
                let open = File::open(&path).doing(|| format!("{}: cannot open {}", mode.name(), path.display()))?;
                let length = open.metadata().doing(|| format!("cannot examine {}", path.display()))?.len();
                if length != file.file.size {
                    return Err(Failure::Failed(format!(
                        "{}: {} has {length} bytes, but {} were written",
                        mode.name(),
                        file.file.path.display(),
                        file.file.size
                    )));
                }
                bytes += compare(mode, file, open, interrupt)?;
            }
            mount.unmount()?;
        }
        Export::Nbd => {
            let path = layout.backing();
            for file in files {
                let open = File::open(&path).doing(|| format!("cannot open {}", path.display()))?;
                bytes += compare(mode, file, At { file: &open, offset: file.file.device_offset }, interrupt)?;
            }
        }
    }
    Ok(bytes)
}

/// Reads a file from an offset on.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn compare(mode: Mode, file: &WrittenFile, mut from: impl Read, interrupt: &Interrupt) -> Result<u64, Failure> {
    let shown = |path: &Path| format!("{}: {}", mode.name(), path.display());
    let mut found = vec![0; CHUNK];
    let mut expected = vec![0; CHUNK];
    let mut crc32c = 0;
    let mut offset = 0;
    while offset < file.file.size {
        if interrupt.raised() {
            return Err(interrupted());
        }
        let length = CHUNK.min(usize::try_from(file.file.size - offset).unwrap_or(CHUNK));
        let (found, expected) = (&mut found[..length], &mut expected[..length]);
        from.read_exact(found).doing(|| format!("{} cannot be read back", shown(&file.file.path)))?;
        file.file.content.verify(offset / BLOCK as u64, found, expected).map_err(|mismatch| {
            Failure::Failed(format!("{} is not what was written: {mismatch}", shown(&file.file.path)))
        })?;
        crc32c = crc32c::crc32c_append(crc32c, found);
        offset += length as u64;
    }
    if crc32c != file.written.crc32c {
        return Err(Failure::Failed(format!("{} does not match its writer's checksum", shown(&file.file.path))));
    }
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Dump, Plan};
    use crate::writer::Written;

    /// A backing volume of a run without a file system, and what was written to it.
    fn volume(directory: &Path) -> (Layout, Vec<WrittenFile>) {
        let mut plan = Plan::quick(3);
        plan.initial_dump = surgetank_model::Bytes::from_mib(8);
        let layout = Layout::new(directory, Mode::Elastic.name());
        layout.create(&plan).unwrap();
        let volume = File::options().write(true).open(layout.backing()).unwrap();
        let files = plan.files(Mode::Elastic, Dump::Initial).into_iter().map(|file| {
            let mut bytes = vec![0; file.size as usize];
            file.content.fill(0, &mut bytes);
            volume.write_all_at(&bytes, file.device_offset).unwrap();
            let written = Written { bytes: file.size, crc32c: crc32c::crc32c(&bytes), seconds: 1.0 };
            WrittenFile { file, written }
        });
        let files = files.collect();
        (layout, files)
    }

    #[test]
    fn what_was_written_is_verified_and_a_single_byte_is_missed() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, files) = volume(directory.path());
        let check = || verify(Mode::Elastic, &layout, Export::Nbd, &files, &Interrupt::default());
        assert_eq!(check().unwrap(), 8 << 20);
        let volume = File::options().write(true).open(layout.backing()).unwrap();
        volume.write_all_at(&[0], (5 << 20) + 7).unwrap();
        let failure = check().unwrap_err().to_string();
        assert!(failure.contains("writer-5.dat is not what was written: block 0"), "{failure}");
    }

    #[test]
    fn a_wrong_checksum_is_missed() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, mut files) = volume(directory.path());
        files[0].written.crc32c ^= 1;
        assert!(verify(Mode::Elastic, &layout, Export::Nbd, &files, &Interrupt::default()).is_err());
    }
}
