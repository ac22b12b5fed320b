//! What stands between a client and its cloud, and does to requests and answers what networks do.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_model::random::Random;

use crate::cloud::uuid;
use crate::http::{Reply, Request, ask, serve};

/// How long clients wait that are to see late answers.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// How often what is late looks whether it is its turn: for 10 s, if nothing like it comes.
const LOOKS_MAX: u32 = 500;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not arrive.
    RequestLost,
    /// It is carried out, and nobody learns.
    AnswerLost,
    /// Nobody learns, and it is carried out after the next one like it.
    RequestLate,
    /// It is refused with 429.
    Throttled,
    /// It is refused with 503, in JSON.
    Unavailable,
    /// It is carried out, and the gateway says 502 in HTML.
    BadGateway,
    /// It is carried out, and half of the answer comes.
    Truncated,
    /// It is carried out, and the answer has no end.
    Huge,
    /// A proxy's login page answers.
    LoginPage,
    /// A gateway has no such path, and says so in JSON.
    NoRoute,
    /// The token is refused.
    Unauthorized,
    /// The same by a gateway, with a page. Not met by chance.
    UnauthorizedPage,
    /// The volume at which a page begins is gone. Not met by chance.
    MarkerGone,
    /// It is carried out, and the answer comes when nobody waits for it any more.
    AnswerLate,
}

impl Fault {
    pub const ALL: [Self; 12] = [
        Self::RequestLost,
        Self::AnswerLost,
        Self::RequestLate,
        Self::Throttled,
        Self::Unavailable,
        Self::BadGateway,
        Self::Truncated,
        Self::Huge,
        Self::LoginPage,
        Self::NoRoute,
        Self::Unauthorized,
        Self::AnswerLate,
    ];
}

/// What plugs disks into a guest, which Nova's fake hypervisor does not.
pub trait Hypervisor: Send + Sync {
    /// After Nova has attached the volume.
    fn plug(&self, volume: &str);
    /// Before Nova detaches it: returns when the guest has released it.
    fn unplug(&self, volume: &str);
}

/// Which calls meet which faults.
#[derive(Default)]
pub struct Faults {
    /// The next call whose method and path match meets the first of these.
    pub scripted: VecDeque<(&'static str, &'static str, Fault)>,
    /// Calls meet one by chance, so many of a hundred.
    pub by_chance: Option<(Random, u64)>,
    /// Whoever plugs disks.
    pub hypervisor: Option<Arc<dyn Hypervisor>>,
    /// What has happened, for the test to count.
    pub met: Vec<Fault>,
    /// Every call that was seen.
    pub seen: Vec<String>,
    /// How many requests are yet to arrive late.
    pub late: usize,
    /// Every call that was answered as usual.
    answered: Vec<String>,
}

impl Faults {
    fn next(&mut self, request: &Request) -> Option<Fault> {
        self.seen.push(format!("{} {}", request.method, request.path));
        let matches =
            |(method, path, _): &(&str, &str, Fault)| *method == request.method && request.path.contains(path);
        if let Some(at) = self.scripted.iter().position(matches) {
            return self.scripted.remove(at).map(|(_, _, fault)| fault);
        }
        let (random, of_hundred) = self.by_chance.as_mut()?;
        let (chance, which) = (random.below(100), random.below(Fault::ALL.len() as u64));
        (chance < *of_hundred).then(|| Fault::ALL[usize::try_from(which).unwrap()])
    }
}

/// A late request, until it has arrived.
struct Arrived(Arc<Mutex<Faults>>);

impl Drop for Arrived {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).late -= 1;
    }
}

