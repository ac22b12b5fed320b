//! Surgetank, driven as a user would: a configuration, `serve`, `status`, `boost`, `drain`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::interrupt::{Interrupt, Server, output};
use crate::machine::wait_for;

const DEVICE: &str = "lab";
/// Where the daemon's own files are.
const FILES: &str = "/run/lab-surgetank";
/// What a daemon says in a guest.
const LOG: &str = "/lab/surgetank.log";
/// The token of the host's provisioning service.
pub const TOKEN: &str = "/lab/token";
/// What is rented there.
pub const VOLUME_TYPE: &str = "fast";
/// What a cloud's calls take, in a configuration of the local provider.
const LATENCIES: &str = "create_latency = \"2 s\"\nattach_latency = \"1500 ms\"\n";
/// As `packaging/systemd/surgetank.service` has it.
const NICE: i32 = -20;
const TIMEOUT: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(900);

/// A running daemon with one device.
pub struct Surgetank {
    daemon: Server,
    control: PathBuf,
    interrupt: Interrupt,
}

/// Where volumes come from.
#[derive(Clone, Debug)]
pub enum Rent {
    /// Files in a directory, by the local provider.
    Local(PathBuf),
    /// The same, with a cloud's latencies.
    Late(PathBuf),
    /// Disks that the host plugs in, by its provisioning service at this address.
    Plugged(String),
}

impl Rent {
    /// The provider's name in configurations.
    fn provider(&self) -> &'static str {
        if matches!(self, Self::Local(_)) { "local" } else { "host" }
    }
}

/// The device that it serves.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Its controller's name.
    pub policy: String,
    /// The slow disk below: a path, or what else `backing` takes.
    pub slow: PathBuf,
    /// How it is shown: `auto`, `fuse`, `nbd`.
    pub export: &'static str,
    /// MiB/s of the slow disk and of caching volumes.
    pub rates_mib_s: (u64, u64),
    /// Their IOPS, where they are limited.
    pub iops: (Option<u64>, Option<u64>),
    /// Whether the daemon holds both to these limits. It does not where QEMU does.
    pub throttle: bool,
    /// Whether burst writes go to both; the policy's default if it is not told.
    pub split: Option<bool>,
    /// First, smallest and largest caching volume.
    pub cache_mib: (u64, u64, u64),
    /// Sizes are multiples of this.
    pub grain_mib: u64,
    /// Volumes that a caching volume is striped over.
    pub volumes: u32,
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
    pub fn steered(policy: &str, slow: &Path, cache_mib: u64, rates_mib_s: (u64, u64)) -> Self {
        let triggers = Triggers {
            threshold: 1.0,
            inactivity: Duration::from_secs(3600),
            sampling: Duration::from_secs(1),
            interval: Some(Duration::ZERO),
        };
        Self {
            policy: policy.to_owned(),
            slow: slow.to_owned(),
            export: "auto",
            rates_mib_s,
            iops: (None, None),
            throttle: false,
            split: None,
            cache_mib: (cache_mib, cache_mib, cache_mib),
            grain_mib: 1,
            volumes: 1,
            triggers,
        }
    }
}

/// What it says of its caching volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rented {
    /// Size of the one that is rented now, from the call that asks for it to the one that deletes it; 0 if none is.
    pub cache_mib: f64,
    /// Size of the next.
    pub next_mib: f64,
    pub boosts: u64,
    /// Nothing is rented, and nothing is being done about it.
    pub idle: bool,
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
    /// In these directories.
    pub fn local(files: &str, volumes: &str) -> Self {
        let rent = Rent::Local(Path::new(volumes).join("volumes"));
        Self { files: files.into(), rent, log: LOG.into() }
    }

    /// In memory, with disks that the host plugs in.
    pub fn plugged(service: String) -> Self {
        Self { files: FILES.into(), rent: Rent::Plugged(service), log: LOG.into() }
    }

    /// What a section says that rents volumes.
    fn renting(&self) -> String {
        format!("provider = \"{}\"\nvolume_type = \"{VOLUME_TYPE}\"\n", self.rent.provider())
    }
}

