//! What `provision` answers, beside numbers of the paper and of the design, and beside naive oracles.

use surgetank_model::random::Random;
use surgetank_model::toml_error::Source;
use surgetank_model::units::{GIB, MIB};
use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::provision::{
    Candidate, LinkDivisor, Mode, NODES_MAX, NodePlan, Nodes, Prices, Problem, Provision, ProvisionFile, Rates,
    Redundancy, Target, Verdict, cheapest,
};

const UNIT: f64 = GIB as f64;

fn problem(text: &str) -> Problem {
    let source = Source { file: "pool.toml".into(), text: text.to_owned() };
    ProvisionFile::parse(source).and_then(|file| file.problem()).unwrap_or_else(|error| panic!("{error}"))
}

fn answer(text: &str) -> Provision {
    Provision::of(&problem(text))
}

fn of(target: &str, candidate: &str) -> Provision {
    answer(&format!(
        "[target]\n{target}\n[[candidate]]\nmemory=\"2 GiB\"\nssd=\"4 GiB\"\n{candidate}\n[price]\nmemory_gib_usd=5.0\nssd_gib_usd=1.0\n"
    ))
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found}, expected {expected}");
}

#[test]
fn the_designs_numbers_come_out_to_all_digits() {
    // T_H = 0.5, D_link = 200, T_app = 12: 39 nodes in-job, 40 centre-wide.
    for (mode, nodes, throughput) in
        [("in-job", 39, 39.0 * (0.5 - 38.0 / 200.0)), ("centre-wide", 40, 40.0 * (0.5 - 40.0 / 200.0))]
    {
        let target = format!("throughput=\"12 GiB/s\"\nmode=\"{mode}\"\nlink_divisor=200");
        let best = of(&target, "throughput=\"0.5 GiB/s\"").best.unwrap();
        assert_eq!(best.nodes, nodes);
        near(best.throughput_gib_s, throughput);
        near(best.cost_usd, nodes as f64 * (2.0 * 5.0 + 4.0));
    }
    // The contract's file: ((0.81) − √(0.81² − 0.6)) ÷ 0.02 = 28.66.
    let answer = of("throughput=\"15 GiB/s\"\nmode=\"in-job\"\nlink_divisor=100", "throughput=\"0.8 GiB/s\"");
    let best = answer.best.unwrap();
    assert_eq!((best.nodes, best.memory_gib, best.ssd_gib), (29, 2.0, 4.0));
    assert!((best.throughput_gib_s - 29.0 * (0.8 - 0.28)).abs() < 1e-7, "{best:?}");
    assert!((best.cost_usd - 406.0).abs() < 1e-9);
    // Feasible up to (T_H + δ)² ÷ 4δ: whole numbers of nodes come near.
    let of_most =
        |throughput: &str| of(&format!("throughput=\"{throughput}\"\nlink_divisor=200"), "throughput=\"0.5 GiB/s\"");
    assert!((0.505_f64 * 0.505 / 0.02 - 12.75125).abs() < 1e-12);
    let infeasible = of_most("12.76 GiB/s").infeasible.unwrap();
    near(infeasible.throughput_gib_s.unwrap(), 12.75);
    assert!(infeasible.reason.contains("\"12.75 GiB/s\""), "{}", infeasible.reason);
    // 50 nodes deliver 50·(0.5 − 49/200) = 12.75.
    assert_eq!(of_most("12.75 GiB/s").best.unwrap().nodes, 50);
}

/// The paper's testbed with a model: 300 nodes, each with this much of memory and SSD in all, in GB/s.
fn testbed(dataset_gb: u64, memory_gb: f64, ssd_gb: f64) -> f64 {
    let share = |gb: f64| Bytes::new((gb / 300.0 * 1e9) as u64);
    let problem = Problem {
        target: Target { dataset: Some(Bytes::new(dataset_gb * 1_000_000_000)), ..target(GIB) },
        rates: Some(Rates {
            ingest: Bandwidth::new(172_700_000),
            ssd_write: Some(Bandwidth::new(175_000_000)),
            drain: Bandwidth::new(92_000_000),
        }),
        prices: Prices::new(1.0, 1.0, 0.0),
        candidates: vec![Candidate { memory: share(memory_gb), ssd: share(ssd_gb), throughput: None }],
    };
    Nodes::of(&problem, &problem.candidates[0]).unwrap().delivered_bytes_s(300) / 1e9
}

