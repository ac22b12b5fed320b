//! The state of a cloud's volumes, whatever its dialect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::Tags;
use crate::clock::{Clock, whole_ms};

/// In what time [`Settings::growths_max`] changes of one volume's size are permitted.
const GROWTHS_IN: Duration = Duration::from_secs(24 * 3600);

/// How a fake behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// From the answer to a creation until the volume is available.
    pub create: Duration,
    /// From the answer to an attach until the volume is attached.
    pub attach: Duration,
    /// From the answer to a detach until the volume is available again.
    pub detach: Duration,
    /// From the answer to a deletion until the volume is gone.
    pub delete: Duration,
    /// From the answer to a growth until the volume is larger.
    pub grow: Duration,
    /// For how long a new volume is not described.
    pub blind: Duration,
    /// By how much listings by filter lag behind.
    pub listing_lag: Duration,
    /// By how much the states that are described lag behind.
    pub state_lag: Duration,
    /// How many volumes the account may have.
    pub volumes_max: usize,
    /// How many volumes a machine may have beside its own.
    pub attachments_max: usize,
    /// How often one volume may grow in a day.
    pub growths_max: usize,
    /// How many volumes a page of a list has at most, whatever is asked for.
    pub page: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            create: Duration::from_millis(1500),
            attach: Duration::from_secs(3),
            detach: Duration::from_secs(3),
            delete: Duration::from_secs(5),
            grow: Duration::from_secs(3),
            blind: Duration::ZERO,
            listing_lag: Duration::ZERO,
            state_lag: Duration::ZERO,
            volumes_max: 1000,
            attachments_max: 27,
            growths_max: 4,
            page: 1000,
        }
    }
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    pub id: String,
    pub gib: u64,
    pub kind: String,
    pub zone: String,
    pub tags: Tags,
    pub created_ms: u64,
    pub encrypted: bool,
    /// What was bought.
    pub iops: Option<u64>,
    pub throughput: Option<u64>,
    fails: bool,
    ready_ms: u64,
    /// When its deletion was asked for, and when it is gone.
    deleted_ms: Option<(u64, u64)>,
    /// The tags before the last change of them, and when that was.
    former: Option<(Tags, u64)>,
    /// The last one is the present one.
    attachments: Vec<Attachment>,
    growths: Vec<Growth>,
}

/// An attachment.
#[derive(Clone, Debug)]
pub struct Attachment {
    pub machine: String,
    pub device: String,
    pub since_ms: u64,
    /// When it is attached; `None`: never.
    attached_ms: Option<u64>,
    /// When the detach was asked for, and when it is carried out.
    detached_ms: Option<(u64, u64)>,
}

/// A change of the size.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub gib: u64,
    asked_ms: u64,
    done_ms: u64,
}

/// Where a volume is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Creating,
    Available,
    InUse,
    Deleting,
    Failed,
}

/// Where an attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Attaching,
    Attached,
    Detaching,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its id, in clouds where whoever creates it says so.
    pub id: Option<String>,
    pub gib: u64,
    pub kind: String,
    pub zone: String,
    pub tags: Tags,
    pub encrypted: bool,
    pub iops: Option<u64>,
    pub throughput: Option<u64>,
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NoVolume,
    Exists,
    State,
    InUse,
    Limit,
    AttachmentLimit,
    NameInUse,
    OtherZone,
    Modifying,
    ModifiedTooOften,
}

/// The volumes of an account.
pub struct Cloud {
    clock: Arc<dyn Clock>,
    pub settings: Settings,
    volumes: BTreeMap<String, Volume>,
    made: u64,
    /// The next volume fails.
    pub fail_next: bool,
    /// Device names under which attachments hang.
    pub hung: BTreeSet<String>,
    /// The machine that can attach volumes, and its zone.
    pub machine: (String, String),
    /// When that was made.
    pub machine_since_ms: u64,
    /// Other machines, and the state in which each is, in the cloud's own word.
    pub others: BTreeMap<String, &'static str>,
}

