//! `make reproduce-sim`: the papers' applications at full scale in the simulator, beside what the papers print.
//!
//! Figures of the papers are from Nicolae, Riteau, Keahey, "Towards Transparent Throughput Elasticity for IaaS Cloud
//! Storage: Exploring the Benefits of Adaptive Block-Level Caching" (the journal article), Tables I to IV.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::{product, say};

/// An application of the papers.
struct Paper {
    name: &'static str,
    scenario: &'static str,
    /// Completion of static-slow, static-fast and adaptive: Tables I and II.
    completion_s: [f64; 3],
    /// AGBs of one VM: B·N times the billed time that Tables III and IV imply; adaptive: Table IV's estimate over what
    /// their formulas give, which is near the 7 % (CM1) and 1 % (LAMMPS) below static-slow of the text.
    cost_agbs: [f64; 3],
    /// Estimated over real completion: Table III.
    estimated: [f64; 2],
}

const PAPERS: [Paper; 2] = [
    Paper {
        name: "CM1",
        scenario: "scenarios/cm1.toml",
        completion_s: [1471.0, 1190.0, 1231.0],
        cost_agbs: [1650.0 * 1565.0, 6400.0 * 1250.0, 0.93 * 1650.0 * 1565.0],
        estimated: [1.000_927_013_2, 1.005_042_016_8],
    },
    Paper {
        name: "LAMMPS",
        scenario: "scenarios/lammps.toml",
        completion_s: [1680.0, 1454.0, 1476.0],
        cost_agbs: [1650.0 * 1855.0, 6400.0 * 1545.0, 0.99 * 1650.0 * 1855.0],
        estimated: [0.987_662_337_7, 0.998_624_484_2],
    },
];

/// How far the simulation may be from the papers: completion and cost, static and elastic.
const STATIC_WITHIN: (f64, f64) = (0.01, 0.05);
const ELASTIC_WITHIN: (f64, f64) = (0.03, 0.10);
/// What `adaptive` must save of static-fast's cost.
const SAVED: f64 = 0.70;

struct Rows {
    text: String,
    missed: u32,
}

impl Rows {
    fn add(&mut self, what: &str, ours: f64, theirs: f64, within: f64) {
        let apart = ours / theirs - 1.0;
        let met = apart.abs() <= within;
        self.missed += u32::from(!met);
        let verdict = if met { "met" } else { "**missed**" };
        let _ = writeln!(
            self.text,
            "| {what} | {ours:.1} | {theirs:.1} | {:+.2} % | ± {:.0} % | {verdict} |",
            apart * 100.0,
            within * 100.0
        );
    }

    fn at_most(&mut self, what: &str, ours: f64, most: f64) {
        let met = ours <= most;
        self.missed += u32::from(!met);
        let verdict = if met { "met" } else { "**missed**" };
        let _ = writeln!(
            self.text,
            "| {what} | {ours:.1} | {most:.1} | {:+.2} % | at most | {verdict} |",
            (ours / most - 1.0) * 100.0
        );
    }
}

/// Runs everything and writes `reproduce-out/`. True if every bar is met.
///
/// # Errors
/// If a simulation fails or an answer cannot be read or written.
pub fn run(root: &Path) -> anyhow::Result<bool> {
    let out = root.join("reproduce-out");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut rows = Rows { text: String::new(), missed: 0 };
    rows.text.push_str("| of one VM | simulated | the papers | apart | bar | |\n|---|---:|---:|---:|---:|---|\n");
    let mut boosts = String::new();
    for paper in &PAPERS {
        reproduce(root, &out, paper, &mut rows, &mut boosts)?;
    }
    let text = format!(
        "# The papers' applications, simulated at full scale\n\n{}\n## Caches\n\n{boosts}\n## Where the papers contradict \
         themselves\n\n{CONTRADICTIONS}",
        rows.text
    );
    let path = out.join("reproduce.md");
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    say(&text);
    say(&format!("pictures (Figures 3 and 4) and sweeps (Figures 5 and 6): {}", out.display()));
    Ok(rows.missed == 0)
}

const CONTRADICTIONS: &str = "\
- Table I prints 3.3 % for 1231 s over 1190 s, which is 3.45 %; Table II about 1 % for 1476 s over 1454 s: 1.51 %.
- CM1: 7 % below static-slow and 65 % below static-fast cannot both hold; 7 % below static-slow is 70 % below
  static-fast. The costs here are against the former.
