//! Where the newest data of a device is: the owner record, and the tag on the caching volume.
//!
//! The order is what makes them safe. Before anything is dirty: tag, then record. Once nothing is: record, then tag.
//! So a volume without the tag holds nothing, and a record that says `Backing` is always right.

use surgetank_cache::{Epoch, Owner};
use surgetank_model::volume::VolumeId;

use crate::planted::{Bug, planted};
use crate::stripe;

/// An owner record with the volume that it speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRecord {
    /// Where the newest data is.
    pub owner: Owner,
    /// The caching volume of `Cache` and `Lost`, or of the attachment that has ended.
    pub volume: Option<VolumeId>,
    /// With `Backing`: the attachment that has ended last. Nothing on it counts any more.
    pub ended: Option<Epoch>,
}

impl OwnerRecord {
    /// The record after the data of this one was discarded, or is on the backing volume.
    #[must_use]
    pub fn ended(self) -> Self {
        let ended = match self.owner {
            Owner::Backing => self.ended,
            Owner::Cache { epoch } | Owner::Lost { epoch, .. } => Some(epoch),
        };
        Self { owner: Owner::Backing, volume: self.volume, ended }
    }

    /// Whether this attachment of this volume, or of the stripe of which it is what is left, has ended: whatever is on it may be
    /// deleted.
    #[must_use]
    pub fn has_ended(&self, volume: &VolumeId, epoch: Epoch) -> bool {
        self.owner == Owner::Backing
            && self.volume.as_ref().is_some_and(|whole| stripe::is_part(volume, whole))
            && self.ended == Some(epoch)
    }

    /// The same without the ranges of a loss.
    #[must_use]
    pub fn in_short(&self) -> Self {
        let owner = match &self.owner {
            Owner::Backing => Owner::Backing,
            Owner::Cache { epoch } => Owner::Cache { epoch: *epoch },
            Owner::Lost { epoch, .. } => Owner::Lost { epoch: *epoch, ranges: Vec::new() },
        };
        Self { owner, volume: self.volume.clone(), ended: self.ended }
    }
}

/// What is to be done next so that an owner is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerWrite {
    /// Set the tag of the volume, or remove it.
    Tag {
        /// Which volume.
        volume: VolumeId,
        /// The attachment whose data may be dirty on it; `None`: nothing is.
        epoch: Option<Epoch>,
    },
    /// Make the record durable.
    Record(OwnerRecord),
    /// Answer the engine: whether the owner is on record.
    Done(Result<(), String>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Idle,
    /// The volume is being tagged with the attachment before the record says so.
    Tagging(Epoch),
    /// The record is being written.
    Writing {
        /// It says that the newest data is on the backing volume.
        backing: bool,
    },
    /// The record is durable; the tag is being removed.
    Untagging,
}

/// Writes owners down, one after the other.
#[derive(Clone, Debug, Default)]
pub struct OwnerWriter {
    /// Which volume the next records speak of.
    volume: Option<VolumeId>,
    /// The attachment that the engine spoke of last.
    epoch: Option<Epoch>,
    progress: Progress,
}

impl OwnerWriter {
    /// Goes on from the record that is durable.
    #[must_use]
    pub fn new(record: &OwnerRecord) -> Self {
        let OwnerRecord { volume, ended: epoch, .. } = record.in_short().ended();
        Self { volume, epoch, progress: Progress::Idle }
    }

    /// Which volume the next records speak of.
    pub fn set_volume(&mut self, volume: Option<VolumeId>) {
        self.volume = volume;
    }

    /// Begins to write an owner down. Each write is answered with [`OwnerWriter::written`] until it is `Done`.
    pub fn begin(&mut self, owner: Owner) -> OwnerWrite {
        if let Owner::Cache { epoch } | Owner::Lost { epoch, .. } = &owner {
            self.epoch = Some(*epoch);
        }
        if let Owner::Cache { epoch } = owner
            && !planted(Bug::TagForgotten)
        {
            return match self.volume.clone() {
                Some(volume) => {
                    self.progress = Progress::Tagging(epoch);
                    OwnerWrite::Tag { volume, epoch: Some(epoch) }
                }
                None => OwnerWrite::Done(Err("the caching volume has no name to tag".to_owned())),
            };
        }
        self.record(owner)
    }