impl Volume {
    fn attachment_at(&self, now_ms: u64) -> Option<(&Attachment, Progress)> {
        let at = self.attachments.iter().rev().find(|at| at.since_ms <= now_ms)?;
        match (at.detached_ms, at.attached_ms) {
            (Some((_, done_ms)), _) if done_ms <= now_ms => None,
            (Some((asked_ms, _)), _) if asked_ms <= now_ms => Some((at, Progress::Detaching)),
            (_, Some(since_ms)) if since_ms <= now_ms => Some((at, Progress::Attached)),
            _ => Some((at, Progress::Attaching)),
        }
    }

    fn state_at(&self, now_ms: u64) -> State {
        if self.deleted_ms.is_some_and(|(asked_ms, _)| asked_ms <= now_ms) {
            State::Deleting
        } else if now_ms < self.ready_ms {
            State::Creating
        } else if self.fails {
            State::Failed
        } else if self.attachment_at(now_ms).is_some() {
            State::InUse
        } else {
            State::Available
        }
    }
}

/// A volume as it is at some time.
#[derive(Clone, Debug)]
pub struct Seen {
    pub volume: Volume,
    pub state: State,
    pub attachment: Option<(Attachment, Progress)>,
}

impl Cloud {
    pub fn new(clock: Arc<dyn Clock>, settings: Settings, machine: (String, String)) -> Self {
        let (volumes, hung, others) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let machine_since_ms = clock.now_ms();
        Self { clock, settings, volumes, made: 0, fail_next: false, hung, machine, machine_since_ms, others }
    }