#[test]
fn the_model_gives_the_end_points_of_the_papers_figure_5() {
    let rounded = |gb_s: f64| (gb_s * 10.0).round() / 10.0;
    // 1,800 processes, which write 450 GB; the paper prints 31.0 and 51.8 GB/s.
    near_floating(testbed(450, 50.0, 0.0) * 1e9, 31.05e9);
    assert_eq!(rounded(testbed(450, 250.0, 0.0)), 51.8);
    assert_eq!(rounded(testbed(450, 400.0, 0.0)), 51.8);
    // 100 GB of memory with 250 GB of SSD; the paper has about 46.
    assert_eq!(rounded(testbed(450, 100.0, 250.0)), 51.8);
    // With 1,200 processes, which write 290 GB, the same rates do not give the paper's 16.2 and 43.7.
    assert_eq!(rounded(testbed(290, 50.0, 0.0)), 33.3);
    assert_eq!(rounded(testbed(290, 250.0, 0.0)), 51.8);
}

#[test]
fn redundancy_is_in_the_model() {
    let with = |redundancy: &str| {
        of(&format!("throughput=\"12 GiB/s\"\n{redundancy}"), "throughput=\"0.5 GiB/s\"").best.unwrap()
    };
    for (redundancy, nodes) in
        [("copies=1", 24), ("copies=2", 48), ("copies=3", 72), ("parity=\"4+1\"", 30), ("parity=\"8+2\"", 30)]
    {
        assert_eq!(with(redundancy).nodes, nodes, "{redundancy}");
    }
    // No two copies lie on one node, however fast it is.
    let fast = of("throughput=\"1 GiB/s\"\nparity=\"8+2\"", "throughput=\"50 GiB/s\"").best.unwrap();
    assert_eq!(fast.nodes, 10);
    // In the model r·s flows in, and each drained byte frees r: 10 nodes store 20 GiB each of 100 GiB with two copies, of which 12 GiB overflow
    // at 2 × 0.5 GiB/s: 12 s, while 20 GiB come in at 2 GiB/s in 10 s.
    let modelled = problem(
        "[target]\nthroughput=\"1 GiB/s\"\ndataset=\"100 GiB\"\ncopies=2\n[node]\ningest=\"2 GiB/s\"\ndrain=\"0.5 GiB/s\"\n\
         [[candidate]]\nmemory=\"8 GiB\"\n[price]\nmemory_gib_usd=5\n",
    );
    let nodes = Nodes::of(&modelled, &modelled.candidates[0]).unwrap();
    near(nodes.each_bytes_s(10), 10.0 / 12.0 * UNIT);
    near(nodes.delivered_bytes_s(10), 100.0 / 12.0 * UNIT);
}

#[test]
fn a_target_that_rounds_is_met_by_the_nodes_that_people_compute() {
    // "0.8 GiB/s" is a fraction of a byte a second more than it is read as.
    assert_eq!(of("throughput=\"8 GiB/s\"", "throughput=\"0.8 GiB/s\"").best.unwrap().nodes, 10);
    assert_eq!(of("throughput=\"0.7 GiB/s\"", "throughput=\"0.1 GiB/s\"").best.unwrap().nodes, 7);
    // A dataset and a time are a throughput: 450 GiB in 90 s.
    assert_eq!(of("dataset=\"450 GiB\"\ntime=\"90 s\"", "throughput=\"0.5 GiB/s\"").best.unwrap().nodes, 10);
}

