//! A provider of volumes that lies as clouds do: changes take time, answers come late, twice or wrong, what was refused
//! happens all the same, and what it tells lags behind.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume::{
    Change, CreateVolume, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState, decide_growth, tag,
};
use surgetank_model::{Bytes, Instant};
use surgetank_rental::stripe::{self, Place};
use surgetank_rental::{Answer, Call};

use crate::disk::{Disk, Latency};
use crate::world::lagging::Lagging;

/// Longest time that a change takes once it was asked for.
const CHANGE_MAX: Duration = Duration::from_millis(5);
/// How long a new volume may be missing from listings.
const LISTING_LAG: Duration = Duration::from_millis(400);

/// A rented volume.
#[derive(Debug)]
pub(crate) struct Volume {
    /// What is on it, unless it is open or in use.
    pub(crate) disk: Option<Disk>,
    /// It is a member of a stripe, and what is on that is kept with the first one.
    shares: bool,
    /// Which one that is, as soon as somebody has looked.
    first: Option<VolumeId>,
    token: String,
    size: Bytes,
    state: VolumeState,
    /// The provider says that it has failed, while its machine does not reach it; whatever its state is.
    ails: bool,
    tags: Tags,
    /// How large it becomes, and when.
    grows: Option<(Instant, Bytes)>,
    /// What it becomes, and when.
    becomes: Option<(Instant, Option<VolumeState>)>,
    /// From when to when the provider does not know it.
    gaps: Vec<(Instant, Instant)>,
    /// Deletions find no such volume until then.
    deletable_at: Instant,
    /// It was made besides another one, of the same token and for the same place.
    is_twin: bool,
    /// It is listed from then on.
    listed_at: Instant,
    /// Its disk is on the machine from then on.
    appears_at: Instant,
}

/// All volumes, whoever rented them.
#[derive(Debug)]
pub(crate) struct Cloud {
    volumes: BTreeMap<VolumeId, Volume>,
    made: u64,
    /// Probability that a call is throttled, and that a volume cannot be made, while faults last.
    faults: f64,
    /// Of these faults alone: seeds from before them keep what else is drawn.
    random: Random,
    /// What it tells late.
    pub(crate) lagging: Lagging,
    /// Of deletions that fail after they were accepted, alone.
    failing: Random,
    /// Calls that were throttled.
    pub(crate) throttled: u32,
    /// Volumes that could not be made.
    pub(crate) failed: u32,
    /// Deletions that were accepted and failed.
    pub(crate) undeleted: u32,
}

/// A call that would lose data.
pub(crate) type Carried = Result<Answer, String>;

impl Cloud {
    pub(crate) fn new(seed: u64, faults: f64, lags: f64) -> Self {
        let (random, lagging) = (Random::from_seed(seed ^ 0xc10d_fa11), Lagging::new(seed, lags));
        let failing = Random::from_seed(seed ^ 0xde1e_7ed0);
        let (volumes, made, throttled, failed, undeleted) = (BTreeMap::new(), 0, 0, 0, 0);
        Self { volumes, made, faults, random, lagging, failing, throttled, failed, undeleted }
    }

    /// Whether there are too many calls for another one.
    pub(crate) fn throttles(&mut self) -> bool {
        let throttles = self.faults > 0.0 && self.random.chance(self.faults);
        self.throttled += u32::from(throttles);
        throttles
    }

    /// What a call is answered then.
    pub(crate) fn too_many(&mut self) -> ProviderError {
        let after = [None, Some(0), Some(20), Some(1400)][self.random.below(4) as usize];
        ProviderError::Throttled { after: after.map(Duration::from_millis), text: "slower".to_owned() }
    }

    /// One volume is told as failed from now on, or none any more. False: there are no such faults.
    pub(crate) fn set_ailing(&mut self, id: Option<&VolumeId>) -> bool {
        let members = id.map(stripe::members).unwrap_or_default();
        let ails = self.faults > 0.0 && !members.is_empty();
        self.volumes.iter_mut().for_each(|(id, volume)| volume.ails = ails && members.contains(id));
        ails
    }

    /// Volumes that are billed.
    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<VolumeId> {
        self.volumes.keys().cloned().collect()
    }

