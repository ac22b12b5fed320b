//! Where a device goes on after the daemon ended, however it ended. Pure: records in, decision out.

use surgetank_cache::{Epoch, Owner};
use surgetank_model::Bytes;
use surgetank_model::volume::{VolumeDescription, VolumeId};
use surgetank_policy::ResumeAt;

use crate::owner::OwnerRecord;
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, RentalStage, Slot};

/// What the provider says of the volume that the records name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The records name none.
    Unnamed,
    /// It is there.
    Found(VolumeDescription),
    /// There is no such volume.
    Missing,
    /// The provider did not answer; the text is for people.
    Unknown(String),
}

/// How to start a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Nothing is rented.
    Idle,
    /// The newest data is on the backing volume; the caching volume is deleted.
    Delete {
        /// Where the controller starts.
        at: ResumeAt,
    },
    /// The newest data is partly on this volume: read it back before anything is served.
    Recover {
        /// Which volume.
        volume: VolumeId,
        /// Which attachment.
        epoch: Epoch,
        /// What is known of the rental.
        rental: RentalRecord,
    },
    /// Data is lost and stays so until the user accepts it or overwrites it.
    Lost {
        /// Which attachment.
        epoch: Epoch,
        /// Offset and length in bytes.
        ranges: Vec<(u64, u64)>,
        /// The volume that they may still be read back from, if one is known.
        rental: Option<Box<RentalRecord>>,
    },
    /// Serving the device would serve stale data.
    Refuse {
        /// One sentence with the remedy.
        reason: String,
    },
}

/// Decides. The owner record has the last word on where the data is, the journal on what is rented.
#[must_use]
pub fn decide(device: &str, rental: Option<&RentalRecord>, owner: &OwnerRecord, lookup: &Lookup) -> Resume {
    match &owner.owner {
        Owner::Backing => match rental {
            None => Resume::Idle,
            Some(rental) => Resume::Delete { at: delete_from(rental) },
        },
        Owner::Lost { epoch, ranges } => {
            let volume = owner.volume.as_ref().or_else(|| rental.and_then(|rental| rental.volume.as_ref()));
            let rental = volume.map(|volume| Box::new(in_use(rental, volume, *epoch, lookup)));
            Resume::Lost { epoch: *epoch, ranges: ranges.clone(), rental }
        }
        Owner::Cache { .. } if planted(Bug::RecoveryForgotten) && rental.is_some() => {
            rental.map_or(Resume::Idle, |rental| Resume::Delete { at: delete_from(rental) })
        }
        Owner::Cache { epoch } => recover(device, rental, owner, *epoch, lookup),
    }
}

fn delete_from(rental: &RentalRecord) -> ResumeAt {
    let size = rental.size_at_most();
    match rental.stage {
        RentalStage::Creating | RentalStage::Created | RentalStage::Deleting => ResumeAt::Created { size },
        RentalStage::Attaching
        | RentalStage::Attached
        | RentalStage::Adopting
        | RentalStage::Adopted
        | RentalStage::Released
        | RentalStage::Detaching => ResumeAt::Attached { size },
    }
}

fn recover(device: &str, rental: Option<&RentalRecord>, owner: &OwnerRecord, epoch: Epoch, lookup: &Lookup) -> Resume {
    let remedy = format!(
        "look for it at the provider and attach it again, or discard its data with `surgetank detach {device} --accept-loss`"
    );
    let Some(volume) = &owner.volume else {
        let reason = format!(
            "device {device} has its newest data on a caching volume that its owner record does not name: {remedy}"
        );
        return Resume::Refuse { reason };
    };
    match lookup {
        Lookup::Missing | Lookup::Unnamed => {
            let VolumeId(id) = volume;
            let reason =
                format!("device {device} has its newest data on the caching volume {id}, which is missing: {remedy}");
            Resume::Refuse { reason }
        }
        Lookup::Found(_) | Lookup::Unknown(_) => {
            let rental = in_use(rental, volume, epoch, lookup);
            Resume::Recover { volume: volume.clone(), epoch, rental }
        }
    }
}

/// The rental of the volume that the owner record names.
fn in_use(rental: Option<&RentalRecord>, volume: &VolumeId, epoch: Epoch, lookup: &Lookup) -> RentalRecord {
    let rental = rental.filter(|rental| rental.volume.as_ref() == Some(volume)).cloned();
    let rental = rental.unwrap_or_else(|| adopted(lookup, volume));
    let epoch = Some(epoch.to_string());
    RentalRecord { stage: RentalStage::Adopted, disposable: false, discarded: None, missing: None, epoch, ..rental }
}

