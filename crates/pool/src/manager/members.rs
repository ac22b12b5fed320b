//! Which benefactors there are, and how they are: from the store's leases and from probes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::Table;
use surgetank_pool_core::id::{BenefactorId, Incarnation};
use surgetank_pool_core::membership::{self, Membership, State};
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::meta::{Key, Prefix, Value};
use surgetank_pool_core::placement::{self, Candidate, Lent, Media};

use super::Manager;
use super::protocol::{Place, Reply};
use crate::benefactor::Benefactor;
use crate::chunks::{self, Alive, CHUNK, Get, TableOf};
use crate::rpc::Peer;
use crate::security::Access;
use crate::security::token::Ticket;

/// How long a benefactor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// A benefactor is short of room if less than a part in this many is free.
const SHORT: u64 = 4;

/// What placement takes for speeds.
struct Rates {
    memory: Bandwidth,
    ssd: Bandwidth,
    drain: Bandwidth,
}

/// They are not measured: equal ones among benefactors are placed by their room.
const RATES: Rates =
    Rates { memory: Bandwidth::from_mib_s(1000), ssd: Bandwidth::from_mib_s(500), drain: Bandwidth::from_mib_s(100) };

/// A benefactor in its newest life.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) lends: Lends,
    pub(super) peer: Peer,
    /// What the last probe said.
    pub(super) alive: Option<Alive>,
}

impl Member {
    /// What a table of it says; `None`: it has none of the name, or does not answer.
    pub(super) async fn table(&self, of: TableOf) -> Option<Table> {
        self.has_table(of).await.flatten()
    }

    /// The same; `Some(None)`: it does not have it, and will not.
    pub(super) async fn has_table(&self, of: TableOf) -> Option<Option<Table>> {
        let get = Get { incarnation: self.lends.place.incarnation, of, chunk: 0, ticket: Ticket::default() };
        match self.peer.ask::<Benefactor>(chunks::Request::Table(get), ANSWER).await {
            Ok(chunks::Reply::Table(table)) => Some(Some(table)),
            Ok(chunks::Reply::NotHere | chunks::Reply::Stale) => Some(None),
            _ => None,
        }
    }
}

struct Known {
    members: BTreeMap<BenefactorId, Member>,
    membership: Membership,
    /// Everybody of whom was ever heard, in the newest life unless that is over.
    newest: BTreeMap<BenefactorId, Option<Incarnation>>,
    /// Those who had an SSD when they joined last, and are expected: they may return with what is on it.
    with_ssd: BTreeMap<BenefactorId, Lends>,
    /// Those that operators take out.
    leaving: BTreeSet<BenefactorId>,
    /// Those that commits may name.
    lives: BTreeSet<placement::Place>,
    /// When a client was last seen to have put chunks.
    written: Option<Instant>,
    /// The store's leases have been read.
    looked: bool,
    since: tokio::time::Instant,
}

/// See the module.
pub(super) struct Members(Mutex<Known>);

impl Known {
    fn now(&self) -> Instant {
        Instant::ZERO + self.since.elapsed()
    }

    /// Everybody who may be given chunks: a commit that named one without a lease would be refused.
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |member: &Member| {
            let is_there = |alive: &Alive| alive.incarnation == member.lends.place.incarnation && !alive.leaving;
            let alive = member
                .alive
                .as_ref()
                .filter(|alive| is_there(alive))
                .filter(|_| self.membership.has_lease(member.lends.place.id))
                .filter(|_| !self.leaving.contains(&member.lends.place.id))?;
            let lent =
                |free, of, rate| Lent { free: Bytes::new(free), of: Bytes::new(of), rate, drain: Some(RATES.drain) };
            let memory = lent(alive.credits * CHUNK, alive.of * CHUNK, RATES.memory);
            let ssd = lent(alive.ssd.0, alive.ssd.1, RATES.ssd);
            let (place, domain) = (member.lends.place, member.lends.domain);
            let lends = |bytes: Bytes| bytes > Bytes::ZERO;
            Some(Candidate {
                place,
                domain,
                memory: lends(member.lends.memory).then_some(memory),
                ssd: lends(ssd.of).then_some(ssd),
            })
        };
        self.members.values().filter_map(candidate).collect()
    }
}

