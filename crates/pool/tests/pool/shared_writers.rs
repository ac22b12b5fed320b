//! Several sessions write one file at the same time, each its own bytes: the test knows whose each byte is, and what it must be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{LONG, MIB, Pool, Process, aside, bytes, drained, free, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{Error, PoolClient, Writer};
use surgetank_pool_core::meta::FileState;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// The file is cut into cells of so many bytes, which belong to one writer after the other.
#[derive(Clone, Copy)]
struct Cells {
    size: usize,
    cell: usize,
    writers: usize,
}

impl Cells {
    /// The cells of a writer: where each begins and ends.
    fn of(self, writer: usize) -> Vec<(usize, usize)> {
        let cells = (0..self.size.div_ceil(self.cell)).filter(|cell| cell % self.writers == writer);
        cells.map(|cell| (cell * self.cell, ((cell + 1) * self.cell).min(self.size))).collect()
    }
}

/// The cells of a writer, what it has written, and the byte behind the last one of that.
type Part = (Vec<(usize, usize)>, Vec<u8>, usize);

/// What a writer has written, and what of that is synced.
struct Account {
    written: Vec<u8>,
    synced: Vec<u8>,
    /// The byte behind the last one that is synced.
    end: usize,
}

/// Writes cells, whole or in part, in any order, and syncs now and then; after each sync others read what was synced.
async fn scribble(
    (writer, other): (&mut Writer, &PoolClient),
    path: &str,
    cells: &[(usize, usize)],
    rounds: u64,
    random: &mut Random,
) -> Result<Account, Error> {
    let size = cells.last().map_or(0, |(_, end)| *end);
    let mut account = Account { written: vec![0; size], synced: vec![0; size], end: 0 };
    let mut end = 0;
    for round in 0..rounds {
        // Each cell at least once, where there are rounds enough.
        let at = match usize::try_from(round) {
            Ok(round) if round < cells.len() => round,
            _ => usize::try_from(random.below(cells.len() as u64)).unwrap(),
        };
        let (first, last) = cells[at];
        let from = first + usize::try_from(random.below((last - first) as u64)).unwrap();
        let from = if random.chance(0.5) { first } else { from };
        let part = bytes(random.below(u64::MAX), 1 + usize::try_from(random.below((last - from) as u64)).unwrap());
        writer.write_at(from as u64, &part).await?;
        account.written[from..from + part.len()].copy_from_slice(&part);
        end = end.max(from + part.len());
        if random.chance(0.2) {
            writer.sync().await?;
            account.synced.clone_from(&account.written);
            account.end = end;
            let (from, to) = cells[usize::try_from(random.below(cells.len() as u64)).unwrap()];
            let found = other.open(path).await?.read_at(from as u64, to - from).await?;
            let expected = &account.synced[from..to.min(account.end.max(from))];
            assert!(found.len() >= expected.len(), "what was synced is there");
            same("what was synced is read by others", &found[..expected.len()], expected);
            let own = writer.read_at(from as u64, to - from).await?;
            same("and by whoever wrote it", &own, &account.written[from..from + own.len()]);
        }
    }
    Ok(account)
}

/// What all writers together have written.
fn together(accounts: &[Part]) -> Vec<u8> {
    let size = accounts.iter().map(|(.., end)| *end).max().unwrap_or(0);
    let mut content = vec![0; size];
    for (cells, written, _) in accounts {
        for (first, last) in cells {
            let last = (*last).min(size).min(written.len());
            if *first < last {
                content[*first..last].copy_from_slice(&written[*first..last]);
            }
        }
    }
    content
}

/// Nothing is left in the pool, and nothing aside at the target.
async fn is_empty(pool: &Pool, client: &PoolClient, chunks: u64) {
    until("all memory is free, and nothing is left at the target", async || {
        let status = client.status().await.unwrap();
        let free = free(&status);
        free == chunks && status.journal == 0 && aside(&pool.target()) == 0
    })
    .await;
}

