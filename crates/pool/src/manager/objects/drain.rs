//! Sends a version to its store as parts of an upload, and verifies them. Each part is put together and sent by a benefactor that has most of
//! it, by a request that is signed for it alone; by this manager, if it has bytes of the former version, or if the benefactor cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{BenefactorId, Inode, Version};
use surgetank_pool_core::meta::value::{Base, Change, Placed};
use surgetank_pool_core::meta::{Key as StoreKey, Node, Value};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::{Layout, Place, Stripe};
use surgetank_pool_core::publishing::Turn;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::{Objects, Upload, is, key, number};
use crate::benefactor::Benefactor;
use crate::bucket::{self, Key, OBJECT_MAX};
use crate::chunks::{self, CHUNK, Get, Piece, SendPart, TableOf};
use crate::lost::{self, NotHad};
use crate::manager::Manager;
use crate::manager::drain::{self, Drain, Draining, Of};
use crate::manager::rows::Rows;
use crate::manager::target::Target;
use crate::meta::Unavailable;
use crate::planted::objects::{Bug, planted};
use crate::security::token::Ticket;
use crate::span;

/// Parts of a file that are under way at a time.
const PARTS: usize = 8;
/// How long a benefactor may take for one.
const PART_TIME: Duration = Duration::from_secs(300);
/// How long it may take for a chunk.
const CHUNK_TIME: Duration = Duration::from_secs(5);

/// What of an object lies where.
#[derive(Clone, Debug)]
enum What {
    Zeros,
    /// In what the target has, from there on.
    Base(u64),
    /// At benefactors.
    Chunk {
        group: u32,
        chunk: u32,
        of: TableOf,
        /// Who has it: some of these, or with parity nobody but the rest of its row.
        places: Vec<Place>,
        /// Where the former version has it as well.
        base: Option<u64>,
    },
}

type Pieces = Vec<(What, u32)>;

/// What an upload is made of.
struct Source {
    key: Key,
    id: String,
    base: Option<(Key, String)>,
    /// Of the groups with parity, by their numbers.
    rows: BTreeMap<u32, OfRows>,
}

/// Of what a group's chunks are made that nobody has.
struct OfRows {
    of: TableOf,
    layout: Layout,
    parity: Parity,
    /// Once a drain needs them.
    rows: OnceCell<Rows>,
}

/// A part that the store has: its number, its tag, the checksums of its chunks.
struct Part {
    at: usize,
    tag: String,
    chunks: Vec<((u32, u32), (u32, u32))>,
    /// Chunks of it that nobody has any more, and that were read from the former version.
    of_base: usize,
    /// Whoever was asked has answered.
    answered: bool,
}

