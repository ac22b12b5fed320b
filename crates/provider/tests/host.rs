//! The provisioning service and its client: the contract through HTTP, every error both ways, and unauthenticated peers.

mod served;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use served::{Served, with_timeout};
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::service::is_private;
use surgetank_provider::service::secret::Secret;
use surgetank_provider::{
    Change, CreateVolume, Fault, Faulty, HostConfig, HostProvider, LocalConfig, LocalProvider, ManualClock, Provider,
    ProviderError, Tags, Verb, VolumeId, VolumeState,
};
use tempfile::TempDir;

/// Any port of this machine.
const ANY: &str = "127.0.0.1:0";

fn config(served: &Served) -> HostConfig {
    with_timeout(format!("http://{}", served.address), served.token_file())
}

/// Sends bytes as they are, with the token in place of `TOKEN`, and reads until the service hangs up.
fn raw(served: &Served, request: &str) -> String {
    let token = std::fs::read_to_string(served.token_file()).unwrap();
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // It may have answered and hung up before all of it is sent.
    let _ = stream.write_all(request.replace("TOKEN", token.trim()).as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// The local provider behind a service.
struct Remote {
    served: Served,
    faulty: Arc<Faulty<LocalProvider>>,
    clock: Arc<ManualClock>,
    _volumes: TempDir,
}

impl Remote {
    fn new(latency_ms: u64) -> Self {
        let volumes = TempDir::new().unwrap();
        let clock = Arc::new(ManualClock::at_ms(1_700_000_000_000));
        let latency = Span(Duration::from_millis(latency_ms));
        let config = LocalConfig {
            create_latency: latency,
            attach_latency: latency,
            detach_latency: latency,
            delete_latency: latency,
            ..LocalConfig::in_directory(volumes.path())
        };
        let local = LocalProvider::open(config, clock.clone()).unwrap();
        let faulty = Arc::new(Faulty::new(local, clock.clone()));
        Self { served: Served::start(faulty.clone(), ANY, None), faulty, clock, _volumes: volumes }
    }
}

impl Subject for Remote {
    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.served.client("http", None))
    }

    fn pass_time(&self) {
        self.clock.advance(Duration::from_millis(100));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(1))
    }

    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        self.faulty.script(Verb::Create, Fault::Fails);
        Some(self.open())
    }
}

fn request() -> CreateVolume {
    CreateVolume { tags: Tags::from([("k".to_owned(), "ü & = ? #%".to_owned())]), ..contract::request("t") }
}

#[test]
fn contract_through_the_service() {
    contract::run(&Remote::new(0));
}

#[test]
fn contract_through_the_service_with_latency() {
    contract::run(&Remote::new(1000));
}

#[test]
fn errors_arrive_as_they_were() {
    let directory = TempDir::new().unwrap();
    let clock = Arc::new(ManualClock::at_ms(0));
    let local = LocalProvider::open(LocalConfig::in_directory(directory.path()), clock.clone()).unwrap();
    let dies = ProviderError::Invalid("a provider that panics".to_owned());
    let observer = {
        let dies = Fault::Before(dies.clone());
        move |_, fault: &Fault| assert_ne!(*fault, dies)
    };
    let faulty = Arc::new(Faulty::new(local, clock).with_observer(Box::new(observer)));
    let served = Served::start(faulty.clone(), ANY, None);
    let client = served.client("http", None);
    let (volume, change) = client.create(&request()).unwrap();
    assert_eq!((&volume.tags, change), (&request().tags, Change::Changed));
    assert_eq!(client.list("k", "ü & = ? #%").unwrap(), std::slice::from_ref(&volume), "whatever a tag holds");
    let text = || "one sentence, with \"quotes\" and ü".to_owned();
    let state = VolumeState::Detaching;
    for error in [
        ProviderError::NotFound(volume.id.clone()),
        ProviderError::Quota(text()),
        ProviderError::Capacity(text()),
        ProviderError::AttachLimit(text()),
        ProviderError::Conflict { id: volume.id.clone(), state, reason: text() },
        ProviderError::Invalid(text()),
        ProviderError::Throttled { after: None, text: text() },
        ProviderError::Throttled { after: Some(Duration::ZERO), text: text() },
        ProviderError::Throttled { after: Some(Duration::from_secs(90)), text: text() },
        ProviderError::Transient(text()),
    ] {
        for verb in [Verb::Create, Verb::Attach, Verb::Detach, Verb::Delete, Verb::Describe, Verb::List, Verb::SetTag] {
            faulty.script(verb, Fault::Before(error.clone()));
        }
        assert_eq!(client.create(&request()).unwrap_err(), error);
        assert_eq!(client.attach(&volume.id).unwrap_err(), error);
        assert_eq!(client.detach(&volume.id).unwrap_err(), error);
        assert_eq!(client.delete(&volume.id).unwrap_err(), error);
        assert_eq!(client.describe(&volume.id).unwrap_err(), error);
        assert_eq!(client.list("k", "v").unwrap_err(), error);
        assert_eq!(client.set_tag(&volume.id, "k", None).unwrap_err(), error);
    }
    faulty.script(Verb::Describe, Fault::Before(ProviderError::NotFound(VolumeId("another".to_owned()))));
    let answer = client.describe(&volume.id).unwrap_err();
    assert!(matches!(answer, ProviderError::Transient(_)), "that another volume is gone says nothing of this one");
    faulty.script(Verb::Detach, Fault::Before(dies));
    let answer = client.detach(&volume.id).unwrap_err();
    assert!(matches!(&answer, ProviderError::Transient(text) if text.contains("see its log")), "{answer}");
    assert!(client.describe(&volume.id).is_ok(), "the service lives on");
}

