//! A group with parity that is written, read, drained and repaired while domains of benefactors are lost, members damaged, and bytes changed on
//! their way: every byte against what was committed. Benefactors are real holdings, repair decides as it does for wardens, and what is committed
//! is what the functions of `parity` say.
//!
//! As many domains are lost at a time as the parity allows: then everything committed is read, and what is made again is whole. At the end of some
//! runs more are lost: then what cannot be read says so, and nothing is read that was never written.

mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::buffers::Buffers;
use surgetank_pool_core::benefactor::holdings::{Admission, Entry, GroupOf, Holdings, Instance, Put, Table};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::parity::{
    Basis, ELSEWHERE, Gather, NotGathered, Parity, is_parity, is_readable, lie_at, members, rows_named, taken_over,
    whole_rows,
};
use surgetank_pool_core::placement::{CHUNK, Candidate, Layout, Lent, Media, Place, Stripe, substitute};
use surgetank_pool_core::repair::{Job, Of, Repair};

const GROUP: GroupOf = GroupOf { inode: Inode(7), group: 0 };
const SESSION: SessionId = SessionId(1);

/// A benefactor.
struct Benefactor {
    domain: Domain,
    life: Incarnation,
    /// `None`: it is lost.
    holdings: Option<Holdings>,
    bytes: BTreeMap<Instance, Vec<u8>>,
}

/// A chunk as its writer knows it.
#[derive(Clone)]
struct Written {
    entry: Entry,
    /// Which writing it is, wherever it lies.
    id: Instance,
    /// As long as it is not committed.
    bytes: Option<Vec<u8>>,
    /// Where it is to be, it is.
    stored: bool,
}

/// What the writer has of the group.
#[derive(Default)]
struct Writer {
    chunks: BTreeMap<u32, Written>,
    rows: BTreeMap<u32, (Basis, BTreeMap<u32, Written>)>,
    layout: Option<Layout>,
    changed: bool,
}

/// A version of the group, as the store has it.
#[derive(Clone)]
struct Committed {
    version: Version,
    layout: Layout,
    /// Chunks that the pool has.
    present: BTreeSet<u32>,
}

struct World {
    random: Random,
    of: Parity,
    benefactors: BTreeMap<BenefactorId, Benefactor>,
    numbers: u64,
    writer: Writer,
    store: Option<Committed>,
    /// What was committed, of chunks that the pool has.
    content: BTreeMap<u32, Vec<u8>>,
    /// What is written upon that.
    next: BTreeMap<u32, Vec<u8>>,
    repair: Repair,
    now: Instant,
    /// Domains lost since all members were whole last.
    lost: BTreeSet<Domain>,
    /// A member of a row that is damaged, if one is.
    damaged: BTreeSet<(BenefactorId, Instance)>,
    /// As much may be lost as there is.
    unlimited: bool,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let shapes = [(1, 1), (2, 1), (4, 1), (3, 2), (4, 2), (2, 3)];
    let (data, parity) = shapes[random.below(shapes.len() as u64) as usize];
    let of = Parity::new(data, parity).map_err(|error| error.to_string())?;
    let domains = of.members() + number(random.below(3));
    let config = super::repair::at(Bandwidth::from_mib_s(1 << 20));
    let mut world = World {
        of,
        benefactors: BTreeMap::new(),
        numbers: 0,
        writer: Writer::default(),
        store: None,
        content: BTreeMap::new(),
        next: BTreeMap::new(),
        repair: Repair::new(config),
        now: Instant::ZERO,
        lost: BTreeSet::new(),
        damaged: BTreeSet::new(),
        unlimited: false,
        random,
    };
    for id in 0..domains + number(world.random.below(4)) {
        world.begin(BenefactorId(id), Domain(id % domains), Incarnation(1));
    }
    for _ in 0..60 {
        world.step()?;
    }
    if world.random.chance(0.3) {
        world.unlimited = true;
        for _ in 0..1 + world.random.below(u64::from(of.parity()) + 2) {
            world.lose();
        }
        world.read_all()?;
    }
    Ok(())
}

