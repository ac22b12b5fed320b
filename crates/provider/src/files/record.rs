//! What a state file says of a volume.

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use crate::{Tags, VolumeId, VolumeState};

/// The version of the state files that this code writes and reads.
pub const FORMAT: u32 = 1;

/// One volume, as `state/ID.json` holds it.
///
/// A call is answered when its record is durable; the change is "carried out" once `latency_ms` have passed since
/// `since_ms`. Times are of the wall clock, because no other one survives a restart. A clock that now stands before
/// `since_ms` was stepped back: the change then counts as carried out, rather than take as long as the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// Its name; also the stem of the file's.
    pub id: VolumeId,
    /// The client token that made it.
    pub token: String,
    /// Its type.
    pub volume_type: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its tags.
    pub tags: Tags,
    /// False while its image is being made. Nobody but a `create` that holds the lock, or that died holding it,
    /// leaves it false: whoever finds it so under the lock takes the volume back.
    pub made: bool,
    /// Where it was at `since_ms`.
    pub state: VolumeState,
    /// When the state was entered, in milliseconds since 1970.
    pub since_ms: u64,
    /// How long the state lasts where it is one that passes (creating, attaching, detaching, deleting).
    pub latency_ms: u64,
    /// It is becoming larger. Builds that do not know this leave it as large as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// A growth that is under way: its space is reserved, and its image becomes as large when the latency has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// The size that it grows to, in bytes.
    pub size_bytes: u64,
    /// When it was asked for, in milliseconds since 1970.
    pub since_ms: u64,
    /// How long it takes.
    pub latency_ms: u64,
}

impl Record {
    /// Its size.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.size_bytes)
    }

    /// Enters a state.
    pub fn enter(&mut self, state: VolumeState, now_ms: u64, latency_ms: u64) {
        self.state = state;
        self.since_ms = now_ms;
        self.latency_ms = latency_ms;
    }

    /// The size that it takes: that of its growth, if one is under way.
    pub fn size_soon(&self) -> Bytes {
        Bytes::new(self.growth.as_ref().map_or(self.size_bytes, |growth| growth.size_bytes))
    }

    /// The size of a growth whose time has come.
    pub fn grown(&self, now_ms: u64) -> Option<Bytes> {
        let growth = self.growth.as_ref()?;
        has_passed(growth.since_ms, growth.latency_ms, now_ms).then(|| Bytes::new(growth.size_bytes))
    }

    /// Its image has grown.
    pub fn end_growth(&mut self) {
        self.size_bytes = self.size_soon().get();
        self.growth = None;
    }

    /// Whether the passing state is over.
    pub fn is_due(&self, now_ms: u64) -> bool {
        has_passed(self.since_ms, self.latency_ms, now_ms)
    }

    /// Goes on to the state that follows by itself. True if the record changed and must be written. A record that is
    /// due to go from `Deleting` stays: to remove it is the store's affair.
    pub fn advance(&mut self, now_ms: u64) -> bool {
        let next = match self.state {
            VolumeState::Creating | VolumeState::Detaching => VolumeState::Available,
            VolumeState::Attaching => VolumeState::Attached,
            VolumeState::Available | VolumeState::Attached | VolumeState::Deleting | VolumeState::Failed => {
                return false;
            }
        };
        if !self.is_due(now_ms) {
            return false;
        }
        self.enter(next, now_ms, 0);
        true
    }

    /// Whether it takes one of the machine's attachment slots.
    pub fn takes_a_slot(&self) -> bool {
        matches!(self.state, VolumeState::Attaching | VolumeState::Attached | VolumeState::Detaching)
    }
}

fn has_passed(since_ms: u64, latency_ms: u64, now_ms: u64) -> bool {
    now_ms.checked_sub(since_ms).is_none_or(|passed| passed >= latency_ms)
}

/// The length of a name that this provider gives, in bytes: `vol-` and 16 hex digits.
pub const ID_BYTES: usize = 20;

/// Whether the text is a name that this provider gives. Every other name is of no volume, whatever it looks like as
/// a path.
pub fn is_ours(id: &str) -> bool {
    id.strip_prefix("vol-").is_some_and(|digits| {
        id.len() == ID_BYTES && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}
