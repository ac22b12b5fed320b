//! Devices over arrays: members are replaced under writers that know every sector, the daemon is killed in the middle of copies and
//! at every step, providers refuse. Nothing that was acknowledged is lost, and no volume is left behind.

use std::path::Path;
use std::time::Duration;

use crate::common::arrays::{
    MEMBERS, asked, config, copied, copies_so_far, create, delete, is_calm, of_report, rotate,
};
use crate::common::child::Running;
use crate::common::rounds::{self, Seen};
use crate::common::writers::{Counts, Writer};
use crate::common::{MIB, Machine, connect, eventually, find};
use surgetank_daemon::arrays::status::ArrayStatus;
use surgetank_daemon::{Daemon, OfflineArrays, Request};
use surgetank_model::random::Random;

/// What is written of the array.
const SIZE: u64 = 16 * MIB;
const WRITERS: u64 = 4;

/// A machine with a device over an array, and one over a file so that the daemon runs without the array.
fn configured(provider: &str, array: &str) -> Machine {
    let machine = Machine::new();
    let root = machine.directory.path().display();
    let other = machine.backing("backing", MIB);
    let type_of = if array.contains("volume_type") { "" } else { "volume_type = \"tiny\"\n" };
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"1 s\"\n\
         [provider.local]\ndirectory = \"{root}/volumes\"\n{provider}\n\
         [provider.local.types.tiny]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         [array.scratch]\n{type_of}members = {MEMBERS}\nmember_size = \"8 MiB\"\n{array}\n\
         [device.data]\nbacking = \"array:scratch\"\nexport = \"nbd\"\n\
         [device.other]\nbacking = \"{}\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n",
        other.display()
    );
    std::fs::write(machine.path("config.toml"), text).unwrap();
    machine
}

fn status(daemon: &Daemon) -> ArrayStatus {
    of_report(daemon.handle(Request::ArrayStatus { name: None }).unwrap())
}

#[test]
fn every_member_is_replaced_under_writers_and_a_delete_leaves_nothing() {
    let machine = configured("", "copy_rate = \"64 MiB/s\"");
    create(&machine);
    assert_eq!(machine.rented(), MEMBERS);
    let mut running = Running::start(&machine, None);
    let (socket, seen) = (running.socket.clone(), Seen::default());
    let mut writers = Writer::several(WRITERS, SIZE, 3);
    let first = asked(&running.client).unwrap();
    std::thread::scope(|scope| {
        for writer in &mut writers {
            scope.spawn(|| writer.serve_itself(&socket, || seen.over()));
        }
        let _over = rounds::Over(&seen);
        for _ in 0..2 {
            running.client.ask(&rotate(None)).unwrap();
            eventually("all members are replaced", || {
                let status = asked(&running.client).unwrap();
                assert!(status.volumes.len() <= MEMBERS + 1, "one extra volume at most: {status:?}");
                is_calm(&status)
            });
        }
    });
    let last = asked(&running.client).unwrap();
    assert_eq!(last.replaced, 2 * MEMBERS as u64);
    let names = |status: &ArrayStatus| status.volumes.iter().map(|volume| volume.volume.clone()).collect::<Vec<_>>();
    assert!(names(&first).iter().all(|name| !names(&last).contains(name)), "all volumes are others");
    let mut nbd = running.nbd().unwrap();
    writers.iter_mut().for_each(|writer| writer.check(&mut nbd).unwrap());
    let refusal = running.client.ask(&Request::ArrayDelete { name: "scratch".to_owned() }).unwrap_err().to_string();
    assert!(refusal.contains("a device uses the array scratch"), "{refusal}");
    drop(nbd);
    running.stop();
    delete(&machine);
}

