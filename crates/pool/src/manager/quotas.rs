//! Quotas of users: [`Admission`] decides, by looks at the store that are made when it asks for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::store::{Compare, Write};
use surgetank_pool_core::meta::{Key, Prefix, Stored, Value};
use surgetank_pool_core::quota::{self, Admission, Answer, GrantId, Limit, Looked, Quota, Resource, Want};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Manager;
use super::answers::values;
use super::protocol::{Ended, Once, QuotaReport, Reply, Reserve, UserQuota};
use super::rights::{NOT_ALLOWED, Within, may_see_user, owner};
use crate::meta::{MetaStore, Unavailable};
use crate::security::token::Claims;

/// How long a look at what users have serves from its end, or twice as long as it took; and how often managers look what operators have said.
const LATELY: Duration = Duration::from_secs(1);
/// Between two looks at least, and as long as the last one took: a look reads all nodes.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request waits for its turn: clients wait longer for an answer.
const TURN: Duration = Duration::from_secs(6);

/// See the module.
pub(super) struct Quotas {
    state: Mutex<State>,
    /// A look has ended; or why it shows nothing.
    looks: watch::Sender<Option<Unavailable>>,
}

#[derive(Default)]
struct State {
    admission: Admission,
    /// Looks that have begun.
    begun: u64,
    is_looking: bool,
    /// The last that has shown something.
    last: Option<Look>,
}

#[derive(Clone, Copy)]
struct Look {
    number: u64,
    ended: Instant,
    took: Duration,
}

impl State {
    /// What the last look is good for, to whom asked when so many had begun and has waited since then.
    fn looked(&self, begun: u64, since: Instant) -> Looked {
        let is_last = since.elapsed() >= TURN;
        match self.last {
            Some(look) if is_last && (look.number > begun || look.ended >= since) => Looked::Last,
            Some(look) if look.number > begun => Looked::Since,
            Some(look) if look.ended.elapsed() < LATELY.max(look.took * 2) => Looked::Lately,
            _ => Looked::LongAgo,
        }
    }
}

