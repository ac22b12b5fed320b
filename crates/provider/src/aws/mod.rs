//! AWS: volumes of EBS, which EC2 attaches to the instance that this machine is.
//!
//! Not yet run on the real cloud, but against a fake of it (`fakes`) that answers AWS's own client, and whose record of requests is
//! checked by the model of that client (`tests/aws`).

mod account;
mod config;
mod creations;
mod credentials;
mod ec2;
mod errors;
mod instance;
mod login;
mod names;
mod sign;
mod volume;

use std::fmt;
use std::sync::Arc;

use roxmltree::Node;
use surgetank_model::Bytes;
use surgetank_model::units::MIB;

pub use config::AwsConfig;

use crate::account::takes_over;
use crate::clock::{Clock, SystemClock};
use crate::cloud::Hidden;
use crate::cloud::http::{Client, sentence};
use crate::cloud::known::Known;
use crate::cloud::looks::Looks;
use crate::cloud::rates::Turns;
use crate::{
    Change, CreateVolume, Home, Lag, Provider, ProviderConfig, ProviderError, Transition, Verb, VolumeDescription,
    VolumeId, VolumeState, decide_growth, tag,
};
use creations::Creations;
use ec2::{Ec2, Failure, Query, child, items};
use login::{Login, Place};
use names::Names;
use volume::Volume;

/// How many volumes a page of a list has.
const PAGE: u32 = 500;
/// More pages of a list than this come from no account that surgetank can serve.
const PAGES_MAX: usize = 1000;
/// How many device names one attach tries: others are in use if something else attaches volumes as well.
const NAMES_MAX: usize = 8;

/// Whether an id is one of EC2's volumes: what is none is no volume's, and EC2 is not asked about it.
fn is_id(id: &str) -> bool {
    id.strip_prefix("vol-").is_some_and(is_number)
}

fn is_instance(id: &str) -> bool {
    id.strip_prefix("i-").is_some_and(is_number)
}

fn is_number(digits: &str) -> bool {
    matches!(digits.len(), 8 | 17) && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A region is part of the host to which signed requests go.
fn is_region(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-')
}

/// Volumes of an account of AWS, in the zone of this machine.
pub struct AwsProvider {
    config: AwsConfig,
    ec2: Ec2,
    login: Login,
    clock: Arc<dyn Clock>,
    turns: Turns,
    looks: Looks,
    /// How volumes were described a moment ago, for the change that follows.
    seen: Known<(), Volume>,
    names: Names,
    creations: Creations,
}

impl fmt::Debug for AwsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsProvider").field("config", &self.config).field("login", &self.login).finish_non_exhaustive()
    }
}

impl AwsProvider {
    /// Prepares the client, and asks nobody.
    ///
    /// # Errors
    /// `Invalid`: the configuration, or the credentials.
    pub fn open(config: AwsConfig) -> Result<Self, ProviderError> {
        Self::open_at(config, Arc::new(SystemClock))
    }

    /// The same by another clock, for tests.
    ///
    /// # Errors
    /// As [`AwsProvider::open`].
    pub fn open_at(config: AwsConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        config.check().map_err(ProviderError::Invalid)?;
        let client = Client::new(config.timeout.0, config.ca_file.as_deref()).map_err(ProviderError::Invalid)?;
        let source = config.source();
        // A command is left alone until it is needed: it may ask its user something.
        if !matches!(source, credentials::Source::Command(_)) {
            source.read().map_err(ProviderError::Invalid)?;
        }
        let ec2 = Ec2::new(client, Arc::clone(&clock));
        let login = Login::new(ec2.clone(), Arc::clone(&clock), &config)?;
        let turns = Turns::new("EC2", "[provider.aws]", config.reads_per_s, config.writes_per_s);
        let (looks, seen) = (Looks::default(), Known::default());
        let (names, creations) = (Names::default(), Creations::default());
        Ok(Self { config, ec2, login, clock, turns, looks, seen, names, creations })
    }

    /// Where volumes are.
    fn place(&self) -> Result<Place, ProviderError> {
        Ok(self.login.session(None)?.place.clone())
    }

