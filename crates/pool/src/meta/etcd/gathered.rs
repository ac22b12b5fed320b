//! Reads that share a request: what is asked for while others are being read is read together afterwards, as changes share transactions.
//!
//! A request costs etcd much more than a key in it. Whoever gets a turn reads for all that wait then, each of which began to wait before it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use surgetank_pool_core::meta::Key;
use tokio::sync::{Semaphore, oneshot};

use super::super::{Snapshot, Unavailable};

/// Requests under way at a time: while one is, the next is gathered, and nobody waits for more than one that is not his.
const UNDER_WAY: usize = 2;
/// Keys of one request.
const KEYS_MAX: usize = 128;

struct Waiting {
    keys: Vec<Key>,
    /// Dropped without a word: whoever read for all has failed or gone, and each reads alone.
    answer: oneshot::Sender<Snapshot>,
}

/// See the module.
pub(super) struct Gathered {
    waiting: Mutex<Vec<Waiting>>,
    turns: Semaphore,
}

impl Gathered {
    pub(super) const fn new() -> Self {
        Self { waiting: Mutex::new(Vec::new()), turns: Semaphore::const_new(UNDER_WAY) }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads keys by `read`, with those that others ask for at the same time.
    pub(super) async fn read(
        &self,
        keys: &[Key],
        read: impl AsyncFn(&[Key]) -> Result<Snapshot, Unavailable>,
    ) -> Result<Snapshot, Unavailable> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push(Waiting { keys: keys.to_owned(), answer });
        tokio::select! {
            biased;
            answer = &mut answered => {
                return match answer {
                    Ok(found) => Ok(found),
                    Err(_) => read(keys).await,
                };
            }
            turn = self.turns.acquire() => {
                let _turn = turn.map_err(|error| Unavailable(error.to_string()))?;
                self.read_all(&read).await;
            }
        }
        match answered.await {
            Ok(found) => Ok(found),
            Err(_) => read(keys).await,
        }
    }

    /// Reads for those who wait, as many as one request takes, until whoever has the turn is among them.
    async fn read_all(&self, read: &impl AsyncFn(&[Key]) -> Result<Snapshot, Unavailable>) {
        let all = std::mem::take(&mut *self.waiting());
        let mut all = all.into_iter().peekable();
        while all.peek().is_some() {
            let (mut at, mut keys, mut asked) = (BTreeMap::<Key, usize>::new(), Vec::new(), Vec::new());
            while let Some(next) = all.next_if(|next| keys.is_empty() || keys.len() + next.keys.len() <= KEYS_MAX) {
                for key in &next.keys {
                    at.entry(key.clone()).or_insert_with(|| {
                        keys.push(key.clone());
                        keys.len() - 1
                    });
                }
                asked.push(next);
            }
            let Ok(found) = read(&keys).await else { continue };
            for Waiting { keys, answer } in asked {
                let of = |key: &Key| at.get(key).and_then(|at| found.keys.get(*at).cloned().flatten());
                let snapshot =
                    Snapshot { revision: found.revision, keys: keys.iter().map(of).collect(), prefixes: Vec::new() };
                // Whoever asked may have gone.
                let _ = answer.send(snapshot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use surgetank_pool_core::id::{Inode, Revision};
    use surgetank_pool_core::meta::{Stored, Value};
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// The node whose key makes a whole request fail.
    const DAMAGED: u64 = 13;

    /// A store in which the nodes with even numbers are, and the reads that are gathered before it. It answers once it may.
    struct Store {
        gathered: Gathered,
        requests: AtomicUsize,
        may_answer: Semaphore,
    }

    impl Store {
        fn new() -> Arc<Self> {
            let (requests, may_answer) = (AtomicUsize::new(0), Semaphore::new(0));
            Arc::new(Self { gathered: Gathered::new(), requests, may_answer })
        }

        async fn answer(&self, keys: &[Key]) -> Result<Snapshot, Unavailable> {
            let revision = Revision(self.requests.fetch_add(1, Ordering::Relaxed) as u64);
            drop(self.may_answer.acquire().await);
            let stored = |key: &Key| match key {
                Key::Node(Inode(DAMAGED)) => Err(Unavailable("damaged".to_owned())),
                Key::Node(Inode(number)) if number % 2 == 0 => {
                    let (created, modified) = (Revision(*number), Revision(*number));
                    Ok(Some(Stored { value: Value::Pool(*number), created, modified }))
                }
                _ => Ok(None),
            };
            let keys = keys.iter().map(stored).collect::<Result<_, _>>()?;
            Ok(Snapshot { revision, keys, prefixes: Vec::new() })
        }

        /// Which of these nodes it has, asked for in a task of its own.
        fn reads(self: &Arc<Self>, numbers: Vec<u64>) -> JoinHandle<Result<Vec<Option<u64>>, Unavailable>> {
            let store = Arc::clone(self);
            tokio::spawn(async move {
                let keys: Vec<Key> = numbers.into_iter().map(|number| Key::Node(Inode(number))).collect();
                let found = store.gathered.read(&keys, async |keys| store.answer(keys).await).await?;
                Ok(found.keys.into_iter().map(|stored| stored.map(|stored| stored.modified.0)).collect())
            })
        }

        /// All that can is under way, and so many wait.
        async fn until_waiting(&self, waiting: usize) {
            while self.requests.load(Ordering::Relaxed) < UNDER_WAY || self.gathered.waiting().len() < waiting {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn those_who_wait_share_a_request_and_each_gets_its_own_keys() {
        let store = Store::new();
        let mut all = Vec::new();
        for number in 0..42 {
            all.push(store.reads(vec![number * 4, 2, number * 4 + 1]));
        }
        store.until_waiting(40).await;
        store.may_answer.add_permits(100);
        for (number, read) in (0..).zip(all) {
            assert_eq!(read.await.unwrap().unwrap(), [Some(number * 4), Some(2), None], "{number}");
        }
        let requests = store.requests.load(Ordering::Relaxed);
        assert_eq!(requests, UNDER_WAY + 1, "two came first, and the keys of the others fit into one request");
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_read_fails_nobody_else() {
        let store = Store::new();
        let all: Vec<_> = (0..30).map(|number| store.reads(vec![number])).collect();
        store.until_waiting(28).await;
        store.may_answer.add_permits(100);
        for (number, read) in (0..).zip(all) {
            match read.await.unwrap() {
                Ok(found) => assert_eq!(found, [(number % 2 == 0).then_some(number)]),
                Err(_) => assert_eq!(number, DAMAGED),
            }
        }
    }

    #[tokio::test]
    async fn whoever_leaves_holds_up_nobody() {
        let store = Store::new();
        let first: Vec<_> = (0..2).map(|number| store.reads(vec![number])).collect();
        store.until_waiting(0).await;
        let all: Vec<_> = (2..20).map(|number| store.reads(vec![number])).collect();
        store.until_waiting(18).await;
        // One of those who read, and one of those who wait, which may be the next that reads for all.
        first[0].abort();
        all[0].abort();
        while store.requests.load(Ordering::Relaxed) < UNDER_WAY + 1 {
            yield_now().await;
        }
        all[1].abort();
        store.may_answer.add_permits(100);
        for (number, read) in (2..).zip(all).skip(2) {
            assert_eq!(read.await.unwrap().unwrap(), [(number % 2 == 0).then_some(number)], "{number}");
        }
    }
}