    /// Another machine calls from now on. The former one is left in this state; `None`: nothing is known of it any more.
    pub fn replace_machine(&mut self, name: &str, former: Option<&'static str>) {
        let gone = std::mem::replace(&mut self.machine.0, name.to_owned());
        self.machine_since_ms = self.now_ms();
        self.others.remove(name);
        if let Some(state) = former {
            self.others.insert(gone, state);
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// A volume as it was at some time.
    fn seen(volume: &Volume, at_ms: u64) -> Seen {
        let attachment = volume.attachment_at(at_ms).map(|(at, state)| (at.clone(), state));
        Seen { volume: volume.clone(), state: volume.state_at(at_ms), attachment }
    }

    /// From when described states are.
    fn described_ms(&self) -> u64 {
        self.now_ms().saturating_sub(whole_ms(self.settings.state_lag))
    }

    /// Forgets what is gone, and makes volumes as large as they have become.
    fn settle(&mut self) {
        let now_ms = self.now_ms();
        // As long as listings may show them.
        let gone_ms = now_ms.saturating_sub(whole_ms(self.settings.listing_lag));
        self.volumes.retain(|_, volume| volume.deleted_ms.is_none_or(|(_, at_ms)| gone_ms < at_ms));
        for volume in self.volumes.values_mut() {
            let done = volume.growths.iter().filter(|growth| growth.done_ms <= now_ms);
            volume.gib = done.map(|growth| growth.gib).fold(volume.gib, u64::max);
        }
    }

    /// A volume that is there, for whoever changes it.
    fn there(&mut self, id: &str) -> Result<&mut Volume, Refusal> {
        self.settle();
        let now_ms = self.now_ms();
        let volume =
            self.volumes.get_mut(id).filter(|volume| volume.deleted_ms.is_none_or(|(_, at_ms)| now_ms < at_ms));
        volume.ok_or(Refusal::NoVolume)
    }

    /// A volume as it is described.
    pub fn describe(&mut self, id: &str) -> Result<Seen, Refusal> {
        let (now_ms, blind_ms) = (self.now_ms(), whole_ms(self.settings.blind));
        let volume = self.there(id)?.clone();
        if now_ms < volume.created_ms + blind_ms {
            return Err(Refusal::NoVolume);
        }
        Ok(Self::seen(&volume, self.described_ms()))
    }

    /// A volume as whoever changes it is told.
    pub fn made(&mut self, id: &str) -> Result<Seen, Refusal> {
        let now_ms = self.now_ms();
        Ok(Self::seen(self.there(id)?, now_ms))
    }

    /// All volumes, as listings show them.
    pub fn list(&mut self) -> Vec<Seen> {
        self.settle();
        let then_ms = self.now_ms().saturating_sub(whole_ms(self.settings.listing_lag));
        let described_ms = self.described_ms();
        let shown = self.volumes.values().filter(|volume| volume.created_ms <= then_ms);
        shown
            .map(|volume| {
                let mut seen = Self::seen(volume, described_ms);
                if let Some((former, changed_ms)) = &volume.former
                    && then_ms < *changed_ms
                {
                    seen.volume.tags.clone_from(former);
                }
                seen
            })
            .collect()
    }

    /// The volumes that the machine has, is to have or is about to release.
    pub fn held(&self) -> Vec<Seen> {
        let now_ms = self.now_ms();
        let seen = self.volumes.values().map(|volume| Self::seen(volume, now_ms));
        seen.filter(|seen| seen.attachment.as_ref().is_some_and(|(at, _)| at.machine == self.machine.0)).collect()
    }

    /// The volumes that are attached to the machine.
    pub fn attached(&self) -> BTreeSet<String> {
        let is_attached = |seen: &Seen| matches!(seen.attachment, Some((_, Progress::Attached)));
        self.held().into_iter().filter(is_attached).map(|seen| seen.volume.id).collect()
    }

    /// The volumes that there are, without those that are being deleted.
    pub fn there_are(&mut self) -> BTreeSet<String> {
        self.settle();
        let there = self.volumes.values().filter(|volume| volume.deleted_ms.is_none());
        there.map(|volume| volume.id.clone()).collect()
    }

    /// How many volumes count towards the limit.
    pub fn count(&mut self) -> usize {
        self.there_are().len()
    }

    pub fn create(&mut self, wanted: Wanted) -> Result<Seen, Refusal> {
        let now_ms = self.now_ms();
        let Wanted { id, gib, kind, zone, tags, encrypted, iops, throughput } = wanted;
        self.made += 1;
        let id = id.unwrap_or_else(|| format!("vol-{:017x}", 0x0a1b_2c3d_0000_0000_u64 + self.made));
        if self.there(&id).is_ok() {
            return Err(Refusal::Exists);
        }
        if self.count() >= self.settings.volumes_max {
            return Err(Refusal::Limit);
        }
        let volume = Volume {
            id: id.clone(),
            gib,
            kind,
            zone,
            tags,
            created_ms: now_ms,
            encrypted,
            iops,
            throughput,
            fails: std::mem::take(&mut self.fail_next),
            ready_ms: now_ms + whole_ms(self.settings.create),
            deleted_ms: None,
            former: None,
            attachments: Vec::new(),
            growths: Vec::new(),
        };
        let seen = Self::seen(&volume, now_ms);
        self.volumes.insert(id, volume);
        Ok(seen)
    }

    pub fn attach(&mut self, id: &str, device: &str) -> Result<Seen, Refusal> {
        let now_ms = self.now_ms();
        let (machine, zone) = self.machine.clone();
        let volume = self.there(id)?;
        match volume.state_at(now_ms) {
            State::Available => {}
            State::InUse => return Err(Refusal::InUse),
            _ => return Err(Refusal::State),
        }
        if volume.zone != zone {
            return Err(Refusal::OtherZone);
        }
        let held = self.volumes.values().filter_map(|volume| Some(volume.attachment_at(now_ms)?.0));
        let held: Vec<&Attachment> = held.filter(|at| at.machine == machine).collect();
        if held.iter().any(|at| at.device == device) {
            return Err(Refusal::NameInUse);
        }
        if held.len() >= self.settings.attachments_max {
            return Err(Refusal::AttachmentLimit);
        }
        let attached_ms = (!self.hung.contains(device)).then(|| now_ms + whole_ms(self.settings.attach));
        let attachment =
            Attachment { machine, device: device.to_owned(), since_ms: now_ms, attached_ms, detached_ms: None };
        self.there(id)?.attachments.push(attachment);
        self.made(id)
    }

    /// Gives a volume to another machine, as somebody else may.
    pub fn attach_elsewhere(&mut self, id: &str, machine: &str) {
        let since_ms = self.now_ms();
        let Ok(volume) = self.there(id) else { return };
        volume.attachments.push(Attachment {
            machine: machine.to_owned(),
            device: "/dev/sdf".to_owned(),
            since_ms,
            attached_ms: Some(since_ms),
            detached_ms: None,
        });
    }

    pub fn detach(&mut self, id: &str) -> Result<Seen, Refusal> {
        let (now_ms, takes_ms) = (self.now_ms(), whole_ms(self.settings.detach));
        let volume = self.there(id)?;
        if !matches!(volume.attachment_at(now_ms), Some((_, Progress::Attaching | Progress::Attached))) {
            return Err(Refusal::State);
        }
        if let Some(attachment) = volume.attachments.last_mut() {
            attachment.detached_ms = Some((now_ms, now_ms + takes_ms));
        }
        self.made(id)
    }

    pub fn delete(&mut self, id: &str) -> Result<(), Refusal> {
        let (now_ms, takes_ms) = (self.now_ms(), whole_ms(self.settings.delete));
        let volume = self.there(id)?;
        match volume.state_at(now_ms) {
            State::Available | State::Failed => volume.deleted_ms = Some((now_ms, now_ms + takes_ms)),
            State::Deleting => {}
            State::InUse => return Err(Refusal::InUse),
            State::Creating => return Err(Refusal::State),
        }
        Ok(())
    }

    /// Takes a volume back while it is being made.
    pub fn take_back(&mut self, id: &str) {
        let at_ms = self.now_ms() + whole_ms(self.settings.create) / 2;
        if let Ok(volume) = self.there(id) {
            volume.deleted_ms = Some((at_ms, at_ms));
        }
    }

    /// The volume that the machine has under this device name.
    pub fn held_as(&mut self, device: &str) -> Option<String> {
        self.settle();
        let has = |seen: &Seen| seen.attachment.as_ref().is_some_and(|(at, _)| at.device == device);
        self.held().into_iter().find(has).map(|seen| seen.volume.id)
    }

    pub fn set_tags(&mut self, id: &str, change: impl FnOnce(&mut Tags)) -> Result<(), Refusal> {
        let now_ms = self.now_ms();
        let volume = self.there(id)?;
        volume.former = Some((volume.tags.clone(), now_ms));
        change(&mut volume.tags);
        Ok(())
    }

    pub fn grow(&mut self, id: &str, gib: u64) -> Result<(), Refusal> {
        let (now_ms, takes_ms) = (self.now_ms(), whole_ms(self.settings.grow));
        let most = self.settings.growths_max;
        let volume = self.there(id)?;
        if !matches!(volume.state_at(now_ms), State::Available | State::InUse) {
            return Err(Refusal::State);
        }
        if volume.growths.iter().any(|growth| now_ms < growth.done_ms) {
            return Err(Refusal::Modifying);
        }
        let is_recent = |growth: &&Growth| now_ms < growth.asked_ms + whole_ms(GROWTHS_IN);
        if volume.growths.iter().filter(is_recent).count() >= most {
            return Err(Refusal::ModifiedTooOften);
        }
        volume.growths.push(Growth { gib, asked_ms: now_ms, done_ms: now_ms + takes_ms });
        Ok(())
    }

    /// The last change of a volume's size, and whether it is carried out.
    pub fn growth(&mut self, id: &str) -> Result<Option<(u64, bool)>, Refusal> {
        let now_ms = self.now_ms();
        Ok(self.there(id)?.growths.last().map(|growth| (growth.gib, growth.done_ms <= now_ms)))
    }
}
