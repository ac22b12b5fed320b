//! The pictures: I/O activity of each mode, what everything cost meanwhile, and LAMMPS's phases.

use plotters::prelude::*;

use super::table::{Row, rows};
use crate::inside::reproduce::{Mode, Sample, Tick, Workload};
use crate::picture::{Area, BLUE, Drawn, GREY, ORANGE, SKY, VERMILION, svg};

const APPLICATION: RGBColor = SKY;
const BACKING: RGBColor = BLUE;
const CACHE: RGBColor = ORANGE;
const RENTED: RGBColor = GREY;
const SYNC: RGBColor = VERMILION;

const LEGEND_HEIGHT: u32 = 28;
const PANEL_HEIGHT: u32 = 150;
const BAR_HEIGHT: u32 = 20;

/// All pictures, with the names of their files.
///
/// # Errors
/// If one cannot be drawn.
pub fn all(samples: &[Sample]) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut pictures = Vec::new();
    for (name, workload) in [
        ("bonnie-activity.svg", Workload::Bonnie),
        ("lammps-activity.svg", Workload::Lammps),
        ("checkpoints-activity.svg", Workload::Checkpoints),
    ] {
        let rows = rows(samples, workload);
        if !rows.is_empty() {
            let height = LEGEND_HEIGHT + PANEL_HEIGHT * rows.len() as u32;
            pictures.push((name, svg(name, height, |area| activity(area, &rows))?));
        }
    }
    let rows = rows(samples, Workload::Lammps);
    let phases: usize = rows.iter().map(|row| row.found.phases.len() + 1).sum();
    if phases > 0 {
        let (name, height) = ("lammps-phases.svg", 2 * LEGEND_HEIGHT + BAR_HEIGHT * phases as u32);
        pictures.push((name, svg(name, height, |area| phase_bars(area, &rows))?));
    }
    Ok(pictures)
}

/// A row of coloured squares with what they mean.
fn legend(area: &Area<'_>, entries: &[(&str, RGBAColor)]) -> Drawn {
    let mut x = 60;
    for (name, colour) in entries {
        area.draw(&Rectangle::new([(x, 8), (x + 14, 20)], colour.filled()))?;
        area.draw(&Text::new(*name, (x + 20, 8), ("sans-serif", 13)))?;
        x += 44 + 7 * i32::try_from(name.len()).unwrap_or(0);
    }
    Ok(())
}

