//! The page: margins, shares, each application's curve with its hull, and every scheme.

use std::path::Path;

use surgetank_allocation::{Hierarchy, Problem};
use surgetank_planner::allocation::{Allocation, AppShare, LevelName, ServerShare};
use surgetank_report::chart::{Axis, Bar, Bars, Colour, Mark, Picture, Plot};
use surgetank_report::number::count;
use surgetank_report::{Failure, Page, Table};

use super::text::{milliseconds, notes, percent, schemes, shares, size};

const CURVE_HEIGHT: u32 = 260;
/// Applications that are drawn; tables have all.
const DRAWN_MAX: usize = 24;
const MIB: f64 = (1 << 20) as f64;

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(file: &Path, problem: &Problem, answer: &Allocation) -> Result<String, Failure> {
    let lead = match &answer.infeasible {
        None => format!(
            "Every SLO holds, and latencies are {:.4} × better than with an equal split (fair speedup, harmonic mean).",
            answer.fair_speedup
        ),
        Some(infeasible) => format!("There are no such shares: {}.", infeasible.reason),
    };
    let kept = answer.apps.iter().filter(|app| app.slo_met).count();
    let cards = [
        (format!("{:.4}", answer.fair_speedup), "fair speedup"),
        (format!("{kept} of {}", answer.apps.len()), "SLOs kept"),
        (least_margin(answer), "least margin to a bound"),
        (answer.mlms_below_optimum.map_or_else(|| "unknown".to_owned(), percent), "mlms below the optimum"),
    ];
    let mut page = Page::new("surgetank allocate", "Shares of two levels of cache", &lead)
        .cards(&cards)
        .notes(&notes(answer))
        .facts(&facts(file, answer))
        .section("SLO margins")
        .picture(&margins(answer))?
        .table(&shares(&answer.apps).words(1))
        .section("Shares")
        .picture(&levels(answer))?
        .table(&servers(&answer.servers))
        .section("Curves, hulls and shares");
    for (index, app) in answer.apps.iter().enumerate().take(DRAWN_MAX) {
        page = page.picture(&curve(problem, index, app, index == 0))?;
    }
    if answer.apps.len() > DRAWN_MAX {
        page = page.note(&format!("The first {DRAWN_MAX} applications are drawn; tables have all."));
    }
    let page = page.section("Every scheme").picture(&speedups(answer))?.table(&schemes(answer));
    Ok(page.html(
        ". The fair share is an equal split of each server among those who use it. independent has each application alone on all \
         of its servers, which no division of them can do.",
    ))
}

fn least_margin(answer: &Allocation) -> String {
    let least = answer.apps.iter().map(|app| app.slo_margin).min_by(f64::total_cmp);
    least.map_or_else(|| "unknown".to_owned(), percent)
}

fn facts(file: &Path, answer: &Allocation) -> [(String, String); 3] {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    [
        fact("file", file.display().to_string()),
        fact("hierarchy", answer.hierarchy.to_owned()),
        fact("shares by", answer.scheme.to_owned()),
    ]
}

fn shown(answer: &Allocation) -> impl Iterator<Item = &AppShare> {
    answer.apps.iter().take(DRAWN_MAX)
}

/// Latencies as a part of their bounds: what is left to 100 % is the margin.
fn margins(answer: &Allocation) -> Picture {
    let bar = |app: &AppShare| {
        let used = 100.0 * app.latency_ms / app.bound_ms;
        let left = (100.0 - used).max(0.0);
        let colour = if app.slo_met { Colour::BLUE } else { Colour::PINK };
        Bar {
            name: app.name.clone(),
            parts: vec![(used, colour), (left, Colour::GREEN)],
            text: format!("{} of {}", milliseconds(app.latency_ms), milliseconds(app.bound_ms)),
        }
    };
    let bars: Vec<Bar> = shown(answer).map(bar).collect();
    let longest = bars.iter().map(|bar| bar.parts.iter().map(|part| part.0).sum::<f64>()).fold(100.0, f64::max);
    Picture::new("Latencies in per cent of their bounds")
        .entry(Colour::BLUE, "latency")
        .entry(Colour::GREEN, "margin")
        .entry(Colour::PINK, "latency above its bound")
        .bars(Bars { caption: "latency in % of the bound".to_owned(), unit: "%", until: Some(longest * 1.3), bars })
}

/// What each application has of both levels, and the fair share below it.
fn levels(answer: &Allocation) -> Picture {
    let bars = shown(answer).flat_map(|app| {
        let (first, second) = (app.level1_mib, app.second_mib());
        let (fair_first, fair_second) = (app.fair_level1_mib, app.fair_second_mib());
        let both = |first: f64, second: f64| format!("{} + {}", size(first), size(second));
        [
            Bar {
                name: app.name.clone(),
                parts: vec![(first, Colour::BLUE), (second, Colour::ORANGE)],
                text: both(first, second),
            },
            Bar {
                name: "fair share".to_owned(),
                parts: vec![(fair_first, Colour::BLUE.faint(0.4)), (fair_second, Colour::ORANGE.faint(0.4))],
                text: both(fair_first, fair_second),
            },
        ]
    });
    Picture::new("Shares of both levels").entry(Colour::BLUE, "level 1").entry(Colour::ORANGE, "level 2").bars(Bars {
        caption: "share in MiB".to_owned(),
        unit: "",
        until: None,
        bars: bars.collect(),
    })
}

