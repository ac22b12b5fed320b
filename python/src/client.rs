//! A session of a mount of the pool, and the names in it.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use pyo3::prelude::*;
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::operation::{At, Refusal};
use surgetank_pool_core::meta::value::{Path, Special};
use surgetank_pool_core::meta::{Durability, Name};
use surgetank_pool_core::placement::Media;
use tokio::runtime::Handle;

use crate::errors::Error;
use crate::files::{self, Opened, Reader, Writer};
use crate::options::Options;
use crate::wait::{OfProcess, Threads, UnderWay, done, done_or};

/// How long a pool may take to answer for the first time.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// What a file of a new mount is safe from, unless it is said.
const DURABILITY: Durability = Durability::Copies { copies: 2, media: Media::Any };
/// Modes of what is made, before the process's mask.
const FILE: u32 = 0o666;
const DIRECTORY: u32 = 0o777;
/// The mask of a process whose own is not known.
const MASK: u32 = 0o022;

/// What is known of a file, directory or symbolic link.
#[pyclass(frozen, get_all, module = "surgetank._native")]
pub struct Stat {
    /// `file`, `directory`, `link` or `other`.
    kind: &'static str,
    /// Bytes, as committed.
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Nanoseconds since 1970.
    modified_ns: u64,
    /// Its number in the pool; `None`: the target alone has it.
    inode: Option<u64>,
    /// How many names it has.
    names: u32,
    /// Where a symbolic link points.
    link: Option<String>,
}

impl From<&client::Stat> for Stat {
    fn from(stat: &client::Stat) -> Self {
        let kind = match (stat.is_directory, &stat.link, &stat.special) {
            (true, ..) => "directory",
            (false, Some(_), _) => "link",
            (false, None, Some(Special { .. })) => "other",
            (false, None, None) => "file",
        };
        let (mode, uid, gid) = stat.owner;
        let link = stat.link.as_deref().map(|to| String::from_utf8_lossy(to).into_owned());
        Self {
            kind,
            size: link.as_ref().map_or(stat.size, |to| to.len() as u64),
            mode: mode & 0o7777,
            uid,
            gid,
            modified_ns: stat.times.modified,
            inode: (!stat.at_target).then_some(stat.inode.0),
            names: stat.names,
            link,
        }
    }
}

/// The session, and the one that follows it when it has ended in the store: what is open stays failed, what is opened afterwards works.
pub struct Session {
    config: client::Config,
    current: RwLock<Arc<PoolClient>>,
    beginning: tokio::sync::Mutex<()>,
    user: u32,
    group: u32,
    mask: u32,
}

impl Session {
    async fn begin(config: client::Config, durability: Option<Durability>) -> Result<Self, Error> {
        let mut first = config.clone();
        first.timeout = FIRST_ANSWER.min(config.timeout);
        PoolClient::ask_status(&first).await.map_err(|error| match error {
            client::Error::Address(_) | client::Error::NotAllowed(_) => Error::Pool(error),
            error => {
                let addresses = config.managers.join(", ");
                let remedy = "start one with `surgetank pool up`, or name its address";
                Error::NoPool(format!("no pool answers at {addresses}: {remedy} ({error})"))
            }
        })?;
        let found = match durability {
            None => PoolClient::begin(config.clone()).await.ok(),
            Some(_) => None,
        };
        let mut config = config;
        config.make = Some((PathBuf::from(&config.mount), durability.unwrap_or(DURABILITY)));
        let found = match found {
            Some(found) => {
                config.make = None;
                found
            }
            None => PoolClient::begin(config.clone()).await?,
        };
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let current = RwLock::new(Arc::new(found));
        Ok(Self { config, current, beginning: tokio::sync::Mutex::default(), user, group, mask: mask() })
    }

    fn present(&self) -> Arc<PoolClient> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// One that lasts, as far as is known.
    pub async fn client(&self) -> Result<Arc<PoolClient>, Error> {
        if !self.present().is_over() {
            return Ok(self.present());
        }
        let _one_at_a_time = self.beginning.lock().await;
        let present = self.present();
        if !present.is_over() {
            return Ok(present);
        }
        let next = Arc::new(PoolClient::begin(self.config.clone()).await?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }

    /// Mode, user and group of what is made.
    fn owner(&self, mode: u32) -> client::Owner {
        (mode & !self.mask, self.user, self.group)
    }
}

/// The mask for modes of new files. Asking for it by umask(2) would change it for all threads.
fn mask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(MASK)
}

/// The names of a path.
fn names(path: &str) -> Result<Path, Error> {
    let name = |name: &str| {
        Name::new(name.as_bytes()).map_err(|error| client::Error::Path(path.to_owned(), error.to_string()))
    };
    let names: Result<Vec<Name>, _> = path.split('/').filter(|name| !name.is_empty()).map(name).collect();
    Ok(Path(names?))
}

