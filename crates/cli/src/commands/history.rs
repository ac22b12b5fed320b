//! `surgetank history`: the boosts of the past, over all runs of the daemon.

use std::path::PathBuf;

use clap::Args;
use surgetank_daemon::history::{DeviceHistory, HistoryReport, PastBoost};
use surgetank_model::text::line;
use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot};
use surgetank_report::number::{count, digits, plain, small_dollars, thousands};
use surgetank_report::{Failure, Page, Table, output};
use time::OffsetDateTime;

use super::control::{Daemon, unknown_device};

/// Height of a device's picture, in pixels.
const HEIGHT: u32 = 220;

/// Flags of `history`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank history
  surgetank history data --last 100
  surgetank history --json | jq '.devices[].boosts[-1]'
  surgetank history --out savings

Finished boosts of all runs of the daemon: why each began, what it moved, and what it saved and cost beside what was \
expected. AGBs are adjusted GB-seconds: GB × MB/s × seconds rented.")]
pub struct Arguments {
    /// Name of the device; all devices, if none is named
    device: Option<String>,
    /// So many boosts of each device, the newest
    #[arg(long, value_name = "BOOSTS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
    /// Write history.html and history.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let mut report = self.daemon.ask(|client| client.history(self.last as usize))?;
        if let Some(device) = &self.device {
            if !report.devices.iter().any(|found| found.name == *device) {
                return Err(unknown_device(device, report.devices.iter().map(|found| found.name.as_str())));
            }
            report.devices.retain(|found| found.name == *device);
        }
        let mut text = people(&report);
        if let Some(directory) = &self.out {
            let (page, json) = (page(&report)?, output::json(&report)?);
            let path = output::write_into(directory, ("history.html", &page), &[("history.json", &json)])?;
            text.push_str(&format!("\n\n{}", path.display()));
        }
        self.daemon.answer(&report, || text)
    }
}

/// "2026-11-24 18:03", UTC.
fn moment(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_or_else(|_| "unknown".to_owned(), |at| format!("{} {:02}:{:02}", at.date(), at.hour(), at.minute()))
}

fn seconds(time_s: Option<f64>) -> String {
    time_s.map_or_else(|| "-".to_owned(), digits)
}

fn table(boosts: &[PastBoost]) -> Table {
    let row = |boost: &PastBoost| {
        [
            moment(boost.ended_unix_ms),
            why(boost),
            cache(boost),
            plain(boost.written_gib),
            plain(boost.drained_gib),
            seconds(boost.attach_s),
            seconds(boost.absorb_s),
            seconds(boost.drain_s),
            digits(boost.rented_s),
            seconds(boost.expected_saved_s),
            digits(boost.saved_s),
            boost.expected_cost_agbs.map_or_else(|| "-".to_owned(), thousands),
            boost.cost_agbs.map_or_else(|| "unknown".to_owned(), thousands),
            boost.cost_usd.map_or_else(|| "unknown".to_owned(), small_dollars),
        ]
    };
    Table::of("ended (UTC)|why it began|cache GiB|written GiB|drained GiB|attach s|absorb s|drain s|rented s|saved s: expected|was|AGBs: expected|was|USD")
        .words(2)
        .with(boosts.iter().map(row))
}

/// Why a boost began. What was expected of it has columns of its own.
fn why(boost: &PastBoost) -> String {
    let cause = boost.cause.as_deref().unwrap_or("an earlier run began it");
    let cause = cause.split_once("; it is expected to save ").map_or(cause, |(why, _)| why);
    match (&boost.refused, boost.attempts) {
        (None, _) => line(cause).into_owned(),
        (Some(why), None) => line(&format!("{cause}; refused: {why}")).into_owned(),
        (Some(why), Some(attempts)) => line(&format!("{cause}; refused {attempts} times: {why}")).into_owned(),
    }
}

/// GiB of a boost's caching volume, what it grew from, and over how many volumes it was striped.
fn cache(boost: &PastBoost) -> String {
    let first = boost.first_cache_gib.map_or_else(String::new, |first| format!("{} to ", plain(first)));
    let over = boost.volumes.map_or_else(String::new, |volumes| format!(" over {volumes}"));
    format!("{first}{}{over}", plain(boost.cache_gib))
}

/// What the boosts of a device come to, in one sentence.
fn summary(device: &DeviceHistory) -> String {
    let boosts = &device.boosts;
    let unused = boosts.iter().filter(|boost| boost.attach_s.is_none()).count();
    let sum = |pick: fn(&PastBoost) -> f64| boosts.iter().map(pick).fold(0.0, |sum, more| sum + more);
    let known = |pick: fn(&PastBoost) -> Option<f64>| boosts.iter().map(pick).sum::<Option<f64>>();
    let cost = match (known(|boost| boost.cost_agbs), known(|boost| boost.cost_usd)) {
        (Some(agbs), Some(usd)) => format!("{} AGBs or {}", thousands(agbs), small_dollars(usd)),
        (Some(agbs), None) => format!("{} AGBs", thousands(agbs)),
        (None, _) => "an unknown price".to_owned(),
    };
    let mut text = format!(
        "{} saved {} s of waiting for {cost}; {} GiB were written meanwhile, and {} GiB drained",
        count(boosts.len(), "boost"),
        digits(sum(|boost| boost.saved_s)),
        plain(sum(|boost| boost.written_gib)),
        plain(sum(|boost| boost.drained_gib)),
    );
    let grew = boosts.iter().filter(|boost| boost.first_cache_gib.is_some()).count();
    if grew > 0 {
        text.push_str(&format!("; the caching volume of {grew} of them grew, and each size is billed for its time"));
    }
    if unused > 0 {
        text.push_str(&format!("; {unused} of them never came into use"));
    }
    if device.unreadable > 0 {
        text.push_str(&format!("; {} entries of the history cannot be read", device.unreadable));
    }
    text
}

