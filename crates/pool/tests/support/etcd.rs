//! An etcd of the test's own, and a proxy before it that loses answers.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use surgetank_pool::meta::Etcd;
use surgetank_pool::meta::etcd::Config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The program that `scripts/setup test` builds, or what `SURGETANK_ETCD` names. `None` is told: the test is left out.
#[allow(clippy::print_stderr, reason = "tests say what they skip")]
fn program() -> Option<PathBuf> {
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin/etcd"));
    let program = std::env::var_os("SURGETANK_ETCD").map_or(built, PathBuf::from);
    if program.exists() {
        return Some(program);
    }
    eprintln!("skipped: there is no etcd at {}: `scripts/setup test` builds it where there is Go", program.display());
    None
}

/// A single member, on loopback, with a temporary directory.
pub struct Server {
    program: PathBuf,
    directory: TempDir,
    options: Vec<String>,
    child: Option<Child>,
    pub address: SocketAddr,
    peers: SocketAddr,
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a port is free")
}

impl Server {
    /// Runs one with more options; `None`: there is no program.
    pub fn start(options: &[&str]) -> Option<Self> {
        let mut server = Self {
            program: program()?,
            directory: tempfile::tempdir().expect("a directory"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            child: None,
            address: free(),
            peers: free(),
        };
        server.begin();
        Some(server)
    }

    /// Runs it again, at the same address and with what it has kept.
    pub fn begin(&mut self) {
        let scheme = if self.options.iter().any(|option| option == "--cert-file") { "https" } else { "http" };
        let (clients, peers) = (format!("{scheme}://{}", self.address), format!("http://{}", self.peers));
        let child = Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.directory.path())
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"])
            // A lease lasts for 1.5 times the time of an election at least.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        self.child = Some(child);
    }

    /// It ends as a process does whose machine has lost its power, but for what the system still writes.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// From its next beginning on it has these options.
    pub fn set(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("it is signalled");
    }

    /// It does nothing until it is resumed, and nobody sees that it is gone.
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// A store in it.
    pub async fn store(&self, pool: &str) -> Etcd {
        connect(self.address, pool).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn config(address: SocketAddr, pool: &str) -> Config {
    Config::parse(&format!("etcd://{address}/{pool}")).expect("an address")
}

/// Connects, also while it is starting.
pub async fn connect(address: SocketAddr, pool: &str) -> Etcd {
    let config = config(address, pool);
    for _ in 0..300 {
        match Etcd::connect(&config).await {
            Ok(store) => return store,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Etcd::connect(&config).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Passes connections on, and cuts all of them when a request has been passed on and its answer has not.
pub struct Proxy {
    pub address: SocketAddr,
    /// Answers are lost from now on, until connections are cut.
    deaf: Arc<AtomicBool>,
    cut: Arc<Notify>,
    pub cuts: Arc<AtomicU64>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (deaf, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let proxy = Self { address, deaf: Arc::clone(&deaf), cut: Arc::clone(&cut), cuts: Arc::default() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (deaf, cut) = (Arc::clone(&deaf), Arc::clone(&cut));
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let cut = cut.notified();
                    tokio::select! {
                        () = pass(client, server, &deaf) => {}
                        () = cut => {}
                    }
                });
            }
        });
        proxy
    }

    /// The answers of the next moment are lost, and then the connections.
    pub async fn lose(&self, moment: Duration) {
        self.deaf.store(true, Ordering::SeqCst);
        tokio::time::sleep(moment).await;
        self.cut.notify_waiters();
        self.deaf.store(false, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, server: TcpStream, deaf: &AtomicBool) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            // What is lost in the middle of a connection is followed by the cut alone.
            if deaf.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}