    /// Asks with the present credentials, and once more with new ones if they are refused.
    fn ask<T>(&self, query: &Query, read: impl Fn(Node<'_, '_>) -> Result<T, ProviderError>) -> Result<T, Failure> {
        let session = self.login.session(None)?;
        let answer = self.ec2.ask(&session.place.endpoint, &session.credentials, query, &read);
        match answer {
            Err(Failure::Refused(refusal)) if refusal.is_of_credentials() => {
                let session = self.login.session(Some(&session))?;
                self.ec2.ask(&session.place.endpoint, &session.credentials, query, &read)
            }
            answer => answer,
        }
    }

    /// Asks for a change whose answer says nothing more.
    fn change(&self, query: &Query) -> Result<(), Failure> {
        self.ask(query, |_| Ok(()))
    }

    /// `None`: EC2 says that there is no such volume. Only one is asked for in a call: one that is gone would hide the others.
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>, ProviderError> {
        if !is_id(&id.0) {
            return Ok(None);
        }
        let (query, changes) = (Query::new("DescribeVolumes").with("VolumeId.1", &id.0), self.seen.changes());
        match self.ask(&query, volume::read_all) {
            Ok((volumes, _)) => match <[Volume; 1]>::try_from(volumes) {
                Ok([volume]) if volume.id == id.0 && volume.is_gone() => {
                    self.seen.forget(&id.0);
                    Ok(None)
                }
                Ok([volume]) if volume.id == id.0 => {
                    self.seen.told(&id.0, volume.clone(), self.clock.now_ms(), changes);
                    Ok(Some(volume))
                }
                _ => Err(ProviderError::Transient(format!(
                    "EC2 describes other volumes than {}: check what answers for it",
                    id.0
                ))),
            },
            Err(failure) => match failure.of_volume(id, VolumeState::Creating) {
                ProviderError::NotFound(_) => {
                    self.seen.forget(&id.0);
                    Ok(None)
                }
                error => Err(error),
            },
        }
    }

    /// Something else than what was told may hold.
    fn forget(&self, id: &VolumeId) {
        self.looks.forget(id);
        self.seen.forget(&id.0);
    }

    /// Why a volume is not described: with its token EC2 makes no second one, and says whether the first has been taken back. That is
    /// told once, so that whoever deletes the volume then sees it gone.
    fn why_not_there(&self, id: &VolumeId) -> ProviderError {
        let unknown = ProviderError::NotFound(id.clone());
        let Some(query) = self.creations.to_repeat(id, self.clock.now_ms()) else { return unknown };
        if self.turns.take(Verb::Create).is_err() {
            return unknown;
        }
        match self.ask(&query, Volume::read) {
            Err(Failure::Refused(refusal)) if refusal.is_of_used_token() => {
                self.creations.ends(id);
                errors::error(&refusal)
            }
            _ => unknown,
        }
    }

