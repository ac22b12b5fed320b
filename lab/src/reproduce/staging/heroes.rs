//! Heroes in a centre-wide staging area (Figures 11 to 13) and in their own job (Figure 14).

use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::provision::{
    Candidate, Mode, Nodes, Prices, Problem, Provision, Rates, Redundancy, Target, TradeOff,
};
use surgetank_whatif::staging::{Burst, Kind};

use super::figure::Figure;
use super::paper::{self, GB};
use crate::bar::{Bar, Limit};

/// Steps of a node's memory, of its part of the data set.
const MEMORY_STEPS: u64 = 2000;
/// Steps of its SSD: what it takes in six seconds, the step of Figure 13.
const SSD_STEP_S: f64 = 6.0;
const SSD_STEPS: u64 = 55;
/// Steps of a budget.
const BUDGET_STEPS: u32 = 1000;
const FITTED: Limit = Limit::Within(0.01);
const USD_PER_GIB: f64 = (1_u64 << 30) as f64 / GB;

/// A hero in a staging area of so many nodes.
pub struct Hero {
    /// Its data set.
    pub tb: f64,
    /// Compute nodes for one of the staging area.
    pub ratio: u64,
    /// The cheapest without and with SSD, in USD.
    pub memory_usd: f64,
    pub ssd_usd: f64,
    /// What the budget takes in without and with SSD, in GB/s.
    pub memory_gb_s: f64,
    pub ssd_gb_s: f64,
    /// Cost by tolerated time.
    pub trade_off: Vec<TradeOff>,
}

impl Hero {
    /// Part of the cost that SSDs save.
    pub fn saved(&self) -> f64 {
        1.0 - self.ssd_usd / self.memory_usd
    }

    /// What SSDs take in more for the same money.
    pub fn gained(&self) -> f64 {
        self.ssd_gb_s / self.memory_gb_s - 1.0
    }

    /// Part of the cost of memory alone that is saved by a checkpoint so much longer.
    pub fn saved_at(&self, point: &TradeOff) -> f64 {
        1.0 - point.plan.cost_usd / self.memory_usd
    }
}

/// Nodes of the staging area.
pub const fn staging_nodes(nodes: u64, ratio: u64) -> u64 {
    let staging = nodes / ratio;
    if staging == 0 { 1 } else { staging }
}

/// What a data set needs of a staging area of at most so many nodes; `has_ssd`: they may have some.
pub fn problem(dataset: f64, nodes: u64, has_ssd: bool) -> Problem {
    let share = dataset / nodes as f64;
    let memory = (1..=MEMORY_STEPS).map(|step| (share * step as f64 / MEMORY_STEPS as f64).ceil() as u64);
    let ssd_step = paper::STAGING_SSD_BYTES_S * SSD_STEP_S;
    let most = ((share / ssd_step).ceil() as u64).min(SSD_STEPS);
    let ssd: Vec<u64> = (0..=if has_ssd { most } else { 0 }).map(|step| (ssd_step * step as f64) as u64).collect();
    let candidate =
        |memory: u64, ssd: u64| Candidate { memory: Bytes::new(memory), ssd: Bytes::new(ssd), throughput: None };
    let target = Target {
        throughput: Bandwidth::new((dataset / paper::WITHIN_S) as u64),
        dataset: Some(Bytes::new(dataset as u64)),
        mode: Mode::CentreWide,
        link: None,
        redundancy: Redundancy::Copies(1),
        nodes_max: nodes,
    };
    Problem {
        target,
        rates: Some(paper::rates(
            paper::STAGING_INGEST_BYTES_S,
            paper::STAGING_SSD_BYTES_S,
            paper::STAGING_DRAIN_BYTES_S,
        )),
        prices: Prices::new(paper::MEMORY_USD * USD_PER_GIB, paper::SSD_USD * USD_PER_GIB, 0.0),
        candidates: memory.flat_map(|memory| ssd.iter().map(move |ssd| candidate(memory, *ssd))).collect(),
    }
}

/// What the planner has a checkpoint into so many nodes take, in seconds.
pub fn planned_s(dataset: Bytes, nodes: u64, memory: Bytes, ssd: Bytes, rates: Rates) -> f64 {
    let candidate = Candidate { memory, ssd, throughput: None };
    let problem = problem(dataset.get() as f64, nodes, false);
    let problem = Problem { rates: Some(rates), candidates: vec![candidate], ..problem };
    Nodes::of(&problem, &candidate).map_or(f64::NAN, |of| dataset.get() as f64 / of.delivered_bytes_s(nodes))
}

