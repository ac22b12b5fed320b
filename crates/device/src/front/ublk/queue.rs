//! The queue of a device: its requests come and their answers go through one io_uring of the thread that serves it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::UblkConfig;
use super::abi::{self, DESCRIPTOR_BYTES, Descriptor};
use super::tags::{Arrival, TagAnswer, Tags};
use super::translate::{Translated, translate};
use crate::buffer::Buffer;
use crate::front::{Export, KERNEL, Submission, Token};

/// How often, and after which pause, the kernel is asked again when it has no memory for our commands.
const ENTER_TRIES: u32 = 1000;
const ENTER_PAUSE: Duration = Duration::from_millis(1);

/// One queue, number 0. Made on any thread, then used by the one that first calls [`Queue::receive`].
pub(super) struct Queue {
    ring: IoUring,
    descriptors: Descriptors,
    device: File,
    tags: Tags,
    /// By tag: where the driver puts the data of the tag's next write, and takes those of its read from. `None` while
    /// a submission has it.
    buffers: Vec<Option<Buffer>>,
    /// By tag: bytes that the request in hand moves.
    moved: Vec<u32>,
    io_bytes_max: usize,
    /// Without one, every change is durable when it is answered.
    write_cache: bool,
    /// The kernel looks for partitions.
    partitions: bool,
    fetched: bool,
}

/// The driver's description of each tag's request, mapped from the device.
struct Descriptors {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is read only, and may be read from any thread.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(device: &File, depth: u16) -> io::Result<Self> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(io::Error::other)?;
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page.max(1));
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, device, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// The request that the tag brought. The driver does not touch it until the tag is answered.
    fn get(&self, tag: u16) -> Descriptor {
        // SAFETY: `map` mapped as many descriptors as the queue has tags; `Tags` lets no other through.
        let bytes = unsafe {
            self.start
                .as_ptr()
                .add(usize::from(tag) * DESCRIPTOR_BYTES)
                .cast::<[u8; DESCRIPTOR_BYTES]>()
                .read_volatile()
        };
        Descriptor::decode(&bytes)
    }
}