    /// All pages of a list.
    fn all(&self, query: &Query) -> Result<Vec<Volume>, ProviderError> {
        let query = query.clone().with("MaxResults", PAGE);
        let (mut volumes, mut next) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let query = match &next {
                Some(token) => query.clone().with("NextToken", token),
                None => query.clone(),
            };
            let (page, token) = self.ask(&query, volume::read_all).map_err(Failure::general)?;
            volumes.extend(page);
            if token.is_none() {
                // One that was made meanwhile moves the pages.
                volumes.retain(|volume: &Volume| !volume.is_gone());
                volumes.sort_by(|a, b| a.id.cmp(&b.id));
                volumes.dedup_by(|a, b| a.id == b.id);
                return Ok(volumes);
            }
            next = token;
        }
        Err(ProviderError::Transient(format!("EC2's list of volumes does not end after {PAGES_MAX} pages")))
    }

    /// The volumes that have this tag with this value.
    fn tagged(&self, key: &str, value: &str) -> Result<Vec<Volume>, ProviderError> {
        // In a filter `*`, `?` and `\` mean something else. Whatever is listed is compared again.
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte));
        let query = Query::new("DescribeVolumes");
        let query = match (is_plain(key), is_plain(value)) {
            (true, true) => query.with("Filter.1.Name", format!("tag:{key}")).with("Filter.1.Value.1", value),
            (true, false) => query.with("Filter.1.Name", "tag-key").with("Filter.1.Value.1", key),
            (false, _) => query,
        };
        let mut volumes = self.all(&query)?;
        volumes.retain(|volume| volume.tags.get(key).is_some_and(|there| there == value));
        Ok(volumes)
    }

    /// The volume that a token has made, as far as it is listed.
    fn made(&self, request: &CreateVolume) -> Result<Option<Volume>, ProviderError> {
        let volumes = self.tagged(tag::TOKEN, &request.token)?;
        let made = volume::made_by(&request.token, &request.tags, volumes);
        made.map(|volume| volume.check(request).map(|()| volume)).transpose()
    }

    /// The call that asks for a volume.
    fn wanted(&self, request: &CreateVolume, zone: &str, host: &str) -> Result<Query, ProviderError> {
        let bought = self.config.bought(&request.volume_type)?;
        let mut query = volume::wanted(request, zone, host)?;
        if let Some(iops) = bought.iops {
            query = query.with("Iops", iops.get());
        }
        if let Some(bandwidth) = bought.bandwidth {
            query = query.with("Throughput", bandwidth.get() / MIB);
        }
        Ok(if self.config.encrypted { query.with("Encrypted", true) } else { query })
    }

    /// Attaches it under the next device name that nothing else has.
    fn attach(&self, id: &VolumeId, place: &Place) -> Result<(), Failure> {
        let mut refused = None;
        for _ in 0..NAMES_MAX {
            let name = self.names.next();
            let query = Query::new("AttachVolume")
                .with("VolumeId", &id.0)
                .with("InstanceId", &place.instance)
                .with("Device", &name);
            match self.change(&query) {
                Err(Failure::Refused(refusal)) if refusal.is_of_device_name() => {
                    self.names.avoid(&name);
                    refused = Some(refusal.said);
                }
                answer => return answer,
            }
        }
        Err(Failure::Other(ProviderError::Transient(format!(
            "no device name is free for the volume {}: EC2 says: {}",
            id.0,
            refused.unwrap_or_default()
        ))))
    }

    /// Asks for a change of a volume that was found so.
    fn carry_out(&self, id: &VolumeId, volume: &Volume, transition: Transition, place: &Place) -> Result<(), Failure> {
        match transition {
            // DeleteOnTermination stays false, as it is of volumes that were attached by a call: the newest data may be on it.
            Transition::Attach => self.attach(id, place),
            Transition::Detach => {
                if let Some(name) = volume.attaching_as(&place.instance) {
                    // Whoever asks has waited in vain: an attachment under the same name may hang as well.
                    self.names.avoid(name);
                }
                // Never by force, which leaves the guest's kernel with a disk that it writes to.
                self.change(&Query::new("DetachVolume").with("VolumeId", &id.0).with("InstanceId", &place.instance))
            }
            Transition::Delete => self.change(&Query::new("DeleteVolume").with("VolumeId", &id.0)),
        }
    }

    /// Asks for a change of a volume as it was found; `again`: what was told a moment ago has not served.
    fn change_found(&self, id: &VolumeId, transition: Transition, again: bool) -> Result<Change, ProviderError> {
        let (found, is_recent) = self.seen.recent_or(&id.0, self.clock.now_ms(), |_| !again, || self.find(id))?;
        let Some(volume) = found else { return transition.decide(id, None) };
        let (state, place) = (volume.state(), self.place()?);
        let decided = match volume.elsewhere(&place.instance) {
            Some(instance) if transition != Transition::Delete => {
                let reason = format!("the instance {} has it: detach it there", sentence(instance));
                Err(ProviderError::Conflict { id: id.clone(), state, reason })
            }
            _ => transition.decide(id, Some(state)),
        };
        match decided {
            Ok(Change::Changed) => {}
            // Nothing is left undone because of what was so a moment ago.
            _ if is_recent => return self.change_found(id, transition, true),
            decided => return decided,
        }
        self.forget(id);
        if transition == Transition::Delete {
            self.creations.ends(id);
        }
        let carried_out = self.carry_out(id, &volume, transition, &place);
        // What was read meanwhile may be from before.
        self.seen.forget(&id.0);
        match carried_out {
            Ok(()) => {
                let under_way = VolumeDescription {
                    state: transition.under_way(),
                    device: None,
                    disk: None,
                    ..volume.describe(&place.instance)
                };
                self.looks.keep(&under_way, self.clock.now_ms());
                Ok(Change::Changed)
            }
            Err(failure) => match failure.of_volume(id, state) {
                ProviderError::NotFound(_) if transition == Transition::Delete => Ok(Change::Identity),
                // EC2 refuses what does not fit the volume as it is.
                ProviderError::NotFound(_) | ProviderError::Conflict { .. } if is_recent => {
                    self.change_found(id, transition, true)
                }
                ProviderError::Conflict { reason, .. } => self.after_conflict(id, transition, &place, reason),
                error => Err(error),
            },
        }
    }

    /// What a change is that a volume's state did not allow, although it was found in one that does: somebody may have carried it out
    /// since, such as a call of ours whose answer was lost.
    fn after_conflict(
        &self,
        id: &VolumeId,
        transition: Transition,
        place: &Place,
        reason: String,
    ) -> Result<Change, ProviderError> {
        let Some(volume) = self.find(id)? else { return transition.decide(id, None) };
        let state = volume.state();
        match transition.decide(id, Some(state)) {
            Ok(Change::Identity) if volume.elsewhere(&place.instance).is_none() => Ok(Change::Identity),
            _ => Err(ProviderError::Conflict { id: id.clone(), state, reason }),
        }
    }

    /// The size to which a volume is growing, if it is.
    fn growing_to(&self, id: &VolumeId) -> Result<Option<Bytes>, ProviderError> {
        let query = Query::new("DescribeVolumesModifications").with("VolumeId.1", &id.0);
        let gib = self.ask(&query, |root| {
            let mut all = items(root, "volumeModificationSet");
            let found = all.find(|item| {
                child(*item, "volumeId") == Some(&*id.0)
                    && matches!(child(*item, "modificationState"), Some("modifying" | "optimizing"))
            });
            Ok(found.and_then(|item| child(item, "targetSize")?.parse().ok()))
        });
        Ok(gib.map_err(Failure::general)?.map(Bytes::from_gib))
    }
}

