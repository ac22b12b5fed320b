//! The commands that talk to a running daemon over its control socket.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use surgetank_daemon::config::Config;
use surgetank_daemon::control::{Client, ClientError, Request};
use surgetank_daemon::read_caches::status::ReadCacheStatus;
use surgetank_daemon::status::{CachingStatus, DevicePhase, DeviceStatus, StatusReport};
use surgetank_model::Bytes;
use surgetank_model::text::line;
use surgetank_model::toml_error::nearest;
use surgetank_model::units::Span;
use surgetank_report::number::{duration, small_dollars, thousands};
use surgetank_report::{Failure, Table, output};

use crate::commands::whereabouts::{self, Whereabouts};

/// Between two looks of `--wait`.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// So many looks in a row must find a device in trouble, with nothing under way, before `--wait` stops waiting: what was just
/// asked for takes a moment to begin.
const STUCK_LOOKS: u32 = 15;

/// Which daemon, and how to answer.
#[derive(Debug, Args)]
pub struct Daemon {
    #[command(flatten)]
    whereabouts: Whereabouts,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl Daemon {
    /// The daemon's client, and its answer to a request.
    pub fn ask<T>(&self, request: impl Fn(&Client) -> Result<T, ClientError>) -> Result<T, Failure> {
        let sockets = self.whereabouts.sockets()?;
        request(&Client::new(&sockets.control)).map_err(|error| whereabouts::failure(&error, &sockets))
    }

    /// Where it is.
    pub const fn whereabouts(&self) -> &Whereabouts {
        &self.whereabouts
    }

    pub fn answer(&self, document: &impl Serialize, people: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { output::print_json(document) } else { output::print(&people()) }
    }
}

/// Flags of `status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank status
  surgetank status --json | jq '.devices[].phase'")]
pub struct Status {
    #[command(flatten)]
    daemon: Daemon,
}

impl Status {
    pub fn run(&self) -> Result<(), Failure> {
        let report = self.daemon.ask(Client::status)?;
        self.daemon.answer(&report, || people(&report))
    }
}

/// A size in the unit that suits it.
fn size(gib: f64) -> String {
    if gib < 1.0 { format!("{:.0} MiB", gib * 1024.0) } else { format!("{gib:.1} GiB") }
}

/// The caching volume's size, and over how many volumes it is striped.
fn cache(caching: &CachingStatus) -> String {
    let over = if caching.volumes > 1 { format!(" over {}", caching.volumes) } else { String::new() };
    size(caching.size_gib) + &over
}

fn people(report: &StatusReport) -> String {
    let mut table =
        Table::new(["device", "address", "phase", "MiB/s", "of backing", "cache", "dirty", "boosts", "AGBs", "USD"]);
    for device in &report.devices {
        let caching = device.caching.as_ref();
        table.row([
            line(&device.name).into_owned(),
            if device.address.is_empty() { "not served".into() } else { line(&device.address).into_owned() },
            device.phase.to_string(),
            format!("{:.1}", device.throughput_mib_s),
            format!("{:.0} %", device.utilization * 100.0),
            caching.map_or_else(|| "none".into(), cache),
            caching.map_or_else(|| "-".into(), |caching| size(caching.dirty_gib)),
            device.boosts.to_string(),
            format!("{:.0}", device.cost_agbs),
            device.cost_usd.map_or_else(|| "-".into(), |usd| format!("{usd:.4}")),
        ]);
    }
    let mut text = table.to_string();
    for device in &report.devices {
        let name = line(&device.name);
        if let Some(reason) = &device.reason {
            let retry = device.retry_s.map(|seconds| format!(" (tries again in {seconds:.0} s)")).unwrap_or_default();
            text.push_str(&format!("\n{name}: {}{retry}", line(reason)));
        }
        if let Some(left) = device.announced_s {
            text.push_str(&format!("\n{name}: a burst is announced; its boost begins in {}", duration(left)));
        }
        if let Some(why) = device.caching.as_ref().and_then(|caching| caching.why.as_ref()) {
            text.push_str(&format!("\n{name}: the boost began because {}", line(why)));
        }
        if let Some(growth) = device.caching.as_ref().and_then(|caching| caching.growth.as_ref()) {
            text.push_str(&format!("\n{name}: {}", line(growth)));
        }
        if let Some(cache) = &device.read_cache {
            text.push_str(&read_cache(&name, "read cache", cache));
            if let Some(level2) = &cache.level2 {
                text.push_str(&read_cache(&name, "read cache's second level", level2));
            }
        }
        if device.lost_bytes > 0 {
            let ranges = match device.lost_range_count {
                // While they are being read back.
                0 => String::new(),
                1 => " in 1 range".to_owned(),
                count => format!(" in {count} ranges"),
            };
            text.push_str(&format!(
                "\n{name}: {} bytes are lost{ranges} and answer with an error until they are overwritten",
                device.lost_bytes
            ));
        }
    }
    for warning in &report.warnings {
        text.push_str(&format!("\nwarning: {}", line(warning)));
    }
    text
}

fn read_cache(device: &str, what: &str, cache: &ReadCacheStatus) -> String {
    let (serving, members) = (cache.serving, cache.members);
    let mut text = match cache.members {
        0 => format!("\n{device}: the volumes of its former {what} are being deleted"),
        _ => format!(
            "\n{device}: the {what} has {serving} of {members} members in use and holds {} of {}",
            size(cache.cached_gib),
            size(cache.size_gib)
        ),
    };
    if let Some(ratio) = cache.hit_ratio {
        text.push_str(&format!("; {:.1} % of what was read came from it", ratio * 100.0));
    }
    if let Some(share) = &cache.share {
        text.push_str(&format!(
            "; of what all share it may have {}, an equal part is {}",
            size(share.size_gib),
            size(share.fair_gib)
        ));
        if share.boosts_gib > 0.0 {
            text.push_str(&format!(" and boosts have {}", size(share.boosts_gib)));
        }
        if let (Some(latency), Some(bound), Some(met)) = (share.latency_ms, share.bound_ms, share.slo_met) {
            let kept = if met { "as promised" } else { "more than promised" };
            text.push_str(&format!("; its reads take {latency:.2} ms of {bound:.2} ms, {kept}"));
        }
        if let Some(reason) = &share.reason {
            text.push_str(&format!("; {}", line(reason)));
        }
    }
    let money = |usd: Option<f64>| usd.map(small_dollars);
    match (cache.cost_agbs.map(thousands), money(cache.cost_usd), money(cache.usd_per_hour)) {
        (Some(agbs), Some(usd), Some(hour)) => {
            text.push_str(&format!("; its volumes have cost {agbs} AGBs or {usd}, and cost {hour} an hour"));
        }
        (Some(agbs), ..) => text.push_str(&format!("; its volumes have cost {agbs} AGBs")),
        (None, Some(usd), Some(hour)) => {
            text.push_str(&format!("; its volumes have cost {usd}, and cost {hour} an hour"));
        }
        (None, ..) => {}
    }
    if let Some(reason) = &cache.reason {
        let retry = cache.retry_s.map(|seconds| format!(" (tries again in {seconds:.0} s)")).unwrap_or_default();
        text.push_str(&format!("\n{device}: of its {what} a volume is missing: {}{retry}", line(reason)));
    }
    text
}

/// A name that none of the daemon's devices has.
pub fn unknown_device<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Failure {
    let remedy = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("this daemon has {}", known.collect::<Vec<_>>().join(", ")),
    };
    Failure::Invalid(format!("there is no device \"{name}\": {remedy}"))
}

