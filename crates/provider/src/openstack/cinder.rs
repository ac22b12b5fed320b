//! Volumes as Cinder tells of them, and what its words mean here.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use surgetank_model::Bytes;
use surgetank_model::units::GIB;

use super::is_id;
use crate::account;
use crate::cloud::http::sentence;
use crate::cloud::unix_ms;
use crate::{
    AccountVolume, CreateVolume, DiskIdentity, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, tag,
};

/// The largest number of GiB that the interface takes.
const GIB_MAX: u64 = i32::MAX as u64;
/// The longest name, key or value, in characters.
const TEXT_MAX: usize = 255;
/// What the names of our volumes begin with; the token follows.
const NAME: &str = "surgetank-";

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Volume {
    /// A UUID.
    pub id: String,
    /// One of Cinder's many words.
    pub status: String,
    /// In GiB.
    pub size: u64,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    volume_type: Option<String>,
    /// What we call tags.
    #[serde(default)]
    pub metadata: Tags,
    #[serde(default)]
    attachments: Vec<Attachment>,
}

/// To which server a volume is attached.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Attachment {
    #[serde(default)]
    server_id: Option<String>,
    #[serde(default)]
    device: Option<String>,
}

impl Volume {
    /// Reads one, if it is fit to be told.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn read(body: &Value) -> Result<Self, ProviderError> {
        let odd =
            |why: &str| ProviderError::Transient(format!("Cinder describes a volume {why}: check what answers for it"));
        let volume = Self::deserialize(body)
            .map_err(|error| odd(&format!("in other words ({})", sentence(&error.to_string()))))?;
        let is_fit = |text: &str| text.chars().count() <= TEXT_MAX && !text.contains(char::is_control);
        let tags = volume.metadata.iter().flat_map(|(key, value)| [key, value]);
        let places = volume.attachments.iter().flat_map(|at| [&at.server_id, &at.device]).flatten();
        let is_fit = volume.volume_type.iter().chain(tags).chain(places).all(|text| is_fit(text));
        // Foreign volumes may be called anything; only ours are told to people, and of them no name.
        if !is_id(&volume.id) || (volume.is_ours() && !is_fit) {
            return Err(odd(&format!(
                "\"{}\" with an id that is none, or with texts that are too long or have signs that are none",
                sentence(&volume.id)
            )));
        }
        Ok(volume)
    }

    fn is_ours(&self) -> bool {
        let is_tag = |key: &String| key.starts_with("surgetank:");
        self.name.as_deref().is_some_and(|name| name.starts_with(NAME)) || self.metadata.keys().any(is_tag)
    }

    /// Whether it is attached, or may be.
    #[must_use]
    pub fn has_attachment(&self) -> bool {
        !self.attachments.is_empty()
    }

    /// The server that has it, if it is another one than `here`.
    #[must_use]
    pub fn elsewhere(&self, here: &str) -> Option<&str> {
        let mut servers = self.attachments.iter().map(|at| at.server_id.as_deref().unwrap_or("of no name"));
        let first = servers.next()?;
        (first != here && servers.all(|server| server != here)).then_some(first)
    }

    /// Whether it is becoming larger: to which size, Cinder does not say.
    #[must_use]
    pub fn is_extending(&self) -> bool {
        self.status == "extending"
    }

    /// What frees it from a state in which Nova detaches it no more and Cinder does not delete it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let reset = if self.has_attachment() { "in-use" } else { "available" };
        matches!(&*self.status, "error_extending" | "error_detaching" | "error_attaching" | "error_deleting")
            .then(|| format!("its status is {}: ask the cloud's operator to reset the state to {reset}", self.status))
    }

    /// Where it is in its life. Cinder's `error_*` are also changes that failed of a volume that a server has.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match &*self.status {
            "available" => VolumeState::Available,
            "reserved" | "attaching" => VolumeState::Attaching,
            "in-use" => VolumeState::Attached,
            "detaching" => VolumeState::Detaching,
            "deleting" => VolumeState::Deleting,
            _ if self.has_attachment() => VolumeState::Attached,
            // These alone hold nothing yet: what is `Creating` is deleted without proof that nothing newer is on it.
            "creating" | "downloading" => VolumeState::Creating,
            error if error.starts_with("error") => VolumeState::Failed,
            // `extending`, and whatever an operator does with it: Cinder refuses until that is over.
            _ => VolumeState::Available,
        }
    }

    /// What is said of it on the server `here`, which counts only if a server has it.
    #[must_use]
    pub fn describe(&self, here: &str) -> VolumeDescription {
        let state = self.state();
        let at =
            self.attachments.iter().find(|at| state == VolumeState::Attached && at.server_id.as_deref() == Some(here));
        VolumeDescription {
            id: VolumeId(self.id.clone()),
            state,
            volume_type: self.volume_type.clone().unwrap_or_default(),
            size: Bytes::new(self.size.saturating_mul(GIB)),
            tags: account::shown(self.metadata.clone()),
            // Nova's word for where it is, or the link that udev makes for virtio: for people, as the serial is what counts.
            device: at.map(|at| match at.device.as_deref() {
                Some(device) if !device.is_empty() => PathBuf::from(device),
                _ => PathBuf::from(format!("/dev/disk/by-id/virtio-{}", &self.id[..20])),
            }),
            // All of it; a virtio disk shows the first 20 characters.
            disk: at.map(|_| DiskIdentity::Serial(self.id.clone())),
            members: Vec::new(),
        }
    }

    /// The same for whoever looks at the whole project. What is no id of a server is shown: nobody says that it is gone.
    #[must_use]
    pub fn in_account(&self) -> AccountVolume {
        let created_ms = self.created_at.as_ref().and_then(|text| unix_ms(&format!("{text}Z")));
        let server = |at: &Attachment| at.server_id.clone().unwrap_or_else(|| "a server of no name".to_owned());
        AccountVolume {
            volume: self.describe(""),
            machine: self.metadata.get(tag::HOST).cloned(),
            attached_to: self.attachments.first().map(server),
            created_ms,
        }
    }

    /// Whether it is what was asked for. It may have grown since.
    ///
    /// # Errors
    /// `Invalid`: the token was used for another volume.
    pub fn check(&self, request: &CreateVolume, gib: u64) -> Result<(), ProviderError> {
        if self.volume_type.as_deref() == Some(&*request.volume_type) && self.size >= gib {
            return Ok(());
        }
        Err(ProviderError::Invalid(format!(
            "the token {:?} has made the volume {} of {} GiB and the type {:?}, another one than is asked for now: write types by their names, and draw a fresh token",
            request.token,
            self.id,
            self.size,
            self.volume_type.as_deref().unwrap_or_default()
        )))
    }
}

