//! NBD under TLS: clients with certificates are served, all others are refused, and none of them hurts another.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use front_support::client::Client;
use front_support::pki::{Authority, Validity};
use front_support::server::{Server, client_config};
use front_support::{has, have, run, try_run};
use rcgen::ExtendedKeyUsagePurpose as Usage;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use surgetank_device::front::nbd::{Credentials, Limits, NbdConfig, NbdFront};
use surgetank_device::front::{Export, Front};
use surgetank_nbd::wire::{command, error, option, option_reply};

const MIB: usize = 1 << 20;

#[test]
fn clients_with_certificates_are_served() {
    let authority = Authority::new("ours");
    let client = authority.good_client();
    let server = Server::start(&authority.server(), 16 * MIB, Limits::default());
    server.assert_serves(&client);
    let mut secured = server.secured(&client);
    secured.option(option::STARTTLS, &[]);
    assert_eq!(secured.option_reply().0, option_reply::ERROR_INVALID, "once is enough");
    secured.go(true);
    // Larger than every buffer on the way, in both directions at once.
    let data: Vec<u8> = (0..4 * MIB as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    for turn in 0..4 {
        secured.request(command::WRITE, 0, 0, data.len() as u32);
        secured.put(&data);
        if turn > 0 {
            let (kind, payload) = secured.chunk();
            assert!(kind == 1 && payload[8..] == data, "what was read");
        }
        assert_eq!(secured.simple(), 0);
        secured.request(command::READ, 0, 0, data.len() as u32);
    }
    assert!(secured.chunk().1[8..] == data);
    assert_eq!(secured.ask(command::FLUSH, 0, 0, 0), 0);
    assert_eq!(secured.ask(command::TRIM, 0, 1, 512), error::EINVAL);
    secured.request(command::DISCONNECT, 0, 0, 0);
    let mut rest = Vec::new();
    assert_eq!(secured.0.read_to_end(&mut rest).unwrap(), 0, "a proper farewell, or this would be an error");
}

#[test]
fn libnbd_and_qemu_speak_tls_with_us() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    let authority = Authority::new("ours");
    let client = authority.good_client();
    let server = Server::start(&authority.server(), 32 * MIB, Limits::default());
    let uri = server.uri(&client);
    let info = run("nbdinfo", &["--json", &uri]);
    assert!(info.contains("\"TLS\": true") && info.contains("\"export-size\": 33554432"), "{info}");
    assert!(run("nbdinfo", &["--list", &uri]).contains("export=\"data\""));
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let bytes: Vec<u8> =
        (0..32 * MIB as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    std::fs::write(&source, &bytes).unwrap();
    run("nbdcopy", &["--flush", "--connections=4", source.to_str().unwrap(), &uri]);
    assert!(*server.driver.disk.lock().unwrap() == bytes);
    run("nbdcopy", &["--connections=4", &uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == bytes);
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", client.display());
    let (host, port) = (server.address.ip(), server.address.port());
    let image = format!("driver=nbd,host={host},port={port},export=data,tls-creds=tls0");
    let info = run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
    assert!(info.contains("virtual size: 32 MiB"), "{info}");
    let output = run(
        "qemu-io",
        &[
            "--object",
            &object,
            "--image-opts",
            &image,
            "-c",
            "write -P 7 1M 3M",
            "-c",
            "write -f -P 8 512 512",
            "-c",
            "read -P 7 1M 3M",
            "-c",
            "read -P 8 512 512",
            "-c",
            "flush",
        ],
    );
    assert!(!output.contains("failed") && !output.contains("error"), "{output}");
    assert_eq!(server.driver.disk.lock().unwrap()[MIB..4 * MIB], vec![7; 3 * MIB]);
}

#[test]
fn clients_that_cannot_prove_who_they_are_are_refused() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let credentials = ours.server();
    ours.revoke(&credentials, 66);
    let good = ours.good_client();
    let server = Server::start(&credentials, MIB, Limits::default());
    // Of another authority, but trusting ours: else it is the client who leaves.
    let foreign = theirs.good_client();
    std::fs::copy(good.join("ca-cert.pem"), foreign.join("ca-cert.pem")).unwrap();
    let refused = [
        ("no certificate", ours.nobody()),
        ("another authority", foreign),
        ("expired", ours.client(2, Validity::Past, Usage::ClientAuth)),
        ("not valid yet", ours.client(3, Validity::Future, Usage::ClientAuth)),
        ("a server's", ours.client(4, Validity::Now, Usage::ServerAuth)),
        ("revoked", ours.client(66, Validity::Now, Usage::ClientAuth)),
    ];
    for (what, directory) in refused {
        let refusal = server.refusal(&directory);
        assert!(refusal.contains("alert"), "{what}: {refusal}");
        if has("nbdinfo") {
            assert!(!try_run("nbdinfo", &[&server.uri(&directory)]).status.success(), "{what}");
        }
        server.assert_serves(&good);
    }
    // A client that does not trust the server goes by itself.
    let mut client = server.secured(&theirs.nobody());
    assert!(client.0.flush().is_err() && client.0.write_all(b"x").is_err());
    server.assert_serves(&good);
}

#[test]
fn nothing_is_served_in_the_clear_where_tls_is_configured() {
    let authority = Authority::new("ours");
    let good = authority.good_client();
    let server = Server::start(&authority.server(), MIB, Limits::default());
    let mut client = server.plain();
    for option in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, option::SET_META_CONTEXT, 99] {
        client.option(option, b"\0\0\0\x04data\0\0");
        assert_eq!(client.option_reply().0, option_reply::ERROR_TLS_REQUIRED, "option {option}");
    }
    client.option(option::STARTTLS, b"x");
    assert_eq!(client.option_reply().0, option_reply::ERROR_INVALID);
    client.option(option::ABORT, &[]);
    assert_eq!(client.option_reply().0, option_reply::ACK);
    assert!(client.is_closed());
    let mut client = server.plain();
    client.option(option::EXPORT_NAME, b"data");
    assert!(client.is_closed(), "this option can only be answered with the export");
    if has("nbdinfo") {
        let plain = try_run("nbdinfo", &[&format!("nbd://{}", server.address)]);
        assert!(!plain.status.success());
    }
    // The Unix socket has permissions instead.
    let mut unix = Client::open(&server.socket, false);
    assert_eq!(unix.ask(command::FLUSH, 0, 0, 0), 0);
    unix = Client::connect(&server.socket);
    unix.option(option::STARTTLS, &[]);
    assert_eq!(unix.option_reply().0, option_reply::ERROR_UNSUPPORTED);
    server.assert_serves(&good);
}

