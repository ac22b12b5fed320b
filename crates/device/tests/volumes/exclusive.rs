//! A volume that somebody uses is refused, saying who uses it and how to fix it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::volume_common::{LoopDevice, skipped};
use surgetank_device::{FileVolume, OpenError, Options};

fn image(directory: &tempfile::TempDir, size: u64) -> std::path::PathBuf {
    let path = directory.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn refusal(path: &Path) -> String {
    match FileVolume::open(path, Options::default()) {
        Ok(_) => panic!("{} was opened though it is in use", path.display()),
        Err(error) => error.to_string(),
    }
}

/// Opens what nobody holds any more, but for processes that another test is just starting: until they are what they
/// will be, they hold what this one held.
fn opens_in_the_end(path: &Path, options: Options) {
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = FileVolume::open(path, options) {
        assert!(matches!(error, OpenError::InUse { .. }) && Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Unmounts when dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_file_is_held_by_one_volume_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(&directory, 1 << 20);
    let first = FileVolume::open(&path, Options::default()).unwrap();
    let refused = refusal(&path);
    assert!(refused.contains("is in use by") && refused.contains(&std::process::id().to_string()), "{refused}");
    let shared = Options { exclusive: false, read_only: true, ..Options::default() };
    drop(FileVolume::open(&path, shared).unwrap());
    drop(first);
    opens_in_the_end(&path, Options::default());
}

#[test]
fn a_file_behind_a_loop_device_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(&directory, 1 << 20);
    let link = directory.path().join("other name");
    std::fs::hard_link(&path, &link).unwrap();
    let Some(device) = LoopDevice::attach(&path, 512) else { return };
    for path in [&path, &link] {
        let refused = refusal(path);
        let remedy = format!("losetup -d {}", device.path().display());
        assert!(refused.contains("is attached to") && refused.contains(&remedy), "{refused}");
    }
}

#[test]
fn a_block_device_is_held_by_one_volume_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&directory, 1 << 20), 512) else { return };
    let first = FileVolume::open(device.path(), Options::default()).unwrap();
    let refused = refusal(device.path());
    assert!(refused.contains("is in use by"), "{refused}");
    drop(first);
    opens_in_the_end(device.path(), Options::default());
}

#[test]
fn a_mounted_device_and_the_file_behind_it_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(&directory, 16 << 20);
    let Some(device) = LoopDevice::attach(&path, 512) else { return };
    let place = directory.path().join("a place");
    std::fs::create_dir(&place).unwrap();
    let mounted = succeeds(Command::new("mkfs.ext4").arg("-q").arg(device.path()))
        && succeeds(Command::new("mount").arg(device.path()).arg(&place));
    if !mounted {
        skipped("mkfs.ext4 or mount is not possible");
        return;
    }
    let mount = Mount(&place);
    let name = place.display().to_string();
    for path in [device.path(), &path] {
        let refused = refusal(path);
        assert!(refused.contains(&format!("is mounted on {name}")) && refused.contains("umount"), "{refused}");
    }
    drop(mount);
    opens_in_the_end(device.path(), Options::default());
}

#[test]
fn a_btrfs_is_refused_as_mounted_on_each_of_its_devices() {
    let directory = tempfile::tempdir().unwrap();
    let images = [1, 2].map(|number| {
        let path = directory.path().join(format!("image{number}"));
        std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
        path
    });
    let devices: Vec<LoopDevice> = images.iter().filter_map(|image| LoopDevice::attach(image, 512)).collect();
    let [first, second] = &*devices else { return };
    let place = directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let mut make = Command::new("mkfs.btrfs");
    make.args(["-q", "-m", "raid1", "-d", "single"]).arg(first.path()).arg(second.path());
    if !succeeds(&mut make) || !succeeds(Command::new("mount").arg(first.path()).arg(&place)) {
        skipped("mkfs.btrfs or mount is not possible");
        return;
    }
    let mount = Mount(&place);
    let told = format!("is mounted on {}; unmount it first", place.display());
    for device in &devices {
        let refused = refusal(device.path());
        assert!(refused.contains(&told), "{refused}");
    }
    let refused = refusal(&images[1]);
    assert!(refused.contains(&format!("which is mounted on {}", place.display())), "{refused}");
    drop(mount);
    opens_in_the_end(first.path(), Options::default());
}

