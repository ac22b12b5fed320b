//! What the ublk driver and its server say to each other (linux/ublk_cmd.h), as plain data in the kernel's layout.

/// A sector of the block layer, as a power of two.
pub(super) const SECTOR_SHIFT: u32 = 9;
/// Bytes of a request's descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// A command's queue when it is for the whole device.
const NO_QUEUE: u16 = u16::MAX;

/// What a driver can do, and what is asked of it for a device (`UBLK_F_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(pub(super) u64);

impl Features {
    /// The device outlives its server (Linux 6.1).
    pub(super) const USER_RECOVERY: Self = Self(1 << 3);
    /// What a dead server had in hand goes to the next one (Linux 6.1).
    pub(super) const RECOVERY_REISSUE: Self = Self(1 << 4);
    /// Commands are encoded as ioctls are (Linux 6.4).
    pub(super) const IOCTL_ENCODE: Self = Self(1 << 6);
    /// A device in use may change its size (Linux 6.16).
    pub(super) const UPDATE_SIZE: Self = Self(1 << 10);

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Commands of `/dev/ublk-control`, as ioctls encode them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlCode {
    GetInfo,
    Add,
    Start,
    Stop,
    SetParameters,
    GetParameters,
    StartRecovery,
    EndRecovery,
    GetFeatures,
    Delete,
    DeleteAsync,
    UpdateSize,
}

impl ControlCode {
    pub(super) const fn number(self) -> u32 {
        const SIZE: u32 = 32;
        match self {
            Self::GetInfo => ioctl_number(READ, 0x02, SIZE),
            Self::Add => ioctl_number(BOTH, 0x04, SIZE),
            Self::Delete => ioctl_number(BOTH, 0x05, SIZE),
            Self::Start => ioctl_number(BOTH, 0x06, SIZE),
            Self::Stop => ioctl_number(BOTH, 0x07, SIZE),
            Self::SetParameters => ioctl_number(BOTH, 0x08, SIZE),
            Self::GetParameters => ioctl_number(READ, 0x09, SIZE),
            Self::StartRecovery => ioctl_number(BOTH, 0x10, SIZE),
            Self::EndRecovery => ioctl_number(BOTH, 0x11, SIZE),
            Self::GetFeatures => ioctl_number(READ, 0x13, SIZE),
            Self::DeleteAsync => ioctl_number(READ, 0x14, SIZE),
            Self::UpdateSize => ioctl_number(BOTH, 0x15, SIZE),
        }
    }
}

const READ: u32 = 2;
const BOTH: u32 = 3;

/// `_IOC(direction, 'u', number, size)`.
const fn ioctl_number(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | (b'u' as u32) << 8 | number
}

/// Ask for the first request of a tag (`UBLK_U_IO_FETCH_REQ`).
pub(super) const FETCH: u32 = ioctl_number(BOTH, 0x20, 16);
/// Answer a tag's request and ask for the next (`UBLK_U_IO_COMMIT_AND_FETCH_REQ`).
pub(super) const COMMIT_AND_FETCH: u32 = ioctl_number(BOTH, 0x21, 16);

/// A device's number that lets the driver choose.
pub(super) const ANY_DEVICE: u32 = u32::MAX;

/// `struct ublksrv_ctrl_cmd` in the space that an io_uring entry of 128 bytes has for it.
pub(super) fn control_command(device: u32, address: u64, length: u16, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&device.to_ne_bytes());
    bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// `struct ublksrv_io_cmd`: `result` is of the request that is answered, `address` takes the data of the next.
pub(super) fn io_command(queue: u16, tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes
}

/// Reads numbers from bytes in the machine's order.
macro_rules! number {
    ($bytes:expr, $at:expr, $type:ty) => {{
        let mut value = [0; size_of::<$type>()];
        value.copy_from_slice(&$bytes[$at..$at + size_of::<$type>()]);
        <$type>::from_ne_bytes(value)
    }};
}

/// Where a device stands (`UBLK_S_DEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceState {
    /// Added but not started, or stopped.
    Dead,
    /// Served, or its server has died just now.
    Live,
    /// Its server is dead; it waits for another one.
    Quiesced,
    /// A state that this program does not know.
    Other(u16),
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: DeviceState,
    pub(super) io_bytes_max: u32,
    pub(super) device: u32,
    pub(super) server: i32,
    pub(super) features: Features,
    /// Ours to set when a device is added; the driver keeps it. Names whose device it is.
    pub(super) identity: u64,
}

impl DeviceInfo {
    pub(super) const BYTES: usize = 64;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let state = match self.state {
            DeviceState::Dead => 0,
            DeviceState::Live => 1,
            DeviceState::Quiesced => 2,
            DeviceState::Other(state) => state,
        };
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[4..6].copy_from_slice(&u16::to_ne_bytes(state));
        bytes[8..12].copy_from_slice(&self.io_bytes_max.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.device.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.server.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.0.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.identity.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let state = match number!(bytes, 4, u16) {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Quiesced,
            other => DeviceState::Other(other),
        };
        Self {
            queues: number!(bytes, 0, u16),
            depth: number!(bytes, 2, u16),
            state,
            io_bytes_max: number!(bytes, 8, u32),
            device: number!(bytes, 12, u32),
            server: number!(bytes, 16, i32),
            features: Features(number!(bytes, 24, u64)),
            identity: number!(bytes, 32, u64),
        }
    }
}

