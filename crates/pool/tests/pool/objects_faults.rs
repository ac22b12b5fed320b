//! A store that fails in the middle of what is repeated, and what others do meanwhile: a bucket as a target.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use surgetank_pool::client::Error;
use surgetank_pool_core::meta::FileState;
use surgetank_pool_core::meta::operation::Refusal;

use crate::objects::{arrived, behind, client, disturbed, forget, is_clean, pool_at, settled, undisturbed};
use crate::support::s3::{TestBucket, Verdict};
use crate::support::{LONG, MIB, append, bytes, read, run, same, until, write};

/// Requests that were refused.
fn count() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    (Arc::clone(&count), count)
}

#[test]
pub fn a_directory_whose_former_objects_cannot_be_removed_at_first_stays_the_pools() {
    run(async {
        let Some((disturbing, bucket, mut pool, client)) = disturbed(1, 2).await else { return };
        client.make_directory("d").await.unwrap();
        let contents = [bytes(1, MIB + 1), bytes(2, 9 * MIB)];
        for (name, content) in ["a", "b"].into_iter().zip(&contents) {
            write(&client, &format!("d/{name}"), content).await.unwrap();
            arrived(&client, &bucket, (&format!("d/{name}"), &format!("t/d/{name}")), content).await;
        }
        is_clean(&bucket).await;
        let (refused, seen) = count();
        disturbing.rule(move |first| {
            let is_removal = first.starts_with("DELETE") || first.starts_with("POST") && first.contains("?delete");
            match is_removal && seen.fetch_add(1, Ordering::SeqCst) < 12 {
                true => Verdict::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
                false => Verdict::Pass,
            }
        });
        client.rename("d", "e").await.unwrap();
        settled(&client).await;
        assert!(refused.load(Ordering::SeqCst) > 12, "the move was repeated");
        assert_eq!(bucket.keys(), ["t/e/a", "t/e/b"]);
        forget(&mut pool, &client).await;
        for (name, content) in ["e/a", "e/b"].into_iter().zip(&contents) {
            same(name, &read(&client, name).await.unwrap(), content);
        }
        append(&client, "e/a", b"more").await;
        settled(&client).await;
        arrived(&client, &bucket, ("e/a", "t/e/a"), &[&contents[0][..], b"more"].concat()).await;
    });
}

#[test]
pub fn a_directory_with_a_marker_moves_with_what_is_in_it() {
    run(async {
        let Some(bucket) = TestBucket::make() else { return };
        for (key, content) in [("t/d/", &b""[..]), ("t/d/sub/", b""), ("t/d/sub/theirs", b"of others")] {
            bucket.put(key, content);
        }
        let pool = pool_at(&bucket, 1, 1);
        let client = client(&pool, &bucket.target("t")).await;
        client.rename("d", "e").await.unwrap();
        settled(&client).await;
        same("theirs", &bucket.get("t/e/sub/theirs").unwrap().1, b"of others");
        same("theirs", &read(&client, "e/sub/theirs").await.unwrap(), b"of others");
        assert!(!bucket.keys().iter().any(|key| key == "t/d/sub/theirs"));
    });
}

#[test]
pub fn names_that_no_object_can_have_are_refused_and_stop_nothing() {
    run(async {
        let Some((bucket, _pool, client)) = undisturbed(1, 1).await else { return };
        write(&client, "a", b"content").await.unwrap();
        arrived(&client, &bucket, ("a", "t/a"), b"content").await;
        let is_refused = |error: Option<Error>| matches!(error, Some(Error::Refused(_, Refusal::NotAllowed)));
        assert!(is_refused(client.rename("a", "b\nc").await.err()));
        assert!(is_refused(client.create("b\nc").await.err()));
        assert!(is_refused(client.make_directory("b\nc").await.err()));
        // Each name is one, and the path is too long for a key.
        let mut deep = String::new();
        for _ in 0..5 {
            deep = format!("{deep}{}", "x".repeat(250));
            client.make_directory(&deep).await.unwrap();
            deep.push('/');
        }
        let at = |name: &str| format!("{deep}{name}");
        write(&client, &at("file"), b"of a long path").await.unwrap();
        assert!(matches!(client.wait_drained(&at("file"), LONG).await, Err(Error::NotDrained(..))));
        client.rename(&at("file"), "short").await.unwrap();
        client.rename("a", &at("a")).await.unwrap();
        client.rename(&"x".repeat(250), "y").await.unwrap();
        settled(&client).await;
        same("short", &read(&client, "short").await.unwrap(), b"of a long path");
        assert_eq!(client.stat("short").await.unwrap().state, Some(FileState::Conflict));
        write(&client, "later", b"later").await.unwrap();
        arrived(&client, &bucket, ("later", "t/later"), b"later").await;
    });
}

