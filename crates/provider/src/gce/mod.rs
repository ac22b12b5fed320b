//! Google Compute Engine: Persistent Disks and Hyperdisks, attached to the instance that this machine is.
//!
//! Not yet run on the real cloud, but against a fake of it (`fakes`) that Google's own client uses, and whose record of requests is
//! checked by the discovery document (`tests/gce`).

mod account;
mod compute;
mod config;
mod disk;
mod errors;
mod known;
mod labels;
mod login;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use surgetank_model::Bytes;
use ureq::http::Method;

pub use config::GceConfig;

use crate::account::takes_over;
use crate::clock::{Clock, SystemClock};
use crate::cloud::failure::{Meaning, unless_absent};
use crate::cloud::rates::Turns;
use crate::{
    Change, CreateVolume, Home, Lag, Provider, ProviderConfig, ProviderError, Transition, Verb, VolumeDescription,
    VolumeId, VolumeState, decide_growth, tag,
};
use compute::{Compute, Doing, Operation, Which, random};
use disk::{Disk, is_name};
use errors::{Failure, Refusal};
use known::{Known, Pending, pending_of};

/// How often labels are read again when somebody else has changed them.
const CONFLICTS_MAX: usize = 5;
/// How long an operation is waited for that has to end within a call, and how often it is asked for. Whoever calls waits for little longer.
const FINISHED_WITHIN: Duration = Duration::from_secs(2);
const FINISHED_LOOK: Duration = Duration::from_millis(200);

/// Disks of a zone of a project.
pub struct GceProvider {
    config: GceConfig,
    compute: Compute,
    clock: Arc<dyn Clock>,
    turns: Turns,
    known: Known,
    /// How many creations have failed after they were accepted.
    failed: AtomicU64,
}

impl std::fmt::Debug for GceProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GceProvider")
            .field("config", &self.config)
            .field("compute", &self.compute)
            .finish_non_exhaustive()
    }
}

impl From<Transition> for Doing {
    fn from(transition: Transition) -> Self {
        match transition {
            Transition::Attach => Self::Attach,
            Transition::Detach => Self::Detach,
            Transition::Delete => Self::Delete,
        }
    }
}

impl GceProvider {
    /// Prepares the client, and asks nobody.
    ///
    /// # Errors
    /// `Invalid`: the configuration.
    pub fn open(config: GceConfig) -> Result<Self, ProviderError> {
        Self::open_at(config, Arc::new(SystemClock))
    }

    /// The same by another clock, for tests.
    ///
    /// # Errors
    /// As [`GceProvider::open`].
    pub fn open_at(config: GceConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        config.check().map_err(ProviderError::Invalid)?;
        let compute = Compute::new(&config, Arc::clone(&clock))?;
        let turns = Turns::new("Compute Engine", "[provider.gce]", config.reads_per_s, config.writes_per_s);
        let (known, failed) = (Known::default(), AtomicU64::new(0));
        Ok(Self { config, compute, clock, turns, known, failed })
    }

    /// What is said of a disk. Where it is attached counts only if it is.
    fn described(&self, disk: &Disk, state: VolumeState) -> Result<VolumeDescription, ProviderError> {
        let here = if disk.users.is_empty() { String::new() } else { self.compute.here()? };
        Ok(disk.describe(state, &here))
    }

    /// Why a change of a disk was not carried out.
    fn error_of(&self, failure: Failure, disk: &str, state: VolumeState) -> ProviderError {
        let zone = self.compute.place().map(|place| place.zone.clone()).unwrap_or_default();
        failure.told(|refusal| refusal.of_disk(disk, &zone, state))
    }

    /// The same of one that was asked for: what was told of the disk may be so no more.
    fn refused(&self, failure: Failure, disk: &str, state: VolumeState) -> ProviderError {
        // Of what was surely refused, as by a rate, nothing else has to be asked.
        if failure.is_in_doubt() {
            self.known.disks.forget(disk);
        } else {
            self.known.disks.is_stale(disk);
        }
        self.error_of(failure, disk, state)
    }

