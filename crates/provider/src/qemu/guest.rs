//! One guest as its QEMU shows it: which of our volumes are plugged in, and how they get in and out.
//!
//! A volume is three things in QEMU, named after it: a throttle group `ID-limits`, a block node `ID` (a throttle filter
//! over the image, in that group), and a disk `ID-disk` on a PCIe root port, whose serial is `ID`. They are added in
//! this order and removed in the opposite one. The disk goes only when the guest releases it; the rest is then removed
//! by whoever looks next.

use std::path::Path;

use serde_json::{Value, json};

use super::qmp::{Qmp, QmpError};
use crate::files::catalog::FileType;
use crate::{ProviderError, VolumeId};

/// Where QEMU keeps the devices that have an id.
const DEVICES: &str = "/machine/peripheral";
/// Where QEMU keeps objects such as throttle groups.
const OBJECTS: &str = "/objects";
/// What a volume can be plugged into: each takes one device, while the guest runs.
const PORTS: &[&str] = &["child<pcie-root-port>", "child<ioh3420>", "child<xio3130-downstream>"];

/// What lies between QEMU and an image.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The file.
    pub path: &'a Path,
    /// What QEMU holds it to.
    pub limits: &'a FileType,
    /// Whether it is opened with `O_DIRECT`.
    pub direct: bool,
}

/// A connection to a guest's QEMU, and what is plugged in.
pub struct Guest {
    qmp: Qmp,
    /// Ids and types of the devices that have an id.
    devices: Vec<(String, String)>,
}

