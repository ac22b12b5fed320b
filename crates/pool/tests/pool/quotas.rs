//! Quotas of users: who may write how much, whatever becomes of managers.

use std::time::{Duration, Instant};

use surgetank_pool::client::{Error, PoolClient, Writer};
use surgetank_pool::manager::UserQuota;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::Attributes;
use surgetank_pool_core::meta::{Durability, Name};
use surgetank_pool_core::placement::Media;
use surgetank_pool_core::quota::{Limit, Resource, Used};

use crate::support::{LONG, MIB, Pool, bytes, read, run, same, until};

const USER: u32 = 7;
const OVER_BYTES: Refusal = Refusal::OverQuota(Resource::Bytes);
const OVER_FILES: Refusal = Refusal::OverQuota(Resource::Files);

const fn mib(of: usize) -> Option<Limit> {
    Some(Limit::AtMost((of * MIB) as u64))
}

async fn limit(pool: &Pool, user: Option<u32>, bytes: Option<Limit>, files: Option<Limit>) {
    PoolClient::set_quota(&pool.config(1), user, bytes, files).await.expect("a manager answers");
}

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("it is a name")
}

async fn create(client: &PoolClient, name: &str, user: u32) -> Result<Writer, Error> {
    client.create_at((client.root(), named(name)), name, (0o644, user, user)).await
}

/// A file that is written and closed.
async fn write(client: &PoolClient, name: &str, user: u32, content: &[u8]) -> Result<(), Error> {
    let mut writer = create(client, name, user).await?;
    let written = writer.write(content).await;
    writer.close().await?;
    written
}

#[track_caller]
fn refused(done: Result<impl Sized, Error>, by: &Refusal) {
    match done.err() {
        Some(Error::Refused(_, refusal)) if refusal == *by => {}
        other => panic!("{other:?} instead of {by:?}"),
    }
}

async fn quota(pool: &Pool, user: u32) -> UserQuota {
    let report = PoolClient::ask_quotas(&pool.config(1)).await.expect("a manager answers");
    report.users.into_iter().find(|of| of.user == user).expect("something is known of the user")
}

async fn used(pool: &Pool, user: u32) -> Used {
    quota(pool, user).await.used
}

