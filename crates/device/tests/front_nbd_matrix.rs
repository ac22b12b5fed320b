//! Every command with every combination of flags, and every shape of range, at both sizes of logical blocks, against
//! tables that were written from the protocol and not from the server.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::sync::atomic::Ordering;

use front_support::Driver;
use front_support::client::Client;
use surgetank_device::front::nbd::{Limits, NbdConfig, NbdFront};
use surgetank_device::front::{Export, Front};
use surgetank_model::Operation;
use surgetank_nbd::wire::{chunk, command, command_flag as flag, error, option, option_reply};

const MIB: u64 = 1 << 20;
/// The longest read or write.
const LONGEST: u64 = 32 * MIB;
const BLOCKS: [u64; 2] = [512, 4096];
const FLAGS: [u16; 6] = [flag::FUA, flag::NO_HOLE, flag::DONT_FRAGMENT, flag::ONE_EXTENT, flag::FAST_ZERO, 1 << 15];
const COMMANDS: [u16; 9] = [
    command::READ,
    command::WRITE,
    command::FLUSH,
    command::TRIM,
    5, // CACHE, which is not advertised
    command::WRITE_ZEROES,
    command::BLOCK_STATUS,
    8, // RESIZE, of an extension
    0xffff,
];

struct Server {
    driver: Driver,
    socket: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

fn server(size: u64, block: u64) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let front = NbdFront::open(NbdConfig {
        export: Export { name: "data".into(), size, logical_block: block as u32 },
        unix: Some(socket.clone()),
        tcp: None,
        tls: None,
        limits: Limits::default(),
    })
    .unwrap();
    assert!(front.address().contains("nbd+unix"));
    Server { driver: Driver::start(front, size as usize), socket, _directory: directory }
}

/// A connection that knows how replies look.
struct Session {
    client: Client,
    structured: bool,
}

impl Session {
    /// The error and the data of a reply, whatever its shape.
    fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u64, data: &[u8]) -> (u32, Vec<u8>) {
        self.client.request(command, flags, offset, length as u32);
        self.client.put(data);
        if self.structured && (command == command::READ || command == command::BLOCK_STATUS) {
            let (kind, payload) = self.client.chunk();
            return match kind {
                chunk::ERROR => (u32::from_be_bytes(payload[..4].try_into().unwrap()), Vec::new()),
                chunk::OFFSET_DATA => {
                    assert_eq!(payload[..8], offset.to_be_bytes());
                    (0, payload[8..].to_vec())
                }
                _ => (0, payload),
            };
        }
        let error = self.client.simple();
        let room = if command == command::READ && error == 0 { length as usize } else { 0 };
        (error, self.client.take(room))
    }
}

/// Flags that a command may carry: FUA always, the others with the commands that they were made for.
fn flags_allowed(command: u16, structured: bool) -> u16 {
    flag::FUA
        | match command {
            command::READ if structured => flag::DONT_FRAGMENT,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::ONE_EXTENT,
            _ => 0,
        }
}

