//! The document and the page.

use std::fmt::Write as _;

use surgetank_report::chart::{Axis, Bar as Length, Bars, Colour, Mark, Picture, Plot};
use surgetank_report::number::{duration, thousands};
use surgetank_report::{Page, Table};

use super::figure::Figure;
use super::heroes::{Hero, InJob};
use super::logs::{Log, Needs, Ran, disks, needs_table, ran_table};
use super::testbed::Configuration;
use super::{Crowd, Found, paper};
use crate::bar::table;

const HEIGHT: u32 = 300;
/// Points of a distribution.
const POINTS: usize = 400;
const COLOURS: [Colour; 5] = [Colour::PINK, Colour::BLUE, Colour::ORANGE, Colour::GREEN, Colour::GREY];

const LEAD: &str = "PVK11's Figures 3 and 5 to 14 as far as public data allow. The paper prints a value or two of each in its text; these are beside ours.";
/// What runs show of a plan for the largest job alone.
const LOAD: &str = "A staging area that is planned for the largest job alone, as the paper's algorithm does, serves a log only if it drains what all jobs write: the \
                    columns \"written, mean\" and \"drains\". Where more is written than drains, jobs wait ever longer. The drain of a node is a fit to \
                    Jaguar's heroes, so this says nothing of these machines; it says what a plan must be asked. \"And a drain for all\" is the cheapest area for the largest job whose nodes together drain \
                    twice what all jobs write on average; the cost is of the nodes, without the file system that takes that.";
const POOLS: &str = "Every job of a log computes an hour, writes, waits until the pool has taken that in, and computes on; it writes once more when it ends. Jobs that write at once share the pool by their processes. \
                     The staging areas have a node for 64 of the machine, and are the cheapest for the largest job alone, with the rates fitted to Figures 11 and 13. As many disks as the largest job needs take turns among all jobs.";

fn figure<'a>(found: &'a Found, number: &str) -> Option<&'a Figure> {
    found.figures.iter().find(|figure| figure.number == number)
}

fn crowd(crowd: &Crowd) -> String {
    format!(
        "{} processes wrote {} chunks of a MiB into {} benefactors, each simulated by itself, in {:.1} s of run time: a checkpoint of {:.2} s, planned {:.2} s.",
        thousands(crowd.processes as f64),
        thousands(crowd.chunks as f64),
        thousands(crowd.benefactors as f64),
        crowd.simulated_s,
        crowd.checkpoint_s,
        crowd.planned_s
    )
}

fn time(ran: &[Ran]) -> String {
    let events: u64 = ran.iter().map(|ran| ran.events).sum();
    let simulated_s: f64 = ran.iter().map(|ran| ran.simulated_s).sum();
    format!("These runs went through {} changes of a flow in {simulated_s:.1} s of run time.", thousands(events as f64))
}

fn heroes(all: &[Hero]) -> Table {
    let dollars = |usd: f64| format!("${} k", thousands(usd / 1000.0));
    Table::of("hero | ratio | memory | with SSD | saved | for $90,000: memory | with SSD | gained").with(
        all.iter().map(|hero| {
            [
                format!("DS{}TB", hero.tb),
                format!("{}:1", hero.ratio),
                dollars(hero.memory_usd),
                dollars(hero.ssd_usd),
                format!("{:.1} %", 100.0 * hero.saved()),
                format!("{:.1} GB/s", hero.memory_gb_s),
                format!("{:.1} GB/s", hero.ssd_gb_s),
                format!("{:.1} %", 100.0 * hero.gained()),
            ]
        }),
    )
}

fn in_job(all: &[InJob]) -> Table {
    Table::of("lent | tiers | a checkpoint | the job | longer").words(2).with(all.iter().map(|one| {
        [
            format!("{:.0} %", 100.0 * one.lent),
            one.tiers.to_owned(),
            duration(one.checkpoint_s),
            duration(one.job_s),
            format!("{:+.1} %", 100.0 * (one.job_s / paper::IN_JOB_S - 1.0)),
        ]
    }))
}

