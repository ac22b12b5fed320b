//! An etcd of a test's own, on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

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

/// A member, on loopback, with a temporary directory.
pub struct Server {
    program: PathBuf,
    directory: TempDir,
    options: Vec<String>,
    child: Option<Child>,
    /// Where clients reach it.
    pub address: SocketAddr,
    /// Where it listens for other members, and where those reach it.
    pub peers: SocketAddr,
    advertised: SocketAddr,
    name: String,
    /// All members, as etcd has them written.
    members: String,
}

fn free(at: Ipv4Addr) -> SocketAddr {
    TcpListener::bind((at, 0)).and_then(|bound| bound.local_addr()).expect("a port is free")
}

/// An address of loopback that no other process has: nobody takes a port there while a member does not run.
fn own() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + high % 0x7f, middle, low)
}

impl Server {
    /// Runs one with more options; `None`: there is no program.
    pub fn start(options: &[&str]) -> Option<Self> {
        let mut server = Self::idle(options)?;
        server.begin();
        Some(server)
    }

    /// One that does not run yet.
    pub fn idle(options: &[&str]) -> Option<Self> {
        let peers = free(own());
        let mut server = Self::new(0, &[peers], options)?;
        server.peers = peers;
        Some(server)
    }

    /// The member of this number, of those that reach each other there. It does not run yet.
    pub fn new(number: usize, members: &[SocketAddr], options: &[&str]) -> Option<Self> {
        let member = |(number, at)| format!("member{number}=http://{at}");
        // Certificates name that address alone.
        let address = if options.contains(&"--cert-file") { Ipv4Addr::LOCALHOST } else { own() };
        Some(Self {
            program: program()?,
            directory: tempfile::tempdir().expect("a directory"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            child: None,
            address: free(address),
            peers: free(own()),
            advertised: members[number],
            name: format!("member{number}"),
            members: members.iter().enumerate().map(member).collect::<Vec<_>>().join(","),
        })
    }

    /// Runs it again, at the same address and with what it has kept.
    pub fn begin(&mut self) {
        let scheme = if self.options.iter().any(|option| option == "--cert-file") { "https" } else { "http" };
        let (clients, peers) = (format!("{scheme}://{}", self.address), format!("http://{}", self.peers));
        let advertised = format!("http://{}", self.advertised);
        let child = Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.directory.path())
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &advertised])
            .args(["--name", &self.name, "--initial-cluster", &self.members, "--log-level", "error"])
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

    /// Goes on.
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
