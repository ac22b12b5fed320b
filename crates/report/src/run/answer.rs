//! A run for people: tables and a verdict for the terminal, and the page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use surgetank_planner::Mode;

use super::{Activity, Boost, BoostSummary, CostPoint, ModeOutcome, RunOutcome, Spread, hindsight};
use crate::chart::{Axis, Colour, Mark, Picture, Plot, stairs};
use crate::failure::Failure;
use crate::number::{AGBS_EXPLAINED, count, difference, dollars, duration, gibibytes, plain, prefixed, thousands};
use crate::output;
use crate::page::Page;
use crate::table::Table;

const APPLICATION: Colour = Colour::BLUE;
const CACHE: Colour = Colour::ORANGE;
const BACKING: Colour = Colour::GREEN;
const DRAIN: Colour = Colour::PINK;

const PANEL_HEIGHT: u32 = 190;
const COST_HEIGHT: u32 = 320;
/// More boosts are summed up.
const BOOSTS_LISTED: usize = 20;
/// Differences below this share are none.
const ALIKE: f64 = 0.005;

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
    let is_replay = outcome.modes.values().any(|found| found.bursts.is_some());
    let row = |(mode, found): (&Mode, &ModeOutcome)| {
        let mut cells = vec![
            mode.name().to_owned(),
            duration(found.completion_s),
            difference(found.overhead_ratio, 1),
            dollars(found.cost_total_usd.or(found.cost_usd), 4),
            found.cost_usd_ratio.map_or_else(|| "–".to_owned(), |ratio| difference(ratio, 1)),
            prefixed(found.cost_total_agbs.unwrap_or(found.cost_agbs)),
            difference(found.cost_ratio, 1),
        ];
        if is_replay {
            let of = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), duration);
            cells.push(of(found.bursts.map(|bursts| bursts.length_mean_s)));
            cells.push(of(found.bursts.map(|bursts| bursts.waited_mean_s)));
            cells.push(of(found.bursts.map(|bursts| bursts.waited_max_s)));
        } else {
            cells.push(found.write_mib_s.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")));
        }
        cells
    };
    let last: &[&str] = if is_replay { &["mean burst", "mean wait", "longest wait"] } else { &["write MiB/s"] };
    let header = ["mode", "completion", "vs fast", "money", "vs fast", "AGBs", "vs fast"].iter().chain(last).copied();
    Table::new(header).with(outcome.modes.iter().map(row))
}

/// What the figures of [`modes`] are.
fn footnote(outcome: &RunOutcome) -> String {
    let vms = outcome.vms.filter(|vms| *vms > 1).map_or_else(String::new, |vms| format!(", of all {vms} VMs"));
    let bursts = outcome.modes.values().find_map(|found| found.bursts);
    let waits = bursts.map_or_else(String::new, |bursts| {
        format!(
            " {}: a burst lasts from its first request until its last byte is served, and waits from its last request on.",
            count(bursts.count, "burst")
        )
    });
    format!("{AGBS_EXPLAINED}{vms}.{waits}")
}

/// Boosts one by one, or of many what they come to.
fn boosts(outcome: &RunOutcome) -> Option<Table> {
    let boosts = outcome.modes.get(&Mode::Elastic).map(|elastic| elastic.boosts.as_slice()).unwrap_or_default();
    if boosts.len() > BOOSTS_LISTED {
        return outcome.modes.get(&Mode::Elastic)?.boost_summary.as_ref().map(summary);
    }
    let rows = boosts.iter().enumerate().map(|(index, boost)| {
        [
            (index + 1).to_string(),
            duration(boost.start_s),
            duration(boost.attach_s),
            duration(boost.absorb_s),
            duration(boost.drain_s),
            cache(boost),
            gibibytes(boost.high_water_gib),
        ]
    });
    let table = Table::new(["boost", "began", "attach", "absorb", "drain", "cache", "most used"]).with(rows);
    (!boosts.is_empty()).then_some(table)
}

