//! What clients ask for.

use std::collections::BTreeMap;

use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::{Attributes, Value};
use surgetank_pool_core::meta::{Group, Key, Name};
use surgetank_pool_core::placement::{Column, Layout, Place, Tier};

use surgetank_pool_core::runs::Runs;

use super::World;
use crate::support::namespace::ROOT;

impl World {
    /// A client asks for something.
    pub(super) fn ask(&mut self) {
        let directories = self.truth.directories();
        let files = self.truth.files();
        let sessions: Vec<SessionId> = self.sessions.iter().copied().collect();
        let session = self.pick(&sessions).unwrap_or(SessionId(0));
        let writer = (session, Lease(100_000 + session.0));
        let names: Vec<Name> = ["a", "b", "c"].iter().filter_map(|name| Name::new(name.as_bytes()).ok()).collect();
        let at = |world: &mut Self| {
            // Mostly where something is; now and then in a file, or in a directory that has gone.
            let directory = match world.random.below(20) {
                0 => world.pick(&files).unwrap_or(Inode(5)),
                _ => world.pick(&directories).unwrap_or(ROOT),
            };
            (directory, world.pick(&names).unwrap_or_else(|| names[0].clone()))
        };
        let owner = (0o644, 1, 1);
        let operation = match self.random.below(22) {
            0..=2 => Operation::Create { at: at(self), fresh: self.number(), writer, owner },
            3 => Operation::MakeDirectory { at: at(self), fresh: self.number(), journal: self.number(), owner },
            4 | 5 => {
                let (from, to, replace) = (at(self), at(self), self.random.chance(0.8));
                Operation::Rename { from, to, replace, journal: self.number() }
            }
            6 => Operation::Unlink { at: at(self), journal: self.number() },
            7 => Operation::RemoveDirectory { at: at(self), journal: self.number() },
            21 => {
                let inodes: Vec<Inode> = files.iter().chain(&directories).copied().collect();
                let Some(inode) = self.pick(&inodes) else { return };
                let attributes = Attributes { mode: Some(0o600), ..Attributes::default() };
                Operation::SetAttributes { inode, attributes, journal: self.number() }
            }
            kind => {
                let Some(inode) = self.pick(&files) else { return };
                // Mostly by somebody who writes.
                let writers: Vec<(Inode, SessionId)> = self
                    .store
                    .all()
                    .filter_map(|(key, _)| match key {
                        Key::Writer(inode, session) => Some((*inode, *session)),
                        _ => None,
                    })
                    .collect();
                let is_by_writer = matches!(kind, 10..=17) && self.random.chance(0.8);
                let (inode, session) = match self.pick(&writers) {
                    Some(writer) if is_by_writer => writer,
                    _ => (inode, session),
                };
                match kind {
                    8 | 9 => Operation::OpenForWriting { inode, writer, rewrites: self.random.chance(0.3) },
                    10..=14 => {
                        let mut groups = (0..1 + self.random.below(2))
                            .map(|_| (u32::try_from(self.random.below(3)).unwrap_or_default(), self.group()))
                            .collect::<BTreeMap<_, _>>();
                        groups.iter_mut().for_each(|(index, group)| self.fill(inode, *index, group));
                        let stale = u64::from(self.random.chance(0.1));
                        let changes = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
                            Some(Value::Node(node)) => node.changes(),
                            _ => 0,
                        };
                        let on = (Version(self.truth.version(inode).0.saturating_sub(stale)), changes);
                        let size = self.random.below(1000);
                        let close = self.random.chance(0.3).then(|| self.number());
                        Operation::Commit { inode, session, on, size, groups: groups.into_iter().collect(), close }
                    }
                    15..=17 => Operation::Close { inode, session, journal: self.number() },
                    19 | 20 => Operation::Evict { inode, changes: self.number() },
                    _ => {
                        let named = self.truth.names().values().any(|named| *named == inode);
                        if named {
                            return;
                        }
                        Operation::Forget { inode }
                    }
                }
            }
        };
        self.begin(operation);
    }

    fn group(&mut self) -> Group {
        let count = 1 + self.random.below(2);
        let places = (0..count)
            .map(|_| {
                let id = BenefactorId(u32::try_from(self.random.below(4)).unwrap_or_default());
                Place { id, incarnation: Incarnation(self.benefactors[&id]) }
            })
            .collect();
        let layout = Layout { columns: vec![Column { places, tier: Tier::Memory, weight: 1 }], parity: None };
        Group {
            layout,
            bytes: 0,
            digest: u32::try_from(self.random.below(1 << 30)).unwrap_or_default(),
            by: SessionId(0),
            absent: Runs::NONE,
            holes: Runs::NONE,
        }
    }
}