#[test]
pub fn who_reads_waits_for_credentials_that_are_refused_for_a_while() {
    run(async {
        let Some((disturbing, bucket)) = behind() else { return };
        bucket.put("t/theirs", b"of others");
        let mut pool = pool_at(&bucket, 1, 1);
        let client = client(&pool, &bucket.target("t")).await;
        let mut content = bytes(1, 2 * MIB);
        for name in ["file", "written"] {
            write(&client, name, &content).await.unwrap();
            arrived(&client, &bucket, (name, &format!("t/{name}")), &content).await;
        }
        forget(&mut pool, &client).await;
        let (refused, seen) = count();
        disturbing.rule(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            Verdict::Answer(403, "<Error><Code>AccessDenied</Code></Error>")
        });
        let passes = async {
            until("some are refused", async || refused.load(Ordering::SeqCst) > 12).await;
            disturbing.pass();
        };
        let writes = async {
            let mut writer = client.append("written").await.unwrap();
            writer.write_at(7, b"upon what the bucket has").await.unwrap();
            writer.close().await.unwrap();
        };
        let (file, theirs, (), ()) = tokio::join!(read(&client, "file"), client.stat("theirs"), writes, passes);
        same("file", &file.unwrap(), &content);
        assert_eq!(theirs.unwrap().size, 9);
        content[7..][..24].copy_from_slice(b"upon what the bucket has");
        settled(&client).await;
        arrived(&client, &bucket, ("written", "t/written"), &content).await;
    });
}

#[test]
pub fn an_empty_file_arrives_though_the_store_says_that_it_failed() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 1).await else { return };
        let (failed, seen) = count();
        disturbing.rule(move |first| {
            let is_meant = first.starts_with("PUT") && first.contains("/t/empty");
            match is_meant && seen.fetch_add(1, Ordering::SeqCst) == 0 {
                true => Verdict::DoneBut(500, "<Error><Code>InternalError</Code></Error>"),
                false => Verdict::Pass,
            }
        });
        write(&client, "empty", b"").await.unwrap();
        arrived(&client, &bucket, ("empty", "t/empty"), b"").await;
        assert!(failed.load(Ordering::SeqCst) > 0);
        assert_eq!(client.stat("empty").await.unwrap().state, Some(FileState::Drained));
    });
}

#[test]
pub fn an_upload_that_cannot_be_ended_holds_up_no_other() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 2).await else { return };
        let (failed, seen) = count();
        disturbing.rule(move |first| {
            if first.starts_with("DELETE") && first.contains("uploadId=") {
                return Verdict::Answer(500, "<Error><Code>InternalError</Code></Error>");
            }
            match first.contains("partNumber=") && seen.fetch_add(1, Ordering::SeqCst) == 0 {
                true => Verdict::Answer(403, "<Error><Code>AccessDenied</Code></Error>"),
                false => Verdict::Pass,
            }
        });
        for (seed, name) in (1..).zip(["first", "second"]) {
            write(&client, name, &bytes(seed, 9 * MIB)).await.unwrap();
            arrived(&client, &bucket, (name, &format!("t/{name}")), &bytes(seed, 9 * MIB)).await;
        }
        assert!(failed.load(Ordering::SeqCst) > 0);
        assert!(!bucket.uploads().is_empty(), "one is left");
        disturbing.pass();
        write(&client, "third", &bytes(3, MIB)).await.unwrap();
        is_clean(&bucket).await;
    });
}

