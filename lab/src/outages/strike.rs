//! How volumes are made to fail, and to work again: through QEMU's monitor, the provider, and the disks' server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use surgetank_provider::qemu::{Qmp, QmpError};
use surgetank_provider::{Provider, ProviderError, VolumeId, VolumeState};

use super::failing::Failing;
use super::plan::{Failure, Outage};
use crate::cuts::lossy;
use crate::interrupt::Interrupt;
use crate::nbd::Server;

/// The name of the backing volume's disk.
pub const BACKING: &str = "slow";
/// The throttle group of those that stand still. Nothing moves in it but one request of its bucket.
const STILL: &str = "outage-still";
/// How long QEMU may take for an answer on a busy machine.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a guest may take to release a disk, or QEMU to take one.
const HOT_PLUG: Duration = Duration::from_secs(60);
/// A guest that has not released a disk is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(7);

/// A caching volume that is read and written through our server instead of by QEMU.
struct Swapped {
    volume: VolumeId,
    node: String,
    server: Server<Failing<File>>,
}

/// The backing volume: it loses its power at the end of a guest.
pub type Backing = Server<Failing<lossy::Disk>>;

/// The volumes of a guest.
pub struct Storage<'a> {
    interrupt: &'a Interrupt,
    monitor: PathBuf,
    provider: Arc<dyn Provider>,
    /// Whether the provider attaches nothing.
    away: Arc<AtomicBool>,
    backing: &'a Backing,
    /// Where sockets are.
    directory: PathBuf,
    swapped: Option<Swapped>,
    swaps: u32,
    /// What had failed when the outage began.
    failed_before: Vec<u64>,
}

impl<'a> Storage<'a> {
    /// Of the guest with this monitor.
    pub fn new(
        interrupt: &'a Interrupt,
        monitor: &Path,
        provider: Arc<dyn Provider>,
        away: Arc<AtomicBool>,
        backing: &'a Backing,
        directory: &Path,
    ) -> Self {
        let (monitor, directory) = (monitor.to_owned(), directory.to_owned());
        Self {
            interrupt,
            monitor,
            provider,
            away,
            backing,
            directory,
            swapped: None,
            swaps: 0,
            failed_before: Vec::new(),
        }
    }

    /// Holds the backing volume's writes to a rate, and leaves its reads alone: a drain takes its time, and reading
    /// everything back does not.
    pub fn slow_down(&self, bytes_per_s: u64) -> anyhow::Result<()> {
        let path = format!("/objects/limits-{BACKING}");
        let limits = json!({"bps-write": bytes_per_s});
        self.qmp()?.execute("qom-set", json!({"path": path, "property": "limits", "value": limits}))?;
        Ok(())
    }

    /// What the outage is of fails when this returns. `false`: there is no such caching volume any more.
    pub fn begin(&mut self, outage: &Outage, volume: &VolumeId) -> anyhow::Result<bool> {
        let mut qmp = self.qmp()?;
        if outage.target.has_caching() && !has_disk(&mut qmp, volume)? {
            return Ok(false);
        }
        match outage.kind {
            Failure::Stalled => self.stall(&mut qmp, outage, volume, true)?,
            Failure::Errors => {
                if outage.target.has_caching() {
                    self.swap(&mut qmp, volume)?;
                }
                self.failed_before = self.failed(outage);
                self.fail(outage, true);
            }
            Failure::Unplugged => {
                self.away.store(true, Ordering::SeqCst);
                self.unplug(&mut qmp, volume)?;
            }
            Failure::Detached => {
                self.away.store(true, Ordering::SeqCst);
                drop(qmp);
                self.detach(volume)?;
            }
        }
        Ok(true)
    }

    /// Everything works again when this returns.
    pub fn end(&mut self, outage: &Outage, volume: &VolumeId) -> anyhow::Result<()> {
        match outage.kind {
            Failure::Stalled => self.stall(&mut self.qmp()?, outage, volume, false),
            Failure::Errors => {
                self.fail(outage, false);
                Ok(())
            }
            Failure::Unplugged | Failure::Detached => {
                self.away.store(false, Ordering::SeqCst);
                self.attach(volume)
            }
        }
    }