#[test]
fn a_write_beyond_the_quota_is_refused_and_what_was_taken_before_is_committed_and_drained() {
    let pool = Pool::new(1, 2, 96);
    run(async {
        limit(&pool, Some(USER), mib(10), None).await;
        let client = pool.client(2).await;
        let content = bytes(1, 10 * MIB);
        let mut writer = create(&client, "file", USER).await.unwrap();
        writer.write(&content[..8 * MIB]).await.unwrap();
        refused(writer.write(&content[..2 * MIB + 1]).await, &OVER_BYTES);
        refused(writer.set_size(10 * MIB as u64 + 1).await, &OVER_BYTES);
        assert_eq!(writer.size(), 8 * MIB as u64, "nothing of these was taken");
        // It goes on as if nothing had been: all of what is allowed can be used, and written over.
        writer.write(&content[8 * MIB..]).await.unwrap();
        writer.write_at(0, &content[..6 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        refused(writer.write(b"x").await, &OVER_BYTES);
        assert_eq!(used(&pool, USER).await, Used { bytes: 10 * MIB as u64, files: 1 }, "two copies count once");
        // Nobody else is limited.
        write(&client, "of another", 8, &content).await.unwrap();
        write(&client, "of root", 0, &content).await.unwrap();
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
        assert_eq!(used(&pool, USER).await, Used { bytes: 0, files: 1 }, "the target has it");
        write(&client, "next", USER, &content).await.unwrap();
    });
}

#[test]
fn what_no_target_has_counts_until_it_is_drained_truncated_replaced_unlinked_or_given_away() {
    let pool = Pool::new(1, 2, 96);
    run(async {
        limit(&pool, None, mib(10), None).await;
        let stuck = pool.hold_drains();
        let client = pool.client(1).await;
        let content = bytes(1, 8 * MIB);
        write(&client, "one", USER, &content).await.unwrap();
        refused(write(&client, "two", USER, &content[..3 * MIB]).await, &OVER_BYTES);
        // It is written over, and counts once.
        let mut writer = client.append("one").await.unwrap();
        writer.write_at(0, &content).await.unwrap();
        writer.sync().await.unwrap();
        refused(writer.write(&content[..3 * MIB]).await, &OVER_BYTES);
        writer.set_size(MIB as u64).await.unwrap();
        writer.close().await.unwrap();
        refused(create(&client, "two", USER).await, &Refusal::Exists);
        write(&client, "three", USER, &content).await.unwrap();
        assert_eq!(used(&pool, USER).await.bytes, 9 * MIB as u64);
        client.rename("one", "three").await.unwrap();
        until("what was replaced counts no more", async || used(&pool, USER).await.bytes == MIB as u64).await;
        write(&client, "four", USER, &content).await.unwrap();
        client.unlink("four").await.unwrap();
        write(&client, "five", USER, &content).await.unwrap();
        let inode = client.stat("five").await.unwrap().inode;
        let attributes = Attributes { user: Some(8), ..Attributes::default() };
        client.set_attributes(inode, attributes, "five").await.unwrap();
        assert_eq!((used(&pool, USER).await.bytes, used(&pool, 8).await.bytes), (MIB as u64, 8 * MIB as u64));
        write(&client, "six", USER, &content).await.unwrap();
        refused(write(&client, "seven", 8, &content).await, &OVER_BYTES);
        std::fs::remove_file(stuck).unwrap();
        for name in ["three", "five", "six"] {
            client.wait_drained(name, LONG).await.unwrap();
        }
        assert_eq!((used(&pool, USER).await.bytes, used(&pool, 8).await.bytes), (0, 0));
        // All of a file counts again that is written into, since its target has to get it anew.
        let mut writer = client.append("six").await.unwrap();
        writer.write(b"more").await.unwrap();
        assert!(used(&pool, USER).await.bytes >= 8 * MIB as u64 + 4);
        writer.close().await.unwrap();
        client.wait_drained("six", LONG).await.unwrap();
        assert_eq!(used(&pool, USER).await.bytes, 0);
    });
}

#[test]
fn more_files_than_the_quota_allows_are_not_made_and_each_that_is_unlinked_makes_room_for_another() {
    let pool = Pool::new(1, 1, 48);
    run(async {
        limit(&pool, Some(USER), None, Some(Limit::AtMost(3))).await;
        let client = pool.client(1).await;
        write(&client, "one", USER, b"1").await.unwrap();
        client.make_directory_at((client.root(), named("d")), "d", (0o755, USER, USER)).await.unwrap();
        client.make_link_at((client.root(), named("l")), b"one".to_vec(), "l", (0o777, USER, USER)).await.unwrap();
        refused(create(&client, "two", USER).await, &OVER_FILES);
        refused(client.make_directory_at((client.root(), named("e")), "e", (0o755, USER, USER)).await, &OVER_FILES);
        refused(create(&client, "one", USER).await, &Refusal::Exists);
        let inode = client.stat("one").await.unwrap().inode;
        client.link_node(inode, (client.root(), named("again")), "again").await.unwrap();
        write(&client, "of another", 8, b"1").await.unwrap();
        client.wait_drained("one", LONG).await.unwrap();
        assert_eq!(used(&pool, USER).await.files, 3, "a file that its target has is one, and so is one with two names");
        client.unlink("l").await.unwrap();
        write(&client, "two", USER, b"2").await.unwrap();
        refused(create(&client, "three", USER).await, &OVER_FILES);
        limit(&pool, Some(USER), None, Some(Limit::Unlimited)).await;
        write(&client, "three", USER, b"3").await.unwrap();
        limit(&pool, Some(USER), Some(Limit::AsDefault), Some(Limit::AsDefault)).await;
        let of_user = quota(&pool, USER).await;
        assert_eq!((of_user.said, of_user.bytes, of_user.files), (None, None, None), "nothing is said of the user");
    });
}

#[test]
fn a_quota_that_is_set_while_a_file_is_written_refuses_what_comes_and_nothing_that_was_taken() {
    let pool = Pool::new(1, 2, 96);
    run(async {
        let client = pool.client(1).await;
        let content = bytes(1, 8 * MIB);
        let mut writer = create(&client, "file", USER).await.unwrap();
        writer.write(&content).await.unwrap();
        limit(&pool, Some(USER), mib(4), None).await;
        // It is believed for a second that there is none: what is tried meanwhile is another file's.
        let mut other = create(&client, "other", USER).await.unwrap();
        let end = Instant::now() + LONG;
        let refusal = loop {
            assert!(Instant::now() < end, "it holds within {LONG:?}");
            if let Err(refusal) = other.set_size(5 * MIB as u64 + other.size()).await {
                break refusal;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        refused(Err::<(), _>(refusal), &OVER_BYTES);
        other.close().await.unwrap();
        client.unlink("other").await.unwrap();
        // What was taken and is not committed can be written over.
        writer.write_at(0, &content[..MIB]).await.unwrap();
        refused(writer.write(b"x").await, &OVER_BYTES);
        writer.sync().await.unwrap();
        // What counts already can be written over, as well.
        writer.write_at(0, &content[..MIB]).await.unwrap();
        writer.close().await.unwrap();
        same("committed", &read(&client, "file").await.unwrap(), &content);
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn while_no_manager_answers_nothing_that_was_taken_is_lost_and_users_without_quotas_write_on() {
    let mut pool = Pool::new(1, 2, 96);
    run(async {
        limit(&pool, Some(USER), mib(64), None).await;
        let mut config = pool.config(2);
        config.timeout = Duration::from_secs(3);
        let client = pool.client_of(config).await;
        let content = bytes(1, 12 * MIB);
        let mut limited = create(&client, "limited", USER).await.unwrap();
        let mut free = create(&client, "free", 8).await.unwrap();
        let mut fresh = create(&client, "fresh", 9).await.unwrap();
        limited.write(&content[..2 * MIB]).await.unwrap();
        free.write(&content[..2 * MIB]).await.unwrap();
        pool.managers[0].kill();
        // It is known of nobody else whether they have a quota.
        fresh.write(&content[..1000]).await.unwrap();
        free.write(&content[2 * MIB..3 * MIB]).await.unwrap();
        limited.write_at(0, &content[..MIB]).await.unwrap();
        limited.write(&content[2 * MIB..2 * MIB + 1000]).await.unwrap();
        let error = limited.write(&content[2 * MIB + 1000..]).await.unwrap_err();
        assert!(matches!(&error, Error::QuotaUnknown(..)) && error.took_nothing(), "{error}");
        pool.restart_manager(0);
        // It goes on as if nothing had been.
        limited.write(&content[2 * MIB + 1000..]).await.unwrap();
        for (name, writer, size) in [("limited", limited, 12 * MIB), ("free", free, 3 * MIB), ("fresh", fresh, 1000)] {
            writer.close().await.unwrap();
            same(name, &read(&client, name).await.unwrap(), &content[..size]);
        }
    });
}

#[test]
fn a_creation_that_is_asked_for_again_is_as_any_other() {
    let mut pool = Pool::new(2, 1, 48);
    run(async {
        limit(&pool, Some(USER), None, Some(Limit::AtMost(1))).await;
        // Neither has looked at what is there before.
        (0..2).for_each(|at| pool.restart_manager(at));
        let client = pool.client(1).await;
        write(&client, "one", USER, b"1").await.unwrap();
        // The manager that was asked so far does not answer, and another one is asked.
        pool.managers[0].kill();
        refused(create(&client, "two", USER).await, &OVER_FILES);
        pool.restart_manager(0);
        pool.managers[1].kill();
        refused(create(&client, "three", USER).await, &OVER_FILES);
        assert_eq!(used(&pool, USER).await.files, 1);
    });
}

#[test]
fn a_writer_that_was_idle_asks_before_it_takes_more() {
    let pool = Pool::new(1, 1, 48);
    run(async {
        let client = pool.client(1).await;
        let mut writer = create(&client, "file", USER).await.unwrap();
        writer.write(b"x").await.unwrap();
        limit(&pool, Some(USER), mib(4), None).await;
        // What was said before is believed for a second.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        refused(writer.set_size(15 * MIB as u64).await, &OVER_BYTES);
        writer.close().await.unwrap();
    });
}

#[test]
fn many_small_files_that_are_open_at_a_time_take_little_more_than_they_have() {
    let pool = Pool::new(1, 1, 96);
    run(async {
        limit(&pool, Some(USER), mib(64), None).await;
        let client = pool.client(1).await;
        let mut writers = Vec::new();
        for number in 0..30 {
            let mut writer = create(&client, &number.to_string(), USER).await.unwrap();
            writer.write(&bytes(number, 4096)).await.unwrap();
            writers.push(writer);
        }
        assert!(used(&pool, USER).await.bytes <= 32 * MIB as u64);
        for writer in writers {
            writer.close().await.unwrap();
        }
    });
}

#[test]
fn a_user_is_told_of_what_the_target_has_at_a_name_and_not_of_the_quota() {
    let pool = Pool::new(1, 1, 48);
    run(async {
        limit(&pool, Some(USER), None, Some(Limit::AtMost(1))).await;
        let client = pool.client(1).await;
        write(&client, "one", USER, b"1").await.unwrap();
        std::fs::write(pool.target().join("older"), "older").unwrap();
        refused(create(&client, "older", USER).await, &Refusal::Exists);
        refused(create(&client, "newer", USER).await, &OVER_FILES);
    });
}

/// What is said of users, what they have and what sessions have reserved is there whichever manager is asked, and whatever becomes of them.
async fn outlasts(mut pool: Pool) {
    limit(&pool, Some(USER), mib(10), Some(Limit::AtMost(2))).await;
    let stuck = pool.hold_drains();
    let client = pool.client(2).await;
    let content = bytes(1, 10 * MIB);
    write(&client, "closed", USER, &content[..4 * MIB]).await.unwrap();
    let mut writer = create(&client, "open", USER).await.unwrap();
    writer.write(&content[..5 * MIB]).await.unwrap();
    for at in 0..pool.managers.len() {
        pool.managers[at].kill();
        if pool.managers.len() == 1 {
            pool.kill_store();
            pool.open_store();
        }
        // With several managers the others answer meanwhile.
        if at == pool.managers.len() - 1 {
            pool.restart_manager(at);
        }
    }
    // Nothing of that is committed, and a manager that has just begun knows of it.
    let other = pool.client_of(pool.config_of(Durability::Copies { copies: 2, media: Media::Any })).await;
    refused(create(&other, "third", USER).await, &OVER_FILES);
    let mut appends = other.append("closed").await.unwrap();
    refused(appends.write(&content[..2 * MIB]).await, &OVER_BYTES);
    appends.write(&content[4 * MIB..5 * MIB]).await.unwrap();
    appends.close().await.unwrap();
    refused(writer.write(b"x").await, &OVER_BYTES);
    writer.close().await.unwrap();
    assert_eq!(used(&pool, USER).await, Used { bytes: 10 * MIB as u64, files: 2 });
    std::fs::remove_file(stuck).unwrap();
    for name in ["closed", "open"] {
        client.wait_drained(name, LONG).await.unwrap();
        same(name, &std::fs::read(pool.target().join(name)).unwrap(), &content[..5 * MIB]);
    }
}

#[test]
fn quotas_and_what_is_reserved_outlast_the_manager_and_its_store() {
    let pool = Pool::new(1, 3, 96);
    run(outlasts(pool));
}

#[test]
fn quotas_and_what_is_reserved_outlast_managers_over_etcd() {
    let Some(pool) = Pool::over_etcd(2, 3, 96) else { return };
    run(outlasts(pool));
}

#[test]
fn two_managers_that_are_asked_at_the_same_time_give_a_user_no_more_than_the_quota_and_a_part_of_it() {
    const LIMIT: usize = 32;
    let mut pool = Pool::new(2, 2, 256);
    run(async {
        limit(&pool, Some(USER), mib(LIMIT), Some(Limit::AtMost(100))).await;
        // Each has heard of it before it serves.
        (0..2).for_each(|at| pool.restart_manager(at));
        let _stuck = pool.hold_drains();
        let mut tasks = Vec::new();
        for at in 0..2 {
            let mut config = pool.config(1);
            config.managers = vec![pool.managers[at].address.clone()];
            let client = pool.client_of(config).await;
            tasks.push(tokio::spawn(async move {
                let content = bytes(at as u64, MIB);
                let mut taken = 0;
                for number in 0.. {
                    let mut writer = create(&client, &format!("{at}-{number}"), USER).await.unwrap();
                    let written = writer.write(&content).await;
                    writer.close().await.unwrap();
                    match written {
                        Ok(()) => taken += 1,
                        refusal => {
                            refused(refusal, &OVER_BYTES);
                            return (client, taken);
                        }
                    }
                }
                unreachable!("there is a limit");
            }));
        }
        let (mut clients, mut taken) = (Vec::new(), 0);
        for task in tasks {
            let (client, of) = task.await.unwrap();
            clients.push(client);
            taken += of;
        }
        assert!((LIMIT..=LIMIT + LIMIT / 4 + 1).contains(&taken), "{taken} MiB of {LIMIT}");
        assert_eq!(used(&pool, USER).await.bytes, (taken * MIB) as u64);
        for (at, client) in clients.iter().enumerate() {
            refused(write(client, &format!("{at}-more"), USER, &bytes(1, MIB)).await, &OVER_BYTES);
        }
    });
}
