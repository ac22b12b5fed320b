//! A file that a session writes.
//!
//! Each column of a group has *seats*: benefactors that take its chunks, as many as there are copies. A seat that fails, that is in another
//! life, or that takes far longer than the others do is replaced by one more, which gets every chunk of the column that the group has:
//! those that were not committed from the client, which keeps their bytes until then, the others from a benefactor that has them. So no
//! layout ever names a benefactor that lacks a chunk.
//!
//! A commit goes in a *round*: as many complete seats as there are copies are chosen, seal the table, and then the store decides. Whoever
//! waits for the round is answered when it took place. A commit whose answer did not come is sent again; a refusal of the second one
//! because of the version may be due to the first, so the store is asked who committed the groups. A writer writes
//! its groups alone, so that they tell.
//!
//! A writer that has failed stays failed: no later commit or close says that all is well.

mod round;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_model::Instant;

use super::latency::Latency;
use crate::benefactor::holdings::{Entry, GroupOf, Instance, SealOrder, Table};
use crate::id::{Inode, SessionId, Version};
use crate::meta::Refusal;
use crate::placement::{Column, Layout, Place, Stripe, Tier};
use crate::planted::{Bug, planted};

/// A put that takes more than so many times the median is sent to another benefactor as well.
pub const HEDGE: u32 = 3;

/// How long a writer waits, and for how many.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Copies of each chunk.
    pub copies: usize,
    /// A request without an answer is sent again after this time.
    pub timeout: Duration,
    /// Requests without an answer, or chunks that came damaged, after which a benefactor is replaced.
    pub attempts: u32,
    /// The pause before a benefactor that is full, or a manager that has no place, is asked again.
    pub pause: Duration,
    /// No put is hedged earlier, however fast the others are.
    pub hedge_least: Duration,
}

/// Who has a chunk's bytes for a benefactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client: it keeps them until [`Effect::Committed`].
    Client,
    /// Another benefactor.
    Benefactor(Place),
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a chunk; answered by [`Writer::answer`].
    Put {
        /// To whom.
        to: Place,
        /// What.
        entry: Entry,
        /// Of which group and chunk.
        chunk: (u32, u32),
        /// Where its bytes are.
        source: Source,
    },
    /// Its session no longer needs a draft there. No answer.
    Withdraw(Place, Instance),
    /// Seal a table; answered by [`Writer::sealed`].
    Seal {
        /// Where.
        at: Place,
        /// Of which group.
        of: GroupOf,
        /// As which version.
        version: Version,
        /// Which of the session's seals: its answer has the same.
        order: SealOrder,
        /// The chunks that this benefactor has.
        table: Table,
    },
    /// Find one more place for a column, in a domain in which none of these is; answered by [`Writer::placed`].
    Place {
        /// Of which group.
        group: u32,
        /// Which column.
        column: usize,
        /// Those that it has.
        beside: Vec<Place>,
    },
    /// Commit; answered by [`Writer::committed`].
    Commit {
        /// The number of the commit: its answer has the same.
        id: u64,
        /// On top of this version.
        on: Version,
        /// The file's bytes.
        size: u64,
        /// Groups that have changed, where they are, and what is in them.
        groups: Vec<(u32, Layout, Table)>,
    },
    /// Read who committed these groups last; answered by [`Writer::settled`].
    Settle(Vec<u32>),
    /// The client no longer needs to keep the bytes of these.
    Committed(Vec<Instance>),
}

/// What a benefactor says to a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutAnswer {
    /// It has the chunk, intact.
    Stored,
    /// It is in another life.
    Stale,
    /// It has no room.
    Full,
    /// The chunk came damaged.
    Corrupt,
    /// The session has ended.
    UnknownSession,
    /// The benefactor that was to have the chunk's bytes does not.
    SourceFailed,
}

/// Why a writer has failed, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Its session has ended.
    #[error("the session has ended: what was not committed is gone")]
    SessionEnded,
    /// Nobody has a chunk any more that was committed.
    #[error("chunk {1} of group {0} is lost with the benefactors that had it")]
    Lost(u32, u32),
    /// The file is no more.
    #[error("the file was removed")]
    Removed,
}