    fn qmp(&self) -> anyhow::Result<Qmp> {
        Qmp::connect(&self.monitor, ANSWER).context("the guest's monitor")
    }

    /// Moves the disks into the group in which nothing moves, or back. QEMU lets what waits go on when a disk changes
    /// its group; changing the limits of a group would leave it waiting.
    fn stall(&self, qmp: &mut Qmp, outage: &Outage, volume: &VolumeId, still: bool) -> anyhow::Result<()> {
        let group = json!({"qom-type": "throttle-group", "id": STILL, "limits": {"bps-total": 1, "iops-total": 1}});
        if still && !children(qmp, "/objects")?.contains(&STILL.to_owned()) {
            qmp.execute("object-add", group)?;
        }
        let mut disks = Vec::new();
        if outage.target.has_caching() {
            disks.push((volume.0.clone(), limits_of(volume)));
        }
        if outage.target.has_backing() {
            disks.push((format!("disk-{BACKING}"), format!("limits-{BACKING}")));
        }
        for (node, own) in disks {
            let Some(file) = below(qmp, &node)? else {
                // The guest's daemon has deleted it meanwhile.
                continue;
            };
            reopen(qmp, &node, if still { STILL } else { &own }, &file)?;
        }
        Ok(())
    }

    /// Whether every volume that answers errors has done so since the outage began: before, nobody has noticed it. Of
    /// the other kinds it is true.
    pub fn is_noticed(&self, outage: &Outage) -> bool {
        outage.kind != Failure::Errors
            || self.failed(outage).iter().zip(&self.failed_before).all(|(now, before)| now > before)
    }

    /// Requests that each volume of the outage has answered with an error so far.
    fn failed(&self, outage: &Outage) -> Vec<u64> {
        let backing = outage.target.has_backing().then(|| self.backing.medium().failed);
        let swapped = self.swapped.as_ref().filter(|_| outage.target.has_caching());
        let caching = swapped.map(|swapped| swapped.server.medium().failed);
        backing.into_iter().chain(caching).collect()
    }

    /// Disks of the provider's that are still in the guest.
    pub fn left(&self) -> anyhow::Result<Vec<String>> {
        let mut names = children(&mut self.qmp()?, "/machine/peripheral")?;
        names.retain(|name| name.starts_with("vol-"));
        Ok(names)
    }

    fn fail(&self, outage: &Outage, fails: bool) {
        if outage.target.has_backing() {
            self.backing.medium().fails = fails;
        }
        if let (true, Some(swapped)) = (outage.target.has_caching(), &self.swapped) {
            swapped.server.medium().fails = fails;
        }
    }

    /// Puts our server between QEMU and the volume's image, if it is not there yet.
    fn swap(&mut self, qmp: &mut Qmp, volume: &VolumeId) -> anyhow::Result<()> {
        let file = below(qmp, &volume.0)?.context("the volume has no image in QEMU")?;
        if self.swapped.as_ref().is_some_and(|swapped| swapped.volume == *volume && swapped.node == file) {
            return Ok(());
        }
        if let Some(before) = self.swapped.take() {
            // Its volume is gone, and QEMU may know that it is.
            let _ = qmp.execute("blockdev-del", json!({"node-name": before.node}));
        }
        let image = image_of(qmp, volume)?;
        self.swaps += 1;
        let node = format!("outage-{}", self.swaps);
        let opened = File::options().read(true).write(true).open(&image);
        let opened = opened.with_context(|| format!("cannot open {}", image.display()))?;
        let server = Server::start(lossy::socket(&self.directory, &node), Failing::over(opened))?;
        let address = json!({"type": "unix", "path": server.socket()});
        qmp.execute("blockdev-add", json!({"driver": "nbd", "node-name": node, "server": address}))?;
        reopen(qmp, &volume.0, &limits_of(volume), &node)?;
        self.swapped = Some(Swapped { volume: volume.clone(), node, server });
        Ok(())
    }

