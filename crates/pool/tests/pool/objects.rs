//! A bucket as a target, in a store that speaks S3: what is closed arrives there whole, under failures of the store and of managers, and nothing
//! is left beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use surgetank_pool::client::{self, Error, PoolClient};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::{Durability, FileState};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::Media;

use crate::support::s3::{Disturbing, TestBucket, Verdict};
use crate::support::{LONG, MIB, Pool, append, bytes, read, run, same, until, write};

const COPIES: Durability = Durability::Copies { copies: 1, media: Media::Any };

/// A pool whose managers know a bucket.
pub fn pool_at(bucket: &TestBucket, managers: usize, benefactors: usize) -> Pool {
    let mut pool = Pool::new(0, 0, 64);
    pool.buckets = bucket.options();
    (0..managers).for_each(|_| pool.start_manager("127.0.0.1:0"));
    (0..benefactors).for_each(|_| pool.start_benefactor());
    pool
}

pub fn config(pool: &Pool, target: &str) -> client::Config {
    let mut config = pool.config(1);
    config.mount = target.to_owned();
    config.make = Some((target.into(), COPIES));
    config
}

pub async fn client(pool: &Pool, target: &str) -> PoolClient {
    pool.client_of(config(pool, target)).await
}

/// A bucket whose requests can be disturbed; `None`: there is no store.
pub fn behind() -> Option<(Disturbing, TestBucket)> {
    let disturbing = Disturbing::start()?;
    let bucket = TestBucket::make()?.behind(&disturbing);
    Some((disturbing, bucket))
}

/// A pool over a bucket, and a client of it; `None`: there is no store.
pub async fn undisturbed(managers: usize, benefactors: usize) -> Option<(TestBucket, Pool, PoolClient)> {
    let bucket = TestBucket::make()?;
    let (pool, client) = over(&bucket, (managers, benefactors)).await;
    Some((bucket, pool, client))
}

/// The same with [`behind`].
pub async fn disturbed(managers: usize, benefactors: usize) -> Option<(Disturbing, TestBucket, Pool, PoolClient)> {
    let (disturbing, bucket) = behind()?;
    let (pool, client) = over(&bucket, (managers, benefactors)).await;
    Some((disturbing, bucket, pool, client))
}

async fn over(bucket: &TestBucket, (managers, benefactors): (usize, usize)) -> (Pool, PoolClient) {
    let pool = pool_at(bucket, managers, benefactors);
    let client = client(&pool, &bucket.target("t")).await;
    (pool, client)
}

/// The bucket has a file, with these bytes.
pub async fn arrived(client: &PoolClient, bucket: &TestBucket, (path, key): (&str, &str), content: &[u8]) {
    client.wait_drained(path, LONG).await.expect("it is drained");
    same(path, &bucket.get(key).expect("it is there").1, content);
}

/// Nothing is under way, and nothing is left of what was.
pub async fn is_clean(bucket: &TestBucket) {
    until("nothing is left", async || bucket.uploads().is_empty() && bucket.aside().len() <= 1).await;
}

pub async fn settled(client: &PoolClient) {
    until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
}

/// What is in memory is lost: from now on everything is read at the target.
pub async fn forget(pool: &mut Pool, client: &PoolClient) {
    (0..pool.benefactors.len()).for_each(|id| pool.restart_benefactor(id));
    until("all are back", async || {
        let status = client.status().await.unwrap();
        status.benefactors.len() == pool.benefactors.len() && status.benefactors.iter().all(|(_, credits)| *credits > 0)
    })
    .await;
}

#[test]
pub fn what_is_closed_arrives_in_a_bucket_whole_and_is_read_there() {
    run(async {
        let Some(bucket) = TestBucket::make() else { return };
        let mut pool = pool_at(&bucket, 1, 3);
        let client = client(&pool, &bucket.target("run 1/x")).await;
        for (name, length) in [("empty", 0), ("one", 1), ("part", 8 * MIB), ("large", 41 * MIB + 12_345)] {
            let content = bytes(length as u64, length);
            write(&client, name, &content).await.unwrap();
            arrived(&client, &bucket, (name, &format!("run%201/x/{name}")), &content).await;
        }
        is_clean(&bucket).await;
        let (headers, _) = bucket.get("run%201/x/large").unwrap();
        assert_eq!(headers.get("x-amz-meta-mode").map(String::as_str), Some("0644"), "{headers:?}");
        forget(&mut pool, &client).await;
        for (name, length) in [("empty", 0), ("one", 1), ("large", 41 * MIB + 12_345)] {
            same(name, &read(&client, name).await.unwrap(), &bytes(length as u64, length));
        }
    });
}