/// The size of a boost's caching volume, and what it grew from.
fn cache(boost: &Boost) -> String {
    let from = boost.grew_from_gib().map(|from| format!("{} to ", gibibytes(from)));
    from.unwrap_or_default() + &gibibytes(boost.cache_gib)
}

fn summary(of: &BoostSummary) -> Table {
    let row = |name: &str, spread: Spread, shown: fn(f64) -> String| {
        [name.to_owned(), shown(spread.least), shown(spread.median), shown(spread.most)]
    };
    let name = format!("{}, {} in vain", count(of.count, "boost"), thousands(of.in_vain as f64));
    Table::new([name.as_str(), "least", "median", "most"]).with([
        row("attach", of.attach_s, duration),
        row("absorb", of.absorb_s, duration),
        row("drain", of.drain_s, duration),
        row("cache", of.cache_gib, gibibytes),
        row("most used", of.high_water_gib, gibibytes),
    ])
}

/// What the run shows, in a few words.
fn verdict(outcome: &RunOutcome) -> String {
    let Some(elastic) = outcome.modes.get(&Mode::Elastic) else { return "The elastic mode did not run.".into() };
    let verified = match outcome.verified {
        Some(true) => "; every byte was verified",
        Some(false) => "; NOT every byte was verified",
        None => "",
    };
    let against = |time: f64, agbs: f64, usd: Option<f64>| {
        let money = usd.map_or_else(String::new, |usd| format!(", {} in money", difference(usd, 1)));
        format!("{} in time{money} and {} in AGBs", difference(time, 1), difference(agbs, 1))
    };
    let mut text = format!(
        "The elastic device against static-fast: {}; against static-slow: {}{verified}.",
        against(elastic.overhead_ratio, elastic.cost_ratio, elastic.cost_usd_ratio),
        against(elastic.overhead_of_slow_ratio, elastic.cost_of_slow_ratio, elastic.cost_usd_of_slow_ratio)
    );
    let waits = |mode| outcome.modes.get(&mode).and_then(|found| found.bursts).map(|bursts| bursts.waited_mean_s);
    let waits = [Mode::Elastic, Mode::StaticSlow, Mode::StaticFast].map(waits);
    if let [Some(elastic_s), Some(slow_s), Some(fast_s)] = waits {
        let _ = write!(
            text,
            " A burst waits {}, on static-slow {}, on static-fast {}.",
            duration(elastic_s),
            duration(slow_s),
            duration(fast_s)
        );
    }
    if !gains(elastic, waits[0].zip(waits[1])) {
        text.push_str(" Nothing is gained: static-slow alone is as fast.");
    }
    text
}

/// Whether the elastic device is faster than static-slow: it completes earlier, or a replay's bursts wait less.
fn gains(elastic: &ModeOutcome, waits: Option<(f64, f64)>) -> bool {
    let completes_earlier = elastic.overhead_of_slow_ratio < 1.0 - ALIKE;
    // A burst that waited less than a second before has nothing to gain.
    let waits_less = waits.is_some_and(|(elastic_s, slow_s)| slow_s - elastic_s > (slow_s * ALIKE).max(0.05));
    completes_earlier || waits_less
}

/// The tables and the verdict, for a terminal.
#[must_use]
pub fn text(outcome: &RunOutcome) -> String {
    let mut text = format!("{}\n", modes(outcome));
    if let Some(boosts) = boosts(outcome) {
        let _ = writeln!(text, "\n{boosts}");
    }
    let _ = write!(text, "\n{}\n{}", verdict(outcome), footnote(outcome));
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
        .note(&footnote(outcome))
        .section("I/O activity over time")
        .picture(&activity(outcome))?
        .note(&activity_note(outcome))
        .section("Accumulated cost over time")
        .picture(&cost(outcome))?
        .note(&cost_note(outcome));
    if let Some(found) = &outcome.hindsight {
        let picture = hindsight::picture(outcome, found, wall_s(outcome));
        page = page.section("In hindsight").table(&found.table()).picture(&picture)?.note(&found.verdict());
    }
    if let Some(boosts) = boosts(outcome) {
        page = page.section("Boosts of the elastic device").table(&boosts);
    }
    let date = if outcome.date.is_empty() { String::new() } else { format!(", {}", outcome.date) };
    Ok(page.section("Parameters").facts(&outcome.parameters).html(&date))
}

