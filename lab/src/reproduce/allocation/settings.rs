//! What is varied: the paper's Figures 3 and 6 to 11.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use surgetank_hierarchy::{
    Area, Case, DiskType, Hierarchy, Layout, Pattern, Phase, Reach, Replacement, Scheme, Source, Times, mixes,
};
use surgetank_model::Bytes;
use surgetank_trace::{Gathered, Keys, Options, Reader};

use crate::product::tree;

/// Blocks of a MiB.
const PER_MIB: u64 = (1 << 20) / mixes::BLOCK;
/// The paper's table 1.
const LEVEL1_MIB: u64 = 512;
const LEVEL2_MIB: u64 = 1024;
const INTERVAL_S: f64 = 30.0;
const SLO: f64 = 0.05;
/// Ours: the paper does not say. A hit takes a round trip of the network and a copy; disks are as many as the mixes keep half busy.
const TIMES: Times = Times { level1_ms: 0.25, level2_ms: 0.75 };
const DISKS: usize = 8;
/// By how much the optimal scheme and the paper's algorithm change a share at once: caches get warm as fast as disks fill them.
const CHANGE_MAX: f64 = 0.03;
/// The margin is the one-sided 99 % of normal noise.
const DEVIATIONS: f64 = 2.33;
const SAMPLED: f64 = 0.25;
/// LRFU's, per access to the system: a use counts half after a hundred thousand others.
pub const LAMBDA: f64 = 1e-5;
const SEED: u64 = 1;

/// One row of a figure.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The paper's.
    pub figure: &'static str,
    /// Whose applications.
    pub mix: &'static str,
    /// What is varied.
    pub name: String,
    /// What runs.
    pub case: Case,
    /// Under which schemes, beside the fair share.
    pub schemes: Vec<Scheme>,
}

/// How long and with which mixes.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Simulated time.
    pub seconds: f64,
    /// Share of the paper's caches; data, accesses and disks are as many times fewer, so that caches fill in the same time.
    pub scale: f64,
}

impl Extent {
    fn blocks(self, blocks: u64) -> u64 {
        ((blocks as f64 * self.scale) as u64).max(1)
    }

    fn source(self, mut source: Source) -> Source {
        source.accesses_per_s *= self.scale;
        for area in source.phases.iter_mut().flat_map(|phase| &mut phase.areas) {
            area.base = (area.base as f64 * self.scale).ceil() as u64;
            match &mut area.pattern {
                Pattern::Sweep { blocks, .. } | Pattern::Uniform { blocks } | Pattern::Zipf { blocks, .. } => {
                    *blocks = self.blocks(*blocks);
                }
                Pattern::Trace(_) => {}
            }
        }
        source
    }
}

const ALL: &[Scheme] = &[
    Scheme::Independent,
    Scheme::Uncontrolled,
    Scheme::FirstLevelOnly,
    Scheme::SecondLevelOnly,
    Scheme::Mlms,
    Scheme::Optimal,
    Scheme::Clairvoyant,
];
const WITH_UNCONTROLLED: &[Scheme] = &[Scheme::Uncontrolled, Scheme::Mlms, Scheme::Optimal, Scheme::Clairvoyant];
const OURS: &[Scheme] = &[Scheme::Mlms, Scheme::Optimal, Scheme::Clairvoyant];

/// A policy of both levels: DEMOTE keeps them exclusive.
#[derive(Clone, Copy, Debug)]
struct Levels {
    name: &'static str,
    hierarchy: Hierarchy,
    behind: Replacement,
}

const DEMOTE_LRU: Levels =
    Levels { name: "exclusive, LRU and LRU", hierarchy: Hierarchy::Exclusive, behind: Replacement::Lru };
const LEVELS: [Levels; 3] = [
    Levels { name: "inclusive, LRU and LRU", hierarchy: Hierarchy::Inclusive, behind: Replacement::Lru },
    DEMOTE_LRU,
    Levels {
        name: "exclusive, LRU and LRFU",
        hierarchy: Hierarchy::Exclusive,
        behind: Replacement::Lrfu { lambda: LAMBDA },
    },
];

/// All of them, without what is the base again; traces if there are any.
///
/// # Errors
/// If a trace cannot be read.
pub fn all(extent: Extent, data: Option<&Path>) -> anyhow::Result<Vec<Setting>> {
    let mut settings = Vec::new();
    for (mix, sources) in [("HPC", mixes::hpc()), ("enterprise", mixes::enterprise())] {
        settings.extend(of_mix(mix, &sources, extent));
    }
    settings.extend(figure_11(extent));
    settings.extend(traces(extent, data)?);
    Ok(settings)
}

