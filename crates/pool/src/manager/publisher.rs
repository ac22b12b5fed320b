//! The publisher of a mount: has benefactors write what was closed into files without a name, verifies them, and makes the mount's changes at
//! the target in the order of the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::id::{Inode, MountId, Revision, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::value::{Change, Mount, Placed};
use surgetank_pool_core::meta::{Key, Name, Prefix, Role, Stored, Value};
use surgetank_pool_core::publishing::{self, Effect, Publisher, Turn};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::drain::{Drain, drain};
use super::objects::{self, Objects};
use super::protocol::Ended;
use super::target::{AtName, Target};
use super::{Manager, early};
use crate::meta::Unavailable;

/// Files that are drained at a time.
const DRAINS: usize = 4;
/// The pause before a target or benefactor is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often that pause doubles before a store is asked again.
const PAUSES: u32 = 5;
/// The longest pause between two looks at the journal.
const LOOK: Duration = Duration::from_secs(1);

/// Publishes for every mount whose publisher this manager is.
pub(super) async fn run(manager: &Arc<Manager>) {
    let (mut known, mut tasks) = (BTreeSet::new(), JoinSet::new());
    loop {
        if let Ok(read) = manager.store.read(&[], &[Prefix::Mounts]).await {
            for (key, stored) in read.prefixes.into_iter().flatten() {
                if let (Key::Mount(id), Value::Mount(mount)) = (key, stored.value)
                    && known.insert(id)
                {
                    // A stuck target holds up its own mount only.
                    tasks.spawn(publish(Arc::clone(manager), id, mount));
                }
            }
        }
        // The target of a mount is not looked at before it has a publisher, so that the first one waits for that.
        let _ = tokio::time::timeout(PAUSE, manager.begun.notified()).await;
    }
}

async fn publish(manager: Arc<Manager>, id: MountId, mount: Mount) {
    let mut work: Option<Work> = None;
    // From then on a directory in its place is taken for the target only if somebody says so.
    let mut is_taken_over = false;
    // A bucket's has uploads that it ends.
    let mut present: Option<(Revision, Target)> = None;
    let mut failures = 0;
    loop {
        let Some(since) = manager.holds_since(Role::Publisher(id)).await.unwrap_or(None) else {
            work = None;
            // Whoever publishes knows how the target is.
            manager.troubles.over(id);
            // A successor may have come too early to see all of them.
            if let Some(objects) = present.as_ref().and_then(|(_, target)| target.objects())
                && objects.end_own().await.is_ok()
            {
                present = None;
            }
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if present.as_ref().is_none_or(|(of, _)| *of != since) {
            present = target_of(&manager, id, &mount, since).map(|target| (since, target));
        }
        let Some((_, target)) = present.clone() else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        if work.is_none() {
            let take_over = move |target: &Target| {
                if is_taken_over && target.objects().is_none() {
                    target.is_taken_over()?;
                }
                target.take_over()
            };
            match on_target(&target, take_over).await {
                Ok(()) => {
                    is_taken_over = true;
                    manager.troubles.over(id);
                    work = Some(Work {
                        manager: Arc::clone(&manager),
                        id,
                        target: target.clone(),
                        publisher: Publisher::new(),
                        drafts: true,
                        own: early::Own::default(),
                        finished: BTreeMap::new(),
                        made: BTreeMap::new(),
                    })
                }
                Err(error) => manager.troubles.of(&target, None, &error),
            }
        }
        let Some(working) = &mut work else {
            tokio::time::sleep(pause(&target, &mut failures)).await;
            continue;
        };
        match working.step().await {
            Ok(Step::Nothing(revision)) => {
                failures = 0;
                let _ = tokio::time::timeout(LOOK, manager.store.changed(revision)).await;
            }
            Ok(Step::Done) => failures = 0,
            Ok(Step::Later) => tokio::time::sleep(pause(&target, &mut failures)).await,
            Ok(Step::NotThePublisher) => work = None,
            Ok(Step::Gone) => {
                work = None;
                tokio::time::sleep(pause(&target, &mut failures)).await;
            }
            Err(error) => {
                manager.troubles.of(&target, None, &error);
                // What was to be recorded may not be: it is looked at anew.
                work = None;
                tokio::time::sleep(pause(&target, &mut failures)).await;
            }
        }
    }
}

/// The pause before a target is asked again. Requests to a store cost money: it is asked less and less often.
fn pause(target: &Target, failures: &mut u32) -> Duration {
    let longer = if target.objects().is_some() { (*failures).min(PAUSES) } else { 0 };
    *failures = failures.saturating_add(1);
    PAUSE * 2_u32.pow(longer)
}

/// A mount's target; `None`: it cannot be reached as this process is set up, which is told.
fn target_of(manager: &Manager, id: MountId, mount: &Mount, since: Revision) -> Option<Target> {
    let at = PathBuf::from(&mount.target);
    match manager.bucket(&mount.target) {
        Ok(None) => Some(Target::new(at, id, since)),
        Ok(Some(bucket)) => {
            let objects = Arc::new(Objects::new(bucket, manager.pool, id, since));
            Some(Target::of_objects(at, id, since, objects))
        }
        Err(error) => {
            manager.troubles.of(&Target::new(at, id, since), None, &error);
            None
        }
    }
}

/// Works on a target, which may be slow or stuck, apart from everything else.
pub(super) async fn on_target<T: Send + 'static>(
    target: &Target,
    work: impl FnOnce(&Target) -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let target = target.clone();
    tokio::task::spawn_blocking(move || work(&target)).await.unwrap_or_else(|error| Err(Error::other(error)))
}

