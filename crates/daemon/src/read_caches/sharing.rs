//! The thread that has read caches share what the machine has for them: it carries out what the pure part plans
//! ([`surgetank_allocation::Sharing`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use surgetank_allocation::{Behind, Disk, MissCurve, Observed, Sharer, Sharing};
use surgetank_device::volume::read_cache::{Observation, ReadCacheHandle, ReadCacheVolume};
use surgetank_model::{Bytes, Limits};
use surgetank_readcache::engine::SEGMENT_DEFAULT;
use surgetank_rental::read_cache::Level;

use super::boosts::{self, BoostShare};
use super::status::ShareStatus;
use crate::config::{AllocationConfig, Config, DeviceConfig, ReadCacheConfig};

/// Steps towards a plan in an interval, and how long each takes at least and at most.
const STEPS: u32 = 32;
const STEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long caches may take to answer that are asked at the same time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A cache that serves.
#[derive(Clone)]
struct Served {
    lease: u64,
    handle: ReadCacheHandle,
    /// What was observed at the end of the last interval, and when that was.
    former: (Observation, Instant),
    /// The limit that it has taken; `None` from the moment at which it is told another one until it has taken that.
    told: Option<Bytes>,
    /// Of the backing volume.
    limits: Limits,
}

pub(super) struct State {
    pub sharing: Sharing,
    /// By device and level.
    served: BTreeMap<Key, Served>,
    /// Of the backing volumes on which all misses wait.
    limits: BTreeMap<String, Limits>,
    /// Leases so far.
    leases: u64,
}

/// A read cache of a device.
type Key = (String, Level);

/// The level of a plan.
const fn planned(level: Level) -> surgetank_allocation::Level {
    match level {
        Level::First => surgetank_allocation::Level::First,
        Level::Second => surgetank_allocation::Level::Second,
    }
}

impl State {
    /// What is served under this name, if it is so under this lease still.
    fn under(&mut self, key: &Key, lease: u64) -> Option<&mut Served> {
        self.served.get_mut(key).filter(|served| served.lease == lease)
    }
}

/// A device is served over its cache as long as this is there.
pub(super) struct Lease {
    state: Arc<Mutex<State>>,
    key: Key,
    number: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = guard(&self.state);
        // The device may be served again already.
        if state.under(&self.key, self.number).is_some() {
            state.served.remove(&self.key);
            if self.key.1 == Level::First {
                state.sharing.serves(&self.key.0, false);
            }
        }
    }
}

/// What all read caches share, and boosts, if they take part.
pub(super) struct Shares {
    state: Arc<Mutex<State>>,
    budget: Bytes,
    /// What second levels could have, by device, if they share.
    reaches: BTreeMap<String, Bytes>,
    /// Devices whose boosts take part.
    boosts: BTreeSet<String>,
    /// Has the thread look at once.
    wake: Sender<()>,
    /// Dropped, it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn guard(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    /// Begins if the configuration has read caches share.
    pub fn start(config: &Config, state_directory: &Path) -> Option<Self> {
        let AllocationConfig { cache, level2, interval, slo, .. } = config.allocation?;
        let size =
            |cache: &ReadCacheConfig| Bytes::new(cache.member_size.get().saturating_mul(u64::from(cache.members)));
        let second = |cache: &ReadCacheConfig| cache.at(Level::Second).filter(|_| level2.is_some()).map(size);
        let sharer = |(name, device): (&String, &DeviceConfig)| {
            let cache = device.read_cache.as_ref()?;
            let sharer = Sharer { slo: cache.slo.unwrap_or(slo), most: size(cache), second: second(cache) };
            Some((name.clone(), sharer))
        };
        let sharers: BTreeMap<String, Sharer> = config.devices.iter().filter_map(sharer).collect();
        let reaches = sharers.iter().filter_map(|(name, sharer)| Some((name.clone(), sharer.second?))).collect();
        // What a second level answers that does not share is none of the disk's: there the times of misses are all that is known.
        let is_known = |device: &DeviceConfig| {
            let cache = device.read_cache.as_ref();
            cache.is_some_and(|cache| level2.is_some() || cache.at(Level::Second).is_none())
        };
        let limits = config.devices.iter().filter(|(_, device)| is_known(device));
        let limits = limits.map(|(name, device)| (name.clone(), device.backing_limits)).collect();
        let rented = boosts::rented(config, state_directory);
        let boosts = rented.keys().cloned().collect();
        let budgets = (cache, level2.unwrap_or_default());
        let sharing = Sharing::new(budgets, Bytes::new(SEGMENT_DEFAULT.into()), sharers, &rented);
        let state = Arc::new(Mutex::new(State { sharing, served: BTreeMap::new(), limits, leases: 0 }));
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let (wake, woken) = crossbeam_channel::bounded(1);
        let of_thread = state.clone();
        let spawned = std::thread::Builder::new()
            .name("sharing".into())
            .spawn(move || run(&of_thread, interval, &stopped, &woken))
            .inspect_err(|error| tracing::error!(%error, "read caches keep equal parts: a thread cannot be started"));
        // Nobody makes caches smaller then.
        let boosts = if spawned.is_ok() { boosts } else { BTreeSet::new() };
        Some(Self { state, budget: cache, reaches, boosts, wake, stop: Some(stop), thread: spawned.ok() })
    }

