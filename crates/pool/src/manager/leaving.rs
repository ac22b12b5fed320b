//! Benefactors that operators take out: see [`surgetank_pool_core::leaving`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::id::{BenefactorId, Domain, Inode, MountId};
use surgetank_pool_core::leaving::{self, Move, Named, mark, may_go};
use surgetank_pool_core::meta::store::{Compare, Write};
use surgetank_pool_core::meta::value::{Lends, Mount};
use surgetank_pool_core::meta::{Durability, FileState, Key, Kind, Prefix, Stored, Value};
use surgetank_pool_core::placement::{Candidate, Media, Protection};
use tonic::Status as Refused;

use super::Manager;
use super::protocol::{Leaving, Reply};
use crate::benefactor::Benefactor;
use crate::chunks;
use crate::meta::Unavailable;

/// How long a benefactor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

impl Manager {
    /// A benefactor is taken out from now on, if the others have room for what it has. If it is already, nothing changes.
    pub(super) async fn take_out(&self, id: BenefactorId) -> Result<Reply, Refused> {
        let keys = [Key::Benefactor(id), Key::Lends(id), Key::Leaving(id)];
        let prefixes = [Prefix::AllGroups, Prefix::Nodes, Prefix::Mounts, Prefix::Lends, Prefix::Leaving];
        let read = self.store.read(&keys, &prefixes).await?;
        let life = match &read.keys[..] {
            [_, _, Some(_)] => return Ok(Reply::Done),
            [Some(life), Some(_), None] => life.clone(),
            [_, Some(_), None] => {
                return Err(Refused::failed_precondition(format!(
                    "benefactor {id} is just joining: say it again in a moment"
                )));
            }
            _ => return Err(lends_not(id)),
        };
        let stored: Vec<(Key, Stored)> = read.prefixes.into_iter().flatten().collect();
        let held = Held::of(id, &stored);
        let mut others = self.members.others(id);
        others.retain(|other| !held.leaving.contains(&other.place.id));
        if held.domains.is_empty() {
            return Err(Refused::failed_precondition(format!(
                "benefactor {id} cannot be taken out: no other one lends that stays: let another one join first"
            )));
        }
        if others.is_empty() {
            return Err(Refused::unavailable(
                "this manager has not heard yet from the benefactors that stay: say it again in a moment",
            ));
        }
        held.leaves(&others)
            .map_err(|why| Refused::failed_precondition(format!("benefactor {id} cannot be taken out: {why}")))?;
        let mut transaction = mark(id, &life);
        // Of two that are taken out at a time one is refused by this: what it was admitted by may not be there any more.
        let staying = held.domains.keys().map(|other| Compare::Absent(Key::Leaving(*other)));
        transaction.compares.extend(staying);
        match self.commit(transaction.compares, transaction.writes).await? {
            true => Ok(Reply::Done),
            false => Err(Refused::unavailable(format!(
                "benefactor {id} has begun another life, or another one is being taken out at this moment"
            ))),
        }
    }

    /// A benefactor stays: it joins again, in the life that it has, when it is told.
    pub(super) async fn take_back(&self, id: BenefactorId) -> Result<Reply, Refused> {
        let read = self.store.read(&[Key::Leaving(id), Key::Lends(id)], &[]).await?;
        if read.keys.iter().all(Option::is_none) {
            return Err(lends_not(id));
        }
        self.commit(Vec::<Compare>::new(), vec![Write::Delete(Key::Leaving(id))]).await?;
        Ok(Reply::Done)
    }

    pub(super) async fn leaving(&self, id: BenefactorId) -> Result<Reply, Unavailable> {
        Ok(Reply::Leaving(self.how_leaving(id).await?))
    }

    /// How far it has come that a benefactor is taken out; `None`: it is not.
    pub(super) async fn how_leaving(&self, id: BenefactorId) -> Result<Option<Leaving>, Unavailable> {
        // What it says was so before what the store says: what writers have committed meanwhile is in the store.
        let drafts = self.has_drafts(id).await;
        let read = self.store.read(&[Key::Leaving(id), Key::Lends(id)], &[Prefix::AllGroups]).await?;
        let [mark, lends] = &read.keys[..] else { return Ok(None) };
        if mark.is_none() {
            return Ok(None);
        }
        let groups = read.prefixes.iter().flatten().filter_map(|(_, stored)| match &stored.value {
            Value::Group(group) => Some(group),
            _ => None,
        });
        let named = Named::count(id, groups);
        // One that is dead has none, or has them when it returns; one whose lease has ended may only be cut off.
        let drafts = drafts && (lends.is_some() || !self.members.is_dead(id));
        let (groups, bytes) = (named.groups, named.bytes.get());
        Ok(Some(Leaving { groups, bytes, drafts, may_go: may_go(true, &named, drafts) }))
    }

