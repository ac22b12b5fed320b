//! Quotas by commands, seen by programs and in the pool's status.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::place::{Place, Pool, can_mount, done, refused, run, until};

const USER: u32 = 65_534;

/// A command's arguments, with what it shows.
fn with<'a>(arguments: &[&'a str], shown: &[&'a str; 3]) -> Vec<&'a str> {
    [&["pool", "quota"], arguments, shown].concat()
}

#[test]
fn a_quota_is_set_seen_enforced_changed_and_removed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    let (target, point) = (place.text("target"), place.text("mnt"));
    let shown = [pool.address.as_str(), "--token", &pool.key];
    let list = || serde_json::from_str::<Value>(&done(&with(&["list", "--json"], &shown))).unwrap();
    assert_eq!(list()["default"], Value::Null);
    let user = USER.to_string();
    assert!(done(&with(&["set", "--user", &user, "--bytes", "4 MiB", "--files", "2"], &shown)).contains("is set"));
    done(&with(&["set", "--default", "--bytes", "1 TiB"], &shown));
    done(&["mount", &pool.address, &point, "--target", &target, "--token", &pool.key]);
    fs::create_dir(place.at("mnt/d")).unwrap();
    chown(place.at("mnt/d"), Some(USER), Some(USER)).unwrap();
    let sh = |script: &str| {
        Command::new("sh").args(["-c", script]).current_dir(place.at("mnt/d")).uid(USER).gid(USER).output().unwrap()
    };
    let told = String::from_utf8(sh("dd if=/dev/zero of=large bs=1M count=5").stderr).unwrap();
    assert!(told.contains("Disk quota exceeded"), "{told}");
    assert_eq!(fs::metadata(place.at("mnt/d/large")).unwrap().len(), 4 << 20, "what was taken is there");
    let told = String::from_utf8(sh("echo > second").stderr).unwrap();
    assert!(told.contains("Disk quota exceeded"), "its directory counts: {told}");
    done(&["pool", "wait", &place.text("mnt/d"), "--state", "drained"]);
    let of_user = &list()["users"].as_array().unwrap().iter().find(|of| of["uid"] == USER).unwrap().clone();
    assert_eq!(
        (&of_user["bytes_limit"], &of_user["files_limit"], &of_user["files_used"]),
        (&json!(4 << 20), &json!(2), &json!(2))
    );
    assert_eq!(of_user["bytes_used"], 0, "the target has it");
    let status = pool.status();
    assert!(status["quotas"].as_array().unwrap().iter().any(|of| of["uid"] == USER && of["bytes_limit"] == 4 << 20));
    let people = done(&with(&["list"], &shown));
    assert!(
        people.contains("4 MiB") && people.contains("everybody of whom nothing else is said: 1 TiB at most"),
        "{people}"
    );
    // What is not said stays as it is.
    done(&with(&["set", "--user", &user, "--files", "none"], &shown));
    assert!(sh("echo > second").status.success());
    done(&with(&["remove", "--user", &user], &shown));
    let of_user = list()["users"].as_array().unwrap().iter().find(|of| of["uid"] == USER).unwrap().clone();
    assert_eq!((&of_user["bytes_limit"], &of_user["files_limit"]), (&json!(1_u64 << 40), &Value::Null));
    done(&with(&["remove", "--default"], &shown));
    assert_eq!(list()["default"], Value::Null);
    // A token shows its own user, and changes nothing.
    let token = place.text("user.token");
    let directory = place.text("pool");
    done(&["pool", "token", "--target", &target, "--directory", &directory, "--owner", "7:7", "--out", &token]);
    let by_token = [pool.address.as_str(), "--token", &token];
    let users = serde_json::from_str::<Value>(&done(&with(&["list", "--json"], &by_token))).unwrap()["users"].clone();
    assert_eq!(users.as_array().unwrap().len(), 1, "also one who has nothing");
    assert_eq!(
        (&users[0]["uid"], &users[0]["bytes_used"], &users[0]["bytes_limit"]),
        (&json!(7), &json!(0), &Value::Null)
    );
    let (code, told) = refused(&with(&["set", "--user", "7", "--bytes", "none"], &by_token));
    assert!(code == 1 && told.contains("the token does not allow this request"), "{told}");
    for (bad, what) in [
        (&["set", "--user", "root", "--bytes", "1 GiB"][..], "nothing limits root"),
        (&["set", "--default", "--bytes", "default"], "it is the default"),
    ] {
        let (code, told) = refused(&with(bad, &shown));
        assert!(code == 2 && told.contains(what), "{told}");
    }
    let told =
        String::from_utf8(run(&with(&["set", "--user", "no-such-user", "--bytes", "1 GiB"], &shown)).stderr).unwrap();
    assert!(told.contains("there is no user `no-such-user` on this machine"), "{told}");
    until("it is unmounted", || run(&["umount", &point]).status.success());
}
