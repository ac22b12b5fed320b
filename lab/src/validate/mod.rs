//! `make validate`: what the simulator predicts of the demo, and of the lab's guests, beside what they measure on real I/O.
//!
//! Both write their run as a scenario beside their report; nothing that they measured goes into that file. The demo pays
//! for its disk from before the file system is made until the last drain has ended, the simulator while the application
//! runs: the difference, which is no prediction, is taken off.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use crate::bar::{Bar, Limit, all_met, table};
use crate::flags::absolute;
use crate::inside::modes::Mode;
use crate::interrupt::Interrupt;
use crate::output::{say, write};
use crate::product::{Product, answer, number};

/// Flags of the validation.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The demo's smaller setting
    #[arg(long)]
    quick: bool,
    /// Also the same application in a guest, on disks that QEMU throttles and plugs in (about 8 min)
    #[arg(long)]
    lab: bool,
    /// Where the table and the runs' reports go
    #[arg(long, default_value = "validate-out", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
}

const MODES: [&str; 3] = ["static_slow", "static_fast", "elastic"];

/// How far predictions may be from measurements: completion and cost, static and elastic.
const STATIC_WITHIN: [f64; 2] = [0.02, 0.05];
const ELASTIC_WITHIN: [f64; 2] = [0.03, 0.08];

impl Arguments {
    /// Runs the demo under both policies, and a guest if asked, predicts them, and reports; whether every bar is met.
    pub fn run(&self) -> anyhow::Result<bool> {
        let mut validation =
            Validation { interrupt: Interrupt::install()?, surgetank: self.product.binary()?, bars: Vec::new() };
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make {}", self.out.display()))?;
        for policy in ["adaptive", "paper"] {
            say(&format!("the demo under {policy}, on real I/O: about {}", if self.quick { "40 s" } else { "2 min" }));
            validation.demo(policy, &self.out.join(policy), self.quick)?;
        }
        let in_a_guest = if self.lab {
            say("a guest, four modes: about 8 min");
            validation.guest(&self.out.join("lab"))
        } else {
            Ok(())
        };
        write(&self.out, "validate", &table(&validation.bars).markdown(), &validation.bars)?;
        in_a_guest?;
        Ok(all_met(&validation.bars))
    }
}

/// Completion in seconds and cost in AGBs of a mode, as simulate and the demo write them.
fn figures(report: &Value, mode: &str) -> anyhow::Result<[f64; 2]> {
    Ok([number(report, &format!("/modes/{mode}/completion_s"))?, number(report, &format!("/modes/{mode}/cost_agbs"))?])
}

struct Validation {
    interrupt: Interrupt,
    surgetank: PathBuf,
    bars: Vec<Bar>,
}

impl Validation {
    /// What both models say of a scenario, beside the figures that were measured in each mode.
    fn compare(
        &mut self,
        name: &str,
        scenario: &Path,
        measured: impl Fn(&str) -> anyhow::Result<[f64; 2]>,
    ) -> anyhow::Result<()> {
        for model in ["block", "fluid"] {
            let mut simulate = Command::new(&self.surgetank);
            simulate.arg("simulate").arg(scenario).args(["--model", model, "--json"]);
            let predicted = answer(&self.interrupt, &mut simulate)?;
            for mode in MODES {
                let within = if mode == "elastic" { ELASTIC_WITHIN } else { STATIC_WITHIN };
                let (predicted, measured) = (figures(&predicted, mode)?, measured(mode)?);
                for (index, unit) in ["s", "AGBs"].into_iter().enumerate() {
                    let name = format!("{name}, {}, {model} model", mode.replace('_', "-"));
                    let bar = Bar::new(name, unit, predicted[index], (measured[index], "measured"));
                    self.bars.push(bar.must_be(Limit::Within(within[index])));
                }
            }
        }
        Ok(())
    }

    fn demo(&mut self, policy: &str, directory: &Path, quick: bool) -> anyhow::Result<()> {
        let mut demo = Command::new(&self.surgetank);
        demo.args(["demo", "--policy", policy, "--json", "--out"]).arg(directory);
        answer(&self.interrupt, demo.args(quick.then_some("--quick")))?;
        let report = directory.join("report.json");
        let text = fs::read(&report).with_context(|| format!("cannot read {}", report.display()))?;
        let report = serde_json::from_slice(&text).with_context(|| format!("cannot read {}", report.display()))?;
        self.compare(&format!("demo, {policy}"), &directory.join("scenario.toml"), |mode| {
            let [completion_s, cost_agbs] = figures(&report, mode)?;
            Ok([completion_s, cost_agbs - beside_the_application(&report["modes"][mode])?])
        })
    }

    /// The lab's own application, which sleeps and writes.
    fn guest(&mut self, out: &Path) -> anyhow::Result<()> {
        let samples = guest::measure(&self.interrupt, self.surgetank.clone(), out)?;
        for (policy, elastic) in [("adaptive", Mode::Adaptive), ("paper", Mode::Paper)] {
            let scenario = out.join(format!("checkpoints-{policy}.toml"));
            fs::write(&scenario, guest::scenario(policy)).context("cannot write a scenario")?;
            self.compare(&format!("lab, {policy}"), &scenario, |mode| {
                let mode = match mode {
                    "static_slow" => Mode::StaticSlow,
                    "static_fast" => Mode::StaticFast,
                    _ => elastic,
                };
                guest::figures(&samples, mode)
            })?;
        }
        Ok(())
    }
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