/// Has a version's parts sent, and verifies them.
pub(in crate::manager) async fn drain(
    manager: &Arc<Manager>,
    (target, objects): (&Target, &Arc<Objects>),
    of: (Inode, Version),
    turn: Turn<'_>,
) -> Result<Drain, Unavailable> {
    let ((inode, version), place) = (of, target.place(turn.change));
    let in_trouble = |text: &dyn Display| manager.troubles.of(target, Some(&place), &text);
    let Draining { node, known, base, size, of_base } = match drain::begin(manager, of, &in_trouble).await? {
        Ok(draining) => draining,
        Err(ended) => return Ok(ended),
    };
    if size > OBJECT_MAX {
        return Ok(Drain::TooLong);
    }
    let Change::Publish { path, .. } = turn.change else {
        in_trouble(&"a bucket has nothing but files with one name each");
        return Ok(Drain::Conflict);
    };
    let key = match key(&objects.bucket, path) {
        Ok(key) => key,
        Err(error) => {
            in_trouble(&error);
            return Ok(Drain::Conflict);
        }
    };
    let (from, not_opened) = match base_of(manager, objects, (&node, of), base, turn).await? {
        Ok(from) => (from, None),
        Err(error) => {
            let is_theirs = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
            // A bucket that is gone has nothing of anybody's either.
            let is_theirs = is_theirs && turn.is_first && objects.is_taken_over().await.is_ok();
            let ended = if is_theirs { Drain::Conflict } else { Drain::Later };
            if !of_base.is_empty() {
                in_trouble(&format_args!("what version {version} rests on: {error}"));
                return Ok(ended);
            }
            // It is not needed as long as the pool has everything.
            (None, Some(ended))
        }
    };
    if let Err(error) = objects.discard(of).await {
        // It is tried again, and is no reason to send nothing.
        in_trouble(&format_args!("an upload that is of no use: {error}"));
    }
    let begun = objects.begin_upload(of, (path, &key), &node, (size, manager.attempt())).await;
    let mut upload = match begun {
        Ok(upload) => upload,
        Err(error) => {
            in_trouble(&error);
            return Ok(Drain::Later);
        }
    };
    objects.uploads().insert(of, upload.clone());
    let source = Arc::new(Source { key, id: upload.id.clone(), base: from, rows: rows(&known, inode) });
    let pieces = |range| pieces(&known, inode, base, range);
    let sent = send(manager, objects, &source, pieces, size).await;
    let ended = match sent {
        Ok(parts) => {
            upload.unanswered = parts.iter().any(|part| !part.answered);
            match verified(&known, &parts) {
                Ok(()) => {
                    upload.tags = parts.into_iter().map(|part| part.tag).collect();
                    // What the store calls the whole is known once it has its name.
                    Drain::Done(Placed { node: inode, size, modified: 0, number: 0 })
                }
                Err(sentence) => {
                    in_trouble(&sentence);
                    Drain::Later
                }
            }
        }
        Err(Drain::Lost) => {
            upload.unanswered = true;
            let not_opened = not_opened.filter(|_| !planted(Bug::AwayIsLost));
            drain::lost(manager, of, &known, not_opened).await.unwrap_or(Drain::Later)
        }
        Err(why) => {
            upload.unanswered = true;
            if let Drain::Refused(why) = &why {
                in_trouble(why);
            }
            why
        }
    };
    let is_done = matches!(ended, Drain::Done(_));
    objects.uploads().insert(of, upload);
    if !is_done && let Err(error) = objects.discard(of).await {
        in_trouble(&format_args!("an upload that is of no use: {error}"));
    }
    Ok(ended)
}

/// The object on which a version rests, and its tag; `None`: it rests on nothing.
async fn base_of(
    manager: &Manager,
    objects: &Objects,
    (node, of): (&Node, (Inode, Version)),
    base: Option<Base>,
    turn: Turn<'_>,
) -> Result<std::io::Result<Option<(Key, String)>>, Unavailable> {
    let (Some(_), Change::Publish { path, .. }) = (base, turn.change) else { return Ok(Ok(None)) };
    let Some((name, above)) = path.0.split_last() else { return Ok(Err(ErrorKind::NotFound.into())) };
    let read = manager.store.read(&[StoreKey::Placed(node.mount, number(above), name.clone())], &[]).await?;
    let was = match read.keys.into_iter().next().flatten().map(|stored| stored.value) {
        Some(Value::Placed(placed)) if placed.node == of.0 => Some(placed),
        _ => None,
    };
    let found = async {
        let key = key(&objects.bucket, path)?;
        match objects.bucket.head(&key).await? {
            None => Err(ErrorKind::NotFound.into()),
            // If the version may be there already, that has all that it rested on.
            Some(there) if is(&there, was) || turn.maybe_done && objects.is_marked(&there, of) => {
                Ok(Some((key, there.tag)))
            }
            Some(_) => Err(super::theirs()),
        }
    };
    Ok(found.await)
}

impl Objects {
    async fn begin_upload(
        &self,
        of: (Inode, Version),
        (path, key): (&surgetank_pool_core::meta::value::Path, &Key),
        node: &Node,
        (size, attempt): (u64, u64),
    ) -> std::io::Result<Upload> {
        let record = self.aside(&format!("{}.{}.{}.{}.{attempt}", self.mount, self.since, of.0, of.1))?;
        let (mode, user, group) = node.owner;
        let text = |name: &str, value: String| (name.to_owned(), value);
        let attributes = vec![
            bucket::marked(&self.mark(of)),
            text("mode", format!("{:04o}", mode & 0o7777)),
            text("uid", user.to_string()),
            text("gid", group.to_string()),
            text(
                "mtime",
                format!("{}.{:09}", node.times.modified / 1_000_000_000, node.times.modified % 1_000_000_000),
            ),
        ];
        let upload = Upload {
            key: key.clone(),
            record,
            id: String::new(),
            tags: Vec::new(),
            size,
            attributes,
            unanswered: false,
        };
        if size == 0 {
            return Ok(upload);
        }
        let attributes = upload.attributes.clone();
        self.begun(path, upload, self.bucket.begin(key, &attributes)).await
    }
}

