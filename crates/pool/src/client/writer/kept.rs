//! Which bytes stay in this process's memory until they are committed.
//!
//! A file may have much more uncommitted than a client keeps. What was written first is dropped here once all benefactors of its chunk have
//! it: if one of them dies, it is read from another one and put elsewhere. A chunk is dropped only if all of it was written here, so that
//! what others commit meanwhile changes nothing in it.
//!
//! With one copy nothing but the benefactor has it then. If that dies, the file lacks it as it lacks what was committed before; unless that
//! survives on an SSD, so that with one copy on SSD everything is kept, and committed when it is too much. So it is with parity, which is computed
//! of it.

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, Instance};
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::placement::{Media, Place, Protection};
use tokio::time::Instant;

use super::super::reader::{ANSWER, DAMAGED, intact};
use super::super::{Error, LOOK};
use super::base::places;
use super::part::Former;
use super::{Chunk, Group, Writer};
use crate::chunks::{self, CHUNK, Draft};
use crate::planted::holes;
use crate::planted::writers::{Bug, planted};

/// Groups that one commit may name: each takes a part of the store's transaction.
const GROUPS_MAX: usize = 32;

impl Chunk {
    /// Whether nobody needs its bytes here: see the module.
    fn may_go(&self) -> bool {
        let all = u32::try_from(CHUNK).unwrap_or(u32::MAX);
        let anyway = planted(Bug::PartDropped) || planted(Bug::LengthForgotten);
        anyway || self.length == all && self.written.covers(all)
    }

    /// It lies at one of these again that had left.
    pub(super) fn return_to(&mut self, places: &[Place]) {
        let at = &mut self.at;
        self.spare.retain(|(place, instance)| {
            let returns = places.contains(place) && !at.contains_key(&place.id);
            if returns {
                at.insert(place.id, *instance);
            }
            !returns
        });
    }

    /// It is not to lie at these benefactors any more; which of its writings are withdrawn. Those that are not kept here stay readable there.
    pub(super) fn leave(
        &mut self,
        leaves: impl Fn(BenefactorId) -> bool,
        former: &[Place],
    ) -> Vec<(BenefactorId, Instance)> {
        let at = std::mem::take(&mut self.at);
        let (gone, at): (Vec<_>, Vec<_>) = at.into_iter().partition(|(id, _)| leaves(*id));
        self.at = at.into_iter().collect();
        if !self.draft {
            return Vec::new();
        }
        if self.bytes.is_some() || planted(Bug::ReplacedWithdrawn) {
            return gone;
        }
        let place = |id: BenefactorId| former.iter().find(|place| place.id == id);
        self.spare.extend(gone.into_iter().filter_map(|(id, instance)| Some((*place(id)?, instance))));
        Vec::new()
    }
}

impl Group {
    /// Which places a chunk is to have.
    pub(super) fn lies_at(&self, number: u32) -> &[Place] {
        match &self.placed {
            Some((layout, stripe)) => stripe.places(layout, number),
            None => &[],
        }
    }

    pub(super) fn places(&self) -> Vec<Place> {
        places(self.placed.as_ref())
    }
}

impl Writer {
    /// Drops bytes that need not be kept, if there are too many; `false`: there still are.
    pub(super) fn keep_less(&mut self) -> bool {
        let config = &self.inner.config;
        let max = usize::try_from(config.kept_max / CHUNK).unwrap_or(usize::MAX);
        let mut over = self.kept.len().saturating_sub(max);
        if over == 0 || planted(Bug::NothingDropped) {
            return true;
        }
        let may_go = match self.inner.protection {
            Protection::Copies(copies) => copies > 1 || self.inner.media != Media::Ssd,
            // A row's parity is computed of them.
            Protection::Parity(_) => false,
        };
        let may_go = may_go || planted(Bug::DroppedWithOneSsd);
        let (groups, gone) = (&mut self.groups, &self.gone);
        self.kept.retain(|(index, number)| {
            if over == 0 {
                return true;
            }
            let group = groups.get_mut(index);
            let kept = |group: &Group| group.chunks.get(number).is_some_and(|chunk| chunk.bytes.is_some());
            // What is not kept any more was written over, or cut off.
            let Some(group) = group.filter(|group| kept(group)) else {
                over -= 1;
                return false;
            };
            let is_safe = group.lies_at(*number).iter().all(|place| !gone.contains(place));
            let has_all = |chunk: &Chunk| group.has_all(*number, &chunk.at) || planted(Bug::DroppedBeforeStored);
            let is_dropped =
                may_go && is_safe && group.chunks.get(number).is_some_and(|chunk| chunk.may_go() && has_all(chunk));
            if let Some(chunk) = group.chunks.get_mut(number).filter(|_| is_dropped) {
                chunk.bytes = None;
            }
            over -= usize::from(is_dropped);
            !is_dropped
        });
        over == 0
    }

