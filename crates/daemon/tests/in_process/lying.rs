//! A provider that says anything of where its volumes are: nothing is written but to what was rented.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Machine, Shape, eventually, pattern, status};
use surgetank_daemon::{Daemon, DevicePhase, Overrides, Request};
use surgetank_provider::local::LocalProvider;
use surgetank_provider::service::Secret;
use surgetank_provider::service::Service;
use surgetank_provider::{
    Change, CreateVolume, Home, HostConfig, HostProvider, Lag, Provider, ProviderError, SystemClock, Transition,
    VolumeDescription, VolumeId, VolumeState,
};

const MIB: u64 = 1 << 20;
/// What the daemon rents, in bytes.
const SIZE: u64 = 32 * MIB;

/// What becomes of a description of an attached volume.
type Lie = Box<dyn Fn(&Path, VolumeDescription) -> VolumeDescription + Send + Sync>;

/// A local provider that does what it is asked, and says something else.
struct Lying {
    local: LocalProvider,
    root: PathBuf,
    files: Option<PathBuf>,
    lie: Lie,
}

impl Lying {
    fn tell(&self, volume: VolumeDescription) -> VolumeDescription {
        if volume.state == VolumeState::Attached { (self.lie)(&self.root, volume) } else { volume }
    }
}

impl Provider for Lying {
    fn home(&self) -> Home {
        self.files.clone().into()
    }
    fn create_is_exclusive(&self) -> bool {
        self.local.create_is_exclusive()
    }
    fn lag(&self) -> Lag {
        self.local.lag()
    }
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.local.create(request)
    }
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.local.change_state(id, transition)
    }
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.local.describe(id).map(|volume| self.tell(volume))
    }
    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        Ok(self.local.list(key, value)?.into_iter().map(|volume| self.tell(volume)).collect())
    }
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.local.set_tag(id, key, value)
    }
}

/// Where the victims lie: beside the provider's directory, and in it.
fn images(root: &Path) -> PathBuf {
    root.join("volumes/volumes")
}

fn at(volume: VolumeDescription, device: PathBuf) -> VolumeDescription {
    VolumeDescription { device: Some(device), ..volume }
}

/// A daemon on an idle device that boosts when it is asked to.
fn start(machine: &Machine, provider: impl FnOnce(LocalProvider) -> Arc<dyn Provider>) -> Daemon {
    let shape = Shape {
        policy: Shape::default().policy + "\nforecast = false\nutilization_threshold = 1.0\nattach_timeout = \"5 s\"",
        ..Shape::default()
    };
    let config = machine.config(&[("data", "memory:64 MiB")], &shape);
    let local = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let overrides = Overrides { provider: Some(provider(local)), ..Overrides::default() };
    Daemon::start_with(config, overrides).unwrap()
}

/// Asks for a boost, and awaits this reason why there is none.
fn awaits_refusal(machine: &Machine, daemon: &Daemon, why: &str) {
    let mut nbd = crate::common::connect(machine, "data");
    daemon.handle(Request::boost("data")).unwrap();
    let until = Instant::now() + crate::common::TIMEOUT;
    let mut reason = String::new();
    while !reason.contains(why) {
        assert!(Instant::now() < until, "the reason is never told: {reason:?}");
        reason = status(daemon, "data").reason.unwrap_or(reason);
        assert_ne!(status(daemon, "data").phase, DevicePhase::Boost);
        nbd.write(0, &pattern(1, 2, 4096)).unwrap();
    }
    eventually("everything is deleted", || {
        status(daemon, "data").phase == DevicePhase::Idle && machine.records().is_empty()
    });
    assert_eq!(nbd.read(0, 4096).unwrap(), pattern(1, 2, 4096), "the device goes on");
}

