//! What `provision` answers.

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use super::nodes::Nodes;
use super::problem::{Candidate, NODES_MAX, Prices, Problem, Redundancy, SIZE_MAX};

const GIB: f64 = (1_u64 << 30) as f64;
/// How much longer a checkpoint may take, in per cent: the points of the curve.
const LONGER: [u32; 15] = [0, 2, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100];

/// The nodes to take, why others lose, and what a longer checkpoint would cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provision {
    /// The cheapest nodes that deliver the target; null if none do.
    pub best: Option<Plan>,
    /// Every candidate, in the order of the file.
    pub considered: Vec<Considered>,
    /// T_app.
    pub target_gib_s: f64,
    /// What the application writes at once, if the file says it.
    pub dataset_gib: Option<f64>,
    /// `in-job` or `centre-wide`.
    pub mode: &'static str,
    /// D_link; null: links cost nothing.
    pub link_divisor: Option<f64>,
    /// What is stored of each byte.
    pub redundancy: String,
    /// The same as a number.
    pub redundancy_ratio: f64,
    /// The cheapest nodes for checkpoints that take longer, in order; empty if even the longest has none.
    pub trade_off: Vec<TradeOff>,
    /// Why there is no answer, and the nearest target that has one.
    pub infeasible: Option<Infeasible>,
}

/// Equal nodes. Sizes are one node's, as in the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// How many.
    pub nodes: u64,
    /// Memory of each.
    pub memory_gib: f64,
    /// SSD of each.
    pub ssd_gib: f64,
    /// What they take in together, at least the target.
    pub throughput_gib_s: f64,
    /// What they cost together.
    pub cost_usd: f64,
    /// T_H: what one takes in before what links cost.
    pub node_throughput_gib_s: f64,
    /// Memory of all.
    pub memory_total_gib: f64,
    /// SSD of all.
    pub ssd_total_gib: f64,
}

/// How a candidate stands to the best one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is the best one.
    Best,
    /// It costs as much, with more nodes, or with as many and more memory, or with as much and more SSD, or is later in the file.
    AsDear,
    /// It costs more.
    Dearer,
    /// No number of nodes delivers the target.
    TooSlow,
}

/// A candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Considered {
    /// Memory of a node.
    pub memory_gib: f64,
    /// SSD of a node.
    pub ssd_gib: f64,
    /// Whether some number of nodes delivers the target.
    pub feasible: bool,
    /// How it stands to the best one.
    pub verdict: Verdict,
    /// The least number of nodes; null if none suffices.
    pub nodes: Option<u64>,
    /// What they take in together.
    pub throughput_gib_s: Option<f64>,
    /// What they cost together.
    pub cost_usd: Option<f64>,
    /// How much more than the best.
    pub more_usd: Option<f64>,
}

/// The cheapest nodes for a checkpoint that takes longer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TradeOff {
    /// How much longer, as a part of the target's time.
    pub longer: f64,
    /// What it takes, if the file says how much is written.
    pub time_s: Option<f64>,
    /// The throughput that suffices.
    pub target_gib_s: f64,
    /// The nodes.
    #[serde(flatten)]
    pub plan: Plan,
    /// How much less that is than the target costs, as a part of it; null if the target has no answer.
    pub saved: Option<f64>,
}

/// Why no nodes deliver the target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Infeasible {
    /// For people.
    pub reason: String,
    /// The highest target that some nodes deliver; null if none deliver anything.
    pub throughput_gib_s: Option<f64>,
}

/// A candidate with the least number of its nodes, and what they cost.
#[derive(Clone, Copy, Debug)]
struct Choice {
    index: usize,
    nodes: u64,
    cost: u128,
}

impl Choice {
    /// What the best one has least of, in this order; of equal ones the first of the file is the best.
    fn order(&self, problem: &Problem) -> impl Ord + use<> {
        let of = &problem.candidates[self.index];
        (self.cost, self.nodes, of.memory, of.ssd, self.index)
    }

    fn of(problem: &Problem, index: usize, bytes_s: u64) -> Option<Self> {
        let candidate = &problem.candidates[index];
        let nodes = Nodes::of(problem, candidate)?.least(bytes_s)?;
        Some(Self { index, nodes, cost: problem.prices.cost(candidate, nodes) })
    }

    /// Whether a candidate cannot cost less: even without what links cost, that many of it cost more.
    fn outdoes(&self, problem: &Problem, candidate: &Candidate, bytes_s: u64) -> bool {
        let nodes = Nodes::of(problem, candidate);
        nodes.is_none_or(|nodes| problem.prices.cost(candidate, nodes.at_least(bytes_s)) > self.cost)
    }
}

