//! The local provider in trouble: death and errors before every change of the directory, foreign files, limits.

mod tricks;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes};
use tempfile::TempDir;

use super::*;
use crate::contract::request;
use crate::files::store::trouble::{self, Trouble};
use crate::files::{TAG_KEY_BYTES_MAX, TAGS_MAX, TOKEN_BYTES_MAX};
use crate::{Change, CreateVolume, ManualClock, Tags, VolumeDescription};

/// More changes of the directory than any verb makes.
const STEPS_MAX: u32 = 40;

struct World {
    directory: TempDir,
    clock: Arc<ManualClock>,
}

impl World {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap(), clock: Arc::new(ManualClock::at_ms(1_000_000)) }
    }

    fn config(&self) -> LocalConfig {
        LocalConfig::in_directory(self.directory.path())
    }

    fn open(&self) -> LocalProvider {
        self.open_with(self.config())
    }

    fn open_with(&self, config: LocalConfig) -> LocalProvider {
        LocalProvider::open(config, self.clock.clone()).unwrap()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn names(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// After opening, every image has a made record of its size, every record an image, and nothing else lies here.
    fn assert_consistent(&self) -> Vec<VolumeDescription> {
        let provider = self.open();
        assert_eq!(provider.repair().unwrap(), Repair::default(), "opening has cleared up");
        let listed = provider.list("k", "v").unwrap();
        let ids: Vec<_> = listed.iter().map(|volume| volume.id.0.clone()).collect();
        assert_eq!(self.names("volumes"), ids.iter().map(|id| format!("{id}.img")).collect::<Vec<_>>());
        assert_eq!(self.names("state"), ids.iter().map(|id| format!("{id}.json")).collect::<Vec<_>>());
        for volume in &listed {
            let length = std::fs::metadata(self.path(&format!("volumes/{}.img", volume.id.0))).unwrap().len();
            assert_eq!(length, volume.size.get(), "no volume is half made");
        }
        listed
    }
}

/// A verb, what comes before it, and what must be true once it was repeated.
struct Scene {
    name: &'static str,
    prepare: fn(&LocalProvider) -> Option<VolumeId>,
    act: fn(&LocalProvider, Option<&VolumeId>) -> Result<(), ProviderError>,
    volumes_after: usize,
}

fn available(provider: &LocalProvider) -> Option<VolumeId> {
    Some(provider.create(&request("t")).unwrap().0.id)
}

fn attached(provider: &LocalProvider) -> Option<VolumeId> {
    let id = available(provider)?;
    provider.attach(&id).unwrap();
    Some(id)
}

const SCENES: &[Scene] = &[
    Scene {
        name: "create",
        prepare: |_| None,
        act: |provider, _| provider.create(&request("t")).map(drop),
        volumes_after: 1,
    },
    Scene {
        name: "attach",
        prepare: available,
        act: |provider, id| provider.attach(id.unwrap()).map(drop),
        volumes_after: 1,
    },
    Scene {
        name: "detach",
        prepare: attached,
        act: |provider, id| provider.detach(id.unwrap()).map(drop),
        volumes_after: 1,
    },
    Scene {
        name: "set_tag",
        prepare: available,
        act: |provider, id| provider.set_tag(id.unwrap(), "dirty", Some("e")).map(drop),
        volumes_after: 1,
    },
    Scene {
        name: "grow",
        prepare: attached,
        act: |provider, id| provider.grow(id.unwrap(), Bytes::new(2 * request("t").size.get())).map(drop),
        volumes_after: 1,
    },
    Scene {
        name: "delete",
        prepare: available,
        act: |provider, id| provider.delete(id.unwrap()).map(drop),
        volumes_after: 0,
    },
];

/// Runs every scene with trouble before its first change of the directory, its second, and so on, until there is none
/// left to trouble. Returns how many troubles there were.
fn trouble_everywhere(kind: Trouble) -> u32 {
    let mut count = 0;
    for scene in SCENES {
        for step in 0.. {
            assert!(step < STEPS_MAX, "{} has no end", scene.name);
            let world = World::new();
            let provider = world.open();
            let id = (scene.prepare)(&provider);
            trouble::after(step, kind);
            let outcome = catch_unwind(AssertUnwindSafe(|| (scene.act)(&provider, id.as_ref())));
            if trouble::disarm() {
                assert!(matches!(outcome, Ok(Ok(()))), "{} at its end: {outcome:?}", scene.name);
                break;
            }
            count += 1;
            let listed = world.assert_consistent();
            assert!(listed.len() <= 1, "{} step {step} makes no second volume", scene.name);
            if let (Some(id), "attach" | "detach" | "set_tag" | "grow") = (&id, scene.name) {
                assert_eq!(listed.iter().map(|volume| &volume.id).collect::<Vec<_>>(), [id], "no volume is lost");
            }
            (scene.act)(&world.open(), id.as_ref()).unwrap();
            assert_eq!(world.assert_consistent().len(), scene.volumes_after, "{} step {step}, repeated", scene.name);
        }
    }
    count
}

#[test]
fn death_before_every_change_leaves_no_half_volumes() {
    assert!(trouble_everywhere(Trouble::Death) >= 25);
}

#[test]
fn a_full_disk_before_every_change_leaves_no_half_volumes() {
    assert!(trouble_everywhere(Trouble::Error(Errno::NOSPC)) >= 25);
}

#[test]
fn an_io_error_before_every_change_leaves_no_half_volumes() {
    assert!(trouble_everywhere(Trouble::Error(Errno::IO)) >= 25);
}

#[test]
fn a_full_disk_refuses_a_volume_in_one_sentence_and_leaves_nothing() {
    let world = World::new();
    let large = CreateVolume { size: Bytes::new(15 << 40), ..request("t") };
    let Err(ProviderError::Capacity(text)) = world.open().create(&large) else { panic!("15 TiB fit") };
    assert!(text.contains("no room") && !text.contains('\n'), "{text}");
    assert_eq!(world.assert_consistent(), []);

    // The same when the file system finds out only while it allocates.
    for step in 0..12 {
        let world = World::new();
        let provider = world.open();
        trouble::after(step, Trouble::Error(Errno::NOSPC));
        let answer = provider.create(&request("t"));
        if trouble::disarm() {
            assert!(step > 8, "create has more steps than {step}");
            break;
        }
        assert!(matches!(answer, Err(ProviderError::Capacity(_))), "{answer:?}");
        assert_eq!((world.names("volumes"), world.names("state")), (vec![], vec![]), "step {step} leaves nothing");
    }
}

#[test]
fn deleting_works_on_a_full_disk() {
    let world = World::new();
    let provider = world.open();
    let id = available(&provider).unwrap();
    trouble::after(0, Trouble::Error(Errno::NOSPC));
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    assert!(!trouble::disarm());
    assert_eq!(world.assert_consistent(), []);
}

#[test]
fn volumes_are_private_and_preallocated_unless_their_type_says_not() {
    let world = World::new();
    let mut config = world.config();
    let sparse = LocalType { preallocate: false, ..LocalType::with_bandwidth(Bandwidth::from_mib_s(1)) };
    config.types.insert("sparse".to_owned(), sparse);
    let provider = world.open_with(config);
    let image = |id: &VolumeId| world.path(&format!("volumes/{}.img", id.0)).metadata().unwrap();
    let full = provider.create(&request("full")).unwrap().0;
    let size = Bytes::from_gib(100);
    let sparse =
        provider.create(&CreateVolume { volume_type: "sparse".to_owned(), size, ..request("sparse") }).unwrap().0;
    assert!(image(&full.id).blocks() * 512 >= full.size.get());
    assert_eq!((image(&sparse.id).len(), image(&sparse.id).blocks()), (size.get(), 0));
    let mode = |path: &str| world.path(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("volumes"), mode("state")), (0o700, 0o700));
    assert_eq!(mode(&format!("volumes/{}.img", full.id.0)), 0o600);
    assert_eq!(mode(&format!("state/{}.json", full.id.0)), 0o600);
}

