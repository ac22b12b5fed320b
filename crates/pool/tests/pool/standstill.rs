//! What is told of targets that take nothing.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wait::there;
use crate::support::{LONG, MIB, Pool, Small, bytes, drained, run, threads_do_first, until, write};
use surgetank_pool::client::PoolClient;
use surgetank_pool::manager::Standstill;

/// What a pool's processes log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Of all processes that this thread starts from now on.
    fn begin() -> Self {
        let log = Self::default();
        let made = log.clone();
        threads_do_first(move || {
            let made = made.clone();
            let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || made.clone()).finish();
            std::mem::forget(tracing::subscriber::set_default(subscriber));
        });
        log
    }

    fn lines_with(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
    }
}

/// Why the only mount's target stands still.
async fn standstill(client: &PoolClient) -> Option<Standstill> {
    let mounts = client.status().await.unwrap().mounts;
    assert_eq!(mounts.len(), 1);
    mounts.into_iter().next().unwrap().standstill
}

#[test]
fn a_full_target_is_named_with_its_reason_and_failed_attempts_are_no_rate() {
    run(async {
        let log = Log::begin();
        let pool = Pool::new(1, 2, 64);
        let Some(_small) = Small::mount(&pool.target(), "size=8m") else { return };
        let client = pool.client(2).await;
        assert_eq!(standstill(&client).await, None);
        client.make_directory("run").await.unwrap();
        write(&client, "run/large", &bytes(2, 20 * MIB)).await.unwrap();
        until("it is told", async || standstill(&client).await.is_some_and(|of| of.seconds >= 2)).await;
        for _ in 0..20 {
            // A publisher that begins anew finds it again.
            let (status, standstill) = there("it goes on", async || {
                let status = client.status().await.unwrap();
                let standstill = status.mounts[0].standstill.clone()?;
                Some((status, standstill))
            })
            .await;
            assert_eq!((&*standstill.why, &*standstill.remedy), ("No space left on device", "make room there"));
            assert_eq!(Path::new(&status.mounts[0].target), pool.target());
            assert_eq!((status.mounts[0].journal, status.drain_bytes_s), (1, 0), "nothing reaches the target");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let large = pool.target().join("run/large");
        let said = log.lines_with(large.to_str().unwrap());
        assert!((1..=2).contains(&said.len()), "{said:?}");
        assert!(said[0].contains("No space left on device") && said[0].contains("make room there"), "{said:?}");
        Small::remount(&pool.target(), "size=200m");
        until("it is told how fast it drains", async || client.status().await.unwrap().drain_bytes_s >= 1 << 20).await;
        drained(&pool, &client, "run/large", &bytes(2, 20 * MIB)).await;
        assert_eq!(standstill(&client).await, None);
    });
}

#[test]
fn a_target_that_is_gone_or_replaced_is_said_once_and_nothing_is_written_into_another() {
    run(async {
        let log = Log::begin();
        let mut pool = Pool::new(1, 2, 64);
        let client = pool.client(2).await;
        write(&client, "before", &bytes(1, MIB)).await.unwrap();
        client.wait_drained("before", LONG).await.unwrap();
        client.make_directory("run").await.unwrap();
        let mut writer = client.create("run/file").await.unwrap();
        until("the target has the directory", async || client.status().await.unwrap().journal == 0).await;
        // Its file system is not mounted.
        let away = pool.directory.path().join("away");
        std::fs::rename(pool.target(), &away).unwrap();
        std::fs::create_dir(pool.target()).unwrap();
        writer.write(&bytes(2, MIB)).await.unwrap();
        writer.close().await.unwrap();
        until("it is told", async || standstill(&client).await.is_some_and(|of| of.seconds >= 3)).await;
        let standstill_now = standstill(&client).await.unwrap();
        let accept = format!("mkdir {}", pool.target().join(".surgetank").display());
        assert!(
            standstill_now.why.contains("not mounted") && standstill_now.remedy.contains(&accept),
            "{standstill_now:?}"
        );
        assert_eq!(std::fs::read_dir(pool.target()).unwrap().count(), 0, "nothing is written there");
        let said = log.lines_with(&accept);
        assert_eq!(said.len(), 1, "{said:?}");
        // It is gone, and so a publisher that begins cannot take it over.
        std::fs::remove_dir(pool.target()).unwrap();
        pool.restart_manager(0);
        until("it is told", async || standstill(&client).await.is_some_and(|of| of.seconds >= 3)).await;
        assert_eq!(standstill(&client).await.unwrap().why, "No such file or directory");
        let said = log.lines_with("No such file or directory");
        assert!(said.len() <= 4, "{said:?}");
        std::fs::rename(&away, pool.target()).unwrap();
        drained(&pool, &client, "run/file", &bytes(2, MIB)).await;
        until("nothing waits", async || standstill(&client).await.is_none()).await;
    });
}
