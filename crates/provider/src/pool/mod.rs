//! Volumes whose bytes lie in a staging pool: each is a file of a mount, and has a record beside it.
//!
//! A volume is there as soon as its record is (`record`), and gone when that is; its file is made when it is attached first. So whatever
//! ends in the middle of a call leaves a record, by which the volume is listed and deleted. A deletion that was interrupted is finished by
//! whoever looks next.

mod config;
mod record;
mod room;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use surgetank_model::{Bytes, Lag};
use surgetank_pool::client::{self, Error, PoolClient};
use surgetank_pool_core::meta::operation::Refusal;
use tokio::runtime::{Builder, Runtime};

use self::record::{Known, Record};
use crate::{
    Change, CreateVolume, Home, Provider, ProviderError, Transition, VolumeDescription, VolumeId, VolumeState,
};

pub use self::config::PoolConfig;

/// Where the records are in the mount.
const RECORDS: &str = "records";
/// Where the files are.
const VOLUMES: &str = "volumes";
/// How often a change is tried that another process was faster with.
const TRIES: u32 = 16;

/// The pool as a provider. It blocks, so it is not called by what runs in an asynchronous runtime.
pub struct PoolProvider {
    config: PoolConfig,
    client: client::Config,
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    session: Mutex<Option<Arc<PoolClient>>>,
    /// One change at a time in this process.
    changes: Mutex<()>,
}

/// Why a call was not carried out.
enum Failed {
    Pool(Error),
    Refused(ProviderError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Pool(error)
    }
}

impl From<ProviderError> for Failed {
    fn from(error: ProviderError) -> Self {
        Self::Refused(error)
    }
}

/// What an error of the pool is to who rents.
fn error_of(error: &Error) -> ProviderError {
    let why = format!("the pool: {error}");
    match error {
        Error::Address(_) | Error::Path(..) | Error::NotAllowed(_) | Error::Declined(_) => ProviderError::Invalid(why),
        Error::NoRoom { .. } | Error::StoreFull(..) => ProviderError::Capacity(why),
        Error::Refused(_, Refusal::OverQuota(_)) => ProviderError::Quota(why),
        _ => ProviderError::Transient(why),
    }
}

/// Where a volume's file is in the mount.
#[must_use]
pub fn path_of(id: &VolumeId) -> String {
    format!("{VOLUMES}/{}", id.0)
}

/// Takes what is there already, or not there any more, as done.
fn unless(refusal: &Refusal, done: Result<(), Error>) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(true),
        Err(Error::Refused(_, refused)) if refused == *refusal => Ok(false),
        Err(error) => Err(error),
    }
}

impl PoolProvider {
    /// Opens it; the pool is not asked yet.
    ///
    /// # Errors
    /// `Invalid` if the configuration or the token cannot be used.
    pub fn open(config: PoolConfig) -> Result<Self, ProviderError> {
        let client = config.client().map_err(ProviderError::Invalid)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("pool-provider").enable_all().build();
        let runtime =
            runtime.map_err(|error| ProviderError::Transient(format!("no thread can be started: {error}")))?;
        let (session, changes) = (Mutex::default(), Mutex::default());
        Ok(Self { config, client, runtime: Some(runtime), session, changes })
    }

    fn session(&self) -> MutexGuard<'_, Option<Arc<PoolClient>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a session: a new one, if the former has ended.
    fn with<T>(&self, act: impl AsyncFn(&PoolClient) -> Result<T, Failed>) -> Result<T, ProviderError> {
        let ended = || ProviderError::Transient("the pool's client has ended".to_owned());
        let runtime = self.runtime.as_ref().ok_or_else(ended)?;
        runtime.block_on(async {
            let mut again = true;
            loop {
                let known = self.session().clone();
                let client = match known {
                    Some(client) => client,
                    None => {
                        let client = Arc::new(self.begin().await.map_err(|error| error_of(&error))?);
                        *self.session() = Some(Arc::clone(&client));
                        client
                    }
                };
                match act(&client).await {
                    Ok(done) => return Ok(done),
                    Err(Failed::Refused(error)) => return Err(error),
                    Err(Failed::Pool(Error::SessionEnded(_))) if again => {
                        *self.session() = None;
                        again = false;
                    }
                    Err(Failed::Pool(error)) => return Err(error_of(&error)),
                }
            }
        })
    }

    async fn begin(&self) -> Result<PoolClient, Error> {
        let client = PoolClient::begin(self.client.clone()).await?;
        for directory in [RECORDS, VOLUMES] {
            unless(&Refusal::Exists, client.make_directory(directory).await)?;
        }
        Ok(client)
    }