    /// What a device's boosts have; `None`: they do not take part.
    pub fn boosts(&self, device: &str) -> Option<BoostShare> {
        let takes_part = self.boosts.contains(device);
        takes_part.then(|| BoostShare::new(self.state.clone(), self.wake.clone(), device, self.budget))
    }

    /// A device is to be served over this cache, which has its part from now on; `None`: caches of its level do not share.
    pub fn serve(
        &self,
        (device, level): (&str, Level),
        cache: &mut ReadCacheVolume,
        handle: &ReadCacheHandle,
    ) -> Option<Lease> {
        let reach = self.reaches.get(device).copied();
        if level == Level::Second && reach.is_none() {
            return None;
        }
        let key = (device.to_owned(), level);
        let mut state = guard(&self.state);
        state.leases += 1;
        let number = state.leases;
        let limit = state.sharing.limit(planned(level), device);
        let former = (Observation::default(), Instant::now());
        let limits = state.limits.get(device).copied().unwrap_or_default();
        let served = Served { lease: number, handle: handle.clone(), former, told: Some(limit), limits };
        state.served.insert(key.clone(), served);
        match level {
            // What misses here is what the second level is asked for, so the curve of both is seen here.
            Level::First => {
                cache.share(limit.get(), reach.unwrap_or_default().get());
                state.sharing.serves(device, true);
            }
            Level::Second => cache.limit(limit.get()),
        }
        Some(Lease { state: self.state.clone(), key, number })
    }

    /// What a device has of what all share; latencies are those of its reads, whatever level answers.
    pub fn status(&self, device: &str, level: Level) -> Option<ShareStatus> {
        if level == Level::Second && !self.reaches.contains_key(device) {
            return None;
        }
        let state = guard(&self.state);
        let sharing = &state.sharing;
        let verdict = sharing.verdict(device);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Some(ShareStatus {
            size_gib: sharing.limit(planned(level), device).as_gib(),
            fair_gib: sharing.fair_share(planned(level)).as_gib(),
            boosts_gib: if level == Level::First { sharing.boosts().as_gib() } else { 0.0 },
            latency_ms: verdict.map(|verdict| ms(verdict.latency)),
            expected_ms: verdict.map(|verdict| ms(verdict.expected)),
            fair_latency_ms: verdict.map(|verdict| ms(verdict.fair)),
            bound_ms: verdict.map(|verdict| ms(verdict.bound)),
            slo_met: verdict.map(|verdict| verdict.slo_met()),
            predicted_ms: sharing.predicted(device).map(ms),
            interval: sharing.intervals(),
            reason: sharing.reason(),
        })
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        self.stop = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that has read caches share panicked");
        }
    }
}