/// How far a step has come.
enum Step {
    /// The journal was empty at this revision.
    Nothing(surgetank_pool_core::id::Revision),
    Done,
    /// A target or a benefactor does not answer, or refuses.
    Later,
    /// Another manager publishes.
    NotThePublisher,
    /// The target is not the directory that was taken over: what was written there without a name may not be there any more.
    Gone,
}

struct Work {
    manager: Arc<Manager>,
    id: MountId,
    target: Target,
    publisher: Publisher,
    /// There may be drafts that nothing rests on.
    drafts: bool,
    own: early::Own,
    /// What versions are that wait beside the names, by which they are known once they have one.
    finished: BTreeMap<(Inode, Version), Placed>,
    /// What is to be recorded of entries.
    made: BTreeMap<u64, Made>,
}

/// What a change came to.
#[derive(Clone, Default)]
struct Made {
    /// What the pool has at names of the target by it.
    placed: Vec<((u64, Name), Option<Placed>)>,
    /// The file that it is about.
    about: Option<Inode>,
}

impl Work {
    /// Makes a change at the target, unless somebody else has what it would replace, move or remove there.
    async fn make(&mut self, effect: &Effect) -> std::io::Result<()> {
        let maybe_done = effect.maybe_done;
        let (names, was) = self.was(&effect.change).await?;
        let about = was.first().copied().flatten().map(|placed| placed.node);
        let about = about.filter(|_| matches!(effect.change, Change::Rename { .. } | Change::Link { .. }));
        // Of what a rename leaves where it was, it may be the only copy: it is not the pool's to replace any more.
        let moves = matches!(effect.change, Change::Rename { .. });
        let left = about.filter(|_| moves).and_then(|_| names.first().cloned()).map(|name| (name, None));
        self.made.insert(effect.journal, Made { placed: left.into_iter().collect(), about });
        if let (Some(objects), Change::Rename { from, to }, None) =
            (self.target.objects(), &effect.change, was.first().copied().flatten())
        {
            objects::move_directory(&self.manager, objects, self.id, (from, to)).await?;
        }
        let change = effect.change.clone();
        let finished = change.publishes().and_then(|of| self.finished.get(&of).copied());
        let change = move |target: &Target| target.change(&change, (maybe_done, finished), &was);
        let is = on_target(&self.target, move |target| target.own(change)).await?;
        self.made.insert(effect.journal, Made { placed: names.into_iter().zip(is).collect(), about });
        Ok(())
    }

    /// Names of the target that a change concerns, and what the pool has put last at each.
    async fn was(&self, change: &Change) -> std::io::Result<(Vec<(u64, Name)>, Vec<Option<Placed>>)> {
        let change = change.clone();
        let names = on_target(&self.target, move |target| target.own(|target| target.names(&change))).await?;
        let keys: Vec<Key> =
            names.iter().map(|(directory, name)| Key::Placed(self.id, *directory, name.clone())).collect();
        let read = self.manager.store.read(&keys, &[]).await.map_err(Error::other)?;
        let placed = |stored: Option<Stored>| match stored.map(|stored| stored.value) {
            Some(Value::Placed(placed)) => Some(placed),
            _ => None,
        };
        Ok((names, read.keys.into_iter().map(placed).collect()))
    }

