//! EC2's Query interface: a form in, XML out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use roxmltree::{Document, Node};
use time::{Date, Month, PrimitiveDateTime, Time};
use ureq::http::header::DATE;
use ureq::http::{HeaderMap, Method, StatusCode, Uri};

use super::credentials::Credentials;
use super::sign::{FORM, Request, sign};
use crate::ProviderError;
use crate::clock::Clock;
use crate::cloud::failure;
use crate::cloud::http::{Client, Text, encoded, retry_after, sentence};

/// The version of the interface.
pub const VERSION: &str = "2016-11-15";
/// The domain of regions, those of `aws-us-gov` among them.
const DOMAIN: &str = "amazonaws.com";
/// How the names of regions of other partitions begin, and their domains, as the client of AWS has them.
const DOMAINS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
];
/// What speaks, for sentences.
const SERVICE: &str = "EC2";

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://ec2.eu-north-1.amazonaws.com`, without a path.
    pub url: String,
    /// The region in which signatures count.
    pub region: String,
}

impl Endpoint {
    /// That of a region, unless another one is named.
    #[must_use]
    pub fn new(region: &str, url: Option<&str>) -> Self {
        let domain = DOMAINS.iter().find(|(prefix, _)| region.starts_with(prefix)).map_or(DOMAIN, |(_, domain)| domain);
        let url = url.map_or_else(|| format!("https://ec2.{region}.{domain}"), str::to_owned);
        Self { url: url.trim_end_matches('/').to_owned(), region: region.to_owned() }
    }

    /// As the header `Host` has it.
    fn host(&self) -> String {
        let uri: Result<Uri, _> = self.url.parse();
        uri.ok().and_then(|uri| Some(uri.authority()?.as_str().to_owned())).unwrap_or_default()
    }
}

/// What a call consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The name of the call, such as `DescribeVolumes`.
    pub action: &'static str,
    parameters: Vec<(String, String)>,
}

impl Query {
    /// One without parameters.
    #[must_use]
    pub const fn new(action: &'static str) -> Self {
        Self { action, parameters: Vec::new() }
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.parameters.push((name.into(), value.to_string()));
        self
    }

    /// As it is sent.
    fn form(&self) -> String {
        let mut form = format!("Action={}&Version={VERSION}", self.action);
        for (name, value) in &self.parameters {
            form.push_str(&format!("&{}={}", encoded(name), encoded(value)));
        }
        form
    }
}

/// A refusal in EC2's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which call was refused.
    pub action: &'static str,
    /// The status.
    pub status: StatusCode,
    /// The code, which decides what is meant.
    pub code: String,
    /// The message, as people are told.
    pub said: String,
    /// When to ask again, if it says.
    pub after: Option<Duration>,
    /// By how many seconds this machine's clock is ahead of the service's, if that is known.
    pub ahead_s: Option<i64>,
}

/// Why a call has no answer.
pub type Failure = failure::Failure<Refusal>;

/// The client.
#[derive(Clone)]
pub struct Ec2 {
    client: Client,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ec2").field(&self.client).finish()
    }
}

impl Ec2 {
    /// Asks nobody yet.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock }
    }

    /// Asks once, and reads the answer.
    ///
    /// # Errors
    /// As `Failure` says. Unless EC2 refuses it, the call may have been carried out.
    pub fn ask<T>(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
        query: &Query,
        read: impl FnOnce(Node<'_, '_>) -> Result<T, ProviderError>,
    ) -> Result<T, Failure> {
        let (form, host) = (query.form(), endpoint.host());
        let unix_s = self.clock.now_ms() / 1000;
        let signed = sign(&Request { host: &host, region: &endpoint.region, body: &form, unix_s }, credentials);
        let mut headers =
            vec![("host", &*host), ("x-amz-date", &*signed.date), ("authorization", &*signed.authorization)];
        headers.extend(credentials.token.as_ref().map(|token| ("x-amz-security-token", token.reveal())));
        let url = format!("{}/", endpoint.url);
        let answer = self.client.exchange(&Text {
            service: SERVICE,
            method: &Method::POST,
            url: &url,
            headers: &headers,
            body: Some((FORM, &form)),
        })?;
        let foreign = |why: &str| Failure::Other(answer.foreign("XML of EC2", why));
        if answer.status.is_redirection() {
            return Err(foreign(""));
        }
        let text = std::str::from_utf8(&answer.text).map_err(|error| foreign(&error.to_string()))?;
        let document = Document::parse(text).map_err(|error| foreign(&error.to_string()))?;
        let root = document.root_element();
        let name = root.tag_name().name();
        if answer.status.is_success() && name.strip_suffix("Response") == Some(query.action) {
            return Ok(read(root)?);
        }
        let error = root.descendants().find(|node| name == "Response" && node.has_tag_name("Error"));
        let code = error.and_then(|error| child(error, "Code"));
        match code {
            Some(code) if !answer.status.is_success() && is_word(code) => Err(Failure::Refused(Refusal {
                action: query.action,
                status: answer.status,
                code: code.to_owned(),
                said: sentence(error.and_then(|error| child(error, "Message")).unwrap_or_default()),
                after: retry_after(&answer.headers),
                ahead_s: server_time_s(&answer.headers).map(|there| unix_s.cast_signed().saturating_sub(there)),
            })),
            _ => Err(foreign(&format!("its root is \"{}\"", sentence(name)))),
        }
    }
}

