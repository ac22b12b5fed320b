//! A provider of volumes that lies as clouds do: changes take time, answers come late, twice or wrong, what was refused
//! happens all the same, and listings lag behind.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume::{
    Change, CreateVolume, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState, decide_growth, tag,
};
use surgetank_model::{Bytes, Instant};
use surgetank_rental::{Answer, Call};

use crate::disk::{Disk, Latency};

/// Longest time that a change takes once it was asked for.
const CHANGE_MAX: Duration = Duration::from_millis(5);
/// How long a new volume may be missing from listings.
const LISTING_LAG: Duration = Duration::from_millis(400);

/// A rented volume.
#[derive(Debug)]
pub(super) struct Volume {
    /// What is on it, unless it is open or in use.
    pub(super) disk: Option<Disk>,
    size: Bytes,
    state: VolumeState,
    tags: Tags,
    /// How large it becomes, and when.
    grows: Option<(Instant, Bytes)>,
    /// What it becomes, and when.
    becomes: Option<(Instant, Option<VolumeState>)>,
    /// It is listed from then on.
    listed_at: Instant,
    /// Its disk is on the machine from then on.
    appears_at: Instant,
}

/// All volumes, whoever rented them.
#[derive(Debug, Default)]
pub(super) struct Cloud {
    volumes: BTreeMap<VolumeId, Volume>,
    made: u64,
}

/// A call that would lose data.
pub(super) type Carried = Result<Answer, String>;

impl Cloud {
    /// Volumes that are billed.
    pub(super) fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    pub(super) fn summary(&self) -> String {
        let volumes = self.volumes.iter().map(|(id, volume)| {
            format!("{}: {:?}, {}", id.0, volume.state, if volume.disk.is_some() { "closed" } else { "open" })
        });
        volumes.collect::<Vec<_>>().join("; ")
    }

    /// What is on the volumes that nobody uses.
    pub(super) fn disks(&mut self) -> impl Iterator<Item = &mut Disk> {
        self.volumes.values_mut().filter_map(|volume| volume.disk.as_mut())
    }

    pub(super) fn volume(&mut self, id: &VolumeId) -> Option<&mut Volume> {
        self.volumes.get_mut(id)
    }

    /// The attachment that the tag of a volume names.
    pub(super) fn dirty_epoch(&self, id: &VolumeId) -> Option<&String> {
        self.volumes.get(id)?.tags.get(tag::DIRTY_EPOCH)
    }

    /// How large a volume is, and may still become.
    pub(super) fn size_at_most(&self, id: &VolumeId) -> Option<Bytes> {
        self.volumes.get(id).map(|volume| volume.grows.map_or(volume.size, |(_, size)| size.max(volume.size)))
    }

    /// Whether the machine sees the disk of an attached volume.
    pub(super) fn has_appeared(&mut self, now: Instant, id: &VolumeId) -> bool {
        self.settle(now);
        self.volumes.get(id).is_some_and(|volume| volume.state == VolumeState::Attached && volume.appears_at <= now)
    }

    /// Changes whose time has come.
    fn settle(&mut self, now: Instant) {
        for volume in self.volumes.values_mut() {
            if let Some((_, size)) = volume.grows.take_if(|(at, _)| *at <= now) {
                volume.size = volume.size.max(size);
            }
            if let Some(disk) = volume.disk.as_mut().filter(|disk| disk.size() < volume.size.get()) {
                disk.grow(volume.size.get());
            }
        }
        self.volumes.retain(|_, volume| match volume.becomes {
            Some((at, becomes)) if at <= now => {
                volume.becomes = None;
                becomes.inspect(|state| volume.state = *state).is_some()
            }
            _ => true,
        });
    }

    fn description(id: &VolumeId, volume: &Volume) -> VolumeDescription {
        VolumeDescription {
            id: id.clone(),
            state: volume.state,
            volume_type: "fast".to_owned(),
            size: volume.size,
            tags: volume.tags.clone(),
            device: Some(PathBuf::from(&id.0)),
            serial: None,
        }
    }

    pub(super) fn describe(&mut self, now: Instant, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.settle(now);
        let found = self.volumes.get(id).map(|volume| Self::description(id, volume));
        found.ok_or_else(|| ProviderError::NotFound(id.clone()))
    }

