//! Writers of the formats that the readers read.

use std::fmt::Write;

use surgetank_model::{Bytes, Instant};
use surgetank_trace::{Access, Format, Request};

/// What a trace shall say, as far as its format can.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub time_s: u64,
    pub volume: u32,
    /// Of 512 bytes.
    pub block: u64,
    pub blocks: u64,
    pub write: bool,
}

pub const FORMATS: &[Format] = &[
    Format::Plain,
    Format::Msr,
    Format::Csv,
    Format::Vscsi,
    Format::OracleGeneral,
    Format::FioIolog,
    Format::Blkparse,
    Format::Arc,
    Format::DarshanDxt,
    Format::MqSim,
];

pub fn encode(format: Format, wanted: &[Wanted]) -> Vec<u8> {
    let mut text = match format {
        Format::FioIolog => "fio version 3 iolog\n0 /dev/0 add\n".to_owned(),
        Format::DarshanDxt => "# darshan log version: 3.41\n# DXT_POSIX module data\n".to_owned(),
        Format::Csv => "comm,disk,length_bytes,offset_bytes,op,time_s\n".to_owned(),
        _ => String::new(),
    };
    let mut bytes = Vec::new();
    for one in wanted {
        let Wanted { time_s, volume, block, blocks, write } = *one;
        let (offset, length) = (block * 512, blocks * 512);
        let (letter, word) = if write { ("W", "Write") } else { ("R", "Read") };
        let command: u16 = if write { 0x2a } else { 0x28 };
        match format {
            Format::Plain => writeln!(text, "{block}").unwrap(),
            Format::Msr => {
                writeln!(text, "{},host,{volume},{word},{offset},{length},1\r", time_s * 10_000_000).unwrap()
            }
            Format::Csv => writeln!(text, "x,{volume},{length},{offset},{letter},{time_s}.0").unwrap(),
            Format::FioIolog => {
                let action = word.to_lowercase();
                writeln!(text, "{} /dev/{volume} {action} {offset} {length}", time_s * 1_000_000).unwrap();
            }
            Format::Blkparse => {
                writeln!(text, "8,{volume} 0 1 {time_s}.000000000 7 Q {letter}S {block} + {blocks} [x]").unwrap();
                writeln!(text, "8,{volume} 0 2 {time_s}.000000009 7 C {letter}S {block} + {blocks} [0]").unwrap();
            }
            Format::Arc => writeln!(text, "{block} {blocks} 0 0").unwrap(),
            Format::MqSim => {
                let kind = u8::from(!write);
                writeln!(text, "{} {volume} {block} {blocks} {kind}", time_s * 1_000_000_000).unwrap();
            }
            Format::DarshanDxt => {
                let word = word.to_lowercase();
                writeln!(text, "# DXT, file_id: 77{volume}, file_name: /scratch/{volume}").unwrap();
                // As through MPI-IO, it counts once.
                for module in ["X_POSIX", "X_MPIIO"] {
                    writeln!(text, " {module}  0  {word}  0  {offset}  {length}  {time_s}.0000  {time_s}.5000")
                        .unwrap();
                }
            }
            Format::Iostat | Format::Sar => panic!("they have no requests"),
            // Both versions, by whether the first request writes.
            Format::Vscsi if wanted[0].write => {
                bytes.extend([1u32, length as u32, 1].iter().flat_map(|field| field.to_le_bytes()));
                bytes.extend([command, 0x100].iter().flat_map(|field| field.to_le_bytes()));
                bytes.extend([block, time_s * 1_000_000].iter().flat_map(|field| field.to_le_bytes()));
            }
            Format::Vscsi => {
                bytes.extend([command, 0x200].iter().flat_map(|field| field.to_le_bytes()));
                bytes.extend([1u32, length as u32, 1].iter().flat_map(|field| field.to_le_bytes()));
                bytes.extend([block, time_s * 1_000_000, 77].iter().flat_map(|field| field.to_le_bytes()));
            }
            Format::OracleGeneral => {
                bytes.extend((time_s as u32).to_le_bytes());
                bytes.extend(block.to_le_bytes());
                bytes.extend((length as u32).to_le_bytes());
                bytes.extend((-1i64).to_le_bytes());
            }
        }
    }
    bytes.extend(text.into_bytes());
    bytes
}

/// What remains of it in this format.
pub fn encoded_as(format: Format, wanted: &[Wanted]) -> Vec<Request> {
    let mut volumes = Vec::new();
    let request = |one: &Wanted| {
        let number = volumes.iter().position(|volume| *volume == one.volume).unwrap_or_else(|| {
            volumes.push(one.volume);
            volumes.len() - 1
        });
        let has_volumes = matches!(
            format,
            Format::Msr | Format::Csv | Format::FioIolog | Format::Blkparse | Format::DarshanDxt | Format::MqSim
        );
        let has_operations = has_volumes || format == Format::Vscsi;
        let is_key = matches!(format, Format::Plain | Format::OracleGeneral);
        let seconds = if format.has_times() { one.time_s } else { 0 };
        let length = if format == Format::Plain { 0 } else { one.blocks * 512 };
        let operation = if one.write { Access::Write } else { Access::Read };
        Request {
            time: Instant::from_nanoseconds(seconds * 1_000_000_000),
            volume: if has_volumes { number as u32 } else { 0 },
            address: if is_key { one.block } else { one.block * 512 },
            length: Bytes::new(length),
            operation: if has_operations { operation } else { Access::Unknown },
        }
    };
    wanted.iter().map(request).collect()
}
