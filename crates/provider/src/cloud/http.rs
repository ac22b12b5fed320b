//! One call over HTTP to a cloud's interface, which answers in JSON as a rule: bounded in time and length, without proxies or
//! redirects, and whatever else answers is told in one sentence.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ureq::http::{HeaderMap, Method, Request, StatusCode, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::ProviderError;
use crate::service::tls;

/// What bodies are.
const JSON: &str = "application/json";
/// The longest answer, in bytes: a page of 1,000 volumes has a tenth of it.
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// How much is repeated of what a service says, in characters.
const SENTENCE_MAX: usize = 400;
/// Where systems keep the authorities that they trust: Debian and its descendants, Fedora and its, SUSE.
const AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// A client of a cloud.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    timeout: Duration,
}

/// What is asked.
pub struct Call<'a> {
    /// What is asked, for sentences: `Cinder`.
    pub service: &'a str,
    /// How.
    pub method: Method,
    /// Where.
    pub url: &'a str,
    /// More headers; a token may be among them.
    pub headers: &'a [(&'static str, &'a str)],
    /// What is sent; a password may be in it.
    pub body: Option<&'a Value>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} at {}", self.method, self.service, origin(self.url))
    }
}

/// What is sent and answered as a text of whatever kind.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// What is asked, for sentences.
    pub service: &'a str,
    /// How.
    pub method: &'a Method,
    /// Where.
    pub url: &'a str,
    /// All headers but those of the body; a secret may be among them.
    pub headers: &'a [(&'static str, &'a str)],
    /// What kind of body is sent, and the body; a secret may be in it.
    pub body: Option<(&'static str, &'a str)>,
}

/// What was answered as a text. A secret may be in it.
pub struct TextAnswer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: Vec<u8>,
    /// Which service answered, and where, for sentences.
    at: String,
}

impl TextAnswer {
    /// What is said of an answer that is none of the service's, which speaks `language`; `why`: where it is none.
    #[must_use]
    pub fn foreign(&self, language: &str, why: &str) -> ProviderError {
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            return ProviderError::Throttled {
                after: retry_after(&self.headers),
                text: format!("what answers for {} wants fewer of them", self.at),
            };
        }
        ProviderError::Transient(other(&self.at, self.status, &self.text, language, &sentence(why)))
    }
}

/// What was answered. It is JSON, or nothing. A token may be in it.
#[derive(Clone)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; `Null` if there is none.
    pub body: Value,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer with status {}", self.status.as_u16())
    }
}

impl Answer {
    /// When to ask again, if it says.
    #[must_use]
    pub fn after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }

    /// What is said of an answer that is none of the service's. `login`: of whom its tokens are; `section`: where its endpoint is written.
    #[must_use]
    pub fn foreign(&self, service: &str, login: &str, section: &str) -> ProviderError {
        match self.status.as_u16() {
            429 => ProviderError::Throttled {
                after: self.after(),
                text: format!("what answers for {service} wants fewer of them"),
            },
            401 => ProviderError::Invalid(format!(
                "what answers for {service} refuses a token that was just given: check the {login}, or the credential_command"
            )),
            status => ProviderError::Transient(format!(
                "what answers for {service} (with status {status}) is not it: check endpoint in {section}, and what stands before it"
            )),
        }
    }
}

/// Checks how long an answer may take.
///
/// # Errors
/// One sentence with the remedy.
pub fn check_timeout(timeout: Duration) -> Result<(), String> {
    if timeout < Duration::from_secs(1) {
        return Err("timeout is less than 1 s: write how long an answer may take, such as \"60 s\"".to_owned());
    }
    Ok(())
}

impl Client {
    /// Prepares a client that waits so long for each answer and trusts the authorities in `ca_file`, or those of the system.
    ///
    /// # Errors
    /// One sentence with the remedy: no authorities.
    pub fn new(timeout: Duration, ca_file: Option<&Path>) -> Result<Self, String> {
        let roots = ca_file.map_or_else(|| Ok(system_authorities()), tls::authorities)?;
        Ok(Self { agent: agent(timeout, roots), timeout })
    }

    /// Asks once.
    ///
    /// # Errors
    /// `Throttled` if whoever answers says so without JSON; else `Transient`, with a sentence, if nobody or somebody else
    /// answers: the call may have been carried out.
    pub fn call(&self, call: &Call<'_>) -> Result<Answer, ProviderError> {
        self.call_for(call, |_| false)
    }

