//! The table and the pictures.

use std::fmt::Write as _;

use surgetank_hierarchy::Scheme;
use surgetank_report::Table;
use surgetank_report::chart::{Axis, Bar as Length, Bars, Colour, Mark, Picture, Plot};

use super::Found;
use crate::bar::{Bar, table};

/// One section a figure, and the bars.
pub fn markdown(found: &[Found], bars: &[Bar]) -> String {
    let mut text = String::from(
        "# Cache allocation: the paper beside the simulation\n\nLatencies are over those of the fair share, from a run of it over the same \
         accesses; so are SLOs, interval by interval.\n\n",
    );
    let mut figures: Vec<(&str, &str)> = Vec::new();
    for found in found {
        let figure = (found.setting.figure, found.setting.mix);
        if !figures.contains(&figure) {
            figures.push(figure);
        }
    }
    for (figure, mix) in figures {
        let of: Vec<&Found> =
            found.iter().filter(|found| (found.setting.figure, found.setting.mix) == (figure, mix)).collect();
        let _ = write!(text, "## Figure {figure}, {mix}\n\n{}\n", rows(&of).markdown());
    }
    let missed: Vec<Bar> = bars.iter().filter(|bar| bar.met == Some(false)).cloned().collect();
    let _ = write!(
        text,
        "## Bars\n\n{} of {} are met.\n\n{}",
        bars.iter().filter(|bar| bar.met == Some(true)).count(),
        bars.iter().filter(|bar| bar.met.is_some()).count(),
        table(bars).markdown()
    );
    if !missed.is_empty() {
        let _ = write!(text, "\n### Missed\n\n{}", table(&missed).markdown());
    }
    text
}

fn rows(found: &[&Found]) -> Table {
    let names = found
        .first()
        .map_or(Vec::new(), |found| found.setting.case.sources.iter().map(|source| source.name.clone()).collect());
    let head = format!("setting | scheme | {} | fair speedup | SLO broken, of intervals | worst", names.join(" | "));
    let rows = found.iter().flat_map(|found| {
        found.schemes.iter().map(|(scheme, _, outcome)| {
            let (broken, judged) = outcome.broken();
            let mut row = vec![found.setting.name.clone(), scheme.name().to_owned()];
            row.extend(outcome.applications.iter().map(|one| format!("{:.3}", one.latency_ms / one.fair_ms)));
            row.push(format!("{:.4}", outcome.fair_speedup));
            row.push(format!("{broken} of {judged}"));
            row.push(format!("{:+.1} %", 100.0 * outcome.worst()));
            row
        })
    });
    Table::of(&head).with(rows)
}

fn colour(scheme: Scheme) -> Colour {
    match scheme {
        Scheme::Optimal => Colour::GREEN,
        Scheme::Mlms => Colour::ORANGE,
        Scheme::Independent => Colour::BLUE,
        Scheme::Uncontrolled => Colour::PINK,
        _ => Colour::GREY,
    }
}

/// Latencies as bars, a panel a setting of Figures 3, 6 to 10; and Figure 11 by time.
pub fn pictures(found: &[Found]) -> anyhow::Result<Vec<(String, String)>> {
    let mut pictures = Vec::new();
    for figure in ["3 and 6", "6", "7", "8", "9", "10", "4.5"] {
        for mix in ["HPC", "enterprise", "recorded"] {
            let of = || found.iter().filter(|found| (found.setting.figure, found.setting.mix) == (figure, mix));
            if of().next().is_some() {
                let name = format!("allocation-{}-{mix}.svg", figure.replace([' ', '.'], "-")).to_lowercase();
                let picture = of().fold(Picture::new(&name), |picture, found| picture.bars(latencies(found)));
                pictures.push((name.clone(), picture.file()?));
            }
        }
    }
    for found in found.iter().filter(|found| found.setting.figure == "11") {
        let name = "allocation-11.svg".to_owned();
        let picture =
            found.schemes.iter().fold(Picture::new(&name), |picture, (scheme, ..)| by_time(picture, found, *scheme));
        pictures.push((name, picture.file()?));
    }
    Ok(pictures)
}

fn latencies(found: &Found) -> Bars {
    let mut bars = Vec::new();
    for (index, source) in found.setting.case.sources.iter().enumerate() {
        for (scheme, _, outcome) in &found.schemes {
            let one = &outcome.applications[index];
            let percent = 100.0 * one.latency_ms / one.fair_ms;
            let name = format!("{}, {}", source.name, scheme.name());
            bars.push(Length { name, parts: vec![(percent, colour(*scheme))], text: format!("{percent:.1}") });
        }
        bars.push(Length::default());
    }
    Bars { caption: format!("{}: latency over the fair share's", found.title()), unit: "%", until: Some(140.0), bars }
}

fn by_time(picture: Picture, found: &Found, scheme: Scheme) -> Picture {
    let case = &found.setting.case;
    let Some(outcome) = found.outcome(scheme) else { return picture };
    let until_s = case.intervals as f64 * case.interval_s;
    let all = found.schemes.iter().flat_map(|(.., outcome)| &outcome.applications).flat_map(|one| &one.normalised);
    let y = Axis::linear("% of the fair share", 0.0..100.0 * all.fold(1.2, |most, ratio| ratio.max(most)));
    let colours = [Colour::BLUE, Colour::ORANGE];
    let mut plot = Plot::new(&format!("{}: {}", found.title(), scheme.name()), 200, Axis::seconds(until_s), y);
    for ((one, slo), colour) in outcome.applications.iter().zip(&case.slos).zip(colours) {
        let at_s = |index: usize| (case.warmup + index + 1) as f64 * case.interval_s;
        let points = one.normalised.iter().enumerate().map(|(index, ratio)| (at_s(index), 100.0 * ratio)).collect();
        let bound = 100.0 * (1.0 + slo);
        plot = plot.mark(Mark::line(points, colour, 2));
        plot = plot.mark(Mark::line(vec![(0.0, bound), (until_s, bound)], colour, 1));
    }
    let picture = outcome.applications.iter().zip(colours).fold(picture, |picture, (one, colour)| {
        if scheme == Scheme::Optimal { picture.entry(colour, &one.name) } else { picture }
    });
    picture.plot(plot)
}
