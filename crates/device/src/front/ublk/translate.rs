//! From the driver's description of a request to ours.

use surgetank_model::Operation;

use super::abi::{Descriptor, SECTOR_SHIFT};
use crate::front::Export;

// `UBLK_IO_OP_*` and `UBLK_IO_F_FUA`.
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
const OPERATION_MASK: u32 = 0xff;
const FUA: u32 = 1 << 13;

/// A request on the device's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Translated {
    /// Bytes that it moves through memory.
    pub(super) fn moved(&self) -> u64 {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.length,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => 0,
        }
    }

    /// The same for a device without a volatile write cache: what is answered is durable.
    pub(super) fn durably(self) -> Self {
        let operation = match self.operation {
            Operation::Write { .. } => Operation::Write { fua: true },
            Operation::WriteZeroes { .. } => Operation::WriteZeroes { fua: true },
            other => other,
        };
        Self { operation, ..self }
    }
}

/// Checks and translates a request.
///
/// # Errors
/// The errno (positive) to answer: an operation that we do not have, a range that is not on the device, more bytes
/// than the tag's memory has.
pub(super) fn translate(descriptor: Descriptor, export: &Export, io_bytes_max: u64) -> Result<Translated, i32> {
    let fua = descriptor.operation_and_flags & FUA != 0;
    let operation = match descriptor.operation_and_flags & OPERATION_MASK {
        READ => Operation::Read,
        WRITE => Operation::Write { fua },
        FLUSH => return Ok(Translated { operation: Operation::Flush, offset: 0, length: 0 }),
        DISCARD => Operation::Discard,
        WRITE_ZEROES => Operation::WriteZeroes { fua },
        _ => return Err(libc::EOPNOTSUPP),
    };
    let offset = descriptor.start_sector.checked_mul(1 << SECTOR_SHIFT).ok_or(libc::ENOSPC)?;
    let length = u64::from(descriptor.sectors) << SECTOR_SHIFT;
    export.check(offset, length)?;
    let translated = Translated { operation, offset, length };
    if translated.moved() > io_bytes_max { Err(libc::EINVAL) } else { Ok(translated) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn export(logical_block: u32) -> Export {
        Export { name: "data".into(), size: 1 << 20, logical_block }
    }

    #[test]
    fn operations_and_fua() {
        let of = |operation_and_flags| {
            let descriptor = Descriptor { operation_and_flags, sectors: 8, start_sector: 16 };
            translate(descriptor, &export(512), 1 << 19).map(|found| (found.operation, found.offset, found.length))
        };
        let range = (8192, 4096);
        let at = |operation| Ok((operation, range.0, range.1));
        assert_eq!(of(READ), at(Operation::Read));
        assert_eq!(of(WRITE | 1 << 11), at(Operation::Write { fua: false }), "a flag that is none of ours");
        assert_eq!(of(WRITE | FUA), at(Operation::Write { fua: true }));
        assert_eq!(of(DISCARD), at(Operation::Discard));
        assert_eq!(of(WRITE_ZEROES | FUA | 1 << 15), at(Operation::WriteZeroes { fua: true }));
        assert_eq!(of(FLUSH | FUA), Ok((Operation::Flush, 0, 0)));
        assert_eq!(of(4), Err(libc::EOPNOTSUPP), "WRITE_SAME");
        assert_eq!(of(15), Err(libc::EOPNOTSUPP), "a zone's");
    }

    proptest! {
        /// Whatever the driver writes there: what gets through lies on the device, in whole blocks, in its memory.
        #[test]
        fn only_checked_requests_get_through(
            operation_and_flags in any::<u32>(),
            sectors in prop_oneof![any::<u32>(), 0u32..4096],
            start_sector in prop_oneof![any::<u64>(), 0u64..4096],
            block in prop::sample::select(vec![512u32, 4096]),
        ) {
            let export = export(block);
            let descriptor = Descriptor { operation_and_flags, sectors, start_sector };
            if let Ok(found) = translate(descriptor, &export, 1 << 19) {
                prop_assert!(found.offset + found.length <= export.size);
                prop_assert!(found.offset.is_multiple_of(block.into()) && found.length.is_multiple_of(block.into()));
                prop_assert!(found.moved() <= 1 << 19);
                prop_assert_eq!(found.length == 0, found.operation == Operation::Flush);
            }
        }
    }
}
