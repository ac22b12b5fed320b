//! `surgetank serve`: the daemon in the foreground, as systemd wants it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGUSR2};
use surgetank_daemon::config::{ArrayConfig, Config};
use surgetank_daemon::status::{DevicePhase, StatusReport};
use surgetank_daemon::{Daemon, Outlook, StartError, WeakDaemon};
use surgetank_model::{Bytes, Catalog, VolumeType, text};
use surgetank_planner::price::{CreditArray, Instead, instead_of_credits};
use surgetank_planner::rotation::{Member, rotation};
use surgetank_policy::rotation::Way;
use surgetank_report::output::{self, note};
use surgetank_report::{Doing, Failure, Interrupt};

use crate::commands::foreground::Foreground;
use crate::commands::upgrade::Upgrade;
use crate::commands::whereabouts;

/// How often a further signal is looked for while the daemon stops.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How often a stop looks whether a drain comes on.
const LOOK_FOR_PROGRESS: Duration = Duration::from_secs(10);
/// How much time a stop asks systemd for whenever one does: more than the longest pause of a drain that goes on.
const MORE_TIME: Duration = Duration::from_secs(120);
/// How long one wait for something to do lasts: what there is to do ends it.
const LONG: Duration = Duration::from_secs(3600);

/// Flags of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank serve --config /etc/surgetank/surgetank.toml
  surgetank serve --config surgetank.toml --check
  SURGETANK_LOG=debug surgetank serve --config surgetank.toml --log json

The configuration says whose volumes are rented: files of this machine (local), disks that a host plugs (host), files of \
a staging pool (pool), or volumes of an OpenStack cloud (openstack), of AWS (aws), of Google Compute Engine (gce) or of \
Azure (azure), none of which has yet run on a real cloud.

SIGTERM and SIGINT stop the daemon: it finishes the requests in flight, and drains dirty data first or leaves them \
on their caching volume, according to on_stop in the configuration. At a second signal it prints what it still \
waits for. SIGHUP loads new certificates, as `surgetank reload` does. SIGUSR2 upgrades in place: the binary that \
is now at this one's path takes over; dirty data stay where they are.")]
pub struct Arguments {
    /// The configuration [default: $SURGETANK_CONFIG or /etc/surgetank/surgetank.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    foreground: Foreground,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let file = &self.config.clone().unwrap_or_else(whereabouts::configuration);
        let config = Config::load(file).map_err(Failure::invalid)?;
        if self.foreground.check {
            return check(file, &config);
        }
        self.foreground.begin()?;
        tracing::info!("surgetank {} starts with {}", env!("CARGO_PKG_VERSION"), file.display());
        rotations_that_do_not_pay(&config).iter().for_each(|remark| tracing::warn!("{remark}"));
        let upgrade = Upgrade::new().doing(|| "cannot find this program itself".to_owned())?;
        let weak = Arc::new(OnceLock::<WeakDaemon>::new());
        let (ask_for_upgrade, to_nudge) = (upgrade.asker(), weak.clone());
        let reload = Arc::new(AtomicBool::new(false));
        let ask_for_reload = reload.clone();
        let interrupt = Interrupt::install_with(&[SIGHUP, SIGUSR2], move |signal| {
            match signal {
                SIGHUP => ask_for_reload.store(true, Ordering::Relaxed),
                SIGUSR2 => ask_for_upgrade(),
                _ => {}
            }
            to_nudge.get().into_iter().for_each(WeakDaemon::nudge);
        })?;
        let daemon = Daemon::start(config).map_err(|error| match error {
            StartError::Invalid(text) => Failure::Invalid(format!("{}: {text}", file.display())),
            StartError::Failed(text) => Failure::Failed(text),
        })?;
        while comes_up(&daemon.status()) && !interrupt.raised() && !daemon.wait_stop(LOOK_AGAIN) {}
        output::print(&addresses(&daemon.status()))?;
        notify("READY=1");
        // A signal may have come before there was anybody to nudge.
        weak.get_or_init(|| daemon.downgrade()).nudge();
        while !interrupt.raised() && !daemon.wait_stop(LONG) {
            if reload.swap(false, Ordering::Relaxed) {
                // It has said in the log what came of it.
                let _ = daemon.reload();
            }
            if !upgrade.asked() {
                continue;
            }
            match upgrade.check(&daemon, file) {
                Ok(()) => return upgrade_to(daemon, &upgrade, &interrupt),
                Err(reason) => tracing::error!("no upgrade, this daemon goes on: {reason}"),
            }
        }
        notify("STOPPING=1");
        stop(&interrupt, &daemon.downgrade(), || daemon.stop())
    }
}

