//! Lives of a pool of one machine, one after the other, with SSD directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{LONG, MIB, bytes, read, run, same, until, write};
use surgetank_model::Bytes;
use surgetank_pool::client::{self, Error, PoolClient};
use surgetank_pool::local::{self, Left, Local, Undrained};
use surgetank_pool::manager::State;
use surgetank_pool_core::meta::{Durability, FileState};
use surgetank_pool_core::placement::Media;
use tempfile::TempDir;

/// The directories of a pool, and files that it was given.
struct Place {
    directory: TempDir,
    written: BTreeMap<String, Vec<u8>>,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap(), written: BTreeMap::new() };
        std::fs::create_dir(place.at("target")).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, benefactors: u32, ssd_mib: u64) -> local::Config {
        let memory = Bytes::new(24 * MIB as u64);
        let config = local::Config::of_memory(self.at("pool"), "127.0.0.1:0", benefactors, memory);
        local::Config { ssd: Bytes::new(ssd_mib << 20), ..config }
    }

    fn start(&self, config: &local::Config) -> Local {
        let pool = Local::start(config).unwrap();
        pool.wait_joined(config.benefactors as usize, LONG).unwrap();
        pool
    }

    /// The sentence with which a pool does not start.
    fn refused(&self, config: &local::Config) -> String {
        Local::start(config).err().unwrap().to_string()
    }

    async fn client(&self, pool: &Local, mount: &str, copies: u8, media: Media) -> PoolClient {
        let mut config = client::Config::new(vec![pool.address().to_owned()], pool.access().clone(), mount);
        config.make = Some((self.at("target"), Durability::Copies { copies, media }));
        config.timeout = LONG;
        PoolClient::begin(config).await.unwrap()
    }

    /// Nothing drains as long as this is there.
    fn stick(&self) -> PathBuf {
        let stuck = self.at("target/.surgetank");
        std::fs::write(&stuck, "in the way").unwrap();
        stuck
    }

    fn named(&self, files: &[Undrained]) -> Vec<String> {
        files.iter().map(|file| file.path.strip_prefix(self.at("target")).unwrap().display().to_string()).collect()
    }

    async fn read_all(&self, client: &PoolClient, of: &[String]) {
        for name in of {
            same(name, &read(client, name).await.unwrap(), &self.written[name]);
        }
    }
}

fn is_in(directory: &Path) -> Vec<(String, u64)> {
    let files = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut files: Vec<_> =
        files.map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len())).collect();
    files.sort();
    files
}

#[test]
fn what_is_on_ssd_is_served_and_drained_by_the_next_life_and_the_rest_is_named() {
    let mut place = Place::new();
    let stuck = place.stick();
    let pool = place.start(&place.config(3, 320));
    assert_eq!(*pool.found(), Left::default());
    run(async {
        let client = place.client(&pool, "scratch", 2, Media::Ssd).await;
        for seed in 0..4 {
            let (name, content) = (format!("synced{seed}"), bytes(seed, 7 * MIB + 1000 * seed as usize));
            write(&client, &name, &content).await.unwrap();
            place.written.insert(name, content);
        }
        let mut torn = client.create("torn").await.unwrap();
        place.written.insert("torn".to_owned(), bytes(9, 3 * MIB));
        torn.write(&place.written["torn"]).await.unwrap();
        torn.sync().await.unwrap();
        client.end().await.unwrap();
        // What nobody has asked to be on SSD may be there or not.
        let client = place.client(&pool, "other", 1, Media::Any).await;
        for seed in 10..16 {
            let (name, content) = (format!("quick{seed}"), bytes(seed, MIB + 7));
            write(&client, &name, &content).await.unwrap();
            place.written.insert(name, content);
        }
    });
    let left = pool.end().unwrap();
    let (lost, on_ssd) = (place.named(&left.lost), place.named(&left.on_ssd));
    assert!(lost.iter().all(|name| name.starts_with("quick")), "{lost:?}");
    assert_eq!(lost.len() + on_ssd.len(), place.written.len());
    let all = [&lost[..], &on_ssd[..]].concat();
    assert!(place.written.keys().all(|name| all.contains(name)), "{all:?}");
    let mount = |name: &str| if name.starts_with("quick") { "other" } else { "scratch" };

    // Fewer benefactors with less SSD.
    let pool = place.start(&place.config(2, 256));
    assert_eq!(*pool.found(), left, "nothing happened in between");
    assert_eq!(pool.remarks(), ["benefactor 2 lends no more: what its SSD has is drained, and it takes nothing new"]);
    run(async {
        let status = place.client(&pool, "scratch", 2, Media::Ssd).await.status().await.unwrap();
        until("the third has joined", async || {
            let states = place.client(&pool, "scratch", 2, Media::Ssd).await.status().await.unwrap().states;
            states.iter().map(|(_, state, _)| *state).eq([State::Joined, State::Joined, State::Leaving])
        })
        .await;
        assert!(status.states[0].0.ssd.get() >= 320 << 20, "what was there stays");
        for name in &on_ssd {
            let client = place.client(
                &pool,
                mount(name),
                if mount(name) == "other" { 1 } else { 2 },
                match mount(name) {
                    "other" => Media::Any,
                    _ => Media::Ssd,
                },
            );
            place.read_all(&client.await, std::slice::from_ref(name)).await;
        }
        // Nothing new goes to who leaves.
        let client = place.client(&pool, "scratch", 2, Media::Ssd).await;
        write(&client, "new", &bytes(20, 5 * MIB)).await.unwrap();
        let used: Vec<u64> = client.status().await.unwrap().states.iter().map(|(_, _, used)| *used).collect();
        assert!(used[0] >= 5 << 20 && used[1] >= 5 << 20, "{used:?}");
        place.written.insert("new".to_owned(), bytes(20, 5 * MIB));
    });
    let left = pool.end().unwrap();
    let (now_lost, now) = ([&left.lost[..], &left.lost_before[..]].concat(), place.named(&left.on_ssd));
    assert_eq!(place.named(&now_lost).len(), lost.len(), "nothing more is lost");
    assert!(now.contains(&"new".to_owned()) && on_ssd.iter().all(|name| now.contains(name)), "{now:?}");

    // One benefactor, which lends no SSD; and the target goes on.
    std::fs::remove_file(stuck).unwrap();
    let pool = place.start(&place.config(1, 0));
    run(async {
        for (name, content) in &place.written {
            let (copies, media) = if mount(name) == "other" { (1, Media::Any) } else { (2, Media::Ssd) };
            let client = place.client(&pool, mount(name), copies, media).await;
            if lost.contains(name) {
                until("the lost one is told", async || {
                    client.stat(name).await.unwrap().state == Some(FileState::Failed)
                })
                .await;
                let read = read(&client, name).await;
                assert!(matches!(read, Err(Error::Unreadable { .. })), "{name}");
                continue;
            }
            client.wait_drained(name, LONG).await.unwrap();
            same(name, &std::fs::read(place.at("target").join(name)).unwrap(), content);
        }
    });
    let left = pool.end().unwrap();
    assert_eq!((place.named(&left.lost), place.named(&left.on_ssd)), (vec![], vec![]));
    assert_eq!(place.named(&left.lost_before), lost);
    let pool = place.start(&place.config(1, 0));
    let over = |number: u32| {
        let path = place.at("pool/ssd").join(number.to_string());
        format!("SSD directory {}: nothing on it is needed any more: remove it", path.display())
    };
    assert_eq!(pool.remarks(), [over(1), over(2)]);
}

