//! The NBD front over real sockets: a small client of our own for the corners, real clients for the rest.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use front_support::Driver;
use front_support::client::Client;
use surgetank_device::front::nbd::{Extent, Limits, NbdConfig, NbdFront};
use surgetank_device::front::{Export, Front};
use surgetank_nbd::wire::{self, RequestHeader, command, command_flag, error, option, option_reply};

const MIB: usize = 1 << 20;

fn config(socket: &Path, size: usize, logical_block: u32) -> NbdConfig {
    NbdConfig {
        export: Export { name: "data".into(), size: size as u64, logical_block },
        unix: Some(socket.to_owned()),
        tcp: None,
        tls: None,
        limits: Limits::default(),
    }
}

struct Server {
    driver: Driver,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

fn server(size: usize, logical_block: u32) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("data.sock");
    let front = NbdFront::open(config(&socket, size, logical_block)).unwrap();
    Server { driver: Driver::start(front, size), socket, _directory: directory }
}

#[test]
fn options_are_answered_as_the_specification_says() {
    let server = server(MIB, 512);
    let mut client = Client::connect(&server.socket);
    client.option(option::LIST, &[]);
    assert_eq!(client.option_reply(), (option_reply::SERVER, b"\0\0\0\x04data".to_vec()));
    assert_eq!(client.option_reply().0, option_reply::ACK);
    client.option(5, &[]);
    assert_eq!(client.option_reply().0, option_reply::ERROR_UNSUPPORTED, "no TLS");
    client.option(option::GO, b"\0\0\0\x05other\0\0");
    assert_eq!(client.option_reply().0, option_reply::ERROR_UNKNOWN);
    client.option(option::GO, b"\0\0\0\x63x");
    assert_eq!(client.option_reply().0, option_reply::ERROR_INVALID);
    client.option(option::SET_META_CONTEXT, &[0; 8]);
    assert_eq!(client.option_reply().0, option_reply::ERROR_INVALID, "structured replies come first");
    client.option(option::INFO, &vec![0; 1 << 20]);
    assert_eq!(client.option_reply().0, option_reply::ERROR_TOO_BIG);
    client.option(option::INFO, b"\0\0\0\x04data\0\x01\0\x03");
    let (kind, export) = client.option_reply();
    assert_eq!((kind, &export[..10]), (option_reply::INFO, &[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0][..]));
    let flags = u16::from_be_bytes([export[10], export[11]]);
    assert_eq!(flags, 0b1_0110_1101, "flags, flush, fua, trim, write zeroes, multi-conn");
    assert_eq!(client.option_reply().1, [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0], "512, 4096, 32 MiB");
    assert_eq!(client.option_reply().0, option_reply::ACK);
    client.option(option::EXPORT_NAME, b"data");
    assert_eq!(client.take(10)[..8], (MIB as u64).to_be_bytes());
    assert_eq!(client.ask(command::FLUSH, 0, 0, 0), 0);
    let mut client = Client::connect(&server.socket);
    client.option(option::ABORT, &[]);
    assert_eq!(client.option_reply().0, option_reply::ACK);
    assert!(client.is_closed());
}