/// Says what a start would meet.
fn check(file: &Path, config: &Config) -> Result<(), Failure> {
    let Outlook { refused, remarks, unseen } = Outlook::of(config);
    let remarks = remarks.into_iter().chain(rotations_that_do_not_pay(config));
    remarks.for_each(|remark| note(&format!("surgetank: {remark}")));
    if !refused.is_empty() {
        return Err(Failure::Failed(refused.join("; ")));
    }
    let count = config.devices.len();
    let (s, unseen) = (if count == 1 { "" } else { "s" }, unseen.map(|why| format!(" ({why})")).unwrap_or_default());
    output::print(&format!("{}: valid, {count} device{s}{unseen}", file.display()))
}

/// Of arrays whose members' type in the catalog is known: what gives the same for ever and costs no more.
fn rotations_that_do_not_pay(config: &Config) -> Vec<String> {
    let rotated = config.arrays.iter().filter(|(_, array)| array.rotate != Way::Never);
    let known = rotated.filter_map(|(name, array)| Some((name, array, array.catalog_type.as_ref()?)));
    let catalog = Catalog::builtin();
    let remark = |(name, array, volume_type): (&String, &ArrayConfig, &VolumeType)| {
        let limits = volume_type.limits_at(array.member_size);
        let member = Member {
            size: array.member_size,
            copy_rate: array.copy_rate.or(limits.bandwidth)?,
            copy_io_size: Bytes::from_mib(1),
            demand: limits.iops?,
            write_share: 0.5,
        };
        let overhead = rotation(&catalog, volume_type, &member).ok().and_then(|rotation| rotation.overhead_ratio);
        let array = CreditArray {
            volume_type,
            members: array.members,
            member_size: array.member_size,
            overhead_ratio: overhead.unwrap_or_default(),
            demand: None,
        };
        let instead = instead_of_credits(&catalog, &array).filter(Instead::ends_the_game)?;
        Some(format!("array {name}: {instead}"))
    };
    known.filter_map(remark).collect()
}

/// Whether a device is still on its way: one whose caching volume is read back is not shown before.
fn comes_up(report: &StatusReport) -> bool {
    report.devices.iter().any(|device| device.address.is_empty() && device.phase != DevicePhase::Degraded)
}

/// One line a device: its name and where to open it, or why not.
fn addresses(report: &StatusReport) -> String {
    let width = report.devices.iter().map(|device| device.name.len()).max().unwrap_or_default();
    let lines = report.devices.iter().map(|device| {
        let place = match (&device.address, &device.reason) {
            (address, _) if !address.is_empty() => address.clone(),
            (_, Some(reason)) => format!("not served: {}", text::line(reason)),
            (_, None) => "not served".into(),
        };
        format!("{:width$}  {place}\n", device.name)
    });
    lines.collect()
}

/// Lets the new binary take over, unless the process was asked to stop meanwhile.
fn upgrade_to(daemon: Daemon, upgrade: &Upgrade, interrupt: &Interrupt) -> Result<(), Failure> {
    tracing::info!("upgrading to the new binary");
    notify("RELOADING=1");
    stop(interrupt, &daemon.downgrade(), || daemon.stop_for_upgrade())?;
    if interrupt.raised() {
        notify("STOPPING=1");
        return Ok(());
    }
    upgrade.become_it().map(|never| match never {})
}

