//! Online curves against caches on recorded traces, which lie beside the tree; without them it says so.

#![expect(clippy::print_stdout, reason = "the errors are a result")]

#[path = "support/cache.rs"]
mod cache;

use std::path::PathBuf;

use cache::{error, misses, said};
use surgetank_model::Bytes;
use surgetank_mrc::{Access, Curve, ExactLru, OnlineCurve, spread_sizes};
use surgetank_trace::{Access as Recorded, Keys, Only, Options, Reader};

/// The bar for the mean of the differences.
const ERROR_MAX: f64 = 0.02;
/// Traces of blocks, and whether they are of bytes: then they are split into blocks of 4 KiB, too.
const TRACES: &[(&str, bool)] = &[
    ("arc-OLTP.lis.zst", false),
    ("lirs-glimpse.trace.gz", false),
    ("lirs-multi2.trace.gz", false),
    ("cloudphysics-2h.vscsi.xz", true),
    ("mqsim-tpcc-small.trace.xz", true),
    ("btio-162cubed-8steps-4p-block.csv.xz", true),
    ("lammps-lj-L80-sync-block.csv.xz", true),
];

fn directory() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/block");
    let found = beside.is_dir().then_some(beside);
    if found.is_none() {
        println!("skipped: there are no recorded traces beside the tree");
    }
    found
}

fn accesses(reader: Reader, block: Option<Bytes>) -> Vec<(Access, u64)> {
    let keys = Keys { block, only: Only::All };
    let mut accesses = Vec::new();
    let read = reader.read_all(|request| {
        let access = if request.operation == Recorded::Write { Access::Write } else { Access::Read };
        keys.of(&request, |key| accesses.push((access, key)));
    });
    read.expect("the trace is whole");
    accesses
}

#[test]
fn curves_of_recorded_traces_are_within_a_fiftieth() {
    let Some(directory) = directory() else { return };
    let mut missed = Vec::new();
    for (name, is_of_bytes) in TRACES {
        let sizes = [None, Some(Bytes::new(4096))];
        for block in &sizes[..1 + usize::from(*is_of_bytes)] {
            let open = || Reader::open(&directory.join(name), Options::default()).expect("it is a trace");
            let accesses = accesses(open(), *block);
            let unit = block.map_or("requests".to_owned(), |size| format!("blocks of {size}"));
            for (what, error, rate) in [all(&accesses), reads(&accesses)].into_iter().flatten() {
                println!("{name}, {unit}, {what}: {error:.4} at a rate of {rate:.4}");
                if error > ERROR_MAX {
                    missed.push(format!("{name}, {unit}, {what}: {error}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// The error if every access is a read, as curves of traces have it.
fn all(accesses: &[(Access, u64)]) -> Option<(&'static str, f64, f64)> {
    let keys: Vec<u64> = accesses.iter().map(|(_, block)| *block).collect();
    let (mut exact, mut curve) = (ExactLru::new(), OnlineCurve::default());
    exact.feed(&keys);
    curve.feed(&keys);
    let sizes = spread_sizes(exact.distinct()?, 40);
    let exact: Vec<f64> = exact.points(&sizes).iter().map(|point| point.miss_ratio).collect();
    Some(("all as reads", error(&exact, &said(&curve, &sizes)), curve.rate().share()))
}

/// The error of the curve of the reads, if there are both reads and writes.
fn reads(accesses: &[(Access, u64)]) -> Option<(&'static str, f64, f64)> {
    let is_mixed = [Access::Read, Access::Write].iter().all(|of| accesses.iter().any(|(access, _)| access == of));
    let mut curve = OnlineCurve::default();
    accesses.iter().for_each(|(access, block)| curve.observe(*access, *block));
    let sizes = spread_sizes(curve.distinct()?, 16);
    is_mixed.then(|| {
        let exact = misses(accesses, &sizes);
        ("reads beside writes", error(&exact, &said(&curve, &sizes)), curve.rate().share())
    })
}