fn number(of: u64) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

impl World {
    fn begin(&mut self, id: BenefactorId, domain: Domain, life: Incarnation) {
        let buffers = Buffers::new(3 << 16, 64).expect("it is memory enough");
        let holdings = Some(Holdings::new(life, buffers, false));
        self.benefactors.insert(id, Benefactor { domain, life, holdings, bytes: BTreeMap::new() });
        self.repair.alive(id, life);
        self.repair.inventory(Place { id, incarnation: life }, &BTreeSet::new());
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += Duration::from_secs(1);
        match self.random.below(12) {
            0..=3 => self.write(),
            4 => self.cut(),
            5 | 6 => self.commit()?,
            7 => self.lose(),
            8 => self.restart(),
            9 => self.repair_all()?,
            10 => self.drain_some(),
            _ if self.random.chance(0.5) => self.damage(),
            _ => self.forget_writer(),
        }
        self.read_all()
    }

    fn number(&mut self) -> Instance {
        self.numbers += 1;
        Instance { session: SESSION, number: self.numbers }
    }

    fn is_alive(&self, place: Place) -> bool {
        self.benefactors.get(&place.id).is_some_and(|of| of.life == place.incarnation && of.holdings.is_some())
    }

    fn candidates(&self) -> Vec<Candidate> {
        let lent =
            Lent { free: Bytes::from_gib(1), of: Bytes::from_gib(1), rate: Bandwidth::from_mib_s(1), drain: None };
        let alive = self.benefactors.iter().filter(|(_, of)| of.holdings.is_some());
        let candidate = |(id, of): (&BenefactorId, &Benefactor)| Candidate {
            place: Place { id: *id, incarnation: of.life },
            domain: of.domain,
            memory: Some(lent),
            ssd: None,
        };
        alive.map(candidate).collect()
    }

    fn domains(&self, places: impl Iterator<Item = Place>) -> Vec<Domain> {
        places.filter_map(|place| Some(self.benefactors.get(&place.id)?.domain)).collect()
    }

    /// A domain is lost, if the parity allows for one more.
    fn lose(&mut self) {
        let all: BTreeSet<Domain> = self.benefactors.values().map(|of| of.domain).collect();
        let domain = Domain(number(self.random.below(all.len() as u64)));
        let damaged = usize::from(!self.damaged.is_empty());
        let others = self.lost.iter().filter(|lost| **lost != domain).count();
        if !self.unlimited && others + damaged + 1 > self.of.parity() as usize {
            return;
        }
        self.lost.insert(domain);
        for (id, benefactor) in self.benefactors.iter_mut().filter(|(_, of)| of.domain == domain) {
            benefactor.holdings = None;
            benefactor.bytes.clear();
            self.damaged.retain(|(of, _)| of != id);
            self.repair.died(*id);
        }
    }

    /// Whoever is lost returns, with nothing.
    fn restart(&mut self) {
        let lost: Vec<(BenefactorId, Domain, Incarnation)> = self
            .benefactors
            .iter()
            .filter(|(_, of)| of.holdings.is_none())
            .map(|(id, of)| (*id, of.domain, Incarnation(of.life.0 + 1)))
            .collect();
        lost.into_iter().for_each(|(id, domain, life)| self.begin(id, domain, life));
    }

    /// A byte of a member changes at rest.
    fn damage(&mut self) {
        let Some(committed) = self.store.clone() else { return };
        if !self.damaged.is_empty() || self.lost.len() >= self.of.parity() as usize {
            return;
        }
        let all: Vec<u32> = members(Some(self.of), committed.present.iter().copied()).into_iter().collect();
        if all.is_empty() {
            return;
        }
        let chosen = all[self.random.below(all.len() as u64) as usize];
        let stripe = Stripe::new(&committed.layout);
        let place = stripe.places(&committed.layout, chosen)[0];
        let Some(entry) = self.table(place, committed.version).and_then(|table| table.get(&chosen).copied()) else {
            return;
        };
        let Some(holder) = self.benefactors.get_mut(&place.id) else { return };
        if let Some(bytes) = holder.bytes.get_mut(&entry.instance)
            && !bytes.is_empty()
        {
            bytes[0] ^= 1;
            self.damaged.insert((place.id, entry.instance));
        }
    }

