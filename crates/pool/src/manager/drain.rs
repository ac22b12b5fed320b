//! Has benefactors write what they have of a file at the target, and verifies it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{Incarnation, Inode, MountId, Version};
use surgetank_pool_core::meta::value::{Base, Change, Placed};
use surgetank_pool_core::meta::{Group, Key, Node, Prefix, Value};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::{Layout, Place, Stripe};
use surgetank_pool_core::publishing::Turn;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::Manager;
use super::answers::groups;
use super::publisher::on_target;
use super::rows::Rows;
use super::target::Target;
use crate::benefactor::Benefactor;
use crate::chunks::{self, CHUNK, DrainLost, DrainPart, TableOf};
use crate::meta::Unavailable;
use crate::span;

/// Chunks that a benefactor is asked for at a time.
const PART: usize = 64;
/// How long it may take to write them.
const PART_TIME: Duration = Duration::from_secs(120);

/// How a drain ended.
pub(super) enum Drain {
    /// What it is beside the names.
    Done(Placed),
    /// Chunks are lost for ever.
    Lost,
    /// Somebody else changed what the version rests on.
    Conflict,
    /// The target's file system has no files of this length.
    TooLong,
    /// The target refuses what benefactors write, and why.
    Refused(String),
    Later,
}

impl Drain {
    /// How it ended where neither whoever has chunks nor their rows gave them. Rows without enough members say nothing of one that has
    /// the chunks and does not answer at present.
    pub(super) fn or_of_rows(self, of_rows: Self) -> Self {
        match (self, of_rows) {
            (Self::Later, Self::Lost) => Self::Later,
            (_, of_rows) => of_rows,
        }
    }
}

/// A group as the store has it: its number, its version, and what it says.
pub(super) type Of = (u32, Version, Group);

/// A version that is to be drained.
pub(super) struct Draining {
    pub(super) node: Node,
    pub(super) known: Vec<Of>,
    /// What it rests on.
    pub(super) base: Option<Base>,
    pub(super) size: u64,
    /// What of it the base alone has.
    pub(super) of_base: Ranges,
}

/// What the store has of a version; `Err`: how its drain has ended.
pub(super) async fn begin(
    manager: &Manager,
    (inode, version): (Inode, Version),
    in_trouble: &impl Fn(&dyn Display),
) -> Result<Result<Draining, Drain>, Unavailable> {
    let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
    let node = match read.keys.into_iter().next().flatten().map(|stored| stored.value) {
        Some(Value::Node(node)) => node,
        // The journal has an entry of it, so that it cannot be forgotten.
        _ => return Ok(Err(Drain::Later)),
    };
    let known = groups(read.prefixes.into_iter().flatten(), version);
    let base = node.rests_on();
    let Some((size, of_base)) = extent(&known, base) else {
        in_trouble(&format_args!("a part of version {version} is neither in the pool nor at the target"));
        // A conflict has taken from the file what it rested on: nothing brings that back.
        return Ok(Err(if base.is_none() { Drain::Conflict } else { Drain::Later }));
    };
    Ok(Ok(Draining { node, known, base, size, of_base }))
}

/// How a drain ends for which nobody had chunks; `not_opened`: why what the version rests on was not asked for them.
pub(super) async fn lost(
    manager: &Manager,
    (inode, version): (Inode, Version),
    known: &[Of],
    not_opened: Option<Drain>,
) -> Result<Drain, Unavailable> {
    // Repair may have brought copies elsewhere meanwhile, of which only newer layouts know.
    let read = manager.store.read(&[], &[Prefix::Groups(inode)]).await?;
    let is_moved = groups(read.prefixes.into_iter().flatten(), version) != known;
    Ok(if is_moved { Drain::Later } else { not_opened.unwrap_or(Drain::Lost) })
}

