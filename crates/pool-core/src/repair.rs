//! Copies that are missing are made again, and what a benefactor that returns has is compared with the store.
//!
//! A place of a layout counts while its benefactor is in the life that the layout names. [`Repair`] knows which groups have fewer places that
//! count than their layouts have: those with the fewest come first. Copying is paced, slower while applications write, and
//! nothing is copied while the membership holds: when most leases are gone at once the store is suspected, not the benefactors.
//!
//! A place at a benefactor that leaves ([`crate::leaving`]) counts, and is moved all the same: its chunks are there, and may be the only ones.
//!
//! A benefactor that returns in a new life may have everything that a group needs on its SSD: it is asked for its inventory before anything is
//! copied for it. [`reconcile`] says what it has in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};

use crate::benefactor::holdings::{GroupOf, Holdings, Instance};
use crate::id::{BenefactorId, Incarnation, Inode, MountId, SessionId, Version};
use crate::placement::{Layout, Place};
use crate::planted::{Bug, planted};

/// How fast copies are made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes per second while no application writes.
    pub idle: Bandwidth,
    /// Bytes per second while one does.
    pub beside: Bandwidth,
    /// An application counts as writing for so long after its last write.
    pub foreground_for: Duration,
    /// Copies of groups that are made at the same time, at most.
    pub at_once: usize,
    /// The pause before a copy that failed is tried again.
    pub retry: Duration,
}

/// A version of a group, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Of {
    /// Which group.
    pub group: GroupOf,
    /// Which version of it.
    pub version: Version,
    /// Who committed it.
    pub by: SessionId,
}

/// A copy to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Of what.
    pub of: Of,
    /// The place that does not count any more, or leaves: its chunks are those of the columns in which the layout has it.
    pub instead_of: Place,
    /// It leaves, and has them: in the life that the layout names, or in a later one on SSD.
    pub is_there: bool,
    /// The layout.
    pub layout: Layout,
}

impl Job {
    /// Benefactors that may not take the copy: all others of the layout, in whatever life. One that had chunks of other columns in a former life would
    /// have a table of this version without them, and a reader, or an inventory, would take it for the whole.
    #[must_use]
    pub fn without(&self) -> Vec<Place> {
        let mut places = self.layout.places();
        places.retain(|place| place.id != self.instead_of.id);
        places
    }
}

/// A benefactor's present life, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Alive(Incarnation),
    /// It has not told yet what it has.
    Unasked(Incarnation),
    /// It may return, with its SSD.
    Dead,
    Left,
}

#[derive(Clone, Debug)]
struct Known {
    layout: Layout,
    bytes: Bytes,
    /// Lives other than the layout's that have all of it.
    confirmed: BTreeSet<Place>,
    /// A job is under way, or must wait until then.
    busy: Option<u64>,
    not_before: Instant,
    /// Its place in `short`.
    short: Option<usize>,
}

/// See the module.
#[derive(Debug)]
pub struct Repair {
    config: Config,
    groups: BTreeMap<Of, Known>,
    on: BTreeMap<BenefactorId, BTreeSet<Of>>,
    /// What benefactors have told, in which life.
    inventories: BTreeMap<Place, BTreeSet<Of>>,
    /// Groups that lack a place, by how many more they may lose, and one.
    short: BTreeSet<(usize, Of)>,
    /// Benefactors that leave.
    leaving: BTreeSet<BenefactorId>,
    /// Groups of which some place is theirs, and has its chunks.
    moving: BTreeSet<Of>,
    /// The last copy could not be made: what moves has its turn before the next.
    moves_first: bool,
    lives: BTreeMap<BenefactorId, Life>,
    /// Those under way, each with the time for what counts only once it is made.
    jobs: BTreeMap<u64, (Of, Duration)>,
    numbers: u64,
    holds: bool,
    /// When the next byte may be copied.
    free_at: Instant,
    foreground_at: Option<Instant>,
}