/// The document.
pub fn markdown(found: &Found) -> String {
    let mut text = format!("# A staging pool: the paper beside the simulation\n\n{LEAD}\n\n");
    for figure in &found.figures {
        let _ = writeln!(text, "{}", figure.markdown());
        match figure.number {
            "10" => {
                let _ = writeln!(
                    text,
                    "All logs, each with SSDs in the same part of its nodes:\n\n{}",
                    needs_table(&found.needs).markdown()
                );
            }
            "13" => {
                let _ = writeln!(text, "{}", heroes(&found.heroes).markdown());
            }
            "14" => {
                let _ = writeln!(text, "{}", in_job(&found.in_job).markdown());
            }
            _ => (),
        }
    }
    if found.ran.is_empty() {
        let _ = writeln!(text, "{}", crowd(&found.crowd));
        return text;
    }
    let _ = write!(
        text,
        "## All jobs in one pool\n\n{POOLS}\n\n{}\n{LOAD}\n\n{}\n\n{}\n",
        ran_table(&found.ran).markdown(),
        time(&found.ran),
        crowd(&found.crowd)
    );
    text
}

/// The document of a user's own log.
pub fn own(log: &Log, needs: &[Needs], ran: &[Ran]) -> String {
    format!(
        "# A staging pool for {}\n\nMemory: {}.\n\n{}\n## All jobs in one pool\n\n{POOLS}\n\n{}\n{LOAD}\n",
        log.name,
        log.machine.source,
        needs_table(needs).markdown(),
        ran_table(ran).markdown()
    )
}

/// The page.
pub fn html(found: &Found) -> anyhow::Result<String> {
    let heroes_of = |of: fn(&Hero) -> f64| 100.0 * found.heroes.iter().map(of).fold(0.0, f64::max);
    let mut cards = vec![
        (format!("{:.1} %", heroes_of(Hero::saved)), "cost saved by SSDs, at most; the paper 41.5 % (fit)"),
        (format!("{:.1} %", heroes_of(Hero::gained)), "throughput gained for $90,000; the paper 59.3 % (fit)"),
    ];
    let jaguar = found.needs.first().map(|of| thousands(of.disks_with_ssd));
    cards.extend(jaguar.map(|disks| (disks, "disks with SSDs; the paper 6,550 (fit)")));
    let mut page =
        Page::new("surgetank staging", "A staging pool: the paper beside the simulation", LEAD).cards(&cards);
    for figure in &found.figures {
        page = page.section(&format!("Figure {}: {}", figure.number, figure.title)).table(&table(&figure.bars));
        if let Some(picture) = picture(found, figure.number) {
            page = page.picture(&picture)?;
        }
        page = match figure.number {
            "10" => page.table(&needs_table(&found.needs)),
            "12" => page.table(&heroes(&found.heroes)),
            "14" => page.table(&in_job(&found.in_job)),
            _ => page,
        };
        page = page.notes(&figure.notes);
    }
    if !found.ran.is_empty() {
        let ran = ran_table(&found.ran);
        page =
            page.section("All jobs in one pool").paragraph(POOLS).table(&ran).paragraph(LOAD).note(&time(&found.ran));
    }
    Ok(page.note(&crowd(&found.crowd)).html(". Source: PVK11, section IV."))
}

fn picture(found: &Found, number: &str) -> Option<Picture> {
    figure(found, number)?;
    Some(match number {
        "3" => configurations(found),
        "5" => memory(
            found
                .testbed
                .figure_5
                .iter()
                .map(|(processes, points)| (format!("{} processes", thousands(*processes as f64)), points)),
        ),
        "6" => memory(found.testbed.figure_6.iter().map(|(ssd_gb, points)| (format!("{ssd_gb} GB of SSD"), points))),
        "7" => bars(
            "GB/s by memory and SSD of the four sets, in GB",
            "",
            found.testbed.figure_7.iter().map(|(name, gb_s)| (name.clone(), *gb_s, format!("{gb_s:.1}"))),
        ),
        "8" => distribution(found, "nodes of a job", |log, job| log.nodes(job) as f64),
        "9" => distribution(found, "disks that a job takes", |_, job| disks(job.dataset.get() as f64, 0.0)),
        "10" => distribution(found, "disks that a job takes beside SSDs", |log, job| {
            disks(job.dataset.get() as f64, log.ssd_bytes_s())
        }),
        "11" => bars("part of the cost of memory alone that SSDs save", "%", of_heroes(found, Hero::saved)),
        "12" => bars("throughput gained with SSDs", "%", of_heroes(found, Hero::gained)),
        "13" => trade_off(found),
        "14" => bars(
            "the job's time over 14,440 s",
            "%",
            found.in_job.iter().map(|one| {
                let longer = 100.0 * (one.job_s / paper::IN_JOB_S - 1.0);
                (format!("{:.0} %: {}", 100.0 * one.lent, one.tiers), longer.max(0.0), format!("{longer:+.1} %"))
            }),
        ),
        _ => return None,
    })
}

