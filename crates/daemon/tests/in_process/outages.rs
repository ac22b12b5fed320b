//! Caching volumes that fail for a while: pulled, detached by others, unreadable, and back again. What is on them is waited
//! for, or counts as lost until it can be read, and nobody has to start anything anew.

use std::io::BufRead;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::common::failing::{on_caches, slow_and_waits};
use crate::common::{MIB, Machine, Nbd, boost, connect, eventually, fill, find, images, pattern, status};
use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Request, accept_loss_offline};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Faults};
use surgetank_model::Bytes;
use surgetank_provider::local::LocalProvider;
use surgetank_provider::{CreateVolume, Provider, SystemClock, Tags, VolumeId, VolumeState, tag};

const BLOCKS: u64 = 8;

/// A slow device, so that not everything is drained before the volume fails, that waits so long for its volume.
fn config(machine: &Machine, patience: &str) -> Config {
    let backing = machine.path("backing");
    if !backing.exists() {
        machine.backing("backing", 32 * MIB);
    }
    machine.config(&[("data", backing.to_str().unwrap())], &slow_and_waits(patience))
}

/// A boost with data on the caching volume.
fn dirty(daemon: &Daemon, nbd: &mut Nbd) {
    boost(daemon, "data");
    fill(nbd, BLOCKS, 3);
    nbd.flush().unwrap();
}

fn reason(daemon: &Daemon) -> String {
    status(daemon, "data").reason.unwrap_or_default()
}

fn ask(daemon: &Daemon, accept_loss: bool) -> Result<serde_json::Value, String> {
    daemon.handle(Request::Detach { device: "data".into(), accept_loss })
}

/// The volume is deleted, everything is there, and the device boosts again.
fn goes_on(machine: &Machine, daemon: &Daemon) {
    eventually("the volume is deleted", || machine.rented() == 0 && status(daemon, "data").phase == DevicePhase::Idle);
    find(&mut connect(machine, "data"), BLOCKS, 3);
    assert_eq!(status(daemon, "data").lost_bytes, 0);
    eventually("it boosts again", || {
        let _ = daemon.handle(Request::boost("data"));
        status(daemon, "data").phase == DevicePhase::Boost
    });
}

/// Only input and output notice that a volume is gone.
fn until_lost(daemon: &Daemon) {
    eventually("the loss is known", || status(daemon, "data").lost_bytes > 0);
    eventually("the reason is told", || reason(daemon).contains("tried again"));
}

/// A daemon that has stopped in a boost, with data on the caching volume.
fn stopped_dirty(machine: &Machine, faults: &Faults, patience: &str) {
    let daemon = Daemon::start_with(config(machine, patience), on_caches(faults)).unwrap();
    dirty(&daemon, &mut connect(machine, "data"));
    daemon.stop();
}

/// A device that was stopped with data on a volume that has vanished, and what was told of the loss.
fn stopped_lost(machine: &Machine, faults: &Faults) -> DeviceStatus {
    let daemon = Daemon::start_with(config(machine, "1 s"), on_caches(faults)).unwrap();
    dirty(&daemon, &mut connect(machine, "data"));
    faults.vanish();
    until_lost(&daemon);
    let told = status(&daemon, "data");
    daemon.stop();
    told
}

#[test]
fn a_volume_that_is_gone_for_a_while_is_waited_for_and_put_back() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    dirty(&daemon, &mut nbd);
    faults.vanish();
    eventually("it is said", || reason(&daemon).contains("has been gone for"));
    let told = status(&daemon, "data");
    assert_eq!((told.phase, told.lost_bytes), (DevicePhase::Degraded, 0));
    let error = ask(&daemon, true).unwrap_err();
    assert!(error.contains("nothing of data is lost"), "{error}");
    let error = ask(&daemon, false).unwrap_err();
    assert!(error.contains("has gone with data that are on it alone"), "{error}");
    assert_eq!(machine.rented(), 1);
    nbd.write(20 * MIB, &pattern(20, 3, 4096)).unwrap();
    faults.restore();
    goes_on(&machine, &daemon);
}

