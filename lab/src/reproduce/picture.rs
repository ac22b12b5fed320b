//! The pictures: I/O activity of each mode, what everything cost meanwhile, and LAMMPS's phases.

use surgetank_report::chart::{Axis, Bar, Bars, Colour, Mark, Picture, Plot, stairs};

use super::table::{Row, rows};
use crate::inside::modes::{Mode, Tick};
use crate::inside::reproduce::{Sample, Workload};

const APPLICATION: Colour = Colour::BLUE;
const BACKING: Colour = Colour::GREEN;
const CACHE: Colour = Colour::ORANGE;
const RENTED: Colour = Colour::GREY.faint(0.25);
const COMPUTE: Colour = Colour::GREY.faint(0.6);
const SYNC: Colour = Colour::PINK;

const PANEL_HEIGHT: u32 = 150;

/// All pictures, with the names of their files.
pub fn all(samples: &[Sample]) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut pictures = Vec::new();
    for (name, workload) in [("bonnie-activity.svg", Workload::Bonnie), ("lammps-activity.svg", Workload::Lammps)] {
        let rows = rows(samples, workload);
        if !rows.is_empty() {
            pictures.push((name, activity(name, &rows).file()?));
        }
    }
    let rows = rows(samples, Workload::Lammps);
    if rows.iter().any(|row| !row.found.work.phases.is_empty()) {
        let name = "lammps-phases.svg";
        pictures.push((name, phases(name, &rows).file()?));
    }
    Ok(pictures)
}

/// One panel a mode, the same axes in all.
fn activity(name: &str, rows: &[Row<'_>]) -> Picture {
    let until = rows.iter().map(|row| row.found.settled_s.max(row.found.completion_s)).fold(1.0, f64::max);
    let binned: Vec<Vec<Tick>> = rows.iter().map(|row| bins(&row.found.ticks)).collect();
    let all = binned.iter().flatten();
    let highest =
        all.map(|bin| (bin.read_mib + bin.written_mib).max(bin.backing_mib).max(bin.cache_mib)).fold(1.0, f64::max);
    let picture = Picture::new(name)
        .entry(APPLICATION, "application")
        .entry(BACKING, "backing disk")
        .entry(CACHE, "caching volume")
        .entry(RENTED, "a caching volume is rented");
    rows.iter().zip(&binned).fold(picture, |picture, (row, bins)| {
        let y = Axis::linear("MiB/s", 0.0..highest * 1.05);
        let plot = Plot::new(row.sample.mode.name(), PANEL_HEIGHT, Axis::seconds(until), y);
        picture.plot(plot.marks(activity_marks(row.sample.mode, bins)))
    })
}

fn activity_marks(mode: Mode, bins: &[Tick]) -> Vec<Mark> {
    let series = |value: fn(&Tick) -> f64| stairs(bins.iter().map(|bin| (bin.at_s, value(bin))));
    let rented = bins.chunk_by(|one, other| (one.rented_mib > 0.0) == (other.rented_mib > 0.0));
    let band = |bins: &[Tick]| match bins {
        [first, ..] if first.rented_mib > 0.0 => {
            Some(Mark::Band { from: first.at_s - BIN_S, until: bins[bins.len() - 1].at_s, colour: RENTED })
        }
        _ => None,
    };
    let mut marks: Vec<Mark> = rented.filter_map(band).collect();
    marks.push(Mark::Area { points: series(|bin| bin.read_mib + bin.written_mib), colour: APPLICATION });
    if mode.is_elastic() {
        marks.extend(Mark::moving(&series(|bin| bin.cache_mib), CACHE, 2));
    }
    if mode != Mode::StaticFast {
        marks.extend(Mark::moving(&series(|bin| bin.backing_mib), BACKING, 1));
    }
    marks
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

/// One bar a phase, from where computing began until the checkpoint was durable.
fn phases(name: &str, rows: &[Row<'_>]) -> Picture {
    let mut bars = Vec::new();
    for row in rows {
        for (index, phase) in row.found.work.phases.iter().enumerate() {
            let lengths = [phase.compute_s, phase.write_s, phase.sync_s];
            bars.push(Bar {
                name: format!("{}, phase {index}", row.sample.mode.name()),
                parts: lengths.into_iter().zip([COMPUTE, CACHE, SYNC]).collect(),
                text: lengths.map(|length| format!("{length:.1}")).join(" + "),
            });
        }
        bars.push(Bar::default());
    }
    Picture::new(name).entry(COMPUTE, "compute").entry(CACHE, "write").entry(SYNC, "until durable").bars(Bars {
        caption: "LAMMPS, phase by phase".to_owned(),
        unit: "s",
        until: None,
        bars,
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::table::tests::samples;
    use super::*;

    #[test]
    fn every_mode_is_in_every_picture() {
        let pictures = all(&samples()).unwrap();
        assert_eq!(pictures.len(), 3);
        for (name, picture) in pictures {
            assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{name}");
            for mode in Mode::value_variants() {
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