/// What a range of an object consists of.
fn pieces(known: &[Of], inode: Inode, base: Option<Base>, (first, end): (u64, u64)) -> Pieces {
    let (mut at, mut all) = (first, Pieces::new());
    while at < end {
        let (index, chunk) = span::of_byte(at);
        let length = end.min(at + CHUNK) - at;
        let in_base = base.filter(|base| at + length <= base.size).map(|_| at);
        let what = match known.iter().find(|(group, ..)| *group == index) {
            Some((_, _, group)) if group.is_hole(chunk) => What::Zeros,
            Some((_, version, group)) if !group.is_absent(chunk) => What::Chunk {
                group: index,
                chunk,
                of: (GroupOf { inode, group: index }, *version, group.by),
                places: Stripe::new(&group.layout).places(&group.layout, chunk).to_vec(),
                base: in_base.filter(|_| base.is_some_and(|base| *version <= base.version)),
            },
            _ => What::Base(at),
        };
        all.push((what, u32::try_from(length).unwrap_or(u32::MAX)));
        at += length;
    }
    all
}

/// What the rows of groups are, of those that have parity.
fn rows(known: &[Of], inode: Inode) -> BTreeMap<u32, OfRows> {
    let of_group = |(index, version, group): &Of| {
        let of = (GroupOf { inode, group: *index }, *version, group.by);
        let rows = |parity| OfRows { of, layout: group.layout.clone(), parity, rows: OnceCell::new() };
        group.layout.parity.map(|parity| (*index, rows(parity)))
    };
    known.iter().filter_map(of_group).collect()
}

/// Has all parts sent, several at a time.
async fn send(
    manager: &Arc<Manager>,
    objects: &Arc<Objects>,
    source: &Arc<Source>,
    pieces: impl Fn((u64, u64)) -> Pieces,
    size: u64,
) -> Result<Vec<Part>, Drain> {
    let length = bucket::part_of(size);
    let count = usize::try_from(size.div_ceil(length)).unwrap_or(usize::MAX);
    let (mut sending, mut sent, mut failed) = (JoinSet::new(), Vec::with_capacity(count), None);
    let mut next = 0;
    loop {
        while next < count && sending.len() < PARTS && failed.is_none() {
            let first = next as u64 * length;
            let pieces = pieces((first, size.min(first + length)));
            let (manager, objects, source) = (Arc::clone(manager), Arc::clone(objects), Arc::clone(source));
            sending.spawn(async move { send_part(&manager, &objects, &source, next, pieces).await });
            next += 1;
        }
        // Also those that are in vain are waited for: nothing is sent to an upload that is to end.
        match sending.join_next().await {
            Some(Ok(Ok(part))) => sent.push(part),
            Some(Ok(Err(why))) => failed = Some(failed.unwrap_or(why)),
            Some(Err(error)) => failed = Some(Drain::Refused(error.to_string())),
            None => break,
        }
    }
    if !planted(Bug::PartsAsTheyCame) {
        sent.sort_unstable_by_key(|part| part.at);
    }
    failed.map_or(Ok(sent), Err)
}