    /// The disk itself; `None`: Compute Engine says that there is none.
    fn disk(&self, name: &str) -> Result<Option<Disk>, ProviderError> {
        let body = match self.compute.ask(&Method::GET, &format!("disks/{name}"), None) {
            Ok(body) => body,
            Err(failure) => {
                return unless_absent(self.error_of(failure, name, VolumeState::Creating));
            }
        };
        let disk = Disk::read(&body)?;
        if disk.name == name {
            return Ok(Some(disk));
        }
        Err(ProviderError::Transient(format!(
            "Compute Engine was asked for the disk {name} and describes {}",
            disk.name
        )))
    }

    /// Where a disk is; `None`: nowhere. An operation that has failed is told as an error, once.
    fn look(&self, name: &str) -> Result<Option<(Disk, VolumeState)>, ProviderError> {
        let changes = self.known.disks.changes();
        let pending = match self.known.disks.pending(name) {
            Some(pending) => pending,
            // Before the disk is read: what ends in between shows there.
            None => {
                let found = pending_of(name, &self.compute.operations().map_err(Failure::general)?);
                found.inspect(|pending| self.known.found(name, pending, changes))
            }
        };
        let seen = match pending {
            Some(pending) => self.look_on(name, pending)?,
            None => self.disk(name)?.map(as_it_is),
        };
        match &seen {
            Some(seen) => self.known.disks.told(name, seen.clone(), self.clock.now_ms(), changes),
            None if self.known.disks.changes() == changes && !self.is_new(name) => self.known.settles(name),
            None => {}
        }
        Ok(seen)
    }

    /// Whether a disk is being made, which may not be described yet.
    fn is_new(&self, name: &str) -> bool {
        self.known.disks.pending(name).flatten().is_some_and(|pending| pending.doing == Doing::Create)
    }

    /// Where a disk is of which a change was accepted.
    fn look_on(&self, name: &str, pending: Pending) -> Result<Option<(Disk, VolumeState)>, ProviderError> {
        if pending.doing == Doing::Create
            && let Some(disk) = self.disk(name)?
        {
            // A new disk says itself where it is.
            let (disk, state) = as_it_is(disk);
            if state != VolumeState::Creating {
                self.known.ends(name, &pending.operation);
            }
            return Ok(Some((disk, state)));
        }
        let operation = self.compute.operation(&pending.operation).map_err(Failure::general)?;
        match operation.map(|operation| operation.ended) {
            Some(None) => self.under_way(name, pending),
            Some(Some(Err(refusal))) => {
                self.known.ends(name, &pending.operation);
                self.look_after_failure(name, pending.doing, refusal)
            }
            Some(Some(Ok(()))) if pending.doing == Doing::Create => Ok(None),
            Some(Some(Ok(()))) => {
                self.known.ends(name, &pending.operation);
                match (pending.doing, pending.disk) {
                    (Doing::Delete, _) => Ok(None),
                    // What the operation has done is so, and nobody has to ask again for that.
                    (Doing::Attach, Some(disk)) => Ok(Some(as_it_is(disk.ready(Some(&self.compute.here()?))))),
                    (Doing::Detach, Some(disk)) => Ok(Some(as_it_is(disk.ready(None)))),
                    _ => Ok(self.disk(name)?.map(as_it_is)),
                }
            }
            // It is forgotten, unless it has only just begun and the disk does not show what it does.
            None => {
                let disk = self.disk(name)?;
                if pending.is_new(self.clock.now_ms()) && !pending.is_shown(disk.as_ref()) {
                    return self.under_way(name, pending);
                }
                self.known.ends(name, &pending.operation);
                Ok(disk.map(as_it_is))
            }
        }
    }

    /// The disks that a filter lets pass, or all of the zone, with the states that operations say.
    fn all(&self, filter: Option<&str>) -> Result<Vec<(Disk, VolumeState)>, ProviderError> {
        // Before the disks are read: what ends in between shows there.
        let operations = self.compute.operations().map_err(Failure::general)?;
        let bodies = self.compute.all("disks", filter).map_err(Failure::general)?;
        let mut disks = bodies.iter().map(Disk::read).collect::<Result<Vec<Disk>, _>>()?;
        // One that was made meanwhile moves the pages.
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        disks.dedup_by(|a, b| a.name == b.name);
        let with_state = disks.into_iter().map(|disk| {
            let state = match pending_of(&disk.name, &operations).map(|pending| pending.doing) {
                Some(Doing::Attach) => VolumeState::Attaching,
                Some(Doing::Detach) => VolumeState::Detaching,
                Some(Doing::Delete) => VolumeState::Deleting,
                _ => disk.state(),
            };
            (disk, state)
        });
        Ok(with_state.collect())
    }

