//! What each call does, and how Azure words it.

use serde_json::{Value, json};
use surgetank_model::catalog::Catalog;
use surgetank_model::units::GIB;

use super::super::cloud::{Progress, Refusal, Seen, State as VolumeState, Wanted};
use super::super::ec2::xml;
use super::{Azure, Done, GROUP, LOCATION, Link, Operation, Refused, SUBSCRIPTION, Sent, ZONE};
use crate::Tags;
use crate::clock::whole_ms;

/// How long tags take to be set, in milliseconds, unless a test says otherwise.
pub const TAGS_MS: u64 = 400;
/// What ends so soon has ended when somebody asks for it, in milliseconds.
const SOON_MS: u64 = 2000;
/// How long it takes until an operation that fails says so.
const FAILURE_MS: u64 = 1000;
/// The types of disks that the region has, and what the catalog calls them.
const TYPES: &[(&str, &str)] = &[
    ("Standard_LRS", "standard-hdd"),
    ("StandardSSD_LRS", "standard-ssd"),
    ("Premium_LRS", "premium-ssd"),
    ("PremiumV2_LRS", "premium-ssd-v2"),
    ("UltraSSD_LRS", "ultra"),
];

/// The right that a call needs, as the list of operations of Microsoft.Compute has it.
#[must_use]
pub fn action(call: &str) -> Option<&'static str> {
    Some(match call {
        "disks.get" | "disks.list" => "Microsoft.Compute/disks/read",
        "disks.createOrUpdate" | "disks.update" => "Microsoft.Compute/disks/write",
        "disks.delete" => "Microsoft.Compute/disks/delete",
        "virtualMachines.get" => "Microsoft.Compute/virtualMachines/read",
        "virtualMachines.attachDetachDataDisks" => "Microsoft.Compute/virtualMachines/attachDetachDataDisks/action",
        "diskOperations.get" => "Microsoft.Compute/locations/diskOperations/read",
        "operations.get" => "Microsoft.Compute/locations/operations/read",
        _ => return None,
    })
}

fn invalid(said: impl Into<String>) -> Refused {
    (400, "InvalidParameter", said.into())
}

fn absent(kind: &str, name: &str) -> Refused {
    let said = format!(
        "The Resource 'Microsoft.Compute/{kind}/{name}' under resource group '{GROUP}' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix"
    );
    (404, "ResourceNotFound", said)
}

/// The id of what the resource group has. Some services tell it in upper case.
fn id(kind: &str, name: &str) -> String {
    let group = GROUP.to_ascii_uppercase();
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/Microsoft.Compute/{kind}/{name}")
}

fn refused(refusal: Refusal, disk: &str) -> Refused {
    match refusal {
        Refusal::NoVolume => absent("disks", disk),
        Refusal::Exists => (412, "PreconditionFailed", "The condition set in the request was not met.".to_owned()),
        Refusal::State => (409, "Conflict", format!("The disk {disk} is being changed.")),
        Refusal::InUse => {
            let said = format!("Disk {disk} is attached to VM {}.", id("virtualMachines", "its-machine"));
            (409, "OperationNotAllowed", said)
        }
        Refusal::Limit => {
            let said = "Operation could not be completed as it results in exceeding approved PremiumDiskCount quota.";
            (409, "OperationNotAllowed", said.to_owned())
        }
        Refusal::AttachmentLimit => {
            let said = "The maximum number of data disks allowed to be attached to a VM of this size is 4.";
            (409, "OperationNotAllowed", said.to_owned())
        }
        Refusal::NameInUse => invalid("A disk at that LUN already exists."),
        Refusal::OtherZone => (400, "BadRequest", format!("Disk {disk} is not in the zone of the virtual machine.")),
        Refusal::Modifying => {
            (409, "Conflict", "The request failed due to conflict with a concurrent request.".to_owned())
        }
        Refusal::ModifiedTooOften => (429, "TooManyRequests", format!("The disk {disk} was changed too often.")),
    }
}