impl Repair {
    /// A pool of which nothing is known yet.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            groups: BTreeMap::new(),
            on: BTreeMap::new(),
            inventories: BTreeMap::new(),
            short: BTreeSet::new(),
            leaving: BTreeSet::new(),
            moving: BTreeSet::new(),
            moves_first: false,
            lives: BTreeMap::new(),
            jobs: BTreeMap::new(),
            numbers: 0,
            holds: false,
            free_at: Instant::ZERO,
            foreground_at: None,
        }
    }

    /// The store has this version of a group, with so many bytes in it; or its layout has changed.
    pub fn group(&mut self, of: Of, layout: &Layout, bytes: Bytes) {
        let former = self.remove(of);
        for place in layout.places() {
            self.on.entry(place.id).or_default().insert(of);
        }
        let mut known = match former {
            Some(former) => Known { layout: layout.clone(), bytes, ..former },
            None => Known {
                layout: layout.clone(),
                bytes,
                confirmed: BTreeSet::new(),
                busy: None,
                not_before: Instant::ZERO,
                short: None,
            },
        };
        let told = layout.places().into_iter().filter_map(|place| self.present(place.id));
        known.confirmed.extend(told.filter(|now| self.inventories.get(now).is_some_and(|has| has.contains(&of))));
        self.groups.insert(of, known);
        self.look_at(of);
    }

    /// The store no longer has it.
    pub fn group_gone(&mut self, of: Of) {
        self.remove(of);
    }

    /// Groups that it knows.
    pub fn groups(&self) -> impl Iterator<Item = Of> {
        self.groups.keys().copied()
    }

    /// Groups of which copies are missing: some place of their layouts does not count.
    pub fn missing(&self) -> impl Iterator<Item = Of> {
        self.short.iter().map(|(_, of)| *of)
    }

    /// A benefactor is alive, in this life. It is asked for its inventory first: layouts may name former lives of it, also if it was not known
    /// in another.
    pub fn alive(&mut self, id: BenefactorId, incarnation: Incarnation) {
        let life = match self.lives.get(&id) {
            Some(Life::Alive(former)) if *former == incarnation => return,
            Some(Life::Unasked(former)) if *former == incarnation => return,
            None if planted(Bug::NewWardenAsksNobody) => Life::Alive(incarnation),
            _ => Life::Unasked(incarnation),
        };
        self.lives.insert(id, life);
        self.look_at_all_on(id);
    }

    /// A benefactor is dead, as the membership has decided.
    pub fn died(&mut self, id: BenefactorId) {
        self.lives.insert(id, Life::Dead);
        self.look_at_all_on(id);
    }

    /// A benefactor has left for good, whether it was empty or is broken: it never returns.
    pub fn left(&mut self, id: BenefactorId) {
        self.lives.insert(id, Life::Left);
        self.look_at_all_on(id);
    }

    /// These leave, and no others: what they have is moved.
    pub fn leave(&mut self, leaving: BTreeSet<BenefactorId>) {
        let former = std::mem::replace(&mut self.leaving, leaving);
        let changed: Vec<BenefactorId> = former.symmetric_difference(&self.leaving).copied().collect();
        changed.into_iter().for_each(|id| self.look_at_all_on(id));
    }

    /// Groups of which a benefactor has a place, in whatever life.
    pub fn on(&self, id: BenefactorId) -> impl Iterator<Item = Of> {
        self.on.get(&id).into_iter().flatten().copied()
    }

    /// Who has returned, and is to be asked for its inventory.
    pub fn unasked(&self) -> impl Iterator<Item = Place> {
        self.lives.iter().filter_map(|(id, life)| match life {
            Life::Unasked(incarnation) => Some(Place { id: *id, incarnation: *incarnation }),
            _ => None,
        })
    }

    /// All that a benefactor in this life has, chunks and table.
    pub fn inventory(&mut self, of: Place, has: &BTreeSet<Of>) {
        self.inventories.retain(|place, _| place.id != of.id);
        self.inventories.insert(of, has.clone());
        let known = self.on.get(&of.id).cloned().unwrap_or_default();
        for group in known.iter().filter(|group| has.contains(group) || planted(Bug::ReturnedCounts)) {
            if let Some(known) = self.groups.get_mut(group) {
                known.confirmed.insert(of);
            }
        }
        if self.lives.get(&of.id) == Some(&Life::Unasked(of.incarnation)) {
            self.lives.insert(of.id, Life::Alive(of.incarnation));
        }
        self.look_at_all_on(of.id);
    }

    /// The membership holds, or no longer.
    pub const fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// An application writes.
    pub const fn foreground(&mut self, now: Instant) {
        self.foreground_at = Some(now);
    }

    /// A place that is to be named in its new life: nothing is copied. It stays until [`Repair::group`] has the new layout.
    #[must_use]
    pub fn next_renamed(&self) -> Option<(Of, Place, Place)> {
        self.short.iter().find_map(|(_, of)| {
            let known = self.groups.get(of).filter(|known| known.busy.is_none())?;
            known.layout.places().into_iter().filter(|place| !self.counts(*place)).find_map(|from| {
                // Where no commit may name it, nothing else may.
                let stays = !self.leaving.contains(&from.id) || planted(Bug::LeavingIsRenamed);
                let to = self.present(from.id).filter(|to| stays && known.confirmed.contains(to))?;
                Some((*of, from, to))
            })
        })
    }

    /// The next copy to make.
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        let storm = planted(Bug::RepairStorm);
        let wait = self.holds || now < self.free_at || self.jobs.len() >= self.config.at_once;
        if wait && !storm {
            return None;
        }
        // Of rows that lack chunks fewer places are needed than of others: where too few of these are left, they are tried after all others, and take
        // none of their time unless something is made.
        let first = self.short.iter().filter(|(good, _)| *good > 0);
        let last = self.short.iter().filter(|(good, _)| *good == 0);
        let missing = |(good, of): &(usize, Of)| {
            let known = self.groups.get(of)?;
            let is_hopeless = *good == 0 && known.layout.parity.is_none();
            if is_hopeless || known.busy.is_some() || now < known.not_before {
                return None;
            }
            let missing =
                known.layout.places().into_iter().find(|place| !self.counts(*place) && self.is_asked(place.id))?;
            // With all of it on SSD it is named in its new life, or moved.
            let returned = self.present(missing.id).is_some_and(|place| known.confirmed.contains(&place));
            (!returned).then_some((*of, missing, *good, false))
        };
        // What is there is in no danger: it is moved once nothing is missing that can be made again. Copies for which there is no room are tried
        // again and again, and keep nothing from being moved.
        let moves = |of: &Of| {
            let known = self.groups.get(of).filter(|known| known.busy.is_none() && now >= known.not_before)?;
            let leaves = known.layout.places().into_iter().find(|place| self.leaves(known, *place))?;
            Some((*of, leaves, 1, true))
        };
        let move_first = self.moving.iter().find_map(moves).filter(|_| self.moves_first);
        let found = move_first.or_else(|| { first }.find_map(&missing));
        let found = found.or_else(|| self.moving.iter().find_map(moves));
        let (of, instead_of, good, is_there) = found.or_else(|| { last }.find_map(&missing))?;
        self.moves_first = false;
        self.numbers += 1;
        let id = self.numbers;
        let known = self.groups.get_mut(&of)?;
        known.busy = Some(id);
        let (layout, bytes) = (known.layout.clone(), known.bytes);
        let busy = self.foreground_at.is_some_and(|at| now.since(at) < self.config.foreground_for);
        let rate = if busy { self.config.beside } else { self.config.idle };
        let share = bytes.get() / (layout.columns.len() * layout.needed()).max(1) as u64;
        // A member of each row of all columns in which it is.
        let columns = layout.columns.iter().filter(|column| column.places.contains(&instead_of)).count();
        let share = if layout.parity.is_some() { share * columns as u64 } else { share };
        let time = rate.time_for(share);
        // What may have no room takes none of the others' time unless it is made.
        let (at_once, once_made) = if good > 0 && !is_there { (time, Duration::ZERO) } else { (Duration::ZERO, time) };
        self.free_at = self.free_at.max(now) + at_once;
        self.jobs.insert(id, (of, once_made));
        Some(Job { id, of, instead_of, is_there, layout })
    }

    /// A copy is made and on record, or could not be made.
    pub fn ended(&mut self, now: Instant, job: u64, done: bool) {
        let Some((of, once_made)) = self.jobs.remove(&job) else { return };
        self.moves_first |= !done;
        if done {
            self.free_at = self.free_at.max(now) + once_made;
        }
        if let Some(known) = self.groups.get_mut(&of).filter(|known| known.busy == Some(job)) {
            known.busy = None;
            if !done {
                known.not_before = now + self.config.retry;
            }
        }
    }

    /// Copies that are being made.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.jobs.len()
    }

    /// Whether a version of a file whose chunks have copies can no longer be read anywhere: no place of one of its groups counts, and whoever had it
    /// has returned without it or has left. One that is dead may return with its SSD. While the membership holds nothing is lost.
    /// Layouts are those that the store has now: what was heard of them earlier may have been repaired.
    #[must_use]
    pub fn is_lost(&self, groups: &[(Of, &Layout)]) -> bool {
        let lost = |of: &Of, layout: &Layout| {
            layout.columns.iter().any(|column| {
                column.places.iter().all(|place| {
                    let now = self.present(place.id);
                    let has = now.is_some_and(|now| self.inventories.get(&now).is_some_and(|has| has.contains(of)));
                    let may_return = matches!(self.lives.get(&place.id), Some(Life::Dead)) && !planted(Bug::DeadIsLost);
                    !self.counts(*place) && !has && !may_return && self.is_asked(place.id)
                })
            })
        };
        !self.holds && groups.iter().any(|(of, layout)| lost(of, layout))
    }

    fn present(&self, id: BenefactorId) -> Option<Place> {
        match self.lives.get(&id) {
            Some(Life::Alive(incarnation) | Life::Unasked(incarnation)) => {
                Some(Place { id, incarnation: *incarnation })
            }
            Some(Life::Dead | Life::Left) | None => None,
        }
    }

    /// Whether a place is in the life that the layout names. One of which nothing was ever heard may be well.
    fn counts(&self, place: Place) -> bool {
        !self.lives.contains_key(&place.id) || self.present(place.id) == Some(place)
    }

    fn is_asked(&self, id: BenefactorId) -> bool {
        !matches!(self.lives.get(&id), Some(Life::Unasked(_)))
    }

    /// Whether a place of a group is one of a benefactor that leaves and has its chunks.
    fn leaves(&self, known: &Known, place: Place) -> bool {
        let has = |now: Place| now == place || known.confirmed.contains(&now);
        self.leaving.contains(&place.id) && self.present(place.id).is_some_and(has)
    }

    fn look_at_all_on(&mut self, id: BenefactorId) {
        let all = self.on.get(&id).cloned().unwrap_or_default();
        all.into_iter().for_each(|of| self.look_at(of));
    }

    /// Whether a group lacks a place, and how many it has at least in each column beyond those that are needed with one of them.
    fn look_at(&mut self, of: Of) {
        let Some(known) = self.groups.get(&of) else { return };
        let good = |places: &[Place]| places.iter().filter(|place| self.counts(**place)).count();
        let columns = &known.layout.columns;
        let others = known.layout.needed() - 1;
        let least = columns.iter().map(|column| good(&column.places).saturating_sub(others)).min().unwrap_or(0);
        let is_short = columns.iter().any(|column| good(&column.places) < column.places.len());
        let now = is_short.then_some(least);
        let moves = known.layout.places().into_iter().any(|place| self.leaves(known, place));
        match moves {
            true => self.moving.insert(of),
            false => self.moving.remove(&of),
        };
        let Some(known) = self.groups.get_mut(&of) else { return };
        if let Some(former) = std::mem::replace(&mut known.short, now) {
            self.short.remove(&(former, of));
        }
        self.short.extend(now.map(|least| (least, of)));
    }

    fn remove(&mut self, of: Of) -> Option<Known> {
        let mut known = self.groups.remove(&of)?;
        self.moving.remove(&of);
        if let Some(former) = known.short.take() {
            self.short.remove(&(former, of));
        }
        for place in known.layout.places() {
            if let Some(all) = self.on.get_mut(&place.id) {
                all.remove(&of);
            }
        }
        Some(known)
    }
}

