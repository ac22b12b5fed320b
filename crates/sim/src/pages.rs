//! Sparse bytes: 4 KiB pages behind a flat page table. A page that was never written reads as zeroes.

/// Bytes of a page.
const PAGE: usize = 4096;
/// Table entry of a page that holds nothing.
const ABSENT: u32 = u32::MAX;

/// The bytes of a volume. The table takes 4 bytes per page, so it suits volumes up to a few GiB.
#[derive(Clone, Debug)]
pub struct Pages {
    table: Vec<u32>,
    arena: Vec<u8>,
    free: Vec<u32>,
}

impl Pages {
    /// All zeroes. `size` is in bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { table: vec![ABSENT; size.div_ceil(PAGE as u64) as usize], arena: Vec::new(), free: Vec::new() }
    }

    /// Makes room up to `size` bytes.
    pub fn grow(&mut self, size: u64) {
        self.table.resize(size.div_ceil(PAGE as u64) as usize, ABSENT);
    }

    fn page(&self, page: usize) -> Option<&[u8]> {
        let slot = self.table[page];
        (slot != ABSENT).then(|| &self.arena[slot as usize * PAGE..][..PAGE])
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8] {
        if self.table[page] == ABSENT {
            self.table[page] = self.free.pop().unwrap_or_else(|| {
                let slot = (self.arena.len() / PAGE) as u32;
                self.arena.resize(self.arena.len() + PAGE, 0);
                slot
            });
        }
        let slot = self.table[page] as usize;
        &mut self.arena[slot * PAGE..][..PAGE]
    }

    fn drop_page(&mut self, page: usize) {
        let slot = std::mem::replace(&mut self.table[page], ABSENT);
        if slot != ABSENT {
            self.arena[slot as usize * PAGE..][..PAGE].fill(0);
            self.free.push(slot);
        }
    }

    /// Copies bytes out, from `offset`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (page, start, range) in parts(offset, out.len()) {
            let length = range.len();
            match self.page(page) {
                Some(bytes) => out[range].copy_from_slice(&bytes[start..start + length]),
                None => out[range].fill(0),
            }
        }
    }

    /// Copies bytes in, at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (page, start, range) in parts(offset, data.len()) {
            let length = range.len();
            self.page_mut(page)[start..start + length].copy_from_slice(&data[range]);
        }
    }

    /// Fills a range with zeroes.
    pub fn zero(&mut self, offset: u64, length: u64) {
        for (page, start, range) in parts(offset, length as usize) {
            if range.len() == PAGE {
                self.drop_page(page);
            } else if self.table[page] != ABSENT {
                self.page_mut(page)[start..start + range.len()].fill(0);
            }
        }
    }

    /// Makes a range equal to the same range of `other`.
    pub fn copy_from(&mut self, other: &Self, offset: u64, length: u64) {
        for (page, start, range) in parts(offset, length as usize) {
            let part = start..start + range.len();
            match other.page(page) {
                Some(bytes) => self.page_mut(page)[part.clone()].copy_from_slice(&bytes[part]),
                None if self.table[page] != ABSENT => self.page_mut(page)[part].fill(0),
                None => {}
            }
        }
    }

    /// Flips one bit of the byte at `offset`.
    pub fn flip(&mut self, offset: u64, bit: u8) {
        self.page_mut((offset / PAGE as u64) as usize)[(offset % PAGE as u64) as usize] ^= 1 << (bit % 8);
    }

    /// The end of the last page of `offset..offset + length` that holds anything; `offset` if none does.
    #[must_use]
    pub fn used_end(&self, offset: u64, length: u64) -> u64 {
        let first = (offset / PAGE as u64) as usize;
        let end = ((offset + length).div_ceil(PAGE as u64) as usize).min(self.table.len());
        let last = (first..end).rev().find(|&page| self.table[page] != ABSENT);
        last.map_or(offset, |page| ((page as u64 + 1) * PAGE as u64).min(offset + length))
    }
}

/// Cuts a byte range at page boundaries: (page, first byte in the page, range of the caller's buffer).
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % PAGE as u64) as usize;
        let take = (PAGE - start).min(length - done);
        let range = done..done + take;
        done += take;
        Some(((at / PAGE as u64) as usize, start, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_the_rest_is_zero() {
        let mut pages = Pages::new(5 * 4096);
        pages.write(4000, &[7; 5000]);
        let mut out = vec![1; 5 * 4096];
        pages.read(0, &mut out);
        assert!(out[..4000].iter().all(|&byte| byte == 0));
        assert!(out[4000..9000].iter().all(|&byte| byte == 7));
        assert!(out[9000..].iter().all(|&byte| byte == 0));
        assert_eq!(pages.used_end(0, 5 * 4096), 3 * 4096);
        pages.zero(0, 5 * 4096);
        pages.read(0, &mut out);
        assert!(out.iter().all(|&byte| byte == 0));
        assert_eq!(pages.used_end(4096, 4096), 4096);
    }

    #[test]
    fn a_recycled_page_starts_at_zero() {
        let mut pages = Pages::new(3 * 4096);
        pages.write(0, &[9; 4096]);
        pages.zero(0, 4096);
        pages.write(8192, &[1; 512]);
        let mut out = [5; 4096];
        pages.read(8192, &mut out);
        assert!(out[..512].iter().all(|&byte| byte == 1) && out[512..].iter().all(|&byte| byte == 0));
    }
}
