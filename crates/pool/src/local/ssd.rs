//! The SSD directories of a pool of one machine: whose they are, and which of the store's files they have.
//!
//! Each benefactor has a directory of its own, by its number. A file in it says whose it is from its first life on, so that an empty
//! directory in the place of one that is not mounted yet is told from one that nobody has filled.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::holdings::{GroupOf, own};
use surgetank_pool_core::id::{BenefactorId, Inode, Version};
use surgetank_pool_core::meta::Group;
use surgetank_pool_core::parity::is_readable;

use super::Error;
use crate::benefactor::ssd::{Directory, Found, Ssd};
use crate::chunks::TableOf;

/// The file that says whose a directory is.
const OWNER: &str = "owner";

/// A benefactor's directory.
pub(super) struct Kept {
    directory: Arc<Directory>,
    path: PathBuf,
    /// It is beyond the benefactors that are wanted.
    pub(super) is_leaving: bool,
    /// No benefactor has had it before.
    is_new: bool,
}

/// See the module.
pub(super) struct Ssds {
    pool: u64,
    of: BTreeMap<BenefactorId, Kept>,
}

/// What a directory has: for each table that is whole its chunks.
type Has = BTreeMap<TableOf, BTreeSet<u32>>;

/// A version of a file as the store has it: its groups, each with the version that wrote it.
pub(super) type File = (Inode, Vec<(u32, Version, Group)>);

impl Ssds {
    /// Takes the directories of so many benefactors below `root`, with so much room in each, and those that former lives have left there.
    pub(super) fn open(root: &Path, benefactors: u32, size: Bytes, pool: u64) -> Result<Self, Error> {
        let numbers = numbered(root)?.into_iter().chain(0..benefactors).collect::<BTreeSet<u32>>();
        let mut all = Vec::new();
        for number in numbers {
            let (id, path) = (BenefactorId(number), root.join(number.to_string()));
            let is_new = match owner(&path)? {
                Some(text) if text == of_benefactor(pool, id) => false,
                Some(text) => return Err(Error::Ssd(not_ours(&path, &text, pool))),
                None => true,
            };
            all.push((id, path, is_new));
        }
        let mut of = BTreeMap::new();
        for (id, path, is_new) in all {
            let is_leaving = id.0 >= benefactors;
            let directory = match size > Bytes::ZERO && !is_leaving {
                true => Directory::open(&path, size.get()),
                false if is_new => continue,
                // What it has is served, also when no SSD is lent any more.
                false => Directory::as_it_is(&path),
            };
            let directory = Arc::new(directory.map_err(|error| Error::Ssd(error.to_string()))?);
            of.insert(id, Kept { directory, path, is_leaving, is_new });
        }
        Ok(Self { pool, of })
    }

    /// From now on the directories are this pool's.
    pub(super) fn own(&self) -> Result<(), Error> {
        for (id, kept) in self.of.iter().filter(|(_, kept)| kept.is_new) {
            let write = || {
                let mut file = std::fs::File::create(kept.path.join(OWNER))?;
                file.write_all(of_benefactor(self.pool, *id).as_bytes())?;
                file.sync_all()?;
                std::fs::File::open(&kept.path)?.sync_all()
            };
            write().map_err(|error| {
                Error::Ssd(format!("SSD directory {}: {error}: name one that can be written", kept.path.display()))
            })?;
        }
        Ok(())
    }

    /// Whether a former life of this benefactor has had the directory that it has now.
    pub(super) fn has_former(&self, id: BenefactorId) -> bool {
        self.of.get(&id).is_some_and(|kept| !kept.is_new)
    }

    /// Of those beyond the wanted benefactors only these are kept; where the others are.
    pub(super) fn keep(&mut self, needed: &BTreeSet<BenefactorId>) -> Vec<PathBuf> {
        let over = |id: &BenefactorId, kept: &Kept| kept.is_leaving && !needed.contains(id);
        let paths = self.of.iter().filter(|(id, kept)| over(id, kept)).map(|(_, kept)| kept.path.clone()).collect();
        self.of.retain(|id, kept| !over(id, kept));
        paths
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BenefactorId, &Kept)> {
        self.of.iter().map(|(id, kept)| (*id, kept))
    }

    /// What a benefactor lends.
    pub(super) fn ssd(&self, id: BenefactorId) -> Option<Ssd> {
        self.of.get(&id).map(|kept| Ssd(Arc::<Directory>::clone(&kept.directory)))
    }

    /// Which of these files are whole there, whatever becomes of all memory.
    pub(super) fn whole(&self, files: &[File]) -> Result<BTreeSet<Inode>, Error> {
        let mut has = BTreeMap::new();
        if files.iter().any(|(_, groups)| !groups.is_empty()) {
            for (id, kept) in &self.of {
                let disk = Arc::<Directory>::clone(&kept.directory);
                let found = Found::read(disk).map_err(|error| Error::Ssd(error.to_string()))?;
                has.insert(*id, tables(&found));
            }
        }
        let whole = files.iter().filter(|(inode, groups)| groups.iter().all(|group| is_whole(&has, *inode, group)));
        Ok(whole.map(|(inode, _)| *inode).collect())
    }
}

/// The tables all of whose chunks are there: a benefactor's next life knows no others.
fn tables(found: &Found) -> Has {
    let whole = found
        .tables
        .iter()
        .filter(|(_, (_, table))| own(table).all(|(_, entry)| found.chunks.contains_key(&entry.instance)));
    whole.map(|(of, (_, table))| (*of, table.keys().copied().collect())).collect()
}

/// Whether each chunk of a group is at a benefactor that the layout names for it.
fn is_whole(has: &BTreeMap<BenefactorId, Has>, inode: Inode, (index, version, group): &(u32, Version, Group)) -> bool {
    let of = (GroupOf { inode, group: *index }, *version, group.by);
    is_readable(&group.layout, group.present(), |place, chunk| {
        has.get(&place.id).and_then(|has| has.get(&of)).is_some_and(|chunks| chunks.contains(&chunk))
    })
}

fn of_benefactor(pool: u64, id: BenefactorId) -> String {
    format!("benefactor {id} of pool {pool:x}\n")
}

/// What a directory says whose it is; `None`: nobody has had it.
fn owner(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read(path.join(OWNER)) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Error::Ssd(format!("SSD directory {}: {error}: name one that can be read", path.display()))),
    }
}

fn not_ours(path: &Path, owner: &str, pool: u64) -> String {
    let shown = path.display();
    match owner.strip_suffix(&format!(" of pool {pool:x}\n")) {
        Some(other) => format!("SSD directory {shown}: it is that of {other}: rename the directories as they were"),
        None => format!(
            "SSD directory {shown}: another pool has its files there: name the --directory of that pool, or another \
             --ssd-directory"
        ),
    }
}

/// The numbers of the directories that are there.
fn numbered(root: &Path) -> Result<BTreeSet<u32>, Error> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => {
            let sentence = format!("SSD directory {}: {error}: name a directory", root.display());
            return Err(Error::Ssd(sentence));
        }
    };
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        let number: u32 = name.to_str()?.parse().ok()?;
        (number.to_string() == name.to_str()?).then_some(number)
    };
    Ok(entries.filter_map(number).collect())
}
