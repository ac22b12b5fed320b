//! The daemon of one mode, in this process: made from the same configuration text that `serve` reads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use surgetank_cache::Owner;
use surgetank_daemon::config::Config;
use surgetank_daemon::owner::OwnerStore;
use surgetank_daemon::{Daemon, DevicePhase, DeviceReport};
use surgetank_model::{Bandwidth, Instant};
use surgetank_planner::Mode;
use surgetank_provider::{LocalConfig, ProviderConfig};
use surgetank_report::run::{Activity, Boost, CacheSize, CostPoint};
use surgetank_report::{Doing, Failure};

use crate::mode::LOOK_AGAIN;
use crate::plan::Plan;
use crate::progress::Live;

/// Name of the only device of each daemon.
const DEVICE: &str = "demo";
/// A device that is sampled so much later than it should be is stuck.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How a device is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// As a block device.
    Fuse,
    /// On a Unix socket.
    Nbd,
}

impl Export {
    /// As the configuration and reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Nbd => "nbd",
        }
    }
}

/// Where a mode's files lie.
#[derive(Clone, Debug)]
pub struct Layout {
    directory: PathBuf,
}

impl Layout {
    /// Everything of the mode of this name lies in a directory below `work`.
    #[must_use]
    pub fn new(work: &Path, mode: &str) -> Self {
        Self { directory: work.join(mode) }
    }

    /// A file beside the others.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The backing volume's file.
    #[must_use]
    pub fn backing(&self) -> PathBuf {
        self.directory.join("backing.img")
    }

    /// Where the file system is mounted.
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    /// The daemon's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Its run directory.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// The NBD server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run().join("nbd.sock")
    }

    /// The provider's directory.
    #[must_use]
    pub fn volumes(&self) -> PathBuf {
        self.directory.join("volumes")
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn create_directory(&self) -> Result<(), Failure> {
        std::fs::create_dir_all(&self.directory).doing(|| format!("cannot make {}", self.directory.display()))
    }

    /// Makes the directory and the backing volume's file.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn create(&self, plan: &Plan) -> Result<(), Failure> {
        self.create_directory()?;
        let doing = || format!("cannot make the volume {}", self.backing().display());
        let file = std::fs::File::create_new(self.backing()).doing(doing)?;
        file.set_len(plan.backing_size.get()).doing(doing)
    }
}

/// A running daemon with one device.
pub struct Host {
    daemon: Daemon,
    origin: Instant,
}

/// A time as configurations have it, at least 1 ms.
pub fn milliseconds(time: Duration) -> String {
    format!("\"{} ms\"", time.as_millis().max(1))
}

/// A path as a TOML string.
pub fn quoted(path: &Path) -> String {
    toml::Value::String(path.to_string_lossy().into_owned()).to_string()
}

/// The bandwidth of a mode's backing volume.
#[must_use]
pub fn backing_bandwidth(plan: &Plan, mode: Mode) -> Bandwidth {
    match mode {
        Mode::StaticFast => plan.caching_bandwidth,
        Mode::StaticSlow | Mode::Elastic => plan.backing_bandwidth,
    }
}

/// The configuration of a mode, as a user would write it.
fn configuration(plan: &Plan, mode: Mode, policy: &str, export: Export, layout: &Layout) -> String {
    let latency = milliseconds(plan.provider_latency);
    let mut text = format!(
        "state_directory = {state}\nrun_directory = {run}\ncontrol_socket = {control}\n\n\
         [device.{DEVICE}]\nbacking = {backing}\nexport = \"{export}\"\nsocket = {socket}\nthrottle = true\n\
         backing_limits = {{ bandwidth = \"{bandwidth}\" }}\n",
        state = quoted(&layout.state()),
        run = quoted(&layout.run()),
        control = quoted(&layout.run().join("ctl.sock")),
        backing = quoted(&layout.backing()),
        export = export.name(),
        socket = quoted(&layout.socket()),
        bandwidth = backing_bandwidth(plan, mode),
    );
    if mode == Mode::Elastic {
        text += &format!(
            "\n[device.{DEVICE}.caching]\nprovider = \"local\"\nvolume_type = \"fast\"\nbandwidth = \"{fast}\"\n\
             initial_size = \"{initial}\"\nmin_size = \"{grain}\"\nmax_size = \"{largest}\"\n\n\
             [device.{DEVICE}.policy]\nname = \"{policy}\"\nutilization_threshold = {threshold:.2}\n\
             inactivity_delay = {inactivity}\nsampling = {sampling}\nsize_grain = \"{grain}\"\n\n\
             [provider.local]\ndirectory = {volumes}\ncreate_latency = {latency}\nattach_latency = {latency}\n\
             detach_latency = {latency}\n\n\
             [provider.local.types.fast]\nbandwidth = \"{fast}\"\nmin_size = \"1 MiB\"\nmax_size = \"{largest}\"\n",
            fast = plan.caching_bandwidth,
            initial = plan.initial_cache,
            grain = plan.grain,
            largest = plan.backing_size,
            threshold = plan.utilization_threshold,
            inactivity = milliseconds(plan.inactivity_delay),
            sampling = milliseconds(plan.sampling),
            volumes = quoted(&layout.volumes()),
        );
    } else {
        // No controller: the sampling interval is that of the report alone.
        text += &format!("\n[device.{DEVICE}.policy]\nsampling = {}\n", milliseconds(plan.sampling));
    }
    text
}

