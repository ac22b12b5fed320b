//! What others put at a target stays as they left it, whatever the pool does there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::{LONG, MIB, Pool, bytes, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::{Attributes, Path};
use surgetank_pool_core::meta::{FileState, Name};

/// Everything that the target is to see, it has seen.
async fn settled(client: &PoolClient) {
    until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
}

async fn drained(client: &PoolClient, path: &str, content: &[u8]) {
    write(client, path, content).await.unwrap();
    client.wait_drained(path, LONG).await.unwrap();
}

async fn state(client: &PoolClient, path: &str) -> Option<FileState> {
    client.stat(path).await.unwrap().state
}

/// Writes a file anew.
async fn rewrite(client: &PoolClient, path: &str, content: &[u8]) -> Result<(), Error> {
    let name = Name::new(path.rsplit('/').next().unwrap_or_default().as_bytes()).unwrap();
    let inode = match client.stat(path).await? {
        stat if stat.at_target => client.import(client.root(), &Path(vec![name]), None, path).await?.inode,
        stat => stat.inode,
    };
    let mut writer = client.rewrite_node(inode, path).await?;
    writer.write(content).await?;
    writer.close().await
}

#[test]
fn what_others_put_at_the_target_is_never_overwritten_moved_or_removed() {
    run(async {
        let pool = Pool::new(1, 2, 48);
        let client = pool.client(2).await;
        let at = |name: &str| pool.target().join(name);
        let theirs = |name: &str| std::fs::write(at(name), format!("theirs: {name}")).unwrap();
        let are_theirs =
            |name: &str| same(name, &std::fs::read(at(name)).unwrap(), format!("theirs: {name}").as_bytes());
        let own = bytes(1, MIB + 5);

        // A name that is taken while the file is written.
        let mut writer = client.create("taken").await.unwrap();
        theirs("taken");
        writer.write(&own).await.unwrap();
        writer.close().await.unwrap();
        settled(&client).await;
        assert_eq!(state(&client, "taken").await, Some(FileState::Conflict));
        let waited = client.wait_drained("taken", LONG).await;
        assert!(matches!(waited, Err(Error::NotDrained(..))), "{waited:?}");
        are_theirs("taken");
        same("of the pool", &read(&client, "taken").await.unwrap(), &own);
        // Once theirs is away, what is written next goes there.
        std::fs::rename(at("taken"), at("taken.theirs")).unwrap();
        rewrite(&client, "taken", &bytes(2, 300)).await.unwrap();
        client.wait_drained("taken", LONG).await.unwrap();
        same("written again", &std::fs::read(at("taken")).unwrap(), &bytes(2, 300));

        // What the pool put there itself it replaces, as often as it likes.
        drained(&client, "own", &own).await;
        for seed in 3..6 {
            rewrite(&client, "own", &bytes(seed, MIB)).await.unwrap();
            client.wait_drained("own", LONG).await.unwrap();
            same("own", &std::fs::read(at("own")).unwrap(), &bytes(seed, MIB));
        }
        // Unless somebody has changed it, or put another there that looks like it.
        theirs("own");
        rewrite(&client, "own", &own).await.unwrap();
        settled(&client).await;
        assert_eq!(state(&client, "own").await, Some(FileState::Conflict));
        are_theirs("own");
        drained(&client, "like", &[b'x'; 12]).await;
        let times = std::fs::metadata(at("like")).unwrap().modified().unwrap();
        std::fs::write(at("other"), "theirs: like").unwrap();
        std::fs::File::options().write(true).open(at("other")).unwrap().set_modified(times).unwrap();
        std::fs::rename(at("other"), at("like")).unwrap();
        rewrite(&client, "like", &own).await.unwrap();
        settled(&client).await;
        assert_eq!(state(&client, "like").await, Some(FileState::Conflict));
        are_theirs("like");
        // Where somebody has removed it, nothing is overwritten.
        drained(&client, "removed", &own).await;
        std::fs::remove_file(at("removed")).unwrap();
        rewrite(&client, "removed", &bytes(7, 99)).await.unwrap();
        client.wait_drained("removed", LONG).await.unwrap();
        same("there again", &std::fs::read(at("removed")).unwrap(), &bytes(7, 99));

        // A rename onto theirs, and one of what is theirs by now.
        drained(&client, "tmp", &own).await;
        drained(&client, "final", &own).await;
        theirs("final");
        client.rename("tmp", "final").await.unwrap();
        settled(&client).await;
        assert_eq!(state(&client, "final").await, Some(FileState::Conflict));
        are_theirs("final");
        same("where it was", &std::fs::read(at("tmp")).unwrap(), &own);
        drained(&client, "from", &own).await;
        drained(&client, "to", &own).await;
        theirs("from");
        client.rename("from", "to").await.unwrap();
        settled(&client).await;
        are_theirs("from");
        same("not replaced", &std::fs::read(at("to")).unwrap(), &own);
        assert_eq!(state(&client, "to").await, Some(FileState::Conflict));
        // A rename of the pool's own is none of theirs.
        drained(&client, "one", &own).await;
        drained(&client, "two", &bytes(8, 50)).await;
        client.rename("one", "two").await.unwrap();
        rewrite(&client, "two", &bytes(9, 70)).await.unwrap();
        client.wait_drained("two", LONG).await.unwrap();
        same("moved and rewritten", &std::fs::read(at("two")).unwrap(), &bytes(9, 70));

        // Unlinks, attributes, directories and links.
        drained(&client, "gone", &own).await;
        theirs("gone");
        let inode = client.stat("gone").await.unwrap().inode;
        let attributes = Attributes { mode: Some(0o600), ..Attributes::default() };
        std::fs::set_permissions(at("gone"), std::fs::Permissions::from_mode(0o640)).unwrap();
        client.set_attributes(inode, attributes, "gone").await.unwrap();
        settled(&client).await;
        assert_eq!(std::fs::metadata(at("gone")).unwrap().permissions().mode() & 0o777, 0o640);
        client.unlink("gone").await.unwrap();
        settled(&client).await;
        are_theirs("gone");
        drained(&client, "changed", &own).await;
        let inode = client.stat("changed").await.unwrap().inode;
        client
            .set_attributes(inode, Attributes { modified: Some(5_000_000_000), ..attributes }, "changed")
            .await
            .unwrap();
        client.unlink("changed").await.unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        drained(&client, "directory/own", &own).await;
        let mut writer = client.create("directory/taken").await.unwrap();
        theirs("directory/taken");
        writer.write(&own).await.unwrap();
        writer.close().await.unwrap();
        client.rename("directory", "renamed").await.unwrap();
        rewrite(&client, "renamed/own", &bytes(10, 10)).await.unwrap();
        client.wait_drained("renamed/own", LONG).await.unwrap();
        same("below", &std::fs::read(at("renamed/own")).unwrap(), &bytes(10, 10));
        client.unlink("renamed/own").await.unwrap();
        client.unlink("renamed/taken").await.unwrap();
        // Once the target has kept theirs, it is seen again.
        let removed = client.remove_directory("renamed").await;
        assert!(removed.is_ok() || matches!(removed, Err(Error::Refused(_, Refusal::NotEmpty))), "{removed:?}");
        let link = (client.root(), Name::new(b"link").unwrap());
        client.make_link_at(link, b"somewhere".to_vec(), "link", (0o777, 0, 0)).await.unwrap();
        settled(&client).await;
        std::fs::remove_file(at("link")).unwrap();
        theirs("link");
        client.unlink("link").await.unwrap();
        settled(&client).await;
        assert!(!at("changed").exists(), "its own, with other attributes");
        assert_eq!(std::fs::read(at("renamed/taken")).unwrap(), b"theirs: directory/taken");
        assert!(!at("renamed/own").exists());
        are_theirs("link");
        client.end().await.unwrap();
    });
}

