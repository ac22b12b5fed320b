//! Fakes of clouds with their machine's disks. QEMU has no disks as Azure's controllers show them, and a guest takes seconds to plug one in:
//! loop devices are the disks, in tables of our own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::DiskIdentity;
use surgetank_provider::fakes::{FakeAzure, FakeEc2, FakeGce, Settings, azure, ec2, gce};

use crate::common::tables::{Loop, Tables};

/// How many of somebody else's disks are in the machine at most: each look of a daemon looks at all.
const FOREIGN_MAX: usize = 8;

/// A fake of a cloud, and what its disks show.
pub trait Plugs: Sync {
    /// What each volume has.
    const SIZE: Bytes;

    /// The disks of the machine.
    fn plugged(&self) -> BTreeMap<String, DiskIdentity>;

    /// The volumes that there are.
    fn rented(&self) -> BTreeSet<String>;

    /// What a disk of somebody else's shows.
    fn foreign(number: usize) -> DiskIdentity;

    /// The section of a daemon that rents there; credentials are in a directory.
    fn section(&self, directory: &Path) -> String;
}

impl Plugs for FakeEc2 {
    const SIZE: Bytes = Bytes::from_gib(1);

    fn plugged(&self) -> BTreeMap<String, DiskIdentity> {
        // As EBS shows it: the volume's id without its hyphen.
        let serial = |volume: &str| DiskIdentity::Serial(volume.replacen('-', "", 1));
        self.attached().into_iter().map(|volume| (volume.clone(), serial(&volume))).collect()
    }

    fn rented(&self) -> BTreeSet<String> {
        self.there_are()
    }

    fn foreign(number: usize) -> DiskIdentity {
        DiskIdentity::Serial(format!("vol{number:017x}"))
    }

    fn section(&self, directory: &Path) -> String {
        let (id, secret) = self.key(Self::account());
        let file = directory.join("credentials");
        fs::write(&file, format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let place = format!("region = \"{}\"\ninstance = \"{}\"", ec2::REGION, ec2::INSTANCE);
        section("aws", &self.url(), &format!("{place}\ncredentials_file = \"{}\"", file.display()))
    }
}

impl Plugs for FakeGce {
    const SIZE: Bytes = Bytes::from_gib(10);

    fn plugged(&self) -> BTreeMap<String, DiskIdentity> {
        self.attached().into_iter().map(|disk| (disk.clone(), DiskIdentity::Name(disk))).collect()
    }

    fn rented(&self) -> BTreeSet<String> {
        self.there_are()
    }

    fn foreign(number: usize) -> DiskIdentity {
        DiskIdentity::Name(format!("somebody-{number}"))
    }

    fn section(&self, _: &Path) -> String {
        let place =
            format!("project = \"{}\"\nzone = \"{}\"\ninstance = \"{}\"", gce::PROJECT, gce::ZONE, gce::INSTANCE);
        section("gce", &self.url(), &format!("{place}\ncredential_command = [\"/bin/echo\", \"{}\"]", self.token()))
    }
}

impl Plugs for FakeAzure {
    const SIZE: Bytes = Bytes::from_gib(1);

    fn plugged(&self) -> BTreeMap<String, DiskIdentity> {
        self.attached().into_iter().map(|(disk, unit)| (disk, DiskIdentity::Lun(unit))).collect()
    }

    fn rented(&self) -> BTreeSet<String> {
        self.there_are()
    }

    fn foreign(number: usize) -> DiskIdentity {
        // Far from the numbers of our disks.
        DiskIdentity::Lun(1000 + u32::try_from(number).unwrap())
    }