fn is_word(code: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    (1..=100).contains(&code.len()) && code.bytes().all(allowed)
}

/// The text of a child element, whatever its namespace.
#[must_use]
pub fn child<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    element(node, name)?.text()
}

/// A child element.
#[must_use]
pub fn element<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.tag_name().name() == name)
}

/// The members of a list among the children of an element; none if there is no such list.
pub fn items<'a, 'input: 'a>(node: Node<'a, 'input>, name: &str) -> impl Iterator<Item = Node<'a, 'input>> {
    element(node, name).into_iter().flat_map(|list| list.children()).filter(|child| child.tag_name().name() == "item")
}

/// The time in `Date`, such as `Sat, 28 Nov 2026 09:57:58 GMT`, in seconds since 1970-01-01.
fn server_time_s(headers: &HeaderMap) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = headers.get(DATE)?.to_str().ok()?.split_whitespace().skip(1);
    let day = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|there| *there == month)? + 1;
    let year = words.next()?.parse().ok()?;
    let mut of_day = words.next()?.split(':').map(|number| number.parse::<u8>().ok());
    let time = Time::from_hms(of_day.next()??, of_day.next()??, of_day.next()??).ok()?;
    let date = Date::from_calendar_date(year, Month::try_from(u8::try_from(month).ok()?).ok()?, day).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_forms_and_endpoints_those_of_their_regions() {
        let query = Query::new("CreateTags").with("Tag.1.Key", "surgetank:owner").with("Tag.1.Value", "a b&\u{e4}+");
        assert_eq!(
            query.form(),
            "Action=CreateTags&Version=2016-11-15&Tag.1.Key=surgetank%3Aowner&Tag.1.Value=a%20b%26%C3%A4%2B"
        );
        let url = |region: &str, url: Option<&str>| Endpoint::new(region, url).url;
        assert_eq!(url("eu-north-1", None), "https://ec2.eu-north-1.amazonaws.com");
        for (region, domain) in [
            ("us-gov-west-1", "amazonaws.com"),
            ("us-isolde-1", "amazonaws.com"),
            ("cn-north-1", "amazonaws.com.cn"),
            ("eusc-de-east-1", "amazonaws.eu"),
            ("us-iso-east-1", "c2s.ic.gov"),
            ("us-isob-east-1", "sc2s.sgov.gov"),
            ("eu-isoe-west-1", "cloud.adc-e.uk"),
            ("us-isof-south-1", "csp.hci.ic.gov"),
        ] {
            assert_eq!(url(region, None), format!("https://ec2.{region}.{domain}"));
        }
        let near = Endpoint::new("x-1", Some("http://127.0.0.1:99/"));
        assert_eq!((&*near.url, &*near.host()), ("http://127.0.0.1:99", "127.0.0.1:99"));
    }

    #[test]
    fn the_time_of_the_service_is_read() {
        let at = |text: &str| server_time_s(&HeaderMap::from_iter([(DATE, text.parse().unwrap())]));
        assert_eq!(at("Sat, 28 Nov 2026 09:57:58 GMT"), Some(1_795_859_878));
        for odd in ["", "Sat", "Sat, 28 Nox 2026 09:57:58 GMT", "Sat, 99 Nov 2026 09:57:58 GMT", "Sat, 28 Nov 2026 9"] {
            assert_eq!(at(odd), None, "{odd}");
        }
    }
}
