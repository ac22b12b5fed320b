//! What a rental asks of its driver, and what the driver answers: once for each ask, in any order, late or never.

use surgetank_cache::{CacheMode, EngineStage, Epoch};
use surgetank_model::Bytes;
use surgetank_model::volume::{
    Change, CreateVolume, DiskIdentity, ProviderError, Transition, VolumeDescription, VolumeId,
};

use crate::owner::OwnerRecord;
use crate::record::{RentalRecord, Slot};

/// Names an ask from `next_ask` to `complete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId {
    /// Whose ask it is.
    pub slot: Slot,
    /// Different for each ask of the slot.
    pub number: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Make the record of the rental durable; `None`: nothing is rented any more. On an error the old one or the new one may
    /// be durable.
    Persist(Option<RentalRecord>),
    /// 128 random bits and the time of day.
    Draw,
    /// The owner record, after all that was to be written of it is durable.
    Owner,
    /// Call the provider. At most one call of a rental is under way.
    Provider(Call),
    /// Look at a disk or file of this machine.
    Volume(VolumeAsk),
    /// Tell the engine.
    Engine(Command),
    /// Have the requests of the device come to the engine from now on: a caching volume is about to be adopted. Devices
    /// whose requests always do are served already.
    Serve,
}

/// A call of the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Rent a volume.
    Create(CreateVolume),
    /// Attach it to this machine, detach it, or delete it.
    ChangeState(VolumeId, Transition),
    /// Have it become as large as that.
    Grow(VolumeId, Bytes),
    /// What is known of it.
    Describe(VolumeId),
    /// Set a tag of it.
    SetTag {
        /// Which volume.
        id: VolumeId,
        /// The tag.
        key: String,
        /// Its value.
        value: String,
    },
    /// Volumes with this tag.
    List {
        /// The tag.
        key: String,
        /// Its value.
        value: String,
    },
}

impl Call {
    /// The answer that it was not carried out, as far as is known.
    #[must_use]
    pub fn failed(&self, error: ProviderError) -> Answer {
        match self {
            Self::Create(_) | Self::Describe(_) => Answer::Described(Err(error)),
            Self::List { .. } => Answer::Listed(Err(error)),
            Self::ChangeState(..) | Self::Grow(..) | Self::SetTag { .. } => Answer::Changed(Err(error)),
        }
    }
}

/// How an attached volume is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It was just rented: it must be a disk that was not here before, and blank.
    Fresh {
        /// The disks that were here before it was attached; `None`: nobody has looked, since this process has not attached it.
        before: Option<Vec<DiskIdentity>>,
    },
    /// Something of ours may be on it.
    Used {
        /// Of this attachment, which its superblock must bear where another disk may be taken for it.
        epoch: Option<Epoch>,
    },
    /// It was in use and has gone: it must be where it was, readable, and of this attachment as far as it is of any. It may
    /// not answer for long: whatever else is asked meanwhile is not to wait for it.
    Again(Epoch),
}

/// What is asked of the disks and files of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAsk {
    /// By what all disks can be told.
    Identities,
    /// Open the volume, for the next command of the engine; what was open before and not given to it is closed.
    Open {
        /// What the provider says of it.
        description: VolumeDescription,
        /// The size that it must have.
        size: Bytes,
        /// How.
        opening: Opening,
    },
    /// Close what this ask has opened, unless the engine was given it.
    Close(AskId),
    /// Read the superblock from the medium, of a volume that nobody uses.
    Superblock(VolumeDescription),
    /// Whether the volume in use is where it was found.
    Look,
}

/// What the engine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Absorb, drain or finish.
    Mode(CacheMode),
    /// Take the open volume into use under this name.
    Adopt(Epoch),
    /// Read the open volume back after a crash.
    Recover(Epoch),
    /// Read the open volume back after it was lost.
    Restore(Epoch),
    /// The volume in use is so large now, and the log is to use it.
    Grow(Bytes),
    /// Release the volume.
    Release,
    /// Close the volume that the engine has released, and the one that is open for it.
    Close,
    /// The volume is not on this machine: close it when nothing is in flight on it any more. Answered then.
    Gone,
    /// The open volume is the one that had gone.
    Returned,
    /// Where the engine is.
    Sample,
}

/// Whether the volume in use is where it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is, or none is in use, or that cannot be told.
    Here,
    /// Its disk has left, or another one is there.
    Gone,
    /// Its file has no name any more: nobody but who has it open can use it.
    Nameless,
}

/// What became of opening a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is open.
    Open,
    /// Its disk has not appeared on this machine.
    Absent,
    /// It is not as it must be; the text says why. That does not pass by itself.
    Refused(String),
}

/// Why a volume could not be opened or read; the text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Another program has it open: its data is there, and can be read once that program has closed it. The text says which
    /// program that is and what to do.
    Held(String),
    /// Anything else.
    Failed(String),
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Held(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// What is on a volume that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The attachment that its superblock names.
    pub epoch: Epoch,
    /// The superblock says that everything was drained.
    pub clean: bool,
    /// A segment begins with a record of that attachment. A log without one is empty.
    pub written: bool,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `Persist`.
    Persisted(Result<(), String>),
    /// To `Draw`.
    Drawn {
        /// 128 random bits.
        random: [u8; 16],
        /// Milliseconds since 1970.
        unix_ms: u64,
    },
    /// To `Owner`.
    Owner(Result<OwnerRecord, String>),
    /// To `Create` and `Describe`.
    Described(Result<VolumeDescription, ProviderError>),
    /// To `ChangeState`, `Grow` and `SetTag`.
    Changed(Result<Change, ProviderError>),
    /// To `List`.
    Listed(Result<Vec<VolumeDescription>, ProviderError>),
    /// To `Identities`. `None`: the machine does not tell.
    Identities(Option<Vec<DiskIdentity>>),
    /// To `Open`.
    Opened(Result<Opened, Obstacle>),
    /// To `Superblock`. `None`: there is none.
    Superblock(Result<Option<Label>, Obstacle>),
    /// To `Close`.
    Closed,
    /// To `Look`.
    Looked(Presence),
    /// To commands of the engine: whether it has begun. `Returned`: whether it still waited for the volume.
    Began(Result<(), String>),
    /// To `Grow` of the engine: whether it has begun. `false`: the disk does not show its new size yet.
    Grows(Result<bool, String>),
    /// To `Sample`.
    Sampled {
        /// Where the engine is.
        stage: EngineStage,
        /// The volume has answered that it was unplugged.
        unplugged: bool,
    },
    /// To `Serve`: the requests come to the engine, as long as [`Rental::wants_service`](crate::Rental::wants_service); or why
    /// they do not.
    Served(Result<(), String>),
    /// The engine has ended.
    EngineEnded(String),
}