#[test]
fn every_command_with_every_flag() {
    for block in BLOCKS {
        let server = server(MIB, block);
        let seen = &server.driver.seen;
        for structured in [false, true] {
            let mut session = Session { client: Client::open(&server.socket, structured), structured };
            for command in COMMANDS {
                for combination in 0..1u32 << FLAGS.len() {
                    let chosen = FLAGS.iter().enumerate().filter(|(bit, _)| combination >> bit & 1 == 1);
                    let flags = chosen.fold(0, |flags, (_, flag)| flags | flag);
                    let known = matches!(
                        command,
                        command::READ | command::WRITE | command::FLUSH | command::TRIM | command::WRITE_ZEROES
                    ) || command == command::BLOCK_STATUS && structured;
                    let expected = if !known || flags & !flags_allowed(command, structured) != 0 {
                        error::EINVAL
                    } else if command == command::WRITE_ZEROES && flags & flag::FAST_ZERO != 0 {
                        error::ENOTSUP
                    } else {
                        0
                    };
                    let counts = |what: &std::sync::atomic::AtomicU64| what.load(Ordering::SeqCst);
                    let before = (counts(&seen.durable), counts(&seen.flushes));
                    let data = if command == command::WRITE { vec![7; 4096] } else { Vec::new() };
                    let (offset, length) = if command == command::FLUSH { (0, 0) } else { (8192, 4096) };
                    let (result, _) = session.ask(command, flags, offset, length, &data);
                    assert_eq!(result, expected, "command {command}, flags {flags:#x}, structured: {structured}");
                    // FUA reaches the device, as itself or as a flush; nothing else does.
                    let durable = counts(&seen.durable) - before.0;
                    let flushes = counts(&seen.flushes) - before.1;
                    let fua = expected == 0 && flags & flag::FUA != 0;
                    let own = fua && matches!(command, command::WRITE | command::WRITE_ZEROES);
                    let flushed = fua && command == command::TRIM || expected == 0 && command == command::FLUSH;
                    assert_eq!((durable, flushes), (own.into(), flushed.into()), "command {command}, flags {flags:#x}");
                }
            }
            assert_eq!(session.ask(command::FLUSH, 0, 0, 0, &[]).0, 0, "the connection lives on");
        }
    }
}

/// What the protocol says of a range on an export of this size and block.
fn expected(command: u16, offset: u64, length: u64, size: u64, block: u64) -> u32 {
    let moves_bytes = matches!(command, command::READ | command::WRITE);
    if length == 0 || !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return error::EINVAL;
    }
    if moves_bytes && length > LONGEST {
        return error::EINVAL;
    }
    if u128::from(offset) + u128::from(length) <= u128::from(size) {
        return 0;
    }
    // "No space" for what would write there, "invalid" for the rest.
    if matches!(command, command::WRITE | command::WRITE_ZEROES) { error::ENOSPC } else { error::EINVAL }
}

fn ranges(size: u64, block: u64) -> Vec<(u64, u64)> {
    let last = size - block;
    vec![
        (0, 0),
        (block, 0),
        (size, 0),
        (0, 1),
        (0, block - 1),
        (0, block),
        (0, block + 1),
        (1, block),
        (block / 2, block),
        (block - 1, 1),
        (512, 512),
        (512, 4096),
        (4096, 512),
        (0, 4096),
        (3 * 4096, 65536),
        (last, block),
        (last, 512),
        (last, 2 * block),
        (last - block, 2 * block),
        (last + 1, block),
        (last + block / 2, block / 2),
        (size, block),
        (size + block, block),
        (size - 1, 1),
        (u64::MAX - block + 1, block),
        (u64::MAX, 1),
        (1 << 63, block),
        (0, LONGEST - block),
        (0, LONGEST),
        (0, LONGEST + block),
        (4096, LONGEST),
        (0, size),
        (block, size - block),
        (block, size),
        (0, (1 << 32) - block),
        (0, (1 << 32) - 1),
    ]
}

#[test]
fn every_shape_of_range() {
    for block in BLOCKS {
        // Not a multiple of what clients are asked to prefer, if it can be.
        let size = 40 * MIB + if block == 512 { 512 } else { 0 };
        let server = server(size, block);
        let mut model = vec![0u8; size as usize];
        let mut session = Session { client: Client::open(&server.socket, true), structured: true };
        let mut fill = 0u8;
        for (offset, length) in ranges(size, block) {
            for command in [
                command::WRITE,
                command::READ,
                command::TRIM,
                command::WRITE_ZEROES,
                command::BLOCK_STATUS,
                command::WRITE,
            ] {
                // The data of a refused write come all the same; not gibibytes of them.
                if command == command::WRITE && length > LONGEST + 4096 {
                    continue;
                }
                fill = fill.wrapping_add(1) | 1;
                let data = if command == command::WRITE { vec![fill; length as usize] } else { Vec::new() };
                let expected = expected(command, offset, length, size, block);
                let (result, answer) = session.ask(command, 0, offset, length, &data);
                assert_eq!(result, expected, "blocks of {block}: command {command} at {offset} of {length}");
                if expected != 0 {
                    continue;
                }
                let range = offset as usize..(offset + length) as usize;
                match command {
                    command::WRITE => model[range].fill(fill),
                    command::READ => assert!(answer == model[range], "read at {offset} of {length}"),
                    command::BLOCK_STATUS => assert_eq!(answer[4..8], (length as u32).to_be_bytes(), "one extent"),
                    _ => model[range].fill(0),
                }
            }
            assert!(*server.driver.disk.lock().unwrap() == model, "nothing else has changed: {offset} of {length}");
        }
    }
}