/// Passes `/cinder/…` and `/nova/…` on, and says where it is.
pub fn start(cinder: String, nova: String, faults: Arc<Mutex<Faults>>) -> SocketAddr {
    serve(move |request| {
        let (base, path) = match request.path.strip_prefix("/cinder") {
            Some(path) => (&cinder, path.to_owned()),
            None => (&nova, request.path.trim_start_matches("/nova").to_owned()),
        };
        let call = format!("{} {}", request.method, request.path);
        let url = format!("{base}{}", path.trim_start_matches("/v3").trim_start_matches("/v2.1"));
        let fault = {
            let mut faults = faults.lock().unwrap();
            let fault = faults.next(&request);
            faults.met.extend(fault);
            fault
        };
        let url = match (fault, url.split_once("marker=")) {
            (Some(Fault::MarkerGone), Some((before, _))) => format!("{before}marker={}", uuid()),
            _ => url,
        };
        let hypervisor = faults.lock().unwrap().hypervisor.clone();
        let forward = {
            let (request, url) = (request.clone(), url.clone());
            let attachments = request.path.split_once("/os-volume_attachments");
            let detached = attachments.filter(|_| request.method == "DELETE");
            let detached = detached.and_then(|(_, volume)| volume.strip_prefix('/')).map(str::to_owned);
            let attached = attachments.is_some().then(|| serde_json::from_slice::<Value>(&request.body).ok()).flatten();
            let attached = attached.and_then(|body| body["volumeAttachment"]["volumeId"].as_str().map(str::to_owned));
            move || {
                if let (Some(hypervisor), Some(volume)) = (&hypervisor, &detached) {
                    hypervisor.unplug(volume);
                }
                let kept = |name: &str| matches!(name, "x-auth-token" | "openstack-api-version" | "accept");
                let headers = request.headers.iter().filter(|(name, _)| kept(name));
                let headers: Vec<(&str, &str)> = headers.map(|(name, value)| (&**name, &**value)).collect();
                let reply = ask(&request.method, &url, &headers, request.body);
                if let (Some(hypervisor), Some(volume), 200) = (&hypervisor, &attached, reply.status) {
                    hypervisor.plug(volume);
                }
                reply
            }
        };
        let html = |status| Reply { status, headers: Vec::new(), body: b"<html><title>Log in</title></html>".to_vec() };
        match fault {
            None => {
                let bytes = forward().bytes();
                faults.lock().unwrap().answered.push(call);
                bytes
            }
            Some(Fault::RequestLost) => Vec::new(),
            Some(Fault::AnswerLost) => {
                forward();
                Vec::new()
            }
            Some(Fault::AnswerLate) => {
                let bytes = forward().bytes();
                std::thread::sleep(TIMEOUT * 2);
                bytes
            }
            Some(Fault::RequestLate) => {
                let faults = Arc::clone(&faults);
                faults.lock().unwrap().late += 1;
                std::thread::spawn(move || {
                    // Also if what it is sent to has gone.
                    let _arrived = Arrived(Arc::clone(&faults));
                    let count = || faults.lock().unwrap().answered.iter().filter(|there| **there == call).count();
                    let before = count();
                    for _ in 0..LOOKS_MAX {
                        if count() > before {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    forward();
                });
                Vec::new()
            }
            Some(Fault::Throttled) => {
                let body = json!({ "overLimit": { "code": 429, "message": "This request was rate-limited." } });
                let mut reply = Reply::json(429, &body);
                reply.headers.push(("retry-after".to_owned(), "1".to_owned()));
                reply.bytes()
            }
            Some(Fault::Unavailable) => {
                Reply::json(503, &json!({ "serviceUnavailable": { "code": 503, "message": "down" } })).bytes()
            }
            Some(Fault::BadGateway) => {
                forward();
                html(502).bytes()
            }
            Some(Fault::Truncated) => {
                let bytes = forward().bytes();
                bytes[..bytes.len() - bytes.len() / 4].to_vec()
            }
            Some(Fault::Huge) => {
                forward();
                Reply { status: 200, headers: Vec::new(), body: vec![b' '; (32 << 20) + 1] }.bytes()
            }
            Some(Fault::LoginPage) => html(200).bytes(),
            Some(Fault::MarkerGone) => forward().bytes(),
            Some(Fault::UnauthorizedPage) => html(401).bytes(),
            Some(Fault::NoRoute) => {
                let said = format!("Cannot {call}");
                Reply::json(404, &json!({ "error": { "code": 404, "message": said } })).bytes()
            }
            Some(Fault::Unauthorized) => {
                Reply::json(401, &json!({ "error": { "code": 401, "title": "Unauthorized", "message": "no" } })).bytes()
            }
        }
    })
}
