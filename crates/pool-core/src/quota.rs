//! Quotas of users: what counts against them, and who may have more.
//!
//! **No sum is kept that could drift**: what a user has follows from the nodes and the writers that the store has at one revision ([`used`]).
//! Bytes are those of files that no target has, as long as programs see them, once, however many copies there are: they are what the pool has
//! to keep. Files are all nodes that the store has, also those that the target has as well: they take the store's room.
//!
//! **What is taken from a program is never refused later**: a session reserves room for a file before it takes what makes that longer, and the
//! store has the reservation beside the session's right to write. A file counts as long as the longest of what was committed of it and what is reserved.
//! What makes a file no longer is reserved whatever the quota allows, and counts.
//!
//! **Managers look at the store now and then** ([`Admission`]), since a look reads all nodes. From one look to the next a manager gives a part of what
//! was free at most and one request that is larger, so that several of them together stay near the limit, however late each learns what the others
//! have given. Nothing is refused that may fit by a look that has just begun.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::id::{Inode, Revision};
use crate::meta::{FileState, Key, Kind, Node, Stored, Value};
use crate::planted::{Bug, planted};

/// Whom no quota limits.
pub const ROOT: u32 = 0;
/// A manager gives one part in so many of what was free at its last look: four managers together give no more than that.
const SHARE: u64 = 4;
/// A reservation takes at most one part in so many of what is left, beyond what it needs: who comes next needs some as well.
const AHEAD: u64 = 16;
/// So many of what was given are remembered without a look that sees them.
const GRANTS: usize = 4096;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Bytes of files that no target has.
    Bytes,
    /// Files, directories and all else that has a number.
    Files,
}

impl fmt::Display for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bytes => "bytes",
            Self::Files => "files",
        })
    }
}

/// How much a user may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// As much as everybody of whom nothing is said.
    #[default]
    AsDefault,
    /// Whatever there is.
    Unlimited,
    /// So much.
    AtMost(u64),
}

/// What is said of a user, or of everybody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of files that no target has.
    pub bytes: Limit,
    /// Files.
    pub files: Limit,
}

impl Quota {
    /// Of one of both.
    #[must_use]
    pub const fn of(&self, resource: Resource) -> Limit {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Files => self.files,
        }
    }
}

/// Quotas by their users; `None`: everybody of whom nothing is said.
pub type Quotas = BTreeMap<Option<u32>, Quota>;

/// How much a user may have; `None`: there is no limit.
#[must_use]
pub fn limit(quotas: &Quotas, user: u32, resource: Resource) -> Option<u64> {
    let said = |of: Option<u32>| quotas.get(&of).map_or(Limit::AsDefault, |quota| quota.of(resource));
    let of_user = match said(Some(user)) {
        Limit::AsDefault => said(None),
        own => own,
    };
    match of_user {
        Limit::AtMost(most) if user != ROOT => Some(most),
        _ => None,
    }
}

/// The quotas that a store has.
pub fn quotas<'a>(stored: impl IntoIterator<Item = &'a (Key, Stored)>) -> Quotas {
    let quota = |(key, stored): &(Key, Stored)| match (key, &stored.value) {
        (Key::Quota(user), Value::Quota(quota)) => Some((*user, *quota)),
        _ => None,
    };
    stored.into_iter().filter_map(quota).collect()
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes of files that no target has.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

impl Used {
    /// Nothing.
    pub const NONE: Self = Self { bytes: 0, files: 0 };

    /// Of one of both.
    #[must_use]
    pub const fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Bytes => self.bytes,
            Resource::Files => self.files,
        }
    }

    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
    }
}

/// The longest file for which one of these writers has reserved room; `None`: nobody writes it.
pub fn reserved<'a>(writers: impl IntoIterator<Item = &'a Value>) -> Option<u64> {
    let of = |writer: &Value| match writer {
        Value::Reserved(_, _, size) => *size,
        _ => 0,
    };
    writers.into_iter().map(of).max()
}

/// What a node counts, whose writers have [`reserved`] that.
#[must_use]
pub fn of_node(node: &Node, reserved: Option<u64>) -> Used {
    // What has no name ends as soon as nobody has it open. Nor does a mount's root have one, which is nobody's doing.
    if node.at.is_none() && reserved.is_none() && !planted(Bug::UnlinkedCounts) {
        return Used::NONE;
    }
    let Kind::File(state) = node.kind else { return Used { bytes: 0, files: 1 } };
    let left = |base: &crate::meta::value::Base| base.draft.is_none() && base.version == node.version;
    let committed = match state {
        FileState::Drained | FileState::Evicted if !planted(Bug::DrainedCounts) => 0,
        // Somebody has changed it at the target after it had left the pool.
        FileState::Conflict if node.base.as_ref().is_some_and(left) => 0,
        _ => node.size,
    };
    let reserved = reserved.unwrap_or(0);
    let bytes = if planted(Bug::ReservedCountsTwice) { committed + reserved } else { committed.max(reserved) };
    Used { bytes, files: 1 }
}

