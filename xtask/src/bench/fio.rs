//! fio: what to run, and what it measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use super::rig::{Interrupt, Throttle};

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
    /// fio's `rw`.
    pub pattern: &'static str,
    /// fio's `bs`.
    pub block: &'static str,
    /// Requests in flight.
    pub depth: u32,
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

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// MiB/s.
    pub mib_s: f64,
    /// Requests per second.
    pub iops: f64,
    /// From the first request to the last answer.
    pub seconds: f64,
}

impl Load {
    /// Runs it; in a control group if there is one.
    ///
    /// # Errors
    /// If fio fails.
    pub fn run(self, interrupt: &Interrupt, throttle: Option<&Throttle>, target: &Target) -> anyhow::Result<Measured> {
        let fio = Path::new("fio");
        let mut command = throttle.map_or_else(|| Command::new(fio), |throttle| throttle.command(fio));
        command.args(["--name=bench", "--output-format=json", "--randrepeat=1", "--norandommap"]);
        command.arg(format!("--rw={}", self.pattern));
        command.arg(format!("--bs={}", self.block));
        command.arg(format!("--iodepth={}", self.depth));
        match target {
            Target::Device(path) => {
                command.args(["--ioengine=io_uring", "--direct=1"]).arg(format!("--filename={}", path.display()))
            }
            Target::Nbd(address) => command.arg("--ioengine=nbd").arg(format!("--uri={address}")),
        };
        match self.amount {
            Amount::Time(time) => command.arg("--time_based").arg(format!("--runtime={}ms", time.as_millis())),
            Amount::Bytes(bytes) => command.arg(format!("--size={bytes}")),
        };
        let output = interrupt.run(&mut command)?;
        parse(&String::from_utf8_lossy(&output.stdout))
    }
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    bw_bytes: f64,
    iops: f64,
    runtime: f64,
}

/// fio may say a line or two before its document.
fn parse(said: &str) -> anyhow::Result<Measured> {
    let start = said.find('{').context("fio printed no JSON")?;
    let document: Document = serde_json::from_str(&said[start..]).context("cannot read fio's JSON")?;
    let job = document.jobs.first().context("fio ran no job")?;
    let side = if job.write.io_bytes > 0 { &job.write } else { &job.read };
    Ok(Measured { mib_s: side.bw_bytes / 1_048_576.0, iops: side.iops, seconds: side.runtime / 1000.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_that_moved_bytes_counts() {
        let side = |bytes: u64| {
            format!(r#"{{"io_bytes": {bytes}, "bw_bytes": 2097152, "iops": 2.0, "runtime": 1500, "more": 1}}"#)
        };
        let text = |read, write| {
            format!("fio: connected\n{{\"jobs\": [{{\"read\": {}, \"write\": {}}}]}}", side(read), side(write))
        };
        for document in [text(0, 4096), text(4096, 0)] {
            let measured = parse(&document).unwrap();
            assert_eq!((measured.mib_s, measured.iops, measured.seconds), (2.0, 2.0, 1.5));
        }
        assert!(parse("fio: nothing").is_err());
    }
}