/// A device of a daemon, and whether to wait.
#[derive(Debug, Args)]
pub struct Target {
    /// Name of the device
    device: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl Target {
    fn look(&self) -> Result<DeviceStatus, Failure> {
        let report = self.daemon.ask(Client::status)?;
        if let Some(device) = report.devices.iter().find(|device| device.name == self.device) {
            return Ok(device.clone());
        }
        Err(unknown_device(&self.device, report.devices.iter().map(|device| device.name.as_str())))
    }

    /// Asks, waits until the device is where `until` says, and answers its status.
    fn ask(&self, request: &Request, done: &str, until: Option<fn(&DeviceStatus) -> bool>) -> Result<(), Failure> {
        self.look()?;
        self.daemon.ask(|client| client.ask(request))?;
        let mut status = self.look()?;
        if let Some(until) = until {
            let mut stuck = 0;
            while !until(&status) {
                // What is under way may take its time; what waits for another try, or for somebody, is not waited for.
                let waits = status.retry_s.is_some() || status.caching.is_none();
                stuck = if status.phase == DevicePhase::Degraded && waits { stuck + 1 } else { 0 };
                if stuck > STUCK_LOOKS {
                    let reason = status.reason.unwrap_or_else(|| "see \"surgetank status\"".into());
                    return Err(Failure::Failed(format!("device {} is degraded: {reason}", self.device)));
                }
                if let Some(reason) = ended_because(&status) {
                    return Err(Failure::Failed(format!("device {}: {reason}", self.device)));
                }
                std::thread::sleep(LOOK_AGAIN);
                status = self.look()?;
            }
        }
        self.daemon.answer(&status, || format!("{}: {done}; phase {}", self.device, status.phase))
    }
}

/// Why what was asked for is not under way any more: nothing is rented, and nothing will be.
fn ended_because(status: &DeviceStatus) -> Option<&str> {
    let over = status.phase == DevicePhase::Idle && status.announced_s.is_none();
    status.reason.as_deref().filter(|_| over)
}

/// What a burst writes, which is something.
fn burst_size(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes::ZERO) => {
            Err("a burst writes something: write its size, such as \"8 GiB\", or leave it out".to_owned())
        }
        size => size.map_err(|error| error.to_string()),
    }
}