/// Has a version's bytes written at the target, and verifies them. `turn`: its entry in the journal. `own`: its draft, if nobody else writes
/// that.
pub(super) async fn drain(
    manager: &Arc<Manager>,
    target: &Target,
    (inode, version): (Inode, Version),
    turn: Turn<'_>,
    own: Option<u64>,
) -> Result<Drain, Unavailable> {
    if let Some(objects) = target.objects() {
        return super::objects::drain(manager, (target, objects), (inode, version), turn).await;
    }
    let place = target.place(turn.change);
    let in_trouble = |text: &dyn Display| manager.troubles.of(target, Some(&place), &text);
    let Draining { node, known, base, size, of_base } = match begin(manager, (inode, version), &in_trouble).await? {
        Ok(draining) => draining,
        Err(ended) => return Ok(ended),
    };
    let own = base.and_then(|base| base.draft).filter(|draft| own == Some(*draft));
    let (from, not_opened) = match base.filter(|_| own.is_none()) {
        Some(base) => {
            match open_base(manager, target, (node.mount, inode), base, (turn.change, turn.maybe_done)).await? {
                Ok(file) => (Some(file), None),
                Err(error) => {
                    // What is missing with its file system is nobody else's doing.
                    let is_theirs = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists)
                        && on_target(target, Target::is_taken_over).await.is_ok();
                    let ended = if is_theirs && turn.is_first { Drain::Conflict } else { Drain::Later };
                    if !of_base.is_empty() {
                        in_trouble(&format_args!("what version {version} rests on: {error}"));
                        return Ok(ended);
                    }
                    // It is not needed as long as the pool has everything.
                    (None, Some(ended))
                }
            }
        }
        None => (None, None),
    };
    let given = (node.owner, node.times);
    // What an attempt has left behind its end takes room that this one may need.
    if let Err(error) = on_target(target, move |target| target.discard(inode, version)).await {
        in_trouble(&format_args!("what an attempt has left at the target: {error}"));
    }
    let part = target.part(inode, version, manager.attempt());
    let written = write(manager, (target, &part), (inode, &node), &known, (base, own, from), (of_base, size)).await;
    let not_finished = match written {
        Ok(Ok(answered)) => {
            let at = part.clone();
            let finish = move |target: &Target| target.finish((inode, version), &at, size, given, answered);
            match on_target(target, finish).await {
                Ok(placed) => return Ok(Drain::Done(placed)),
                Err(error) => {
                    in_trouble(&error);
                    Ok(Drain::Later)
                }
            }
        }
        Ok(Err(Drain::Lost)) => lost(manager, (inode, version), &known, not_opened).await,
        Ok(Err(Drain::Refused(why))) => {
            in_trouble(&why);
            Ok(Drain::Later)
        }
        Ok(Err(other)) => Ok(other),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Ok(Drain::TooLong),
        Err(error) => {
            in_trouble(&error);
            // What is there in the place of what the version rests on has fewer bytes.
            let is_theirs = error.kind() == ErrorKind::UnexpectedEof;
            Ok(if is_theirs && turn.is_first { Drain::Conflict } else { Drain::Later })
        }
    };
    if let Err(error) = on_target(target, move |target| target.drop_part(&part)).await {
        in_trouble(&format_args!("what an attempt has left at the target: {error}"));
    }
    not_finished
}

/// Bytes, from one to another.
pub(super) type Ranges = Vec<(u64, u64)>;

/// How long a version is, and what of it the base alone has; `None`: a part of it is nowhere.
fn extent(known: &[Of], base: Option<Base>) -> Option<(u64, Ranges)> {
    let (mut end, mut of_base) = (0, Vec::new());
    let named: BTreeMap<u32, &Group> = known.iter().map(|(index, _, group)| (*index, group)).collect();
    let last = named.iter().rev().find(|(_, group)| group.bytes > 0).map_or(0, |(index, _)| index + 1);
    let in_base = |index: u32| {
        let (first, room) = span::of_group(index);
        base.filter(|base| first < base.size).map_or(0, |base| room.min(base.size - first))
    };
    for index in 0.. {
        let (first, _) = span::of_group(index);
        let bytes = named.get(&index).map_or_else(|| in_base(index), |group| group.bytes);
        if bytes == 0 && index >= last {
            // What lies in the base behind a cut does not count.
            return (base.is_some() || of_base.is_empty()).then_some((end, of_base));
        }
        if first != end || bytes == 0 {
            return None;
        }
        match named.get(&index) {
            None => of_base.push((first, first + bytes)),
            Some(group) => {
                of_base.extend(group.in_base().runs().iter().map(|(from, to)| {
                    (first + u64::from(*from) * CHUNK, (first + bytes).min(first + u64::from(*to) * CHUNK))
                }));
            }
        }
        end = first + bytes;
    }
    None
}