#[test]
pub fn a_later_version_takes_the_place_of_the_former_with_what_only_that_has() {
    run(async {
        let Some((bucket, mut pool, client)) = undisturbed(1, 2).await else { return };
        let mut content = bytes(1, 21 * MIB);
        write(&client, "file", &content).await.unwrap();
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        forget(&mut pool, &client).await;
        let mut writer = client.append("file").await.unwrap();
        let piece = bytes(2, 3 * MIB / 2);
        writer.write_at((9 * MIB + 5) as u64, &piece).await.unwrap();
        content[9 * MIB + 5..][..piece.len()].copy_from_slice(&piece);
        writer.close().await.unwrap();
        settled(&client).await;
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        // Shorter, and with a hole.
        let mut writer = client.append("file").await.unwrap();
        writer.set_size((2 * MIB + 7) as u64).await.unwrap();
        writer.set_size((30 * MIB) as u64).await.unwrap();
        writer.close().await.unwrap();
        content.truncate(2 * MIB + 7);
        content.resize(30 * MIB, 0);
        settled(&client).await;
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        is_clean(&bucket).await;
    });
}

#[test]
pub fn rows_with_parity_arrive_in_a_bucket_without_those_that_are_lost() {
    for (data, parity) in [(4, 1), (3, 2)] {
        run(async {
            let Some((disturbing, bucket)) = behind() else { return };
            let mut pool = pool_at(&bucket, 1, usize::from(data + parity));
            let target = bucket.target("t");
            let mut config = config(&pool, &target);
            config.make = Some((target.into(), Durability::Parity(Parity::new(data, parity).unwrap())));
            let client = pool.client_of(config).await;
            let mut whole = bytes(1, 21 * MIB + 3);
            write(&client, "whole", &whole).await.unwrap();
            arrived(&client, &bucket, ("whole", "t/whole"), &whole).await;
            // Of rows of which the bucket has the rest.
            forget(&mut pool, &client).await;
            let mut writer = client.append("whole").await.unwrap();
            let piece = bytes(2, 3 * MIB / 2);
            writer.write_at((9 * MIB + 5) as u64, &piece).await.unwrap();
            whole[9 * MIB + 5..][..piece.len()].copy_from_slice(&piece);
            writer.close().await.unwrap();
            settled(&client).await;
            arrived(&client, &bucket, ("whole", "t/whole"), &whole).await;
            disturbing.rule(|first| match first.contains("partNumber=") {
                true => Verdict::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
                false => Verdict::Pass,
            });
            let content = bytes(3, 33 * MIB + 5);
            write(&client, "file", &content).await.unwrap();
            (0..parity.into()).for_each(|id| pool.benefactors[2 * id].kill());
            disturbing.pass();
            arrived(&client, &bucket, ("file", "t/file"), &content).await;
            is_clean(&bucket).await;
        });
    }
}

#[test]
pub fn names_move_and_end_in_a_bucket_in_their_order() {
    run(async {
        let Some((bucket, _pool, client)) = undisturbed(1, 1).await else { return };
        client.make_directory("d").await.unwrap();
        client.make_directory("d/deep").await.unwrap();
        client.make_directory("empty").await.unwrap();
        for (at, name) in ["d/a", "d/deep/b", "c", "tmp"].into_iter().enumerate() {
            write(&client, name, &bytes(at as u64, MIB + at)).await.unwrap();
        }
        // As checkpoints are written: under another name first, over the former one.
        client.rename("tmp", "c").await.unwrap();
        client.rename("d", "e").await.unwrap();
        client.rename("empty", "still-empty").await.unwrap();
        settled(&client).await;
        assert_eq!(bucket.keys(), ["t/c", "t/e/a", "t/e/deep/b"]);
        same("c", &bucket.get("t/c").unwrap().1, &bytes(3, MIB + 3));
        same("b", &bucket.get("t/e/deep/b").unwrap().1, &bytes(1, MIB + 1));
        // What has moved is the pool's still.
        append(&client, "e/a", b"more").await;
        client.unlink("e/deep/b").await.unwrap();
        client.remove_directory("e/deep").await.unwrap();
        client.rename("e/a", "a").await.unwrap();
        settled(&client).await;
        assert_eq!(bucket.keys(), ["t/a", "t/c"]);
        same("a", &bucket.get("t/a").unwrap().1, &[&bytes(0, MIB)[..], b"more"].concat());
        is_clean(&bucket).await;
    });
}