    fn section(&self, _: &Path) -> String {
        let place = format!("subscription = \"{}\"\nresource_group = \"{}\"", azure::SUBSCRIPTION, azure::GROUP);
        let place = format!("{place}\ninstance = \"{}\"", azure::MACHINE);
        section("azure", &self.url(), &format!("{place}\ncredential_command = [\"/bin/echo\", \"{}\"]", self.token()))
    }
}

fn section(provider: &str, url: &str, keys: &str) -> String {
    format!(
        "[provider.{provider}]\nendpoint = \"{url}\"\n{keys}\ntimeout = \"2 s\"\nreads_per_s = 100000\nwrites_per_s = 100000\n"
    )
}

/// A disk of somebody else's, and what is on it.
struct Foreign {
    disk: Loop,
    image: PathBuf,
}

/// The hypervisor of the machine. What is on a volume stays until the volume is deleted.
pub struct Hypervisor<'a, F> {
    fake: &'a F,
    tables: Tables,
    images: PathBuf,
    /// Each with what it is known by in the machine, which is another thing when it is attached again.
    plugged: Mutex<BTreeMap<String, (Loop, DiskIdentity)>>,
    /// The volumes whose bytes are kept.
    kept: Mutex<BTreeSet<String>>,
    foreign: Mutex<VecDeque<Foreign>>,
    /// How many disks of ours there were.
    count: AtomicUsize,
    /// How many disks of others were written to, of those that are not in the machine any more.
    written: AtomicUsize,
}

impl<'a, F: Plugs> Hypervisor<'a, F> {
    /// `images`: a directory that it makes, for what is on the disks.
    pub fn new(fake: &'a F, tables: Tables, images: PathBuf) -> Self {
        fs::create_dir(&images).unwrap();
        let (count, written) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (plugged, kept, foreign) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { fake, tables, images, plugged, kept, foreign, count, written }
    }

    /// How many disks of ours there were.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no disk is plugged in, and no volume is there that ever was.
    pub fn is_empty(&self) -> bool {
        self.plugged.lock().unwrap().is_empty() && self.kept.lock().unwrap().is_empty()
    }

    fn disk(&self, name: &str) -> (Loop, PathBuf) {
        let image = self.images.join(name);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&image).unwrap();
        file.set_len(F::SIZE.get()).unwrap();
        (Loop::over(&image).expect("a loop device"), image)
    }

    /// What the cloud says is attached is plugged in, and what is not any more is unplugged. With each disk of ours comes
    /// somebody else's of the same size, a moment before it, and stays for a while. `deleted` looks at what was on a volume that is deleted.
    pub fn follow(&self, is_done: &AtomicBool, mut deleted: impl FnMut(&Path)) {
        while !is_done.load(Ordering::Relaxed) {
            self.plug();
            let there = self.fake.rented();
            self.kept.lock().unwrap().retain(|name| {
                let stays = there.contains(name);
                if !stays {
                    let image = self.images.join(name);
                    deleted(&image);
                    fs::remove_file(image).unwrap();
                }
                stays
            });
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn plug(&self) {
        let shown = self.fake.plugged();
        let mut plugged = self.plugged.lock().unwrap();
        plugged.retain(|name, (disk, identity)| {
            let stays = shown.get(name) == Some(identity);
            if !stays {
                self.tables.hide(disk);
            }
            stays
        });
        for (name, identity) in shown {
            if plugged.contains_key(&name) {
                continue;
            }
            self.plug_foreign(self.count.fetch_add(1, Ordering::Relaxed));
            let (disk, _) = self.disk(&name);
            self.tables.show(&disk, &identity);
            self.kept.lock().unwrap().insert(name.clone());
            plugged.insert(name, (disk, identity));
        }
    }

    fn plug_foreign(&self, number: usize) {
        let mut foreign = self.foreign.lock().unwrap();
        let (disk, image) = self.disk(&format!("foreign-{number}"));
        self.tables.show(&disk, &F::foreign(number));
        foreign.push_back(Foreign { disk, image });
        if let Some(oldest) = (foreign.len() > FOREIGN_MAX).then(|| foreign.pop_front()).flatten() {
            self.tables.hide(&oldest.disk);
            self.written.fetch_add(usize::from(is_written(&oldest.image)), Ordering::Relaxed);
            fs::remove_file(oldest.image).unwrap();
        }
    }

    /// How many disks of others were written to.
    pub fn foreign_written(&self) -> usize {
        let here = self.foreign.lock().unwrap().iter().filter(|foreign| is_written(&foreign.image)).count();
        self.written.load(Ordering::Relaxed) + here
    }
}

fn is_written(image: &Path) -> bool {
    fs::metadata(image).unwrap().blocks() > 0
}

/// Everything takes this time.
pub fn settings(moment: Duration) -> Settings {
    Settings { create: moment, attach: moment, detach: moment, delete: moment, ..Settings::default() }
}
