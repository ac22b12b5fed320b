//! Sessions that write, seal and commit on one benefactor, which hears of the store late and in any order, beside readers of whatever
//! the store has.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_pool_core::benefactor::buffers::{Buffers, Piece};
use surgetank_pool_core::benefactor::holdings::{
    Admission, Effect, Entry, GroupOf, Holdings, Instance, Location, NotAdopted, Put, SealOrder, Table, Taken,
    bytes_on_ssd,
};
use surgetank_pool_core::benefactor::sharing::FACTOR;
use surgetank_pool_core::id::{Incarnation, Inode, MountId, SessionId, Version};

const CHUNK: u64 = 8;
const LIFE: Incarnation = Incarnation(3);

/// A read that is under way.
#[derive(Debug)]
struct Reading {
    entry: Entry,
    location: Location,
}

/// What a version of a group is.
struct Committed {
    table: Table,
    /// Whether this benefactor is one of those that it names.
    here: bool,
}

#[derive(Default)]
struct Store {
    /// The versions of each group, and who committed them.
    groups: BTreeMap<GroupOf, BTreeMap<(Version, SessionId), Committed>>,
    files: BTreeMap<Inode, Version>,
}

struct World {
    random: Random,
    holdings: Holdings,
    has_ssd: bool,
    /// Chunks of a group that sessions write.
    chunks: u64,
    store: Store,
    /// Which instance's bytes are in memory and on SSD.
    memory: BTreeMap<(u8, u64), Instance>,
    ssd: BTreeSet<Instance>,
    coming: Vec<(Instance, Piece)>,
    moving: Vec<(Instance, Piece)>,
    reading: Vec<Reading>,
    /// Drafts of a session, by the group and chunk that they are for.
    drafts: BTreeMap<(SessionId, GroupOf), Table>,
    sessions: BTreeSet<SessionId>,
    sealed: Vec<(SessionId, GroupOf, Version, Table)>,
    /// Seals whose doubles may still come, once repair has brought that version.
    late: Vec<(SessionId, GroupOf, Version, Table)>,
    news: Vec<(GroupOf, BTreeSet<(Version, SessionId)>)>,
    numbers: u64,
    /// Whose room each instance takes, and its bytes.
    rooms: BTreeMap<Instance, (Inode, Option<MountId>, u64)>,
    /// What repair has brought.
    brought: BTreeSet<Instance>,
}

/// The mount of a file.
const fn mount_of(inode: Inode) -> MountId {
    MountId(inode.0 as u32)
}

/// What a chunk of so many bytes takes of an SSD.
fn on_ssd(length: u64) -> u64 {
    bytes_on_ssd(u32::try_from(length).unwrap_or(u32::MAX))
}

fn is_divided(what: &str, has: u64, may: u64) -> Result<(), String> {
    match has == 0 || has < may {
        true => Ok(()),
        false => Err(format!("a chunk is {what} whose mount has {has} bytes, and may have {may}")),
    }
}

/// Bytes of the SSD: few, so that mounts contend.
const SSD: u64 = 12 * 2 * 4096;

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let memory = CHUNK * 3 * (2 + random.below(10));
    let buffers = Buffers::new(memory, CHUNK).map_err(|error| error.to_string())?;
    let ssd = random.chance(0.7);
    // Many fill the memory.
    let chunks = if random.chance(0.5) { 3 } else { 16 };
    let mut world = World {
        random,
        holdings: Holdings::new(LIFE, buffers, ssd),
        has_ssd: ssd,
        chunks,
        store: Store::default(),
        memory: BTreeMap::new(),
        ssd: BTreeSet::new(),
        coming: Vec::new(),
        moving: Vec::new(),
        reading: Vec::new(),
        drafts: BTreeMap::new(),
        sessions: BTreeSet::from([SessionId(1), SessionId(2)]),
        sealed: Vec::new(),
        late: Vec::new(),
        news: Vec::new(),
        numbers: 10,
        rooms: BTreeMap::new(),
        brought: BTreeSet::new(),
    };
    for step in 0..500 {
        world
            .step()
            .and_then(|()| world.leaves_room())
            .and_then(|()| world.counts_rooms())
            .map_err(|what| format!("step {step}: {what}"))?;
    }
    world.end()
}

