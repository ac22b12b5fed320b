//! The `surgetank` daemon under test, driven as a user would: a configuration, `serve`, `status`, `boost`, `drain`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::rig::{Interrupt, Server, Throttle};

/// How long the daemon may take to come up, or to carry out a command.
const PATIENCE: Duration = Duration::from_secs(30);
/// The elastic device of every bench.
const DEVICE: &str = "bench";

/// A running daemon with one elastic device.
#[derive(Debug)]
pub struct Surgetank {
    server: Server,
    binary: PathBuf,
    control: PathBuf,
    export: String,
}

/// What `status --json` says of the device, as far as the benches need it.
#[derive(Clone, Debug, Deserialize)]
pub struct Device {
    name: String,
    address: String,
    /// `idle`, `attaching`, `boost`, …
    pub phase: String,
    /// The caching volume.
    pub caching: Option<Caching>,
}

/// What `status --json` says of a caching volume.
#[derive(Clone, Debug, Deserialize)]
pub struct Caching {
    /// Its size.
    pub size_gib: f64,
    /// What is not yet on the backing volume.
    pub dirty_gib: f64,
}

#[derive(Deserialize)]
struct Status {
    devices: Vec<Device>,
}

/// The elastic device to serve: the body of `[device.bench]` and the sections after it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Names the daemon's folder and log.
    pub name: &'static str,
    /// `backing`, in the words of the configuration.
    pub backing: String,
    /// `fuse` or `nbd`.
    pub export: &'static str,
    /// Whether the daemon holds the backing volume to its limits.
    pub throttle: bool,
    /// Nominal limits of the backing volume: MiB/s and IOPS.
    pub backing_limits: (u64, Option<u64>),
    /// Limits of the caching volume: MiB/s and IOPS.
    pub caching_limits: (u64, Option<u64>),
    /// Size of the caching volume in MiB.
    pub cache_mib: u64,
    /// Split burst writes over both volumes.
    pub split: bool,
}

impl Setting {
    /// A device that passes through, over a backing volume that the daemon does not throttle: its nominal bandwidth
    /// is so high that no load is a burst.
    pub fn passing(name: &'static str, backing: String, export: &'static str) -> Self {
        let mib_s = 100_000;
        Self {
            name,
            backing,
            export,
            throttle: false,
            backing_limits: (mib_s, None),
            caching_limits: (mib_s, None),
            cache_mib: 1024,
            split: false,
        }
    }

    fn text(&self, folder: &Path) -> String {
        let folder = folder.display();
        let iops = |iops: Option<u64>| iops.map_or(String::new(), |iops| format!("iops = \"{iops} IOPS\"\n"));
        let (backing_mib_s, backing_iops) = self.backing_limits;
        let (caching_mib_s, caching_iops) = self.caching_limits;
        let Self { backing, export, throttle, cache_mib, split, .. } = self;
        // Only the bench's own `boost` and `drain` may move the device: a threshold that nothing reaches in
        // pass-through, and no inactivity that ends a boost.
        format!(
            "state_directory = \"{folder}/state\"\n\
             run_directory = \"{folder}/run\"\n\
             [provider.local]\n\
             directory = \"{folder}/volumes\"\n\
             [provider.local.types.bench]\n\
             bandwidth = \"{caching_mib_s} MiB/s\"\n\
             {caching_iops}\
             [device.{DEVICE}]\n\
             backing = \"{backing}\"\n\
             export = \"{export}\"\n\
             throttle = {throttle}\n\
             on_stop = \"drain\"\n\
             [device.{DEVICE}.backing_limits]\n\
             bandwidth = \"{backing_mib_s} MiB/s\"\n\
             {backing_iops}\
             [device.{DEVICE}.caching]\n\
             volume_type = \"bench\"\n\
             initial_size = \"{cache_mib} MiB\"\n\
             min_size = \"{cache_mib} MiB\"\n\
             max_size = \"{cache_mib} MiB\"\n\
             [device.{DEVICE}.policy]\n\
             name = \"adaptive\"\n\
             split = {split}\n\
             size_grain = \"1 MiB\"\n\
             utilization_threshold = 1.0\n\
             inactivity_delay = \"60 min\"\n\
             boost_interval = \"0 s\"\n",
            backing_iops = iops(backing_iops),
            caching_iops = iops(caching_iops),
        )
    }
}