/// One panel a mode, the same axes in all.
fn activity(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    let (top, rest) = area.split_vertically(LEGEND_HEIGHT);
    legend(
        &top,
        &[
            ("application", APPLICATION.mix(0.5)),
            ("backing disk", BACKING.into()),
            ("caching volume", CACHE.into()),
            ("a caching volume is rented", RENTED.mix(0.25)),
        ],
    )?;
    let until = rows.iter().map(|row| row.found.settled_s.max(row.found.completion_s)).fold(1.0, f64::max);
    let binned: Vec<Vec<Tick>> = rows.iter().map(|row| bins(&row.found.ticks)).collect();
    let all = binned.iter().flatten();
    let highest =
        all.map(|bin| (bin.read_mib + bin.written_mib).max(bin.backing_mib).max(bin.cache_mib)).fold(1.0, f64::max);
    for ((panel, row), bins) in rest.split_evenly((rows.len(), 1)).iter().zip(rows).zip(&binned) {
        let mode = row.sample.mode;
        let mut chart = ChartBuilder::on(panel)
            .margin_left(8)
            .margin_right(14)
            .margin_top(2)
            .caption(mode.name(), ("sans-serif", 14))
            .x_label_area_size(24)
            .y_label_area_size(54)
            .build_cartesian_2d(0.0..until, 0.0..highest * 1.05)?;
        for rented in bins.chunk_by(|one, other| (one.rented_mib > 0.0) == (other.rented_mib > 0.0)) {
            if let (Some(first), Some(last)) = (rented.first(), rented.last())
                && first.rented_mib > 0.0
            {
                let corners = [(first.at_s - BIN_S, 0.0), (last.at_s, highest * 1.05)];
                chart.draw_series([Rectangle::new(corners, RENTED.mix(0.25).filled())])?;
            }
        }
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .y_labels(4)
            .x_labels(12)
            .y_desc("MiB/s")
            .x_label_formatter(&|x| format!("{x:.0} s"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        let moved = stairs(bins, |bin| bin.read_mib + bin.written_mib);
        chart.draw_series(AreaSeries::new(moved, 0.0, APPLICATION.mix(0.5)))?;
        if mode.is_elastic() {
            chart.draw_series(LineSeries::new(stairs(bins, |bin| bin.cache_mib), CACHE.stroke_width(2)))?;
        }
        if mode != Mode::StaticFast {
            chart.draw_series(LineSeries::new(stairs(bins, |bin| bin.backing_mib), BACKING.stroke_width(1)))?;
        }
    }
    Ok(())
}

/// The pictures' resolution.
const BIN_S: f64 = 1.0;

/// Ticks in bins of a second, their bytes as MiB/s.
fn bins(ticks: &[Tick]) -> Vec<Tick> {
    let last = ticks.last().map_or(0.0, |tick| tick.at_s);
    let mut bins: Vec<Tick> = (1..=(last / BIN_S).ceil() as usize)
        .map(|index| Tick { at_s: index as f64 * BIN_S, ..Tick::default() })
        .collect();
    for tick in ticks {
        let index = ((tick.at_s / BIN_S).ceil() as usize).saturating_sub(1);
        if let Some(bin) = bins.get_mut(index) {
            bin.read_mib += tick.read_mib / BIN_S;
            bin.written_mib += tick.written_mib / BIN_S;
            bin.backing_mib += tick.backing_mib / BIN_S;
            bin.cache_mib += tick.cache_mib / BIN_S;
            bin.rented_mib = bin.rented_mib.max(tick.rented_mib);
        }
    }
    bins
}

/// Bins as stairs: each says what its second's average was.
fn stairs(bins: &[Tick], value: impl Fn(&Tick) -> f64) -> Vec<(f64, f64)> {
    bins.iter().flat_map(|bin| [(bin.at_s - BIN_S, value(bin)), (bin.at_s, value(bin))]).collect()
}

/// One bar a phase, from where computing began until the checkpoint was durable.
fn phase_bars(area: &Area<'_>, rows: &[Row<'_>]) -> Drawn {
    let (top, rest) = area.split_vertically(LEGEND_HEIGHT);
    let parts = [("compute", RENTED.mix(0.6)), ("write", CACHE.into()), ("until durable", SYNC.into())];
    legend(&top, &parts)?;
    let phases = rows.iter().flat_map(|row| &row.found.phases);
    let longest = phases.map(|phase| phase.compute_s + phase.write_s + phase.sync_s).fold(1.0, f64::max) * 1.15;
    let count = rows.iter().map(|row| row.found.phases.len() + 1).sum::<usize>() as f64;
    let mut chart = ChartBuilder::on(&rest)
        .margin_left(230)
        .margin_right(14)
        .x_label_area_size(24)
        .build_cartesian_2d(0.0..longest, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .draw()?;
    let (_, above) = rest.get_base_pixel();
    let mut y = count;
    for row in rows {
        for (index, phase) in row.found.phases.iter().enumerate() {
            y -= 1.0;
            let mut from = 0.0;
            let lengths = [phase.compute_s, phase.write_s, phase.sync_s];
            for (length, (_, colour)) in lengths.iter().zip(&parts) {
                chart.draw_series([Rectangle::new([(from, y + 0.1), (from + length, y + 0.9)], colour.filled())])?;
                from += length;
            }
            let told = lengths.map(|length| format!("{length:.1}")).join(" + ");
            chart.draw_series([Text::new(told, (from + longest * 0.005, y + 0.8), ("sans-serif", 11))])?;
            let (_, at) = chart.backend_coord(&(0.0, y + 0.5));
            let name = format!("{}, phase {index}", row.sample.mode.name());
            rest.draw(&Text::new(name, (6, at - above - 6), ("sans-serif", 12)))?;
        }
        y -= 1.0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::samples;
    use super::*;

    #[test]
    fn every_mode_is_in_every_picture() {
        let pictures = all(&samples()).unwrap();
        assert_eq!(pictures.len(), 3);
        for (name, picture) in pictures {
            assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{name}");
            for mode in Mode::ALL {
                assert!(
                    picture.contains(&mode.name().replace('\'', "&apos;")) || picture.contains(mode.name()),
                    "{name}"
                );
            }
        }
        assert!(all(&[]).unwrap().is_empty());
    }

    #[test]
    fn bins_are_averages_of_a_second() {
        let tick = |at_s| Tick { at_s, cache_mib: 10.0, ..Tick::default() };
        let bins = bins(&[tick(0.25), tick(0.5), tick(1.5), tick(2.0)]);
        assert_eq!(bins.iter().map(|bin| bin.cache_mib).collect::<Vec<_>>(), [20.0, 20.0]);
    }
}
