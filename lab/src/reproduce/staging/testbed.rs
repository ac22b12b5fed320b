//! The paper's testbed: Figures 3 and 5 to 7, each checkpoint simulated benefactor by benefactor.

use surgetank_model::Bytes;
use surgetank_planner::provision::Rates;
use surgetank_whatif::staging::{Burst, Kind, Written};

use super::figure::Figure;
use super::paper::{self, GB, LINES, Line};
use crate::bar::{Bar, Limit};

/// The paper's chunk.
const CHUNK: Bytes = Bytes::from_mib(1);
const NODES: u64 = 300;
/// Figure 7: four sets of as many nodes.
const SET: u64 = 50;
/// Memory of Figure 5 in GB.
const MEMORY_GB: [f64; 8] = [50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0];
const SSD_GB: [f64; 3] = [150.0, 200.0, 250.0];
/// How near a fit must be.
const FITTED: Limit = Limit::Within(0.01);

/// Points of a line: GB of memory, and GB/s.
pub type Points = Vec<(f64, f64)>;

/// One of Figure 3: its name by GB of memory, SSD and disk, what it costs, and how long a checkpoint takes.
pub struct Configuration {
    pub name: &'static str,
    pub usd: f64,
    pub checkpoint_s: f64,
}

/// What is drawn.
pub struct Testbed {
    pub figure_3: Vec<Configuration>,
    /// Of 1,800 and 1,200 processes.
    pub figure_5: Vec<(u64, Points)>,
    /// By GB of SSD.
    pub figure_6: Vec<(f64, Points)>,
    /// Memory and SSD of the four sets, and GB/s.
    pub figure_7: Vec<(String, f64)>,
}

/// Bytes of so many GB on one of so many nodes.
fn share(gb: f64, nodes: u64) -> Bytes {
    Bytes::new((gb * GB / nodes as f64).round() as u64)
}

fn kind(count: u64, memory_gb: f64, ssd_gb: f64, rates: Rates) -> Kind {
    Kind { count, memory: share(memory_gb, count), ssd: share(ssd_gb, count), rates }
}

fn write(kinds: Vec<Kind>, processes: u64, dataset_gb: f64) -> anyhow::Result<Written> {
    Ok(Burst { kinds, processes, each: share(dataset_gb, processes), chunk: CHUNK }.run()?)
}

fn of_line(line: &Line, memory_gb: f64, ssd_gb: f64) -> anyhow::Result<f64> {
    let kinds = vec![kind(NODES, memory_gb, ssd_gb, line.rates())];
    Ok(write(kinds, line.processes, line.dataset_gb)?.bytes_s() / GB)
}

fn usd(memory_gb: f64, ssd_gb: f64, disk_gb: f64) -> f64 {
    memory_gb * paper::MEMORY_USD + ssd_gb * paper::SSD_USD + disk_gb * paper::DISK_GB_USD
}

/// Of a node under 1,800 processes.
pub fn rates() -> Rates {
    LINES[0].rates()
}

/// Simulates them.
pub fn reproduce() -> anyhow::Result<(Vec<Figure>, Testbed)> {
    let (figure_3, configurations) = figure_3()?;
    let (figure_5, lines) = figure_5()?;
    let (figure_6, by_ssd) = figure_6()?;
    let (figure_7, sets) = figure_7()?;
    let drawn = Testbed { figure_3: configurations, figure_5: lines, figure_6: by_ssd, figure_7: sets };
    Ok((vec![figure_3, figure_5, figure_6, figure_7], drawn))
}

/// Eight nodes write 2 GB each.
fn figure_3() -> anyhow::Result<(Figure, Vec<Configuration>)> {
    let mut found = Vec::new();
    for (name, memory_gb, ssd_gb) in paper::FIGURE_3 {
        let took = write(vec![kind(8, memory_gb, ssd_gb, LINES[0].rates())], 8, 16.0)?.took.as_secs_f64();
        found.push(Configuration { name, usd: usd(memory_gb, ssd_gb, 16.0 - memory_gb - ssd_gb), checkpoint_s: took });
    }
    let [memory, mixed, two, four] = &found[..] else {
        anyhow::bail!("Figure 3 has four configurations");
    };
    let saved = 100.0 * (1.0 - mixed.usd / memory.usd);
    let longer = 100.0 * (mixed.checkpoint_s / memory.checkpoint_s - 1.0);
    let bars = vec![
        Bar::new("3-8-5 costs less than 8-0-8", "%", saved, (40.9, "the paper")).must_be(Limit::Within(0.05)),
        Bar::new("a checkpoint takes longer", "%", longer, (2.5, "the paper, of the application")),
        Bar::new("2-6-8: cost", "$", two.usd, (four.usd, "4-0-12")).must_be(Limit::AtMost(1.0)),
        Bar::new("2-6-8: a checkpoint", "s", two.checkpoint_s, (four.checkpoint_s, "4-0-12"))
            .must_be(Limit::AtMost(1.0)),
    ];
    let figure = Figure::new("3", "Eight nodes, 2 GB each", bars)
        .says(
            "The text compares whole runs and does not say how much of one is checkpoints: ours are checkpoints alone.",
        )
        .says("Prices are the fit of Figure 6; a GB of disk at $0.10 is an assumption.");
    Ok((figure, found))
}