impl Provider for AwsProvider {
    fn home(&self) -> Home {
        Home::Disks
    }

    /// EC2 makes one volume of a token, and tells all callers the same.
    fn create_is_exclusive(&self) -> bool {
        false
    }

    /// EC2's answers are eventually consistent.
    fn lag(&self) -> Lag {
        Lag::CLOUD
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        // What EC2 never has is refused without asking.
        self.wanted(request, "", "")?;
        self.turns.take(Verb::Create)?;
        let place = self.place()?;
        let query = self.wanted(request, &place.zone, &place.instance)?;
        if let Some(volume) = self.made(request)? {
            return Ok((volume.describe(&place.instance), Change::Identity));
        }
        let answer = match self.ask(&query, Volume::read) {
            // At the account's limit EC2 refuses a token of which the volume is there.
            Err(Failure::Refused(refusal)) if refusal.is_of_quota() => match self.made(request)? {
                Some(volume) => return Ok((volume.describe(&place.instance), Change::Identity)),
                None => Err(Failure::Refused(refusal)),
            },
            answer => answer,
        };
        let mut volume = answer.map_err(Failure::general)?;
        volume.check(request)?;
        if volume.tags.is_empty() {
            volume.tags.clone_from(&request.tags);
        }
        let (described, now_ms) = (volume.describe(&place.instance), self.clock.now_ms());
        self.looks.keep(&described, now_ms);
        self.creations.begins(&described.id, &query, now_ms);
        Ok((described, Change::Changed))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.turns.take(transition.into())?;
        self.change_found(id, transition, false)
    }

