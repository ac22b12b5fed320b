//! In which order the target sees what was committed.
//!
//! Programs commit a checkpoint by an order: data first, then a marker or a rename. So the target sees the changes of a mount
//! strictly in the order in which they were committed; only the bytes, which take long, are brought there ahead of it, under temporary
//! names. A file that was removed before its bytes were there is passed over, if nothing that the target has is moved or removed before that
//! removal has its turn, and nothing that stays is waited for: the target keeps what it has, and then has what the pool had.
//!
//! One process publishes a mount. The next one that does may find the first entry done already: its predecessor ended between the change and
//! the record of it. So may one whose attempt has failed behind the change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::id::{Inode, Revision, Version};
use crate::meta::operation::PublicationEnd;
use crate::meta::value::{Change, Path, Value};
use crate::planted::{Bug, planted};

/// What to do at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The entry's number in the journal.
    pub journal: u64,
    /// The change. [`Change::Publish`]: flush, give the file its name, flush the directory.
    pub change: Change,
    /// A predecessor, or an attempt that failed, may have made it: then that what moves or is removed is no longer there, or that what is
    /// made is there, is no failure.
    pub maybe_done: bool,
}

/// An entry that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    /// What it changes.
    pub change: &'a Change,
    /// The target has seen everything before it.
    pub is_first: bool,
    /// A predecessor, or an attempt that failed, may have made it.
    pub maybe_done: bool,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target has it, flushed.
    Done,
    /// Somebody else changed what is there: it stays as it is.
    Conflict,
    /// The target does not answer, or is full: later.
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    /// An attempt has failed, perhaps after the change: as when what was changed could not be flushed.
    Again,
    Under,
    Recording,
}

impl Stage {
    const fn waits(self) -> bool {
        matches!(self, Self::Waits | Self::Again)
    }
}

/// What a process that publishes finds of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    /// A file rests on it.
    Needed,
    /// Nothing does, and nobody is about to record that something does.
    Unused,
    /// Another process publishes: it may be about to record that a file rests on it.
    OfAnother,
}

impl Draft {
    /// What a snapshot of the store says of a draft that was seen before: `owner` is who publishes, `own` this process. If this process
    /// publishes after it saw the draft, whoever made that is this one, or publishes no more.
    #[must_use]
    pub fn of(draft: u64, node: Option<&Value>, owner: Option<&Value>, own: u64) -> Self {
        if owner != Some(&Value::Owner(own)) && !planted(Bug::DraftOfAnotherRemoved) {
            return Self::OfAnother;
        }
        match node {
            Some(Value::Node(node)) if node.base.and_then(|base| base.draft) == Some(draft) => Self::Needed,
            _ => Self::Unused,
        }
    }
}

/// Entries that may lie between a file that is passed over and its removal, at most: they are looked at for each such file.
const BETWEEN: usize = 4096;

/// Where in the journal an entry is: when it was written, and its number.
type At = (Revision, u64);

/// See the module.
#[derive(Debug)]
pub struct Publisher {
    entries: BTreeMap<At, (Change, Stage)>,
    /// Entries that remove what is at a path.
    removals: BTreeMap<Path, BTreeSet<At>>,
    /// Those of them that find nothing: their files were passed over, and the target had nothing at their names.
    vain: BTreeSet<At>,
    ready: BTreeSet<(Inode, Version)>,
    /// What the target will never have, and why.
    never: BTreeMap<(Inode, Version), PublicationEnd>,
    /// What no predecessor can have done: everything behind the first entry that this process has seen through.
    fresh: bool,
    records: Vec<(u64, PublicationEnd)>,
}

impl Default for Publisher {
    fn default() -> Self {
        Self::new()
    }
}

