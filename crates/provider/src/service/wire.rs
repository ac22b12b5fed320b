//! What the provisioning service and its clients tell one another: JSON bodies, and errors with their HTTP status.
//! `docs/PROVISIONING.md` describes it for people who write another of the two.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use crate::{Change, CreateVolume, DiskIdentity, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState};

/// The longest body of a request, in bytes: 50 tags of the longest make some 20 KiB.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The longest body of an answer, in bytes: a list of some thousand volumes.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The longest volume id, in bytes.
const ID_BYTES_MAX: usize = 128;

/// Whether an id can stand in a path as it is. What cannot is no volume's.
#[must_use]
pub fn is_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.starts_with('.') && id.bytes().all(allowed)
}

/// Body of `POST /v1/volumes`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateBody {
    /// The idempotency key.
    pub token: String,
    /// The type's name.
    pub volume_type: String,
    /// The size in bytes.
    pub size_bytes: u64,
    /// Tags to set from the start.
    #[serde(default)]
    pub tags: Tags,
}

impl From<&CreateVolume> for CreateBody {
    fn from(request: &CreateVolume) -> Self {
        Self {
            token: request.token.clone(),
            volume_type: request.volume_type.clone(),
            size_bytes: request.size.get(),
            tags: request.tags.clone(),
        }
    }
}

impl From<CreateBody> for CreateVolume {
    fn from(body: CreateBody) -> Self {
        let CreateBody { token, volume_type, size_bytes, tags } = body;
        Self { token, volume_type, size: Bytes::new(size_bytes), tags }
    }
}

/// Body of `PUT /v1/volumes/ID/tags`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagBody {
    /// The tag's key.
    pub key: String,
    /// Its value; null removes it.
    pub value: Option<String>,
}

/// A volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumeBody {
    id: VolumeId,
    state: VolumeState,
    volume_type: String,
    size_bytes: u64,
    tags: Tags,
    device: Option<PathBuf>,
    serial: Option<String>,
    /// Disks that have no serial of their own: clients that do not know this and the next field say that there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lun: Option<u32>,
}

impl From<VolumeDescription> for VolumeBody {
    fn from(volume: VolumeDescription) -> Self {
        // The volumes that a service rents out are no stripes.
        let VolumeDescription { id, state, volume_type, size, tags, device, disk, members: _ } = volume;
        // JSON has no bytes: a path that is no text is told as well as it can be.
        let device = device.map(|path| PathBuf::from(path.to_string_lossy().into_owned()));
        let (serial, name, lun) = match disk {
            None => (None, None, None),
            Some(DiskIdentity::Serial(serial)) => (Some(serial), None, None),
            Some(DiskIdentity::Name(name)) => (None, Some(name), None),
            Some(DiskIdentity::Lun(lun)) => (None, None, Some(lun)),
        };
        Self { id, state, volume_type, size_bytes: size.get(), tags, device, serial, name, lun }
    }
}

impl From<VolumeBody> for VolumeDescription {
    fn from(body: VolumeBody) -> Self {
        let VolumeBody { id, state, volume_type, size_bytes, tags, device, serial, name, lun } = body;
        // What tells most counts, should a service say several.
        let disk = serial.map(DiskIdentity::Serial).or(name.map(DiskIdentity::Name)).or(lun.map(DiskIdentity::Lun));
        Self { id, state, volume_type, size: Bytes::new(size_bytes), tags, device, disk, members: Vec::new() }
    }
}

/// Answer to `GET /v1/volumes`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListBody {
    /// The volumes.
    pub volumes: Vec<VolumeBody>,
}

/// Answer to whatever changes something.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChangeBody {
    /// Whether it changed something.
    pub change: Change,
    /// The volume, if it was to be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeBody>,
}

/// Answer with any status of 400 and above.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What it means to the caller; a kind that a client does not know is `transient`.
    pub kind: Kind,
    /// One sentence for people.
    pub message: String,
    /// The volume, with `not_found` and `conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// Its state, with `conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<VolumeState>,
    /// When to ask again, with `throttled`: the header `Retry-After`.
    #[serde(skip)]
    pub after: Option<Duration>,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// No such volume.
    NotFound,
    /// The quota is used up.
    Quota,
    /// No capacity of this type now.
    Capacity,
    /// No free slot in the machine.
    AttachLimit,
    /// The volume's state does not allow it.
    Conflict,
    /// Will not pass by itself.
    Invalid,
    /// The token is missing or wrong.
    Unauthorized,
    /// Too many requests: this one was not carried out.
    Throttled,
    /// May pass.
    #[serde(other)]
    Transient,
}

impl Kind {
    /// The HTTP status that goes with it.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Quota => 403,
            Self::NotFound => 404,
            Self::Conflict | Self::AttachLimit => 409,
            Self::Throttled => 429,
            Self::Transient => 503,
            Self::Capacity => 507,
        }
    }
}

impl ErrorDetail {
    /// An error without a volume.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), volume: None, state: None, after: None }
    }
}

impl From<ProviderError> for ErrorDetail {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::NotFound(id) => {
                let message = format!("no volume {:?}", id.0);
                Self { volume: Some(id), ..Self::new(Kind::NotFound, message) }
            }
            ProviderError::Conflict { id, state, reason } => {
                Self { volume: Some(id), state: Some(state), ..Self::new(Kind::Conflict, reason) }
            }
            ProviderError::Quota(text) => Self::new(Kind::Quota, text),
            ProviderError::Capacity(text) => Self::new(Kind::Capacity, text),
            ProviderError::AttachLimit(text) => Self::new(Kind::AttachLimit, text),
            ProviderError::Invalid(text) => Self::new(Kind::Invalid, text),
            ProviderError::Throttled { after, text } => Self { after, ..Self::new(Kind::Throttled, text) },
            ProviderError::Transient(text) => Self::new(Kind::Transient, text),
        }
    }
}

