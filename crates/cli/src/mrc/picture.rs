//! The curve as SVG, alone or in a page.

use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::answer::{Answer, Point, grouped};
use crate::demo::chart::{self, Area, INK, ink_text};
use crate::demo::report::{STYLE, escape, html_table};
use crate::failure::{Doing, Failure};

const HEIGHT: u32 = 420;

/// What a file's name asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Svg,
    Html,
}

impl Kind {
    /// # Errors
    /// If the name ends in neither.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("html" | "htm") => Ok(Self::Html),
            _ => Err(Failure::Invalid(format!(
                "cannot tell what {} shall be: let its name end in .svg or .html",
                path.display()
            ))),
        }
    }
}

/// Draws into a file, all of it or nothing.
///
/// # Errors
/// If it cannot be drawn or written.
pub fn write(path: &Path, answer: &Answer) -> Result<(), Failure> {
    let kind = Kind::of(path)?;
    let drawing = draw(answer, kind)?;
    let text = match kind {
        Kind::Svg => drawing,
        Kind::Html => page(answer, &drawing),
    };
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| drop(fs::remove_file(&part))).doing(|| format!("cannot write {}", path.display()))
}

fn draw(answer: &Answer, kind: Kind) -> Result<String, Failure> {
    let points = answer.ascending();
    let svg = chart::svg(HEIGHT, "Miss ratio over cache size", |area| {
        curve(area, &points).map_err(|error| error.to_string())
    })?;
    Ok(match kind {
        Kind::Html => svg,
        // Alone, there is no page whose colour it could take.
        Kind::Svg => svg.replace("currentColor", "#444444"),
    })
}

fn curve(area: &Area<'_>, points: &[Point]) -> Result<(), Box<dyn std::error::Error>> {
    let first = points.first().map_or(1, |point| point.size_blocks) as f64;
    let last = points.last().map_or(1, |point| point.size_blocks) as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_right(24)
        .margin_top(8)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((first..last.max(first * 2.0)).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_labels(9)
        .y_labels(6)
        .x_desc("cache size in blocks")
        .y_desc("miss ratio")
        .label_style(ink_text(12))
        .axis_desc_style(ink_text(12))
        .x_label_formatter(&|x| grouped(x.round() as u64))
        .y_label_formatter(&|y| format!("{y:.1}"))
        .draw()?;
    let at = |point: &Point| (point.size_blocks as f64, point.miss_ratio);
    let line = points.iter().map(at);
    chart.draw_series(LineSeries::new(line, chart::APPLICATION.stroke_width(2)))?;
    chart.draw_series(points.iter().map(|point| Circle::new(at(point), 3, chart::APPLICATION.filled())))?;
    Ok(())
}

fn page(answer: &Answer, drawing: &str) -> String {
    let row = |point: &Point| vec![grouped(point.size_blocks), grouped(point.hits), format!("{:.4}", point.miss_ratio)];
    let rows: Vec<Vec<String>> = answer.points.iter().map(row).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>surgetank mrc</title><style>{STYLE}</style></head><body>\n\
         <h1>Miss ratio over cache size</h1><p class=\"lead\">{}</p>\n{drawing}\n{}\n\
         <footer><p>surgetank {}</p></footer>\n</body></html>\n",
        escape(&answer.title()),
        html_table(&["blocks", "hits", "miss ratio"], &rows),
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::answer::tests::sample;

    #[test]
    fn any_curve_can_be_drawn() {
        for points in [&[][..], &[(0, 1.0)], &[(5, 0.3)], &[(3, 0.2), (1, 0.4), (u64::MAX, 0.0)]] {
            let answer = sample(points);
            let text = draw(&answer, Kind::Svg).unwrap();
            assert!(text.starts_with("<svg") && !text.contains("NaN") && !text.contains("currentColor"));
            let page = page(&answer, &draw(&answer, Kind::Html).unwrap());
            assert!(page.contains("a&lt;b") && !page.contains("a<b"));
            assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
        }
    }

    #[test]
    fn names_say_what_is_drawn() {
        assert_eq!(Kind::of(Path::new("a/b.svg")).unwrap(), Kind::Svg);
        assert_eq!(Kind::of(Path::new("a.html")).unwrap(), Kind::Html);
        assert_eq!(Kind::of(Path::new("a.png")).unwrap_err().status(), 2);
    }
}
