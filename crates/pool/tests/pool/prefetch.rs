//! What the target alone has is brought back into the pool.

use std::os::unix::fs::MetadataExt;

use surgetank_pool::client::PoolClient;
use surgetank_pool_core::meta::FileState;

use crate::support::{LONG, MIB, Pool, append, bytes, drained, has_free, read, run, same, until, write};

/// Fills the pool until a file is at the target alone, and empties it again.
async fn evicted(client: &PoolClient, path: &str) {
    let mut fillers = Vec::new();
    while client.stat(path).await.unwrap().state != Some(FileState::Evicted) {
        assert!(fillers.len() < 100, "it never leaves the pool");
        let filler = format!("filler{}", fillers.len());
        write(client, &filler, &bytes(1, 8 * MIB)).await.unwrap();
        client.wait_drained(&filler, LONG).await.unwrap();
        fillers.push(filler);
    }
    for filler in fillers {
        client.unlink(&filler).await.unwrap();
    }
    has_free(client, 48).await;
}

#[test]
fn what_is_brought_back_is_read_without_the_target_which_hears_nothing_of_it() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let client = pool.client(2).await;
        let content = bytes(1, 5 * MIB + 17);
        write(&client, "file", &content).await.unwrap();
        drained(&pool, &client, "file", &content).await;
        evicted(&client, "file").await;
        let (before, at_target) = (client.stat("file").await.unwrap(), pool.target().join("file"));
        let number = std::fs::metadata(&at_target).unwrap().ino();
        assert!(client.prefetch("file").await.unwrap());
        assert!(!client.prefetch("file").await.unwrap(), "it is there already");
        let after = client.stat("file").await.unwrap();
        assert_eq!(after.state, Some(FileState::Drained));
        assert_eq!((after.size, after.times), (before.size, before.times));
        assert_eq!(client.status().await.unwrap().journal, 0);
        assert_eq!(std::fs::metadata(&at_target).unwrap().ino(), number);
        // The target is not asked.
        let away = pool.directory.path().join("away");
        std::fs::rename(pool.target(), &away).unwrap();
        same("file", &read(&client, "file").await.unwrap(), &content);
        std::fs::rename(&away, pool.target()).unwrap();
        // It is written and drained as any other.
        append(&client, "file", b"more").await;
        until("the target has it", async || client.status().await.unwrap().journal == 0).await;
        drained(&pool, &client, "file", &[&content[..], b"more"].concat()).await;
    });
}

#[test]
fn who_writes_a_file_that_is_brought_back_loses_nothing() {
    run(async {
        let pool = Pool::new(1, 2, 24);
        let (client, other) = (pool.client(1).await, pool.client(1).await);
        let mut content = bytes(1, 5 * MIB + 17);
        write(&client, "file", &content).await.unwrap();
        drained(&pool, &client, "file", &content).await;
        evicted(&client, "file").await;
        let mut writer = other.append("file").await.unwrap();
        writer.write_at(MIB as u64 + 3, b"written meanwhile").await.unwrap();
        writer.sync().await.unwrap();
        content[MIB + 3..][..17].copy_from_slice(b"written meanwhile");
        assert!(!client.prefetch("file").await.unwrap(), "it is not only at the target");
        same("file", &read(&client, "file").await.unwrap(), &content);
        writer.close().await.unwrap();
        until("the target has it", async || client.status().await.unwrap().journal == 0).await;
        drained(&pool, &client, "file", &content).await;
        // One that is open, and in which nothing was written yet.
        evicted(&client, "file").await;
        let mut writer = other.append("file").await.unwrap();
        assert!(!client.prefetch("file").await.unwrap(), "somebody else may write it");
        writer.write_at(7, b"later").await.unwrap();
        content[7..][..5].copy_from_slice(b"later");
        writer.close().await.unwrap();
        until("the target has it", async || client.status().await.unwrap().journal == 0).await;
        drained(&pool, &client, "file", &content).await;
    });
}
