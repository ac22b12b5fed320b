//! A decorator that makes a provider misbehave as clouds do, by script or by chance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;
use surgetank_model::units::Span;

use crate::clock::{Clock, whole_ms};
use surgetank_model::{Bytes, Lag};

use crate::{
    Change, CreateVolume, Home, Provider, ProviderError, Transition, VolumeDescription, VolumeId, VolumeState,
    decide_growth,
};

/// Makes the seed of the faults that were added after seeds were known.
const ADDED: u64 = 0xfa11_ed00;

/// The verbs of a [`Provider`], to say which one a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the verb of that name")]
pub enum Verb {
    Create,
    Attach,
    Detach,
    Delete,
    Describe,
    List,
    SetTag,
    Grow,
}

impl From<Transition> for Verb {
    fn from(transition: Transition) -> Self {
        match transition {
            Transition::Attach => Self::Attach,
            Transition::Detach => Self::Detach,
            Transition::Delete => Self::Delete,
        }
    }
}

/// One way to misbehave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and nothing was done. Quota, capacity, attachment limits and throttling are this, with their errors.
    Before(ProviderError),
    /// The call is carried out, and yet fails: the caller cannot know.
    After(ProviderError),
    /// The call is answered, but the change takes this much longer to show: the volume stays creating, attaching,
    /// detaching or deleting. `Duration::MAX`: it hangs until [`Faulty::release`].
    Slow(Duration),
    /// The call is carried out twice, as a network repeats a request. A repeated `create` makes a second volume with
    /// the same tags, as on a provider whose tokens have expired; the caller is told of the first alone.
    Twice,
    /// The call is carried out, then the volume disappears for good without anybody having deleted it.
    Vanish,
    /// `create` answers that the volume is being made, and then it has failed. Other verbs do as if nothing were wrong.
    Fails,
    /// `list` answers what it answered the last time, or nothing if it was never asked: clouds' lists lag behind.
    Stale,
    /// `describe` and `list` do not know the volume for so long: the one that `create` made, or the one that `describe` is asked for.
    /// Once for each volume; the other verbs know it.
    Unknown(Duration),
}

/// Faults by chance, each with its probability per call (0 to 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultRates {
    /// The same seed and the same calls give the same faults.
    pub seed: u64,
    /// After this many faults the provider behaves; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u32>,
    /// Any verb fails before it did anything.
    pub fail_before: f64,
    /// A verb that changes something fails after it did.
    pub fail_after: f64,
    /// A change takes `slow_for` longer.
    pub slow: f64,
    /// How much longer.
    pub slow_for: Span,
    /// `create` or `grow` answers that the quota is used up.
    pub quota: f64,
    /// `create` or `grow` answers that there is no capacity.
    pub capacity: f64,
    /// `attach` answers that no slot is free.
    pub attach_limit: f64,
    /// A change is carried out twice.
    pub twice: f64,
    /// The volume disappears after a change.
    pub vanish: f64,
    /// `list` answers as it did the last time.
    pub stale: f64,
    /// Any verb answers that there were too many requests.
    pub throttled: f64,
    /// When it wants to be asked again then; absent: it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_for: Option<Span>,
    /// A volume that is created fails.
    pub fails: f64,
    /// A volume is not known for `unknown_for`: one that is created, or that is there. Then [`Provider::lag`] says so.
    pub unknown: f64,
    /// How long.
    pub unknown_for: Span,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self {
            seed: 0,
            at_most: None,
            fail_before: 0.0,
            fail_after: 0.0,
            slow: 0.0,
            slow_for: Span(Duration::from_secs(30)),
            quota: 0.0,
            capacity: 0.0,
            attach_limit: 0.0,
            twice: 0.0,
            vanish: 0.0,
            stale: 0.0,
            throttled: 0.0,
            throttled_for: None,
            fails: 0.0,
            unknown: 0.0,
            unknown_for: Span(Duration::from_secs(10)),
        }
    }
}