impl Host {
    /// Starts the daemon of a mode.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn start(plan: &Plan, mode: Mode, policy: &str, export: Export, layout: &Layout) -> Result<Self, Failure> {
        let text = configuration(plan, mode, policy, export, layout);
        let config = Config::from_text(Path::new("the demo's configuration"), &text).map_err(Failure::failed)?;
        let daemon = Daemon::start(config).map_err(Failure::failed)?;
        let mut host = Self { daemon, origin: Instant::ZERO };
        host.origin = Instant::from_nanoseconds((host.report()?.now_s * 1e9) as u64);
        Ok(host)
    }

    /// Where the device is: a block device or an NBD address.
    ///
    /// # Errors
    /// If it is not served.
    pub fn address(&self) -> Result<PathBuf, Failure> {
        self.daemon.address(DEVICE).map(PathBuf::from).map_err(Failure::Failed)
    }

    /// What progress shows.
    #[must_use]
    pub fn live(&self) -> Live {
        let status = self.daemon.status();
        let Some(device) = status.devices.first() else { return Live::default() };
        let caching = device.caching.as_ref();
        Live {
            write_mib_s: device.throughput_mib_s,
            dirty_mib: caching.map_or(0.0, |caching| caching.dirty_gib * 1024.0),
            cache_mib: caching.map(|caching| caching.size_gib * 1024.0),
        }
    }

    /// Whether nothing is rented beside the backing volume; an error if that will not come about.
    ///
    /// # Errors
    /// The device is degraded, with the reason.
    pub fn is_idle(&self) -> Result<bool, Failure> {
        let status = self.daemon.status();
        let Some(device) = status.devices.first() else { return Err(Failure::failed("the device is gone")) };
        match device.phase {
            DevicePhase::Idle => Ok(device.caching.is_none()),
            DevicePhase::Degraded => Err(Failure::Failed(format!(
                "the elastic device is degraded: {}",
                device.reason.as_deref().unwrap_or("it does not say why")
            ))),
            _ => Ok(false),
        }
    }

    fn report(&self) -> Result<DeviceReport, Failure> {
        self.daemon.report(DEVICE).map_err(Failure::Failed)
    }

    /// Everything that the report plots, from the daemon's start until now: until the first sample that is taken after the call.
    ///
    /// # Errors
    /// If the device does not answer, or is not sampled any more.
    pub fn record(&self) -> Result<Record, Failure> {
        let called_s = self.report()?.now_s;
        let is_later = |report: &DeviceReport| report.activity.last().is_some_and(|sample| sample.at_s >= called_s);
        let until = std::time::Instant::now() + SAMPLE_TIMEOUT;
        let report = loop {
            match self.report()? {
                report if is_later(&report) => break report,
                _ if std::time::Instant::now() > until => {
                    return Err(Failure::failed(
                        "the device is not sampled: run again with SURGETANK_LOG=info to see why",
                    ));
                }
                _ => std::thread::sleep(LOOK_AGAIN),
            }
        };
        let origin_s = self.origin.as_seconds();
        let now = Instant::from_nanoseconds((report.now_s * 1e9) as u64);
        Ok(Record {
            activity: report.activity.iter().map(|sample| activity(sample, origin_s)).collect(),
            boosts: report.boosts.iter().map(|boost| one_boost(boost, origin_s)).collect(),
            rentals: report.rentals.iter().map(|rental| Rented::new(rental, self.origin, now)).collect(),
        })
    }

    /// Stops the daemon: its device is gone, everything is where it belongs.
    pub fn stop(self) {
        self.daemon.stop();
    }
}

/// What a daemon recorded of a mode's run; seconds count from the mode's begin.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// I/O over time.
    pub activity: Vec<Activity>,
    /// Finished boosts.
    pub boosts: Vec<Boost>,
    /// What was rented when.
    pub rentals: Vec<Rented>,
}

/// A volume over the time that it was rented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rented {
    /// Size × reserved bandwidth: AGBs each second.
    pub agbs_per_s: f64,
    /// Reserved bandwidth.
    pub bandwidth: Bandwidth,
    /// Seconds.
    pub from_s: f64,
    /// Seconds.
    pub until_s: f64,
}

impl Rented {
    fn new(rental: &surgetank_model::cost::Rental, origin: Instant, now: Instant) -> Self {
        let until = rental.until.unwrap_or(now);
        Self {
            agbs_per_s: rental.size.as_gib() * rental.bandwidth.as_mib_s(),
            bandwidth: rental.bandwidth,
            from_s: rental.from.since(origin).as_secs_f64(),
            until_s: until.since(origin).as_secs_f64(),
        }
    }

