//! Surgetank, driven as a user would: a configuration, `serve`, `status`, `boost`, `drain`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::machine::wait_for;
use super::measure::Order;
use super::peer::Peer;
use crate::interrupt::Running;

const DEVICE: &str = "lab";
/// Where the daemon's own files are.
const FILES: &str = "/run/lab-surgetank";
/// The token of the host's provisioning service.
pub const TOKEN: &str = "/lab/token";
/// What is rented there.
pub const VOLUME_TYPE: &str = "fast";
const PATIENCE: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(900);

/// A running daemon with one device.
pub struct Surgetank {
    daemon: Running,
    places: Places,
}

/// Where volumes come from.
#[derive(Clone, Debug)]
pub enum Rent {
    /// Files in a directory, by the local provider.
    Local(PathBuf),
    /// Disks that the host plugs in, by its provisioning service at this address.
    Plugged(String),
}

/// The device that it serves.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Its controller's name.
    pub policy: String,
    /// The slow disk below.
    pub slow: PathBuf,
    /// MiB/s of the slow disk and of caching volumes: QEMU throttles them, so the daemon does not throttle them again.
    pub rates_mib_s: (u64, u64),
    /// First, smallest and largest caching volume.
    pub cache_mib: (u64, u64, u64),
    /// Sizes are multiples of this.
    pub grain_mib: u64,
    /// What moves it.
    pub triggers: Triggers,
}

/// What starts and ends a boost.
#[derive(Clone, Copy, Debug)]
pub struct Triggers {
    /// Share of the slow disk's rate above which a boost starts.
    pub threshold: f64,
    /// How long the share stays below it before the boost ends.
    pub inactivity: Duration,
    /// How often it looks.
    pub sampling: Duration,
    /// The least time between two boosts; the product's default if there is none.
    pub interval: Option<Duration>,
}

impl Elastic {
    /// A device that only `boost` and `drain` move, with caching volumes of one size: a threshold that nothing reaches
    /// without a boost, and no inactivity that ends one.
    #[must_use]
    pub fn steered(policy: &str, slow: &Path, cache_mib: u64, rates_mib_s: (u64, u64)) -> Self {
        let triggers = Triggers {
            threshold: 1.0,
            inactivity: Duration::from_secs(3600),
            sampling: Duration::from_secs(1),
            interval: Some(Duration::ZERO),
        };
        let (policy, slow) = (policy.to_owned(), slow.to_owned());
        Self { policy, slow, rates_mib_s, cache_mib: (cache_mib, cache_mib, cache_mib), grain_mib: 1, triggers }
    }
}

/// What it says of its caching volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rented {
    /// Size of the one that is rented now, from the call that asks for it to the one that gives it back; 0 if none is.
    pub cache_mib: f64,
    /// Size of the next.
    pub next_mib: f64,
    /// Boosts so far.
    pub boosts: u64,
    /// Nothing is rented, and nothing is being done about it.
    pub idle: bool,
}

/// What it says of its data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// What it does.
    pub phase: String,
    /// Why it does not do more.
    pub reason: Option<String>,
    /// The provider's name of its caching volume; empty if there is none.
    pub volume: String,
    /// What is on that alone.
    pub dirty_mib: f64,
    /// What it has given up.
    pub lost_bytes: u64,
}

/// Where its files are.
#[derive(Clone, Debug)]
pub struct Places {
    /// State, sockets and configuration.
    pub files: PathBuf,
    /// Where its volumes come from.
    pub rent: Rent,
    /// What it says.
    pub log: PathBuf,
}

impl Places {
    /// In memory, with disks that the host plugs in.
    #[must_use]
    pub fn plugged(service: String) -> Self {
        Self { files: FILES.into(), rent: Rent::Plugged(service), log: "/lab/surgetank.log".into() }
    }
}

#[derive(Debug, Deserialize)]
struct Status {
    devices: Vec<Device>,
}