/// Where the holes of groups are, in order.
fn holes(groups: &[Of]) -> Ranges {
    let mut ranges = Ranges::new();
    for (index, _, group) in groups {
        let first = span::of_group(*index).0;
        ranges.extend(
            group
                .holes
                .runs()
                .iter()
                .map(|(from, to)| (first + u64::from(*from) * CHUNK, first + u64::from(*to) * CHUNK)),
        );
    }
    ranges.sort_unstable();
    ranges
}

/// Opens what a file rests on: its draft, or what was published last, where the change is to put a later version in its place. If that may be
/// done, it is what is there: it has all that it rested on.
pub(super) async fn open_base(
    manager: &Manager,
    target: &Target,
    (mount, inode): (MountId, Inode),
    base: Base,
    (change, maybe_done): (&Change, bool),
) -> Result<std::io::Result<File>, Unavailable> {
    if let Some(draft) = base.draft {
        return Ok(on_target(target, move |target| File::open(target.draft(inode, draft))).await);
    }
    let of = change.clone();
    let names = match on_target(target, move |target| target.names(&of)).await {
        Ok(names) => names,
        Err(error) => return Ok(Err(error)),
    };
    let Some((directory, name)) = names.into_iter().next() else { return Ok(Err(ErrorKind::NotFound.into())) };
    let read = manager.store.read(&[Key::Placed(mount, directory, name)], &[]).await?;
    let was: Option<Placed> = match read.keys.into_iter().next().flatten().map(|stored| stored.value) {
        Some(Value::Placed(placed)) if placed.node == inode => Some(placed),
        _ => None,
    };
    let change = change.clone();
    Ok(on_target(target, move |target| target.open(&change, was, maybe_done)).await)
}

/// Has a version's bytes written into a file; whether everybody has answered who was asked to write there.
async fn write(
    manager: &Arc<Manager>,
    (target, part): (&Target, &Path),
    (inode, node): (Inode, &Node),
    groups: &[Of],
    (base, own, from): (Option<Base>, Option<u64>, Option<File>),
    (of_base, size): (Ranges, u64),
) -> std::io::Result<Result<bool, Drain>> {
    let (mode, file) = (node.owner.0, part.to_owned());
    match own {
        Some(draft) => on_target(target, move |target| target.begin_from(&file, (inode, draft), size)).await?,
        None => on_target(target, move |target| target.begin(&file, mode)).await?,
    }
    // What a draft of its own has there, or a base, does not count.
    let (holes, file) = (holes(groups), part.to_owned());
    on_target(target, move |target| target.may_have(&file, size).and_then(|()| target.zero(&file, &holes))).await?;
    let has_base = own.is_some() || from.is_some();
    let from = from.map(Arc::new);
    let copy = async |ranges: Ranges| {
        // A draft of its own has them where they are to be.
        let Some(from) = from.clone() else { return Ok(()) };
        let file = part.to_owned();
        on_target(target, move |target| target.copy(&from, &file, &ranges)).await
    };
    copy(of_base).await?;
    let mut answered = true;
    for (index, at, group) in groups {
        // The file was cut off before it, or it lies in the base.
        if group.bytes == 0 || group.layout.columns.is_empty() {
            continue;
        }
        let written = write_group(manager, part, inode, (index, at, group), group.present()).await?;
        answered &= written.answered;
        match written.chunks {
            Ok(drained) => {
                let (_, digest) = span::digest(drained.values().copied());
                if drained.len() != group.present().count() || digest != group.digest {
                    let sentence = format!("group {index} reached the target with other bytes than were committed");
                    return Err(Error::other(sentence));
                }
            }
            Err(Drain::Lost) if has_base && base.is_some_and(|base| *at <= base.version) => {
                let first = span::of_group(*index).0;
                copy(vec![(first, first + group.bytes)]).await?;
            }
            Err(other) => return Ok(Err(other)),
        }
    }
    Ok(Ok(answered))
}

/// What was written.
pub(super) struct Written {
    /// Bytes and CRC32C of each chunk, or why there are not all of them.
    pub(super) chunks: Result<BTreeMap<u32, (u32, u32)>, Drain>,
    /// Every benefactor that was asked has answered: none writes the same once more later.
    pub(super) answered: bool,
}

