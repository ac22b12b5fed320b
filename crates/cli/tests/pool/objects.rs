//! A bucket as the target of a mounted pool, and files that are brought back from a target.

use std::fs;

use serde_json::Value;

use crate::place::{MIB, Place, Pool, bytes, can_mount, done, refused};
use crate::s3::TestBucket;

#[test]
fn a_mounted_pool_drains_to_a_bucket_and_reads_there() {
    let Some(bucket) = TestBucket::make() else { return };
    if !can_mount() {
        return;
    }
    let place = Place::new();
    bucket.put("run1/theirs", b"of others");
    let pool = Pool::up_with_variables(&place.at("pool"), &bucket.variables());
    let (point, target) = (place.text("mnt"), format!("s3://{}/run1/", bucket.name));
    let arguments = ["mount", &pool.address, &point, "--token", &pool.key, "--target"];
    let mount = |target: &str| refused(&[&arguments[..], &[target]].concat());
    assert_eq!(mount("s3://UPPER/x").0, 2);
    let (code, told) = mount("s3://surgetank-is-not-there/x");
    assert!(code == 2 && told.contains("there is no such bucket: make the bucket"), "{told}");
    done(&[&arguments[..], &[&target]].concat());
    fs::create_dir(place.at("mnt/d")).unwrap();
    fs::write(place.at("mnt/d/file"), bytes(1, 17 * MIB + 3)).unwrap();
    assert_eq!(fs::read(place.at("mnt/theirs")).unwrap(), b"of others");
    assert!(std::os::unix::fs::symlink("file", place.at("mnt/link")).is_err());
    done(&["pool", "wait", &point, "--state", "drained", "--timeout", "60 s"]);
    assert!(bucket.get("run1/d/file").unwrap().1 == bytes(1, 17 * MIB + 3));
    // From a later pool, which has nothing of it.
    done(&["umount", &point]);
    drop(pool);
    bucket.delete("run1/.surgetank/manifest");
    let pool = Pool::up_with_variables(&place.at("pool2"), &bucket.variables());
    done(&["mount", &pool.address, &point, "--token", &pool.key, "--target", &target]);
    assert!(fs::read(place.at("mnt/d/file")).unwrap() == bytes(1, 17 * MIB + 3));
    let brought: Value =
        serde_json::from_str(&done(&["pool", "prefetch", &point, "--token", &pool.key, "--json"])).unwrap();
    assert_eq!((brought["files"].as_u64(), brought["present"].as_u64()), (Some(2), Some(0)), "{brought}");
    assert!(fs::read(place.at("mnt/d/file")).unwrap() == bytes(1, 17 * MIB + 3));
    done(&["umount", &point]);
}

#[test]
fn files_are_brought_back_by_their_paths() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("target/d")).unwrap();
    fs::write(place.at("target/d/old"), bytes(1, 9 * MIB + 5)).unwrap();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    place.mount(&pool, "mnt");
    fs::write(place.at("mnt/new"), "content").unwrap();
    let prefetch = |path: &str| -> Value {
        serde_json::from_str(&done(&["pool", "prefetch", path, "--token", &pool.key, "--json"])).unwrap()
    };
    let brought = prefetch(&place.text("mnt"));
    assert_eq!((brought["files"].as_u64(), brought["present"].as_u64()), (Some(1), Some(1)), "{brought}");
    // What is read is the pool's.
    fs::write(place.at("target/d/old"), "changed by others").unwrap();
    assert!(fs::read(place.at("mnt/d/old")).unwrap() == bytes(1, 9 * MIB + 5));
    let (code, told) = refused(&["pool", "prefetch", &place.text("target"), "--token", &pool.key]);
    assert!(code == 2 && told.contains("it lies in no staging pool"), "{told}");
    done(&["umount", &place.text("mnt")]);
}
