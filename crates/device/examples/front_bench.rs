//! Serves memory through a front, for measuring the fronts against their peers.
//!
//! `front_bench nbd SOCKET MIB` or `front_bench fuse RUN_DIRECTORY MIB [SESSION_THREADS]`: prints the address, serves
//! until its standard input ends, then takes the export down.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use surgetank_device::Buffer;
use surgetank_device::front::nbd::Limits;
use surgetank_device::front::{Export, Front, FrontError, FuseConfig, FuseFront, NbdConfig, NbdFront, Submission};
use surgetank_model::Operation;

fn main() -> Result<(), FrontError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || FrontError("usage: front_bench nbd SOCKET MIB | fuse RUN_DIRECTORY MIB [SESSION_THREADS]".into());
    let number = |at: usize| arguments.get(at).map(|text| text.parse::<usize>().map_err(|_| usage())).transpose();
    let (kind, place) = (arguments.first().ok_or_else(usage)?, PathBuf::from(arguments.get(1).ok_or_else(usage)?));
    let size = number(2)?.ok_or_else(usage)? << 20;
    let export = Export { name: "bench".into(), size: size as u64, logical_block: 512 };
    let stop = Arc::new(AtomicBool::new(false));
    match kind.as_str() {
        "nbd" => {
            let config = NbdConfig { export, unix: Some(place), tcp: None, tls: None, limits: Limits::default() };
            let front = NbdFront::open(config)?;
            println!("{}", front.address());
            let thread = start(front, size, &stop);
            wait_for_the_end();
            finish(thread, &stop);
        }
        "fuse" => {
            let session_threads = number(3)?.unwrap_or(1);
            let front = FuseFront::start(&FuseConfig { export, run_directory: place, session_threads })?;
            let handle = front.handle();
            let thread = start(front, size, &stop);
            println!("{}", handle.wait_ready(Duration::from_secs(30))?.display());
            wait_for_the_end();
            handle.close()?;
            finish(thread, &stop);
        }
        _ => return Err(usage()),
    }
    Ok(())
}

fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn start(front: impl Front + 'static, size: usize, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || serve(front, size, &stop))
}

fn finish(thread: JoinHandle<()>, stop: &AtomicBool) {
    stop.store(true, Ordering::SeqCst);
    if thread.join().is_err() {
        eprintln!("the serving thread panicked");
    }
}

fn serve(mut front: impl Front, size: usize, stop: &AtomicBool) {
    let mut disk = vec![0u8; size];
    let mut arrived = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(front.descriptor(), PollFlags::IN)], Some(&pause));
        front.receive(64, &mut arrived);
        for mut submission in arrived.drain(..) {
            let result = apply(&mut submission, &mut disk);
            front.reply(submission.token, result, submission.buffer);
        }
        front.flush();
    }
}

fn apply(submission: &mut Submission, disk: &mut [u8]) -> Result<(), i32> {
    let start = submission.offset as usize;
    let range = &mut disk[start..start + submission.length as usize];
    let memory = submission.buffer.as_mut().and_then(Buffer::unique);
    match (submission.operation, memory) {
        (Operation::Flush, _) => {}
        (Operation::Read, Some(memory)) => memory.copy_from_slice(range),
        (Operation::Write { .. }, Some(memory)) => range.copy_from_slice(memory),
        (Operation::Discard | Operation::WriteZeroes { .. }, _) => range.fill(0),
        (_, None) => return Err(libc::EIO),
    }
    Ok(())
}