/// Has one part sent.
async fn send_part(
    manager: &Manager,
    objects: &Objects,
    source: &Source,
    at: usize,
    pieces: Pieces,
) -> Result<Part, Drain> {
    let mut answered = true;
    if let Some((lead, part)) = by_benefactor(manager, at, &pieces) {
        let url = objects.bucket.sign_part(&source.key, &source.id, at).await;
        let url = url.map_err(|error| Drain::Refused(error.to_string()))?;
        let Some(member) = manager.members.newest(lead) else { return Err(Drain::Later) };
        let part = SendPart { url, ..part };
        match member.peer.ask::<Benefactor>(chunks::Request::SendPart(part), PART_TIME).await {
            Ok(chunks::Reply::Sent(sent)) => {
                let of = pieces.iter().filter_map(|(what, _)| match what {
                    What::Chunk { group, chunk, of, .. } => Some((of.0.inode, (*group, *chunk))),
                    What::Zeros | What::Base(_) => None,
                });
                let of: Vec<_> = of.collect();
                if of.len() != sent.chunks.len() {
                    return Err(Drain::Refused("a benefactor has not said of what it has made a part".to_owned()));
                }
                if let Some((inode, _)) = of.first() {
                    manager.rate.drained(*inode, sent.chunks.iter().map(|(length, _)| u64::from(*length)).sum());
                }
                let chunks = of.into_iter().map(|(_, chunk)| chunk).zip(sent.chunks).collect();
                return Ok(Part { at, tag: sent.tag, chunks, of_base: 0, answered });
            }
            Ok(chunks::Reply::NotDrained(why)) => return Err(Drain::Refused(why)),
            // One of those that it was to ask does not have it, or it does not answer: its own copy may be damaged.
            Ok(_) => {}
            Err(_) => answered = false,
        }
    }
    let (mut all, mut chunks, mut of_base) = (Vec::new(), Vec::new(), 0);
    for (what, length) in pieces {
        let end = all.len() + length as usize;
        match what {
            What::Zeros => {}
            What::Base(from) => all.extend_from_slice(&read_base(objects, source, from, length).await?),
            What::Chunk { group, chunk, of, places, base } => {
                match had(manager, source, (&places, of), (group, chunk)).await {
                    Ok((crc, bytes)) => {
                        all.extend_from_slice(&bytes[..bytes.len().min(length as usize)]);
                        manager.rate.drained(of.0.inode, length.into());
                        chunks.push(((group, chunk), (u32::try_from(bytes.len()).unwrap_or(u32::MAX), crc)));
                    }
                    Err(Drain::Lost) if base.is_some() && source.base.is_some() => {
                        of_base += 1;
                        all.extend_from_slice(&read_base(objects, source, base.unwrap_or_default(), length).await?);
                    }
                    Err(why) => return Err(why),
                }
            }
        }
        all.resize(end, 0);
    }
    let put = objects.bucket.put_part(&source.key, &source.id, at, all.into()).await;
    put.map(|tag| Part { at, tag, chunks, of_base, answered }).map_err(|error| Drain::Refused(error.to_string()))
}

/// Who puts a part together: the benefactor that has most of it, another for each part of those that have as much. `None`: a part of it is
/// nowhere but at the target, or no benefactor has it at present.
fn by_benefactor(manager: &Manager, at: usize, pieces: &Pieces) -> Option<(BenefactorId, SendPart)> {
    let mut has: BTreeMap<BenefactorId, usize> = BTreeMap::new();
    let mut of_chunks = Vec::with_capacity(pieces.len());
    for (what, length) in pieces {
        match what {
            What::Zeros => of_chunks.push((None, *length)),
            What::Base(_) => return None,
            What::Chunk { chunk, of, places, .. } => {
                let lives = |place: &&Place| manager.members.holder(**place).is_some();
                let places: BTreeSet<BenefactorId> = places.iter().filter(lives).map(|place| place.id).collect();
                if places.is_empty() {
                    return None;
                }
                places.iter().for_each(|id| *has.entry(*id).or_default() += 1);
                of_chunks.push((Some((*of, *chunk, places)), *length));
            }
        }
    }
    let most = has.values().copied().max()?;
    let leads: Vec<BenefactorId> = has.into_iter().filter(|(_, count)| *count == most).map(|(id, _)| id).collect();
    let lead = leads[at % leads.len()];
    let mut sources: Vec<BenefactorId> = Vec::new();
    let mut pieces = Vec::with_capacity(of_chunks.len());
    for (chunk, length) in of_chunks {
        let chunk = chunk.map(|(of, chunk, places)| {
            if places.contains(&lead) {
                return (0, of, chunk);
            }
            let from = places.iter().nth(chunk as usize % places.len()).copied().unwrap_or(lead);
            let source = sources.iter().position(|id| *id == from).unwrap_or_else(|| {
                sources.push(from);
                sources.len() - 1
            });
            (u16::try_from(source + 1).unwrap_or(u16::MAX), of, chunk)
        });
        pieces.push(Piece { chunk, length });
    }
    let lends = |id: BenefactorId| manager.members.newest(id).map(|member| member.lends);
    let sources = sources.into_iter().map(|id| lends(id).map(|lends| (lends.address, lends.place.incarnation)));
    let sources = sources.collect::<Option<Vec<_>>>()?;
    let incarnation = lends(lead)?.place.incarnation;
    Some((lead, SendPart { incarnation, pieces, sources, url: String::new() }))
}