/// What repair has to know of all benefactors.
pub(super) struct Lives {
    /// When.
    pub(super) now: Instant,
    /// Nobody is declared dead at present.
    pub(super) holds: bool,
    /// Everybody in the newest life unless that is over.
    pub(super) of: BTreeMap<BenefactorId, Option<Incarnation>>,
    /// Those that operators take out.
    pub(super) leaving: BTreeSet<BenefactorId>,
    /// When a client was last seen to have put chunks.
    pub(super) written: Option<Instant>,
}

impl Members {
    /// Nobody is known yet.
    pub(super) fn new(config: membership::Config) -> Self {
        Self(Mutex::new(Known {
            members: BTreeMap::new(),
            membership: Membership::new(config),
            newest: BTreeMap::new(),
            with_ssd: BTreeMap::new(),
            leaving: BTreeSet::new(),
            lives: BTreeSet::new(),
            written: None,
            looked: false,
            since: tokio::time::Instant::now(),
        }))
    }

    /// Whether a benefactor that takes chunks has less than a part in [`SHORT`] free.
    pub(super) fn are_short(&self) -> bool {
        // Memory in front of an SSD is emptied into it.
        let is_short = |alive: &Alive| match alive.ssd {
            _ if alive.leaving => false,
            (_, 0) => alive.credits * SHORT < alive.of,
            (free, of) => free * SHORT < of,
        };
        self.known().members.values().filter_map(|member| member.alive.as_ref()).any(is_short)
    }

    /// Whether the leases of the store have been read once.
    pub(super) fn looked(&self) -> bool {
        self.known().looked
    }

    /// See [`Lives`].
    pub(super) fn lives(&self) -> Lives {
        let known = self.known();
        Lives {
            now: known.now(),
            holds: known.membership.holds(),
            of: known.newest.clone(),
            leaving: known.leaving.clone(),
            written: known.written,
        }
    }

    /// A benefactor in its newest life.
    pub(super) fn newest(&self, id: BenefactorId) -> Option<Member> {
        self.known().members.get(&id).cloned()
    }

    /// The benefactor that has what lies at a place: a later life has what is on its SSD.
    pub(super) fn holder(&self, place: placement::Place) -> Option<Member> {
        self.newest(place.id).filter(|member| member.lends.place.incarnation >= place.incarnation)
    }

    /// Whether what lies at a place without a [holder](Self::holder) is lost for ever. Its benefactor is looked for from now on.
    pub(super) fn is_lost(&self, place: placement::Place) -> bool {
        self.suspect(place);
        self.is_over(place) && !self.may_return(place.id)
    }

    /// Everybody but one who may be given chunks.
    pub(super) fn others(&self, than: BenefactorId) -> Vec<Candidate> {
        let mut candidates = self.known().candidates();
        candidates.retain(|other| other.place.id != than);
        candidates
    }

    /// Those that operators take out, as far as is known.
    pub(super) fn leaving(&self) -> BTreeSet<BenefactorId> {
        self.known().leaving.clone()
    }