    /// The same, where some statuses say enough, whatever comes with them.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_for(
        &self,
        call: &Call<'_>,
        says_enough: impl FnOnce(StatusCode) -> bool,
    ) -> Result<Answer, ProviderError> {
        let body = call.body.map(Value::to_string);
        let headers: Vec<_> = [("accept", JSON)].into_iter().chain(call.headers.iter().copied()).collect();
        let answer = self.exchange(&Text {
            service: call.service,
            method: &call.method,
            url: call.url,
            headers: &headers,
            body: body.as_deref().map(|body| (JSON, body)),
        })?;
        let body = if answer.text.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&answer.text) };
        let TextAnswer { status, .. } = answer;
        match body {
            Ok(body) if !status.is_redirection() => Ok(Answer { status, headers: answer.headers, body }),
            // Some gateways look at tokens themselves: whoever refuses it, another one may do.
            _ if status == StatusCode::UNAUTHORIZED => {
                Ok(Answer { status, headers: answer.headers, body: Value::Null })
            }
            _ if says_enough(status) => Ok(Answer { status, headers: answer.headers, body: Value::Null }),
            body => Err(answer.foreign("JSON", &body.err().map(|error| error.to_string()).unwrap_or_default())),
        }
    }

    /// Asks once, in whatever language.
    ///
    /// # Errors
    /// `Transient`, with a sentence, if nobody answers: the call may have been carried out.
    pub fn exchange(&self, call: &Text<'_>) -> Result<TextAnswer, ProviderError> {
        let at = format!("{} at {}", call.service, origin(call.url));
        let mut request = Request::builder().method(call.method.clone()).uri(call.url);
        for (name, value) in call.headers {
            request = request.header(*name, *value);
        }
        // No sentence repeats the headers.
        let unwritten =
            |_| ProviderError::Invalid(format!("a request to {at} cannot be written: check its url and the secrets"));
        let answer = match call.body {
            Some((kind, body)) => request
                .header(CONTENT_TYPE, kind)
                .body(body.to_owned())
                .map_err(unwritten)
                .map(|request| self.agent.run(request)),
            // With its length, which is 0: some services answer nothing else.
            None if call.method == Method::POST || call.method == Method::PUT => {
                request.body("").map_err(unwritten).map(|request| self.agent.run(request))
            }
            None => request.body(()).map_err(unwritten).map(|request| self.agent.run(request)),
        }?;
        let silent = |error: &ureq::Error| {
            ProviderError::Transient(match error {
                ureq::Error::Timeout(_) => format!("{at} does not answer within {:?}", self.timeout),
                error if is_untrusted(error) => format!(
                    "{at} shows a certificate that is not trusted ({}): name the file of its authority as ca_file",
                    sentence(&error.to_string())
                ),
                _ => format!("{at} does not answer: {}", sentence(&error.to_string())),
            })
        };
        let mut answer = answer.map_err(|error| silent(&error))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text =
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(|error| match error {
                ureq::Error::Timeout(_) => silent(&error),
                ureq::Error::BodyExceedsLimit(_) => ProviderError::Transient(format!(
                    "{at} answers with more than {} MiB, which are not read: check its url",
                    ANSWER_BYTES_MAX >> 20
                )),
                error => ProviderError::Transient(format!(
                    "{at} breaks off in the middle of its answer: {}",
                    sentence(&error.to_string())
                )),
            })?;
        Ok(TextAnswer { status, headers, text, at })
    }
}

