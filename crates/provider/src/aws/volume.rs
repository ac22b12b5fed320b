//! Volumes as EC2 tells of them, and what its words mean here.

use std::path::PathBuf;

use roxmltree::Node;
use surgetank_model::Bytes;
use surgetank_model::units::GIB;

use super::ec2::{Query, child, element, items};
use super::is_id;
use crate::account;
use crate::cloud::http::sentence;
use crate::cloud::unix_ms;
use crate::{
    AccountVolume, CreateVolume, DiskIdentity, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, tag,
};

/// The longest client token of EC2, in characters.
const TOKEN_MAX: usize = 64;
/// The longest key or value of a tag, in characters.
const TEXT_MAX: usize = 256;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `vol-` and 8 or 17 hex digits.
    pub id: String,
    status: Status,
    gib: u64,
    volume_type: String,
    created: String,
    /// All of them.
    pub tags: Tags,
    attachments: Vec<Attachment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Creating,
    Available,
    InUse,
    Deleting,
    Deleted,
    Error,
}

/// To which instance a volume is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attachment {
    instance: String,
    device: String,
    state: AttachmentState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachmentState {
    Attaching,
    Attached,
    Detaching,
    Detached,
    Busy,
}

impl Volume {
    /// Reads one, if it is fit to be told.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn read(node: Node<'_, '_>) -> Result<Self, ProviderError> {
        let odd =
            |why: &str| ProviderError::Transient(format!("EC2 describes a volume {why}: check what answers for it"));
        let id = child(node, "volumeId").filter(|id| is_id(id)).ok_or_else(|| odd("with an id that is none"))?;
        let of = |what: &str| odd(&format!("{id} with {what}"));
        let text = |name: &str| child(node, name).map(str::to_owned);
        let status = match child(node, "status") {
            Some("creating") => Status::Creating,
            Some("available") => Status::Available,
            Some("in-use") => Status::InUse,
            Some("deleting") => Status::Deleting,
            Some("deleted") => Status::Deleted,
            Some("error") => Status::Error,
            other => return Err(of(&format!("the status \"{}\"", sentence(other.unwrap_or_default())))),
        };
        let gib = child(node, "size").and_then(|size| size.parse().ok()).filter(|gib| *gib <= u64::MAX / GIB);
        let read = |item| Attachment::read(item).ok_or_else(|| of("an attachment in other words"));
        let attachments = items(node, "attachmentSet").map(read).collect::<Result<_, _>>()?;
        let volume_type = text("volumeType").unwrap_or_default();
        let is_fit = |text: &str| text.chars().count() <= TEXT_MAX && !text.contains(char::is_control);
        let is_ours = |key: &str| key.starts_with("surgetank:");
        // People may give a volume any tags, also one of ours: they are left out if they are not fit to be told.
        let tags = tags(node).map(|mut tags| {
            tags.retain(|key, value| is_ours(key) || is_fit(key) && is_fit(value));
            tags
        });
        let tags = tags.filter(|tags| tags.iter().all(|(key, value)| is_fit(key) && is_fit(value)));
        let Some(tags) = tags.filter(|_| is_fit(&volume_type)) else {
            return Err(of("texts that are too long or have signs that are none"));
        };
        Ok(Self {
            id: id.to_owned(),
            status,
            gib: gib.ok_or_else(|| of("no size"))?,
            volume_type,
            created: text("createTime").unwrap_or_default(),
            tags,
            attachments,
        })
    }

    /// The attachments that hold it, or may.
    fn holding(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.iter().filter(|at| at.state != AttachmentState::Detached)
    }

    /// Whether there is nothing left of it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.status == Status::Deleted
    }

    /// The instance that has it, if it is another one than `here`.
    #[must_use]
    pub fn elsewhere(&self, here: &str) -> Option<&str> {
        let first = self.holding().next()?;
        self.holding().all(|at| at.instance != here).then_some(&*first.instance)
    }

    /// The device name under which an attachment to `here` is under way.
    #[must_use]
    pub fn attaching_as(&self, here: &str) -> Option<&str> {
        let mut all = self.holding().filter(|at| at.instance == here && at.state == AttachmentState::Attaching);
        all.next().map(|at| &*at.device)
    }

    /// Where it is in its life. Its attachments tell more than its status, which follows them.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match (self.holding().next().map(|at| at.state), self.status) {
            (_, Status::Deleting | Status::Deleted) => VolumeState::Deleting,
            (Some(AttachmentState::Attaching), _) => VolumeState::Attaching,
            (Some(AttachmentState::Attached), _) => VolumeState::Attached,
            // Busy: the guest still uses it.
            (Some(AttachmentState::Detaching | AttachmentState::Busy | AttachmentState::Detached), _) => {
                VolumeState::Detaching
            }
            (None, Status::Creating) => VolumeState::Creating,
            (None, Status::Available) => VolumeState::Available,
            (None, Status::Error) => VolumeState::Failed,
            // The last attachment has gone, or the next one does not show yet.
            (None, Status::InUse) if self.attachments.is_empty() => VolumeState::Attaching,
            (None, Status::InUse) => VolumeState::Detaching,
        }
    }

    /// What is said of it on the instance `here`.
    #[must_use]
    pub fn describe(&self, here: &str) -> VolumeDescription {
        let state = self.state();
        let is_here = state == VolumeState::Attached && self.holding().any(|at| at.instance == here);
        // As its NVMe controller shows it.
        let serial = self.id.replacen('-', "", 1);
        VolumeDescription {
            id: VolumeId(self.id.clone()),
            state,
            volume_type: self.volume_type.clone(),
            size: self.size(),
            tags: account::shown(self.tags.clone()),
            // The link that udev makes: for people, as the serial is what counts.
            device: is_here.then(|| PathBuf::from(format!("/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}"))),
            disk: is_here.then_some(DiskIdentity::Serial(serial)),
            members: Vec::new(),
        }
    }

    /// The same for whoever looks at the whole account. What is no name of an instance is shown: nobody says that it is gone.
    #[must_use]
    pub fn in_account(&self) -> AccountVolume {
        AccountVolume {
            volume: self.describe(""),
            machine: self.tags.get(tag::HOST).cloned(),
            attached_to: self.holding().next().map(|at| at.instance.clone()),
            created_ms: unix_ms(&self.created),
        }
    }

    /// How large it is.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes::new(self.gib * GIB)
    }

    /// Whether it is what was asked for. It may have grown since.
    ///
    /// # Errors
    /// `Invalid`: the token was used for another volume.
    pub fn check(&self, request: &CreateVolume) -> Result<(), ProviderError> {
        if self.volume_type == request.volume_type && self.size() >= request.size {
            return Ok(());
        }
        Err(ProviderError::Invalid(format!(
            "the token {:?} has made the volume {} of {} GiB and the type {:?}, another one than is asked for now: draw a fresh token",
            request.token, self.id, self.gib, self.volume_type
        )))
    }
}

