//! Buffers under random puts, drains and late words, against what lies in them.

use std::collections::BTreeMap;

use surgetank_model::random::Random;
use surgetank_pool_core::benefactor::buffers::{BUFFERS, Buffers, Piece};
use surgetank_pool_core::benefactor::sharing::Owner;
use surgetank_pool_core::id::MountId;

const CHUNK: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Reserved,
    Stored,
    Draining,
}

/// The lengths of all that lies between pieces, and behind the last of each buffer.
fn gaps(pieces: &BTreeMap<Piece, Is>, size: u64) -> impl Iterator<Item = u64> {
    (0..BUFFERS).flat_map(move |buffer| {
        let mut used: Vec<(u64, u64)> = pieces
            .keys()
            .filter(|piece| usize::from(piece.buffer) == buffer)
            .map(|piece| (piece.offset, piece.offset + piece.length))
            .collect();
        used.sort_unstable();
        let begins = std::iter::once(0).chain(used.iter().map(|(_, end)| *end)).collect::<Vec<_>>();
        let ends = used.iter().map(|(begin, _)| *begin).chain([size]).collect::<Vec<_>>();
        begins.into_iter().zip(ends).map(|(begin, end)| end - begin).collect::<Vec<_>>()
    })
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let memory = CHUNK * BUFFERS as u64 * (1 + random.below(6)) + random.below(CHUNK);
    let mut buffers = Buffers::new(memory, CHUNK).map_err(|error| error.to_string())?;
    let mut pieces: BTreeMap<Piece, Is> = BTreeMap::new();
    // Bytes of memory, and which piece wrote them.
    let mut bytes: BTreeMap<(u8, u64), Piece> = BTreeMap::new();
    let mut former: Vec<Piece> = Vec::new();
    let mut owners: BTreeMap<Piece, Owner> = BTreeMap::new();
    for step in 0..400 {
        let of = |is: Is, random: &mut Random| {
            let all: Vec<Piece> = pieces.iter().filter(|(_, state)| **state == is).map(|(piece, _)| *piece).collect();
            (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize])
        };
        match random.below(10) {
            0..=2 => {
                let length = 1 + random.below(CHUNK);
                let mount = [None, Some(MountId(1)), Some(MountId(2))][random.below(3) as usize];
                let owner = Owner { mount, repairs: random.chance(0.2) };
                let credits = buffers.credits();
                let Some(piece) = buffers.reserve(length, owner) else {
                    if credits > 0 {
                        return Err(format!("step {step}: {credits} credits, and no room"));
                    }
                    if let Some(gap) = gaps(&pieces, buffers.size()).find(|gap| *gap >= length) {
                        return Err(format!("step {step}: a gap of {gap} bytes, and no room for {length}"));
                    }
                    continue;
                };
                if piece.offset + piece.length > buffers.size() {
                    return Err(format!("step {step}: {piece:?} goes beyond its buffer"));
                }
                for at in piece.offset..piece.offset + piece.length {
                    if let Some(other) =
                        bytes.insert((piece.buffer, at), piece).filter(|other| pieces.contains_key(other))
                    {
                        return Err(format!("step {step}: {piece:?} overwrites {other:?}"));
                    }
                }
                pieces.insert(piece, Is::Reserved);
                owners.insert(piece, owner);
            }
            3 | 4 => {
                if let Some(piece) = of(Is::Reserved, &mut random) {
                    buffers.stored(piece);
                    pieces.insert(piece, Is::Stored);
                }
            }
            5 => {
                // Now and then one mount alone must wait.
                let waits = [None, Some(Some(MountId(1))), Some(None)][random.below(3) as usize];
                let may = |owner: Owner| owner.repairs || waits != Some(owner.mount);
                if let Some(piece) = buffers.next_drain(may) {
                    if !may(owners[&piece]) {
                        return Err(format!("step {step}: {piece:?} is drained, and its mount is to wait"));
                    }
                    if pieces.insert(piece, Is::Draining) != Some(Is::Stored) {
                        return Err(format!("step {step}: {piece:?} is drained, and its bytes are not there"));
                    }
                    let older = |(other, is): (&Piece, &Is)| {
                        *is == Is::Stored && other.serial < piece.serial && may(owners[other])
                    };
                    if pieces.iter().any(older) {
                        return Err(format!("step {step}: {piece:?} is drained before an older one"));
                    }
                }
            }
            6 => {
                if let Some(piece) = of(Is::Draining, &mut random) {
                    if random.chance(0.3) {
                        buffers.drain_failed(piece);
                        pieces.insert(piece, Is::Stored);
                    } else {
                        buffers.gone(piece);
                        pieces.remove(&piece);
                        former.push(piece);
                    }
                }
            }
            7 => {
                // A client withdraws, or a late word comes twice.
                if let Some(piece) = of(Is::Reserved, &mut random).filter(|_| random.chance(0.3)) {
                    buffers.gone(piece);
                    pieces.remove(&piece);
                    former.push(piece);
                } else if let Some(piece) = former.last() {
                    buffers.gone(*piece);
                    buffers.stored(*piece);
                    buffers.drain_failed(*piece);
                }
            }
            8 => {
                let unknown = |piece: &&Piece| owners[*piece].mount.is_none();
                if let Some(piece) = pieces.keys().find(unknown).copied() {
                    buffers.is_of(piece, MountId(1));
                    owners.entry(piece).or_default().mount = Some(MountId(1));
                }
            }
            _ => {
                if random.chance(0.2) {
                    buffers.close_filling();
                }
            }
        }
        let held: u64 = pieces.keys().map(|piece| piece.length).sum();
        if buffers.held() + buffers.free() != buffers.size() * BUFFERS as u64 || buffers.held() != held {
            return Err(format!("step {step}: {} bytes are held, and there should be {held}", buffers.held()));
        }
    }
    // Everything can be drained, and then all of it is free.
    for piece in pieces.iter().filter(|(_, is)| **is == Is::Reserved).map(|(piece, _)| *piece).collect::<Vec<_>>() {
        buffers.stored(piece);
        pieces.insert(piece, Is::Stored);
    }
    buffers.close_filling();
    while let Some(piece) = buffers.next_drain(|_| true) {
        pieces.insert(piece, Is::Draining);
    }
    for (piece, is) in pieces {
        if is != Is::Draining {
            return Err(format!("{piece:?} is never drained"));
        }
        buffers.gone(piece);
    }
    let all = BUFFERS as u64 * (buffers.size() / CHUNK);
    if buffers.credits() != all { Err(format!("{} of {all} credits at the end", buffers.credits())) } else { Ok(()) }
}