/// Flags of `boost`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank boost data
  surgetank boost data --wait && run-the-checkpoint
  surgetank boost data --for \"8 GiB\" --in \"20 s\"

The device boosts before the burst begins, so the burst does not wait for a volume. With --in the volume is rented as \
late as attaching has taken so far allows; with --for it is as large as the burst needs.")]
pub struct Boost {
    #[command(flatten)]
    target: Target,
    /// What the burst writes: the caching volume has the size for it
    #[arg(long = "for", value_name = "SIZE", value_parser = burst_size)]
    burst: Option<Bytes>,
    /// When the burst begins; now, if it is not said
    #[arg(long = "in", value_name = "TIME")]
    starts_in: Option<Span>,
    /// Return when the caching volume absorbs
    #[arg(long)]
    wait: bool,
}

impl Boost {
    pub fn run(&self) -> Result<(), Failure> {
        let milliseconds = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Boost {
            device: self.target.device.clone(),
            burst_bytes: self.burst.map(Bytes::get),
            starts_in_ms: self.starts_in.map(milliseconds),
        };
        let done = if self.starts_in.is_some() { "the burst is announced" } else { "boosting" };
        self.target.ask(&request, done, self.wait.then_some(|status| status.phase == DevicePhase::Boost))
    }
}

fn is_idle(status: &DeviceStatus) -> bool {
    status.phase == DevicePhase::Idle && status.caching.is_none()
}

/// Flags of `drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank drain data
  surgetank drain data --wait

Ends the boost now: dirty data drain to the backing volume with priority, then the caching volume is deleted.")]
pub struct Drain {
    #[command(flatten)]
    target: Target,
    /// Return when everything is on the backing volume and the caching volume is deleted
    #[arg(long)]
    wait: bool,
}

impl Drain {
    pub fn run(&self) -> Result<(), Failure> {
        let request = Request::Drain { device: self.target.device.clone() };
        self.target.ask(&request, "draining", self.wait.then_some(is_idle))
    }
}

/// Flags of `detach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank detach data --wait
  surgetank detach data --accept-loss
  surgetank detach data --accept-loss --config surgetank.toml

Drains the rest, then deletes the caching volume. With --accept-loss, a caching volume that failed or is missing \
is discarded with the data that only it had; the device then holds the data of the backing volume. If no daemon runs \
with the configuration that --config names, its records are changed, and the volume is deleted when one runs.")]
pub struct Detach {
    #[command(flatten)]
    target: Target,
    /// Discard data that only a failed or missing caching volume had
    #[arg(long)]
    accept_loss: bool,
    /// Return when the caching volume is deleted
    #[arg(long)]
    wait: bool,
}