    pub(crate) fn summary(&self) -> String {
        let volumes = self.volumes.iter().map(|(id, volume)| {
            let is_closed = volume.disk.is_some() || volume.shares;
            format!("{}: {:?}, {}", id.0, volume.state, if is_closed { "closed" } else { "open" })
        });
        volumes.collect::<Vec<_>>().join("; ")
    }

    /// What is on the volumes that nobody uses.
    pub(crate) fn disks(&mut self) -> impl Iterator<Item = &mut Disk> {
        self.volumes.values_mut().filter_map(|volume| volume.disk.as_mut())
    }

    /// The volume with which is kept what is on this one: itself, or the first of the stripe that it is or belongs to. There is none for
    /// a part of a stripe that nobody has looked at as a whole: then nothing is on it.
    pub(crate) fn volume(&mut self, id: &VolumeId) -> Option<&mut Volume> {
        let members = stripe::members(id);
        let there = members.iter().find(|member| self.volumes.contains_key(member))?;
        let volume = &self.volumes[there];
        let first = if volume.shares { volume.first.clone()? } else { there.clone() };
        for member in &members {
            // Whose it is does not change: a listing may show it with others.
            if let Some(volume) = self.volumes.get_mut(member).filter(|volume| volume.shares) {
                volume.first.get_or_insert_with(|| first.clone());
            }
        }
        self.volumes.get_mut(&first)
    }

    /// The attachments that the tags of what is there of a volume name.
    pub(crate) fn dirty_epoch(&self, id: &VolumeId) -> Option<String> {
        self.described(id, |_| true).ok()?.tags.remove(tag::DIRTY_EPOCH)
    }

    /// Whether all of a volume is tagged with an attachment.
    pub(crate) fn is_tagged(&self, id: &VolumeId, epoch: &str) -> bool {
        let tag = |id| self.volumes.get(id).and_then(|volume| volume.tags.get(tag::DIRTY_EPOCH));
        stripe::members(id).iter().all(|member| tag(member).is_some_and(|tag| tag == epoch))
    }

    /// How large a volume is, and may still become.
    pub(crate) fn size_at_most(&self, id: &VolumeId) -> Option<Bytes> {
        let sizes = stripe::members(id).into_iter().filter_map(|member| {
            let volume = self.volumes.get(&member)?;
            Some(volume.grows.map_or(volume.size, |(_, size)| size.max(volume.size)).get())
        });
        sizes.reduce(|sum, size| sum + size).map(Bytes::new)
    }

    /// Whether the machine sees the disk of an attached volume.
    pub(crate) fn has_appeared(&mut self, now: Instant, id: &VolumeId) -> bool {
        self.settle(now);
        let has_appeared = |volume: &Volume| volume.state == VolumeState::Attached && volume.appears_at <= now;
        stripe::members(id).iter().all(|member| self.volumes.get(member).is_some_and(has_appeared))
    }

    /// The size of what is on the volume with which that is kept.
    fn whole_size(&self, id: &VolumeId, volume: &Volume) -> Bytes {
        let Some(Place { of, .. }) = Place::of(&volume.tags) else { return volume.size };
        let of_it = self.volumes.iter().filter(|(other, member)| *other == id || member.first.as_ref() == Some(id));
        let smallest = of_it.map(|(_, member)| member.size).min();
        Bytes::new(smallest.unwrap_or(volume.size).get() * u64::from(of))
    }