/// Stops the daemon; each further signal is answered with what it waits for. While a drain comes on, systemd is asked for
/// more time.
fn stop(interrupt: &Interrupt, daemon: &WeakDaemon, how: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let (ended, end) = mpsc::channel();
    let stopping = std::thread::Builder::new().name("stop".into()).spawn(move || {
        how();
        let _ = ended.send(());
    });
    let stopping = stopping.map_err(|error| Failure::Failed(format!("a thread cannot be started: {error}")))?;
    let mut seen = interrupt.count().max(1);
    let (mut looked, mut drain) = (Instant::now(), Drain::default());
    while let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(LOOK_AGAIN) {
        let count = interrupt.count();
        if count > seen {
            seen = count;
            note(&format!("surgetank: {}", waiting_for(daemon.status().as_ref())));
        }
        if looked.elapsed() >= LOOK_FOR_PROGRESS {
            looked = Instant::now();
            if daemon.status().is_some_and(|report| drain.comes_on(&report)) {
                notify(&format!("EXTEND_TIMEOUT_USEC={}", MORE_TIME.as_micros()));
            }
        }
    }
    stopping.join().map_err(|_| Failure::Failed("the daemon did not stop in order: see the log".into()))
}

/// How far the drains of a stop have come.
#[derive(Debug, Default)]
struct Drain {
    /// As of the last look.
    dirty_gib: Option<f64>,
}

impl Drain {
    /// Whether there is less to drain than at the last look.
    fn comes_on(&mut self, report: &StatusReport) -> bool {
        let dirty_gib: f64 = report.devices.iter().filter_map(|device| Some(device.caching.as_ref()?.dirty_gib)).sum();
        self.dirty_gib.replace(dirty_gib).is_some_and(|before| dirty_gib < before)
    }
}

fn waiting_for(report: Option<&StatusReport>) -> String {
    let devices = report.map(|report| report.devices.as_slice()).unwrap_or_default();
    let busy = devices.iter().filter_map(|device| {
        let caching = device.caching.as_ref()?;
        Some(format!("{} ({}, {:.2} GiB to drain)", device.name, device.phase, caching.dirty_gib))
    });
    let busy: Vec<_> = busy.collect();
    if busy.is_empty() {
        "still stopping: waiting for requests in flight and for the exports to close (is a file system mounted?)".into()
    } else {
        format!("still stopping: waiting for {}", busy.join(", "))
    }
}

/// Tells systemd, if it listens (sd_notify(3)).
pub(super) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd cannot be told \"{state}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_comes_on_while_there_is_less_and_less_to_drain() {
        let report = |dirty_gib: f64| {
            let caching =
                serde_json::json!({ "volume": "v", "size_gib": 4.0, "dirty_gib": dirty_gib, "high_water_gib": 2.0 });
            let device = serde_json::json!({
                "name": "data", "export": "nbd", "address": "", "size_gib": 1.0, "phase": "drain", "reason": null,
                "retry_s": null, "throughput_mib_s": 0.0, "utilization": 0.0, "caching": caching, "boosts": 1,
                "next_cache_gib": null, "cost_agbs": 0.0, "cost_usd": null, "lost_bytes": 0
            });
            serde_json::from_value::<StatusReport>(serde_json::json!({ "devices": [device], "warnings": [] })).unwrap()
        };
        let mut drain = Drain::default();
        let looks = [2.0, 1.5, 1.5, 1.0, 1.2, 0.0].map(|dirty_gib| drain.comes_on(&report(dirty_gib)));
        assert_eq!(looks, [false, true, false, true, false, true]);
        assert!(!drain.comes_on(&StatusReport::default()), "nothing is left to drain");
    }

    #[test]
    fn what_a_second_signal_says() {
        assert!(waiting_for(None).starts_with("still stopping"));
        assert!(waiting_for(Some(&StatusReport::default())).contains("requests in flight"));
    }
}
