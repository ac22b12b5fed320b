//! The paper on burstable volumes (PGA20: Park, Ganger, Amvrosiadis, "More IOPS for Less: Exploiting Burstable Storage in Public
//! Clouds", HotCloud 2020): its Figures 1, 3 and 5 and the figures of its text, beside the simulated ones.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use surgetank_model::volume_type::Provision;
use surgetank_model::{Bytes, Catalog, Iops};
use surgetank_report::Table;
use surgetank_report::number::{dollars, thousands};

use crate::bar::{Bar, Limit, table};
use crate::interrupt::Interrupt;
use crate::output::write;
use crate::product::{answer, number, tree};

const ALL_100: &str = "scenarios/rotation-100gib.toml";
const ALL_300: &str = "scenarios/rotation-300gib.toml";
const STAGGERED: &str = "scenarios/rotation-staggered.toml";
const CACHE: &str = "scenarios/read-cache.toml";
/// What ten members give while their credits last.
const WHOLE: f64 = 30_000.0;

/// What is wrong in the paper, or not said.
const SLIPS: &str = "\
- Section 2.1: a burst is up to 3,000 IOPS in all, not beyond the baseline. Credits accrue below the *baseline*, not below the
  maximum, so full ones last 5.4 M ÷ (served − baseline): 31 min at 10 GiB, 33 at 100, 60 at 500.
- Figure 1: the single volume of 500 GiB has credits too and gives 3,000 IOPS for an hour; ten volumes then give 10 times as much, and
  20 times after that. In Figure 3 the single volumes would begin with 3,000 IOPS for 33 min (100 GiB) and 43 min (300 GiB).
- The abstract names an i3 volume (an instance type) where section 2.2 has io1; section 5 has \"higher throughput\" where cost is meant.
- Section 3.1: 300 GiB are 33 times, in the text once 20 times.
- Overhead: 10 % and 40 % of the time with twice the volumes are 2 rebuilds in the 80 minutes of Figure 3 (9 % and 30 %), or the
  rebuild over half an hour of burst (12 % and 40 %). In a day at the full 30,000 IOPS it is what the last table says.
- The machine's 40,000 IOPS are not enough in the mix: with every write on both members and the copies, a rebuild asks for 48,000.
- Section 3.2: 1,047 MiB/s of 1 MiB requests are no 30,000 IOPS; at 256 KiB a credit ten members could give 7,300 MiB/s. The machine's
  1,132 MiB/s are the limit. Credits that last 75 min at this rate imply I/O of about 80 KiB on the members.
- 784 MiB/s of which a tenth are writes are 78 MiB/s on st1: no miss at all. By Zipf's law even a cache of the right half misses 1.2 %,
  which leaves 710. With the credits that an st1 of 2 TiB has it gives more, without them less; the paper's account has none.
- By Zipf's law with 1.2, a tenth of 204,800 blocks gets 95 % of the requests, not 90.
- 5.2 % are of the cache's $10. With the $92 of st1 below it they are 0.5 %.
- Since December 2020 gp3 gives 3,000 IOPS and 125 MiB/s with every volume for less than gp2: rotation pays no more.
";

/// Simulates what the paper shows.
pub struct Arrays<'a> {
    /// Ends it.
    pub interrupt: &'a Interrupt,
    /// The product.
    pub surgetank: &'a Path,
    /// Where pages go.
    pub out: &'a Path,
}

/// A day.
const DAY: &str = "workload.duration=24 h";

