//! Whose a connection is: what unauthenticated peers are told apart by.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Who is at the other end. On this machine all share an address, so there it is the user whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A user of this machine.
    User(u32),
    /// A host, or an IPv6 network of 64 bits: who has one address of it has all.
    Host(IpAddr),
}

impl Peer {
    /// Of a connection between these ends.
    pub fn of(theirs: SocketAddr, ours: SocketAddr) -> Self {
        let user = theirs.ip().is_loopback().then(|| user_of(theirs, ours)).flatten();
        user.map_or_else(|| Self::Host(network(theirs.ip())), Self::User)
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// Asks the kernel which user has the socket with these ends (`sock_diag(7)`): `None` if it does not tell, as in some
/// containers.
fn user_of(theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    const BY_FAMILY: u16 = 20;
    const REQUEST: u16 = 1;
    const TCP: u8 = 6;
    /// A message's header; `idiag_uid` behind it: family, state, timer and retransmissions, the socket, three numbers.
    const UID: usize = 16 + 4 + 48 + 12;
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => [v4.octets(), [0; 4], [0; 4], [0; 4]].concat(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let family = if theirs.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut request = Vec::with_capacity(72);
    request.extend(72u32.to_ne_bytes());
    request.extend([BY_FAMILY.to_ne_bytes(), REQUEST.to_ne_bytes()].concat());
    request.extend([0; 8]);
    request.extend([family.as_raw() as u8, TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend([theirs.port().to_be_bytes(), ours.port().to_be_bytes()].concat());
    request.extend(octets(theirs.ip()));
    request.extend(octets(ours.ip()));
    request.extend([0; 4]);
    // No cookie: whichever socket it is.
    request.extend([0xff; 8]);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG));
    let socket = socket.ok()?;
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut answer = [0; 512];
    // The kernel has answered by now, or will not.
    let (_, length) = rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
    let answer = answer.get(..length)?;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let user = answer.get(UID..UID + 4)?.try_into().ok()?;
    (kind == BY_FAMILY).then(|| u32::from_ne_bytes(user))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn users_of_this_machine_are_told_apart_and_hosts_by_their_network() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_served, theirs) = listener.accept().unwrap();
            assert_eq!(theirs, client.local_addr().unwrap());
            let we = Peer::User(rustix::process::geteuid().as_raw());
            let peer = Peer::of(theirs, client.peer_addr().unwrap());
            assert!(peer == we || peer == Peer::Host(network(theirs.ip())), "{peer:?}");
        }
        let host = |address: &str| Peer::of(address.parse().unwrap(), "192.0.2.1:1".parse().unwrap());
        assert_eq!(host("[2001:db8::1]:5"), host("[2001:db8::ffff:1]:6"));
        assert_ne!(host("[2001:db8::1]:5"), host("[2001:db8:0:1::1]:5"));
        assert_ne!(host("192.0.2.7:5"), host("192.0.2.8:5"));
    }
}