    /// All volumes. Deletions that were interrupted are finished.
    async fn view(&self, client: &PoolClient) -> Result<BTreeMap<VolumeId, Known>, Failed> {
        let entries = client.read_directory(RECORDS).await?;
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let links = entries.into_iter().filter_map(|(name, stat)| Some((text(name.bytes()), stat.link?)));
        let mut volumes = record::collect(links).map_err(|name| {
            let sentence =
                format!("the record {RECORDS}/{name} in the pool cannot be read: it was made by another version");
            ProviderError::Transient(sentence)
        })?;
        let deleting = volumes.iter().filter(|(_, known)| known.record.state == VolumeState::Deleting);
        let deleting: Vec<VolumeId> = deleting.map(|(id, _)| id.clone()).collect();
        for id in deleting {
            if let Some(known) = volumes.remove(&id) {
                self.finish_deletion(client, &id, &known).await?;
            }
        }
        Ok(volumes)
    }

    async fn find(&self, client: &PoolClient, id: &VolumeId) -> Result<Option<Known>, Failed> {
        if record::is_ours(id) { Ok(self.view(client).await?.remove(id)) } else { Ok(None) }
    }

    /// The newest record goes last: until then the deletion is known.
    async fn finish_deletion(&self, client: &PoolClient, id: &VolumeId, known: &Known) -> Result<(), Failed> {
        unless(&Refusal::NotFound, client.unlink(&path_of(id)).await)?;
        self.forget(client, id, &known.generations).await
    }

    async fn forget(&self, client: &PoolClient, id: &VolumeId, generations: &[u64]) -> Result<(), Failed> {
        for generation in generations {
            let path = format!("{RECORDS}/{}", record::name(id, *generation));
            unless(&Refusal::NotFound, client.unlink(&path).await)?;
        }
        Ok(())
    }

    /// Makes a record; `false`: there is one of that generation.
    async fn make(&self, client: &PoolClient, id: &VolumeId, generation: u64, record: &Record) -> Result<bool, Failed> {
        let text = record.to_text().ok_or_else(|| {
            let most = record::TEXT_MAX;
            ProviderError::Invalid(format!(
                "the tags of {} are too long: all of them together have about {most} bytes",
                id.0
            ))
        })?;
        let name = record::name(id, generation);
        let what = format!("{RECORDS}/{name}");
        let directory = client.stat(RECORDS).await?.inode;
        let name = name_of(&what, &name)?;
        let made = client.make_link_at((directory, name), text, &what, (0o600, 0, 0)).await;
        Ok(unless(&Refusal::Exists, made.map(drop))?)
    }

    /// A record takes the place of another; `false`: another process was faster.
    async fn replace(
        &self,
        client: &PoolClient,
        id: &VolumeId,
        known: &Known,
        record: &Record,
    ) -> Result<bool, Failed> {
        let next = known.newest + 1;
        if !self.make(client, id, next, record).await? {
            return Ok(false);
        }
        // Whoever deletes the volume removes the former one, and it may have done so before this one was made.
        let former = client.stat(&format!("{RECORDS}/{}", record::name(id, known.newest))).await;
        if matches!(former, Err(Error::Refused(_, Refusal::NotFound))) {
            self.forget(client, id, &[next]).await?;
            unless(&Refusal::NotFound, client.unlink(&path_of(id)).await)?;
            return Ok(false);
        }
        self.forget(client, id, &known.generations).await?;
        Ok(true)
    }

    /// Changes a volume's record; `change` says what becomes of it, or `None`: nothing.
    async fn change(
        &self,
        client: &PoolClient,
        id: &VolumeId,
        change: impl AsyncFn(Option<&Record>) -> Result<Option<Record>, Failed>,
    ) -> Result<Change, Failed> {
        for _ in 0..TRIES {
            let known = self.find(client, id).await?;
            let changed = change(known.as_ref().map(|known| &known.record)).await?;
            let (Some(record), Some(known)) = (changed, known) else { return Ok(Change::Identity) };
            if self.replace(client, id, &known, &record).await? {
                return Ok(Change::Changed);
            }
        }
        Err(ProviderError::Transient(format!("the volume {} is being changed by others: try again", id.0)).into())
    }

    fn device(&self, id: &VolumeId) -> String {
        format!("{}{}/{}", self.config.address.trim_end_matches('/'), self.config.target.display(), path_of(id))
    }