impl From<ErrorDetail> for ProviderError {
    fn from(detail: ErrorDetail) -> Self {
        let ErrorDetail { kind, message, volume, state, after } = detail;
        match (kind, volume, state) {
            (Kind::NotFound, Some(id), _) => Self::NotFound(id),
            (Kind::Conflict, Some(id), Some(state)) => Self::Conflict { id, state, reason: message },
            // Not even that the volume is gone may be believed without its name.
            (Kind::NotFound | Kind::Conflict | Kind::Transient, _, _) => Self::Transient(message),
            (Kind::Throttled, _, _) => Self::Throttled { after, text: message },
            (Kind::Quota, _, _) => Self::Quota(message),
            (Kind::Capacity, _, _) => Self::Capacity(message),
            (Kind::AttachLimit, _, _) => Self::AttachLimit(message),
            (Kind::Invalid | Kind::Unauthorized, _, _) => Self::Invalid(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(error: &ProviderError) -> ProviderError {
        let text = serde_json::to_string(&ErrorBody { error: error.clone().into() }).unwrap();
        serde_json::from_str::<ErrorBody>(&text).unwrap().error.into()
    }

    #[test]
    fn every_error_comes_back_as_it_was() {
        let id = || VolumeId("vol-1".to_owned());
        let text = || "why".to_owned();
        for error in [
            ProviderError::NotFound(id()),
            ProviderError::Quota(text()),
            ProviderError::Capacity(text()),
            ProviderError::AttachLimit(text()),
            ProviderError::Conflict { id: id(), state: VolumeState::Detaching, reason: text() },
            ProviderError::Conflict { id: id(), state: VolumeState::Failed, reason: text() },
            ProviderError::Invalid(text()),
            ProviderError::Throttled { after: None, text: text() },
            ProviderError::Transient(text()),
        ] {
            assert_eq!(there_and_back(&error), error);
        }
    }

    #[test]
    fn an_unknown_kind_may_pass_and_an_unnamed_volume_is_not_gone() {
        for (text, kind) in [
            (r#"{"error": {"kind": "teapot", "message": "short and stout"}}"#, Kind::Transient),
            (r#"{"error": {"kind": "not_found", "message": "no route"}}"#, Kind::NotFound),
        ] {
            let body: ErrorBody = serde_json::from_str(text).unwrap();
            assert_eq!(body.error.kind, kind);
            assert!(matches!(ProviderError::from(body.error), ProviderError::Transient(_)));
        }
    }

    /// What clients knew of an error before there was `throttled`.
    #[derive(Deserialize)]
    struct ErrorBefore {
        error: DetailBefore,
    }

    #[derive(Deserialize)]
    struct DetailBefore {
        kind: KindBefore,
        message: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum KindBefore {
        Quota,
        #[serde(other)]
        Transient,
    }

    #[test]
    fn a_client_that_does_not_know_throttling_takes_it_for_transient() {
        let throttled = ProviderError::Throttled { after: Some(Duration::from_secs(7)), text: "slower".to_owned() };
        let text = serde_json::to_string(&ErrorBody { error: throttled.into() }).unwrap();
        assert_eq!(text, r#"{"error":{"kind":"throttled","message":"slower"}}"#);
        let before: ErrorBefore = serde_json::from_str(&text).unwrap();
        assert_eq!((before.error.kind, &*before.error.message), (KindBefore::Transient, "slower"));
        let quota: ErrorBefore = serde_json::from_str(r#"{"error":{"kind":"quota","message":""}}"#).unwrap();
        assert_eq!(quota.error.kind, KindBefore::Quota);
    }

    #[test]
    fn a_disks_identity_is_told_as_before_if_it_is_a_serial() {
        let before =
            r#"{"id":"v","state":"attached","volume_type":"fast","size_bytes":1,"tags":{},"device":null,"serial":"s"}"#;
        let body: VolumeBody = serde_json::from_str(before).expect("it is one");
        let volume = VolumeDescription::from(body);
        assert_eq!(volume.disk, Some(DiskIdentity::Serial("s".to_owned())));
        let told =
            |volume: &VolumeDescription| serde_json::to_string(&VolumeBody::from(volume.clone())).expect("it is JSON");
        assert_eq!(told(&volume), before);
        for disk in [DiskIdentity::Name("surgetank-1".to_owned()), DiskIdentity::Lun(0)] {
            let volume = VolumeDescription { disk: Some(disk), ..volume.clone() };
            let told = told(&volume);
            assert!(told.contains(r#""serial":null"#), "a client from before finds no serial: {told}");
            let body: VolumeBody = serde_json::from_str(&told).expect("it is one");
            assert_eq!(VolumeDescription::from(body), volume);
        }
    }

    #[test]
    fn ids_that_would_lead_elsewhere_are_none() {
        for id in ["", ".", "..", "a/b", "a b", "%2e", "\0", "vol-\u{e9}", "a?b", "a#b", &"a".repeat(129)] {
            assert!(!is_id(id), "{id:?}");
        }
        for id in ["vol-0123456789abcdef", "A_b.c", &"a".repeat(128)] {
            assert!(is_id(id), "{id:?}");
        }
    }
}