/// What a budget takes in on so many nodes, if it all goes into memory, and if the best part of it goes into SSD.
fn of_budget(dataset: f64, nodes: u64) -> anyhow::Result<(f64, f64)> {
    let problem = problem(dataset, nodes, true);
    let delivered = |ssd_share: f64| {
        let each = |usd: f64, price: f64| Bytes::new((usd / price / nodes as f64 * GB) as u64);
        let memory = each(paper::BUDGET_USD * (1.0 - ssd_share), paper::MEMORY_USD);
        let candidate =
            Candidate { memory, ssd: each(paper::BUDGET_USD * ssd_share, paper::SSD_USD), throughput: None };
        Nodes::of(&problem, &candidate).map(|of| of.delivered_bytes_s(nodes) / GB)
    };
    let all = (0..=BUDGET_STEPS).filter_map(|step| delivered(f64::from(step) / f64::from(BUDGET_STEPS)));
    let all: Vec<f64> = all.collect();
    let memory = all.first().copied().unwrap_or(f64::NAN);
    Ok((memory, all.into_iter().fold(0.0, f64::max)))
}

fn hero(tb: f64, ratio: u64) -> anyhow::Result<Hero> {
    let (dataset, nodes) = (tb * 1e12, staging_nodes(paper::NODES, ratio));
    let cheapest = |has_ssd: bool| {
        let answer = Provision::of(&problem(dataset, nodes, has_ssd));
        let usd = answer.best.as_ref().map(|best| best.cost_usd);
        usd.map(|usd| (usd, answer.trade_off))
            .ok_or_else(|| anyhow::anyhow!("{tb} TB have no staging area at {ratio}:1"))
    };
    let (memory_usd, _) = cheapest(false)?;
    let (ssd_usd, trade_off) = cheapest(true)?;
    let (memory_gb_s, ssd_gb_s) = of_budget(dataset, nodes)?;
    Ok(Hero { tb, ratio, memory_usd, ssd_usd, memory_gb_s, ssd_gb_s, trade_off })
}

/// All heroes at all ratios.
pub fn heroes() -> anyhow::Result<Vec<Hero>> {
    let all = paper::HERO_TB.iter().flat_map(|tb| paper::RATIOS.map(|ratio| (*tb, ratio)));
    all.map(|(tb, ratio)| hero(tb, ratio)).collect()
}

/// The most of all heroes.
fn most(heroes: &[Hero], of: impl Fn(&Hero) -> f64) -> f64 {
    heroes.iter().map(of).fold(0.0, f64::max)
}

/// Figures 11 to 13.
pub fn figures(heroes: &[Hero]) -> Vec<Figure> {
    let percent = |name: &str, ours: f64, paper: f64| Bar::new(name, "%", 100.0 * ours, (paper, "the paper"));
    let at = |hero: &Hero, longer: f64| {
        hero.trade_off
            .iter()
            .find(|point| (point.longer - longer).abs() < 1e-9)
            .map_or(0.0, |point| hero.saved_at(point))
    };
    // Of those that are not fitted.
    let others = |is_other: fn(&Hero) -> bool, of: fn(&Hero) -> f64| {
        let all = heroes.iter().filter(|hero| is_other(hero)).map(of);
        let (least, most) = all.fold((f64::INFINITY, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)));
        format!("{:.1} to {:.1} %", 100.0 * least, 100.0 * most)
    };
    let steps = heroes
        .iter()
        .flat_map(|hero| hero.trade_off.windows(2).map(|pair| pair[1].plan.cost_usd / pair[0].plan.cost_usd));
    let steepest = steps.fold(0.0, f64::max);
    let saved = others(|hero| (hero.tb, hero.ratio) != (41.0, 64), Hero::saved);
    let gained = others(|hero| hero.tb > 41.0, Hero::gained);
    let fit = |name: &str, ours: f64, paper: f64| percent(name, ours, paper).must_be(FITTED);
    let longer = percent("with 6 s more", most(heroes, |hero| at(hero, 0.02)), 41.5);
    let costs =
        Bar::new("steepest step of cost with time", "×", steepest, (1.0, "never dearer")).must_be(Limit::AtMost(1.0));
    let figure_11 = vec![fit("most that SSDs save (fit)", most(heroes, Hero::saved), 41.5)];
    let figure_12 = vec![fit("most that SSDs gain (fit)", most(heroes, Hero::gained), 59.3)];
    let figure_13 =
        vec![fit("most that is saved with 30 s more (fit)", most(heroes, |hero| at(hero, 0.1)), 52.1), longer, costs];
    vec![
        Figure::new("11", "Cost of a centre-wide staging area for five heroes", figure_11)
            .says(format!(
                "The SSD's and the target's rate of a node are fitted, with Figure 13, so that DS41TB at 64:1 saves the most that the paper \
                 prints, which does not say whose it is. The other fourteen save {saved}."
            ))
            .says(
                "Figure 5's ingest, 0.17 GB/s a node, takes in no hero in five minutes at any ratio: 41 TB need 0.47 GB/s a node at 64:1, 298 TB \
                 13.6 at 256:1, more than a link of Table I. Ingest is taken out of the way here.",
            ),
        Figure::new("12", "Throughput for $90,000", figure_12).says(format!(
            "The price of memory, $11.43 a GB, is fitted so that DS41TB gains what the paper prints. Three values are fitted to Figures 11 to 13, \
             one to each, so agreement says nothing for the model. The gain does not depend on the number of nodes; the other heroes gain {gained}."
        )),
        Figure::new("13", "Cost against time", figure_13).says(
            "Counted from the cost of memory alone. Were it counted from the cost with SSDs, no rates would give Figures 11, 12 and 13 for one \
             hero.",
        ),
    ]
}