    /// Whether writers may have something at a benefactor that is not committed. Once it knows that it is taken out it takes nothing more.
    async fn has_drafts(&self, id: BenefactorId) -> bool {
        let Some(member) = self.members.newest(id) else { return true };
        if !member.alive.as_ref().is_some_and(|alive| alive.taken_out) {
            return true;
        }
        match member.peer.ask::<Benefactor>(chunks::Request::Inventory, ANSWER).await {
            Ok(chunks::Reply::Inventory(inventory)) => !inventory.has.drafts.is_empty(),
            _ => true,
        }
    }
}

fn lends_not(id: BenefactorId) -> Refused {
    Refused::failed_precondition(format!(
        "no benefactor {id} lends: `surgetank pool status` shows those that do; one that is dead and never returns leaves with \
         `surgetank pool leave {id}`"
    ))
}

/// What a benefactor has that no target has yet, and others that leave already: the rest has to take all of it.
struct Held {
    moves: Vec<Move>,
    /// Mounts that have files on their way, and how these are protected.
    mounts: Vec<(String, Protection, Media)>,
    /// Domains of those that lend, but for it and others that leave.
    domains: BTreeMap<BenefactorId, Domain>,
    /// It, and the others that leave.
    leaving: BTreeSet<BenefactorId>,
}

impl Held {
    fn of(id: BenefactorId, stored: &[(Key, Stored)]) -> Self {
        let (mut mounts, mut domains, mut files) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut leaving = BTreeSet::from([id]);
        for (key, stored) in stored {
            match (key, &stored.value) {
                (Key::Leaving(other), _) => leaving.extend([*other]),
                (Key::Mount(mount), Value::Mount(of)) => drop(mounts.insert(*mount, of)),
                (Key::Lends(other), Value::Lends(Lends { domain, .. })) => drop(domains.insert(*other, *domain)),
                (Key::Node(inode), Value::Node(node)) => match node.kind {
                    // The target has it: it leaves the pool.
                    Kind::File(FileState::Drained | FileState::Evicted) => {}
                    Kind::File(_) => drop(files.insert(*inode, node.mount)),
                    _ => {}
                },
                _ => {}
            }
        }
        let media = |inode: &Inode| files.get(inode).map(|mount| protection(mounts.get(mount).copied()).1);
        let mut moves = Vec::new();
        for (key, stored) in stored {
            let (Key::Group(inode, ..), Value::Group(group)) = (key, &stored.value) else { continue };
            let Some(media) = media(inode) else { continue };
            let of = (&group.layout, Bytes::new(group.staged()), media);
            for id in &leaving {
                moves.extend(leaving::moves(*id, of, |other| domains.get(&other).copied()));
            }
        }
        let on_their_way: BTreeSet<MountId> = files.values().copied().collect();
        let of_mount = |mount: &MountId| {
            let of = mounts.get(mount).copied()?;
            let (protection, media) = protection(Some(of));
            Some((of.name.clone(), protection, media))
        };
        let mounts = on_their_way.iter().filter_map(of_mount).collect();
        domains.retain(|other, _| !leaving.contains(other));
        Self { moves, mounts, domains, leaving }
    }

    /// Whether the others can take it, in one sentence if not.
    fn leaves(&self, others: &[Candidate]) -> Result<(), String> {
        let domains: BTreeSet<Domain> = self.domains.values().copied().collect();
        for (name, protection, media) in &self.mounts {
            let has = match media {
                Media::Any => domains.len(),
                Media::Ssd => {
                    let on_ssd = others.iter().filter(|other| other.ssd.is_some()).map(|other| other.domain);
                    on_ssd.collect::<BTreeSet<Domain>>().len()
                }
            };
            if has < protection.places() as usize {
                return Err(format!(
                    "mount {name} has files on their way that need {} failure domains, and without it there are {has}: let another \
                     benefactor join first, or wait until these files are drained",
                    protection.places()
                ));
            }
        }
        leaving::admit(&self.moves, others).map_err(|why| why.to_string())
    }
}

/// How a mount's files are protected, and where.
fn protection(mount: Option<&Mount>) -> (Protection, Media) {
    match mount.map(|mount| mount.durability) {
        Some(Durability::Copies { copies, media }) => (Protection::Copies(copies.into()), media),
        Some(Durability::Parity(of)) => (Protection::Parity(of), Media::Any),
        Some(Durability::Target) | None => (Protection::Copies(1), Media::Any),
    }
}