#[test]
fn changes_take_their_time_and_a_clock_may_step_back() {
    let world = World::new();
    let span = |seconds| Span(Duration::from_secs(seconds));
    let config = LocalConfig {
        create_latency: span(1),
        attach_latency: span(2),
        detach_latency: span(3),
        delete_latency: span(4),
        ..world.config()
    };
    let provider = world.open_with(config);
    let id = provider.create(&request("t")).unwrap().0.id;
    let state = || provider.describe(&id).map(|volume| volume.state);
    let wait = |seconds| world.clock.advance(Duration::from_secs(seconds));
    assert_eq!(state(), Ok(VolumeState::Creating));
    assert!(matches!(provider.attach(&id), Err(ProviderError::Conflict { .. })));
    wait(1);
    assert_eq!(state(), Ok(VolumeState::Available));
    provider.attach(&id).unwrap();
    wait(1);
    assert_eq!(state(), Ok(VolumeState::Attaching));
    wait(1);
    let path = provider.describe(&id).unwrap().device.unwrap();
    assert_eq!(path.canonicalize().unwrap(), path);
    assert!(path.is_file());
    // What was seen to be done stays done, however the clock jumps.
    world.clock.set_ms(999_000);
    assert_eq!(state(), Ok(VolumeState::Attached));
    provider.detach(&id).unwrap();
    assert_eq!(state(), Ok(VolumeState::Detaching));
    world.clock.set_ms(1_000);
    assert_eq!(state(), Ok(VolumeState::Available));
    provider.delete(&id).unwrap();
    assert_eq!(state(), Ok(VolumeState::Deleting));
    assert!(matches!(provider.create(&request("t")), Err(ProviderError::Conflict { .. })));
    assert_eq!(world.names("volumes"), Vec::<String>::new(), "the space is free at once");
    wait(4);
    assert_eq!(state(), Err(ProviderError::NotFound(id.clone())));
    assert_ne!(provider.create(&request("t")).unwrap().0.id, id, "the token is free again, for another volume");
}

