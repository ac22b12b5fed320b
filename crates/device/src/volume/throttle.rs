//! A volume held to rate limits by the model's own token bucket, so that what runs is what the simulator computes.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::volume_type::{self, CreditUnit};
use surgetank_model::{Instant, Limits, TokenBucket};

use super::{Completion, Failure, Operation, Volume, VolumeIo};

/// How much unused rate a throttled volume saves up by default: enough to make up for late wake-ups, too little to
/// matter beside the rate.
pub const BURST_DEFAULT: Duration = Duration::from_millis(25);

/// Burst credits: operations (or bytes) are served at the limits while credits last, at `baseline_per_s` afterwards.
/// The balance grows at the baseline and shrinks by what is served, between 0 and `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// What a credit pays for.
    pub unit: Unit,
    /// Credits earned per second, at least 1.
    pub baseline_per_s: u64,
    /// The largest balance.
    pub capacity: u64,
    /// The balance at the start, at most `capacity`.
    pub initial: u64,
}

impl From<&volume_type::Credits> for Credits {
    /// Those of a new volume: full.
    fn from(credits: &volume_type::Credits) -> Self {
        let volume_type::Credits { unit, baseline_per_s, bucket, .. } = *credits;
        let unit = match unit {
            CreditUnit::Operations => Unit::Operation,
            CreditUnit::Bytes => Unit::Byte,
        };
        Self { unit, baseline_per_s, capacity: bucket, initial: bucket }
    }
}

/// What tokens of a bucket pay for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// An operation.
    Operation,
    /// A byte.
    Byte,
}

/// A volume whose I/Os start no faster than its limits allow, in order of submission.
///
/// An I/O starts when every bucket is positive and may take it into debt, so large I/Os pass and pay afterwards.
/// A write-zeroes costs what a write of its length costs; a discard costs an operation and no bytes; a flush is free
/// and overtakes what waits, because it covers completed writes only.
#[derive(Debug)]
pub struct Throttle<V> {
    volume: V,
    burst: Duration,
    gates: Vec<Gate>,
    waiting: VecDeque<VolumeIo>,
    /// How many gates the first waiting I/O has paid already.
    head_passed: usize,
    /// When the first waiting I/O may go on; `Some` exactly while something waits.
    head_deadline: Option<Instant>,
}

#[derive(Debug)]
struct Gate {
    purpose: Purpose,
    unit: Unit,
    /// Others may look at how full it is.
    bucket: Arc<Mutex<TokenBucket>>,
    rate_per_s: u64,
    capacity: u64,
}

/// What a gate is for; the key by which a balance outlives a change of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Bandwidth,
    Iops,
    Credits,
}

impl Gate {
    fn full(purpose: Purpose, unit: Unit, now: Instant, rate_per_s: u64, capacity: u64) -> Self {
        let capacity = capacity.max(1);
        let bucket = Arc::new(Mutex::new(TokenBucket::full(now, rate_per_s, capacity)));
        Self { purpose, unit, bucket, rate_per_s, capacity }
    }

    fn bucket(&self) -> MutexGuard<'_, TokenBucket> {
        locked(&self.bucket)
    }

    fn rate(purpose: Purpose, unit: Unit, now: Instant, rate_per_s: u64, burst: Duration) -> Self {
        let capacity = u128::from(rate_per_s) * burst.as_nanos() / 1_000_000_000;
        Self::full(purpose, unit, now, rate_per_s, u64::try_from(capacity).unwrap_or(u64::MAX))
    }

    /// What the I/O costs at this gate, in tokens.
    fn cost(&self, io: &VolumeIo) -> u64 {
        match (self.unit, io.operation) {
            (_, Operation::Flush) | (Unit::Byte, Operation::Discard) => 0,
            (Unit::Operation, _) => 1,
            (Unit::Byte, _) => io.length,
        }
    }

    /// Tokens in the bucket; negative while it is in debt.
    fn balance(&self, now: Instant) -> i128 {
        let mut bucket = self.bucket();
        let available = bucket.available(now);
        if available > 0 {
            return available.into();
        }
        // A take from a copy tells the debt, as the time until it is paid.
        match bucket.clone().take(now, 1) {
            Ok(()) => 0,
            Err(positive) => -((positive - now).as_nanos() as i128 * i128::from(self.rate_per_s) / 1_000_000_000),
        }
    }

    /// Brings a full bucket to `balance`, or less if that is more than it holds.
    fn set_balance(&self, now: Instant, balance: i128) {
        let excess = u64::try_from(i128::from(self.capacity) - balance).unwrap_or(0);
        // A full bucket holds at least one token, so it lets anything pass.
        let taken = self.bucket().take(now, excess);
        debug_assert!(taken.is_ok());
    }
}

