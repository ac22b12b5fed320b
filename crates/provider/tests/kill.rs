//! SIGKILL at random moments: a child process runs random life cycles, dies, and whatever it was told is still true.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::units::Span;
use surgetank_provider::contract::request;
use surgetank_provider::local::Repair;
use surgetank_provider::{
    Change, LocalConfig, LocalProvider, Provider, ProviderError, SystemClock, VolumeId, VolumeState,
};
use tempfile::TempDir;

/// How often the child is killed.
const KILLS: u64 = 60;
/// The longest life of a child after it began to work, in microseconds.
const LIFE_US_MAX: u64 = 40_000;
/// Set for the child only: the directory to work in.
const DIRECTORY: &str = "SURGETANK_TEST_KILL_DIRECTORY";
/// Set for the child only: its seed.
const SEED: &str = "SURGETANK_TEST_KILL_SEED";

fn open(directory: &Path) -> LocalProvider {
    // Latencies short enough to pass and long enough to die in.
    let latency = Span(Duration::from_millis(1));
    let config = LocalConfig {
        create_latency: latency,
        attach_latency: latency,
        detach_latency: latency,
        delete_latency: latency,
        ..LocalConfig::in_directory(directory.join("provider"))
    };
    LocalProvider::open(config, Arc::new(SystemClock)).unwrap()
}

/// The child: it notes each call before it makes it and the answer after, until it is killed.
#[test]
#[ignore = "the child process of killed_at_any_moment"]
fn child() {
    let (Ok(directory), Ok(seed)) = (std::env::var(DIRECTORY), std::env::var(SEED)) else { return };
    let directory = Path::new(&directory);
    let mut notes = OpenOptions::new().append(true).create(true).open(directory.join("notes")).unwrap();
    // One write() each: a SIGKILL leaves it whole or absent, and what was written stays.
    let mut note = |line: String| notes.write_all(format!("{line}\n").as_bytes()).unwrap();
    let provider = open(directory);
    let mut random = Random::from_seed(seed.parse().unwrap());
    note(format!("begun {seed}"));
    // Bounded, should nobody kill it.
    for round in 0..100_000 {
        let token = format!("{seed}-{round}");
        note(format!("create {token}"));
        let id = provider.create(&request(&token)).unwrap().0.id;
        note(format!("created {token} {}", id.0));
        for _ in 0..random.below(6) {
            let _ = match random.below(4) {
                0 => provider.attach(&id),
                1 => provider.detach(&id),
                2 => provider.set_tag(&id, "round", Some(&round.to_string())),
                _ => provider.describe(&id).map(|_| Change::Identity),
            };
        }
        if random.chance(0.8) {
            note(format!("delete {}", id.0));
            loop {
                let _ = provider.detach(&id);
                if provider.delete(&id).is_ok() {
                    break;
                }
            }
            note(format!("deleted {}", id.0));
        }
    }
}

/// What the child's notes say of the volumes that must be there, and of those that must not.
#[derive(Default)]
struct Notes {
    /// Token → volume, where no deletion was begun.
    there: BTreeMap<String, VolumeId>,
    gone: Vec<VolumeId>,
    /// Tokens whose creation was not answered.
    unanswered: Vec<String>,
}

impl Notes {
    fn read(directory: &Path) -> Self {
        let mut notes = Self::default();
        for line in std::fs::read_to_string(directory.join("notes")).unwrap_or_default().lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["create", token] => notes.unanswered.push(token.to_owned()),
                ["created", token, id] => {
                    notes.unanswered.retain(|unanswered| unanswered != token);
                    notes.there.insert(token.to_owned(), VolumeId(id.to_owned()));
                }
                ["delete", id] => notes.there.retain(|_, there| there.0 != id),
                ["deleted", id] => notes.gone.push(VolumeId(id.to_owned())),
                _ => {}
            }
        }
        notes
    }
}

fn run_and_kill(directory: &Path, seed: u64, life: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = format!("begun {seed}");
    for _ in 0..10_000 {
        if std::fs::read_to_string(directory.join("notes")).is_ok_and(|notes| notes.contains(&begun)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(life);
    assert_eq!(child.try_wait().unwrap(), None, "the child works until it is killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn check(directory: &Path) {
    let notes = Notes::read(directory);
    let provider = open(directory);
    // The clock goes on meanwhile, so a deletion may be finished only now; nothing else may be left to repair.
    let repair = provider.repair().unwrap();
    assert_eq!(repair, Repair { finished: repair.finished.clone(), ..Repair::default() });
    for (token, id) in &notes.there {
        assert_eq!(provider.describe(id).unwrap().id, *id, "what was answered is there");
        let (volume, change) = provider.create(&request(token)).unwrap();
        assert_eq!((&volume.id, change), (id, Change::Identity), "tokens survive");
    }
    for id in &notes.gone {
        match provider.describe(id) {
            Ok(volume) => assert_eq!(volume.state, VolumeState::Deleting),
            answer => assert_eq!(answer, Err(ProviderError::NotFound(id.clone())), "what was deleted is gone"),
        }
    }
    for token in &notes.unanswered {
        let first = provider.create(&request(token)).unwrap().0.id;
        let (second, change) = provider.create(&request(token)).unwrap();
        assert_eq!((second.id, change), (first, Change::Identity), "a lost answer is found again");
    }
    let names = |name: &str, suffix: &str| {
        let entries = std::fs::read_dir(directory.join("provider").join(name)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names.into_iter().map(|name| name.strip_suffix(suffix).expect("nothing else lies here").to_owned()).collect()
    };
    let images: Vec<String> = names("volumes", ".img");
    let records: Vec<String> = names("state", ".json");
    assert!(images.iter().all(|image| records.contains(image)), "every image has a record");
    for volume in provider.list("k", "v").unwrap() {
        let image = directory.join(format!("provider/volumes/{}.img", volume.id.0));
        if volume.state != VolumeState::Deleting {
            assert_eq!(std::fs::metadata(image).unwrap().len(), volume.size.get(), "no volume is half made");
        }
    }
}

/// Deletes everything, so that a long test does not slow down or fill the disk.
fn empty(directory: &Path) {
    let provider = open(directory);
    for volume in provider.list("k", "v").unwrap() {
        while provider.delete(&volume.id).is_err() {
            provider.detach(&volume.id).unwrap();
        }
    }
    std::fs::remove_file(directory.join("notes")).unwrap();
}

#[test]
fn killed_at_any_moment() {
    let directory = TempDir::new().unwrap();
    let mut random = Random::from_seed(0x6b69_6c6c);
    let mut survivors = 0;
    for seed in 0..KILLS {
        let life = Duration::from_micros(random.below(LIFE_US_MAX));
        run_and_kill(directory.path(), seed, life);
        survivors += Notes::read(directory.path()).there.len();
        check(directory.path());
        if seed % 8 == 7 {
            empty(directory.path());
        }
    }
    assert!(survivors > 0, "the children did something");
}