/// Has chunks of a group written into a file.
pub(super) async fn write_group(
    manager: &Arc<Manager>,
    file: &Path,
    inode: Inode,
    (index, at, group): (&u32, &Version, &Group),
    chunks: impl Iterator<Item = u32>,
) -> std::io::Result<Written> {
    let of = (GroupOf { inode, group: *index }, *at, group.by);
    let file = file.to_str().ok_or_else(|| Error::other("the target's path is not UTF-8"))?;
    let mut columns: BTreeMap<Vec<Place>, Vec<u32>> = BTreeMap::new();
    let stripe = Stripe::new(&group.layout);
    for chunk in chunks {
        columns.entry(stripe.places(&group.layout, chunk).to_vec()).or_default().push(chunk);
    }
    let (mut parts, layout) = (JoinSet::new(), Arc::new(group.layout.clone()));
    let rows = Arc::new(OnceCell::new());
    for (places, chunks) in columns {
        for chunks in chunks.chunks(PART) {
            let (incarnation, offset) = (Incarnation(0), span::of_group(*index).0);
            let part = DrainPart { incarnation, of, chunks: chunks.to_vec(), offset, file: file.to_owned() };
            let (layout, rows) = (Arc::clone(&layout), Arc::clone(&rows));
            parts.spawn(write_part(Arc::clone(manager), (layout, places.clone()), rows, part));
        }
    }
    let mut written = Written { chunks: Ok(BTreeMap::new()), answered: true };
    // Also of those that are in vain it counts whether they were answered.
    while let Some(ended) = parts.join_next().await {
        let (chunks, answered) = ended.map_err(Error::other)?;
        written.answered &= answered;
        match (&mut written.chunks, chunks) {
            (Ok(all), Ok(chunks)) => {
                all.extend(chunks.into_iter().map(|(chunk, length, crc)| (chunk, (length, crc))));
            }
            (Ok(_), Err(why)) => written.chunks = Err(why),
            (Err(_), _) => {}
        }
    }
    Ok(written)
}

/// Number, bytes and CRC32C of chunks that were written, or why not all were, and whether everybody who was asked has answered.
type Part = (Result<Vec<(u32, u32, u32)>, Drain>, bool);

/// What a group's rows are, once its drain needs it.
type OnceRows = OnceCell<Rows>;

/// Has chunks written by benefactors that have them: one that has all of them, or else each chunk one that has it. With parity they are made of the
/// rest of their rows where none does.
async fn write_part(
    manager: Arc<Manager>,
    (layout, places): (Arc<Layout>, Vec<Place>),
    rows: Arc<OnceRows>,
    part: DrainPart,
) -> Part {
    let (written, mut answered) = write_from_one(&manager, &places, &part).await;
    let (mut there, mut lost) = (Vec::new(), part.chunks.clone());
    let may_return = matches!(written, Err(Drain::Later));
    match written {
        // Different chunks of them may be damaged in the copies.
        Err(Drain::Lost) if part.chunks.len() > 1 => match layout.parity {
            None => std::mem::swap(&mut there, &mut lost),
            Some(parity) => {
                let rows = rows_of(&manager, (&layout, parity), &rows, part.of).await;
                (there, lost) = lost.into_iter().partition(|chunk| rows.is_there(*chunk));
            }
        },
        Err(Drain::Lost | Drain::Later) if layout.parity.is_some() => {}
        other => return (other, answered),
    }
    let there = there.into_iter().map(|chunk| (vec![chunk], true));
    let all = there.chain(Some((lost, false)).filter(|(lost, _)| !lost.is_empty()));
    let mut drained = Vec::with_capacity(part.chunks.len());
    for (chunks, is_there) in all {
        let part = DrainPart { chunks, ..part.clone() };
        let written = match is_there {
            true => write_from_one(&manager, &places, &part).await,
            false => (Err(if may_return { Drain::Later } else { Drain::Lost }), true),
        };
        let (chunks, all) = match (written, layout.parity) {
            ((Err(why @ (Drain::Lost | Drain::Later)), all), Some(parity)) => {
                let (made, others) = write_lost(&manager, (&layout, parity), &rows, &part).await;
                (made.map_err(|of_rows| why.or_of_rows(of_rows)), all && others)
            }
            (other, _) => other,
        };
        answered &= all;
        match chunks {
            Ok(chunks) => drained.extend(chunks),
            Err(why) => return (Err(why), answered),
        }
    }
    (Ok(drained), answered)
}