impl Arrays<'_> {
    /// Reports; the bars.
    pub fn reproduce(&self) -> anyhow::Result<Vec<Bar>> {
        let mut bars = Vec::new();
        self.small_volumes(&mut bars)?;
        self.persistent(&mut bars)?;
        self.cache(&mut bars)?;
        let text = format!(
            "# Burstable volumes: the paper beside the simulation\n\n{}\n## Sensitivity\n\nA day; the array's size, what it \
             copies, what it is asked for.\n\n{}\n## Where the paper slips\n\n{SLIPS}",
            table(&bars).markdown(),
            self.sensitivity()?.markdown()
        );
        write(self.out, "arrays", &text, &bars)?;
        Ok(bars)
    }

    /// Figure 1.
    fn small_volumes(&self, bars: &mut Vec<Bar>) -> anyhow::Result<()> {
        let found = self.simulate(
            ALL_100,
            None,
            &["array.rotate=never", "array.member_size=50 GiB", "workload.duration=20 min"],
        )?;
        let of = |mode: &str, field: &str| number(&found, &format!("/modes/{mode}/{field}"));
        let catalog = Catalog::builtin();
        let bought = Provision { iops: Some(Iops::new(30_000)), bandwidth: None };
        let io1 = catalog.find("aws", "io1").and_then(|io1| io1.price_per_month(Bytes::from_gib(500), &bought));
        let (io1, array_usd) = (io1.unwrap_or(f64::NAN), of("array", "usd_month")?);
        let mut add = |name: &str, unit, ours, paper, within| {
            bars.push(
                Bar::new(format!("Figure 1, {name}"), unit, ours, (paper, "the paper")).must_be(Limit::Within(within)),
            );
        };
        add(
            "10 × 50 GiB over 1 × 500 GiB, credits spent",
            "×",
            of("array", "mean_iops")? / of("single", "sustained_iops")?,
            20.0,
            0.01,
        );
        add("10 × 50 GiB", "$", array_usd, 50.0, 0.001);
        add("1 × 500 GiB", "$", of("single", "usd_month")?, 50.0, 0.001);
        add("io1 of 500 GiB with 30,000 IOPS", "$", io1, 2012.5, 0.001);
        add("below io1", "%", 100.0 * (1.0 - array_usd / io1), 97.5, 0.001);
        Ok(())
    }

    /// Figure 3 and section 3.1.
    fn persistent(&self, bars: &mut Vec<Bar>) -> anyhow::Result<()> {
        for (file, gib, times, overhead, within) in [(ALL_100, 100, 100.0, 10.0, 0.1), (ALL_300, 300, 33.0, 38.5, 0.1)]
        {
            let mut costs = Vec::new();
            for (name, writes) in [("reads", "0.0"), ("half writes", "0.5")] {
                let setting = format!("workload.write_share={writes}");
                let page = format!("figure-3-{gib}-{}", name.replace(' ', "-"));
                let found = self.simulate(file, Some(&page), &[&setting])?;
                let of = |field: &str| number(&found, &format!("/modes/rotated/{field}"));
                let name = format!("Figure 3, {gib} GiB, {name}");
                let mean = of("mean_iops")?;
                bars.push(
                    Bar::new(format!("{name}: IOPS, all rotated"), "", mean, (WHOLE, "asked for"))
                        .must_be(Limit::AtLeast(0.97)),
                );
                let single = number(&found, "/modes/single/sustained_iops")?;
                bars.push(
                    Bar::new(
                        format!("{name}: over one volume, credits spent"),
                        "×",
                        mean / single,
                        (times, "the paper"),
                    )
                    .must_be(Limit::Within(0.03)),
                );
                bars.push(
                    Bar::new(
                        format!("{name}: overhead, all rotated"),
                        "%",
                        100.0 * of("overhead_ratio")?,
                        (overhead, "the paper"),
                    )
                    .must_be(Limit::Within(within)),
                );
                bars.push(Bar::new(
                    format!("{name}: least IOPS while all are copied"),
                    "",
                    of("least_iops")?,
                    (WHOLE, "asked for"),
                ));
                costs.push(of("usd_month")?);
            }
            let (paper, all) = (f64::from(gib) / 10.0 * (1.0 + if gib == 100 { 0.1 } else { 0.4 }), costs[1]);
            bars.push(
                Bar::new(format!("Section 3.1, {gib} GiB, a month"), "$", all, (paper, "the paper"))
                    .must_be(Limit::Within(0.05)),
            );
            if gib == 100 {
                let ours = self.simulate(STAGGERED, Some("staggered-100"), &[])?;
                let of = |field: &str| number(&ours, &format!("/modes/rotated/{field}"));
                bars.push(
                    Bar::new("One at a time, 100 GiB: cost", "$", of("usd_month")?, (all, "all rotated"))
                        .must_be(Limit::AtMost(1.0)),
                );
                bars.push(
                    Bar::new("One at a time, 100 GiB: least IOPS", "", of("least_iops")?, (WHOLE, "the whole"))
                        .must_be(Limit::AtLeast(0.9)),
                );
                bars.push(
                    Bar::new("One at a time, 100 GiB: IOPS", "", of("mean_iops")?, (WHOLE, "asked for"))
                        .must_be(Limit::AtLeast(0.97)),
                );
            } else {
                let settings = [
                    "array.rotate=staggered",
                    "array.rotate_at_once=2",
                    "array.copy_rate=100 MiB/s",
                    "workload.used=250 GiB",
                    DAY,
                ];
                let ours = self.simulate(file, Some("staggered-300"), &settings)?;
                let day = self.simulate(file, None, &[DAY])?;
                let usd = |found: &Value| number(found, "/modes/rotated/usd_month");
                bars.push(
                    Bar::new("Two at a time, 300 GiB, a day: cost", "$", usd(&ours)?, (usd(&day)?, "all rotated"))
                        .must_be(Limit::AtMost(1.0)),
                );
                let least = number(&ours, "/modes/rotated/least_iops")?;
                bars.push(
                    Bar::new("Two at a time, 300 GiB, a day: least IOPS", "", least, (WHOLE, "the whole"))
                        .must_be(Limit::AtLeast(0.85)),
                );
            }
        }
        for (gib, rate, minutes) in [("10", "47.4", 3.6), ("30", "42.7", 12.0), ("50", "47.4", 18.0)] {
            let (size, rate) = (format!("{gib} GiB"), format!("{rate} MiB/s"));
            let mut command = Command::new(self.surgetank);
            command.args([
                "model",
                "rotation",
                "--type",
                "gp2",
                "--size",
                &size,
                "--copy-rate",
                &rate,
                "--copy-io-size",
                "256 KiB",
            ]);
            command.args(["--demand", "2800 IOPS", "--write-share", "0.5", "--json"]);
            let copy_s = number(&answer(self.interrupt, &mut command)?, "/copy_s")?;
            bars.push(Bar::new(
                format!("Section 3.1, rebuild of {size} at {rate}"),
                "min",
                copy_s / 60.0,
                (minutes, "the paper"),
            ));
        }
        Ok(())
    }

    /// Figure 5 and section 3.2.
    fn cache(&self, bars: &mut Vec<Bar>) -> anyhow::Result<()> {
        for (name, writes, paper, speedup) in [("reads", "0.0", 1047.0, 18.6), ("a tenth writes", "0.1", 784.0, 13.9)] {
            let name = format!("Figure 5, {name}");
            let writes = format!("workload.write_share={writes}");
            let page = format!("figure-5-{}", if speedup > 15.0 { "reads" } else { "mixed" });
            let found = self.simulate(CACHE, Some(&page), &[&writes])?;
            let full = self.simulate(CACHE, None, &[&writes, "backing.credits=full"])?;
            let mib_s = |found: &Value, mode: &str| number(found, &format!("/modes/{mode}/mean_mib_s"));
            let add = |bars: &mut Vec<Bar>, what: &str, unit, ours, paper, limit: Option<Limit>| {
                let bar = Bar::new(format!("{name}: {what}"), unit, ours, (paper, "the paper"));
                bars.push(match limit {
                    Some(limit) => bar.must_be(limit),
                    None => bar,
                });
            };
            let within = Some(Limit::Within(0.1));
            add(bars, "st1 alone", "MiB/s", mib_s(&found, "backing")?, 79.0, within);
            add(bars, "one cache of 100 GiB", "MiB/s", mib_s(&found, "single_cache")?, 56.0, within);
            let reads = speedup > 15.0;
            let (without, with) = (mib_s(&found, "array_cache")?, mib_s(&full, "array_cache")?);
            add(bars, "ten of 10 GiB, st1 without credits", "MiB/s", without, paper, within.filter(|_| reads));
            add(bars, "ten of 10 GiB, st1 with its credits", "MiB/s", with, paper, within.filter(|_| reads));
            add(bars, "ten over one", "×", without / mib_s(&found, "single_cache")?, speedup, within.filter(|_| reads));
            let usd = |mode: &str| number(&found, &format!("/modes/{mode}/usd_month"));
            let extra = 100.0 * (usd("array_cache")? / usd("single_cache")? - 1.0);
            add(bars, "extra cost", "%", extra, 5.2, Some(Limit::AtMost(1.0)));
            for credits in ["empty", "full"] {
                let below = format!("backing.credits={credits}");
                let settings = [&writes, below.as_str(), "read_cache.rotate=staggered"];
                let ours = self.simulate(CACHE, Some(&format!("{page}-staggered-{credits}")), &settings)?;
                let of = |field: &str| number(&ours, &format!("/modes/array_cache/{field}"));
                let what = format!("{name}: least of one at a time, st1's credits {credits}");
                let bar = Bar::new(what, "MiB/s", of("least_iops")?, (of("mean_mib_s")?, "its mean"));
                // Without credits st1 is the limit of the mix, and a new member's misses come on top.
                let judged = reads || credits == "full";
                bars.push(if judged { bar.must_be(Limit::AtLeast(0.85)) } else { bar });
            }
        }
        Ok(())
    }

    /// A day of arrays that differ in one thing.
    fn sensitivity(&self) -> anyhow::Result<Table> {
        let mut table = Table::of("array | IOPS | least | overhead | a month | sustained instead");
        let rows: &[(&str, &str, &[&str])] = &[
            ("10 × 10 GiB gp2, one at a time, 80 MiB/s", STAGGERED, &[]),
            ("members of 5 GiB", STAGGERED, &["array.member_size=5 GiB", "workload.used=40 GiB"]),
            ("members of 16 GiB", STAGGERED, &["array.member_size=16 GiB", "workload.used=128 GiB"]),
            ("members of 30 GiB", STAGGERED, &["array.member_size=30 GiB", "workload.used=240 GiB"]),
            (
                "members of 30 GiB, two at a time",
                STAGGERED,
                &["array.member_size=30 GiB", "workload.used=240 GiB", "array.rotate_at_once=2"],
            ),
            ("5 members", STAGGERED, &["array.members=5", "workload.used=40 GiB", "workload.demand=15000 IOPS"]),
            ("13 members", STAGGERED, &["array.members=13", "workload.used=104 GiB", "workload.demand=39000 IOPS"]),
            ("copied at 47.4 MiB/s", STAGGERED, &["array.copy_rate=47.4 MiB/s"]),
            ("copied at 60 MiB/s", STAGGERED, &["array.copy_rate=60 MiB/s"]),
            ("copied at 110 MiB/s", STAGGERED, &["array.copy_rate=110 MiB/s"]),
            ("reads alone", STAGGERED, &["workload.write_share=0.0"]),
            ("a tenth writes", STAGGERED, &["workload.write_share=0.1"]),
            ("writes alone", STAGGERED, &["workload.write_share=1.0"]),
            ("10,000 IOPS", STAGGERED, &["workload.demand=10000 IOPS"]),
            ("a fifth full", STAGGERED, &["workload.used=20 GiB"]),
            ("skewed, Zipf 1.2", STAGGERED, &["workload.zipf=1.2"]),
            ("all at once, 47.4 MiB/s, everything copied", ALL_100, &[]),
            ("all at once, 30 GiB, 42.7 MiB/s", ALL_300, &[]),
            (
                "Azure P2, 10 × 8 GiB",
                STAGGERED,
                &["array.volume_type=azure/premium-ssd", "array.member_size=8 GiB", "workload.used=64 GiB"],
            ),
            (
                "Azure P4, 10 × 32 GiB",
                STAGGERED,
                &["array.volume_type=azure/premium-ssd", "array.member_size=32 GiB", "workload.used=128 GiB"],
            ),
            (
                "Azure P2, 1 MiB requests at 1,000 MiB/s",
                STAGGERED,
                &[
                    "array.volume_type=azure/premium-ssd",
                    "array.member_size=8 GiB",
                    "workload.used=64 GiB",
                    "workload.request=1 MiB",
                    "workload.demand=1000 MiB/s",
                    "array.copy_rate=40 MiB/s",
                ],
            ),
        ];
        for (name, file, settings) in rows {
            let settings: Vec<&str> = settings.iter().copied().chain([DAY]).collect();
            let found = self.simulate(file, None, &settings)?;
            let of = |field: &str| number(&found, &format!("/modes/rotated/{field}"));
            let pays =
                found["rotation_pays"].as_bool().map_or("–", |pays| if pays { "nothing for less" } else { "for less" });
            table.row([
                (*name).to_owned(),
                thousands(of("mean_iops")?),
                thousands(of("least_iops")?),
                format!("{:.1} %", 100.0 * of("overhead_ratio")?),
                dollars(of("usd_month").ok(), 2),
                pays.to_owned(),
            ]);
        }
        Ok(table)
    }

    /// Runs `surgetank simulate --json` with other settings, and keeps its page under a name.
    fn simulate(&self, file: &str, page: Option<&str>, settings: &[&str]) -> anyhow::Result<Value> {
        let mut command = Command::new(self.surgetank);
        command.current_dir(tree()).arg("simulate").arg(file).arg("--json");
        settings.iter().for_each(|setting| _ = command.arg("--set").arg(setting));
        if let Some(page) = page {
            command.arg("--out").arg(self.out.join(page));
        }
        answer(self.interrupt, &mut command)
    }
}
