//! `make validate`: what the simulator predicts of the demo, and of the lab's guests, beside what they measure on real I/O.
//!
//! Both write their run as a scenario beside their report; nothing that they measured goes into that file. The demo pays
//! for its disk from before the file system is made until the last drain has ended, the simulator while the application
//! runs: the difference, which is no prediction, is taken off.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use crate::product::{self, answer};
use crate::say;

/// Flags of the validation.
#[derive(Args)]
pub struct Arguments {
    /// The demo's smaller setting
    #[arg(long)]
    quick: bool,
    /// Also the same application in a guest, on disks that QEMU throttles and plugs in (about 8 min)
    #[arg(long)]
    lab: bool,
}

const MODES: [&str; 3] = ["static_slow", "static_fast", "elastic"];
const POLICIES: [&str; 2] = ["adaptive", "paper"];

/// How far predictions may be from measurements: completion and cost, static and elastic.
const STATIC_WITHIN: [f64; 2] = [0.02, 0.05];
const ELASTIC_WITHIN: [f64; 2] = [0.03, 0.08];

/// Predictions beside measurements.
struct Table {
    text: String,
    met: bool,
}

impl Table {
    fn new() -> Self {
        let head = "| where, policy | mode | | predicted (block) | predicted (fluid) | measured | block apart | fluid apart | bar | |\n\
                    |---|---|---|---:|---:|---:|---:|---:|---:|---|\n";
        Self { text: head.to_owned(), met: true }
    }

    /// Adds what both models say of a scenario; `measured`: seconds and AGBs of a mode.
    fn compare(
        &mut self,
        name: &str,
        scenario: &Path,
        measured: impl Fn(&str) -> anyhow::Result<[f64; 2]>,
    ) -> anyhow::Result<()> {
        let binary = product::binary()?;
        let predict = |model: &str| {
            answer(Command::new(&binary).arg("simulate").arg(scenario).args(["--model", model, "--json"]))
        };
        let (block, fluid) = (predict("block")?, predict("fluid")?);
        for mode in MODES {
            let within = if mode == "elastic" { ELASTIC_WITHIN } else { STATIC_WITHIN };
            let (block, fluid, measured) = (figures(&block, mode)?, figures(&fluid, mode)?, measured(mode)?);
            for (index, unit) in ["s", "AGBs"].into_iter().enumerate() {
                let (block, fluid, found, within) = (block[index], fluid[index], measured[index], within[index]);
                let apart = [block / found - 1.0, fluid / found - 1.0];
                let met = apart.iter().all(|apart| apart.abs() <= within);
                self.met &= met;
                let _ = writeln!(
                    self.text,
                    "| {name} | {} | {unit} | {block:.1} | {fluid:.1} | {found:.1} | {:+.2} % | {:+.2} % | ± {:.0} % | {} |",
                    mode.replace('_', "-"),
                    apart[0] * 100.0,
                    apart[1] * 100.0,
                    within * 100.0,
                    if met { "met" } else { "**missed**" },
                );
            }
        }
        Ok(())
    }
}

/// Completion and cost of a mode, as simulate and the demo write them.
fn figures(report: &Value, mode: &str) -> anyhow::Result<[f64; 2]> {
    let of = |field: &str| {
        report["modes"][mode][field].as_f64().with_context(|| format!("the report has no modes.{mode}.{field}"))
    };
    Ok([of("completion_s")?, of("cost_agbs")?])
}

/// Runs the demo under both policies, and the lab if asked, predicts them, and writes `validate-out/validate.md`. True if
/// every bar is met.
///
/// # Errors
/// If a command fails, or an answer cannot be read or written.
pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<bool> {
    let out = root.join("validate-out");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut table = Table::new();
    for policy in POLICIES {
        say(&format!("the demo under {policy}, on real I/O: about {}", if arguments.quick { "40 s" } else { "2 min" }));
        demo(&mut table, policy, &out.join(policy), arguments.quick)?;
    }
    let in_the_lab = if arguments.lab {
        say("a guest in the lab, four modes: about 8 min");
        lab(&mut table, root, &out.join("lab"))
    } else {
        Ok(())
    };
    let path = out.join("validate.md");
    fs::write(&path, &table.text).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("{}\nwritten to {}", table.text, path.display()));
    in_the_lab?;
    Ok(table.met)
}

fn demo(table: &mut Table, policy: &str, directory: &Path, quick: bool) -> anyhow::Result<()> {
    let mut demo = Command::new(product::binary()?);
    demo.args(["demo", "--policy", policy, "--json", "--out"]).arg(directory);
    if quick {
        demo.arg("--quick");
    }
    answer(&mut demo)?;
    let report = fs::read(directory.join("report.json")).context("cannot read the demo's report")?;
    let report: Value = serde_json::from_slice(&report).context("cannot read the demo's report")?;
    table.compare(&format!("demo, {policy}"), &directory.join("scenario.toml"), |mode| {
        let [completion_s, cost_agbs] = figures(&report, mode)?;
        Ok([completion_s, cost_agbs - beside_the_application(&report["modes"][mode])?])
    })
}

/// The lab's own application, which sleeps and writes.
fn lab(table: &mut Table, root: &Path, out: &Path) -> anyhow::Result<()> {
    let mut lab = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    lab.current_dir(root).args(["lab", "reproduce", "--load", "checkpoints", "--out"]).arg(out);
    lab.arg("--surgetank").arg(product::binary()?);
    product::done(lab.args(["static-slow", "static-fast", "paper", "adaptive"].map(|mode| format!("--mode={mode}"))))?;
    let report = fs::read(out.join("reproduce.json")).context("cannot read the lab's report")?;
    let report: Vec<Value> = serde_json::from_slice(&report).context("cannot read the lab's report")?;
    for policy in POLICIES {
        let scenario = out.join(format!("checkpoints-{policy}.toml"));
        table.compare(&format!("lab, {policy}"), &scenario, |mode| {
            let wanted = if mode == "elastic" { policy.to_owned() } else { mode.replace('_', "-") };
            let row = report.iter().find(|row| row["mode"] == wanted.as_str());
            let row = row.with_context(|| format!("the lab did not finish {wanted}"))?;
            let of = |field: &str| row[field].as_f64().with_context(|| format!("the lab's report has no {field}"));
            Ok([of("completion_s")?, of("cost_agbs")?])
        })?;
    }
    Ok(())
}

/// AGBs of the disk before the application's first phase and after its last one: the slope of the accumulated cost where
/// nothing else is rented yet, times that time.
fn beside_the_application(mode: &Value) -> anyhow::Result<f64> {
    let number = |value: &Value| value.as_f64().context("the demo's report lacks a number");
    let point = |index: usize| -> anyhow::Result<(f64, f64)> {
        let point = &mode["cost"][index];
        Ok((number(&point["at_s"])?, number(&point["agbs"])?))
    };
    let phases = mode["phases"].as_array().context("the demo's report has no phases")?;
    let (first, last) = (phases.first().context("no phase")?, phases.last().context("no phase")?);
    let ((from, none), (until, some)) = (point(0)?, point(1)?);
    let running = number(&last["end_s"])? - number(&first["start_s"])?;
    Ok((some - none) / (until - from) * (number(&mode["wall_s"])? - running))
}