impl Attachment {
    fn read(node: Node<'_, '_>) -> Option<Self> {
        let is_fit = |text: &&str| text.len() <= TEXT_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        // One that a service of AWS made may be to no instance.
        let text = |name: &str| child(node, name).map_or(Some(""), |text| Some(text).filter(is_fit)).map(str::to_owned);
        let state = match child(node, "status")? {
            "attaching" => AttachmentState::Attaching,
            "attached" => AttachmentState::Attached,
            "detaching" => AttachmentState::Detaching,
            "detached" => AttachmentState::Detached,
            "busy" => AttachmentState::Busy,
            _ => return None,
        };
        Some(Self { instance: text("instanceId")?, device: text("device")?, state })
    }
}

/// The tags of a resource; `None`: one has no key.
fn tags(node: Node<'_, '_>) -> Option<Tags> {
    let value = |item| child(item, "value").unwrap_or_default().to_owned();
    items(node, "tagSet").map(|item| Some((child(item, "key")?.to_owned(), value(item)))).collect()
}

/// The volumes of an answer to `DescribeVolumes`, and the token with which the next page is asked for.
///
/// # Errors
/// `Transient`, with a sentence.
pub fn read_all(root: Node<'_, '_>) -> Result<(Vec<Volume>, Option<String>), ProviderError> {
    if element(root, "volumeSet").is_none() {
        return Err(ProviderError::Transient(
            "EC2 lists no volumes in its list of volumes: check what answers for it".to_owned(),
        ));
    }
    let volumes = items(root, "volumeSet").map(Volume::read).collect::<Result<_, _>>()?;
    Ok((volumes, child(root, "nextToken").filter(|token| !token.is_empty()).map(str::to_owned)))
}