#[derive(Clone, Debug, Deserialize)]
struct Device {
    name: String,
    address: String,
    export: String,
    phase: String,
    reason: Option<String>,
    lost_bytes: u64,
    caching: Option<Caching>,
    boosts: u64,
    next_cache_gib: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Caching {
    volume: String,
    size_gib: f64,
    dirty_gib: f64,
}

impl Surgetank {
    /// Serves one device over the slow disk, with its files on a disk of its own; it is not boosted yet.
    ///
    /// # Errors
    /// If the daemon does not come up.
    pub fn serve(order: &Order, policy: &str, slow: &Path, cache_mib: u64) -> anyhow::Result<Self> {
        let elastic = Elastic::steered(policy, slow, cache_mib, (order.slow_mib_s, order.fast_mib_s));
        Self::start(&order.surgetank, &elastic, Places::plugged(order.service.clone()))
    }

    /// Serves one device over the slow disk; it recovers what it finds.
    ///
    /// # Errors
    /// If the daemon does not come up.
    pub fn start(binary: &Path, elastic: &Elastic, places: Places) -> anyhow::Result<Self> {
        for part in ["state", "run"] {
            fs::create_dir_all(places.files.join(part))?;
        }
        if let Rent::Local(directory) = &places.rent {
            fs::create_dir_all(directory)?;
        }
        let config = places.files.join("surgetank.toml");
        fs::write(&config, configuration(&places, elastic))?;
        let log = fs::File::options().create(true).append(true).open(&places.log).context("cannot make a log")?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&config).stdout(log.try_clone()?).stderr(log);
        let mut surgetank = Self { daemon: Running::start(&mut command)?, places };
        wait_for("the daemon's export", PATIENCE, || {
            surgetank.check()?;
            // Until its control socket is there, nobody answers.
            Ok(surgetank.status().ok().filter(|device| !device.address.is_empty()).map(|_| ()))
        })?;
        Ok(surgetank)
    }

    /// What is rented now.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn rented(&self) -> anyhow::Result<Rented> {
        let device = self.status()?;
        Ok(Rented {
            cache_mib: device.caching.map_or(0.0, |caching| caching.size_gib * 1024.0),
            next_mib: device.next_cache_gib.unwrap_or(0.0) * 1024.0,
            boosts: device.boosts,
            idle: device.phase == "idle",
        })
    }

    /// How its data are.
    ///
    /// # Errors
    /// If the daemon does not answer or has ended.
    pub fn health(&mut self) -> anyhow::Result<Health> {
        self.check()?;
        let device = self.status()?;
        let (volume, dirty_mib) =
            device.caching.map_or((String::new(), 0.0), |caching| (caching.volume, caching.dirty_gib * 1024.0));
        let (phase, reason, lost_bytes) = (device.phase, device.reason, device.lost_bytes);
        Ok(Health { phase, reason, volume, dirty_mib, lost_bytes })
    }

    /// Tells it to end its boost, and does not wait for that. One that ends by itself refuses to be told so.
    pub fn ask_to_drain(&self) {
        let _ = self.ask(&json!({"command": "drain", "device": DEVICE}));
    }

    /// Where the device is.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        Ok(self.status()?.address.into())
    }

    /// Ends a boost that recovery found, if it did.
    ///
    /// # Errors
    /// If it does not come to an end.
    pub fn idle(&mut self) -> anyhow::Result<()> {
        if self.status()?.phase != "idle" {
            self.ask_to_drain();
        }
        wait_for("an idle device", DRAIN, || {
            self.check()?;
            Ok((self.status()?.phase == "idle").then_some(()))
        })
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// If it had to be killed, or complains.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.check()?;
        let patience = self.patience();
        self.daemon.ask_to_end(patience);
        match self.daemon.ended() {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!("the daemon did not end in order within {} s: {status}", patience.as_secs()),
            None => anyhow::bail!("the daemon cannot be ended"),
        }
    }

    /// How long it may take to end.
    fn patience(&self) -> Duration {
        if matches!(self.places.rent, Rent::Plugged(_)) { DRAIN } else { PATIENCE }
    }

    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.daemon.ended() {
            let said = fs::read_to_string(&self.places.log).unwrap_or_default();
            anyhow::bail!("the daemon ended ({status}): {}", said.trim().lines().last().unwrap_or_default());
        }
        Ok(())
    }

    /// Over the control socket, as the client commands do it: starting one of them would itself take the processor.
    fn ask(&self, request: &Value) -> anyhow::Result<Value> {
        let socket = self.places.files.join("run/control.sock");
        let mut lines = BufReader::new(UnixStream::connect(socket).context("the daemon does not listen")?);
        lines.get_ref().set_read_timeout(Some(PATIENCE))?;
        writeln!(lines.get_mut(), "{request}").context("the daemon does not listen")?;
        let mut line = String::new();
        lines.read_line(&mut line).context("the daemon does not answer")?;
        let mut answer: Value = serde_json::from_str(&line).context("the daemon's answer cannot be read")?;
        match answer.get_mut("ok") {
            Some(answer) => Ok(answer.take()),
            None => anyhow::bail!("the daemon refuses {request}: {answer}"),
        }
    }

    fn status(&self) -> anyhow::Result<Device> {
        let said = self.ask(&json!({"command": "status"}))?;
        let status: Status = serde_json::from_value(said).context("the daemon's status cannot be read")?;
        status.devices.into_iter().find(|device| device.name == DEVICE).context("status does not list the device")
    }
}

