//! What clients and benefactors ask, but for operations.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, MountId, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::store::{Compare, Lease, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{Lends, Mount, Times};
use surgetank_pool_core::meta::{Durability, FileState, Group, Key, Kind, Name, Node, Prefix, Stored, Value};
use surgetank_pool_core::placement::{COPIES_MAX, Media};
use tonic::Status as Refused;

use super::commits::NotDone;
use super::members::Member;
use super::protocol::{
    Begin, Begun, Content, Ended, Integrity, MountStatus, Once, Place, QuotaReport, Reply, State, Status,
};
use super::rights::{self, NOT_ALLOWED, Within};
use super::{Manager, objects, quotas, room, to_the_end, troubles, unique};
use crate::bucket;
use crate::meta::{Snapshot, Unavailable};
use crate::security::token::{Claims, Grant, Session, Ticket};

/// What the pool's status is made of.
pub(super) const OF_STATUS: [Prefix; 6] =
    [Prefix::AllGroups, Prefix::Lends, Prefix::Nodes, Prefix::Mounts, Prefix::AllWriters, Prefix::Quotas];

impl Manager {
    /// A benefactor joins. In a new life its former key ends in a transaction of its own: that revision is the incarnation, and whoever
    /// compares the key's creation sees that it is another. One that an operator takes out lends what it has, and has no such key: no commit
    /// names it.
    pub(super) async fn join(&self, mut lends: Lends) -> Result<Reply, Unavailable> {
        let id = lends.place.id;
        let (key, of_lends, mark) = (Key::Benefactor(id), Key::Lends(id), Key::Leaving(id));
        let mut read = self.store.read(&[key.clone(), of_lends.clone(), mark.clone()], &[]).await?.keys.into_iter();
        let mut next = || read.next().flatten();
        let (present, lent, leaving) = (next(), next(), next());
        let fresh = lends.place.incarnation == Incarnation(0);
        let is_another = |stored: &Stored| match &stored.value {
            Value::Benefactor(place) | Value::Lends(Lends { place, .. }) => *place != lends.place,
            _ => false,
        };
        if !fresh && [&present, &lent].into_iter().flatten().any(is_another) {
            return Ok(Reply::Replaced);
        }
        let time = self.config.benefactor;
        let lease = self.store.grant(time).await?;
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if !fresh && present.is_some() {
            // The key is still there, though the lease that this life knew has ended: somebody joins twice at a time.
            return Err(Unavailable(format!("benefactor {id} is joining already")));
        }
        if fresh {
            // A copy of it may come late, and does not take away what was put since.
            let former = present.map(|stored| Compare::Modified(key.clone(), stored.modified));
            let compares = vec![former.unwrap_or_else(|| Compare::Absent(key.clone()))];
            let transaction = Transaction { compares, writes: vec![Write::Delete(key.clone())] };
            match self.store.commit(&transaction).await {
                Ok(Outcome::Committed(revision)) => lends.place.incarnation = Incarnation(revision.0),
                _ => return Err(Unavailable(format!("benefactor {id} is joining elsewhere"))),
            }
        }
        let incarnation = lends.place.incarnation;
        let mut writes = vec![
            Write::PutLeased(of_lends.clone(), Value::Lends(lends.clone()), lease),
            Write::Put(Key::Record(id), Value::Lends(lends.clone())),
        ];
        let mut compares = vec![Compare::Absent(key.clone())];
        match leaving {
            None => {
                compares.push(Compare::Absent(mark));
                writes.push(Write::PutLeased(key, Value::Benefactor(lends.place), lease));
            }
            // Of two that join at a time one is refused by this.
            Some(leaving) => {
                compares.push(Compare::Modified(mark, leaving.modified));
                compares.push(
                    lent.map_or(Compare::Absent(of_lends.clone()), |lent| Compare::Modified(of_lends, lent.modified)),
                );
            }
        }
        match self.store.commit(&Transaction { compares, writes }).await {
            Ok(Outcome::Committed(_)) => Ok(Reply::Joined { lease, incarnation, millis, pool: self.pool }),
            _ => Err(Unavailable(format!("benefactor {id} is joining elsewhere"))),
        }
    }