/// A size as EC2 takes it.
///
/// # Errors
/// `Invalid`: it has none such.
pub fn gib(size: Bytes) -> Result<u64, ProviderError> {
    let gib = size.get() / GIB;
    if gib * GIB == size.get() && (1..=u64::from(u16::MAX) + 1).contains(&gib) {
        return Ok(gib);
    }
    Err(ProviderError::Invalid(format!("EC2 has no volumes of {size}: ask for a whole number of GiB, 1 to 65536")))
}

/// The call that asks for a volume.
///
/// # Errors
/// `Invalid`: the token, or the size.
pub fn wanted(request: &CreateVolume, zone: &str, host: &str) -> Result<Query, ProviderError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !(1..=TOKEN_MAX).contains(&request.token.len()) || !request.token.bytes().all(allowed) {
        return Err(ProviderError::Invalid(format!(
            "the token \"{}\" is none of EC2's: use 1 to {TOKEN_MAX} letters, digits, - and _",
            sentence(&request.token)
        )));
    }
    let mut query = Query::new("CreateVolume")
        .with("AvailabilityZone", zone)
        .with("Size", gib(request.size)?)
        .with("VolumeType", &request.volume_type)
        .with("ClientToken", &request.token)
        .with("TagSpecification.1.ResourceType", "volume");
    let mut tags = request.tags.clone();
    tags.insert(tag::TOKEN.to_owned(), request.token.clone());
    tags.extend(account::marks(host));
    for (number, (key, value)) in (1..).zip(&tags) {
        query = query
            .with(format!("TagSpecification.1.Tag.{number}.Key"), key)
            .with(format!("TagSpecification.1.Tag.{number}.Value"), value);
    }
    Ok(query)
}