#[test]
pub fn what_others_put_into_a_bucket_is_seen_and_stays() {
    run(async {
        let Some(bucket) = TestBucket::make() else { return };
        bucket.put("t/theirs/file", b"their content");
        bucket.put("t/plain", b"plain");
        let pool = pool_at(&bucket, 1, 1);
        let client = client(&pool, &bucket.target("t")).await;
        let names = async |path| -> Vec<String> {
            client.read_directory(path).await.unwrap().into_iter().map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!(names("").await, ["plain", "theirs"]);
        assert_eq!(names("theirs").await, ["file"]);
        assert_eq!(client.stat("theirs/file").await.unwrap().size, 13);
        let root = client.root();
        let path = |name: &str| {
            use surgetank_pool_core::meta::{Name, value::Path};
            Path(name.split('/').map(|name| Name::new(name.as_bytes()).unwrap()).collect())
        };
        let seen = client.stat("theirs/file").await.unwrap();
        assert!(client.open_at_target(root, &path("theirs/file"), seen.inode.0, "file").await.unwrap().is_none());
        same("theirs", &read(&client, "theirs/file").await.unwrap(), b"their content");
        // Who changes what the pool has put there keeps the change.
        write(&client, "ours", b"first").await.unwrap();
        arrived(&client, &bucket, ("ours", "t/ours"), b"first").await;
        bucket.put("t/ours", b"changed by others");
        append(&client, "ours", b", second").await;
        assert!(matches!(client.wait_drained("ours", LONG).await, Err(Error::NotDrained(..))));
        same("ours", &bucket.get("t/ours").unwrap().1, b"changed by others");
        assert_eq!(client.stat("ours").await.unwrap().state, Some(FileState::Conflict));
        // A name that was free when it was taken.
        assert!(matches!(client.create("plain").await.err(), Some(Error::Refused(_, Refusal::Exists))));
        is_clean(&bucket).await;
    });
}

#[test]
pub fn links_and_special_files_are_refused_where_the_target_is_a_bucket() {
    run(async {
        let Some((bucket, _pool, client)) = undisturbed(1, 1).await else { return };
        write(&client, "file", b"content").await.unwrap();
        let inode = client.stat("file").await.unwrap().inode;
        let name = |name: &str| surgetank_pool_core::meta::Name::new(name.as_bytes()).unwrap();
        let is_refused = |error: Option<Error>| matches!(error, Some(Error::Refused(_, Refusal::NotAllowed)));
        let linked = client.link_node(inode, (client.root(), name("also")), "also").await;
        assert!(is_refused(linked.err()));
        let made = client.make_link_at((client.root(), name("link")), b"file".to_vec(), "link", (0o777, 0, 0)).await;
        assert!(is_refused(made.err()));
        arrived(&client, &bucket, ("file", "t/file"), b"content").await;
        assert_eq!(bucket.keys(), ["t/file"]);
    });
}

#[test]
pub fn a_manager_that_is_killed_in_mid_drain_leaves_no_upload() {
    run(async {
        for stage in ["parts", "complete", "heard", "begin", "record"] {
            let Some((disturbing, bucket)) = behind() else { return };
            let mut pool = pool_at(&bucket, 1, 2);
            let client = client(&pool, &bucket.target("t")).await;
            let reached = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&reached);
            disturbing.rule(move |first| {
                let is_part = first.starts_with("PUT") && first.contains("partNumber=");
                let is_complete = first.starts_with("POST") && first.contains("uploadId=");
                let is_record = first.starts_with("PUT") && first.contains("/.surgetank/1.");
                let is_begin = first.starts_with("POST") && first.contains("uploads");
                match stage {
                    "record" if is_record => {
                        seen.store(true, Ordering::SeqCst);
                        Verdict::Slow(Duration::from_secs(5))
                    }
                    "begin" if is_begin => {
                        seen.store(true, Ordering::SeqCst);
                        Verdict::Unheard
                    }
                    "parts" if is_part && (first.contains("partNumber=2") || seen.load(Ordering::SeqCst)) => {
                        seen.store(true, Ordering::SeqCst);
                        Verdict::Slow(Duration::from_secs(5))
                    }
                    "complete" if is_complete => {
                        seen.store(true, Ordering::SeqCst);
                        Verdict::Cut
                    }
                    "heard" if is_complete => {
                        seen.store(true, Ordering::SeqCst);
                        Verdict::Unheard
                    }
                    _ => Verdict::Pass,
                }
            });
            let content = bytes(5, 33 * MIB);
            write(&client, "file", &content).await.unwrap();
            until("the drain is there", async || reached.load(Ordering::SeqCst)).await;
            if matches!(stage, "parts" | "complete") {
                assert_eq!(bucket.uploads(), ["t/file"], "{stage}");
                assert_eq!(bucket.keys(), Vec::<String>::new(), "nothing of it is seen");
            }
            pool.managers[0].kill();
            disturbing.pass();
            pool.restart_manager(0);
            arrived(&client, &bucket, ("file", "t/file"), &content).await;
            match stage {
                // One that comes after its manager's end is there until another one begins.
                "record" => until("no upload is left", async || bucket.uploads().is_empty()).await,
                _ => is_clean(&bucket).await,
            }
        }
    });
}