async fn read_base(objects: &Objects, source: &Source, from: u64, length: u32) -> Result<Bytes, Drain> {
    let Some((key, tag)) = &source.base else { return Err(Drain::Later) };
    let read = objects.bucket.get(key, from..from + u64::from(length), Some(tag)).await;
    // That somebody else has changed it is found by the next attempt.
    read.map(|(_, bytes)| bytes).map_err(|error| Drain::Refused(error.to_string()))
}

/// A chunk and its checksum: from whoever has it, or with parity of the rest of its row.
async fn had(
    manager: &Manager,
    source: &Source,
    (places, of): (&[Place], TableOf),
    (group, chunk): (u32, u32),
) -> Result<(u32, Bytes), Drain> {
    match (fetch(manager, places, of, chunk).await, source.rows.get(&group)) {
        (Err(why @ (Drain::Lost | Drain::Later)), Some(of)) if !planted(Bug::RowUnused) => {
            made(manager, of, chunk).await.map_err(|of_rows| why.or_of_rows(of_rows))
        }
        (fetched, _) => fetched,
    }
}

/// Makes a chunk of the rest of its row.
async fn made(manager: &Manager, of: &OfRows, chunk: u32) -> Result<(u32, Bytes), Drain> {
    // Of all parts of a group its rows are asked for once.
    let rows = of.rows.get_or_init(|| Rows::read(manager, of.of, (&of.layout, of.parity), None)).await;
    let Some(lost) = rows.lost(chunk) else {
        let is_over = rows.is_over(chunk, (&of.layout, &Stripe::new(&of.layout)));
        return Err(if is_over { Drain::Lost } else { Drain::Later });
    };
    let (crc, table) = (lost.entry.crc, of.of);
    let member = |chunk, source: u16| {
        let member = rows.members.get(usize::from(source)).cloned();
        async move {
            let Some(member) = member else { return Err(NotHad::Ever) };
            let incarnation = member.lends.place.incarnation;
            let get = Get { incarnation, of: table, chunk, ticket: Ticket::default() };
            match member.peer.ask::<Benefactor>(chunks::Request::Get(get), CHUNK_TIME).await {
                Ok(chunks::Reply::Chunk(_, bytes)) => Ok(bytes),
                Ok(chunks::Reply::NotHere | chunks::Reply::Corrupt) => Err(NotHad::Ever),
                _ => Err(NotHad::Now),
            }
        }
    };
    match lost::make((table, of.parity), lost, member).await {
        Ok(bytes) => Ok((crc, bytes.into())),
        // Members of its row are damaged. Whoever does not answer now may have others.
        Err(NotHad::Ever) if rows.are_all() => Err(Drain::Lost),
        Err(_) => Err(Drain::Later),
    }
}

/// Fetches a chunk from one of its places: whichever has it.
async fn fetch(manager: &Manager, places: &[Place], of: TableOf, chunk: u32) -> Result<(u32, Bytes), Drain> {
    let mut lost = true;
    for place in places.iter().copied() {
        let Some(member) = manager.members.holder(place) else {
            lost &= manager.members.is_lost(place);
            continue;
        };
        let get = Get { incarnation: member.lends.place.incarnation, of, chunk, ticket: Ticket::default() };
        match member.peer.ask::<Benefactor>(chunks::Request::Get(get), CHUNK_TIME).await {
            Ok(chunks::Reply::Chunk(crc, bytes)) if crc32c::crc32c(&bytes) == crc => return Ok((crc, bytes)),
            // Its life is over, or it never had them: it has them at no later time either.
            Ok(chunks::Reply::Stale | chunks::Reply::NotHere | chunks::Reply::Corrupt) => {}
            Ok(_) | Err(_) => lost = false,
        }
    }
    Err(if lost { Drain::Lost } else { Drain::Later })
}