- Section IV-C calls CM1's first phase the lighter one, section IV-E gives it 5 GB and the others 4 GB.
- LAMMPS's checkpoints are printed as 3 GB; its static-fast row implies 3.08 GiB, its static-slow row 3.22 GiB. The
  scenario has 3.1 GiB; with 3 GiB the papers' own formula is 1.2 % off their static-slow row (Table III).
- How long creating and attaching took is not printed; it follows from the throughput that Table III implies.
";

fn reproduce(root: &Path, out: &Path, paper: &Paper, rows: &mut Rows, boosts: &mut String) -> anyhow::Result<()> {
    let name = paper.name.to_lowercase();
    let directory = |what: &str| out.join(format!("{name}-{what}"));
    let theirs = simulate(root, paper, &["--policy", "paper", "--set", "policy.sampling=5 s"], &directory("paper"))?;
    let ours = simulate(root, paper, &["--policy", "adaptive"], &directory("adaptive"))?;
    for (index, mode) in ["static_slow", "static_fast", "elastic"].into_iter().enumerate() {
        let within = if mode == "elastic" { ELASTIC_WITHIN } else { STATIC_WITHIN };
        let label = if mode == "elastic" { "paper".to_owned() } else { mode.replace('_', "-") };
        let of = |field: &str| number(&theirs, mode, field);
        rows.add(
            &format!("{}, {label}: completion, s", paper.name),
            of("completion_s")?,
            paper.completion_s[index],
            within.0,
        );
        rows.add(&format!("{}, {label}: AGBs", paper.name), of("cost_agbs")?, paper.cost_agbs[index], within.1);
    }
    for (index, mode) in ["static_slow", "static_fast"].into_iter().enumerate() {
        let ratio = number(&theirs, mode, "completion_s")? / paper.completion_s[index];
        let label = mode.replace('_', "-");
        rows.add(
            &format!("{}, {label}: simulated over real, Table III's estimate over real, ‰", paper.name),
            ratio * 1000.0,
            paper.estimated[index] * 1000.0,
            0.01,
        );
    }
    let [slow, fast] = ["static_slow", "static_fast"].map(|mode| number(&ours, mode, "cost_agbs"));
    let (slow, fast) = (slow?, fast?);
    let cost = number(&ours, "elastic", "cost_agbs")?;
    let time = number(&ours, "elastic", "completion_s")?;
    rows.at_most(
        &format!("{}, adaptive: completion against static-fast's, s", paper.name),
        time,
        number(&ours, "static_fast", "completion_s")?,
    );
    rows.at_most(&format!("{}, adaptive: AGBs against 30 % of static-fast's", paper.name), cost, (1.0 - SAVED) * fast);
    rows.at_most(&format!("{}, adaptive: AGBs against static-slow's", paper.name), cost, slow);
    for (policy, found) in [("paper", &theirs), ("adaptive", &ours)] {
        let _ = writeln!(boosts, "- {}, {policy}: {}", paper.name, caches(found)?);
    }
    for policy in ["paper", "adaptive"] {
        let sweep = ["--policy", policy, "--sweep", "caching.checkpoint_cache=2..12GiB"];
        simulate(root, paper, &sweep, &directory(&format!("sweep-{policy}")))?;
    }
    Ok(())
}

/// Runs `surgetank simulate --json` and keeps its report.
fn simulate(root: &Path, paper: &Paper, flags: &[&str], out: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(product::binary()?);
    command.current_dir(root).arg("simulate").arg(paper.scenario).args(flags).arg("--json").arg("--out").arg(out);
    product::answer(&mut command)
}

fn number(found: &Value, mode: &str, field: &str) -> anyhow::Result<f64> {
    found["modes"][mode][field].as_f64().with_context(|| format!("simulate --json has no modes.{mode}.{field}"))
}

fn caches(found: &Value) -> anyhow::Result<String> {
    let boosts = found["modes"]["elastic"]["boosts"].as_array().context("simulate --json has no boosts")?;
    let sizes = boosts.iter().map(|boost| format!("{} GiB", boost["cache_gib"]));
    Ok(sizes.collect::<Vec<_>>().join(", "))
}