#[test]
fn throttling_has_its_status_and_its_time_in_whole_seconds() {
    let remote = Remote::new(0);
    for (after, header) in [
        (None, None),
        (Some(Duration::from_millis(1)), Some("retry-after: 1\r\n")),
        (Some(Duration::from_millis(2001)), Some("retry-after: 3\r\n")),
    ] {
        let error = ProviderError::Throttled { after, text: "slower".to_owned() };
        remote.faulty.script(Verb::List, Fault::Before(error));
        let answer = raw(
            &remote.served,
            "GET /v1/volumes?key=k&value=v HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\n\r\n",
        );
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(answer.ends_with(r#"{"error":{"kind":"throttled","message":"slower"}}"#), "{answer}");
        assert_eq!(answer.contains("retry-after"), header.is_some(), "{answer}");
        assert!(header.is_none_or(|header| answer.contains(header)), "{answer}");
    }
}

/// Whatever stands before the service may have had too many requests, too.
#[test]
fn a_proxy_that_throttles_is_heeded() {
    for (header, after) in [
        ("Retry-After: 7\r\n", Some(Duration::from_secs(7))),
        ("Retry-After: Sat, 28 Nov 2026 09:00:00 GMT\r\n", None),
        ("Retry-After: -1\r\n", None),
        ("", None),
    ] {
        let listener = TcpListener::bind(ANY).unwrap();
        let directory = TempDir::new().unwrap();
        let token_file = directory.path().join("token");
        Secret::read_or_make(&token_file).unwrap();
        let client =
            HostProvider::open(with_timeout(format!("http://{}", listener.local_addr().unwrap()), token_file)).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let answer =
                format!("HTTP/1.1 429 Too Many Requests\r\n{header}Content-Length: 4\r\nConnection: close\r\n\r\nslow");
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let answer = client.describe(&VolumeId("vol-1".to_owned()));
        assert!(matches!(&answer, Err(ProviderError::Throttled { after: told, .. }) if *told == after), "{answer:?}");
        answering.join().unwrap();
    }
}

#[test]
fn nothing_is_told_without_the_token() {
    let remote = Remote::new(0);
    let created = remote.served.client("http", None).create(&request()).unwrap().0.id.0;
    for (given, route) in [
        ("", "GET /v1/volumes?key=k&value=v"),
        ("Authorization: Bearer wrong\r\n", "GET /v1/volumes?key=k&value=v"),
        ("Authorization: Basic TOKEN\r\n", "GET /v1/volumes?key=k&value=v"),
        ("Authorization: Bearer TOKENx\r\n", "DELETE /v1/volumes/CREATED"),
        ("", "DELETE /v1/volumes/CREATED"),
        ("", "GET /nowhere"),
    ] {
        let route = route.replace("CREATED", &created);
        let answer = raw(&remote.served, &format!("{route} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{given}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("unauthorized") && !answer.contains(&created), "{answer}");
    }
    let other = remote.served.directory.path().join("other");
    Secret::read_or_make(&other).unwrap();
    let client = HostProvider::open(HostConfig { token_file: other, ..config(&remote.served) }).unwrap();
    match client.describe(&VolumeId(created)) {
        Err(ProviderError::Invalid(text)) => assert!(text.contains("refuses the token"), "{text}"),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn odd_requests_are_refused_in_one_sentence() {
    let remote = Remote::new(0);
    let long = format!(
        "POST /v1/volumes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\nContent-Length: 70000\r\n\r\n{}",
        "x".repeat(70_000)
    );
    let post = |body: &str| {
        format!(
            "POST /v1/volumes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let plain =
        |line: &str| format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\n\r\n");
    for (sent, expected) in [
        (plain("GET /v1/nothing"), "there is no GET /v1/nothing"),
        (plain("PATCH /v1/volumes"), "there is no PATCH"),
        (plain("GET /v1/volumes"), "?key=KEY"),
        (plain("GET /v1/volumes?key=a&value=b&more=c"), "?key=KEY"),
        (post(""), "not what belongs here"),
        (post("[1, 2"), "not what belongs here"),
        (post("{\"token\": \"t\", \"volume_type\": \"fast\", \"size_bytes\": -1}"), "not what belongs here"),
        (post("{\"token\": \"t\", \"volume_type\": \"fast\", \"size_bytes\": 1, \"colour\": 1}"), "unknown field"),
        (long, "more than 65536 bytes"),
    ] {
        let answer = raw(&remote.served, &sent);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"invalid\""), "{answer}");
        assert!(answer.contains(expected), "{answer}");
    }
    // What is no HTTP at all ends the connection and nothing else.
    for sent in ["\0\0\0\0\r\n\r\n".to_owned(), "GET / HTTP/1.1\r\n".to_owned() + &"x".repeat(1 << 20) + "\r\n\r\n"] {
        let answer = raw(&remote.served, &sent);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    assert!(remote.served.client("http", None).list("k", "v").is_ok());
}

#[test]
fn whoever_else_answers_has_said_nothing_of_a_volume() {
    let directory = TempDir::new().unwrap();
    let token_file = directory.path().join("token");
    Secret::read_or_make(&token_file).unwrap();
    let id = VolumeId("vol-1".to_owned());
    for (answer, why) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nConnection: close\r\n\r\nnot", "is no provisioning service"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", "answers something else"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "is no provisioning service",
        ),
        ("", "does not answer"),
        ("nonsense\r\n\r\n", "does not answer"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let client = HostProvider::open(with_timeout(url, token_file.clone())).unwrap();
        for error in [client.describe(&id).unwrap_err(), client.delete(&id).unwrap_err()] {
            assert!(matches!(&error, ProviderError::Transient(text) if text.contains(why)), "{error}");
        }
        serving.join().unwrap();
    }
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    match HostProvider::open(with_timeout(format!("http://{gone}"), token_file)).unwrap().list("k", "v") {
        Err(ProviderError::Transient(text)) => assert!(text.contains("does not answer"), "{text}"),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn what_a_service_says_reaches_people_as_one_short_line() {
    let directory = TempDir::new().unwrap();
    let clock = Arc::new(ManualClock::at_ms(0));
    let local = LocalProvider::open(LocalConfig::in_directory(directory.path()), clock.clone()).unwrap();
    let faulty = Arc::new(Faulty::new(local, clock));
    let served = Served::start(faulty.clone(), ANY, None);
    let client = served.client("http", None);
    let odd = CreateVolume { tags: Tags::from([("k".to_owned(), "all is well\n".to_owned())]), ..request() };
    let id = client.create(&odd).unwrap().0.id;
    for error in [client.describe(&id).unwrap_err(), client.list("k", "all is well\n").unwrap_err()] {
        assert!(matches!(&error, ProviderError::Transient(text) if text.contains("signs that are none")), "{error}");
    }
    faulty.script(Verb::Attach, Fault::Before(ProviderError::Quota(format!("one\ntwo\x1b[2J{}", "x".repeat(1 << 20)))));
    let error = client.attach(&id).unwrap_err().to_string();
    assert!(error.contains("one two") && error.len() < 600 && !error.contains(char::is_control), "{error}");
}

#[test]
fn private_addresses() {
    for (address, private) in [
        ("127.0.0.1", true),
        ("10.0.2.2", true),
        ("192.168.122.1", true),
        ("169.254.1.1", true),
        ("::1", true),
        ("fe80::1", true),
        ("fd00::1", true),
        ("0.0.0.0", false),
        ("::", false),
        ("8.8.8.8", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(is_private(address.parse().unwrap()), private, "{address}");
    }
}
