//! Keys alone, and the ARC authors' four numbers.

use surgetank_model::{Bytes, Instant};

use super::fields::{decimal, not_a, request};
use super::{Broken, Line, Output};
use crate::request::{Access, Request};

/// A longer token is broken.
const TOKEN_MAX: usize = 4 << 10;

/// One key a token. What the first token is decides: after a number, only numbers are keys; after a word, all words are.
#[derive(Debug, Default)]
pub struct Plain {
    /// Lines that ended so far.
    lines: u64,
    words: Option<bool>,
    state: ParseState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ParseState {
    #[default]
    LineStart,
    Between,
    /// To the end of the line.
    Comment,
    /// To the end of a token that is too long, and already counted.
    Skipping,
}

impl Plain {
    #[inline]
    pub fn parse<F: FnMut(Request)>(
        &mut self,
        bytes: &[u8],
        last: bool,
        output: &mut Output<'_, F>,
    ) -> Result<usize, Broken> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at).copied() {
            match byte {
                b'\n' => {
                    self.lines += 1;
                    self.state = ParseState::LineStart;
                    at += 1;
                }
                _ if self.state == ParseState::Comment => {
                    at = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end);
                }
                _ if byte.is_ascii_whitespace() => {
                    if self.state == ParseState::Skipping {
                        self.state = ParseState::Between;
                    }
                    at += 1;
                }
                b'*' if self.state == ParseState::LineStart => self.state = ParseState::Comment,
                b'#' if self.state != ParseState::Skipping => self.state = ParseState::Comment,
                _ => {
                    let rest = &bytes[at..];
                    let end = rest.iter().position(u8::is_ascii_whitespace);
                    let length = end.unwrap_or(rest.len());
                    if end.is_none() && !last && length <= TOKEN_MAX {
                        return Ok(at);
                    }
                    if self.state != ParseState::Skipping {
                        self.token(&rest[..length], output)?;
                    }
                    self.state = if end.is_none() { ParseState::Skipping } else { ParseState::Between };
                    at += length;
                }
            }
        }
        Ok(at)
    }

    #[inline]
    fn token<F: FnMut(Request)>(&mut self, token: &[u8], output: &mut Output<'_, F>) -> Result<(), Broken> {
        let line = self.lines + 1;
        if token.len() > TOKEN_MAX {
            return output.broken(line, format!("a key is longer than {TOKEN_MAX} bytes"));
        }
        let number = decimal(token);
        let words = *self.words.get_or_insert(number.is_none());
        let address = match number {
            _ if words && token.iter().any(u8::is_ascii_control) => None,
            _ if words => Some(hash(token)),
            number => number,
        };
        let Some(address) = address else {
            return output.line(line, not_a("key", if words { "text" } else { "a number" }, token));
        };
        let (time, length) = (Instant::ZERO, Bytes::new(0));
        output.request(Request { time, volume: 0, address, length, operation: Access::Unknown });
        Ok(())
    }
}

/// A word as a key: 64 bits of FNV-1a, with its last bits spread.
fn hash(word: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = word.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// First block, count, ignored, request number; blocks of 512 bytes.
pub fn arc(line: &[u8]) -> Line {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (Some(first), Some(count)) = (words.next(), words.next()) else {
        return Line::Broken("it has fewer than the two numbers, first block and count".to_owned());
    };
    let Some(address) = decimal(first).and_then(|block| block.checked_mul(512)) else {
        return not_a("first block", "a block number", first);
    };
    let Some(length) = decimal(count).and_then(|count| count.checked_mul(512)) else {
        return not_a("count of blocks", "a number", count);
    };
    request(0, 0, address, length, Access::Unknown)
}
