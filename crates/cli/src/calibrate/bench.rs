//! The device under measurement: a daemon in this process, and what is written through it.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use surgetank_daemon::config::{Backing, CachingConfig, Config, DeviceConfig, OnStop};
use surgetank_daemon::{Daemon, DevicePhase, Request, exports};
use surgetank_model::{Bandwidth, Bytes, Limits};
use surgetank_planner::scenario::CalibrationPoint;
use surgetank_report::{Doing, Failure, Interrupt};

/// Bytes of one write, as the article's.
const REQUEST: u64 = 1 << 20;
/// Writes in flight: enough to keep two volumes busy.
const WRITERS: u64 = 8;
/// Between two looks at the device.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Says in the state directory that what is on the backing volume is ours.
const MARK: &str = "calibrating";

/// The configuration's only device.
pub struct Target {
    config: Config,
    name: String,
    device: DeviceConfig,
    caching: CachingConfig,
}

impl Target {
    /// Of a configuration of `surgetank serve`.
    ///
    /// # Errors
    /// One sentence: it has not exactly one device, or that has no caching volumes.
    pub fn of(config: Config) -> Result<Self, String> {
        let mut devices = config.devices.iter();
        let (Some((name, device)), None) = (devices.next(), devices.next()) else {
            return Err(format!(
                "has {} devices: calibrate with a configuration that has the one to be measured",
                config.devices.len()
            ));
        };
        let Some(caching) = device.caching.clone() else {
            return Err(format!(
                "the device {name} has no [device.{name}.caching] section: add one to have volumes to measure"
            ));
        };
        let (name, device) = (name.clone(), device.clone());
        Ok(Self { config, name, device, caching })
    }

    /// Its caching volumes.
    pub fn caching(&self) -> &CachingConfig {
        &self.caching
    }

    /// Nominal limits of its backing volume.
    pub fn backing_limits(&self) -> &Limits {
        &self.device.backing_limits
    }

    /// Size of its backing volume.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn backing_size(&self) -> Result<Bytes, Failure> {
        match &self.device.backing {
            Backing::Memory(size) => Ok(*size),
            Backing::Array(name) => Err(Failure::Invalid(format!(
                "calibrating writes to the backing volume, and that of this device is the array {name}: name a device over a file or a disk"
            ))),
            Backing::Path(path) => {
                use std::io::{Seek, SeekFrom};
                let end = std::fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
                end.map(Bytes::new).map_err(|error| {
                    Failure::Invalid(format!("the backing volume {} cannot be read: {error}", path.display()))
                })
            }
        }
    }

    fn mark(&self) -> PathBuf {
        self.config.state_directory.join(MARK)
    }

    fn marked(&self, path: &Path) -> bool {
        std::fs::read(self.mark()).is_ok_and(|bytes| bytes == path.as_os_str().as_encoded_bytes())
    }

    /// Refuses to write over anybody's data.
    ///
    /// # Errors
    /// If the first `dataset` bytes are not known to be empty or ours.
    pub fn refuse_data(&self, dataset: Bytes, overwrite: bool) -> Result<(), Failure> {
        let Backing::Path(path) = &self.device.backing else { return Ok(()) };
        if overwrite || self.marked(path) {
            return Ok(());
        }
        let doing = || format!("cannot look at the backing volume {}", path.display());
        let file = std::fs::File::open(path).doing(doing)?;
        let refused = |why: &str| {
            Err(Failure::Invalid(format!(
                "calibrating writes to the backing volume, and {} {why}: name an empty file, or add --overwrite to lose what is on it",
                path.display()
            )))
        };
        if file.metadata().doing(doing)?.file_type().is_block_device() {
            return refused("is a block device, of which nobody knows what is on it");
        }
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) {
            Ok(at) if at < dataset.get() => refused("has data on it"),
            Ok(_) | Err(rustix::io::Errno::NXIO) => Ok(()),
            Err(error) => Err(Failure::Failed(format!("{}: {error}", doing()))),
        }
    }

    /// From now on what is on the backing volume is ours.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub fn begin(&self) -> Result<(), Failure> {
        let Backing::Path(path) = &self.device.backing else { return Ok(()) };
        let doing = || format!("cannot write to the state directory {}", self.config.state_directory.display());
        std::fs::create_dir_all(&self.config.state_directory).doing(doing)?;
        std::fs::write(self.mark(), path.as_os_str().as_encoded_bytes()).doing(doing)
    }

    /// Leaves a file as empty as it was.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub fn finish(&self) -> Result<(), Failure> {
        if let Backing::Path(path) = &self.device.backing
            && self.marked(path)
            && let Ok(file) = std::fs::File::options().write(true).open(path)
            && let Ok(data) = file.metadata()
            && data.is_file()
        {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            // A file system without holes keeps our bytes: then the mark stays, and the next run may write there too.
            if rustix::fs::fallocate(&file, flags, 0, data.len().max(1)).is_err() {
                return Ok(());
            }
        }
        match std::fs::remove_file(self.mark()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::Failed(format!("cannot remove {}: {error}", self.mark().display())))
            }
            _ => Ok(()),
        }
    }

    /// The configuration with one size for all caching volumes.
    fn with_cache(&self, cache: Option<Bytes>) -> Config {
        let mut config = self.config.clone();
        for device in config.devices.values_mut() {
            device.export = exports::kind("nbd");
            device.on_stop = OnStop::Drain;
            device.policy.boost_interval = Some(Duration::ZERO);
            if let (Some(caching), Some(cache)) = (&mut device.caching, cache) {
                caching.initial_size = cache;
                caching.size = (cache, cache);
            }
        }
        config
    }

    fn daemon(&self, cache: Option<Bytes>) -> Result<Daemon, Failure> {
        Daemon::start(self.with_cache(cache)).map_err(|error| match error {
            surgetank_daemon::StartError::Invalid(text) => Failure::Invalid(text),
            surgetank_daemon::StartError::Failed(text) => Failure::Failed(text),
        })
    }

    /// Starts the device with caching volumes of this size.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn start(&self, cache: Bytes) -> Result<Bench, Failure> {
        let daemon = self.daemon(Some(cache))?;
        let bench = Bench { daemon, device: self.name.clone(), socket: self.device.socket.clone(), cache };
        bench.settle(None)?;
        Ok(bench)
    }

    /// After the measuring process has died: drains and deletes what it had rented.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn delete_rented(&self) -> Result<(), Failure> {
        let daemon = self.daemon(None)?;
        let bench = Bench { daemon, device: self.name.clone(), socket: PathBuf::new(), cache: Bytes::ZERO };
        bench.end()
    }
}