impl FaultRates {
    /// Draws the fault of one call. A call has one fault at most.
    fn draw(&self, verb: Verb, [random, later]: &mut [Random; 2]) -> Option<Fault> {
        let changes = !matches!(verb, Verb::Describe | Verb::List);
        let moves = matches!(verb, Verb::Create | Verb::Attach | Verb::Detach | Verb::Delete);
        let rents = matches!(verb, Verb::Create | Verb::Grow);
        let transient = |what: &str| ProviderError::Transient(format!("injected fault: {what}"));
        let table = [
            (self.fail_before, true, Fault::Before(transient("the request was not carried out"))),
            (self.fail_after, changes, Fault::After(transient("the answer was lost"))),
            (self.slow, moves, Fault::Slow(self.slow_for.0)),
            (self.quota, rents, Fault::Before(ProviderError::Quota("injected fault".to_owned()))),
            (self.capacity, rents, Fault::Before(ProviderError::Capacity("injected fault".to_owned()))),
            (
                self.attach_limit,
                verb == Verb::Attach,
                Fault::Before(ProviderError::AttachLimit("injected fault".to_owned())),
            ),
            (self.twice, changes, Fault::Twice),
            (self.vanish, moves, Fault::Vanish),
            (self.stale, verb == Verb::List, Fault::Stale),
        ];
        let after = self.throttled_for.map(|span| span.0);
        // From a stream of their own: they came later, and seeds that are known keep their faults.
        let added = [
            (
                self.throttled,
                true,
                Fault::Before(ProviderError::Throttled { after, text: "injected fault".to_owned() }),
            ),
            (self.fails, verb == Verb::Create, Fault::Fails),
            (self.unknown, matches!(verb, Verb::Create | Verb::Describe), Fault::Unknown(self.unknown_for.0)),
        ];
        let first = Self::first(table, random);
        first.or(Self::first(added, later))
    }

    /// Every chance is drawn every time, so that changing one rate leaves the others' faults where they were.
    fn first(table: impl IntoIterator<Item = (f64, bool, Fault)>, random: &mut Random) -> Option<Fault> {
        let mut drawn = None;
        for (rate, applies, fault) in table {
            if random.chance(rate) && applies && drawn.is_none() {
                drawn = Some(fault);
            }
        }
        drawn
    }
}

/// A provider that misbehaves.
///
/// # Fault model
/// - A call may fail before it did anything, with any [`ProviderError`], or after it did everything. It never does half.
/// - A change that was answered may show late, up to never ([`Fault::Slow`]). While it does, `describe` and `list` tell
///   the state on the way, and verbs that need the change answer `Conflict`; `detach` of a volume that hangs attaching
///   and `delete` of one that hangs creating go through, as they do on clouds.
/// - A call may be carried out twice; then a `create` leaves an orphan ([`Fault::Twice`]).
/// - A volume may vanish: no verb knows it any more, and the deletion is `Identity`. Its bytes are not touched: what
///   reading and writing a vanished volume does is for the device's fault decorator to say.
/// - A volume that is created may fail: every verb then treats it as [`VolumeState::Failed`] says.
/// - A `list` may lag behind: it leaves out what is new, and shows what is gone, and tags and states from before ([`Fault::Stale`]).
/// - A volume that is there may not be known for a while, once ([`Fault::Unknown`]).
/// - Answers are never wrong otherwise: no other volume's description, and `describe` tells no stale tags, and no states that go
///   backwards.
///
/// Scripted faults come first, in their order for each verb; then those by chance.
pub struct Faulty<P> {
    inner: P,
    clock: Arc<dyn Clock>,
    plan: Mutex<Plan>,
    observer: Option<Observer>,
}

/// Told of every fault as it happens, on the caller's thread.
pub type Observer = Box<dyn Fn(Verb, &Fault) + Send + Sync>;

/// What is yet to go wrong, and what has.
#[derive(Default)]
struct Plan {
    script: BTreeMap<Verb, VecDeque<Fault>>,
    chance: Option<(FaultRates, [Random; 2])>,
    /// Faults so far.
    count: u32,
    /// Changes that do not show yet.
    pending: BTreeMap<VolumeId, Pending>,
    vanished: Vec<VolumeId>,
    failed: BTreeSet<VolumeId>,
    /// Volumes that are not known until then, or were not.
    unknown: BTreeMap<VolumeId, u64>,
    /// The latest answer to each `list`, by key and value.
    listed: BTreeMap<(String, String), Vec<VolumeDescription>>,
}

/// A change that does not show yet.
struct Pending {
    /// What `describe` tells meanwhile.
    shown: VolumeDescription,
    until_ms: u64,
}

