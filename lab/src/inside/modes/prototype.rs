//! The papers' own prototype: bcache, told by sysfs when to absorb, when to drain and when to go. Its controller is ours
//! under the papers' policy, its volumes are rented from the same service as surgetank's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::{Config, Controller, Learned, Phase, Preset, Refusal, Step, StepOutcome};
use surgetank_provider::{
    CreateVolume, DiskIdentity, HostConfig, HostProvider, Provider, ProviderError, VolumeDescription, VolumeId,
    VolumeState,
};

use super::super::bcache;
use super::make_files;
use super::watch::{moved_bytes, plugged};
use crate::machine::{ask, sectors, wait_for};
use crate::surgetank::{self, Rented, TOKEN, VOLUME_TYPE};

const ANSWER: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(60);

/// A bcache device and the thread that drives it. Dropping it stops the thread; then the device goes.
pub struct Prototype {
    /// What the file system lies on.
    pub device: PathBuf,
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    rented: Mutex<Rented>,
    /// The last refusal or error.
    trouble: Mutex<Option<String>>,
}

impl Prototype {
    /// Formats the slow disk and starts to drive it.
    pub fn start(settings: &surgetank::Elastic, service: &str, writeback_delay: Duration) -> anyhow::Result<Self> {
        let config = HostConfig { allow_plain: true, timeout: Span(ANSWER), ..HostConfig::new(service, TOKEN) };
        let provider = HostProvider::open(config).context("cannot use the provisioning service")?;
        let cache = bcache::Device::format(settings.slow.clone(), writeback_delay)?;
        let device = cache.device();
        make_files(&device)?;
        let config = controller(settings, Bytes::new(sectors(&settings.slow)? * 512));
        config.validate().map_err(anyhow::Error::msg)?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            rented: Mutex::new(Rented { idle: true, ..Rented::default() }),
            trouble: Mutex::new(None),
        });
        let mut driver = Driver {
            controller: Controller::new(Instant::ZERO, config, Learned::default()),
            origin: Clock::now(),
            engine: Engine { cache, provider, slow: settings.slow.clone(), volume: None, use_of: Use::default() },
            shared: Arc::clone(&shared),
        };
        let sampling = settings.triggers.sampling;
        let driver = std::thread::spawn(move || driver.run(sampling));
        Ok(Self { device, shared, driver: Some(driver) })
    }

    /// What is rented now.
    pub fn rented(&self) -> Rented {
        *lock(&self.shared.rented)
    }

    /// What went wrong last, if something did.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.shared.trouble).clone()
    }
}

impl Drop for Prototype {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn controller(settings: &surgetank::Elastic, backing_size: Bytes) -> Config {
    let (slow, fast) = settings.rates_mib_s;
    let (initial, min, max) = settings.cache_mib;
    let (backing, caching) = (Bandwidth::from_mib_s(slow), Bandwidth::from_mib_s(fast));
    Config {
        utilization_threshold: settings.triggers.threshold,
        inactivity_delay: settings.triggers.inactivity,
        initial_size: Bytes::from_mib(initial),
        size_min: Bytes::from_mib(min),
        size_max: Bytes::from_mib(max),
        grain: Bytes::from_mib(settings.grain_mib),
        ..Config::new(Preset::PAPER, backing, backing_size, caching)
    }
}

struct Driver {
    controller: Controller,
    origin: Clock,
    engine: Engine,
    shared: Arc<Shared>,
}

impl Driver {
    fn run(&mut self, sampling: Duration) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.now();
            match self.engine.observe(self.controller.phase()) {
                Ok(observation) => self.controller.observe(now, observation),
                Err(error) => *lock(&self.shared.trouble) = Some(format!("{error:#}")),
            }
            self.controller.tick(now);
            self.publish();
            while let Some((id, step)) = self.controller.next_step() {
                let outcome = self.engine.carry_out(&step).unwrap_or_else(|error| {
                    *lock(&self.shared.trouble) = Some(format!("{step:?}: {error:#}"));
                    // A disk that bcache has begun to use is not unplugged under it.
                    let refusal =
                        if step == Step::Adopt { Refusal::Timeout } else { Refusal::Transient(format!("{error:#}")) };
                    StepOutcome::Refused(refusal)
                });
                let now = self.now();
                self.controller.complete(now, id, outcome);
                self.publish();
            }
            std::thread::sleep(sampling);
        }
        self.engine.release();
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }

    fn publish(&self) {
        let status = self.controller.status();
        *lock(&self.shared.rented) = Rented {
            cache_mib: status.cache_size.map_or(0.0, Bytes::as_mib),
            next_mib: status.next_size.as_mib(),
            boosts: status.boosts,
            idle: status.phase == Phase::Idle,
        };
    }
}