/// Kills in the middle of copies and elsewhere. More of them with `SURGETANK_KILLS`.
#[test]
#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kills_in_the_middle_of_copies_lose_nothing() {
    let machine = configured("", "copy_rate = \"24 MiB/s\"");
    create(&machine);
    let mut random = Random::from_seed(17);
    let mut writers = Writer::several(WRITERS, SIZE, 17);
    let (kills, mut in_copies) = (rounds::kills(12), 0);
    for round in 0..kills {
        let mut running = Running::start(&machine, None);
        assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
        let (socket, seen) = (running.socket.clone(), Seen::default());
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| writer.serve_itself(&socket, || seen.over()));
            }
            let _over = rounds::Over(&seen);
            running.client.ask(&rotate(Some(round as u32 % MEMBERS as u32))).unwrap();
            // One in four anywhere; the others at some share of the copy.
            let copying = round % 4 != 3 && copies_so_far(&running.client, random.unit() * 0.8);
            std::thread::sleep(Duration::from_millis(random.below(40)));
            in_copies += u32::from(copying);
            running.kill();
        });
        assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
    }
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap_or_else(|| panic!("the daemon does not start again: {}", machine.log()));
    writers.iter_mut().for_each(|writer| writer.check(&mut nbd).unwrap());
    // What was asked for before the kills is still done.
    eventually("all that was asked for is done", || is_calm(&asked(&running.client).unwrap()));
    writers.iter_mut().for_each(|writer| writer.check(&mut nbd).unwrap());
    let mut counts = Counts::default();
    writers.iter().for_each(|writer| counts.add(&writer.counts));
    eprintln!(
        "survived {kills} kills, {in_copies} of them in the middle of a copy; {} writes, {} flushes, {} MiB checked",
        counts.writes,
        counts.flushes,
        counts.checked_bytes >> 20
    );
    assert!(in_copies * 2 >= kills as u32, "too few kills in copies: {in_copies} of {kills}");
    assert_eq!(machine.rented(), MEMBERS, "volumes are left");
    drop(nbd);
    running.stop();
    delete(&machine);
}

/// A daemon that is killed at a step of a creation, and what the next one makes of it.
fn crash_in_creation(point: &str) {
    let machine = configured("", "");
    let mut running = Running::start(&machine, Some(point));
    drop(running.client.ask(&Request::ArrayCreate { name: "scratch".to_owned() }));
    assert!(running.was_killed(), "{point} is not passed: {}", machine.log());
    let running = Running::start(&machine, None);
    eventually("what is left is deleted, or the array is whole", || {
        let status = asked(&running.client).unwrap();
        status.state == "absent" && machine.rented() == 0 || status.state == "served" && machine.rented() == MEMBERS
    });
    let state = asked(&running.client).unwrap().state;
    if state == "absent" {
        running.client.ask(&Request::ArrayCreate { name: "scratch".to_owned() }).unwrap();
        assert_eq!(asked(&running.client).unwrap().state, "served", "its device is served as soon as it is there");
    }
    running.stop();
    delete(&machine);
}

#[test]
fn a_kill_at_any_step_of_a_creation_leaves_a_whole_array_or_nothing() {
    for point in
        ["create:before", "create:after:2", "attach:after", "tag:after:2", "array-format:before", "array-format:after"]
    {
        crash_in_creation(point);
    }
    for passed in [1, 4, 9, 16] {
        crash_in_creation(&format!("array-persist:before:{passed}"));
    }
}

#[test]
fn a_kill_at_any_step_of_a_replacement_is_resumed_or_undone() {
    let machine = configured("", "");
    create(&machine);
    let mut written = false;
    let steps = ["create:before", "create:after", "attach:after", "tag:before", "tag:after", "array-join:before"];
    let ends = [
        "array-replaced:before",
        "array-replaced:after",
        "detach:before",
        "detach:after",
        "delete:before",
        "delete:after",
    ];
    // The first six are those of a start, which writes twice of each member.
    let persists = [2, 5].into_iter().chain(7..17).map(|passed| format!("array-persist:before:{passed}"));
    for point in steps.into_iter().chain(ends).map(str::to_owned).chain(persists) {
        let mut running = Running::start(&machine, Some(&point));
        let nbd = running.nbd();
        if let Some(mut nbd) = nbd.filter(|_| !std::mem::replace(&mut written, true)) {
            crate::common::fill(&mut nbd, SIZE / MIB, 7);
            nbd.flush().unwrap();
        }
        drop(running.client.ask(&rotate(Some(1))));
        eventually("the step is passed", || running.dead());
        assert!(running.was_killed(), "{point}: {}", machine.log());
        let mut running = Running::start(&machine, None);
        eventually("the replacement ends", || is_calm(&asked(&running.client).unwrap()) && machine.rented() == MEMBERS);
        let mut nbd = running.nbd().unwrap();
        find(&mut nbd, SIZE / MIB, 7);
        drop(nbd);
        running.stop();
    }
    delete(&machine);
}