/// Whether the chunks that were sent are those that were committed; those that were taken from the former version are not among them.
fn verified(known: &[Of], parts: &[Part]) -> Result<(), String> {
    let chunks: BTreeMap<(u32, u32), (u32, u32)> = parts.iter().flat_map(|part| part.chunks.iter().copied()).collect();
    let mut of_base: usize = parts.iter().map(|part| part.of_base).sum();
    for (index, _, group) in known.iter().filter(|(.., group)| group.bytes > 0 && !group.layout.columns.is_empty()) {
        let sent: Vec<(u32, u32)> = group.present().filter_map(|chunk| chunks.get(&(*index, chunk)).copied()).collect();
        // Some are lost, and were read from what has them as well.
        let lacks = group.present().count() - sent.len();
        let is_same = match lacks {
            0 => span::digest(sent.into_iter()).1 == group.digest,
            lacks => lacks <= of_base,
        };
        of_base = of_base.saturating_sub(lacks);
        if !is_same {
            return Err(format!("group {index} reached the target with other bytes than were committed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::id::{Incarnation, SessionId};
    use surgetank_pool_core::meta::Group;
    use surgetank_pool_core::placement::{Column, Tier};
    use surgetank_pool_core::runs::Runs;

    use super::*;

    const INODE: Inode = Inode(7);

    fn group(bytes: u64, columns: usize, absent: Runs, holes: Runs) -> Group {
        let place = Place { id: BenefactorId(0), incarnation: Incarnation(1) };
        let column = Column { places: vec![place], tier: Tier::Memory, weight: 1 };
        let layout = Layout { columns: vec![column; columns], parity: None };
        Group { layout, bytes, digest: 0, by: SessionId(1), absent, holes }
    }

    #[test]
    fn the_pieces_of_all_parts_are_the_file_each_from_where_it_lies() {
        let (first, second) = (64 * CHUNK, 10 * CHUNK + 5);
        let known = vec![
            (0, Version(2), group(first, 2, Runs::from(3..5), Runs::from(6..8))),
            (1, Version(3), group(second, 1, Runs::NONE, Runs::NONE)),
        ];
        let base = Some(Base { draft: None, size: first, version: Version(2), changes: 0 });
        let size = first + second;
        for length in [8 * CHUNK, 24 * CHUNK] {
            let (mut at, mut from_base, mut zeros, mut chunks) = (0, 0, 0, BTreeSet::new());
            while at < size {
                let end = size.min(at + length);
                for (what, bytes) in pieces(&known, INODE, base, (at, end)) {
                    match what {
                        What::Zeros => zeros += u64::from(bytes),
                        What::Base(from) => {
                            assert_eq!(from, at);
                            from_base += u64::from(bytes);
                        }
                        What::Chunk { group, chunk, base, .. } => {
                            assert_eq!(span::of_group(group).0 + u64::from(chunk) * CHUNK, at);
                            // What was written later than the former version is not in that.
                            assert_eq!(base, (group == 0).then_some(at));
                            chunks.insert((group, chunk));
                        }
                    }
                    at += u64::from(bytes);
                }
                assert_eq!(at, end, "a part is as long as it is to be");
            }
            assert_eq!((from_base, zeros), (2 * CHUNK, 2 * CHUNK));
            assert_eq!(chunks.len(), 60 + 11);
        }
    }

    #[test]
    fn other_chunks_than_were_committed_are_found() {
        let chunks = [(u32::try_from(CHUNK).unwrap(), 11), (5, 12)];
        let digest = span::digest(chunks.into_iter()).1;
        let known = vec![(0, Version(1), Group { digest, ..group(CHUNK + 5, 1, Runs::NONE, Runs::NONE) })];
        let part = |crc: u32| Part {
            at: 0,
            tag: String::new(),
            chunks: vec![((0, 1), (5, crc)), ((0, 0), chunks[0])],
            of_base: 0,
            answered: true,
        };
        assert!(verified(&known, &[part(12)]).is_ok());
        assert!(verified(&known, &[part(13)]).is_err());
        let lacks = |of_base| Part { chunks: vec![((0, 1), (5, 12))], of_base, ..part(12) };
        assert!(verified(&known, &[lacks(1)]).is_ok(), "the former version has it");
        assert!(verified(&known, &[lacks(0)]).is_err(), "nobody has sent it");
    }
}
