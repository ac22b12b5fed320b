//! Quotas of users: [`Admission`] decides, by looks at the store that are made when it asks for one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::store::{Compare, Write};
use surgetank_pool_core::meta::{Key, Prefix, Stored, Value};
use surgetank_pool_core::quota::{self, Admission, Answer, GrantId, Limit, Looked, Quota, Resource, Want};
use tokio::time::Instant;

use super::Manager;
use super::answers::values;
use super::protocol::{Ended, QuotaReport, Reply, Reserve, UserQuota};
use super::rights::{NOT_ALLOWED, Within, may_see_user};
use crate::meta::{MetaStore, Unavailable};
use crate::security::token::Claims;

/// How long a look at what users have serves, and how often managers look what operators have said.
const LATELY: Duration = Duration::from_secs(1);
/// Between two looks at least, and as long as the last one took: a look reads all nodes.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request waits for its turn: who asked asks again.
const TURN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub(super) struct Quotas {
    state: Mutex<State>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    admission: Admission,
    /// When the last look began, and when it had ended.
    looked: Option<(Instant, Instant)>,
}

/// What a user was given, until the transaction that takes it has ended.
pub(super) struct Given<'q> {
    quotas: &'q Quotas,
    id: GrantId,
    bytes: u64,
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.quotas.state().admission.ended(self.id);
    }
}

impl Quotas {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a user has a limit.
    pub(super) fn limits(&self, user: u32, resource: Resource) -> bool {
        self.state().admission.limits(user, resource)
    }

    /// Reads what operators have said.
    pub(super) async fn read(&self, store: &dyn MetaStore) -> Result<(), Unavailable> {
        let read = store.read(&[], &[Prefix::Quotas]).await?;
        self.state().admission.set(quota::quotas(read.prefixes.iter().flatten()));
        Ok(())
    }

    /// Gives a user more. `Ok(None)`: there is no limit.
    async fn give(
        &self,
        store: &dyn MetaStore,
        user: u32,
        want: Want,
    ) -> Result<Result<Option<Given<'_>>, Resource>, Unavailable> {
        let asked = Instant::now();
        loop {
            let answer = {
                let mut state = self.state();
                let looked = match state.looked {
                    Some((began, _)) if began >= asked => Looked::Since,
                    Some((began, _)) if began.elapsed() < LATELY => Looked::Lately,
                    _ => Looked::LongAgo,
                };
                state.admission.ask(user, want, looked)
            };
            match answer {
                Answer::Unlimited => return Ok(Ok(None)),
                Answer::Granted(id, bytes) => return Ok(Ok(Some(Given { quotas: self, id, bytes }))),
                Answer::Over(resource) => return Ok(Err(resource)),
                Answer::Look if asked.elapsed() > TURN => {
                    return Err(Unavailable(format!("too many ask for what is left of the quota of user {user}")));
                }
                Answer::Look => self.look(store, Instant::now()).await?,
            }
        }
    }

    /// Looks at what users have, unless somebody has begun to since.
    async fn look(&self, store: &dyn MetaStore, since: Instant) -> Result<(), Unavailable> {
        let _one = self.looking.lock().await;
        let looked = self.state().looked;
        if let Some((began, ended)) = looked {
            if began >= since {
                return Ok(());
            }
            let next = ended + PAUSE.max(ended - began);
            tokio::time::sleep_until(next).await;
        }
        let began = Instant::now();
        self.state().admission.begin_look();
        let read = store.read(&[], &[Prefix::Quotas, Prefix::Nodes, Prefix::AllWriters]).await?;
        let [quotas, nodes, writers] = &read.prefixes[..] else { return Ok(()) };
        let (quotas, used) = (quota::quotas(quotas), quota::used(nodes, writers));
        let mut state = self.state();
        state.admission.looked(quotas, used);
        state.looked = Some((began, Instant::now()));
        Ok(())
    }
}

/// Follows what operators say, for ever.
pub(super) async fn watch(manager: &Manager) {
    loop {
        tokio::time::sleep(LATELY).await;
        // While the store does not answer, what was known counts.
        if let Err(error) = manager.quotas.read(&*manager.store).await {
            tracing::debug!("{error}");
        }
    }
}

/// What is said of users, and what they have, by what a store has at one revision.
pub(super) fn report(
    by: &Claims,
    quotas: &[(Key, Stored)],
    nodes: &[(Key, Stored)],
    writers: &[(Key, Stored)],
) -> QuotaReport {
    let quotas = quota::quotas(quotas);
    let mut used = quota::used(nodes, writers);
    for user in quotas.keys().flatten() {
        used.entry(*user).or_default();
    }
    let of = |(user, used)| UserQuota {
        user,
        used,
        said: quotas.get(&Some(user)).copied(),
        bytes: quota::limit(&quotas, user, Resource::Bytes),
        files: quota::limit(&quotas, user, Resource::Files),
    };
    let users = used.into_iter().filter(|(user, _)| may_see_user(by, *user)).map(of).collect();
    QuotaReport { everybody: quotas.get(&None).copied(), users }
}

