//! Reads that share a request: what is asked for while others are being read is read together afterwards, as changes share transactions.
//!
//! A request costs etcd much more than a key in it. Whoever gets a turn reads for all that wait then, each of which began to wait before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use surgetank_pool_core::meta::Key;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Semaphore, oneshot};

use super::super::{Snapshot, Unavailable};

/// Requests under way at a time: while they are, the next is gathered.
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
    waiting: Mutex<VecDeque<Waiting>>,
    turns: Semaphore,
}

impl Gathered {
    pub(super) const fn new() -> Self {
        Self { waiting: Mutex::new(VecDeque::new()), turns: Semaphore::const_new(UNDER_WAY) }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads keys by `read`, with those that others ask for at the same time.
    pub(super) async fn read<F: Future<Output = Result<Snapshot, Unavailable>>>(
        &self,
        keys: &[Key],
        read: impl Fn(Vec<Key>) -> F,
    ) -> Result<Snapshot, Unavailable> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push_back(Waiting { keys: keys.to_owned(), answer });
        let is_dropped = tokio::select! {
            biased;
            answer = &mut answered => match answer {
                Ok(found) => return Ok(found),
                Err(_) => true,
            },
            turn = self.turns.acquire() => {
                let _turn = turn.map_err(|error| Unavailable(error.to_string()))?;
                // Many may wait that came first.
                let mut is_dropped = false;
                while !is_dropped && self.read_together(&read).await {
                    match answered.try_recv() {
                        Ok(found) => return Ok(found),
                        Err(TryRecvError::Closed) => is_dropped = true,
                        Err(TryRecvError::Empty) => {}
                    }
                }
                is_dropped
            }
        };
        if !is_dropped && let Ok(found) = answered.await {
            return Ok(found);
        }
        self.read_alone(keys, read).await
    }

    async fn read_alone<F: Future<Output = Result<Snapshot, Unavailable>>>(
        &self,
        keys: &[Key],
        read: impl Fn(Vec<Key>) -> F,
    ) -> Result<Snapshot, Unavailable> {
        let _turn = self.turns.acquire().await.map_err(|error| Unavailable(error.to_string()))?;
        read(keys.to_owned()).await
    }

    /// Reads for those who have waited longest, as many as one request takes; `false`: nobody waits.
    async fn read_together<F: Future<Output = Result<Snapshot, Unavailable>>>(
        &self,
        read: &impl Fn(Vec<Key>) -> F,
    ) -> bool {
        let (mut at, mut keys, mut asked) = (BTreeMap::<Key, usize>::new(), Vec::new(), Vec::new());
        {
            let mut waiting = self.waiting();
            let fits = |next: &Waiting, keys: usize| keys == 0 || keys + next.keys.len() <= KEYS_MAX;
            while waiting.front().is_some_and(|next| fits(next, keys.len()))
                && let Some(next) = waiting.pop_front()
            {
                for key in &next.keys {
                    at.entry(key.clone()).or_insert_with(|| {
                        keys.push(key.clone());
                        keys.len() - 1
                    });
                }
                asked.push(next);
            }
        }
        if asked.is_empty() {
            return false;
        }
        let Ok(found) = read(keys).await else { return true };
        for Waiting { keys, answer } in asked {
            let of = |key: &Key| at.get(key).and_then(|at| found.keys.get(*at).cloned().flatten());
            let keys = keys.iter().map(of).collect();
            // Whoever asked may have gone.
            let _ = answer.send(Snapshot { revision: found.revision, keys, prefixes: Vec::new() });
        }
        true
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
    const DAMAGED: u64 = 1013;

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

        async fn answer(&self, keys: Vec<Key>) -> Result<Snapshot, Unavailable> {
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
                let found = store.gathered.read(&keys, |keys| store.answer(keys)).await?;
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
        let all: Vec<_> = (1000..1030).map(|number| store.reads(vec![number])).collect();
        store.until_waiting(28).await;
        store.may_answer.add_permits(100);
        for (number, read) in (1000..).zip(all) {
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