#[derive(Debug, Deserialize)]
struct Status {
    devices: Vec<DeviceStatus>,
}

/// What it says of its arrays.
#[derive(Debug, Deserialize)]
struct ArraysReport {
    arrays: Vec<ArrayStatus>,
}

#[derive(Debug, Deserialize)]
struct ArrayStatus {
    replacing: Vec<u32>,
    volumes: Vec<ArrayVolume>,
}

#[derive(Debug, Deserialize)]
struct ArrayVolume {
    part: String,
    copied_share: Option<f64>,
}

/// What it says of its device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Where its users find it; empty until it is served.
    pub address: String,
    export: String,
    /// What it does.
    pub phase: String,
    /// Why it does not do more.
    pub reason: Option<String>,
    /// What it has discarded.
    pub lost_bytes: u64,
    caching: Option<Caching>,
    read_cache: Option<ReadCache>,
    boosts: u64,
    next_cache_gib: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Caching {
    volume: String,
    size_gib: f64,
    dirty_gib: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ReadCache {
    hit_gib: f64,
    missed_gib: f64,
    volumes: Vec<CacheVolume>,
    share: Option<Share>,
}

/// What it says of a read cache that shares with others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// What the cache may have.
    pub size_gib: f64,
    /// What reads are expected to take in the interval that runs.
    pub predicted_ms: Option<f64>,
    /// What they took in the last one.
    pub latency_ms: Option<f64>,
    /// What they may take, as far as the daemon knows.
    pub bound_ms: Option<f64>,
    /// Intervals that have ended.
    pub interval: u64,
    /// Why all have equal parts.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct CacheVolume {
    part: String,
}

impl DeviceStatus {
    /// The provider's name of its caching volume.
    pub fn volume(&self) -> Option<&str> {
        self.caching.as_ref().map(|caching| caching.volume.as_str())
    }

    /// Its share of what the machine has for read caches.
    pub fn share(&self) -> Option<&Share> {
        self.read_cache.as_ref()?.share.as_ref()
    }

    /// What is on that alone, in MiB.
    pub fn dirty_mib(&self) -> f64 {
        self.caching.as_ref().map_or(0.0, |caching| caching.dirty_gib * 1024.0)
    }
}

impl Surgetank {
    /// Serves one device over the slow disk; it recovers what it finds.
    pub fn start(binary: &Path, elastic: &Elastic, places: &Places) -> anyhow::Result<Self> {
        Self::serve(Command::new(binary), elastic, places, &Interrupt::default())
    }

    /// The same by a command that starts the binary; every wait ends on Ctrl-C.
    pub fn serve(command: Command, elastic: &Elastic, places: &Places, interrupt: &Interrupt) -> anyhow::Result<Self> {
        Self::serve_all(command, &[(DEVICE.to_owned(), elastic.clone())], places, interrupt)
    }

    /// The same for several devices, with their names.
    pub fn serve_all(
        command: Command,
        devices: &[(String, Elastic)],
        places: &Places,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let sections = devices.iter().map(|(name, elastic)| section(places, name, elastic)).collect::<String>();
        let mut surgetank = Self::serve_sections(command, &sections, places, interrupt)?;
        surgetank.wait_served(devices.len())?;
        Ok(surgetank)
    }

    /// Serves so many devices, with these sections of a configuration, once each has so many members of its read cache.
    pub fn with_read_caches(
        command: Command,
        (devices, members): (usize, usize),
        sections: &str,
        places: &Places,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut surgetank = Self::serve_sections(command, sections, places, interrupt)?;
        surgetank.wait_served(devices)?;
        surgetank.wait_for("the read caches", TIMEOUT, |surgetank| {
            let has_all = |device: &DeviceStatus| {
                let volumes = device.read_cache.iter().flat_map(|cache| &cache.volumes);
                volumes.filter(|volume| volume.part == "serving").count() == members
            };
            Ok(surgetank.devices()?.iter().all(has_all).then_some(()))
        })?;
        Ok(surgetank)
    }