    /// A dead benefactor is expected no longer.
    pub(super) async fn leave(&self, id: BenefactorId) -> Result<Reply, Refused> {
        let (lends, record) = (Key::Lends(id), Key::Record(id));
        let read = self.store.read(&[lends.clone(), record.clone()], &[]).await?;
        match &read.keys[..] {
            [Some(_), _] => Err(Refused::failed_precondition(format!(
                "benefactor {id} is alive: end its process first, once nothing is left to drain"
            ))),
            [None, Some(_)] => {
                let writes = vec![Write::Delete(record), Write::Delete(Key::Leaving(id))];
                let left = self.commit(vec![Compare::Absent(lends)], writes).await;
                match left? {
                    true => Ok(Reply::Done),
                    false => Err(Refused::failed_precondition(format!("benefactor {id} has just joined again"))),
                }
            }
            _ => Err(Refused::failed_precondition(format!(
                "no benefactor {id} is expected: `surgetank pool status` shows those that are"
            ))),
        }
    }

    /// A session begins; its mount is made if it is not there.
    pub(super) async fn begin(&self, by: &Claims, begin: Begin) -> Result<Reply, Refused> {
        let grant = match by {
            Claims::Mount(grant) => Some(grant),
            Claims::Member | Claims::Session(_) => None,
        };
        grant.map_or(Ok(()), |grant| rights::may_begin(grant, &begin))?;
        let (mount, of) = self.mount(&begin, grant).await?;
        self.begun.notify_one();
        grant.map_or(Ok(()), |grant| rights::may_use(grant, &of))?;
        let time = self.config.session;
        let lease = self.store.grant(time).await?;
        let begun = unique(&*self.store, lease).await?;
        let session = SessionId(begun.map_err(|ended| Refused::unavailable(ended.to_string()))?.0);
        let writes = vec![Write::PutLeased(Key::Session(session), Value::Session(session), lease)];
        if !self.commit(vec![Compare::Absent(Key::Session(session))], writes).await? {
            return Err(Refused::unavailable("the session did not begin"));
        }
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let token = self.credentials.key().token(&Claims::Session(Session {
            session,
            lease,
            mount,
            owner: grant.and_then(|grant| grant.owner),
            writes: grant.is_none_or(|grant| grant.writes),
            trusted: grant.is_none(),
            expires: grant.and_then(|grant| grant.expires),
            of: grant.map(|grant| self.credentials.key().token(&Claims::Mount(grant.clone())).number()),
        }));
        Ok(Reply::Begun(Begun { session, lease, millis, mount, of, token }))
    }

    /// A mount by its name.
    async fn mount(&self, begin: &Begin, grant: Option<&Grant>) -> Result<(MountId, Mount), Refused> {
        if let Some((target, durability)) = &begin.make {
            match durability {
                Durability::Copies { copies, .. } if *copies == 0 || u32::from(*copies) > COPIES_MAX => {
                    let sentence = format!("copies = {copies}: a chunk has 1 to {COPIES_MAX} copies");
                    return Err(Refused::invalid_argument(sentence));
                }
                Durability::Target => {
                    let sentence =
                        "durability = target: no sync waits for the target yet; choose a number of copies, or parity";
                    return Err(Refused::invalid_argument(sentence));
                }
                Durability::Copies { .. } | Durability::Parity(_) => {}
            }
            let path = std::path::Path::new(target);
            if !(bucket::is_address(target) || path.is_absolute() && path.is_dir()) {
                let sentence =
                    format!("target `{target}` is no directory that this manager sees: make it, and name it in full");
                return Err(Refused::invalid_argument(sentence));
            }
        }
        loop {
            let read = self.store.read(&[], &[Prefix::Mounts]).await;
            let read = read?;
            let mounts: Vec<(MountId, Mount)> = read.prefixes.into_iter().flatten().filter_map(mount).collect();
            if let Some((id, mount)) = mounts.iter().find(|(_, mount)| mount.name == begin.name) {
                if let Some((target, durability)) = &begin.make
                    && (*target != mount.target || *durability != mount.durability)
                {
                    let sentence = format!(
                        "mount `{}` drains to {} with {}: begin it so, or choose another name",
                        mount.name,
                        mount.target,
                        text(mount.durability)
                    );
                    return Err(Refused::failed_precondition(sentence));
                }
                return Ok((*id, mount.clone()));
            }
            let Some((target, durability)) = begin.make.clone() else {
                let sentence = format!("there is no mount `{}`: begin it with a target first", begin.name);
                return Err(Refused::failed_precondition(sentence));
            };
            if bucket::is_address(&target) {
                self.is_usable(&target).await?;
            }
            // Numbers of blocks begin far above those of mounts, so that a root has its mount's.
            let id = MountId(mounts.iter().map(|(id, _)| id.0).max().unwrap_or(0) + 1);
            let root = Inode(id.0.into());
            let made = Mount { name: begin.name.clone(), target, durability, root };
            let times = Times::new(super::commits::now());
            let owner = of_target(&made.target, grant)
                .map_err(|error| Refused::unavailable(format!("target `{}`: {error}", made.target)))?;
            let node = Node { times, ..Node::new(Kind::Directory, id, None, owner) };
            let compares = vec![Compare::Absent(Key::Mount(id)), Compare::Absent(Key::Node(root))];
            let writes =
                vec![Write::Put(Key::Mount(id), Value::Mount(made)), Write::Put(Key::Node(root), Value::Node(node))];
            // Somebody may make one meanwhile: then it is read again.
            self.commit(compares, writes).await?;
        }
    }

