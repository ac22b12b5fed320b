//! Miss-ratio curves: requests per second of one process on one core, trace read included, against libCacheSim.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use surgetank_model::random::Random;
use surgetank_trace::{Gathered, Keys, Options, Reader};

use super::{Bench, Report, one_core};
use crate::bar::{Bar, Limit, median};
use crate::product::{answer, number};

const KEYS: u64 = 1_000_000;
const EXPONENT: f64 = 0.99;
/// Odd, so that a product with it tells all ranks apart: 2^64 over the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// A tenth of the keys.
const SIZE: u64 = KEYS / 10;
/// What a core must do, in millions of requests a second.
const LRU_M_S: f64 = 20.0;
/// What a sampled curve must have of the speed at which the trace is read without computing anything.
const SAMPLED_OF_READING: f64 = 0.8;
/// Miss ratios that are equal differ by the last digit of a float's sum at most.
const EQUAL: f64 = 1e-6;

/// Prints what libCacheSim's policy `argv[3]` of `argv[2]` objects does with the oracleGeneral trace `argv[1]`: miss ratio
/// and seconds.
const PEER: &str = "
import sys, time, libcachesim as l
reader = l.TraceReader(sys.argv[1], l.TraceType.ORACLE_GENERAL_TRACE, l.ReaderInitParam(ignore_obj_size=True))
cache = getattr(l, sys.argv[3])(cache_size=int(sys.argv[2]))
begin = time.perf_counter()
ratio, _ = cache.process_trace(reader)
print(ratio, time.perf_counter() - begin)
";

/// What a run said.
struct Ran {
    miss_ratio: f64,
    seconds: f64,
}

/// Adds the rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let requests: u64 = if bench.quick { 5_000_000 } else { 20_000_000 };
    let trace = bench.directory.join("zipf.oracleGeneral");
    generate(&trace, requests)?;
    let millions_s = |ran: &Ran| requests as f64 / 1e6 / ran.seconds;
    let size = SIZE.to_string();
    match python() {
        Some(python) => {
            for (ours, theirs, bar) in [("lru", "LRU", Some(2.0)), ("fifo", "FIFO", None), ("sieve", "Sieve", None)] {
                let mut turns = Vec::new();
                for _ in 0..bench.rounds() {
                    let mine = surgetank(bench, &trace, &["--sizes", &size, "--policy", ours])?;
                    let peer = peer(bench, &python, &trace, &size, theirs)?;
                    ensure!(
                        (mine.miss_ratio - peer.miss_ratio).abs() < EQUAL,
                        "miss ratios differ: {} and libCacheSim's {} under {ours}",
                        mine.miss_ratio,
                        peer.miss_ratio
                    );
                    turns.push([millions_s(&mine), millions_s(&peer)]);
                }
                let name = format!("{ours} of {SIZE} blocks, same miss ratio");
                let pair = Bar::paired(name, "M requests/s", &turns, "libCacheSim (PyPI)");
                report.add(if let Some(least) = bar { pair.must_be(Limit::AtLeast(least)) } else { pair });
            }
        }
        None => report.skipped.push("libCacheSim: its wheel is not installed; run scripts/setup bench".to_owned()),
    }
    let exact = surgetank(bench, &trace, &["--sizes", &size])?;
    for (name, flags, bar) in
        [("lru, trace read included", &["--sizes", &size][..], Some(LRU_M_S)), ("lru at all sizes, exact", &[], None)]
    {
        let mut rates = Vec::new();
        for _ in 0..bench.rounds() {
            rates.push(millions_s(&surgetank(bench, &trace, flags)?));
        }
        let rate = Bar::new(name, "M requests/s", median(rates), (bar.unwrap_or(LRU_M_S), "the bar, one core"));
        report.add(if bar.is_some() { rate.must_be(Limit::AtLeast(1.0)) } else { rate });
    }
    for rate in ["0.01", "0.001"] {
        let mut turns = Vec::new();
        for _ in 0..bench.rounds() {
            let mine = surgetank(bench, &trace, &["--sample", rate])?;
            turns.push([millions_s(&mine), requests as f64 / 1e6 / reading(&trace)?]);
        }
        let name = format!("lru at all sizes, sampled at {rate}");
        let pair = Bar::paired(name, "M requests/s", &turns, "reading the trace alone");
        report.add(pair.must_be(Limit::AtLeast(SAMPLED_OF_READING)));
    }
    let sampled = surgetank(bench, &trace, &["--sizes", &size, "--sample", "0.01"])?;
    let name = format!("miss ratio at {SIZE} blocks, sampled at 0.01");
    report.add(Bar::new(name, "", sampled.miss_ratio, (exact.miss_ratio, "exact")));
    fs::remove_file(&trace)?;
    Ok(())
}

/// Runs our command; the miss ratio at its last size, and the time of the whole process.
fn surgetank(bench: &Bench, trace: &Path, flags: &[&str]) -> anyhow::Result<Ran> {
    let mut command = one_core(&bench.surgetank);
    command.arg("mrc").arg(trace).args(flags).arg("--json");
    let begin = Instant::now();
    let found = answer(&bench.interrupt, &mut command)?;
    let seconds = begin.elapsed().as_secs_f64();
    let last = found["points"].as_array().and_then(|points| points.last());
    let miss_ratio = number(last.context("surgetank mrc answered no points")?, "/miss_ratio")?;
    Ok(Ran { miss_ratio, seconds })
}

/// Seconds that it takes to read the trace, and to do nothing with its keys.
fn reading(trace: &Path) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let mut reader = Reader::open(trace, Options::default())?;
    let mut gathered = Gathered::new(Keys::default());
    while reader.read_keys(&mut gathered, |keys| _ = black_box(keys))? {}
    Ok(begin.elapsed().as_secs_f64())
}

fn peer(bench: &Bench, python: &Path, trace: &Path, size: &str, policy: &str) -> anyhow::Result<Ran> {
    let mut command = one_core(python);
    let said = bench.interrupt.run(command.args(["-c", PEER]).arg(trace).args([size, policy]))?.stdout;
    let text = String::from_utf8_lossy(&said);
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(miss_ratio), Some(seconds)) => Ok(Ran { miss_ratio, seconds }),
        _ => bail!("libCacheSim answered {text:?}"),
    }
}

/// The interpreter that has libCacheSim: where scripts/setup puts it.
fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let python = cache.join("surgetank/bench-python/bin/python");
    let works = Command::new(&python).args(["-c", "import libcachesim"]).output().is_ok_and(|out| out.status.success());
    works.then_some(python)
}

/// A trace of Zipf-like keys, the same every time: ranks by the inverse of the continuous law, keys spread over 56 bits.
fn generate(path: &Path, requests: u64) -> anyhow::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).context("cannot make the trace")?);
    let mut chance = Random::from_seed(0);
    let top = (KEYS as f64).powf(1.0 - EXPONENT);
    for index in 0..requests {
        let rank = (1.0 + chance.unit() * (top - 1.0)).powf(1.0 / (1.0 - EXPONENT)) as u64;
        file.write_all(&((index / 10_000) as u32).to_le_bytes())?;
        file.write_all(&(rank.wrapping_mul(SPREAD) >> 8).to_le_bytes())?;
        file.write_all(&4096u32.to_le_bytes())?;
        file.write_all(&(-1i64).to_le_bytes())?;
    }
    file.flush().context("cannot write the trace")?;
    // The kernel would write it back while it is read: half a gigabyte beside what is measured.
    file.get_ref().sync_all().context("cannot write the trace")
}