/// Which of the volumes that carry a token is the one that it made: one that is in use or may hold data, else the oldest. A token is
/// forgotten after a while, so that there may be a second one; it is the sweep's.
#[must_use]
pub fn made_by(token: &str, tags: &Tags, volumes: Vec<Volume>) -> Option<Volume> {
    // People may give a copy the same token.
    let has_tags = |volume: &Volume| tags.iter().all(|(key, value)| volume.tags.get(key) == Some(value));
    let is_its = |volume: &Volume| {
        volume.tags.get(tag::TOKEN).is_some_and(|there| there == token)
            && has_tags(volume)
            && volume.state() != VolumeState::Deleting
    };
    let is_used = |volume: &Volume| {
        volume.tags.contains_key(tag::DIRTY_EPOCH)
            || matches!(volume.state(), VolumeState::Attaching | VolumeState::Attached | VolumeState::Detaching)
    };
    let rank = |volume: &Volume| (!is_used(volume), volume.created.clone(), volume.id.clone());
    volumes.into_iter().filter(is_its).min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    const ID: &str = "vol-0123456789abcdef0";
    const HERE: &str = "i-0123456789abcdef0";

    fn read(inner: &str) -> Result<Volume, ProviderError> {
        Volume::read(Document::parse(&format!("<item xmlns=\"x\">{inner}</item>")).unwrap().root_element())
    }

    fn attachment(instance: &str, status: &str) -> String {
        format!(
            "<attachmentSet><item><instanceId>{instance}</instanceId><device>/dev/xvdba</device><status>{status}</status></item></attachmentSet>"
        )
    }

    fn volume(status: &str, more: &str) -> Volume {
        let inner = format!(
            "<volumeId>{ID}</volumeId><size>10</size><status>{status}</status><volumeType>gp3</volumeType>{more}"
        );
        read(&inner).unwrap()
    }

    #[test]
    fn states_by_word_and_attachment() {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};
        for (status, at, expected) in [
            ("creating", None, Creating),
            ("available", None, Available),
            ("in-use", None, Attaching),
            ("deleting", None, Deleting),
            ("error", None, Failed),
            ("in-use", Some("attaching"), Attaching),
            ("available", Some("attaching"), Attaching),
            ("in-use", Some("attached"), Attached),
            ("in-use", Some("detaching"), Detaching),
            ("available", Some("detaching"), Detaching),
            ("in-use", Some("busy"), Detaching),
            ("in-use", Some("detached"), Detaching),
            ("available", Some("detached"), Available),
            ("error", Some("attached"), Attached),
        ] {
            let more = at.map(|at| attachment(HERE, at)).unwrap_or_default();
            assert_eq!(volume(status, &more).state(), expected, "{status} {at:?}");
        }
        assert!(volume("deleted", "").is_gone());
    }

    #[test]
    fn a_volume_is_located_on_the_instance_that_has_it() {
        let here = volume("in-use", &attachment(HERE, "attached")).describe(HERE);
        assert_eq!(here.disk, Some(DiskIdentity::Serial("vol0123456789abcdef0".to_owned())));
        let elsewhere = volume("in-use", &attachment("i-1", "attached"));
        assert_eq!((elsewhere.elsewhere(HERE), elsewhere.describe(HERE).is_located()), (Some("i-1"), false));
        assert!(!volume("in-use", &attachment(HERE, "busy")).describe(HERE).is_located());
        assert_eq!(volume("available", &attachment("i-1", "detached")).elsewhere(HERE), None);
    }

    #[test]
    fn odd_descriptions_are_refused_in_one_sentence() {
        let tag = |key: &str| format!("<tagSet><item><key>{key}</key><value>a&#10;b</value></item></tagSet>");
        let of = |id: &str, size: &str, status: &str, more: &str| {
            read(&format!("<volumeId>{id}</volumeId><size>{size}</size><status>{status}</status>{more}"))
        };
        for odd in [
            of("../x", "1", "available", ""),
            of(ID, "-1", "available", ""),
            of(ID, "", "available", ""),
            of(ID, "99999999999999999", "available", ""),
            of(ID, "1", "of\u{85}fended", ""),
            of(ID, "1", "available", &tag("surgetank:owner")),
            of(ID, "1", "available", "<tagSet><item/></tagSet>"),
            of(ID, "1", "available", "<volumeType>a&#10;b</volumeType>"),
            of(ID, "1", "in-use", &attachment(HERE, "perhaps")),
            of(ID, "1", "in-use", &attachment("a&#10;b", "attached")),
            read(""),
        ] {
            let error = odd.unwrap_err().to_string();
            assert!(error.starts_with("EC2 describes a volume") && !error.contains(char::is_control), "{error}");
        }
        assert!(of(ID, "1", "available", &tag("k")).is_ok(), "it is foreign");
        assert!(read_all(Document::parse("<r/>").unwrap().root_element()).is_err());
    }

    #[test]
    fn of_the_volumes_of_a_token_one_that_may_hold_data_is_the_one() {
        let tagged = |id: &str, status: &str, created: &str, more: &str| {
            let tag = |key: &str, value: &str| format!("<item><key>{key}</key><value>{value}</value></item>");
            let tags = tag(tag::TOKEN, "t") + &tag("k", "v") + more;
            read(&format!(
                "<volumeId>{id}</volumeId><size>1</size><status>{status}</status><createTime>{created}</createTime><tagSet>{tags}</tagSet>"
            ))
            .unwrap()
        };
        let dirty = format!("<item><key>{}</key><value>e</value></item>", tag::DIRTY_EPOCH);
        let old = tagged("vol-00000001", "available", "2026-01-01T00:00:00Z", "");
        let new = tagged("vol-00000002", "available", "2026-01-02T00:00:00Z", "");
        let used = tagged("vol-00000003", "available", "2026-01-03T00:00:00Z", &dirty);
        let leaving = tagged("vol-00000004", "deleting", "2025-01-01T00:00:00Z", "");
        let tags = Tags::from([("k".to_owned(), "v".to_owned())]);
        let id = |volumes: &[&Volume], tags: &Tags| {
            made_by("t", tags, volumes.iter().map(|volume| (*volume).clone()).collect()).map(|volume| volume.id)
        };
        assert_eq!(id(&[&new, &leaving, &old], &tags).as_deref(), Some("vol-00000001"));
        assert_eq!(id(&[&old, &used], &tags).as_deref(), Some("vol-00000003"));
        assert_eq!(id(&[&leaving], &tags), None);
        assert_eq!(id(&[&old], &Tags::from([("k".to_owned(), "w".to_owned())])), None, "it is another's");
    }
}
