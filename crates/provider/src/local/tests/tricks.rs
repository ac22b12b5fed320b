//! Tricks: names that are paths, links and special files planted in the directory.

use rustix::fs::{FileType, Mode};

use super::*;
use crate::files::record::is_ours;

/// Ids that would lead elsewhere if they became file names.
const PATHS: &[&str] = &[
    "",
    ".",
    "..",
    "/",
    "../secret",
    "../../secret",
    "vol-0000000000000000/../../secret",
    "/etc/passwd",
    "vol-000000000000000g",
    "vol-00000000000000AA",
    "vol-0000000000000000\0",
    "vol-000000000000000\0",
    "vol-0000000000000000\n",
    "vol-0000000000000000.img",
    "vol-00000000000000001",
    "vol-\u{0660}\u{0661}\u{0662}\u{0663}\u{0664}\u{0665}\u{0666}\u{0667}",
];

/// All files below the directory, with their lengths.
fn everything(world: &World) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for directory in ["", "volumes", "state"] {
        for name in world.names(directory) {
            let length = world.path(directory).join(&name).symlink_metadata().unwrap().len();
            found.push((format!("{directory}/{name}"), length));
        }
    }
    found
}

#[test]
fn ids_that_are_paths_reach_nothing() {
    let world = World::new();
    let provider = world.open();
    let good = attached(&provider).unwrap();
    // What the paths would lead to, from either directory.
    for name in ["secret", "secret.img", "secret.json"] {
        std::fs::write(world.path(name), "precious").unwrap();
    }
    let before = everything(&world);
    for path in PATHS {
        let id = VolumeId((*path).to_owned());
        let missing = ProviderError::NotFound(id.clone());
        assert_eq!(provider.describe(&id), Err(missing.clone()), "{path:?}");
        assert_eq!(provider.attach(&id), Err(missing.clone()), "{path:?}");
        assert_eq!(provider.detach(&id), Err(missing.clone()), "{path:?}");
        assert_eq!(provider.set_tag(&id, "k", Some("v")), Err(missing), "{path:?}");
        assert_eq!(provider.delete(&id), Ok(Change::Identity), "{path:?}: what is not there is gone");
    }
    assert_eq!(everything(&world), before);
    assert_eq!(provider.describe(&good).unwrap().state, VolumeState::Attached);
}

#[test]
fn tokens_types_and_tags_never_become_paths() {
    let world = World::new();
    let provider = world.open();
    let before = world.names("");
    for (index, path) in PATHS.iter().skip(1).enumerate() {
        let tags = Tags::from([("k".to_owned(), (*path).to_owned()), ((*path).to_owned(), "v".to_owned())]);
        let (made, _) = provider.create(&CreateVolume { tags, ..request(path) }).unwrap();
        assert!(is_ours(&made.id.0), "{:?}", made.id);
        let listed = provider.list("k", path).unwrap();
        assert_eq!(listed.iter().map(|volume| &volume.id).collect::<Vec<_>>(), [&made.id], "{index}");
        let strange = CreateVolume { volume_type: (*path).to_owned(), ..request("another") };
        assert!(matches!(provider.create(&strange), Err(ProviderError::Invalid(_))), "{path:?}");
    }
    assert_eq!(world.names(""), before);
    assert_eq!(world.names("volumes").len(), PATHS.len() - 1);
}

#[test]
fn links_planted_for_what_is_written_next_are_not_followed() {
    let world = World::new();
    let provider = world.open();
    let id = available(&provider).unwrap();
    let secret = world.path("secret");
    std::fs::write(&secret, "precious").unwrap();
    // Where the next record is written aside, before it takes its place.
    let aside = world.path(&format!("state/.{}.json.tmp", id.0));
    for target in [secret.clone(), world.path("not there")] {
        symlink(&target, &aside).unwrap();
        provider.set_tag(&id, "k", Some(&target.display().to_string())).unwrap();
        assert!(aside.symlink_metadata().is_err(), "the link is gone");
    }
    // Where a record is: replaced by rename, the link would go and not its target; but it is not believed before that.
    let record = world.path(&format!("state/{}.json", id.0));
    let kept = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    symlink(&secret, &record).unwrap();
    assert!(
        matches!(provider.set_tag(&id, "k", None), Err(ProviderError::Invalid(text)) if text.contains("symbolic link"))
    );
    std::fs::remove_file(&record).unwrap();
    std::fs::write(&record, kept).unwrap();
    provider.set_tag(&id, "k", None).unwrap();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "precious");
    assert!(!world.path("not there").exists());
}

#[test]
fn images_that_are_no_files_are_not_volumes() {
    let world = World::new();
    let provider = world.open();
    let id = attached(&provider).unwrap();
    let image = world.path(&format!("volumes/{}.img", id.0));
    std::fs::remove_file(&image).unwrap();
    let volumes = std::fs::File::open(world.path("volumes")).unwrap();
    // A FIFO would hang whoever opens it; a device would be somebody's disk.
    for kind in [FileType::Fifo, FileType::BlockDevice, FileType::CharacterDevice, FileType::Directory] {
        let name = format!("{}.img", id.0);
        let planted = match kind {
            FileType::Directory => rustix::fs::mkdirat(&volumes, name, Mode::RWXU),
            kind => rustix::fs::mknodat(&volumes, name, kind, Mode::RUSR, rustix::fs::makedev(7, 0)),
        };
        if planted == Err(Errno::PERM) {
            continue; // Without CAP_MKNOD nobody else can plant it either.
        }
        planted.unwrap();
        assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())), "{kind:?}");
        assert_eq!(provider.list("k", "v"), Ok(vec![]), "{kind:?}");
        assert_eq!(world.open().repair().unwrap().vanished, std::slice::from_ref(&id), "{kind:?}");
        std::fs::remove_file(&image).or_else(|_| std::fs::remove_dir(&image)).unwrap();
    }
}