#[test]
fn bad_requests_are_refused_and_the_connection_lives_on() {
    let server = server(MIB, 4096);
    let mut client = Client::open(&server.socket, false);
    let end = MIB as u64;
    assert_eq!(client.ask(command::READ, 0, 512, 4096), error::EINVAL, "not aligned");
    assert_eq!(client.ask(command::READ, 0, 0, 512), error::EINVAL, "shorter than a block");
    assert_eq!(client.ask(command::READ, 0, 0, 0), error::EINVAL, "nothing");
    assert_eq!(client.ask(command::READ, 0, end, 4096), error::EINVAL, "beyond the end");
    assert_eq!(client.ask(command::READ, 0, u64::MAX - 4095, 4096), error::EINVAL, "overflow");
    assert_eq!(client.ask(command::READ, 0, 0, 64 << 20), error::EINVAL, "too long");
    assert_eq!(client.ask(command::READ, command_flag::DONT_FRAGMENT, 0, 4096), error::EINVAL, "not agreed on");
    assert_eq!(client.ask(command::TRIM, 0, end - 4096, 8192), error::EINVAL);
    assert_eq!(client.ask(command::WRITE_ZEROES, 0, end, 4096), error::ENOSPC);
    assert_eq!(client.ask(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 4096), error::ENOTSUP);
    assert_eq!(client.ask(command::BLOCK_STATUS, 0, 0, 4096), error::EINVAL, "not agreed on");
    assert_eq!(client.ask(99, 0, 0, 4096), error::EINVAL);
    assert_eq!(client.ask(command::FLUSH, 0x8000, 0, 0), error::EINVAL);
    // The data of refused writes are skipped.
    for (offset, length, expected) in [(end, 4096, error::ENOSPC), (7, 100_000, error::EINVAL)] {
        client.request(command::WRITE, 0, offset, length);
        client.put(&vec![9; length as usize]);
        assert_eq!(client.simple(), expected);
    }
    client.request(command::WRITE, command_flag::FUA, 4096, 4096);
    client.put(&[5; 4096]);
    assert_eq!(client.simple(), 0);
    client.request(command::READ, 0, 0, 8192);
    assert_eq!(client.simple(), 0);
    let data = client.take(8192);
    assert!(data[..4096].iter().all(|&byte| byte == 0) && data[4096..].iter().all(|&byte| byte == 5));
    client.request(command::DISCONNECT, 0, 0, 0);
    assert!(client.is_closed());
    let mut client = Client::open(&server.socket, false);
    client.put(&[0; 28]);
    assert!(client.is_closed(), "no magic");
}

#[test]
fn structured_replies_and_block_status() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let front = NbdFront::open(config(&socket, MIB, 512)).unwrap().with_extents(Box::new(|offset, length, found| {
        assert!(offset + length <= MIB as u64);
        found.push(Extent { length: 4096, hole: true, zero: true });
        found.push(Extent { length: u64::MAX, hole: false, zero: false });
    }));
    let driver = Driver::start(front, MIB);
    driver.disk.lock().unwrap()[512] = 7;
    let mut client = Client::open(&socket, true);
    client.request(command::READ, command_flag::DONT_FRAGMENT, 512, 512);
    let (kind, payload) = client.chunk();
    assert_eq!((kind, payload.len(), payload[8]), (wire::chunk::OFFSET_DATA, 520, 7));
    assert_eq!(payload[..8], 512u64.to_be_bytes());
    client.request(command::READ, 0, MIB as u64, 512);
    let (kind, payload) = client.chunk();
    assert_eq!((kind, &payload[..4]), (wire::chunk::ERROR, &error::EINVAL.to_be_bytes()[..]));
    client.request(command::BLOCK_STATUS, 0, 0, 8192);
    let (kind, payload) = client.chunk();
    assert_eq!(kind, wire::chunk::BLOCK_STATUS);
    assert_eq!(payload, [0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 3, 0, 0, 16, 0, 0, 0, 0, 0]);
    client.request(command::BLOCK_STATUS, command_flag::ONE_EXTENT, 0, 8192);
    assert_eq!(client.chunk().1.len(), 12);
    assert_eq!(client.ask(command::TRIM, command_flag::FUA, 0, 4096), 0);
    assert_eq!(driver.seen.flushes.load(Ordering::SeqCst), 1, "a durable trim flushes");
}

#[test]
fn a_client_that_does_not_read_blocks_nobody_and_holds_little() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let front = NbdFront::open(config(&socket, 64 * MIB, 512)).unwrap();
    let held_max = Arc::new(AtomicUsize::new(0));
    let watched = Arc::clone(&held_max);
    let driver = Driver::start_watching(front, 64 * MIB, move |front| {
        watched.fetch_max(front.held_bytes(), Ordering::SeqCst);
    });
    let mut greedy = Client::open(&socket, false);
    greedy.0.set_nonblocking(true).unwrap();
    let header = RequestHeader { flags: 0, command: command::READ, cookie: 1, offset: 0, length: MIB as u32 }.encode();
    let mut asked = 0;
    while asked < 2000 && greedy.0.write_all(&header).is_ok() {
        asked += 1;
    }
    assert!(asked > 64, "the socket takes many requests");
    let mut polite = Client::open(&socket, false);
    for _ in 0..20 {
        polite.request(command::READ, 0, 0, 4096);
        assert_eq!(polite.simple(), 0);
        polite.take(4096);
    }
    let held = held_max.load(Ordering::SeqCst);
    assert!(held <= Limits::default().bytes + MIB + 4096, "{held} bytes held");
    // When it reads after all, everything comes.
    greedy.0.set_nonblocking(false).unwrap();
    let mut reply = vec![0; 16 + MIB];
    for _ in 0..asked.min(100) {
        greedy.0.read_exact(&mut reply).unwrap();
    }
    drop(greedy);
    drop(driver);
}