#[test]
fn swap_is_refused_as_swap() {
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&directory, 16 << 20), 512) else { return };
    if !succeeds(Command::new("mkswap").arg(device.path())) || !succeeds(Command::new("swapon").arg(device.path())) {
        skipped("mkswap or swapon is not possible");
        return;
    }
    let refused = refusal(device.path());
    assert!(succeeds(Command::new("swapoff").arg(device.path())));
    let remedy = format!("turn that off first (swapoff {})", device.path().display());
    assert!(refused.contains("is in use as swap") && refused.contains(&remedy), "{refused}");
    opens_in_the_end(device.path(), Options::default());
}

#[test]
fn what_is_no_volume_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path, options| FileVolume::open(path, options).map(|_| ()).unwrap_err();
    let missing = open(&directory.path().join("nothing"), Options::default());
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
    let not_a_volume = open(directory.path(), Options::default());
    assert!(matches!(not_a_volume, OpenError::NotAVolume { .. }), "{not_a_volume}");
    let small = open(&image(&directory, 100), Options::default());
    assert!(matches!(small, OpenError::TooSmall { size: 100, .. }), "{small}");
    let blocks = Options { logical_block: Some(1000), ..Options::default() };
    let blocks = open(&image(&directory, 1 << 20), blocks);
    assert!(matches!(blocks, OpenError::LogicalBlock { asked: 1000, .. }), "{blocks}");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(image(&directory, 1 << 20), &link).unwrap();
    drop(FileVolume::open(&link, Options::default()).unwrap());
    assert_eq!([missing, not_a_volume, small, blocks].map(|error| error.to_string().lines().count()), [1; 4]);
}

#[test]
fn a_name_beneath_a_directory_leads_nowhere_else() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let files = root.path().join("files");
    std::fs::create_dir_all(files.join("inner")).unwrap();
    let outside = image(&root, 1 << 20);
    let inside = files.join("inner/volume");
    std::fs::copy(&outside, &inside).unwrap();
    let open = |name: &str| FileVolume::open_beneath(&files, Path::new(name), Options::default()).map(|_| ());
    open("inner/volume").unwrap();
    // The directory is the user's: links on the way to it are followed.
    symlink(&files, root.path().join("alias")).unwrap();
    drop(FileVolume::open_beneath(&root.path().join("alias"), Path::new("inner/volume"), Options::default()).unwrap());

    symlink(&outside, files.join("link")).unwrap();
    symlink("inner/volume", files.join("near")).unwrap();
    symlink("inner", files.join("folder")).unwrap();
    symlink("/", files.join("all")).unwrap();
    let outside_from_all = format!("all/{}", outside.strip_prefix("/").unwrap().display());
    let climbing = format!("../{}", outside.file_name().unwrap().to_str().unwrap());
    for name in ["link", "near", "folder/volume", &outside_from_all, &climbing, outside.to_str().unwrap(), "/dev/null"]
    {
        let error = open(name).unwrap_err();
        assert!(matches!(error, OpenError::Link { .. }), "{name}: {error}");
    }
    assert!(matches!(open("nothing").unwrap_err(), OpenError::Missing { .. }));
    assert!(matches!(open("inner").unwrap_err(), OpenError::NotAVolume { .. }));
    rustix::fs::mkfifoat(rustix::fs::CWD, files.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
    assert!(matches!(open("fifo").unwrap_err(), OpenError::NotAVolume { .. }));
    std::fs::hard_link(&outside, files.join("linked")).unwrap();
    let error = open("linked").unwrap_err();
    assert!(matches!(error, OpenError::Names { names: 2, .. }), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn growth_is_noticed_and_a_read_only_volume_refuses_changes() {
    use surgetank_device::{Failure, Operation, Volume};
    let directory = tempfile::tempdir().unwrap();
    let path = image(&directory, (1 << 20) + 100);
    let mut volume = FileVolume::open(&path, Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!(volume.size(), 1 << 20);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert_eq!(volume.resize_check(), Ok(2 << 20));
    assert_eq!(volume.size(), 2 << 20);
    let mut driver = crate::volume_common::Driver::new(&mut volume);
    assert_eq!(driver.one(Operation::Discard, 0, 4096, Vec::new()), Err(Failure::Unsupported));
    assert_eq!(driver.read(1 << 20, 4096, 1), vec![0; 4096]);
}
