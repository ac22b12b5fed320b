//! `make validate`: what the simulator predicts of the demo, beside what the demo measures on real I/O.
//!
//! The demo writes its run as a scenario beside its report; nothing that it measured goes into that file. The demo pays
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
}

/// How far predictions may be from measurements: completion and cost, static and elastic.
const STATIC_WITHIN: (f64, f64) = (0.02, 0.05);
const ELASTIC_WITHIN: (f64, f64) = (0.03, 0.08);

/// Runs the demo under both policies, predicts both, and writes `validate-out/validate.md`. True if every bar is met.
///
/// # Errors
/// If a command fails, or an answer cannot be read or written.
pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<bool> {
    let out = root.join("validate-out");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let binary = product::binary()?;
    let mut text = String::from(
        "| demo, policy | mode | | predicted (block) | predicted (fluid) | measured | block apart | fluid apart | bar | |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---|\n",
    );
    let mut met = true;
    for policy in ["adaptive", "paper"] {
        let directory = out.join(policy);
        say(&format!("the demo under {policy}, on real I/O: about {}", if arguments.quick { "40 s" } else { "2 min" }));
        let mut demo = Command::new(&binary);
        demo.args(["demo", "--policy", policy, "--json", "--out"]).arg(&directory);
        if arguments.quick {
            demo.arg("--quick");
        }
        answer(&mut demo)?;
        let report = fs::read(directory.join("report.json")).context("cannot read the demo's report")?;
        let measured: Value = serde_json::from_slice(&report).context("cannot read the demo's report")?;
        let predict = |model: &str| {
            let mut simulate = Command::new(&binary);
            simulate.arg("simulate").arg(directory.join("scenario.toml")).args(["--model", model, "--json"]);
            answer(&mut simulate)
        };
        let (block, fluid) = (predict("block")?, predict("fluid")?);
        for mode in ["static_slow", "static_fast", "elastic"] {
            let within = if mode == "elastic" { ELASTIC_WITHIN } else { STATIC_WITHIN };
            for (field, unit, within) in [("completion_s", "s", within.0), ("cost_agbs", "AGBs", within.1)] {
                let of = |found: &Value| {
                    found["modes"][mode][field].as_f64().with_context(|| format!("no modes.{mode}.{field}"))
                };
                let (block, fluid, mut found) = (of(&block)?, of(&fluid)?, of(&measured)?);
                if field == "cost_agbs" {
                    found -= beside_the_application(&measured["modes"][mode])?;
                }
                let apart = [block / found - 1.0, fluid / found - 1.0];
                let row_met = apart.iter().all(|apart| apart.abs() <= within);
                met &= row_met;
                let _ = writeln!(
                    text,
                    "| {policy} | {} | {unit} | {block:.1} | {fluid:.1} | {found:.1} | {:+.2} % | {:+.2} % | ± {:.0} % | {} |",
                    mode.replace('_', "-"),
                    apart[0] * 100.0,
                    apart[1] * 100.0,
                    within * 100.0,
                    if row_met { "met" } else { "**missed**" },
                );
            }
        }
    }
    let path = out.join("validate.md");
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("{text}\nwritten to {}", path.display()));
    Ok(met)
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