fn target(bytes_s: u64) -> Target {
    Target {
        throughput: Bandwidth::new(bytes_s),
        dataset: None,
        mode: Mode::InJob,
        link: None,
        redundancy: Redundancy::Copies(1),
        nodes_max: NODES_MAX,
    }
}

/// A target, and how nodes meet it, of all kinds.
fn any_target(random: &mut Random) -> Target {
    let redundancy = match random.below(4) {
        0 => Redundancy::Parity { data: 1 + random.below(8) as u32, parity: 1 + random.below(2) as u32 },
        copies => Redundancy::Copies(copies as u32),
    };
    let most = [GIB, 20 * GIB, 100 * GIB][random.below(3) as usize];
    let link = random.chance(0.8).then(|| LinkDivisor::new(1.0 + 400.0 * random.unit()).unwrap());
    Target {
        dataset: Some(Bytes::new(1 + random.below(4000 * GIB))),
        mode: if random.chance(0.5) { Mode::InJob } else { Mode::CentreWide },
        link,
        redundancy,
        nodes_max: 1 + random.below(700),
        ..target(1 + random.below(most))
    }
}

fn any_problem(random: &mut Random, candidates: u64) -> Problem {
    let rate = |random: &mut Random| Bandwidth::new(1 + random.below(4 * GIB));
    let rates = Rates { ingest: rate(random), ssd_write: Some(rate(random)), drain: rate(random) };
    let candidate = |random: &mut Random| {
        // Few sizes and prices, so that costs tie.
        let (memory, ssd) = (random.below(5) * 8 * GIB, random.below(4) * 16 * GIB);
        let throughput = random.chance(0.5).then(|| rate(random));
        Candidate { memory: Bytes::new(memory.max(MIB)), ssd: Bytes::new(ssd), throughput }
    };
    Problem {
        target: any_target(random),
        rates: Some(rates),
        prices: Prices::new(random.below(4) as f64, random.below(2) as f64, random.below(3) as f64),
        candidates: (0..candidates).map(|_| candidate(random)).collect(),
    }
}

/// Whether N·(T_H − (N−1)·δ) ≥ T_app, or with N for N−1, in whole numbers; `more`: bytes a second that the rate may mean beyond itself.
fn suffices(target: &Target, rate: u64, more: i128, nodes: u64) -> bool {
    let (stored, of) = match target.redundancy {
        Redundancy::Copies(copies) => (i128::from(copies), 1),
        Redundancy::Parity { data, parity } => (i128::from(data + parity), i128::from(data)),
    };
    let remote = i128::from(nodes) - i128::from(target.mode == Mode::InJob);
    let divisor = target.link.map_or(1, |link| (link.get() * 1000.0).round() as i128);
    let loss = target.link.map_or(0, |_| i128::from(GIB) * 1000);
    let (nodes, rate) = (i128::from(nodes), i128::from(rate) + more);
    let [left, right] = [
        nodes * (rate * of * divisor - remote * loss * stored),
        i128::from(target.throughput.get()) * divisor * stored,
    ];
    if more > 0 { left > right } else { left >= right }
}

#[test]
fn no_fewer_measured_nodes_suffice() {
    let random = &mut Random::from_seed(1);
    let (mut found, mut none) = (0, 0);
    for _ in 0..4000 {
        let target = any_target(random);
        let rate = 1 + random.below(4 * GIB);
        let candidate = Candidate { memory: Bytes::new(GIB), ssd: Bytes::ZERO, throughput: Some(Bandwidth::new(rate)) };
        let problem = Problem { target, rates: None, prices: Prices::default(), candidates: vec![candidate] };
        let all = target.redundancy.nodes_min()..=target.nodes_max;
        let least = all.clone().find(|nodes| suffices(&target, rate, 1, *nodes));
        let nodes = Nodes::of(&problem, &candidate).unwrap();
        assert_eq!(nodes.least(target.throughput.get()), least, "{target:?}, {rate} B/s");
        // Whoever is exact needs no fewer, and no more than what a byte a second makes.
        let exact = all.clone().find(|nodes| suffices(&target, rate, 0, *nodes));
        assert!(exact.is_none_or(|exact| least.is_some_and(|least| least <= exact)));
        let most = all.map(|count| nodes.delivered_bytes_s(count)).fold(0.0, f64::max);
        match nodes.most(0) {
            Some((count, bytes_s)) => {
                assert!((bytes_s as f64 - most).abs() <= 1.0 + most * 1e-12, "{target:?}: {bytes_s}, expected {most}");
                assert!(nodes.delivered_bytes_s(count) >= bytes_s as f64 * (1.0 - 1e-12));
                assert!(nodes.least(bytes_s).is_some_and(|least| least <= count), "what is the most is feasible");
            }
            None => assert!(most < 1.0, "{target:?}: {most}"),
        }
        if least.is_some() { found += 1 } else { none += 1 }
    }
    assert!(found > 500 && none > 500, "{found} and {none}");
}