/// How a [`Writer::sync`] ended.
pub type Answer = (u64, Result<Version, Why>);

#[derive(Clone, Copy, Debug)]
struct Wanted {
    chunk: u32,
    entry: Entry,
    attempts: u32,
    /// The benefactor that is to send its bytes, once it is sent.
    source: Option<Place>,
}

/// A benefactor of a column.
#[derive(Debug)]
struct Seat {
    place: Place,
    /// It may be named.
    alive: bool,
    /// What it has may be fetched from there: one that leaves, or has no lease, has its bytes.
    readable: bool,
    stored: BTreeSet<Instance>,
    wanted: BTreeMap<Instance, Wanted>,
    sent: BTreeMap<Instance, (Instant, Wanted)>,
    /// It is full: nothing is sent before.
    not_before: Instant,
    /// It came late: what it lacks is not minded, which is a planted bug.
    holey: bool,
}

#[derive(Debug)]
struct Seats {
    tier: Tier,
    weight: u8,
    seats: Vec<Seat>,
    /// When a manager was asked for one more.
    asked: Option<Instant>,
    hedged: bool,
}

#[derive(Debug)]
struct Open {
    stripe: Stripe,
    columns: Vec<Seats>,
    /// As written, and as committed.
    table: Table,
    committed: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Filling,
    Sealing,
    Committing,
    Settling,
}

/// A commit that is under way.
#[derive(Debug)]
struct Round {
    goal: BTreeMap<u32, Table>,
    size: u64,
    syncs: Vec<u64>,
    stage: Stage,
    /// The places of each column, once chosen.
    chosen: BTreeMap<u32, Vec<Vec<Place>>>,
    /// Seals without an answer, when they were sent, and how often.
    seals: BTreeMap<(Place, u32), (Instant, u32)>,
    sent_at: Instant,
    /// A commit was sent and its answer did not come.
    unknown: bool,
    /// What places have sealed for commits of this round on the version that it is on. A copy of one that was refused may be late, and take
    /// place once a life that had lost its lease is on record again: what it names must still be there then.
    named: BTreeMap<(Place, u32), Table>,
}

/// See the module.
#[derive(Debug)]
pub struct Writer {
    config: Config,
    inode: Inode,
    session: SessionId,
    on: Version,
    size: (u64, u64),
    groups: BTreeMap<u32, Open>,
    /// Instances whose bytes the client keeps, and where they belong.
    own: BTreeMap<Instance, (u32, u32)>,
    newest: u64,
    round: Option<Round>,
    /// The latest seals.
    order: SealOrder,
    /// Commits that were sent.
    commits: u64,
    waiting: Vec<u64>,
    latency: Latency,
    failed: Option<Why>,
    effects: VecDeque<Effect>,
    answers: VecDeque<Answer>,
}

impl Seat {
    fn new(place: Place, now: Instant) -> Self {
        Self {
            place,
            alive: true,
            readable: true,
            stored: BTreeSet::new(),
            wanted: BTreeMap::new(),
            sent: BTreeMap::new(),
            not_before: now,
            holey: false,
        }
    }

    fn want(&mut self, chunk: u32, entry: Entry) {
        if !self.stored.contains(&entry.instance) && !self.sent.contains_key(&entry.instance) {
            self.wanted.entry(entry.instance).or_insert(Wanted { chunk, entry, attempts: 0, source: None });
        }
    }

    fn has(&self, table: &Table) -> bool {
        self.alive && (self.holey || table.values().all(|entry| self.stored.contains(&entry.instance)))
    }
}

impl Open {
    /// The part of a table that a column has.
    fn part(&self, table: &Table, column: usize) -> Table {
        let is_in = |chunk: u32| self.stripe.column(chunk.into()) == column;
        table.iter().filter(|(chunk, _)| is_in(**chunk)).map(|(chunk, entry)| (*chunk, *entry)).collect()
    }
}

