//! Stores in an etcd of the test's own, and a proxy before it that loses answers.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use surgetank_pool::meta::Etcd;
use surgetank_pool::meta::etcd::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Of an etcd at one address, or at several with commas between them.
pub fn config(address: impl Display, pool: &str) -> Config {
    Config::parse(&format!("etcd://{address}/{pool}")).expect("an address")
}

/// Connects, also while it is starting.
pub async fn connect(address: impl Display, pool: &str) -> Etcd {
    let config = config(address, pool);
    for _ in 0..300 {
        match Etcd::connect(&config).await {
            Ok(store) => return store,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Etcd::connect(&config).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Asks etcd's gateway for JSON: the answer, if it is one.
pub async fn gateway(address: SocketAddr, what: &str, body: &str) -> Option<String> {
    let request = format!(
        "POST /v3/{what} HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(address).await.ok()?;
    connection.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

/// A text in one of the gateway's answers.
pub fn text<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer.split(&format!(r#""{name}":""#)).nth(1)?.split('"').next()
}

/// Puts a key that no pool has.
pub async fn put_raw(address: SocketAddr, key: &[u8], value: &[u8]) {
    assert!(try_put_raw(address, key, value).await, "it is put");
}

/// The same if etcd takes it.
pub async fn try_put_raw(address: SocketAddr, key: &[u8], value: &[u8]) -> bool {
    let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key), base64(value));
    gateway(address, "kv/put", &body).await.is_some()
}

pub fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for at in 0..4 {
            let letter = letters[(bits >> (18 - 6 * at)) as usize & 63] as char;
            text.push(if at > part.len() { '=' } else { letter });
        }
    }
    text
}

/// Disarms the alarm; whether there is none any more.
pub async fn disarm(address: SocketAddr) -> bool {
    let Some(armed) = gateway(address, "maintenance/alarm", r#"{"action":"GET"}"#).await else { return false };
    let Some(member) = text(&armed, "memberID") else { return true };
    let body = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
    gateway(address, "maintenance/alarm", &body).await;
    false
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