    /// Goes on behind files that were removed before the target had them.
    async fn pass_over(&mut self) -> Result<Step, Unavailable> {
        while let Some(effect) = self.publisher.passable() {
            let there = match self.at_name(&effect.change).await {
                Ok(there) => there,
                Err(error) => {
                    self.manager.troubles.of(&self.target, Some(&self.target.place(&effect.change)), &error);
                    return Ok(Step::Later);
                }
            };
            // A predecessor may have given it its name and not recorded that: then the removal is to find it.
            if effect.maybe_done && there == AtName::Other {
                break;
            }
            if let Some(of) = effect.change.publishes() {
                self.discard(of).await;
            }
            self.publisher.pass_over(effect.journal, there == AtName::Nothing);
            if !self.record().await? {
                return Ok(Step::NotThePublisher);
            }
        }
        Ok(Step::Done)
    }

    /// What the target has at the name of a publication.
    async fn at_name(&self, change: &Change) -> std::io::Result<AtName> {
        let (_, was) = match self.was(change).await {
            // Its directory is not there.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(AtName::Nothing),
            was => was?,
        };
        let change = change.clone();
        on_target(&self.target, move |target| target.own(|target| target.at_name(&change, &was))).await
    }

    async fn step(&mut self) -> Result<Step, Unavailable> {
        let read = self.manager.store.read(&[], &[Prefix::Journal(self.id)]).await?;
        for (key, stored) in read.prefixes.into_iter().flatten() {
            if let (Key::Journal(_, number), Value::Journal(change)) = (key, stored.value) {
                self.publisher.journalled(stored.modified, number, change);
            }
        }
        let waiting = self.publisher.waiting() > 0;
        if (waiting || self.drafts || self.manager.members.are_short())
            && let Err(error) = on_target(&self.target, Target::is_taken_over).await
        {
            self.manager.troubles.of(&self.target, None, &error);
            // What waits in a store for its name is there still as long as that has not said otherwise.
            let is_away = self.target.objects().is_some() && error.kind() != ErrorKind::StaleNetworkFileHandle;
            return Ok(if is_away { Step::Later } else { Step::Gone });
        }
        let passed = if waiting { self.pass_over().await? } else { Step::Done };
        if matches!(passed, Step::NotThePublisher) {
            return Ok(passed);
        }
        let drained = !waiting || self.drain().await;
        let published = if waiting { self.make_changes().await? } else { Step::Done };
        if matches!(published, Step::Gone) {
            return Ok(published);
        }
        self.drafts |= waiting;
        let waits_for_target = waiting && !(drained && matches!(published, Step::Done));
        self.drafts |= !self.own.begun.is_empty();
        if waits_for_target && self.drafts {
            // They may have the room that the target lacks.
            self.own.begun.clear();
            self.drafts = !early::remove_unused(&self.manager, (self.id, &self.target), &self.own).await?;
        }
        // An object is not written before its file is closed.
        let takes_drafts = self.target.objects().is_none();
        let early = takes_drafts && self.manager.members.are_short() && matches!(published, Step::Done);
        if early && early::drain(&self.manager, self.id, &self.target, &mut self.own).await? {
            self.drafts = true;
            self.manager.troubles.over(self.id);
            return Ok(Step::Done);
        }
        if !waiting {
            if !early {
                self.manager.troubles.over(self.id);
                self.own.begun.clear();
            }
            if self.drafts {
                self.drafts = !early::remove_unused(&self.manager, (self.id, &self.target), &self.own).await?;
            }
            return Ok(Step::Nothing(read.revision));
        }
        Ok(match (passed, drained, published) {
            (.., Step::NotThePublisher) => Step::NotThePublisher,
            (Step::Done, true, Step::Done) => Step::Done,
            _ => Step::Later,
        })
    }

