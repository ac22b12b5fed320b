//! The page of a what-if: the load with its bursts, all options by time and cost, the Pareto front. Everything inside,
//! nothing fetched from elsewhere.

use plotters::prelude::*;

use surgetank_planner::whatif::Choice;

use super::small_dollars;
use super::trace::{Findings, HEADER, row, sentence};
use crate::demo::chart::{APPLICATION, BACKING, CACHE, DRAIN, INK, css, ink_text, svg, thousands};
use crate::demo::report::{STYLE, escape, html_table};
use crate::failure::Failure;

const LOAD_HEIGHT: u32 = 260;
const OPTIONS_HEIGHT: u32 = 420;
/// More points are drawn as the highest of their neighbours.
const POINTS_MAX: usize = 1900;
/// Rows of the table of all options.
const ROWS_MAX: usize = 60;

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(found: &Findings) -> Result<String, Failure> {
    let pareto: Vec<Vec<String>> = found.answer.pareto.iter().map(|choice| row(choice).to_vec()).collect();
    let all: Vec<Vec<String>> =
        found.answer.considered.iter().take(ROWS_MAX).map(|choice| row(choice).to_vec()).collect();
    let lead = match &found.answer.choice {
        Some(choice) => {
            format!("Take {}: {:.1} s for {}.", choice.name(), choice.completion_s, small_dollars(choice.cost_usd))
        }
        None => found.answer.infeasible.clone().unwrap_or_default(),
    };
    let legend = |entries: &[(RGBColor, &str)]| {
        let spans: String = entries
            .iter()
            .map(|(colour, name)| format!("<span><i style=\"background:{}\"></i>{name}</span>", css(*colour)))
            .collect();
        format!("<p class=\"legend\">{spans}</p>")
    };
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>surgetank recommend</title><style>{STYLE}</style></head><body>\n\
         <h1>What would have been cheaper</h1><p class=\"lead\">{lead}</p><p>{trace}: {sentence}.</p>\n\
         <h2>The load and its bursts</h2>{load_legend}{load}\n\
         <p class=\"note\">Shaded: bursts, above {threshold:.1} MiB/s and at least {quiet:.0} s apart.</p>\n\
         <h2>Every option, by time and cost</h2>{options_legend}{options}\n\
         <h2>Nothing is both faster and cheaper than these</h2>{pareto}\n\
         <h2>The cheapest of all {count} options</h2>{all}\n\
         <footer><p>surgetank {version}. List prices, on demand, billed as the provider bills; bursts of elastic options are \
         split over both volumes, as the fluid model has it.</p></footer>\n</body></html>\n",
        lead = escape(&lead),
        trace = escape(&found.trace.display().to_string()),
        sentence = escape(&sentence(&found.application)),
        load_legend = legend(&[(APPLICATION, "read and written")]),
        load = load(found)?,
        threshold = found.application.threshold_mib_s,
        quiet = found.application.quiet_s,
        options_legend = legend(&[
            (BACKING, "static"),
            (CACHE, "static, on burst credits"),
            (APPLICATION, "elastic"),
            (DRAIN, "the one to take")
        ]),
        options = options(found)?,
        pareto = html_table(&HEADER, &pareto),
        count = found.answer.considered.len(),
        all = html_table(&HEADER, &all),
        version = env!("CARGO_PKG_VERSION"),
    ))
}