#[test]
fn words_slipped_in_before_tls_end_the_connection() {
    let authority = Authority::new("ours");
    let good = authority.good_client();
    let server = Server::start(&authority.server(), MIB, Limits::default());
    let mut client = server.plain();
    let mut bytes = Vec::new();
    for option in [option::STARTTLS, option::LIST] {
        bytes.extend(b"IHAVEOPT");
        bytes.extend(option.to_be_bytes());
        bytes.extend(0u32.to_be_bytes());
    }
    client.put(&bytes);
    // Were they kept, their answer would come under TLS, as if the client had asked for it there.
    let mut stream = client.0;
    if stream.read_exact(&mut [0; 20]).is_ok() {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(client_config(&good), name).unwrap();
        let answer = StreamOwned::new(session, stream).read(&mut [0; 64]);
        assert!(!matches!(answer, Ok(1..)), "{answer:?}");
    }
    server.assert_serves(&good);
}

#[test]
fn noise_instead_of_tls_ends_the_connection() {
    let authority = Authority::new("ours");
    let good = authority.good_client();
    let server = Server::start(&authority.server(), MIB, Limits::default());
    // A real first message, to be cut and bent.
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(client_config(&good), name).unwrap().write_tls(&mut hello).unwrap();
    let mut word = 1u64;
    let mut random = |below: usize| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as usize % below
    };
    for turn in 0..64 {
        let mut bytes = if turn % 4 == 0 { (0..300).map(|_| random(256) as u8).collect() } else { hello.clone() };
        for _ in 0..turn % 4 * 3 {
            let place = random(bytes.len());
            bytes[place] = random(256) as u8;
        }
        bytes.truncate(bytes.len() - random(3) * random(bytes.len()) / 3);
        let mut stream = server.allowed();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The server's flight, an alert, or nothing; but an end.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Records without end that carry nothing.
    let mut stream = server.allowed();
    let empty = [0x17, 3, 3, 0, 0].repeat(10_000);
    let _ = stream.write_all(&empty);
    let _ = stream.read_to_end(&mut Vec::new());
    server.assert_serves(&good);
}

