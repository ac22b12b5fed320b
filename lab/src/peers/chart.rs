//! The pictures: how long each took to absorb and to drain each burst; requests per second and processor time.

use plotters::prelude::*;

use super::table::{Row, loads, of_load, title};
use crate::inside::{Load, Shape};
use crate::picture::{Area, BLUE, Drawn, GREY, ORANGE, svg};

const OURS: RGBColor = BLUE;
const THEIRS: RGBColor = ORANGE;
const RAW: RGBColor = GREY;

const BAR_HEIGHT: u32 = 26;
const HEAD_HEIGHT: u32 = 64;

/// A bar of a picture: its name, its parts, each lighter than the one before.
struct Bar {
    name: &'static str,
    colour: RGBColor,
    parts: Vec<f64>,
}

struct Panel {
    title: String,
    unit: &'static str,
    bars: Vec<Bar>,
}

/// All pictures, with the names of their files.
///
/// # Errors
/// If one cannot be drawn.
pub fn pictures(rows: &[Row]) -> anyhow::Result<Vec<(&'static str, String)>> {
    let all = loads(rows);
    let bursts: Vec<&Load> = all.iter().filter(|load| load.shape == Shape::Burst).collect();
    let panels = |pick: fn(&Row) -> Vec<f64>, unit, end: &str| -> Vec<Panel> {
        let panel = |load: &&Load| Panel { title: title(load) + end, unit, bars: bars(rows, **load, pick) };
        bursts.iter().map(panel).collect()
    };
    let times = panels(|row| vec![row.found.measured.run_s, row.found.drain_s], "s", ": absorbed, then drained");
    let costs = panels(|row| vec![row.busy_s_per_gib()], "s/GiB", ": processor time");
    let small = all.iter().filter(|load| !matches!(load.shape, Shape::Burst | Shape::Idle)).map(|load| {
        let (unit, pick): (_, fn(&Row) -> Vec<f64>) = match load.shape {
            Shape::SyncedWrites => ("µs", |row| vec![row.found.measured.write_us]),
            _ => ("IOPS", |row| vec![row.found.measured.iops]),
        };
        Panel { title: title(load), unit, bars: bars(rows, *load, pick) }
    });
    let small: Vec<Panel> = small.chain(costs.into_iter().last()).collect();
    let mut pictures = Vec::new();
    for (name, panels) in [("bursts.svg", times), ("small.svg", small)] {
        if !panels.is_empty() {
            pictures.push((name, picture(name, &panels)?));
        }
    }
    Ok(pictures)
}

fn bars(rows: &[Row], load: Load, pick: fn(&Row) -> Vec<f64>) -> Vec<Bar> {
    let colour = |row: &Row| match row.peer {
        peer if peer.is_raw() => RAW,
        peer if peer.is_kernel_cache() => THEIRS,
        _ => OURS,
    };
    of_load(rows, load)
        .into_iter()
        .map(|row| Bar { name: row.peer.name(), colour: colour(row), parts: pick(row) })
        .collect()
}

fn picture(name: &str, panels: &[Panel]) -> anyhow::Result<String> {
    let heights: Vec<u32> = panels.iter().map(|panel| HEAD_HEIGHT + BAR_HEIGHT * panel.bars.len() as u32).collect();
    svg(name, heights.iter().sum(), |area| {
        let mut rest = area.clone();
        for (panel, height) in panels.iter().zip(&heights) {
            let (top, below) = rest.split_vertically(*height);
            draw(&top, panel)?;
            rest = below;
        }
        Ok(())
    })
}

fn draw(area: &Area<'_>, panel: &Panel) -> Drawn {
    let longest = panel.bars.iter().map(|bar| bar.parts.iter().sum::<f64>()).fold(1e-9, f64::max) * 1.12;
    let count = panel.bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_left(150)
        .margin_right(12)
        .caption(&panel.title, ("sans-serif", 14))
        .x_label_area_size(24)
        .build_cartesian_2d(0.0..longest, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_labels(8)
        .x_label_formatter(&|x| format!("{x:.0} {}", panel.unit))
        .draw()?;
    for (index, bar) in panel.bars.iter().enumerate() {
        let top = count - index as f64;
        let mut from = 0.0;
        for (part, value) in bar.parts.iter().enumerate() {
            let shade = bar.colour.mix(if part == 0 { 1.0 } else { 0.35 });
            chart.draw_series([Rectangle::new([(from, top - 0.85), (from + value, top - 0.15)], shade.filled())])?;
            from += value;
        }
        let number = bar.parts.iter().map(|part| round(*part)).collect::<Vec<_>>().join(" + ");
        chart.draw_series([Text::new(number, (from + longest * 0.005, top - 0.3), ("sans-serif", 12))])?;
        let (_, y) = chart.backend_coord(&(0.0, top - 0.5));
        let (_, above) = area.get_base_pixel();
        area.draw(&Text::new(bar.name, (6, y - above - 6), ("sans-serif", 13)))?;
    }
    Ok(())
}

fn round(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::super::{sample, table};
    use super::*;
    use crate::inside::Kind;

    #[test]
    fn every_peer_is_in_the_picture() {
        let load = Load { shape: Shape::Burst, size_mib: 256, time_s: 0, cache_mib: 256 };
        let small = Load { shape: Shape::RandomWrites, ..load };
        let samples: Vec<_> =
            Kind::ALL.into_iter().flat_map(|kind| [sample(kind, load, 2.0), sample(kind, small, 2.0)]).collect();
        let pictures = pictures(&table::rows(&samples)).unwrap();
        assert_eq!(pictures.len(), 2);
        for (name, picture) in pictures {
            assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{name}");
            for kind in Kind::ALL {
                assert!(picture.contains(kind.name()), "{name} lacks {}", kind.name());
            }
        }
    }
}