/// What a benefactor has: tables by group, version and session, and drafts by session and file.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Its tables.
    pub tables: BTreeSet<Of>,
    /// Who has drafts there, and of which files.
    pub drafts: BTreeSet<(SessionId, Inode)>,
    /// Copies that no table names yet.
    pub copies: BTreeSet<(Instance, Inode)>,
    /// Who has withdrawn there what may still come.
    pub withdrawn: BTreeSet<SessionId>,
    /// Files of which it does not know whose room they take.
    pub of_unknown_mounts: BTreeSet<Inode>,
}

/// What the store has of it, read after the inventory was taken: what came later is not in vain.
pub trait InStore {
    /// The newest version of the file, unlinked or not; `None`: it is not there.
    fn version(&self, inode: Inode) -> Option<Version>;
    /// The mount that it belongs to.
    fn mount(&self, inode: Inode) -> Option<MountId>;
    /// Whether the session is alive.
    fn has_session(&self, session: SessionId) -> bool;
    /// Whether somebody who is at work may name copies of the file there: repair, or a session that has them fetched.
    fn is_copied(&self, inode: Inode) -> bool;
    /// The version with which the file has left the pool; `None`: it has not.
    fn evicted(&self, inode: Inode) -> Option<Version>;
    /// The versions of a group, who committed them, and whether the layout of each names the benefactor, in whatever life: in a new one it
    /// may have it on SSD. What repair is bringing there counts as named until the store has answered.
    fn versions(&self, group: GroupOf) -> BTreeMap<(Version, SessionId), bool>;
}

