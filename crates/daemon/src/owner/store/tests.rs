//! What is on record stays there as it was written, also over crashes and failed writes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[test]
fn a_damaged_record_is_refused_and_a_missing_one_is_backing() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(OwnerStore::open(directory.path()).unwrap().record(), &OwnerRecord::default());
    std::fs::write(directory.path().join(FILE), "{").unwrap();
    assert!(OwnerStore::open(directory.path()).unwrap_err().to_string().contains("is damaged"));
    std::fs::write(directory.path().join(FILE), "{\"version\": 4, \"owner\": \"nowhere\"}").unwrap();
    let error = OwnerStore::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("by a newer surgetank") && !error.contains("in its place"), "{error}");
}

#[test]
fn a_loss_that_an_older_build_wrote_is_read_and_ours_is_refused_by_it() {
    let directory = tempfile::tempdir().unwrap();
    let epoch = Epoch([1; 16]);
    let old = format!(
        "{{\"version\": 1, \"owner\": \"lost\", \"epoch\": \"{epoch}\", \"lost_ranges\": [[0, 4096], [8192, 4096]]}}"
    );
    std::fs::write(directory.path().join(FILE), old).unwrap();
    let mut store = OwnerStore::open(directory.path()).unwrap();
    assert_eq!(lost(&store), [(0, 4096), (8192, 4096)]);
    store.record_healed(epoch, &[(0, 4096)]).unwrap();
    assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), [(8192, 4096)]);
    // It would take what was healed for lost.
    let version = || files::version(&std::fs::read(directory.path().join(FILE)).unwrap(), 1);
    assert!(version().unwrap_err().to_string().contains("by a newer surgetank"));
    // Other records are as they always were.
    store.persist(OwnerRecord::default()).unwrap();
    assert_eq!(version(), Ok(1));
}

/// What was healed would count as lost again, and older data as the newest.
#[test]
fn a_journal_that_somebody_removed_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let epoch = Epoch([1; 16]);
    let mut store = OwnerStore::open(directory.path()).unwrap();
    let ranges = vec![(0, 4096), (8192, 4096)];
    store.persist(OwnerRecord { owner: Owner::Lost { epoch, ranges }, volume: None, ended: None }).unwrap();
    let remove = || {
        for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
            if entry.file_name().to_str().unwrap().starts_with("healed.") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    };
    let missed = || OwnerStore::open(directory.path()).unwrap_err().to_string().contains("is missing");
    assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()).len(), 2, "nothing is healed yet");
    store.record_healed(epoch, &[(0, 4096)]).unwrap();
    assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), [(8192, 4096)]);
    remove();
    assert!(missed());
    // One without an entry yet, as well.
    let record = OwnerRecord { owner: Owner::Lost { epoch, ranges: vec![(0, 512)] }, volume: None, ended: None };
    store.persist(record).unwrap();
    assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), [(0, 512)]);
    remove();
    assert!(missed());
    store.persist(OwnerRecord::default()).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left of journals");
}

/// A healing costs what it says, whatever is lost; and a long journal ends in a new record, as long as that is.
#[test]
fn a_healing_costs_its_own_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let length = |name: &str| std::fs::metadata(directory.path().join(name)).map_or(0, |file| file.len());
    let epoch = Epoch([1; 16]);
    let ranges: Vec<Pair> = (0..20_000).map(|number| (number * 8192, 4096)).collect();
    let mut store = OwnerStore::open(directory.path()).unwrap();
    store
        .persist(OwnerRecord { owner: Owner::Lost { epoch, ranges: ranges.clone() }, volume: None, ended: None })
        .unwrap();
    assert_eq!(lost(&store), [], "nobody keeps them in memory");
    let record = length(FILE);
    let mut journal = 0;
    for (number, range) in ranges.iter().enumerate().take(100) {
        store.record_healed(epoch, &[*range]).unwrap();
        let now = length("healed.journal");
        assert_eq!(now - journal, if number == 0 { 64 } else { 32 }, "{number}");
        journal = now;
    }
    assert_eq!(length(FILE), record, "the record itself is not written");
    // A journal of a mebibyte, at last, costs one record, which is shorter.
    let many: Vec<Pair> = ranges[100..2000].iter().copied().cycle().take(70_000).collect();
    store.record_healed(epoch, &many).unwrap();
    assert_eq!(length(FILE), record);
    store.record_healed(epoch, &[ranges[2000]]).unwrap();
    assert!(length(FILE) < record);
    store.record_healed(epoch, &[ranges[2001]]).unwrap();
    assert_eq!(length("healed.journal"), 64);
    assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), &ranges[2002..]);
}