#[test]
fn a_volume_grows_within_the_quota_alone() {
    let world = World::new();
    let (size, more) = (request("a").size, Bytes::from_mib(1));
    let quota = Bytes::new(size.get() + more.get());
    let provider = world.open_with(LocalConfig { quota_bytes: Some(quota), ..world.config() });
    let id = provider.create(&request("a")).unwrap().0.id;
    let beyond = provider.grow(&id, Bytes::new(quota.get() + more.get()));
    assert!(matches!(beyond, Err(ProviderError::Quota(_))), "{beyond:?}");
    assert_eq!(provider.describe(&id).unwrap().size, size);
    assert_eq!(provider.grow(&id, quota), Ok(Change::Changed));
    assert_eq!(provider.describe(&id).unwrap().size, quota);
}

#[test]
fn quotas_and_attachment_limits() {
    let world = World::new();
    let config = LocalConfig {
        quota_volumes: Some(3),
        quota_bytes: Some(Bytes::from_mib(3)),
        attach_limit: Some(1),
        ..world.config()
    };
    let provider = world.open_with(config);
    let a = provider.create(&request("a")).unwrap().0.id;
    let b = provider.create(&request("b")).unwrap().0.id;
    let large = CreateVolume { size: Bytes::from_mib(2), ..request("large") };
    assert!(matches!(provider.create(&large), Err(ProviderError::Quota(_))));
    provider.create(&request("c")).unwrap();
    assert!(matches!(provider.create(&request("d")), Err(ProviderError::Quota(_))));
    assert_eq!(provider.create(&request("a")).unwrap().1, Change::Identity, "a quota does not break a token");
    provider.attach(&a).unwrap();
    assert!(matches!(provider.attach(&b), Err(ProviderError::AttachLimit(_))));
    assert_eq!(provider.attach(&a), Ok(Change::Identity));
    provider.detach(&a).unwrap();
    assert_eq!(provider.attach(&b), Ok(Change::Changed));
    provider.delete(&a).unwrap();
    provider.create(&request("d")).unwrap();
}

