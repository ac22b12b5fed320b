//! A history of files in one mount, some of which never fit into the target. It sees the others in the order of the history, and goes on
//! behind those that were removed.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, Revision, Version};
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::operation::PublicationEnd;
use surgetank_pool_core::meta::value::{Change, Path};
use surgetank_pool_core::publishing::{Effect, Outcome, Publisher};

use super::target::Target;

type File = (Inode, Version);
type Files = BTreeMap<Path, Option<File>>;

/// What was committed, and what the pool had after each of it.
struct History {
    changes: Vec<Change>,
    states: Vec<Files>,
    /// Versions for which the target never has room.
    too_large: BTreeSet<File>,
}

fn path(names: &[&str]) -> Path {
    Path(names.iter().map(|name| Name::new(name.as_bytes()).expect("it is a name")).collect())
}

impl History {
    fn new(random: &mut Random) -> Self {
        let directory = path(&["d"]);
        let mut history = Self { changes: Vec::new(), states: Vec::new(), too_large: BTreeSet::new() };
        let mut files = Files::new();
        history.commit(Change::MakeDirectory(directory), &mut files);
        let paths = [path(&["a"]), path(&["b"]), path(&["d", "c"])];
        for inode in 0..4 + random.below(10) {
            let at = &paths[random.below(3) as usize];
            let other = &paths[random.below(3) as usize];
            let there = files.get(at).copied().flatten();
            match (random.below(5), there) {
                (0 | 1, Some(_)) => history.commit(Change::Remove(at.clone()), &mut files),
                (2, Some(_)) if at != other => {
                    history.commit(Change::Rename { from: at.clone(), to: other.clone() }, &mut files);
                }
                (_, there) => {
                    let of =
                        there.map_or((Inode(10 + inode), Version(1)), |(of, version)| (of, Version(version.0 + 1)));
                    if random.chance(0.4) {
                        history.too_large.insert(of);
                    }
                    let change = Change::Publish { inode: of.0, version: of.1, path: at.clone() };
                    history.commit(change, &mut files);
                }
            }
        }
        history
    }

    fn commit(&mut self, change: Change, files: &mut Files) {
        match &change {
            Change::MakeDirectory(at) => drop(files.insert(at.clone(), None)),
            Change::Publish { inode, version, path } => drop(files.insert(path.clone(), Some((*inode, *version)))),
            Change::Remove(at) => drop(files.remove(at)),
            Change::Rename { from, to } => {
                let moved = files.remove(from).expect("it is there");
                files.insert(to.clone(), moved);
            }
            other => unreachable!("{other:?} is not made here"),
        }
        self.changes.push(change);
        self.states.push(files.clone());
    }

    /// Whether the file that the change at `first` publishes is removed, and nothing before that moves or removes anything (but those `vain`
    /// ones), or publishes what is neither there nor removed as well: where it is removed.
    fn ends(&self, first: usize, is_there: &dyn Fn(File) -> bool, vain: &BTreeSet<usize>) -> Option<usize> {
        let Change::Publish { inode, path, .. } = &self.changes[first] else { return None };
        let last = self.removal(first)?;
        let may_follow = |at: usize| match &self.changes[at] {
            Change::Publish { inode: other, version, path: of } => {
                other == inode && of == path || is_there((*other, *version)) || self.removal(at).is_some()
            }
            Change::Remove(_) => vain.contains(&at),
            _ => false,
        };
        (first + 1..last).all(may_follow).then_some(last)
    }

    /// Where what is then at the path of a publication is removed.
    fn removal(&self, of: usize) -> Option<usize> {
        let Change::Publish { path, .. } = &self.changes[of] else { return None };
        (of + 1..self.changes.len()).find(|at| self.changes[*at] == Change::Remove(path.clone()))
    }
}

struct World {
    history: History,
    publisher: Publisher,
    target: Target,
    drained: BTreeSet<File>,
    /// Entries that are recorded.
    recorded: usize,
    /// Files that were passed over, and the entries that remove them.
    passed: BTreeMap<Path, usize>,
    /// What the target had when the first of these was passed over.
    had: BTreeSet<Path>,
    /// Removals of those that this process has passed over and that the target had nothing of.
    vain: BTreeSet<usize>,
    /// Those that another process passed over: this one finds nothing to remove.
    of_another: BTreeSet<usize>,
}

impl World {
    fn tell(&mut self) {
        for (number, change) in self.history.changes.iter().enumerate().skip(self.recorded) {
            self.publisher.journalled(Revision(number as u64), number as u64, change.clone());
        }
        self.drained.iter().for_each(|(inode, version)| self.publisher.drained(*inode, *version));
    }

    fn drain(&mut self, random: &mut Random) {
        let wanted: Vec<_> = self.publisher.wanted().collect();
        for of in wanted.into_iter().filter(|of| !self.history.too_large.contains(of)) {
            if random.chance(0.5) {
                self.drained.insert(of);
                self.publisher.drained(of.0, of.1);
            }
        }
    }