#[test]
fn a_failed_flush_is_left_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnerStore::open(directory.path()).unwrap();
    assert!(!store.owes_flush_failure().unwrap());
    for owed in [true, true, false, false, true] {
        store.keep_flush_failure(owed).unwrap();
        assert_eq!(OwnerStore::open(directory.path()).unwrap().owes_flush_failure().unwrap(), owed);
    }
    std::fs::write(directory.path().join(FLUSH_FAILED), "{\"version\": 2}").unwrap();
    assert!(store.owes_flush_failure().unwrap_err().to_string().contains("by a newer surgetank"));
}

/// All files of a directory, by name.
type Files = BTreeMap<String, Vec<u8>>;

fn files_of(directory: &Path) -> Files {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

fn put(directory: &Path, files: &Files) {
    for entry in std::fs::read_dir(directory).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    files.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
}

/// What a crash may leave of a change: a file that grew ends anywhere, with what never arrived as zeroes or cut off;
/// one that was replaced is the old or the new one; the record before the journal's entries, and a half-made file beside them.
fn crashes(before: &Files, after: &Files, cut: prop::sample::Index) -> Vec<Files> {
    let mut states = vec![before.clone(), after.clone()];
    let (record, journal) = (FILE.to_owned(), "healed.journal".to_owned());
    if let (Some(old), Some(new)) = (before.get(&journal), after.get(&journal))
        && new.starts_with(old)
    {
        let end = old.len() + cut.index(new.len() - old.len() + 1);
        let torn = new[..end].to_vec();
        let zeroes = [&torn[..], &vec![0; new.len() - end]].concat();
        states.extend([torn, zeroes].map(|bytes| {
            let mut state = before.clone();
            state.insert(journal.clone(), bytes);
            state
        }));
    }
    // The beginning of a journal comes before the record that names it, and goes after what takes its place.
    let is_beginning = |name: &str| name.starts_with("healed.") && name != journal;
    let beginnings = |files: &Files| -> Files {
        files.iter().filter(|(name, _)| is_beginning(name)).map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
    };
    let mut early = before.clone();
    early.extend(beginnings(after));
    states.push(early.clone());
    early.extend(after.get(&record).map(|bytes| (record.clone(), bytes.clone())));
    states.push(early);
    states.push(after.iter().map(|(name, bytes)| (name.clone(), bytes.clone())).chain(beginnings(before)).collect());
    for (name, bytes) in after {
        let mut half = before.clone();
        half.insert(format!("{name}.new"), bytes[..cut.index(bytes.len() + 1)].to_vec());
        states.push(half);
    }
    states
}

#[derive(Clone, Debug)]
enum Change {
    Heal(Vec<Pair>),
    /// The state directory cannot be written meanwhile.
    Fail(Vec<Pair>),
    Anew,
    Reopen,
    LoseOther(Vec<Pair>),
}

fn any_change() -> impl Strategy<Value = Change> {
    let ranges = || prop::collection::vec((0..64_u64, 1..8_u64), 1..5);
    prop_oneof![
        6 => ranges().prop_map(Change::Heal),
        1 => ranges().prop_map(Change::Fail),
        1 => Just(Change::Anew),
        1 => Just(Change::Reopen),
        1 => ranges().prop_map(Change::LoseOther),
    ]
}

fn numbers(ranges: &[Pair]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|&(offset, length)| offset..offset + length).collect()
}