    /// A session ends, and what it has open with it.
    pub(super) async fn end(&self, session: SessionId, lease: Lease) -> Result<Reply, Unavailable> {
        let key = Key::Session(session);
        let read = self.store.read(std::slice::from_ref(&key), &[]).await?;
        if read.keys.first().is_some_and(Option::is_some) {
            self.store.end(lease).await?;
        }
        Ok(Reply::Done)
    }

    /// What a file contains, at one revision.
    pub(super) async fn content(&self, inode: Inode, by: &Claims) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
        if Within::of(by).is_some_and(|within| !within.has(&read)) {
            return Ok(Reply::Refused(NOT_ALLOWED));
        }
        let ticket = match by {
            Claims::Session(by) => self.credentials.key().ticket(by.session, inode),
            Claims::Member | Claims::Mount(_) => Ticket::default(),
        };
        let [Some(Value::Node(node))] = &values(&read)[..] else { return Ok(Reply::Refused(Refusal::NotFound)) };
        let node = node.clone();
        let groups = groups(read.prefixes.into_iter().flatten(), node.version);
        let places = groups.iter().flat_map(|(_, _, group)| group.layout.places()).map(|place| place.id);
        let addresses = self.members.addresses(places);
        Ok(Reply::Content(Content { node, groups, addresses, ticket }))
    }

    pub(super) fn place(&self, place: &Place) -> Reply {
        self.members.place(place)
    }

    /// An operation that clients may ask for.
    pub(super) async fn act(self: &Arc<Self>, by: &Claims, operation: Operation, once: Once) -> Result<Reply, Refused> {
        match &operation {
            Operation::Create { .. }
            | Operation::OpenForWriting { .. }
            | Operation::MakeDirectory { .. }
            | Operation::MakeLink { .. }
            | Operation::MakeSpecial { .. }
            | Operation::SetAttributes { .. }
            | Operation::Commit { .. }
            | Operation::Close { .. }
            | Operation::Prefetched { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. } => {}
            Operation::WriterLost { .. }
            | Operation::Published { .. }
            | Operation::Evict { .. }
            | Operation::DrainedEarly { .. }
            | Operation::Relocate { .. }
            | Operation::RelocateColumns { .. }
            | Operation::Lock { .. }
            | Operation::Reserve { .. }
            | Operation::Import { .. }
            | Operation::Forget { .. } => {
                return Err(Refused::permission_denied("clients do not ask for this operation"));
            }
        }
        if matches!(by, Claims::Session(by) if !rights::may_do(by, &operation)) {
            return Ok(Reply::Ended(Ended::Refused(NOT_ALLOWED)));
        }
        if let Claims::Session(by) = by {
            let is_none = matches!(
                &operation,
                Operation::MakeLink { .. } | Operation::MakeSpecial { .. } | Operation::Link { .. }
            ) || named(&operation).is_some_and(|(_, name)| !bucket::is_name(name.bytes()));
            let aside = named(&operation).filter(|(_, name)| name.bytes() == super::ASIDE.as_bytes());
            if is_none || aside.is_some() {
                let root = self.bucket_root(by.mount).await;
                let root = root?;
                // As on any file system that has no such files or names; and what the pool has there itself is nobody's.
                if root.is_some_and(|root| is_none || aside.is_some_and(|(directory, _)| *directory == root)) {
                    return Ok(Reply::Ended(Ended::Refused(NOT_ALLOWED)));
                }
            }
        }
        // What was sent before may be under way.
        if room::grows(&operation)
            && !once.again
            && let Some(why) = self.room.refusal()
        {
            return Ok(Reply::NoRoom(why));
        }
        self.perform(by, operation, once).await.map(Reply::Ended).map_err(|error| match error {
            NotDone::Unavailable(error) => error.into(),
            // Another manager would say the same.
            too_large => Refused::failed_precondition(too_large.to_string()),
        })
    }

    async fn perform(self: &Arc<Self>, by: &Claims, operation: Operation, once: Once) -> Result<Ended, NotDone> {
        // What is there already is what a program is told of, also one that has no room.
        if let Some(refusal) = self.look_at_target(by, &operation).await? {
            return self.commits.refuse(once, refusal).await;
        }
        let given = match self.give_file(&operation, once).await? {
            Ok(given) => given,
            Err(ended) => return Ok(ended),
        };
        let within = Within::of(by);
        let Some(given) = given else { return self.commits.perform_within(&operation, Some(once), within).await };
        let manager = Arc::clone(self);
        let done = to_the_end(async move {
            let done = manager.commits.perform_within(&operation, Some(once), within).await;
            drop(given);
            Ok(done)
        });
        done.await?
    }

    /// The root of a mount whose target is a bucket.
    async fn bucket_root(&self, mount: MountId) -> Result<Option<Inode>, Unavailable> {
        let read = self.store.read(&[Key::Mount(mount)], &[]).await?;
        Ok(match &values(&read)[..] {
            [Some(Value::Mount(mount))] if bucket::is_address(&mount.target) => Some(mount.root),
            _ => None,
        })
    }

    /// Refuses a bucket that cannot be read, or is another pool's.
    async fn is_usable(&self, target: &str) -> Result<(), Refused> {
        let usable = match self.bucket(target) {
            Ok(Some(bucket)) => objects::is_usable(&bucket, self.pool).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        usable.map_err(|error| {
            let sentence = troubles::with_remedy(&format!("target `{target}`: {error}"), std::path::Path::new(target));
            match error.kind() {
                ErrorKind::InvalidInput
                | ErrorKind::InvalidData
                | ErrorKind::PermissionDenied
                | ErrorKind::Unsupported => Refused::invalid_argument(sentence),
                // The store may answer soon.
                _ => Refused::unavailable(sentence),
            }
        })
    }

    /// Benefactors that are to end ask this again and again: it reads files, and not what they consist of.
    pub(super) async fn undrained(&self) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[], &[Prefix::Nodes]).await?;
        let is_undrained = |stored: &Stored| match &stored.value {
            Value::Node(Node { kind: Kind::File(state), torn, .. }) => match state {
                FileState::Created => !torn,
                // Also a torn one: what was committed is to be drained.
                FileState::Replicated => true,
                FileState::Drained | FileState::Evicted | FileState::Failed | FileState::Conflict => false,
            },
            _ => false,
        };
        let nodes = read.prefixes.iter().flatten();
        Ok(Reply::Undrained(nodes.filter(|(_, stored)| is_undrained(stored)).count() as u64))
    }

    pub(super) async fn status(&self, by: &Claims) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[], &OF_STATUS).await?;
        Ok(Reply::Status(self.status_of(by, read).await?))
    }

    /// The status, by what was read of [`OF_STATUS`], and maybe of more behind these.
    pub(super) async fn status_of(&self, by: &Claims, read: Snapshot) -> Result<Status, Unavailable> {
        let quotas = match &read.prefixes[..] {
            [_, _, nodes, _, writers, quotas, ..] => quotas::report(by, quotas, nodes, writers),
            _ => QuotaReport::default(),
        };
        let (of_copies, of_files): (Vec<_>, Vec<_>) = read
            .prefixes
            .into_iter()
            .flatten()
            .partition(|(_, stored)| matches!(stored.value, Value::Group(_) | Value::Lends(_)));
        let missing = self.missing(&of_copies);
        let drain_bytes_s = self.rate.bytes_s();
        let store = self.room.status();
        let mut status = Status { files: vec![0; 8], drain_bytes_s, store, quotas, ..Status::default() };
        let (mut mounts, mut prefixes) = (Vec::new(), Vec::new());
        for (key, stored) in of_files {
            match (key, stored.value) {
                (Key::Node(inode), Value::Node(Node { kind: Kind::File(state), torn, .. })) => {
                    let at = match state {
                        FileState::Created | FileState::Drained | FileState::Evicted if torn => 6,
                        FileState::Created => 0,
                        FileState::Replicated if missing.contains(&inode) => 7,
                        // Also a torn one: what was committed is to be drained.
                        FileState::Replicated => 1,
                        FileState::Drained => 2,
                        FileState::Evicted => 3,
                        FileState::Failed => 4,
                        FileState::Conflict => 5,
                    };
                    status.files[at] += 1;
                }
                (Key::Mount(id), Value::Mount(mount)) => {
                    mounts.push((id, mount));
                    prefixes.push(Prefix::Journal(id));
                }
                _ => {}
            }
        }
        let members = self.members.all();
        let marked = self.members.leaving();
        for id in &marked {
            status.leaving.extend(self.how_leaving(*id).await?.map(|how| (*id, how)));
        }
        let mut taken: BTreeMap<MountId, (u64, u64)> = BTreeMap::new();
        for (mount, memory, ssd) in members.iter().filter_map(|member| member.alive.as_ref()).flat_map(|of| &of.taken) {
            let of = taken.entry(*mount).or_default();
            *of = (of.0 + memory, of.1 + ssd);
        }
        let journals = self.store.read(&[], &prefixes).await?;
        for ((id, mount), entries) in mounts.into_iter().zip(journals.prefixes) {
            let (journal, standstill) = (entries.len() as u64, self.troubles.standstill(id));
            status.journal += journal;
            if rights::may_see(by, id, &mount) {
                let Mount { name, target, .. } = mount;
                let (memory, ssd) = taken.get(&id).copied().unwrap_or_default();
                status.mounts.push(MountStatus { name, target, journal, memory, ssd, standstill });
            }
        }
        for Member { lends, alive, .. } in members {
            let (free, of) = alive.as_ref().map_or((0, 0), |alive| alive.ssd);
            let is_leaving = marked.contains(&lends.place.id) || alive.as_ref().is_some_and(|alive| alive.leaving);
            let state = if is_leaving { State::Leaving } else { State::Joined };
            if let Some(crate::chunks::Alive { damaged, scrubbed, log, .. }) = alive {
                status.integrity.push((lends.place.id, Integrity { damaged, scrubbed }));
                status.logs.push((lends.place.id, log));
            }
            status.states.push((lends.clone(), state, of.saturating_sub(free)));
            status.benefactors.push((lends, alive.map_or(0, |alive| alive.credits)));
        }
        status.states.extend(self.members.expected().into_iter().map(|lends| (lends, State::Dead, 0)));
        Ok(status)
    }
}

