//! Which benefactors are alive, and in which life.
//!
//! A benefactor is alive while its lease in the store is, and dead once the lease is gone *and* nobody reaches it: a lease alone
//! excludes nobody, and a store with a slow disk may revoke leases of benefactors that are well. When more than a third of all
//! leases are lost within a short time the store is suspected first: the pool *holds*, declares nobody dead, and copies nothing,
//! until a third or fewer are missing or the grace is over.
//!
//! A benefactor that returns has a new incarnation: what it acknowledged in a former one and kept in memory is gone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use surgetank_model::Instant;

use crate::id::{BenefactorId, Incarnation};
use crate::planted::{Bug, planted};

/// When a benefactor counts as dead.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a probe waits for its answer.
    pub probe_timeout: Duration,
    /// The pause between the end of a probe and the next.
    pub probe_interval: Duration,
    /// Probes in sequence that must fail.
    pub probes: u32,
    /// Losses of leases within this time belong together.
    pub together: Duration,
    /// How long a hold lasts after the last lost lease.
    pub grace: Duration,
    /// How long it lasts at most, though leases are lost on and on.
    pub hold_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            probe_timeout: Duration::from_secs(1),
            probe_interval: Duration::from_millis(500),
            probes: 3,
            together: Duration::from_secs(10),
            grace: Duration::from_secs(60),
            hold_max: Duration::from_secs(300),
        }
    }
}

/// What is known of a benefactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its lease is alive, or it answers probes.
    Alive,
    /// Its lease is gone; it is being probed.
    Suspect,
    /// Neither lease nor answers. What only its memory had is lost.
    Dead,
}

/// What the rest of the pool has to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A benefactor lends from now on.
    Joined(BenefactorId, Incarnation),
    /// It lends again, in a new life: `former` never counts again.
    Returned {
        /// Who.
        id: BenefactorId,
        /// Its new life.
        incarnation: Incarnation,
        /// The life that has ended.
        former: Incarnation,
    },
    /// It is dead.
    Died(BenefactorId, Incarnation),
    /// It left on purpose, with nothing on it.
    Left(BenefactorId),
    /// So many leases are gone that the store is suspected: nobody is declared dead.
    HoldBegan {
        /// Benefactors whose leases are gone.
        missing: usize,
        /// All that have not left.
        of: usize,
    },
    /// The hold is over.
    HoldEnded,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    incarnation: Incarnation,
    state: State,
    leased: bool,
    lost_at: Instant,
    probing: Probing,
    failed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probing {
    No,
    From(Instant),
    /// Sent; it failed if it is not answered by then.
    Until(Instant),
}

/// See the module.
#[derive(Debug)]
pub struct Membership {
    config: Config,
    members: BTreeMap<BenefactorId, Member>,
    /// Since when the pool holds, and until when.
    hold: Option<(Instant, Instant)>,
    changes: VecDeque<Change>,
}

