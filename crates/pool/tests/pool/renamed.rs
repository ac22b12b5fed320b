//! Files that are renamed while their target makes no change.

use crate::support::{MIB, Pool, Small, bytes, read, run, same, stands_still, until, write};

#[test]
fn what_was_renamed_is_read_where_a_full_target_still_has_it() {
    run(async {
        let mut pool = Pool::new(1, 2, 64);
        let Some(_small) = Small::mount(&pool.target(), "size=8m") else { return };
        let client = pool.client(1).await;
        for directory in ["d", "new", "old", "into", "file.d"] {
            std::fs::create_dir(pool.target().join(directory)).unwrap();
        }
        let names = ["file", "d/inside", "other", "new/of-both", "old/of-both", "into/file"];
        for (name, byte) in names.into_iter().zip([1, 2, 3, 5, 6, 7]) {
            std::fs::write(pool.target().join(name), bytes(byte, MIB)).unwrap();
        }
        // This one is the pool's own, and the one of the same name in another directory is only the target's.
        client.rename("new/of-both", "new/other").await.unwrap();
        client.rename("new/other", "new/of-both").await.unwrap();
        until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
        // All that follows waits in the journal until this has room.
        write(&client, "large", &bytes(9, 20 * MIB)).await.unwrap();
        stands_still(&client).await;
        client.rename("file", "once").await.unwrap();
        client.rename("once", "twice").await.unwrap();
        client.rename("d", "moved").await.unwrap();
        client.rename("other", "moved/other").await.unwrap();
        client.rename("moved", "again").await.unwrap();
        // The target has another file at that name, of as many bytes.
        write(&client, "file", &bytes(4, MIB)).await.unwrap();
        client.rename("old", "away").await.unwrap();
        client.rename("new", "old").await.unwrap();
        // The target has a directory at that name.
        client.remove_directory("file.d").await.unwrap();
        client.rename("into/file", "file.d").await.unwrap();
        let now = [
            ("twice", 1),
            ("again/inside", 2),
            ("again/other", 3),
            ("file", 4),
            ("old/of-both", 5),
            ("away/of-both", 6),
            ("file.d", 7),
        ];
        for round in 0..2 {
            for (name, byte) in now {
                same(name, &read(&client, name).await.unwrap(), &bytes(byte, MIB));
            }
            let at_target = names.map(|name| std::fs::read(pool.target().join(name)).unwrap().len());
            assert_eq!(at_target, [MIB; 6], "{names:?}: no rename has reached the target");
            if round == 0 {
                pool.restart_manager(0);
            }
        }
        Small::remount(&pool.target(), "size=64m");
        until("the journal is empty", async || client.status().await.unwrap().journal == 0).await;
        for (name, byte) in now.into_iter().chain([("large", 9)]) {
            let length = if name == "large" { 20 * MIB } else { MIB };
            same(name, &std::fs::read(pool.target().join(name)).unwrap(), &bytes(byte, length));
        }
        client.end().await.unwrap();
    });
}