#[test]
fn a_volume_that_others_detach_is_attached_again() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let config = config(&machine, "1 min");
    let provider = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let daemon = Daemon::start_with(config, on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    dirty(&daemon, &mut nbd);
    let id = provider.list(tag::DEVICE, "data").unwrap()[0].id.clone();
    let attached = || provider.describe(&id).is_ok_and(|volume| volume.state == VolumeState::Attached);
    faults.add(Rule::always(Kinds::Any, Effect::Fail(Failure::Io)));
    provider.detach(&id).unwrap();
    eventually("it is attached again", attached);
    eventually("and still does not answer", || reason(&daemon).contains("cannot be read"));
    faults.clear();
    goes_on(&machine, &daemon);
}

#[test]
fn a_lost_volume_that_can_be_read_again_is_read_back() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    dirty(&daemon, &mut nbd);
    faults.vanish();
    until_lost(&daemon);
    let told = status(&daemon, "data");
    assert_eq!(told.phase, DevicePhase::Degraded);
    assert!(nbd.read(told.lost_ranges[0].offset_bytes, 4096).is_err(), "lost data is never answered");
    assert_eq!(machine.rented(), 1, "it is kept");
    let error = ask(&daemon, false).unwrap_err();
    assert!(error.contains("surgetank drain data") && error.contains("--accept-loss"), "{error}");
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    eventually("it is tried", || reason(&daemon).contains("cannot be read: "));
    assert_eq!(status(&daemon, "data").lost_bytes, told.lost_bytes);
    faults.restore();
    goes_on(&machine, &daemon);
}

#[test]
fn a_lost_volume_is_read_back_after_a_restart() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let told = stopped_lost(&machine, &faults);
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    until_lost(&daemon);
    assert_eq!(status(&daemon, "data").lost_ranges, told.lost_ranges);
    daemon.stop();
    faults.restore();
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    goes_on(&machine, &daemon);
}

#[test]
fn a_lost_volume_whose_rental_is_forgotten_is_read_back_and_deleted() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_lost(&machine, &faults);
    std::fs::remove_file(machine.path("state/data/journal.json")).unwrap();
    faults.restore();
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    goes_on(&machine, &daemon);
}

/// Not even a recovery can begin.
#[test]
fn requests_fail_in_time_while_the_volume_cannot_be_opened_after_a_restart() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 s");
    let image = images(&machine.path("volumes")).pop().unwrap();
    std::fs::rename(&image, machine.path("away")).unwrap();
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    assert!(connect(&machine, "data").read(0, 4096).is_err());
    assert!(reason(&daemon).contains("cannot be read back"), "{}", reason(&daemon));
    std::fs::rename(machine.path("away"), &image).unwrap();
    goes_on(&machine, &daemon);
}

/// A volume of a build whose owner record does not name the attachment that has ended.
fn unproved(machine: &Machine, faults: &Faults) {
    stopped_dirty(machine, faults, "1 min");
    assert_eq!(machine.rented(), 1);
    std::fs::write(machine.path("state/data/owner.json"), "{\"version\": 1, \"owner\": \"backing\"}").unwrap();
}

/// The machine's provider, and the volume that it rents out.
fn rented(machine: &Machine) -> (LocalProvider, VolumeId) {
    let provider = LocalProvider::open(crate::common::local(&config(machine, "1 min")), Arc::new(SystemClock)).unwrap();
    let id = provider.list(tag::DEVICE, "data").unwrap().remove(0).id;
    (provider, id)
}

/// A volume of which nothing says that it is needed, and nothing that it is not.
fn untagged(machine: &Machine, faults: &Faults) {
    unproved(machine, faults);
    let (provider, id) = rented(machine);
    provider.set_tag(&id, tag::DIRTY_EPOCH, None).unwrap();
}

/// Somebody detaches the volume of a daemon that has stopped.
fn detached(machine: &Machine) {
    let (provider, id) = rented(machine);
    provider.detach(&id).unwrap();
    eventually("it is detached", || provider.describe(&id).unwrap().state == VolumeState::Available);
}