fn lost(store: &OwnerStore) -> Vec<Pair> {
    match &store.record().owner {
        Owner::Lost { ranges, .. } => ranges.clone(),
        owner => panic!("{owner:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whenever a crash comes, at any byte of anything written: what was acknowledged as healed is, and nothing is but
    /// that and what was just being recorded.
    #[test]
    fn what_was_healed_stays_healed_over_any_crash(
        changes in prop::collection::vec((any_change(), any::<prop::sample::Index>()), 1..10),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let state = directory.path().join("device");
        std::fs::create_dir(&state).unwrap();
        let epoch = Epoch([1; 16]);
        let all = vec![(0, 70)];
        let mut store = OwnerStore::open(&state).unwrap();
        store.persist(OwnerRecord { owner: Owner::Lost { epoch, ranges: all.clone() }, volume: None, ended: None }).unwrap();
        // What must be lost, and what may be on record as healed though nobody was told so.
        let (mut left, mut perhaps) = (numbers(&all), BTreeSet::new());
        for (change, cut) in changes {
            let (before, must) = (files_of(&state), left.clone());
            match &change {
                Change::Heal(ranges) => {
                    store.record_healed(epoch, ranges).unwrap();
                    left = &left - &numbers(ranges);
                }
                Change::Fail(ranges) => {
                    let aside = directory.path().join("aside");
                    std::fs::rename(&state, &aside).unwrap();
                    // An open journal is still written.
                    match store.record_healed(epoch, ranges) {
                        Ok(()) => left = &left - &numbers(ranges),
                        Err(_) => perhaps.extend(numbers(ranges)),
                    }
                    std::fs::rename(&aside, &state).unwrap();
                }
                Change::Anew => {
                    store.uncertain = true;
                    store.settle().unwrap();
                }
                Change::Reopen => store = OwnerStore::open(&state).unwrap(),
                Change::LoseOther(ranges) => {
                    let ranges = healed::joined(ranges.clone());
                    (left, perhaps) = (numbers(&ranges), BTreeSet::new());
                    store.persist(OwnerRecord { owner: Owner::Lost { epoch, ranges }, volume: None, ended: None }).unwrap();
                }
            }
            let after = files_of(&state);
            for crash in crashes(&before, &after, cut) {
                put(scratch.path(), &crash);
                let found = numbers(&lost(&OwnerStore::open(scratch.path()).unwrap()));
                if matches!(change, Change::LoseOther(_)) {
                    prop_assert!(found == left || found.is_subset(&must), "neither loss: {:?}", found);
                    continue;
                }
                let too_few = &(&left - &perhaps) - &found;
                prop_assert!(too_few.is_empty(), "healed without a word: {:?} after {:?}", too_few, change);
                prop_assert!(found.is_subset(&must), "lost again: {:?} after {:?}", &found - &must, change);
            }
            let now = numbers(&lost(&OwnerStore::open(&state).unwrap()));
            prop_assert!(now.is_subset(&left), "lost again: {:?} after {:?}", &now - &left, change);
        }
    }
}

#[test]
fn a_failed_write_leaves_the_record_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("device");
    std::fs::create_dir(&state).unwrap();
    let mut store = OwnerStore::open(&state).unwrap();
    std::fs::remove_dir(&state).unwrap();
    let record = OwnerRecord { owner: Owner::Cache { epoch: Epoch([1; 16]) }, ..OwnerRecord::default() };
    assert!(store.persist(record.clone()).is_err());
    assert_eq!(store.record(), &OwnerRecord::default());
    assert!(store.settle().is_err(), "the file is still in doubt");
    std::fs::create_dir(&state).unwrap();
    store.settle().unwrap();
    store.persist(record.clone()).unwrap();
    assert_eq!(OwnerStore::open(&state).unwrap().record(), &record);
}