fn servers(servers: &[ServerShare]) -> Table {
    let row = |server: &ServerShare| {
        let level = match server.level {
            LevelName::Level1 => "level 1",
            LevelName::Level2 => "level 2",
        };
        let part = server.shared_mib / server.cache_mib;
        [server.name.clone(), level.to_owned(), size(server.cache_mib), size(server.shared_mib), percent(part)]
    };
    Table::of("server | level | cache | shared out | of it").words(2).with(servers.iter().map(row))
}

/// An application's curve and hull with its shares, and the fair share.
fn curve(problem: &Problem, index: usize, app: &AppShare, with_legend: bool) -> Picture {
    let picture = Picture::new(&format!("The miss-ratio curve of {}", app.name));
    let (Some(curve), Some(hull)) = (problem.curve(index), problem.hull(index)) else { return picture };
    // The disk sees what an exclusive hierarchy's levels miss together, and what an inclusive one's larger level does.
    let behind = |first: f64, second: f64| match problem.hierarchy() {
        Hierarchy::Exclusive => first + second,
        Hierarchy::Inclusive => first.max(second),
    };
    let (first, both) = (app.level1_mib, behind(app.level1_mib, app.second_mib()));
    let fair = behind(app.fair_level1_mib, app.fair_second_mib());
    let end = |points: &[(f64, f64)]| points.last().map_or(0.0, |point| point.0 / MIB);
    // Beyond the hull's end nothing changes.
    let until = end(hull.points()).max(both).max(fair).max(1e-3) * 1.05;
    let line = |points: &[(f64, f64)], at: &dyn Fn(f64) -> f64| {
        let mut line: Vec<(f64, f64)> =
            points.iter().map(|(size, ratio)| (size / MIB, *ratio)).filter(|(size, _)| *size < until).collect();
        line.push((until, at(until * MIB)));
        line
    };
    let place = |mib: f64| (mib, hull.at(mib * MIB));
    let x = Axis::linear("cache in MiB", 0.0..until);
    let y = Axis::linear("miss ratio", 0.0..1.0).format(|ratio| format!("{ratio:.1}"));
    let caption = format!("{}: {} of level 1, {} of level 2", app.name, size(first), size(app.second_mib()));
    let plot = Plot::new(&caption, CURVE_HEIGHT, x, y)
        .mark(Mark::line(line(curve.points(), &|size| curve.at(size)), Colour::GREY, 2))
        .mark(Mark::line(line(hull.points(), &|size| hull.at(size)), Colour::GREEN, 2))
        .mark(Mark::Ring { at: (fair, curve.at(fair * MIB)), colour: Colour::GREY })
        .mark(Mark::Dot { at: place(both), colour: Colour::ORANGE, radius: 8 })
        .mark(Mark::Dot { at: place(first), colour: Colour::BLUE, radius: 5 });
    let picture = if with_legend {
        picture
            .entry(Colour::GREY, "curve, and the fair share of both levels on it")
            .entry(Colour::GREEN, "hull")
            .entry(Colour::BLUE, "level 1")
            .entry(Colour::ORANGE, "both levels")
    } else {
        picture
    };
    picture.plot(plot)
}

fn speedups(answer: &Allocation) -> Picture {
    let bars = answer.schemes.iter().map(|one| {
        let colour = match one.slo_broken.is_empty() {
            true if one.name == answer.scheme => Colour::BLUE,
            true => Colour::GREEN,
            false => Colour::PINK,
        };
        let broken = match one.slo_broken.len() {
            0 => String::new(),
            broken => format!(", {} broken", count(broken, "SLO")),
        };
        Bar {
            name: one.name.to_owned(),
            parts: vec![(100.0 * one.fair_speedup, colour)],
            text: format!("{:.4}{broken}", one.fair_speedup),
        }
    });
    let bars: Vec<Bar> = bars.collect();
    let longest = bars.iter().flat_map(|bar| &bar.parts).map(|part| part.0).fold(100.0, f64::max);
    Picture::new("Fair speedups of all schemes")
        .entry(Colour::BLUE, "this answer")
        .entry(Colour::GREEN, "every SLO kept")
        .entry(Colour::PINK, "SLOs broken")
        .bars(Bars {
            caption: "speed in % of the fair share's".to_owned(),
            unit: "%",
            until: Some(longest * 1.25),
            bars,
        })
}