fn figure_5() -> anyhow::Result<(Figure, Vec<(u64, Points)>)> {
    let (mut bars, mut lines) = (Vec::new(), Vec::new());
    for line in &LINES {
        let mut points = Points::new();
        for memory_gb in MEMORY_GB {
            points.push((memory_gb, of_line(line, memory_gb, 0.0)?));
        }
        for ((memory_gb, ours), printed) in [points[0], points[points.len() - 1]].into_iter().zip(line.printed) {
            let name = format!("{} processes, {memory_gb} GB of memory (fit)", line.processes);
            bars.push(Bar::new(name, "GB/s", ours, (printed, "the paper")).must_be(FITTED));
        }
        bars.push(rises(&format!("{} processes: least rise with 50 GB more of memory", line.processes), &points));
        lines.push((line.processes, points));
    }
    let figure = Figure::new("5", "Memory and disk", bars)
        .says("Two rates are fitted to two throughputs of each line, so the end points say nothing for the model; what lies between is not printed in the text.")
        .says("Rates of one line do not give the other: with those of 1,800 processes 1,200 would have 33.3 and 51.8 GB/s.");
    Ok((figure, lines))
}

/// Whether a line never falls: its least step, which must not be below 0.
fn rises(name: &str, points: &[(f64, f64)]) -> Bar {
    let least = points.windows(2).map(|pair| pair[1].1 - pair[0].1).fold(f64::INFINITY, f64::min);
    // As a ratio to what would be as it was.
    Bar::new(name, "GB/s", points[0].1 + least, (points[0].1, "no rise")).must_be(Limit::AtLeast(1.0))
}

fn figure_6() -> anyhow::Result<(Figure, Vec<(f64, Points)>)> {
    let line = &LINES[0];
    let at = |memory_gb, ssd_gb| of_line(line, memory_gb, ssd_gb);
    let mut lines = Vec::new();
    for ssd_gb in SSD_GB {
        let mut points = Points::new();
        for memory_gb in [50.0, 100.0, 150.0] {
            points.push((memory_gb, at(memory_gb, ssd_gb)?));
        }
        lines.push((ssd_gb, points));
    }
    let bars = vec![
        Bar::new(
            "100 GB of memory, 250 of SSD: cost (fit)",
            "$",
            usd(100.0, 250.0, 0.0),
            (usd(150.0, 0.0, 0.0), "150 of memory"),
        )
        .must_be(FITTED),
        Bar::new("and they take in more", "GB/s", at(100.0, 250.0)? - at(150.0, 0.0)?, (5.2, "the paper")),
        Bar::new(
            "100 GB of memory, 200 of SSD cost less than 250",
            "%",
            100.0 * (1.0 - usd(100.0, 200.0, 0.0) / usd(250.0, 0.0, 0.0)),
            (44.0, "the paper"),
        )
        .must_be(FITTED),
        Bar::new("and they take in", "GB/s", at(100.0, 200.0)?, (at(250.0, 0.0)?, "250 of memory, ours")),
    ];
    let figure = Figure::new("6", "Memory, SSD and disk, 1,800 processes", bars)
        .says("That a GB of memory costs five GB of SSD is fitted to the first of the paper's two comparisons; the second follows from it, to its printed digits.")
        .says("The throughputs are predicted, with the rates of Figure 5 and the SSD of Table II.")
        .says(without_overlap(line));
    Ok((figure, lines))
}

/// What the end points of Figure 5 say if memory does not drain while it fills: t = i/m + (s − i)/d, with m and d from both.
fn without_overlap(line: &Line) -> String {
    let [least_s, most_s] = line.printed.map(|gb_s| line.dataset_gb / gb_s);
    let (least_gb, most_gb) = (MEMORY_GB[0], MEMORY_GB[MEMORY_GB.len() - 1]);
    let at = |gb: f64| line.dataset_gb / (least_s + (most_s - least_s) * (gb - least_gb) / (most_gb - least_gb));
    format!(
        "A model whose memory does not drain while it fills, through the same end points, has {:.1} GB/s at 150 GB of memory and {:.1} at 250: {:.1} more, \
         which is what the paper has 100 GB with 250 GB of SSD gain, and it says that 100 with 200 do as well as 250. So the paper's testbed may not have overlapped \
         filling and draining, though its text says that it does.",
        at(150.0),
        at(250.0),
        at(250.0) - at(150.0)
    )
}

/// Sets of nodes that lend unequal parts of 100 GB of memory and 200 GB of SSD.
fn figure_7() -> anyhow::Result<(Figure, Vec<(String, f64)>)> {
    let line = &LINES[1];
    let mut found = Vec::new();
    for memory in [[25.0; 4], [50.0, 50.0, 0.0, 0.0]] {
        for ssd in [[50.0; 4], [100.0, 100.0, 0.0, 0.0], [0.0, 0.0, 100.0, 100.0]] {
            let kinds = memory.iter().zip(ssd).map(|(memory, ssd)| kind(SET, *memory, ssd, line.rates())).collect();
            let name = |of: [f64; 4]| of.map(|gb| gb.to_string()).join("-");
            let gb_s = write(kinds, line.processes, line.dataset_gb)?.bytes_s() / GB;
            found.push((format!("m {}, s {}", name(memory), name(ssd)), gb_s));
        }
    }
    let others = found.iter().skip(1).map(|(_, gb_s)| *gb_s).fold(0.0, f64::max);
    let bars = vec![
        Bar::new(
            "all sets lend both, beside the best of the others",
            "GB/s",
            found[0].1,
            (others, "the best of the others"),
        )
        .must_be(Limit::AtLeast(1.0)),
    ];
    let figure = Figure::new("7", "Unequal sets of nodes, 290 GB", bars)
        .says("The text prints no throughput, only that equal contributions are the fastest; which contributions were compared is not in it either, so ours are examples of the same sums.")
        .says("A node without an SSD drains to the target here, and not to another node's SSD.");
    Ok((figure, found))
}
