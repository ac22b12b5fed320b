//! A manager, and a benefactor, as processes of their own: for pools of several machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::scrub;
use surgetank_pool_core::id::{BenefactorId, Domain};
use surgetank_pool_core::meta::value::Lends;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::benefactor;
use crate::benefactor::ssd::{Directory, Ssd};
use crate::client::{self, PoolClient};
use crate::local::{Error, Undrained, undrained};
use crate::manager::{self, Leaving};
use crate::meta::{MetaStore, etcd};
use crate::rpc::{self, Listener, advertised};
use crate::security::tls::{BadCertificates, Tls};
use crate::security::{Access, Credentials};
use crate::setup;

/// Between two looks whether a process that waits is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long managers may take to answer before somebody is told.
const LATE: Duration = Duration::from_secs(1);
/// How long managers may take to say who lends.
const ANSWER: Duration = Duration::from_secs(60);

/// A manager to run.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// Where the pool's key is kept, and its store unless that is an etcd.
    pub directory: PathBuf,
    /// The etcd that is its store.
    pub store: Option<etcd::Config>,
    /// Its key takes the place of the one that the etcd is used with.
    pub new_key: bool,
    /// Where it listens: HOST:PORT.
    pub listen: String,
    /// Its certificates.
    pub certificates: Option<PathBuf>,
    /// Where its metrics are served: HOST:PORT.
    #[cfg(feature = "metrics")]
    pub metrics: Option<String>,
}

/// What a process is doing until it ends.
struct Running {
    runtime: Option<Runtime>,
    ended: oneshot::Receiver<String>,
}

impl Running {
    fn start(runtime: Runtime, task: impl Future<Output = String> + Send + 'static) -> Self {
        let (tell, ended) = oneshot::channel();
        runtime.spawn(async move {
            let _ = tell.send(task.await);
        });
        Self { runtime: Some(runtime), ended }
    }