fn cards(outcome: &RunOutcome, elastic: &ModeOutcome) -> [(String, &'static str); 5] {
    let mib = (outcome.verified_bytes >> 20) as f64;
    let boosts = elastic.boost_summary.map_or(elastic.boosts.len(), |summary| summary.count);
    let verified = match outcome.verified {
        Some(true) => (format!("{} MiB", thousands(mib)), "read back from the backing volumes alone and matched"),
        Some(false) => ("no".to_owned(), "read back from the backing volumes alone and matched"),
        None => match outcome.vms {
            Some(vms) if vms > 1 => (thousands(f64::from(vms)), "VMs, all alike in cost and series: one is shown"),
            _ => (duration(elastic.completion_s), "completion time of the elastic device"),
        },
    };
    [
        (difference(elastic.overhead_ratio, 1), "completion time against static-fast's"),
        (
            elastic.cost_usd_ratio.map_or_else(|| "unknown".to_owned(), |ratio| difference(ratio, 1)),
            "cost in money against static-fast's",
        ),
        (difference(elastic.cost_ratio, 1), "cost in AGBs against static-fast's"),
        (thousands(boosts as f64), "boosts: caching volumes rented and deleted"),
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
    let of_sample = |s: &Activity| {
        let peak = s.application_peak_mib_s.unwrap_or_default();
        s.application_mib_s.max(s.cache_mib_s).max(s.backing_mib_s).max(peak)
    };
    let highest = samples.map(of_sample).fold(1.0, f64::max);
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

/// What the pictures of the activity show.
fn activity_note(outcome: &RunOutcome) -> String {
    let merged = outcome.modes.values().any(|found| found.activity.iter().any(|s| s.application_peak_mib_s.is_some()));
    let averages = if merged {
        "Averages over the time of a pixel; the thin line is the highest that the application wrote within it."
    } else {
        "Averages over each sampling interval."
    };
    let shaded = outcome.modes.values().any(|found| !found.phases.is_empty());
    format!("{}{averages}", if shaded { "Shaded: the application writes. " } else { "" })
}

fn activity_marks(mode: Mode, found: &ModeOutcome) -> Vec<Mark> {
    let series = |value: fn(&Activity) -> f64| stairs(found.activity.iter().map(|sample| (sample.at_s, value(sample))));
    // Writing as a quiet band, so that the eye separates the bursts from the compute phases.
    let written = found.phases.iter().filter(|phase| phase.name != "compute");
    let bands =
        written.map(|phase| Mark::Band { from: phase.start_s, until: phase.end_s, colour: Colour::INK.faint(0.06) });
    let mut marks: Vec<Mark> = bands.collect();
    if found.activity.iter().any(|sample| sample.application_peak_mib_s.is_some()) {
        let peaks = series(|sample| sample.application_peak_mib_s.unwrap_or(sample.application_mib_s));
        marks.extend(Mark::moving(&peaks, APPLICATION.faint(0.45), 1));
    }
    marks.push(Mark::Area { points: series(|sample| sample.application_mib_s), colour: APPLICATION });
    marks.extend(Mark::moving(&series(|sample| sample.backing_mib_s), BACKING, 2));
    if mode == Mode::Elastic {
        marks.extend(Mark::moving(&series(|sample| sample.cache_mib_s), CACHE, 2));
        marks.extend(Mark::moving(&series(|sample| sample.drain_mib_s), DRAIN, 2));
    }
    marks
}

/// Accumulated cost: a panel in money, if all prices are known, and one in AGBs, with a line each for the modes.
fn cost(outcome: &RunOutcome) -> Picture {
    let picture = Picture::new("Accumulated cost over time");
    let legend = outcome.modes.keys().fold(picture, |picture, mode| picture.entry(mode_colour(*mode), mode.name()));
    let panel = |axis: Axis, of: fn(&CostPoint) -> Option<f64>| {
        let line = |(mode, found): (&Mode, &ModeOutcome)| {
            let points = found.cost.iter().filter_map(|point| Some((point.at_s, of(point)?)));
            Mark::line(points.collect(), mode_colour(*mode), 3)
        };
        Plot::new("", COST_HEIGHT, Axis::seconds(wall_s(outcome)), axis).marks(outcome.modes.iter().map(line))
    };
    let highest = outcome.modes.values().map(|mode| mode.cost_agbs).fold(1.0, f64::max) * 1.06;
    let agbs = panel(Axis::linear("AGBs", 0.0..highest), |point| Some(point.agbs));
    match highest_usd(outcome) {
        Some(highest) => legend.plot(panel(Axis::linear("USD", 0.0..highest * 1.06).format(plain), |point| point.usd)),
        None => legend,
    }
    .plot(agbs)
}

/// The most that a mode costs; `None`: a price is unknown.
fn highest_usd(outcome: &RunOutcome) -> Option<f64> {
    let all: Option<Vec<f64>> = outcome.modes.values().map(|mode| mode.cost_usd).collect();
    all?.into_iter().reduce(f64::max).filter(|usd| *usd > 0.0)
}

fn cost_note(outcome: &RunOutcome) -> String {
    let known = if highest_usd(outcome).is_some() {
        "Above in money, below in AGBs, which charge what is reserved and not what providers bill"
    } else {
        "In AGBs, for a price is unknown"
    };
    format!("{known}. {AGBS_EXPLAINED}; the curves are of one VM.")
}

/// Writes `report.html` and `report.json` into a directory, which is made if it is not there. Returns the page's path.
///
/// # Errors
/// If they cannot be made or written.
pub fn write(outcome: &RunOutcome, directory: &Path) -> Result<PathBuf, Failure> {
    let outcome = &outcome.thinned();
    let (page, data) = (html(outcome)?, output::json(outcome)?);
    output::write_into(directory, ("report.html", &page), &[("report.json", &data)])
}

#[cfg(test)]
mod tests {
    use super::super::{BurstSummary, sample};
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
        assert!(text.contains("every byte was verified") && text.contains("AGBs: GiB rented"), "{text}");
        assert!(text.contains("in money and -") && text.contains("in AGBs"), "{text}");
        let mut unknown = sample::outcome();
        unknown.modes.values_mut().for_each(|mode| mode.cost_usd = None);
        unknown.relate();
        let text = super::text(&unknown);
        assert!(text.contains("unknown") && !text.contains("in money and"), "{text}");
        assert!(html(&unknown).unwrap().contains("for a price is unknown"));
        assert!(!text.contains("Nothing is gained"), "{text}");
    }

    #[test]
    fn a_replay_that_gains_nothing_says_so_and_many_boosts_are_summed_up() {
        let mut outcome = sample::outcome();
        let boost = outcome.modes[&Mode::Elastic].boosts[0].clone();
        for (mode, waited_s) in [(Mode::StaticSlow, 40.0), (Mode::StaticFast, 2.0), (Mode::Elastic, 12.0)] {
            let found = outcome.modes.get_mut(&mode).unwrap();
            found.completion_s = 2_500_000.0;
            found.bursts = BurstSummary::of(&[(100.0 + waited_s, waited_s)]);
        }
        outcome.modes.get_mut(&Mode::Elastic).unwrap().boosts = vec![boost; 47_000];
        outcome.relate();
        let gained = text(&outcome);
        assert!(gained.contains("A burst waits 12.0 s, on static-slow 40.0 s, on static-fast 2.00 s."), "{gained}");
        assert!(!gained.contains("Nothing is gained") && gained.contains("47,000 boosts, 0 in vain"), "{gained}");
        assert!(gained.contains("28 d 22 h") && gained.lines().count() < 40, "{gained}");
        let elastic = outcome.modes.get_mut(&Mode::Elastic).unwrap();
        elastic.bursts = BurstSummary::of(&[(140.0, 40.0)]);
        assert!(text(&outcome).contains("Nothing is gained"));
    }
}