fn run(state: &Mutex<State>, interval: Duration, stop: &Receiver<()>, woken: &Receiver<()>) {
    let step = (interval / STEPS).clamp(STEP.0, STEP.1);
    let (mut planned, mut told) = (Instant::now(), None);
    loop {
        let pause = if guard(state).sharing.is_waited_for() { STEP.0 } else { step };
        crossbeam_channel::select! {
            recv(stop) -> _ => return,
            recv(woken) -> _ => {}
            default(pause) => {}
        }
        if planned.elapsed() >= interval {
            planned = Instant::now();
            let reason = plan(state);
            if reason != told {
                match &reason {
                    Some(why) => tracing::warn!(why, "read caches have equal parts"),
                    None => tracing::info!("read caches have the parts that were planned"),
                }
                told = reason;
            }
        }
        go_on(state);
    }
}

/// An interval has ended. Caches are asked without the lock, since one may take its time. Why equal parts are all there is, if they are.
fn plan(state: &Mutex<State>) -> Option<String> {
    let served = guard(state).served.clone();
    let keys: BTreeSet<Key> = served.keys().cloned().collect();
    let mut intervals = BTreeMap::new();
    let asked: Vec<_> = served.into_iter().map(|(key, served)| (key, served.handle.observe(), served)).collect();
    let left = Left::begin();
    for (key, observing, Served { lease, former, limits, .. }) in asked {
        let Some(observation) = observing.wait(left.now()) else { continue };
        let now = (observation, Instant::now());
        if let Some(served) = guard(state).under(&key, lease) {
            served.former = now.clone();
        }
        intervals.insert(key, Interval { now, former, limits });
    }
    let first = intervals.iter().filter(|((_, level), _)| *level == Level::First);
    let observed = first.filter_map(|((name, _), first)| {
        let key = (name.clone(), Level::Second);
        let second: Option<&Interval> = intervals.get(&key);
        // Of a device whose second level has not answered less is known than its first level shows.
        if second.is_none() && keys.contains(&key) {
            return None;
        }
        // One without members passes everything on.
        Some((name.clone(), first.observed(second.filter(|second| second.now.0.status.size > 0))))
    });
    let observed = observed.collect();
    let mut state = guard(state);
    state.sharing.end_interval(&observed);
    tracing::debug!(plan = ?state.sharing.plan(), "read caches share");
    state.sharing.reason()
}

/// What was observed of a cache when an interval began and when it ended.
struct Interval {
    now: (Observation, Instant),
    former: (Observation, Instant),
    limits: Limits,
}

impl Interval {
    fn elapsed_s(&self) -> f64 {
        self.now.1.duration_since(self.former.1).as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Bytes that hit and missed.
    fn bytes(&self) -> (u64, u64) {
        let (now, former) = (&self.now.0.status, &self.former.0.status);
        (now.hit_bytes.saturating_sub(former.hit_bytes), now.missed_bytes.saturating_sub(former.missed_bytes))
    }

    /// The part of what was read that missed.
    fn misses(&self) -> Option<f64> {
        let (hit, missed) = self.bytes();
        (hit + missed > 0).then(|| missed as f64 / (hit + missed) as f64)
    }

    /// What a read takes in this process beyond the cache.
    fn overhead(&self) -> Duration {
        let parts = self.now.0.overhead.iter().zip(&self.former.0.overhead);
        parts.filter_map(|(now, former)| now.since(*former).mean()).sum()
    }

    /// How long hits and misses took.
    fn waits(&self) -> (Option<Duration>, Option<Duration>) {
        let (now, former) = (&self.now.0, &self.former.0);
        (now.member_reads.since(former.member_reads).mean(), now.backing_reads.since(former.backing_reads).mean())
    }

    fn cached(&self) -> Bytes {
        Bytes::new(self.now.0.status.cached_bytes)
    }

    /// The disk under its misses.
    fn disk(&self) -> Option<Disk> {
        let misses = self.now.0.backing_reads.since(self.former.0.backing_reads);
        self.bytes().1.checked_div(misses.count).map(|bytes| {
            let busy = self.limits.service_time(bytes);
            Disk { busy, utilization: busy.as_secs_f64() * misses.count as f64 / self.elapsed_s() }
        })
    }

    /// Of a first level, with the second one beneath it, if that shares.
    fn observed(&self, second: Option<&Self>) -> Observed {
        let reads = self.now.0.reads.since(self.former.0.reads);
        let curve = self.now.0.misses.as_ref().filter(|misses| misses.sampled > 0.0).and_then(|misses| {
            let curve = MissCurve::from_measured(&misses.points, Bytes::new(misses.block.into())).ok()?;
            Some((curve, misses.sampled))
        });
        Observed {
            curve,
            reads: reads.count,
            latency: reads.mean(),
            overhead: self.overhead(),
            misses: self.misses(),
            waits: self.waits(),
            in_flight: reads.total.as_secs_f64() / self.elapsed_s(),
            disk: second.unwrap_or(self).disk(),
            cached: self.cached(),
            second: second.map(|second| Behind {
                misses: second.misses(),
                waits: second.waits(),
                cached: second.cached(),
                size: Bytes::new(second.now.0.status.size),
            }),
        }
    }
}

/// What is left of the time in which all that were asked answer: one that hangs costs nobody else an answer that is there.
struct Left(Instant);

impl Left {
    fn begin() -> Self {
        Self(Instant::now() + TIMEOUT)
    }

