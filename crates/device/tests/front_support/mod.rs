//! A thread that serves a front from memory, as a daemon's shard would from an engine.

pub mod client;
pub mod pki;
pub mod server;

use std::collections::VecDeque;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use surgetank_device::front::{Front, Submission};
use surgetank_model::Operation;

/// What the driver saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub flushes: AtomicU64,
    pub discarded: AtomicU64,
    pub zeroed: AtomicU64,
    pub writes: AtomicU64,
    /// Writes and zeroings that carried FUA.
    pub durable: AtomicU64,
    /// What came, in its order.
    pub operations: Mutex<Vec<Operation>>,
    /// Requests that wait.
    pub waiting: AtomicU64,
    /// Requests wait while this is set.
    pub hold: AtomicBool,
    stop: AtomicBool,
}

/// A running driver. Dropping it stops the thread and drops the front.
pub struct Driver {
    pub seen: Arc<Seen>,
    pub disk: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub fn start(front: impl Front + 'static, size: usize) -> Self {
        Self::start_watching(front, size, |_| {})
    }

    /// `watch` sees the front after every turn.
    pub fn start_watching<F: Front + 'static>(
        front: F,
        size: usize,
        watch: impl FnMut(&mut F) + Send + 'static,
    ) -> Self {
        let seen = Arc::new(Seen::default());
        let disk = Arc::new(Mutex::new(vec![0u8; size]));
        let (thread_seen, thread_disk) = (Arc::clone(&seen), Arc::clone(&disk));
        let thread = std::thread::spawn(move || serve(front, &thread_seen, &thread_disk, watch));
        Self { seen, disk, thread: Some(thread) }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(std::thread::panicking() || joined.is_ok(), "the driver panicked");
        }
    }
}

fn serve<F: Front>(mut front: F, seen: &Seen, disk: &Mutex<Vec<u8>>, mut watch: impl FnMut(&mut F)) {
    let mut arrived = Vec::new();
    let mut waiting: VecDeque<Submission> = VecDeque::new();
    while !seen.stop.load(Ordering::SeqCst) {
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(front.descriptor(), PollFlags::IN)], Some(&pause));
        front.receive(64, &mut arrived);
        waiting.extend(arrived.drain(..));
        seen.waiting.store(waiting.len() as u64, Ordering::SeqCst);
        if !seen.hold.load(Ordering::SeqCst) {
            let mut disk = disk.lock().unwrap();
            for mut submission in waiting.drain(..) {
                let result = apply(&mut submission, &mut disk, seen);
                front.reply(submission.token, result, submission.buffer);
            }
        }
        front.flush();
        watch(&mut front);
    }
}

fn apply(submission: &mut Submission, disk: &mut [u8], seen: &Seen) -> Result<(), i32> {
    let start = submission.offset as usize;
    let range = start..start + submission.length as usize;
    seen.operations.lock().unwrap().push(submission.operation);
    if let Operation::Write { fua: true } | Operation::WriteZeroes { fua: true } = submission.operation {
        seen.durable.fetch_add(1, Ordering::SeqCst);
    }
    match submission.operation {
        Operation::Flush => {
            seen.flushes.fetch_add(1, Ordering::SeqCst);
        }
        Operation::Read => submission.buffer.as_mut().unwrap().unique().unwrap().copy_from_slice(&disk[range]),
        Operation::Write { .. } => {
            seen.writes.fetch_add(1, Ordering::SeqCst);
            disk[range].copy_from_slice(submission.buffer.as_mut().unwrap().unique().unwrap());
        }
        Operation::Discard => {
            seen.discarded.fetch_add(submission.length, Ordering::SeqCst);
            disk[range].fill(0);
        }
        Operation::WriteZeroes { .. } => {
            seen.zeroed.fetch_add(submission.length, Ordering::SeqCst);
            disk[range].fill(0);
        }
    }
    Ok(())
}

/// Whether a program is installed; prints what is skipped if not.
pub fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|dir| dir.join(program).is_file())
    });
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Whether all of them are installed; prints the versions that run, or what is skipped.
pub fn have(programs: &[&str]) -> bool {
    let all = programs.iter().all(|program| has(program));
    for program in programs.iter().filter(|_| all) {
        let said = try_run(program, &["--version"]);
        println!(
            "{program}: {}",
            String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or("of no known version")
        );
    }
    all
}

/// Runs a program that must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = try_run(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn try_run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}
