//! Tests of the on-media format.

use proptest::prelude::*;

use super::*;

const EPOCH: Epoch = Epoch([7; 16]);

fn place(position: u32, sequence: u64) -> Place {
    Place { sequence, segment: 3, generation: 5, position }
}

fn plain(layout: Layout, place: Place, entries: Vec<Entry>) -> Summary {
    let (checksums, repeat) = (Vec::new(), None);
    Summary { layout, epoch: EPOCH, place, durable: 7, previous: None, entries, checksums, repeat }
}

/// A record of data as it lies on the volume; it comes after the one that was sealed before.
fn record(sealer: &mut Sealer, place: Place, previous: Option<Place>, contents: &[&[u8]]) -> Vec<u8> {
    let entries = vec![Entry { block: 99, blocks: contents.len() as u32, content: Content::Data }];
    let mut summary = Summary { previous, ..plain(Layout::Two, place, entries) };
    let block = sealer.seal(&mut summary, contents.iter().copied());
    block.iter().copied().chain(contents.concat()).collect()
}

fn superblock(sequence: u64, state: LogState) -> Superblock {
    Superblock {
        layout: Layout::Two,
        sequence,
        epoch: EPOCH,
        state,
        device_size: 1 << 30,
        segment_size: 1 << 20,
        segments: 100,
        indexed: true,
        durable: 12,
        closed: true,
        last: Some(place(4, 14)),
        void: vec![13],
        unindexed: Some(vec![7, 9]),
        grown_at: [0; GROWTHS_MAX],
    }
}

fn scan(bytes: &[u8], unreadable: &[u32]) -> Records {
    scan_segment(bytes, EPOCH, 3, 5, unreadable, &[])
}

/// Sequence and position of each record, and which of its data blocks are sound.
fn told(records: &Records) -> Vec<(u64, u32, Vec<bool>)> {
    let sound = |record: View<'_>| {
        let runs = record.runs(0..record.checksums.len() as u32);
        runs.flat_map(|(run, flaw)| run.map(move |_| flaw.is_none())).collect()
    };
    records.iter().map(|record| (record.sequence, record.position, sound(record))).collect()
}

