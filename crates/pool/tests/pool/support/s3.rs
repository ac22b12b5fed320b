//! An object store that speaks S3 (SeaweedFS), on loopback, for all tests of this process; and what stands before it and disturbs it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use surgetank_pool::bucket::Options;
use tempfile::TempDir;

/// What is waited for at most.
const LONG: Duration = Duration::from_secs(60);

/// The program that `scripts/setup test` installs, or what `SURGETANK_WEED` names. `None` is told: the test is left out.
#[allow(clippy::print_stderr, reason = "tests say what they skip")]
fn program() -> Option<PathBuf> {
    let installed = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/s3-python/bin/weed"));
    let program = std::env::var_os("SURGETANK_WEED").map_or(installed, PathBuf::from);
    if program.exists() {
        return Some(program);
    }
    eprintln!("skipped: there is no object store at {}: `scripts/setup test` installs it", program.display());
    None
}

/// See the module.
pub struct Store {
    address: SocketAddr,
    _directory: TempDir,
    /// As long as this process has its standard input the store runs.
    _child: Child,
}

static STORE: OnceLock<Option<Store>> = OnceLock::new();
static BUCKETS: AtomicU64 = AtomicU64::new(0);

/// Who may do everything, and those who show nothing: the tests themselves.
const IDENTITIES: &str = r#"{"identities": [
    {"name": "pool", "credentials": [{"accessKey": "pool", "secretKey": "secret"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
    {"name": "anonymous", "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}"#;

fn start() -> Option<Store> {
    let program = program()?;
    let directory = tempfile::tempdir().expect("a directory");
    let identities = directory.path().join("identities.json");
    std::fs::write(&identities, IDENTITIES).expect("it is written");
    let bound: Vec<TcpListener> =
        (0..8).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free")).collect();
    let ports: Vec<u16> = bound.iter().map(|bound| bound.local_addr().expect("it has one").port()).collect();
    drop(bound);
    let names = [
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    ];
    let mut command = Command::new("sh");
    // It ends with this process, however that ends.
    command.args(["-c", "\"$@\" & read _; kill -9 $!; wait", "sh"]).arg(&program).args(["-logtostderr=true", "server"]);
    for (name, port) in names.iter().zip(&ports) {
        command.arg(format!("-{name}={port}"));
    }
    let log = std::fs::File::create(directory.path().join("log")).expect("a log");
    command
        .arg(format!("-dir={}", directory.path().display()))
        .args(["-ip=127.0.0.1", "-filer", "-s3", "-master.volumeSizeLimitMB=256", "-volume.max=2000"])
        .args(["-s3.autoCreateBucket=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"])
        .arg(format!("-s3.config={}", identities.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log);
    let child = command.spawn().expect("it starts");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[6]));
    let store = Store { address, _child: child, _directory: directory };
    let until = Instant::now() + LONG;
    // Volumes are there a while after it answers.
    while http(address, "PUT", "/ready", b"").is_none_or(|(status, ..)| status >= 300)
        || http(address, "PUT", "/ready/object", b"content").is_none_or(|(status, ..)| status >= 300)
    {
        let log = std::fs::read_to_string(store._directory.path().join("log")).unwrap_or_default();
        assert!(Instant::now() < until, "the object store does not answer:\n{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Some(store)
}

/// What a server answers: its status, its headers, its body. `None`: nothing.
pub type Answer = (u16, BTreeMap<String, String>, Vec<u8>);

/// One request without a signature.
pub fn http(at: SocketAddr, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {at}\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Some((status, lines.filter_map(header).collect(), all[end + 4..].to_vec()))
}

/// A bucket of a test's own.
#[derive(Clone)]
pub struct TestBucket {
    store: SocketAddr,
    pub name: String,
    /// Where the pool finds the store.
    pub at: SocketAddr,
}

impl TestBucket {
    /// `None`: there is no store.
    pub fn make() -> Option<Self> {
        let bucket = Self::name_alone()?;
        assert_eq!(http(bucket.store, "PUT", &format!("/{}", bucket.name), b"").unwrap().0, 200);
        Some(bucket)
    }

    /// One that is not there.
    pub fn name_alone() -> Option<Self> {
        let store = STORE.get_or_init(start).as_ref()?.address;
        let name = format!("test{}", BUCKETS.fetch_add(1, Ordering::Relaxed));
        Some(Self { store, name, at: store })
    }

    /// The same behind something that disturbs it.
    pub fn behind(mut self, disturbing: &Disturbing) -> Self {
        self.at = disturbing.address;
        self
    }

    /// Where the store itself is.
    pub fn store(&self) -> SocketAddr {
        self.store
    }

    /// How managers reach it.
    pub fn options(&self) -> Options {
        let variables = self.variables();
        Options::of(&variables.each_ref().map(|(name, value)| (*name, value.as_str())))
    }

    /// The same in their environment.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.at)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "pool".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    }

    /// The target below a prefix.
    pub fn target(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}", self.name)
    }

    pub fn put(&self, key: &str, content: &[u8]) {
        let (status, ..) = http(self.store, "PUT", &format!("/{}/{key}", self.name), content).unwrap();
        assert_eq!(status, 200, "{key}");
    }

    pub fn delete(&self, key: &str) {
        let (status, ..) = http(self.store, "DELETE", &format!("/{}/{key}", self.name), b"").unwrap();
        assert!(status < 300, "{key}");
    }

    /// An object's headers and content.
    pub fn get(&self, key: &str) -> Option<(BTreeMap<String, String>, Vec<u8>)> {
        let (status, headers, body) = http(self.store, "GET", &format!("/{}/{key}", self.name), b"").unwrap();
        (status == 200).then_some((headers, body))
    }

    /// All keys, without the pool's own.
    pub fn keys(&self) -> Vec<String> {
        let (status, _, body) = http(self.store, "GET", &format!("/{}?list-type=2", self.name), b"").unwrap();
        assert_eq!(status, 200);
        let mut keys = all(&String::from_utf8_lossy(&body), "Key");
        keys.retain(|key| !key.contains(".surgetank"));
        keys
    }

    /// What the pool has there beside the objects: records of uploads, and the manifest.
    pub fn aside(&self) -> Vec<String> {
        let (status, _, body) = http(self.store, "GET", &format!("/{}?list-type=2", self.name), b"").unwrap();
        assert_eq!(status, 200);
        let mut keys = all(&String::from_utf8_lossy(&body), "Key");
        keys.retain(|key| key.contains(".surgetank/"));
        keys
    }

    /// Uploads that are under way: the keys that they are to have.
    pub fn uploads(&self) -> Vec<String> {
        let (status, _, body) = http(self.store, "GET", &format!("/{}?uploads", self.name), b"").unwrap();
        assert_eq!(status, 200);
        let body = String::from_utf8_lossy(&body).into_owned();
        body.split("<Upload>").skip(1).flat_map(|upload| all(upload, "Key")).collect()
    }
}

fn all(text: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    text.split(&open).skip(1).filter_map(|rest| rest.split(&close).next()).map(str::to_owned).collect()
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    Pass,
    /// It passes after this time.
    Slow(Duration),
    /// It does not reach the store, and this is answered.
    Answer(u16, &'static str),
    /// It does not reach the store, and the connection ends.
    Cut,
    /// It reaches the store, and nobody hears of the answer.
    Unheard,
    /// It reaches the store, and this is answered.
    DoneBut(u16, &'static str),
    /// It passes, and what is said of the length is one digit shorter.
    Shorter,
}

type Rule = dyn Fn(&str) -> Verdict + Send + Sync;

/// Stands before the store. What it does follows from the first line of each request.
pub struct Disturbing {
    pub address: SocketAddr,
    rule: Arc<Mutex<Arc<Rule>>>,
}

impl Disturbing {
    /// Everything passes at first. `None`: there is no store.
    pub fn start() -> Option<Self> {
        let store = STORE.get_or_init(start).as_ref()?.address;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let rule: Arc<Mutex<Arc<Rule>>> = Arc::new(Mutex::new(Arc::new(|_: &str| Verdict::Pass)));
        let now = Arc::clone(&rule);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let now = Arc::clone(&now);
                std::thread::spawn(move || {
                    let _ = serve(stream, store, &now);
                });
            }
        });
        Some(Self { address, rule })
    }

    /// From now on.
    pub fn rule(&self, rule: impl Fn(&str) -> Verdict + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Arc::new(rule);
    }

    /// From now on everything passes.
    pub fn pass(&self) {
        self.rule(|_| Verdict::Pass);
    }
}

/// Serves the one request of a connection.
fn serve(mut stream: TcpStream, store: SocketAddr, rule: &Mutex<Arc<Rule>>) -> std::io::Result<()> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let end = loop {
        if let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => all.extend_from_slice(&buffer[..read]),
        }
    };
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while all.len() < end + 4 + length.unwrap_or(0) {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => all.extend_from_slice(&buffer[..read]),
        }
    }
    let first = head.lines().next().unwrap_or_default().to_owned();
    let rule = Arc::clone(&rule.lock().unwrap());
    let verdict = rule(&first);
    match verdict {
        Verdict::Cut => return stream.shutdown(Shutdown::Both),
        Verdict::Answer(status, body) => return answer(&mut stream, status, body),
        Verdict::Slow(time) => std::thread::sleep(time),
        Verdict::Pass | Verdict::Unheard | Verdict::DoneBut(..) | Verdict::Shorter => {}
    }
    let mut upstream = TcpStream::connect(store)?;
    // Headers that are signed stay as they are.
    upstream.write_all(&all[..end])?;
    upstream.write_all(b"\r\nConnection: close")?;
    upstream.write_all(&all[end..])?;
    let mut answered = Vec::new();
    upstream.read_to_end(&mut answered)?;
    match verdict {
        Verdict::Unheard => {}
        Verdict::DoneBut(status, body) => answer(&mut stream, status, body)?,
        Verdict::Shorter => stream.write_all(shorter(&answered).as_bytes())?,
        _ => stream.write_all(&answered)?,
    }
    stream.shutdown(Shutdown::Both)
}

/// An answer without a body, of another length.
fn shorter(answered: &[u8]) -> String {
    let text = String::from_utf8_lossy(answered);
    let of = |line: &str| match line.to_ascii_lowercase().starts_with("content-length:") {
        true => line[..line.len() - 1].to_owned(),
        false => line.to_owned(),
    };
    text.split("\r\n").map(of).collect::<Vec<_>>().join("\r\n")
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