impl Drop for Surgetank {
    fn drop(&mut self) {
        // Asked to end it puts its exports away; the file system could not be unmounted otherwise.
        self.daemon.ask_to_end(self.patience());
    }
}

impl Peer for Surgetank {
    fn at_rest(&self) -> anyhow::Result<Option<PathBuf>> {
        self.device().map(Some)
    }

    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        self.ask(&json!({"command": "boost", "device": DEVICE}))?;
        wait_for("the boost", PATIENCE, || {
            self.check()?;
            let device = self.status()?;
            Ok((device.phase == "boost").then_some(PathBuf::from(device.address)))
        })
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        Ok(self.status()?.caching.map_or(0.0, |caching| caching.dirty_gib * 1024.0))
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        self.ask(&json!({"command": "drain", "device": DEVICE}))?;
        wait_for("surgetank's drain", DRAIN, || {
            self.check()?;
            Ok((self.dirty_mib()? == 0.0).then_some(()))
        })
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        wait_for("surgetank's detach", PATIENCE, || Ok((self.status()?.phase == "idle").then_some(())))
    }

    fn process(&self) -> Option<u32> {
        Some(self.daemon.child.id())
    }

    fn export(&self) -> String {
        self.status().map_or(String::new(), |device| device.export)
    }
}

fn configuration(places: &Places, elastic: &Elastic) -> String {
    let (name, provider) = match &places.rent {
        Rent::Local(directory) => ("local", format!("[provider.local]\ndirectory = \"{}\"\n", directory.display())),
        Rent::Plugged(url) => {
            ("qemu", format!("[provider.qemu]\nurl = \"{url}\"\nallow_plain = true\ntoken_file = \"{TOKEN}\"\n"))
        }
    };
    let Elastic { policy, slow, rates_mib_s: (slow_mib_s, fast_mib_s), cache_mib, grain_mib, triggers } = elastic;
    let (initial, min, max) = cache_mib;
    let interval =
        triggers.interval.map_or(String::new(), |least| format!("boost_interval = \"{} ms\"\n", least.as_millis()));
    // Whatever becomes of a mode, what it has rented is not left to the next one.
    let on_stop = if matches!(places.rent, Rent::Plugged(_)) { "on_stop = \"drain\"\n" } else { "" };
    format!(
        "state_directory = \"{files}/state\"\n\
         run_directory = \"{files}/run\"\n\
         {provider}\
         [device.{DEVICE}]\n\
         backing = \"{slow}\"\n\
         export = \"auto\"\n\
         {on_stop}\
         [device.{DEVICE}.backing_limits]\n\
         bandwidth = \"{slow_mib_s} MiB/s\"\n\
         [device.{DEVICE}.caching]\n\
         provider = \"{name}\"\n\
         bandwidth = \"{fast_mib_s} MiB/s\"\n\
         volume_type = \"{VOLUME_TYPE}\"\n\
         throttle = false\n\
         initial_size = \"{initial} MiB\"\n\
         min_size = \"{min} MiB\"\n\
         max_size = \"{max} MiB\"\n\
         [device.{DEVICE}.policy]\n\
         name = \"{policy}\"\n\
         size_grain = \"{grain_mib} MiB\"\n\
         utilization_threshold = {threshold:?}\n\
         inactivity_delay = \"{inactivity} ms\"\n\
         sampling = \"{sampling} ms\"\n\
         {interval}",
        slow = slow.display(),
        files = places.files.display(),
        threshold = triggers.threshold,
        inactivity = triggers.inactivity.as_millis(),
        sampling = triggers.sampling.as_millis(),
    )
}