#[test]
pub fn who_writes_between_a_read_and_the_commit_of_what_is_brought_back_loses_nothing() {
    run(async {
        let Some((disturbing, bucket)) = behind() else { return };
        let mut content = bytes(1, 5 * MIB + 17);
        bucket.put("t/file", &content);
        let pool = pool_at(&bucket, 1, 2);
        let (one, other) = (client(&pool, &bucket.target("t")).await, client(&pool, &bucket.target("t")).await);
        let (reads, seen) = count();
        let written = Arc::new(AtomicBool::new(false));
        let released = Arc::clone(&written);
        disturbing.rule(move |first| {
            // The first chunk is read, and the second one after somebody has written the first.
            if first.starts_with("GET") && first.contains("/t/file") && seen.fetch_add(1, Ordering::SeqCst) > 0 {
                while !released.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Verdict::Pass
        });
        let theirs = bytes(2, MIB);
        let writes = async {
            until("the first chunk is read", async || reads.load(Ordering::SeqCst) > 1).await;
            let mut writer = other.append("file").await.unwrap();
            writer.write_at(0, &theirs).await.unwrap();
            writer.close().await.unwrap();
            written.store(true, Ordering::SeqCst);
        };
        let (brought, ()) = tokio::join!(one.prefetch("file"), writes);
        assert!(!brought.unwrap(), "somebody has written it");
        content[..MIB].copy_from_slice(&theirs);
        settled(&one).await;
        same("file", &read(&one, "file").await.unwrap(), &content);
        arrived(&one, &bucket, ("file", "t/file"), &content).await;
    });
}

#[test]
pub fn what_others_put_at_a_name_in_the_same_moment_is_not_taken_for_the_pools() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 1).await else { return };
        let (content, theirs) = (bytes(1, MIB), bytes(2, MIB));
        write(&client, "moved", &content).await.unwrap();
        arrived(&client, &bucket, ("moved", "t/moved"), &content).await;
        // As long, after an upload or a copy and before the look at what it has come to.
        let (behind, done, bytes) = (bucket.clone(), AtomicUsize::new(0), theirs.clone());
        disturbing.rule(move |first| {
            let is_completed = first.starts_with("POST") && first.contains("/t/written?uploadId=");
            let is_copied = first.starts_with("PUT") && first.contains("/t/to");
            if is_completed || is_copied {
                done.store(1, Ordering::SeqCst);
            }
            let key = if first.contains("/t/to") { "t/to" } else { "t/written" };
            if first.starts_with("HEAD") && first.contains(key) && done.swap(0, Ordering::SeqCst) == 1 {
                behind.put(key, &bytes);
            }
            Verdict::Pass
        });
        write(&client, "written", &content).await.unwrap();
        assert!(matches!(client.wait_drained("written", LONG).await, Err(Error::NotDrained(..))));
        client.rename("moved", "to").await.unwrap();
        settled(&client).await;
        for key in ["t/written", "t/to"] {
            same(key, &bucket.get(key).unwrap().1, &theirs);
        }
        same("what was to move", &bucket.get("t/moved").unwrap().1, &content);
        is_clean(&bucket).await;
    });
}

#[test]
pub fn a_manifest_that_another_pool_puts_in_the_same_moment_stays() {
    const THEIRS: &[u8] = b"pool 0123456789abcdef\nmount 1\nsince 1\n";
    run(async {
        let Some((disturbing, bucket)) = behind() else { return };
        let (behind, (_, seen)) = (bucket.clone(), count());
        disturbing.rule(move |first| {
            let is_manifest = first.starts_with("PUT") && first.contains("/t/.surgetank/manifest");
            if is_manifest && seen.fetch_add(1, Ordering::SeqCst) == 0 {
                behind.put("t/.surgetank/manifest", THEIRS);
            }
            Verdict::Pass
        });
        let pool = pool_at(&bucket, 1, 1);
        let client = client(&pool, &bucket.target("t")).await;
        write(&client, "file", b"content").await.unwrap();
        until("it is told", async || {
            let mounts = client.status().await.unwrap().mounts;
            mounts.iter().any(|mount| mount.standstill.as_ref().is_some_and(|of| of.why.contains("another pool")))
        })
        .await;
        same("manifest", &bucket.get("t/.surgetank/manifest").unwrap().1, THEIRS);
        assert_eq!(bucket.keys(), Vec::<String>::new());
        bucket.delete("t/.surgetank/manifest");
        arrived(&client, &bucket, ("file", "t/file"), b"content").await;
    });
}

#[test]
pub fn what_a_directory_has_that_cannot_move_holds_up_nothing_else() {
    run(async {
        let Some((bucket, mut pool, client)) = undisturbed(1, 1).await else { return };
        // What is between the others is too long for a key at the new place.
        let (deep, long) = (["x".repeat(250), "x".repeat(250), "x".repeat(250)].join("/"), "m".repeat(250));
        client.make_directory("d").await.unwrap();
        for depth in 1..=3 {
            client.make_directory(&deep.split('/').take(depth).collect::<Vec<_>>().join("/")).await.unwrap();
        }
        let names = ["a", &long, "z"];
        for (seed, name) in (1..).zip(names) {
            write(&client, &format!("d/{name}"), &bytes(seed, MIB)).await.unwrap();
            arrived(&client, &bucket, (&format!("d/{name}"), &format!("t/d/{name}")), &bytes(seed, MIB)).await;
        }
        let to = format!("{deep}/{}", "y".repeat(100));
        client.rename("d", &to).await.unwrap();
        settled(&client).await;
        assert_eq!(bucket.keys(), [format!("t/d/{long}"), format!("t/{to}/a"), format!("t/{to}/z")]);
        forget(&mut pool, &client).await;
        for (seed, name) in [(1, "a"), (3, "z")] {
            same(name, &read(&client, &format!("{to}/{name}")).await.unwrap(), &bytes(seed, MIB));
        }
        append(&client, &format!("{to}/a"), b"more").await;
        settled(&client).await;
        arrived(&client, &bucket, (&format!("{to}/a"), &format!("t/{to}/a")), &[&bytes(1, MIB)[..], b"more"].concat())
            .await;
    });
}

