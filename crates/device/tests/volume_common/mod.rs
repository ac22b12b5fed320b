//! What the volume tests share: a driver in virtual time, and loop devices that go away by themselves.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod arrays;
pub mod read_caches;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use surgetank_device::{Buffer, BufferSlice, Completion, Failure, Operation, Poller, Volume, VolumeIo};
use surgetank_model::Instant;

/// Says why a test does not run here.
#[allow(clippy::print_stdout, reason = "whoever reads the test's output must see it")]
pub fn skipped(reason: &str) {
    println!("skipped: {reason}");
}

/// Memory that holds `data`.
pub fn memory(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(data.len());
    buffer.unique().unwrap().copy_from_slice(data);
    buffer
}

/// The buffer as at most `pieces` slices, each of whole blocks, in order but not in one stretch of equal parts.
pub fn slices(buffer: &Buffer, pieces: usize, block: u64) -> Vec<BufferSlice> {
    let blocks = buffer.len() / block as usize;
    let pieces = pieces.clamp(1, blocks);
    let edge = |piece: usize| blocks * piece / pieces * block as usize;
    (0..pieces).map(|piece| buffer.slice(edge(piece), edge(piece + 1) - edge(piece))).collect()
}

/// Drives a volume: time is virtual and jumps to the next deadline whenever nothing else happens.
pub struct Driver<'a> {
    pub volume: &'a mut dyn Volume,
    pub now: Instant,
    token_next: u64,
    in_flight: usize,
}

impl<'a> Driver<'a> {
    pub fn new(volume: &'a mut dyn Volume) -> Self {
        Self { volume, now: Instant::ZERO, token_next: 0, in_flight: 0 }
    }

    pub fn submit(&mut self, operation: Operation, offset: u64, length: u64, memory: Vec<BufferSlice>) -> u64 {
        let token = self.token_next;
        self.token_next += 1;
        self.in_flight += 1;
        self.volume.submit(self.now, VolumeIo { token, operation, offset, length, memory: memory.into() });
        token
    }

    /// One `poll`, now.
    pub fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.volume.poll(self.now, &mut completions);
        self.in_flight -= completions.len();
        completions
    }

    /// Waits for all that is in flight.
    pub fn finish(&mut self) -> HashMap<u64, Result<(), Failure>> {
        let mut results = HashMap::new();
        while self.in_flight > 0 {
            let completions = self.poll();
            if completions.is_empty() {
                self.wait();
            }
            results.extend(completions.into_iter().map(|completion| (completion.token, completion.result)));
        }
        results
    }

    /// Waits for the deadline, else for the descriptor.
    pub fn wait(&mut self) {
        if let Some(deadline) = self.volume.next_deadline() {
            assert!(deadline > self.now, "a deadline that has come must have been served by poll");
            self.now = deadline;
            return;
        }
        let descriptor = self.volume.descriptor().expect("something is in flight, so something must wake us");
        let poller = Poller::new().unwrap();
        poller.add(descriptor, 0).unwrap();
        // A wait may end early without keys.
        for _ in 0..600 {
            let mut keys = Vec::new();
            poller.wait(Some(std::time::Duration::from_millis(100)), &mut keys).unwrap();
            if keys == [0] {
                return;
            }
        }
        panic!("an I/O takes more than a minute");
    }

    pub fn one(&mut self, op: Operation, offset: u64, length: u64, memory: Vec<BufferSlice>) -> Result<(), Failure> {
        let token = self.submit(op, offset, length, memory);
        self.finish()[&token]
    }

    pub fn must(&mut self, operation: Operation, offset: u64, length: u64, memory: Vec<BufferSlice>) {
        assert_eq!(self.one(operation, offset, length, memory), Ok(()), "{operation:?} {offset}+{length}");
    }

    /// Reads into `pieces` pieces of memory that is not zero before.
    pub fn read(&mut self, offset: u64, length: u64, pieces: usize) -> Vec<u8> {
        let buffer = memory(&vec![0xee; length as usize]);
        let block = self.volume.logical_block().into();
        self.must(Operation::Read, offset, length, slices(&buffer, pieces, block));
        // SAFETY: the read has ended.
        unsafe { buffer.bytes() }.to_vec()
    }
}

/// A loop device, detached when dropped.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches the file; `None`, and says so, where that is not possible.
    pub fn attach(file: &Path, block: u64) -> Option<Self> {
        let block = block.to_string();
        let output = Command::new("losetup").args(["--find", "--show", "--sector-size", &block]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim_end().into()))
            }
            Ok(output) => {
                skipped(&format!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
                None
            }
            Err(error) => {
                skipped(&format!("no losetup: {error}"));
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