/// The records are older than the volume, and whatever keeps it from being looked at may pass.
#[test]
fn a_device_is_not_served_while_the_volume_of_its_journal_may_hold_records_and_cannot_be_looked_at() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 min");
    let owner = machine.path("state/data/owner.json");
    let owned = std::fs::read(&owner).unwrap();
    std::fs::write(&owner, "{\"version\": 1, \"owner\": \"backing\"}").unwrap();
    let error = || Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).err().unwrap().to_string();
    let reads = faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)));
    let told = error();
    assert!(told.contains("cannot be looked at") && told.contains("--accept-loss"), "{told}");
    faults.remove(reads);
    let holder = Holder::of(&machine);
    let told = error();
    assert!(told.contains("is in use by flock (process") && !told.contains("--accept-loss"), "{told}");
    let told = accept_loss_offline(&config(&machine, "1 min"), "data").unwrap_err();
    assert!(told.contains("is not discarded"), "{told}");
    drop(holder);
    detached(&machine);
    // It is attached, and holds records.
    refused(&machine, &faults);
    assert_eq!(machine.rented(), 1);
    std::fs::write(&owner, owned).unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    goes_on(&machine, &daemon);
}

#[test]
fn what_cannot_be_looked_at_is_discarded_once_and_for_all() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    unproved(&machine, &faults);
    faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)));
    accept_loss_offline(&config(&machine, "1 min"), "data").unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
}

/// Nobody but the volume itself can say that nothing was acknowledged from it.
#[test]
fn a_volume_that_is_detached_at_the_start_is_attached_so_as_to_be_read() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    boost(&daemon, "data");
    daemon.stop();
    // The records are those of a daemon that was killed between the tag and the owner record.
    let file = machine.path("state/data/journal.json");
    let journal = std::fs::read_to_string(&file).unwrap();
    assert!(journal.contains("\"stage\": \"adopted\""), "{journal}");
    std::fs::write(&file, journal.replace("\"stage\": \"adopted\"", "\"stage\": \"adopting\"")).unwrap();
    std::fs::write(machine.path("state/data/owner.json"), "{\"version\": 1, \"owner\": \"backing\"}").unwrap();
    detached(&machine);
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
}

/// Another program that has the caching volume open, as another daemon would.
struct Holder(Child);