impl Detach {
    pub fn run(&self) -> Result<(), Failure> {
        let device = &self.target.device;
        if let Some(file) = self.whereabouts_of_records()? {
            let config = Config::load(&file).map_err(Failure::invalid)?;
            if !config.devices.contains_key(device) {
                return Err(Failure::invalid(format!("there is no device \"{device}\" in {}", file.display())));
            }
            surgetank_daemon::accept_loss_offline(&config, device).map_err(Failure::Failed)?;
            let accepted = serde_json::json!({ "device": device, "loss_accepted": true });
            return self
                .target
                .daemon
                .answer(&accepted, || format!("{device}: the loss is accepted; start the daemon"));
        }
        let request = Request::Detach { device: device.clone(), accept_loss: self.accept_loss };
        self.target.ask(&request, "detaching", self.wait.then_some(is_idle))
    }

    /// The configuration whose records are to be changed, because no daemon that could do it runs with it.
    fn whereabouts_of_records(&self) -> Result<Option<PathBuf>, Failure> {
        let whereabouts = &self.target.daemon.whereabouts;
        let Some(file) = whereabouts.config().filter(|_| self.accept_loss) else { return Ok(None) };
        let asked = Client::new(whereabouts.sockets()?.control).status();
        Ok(matches!(asked, Err(ClientError::NoDaemon(_))).then_some(file))
    }
}

/// Flags of `resize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank resize data && resize2fs /dev/loop0

Grow the backing volume at its provider first; the device then grows while it is in use. Then grow the file \
system.")]
pub struct Resize {
    #[command(flatten)]
    target: Target,
}

impl Resize {
    pub fn run(&self) -> Result<(), Failure> {
        let before = self.target.look()?.size_gib;
        let request = Request::Resize { device: self.target.device.clone() };
        let answer = self.target.daemon.ask(|client| client.ask(&request))?;
        let gib = answer["size_bytes"].as_u64().unwrap_or_default() as f64 / (1u64 << 30) as f64;
        let resized = serde_json::json!({ "device": self.target.device, "size_gib": gib, "grown": gib > before });
        self.target.daemon.answer(&resized, || {
            let name = &self.target.device;
            match gib > before {
                true => format!("{name}: grown from {} to {}", size(before), size(gib)),
                false => format!(
                    "{name}: still {}: its backing volume has not grown; grow that first, and let the kernel notice (for a \
                     SCSI disk: echo 1 > /sys/block/DISK/device/rescan)",
                    size(gib)
                ),
            }
        })
    }
}

/// Flags of `reload`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank reload

For renewed or revoked certificates: every device reads the directory of its tls_certificates again. New \
connections are checked against the new files; existing ones continue. If the files are unusable, the old ones \
stay in use.")]
pub struct Reload {
    #[command(flatten)]
    daemon: Daemon,
}

