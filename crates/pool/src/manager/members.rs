//! Which benefactors there are, and how they are: from the store's leases and from probes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::id::{BenefactorId, Incarnation};
use surgetank_pool_core::membership::{self, Membership, State};
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::meta::{Key, Prefix, Value};
use surgetank_pool_core::placement::{self, Candidate, Lent};

use super::Manager;
use super::protocol::{Place, Reply};
use crate::benefactor::Benefactor;
use crate::chunks::{self, Alive, CHUNK};
use crate::rpc::Peer;

/// What placement takes for the speed of memory, and of its drain, until both are measured. Equal ones among benefactors are placed by
/// their room.
const RATES: (Bandwidth, Bandwidth) = (Bandwidth::from_mib_s(1000), Bandwidth::from_mib_s(100));

/// A benefactor in its newest life.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) lends: Lends,
    pub(super) peer: Peer,
    /// What the last probe said.
    pub(super) alive: Option<Alive>,
}

struct Known {
    members: BTreeMap<BenefactorId, Member>,
    membership: Membership,
    since: tokio::time::Instant,
}

/// See the module.
pub(super) struct Members(Mutex<Known>);

impl Default for Members {
    fn default() -> Self {
        let membership = Membership::new(membership::Config::default());
        Self(Mutex::new(Known { members: BTreeMap::new(), membership, since: tokio::time::Instant::now() }))
    }
}

impl Known {
    fn now(&self) -> Instant {
        Instant::ZERO + self.since.elapsed()
    }
}

impl Members {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody who is not dead, as far as is known.
    pub(super) fn all(&self) -> Vec<Member> {
        self.known().members.values().cloned().collect()
    }

    /// A benefactor in this life, if that is its newest.
    pub(super) fn get(&self, place: placement::Place) -> Option<Member> {
        self.known().members.get(&place.id).filter(|member| member.lends.place == place).cloned()
    }

    /// Whether what this life had is lost: a newer one has begun, or the benefactor is dead.
    pub(super) fn is_over(&self, place: placement::Place) -> bool {
        let known = self.known();
        match known.membership.state(place.id) {
            Some(State::Dead) => true,
            Some(_) => known.membership.incarnation(place.id).is_some_and(|newest| newest > place.incarnation),
            None => false,
        }
    }

    /// A layout names a benefactor of which this manager has never heard: it may have died before this manager began. It counts as one
    /// whose lease has just been lost.
    pub(super) fn suspect(&self, place: placement::Place) {
        let mut known = self.known();
        if known.membership.state(place.id).is_none() {
            let now = known.now();
            known.membership.leased(now, place.id, place.incarnation);
            known.membership.lease_lost(now, place.id, place.incarnation);
        }
    }

    /// Where they are reached.
    pub(super) fn addresses(&self, of: impl IntoIterator<Item = BenefactorId>) -> Vec<(BenefactorId, String)> {
        let known = self.known();
        let of: BTreeSet<BenefactorId> = of.into_iter().collect();
        of.into_iter().filter_map(|id| Some((id, known.members.get(&id)?.lends.address.clone()))).collect()
    }

    /// Where chunks are to go.
    pub(super) fn place(&self, place: &Place) -> Reply {
        let known = self.known();
        let domain = |id: &BenefactorId| known.members.get(id).map(|member| member.lends.domain);
        let apart: BTreeSet<_> = place.apart.iter().filter_map(domain).collect();
        let candidates: Vec<Candidate> = known
            .members
            .values()
            .filter(|member| !place.without.contains(&member.lends.place) && !apart.contains(&member.lends.domain))
            .filter_map(|member| {
                let alive = member.alive.filter(|alive| alive.incarnation == member.lends.place.incarnation)?;
                let of = Bytes::new(alive.of * CHUNK);
                let lent = Lent { free: Bytes::new(alive.credits * CHUNK), of, rate: RATES.0, drain: Some(RATES.1) };
                let (place, domain) = (member.lends.place, member.lends.domain);
                Some(Candidate { place, domain, memory: Some(lent), ssd: None })
            })
            .collect();
        let request = placement::Request {
            bytes: Bytes::new(place.bytes),
            copies: place.copies,
            media: place.media,
            width_max: u32::MAX,
            spread: place.spread,
        };
        match placement::place(&request, &candidates) {
            Ok(layout) => {
                drop(known);
                let addresses = self.addresses(layout.places().into_iter().map(|place| place.id));
                Reply::Placed(layout, addresses)
            }
            Err(error) => Reply::NoRoom(error.to_string()),
        }
    }
}

/// Follows leases and probes for ever.
pub(super) async fn watch(manager: &Arc<Manager>) {
    loop {
        if let Ok(read) = manager.store.read(&[], &[Prefix::Lends]).await {
            let lends = read.prefixes.into_iter().flatten().filter_map(|(key, stored)| match (key, stored.value) {
                (Key::Lends(_), Value::Lends(lends)) => Some(lends),
                _ => None,
            });
            leased(&manager.members, lends.collect());
        }
        probe(manager).await;
        tokio::time::sleep(manager.config.probe).await;
    }
}

/// The store has these leases, and no others.
fn leased(members: &Members, leased: Vec<Lends>) {
    let mut known = members.known();
    let now = known.now();
    let there: BTreeSet<placement::Place> = leased.iter().map(|lends| lends.place).collect();
    for lends in leased {
        known.membership.leased(now, lends.place.id, lends.place.incarnation);
        let is_known = known.members.get(&lends.place.id).is_some_and(|member| member.lends == lends);
        match Peer::new(&lends.address) {
            Ok(_) if is_known => {}
            Ok(peer) => drop(known.members.insert(lends.place.id, Member { lends, peer, alive: None })),
            Err(error) => tracing::error!("benefactor {}: {error}", lends.place.id),
        }
    }
    let gone: Vec<placement::Place> =
        known.members.values().map(|member| member.lends.place).filter(|place| !there.contains(place)).collect();
    for place in gone {
        known.membership.lease_lost(now, place.id, place.incarnation);
    }
    known.membership.tick(now);
    while let Some(change) = known.membership.next_change() {
        tracing::info!("{change:?}");
        if let membership::Change::Died(id, Incarnation(_)) = change {
            known.members.remove(&id);
        }
    }
}

/// Asks everybody how it is: placement needs that of all, and membership of those without a lease.
async fn probe(manager: &Arc<Manager>) {
    let due: BTreeSet<BenefactorId> = {
        let mut known = manager.members.known();
        let now = known.now();
        std::iter::from_fn(|| known.membership.next_probe(now)).map(|(id, _)| id).collect()
    };
    let mut probes = tokio::task::JoinSet::new();
    for member in manager.members.all() {
        probes.spawn(async move {
            let asked = member.peer.ask::<Benefactor>(chunks::Request::Probe, Duration::from_secs(1)).await;
            (member.lends.place.id, asked.ok())
        });
    }
    while let Some(Ok((id, answer))) = probes.join_next().await {
        let mut known = manager.members.known();
        let now = known.now();
        let alive = match answer {
            Some(chunks::Reply::Alive(alive)) => Some(alive),
            _ => None,
        };
        if let Some(member) = known.members.get_mut(&id) {
            member.alive = alive;
        }
        if due.contains(&id) {
            match alive {
                Some(alive) => known.membership.probe_answered(now, id, alive.incarnation),
                None => known.membership.probe_failed(now, id),
            }
        }
    }
}
