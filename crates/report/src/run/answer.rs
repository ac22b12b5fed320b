//! A run for people: tables and a verdict for the terminal, and the page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use surgetank_planner::Mode;

use super::{Activity, ModeOutcome, RunOutcome, hindsight};
use crate::chart::{Axis, Colour, Mark, Picture, Plot, stairs};
use crate::failure::Failure;
use crate::number::{difference, dollars, thousands};
use crate::output;
use crate::page::Page;
use crate::table::Table;

const APPLICATION: Colour = Colour::BLUE;
const CACHE: Colour = Colour::ORANGE;
const BACKING: Colour = Colour::GREEN;
const DRAIN: Colour = Colour::PINK;

const PANEL_HEIGHT: u32 = 190;
const COST_HEIGHT: u32 = 320;

/// The colour of a mode.
#[must_use]
pub fn mode_colour(mode: Mode) -> Colour {
    match mode {
        Mode::StaticSlow => BACKING,
        Mode::StaticFast => CACHE,
        Mode::Elastic => APPLICATION,
    }
}

fn modes(outcome: &RunOutcome) -> Table {
    let row = |(mode, found): (&Mode, &ModeOutcome)| {
        [
            mode.name().to_owned(),
            format!("{:.1} s", found.completion_s),
            difference(found.overhead_ratio, 1),
            thousands(found.cost_agbs),
            format!("× {:.2}", found.cost_ratio),
            dollars(found.cost_usd, 4),
            found.write_mib_s.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")),
        ]
    };
    Table::new(["mode", "completion", "vs fast", "AGBs", "vs fast", "money", "write MiB/s"])
        .with(outcome.modes.iter().map(row))
}

fn boosts(outcome: &RunOutcome) -> Table {
    let boosts = outcome.modes.get(&Mode::Elastic).map(|elastic| elastic.boosts.as_slice()).unwrap_or_default();
    let rows = boosts.iter().enumerate().map(|(index, boost)| {
        [
            (index + 1).to_string(),
            format!("{:.1} s", boost.start_s),
            format!("{:.2} s", boost.attach_s),
            format!("{:.2} s", boost.absorb_s),
            format!("{:.2} s", boost.drain_s),
            format!("{:.0} MiB", boost.cache_gib * 1024.0),
            format!("{:.0} MiB", boost.high_water_gib * 1024.0),
        ]
    });
    Table::new(["boost", "began", "attach", "absorb", "drain", "cache", "most used"]).with(rows)
}

/// What the run shows, in one sentence.
fn verdict(outcome: &RunOutcome) -> String {
    let Some(elastic) = outcome.modes.get(&Mode::Elastic) else { return "The elastic mode did not run.".into() };
    let verified = match outcome.verified {
        Some(true) => "; every byte was verified",
        Some(false) => "; NOT every byte was verified",
        None => "",
    };
    let finishes = if outcome.verified.is_some() { "finished" } else { "finishes" };
    format!(
        "The elastic device {finishes} in {:.3} of static-fast's time at {:.2} of its cost{verified}.",
        elastic.overhead_ratio, elastic.cost_ratio
    )
}

/// The tables and the verdict, for a terminal.
#[must_use]
pub fn text(outcome: &RunOutcome) -> String {
    let mut text = format!("{}\n", modes(outcome));
    let boosts = boosts(outcome);
    if !boosts.is_empty() {
        let _ = writeln!(text, "\n{boosts}");
    }
    let _ = write!(text, "\n{}", verdict(outcome));
    if let Some(found) = &outcome.hindsight {
        let _ = write!(text, "\n\n{}\n\n{}", found.table(), found.verdict());
    }
    for (name, value) in outcome.parameters.iter().filter(|(name, _)| name == "money") {
        let _ = write!(text, "\n{name}: {value}");
    }
    text
}

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(outcome: &RunOutcome) -> Result<String, Failure> {
    let mut page = Page::new(outcome.title, outcome.title, &verdict(outcome));
    if let Some(elastic) = outcome.modes.get(&Mode::Elastic) {
        page = page.cards(&cards(outcome, elastic));
    }
    page = page
        .table(&modes(outcome))
        .section("I/O activity over time")
        .picture(&activity(outcome))?
        .note("Shaded: the application writes. Averages over each sampling interval.")
        .section("Accumulated cost over time")
        .picture(&cost(outcome))?
        .note("AGBs: size in GB × reserved bandwidth in MB/s × seconds.");
    if let Some(found) = &outcome.hindsight {
        let picture = hindsight::picture(outcome, found, wall_s(outcome));
        page = page.section("In hindsight").table(&found.table()).picture(&picture)?.note(&found.verdict());
    }
    let boosts = boosts(outcome);
    if !boosts.is_empty() {
        page = page.section("Boosts of the elastic device").table(&boosts);
    }
    let date = if outcome.date.is_empty() { String::new() } else { format!(", {}", outcome.date) };
    Ok(page.section("Parameters").facts(&outcome.parameters).html(&date))
}

