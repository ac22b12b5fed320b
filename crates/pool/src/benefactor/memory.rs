//! The memory that a benefactor lends, allocated once: bytes at the places that `pool-core` assigns.

use std::cell::UnsafeCell;
use std::collections::TryReserveError;

use surgetank_pool_core::benefactor::Piece;
use surgetank_pool_core::benefactor::buffers::BUFFERS;

/// What the memory is filled with, a part at a time.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Three equal buffers.
pub(super) struct Memory {
    buffers: [Box<[UnsafeCell<u8>]>; BUFFERS],
}

// SAFETY: whoever calls `write` or `read` promises that nobody writes the piece meanwhile.
unsafe impl Sync for Memory {}

impl Memory {
    /// Three buffers of so many bytes.
    ///
    /// # Errors
    /// This process cannot have as much.
    pub(super) fn new(size: usize) -> Result<Self, TryReserveError> {
        let buffer = || -> Result<Box<[UnsafeCell<u8>]>, TryReserveError> {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size)?;
            // Copied, as zeroed memory is not there before it is written.
            while bytes.len() < size {
                bytes.extend_from_slice(&ZEROES[..ZEROES.len().min(size - bytes.len())]);
            }
            let bytes = Box::into_raw(bytes.into_boxed_slice());
            // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the pointer came from a box that is owned here.
            Ok(unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) })
        };
        Ok(Self { buffers: [buffer()?, buffer()?, buffer()?] })
    }

    /// Writes a piece's bytes.
    ///
    /// # Safety
    /// The piece's room is reserved, nobody else writes it, and nobody reads it before this returns.
    pub(super) unsafe fn write(&self, piece: Piece, bytes: &[u8]) {
        let room = self.room(piece);
        assert_eq!(room.len(), bytes.len(), "a piece is as long as its chunk");
        // SAFETY: the room is inside the buffer, and by the caller's promise no one else touches it. `UnsafeCell<u8>` has the
        // layout of `u8`, and `raw_get` keeps the slice's provenance.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), UnsafeCell::raw_get(room.as_ptr()), bytes.len()) };
    }

    /// A piece's bytes, where they lie.
    ///
    /// # Safety
    /// The piece was written, and its room is kept and nobody writes it as long as the slice is used.
    pub(super) unsafe fn read(&self, piece: Piece) -> &[u8] {
        let room = self.room(piece);
        // SAFETY: by the caller's promise no one writes these cells while the slice lives. `UnsafeCell<u8>` has the layout of `u8`, and
        // `raw_get` keeps the slice's provenance.
        unsafe { std::slice::from_raw_parts(UnsafeCell::raw_get(room.as_ptr()), room.len()) }
    }

    fn room(&self, piece: Piece) -> &[UnsafeCell<u8>] {
        let at = |number: u64| usize::try_from(number).expect("a piece lies in memory");
        &self.buffers[usize::from(piece.buffer)][at(piece.offset)..at(piece.offset + piece.length)]
    }
}
