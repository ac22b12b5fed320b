//! State files that the first release wrote are read.

use std::path::{Path, PathBuf};

use surgetank_cache::{Epoch, Owner};
use surgetank_daemon::journal::Journal;
use surgetank_daemon::owner::OwnerStore;
use surgetank_model::Bytes;
use surgetank_provider::VolumeId;
use surgetank_rental::RentalStage;

/// A copy of a state directory, private as the daemon wants it.
fn state(kind: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/release-0.1").join(kind);
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let path = directory.path().to_owned();
    (directory, path)
}

#[test]
fn owner_records_of_the_first_release_are_read() {
    let epoch = Epoch([1; 16]);
    let volume = Some(VolumeId("vol-0000000000000007".to_owned()));
    let lost = Owner::Lost { epoch, ranges: vec![(0, 4096), (65536, 12288), (1 << 40, 512)] };
    for (kind, owner, volume) in
        [("backing", Owner::Backing, None), ("cache", Owner::Cache { epoch }, volume.clone()), ("lost", lost, volume)]
    {
        let (_directory, path) = state(kind);
        let store = OwnerStore::open(&path).unwrap();
        assert_eq!((&store.record().owner, &store.record().volume), (&owner, &volume), "{kind}");
    }
}

#[test]
fn the_journal_of_the_first_release_is_read() {
    let (_directory, path) = state("cache");
    let journal = Journal::open(&path).unwrap();
    let state = journal.state();
    assert_eq!(state.saved_unix_ms, 1_764_000_000_123);
    assert_eq!(
        state.backing.as_ref().map(|backing| (backing.name.as_str(), backing.size_bytes)),
        Some(("disk 7", 2 << 20))
    );
    let rental = state.rental.as_ref().unwrap();
    assert_eq!((rental.token.as_str(), rental.volume_type.as_str()), ("surgetank-data-7", "fast"));
    assert_eq!((rental.size, rental.started_unix_ms), (Bytes::from_mib(1), 1_763_999_000_456));
    assert_eq!((rental.stage, rental.disposable), (RentalStage::Adopted, false));
    assert_eq!(rental.volume, Some(VolumeId("vol-0000000000000007".to_owned())));
    assert_eq!(rental.epoch.as_deref(), Some("01010101010101010101010101010101"));
    assert_eq!(state.unbooked.len(), 1);
    assert_eq!((state.learned.next_size, state.learned.boosts), (Some(Bytes::from_gib(3)), 5));
    assert!((state.totals.agbs - 12.5).abs() < 1e-9 && !state.recovery_failed);
}
