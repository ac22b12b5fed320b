//! What lies on a caching volume: superblocks, pages of the segment table, commit records.
//!
//! A checksum covers every structure, so bytes that are merely mutated never get past the first test. The targets
//! build structures from the input instead and seal them with the right checksum.

use surgetank_cache::Epoch;
use surgetank_cache::format::{
    self, BLOCK, Content, Entry, Flaw, GROWTHS_MAX, Geometry, Layout, LogState, Parse, Parsed, Records, Repeat,
    SEGMENTS_PER_PAGE, SUPERBLOCKS_LENGTH, SegmentTable, Summary, Superblock, TableCopy, checksum, choose_superblock,
    scan_segment,
};

use crate::input::Input;

pub const BLOCK_BYTES: usize = BLOCK as usize;
/// Magic, checksum, version.
const ENVELOPE: usize = 16;

/// Puts payload into an envelope like that of `like`, with the right checksum.
fn sealed(like: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..ENVELOPE].copy_from_slice(&like[..ENVELOPE]);
    let length = payload.len().min(BLOCK_BYTES - ENVELOPE);
    block[ENVELOPE..ENVELOPE + length].copy_from_slice(&payload[..length]);
    seal(&mut block);
    block
}

/// Gives a block the checksum that it should have.
pub fn seal(block: &mut [u8]) {
    block[8..12].fill(0);
    let crc = checksum(block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Mostly the layout of today.
pub fn any_layout(input: &mut Input<'_>) -> Layout {
    if input.once_in(4) { Layout::One } else { Layout::Two }
}

/// The log has not grown.
const NEVER: [u32; GROWTHS_MAX] = [0; GROWTHS_MAX];

/// It has, by what is likely, or by anything.
fn any_growths(input: &mut Input<'_>) -> [u32; GROWTHS_MAX] {
    let (mut grown_at, mut before) = (NEVER, 8);
    for at in grown_at.iter_mut().take(input.below(GROWTHS_MAX + 1)) {
        *at = if input.once_in(8) { input.u32() } else { before };
        before += u32::from(input.byte());
    }
    grown_at
}

/// A superblock with any fields, or any payload, or any bytes.
pub fn any_superblock(input: &mut Input<'_>) -> Vec<u8> {
    let geometry =
        Geometry { layout: Layout::Two, segment_size: 1 << 16, segments: 8, indexed: false, grown_at: NEVER };
    let plain = Superblock::new(Epoch::default(), geometry, 1 << 20);
    match input.byte() % 8 {
        0 => {
            let mut block = input.bytes(BLOCK_BYTES).to_vec();
            block.resize(BLOCK_BYTES, 0);
            block
        }
        1 => sealed(&plain.encode()[..], input.bytes(64)),
        _ => Superblock {
            layout: any_layout(input),
            sequence: input.number(),
            epoch: if input.once_in(8) { Epoch(input.array()) } else { Epoch::default() },
            state: if input.once_in(4) { LogState::Clean } else { LogState::Active },
            device_size: input.number(),
            segment_size: 1u32.checked_shl(u32::from(input.byte() % 40)).unwrap_or(input.u32()),
            segments: input.number() as u32,
            durable: input.number(),
            closed: input.once_in(4),
            last: input.once_in(4).then(|| format::Place {
                sequence: input.number(),
                segment: input.u32(),
                generation: input.u32(),
                position: input.u32(),
            }),
            void: (0..input.below(4)).map(|_| input.number()).collect(),
            indexed: input.once_in(4),
            unindexed: input.once_in(4).then(|| (0..input.below(4)).map(|_| input.u32()).collect()),
            grown_at: if input.once_in(4) { any_growths(input) } else { NEVER },
        }
        .encode()
        .to_vec(),
    }
}

/// The two superblocks of a volume.
pub fn superblocks(data: &[u8]) {
    let mut input = Input(data);
    let mut area = any_superblock(&mut input);
    area.extend(any_superblock(&mut input));
    if input.once_in(8) {
        area.truncate(input.below(area.len() + 1));
    }
    let mut newest: Option<Superblock> = None;
    for block in area.chunks(BLOCK_BYTES) {
        let Some(superblock) = Superblock::decode(block) else { continue };
        assert_eq!(Superblock::decode(&superblock.encode()[..]), Some(superblock.clone()));
        let geometry = superblock.geometry();
        assert!(geometry.end() > geometry.segment_offset(geometry.segments - 1));
        for copy in TableCopy::ALL {
            let page = geometry.table_pages() - 1;
            let (last, of_page) = (geometry.table_offset(page, copy), geometry.segments_of_page(page));
            let behind = geometry.segment_offset(of_page.end - 1) + u64::from(geometry.segment_size);
            let before = last + u64::from(BLOCK) <= geometry.segment_offset(of_page.start);
            assert!(before || last >= behind);
            let end = last + u64::from(BLOCK);
            assert!(end <= geometry.end() && geometry.table_offset(0, copy) >= u64::from(SUPERBLOCKS_LENGTH));
        }
        assert!(superblock.offset() < u64::from(SUPERBLOCKS_LENGTH));
        let counted_on = [superblock.sequence, superblock.durable];
        assert!(counted_on.iter().all(|number| *number < u64::MAX), "they can be counted on from");
        assert_eq!(Parse::Superblock.read(block), Parsed::Superblock(Some(superblock.clone())));
        if newest.as_ref().is_none_or(|newest| newest.sequence <= superblock.sequence) {
            newest = Some(superblock);
        }
    }
    assert_eq!(choose_superblock(&area).map(|chosen| chosen.sequence), newest.map(|newest| newest.sequence));
}

/// A page of the segment table with any fields, or any payload.
pub fn any_page(input: &mut Input<'_>, layout: Layout, page: u32, count: u32) -> Vec<u8> {
    let wild = input.byte();
    let (first, step) = (input.number() as u32, u32::from(input.byte()));
    let mut table = SegmentTable {
        layout,
        page,
        sequence: input.number(),
        epoch: Epoch::default(),
        generations: (0..count.min(SEGMENTS_PER_PAGE)).map(|at| first.wrapping_add(at.wrapping_mul(step))).collect(),
        indexed: vec![false; count.min(SEGMENTS_PER_PAGE) as usize],
    };
    match wild % 16 {
        0 => return sealed(&table.encode()[..], input.bytes(200)),
        1 => table.page = input.number() as u32,
        2 => table.epoch = Epoch(input.array()),
        3 => {
            table.generations.truncate(input.below(SEGMENTS_PER_PAGE as usize));
            table.indexed.truncate(table.generations.len());
        }
        4 => {
            let mut block = table.encode().to_vec();
            block[input.below(BLOCK_BYTES)] ^= input.byte();
            return block;
        }
        5 => table.layout = any_layout(input),
        _ => {}
    }
    table.encode().to_vec()
}

/// The segment table: two copies of each page.
pub fn table(data: &[u8]) {
    let mut input = Input(data);
    let segments = if input.once_in(4) { input.number() as u32 } else { input.below(3000) as u32 };
    let layout = any_layout(&mut input);
    let geometry = Geometry { layout, segment_size: 1 << 16, segments, indexed: false, grown_at: NEVER };
    let mut page = 0;
    while page < 8 && !input.is_empty() {
        let of_page = geometry.segments_of_page(page);
        assert!(of_page.end <= segments && of_page.len() <= SEGMENTS_PER_PAGE as usize);
        for _ in TableCopy::ALL {
            let block = any_page(&mut input, layout, page, of_page.len() as u32);
            let decoded = SegmentTable::decode(&block);
            if let Some(table) = &decoded {
                assert_eq!(SegmentTable::decode(&table.encode()[..]).as_ref(), Some(table));
                assert!(table.generations.iter().all(|generation| *generation < u32::MAX), "it can be counted on from");
            }
            let Parsed::Table(read) = (Parse::Table { epoch: Epoch::default(), geometry, page }).read(&block) else {
                panic!("a page is read as something else");
            };
            let ours = decoded.filter(|table| {
                let named = (table.layout, table.page, table.epoch) == (layout, page, Epoch::default());
                named && table.generations.len() == of_page.len()
            });
            assert_eq!(read, ours);
        }
        page += 1;
    }
}

/// Where records are put, and what is repeated of the last of them.
pub struct Place {
    pub layout: Layout,
    pub segment: u32,
    pub generation: u32,
    pub last: Option<Repeat>,
}

fn any_place(input: &mut Input<'_>, place: &Place) -> format::Place {
    format::Place {
        sequence: 1 + u64::from(input.u16()),
        segment: if input.once_in(4) { input.u32() } else { place.segment },
        generation: if input.once_in(8) { input.u32() } else { place.generation },
        position: u32::from(input.byte() % 32),
    }
}

/// Does something to the bytes of a segment: mostly it puts a record there, mostly a valid one.
pub fn scribble(input: &mut Input<'_>, bytes: &mut [u8], place: &mut Place) {
    let blocks = bytes.len() / BLOCK_BYTES;
    let position = input.below(blocks);
    let at = position * BLOCK_BYTES;
    match input.byte() % 16 {
        0 => bytes[at..at + BLOCK_BYTES].fill(input.byte()),
        1 => bytes[at + input.below(BLOCK_BYTES)] ^= input.byte() | 1,
        2 => {
            let to = input.below(blocks) * BLOCK_BYTES;
            bytes.copy_within(at..at + BLOCK_BYTES, to);
        }
        3 => {
            // Something changes in a record, and its checksum with it.
            bytes[at + ENVELOPE + input.below(200)] ^= input.byte() | 1;
            seal(&mut bytes[at..at + BLOCK_BYTES]);
        }
        4 => {
            let like = Summary {
                layout: place.layout,
                epoch: Epoch::default(),
                place: format::Place::default(),
                durable: 0,
                previous: None,
                entries: Vec::new(),
                checksums: Vec::new(),
                repeat: None,
            };
            bytes[at..at + BLOCK_BYTES].copy_from_slice(&sealed(&like.encode()[..], input.bytes(200)));
        }
        5..=8 => {
            // Behind the last record, as a log is written.
            let last = place.last.as_ref().filter(|last| last.place.segment == place.segment);
            let end = last.map_or(0, |last| last.place.position as usize + 1 + last.checksums.len());
            put_record(input, bytes, if end < blocks { end } else { position }, place);
        }
        _ => put_record(input, bytes, position, place),
    }
}

fn any_entries(input: &mut Input<'_>, mut room: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    for _ in 0..=input.byte() % 5 {
        let content = match input.byte() % 8 {
            0 => Content::Zeroes,
            1 => Content::Discarded,
            2 => Content::Copied,
            _ => Content::Data,
        };
        let block = if input.once_in(128) { input.number() >> 8 } else { u64::from(input.byte()) };
        let mut count = if input.once_in(128) { input.u32() } else { 1 + u32::from(input.byte() % 6) };
        if content.has_data() {
            count = count.min(room as u32);
            room -= count as usize;
        }
        entries.push(Entry { block, blocks: count, content });
    }
    entries
}

fn put_record(input: &mut Input<'_>, bytes: &mut [u8], position: usize, place: &mut Place) {
    let blocks = bytes.len() / BLOCK_BYTES;
    let sequence = match (input.once_in(16), &place.last) {
        (true, _) => input.number(),
        (false, Some(last)) if !input.once_in(4) => last.place.sequence.saturating_add(1),
        _ => u64::from(input.u16()),
    };
    let fill = input.byte();
    let entries = any_entries(input, blocks - position - 1);
    let wild = input.byte();
    let previous = match wild % 8 {
        _ if place.layout == Layout::One => None,
        0 => Some(any_place(input, place)),
        1 => None,
        _ => place.last.as_ref().map(|last| last.place),
    };
    let mut summary = Summary {
        layout: place.layout,
        epoch: Epoch::default(),
        place: format::Place {
            sequence,
            segment: place.segment,
            generation: place.generation,
            position: position as u32,
        },
        durable: if wild & 64 == 0 { 0 } else { sequence.saturating_sub(u64::from(input.byte() % 4)) },
        previous,
        entries,
        checksums: Vec::new(),
        repeat: None,
    };
    let count = summary.data_blocks() as usize;
    let start = (position + 1) * BLOCK_BYTES;
    let torn = if input.once_in(4) { 1 + input.below(count.max(1)) } else { 0 };
    for (index, data) in bytes[start..start + count * BLOCK_BYTES].chunks_mut(BLOCK_BYTES).enumerate() {
        for (sector, bytes) in data.chunks_mut(512).enumerate() {
            bytes.fill(fill ^ (index * 8 + sector) as u8);
        }
        summary.checksums.push(checksum(data));
        data[0] ^= u8::from(torn == index + 1);
    }
    if !Summary::fits(place.layout, summary.entries.len(), count) {
        return;
    }
    if place.layout == Layout::Two && !summary.is_copies() {
        summary.repeat = match wild & 128 {
            0 => place.last.take().filter(|last| Some(last.place) == previous).map(Box::new),
            _ => any_repeat(input, place, previous),
        };
    }
    let block = summary.encode();
    bytes[position * BLOCK_BYTES..start].copy_from_slice(&block[..]);
    // What is repeated was a valid record.
    if place.layout == Layout::Two && !summary.is_copies() && Summary::decode(&block[..]).is_some() {
        let Summary { place: at, entries, checksums, .. } = summary;
        place.last = Some(Repeat { place: at, previous, entries, checksums });
    }
}

/// Something that never was a record, repeated of the record before.
fn any_repeat(input: &mut Input<'_>, place: &Place, previous: Option<format::Place>) -> Option<Box<Repeat>> {
    let entries = any_entries(input, 8);
    let blocks: u32 = entries.iter().map(Entry::data_blocks).sum();
    let before = input.once_in(2).then(|| any_place(input, place));
    let checksums = (0..blocks).map(|_| input.u32()).collect::<Vec<_>>();
    let fits = Summary::fits(Layout::Two, entries.len(), checksums.len());
    previous.filter(|_| fits).map(|place| Box::new(Repeat { place, previous: before, entries, checksums }))
}

/// What a record says of one of its data blocks: its content, or what is wrong with it.
type Told = (u64, u32, u32, Result<Vec<u8>, Flaw>);

/// Sequence, position, number and content of each data block of each record.
fn told(records: &Records, bytes: &[u8]) -> Vec<Told> {
    let mut told = Vec::new();
    for record in records.iter() {
        for (run, flaw) in record.runs(0..record.checksums.len() as u32) {
            for block in run {
                let start = (record.position + 1 + block) as usize * BLOCK_BYTES;
                let content = flaw.map_or_else(|| Ok(bytes[start..start + BLOCK_BYTES].to_vec()), Err);
                told.push((record.sequence, record.position, block, content));
            }
        }
    }
    told
}

/// Sequence, position and ranges of each record.
fn heads(records: &Records) -> Vec<(u64, u32, Vec<Entry>, Vec<u32>)> {
    let head = |record: format::View<'_>| {
        (record.sequence, record.position, record.entries().collect(), record.checksums.to_vec())
    };
    records.iter().map(head).collect()
}