proptest! {
    #[test]
    fn summaries_come_back_as_they_went(
        entries in prop::collection::vec((0u64..1 << 50, 1u32..4, 0usize..4), 1..60),
        (segment, generation, position) in any::<(u32, u32, u32)>(),
        (sequence, durable) in (1u64..1 << 62, 0u64..1 << 62),
        (first, repeats) in any::<(bool, bool)>(),
    ) {
        let contents = [Content::Data, Content::Zeroes, Content::Discarded, Content::Copied];
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|(block, blocks, content)| Entry { block, blocks, content: contents[content] })
            .collect();
        let layout = if first { Layout::One } else { Layout::Two };
        let mut summary = Summary {
            durable, ..plain(layout, Place { sequence, segment, generation, position }, entries.clone())
        };
        summary.checksums = (0..summary.data_blocks()).collect();
        if layout == Layout::Two {
            let before = Place { sequence: 1 + sequence / 2, ..summary.place };
            summary.previous = Some(before);
            let checksums = summary.checksums.clone();
            summary.repeat =
                repeats.then(|| Box::new(Repeat { place: before, previous: Some(before), entries, checksums }));
        }
        prop_assert_eq!(Summary::decode(&summary.encode()[..]), Some(summary));
    }

    #[test]
    fn any_flipped_bit_is_noticed(byte in 0usize..4096, bit in 0u8..8) {
        let summary = plain(Layout::Two, place(0, 1), vec![Entry { block: 9, blocks: 2, content: Content::Zeroes }]);
        let superblock = superblock(4, LogState::Active);
        let table = SegmentTable {
            layout: Layout::Two,
            page: 0,
            sequence: 3,
            epoch: EPOCH,
            generations: vec![1, 2, 3],
            indexed: vec![false, true, false],
        };
        prop_assert_eq!(SegmentTable::decode(&table.encode()[..]), Some(table.clone()));
        for mut block in [summary.encode(), superblock.encode(), table.encode()] {
            block[byte] ^= 1 << bit;
            prop_assert_eq!(Summary::decode(&block[..]), None);
            prop_assert_eq!(Superblock::decode(&block[..]), None);
            prop_assert_eq!(SegmentTable::decode(&block[..]), None);
        }
    }

    #[test]
    fn an_index_says_what_the_records_say(
        parts in prop::collection::vec((1u64..40, 0u32..3, prop::collection::vec((0u64..1 << 50, 1u32..9, 0usize..3), 1..5)), 1..40),
        (durable, follows) in (0u64..1 << 62, any::<bool>()),
        (byte, bit) in (0usize..4096, 0u8..8),
    ) {
        let blocks = 256;
        let mut records = Records::with_capacity(3, 0, 0, 0);
        let mut sequence = 0;
        for (step, hole, ranges) in parts {
            sequence += step;
            let contents = [Content::Data, Content::Zeroes, Content::Discarded];
            let entries = ranges.iter().map(|&(block, blocks, content)| Entry { block, blocks, content: contents[content] });
            let entries: Vec<Entry> = entries.collect();
            let data: u32 = entries.iter().map(Entry::data_blocks).sum();
            if records.end + hole + 1 + data > blocks {
                break;
            }
            let checksums: Vec<u32> = (0..data).map(|block| block ^ sequence as u32).collect();
            records.push(sequence, records.end + hole, &entries, &checksums);
        }
        records.durable = durable;
        records.previous = follows.then(|| place(3, 8));
        records.indexed = true;
        let bytes = encode_index(EPOCH, 5, &records, 1 << 16).unwrap();
        prop_assert!(bytes.len().is_multiple_of(BLOCK as usize));
        let decode = |bytes: &[u8], epoch, segment, generation| decode_index(bytes, epoch, segment, generation, blocks);
        prop_assert_eq!(decode(&bytes, EPOCH, 3, 5), Some(records.clone()));
        prop_assert_eq!(decode(&bytes, EPOCH, 3, 6), None);
        prop_assert_eq!(decode(&bytes, EPOCH, 2, 5), None);
        prop_assert_eq!(decode(&bytes, Epoch([8; 16]), 3, 5), None);
        prop_assert_eq!(decode_index(&bytes, EPOCH, 3, 5, records.end - 1), None);
        let length = u32::from_le_bytes(bytes[80..84].try_into().unwrap()) as usize;
        prop_assert_eq!(encode_index(EPOCH, 5, &records, length - 1), None);
        let mut damaged = bytes.clone();
        damaged[byte % length] ^= 1 << bit;
        prop_assert_eq!(decode(&damaged, EPOCH, 3, 5), None);
    }

    #[test]
    fn an_index_of_any_bytes_is_none_or_sound(body in prop::collection::vec(any::<u8>(), 0..400), counts in any::<[u8; 3]>()) {
        let empty = Records::with_capacity(3, 0, 0, 0);
        let mut bytes = encode_index(EPOCH, 5, &empty, 4096).unwrap();
        bytes.truncate(84);
        bytes.extend_from_slice(&body);
        for (at, count) in (0..).zip(counts) {
            bytes[68 + 4 * at] = count % 16;
        }
        let length = bytes.len() as u32;
        bytes[80..84].copy_from_slice(&length.to_le_bytes());
        bytes[8..12].fill(0);
        let crc = checksum(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        if let Some(records) = decode_index(&bytes, EPOCH, 3, 5, 64) {
            prop_assert!(records.end <= 64);
            let data = records.iter().map(|record| record.checksums.len()).sum::<usize>();
            prop_assert!(data <= 64);
        }
    }

    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(Summary::decode(&bytes), None);
        prop_assert_eq!(choose_superblock(&bytes), None);
        prop_assert_eq!(SegmentTable::decode(&bytes), None);
        prop_assert_eq!(decode_index(&bytes, EPOCH, 3, 5, 256), None);
        prop_assert!(scan(&bytes, &[]).is_empty());
    }

    #[test]
    fn geometry_fits_its_volume(size in 0u64..1 << 46) {
        if let Some(geometry) = Geometry::of_volume(size) {
            prop_assert!(geometry.end() <= size);
            let usable = geometry.capacity();
            // Block numbers of the log have 32 bits.
            let size = size.min(16 << 40);
            prop_assert!(size < 1 << 28 || usable as f64 >= 0.95 * size as f64, "{} of {}", usable, size);
        } else {
            prop_assert!(size < 1 << 20);
        }
    }
}