#[test]
pub fn what_only_a_bucket_has_that_is_away_is_not_lost() {
    run(async {
        let Some((disturbing, bucket)) = behind() else { return };
        let mut pool = pool_at(&bucket, 1, 2);
        let client = client(&pool, &bucket.target("t")).await;
        // A group as a whole.
        let content = bytes(1, 64 * MIB);
        write(&client, "file", &content).await.unwrap();
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        forget(&mut pool, &client).await;
        let (refused, seen) = count();
        disturbing.rule(move |first| match first.starts_with("HEAD") && first.contains("/t/file") {
            true => {
                seen.fetch_add(1, Ordering::SeqCst);
                Verdict::Answer(403, "<Error><Code>AccessDenied</Code></Error>")
            }
            false => Verdict::Pass,
        });
        append(&client, "file", b"more").await;
        until("drains have failed", async || refused.load(Ordering::SeqCst) > 3).await;
        assert_ne!(client.stat("file").await.unwrap().state, Some(FileState::Failed), "the bucket has the rest");
        disturbing.pass();
        settled(&client).await;
        arrived(&client, &bucket, ("file", "t/file"), &[&content[..], b"more"].concat()).await;
    });
}

#[test]
pub fn what_a_store_has_not_taken_whole_is_sent_again() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 2).await else { return };
        let (looks, seen) = count();
        let completed = AtomicBool::new(false);
        disturbing.rule(move |first| {
            if first.starts_with("POST") && first.contains("/t/file?uploadId=") {
                completed.store(true, Ordering::SeqCst);
            }
            // Of what is there by then it says that it is shorter, twice.
            let is_look = first.starts_with("HEAD") && first.contains("/t/file") && completed.load(Ordering::SeqCst);
            match is_look && seen.fetch_add(1, Ordering::SeqCst) < 2 {
                true => Verdict::Shorter,
                false => Verdict::Pass,
            }
        });
        let content = bytes(1, 9 * MIB);
        write(&client, "file", &content).await.unwrap();
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        assert!(looks.load(Ordering::SeqCst) > 2, "it was looked at again");
        assert_eq!(client.stat("file").await.unwrap().state, Some(FileState::Drained));
        is_clean(&bucket).await;
    });
}

#[test]
pub fn the_pools_own_names_in_a_bucket_are_nobody_elses() {
    run(async {
        let Some((bucket, _pool, client)) = undisturbed(1, 1).await else { return };
        write(&client, "file", b"content").await.unwrap();
        let is_refused = |error: Option<Error>| matches!(error, Some(Error::Refused(_, Refusal::NotAllowed)));
        assert!(is_refused(client.make_directory(".surgetank").await.err()));
        assert!(is_refused(client.create(".surgetank").await.err()));
        assert!(is_refused(client.rename("file", ".surgetank").await.err()));
        assert!(client.rename(".surgetank", "x").await.is_err());
        client.make_directory("d").await.unwrap();
        write(&client, "d/.surgetank", b"as any other").await.unwrap();
        arrived(&client, &bucket, ("d/.surgetank", "t/d/.surgetank"), b"as any other").await;
    });
}

#[test]
pub fn a_large_object_that_gets_another_name_is_copied_in_parts() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 3).await else { return };
        let content = bytes(1, 70 * MIB + 3);
        write(&client, "a b", &content).await.unwrap();
        arrived(&client, &bucket, ("a b", "t/a%20b"), &content).await;
        let (failed, seen) = count();
        disturbing.rule(move |first| {
            match first.contains("partNumber=2") && seen.fetch_add(1, Ordering::SeqCst) == 0 {
                true => Verdict::Answer(500, "<Error><Code>InternalError</Code></Error>"),
                false => Verdict::Pass,
            }
        });
        client.rename("a b", "c").await.unwrap();
        settled(&client).await;
        assert!(failed.load(Ordering::SeqCst) > 1, "it was repeated");
        assert_eq!(bucket.keys(), ["t/c"]);
        same("c", &bucket.get("t/c").unwrap().1, &content);
        append(&client, "c", b"more").await;
        settled(&client).await;
        arrived(&client, &bucket, ("c", "t/c"), &[&content[..], b"more"].concat()).await;
        is_clean(&bucket).await;
    });
}