/// A size as Cinder takes it.
///
/// # Errors
/// `Invalid`: it has none such.
pub fn gib(size: Bytes) -> Result<u64, ProviderError> {
    let gib = size.get() / GIB;
    if gib * GIB == size.get() && (1..=GIB_MAX).contains(&gib) {
        return Ok(gib);
    }
    Err(ProviderError::Invalid(format!("Cinder has no volumes of {size}: ask for a whole number of GiB, at least 1")))
}

/// The name of the volumes that a token makes.
///
/// # Errors
/// `Invalid`: it is no token.
pub fn name(token: &str) -> Result<String, ProviderError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !token.is_empty() && token.len() <= TEXT_MAX - NAME.len() && token.bytes().all(allowed) {
        return Ok(format!("{NAME}{token}"));
    }
    Err(ProviderError::Invalid(format!(
        "the token \"{}\" is no part of a name: use letters, digits, - and _",
        sentence(token)
    )))
}

/// The body that asks for a volume, rented on the server `host`.
#[must_use]
pub fn wanted(request: &CreateVolume, name: &str, gib: u64, zone: Option<&str>, host: &str) -> Value {
    let mut tags = request.tags.clone();
    tags.extend(account::marks(host));
    let mut volume = json!({ "size": gib, "name": name, "volume_type": request.volume_type, "metadata": tags });
    if let Some(zone) = zone {
        volume["availability_zone"] = json!(zone);
    }
    json!({ "volume": volume })
}

