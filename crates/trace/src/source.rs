//! A file's bytes in windows, decompressed on the fly.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

use crate::error::TraceError;

/// What is read at once: it stays in the second cache until it is parsed.
const BODY: usize = 128 << 10;
/// More is never left of a window that was parsed.
const LEFT_MAX: usize = 64 << 10;
const CACHE_LINE: usize = 64;
/// What decoders are fed from.
const RAW: usize = 64 << 10;
/// What a decoder may hold: the windows of `zstd --long` and `xz -9e` fit.
const DICTIONARY_MAX: u64 = 128 << 20;

/// Where bytes come from: a file, a decoder or a pipe, behind a buffer.
pub struct Source {
    packing: Packing,
    from: Box<dyn Read>,
    buffer: Vec<u8>,
    /// Where what is read goes to: the kernel copies to the beginning of a cache line four times as fast as to the middle.
    body: usize,
    start: usize,
    end: usize,
    ended: bool,
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
    /// # Errors
    /// The name of a compression that is not read here.
    fn of(head: &[u8]) -> Result<Self, &'static str> {
        Ok(match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', ..] => return Err("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] => return Err("lz4"),
            _ => Self::None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "its",
            Self::Gzip => "its gzip",
            Self::Xz => "its xz",
            Self::Zstd => "its zstd",
        }
    }

    fn unpack(self, raw: impl BufRead + 'static) -> Box<dyn Read> {
        match self {
            Self::None => Box::new(raw),
            Self::Gzip => Box::new(MultiGzDecoder::new(raw)),
            Self::Xz => Box::new(XzReader::new_mem_limit(raw, true, (DICTIONARY_MAX >> 10) as u32 + 1024)),
            Self::Zstd => Box::new(Zstd::new(raw)),
        }
    }

    /// What a decoder's error means: decoders speak of their own parts.
    fn explain(self, error: io::Error) -> io::Error {
        use io::ErrorKind::{InvalidData, InvalidInput, OutOfMemory, UnexpectedEof};
        let name = self.name();
        let says = match error.kind() {
            UnexpectedEof => format!("{name} data ends too early"),
            InvalidData | InvalidInput if self != Self::None => format!("{name} data is not right"),
            OutOfMemory => format!("{name} data wants a dictionary of more than {} MiB", DICTIONARY_MAX >> 20),
            _ => return error,
        };
        io::Error::new(InvalidData, says)
    }
}

impl Source {
    /// Bytes from the file at this path, and how many of the file's own have been taken.
    ///
    /// # Errors
    /// If it cannot be opened or read, or its compression is unknown here.
    pub fn open(path: &Path) -> Result<(Self, Progress), TraceError> {
        let name = path.display().to_string();
        let cannot = |error: io::Error| {
            TraceError::Invalid(format!("cannot read {name}: {error}; check the path and its permissions"))
        };
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if metadata.is_dir() {
            return Err(TraceError::Invalid(format!("cannot read {name}: it is a directory; name a file in it")));
        }
        let progress = Progress { done: Rc::default(), total: metadata.is_file().then_some(metadata.len()) };
        Ok((Self::stream(&name, Counted { file, progress: progress.clone() })?, progress))
    }

    /// From anything that can be read, compressed or not; `name` is for messages.
    ///
    /// # Errors
    /// If the first bytes cannot be read, or the compression is unknown here.
    pub fn stream(name: &str, from: impl Read + 'static) -> Result<Self, TraceError> {
        let mut raw = BufReader::with_capacity(RAW, from);
        let head = raw.fill_buf().map_err(|error| TraceError::Failed(format!("cannot read {name}: {error}")))?;
        let packing = Packing::of(head).map_err(|packed| {
            TraceError::Invalid(format!("{name} is compressed with {packed}, which is not read: decompress it first"))
        })?;
        let mut buffer = vec![0; LEFT_MAX + CACHE_LINE + BODY];
        let body = LEFT_MAX + buffer[LEFT_MAX..].as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        buffer.truncate(body + BODY);
        Ok(Self { packing, from: packing.unpack(raw), buffer, body, start: body, end: body, ended: false })
    }

    /// The next bytes, more than 64 KiB of them if there are as many; and whether they are the last.
    ///
    /// # Errors
    /// Of reading or decompressing, and if the file has become shorter.
    pub fn window(&mut self) -> io::Result<(&[u8], bool)> {
        let left = self.end - self.start;
        // More is left of a window that was only looked at.
        if left <= LEFT_MAX {
            self.buffer.copy_within(self.start..self.end, self.body - left);
            (self.start, self.end) = (self.body - left, self.body);
            while !self.ended && self.end < self.buffer.len() {
                match self.from.read(&mut self.buffer[self.end..]) {
                    Ok(0) => self.ended = true,
                    Ok(count) => self.end += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.packing.explain(error)),
                }
            }
        }
        Ok((&self.buffer[self.start..self.end], self.ended))
    }

    /// So many bytes of the window are done with; and whether nothing is left.
    pub fn consume(&mut self, count: usize) -> bool {
        self.start += count;
        self.ended && self.start == self.end
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
    progress: Progress,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let done = self.progress.done.get() + count as u64;
        self.progress.done.set(done);
        if count == 0 && !buffer.is_empty() && self.progress.total.is_some_and(|total| done < total) {
            return Err(io::Error::other("the file became shorter while it was read"));
        }
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

    /// It cannot go on: something is missing, or wrong.
    fn wrong(&mut self) -> io::Error {
        let is_at_end = self.raw.fill_buf().is_ok_and(<[u8]>::is_empty);
        if is_at_end { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidData }.into()
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
                Err(FrameDecoderError::WindowSizeTooBig { .. }) => return Err(io::ErrorKind::OutOfMemory.into()),
                Err(_) => return Err(self.wrong()),
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
                if self.decoder.decode_blocks(&mut self.raw, some).is_err() {
                    return Err(self.wrong());
                }
            } else if self.begin()? {
                self.within = true;
            } else {
                return Ok(0);
            }
        }
    }
}
