//! Metadata services: what a cloud tells a machine of itself, at an address that only this machine reaches.

use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Uri};

use super::http::{Call, Client};
use crate::ProviderError;
use crate::service::is_private;

/// It is near, or not there at all.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that a URL leads to this machine's link, or to itself: nobody else may say which machine this is.
///
/// # Errors
/// One sentence with the remedy.
pub fn check(url: &str) -> Result<(), String> {
    let host = url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let address = host.and_then(|uri| super::address(uri.host()?));
    // Of the private addresses those of a link, or of this machine.
    let is_link_local = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(v4) => v4.is_link_local(),
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match address {
        Some(address) if is_private(address) && (address.is_loopback() || is_link_local(address)) => Ok(()),
        _ => Err(format!(
            "the metadata service {url:?} is not on this machine's link: write it as \"http://169.254.169.254\", or say in the configuration what it would tell"
        )),
    }
}

/// A client of the metadata service at a URL that leads nowhere else.
///
/// # Errors
/// `Invalid`, with a sentence.
pub fn client(url: &str) -> Result<Client, ProviderError> {
    check(url).and_then(|()| Client::new(TIMEOUT, None)).map_err(ProviderError::Invalid)
}

/// Reads a document of JSON.
///
/// # Errors
/// `Transient`, with a sentence: nothing there, or something else.
pub fn read(url: &str, path: &str) -> Result<Value, ProviderError> {
    let client = client(url)?;
    let url = format!("{}{path}", url.trim_end_matches('/'));
    let call = Call { service: "the metadata service", method: Method::GET, url: &url, headers: &[], body: None };
    let answer = client.call(&call)?;
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    Err(ProviderError::Transient(format!("the metadata service answers {path} with status {}", answer.status.as_u16())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_and_its_link_say_which_machine_this_is() {
        for url in ["http://169.254.169.254", "http://127.0.0.1:8775/", "http://[fe80::a9fe:a9fe]"] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "http://metadata.example",
            "http://10.0.0.1",
            "https://169.254.169.254",
            "http://localhost",
            "",
            "169.254.169.254",
        ] {
            assert!(check(url).unwrap_err().contains("169.254.169.254"), "{url}");
        }
    }
}