    /// Drains the most urgent files; whether all went well.
    async fn drain(&mut self) -> bool {
        let mut drains = JoinSet::new();
        for (inode, version) in self.publisher.wanted().take(DRAINS) {
            let Some(turn) = self.publisher.entry((inode, version)) else { continue };
            let (manager, target, change) = (Arc::clone(&self.manager), self.target.clone(), turn.change.clone());
            let (is_first, maybe_done) = (turn.is_first, turn.maybe_done);
            // What is asked for and not answered may be written late.
            let own = self.own.of.remove(&inode);
            drains.spawn(async move {
                let (of, begun) = ((inode, version), Instant::now());
                let turn = Turn { change: &change, is_first, maybe_done };
                let ended = drain(&manager, &target, of, turn, own).await;
                match ended {
                    Ok(Drain::Later | Drain::Refused(_)) | Err(_) => manager.rate.failed(inode, begun),
                    Ok(_) => manager.rate.ended(inode),
                }
                (of, target.place(&change), ended)
            });
        }
        let mut well = true;
        while let Some(Ok(((inode, version), place, ended))) = drains.join_next().await {
            let at = place.display();
            match ended {
                Ok(Drain::Done(placed)) => {
                    self.manager.troubles.over(self.id);
                    self.finished.insert((inode, version), placed);
                    self.publisher.drained(inode, version);
                }
                Ok(Drain::Lost) => {
                    tracing::error!("{at}: chunks of version {version} are lost: it will not reach its target");
                    self.discard((inode, version)).await;
                    self.publisher.lost(inode, version);
                }
                Ok(Drain::TooLong) => {
                    tracing::error!("{at}: version {version} is longer than a file at its target may be");
                    self.discard((inode, version)).await;
                    self.publisher.lost(inode, version);
                }
                Ok(Drain::Conflict) => {
                    tracing::error!("{at}: somebody else has changed at the target what version {version} rests on");
                    self.discard((inode, version)).await;
                    self.publisher.in_conflict(inode, version);
                }
                Ok(Drain::Later | Drain::Refused(_)) => well = false,
                Err(error) => {
                    self.manager.troubles.of(&self.target, Some(&place), &error);
                    well = false;
                }
            }
        }
        well
    }

    /// Removes what is at the target of a version that never gets a name there.
    async fn discard(&mut self, (inode, version): (Inode, Version)) {
        self.finished.remove(&(inode, version));
        self.manager.rate.ended(inode);
        if let Err(error) = on_target(&self.target, move |target| target.discard(inode, version)).await {
            self.manager.troubles.of(&self.target, None, &format_args!("what is left of file {inode}: {error}"));
        }
    }

    /// Records what changes have come to; `false`: another manager publishes.
    async fn record(&mut self) -> Result<bool, Unavailable> {
        while let Some((journal, ended)) = self.publisher.next_record() {
            let (publisher, mount) = (self.manager.tenure.manager(), self.id);
            let Made { placed, about } = self.made.get(&journal).cloned().unwrap_or_default();
            let operation = Operation::Published { publisher, mount, journal, ended, placed, about };
            if let Ended::Refused(Refusal::NotThePublisher) = self.manager.commits.perform(&operation).await? {
                return Ok(false);
            }
            self.made.remove(&journal);
            if let Some(version) = self.publisher.recorded(journal) {
                self.finished.remove(&version);
            }
        }
        Ok(true)
    }

    /// Makes changes as far as bytes are there, and records them.
    async fn make_changes(&mut self) -> Result<Step, Unavailable> {
        loop {
            if !self.record().await? || !self.manager.tenure.lasts() {
                return Ok(Step::NotThePublisher);
            }
            let Some(effect) = self.publisher.next_effect() else { return Ok(Step::Done) };
            let made = self.make(&effect).await;
            let is_gone = matches!(&made, Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle);
            let outcome = outcome(&made);
            let place = self.target.place(&effect.change);
            match (made, outcome) {
                (Ok(()), _) => self.manager.troubles.over(self.id),
                (Err(error), publishing::Outcome::Later) => {
                    self.manager.troubles.of(&self.target, Some(&place), &error)
                }
                (Err(error), _) => tracing::warn!("{}: {error}", place.display()),
            }
            if outcome == publishing::Outcome::Conflict
                && let Some(of) = effect.change.publishes()
            {
                self.discard(of).await;
            }
            self.publisher.complete(effect.journal, outcome);
            if is_gone && self.target.objects().is_some() {
                // What had been sent is not there any more, or is refused as a whole: it is sent again.
                return Ok(Step::Gone);
            }
            if outcome == publishing::Outcome::Later {
                return Ok(Step::Later);
            }
        }
    }
}

/// What a change at the target came to: what cannot be done since something else is there than the pool left,
/// or since nothing can be called so there, is a conflict.
fn outcome(made: &std::io::Result<()>) -> publishing::Outcome {
    match made {
        Ok(()) => publishing::Outcome::Done,
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::DirectoryNotEmpty
            | ErrorKind::InvalidFilename => publishing::Outcome::Conflict,
            _ => publishing::Outcome::Later,
        },
    }
}