fn cards(outcome: &RunOutcome, elastic: &ModeOutcome) -> [(String, &'static str); 4] {
    let mib = (outcome.verified_bytes >> 20) as f64;
    let verified = match outcome.verified {
        Some(true) => (format!("{} MiB", thousands(mib)), "read back from the backing volumes alone and matched"),
        Some(false) => ("no".to_owned(), "read back from the backing volumes alone and matched"),
        None => (outcome.vms.unwrap_or(1).to_string(), "VMs, all alike in cost and series: one is shown"),
    };
    [
        (format!("{:.3}", elastic.overhead_ratio), "of static-fast's completion time"),
        (format!("{:.2}", elastic.cost_ratio), "of static-fast's cost in AGBs"),
        (elastic.boosts.len().to_string(), "boosts: caching volumes rented and deleted"),
        verified,
    ]
}

fn wall_s(outcome: &RunOutcome) -> f64 {
    outcome.modes.values().map(|mode| mode.wall_s).fold(1.0, f64::max)
}

/// I/O activity: one panel a mode, the same axes in all.
fn activity(outcome: &RunOutcome) -> Picture {
    let until = wall_s(outcome);
    let samples = outcome.modes.values().flat_map(|mode| &mode.activity);
    let highest = samples.map(|s| s.application_mib_s.max(s.cache_mib_s).max(s.backing_mib_s)).fold(1.0, f64::max);
    let picture = Picture::new("I/O activity over time")
        .entry(APPLICATION, "application writes")
        .entry(CACHE, "writes to the caching volume")
        .entry(BACKING, "writes to the backing volume, drain included")
        .entry(DRAIN, "drain");
    outcome.modes.iter().fold(picture, |picture, (mode, found)| {
        let y = Axis::linear("MiB/s", 0.0..highest * 1.08);
        let plot = Plot::new(mode.name(), PANEL_HEIGHT, Axis::seconds(until), y);
        picture.plot(plot.marks(activity_marks(*mode, found)))
    })
}

fn activity_marks(mode: Mode, found: &ModeOutcome) -> Vec<Mark> {
    let series = |value: fn(&Activity) -> f64| stairs(found.activity.iter().map(|sample| (sample.at_s, value(sample))));
    // Writing as a quiet band, so that the eye separates the bursts from the compute phases.
    let written = found.phases.iter().filter(|phase| phase.name != "compute");
    let bands =
        written.map(|phase| Mark::Band { from: phase.start_s, until: phase.end_s, colour: Colour::INK.faint(0.06) });
    let mut marks: Vec<Mark> = bands.collect();
    marks.push(Mark::Area { points: series(|sample| sample.application_mib_s), colour: APPLICATION });
    marks.extend(Mark::moving(&series(|sample| sample.backing_mib_s), BACKING, 2));
    if mode == Mode::Elastic {
        marks.extend(Mark::moving(&series(|sample| sample.cache_mib_s), CACHE, 2));
        marks.extend(Mark::moving(&series(|sample| sample.drain_mib_s), DRAIN, 2));
    }
    marks
}

/// Accumulated cost: one line a mode.
fn cost(outcome: &RunOutcome) -> Picture {
    let highest = outcome.modes.values().map(|mode| mode.cost_agbs).fold(1.0, f64::max) * 1.06;
    let plot = Plot::new("", COST_HEIGHT, Axis::seconds(wall_s(outcome)), Axis::linear("AGBs", 0.0..highest));
    let line = |(mode, found): (&Mode, &ModeOutcome)| {
        Mark::line(found.cost.iter().map(|point| (point.at_s, point.agbs)).collect(), mode_colour(*mode), 3)
    };
    let picture = Picture::new("Accumulated cost over time");
    let legend = outcome.modes.keys().fold(picture, |picture, mode| picture.entry(mode_colour(*mode), mode.name()));
    legend.plot(plot.marks(outcome.modes.iter().map(line)))
}

/// Writes `report.html` and `report.json` into a directory, which is made if it is not there. Returns the page's path.
///
/// # Errors
/// If they cannot be made or written.
pub fn write(outcome: &RunOutcome, directory: &Path) -> Result<PathBuf, Failure> {
    let (page, data) = (html(outcome)?, output::json(outcome)?);
    output::write_into(directory, ("report.html", &page), &[("report.json", &data)])
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_page_fetches_nothing() {
        let mut outcome = sample::outcome();
        outcome.parameters.push(("kernel".into(), "<b>&\"".into()));
        let page = html(&outcome).unwrap();
        for outside in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        let links: Vec<_> = page.matches("http").collect();
        assert_eq!(links.len(), page.matches("http://www.w3.org/2000/svg").count());
        assert!(page.contains("&lt;b&gt;&amp;&quot;") && !page.contains("NaN"));
        assert!(html(&RunOutcome::default()).is_ok());
    }

    #[test]
    fn the_text_has_a_row_for_each_mode() {
        let text = text(&sample::outcome());
        for mode in Mode::ALL {
            assert!(text.contains(mode.name()), "{text}");
        }
        assert!(text.contains("every byte was verified"));
    }
}
