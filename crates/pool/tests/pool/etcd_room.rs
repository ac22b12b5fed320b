//! The pool over an etcd that has little room.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::etcd::{base64, disarm, gateway, put_raw, try_put_raw};
use crate::support::etcd_server::Server;
use crate::support::{LONG, MIB, Pool, bytes, read, run, same, until, write};
use surgetank_pool::client::{Error, PoolClient};
use surgetank_pool::manager::StoreStatus;

fn key(number: u64) -> Vec<u8> {
    format!("/elsewhere/{number}").into_bytes()
}

async fn room(client: &PoolClient) -> StoreStatus {
    client.status().await.unwrap().store.expect("this store has a quota")
}

/// All keys of somebody else are gone, and what they were is history.
async fn clear(address: SocketAddr) {
    let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(b"/elsewhere/"), base64(b"/elsewhere0"));
    until("they are gone", async || gateway(address, "kv/deleterange", &range).await.is_some()).await;
}

/// A pool over an etcd with this quota. `None`: there is no program.
fn pool(quota: &str, history: Duration) -> Option<(Pool, SocketAddr)> {
    let etcd = Server::start(&["--quota-backend-bytes", quota])?;
    let address = etcd.address;
    let mut pool = Pool::over(address.to_string(), 0, 0, 96);
    (pool.etcd, pool.history) = (Some(etcd), history);
    (0..2).for_each(|_| pool.start_manager("127.0.0.1:0"));
    (0..2).for_each(|_| pool.start_benefactor());
    Some((pool, address))
}

#[test]
fn at_80_percent_of_the_quota_new_files_are_refused_and_everything_else_goes_on() {
    const QUOTA: u64 = 32 << 20;
    let Some((pool, address)) = pool(&QUOTA.to_string(), Duration::from_secs(1)) else { return };
    run(async {
        let client = pool.client(2).await;
        let content = bytes(1, 3 * MIB);
        let mut writer = client.create("open").await.unwrap();
        writer.write(&content[..MIB]).await.unwrap();
        write(&client, "former", b"former").await.unwrap();
        until("its room is known", async || client.status().await.unwrap().store.is_some()).await;
        let before = room(&client).await;
        assert_eq!((before.quota, before.refusal), (QUOTA, None));
        // Larger ones would leave gaps in the file.
        for number in 0..700 {
            put_raw(address, &key(number), &bytes(number, 32 << 10)).await;
        }
        for number in 700.. {
            if room(&client).await.in_use > QUOTA * 4 / 5 {
                break;
            }
            put_raw(address, &key(number), &bytes(number, 32 << 10)).await;
            // It says what it has a moment later.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        // Either manager may be asked.
        let refused = async |path: &str| match write(&client, path, b"new").await {
            Ok(()) => client.unlink(path).await.map(|()| None).unwrap(),
            Err(error) => Some(error),
        };
        until("both managers know", async || refused("new").await.is_some() && refused("new").await.is_some()).await;
        let Some(Error::StoreFull(path, why)) = refused("new").await else { panic!("another error") };
        assert_eq!(path, "new");
        assert!(why.starts_with("etcd is short of space (a file of ") && why.contains("quota 32 MiB"), "{why}");
        let remedy = "remove files, compact and defragment etcd, or raise --quota-backend-bytes";
        assert!(why.ends_with(remedy), "{why}");
        assert!(matches!(client.make_directory("directory").await, Err(Error::StoreFull(..))));
        assert!(room(&client).await.refusal.is_some_and(|why| why.ends_with(remedy)));
        // What was begun is finished, drained, moved and taken away.
        writer.write(&content[MIB..]).await.unwrap();
        writer.sync().await.unwrap();
        writer.close().await.unwrap();
        client.wait_drained("open", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("open")).unwrap(), &content);
        client.rename("open", "moved").await.unwrap();
        client.unlink("former").await.unwrap();
        until("it is gone", async || !pool.target().join("former").exists()).await;
        let mut writer = client.append("moved").await.unwrap();
        writer.write(b"more").await.unwrap();
        writer.close().await.unwrap();
        // What was removed takes room until its history is forgotten: the managers see to that.
        clear(address).await;
        until("it is taken again", async || refused("again").await.is_none()).await;
        until("both managers know", async || refused("again").await.is_none() && room(&client).await.refusal.is_none())
            .await;
        let now = room(&client).await;
        assert!(now.in_use < QUOTA / 2 && now.size > QUOTA * 3 / 4, "nobody has defragmented it: {now:?}");
        same("moved", &read(&client, "moved").await.unwrap(), &[&content[..], b"more"].concat());
    });
}

#[test]
fn a_full_etcd_loses_nothing_and_the_pool_goes_on_when_the_alarm_is_disarmed() {
    let Some((pool, address)) = pool("8388608", Duration::from_secs(300)) else { return };
    run(async {
        let client = pool.client(2).await;
        let content = bytes(2, 4 * MIB);
        write(&client, "closed", &content).await.unwrap();
        let mut writer = client.create("open").await.unwrap();
        writer.write(&content[..MIB]).await.unwrap();
        writer.sync().await.unwrap();
        let mut kept = 0;
        while try_put_raw(address, &key(kept), &bytes(kept, 512 << 10)).await {
            kept += 1;
        }
        let sentence = "then disarm the alarm";
        until("it is said", async || room(&client).await.refusal.is_some_and(|why| why.ends_with(sentence))).await;
        // Files of this pool in memory are read and written on; what is synced waits.
        writer.write(&content[MIB..]).await.unwrap();
        let sync = tokio::spawn(async move { writer.sync().await.map(|()| writer) });
        let refused = async || matches!(write(&client, "new", b"new").await, Err(Error::StoreFull(_, why)) if why.ends_with(sentence));
        until("new files are refused", refused).await;
        same("closed", &read(&client, "closed").await.unwrap(), &content);
        assert!(!sync.is_finished(), "nobody can have committed it");
        // Room, as an operator makes it.
        clear(address).await;
        let answer = gateway(address, "kv/range", r#"{"key":"Lw=="}"#).await.unwrap();
        let revision = crate::support::etcd::text(&answer, "revision").unwrap();
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        assert!(gateway(address, "kv/compaction", &body).await.is_some());
        assert!(gateway(address, "maintenance/defragment", "{}").await.is_some());
        until("the alarm is disarmed", async || disarm(address).await).await;
        sync.await.unwrap().unwrap().close().await.unwrap();
        until("new files are taken again", async || write(&client, "new", b"new").await.is_ok()).await;
        for path in ["closed", "open"] {
            client.wait_drained(path, LONG).await.unwrap();
            same(path, &std::fs::read(pool.target().join(path)).unwrap(), &content);
        }
    });
}