#[test]
fn foreign_files_are_left_alone() {
    let world = World::new();
    let good = available(&world.open()).unwrap();
    let secret = world.path("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::write(world.path("state/readme.txt"), "mine").unwrap();
    std::fs::write(world.path("state/vol-aa.json"), "{ half").unwrap();
    std::fs::write(world.path("volumes/vol-00000000000000aa.img"), "mine").unwrap();
    symlink(&secret, world.path("state/vol-00000000000000bb.json~")).unwrap();
    std::fs::create_dir(world.path("state/vol-00000000000000cc")).unwrap();

    let provider = world.open();
    let listed = provider.list("k", "v").unwrap();
    assert_eq!(listed.iter().map(|volume| &volume.id).collect::<Vec<_>>(), [&good]);
    let foreign = [
        "state/readme.txt",
        "state/vol-00000000000000bb.json~",
        "state/vol-00000000000000cc",
        "state/vol-aa.json",
        "volumes/vol-00000000000000aa.img",
    ];
    assert_eq!(provider.repair().unwrap().foreign, foreign);
    for id in ["vol-00000000000000aa", "vol-00000000000000bb", "vol-00000000000000cc", "vol-aa"] {
        assert_eq!(provider.delete(&VolumeId(id.to_owned())), Ok(Change::Identity));
    }
    for name in foreign {
        assert!(world.path(name).symlink_metadata().is_ok(), "{name} is still there");
    }
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "secret");
}

/// A way to spoil a record: its name, what is done to the file, and what the error must say of it.
type Damage = (&'static str, fn(&Path), &'static str);

const DAMAGES: &[Damage] = &[
    ("empty", |path| std::fs::write(path, "").unwrap(), "damaged"),
    ("cut short", |path| cut(path, 40), "damaged"),
    ("zeroes", |path| std::fs::write(path, [0; 300]).unwrap(), "damaged"),
    ("a field is gone", |path| replace(path, "\"token\"", "\"t\""), "damaged"),
    ("newer", |path| replace(path, "\"format\": 1,", "\"format\": 2,"), "format is 2"),
    ("newer and of another shape", |path| std::fs::write(path, "{\"format\": 9, \"id\": 1}").unwrap(), "format is 9"),
    ("another volume's", |path| replace(path, "\"id\": \"vol-", "\"id\": \"vol-0"), "another volume"),
    ("a link", |path| link(path), "symbolic link"),
    ("a directory", |path| directory(path), "not a regular file"),
];