impl World {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn pick<T: Copy>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = from.into_iter().collect();
        all.get(self.random.below(all.len() as u64) as usize).copied()
    }

    fn step(&mut self) -> Result<(), String> {
        let file = Inode(1 + self.random.below(2));
        let of = GroupOf { inode: file, group: u32::try_from(self.random.below(2)).unwrap_or_default() };
        let session = self.pick(self.sessions.clone()).unwrap_or(SessionId(1));
        match self.random.below(17) {
            0..=3 => self.put(session, of)?,
            4 | 5 => self.arrive(),
            6 | 7 => self.seal(session, of)?,
            8 | 9 => self.commit(),
            10 => self.hear(),
            11 => return self.begin_read(),
            12 => return self.end_read(),
            13 => {
                let free = self.free_ssd();
                if let Some(effect) = self.holdings.next_effect(Some(free)) {
                    return self.act(effect, free);
                }
            }
            14 => return self.end_move(),
            15 => return self.repair(),
            _ => match self.random.below(8) {
                0 => self.end_session(session),
                1 => self.forget(file),
                // It hears to which mount a file belongs.
                3 => {
                    self.holdings.is_of(file, mount_of(file));
                    let of_file = self.rooms.values_mut().filter(|(inode, mount, _)| *inode == file && mount.is_none());
                    of_file.for_each(|(_, mount, _)| *mount = Some(mount_of(file)));
                }
                2 => self.holdings.close_filling(),
                // The target has seen what it needed: earlier versions go.
                _ => {
                    if let Some(versions) = self.store.groups.get_mut(&of) {
                        while versions.len() > 1 {
                            versions.pop_first();
                        }
                        self.tell(of);
                    }
                }
            },
        }
        Ok(())
    }

    fn act(&mut self, effect: Effect, free: u64) -> Result<(), String> {
        match effect {
            Effect::Move(instance, piece) => {
                let factor = if self.brought.contains(&instance) { FACTOR * FACTOR } else { FACTOR };
                is_divided("moved", self.on_ssd(self.rooms[&instance].1), factor * free)?;
                self.moving.push((instance, piece));
                Ok(())
            }
            Effect::FreeSsd(instance) if !self.ssd.remove(&instance) => {
                Err(format!("{instance:?} is freed on SSD, where it is not"))
            }
            Effect::FreeSsd(instance) => self.is_not_needed(instance),
        }
    }

    /// A put was refused: all that is in memory goes to the SSD, if that has room.
    fn makes_room(&mut self) -> Result<(), String> {
        while let Some(effect) = self.holdings.next_effect(Some(u64::MAX)) {
            self.act(effect, u64::MAX / (FACTOR * FACTOR))?;
        }
        let stays = |instance: &Instance| {
            let is = |(of, _): &(Instance, Piece)| of == instance;
            !self.coming.iter().any(is) && !self.moving.iter().any(is) && !self.ssd.contains(instance)
        };
        match self.holdings.instances().find(stays) {
            Some(instance) if self.has_ssd => Err(format!("a put is refused, and {instance:?} stays in memory")),
            _ => Ok(()),
        }
    }

    fn put(&mut self, session: SessionId, of: GroupOf) -> Result<(), String> {
        let instance = Instance { session, number: self.number() };
        let length = u32::try_from(1 + self.random.below(CHUNK)).unwrap_or(1);
        let entry = Entry { instance, length, crc: u32::try_from(self.numbers).unwrap_or_default() };
        let mount = (!self.random.chance(0.1)).then_some(mount_of(of.inode));
        let put = Put { incarnation: LIFE, inode: of.inode, mount, entry };
        let (has, free) = (self.holdings.taken(mount).memory, self.holdings.free());
        let (free_ssd, most) = (self.free_ssd(), self.factor(mount, 0) * free);
        // Now and then it comes after its session has written it elsewhere.
        let is_late = self.random.chance(0.1);
        if is_late {
            self.holdings.withdraw_for_good(instance);
        }
        let admission = self.holdings.put(&put, free_ssd);
        if is_late {
            return match admission {
                Admission::Withdrawn => Ok(()),
                other => Err(format!("{instance:?} was withdrawn before it came, and is taken: {other:?}")),
            };
        }
        if let Admission::Room(piece) = admission {
            is_divided("taken", has, most)?;
            self.rooms.insert(instance, (of.inode, mount, length.into()));
            self.coming.push((instance, piece));
            let chunk = u32::try_from(self.random.below(self.chunks)).unwrap_or_default();
            if let Some(former) = self.drafts.entry((session, of)).or_default().insert(chunk, entry) {
                self.holdings.withdraw(former.instance);
            }
        } else if admission == Admission::Full && self.random.chance(0.3) {
            self.makes_room()?;
        }
        Ok(())
    }

    /// A chunk's bytes come; now and then they are damaged.
    fn arrive(&mut self) {
        if self.coming.is_empty() {
            return;
        }
        let at = self.random.below(self.coming.len() as u64) as usize;
        let (instance, piece) = self.coming.swap_remove(at);
        for offset in piece.offset..piece.offset + piece.length {
            self.memory.insert((piece.buffer, offset), instance);
        }
        let intact = !self.random.chance(0.1);
        self.holdings.stored(instance, intact);
        if !intact {
            self.drafts.values_mut().for_each(|table| table.retain(|_, entry| entry.instance != instance));
        }
    }

    /// A session seals its drafts on top of what the group is now.
    fn seal(&mut self, session: SessionId, of: GroupOf) -> Result<(), String> {
        let Some(drafts) = self.drafts.get(&(session, of)).filter(|drafts| !drafts.is_empty()).cloned() else {
            return Ok(());
        };
        let newest = self.store.groups.get(&of).and_then(|group| group.last_key_value());
        let mut table = newest
            .filter(|(_, committed)| committed.here)
            .map_or_else(Table::new, |(_, committed)| committed.table.clone());
        table.extend(drafts.iter().map(|(chunk, entry)| (*chunk, *entry)));
        let version = self.store.files.get(&of.inode).copied().unwrap_or_default().next();
        let coming = |entry: &&Entry| self.coming.iter().any(|(instance, _)| *instance == entry.instance);
        let complete = !drafts.values().any(|entry| coming(&entry));
        let order = SealOrder(self.number(), 0);
        match self.holdings.seal(of, version, session, order, table.clone()) {
            Ok(()) if !complete => Err("a table was sealed whose bytes have not come".to_owned()),
            Ok(()) => {
                self.sealed.retain(|(by, group, ..)| (*by, *group) != (session, of));
                self.sealed.push((session, of, version, table));
                Ok(())
            }
            Err(_) if !complete => Ok(()),
            Err(missing) => Err(format!("{missing:?} of {table:?} are missing")),
        }
    }

    /// The store decides.
    fn commit(&mut self) {
        if self.sealed.is_empty() {
            return;
        }
        let at = self.random.below(self.sealed.len() as u64) as usize;
        let (session, of, version, mut table) = self.sealed.swap_remove(at);
        let newest = self.store.files.entry(of.inode).or_default();
        if !self.sessions.contains(&session) || newest.next() != version {
            return;
        }
        *newest = version;
        let keeps = self.random.chance(0.5);
        // Now and then the session has sealed something else elsewhere, and commits that.
        let here = !self.random.chance(0.2);
        if !here {
            self.late.push((session, of, version, table.clone()));
            table.retain(|_, _| self.random.chance(0.7));
            for entry in table.values_mut() {
                self.numbers += 1;
                entry.instance.number = self.numbers;
            }
        }
        let group = self.store.groups.entry(of).or_default();
        if !keeps {
            group.clear();
        }
        group.insert((version, session), Committed { table, here });
        // What it wrote is committed: the next draft of a chunk is another one.
        for entry in self.drafts.remove(&(session, of)).unwrap_or_default().into_values() {
            self.holdings.withdraw(entry.instance);
        }
        self.tell(of);
    }

    /// Repair brings what others had of a version, to a benefactor that the layout names already or that it did not name; then a double of a
    /// seal may come late.
    fn repair(&mut self) -> Result<(), String> {
        let versions = self.store.groups.iter().flat_map(|(of, group)| {
            group.iter().map(|((version, by), committed)| (*of, *version, *by, committed.here))
        });
        let Some((of, version, by, named)) = self.pick(versions.collect::<Vec<_>>()) else { return Ok(()) };
        let mut part = self.store.groups[&of][&(version, by)].table.clone();
        if named {
            // A chunk of another column.
            let instance = Instance { session: by, number: self.number() };
            let chunk = u32::try_from(self.chunks + self.random.below(3)).unwrap_or_default();
            part = Table::from([(chunk, Entry { instance, length: 1, crc: 0 })]);
        }
        for entry in part.values() {
            let put = Put { incarnation: LIFE, inode: of.inode, mount: None, entry: *entry };
            let free_ssd = self.free_ssd();
            match self.holdings.put_copy(&put, free_ssd) {
                Admission::Room(piece) => {
                    // One that takes the place of a damaged one is its mount's.
                    let mount = self.rooms.get(&entry.instance).and_then(|(_, mount, _)| *mount);
                    self.rooms.insert(entry.instance, (of.inode, mount, entry.length.into()));
                    self.brought.insert(entry.instance);
                    for offset in piece.offset..piece.offset + piece.length {
                        self.memory.insert((piece.buffer, offset), entry.instance);
                    }
                    self.holdings.stored(entry.instance, true);
                }
                Admission::Here => {}
                _ => return Ok(()),
            }
        }
        let mut adopted = self.holdings.adopt((of, version, by), &part, named);
        if adopted == Err(NotAdopted::InTheWay) && !named {
            // What a session has sealed in vain: once the store has been compared, it makes way.
            self.holdings.forget_table(of, version, by);
            adopted = self.holdings.adopt((of, version, by), &part, named);
        }
        if let Err(why) = adopted {
            return Err(format!("what was brought is not adopted: {why:?}"));
        }
        if let Some(committed) = self.store.groups.get_mut(&of).and_then(|group| group.get_mut(&(version, by))) {
            committed.here = true;
            committed.table.extend(part);
        }
        let doubles = self.late.iter().filter(|(session, group, at, _)| (*session, *group, *at) == (by, of, version));
        for (session, group, at, table) in doubles.cloned().collect::<Vec<_>>() {
            // Whether it is refused does not matter: it must change nothing.
            drop(self.holdings.seal(group, at, session, SealOrder(1, 1), table));
        }
        Ok(())
    }

    fn tell(&mut self, of: GroupOf) {
        let versions = self.store.groups.get(&of).map(|group| group.keys().copied().collect()).unwrap_or_default();
        self.news.push((of, versions));
    }

    /// The benefactor hears of the store: of any state that it has had.
    fn hear(&mut self) {
        if !self.news.is_empty() {
            let at = self.random.below(self.news.len() as u64) as usize;
            let (of, versions) = self.news.swap_remove(at);
            // Nobody tells of a file that was forgotten.
            if self.store.files.contains_key(&of.inode) {
                self.holdings.in_store(of, &versions);
            }
        }
    }

    fn begin_read(&mut self) -> Result<(), String> {
        let all: Vec<(GroupOf, Version, SessionId, u32, Entry)> = self
            .store
            .groups
            .iter()
            .flat_map(|(of, group)| {
                group.iter().filter(|(_, committed)| committed.here).flat_map(|((version, by), committed)| {
                    committed.table.iter().map(|(chunk, entry)| (*of, *version, *by, *chunk, *entry))
                })
            })
            .collect();
        let Some((of, version, by, chunk, entry)) = self.pick(all) else { return Ok(()) };
        let (table, committed) = (self.holdings.table(of, version, by), &self.store.groups[&of][&(version, by)].table);
        if table != Some(committed) {
            return Err(format!("{of:?} {version:?} is {committed:?}, and its table here is {table:?}"));
        }
        match self.holdings.find(of, version, by, chunk) {
            Some((found, location)) if found == entry => {
                self.reading.push(Reading { entry, location });
                Ok(())
            }
            found => Err(format!("{of:?} {version:?} has {entry:?} as chunk {chunk}, and {found:?} is found")),
        }
    }

    fn end_read(&mut self) -> Result<(), String> {
        if self.reading.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.reading.len() as u64) as usize;
        let Reading { entry, location } = self.reading.swap_remove(at);
        let there = match location {
            Location::Memory(piece) => self.is_in(piece, entry.instance),
            Location::Ssd => self.ssd.contains(&entry.instance),
        };
        self.holdings.read(entry.instance);
        if there { Ok(()) } else { Err(format!("{entry:?} was not at {location:?} any more while it was read")) }
    }

    fn is_in(&self, piece: Piece, instance: Instance) -> bool {
        (piece.offset..piece.offset + piece.length)
            .all(|offset| self.memory.get(&(piece.buffer, offset)) == Some(&instance))
    }

    fn end_move(&mut self) -> Result<(), String> {
        if self.moving.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.moving.len() as u64) as usize;
        let (instance, piece) = self.moving.swap_remove(at);
        if !self.is_in(piece, instance) {
            return Err(format!("{instance:?} was not at {piece:?} any more while it was written to SSD"));
        }
        let done = !self.random.chance(0.2);
        if done {
            self.ssd.insert(instance);
        }
        self.holdings.moved(instance, done);
        Ok(())
    }

    fn end_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        let next = SessionId(self.number());
        self.sessions.insert(next);
        self.drafts.retain(|(of, _), _| *of != session);
        self.sealed.retain(|(of, ..)| *of != session);
        let groups = &self.store.groups;
        self.holdings.session_ended(session, |of, version| {
            groups.get(&of).is_some_and(|group| group.contains_key(&(version, session)))
        });
    }

    fn forget(&mut self, inode: Inode) {
        self.store.files.remove(&inode);
        self.store.groups.retain(|of, _| of.inode != inode);
        self.drafts.retain(|(_, of), _| of.inode != inode);
        self.sealed.retain(|(_, of, ..)| of.inode != inode);
        self.news.retain(|(of, _)| of.inode != inode);
        self.holdings.forgotten(inode);
    }

    fn is_not_needed(&self, instance: Instance) -> Result<(), String> {
        let committed = self.store.groups.values().flat_map(BTreeMap::values).filter(|committed| committed.here);
        let mut entries = committed.flat_map(|committed| committed.table.values());
        if entries.any(|entry| entry.instance == instance) {
            return Err(format!("{instance:?} is dropped, and the store names it"));
        }
        Ok(())
    }

    /// What it promises leaves room for half of what is not committed and has no room on SSD. Some of it may lie there already.
    fn leaves_room(&self) -> Result<(), String> {
        let all = self.allowance();
        let free_ssd = self.free_ssd();
        let promised = self.holdings.spare_credits(Some(MountId(1)), free_ssd);
        let drafts = self.holdings.drafts().count() as u64;
        let least = all.saturating_sub((drafts / 2).saturating_sub(free_ssd / on_ssd(CHUNK)));
        match promised == least || self.has_ssd && (least..=all).contains(&promised) {
            true => Ok(()),
            false => Err(format!("{promised} of {all} chunks are promised, and {least} can be")),
        }
    }

    /// Chunks that the first mount may take one after the other.
    fn allowance(&self) -> u64 {
        let (mut has, mut free) = (self.holdings.taken(Some(MountId(1))).memory, self.holdings.free());
        let mut may = 0;
        while may < self.holdings.credits() && (has == 0 || has < self.factor(Some(MountId(1)), may) * free) {
            (has, free, may) = (has + CHUNK, free - CHUNK, may + 1);
        }
        may
    }

    /// What sessions of a mount may have in memory, as a multiple of what is free: more, while the SSD has room for all that it has there and
    /// a chunk behind so many more.
    fn factor(&self, mount: Option<MountId>, more: u64) -> u64 {
        let to_ssd = |of: &dyn Fn(Option<MountId>) -> bool| -> u64 {
            let in_memory = self.in_memory_alone();
            in_memory.filter(|(_, mount, _)| of(*mount)).map(|(.., length)| on_ssd(length)).sum()
        };
        let more = more * on_ssd(CHUNK);
        let free = self.free_ssd().saturating_sub(to_ssd(&|_| true)).saturating_sub(more);
        let has = self.on_ssd(mount) + to_ssd(&|of| of == mount) + more;
        if free >= on_ssd(CHUNK) && has < FACTOR * free { FACTOR * FACTOR } else { FACTOR }
    }

    /// Whose each chunk is that is not on the SSD yet, and its bytes.
    fn in_memory_alone(&self) -> impl Iterator<Item = (Inode, Option<MountId>, u64)> {
        self.holdings.instances().filter(|of| !self.ssd.contains(of)).map(|of| self.rooms[&of])
    }

    /// Nothing where there is no SSD.
    fn free_ssd(&self) -> u64 {
        if !self.has_ssd {
            return 0;
        }
        let there: BTreeSet<Instance> = self.ssd.iter().copied().chain(self.moving.iter().map(|(of, _)| *of)).collect();
        SSD.saturating_sub(there.iter().map(|instance| on_ssd(self.rooms[instance].2)).sum())
    }

    /// Bytes of a mount that lie on the SSD or are written there.
    fn on_ssd(&self, mount: Option<MountId>) -> u64 {
        let moving = self.moving.iter().map(|(instance, _)| *instance);
        let there: BTreeSet<Instance> = self.ssd.iter().copied().chain(moving).collect();
        let is_here: BTreeSet<Instance> = self.holdings.instances().collect();
        there
            .intersection(&is_here)
            .map(|of| self.rooms[of])
            .filter(|(_, of, _)| *of == mount)
            .map(|of| on_ssd(of.2))
            .sum()
    }

    /// What each mount has taken is what is there of it.
    fn counts_rooms(&self) -> Result<(), String> {
        for mount in [None, Some(MountId(1)), Some(MountId(2))] {
            let Taken { memory, ssd, to_ssd } = self.holdings.taken(mount);
            let mine = |instance: &Instance| self.rooms[instance].1 == mount;
            let of_mount: Vec<Instance> = self.holdings.instances().filter(mine).collect();
            let bytes = |of: &Instance| self.rooms[of].2;
            let most: u64 = of_mount.iter().map(bytes).sum();
            let least: u64 = of_mount.iter().filter(|of| !self.ssd.contains(of)).map(bytes).sum();
            let there = self.on_ssd(mount);
            let alone: u64 =
                self.in_memory_alone().filter(|(_, of, _)| *of == mount).map(|(.., length)| on_ssd(length)).sum();
            if !(least..=most).contains(&memory) || (ssd, to_ssd) != (there, alone) {
                return Err(format!(
                    "mount {mount:?} has {least} to {most} bytes in memory and {there} on SSD, where {alone} more may go, and \
                     {memory}, {ssd} and {to_ssd} count"
                ));
            }
        }
        Ok(())
    }

    /// Everything that was written ends: nothing is left.
    fn end(&mut self) -> Result<(), String> {
        while !self.coming.is_empty() {
            self.arrive();
        }
        for session in self.sessions.clone() {
            self.end_session(session);
        }
        while !self.reading.is_empty() {
            self.end_read()?;
        }
        self.forget(Inode(1));
        self.forget(Inode(2));
        loop {
            while !self.moving.is_empty() {
                self.end_move()?;
            }
            match self.holdings.next_effect(Some(u64::MAX)) {
                Some(Effect::Move(instance, piece)) => self.moving.push((instance, piece)),
                Some(Effect::FreeSsd(instance)) => drop(self.ssd.remove(&instance)),
                None => break,
            }
        }
        if self.holdings.spare_credits(Some(MountId(1)), self.free_ssd()) != self.allowance() {
            return Err("room is left for drafts that are no more".to_owned());
        }
        let left: Vec<Instance> = self.holdings.instances().collect();
        if left.is_empty() && self.ssd.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?} and {:?} are left", self.ssd))
        }
    }
}
