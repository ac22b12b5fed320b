//! Requests that somebody has signed, sent as they are.

use std::io::{Error, Result};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use md5::{Digest, Md5};
use reqwest::header::{ETAG, HeaderMap};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};

use super::client::{CONNECT, REQUEST};
use super::failed::{refused, unreached};

/// Of an answer so much is read.
const ANSWER_MAX: usize = 16 << 20;
/// How often a part is sent at most, and the pause before the second time; it doubles.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// A client without credentials.
#[derive(Clone, Debug)]
pub struct Web(Client);

impl Web {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// This machine has no certificates of authorities.
    pub fn new() -> Result<Self> {
        // Another part of this process may have chosen one: any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A signed request is for the store that it names.
        let client = Client::builder().timeout(REQUEST).connect_timeout(CONNECT).redirect(Policy::none()).build();
        client.map(Self).map_err(|error| Error::other(format!("this machine cannot speak to object stores: {error}")))
    }

    /// Puts a part, which the store verifies by its MD5; its tag.
    ///
    /// # Errors
    /// The store's.
    pub async fn put(&self, url: &str, bytes: Bytes) -> Result<String> {
        let digest = BASE64_STANDARD.encode(Md5::digest(&bytes));
        let request = || self.0.put(url).header("content-md5", &digest).body(bytes.clone());
        let tag = |headers: &HeaderMap, _: &str| {
            let tag = headers.get(ETAG).and_then(|tag| tag.to_str().ok());
            Some(tag.map(str::to_owned).ok_or_else(|| Error::other("the store gives parts no tags")))
        };
        repeated(request, tag).await
    }

    /// Has a store copy a part; its tag.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn copy(&self, url: &str, headers: HeaderMap) -> Result<String> {
        // What fails in the middle is told in an answer that has begun well.
        repeated(|| self.0.put(url).headers(headers.clone()), |_, body| copied(body).map(Ok)).await
    }

    /// What is read.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes> {
        let (status, _, body) = ask(self.0.get(url)).await?;
        if status.is_success() { Ok(body) } else { Err(refused(status.as_u16(), &String::from_utf8_lossy(&body))) }
    }
}

/// Sends what may come twice until the store has done it, so often at most; `tag` says what a good answer tells, `None`: that it was not
/// done.
async fn repeated(
    request: impl Fn() -> RequestBuilder,
    tag: impl Fn(&HeaderMap, &str) -> Option<Result<String>>,
) -> Result<String> {
    let (mut pause, mut attempt) = (PAUSE, 1);
    loop {
        let (error, may_pass) = match ask(request()).await {
            Ok((status, headers, body)) => {
                let body = String::from_utf8_lossy(&body);
                if status.is_success()
                    && let Some(tag) = tag(&headers, &body)
                {
                    return tag;
                }
                (refused(status.as_u16(), &body), status.is_success() || status.is_server_error())
            }
            Err(error) => (error, true),
        };
        if attempt >= ATTEMPTS || !may_pass {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        (pause, attempt) = (pause * 2, attempt + 1);
    }
}

/// The address has a signature in it: no error names it.
async fn ask(request: RequestBuilder) -> Result<(StatusCode, HeaderMap, Bytes)> {
    let mut answer = request.send().await.map_err(|_| unreached())?;
    let mut all = Vec::new();
    while let Some(bytes) = answer.chunk().await.map_err(|_| unreached())? {
        if all.len() + bytes.len() > ANSWER_MAX {
            return Err(Error::other("the store's answer makes no sense"));
        }
        all.extend_from_slice(&bytes);
    }
    Ok((answer.status(), answer.headers().clone(), all.into()))
}

/// The tag of a part that was copied.
fn copied(answer: &str) -> Option<String> {
    let document = roxmltree::Document::parse(answer).ok()?;
    let is_tag = |node: &roxmltree::Node| node.tag_name().name() == "ETag";
    document.root_element().children().find(is_tag)?.text().map(str::to_owned)
}

/// The uploads to a key that a listing names, of those that were begun at some time or later.
pub(super) fn uploads(listing: &[u8], key: &str, since: u64) -> Result<Vec<String>> {
    let senseless = || Error::other("the store's list of uploads makes no sense");
    let text = std::str::from_utf8(listing).map_err(|_| senseless())?;
    let document = roxmltree::Document::parse(text).map_err(|_| senseless())?;
    let since = stamp(since);
    let of = |upload: &roxmltree::Node| {
        let text = |name| upload.children().find(|node| node.tag_name().name() == name)?.text().map(str::to_owned);
        let is_meant = text("Key")? == key
            && text("Initiated").is_none_or(|at| at.get(..19).is_none_or(|at| at >= since.as_str()));
        is_meant.then(|| text("UploadId"))?
    };
    Ok(document.descendants().filter(|node| node.tag_name().name() == "Upload").filter_map(|node| of(&node)).collect())
}

/// A time, in nanoseconds since 1970, as listings have it, to the second.
fn stamp(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let day = days + 1;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_part_has_the_tag_that_the_store_says() {
        let answer = "<?xml version='1.0'?><CopyPartResult xmlns='x'><LastModified>y</LastModified><ETag>&quot;a&quot;</ETag></CopyPartResult>";
        assert_eq!(copied(answer).as_deref(), Some("\"a\""));
        assert_eq!(copied("<Error><Code>InternalError</Code></Error>"), None);
    }

    #[test]
    fn uploads_are_those_to_a_key_since_a_time() {
        assert_eq!(stamp(951_782_400_000_000_000), "2000-02-29T00:00:00");
        assert_eq!(stamp(1_796_052_309_500_000_000), "2026-11-30T15:25:09");
        let upload = |key: &str, id: &str, at: &str| {
            format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{at}</Initiated></Upload>")
        };
        let all = [
            upload("p/a", "late", "2026-11-30T15:25:09.123Z"),
            upload("p/a", "early", "2026-11-30T15:25:08.999Z"),
            upload("p/ab", "other", "2026-11-30T15:25:10.000Z"),
        ];
        let listing = format!("<ListMultipartUploadsResult xmlns='x'>{}</ListMultipartUploadsResult>", all.concat());
        assert_eq!(uploads(listing.as_bytes(), "p/a", 1_796_052_309_500_000_000).unwrap(), ["late"]);
        for senseless in [&b""[..], b"\xff", b"<a>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"] {
            assert!(uploads(senseless, "p/a", 0).is_err());
        }
    }
}