    /// Seconds that it was rented before `at_s`.
    #[must_use]
    pub fn seconds_until(&self, at_s: f64) -> f64 {
        (self.until_s.min(at_s) - self.from_s).max(0.0)
    }
}

impl Record {
    /// AGBs of everything rented until `at_s`.
    #[must_use]
    pub fn agbs(&self, at_s: f64) -> f64 {
        self.rentals.iter().map(|rental| rental.agbs_per_s * rental.seconds_until(at_s)).sum()
    }

    /// The cost curve until `wall_s`, with what everything costs in money until a moment: straight between the moments at which
    /// something is rented or deleted.
    #[must_use]
    pub fn cost(&self, wall_s: f64, usd: impl Fn(f64) -> Option<f64>) -> Vec<CostPoint> {
        let ends = self.rentals.iter().flat_map(|rental| [rental.from_s, rental.until_s]);
        let mut moments: Vec<f64> = ends.chain([0.0, wall_s]).filter(|at| (0.0..=wall_s).contains(at)).collect();
        moments.sort_by(f64::total_cmp);
        moments.dedup();
        moments.into_iter().map(|at_s| CostPoint { at_s, agbs: self.agbs(at_s), usd: usd(at_s) }).collect()
    }
}

fn activity(sample: &surgetank_daemon::accounting::Activity, origin_s: f64) -> Activity {
    let rate = |bytes: u64| bytes as f64 / f64::from(1 << 20) / sample.interval_s.max(1e-9);
    Activity {
        at_s: (sample.at_s - origin_s).max(0.0),
        application_mib_s: rate(sample.app_written_bytes),
        cache_mib_s: rate(sample.cache_written_bytes),
        backing_mib_s: rate(sample.backing_written_bytes),
        drain_mib_s: rate(sample.drained_bytes),
        application_peak_mib_s: None,
    }
}

fn one_boost(boost: &surgetank_daemon::accounting::BoostReport, origin_s: f64) -> Boost {
    let size =
        |(from_s, cache_gib): &(f64, f64)| CacheSize { from_s: (from_s - origin_s).max(0.0), cache_gib: *cache_gib };
    Boost {
        start_s: (boost.started_s - origin_s).max(0.0),
        attach_s: boost.attach_s.unwrap_or_default(),
        absorb_s: boost.absorb_s.unwrap_or_default(),
        drain_s: boost.drain_s.unwrap_or_default(),
        cache_gib: boost.cache_gib,
        sizes: if boost.sizes.len() > 1 { boost.sizes.iter().map(size).collect() } else { Vec::new() },
        high_water_gib: boost.high_water_gib,
        delete_s: 0.0,
    }
}

/// After the daemon has stopped: nothing is rented, and the newest data is on the backing volume.
///
/// # Errors
/// What is not so.
pub fn check_released(layout: &Layout) -> Result<(), Failure> {
    let volumes = layout.volumes();
    if volumes.exists() {
        let provider = LocalConfig::in_directory(&volumes)
            .open(None)
            .doing(|| format!("cannot ask the provider in {}", volumes.display()))?;
        let left = provider.list(surgetank_provider::tag::DEVICE, DEVICE).doing(|| "cannot list volumes".to_owned())?;
        if let Some(volume) = left.first() {
            return Err(Failure::Failed(format!("the caching volume {} was left behind at the provider", volume.id.0)));
        }
    }
    let directory = layout.state().join(DEVICE);
    let store =
        OwnerStore::open(&directory).doing(|| format!("cannot read the owner record in {}", directory.display()))?;
    match store.record().owner {
        Owner::Backing => Ok(()),
        _ => Err(Failure::failed("the owner record says that the backing volume lacks data")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_valid() {
        let directory = tempfile::tempdir().unwrap();
        for plan in [Plan::standard(1), Plan::quick(1)] {
            for mode in Mode::ALL {
                for policy in ["paper", "adaptive"] {
                    let layout = Layout::new(directory.path(), mode.name());
                    let text = configuration(&plan, mode, policy, Export::Fuse, &layout);
                    let config = Config::from_text(Path::new("demo"), &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
                    assert_eq!(config.devices[DEVICE].caching.is_some(), mode == Mode::Elastic);
                }
            }
        }
    }

    #[test]
    fn costs_add_up_over_overlapping_rentals() {
        let bandwidth = Bandwidth::from_mib_s(1);
        let rental = |agbs_per_s, from_s, until_s| Rented { agbs_per_s, bandwidth, from_s, until_s };
        let record = Record { rentals: vec![rental(10.0, 0.0, 100.0), rental(5.0, 20.0, 40.0)], ..Record::default() };
        assert!((record.agbs(30.0) - 350.0).abs() < 1e-9);
        let curve = record.cost(90.0, |_| None);
        assert_eq!(curve.iter().map(|point| point.at_s).collect::<Vec<_>>(), [0.0, 20.0, 40.0, 90.0]);
        assert!((curve[3].agbs - 1000.0).abs() < 1e-9);
    }
}
