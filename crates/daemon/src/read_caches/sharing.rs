//! The thread that has read caches share what the machine has for them: it carries out what the pure part plans
//! ([`surgetank_allocation::Sharing`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use surgetank_allocation::{Disk, MissCurve, Observed, Sharer, Sharing};
use surgetank_device::volume::read_cache::{Observation, ReadCacheHandle, ReadCacheVolume};
use surgetank_model::{Bytes, Limits};
use surgetank_readcache::engine::SEGMENT_DEFAULT;
use surgetank_rental::read_cache::Level;

use super::boosts::{self, BoostShare};
use super::status::ShareStatus;
use crate::config::{AllocationConfig, Config, DeviceConfig};

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
    served: BTreeMap<String, Served>,
    /// Of the backing volumes on which all misses wait.
    limits: BTreeMap<String, Limits>,
    /// Leases so far.
    leases: u64,
}

impl State {
    /// What is served under this name, if it is so under this lease still.
    fn under(&mut self, name: &str, lease: u64) -> Option<&mut Served> {
        self.served.get_mut(name).filter(|served| served.lease == lease)
    }
}

/// A device is served over its cache as long as this is there.
pub(super) struct Lease {
    state: Arc<Mutex<State>>,
    device: String,
    number: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = guard(&self.state);
        // The device may be served again already.
        if state.served.get(&self.device).is_some_and(|served| served.lease == self.number) {
            state.served.remove(&self.device);
        }
    }
}