/// All write at the same time; one may end without a word.
async fn write_together(pool: &Pool, cells: Cells, (rounds, seed): (u64, u64), dies: Option<usize>) -> Vec<Part> {
    let mut all = JoinSet::new();
    let begin = Arc::new(Barrier::new(cells.writers));
    for number in 0..cells.writers {
        let (client, other) = (pool.client(2).await, pool.client(2).await);
        let (begin, mut random) = (Arc::clone(&begin), Random::from_seed(seed * 100 + number as u64));
        all.spawn(async move {
            let mut writer = client.append("file").await?;
            begin.wait().await;
            let own = cells.of(number);
            let account = scribble((&mut writer, &other), "file", &own, rounds, &mut random).await?;
            if dies == Some(number) {
                // As when its process is killed, and its lease has ended.
                drop(writer);
                client.end().await?;
                return Ok((own, account.synced, account.end));
            }
            writer.close().await?;
            let end = own.iter().map(|(_, end)| *end).max().unwrap_or(0).min(account.written.len());
            let end = account.written[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            Ok::<_, Error>((own, account.written, end))
        });
    }
    let mut accounts = Vec::new();
    while let Some(ended) = all.join_next().await {
        accounts.push(ended.unwrap().unwrap_or_else(|error| panic!("run {seed}: {error}")));
    }
    accounts
}

/// The file has at least these bytes, and zeros behind them.
fn padded(mut content: Vec<u8>, found: usize) -> Vec<u8> {
    content.resize(content.len().max(found), 0);
    content
}

#[test]
fn what_sessions_write_into_one_file_at_the_same_time_is_all_there() {
    run(async {
        for seed in 0..8 {
            let mut random = Random::from_seed(seed);
            let pool = Pool::new(1, 3, 96);
            let client = pool.client(2).await;
            write(&client, "file", b"").await.unwrap();
            let cell = [7, 1000, 50_000, 300_001, MIB, MIB + MIB / 2][usize::try_from(random.below(6)).unwrap()];
            let size = (MIB / 2 + usize::try_from(random.below(5 * MIB as u64)).unwrap()).min(cell * 400);
            let cells = Cells { size: size.max(cell * 8), cell, writers: 4 };
            let accounts = write_together(&pool, cells, (30 + random.below(60), seed), None).await;
            let content = together(&accounts);
            let found = read(&client, "file").await.unwrap();
            let content = padded(content, found.len());
            same(&format!("run {seed}"), &found, &content);
            drained(&pool, &client, "file", &content).await;
            client.unlink("file").await.unwrap();
            is_empty(&pool, &client, 3 * 96).await;
        }
    });
}

#[test]
fn sessions_share_a_file_of_several_groups() {
    run(async {
        for seed in 0..2 {
            // The first group has 64 MiB.
            let pool = Pool::new(1, 3, 192);
            let client = pool.client(2).await;
            write(&client, "file", &vec![0; 63 * MIB + 5]).await.unwrap();
            let cells = Cells { size: 67 * MIB, cell: 777_777, writers: 3 };
            let mut accounts = write_together(&pool, cells, (40, seed), None).await;
            accounts.push((Vec::new(), Vec::new(), 63 * MIB + 5));
            let found = read(&client, "file").await.unwrap();
            let content = padded(together(&accounts), found.len());
            same(&format!("run {seed}"), &found, &content);
            drained(&pool, &client, "file", &content).await;
        }
    });
}

#[test]
fn a_chunk_that_is_being_written_is_whole_after_others_have_committed_elsewhere() {
    run(async {
        let pool = Pool::new(1, 3, 192);
        let (one, two) = (pool.client(2).await, pool.client(2).await);
        // The first group has 64 MiB.
        let mut content = bytes(1, 65 * MIB);
        write(&one, "file", &content).await.unwrap();
        let (mut first, mut second) = (one.append("file").await.unwrap(), two.append("file").await.unwrap());
        first.write_at(5, b"first").await.unwrap();
        second.write_at(64 * MIB as u64 + 5, b"second").await.unwrap();
        second.sync().await.unwrap();
        first.refresh().await.unwrap();
        first.sync().await.unwrap();
        content[5..10].copy_from_slice(b"first");
        content[64 * MIB + 5..64 * MIB + 11].copy_from_slice(b"second");
        same("both", &read(&two, "file").await.unwrap(), &content);
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
}

#[test]
fn a_session_that_dies_loses_only_what_it_had_not_synced() {
    run(async {
        for seed in 0..3 {
            let pool = Pool::new(1, 3, 96);
            let client = pool.client(2).await;
            write(&client, "file", b"").await.unwrap();
            let cells = Cells { size: 3 * MIB, cell: 40_000, writers: 4 };
            let accounts = write_together(&pool, cells, (60, seed), Some(0)).await;
            until("its session has ended", async || {
                client.stat("file").await.unwrap().state != Some(FileState::Replicated)
            })
            .await;
            client.wait_drained("file", LONG).await.unwrap();
            let found = read(&client, "file").await.unwrap();
            let content = padded(together(&accounts), found.len());
            same(&format!("run {seed}"), &found, &content);
            drained(&pool, &client, "file", &content).await;
            client.unlink("file").await.unwrap();
            is_empty(&pool, &client, 3 * 96).await;
        }
    });
}

#[test]
fn a_benefactor_that_dies_under_sessions_that_share_a_file_loses_nothing() {
    run(async {
        for seed in 0..2 {
            let mut pool = Pool::new(2, 4, 64);
            let client = pool.client(2).await;
            write(&client, "file", b"").await.unwrap();
            let cells = Cells { size: 5 * MIB, cell: 123_456, writers: 3 };
            let mut all = JoinSet::new();
            for number in 0..cells.writers {
                let mut config = pool.config(2);
                config.managers.rotate_left(number % 2);
                all.spawn(async move {
                    let (client, other) = (PoolClient::begin(config.clone()).await?, PoolClient::begin(config).await?);
                    let mut writer = client.append("file").await?;
                    let mut random = Random::from_seed(seed * 10 + number as u64);
                    let own = cells.of(number);
                    let account = scribble((&mut writer, &other), "file", &own, 150, &mut random).await?;
                    writer.close().await?;
                    let end = account.written.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                    Ok::<_, Error>((own, account.written, end))
                });
            }
            for kill in 0..2 {
                tokio::time::sleep(Duration::from_millis(300)).await;
                pool.benefactors[kill].kill();
                pool.restart_benefactor(kill);
                until("the copies are there again", async || pool.missing().await == 0).await;
            }
            let mut accounts = Vec::new();
            while let Some(ended) = all.join_next().await {
                accounts.push(ended.unwrap().unwrap_or_else(|error| panic!("run {seed}: {error}")));
            }
            let found = read(&client, "file").await.unwrap();
            let content = padded(together(&accounts), found.len());
            same(&format!("run {seed}"), &found, &content);
            drained(&pool, &client, "file", &content).await;
        }
    });
}

#[test]
fn a_shared_file_is_larger_than_the_pool() {
    run(async {
        for seed in 0..2 {
            // Each benefactor holds 24 chunks, and each chunk lies at both.
            let pool = Pool::new(1, 2, 24);
            let client = pool.client(2).await;
            write(&client, "file", b"").await.unwrap();
            let cells = Cells { size: 50 * MIB, cell: 700_000 + usize::try_from(seed).unwrap(), writers: 3 };
            let accounts = write_together(&pool, cells, (60, seed), None).await;
            let found = read(&client, "file").await.unwrap();
            let content = padded(together(&accounts), found.len());
            same(&format!("run {seed}"), &found, &content);
            drained(&pool, &client, "file", &content).await;
            client.unlink("file").await.unwrap();
            is_empty(&pool, &client, 48).await;
        }
    });
}

#[test]
fn records_that_sessions_put_behind_each_other_are_all_there() {
    run(async {
        let pool = Pool::new(1, 3, 96);
        let client = pool.client(2).await;
        write(&client, "log", b"").await.unwrap();
        let (next, mut all) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for number in 0..4 {
            let (client, next) = (pool.client(2).await, Arc::clone(&next));
            all.spawn(async move {
                let (mut writer, mut random) = (client.append("log").await?, Random::from_seed(number));
                for _ in 0..50 {
                    let record = next.fetch_add(1, Ordering::Relaxed);
                    writer.write_at(record * 9001, &bytes(record, 9001)).await?;
                    if random.chance(0.3) {
                        writer.sync().await?;
                    }
                }
                writer.close().await
            });
        }
        while let Some(ended) = all.join_next().await {
            ended.unwrap().unwrap();
        }
        let content: Vec<u8> = (0..200).flat_map(|record| bytes(record, 9001)).collect();
        same("all records", &read(&client, "log").await.unwrap(), &content);
        drained(&pool, &client, "log", &content).await;
    });
}

#[test]
fn of_bytes_that_two_sessions_write_the_later_commit_counts() {
    run(async {
        // No warden looks, so that what a writer has seen is not over before it looks again: then it would look by itself.
        let pool = Pool::swept(1, 2, 48, LONG);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        write(&one, "file", b"...............").await.unwrap();
        let (mut a, mut b) = (one.append("file").await.unwrap(), other.append("file").await.unwrap());
        a.write_at(0, b"aaaaaaaaaa").await.unwrap();
        b.write_at(5, b"bbbbbb").await.unwrap();
        b.sync().await.unwrap();
        a.sync().await.unwrap();
        assert_eq!(read(&one, "file").await.unwrap(), b"aaaaaaaaaab....");
        assert_eq!(&b.read_at(0, 15).await.unwrap()[..], b".....bbbbbb....", "until it looks again");
        b.refresh().await.unwrap();
        assert_eq!(&b.read_at(0, 15).await.unwrap()[..], b"aaaaaaaaaab....");
        b.write_at(5, b"BB").await.unwrap();
        b.close().await.unwrap();
        assert_eq!(read(&one, "file").await.unwrap(), b"aaaaaBBaaab....");
        a.refresh().await.unwrap();
        a.write_at(14, b"end").await.unwrap();
        a.close().await.unwrap();
        assert_eq!(read(&one, "file").await.unwrap(), b"aaaaaBBaaab...end");
    });
}

#[test]
fn a_cut_comes_before_what_others_commit_afterwards() {
    run(async {
        let pool = Pool::new(2, 2, 48);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        let old = bytes(1, 3 * MIB);
        for (name, drained_first) in [("here", false), ("drained", true)] {
            // Opened to be rewritten; another session opens it before anything is committed.
            write(&one, name, &old).await.unwrap();
            if drained_first {
                one.wait_drained(name, LONG).await.unwrap();
            }
            let inode = one.stat(name).await.unwrap().inode;
            let mut a = one.rewrite_node(inode, name).await.unwrap();
            a.write(b"anew").await.unwrap();
            same("as long as nobody else writes it", &read(&other, name).await.unwrap(), &old);
            let mut b = other.append(name).await.unwrap();
            assert_eq!(b.size(), 0);
            b.write_at(MIB as u64, b"theirs").await.unwrap();
            b.sync().await.unwrap();
            a.sync().await.unwrap();
            let mut content = b"anew".to_vec();
            content.resize(MIB, 0);
            content.extend_from_slice(b"theirs");
            same("both", &read(&other, name).await.unwrap(), &content);
            // Cut off in a chunk in which another session has something that it has not synced.
            b.refresh().await.unwrap();
            b.write_at(MIB as u64 + 2, b"EIR").await.unwrap();
            a.set_size(2).await.unwrap();
            assert_eq!(read(&other, name).await.unwrap(), b"an");
            b.sync().await.unwrap();
            content.truncate(MIB + 5);
            content[2..MIB + 2].fill(0);
            content[MIB + 2..].copy_from_slice(b"EIR");
            same("upon the cut", &read(&one, name).await.unwrap(), &content);
            // What was synced before is cut off, known or not.
            a.set_size(1).await.unwrap();
            assert_eq!(read(&other, name).await.unwrap(), b"a");
            b.close().await.unwrap();
            a.set_size(5).await.unwrap();
            a.close().await.unwrap();
            assert_eq!(read(&other, name).await.unwrap(), b"a\0\0\0\0");
            drained(&pool, &one, name, b"a\0\0\0\0").await;
        }
    });
}

#[test]
fn a_file_is_as_long_as_it_was_cut_off_though_others_have_committed_less() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        let mut a = one.create("file").await.unwrap();
        a.sync().await.unwrap();
        let mut b = other.append("file").await.unwrap();
        a.write_at(5 * MIB as u64, b"cut off").await.unwrap();
        a.set_size(3 * MIB as u64 + 5).await.unwrap();
        b.write_at(0, b"theirs").await.unwrap();
        b.close().await.unwrap();
        a.close().await.unwrap();
        let mut content = b"theirs".to_vec();
        content.resize(3 * MIB + 5, 0);
        drained(&pool, &one, "file", &content).await;
    });
}

