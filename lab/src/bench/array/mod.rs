//! Arrays: a stripe beside a single volume, a member replaced under load, what a replacement copies, striped boosts.
//!
//! All but the boosts is measured in one process over volumes in memory, by `crates/device/benches/array`.

mod image;
mod striped;

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit};

/// Of the array, beside one volume in memory of the same size.
const MEMORY: f64 = 0.9;
/// Of eight throttled members, beside eight times one.
const THROTTLED: f64 = 0.98;
/// The 99th percentile while a member is replaced, beside that before it.
const LATENCY: f64 = 1.5;
/// What is copied of a disk that is a fifth full, in percent.
const COPIED: f64 = 25.0;

/// Turns of two sides.
#[derive(Deserialize)]
struct Row {
    name: String,
    unit: String,
    turns: Vec<[f64; 2]>,
}

/// What a replacement of all members copies, as shares of the array.
#[derive(Deserialize)]
struct Fill {
    written: f64,
    copied: f64,
}

#[derive(Deserialize)]
struct Answer {
    memory: Vec<Row>,
    throttled: Vec<Row>,
    rotation: Vec<Row>,
    fill: Fill,
}

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let parts: Vec<String> = ["memory", "throttled", "rotation", "fill"].map(str::to_owned).into();
    let quick = bench.quick.then(|| "--quick".to_owned());
    let flags: Vec<String> = parts.into_iter().chain(quick).collect();
    let answer = bench.cargo(Cores::All, "surgetank-device", "array", &flags)?;
    let answer: Answer = serde_json::from_value(answer).context("the bench's answer cannot be read")?;
    let stripes = [
        (answer.memory, "in memory", "one volume of the same size", MEMORY),
        (answer.throttled, "throttled members", "eight times one member", THROTTLED),
    ];
    for (rows, of, peer, least) in stripes {
        for row in rows {
            report.add(paired(&format!("stripe of 8, {of}"), &row, peer).must_be(Limit::AtLeast(least)));
        }
    }
    for row in &answer.rotation {
        let bar = paired("a member is replaced", row, "before it");
        report.add(if row.unit == "ms" { bar.must_be(Limit::AtMost(LATENCY)) } else { bar });
    }
    report.add(copied("written in order", &answer.fill));
    let image = image::make(bench)?;
    report.add(copied("ext4", &filled(bench, &image)?));
    std::fs::remove_file(&image)?;
    striped::run(bench, report)
}

/// What is copied of an array that has data where the image has.
fn filled(bench: &Bench, image: &Path) -> anyhow::Result<Fill> {
    let flags = ["fill".to_owned(), format!("--image={}", image.display())];
    let mut answer = bench.cargo(Cores::All, "surgetank-device", "array", &flags)?;
    serde_json::from_value(answer["fill"].take()).context("the bench's answer cannot be read")
}

fn paired(what: &str, row: &Row, peer: &str) -> Bar {
    let unit = ["MiB/s", "IOPS", "ms"].into_iter().find(|unit| *unit == row.unit).unwrap_or("");
    Bar::paired(format!("{what}: {}", row.name), unit, &row.turns, peer)
}

fn copied(what: &str, fill: &Fill) -> Bar {
    let name = format!("all members replaced, {:.1} % written ({what}): copied", fill.written * 100.0);
    Bar::new(name, "%", fill.copied * 100.0, (COPIED, "of the array")).must_be(Limit::AtMost(1.0))
}
