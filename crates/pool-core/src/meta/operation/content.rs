//! Operations on what files contain.

use super::recorder::{Recorder, Stop};
use super::reserving::{reserved, rewrites as rewritten};
use super::{PublicationEnd, Refusal, Reply, Taken};
use crate::id::{Inode, MountId, SessionId, Version};
use crate::meta::key::{Key, Name, Prefix, Role};
use crate::meta::store::{Compare, Lease, Stored};
use crate::meta::value::{Base, Change, FileState, Group, Kind, Node, Placed, Times, Value};
use crate::placement::{Layout, Place};
use crate::planted::{Bug, planted};
use crate::runs::Runs;

type Answer = Result<Reply, Stop>;

impl Recorder<'_> {
    pub(super) fn open_for_writing(
        &mut self,
        inode: Inode,
        (session, lease): (SessionId, Lease),
        rewrites: bool,
    ) -> Answer {
        let (node, writers) = (self.file(inode), self.under(Prefix::Writers(inode)));
        let (node, writers) = (node?, writers?);
        if self.stays(Key::Session(session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        let (others, own): (Vec<_>, Vec<_>) = writers.iter().partition(|(key, _)| *key != Key::Writer(inode, session));
        let is_rewriting = |stored: &Stored| rewritten(&stored.value) == Some(node.version);
        let first = others.iter().find(|(_, stored)| is_rewriting(stored) && !planted(Bug::RewriterUnseen));
        // Whoever came after it was told.
        let was_told = own.iter().any(|(_, stored)| is_rewriting(stored));
        let other = others.first().filter(|_| rewrites && !was_told && !planted(Bug::RewriterNotAlone));
        let cut_first = first.or(other).filter(|_| node.size > 0);
        // A session may end without a word.
        if let Some((writer, stored)) = cut_first {
            self.compare(Compare::Created(writer.clone(), stored.created));
        }
        let is_rewriter = was_told || rewrites && node.size > 0 && cut_first.is_none();
        let has_reserved = own.iter().map(|(_, stored)| reserved(&stored.value)).max().unwrap_or(0);
        let value = match is_rewriter.then_some(node.version) {
            rewrites if has_reserved > 0 && !planted(Bug::ReservationDropped) => {
                Value::Reserved(session, rewrites, has_reserved)
            }
            Some(version) => Value::Rewriter(session, version),
            None => Value::Session(session),
        };
        // The node is written, so that whoever closes meanwhile sees that there is one writer more.
        self.put(Key::Node(inode), Value::Node(node.clone()));
        self.put_leased(Key::Writer(inode, session), value, lease);
        Ok(if cut_first.is_some() { Reply::CutFirst(node.version) } else { Reply::Version(node.version) })
    }

    pub(super) fn commit(
        &mut self,
        (inode, session): (Inode, SessionId),
        (on, changes): (Version, u64),
        size: u64,
        groups: &[(u32, Group)],
        close: Option<u64>,
    ) -> Answer {
        let node = match planted(Bug::CommitWithoutVersion) {
            false => self.file(inode)?,
            true => self.file_that_stays(inode)?,
        };
        if self.stays(Key::Writer(inode, session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        if node.version != on && !planted(Bug::CommitWithoutVersion) {
            return Err(Refusal::Version(node.version).into());
        }
        if node.changes() != changes && !planted(Bug::CommitOverMoved) {
            return Err(Refusal::Moved.into());
        }
        self.are_alive(groups)?;
        let version = node.version.next();
        if node.version != Version::NONE && !groups.is_empty() {
            self.replace(inode, &node, groups)?;
        }
        for (index, group) in groups {
            self.put(Key::Group(inode, *index, version), Value::Group(Group { by: session, ..group.clone() }));
        }
        let (kind, base) = (Kind::File(FileState::Replicated), node.rests_on());
        let times = Times { modified: self.now(), changed: self.now(), ..node.times };
        let node = Node { kind, base, times, size, version, torn: false, ..node };
        match close {
            Some(journal) => self.close_as((inode, session), node, journal),
            None => {
                self.put(Key::Node(inode), Value::Node(node));
                Ok(Reply::Version(version))
            }
        }
    }

    /// Removes the groups that are written anew, but for those of versions that the target needs.
    fn replace(&mut self, inode: Inode, node: &Node, groups: &[(u32, Group)]) -> Result<(), Stop> {
        let waits = node.published < node.journalled && !planted(Bug::UnpublishedReplaced);
        for (key, _) in self.under(Prefix::Groups(inode))? {
            if let Key::Group(_, index, version) = key
                && groups.iter().any(|(replaced, _)| replaced == index)
                && !(waits && *version <= node.journalled)
            {
                self.delete(key.clone());
            }
        }
        Ok(())
    }

    /// Refuses unless every benefactor of these groups is in the life in which it acknowledged them, also when the transaction takes
    /// place: what another life had in memory is gone.
    fn are_alive(&mut self, groups: &[(u32, Group)]) -> Result<(), Stop> {
        let mut places: Vec<Place> = groups.iter().flat_map(|(_, group)| group.layout.places()).collect();
        places.sort_unstable();
        places.dedup();
        if planted(Bug::CommitWithoutIncarnation) {
            return Ok(());
        }
        let mut changed = Vec::new();
        for place in places {
            // Its key is created with its life and never changed.
            match self.stays(Key::Benefactor(place.id))?.map(|stored| &stored.value) {
                Some(Value::Benefactor(alive)) if *alive == place => {}
                _ => changed.push(place),
            }
        }
        if changed.is_empty() { Ok(()) } else { Err(Refusal::Benefactors(changed).into()) }
    }

    pub(super) fn close(&mut self, inode: Inode, session: SessionId, journal: u64) -> Answer {
        let node = self.file(inode)?;
        if self.stays(Key::Writer(inode, session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        self.close_as((inode, session), node, journal)
    }

    /// A session that writes a file does so no more.
    fn close_as(&mut self, (inode, session): (Inode, SessionId), node: Node, journal: u64) -> Answer {
        let others = self.somebody_writes(inode, Some(session))?;
        self.delete(Key::Writer(inode, session));
        self.publish_unless(others, inode, node, journal)
    }

    pub(super) fn writer_lost(&mut self, inode: Inode, journal: u64) -> Answer {
        let node = self.file(inode)?;
        let others = self.somebody_writes(inode, None)?;
        self.publish_unless(others, inode, Node { torn: true, ..node }, journal)
    }

    /// Whether another session has the file open for writing, also when the transaction takes place: whoever opens or closes it writes
    /// its node, but a session may end without that.
    fn somebody_writes(&mut self, inode: Inode, but: Option<SessionId>) -> Result<bool, Stop> {
        let writers = self.under(Prefix::Writers(inode))?;
        let other = writers.iter().find(|(key, _)| but.is_none_or(|session| *key != Key::Writer(inode, session)));
        if let Some((writer, stored)) = other {
            self.compare(Compare::Created(writer.clone(), stored.created));
        }
        Ok(other.is_some())
    }

    /// Has the target see what was committed, unless somebody still writes. The node is written in any case: of two writers
    /// that close at the same time one sees that the other has.
    fn publish_unless(&mut self, others: bool, inode: Inode, mut node: Node, journal: u64) -> Answer {
        let version = node.version;
        if !others
            && version > node.journalled
            && let Some(at) = &node.at
        {
            let path = self.path(at)?;
            let change = self.of_all_names(&node, Change::Publish { inode, version, path }, Bug::OneNamePublished)?;
            self.journal(node.mount, journal, change);
            (node.journalled, node.covers) = (version, false);
            node.links.iter_mut().for_each(|link| link.covers = false);
        }
        self.put(Key::Node(inode), Value::Node(node));
        Ok(Reply::Version(version))
    }

    pub(super) fn published(
        &mut self,
        (publisher, mount): (u64, MountId),
        journal: u64,
        ended: PublicationEnd,
        placed: &[((u64, Name), Option<Placed>)],
        about: Option<Inode>,
    ) -> Answer {
        let owner = self.get(Key::Owner(Role::Publisher(mount)))?.map(|stored| &stored.value);
        if owner != Some(&Value::Owner(publisher)) {
            return Err(Refusal::NotThePublisher.into());
        }
        let key = Key::Journal(mount, journal);
        let change = match self.get(key.clone())?.map(|stored| &stored.value) {
            Some(Value::Journal(change)) => change.clone(),
            _ => return Err(Refusal::NotFound.into()),
        };
        self.delete(key);
        for ((directory, name), placed) in placed {
            let key = Key::Placed(mount, *directory, name.clone());
            match placed {
                Some(placed) => self.put(key, Value::Placed(*placed)),
                None => self.delete(key),
            }
        }
        let Some((inode, version)) = change.publishes() else {
            self.no_longer_hides(mount, journal, &change)?;
            return self.in_conflict(about, ended);
        };
        let Some(Value::Node(node)) = self.get(Key::Node(inode))?.map(|stored| &stored.value) else {
            return Ok(Reply::Done);
        };
        let newest = node.version == version || planted(Bug::OldVersionDrains);
        let kind = match ended {
            PublicationEnd::Done if newest => Kind::File(FileState::Drained),
            PublicationEnd::Done | PublicationEnd::Removed => node.kind.clone(),
            PublicationEnd::Lost => Kind::File(FileState::Failed),
            PublicationEnd::Conflict => Kind::File(FileState::Conflict),
        };
        if version == node.journalled {
            self.keep_newest(inode)?;
        }
        let base = match ended {
            // What later commits rest on is what has a name now: it has all that the draft had.
            PublicationEnd::Done => node.base.map(|base| Base { draft: None, version, ..base }),
            PublicationEnd::Lost | PublicationEnd::Removed => node.base,
            // What is at its place is somebody else's.
            PublicationEnd::Conflict => node.base.filter(|base| base.draft.is_some()),
        };
        self.put(Key::Node(inode), Value::Node(Node { kind, base, published: version, ..node.clone() }));
        Ok(Reply::Done)
    }

    /// The target has replayed an entry, or never will: what it has is seen again.
    fn no_longer_hides(&mut self, mount: MountId, journal: u64, change: &Change) -> Result<(), Stop> {
        match change {
            Change::MakeDirectory(_) | Change::Remove(_) => {}
            Change::Rename { .. } => self.delete(Key::Moved(mount, journal)),
            Change::Publish { .. }
            | Change::MakeLink { .. }
            | Change::MakeSpecial { .. }
            | Change::Link { .. }
            | Change::Linked { .. }
            | Change::Attributes { .. } => return Ok(()),
        }
        let key = Key::Hides(mount, journal);
        let Some(Value::Hides(directory, name)) = self.get(key.clone())?.map(|stored| &stored.value) else {
            return Ok(());
        };
        self.delete(key);
        let hidden = match name {
            Some(name) => Key::Hidden(*directory, name.clone()),
            None => Key::Unseen(*directory),
        };
        // A later entry may hide the same name.
        if self.get(hidden.clone())?.map(|stored| &stored.value) == Some(&Value::Hidden(journal)) {
            self.delete(hidden);
        }
        Ok(())
    }

    /// A file that was at the target is not at its name there.
    fn in_conflict(&mut self, about: Option<Inode>, ended: PublicationEnd) -> Answer {
        if ended == PublicationEnd::Conflict
            && let Some(inode) = about
            && let Some(Value::Node(node)) = self.get(Key::Node(inode))?.map(|stored| &stored.value)
            && matches!(node.kind, Kind::File(FileState::Drained | FileState::Evicted))
        {
            self.put(Key::Node(inode), Value::Node(Node { kind: Kind::File(FileState::Conflict), ..node.clone() }));
        }
        Ok(Reply::Done)
    }

    /// Removes groups that were kept for the target alone.
    fn keep_newest(&mut self, inode: Inode) -> Result<(), Stop> {
        let groups = self.under(Prefix::Groups(inode))?;
        for (earlier, later) in groups.iter().zip(groups.iter().skip(1)) {
            if let (Key::Group(_, index, _), Key::Group(_, next, _)) = (&earlier.0, &later.0)
                && index == next
            {
                self.delete(earlier.0.clone());
            }
        }
        Ok(())
    }

    pub(super) fn evict(&mut self, inode: Inode, changes: u64) -> Answer {
        let node = self.file(inode)?;
        let drained = node.kind == Kind::File(FileState::Drained) && node.published == node.version;
        if !drained && !planted(Bug::UndrainedEvicted) {
            return Err(Refusal::NotDrained.into());
        }
        // What somebody writes meanwhile rests on what the pool has of it, until its writer is told.
        let base = Some(Base { draft: None, size: node.size, version: node.version, changes });
        let groups = self.under(Prefix::Groups(inode))?;
        groups.iter().for_each(|(key, _)| self.delete(key.clone()));
        self.put(Key::Node(inode), Value::Node(Node { kind: Kind::File(FileState::Evicted), base, ..node }));
        Ok(Reply::Done)
    }

    pub(super) fn prefetched(&mut self, (inode, session): (Inode, SessionId), of: Version, times: Times) -> Answer {
        let (node, groups) = (self.file(inode), self.under(Prefix::Groups(inode)));
        let (node, groups) = (node?, groups?);
        if self.stays(Key::Writer(inode, session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        let others = self.somebody_writes(inode, Some(session))?;
        // Whoever else has committed since has other bytes.
        let is_of_session = groups.iter().all(|(key, stored)| match (key, &stored.value) {
            (Key::Group(_, _, at), Value::Group(group)) => *at <= of || group.by == session,
            _ => false,
        });
        let rests = node.base.is_some_and(|base| base.draft.is_none() && base.version == of && base.size == node.size);
        let is_same = !others && is_of_session && rests && (node.journalled, node.published) == (of, of);
        if !is_same {
            return Err(Refusal::Version(node.version).into());
        }
        self.delete(Key::Writer(inode, session));
        let (version, kind) = (node.version, Kind::File(FileState::Drained));
        let base = node.base.map(|base| Base { version, ..base });
        let node = Node { kind, base, times, journalled: version, published: version, ..node };
        self.put(Key::Node(inode), Value::Node(node));
        Ok(Reply::Done)
    }

    pub(super) fn drained_early(
        &mut self,
        (publisher, mount): (u64, MountId),
        inode: Inode,
        former: Option<Base>,
        (draft, changes): (u64, u64),
        groups: &[(u32, Version, Taken)],
    ) -> Answer {
        let owner = self.get(Key::Owner(Role::Publisher(mount)))?.map(|stored| &stored.value);
        if owner != Some(&Value::Owner(publisher)) {
            return Err(Refusal::NotThePublisher.into());
        }
        let node = self.file(inode)?;
        // The draft is what will be published: it has nothing that came later.
        let waits = node.published < node.journalled && !planted(Bug::DraftChangedWhileItWaits);
        if waits || node.rests_on() != former || node.kind == Kind::File(FileState::Drained) {
            return Err(Refusal::Version(node.version).into());
        }
        let stored = self.under(Prefix::Groups(inode))?;
        for (index, version, taken) in groups {
            let newest = stored.iter().rev().find_map(|(key, _)| match key {
                Key::Group(_, of, at) if of == index => Some(*at),
                _ => None,
            });
            let at = newest.filter(|at| at == version || planted(Bug::OldVersionTaken)).unwrap_or(*version);
            let key = Key::Group(inode, *index, at);
            // Repair may name other places meanwhile.
            let Some(Value::Group(group)) = self.get(key.clone())?.map(|stored| &stored.value) else {
                return Err(Refusal::Version(node.version).into());
            };
            if newest != Some(at) {
                return Err(Refusal::Version(node.version).into());
            }
            let mut group = Group { digest: taken.digest, ..group.clone() };
            taken.chunks.iter().for_each(|chunk| group.absent.insert(*chunk));
            if group.present().next().is_none() {
                (group.layout, group.absent) = (Layout::NONE, Runs::NONE);
            }
            self.put(key, Value::Group(group));
        }
        let (size, version) = former.map_or((0, Version::NONE), |base| (base.size, base.version));
        let base = Some(Base { draft: Some(draft), size, version, changes });
        self.put(Key::Node(inode), Value::Node(Node { base, ..node }));
        Ok(Reply::Done)
    }

    pub(super) fn forget(&mut self, inode: Inode) -> Answer {
        let node = self.file(inode)?;
        if node.at.is_some() {
            return Err(Refusal::Named.into());
        }
        if node.published < node.journalled {
            // The target is still to see it, and then that it is gone.
            return Err(Refusal::InUse.into());
        }
        if let Some((writer, stored)) = self.under(Prefix::Writers(inode))?.first() {
            self.compare(Compare::Modified(writer.clone(), stored.modified));
            return Err(Refusal::InUse.into());
        }
        self.compare(Compare::NoneUnder(Prefix::Writers(inode)));
        let groups = self.under(Prefix::Groups(inode))?;
        groups.iter().for_each(|(key, _)| self.delete(key.clone()));
        self.delete(Key::Node(inode));
        Ok(Reply::Done)
    }

    /// A file, which must stay as it is.
    fn file(&mut self, inode: Inode) -> Result<Node, Stop> {
        Self::of_file(self.node(inode)?)
    }

    fn file_that_stays(&mut self, inode: Inode) -> Result<Node, Stop> {
        match self.stays(Key::Node(inode))?.map(|stored| &stored.value) {
            Some(Value::Node(node)) => Self::of_file(node),
            _ => Err(Refusal::NotFound.into()),
        }
    }

    fn of_file(node: &Node) -> Result<Node, Stop> {
        match node.kind {
            Kind::File(_) => Ok(node.clone()),
            Kind::Directory => Err(Refusal::IsADirectory.into()),
            Kind::Link(_) | Kind::Special(_) => Err(Refusal::NotFound.into()),
        }
    }
}