    async fn make_file(client: &PoolClient, id: &VolumeId) -> Result<(), Failed> {
        match client.create(&path_of(id)).await {
            Ok(writer) => Ok(writer.close().await?),
            Err(Error::Refused(_, Refusal::Exists)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn name_of(what: &str, name: &str) -> Result<surgetank_pool_core::meta::Name, Error> {
    surgetank_pool_core::meta::Name::new(name.as_bytes())
        .map_err(|error| Error::Path(what.to_owned(), error.to_string()))
}

fn check(request: &CreateVolume) -> Result<VolumeId, ProviderError> {
    let invalid = |why: String| Err(ProviderError::Invalid(why));
    let CreateVolume { token, volume_type, size, .. } = request;
    let Some(id) = record::id_of(token) else {
        let most = record::TOKEN_MAX;
        return invalid(format!(
            "a client token has 1 to {most} letters, digits, '-' and '_', not {token:?}: draw a random one"
        ));
    };
    if volume_type != config::TYPE {
        return invalid(format!("the pool has no volume type \"{volume_type}\": write \"{}\"", config::TYPE));
    }
    let grain = config::GRAIN;
    if *size == Bytes::ZERO || *size > config::SIZE_MAX || !size.get().is_multiple_of(grain.get()) {
        return invalid(format!(
            "a volume in the pool has a multiple of {grain}, {} at most, not {size}",
            config::SIZE_MAX
        ));
    }
    Ok(id)
}

impl Provider for PoolProvider {
    fn home(&self) -> Home {
        Home::Pool(Arc::new(self.config.clone()))
    }

    fn create_is_exclusive(&self) -> bool {
        true
    }

    fn lag(&self) -> Lag {
        Lag::NONE
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let id = check(request)?;
        let (copies, media) = self.config.copies().map_err(ProviderError::Invalid)?;
        let record = Record {
            state: VolumeState::Available,
            volume_type: request.volume_type.clone(),
            bytes: request.size.get(),
            has_file: false,
            tags: request.tags.clone(),
        };
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(async |client| {
            for _ in 0..TRIES {
                let volumes = self.view(client).await?;
                if let Some(Known { record: known, .. }) = volumes.get(&id) {
                    if (known.bytes, &known.volume_type) != (record.bytes, &record.volume_type) {
                        let why =
                            format!("the token {:?} made another volume, of {} bytes", request.token, known.bytes);
                        return Err(ProviderError::Invalid(why).into());
                    }
                    return Ok((known.describe(&id, &self.device(&id)), Change::Identity));
                }
                let rented = volumes.iter().map(|(id, known)| (id, known.record.bytes));
                room::check(client, rented, record.bytes, copies, media).await?;
                if self.make(client, &id, 1, &record).await? {
                    return Ok((record.describe(&id, &self.device(&id)), Change::Changed));
                }
            }
            Err(ProviderError::Transient(format!("the volume {} is being changed by others: try again", id.0)).into())
        })
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match transition {
            Transition::Attach => VolumeState::Attached,
            Transition::Detach => VolumeState::Available,
            Transition::Delete => VolumeState::Deleting,
        };
        self.with(async |client| {
            let changed = self.change(client, id, async |record| {
                let decided = transition.decide(id, record.map(|record| record.state))?;
                let Some(record) = record.filter(|_| decided == Change::Changed) else { return Ok(None) };
                let mut record = Record { state, ..record.clone() };
                if transition == Transition::Attach && !record.has_file {
                    Self::make_file(client, id).await?;
                    record.has_file = true;
                }
                Ok(Some(record))
            });
            let changed = changed.await?;
            if (changed, transition) == (Change::Changed, Transition::Delete) {
                // What is being deleted is finished.
                self.view(client).await?;
            }
            Ok(changed)
        })
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.with(async |client| match self.find(client, id).await? {
            Some(known) => Ok(known.record.describe(id, &self.device(id))),
            None => Err(ProviderError::NotFound(id.clone()).into()),
        })
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.with(async |client| {
            let volumes = self.view(client).await?;
            let tagged =
                volumes.iter().filter(|(_, known)| known.record.tags.get(key).is_some_and(|found| found == value));
            Ok(tagged.map(|(id, known)| known.record.describe(id, &self.device(id))).collect())
        })
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(async |client| {
            self.change(client, id, async |record| {
                let Some(record) = record else { return Err(ProviderError::NotFound(id.clone()).into()) };
                if record.tags.get(key).map(String::as_str) == value {
                    return Ok(None);
                }
                let mut record = record.clone();
                match value {
                    Some(value) => record.tags.insert(key.to_owned(), value.to_owned()),
                    None => record.tags.remove(key),
                };
                Ok(Some(record))
            })
            .await
        })
    }
}

impl Drop for PoolProvider {
    fn drop(&mut self) {
        let session = self.session().take();
        if let Some(runtime) = self.runtime.take() {
            if let Some(session) = session {
                // Nobody waits for the end of a session that has nothing.
                runtime.spawn(async move { session.finish().await });
            }
            runtime.shutdown_background();
        }
    }
}
