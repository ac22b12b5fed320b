//! Room that nobody needs any more is free again while its file is written and its session goes on.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{MIB, Pool, bytes, drained, has_free, run, until};
use surgetank_pool::client::{Config, Error};

#[test]
pub fn copies_of_what_has_left_the_pool_take_no_room_while_a_writer_waits_for_it() {
    run(async {
        let mut pool = Pool::new(1, 2, 24);
        // The writer alone makes copies again.
        pool.repair.at_once = 0;
        pool.restart_manager(0);
        let client = pool.client_of(pool.config(2)).await;
        let (target, away) = (pool.target(), pool.directory.path().join("away"));
        // One mount alone may have 22 of the 24.
        let content = bytes(1, 23 * MIB);
        let mut writer = client.create("file").await.unwrap();
        std::fs::rename(&target, &away).unwrap();
        writer.write(&content[..22 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        has_free(&client, 4).await;
        pool.restart_benefactor(1);
        let rest = content[22 * MIB..].to_vec();
        let writing = tokio::spawn(async move {
            writer.write(&rest).await.unwrap();
            writer.sync().await.unwrap();
            writer
        });
        until("all has two copies again, and there is no room", async || pool.alive(1).await.credits == 2).await;
        std::fs::rename(&away, &target).unwrap();
        writing.await.unwrap().close().await.unwrap();
        drained(&pool, &client, "file", &content).await;
        client.unlink("file").await.unwrap();
        has_free(&client, 48).await;
    });
}

#[test]
pub fn what_was_sealed_for_a_commit_that_failed_takes_no_room_while_its_session_goes_on() {
    run(async {
        let mut pool = Pool::new(1, 2, 24);
        let client = pool.client_of(Config { timeout: Duration::from_secs(3), ..pool.config(2) }).await;
        let mut writer = client.create("file").await.unwrap();
        writer.write(&bytes(1, 6 * MIB)).await.unwrap();
        // One has it all, and seals it; for the other nobody stands in.
        pool.benefactors[1].kill();
        match writer.sync().await {
            Err(Error::NoRoom { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(pool.alive(0).await.credits, 18);
        assert!(writer.close().await.is_err(), "nothing is committed");
        until("its room is free", async || pool.alive(0).await.credits == 24).await;
        pool.restart_benefactor(1);
        let mut writer = client.append("file").await.unwrap();
        writer.write(b"goes on").await.unwrap();
        writer.close().await.unwrap();
        drained(&pool, &client, "file", b"goes on").await;
    });
}

/// Each of them has all copies of chunks behind one that gets no room: nobody can commit anything.
#[test]
pub fn writers_that_wait_for_room_do_not_wait_for_each_other() {
    run(async {
        let pool = Pool::new(1, 3, 12);
        let client = Arc::new(pool.client(2).await);
        let writers = (0..12).map(|file| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let (name, content) = (format!("file{file}"), bytes(file, 16 * MIB));
                let mut writer = client.create(&name).await?;
                writer.write(&content).await?;
                writer.close().await?;
                Ok::<_, Error>((name, content))
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            let (name, content) = writer.await.unwrap().unwrap();
            drained(&pool, &client, &name, &content).await;
        }
    });
}