/// What every user has, by all nodes and all writers of a store at one revision.
pub fn used<'a>(
    nodes: impl IntoIterator<Item = &'a (Key, Stored)>,
    writers: impl IntoIterator<Item = &'a (Key, Stored)>,
) -> BTreeMap<u32, Used> {
    let mut written: BTreeMap<Inode, u64> = BTreeMap::new();
    for (key, stored) in writers {
        let Key::Writer(inode, _) = key else { continue };
        let longest = written.entry(*inode).or_default();
        *longest = (*longest).max(reserved([&stored.value]).unwrap_or(0));
    }
    let mut users: BTreeMap<u32, Used> = BTreeMap::new();
    for (key, stored) in nodes {
        let (Key::Node(inode), Value::Node(node)) = (key, &stored.value) else { continue };
        let counts = of_node(node, written.get(inode).copied());
        if counts != Used::NONE {
            users.entry(node.owner.1).or_default().add(counts);
        }
    }
    users
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// One file more.
    File,
    /// More bytes of a file than it counts.
    Bytes {
        /// So many were taken, or cannot be refused.
        taken: u64,
        /// So many more are needed.
        least: u64,
        /// So many are of use.
        most: u64,
    },
}

/// What the last look at the store is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It began after it was asked for: what it shows is not too old for a refusal.
    Since,
    /// Whoever asks has waited for long: it is the last.
    Last,
    /// It is a short time old.
    Lately,
    /// Too long ago to give anything.
    LongAgo,
}

/// What was given, and is not seen in the store yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantId(u64);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The user has no such limit.
    Unlimited,
    /// So many bytes are given, with what was taken, or the file. The driver says when the transaction that takes them has ended.
    Granted(GrantId, u64),
    /// The store has to be looked at first.
    Look,
    /// The user has all of what is allowed.
    Over(Resource),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its transaction may take place.
    UnderWay,
    /// It took place, or never will.
    Ended,
    /// That was before the present look began, which sees what came of it.
    Seen,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    user: u32,
    of: Used,
    stage: Stage,
}

/// What one manager knows of quotas.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    quotas: Quotas,
    /// As of when.
    said: Revision,
    used: BTreeMap<u32, Used>,
    grants: BTreeMap<GrantId, Grant>,
    /// The sum of these for each user.
    spent: BTreeMap<u32, Used>,
    /// To whom more than the part was given since the last look.
    large: BTreeSet<(u32, Resource)>,
    granted: u64,
}

impl Admission {
    /// Quotas as of a revision, unless later ones are known. What users have is as it was at the last look.
    pub fn set(&mut self, quotas: Quotas, at: Revision) {
        if at >= self.said {
            (self.quotas, self.said) = (quotas, at);
        }
    }

    /// The quotas that are known.
    #[must_use]
    pub const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Whether a user has a limit.
    #[must_use]
    pub fn limits(&self, user: u32, resource: Resource) -> bool {
        limit(&self.quotas, user, resource).is_some()
    }

    /// A look at the store begins: it sees what has ended.
    pub fn begin_look(&mut self) {
        for grant in self.grants.values_mut().filter(|grant| grant.stage == Stage::Ended) {
            grant.stage = Stage::Seen;
        }
    }

    /// What the look has seen, and at which revision.
    pub fn looked(&mut self, quotas: Quotas, used: BTreeMap<u32, Used>, at: Revision) {
        self.set(quotas, at);
        self.used = used;
        self.large.clear();
        self.grants.retain(|_, grant| grant.stage != Stage::Seen);
        self.add_up();
    }

    fn add_up(&mut self) {
        self.spent.clear();
        self.grants.values().for_each(|grant| self.spent.entry(grant.user).or_default().add(grant.of));
    }

