//! How the words of `pool-core` are sent and stored.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use surgetank_model as model;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation, Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::locks::{Lock, Range, Ranges};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::{
    Attributes, Base, Change, HardLink, Held, Lends, Locker, Mount, Path, Placed, Special, SpecialKind, Times,
};
use surgetank_pool_core::meta::{Durability, FileState, Group, Kind, Name, Node, Value};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::{Column, Layout, Media, Place, Protection, Tier};
use surgetank_pool_core::quota::{Limit, Quota, Resource, Used};
use surgetank_pool_core::runs::Runs;

use crate::span;
use crate::wire::{Malformed, Wire, wire_enum, wire_struct};

wire_struct! {
    BenefactorId { 0 }
    Incarnation { 0 }
    Domain { 0 }
    SessionId { 0 }
    MountId { 0 }
    Inode { 0 }
    Version { 0 }
    Revision { 0 }
    Path { 0 }
    Place { id, incarnation }
    Column { places, tier, weight }
    Base { draft, size, version, changes }
    Instance { session, number }
    GroupOf { inode, group }
    Entry { instance, length, crc }
    HardLink { at, covers }
    Special { what, device }
    Times { accessed, modified, changed }
    Attributes { mode, user, group, accessed, modified }
    Lends { place, address, domain, memory, ssd }
    Mount { name, target, durability, root }
    Placed { node, size, modified, number }
    Range { first, last }
    Locker { session, number, held }
    Quota { bytes, files }
    Used { bytes, files }
}

wire_enum! {
    Lock { 0 = Shared, 1 = Alone, }
    Held { 0 = Whole, 1 = Ranges(ranges), }
    Tier { 0 = Memory, 1 = Ssd, }
    Resource { 0 = Bytes, 1 = Files, }
    Limit { 0 = AsDefault, 1 = Unlimited, 2 = AtMost(most), }
    Media { 0 = Any, 1 = Ssd, }
    Durability { 0 = Copies { copies, media }, 1 = Target, 2 = Parity(of), }
    FileState { 0 = Created, 1 = Replicated, 2 = Drained, 3 = Failed, 4 = Conflict, 5 = Evicted, }
    SpecialKind { 0 = Fifo, 1 = Socket, 2 = Characters, 3 = Blocks, }
    Kind { 0 = File(state), 1 = Directory, 2 = Link(to), 3 = Special(special), }
    Change {
        0 = MakeDirectory(path),
        1 = Publish { inode, version, path },
        2 = Rename { from, to },
        3 = Remove(path),
        4 = MakeLink { path, to },
        5 = Attributes { path, owner, times },
        6 = Link { from, to },
        7 = Linked { change, also },
        8 = MakeSpecial { path, special, owner },
    }
    Value {
        0 = Benefactor(place),
        1 = Session(session),
        2 = Node(node),
        3 = Entry(inode),
        4 = Group(group),
        5 = Journal(change),
        6 = Owner(owner),
        7 = Receipt,
        8 = Lends(lends),
        9 = Mount(mount),
        10 = Pool(number),
        11 = Placed(placed),
        12 = Locks(lockers),
        13 = Hidden(journal),
        14 = Hides(directory, name),
        15 = Revoked,
        16 = Rewriter(session, version),
        17 = Moment(time),
        18 = Refused(refusal),
        19 = Fingerprint(digest),
        20 = Leaving,
        21 = Reserved(session, rewrites, size),
        22 = Quota(quota),
    }
    Refusal {
        0 = NotFound,
        1 = Exists,
        2 = NotADirectory,
        3 = IsADirectory,
        4 = NotEmpty,
        5 = IntoItself,
        6 = NotTheWriter,
        7 = InUse,
        8 = Version(version),
        9 = Benefactors(places),
        10 = NotDrained,
        11 = NotThePublisher,
        12 = Named,
        13 = NotTheWarden,
        14 = NotAllowed,
        15 = TooManyLinks,
        16 = Moved,
        17 = OverQuota(resource),
    }
}

/// What the last byte of a node says: that it is torn, and that further names or what it rests on follow, which most nodes do not have.
const TORN: u8 = 1;
const LINKS: u8 = 2;
const BASE: u8 = 4;

/// What the bytes of a group say beside their number: that chunks are absent, and that chunks are holes, which follow in this order.
const ABSENT: u64 = 1 << 63;
const HOLES: u64 = 1 << 62;

/// In the place of a number of columns or of copies: parity follows, which neither has that number of.
const PARITY: u32 = u32::MAX;

impl Wire for Parity {
    fn put(&self, out: &mut impl BufMut) {
        // Both are smaller than a byte.
        [self.data(), self.parity()].iter().for_each(|number| u8::try_from(*number).unwrap_or(u8::MAX).put(out));
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Self::new(Wire::take(from)?, Wire::take(from)?).map_err(|_| Malformed)
    }
}

