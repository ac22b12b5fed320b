//! The formats by name, by suffix, and by what a file begins with.

use std::path::Path;

/// A trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One key a token: numbers, or any words if it does not begin with a number. `#` and a leading `*` begin comments.
    Plain,
    /// MSR Cambridge CSV: timestamp (100 ns), host, disk, Read or Write, offset, size, response time (MSR08).
    Msr,
    /// CSV with a header that names columns: `time_s`, `op`, `offset_bytes`, `length_bytes` in any order, others ignored.
    Csv,
    /// VMware vscsiStats records of 32 (version 1) or 40 bytes (version 2), as CloudPhysics published them.
    Vscsi,
    /// libCacheSim's oracleGeneral: 24 bytes little-endian: u32 time in s, u64 key, u32 size, i64 next use.
    OracleGeneral,
    /// fio's iolog, versions 2 and 3.
    FioIolog,
    /// Text that blkparse prints by default.
    Blkparse,
    /// The ARC authors' traces: first 512-byte block, count, ignored, request number (ARC03).
    Arc,
}

impl Format {
    /// All of them with the names that people give.
    pub const NAMES: &[(&str, Self)] = &[
        ("plain", Self::Plain),
        ("msr", Self::Msr),
        ("csv", Self::Csv),
        ("vscsi", Self::Vscsi),
        ("oracleGeneral", Self::OracleGeneral),
        ("fio", Self::FioIolog),
        ("blkparse", Self::Blkparse),
        ("arc", Self::Arc),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// Whether requests carry a time.
    #[must_use]
    pub fn has_times(self) -> bool {
        !matches!(self, Self::Plain | Self::Arc)
    }

    /// Whether requests carry an address and a length in bytes, so that they can be split into blocks.
    #[must_use]
    pub fn has_lengths(self) -> bool {
        !matches!(self, Self::Plain | Self::OracleGeneral)
    }

    /// What a line, or what it has in place of lines, is called.
    #[must_use]
    pub fn line_name(self) -> &'static str {
        if matches!(self, Self::Vscsi | Self::OracleGeneral) { "record" } else { "line" }
    }

    /// By the name of the file, whatever it is compressed with.
    #[must_use]
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let raw = [".zst", ".zstd", ".xz", ".gz"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| raw.ends_with(suffix));
        match () {
            () if ends(&[".vscsi", ".vscsitrace"]) => Some(Self::Vscsi),
            () if ends(&[".oraclegeneral", ".oraclegeneral.bin"]) => Some(Self::OracleGeneral),
            () if ends(&[".iolog", ".fio"]) => Some(Self::FioIolog),
            () if ends(&[".blkparse"]) => Some(Self::Blkparse),
            () if ends(&[".lis", ".arc"]) => Some(Self::Arc),
            () if ends(&[".plain", ".keys"]) => Some(Self::Plain),
            // What .csv, .txt, .log and .trace hold is seen better by looking.
            () => None,
        }
    }

    /// By what the file begins with; `None` if it could be anything.
    #[must_use]
    pub fn of_head(head: &[u8]) -> Option<Self> {
        if head.starts_with(b"fio version ") {
            return Some(Self::FioIolog);
        }
        if head.contains(&0) {
            return crate::parse::vscsi::version(head).map(|_| Self::Vscsi);
        }
        let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"))?;
        let words: Vec<&[u8]> = first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let device = |word: &[u8]| word.splitn(2, |byte| *byte == b',').all(is_number) && word.contains(&b',');
        if words.len() >= 6 && device(words[0]) {
            return Some(Self::Blkparse);
        }
        let fields: Vec<&[u8]> = first.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
        if fields.len() >= 6 && (is_number(fields[0]) || fields[0].eq_ignore_ascii_case(b"timestamp")) {
            return Some(Self::Msr);
        }
        if fields.len() >= 2 {
            return Some(Self::Csv);
        }
        Some(Self::Plain)
    }
}

fn is_number(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}
