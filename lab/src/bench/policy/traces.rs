//! Recorded loads, where they are: requests of block traces, and half hours of virtual machines.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use surgetank_trace::{Options, Reader, Series};

use super::Row;
use super::loads::Load;
use super::scenarios::Set;
use super::scenarios::Set::{HeldOut, Training};
use crate::product::tree;

/// As rows of the scenarios: added, never changed.
const BLOCK: [(&str, Set); 3] = [
    ("lammps-lj-L80-sync-block.csv.xz", Training),
    ("btio-162cubed-8steps-4p-block.csv.xz", HeldOut),
    ("cloudphysics-2h.vscsi.xz", Training),
];
const MACHINES: [(&str, Set); 16] = [
    ("w01", Training),
    ("w03", HeldOut),
    ("w05", Training),
    ("w09", HeldOut),
    ("w19", Training),
    ("w25", HeldOut),
    ("w26", Training),
    ("w31", HeldOut),
    ("w42", Training),
    ("w54", HeldOut),
    ("w59", Training),
    ("w64", HeldOut),
    ("w81", Training),
    ("w94", HeldOut),
    ("w100", Training),
    ("w104", HeldOut),
];
/// The first two days of a machine's week.
const HALF_HOURS: usize = 96;
const HALF_HOUR_S: usize = 1800;
/// A backing volume is bought for so many times an application's mean load (over a minute at least), or for what so many
/// of a machine's half hours need; a caching volume is so many times as fast.
const BOUGHT: f64 = 1.25;
const MINUTE_S: usize = 60;
const SERVED: f64 = 0.9;
const FASTER: f64 = 4.0;

/// The rows of a directory.
///
/// # Errors
/// Where they are not.
pub fn rows(data: Option<&Path>) -> anyhow::Result<Vec<Row>> {
    let beside = || tree().parent().map(|parent| parent.join("shared/data"));
    let Some(data) = data.map(Path::to_owned).or_else(beside).filter(|data| data.join("block").is_dir()) else {
        bail!("there are no recorded traces (--data names their directory)");
    };
    let blocks = BLOCK.iter().map(|(file, set)| {
        let path = data.join("block").join(file);
        let name = file.split('.').next().unwrap_or(file);
        Row { name: format!("trace {name}"), set: *set, load: Box::new(move || block(&path)) }
    });
    let machines = MACHINES.iter().map(|(name, set)| {
        let path = data.join("vmload").join(format!("cp-{name}-30min.csv.xz"));
        Row { name: format!("machine {name}"), set: *set, load: Box::new(move || machine(&path)) }
    });
    Ok(blocks.chain(machines).collect())
}

fn block(path: &Path) -> anyhow::Result<(Load, String)> {
    let reader = Reader::open(path, Options::default())?;
    let series = Series::read(reader, Duration::from_secs(1), |_| ())?;
    let moved: Vec<_> = series.samples.iter().map(|sample| (sample.read.as_mib(), sample.written.as_mib())).collect();
    let mib: f64 = moved.iter().map(|(read, written)| read + written).sum();
    let mean = mib / moved.len().max(MINUTE_S) as f64;
    Ok((Load::Series(moved), platform("50 GiB", mean * BOUGHT)))
}

/// The mean rates of half hours, second by second.
fn machine(path: &Path) -> anyhow::Result<(Load, String)> {
    let unpacked =
        Command::new("xz").args(["--decompress", "--stdout"]).arg(path).output().context("xz is not there")?;
    let text = String::from_utf8(unpacked.stdout)?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().context("the file is empty")?.split(',').collect();
    let column =
        |name: &str| header.iter().position(|found| *found == name).with_context(|| format!("no column {name}"));
    let (read, written) = (column("read_io_request_size_sum")?, column("write_io_request_size_sum")?);
    let mut half_hours = Vec::new();
    for line in lines.take(HALF_HOURS) {
        let fields: Vec<&str> = line.split(',').collect();
        let mib_s = |column: usize| {
            let bytes: f64 = fields.get(column).and_then(|field| field.parse().ok()).unwrap_or(0.0);
            bytes / HALF_HOUR_S as f64 / 1_048_576.0
        };
        half_hours.push((mib_s(read), mib_s(written)));
    }
    let mut sorted: Vec<f64> = half_hours.iter().map(|(read, written)| read + written).collect();
    sorted.sort_by(f64::total_cmp);
    let needed = sorted.get((sorted.len() as f64 * SERVED) as usize).copied().context("the file has no rows")?;
    let series = half_hours.into_iter().flat_map(|moved| std::iter::repeat_n(moved, HALF_HOUR_S));
    let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
    Ok((Load::Series(series.collect()), platform("100 GiB", needed.max(mean * BOUGHT))))
}

fn platform(size: &str, mib_s: f64) -> String {
    let backing = mib_s.ceil().max(1.0);
    let caching = backing * FASTER;
    format!(
        "backing = {{ size = \"{size}\", bandwidth = \"{backing} MiB/s\" }}\ncaching = {{ bandwidth = \"{caching} MiB/s\" }}"
    )
}
