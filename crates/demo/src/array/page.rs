//! A run of the demo of arrays for people: the table and a verdict for the terminal, and the page.

use std::path::Path;

use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot, stairs};
use surgetank_report::number::{count, dollars, thousands};
use surgetank_report::{Failure, Page, Table, output};

use super::outcome::{ArrayOutcome, ModeOutcome, Rotated};
use super::plan::Mode;

const HEIGHT: u32 = 300;
const LOW: u32 = 210;

const fn colour(mode: Mode) -> Colour {
    match mode {
        Mode::Single => Colour::GREEN,
        Mode::Array => Colour::ORANGE,
        Mode::Rotated => Colour::BLUE,
    }
}

fn iops(outcome: &ArrayOutcome, mode: Mode) -> f64 {
    outcome.modes.get(&mode).map_or(0.0, |found| found.mean_iops)
}

/// How many times what the single volume served.
fn times(outcome: &ArrayOutcome, mode: Mode) -> String {
    format!("{:.1} ×", iops(outcome, mode) / iops(outcome, Mode::Single).max(1e-9))
}

fn table(outcome: &ArrayOutcome) -> Table {
    let row = |(mode, found): (&Mode, &ModeOutcome)| {
        let of_rotated = |text: fn(Rotated) -> String| found.rotated.map_or_else(|| "–".to_owned(), text);
        [
            mode.name().to_owned(),
            found.members.to_string(),
            thousands(found.mean_iops),
            times(outcome, *mode),
            thousands(found.least_iops),
            thousands(found.end_iops),
            of_rotated(|rotated| rotated.rotations.to_string()),
            of_rotated(|rotated| format!("{:+.1} %", rotated.overhead_ratio * 100.0)),
            dollars(found.usd_month, 2),
        ]
    };
    Table::of("mode | volumes | IOPS | vs single | least | at the end | replaced | extra volumes | USD a month")
        .with(outcome.modes.iter().map(row))
}

/// What the run shows, in a few words.
fn verdict(outcome: &ArrayOutcome) -> String {
    let usd = |mode| outcome.modes.get(&mode).and_then(|found| found.usd_month);
    let more = usd(Mode::Rotated).zip(usd(Mode::Single)).map_or_else(String::new, |(rotated, single)| {
        format!(" for {:+.1} % in money", (rotated / single.max(1e-9) - 1.0) * 100.0)
    });
    let verified = if outcome.verified { "every byte was verified" } else { "NOT every byte was verified" };
    format!(
        "Of {} requests a second, one large volume served {}, the array {}, and the array with rotation {}: {} the single volume{more}; \
         {verified}.",
        thousands(outcome.offered_iops as f64),
        thousands(iops(outcome, Mode::Single)),
        thousands(iops(outcome, Mode::Array)),
        thousands(iops(outcome, Mode::Rotated)),
        times(outcome, Mode::Rotated),
    )
}

/// What would be cheaper, with a capital.
fn instead(outcome: &ArrayOutcome) -> Option<String> {
    outcome.instead.as_ref().map(|sentence| format!("At the original's size, {sentence}."))
}

const FOOTNOTE: &str = "IOPS: requests served per second, means over the run; least: over its worst eightieth; at the end: over its last eighth. Extra \
                        volumes: rented time beyond one volume for each slot.";

/// The table and the verdict, for a terminal.
#[must_use]
pub fn text(outcome: &ArrayOutcome) -> String {
    let money = outcome.parameters.iter().find(|(name, _)| name == "money");
    let money = money.map_or_else(String::new, |(_, value)| format!("\nmoney: {value}"));
    let instead = instead(outcome).map_or_else(String::new, |instead| format!("\n{instead}"));
    format!("{}\n\n{}\n{FOOTNOTE}{money}{instead}", table(outcome), verdict(outcome))
}

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(outcome: &ArrayOutcome, run_s: f64) -> Result<String, Failure> {
    let mut page = Page::new("surgetank demo --array", "Burst credits: one volume, an array, a rotated array", &verdict(outcome))
        .cards(&cards(outcome))
        .table(&table(outcome))
        .note(FOOTNOTE)
        .section("IOPS over time")
        .picture(&served(outcome, run_s))?
        .note("Thin vertical lines: a member of the rotated array is replaced.")
        .section("Burst credits over time")
        .picture(&credits(outcome, run_s))?
        .note(
            "Above: of the single volume, and of the members of the array that stays, faint for each and strong for the mean. Below: of \
             each member of the rotated array. A dot is the member that has just been replaced, with what it had left; its successor \
             begins with full credits.",
        );
    if let Some(instead) = instead(outcome) {
        page = page.section("Money").paragraph(&instead);
    }
    Ok(page.section("Parameters").facts(&outcome.parameters).html(&format!(", {}", outcome.date)))
}