/// What a benefactor is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// [`Holdings::forgotten`].
    Forgotten(Inode),
    /// [`Holdings::in_store`].
    InStore(GroupOf, BTreeSet<(Version, SessionId)>),
    /// [`Holdings::forget_table`].
    ForgetTable(Of),
    /// [`Holdings::obsolete`].
    Obsolete(Of),
    /// [`Holdings::evicted`].
    Evicted(Inode, Version),
    /// [`Holdings::abandon_copy`].
    AbandonCopy(Instance),
    /// [`Holdings::session_ended`], of whose tables these never were
    /// committed. Others may have been sealed, and committed, since the inventory was taken.
    SessionEnded(SessionId, BTreeSet<(GroupOf, Version)>),
    /// [`Holdings::is_of`].
    IsOf(Inode, MountId),
}

impl Word {
    /// Whether it is true for ever. Others are for as long as nothing is brought to the benefactor.
    #[must_use]
    pub const fn lasts(&self) -> bool {
        !matches!(self, Self::ForgetTable(_) | Self::AbandonCopy(_))
    }

    /// A benefactor hears it.
    pub fn tell(self, holdings: &mut Holdings) {
        match self {
            Self::Forgotten(inode) => holdings.forgotten(inode),
            Self::InStore(group, versions) => holdings.in_store(group, &versions),
            Self::ForgetTable(of) => holdings.forget_table(of.group, of.version, of.by),
            Self::Obsolete(of) => holdings.obsolete(of.group, of.version, of.by),
            Self::Evicted(inode, version) => holdings.evicted(inode, version),
            Self::AbandonCopy(instance) => holdings.abandon_copy(instance),
            Self::IsOf(inode, mount) => holdings.is_of(inode, mount),
            Self::SessionEnded(session, never) => {
                holdings.session_ended(session, |group, version| !never.contains(&(group, version)));
            }
        }
    }
}