#[test]
fn who_rewrites_a_file_that_others_write_cuts_it_off_at_once() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let (one, other) = (pool.client(1).await, pool.client(1).await);
        write(&one, "file", &bytes(1, 2 * MIB)).await.unwrap();
        let inode = one.stat("file").await.unwrap().inode;
        let mut b = other.append("file").await.unwrap();
        b.write_at(10, b"before").await.unwrap();
        let mut a = one.rewrite_node(inode, "file").await.unwrap();
        assert_eq!(read(&other, "file").await.unwrap(), b"");
        b.sync().await.unwrap();
        let found = read(&one, "file").await.unwrap();
        assert_eq!(found, b"\0\0\0\0\0\0\0\0\0\0before");
        a.write(b"a").await.unwrap();
        a.close().await.unwrap();
        b.close().await.unwrap();
        drained(&pool, &one, "file", b"a\0\0\0\0\0\0\0\0\0before").await;
        // Of one that dies before it has committed the file stays as it was.
        let dying = pool.client(1).await;
        let mut writer = dying.rewrite_node(inode, "file").await.unwrap();
        writer.write(b"never").await.unwrap();
        drop(writer);
        dying.end().await.unwrap();
        let mut b = other.append("file").await.unwrap();
        b.write_at(0, b"A").await.unwrap();
        b.close().await.unwrap();
        drained(&pool, &one, "file", b"A\0\0\0\0\0\0\0\0\0before").await;
    });
}