/// What can be said of a rental of which the journal knows nothing.
fn adopted(lookup: &Lookup, volume: &VolumeId) -> RentalRecord {
    let (size, volume_type) = match lookup {
        Lookup::Found(description) => (description.size, description.volume_type.clone()),
        _ => (Bytes::ZERO, String::new()),
    };
    RentalRecord {
        slot: Slot::CACHE,
        token: String::new(),
        volume_type,
        size,
        growing_to: None,
        started_unix_ms: 0,
        stage: RentalStage::Adopted,
        volume: Some(volume.clone()),
        epoch: None,
        disposable: false,
        discarded: None,
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_model::volume::{Tags, VolumeState};

    use super::*;

    fn any_stage() -> impl Strategy<Value = RentalStage> {
        prop::sample::select(vec![
            RentalStage::Creating,
            RentalStage::Created,
            RentalStage::Attaching,
            RentalStage::Attached,
            RentalStage::Adopting,
            RentalStage::Adopted,
            RentalStage::Released,
            RentalStage::Detaching,
            RentalStage::Deleting,
        ])
    }

    fn any_rental() -> impl Strategy<Value = RentalRecord> {
        (any_stage(), prop::option::of(prop::sample::select(vec!["a", "b"])), any::<bool>()).prop_map(
            |(stage, volume, disposable)| RentalRecord {
                slot: Slot::CACHE,
                token: "t".to_owned(),
                volume_type: "fast".to_owned(),
                size: Bytes::from_gib(1),
                growing_to: None,
                started_unix_ms: 0,
                stage,
                volume: volume.map(|id| VolumeId(id.to_owned())),
                epoch: None,
                disposable,
                discarded: None,
                missing: None,
            },
        )
    }

    fn any_owner() -> impl Strategy<Value = OwnerRecord> {
        let owner = prop_oneof![
            Just(Owner::Backing),
            Just(Owner::Cache { epoch: Epoch([7; 16]) }),
            Just(Owner::Lost { epoch: Epoch([7; 16]), ranges: vec![(0, 4096)] }),
        ];
        let volume = prop::option::of(prop::sample::select(vec!["a", "b"]));
        (owner, volume).prop_map(|(owner, volume)| OwnerRecord {
            owner,
            volume: volume.map(|id| VolumeId(id.to_owned())),
            ended: None,
        })
    }

    fn found(id: &str) -> Lookup {
        Lookup::Found(VolumeDescription {
            id: VolumeId(id.to_owned()),
            state: VolumeState::Attached,
            volume_type: "fast".to_owned(),
            size: Bytes::from_gib(1),
            tags: Tags::new(),
            device: None,
            disk: None,
            members: Vec::new(),
        })
    }

    proptest! {
        #[test]
        fn data_on_a_cache_is_recovered_or_the_device_refused(
            rental in prop::option::of(any_rental()),
            owner in any_owner(),
            lookup in prop::sample::select(vec![0, 1, 2, 3]),
        ) {
            let lookup = match lookup {
                0 => Lookup::Unnamed,
                1 => Lookup::Missing,
                2 => Lookup::Unknown("down".to_owned()),
                _ => found("a"),
            };
            let journaled = rental.as_ref().and_then(|rental| rental.volume.clone());
            let resume = decide("data", rental.as_ref(), &owner, &lookup);
            match owner.owner {
                Owner::Cache { epoch: there } => match resume {
                    Resume::Recover { volume, epoch, rental } => {
                        prop_assert_eq!(Some(&volume), owner.volume.as_ref());
                        prop_assert_eq!(epoch, there);
                        prop_assert_eq!(rental.volume, Some(volume));
                        prop_assert!(!rental.disposable, "a volume with data is never disposable");
                    }
                    Resume::Refuse { reason } => prop_assert!(reason.contains("--accept-loss")),
                    other => prop_assert!(false, "{:?}", other),
                },
                Owner::Lost { .. } => match resume {
                    Resume::Lost { rental, .. } => {
                        let kept = rental.map(|rental| (rental.volume, rental.disposable));
                        prop_assert_eq!(kept, owner.volume.or(journaled).map(|volume| (Some(volume), false)), "it is kept");
                    }
                    other => prop_assert!(false, "{:?}", other),
                },
                Owner::Backing => match resume {
                    Resume::Idle => prop_assert!(rental.is_none()),
                    Resume::Delete { at } => {
                        prop_assert!(rental.is_some(), "what is rented is deleted");
                        // What the engine may still hold is not even considered: the owner says it holds nothing.
                        let adopted = matches!(at, ResumeAt::Adopted { .. });
                        prop_assert!(!adopted);
                    }
                    other => prop_assert!(false, "{:?}", other),
                },
            }
        }
    }
}