/// Tags of a body.
fn tags(body: &Value) -> Result<Tags, Refused> {
    let tags: Tags = serde_json::from_value(body["tags"].clone()).unwrap_or_default();
    let fits = |(key, value): (&String, &String)| {
        (1..=512).contains(&key.chars().count())
            && !key.contains(['<', '>', '%', '&', '\\', '?', '/'])
            && value.chars().count() <= 256
    };
    if tags.len() <= 50 && tags.iter().all(fits) {
        return Ok(tags);
    }
    Err((400, "InvalidTagNameOrValue", "The tags are not what a resource may have.".to_owned()))
}

fn disk(seen: &Seen) -> Value {
    let volume = &seen.volume;
    // A disk has no machine until the operation is done, and its own until it is released.
    let machine = seen.attachment.as_ref().filter(|(_, progress)| *progress != Progress::Attaching);
    let provisioning = match seen.state {
        VolumeState::Creating => "Updating",
        VolumeState::Deleting => "Deleting",
        VolumeState::Failed => "Failed",
        VolumeState::Available | VolumeState::InUse => "Succeeded",
    };
    let mut disk = json!({
        "id": id("disks", &volume.id), "name": volume.id, "type": "Microsoft.Compute/disks", "location": LOCATION,
        "zones": [volume.zone], "sku": { "name": volume.kind, "tier": "Premium" }, "tags": volume.tags,
        "properties": {
            "creationData": { "createOption": "Empty" }, "diskSizeGB": volume.gib, "provisioningState": provisioning,
            "timeCreated": xml::time(volume.created_ms), "uniqueId": "01234567-89ab-cdef-0123-456789abcdef",
        },
    });
    if !matches!(seen.state, VolumeState::Creating | VolumeState::Failed) {
        disk["properties"]["diskState"] = json!(if machine.is_some() { "Attached" } else { "Unattached" });
    }
    if let Some((at, _)) = machine {
        disk["managedBy"] = json!(id("virtualMachines", &at.machine));
    }
    disk
}

impl Azure {
    /// The disks of the machine's model: their units, and whether they are to be detached.
    pub(super) fn units(&self) -> Vec<(String, u32, bool)> {
        let held = self.cloud.held().into_iter().filter_map(|seen| {
            let (at, progress) = seen.attachment?;
            Some((seen.volume.id, at.device.parse().ok()?, progress == Progress::Detaching))
        });
        held.chain(self.stuck.iter().map(|(disk, unit)| (disk.clone(), *unit, false))).collect()
    }

    fn is_changing(&self) -> bool {
        let is_on_the_way = |seen: &Seen| !matches!(seen.attachment, Some((_, Progress::Attached)));
        let now_ms = self.cloud.now_ms();
        let runs = |operation: &Operation| operation.call.starts_with("virtual") && now_ms < operation.done_ms;
        self.cloud.held().iter().any(is_on_the_way) || self.operations.iter().any(runs)
    }

    fn storage_profile(&self) -> Value {
        let disks = self.units().into_iter().map(|(disk, unit, is_leaving)| {
            json!({
                "lun": unit, "name": disk, "createOption": "Attach", "caching": "None", "deleteOption": "Detach",
                "managedDisk": { "id": id("disks", &disk), "storageAccountType": "Premium_LRS" },
                "toBeDetached": is_leaving,
            })
        });
        json!({
            "osDisk": { "osType": "Linux", "name": "system", "createOption": "FromImage", "managedDisk": { "id": id("disks", "system") } },
            "dataDisks": disks.collect::<Vec<_>>(),
        })
    }

    /// The machine that calls, or another one that is there.
    fn machine(&self, name: &str) -> Option<Value> {
        let others = self.cloud.others.iter().map(|(name, state)| (name, Some(*state)));
        let mut all = std::iter::once((&self.cloud.machine.0, None)).chain(others);
        let (name, other) = all.find(|(there, _)| there.eq_ignore_ascii_case(name))?;
        let provisioning = match (other, self.is_changing(), self.stuck.is_empty()) {
            (Some(state), ..) => state,
            (None, true, _) => "Updating",
            (None, false, true) => "Succeeded",
            (None, false, false) => "Failed",
        };
        let disks = if other.is_none() { self.storage_profile() } else { json!({ "osDisk": {}, "dataDisks": [] }) };
        let number = self.of_name.get(name).copied().unwrap_or_default();
        Some(json!({
            "id": id("virtualMachines", name), "name": name, "type": "Microsoft.Compute/virtualMachines", "location": LOCATION,
            "zones": [ZONE], "properties": {
                "vmId": format!("01234567-89ab-cdef-0123-{number:012x}"), "provisioningState": provisioning,
                "hardwareProfile": { "vmSize": "Standard_D4s_v3" }, "storageProfile": disks,
            },
        }))
    }