impl Holder {
    fn of(machine: &Machine) -> Self {
        let image = images(&machine.path("volumes")).pop().unwrap();
        let mut command = Command::new("flock");
        command.arg(image).args(["sh", "-c", "echo held; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Self(command.spawn().unwrap());
        let mut said = String::new();
        std::io::BufReader::new(holder.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What is on it can be read again: the loss is neither offered nor accepted.
fn never_discarded(daemon: &Daemon) {
    eventually("it is said who holds it", || reason(daemon).contains("is in use by flock (process"));
    let told = reason(daemon);
    assert!(told.contains("stop that first") && !told.contains("--accept-loss"), "{told}");
    let error = ask(daemon, true).unwrap_err();
    assert!(error.contains("is not discarded") && error.contains("is in use by flock (process"), "{error}");
}

#[test]
fn a_volume_that_another_program_has_open_is_waited_for_and_its_data_is_not_discarded() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 min");
    let holder = Holder::of(&machine);
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    never_discarded(&daemon);
    daemon.stop();
    // Not even after it could not be read for another reason.
    let file = machine.path("state/data/journal.json");
    let journal = std::fs::read_to_string(&file).unwrap();
    assert!(journal.contains("\"recovery_failed\": false"), "{journal}");
    let failed = journal.replace("\"recovery_failed\": false", "\"recovery_failed\": true");
    std::fs::write(&file, failed).unwrap();
    let error = accept_loss_offline(&config(&machine, "1 min"), "data").unwrap_err();
    assert!(error.contains("is not discarded") && error.contains("is in use by flock (process"), "{error}");
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    drop(holder);
    goes_on(&machine, &daemon);
}

#[test]
fn a_volume_that_is_kept_while_another_program_has_it_open_is_not_discarded() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    untagged(&machine, &faults);
    let holder = Holder::of(&machine);
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    never_discarded(&daemon);
    assert_eq!(machine.rented(), 1);
    drop(holder);
    // Its tag was removed when nothing on it was needed any more.
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
}

#[test]
fn a_lost_volume_that_another_program_has_open_is_not_discarded() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_lost(&machine, &faults);
    faults.restore();
    let holder = Holder::of(&machine);
    let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
    never_discarded(&daemon);
    drop(holder);
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    goes_on(&machine, &daemon);
}

/// A rental in a slot that nobody uses after a restart; the one of the engine goes on beside it.
#[test]
fn a_volume_in_another_slot_is_deleted_after_a_restart() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 min");
    let file = machine.path("state/data/journal.json");
    let mut journal: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let provider =
        LocalProvider::open(crate::common::local(&config(&machine, "1 min")), Arc::new(SystemClock)).unwrap();
    let rented = |token: &str| {
        let tags = Tags::from([(tag::TOKEN.to_owned(), token.to_owned())]);
        let request =
            CreateVolume { token: token.to_owned(), volume_type: "fast".to_owned(), size: Bytes::from_mib(4), tags };
        provider.create(&request).unwrap().0.id
    };
    let (named, _nameless) = (rented("one"), rented("two"));
    let other = |slot: u8, token: &str, volume: Option<&str>| {
        let mut record = journal["rental"].clone();
        let fields = serde_json::json!({
            "slot": slot, "token": token, "volume": volume, "epoch": null, "disposable": true,
            "stage": if volume.is_some() { "attaching" } else { "creating" },
        });
        record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        record
    };
    let others = vec![other(1, "one", Some(&named.0)), other(2, "two", None)];
    journal["other_rentals"] = others.into();
    journal["version"] = 3.into();
    std::fs::write(&file, journal.to_string()).unwrap();
    drop(provider);
    assert_eq!(machine.rented(), 3);
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    eventually("those of no use are deleted", || {
        let journal = std::fs::read_to_string(&file).unwrap();
        machine.rented() <= 1 && !journal.contains("other_rentals")
    });
    goes_on(&machine, &daemon);
}

/// The device is not served without what is on its caching volume.
fn refused(machine: &Machine, faults: &Faults) {
    let error = Daemon::start_with(config(machine, "1 min"), on_caches(faults)).err().unwrap().to_string();
    assert!(error.contains("restore the state directory") && error.contains("--accept-loss"), "{error}");
    assert_eq!(machine.rented(), 1);
}

/// The records of a snapshot from between the attachment and the first dirty byte say that nothing is on the volume.
#[test]
fn a_volume_that_a_copy_of_this_machine_uses_is_kept() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 min");
    let [journal, owner] = ["journal.json", "owner.json"].map(|name| machine.path("state/data").join(name));
    let [journaled, owned] = [&journal, &owner].map(|file| std::fs::read(file).unwrap());
    let mut snapshot: serde_json::Value = serde_json::from_slice(&journaled).unwrap();
    let rental = snapshot["rental"].as_object_mut().unwrap();
    rental.insert("stage".into(), "attached".into());
    rental.insert("epoch".into(), serde_json::Value::Null);
    rental.insert("disposable".into(), true.into());
    std::fs::write(&journal, snapshot.to_string()).unwrap();
    std::fs::write(&owner, "{\"version\": 1, \"owner\": \"backing\"}").unwrap();
    refused(&machine, &faults);
    // From between the intent to adopt it and the owner record.
    snapshot["rental"]["stage"] = "adopting".into();
    snapshot["rental"]["epoch"] =
        serde_json::from_slice::<serde_json::Value>(&journaled).unwrap()["rental"]["epoch"].take();
    snapshot["rental"]["disposable"] = false.into();
    std::fs::write(&journal, snapshot.to_string()).unwrap();
    refused(&machine, &faults);
    std::fs::remove_file(&owner).unwrap();
    refused(&machine, &faults);
    std::fs::write(&journal, &journaled).unwrap();
    std::fs::write(&owner, &owned).unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    goes_on(&machine, &daemon);
}

