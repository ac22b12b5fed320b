//! What a token allows whoever asks a manager.

use std::path::Path;

use surgetank_pool_core::id::MountId;
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::store::Compare;
use surgetank_pool_core::meta::value::Mount;
use surgetank_pool_core::meta::{Key, Node, Value};
use tonic::Status as Refused;

use super::protocol::{Begin, NUMBERS, Request};
use crate::bucket::is_address;
use crate::meta::Snapshot;
use crate::planted::admission::{Bug, planted};
use crate::security::token::{Claims, Grant, Session};

/// The least right that a request needs, and what of it the token must name.
pub(super) fn check(by: &Claims, request: &Request) -> Result<(), Refused> {
    let is_allowed = match (by, request) {
        (Claims::Member, _) | (_, Request::Status | Request::Quotas) | (Claims::Mount(_), Request::Begin(_)) => true,
        (Claims::Session(by), Request::Renew(lease) | Request::Numbers(lease)) => *lease == by.lease,
        (Claims::Session(by), Request::End(session, lease)) => (*session, *lease) == (by.session, by.lease),
        (Claims::Session(by), Request::Do(operation, once)) => {
            (once.session, once.lease) == (by.session, by.lease) && is_own(by, operation)
        }
        (Claims::Session(by), Request::Reserve(reserve)) => by.writes && reserve.writer == (by.session, by.lease),
        (Claims::Session(by), Request::Lock(operation)) => is_own(by, operation),
        (Claims::Session(by), Request::Locked(session, _)) => *session == by.session,
        (
            Claims::Session(_),
            Request::Lookup(..)
            | Request::Content(_)
            | Request::Whole(_)
            | Request::ReadDir(..)
            | Request::Place(_)
            | Request::Import(..)
            | Request::Recorded(..)
            | Request::Before(..)
            | Request::HasQuota(_)
            | Request::Fetch(..),
        ) => true,
        (
            Claims::Session(_),
            Request::Join(_)
            | Request::Begin(_)
            | Request::Leave(_)
            | Request::TakeOut(_)
            | Request::TakeBack(_)
            | Request::Leaving(_)
            | Request::SetQuota(..)
            | Request::Revoke(..)
            | Request::Revoked
            | Request::Undrained,
        )
        | (Claims::Mount(_), _) => false,
    };
    if is_allowed || planted(Bug::RightsUnchecked) {
        Ok(())
    } else {
        Err(Refused::permission_denied("the token does not allow this request"))
    }
}

/// Whether an operation is asked in the name of the session itself.
fn is_own(by: &Session, operation: &Operation) -> bool {
    match operation {
        Operation::Create { writer, .. } | Operation::OpenForWriting { writer, .. } => {
            *writer == (by.session, by.lease)
        }
        Operation::Commit { session, .. }
        | Operation::Close { session, .. }
        | Operation::Prefetched { session, .. }
        | Operation::Lock { session, .. } => *session == by.session,
        _ => true,
    }
}

/// Whether a session may ask for an operation at all; of which mount its files are is found when they are read.
pub(super) fn may_do(by: &Session, operation: &Operation) -> bool {
    let keeps = |user: Option<u32>, group: Option<u32>| {
        by.owner
            .is_none_or(|owner| user.is_none_or(|user| user == owner.0) && group.is_none_or(|group| group == owner.1))
    };
    by.writes
        && match operation {
            Operation::Create { owner, fresh, .. }
            | Operation::MakeDirectory { owner, fresh, .. }
            | Operation::MakeLink { owner, fresh, .. } => {
                // Below them lie the numbers of roots.
                keeps(Some(owner.1), Some(owner.2)) && *fresh >= NUMBERS
            }
            // Who may not say whose a file is may not make what gives access to a device.
            Operation::MakeSpecial { owner, fresh, special, .. } => {
                keeps(Some(owner.1), Some(owner.2)) && *fresh >= NUMBERS && (by.owner.is_none() || !special.is_device())
            }
            Operation::SetAttributes { attributes, .. } => keeps(attributes.user, attributes.group),
            _ => true,
        }
}

/// Whether a session may have what the target alone has become the pool's: so begins every change of it, with the rights of the pool's
/// user. A session that gives everything to one user changes what is that user's.
pub(super) fn may_import(by: &Claims, node: &Node) -> bool {
    match by {
        Claims::Session(by) => by.writes && by.owner.is_none_or(|(user, _)| user == node.owner.1),
        Claims::Member | Claims::Mount(_) => true,
    }
}

/// The mount that nodes must be of, and whether numbers are believed to be new.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    pub(super) mount: MountId,
    pub(super) trusted: bool,
}

impl Within {
    pub(super) fn of(by: &Claims) -> Option<Self> {
        match by {
            Claims::Session(by) => Some(Self { mount: by.mount, trusted: by.trusted }),
            Claims::Member | Claims::Mount(_) => None,
        }
    }

    /// Whether everything that was read is the mount's.
    pub(super) fn has(&self, read: &Snapshot) -> bool {
        read.keys.iter().flatten().all(|stored| self.may_use(&stored.value))
    }

    /// Whether a value that was read may be used.
    pub(super) fn may_use(&self, value: &Value) -> bool {
        !matches!(value, Value::Node(node) if node.mount != self.mount)
    }

    /// The node that an operation makes, whose number must not be another's already.
    pub(super) fn makes(&self, operation: &Operation) -> Option<(Key, Compare)> {
        let (_, inode) = operation.makes().filter(|_| !self.trusted)?;
        let key = Key::Node(inode);
        Some((key.clone(), Compare::Absent(key)))
    }
}

/// What is answered to whom it is not allowed.
pub(super) const NOT_ALLOWED: Refusal = Refusal::NotAllowed;

