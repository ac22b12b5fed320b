//! What an NVMe namespace says of itself (NVM Express Base 2.0, 5.17: Identify).

use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IO('N', 0x40)`: the number of the namespace that was opened (linux/nvme_ioctl.h).
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xc048_4e41_u32 as libc::Ioctl;
/// The command "Identify", of whose structures the one numbered 0 is the namespace's.
const IDENTIFY: u8 = 6;
/// How long the structure is, and where the vendor's part begins.
const STRUCTURE_BYTES: usize = 4096;
const VENDORS_PART: usize = 384;

/// How long a disk may take to answer.
const TIMEOUT_MS: u32 = 5000;

/// `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// The vendor's part of what the namespace says; `None`: it is none, or nobody may ask it.
pub(super) fn vendors_part(disk: BorrowedFd<'_>) -> Option<Vec<u8>> {
    // SAFETY: the request takes no argument, and the descriptor is open for as long as it is borrowed.
    let namespace = unsafe { libc::ioctl(disk.as_raw_fd(), NVME_IOCTL_ID) };
    let mut structure = vec![0_u8; STRUCTURE_BYTES];
    let mut command = AdminCommand {
        opcode: IDENTIFY,
        namespace: u32::try_from(namespace).ok()?,
        address: structure.as_mut_ptr() as u64,
        data_bytes: STRUCTURE_BYTES as u32,
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // SAFETY: the kernel reads and writes `command` and writes so many bytes at `address`, both of which live until it returns.
    let status = unsafe { libc::ioctl(disk.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    (status == 0).then(|| structure.split_off(VENDORS_PART))
}