fn load(found: &Findings) -> Result<String, Failure> {
    let interval_s = found.load.interval.as_secs_f64();
    let each = found.load.moments.len().div_ceil(POINTS_MAX).max(1);
    let rate = |moment: &surgetank_planner::whatif::Moment| {
        moment.written.saturating_add(moment.read) as f64 / f64::from(1 << 20) / interval_s
    };
    let points: Vec<(f64, f64)> = found
        .load
        .moments
        .chunks(each)
        .enumerate()
        .flat_map(|(index, moments)| {
            let high = moments.iter().map(rate).fold(0.0, f64::max);
            let from = (index * each) as f64 * interval_s;
            [(from, high), (from + each as f64 * interval_s, high)]
        })
        .collect();
    let (until, highest) =
        (found.application.recorded_s.max(interval_s), found.application.peak_mib_s.max(1e-3) * 1.08);
    let draw =
        |area: &crate::demo::chart::Area<'_>| -> Result<(), Box<dyn std::error::Error>> {
            let mut chart = ChartBuilder::on(area)
                .margin_right(16)
                .margin_top(8)
                .x_label_area_size(36)
                .y_label_area_size(64)
                .build_cartesian_2d(0.0..until, 0.0..highest)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(INK.mix(0.12))
                .axis_style(INK.mix(0.5))
                .y_desc("MiB/s")
                .label_style(ink_text(12))
                .axis_desc_style(ink_text(12))
                .x_label_formatter(&|x| format!("{x:.0} s"))
                .y_label_formatter(&|y| thousands(*y))
                .draw()?;
            chart.draw_series(
                found.bursts.iter().take(POINTS_MAX).map(|burst| {
                    Rectangle::new([(burst.start_s, 0.0), (burst.end_s, highest)], INK.mix(0.08).filled())
                }),
            )?;
            chart.draw_series(
                AreaSeries::new(points.iter().copied(), 0.0, APPLICATION.mix(0.35))
                    .border_style(APPLICATION.stroke_width(1)),
            )?;
            Ok(())
        };
    svg(LOAD_HEIGHT, "The load over time, with its bursts", |area| draw(area).map_err(|error| error.to_string()))
}

fn colour(choice: &Choice) -> RGBColor {
    match (&choice.caching, choice.sustained) {
        (Some(_), _) => APPLICATION,
        (None, true) => BACKING,
        (None, false) => CACHE,
    }
}

/// Options that are more than so many times as slow or dear as the best of the front's ends are left out of the picture.
const PICTURE_REACH: f64 = 30.0;

fn options(found: &Findings) -> Result<String, Failure> {
    let (fastest, cheapest) =
        found.answer.pareto.iter().fold((f64::MAX, f64::MAX), |(time, cost), choice| {
            (time.min(choice.completion_s), cost.min(choice.cost_usd))
        });
    let front_time = found.answer.pareto.iter().map(|choice| choice.completion_s).fold(0.0, f64::max);
    let shown: Vec<&Choice> = found
        .answer
        .considered
        .iter()
        .filter(|choice| choice.completion_s <= front_time * 1.5 && choice.cost_usd <= cheapest * PICTURE_REACH)
        .collect();
    let slowest = shown.iter().map(|choice| choice.completion_s).fold(fastest, f64::max);
    let dearest = shown.iter().map(|choice| choice.cost_usd).fold(cheapest, f64::max);
    if shown.is_empty() {
        return Ok(String::new());
    }
    let margin = ((slowest - fastest) * 0.05).max(fastest * 0.005).max(1e-6);
    let draw = |area: &crate::demo::chart::Area<'_>| -> Result<(), Box<dyn std::error::Error>> {
        let mut chart = ChartBuilder::on(area)
            .margin_right(24)
            .margin_top(8)
            .x_label_area_size(44)
            .y_label_area_size(84)
            .build_cartesian_2d((fastest - margin)..(slowest + margin), (cheapest * 0.8..dearest * 1.25).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .x_desc("completion")
            .y_desc("USD for the run")
            .label_style(ink_text(12))
            .axis_desc_style(ink_text(12))
            .x_label_formatter(&|x| format!("{x:.0} s"))
            .y_label_formatter(&|y| small_dollars(*y))
            .draw()?;
        chart.draw_series(shown.iter().map(|choice| {
            let size = if choice.pareto { 5 } else { 3 };
            Circle::new((choice.completion_s, choice.cost_usd), size, colour(choice).mix(0.75).filled())
        }))?;
        // The front as stairs: between two of its options there is nothing better than the cheaper one.
        let mut stairs = Vec::new();
        for choice in &found.answer.pareto {
            if let Some((_, cost)) = stairs.last().copied() {
                stairs.push((choice.completion_s, cost));
            }
            stairs.push((choice.completion_s, choice.cost_usd));
        }
        chart.draw_series(LineSeries::new(stairs, INK.mix(0.6).stroke_width(1)))?;
        if let Some(choice) = &found.answer.choice {
            let place = (choice.completion_s, choice.cost_usd);
            chart.draw_series([Circle::new(place, 9, DRAIN.stroke_width(3))])?;
        }
        Ok(())
    };
    svg(OPTIONS_HEIGHT, "Options by completion time and cost", |area| draw(area).map_err(|error| error.to_string()))
}
