//! A file's bytes in windows: mapped where they lie raw, decompressed on the fly where not.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use memmap2::{Advice, Mmap, UncheckedAdvice};
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// A mapped window: a few thousand pages, so that what a window costs does not count.
const WINDOW: usize = 8 << 20;
const BUFFER: usize = 1 << 20;
/// What decoders are fed from.
const RAW: usize = 64 << 10;
/// What a decoder may hold: the windows of `zstd --long` and `xz -9e` fit.
const DICTIONARY_MAX: u64 = 128 << 20;

/// Where bytes come from.
pub enum Source {
    /// The whole file in memory; what lies before `kept` was given back.
    Mapped { map: Mmap, file: File, at: usize, kept: usize },
    /// A decoder or a pipe behind a buffer.
    Stream { from: Box<dyn Read>, buffer: Vec<u8>, start: usize, end: usize, ended: bool },
}

/// What a file is compressed with, by what it begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Packing {
    None,
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    fn of(head: &[u8]) -> io::Result<Self> {
        Ok(match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', ..] => {
                return Err(io::Error::other("bzip2 is not read; decompress it, or use zstd, xz or gzip"));
            }
            _ => Self::None,
        })
    }

    fn unpack(self, raw: impl BufRead + 'static) -> Box<dyn Read> {
        match self {
            Self::None => Box::new(raw),
            Self::Gzip => Box::new(MultiGzDecoder::new(raw)),
            Self::Xz => Box::new(XzReader::new_mem_limit(raw, true, (DICTIONARY_MAX >> 10) as u32 + 1024)),
            Self::Zstd => Box::new(Zstd::new(raw)),
        }
    }
}

impl Source {
    /// Bytes from the file at this path, and how many of the file's own have been taken, if it is compressed or a pipe.
    ///
    /// # Errors
    /// If it cannot be opened or mapped, or its compression is unknown here.
    pub fn open(path: &Path) -> io::Result<(Self, Progress)> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::other("it is a directory"));
        }
        let total = metadata.is_file().then_some(metadata.len());
        let progress = Progress { done: Rc::default(), total };
        let mut raw = BufReader::with_capacity(RAW, Counted { file, done: Rc::clone(&progress.done) });
        let head = raw.fill_buf()?;
        let packing = Packing::of(head)?;
        if packing != Packing::None || head.is_empty() || !metadata.is_file() {
            return Ok((Self::behind_buffer(packing.unpack(raw)), progress));
        }
        let file = raw.into_inner().file;
        // SAFETY: the map is read only, and as bytes any content is valid. If another process cuts the file off meanwhile,
        // reading a lost page would kill us: `window` looks at the length before each, and the documentation says that a
        // trace must not shrink while it is read.
        let map = unsafe { Mmap::map(&file)? };
        // Only advice: without it, reading is slower and nothing else.
        let _ = map.advise(Advice::Sequential);
        Ok((Self::Mapped { map, file, at: 0, kept: 0 }, progress))
    }

    /// From anything that can be read, compressed or not.
    ///
    /// # Errors
    /// If the first bytes cannot be read, or the compression is unknown here.
    pub fn stream(from: impl Read + 'static) -> io::Result<Self> {
        let mut raw = BufReader::with_capacity(RAW, from);
        let packing = Packing::of(raw.fill_buf()?)?;
        Ok(Self::behind_buffer(packing.unpack(raw)))
    }

    fn behind_buffer(from: Box<dyn Read>) -> Self {
        Self::Stream { from, buffer: vec![0; BUFFER], start: 0, end: 0, ended: false }
    }

    /// The next bytes, more than 64 KiB of them if there are as many; and whether they are the last.
    ///
    /// # Errors
    /// Of reading or decompressing, and if the mapped file has become shorter.
    pub fn window(&mut self) -> io::Result<(&[u8], bool)> {
        match self {
            Self::Mapped { map, file, at, kept } => {
                let end = map.len().min(*at + WINDOW);
                if file.metadata()?.len() < end as u64 {
                    return Err(io::Error::other("the file became shorter while it was read"));
                }
                // SAFETY: the map is of a file and only read, so pages that are given back come from the file again. Without
                // it, a trace would count as our memory from end to end.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, *kept, *at - *kept) };
                *kept = *at;
                Ok((&map[*at..end], end == map.len()))
            }
            Self::Stream { from, buffer, start, end, ended } => {
                buffer.copy_within(*start..*end, 0);
                *end -= *start;
                *start = 0;
                while !*ended && *end < buffer.len() {
                    match from.read(&mut buffer[*end..]) {
                        Ok(0) => *ended = true,
                        Ok(count) => *end += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok((&buffer[..*end], *ended))
            }
        }
    }

    /// So many bytes of the window are done with; and whether nothing is left.
    pub fn consume(&mut self, count: usize) -> bool {
        match self {
            Self::Mapped { map, at, .. } => {
                *at += count;
                *at >= map.len()
            }
            Self::Stream { start, end, ended, .. } => {
                *start += count;
                *ended && start == end
            }
        }
    }

    /// Bytes taken of a mapped file.
    pub fn mapped(&self) -> Option<u64> {
        match self {
            Self::Mapped { at, .. } => Some(*at as u64),
            Self::Stream { .. } => None,
        }
    }
}

/// How far reading has come, in bytes of the file as it lies on disk.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub done: Rc<Cell<u64>>,
    /// `None` for pipes.
    pub total: Option<u64>,
}

struct Counted {
    file: File,
    done: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.done.set(self.done.get() + count as u64);
        Ok(count)
    }
}

/// All frames of a Zstandard file, one after the other.
struct Zstd<R> {
    raw: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(raw: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(DICTIONARY_MAX);
        Self { raw, decoder, within: false }
    }

    /// Whether a frame began, as opposed to the file's end.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.raw.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.raw) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.raw).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.within {
                let count = self.decoder.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
                if self.decoder.is_finished() {
                    self.within = false;
                    continue;
                }
                let some = ruzstd::decoding::BlockDecodingStrategy::UptoBytes(buffer.len().max(1));
                let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{error}"));
                self.decoder.decode_blocks(&mut self.raw, some).map_err(invalid)?;
            } else if self.begin()? {
                self.within = true;
            } else {
                return Ok(0);
            }
        }
    }
}