    /// Takes the disk out of the guest without the provider's doing.
    fn unplug(&self, qmp: &mut Qmp, volume: &VolumeId) -> anyhow::Result<()> {
        let mut asked: Option<std::time::Instant> = None;
        self.interrupt.wait_for("the guest's release of a disk", HOT_PLUG, || {
            if !has_disk(qmp, volume)? {
                return Ok(Some(()));
            }
            if asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                asked = Some(std::time::Instant::now());
                // QEMU refuses while an earlier request is under way.
                match qmp.execute("device_del", json!({"id": disk_of(volume)})) {
                    Ok(_) | Err(QmpError::Refused { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(None)
        })
    }

    fn detach(&self, volume: &VolumeId) -> anyhow::Result<()> {
        let mut asked = false;
        self.interrupt.wait_for("the volume's being detached", HOT_PLUG, || {
            if !asked {
                asked = done(self.provider.detach(volume))?.is_some();
            }
            let described = done(self.provider.describe(volume))?;
            Ok((asked && described.is_some_and(|volume| volume.state == VolumeState::Available)).then_some(()))
        })
    }

    fn attach(&self, volume: &VolumeId) -> anyhow::Result<()> {
        self.interrupt.wait_for("the volume's being attached", HOT_PLUG, || {
            match self.provider.attach(volume) {
                // The guest's daemon has deleted it.
                Err(ProviderError::NotFound(_)) => return Ok(Some(())),
                attached => drop(done(attached)?),
            }
            Ok(has_disk(&mut self.qmp()?, volume)?.then_some(()))
        })
    }
}

/// What a provider did; `None`: it is asked again.
fn done<T>(answer: Result<T, ProviderError>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ProviderError::Transient(_) | ProviderError::Conflict { .. }) => Ok(None),
        Err(error) => bail!("the provider: {error}"),
    }
}

/// The provider's names of a volume's parts.
fn disk_of(volume: &VolumeId) -> String {
    format!("{}-disk", volume.0)
}

fn limits_of(volume: &VolumeId) -> String {
    format!("{}-limits", volume.0)
}

fn has_disk(qmp: &mut Qmp, volume: &VolumeId) -> anyhow::Result<bool> {
    Ok(children(qmp, "/machine/peripheral")?.contains(&disk_of(volume)))
}

fn children(qmp: &mut Qmp, path: &str) -> anyhow::Result<Vec<String>> {
    let listed = qmp.execute("qom-list", json!({"path": path}))?;
    let names = listed.as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// The node that a filter is over.
fn below(qmp: &mut Qmp, node: &str) -> anyhow::Result<Option<String>> {
    let graph = qmp.execute("x-debug-query-block-graph", Value::Null)?;
    let list = |key: &str| graph[key].as_array().cloned().unwrap_or_default();
    let nodes = list("nodes");
    let id = nodes.iter().find(|entry| entry["name"] == node).map(|entry| &entry["id"]);
    let edge = id.and_then(|id| list("edges").into_iter().find(|edge| edge["parent"] == *id && edge["name"] == "file"));
    let child = edge.and_then(|edge| nodes.iter().find(|entry| entry["id"] == edge["child"]).cloned());
    Ok(child.and_then(|child| child["name"].as_str().map(str::to_owned)))
}

/// The file in which a volume's bytes are: QEMU names a filter by what it is over.
fn image_of(qmp: &mut Qmp, volume: &VolumeId) -> anyhow::Result<PathBuf> {
    let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true}))?;
    let node = nodes.as_array().into_iter().flatten().find(|node| node["node-name"] == volume.0.as_str());
    let name = node.and_then(|node| node["file"].as_str()).context("QEMU does not know the volume")?;
    let described: Value = serde_json::from_str(name.strip_prefix("json:").unwrap_or(name))
        .with_context(|| format!("QEMU names a volume {name}"))?;
    let file = described.pointer("/file/filename").and_then(Value::as_str);
    Ok(file.with_context(|| format!("QEMU names a volume {name}"))?.into())
}

/// Changes a disk's group and what it is over.
fn reopen(qmp: &mut Qmp, node: &str, group: &str, file: &str) -> anyhow::Result<()> {
    let options = json!({"driver": "throttle", "node-name": node, "throttle-group": group, "file": file});
    qmp.execute("blockdev-reopen", json!({"options": [options]})).map(|_| ()).context("cannot change a disk")
}