fn cards(outcome: &ArrayOutcome) -> [(String, &'static str); 4] {
    let rotated = outcome.modes.get(&Mode::Rotated);
    let did = rotated.and_then(|found| found.rotated).unwrap_or_default();
    [
        (times(outcome, Mode::Rotated), "the single volume's IOPS, with rotation"),
        (dollars(rotated.and_then(|found| found.usd_month), 2), "a month, with rotation, at the catalog's prices"),
        (thousands(did.rotations as f64), "members replaced under load"),
        (
            format!("{} MiB", thousands((outcome.verified_bytes >> 20) as f64)),
            if outcome.verified { "read back and matched" } else { "read back; NOT all that was written" },
        ),
    ]
}

fn legend(picture: Picture, outcome: &ArrayOutcome) -> Picture {
    outcome.modes.keys().fold(picture, |picture, mode| picture.entry(colour(*mode), mode.name()))
}

fn served(outcome: &ArrayOutcome, run_s: f64) -> Picture {
    let highest = outcome.modes.values().flat_map(|found| &found.iops).map(|(_, iops)| *iops).fold(1.0, f64::max);
    let highest = highest.max(outcome.offered_iops as f64) * 1.05;
    let replaced = outcome.modes.values().flat_map(|found| &found.replacements).map(|replaced| Mark::Line {
        points: vec![(replaced.at_s, 0.0), (replaced.at_s, highest)],
        colour: Colour::INK.faint(0.18),
        width: 1,
    });
    let lines =
        outcome.modes.iter().map(|(mode, found)| Mark::line(stairs(found.iops.iter().copied()), colour(*mode), 2));
    let plot = Plot::new("", HEIGHT, Axis::seconds(run_s), Axis::linear("IOPS", 0.0..highest));
    legend(Picture::new("IOPS over time"), outcome).plot(plot.marks(replaced).marks(lines))
}

/// The credits of each volume of a mode over time.
fn of_each(found: &ModeOutcome) -> impl Iterator<Item = Vec<(f64, f64)>> {
    (0..found.members as usize).map(|slot| {
        let percent = |ratios: &[f64]| ratios.get(slot).copied().unwrap_or(1.0) * 100.0;
        std::iter::once((0.0, 100.0))
            .chain(found.moments.iter().map(|moment| (moment.at_s, percent(&moment.credits_ratio))))
            .collect()
    })
}

/// The mean of all.
fn of_all(found: &ModeOutcome) -> Vec<(f64, f64)> {
    let mean = |ratios: &[f64]| ratios.iter().sum::<f64>() * 100.0 / ratios.len().max(1) as f64;
    let moments = found.moments.iter().map(|moment| (moment.at_s, mean(&moment.credits_ratio)));
    std::iter::once((0.0, 100.0)).chain(moments).collect()
}

fn credits(outcome: &ArrayOutcome, run_s: f64) -> Picture {
    let plot = |height, caption: &str| {
        Plot::new(caption, height, Axis::seconds(run_s), Axis::linear("credits, %", 0.0..105.0))
    };
    let mut staying = plot(LOW, "single, array");
    let mut rotating = plot(HEIGHT, "rotated");
    for (mode, found) in &outcome.modes {
        let each = |opacity| of_each(found).map(move |points| Mark::line(points, colour(*mode).faint(opacity), 1));
        let all = Mark::line(of_all(found), colour(*mode), 2);
        match mode {
            Mode::Rotated => {
                let dots = found.replacements.iter().map(|replaced| Mark::Dot {
                    at: (replaced.at_s, replaced.credits_left_ratio * 100.0),
                    colour: Colour::PINK,
                    radius: 4,
                });
                rotating = rotating.marks(each(0.8)).marks(dots);
            }
            Mode::Array => staying = staying.marks(each(0.3)).mark(all),
            Mode::Single => staying = staying.mark(all),
        }
    }
    legend(Picture::new("Burst credits over time"), outcome)
        .entry(Colour::PINK, "replaced")
        .plot(staying)
        .plot(rotating)
}

/// Writes `report.html` and `report.json` into a directory.
///
/// # Errors
/// If they cannot be written.
pub fn write(outcome: &ArrayOutcome, run_s: f64, directory: &Path) -> Result<(), Failure> {
    let (page, data) = (html(outcome, run_s)?, output::json(outcome)?);
    output::write_into(directory, ("report.html", &page), &[("report.json", &data)]).map(drop)
}

/// "10 volumes of 32 MiB".
pub fn volumes(members: u32, size: impl std::fmt::Display) -> String {
    format!("{} of {size}", count(members as usize, "volume"))
}

#[cfg(test)]
mod tests {
    use super::super::outcome::sample;
    use super::*;

    #[test]
    fn the_page_has_pictures_and_what_is_cheaper() {
        let page = html(&sample::outcome(), 25.0).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("NaN"));
        assert!(page.contains("aws/gp3") && page.contains("1.0 ×"), "{page}");
    }

    #[test]
    fn a_terminal_is_told_the_same() {
        let told = text(&sample::outcome());
        assert!(told.contains("one large volume served 1,000, the array 1,000"), "{told}");
        assert!(told.contains("every byte was verified") && told.contains("aws/gp3"), "{told}");
    }
}
