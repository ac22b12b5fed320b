//! Publishers whose attempts fail in the middle, and what comes late from benefactors that they have asked.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::support::held::Way;
use crate::support::{LONG, MIB, Pool, Small, bytes, drained, read, run, same, until, write};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use surgetank_pool::client::PoolClient;
use surgetank_pool_core::meta::{FileState, Name};

/// Runs a test whose processes may open no file against its permissions, as those of another user than root.
fn run_unprivileged<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    // Of this thread alone, and of those that it starts.
    let thread = std::thread::spawn(move || {
        if let Ok(mut sets) = capabilities(None) {
            sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, sets).expect("fewer are always allowed");
        }
        run(test());
    });
    thread.join().expect("the test passes");
}

async fn settled(client: &PoolClient) {
    until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
}

#[test]
fn a_publication_that_cannot_be_flushed_is_no_conflict_once_it_can() {
    run_unprivileged(async || {
        let pool = Pool::new(1, 2, 48);
        let client = pool.client(2).await;
        let at = |name: &str| pool.target().join(name);
        let flushes = |is_so: bool| {
            // Names can be changed in it, but it cannot be opened, which a flush takes.
            let mode = if is_so { 0o700 } else { 0o300 };
            std::fs::set_permissions(at("sub"), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        client.make_directory("sub").await.unwrap();
        for name in ["sub/first", "sub/moved", "sub/gone", "sub/also"] {
            write(&client, name, &bytes(1, MIB)).await.unwrap();
            client.wait_drained(name, LONG).await.unwrap();
        }
        let sub = client.stat("sub").await.unwrap().inode;
        let name = |name: &str| Name::new(name.as_bytes()).unwrap();
        // A new file, one that takes the place of its former version, and one with names here and elsewhere.
        let also = client.stat("sub/also").await.unwrap().inode;
        client.link_node(also, (client.root(), name("elsewhere")), "elsewhere").await.unwrap();
        let elsewhere = client.create("linked").await.unwrap();
        let linked = client.stat("linked").await.unwrap().inode;
        elsewhere.close().await.unwrap();
        client.link_node(linked, (sub, name("linked")), "sub/linked").await.unwrap();
        settled(&client).await;
        for (turn, path) in ["sub/new", "sub/first", "sub/also", "linked"].into_iter().enumerate() {
            let content = bytes(10 + turn as u64, 2 * MIB + 7);
            let mut writer = match path {
                "sub/new" => client.create(path).await.unwrap(),
                _ => client.rewrite_node(client.stat(path).await.unwrap().inode, path).await.unwrap(),
            };
            writer.write(&content).await.unwrap();
            let below = if path == "linked" { "sub/linked" } else { path };
            flushes(false);
            writer.close().await.unwrap();
            let has_it = || std::fs::metadata(at(below)).is_ok_and(|found| found.len() == content.len() as u64);
            until("it has its name", async || has_it()).await;
            // Some more attempts.
            tokio::time::sleep(Duration::from_secs(1)).await;
            flushes(true);
            drained(&pool, &client, path, &content).await;
            same(below, &std::fs::read(at(below)).unwrap(), &content);
        }
        // Whatever else is changed there.
        flushes(false);
        client.rename("sub/moved", "sub/there").await.unwrap();
        until("it is moved", async || !at("sub/moved").exists()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        flushes(true);
        settled(&client).await;
        assert_eq!(client.stat("sub/there").await.unwrap().state, Some(FileState::Drained));
        flushes(false);
        client.unlink("sub/gone").await.unwrap();
        client.make_link_at((sub, name("link")), b"there".to_vec(), "link", (0o777, 0, 0)).await.unwrap();
        until("it is gone", async || !at("sub/gone").exists()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        flushes(true);
        settled(&client).await;
        assert_eq!(std::fs::read_link(at("sub/link")).unwrap().to_str(), Some("there"));
        client.end().await.unwrap();
    });
}

#[test]
fn bytes_that_come_late_reach_no_draft_that_counts() {
    run(async {
        for first in [0, 2] {
            // Benefactors are not told for the length of the test what has left the pool, so that they can write it late.
            let mut pool = Pool::swept(1, 2, 24, LONG);
            let way = Way::begin().await;
            pool.advertised = vec![(0, way.address.clone())];
            pool.restart_benefactor(0);
            way.lead(&pool.benefactors[0].address);
            let client = pool.client(2).await;
            let mut content = bytes(1, 20 * MIB);
            let mut writer = client.create("file").await.unwrap();
            let inode = client.stat("file").await.unwrap().inode;
            way.hold(b"/.surgetank/draft.");
            writer.write(&content).await.unwrap();
            writer.sync().await.unwrap();
            until("it is in a draft", async || pool.present(inode).await == 0).await;
            assert!(way.has_held());
            let anew = bytes(2, 2 * MIB);
            let offset = first * MIB;
            content[offset..offset + anew.len()].copy_from_slice(&anew);
            writer.write_at(offset as u64, &anew).await.unwrap();
            writer.sync().await.unwrap();
            until("that is in a draft", async || pool.present(inode).await == 0).await;
            way.release().await;
            same("while it is open", &read(&client, "file").await.unwrap(), &content);
            writer.close().await.unwrap();
            drained(&pool, &client, "file", &content).await;
        }
    });
}

#[test]
fn a_request_that_comes_late_changes_nothing_that_is_published() {
    run(async {
        let mut pool = Pool::new(1, 2, 48);
        let way = Way::begin().await;
        pool.advertised = vec![(0, way.address.clone())];
        pool.restart_benefactor(0);
        way.lead(&pool.benefactors[0].address);
        let client = pool.client(2).await;
        let mut writer = client.create("file").await.unwrap();
        way.hold(b"/.surgetank/");
        let content = bytes(1, 8 * MIB);
        writer.write(&content).await.unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        assert!(way.has_held());
        way.release().await;
        let mut writer = client.append("file").await.unwrap();
        writer.write_at(3, b"more").await.unwrap();
        writer.close().await.unwrap();
        let content = [&content[..3], b"more", &content[7..]].concat();
        drained(&pool, &client, "file", &content).await;
    });
}

#[test]
fn a_version_of_which_a_group_is_lost_is_not_published_with_a_hole() {
    run(async {
        let mut pool = Pool::new(1, 1, 96);
        let client = pool.client(1).await;
        // The first group has 64 MiB.
        let content = bytes(1, 64 * MIB);
        write(&client, "file", &content).await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        assert_eq!(client.stat("file").await.unwrap().state, Some(FileState::Drained));
        let mut writer = client.append("file").await.unwrap();
        pool.start_benefactor();
        until("both are there", async || client.status().await.unwrap().benefactors.len() == 2).await;
        pool.benefactors[0].kill();
        until("one is left", async || client.status().await.unwrap().benefactors.len() == 1).await;
        writer.write_at((64 * MIB) as u64, b"the next group").await.unwrap();
        writer.sync().await.unwrap();
        std::fs::remove_file(pool.target().join("file")).unwrap();
        writer.close().await.unwrap();
        settled(&client).await;
        let state = client.stat("file").await.unwrap().state;
        assert!(matches!(state, Some(FileState::Conflict | FileState::Failed)), "{state:?}");
        assert!(!pool.target().join("file").exists(), "the first group is nowhere");
    });
}

#[test]
fn a_file_that_cannot_be_drained_early_has_one_draft() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let Some(_small) = Small::mount(&pool.target(), "size=26m") else { return };
        let client = pool.client(2).await;
        write(&client, "file", &bytes(1, 16 * MIB)).await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        let mut writer = client.append("file").await.unwrap();
        let mut content = bytes(2, 20 * MIB);
        let mut drafts = BTreeSet::new();
        let mut look = || {
            let found = std::fs::read_dir(pool.target().join(".surgetank")).unwrap();
            let names = found.flatten().map(|entry| entry.file_name().into_string().unwrap());
            drafts.extend(names.filter(|name| name.starts_with("draft.")));
            drafts.len()
        };
        let before = writer.version().0;
        writer.write_at(0, &content).await.unwrap();
        writer.sync().await.unwrap();
        // With little room it is committed on the way.
        let commits = usize::try_from(writer.version().0 - before).unwrap();
        // The target has no room for what the file rests on, nor for all that was written.
        for looks in 0..300_000 {
            if look() > 0 && looks >= 3000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let made = look();
        assert!((1..=commits).contains(&made), "{commits} commits, {drafts:?}");
        Small::remount(&pool.target(), "size=200m");
        writer.write(&bytes(3, 20 * MIB)).await.unwrap();
        content.extend(bytes(3, 20 * MIB));
        writer.sync().await.unwrap();
        same("while it is open", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
    });
}