impl Reload {
    pub fn run(&self) -> Result<(), Failure> {
        let answer = self.daemon.ask(|client| client.ask(&Request::Reload))?;
        self.daemon.answer(&answer, || {
            let names: Vec<&str> =
                answer["reloaded"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            match names.as_slice() {
                [] => "no device of this daemon has certificates".into(),
                names => format!("certificates taken up: {}", names.join(", ")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use surgetank_daemon::status::LostRange;

    use super::*;

    fn device() -> DeviceStatus {
        DeviceStatus {
            name: "data".into(),
            export: "fuse".into(),
            address: "/dev/loop0".into(),
            map: None,
            size_gib: 50.0,
            phase: DevicePhase::Boost,
            reason: Some("the quota is used up".into()),
            retry_s: Some(8.2),
            announced_s: None,
            throughput_mib_s: 150.0,
            utilization: 4.5,
            caching: Some(CachingStatus {
                volumes: 1,
                volume: "vol-1".into(),
                size_gib: 10.0,
                dirty_gib: 0.25,
                high_water_gib: 0.5,
                why: None,
                growth: None,
            }),
            read_cache: None,
            boosts: 3,
            next_cache_gib: Some(4.0),
            cost_agbs: 12345.6,
            cost_usd: None,
            lost_ranges: vec![LostRange { offset_bytes: 0, length_bytes: 4096 }],
            lost_range_count: 1,
            lost_bytes: 4096,
        }
    }

    #[test]
    fn people_see_every_device_and_why_it_waits() {
        let text = people(&StatusReport { devices: vec![device()], warnings: vec!["look".into()] });
        for part in ["data", "/dev/loop0", "boost", "150.0", "450 %", "10.0 GiB", "256 MiB", "12346"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("data: the quota is used up (tries again in 8 s)"), "{text}");
        assert!(text.contains("4096 bytes are lost") && text.contains("warning: look"));
        assert!(text.contains("data: 4096 bytes are lost in 1 range and answer with an error"), "{text}");
    }

    #[test]
    fn people_see_how_the_read_cache_stands() {
        let cache = ReadCacheStatus {
            members: 10,
            serving: 9,
            size_gib: 9.0,
            cached_gib: 4.5,
            hit_ratio: Some(0.876),
            reason: Some("the volume vanished".into()),
            retry_s: Some(3.0),
            cost_agbs: Some(5000.0),
            cost_usd: Some(1.5),
            usd_per_hour: Some(0.5),
            ..ReadCacheStatus::default()
        };
        let told = |cache| {
            people(&StatusReport {
                devices: vec![DeviceStatus { read_cache: Some(cache), ..device() }],
                warnings: Vec::new(),
            })
        };
        let text = told(cache.clone());
        assert!(
            text.contains("data: the read cache has 9 of 10 members in use and holds 4.5 GiB of 9.0 GiB; 87.6 % of"),
            "{text}"
        );
        assert!(text.contains("; its volumes have cost 5,000 AGBs or $1.5") && text.contains(" an hour"), "{text}");
        assert!(text.contains("a volume is missing: the volume vanished (tries again in 3 s)"), "{text}");
        let text = told(ReadCacheStatus { members: 0, ..cache });
        assert!(text.contains("data: the volumes of its former read cache are being deleted"), "{text}");
    }

    #[test]
    fn an_old_reason_does_not_end_the_wait_for_a_burst_that_is_announced() {
        let idle = DeviceStatus { phase: DevicePhase::Idle, caching: None, ..device() };
        assert_eq!(ended_because(&idle), Some("the quota is used up"));
        let announced = DeviceStatus { announced_s: Some(12.3), ..idle };
        assert_eq!(ended_because(&announced), None);
        let text = people(&StatusReport { devices: vec![announced], warnings: Vec::new() });
        assert!(text.contains("data: a burst is announced; its boost begins in 12.3 s"), "{text}");
    }

    #[test]
    fn a_burst_writes_something() {
        assert_eq!(burst_size("8 GiB"), Ok(Bytes::from_gib(8)));
        for (text, expected) in
            [("0 B", "a burst writes something"), ("0.4 B", "a burst writes something"), ("8", "no unit")]
        {
            let error = burst_size(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_a_daemon_says_stays_on_its_line_and_commands_no_terminal() {
        let evil = "x\ndata: fine\x1b[2J\u{9b}31m\u{202e}";
        let device = DeviceStatus { name: evil.into(), address: evil.into(), reason: Some(evil.into()), ..device() };
        let harmless = people(&StatusReport { devices: vec![self::device()], warnings: vec!["x".into()] });
        let text = people(&StatusReport { devices: vec![device], warnings: vec![evil.into()] });
        assert_eq!(text.lines().count(), harmless.lines().count(), "{text}");
        assert!(
            text.chars().all(|character| character == '\n' || surgetank_model::text::is_plain(character)),
            "{text:?}"
        );
        assert!(text.contains("x\\ndata: fine\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn people_see_how_many_ranges_are_lost_once_that_is_known() {
        for (count, told) in
            [(0, "lost and answer"), (1, "lost in 1 range and answer"), (2, "lost in 2 ranges and answer")]
        {
            let device = DeviceStatus { lost_range_count: count, ..device() };
            let text = people(&StatusReport { devices: vec![device], warnings: Vec::new() });
            assert!(text.contains(told), "{told} in {text}");
        }
    }
}