    fn record(&mut self, owner: Owner) -> OwnerWrite {
        let ended = self.epoch.filter(|_| owner == Owner::Backing);
        self.progress = Progress::Writing { backing: owner == Owner::Backing };
        OwnerWrite::Record(OwnerRecord { owner, volume: self.volume.clone(), ended })
    }

    /// The last write has ended.
    pub fn written(&mut self, result: Result<(), String>) -> OwnerWrite {
        match (std::mem::take(&mut self.progress), result) {
            // A tag that stays does no harm: the record says that this attachment has ended.
            (Progress::Untagging, _) => OwnerWrite::Done(Ok(())),
            (Progress::Tagging(epoch), Ok(())) => self.record(Owner::Cache { epoch }),
            (Progress::Tagging(epoch), Err(_)) if planted(Bug::FailedTagIgnored) => self.record(Owner::Cache { epoch }),
            (Progress::Writing { backing: true }, Ok(())) => match self.volume.clone() {
                Some(volume) => {
                    self.progress = Progress::Untagging;
                    OwnerWrite::Tag { volume, epoch: None }
                }
                None => OwnerWrite::Done(Ok(())),
            },
            (_, result) => OwnerWrite::Done(result),
        }
    }
}

/// Reads an epoch as it is written: 32 hex digits.
#[must_use]
pub fn parse_epoch(text: &str) -> Option<Epoch> {
    let mut epoch = Epoch::default();
    // `from_str_radix` would take a sign as well.
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in epoch.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_the_attachment_that_has_ended() {
        let (epoch, other, volume) = (Epoch([7; 16]), Epoch([8; 16]), VolumeId("a".to_owned()));
        let lost = Owner::Lost { epoch, ranges: vec![(0, 4096)] };
        for owner in [Owner::Cache { epoch }, lost] {
            let record = OwnerRecord { owner, volume: Some(volume.clone()), ended: None };
            assert!(!record.has_ended(&volume, epoch), "its data counts");
            let ended = record.ended();
            assert!(ended.has_ended(&volume, epoch));
            assert!(!ended.has_ended(&volume, other) && !ended.has_ended(&VolumeId("b".to_owned()), epoch));
            assert_eq!(ended.clone().ended(), ended);
        }
    }

    #[test]
    fn the_tag_is_set_before_the_record_and_removed_after_it() {
        let (epoch, volume) = (Epoch([7; 16]), VolumeId("a".to_owned()));
        let mut writer = OwnerWriter::new(&OwnerRecord::default());
        assert!(matches!(writer.begin(Owner::Cache { epoch }), OwnerWrite::Done(Err(_))), "it has no name");
        writer.set_volume(Some(volume.clone()));
        let tag = |epoch| OwnerWrite::Tag { volume: volume.clone(), epoch };
        let record = |owner, ended| OwnerWrite::Record(OwnerRecord { owner, volume: Some(volume.clone()), ended });
        assert_eq!(writer.begin(Owner::Cache { epoch }), tag(Some(epoch)));
        assert_eq!(writer.written(Err("no".to_owned())), OwnerWrite::Done(Err("no".to_owned())), "nothing is recorded");
        assert_eq!(writer.begin(Owner::Cache { epoch }), tag(Some(epoch)));
        assert_eq!(writer.written(Ok(())), record(Owner::Cache { epoch }, None));
        assert_eq!(writer.written(Ok(())), OwnerWrite::Done(Ok(())));
        assert_eq!(writer.begin(Owner::Backing), record(Owner::Backing, Some(epoch)));
        assert_eq!(writer.written(Ok(())), tag(None));
        assert_eq!(writer.written(Err("no".to_owned())), OwnerWrite::Done(Ok(())), "a tag that stays does no harm");
    }
}