fn cut(path: &Path, bytes: usize) {
    let text = std::fs::read(path).unwrap();
    std::fs::write(path, &text[..bytes]).unwrap();
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

fn link(path: &Path) {
    let target = path.parent().unwrap().with_file_name("target");
    std::fs::rename(path, &target).unwrap();
    symlink(target, path).unwrap();
}

fn directory(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::fs::create_dir(path).unwrap();
}

#[test]
fn a_volume_whose_record_cannot_be_read_is_neither_missing_nor_deleted_nor_hidden() {
    for (name, damage, reason) in DAMAGES {
        let world = World::new();
        let good = available(&world.open()).unwrap();
        let spoilt = world.open().create(&request("spoilt")).unwrap().0.id;
        let record = world.path(&format!("state/{}.json", spoilt.0));
        let image = world.path(&format!("volumes/{}.img", spoilt.0));
        std::fs::write(&image, "the newest data").unwrap();
        let aside = std::fs::read(&record).unwrap();
        damage(&record);

        let provider = world.open();
        let refused = |verb: &str, answer: Result<(), ProviderError>| {
            let Err(ProviderError::Invalid(text)) = answer else { panic!("{name}: {verb} answers {answer:?}") };
            assert!(text.contains(reason) && !text.contains('\n'), "{name}: {text}");
            assert!(text.contains(&*record.to_string_lossy()) && text.contains(&*image.to_string_lossy()), "{text}");
        };
        refused("describe", provider.describe(&spoilt).map(drop));
        refused("attach", provider.attach(&spoilt).map(drop));
        refused("detach", provider.detach(&spoilt).map(drop));
        refused("set_tag", provider.set_tag(&spoilt, "dirty", None).map(drop));
        refused("delete", provider.delete(&spoilt).map(drop));
        refused("list", provider.list("k", "v").map(drop));
        refused("list of what it has not", provider.list("k", "other").map(drop));
        refused("create with its token", provider.create(&request("spoilt")).map(drop));
        refused("create", provider.create(&request("fresh")).map(drop));
        assert_eq!(provider.repair().unwrap().foreign, [format!("state/{}.json", spoilt.0)], "{name}");

        // Other volumes go on.
        assert_eq!(provider.create(&request("t")).map(|(volume, _)| volume.id), Ok(good.clone()));
        assert_eq!(provider.attach(&good), Ok(Change::Changed));
        assert_eq!(provider.detach(&good), Ok(Change::Changed));
        assert_eq!(provider.set_tag(&good, "dirty", Some("e")), Ok(Change::Changed));
        assert!(provider.describe(&good).is_ok());
        assert_eq!(provider.delete(&good), Ok(Change::Changed));
        let unknown = VolumeId("vol-0000000000000000".to_owned());
        assert_eq!(provider.delete(&unknown), Ok(Change::Identity));
        assert_eq!(provider.describe(&unknown), Err(ProviderError::NotFound(unknown)));

        // Once the record is repaired, everything is as it was.
        assert_eq!(std::fs::read_to_string(&image).unwrap(), "the newest data", "{name}");
        if record.is_dir() {
            std::fs::remove_dir(&record).unwrap()
        } else {
            std::fs::remove_file(&record).unwrap()
        }
        std::fs::write(&record, aside).unwrap();
        let listed = provider.list("k", "v").unwrap();
        assert_eq!(listed.iter().map(|volume| &volume.id).collect::<Vec<_>>(), [&spoilt], "{name}");
        assert_eq!(provider.delete(&spoilt), Ok(Change::Changed));
        assert!(!image.exists() && !record.exists());
    }
}

#[test]
fn a_record_that_cannot_be_read_is_discarded_by_moving_it_away() {
    let world = World::new();
    let provider = world.open();
    let id = available(&provider).unwrap();
    let record = world.path(&format!("state/{}.json", id.0));
    std::fs::write(&record, "{ half").unwrap();
    assert!(provider.list("k", "v").is_err());
    std::fs::remove_file(record).unwrap();
    std::fs::remove_file(world.path(&format!("volumes/{}.img", id.0))).unwrap();
    assert_eq!(world.assert_consistent(), []);
    assert_eq!(provider.delete(&id), Ok(Change::Identity));
}

#[test]
fn an_image_that_is_gone_or_a_link_is_a_vanished_volume() {
    let world = World::new();
    let provider = world.open();
    let id = attached(&provider).unwrap();
    let image = world.path(&format!("volumes/{}.img", id.0));
    let target = world.path("target");
    std::fs::rename(&image, &target).unwrap();
    for linked in [false, true] {
        if linked {
            symlink(&target, &image).unwrap();
        }
        assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())));
        assert_eq!(provider.list("k", "v"), Ok(vec![]));
        assert_eq!(provider.repair().unwrap().vanished, std::slice::from_ref(&id));
    }
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    assert_eq!(provider.delete(&id), Ok(Change::Identity));
    assert!(target.is_file());
}

#[test]
fn directories_that_cannot_be_used_are_refused_in_one_sentence() {
    let world = World::new();
    std::fs::write(world.path("file"), "").unwrap();
    std::fs::create_dir(world.path("linked")).unwrap();
    symlink(world.path("elsewhere"), world.path("linked/volumes")).unwrap();
    std::fs::create_dir(world.path("elsewhere")).unwrap();
    for path in [world.path("file"), world.path("file/below"), world.path("linked"), Path::new("").to_owned()] {
        let Err(ProviderError::Invalid(text)) =
            LocalProvider::open(LocalConfig::in_directory(&path), world.clock.clone())
        else {
            panic!("{} opens", path.display());
        };
        assert!(!text.contains('\n'), "{text}");
    }
    assert_eq!(world.names("elsewhere"), Vec::<String>::new());
}

