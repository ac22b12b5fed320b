//! Whose a server on this machine is.
//!
//! Without TLS a client on loopback cannot know who listens: any user may take a port while the pool does not run, and would be shown
//! tokens. The kernel knows whose the socket at the other end is.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// The user who has accepted the connection between these ends; `None`: nobody has yet, or the kernel does not say.
///
/// A connection that waits to be accepted counts as root's in some kernels, so it counts for nobody.
pub(super) fn of_server(server: SocketAddr, client: SocketAddr) -> Option<u32> {
    let table = if server.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let (local, remote) = (end(server), end(client));
    let text = std::fs::read_to_string(table).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next() != Some(&*local) || fields.next() != Some(&*remote) {
            return None;
        }
        // State, queues, timer and retransmissions lie before the user; a time lies before the inode.
        let user = fields.nth(4)?.parse().ok()?;
        (fields.nth(1)? != "0").then_some(user)
    })
}

/// An end as the kernel's tables have it: words of the address in the machine's order, and the port.
fn end(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut text = String::new();
    for word in octets.as_chunks::<4>().0 {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_who_accepts_is_known_and_nobody_before() {
        let we = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let ends = (client.peer_addr().unwrap(), client.local_addr().unwrap());
            assert_eq!(of_server(ends.0, ends.1), None);
            let _served = listener.accept().unwrap();
            assert_eq!(of_server(ends.0, ends.1), Some(we));
        }
    }
}