    /// `lags`: new volumes may be missing.
    pub(super) fn list(&mut self, now: Instant, key: &str, value: &str, lags: bool) -> Vec<VolumeDescription> {
        self.settle(now);
        let listed = self.volumes.iter().filter(|(_, volume)| volume.tags.get(key).is_some_and(|tag| tag == value));
        listed
            .filter(|(_, volume)| !lags || volume.listed_at <= now)
            .map(|(id, volume)| Self::description(id, volume))
            .collect()
    }

    pub(super) fn set_tag(&mut self, now: Instant, id: &VolumeId, key: &str, value: Option<&str>) -> Result<(), ()> {
        self.settle(now);
        let volume = self.volumes.get_mut(id).ok_or(())?;
        match value {
            Some(value) => _ = volume.tags.insert(key.to_owned(), value.to_owned()),
            None => _ = volume.tags.remove(key),
        }
        Ok(())
    }

    /// Carries a call out. `faulty`: its volumes are slow to be listed and to appear.
    pub(super) fn carry_out(&mut self, now: Instant, call: &Call, random: &mut Random, faulty: bool) -> Carried {
        self.settle(now);
        Ok(match call {
            Call::Create(request) => Answer::Described(Ok(self.create(now, request, random, faulty))),
            Call::Describe(id) => Answer::Described(self.describe(now, id)),
            Call::List { key, value } => Answer::Listed(Ok(self.list(now, key, value, faulty))),
            Call::ChangeState(id, transition) => {
                let changed = transition.decide(id, self.volumes.get(id).map(|volume| volume.state));
                if let (Ok(Change::Changed), Some(volume)) = (&changed, self.volumes.get_mut(id)) {
                    volume.begin(now, *transition, random, faulty)?;
                }
                Answer::Changed(changed.map(drop))
            }
            Call::Grow(id, size) => {
                let volume = self.volumes.get_mut(id);
                let changed = decide_growth(id, volume.as_ref().map(|volume| (volume.state, volume.size)), *size);
                if let (Ok(Change::Changed), Some(volume)) = (&changed, volume) {
                    let after = Duration::from_nanos(random.below(CHANGE_MAX.as_nanos() as u64));
                    let size = volume.grows.map_or(*size, |(_, before)| before.max(*size));
                    volume.grows = Some((now + after, size));
                }
                Answer::Changed(changed.map(drop))
            }
        })
    }

    fn create(&mut self, now: Instant, request: &CreateVolume, random: &mut Random, faulty: bool) -> VolumeDescription {
        let same = self.volumes.iter().find(|(_, volume)| volume.tags.get(tag::TOKEN) == Some(&request.token));
        if let Some((id, volume)) = same {
            return Self::description(id, volume);
        }
        self.made += 1;
        let id = VolumeId(format!("vol-{}", self.made));
        let ready = now + Duration::from_nanos(random.below(CHANGE_MAX.as_nanos() as u64));
        let lag =
            if faulty { Duration::from_nanos(random.below(LISTING_LAG.as_nanos() as u64)) } else { Duration::ZERO };
        let volume = Volume {
            disk: Some(Disk::new(request.size.get(), Latency::default(), random.next_u64())),
            size: request.size,
            state: VolumeState::Creating,
            tags: request.tags.clone(),
            grows: None,
            becomes: Some((ready, Some(VolumeState::Available))),
            listed_at: now + lag,
            appears_at: now,
        };
        let description = Self::description(&id, &volume);
        self.volumes.insert(id, volume);
        description
    }
}

impl Volume {
    fn begin(&mut self, now: Instant, transition: Transition, random: &mut Random, faulty: bool) -> Result<(), String> {
        if transition == Transition::Detach && self.disk.is_none() {
            return Err("a volume is detached that is open".to_owned());
        }
        let mut later = || now + Duration::from_nanos(random.below(CHANGE_MAX.as_nanos() as u64));
        let at = later();
        self.state = transition.under_way();
        let becomes = match transition {
            Transition::Attach => {
                self.appears_at = if faulty { at + later().since(now) * 4 } else { at };
                Some(VolumeState::Attached)
            }
            Transition::Detach => Some(VolumeState::Available),
            Transition::Delete => None,
        };
        self.becomes = Some((at, becomes));
        Ok(())
    }
}