fn people(report: &HistoryReport) -> String {
    let device = |device: &DeviceHistory| {
        let name = line(&device.name);
        match (device.boosts.is_empty(), device.unreadable) {
            (true, 0) => format!("{name}: no boost has ended yet"),
            (true, _) => format!("{name}: {}", summary(device)),
            (false, _) => format!("{name}: {}\n{}", summary(device), table(&device.boosts)),
        }
    };
    report.devices.iter().map(device).collect::<Vec<_>>().join("\n\n")
}

fn page(report: &HistoryReport) -> Result<String, Failure> {
    let boosts: usize = report.devices.iter().map(|device| device.boosts.len()).sum();
    let mut page = Page::new(
        "surgetank history",
        "Boosts so far",
        &format!("{} of {}.", count(boosts, "boost"), count(report.devices.len(), "device")),
    );
    for device in &report.devices {
        page = page.section(&device.name).paragraph(&format!("{}.", summary(device)));
        if !device.boosts.is_empty() {
            page = page.picture(&picture(device))?.table(&table(&device.boosts));
        }
    }
    Ok(page.html(". AGBs: size in GB × reserved bandwidth in MB/s × seconds rented."))
}

/// What was written in each boost and how much of the cache it took; below, what it was expected to save and did.
fn picture(device: &DeviceHistory) -> Picture {
    let boosts = &device.boosts;
    let numbered =
        |pick: fn(&PastBoost) -> f64| (0u32..).map(f64::from).zip(boosts.iter().map(pick)).collect::<Vec<_>>();
    let highest = boosts.iter().flat_map(|boost| [boost.written_gib, boost.cache_gib]).fold(1e-3, f64::max);
    let dots = |points: Vec<(f64, f64)>, colour, radius| {
        points.into_iter().map(move |at| Mark::Dot { at, colour, radius }).collect::<Vec<_>>()
    };
    let marks = [
        dots(numbered(|boost| boost.written_gib), Colour::BLUE, 4),
        dots(numbered(|boost| boost.high_water_gib), Colour::ORANGE, 3),
    ];
    let cache = Mark::line(numbered(|boost| boost.cache_gib), Colour::GREY, 1);
    // Between two boosts there is none.
    let number = |at: f64| if at.fract() == 0.0 { format!("{:.0}", at + 1.0) } else { String::new() };
    let x = || Axis::linear("", -0.5..(boosts.len() as f64 - 0.5)).format(number);
    let moved = Plot::new(
        "GiB of each boost, the oldest first",
        HEIGHT,
        x(),
        Axis::linear("GiB", 0.0..highest * 1.1).format(plain),
    );
    let moved = moved.mark(cache).marks(marks.into_iter().flatten());
    let expected = |boost: &PastBoost| boost.expected_saved_s.unwrap_or_default();
    let most = boosts.iter().map(|boost| boost.saved_s.max(expected(boost))).fold(1e-3, f64::max);
    let saved = Plot::new("seconds of waiting saved", HEIGHT, x(), Axis::linear("s", 0.0..most * 1.1).format(plain))
        .marks(dots(numbered(expected).into_iter().filter(|(_, expected)| *expected > 0.0).collect(), Colour::GREY, 5))
        .marks(dots(numbered(|boost| boost.saved_s), Colour::GREEN, 3));
    Picture::new(&format!("boosts of {}", device.name))
        .entry(Colour::BLUE, "written while it was in use")
        .entry(Colour::ORANGE, "most of the caching volume in use")
        .entry(Colour::GREEN, "time saved")
        .entry(Colour::GREY, "size of the caching volume, as large as it became; time that was expected to be saved")
        .plot(moved)
        .plot(saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boost(unix_ms: u64) -> PastBoost {
        PastBoost {
            ended_unix_ms: unix_ms,
            cause: Some("it was late; it is expected to save 98 s of waiting for 66000 AGBs".into()),
            cache_gib: 10.0,
            attach_s: Some(12.5),
            written_gib: 4.0,
            drained_gib: 3.0,
            saved_s: 25.0,
            cost_agbs: Some(76_800.0),
            ..PastBoost::default()
        }
    }

    #[test]
    fn people_see_each_boost_and_what_all_come_to() {
        let unused = PastBoost { attach_s: None, ..boost(1_000) };
        let grown = PastBoost { first_cache_gib: Some(2.0), mean_cache_gib: Some(6.0), ..boost(1_764_007_380_000) };
        let data = DeviceHistory { name: "data".into(), boosts: vec![unused, grown], unreadable: 1 };
        let report = HistoryReport { devices: vec![data, DeviceHistory { name: "idle".into(), ..Default::default() }] };
        let text = people(&report);
        for part in [
            "data: 2 boosts saved 50.0 s of waiting for 153,600 AGBs; 8 GiB were written meanwhile, and 6 GiB drained; the caching \
             volume of 1 of them grew, and each size is billed for its time; 1 of them never came into use; 1 entries",
            "1970-01-01 00:00",
            "2025-11-24 18:03",
            "it was late ",
            "2 to 10",
            "idle: no boost has ended yet",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let page = page(&report).unwrap();
        assert!(page.contains("<svg") && page.contains("153,600 AGBs"), "{page}");
    }

    #[test]
    fn no_time_is_too_late_to_be_shown() {
        assert_eq!(moment(u64::MAX), "unknown");
        assert_eq!(moment(0), "1970-01-01 00:00");
    }
}