/// The pool's number of what is at a path, which becomes the pool's if the target alone has it.
async fn inode(client: &PoolClient, path: &Path, what: &str) -> Result<Inode, Error> {
    let found = client.below(client.root(), path, what).await?;
    Ok(match found.at_target {
        true => client.import(client.root(), path, None, what).await?.inode,
        false => found.inode,
    })
}

/// The directory of a path, and the name in it.
async fn at(client: &PoolClient, what: &str) -> Result<At, Error> {
    let mut directory = names(what)?;
    let Some(name) = directory.0.pop() else {
        return Err(client::Error::Refused(what.to_owned(), Refusal::IsADirectory).into());
    };
    Ok((inode(client, &directory, what).await?, name))
}

/// What is at a path, if it is a regular file.
async fn file(client: &PoolClient, path: &Path, what: &str) -> Result<client::Stat, Error> {
    let found = client.below(client.root(), path, what).await?;
    let why = match Stat::from(&found).kind {
        "file" => return Ok(found),
        "directory" => return Err(client::Error::Refused(what.to_owned(), Refusal::IsADirectory).into()),
        "link" => "it is a symbolic link, which is not followed here: name the file that it points to",
        _ => "it is a FIFO, a socket or a device",
    };
    Err(client::Error::Path(what.to_owned(), why.to_owned()).into())
}

/// A look at the pool, for so many seconds at most.
async fn within<T>(limit_s: Option<f64>, look: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let Some(limit_s) = limit_s else { return look.await };
    let limit = Duration::try_from_secs_f64(limit_s.max(0.0)).unwrap_or(Duration::MAX);
    let late = |_| client::Error::Timeout("an answer of the managers".to_owned(), limit);
    tokio::time::timeout(limit, look).await.map_err(late)?
}

/// Threads and session of a client.
struct Of {
    threads: Arc<Threads>,
    session: Arc<Session>,
}

/// A session of a mount of a staging pool.
#[pyclass(frozen, module = "surgetank._native")]
pub struct Client(OfProcess<Of>);

impl Client {
    fn parts(&self) -> Result<(&Handle, Arc<Session>), Error> {
        let of = self.0.get()?;
        Ok((of.threads.handle()?, Arc::clone(&of.session)))
    }

    fn writer(
        &self,
        py: Python<'_>,
        open: impl Future<Output = Result<(Arc<PoolClient>, client::Writer), Error>> + Send + 'static,
    ) -> PyResult<Writer> {
        let threads = Arc::clone(&self.0.get()?.threads);
        let under_way = threads.begin();
        let opening = async move { Ok((open.await?, under_way)) };
        // A file that nobody writes is closed, as it was committed last.
        let unclaimed = async |((_session, writer), _until_done): ((Arc<PoolClient>, client::Writer), UnderWay)| {
            drop(writer.abandon().await);
        };
        let ((session, writer), _) = done_or(py, threads.handle()?, opening, unclaimed)?;
        Ok(Writer::new(Opened { threads, session }, writer))
    }
}

#[pymethods]
impl Client {
    /// Begins a session.
    #[new]
    #[pyo3(signature = (managers, target, token=None, certificates=None, durable=None, timeout_s=120.0))]
    fn new(
        py: Python<'_>,
        managers: String,
        target: PathBuf,
        token: Option<PathBuf>,
        certificates: Option<PathBuf>,
        durable: Option<String>,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let options = Options { managers, target, token, certificates, durable, timeout_s };
        let (config, durability) = py.detach(|| options.read())?;
        let threads = Arc::new(Threads::start()?);
        let session = done(py, threads.handle()?, Session::begin(config, durability))?;
        Ok(Self(OfProcess::new(Of { threads, session: Arc::new(session) })))
    }

    /// The directory that the mount is drained to.
    #[getter]
    fn target(&self) -> PyResult<PathBuf> {
        Ok(self.0.get()?.session.present().target().to_owned())
    }

    /// What is known of what is at a path, within so many seconds.
    #[pyo3(signature = (path, within_s=None))]
    fn stat(&self, py: Python<'_>, path: String, within_s: Option<f64>) -> PyResult<Stat> {
        let (handle, session) = self.parts()?;
        let looks = async move {
            let client = session.client().await?;
            Ok(Stat::from(&client.below(client.root(), &names(&path)?, &path).await?))
        };
        done(py, handle, within(within_s, looks))
    }