/// A running device with caching volumes of one size.
pub struct Bench {
    daemon: Daemon,
    device: String,
    socket: PathBuf,
    cache: Bytes,
}

impl Bench {
    /// The size of its caching volumes.
    pub fn cache(&self) -> Bytes {
        self.cache
    }

    /// Writes a dataset and waits until everything is on the backing volume and the caching volume is deleted.
    ///
    /// # Errors
    /// If that fails, or no caching volume came.
    pub fn measure(&self, dataset: Bytes, interrupt: &Interrupt) -> Result<CalibrationPoint, Failure> {
        let before = self.boosts()?.len();
        let began = Instant::now();
        self.write(dataset, interrupt)?;
        let written = began.elapsed();
        self.settle(Some(interrupt))?;
        let boosts = self.boosts()?;
        let new = boosts.get(before..).unwrap_or_default();
        let attached: f64 = new.iter().map(|(absorb_s, drain_s)| absorb_s + drain_s).sum();
        if new.is_empty() || attached <= 0.0 {
            return Err(Failure::Failed(format!(
                "writing {dataset} started no boost: it ended before the controller saw it, or the provider refused; take \
                 larger datasets or a shorter sampling"
            )));
        }
        let throughput = dataset.get() as f64 / written.as_secs_f64().max(1e-9);
        Ok(CalibrationPoint {
            dataset,
            cache: self.cache,
            throughput: Bandwidth::new(throughput as u64),
            attached: Duration::from_secs_f64(attached),
        })
    }

    /// Absorb and drain times of the boosts so far.
    fn boosts(&self) -> Result<Vec<(f64, f64)>, Failure> {
        let report = self.daemon.report(&self.device).map_err(Failure::Failed)?;
        let times = |boost: &surgetank_daemon::accounting::BoostReport| {
            (boost.absorb_s.unwrap_or_default(), boost.drain_s.unwrap_or_default())
        };
        Ok(report.boosts.iter().map(times).collect())
    }

    fn write(&self, dataset: Bytes, interrupt: &Interrupt) -> Result<(), Failure> {
        let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let writers = (0..WRITERS).map(|writer| scope.spawn(move || self.write_share(dataset, writer, interrupt)));
            let running: Vec<_> = writers.collect();
            let crashed = || Err(Failure::failed("a writer crashed"));
            running.into_iter().map(|writer| writer.join().unwrap_or_else(|_| crashed())).collect()
        });
        results.into_iter().collect()
    }

    /// Every so manieth request, so that together the writers go through the dataset from its beginning to its end.
    fn write_share(&self, dataset: Bytes, writer: u64, interrupt: &Interrupt) -> Result<(), Failure> {
        let doing = || format!("cannot write to the device {}", self.device);
        let mut client = surgetank_nbd::Client::connect(&self.socket).doing(doing)?;
        let data = vec![0xa5 ^ writer as u8; REQUEST as usize];
        for offset in (writer * REQUEST..dataset.get()).step_by((WRITERS * REQUEST) as usize) {
            if interrupt.raised() {
                return Err(interrupted());
            }
            let length = REQUEST.min(dataset.get() - offset) as usize;
            client.write(offset, &data[..length]).doing(doing)?;
        }
        client.flush().doing(doing)?;
        client.disconnect().doing(doing)
    }

    /// Waits until nothing is rented beside the backing volume.
    fn settle(&self, interrupt: Option<&Interrupt>) -> Result<(), Failure> {
        loop {
            let status = self.daemon.status();
            let device = status.devices.first().ok_or_else(|| Failure::failed("the device is gone"))?;
            match device.phase {
                DevicePhase::Idle if device.caching.is_none() => return Ok(()),
                DevicePhase::Degraded => {
                    let reason = device.reason.as_deref().unwrap_or("it does not say why");
                    return Err(Failure::Failed(format!("the device {} is degraded: {reason}", self.device)));
                }
                _ => {}
            }
            match interrupt {
                Some(interrupt) if interrupt.sleep(LOOK_AGAIN) => return Err(interrupted()),
                Some(_) => {}
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Drains and deletes what is rented, and stops.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn end(self) -> Result<(), Failure> {
        // Refused if there is no boost to end.
        let _ = self.daemon.handle(Request::Drain { device: self.device.clone() });
        let settled = self.settle(None);
        self.daemon.stop();
        settled
    }
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted: no volume is left rented; run again to go on".to_owned())
}
