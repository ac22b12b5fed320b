//! Whether a request is signed as AWS asks for, whatever headers the signature covers.

use std::collections::BTreeMap;

use ring::{digest, hmac};

use super::server::Request;

/// An access key.
#[derive(Clone, Debug)]
pub struct Key {
    pub secret: String,
    pub token: Option<String>,
    pub ends_ms: Option<u64>,
    /// The account to which it leads.
    pub account: String,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not signed, or by a key that nobody has.
    Unknown,
    /// Its time is not now.
    Time,
    /// The key has ended.
    Ended,
    Signature,
}

/// The key by which a request is signed.
pub fn verify<'a>(
    request: &Request,
    keys: &'a BTreeMap<String, Key>,
    region: &str,
    now_s: u64,
) -> Result<&'a Key, Refusal> {
    let header = |name: &str| request.header(name).ok_or(Refusal::Unknown);
    let parts = header("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ").ok_or(Refusal::Unknown)?;
    let parts: BTreeMap<&str, &str> = parts.split(", ").filter_map(|part| part.split_once('=')).collect();
    let part = |name: &str| parts.get(name).copied().ok_or(Refusal::Unknown);
    let (id, scope) = part("Credential")?.split_once('/').ok_or(Refusal::Unknown)?;
    let key = keys.get(id).ok_or(Refusal::Unknown)?;
    let date = header("x-amz-date")?;
    if seconds(date).is_none_or(|there| there.abs_diff(now_s) > 300) {
        return Err(Refusal::Time);
    }
    if scope != format!("{}/{region}/ec2/aws4_request", &date[..8]) {
        return Err(Refusal::Signature);
    }
    let names: Vec<&str> = part("SignedHeaders")?.split(';').collect();
    // What is not signed could be anybody's.
    let needed = ["host", "x-amz-date"].into_iter().chain(key.token.as_ref().map(|_| "x-amz-security-token"));
    if !names.is_sorted() || !needed.into_iter().all(|name| names.contains(&name)) {
        return Err(Refusal::Signature);
    }
    if request.header("x-amz-security-token") != key.token.as_deref() {
        return Err(Refusal::Unknown);
    }
    let mut canonical = format!("{}\n{}\n\n", request.method, request.path);
    for name in &names {
        canonical.push_str(&format!("{name}:{}\n", header(name)?.trim()));
    }
    canonical.push_str(&format!("\n{}\n{}", names.join(";"), sha256(&request.body)));
    let signed = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(&canonical));
    let mut derived = format!("AWS4{}", key.secret).into_bytes();
    for part in scope.split('/') {
        derived = mac(&derived, part);
    }
    if hex(&mac(&derived, &signed)) != part("Signature")? {
        return Err(Refusal::Signature);
    }
    if key.ends_ms.is_some_and(|ends_ms| ends_ms <= now_s * 1000) {
        return Err(Refusal::Ended);
    }
    Ok(key)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn sha256(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time such as `20261128T095758Z`.
fn seconds(text: &str) -> Option<u64> {
    let of = |from: usize, to: usize| text.get(from..to);
    let long = format!("{}-{}-{}T{}:{}:{}Z", of(0, 4)?, of(4, 6)?, of(6, 8)?, of(9, 11)?, of(11, 13)?, of(13, 15)?);
    crate::cloud::moment(&long)?.assume_utc().unix_timestamp().try_into().ok()
}
