//! How fast one client writes into a pool of three benefactors and reads from it, by the library and through the mount, beside what its parts
//! cost alone in the same process: a file system that drops what it gets (FUSE), chunks sent to servers that drop them (the wire), and
//! CRC32C. One JSON document: `cargo bench --package surgetank-mount`, or with its bars `make bench ARGS=pool`.
//!
//! The client and the pool share this process, so that its processor time is that of all parts. Files are written from one filled
//! buffer, by a MiB at a time.

#![expect(clippy::print_stdout, reason = "the answer")]

mod support;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, Session,
    WriteFlags,
};
use support::{LONG, MIB, Pool, Took, filled, flag, in_memory, json, place, read, wait_drained, write};
use surgetank_pool::chunks;
use surgetank_pool::client::PoolClient;
use surgetank_pool::rpc::{Listener, Peer, Service};
use surgetank_pool::security::Credentials;
use surgetank_pool::security::token::{Claims, Key};
use surgetank_pool_core::benefactor::holdings::{Entry, Instance};
use surgetank_pool_core::id::{Incarnation, Inode, SessionId};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;
use tokio::runtime::{Builder, Runtime};

const BENEFACTORS: u32 = 3;
/// Chunks under way at a time, as many as the library has.
const UNDER_WAY: usize = 16;
/// Small files.
const SMALL: u32 = 200;

/// CRC32C of so many MiB, a chunk at a time.
fn crc(mib: usize) -> Took {
    let bytes = filled(64 * MIB);
    let chunks = bytes.chunks(MIB).cycle().take(mib);
    Took::of(|| chunks.map(|chunk| std::hint::black_box(crc32c::crc32c(chunk))).fold(0, u32::wrapping_add)).0
}

/// A benefactor that drops what it gets, looking at checksums or not.
struct Sink {
    checks: bool,
}

impl Service for Sink {
    type Request = chunks::Request;
    type Reply = chunks::Reply;

    async fn answer(self: Arc<Self>, _: Claims, request: chunks::Request) -> Result<chunks::Reply, tonic::Status> {
        Ok(match request {
            chunks::Request::Put(put) if self.checks && crc32c::crc32c(&put.bytes) != put.entry.crc => {
                chunks::Reply::Corrupt
            }
            _ => chunks::Reply::Stored(chunks::Spare { memory: 0, ssd: None }),
        })
    }
}