    /// Changes whose time has come.
    fn settle(&mut self, now: Instant) {
        for volume in self.volumes.values_mut() {
            if let Some((_, size)) = volume.grows.take_if(|(at, _)| *at <= now) {
                volume.size = volume.size.max(size);
            }
        }
        let whole = |(id, volume): (&VolumeId, &Volume)| {
            let size = self.whole_size(id, volume).get();
            volume.disk.as_ref().filter(|disk| disk.size() < size).map(|_| (id.clone(), size))
        };
        for (id, size) in self.volumes.iter().filter_map(whole).collect::<Vec<_>>() {
            if let Some(disk) = self.volumes.get_mut(&id).and_then(|volume| volume.disk.as_mut()) {
                disk.grow(size);
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
            state: if volume.ails { VolumeState::Failed } else { volume.state },
            volume_type: "fast".to_owned(),
            size: volume.size,
            tags: volume.tags.clone(),
            device: Some(PathBuf::from(&id.0)),
            disk: None,
            members: Vec::new(),
        }
    }

    pub(crate) fn describe(&mut self, now: Instant, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.settle(now);
        let is_known = |volume: &Volume| volume.is_known(now);
        let there = stripe::members(id).into_iter().filter_map(|member| self.volumes.get(&member));
        self.lagging.unknown += there.filter(|volume| !is_known(volume)).count() as u32;
        self.described(id, is_known)
    }

    fn described(&self, id: &VolumeId, is_known: impl Fn(&Volume) -> bool) -> Result<VolumeDescription, ProviderError> {
        let member = |id: &VolumeId| {
            let known = self.volumes.get(id).filter(|volume| is_known(volume));
            let found = known.map(|volume| Self::description(id, volume));
            found.ok_or_else(|| ProviderError::NotFound(id.clone()))
        };
        if !stripe::is_stripe(id) {
            return member(id);
        }
        stripe::described(id, stripe::members(id).iter().map(member).collect())
    }

    /// `lags`: new volumes may be missing, and what is gone may be there.
    pub(crate) fn list(&mut self, now: Instant, key: &str, value: &str, lags: bool) -> Vec<VolumeDescription> {
        let so = self.listed(now, key, value, lags);
        stripe::listed(if lags { self.lagging.answer(key, value, so) } else { so })
    }

    /// The volumes with a tag, each for itself. `lags`: without those that may be missing.
    pub(crate) fn listed(&mut self, now: Instant, key: &str, value: &str, lags: bool) -> Vec<VolumeDescription> {
        self.settle(now);
        let listed = self.volumes.iter().filter(|(_, volume)| volume.tags.get(key).is_some_and(|tag| tag == value));
        let listed = listed.filter(|(_, volume)| volume.is_known(now) && (!lags || volume.listed_at <= now));
        listed.map(|(id, volume)| Self::description(id, volume)).collect()
    }

    /// A volume of which the name is forgotten is on its way out, or gone: nobody looks for it any more but sweeps.
    pub(crate) fn check_gone(&self, id: &VolumeId) -> Result<(), String> {
        let volumes = stripe::members(id).into_iter().filter_map(|member| self.volumes.get(&member));
        match volumes.into_iter().find(|volume| !volume.is_going()) {
            Some(volume) => {
                Err(format!("the volume {} is forgotten by its name, which is {:?} and stays", id.0, volume.state))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn set_tag(&mut self, now: Instant, id: &VolumeId, key: &str, value: Option<&str>) -> Result<(), ()> {
        self.settle(now);
        let volume = self.volumes.get_mut(id).ok_or(())?;
        match value {
            Some(value) => _ = volume.tags.insert(key.to_owned(), value.to_owned()),
            None => _ = volume.tags.remove(key),
        }
        Ok(())
    }

    /// Carries a call out. `faulty`: its volumes are slow to be listed and to appear.
    pub(crate) fn carry_out(&mut self, now: Instant, call: &Call, random: &mut Random, faulty: bool) -> Carried {
        self.settle(now);
        Ok(match call {
            Call::Create(request) => Answer::Described(Ok(self.create(now, request, random, faulty))),
            Call::Describe(id) => Answer::Described(self.describe(now, id)),
            Call::List { key, value } => Answer::Listed(Ok(self.list(now, key, value, faulty))),
            Call::ChangeState(id, transition) => {
                let is_known = |volume: &&Volume| *transition != Transition::Delete || volume.deletable_at <= now;
                let known = self.volumes.get(id).filter(is_known);
                let changed = transition.decide(id, known.map(|volume| volume.state));
                if *transition == Transition::Attach
                    && matches!(changed, Err(ProviderError::Conflict { state: VolumeState::Failed, .. }))
                {
                    return Err(format!("the volume {} has failed and is to be attached", id.0));
                }
                let is_open = self.volume(id).is_some_and(|first| first.disk.is_none());
                if changed == Ok(Change::Changed) && *transition == Transition::Detach && is_open {
                    return Err("a volume is detached that is open".to_owned());
                }
                if let (Ok(Change::Changed), Some(volume)) = (&changed, self.volumes.get_mut(id)) {
                    let before = volume.state;
                    volume.begin(now, *transition, random, faulty);
                    let is_deletion = faulty && *transition == Transition::Delete && self.faults > 0.0;
                    if is_deletion && self.failing.chance(self.faults) {
                        volume.deletion_fails(before);
                        self.undeleted += 1;
                    }
                }
                Answer::Changed(changed)
            }
            Call::SetTag { id, key, value } => {
                let set = self.set_tag(now, id, key, Some(value));
                Answer::Changed(set.map(|()| Change::Changed).map_err(|()| ProviderError::NotFound(id.clone())))
            }
            Call::Grow(id, size) => {
                let volume = self.volumes.get_mut(id);
                let changed = decide_growth(id, volume.as_ref().map(|volume| (volume.state, volume.size)), *size);
                if let (Ok(Change::Changed), Some(volume)) = (&changed, volume) {
                    let after = Duration::from_nanos(random.below(CHANGE_MAX.as_nanos() as u64));
                    let size = volume.grows.map_or(*size, |(_, before)| before.max(*size));
                    volume.grows = Some((now + after, size));
                }
                Answer::Changed(changed)
            }
        })
    }

    fn create(&mut self, now: Instant, request: &CreateVolume, random: &mut Random, faulty: bool) -> VolumeDescription {
        // The request for a twin that is not known yet has not arrived.
        let has_arrived = |volume: &Volume| !volume.is_twin || volume.is_known(now);
        let same = self.volumes.iter().find(|(_, volume)| volume.token == request.token && has_arrived(volume));
        if let Some((id, volume)) = same {
            return Self::description(id, volume);
        }
        self.made += 1;
        let id = VolumeId(format!("vol-{}", self.made));
        let ready = now + Duration::from_nanos(random.below(CHANGE_MAX.as_nanos() as u64));
        let lag =
            if faulty { Duration::from_nanos(random.below(LISTING_LAG.as_nanos() as u64)) } else { Duration::ZERO };
        let fails = faulty && self.faults > 0.0 && self.random.chance(self.faults);
        self.failed += u32::from(fails);
        let made = if fails { VolumeState::Failed } else { VolumeState::Available };
        let place = Place::of(&request.tags);
        let shares = place.as_ref().is_some_and(|place| place.index > 0);
        let whole = request.size.get() * place.map_or(1, |place| u64::from(place.of));
        let volume = |seed, becomes, gaps, listed_at, is_twin| Volume {
            disk: (!shares).then(|| Disk::new(whole, Latency::default(), seed)),
            shares,
            first: None,
            token: request.token.clone(),
            size: request.size,
            state: VolumeState::Creating,
            ails: false,
            tags: request.tags.clone(),
            grows: None,
            becomes,
            gaps,
            deletable_at: now,
            is_twin,
            listed_at,
            appears_at: now,
        };
        // A seed is drawn for a disk of its own alone.
        let seed = if shares { 0 } else { random.next_u64() };
        if let Some(at) = faulty.then(|| self.lagging.twin(now)).flatten() {
            let becomes = Some((ready, Some(VolumeState::Available)));
            let twin = volume(self.made, becomes, vec![(now, at)], at, true);
            // Either may be the lesser by its name.
            let name = if self.lagging.is_lesser() { format!("twin-{}", id.0) } else { format!("{}-twin", id.0) };
            self.volumes.insert(VolumeId(name), twin);
        }
        let gaps = if faulty { self.lagging.gaps(now) } else { Vec::new() };
        let mut volume = volume(seed, Some((ready, Some(made))), gaps, now + lag, false);
        volume.deletable_at = if faulty { self.lagging.deletable_at(now) } else { now };
        let description = Self::description(&id, &volume);
        self.volumes.insert(id, volume);
        description
    }
}

impl Volume {
    fn is_known(&self, now: Instant) -> bool {
        self.gaps.iter().all(|(from, to)| now < *from || *to <= now)
    }

    /// Whether it is being deleted, and is going to be gone.
    fn is_going(&self) -> bool {
        self.state == VolumeState::Deleting && matches!(self.becomes, Some((_, None)))
    }

    /// Its deletion, which was accepted, ends with the volume as it was before. It is known from now on: whoever is told meanwhile that
    /// there is no such volume believes it, and leaves it to the sweep.
    fn deletion_fails(&mut self, before: VolumeState) {
        let state = if before == VolumeState::Failed { before } else { VolumeState::Available };
        self.becomes = self.becomes.map(|(at, _)| (at, Some(state)));
        self.gaps.clear();
    }

    fn begin(&mut self, now: Instant, transition: Transition, random: &mut Random, faulty: bool) {
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
    }
}