#[test]
fn a_lost_connection_leaves_its_requests_to_complete() {
    let server = server(MIB, 512);
    let seen = &server.driver.seen;
    seen.hold.store(true, Ordering::SeqCst);
    let mut client = Client::open(&server.socket, false);
    for block in 0..8 {
        client.request(command::WRITE, 0, block * 512, 512);
        client.put(&[block as u8 + 1; 512]);
        client.request(command::READ, 0, block * 512, 512);
    }
    // Half a write, never finished.
    client.request(command::WRITE, 0, 0, 65536);
    client.put(&[1; 100]);
    // Another connection sees that the first one's bytes were read before it goes.
    let mut second = Client::open(&server.socket, false);
    second.request(command::FLUSH, 0, 0, 0);
    client.0.shutdown(Shutdown::Both).unwrap();
    drop(client);
    seen.hold.store(false, Ordering::SeqCst);
    assert_eq!(second.simple(), 0);
    for block in 0..8 {
        second.request(command::READ, 0, block * 512, 512);
        assert_eq!(second.simple(), 0);
        assert_eq!(second.take(512), [block as u8 + 1; 512]);
    }
    assert_eq!(seen.writes.load(Ordering::SeqCst), 8);
}

#[test]
fn idle_handshakes_give_way_at_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let limits = Limits { connections: 2, ..Limits::default() };
    let driver = Driver::start(NbdFront::open(NbdConfig { limits, ..config(&socket, MIB, 512) }).unwrap(), MIB);
    let mut busy = Client::open(&socket, false);
    let mut idle = Client::connect(&socket);
    let mut next = Client::open(&socket, false);
    assert!(idle.is_closed());
    assert_eq!((busy.ask(command::FLUSH, 0, 0, 0), next.ask(command::FLUSH, 0, 0, 0)), (0, 0));
    let mut refused = UnixStream::connect(&socket).unwrap();
    assert_eq!(refused.read(&mut [0; 18]).unwrap(), 0);
    drop(driver);
}

/// The hang-up comes before the server finds that the client has asked for more than it may: nobody tells it again.
#[test]
fn connections_that_have_hung_up_free_their_places_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let limits = Limits { connections: 4, requests: 8, ..Limits::default() };
    let front = NbdFront::open(NbdConfig { limits, ..config(&socket, MIB, 512) }).unwrap();
    let left = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&left);
    let driver = Driver::start_watching(front, MIB, move |front: &mut NbdFront| {
        let mut clients = Vec::new();
        front.take_left(&mut clients);
        counter.fetch_add(clients.len(), Ordering::SeqCst);
    });
    let header = RequestHeader { flags: 0, command: command::READ, cookie: 0x77, offset: 0, length: 512 };
    for round in 1..=3 {
        driver.seen.hold.store(true, Ordering::SeqCst);
        let mut clients: Vec<Client> = (0..4).map(|_| Client::open(&socket, false)).collect();
        for client in &mut clients {
            client.put(&header.encode().repeat(100));
        }
        drop(clients);
        while left.load(Ordering::SeqCst) < 4 * round {
            std::thread::yield_now();
        }
        driver.seen.hold.store(false, Ordering::SeqCst);
        while driver.seen.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(Client::open(&socket, false).ask(command::FLUSH, 0, 0, 0), 0);
}

#[test]
fn one_user_cannot_take_every_place() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let limits = Limits { connections: 6, of_one: 4, ..Limits::default() };
    let loopback = "127.0.0.1:0".parse().unwrap();
    let front = NbdFront::open(NbdConfig { limits, tcp: Some(loopback), ..config(&socket, MIB, 512) }).unwrap();
    let address = front.tcp_address().unwrap();
    let driver = Driver::start(front, MIB);
    let mut greedy: Vec<Client> = (0..4).map(|_| Client::open(&socket, false)).collect();
    assert_eq!(UnixStream::connect(&socket).unwrap().read(&mut [0; 18]).unwrap(), 0, "refused");
    let mut other = Client::greet(std::net::TcpStream::connect(address).unwrap());
    other.go(false);
    assert_eq!(other.ask(command::FLUSH, 0, 0, 0), 0);
    // Its own connection without an export gives way to its next one, and no other's.
    drop(greedy.pop());
    while !greedy.is_empty() && UnixStream::connect(&socket).unwrap().read(&mut [0; 18]).unwrap() == 0 {
        std::thread::yield_now();
    }
    let mut waiting = Client::greet(std::net::TcpStream::connect(address).unwrap());
    let mut idle = Client::connect(&socket);
    let mut next = Client::open(&socket, false);
    assert!(idle.is_closed());
    assert_eq!(next.ask(command::FLUSH, 0, 0, 0), 0);
    waiting.go(false);
    assert_eq!(waiting.ask(command::FLUSH, 0, 0, 0), 0);
    drop(driver);
}