/// All rewrite one file and write their own parts: whoever cuts it off last, nothing is a mixture with what was there before.
#[test]
fn ranks_that_all_truncate_a_file_and_meet_have_all_that_they_write_then() {
    run(async {
        for seed in 0..3 {
            let pool = Pool::new(1, 3, 96);
            let client = pool.client(2).await;
            write(&client, "file", &bytes(99, 4 * MIB)).await.unwrap();
            let inode = client.stat("file").await.unwrap().inode;
            let (meet, mut all) = (Arc::new(Barrier::new(5)), JoinSet::new());
            for rank in 0..5_u64 {
                let (client, meet) = (pool.client(2).await, Arc::clone(&meet));
                all.spawn(async move {
                    let mut writer = client.rewrite_node(inode, "file").await?;
                    meet.wait().await;
                    for block in 0..10 {
                        let number = block * 5 + rank;
                        writer.write_at(number * 60_000, &bytes(seed * 1000 + number, 60_000)).await?;
                    }
                    writer.close().await
                });
            }
            while let Some(ended) = all.join_next().await {
                ended.unwrap().unwrap();
            }
            let content: Vec<u8> = (0..50).flat_map(|number| bytes(seed * 1000 + number, 60_000)).collect();
            same(&format!("run {seed}"), &read(&client, "file").await.unwrap(), &content);
            drained(&pool, &client, "file", &content).await;
        }
    });
}