#[test]
pub fn a_store_that_fails_for_a_while_gets_everything_in_the_end() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 2).await else { return };
        let count = AtomicUsize::new(0);
        disturbing.rule(move |_| match count.fetch_add(1, Ordering::SeqCst) {
            ask if ask > 300 => Verdict::Pass,
            ask => match ask % 7 {
                1 => Verdict::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
                3 => Verdict::Answer(500, "<Error><Code>InternalError</Code></Error>"),
                4 => Verdict::Unheard,
                5 => Verdict::Cut,
                6 => Verdict::Slow(Duration::from_millis(100)),
                _ => Verdict::Pass,
            },
        });
        let files: Vec<(String, Vec<u8>)> =
            (0..6).map(|at| (format!("file{at}"), bytes(at, 5 * MIB * at as usize + 17))).collect();
        for (name, content) in &files {
            write(&client, name, content).await.unwrap();
        }
        settled(&client).await;
        for (name, content) in &files {
            arrived(&client, &bucket, (name, &format!("t/{name}")), content).await;
        }
        is_clean(&bucket).await;
    });
}

/// What a store answers in mid-drain is told, nothing is lost and nothing stays in the store; once it is over, everything arrives.
fn is_told(what: &'static str, is_meant: fn(&str) -> bool, status: u16, body: &'static str) {
    run(async move {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 2).await else { return };
        write(&client, "before", b"content").await.unwrap();
        arrived(&client, &bucket, ("before", "t/before"), b"content").await;
        disturbing.rule(move |first| if is_meant(first) { Verdict::Answer(status, body) } else { Verdict::Pass });
        let content = bytes(5, 25 * MIB);
        write(&client, "file", &content).await.unwrap();
        until(what, async || {
            let mounts = client.status().await.unwrap().mounts;
            mounts.iter().any(|mount| mount.standstill.as_ref().is_some_and(|standing| standing.why.contains(what)))
        })
        .await;
        same("file", &read(&client, "file").await.unwrap(), &content);
        assert_eq!(bucket.keys(), ["t/before"], "nothing of it is seen");
        disturbing.pass();
        arrived(&client, &bucket, ("file", "t/file"), &content).await;
        until("it is over", async || {
            client.status().await.unwrap().mounts.iter().all(|mount| mount.standstill.is_none())
        })
        .await;
        is_clean(&bucket).await;
    });
}