#[test]
fn a_provider_that_refuses_delays_a_rotation_and_nothing_else() {
    let machine = configured(&format!("quota_volumes = {MEMBERS}"), "");
    create(&machine);
    let daemon = Daemon::start(config(&machine)).unwrap();
    let mut nbd = connect(&machine, "data");
    crate::common::fill(&mut nbd, 4, 1);
    daemon.handle(rotate(Some(0))).unwrap();
    eventually("the quota is told", || status(&daemon).reason.is_some());
    let told = status(&daemon);
    assert!(told.reason.as_ref().is_some_and(|why| why.contains("quota is used up")), "{told:?}");
    assert_eq!((told.replacing, machine.rented()), (vec![0], MEMBERS), "it is tried again, and nothing is left behind");
    find(&mut nbd, 4, 1);
    let refusal = daemon.handle(rotate(Some(9))).unwrap_err();
    assert!(refusal.contains("has no slot 9: its slots are 0 to 2"), "{refusal}");
    drop(nbd);
    daemon.stop();
    delete(&machine);
    let machine = configured(&format!("quota_volumes = {}", MEMBERS - 1), "");
    let arrays = OfflineArrays::start(config(&machine)).unwrap();
    let refusal = arrays.handle(&Request::ArrayCreate { name: "scratch".to_owned() }).unwrap_err();
    assert!(
        refusal.contains("was not created: the provider's quota is used up") && !refusal.contains('\n'),
        "{refusal}"
    );
    eventually("what came is deleted", || machine.rented() == 0 && machine.records().is_empty());
}

/// A record that cannot be written: a directory lies where the new one would be.
#[test]
fn a_full_state_directory_delays_a_rotation_and_refuses_a_creation() {
    let machine = configured("", "");
    let block = machine.path("state/array:scratch/array.json.new");
    std::fs::create_dir_all(&block).unwrap();
    std::os::unix::fs::PermissionsExt::set_mode(
        &mut std::fs::metadata(machine.path("state")).unwrap().permissions(),
        0o700,
    );
    let arrays = OfflineArrays::start(config(&machine)).unwrap();
    let refusal = arrays.handle(&Request::ArrayCreate { name: "scratch".to_owned() }).unwrap_err();
    assert!(refusal.contains("the state directory cannot be written") && !refusal.contains('\n'), "{refusal}");
    assert_eq!(machine.rented(), 0);
    std::fs::remove_dir(&block).unwrap();
    drop(arrays);
    create(&machine);
    let daemon = Daemon::start(config(&machine)).unwrap();
    let mut nbd = connect(&machine, "data");
    crate::common::fill(&mut nbd, 4, 1);
    std::fs::create_dir(&block).unwrap();
    daemon.handle(rotate(Some(2))).unwrap();
    eventually("that is told", || status(&daemon).reason.is_some());
    find(&mut nbd, 4, 1);
    assert_eq!((machine.rented(), status(&daemon).replaced), (MEMBERS, 0));
    std::fs::remove_dir(&block).unwrap();
    eventually("the rotation goes on", || status(&daemon).replaced == 1 && is_calm(&status(&daemon)));
    find(&mut nbd, 4, 1);
    drop(nbd);
    daemon.stop();
    delete(&machine);
}