    /// What is in a directory, in the order of the names, within so many seconds.
    #[pyo3(signature = (path, within_s=None))]
    fn entries(&self, py: Python<'_>, path: String, within_s: Option<f64>) -> PyResult<Vec<(String, Stat)>> {
        let (handle, session) = self.parts()?;
        let looks = async move {
            let client = session.client().await?;
            let entries = client.entries(client.root(), &names(&path)?, &path).await?;
            let name = |name: &Name| String::from_utf8_lossy(name.bytes()).into_owned();
            Ok(entries.iter().map(|(of, stat)| (name(of), Stat::from(stat))).collect())
        };
        done(py, handle, within(within_s, looks))
    }

    /// Where a file's bytes are, in the words of `user.surgetank.state`; `None`: it is no file.
    #[pyo3(signature = (path, written, within_s=None))]
    fn state(
        &self,
        py: Python<'_>,
        path: String,
        written: bool,
        within_s: Option<f64>,
    ) -> PyResult<Option<&'static str>> {
        let (handle, session) = self.parts()?;
        let looks = async move {
            let client = session.client().await?;
            let stat = client.below(client.root(), &names(&path)?, &path).await?;
            Ok(client.state(&stat, written, &path).await?)
        };
        done(py, handle, within(within_s, looks))
    }

    /// Makes a file that is not there, and opens it for writing.
    fn create(&self, py: Python<'_>, path: String) -> PyResult<Writer> {
        let (_, session) = self.parts()?;
        self.writer(py, async move {
            let client = session.client().await?;
            let made = client.create_at(at(&client, &path).await?, &path, session.owner(FILE)).await?;
            Ok((client, made))
        })
    }

    /// Opens a file for writing; `rewrites`: cut off at its beginning, and as it was until the first commit.
    fn write(&self, py: Python<'_>, path: String, rewrites: bool) -> PyResult<Writer> {
        let (_, session) = self.parts()?;
        self.writer(py, async move {
            let client = session.client().await?;
            let of = names(&path)?;
            file(&client, &of, &path).await?;
            let inode = inode(&client, &of, &path).await?;
            let opened = match rewrites {
                true => client.rewrite_node(inode, &path).await?,
                false => client.write_node(inode, &path).await?,
            };
            Ok((client, opened))
        })
    }

    /// Opens a file for reading: what is committed now.
    fn read(&self, py: Python<'_>, path: String) -> PyResult<Reader> {
        let (handle, session) = self.parts()?;
        let (session, source) = done(py, handle, async move {
            let client = session.client().await?;
            let of = names(&path)?;
            loop {
                let found = file(&client, &of, &path).await?;
                if !found.at_target {
                    let source = files::Source::Pool(Box::new(client.read_node(found.inode, &path).await?));
                    return Ok((client, source));
                }
                // `None`: the pool has it by now.
                let opened = client.open_at_target(client.root(), &of, found.inode.0, &path).await?;
                if let Some((file, size)) = opened {
                    return Ok((client, files::Source::Target(Arc::new(file), size)));
                }
            }
        })?;
        let threads = Arc::clone(&self.0.get()?.threads);
        Ok(Reader::new(Opened { threads, session }, source))
    }

    /// Makes a directory.
    fn make_directory(&self, py: Python<'_>, path: String) -> PyResult<()> {
        let (handle, session) = self.parts()?;
        done(py, handle, async move {
            let client = session.client().await?;
            client.make_directory_at(at(&client, &path).await?, &path, session.owner(DIRECTORY)).await?;
            Ok(())
        })
    }

    /// Moves a file or directory; `replaces`: also in the place of what is there.
    #[pyo3(signature = (from, to, /, replaces=true))]
    fn rename(&self, py: Python<'_>, from: String, to: String, replaces: bool) -> PyResult<()> {
        let (handle, session) = self.parts()?;
        done(py, handle, async move {
            let client = session.client().await?;
            if replaces {
                return Ok(client.rename(&from, &to).await?);
            }
            let (at_from, at_to) = (at(&client, &from).await?, at(&client, &to).await?);
            Ok(client.rename_at(at_from, at_to, false, &to).await?)
        })
    }

    /// Unlinks a file or symbolic link.
    fn unlink(&self, py: Python<'_>, path: String) -> PyResult<()> {
        let (handle, session) = self.parts()?;
        done(py, handle, async move { Ok(session.client().await?.unlink(&path).await?) })
    }

    /// Removes a directory in which nothing is.
    fn remove_directory(&self, py: Python<'_>, path: String) -> PyResult<()> {
        let (handle, session) = self.parts()?;
        done(py, handle, async move { Ok(session.client().await?.remove_directory(&path).await?) })
    }

    /// Ends the session once what is asked of its files has come to its end: those that are still open for writing count as torn.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, session) = self.parts()?;
        let quiet = self.0.get()?.threads.quiet(session.config.timeout);
        done(py, handle, async move {
            quiet.await;
            Ok(session.present().finish().await?)
        })
    }
}