    /// A user asks for more. By the [`Looked::Last`] look it is not asked to look again.
    pub fn ask(&mut self, user: u32, want: Want, looked: Looked) -> Answer {
        let (resource, taken, least, most) = match want {
            Want::File => (Resource::Files, 0, 1, 1),
            Want::Bytes { taken, least, most } => (Resource::Bytes, taken, least, most.max(least)),
        };
        let Some(limit) = limit(&self.quotas, user, resource) else { return Answer::Unlimited };
        // It counts already, or nobody may refuse it. A look forgets what it sees of what was given.
        if least == 0 && !planted(Bug::TakenRefused) {
            if looked == Looked::LongAgo && self.grants.len() >= GRANTS {
                return Answer::Look;
            }
            return self.grant(user, resource, taken);
        }
        if looked == Looked::LongAgo {
            return Answer::Look;
        }
        let free = limit.saturating_sub(self.used.get(&user).map_or(0, |used| used.of(resource)));
        let spent = self.spent.get(&user).map_or(0, |spent| spent.of(resource));
        let (left, needed) = (free.saturating_sub(spent), taken.saturating_add(least));
        if needed > left {
            // What was given may be in what the look has seen.
            let may_fit = needed <= free && !planted(Bug::GrantSeenTwice);
            return match looked {
                Looked::Since if !may_fit => Answer::Over(resource),
                Looked::Last => Answer::Over(resource),
                _ => Answer::Look,
            };
        }
        let share = if planted(Bug::ShareIgnored) { left } else { (free / SHARE).saturating_sub(spent) };
        if needed <= share {
            return self.grant(user, resource, taken + most.min((left / AHEAD).clamp(least, share - taken)));
        }
        // More than the share goes to one request, by a look of its own.
        let is_first = !self.large.contains(&(user, resource));
        if looked == Looked::Last || looked == Looked::Since && is_first {
            self.large.insert((user, resource));
            return self.grant(user, resource, needed);
        }
        Answer::Look
    }

    /// The transaction that takes what was given took place, or never will; or nobody knows.
    pub fn ended(&mut self, id: GrantId) {
        if planted(Bug::GrantForgotten) {
            self.grants.remove(&id);
            self.add_up();
        }
        if let Some(grant) = self.grants.get_mut(&id) {
            grant.stage = Stage::Ended;
        }
    }