impl Publisher {
    /// A process that has just been given the role.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            removals: BTreeMap::new(),
            vain: BTreeSet::new(),
            ready: BTreeSet::new(),
            never: BTreeMap::new(),
            fresh: false,
            records: Vec::new(),
        }
    }

    /// The journal has an entry, written at this revision. No entry with an earlier one comes later. Entries of one revision were
    /// committed together and do not touch each other's names.
    pub fn journalled(&mut self, at: Revision, journal: u64, change: Change) {
        if let Change::Remove(path) = &change {
            self.removals.entry(path.clone()).or_default().insert((at, journal));
        }
        self.entries.entry((at, journal)).or_insert((change, Stage::Waits));
    }

    /// All bytes of a version are at the target under a temporary name, verified and flushed.
    pub fn drained(&mut self, inode: Inode, version: Version) {
        self.ready.insert((inode, version));
    }

    /// Chunks of a version are lost, or its target has no files of its length: it will never be complete.
    pub fn lost(&mut self, inode: Inode, version: Version) {
        self.never.insert((inode, version), PublicationEnd::Lost);
    }

    /// Somebody else changed what a version rests on at the target: it will never be complete.
    pub fn in_conflict(&mut self, inode: Inode, version: Version) {
        self.never.insert((inode, version), PublicationEnd::Conflict);
    }

    /// What to do next: the first entry, once its bytes are there, unless it is to be passed over.
    pub fn next_effect(&mut self) -> Option<Effect> {
        let is_vain = |(at, (change, _)): (&At, &(Change, Stage))| {
            let is_never = change.publishes().is_some_and(|of| self.never.contains_key(&of));
            !is_never && self.removal(*at, change).is_some_and(|removal| self.vain.contains(&removal))
        };
        if self.entries.first_key_value().is_some_and(is_vain) {
            return None;
        }
        let maybe_done = !self.fresh;
        let passes = planted(Bug::PublishedOutOfOrder);
        let entries = self.entries.iter_mut().take(if passes { usize::MAX } else { 1 });
        for ((_, journal), (change, stage)) in entries.filter(|(_, (_, stage))| stage.waits()) {
            if let Some(version) = change.publishes() {
                if let Some(end) = self.never.get(&version) {
                    *stage = Stage::Recording;
                    self.records.push((*journal, *end));
                    continue;
                }
                if !self.ready.contains(&version) {
                    continue;
                }
            }
            let maybe_done = maybe_done || *stage == Stage::Again;
            *stage = Stage::Under;
            return Some(Effect { journal: *journal, change: change.clone(), maybe_done });
        }
        None
    }

    /// The first entry, if it publishes a file that was removed since, whose bytes are not there, and that can be
    /// [passed over](Publisher::pass_over): up to the removal nothing that the target has is moved or removed, and nothing is waited for that
    /// is not removed as well.
    #[must_use]
    pub fn passable(&self) -> Option<Effect> {
        let (at, (change, stage)) = self.entries.first_key_value()?;
        let Change::Publish { inode, version, path } = change else { return None };
        let (of, removal) = ((*inode, *version), self.removal(*at, change)?);
        // Of one file no later version takes a name that an earlier one was not to have.
        let is_there = self.ready.contains(&of) && !self.vain.contains(&removal);
        if !stage.waits() || is_there || self.never.contains_key(&of) {
            return None;
        }
        let between = self.entries.range((Excluded(*at), Excluded(removal)));
        let may_follow = |(at, (change, _)): (&At, &(Change, Stage))| match change {
            // Another version of it is passed over as well.
            Change::Publish { inode: other, path: at, .. } if other == inode && at == path => true,
            Change::Remove(_) => self.vain.contains(at),
            Change::Rename { .. } => planted(Bug::PassedOverMoves),
            _ if change.concerns(path) => false,
            _ => change.publishes().is_none_or(|of| {
                self.ready.contains(&of) || self.removal(*at, change).is_some() || planted(Bug::PassedUnready)
            }),
        };
        let effect = || Effect { journal: at.1, change: change.clone(), maybe_done: !self.fresh };
        let mut between = between.enumerate();
        between.all(|(number, entry)| number < BETWEEN && may_follow(entry)).then(effect)
    }

    /// The target goes on without what [`Publisher::passable`] has found. `is_free`: it has nothing at that name. The removal then finds
    /// nothing, which is no failure.
    pub fn pass_over(&mut self, journal: u64, is_free: bool) {
        let Some((at, (change, _))) = self.entries.first_key_value().filter(|((_, number), _)| *number == journal)
        else {
            return;
        };
        let (at, removal) = (*at, self.removal(*at, change));
        if let Some((_, stage)) = self.entries.get_mut(&at) {
            *stage = Stage::Recording;
            self.records.push((journal, PublicationEnd::Removed));
        }
        if let Some((at, (_, stage))) = removal.and_then(|removal| Some((removal, self.entries.get_mut(&removal)?))) {
            *stage = Stage::Again;
            if is_free {
                self.vain.insert(at);
            }
        }
    }

    /// The entry that removes the file which this one publishes.
    fn removal(&self, at: At, change: &Change) -> Option<At> {
        let Change::Publish { path, .. } = change else { return None };
        self.removals.get(path)?.range((Excluded(at), Unbounded)).next().copied()
    }

    /// How it ended.
    pub fn complete(&mut self, journal: u64, outcome: Outcome) {
        let entry =
            self.entries.iter_mut().find(|((_, number), (_, stage))| *number == journal && *stage == Stage::Under);
        let Some((_, (_, stage))) = entry else { return };
        match outcome {
            Outcome::Later if planted(Bug::AttemptForgotten) => *stage = Stage::Waits,
            Outcome::Later => *stage = Stage::Again,
            Outcome::Done => {
                *stage = Stage::Recording;
                self.records.push((journal, PublicationEnd::Done));
            }
            Outcome::Conflict => {
                *stage = Stage::Recording;
                self.records.push((journal, PublicationEnd::Conflict));
            }
        }
    }

    /// What to record with [`Operation::Published`](crate::meta::Operation::Published).
    pub fn next_record(&mut self) -> Option<(u64, PublicationEnd)> {
        self.records.pop()
    }

    /// That is on record: the next entry's turn. Which version it published.
    pub fn recorded(&mut self, journal: u64) -> Option<(Inode, Version)> {
        let entry = self.entries.keys().find(|(_, number)| *number == journal).copied();
        let (at, (change, _)) = entry.and_then(|at| self.entries.remove_entry(&at))?;
        self.fresh = true;
        self.vain.remove(&at);
        if let Change::Remove(path) = &change
            && let Some(removals) = self.removals.get_mut(path)
        {
            removals.remove(&at);
            if removals.is_empty() {
                self.removals.remove(path);
            }
        }
        let version = change.publishes()?;
        self.ready.remove(&version);
        self.never.remove(&version);
        Some(version)
    }

    /// Versions of files whose bytes are wanted at the target, the most urgent first.
    pub fn wanted(&self) -> impl Iterator<Item = (Inode, Version)> {
        let waiting = self.entries.values().filter(|(_, stage)| stage.waits());
        let wanted = waiting.filter_map(|(change, _)| change.publishes());
        wanted.filter(|of| !self.ready.contains(of) && !self.never.contains_key(of))
    }

    /// The entry that publishes a version.
    #[must_use]
    pub fn entry(&self, of: (Inode, Version)) -> Option<Turn<'_>> {
        let (at, (change, stage)) =
            self.entries.values().enumerate().find(|(_, (change, _))| change.publishes() == Some(of))?;
        let maybe_done = at == 0 && (!self.fresh || *stage == Stage::Again);
        Some(Turn { change, is_first: at == 0, maybe_done })
    }

    /// Entries that the target has not seen.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.entries.len()
    }
}
