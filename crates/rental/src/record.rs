//! What is durable about a rental, from before the volume is created until it is certain that it is gone.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::volume::VolumeId;

/// How far a rented volume is. The present participles are intents: the call may or may not have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RentalStage {
    /// `create` is being called.
    Creating,
    /// It is there.
    Created,
    /// `attach` is being called.
    Attaching,
    /// It is attached; the engine has nothing on it.
    Attached,
    /// The engine is formatting it.
    Adopting,
    /// The engine uses it.
    Adopted,
    /// The engine has released it.
    Released,
    /// `detach` is being called.
    Detaching,
    /// `delete` is being called.
    Deleting,
}

/// Which of the volumes that a device rents at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u8);

impl Slot {
    /// That of the volume that the engine uses.
    pub const CACHE: Self = Self(0);

    fn is_cache(&self) -> bool {
        *self == Self::CACHE
    }
}

/// That the provider does not know a volume, or not all of a stripe, while that is not believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Milliseconds since 1970 at which it said so first, with nothing else said since.
    pub since_unix_ms: u64,
    /// The same of the last time, or somewhat less: not every look is written down.
    pub told_unix_ms: u64,
    /// The members of a stripe that it did know.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub there: BTreeSet<VolumeId>,
}

/// A rented volume from before its creation until after its deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RentalRecord {
    /// Where the device has it.
    #[serde(default, skip_serializing_if = "Slot::is_cache")]
    pub slot: Slot,
    /// The client token it is created with; also on the volume as a tag.
    pub token: String,
    /// Its type.
    pub volume_type: String,
    /// Its size; zero: unknown, since the record was put together from the owner record.
    pub size: Bytes,
    /// The size that the provider was asked to grow it to, while it is not certain what became of that. Builds that do not
    /// know this field take it for as large as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growing_to: Option<Bytes>,
    /// Milliseconds since 1970 at which its creation was asked for.
    pub started_unix_ms: u64,
    /// How far it is.
    pub stage: RentalStage,
    /// The provider's name, once known.
    pub volume: Option<VolumeId>,
    /// The attachment, once the engine was given it.
    pub epoch: Option<String>,
    /// Nothing on it counts: it was never adopted, or that was proved, or the user discarded it. Only then may it be deleted.
    pub disposable: bool,
    /// The attachment in the volume's tag whose data the user has discarded, although nothing proves that it does not count.
    /// Builds that do not know this field keep the volume, and ask the user again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded: Option<String>,
    /// The provider does not know it. Builds that do not know this field wait anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

impl RentalRecord {
    /// What it may be billed for.
    #[must_use]
    pub fn size_at_most(&self) -> Bytes {
        self.growing_to.map_or(self.size, |size| size.max(self.size))
    }
}