/// Compares an inventory with the store: newer versions win, and what nobody can ask for is forgotten.
#[must_use]
pub fn reconcile(inventory: &Inventory, store: &impl InStore) -> Vec<Word> {
    let mut words = Vec::new();
    if planted(Bug::StraysKept) {
        return words;
    }
    let inodes: BTreeSet<Inode> = inventory
        .tables
        .iter()
        .map(|of| of.group.inode)
        .chain(inventory.drafts.iter().map(|(_, inode)| *inode))
        .chain(inventory.copies.iter().map(|(_, inode)| *inode))
        .collect();
    let unknown = inventory.of_unknown_mounts.iter();
    words.extend(unknown.filter_map(|inode| Some(Word::IsOf(*inode, store.mount(*inode)?))));
    words.extend(inodes.iter().filter_map(|inode| Some(Word::Evicted(*inode, store.evicted(*inode)?))));
    let in_vain = inventory.copies.iter().filter(|(_, inode)| !store.is_copied(*inode));
    words.extend(in_vain.map(|(instance, _)| Word::AbandonCopy(*instance)));
    let gone: BTreeSet<Inode> = inodes.into_iter().filter(|inode| store.version(*inode).is_none()).collect();
    words.extend(gone.iter().map(|inode| Word::Forgotten(*inode)));
    let sessions: BTreeSet<SessionId> = inventory
        .tables
        .iter()
        .map(|of| of.by)
        .chain(inventory.drafts.iter().map(|(session, _)| *session))
        .chain(inventory.withdrawn.iter().copied())
        .filter(|session| !store.has_session(*session))
        .collect();
    let mut committed: BTreeMap<SessionId, BTreeSet<(GroupOf, Version)>> = BTreeMap::new();
    let groups: BTreeSet<GroupOf> =
        inventory.tables.iter().map(|of| of.group).filter(|group| !gone.contains(&group.inode)).collect();
    for group in groups {
        let versions = store.versions(group);
        for ((version, by), named) in &versions {
            committed.entry(*by).or_default().insert((group, *version));
            let of = Of { group, version: *version, by: *by };
            if !named && inventory.tables.contains(&of) {
                words.push(Word::ForgetTable(of));
            }
        }
        // Each version of a file is committed once.
        let newest = store.version(group.inode);
        let of_group = Of { group, version: Version::NONE, by: SessionId(0) }..=Of {
            group,
            version: newest.unwrap_or(Version::NONE),
            by: SessionId(u64::MAX),
        };
        let never = inventory.tables.range(of_group).filter(|of| !versions.contains_key(&(of.version, of.by)));
        words.extend(never.filter(|_| !planted(Bug::ObsoleteKept)).map(|of| Word::Obsolete(*of)));
        words.push(Word::InStore(group, versions.into_keys().collect()));
    }
    words.extend(sessions.into_iter().map(|session| {
        let is_committed = |of: &Of| committed.get(&session).is_some_and(|all| all.contains(&(of.group, of.version)));
        let tables = inventory.tables.iter().filter(|of| of.by == session && !is_committed(of));
        Word::SessionEnded(session, tables.map(|of| (of.group, of.version)).collect())
    }));
    words
}