    /// Carries out a call.
    pub(super) fn carry_out(&mut self, sent: &Sent) -> Result<Done, Refused> {
        self.end_operations();
        let version = sent.query.get("api-version").map_or("", |version| version);
        if !("2024-03-01".."2030").contains(&version) {
            let said = format!("The api-version '{version}' is invalid.");
            return Err((400, "InvalidApiVersionParameter", said));
        }
        let [subscription, group, names @ ..] = &*sent.names else {
            return Err((404, "InvalidResourceType", "The resource type could not be found.".to_owned()));
        };
        let name = names.first().map_or("", |name| &**name);
        if !subscription.eq_ignore_ascii_case(SUBSCRIPTION) {
            return Err((
                404,
                "SubscriptionNotFound",
                format!("The subscription '{subscription}' could not be found."),
            ));
        }
        let answered = |body: Value| Ok(Done { status: 200, body, operation: None });
        if sent.call.ends_with("perations.get") {
            return self.operation(sent, name);
        }
        if !group.eq_ignore_ascii_case(GROUP) {
            return Err((404, "ResourceGroupNotFound", format!("Resource group '{group}' could not be found.")));
        }
        if sent.call == "virtualMachines.get" {
            return self.machine(name).map_or_else(|| Err(absent("virtualMachines", name)), answered);
        }
        if sent.call.starts_with("virtualMachines") && !name.eq_ignore_ascii_case(&self.cloud.machine.0) {
            return Err(absent("virtualMachines", name));
        }
        match &*sent.call {
            "disks.get" => {
                let mut found = self.cloud.describe(name);
                // Names are the same in whatever letters.
                if found.is_err() {
                    let mut all = self.cloud.list().into_iter().map(|seen| seen.volume.id);
                    if let Some(other) = all.find(|there| there != name && there.eq_ignore_ascii_case(name)) {
                        found = self.cloud.describe(&other);
                    }
                }
                let seen = found.map_err(|refusal| refused(refusal, name))?;
                answered(self.shown(&seen))
            }
            "disks.list" => answered(self.list(sent)?),
            _ => self.change(sent, name),
        }
    }

    /// A disk as it is told, while something is done to it.
    fn shown(&self, seen: &Seen) -> Value {
        let now_ms = self.cloud.now_ms();
        let mut told = disk(seen);
        let is_its = |operation: &Operation| operation.disk == seen.volume.id && now_ms < operation.done_ms;
        if self.spoiled.contains(&seen.volume.id) {
            told["properties"]["provisioningState"] = json!("Failed");
        } else if told["properties"]["provisioningState"] == "Succeeded"
            && self.operations.iter().any(|operation| is_its(operation) && operation.call == "disks.update")
        {
            told["properties"]["provisioningState"] = json!("Updating");
        }
        told
    }

    /// One page, after the last name that the former page had.
    fn list(&mut self, sent: &Sent) -> Result<Value, Refused> {
        let after = sent.query.get("$skiptoken").filter(|_| !self.repeats_pages).cloned().unwrap_or_default();
        let size = self.cloud.settings.page;
        let mut shown: Vec<Seen> = self.cloud.list().into_iter().filter(|seen| seen.volume.id > after).collect();
        let mut body = json!({});
        if shown.len() > size {
            shown.truncate(size);
            let version = &sent.query["api-version"];
            let next = &shown[size - 1].volume.id;
            body["nextLink"] =
                json!(format!("http://{}{}?api-version={version}&$skiptoken={next}", sent.host, sent.path));
        }
        if let Some(link) = &self.next_link {
            body["nextLink"] = link.clone();
        }
        body["value"] = shown.iter().map(|seen| self.shown(seen)).collect();
        Ok(body)
    }