impl Writer {
    /// A session that has a file open for writing, on top of a version of `size` bytes.
    #[must_use]
    pub fn new(config: Config, inode: Inode, session: SessionId, on: Version, size: u64) -> Self {
        Self {
            config,
            inode,
            session,
            on,
            size: (size, size),
            groups: BTreeMap::new(),
            own: BTreeMap::new(),
            newest: 0,
            round: None,
            order: SealOrder::default(),
            commits: 0,
            waiting: Vec::new(),
            latency: Latency::default(),
            failed: None,
            effects: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// A group has these places, and this is in it by the version that the writer is on: all of it where the layout says.
    pub fn open_group(&mut self, now: Instant, group: u32, layout: &Layout, table: Table) {
        let stripe = Stripe::new(layout);
        let columns = layout.columns.iter().map(|column| Seats {
            tier: column.tier,
            weight: column.weight,
            seats: column.places.iter().map(|place| Seat::new(*place, now)).collect(),
            asked: None,
            hedged: false,
        });
        let mut open = Open { stripe, columns: columns.collect(), committed: table.clone(), table: Table::new() };
        for (chunk, entry) in &table {
            let column = open.stripe.column((*chunk).into());
            for seat in &mut open.columns[column].seats {
                seat.stored.insert(entry.instance);
            }
        }
        open.table = table;
        self.groups.insert(group, open);
    }

    /// Whether a group is open.
    #[must_use]
    pub fn has_group(&self, group: u32) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether it may send, or has sent, a chunk: answers about others are not its own.
    #[must_use]
    pub fn owns(&self, instance: Instance) -> bool {
        self.own.contains_key(&instance) || self.is_named(instance)
    }

    /// The version that it is on.
    #[must_use]
    pub const fn on(&self) -> Version {
        self.on
    }

    /// Whether it has failed.
    #[must_use]
    pub const fn failed(&self) -> Option<Why> {
        self.failed
    }

    /// A chunk of an open group is written; the client keeps its bytes until [`Effect::Committed`] or [`Effect::Withdraw`].
    ///
    /// # Errors
    /// [`Why`]: the writer has failed.
    pub fn write(&mut self, now: Instant, (group, chunk): (u32, u32), entry: Entry, size: u64) -> Result<(), Why> {
        if let Some(why) = self.failed.filter(|_| !planted(Bug::FailureForgotten)) {
            return Err(why);
        }
        let Some(open) = self.groups.get_mut(&group) else { return Ok(()) };
        self.size.0 = self.size.0.max(size);
        let column = open.stripe.column(chunk.into());
        let former = open.table.insert(chunk, entry);
        self.own.insert(entry.instance, (group, chunk));
        self.newest = self.newest.max(entry.instance.number);
        for seat in open.columns[column].seats.iter_mut().filter(|seat| seat.alive) {
            seat.want(chunk, entry);
        }
        if let Some(former) = former {
            self.unless_needed(group, chunk, former.instance);
        }
        self.go_on(now);
        Ok(())
    }

    /// Answers when everything that was written before counts.
    pub fn sync(&mut self, now: Instant, id: u64) {
        match self.failed {
            Some(_) if planted(Bug::FailureForgotten) => self.answers.push_back((id, Ok(self.on))),
            Some(why) => self.answers.push_back((id, Err(why))),
            None => {
                self.waiting.push(id);
                self.go_on(now);
            }
        }
    }

    /// A benefactor answers a put.
    pub fn answer(&mut self, now: Instant, place: Place, instance: Instance, answer: PutAnswer) {
        match answer {
            PutAnswer::UnknownSession => return self.fail(Why::SessionEnded),
            PutAnswer::Stale => return self.life_over(now, place),
            PutAnswer::Stored | PutAnswer::Full | PutAnswer::Corrupt | PutAnswer::SourceFailed => {}
        }
        let mut stray = true;
        let mut failed = None;
        let Self { groups, latency, config, .. } = self;
        let seats = groups.values_mut().flat_map(|open| &mut open.columns).flat_map(|column| &mut column.seats);
        for seat in seats.filter(|seat| seat.place == place && seat.alive) {
            let sent = seat.sent.remove(&instance);
            let wanted = sent.map(|(_, wanted)| wanted).or_else(|| seat.wanted.remove(&instance));
            let Some(mut wanted) = wanted else { continue };
            stray = false;
            match answer {
                PutAnswer::Stored => {
                    if let Some((at, wanted)) = sent
                        && wanted.attempts == 0
                    {
                        latency.answered(now.since(at));
                    }
                    seat.stored.insert(instance);
                }
                PutAnswer::SourceFailed => {
                    failed = wanted.source;
                    seat.wanted.insert(instance, wanted);
                }
                PutAnswer::Full => {
                    seat.not_before = now + config.pause;
                    seat.wanted.insert(instance, wanted);
                }
                _ => {
                    wanted.attempts += 1;
                    seat.alive = wanted.attempts < config.attempts;
                    seat.wanted.insert(instance, wanted);
                }
            }
        }
        if let Some(source) = failed {
            // Not the one that was to take the chunk is to blame: who has lost one may have lost others.
            return self.life_over(now, source);
        }
        if let (Some((group, chunk)), false) = (self.own.get(&instance).copied(), stray) {
            self.unless_needed(group, chunk, instance);
        } else if stray && answer == PutAnswer::Stored && !self.is_named(instance) {
            self.effects.push_back(Effect::Withdraw(place, instance));
        }
        self.go_on(now);
    }

    /// A benefactor cannot be reached at all, or is in another life: what it has acknowledged does not count.
    pub fn life_over(&mut self, now: Instant, place: Place) {
        let columns = self.groups.values_mut().flat_map(|open| &mut open.columns);
        for seat in columns.flat_map(|column| &mut column.seats).filter(|seat| seat.place == place) {
            (seat.alive, seat.readable) = (false, false);
        }
        self.go_on(now);
    }

    /// No commit may name it, whether it is there or not.
    fn not_named(&mut self, place: Place) {
        let columns = self.groups.values_mut().flat_map(|open| &mut open.columns);
        let seats = columns.flat_map(|column| &mut column.seats).filter(|seat| seat.place == place);
        seats.for_each(|seat| seat.alive = false);
    }

    /// One more place for a column; `None`: there is none yet.
    pub fn placed(&mut self, now: Instant, group: u32, column: usize, place: Option<Place>) {
        let Some(open) = self.groups.get_mut(&group) else { return };
        let part = open.part(&open.table, column);
        let goal = self.round.as_ref().and_then(|round| round.goal.get(&group)).map(|goal| open.part(goal, column));
        let Some(seats) = open.columns.get_mut(column) else { return };
        let is_known = |place: &Place| seats.seats.iter().any(|seat| seat.place == *place && seat.alive);
        if let Some(place) = place.filter(|place| !is_known(place)) {
            let mut seat = Seat::new(place, now);
            seat.holey = planted(Bug::HoleAfterReplacement);
            if !seat.holey {
                goal.iter().flatten().chain(&part).for_each(|(chunk, entry)| seat.want(*chunk, *entry));
            }
            seats.seats.retain(|seat| seat.alive || seat.readable);
            seats.seats.push(seat);
            seats.asked = None;
        }
        self.go_on(now);
    }

    /// A benefactor has sealed a table, or lacks these chunks of it.
    pub fn sealed(&mut self, now: Instant, at: Place, group: u32, order: SealOrder, missing: &[u32]) {
        let expected = self.order;
        let Some(round) = &mut self.round else { return };
        if round.stage != Stage::Sealing || order != expected || round.seals.remove(&(at, group)).is_none() {
            return;
        }
        if !missing.is_empty() {
            round.stage = Stage::Filling;
            let (goal, open) = (round.goal.get(&group), self.groups.get_mut(&group));
            if let (Some(goal), Some(open)) = (goal, open) {
                for chunk in missing {
                    let (Some(entry), column) = (goal.get(chunk), open.stripe.column((*chunk).into())) else {
                        continue;
                    };
                    for seat in open.columns[column].seats.iter_mut().filter(|seat| seat.place == at) {
                        seat.stored.remove(&entry.instance);
                        seat.want(*chunk, *entry);
                    }
                }
            }
        }
        self.go_on(now);
    }

    /// The store has answered a commit; `None`: nobody knows how it ended. A late answer to an earlier one is not minded: it would be taken
    /// for one about what was written since.
    pub fn committed(&mut self, now: Instant, id: u64, outcome: Option<Result<Version, Refusal>>) {
        let is_this = id == self.commits || planted(Bug::LateAnswerCounts);
        let awaited = |round: &&mut Round| round.stage == Stage::Committing && is_this;
        let Some(round) = self.round.as_mut().filter(awaited) else { return };
        match outcome {
            None if planted(Bug::UnknownCommitCounts) => {
                let version = self.on.next();
                self.finish(version);
            }
            None => {
                round.unknown = true;
                self.send_commit(now);
            }
            Some(Ok(version)) => self.finish(version),
            Some(Err(Refusal::Version(_))) if round.unknown && !round.goal.is_empty() => {
                (round.stage, round.sent_at) = (Stage::Settling, now);
                let groups = round.goal.keys().copied().collect();
                self.effects.push_back(Effect::Settle(groups));
            }
            Some(Err(Refusal::Version(version))) => self.rebase(version),
            Some(Err(Refusal::Benefactors(places))) => {
                (round.stage, round.unknown) = (Stage::Filling, false);
                places.into_iter().for_each(|place| self.not_named(place));
            }
            Some(Err(Refusal::NotFound)) => self.fail(Why::Removed),
            Some(Err(_)) => self.fail(Why::SessionEnded),
        }
        self.go_on(now);
    }

    /// The file's version by now, and which version of each group of the round the store has, and by whom.
    pub fn settled(&mut self, now: Instant, version: Version, groups: &BTreeMap<u32, (Version, SessionId)>) {
        let Some(round) = self.round.as_mut().filter(|round| round.stage == Stage::Settling) else { return };
        let ours = |group: &u32| groups.get(group).is_some_and(|(of, by)| *by == self.session && *of > self.on);
        if round.goal.keys().any(ours) {
            self.finish(version);
        } else {
            self.rebase(version);
        }
        self.go_on(now);
    }

    /// The session has ended: the writer fails, for good.
    pub fn session_ended(&mut self) {
        self.fail(Why::SessionEnded);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        let Config { timeout, attempts, hedge_least, .. } = self.config;
        let hedge = self.latency.median().map(|median| (median * HEDGE).max(hedge_least));
        for column in self.groups.values_mut().flat_map(|open| &mut open.columns) {
            for seat in column.seats.iter_mut().filter(|seat| seat.alive) {
                let is_late = |at: &Instant| now.since(*at) >= timeout;
                let slow = |at: &Instant| hedge.is_some_and(|hedge| now.since(*at) >= hedge);
                column.hedged |= seat.sent.values().any(|(at, _)| slow(at));
                let late: Vec<Instance> =
                    seat.sent.iter().filter(|(_, (at, _))| is_late(at)).map(|(instance, _)| *instance).collect();
                for instance in late {
                    if let Some((_, mut wanted)) = seat.sent.remove(&instance) {
                        wanted.attempts += 1;
                        seat.alive &= wanted.attempts < attempts;
                        seat.wanted.insert(instance, wanted);
                    }
                }
            }
        }
        self.tick_round(now);
        self.go_on(now);
    }

    /// When [`Writer::tick`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if self.failed.is_some() {
            return None;
        }
        let hedge = self.latency.median().map(|median| (median * HEDGE).max(self.config.hedge_least));
        let columns = || self.groups.values().flat_map(|open| &open.columns);
        let puts = columns().flat_map(|column| {
            let after = hedge.filter(|_| !column.hedged).unwrap_or(self.config.timeout).min(self.config.timeout);
            let seats = column.seats.iter().filter(|seat| seat.alive);
            let each = seats.flat_map(move |seat| {
                let full = (!seat.wanted.is_empty()).then_some(seat.not_before);
                seat.sent.values().map(move |(at, _)| *at + after).chain(full)
            });
            each.chain(column.asked.map(|asked| asked + self.config.pause))
        });
        let round = self.round.iter().flat_map(|round| {
            let seals = round.seals.values().map(|(at, _)| *at);
            let store = matches!(round.stage, Stage::Committing | Stage::Settling).then_some(round.sent_at);
            seals.chain(store).map(|at| at + self.config.timeout)
        });
        puts.chain(round).min().map(|at| at.max(now + Duration::from_millis(1)))
    }

    /// What to do next.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What became of a sync.
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
}