#[test]
fn a_client_that_stalls_in_its_handshake_holds_nobody_up() {
    let authority = Authority::new("ours");
    let good = authority.good_client();
    let limits = Limits { handshake: Duration::from_millis(1500), ..Limits::default() };
    let server = Server::start(&authority.server(), MIB, limits);
    let mut busy = server.secured(&good);
    busy.go(false);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(client_config(&good), name).unwrap().write_tls(&mut hello).unwrap();
    // Silent before TLS, in the midst of its first message, after it, and after TLS.
    let silent = server.plain();
    let mut half = server.allowed();
    half.write_all(&hello[..hello.len() / 2]).unwrap();
    let mut whole = server.allowed();
    whole.write_all(&hello).unwrap();
    let mut undecided = server.secured(&good);
    undecided.option(option::LIST, &[]);
    assert_eq!(undecided.option_reply().0, option_reply::SERVER);
    let unix = Client::connect(&server.socket);
    // Each is shut out in the end, while the others are served.
    for mut stream in [silent.0, half, whole] {
        server.assert_serves(&good);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(undecided.option_reply().0, option_reply::ACK);
    assert_eq!(undecided.0.read(&mut [0]).unwrap(), 0);
    let mut unix = unix;
    assert!(unix.is_closed());
    assert_eq!(busy.ask(command::FLUSH, 0, 0, 0), 0, "who has chosen may be silent for as long as it likes");
    assert_eq!(server.driver.seen.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_client_that_does_not_read_holds_little_under_tls() {
    let authority = Authority::new("ours");
    let good = authority.good_client();
    let server = Server::start(&authority.server(), 64 * MIB, Limits::default());
    let mut greedy = server.secured(&good);
    greedy.go(false);
    // Few bytes of requests for many bytes of data; the sockets take them all.
    let asked = 100;
    for _ in 0..asked {
        greedy.request(command::READ, 0, 0, MIB as u32);
    }
    for _ in 0..20 {
        server.assert_serves(&good);
    }
    let held = server.held_max.load(Ordering::SeqCst);
    assert!(held <= Limits::default().bytes + MIB + 4096, "{held} bytes held");
    for _ in 0..asked {
        assert_eq!(greedy.simple(), 0);
        greedy.take(MIB);
    }
}

#[test]
fn credentials_that_do_not_do_are_refused_in_one_sentence() {
    let authority = Authority::new("ours");
    let directory = authority.server();
    Credentials::load(&directory).unwrap();
    let key = directory.join("server-key.pem");
    let secret = std::fs::read_to_string(&key).unwrap();
    let body = secret.lines().nth(1).unwrap().to_owned();
    let refusal = || {
        let error = Credentials::load(&directory).unwrap_err().to_string();
        assert!(!error.contains(&body[..8]) && !error.contains('\n'), "{error}");
        error
    };
    for mode in [0o640, 0o604, 0o644, 0o660] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = refusal();
        assert!(error.contains("can be read by others") && error.contains("chmod 600"), "{error}");
    }
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
    let credentials = Credentials::load(&directory).unwrap();
    let shown = format!("{credentials:?}");
    assert!(!shown.contains(&body[..8]) && !shown.contains("PRIVATE"), "{shown}");
    for broken in [secret.replace("END", "DNE"), body.clone(), String::new(), secret.replace(&body, "AAAA")] {
        std::fs::write(&key, broken).unwrap();
        let error = refusal();
        assert!(error.contains("server-key.pem") || error.contains("server-cert.pem"), "{error}");
    }
    std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(refusal().contains("server-cert.pem"), "the key of another certificate");
    std::fs::write(&key, &secret).unwrap();
    for file in ["server-cert.pem", "ca-cert.pem"] {
        let text = std::fs::read(directory.join(file)).unwrap();
        for broken in [&b""[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(directory.join(file), broken).unwrap();
            assert!(refusal().contains(".pem"));
        }
        std::fs::remove_file(directory.join(file)).unwrap();
        assert!(refusal().contains(file));
        std::fs::write(directory.join(file), text).unwrap();
    }
    std::fs::write(directory.join("ca-crl.pem"), "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").unwrap();
    assert!(refusal().contains(".pem"), "a list that cannot be read is not no list");
    std::fs::remove_file(directory.join("ca-crl.pem")).unwrap();
    Credentials::load(&directory).unwrap();
}

#[test]
fn other_addresses_than_loopback_are_served_under_tls_alone() {
    let authority = Authority::new("ours");
    let config = |tls| NbdConfig {
        export: Export { name: "data".into(), size: MIB as u64, logical_block: 512 },
        unix: None,
        tcp: Some("0.0.0.0:0".parse().unwrap()),
        tls,
        limits: Limits::default(),
    };
    let error = NbdFront::open(config(None)).err().unwrap().to_string();
    assert!(error.contains("neither encrypted nor authenticated"), "{error}");
    let front = NbdFront::open(config(Some(Credentials::load(&authority.server()).unwrap()))).unwrap();
    assert!(front.address().starts_with("nbds://0.0.0.0:"), "{}", front.address());
}
