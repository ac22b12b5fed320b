//! A caching volume that the engine does not take leaves the present one in use.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{EventfdFlags, eventfd};
use surgetank_cache::{Attach, Config, Engine, Epoch, Event, ReadFill};
use surgetank_device::front::{KERNEL, Submission, Token};
use surgetank_device::{Buffer, Front, MemoryVolume, Volume};
use surgetank_model::{Limits, Operation};
use surgetank_policy::fair::Windows;

use crate::clock::Clock;
use crate::owner::Entry;
use crate::shard::{Command, Overhead, Parts, Shard, ShardHandle};

const MIB: u64 = 1 << 20;

/// Hands on what it is told to write.
struct Writer {
    silent: OwnedFd,
    asked: Receiver<u64>,
    answered: Sender<Result<(), i32>>,
}

impl Front for Writer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }

    fn has_arrived(&mut self) -> bool {
        !self.asked.is_empty()
    }

    fn receive(&mut self, _: usize, sink: &mut Vec<Submission>) {
        let writes = self.asked.try_iter().map(|offset| Submission {
            token: Token(offset),
            client: KERNEL,
            operation: Operation::Write { fua: false },
            offset,
            length: 4096,
            buffer: Some(Buffer::zeroed(4096)),
        });
        sink.extend(writes);
    }

    fn reply(&mut self, _: Token, result: Result<(), i32>, _: Option<Buffer>) {
        self.answered.send(result).unwrap();
    }

    fn flush(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn set_size(&mut self, _: u64) {}
}

fn adopt(shard: &ShardHandle, epoch: u8) -> bool {
    let volume: Box<dyn Volume> = Box::new(MemoryVolume::new(4 * MIB, 512).unwrap());
    let attach = Attach {
        epoch: Epoch([epoch; 16]),
        cache_size: 4 * MIB,
        cache_limits: Limits::NONE,
        split: false,
        read_fill: ReadFill::Never,
        indexes: false,
    };
    shard.ask(|answer| Command::Adopt { volume, attach, answer }).unwrap().is_ok()
}

#[test]
fn a_volume_that_the_engine_refuses_does_not_replace_the_one_in_use() {
    let backing = MemoryVolume::new(8 * MIB, 512).unwrap();
    let config = Config {
        size: 8 * MIB,
        logical_block: 512,
        backing_limits: Limits::NONE,
        outage_patience: std::time::Duration::ZERO,
    };
    let ((ask, asked), (answered, answers), (tell, events)) = (unbounded(), unbounded(), unbounded());
    let (handle, commands) = Shard::channel().unwrap();
    let owner_thread = handle.clone();
    let parts = Parts {
        name: "adopting".to_owned(),
        engine: Engine::new(config),
        front: Box::new(Writer { silent: eventfd(0, EventfdFlags::CLOEXEC).unwrap(), asked, answered }),
        backing: Box::new(backing),
        overhead: Overhead::default(),
        windows: Windows::new(Limits::NONE, false),
        clock: Clock::start(),
        events: Box::new(move |event| drop(tell.send(event))),
        record: Box::new(move |entry| {
            if let Entry::Owner { effect, .. } | Entry::Healed { effect, .. } = entry {
                owner_thread.send(Command::Persisted { effect, durable: true }).unwrap();
            }
        }),
    };
    let shard = Shard::start(handle.clone(), commands, parts).unwrap();
    assert!(adopt(&handle, 1));
    assert_eq!(events.recv().unwrap(), Event::Adopted);
    let written = || handle.ask(|answer| Command::Sample { answer }).unwrap().cache.written_bytes;
    let before = written();
    assert!(!adopt(&handle, 2), "one is in use");
    ask.send(0).unwrap();
    handle.ask(|answer| Command::Sample { answer }).unwrap();
    assert_eq!(answers.recv().unwrap(), Ok(()));
    assert!(written() > before, "the write went to the volume in use");
    assert!(events.try_recv().is_err(), "which has not failed");
    shard.stop();
}