fn of_mix(mix: &'static str, sources: &[Source], extent: Extent) -> Vec<Setting> {
    let base = case(sources, DEMOTE_LRU, extent);
    let setting = |figure, name: &str, case: Case, schemes: &[Scheme]| Setting {
        figure,
        mix,
        name: name.to_owned(),
        case,
        schemes: schemes.to_vec(),
    };
    let mut settings = vec![setting("3 and 6", "as in table 1", base.clone(), ALL)];
    for levels in [LEVELS[0], LEVELS[2]] {
        settings.push(setting("7", levels.name, case(sources, levels, extent), WITH_UNCONTROLLED));
    }
    for levels in LEVELS {
        let mut partial = case(sources, levels, extent);
        // Table 2, servers from 0.
        let reached = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]];
        for (reach, reached) in partial.layout.reach.iter_mut().zip(reached) {
            reach.level2 = reached.to_vec();
        }
        settings.push(setting("8", &format!("partial, {}", levels.name), partial, WITH_UNCONTROLLED));
    }
    for mib in [256, 1024] {
        let mut varied = base.clone();
        varied.layout.level1 = vec![extent.blocks(mib * PER_MIB); 2];
        settings.push(setting("9", &format!("I/O servers of {mib} MB"), varied, OURS));
    }
    for (name, slos) in
        [("SLO of 1 %", [0.01; 4]), ("SLO of 10 %", [0.10; 4]), ("SLOs of 2 % and 8 %", [0.02, 0.08, 0.02, 0.08])]
    {
        settings.push(setting("10", name, Case { slos: slos.to_vec(), ..base.clone() }, OURS));
    }
    for interval_s in [10.0, 70.0] {
        let intervals = (extent.seconds / interval_s) as usize;
        let change_max = Some(CHANGE_MAX * interval_s / INTERVAL_S);
        let varied = Case { interval_s, intervals, warmup: warmup(intervals), change_max, ..base.clone() };
        settings.push(setting("4.5", &format!("interval of {interval_s} s"), varied, OURS));
    }
    settings
}

/// Two applications on one I/O server and two storage servers.
fn figure_11(extent: Extent) -> Option<Setting> {
    let mut sources = mixes::hpc();
    sources.retain(|source| ["BTIO", "MPI-Tile-IO"].contains(&&*source.name));
    let mut case = case(&sources, DEMOTE_LRU, extent);
    case.layout.level1.truncate(1);
    case.layout.level2.truncate(2);
    case.layout.reach = vec![Reach { level1: 0, level2: vec![0, 1] }; 2];
    case.slos = vec![0.02, 0.08];
    let name = "BTIO 2 %, MPI-Tile-IO 8 %, one I/O server".to_owned();
    (sources.len() == 2).then_some(Setting { figure: "11", mix: "HPC", name, case, schemes: OURS.to_vec() })
}

/// What is recorded, on caches that are as small beside it as the paper's are beside its data.
fn traces(extent: Extent, data: Option<&Path>) -> anyhow::Result<Option<Setting>> {
    let beside = || tree().parent().map(|parent| parent.join("shared/data"));
    let data = data.map(Path::to_owned).or_else(beside).map(|data| data.join("block"));
    let Some(data) = data.filter(|data| data.is_dir()) else {
        return Ok(None);
    };
    let mut sources = Vec::new();
    for (file, name, accesses_per_s, block) in [
        ("arc-OLTP.lis.zst", "OLTP", 900.0, None),
        ("cloudphysics-2h.vscsi.xz", "CloudPhysics", 600.0, Some(mixes::BLOCK)),
        ("lirs-multi2.trace.gz", "multi2", 500.0, None),
        ("lirs-glimpse.trace.gz", "glimpse", 400.0, None),
    ] {
        let blocks = blocks(&data.join(file), block).with_context(|| format!("trace {name}"))?;
        let area = Area { base: 0, pattern: Pattern::Trace(blocks), weight: 1.0, run: 1 };
        let phases = vec![Phase { lasts_s: extent.seconds.max(1.0), areas: vec![area] }];
        sources.push(Source { name: name.to_owned(), accesses_per_s, phases });
    }
    let mut case = case(&sources, DEMOTE_LRU, extent);
    case.layout.level1 = vec![2048; 2];
    case.layout.level2 = vec![4096; 4];
    let name = "recorded traces, I/O servers of 32 MB, storage servers of 64 MB".to_owned();
    Ok(Some(Setting { figure: "6", mix: "recorded", name, case, schemes: ALL.to_vec() }))
}

/// Keys of a trace: numbers of blocks, dense enough for a disk.
fn blocks(path: &Path, block: Option<u64>) -> anyhow::Result<Arc<[u64]>> {
    let mut reader = Reader::open(path, Options::default())?;
    let mut gathered = Gathered::new(Keys { block: block.map(Bytes::new), ..Keys::default() });
    let mut blocks = Vec::new();
    while reader.read_keys(&mut gathered, |keys| blocks.extend_from_slice(keys))? {}
    if blocks.is_empty() {
        bail!("{} has no accesses", path.display());
    }
    Ok(blocks.into())
}

fn case(sources: &[Source], levels: Levels, extent: Extent) -> Case {
    let intervals = (extent.seconds / INTERVAL_S) as usize;
    Case {
        layout: Layout {
            hierarchy: levels.hierarchy,
            behind: levels.behind,
            block: mixes::BLOCK,
            level1: vec![extent.blocks(LEVEL1_MIB * PER_MIB); 2],
            level2: vec![extent.blocks(LEVEL2_MIB * PER_MIB); 4],
            reach: (0..sources.len()).map(|index| Reach { level1: index / 2, level2: (0..4).collect() }).collect(),
        },
        times: TIMES,
        disk: DiskType::PAPER,
        disks: ((DISKS as f64 * extent.scale).round() as usize).max(1),
        sources: sources.iter().map(|source| extent.source(source.clone())).collect(),
        seed: SEED,
        interval_s: INTERVAL_S,
        intervals,
        warmup: warmup(intervals),
        slos: vec![SLO; sources.len()],
        change_max: Some(CHANGE_MAX),
        deviations: Some(DEVIATIONS),
        sampled: SAMPLED,
    }
}

/// A quarter of a run: disks fill 4 GB of caches no faster, and the paper's algorithm takes its samples.
fn warmup(intervals: usize) -> usize {
    intervals / 4
}