/// What of `struct ublk_params` we set: the basic ones and discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Bytes; a multiple of the logical block.
    pub(super) size: u64,
    /// Bytes: 512 or 4096.
    pub(super) logical_block: u32,
    /// Bytes of one read or write, at most.
    pub(super) io_bytes_max: u32,
    /// A volatile write cache, which honours FUA; without one, what is answered is durable.
    pub(super) write_cache: bool,
    /// Discard requests.
    pub(super) discards: bool,
}

const TYPE_BASIC: u32 = 1 << 0;
const TYPE_DISCARD: u32 = 1 << 1;
const VOLATILE_CACHE: u32 = 1 << 2;
const FUA: u32 = 1 << 3;

impl Parameters {
    pub(super) const BYTES: usize = 64;

    /// Physical blocks and the least sensible I/O of 4 KiB; discards and zeroes of any length. The kernel knows of zeroes by
    /// the same type as of discards.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        const PAGE_SHIFT: u8 = 12;
        const DISCARD_SECTORS_MAX: u32 = u32::MAX >> SECTOR_SHIFT;
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&(Self::BYTES as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&(TYPE_BASIC | if self.discards { TYPE_DISCARD } else { 0 }).to_ne_bytes());
        bytes[8..12].copy_from_slice(&(if self.write_cache { VOLATILE_CACHE | FUA } else { 0 }).to_ne_bytes());
        bytes[12] = self.logical_block.trailing_zeros() as u8;
        bytes[13] = PAGE_SHIFT;
        bytes[14] = self.io_bytes_max.trailing_zeros() as u8;
        bytes[15] = PAGE_SHIFT;
        bytes[16..20].copy_from_slice(&(self.io_bytes_max >> SECTOR_SHIFT).to_ne_bytes());
        bytes[24..32].copy_from_slice(&(self.size >> SECTOR_SHIFT).to_ne_bytes());
        bytes[44..48].copy_from_slice(&(1u32 << PAGE_SHIFT).to_ne_bytes());
        bytes[48..52].copy_from_slice(&DISCARD_SECTORS_MAX.to_ne_bytes());
        bytes[52..56].copy_from_slice(&DISCARD_SECTORS_MAX.to_ne_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
        bytes
    }

    /// `None` for what no driver would keep.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        Some(Self {
            size: number!(bytes, 24, u64).checked_mul(1 << SECTOR_SHIFT)?,
            logical_block: 1u32.checked_shl(bytes[12].into())?,
            io_bytes_max: number!(bytes, 16, u32).checked_mul(1 << SECTOR_SHIFT)?,
            write_cache: number!(bytes, 8, u32) & VOLATILE_CACHE != 0,
            discards: number!(bytes, 4, u32) & TYPE_DISCARD != 0,
        })
    }
}

/// `struct ublksrv_io_desc`: a request as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) operation_and_flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
}

impl Descriptor {
    pub(super) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        Self {
            operation_and_flags: number!(bytes, 0, u32),
            sectors: number!(bytes, 4, u32),
            start_sector: number!(bytes, 8, u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_are_those_of_the_kernel() {
        // From the macros of linux/ublk_cmd.h, by hand.
        assert_eq!(ControlCode::Add.number(), 0xc020_7504);
        assert_eq!(ControlCode::GetInfo.number(), 0x8020_7502);
        assert_eq!(ControlCode::GetFeatures.number(), 0x8020_7513);
        assert_eq!(ControlCode::DeleteAsync.number(), 0x8020_7514);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    proptest! {
        #[test]
        fn device_info_round_trips(
            (queues, depth, io_bytes_max, device, server) in any::<(u16, u16, u32, u32, i32)>(),
            (features, identity, state) in any::<(u64, u64, u16)>(),
        ) {
            let state = match state % 5 {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                other => DeviceState::Other(other),
            };
            let features = Features(features);
            let info = DeviceInfo { queues, depth, state, io_bytes_max, device, server, features, identity };
            prop_assert_eq!(DeviceInfo::decode(&info.encode()), info);
        }

        #[test]
        fn parameters_round_trip(
            (sectors, block, io) in (1u64..1 << 54, 9u32..13, 12u32..24),
            (write_cache, discards) in any::<(bool, bool)>(),
        ) {
            let (size, logical_block, io_bytes_max) = (sectors << 9, 1 << block, 1 << io);
            let parameters = Parameters { size, logical_block, io_bytes_max, write_cache, discards };
            prop_assert_eq!(Parameters::decode(&parameters.encode()), Some(parameters));
        }

        #[test]
        fn no_parameters_of_a_driver_panic(bytes in any::<[[u8; 32]; 2]>()) {
            let mut all = [0; Parameters::BYTES];
            all[..32].copy_from_slice(&bytes[0]);
            all[32..].copy_from_slice(&bytes[1]);
            let _ = Parameters::decode(&all);
        }
    }
}