#[test]
fn block_sizes_are_advertised_and_hold() {
    for block in BLOCKS {
        let server = server(40 * MIB, block);
        let mut client = Client::connect(&server.socket);
        client.option(option::INFO, b"\0\0\0\x04data\0\x01\0\x03");
        let sizes = loop {
            match client.option_reply() {
                (option_reply::INFO, data) if data[..2] == [0, 3] => break data[2..].to_vec(),
                (option_reply::INFO, _) => {}
                other => panic!("{other:?}"),
            }
        };
        let word = |at: usize| u64::from(u32::from_be_bytes(sizes[at..at + 4].try_into().unwrap()));
        let (least, preferred, most) = (word(0), word(4), word(8));
        assert_eq!((least, preferred, most), (block, 4096, LONGEST));
        assert_eq!(client.option_reply().0, option_reply::ACK);
        client.go(true);
        let mut session = Session { client, structured: true };
        for (length, expected) in
            [(least, 0), (preferred, 0), (most, 0), (least / 2, error::EINVAL), (most + least, error::EINVAL)]
        {
            assert_eq!(session.ask(command::READ, 0, 0, length, &[]).0, expected, "read of {length}");
            assert_eq!(
                session.ask(command::WRITE, 0, 0, length, &vec![1; length as usize]).0,
                expected,
                "write of {length}"
            );
        }
    }
}

#[test]
fn a_flush_on_one_connection_follows_the_writes_of_all() {
    let server = server(MIB, 512);
    let open = || Session { client: Client::open(&server.socket, false), structured: false };
    let (mut writers, mut flusher) = ([open(), open(), open()], open());
    for (index, writer) in writers.iter_mut().enumerate() {
        assert_eq!(writer.ask(command::WRITE, 0, index as u64 * 4096, 4096, &[index as u8 + 1; 4096]).0, 0);
    }
    assert_eq!(flusher.ask(command::FLUSH, 0, 0, 0, &[]).0, 0);
    // Each write was acknowledged before the flush was sent: the device sees them in that order, and every connection
    // sees what all have written.
    let operations = server.driver.seen.operations.lock().unwrap().clone();
    assert_eq!(operations.last(), Some(&Operation::Flush));
    assert_eq!(operations.iter().filter(|operation| matches!(operation, Operation::Write { .. })).count(), 3);
    for index in 0..3 {
        let (result, data) = flusher.ask(command::READ, 0, index * 4096, 4096, &[]);
        assert!(result == 0 && data == [index as u8 + 1; 4096]);
    }
}

#[test]
fn a_client_that_sends_what_makes_no_request_keeps_nobody_waiting() {
    use std::io::Write;
    let server = server(MIB, 512);
    let mut endless = Client::open(&server.socket, false);
    // The data of a refused write of almost 4 GiB, for as long as the server takes them.
    endless.request(command::WRITE, 0, 0, u32::MAX);
    let mut sender = endless.0.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let data = vec![0; 1 << 20];
        while sender.write_all(&data).is_ok() {}
    });
    let mut polite = Session { client: Client::open(&server.socket, false), structured: false };
    for _ in 0..100 {
        assert_eq!(polite.ask(command::READ, 0, 0, 4096, &[]).0, 0);
    }
    endless.0.shutdown(std::net::Shutdown::Both).unwrap();
    sending.join().unwrap();
}