    /// Who else takes a place of columns whose other places are `beside`, but none of `without`.
    pub(super) fn substitute(
        &self,
        bytes: u64,
        media: Media,
        beside: &[BenefactorId],
        without: &[placement::Place],
    ) -> Option<Member> {
        let known = self.known();
        let domains: Vec<_> =
            beside.iter().filter_map(|id| known.members.get(id)).map(|member| member.lends.domain).collect();
        let found = placement::substitute(Bytes::new(bytes), media, &domains, without, &known.candidates());
        found.and_then(|(place, _)| known.members.get(&place.id).cloned())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody who is not dead, as far as is known.
    pub(super) fn all(&self) -> Vec<Member> {
        self.known().members.values().cloned().collect()
    }

    /// Those who have answered the last probe, in their newest lives.
    pub(super) fn answer(&self) -> BTreeSet<placement::Place> {
        let known = self.known();
        let answers = |member: &&Member| {
            let place = member.lends.place;
            member.alive.as_ref().is_some_and(|alive| alive.incarnation == place.incarnation)
        };
        known.members.values().filter(answers).map(|member| member.lends.place).collect()
    }

    /// A benefactor in this life, if that is its newest.
    pub(super) fn get(&self, place: placement::Place) -> Option<Member> {
        self.known().members.get(&place.id).filter(|member| member.lends.place == place).cloned()
    }

    /// Whether a dead benefactor may return with what it had.
    pub(super) fn may_return(&self, id: BenefactorId) -> bool {
        let known = self.known();
        known.with_ssd.contains_key(&id) && known.membership.incarnation(id).is_none()
    }

    /// Everybody who is dead, and is expected to return with what is on the SSD.
    pub(super) fn expected(&self) -> Vec<Lends> {
        let known = self.known();
        let gone = known.with_ssd.iter().filter(|(id, _)| !known.members.contains_key(id));
        gone.map(|(_, lends)| lends.clone()).collect()
    }

    /// Whether what this life had in memory is lost: a newer one has begun, or the benefactor is dead.
    pub(super) fn is_over(&self, place: placement::Place) -> bool {
        let known = self.known();
        match known.membership.state(place.id) {
            Some(State::Dead) => true,
            Some(_) => known.membership.incarnation(place.id).is_some_and(|newest| newest > place.incarnation),
            None => false,
        }
    }

    /// Whether a benefactor has neither a lease nor answers, or was never heard of.
    pub(super) fn is_dead(&self, id: BenefactorId) -> bool {
        matches!(self.known().membership.state(id), Some(State::Dead) | None)
    }

    /// A layout names a benefactor of which this manager has never heard: it may have died before this manager began. It counts as one
    /// whose lease has just been lost.
    pub(super) fn suspect(&self, place: placement::Place) {
        let mut known = self.known();
        if known.looked && known.membership.state(place.id).is_none() {
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

    /// Whether a benefactor is to hear that it is taken out, or that it is not; `None`: it is as it is to be.
    fn is_to_hear(&self, member: &Member) -> Option<bool> {
        let known = self.known();
        let place = member.lends.place;
        let was_told = member.alive.as_ref().filter(|alive| alive.incarnation == place.incarnation)?.taken_out;
        match known.leaving.contains(&place.id) {
            true => (!was_told).then_some(true),
            // It has a lease, and no life that a commit may name: it was taken back.
            false => {
                (was_told || known.membership.has_lease(place.id) && !known.lives.contains(&place)).then_some(false)
            }
        }
    }

    /// Where chunks are to go.
    pub(super) fn place(&self, place: &Place) -> Reply {
        let known = self.known();
        let domain = |id: &BenefactorId| known.members.get(id).map(|member| member.lends.domain);
        let apart: BTreeSet<_> = place.apart.iter().filter_map(domain).collect();
        let mut candidates = known.candidates();
        candidates.retain(|other| !place.without.contains(&other.place) && !apart.contains(&other.domain));
        let request = placement::Request {
            bytes: Bytes::new(place.bytes),
            protection: place.protection,
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
    let prefixes = [Prefix::Lends, Prefix::Records, Prefix::Leaving, Prefix::Lives];
    loop {
        let read = manager.store.read(&[], &prefixes).await;
        let has_looked = read.is_ok();
        if let Ok(read) = read {
            let (mut lends, mut with_ssd) = (Vec::new(), BTreeMap::new());
            let (mut leaving, mut lives) = (BTreeSet::new(), BTreeSet::new());
            for (key, stored) in read.prefixes.into_iter().flatten() {
                match (key, stored.value) {
                    (Key::Lends(_), Value::Lends(of)) => lends.push(of),
                    (Key::Record(id), Value::Lends(of)) if of.ssd > Bytes::ZERO => drop(with_ssd.insert(id, of)),
                    (Key::Leaving(id), _) => drop(leaving.insert(id)),
                    (Key::Benefactor(_), Value::Benefactor(place)) => drop(lives.insert(place)),
                    _ => {}
                }
            }
            {
                let mut known = manager.members.known();
                (known.with_ssd, known.leaving, known.lives) = (with_ssd, leaving, lives);
            }
            leased(&manager.members, lends, &manager.access);
        }
        probe(manager, has_looked).await;
        tokio::time::sleep(manager.config.probe).await;
    }
}

/// The store has these leases, and no others.
fn leased(members: &Members, leased: Vec<Lends>, access: &Access) {
    let mut known = members.known();
    let now = known.now();
    let there: BTreeSet<placement::Place> = leased.iter().map(|lends| lends.place).collect();
    for lends in leased {
        known.membership.leased(now, lends.place.id, lends.place.incarnation);
        if known.members.get(&lends.place.id).is_some_and(|member| member.lends == lends) {
            continue;
        }
        match Peer::new(&lends.address, access) {
            Ok(peer) => drop(known.members.insert(lends.place.id, Member { lends, peer, alive: None })),
            Err(error) => tracing::error!("benefactor {}: {error}", lends.place.id),
        }
    }
    let gone: Vec<placement::Place> =
        known.members.values().map(|member| member.lends.place).filter(|place| !there.contains(place)).collect();
    for place in gone {
        known.membership.lease_lost(now, place.id, place.incarnation);
    }
    known.looked = true;
    known.membership.tick(now);
    while let Some(change) = known.membership.next_change() {
        tell(&change);
        match change {
            membership::Change::Joined(id, incarnation) | membership::Change::Returned { id, incarnation, .. } => {
                known.newest.insert(id, Some(incarnation));
            }
            membership::Change::Died(id, _) => {
                known.newest.insert(id, None);
                known.members.remove(&id);
            }
            membership::Change::Left(_) | membership::Change::HoldBegan { .. } | membership::Change::HoldEnded => {}
        }
    }
}

fn tell(change: &membership::Change) {
    match change {
        membership::Change::Joined(id, _) => tracing::info!("benefactor {id} lends from now on"),
        membership::Change::Returned { id, .. } => tracing::info!("benefactor {id} lends again, in a new life"),
        membership::Change::Died(id, _) => tracing::warn!("benefactor {id} is dead"),
        membership::Change::Left(id) => tracing::info!("benefactor {id} has left"),
        membership::Change::HoldBegan { missing, of } => {
            tracing::warn!(
                "{missing} of {of} benefactors have lost their leases at once: nobody is declared dead meanwhile"
            );
        }
        membership::Change::HoldEnded => tracing::info!("benefactors have their leases again"),
    }
}

/// Asks everybody how it is: placement needs that of all, and membership of those without a lease. Who is taken out hears it from a manager
/// that `has_looked`: another one does not know who was taken back since.
async fn probe(manager: &Arc<Manager>, has_looked: bool) {
    let due: BTreeSet<BenefactorId> = {
        let mut known = manager.members.known();
        let now = known.now();
        std::iter::from_fn(|| known.membership.next_probe(now)).map(|(id, _)| id).collect()
    };
    let mut probes = tokio::task::JoinSet::new();
    for member in manager.members.all() {
        let is_leaving = manager.members.is_to_hear(&member).filter(|_| has_looked);
        probes.spawn(async move {
            if let Some(is_leaving) = is_leaving {
                let _ =
                    member.peer.ask::<Benefactor>(chunks::Request::Leaving(is_leaving), Duration::from_secs(1)).await;
            }
            let asked = member.peer.ask::<Benefactor>(chunks::Request::Probe, Duration::from_secs(1)).await;
            (member.lends.place.id, asked.ok())
        });
    }
    while let Some(Ok((id, answer))) = probes.join_next().await {
        let mut known = manager.members.known();
        let now = known.now();
        let alive = match answer {
            Some(chunks::Reply::Alive(alive)) => Some(*alive),
            _ => None,
        };
        if due.contains(&id) {
            match alive {
                Some(ref alive) => known.membership.probe_answered(now, id, alive.incarnation),
                None => known.membership.probe_failed(now, id),
            }
        }
        if let Some(member) = known.members.get_mut(&id) {
            let puts = |alive: &Option<Alive>| alive.as_ref().map(|alive| alive.puts);
            let is_written = puts(&member.alive).zip(puts(&alive)).is_some_and(|(former, now)| former < now);
            member.alive = alive;
            if is_written {
                known.written = Some(now);
            }
        }
    }
}