/// Boosts with a provider that tells this lie: the boost is undone with this reason, and the victims are as they were.
fn refused(
    files: bool,
    lie: impl Fn(&Path, VolumeDescription) -> VolumeDescription + Send + Sync + 'static,
    why: &str,
) {
    let machine = Machine::new();
    let root = machine.directory.path().to_owned();
    fs::create_dir_all(images(&root)).unwrap();
    let victims = [root.join("victim"), images(&root).join("victim")];
    let content: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8 | 1).collect();
    for victim in &victims {
        fs::write(victim, &content).unwrap();
    }
    // One that is blank but for where nobody looks: only its place and its names tell that it is not ours.
    let blank = root.join("blank");
    fs::File::create(&blank).unwrap().set_len(SIZE).unwrap();
    symlink(&blank, images(&root).join("link")).unwrap();
    symlink(&root, images(&root).join("folder")).unwrap();
    fs::hard_link(&blank, images(&root).join("linked")).unwrap();

    let files = files.then(|| images(&root));
    let daemon = start(&machine, |local| Arc::new(Lying { local, root: root.clone(), files, lie: Box::new(lie) }));
    awaits_refusal(&machine, &daemon, why);
    drop(daemon);
    for victim in &victims {
        assert!(fs::read(victim).unwrap() == content, "{} was written to", victim.display());
    }
    assert_eq!(fs::metadata(&blank).unwrap().blocks(), 0, "the blank victim was written to");
}

#[test]
fn a_file_elsewhere_is_not_a_volume() {
    refused(true, |root, volume| at(volume, root.join("victim")), "is not beneath");
    refused(true, |root, volume| at(volume, root.join("blank")), "is not beneath");
    refused(true, |root, volume| at(volume, images(root).join("../../blank")), "is not beneath");
    refused(
        true,
        |root, volume| {
            at(volume, Path::new("/dev/disk/..").join("..").join(root.strip_prefix("/").unwrap()).join("blank"))
        },
        "is not beneath",
    );
    refused(true, |_, volume| at(volume, "vol.img".into()), "is not beneath");
    refused(true, |root, volume| at(volume, images(root)), "is not beneath");
}

#[test]
fn a_file_without_a_directory_for_files_is_not_a_volume() {
    refused(false, |_, volume| volume, "add files = ");
    refused(false, |root, volume| at(volume, root.join("blank")), "names no serial of a disk");
    refused(false, |_, volume| VolumeDescription { device: None, ..volume }, "does not say where");
}

#[test]
fn a_link_in_the_directory_for_files_is_not_a_volume() {
    refused(true, |root, volume| at(volume, images(root).join("link")), "is a symbolic link");
    refused(true, |root, volume| at(volume, images(root).join("folder/blank")), "is a symbolic link");
    refused(true, |root, volume| at(volume, images(root).join("linked")), "names (hard links)");
}

#[test]
fn a_file_of_another_size_is_not_the_volume() {
    for size in [SIZE + 1, SIZE - 1, SIZE + 4096, 2 * SIZE] {
        let other = move |root: &Path, volume| {
            let path = images(root).join("other");
            fs::File::create(&path).unwrap().set_len(size).unwrap();
            at(volume, path)
        };
        refused(true, other, "bytes instead of");
    }
}

#[test]
fn a_volume_that_is_not_blank_is_not_the_one_that_was_rented() {
    refused(true, |root, volume| at(volume, images(root).join("victim")), "is not blank");
}

/// Another process of this machine rents files out: the daemon uses them where its own configuration says they lie.
#[test]
fn files_of_a_service_on_this_machine_are_used_where_they_may_lie() {
    for files in [true, false] {
        let machine = Machine::new();
        let token = machine.path("token");
        let secret = Secret::read_or_make(&token).unwrap();
        let daemon = start(&machine, |local| {
            let service = Service::bind("127.0.0.1:0".parse().unwrap(), Arc::new(local), secret).unwrap();
            let url = format!("http://{}", service.address().unwrap());
            // Until the test ends.
            std::thread::spawn(|| service.serve(|| std::thread::sleep(Duration::from_secs(3600))));
            let files = files.then(|| machine.path("volumes"));
            Arc::new(HostProvider::open(HostConfig { files, ..HostConfig::new(url, token) }).unwrap())
        });
        if files {
            let mut nbd = crate::common::connect(&machine, "data");
            crate::common::boost(&daemon, "data");
            nbd.write(0, &pattern(0, 1, MIB as usize)).unwrap();
            crate::common::drain(&daemon, "data");
            assert_eq!(nbd.read(0, MIB as usize).unwrap(), pattern(0, 1, MIB as usize));
        } else {
            awaits_refusal(&machine, &daemon, "add files = ");
        }
    }
}
