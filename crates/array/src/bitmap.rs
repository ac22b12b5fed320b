//! A member's bitmap: what it should say, and what it says durably.

use crate::format::{ArrayId, BITS_PER_PAGE, Kind, MemberId, MemberState, Page, Pages, Superblock};
use crate::planted::{Bug, planted};

/// A set of numbers below a length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Vec<u64>,
    length: u64,
}

impl Bits {
    pub fn new(length: u64, all: bool) -> Self {
        let mut bits = Self::default();
        bits.resize(length, all);
        bits
    }

    /// More numbers, in the set or not.
    pub fn resize(&mut self, length: u64, all: bool) {
        let from = self.length;
        self.words.resize(length.div_ceil(64) as usize, 0);
        self.length = length;
        if all {
            (from..length).for_each(|number| self.set(number, true));
        }
    }

    pub fn get(&self, number: u64) -> bool {
        number < self.length && self.words[(number / 64) as usize] >> (number % 64) & 1 == 1
    }

    pub fn set(&mut self, number: u64, value: bool) {
        if number < self.length {
            let mask = 1 << (number % 64);
            let word = &mut self.words[(number / 64) as usize];
            *word = if value { *word | mask } else { *word & !mask };
        }
    }

    #[cfg(any(test, debug_assertions))]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first number from `from` on that is not in the set.
    pub fn first_clear(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.length {
            let rest = !self.words[(at / 64) as usize] >> (at % 64);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                return (found < self.length).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// What the bitmap of a member says, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Regions in the set: those that were ever written, or of a joining member those that are durably copied.
    pub regions: u64,
    /// Pages of which a copy is damaged or missing: all their regions count as written, or as not copied.
    pub pages_damaged: u32,
    /// Whether every bit is set, also those of no region: as [`Regions::Written`](crate::Regions::Written) makes them.
    pub filled: bool,
}

impl Said {
    /// From what was read of the bitmap of the member that has this superblock.
    #[must_use]
    pub fn of(superblock: &Superblock, pages: &Pages) -> Self {
        let Superblock { array, member, geometry, .. } = superblock;
        let kind = if superblock.state == MemberState::Joining { Kind::Copied } else { Kind::Written };
        let bitmap = Bitmap::read(*array, *member, kind, geometry.bitmap_pages, (pages, 0));
        Self {
            regions: (0..geometry.regions()).filter(|region| bitmap.wants(*region)).count() as u64,
            pages_damaged: bitmap.pages.iter().filter(|page| page.rewrites > 1).count() as u32,
            filled: bitmap
                .pages
                .iter()
                .all(|page| page.rewrites == 1 && page.wanted.iter().all(|word| *word == u64::MAX)),
        }
    }
}

/// Words of a page.
const WORDS: usize = BITS_PER_PAGE as usize / 64;
type Content = Box<[u64]>;

/// A page of the bitmap.
#[derive(Debug)]
struct PageState {
    /// What it should say.
    wanted: Content,
    /// What it says durably, but for what is unsure.
    media: Content,
    /// Bits of which the media may say either: a version is in flight, or failed.
    unsure: Content,
    /// Of the newest version that was ever begun.
    sequence: u64,
    /// Copy that the next version goes to: the older one.
    copy: u32,
    /// What is being written.
    writing: Option<Content>,
    /// Versions to write whatever has changed.
    rewrites: u32,
    /// It is to be written, as soon as nothing of it is in flight.
    due: bool,
}

/// A version of a page to write.
#[derive(Debug)]
pub(crate) struct Version {
    pub page: u32,
    /// Copy that it goes to.
    pub copy: u32,
    pub content: Page,
}

/// A member's bitmap.
#[derive(Debug)]
pub(crate) struct Bitmap {
    array: ArrayId,
    member: MemberId,
    kind: Kind,
    pages: Vec<PageState>,
    /// A page may be due.
    due: bool,
}

impl Bitmap {
    /// What was read of it. It counts as durable once it was written again: what a read shows may still be forgotten.
    /// Sequences go on from `floor`: of what could not be read, the sequence is not known.
    pub fn read(array: ArrayId, member: MemberId, kind: Kind, pages: u32, (read, floor): (&Pages, u64)) -> Self {
        let find = |page: u32, copy: u32| {
            let found = read.0.get((copy * pages + page) as usize)?.as_ref()?;
            let ours = found.array == array && found.member == member && found.page == page && found.kind == kind;
            ours.then_some(found)
        };
        let state = |page| {
            let copies = [find(page, 0), find(page, 1)];
            let sequence = copies.iter().flatten().map(|copy| copy.sequence).max().unwrap_or(0);
            let newest = copies.iter().position(|copy| copy.is_some_and(|copy| copy.sequence == sequence));
            let whole = copies.iter().all(Option::is_some) || planted(Bug::DamagedPageBelieved);
            let content: Content = match newest.and_then(|copy| copies[copy]).filter(|_| whole) {
                Some(page) => page.bits.clone(),
                None => vec![if kind == Kind::Written { u64::MAX } else { 0 }; WORDS].into_boxed_slice(),
            };
            PageState {
                wanted: content.clone(),
                media: content,
                unsure: vec![u64::MAX; WORDS].into_boxed_slice(),
                sequence: sequence.max(floor),
                // Whichever copy is damaged or older.
                copy: newest.map_or(0, |newest| 1 - newest as u32),
                writing: None,
                rewrites: if whole { 1 } else { 2 },
                due: true,
            }
        };
        Self { array, member, kind, pages: (0..pages).map(state).collect(), due: true }
    }

    /// The bitmap of a new member: nothing is in the set.
    pub fn empty(array: ArrayId, member: MemberId, kind: Kind, pages: u32) -> Self {
        let mut bitmap = Self::read(array, member, kind, pages, (&Pages::default(), 0));
        bitmap.pages.iter_mut().for_each(|page| page.wanted.fill(0));
        bitmap
    }

    /// Every region is in the set.
    pub fn fill(&mut self) {
        for page in &mut self.pages {
            page.wanted.fill(u64::MAX);
            page.due = true;
        }
        self.due = true;
    }

    /// A joining member becomes active: the same pages, with another meaning and other bits.
    pub fn become_written(&mut self, of: &Self) {
        self.kind = Kind::Written;
        self.due = true;
        for (page, of) in self.pages.iter_mut().zip(&of.pages) {
            page.wanted.clone_from(&of.wanted);
            page.unsure.fill(u64::MAX);
            page.rewrites = 2;
            page.due = true;
        }
    }

    #[cfg(debug_assertions)]
    pub fn is_kind(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    fn place(region: u64) -> (usize, usize, u64) {
        let bits = u64::from(BITS_PER_PAGE);
        ((region / bits) as usize, (region % bits / 64) as usize, 1 << (region % 64))
    }

    /// The page of a region.
    pub fn page_of(region: u64) -> u32 {
        Self::place(region).0 as u32
    }

    /// The highest sequence of all pages.
    pub fn last_sequence(&self) -> u64 {
        self.pages.iter().map(|page| page.sequence).max().unwrap_or(0)
    }

    /// What the region's bit should say.
    pub fn wants(&self, region: u64) -> bool {
        let (page, word, mask) = Self::place(region);
        self.pages[page].wanted[word] & mask != 0
    }

    /// Whether the region's bit is in the set durably, whatever is in flight.
    pub fn is_durably(&self, region: u64, value: bool) -> bool {
        let (page, word, mask) = Self::place(region);
        let page = &self.pages[page];
        page.unsure[word] & mask == 0 && (page.media[word] & mask != 0) == value
    }

    /// Whether the region's bit is in the set durably, and is to stay.
    pub fn is_settled(&self, region: u64) -> bool {
        self.wants(region) && self.is_durably(region, true)
    }

    /// The region's bit should say this, some time.
    pub fn set(&mut self, region: u64, value: bool) {
        let (page, word, mask) = Self::place(region);
        let page = &mut self.pages[page];
        let before = page.wanted[word];
        page.wanted[word] = if value { before | mask } else { before & !mask };
        page.due |= page.wanted[word] != before;
        self.due |= page.due;
    }

    /// The region's bit must say this. Whether it does so durably already; else its page will be written.
    pub fn ensure(&mut self, region: u64, value: bool) -> bool {
        self.set(region, value);
        let settled = self.is_durably(region, value);
        let page = &mut self.pages[Self::place(region).0];
        page.due |= !settled && page.writing.is_none();
        self.due |= page.due;
        settled
    }

    /// Whether every page was written as often as it must be since it was read.
    pub fn is_written(&self) -> bool {
        self.pages.iter().all(|page| page.rewrites == 0)
    }

    /// Whether a page may be due.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// The next version to write.
    pub fn next_version(&mut self) -> Option<Version> {
        let number = self.pages.iter().position(|page| page.due && page.writing.is_none());
        self.due = number.is_some();
        let number = number?;
        let page = &mut self.pages[number];
        page.due = false;
        page.sequence += 1;
        for ((unsure, media), wanted) in page.unsure.iter_mut().zip(&page.media).zip(&page.wanted) {
            *unsure |= media ^ wanted;
        }
        page.writing = Some(page.wanted.clone());
        let (array, member, kind, sequence) = (self.array, self.member, self.kind, page.sequence);
        let number = number as u32;
        let content = Page { array, member, sequence, page: number, kind, bits: page.wanted.clone() };
        Some(Version { page: number, copy: page.copy, content })
    }

    /// The version in flight of a page is durable, or has failed.
    pub fn written(&mut self, page: u32, durable: bool) {
        let Some(page) = self.pages.get_mut(page as usize) else { return };
        let Some(content) = page.writing.take() else { return };
        if durable {
            page.media = content;
            page.copy = 1 - page.copy;
            page.rewrites = page.rewrites.saturating_sub(1);
            page.unsure.fill(0);
            page.due |= page.rewrites > 0 || page.wanted != page.media;
        }
        self.due |= page.due;
    }

    /// Versions in flight.
    pub fn writes_in_flight(&self) -> usize {
        self.pages.iter().filter(|page| page.writing.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitmap(read: &Pages) -> Bitmap {
        Bitmap::read(ArrayId([1; 16]), MemberId([2; 16]), Kind::Written, 1, (read, 0))
    }

    /// Writes the next version to `blocks`.
    fn write(bitmap: &mut Bitmap, blocks: &mut [Option<Page>]) {
        let version = bitmap.next_version().expect("a page is due");
        blocks[version.copy as usize] = Some(version.content);
        bitmap.written(version.page, true);
    }

    #[test]
    fn a_bit_is_durable_once_its_page_is_and_a_failure_leaves_it_unsure() {
        let mut bitmap = Bitmap::empty(ArrayId([1; 16]), MemberId([2; 16]), Kind::Written, 1);
        let mut blocks = [None, None];
        write(&mut bitmap, &mut blocks);
        write(&mut bitmap, &mut blocks);
        assert!(bitmap.is_written() && bitmap.next_version().is_none());
        assert!(!bitmap.ensure(70, true));
        let version = bitmap.next_version().expect("the page of region 70");
        assert!(!bitmap.is_durably(70, true) && !bitmap.is_durably(70, false) && bitmap.is_durably(71, false));
        bitmap.written(version.page, false);
        assert!(!bitmap.ensure(70, true), "a version that failed is no version");
        write(&mut bitmap, &mut blocks);
        assert!(bitmap.ensure(70, true));
        let again = super::tests::bitmap(&Pages(blocks.to_vec()));
        assert!(again.wants(70) && !again.wants(71));
    }

    #[test]
    fn of_a_page_with_a_damaged_copy_every_region_counts_as_written() {
        let mut first = Bitmap::empty(ArrayId([1; 16]), MemberId([2; 16]), Kind::Written, 1);
        let mut blocks = [None, None];
        write(&mut first, &mut blocks);
        write(&mut first, &mut blocks);
        for damaged in 0..2 {
            let mut blocks = blocks.clone();
            blocks[damaged] = None;
            let mut bitmap = bitmap(&Pages(blocks.to_vec()));
            assert!(bitmap.wants(5));
            write(&mut bitmap, &mut blocks);
            assert!(blocks.iter().all(Option::is_some) && !bitmap.is_written());
        }
    }

    #[test]
    fn the_first_number_that_is_missing_is_found() {
        let mut bits = Bits::new(130, true);
        assert_eq!(bits.first_clear(0), None);
        bits.set(129, false);
        assert_eq!((bits.first_clear(3), bits.count()), (Some(129), 129));
        bits.resize(200, false);
        bits.set(129, true);
        assert_eq!(bits.first_clear(0), Some(130));
    }
}