    /// Whether a commit would name very many groups into which something was written, or that have holes.
    pub(super) fn is_wide(&self) -> bool {
        let is_written = |group: &&Group| {
            let has_holes = !group.holes.is_empty() && !holes::planted(holes::Bug::AnyGroupsWait);
            group.changed && (has_holes || group.chunks.values().any(|chunk| chunk.draft))
        };
        let may_be = self.groups.len() > GROUPS_MAX && !planted(Bug::AnyGroupsWait);
        may_be && self.groups.values().filter(is_written).count() > GROUPS_MAX
    }

    /// The bytes of a chunk that is not committed: kept here, or read from a benefactor; `places`: where its group lies.
    pub(super) async fn bytes_of_draft(
        &mut self,
        chunk: Chunk,
        places: Vec<Place>,
        begins: u64,
    ) -> Result<Bytes, Error> {
        if let Some(bytes) = chunk.bytes {
            return Ok(bytes);
        }
        let until = self.inner.until();
        let at = |place: &Place| Some((*place, *chunk.at.get(&place.id)?));
        let spare = chunk.spare.into_iter().filter(|_| !planted(Bug::ReplacedForgotten));
        let mut copies: Vec<_> = places.iter().filter_map(at).chain(spare).collect();
        loop {
            // Whoever did not answer lately is asked last.
            copies.sort_by_key(|(place, _)| self.gone.contains(place));
            let (mut answers, mut forever) = (Vec::new(), true);
            for (place, instance) in &copies {
                let entry = Entry { instance: *instance, length: chunk.length, crc: chunk.crc };
                let draft = Draft { incarnation: place.incarnation, inode: self.inode, entry };
                let answer = self.inner.ask_benefactor(place.id, chunks::Request::Draft(draft), ANSWER).await;
                if answer.is_none() {
                    forever = false;
                    self.gone.insert(*place);
                }
                let why = match intact(answer) {
                    Ok((crc, bytes)) if crc == chunk.crc => return Ok(as_read(bytes)),
                    Ok(_) => DAMAGED,
                    Err(why) => why,
                };
                answers.push(format!("benefactor {} {why}", place.id));
            }
            if forever || Instant::now() >= until {
                let why = format!("it is not committed, and {}", answers.join(", "));
                return Err(Error::Unreadable { path: self.path.clone(), offset: begins, why });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Copies in the place of lost ones that no chunk has any more take no room: their chunks have left the pool, or their benefactors the
    /// groups' layouts.
    pub(super) fn withdraw_restored(&mut self) {
        let (groups, mut unused) = (&self.groups, Vec::new());
        self.restored.retain(|(id, instance), (index, number)| {
            let has = |chunk: &Chunk| chunk.at.get(id) == Some(instance);
            let chunk = groups.get(index).and_then(|group| group.chunks.get(number));
            let stays = chunk.is_some_and(|chunk| match &chunk.former {
                Some(Former::Stored(former)) => has(chunk) || has(former),
                _ => has(chunk),
            });
            unused.extend((!stays).then_some((*id, *instance)));
            stays
        });
        self.withdraw(unused);
    }

    /// All chunks are where they are to be: what was elsewhere is needed no longer.
    pub(super) fn withdraw_spares(&mut self) {
        let chunks = self.groups.values_mut().flat_map(|group| group.chunks.values_mut());
        let spares: Vec<_> = chunks.flat_map(|chunk| std::mem::take(&mut chunk.spare)).collect();
        self.withdraw(spares.into_iter().map(|(place, instance)| (place.id, instance)).collect());
    }
}

/// The bytes, but for a bug.
fn as_read(bytes: Bytes) -> Bytes {
    if !planted(Bug::LengthForgotten) {
        return bytes;
    }
    let mut longer = bytes.to_vec();
    longer.resize(usize::try_from(CHUNK).unwrap_or_default(), 0);
    longer.into()
}