    /// What is told of an operation: by itself, or by what it was to bring about.
    fn operation(&mut self, sent: &Sent, name: &str) -> Result<Done, Refused> {
        let now_ms = self.cloud.now_ms();
        let found = self.operations.iter_mut().find(|operation| operation.name == name);
        let operation = found.ok_or_else(|| (404, "NotFound", format!("The operation {name} cannot be found.")))?;
        // Other changes than of tags take the time of the test.
        if operation.tags.is_some() && operation.done_ms <= now_ms + SOON_MS {
            operation.done_ms = operation.done_ms.min(now_ms);
        }
        self.end_operations();
        let operation = self.operations.iter().find(|operation| operation.name == name);
        let Some(operation) = operation else { return Err((404, "NotFound", "It cannot be found.".to_owned())) };
        if let Some((status, body)) = self.told_of_operations.clone() {
            return Ok(Done { status, body, operation: None });
        }
        let is_done = operation.done_ms <= now_ms;
        if !sent.query.contains_key("monitor") {
            let status = match (is_done, &operation.error) {
                (false, _) => "InProgress",
                (true, None) => "Succeeded",
                (true, Some(_)) => "Failed",
            };
            let mut body = json!({ "name": name, "status": status, "startTime": "2026-11-28T00:00:00+00:00" });
            if let Some((code, said)) = operation.error.as_ref().filter(|_| is_done) {
                body["error"] = json!({ "code": code, "message": said });
            }
            return Ok(Done { status: 200, body, operation: None });
        }
        if !is_done {
            let path = format!("{}?api-version={}", sent.path, sent.query["api-version"]);
            return Ok(Done { status: 202, body: Value::Null, operation: Some(Link { path, is_in_both: false }) });
        }
        if let Some((code, said)) = operation.error.clone() {
            return Err((409, code, said));
        }
        let body = if operation.call.starts_with("virtual") { self.storage_profile() } else { Value::Null };
        Ok(Done { status: if body.is_null() { 204 } else { 200 }, body, operation: None })
    }

    /// Sets the tags of operations that are done.
    fn end_operations(&mut self) {
        let now_ms = self.cloud.now_ms();
        for operation in self.operations.iter_mut().filter(|operation| operation.done_ms <= now_ms) {
            if let Some(new) = operation.tags.take() {
                let _ = self.cloud.set_tags(&operation.disk, |tags| *tags = new);
            }
        }
    }

    /// Begins an operation.
    fn change(&mut self, sent: &Sent, name: &str) -> Result<Done, Refused> {
        let failing = self.failing.iter().position(|(call, ..)| *call == sent.call);
        let error = failing.map(|at| self.failing.remove(at)).map(|(_, code, said)| (code, said));
        let Begun { takes_ms, disk, body, tags } = match &error {
            Some(_) => self.begin_in_vain(sent, name),
            None => self.begin(sent, name)?,
        };
        if disk.is_empty() {
            return Ok(Done { status: 204, body: Value::Null, operation: None });
        }
        // An operation is not done before its change is, also by a clock that goes on meanwhile.
        let now_ms = self.cloud.now_ms();
        self.begun += 1;
        let name = format!("operation-{:06}", self.begun);
        let is_of_machine = sent.call.starts_with("virtual");
        let kind = if is_of_machine { "operations" } else { "DiskOperations" };
        let path = format!(
            "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{LOCATION}/{kind}/{name}?p=a%2Bb&api-version={}",
            sent.query["api-version"]
        );
        self.operations.push(Operation {
            name,
            call: sent.call.clone(),
            disk,
            done_ms: now_ms + takes_ms,
            error,
            tags,
        });
        Ok(Done { status: 202, body, operation: Some(Link { path, is_in_both: !is_of_machine }) })
    }