#[test]
fn an_ssd_directory_that_is_not_the_pools_is_told_in_a_sentence_and_left_alone() {
    let mut place = Place::new();
    place.stick();
    let mut config = place.config(1, 256);
    config.ssd_directory = Some(place.at("nvme"));
    let pool = place.start(&config);
    run(async {
        let client = place.client(&pool, "scratch", 1, Media::Ssd).await;
        write(&client, "file", &bytes(1, 3 * MIB)).await.unwrap();
        place.written.insert("file".to_owned(), bytes(1, 3 * MIB));
    });
    drop(pool);
    let before = is_in(&place.at("nvme/0"));
    let shown = |name: &str| place.at(name).display().to_string();
    let refused = |change: &dyn Fn(&mut local::Config)| {
        let mut config = config.clone();
        change(&mut config);
        place.refused(&config)
    };
    // Another pool, which would take more room.
    let other = refused(&|config| (config.directory, config.ssd) = (place.at("other"), Bytes::new(512 << 20)));
    let expected = format!(
        "SSD directory {}: another pool has its files there: name the --directory of that pool, or another --ssd-directory",
        shown("nvme/0")
    );
    assert_eq!(other, expected);
    // That of another benefactor of the same pool.
    std::fs::rename(place.at("nvme/0"), place.at("nvme/1")).unwrap();
    let moved = refused(&|config| config.benefactors = 2);
    let expected =
        format!("SSD directory {}: it is that of benefactor 0: rename the directories as they were", shown("nvme/1"));
    assert_eq!(moved, expected);
    std::fs::rename(place.at("nvme/1"), place.at("nvme/0")).unwrap();
    // The directory is not there: it may not be mounted yet.
    for ssd in [0, 256 << 20] {
        let gone = refused(&|config| (config.ssd_directory, config.ssd) = (Some(place.at("none")), Bytes::new(ssd)));
        let expected = format!(
            "a file that is not drained may be on the SSDs that benefactor 0 lent when this pool ran last, and their directories \
             are not below {}: mount them there or name another --ssd-directory, or accept the loss of the files with --forget-ssd",
            shown("none")
        );
        assert_eq!(gone, expected);
    }
    // No directory, and no room.
    std::fs::write(place.at("plain"), "").unwrap();
    let plain = refused(&|config| config.ssd_directory = Some(place.at("plain")));
    assert!(plain.starts_with(&format!("SSD directory {}: ", shown("plain"))), "{plain}");
    let full = refused(&|config| config.ssd = Bytes::new(1 << 60));
    let expected =
        format!("SSD directory {}: there is no room for 1048576 TiB: lend less, or make room", shown("nvme/0"));
    assert_eq!(full, expected);
    let little = refused(&|config| config.ssd = Bytes::new(100 << 20));
    assert_eq!(little, "100 MiB of SSD make no 4 segments of 64 MiB: lend at least 256 MiB, or none");
    assert_eq!(is_in(&place.at("nvme/0")), before);
    // It may be moved.
    std::fs::rename(place.at("nvme"), place.at("moved")).unwrap();
    config.ssd_directory = Some(place.at("moved"));
    let pool = place.start(&config);
    assert_eq!(place.named(&pool.found().on_ssd), ["file"]);
    run(async {
        let client = place.client(&pool, "scratch", 1, Media::Ssd).await;
        place.read_all(&client, &["file".to_owned()]).await;
    });
    drop(pool);
    // Its loss is accepted.
    (config.ssd_directory, config.forget_ssd) = (Some(place.at("none")), true);
    let pool = place.start(&config);
    assert_eq!(place.named(&pool.found().lost), ["file"]);
}