/// The cheapest nodes for a throughput: the candidate's index and the number of nodes. Of those that cost the same the fewest nodes, then
/// the least memory, then the least SSD, then the first of the file.
#[must_use]
pub fn cheapest(problem: &Problem, bytes_s: u64) -> Option<(usize, u64)> {
    choose(problem, bytes_s, None).map(|choice| (choice.index, choice.nodes))
}

/// The same; `near`: a candidate that is likely cheap, so that others need not be looked at more closely.
fn choose(problem: &Problem, bytes_s: u64, near: Option<usize>) -> Option<Choice> {
    let mut best = near.and_then(|index| Choice::of(problem, index, bytes_s));
    for (index, candidate) in problem.candidates.iter().enumerate() {
        if best.is_some_and(|best| best.outdoes(problem, candidate, bytes_s)) {
            continue;
        }
        let Some(choice) = Choice::of(problem, index, bytes_s) else { continue };
        if best.is_none_or(|best| choice.order(problem) < best.order(problem)) {
            best = Some(choice);
        }
    }
    best
}

impl Provision {
    /// The answer to a problem.
    #[must_use]
    pub fn of(problem: &Problem) -> Self {
        let target = &problem.target;
        let bytes_s = target.throughput.get();
        let choices: Vec<Option<Choice>> =
            (0..problem.candidates.len()).map(|index| Choice::of(problem, index, bytes_s)).collect();
        let best = choices.iter().flatten().copied().min_by_key(|choice| choice.order(problem));
        let of = |(candidate, choice)| Considered::of(problem, candidate, choice, best);
        let considered = problem.candidates.iter().zip(choices).map(of).collect();
        let most = best.is_none().then(|| most(problem));
        Self {
            best: best.map(|best| Plan::of(problem, best)),
            considered,
            target_gib_s: bytes_s as f64 / GIB,
            dataset_gib: target.dataset.map(Bytes::as_gib),
            mode: target.mode.name(),
            link_divisor: target.link.map(super::problem::LinkDivisor::get),
            redundancy: target.redundancy.to_string(),
            redundancy_ratio: target.redundancy.factor(),
            trade_off: trade_off(problem, best, most.map(|most| most.map_or(0, |(_, bytes_s)| bytes_s))),
            infeasible: most.map(|most| Infeasible::of(problem, most)),
        }
    }
}

impl Plan {
    fn of(problem: &Problem, choice: Choice) -> Self {
        let candidate = &problem.candidates[choice.index];
        let nodes = Nodes::of(problem, candidate);
        let of = |bytes_s: &dyn Fn(Nodes) -> f64| nodes.map_or(0.0, bytes_s) / GIB;
        let all = choice.nodes as f64;
        Self {
            nodes: choice.nodes,
            memory_gib: candidate.memory.as_gib(),
            ssd_gib: candidate.ssd.as_gib(),
            throughput_gib_s: of(&|nodes| nodes.delivered_bytes_s(choice.nodes)),
            cost_usd: Prices::usd(choice.cost),
            node_throughput_gib_s: of(&|nodes| nodes.each_bytes_s(choice.nodes)),
            memory_total_gib: all * candidate.memory.as_gib(),
            ssd_total_gib: all * candidate.ssd.as_gib(),
        }
    }
}

impl Considered {
    fn of(problem: &Problem, candidate: &Candidate, choice: Option<Choice>, best: Option<Choice>) -> Self {
        let of_choice = choice.zip(Nodes::of(problem, candidate));
        let verdict = match (choice, best) {
            (Some(choice), Some(best)) if choice.index == best.index => Verdict::Best,
            (Some(choice), Some(best)) if choice.cost == best.cost => Verdict::AsDear,
            (Some(_), _) => Verdict::Dearer,
            (None, _) => Verdict::TooSlow,
        };
        Self {
            memory_gib: candidate.memory.as_gib(),
            ssd_gib: candidate.ssd.as_gib(),
            feasible: choice.is_some(),
            verdict,
            nodes: choice.map(|choice| choice.nodes),
            throughput_gib_s: of_choice.map(|(choice, nodes)| nodes.delivered_bytes_s(choice.nodes) / GIB),
            cost_usd: choice.map(|choice| Prices::usd(choice.cost)),
            more_usd: choice.zip(best).map(|(choice, best)| Prices::usd(choice.cost - best.cost)),
        }
    }
}