    fn table(&self, place: Place, version: Version) -> Option<Table> {
        let holder = self.benefactors.get(&place.id).filter(|of| of.life == place.incarnation)?;
        holder.holdings.as_ref()?.table(GROUP, version, SESSION).cloned()
    }

    /// What a place has of a chunk of a version, if that is what was written.
    fn get(&mut self, place: Place, version: Version, chunk: u32) -> Option<Vec<u8>> {
        if !self.is_alive(place) {
            return None;
        }
        let holder = self.benefactors.get_mut(&place.id)?;
        let holdings = holder.holdings.as_mut()?;
        let (entry, _) = holdings.find(GROUP, version, SESSION, chunk)?;
        let bytes = holder.bytes.get(&entry.instance).cloned().unwrap_or_default();
        if crc(&bytes) != entry.crc {
            holdings.damaged(entry.instance);
        }
        holdings.read(entry.instance);
        (crc(&bytes) == entry.crc).then_some(bytes)
    }

    /// All members that tables of a version name, and the places that have told.
    fn known(&self, committed: &Committed) -> BTreeMap<u32, Entry> {
        let tables = committed.layout.places().into_iter().filter_map(|place| self.table(place, committed.version));
        tables.flatten().map(|(number, entry)| (number & !ELSEWHERE, entry)).collect()
    }

    /// Makes a member of the rest of its row, by the first table of its column that names it.
    fn make(&mut self, committed: &Committed, wanted: u32) -> Result<Vec<u8>, String> {
        let stripe = Stripe::new(&committed.layout);
        let places = stripe.column_of(&committed.layout, wanted).iter();
        let known = { places }.find_map(|place| rows_named(self.table(*place, committed.version)?, wanted));
        let known = known.ok_or_else(|| format!("nobody knows what chunk {wanted} was"))?;
        let entry = known[&wanted];
        let mut gather = Gather::<Vec<u8>>::new(self.of, (wanted, entry), known.clone());
        // One of them comes damaged, if another can take its place.
        let row = || known.keys().filter(|number| self.of.row(**number) == self.of.row(wanted) && **number != wanted);
        let (mut there, mut needed) = (0, usize::from(!is_parity(wanted)));
        for number in row() {
            needed += usize::from(!is_parity(*number));
            let place = stripe.places(&committed.layout, *number)[0];
            let instance = known[number].instance;
            there += usize::from(self.is_alive(place) && !self.damaged.contains(&(place.id, instance)));
        }
        let mut changes = there > needed && self.random.chance(0.3);
        loop {
            let next = gather.more();
            if next.is_empty() {
                break;
            }
            for number in next {
                let place = stripe.places(&committed.layout, number)[0];
                let mut bytes = self.get(place, committed.version, number);
                if let Some(bytes) = bytes.as_mut().filter(|_| std::mem::take(&mut changes)) {
                    bytes[0] ^= 8;
                }
                gather.got(number, bytes);
            }
        }
        match gather.finish() {
            Ok(bytes) if there < needed => Err(format!("chunk {wanted} is made of {there} members: {bytes:?}")),
            Err(NotGathered::Damaged) if there < needed => {
                Err(format!("chunk {wanted} is not made of {there} members, as damaged"))
            }
            Err(NotGathered::TooFew) if there < needed => Err("too few".to_owned()),
            Err(why) => Err(format!("chunk {wanted} is not made of {there} members: {why}")),
            Ok(bytes) => Ok(bytes),
        }
    }