/// Of all parts of a group its rows are asked for once.
async fn rows_of<'a>(
    manager: &Manager,
    (layout, parity): (&Layout, Parity),
    rows: &'a OnceRows,
    of: TableOf,
) -> &'a Rows {
    rows.get_or_init(|| Rows::read(manager, of, (layout, parity), None)).await
}

/// Has chunks made of the rest of their rows, and written, by one of those that have some of these.
async fn write_lost(manager: &Manager, (layout, parity): (&Layout, Parity), rows: &OnceRows, part: &DrainPart) -> Part {
    let rows = rows_of(manager, (layout, parity), rows, part.of).await;
    let stripe = Stripe::new(layout);
    let lost: Vec<_> = part.chunks.iter().filter_map(|chunk| rows.lost(*chunk)).collect();
    if lost.len() < part.chunks.len() {
        let is_over = part.chunks.iter().any(|chunk| rows.is_over(*chunk, (layout, &stripe)));
        return (Err(if is_over { Drain::Lost } else { Drain::Later }), true);
    }
    let mut answered = true;
    // Each makes some of the parts.
    let first = part.chunks.first().map_or(0, |chunk| *chunk as usize) % rows.members.len().max(1);
    for member in rows.members.iter().cycle().skip(first).take(rows.members.len()) {
        let (of, lost, sources, file) = (part.of, lost.clone(), rows.sources(), part.file.clone());
        let drain = DrainLost { of, parity, lost, sources, offset: part.offset, file };
        match member.peer.ask::<Benefactor>(chunks::Request::DrainLost(drain), PART_TIME).await {
            Ok(chunks::Reply::Drained(chunks)) => {
                manager.rate.drained(of.0.inode, chunks.iter().map(|(_, length, _)| u64::from(*length)).sum());
                return (Ok(chunks), answered);
            }
            Ok(chunks::Reply::NotDrained(why)) => return (Err(Drain::Refused(why)), answered),
            // Members of its row are damaged. Whoever does not answer now may have others.
            Ok(chunks::Reply::NotHere) if rows.are_all() => return (Err(Drain::Lost), answered),
            Ok(_) => return (Err(Drain::Later), answered),
            Err(_) => answered = false,
        }
    }
    (Err(Drain::Later), answered)
}

/// Has one of those that have chunks write them: whichever can.
async fn write_from_one(manager: &Manager, places: &[Place], part: &DrainPart) -> Part {
    let (mut lost, mut answered) = (true, true);
    for place in places.iter().copied() {
        let Some(member) = manager.members.holder(place) else {
            lost &= manager.members.is_lost(place);
            continue;
        };
        let its = DrainPart { incarnation: member.lends.place.incarnation, ..part.clone() };
        match member.peer.ask::<Benefactor>(chunks::Request::DrainPart(its), PART_TIME).await {
            Ok(chunks::Reply::Drained(chunks)) => {
                let inode = part.of.0.inode;
                manager.rate.drained(inode, chunks.iter().map(|(_, length, _)| u64::from(*length)).sum());
                return (Ok(chunks), answered);
            }
            // Its life is over, or it never had them: it has them at no later time either.
            Ok(chunks::Reply::Stale | chunks::Reply::NotHere | chunks::Reply::Corrupt) => {}
            Ok(chunks::Reply::NotDrained(why)) => return (Err(Drain::Refused(why)), answered),
            Ok(_) | Err(_) => (lost, answered) = (false, false),
        }
    }
    (Err(if lost { Drain::Lost } else { Drain::Later }), answered)
}

#[cfg(test)]
mod tests {
    use super::Drain;

    #[test]
    fn a_chunk_whose_holder_may_answer_later_is_not_lost_with_the_rest_of_its_row() {
        assert!(matches!(Drain::Later.or_of_rows(Drain::Lost), Drain::Later));
        assert!(matches!(Drain::Lost.or_of_rows(Drain::Lost), Drain::Lost));
        assert!(matches!(Drain::Lost.or_of_rows(Drain::Later), Drain::Later));
        assert!(matches!(Drain::Later.or_of_rows(Drain::Refused(String::new())), Drain::Refused(_)));
    }
}
