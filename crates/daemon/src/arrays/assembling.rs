//! An array whose record is lost, or that was made on another machine: its volumes are found by their tags, and what is on them says
//! what they are. Nothing is written to them, and nothing is put on record, unless they make an array.

use std::time::{Duration, Instant};

use surgetank_array::ArrayId;
use surgetank_device::volume::array::read_head;
use surgetank_provider::{ProviderError, VolumeDescription, VolumeId, VolumeState, tag};
use surgetank_rental::array::{ArrayRecord, Facts, Stage, device_tag};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::{RentalRecord, RentalStage, Slot};

use super::carrying::why_not;
use super::manager::{Manager, life};
use crate::opening::{self, Place};

/// How long a volume may take to be attached.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A volume that may be a member: where it is put, what it is called, its size, its first bytes.
type Head = (Slot, String, u64, Option<Vec<u8>>);

impl Manager {
    /// Finds the array, and puts it on record. Answers what people should know.
    pub(super) fn assemble(&mut self, id: Option<&str>) -> Result<Vec<String>, String> {
        let name = self.name.clone();
        if self.life.record().is_some() {
            return Err(format!(
                "the array {name} is on record: `surgetank array status {name}` shows it, and the device over it assembles it when it starts"
            ));
        }
        let listed = self.provider.list(tag::DEVICE, &device_tag(&name));
        let listed = listed.map_err(|error| format!("the provider does not list its volumes: {error}"))?;
        let is_member = |volume: &VolumeDescription| {
            volume.tags.contains_key(tag::DIRTY_EPOCH) && volume.state != VolumeState::Deleting
        };
        let (members, others): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_member);
        let array = chosen(&name, id, &members)?;
        let members: Vec<VolumeDescription> =
            members.into_iter().filter(|volume| volume.tags.get(tag::ARRAY) == Some(&array)).collect();
        let wanted = parse_epoch(&array)
            .ok_or_else(|| format!("the tag of a volume names the array {array:?}, which is no name"))?;
        if members.len() > usize::from(u8::MAX) - 1 {
            return Err(format!(
                "{} volumes are tagged as members of the array {name}: delete those that are none",
                members.len()
            ));
        }
        let mut heads: Vec<Head> = Vec::new();
        for (place, volume) in (1..).zip(&members) {
            heads.push(self.head(Slot(place), volume)?);
        }
        let plan = self.assembled(Some(ArrayId(wanted.0)), &heads)?;
        let place_of = |number: u32| heads[number as usize].0;
        let active: Vec<Slot> = plan.active.iter().map(|member| place_of(member.target.0)).collect();
        let counts: Vec<Slot> = plan
            .active
            .iter()
            .chain(&plan.joining)
            .chain(&plan.superseded)
            .map(|member| place_of(member.target.0))
            .collect();
        for volume in &members {
            self.take_over(&volume.id)?;
        }
        let volumes =
            (1..).zip(&members).map(|(place, volume)| record(Slot(place), volume, counts.contains(&Slot(place))));
        let facts = Facts { array, stage: Stage::Made, members: active, ..Facts::default() };
        let record = ArrayRecord { facts, volumes: volumes.collect() };
        self.store.write(Some(&record)).map_err(|error| {
            format!("the array {name} is whole, and its record cannot be written ({error}): make room in the state directory")
        })?;
        self.life = life(&name, &self.config, &self.context, self.provider.lag(), Some(record));
        let stale = heads.iter().filter(|head| !counts.contains(&head.0));
        let stale = stale.map(|head| format!("{} was replaced, or was never whole: it is deleted", head.1));
        let others = others.iter().map(|volume| {
            format!("the volume {} was rented for the array and is no member: `surgetank gc` deletes it if it is this daemon's", volume.id.0)
        });
        Ok(stale.chain(others).collect())
    }

    /// Attaches a volume and reads its first bytes.
    fn head(&self, place: Slot, volume: &VolumeDescription) -> Result<Head, String> {
        let description = self.attached(&volume.id)?;
        let name = format!("volume {}", volume.id.0);
        let found = Place::of(&description, &self.provider.home())?;
        let (opener, sizes) = (self.opener(), opening::sizes(&description, description.size));
        let begun = Instant::now();
        let mut opened = loop {
            match opener.caching(&found, &sizes) {
                Ok(Some(opened)) => break opened,
                Ok(None) if begun.elapsed() < ATTACH_TIMEOUT => std::thread::sleep(LOOK_AGAIN),
                Ok(None) => {
                    return Err(format!(
                        "{name} is attached, but no disk with its serial has appeared on this machine"
                    ));
                }
                Err(obstacle) => return Err(why_not(&Err(obstacle))),
            }
        };
        let clock = self.context.clock;
        let head = read_head(&mut *opened.volume, || clock.now());
        Ok((place, name, opened.volume.size(), head))
    }

    fn attached(&self, id: &VolumeId) -> Result<VolumeDescription, String> {
        let failed = |error: ProviderError| {
            format!("the volume {} cannot be attached here ({error}): detach it from the machine that has it", id.0)
        };
        let begun = Instant::now();
        loop {
            let description = self.provider.describe(id).map_err(failed)?;
            match description.state {
                VolumeState::Attached => return Ok(description),
                VolumeState::Available => drop(self.provider.attach(id).map_err(failed)?),
                VolumeState::Failed => return Err(format!("the provider says that the volume {} has failed", id.0)),
                _ => {}
            }
            if begun.elapsed() > ATTACH_TIMEOUT {
                return Err(format!(
                    "the volume {} is not attached after {} s: try again",
                    id.0,
                    ATTACH_TIMEOUT.as_secs()
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// From now on it is this daemon's.
    fn take_over(&self, id: &VolumeId) -> Result<(), String> {
        let set = self.provider.set_tag(id, tag::OWNER, Some(&self.context.owner_id));
        set.map(drop).map_err(|error| format!("the volume {} cannot be tagged as this daemon's: {error}", id.0))
    }
}

/// Which array of this name: the only one, or the one that is named.
fn chosen(name: &str, wanted: Option<&str>, members: &[VolumeDescription]) -> Result<String, String> {
    let mut arrays: Vec<&String> = members.iter().filter_map(|volume| volume.tags.get(tag::ARRAY)).collect();
    arrays.sort_unstable();
    arrays.dedup();
    match (wanted, &*arrays) {
        (Some(wanted), arrays) if arrays.iter().any(|array| *array == wanted) => Ok(wanted.to_owned()),
        (None, [only]) => Ok((*only).clone()),
        (_, []) => Err(format!(
            "the provider has no volume that is tagged as a member of the array {name}: see that the section names the provider and \
             the name with which it was created"
        )),
        (_, arrays) => {
            let arrays: Vec<&str> = arrays.iter().map(|array| array.as_str()).collect();
            Err(format!("several arrays are called {name} there ({}): name one of them with --id", arrays.join(", ")))
        }
    }
}

fn record(place: Slot, volume: &VolumeDescription, counts: bool) -> RentalRecord {
    let token = volume.tags.get(tag::DIRTY_EPOCH).cloned().unwrap_or_default();
    RentalRecord {
        slot: place,
        token: token.clone(),
        volume_type: volume.volume_type.clone(),
        size: volume.size,
        growing_to: None,
        started_unix_ms: 0,
        stage: if counts { RentalStage::Adopted } else { RentalStage::Released },
        volume: Some(volume.id.clone()),
        epoch: Some(token.clone()),
        disposable: !counts,
        discarded: (!counts).then_some(token),
        missing: None,
    }
}