impl Membership {
    /// A pool that nobody has joined.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, members: BTreeMap::new(), hold: None, changes: VecDeque::new() }
    }

    /// The store has a lease of this benefactor's life.
    pub fn leased(&mut self, now: Instant, id: BenefactorId, incarnation: Incarnation) {
        let fresh =
            Member { incarnation, state: State::Alive, leased: true, lost_at: now, probing: Probing::No, failed: 0 };
        match self.members.get_mut(&id) {
            None => {
                self.members.insert(id, fresh);
                self.changes.push_back(Change::Joined(id, incarnation));
            }
            // A late word of a life that has ended.
            Some(member) if incarnation < member.incarnation => {}
            Some(member) => {
                let former = *member;
                *member = fresh;
                if incarnation > former.incarnation {
                    self.changes.push_back(Change::Returned { id, incarnation, former: former.incarnation });
                } else if former.state == State::Dead {
                    // The same life after all: what it has counts again, and nobody takes it for another.
                    self.changes.push_back(Change::Joined(id, incarnation));
                }
            }
        }
        self.look_at_hold(now);
    }

    /// The store has no lease of this life any more.
    pub fn lease_lost(&mut self, now: Instant, id: BenefactorId, incarnation: Incarnation) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.incarnation != incarnation || !member.leased {
            return;
        }
        (member.leased, member.lost_at, member.failed) = (false, now, 0);
        (member.state, member.probing) = (State::Suspect, Probing::From(now));
        if let Some((since, until)) = &mut self.hold {
            *until = (now + self.config.grace).min(*since + self.config.hold_max);
        }
        self.look_at_hold(now);
    }

    /// It left on purpose: nothing lies on it.
    pub fn left(&mut self, now: Instant, id: BenefactorId) {
        if self.members.remove(&id).is_some() {
            self.changes.push_back(Change::Left(id));
            self.look_at_hold(now);
        }
    }

    /// A probe was answered, by this life.
    pub fn probe_answered(&mut self, now: Instant, id: BenefactorId, incarnation: Incarnation) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Probing::Until(_) = member.probing else { return };
        member.probing = Probing::From(now + self.config.probe_interval);
        member.failed = 0;
        if incarnation != member.incarnation {
            // Another life: it will have a lease of its own. This one is over, whatever the store knows.
            self.died(id);
        } else if member.state == State::Suspect {
            member.state = State::Alive;
        }
    }

    /// A probe was refused: nobody is there.
    pub fn probe_failed(&mut self, now: Instant, id: BenefactorId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Probing::Until(_) = member.probing else { return };
        member.probing = Probing::From(now + self.config.probe_interval);
        member.failed += 1;
        if member.state == State::Alive {
            member.state = State::Suspect;
        }
        self.decide(id);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        let late: Vec<BenefactorId> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.probing, Probing::Until(until) if until <= now))
            .map(|(id, _)| *id)
            .collect();
        late.into_iter().for_each(|id| self.probe_failed(now, id));
        self.look_at_hold(now);
    }

    /// Whom to probe now.
    pub fn next_probe(&mut self, now: Instant) -> Option<(BenefactorId, Incarnation)> {
        let timeout = self.config.probe_timeout;
        let due = |member: &Member| matches!(member.probing, Probing::From(from) if from <= now);
        let (id, member) = self.members.iter_mut().map(|(id, member)| (*id, member)).find(|(_, member)| due(member))?;
        member.probing = Probing::Until(now + timeout);
        Some((id, member.incarnation))
    }

    /// When [`Membership::tick`] or [`Membership::next_probe`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let probes = self.members.values().filter_map(|member| match member.probing {
            Probing::No => None,
            Probing::From(at) | Probing::Until(at) => Some(at),
        });
        probes.chain(self.hold.map(|(_, until)| until)).min()
    }

    /// What has changed.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Whether the pool holds: nobody is declared dead, and no copy is replaced.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// What is known of a benefactor; `None`: it never joined, or has left.
    #[must_use]
    pub fn state(&self, id: BenefactorId) -> Option<State> {
        self.members.get(&id).map(|member| member.state)
    }

    /// Whether a benefactor has a lease. One that answers probes without has its bytes, but no commit may name it.
    #[must_use]
    pub fn has_lease(&self, id: BenefactorId) -> bool {
        self.members.get(&id).is_some_and(|member| member.leased)
    }

    /// The newest life of a benefactor that is not dead.
    #[must_use]
    pub fn incarnation(&self, id: BenefactorId) -> Option<Incarnation> {
        let member = self.members.get(&id).filter(|member| member.state != State::Dead)?;
        Some(member.incarnation)
    }

    fn died(&mut self, id: BenefactorId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.state != State::Dead {
            (member.state, member.probing) = (State::Dead, Probing::No);
            self.changes.push_back(Change::Died(id, member.incarnation));
        }
    }

    /// Declares it dead if it is.
    fn decide(&mut self, id: BenefactorId) {
        let held = self.hold.is_some() && !planted(Bug::NoHold);
        let Some(member) = self.members.get(&id) else { return };
        if !held && !member.leased && member.state == State::Suspect && member.failed >= self.config.probes {
            self.died(id);
        }
    }

    /// Begins or ends the hold.
    fn look_at_hold(&mut self, now: Instant) {
        let of = self.members.values().filter(|member| member.state != State::Dead).count();
        let missing = self.members.values().filter(|member| !member.leased && member.state != State::Dead).count();
        let recent = self
            .members
            .values()
            .filter(|member| !member.leased && member.state != State::Dead)
            .filter(|member| now.since(member.lost_at) <= self.config.together)
            .count();
        match self.hold {
            None if 3 * recent > of => {
                self.hold = Some((now, now + self.config.grace));
                self.changes.push_back(Change::HoldBegan { missing, of });
            }
            Some(_) if 3 * missing <= of => self.end_hold(),
            Some((_, until)) if until <= now => self.end_hold(),
            _ => {}
        }
    }

    fn end_hold(&mut self) {
        self.hold = None;
        self.changes.push_back(Change::HoldEnded);
        // What failed in the hold says little: whoever is still missing is probed anew.
        self.members.values_mut().for_each(|member| member.failed = 0);
    }
}