#[test]
fn an_array_is_assembled_without_its_record_and_a_missing_member_is_named() {
    let machine = configured("", "");
    create(&machine);
    let daemon = Daemon::start(config(&machine)).unwrap();
    let mut nbd = connect(&machine, "data");
    crate::common::fill(&mut nbd, SIZE / MIB, 5);
    nbd.flush().unwrap();
    daemon.handle(rotate(Some(1))).unwrap();
    eventually("it is replaced", || status(&daemon).replaced == 1 && is_calm(&status(&daemon)));
    drop(nbd);
    daemon.stop();
    // Another machine, or a state directory that is lost: another owner as well.
    std::fs::remove_dir_all(machine.path("state")).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    assert_eq!(
        (status(&daemon).state.as_str(), machine.rented()),
        ("absent", MEMBERS),
        "volumes of others are left alone"
    );
    daemon.handle(Request::ArrayAssemble { name: "scratch".to_owned(), id: None }).unwrap();
    assert_eq!(status(&daemon).state, "served");
    let mut nbd = connect(&machine, "data");
    find(&mut nbd, SIZE / MIB, 5);
    drop(nbd);
    daemon.stop();
    // The record alone is lost: the volumes are this daemon's, and its sweep leaves them alone.
    std::fs::remove_dir_all(machine.path("state/array:scratch")).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    daemon.handle(Request::Gc).unwrap();
    let warnings = daemon.status().warnings;
    assert!(warnings.len() == MEMBERS && warnings[0].contains("`surgetank array assemble scratch`"), "{warnings:?}");
    daemon.stop();
    assert_eq!(machine.rented(), MEMBERS);
    let arrays = OfflineArrays::start(config(&machine)).unwrap();
    let image = crate::common::images(&machine.path("volumes")).pop().unwrap();
    let name = format!("{}.json", image.file_stem().unwrap().to_string_lossy());
    let (known, aside) = (machine.path("volumes/state").join(name), machine.path("aside"));
    std::fs::rename(&known, &aside).unwrap();
    let refused = arrays.handle(&Request::ArrayAssemble { name: "scratch".to_owned(), id: None }).unwrap_err();
    assert!(!refused.contains('\n') && refused.contains("is missing: attach its volume"), "{refused}");
    std::fs::rename(&aside, &known).unwrap();
    arrays.handle(&Request::ArrayAssemble { name: "scratch".to_owned(), id: None }).unwrap();
    drop(arrays);
    // Zeroes where its superblocks were: the member of that slot is missing, and the device says so.
    let bytes = std::fs::read(&image).unwrap();
    wipe(&image);
    let daemon = Daemon::start(config(&machine)).unwrap();
    let refusal = daemon.address("data").unwrap_err();
    assert!(refusal.contains("is missing: attach its volume"), "{refusal}");
    daemon.stop();
    std::fs::write(&image, bytes).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    find(&mut connect(&machine, "data"), SIZE / MIB, 5);
    daemon.stop();
    delete(&machine);
}

fn wipe(image: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[0; 8192], 0).unwrap();
}

#[test]
fn replaced_members_of_an_ephemeral_array_are_kept_for_a_while() {
    let machine = configured("", "use = \"ephemeral\"\nhold = \"2 s\"");
    create(&machine);
    let daemon = Daemon::start(config(&machine)).unwrap();
    daemon.handle(rotate(Some(0))).unwrap();
    eventually("it is kept", || status(&daemon).volumes.iter().any(|volume| volume.part == "held"));
    daemon.stop();
    // Also over a restart.
    let daemon = Daemon::start(config(&machine)).unwrap();
    assert_eq!(machine.rented(), MEMBERS + 1);
    eventually("it is deleted", || machine.rented() == MEMBERS && is_calm(&status(&daemon)));
    daemon.stop();
    delete(&machine);
}

/// Members on burst credits: so many at first, and hardly any come back while a test runs.
fn on_credits(credits: u64) -> String {
    format!(
        "[provider.local.types.bursty]\niops = \"20000 IOPS\"\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         iops_credits = {{ baseline = {{ per_gib = 1.0, min = \"1 IOPS\" }}, bucket = {credits} }}"
    )
}

fn shares(status: &ArrayStatus) -> Vec<f64> {
    status.volumes.iter().filter_map(|volume| volume.credits_share).collect()
}

#[test]
fn members_have_their_burst_credits_again_after_a_stop_and_a_kill() {
    let machine = configured(&on_credits(4000), "volume_type = \"bursty\"\nrotate = \"never\"");
    create(&machine);
    let spend = |running: &mut Running| {
        let mut nbd = running.nbd().unwrap();
        let before = shares(&asked(&running.client).unwrap());
        eventually("each member spends a fifth of its credits", || {
            (0..SIZE / (256 << 10)).for_each(|chunk| nbd.write(chunk * (256 << 10), &[7; 4096]).unwrap());
            let now = shares(&asked(&running.client).unwrap());
            now.iter().zip(&before).all(|(now, before)| *now < before - 0.2)
        });
        shares(&asked(&running.client).unwrap())
    };
    // A minute refills 60 of 4000 credits.
    let earned = 0.05;
    let mut running = Running::start(&machine, None);
    assert!(shares(&asked(&running.client).unwrap()).iter().all(|share| *share > 0.9), "new members are full");
    let spent = spend(&mut running);
    running.stop();
    let mut running = Running::start(&machine, None);
    let found = shares(&asked(&running.client).unwrap());
    assert!(found.iter().zip(&spent).all(|(found, spent)| *found < spent + earned), "{found:?} after {spent:?}");
    // A kill forgets what was spent since the last writing, and nothing else.
    spend(&mut running);
    running.kill();
    let running = Running::start(&machine, None);
    let again = shares(&asked(&running.client).unwrap());
    assert!(again.iter().zip(&found).all(|(again, found)| *again < found + earned), "{again:?} after {found:?}");
    running.stop();
    // What is damaged says nothing, and keeps nobody from starting.
    std::fs::write(machine.path("state/array:scratch/credits.json"), "{").unwrap();
    let running = Running::start(&machine, None);
    assert!(shares(&asked(&running.client).unwrap()).iter().all(|share| *share > 0.9));
    running.stop();
    delete(&machine);
}