#[test]
pub fn credentials_that_expire_in_mid_drain_are_told_and_nothing_is_lost() {
    let is_late_part = |first: &str| first.contains("partNumber=3");
    is_told("credentials have expired", is_late_part, 400, "<Error><Code>ExpiredToken</Code></Error>");
}

#[test]
pub fn parts_that_a_store_refuses_are_told_and_nothing_is_left_of_them() {
    let is_complete = |first: &str| first.starts_with("POST") && first.contains("uploadId=");
    is_told("refuses parts of this size", is_complete, 400, "<Error><Code>EntityTooSmall</Code></Error>");
}

#[test]
pub fn a_bucket_that_is_not_there_or_whose_owner_does_not_let_us_in_is_refused_in_one_sentence() {
    run(async {
        let Some(bucket) = TestBucket::name_alone() else { return };
        let pool = pool_at(&bucket, 1, 1);
        let said = async |pool: &Pool, target: &str| match PoolClient::begin(config(pool, target)).await {
            Err(Error::Declined(said)) => said,
            other => panic!("{:?}", other.err()),
        };
        let sentence = said(&pool, &bucket.target("t")).await;
        assert!(sentence.ends_with("there is no such bucket: make the bucket"), "{sentence}");
        assert!(said(&pool, "s3://UPPER/t").await.contains("write s3://BUCKET/PREFIX"));
        let Some((disturbing, bucket)) = behind() else { return };
        disturbing.rule(|_| Verdict::Answer(403, "<Error><Code>AccessDenied</Code></Error>"));
        let pool = pool_at(&bucket, 1, 1);
        let sentence = said(&pool, &bucket.target("t")).await;
        assert!(sentence.contains("the store denies access to the bucket: give the managers"), "{sentence}");
    });
}

#[test]
pub fn the_bucket_of_another_pool_stays_as_it_is() {
    run(async {
        let Some(bucket) = TestBucket::make() else { return };
        let (first, second) = (pool_at(&bucket, 1, 1), pool_at(&bucket, 1, 1));
        let target = bucket.target("t");
        let one = client(&first, &target).await;
        write(&one, "file", b"of the first").await.unwrap();
        arrived(&one, &bucket, ("file", "t/file"), b"of the first").await;
        match PoolClient::begin(config(&second, &target)).await {
            Err(Error::Declined(said)) => {
                assert!(said.contains("it is the target of another pool: name another target"), "{said}");
            }
            other => panic!("{:?}", other.err()),
        }
        // One that is another pool's later only, as if both had begun at once.
        let manifest = bucket.get("t/.surgetank/manifest").unwrap().1;
        bucket.put("t/.surgetank/manifest", b"pool 0123456789abcdef\nmount 1\nsince 1\n");
        write(&one, "another", b"of the first, later").await.unwrap();
        until("it is told", async || {
            let mounts = one.status().await.unwrap().mounts;
            mounts
                .iter()
                .any(|mount| mount.standstill.as_ref().is_some_and(|standing| standing.why.contains("another pool")))
        })
        .await;
        assert_eq!(bucket.keys(), ["t/file"]);
        bucket.put("t/.surgetank/manifest", &manifest);
        arrived(&one, &bucket, ("another", "t/another"), b"of the first, later").await;
        // Once the first pool is gone and somebody says so, the other one goes on.
        drop((one, first));
        bucket.delete("t/.surgetank/manifest");
        let other = client(&second, &target).await;
        write(&other, "later", b"of the second").await.unwrap();
        arrived(&other, &bucket, ("later", "t/later"), b"of the second").await;
    });
}

#[test]
pub fn a_file_that_is_removed_in_mid_drain_leaves_no_upload() {
    run(async {
        let Some((disturbing, bucket, _pool, client)) = disturbed(1, 2).await else { return };
        disturbing.rule(|first| match first.contains("partNumber=3") {
            true => Verdict::Answer(403, "<Error><Code>AccessDenied</Code></Error>"),
            false => Verdict::Pass,
        });
        write(&client, "file", &bytes(5, 33 * MIB)).await.unwrap();
        until("it is under way", async || !bucket.uploads().is_empty()).await;
        client.unlink("file").await.unwrap();
        settled(&client).await;
        assert_eq!(bucket.keys(), Vec::<String>::new());
        is_clean(&bucket).await;
    });
}