    /// Serves one device, [`DEVICE`], over a new array of this name and with these lines of its section.
    pub fn over_array(binary: &Path, array: &str, lines: &str, places: &Places) -> anyhow::Result<Self> {
        let renting = places.renting();
        let sections = format!("[array.{array}]\n{renting}{lines}[device.{DEVICE}]\nbacking = \"array:{array}\"\n");
        // A daemon that can serve no device does not run on.
        let config = configured(places, &sections)?;
        let mut create = Command::new(binary);
        output(create.args(["array", "create", array, "--config"]).arg(&config))?;
        let mut surgetank = Self::serve_sections(Command::new(binary), &sections, places, &Interrupt::default())?;
        surgetank.wait_served(1)?;
        Ok(surgetank)
    }

    /// Serves [`DEVICE`] over this disk of so many MiB/s, with a read cache of so many members, all of them in use, and
    /// with these lines of the cache's section.
    pub fn over_read_cache(
        binary: &Path,
        (slow, slow_mib_s): (&Path, u64),
        (members, lines): (u32, &str),
        places: &Places,
    ) -> anyhow::Result<Self> {
        let (slow, renting) = (slow.display(), places.renting());
        let sections = format!(
            "[device.{DEVICE}]\nbacking = \"{slow}\"\n[device.{DEVICE}.backing_limits]\nbandwidth = \"{slow_mib_s} MiB/s\"\n\
             [device.{DEVICE}.read_cache]\n{renting}members = {members}\n{lines}"
        );
        Self::with_read_caches(Command::new(binary), (1, members as usize), &sections, places, &Interrupt::default())
    }

    /// GiB that its read cache has answered, and GiB that it has not.
    pub fn cached_reads(&self) -> anyhow::Result<[f64; 2]> {
        let cache = self.status()?.read_cache.context("status shows no read cache")?;
        Ok([cache.hit_gib, cache.missed_gib])
    }

    fn serve_sections(
        mut command: Command,
        sections: &str,
        places: &Places,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let Places { files, rent, log } = places;
        // A drain takes long.
        let patience = match rent {
            Rent::Local(directory) | Rent::Late(directory) => fs::create_dir_all(directory).map(|()| TIMEOUT)?,
            Rent::Plugged(_) => DRAIN,
        };
        let config = configured(places, sections)?;
        // It inherits this thread's.
        setpriority_process(None, NICE)?;
        let daemon = Server::start("the daemon", log, patience, command.arg("serve").arg("--config").arg(&config));
        setpriority_process(None, 0)?;
        let daemon = daemon?;
        Ok(Self { daemon, control: files.join("run/control.sock"), interrupt: interrupt.clone() })
    }

    fn wait_served(&mut self, devices: usize) -> anyhow::Result<()> {
        self.wait_for("the daemon's export", TIMEOUT, |surgetank| {
            // Until its control socket is there, nobody answers.
            let found = surgetank.devices().unwrap_or_default();
            let served = found.iter().filter(|device| !device.address.is_empty()).count();
            Ok((served == devices).then_some(()))
        })
    }

    /// Has an array replace the member of a slot.
    pub fn rotate(&self, array: &str, slot: u32) -> anyhow::Result<()> {
        self.ask(&json!({"command": "array_rotate", "name": array, "slot": slot})).map(drop)
    }

    /// Of the member that its array copies to: what of its data it has, from 0 to 1. `None`: no member is being replaced, and
    /// every volume is a member.
    pub fn copied_share(&self) -> anyhow::Result<Option<f64>> {
        let said = self.ask(&json!({"command": "array_status"}))?;
        let report: ArraysReport = serde_json::from_value(said).context("the arrays' status cannot be read")?;
        let array = report.arrays.first().context("the daemon lists no array")?;
        let calm = array.replacing.is_empty() && array.volumes.iter().all(|volume| volume.part == "active");
        Ok((!calm).then(|| array.volumes.iter().find_map(|volume| volume.copied_share).unwrap_or(0.0)))
    }

    /// Boosts all devices at once, and waits until all caching volumes absorb.
    pub fn boost_all(&mut self) -> anyhow::Result<()> {
        for device in self.devices()? {
            self.ask(&json!({"command": "boost", "device": device.name}))?;
        }
        self.wait_for("the boosts", TIMEOUT, |surgetank| {
            Ok(surgetank.devices()?.iter().all(|device| device.phase == "boost").then_some(()))
        })
    }

