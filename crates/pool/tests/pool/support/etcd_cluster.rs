//! An etcd of three members, each of which can be killed, stopped, or cut off from the others.
//!
//! Members reach each other through proxies. The first request of each of their connections says who asks (`X-Server-From`), so a proxy
//! knows both ends.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::etcd::{gateway, text};
use super::etcd_server::Server;
use super::until;

const MEMBERS: usize = 3;
/// Bytes of a request's head at most.
const HEAD: usize = 16 << 10;

/// The number of the member that is cut off, and its identifier.
type Cut = Option<(usize, String)>;

pub struct Cluster {
    pub members: Vec<Server>,
    cut: watch::Sender<Cut>,
    _proxies: Runtime,
}

impl Cluster {
    /// `None`: there is no program.
    pub fn start(options: &[&str]) -> Option<Self> {
        let proxies = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let bound: Vec<TcpListener> =
            (0..MEMBERS).map(|_| proxies.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port")).collect();
        let addresses: Vec<SocketAddr> = bound.iter().map(|bound| bound.local_addr().expect("an address")).collect();
        let options = [&["--heartbeat-interval", "100", "--election-timeout", "1000"][..], options].concat();
        let cut = watch::Sender::new(None);
        let mut members = Vec::new();
        for (number, listener) in bound.into_iter().enumerate() {
            let mut member = Server::new(number, &addresses, &options)?;
            proxies.spawn(proxy(listener, member.peers, number, cut.subscribe()));
            member.begin();
            members.push(member);
        }
        Some(Self { members, cut, _proxies: proxies })
    }

    /// The addresses of all, from this one on.
    pub fn addresses(&self, from: usize) -> String {
        let at = |number: usize| self.members[(from + number) % MEMBERS].address.to_string();
        (0..MEMBERS).map(at).collect::<Vec<_>>().join(",")
    }

    /// Who leads according to those that agree with the majority.
    pub async fn leader(&self) -> usize {
        loop {
            let mut says = Vec::new();
            for member in &self.members {
                says.push(status(member.address).await);
            }
            let leads = |number: &usize| {
                let Some((own, _)) = &says[*number] else { return false };
                says.iter().flatten().filter(|(_, leader)| leader == own).count() > MEMBERS / 2
            };
            if let Some(leader) = (0..MEMBERS).find(leads) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until all members answer as the majority would.
    pub async fn whole(&self) {
        for member in &self.members {
            until("a member is back", async || {
                let asked = gateway(member.address, "kv/range", r#"{"key":"Lw=="}"#);
                tokio::time::timeout(Duration::from_secs(10), asked).await.is_ok_and(|answer| answer.is_some())
            })
            .await;
        }
    }

    /// No other member reaches this one, nor it any other, until they are joined again.
    pub async fn cut_off(&self, number: usize) {
        let (own, _) = status(self.members[number].address).await.expect("it answers");
        self.cut.send_replace(Some((number, own)));
    }

    pub fn join(&self) {
        self.cut.send_replace(None);
    }
}

/// A member's identifier, and that of its leader.
async fn status(address: SocketAddr) -> Option<(String, String)> {
    let asked = tokio::time::timeout(Duration::from_secs(5), gateway(address, "maintenance/status", "{}"));
    let answer = asked.await.ok()??;
    let number = |name| text(&answer, name)?.parse::<u64>().ok();
    Some((format!("{:x}", number("member_id")?), format!("{:x}", number("leader")?)))
}

async fn proxy(listener: TcpListener, to: SocketAddr, number: usize, cut: watch::Receiver<Cut>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut cut = cut.clone();
        tokio::spawn(async move {
            let passing = pass(client, to, number, cut.clone());
            let severed = cut.wait_for(|cut| cut.as_ref().is_some_and(|(at, _)| *at == number));
            tokio::select! {
                _ = passing => {}
                _ = severed => {}
            }
        });
    }
}

async fn pass(mut client: TcpStream, to: SocketAddr, number: usize, mut cut: watch::Receiver<Cut>) -> Option<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|part| part == b"\r\n\r\n") && head.len() < HEAD {
        if client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let from = text.split("x-server-from: ").nth(1).and_then(|rest| rest.split('\r').next()).map(ToOwned::to_owned);
    let mut server = TcpStream::connect(to).await.ok()?;
    server.write_all(&head).await.ok()?;
    let ends = |cut: &Cut| cut.as_ref().is_some_and(|(at, own)| *at == number || from.as_ref() == Some(own));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = cut.wait_for(ends) => {}
    }
    None
}