/// For whom an operation makes a node.
const fn made_for(operation: &Operation) -> Option<u32> {
    match operation {
        Operation::Create { owner, .. }
        | Operation::MakeDirectory { owner, .. }
        | Operation::MakeLink { owner, .. }
        | Operation::MakeSpecial { owner, .. } => Some(owner.1),
        _ => None,
    }
}

impl Manager {
    /// What an operation is given that makes a node, until it has ended; or why it makes none.
    pub(super) async fn give_file(
        &self,
        operation: &Operation,
    ) -> Result<Result<Option<Given<'_>>, Refusal>, Unavailable> {
        let Some(user) = made_for(operation) else { return Ok(Ok(None)) };
        match self.quotas.give(&*self.store, user, Want::File).await? {
            Ok(given) => Ok(Ok(given)),
            Err(resource) => {
                self.counts.over(resource);
                // What is there already is what a program is told of.
                let key = operation.makes().map(|((directory, name), _)| Key::Entry(*directory, name.clone()));
                let read = self.store.read(key.as_slice(), &[]).await?;
                let exists = read.keys.iter().any(Option::is_some);
                Ok(Err(if exists { Refusal::Exists } else { Refusal::OverQuota(resource) }))
            }
        }
    }

    /// A session reserves room for a file.
    pub(super) async fn reserve(&self, by: &Claims, reserve: Reserve) -> Result<Reply, Unavailable> {
        let Reserve { inode, writer, size, most } = reserve;
        let within = Within::of(by);
        loop {
            let read = self.store.read(&[Key::Node(inode)], &[Prefix::Writers(inode)]).await?;
            if within.is_some_and(|within| !within.has(&read)) {
                return Ok(Reply::Refused(NOT_ALLOWED));
            }
            let [Some(Value::Node(node))] = &values(&read)[..] else { return Ok(Reply::Refused(Refusal::NotFound)) };
            let writers = read.prefixes.iter().flatten().map(|(_, stored)| &stored.value);
            let (user, counts) = (node.owner.1, quota::of_node(node, quota::reserved(writers)).bytes);
            let want = Want::Bytes { least: size.saturating_sub(counts), most: most.saturating_sub(counts) };
            let given = match self.quotas.give(&*self.store, user, want).await? {
                Ok(Some(given)) => given,
                Ok(None) => return Ok(Reply::Reserved(None)),
                Err(resource) => {
                    self.counts.over(resource);
                    return Ok(Reply::Refused(Refusal::OverQuota(resource)));
                }
            };
            let size = size.max(counts.saturating_add(given.bytes));
            let operation = Operation::Reserve { inode, writer, counts, size };
            match self.commits.perform_within(&operation, None, within).await? {
                // It was drained between the two.
                Ended::Refused(Refusal::Moved) => {}
                Ended::Refused(refusal) => return Ok(Reply::Refused(refusal)),
                Ended::Before | Ended::Reply(_) => return Ok(Reply::Reserved(Some(size))),
            }
        }
    }

    /// What is said of users, and what they have.
    pub(super) async fn quota_report(&self, by: &Claims) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[], &[Prefix::Quotas, Prefix::Nodes, Prefix::AllWriters]).await?;
        let [quotas, nodes, writers] = &read.prefixes[..] else { return Ok(Reply::Quotas(QuotaReport::default())) };
        Ok(Reply::Quotas(report(by, quotas, nodes, writers)))
    }

    /// An operator says how much a user may have; `None`: that stays as it is.
    pub(super) async fn set_quota(
        &self,
        user: Option<u32>,
        (bytes, files): (Option<Limit>, Option<Limit>),
    ) -> Result<Reply, Unavailable> {
        let key = Key::Quota(user);
        loop {
            let read = self.store.read(std::slice::from_ref(&key), &[]).await?;
            let (former, compare) = match read.keys.into_iter().next().flatten() {
                Some(Stored { value: Value::Quota(quota), modified, .. }) => {
                    (quota, Compare::Modified(key.clone(), modified))
                }
                _ => (Quota::default(), Compare::Absent(key.clone())),
            };
            let quota = Quota { bytes: bytes.unwrap_or(former.bytes), files: files.unwrap_or(former.files) };
            let write = match quota == Quota::default() {
                true => Write::Delete(key.clone()),
                false => Write::Put(key.clone(), Value::Quota(quota)),
            };
            if self.commit(vec![compare], vec![write]).await? {
                self.quotas.read(&*self.store).await?;
                return Ok(Reply::Done);
            }
        }
    }
}