/// Parity, if what comes begins with its mark, which is taken then.
fn take_parity(from: &mut Bytes) -> Result<Option<Parity>, Malformed> {
    if !from.starts_with(&PARITY.to_le_bytes()) {
        return Ok(None);
    }
    u32::take(from)?;
    Parity::take(from).map(Some)
}

impl Wire for Protection {
    fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::Copies(copies) => copies.put(out),
            Self::Parity(of) => (PARITY, *of).put(out),
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        match take_parity(from)? {
            Some(of) => Ok(Self::Parity(of)),
            None => u32::take(from).map(Self::Copies),
        }
    }
}

impl Wire for Layout {
    fn put(&self, out: &mut impl BufMut) {
        if let Some(of) = self.parity {
            (PARITY, of).put(out);
        }
        self.columns.put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        let parity = take_parity(from)?;
        let columns = Vec::<Column>::take(from)?;
        let places = parity.map(|of| of.members() as usize);
        match columns.iter().all(|column| places.is_none_or(|places| column.places.len() == places)) {
            true => Ok(Self { columns, parity }),
            false => Err(Malformed),
        }
    }
}

impl Wire for Group {
    fn put(&self, out: &mut impl BufMut) {
        self.layout.put(out);
        let absent = if self.absent.is_empty() { 0 } else { ABSENT };
        let holes = if self.holes.is_empty() { 0 } else { HOLES };
        (self.bytes | absent | holes).put(out);
        self.digest.put(out);
        self.by.put(out);
        for chunks in [&self.absent, &self.holes].into_iter().filter(|chunks| !chunks.is_empty()) {
            chunks.runs().to_vec().put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        let mut group = Self {
            layout: Wire::take(from)?,
            bytes: Wire::take(from)?,
            digest: Wire::take(from)?,
            by: Wire::take(from)?,
            absent: Runs::NONE,
            holes: Runs::NONE,
        };
        let flags = group.bytes & (ABSENT | HOLES);
        group.bytes &= !(ABSENT | HOLES);
        if flags & ABSENT != 0 {
            group.absent = chunks_of(&group, from)?;
        }
        if flags & HOLES != 0 {
            group.holes = chunks_of(&group, from)?;
        }
        Ok(group)
    }
}

/// Some of a group's chunks, from their runs. None is behind the group's end.
fn chunks_of(group: &Group, from: &mut Bytes) -> Result<Runs, Malformed> {
    let mut chunks = Runs::NONE;
    for (first, end) in Vec::<(u32, u32)>::take(from)? {
        if group.bytes > span::of_group(u32::MAX).1 || end > group.chunks() {
            return Err(Malformed);
        }
        chunks.add(first, end);
    }
    Ok(chunks)
}

impl Wire for Node {
    fn put(&self, out: &mut impl BufMut) {
        self.kind.put(out);
        self.mount.put(out);
        self.at.put(out);
        self.owner.put(out);
        self.times.put(out);
        self.size.put(out);
        self.version.put(out);
        self.journalled.put(out);
        self.published.put(out);
        self.covers.put(out);
        let links = if self.links.is_empty() { 0 } else { LINKS };
        let torn = if self.torn { TORN } else { 0 };
        let base = if self.base.is_none() { 0 } else { BASE };
        (torn | links | base).put(out);
        if links > 0 {
            self.links.put(out);
        }
        if let Some(base) = &self.base {
            base.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        let mut node = Self {
            kind: Wire::take(from)?,
            mount: Wire::take(from)?,
            at: Wire::take(from)?,
            links: Vec::new(),
            owner: Wire::take(from)?,
            times: Wire::take(from)?,
            size: Wire::take(from)?,
            version: Wire::take(from)?,
            journalled: Wire::take(from)?,
            published: Wire::take(from)?,
            covers: Wire::take(from)?,
            torn: false,
            base: None,
        };
        let flags = u8::take(from)?;
        if flags & !(TORN | LINKS | BASE) != 0 {
            return Err(Malformed);
        }
        node.torn = flags & TORN != 0;
        if flags & LINKS != 0 {
            node.links = Wire::take(from)?;
        }
        if flags & BASE != 0 {
            node.base = Some(Wire::take(from)?);
        }
        Ok(node)
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut impl BufMut) {
        (**self).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        T::take(from).map(Self::new)
    }
}

impl Wire for model::Bytes {
    fn put(&self, out: &mut impl BufMut) {
        self.get().put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        u64::take(from).map(Self::new)
    }
}

impl Wire for Ranges {
    fn put(&self, out: &mut impl BufMut) {
        self.iter().collect::<Vec<_>>().put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Ok(Self::of(Vec::take(from)?))
    }
}

impl Wire for Name {
    fn put(&self, out: &mut impl BufMut) {
        Bytes::copy_from_slice(self.bytes()).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        Self::new(&Bytes::take(from)?).map_err(|_| Malformed)
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut impl BufMut) {
        (**self).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Malformed> {
        T::take(from).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::meta::value::Base;

    use super::*;

    fn words(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// A store that an earlier release has written is read, and what has nothing new in it is written as that release did.
    #[test]
    fn nodes_and_groups_of_earlier_releases_are_read_and_written_as_they_were() {
        let name = Name::new(b"file").expect("it is a name");
        let owner: Vec<u8> = [0o644_u32, 7, 8].iter().flat_map(|number| number.to_le_bytes()).collect();
        let bytes = [
            vec![2, 0, 1],
            3_u32.to_le_bytes().to_vec(),
            vec![1],
            words(&[5]),
            4_u32.to_le_bytes().to_vec(),
            b"file".to_vec(),
            owner,
            words(&[11, 12, 13, 4096, 6, 5, 4]),
            vec![1, 1],
        ];
        let node = Node {
            owner: (0o644, 7, 8),
            times: Times { accessed: 11, modified: 12, changed: 13 },
            size: 4096,
            version: Version(6),
            journalled: Version(5),
            published: Version(4),
            covers: true,
            torn: true,
            ..Node::new(Kind::File(FileState::Replicated), MountId(3), Some((Inode(5), name)), (0, 0, 0))
        };
        let value = Value::Node(node.clone());
        assert_eq!(Value::from_bytes(bytes.concat().into()), Ok(value.clone()));
        assert_eq!(value.to_bytes(), bytes.concat());

        let one = 1_u32.to_le_bytes();
        let place = [9_u32.to_le_bytes().to_vec(), words(&[10])].concat();
        let bytes = [
            vec![4],
            one.to_vec(),
            one.to_vec(),
            place,
            vec![0, 1],
            words(&[3 << 20]),
            77_u32.to_le_bytes().to_vec(),
            words(&[12]),
        ];
        let places = vec![Place { id: BenefactorId(9), incarnation: Incarnation(10) }];
        let layout = Layout { columns: vec![Column { places, tier: Tier::Memory, weight: 1 }], parity: None };
        let group =
            Group { layout, bytes: 3 << 20, digest: 77, by: SessionId(12), absent: Runs::NONE, holes: Runs::NONE };
        let value = Value::Group(group.clone());
        assert_eq!(Value::from_bytes(bytes.concat().into()), Ok(value.clone()));
        assert_eq!(value.to_bytes(), bytes.concat());

        // The same with an absent chunk.
        let flagged = words(&[3 << 20 | 1 << 63]);
        let run = [0_u32, 1].iter().flat_map(|number| number.to_le_bytes()).collect();
        let bytes = [&bytes[..5], &[flagged], &bytes[6..], &[one.to_vec(), run]].concat();
        let value = Value::Group(Group { absent: [0].into(), ..group.clone() });
        assert_eq!(Value::from_bytes(bytes.concat().into()), Ok(value.clone()));
        assert_eq!(value.to_bytes(), bytes.concat());

        let base = Base { draft: Some(1), size: 2, version: Version(3), changes: 4 };
        for value in [
            Value::Node(Node { base: Some(base), ..node }),
            Value::Group(Group { absent: [0, 2].into(), ..group.clone() }),
            Value::Group(Group { holes: [0, 2].into(), ..group.clone() }),
            Value::Group(Group { absent: [0].into(), holes: [1, 2].into(), ..group.clone() }),
        ] {
            assert_eq!(Value::from_bytes(value.to_bytes().into()), Ok(value));
        }
        // With parity each column has a place for each member of its rows.
        let parity = |data| Layout { parity: Parity::new(data, 1).ok(), ..group.layout.clone() };
        for (layout, is_whole) in
            [(parity(1), false), (Layout { parity: Parity::new(4, 1).ok(), ..Layout::NONE }, true)]
        {
            let value = Value::Group(Group { layout, ..group.clone() });
            let taken = Value::from_bytes(value.to_bytes().into());
            assert_eq!(taken, if is_whole { Ok(value) } else { Err(Malformed) });
        }
        let places: Vec<Place> = (0..5).map(|id| Place { id: BenefactorId(id), incarnation: Incarnation(1) }).collect();
        let columns = vec![Column { places, tier: Tier::Ssd, weight: 2 }];
        let layout = Layout { columns, parity: Parity::new(4, 1).ok() };
        let value = Value::Group(Group { layout, ..group.clone() });
        assert_eq!(Value::from_bytes(value.to_bytes().into()), Ok(value));
        // Chunks behind its end are none.
        for group in [Group { absent: [5].into(), ..group.clone() }, Group { holes: [3].into(), ..group.clone() }] {
            assert_eq!(Value::from_bytes(Value::Group(group).to_bytes().into()), Err(Malformed));
        }
        // A gibibyte of zeros takes a few bytes.
        let layout = Layout::NONE;
        let value = Value::Group(Group { layout, bytes: 1 << 30, holes: Runs::from(0..1024), ..group });
        assert!(value.to_bytes().len() < 50);
        assert_eq!(Value::from_bytes(value.to_bytes().into()), Ok(value));
    }
}
