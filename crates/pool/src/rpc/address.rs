//! Addresses, and which of them may be used.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Something is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It is none.
    #[error("`{0}` is no address: write HOST:PORT, such as 127.0.0.1:7440")]
    Unreadable(String),
    /// Its host is nowhere.
    #[error("`{0}`: its host is not found: {1}; correct the name, or write the host's address")]
    NotFound(String, String),
    /// It is seen from outside.
    #[error(
        "`{0}` is not a loopback address: beyond its machine the pool speaks TLS alone; name certificates with --certificates \
         (`surgetank pool certificates` makes them)"
    )]
    NotLoopback(String),
    /// Nobody can call it.
    #[error("`{0}` is every address of this machine: say with --advertise under which HOST:PORT others reach it")]
    Unspecified(String),
    /// It cannot be listened on.
    #[error("cannot listen on {0}: {1}; name another address or port")]
    Listen(SocketAddr, String),
}

/// The host and the port of an address.
pub(super) fn parts(text: &str) -> Result<(&str, u16), BadAddress> {
    let unreadable = || BadAddress::Unreadable(text.to_owned());
    let (host, port) = text.rsplit_once(':').ok_or_else(unreadable)?;
    let port = port.parse().map_err(|_| unreadable())?;
    let inner = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(unreadable)?,
        None if host.contains(':') => return Err(unreadable()),
        None => host,
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if inner.is_empty() || !inner.bytes().all(is_plain) { Err(unreadable()) } else { Ok((inner, port)) }
}

/// Where an address leads now.
pub(super) fn resolve(text: &str) -> Result<SocketAddr, BadAddress> {
    let not_found = |why: String| BadAddress::NotFound(text.to_owned(), why);
    let mut found = parts(text)?.to_socket_addrs().map_err(|error| not_found(error.to_string()))?;
    found.next().ok_or_else(|| not_found("it has no address".to_owned()))
}

/// Where an address leads now, which must be this machine alone unless there is TLS.
pub(super) fn allowed(text: &str, has_tls: bool) -> Result<SocketAddr, BadAddress> {
    let address = resolve(text)?;
    if address.ip().is_loopback() || has_tls { Ok(address) } else { Err(BadAddress::NotLoopback(text.to_owned())) }
}

/// Whether an address may be listened on, with TLS or without.
///
/// # Errors
/// [`BadAddress`].
pub fn check(text: &str, has_tls: bool) -> Result<(), BadAddress> {
    allowed(text, has_tls).map(|_| ())
}

/// Under which address others call a server: that on which it listens, unless another is said.
///
/// # Errors
/// [`BadAddress`]: that is no address, or one that nobody can call.
pub fn advertised(listens: SocketAddr, said: Option<&str>) -> Result<String, BadAddress> {
    let text = said.map_or_else(|| listens.to_string(), str::to_owned);
    let host = parts(&text)?.0;
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => Err(BadAddress::Unspecified(text)),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        assert_eq!(parts("node1.example:7440"), Ok(("node1.example", 7440)));
        assert_eq!(parts("[::1]:0"), Ok(("::1", 0)));
        for text in ["", "node1", ":1", "::1:1", "[::1:1", "node1:x", "node1:70000", "no de:1", "a/b:1"] {
            assert_eq!(parts(text), Err(BadAddress::Unreadable(text.to_owned())));
        }
        assert!(allowed("127.0.0.1:1", false).is_ok() && allowed("10.0.0.1:1", true).is_ok());
        assert_eq!(allowed("10.0.0.1:1", false), Err(BadAddress::NotLoopback("10.0.0.1:1".to_owned())));
    }

    #[test]
    fn a_host_that_is_not_found_is_told_apart_from_what_is_no_address() {
        let told = allowed("nowhere.invalid:7440", true).unwrap_err();
        assert!(matches!(&told, BadAddress::NotFound(text, _) if text == "nowhere.invalid:7440"), "{told}");
        assert!(told.to_string().contains("`nowhere.invalid:7440`: its host is not found: "), "{told}");
    }

    #[test]
    fn every_address_is_none_that_others_can_call() {
        let all = "0.0.0.0:7441".parse().unwrap();
        assert_eq!(advertised(all, None), Err(BadAddress::Unspecified("0.0.0.0:7441".to_owned())));
        assert_eq!(advertised(all, Some("node1:7441")), Ok("node1:7441".to_owned()));
        assert_eq!(advertised("10.0.0.1:1".parse().unwrap(), None), Ok("10.0.0.1:1".to_owned()));
    }
}
