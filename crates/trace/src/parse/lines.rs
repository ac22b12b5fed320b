//! Lines of text.

use super::{Broken, Line, Output};
use crate::request::Request;

/// A longer line is broken, whatever it says.
const LINE_MAX: usize = 16 << 10;

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// Lines that ended so far.
    count: u64,
    /// Within a line that is too long, and already counted as broken.
    skipping: bool,
}

impl Lines {
    /// Gives what each line is to `output`. How many bytes were taken.
    #[inline]
    pub fn parse<F: FnMut(Request)>(
        &mut self,
        bytes: &[u8],
        last: bool,
        output: &mut Output<'_, F>,
        mut read: impl FnMut(u64, &[u8]) -> Line,
    ) -> Result<usize, Broken> {
        self.cut(bytes, last, |number, line| match line {
            Ok(line) => output.line(number, read(number, line)),
            Err(too_long) => output.broken(number, too_long),
        })
    }

    /// Gives each line, without its end and with its number, to `take`; empty ones are passed over. How many bytes were
    /// taken.
    #[inline]
    pub fn cut(
        &mut self,
        bytes: &[u8],
        last: bool,
        mut take: impl FnMut(u64, Result<&[u8], String>) -> Result<(), Broken>,
    ) -> Result<usize, Broken> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[start..end];
            start = end + 1;
            self.line(line, &mut take)?;
            self.count += 1;
            self.skipping = false;
        }
        let rest = &bytes[start..];
        if last || rest.len() > LINE_MAX {
            self.line(rest, &mut take)?;
            self.skipping = true;
            return Ok(bytes.len());
        }
        Ok(start)
    }

    #[inline]
    fn line(
        &self,
        line: &[u8],
        take: &mut impl FnMut(u64, Result<&[u8], String>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        if self.skipping {
            return Ok(());
        }
        let number = self.count + 1;
        if line.len() > LINE_MAX {
            return take(number, Err(format!("the line is longer than {LINE_MAX} bytes")));
        }
        let line = line.trim_ascii();
        if line.is_empty() { Ok(()) } else { take(number, Ok(line)) }
    }
}