/// Does something as a thread without CAP_SYS_ADMIN. The kernel looks for no partitions on a device whose requests such a
/// thread fetches. Else many kernels (6.12 is one) look for them while they start the device, and if the server is killed then, neither
/// its death nor the start ever ends: the start waits for the server's answer, and the server's last thread for the start.
fn untrusted<T>(work: impl FnOnce() -> T) -> T {
    let before = capabilities(None).and_then(|before| {
        let effective = before.effective.difference(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, CapabilitySets { effective, ..before }).map(|()| before)
    });
    let done = work();
    match before {
        Ok(before) => {
            if let Err(error) = set_capabilities(None, before) {
                tracing::warn!(%error, "the thread that serves the device stays without CAP_SYS_ADMIN");
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the kernel looks for partitions on the device that stands in for the disk")
        }
    }
    done
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Queue {
    /// The queue of a device's character file.
    ///
    /// # Errors
    /// Those of `mmap(2)` and `io_uring_setup(2)`.
    pub(super) fn new(device: File, depth: u16, io_bytes_max: u32, config: &UblkConfig) -> io::Result<Self> {
        let descriptors = Descriptors::map(&device, depth)?;
        // The driver's work for us runs when we are in the kernel anyway; it ends our wait, but does not interrupt us.
        // (Deferred until we ask, it would not even do that: nothing wakes who polls such a ring.) The thread that
        // enables the ring is the one that may use it.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_r_disabled()
            .build(u32::from(depth).next_power_of_two())?;
        let io_bytes_max = io_bytes_max as usize;
        let buffers = (0..depth).map(|_| Some(Buffer::zeroed(io_bytes_max))).collect();
        let (tags, moved) = (Tags::new(depth), vec![0; depth.into()]);
        let UblkConfig { write_cache, partitions, .. } = *config;
        Ok(Self {
            ring,
            descriptors,
            device,
            tags,
            buffers,
            moved,
            io_bytes_max,
            write_cache,
            partitions,
            fetched: false,
        })
    }

    /// Readable when `receive` has something.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Passes on at most `budget` requests.
    ///
    /// # Errors
    /// The queue cannot be served.
    pub(super) fn receive(&mut self, export: &Export, budget: usize, sink: &mut Vec<Submission>) -> io::Result<()> {
        if !self.fetched {
            self.fetched = true;
            self.fetch()?;
        }
        self.take(export, budget, sink)
    }

    /// Whether `receive` has something, found out without the kernel.
    pub(super) fn has_arrived(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Asks for the first request of every tag.
    fn fetch(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        self.ring.submitter().register_files(&[self.device.as_raw_fd()])?;
        for tag in 0..self.buffers.len() as u16 {
            self.push(abi::FETCH, TagAnswer { tag, result: 0 })?;
        }
        if self.partitions { self.enter() } else { untrusted(|| self.enter()) }
    }

    fn push(&mut self, code: u32, answer: TagAnswer) -> io::Result<()> {
        let TagAnswer { tag, result } = answer;
        let buffer = self.buffers[usize::from(tag)].get_or_insert_with(|| Buffer::zeroed(self.io_bytes_max));
        let command = abi::io_command(0, tag, result, buffer.as_ptr() as u64);
        let entry = opcode::UringCmd16::new(types::Fixed(0), code).cmd(command).build().user_data(tag.into());
        // SAFETY: the driver moves data from and to the tag's buffer, which stays in its place, untouched, until the
        // tag brings a request; `Drop` keeps the memory if the driver may still have tags.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Takes what has arrived.
    fn take(&mut self, export: &Export, budget: usize, sink: &mut Vec<Submission>) -> io::Result<()> {
        for _ in 0..budget {
            let Some(completion) = self.ring.completion().next() else { break };
            let tag = completion.user_data() as u16;
            match self.tags.arrived(tag, completion.result()) {
                Arrival::Request => match translate(self.descriptors.get(tag), export, self.io_bytes_max as u64) {
                    Ok(request) => {
                        let request = if self.write_cache { request } else { request.durably() };
                        sink.push(self.submission(tag, request));
                    }
                    Err(errno) => {
                        self.tags.answer(tag, -errno);
                    }
                },
                Arrival::Gone => {}
                Arrival::Broken(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        Ok(())
    }

    fn submission(&mut self, tag: u16, request: Translated) -> Submission {
        let Translated { operation, offset, length } = request;
        let moved = request.moved();
        self.moved[usize::from(tag)] = moved as u32;
        let buffer = if moved == 0 { None } else { self.buffers[usize::from(tag)].take() };
        let buffer = buffer.map(|mut buffer| {
            buffer.set_len(moved as usize);
            buffer
        });
        Submission { token: Token(tag.into()), client: KERNEL, operation, offset, length, buffer }
    }

    /// Answers a request with the next `submit`.
    pub(super) fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>) {
        let Ok(tag) = u16::try_from(token.0) else { return };
        let Some(moved) = self.moved.get(usize::from(tag)).copied() else { return };
        let place = &mut self.buffers[usize::from(tag)];
        let mut result = result.map_err(|errno| -errno);
        if moved > 0 && place.is_none() {
            match buffer {
                // Memory that an I/O still holds on to is not given to the driver: it gets new memory.
                Some(mut buffer) => {
                    *place = buffer.unique().is_some().then(|| {
                        buffer.set_len(self.io_bytes_max);
                        buffer
                    });
                }
                // A read that comes back without its data has failed; the data of a write are not needed any more.
                None => result = result.and(Err(-libc::EIO)),
            }
        }
        self.tags.answer(tag, result.map_or_else(|errno| errno, |()| moved as i32));
    }

    /// Sends what `reply` has gathered.
    ///
    /// # Errors
    /// The queue cannot be served.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        if !self.tags.has_answers() {
            return Ok(());
        }
        while let Some(answer) = self.tags.next_answer() {
            if self.push(abi::COMMIT_AND_FETCH, answer).is_err() {
                self.tags.put_back(answer);
                break;
            }
        }
        self.enter()
    }

    /// Submits what is queued.
    fn enter(&mut self) -> io::Result<()> {
        for _ in 0..ENTER_TRIES {
            match self.ring.submit() {
                Ok(_) if self.ring.submission().is_empty() => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => std::thread::sleep(ENTER_PAUSE),
                    _ => return Err(error),
                },
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Keeps the memory for ever that the driver may still use.
    pub(super) fn keep_memory(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
    }
}