/// Whether TLS failed for a certificate. What sends requests wraps that in an error of input.
fn is_untrusted(error: &ureq::Error) -> bool {
    let inner = match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// What is said of an answer that is none of the service's.
fn other(at: &str, status: StatusCode, text: &[u8], language: &str, why: &str) -> String {
    let status_number = status.as_u16();
    if status.is_redirection() {
        return format!(
            "{at} sends elsewhere (status {status_number}), where no secret is sent: write the url of where it answers"
        );
    }
    if status.is_server_error() {
        return format!(
            "{at} answers with status {status_number} and no {language}: what stands before it does not reach it"
        );
    }
    if text.trim_ascii_start().starts_with(b"<") {
        return format!(
            "{at} answers with a web page (status {status_number}), as the login page of a proxy does: check the url, and what stands before it"
        );
    }
    format!("{at} answers something that is no {language} (status {status_number}: {why}): check the url")
}

/// What sends requests that may show a secret, to whoever has a certificate of these authorities.
pub(crate) fn agent(timeout: Duration, authorities: Vec<Certificate<'static>>) -> Agent {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        // Secrets must reach this host and no other.
        .max_redirects(0)
        .proxy(None)
        .tls_config(tls)
        // Calls are minutes apart: by then the other end has closed the connection, or is another one.
        .max_idle_connections(0)
        .user_agent(concat!("surgetank/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

/// The authorities that this system trusts; none if it has no such file, and then no certificate is good.
fn system_authorities() -> Vec<Certificate<'static>> {
    AUTHORITIES.iter().find_map(|path| tls::parsable_authorities(Path::new(path))).unwrap_or_default()
}

/// A URL without its path.
fn origin(url: &str) -> String {
    let parsed: Result<Uri, _> = url.parse();
    let of = |uri: Uri| {
        // Without a user.
        let host = uri.authority()?.as_str().rsplit('@').next()?.to_owned();
        Some(format!("{}://{host}", uri.scheme_str()?))
    };
    parsed.ok().and_then(of).unwrap_or_default()
}

/// The time in `Retry-After`, in seconds. A date is none: clocks may differ.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// What a service says, as people are told: one line, and not a long one.
pub(crate) fn sentence(said: &str) -> String {
    let shown = said.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(SENTENCE_MAX).collect()
}

/// A text as one segment of a path, or one value of a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What the client makes of these bytes.
    fn answered(bytes: Vec<u8>) -> Result<Answer, ProviderError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            // A client that has read enough closes.
            let _ = stream.write_all(&bytes);
        });
        let client = Client::new(Duration::from_secs(60), None).unwrap();
        let headers = [("x-auth-token", "swordfish")];
        let call = Call { service: "Cinder", method: Method::GET, url: &url, headers: &headers, body: None };
        let answer = client.call(&call);
        serving.join().unwrap();
        if let Err(error) = &answer {
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.contains("swordfish") && text.len() < 700, "{text}");
            assert!(text.contains("Cinder at http://127.0.0.1:"), "{text}");
        }
        answer
    }

    fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}")
            .into_bytes()
    }

    #[test]
    fn json_and_nothing_are_answers_whatever_their_status() {
        let answer = answered(response("413 Too Large", "Retry-After: 3\r\n", "{\"overLimit\": {}}")).unwrap();
        assert_eq!((answer.status.as_u16(), answer.after()), (413, Some(Duration::from_secs(3))));
        assert_eq!(answered(response("202 Accepted", "", "")).unwrap().body, Value::Null);
        let refused = answered(response("401 No", "", "<html>")).unwrap();
        assert_eq!((refused.status.as_u16(), refused.body), (401, Value::Null), "a token can be refused without it");
    }

    #[test]
    fn calls_and_answers_are_shown_without_secrets() {
        let body = serde_json::json!({ "password": "swordfish" });
        let (url, headers) = ("https://u:swordfish@cinder.example/v3/swordfish", [("x-auth-token", "swordfish")]);
        let call = Call { service: "Cinder", method: Method::GET, url, headers: &headers, body: Some(&body) };
        assert_eq!(format!("{call:?}"), "GET to Cinder at https://cinder.example");
        let headers = HeaderMap::from_iter([("x-subject-token".parse().unwrap(), "swordfish".parse().unwrap())]);
        let answer = Answer { status: StatusCode::CREATED, headers, body };
        assert_eq!(format!("{answer:?}"), "an answer with status 201");
    }

    #[test]
    fn whatever_else_answers_is_told_in_one_sentence() {
        let huge = "x".repeat(usize::try_from(ANSWER_BYTES_MAX).unwrap() + 1);
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"volumes\": [".to_vec();
        for (bytes, why) in [
            (response("200 OK", "", "\n<!DOCTYPE html><title>Login</title>"), "login page of a proxy"),
            (response("502 Bad Gateway", "", "<html>"), "does not reach it"),
            (response("302 Found", "Location: http://127.0.0.1:1/\r\n", ""), "sends elsewhere"),
            (response("200 OK", "", "{\"volumes\": ["), "no JSON"),
            (response("200 OK", "", "\u{1b}[2J"), "no JSON"),
            (response("200 OK", "", &huge), "more than 32 MiB"),
            (cut, "breaks off"),
            (b"nonsense\r\n\r\n".to_vec(), "does not answer"),
            (Vec::new(), "does not answer"),
        ] {
            match answered(bytes) {
                Err(ProviderError::Transient(text)) => assert!(text.contains(why), "{why}: {text}"),
                answer => panic!("{why}: {answer:?}"),
            }
        }
        match answered(response("429 Slow", "Retry-After: 7\r\n", "<html>")) {
            Err(ProviderError::Throttled { after, .. }) => assert_eq!(after, Some(Duration::from_secs(7))),
            answer => panic!("{answer:?}"),
        }
    }

    #[test]
    fn texts_are_encoded_for_paths_and_queries() {
        assert_eq!(encoded("surgetank:owner/ä"), "surgetank%3Aowner%2F%C3%A4");
    }
}