    fn read(&mut self, committed: &Committed, chunk: u32) -> Result<Vec<u8>, String> {
        let stripe = Stripe::new(&committed.layout);
        let place = stripe.places(&committed.layout, chunk)[0];
        match self.get(place, committed.version, chunk) {
            Some(bytes) => Ok(bytes),
            None => self.make(committed, chunk),
        }
    }

    /// Every chunk is read as it was committed, as long as no more is lost than may be.
    fn read_all(&mut self) -> Result<(), String> {
        let Some(committed) = self.store.clone() else { return Ok(()) };
        let has = |place: Place, number: u32| {
            let table = self.table(place, committed.version);
            let entry = table.and_then(|table| table.get(&number).copied());
            entry.is_some_and(|entry| !self.damaged.contains(&(place.id, entry.instance)))
        };
        let readable = is_readable(&committed.layout, committed.present.iter().copied(), has);
        if !readable && !self.unlimited {
            return Err(format!("{:?} lost, and not all can be read", self.lost));
        }
        let mut all = true;
        for chunk in committed.present.clone() {
            match self.read(&committed, chunk) {
                Ok(bytes) if Some(&bytes) == self.content.get(&chunk) => {}
                Ok(bytes) => return Err(format!("chunk {chunk} is {bytes:?}, not {:?}", self.content.get(&chunk))),
                Err(why) if why == "too few" && self.unlimited => all = false,
                Err(why) if self.unlimited && why.starts_with("nobody") => all = false,
                Err(why) => return Err(format!("chunk {chunk}, {:?} lost: {why}", self.lost)),
            }
        }
        if all != readable {
            return Err(format!("all is read: {all}, and was to be: {readable}"));
        }
        Ok(())
    }

    /// Some chunks leave the pool: the target has them.
    fn drain_some(&mut self) {
        let Some(committed) = self.store.as_mut().filter(|_| !self.writer.changed) else { return };
        let wanted: BTreeSet<u32> = committed.present.iter().copied().filter(|_| self.random.chance(0.5)).collect();
        let leave = whole_rows(self.of, committed.present.iter().copied(), &wanted);
        committed.present.retain(|chunk| !leave.contains(chunk));
        self.content.retain(|chunk, _| !leave.contains(chunk));
        self.next.retain(|chunk, _| !leave.contains(chunk));
        self.writer.chunks.retain(|chunk, _| !leave.contains(chunk));
    }

    /// Has everything made again that can be.
    fn repair_all(&mut self) -> Result<(), String> {
        while let Some(job) = self.repair.next_job(self.now) {
            let done = self.repair_one(&job)?;
            self.repair.ended(self.now, job.id, done);
            self.now += Duration::from_millis(1);
            if !done {
                break;
            }
        }
        self.refetch()?;
        let whole =
            self.store.as_ref().is_none_or(|of| of.layout.places().into_iter().all(|place| self.is_alive(place)));
        if whole {
            self.lost.clear();
        }
        Ok(())
    }

