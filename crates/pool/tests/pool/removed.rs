//! Files that are removed before their target has them.

use std::time::Duration;

use crate::support::{LONG, MIB, Pool, Small, bytes, drained, free, has_free, run, same, until, write};
use surgetank_pool::client::PoolClient;

/// Writes a file anew.
async fn rewrite(client: &PoolClient, path: &str, content: &[u8]) {
    let mut writer = client.rewrite_node(client.stat(path).await.unwrap().inode, path).await.unwrap();
    writer.write(content).await.unwrap();
    writer.close().await.unwrap();
}

/// All names at the target.
fn names(pool: &Pool) -> Vec<String> {
    let entries = std::fs::read_dir(pool.target()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_removed_before_its_target_has_it_leaves_its_room_at_once_and_never_comes_back() {
    run(async {
        for is_restarted in [false, true] {
            let mut pool = Pool::new(1, 2, 64);
            pool.session = LONG;
            pool.restart_manager(0);
            let Some(_small) = Small::mount(&pool.target(), "size=8m") else { return };
            let client = pool.client(2).await;
            write(&client, "old", &bytes(1, MIB)).await.unwrap();
            drained(&pool, &client, "old", &bytes(1, MIB)).await;
            let before = free(&client.status().await.unwrap());
            // It has no room there, and everything else waits behind it.
            write(&client, "large", &bytes(2, 20 * MIB)).await.unwrap();
            write(&client, "removed", &bytes(3, 9 * MIB)).await.unwrap();
            write(&client, "small", &bytes(4, MIB)).await.unwrap();
            rewrite(&client, "old", &bytes(5, 2 * MIB)).await;
            write(&client, "replaced", &bytes(6, 3 * MIB)).await.unwrap();
            write(&client, "new", &bytes(7, 2 * MIB)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            for path in ["removed", "small", "old"] {
                client.unlink(path).await.unwrap();
            }
            client.rename("new", "replaced").await.unwrap();
            if is_restarted {
                pool.restart_manager(0);
            }
            until("only what has a name has room", async || {
                let status = client.status().await.unwrap();
                free(&status) == before + 2 - 2 * (20 + 2) && status.files.iter().sum::<u64>() == 2
            })
            .await;
            assert_eq!(names(&pool), [".surgetank", "old"], "nothing passes what waits");
            let more =
                std::process::Command::new("mount").args(["-o", "remount,size=200m"]).arg(pool.target()).status();
            assert!(more.unwrap().success());
            until("the target has seen everything", async || {
                let names = names(&pool);
                assert!(names.iter().all(|name| name != "removed" && name != "small"), "it comes back: {names:?}");
                client.status().await.unwrap().journal == 0
            })
            .await;
            assert_eq!(names(&pool), [".surgetank", "large", "replaced"]);
            same("large", &std::fs::read(pool.target().join("large")).unwrap(), &bytes(2, 20 * MIB));
            same("replaced", &std::fs::read(pool.target().join("replaced")).unwrap(), &bytes(7, 2 * MIB));
            until("nothing is beside the names", async || {
                std::fs::read_dir(pool.target().join(".surgetank")).unwrap().count() == 0
            })
            .await;
            for path in ["large", "replaced"] {
                client.unlink(path).await.unwrap();
            }
            has_free(&client, before + 2).await;
        }
    });
}