/// What a daemon before learned: volumes come and go at once. Otherwise a rotation would be begun for times that no test has.
fn learned(machine: &Machine) {
    let text = r#"{"version": 1, "learned": {"levels": [], "setup": "100 ms", "removal": "100 ms", "copy_factor": 1.0}, "levels": {}}"#;
    std::fs::write(machine.path("state/array:scratch/rotation.json"), text).unwrap();
}

/// Members whose credits last for some seconds at most, however fast this machine is.
fn short_of_credits(more: &str) -> Machine {
    short_of_credits_with(more, "")
}

fn short_of_credits_with(more: &str, array: &str) -> Machine {
    let provider = "[provider.local.types.bursty]\niops = \"400 IOPS\"\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         iops_credits = { baseline = { per_gib = 1.0, min = \"1 IOPS\" }, bucket = 4000 }";
    let array = format!("volume_type = \"bursty\"\ncopy_rate = \"64 MiB/s\"\n{array}");
    let machine = configured(&format!("{more}\n{provider}"), &array);
    create(&machine);
    learned(&machine);
    machine
}

#[test]
fn members_are_replaced_before_their_credits_end_and_a_kill_in_the_middle_changes_nothing() {
    let machine = short_of_credits("");
    let mut writers = Writer::several(WRITERS, SIZE, 5);
    let mut running = Running::start(&machine, None);
    let (socket, seen) = (running.socket.clone(), Seen::default());
    std::thread::scope(|scope| {
        for writer in &mut writers {
            scope.spawn(|| writer.serve_itself(&socket, || seen.over()));
        }
        let _over = rounds::Over(&seen);
        eventually("each slot has had a new member", || {
            let status = asked(&running.client).unwrap();
            let beside = status.volumes.iter().filter(|volume| volume.part != "active").count();
            assert!(beside <= 1, "one extra volume at most: {status:?}");
            assert!(shares(&status).iter().all(|share| *share > 0.0), "credits have ended: {status:?}");
            status.replaced >= MEMBERS as u64
        });
        eventually("the policy replaces another one", || asked(&running.client).as_ref().and_then(copied).is_some());
        running.kill();
    });
    assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap();
    writers.iter_mut().for_each(|writer| writer.check(&mut nbd).unwrap());
    eventually("the rotation ends", || is_calm(&asked(&running.client).unwrap()) && machine.rented() == MEMBERS);
    writers.iter_mut().for_each(|writer| writer.check(&mut nbd).unwrap());
    drop(nbd);
    running.stop();
    delete(&machine);
}

#[test]
fn a_quota_that_refuses_the_policy_is_waited_for() {
    let machine = short_of_credits(&format!("quota_volumes = {MEMBERS}"));
    let mut writers = Writer::several(1, SIZE, 6);
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap();
    eventually("the quota is told", || {
        (0..50).for_each(|_| writers[0].step(&mut nbd).unwrap());
        asked(&running.client)
            .unwrap()
            .reason
            .is_some_and(|why| why.contains("quota is used up: the next attempt is in"))
    });
    let told = asked(&running.client).unwrap();
    assert_eq!((told.replaced, machine.rented()), (0, MEMBERS), "nothing is left behind: {told:?}");
    writers[0].check(&mut nbd).unwrap();
    drop(nbd);
    running.stop();
    let text = std::fs::read_to_string(machine.path("config.toml")).unwrap();
    std::fs::write(machine.path("config.toml"), text.replace("quota_volumes = 3", "quota_volumes = 4")).unwrap();
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap();
    eventually("a member is replaced", || {
        (0..50).for_each(|_| writers[0].step(&mut nbd).unwrap());
        asked(&running.client).unwrap().replaced > 0
    });
    eventually("the rotation ends", || is_calm(&asked(&running.client).unwrap()));
    writers[0].check(&mut nbd).unwrap();
    drop(nbd);
    running.stop();
    delete(&machine);
}

