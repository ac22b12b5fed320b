//! What the clients of clouds share: calls over HTTP with limits, rates, credentials that nobody prints, tokens that are renewed,
//! metadata services, the place of the first use, refusals, changes that are on the way and how often they are looked at.

pub mod command;
pub mod failure;
pub mod http;
pub mod known;
pub mod looks;
pub mod metadata;
pub mod place;
pub mod rates;
pub mod token;

use std::fmt;
use std::net::IpAddr;

use time::{Date, Month, PrimitiveDateTime, Time};
use ureq::http::Uri;

use crate::service::is_private;

/// A secret: a password, or a token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl Hidden {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What is hidden, for the request that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// Checks where secrets are sent to: over TLS, or to an address of this machine or of a private network. `allow_plain` lets
/// names pass as well, as whoever answers for them decides who reads the secrets.
///
/// # Errors
/// One sentence with the remedy. `what` is what is called there.
pub fn check_url(what: &str, url: &str, allow_plain: bool) -> Result<(), String> {
    let shown = without_user(url);
    let wrong = |why: &str| Err(format!("the url {shown:?} of {what} {why}"));
    let Ok(uri) = url.parse::<Uri>() else {
        return wrong("is none: write it as \"https://cloud.example:5000/v3\"");
    };
    // Also after the host: a password with a slash in it ends the host of what is read.
    if uri.authority().is_none() || url.contains('@') || uri.query().is_some() {
        return wrong("is more than a host, a port and a path: write it as \"https://cloud.example:5000/v3\"");
    }
    match uri.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if allow_plain || uri.host().is_some_and(is_near) => Ok(()),
        Some("http") => wrong(
            "sends secrets over a wire as they are: use its https:// url, or write allow_plain = true if nobody else is on that wire",
        ),
        _ => wrong("does not begin with https:// or http://"),
    }
}

/// Checks where a service is, as a section of the configuration says it, which adds the path itself: `path` says which.
///
/// # Errors
/// As [`check_url`].
pub fn check_endpoint(what: &str, endpoint: &str, path: &str) -> Result<(), String> {
    check_url(what, endpoint, false)?;
    if endpoint.trim_end_matches('/').splitn(4, '/').nth(3).is_some() {
        return Err(format!("endpoint is {endpoint:?}: write it without a path, {path}"));
    }
    Ok(())
}

/// A URL as people are told of it: without what may be a password, and without a query.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // A password may have any sign in it, also those that end a host.
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.split('?').next().unwrap_or_default();
    if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        host.to_owned()
    } else {
        format!("{scheme}://{host}")
    }
}

/// Whether a URL's host is this machine or an address of a private network.
fn is_near(host: &str) -> bool {
    host == "localhost" || address(host).is_some_and(is_private)
}

/// The address that a URL's host is, if it is no name.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// A time such as `2026-11-28T07:35:25.000000Z`, to the second.
#[must_use]
pub fn moment(text: &str) -> Option<PrimitiveDateTime> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u16>().ok();
    let byte = |from: usize| u8::try_from(number(from, from + 2)?).ok();
    let month = Month::try_from(byte(5)?).ok()?;
    let date = Date::from_calendar_date(number(0, 4)?.into(), month, byte(8)?).ok()?;
    Some(PrimitiveDateTime::new(date, Time::from_hms(byte(11)?, byte(14)?, byte(17)?).ok()?))
}

/// A time of RFC 3339 with its zone (`…Z`, `…-08:00`), in milliseconds since 1970-01-01 UTC; none is before that.
#[must_use]
pub fn unix_ms(text: &str) -> Option<u64> {
    const SECONDS: usize = "2026-11-28T07:35:25".len();
    let rest = text.get(SECONDS..)?;
    let (digits, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("", rest),
    };
    let ms: i64 = format!("{digits:0<3}").get(..3)?.parse().ok()?;
    let offset_s = match zone {
        "Z" => 0,
        zone => {
            let sign = if zone.starts_with('-') { -1 } else { i64::from(zone.starts_with('+')) };
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let two =
                |text: &str| text.parse::<i64>().ok().filter(|number| text.len() == 2 && (0..60).contains(number));
            (sign != 0).then_some(sign * (two(hours)? * 3600 + two(minutes)? * 60))?
        }
    };
    u64::try_from((moment(text)?.assume_utc().unix_timestamp() - offset_s) * 1000 + ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_any_zone() {
        let at = unix_ms("2026-11-28T07:35:25Z");
        assert_eq!(at, Some(1_795_851_325_000));
        for same in ["2026-11-28T07:35:25+00:00", "2026-11-28T09:05:25.0004+01:30", "2026-11-27T23:35:25-08:00"] {
            assert_eq!(unix_ms(same), at, "{same}");
        }
        assert_eq!(unix_ms("2026-11-28T07:35:25.5Z"), at.map(|ms| ms + 500));
        assert_eq!(unix_ms("2026-11-28T00:35:25.123456-07:00"), at.map(|ms| ms + 123));
        for odd in [
            "2026-11-28T07:35:25",
            "2026-11-28T07:35:25.",
            "2026-11-28T07:35:25.5",
            "2026-11-28T07:35:25 00:00",
            "2026-11-28T07:35:25+99:00",
            "soon",
            "",
        ] {
            assert_eq!(unix_ms(odd), None, "{odd}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Hidden::new("swordfish")), "Hidden");
    }

    #[test]
    fn secrets_leave_this_machine_and_private_networks_under_tls_alone() {
        for url in [
            "https://cloud.example/v3",
            "http://127.0.0.1:5000/v3",
            "http://10.1.2.3",
            "http://[fd00::1]:5000",
            "http://localhost",
        ] {
            assert_eq!(check_url("Keystone", url, false), Ok(()), "{url}");
        }
        for (url, why) in [
            ("http://cloud.example/v3", "allow_plain"),
            ("http://8.8.8.8", "allow_plain"),
            ("http://localhost.example", "allow_plain"),
            ("ftp://127.0.0.1", "does not begin"),
            ("cloud.example", "does not begin"),
            ("https://user:word@cloud.example", "is more than"),
            ("https://user:wo/rd@cloud.example", "\"https://cloud.example\""),
            ("user:word://@cloud.example", "\"cloud.example\""),
            ("user:word@cloud.example", "\"cloud.example\""),
            ("https://user:word @cloud.example/v3", "is none"),
            ("https://cloud.example/?a=word", "is more than"),
            ("http://a b", "is none"),
            ("", "is none"),
        ] {
            let error = check_url("Keystone", url, false).unwrap_err();
            assert!(error.contains(why) && error.contains("Keystone"), "{error}");
            assert!(!error.contains("word") && !error.contains("rd@"), "{error}");
        }
        assert_eq!(check_url("Keystone", "http://controller:5000", true), Ok(()));
    }
}