/// Sends chunks to as many servers as there are benefactors, as many at a time as the library does.
fn wire(mib: usize, checks: bool) -> Took {
    let credentials = Credentials::new(Key::generate().expect("a key"));
    let servers: Vec<(Runtime, Peer)> = (0..BENEFACTORS)
        .map(|_| {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
            let entered = runtime.enter();
            let listener = Listener::bind("127.0.0.1:0", &credentials).expect("a port is free");
            let address = listener.address().expect("it has an address").to_string();
            let peer = Peer::new(&address, &credentials.access()).expect("it is loopback");
            runtime.spawn(listener.serve(Arc::new(Sink { checks })));
            drop(entered);
            (runtime, peer)
        })
        .collect();
    let client = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let bytes = Bytes::from(filled(MIB));
    let send = async |mib: usize| {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..UNDER_WAY {
            let (bytes, peers) = (bytes.clone(), servers.iter().map(|(_, peer)| peer.clone()).collect::<Vec<_>>());
            tasks.spawn(async move {
                for number in (task..mib).step_by(UNDER_WAY) {
                    let crc = if checks { crc32c::crc32c(&bytes) } else { 0 };
                    let instance = Instance { session: SessionId(1), number: number as u64 };
                    let entry = Entry { instance, length: MIB as u32, crc };
                    let put = chunks::Put { incarnation: Incarnation(1), inode: Inode(1), entry, bytes: bytes.clone() };
                    let reply = peers[number % peers.len()].ask::<Sink>(chunks::Request::Put(put), LONG).await;
                    assert!(matches!(reply, Ok(chunks::Reply::Stored(_))), "it is stored: {reply:?}");
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a sender ends");
        }
    };
    // Connections are made before.
    client.block_on(send(UNDER_WAY * 2));
    let (took, ()) = Took::of(|| client.block_on(send(mib)));
    servers.into_iter().for_each(|(runtime, _)| runtime.shutdown_background());
    took
}

/// A file system with one file, which drops what is written into it.
struct Nothing;

impl Nothing {
    fn attributes(number: INodeNo) -> FileAttr {
        let (kind, perm) =
            if number == INodeNo::ROOT { (FileType::Directory, 0o755) } else { (FileType::RegularFile, 0o644) };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: number,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: MIB as u32,
            flags: 0,
        }
    }
}

impl Filesystem for Nothing {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.entry(&LONG, &Self::attributes(INodeNo(2)), Generation(0));
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LONG, &Self::attributes(number));
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::NO_XATTR);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Writes through FUSE into nothing, with the options of the mount.
fn fuse(mib: usize, place: &Path) -> Took {
    let point = tempfile::tempdir_in(place).expect("a directory");
    let mut options = fuser::Config::default();
    options.mount_options = vec![MountOption::FSName("nothing".to_owned()), MountOption::NoAtime];
    (options.n_threads, options.clone_fd) = (Some(2), true);
    let mounted: BackgroundSession =
        Session::new(Nothing, point.path(), &options).and_then(Session::spawn).expect("it mounts");
    let file = File::options().write(true).open(point.path().join("file")).expect("it opens");
    let took = write(file, mib);
    drop(mounted);
    took
}

/// Writes a file by the library.
fn library(pool: &Pool, mib: usize) -> Took {
    let target = in_memory();
    let mut config = pool.config(&target.path().display().to_string());
    config.make = Some((target.path().to_owned(), Durability::Copies { copies: 1, media: Media::Any }));
    let client = pool.runtime.block_on(PoolClient::begin(config)).expect("a session begins");
    let bytes = filled(MIB);
    let (took, ()) = Took::of(|| {
        pool.runtime.block_on(async {
            let mut writer = client.create("file").await.expect("it is made");
            for _ in 0..mib {
                writer.write(&bytes).await.expect("it is written");
            }
            writer.close().await.expect("it is committed");
        });
    });
    pool.runtime.block_on(async {
        client.wait_drained("file", LONG).await.expect("it is drained");
        client.unlink("file").await.expect("it is unlinked");
        client.end().await.expect("the session ends");
    });
    pool.wait_empty();
    took
}

/// Writes a file through a mount, and reads it once the target has it: while it is drained, that takes processors as well.
fn mount(pool: &Pool, mib: usize, copies: u8) -> (Took, Took) {
    let target = in_memory();
    let mounted = pool.mount(target.path(), copies);
    let path = mounted.path().join("file");
    let written = write(File::create_new(&path).expect("it is made"), mib);
    wait_drained(mounted.path());
    let read = read(&path, mib);
    mounted.end();
    pool.wait_empty();
    (written, read)
}

/// Milliseconds for each of many small files, by one program: made, written, closed; and, as `cp -a` does, with times and mode set.
fn small(pool: &Pool) -> [f64; 2] {
    let target = in_memory();
    let mounted = pool.mount(target.path(), 1);
    let bytes = filled(3000);
    let times = [false, true].map(|copies| {
        let (took, ()) = Took::of(|| {
            for number in 0..SMALL {
                let path = mounted.path().join(format!("{copies}{number}"));
                let mut file = File::create_new(path).expect("it is made");
                file.write_all(&bytes).expect("it is written");
                if copies {
                    file.set_modified(SystemTime::UNIX_EPOCH).expect("its time is set");
                    file.set_permissions(std::fs::Permissions::from_mode(0o600)).expect("its mode is set");
                }
            }
        });
        took.wall * 1e3 / f64::from(SMALL)
    });
    mounted.end();
    pool.wait_empty();
    times
}

fn main() {
    let (rounds, mib, place) = (flag("--rounds", 3), flag("--mib", 1024), place());
    // Room for two copies, while chunks of a former file have not been forgotten yet.
    let pool = Pool::start(BENEFACTORS, mib, &place);
    // What is written for the first time costs more.
    library(&pool, mib);
    if flag("--only-mount", 0) > 0 {
        // For a profile.
        for _ in 0..rounds {
            let (written, read) = mount(&pool, mib, u8::try_from(flag("--only-mount", 1)).expect("a few copies"));
            let row = [("written", written), ("read", read)];
            println!("{}", json(&row.map(|(name, took)| (name, took.mib_s(mib)))));
        }
        return;
    }
    let measure = || {
        let (crc, wire, checked) = (crc(mib), wire(mib, false), wire(mib, true));
        let fuse = fuse(mib, &place);
        let library = library(&pool, mib);
        let (one, two) = (mount(&pool, mib, 1), mount(&pool, mib, 2));
        let [small, copied] = small(&pool);
        json(&[
            ("crc_cores", crc.per_gb(mib)),
            ("wire_cores", wire.per_gb(mib)),
            ("wire", wire.mib_s(mib)),
            ("checked", checked.mib_s(mib)),
            ("checked_cores", checked.per_gb(mib)),
            ("fuse_cores", fuse.per_gb(mib)),
            ("fuse", fuse.mib_s(mib)),
            ("library", library.mib_s(mib)),
            ("library_cores", library.per_gb(mib)),
            ("mount", one.0.mib_s(mib)),
            ("mount_cores", one.0.per_gb(mib)),
            ("read", one.1.mib_s(mib)),
            ("read_cores", one.1.per_gb(mib)),
            ("two", two.0.mib_s(mib)),
            ("two_cores", two.0.per_gb(mib)),
            ("two_read", two.1.mib_s(mib)),
            ("small_ms", small),
            ("copied_ms", copied),
        ])
    };
    let rounds: Vec<String> = (0..rounds).map(|_| measure()).collect();
    println!("{{\"mib\": {mib}, \"benefactors\": {BENEFACTORS}, \"rounds\": [{}]}}", rounds.join(", "));
}