    /// A few times a day, and each after the one before.
    fn grows(&self) -> bool {
        self.config.grow_in_place
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        if !self.grows() {
            return Err(ProviderError::Invalid(
                "volumes do not grow in place unless grow_in_place in [provider.aws] is true".to_owned(),
            ));
        }
        self.turns.take(Verb::Grow)?;
        let volume = self.find(id)?;
        let present = volume.as_ref().map(|volume| (volume.state(), volume.size()));
        if decide_growth(id, present, size)? == Change::Identity {
            return Ok(Change::Identity);
        }
        let query = Query::new("ModifyVolume").with("VolumeId", &id.0).with("Size", volume::gib(size)?);
        let state = present.map_or(VolumeState::Creating, |(state, _)| state);
        match self.change(&query) {
            Ok(()) => Ok(Change::Changed),
            Err(Failure::Refused(refusal)) if refusal.is("IncorrectModificationState") => {
                // It may be growing as it was asked to before.
                match self.growing_to(id)? {
                    Some(target) if target >= size => Ok(Change::Identity),
                    _ => Err(errors::of_volume(&refusal, id, state)),
                }
            }
            Err(failure) => Err(failure.of_volume(id, state)),
        }
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        if let Some(volume) = self.looks.recent(id, self.clock.now_ms()) {
            return Ok(volume);
        }
        self.turns.take(Verb::Describe)?;
        let Some(volume) = self.find(id)? else { return Err(self.why_not_there(id)) };
        let described = volume.describe(&self.place()?.instance);
        self.creations.told(&described);
        self.looks.keep(&described, self.clock.now_ms());
        Ok(described)
    }

    fn disk_changed(&self) {
        self.looks.disk_changed(self.clock.now_ms());
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.turns.take(Verb::List)?;
        let volumes = self.tagged(key, value)?;
        let here = self.place()?.instance;
        Ok(volumes.iter().map(|volume| volume.describe(&here)).collect())
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.turns.take(Verb::SetTag)?;
        let place = self.place()?;
        let host = takes_over(key, value).then_some(&*place.instance);
        let has = |volume: &Volume| {
            let is = |key: &str| volume.tags.get(key).map(String::as_str);
            is(key) == value && host.is_none_or(|host| is(tag::HOST) == Some(host))
        };
        // Nothing is left undone because of what was so a moment ago.
        let (found, _) = self.seen.recent_or(&id.0, self.clock.now_ms(), |volume| !has(volume), || self.find(id))?;
        let volume = found.ok_or_else(|| ProviderError::NotFound(id.clone()))?;
        let is_so = has(&volume);
        // A tag that a look does not show may be there all the same, since looks lag: one that names data must not stay.
        if is_so && value.is_some() {
            return Ok(Change::Identity);
        }
        self.looks.forget(id);
        let set = |value: &str, host: Option<&str>| {
            let query = Query::new("CreateTags").with("ResourceId.1", &id.0);
            let query = query.with("Tag.1.Key", key).with("Tag.1.Value", value);
            let marked = |query: Query, host| query.with("Tag.2.Key", tag::HOST).with("Tag.2.Value", host);
            self.change(&host.into_iter().fold(query, marked))
        };
        let changed = match value {
            // Roles that were made before 2026-11-29 may set the owner and not the machine.
            Some(value) => match set(value, host) {
                Err(Failure::Refused(refusal)) if host.is_some() && refusal.is("UnauthorizedOperation") => {
                    set(value, None)
                }
                changed => changed,
            },
            // Whatever its value.
            None => self.change(&Query::new("DeleteTags").with("ResourceId.1", &id.0).with("Tag.1.Key", key)),
        };
        self.seen.alters(&id.0, |entry| match (&mut entry.told, &changed) {
            (Some((_, told)), Ok(())) => {
                told.tags.remove(key);
                told.tags.extend(value.map(|value| (key.to_owned(), value.to_owned())));
            }
            _ => entry.told = None,
        });
        changed.map_err(|failure| failure.of_volume(id, volume.state()))?;
        Ok(if is_so { Change::Identity } else { Change::Changed })
    }
}