/// What a user was given, until the transaction that takes it has ended.
pub(super) struct Given {
    quotas: Arc<Quotas>,
    id: GrantId,
    bytes: u64,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.quotas.state().admission.ended(self.id);
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self { state: Mutex::default(), looks: watch::Sender::new(None) }
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
        self.state().admission.set(quota::quotas(read.prefixes.iter().flatten()), read.revision);
        Ok(())
    }

    /// Gives a user more. `Ok(None)`: there is no limit.
    async fn give(
        self: &Arc<Self>,
        store: &Arc<dyn MetaStore>,
        user: u32,
        want: Want,
    ) -> Result<Result<Option<Given>, Resource>, Unavailable> {
        let (since, begun, mut looks) = (Instant::now(), self.state().begun, self.looks.subscribe());
        loop {
            let answer = {
                let mut state = self.state();
                let looked = state.looked(begun, since);
                let answer = state.admission.ask(user, want, looked);
                if answer == Answer::Look {
                    self.begin_look(&mut state, store);
                }
                looks.mark_unchanged();
                answer
            };
            match answer {
                Answer::Unlimited => return Ok(Ok(None)),
                Answer::Granted(id, bytes) => return Ok(Ok(Some(Given { quotas: Arc::clone(self), id, bytes }))),
                Answer::Over(resource) => return Ok(Err(resource)),
                Answer::Look => {}
            }
            let is_over = since.elapsed() >= TURN;
            match tokio::time::timeout_at(since + TURN, looks.changed()).await {
                Ok(_) => {
                    if let Some(error) = looks.borrow().clone() {
                        return Err(error);
                    }
                }
                // The look goes on, and shows something to whoever asks again.
                Err(_) if is_over => {
                    return Err(Unavailable(format!("it does not say yet what user {user} has: that takes long")));
                }
                Err(_) => {}
            }
        }
    }

    /// Has a task look at what users have, unless one is at it: it goes on whatever becomes of who asked.
    fn begin_look(self: &Arc<Self>, state: &mut State, store: &Arc<dyn MetaStore>) {
        if std::mem::replace(&mut state.is_looking, true) {
            return;
        }
        let next = state.last.map_or_else(Instant::now, |look| look.ended + PAUSE.max(look.took));
        let (quotas, store) = (Arc::clone(self), Arc::clone(store));
        tokio::spawn(async move {
            tokio::time::sleep_until(next).await;
            quotas.look(&*store).await;
        });
    }

    async fn look(&self, store: &dyn MetaStore) {
        let number = {
            let mut state = self.state();
            state.begun += 1;
            state.admission.begin_look();
            state.begun
        };
        let began = Instant::now();
        let read = store.read(&[], &[Prefix::Quotas, Prefix::Nodes, Prefix::AllWriters]).await;
        let found = read.map(|read| match &read.prefixes[..] {
            [quotas, nodes, writers] => (quota::quotas(quotas), quota::used(nodes, writers), read.revision),
            _ => (quota::Quotas::new(), std::collections::BTreeMap::new(), Revision(0)),
        });
        let mut state = self.state();
        state.is_looking = false;
        let error = match found {
            Ok((quotas, used, at)) => {
                state.admission.looked(quotas, used, at);
                state.last = Some(Look { number, ended: Instant::now(), took: began.elapsed() });
                None
            }
            Err(error) => Some(error),
        };
        self.looks.send_replace(error);
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
    for user in quotas.keys().flatten().copied().chain(owner(by)) {
        used.entry(user).or_default();
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
    /// What an operation is given that makes a node, until it has ended; or what it has ended with. A request that was sent before may have taken
    /// place; one that has not is as any other.
    pub(super) async fn give_file(
        &self,
        operation: &Operation,
        once: Once,
    ) -> Result<Result<Option<Given>, Ended>, Unavailable> {
        let Some(user) = made_for(operation).filter(|user| self.quotas.limits(*user, Resource::Files)) else {
            return Ok(Ok(None));
        };
        if once.again
            && let Some(ended) = self.commits.settled(once).await?
        {
            return Ok(Err(ended));
        }
        match self.quotas.give(&self.store, user, Want::File).await? {
            Ok(given) => Ok(Ok(given)),
            Err(resource) => {
                self.counts.over(resource);
                Ok(Err(self.commits.refuse(once, Refusal::OverQuota(resource)).await?))
            }
        }
    }

    /// A session reserves room for a file.
    pub(super) async fn reserve(&self, by: &Claims, reserve: Reserve) -> Result<Reply, Unavailable> {
        let Reserve { inode, writer, taken, size, most } = reserve;
        let within = Within::of(by);
        loop {
            let read = self.store.read(&[Key::Node(inode)], &[Prefix::Writers(inode)]).await?;
            if within.is_some_and(|within| !within.has(&read)) {
                return Ok(Reply::Refused(NOT_ALLOWED));
            }
            let [Some(Value::Node(node))] = &values(&read)[..] else { return Ok(Reply::Refused(Refusal::NotFound)) };
            let writers = read.prefixes.iter().flatten().map(|(_, stored)| &stored.value);
            let (user, counts) = (node.owner.1, quota::of_node(node, quota::reserved(writers)).bytes);
            let has = counts.max(taken.min(size));
            let (least, most) = (size.saturating_sub(has), most.saturating_sub(has));
            let want = Want::Bytes { taken: has - counts, least, most };
            let given = match self.quotas.give(&self.store, user, want).await? {
                Ok(Some(given)) => given,
                Ok(None) => return Ok(Reply::Reserved(None)),
                Err(resource) => {
                    self.counts.over(resource);
                    return Ok(Reply::Refused(Refusal::OverQuota(resource)));
                }
            };
            let size = size.max(counts.saturating_add(given.bytes));
            let operation = Operation::Reserve { inode, writer, user, counts, size };
            match self.commits.perform_within(&operation, None, within).await? {
                // It was drained between the two, or is another user's by now.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction};

    use super::*;
    use crate::meta::{LeaseEnded, Snapshot};

    const USER: u32 = 7;

    /// A store that takes long to say what users have, and counts how often it was asked and has said so.
    #[derive(Default)]
    struct Slow {
        takes: Duration,
        asked: AtomicU64,
        said: AtomicU64,
    }

    #[tonic::async_trait]
    impl MetaStore for Slow {
        fn limits(&self) -> Limits {
            Limits { operations: 8, bytes: 4096 }
        }

        async fn read(&self, _: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::time::sleep(self.takes).await;
            self.said.fetch_add(1, Ordering::SeqCst);
            let quota = Quota { bytes: Limit::AtMost(1600), files: Limit::AtMost(100) };
            let (value, modified) = (Value::Quota(quota), Revision(number));
            let stored = Stored { value, created: Revision(1), modified };
            let of = |prefix: &Prefix| match prefix {
                Prefix::Quotas => vec![(Key::Quota(Some(USER)), stored.clone())],
                _ => Vec::new(),
            };
            Ok(Snapshot { revision: Revision(number), keys: Vec::new(), prefixes: prefixes.iter().map(of).collect() })
        }

        async fn commit(&self, _: &Transaction) -> Result<Outcome, LeaseEnded> {
            Ok(Outcome::Unknown)
        }

        async fn grant(&self, _: Duration) -> Result<Lease, Unavailable> {
            Ok(Lease(1))
        }

        async fn renew(&self, _: Lease) -> Result<bool, Unavailable> {
            Ok(true)
        }

        async fn end(&self, _: Lease) -> Result<(), Unavailable> {
            Ok(())
        }

        async fn changed(&self, _: Revision) {}
    }

    /// What a manager gives whose store takes so long.
    async fn slow(takes: Duration) -> (Arc<Quotas>, Arc<Slow>, Arc<dyn MetaStore>) {
        let store = Arc::new(Slow { takes, ..Slow::default() });
        let quotas = Arc::<Quotas>::default();
        quotas.read(&*store).await.unwrap();
        store.asked.store(0, Ordering::SeqCst);
        let shared = Arc::clone(&store) as Arc<dyn MetaStore>;
        (quotas, store, shared)
    }

    const fn bytes(least: u64) -> Want {
        Want::Bytes { taken: 0, least, most: least }
    }

    #[tokio::test]
    async fn a_look_goes_on_when_nobody_waits_for_it_and_serves_from_its_end() {
        let (quotas, store, shared) = slow(Duration::from_millis(1500)).await;
        let asked = tokio::time::timeout(Duration::from_millis(300), quotas.give(&shared, USER, Want::File)).await;
        assert!(asked.is_err(), "it looks");
        for _ in 0..20 {
            assert!(quotas.give(&shared, USER, Want::File).await.unwrap().unwrap().is_some());
        }
        assert_eq!(store.asked.load(Ordering::SeqCst), 1, "one look is enough for all");
    }

    #[tokio::test]
    async fn who_has_waited_for_long_is_answered_by_what_is_known() {
        let (quotas, store, shared) = slow(Duration::from_secs(4)).await;
        let asked = tokio::time::timeout(Duration::from_millis(100), quotas.give(&shared, USER, bytes(1))).await;
        assert!(asked.is_err(), "it looks");
        // By the look that has begun: the next would end too late.
        let (large, larger) =
            tokio::join!(quotas.give(&shared, USER, bytes(1500)), quotas.give(&shared, USER, bytes(5000)));
        assert!(large.unwrap().unwrap().is_some());
        assert_eq!(larger.unwrap().err(), Some(Resource::Bytes));
        assert_eq!(store.said.load(Ordering::SeqCst), 2, "quotas, and one look");
    }
}
