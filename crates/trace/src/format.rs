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
    /// Text that darshan-dxt-parser prints: the traced accesses of an application's processes to its files.
    DarshanDxt,
    /// MQSim's traces: arrival in ns, device, first 512-byte sector, sectors, type (0 writes, 1 reads).
    MqSim,
    /// Reports of iostat: rates of whole intervals, no requests.
    Iostat,
    /// Reports of sar about I/O (`-b`) or devices (`-d`): rates of whole intervals, no requests.
    Sar,
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
        ("dxt", Self::DarshanDxt),
        ("mqsim", Self::MqSim),
        ("iostat", Self::Iostat),
        ("sar", Self::Sar),
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

    /// Whether it has requests; else only what was moved in each interval.
    #[must_use]
    pub fn has_requests(self) -> bool {
        !matches!(self, Self::Iostat | Self::Sar)
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
        let name = unpacked_name(path)?;
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        match () {
            () if ends(&[".vscsi", ".vscsitrace"]) => Some(Self::Vscsi),
            () if ends(&[".oraclegeneral", ".oraclegeneral.bin"]) => Some(Self::OracleGeneral),
            () if ends(&[".iolog", ".fio"]) => Some(Self::FioIolog),
            () if ends(&[".blkparse"]) => Some(Self::Blkparse),
            () if ends(&[".lis", ".arc"]) => Some(Self::Arc),
            () if ends(&[".dxt"]) => Some(Self::DarshanDxt),
            () if ends(&[".iostat"]) => Some(Self::Iostat),
            () if ends(&[".plain", ".keys"]) => Some(Self::Plain),
            // What .csv, .txt, .log and .trace hold is seen better by looking.
            () => None,
        }
    }
}

/// The file's name in lower case, without the suffix of its compression.
pub(crate) fn unpacked_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let raw = [".zst", ".zstd", ".xz", ".gz"].iter().find_map(|suffix| name.strip_suffix(suffix));
    Some(raw.map(str::to_owned).unwrap_or(name))
}