#[test]
fn large_numbers_of_nodes_are_exact_too() {
    let random = &mut Random::from_seed(2);
    for _ in 0..2000 {
        let target = Target {
            link: LinkDivisor::new(1e5 + 5e8 * random.unit()),
            mode: if random.chance(0.5) { Mode::InJob } else { Mode::CentreWide },
            ..target(1 + random.below(1 << 50))
        };
        let rate = 1 + random.below(1 << 33);
        let candidate = Candidate { memory: Bytes::new(GIB), ssd: Bytes::ZERO, throughput: Some(Bandwidth::new(rate)) };
        let problem = Problem { target, rates: None, prices: Prices::default(), candidates: vec![candidate] };
        let nodes = Nodes::of(&problem, &candidate).unwrap();
        // At the most that they deliver the equation has one root, where floating point is at its worst.
        let Some((_, most)) = nodes.most(0) else { continue };
        for bytes_s in [target.throughput.get().min(most), most, most - most / 1_000_000_007] {
            let asked = Target { throughput: Bandwidth::new(bytes_s), ..target };
            let least = nodes.least(bytes_s).expect("no more than the most is feasible");
            assert!(suffices(&asked, rate, 1, least), "{asked:?}: {least}");
            assert!(least == 1 || !suffices(&asked, rate, 1, least - 1), "{asked:?}: {least}");
        }
    }
}

/// What N nodes of the model deliver, as the design has it.
fn modelled(problem: &Problem, candidate: &Candidate, nodes: u64) -> f64 {
    let (target, rates) = (&problem.target, problem.rates.unwrap());
    let [dataset, memory, ssd] =
        [target.dataset.unwrap(), candidate.memory, candidate.ssd].map(|size| size.get() as f64);
    let [ingest, ssd_write, drain] =
        [rates.ingest, rates.ssd_write.unwrap(), rates.drain].map(|rate| rate.get() as f64);
    let (r, all) = (target.redundancy.factor(), nodes as f64);
    let s = dataset / all;
    let time = if ssd == 0.0 {
        (r * s / ingest).max((r * s - memory).max(0.0) / (r * drain))
    } else {
        let to_ssd = (r * s - memory).min(ssd).max(0.0) / ssd_write;
        (r * s / ingest).max(to_ssd + (r * s - memory - ssd).max(0.0) / (r * drain))
    };
    let remote = if target.mode == Mode::InJob { all - 1.0 } else { all };
    all * (s / time - target.link.map_or(0.0, |link| remote * UNIT / link.get()))
}