    /// Passes over what can be; whether anything was.
    fn pass(&mut self) -> Result<bool, String> {
        let Some(effect) = self.publisher.passable() else { return Ok(false) };
        let first = effect.journal as usize;
        let Change::Publish { inode, version, path } = &effect.change else {
            return Err(format!("{effect:?} publishes nothing"));
        };
        if effect.maybe_done && self.target.0.get(path) == Some(&Some((*inode, *version))) {
            return Ok(false);
        }
        let last = self.history.ends(first, &|of| self.drained.contains(&of), &self.vain);
        let last =
            last.ok_or(format!("{effect:?} is passed over, and something before its removal must not follow"))?;
        let is_free = !self.target.0.contains_key(path);
        if self.passed.is_empty() {
            self.had = self.target.0.keys().cloned().collect();
        }
        self.passed.insert(path.clone(), last);
        self.vain.extend(is_free.then_some(last));
        self.publisher.pass_over(effect.journal, is_free);
        self.record()?;
        Ok(true)
    }

    fn record(&mut self) -> Result<(), String> {
        while let Some((journal, ended)) = self.publisher.next_record() {
            let is_passed = self.passed.values().any(|last| *last > journal as usize);
            if ended != PublicationEnd::Done && !(ended == PublicationEnd::Removed && is_passed) {
                return Err(format!("entry {journal} ends as {ended:?}"));
            }
            if journal as usize != self.recorded {
                return Err(format!("entry {journal} is recorded before {}", self.recorded));
            }
            self.recorded += 1;
            self.publisher.recorded(journal);
        }
        Ok(())
    }

    /// Makes a change: the target then has what the pool had after it, but for files that were passed over. As long as there are such, nothing
    /// that it had before goes.
    fn make(&mut self, effect: &Effect) -> Result<(), String> {
        let at = effect.journal as usize;
        let finds_nothing = effect.maybe_done || self.of_another.contains(&at);
        self.target.change(&effect.change, finds_nothing, &|of| self.drained.contains(&of))?;
        self.passed.retain(|_, last| *last > at);
        if let Some(gone) = self.had.iter().find(|path| !self.passed.is_empty() && !self.target.0.contains_key(path)) {
            return Err(format!("entry {at} takes {gone:?} from the target, and {:?} are not there yet", self.passed));
        }
        let mut has = self.history.states[at].clone();
        has.retain(|path, _| !self.passed.contains_key(path));
        let mut shows = self.target.0.clone();
        // What the target had of it before stays until the removal.
        shows.retain(|path, _| !self.passed.contains_key(path));
        if shows != has {
            return Err(format!("after entry {at} the target has {shows:?}, and the pool had {has:?}"));
        }
        Ok(())
    }

    /// What the target waits for while it lacks what was passed over is a file that was removed as well.
    fn waits_for_removed(&self) -> Result<(), String> {
        match self.passed.is_empty() || self.history.removal(self.recorded).is_some() {
            true => Ok(()),
            false => Err(format!("the target waits at entry {}, and lacks {:?}", self.recorded, self.passed)),
        }
    }
}

/// A run.
pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let history = History::new(&mut random);
    let mut world = World {
        history,
        publisher: Publisher::new(),
        target: Target::default(),
        drained: BTreeSet::new(),
        recorded: 0,
        passed: BTreeMap::new(),
        had: BTreeSet::new(),
        vain: BTreeSet::new(),
        of_another: BTreeSet::new(),
    };
    world.tell();
    for _ in 0..200 {
        if random.chance(0.3) {
            world.drain(&mut random);
        }
        while world.pass()? {}
        if let Some(effect) = world.publisher.next_effect() {
            let made = random.chance(0.8);
            if made {
                world.make(&effect)?;
            }
            if random.chance(0.1) {
                // Another process goes on, which finds what this one has not recorded.
                world.publisher = Publisher::new();
                world.of_another.extend(world.passed.values());
                world.vain.clear();
                world.tell();
                continue;
            }
            world.publisher.complete(effect.journal, if made { Outcome::Done } else { Outcome::Later });
        } else if world.recorded < world.history.changes.len() {
            world.waits_for_removed()?;
        }
        world.record()?;
    }
    let Some(first) = (world.recorded < world.history.changes.len()).then_some(world.recorded) else { return Ok(()) };
    match &world.history.changes[first] {
        Change::Publish { inode, version, .. } if world.history.too_large.contains(&(*inode, *version)) => {
            match world.history.ends(first, &|of| world.drained.contains(&of), &world.vain) {
                Some(last) => Err(format!("the target stands still at entry {first}, whose file entry {last} removes")),
                None => Ok(()),
            }
        }
        change => Err(format!("the target stands still at {change:?}")),
    }
}