#[test]
fn the_newer_superblock_counts_and_a_torn_one_does_not() {
    let (active, clean) = (superblock(2, LogState::Active), superblock(3, LogState::Clean));
    let mut area = [active.encode().to_vec(), clean.encode().to_vec()].concat();
    assert_eq!(choose_superblock(&area), Some(clean));
    area[4096 + 40] ^= 1;
    // The torn one may have said that the log goes on.
    assert_eq!(choose_superblock(&area), Some(Superblock { closed: false, ..active }));
}

#[test]
fn the_copies_of_the_table_lie_far_apart_and_outside_of_the_segments() {
    let geometry = Geometry::of_volume(64 << 20).unwrap();
    let (first, second) = (geometry.table_offset(0, TableCopy::First), geometry.table_offset(0, TableCopy::Second));
    assert!(first < geometry.segment_offset(0) && second == geometry.segment_offset(geometry.segments));
    assert_eq!(geometry.end(), second + u64::from(BLOCK) * u64::from(geometry.table_pages()));
    // A volume of the first release keeps its places.
    let old = Geometry::with_layout(64 << 20, Layout::One).unwrap();
    assert_eq!((old.table_offset(0, TableCopy::First), old.table_offset(0, TableCopy::Second)), (8192, 12288));
    assert_eq!(old.end(), old.segment_offset(old.segments));
}

proptest! {
    /// What is on a volume stays where it is when the volume grows, and nothing lies over anything else.
    #[test]
    fn a_volume_that_grows_keeps_its_places(
        size in 600_000u64..100_000_000, indexed in any::<bool>(),
        growths in prop::collection::vec(1u64..200_000_000, 1..GROWTHS_MAX + 2),
    ) {
        let mut geometry = Geometry::divide(size, Layout::Two, indexed).unwrap();
        let (mut size, mut count) = (size, 0);
        for more in growths {
            size += more;
            let Some(grown) = geometry.grown(size) else {
                let room = size.saturating_sub(geometry.end()) / u64::from(geometry.segment_size);
                // The rest of the part takes less than a segment and its indexes.
                prop_assert!(room < 3 || count == GROWTHS_MAX, "{} segments more find no room", room);
                continue;
            };
            count += 1;
            prop_assert!(grown.has_grown() && grown.segments > geometry.segments && grown.end() <= size);
            for segment in 0..geometry.segments {
                prop_assert_eq!(grown.segment_offset(segment), geometry.segment_offset(segment));
                prop_assert_eq!(grown.index_offset(segment), geometry.index_offset(segment));
                prop_assert_eq!(grown.place_in_table(segment), geometry.place_in_table(segment));
            }
            for page in 0..geometry.table_pages() {
                prop_assert_eq!(grown.segments_of_page(page), geometry.segments_of_page(page));
                let offsets = |geometry: Geometry| TableCopy::ALL.map(|copy| geometry.table_offset(page, copy));
                prop_assert_eq!(offsets(grown), offsets(geometry));
            }
            geometry = grown;
        }
        prop_assert_eq!(Superblock::new(EPOCH, geometry, 1 << 30).geometry(), geometry);
        let mut places = Vec::new();
        places.push(0..u64::from(SUPERBLOCKS_LENGTH));
        let mut segments = 0;
        for page in 0..geometry.table_pages() {
            let of_page = geometry.segments_of_page(page);
            prop_assert_eq!(of_page.start, segments);
            segments = of_page.end;
            for (nth, segment) in of_page.enumerate() {
                prop_assert_eq!(geometry.place_in_table(segment), (page, nth));
            }
            places.extend(TableCopy::ALL.map(|copy| geometry.table_offset(page, copy)).map(|at| at..at + u64::from(BLOCK)));
        }
        prop_assert_eq!(segments, geometry.segments);
        for segment in 0..geometry.segments {
            let (index, data) = (geometry.index_offset(segment), geometry.segment_offset(segment));
            places.extend(indexed.then(|| index..index + u64::from(geometry.index_length())));
            places.push(data..data + u64::from(geometry.segment_size));
        }
        places.sort_by_key(|place| place.start);
        prop_assert!(places.is_sorted_by(|a, b| a.end <= b.start));
        prop_assert_eq!(places.last().map(|place| place.end), Some(geometry.end()));
    }
}

