//! What is done to a device, by fio.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use super::machine::{busy_s_at, run};

/// Where fio leaves the machine's counters when it begins and when it has ended.
const BEFORE: &str = "/run/lab/before";
const AFTER: &str = "/run/lab/after";

/// What kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// 1 MiB sequential writes, 16 in flight, so many bytes, and a flush at the end.
    Burst,
    /// 4 KiB random writes, 32 in flight.
    RandomWrites,
    /// 16 KiB requests, 7 reads for 3 writes, 16 in flight, some places far more often than others.
    Mixed,
    /// 4 KiB random writes, one at a time, each followed by a flush.
    SyncedWrites,
    /// Nothing, for as long as the others take: what a device costs when nobody uses it.
    Idle,
}

/// A load on a device with a cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// What kind of requests.
    pub shape: Shape,
    /// Bursts: how much is written. Others: the part of the device, from its start, that they go to.
    pub size_mib: u64,
    /// How long, but for bursts.
    pub time_s: u64,
    /// The cache's size.
    pub cache_mib: u64,
}

/// What fio measured.
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
    /// Processor time of the whole machine from fio's first request to its last answer: starting it costs more.
    pub busy_s: f64,
}

/// Reads a little through a device, with more in flight than a burst has; not so much that it would be taken for one.
///
/// # Errors
/// If fio fails.
pub fn warm(device: &Path) -> anyhow::Result<()> {
    let filename = format!("--filename={}", device.display());
    let words =
        ["--name=warm", "--direct=1", "--ioengine=libaio", "--rw=read", "--bs=512k", "--iodepth=64", "--size=28m"];
    run("fio", &[&words[..], &[&filename]].concat()).map(drop)
}

impl Load {
    /// Runs it.
    ///
    /// # Errors
    /// If fio fails.
    pub fn run(&self, device: &Path) -> anyhow::Result<Measured> {
        if self.shape == Shape::Idle {
            std::thread::sleep(std::time::Duration::from_secs(self.time_s));
            return Ok(Measured { run_s: self.time_s as f64, ..Measured::default() });
        }
        let words = self.words(device);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let measured = parse(&run("fio", &words)?)?;
        let busy_s = busy_s_at(Path::new(AFTER))? - busy_s_at(Path::new(BEFORE))?;
        Ok(Measured { busy_s, ..measured })
    }

    fn words(&self, device: &Path) -> Vec<String> {
        let size = Bytes::from_mib(self.size_mib).get();
        let shape = match self.shape {
            Shape::Burst | Shape::Idle => "--rw=write --bs=1m --iodepth=16 --end_fsync=1",
            Shape::RandomWrites => "--rw=randwrite --bs=4k --iodepth=32 --norandommap",
            Shape::Mixed => {
                "--rw=randrw --rwmixread=70 --bs=16k --iodepth=16 --norandommap --random_distribution=zipf:1.1"
            }
            Shape::SyncedWrites => "--rw=randwrite --bs=4k --ioengine=psync --fsync=1 --norandommap",
        };
        let mut words: Vec<String> = ["--name=lab", "--output-format=json", "--direct=1", "--randrepeat=1"]
            .iter()
            .map(|word| (*word).to_owned())
            .collect();
        if self.shape != Shape::SyncedWrites {
            words.push("--ioengine=libaio".to_owned());
        }
        for (when, file) in [("prerun", BEFORE), ("postrun", AFTER)] {
            words.push(format!("--exec_{when}=cp /proc/stat {file}"));
        }
        words.extend(shape.split(' ').map(str::to_owned));
        words.extend([format!("--filename={}", device.display()), format!("--size={size}")]);
        if self.shape != Shape::Burst {
            words.extend(["--time_based".to_owned(), format!("--runtime={}", self.time_s)]);
        }
        words
    }
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
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

/// fio may say a line or two before its document. `job_runtime` covers the flush at the end, `runtime` of a side not.
fn parse(said: &str) -> anyhow::Result<Measured> {
    const MIB: f64 = 1_048_576.0;
    let start = said.find('{').context("fio printed no JSON")?;
    let document: Document = serde_json::from_str(&said[start..]).context("cannot read fio's JSON")?;
    let job = document.jobs.first().context("fio ran no job")?;
    let run_s = (job.job_runtime / 1000.0).max(0.001);
    let flush_ns = if job.sync.total_ios > 0.0 { job.sync.lat_ns.mean } else { 0.0 };
    Ok(Measured {
        run_s,
        moved_mib: (job.read.io_bytes + job.write.io_bytes) / MIB,
        written_mib: job.write.io_bytes / MIB,
        iops: (job.read.total_ios + job.write.total_ios) / run_s,
        write_us: (job.write.lat_ns.mean + flush_ns) / 1000.0,
        busy_s: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let side = |bytes: u64, ios: u64| {
            format!(r#"{{"io_bytes": {bytes}, "total_ios": {ios}, "lat_ns": {{"mean": 4000.0}}, "runtime": 1}}"#)
        };
        let said = format!(
            "note\n{{\"jobs\": [{{\"job_runtime\": 2000, \"read\": {}, \"write\": {}, \"sync\": {{\"total_ios\": 3, \
             \"lat_ns\": {{\"mean\": 6000.0}}}}}}]}}",
            side(1 << 20, 4),
            side(3 << 20, 8)
        );
        let expected =
            Measured { run_s: 2.0, moved_mib: 4.0, written_mib: 3.0, iops: 6.0, write_us: 10.0, busy_s: 0.0 };
        assert_eq!(parse(&said).unwrap(), expected);
        assert!(parse("fio: nothing").is_err());
    }

    #[test]
    fn a_burst_is_bytes_and_the_rest_is_time() {
        let load = Load { shape: Shape::Burst, size_mib: 256, time_s: 5, cache_mib: 128 };
        let words = load.words(Path::new("/dev/x")).join(" ");
        assert!(words.contains("--size=268435456") && words.contains("--end_fsync=1") && !words.contains("runtime"));
        let words = Load { shape: Shape::SyncedWrites, ..load }.words(Path::new("/dev/x")).join(" ");
        assert!(words.contains("--runtime=5") && words.contains("--fsync=1") && !words.contains("libaio"));
    }
}
