//! Reads a fuzzer's bytes as decisions. Where they end, every further decision is the first one.

/// Bytes that are left.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `N` bytes, filled up with zeroes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes(N);
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next bytes, at most `most`.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u16()) % bound
    }

    /// A number of any size, small ones as likely as large ones.
    pub fn number(&mut self) -> u64 {
        let width = self.byte() % 65;
        if width == 0 { 0 } else { self.u64() >> (64 - width) }
    }

    /// Yes once in `times`.
    pub fn once_in(&mut self, times: u8) -> bool {
        self.byte() % times == times - 1
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