    /// One that fails: nothing is changed, unless an attach leaves its disk in the machine's model.
    fn begin_in_vain(&mut self, sent: &Sent, name: &str) -> Begun {
        let wanted = &sent.body["dataDisksToAttach"][0];
        if std::mem::take(&mut self.is_stuck_next) {
            let disk = last(wanted["diskId"].as_str().unwrap_or_default()).to_owned();
            let unit = wanted["lun"].as_u64().and_then(|unit| u32::try_from(unit).ok()).unwrap_or_default();
            self.stuck.insert(disk, unit);
        }
        Begun { takes_ms: FAILURE_MS, disk: name.to_owned(), body: Value::Null, tags: None }
    }

    /// Begins a change.
    fn begin(&mut self, sent: &Sent, name: &str) -> Result<Begun, Refused> {
        let settings = self.cloud.settings.clone();
        let of_disk = |refusal| refused(refusal, name);
        let began = |takes_ms, body| Begun { takes_ms, disk: name.to_owned(), body, tags: None };
        match &*sent.call {
            "disks.createOrUpdate" => {
                let wanted = wanted(name, &sent.body)?;
                let (tags, gib) = (wanted.tags.clone(), wanted.gib);
                match self.cloud.create(wanted) {
                    // What was asked for is repeated, without what only a disk has.
                    Ok(_) => {
                        let mut echo = sent.body.clone();
                        echo["name"] = json!(name);
                        echo["properties"]["provisioningState"] = json!("Updating");
                        Ok(began(whole_ms(settings.create), echo))
                    }
                    // Whoever makes a disk that is there changes it.
                    Err(Refusal::Exists) if !(self.has_conditions && sent.if_none_match.as_deref() == Some("*")) => {
                        self.cloud.set_tags(name, |there| *there = tags).map_err(of_disk)?;
                        let present = self.cloud.made(name).map_err(of_disk)?;
                        if gib > present.volume.gib {
                            self.cloud.grow(name, gib).map_err(of_disk)?;
                        }
                        Ok(began(0, disk(&present)))
                    }
                    Err(refusal) => Err(of_disk(refusal)),
                }
            }
            "disks.update" => {
                let present = self.cloud.made(name).map_err(of_disk)?;
                if let Some(gib) = sent.body["properties"]["diskSizeGB"].as_u64() {
                    check_size(&present.volume.kind, gib)?;
                    if gib <= present.volume.gib {
                        return Err(invalid(
                            "The value of parameter disk.diskSizeGB is invalid: a disk does not shrink.",
                        ));
                    }
                    self.cloud.grow(name, gib).map_err(of_disk)?;
                    return Ok(began(whole_ms(settings.grow), disk(&present)));
                }
                let tags = Some(tags(&sent.body)?);
                Ok(Begun { tags, ..began(self.tags_ms, disk(&present)) })
            }
            "disks.delete" => match self.cloud.delete(name) {
                Ok(()) => Ok(began(whole_ms(settings.delete), Value::Null)),
                Err(Refusal::NoVolume) => Ok(Begun { disk: String::new(), ..began(0, Value::Null) }),
                Err(refusal) => Err(of_disk(refusal)),
            },
            "virtualMachines.attachDetachDataDisks" => self.begin_of_machine(&sent.body),
            _ => Err((404, "InvalidResourceType", "The resource type could not be found.".to_owned())),
        }
    }