/// Figure 14: how long a job takes that lends so much of itself.
pub struct InJob {
    /// Part of its nodes.
    pub lent: f64,
    /// What those lend.
    pub tiers: &'static str,
    /// One checkpoint, and the whole job, in seconds.
    pub checkpoint_s: f64,
    pub job_s: f64,
}

/// Checkpoints in the job's four hours.
const CHECKPOINTS: f64 = 4.0;

/// The largest hero.
pub fn in_job() -> anyhow::Result<(Figure, Vec<InJob>)> {
    let nodes = paper::DATASET_MOST / (paper::CORES_PER_NODE as f64 * paper::MEMORY_PER_CORE);
    let file_system = paper::DATASET_MOST / paper::WITHIN_S;
    let computes_s = paper::IN_JOB_S - CHECKPOINTS * paper::WITHIN_S;
    let mut found = Vec::new();
    for lent in [0.01, 0.02, 0.04] {
        for (tiers, memory_gb, ssd) in [
            ("memory, disk", 16.0, 0.0),
            ("memory, SSD, disk", 16.0, paper::SSD_SIZE),
            ("SSD, disk", 0.0, paper::SSD_SIZE),
        ] {
            let count = (nodes * lent).round();
            let rates = paper::rates(paper::LINK_BYTES_S, paper::SSD_BYTES_S, file_system / count);
            let kind = Kind {
                count: count as u64,
                memory: Bytes::new((memory_gb * GB) as u64),
                ssd: Bytes::new(ssd as u64),
                rates,
            };
            let processes = ((nodes - count) * paper::CORES_PER_NODE as f64) as u64;
            let each = Bytes::new((paper::DATASET_MOST / processes as f64) as u64);
            // Sixteen of the paper's chunks: those of the largest job are 280 million.
            let written = Burst { kinds: vec![kind], processes, each, chunk: Bytes::from_mib(16) }.run()?;
            let checkpoint_s = written.took.as_secs_f64();
            found.push(InJob {
                lent,
                tiers,
                checkpoint_s,
                job_s: computes_s / (1.0 - lent) + CHECKPOINTS * checkpoint_s,
            });
        }
    }
    let best_s = found.iter().filter(|one| one.lent <= 0.02).map(|one| one.job_s).fold(f64::INFINITY, f64::min);
    let faster = 100.0 * (1.0 - best_s / paper::IN_JOB_S);
    let needed_s = (0.97 * paper::IN_JOB_S - computes_s / 0.98) / CHECKPOINTS;
    let needed_gb_s = paper::DATASET_MOST / needed_s / GB;
    let figure = Figure::new("14", "A job of 223,695 cores lends 1 to 4 % of them", vec![Bar::new(
        "faster with 1 or 2 %, at best",
        "%",
        faster,
        (3.0, "the paper"),
    )])
    .says("Not reproduced. The paper prints neither the SSDs of this experiment nor the file system's rate nor the number of checkpoints. Ours: four of five minutes, at 994 GB/s, which 11,696 disks write; nodes have a link of Table I, 16 GB and the SSD of Table II.")
    .says(format!(
        "The nodes that are lent cost 1 to 4 % of the computing time, and their memory holds no more of a checkpoint than that. For 3 % a checkpoint would have to take {needed_s:.0} s with 2 % lent, {needed_gb_s:.0} GB/s, {:.1} a node.",
        needed_gb_s / (nodes * 0.02)
    ));
    Ok((figure, found))
}