#[test]
fn a_volume_that_is_kept_for_want_of_a_proof_is_named_and_deleted_on_request() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    faults.add(Rule { after: 0, ..Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)) });
    untagged(&machine, &faults);
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    let why = "cannot be read";
    eventually("the reason is told", || reason(&daemon).contains(why));
    assert_eq!(status(&daemon, "data").phase, DevicePhase::Degraded);
    for error in
        [daemon.handle(Request::Drain { device: "data".into() }).unwrap_err(), ask(&daemon, false).unwrap_err()]
    {
        assert!(error.contains(why) && error.contains("surgetank detach data --accept-loss"), "{error}");
    }
    assert_eq!(machine.rented(), 1);
    ask(&daemon, true).unwrap();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    faults.clear();
    boost(&daemon, "data");
}

#[test]
fn a_tagged_volume_with_damaged_superblocks_is_kept() {
    use std::os::unix::fs::FileExt;
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    unproved(&machine, &faults);
    let image = images(&machine.path("volumes")).pop().unwrap();
    std::fs::OpenOptions::new().write(true).open(image).unwrap().write_all_at(&[0; 8192], 0).unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    eventually("the reason is told", || reason(&daemon).contains("superblocks are damaged"));
    assert_eq!((status(&daemon, "data").phase, machine.rented()), (DevicePhase::Degraded, 1));
}

#[test]
fn a_volume_that_reads_as_in_use_against_the_records_is_kept_until_its_data_is_discarded() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    unproved(&machine, &faults);
    refused(&machine, &faults);
    accept_loss_offline(&config(&machine, "1 min"), "data").unwrap();
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    boost(&daemon, "data");
}

#[test]
fn a_volume_that_cannot_be_read_after_its_release_is_deleted() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let daemon = Daemon::start_with(config(&machine, "1 min"), on_caches(&faults)).unwrap();
    dirty(&daemon, &mut connect(&machine, "data"));
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    eventually("everything is drained", || {
        status(&daemon, "data").caching.is_none_or(|caching| caching.dirty_gib == 0.0)
    });
    // Nothing needs to be read of it any more but CLEAN.
    let reads = faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)));
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    faults.remove(reads);
    goes_on(&machine, &daemon);
}

fn remove_the_file(machine: &Machine) {
    for image in images(&machine.path("volumes")) {
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn a_volume_whose_file_is_removed_is_drained_while_it_is_open() {
    for stops in [false, true] {
        let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
        let daemon = Daemon::start_with(config(&machine, "1 s"), on_caches(&faults)).unwrap();
        dirty(&daemon, &mut connect(&machine, "data"));
        remove_the_file(&machine);
        if !stops {
            eventually("it is said", || reason(&daemon).contains("somebody removed the file"));
            eventually("it is drained", || status(&daemon, "data").phase == DevicePhase::Idle);
            assert_eq!(status(&daemon, "data").lost_bytes, 0);
        }
        // Whoever stops the daemon closes the last way to the data.
        daemon.stop();
        let daemon = Daemon::start(config(&machine, "1 s")).unwrap();
        goes_on(&machine, &daemon);
    }
}

#[test]
fn a_volume_that_was_discarded_while_it_was_away_is_deleted_when_it_is_there_again() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    stopped_dirty(&machine, &faults, "1 s");
    let image = images(&machine.path("volumes")).remove(0);
    std::fs::rename(&image, machine.path("away")).unwrap();
    let error = Daemon::start(config(&machine, "1 s")).err().expect("refused").to_string();
    assert!(error.contains("which is missing"), "{error}");
    surgetank_daemon::accept_loss_offline(&config(&machine, "1 s"), "data").unwrap();
    let daemon = Daemon::start(config(&machine, "1 s")).unwrap();
    eventually("nothing is rented", || status(&daemon, "data").phase == DevicePhase::Idle);
    daemon.stop();
    std::fs::rename(machine.path("away"), &image).unwrap();
    let daemon = Daemon::start(config(&machine, "1 s")).unwrap();
    eventually("it is deleted", || {
        daemon.handle(Request::Gc).unwrap();
        machine.rented() == 0
    });
}
