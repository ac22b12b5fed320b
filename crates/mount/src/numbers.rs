//! The numbers that the kernel has for nodes.
//!
//! What the pool has goes by the pool's number, and the root by 1. What the target alone has gets a number of this mount's, which begins with a
//! set bit as none of the pool's does, and keeps it, also when it is imported, for as long as the kernel knows it: otherwise what is open would
//! be another file than the one that is named. Of each such number it is known in which directory it is, under which name.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{Errno, FileAttr, FileType, INodeNo};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::value::Path;

/// The bit of what the target alone has.
const AT_TARGET: u64 = 1 << 63;
/// The bit of those whose number at the target is taken here.
const COUNTED: u64 = 1 << 62;
/// How long a number stays known that the kernel has forgotten: an answer with it may be on its way.
const STAYS: Duration = Duration::from_secs(10);

/// What is known of a number.
#[derive(Debug)]
struct Known {
    /// Its directory, by the kernel's number.
    parent: u64,
    name: Name,
    /// What the target calls it: another one under the same name has another number.
    at_target: u64,
    /// The pool's number, once it is imported.
    pool: Option<Inode>,
    /// How often the kernel was told of it, and how many numbers have it as their directory.
    uses: u64,
}

#[derive(Debug, Default)]
struct Table {
    known: BTreeMap<u64, Known>,
    names: BTreeMap<(u64, Name), u64>,
    pool: BTreeMap<Inode, u64>,
    /// What the kernel has forgotten, and when.
    forgotten: VecDeque<(u64, Instant)>,
    next: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Numbers {
    root: Inode,
    table: Mutex<Table>,
    /// How long files are as the kernel was told last.
    sizes: Mutex<BTreeMap<u64, u64>>,
}

/// A directory of the pool, and a path below it that the target alone has.
pub(crate) type Place = (Inode, Path);

impl Numbers {
    pub(crate) fn new(root: Inode) -> Self {
        Self { root, table: Mutex::default(), sizes: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool's number of what the kernel names; `None`: the pool has none of it, as far as is known here.
    pub(crate) fn inode(&self, number: INodeNo) -> Option<Inode> {
        match number {
            INodeNo::ROOT => Some(self.root),
            INodeNo(number) if number & AT_TARGET == 0 => Some(Inode(number)),
            INodeNo(number) => self.table().known.get(&number)?.pool,
        }
    }

    /// The kernel's number of what the pool has.
    pub(crate) fn number(&self, inode: Inode) -> INodeNo {
        if inode == self.root {
            return INodeNo::ROOT;
        }
        INodeNo(self.table().pool.get(&inode).copied().unwrap_or(inode.0))
    }

    /// What the target calls what the kernel names so, if the pool does not have it.
    pub(crate) fn number_at_target(&self, number: INodeNo) -> Option<u64> {
        self.table().known.get(&number.0).map(|known| known.at_target)
    }

    /// Where that is which the kernel names.
    ///
    /// # Errors
    /// ESTALE: nobody knows it any more.
    pub(crate) fn place(&self, number: INodeNo) -> Result<Place, Errno> {
        let table = self.table();
        let (mut names, mut at) = (Vec::new(), number);
        let directory = loop {
            match at {
                INodeNo::ROOT => break self.root,
                INodeNo(number) if number & AT_TARGET == 0 => break Inode(number),
                INodeNo(number) => match table.known.get(&number) {
                    Some(Known { pool: Some(inode), .. }) => break *inode,
                    Some(known) => {
                        names.push(known.name.clone());
                        at = INodeNo(known.parent);
                    }
                    None => return Err(Errno::ESTALE),
                },
            }
        };
        names.reverse();
        Ok((directory, Path(names)))
    }

    /// The directories above what the kernel names that the target alone has, from the uppermost on.
    pub(crate) fn way_to(&self, number: INodeNo) -> Vec<INodeNo> {
        let table = self.table();
        let above = |number: &INodeNo| {
            let parent = table.known.get(&number.0)?.parent;
            table.known.get(&parent).filter(|known| known.pool.is_none()).map(|_| INodeNo(parent))
        };
        let mut way: Vec<INodeNo> = std::iter::successors(above(&number), above).collect();
        way.reverse();
        way
    }

    /// The number of what the target alone has under a name, where it has the number `at_target`; `was`: it had, and may be imported.
    pub(crate) fn at_target(&self, parent: INodeNo, name: &Name, at_target: u64, was: bool) -> INodeNo {
        let mut table = self.table();
        let is_same = |known: &Known| (was || known.pool.is_none()) && known.at_target == at_target;
        if let Some(number) = table.names.get(&(parent.0, name.clone()))
            && table.known.get(number).is_some_and(is_same)
        {
            return INodeNo(*number);
        }
        // As the target has it, so that programs find it the same later; but hard links are different files here.
        let mut number = Self::like(at_target).0;
        while table.known.contains_key(&number) {
            table.next += 1;
            number = AT_TARGET | COUNTED | table.next;
        }
        if let Some(above) = table.known.get_mut(&parent.0) {
            above.uses += 1;
        }
        table.names.insert((parent.0, name.clone()), number);
        table.known.insert(number, Known { parent: parent.0, name: name.clone(), at_target, pool: None, uses: 0 });
        INodeNo(number)
    }

    /// The number that something at the target has, if nothing else has it.
    pub(crate) const fn like(at_target: u64) -> INodeNo {
        INodeNo(AT_TARGET | at_target & !COUNTED)
    }

    /// What has that name, as far as the kernel was told, and the target alone has.
    pub(crate) fn named(&self, parent: INodeNo, name: &Name) -> Option<INodeNo> {
        let table = self.table();
        let number = table.names.get(&(parent.0, name.clone()))?;
        table.known.get(number).filter(|known| known.pool.is_none()).map(|_| INodeNo(*number))
    }

    /// It has lost its name.
    pub(crate) fn unnamed(&self, parent: INodeNo, name: &Name) {
        self.table().names.remove(&(parent.0, name.clone()));
    }

    /// The pool has it by now.
    pub(crate) fn imported(&self, number: INodeNo, inode: Inode) {
        let mut table = self.table();
        if let Some(known) = table.known.get_mut(&number.0) {
            known.pool = Some(inode);
            table.pool.insert(inode, number.0);
        }
    }

    /// The kernel is told of a number.
    pub(crate) fn given(&self, attributes: &FileAttr) {
        self.told(attributes);
        self.used(attributes.ino);
    }

    fn used(&self, number: INodeNo) {
        if let Some(known) = self.table().known.get_mut(&number.0) {
            known.uses += 1;
        }
    }

    /// The kernel is told of the attributes of a number that it has.
    pub(crate) fn told(&self, attributes: &FileAttr) {
        if attributes.kind == FileType::RegularFile {
            self.sizes().insert(attributes.ino.0, attributes.size);
        }
    }

    /// Whether the kernel may believe that a file has another size.
    pub(crate) fn has_other_size(&self, number: INodeNo, size: u64) -> bool {
        self.sizes().get(&number.0) != Some(&size)
    }

    fn sizes(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel has forgotten a number as often as it was told.
    pub(crate) fn forget(&self, number: INodeNo, times: u64) {
        self.sizes().remove(&number.0);
        let mut table = self.table();
        table.end_uses(number.0, times);
        while let Some((number, since)) = table.forgotten.front().copied()
            && since.elapsed() > STAYS
        {
            table.forgotten.pop_front();
            table.drop_unused(number);
        }
    }
}

impl Table {
    fn end_uses(&mut self, number: u64, times: u64) {
        let Some(known) = self.known.get_mut(&number) else { return };
        known.uses = known.uses.saturating_sub(times);
        if known.uses == 0 {
            self.forgotten.push_back((number, Instant::now()));
        }
    }

    fn drop_unused(&mut self, number: u64) {
        if self.known.get(&number).is_none_or(|known| known.uses > 0) {
            return;
        }
        let Some(known) = self.known.remove(&number) else { return };
        let at = (known.parent, known.name);
        if self.names.get(&at) == Some(&number) {
            self.names.remove(&at);
        }
        if let Some(inode) = known.pool.filter(|inode| self.pool.get(inode) == Some(&number)) {
            self.pool.remove(&inode);
        }
        self.end_uses(known.parent, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_number_stays_with_what_it_names_when_that_is_imported_and_moved() {
        let numbers = Numbers::new(Inode(3));
        let directory = numbers.at_target(INodeNo::ROOT, &name("d"), 17, false);
        let file = numbers.at_target(directory, &name("f"), 18, false);
        assert_eq!(numbers.place(file), Ok((Inode(3), Path(vec![name("d"), name("f")]))));
        assert_eq!((numbers.way_to(file), numbers.way_to(directory)), (vec![directory], Vec::new()));
        assert_eq!(numbers.at_target(directory, &name("f"), 18, false), file);
        assert_ne!(numbers.at_target(directory, &name("hard link"), 18, false), file);
        assert_ne!(numbers.at_target(directory, &name("f"), 19, false), file, "another file");
        numbers.imported(directory, Inode(1 << 30));
        numbers.unnamed(INodeNo::ROOT, &name("d"));
        assert_eq!(numbers.place(file), Ok((Inode(1 << 30), Path(vec![name("f")]))));
        assert_eq!((numbers.number(Inode(1 << 30)), numbers.inode(directory)), (directory, Some(Inode(1 << 30))));
        assert!(numbers.way_to(file).is_empty(), "its directory is the pool's");
        assert_eq!((numbers.inode(file), numbers.inode(INodeNo::ROOT)), (None, Some(Inode(3))));
        assert_eq!(numbers.number(Inode(3)), INodeNo::ROOT);
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_forgotten_once_nothing_is_below_it() {
        let numbers = Numbers::new(Inode(3));
        let directory = numbers.at_target(INodeNo::ROOT, &name("d"), 17, false);
        let file = numbers.at_target(directory, &name("f"), 18, false);
        [directory, file, file].into_iter().for_each(|number| numbers.used(number));
        let mut table = numbers.table();
        table.end_uses(directory.0, 1);
        table.end_uses(file.0, 1);
        [directory.0, file.0].into_iter().for_each(|number| table.drop_unused(number));
        assert_eq!(table.known.len(), 2);
        table.end_uses(file.0, 1);
        [file.0, directory.0].into_iter().for_each(|number| table.drop_unused(number));
        assert!(table.known.is_empty() && table.names.is_empty() && table.forgotten.len() >= 2);
        drop(table);
        assert_eq!(numbers.place(file), Err(Errno::ESTALE));
    }
}