/// Programs that know versions 1 and 2 refuse a volume that has grown; one that has not is as they write it.
#[test]
fn a_volume_that_has_grown_has_a_version_of_its_own() {
    let version = |superblock: &Superblock| superblock.encode()[12];
    let plain = superblock(4, LogState::Active);
    let geometry = plain.geometry().grown(200 << 20).unwrap();
    let mut grown = plain.clone();
    grown.grow(geometry);
    assert_eq!((version(&plain), version(&grown)), (2, 3));
    assert_eq!(Superblock::decode(&grown.encode()[..]), Some(grown.clone()));
    assert_eq!(grown.geometry(), geometry);
    // Version 3 without a growth, or with one of nothing, was not written by us.
    for grown_at in [[0; GROWTHS_MAX], [101; GROWTHS_MAX], [3, 0, 0, 0, 0, 0, 0, 0], [50, 0, 60, 0, 0, 0, 0, 0]] {
        let mut block = grown.encode();
        let at = HEADER + 68 + 8 * grown.void.len() + 4 * grown.unindexed.as_ref().map_or(0, Vec::len);
        assert_eq!(block[at..at + 4], 100u32.to_le_bytes());
        for (nth, before) in grown_at.iter().enumerate() {
            block[at + 4 * nth..at + 4 * nth + 4].copy_from_slice(&u32::to_le_bytes(*before));
        }
        block[8..12].fill(0);
        let crc = checksum(&block[..]);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&block[..]), None, "{grown_at:?}");
    }
}

/// Three records behind each other, the second of them with one block; then space.
fn three() -> Vec<u8> {
    let mut sealer = Sealer::default();
    let (a, b) = (place(0, 1), place(3, 2));
    let first = record(&mut sealer, a, None, &[&[1; 4096], &[2; 4096]]);
    let second = record(&mut sealer, b, Some(a), &[&[3; 4096]]);
    let third = record(&mut sealer, place(5, 3), Some(b), &[&[4; 4096], &[5; 4096]]);
    [first, second, third, vec![0xaa; 4096]].concat()
}

#[test]
fn a_scan_goes_on_after_holes_and_tells_torn_blocks() {
    let mut bytes = three();
    let whole = vec![(1, 0, vec![true, true]), (2, 3, vec![true]), (3, 5, vec![true, true])];
    assert_eq!(told(&scan(&bytes, &[])), whole);
    // The second record never arrived, and the third is torn: what it repeats tells of the second, whose data are gone.
    bytes[3 * 4096..5 * 4096].fill(0);
    bytes[6 * 4096 + 100] ^= 1;
    let records = scan(&bytes, &[]);
    assert_eq!(told(&records), [(1, 0, vec![true, true]), (2, 3, vec![false]), (3, 5, vec![false, true])]);
    assert!(records.gaps.is_empty() && records.durable == 7 && !records.end_unreadable);
    let of = |segment, generation, epoch| scan_segment(&bytes, epoch, segment, generation, &[], &[]);
    for (segment, generation) in [(2, 5), (3, 4), (3, 6)] {
        assert!(of(segment, generation, EPOCH).is_empty(), "a stale or foreign record");
    }
    assert!(of(3, 5, Epoch([8; 16])).is_empty(), "another attachment's record");
}

#[test]
fn one_unreadable_summary_loses_nothing_and_more_are_told() {
    let bytes = three();
    let whole = told(&scan(&bytes, &[]));
    let one = scan(&bytes, &[3]);
    assert_eq!((told(&one), one.gaps.len()), (whole.clone(), 0));
    // The first and the second: the third tells of the second, and the second that there was a first.
    let two = scan(&bytes, &[0, 3]);
    assert_eq!(told(&two), whole[1..]);
    assert_eq!(two.gaps, [Gap { place: place(0, 1), unreadable: true }]);
    // The last one is told by none here, but by the first record of the next segment.
    let last = scan(&bytes, &[5]);
    assert_eq!(told(&last), whole[..2]);
    assert!(last.end == 5 && last.end_unreadable);
    let entries = vec![Entry { block: 99, blocks: 2, content: Content::Data }];
    let checksums = [[4; 4096], [5; 4096]].iter().map(|block| checksum(block)).collect();
    let repeat = Repeat { place: place(5, 3), previous: Some(place(3, 2)), entries, checksums };
    assert_eq!(told(&scan_segment(&bytes, EPOCH, 3, 5, &[5], &[repeat])), whole);
    // A data block that cannot be read is one of its record's.
    let data = scan(&bytes, &[2]);
    assert_eq!(told(&data)[0], (1, 0, vec![true, false]));
}
