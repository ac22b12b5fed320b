//! Quotas of users: what counts against them, and who may have more.
//!
//! **No sum is kept that could drift**: what a user has follows from the nodes and the writers that the store has at one revision ([`used`]).
//! Bytes are those of files that no target has, as long as programs see them, once, however many copies there are: they are what the pool has
//! to keep. Files are all nodes that the store has, also those that the target has as well: they take the store's room.
//!
//! **What is taken from a program is never refused later**: a session reserves room for a file before it takes what makes that longer, and the
//! store has the reservation beside the session's right to write. A file counts as long as the longest of what was committed of it and what is reserved.
//!
//! **Managers look at the store now and then** ([`Admission`]), since a look reads all nodes. From one look to the next a manager gives a part of what
//! was free at most, so that several of them together stay near the limit, however late each learns what the others have given.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::Inode;
use crate::meta::{FileState, Key, Kind, Node, Stored, Value};
use crate::planted::{Bug, planted};

/// Whom no quota limits.
pub const ROOT: u32 = 0;
/// A manager gives one part in so many of what was free at its last look: four managers together give no more than that.
const SHARE: u64 = 4;
/// A reservation takes at most one part in so many of what is left, beyond what it needs: who comes next needs some as well.
const AHEAD: u64 = 16;

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
        /// So many are needed.
        least: u64,
        /// So many are of use.
        most: u64,
    },
}

/// When the last look at the store began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// After it was asked for: what it shows is not too old for a refusal.
    Since,
    /// Lately.
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
    /// So many bytes are given, or the file. The driver says when the transaction that takes them has ended.
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
    used: BTreeMap<u32, Used>,
    grants: BTreeMap<GrantId, Grant>,
    /// The sum of these for each user.
    spent: BTreeMap<u32, Used>,
    granted: u64,
}

impl Admission {
    /// Quotas as of now. What users have is as it was at the last look.
    pub fn set(&mut self, quotas: Quotas) {
        self.quotas = quotas;
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

    /// What the look has seen.
    pub fn looked(&mut self, quotas: Quotas, used: BTreeMap<u32, Used>) {
        (self.quotas, self.used) = (quotas, used);
        self.grants.retain(|_, grant| grant.stage != Stage::Seen);
        self.add_up();
    }

    fn add_up(&mut self) {
        self.spent.clear();
        self.grants.values().for_each(|grant| self.spent.entry(grant.user).or_default().add(grant.of));
    }

    /// A user asks for more.
    pub fn ask(&mut self, user: u32, want: Want, looked: Looked) -> Answer {
        let (resource, least, most) = match want {
            Want::File => (Resource::Files, 1, 1),
            Want::Bytes { least, most } => (Resource::Bytes, least, most.max(least)),
        };
        let Some(limit) = limit(&self.quotas, user, resource) else { return Answer::Unlimited };
        // What counts already is not asked for again.
        if least == 0 {
            return self.grant(user, resource, 0);
        }
        if looked == Looked::LongAgo {
            return Answer::Look;
        }
        let free = limit.saturating_sub(self.used.get(&user).map_or(0, |used| used.of(resource)));
        let spent = self.spent.get(&user).map_or(0, |spent| spent.of(resource));
        let left = free.saturating_sub(spent);
        if least > left {
            return if looked == Looked::Since { Answer::Over(resource) } else { Answer::Look };
        }
        let share = if planted(Bug::ShareIgnored) { left } else { (free / SHARE).saturating_sub(spent) };
        if least <= share {
            return self.grant(user, resource, most.min((left / AHEAD).clamp(least, share)));
        }
        // More than the share goes to one request, by a look of its own.
        if looked == Looked::Since && spent == 0 { self.grant(user, resource, least) } else { Answer::Look }
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
    fn a_manager_gives_a_part_of_what_was_free_and_the_rest_by_further_looks() {
        let mut admission = Admission::default();
        let quotas: Quotas = [(None, at_most(1600, 2))].into();
        admission.set(quotas.clone());
        let bytes = |least, most| Want::Bytes { least, most };
        assert_eq!(admission.ask(5, bytes(1, 1), Looked::LongAgo), Answer::Look, "nothing was looked at yet");
        admission.looked(quotas.clone(), [(5, Used { bytes: 0, files: 0 })].into());
        // Beyond what is needed a sixteenth of what is left, and a quarter of it in all.
        assert_eq!(admission.ask(5, bytes(10, 1000), Looked::Lately), Answer::Granted(GrantId(1), 100));
        assert_eq!(admission.ask(5, bytes(290, 1000), Looked::Lately), Answer::Granted(GrantId(2), 290));
        assert_eq!(admission.ask(5, bytes(11, 11), Looked::Lately), Answer::Look);
        [1, 2].into_iter().for_each(|id| admission.ended(GrantId(id)));
        admission.begin_look();
        admission.looked(quotas.clone(), [(5, Used { bytes: 1500, files: 2 })].into());
        assert_eq!(admission.ask(5, bytes(101, 101), Looked::Lately), Answer::Look, "there may be more by now");
        assert_eq!(admission.ask(5, bytes(101, 101), Looked::Since), Answer::Over(Resource::Bytes));
        assert_eq!(admission.ask(5, bytes(90, 1000), Looked::Since), Answer::Granted(GrantId(3), 90));
        assert_eq!(admission.ask(5, bytes(5, 5), Looked::Since), Answer::Look, "one at a time");
        assert_eq!(admission.ask(5, bytes(0, 0), Looked::Lately), Answer::Granted(GrantId(4), 0), "it counts already");
        assert_eq!(admission.ask(5, Want::File, Looked::Since), Answer::Over(Resource::Files));
        assert_eq!(admission.ask(ROOT, Want::File, Looked::LongAgo), Answer::Unlimited);
        // What is under way when a look begins may not be seen by it.
        admission.begin_look();
        admission.looked(quotas, [(5, Used { bytes: 1590, files: 0 })].into());
        assert_eq!(admission.ask(5, bytes(5, 5), Looked::Since), Answer::Over(Resource::Bytes));
    }
}