/// What all read caches share, and boosts, if they take part.
pub(super) struct Shares {
    state: Arc<Mutex<State>>,
    budget: Bytes,
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
        let AllocationConfig { cache, interval, slo, .. } = config.allocation?;
        let sharer = |(name, device): (&String, &DeviceConfig)| {
            let read_cache = device.read_cache.as_ref()?;
            let most = read_cache.member_size.get().saturating_mul(u64::from(read_cache.members));
            Some((name.clone(), Sharer { slo: read_cache.slo.unwrap_or(slo), most: Bytes::new(most) }))
        };
        let sharers = config.devices.iter().filter_map(sharer).collect();
        // What a second level answers is none of the disk's: there the times of misses are all that is known.
        let has_one_level = |device: &DeviceConfig| {
            device.read_cache.as_ref().is_some_and(|read_cache| read_cache.at(Level::Second).is_none())
        };
        let limits = config.devices.iter().filter(|(_, device)| has_one_level(device));
        let limits = limits.map(|(name, device)| (name.clone(), device.backing_limits)).collect();
        let rented = boosts::rented(config, state_directory);
        let boosts = rented.keys().cloned().collect();
        let sharing = Sharing::new(cache, Bytes::new(SEGMENT_DEFAULT.into()), sharers, &rented);
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
        Some(Self { state, budget: cache, boosts, wake, stop: Some(stop), thread: spawned.ok() })
    }

    /// What a device's boosts have; `None`: they do not take part.
    pub fn boosts(&self, device: &str) -> Option<BoostShare> {
        let takes_part = self.boosts.contains(device);
        takes_part.then(|| BoostShare::new(self.state.clone(), self.wake.clone(), device, self.budget))
    }

    /// A device is to be served over this cache, which has its part from now on.
    pub fn serve(&self, device: &str, cache: &mut ReadCacheVolume, handle: &ReadCacheHandle) -> Lease {
        let mut state = guard(&self.state);
        state.leases += 1;
        let number = state.leases;
        let limit = state.sharing.limit(device);
        let former = (Observation::default(), Instant::now());
        let limits = state.limits.get(device).copied().unwrap_or_default();
        let served = Served { lease: number, handle: handle.clone(), former, told: Some(limit), limits };
        state.served.insert(device.to_owned(), served);
        cache.share(limit.get());
        Lease { state: self.state.clone(), device: device.to_owned(), number }
    }

    /// What a device has of what all share.
    pub fn status(&self, device: &str) -> Option<ShareStatus> {
        let state = guard(&self.state);
        let sharing = &state.sharing;
        let verdict = sharing.verdict(device);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Some(ShareStatus {
            size_gib: sharing.limit(device).as_gib(),
            fair_gib: sharing.fair_share().as_gib(),
            boosts_gib: sharing.boosts().as_gib(),
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
    let mut observed = BTreeMap::new();
    let asked: Vec<_> = served.into_iter().map(|(name, served)| (name, served.handle.observe(), served)).collect();
    let left = Left::begin();
    for (name, observing, Served { lease, former, limits, .. }) in asked {
        let Some(observation) = observing.wait(left.now()) else { continue };
        let now = (observation, Instant::now());
        observed.insert(name.clone(), of_interval(&now, &former, &limits));
        if let Some(served) = guard(state).under(&name, lease) {
            served.former = now;
        }
    }
    let mut state = guard(state);
    state.sharing.end_interval(&observed);
    tracing::debug!(plan = ?state.sharing.plan(), "read caches share");
    state.sharing.reason()
}

fn of_interval(now: &(Observation, Instant), former: &(Observation, Instant), limits: &Limits) -> Observed {
    let elapsed_s = now.1.duration_since(former.1).as_secs_f64().max(f64::MIN_POSITIVE);
    let (now, former) = (&now.0, &former.0);
    let reads = now.reads.since(former.reads);
    let curve = now.misses.as_ref().filter(|misses| misses.sampled > 0.0).and_then(|misses| {
        let curve = MissCurve::from_measured(&misses.points, Bytes::new(misses.block.into())).ok()?;
        Some((curve, misses.sampled))
    });
    let (hits, misses) = (now.member_reads.since(former.member_reads), now.backing_reads.since(former.backing_reads));
    let missed = now.status.missed_bytes.saturating_sub(former.status.missed_bytes);
    let disk = missed.checked_div(misses.count).map(|bytes| {
        let busy = limits.service_time(bytes);
        Disk { busy, utilization: busy.as_secs_f64() * misses.count as f64 / elapsed_s }
    });
    let hit = now.status.hit_bytes.saturating_sub(former.status.hit_bytes);
    Observed {
        curve,
        reads: reads.count,
        latency: reads.mean(),
        misses: (hit + missed > 0).then(|| missed as f64 / (hit + missed) as f64),
        waits: (hits.mean(), misses.mean()),
        in_flight: reads.total.as_secs_f64() / elapsed_s,
        disk,
        cached: Bytes::new(now.status.cached_bytes),
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
    let asked: Vec<(String, u64, ReadCacheHandle)> = {
        let State { served, sharing, .. } = &*guard(state);
        // One that has not taken its limit may grow: what it has does not count. If there is nothing to do, nobody is woken.
        let has_limit =
            served.iter().filter(|(name, served)| !sharing.is_settled() && served.told == Some(sharing.limit(name)));
        has_limit.map(|(name, served)| (name.clone(), served.lease, served.handle.clone())).collect()
    };
    let looks: Vec<_> = asked.into_iter().map(|one| (one.2.look(), one)).collect();
    let left = Left::begin();
    // One that does not answer may have all that it may have.
    let held = looks.into_iter().filter_map(|(look, (name, lease, handle))| {
        let looked = look.wait(left.now())?.ok();
        looked.map(|()| (name, lease, Bytes::new(handle.status().held_bytes)))
    });
    let held: Vec<(String, u64, Bytes)> = held.collect();
    let untold: Vec<(String, u64, ReadCacheHandle, Bytes, bool)> = {
        let mut state = guard(state);
        // Another one may be in its place meanwhile.
        let held = held.into_iter().filter(|(name, lease, _)| state.under(name, *lease).is_some());
        let held: BTreeMap<String, Bytes> = held.map(|(name, _, held)| (name, held)).collect();
        state.sharing.step(&held);
        let State { served, sharing, .. } = &mut *state;
        let limits = served.iter_mut().map(|(name, served)| (name, served, sharing.limit(name)));
        let untold = limits.filter(|(_, served, limit)| served.told != Some(*limit));
        // One that does not answer in time may take it later.
        let told = untold.map(|(name, served, limit)| {
            let was_silent = served.told.take().is_none();
            (name.clone(), served.lease, served.handle.clone(), limit, was_silent)
        });
        told.collect()
    };
    let told: Vec<_> = untold.into_iter().map(|one| (one.2.set_limit(Some(one.3.get())), one)).collect();
    let left = Left::begin();
    for (answer, (name, lease, _, limit, was_silent)) in told {
        let is_taken = matches!(answer.wait(left.now()), Some(Ok(())));
        let mut state = guard(state);
        let Some(served) = state.under(&name, lease) else { continue };
        if is_taken {
            served.told = Some(limit);
        } else if !was_silent {
            tracing::warn!(device = name, "its read cache does not answer, and may be larger than it should be");
        }
    }
}
