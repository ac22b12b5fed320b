//! fio: what to run, and what it measured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;

/// Where fio's requests go.
#[derive(Clone, Debug)]
pub enum Target {
    /// A block device or file, by io_uring with O_DIRECT.
    Device(PathBuf),
    /// An NBD server's address, by fio's nbd engine.
    Nbd(String),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// In fio's own words, such as `--rw=write --bs=1m --iodepth=8`.
    pub shape: &'static str,
    /// How long, or how much.
    pub amount: Amount,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// After this time.
    Time(Duration),
    /// After so many bytes from the start of the device.
    Bytes(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// From the first request to the last answer, the flush at the end of a burst included.
    pub run_s: f64,
    /// What was moved, reads and writes.
    pub moved_mib: f64,
    /// What was written.
    pub written_mib: f64,
    /// Requests per second, reads and writes.
    pub iops: f64,
    /// Mean time of a write, with the flush that follows it, in microseconds.
    pub write_us: f64,
    /// What 99 of 100 requests take at most, in microseconds: of reads or of writes, whichever is longer.
    #[serde(default)]
    pub p99_us: f64,
    /// Processor time of the whole machine from fio's first request to its last answer, where it is measured: starting fio
    /// costs more.
    pub busy_s: f64,
}

impl Measured {
    /// MiB/s, reads and writes.
    pub fn mib_s(&self) -> f64 {
        self.moved_mib / self.run_s
    }
}

impl Load {
    /// Runs it with a command that starts fio.
    pub fn run(self, interrupt: &Interrupt, mut fio: Command, target: &Target) -> anyhow::Result<Measured> {
        fio.args(self.arguments(target));
        parse(&String::from_utf8_lossy(&interrupt.run(&mut fio)?.stdout))
    }

    /// Runs it on all targets at once, by one fio with a job for each.
    pub fn run_on_all(self, interrupt: &Interrupt, targets: &[Target]) -> anyhow::Result<Vec<Measured>> {
        let mut fio = Command::new("fio");
        targets.iter().for_each(|target| {
            fio.args(self.arguments(target));
        });
        parse_all(&String::from_utf8_lossy(&interrupt.run(&mut fio)?.stdout))
    }

    /// A job in fio's words.
    fn arguments(self, target: &Target) -> Vec<String> {
        let mut arguments: Vec<String> = words(self.shape).map(str::to_owned).collect();
        arguments.extend(match target {
            Target::Device(path) => {
                vec![
                    "--ioengine=io_uring".to_owned(),
                    "--direct=1".to_owned(),
                    format!("--filename={}", path.display()),
                ]
            }
            Target::Nbd(address) => vec!["--ioengine=nbd".to_owned(), format!("--uri={address}")],
        });
        arguments.extend(match self.amount {
            Amount::Time(time) => vec!["--time_based".to_owned(), format!("--runtime={}ms", time.as_millis())],
            Amount::Bytes(bytes) => vec![format!("--size={bytes}")],
        });
        arguments
    }

    /// What counts: requests per second of a random load, MiB/s of others.
    pub fn rate(self, measured: &Measured) -> f64 {
        if self.is_random() { measured.iops } else { measured.mib_s() }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        if self.is_random() { "IOPS" } else { "MiB/s" }
    }

    fn is_random(self) -> bool {
        self.shape.contains("--rw=rand")
    }
}

/// What every load has, and its shape.
pub fn words(shape: &str) -> impl Iterator<Item = &str> {
    "--name=lab --output-format=json --randrepeat=1 --norandommap".split(' ').chain(shape.split(' '))
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<JobResult>,
}

#[derive(Deserialize)]
struct JobResult {
    job_runtime: f64,
    read: Side,
    write: Side,
    #[serde(default)]
    sync: Sync,
}

#[derive(Deserialize)]
struct Side {
    io_bytes: f64,
    total_ios: f64,
    lat_ns: Latency,
    #[serde(default)]
    clat_ns: Completion,
}

impl Side {
    fn p99_us(&self) -> f64 {
        self.clat_ns.percentile.get("99.000000").map_or(0.0, |ns| ns / 1000.0)
    }
}

/// From the submission of a request to its answer.
#[derive(Default, Deserialize)]
struct Completion {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

#[derive(Default, Deserialize)]
struct Sync {
    #[serde(default)]
    total_ios: f64,
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    mean: f64,
}

/// What fio says of its first job.
pub fn parse(said: &str) -> anyhow::Result<Measured> {
    parse_all(said)?.into_iter().next().context("fio ran no job")
}

/// What fio says of its jobs. It may say a line or two before its document. `job_runtime` covers the flush at the end,
/// `runtime` of a side not.
fn parse_all(said: &str) -> anyhow::Result<Vec<Measured>> {
    const MIB: f64 = 1_048_576.0;
    let start = said.find('{').context("fio printed no JSON")?;
    let document: Document = serde_json::from_str(&said[start..]).context("cannot read fio's JSON")?;
    let measured = document.jobs.iter().map(|job| {
        let run_s = (job.job_runtime / 1000.0).max(0.001);
        let flush_ns = if job.sync.total_ios > 0.0 { job.sync.lat_ns.mean } else { 0.0 };
        Measured {
            run_s,
            moved_mib: (job.read.io_bytes + job.write.io_bytes) / MIB,
            written_mib: job.write.io_bytes / MIB,
            iops: (job.read.total_ios + job.write.total_ios) / run_s,
            write_us: (job.write.lat_ns.mean + flush_ns) / 1000.0,
            p99_us: job.read.p99_us().max(job.write.p99_us()),
            busy_s: 0.0,
        }
    });
    Ok(measured.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let side = |bytes: u64, ios: u64| {
            format!(
                r#"{{"io_bytes": {bytes}, "total_ios": {ios}, "lat_ns": {{"mean": 4000.0}}, "runtime": 1,
                "clat_ns": {{"percentile": {{"50.000000": 1000, "99.000000": {ios}000}}}}}}"#
            )
        };
        let said = format!(
            "note\n{{\"jobs\": [{{\"job_runtime\": 2000, \"read\": {}, \"write\": {}, \"sync\": {{\"total_ios\": 3, \
             \"lat_ns\": {{\"mean\": 6000.0}}}}}}]}}",
            side(1 << 20, 4),
            side(3 << 20, 8)
        );
        let expected = Measured {
            run_s: 2.0,
            moved_mib: 4.0,
            written_mib: 3.0,
            iops: 6.0,
            write_us: 10.0,
            p99_us: 8.0,
            busy_s: 0.0,
        };
        assert_eq!(parse(&said).unwrap(), expected);
        assert_eq!(expected.mib_s(), 2.0);
        assert!(parse("fio: nothing").is_err());
    }
}
