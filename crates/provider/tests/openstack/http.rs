//! A server of HTTP/1.1 that answers each connection once, as its handler says, and a client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Request as Sent;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(there, _)| there == name).map(|(_, value)| &**value)
    }

    fn read(stream: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self { method, path, headers, body: Vec::new() };
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        Self { status, headers, body }
    }

    /// As it crosses the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text =
            format!("HTTP/1.1 {} X\r\nconnection: close\r\ncontent-length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        [text.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// Serves until the test's process ends; the handler says which bytes are answered.
pub fn serve(handler: impl Fn(Request) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || {
                let Some(request) = Request::read(&stream) else { return };
                // Whoever asked may have gone.
                let _ = (&stream).write_all(&handler(request));
            });
        }
    });
    address
}

/// Asks a server.
pub fn ask(method: &str, url: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Reply {
    let config =
        Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None).max_idle_connections(0);
    let agent: Agent = config.build().new_agent();
    let mut request = Sent::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = if body.is_empty() && method != "POST" {
        agent.run(request.body(()).unwrap())
    } else {
        agent.run(request.header("content-type", "application/json").body(body).unwrap())
    };
    let mut answer = answer.unwrap_or_else(|error| panic!("{method} {url}: {error}"));
    let kept = |name: &str| !matches!(name, "content-length" | "transfer-encoding" | "connection");
    let headers = answer.headers().iter().filter(|(name, _)| kept(name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    Reply { status: answer.status().as_u16(), headers, body: answer.body_mut().read_to_vec().unwrap() }
}