    /// What is rented now.
    pub fn rented(&self) -> anyhow::Result<Rented> {
        let device = self.status()?;
        Ok(Rented {
            cache_mib: device.caching.map_or(0.0, |caching| caching.size_gib * 1024.0),
            next_mib: device.next_cache_gib.unwrap_or(0.0) * 1024.0,
            boosts: device.boosts,
            idle: device.phase == "idle",
        })
    }

    /// The same; an error if it has ended.
    pub fn health(&mut self) -> anyhow::Result<DeviceStatus> {
        self.daemon.check()?;
        self.status()
    }

    /// Tells it to end its boost, and does not wait for that. One that ends by itself refuses to be told so.
    pub fn ask_to_drain(&self) {
        let _ = self.ask(&json!({"command": "drain", "device": DEVICE}));
    }

    /// Where the device is.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        Ok(self.status()?.address.into())
    }

    /// Ends a boost that recovery found, if it did.
    pub fn idle(&mut self) -> anyhow::Result<()> {
        if self.status()?.phase != "idle" {
            self.ask_to_drain();
        }
        self.wait_for("an idle device", DRAIN, |surgetank| Ok((surgetank.status()?.phase == "idle").then_some(())))
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.daemon.check()?;
        let patience = self.daemon.patience;
        self.daemon.running.ask_to_end(patience);
        match self.daemon.running.ended() {
            Some(status) if status.success() => Ok(()),
            Some(status) => anyhow::bail!("the daemon did not end in order within {} s: {status}", patience.as_secs()),
            None => anyhow::bail!("the daemon cannot be ended"),
        }
    }

    /// Boosts, and waits until the caching volume absorbs; where the device is.
    pub fn boost(&mut self) -> anyhow::Result<PathBuf> {
        self.ask(&json!({"command": "boost", "device": DEVICE}))?;
        self.wait_for("the boost", TIMEOUT, |surgetank| {
            let device = surgetank.status()?;
            Ok((device.phase == "boost").then_some(PathBuf::from(device.address)))
        })
    }

    /// Drains; `seen` is told of what is still dirty, in MiB, at every look.
    pub fn drain_seen(&mut self, mut seen: impl FnMut(f64)) -> anyhow::Result<()> {
        self.ask(&json!({"command": "drain", "device": DEVICE}))?;
        self.wait_for("surgetank's drain", DRAIN, |surgetank| {
            let dirty_mib = surgetank.status()?.dirty_mib();
            seen(dirty_mib);
            Ok((dirty_mib == 0.0).then_some(()))
        })
    }

    /// Waits until the caching volume is away.
    pub fn detached(&mut self) -> anyhow::Result<()> {
        self.wait_for(
            "surgetank's detach",
            TIMEOUT,
            |surgetank| Ok((surgetank.status()?.phase == "idle").then_some(())),
        )
    }

    /// The daemon's process.
    pub fn process(&self) -> u32 {
        self.daemon.running.child.id()
    }

    /// How the device is shown.
    pub fn export(&self) -> String {
        self.status().map_or(String::new(), |device| device.export)
    }

    fn wait_for<T>(
        &mut self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let interrupt = self.interrupt.clone();
        wait_for(what, timeout, || {
            interrupt.check()?;
            self.daemon.check()?;
            done(self)
        })
    }

    /// Over the control socket, as the client commands do it: starting one of them would itself take the processor.
    fn ask(&self, request: &Value) -> anyhow::Result<Value> {
        let mut lines = BufReader::new(UnixStream::connect(&self.control).context("the daemon does not listen")?);
        lines.get_ref().set_read_timeout(Some(TIMEOUT))?;
        writeln!(lines.get_mut(), "{request}").context("the daemon does not listen")?;
        let mut line = String::new();
        lines.read_line(&mut line).context("the daemon does not answer")?;
        let mut answer: Value = serde_json::from_str(&line).context("the daemon's answer cannot be read")?;
        match answer.get_mut("ok") {
            Some(answer) => Ok(answer.take()),
            None => anyhow::bail!("the daemon refuses {request}: {answer}"),
        }
    }

    /// What it says of its device.
    pub fn status(&self) -> anyhow::Result<DeviceStatus> {
        self.devices()?.into_iter().find(|device| device.name == DEVICE).context("status does not list the device")
    }

    /// What it says of all its devices.
    pub fn devices(&self) -> anyhow::Result<Vec<DeviceStatus>> {
        let said = self.ask(&json!({"command": "status"}))?;
        let status: Status = serde_json::from_value(said).context("the daemon's status cannot be read")?;
        Ok(status.devices)
    }
}

