//! What each call does, and how Compute Engine words it.

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use surgetank_model::catalog::Catalog;
use surgetank_model::units::GIB;

use super::super::cloud::{Progress, Refusal, Seen, State as VolumeState, Wanted};
use super::super::ec2::xml;
use super::{Gce, INSTANCE, Operation, PROJECT, Refused, Sent, ZONE};
use crate::Tags;
use crate::clock::whole_ms;

/// How long labels take to be set, in milliseconds, unless a test says otherwise.
pub const LABELS_MS: u64 = 400;
/// How long whoever waits for an operation does so, in milliseconds.
const WAIT_MS: u64 = 2000;
/// How long it takes until an operation that fails says so.
const FAILURE_MS: u64 = 1000;
/// Where URLs of resources begin.
const BASE: &str = "https://www.googleapis.com/compute/v1";
/// The types of disks that each zone has.
const TYPES: &[&str] = &["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"];

fn invalid(said: impl Into<String>) -> Refused {
    (400, "invalid", said.into())
}

fn absent(path: &str) -> Refused {
    (404, "notFound", format!("The resource '{path}' was not found"))
}

fn refused(refusal: Refusal, disk: &str) -> Refused {
    let path = format!("projects/{PROJECT}/zones/{ZONE}/disks/{disk}");
    match refusal {
        Refusal::NoVolume => absent(&path),
        Refusal::Exists => (409, "alreadyExists", format!("The resource '{path}' already exists")),
        Refusal::State => (400, "resourceNotReady", format!("The resource '{path}' is not ready")),
        Refusal::InUse => {
            let said = format!(
                "The disk resource '{path}' is already being used by 'projects/{PROJECT}/zones/{ZONE}/instances/i'"
            );
            (400, "resourceInUseByAnotherResource", said)
        }
        Refusal::Limit => {
            (403, "quotaExceeded", "Quota 'SSD_TOTAL_GB' exceeded.  Limit: 500.0 in region europe-west1.".to_owned())
        }
        Refusal::AttachmentLimit => {
            let said = format!("Exceeded limit 'maximum_persistent_disks' on resource '{INSTANCE}'. Limit: 16.0");
            (400, "limitExceeded", said)
        }
        Refusal::NameInUse => {
            invalid(format!("Invalid value for field 'resource.deviceName': '{disk}'. It is used already."))
        }
        Refusal::OtherZone => invalid("Invalid value for field 'resource.source': the disk is in another zone."),
        Refusal::Modifying => (400, "resourceNotReady", format!("The resource '{path}' is being resized")),
        Refusal::ModifiedTooOften => {
            (403, "resourceOperationRateExceeded", format!("Operation rate exceeded for resource '{path}'"))
        }
    }
}

/// Changes with the labels.
fn fingerprint(labels: &Tags) -> String {
    let of = digest(&SHA256, format!("{labels:?}").as_bytes());
    // Base64 of six bytes, in which hex digits are allowed signs.
    of.as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(allowed)
}

fn is_uuid(id: &str) -> bool {
    let lengths = id.split('-').map(str::len);
    let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    lengths.eq([8, 4, 4, 4, 12]) && is_hex && id.bytes().any(|byte| byte != b'0' && byte != b'-')
}

/// Labels of a body.
fn labels(body: &Value) -> Result<Tags, Refused> {
    let labels: Tags = serde_json::from_value(body["labels"].clone()).unwrap_or_default();
    let allowed = |text: &str| {
        text.len() <= 63
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
    };
    let fits = |(key, value): (&String, &String)| {
        allowed(key) && allowed(value) && key.starts_with(|first: char| first.is_ascii_lowercase())
    };
    if labels.len() <= 64 && labels.iter().all(fits) {
        return Ok(labels);
    }
    Err(invalid("Invalid value for field 'labels': ''. Label keys and values have 63 lower-case characters at most."))
}