#[test]
fn names_and_options_have_a_longest_length() {
    let server = server(MIB, 512);
    let mut client = Client::connect(&server.socket);
    let named = |length: usize| [&(length as u32).to_be_bytes()[..], &vec![b'x'; length], &[0, 0]].concat();
    client.option(option::INFO, &named(4096));
    assert_eq!(client.option_reply().0, option_reply::ERROR_UNKNOWN, "as long as a name may be");
    client.option(option::INFO, &named(4097));
    assert_eq!(client.option_reply().0, option_reply::ERROR_INVALID);
    for length in [(16 << 10) + 1, 32 << 20] {
        client.option(option::INFO, &vec![0; length]);
        assert_eq!(client.option_reply().0, option_reply::ERROR_TOO_BIG, "skipped, and the next one is answered");
    }
    client.option(option::LIST, &[]);
    assert_eq!(client.option_reply().0, option_reply::SERVER);
    assert_eq!(client.option_reply().0, option_reply::ACK);
    client.put(b"IHAVEOPT\0\0\0\x06\x02\0\0\x01");
    assert!(client.is_closed(), "longer than what is skipped");
    let mut client = Client::connect(&server.socket);
    client.put(b"IHAVEOPT\0\0\0\x01\0\0\x40\x01");
    assert!(client.is_closed(), "no other answer is possible");
}

#[test]
fn requests_in_flight_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let limits = Limits { requests: 8, ..Limits::default() };
    let front = NbdFront::open(NbdConfig { limits, ..config(&socket, MIB, 512) }).unwrap();
    let driver = Driver::start(front, MIB);
    let seen = &driver.seen;
    seen.hold.store(true, Ordering::SeqCst);
    let mut client = Client::open(&socket, false);
    for _ in 0..100 {
        client.request(command::READ, 0, 0, 512);
    }
    // Another client is served meanwhile: what it asks for comes to the device.
    let mut other = Client::open(&socket, false);
    other.request(command::FLUSH, 0, 0, 0);
    while seen.waiting.load(Ordering::SeqCst) < 9 {
        std::thread::yield_now();
    }
    let mut third = Client::open(&socket, false);
    third.request(command::FLUSH, 0, 0, 0);
    while seen.waiting.load(Ordering::SeqCst) < 10 {
        std::thread::yield_now();
    }
    assert_eq!(seen.waiting.load(Ordering::SeqCst), 10, "eight of the first and one of each other");
    seen.hold.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(client.simple(), 0);
        client.take(512);
    }
    assert_eq!((other.simple(), third.simple()), (0, 0));
}

#[test]
fn places_to_listen() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("data.sock");
    let front = NbdFront::open(config(&socket, MIB, 512)).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let error = NbdFront::open(config(&socket, MIB, 512)).err().unwrap().to_string();
    assert!(error.contains("another process listens"), "{error}");
    drop(front);
    assert!(!socket.exists(), "the socket goes with its server");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    drop(NbdFront::open(config(&socket, MIB, 512)).unwrap());
    std::fs::write(&socket, "precious").unwrap();
    assert!(NbdFront::open(config(&socket, MIB, 512)).is_err(), "a file is not a stale socket");
    let tcp =
        |address: &str| NbdConfig { unix: None, tcp: Some(address.parse().unwrap()), ..config(&socket, MIB, 512) };
    let error = NbdFront::open(tcp("0.0.0.0:0")).err().unwrap().to_string();
    assert!(error.contains("neither encrypted nor authenticated"), "{error}");
    let front = NbdFront::open(tcp("127.0.0.1:0")).unwrap();
    let address = front.tcp_address().unwrap();
    assert_eq!(front.address(), format!("nbd://{address}"));
    let driver = Driver::start(front, MIB);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    drop(driver);
}