fn check_records(records: &Records, bytes: &[u8], unreadable: &[u32]) {
    let mut free_from = 0;
    for record in records.iter() {
        let entries: Vec<Entry> = record.entries().collect();
        let blocks: u64 = entries.iter().map(|entry| u64::from(entry.data_blocks())).sum();
        assert_eq!(record.checksums.len() as u64, blocks);
        let (position, end) = (record.position as usize, record.position as usize + 1 + record.checksums.len());
        assert!(position >= free_from && end <= bytes.len() / BLOCK_BYTES, "records overlap or leave the segment");
        free_from = end;
        let mut flawed = 0;
        for (run, flaw) in record.runs(0..record.checksums.len() as u32) {
            flawed += if flaw.is_some() { run.len() } else { 0 };
            for block in run {
                let at = record.position + 1 + block;
                let start = at as usize * BLOCK_BYTES;
                let matches = checksum(&bytes[start..start + BLOCK_BYTES]) == record.checksums[block as usize];
                let expected = match (unreadable.contains(&at), matches) {
                    (true, _) => Some(Flaw::Unreadable),
                    (false, false) => Some(Flaw::Mismatch),
                    (false, true) => None,
                };
                assert_eq!(flaw, expected);
            }
        }
        assert_eq!(flawed, record.flawed());
        assert!(records.covers(record.position) && records.contains(record.sequence));
        assert!(record.sequence <= records.sequence_max);
    }
    assert!(records.is_empty() || records.end as usize == free_from);
    assert_eq!(records.end_unreadable, unreadable.contains(&records.end));
}

