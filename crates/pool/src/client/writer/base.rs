//! What the pool does not have of a file that is written: it is read from the file at the target on which the newest commit rests.

use bytes::Bytes;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::Base;
use surgetank_pool_core::placement::{Layout, Place, Stripe};
use surgetank_pool_core::runs::Runs;

use tokio::time::Instant;

use super::super::reader::{AtTarget, LOOK_LEAST};
use super::super::{Error, LOOK};
use super::part::Former;
use super::{Chunk, Group, Writer};
use crate::chunks::CHUNK;
use crate::manager::Content;
use crate::span;

/// A layout, and how it spreads chunks; `None`: it has no columns.
pub(super) fn placed(layout: Layout) -> Option<(Layout, Stripe)> {
    if layout.columns.is_empty() {
        return None;
    }
    let stripe = Stripe::new(&layout);
    Some((layout, stripe))
}

/// Where that is.
pub(super) fn places(placed: Option<&(Layout, Stripe)>) -> Vec<Place> {
    placed.map_or_else(Vec::new, |(layout, _)| layout.places())
}

impl Group {
    /// A group that the base alone has, of so many bytes.
    pub(super) fn of_base(bytes: u64) -> Self {
        Self { absent: Runs::from(0..span::chunks(bytes)), known: true, of_base: true, ..Self::default() }
    }
}

impl Writer {
    pub(super) fn rests_on(&self) -> Option<Base> {
        self.node.as_ref().and_then(surgetank_pool_core::meta::Node::rests_on)
    }

    /// Bytes of a group that the store does not name and the base has.
    pub(super) fn in_base(&self, index: u32) -> Option<u64> {
        let (first, room) = span::of_group(index);
        let size = self.rests_on()?.size;
        (first < size).then(|| room.min(size - first))
    }

    /// Bytes of a group, as committed.
    pub(super) fn committed_in(&self, index: u32) -> u64 {
        let (first, room) = span::of_group(index);
        self.committed.saturating_sub(first).min(room)
    }

    /// Reads a chunk that the base alone has.
    pub(super) async fn read_base(&mut self, begins: u64) -> Result<Bytes, Error> {
        let (until, mut pause) = (self.inner.until(), LOOK);
        loop {
            let (Some(node), Some(base)) = (&self.node, self.rests_on()) else {
                let (path, why) = (self.path.clone(), "it was never written".to_owned());
                return Err(Error::Unreadable { path, offset: begins, why });
            };
            let length = CHUNK.min(self.committed.saturating_sub(begins));
            let node_waits = node.published < node.journalled;
            let opened = match self.base.take() {
                Some(opened) if opened.is(base) => opened,
                _ => match AtTarget::open(&self.inner, &self.path, (self.inode, node), base, until).await {
                    Ok(opened) => opened,
                    // It may have been published meanwhile, or drained into another draft.
                    Err(error) if !self.look_again().await? => return Err(error),
                    Err(_) => continue,
                },
            };
            // A later version may have got its name there, which the store does not say yet. A bucket that is away, or has got no valid credentials,
            // has it again later; and a rename there copies it.
            let is_in_bucket = self.inner.is_in_bucket();
            let may_be_there = |error: &Error| node_waits || is_in_bucket && matches!(error, Error::Unreadable { .. });
            let bytes = match opened.chunk(&self.inner, &self.path, begins, length).await {
                Ok(bytes) => bytes,
                Err(error) => match self.look_again().await? || may_be_there(&error) && Instant::now() < until {
                    true => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LOOK_LEAST);
                        continue;
                    }
                    false => return Err(error),
                },
            };
            self.base = Some(opened);
            // A draft is written over by later commits.
            if base.draft.is_none() || !self.look_again().await? {
                return Ok(bytes);
            }
        }
    }

    /// Learns which chunks have left the pool; whether that has changed.
    ///
    /// # Errors
    /// [`Error`], also if another session has committed meanwhile: see [`is_behind`](super::is_behind).
    pub(super) async fn look_again(&mut self) -> Result<bool, Error> {
        self.look().await.map(|(changed, _)| changed)
    }

    /// The same, with what the store has now.
    pub(super) async fn look(&mut self) -> Result<(bool, Content), Error> {
        let content = self.inner.content(&self.path, self.inode).await?;
        if content.node.version != self.version {
            return Err(Error::Refused(self.path.clone(), Refusal::Version(content.node.version)));
        }
        Ok((self.looked(&content), content))
    }

    /// The store has this of the version that is known; whether chunks have left the pool.
    pub(super) fn looked(&mut self, content: &Content) -> bool {
        let changed = self.node.as_ref().is_none_or(|node| node.rests_on() != content.node.rests_on());
        if changed {
            self.left(content);
        }
        changed
    }

    /// Chunks have left the pool since.
    fn left(&mut self, content: &Content) {
        let indices: Vec<u32> = self.groups.keys().copied().collect();
        for index in indices {
            let all = span::chunks(self.committed_in(index));
            let Some(group) = self.groups.get_mut(&index) else { continue };
            let Some(committed) = group.committed else { continue };
            let stored = content.groups.iter().find(|(of, version, by)| (*of, (*version, by.by)) == (index, committed));
            let mut gone = match stored {
                Some((.., stored)) => stored.in_base(),
                None => Runs::from(0..all),
            };
            if !group.known {
                group.known = stored.is_none_or(|(.., stored)| stored.layout.columns.is_empty());
                // The base has zeros there.
                gone.cut_all(&group.holes);
                group.absent = gone;
                if group.known {
                    // Nobody has it any more.
                    group.placed = None;
                }
                continue;
            }
            for chunk in gone.iter() {
                match group.chunks.get_mut(&chunk) {
                    // What was written over since is here.
                    Some(Chunk { draft: true, former: Some(Former::Hole), .. }) => {}
                    Some(written) if written.draft => written.former = Some(Former::Absent),
                    Some(_) => {
                        group.chunks.remove(&chunk);
                        group.absent.insert(chunk);
                    }
                    None => {}
                }
            }
            self.withdrawn.extend(group.drop_rows());
            if group.chunks.is_empty() {
                group.placed = None;
            }
        }
        self.node = Some(content.node.clone());
    }
}