    fn repair_one(&mut self, job: &Job) -> Result<bool, String> {
        let Some(committed) = self.store.clone() else { return Ok(false) };
        let has = |at: &usize| job.layout.columns[*at].places.contains(&job.instead_of);
        let all: BTreeSet<usize> = (0..job.layout.columns.len()).filter(has).collect();
        let over: Vec<Place> = job.layout.places().into_iter().filter(|place| !self.is_alive(*place)).collect();
        let others: Vec<Place> = over.iter().copied().filter(|place| *place != job.instead_of).collect();
        let found = |of: &BTreeSet<usize>, without: &[Place]| {
            let places = of.iter().flat_map(|at| job.layout.columns[*at].places.iter().copied());
            let beside = self.domains(places.filter(|place| *place != job.instead_of));
            substitute(CHUNK, Media::Any, &beside, without, &self.candidates()).map(|(to, _)| to)
        };
        let parts: Vec<(Option<Place>, BTreeSet<usize>)> = match found(&all, &others) {
            Some(one) => vec![(Some(one), all)],
            None => all.into_iter().map(|at| BTreeSet::from([at])).map(|at| (found(&at, &over), at)).collect(),
        };
        let mut done = true;
        for (to, columns) in parts {
            let Some(to) = to else {
                done = false;
                continue;
            };
            let wanted = lie_at(&job.layout, job.instead_of, &columns, committed.present.iter().copied());
            let known = self.known(&committed);
            for number in wanted.keys() {
                let bytes = self.make(&committed, *number).map_err(|why| format!("repair: {why}"))?;
                if !self.put_copy(to, known[number], &bytes) {
                    return Err(format!("chunk {number} is not taken"));
                }
            }
            let present = committed.present.iter().copied();
            let Some(part) = taken_over(&job.layout, job.instead_of, &columns, present, &known) else {
                return Err("repair: nobody knows what the rows are".to_owned());
            };
            if !self.adopt(to, &committed, &part) {
                done = false;
                continue;
            }
            let Some(store) = &mut self.store else { return Ok(false) };
            for at in columns {
                let places = store.layout.columns[at].places.iter_mut();
                places.filter(|place| **place == job.instead_of).for_each(|place| *place = to);
            }
            let key = Of { group: GROUP, version: store.version, by: SESSION };
            self.repair.group(key, &store.layout, Bytes::from_mib(1));
        }
        self.all_know_their_rows().map(|()| done)
    }

    /// Whoever is left of a column knows all members of its rows: a reader may find nobody else there.
    fn all_know_their_rows(&self) -> Result<(), String> {
        let Some(committed) = &self.store else { return Ok(()) };
        let stripe = Stripe::new(&committed.layout);
        for number in members(Some(self.of), committed.present.iter().copied()) {
            for place in stripe.column_of(&committed.layout, number).iter().filter(|place| self.is_alive(**place)) {
                if self.table(*place, committed.version).and_then(|table| rows_named(table, number)).is_none() {
                    return Err(format!("{place:?} knows nothing of member {number}, though it is of its column"));
                }
            }
        }
        Ok(())
    }

    fn put_copy(&mut self, to: Place, entry: Entry, bytes: &[u8]) -> bool {
        let Some(holder) = self.benefactors.get_mut(&to.id) else { return false };
        let Some(holdings) = &mut holder.holdings else { return false };
        let put = Put { incarnation: to.incarnation, inode: GROUP.inode, mount: None, entry };
        match holdings.put_copy(&put, 0) {
            Admission::Room(_) => {
                holder.bytes.insert(entry.instance, bytes.to_vec());
                holdings.stored(entry.instance, true);
                true
            }
            Admission::Here => true,
            _ => false,
        }
    }

    fn adopt(&mut self, to: Place, committed: &Committed, part: &Table) -> bool {
        let named = self.store.as_ref().is_some_and(|of| of.layout.places().contains(&to));
        let holdings = self.benefactors.get_mut(&to.id).and_then(|of| of.holdings.as_mut());
        holdings.is_some_and(|holdings| holdings.adopt((GROUP, committed.version, SESSION), part, named).is_ok())
    }

    /// Has what is known to be damaged made again.
    fn refetch(&mut self) -> Result<(), String> {
        let Some(committed) = self.store.clone() else { return Ok(()) };
        for place in committed.layout.places().into_iter().filter(|place| self.is_alive(*place)).collect::<Vec<_>>() {
            let holdings = self.benefactors[&place.id].holdings.as_ref();
            let damaged = holdings.map(Holdings::all_damaged).unwrap_or_default();
            for (_, chunk) in damaged.into_iter().filter(|((_, version, _), _)| *version == committed.version) {
                let Some(entry) = self.table(place, committed.version).and_then(|table| table.get(&chunk).copied())
                else {
                    continue;
                };
                let bytes = self.make(&committed, chunk).map_err(|why| format!("of damaged ones {why}"))?;
                if self.put_copy(place, entry, &bytes) && self.adopt(place, &committed, &Table::from([(chunk, entry)]))
                {
                    self.damaged.remove(&(place.id, entry.instance));
                }
            }
        }
        Ok(())
    }
}
