//! Tests of the on-media format.

use proptest::prelude::*;

use super::*;

const EPOCH: Epoch = Epoch([7; 16]);

fn summary(position: u32, sequence: u64, contents: &[&[u8]]) -> (Summary, Vec<u8>) {
    let entries = vec![Entry { block: 99, blocks: contents.len() as u32, content: Content::Data }];
    let checksums = contents.iter().map(|content| checksum(content)).collect();
    let summary = Summary { epoch: EPOCH, segment: 3, generation: 5, position, sequence, entries, checksums };
    let bytes = summary.encode().iter().copied().chain(contents.concat()).collect();
    (summary, bytes)
}

proptest! {
    #[test]
    fn summaries_come_back_as_they_went(
        entries in prop::collection::vec((0u64..1 << 50, 1u32..4, 0usize..4), 0..60),
        (segment, generation, position) in any::<(u32, u32, u32)>(),
        sequence in 0u64..1 << 62,
    ) {
        let contents = [Content::Data, Content::Zeroes, Content::Discarded, Content::Copied];
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|(block, blocks, content)| Entry { block, blocks, content: contents[content] })
            .collect();
        let mut summary =
            Summary { epoch: EPOCH, segment, generation, position, sequence, entries, checksums: Vec::new() };
        summary.checksums = (0..summary.data_blocks()).collect();
        prop_assert_eq!(Summary::decode(&summary.encode()[..]), Some(summary));
    }

    #[test]
    fn any_flipped_bit_is_noticed(byte in 0usize..4096, bit in 0u8..8) {
        let (summary, _) = summary(0, 1, &[&[1; 4096]]);
        let superblock = Superblock {
            sequence: 4, epoch: EPOCH, state: LogState::Active, device_size: 1 << 30, segment_size: 1 << 20, segments: 9,
        };
        let table = SegmentTable { page: 0, sequence: 3, epoch: EPOCH, generations: vec![1, 2, 3] };
        for mut block in [summary.encode(), superblock.encode(), table.encode()] {
            block[byte] ^= 1 << bit;
            prop_assert_eq!(Summary::decode(&block[..]), None);
            prop_assert_eq!(Superblock::decode(&block[..]), None);
            prop_assert_eq!(SegmentTable::decode(&block[..]), None);
        }
    }

    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(Summary::decode(&bytes), None);
        prop_assert_eq!(choose_superblock(&bytes), None);
        prop_assert_eq!(read_table(&bytes, EPOCH, 1), None);
        prop_assert!(scan_segment(&bytes, EPOCH, 0, 0).is_empty());
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
    let of = |sequence, state| Superblock {
        sequence,
        epoch: EPOCH,
        state,
        device_size: 1 << 30,
        segment_size: 1 << 20,
        segments: 100,
    };
    let (active, clean) = (of(2, LogState::Active), of(3, LogState::Clean));
    let mut area = [active.encode().to_vec(), clean.encode().to_vec()].concat();
    assert_eq!(choose_superblock(&area), Some(clean));
    area[4096 + 40] ^= 1;
    assert_eq!(choose_superblock(&area), Some(active));
}

#[test]
fn a_scan_goes_on_after_holes_and_tells_torn_blocks() {
    let (first, first_bytes) = summary(0, 1, &[&[1; 4096], &[2; 4096]]);
    let (third, mut third_bytes) = summary(5, 3, &[&[4; 4096], &[5; 4096]]);
    third_bytes[4096 + 100] ^= 1;
    // Between them a record that never arrived.
    let bytes = [first_bytes, vec![0; 2 * 4096], third_bytes, vec![0xaa; 4096]].concat();
    let records = scan_segment(&bytes, EPOCH, 3, 5);
    assert_eq!(records.len(), 2);
    assert_eq!(records[0], Record { summary: first, intact: vec![true, true] });
    assert_eq!(records[1], Record { summary: third, intact: vec![false, true] });
    for (segment, generation) in [(2, 5), (3, 4), (3, 6)] {
        assert!(scan_segment(&bytes, EPOCH, segment, generation).is_empty(), "a stale or foreign record");
    }
    assert!(scan_segment(&bytes, Epoch([8; 16]), 3, 5).is_empty(), "another attachment's record");
}
