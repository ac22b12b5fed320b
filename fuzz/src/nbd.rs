//! An NBD client that sends anything, cut into any pieces: handshake, then transmission.

use surgetank_device::buffer::Buffer;
use surgetank_device::front::Export;
use surgetank_device::front::nbd::handshake::{Handshake, OPTION_LENGTH_MAX, Progress};
use surgetank_device::front::nbd::transmission::{Intake, Received, Receiver, Session};
use surgetank_model::Operation;
use surgetank_nbd::wire::{self, REQUEST_LENGTH, RequestHeader, command};

use crate::input::Input;

const SIZE: u64 = 1 << 20;
/// An option's header, its longest data, and one read of the socket behind that.
const PENDING_MAX: usize = 16 + OPTION_LENGTH_MAX;

fn export() -> Export {
    Export { name: "data".into(), size: SIZE, logical_block: 512 }
}

/// A message that is nearly right.
fn option(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let kind = u32::from(input.byte() % 12);
    let mut data = match input.byte() % 8 {
        0 => Vec::new(),
        1 => input.bytes(64).to_vec(),
        2 => vec![0; input.below(40_000)],
        _ => {
            let mut data = Vec::new();
            for _ in 0..input.byte() % 4 {
                let name: &[u8] = match input.byte() % 5 {
                    0 => b"",
                    1 => b"base:allocation",
                    2 => b"base:",
                    3 => input.bytes(20),
                    _ => b"data",
                };
                data.extend((name.len() as u32).to_be_bytes());
                data.extend(name);
            }
            data.extend_from_slice([&[][..], &[0, 0], &[0, 1, 0, 3], &[0, 2, 0, 0, 0, 3]][input.below(4)]);
            data
        }
    };
    bytes.extend(wire::OPTION_MAGIC.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    let length = match input.byte() % 16 {
        0 => input.u32(),
        1 => data.len() as u32 + 1,
        _ => data.len() as u32,
    };
    bytes.extend(length.to_be_bytes());
    bytes.append(&mut data);
}

fn request(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let length = match input.byte() % 8 {
        0 => input.u32(),
        1 => input.below(5000) as u32,
        _ => input.below(40) as u32 * 512,
    };
    let offset = if input.once_in(8) { input.number() } else { input.below(2100) as u64 * 512 };
    let header = RequestHeader {
        flags: if input.once_in(4) { input.u16() } else { 0 },
        command: u16::from(input.byte() % 9),
        cookie: u64::from(input.byte()),
        offset,
        length,
    };
    bytes.extend(header.encode());
    if header.command == command::WRITE {
        bytes.extend(std::iter::repeat_n(input.byte(), length.min(40_000) as usize));
    }
}

/// What a client sends in all.
fn stream(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flags = if input.once_in(8) { input.u32() } else { 3 };
    bytes.extend(flags.to_be_bytes());
    while !input.is_empty() && bytes.len() < 200_000 {
        match input.byte() % 16 {
            0..=4 => option(input, &mut bytes),
            5 => {
                // To the transmission at once.
                bytes.extend(wire::OPTION_MAGIC.to_be_bytes());
                bytes.extend(wire::option::GO.to_be_bytes());
                bytes.extend([0, 0, 0, 6, 0, 0, 0, 0, 0, 0]);
            }
            6 => bytes.extend(input.bytes(40)),
            7 => bytes.truncate(bytes.len() - bytes.len().min(usize::from(input.byte() % 30))),
            _ => request(input, &mut bytes),
        }
    }
    bytes
}

/// What came of it: what the server said, each request with a digest of its data, and how it ended.
#[derive(Debug, Default, PartialEq)]
struct Conversation {
    said: Vec<u8>,
    requests: Vec<(RequestHeader, Intake, Option<u32>)>,
    session: Option<Session>,
    closed: bool,
}

enum ConnectionPhase {
    Handshake(Handshake),
    Transmission(Receiver),
}

struct Server {
    phase: ConnectionPhase,
    pending: Vec<u8>,
    conversation: Conversation,
}

impl Server {
    fn new() -> Self {
        let (handshake, mut conversation) = (Handshake::new(export()), Conversation::default());
        handshake.greet(&mut conversation.said);
        Self { phase: ConnectionPhase::Handshake(handshake), pending: Vec::new(), conversation }
    }

    /// Takes a piece of the stream. `direct`: what a write lacks is read into its buffer, as from a socket.
    fn piece(&mut self, mut piece: &[u8], direct: bool) {
        if let ConnectionPhase::Transmission(receiver) = &mut self.phase
            && direct
            && self.pending.is_empty()
        {
            let room = receiver.room();
            let length = room.len().min(piece.len());
            room[..length].copy_from_slice(&piece[..length]);
            receiver.filled(length);
            piece = &piece[length..];
        }
        self.pending.extend_from_slice(piece);
        while !self.conversation.closed && self.step() {}
        match &self.phase {
            _ if self.conversation.closed => {}
            ConnectionPhase::Handshake(_) => {
                assert!(self.pending.len() <= PENDING_MAX, "{} bytes wait", self.pending.len())
            }
            ConnectionPhase::Transmission(receiver) => {
                assert!(self.pending.len() < REQUEST_LENGTH && receiver.held() as u64 <= SIZE);
            }
        }
    }

    fn step(&mut self) -> bool {
        let used = match &mut self.phase {
            ConnectionPhase::Handshake(handshake) => {
                let (used, progress) = handshake.advance(&self.pending, &mut self.conversation.said);
                match progress {
                    Progress::More => {
                        self.pending.drain(..used);
                        return false;
                    }
                    Progress::Continue => {}
                    Progress::Transmission(session) => {
                        self.conversation.session = Some(session);
                        self.phase = ConnectionPhase::Transmission(Receiver::new(session));
                    }
                    Progress::Close | Progress::Tls => self.conversation.closed = true,
                }
                used
            }
            ConnectionPhase::Transmission(receiver) => {
                let (used, received) = receiver.advance(&self.pending, &export(), &mut |length| {
                    assert!(length as u64 <= SIZE, "a buffer larger than the export");
                    Buffer::zeroed(length)
                });
                match received {
                    Received::More => {
                        self.pending.drain(..used);
                        return false;
                    }
                    Received::Broken => self.conversation.closed = true,
                    Received::Request(arrival) => {
                        let digest = arrival.data.map(|mut data| crc32c::crc32c(data.unique().expect("ours alone")));
                        self.conversation.closed = arrival.intake == Intake::Disconnect;
                        self.conversation.requests.push((arrival.header, arrival.intake, digest));
                    }
                }
                used
            }
        };
        self.pending.drain(..used);
        true
    }
}

fn serve(bytes: &[u8], lengths: &[u8], direct: bool) -> Conversation {
    let mut server = Server::new();
    let (mut rest, mut lengths) = (bytes, lengths.iter().cycle());
    while !rest.is_empty() && !server.conversation.closed {
        // Short pieces and long ones; the longest is more than a socket's buffer gives at once.
        let length = lengths.next().map_or(rest.len(), |length| match *length {
            0..=199 => usize::from(*length) + 1,
            length => (usize::from(length) - 199) * 1170,
        });
        let (piece, later) = rest.split_at(length.min(rest.len()));
        server.piece(piece, direct);
        rest = later;
    }
    server.conversation
}

/// The server's side of a connection.
pub fn nbd(data: &[u8]) {
    let mut input = Input(data);
    let lengths = input.array::<6>();
    let bytes = stream(&mut input);
    let cut = serve(&bytes, &lengths, false);
    assert!(cut.said.len() <= 4096 + 8 * bytes.len(), "{} bytes said to {}", cut.said.len(), bytes.len());
    for (header, intake, digest) in &cut.requests {
        if let Intake::Execute { operation, .. } = intake {
            assert_eq!(matches!(operation, Operation::Write { .. }), digest.is_some());
            let inside = header.offset.checked_add(u64::from(header.length)).is_some_and(|end| end <= SIZE);
            assert!(inside || *operation == Operation::Flush);
        }
    }
    assert_eq!(serve(&bytes, &lengths, true), cut);
    assert_eq!(serve(&bytes, &[], false), cut);
}
