//! Stores in an etcd of the test's own, and a proxy before it that loses answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use surgetank_pool::meta::Etcd;
use surgetank_pool::meta::etcd::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

pub fn config(address: SocketAddr, pool: &str) -> Config {
    Config::parse(&format!("etcd://{address}/{pool}")).expect("an address")
}

/// Connects, also while it is starting.
pub async fn connect(address: SocketAddr, pool: &str) -> Etcd {
    let config = config(address, pool);
    for _ in 0..300 {
        match Etcd::connect(&config).await {
            Ok(store) => return store,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Etcd::connect(&config).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Passes connections on, and cuts all of them when a request has been passed on and its answer has not.
pub struct Proxy {
    pub address: SocketAddr,
    /// Answers are lost from now on, until connections are cut.
    deaf: Arc<AtomicBool>,
    cut: Arc<Notify>,
    pub cuts: Arc<AtomicU64>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (deaf, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let proxy = Self { address, deaf: Arc::clone(&deaf), cut: Arc::clone(&cut), cuts: Arc::default() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (deaf, cut) = (Arc::clone(&deaf), Arc::clone(&cut));
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let cut = cut.notified();
                    tokio::select! {
                        () = pass(client, server, &deaf) => {}
                        () = cut => {}
                    }
                });
            }
        });
        proxy
    }

    /// The answers of the next moment are lost, and then the connections.
    pub async fn lose(&self, moment: Duration) {
        self.deaf.store(true, Ordering::SeqCst);
        tokio::time::sleep(moment).await;
        self.cut.notify_waiters();
        self.deaf.store(false, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, server: TcpStream, deaf: &AtomicBool) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            // What is lost in the middle of a connection is followed by the cut alone.
            if deaf.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}
