//! Whose a server on this machine is.
//!
//! Without TLS a client on loopback cannot know who listens: any user may take a port while the pool does not run, and would be shown
//! tokens. The kernel knows whose the socket at the other end is: it is asked for that one (`sock_diag(7)`), and where it has no such questions its
//! table of all sockets is read, which takes milliseconds where there are thousands of them.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// The user who has accepted the connection between these ends; `None`: nobody has yet, or the kernel does not say.
///
/// A connection that waits to be accepted counts as root's in some kernels, so it counts for nobody.
pub(super) fn of_server(server: SocketAddr, client: SocketAddr) -> Option<u32> {
    asked(server, client).unwrap_or_else(|_| listed(server, client))
}

/// Bytes of a `nlmsghdr`, of an `inet_diag_req_v2`, and of an `inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// `SOCK_DIAG_BY_FAMILY`, as the type of both messages, and `NLM_F_REQUEST`.
const BY_FAMILY: u16 = 20;
const IS_REQUEST: u16 = 1;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;

/// What the kernel answers of the server's socket. An error: it answers no such questions.
fn asked(server: SocketAddr, client: SocketAddr) -> Result<Option<u32>, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::sendto(
        &socket,
        &question(server, client),
        SendFlags::empty(),
        &netlink::SocketAddrNetlink::new(0, 0),
    )?;
    let mut answer = [0; 1024];
    // It has answered by now, or never does.
    let (received, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    understood(&answer[..received], client.port())
}

/// Asks for the socket whose own end is the server's and whose other end is the client's.
fn question(server: SocketAddr, client: SocketAddr) -> Vec<u8> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut message = Vec::with_capacity(HEADER + REQUEST);
    message.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(IS_REQUEST.to_ne_bytes());
    // Number and port: the socket asks once.
    message.extend([0; 8]);
    // The protocol is TCP; no attributes, all states.
    message.extend([family.as_raw() as u8, 6, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(server.port().to_be_bytes());
    message.extend(client.port().to_be_bytes());
    for end in [server, client] {
        let mut octets = [0; 16];
        match end.ip() {
            IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => octets = v6.octets(),
        }
        message.extend(octets);
    }
    // Any interface, and no cookie.
    message.extend(0_u32.to_ne_bytes());
    message.extend([0xff; 8]);
    message
}

/// Whose the socket of an answer is. The kernel answers with the socket that listens, if there is no connection: its other end has no port.
fn understood(answer: &[u8], client: u16) -> Result<Option<u32>, Errno> {
    match u16::from_ne_bytes(field(answer, 4)?) {
        ERROR => match Errno::from_raw_os_error(i32::from_ne_bytes(field(answer, HEADER)?).wrapping_neg()) {
            Errno::NOENT => Ok(None),
            error => Err(error),
        },
        BY_FAMILY if answer.len() >= HEADER + ANSWER => {
            let is_the_connection = u16::from_be_bytes(field(answer, HEADER + 6)?) == client;
            let (user, inode) =
                (u32::from_ne_bytes(field(answer, HEADER + 64)?), u32::from_ne_bytes(field(answer, HEADER + 68)?));
            Ok((is_the_connection && inode != 0).then_some(user))
        }
        _ => Err(Errno::BADMSG),
    }
}

fn field<const LENGTH: usize>(answer: &[u8], at: usize) -> Result<[u8; LENGTH], Errno> {
    answer.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Errno::BADMSG)
}

/// What the kernel's table says of the server's socket.
fn listed(server: SocketAddr, client: SocketAddr) -> Option<u32> {
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
            let both = || [asked(ends.0, ends.1).unwrap_or(listed(ends.0, ends.1)), listed(ends.0, ends.1)];
            assert_eq!(both(), [None; 2]);
            let served = listener.accept().unwrap();
            assert_eq!(both(), [Some(we); 2]);
            // Where there is no connection, the one who listens is nobody's server yet.
            drop((served, client));
            let other = SocketAddr::new(ends.1.ip(), if ends.1.port() == 1 { 2 } else { 1 });
            assert_eq!(asked(ends.0, other).unwrap_or(None), None);
        }
    }

    #[test]
    fn a_server_of_both_protocols_is_known_to_a_client_of_the_older_one() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let Ok(client) = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())) else { return };
        let _served = listener.accept().unwrap();
        // Where no such questions are answered, it is in the other table, and not found.
        let Ok(found) = asked(client.peer_addr().unwrap(), client.local_addr().unwrap()) else { return };
        assert_eq!(found, Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        let message = |of: u16, length: usize| {
            let mut message = vec![0; length];
            message[4..6].copy_from_slice(&of.to_ne_bytes());
            message
        };
        for length in [0, 5, HEADER, HEADER + 3, HEADER + ANSWER - 1] {
            let mut short = message(BY_FAMILY, length.max(6));
            short.truncate(length);
            assert_eq!(understood(&short, 1), Err(Errno::BADMSG), "{length}");
        }
        assert_eq!(understood(&message(3, HEADER + ANSWER), 1), Err(Errno::BADMSG));
        let mut refused = message(ERROR, HEADER + 4);
        for (errno, found) in [(Errno::NOENT, Ok(None)), (Errno::OPNOTSUPP, Err(Errno::OPNOTSUPP))] {
            refused[HEADER..].copy_from_slice(&errno.raw_os_error().wrapping_neg().to_ne_bytes());
            assert_eq!(understood(&refused, 1), found);
        }
    }
}
