//! The pictures: how long each took to absorb and to drain each burst; requests per second and processor time.

use surgetank_report::chart::{Bar, Bars, Colour, Picture};
use surgetank_report::number::digits;

use super::table::{Row, loads, of_load, title};
use crate::inside::{Load, Shape};

const OURS: Colour = Colour::BLUE;
const THEIRS: Colour = Colour::ORANGE;
const RAW: Colour = Colour::GREY;
/// The second part of a bar is as much fainter than the first.
const FAINT: f64 = 0.35;

/// All pictures, with the names of their files.
pub fn pictures(rows: &[Row]) -> anyhow::Result<Vec<(&'static str, String)>> {
    let all = loads(rows);
    let bursts: Vec<&Load> = all.iter().filter(|load| load.shape == Shape::Burst && !load.busy).collect();
    let panels = |pick: fn(&Row) -> Vec<f64>, unit, end: &str| -> Vec<Bars> {
        let panel =
            |load: &&Load| Bars { caption: title(load) + end, unit, until: None, bars: bars(rows, **load, pick) };
        bursts.iter().map(panel).collect()
    };
    let times = panels(|row| vec![row.found.measured.run_s, row.found.drain_s], "s", ": absorbed, then drained");
    let costs = panels(|row| vec![row.found.busy_s_per_gib()], "s/GiB", ": processor time");
    let small = all.iter().filter(|load| !matches!(load.shape, Shape::Burst | Shape::Idle)).map(|load| {
        let (unit, pick): (_, fn(&Row) -> Vec<f64>) = match load.shape {
            Shape::SyncedWrites => ("µs", |row| vec![row.found.measured.write_us]),
            _ => ("IOPS", |row| vec![row.found.measured.iops]),
        };
        Bars { caption: title(load), unit, until: None, bars: bars(rows, *load, pick) }
    });
    let small: Vec<Bars> = small.chain(costs.into_iter().last()).collect();
    let mut pictures = Vec::new();
    for (name, panels) in [("bursts.svg", times), ("small.svg", small)] {
        if !panels.is_empty() {
            pictures.push((name, panels.into_iter().fold(Picture::new(name), Picture::bars).file()?));
        }
    }
    Ok(pictures)
}

fn bars(rows: &[Row], load: Load, pick: fn(&Row) -> Vec<f64>) -> Vec<Bar> {
    let bar = |row: &Row| {
        let colour = match row.peer {
            peer if peer.is_raw() => RAW,
            peer if peer.is_kernel_cache() => THEIRS,
            _ => OURS,
        };
        let values = pick(row);
        let text = values.iter().map(|value| digits(*value)).collect::<Vec<_>>().join(" + ");
        let parts = values.into_iter().zip([colour, colour.faint(FAINT)]).collect();
        Bar { name: row.peer.name().to_owned(), parts, text }
    };
    of_load(rows, load).into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::{sample, table};
    use super::*;
    use crate::inside::PeerKind;

    #[test]
    fn every_peer_is_in_the_picture() {
        let load = Load { shape: Shape::Burst, size_mib: 256, time_s: 0, cache_mib: 256, busy: false };
        let small = Load { shape: Shape::RandomWrites, ..load };
        let samples: Vec<_> = PeerKind::value_variants()
            .iter()
            .copied()
            .flat_map(|kind| [sample(kind, load, 2.0), sample(kind, small, 2.0)])
            .collect();
        let pictures = pictures(&table::rows(&samples)).unwrap();
        assert_eq!(pictures.len(), 2);
        for (name, picture) in pictures {
            assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{name}");
            for kind in PeerKind::value_variants() {
                assert!(picture.contains(kind.name()), "{name} lacks {}", kind.name());
            }
        }
    }
}