impl Surgetank {
    /// Serves one device, in a control group if there is one, and waits until it can be used.
    ///
    /// # Errors
    /// If the daemon does not come up.
    pub fn serve(
        interrupt: &Interrupt,
        directory: &Path,
        throttle: Option<&Throttle>,
        setting: &Setting,
    ) -> anyhow::Result<Self> {
        let folder = directory.join(setting.name);
        for part in ["state", "run", "volumes"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let config = folder.join("surgetank.toml");
        fs::write(&config, setting.text(&folder))?;
        let binary = crate::product::binary()?;
        let mut command = throttle.map_or_else(|| Command::new(&binary), |throttle| throttle.command(&binary));
        command.arg("serve").arg("--config").arg(&config);
        let mut surgetank = Self {
            server: Server::start("surgetank", &folder, &mut command)?,
            binary,
            control: folder.join("run/control.sock"),
            export: String::new(),
        };
        surgetank.export = interrupt.wait_for("the daemon's export", PATIENCE, || {
            surgetank.server.check()?;
            // Until its control socket is there, `status` fails.
            Ok(surgetank.status(interrupt).ok().map(|device| device.address).filter(|address| !address.is_empty()))
        })?;
        Ok(surgetank)
    }

    /// Where it is exported: `/dev/loopN` or `nbd+unix://…`.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// What `status` says now.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn status(&self, interrupt: &Interrupt) -> anyhow::Result<Device> {
        let output = interrupt.run(self.command("status").arg("--json"))?;
        let status: Status =
            serde_json::from_slice(&output.stdout).context("cannot read the answer of status --json")?;
        status.devices.into_iter().find(|device| device.name == DEVICE).context("status does not list the device")
    }

    /// Boosts and waits until the caching volume absorbs.
    ///
    /// # Errors
    /// If it does not come to that.
    pub fn boost(&mut self, interrupt: &Interrupt) -> anyhow::Result<Caching> {
        interrupt.run(self.command("boost").arg(DEVICE))?;
        interrupt.wait_for("the boost", PATIENCE, || {
            self.server.check()?;
            let device = self.status(interrupt)?;
            Ok(device.caching.filter(|_| device.phase == "boost"))
        })
    }

    /// Drains from the dirty data as they are now, and measures.
    ///
    /// # Errors
    /// If the drain does not end within `timeout`.
    pub fn drain(&mut self, interrupt: &Interrupt, timeout: Duration) -> anyhow::Result<Drained> {
        interrupt.run(self.command("drain").arg(DEVICE))?;
        let mut samples: Vec<(Instant, f64)> = Vec::new();
        interrupt.wait_for("the drain", timeout, || {
            self.server.check()?;
            let device = self.status(interrupt)?;
            let dirty = device.caching.map_or(0.0, |caching| caching.dirty_gib);
            if dirty > 0.0 {
                samples.push((Instant::now(), dirty));
            }
            Ok((dirty == 0.0).then_some(()))
        })?;
        interrupt.wait_for("the detach", PATIENCE, || Ok((self.status(interrupt)?.phase == "idle").then_some(())))?;
        let (Some((start, from)), Some((end, to))) = (samples.first(), samples.last()) else {
            bail!("the drain was over before it could be measured");
        };
        Ok(Drained { gib: from - to, seconds: end.duration_since(*start).as_secs_f64() })
    }

    /// Resident memory in MiB, and its highest so far.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn resident_mib(&self) -> anyhow::Result<(f64, f64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.id()))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        };
        match (field("VmRSS:"), field("VmHWM:")) {
            (Some(now), Some(highest)) => Ok((now / 1024.0, highest / 1024.0)),
            _ => bail!("the kernel does not say how much memory the daemon has"),
        }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(verb).arg("--socket").arg(&self.control);
        command
    }
}

/// A drain between its first and its last look.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// What was drained.
    pub gib: f64,
    /// In what time.
    pub seconds: f64,
}