    fn grant(&mut self, user: u32, resource: Resource, amount: u64) -> Answer {
        self.granted += 1;
        let id = GrantId(self.granted);
        let of = match resource {
            Resource::Bytes => Used { bytes: amount, files: 0 },
            Resource::Files => Used { bytes: 0, files: amount },
        };
        // Nothing is nothing to remember.
        if of != Used::NONE {
            self.spent.entry(user).or_default().add(of);
            self.grants.insert(id, Grant { user, of, stage: Stage::UnderWay });
        }
        Answer::Granted(id, amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_most(bytes: u64, files: u64) -> Quota {
        Quota { bytes: Limit::AtMost(bytes), files: Limit::AtMost(files) }
    }

    #[test]
    fn what_is_said_of_a_user_comes_before_what_is_said_of_everybody_and_nothing_limits_root() {
        let own = Quota { bytes: Limit::Unlimited, files: Limit::AsDefault };
        let quotas: Quotas = [(None, at_most(10, 3)), (Some(7), own), (Some(ROOT), at_most(1, 1))].into();
        let limits = |user| (limit(&quotas, user, Resource::Bytes), limit(&quotas, user, Resource::Files));
        assert_eq!(limits(5), (Some(10), Some(3)));
        assert_eq!(limits(7), (None, Some(3)));
        assert_eq!(limits(ROOT), (None, None));
        assert_eq!(limit(&Quotas::new(), 5, Resource::Bytes), None);
    }

    #[test]
    fn what_nobody_may_refuse_is_looked_for_before_there_is_too_much_of_it() {
        let mut admission = Admission::default();
        knows(&mut admission, 0, 0);
        let mut looks = 0;
        for _ in 0..3 * GRANTS {
            let want = Want::Bytes { taken: 1, least: 0, most: 0 };
            let mut answer = admission.ask(5, want, Looked::LongAgo);
            if answer == Answer::Look {
                looks += 1;
                admission.begin_look();
                knows(&mut admission, 0, 0);
                answer = admission.ask(5, want, Looked::Since);
            }
            let Answer::Granted(id, 1) = answer else { panic!("{answer:?}") };
            admission.ended(id);
            assert!(admission.grants.len() <= GRANTS);
        }
        assert_eq!(looks, 2);
    }

    /// A manager that knows how much user 5 has, of 1600 bytes and two files.
    fn knows(admission: &mut Admission, bytes: u64, files: u64) {
        let quotas: Quotas = [(None, at_most(1600, 2))].into();
        admission.looked(quotas, [(5, Used { bytes, files })].into(), Revision(1));
    }

    fn bytes(least: u64, most: u64) -> Want {
        Want::Bytes { taken: 0, least, most }
    }

    const OVER: Answer = Answer::Over(Resource::Bytes);

    #[test]
    fn a_manager_gives_a_part_of_what_was_free_and_the_rest_by_further_looks() {
        let mut admission = Admission::default();
        admission.set([(None, at_most(1600, 2))].into(), Revision(1));
        assert_eq!(admission.ask(5, bytes(1, 1), Looked::LongAgo), Answer::Look, "nothing was looked at yet");
        knows(&mut admission, 0, 0);
        // Beyond what is needed a sixteenth of what is left, and a quarter of it in all.
        assert_eq!(admission.ask(5, bytes(10, 1000), Looked::Lately), Answer::Granted(GrantId(1), 100));
        assert_eq!(admission.ask(5, bytes(290, 1000), Looked::Lately), Answer::Granted(GrantId(2), 290));
        assert_eq!(admission.ask(5, bytes(11, 11), Looked::Lately), Answer::Look);
        [1, 2].into_iter().for_each(|id| admission.ended(GrantId(id)));
        admission.begin_look();
        knows(&mut admission, 1500, 2);
        assert_eq!(admission.ask(5, bytes(101, 101), Looked::Lately), Answer::Look, "there may be more by now");
        assert_eq!(admission.ask(5, bytes(101, 101), Looked::Since), OVER);
        assert_eq!(admission.ask(5, bytes(90, 1000), Looked::Since), Answer::Granted(GrantId(3), 90));
        assert_eq!(admission.ask(5, bytes(5, 5), Looked::Since), Answer::Look, "one at a time");
        assert_eq!(admission.ask(5, bytes(0, 0), Looked::Lately), Answer::Granted(GrantId(4), 0), "it counts already");
        assert_eq!(admission.ask(5, Want::File, Looked::Since), Answer::Over(Resource::Files));
        assert_eq!(admission.ask(ROOT, Want::File, Looked::LongAgo), Answer::Unlimited);
    }

    #[test]
    fn nothing_is_refused_that_may_fit_until_it_has_waited_for_long() {
        let mut admission = Admission::default();
        knows(&mut admission, 0, 0);
        assert_eq!(admission.ask(5, bytes(800, 800), Looked::Since), Answer::Granted(GrantId(1), 800));
        // It is under way when a look begins, which sees it nevertheless.
        admission.begin_look();
        knows(&mut admission, 800, 0);
        assert_eq!(admission.ask(5, bytes(801, 801), Looked::Since), OVER, "that cannot fit");
        assert_eq!(admission.ask(5, bytes(700, 700), Looked::Since), Answer::Look);
        assert_eq!(admission.ask(5, bytes(700, 700), Looked::Last), OVER);
        admission.ended(GrantId(1));
        admission.begin_look();
        knows(&mut admission, 800, 0);
        assert_eq!(admission.ask(5, bytes(700, 700), Looked::Since), Answer::Granted(GrantId(2), 700));
    }

    #[test]
    fn a_large_request_is_granted_though_others_are_given_parts_all_the_time() {
        let mut admission = Admission::default();
        knows(&mut admission, 0, 0);
        assert_eq!(admission.ask(5, bytes(10, 10), Looked::Lately), Answer::Granted(GrantId(1), 10));
        admission.begin_look();
        knows(&mut admission, 0, 0);
        assert_eq!(admission.ask(5, bytes(10, 10), Looked::Since), Answer::Granted(GrantId(2), 10));
        assert_eq!(admission.ask(5, bytes(900, 900), Looked::Since), Answer::Granted(GrantId(3), 900));
        assert_eq!(admission.ask(5, bytes(500, 500), Looked::Since), Answer::Look, "one by each look");
        assert_eq!(admission.ask(5, bytes(500, 500), Looked::Last), Answer::Granted(GrantId(4), 500));
        assert_eq!(admission.ask(5, bytes(500, 500), Looked::Last), OVER);
    }

    #[test]
    fn what_was_taken_counts_and_is_refused_never() {
        let mut admission = Admission::default();
        knows(&mut admission, 1500, 0);
        let want = |taken, least| Want::Bytes { taken, least, most: least };
        assert_eq!(admission.ask(5, want(50, 51), Looked::Since), OVER);
        assert_eq!(admission.ask(5, want(50, 20), Looked::Since), Answer::Granted(GrantId(1), 70));
        assert_eq!(admission.ask(5, want(5000, 0), Looked::LongAgo), Answer::Granted(GrantId(2), 5000));
        assert_eq!(admission.ask(5, bytes(1, 1), Looked::Last), OVER, "it counts");
    }

    #[test]
    fn quotas_that_were_read_earlier_do_not_replace_later_ones() {
        let mut admission = Admission::default();
        admission.set([(None, at_most(10, 10))].into(), Revision(7));
        admission.looked(Quotas::new(), BTreeMap::new(), Revision(6));
        assert!(admission.limits(5, Resource::Bytes));
        admission.set(Quotas::new(), Revision(8));
        assert!(!admission.limits(5, Resource::Bytes));
    }
}