/// Whether a session of this mount may begin.
pub(super) fn may_begin(grant: &Grant, begin: &Begin) -> Result<(), Refused> {
    if grant.mount.as_ref().is_some_and(|mount| *mount != begin.name) {
        let sentence = format!("the token is for mount `{}` alone", grant.mount.as_deref().unwrap_or_default());
        return Err(Refused::permission_denied(sentence));
    }
    match &begin.make {
        // Mounts of file systems are found by their targets' paths.
        Some((target, _)) if (begin.name.starts_with('/') || is_address(&begin.name)) && *target != begin.name => {
            Err(Refused::permission_denied(format!("mount `{}`: a name that is a path is its target's", begin.name)))
        }
        // As it is written: a link in it could lead elsewhere later.
        Some((target, _)) if std::fs::canonicalize(target).is_ok_and(|full| full != Path::new(target)) => {
            Err(Refused::permission_denied(format!("target `{target}`: the token wants its full path without links")))
        }
        Some((target, _)) => is_below(grant, target),
        None => Ok(()),
    }
}

/// Whether the token lets a mount in that is there.
pub(super) fn may_use(grant: &Grant, mount: &Mount) -> Result<(), Refused> {
    is_below(grant, &mount.target)
}

/// Whether whoever asks may know of a mount, and of its target's path.
pub(super) fn may_see(by: &Claims, id: MountId, mount: &Mount) -> bool {
    match by {
        Claims::Member => true,
        Claims::Session(by) => by.mount == id,
        Claims::Mount(grant) => {
            grant.mount.as_ref().is_none_or(|name| *name == mount.name) && may_use(grant, mount).is_ok()
        }
    }
}

/// The user whose token it is, if it is of one.
pub(super) fn owner(by: &Claims) -> Option<u32> {
    let owner = match by {
        Claims::Member => None,
        Claims::Session(by) => by.owner,
        Claims::Mount(grant) => grant.owner,
    };
    owner.map(|(user, _)| user)
}

/// Whether whoever asks may know what a user has: operators of all, and whose token is of one user of that one.
pub(super) fn may_see_user(by: &Claims, user: u32) -> bool {
    matches!(by, Claims::Member) || owner(by) == Some(user)
}

fn is_below(grant: &Grant, target: &str) -> Result<(), Refused> {
    let is_plain = Path::new(target).components().all(|part| part != std::path::Component::ParentDir);
    if is_plain && Path::new(target).starts_with(&grant.target) {
        return Ok(());
    }
    Err(Refused::permission_denied(format!(
        "the token is for mounts that drain to {} or below, not to {target}",
        grant.target
    )))
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::id::Inode;
    use surgetank_pool_core::meta::Durability;
    use surgetank_pool_core::placement::Media;

    use super::*;

    #[test]
    fn a_grant_reaches_its_own_target_and_mount() {
        let grant = Grant { target: "/s/run1".into(), mount: None, owner: None, writes: true, expires: None };
        let begin = |target: &str| Begin {
            name: target.to_owned(),
            make: Some((target.to_owned(), Durability::Copies { copies: 1, media: Media::Any })),
        };
        assert!(may_begin(&grant, &begin("/s/run1")).is_ok() && may_begin(&grant, &begin("/s/run1/deeper")).is_ok());
        for other in ["/s", "/s/run10", "/", "/s/run1/../run2", "s/run1"] {
            assert!(may_begin(&grant, &begin(other)).is_err(), "{other}");
        }
        let make = begin("/s/run1").make;
        assert!(may_begin(&grant, &Begin { name: "/s/run2".into(), make: make.clone() }).is_err(), "another's name");
        assert!(may_begin(&grant, &Begin { name: "scratch".into(), make }).is_ok());
        let grant = Grant { mount: Some("/s/run1/a".into()), ..grant };
        assert!(may_begin(&grant, &begin("/s/run1/a")).is_ok() && may_begin(&grant, &begin("/s/run1/b")).is_err());
    }

    #[test]
    fn a_grant_of_a_bucket_reaches_what_is_below_its_prefix() {
        let grant = Grant { target: "s3://b/run1".into(), mount: None, owner: None, writes: true, expires: None };
        let begin = |name: &str, target: &str| Begin {
            name: name.to_owned(),
            make: Some((target.to_owned(), Durability::Copies { copies: 1, media: Media::Any })),
        };
        for own in ["s3://b/run1", "s3://b/run1/deeper"] {
            assert!(may_begin(&grant, &begin(own, own)).is_ok(), "{own}");
        }
        for other in ["s3://b", "s3://b/run10", "s3://other/run1", "gs://b/run1", "s3://b/run1/../run2", "/b/run1"] {
            assert!(may_begin(&grant, &begin(other, other)).is_err(), "{other}");
        }
        assert!(may_begin(&grant, &begin("s3://b/run2", "s3://b/run1")).is_err(), "another's name");
    }

    #[test]
    fn a_mount_is_shown_to_those_who_may_use_it() {
        let mount = |name: &str| {
            let durability = Durability::Copies { copies: 1, media: Media::Any };
            Mount { name: name.to_owned(), target: name.to_owned(), durability, root: Inode(1) }
        };
        let grant = Grant { target: "/s/run1".into(), mount: None, owner: None, writes: true, expires: None };
        let seen = |by: &Claims| {
            let mounts = ["/s/run1", "/s/run1/a", "/s/run2"];
            (0..).zip(mounts).filter(|(id, name)| may_see(by, MountId(*id), &mount(name))).count()
        };
        assert_eq!(seen(&Claims::Member), 3);
        assert_eq!(seen(&Claims::Mount(grant.clone())), 2);
        assert_eq!(seen(&Claims::Mount(Grant { mount: Some("/s/run1/a".into()), ..grant })), 1);
    }
}