/// AGBs spent on extra volumes in a day.
fn spent(status: &ArrayStatus) -> f64 {
    status.budget.expect("there is a budget")[1].spent_agbs
}

#[test]
fn a_budget_holds_replacements_back_over_restarts_and_kills() {
    // A second of a member is 3 AGBs.
    let machine = short_of_credits_with("", "budget.agbs_per_day = 70");
    let mut writers = Writer::several(1, SIZE, 8);
    let mut running = Running::start(&machine, None);
    running.client.ask(&rotate(Some(0))).unwrap();
    eventually("the member is replaced", || {
        let status = asked(&running.client).unwrap();
        status.replaced > 0 && is_calm(&status)
    });
    let before = spent(&asked(&running.client).unwrap());
    assert!(before > 0.0, "the extra volume cost nothing");
    running.kill();
    assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
    let text = std::fs::read_to_string(machine.path("config.toml")).unwrap();
    // Less than what it takes, whatever was learned.
    let less = format!("budget.agbs_per_day = {:.3}", before + 0.05);
    std::fs::write(machine.path("config.toml"), text.replace("budget.agbs_per_day = 70", &less)).unwrap();
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap();
    eventually("the budget is told", || {
        (0..50).for_each(|_| writers[0].step(&mut nbd).unwrap());
        asked(&running.client).unwrap().reason.is_some_and(|why| {
            why.contains("the budget of") && (why.contains("; it does in") || why.contains("raise it"))
        })
    });
    let refused = running.client.ask(&rotate(None)).unwrap_err().to_string();
    assert!(refused.contains("AGBs per day does not allow it"), "{refused}");
    let told = asked(&running.client).unwrap();
    assert_eq!((told.replaced, machine.rented()), (0, MEMBERS), "{told:?}");
    assert!(spent(&told) > 0.5 * before, "a kill has reset the budget: {} of {before}", spent(&told));
    writers[0].check(&mut nbd).unwrap();
    drop(nbd);
    running.stop();
    delete(&machine);
}

#[test]
fn an_empty_ephemeral_array_gets_new_members_at_once() {
    // So few that no replacement could be over before they end: none begins but those of the empty array.
    let machine = configured(&on_credits(200), "volume_type = \"bursty\"\nuse = \"ephemeral\"\nhold = \"2 s\"");
    create(&machine);
    let mut running = Running::start(&machine, None);
    let mut nbd = running.nbd().unwrap();
    let first = asked(&running.client).unwrap();
    eventually("more than half of the credits are spent", || {
        (0..SIZE / (256 << 10)).for_each(|chunk| nbd.write(chunk * (256 << 10), &[7; 4096]).unwrap());
        shares(&asked(&running.client).unwrap()).iter().any(|share| *share < 0.45)
    });
    let whole = nbd.size() as u32;
    nbd.trim(0, whole).unwrap();
    nbd.flush().unwrap();
    eventually("all members are others", || {
        let names = |status: &ArrayStatus, part: &str| -> Vec<Option<String>> {
            status.volumes.iter().filter(|volume| volume.part == part).map(|volume| volume.volume.clone()).collect()
        };
        let status = asked(&running.client).unwrap();
        let active = names(&status, "active");
        active.len() == MEMBERS && names(&first, "active").iter().all(|name| !active.contains(name))
    });
    let status = asked(&running.client).unwrap();
    assert!(status.volumes.iter().any(|volume| volume.part == "held"), "the old ones are kept for a while: {status:?}");
    assert!(status.volumes.iter().filter(|volume| volume.part == "active").all(|volume| volume.copied_share.is_none()));
    assert_eq!(nbd.read(0, 4096).unwrap(), [0; 4096]);
    fill_and_find(&mut nbd);
    eventually("the old ones are deleted", || is_calm(&asked(&running.client).unwrap()) && machine.rented() == MEMBERS);
    drop(nbd);
    running.stop();
    delete(&machine);
}

fn fill_and_find(nbd: &mut crate::common::Nbd) {
    crate::common::fill(nbd, 2, 9);
    find(nbd, 2, 9);
}
