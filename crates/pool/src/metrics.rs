//! Metrics of managers and benefactors, in the text format of OpenMetrics, over HTTP. Each scrape makes a page of what is so now; nothing is kept for
//! it but counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use surgetank_pool_core::id::BenefactorId;
use tokio::sync::Semaphore;

use crate::benefactor::Benefactor;
use crate::manager::Manager;
use crate::rpc::{PROTOCOL, bound};

/// What all names begin with.
const PREFIX: &str = "surgetank_pool";
/// What Prometheus knows the format by.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Requests that wait for their turn or are answered at a time. More are refused.
const REQUESTS: usize = 8;
/// How long one waits for its turn: less than whoever scrapes waits.
const TURN: Duration = Duration::from_secs(4);

/// Names and values of a metric's labels.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// What a scrape is answered with.
pub(crate) struct Page(Registry);

impl Page {
    fn new() -> Self {
        let mut page = Self(Registry::with_prefix(PREFIX));
        let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("protocol", PROTOCOL.to_string())];
        page.gauge("build_info", "The release that runs, and the protocol that it speaks", [(labels, 1)]);
        page
    }

    /// What may rise and fall. `help` is a sentence without its full stop.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Gauge>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        self.0.register(name, help, family);
    }

    /// What only rises while a process runs; its name ends in `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    /// Whether the store of names answers this process.
    pub(crate) fn store_up(&mut self, is_up: bool) {
        self.gauge("store_up", "Whether the store of names answers this manager", [(Vec::new(), is_up.into())]);
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// The parts of a process whose metrics are asked for, as long as they run.
#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<Parts>>);

#[derive(Default)]
struct Parts {
    manager: Weak<Manager>,
    /// A manager waits for its store, and has not begun.
    waits: bool,
    benefactors: BTreeMap<BenefactorId, Weak<Benefactor>>,
}

impl Watched {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A manager will begin once its store answers.
    pub(crate) fn waits_for_store(&self) {
        self.parts().waits = true;
    }

    /// A manager begins, in the place of a former one.
    pub(crate) fn manager(&self, manager: &Arc<Manager>) {
        let mut parts = self.parts();
        (parts.manager, parts.waits) = (Arc::downgrade(manager), false);
    }

    /// A benefactor begins.
    pub(crate) fn benefactor(&self, id: BenefactorId, benefactor: &Arc<Benefactor>) {
        self.parts().benefactors.insert(id, Arc::downgrade(benefactor));
    }

    async fn page(&self) -> Page {
        let (manager, waits, benefactors) = {
            let parts = self.parts();
            let alive = |(id, of): (&BenefactorId, &Weak<Benefactor>)| Some((*id, of.upgrade()?));
            (parts.manager.upgrade(), parts.waits, parts.benefactors.iter().filter_map(alive).collect::<Vec<_>>())
        };
        let mut page = Page::new();
        if let Some(manager) = manager {
            manager.observe(&mut page).await;
        } else if waits {
            page.store_up(false);
        }
        if !benefactors.is_empty() {
            crate::benefactor::observe(&benefactors, &mut page);
        }
        page
    }
}

/// Why metrics are not served.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotServed {
    /// The address is none.
    #[error("`{0}` is no address: write HOST:PORT, with the number of a host's address, such as 127.0.0.1:9440")]
    Unreadable(String),
    /// Nobody can listen there.
    #[error("{0}: {1}: choose another address or port")]
    Listen(SocketAddr, String),
}

/// A port on which metrics are served.
struct Listener(tokio::net::TcpListener);

impl Listener {
    fn bind(text: &str) -> Result<Self, NotServed> {
        let address: SocketAddr = text.parse().map_err(|_| NotServed::Unreadable(text.to_owned()))?;
        bound(address).map(Self).map_err(|error| NotServed::Listen(address, error.to_string()))
    }

    #[cfg(test)]
    fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves `/metrics`, for ever. One scrape is answered at a time: each looks at the store.
    async fn serve(self, watched: Watched) {
        let scrapes = Arc::new(Scrapes { watched, all: Semaphore::new(REQUESTS), one: tokio::sync::Mutex::new(()) });
        let router = Router::new().route("/metrics", get(scraped)).with_state(scrapes);
        if let Err(error) = axum::serve(self.0, router).await {
            tracing::error!("metrics are served no more: {error}");
        }
    }
}

/// What scrapes share.
struct Scrapes {
    watched: Watched,
    all: Semaphore,
    one: tokio::sync::Mutex<()>,
}

async fn scraped(State(of): State<Arc<Scrapes>>) -> Response {
    let busy = || (StatusCode::SERVICE_UNAVAILABLE, "others are being answered: ask less often\n").into_response();
    let Ok(_among) = of.all.try_acquire() else { return busy() };
    let Ok(_one) = tokio::time::timeout(TURN, of.one.lock()).await else { return busy() };
    match of.watched.page().await.text() {
        Ok(text) => ([(header::CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Serves metrics of whatever is watched if an address is said, from now on; in a runtime.
///
/// # Errors
/// [`NotServed`].
pub(crate) fn serve(at: Option<&str>) -> Result<Watched, NotServed> {
    let watched = Watched::default();
    if let Some(at) = at {
        tokio::spawn(Listener::bind(at)?.serve(watched.clone()));
    }
    Ok(watched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_openmetrics_with_units_in_names_and_totals_that_say_so() {
        let mut page = Page::new();
        page.gauge("lent_bytes", "What is lent", [(vec![("media", "ssd".to_owned())], 7), (Vec::new(), u64::MAX)]);
        page.counter("drained_bytes", "What was drained", [(Vec::new(), 3)]);
        let text = page.text().unwrap();
        assert!(text.contains("surgetank_pool_build_info{version="), "{text}");
        assert!(text.contains("surgetank_pool_lent_bytes{media=\"ssd\"} 7\n"), "{text}");
        assert!(text.contains(&format!("surgetank_pool_lent_bytes {}\n", i64::MAX)), "{text}");
        assert!(text.contains("# TYPE surgetank_pool_drained_bytes counter\n"), "{text}");
        assert!(text.contains("surgetank_pool_drained_bytes_total 3\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn an_address_that_is_none_is_refused_in_one_sentence() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        for bad in ["9440", "localhost:9440", "", "127.0.0.1:70000"] {
            let told = Listener::bind(bad).err().unwrap().to_string();
            assert!(told.starts_with(&format!("`{bad}` is no address: write HOST:PORT")), "{told}");
        }
        let taken = Listener::bind("127.0.0.1:0").unwrap();
        let told = Listener::bind(&taken.address().unwrap().to_string()).err().unwrap().to_string();
        assert!(told.ends_with("choose another address or port"), "{told}");
    }
}
