//! The local provider on a directory that holds anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use surgetank_model::Bytes;
use surgetank_provider::{CreateVolume, LocalConfig, LocalProvider, ManualClock, Provider, Tags, VolumeId};

use crate::input::Input;

/// Files that matter to it, and some that do not.
const NAMES: &[&str] = &[
    "state/vol-0000000000000001.json",
    "state/vol-0000000000000002.json",
    "state/.vol-0000000000000001.json.tmp",
    "volumes/vol-0000000000000001.img",
    "volumes/vol-0000000000000002.img",
    "state/foreign.json",
    "volumes/foreign",
];

/// The file system in memory, if there is one: state files are synced.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory for the provider")
}

fn images(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("volumes")).expect("it is there");
    entries.map(|entry| entry.expect("it can be read").path()).collect()
}

/// Opens it and asks for everything that touches a record.
pub fn provider(data: &[u8]) {
    let mut input = Input(data);
    let scratch = scratch();
    let directory = scratch.path().join("volumes");
    for folder in ["state", "volumes"] {
        fs::create_dir_all(directory.join(folder)).expect("a directory");
    }
    for name in NAMES {
        // A length, then that many bytes: seeds of real records stay readable.
        let length = usize::from(input.u16() & 0x3ff);
        let bytes = input.bytes(length);
        if !bytes.is_empty() {
            fs::write(directory.join(name), bytes).expect("a file");
        }
    }
    fs::write(scratch.path().join("outside"), "untouched").expect("a file");
    let clock = Arc::new(ManualClock::at_ms(input.number()));
    let Ok(provider) = LocalProvider::open(LocalConfig::in_directory(&directory), clock.clone()) else { return };
    let request = CreateVolume {
        token: "t".to_owned(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_mib(1),
        tags: Tags::new(),
    };
    for _ in 0..12 {
        let id = VolumeId(format!("vol-{:016x}", 1 + input.byte() % 3));
        let _ = match input.byte() % 9 {
            0 => provider.attach(&id).map(|_| ()),
            1 => provider.detach(&id).map(|_| ()),
            2 => {
                let deleted = provider.delete(&id).map(|_| ());
                if deleted.is_ok() {
                    let state = provider.describe(&id).map(|volume| volume.state);
                    assert!(!matches!(state, Ok(surgetank_provider::VolumeState::Attached)), "{state:?}");
                }
                deleted
            }
            3 => provider.create(&request).map(|_| ()),
            4 => provider.set_tag(&id, "k", Some("v")).map(|_| ()),
            5 => provider.list("k", "v").map(|_| ()),
            6 => provider.repair().map(|_| ()),
            7 => {
                clock.set_ms(input.number());
                Ok(())
            }
            _ => provider.describe(&id).map(|volume| assert_eq!(volume.id, id)),
        };
    }
    let outside = fs::read_to_string(scratch.path().join("outside")).ok();
    assert_eq!(outside.as_deref(), Some("untouched"));
    assert!(images(&directory).len() <= NAMES.len() + 12);
}