/// Makes the directories, and writes the configuration to the file that this returns.
fn configured(places: &Places, sections: &str) -> anyhow::Result<PathBuf> {
    for part in ["state", "run"] {
        fs::create_dir_all(places.files.join(part))?;
    }
    let config = places.files.join("surgetank.toml");
    fs::write(&config, configuration(places, sections))?;
    Ok(config)
}

fn configuration(places: &Places, sections: &str) -> String {
    let provider = match &places.rent {
        Rent::Local(directory) => format!("[provider.local]\ndirectory = \"{}\"\n", directory.display()),
        Rent::Late(directory) => {
            format!("[provider.local]\ndirectory = \"{}\"\n{LATENCIES}", directory.display())
        }
        Rent::Plugged(url) => {
            format!("[provider.host]\nurl = \"{url}\"\nallow_plain = true\ntoken_file = \"{TOKEN}\"\n")
        }
    };
    let files = places.files.display();
    format!("state_directory = \"{files}/state\"\nrun_directory = \"{files}/run\"\n{provider}{sections}")
}

/// What a configuration says of one device.
fn section(places: &Places, device: &str, elastic: &Elastic) -> String {
    let name = places.rent.provider();
    let Elastic { policy, slow, export, throttle, cache_mib, grain_mib, volumes, triggers, .. } = elastic;
    let (slow_mib_s, fast_mib_s) = elastic.rates_mib_s;
    let iops = |iops: Option<u64>| iops.map_or(String::new(), |iops| format!("iops = \"{iops} IOPS\"\n"));
    let split = elastic.split.map_or(String::new(), |split| format!("split = {split}\n"));
    let (initial, min, max) = cache_mib;
    let interval =
        triggers.interval.map_or(String::new(), |least| format!("boost_interval = \"{} ms\"\n", least.as_millis()));
    // Whatever becomes of a mode, what it has rented is not left to the next one.
    let on_stop = if matches!(places.rent, Rent::Plugged(_)) { "on_stop = \"drain\"\n" } else { "" };
    format!(
        "[device.{device}]\n\
         backing = \"{slow}\"\n\
         export = \"{export}\"\n\
         throttle = {throttle}\n\
         {on_stop}\
         [device.{device}.backing_limits]\n\
         bandwidth = \"{slow_mib_s} MiB/s\"\n\
         {slow_iops}\
         [device.{device}.caching]\n\
         provider = \"{name}\"\n\
         bandwidth = \"{fast_mib_s} MiB/s\"\n\
         {fast_iops}\
         volume_type = \"{VOLUME_TYPE}\"\n\
         throttle = {throttle}\n\
         volumes = {volumes}\n\
         initial_size = \"{initial} MiB\"\n\
         min_size = \"{min} MiB\"\n\
         max_size = \"{max} MiB\"\n\
         [device.{device}.policy]\n\
         name = \"{policy}\"\n\
         size_grain = \"{grain_mib} MiB\"\n\
         utilization_threshold = {threshold:?}\n\
         inactivity_delay = \"{inactivity} ms\"\n\
         sampling = \"{sampling} ms\"\n\
         {split}\
         {interval}",
        slow = slow.display(),
        slow_iops = iops(elastic.iops.0),
        fast_iops = iops(elastic.iops.1),
        threshold = triggers.threshold,
        inactivity = triggers.inactivity.as_millis(),
        sampling = triggers.sampling.as_millis(),
    )
}