    fn has_ended(&mut self) -> Option<String> {
        match self.ended.try_recv() {
            Ok(why) => Some(why),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some("it has failed by a fault of this program: see its log".to_owned()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

/// Reads the certificates of a process that serves.
///
/// # Errors
/// [`Error::Certificates`].
fn tls(certificates: Option<&Path>) -> Result<Option<Tls>, Error> {
    Ok(certificates.map(|directory| Tls::read(directory, true)).transpose()?)
}

/// A manager that runs. Dropping it ends it; everything that it knows is in the store.
pub struct ManagerProcess {
    address: String,
    store: Arc<dyn MetaStore>,
    running: Running,
}

impl ManagerProcess {
    /// Makes the pool's directory and key if they are not there, opens the store, and serves. It waits for an etcd that does not answer
    /// yet, and tells why, until it is told to end: `None`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(
        config: &ManagerConfig,
        tell: impl Fn(&str),
        is_to_end: impl Fn() -> bool,
    ) -> Result<Option<Self>, Error> {
        rpc::check(&config.listen, config.certificates.is_some())?;
        let tls = tls(config.certificates.as_deref())?;
        setup::make_directory(&config.directory)?;
        let credentials = Credentials::of_directory(&config.directory, tls)?;
        let runtime = Builder::new_multi_thread().thread_name("manager").enable_all().build()?;
        let entered = runtime.enter();
        let of_store = setup::Store {
            directory: &config.directory,
            etcd: config.store.as_ref(),
            key: credentials.key(),
            new_key: config.new_key,
        };
        // What is wrong with the address is said before an etcd is used with this key.
        drop(Listener::bind(&config.listen, &credentials)?);
        #[cfg(feature = "metrics")]
        let watched = crate::metrics::serve(config.metrics.as_deref())?;
        #[cfg(feature = "metrics")]
        watched.waits_for_store();
        let opening = of_store.wait(tell);
        let Some(store) = runtime.block_on(unless(is_to_end, opening)).transpose()? else { return Ok(None) };
        let listener = Listener::bind(&config.listen, &credentials)?;
        #[cfg(feature = "metrics")]
        let listener = listener.watched_by(&watched);
        let address = listener.address()?.to_string();
        let of_manager = Arc::clone(&store);
        drop(entered);
        let running = Running::start(runtime, async move {
            setup::why(manager::run(setup::manager_config(), of_manager, listener).await)
        });
        Ok(Some(Self { address, store, running }))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Files that their targets do not have.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn undrained(&self) -> Result<Vec<Undrained>, Error> {
        match &self.running.runtime {
            Some(runtime) => runtime.block_on(undrained(&*self.store)).map_err(Error::from),
            None => Ok(Vec::new()),
        }
    }

    /// Why it has ended, if it has.
    pub fn has_ended(&mut self) -> Option<String> {
        self.running.has_ended()
    }
}

/// A benefactor to run.
#[derive(Clone, Debug)]
pub struct BenefactorConfig {
    /// The pool's key.
    pub key: PathBuf,
    /// The managers' addresses.
    pub managers: Vec<String>,
    /// Where it listens: HOST:PORT.
    pub listen: String,
    /// Where others reach it, if not there.
    pub advertise: Option<String>,
    /// Its certificates.
    pub certificates: Option<PathBuf>,
    /// Its number in the pool. `None`: one that is made of its address, so that it keeps it.
    pub id: Option<u32>,
    /// What it fails with: benefactors of one name fail together.
    pub domain: String,
    /// Memory that it lends; zero: it lends SSD alone.
    pub memory: Bytes,
    /// The directory of its SSD, and what it lends of it. `None` there: what former lives have left in it is served.
    pub ssd: Option<(PathBuf, Option<Bytes>)>,
    /// It takes nothing new, and lends what it has until that is drained.
    pub leaving: bool,
    /// An SSD that it lent before and has no more is expected no longer: what that alone had is lost.
    pub forget_ssd: bool,
    /// How it scrubs.
    pub scrub: Option<scrub::Config>,
    /// Where its metrics are served: HOST:PORT.
    #[cfg(feature = "metrics")]
    pub metrics: Option<String>,
}

/// A benefactor that runs. Dropping it ends it: what it has in memory is lost.
pub struct BenefactorProcess {
    address: String,
    id: BenefactorId,
    of_pool: client::Config,
    running: Running,
}

impl BenefactorProcess {
    /// Asks the managers who lends, and joins. While none answers it waits, and tells so, until it is told to end: `None`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(
        config: &BenefactorConfig,
        tell: impl FnOnce(),
        is_to_end: impl Fn() -> bool,
    ) -> Result<Option<Self>, Error> {
        match &config.ssd {
            Some(_) if config.memory == Bytes::ZERO => {}
            _ => setup::check_memory(config.memory, 1)?,
        }
        if let Some((_, Some(size))) = &config.ssd {
            Directory::is_enough(size.get()).map_err(|error| Error::LittleSsd(error.to_string()))?;
        }
        rpc::check(&config.listen, config.certificates.is_some())?;
        let credentials = Credentials::read(&config.key, tls(config.certificates.as_deref())?)?;
        let runtime = Builder::new_multi_thread().thread_name("benefactor").enable_all().build()?;
        let entered = runtime.enter();
        let listener = Listener::bind(&config.listen, &credentials)?;
        #[cfg(feature = "metrics")]
        let listener = listener.watched_by(&crate::metrics::serve(config.metrics.as_deref())?);
        let address = advertised(listener.address()?, config.advertise.as_deref())?;
        drop(entered);
        let id = BenefactorId(config.id.unwrap_or_else(|| number(&address)));
        let of_pool = of_pool(&config.managers, credentials.access());
        let asked = unless(is_to_end, told_late(tell, former(&of_pool, id, &address)));
        let Some(former) = runtime.block_on(asked).transpose()? else { return Ok(None) };
        let ssd = ssd(config, former.as_ref())?;
        let of_benefactor = benefactor::Config {
            id,
            domain: Domain(number(&config.domain)),
            memory: config.memory.get(),
            ssd,
            leaving: config.leaving,
            managers: config.managers.clone(),
            advertise: Some(address.clone()),
            scrub: config.scrub,
        };
        let running =
            Running::start(runtime, async move { setup::why(benefactor::run(of_benefactor, listener).await) });
        Ok(Some(Self { address, id, of_pool, running }))
    }

    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> BenefactorId {
        self.id
    }

    /// How many files the pool has that their targets do not have yet, or why no manager says; that it is late is told at once. `None`: it is
    /// to end.
    #[must_use]
    pub fn undrained(&self, tell: impl FnOnce(), is_to_end: impl Fn() -> bool) -> Option<Result<u64, String>> {
        let runtime = self.running.runtime.as_ref()?;
        let asked = unless(is_to_end, told_late(tell, PoolClient::ask_undrained(&self.of_pool)));
        Some(runtime.block_on(asked)?.map_err(|error| error.to_string()))
    }

    /// Whether an operator has taken it out, and nobody needs it any more. While no manager says so, somebody may.
    #[must_use]
    pub fn may_go(&self, is_to_end: impl Fn() -> bool) -> bool {
        let Some(runtime) = &self.running.runtime else { return false };
        let how = runtime.block_on(unless(is_to_end, PoolClient::leaving(&self.of_pool, self.id)));
        matches!(how, Some(Ok(Some(Leaving { may_go: true, .. }))))
    }

    /// Why it has ended, if it has.
    pub fn has_ended(&mut self) -> Option<String> {
        self.running.has_ended()
    }
}

/// What comes of something, unless the process is to end first.
async fn unless<T>(is_to_end: impl Fn() -> bool, what: impl Future<Output = T>) -> Option<T> {
    let told = async {
        while !is_to_end() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        what = what => Some(what),
        () = told => None,
    }
}

/// The same, and it is told once if it is late.
async fn told_late<T>(tell: impl FnOnce(), what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    match tokio::time::timeout(LATE, &mut what).await {
        Ok(what) => what,
        Err(_) => {
            tell();
            what.await
        }
    }
}

fn of_pool(managers: &[String], access: Access) -> client::Config {
    let mut config = client::Config::new(managers.to_vec(), access, "");
    config.timeout = Duration::from_secs(5);
    config
}

/// A number for a name: of different names almost always another.
fn number(name: &str) -> u32 {
    crc32c::crc32c(name.as_bytes())
}

/// What the benefactor of this number lends or lent last, if any did; nobody may do so elsewhere.
async fn former(of_pool: &client::Config, id: BenefactorId, address: &str) -> Result<Option<Lends>, Error> {
    let mut config = of_pool.clone();
    config.timeout = ANSWER;
    let status = PoolClient::ask_status(&config).await.map_err(|error| Error::Ended(error.to_string()))?;
    let elsewhere = status.benefactors.iter().find(|(lends, _)| lends.place.id == id && lends.address != address);
    if let Some((lends, _)) = elsewhere {
        return Err(Error::Ended(format!(
            "{} lends as benefactor {id} already: choose another number with --id, or end that one first",
            lends.address
        )));
    }
    Ok(status.states.into_iter().map(|(lends, ..)| lends).find(|lends| lends.place.id == id))
}

/// Takes the directory of its SSD. One that it lent before may not be mounted yet: in its place none is made.
fn ssd(config: &BenefactorConfig, former: Option<&Lends>) -> Result<Option<Ssd>, Error> {
    let is_there = config.ssd.as_ref().is_some_and(|(path, _)| Directory::is_there(path));
    if let Some(former) = former.filter(|former| former.ssd > Bytes::ZERO && !is_there && !config.forget_ssd) {
        return Err(Error::Ssd(match &config.ssd {
            Some((path, _)) => format!(
                "SSD directory {}: benefactor {} lent {} of SSD when it ran last, and nothing of it is there: mount it there, or accept the \
                 loss of what it alone had with --forget-ssd",
                path.display(),
                former.place.id,
                former.ssd
            ),
            None => format!(
                "benefactor {} lent {} of SSD when it ran last: name its directory with --ssd-directory, or accept the loss of what it alone \
                 had with --forget-ssd",
                former.place.id, former.ssd
            ),
        }));
    }
    let Some((path, size)) = &config.ssd else { return Ok(None) };
    let taken = match size {
        Some(size) => Directory::open(path, size.get()),
        None if is_there => Directory::as_it_is(path),
        None => {
            return Err(Error::Ssd(format!(
                "SSD directory {}: nothing of a benefactor is there: say with --ssd what it lends",
                path.display()
            )));
        }
    };
    Ok(Some(Ssd(Arc::new(taken.map_err(|error| Error::Ssd(error.to_string()))?))))
}

impl From<BadCertificates> for Error {
    fn from(error: BadCertificates) -> Self {
        Self::Certificates(error.0)
    }
}
