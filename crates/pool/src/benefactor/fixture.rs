//! A benefactor that serves nobody, for tests of its parts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, Instance};
use surgetank_pool_core::benefactor::scrub::Config;
use surgetank_pool_core::benefactor::{Buffers, Holdings};
use surgetank_pool_core::id::{Incarnation, Inode, SessionId};
use tokio::sync::{Notify, Semaphore};

use super::ssd::Tier;
use super::{Benefactor, Memory, Scrubbing};
use crate::chunks::{CHUNK, Put};
use crate::security::Credentials;
use crate::security::token::Key;

pub(super) const LIFE: Incarnation = Incarnation(1);

/// A chunk of its own number, of one byte over and over.
pub(super) fn put(number: u64, byte: u8, length: u32) -> Put {
    let bytes = Bytes::from(vec![byte; length as usize]);
    let instance = Instance { session: SessionId(1), number };
    let entry = Entry { instance, length, crc: crc32c::crc32c(&bytes) };
    Put { incarnation: LIFE, inode: Inode(9), entry, bytes }
}

/// Of memory, and an SSD if there is one.
pub(super) fn benefactor(tier: Option<Tier>, scrub: Option<Config>) -> Benefactor {
    let buffers = Buffers::new(12 << 20, CHUNK).unwrap();
    let (of, size) = (buffers.credits(), usize::try_from(buffers.size()).unwrap());
    let holdings = Mutex::new(Holdings::new(LIFE, buffers, tier.is_some()));
    Benefactor {
        incarnation: LIFE,
        of,
        memory: Memory::new(size).expect("there is memory"),
        tier,
        leaving: false,
        taken_out: AtomicBool::new(false),
        joins_again: Notify::new(),
        holdings,
        puts: AtomicU64::new(0),
        counts: super::counts::Counts::default(),
        waiting: Semaphore::new(super::put::WAITING),
        damaged: AtomicU64::new(0),
        scrubbing: Scrubbing::new(scrub),
        fence: Mutex::default(),
        credentials: Credentials::new(Key::generate().unwrap()),
        sources: Mutex::default(),
        web: std::sync::OnceLock::new(),
    }
}