    fn begin_of_machine(&mut self, body: &Value) -> Result<Begun, Refused> {
        let (attach, detach) = (&body["dataDisksToAttach"][0], &body["dataDisksToDetach"][0]);
        let wanted = if attach.is_null() { detach } else { attach };
        let disk = wanted["diskId"].as_str().map(last).unwrap_or_default().to_owned();
        if !wanted["diskId"].as_str().is_some_and(|told| told.eq_ignore_ascii_case(&id("disks", &disk))) {
            return Err(invalid("The value of parameter diskId is invalid."));
        }
        if self.is_changing() {
            let is_leaving = self.units().into_iter().any(|(there, _, is_leaving)| there == disk && is_leaving);
            return Err(if is_leaving && !attach.is_null() {
                let said = format!(
                    "Cannot attach data disk '{disk}' to VM '{}' because the disk is currently being detached.",
                    self.cloud.machine.0
                );
                (409, "AttachDiskWhileBeingDetached", said)
            } else {
                (409, "Conflict", "The request failed due to conflict with a concurrent request.".to_owned())
            });
        }
        let began = |takes_ms| Begun { takes_ms, disk: disk.clone(), body: Value::Null, tags: None };
        if attach.is_null() {
            if !detach["detachOption"].is_null() {
                return Err(invalid("nobody detaches by force here"));
            }
            let takes_ms = whole_ms(self.cloud.settings.detach);
            if self.stuck.remove(&disk).is_some() {
                return Ok(began(takes_ms));
            }
            if !self.units().iter().any(|(there, ..)| *there == disk) {
                return Err(invalid(format!("The disk '{disk}' is not attached to VM '{}'.", self.cloud.machine.0)));
            }
            self.cloud.detach(&disk).map_err(|refusal| refused(refusal, &disk))?;
            return Ok(began(takes_ms));
        }
        if attach["caching"] != "None" || attach["deleteOption"] != "Detach" {
            return Err(invalid("nobody lets the host cache a disk here, or a disk go with its machine"));
        }
        let unit = attach["lun"].as_u64().filter(|unit| *unit < 64).ok_or_else(|| invalid("The LUN is invalid."))?;
        let unit = unit.to_string();
        self.cloud.attach(&disk, &unit).map_err(|refusal| match refusal {
            Refusal::InUse => {
                let said =
                    format!("Disk '{disk}' cannot be attached as the disk is already owned by VM 'its-machine'.");
                (409, "ConflictingUserInput", said)
            }
            refusal => refused(refusal, &disk),
        })?;
        Ok(began(whole_ms(self.cloud.settings.attach)))
    }
}

/// What a change begins. `disk` is empty: nothing.
struct Begun {
    /// In milliseconds.
    takes_ms: u64,
    disk: String,
    body: Value,
    tags: Option<Tags>,
}

/// The last part of an id.
fn last(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

/// What a creation asks for.
fn wanted(name: &str, body: &Value) -> Result<Wanted, Refused> {
    let properties = &body["properties"];
    let wrong = |what: &str| invalid(format!("The value of parameter {what} is invalid."));
    let kind = body["sku"]["name"].as_str().filter(|kind| TYPES.iter().any(|(there, _)| there == kind));
    let kind = kind.ok_or_else(|| wrong("disk.sku"))?;
    if body["location"] != LOCATION || body["zones"].as_array().is_some_and(|zones| *zones != [json!(ZONE)]) {
        return Err(wrong("disk.location"));
    }
    if properties["creationData"]["createOption"] != "Empty" {
        return Err(wrong("disk.creationData"));
    }
    let is_provisioned = matches!(kind, "PremiumV2_LRS" | "UltraSSD_LRS");
    let (iops, throughput) = (properties["diskIOPSReadWrite"].as_u64(), properties["diskMBpsReadWrite"].as_u64());
    let is_sectored = !properties["creationData"]["logicalSectorSize"].is_null();
    if !is_provisioned && (iops.is_some() || throughput.is_some() || is_sectored) {
        return Err(wrong("disk.diskIOPSReadWrite"));
    }
    let gib = properties["diskSizeGB"].as_u64().ok_or_else(|| wrong("disk.diskSizeGB"))?;
    check_size(kind, gib)?;
    Ok(Wanted {
        id: Some(name.to_owned()),
        gib,
        kind: kind.to_owned(),
        zone: body["zones"][0].as_str().unwrap_or_default().to_owned(),
        tags: tags(body)?,
        encrypted: true,
        iops,
        throughput,
    })
}

fn check_size(kind: &str, gib: u64) -> Result<(), Refused> {
    let catalog = Catalog::builtin();
    let name = TYPES.iter().find(|(there, _)| *there == kind).map_or("", |(_, name)| name);
    let size = catalog.find("azure", name).map(|known| known.size);
    if size.is_some_and(|size| ((size.min.get() / GIB)..=(size.max.get() / GIB)).contains(&gib)) {
        return Ok(());
    }
    Err(invalid(format!("The value '{gib}' of parameter disk.diskSizeGB is out of range.")))
}