/// What others have at the target, and what the pool has been given.
struct World {
    pool: Pool,
    random: Random,
    theirs: BTreeMap<&'static str, Vec<u8>>,
    /// Names at which somebody else has changed something since the pool was there last.
    touched: BTreeSet<&'static str>,
    own: BTreeMap<&'static str, Vec<u8>>,
    seeds: u64,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

impl World {
    fn name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn content(&mut self) -> Vec<u8> {
        self.seeds += 1;
        bytes(self.seeds, 1 + self.random.below(3 * MIB as u64) as usize)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.pool.target().join(name)
    }

    /// Somebody else works at the target.
    fn others(&mut self) {
        let (name, content) = (self.name(), self.content());
        let at = self.at(name);
        match self.random.below(4) {
            0 => {
                let _ = std::fs::remove_file(at);
                self.theirs.remove(name);
            }
            1 => {
                std::fs::write(self.at("other"), &content).unwrap();
                std::fs::rename(self.at("other"), at).unwrap();
                self.theirs.insert(name, content);
            }
            _ => {
                std::fs::write(at, &content).unwrap();
                self.theirs.insert(name, content);
            }
        }
        self.touched.insert(name);
    }

    /// A program works in the pool. What a conflict makes unreadable cannot be written.
    async fn program(&mut self, client: &PoolClient) {
        let (name, other) = (self.name(), self.name());
        match self.random.below(6) {
            0 if self.own.contains_key(name) => {
                client.unlink(name).await.unwrap();
                self.own.remove(name);
            }
            1 if name != other && self.own.contains_key(name) && !self.theirs.contains_key(other) => {
                client.rename(name, other).await.unwrap();
                let content = self.own.remove(name).unwrap();
                self.own.insert(other, content);
                self.touched.remove(other);
            }
            _ => {
                let content = self.content();
                match self.own.contains_key(name) {
                    true => rewrite(client, name, &content).await.unwrap(),
                    // What is theirs and is seen, a program may overwrite.
                    false => {
                        self.theirs.remove(name);
                        match write(client, name, &content).await {
                            Err(Error::Refused(_, Refusal::Exists)) => rewrite(client, name, &content).await.unwrap(),
                            other => other.unwrap(),
                        }
                    }
                }
                self.own.insert(name, content);
                self.touched.remove(name);
            }
        }
    }
}

#[test]
fn others_keep_their_files_while_publishers_end_in_the_middle() {
    run(async {
        let times = std::env::var("SURGETANK_TIMES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
        let mut world = World {
            pool: Pool::new(1, 2, 96),
            random: Random::from_seed(7),
            theirs: BTreeMap::new(),
            touched: BTreeSet::new(),
            own: BTreeMap::new(),
            seeds: 100,
        };
        let client = world.pool.client(1).await;
        let (mut conflicts, mut drains) = (0, 0);
        for _ in 0..15 * times {
            // It is quiet at the target: who changes a file in the moment in which it is replaced is not protected.
            (0..world.random.below(3)).for_each(|_| world.others());
            for _ in 0..1 + world.random.below(4) {
                world.program(&client).await;
            }
            if world.random.below(3) > 0 {
                tokio::time::sleep(Duration::from_millis(world.random.below(60))).await;
                world.pool.restart_manager(0);
            }
            settled(&client).await;
            for (name, content) in &world.theirs {
                same(name, &std::fs::read(world.at(name)).unwrap_or_default(), content);
            }
            for (name, content) in &world.own {
                same(name, &read(&client, name).await.unwrap(), content);
                match state(&client, name).await {
                    Some(FileState::Conflict) => conflicts += 1,
                    Some(FileState::Drained | FileState::Evicted) if !world.touched.contains(name) => {
                        drains += 1;
                        same(name, &std::fs::read(world.at(name)).unwrap_or_default(), content);
                    }
                    _ => {}
                }
            }
        }
        assert!(conflicts > 5 && drains > 5, "{conflicts} conflicts, {drains} drains");
        client.end().await.unwrap();
    });
}
