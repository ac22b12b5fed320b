//! The page of a what-if: the load with its bursts, all options by time and cost, the Pareto front.

use surgetank_planner::whatif::{Choice, Moment};
use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot};
use surgetank_report::number::{duration, small_dollars};
use surgetank_report::{Failure, Page};

use super::findings::{Findings, advice, options, sentence};

const LOAD_HEIGHT: u32 = 260;
const OPTIONS_HEIGHT: u32 = 420;
/// More points are drawn as the highest of their neighbours.
const POINTS_MAX: usize = 1900;
/// Rows of the table of all options.
const ROWS_MAX: usize = 60;
/// Options that cost more than so many times the cheapest are left out of the picture.
const PICTURE_REACH: f64 = 30.0;

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(found: &Findings) -> Result<String, Failure> {
    let answer = &found.answer;
    let lead = answer.choice.as_ref().map(advice).or_else(|| answer.infeasible.clone()).unwrap_or_default();
    let bursts = format!(
        "Shaded: bursts, above {:.1} MiB/s and at least {:.0} s apart.",
        found.application.threshold_mib_s, found.application.quiet_s
    );
    let page = Page::new("surgetank recommend", "What would have been cheaper", &lead)
        .paragraph(&format!("{}: {}.", found.trace.display(), sentence(&found.application)))
        .notes(&found.warnings)
        .section("The load and its bursts")
        .picture(&load(found))?
        .note(&bursts)
        .section("Every option, by time and cost")
        .picture(&time_and_cost(found))?
        .section("Nothing is both faster and cheaper than these")
        .table(&options(answer.pareto.iter()))
        .section(&format!("The cheapest of all {} options", answer.considered.len()))
        .table(&options(answer.considered.iter().take(ROWS_MAX)));
    Ok(page.html(
        ". List prices, on demand, billed as the provider bills; bursts of elastic options are split over both volumes, \
         as the fluid model has it.",
    ))
}

fn load(found: &Findings) -> Picture {
    let interval_s = found.load.interval.as_secs_f64();
    let each = found.load.moments.len().div_ceil(POINTS_MAX).max(1);
    let rate = |moment: &Moment| moment.written.saturating_add(moment.read) as f64 / f64::from(1 << 20) / interval_s;
    let highest_of = |moments: &[Moment]| moments.iter().map(rate).fold(0.0, f64::max);
    let ends = (1..).map(|index| (index * each) as f64 * interval_s);
    let points = surgetank_report::chart::stairs(ends.zip(found.load.moments.chunks(each).map(highest_of)));
    let until = found.application.recorded_s.max(interval_s);
    let highest = found.application.peak_mib_s.max(1e-3) * 1.08;
    let bursts = found.bursts.iter().take(POINTS_MAX).map(|burst| Mark::Band {
        from: burst.start_s,
        until: burst.end_s,
        colour: Colour::INK.faint(0.08),
    });
    let plot = Plot::new("", LOAD_HEIGHT, Axis::seconds(until), Axis::linear("MiB/s", 0.0..highest))
        .marks(bursts)
        .mark(Mark::Area { points, colour: Colour::BLUE });
    Picture::new("The load over time, with its bursts").entry(Colour::BLUE, "read and written").plot(plot)
}

fn colour(choice: &Choice) -> Colour {
    match (&choice.caching, choice.sustained) {
        (Some(_), _) => Colour::BLUE,
        (None, true) => Colour::GREEN,
        (None, false) => Colour::ORANGE,
    }
}

fn place(choice: &Choice) -> (f64, f64) {
    (choice.completion_s, choice.cost_usd)
}

fn time_and_cost(found: &Findings) -> Picture {
    let picture = Picture::new("Options by completion time and cost")
        .entry(Colour::GREEN, "static")
        .entry(Colour::ORANGE, "static, on burst credits")
        .entry(Colour::BLUE, "elastic")
        .entry(Colour::PINK, "the one to take");
    let (fastest, cheapest) =
        found.answer.pareto.iter().fold((f64::MAX, f64::MAX), |(time, cost), choice| {
            (time.min(choice.completion_s), cost.min(choice.cost_usd))
        });
    let front_time = found.answer.pareto.iter().map(|choice| choice.completion_s).fold(0.0, f64::max);
    let near = |choice: &&Choice| {
        choice.pareto || (choice.completion_s <= front_time * 1.5 && choice.cost_usd <= cheapest * PICTURE_REACH)
    };
    let shown: Vec<&Choice> = found.answer.considered.iter().filter(near).collect();
    if shown.is_empty() {
        return picture;
    }
    let slowest = shown.iter().map(|choice| choice.completion_s).fold(fastest, f64::max);
    let dearest = shown.iter().map(|choice| choice.cost_usd).fold(cheapest, f64::max);
    let margin = ((slowest - fastest) * 0.05).max(fastest * 0.005).max(1e-6);
    let x = Axis::linear("completion", (fastest - margin)..(slowest + margin)).format(duration);
    let y = Axis::logarithmic("USD for the run", (cheapest * 0.8)..(dearest * 1.25)).format(small_dollars);
    let dots = shown.iter().map(|choice| Mark::Dot {
        at: place(choice),
        colour: colour(choice).faint(0.75),
        radius: if choice.pareto { 5 } else { 3 },
    });
    // The front as stairs: between two of its options there is nothing better than the cheaper one.
    let mut front: Vec<(f64, f64)> = Vec::new();
    for choice in &found.answer.pareto {
        front.extend(front.last().map(|(_, cost)| (choice.completion_s, *cost)));
        front.push(place(choice));
    }
    let plot = Plot::new("", OPTIONS_HEIGHT, x, y)
        .marks(dots)
        .mark(Mark::line(front, Colour::INK.faint(0.6), 1))
        .marks(found.answer.choice.iter().map(|choice| Mark::Ring { at: place(choice), colour: Colour::PINK }));
    picture.plot(plot)
}