/// How the cache has been used since it was adopted.
#[derive(Debug, Default)]
struct Use {
    high_water: u64,
    evicted: u64,
    /// The backing disk's counter at the last look.
    backing_written: u64,
}

/// What carries steps out.
struct Engine {
    cache: bcache::Device,
    provider: HostProvider,
    slow: PathBuf,
    volume: Option<VolumeDescription>,
    use_of: Use,
}

impl Engine {
    /// What is written to the backing disk while the cache is so full that bcache writes past it or makes room counts as
    /// evicted; what it drains before is its use of spare bandwidth.
    fn observe(&mut self, phase: Phase) -> anyhow::Result<Observation> {
        let (read_bytes, written_bytes) = moved_bytes(&self.cache.device())?;
        let (_, backing_written) = moved_bytes(&self.slow)?;
        let mut observation = Observation { read_bytes, written_bytes, ..Observation::default() };
        if let Some(usage) = self.cache.usage()? {
            let since = backing_written - self.use_of.backing_written;
            if usage.full && phase == Phase::Boost {
                self.use_of.evicted += since;
            }
            self.use_of.high_water = self.use_of.high_water.max(usage.used_bytes);
            observation.dirty_bytes = usage.dirty_bytes;
            observation.high_water_bytes = self.use_of.high_water;
            observation.evicted_bytes = self.use_of.evicted;
            observation.cache_bytes = usage.size_bytes;
        }
        self.use_of.backing_written = backing_written;
        Ok(observation)
    }

    fn carry_out(&mut self, step: &Step) -> anyhow::Result<StepOutcome> {
        match step {
            Step::Create { size } => return self.create(*size),
            Step::Attach => {
                let id = self.id()?;
                self.provider.attach(&id)?;
                self.wait(&id, VolumeState::Attached)?;
            }
            Step::Adopt => {
                let volume = self.volume.as_ref().context("no volume is rented")?;
                let serial = match &volume.disk {
                    Some(DiskIdentity::Serial(serial)) => serial.clone(),
                    _ => volume.id.0.clone(),
                };
                let found = || Ok(plugged().into_iter().find(|(name, _)| *name == serial).map(|(_, node)| node));
                let node = wait_for("the disk of the volume", TIMEOUT, found)?;
                self.use_of = Use { backing_written: moved_bytes(&self.slow)?.1, ..Use::default() };
                self.cache.adopt(&node)?;
            }
            // Nobody told the controller that it could.
            Step::Grow { .. } => {
                let why = "the kernel's cache does not grow while it is in use".to_owned();
                return Ok(StepOutcome::Refused(Refusal::Permanent(why)));
            }
            Step::Absorb => self.cache.absorb()?,
            // Its writes go past the cache while it drains.
            Step::Drain | Step::Finish => self.cache.drain()?,
            Step::Release => self.cache.release()?,
            Step::Detach => {
                let id = self.id()?;
                self.provider.detach(&id)?;
                self.wait(&id, VolumeState::Available)?;
            }
            Step::Delete => {
                if let Some(volume) = &self.volume {
                    self.provider.delete(&volume.id)?;
                }
                self.volume = None;
            }
        }
        Ok(StepOutcome::Done)
    }

    fn create(&mut self, size: Bytes) -> anyhow::Result<StepOutcome> {
        let token = ask("/proc/sys/kernel/random/uuid")?.replace('-', "");
        let request = CreateVolume { token, volume_type: VOLUME_TYPE.to_owned(), size, tags: BTreeMap::new() };
        match self.provider.create(&request) {
            Ok((volume, _)) => {
                let id = volume.id.clone();
                self.volume = Some(volume);
                self.wait(&id, VolumeState::Available)?;
                Ok(StepOutcome::Done)
            }
            Err(ProviderError::Invalid(reason)) => Ok(StepOutcome::Refused(Refusal::Permanent(reason))),
            Err(error) => Err(error.into()),
        }
    }

    fn id(&self) -> anyhow::Result<VolumeId> {
        Ok(self.volume.as_ref().context("no volume is rented")?.id.clone())
    }

    fn wait(&mut self, id: &VolumeId, state: VolumeState) -> anyhow::Result<()> {
        self.volume = Some(wait_for("the volume's change", TIMEOUT, || {
            let volume = self.provider.describe(id)?;
            Ok((volume.state == state).then_some(volume))
        })?);
        Ok(())
    }

    /// At the end, whatever the controller was about: nothing stays rented.
    fn release(&mut self) {
        let _ = self.cache.release();
        if let Ok(id) = self.id() {
            let _ = self.provider.detach(&id);
            let _ = self.wait(&id, VolumeState::Available);
            let _ = self.provider.delete(&id);
        }
    }
}
