//! Files with holes, as programs make and find them.

use std::fs::{self, File, OpenOptions};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::fixture::{MIB, Mounted, bytes, can_mount, pool, same, state, until_drained};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Closes a file, and says what that says.
fn closed(file: File) -> std::io::Result<()> {
    // SAFETY: the descriptor is the file's, which is gone afterwards.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn mib(of: usize) -> u64 {
    (of * MIB) as u64
}

#[test]
fn programs_make_holes_and_find_them() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let (mounted, other) = (Mounted::new(&pool, 2), Mounted::new(&pool, 2));
    let mut content = bytes(1, 6 * MIB);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mounted.at("file")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    fallocate(&file, PUNCH, mib(1) - 10, mib(2) + 20).unwrap();
    content[MIB - 10..3 * MIB + 10].fill(0);
    fallocate(&file, FallocateFlags::ZERO_RANGE, mib(5), mib(3)).unwrap();
    content.resize(8 * MIB, 0);
    content[5 * MIB..].fill(0);
    // Nothing is reserved.
    fallocate(&file, FallocateFlags::empty(), mib(8), 100).unwrap();
    content.resize(8 * MIB + 100, 0);
    fallocate(&file, FallocateFlags::KEEP_SIZE, mib(8), mib(100)).unwrap();
    fallocate(&file, PUNCH, mib(8), mib(100)).unwrap();
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, mode, 0, mib(1)), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
    let mut found = vec![1; content.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    same("here", &found, &content);
    let find = |file: &File| {
        [
            seek(file, SeekFrom::Hole(7)),
            seek(file, SeekFrom::Data(mib(1) + 5)),
            seek(file, SeekFrom::Hole(mib(4))),
            seek(file, SeekFrom::Data(mib(6))),
            seek(file, SeekFrom::Data(mib(9))),
        ]
    };
    let holes = [Ok(mib(1)), Ok(mib(3)), Ok(mib(5)), Ok(mib(8)), Err(Errno::NXIO)];
    assert_eq!(find(&file), holes);
    file.sync_all().unwrap();
    let elsewhere = File::open(other.at("file")).unwrap();
    same("elsewhere", &fs::read(other.at("file")).unwrap(), &content);
    assert_eq!(find(&elsewhere), holes);
    drop(file);
    until_drained(&mounted.at("file"));
    let at_target = pool.target().join("file");
    same("at the target", &fs::read(&at_target).unwrap(), &content);
    assert!(fs::metadata(&at_target).unwrap().blocks() * 512 < mib(6));
    // A few bytes behind a tebibyte.
    let large = File::create(mounted.at("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    large.write_all_at(b"end", 1 << 40).unwrap();
    assert_eq!(large.set_len(1 << 44).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(fallocate(&large, FallocateFlags::empty(), (1 << 44) - 1, 1), Err(Errno::FBIG));
    // Once it is closed without an error the target gets all of it, also without a sync.
    closed(large).unwrap();
    until_drained(&mounted.at("large"));
    let found = fs::metadata(pool.target().join("large")).unwrap();
    assert_eq!(found.len(), (1 << 40) + 3);
    assert!(found.blocks() * 512 <= mib(2), "the target has {} blocks of it", found.blocks());
    // Cut off, and extended again.
    for size in [4 * MIB + 3, 7 * MIB] {
        OpenOptions::new().write(true).open(mounted.at("file")).unwrap().set_len(size as u64).unwrap();
        content.resize(size, 0);
    }
    same("here", &fs::read(mounted.at("file")).unwrap(), &content);
    until_drained(&mounted.at("file"));
    same("at the target", &fs::read(&at_target).unwrap(), &content);
    assert_eq!(state(&mounted.at("file")), "drained");
    drop(elsewhere);
    mounted.end();
    other.end();
}