#[test]
fn no_fewer_modelled_nodes_suffice() {
    const NEARLY: f64 = 1e-7;
    let random = &mut Random::from_seed(3);
    let (mut found, mut none) = (0, 0);
    for _ in 0..3000 {
        let mut problem = any_problem(random, 1);
        problem.candidates[0].throughput = None;
        let candidate = problem.candidates[0];
        let asked = problem.target.throughput.get() as f64;
        let nodes = Nodes::of(&problem, &candidate).unwrap();
        let least = nodes.least(problem.target.throughput.get());
        let all = problem.target.redundancy.nodes_min()..=problem.target.nodes_max;
        let scanned = |slack: f64| all.clone().find(|nodes| modelled(&problem, &candidate, *nodes) >= asked * slack);
        // Where floating point decides, either may.
        let (early, late) = (scanned(1.0 - NEARLY), scanned(1.0 + NEARLY));
        match least {
            Some(least) => {
                assert!(early.is_some_and(|early| early <= least), "{problem:?}: {least}, expected {early:?}");
                assert!(late.is_none_or(|late| late >= least), "{problem:?}: {least}, expected {late:?}");
                near_floating(nodes.delivered_bytes_s(least), modelled(&problem, &candidate, least));
                found += 1;
            }
            None => {
                assert_eq!(late, None, "{problem:?}");
                none += 1;
            }
        }
    }
    assert!(found > 300 && none > 300, "{found} and {none}");
}

#[track_caller]
fn near_floating(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs() + 1.0, "{found}, expected {expected}");
}

/// Cost, nodes, memory, SSD, index: what the best one has least of, in this order.
fn order(problem: &Problem, answer: &Provision, index: usize) -> Option<(f64, u64, Bytes, Bytes, usize)> {
    let (of, one) = (&problem.candidates[index], &answer.considered[index]);
    Some((one.cost_usd?, one.nodes?, of.memory, of.ssd, index))
}

#[test]
fn the_best_nodes_are_the_cheapest_of_all_and_ties_have_an_order() {
    let random = &mut Random::from_seed(4);
    let (mut tied, mut found) = (0, 0);
    for _ in 0..1500 {
        let problem = any_problem(random, 6);
        let answer = Provision::of(&problem);
        let mut all: Vec<_> = (0..6).filter_map(|index| order(&problem, &answer, index)).collect();
        all.sort_by(|one, other| one.partial_cmp(other).unwrap());
        let verdicts = answer.considered.iter().filter(|one| one.verdict == Verdict::Best).count();
        assert_eq!((verdicts, answer.best.is_some()), (all.len().min(1), !all.is_empty()));
        assert_eq!(answer.infeasible.is_some(), all.is_empty());
        let Some(best) = all.first() else { continue };
        assert_eq!(answer.considered[best.4].verdict, Verdict::Best, "{problem:?}");
        assert_eq!(cheapest(&problem, problem.target.throughput.get()), Some((best.4, best.1)));
        for other in &all[1..] {
            let expected = if other.0 == best.0 { Verdict::AsDear } else { Verdict::Dearer };
            assert_eq!(answer.considered[other.4].verdict, expected);
            tied += u32::from(expected == Verdict::AsDear);
        }
        let plan = answer.best.as_ref().unwrap();
        let (nodes, each) = (plan.nodes as f64, &problem.candidates[best.4]);
        assert_eq!(
            (plan.memory_total_gib, plan.ssd_total_gib),
            (nodes * each.memory.as_gib(), nodes * each.ssd.as_gib())
        );
        near_floating(plan.throughput_gib_s.max(answer.target_gib_s), plan.throughput_gib_s);
        found += 1;
    }
    assert!(found > 300 && tied > 50, "{found}, {tied} ties");
}

#[test]
fn a_longer_checkpoint_never_costs_more() {
    let random = &mut Random::from_seed(5);
    let mut cheaper = 0;
    for _ in 0..600 {
        let answer = Provision::of(&any_problem(random, 5));
        let curve = &answer.trade_off;
        for pair in curve.windows(2) {
            assert!(pair[1].longer > pair[0].longer && pair[1].target_gib_s < pair[0].target_gib_s, "{curve:?}");
            assert!(pair[1].plan.cost_usd <= pair[0].plan.cost_usd, "{curve:?}");
            cheaper += u32::from(pair[1].plan.cost_usd < pair[0].plan.cost_usd);
        }
        if let Some(best) = &answer.best {
            assert_eq!((curve.len(), &curve[0].plan, curve[0].saved), (15, best, Some(0.0)));
        }
        for point in curve {
            near_floating(point.plan.throughput_gib_s.max(point.target_gib_s), point.plan.throughput_gib_s);
        }
    }
    assert!(cheaper > 200, "{cheaper}");
}