    fn now(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The next step towards the plan.
fn go_on(state: &Mutex<State>) {
    let asked: Vec<(Key, u64, ReadCacheHandle)> = {
        let State { served, sharing, .. } = &*guard(state);
        // One that has not taken its limit may grow: what it has does not count. If there is nothing to do, nobody is woken.
        let has_limit = served.iter().filter(|((name, level), served)| {
            !sharing.is_settled() && served.told == Some(sharing.limit(planned(*level), name))
        });
        has_limit.map(|(key, served)| (key.clone(), served.lease, served.handle.clone())).collect()
    };
    let looks: Vec<_> = asked.into_iter().map(|one| (one.2.look(), one)).collect();
    let left = Left::begin();
    // One that does not answer may have all that it may have.
    let held = looks.into_iter().filter_map(|(look, (key, lease, handle))| {
        let looked = look.wait(left.now())?.ok();
        looked.map(|()| (key, lease, Bytes::new(handle.status().held_bytes)))
    });
    let held: Vec<(Key, u64, Bytes)> = held.collect();
    let untold: Vec<(Key, u64, ReadCacheHandle, Bytes, bool)> = {
        let mut state = guard(state);
        // Another one may be in its place meanwhile.
        let held: Vec<_> = held.into_iter().filter(|(key, lease, _)| state.under(key, *lease).is_some()).collect();
        for level in Level::ALL {
            let of_level = held.iter().filter(|((_, of), ..)| *of == level);
            let held = of_level.map(|((name, _), _, held)| (name.clone(), *held)).collect();
            state.sharing.step(planned(level), &held);
        }
        let State { served, sharing, .. } = &mut *state;
        let limits = served.iter_mut().map(|(key, served)| {
            let limit = sharing.limit(planned(key.1), &key.0);
            (key, served, limit)
        });
        let untold = limits.filter(|(_, served, limit)| served.told != Some(*limit));
        // One that does not answer in time may take it later.
        let told = untold.map(|(key, served, limit)| {
            let was_silent = served.told.take().is_none();
            (key.clone(), served.lease, served.handle.clone(), limit, was_silent)
        });
        told.collect()
    };
    let told: Vec<_> = untold.into_iter().map(|one| (one.2.set_limit(Some(one.3.get())), one)).collect();
    let left = Left::begin();
    for (answer, (key, lease, _, limit, was_silent)) in told {
        let is_taken = matches!(answer.wait(left.now()), Some(Ok(())));
        let mut state = guard(state);
        let Some(served) = state.under(&key, lease) else { continue };
        if is_taken {
            served.told = Some(limit);
        } else if !was_silent {
            tracing::warn!(device = key.0, "its read cache does not answer, and may be larger than it should be");
        }
    }
}