    fn under_way(&self, name: &str, pending: Pending) -> Result<Option<(Disk, VolumeState)>, ProviderError> {
        let before = match (pending.doing, pending.disk) {
            // The size tells when it has grown.
            (Doing::Grow, _) | (_, None) => self.disk(name)?,
            (_, before) => before,
        };
        Ok(before.map(|disk| {
            let state = match pending.doing {
                Doing::Create => VolumeState::Creating,
                Doing::Attach => VolumeState::Attaching,
                Doing::Detach => VolumeState::Detaching,
                Doing::Delete => VolumeState::Deleting,
                Doing::Grow | Doing::Label => disk.state(),
            };
            (disk, state)
        }))
    }

    fn look_after_failure(
        &self,
        name: &str,
        doing: Doing,
        refusal: Refusal,
    ) -> Result<Option<(Disk, VolumeState)>, ProviderError> {
        if doing == Doing::Create {
            if refusal.exists() {
                return Ok(self.disk(name)?.map(as_it_is));
            }
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(refusal.general());
        }
        let state = match doing {
            Doing::Detach => VolumeState::Attached,
            _ => VolumeState::Available,
        };
        Err(self.error_of(Failure::Refused(refusal), name, state))
    }

    /// Waits for an operation that has to end within the call. One that takes long is no reason to hold the caller, who asks again.
    fn finish(&self, operation: Operation) -> Result<(), Failure> {
        let (began, mut ended) = (Instant::now(), operation.ended);
        while ended.is_none() && began.elapsed() < FINISHED_WITHIN {
            ended = self.compute.wait(&operation.name)?.and_then(|operation| operation.ended);
            if ended.is_none() {
                std::thread::sleep(FINISHED_LOOK);
            }
        }
        match ended {
            Some(ended) => ended.map_err(Failure::Refused),
            None => Err(Failure::Other(ProviderError::Transient(format!(
                "Compute Engine has accepted a change and has not carried it out yet: it is the operation {}, and is asked for again",
                operation.name
            )))),
        }
    }

    /// Asks for a change of a disk.
    fn carry_out(&self, name: &str, transition: Transition, which: Which) -> Result<Operation, Failure> {
        let doing = Doing::from(transition);
        match transition {
            Transition::Attach => {
                let body = json!({
                    "source": self.compute.place()?.path(&format!("disks/{name}")), "deviceName": name,
                    // The newest data may be on it when the instance is deleted.
                    "autoDelete": false, "mode": "READ_WRITE", "type": "PERSISTENT",
                });
                let path = format!("instances/{}/attachDisk?", self.compute.instance()?);
                self.compute.begin(doing, name, which, &Method::POST, &path, Some(&body))
            }
            Transition::Detach => {
                let path = format!("instances/{}/detachDisk?deviceName={name}&", self.compute.instance()?);
                self.compute.begin(doing, name, which, &Method::POST, &path, None)
            }
            Transition::Delete => {
                self.compute.begin(doing, name, which, &Method::DELETE, &format!("disks/{name}?"), None)
            }
        }
    }
}

/// A disk with the state that it shows itself.
fn as_it_is(disk: Disk) -> (Disk, VolumeState) {
    let state = disk.state();
    (disk, state)
}

impl Provider for GceProvider {
    fn home(&self) -> Home {
        Home::Disks
    }

    /// The name is the id, and whoever comes second is told that it is there.
    fn create_is_exclusive(&self) -> bool {
        true
    }