#[test]
fn the_nearest_feasible_target_is_feasible_and_nothing_above_it_is() {
    let random = &mut Random::from_seed(6);
    let (mut infeasible, mut hopeless) = (0, 0);
    for _ in 0..1500 {
        let mut problem = any_problem(random, 3);
        problem.target.throughput = Bandwidth::new(1 + random.below(400 * GIB));
        let Some(why) = Provision::of(&problem).infeasible else { continue };
        let Some(nearest) = why.throughput_gib_s else {
            hopeless += 1;
            assert_eq!(cheapest(&problem, 2000), None, "{problem:?}");
            continue;
        };
        infeasible += 1;
        // As it is printed it can be written into the file.
        let said: Bandwidth = why.reason.split('"').nth(1).unwrap().parse().unwrap();
        assert!((said.get() as f64 - nearest * UNIT).abs() <= 1.0, "{}", why.reason);
        assert!(said < problem.target.throughput);
        assert!(cheapest(&problem, said.get()).is_some(), "{problem:?}: {nearest}");
        // It is a multiple of a millionth.
        let above = ((nearest + 1e-6) * UNIT * (1.0 + 1e-6)) as u64 + 2 * problem.target.nodes_max;
        assert_eq!(cheapest(&problem, above), None, "{problem:?}: {nearest}");
    }
    assert!(infeasible > 200 && hopeless > 0, "{infeasible} and {hopeless}");
}

#[test]
fn a_grid_is_all_pairs_of_its_sizes() {
    let text = "[target]\nthroughput=\"15 GB/s\"\ndataset=\"450 GB\"\n[node]\ningest=\"0.1727 GB/s\"\nssd_write=\"175 MB/s\"\ndrain=\"92 MB/s\"\n\
                [grid]\nmemory=[\"0 B\",\"1 GB\",\"2 GB\"]\nssd=[\"0 B\",\"1 GB\"]\n[price]\nmemory_gib_usd=20\nssd_gib_usd=12\n";
    let answer = answer(text);
    // Nothing of both is no node.
    assert_eq!(answer.considered.len(), 5);
    assert_eq!(answer.redundancy, "1 copy");
}

#[test]
fn what_an_answer_says_starts_a_pool() {
    let answer = of("throughput=\"1 GiB/s\"", "throughput=\"0.5 GiB/s\"");
    let text = toml::Value::try_from(&answer.best).unwrap();
    let whole = toml::Value::Table([("best".to_owned(), text)].into_iter().collect());
    let plan: NodePlan = whole.try_into().unwrap();
    let expected = NodePlan { nodes: 2, memory: Bytes::from_gib(2), ssd: Bytes::from_gib(4), redundancy: None };
    assert_eq!(plan, expected);
    for redundancy in [Redundancy::Copies(1), Redundancy::Copies(3), Redundancy::Parity { data: 8, parity: 2 }] {
        let text = format!("redundancy = \"{redundancy}\"\n[best]\nnodes = 2\nmemory_gib = 2.0\nssd_gib = 4.0");
        assert_eq!(toml::from_str(&text), Ok(NodePlan { redundancy: Some(redundancy), ..expected }));
    }
    for bad in [
        "other = 1",
        "redundancy = \"parity 0+1\"\n[best]\nnodes = 1\nmemory_gib = 1.0\nssd_gib = 1.0",
        "[best]\nnodes = 0\nmemory_gib = 1.0\nssd_gib = 1.0",
        "[best]\nnodes = 3\nmemory_gib = -1.0\nssd_gib = 1.0",
        "[best]\nnodes = 3\nmemory_gib = nan\nssd_gib = 1.0",
        "[best]\nnodes = 3\nmemory_gib = 1.0\nssd_gib = 1e99",
    ] {
        assert!(toml::from_str::<NodePlan>(bad).is_err(), "{bad}");
    }
}