/// Which of the volumes of one name stays, and which of the others can be deleted: Cinder makes as many as it is asked for.
/// Whoever looks at the same volumes chooses the same one: one that has or had data, then the oldest. Those that are
/// being made cannot be deleted yet; they are found again by a later call, or by the sweep.
#[must_use]
pub fn elect(mut volumes: Vec<Volume>, name: &str, tags: &Tags) -> Option<(Volume, Vec<VolumeId>)> {
    // Some databases compare without regard to case, and people give names as well: a copy that is to be rescued, for example.
    let has_tags = |volume: &Volume| tags.iter().all(|(key, value)| volume.metadata.get(key) == Some(value));
    volumes.retain(|volume| {
        volume.name.as_deref() == Some(name) && has_tags(volume) && volume.state() != VolumeState::Deleting
    });
    let is_dirty = |volume: &Volume| volume.metadata.contains_key(tag::DIRTY_EPOCH);
    let is_used = |volume: &Volume| {
        is_dirty(volume)
            || matches!(volume.state(), VolumeState::Attaching | VolumeState::Attached | VolumeState::Detaching)
    };
    volumes.sort_by(|a, b| {
        (is_used(b).cmp(&is_used(a))).then_with(|| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)))
    });
    let mut volumes = volumes.into_iter();
    let stays = volumes.next()?;
    let can_go = |volume: &Volume| {
        matches!(volume.state(), VolumeState::Available | VolumeState::Failed)
            && !is_dirty(volume)
            && !volume.is_extending()
    };
    Some((stays, volumes.filter(can_go).map(|volume| VolumeId(volume.id)).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> String {
        format!("{number:08x}-6caa-4402-98ad-bcb7c4169e2d")
    }

    fn volume(number: u8, status: &str, server: Option<&str>) -> Volume {
        let attachments = server.map(|server| json!([{ "server_id": server, "device": "/dev/vdb" }]));
        Volume::read(&json!({
            "id": id(number), "status": status, "size": 1, "name": "surgetank-t", "volume_type": "fast",
            "created_at": "2026-11-28T06:36:16.772287", "attachments": attachments.unwrap_or(json!([])), "metadata": { "k": "v" },
            "encrypted": false, "replication_status": null,
        }))
        .unwrap()
    }

    #[test]
    fn states_by_word_and_attachment() {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};
        for (status, alone, attached) in [
            ("creating", Creating, Attached),
            ("downloading", Creating, Attached),
            ("available", Available, Available),
            ("reserved", Attaching, Attaching),
            ("attaching", Attaching, Attaching),
            ("in-use", Attached, Attached),
            ("detaching", Detaching, Detaching),
            ("deleting", Deleting, Deleting),
            ("extending", Available, Attached),
            ("error", Failed, Attached),
            ("error_deleting", Failed, Attached),
            ("error_extending", Failed, Attached),
            ("retyping", Available, Attached),
            ("maintenance", Available, Attached),
            ("uploading", Available, Attached),
            ("backing-up", Available, Attached),
            ("restoring-backup", Available, Attached),
            ("awaiting-transfer", Available, Attached),
            ("managing", Available, Attached),
        ] {
            assert_eq!(
                (volume(1, status, None).state(), volume(1, status, Some("s")).state()),
                (alone, attached),
                "{status}"
            );
        }
    }

    #[test]
    fn a_volume_is_located_on_the_server_that_has_it() {
        let here = volume(1, "in-use", Some("here")).describe("here");
        assert_eq!((here.disk.clone(), here.is_located()), (Some(DiskIdentity::Serial(id(1).to_string())), true));
        let elsewhere = volume(1, "in-use", Some("there"));
        assert_eq!((elsewhere.elsewhere("here"), elsewhere.describe("here").is_located()), (Some("there"), false));
        assert_eq!(volume(1, "in-use", Some("here")).elsewhere("here"), None);
        assert!(!volume(1, "detaching", Some("here")).describe("here").is_located());
        let mut unnamed = volume(1, "in-use", Some("here"));
        unnamed.attachments[0].device = Some(String::new());
        assert_eq!(unnamed.describe("here").device, Some(PathBuf::from("/dev/disk/by-id/virtio-00000001-6caa-4402-9")));
    }

    #[test]
    fn the_account_is_told_who_has_a_volume_who_rented_it_and_when_it_was_made() {
        let mut of = volume(1, "in-use", Some("there"));
        let told = of.in_account();
        assert_eq!((told.attached_to.as_deref(), told.machine), (Some("there"), None));
        assert_eq!(told.created_ms, Some(1_795_847_776_772));
        let request = CreateVolume {
            token: "t".to_owned(),
            volume_type: "fast".to_owned(),
            size: Bytes::from_gib(1),
            tags: Tags::from([("k".to_owned(), "v".to_owned())]),
        };
        let body = wanted(&request, "surgetank-t", 1, None, &id(2));
        of.metadata = serde_json::from_value(body["volume"]["metadata"].clone()).unwrap();
        assert_eq!(of.in_account().machine, Some(id(2)));
        assert_eq!(of.describe("").tags, request.tags, "no caller has set the others");
        of.metadata.insert(tag::HOST.to_owned(), "../x".to_owned());
        assert_eq!(of.in_account().machine.as_deref(), Some("../x"), "of it nobody says that it is gone");
    }

    #[test]
    fn odd_descriptions_are_refused_in_one_sentence() {
        for body in [
            json!({ "id": "../x", "status": "available", "size": 1 }),
            json!({ "id": id(1), "status": "available", "size": -1 }),
            json!({ "id": id(1), "status": "available" }),
            json!({ "id": id(1), "status": "available", "size": 1, "name": "surgetank-t", "metadata": { "k": "a\nb" } }),
            json!({ "id": id(1), "status": "available", "size": 1, "metadata": { "surgetank:owner": "a\nb" } }),
            json!({ "id": id(1), "status": "available", "size": 1, "name": "surgetank-t", "attachments": [{ "device": "/dev/\u{1b}[2J" }] }),
            json!([]),
        ] {
            let error = Volume::read(&body).unwrap_err().to_string();
            assert!(error.starts_with("Cinder describes a volume") && !error.contains(char::is_control), "{error}");
        }
        assert!(
            Volume::read(&json!({ "id": id(1), "status": "available", "size": 1, "name": "a\nb", "volume_type": "\u{1b}", "metadata": { "k": "a\nb" } }))
                .is_ok(),
            "it is foreign"
        );
    }

    #[test]
    fn sizes_and_tokens_that_cinder_has_not() {
        assert_eq!(gib(Bytes::from_gib(3)), Ok(3));
        for size in [
            Bytes::ZERO,
            Bytes::from_mib(1),
            Bytes::new(GIB + 1),
            Bytes::new(u64::MAX),
            Bytes::new((GIB_MAX + 1) * GIB),
        ] {
            assert!(matches!(gib(size), Err(ProviderError::Invalid(_))), "{size}");
        }
        assert_eq!(name("0123-ab"), Ok("surgetank-0123-ab".to_owned()));
        for token in ["", "a b", "ä", "a/b", &"a".repeat(300)] {
            assert!(matches!(name(token), Err(ProviderError::Invalid(_))), "{token}");
        }
    }

    proptest! {
        /// The promise of the election: in whatever order they are listed the same one stays, and nothing that may hold
        /// data, is in use, or is another's is deleted.
        #[test]
        fn an_election_has_one_result_and_deletes_nothing_that_counts(
            volumes in prop::collection::vec((0u8..6, 0usize..6, any::<bool>(), 0u8..6, 0u8..3), 0..6),
            turn in 0usize..6,
        ) {
            let statuses = ["creating", "available", "in-use", "error", "deleting", "extending"];
            let mut volumes: Vec<Volume> = volumes.into_iter().map(|(number, status, dirty, ours, second)| {
                let mut volume = volume(number, statuses[status], None);
                volume.created_at = Some(format!("2026-11-28T06:36:1{second}"));
                if dirty { volume.metadata.insert(tag::DIRTY_EPOCH.to_owned(), "e".to_owned()); }
                match ours {
                    0 => volume.name = Some("surgetank-T".to_owned()),
                    1 => volume.metadata = Tags::new(),
                    2 => volume.metadata = Tags::from([("k".to_owned(), "V".to_owned())]),
                    _ => {}
                }
                volume
            }).collect();
            volumes.sort_by(|a, b| a.id.cmp(&b.id));
            volumes.dedup_by(|a, b| a.id == b.id);
            let tags = Tags::from([("k".to_owned(), "v".to_owned())]);
            let first = elect(volumes.clone(), "surgetank-t", &tags);
            let length = volumes.len().max(1);
            volumes.rotate_left(if length > 1 { turn % length } else { 0 });
            let second = elect(volumes.clone(), "surgetank-t", &tags);
            prop_assert_eq!(first.as_ref().map(|(stays, _)| &stays.id), second.as_ref().map(|(stays, _)| &stays.id));
            let Some((stays, gone)) = first else {
                let is_other = |v: &Volume| v.name.as_deref() != Some("surgetank-t") || v.metadata.get("k") != tags.get("k");
                prop_assert!(volumes.iter().all(|v| v.status == "deleting" || is_other(v)));
                return Ok(());
            };
            for id in gone {
                let volume = volumes.iter().find(|volume| volume.id == id.0).unwrap();
                prop_assert!(volume.id != stays.id && volume.name == stays.name);
                prop_assert_eq!(volume.metadata.get("k"), tags.get("k"));
                prop_assert!(matches!(&*volume.status, "available" | "error"));
                prop_assert!(!volume.metadata.contains_key(tag::DIRTY_EPOCH));
            }
        }
    }
}