    /// Nothing is promised of when a new disk is described.
    fn lag(&self) -> Lag {
        Lag::CLOUD
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let (name, gib, sizes) =
            (disk::name(&request.token)?, disk::gib(request.size)?, config::known(&request.volume_type)?);
        if request.size < sizes.min || request.size > sizes.max {
            return Err(ProviderError::Invalid(format!(
                "a disk of the type {} has {} to {}, not {}",
                request.volume_type, sizes.min, sizes.max, request.size
            )));
        }
        let wanted = Disk::wanted(request, &name, gib)?;
        self.turns.take(Verb::Create)?;
        let wanted = wanted.marked(self.compute.instance()?)?;
        let present = |(disk, state): (Disk, VolumeState)| {
            disk.check(request, gib)?;
            Ok((self.described(&disk, state)?, Change::Identity))
        };
        if self.known.disks.pending(&name).is_some()
            && let Some(seen) = self.look(&name)?
        {
            return present(seen);
        }
        let body = wanted.body(&self.compute.place()?.path("diskTypes"));
        let creating = wanted.describe(VolumeState::Creating, "");
        let failed = self.failed.load(Ordering::Relaxed);
        match self.compute.begin_creation(&name, failed, &body) {
            Ok(Operation { ended: Some(Err(refusal)), .. }) if !refusal.exists() => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(refusal.general())
            }
            Ok(Operation { ended: Some(Err(_)), .. }) => {
                self.look(&name)?.map_or(Ok((creating, Change::Identity)), present)
            }
            Ok(operation) => {
                let (disk, begun_ms) = (Some(wanted.clone()), self.clock.now_ms());
                let pending = Pending { operation: operation.name, doing: Doing::Create, disk, begun_ms };
                let is_news = self.known.begins(pending, &wanted, VolumeState::Creating, begun_ms);
                Ok((creating, if is_news { Change::Changed } else { Change::Identity }))
            }
            // There is one disk of a name, and it may not be described yet.
            Err(Failure::Refused(refusal)) if refusal.exists() => {
                self.look(&name)?.map_or(Ok((creating, Change::Identity)), present)
            }
            Err(failure) => Err(failure.general()),
        }
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.turns.take(transition.into())?;
        let name = &*id.0;
        if !is_name(name) {
            return transition.decide(id, None);
        }
        let mut recent = self.known.disks.recent(name, self.clock.now_ms());
        let (disk, state) = loop {
            let is_recent = recent.is_some();
            let Some((disk, state)) = recent.take().map_or_else(|| self.look(name), |seen| Ok(Some(seen)))? else {
                return transition.decide(id, None);
            };
            let decided = match transition {
                Transition::Attach | Transition::Detach if !disk.users.is_empty() => {
                    match disk.elsewhere(&self.compute.here()?) {
                        Some(other) => Err(ProviderError::Conflict {
                            id: id.clone(),
                            state,
                            reason: format!("the instance {other} has it: detach it there"),
                        }),
                        None => transition.decide(id, Some(state)),
                    }
                }
                _ => transition.decide(id, Some(state)),
            };
            match decided {
                Ok(Change::Changed) => break (disk, state),
                // Nothing is left undone because of what was so a moment ago.
                _ if is_recent => {}
                decided => return decided,
            }
        };
        let doing = Doing::from(transition);
        let which = self.known.doubted(name, doing).map_or_else(random, Ok)?;
        let told = |error| match error {
            ProviderError::NotFound(_) if transition == Transition::Delete => Ok(Change::Identity),
            error => Err(error),
        };
        match self.carry_out(name, transition, which) {
            // It had arrived before and has failed: whatever the reason, asked for again it would be the same operation.
            Ok(Operation { ended: Some(Err(refusal)), .. }) => {
                self.known.settles(name);
                told(self.error_of(Failure::Refused(refusal), name, state))
            }
            // It had arrived before, and may have been undone since: the disk has to tell.
            Ok(Operation { ended: Some(Ok(())), .. }) => {
                self.known.settles(name);
                Ok(Change::Changed)
            }
            Ok(operation) => {
                let (before, begun_ms) = (Some(disk.clone()), self.clock.now_ms());
                let pending = Pending { operation: operation.name, doing, disk: before, begun_ms };
                self.known.begins(pending, &disk, transition.under_way(), begun_ms);
                Ok(Change::Changed)
            }
            Err(failure) => {
                if failure.is_in_doubt() {
                    self.known.doubts(name, doing, which);
                }
                told(self.refused(failure, name, state))
            }
        }
    }

    /// A Hyperdisk once in 4 hours.
    fn grows(&self) -> bool {
        self.config.grow_in_place
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        if !self.grows() {
            return Err(ProviderError::Invalid(
                "disks do not grow in place unless grow_in_place in [provider.gce] is true".to_owned(),
            ));
        }
        self.turns.take(Verb::Grow)?;
        let name = &*id.0;
        let seen = if is_name(name) { self.look(name)? } else { None };
        let present = seen.as_ref().map(|(disk, state)| (*state, disk.size()));
        if decide_growth(id, present, size)? == Change::Identity {
            return Ok(Change::Identity);
        }
        let Some((disk, state)) = seen else { return Err(ProviderError::NotFound(id.clone())) };
        match self.known.disks.pending(name).flatten() {
            // To which size, the operation does not say: whoever sees that it is too small asks again.
            Some(pending) if pending.doing == Doing::Grow => return Ok(Change::Identity),
            Some(_) => {
                let reason = "wait until it is attached or detached".to_owned();
                return Err(ProviderError::Conflict { id: id.clone(), state, reason });
            }
            None => {}
        }
        let body = json!({ "sizeGb": disk::gib(size)?.to_string() });
        let (path, which) = (format!("disks/{name}/resize?"), random()?);
        let failure = match self.compute.begin(Doing::Grow, name, which, &Method::POST, &path, Some(&body)) {
            Ok(Operation { ended: Some(Err(refusal)), .. }) => Failure::Refused(refusal),
            Ok(operation) => {
                let begun_ms = self.clock.now_ms();
                let pending = Pending { operation: operation.name, doing: Doing::Grow, disk: None, begun_ms };
                self.known.begins(pending, &disk, state, begun_ms);
                return Ok(Change::Changed);
            }
            Err(failure) => failure,
        };
        Err(self.refused(failure, name, state))
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        let name = &*id.0;
        if !is_name(name) {
            return Err(ProviderError::NotFound(id.clone()));
        }
        if let Some((disk, state)) = self.known.disks.shown(name, self.clock.now_ms(), |(_, state)| *state) {
            return Ok(disk.describe(state, ""));
        }
        self.turns.take(Verb::Describe)?;
        let (disk, state) = self.look(name)?.ok_or_else(|| ProviderError::NotFound(id.clone()))?;
        self.described(&disk, state)
    }

    fn disk_changed(&self) {
        self.known.disks.disk_changed(self.clock.now_ms());
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.turns.take(Verb::List)?;
        let Some(filter) = labels::filter(key, value) else { return Ok(Vec::new()) };
        let mut disks = self.all(Some(&filter))?;
        // Who filters, compares.
        disks.retain(|(disk, _)| labels::tags(&disk.labels).get(key).is_some_and(|there| there == value));
        disks.iter().map(|(disk, state)| self.described(disk, *state)).collect()
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.turns.take(Verb::SetTag)?;
        let name = &*id.0;
        let absent = || ProviderError::NotFound(id.clone());
        if !is_name(name) {
            return Err(absent());
        }
        let host = if takes_over(key, value) { Some(self.compute.instance()?) } else { None };
        let mut recent =
            self.known.disks.recent(name, self.clock.now_ms()).filter(|(disk, _)| disk.fingerprint.is_some());
        for _ in 0..CONFLICTS_MAX {
            let is_recent = recent.is_some();
            let (disk, state) =
                recent.take().map_or_else(|| self.look(name), |seen| Ok(Some(seen)))?.ok_or_else(absent)?;
            let mut wanted = disk.labels.clone();
            labels::set(&mut wanted, key, value)?;
            if host.is_some() {
                labels::set(&mut wanted, tag::HOST, host)?;
            }
            if wanted == disk.labels {
                if is_recent {
                    // Nothing is left undone because of what was so a moment ago.
                    continue;
                }
                return Ok(Change::Identity);
            }
            let Some(fingerprint) = &disk.fingerprint else {
                // It is on the way, and was seen before its labels were changed.
                self.known.disks.forget(name);
                continue;
            };
            let body = json!({ "labels": wanted, "labelFingerprint": fingerprint });
            let (path, which) = (format!("disks/{name}/setLabels?"), random()?);
            let begun = self.compute.begin(Doing::Label, name, which, &Method::POST, &path, Some(&body));
            match begun.and_then(|operation| self.finish(operation)) {
                Ok(()) => {
                    self.known.relabelled(name, &wanted);
                    return Ok(Change::Changed);
                }
                Err(Failure::Refused(refusal)) if refusal.is_of_fingerprint() => {}
                Err(failure) => {
                    // Labels are written with what was read just before: a request that comes late changes nothing any more.
                    return Err(self.refused(failure, name, state));
                }
            }
        }
        Err(ProviderError::Transient(format!(
            "the labels of the disk {name} are changed again and again by somebody else: find out who does that"
        )))
    }
}