/// The records of a segment, with and without blocks that cannot be read.
pub fn segment(data: &[u8]) {
    let mut input = Input(data);
    let mut place = Place { layout: any_layout(&mut input), segment: 3, generation: 5, last: None };
    let mut bytes = vec![0; (1 + input.below(24)) * BLOCK_BYTES];
    let blocks = (bytes.len() / BLOCK_BYTES) as u32;
    let pattern = input.u32();
    let unreadable: Vec<u32> = (0..blocks).filter(|block| pattern & 1 << block != 0).collect();
    while !input.is_empty() {
        scribble(&mut input, &mut bytes, &mut place);
    }
    if input.0.len() % 7 == 3 {
        bytes.truncate(bytes.len() - 100);
    }
    check_records(&scan(&bytes, &[], place.last.as_slice()), &bytes, &[]);
    check_records(&scan(&bytes, &unreadable, place.last.as_slice()), &bytes, &unreadable);
}

fn scan(bytes: &[u8], unreadable: &[u32], repeats: &[Repeat]) -> Records {
    scan_segment(bytes, Epoch::default(), 3, 5, unreadable, repeats)
}

/// A segment as an engine writes it, perhaps damaged, of which some blocks cannot be read: nothing is reported that the
/// scan of the whole does not report, and nothing is missing without a word.
pub fn unreadable(data: &[u8]) {
    let mut input = Input(data);
    let mut bytes = vec![0; (2 + input.below(30)) * BLOCK_BYTES];
    let blocks = bytes.len() / BLOCK_BYTES;
    let mut place = Place { layout: Layout::Two, segment: 3, generation: 5, last: None };
    let pattern = match input.byte() % 4 {
        0 => 1u32.rotate_left(u32::from(input.byte())),
        1 => input.u32() & input.u32() & input.u32(),
        2 => input.u32() & input.u32(),
        _ => input.u32(),
    };
    let elsewhere = input.once_in(2);
    let damages = input.byte() % 4;
    let damage = input.bytes(usize::from(damages) * 3);
    let mut next = 0;
    while next + 1 < blocks && !input.is_empty() {
        append(&mut input, &mut bytes, next, &mut place);
        next = place.last.as_ref().map_or(blocks, |last| last.place.position as usize + 1 + last.checksums.len());
    }
    for damage in damage.chunks_exact(3) {
        let at = (usize::from(damage[0]) * BLOCK_BYTES + usize::from(damage[1]) * 16) % bytes.len();
        bytes[at] ^= damage[2];
    }
    let damaged = damage.chunks_exact(3).any(|damage| damage[2] != 0);
    let unreadable: Vec<u32> = (0..blocks as u32).filter(|block| pattern & 1 << block != 0).collect();
    // The first record of another segment repeats the last one here.
    let repeat = if elsewhere { place.last.as_slice() } else { &[] };
    let whole = scan(&bytes, &[], repeat);
    // What cannot be read holds anything.
    let mut holes = bytes.clone();
    for block in &unreadable {
        holes[*block as usize * BLOCK_BYTES..][..BLOCK_BYTES].fill(0xbd);
    }
    let parted = scan(&holes, &unreadable, repeat);
    check_records(&parted, &holes, &unreadable);
    let (known, told_whole) = (heads(&whole), told(&whole, &bytes));
    assert!(heads(&parted).iter().all(|head| known.contains(head)), "a record that is none");
    for block in told(&parted, &holes) {
        let sound = block.3.is_ok();
        assert!(!sound || told_whole.contains(&block), "a sound block that is none");
    }
    assert!(parted.durable <= whole.durable && parted.sequence_max <= whole.sequence_max);
    let missing = known.len() > heads(&parted).len();
    let told = parted.end_unreadable || parted.gaps.iter().any(|gap| gap.unreadable);
    assert!(!missing || told || damaged, "records are missing without a word");
    for gap in &parted.gaps {
        assert!(!parted.contains(gap.place.sequence) && gap.place.segment == 3 && gap.place.generation == 5);
    }
    if unreadable.is_empty() {
        assert_eq!(parted, whole);
    }
}

