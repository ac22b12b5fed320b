//! The report's two pictures as SVG: I/O activity over time per mode, accumulated cost over time.
//!
//! The pictures have no background and draw text and axes in the page's own colour, so they fit light and dark pages.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::outcome::{ModeOutcome, Outcome};
use super::plan::Mode;
use crate::failure::{Doing, Failure};

/// Stands for the page's text colour while drawing; replaced in the SVG.
pub const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";

/// Colours that keep apart on light and dark pages and for the colour-blind (after Okabe and Ito).
pub const APPLICATION: RGBColor = RGBColor(0x56, 0xa0, 0xd3);
/// Writes to the caching volume.
pub const CACHE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
/// Writes to the backing volume.
pub const BACKING: RGBColor = RGBColor(0x00, 0x9e, 0x73);
/// The drain.
pub const DRAIN: RGBColor = RGBColor(0xcc, 0x4f, 0x7a);

const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 190;
const COST_HEIGHT: u32 = 320;

/// The colour of a mode.
#[must_use]
pub fn mode_colour(mode: Mode) -> RGBColor {
    match mode {
        Mode::StaticSlow => BACKING,
        Mode::StaticFast => CACHE,
        Mode::Elastic => APPLICATION,
    }
}

/// `#rrggbb`.
#[must_use]
pub fn css(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// What is drawn on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Text in the page's colour.
#[must_use]
pub fn ink_text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Draws and makes the SVG ready to stand in a page.
///
/// # Errors
/// If drawing fails.
pub fn svg(height: u32, label: &str, draw: impl FnOnce(&Area<'_>) -> Result<(), String>) -> Result<String, Failure> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area).doing(|| format!("cannot draw the picture \"{label}\""))?;
        area.present().doing(|| format!("cannot draw the picture \"{label}\""))?;
    }
    let sized = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
    let scalable = format!("<svg role=\"img\" aria-label=\"{label}\"");
    Ok(text.replace(INK_IN_SVG, "currentColor").replacen(&sized, &scalable, 1))
}

fn wall_s(outcome: &Outcome) -> f64 {
    outcome.modes.values().map(|mode| mode.wall_s).fold(1.0, f64::max)
}

/// I/O activity: one panel a mode, the same axes in all.
///
/// # Errors
/// If drawing fails.
pub fn activity(outcome: &Outcome) -> Result<String, Failure> {
    let until = wall_s(outcome);
    let samples = outcome.modes.values().flat_map(|mode| &mode.activity);
    let highest = samples.map(|s| s.application_mib_s.max(s.cache_mib_s).max(s.backing_mib_s)).fold(1.0, f64::max);
    let height = PANEL_HEIGHT * outcome.modes.len().max(1) as u32;
    svg(height, "I/O activity over time", |area| {
        let panels = area.split_evenly((outcome.modes.len().max(1), 1));
        for (panel, (mode, found)) in panels.iter().zip(&outcome.modes) {
            activity_panel(panel, *mode, found, until, highest * 1.08).map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

fn activity_panel(
    panel: &Area<'_>,
    mode: Mode,
    found: &ModeOutcome,
    until: f64,
    highest: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(panel)
        .margin_right(12)
        .margin_top(4)
        .caption(mode.name(), ink_text(15))
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..until, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .y_labels(5)
        .x_labels(13)
        .y_desc("MiB/s")
        .label_style(ink_text(12))
        .axis_desc_style(ink_text(12))
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    // Compute phases as a quiet band, so that the eye separates them from the bursts.
    chart.draw_series(
        found
            .phases
            .iter()
            .filter(|phase| phase.name != "compute")
            .map(|phase| Rectangle::new([(phase.start_s, 0.0), (phase.end_s, highest)], INK.mix(0.06).filled())),
    )?;
    let area = stepped(found, |sample| sample.application_mib_s);
    chart.draw_series(AreaSeries::new(area, 0.0, APPLICATION.mix(0.35)).border_style(APPLICATION.stroke_width(1)))?;
    let mut lines = vec![(stepped(found, |sample| sample.backing_mib_s), BACKING)];
    if mode == Mode::Elastic {
        lines.push((stepped(found, |sample| sample.cache_mib_s), CACHE));
        lines.push((stepped(found, |sample| sample.drain_mib_s), DRAIN));
    }
    for (points, colour) in &lines {
        for stretch in stretches(points) {
            chart.draw_series(LineSeries::new(stretch.iter().copied(), colour.stroke_width(2)))?;
        }
    }
    Ok(())
}

/// The parts of a line where something moves, with the ends at which it begins and stops: where nothing does, lines on
/// the axis would only hide each other.
fn stretches(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points.chunk_by(|before, after| before.1 > 0.0 || after.1 > 0.0).filter(|stretch| stretch.len() > 1)
}

/// Samples as stairs: each says what its interval's average was.
fn stepped(found: &ModeOutcome, value: impl Fn(&super::outcome::Activity) -> f64) -> Vec<(f64, f64)> {
    let mut points = Vec::with_capacity(found.activity.len() * 2 + 2);
    let mut begin = 0.0;
    for sample in &found.activity {
        points.push((begin, value(sample)));
        points.push((sample.at_s, value(sample)));
        begin = sample.at_s;
    }
    points
}

/// Accumulated cost: one line a mode.
///
/// # Errors
/// If drawing fails.
pub fn cost(outcome: &Outcome) -> Result<String, Failure> {
    let until = wall_s(outcome);
    let highest = outcome.modes.values().map(|mode| mode.cost_agbs).fold(1.0, f64::max) * 1.06;
    svg(COST_HEIGHT, "Accumulated cost over time", |area| {
        cost_chart(area, outcome, until, highest).map_err(|error| error.to_string())
    })
}

fn cost_chart(area: &Area<'_>, outcome: &Outcome, until: f64, highest: f64) -> Result<(), Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_right(12)
        .margin_top(8)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..until, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_labels(13)
        .y_labels(6)
        .y_desc("AGBs")
        .label_style(ink_text(12))
        .axis_desc_style(ink_text(12))
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| axis_label(*y))
        .draw()?;
    for (mode, found) in &outcome.modes {
        let line = found.cost.iter().map(|point| (point.at_s, point.agbs));
        chart.draw_series(LineSeries::new(line, mode_colour(*mode).stroke_width(3)))?;
    }
    Ok(())
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Curve {
    /// For the legend.
    pub name: &'static str,
    /// Its colour.
    pub colour: RGBColor,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a number.
///
/// # Errors
/// If drawing fails.
pub fn curves(title: &str, x: &str, y: &str, curves: &[Curve]) -> Result<String, Failure> {
    svg(COST_HEIGHT, title, |area| curves_chart(area, x, y, curves).map_err(|error| error.to_string()))
}

fn curves_chart(area: &Area<'_>, x: &str, y: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let ends = |value: fn((f64, f64)) -> f64| {
        let (low, high) =
            points().map(value).fold((f64::MAX, f64::MIN), |(low, high), next| (low.min(next), high.max(next)));
        if low < high { (low, high) } else { (low.min(0.0), low.max(1.0)) }
    };
    let ((left, right), (low, high)) = (ends(|point| point.0), ends(|point| point.1));
    let margin = (high - low) * 0.08;
    let mut chart = ChartBuilder::on(area)
        .margin_right(24)
        .margin_top(8)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(left..right, (low - margin)..(high + margin))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_labels(12)
        .y_labels(6)
        .x_desc(x)
        .y_desc(y)
        .label_style(ink_text(12))
        .axis_desc_style(ink_text(12))
        .y_label_formatter(&|y| axis_label(*y))
        .draw()?;
    for curve in curves {
        chart.draw_series(LineSeries::new(curve.points.iter().copied(), curve.colour.stroke_width(3)))?;
    }
    Ok(())
}

/// A number that fits beside an axis.
fn axis_label(value: f64) -> String {
    if value.abs() < 1e8 { thousands(value) } else { format!("{value:.1e}") }
}

/// 12345.6 → "12,346".
#[must_use]
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < -0.5 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::sample;

    #[test]
    fn pictures_take_the_pages_colour() {
        for text in [activity(&sample::outcome()).unwrap(), cost(&sample::outcome()).unwrap()] {
            assert!(text.starts_with("<svg role=\"img\""), "{}", &text[..80]);
            assert!(text.contains("currentColor") && !text.contains(INK_IN_SVG));
            assert!(!text.contains("NaN"));
        }
    }

    #[test]
    fn an_empty_run_can_be_drawn() {
        assert!(activity(&Outcome::default()).is_ok());
        assert!(cost(&Outcome::default()).is_ok());
    }

    #[test]
    fn lines_are_drawn_where_something_moves() {
        let points = [(0.0, 0.0), (1.0, 0.0), (1.0, 5.0), (2.0, 5.0), (2.0, 0.0), (3.0, 0.0), (4.0, 0.0)];
        assert_eq!(stretches(&points).collect::<Vec<_>>(), [&points[1..5]]);
        assert_eq!(stretches(&[]).count(), 0);
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(thousands(0.0), "0");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(1234567.0), "1,234,567");
        assert_eq!(thousands(-1234.0), "-1,234");
    }
}
