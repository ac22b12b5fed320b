//! Files that are removed while their target has no room for them.

use std::path::Path;

use crate::support::{MIB, Pool, Small, bytes, drained, free, has_free, run, stands_still, until, write};

/// What lies in a directory of the target, but for its own.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != ".surgetank");
    names.sort();
    names
}

#[test]
fn what_was_removed_before_a_full_target_has_it_holds_up_nothing_and_keeps_no_room() {
    run(async {
        let mut pool = Pool::new(1, 2, 64);
        let Some(_small) = Small::mount(&pool.target(), "size=8m") else { return };
        let client = pool.client(1).await;
        let all = free(&client.status().await.unwrap());
        // The first ones of this publisher, so that it cannot know what a predecessor has done; the next one goes to another publisher; and of
        // the last one the target has an early version.
        write(&client, "first", &bytes(1, 20 * MIB)).await.unwrap();
        write(&client, "beside", &bytes(6, 20 * MIB)).await.unwrap();
        stands_still(&client).await;
        client.unlink("first").await.unwrap();
        client.unlink("beside").await.unwrap();
        write(&client, "old", &bytes(2, MIB)).await.unwrap();
        drained(&pool, &client, "old", &bytes(2, MIB)).await;
        write(&client, "second", &bytes(3, 20 * MIB)).await.unwrap();
        stands_still(&client).await;
        pool.restart_manager(0);
        client.unlink("second").await.unwrap();
        let mut writer = client.append("old").await.unwrap();
        writer.write(&bytes(4, 20 * MIB)).await.unwrap();
        writer.close().await.unwrap();
        stands_still(&client).await;
        assert_eq!(names(&pool.target()), ["old"], "its early version stays as long as there is a file");
        client.unlink("old").await.unwrap();
        write(&client, "last", &bytes(5, 2 * MIB)).await.unwrap();
        drained(&pool, &client, "last", &bytes(5, 2 * MIB)).await;
        assert_eq!(names(&pool.target()), ["last"]);
        client.unlink("last").await.unwrap();
        until("nothing waits", async || client.status().await.unwrap().journal == 0).await;
        has_free(&client, all).await;
        until("nothing is left at the target", async || {
            names(&pool.target()).is_empty() && names(&pool.target().join(".surgetank")).is_empty()
        })
        .await;
    });
}

#[test]
fn a_full_target_keeps_the_checkpoint_that_it_has_until_the_next_one_is_there() {
    run(async {
        let pool = Pool::new(1, 2, 64);
        let Some(_small) = Small::mount(&pool.target(), "size=8m") else { return };
        let client = pool.client(1).await;
        write(&client, "c0", &bytes(1, MIB)).await.unwrap();
        drained(&pool, &client, "c0", &bytes(1, MIB)).await;
        // A program keeps two checkpoints, and the target has room for neither of those that follow.
        write(&client, "c1", &bytes(2, 20 * MIB)).await.unwrap();
        client.unlink("c0").await.unwrap();
        write(&client, "c2", &bytes(3, 12 * MIB)).await.unwrap();
        client.unlink("c1").await.unwrap();
        stands_still(&client).await;
        for _ in 0..30 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            assert_eq!(names(&pool.target()), ["c0"], "it is the only whole one");
        }
        Small::remount(&pool.target(), "size=64m");
        drained(&pool, &client, "c2", &bytes(3, 12 * MIB)).await;
        until("the others are gone", async || names(&pool.target()) == ["c2"]).await;
    });
}