/// Appends a record as an engine does.
fn append(input: &mut Input<'_>, bytes: &mut [u8], position: usize, place: &mut Place) {
    let mut entries = any_entries(input, bytes.len() / BLOCK_BYTES - position - 1);
    entries.retain(|entry| entry.content != Content::Copied && entry.blocks > 0 && entry.block < 1 << 40);
    // Many short records: so what is missing has others before and behind it.
    entries.truncate(1);
    entries.iter_mut().for_each(|entry| entry.blocks = 1 + entry.blocks % 3);
    let room = (bytes.len() / BLOCK_BYTES - position - 1) as u32;
    entries.retain(|entry| entry.data_blocks() <= room);
    if entries.is_empty() {
        entries.push(Entry { block: 7, blocks: 1, content: Content::Discarded });
    }
    let previous = place.last.as_ref().map(|last| last.place);
    let sequence = previous.map_or(1, |previous| previous.sequence + 1);
    let here = format::Place { sequence, segment: 3, generation: 5, position: position as u32 };
    let durable = sequence.saturating_sub(u64::from(input.byte() % 8));
    let layout = Layout::Two;
    let epoch = Epoch::default();
    let mut summary =
        Summary { layout, epoch, place: here, durable, previous, entries, checksums: Vec::new(), repeat: None };
    let start = (position + 1) * BLOCK_BYTES;
    let data = &mut bytes[start..start + summary.data_blocks() as usize * BLOCK_BYTES];
    let fill = input.byte();
    data.chunks_mut(512).enumerate().for_each(|(sector, bytes)| bytes.fill(fill ^ sector as u8));
    summary.checksums = data.chunks(BLOCK_BYTES).map(checksum).collect();
    summary.repeat = place.last.take().map(Box::new);
    let block = summary.encode();
    bytes[position * BLOCK_BYTES..start].copy_from_slice(&block[..]);
    let (entries, checksums) = (summary.entries, summary.checksums);
    place.last = Some(Repeat { place: here, previous, entries, checksums });
}