fn mount((key, stored): (Key, Stored)) -> Option<(MountId, Mount)> {
    match (key, stored.value) {
        (Key::Mount(id), Value::Mount(mount)) => Some((id, mount)),
        _ => None,
    }
}

/// A durability as users write it.
fn text(durability: Durability) -> String {
    match durability {
        Durability::Copies { copies, media: Media::Any } => format!("copies={copies}"),
        Durability::Copies { copies, media: Media::Ssd } => format!("copies={copies},media=ssd"),
        Durability::Target => "target".to_owned(),
        Durability::Parity(of) => format!("parity={of}"),
    }
}

pub(super) fn values(read: &Snapshot) -> Vec<Option<&Value>> {
    read.keys.iter().map(|stored| stored.as_ref().map(|stored| &stored.value)).collect()
}

/// The groups of a version: of each the newest that is not newer.
pub(crate) fn groups(of: impl Iterator<Item = (Key, Stored)>, version: Version) -> Vec<(u32, Version, Group)> {
    let mut groups: Vec<(u32, Version, Group)> = Vec::new();
    for (key, stored) in of {
        let (Key::Group(_, index, at), Value::Group(group)) = (key, stored.value) else { continue };
        if at > version {
            continue;
        }
        // They come in the order of their numbers and versions.
        groups.retain(|(other, ..)| *other != index);
        groups.push((index, at, group));
    }
    groups
}

/// The name that there is afterwards, and may not have been before.
fn named(operation: &Operation) -> Option<&(Inode, Name)> {
    match operation {
        Operation::Rename { to, .. } => Some(to),
        _ => operation.makes().map(|(at, _)| at),
    }
}

/// Mode and owner of a mount's root. Whose the target is, that one's the root is, and nobody else writes there unless it is said of the mount:
/// at the target that may be kept from them by what lies above it. Where there is an access list, its mask stands in place of the group's rights.
fn of_target(target: &str, grant: Option<&Grant>) -> std::io::Result<(u32, u32, u32)> {
    if bucket::is_address(target) {
        // It is nobody's: the mount is its user's, or the pool's.
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (user, group) = grant.and_then(|grant| grant.owner).unwrap_or(own);
        return Ok((0o755, user, group));
    }
    let of = std::fs::metadata(target)?;
    let has_list = rustix::fs::getxattr(target, "system.posix_acl_access", &mut [0_u8; 0]).is_ok();
    let most = if has_list { 0o705 } else { 0o755 };
    Ok((of.mode() & most, of.uid(), of.gid()))
}