impl<P: Provider> Faulty<P> {
    /// Decorates a provider; as yet it behaves. The clock is for [`Fault::Slow`].
    pub fn new(inner: P, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, plan: Mutex::default(), observer: None }
    }

    /// Tells of every fault.
    #[must_use]
    pub fn with_observer(self, observer: Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Adds faults by chance.
    #[must_use]
    pub fn with_rates(self, rates: FaultRates) -> Self {
        let random = [rates.seed, rates.seed ^ ADDED].map(Random::from_seed);
        self.plan().chance = Some((rates, random));
        self
    }

    /// Lets the next call of this verb that has no fault scripted yet go wrong.
    pub fn script(&self, verb: Verb, fault: Fault) {
        self.plan().script.entry(verb).or_default().push_back(fault);
    }

    /// Lets every slow change show now.
    pub fn release(&self) {
        self.plan().pending.clear();
    }

    /// How many faults there were so far.
    pub fn faults(&self) -> u32 {
        self.plan().count
    }

    /// The provider underneath, which does not misbehave.
    pub const fn inner(&self) -> &P {
        &self.inner
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of this call.
    fn next(&self, verb: Verb) -> Option<Fault> {
        let fault = self.plan().next(verb);
        if let (Some(observer), Some(fault)) = (&self.observer, &fault) {
            observer(verb, fault);
        }
        fault
    }

    /// Whether a volume is not as the provider underneath says: `None` if it has vanished, else that it has failed, or the state on
    /// the way of a change that does not show yet.
    fn shown_instead(&self, id: &VolumeId) -> Option<Option<VolumeState>> {
        let mut plan = self.plan();
        if plan.vanished.contains(id) {
            return Some(None);
        }
        let pending = plan.pending(id, self.clock.now_ms()).map(|shown| shown.state);
        pending.or(plan.failed.contains(id).then_some(VolumeState::Failed)).map(Some)
    }

    /// What goes wrong after the call was carried out. `slow`: what is shown while the change is slow, of a verb that has
    /// a state on the way.
    fn aftermath(
        &self,
        id: &VolumeId,
        change: Change,
        slow: Option<VolumeDescription>,
        fault: Option<Fault>,
        again: impl Fn() -> Result<Change, ProviderError>,
    ) -> Result<Change, ProviderError> {
        match fault {
            None | Some(Fault::Before(_) | Fault::Stale | Fault::Fails) => {}
            Some(Fault::After(error)) => return Err(error),
            Some(Fault::Twice) => {
                let _ = again();
            }
            Some(Fault::Vanish) => self.plan().vanish(id),
            Some(Fault::Unknown(by)) => {
                if change == Change::Changed {
                    self.plan().forget(id, self.clock.now_ms(), by);
                }
            }
            Some(Fault::Slow(by)) => {
                if let (Change::Changed, Some(volume)) = (change, slow) {
                    let shown = VolumeDescription { device: None, ..volume };
                    let until_ms = self.clock.now_ms().saturating_add(whole_ms(by));
                    self.plan().pending.insert(id.clone(), Pending { shown, until_ms });
                }
            }
        }
        Ok(change)
    }
}

impl Plan {
    fn next(&mut self, verb: Verb) -> Option<Fault> {
        let fault = match self.script.get_mut(&verb).and_then(VecDeque::pop_front) {
            Some(fault) => Some(fault),
            None => {
                let (rates, random) = self.chance.as_mut()?;
                let drawn = rates.draw(verb, random);
                if rates.at_most.is_some_and(|most| self.count >= most) { None } else { drawn }
            }
        };
        self.count += u32::from(fault.is_some());
        fault
    }

    fn vanish(&mut self, id: &VolumeId) {
        self.pending.remove(id);
        self.vanished.push(id.clone());
    }

    /// The volume is not known from now on, unless it was not before.
    fn forget(&mut self, id: &VolumeId, now_ms: u64, by: Duration) {
        self.unknown.entry(id.clone()).or_insert(now_ms.saturating_add(whole_ms(by)));
    }

    fn is_known(&self, id: &VolumeId, now_ms: u64) -> bool {
        self.unknown.get(id).is_none_or(|until| *until <= now_ms)
    }

    /// What is shown of a volume whose last change does not show yet.
    fn pending(&mut self, id: &VolumeId, now_ms: u64) -> Option<&VolumeDescription> {
        if self.pending.get(id).is_some_and(|pending| now_ms >= pending.until_ms) {
            self.pending.remove(id);
        }
        self.pending.get(id).map(|pending| &pending.shown)
    }

    /// What is told of a volume that is there.
    fn tell(&mut self, volume: VolumeDescription, now_ms: u64) -> VolumeDescription {
        let has_failed = self.failed.contains(&volume.id) && volume.state != VolumeState::Deleting;
        match self.pending(&volume.id, now_ms) {
            Some(shown) => VolumeDescription { state: shown.state, device: None, ..volume },
            None if has_failed => VolumeDescription { state: VolumeState::Failed, device: None, ..volume },
            None => volume,
        }
    }
}

impl<P: Provider> Provider for Faulty<P> {
    fn home(&self) -> Home {
        self.inner.home()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let fault = self.next(Verb::Create);
        if let Some(Fault::Before(error)) = fault {
            return Err(error);
        }
        let fails = fault == Some(Fault::Fails);
        let (volume, change) = self.inner.create(request)?;
        let again = || {
            let token = format!("{}-twice", request.token);
            self.inner.create(&CreateVolume { token, ..request.clone() }).map(|(_, change)| change)
        };
        let slow = Some(VolumeDescription { state: VolumeState::Creating, ..volume.clone() });
        let change = self.aftermath(&volume.id, change, slow, fault, again)?;
        if fails && change == Change::Changed {
            self.plan().failed.insert(volume.id.clone());
            return Ok((VolumeDescription { state: VolumeState::Creating, device: None, ..volume }, change));
        }
        Ok((self.plan().tell(volume, self.clock.now_ms()), change))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        let fault = self.next(transition.into());
        if let Some(Fault::Before(error)) = fault {
            return Err(error);
        }
        if let Some(state) = self.shown_instead(id)
            && transition.decide(id, state)? == Change::Identity
        {
            return Ok(Change::Identity);
        }
        // Of a deleted volume only this moment's description is left to show.
        let before = if matches!(fault, Some(Fault::Slow(_))) { self.inner.describe(id).ok() } else { None };
        let slow = before.map(|volume| VolumeDescription { state: transition.under_way(), ..volume });
        let change_state = || self.inner.change_state(id, transition);
        let change = change_state()?;
        self.plan().pending.remove(id);
        self.aftermath(id, change, slow, fault, change_state)
    }

    fn create_is_exclusive(&self) -> bool {
        self.inner.create_is_exclusive()
    }

    fn grows(&self) -> bool {
        self.inner.grows()
    }

    fn lag(&self) -> Lag {
        let Lag { created, known } = self.inner.lag();
        let plan = self.plan();
        let rates = plan.chance.as_ref().map(|(rates, _)| rates).filter(|rates| rates.unknown > 0.0);
        let unknown_for = rates.map_or(Duration::ZERO, |rates| rates.unknown_for.0);
        Lag { created: created.max(unknown_for), known: known.max(unknown_for) }
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        let fault = self.next(Verb::Grow);
        if let Some(Fault::Before(error)) = fault {
            return Err(error);
        }
        if let Some(state) = self.shown_instead(id) {
            let size_now = self.inner.describe(id).map_or(Bytes::ZERO, |volume| volume.size);
            if decide_growth(id, state.map(|state| (state, size_now)), size)? == Change::Identity {
                return Ok(Change::Identity);
            }
        }
        let grow = || self.inner.grow(id, size);
        let change = grow()?;
        self.aftermath(id, change, None, fault, grow)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        let fault = self.next(Verb::Describe);
        let mut plan = self.plan();
        let now_ms = self.clock.now_ms();
        match fault {
            Some(Fault::Before(error) | Fault::After(error)) => return Err(error),
            Some(Fault::Unknown(by)) => plan.forget(id, now_ms, by),
            _ => {}
        }
        if plan.vanished.contains(id) || !plan.is_known(id, now_ms) {
            return Err(ProviderError::NotFound(id.clone()));
        }
        match self.inner.describe(id) {
            Ok(volume) => Ok(plan.tell(volume, now_ms)),
            // Deleted underneath, but it does not show yet.
            Err(ProviderError::NotFound(_)) => {
                plan.pending(id, now_ms).cloned().ok_or_else(|| ProviderError::NotFound(id.clone()))
            }
            Err(error) => Err(error),
        }
    }

    fn disk_changed(&self) {
        self.inner.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        let fault = self.next(Verb::List);
        let mut plan = self.plan();
        let name = (key.to_owned(), value.to_owned());
        match fault {
            Some(Fault::Before(error) | Fault::After(error)) => return Err(error),
            Some(Fault::Stale) => return Ok(plan.listed.get(&name).cloned().unwrap_or_default()),
            _ => {}
        }
        let now_ms = self.clock.now_ms();
        let mut there = self.inner.list(key, value)?;
        there.retain(|volume| !plan.vanished.contains(&volume.id) && plan.is_known(&volume.id, now_ms));
        let told = there.into_iter().map(|volume| (volume.id.clone(), plan.tell(volume, now_ms)));
        let mut told: BTreeMap<_, _> = told.collect();
        let deleting = plan.pending.iter().filter(|(_, pending)| {
            let gone = pending.shown.state == VolumeState::Deleting && now_ms < pending.until_ms;
            gone && pending.shown.tags.get(key).is_some_and(|there| there == value)
        });
        told.extend(deleting.map(|(id, pending)| (id.clone(), pending.shown.clone())));
        let volumes: Vec<_> = told.into_values().collect();
        plan.listed.insert(name, volumes.clone());
        Ok(volumes)
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        let fault = self.next(Verb::SetTag);
        if let Some(Fault::Before(error)) = fault {
            return Err(error);
        }
        match self.shown_instead(id) {
            Some(None) => return Err(ProviderError::NotFound(id.clone())),
            Some(Some(state @ VolumeState::Deleting)) => {
                let reason = "it is being deleted".to_owned();
                return Err(ProviderError::Conflict { id: id.clone(), state, reason });
            }
            _ => {}
        }
        let set_tag = || self.inner.set_tag(id, key, value);
        let change = set_tag()?;
        self.aftermath(id, change, None, fault, set_tag)
    }
}