#[test]
#[allow(clippy::print_stdout, reason = "the rates are printed")]
fn sixteen_sessions_that_sync_one_small_file_at_the_same_time_all_come_through() {
    const SYNCS: usize = 6;
    run(async {
        for sessions in [1, 4, 16] {
            let pool = Pool::new(1, 3, 96);
            let client = pool.client(2).await;
            write(&client, "file", b"").await.unwrap();
            let (meet, mut all) = (Arc::new(Barrier::new(sessions + 1)), JoinSet::new());
            for number in 0..sessions {
                let (client, meet) = (pool.client(2).await, Arc::clone(&meet));
                all.spawn(async move {
                    let mut writer = client.append("file").await?;
                    meet.wait().await;
                    for sync in 0..SYNCS {
                        let at = (sync * sessions + number) * 100;
                        writer.write_at(at as u64, &bytes(at as u64, 100)).await?;
                        writer.sync().await?;
                    }
                    writer.close().await
                });
            }
            meet.wait().await;
            let began = Instant::now();
            while let Some(ended) = all.join_next().await {
                ended.unwrap().unwrap();
            }
            let commits = sessions * SYNCS;
            let rate = commits as f64 / began.elapsed().as_secs_f64();
            println!("{sessions} sessions: {commits} commits, {rate:.0} a second");
            let content: Vec<u8> = (0..commits).flat_map(|at| bytes(at as u64 * 100, 100)).collect();
            same("all of it", &read(&client, "file").await.unwrap(), &content);
        }
    });
}

#[test]
fn a_writer_that_could_not_catch_up_is_as_long_as_what_it_has_written() {
    run(async {
        let mut pool = Pool::new(1, 2, 48);
        let client = pool.client(1).await;
        write(&client, "file", b"ten bytes.").await.unwrap();
        let mut config = pool.config(1);
        config.timeout = Duration::from_secs(2);
        let mut writer = pool.client_of(config).await.append("file").await.unwrap();
        writer.write_at(3, b"x").await.unwrap();
        writer.write_at(3 * MIB as u64, b"end").await.unwrap();
        let mut other = client.append("file").await.unwrap();
        other.write_at(0, b"y").await.unwrap();
        other.sync().await.unwrap();
        // What lies between the bytes that were written here nobody has any more.
        pool.benefactors.iter_mut().for_each(Process::kill);
        writer.refresh().await.unwrap_err();
        assert_eq!(writer.size(), 3 * MIB as u64 + 3);
    });
}