#[test]
fn the_directory_is_made_but_never_the_one_in_which_it_lies() {
    let world = World::new();
    let open = |path: &str| LocalProvider::open(LocalConfig::in_directory(world.path(path)), world.clock.clone());
    let Err(ProviderError::Invalid(text)) = open("mount/surgetank") else { panic!("a disk that is not mounted") };
    let parent = world.path("mount");
    assert!(text.contains(&format!("{} does not exist", parent.display())) && text.contains("mount"), "{text}");
    assert!(!text.contains('\n') && !parent.exists(), "{text}");
    std::fs::create_dir(&parent).unwrap();
    assert!(open("mount/surgetank").is_ok());
    assert!(open("mount/surgetank/").is_ok(), "it is there already");
    assert_eq!(world.path("mount/surgetank").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    symlink(world.path("mount/surgetank"), world.path("link")).unwrap();
    assert!(open("link").is_ok(), "the operator may keep it behind a link");
}

#[test]
fn requests_out_of_limits_are_refused() {
    let provider = World::new();
    let provider = provider.open();
    let key = "k".repeat(TAG_KEY_BYTES_MAX + 1);
    let tags = |key: &str, value: &str| Tags::from([(key.to_owned(), value.to_owned())]);
    let many: BTreeMap<_, _> = (0..=TAGS_MAX).map(|i| (i.to_string(), String::new())).collect();
    for bad in [
        CreateVolume { token: "t".repeat(TOKEN_BYTES_MAX + 1), ..request("") },
        CreateVolume { size: Bytes::new((1 << 20) + 512), ..request("t") },
        CreateVolume { size: Bytes::new(4096), ..request("t") },
        CreateVolume { tags: tags(&key, ""), ..request("t") },
        CreateVolume { tags: tags("", ""), ..request("t") },
        CreateVolume { tags: many, ..request("t") },
    ] {
        let answer = provider.create(&bad);
        assert!(matches!(answer, Err(ProviderError::Invalid(_))), "{answer:?}");
    }
    assert!(provider.create(&request("../../t\0\n")).is_ok(), "a token is data, never a name");
}

/// A file system of its own, of so many bytes; `None`: only root can have one.
struct Small(TempDir);

impl Small {
    fn new(bytes: u64) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        let mounted = rustix::mount::mount("tmpfs", directory.path(), "tmpfs", flags, options.as_c_str());
        mounted.ok().map(|()| Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "says what it skips")]
fn a_volume_is_deleted_while_the_disk_is_full() {
    let Some(small) = Small::new(4 << 20) else {
        eprintln!("skipped: only root can mount a small file system");
        return;
    };
    let world = World { directory: TempDir::new().unwrap(), clock: Arc::new(ManualClock::at_ms(1_000_000)) };
    let mut config = LocalConfig::in_directory(small.0.path().join("volumes"));
    let sparse = LocalType { preallocate: false, ..LocalType::with_bandwidth(Bandwidth::from_mib_s(1)) };
    config.types.insert("sparse".to_owned(), sparse);
    let provider = world.open_with(config);
    let volume = provider.create(&CreateVolume { volume_type: "sparse".to_owned(), ..request("t") }).unwrap().0;
    provider.attach(&volume.id).unwrap();
    // Somebody fills the disk, or the volume itself does.
    let mut hog = std::fs::File::create(small.0.path().join("hog")).unwrap();
    while std::io::Write::write_all(&mut hog, &[1; 4096]).is_ok() {}
    assert_eq!(provider.detach(&volume.id), Ok(Change::Changed));
    assert_eq!(provider.delete(&volume.id), Ok(Change::Changed));
    assert!(provider.list("k", "v").unwrap().is_empty());
}
