//! The NBD state machines against arbitrary bytes: no panic, bounded output, the same result however the bytes are cut.

use proptest::prelude::*;
use surgetank_device::buffer::Buffer;
use surgetank_device::front::Export;
use surgetank_device::front::nbd::handshake::{Handshake, Progress};
use surgetank_device::front::nbd::transmission::{Intake, Received, Receiver, Session};
use surgetank_nbd::wire::{self, RequestHeader, command};

fn export() -> Export {
    Export { name: "data".into(), size: 1 << 20, logical_block: 512 }
}

/// Options that are nearly right, and noise.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), 0..64);
    let names =
        prop_oneof![Just(b"".to_vec()), Just(b"data".to_vec()), Just(b"base:allocation".to_vec()), noise.clone()];
    let counted = proptest::collection::vec(names, 0..4).prop_map(|names| {
        let mut data = Vec::new();
        for name in names {
            data.extend((name.len() as u32).to_be_bytes());
            data.extend(name);
        }
        data
    });
    let tail = prop_oneof![Just(vec![]), Just(vec![0, 0]), Just(vec![0, 1, 0, 3]), noise.clone()];
    let data = prop_oneof![
        Just(vec![]),
        noise.clone(),
        (counted, tail).prop_map(|(mut data, tail)| {
            data.extend(tail);
            data
        }),
        (0usize..40_000).prop_map(|length| vec![0; length]),
    ];
    let framed = (0u32..12, data, -2i64..3).prop_map(|(option, data, error)| {
        let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        let length = if error == 2 { u32::MAX } else { (data.len() as i64 + error.min(0)).max(0) as u32 };
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        bytes
    });
    let messages = proptest::collection::vec(prop_oneof![6 => framed, 1 => noise], 0..12);
    (prop_oneof![9 => 0u32..4, 1 => any::<u32>()], messages).prop_map(|(flags, messages)| {
        let mut bytes = flags.to_be_bytes().to_vec();
        bytes.extend(messages.concat());
        bytes
    })
}

/// What was said, how much of the input was used, and how it ended, if it did.
fn shake(pieces: &[&[u8]], tls: bool) -> (Vec<u8>, usize, Option<Progress>) {
    let mut handshake = Handshake::new(export());
    if tls {
        handshake = handshake.requiring_tls();
    }
    let (mut out, mut pending, mut used_total) = (Vec::new(), Vec::new(), 0);
    handshake.greet(&mut out);
    for piece in pieces {
        pending.extend_from_slice(piece);
        loop {
            let (used, progress) = handshake.advance(&pending, &mut out);
            assert!(used <= pending.len());
            pending.drain(..used);
            used_total += used;
            match progress {
                Progress::More => break,
                Progress::Continue => {}
                Progress::Tls | Progress::Transmission(_) | Progress::Close => {
                    return (out, used_total, Some(progress));
                }
            }
        }
        assert!(pending.len() <= 16 + (16 << 10), "what waits is bounded");
    }
    (out, used_total, None)
}

fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter().map(|end| &bytes[std::mem::replace(&mut start, end)..end]).collect()
}

/// What came out of a stream: each request with a digest of its data, and whether the stream broke.
type Outcome = (Vec<(RequestHeader, Intake, Option<u32>)>, bool);

fn receive(pieces: &[&[u8]], session: Session, direct: bool) -> Outcome {
    let (mut receiver, export) = (Receiver::new(session), export());
    let (mut requests, mut pending) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut piece = *piece;
        if direct && pending.is_empty() {
            let room = receiver.room();
            let length = room.len().min(piece.len());
            room[..length].copy_from_slice(&piece[..length]);
            receiver.filled(length);
            piece = &piece[length..];
        }
        pending.extend_from_slice(piece);
        loop {
            let (used, received) = receiver.advance(&pending, &export, &mut |length| {
                assert!(length <= 1 << 20, "no buffer larger than the export");
                Buffer::zeroed(length)
            });
            pending.drain(..used);
            match received {
                Received::More => break,
                Received::Broken => return (requests, true),
                Received::Request(arrival) => {
                    let digest = arrival.data.map(|mut data| crc32c::crc32c(data.unique().expect("ours alone")));
                    requests.push((arrival.header, arrival.intake, digest));
                }
            }
        }
        assert!(pending.len() < wire::REQUEST_LENGTH);
    }
    (requests, false)
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![(0u32..20).prop_map(|blocks| blocks * 512), 0u32..5000, Just(u32::MAX)];
    let offset = prop_oneof![(0u64..2100).prop_map(|block| block * 512), any::<u64>()];
    let one = (0u16..9, 0u16..32, any::<u64>(), offset, length, any::<u8>(), 0u8..20).prop_map(
        |(command, flags, cookie, offset, length, fill, noise)| {
            let mut bytes = RequestHeader { flags, command, cookie, offset, length }.encode();
            if command == command::WRITE {
                bytes.extend(std::iter::repeat_n(fill, length.min(20_000) as usize));
            }
            if noise == 0 {
                bytes.truncate(bytes.len() / 2);
            }
            bytes
        },
    );
    proptest::collection::vec(one, 0..12).prop_map(|requests| requests.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_handshake(bytes in options(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let whole = shake(&[&bytes], false);
        prop_assert_ne!(whole.2, Some(Progress::Tls), "not offered");
        prop_assert!(whole.0.len() <= 64 + 8 * bytes.len() + 4096, "{} bytes out for {}", whole.0.len(), bytes.len());
        prop_assert_eq!(shake(&cut(&bytes, &cuts), false), whole);
    }

    #[test]
    fn nothing_is_told_before_tls(
        bytes in options(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = shake(&[&bytes], true);
        prop_assert!(!matches!(whole.2, Some(Progress::Transmission(_))));
        let told = |secret: &[u8]| whole.0.windows(secret.len()).any(|window| window == secret);
        prop_assert!(!told(b"data") && !told(b"base:") && !told(&(1u64 << 20).to_be_bytes()));
        prop_assert_eq!(shake(&cut(&bytes, &cuts), true), whole);
    }

    #[test]
    fn any_transmission(
        bytes in prop_oneof![4 => requests(), 1 => proptest::collection::vec(any::<u8>(), 0..200)],
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        structured in any::<bool>(),
    ) {
        let session = Session { structured, allocation_context: structured };
        let whole = receive(&[&bytes], session, false);
        for (header, intake, digest) in &whole.0 {
            if let Intake::Execute { operation, .. } = intake {
                let writes = matches!(operation, surgetank_model::Operation::Write { .. });
                prop_assert_eq!(writes, digest.is_some());
                prop_assert!(header.command == command::FLUSH || header.offset + u64::from(header.length) <= 1 << 20);
            }
        }
        prop_assert_eq!(&receive(&cut(&bytes, &cuts), session, false), &whole);
        prop_assert_eq!(&receive(&cut(&bytes, &cuts), session, true), &whole);
    }
}