/// A bucket stays right if a thread panics beside it.
fn locked(bucket: &Mutex<TokenBucket>) -> MutexGuard<'_, TokenBucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the credits of a throttled volume, on any thread.
#[derive(Clone, Debug, Default)]
pub struct CreditMeter(Vec<(Unit, Arc<Mutex<TokenBucket>>)>);

impl CreditMeter {
    /// The balance of each bucket, in the order in which they were set.
    #[must_use]
    pub fn balances(&self, now: Instant) -> Vec<(Unit, u64)> {
        self.0.iter().map(|(unit, bucket)| (*unit, locked(bucket).available(now))).collect()
    }
}

impl<V: Volume> Throttle<V> {
    /// `volume` held to `limits`, with the default burst.
    pub fn new(volume: V, limits: Limits, now: Instant) -> Self {
        Self::with_burst(volume, limits, BURST_DEFAULT, now)
    }

    /// `volume` held to `limits`, saving up at most `burst` of unused rate.
    pub fn with_burst(volume: V, limits: Limits, burst: Duration, now: Instant) -> Self {
        let mut throttle =
            Self { volume, burst, gates: Vec::new(), waiting: VecDeque::new(), head_passed: 0, head_deadline: None };
        throttle.set_limits(limits, now);
        throttle
    }

    /// Adds burst credits to the limits, replacing those there were. Several fill and empty independently.
    pub fn set_credits(&mut self, credits: &[Credits], now: Instant) -> CreditMeter {
        self.forget_paid();
        self.gates.retain(|gate| gate.purpose != Purpose::Credits);
        for credits in credits {
            let rate_per_s = credits.baseline_per_s.max(1);
            let gate = Gate::full(Purpose::Credits, credits.unit, now, rate_per_s, credits.capacity);
            gate.set_balance(now, credits.initial.into());
            self.gates.push(gate);
        }
        self.admit(now);
        let gates = self.gates.iter().filter(|gate| gate.purpose == Purpose::Credits);
        CreditMeter(gates.map(|gate| (gate.unit, gate.bucket.clone())).collect())
    }

    /// Changes the limits from now on. Debts stay debts, and no new burst is granted.
    pub fn set_limits(&mut self, limits: Limits, now: Instant) {
        self.forget_paid();
        let burst = self.burst;
        let bandwidth =
            limits.bandwidth.map(|bandwidth| Gate::rate(Purpose::Bandwidth, Unit::Byte, now, bandwidth.get(), burst));
        let iops = limits.iops.map(|iops| Gate::rate(Purpose::Iops, Unit::Operation, now, iops.get(), burst));
        let mut gates: Vec<Gate> = bandwidth.into_iter().chain(iops).collect();
        for gate in &gates {
            if let Some(old) = self.gates.iter().find(|old| old.purpose == gate.purpose) {
                let balance = old.balance(now);
                gate.set_balance(now, balance);
            }
        }
        gates.extend(self.gates.drain(..).filter(|gate| gate.purpose == Purpose::Credits));
        self.gates = gates;
        self.admit(now);
    }

    /// The volume inside.
    pub fn inner(&self) -> &V {
        &self.volume
    }

    /// The volume inside, mutably.
    pub fn inner_mut(&mut self) -> &mut V {
        &mut self.volume
    }

    /// I/Os that wait for the limits.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The first waiting I/O pays anew after a change of gates; what it had paid is at most one I/O's tokens.
    fn forget_paid(&mut self) {
        self.head_passed = 0;
    }

    /// Starts what the limits allow.
    fn admit(&mut self, now: Instant) {
        self.head_deadline = None;
        while let Some(io) = self.waiting.front() {
            while let Some(gate) = self.gates.get(self.head_passed) {
                let taken = gate.bucket().take(now, gate.cost(io));
                if let Err(positive) = taken {
                    self.head_deadline = Some(positive);
                    return;
                }
                self.head_passed += 1;
            }
            self.head_passed = 0;
            if let Some(io) = self.waiting.pop_front() {
                self.volume.submit(now, io);
            }
        }
    }
}

impl<V: Volume> Volume for Throttle<V> {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn logical_block(&self) -> u32 {
        self.volume.logical_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        if io.operation == Operation::Flush {
            return self.volume.submit(now, io);
        }
        self.waiting.push_back(io);
        if self.head_deadline.is_none_or(|deadline| deadline <= now) {
            self.admit(now);
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if self.head_deadline.is_some_and(|deadline| deadline <= now) {
            self.admit(now);
        }
        self.volume.poll(now, completions);
    }

    fn has_ended(&mut self) -> bool {
        self.volume.has_ended()
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        self.volume.resize_check()
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.head_deadline, self.volume.next_deadline()].into_iter().flatten().min()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.volume.descriptor()
    }
}