/// The most bytes a second that any candidate's nodes deliver.
fn most(problem: &Problem) -> Option<(&Candidate, u64)> {
    problem.candidates.iter().fold(None, |most, candidate| {
        let above = most.map_or(0, |(_, bytes_s)| bytes_s);
        let more = Nodes::of(problem, candidate).and_then(|nodes| nodes.most(above));
        more.map(|(_, bytes_s)| (candidate, bytes_s)).or(most)
    })
}

impl Infeasible {
    fn of(problem: &Problem, most: Option<(&Candidate, u64)>) -> Self {
        let number = match problem.target.nodes_max {
            NODES_MAX => "no number of nodes".to_owned(),
            max => format!("no number of nodes up to nodes_max, {max},"),
        };
        let Some((candidate, nearest)) = most.and_then(|(of, bytes_s)| Some((of, feasible(bytes_s)?))) else {
            let reason = format!("{number} takes in anything: allow more nodes, or measure link_divisor again");
            return Self { reason, throughput_gib_s: None };
        };
        let wanted = problem.target.throughput.get() as f64 / GIB;
        let reason = format!(
            "{number} takes in {wanted:.3} GiB/s: the nearest target that is feasible is \"{nearest} GiB/s\", with {} of memory and \
             {} of SSD a node",
            candidate.memory, candidate.ssd
        );
        Self { reason, throughput_gib_s: Some(nearest) }
    }
}

/// A rate in GiB/s that can be written into a file, and is no higher than so many bytes a second.
fn feasible(bytes_s: u64) -> Option<f64> {
    /// Of a GiB/s.
    const MILLIONTH: f64 = 1e6;
    let rounded = (bytes_s as f64 / GIB * MILLIONTH).floor() / MILLIONTH;
    (rounded > 0.0).then_some(rounded)
}

/// What is feasible stays so with a lower target, and with no more nodes, so no cost of the curve is above the one before it.
/// `most`: no nodes deliver more, if that is known.
fn trade_off(problem: &Problem, best: Option<Choice>, most: Option<u64>) -> Vec<TradeOff> {
    let mut near = best.map(|best| best.index);
    let point = |longer: u32| {
        let throughput = problem.target.throughput.get();
        let bytes_s = (u128::from(throughput) * 100 / u128::from(100 + longer)).max(1) as u64;
        if most.is_some_and(|most| bytes_s > most) {
            return None;
        }
        let choice = choose(problem, bytes_s, near)?;
        near = Some(choice.index);
        Some(TradeOff {
            longer: f64::from(longer) / 100.0,
            time_s: problem.target.dataset.map(|dataset| dataset.get() as f64 / bytes_s as f64),
            target_gib_s: bytes_s as f64 / GIB,
            saved: best.map(|best| match best.cost {
                0 => 0.0,
                cost => 1.0 - choice.cost as f64 / cost as f64,
            }),
            plan: Plan::of(problem, choice),
        })
    };
    LONGER.into_iter().filter_map(point).collect()
}

/// What of an answer a pool is started by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// How many benefactors.
    pub nodes: u64,
    /// Memory of each.
    pub memory: Bytes,
    /// SSD of each.
    pub ssd: Bytes,
    /// What is stored of each byte; `None`: the answer does not say.
    pub redundancy: Option<Redundancy>,
}

#[derive(Deserialize)]
struct RawAnswer {
    best: Option<RawPlan>,
    redundancy: Option<String>,
}

#[derive(Deserialize)]
struct RawPlan {
    nodes: u64,
    memory_gib: f64,
    ssd_gib: f64,
}

impl<'de> Deserialize<'de> for NodePlan {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let answer = RawAnswer::deserialize(deserializer)?;
        let Some(plan) = answer.best else {
            return Err(D::Error::custom("it has no best nodes, since its target is infeasible"));
        };
        let size = |gib: f64| {
            let bytes = (gib * GIB).round();
            let fits = (0.0..=SIZE_MAX as f64).contains(&bytes);
            fits.then_some(Bytes::new(bytes as u64)).ok_or_else(|| D::Error::custom(format!("no node has {gib} GiB")))
        };
        if !(1..=NODES_MAX).contains(&plan.nodes) {
            return Err(D::Error::custom(format!("no pool has {} nodes", plan.nodes)));
        }
        let redundancy = answer
            .redundancy
            .map(|text| text.parse().map_err(|_| D::Error::custom(format!("no pool has the redundancy {text:?}"))));
        let (memory, ssd) = (size(plan.memory_gib)?, size(plan.ssd_gib)?);
        Ok(Self { nodes: plan.nodes, memory, ssd, redundancy: redundancy.transpose()? })
    }
}
