//! A benefactor is taken out of a pool of processes.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::access::Apart;
use crate::place::{MIB, Started, bytes, can_mount, done, refused, run, signal, until};

#[test]
fn a_benefactor_is_drained_by_a_command_that_is_said_again_and_ends_though_its_pool_is_not_drained() {
    if !can_mount() {
        return;
    }
    let mut pool = Apart::new();
    let [mut one, mut two, three] = ["1", "2", "3"].map(|number| pool.benefactor(number, "127.0.0.1:0").0);
    until("all lend", || pool.status()["benefactors"].as_array().unwrap().len() == 3);
    let place = &pool.place;
    let (point, target, address) = (place.text("mnt"), place.text("target"), pool.address.clone());
    let key = pool.key.clone();
    let shown = [address.as_str(), "--token", &key, "--json"];
    let drain = |arguments: &[&str]| run(&[&["pool", "drain"], arguments, &shown].concat());
    let answer = |arguments: &[&str]| {
        let told = done(&[&["pool", "drain"], arguments, &shown].concat());
        serde_json::from_str::<Value>(&told).unwrap()
    };
    done(&["mount", &address, &point, "--target", &target, "--token", &key]);
    // A target that is gone keeps everything in the pool. A new name would wait for it.
    let file = fs::File::create(place.at("mnt/file")).unwrap();
    fs::rename(place.at("target"), place.at("aside")).unwrap();
    file.write_all_at(&bytes(1, 20 * MIB), 0).unwrap();
    drop(file);
    let first = answer(&["1"]);
    assert_eq!(first["benefactor"], "1");
    assert!(first["leaving"].is_object(), "{first}");
    let states = |status: &Value| {
        status["benefactors"].as_array().unwrap().iter().map(|of| of["state"].clone()).collect::<Vec<_>>()
    };
    until("it is seen", || states(&pool.status())[0] == "leaving");
    // Its manager is killed, and begins anew.
    let at = pool.at().to_owned();
    pool.manager.0.kill().unwrap();
    pool.manager.0.wait().unwrap();
    (pool.manager, _) = Started::new(&["pool", "manager", "--directory", &pool.place.text("pool"), "--listen", &at]);
    let last = answer(&["1", "--wait", "--timeout", "60 s"]);
    assert_eq!(
        last["leaving"],
        serde_json::json!({"groups_left": 0, "left_gib": 0.0, "uncommitted": false, "may_go": true})
    );
    let people = done(&["pool", "status", &address, "--token", &key]);
    assert!(people.contains("leaving (may go)"), "{people}");
    let (code, told) = refused(&["pool", "drain", "2", &address, "--token", &key]);
    assert!(code == 1 && told.contains("need 2 failure domains, and without it there are 1"), "{code}: {told}");
    // It ends at one signal, though there is something to drain.
    signal(&one.0, rustix::process::Signal::TERM);
    assert_eq!(one.0.wait().unwrap().code(), Some(0));
    until("it leaves", || run(&["pool", "leave", "1", &address, "--token", &key]).status.success());
    until("it is not shown any more", || states(&pool.status()) == ["joined", "joined"]);
    let place = &pool.place;
    assert!(fs::read(place.at("mnt/file")).unwrap() == bytes(1, 20 * MIB));
    for none in [&["1"][..], &["99", "--undo"]] {
        let told = String::from_utf8(drain(none).stderr).unwrap();
        assert!(told.contains(&format!("no benefactor {} lends", none[0])) && told.lines().count() == 1, "{told}");
    }
    fs::rename(place.at("aside"), place.at("target")).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, 20 * MIB));
    // One that is taken back is as before.
    answer(&["2", "--wait", "--timeout", "60 s"]);
    assert_eq!(answer(&["2", "--undo"])["leaving"], Value::Null);
    until("it is back", || states(&pool.status()) == ["joined", "joined"]);
    until("it is unmounted", || run(&["umount", &point]).status.success());
    signal(&two.0, rustix::process::Signal::TERM);
    assert_eq!(two.0.wait().unwrap().code(), Some(0));
    drop(three);
}