/// Figure 3: cost and time.
fn configurations(found: &Found) -> Picture {
    let all = &found.testbed.figure_3;
    let panel = |caption: &str, unit: &'static str, of: fn(&Configuration) -> f64, colour: Colour| {
        let bar = |one: &Configuration| Length {
            name: one.name.to_owned(),
            parts: vec![(of(one), colour)],
            text: format!("{:.1}", of(one)),
        };
        Bars { caption: caption.to_owned(), unit, until: None, bars: all.iter().map(bar).collect() }
    };
    Picture::new("Cost and time of a checkpoint by GB of memory, SSD and disk")
        .bars(panel("cost, USD", "", |one| one.usd, Colour::ORANGE))
        .bars(panel("a checkpoint", "s", |one| one.checkpoint_s, Colour::BLUE))
}

fn of_heroes(found: &Found, of: fn(&Hero) -> f64) -> impl Iterator<Item = (String, f64, String)> {
    found.heroes.iter().map(move |hero| {
        let percent = 100.0 * of(hero);
        (format!("DS{}TB, {}:1", hero.tb, hero.ratio), percent, format!("{percent:.1} %"))
    })
}

fn bars(caption: &str, unit: &'static str, of: impl Iterator<Item = (String, f64, String)>) -> Picture {
    let bar = |(name, length, text)| Length { name, parts: vec![(length, Colour::BLUE)], text };
    Picture::new(caption).bars(Bars { caption: caption.to_owned(), unit, until: None, bars: of.map(bar).collect() })
}

/// Throughput against memory, a line each.
fn memory<'a>(lines: impl Iterator<Item = (String, &'a Vec<(f64, f64)>)>) -> Picture {
    let lines: Vec<(String, &Vec<(f64, f64)>)> = lines.collect();
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let x = Axis::around("memory of all nodes, GB", points().map(|point| point.0), 0.03);
    let y = Axis::around("GB/s", points().map(|point| point.1).chain([0.0]), 0.05);
    let mut picture = Picture::new("Throughput against memory");
    let mut plot = Plot::new("", HEIGHT, x, y);
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        picture = picture.entry(colour, name);
        plot = plot.mark(Mark::line((*points).clone(), colour, 2)).marks(points.iter().map(|at| Mark::Dot {
            at: *at,
            colour,
            radius: 4,
        }));
    }
    picture.plot(plot)
}

/// Jobs in the order of a value, in per cent of all.
fn distribution(found: &Found, name: &str, of: impl Fn(&Log, &surgetank_whatif::staging::Job) -> f64) -> Picture {
    let mut picture = Picture::new(name);
    let mut lines = Vec::new();
    for (log, colour) in found.logs.iter().zip(COLOURS) {
        let mut values: Vec<f64> = log.jobs.iter().map(|job| of(log, job)).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        let at = |point: usize| (100.0 * point as f64 / POINTS as f64, values[(last * point) / POINTS].max(1.0));
        if !values.is_empty() {
            picture = picture.entry(colour, &log.name);
            lines.push((colour, (0..=POINTS).map(at).collect::<Vec<_>>()));
        }
    }
    let most = lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(10.0, f64::max);
    let x = Axis::linear("jobs from the smallest, per cent", 0.0..100.0);
    let plot = Plot::new("", HEIGHT, x, Axis::logarithmic(name, 1.0..most * 1.5));
    picture.plot(lines.into_iter().fold(plot, |plot, (colour, points)| plot.mark(Mark::line(points, colour, 2))))
}

/// What is saved of the cost of memory alone, by tolerated time.
fn trade_off(found: &Found) -> Picture {
    let heroes = || found.heroes.iter().filter(|hero| hero.ratio == 64);
    let mut picture = Picture::new("Part of the cost of memory alone that is saved");
    let points = |hero: &Hero| {
        let near = hero.trade_off.iter().filter(|point| point.longer <= 0.1 + 1e-9);
        near.map(|point| (paper::WITHIN_S * point.longer, 100.0 * hero.saved_at(point))).collect::<Vec<_>>()
    };
    let all = || heroes().flat_map(points).map(|point| point.1);
    let x = Axis::linear("seconds more than five minutes", 0.0..31.0);
    let mut plot = Plot::new("", HEIGHT, x, Axis::around("per cent saved", all().chain([0.0]), 0.08));
    for (hero, colour) in heroes().zip(COLOURS) {
        picture = picture.entry(colour, &format!("DS{}TB at 64:1", hero.tb));
        plot = plot.mark(Mark::line(points(hero), colour, 2)).marks(points(hero).into_iter().map(|at| Mark::Dot {
            at,
            colour,
            radius: 4,
        }));
    }
    picture.plot(plot)
}