/// `labels.KEY = "VALUE"`.
fn filter(text: &str) -> Option<(String, String)> {
    let (key, value) = text.strip_prefix("labels.")?.split_once(" = ")?;
    Some((key.to_owned(), value.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
}

fn disk(seen: &Seen) -> Value {
    let volume = &seen.volume;
    let status = match seen.state {
        VolumeState::Creating => "CREATING",
        VolumeState::Deleting => "DELETING",
        VolumeState::Failed => "FAILED",
        VolumeState::Available | VolumeState::InUse => "READY",
    };
    let zone = format!("{BASE}/projects/{PROJECT}/zones/{}", volume.zone);
    // A disk has no user until the operation is done.
    let user = seen.attachment.as_ref().filter(|(_, state)| *state != Progress::Attaching);
    let user = user.map(|(at, _)| format!("{zone}/instances/{}", at.machine));
    let mut disk = json!({
        "kind": "compute#disk", "id": "1234567890123456789", "name": volume.id, "sizeGb": volume.gib.to_string(),
        "status": status, "type": format!("{zone}/diskTypes/{}", volume.kind), "zone": zone,
        "selfLink": format!("{zone}/disks/{}", volume.id), "creationTimestamp": xml::time(volume.created_ms),
        "labelFingerprint": fingerprint(&volume.tags), "physicalBlockSizeBytes": "4096",
    });
    if let Some(user) = user {
        disk["users"] = json!([user]);
    }
    if !volume.tags.is_empty() {
        disk["labels"] = json!(volume.tags);
    }
    disk
}

impl Operation {
    fn told(&self, now_ms: u64) -> Value {
        let is_done = self.done_ms <= now_ms;
        let kind = self.call.rsplit('.').next();
        let mut told = json!({
            "kind": "compute#operation", "id": "9876543210987654321", "name": self.name, "operationType": kind,
            "targetLink": self.target, "status": if is_done { "DONE" } else { "RUNNING" },
            "progress": if is_done { 100 } else { 0 }, "insertTime": xml::time(self.inserted_ms),
            "zone": format!("{BASE}/projects/{PROJECT}/zones/{ZONE}"), "user": "surgetank@our-project.iam.gserviceaccount.com",
            "selfLink": format!("{BASE}/projects/{PROJECT}/zones/{ZONE}/operations/{}", self.name),
        });
        if let Some(request) = &self.request {
            told["clientOperationId"] = json!(request);
        }
        if let Some((status, code, said)) = self.error.as_ref().filter(|_| is_done) {
            told["error"] = json!({ "errors": [{ "code": code, "message": said }] });
            told["httpErrorStatusCode"] = json!(status);
            told["httpErrorMessage"] = json!("FAILED");
        }
        told
    }
}

impl Gce {
    /// Carries out a call.
    pub(super) fn carry_out(&mut self, sent: &Sent) -> Result<Value, Refused> {
        self.end_operations();
        let [project, zone, names @ ..] = &*sent.names else { return Err((404, "notFound", "Not Found".to_owned())) };
        let name = names.first().map_or("", |name| &**name);
        if project != PROJECT || zone != ZONE {
            // Other zones have nothing, and take nothing here.
            return match &*sent.call {
                "disks.list" | "zoneOperations.list" => Ok(json!({ "kind": "compute#diskList" })),
                "disks.insert" => Err(absent(&format!("projects/{project}/zones/{zone}"))),
                _ => Err(absent(sent.path.trim_end_matches("/attachDisk").trim_end_matches("/detachDisk"))),
            };
        }
        let now_ms = self.cloud.now_ms();
        match &*sent.call {
            "disks.get" => Ok(disk(&self.cloud.describe(name).map_err(|refusal| refused(refusal, name))?)),
            "disks.list" => self.list_disks(sent),
            "instances.get" => self.instance(sent, name),
            "zoneOperations.list" => self.list_operations(sent),
            "zoneOperations.get" | "zoneOperations.wait" => {
                let is_known = |known: &Operation| known.inserted_ms + self.operation_lag_ms <= now_ms;
                let found = self.operations.iter_mut().find(|operation| operation.name == name && is_known(operation));
                let operation = found.ok_or_else(|| absent(&sent.path))?;
                // Whoever waits is answered when it is done; other changes than of labels take the time of the test.
                let is_soon = operation.done_ms <= now_ms + WAIT_MS;
                if sent.call.ends_with("wait") && operation.call == "disks.setLabels" && is_soon {
                    operation.done_ms = operation.done_ms.min(now_ms);
                }
                self.end_operations();
                let operation = self.operations.iter().find(|operation| operation.name == name);
                Ok(operation.map(|operation| operation.told(now_ms)).unwrap_or_default())
            }
            _ => self.change(sent, name),
        }
    }

    /// Sets the labels of operations that are done.
    fn end_operations(&mut self) {
        let now_ms = self.cloud.now_ms();
        for operation in self.operations.iter_mut().filter(|operation| operation.done_ms <= now_ms) {
            let Some((disk, labels, before)) = operation.labels.take() else { continue };
            match self.cloud.made(&disk) {
                Ok(seen) if fingerprint(&seen.volume.tags) == before => {
                    let _ = self.cloud.set_tags(&disk, |tags| *tags = labels);
                }
                Ok(_) => {
                    let said = "Labels fingerprint either invalid or resource labels have changed".to_owned();
                    operation.error = Some((412, "CONDITION_NOT_MET".to_owned(), said));
                }
                Err(_) => operation.error = Some((404, "RESOURCE_NOT_FOUND".to_owned(), "it is gone".to_owned())),
            }
        }
    }

    /// One page, after the last name that the former page had.
    fn page(&self, sent: &Sent, kind: &str, members: Vec<(String, Value)>) -> Result<Value, Refused> {
        let wanted = sent.query.get("maxResults").map_or(Ok(500), |wanted| wanted.parse::<usize>());
        let wanted = wanted.ok().filter(|wanted| *wanted <= 500).ok_or_else(|| invalid("maxResults is 0 to 500"))?;
        let after = sent.query.get("pageToken").cloned().unwrap_or_default();
        let size = wanted.min(self.cloud.settings.page);
        let mut members: Vec<_> = members.into_iter().filter(|(name, _)| *name > after).collect();
        let mut body = json!({ "kind": kind, "id": "list" });
        if members.len() > size {
            members.truncate(size);
            body["nextPageToken"] = json!(members[size - 1].0);
        }
        if !members.is_empty() {
            body["items"] = members.into_iter().map(|(_, member)| member).collect();
        }
        Ok(body)
    }

    fn instance(&self, sent: &Sent, name: &str) -> Result<Value, Refused> {
        let is_own = name == self.cloud.machine.0;
        let status = if is_own { Some("RUNNING") } else { self.cloud.others.get(name).copied() };
        let status = status.ok_or_else(|| absent(&sent.path))?;
        // The others were there before all disks.
        let since_ms = if is_own { self.cloud.machine_since_ms } else { 0 };
        Ok(json!({
            "kind": "compute#instance", "id": "2345678901234567890", "name": name, "status": status,
            "creationTimestamp": xml::time(since_ms),
        }))
    }

    fn list_disks(&mut self, sent: &Sent) -> Result<Value, Refused> {
        let wanted = match sent.query.get("filter") {
            None => None,
            Some(text) => Some(filter(text).ok_or_else(|| invalid("Invalid value for field 'filter'"))?),
        };
        let matches = |tags: &Tags| wanted.as_ref().is_none_or(|(key, value)| tags.get(key) == Some(value));
        let shown = self.cloud.list().into_iter().filter(|seen| matches(&seen.volume.tags));
        let members = shown.map(|seen| (seen.volume.id.clone(), disk(&seen))).collect();
        self.page(sent, "compute#diskList", members)
    }

    fn list_operations(&self, sent: &Sent) -> Result<Value, Refused> {
        let now_ms = self.cloud.now_ms();
        let is_done = match sent.query.get("filter").map(String::as_str) {
            None => true,
            Some("status != DONE") => false,
            Some(_) => return Err(invalid("Invalid value for field 'filter'")),
        };
        let shown = self.operations.iter().filter(|operation| is_done || now_ms < operation.done_ms);
        let members = shown.map(|operation| (operation.name.clone(), operation.told(now_ms))).collect();
        self.page(sent, "compute#operationList", members)
    }

    /// Begins an operation, or repeats what was said of the request before.
    fn change(&mut self, sent: &Sent, name: &str) -> Result<Value, Refused> {
        let now_ms = self.cloud.now_ms();
        let request = sent.query.get("requestId").cloned();
        if request.as_ref().is_some_and(|id| !is_uuid(id)) {
            return Err(invalid("Invalid value for field 'requestId'. It must be a UUID that is not zero."));
        }
        if let Some(operation) = self.operations.iter().find(|known| request.is_some() && known.request == request) {
            return Ok(operation.told(now_ms));
        }
        let failing = self.failing.iter().position(|(call, ..)| *call == sent.call);
        let error = failing.map(|at| self.failing.remove(at)).map(|(_, status, code, said)| (status, code, said));
        let (takes_ms, labels) = if error.is_some() { (FAILURE_MS, None) } else { self.begin(sent, name)? };
        // An operation is not done before its change is, also by a clock that goes on meanwhile.
        let now_ms = self.cloud.now_ms();
        let target = match &*sent.call {
            "disks.insert" => format!("{BASE}/{}/{}", sent.path, sent.body["name"].as_str().unwrap_or_default()),
            "disks.delete" => format!("{BASE}/{}", sent.path),
            _ => format!("{BASE}/{}", sent.path.rsplit_once('/').map_or("", |(target, _)| target)),
        };
        let operation = Operation {
            name: format!("operation-{:013}-{:06}", now_ms, self.operations.len()),
            call: sent.call.clone(),
            target,
            request,
            inserted_ms: now_ms,
            done_ms: now_ms + takes_ms,
            error,
            labels,
        };
        let told = operation.told(now_ms);
        self.operations.push(operation);
        Ok(told)
    }

    /// Begins a change.
    fn begin(&mut self, sent: &Sent, name: &str) -> Result<Begun, Refused> {
        let settings = self.cloud.settings.clone();
        match &*sent.call {
            "disks.insert" => {
                let wanted = wanted(&sent.body)?;
                let id = wanted.id.clone().unwrap_or_default();
                self.cloud.create(wanted).map_err(|refusal| refused(refusal, &id))?;
                Ok((whole_ms(settings.create), None))
            }
            "disks.delete" => {
                self.cloud.delete(name).map_err(|refusal| refused(refusal, name))?;
                Ok((whole_ms(settings.delete), None))
            }
            "disks.resize" => {
                let gib = sent.body["sizeGb"].as_str().and_then(|gib| gib.parse().ok()).unwrap_or_default();
                let present = self.cloud.made(name).map_err(|refusal| refused(refusal, name))?.volume;
                if gib <= present.gib {
                    return Err(invalid("Invalid value for field 'sizeGb': it must be larger than the present size."));
                }
                check_size(&present.kind, gib)?;
                self.cloud.grow(name, gib).map_err(|refusal| refused(refusal, name))?;
                Ok((whole_ms(settings.grow), None))
            }
            "disks.setLabels" => {
                let present = self.cloud.made(name).map_err(|refusal| refused(refusal, name))?.volume.tags;
                let before = fingerprint(&present);
                if sent.body["labelFingerprint"].as_str() != Some(&before) {
                    let said = "Labels fingerprint either invalid or resource labels have changed";
                    return Err((412, "conditionNotMet", said.to_owned()));
                }
                Ok((self.labels_ms, Some((name.to_owned(), labels(&sent.body)?, before))))
            }
            "instances.attachDisk" => {
                self.check_instance(sent, name)?;
                let source = sent.body["source"].as_str().unwrap_or_default();
                let disk = source.rsplit('/').next().unwrap_or_default();
                let device = sent.body["deviceName"].as_str().unwrap_or(disk);
                if sent.query.contains_key("forceAttach") || sent.body["autoDelete"] == true {
                    return Err(invalid("nobody attaches by force here, or lets a disk go with its instance"));
                }
                if !source.ends_with(&format!("/zones/{ZONE}/disks/{disk}")) {
                    return Err(invalid(format!("Invalid value for field 'resource.source': '{source}'.")));
                }
                self.cloud.attach(disk, device).map_err(|refusal| refused(refusal, disk))?;
                Ok((whole_ms(settings.attach), None))
            }
            "instances.detachDisk" => {
                self.check_instance(sent, name)?;
                let device = sent.query.get("deviceName").map_or("", |device| &**device);
                let disk = self.cloud.held_as(device).ok_or_else(|| {
                    invalid(format!(
                        "Invalid value for field 'disk': '{device}'. No attached disk found with device name '{device}'"
                    ))
                })?;
                self.cloud.detach(&disk).map_err(|refusal| refused(refusal, &disk))?;
                Ok((whole_ms(settings.detach), None))
            }
            _ => Err((404, "notFound", "Not Found".to_owned())),
        }
    }

    fn check_instance(&self, sent: &Sent, instance: &str) -> Result<(), Refused> {
        if instance == self.cloud.machine.0 {
            return Ok(());
        }
        Err(absent(sent.path.rsplit_once('/').map_or("", |(path, _)| path)))
    }
}

/// How long an operation takes in milliseconds, and the labels that follow from it.
type Begun = (u64, Option<(String, BTreeMap<String, String>, String)>);

/// What a creation asks for.
fn wanted(body: &Value) -> Result<Wanted, Refused> {
    let name = body["name"].as_str().filter(|name| is_name(name));
    let name = name.ok_or_else(|| invalid("Invalid value for field 'resource.name'."))?;
    let url = body["type"].as_str().unwrap_or("pd-standard");
    let kind = url.rsplit('/').next().unwrap_or_default();
    if !TYPES.contains(&kind) {
        return Err(absent(&format!("projects/{PROJECT}/zones/{ZONE}/diskTypes/{kind}")));
    }
    // A number is a text here, as JSON has none of 64 bits; the interface takes both.
    let gib = body["sizeGb"].as_str().and_then(|gib| gib.parse().ok()).or_else(|| body["sizeGb"].as_u64());
    let gib = gib.ok_or_else(|| invalid("Invalid value for field 'resource.sizeGb'."))?;
    check_size(kind, gib)?;
    Ok(Wanted {
        id: Some(name.to_owned()),
        gib,
        kind: kind.to_owned(),
        zone: ZONE.to_owned(),
        tags: labels(body)?,
        encrypted: true,
        iops: None,
        throughput: None,
    })
}

fn check_size(kind: &str, gib: u64) -> Result<(), Refused> {
    let catalog = Catalog::builtin();
    let size = catalog.find("gcp", kind).map(|known| known.size);
    if size.is_some_and(|size| ((size.min.get() / GIB)..=(size.max.get() / GIB)).contains(&gib)) {
        return Ok(());
    }
    Err(invalid(format!("Invalid value for field 'resource.sizeGb': '{gib}'. Disk size cannot be that of a {kind}.")))
}