impl Guest {
    /// Looks at the guest.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn look(mut qmp: Qmp) -> Result<Self, QmpError> {
        let devices = children(&mut qmp, DEVICES)?;
        Ok(Self { qmp, devices })
    }

    /// Whether the volume's disk is there: the guest may use it.
    #[must_use]
    pub fn has(&self, id: &VolumeId) -> bool {
        let disk = disk(id);
        self.devices.iter().any(|(name, _)| *name == disk)
    }

    /// Plugs a volume in that is not: it is in at the end, or some of it is left (see [`Guest::clear`]).
    ///
    /// # Errors
    /// `AttachLimit` if every port is taken, `Invalid` if it will not work by itself, `Transient` for anything else.
    pub fn plug(&mut self, id: &VolumeId, image: Image<'_>, ports: &[String]) -> Result<(), ProviderError> {
        // Before anything is made that would have to be taken back.
        let free = self.free_ports(ports)?;
        let path = image.path.to_str().ok_or_else(|| {
            ProviderError::Invalid(format!("the path {} is not UTF-8, and QEMU takes no other", image.path.display()))
        })?;
        let mut limits = json!({ "bps-total": image.limits.bandwidth.get() });
        if let Some(iops) = image.limits.iops {
            limits["iops-total"] = json!(iops.get());
        }
        self.qmp.execute("object-add", json!({ "qom-type": "throttle-group", "id": group(id), "limits": limits }))?;
        let file = json!({
            "driver": "file", "filename": path, "cache": { "direct": image.direct }, "discard": "unmap",
        });
        let node = json!({ "driver": "throttle", "node-name": id.0, "throttle-group": group(id), "file": file });
        self.qmp.execute("blockdev-add", node).map_err(|error| match error {
            QmpError::Refused { text, .. } if text.contains("O_DIRECT") => ProviderError::Invalid(format!(
                "QEMU cannot open the image of {} with O_DIRECT ({text}): set direct = false under [provider.qemu]",
                id.0
            )),
            error => error.into(),
        })?;
        self.add_disk(id, &free)
    }

    fn add_disk(&mut self, id: &VolumeId, ports: &[String]) -> Result<(), ProviderError> {
        let mut refused = None;
        for port in ports {
            // Errors go to the guest, which can do without the volume: by default QEMU halts it when the host's disk is
            // full, until a person says `cont`.
            let disk = json!({
                "driver": "virtio-blk-pci", "id": disk(id), "drive": id.0, "bus": port, "serial": id.0,
                "werror": "report", "rerror": "report",
            });
            match self.qmp.execute("device_add", disk) {
                Ok(_) => {
                    self.devices = children(&mut self.qmp, DEVICES)?;
                    return Ok(());
                }
                // Somebody else took the port meanwhile, or it takes no devices while the guest runs.
                Err(error @ QmpError::Refused { .. }) => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The ports that may take a device, by name; `allowed` names those that we may use, or none for all.
    fn free_ports(&mut self, allowed: &[String]) -> Result<Vec<String>, ProviderError> {
        let may_use = |name: &String| allowed.is_empty() || allowed.contains(name);
        let ports = self.devices.iter().filter(|(name, kind)| PORTS.contains(&kind.as_str()) && may_use(name));
        let mut ports: Vec<String> = ports.map(|(name, _)| name.clone()).collect();
        ports.sort();
        let mut free = Vec::new();
        for port in &ports {
            // A port's bus has the port's name, and a link for each device on it.
            let links = names(&mut self.qmp, &format!("{DEVICES}/{port}/{port}"))?;
            if !links.iter().any(|(name, _)| name.starts_with("child[")) {
                free.push(port.clone());
            }
        }
        if free.is_empty() {
            return Err(ProviderError::AttachLimit(if ports.is_empty() {
                "the guest has no PCIe root port for a volume: start QEMU with some, such as -device \
                 pcie-root-port,id=port1,chassis=1"
                    .to_owned()
            } else {
                format!(
                    "every PCIe root port of the guest that may be used is taken ({}): detach a volume, or start QEMU with \
                     more of them",
                    ports.join(", ")
                )
            }));
        }
        Ok(free)
    }

    /// Asks the guest to release a volume's disk. It may take its time, or never do it.
    ///
    /// # Errors
    /// If QEMU does not answer. That it was asked before, or that the guest is busy, is none.
    pub fn unplug(&mut self, id: &VolumeId) -> Result<(), QmpError> {
        let asked = self.qmp.execute("device_del", json!({ "id": disk(id) }));
        self.devices = children(&mut self.qmp, DEVICES)?;
        match asked {
            Ok(_) => Ok(()),
            Err(QmpError::Refused { text, .. }) => {
                tracing::debug!(volume = id.0, "device_del: {text}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what is left of a volume whose disk is gone. `false`: QEMU still holds some of it, look again later.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn clear(&mut self, id: &VolumeId) -> Result<bool, QmpError> {
        Ok(self.remove("blockdev-del", json!({ "node-name": id.0 }))?
            && self.remove("object-del", json!({ "id": group(id) }))?)
    }

    fn remove(&mut self, command: &str, what: Value) -> Result<bool, QmpError> {
        match self.qmp.execute(command, what) {
            Ok(_) => Ok(true),
            Err(error) if error.is_absence() => Ok(true),
            // The disk's last references go a moment after the disk itself.
            Err(QmpError::Refused { text, .. }) => {
                tracing::debug!("{command}: {text}");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Names of everything in QEMU that is named as we name volumes and their parts. For tests and for people.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn ours(&mut self) -> Result<Vec<String>, QmpError> {
        let nodes = self.qmp.execute("query-named-block-nodes", json!({ "flat": true }))?;
        let nodes = nodes.as_array().into_iter().flatten();
        let nodes = nodes.filter_map(|node| node.get("node-name")?.as_str().map(str::to_owned));
        let objects = children(&mut self.qmp, OBJECTS)?.into_iter().map(|(name, _)| name);
        let devices = self.devices.iter().map(|(name, _)| name.clone());
        let mut ours: Vec<String> = nodes.chain(objects).chain(devices).collect();
        ours.retain(|name| name.starts_with("vol-"));
        ours.sort();
        Ok(ours)
    }
}

fn disk(id: &VolumeId) -> String {
    format!("{}-disk", id.0)
}

fn group(id: &VolumeId) -> String {
    format!("{}-limits", id.0)
}

/// Names and types of what lies below a path of QEMU's object model.
fn names(qmp: &mut Qmp, path: &str) -> Result<Vec<(String, String)>, QmpError> {
    let listed = qmp.execute("qom-list", json!({ "path": path }))?;
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let entries = listed.as_array().into_iter().flatten();
    Ok(entries.map(|entry| (text(entry, "name"), text(entry, "type"))).collect())
}

/// Of these, the objects.
fn children(qmp: &mut Qmp, path: &str) -> Result<Vec<(String, String)>, QmpError> {
    let mut found = names(qmp, path)?;
    found.retain(|(_, kind)| kind.starts_with("child<"));
    Ok(found)
}
