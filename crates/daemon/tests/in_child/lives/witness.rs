//! The provider of the life-cycle tests: faults by chance, calls that hang, and everything written down.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use surgetank_cache::Owner;
use surgetank_daemon::owner;
use surgetank_model::random::Random;
use surgetank_model::units::Span;
use surgetank_provider::{
    Change, CreateVolume, Fault, FaultRates, Faulty, Home, Lag, Provider, ProviderError, SystemClock, Tags, Transition,
    VolumeDescription, VolumeId, tag,
};

use super::Mode;
use super::ground::Pace;
use super::log::Writer;

/// The tag that carries the client token.
pub const TOKEN: &str = "surgetank:token";

thread_local! {
    /// The life that the call at hand belongs to.
    static TOKEN_AT_HAND: RefCell<String> = RefCell::new("-".to_owned());
}

/// When a volume was made, and when it was gone.
#[derive(Clone, Debug)]
pub struct Stay {
    pub device: String,
    pub mib: f64,
    pub from: Instant,
    pub until: Option<Instant>,
}

pub struct Witness {
    inner: Faulty<Counted>,
    log: Arc<Writer>,
    stays: Stays,
    hangs: Mutex<(f64, Random)>,
}

type Stays = Arc<Mutex<BTreeMap<VolumeId, Stay>>>;

/// The provider as it really is, beneath the faults: what is made and deleted there is what is paid for.
struct Counted {
    truth: Arc<dyn Provider>,
    log: Arc<Writer>,
    /// The daemon's.
    state: PathBuf,
    stays: Stays,
    lag: Lag,
    /// Whose volumes are, which never changes: asked anew, the client would always know how they stand.
    tags: Mutex<BTreeMap<VolumeId, Tags>>,
}

impl Counted {
    fn learn(&self, volume: &VolumeDescription) {
        self.tags.lock().unwrap().entry(volume.id.clone()).or_insert_with(|| volume.tags.clone());
    }

    /// Whose a volume is.
    fn tags_of(&self, id: &VolumeId) -> Tags {
        let known = self.tags.lock().unwrap().get(id).cloned();
        known.unwrap_or_else(|| {
            let volume = self.truth.describe(id).ok();
            volume.iter().for_each(|volume| self.learn(volume));
            volume.map(|volume| volume.tags).unwrap_or_default()
        })
    }

    /// Whether the newest data of a volume's device is on it, as the owner record has it.
    fn is_dirty(&self, id: &VolumeId) -> bool {
        let tags = self.tags_of(id);
        let Some(device) = tags.get(tag::DEVICE) else { return false };
        let record = std::fs::read(self.state.join(device).join("owner.json"));
        let record = record.ok().and_then(|bytes| owner::decode(&bytes).ok());
        record.is_some_and(|record| record.owner != Owner::Backing && record.volume.as_ref() == Some(id))
    }
}

fn rates(mode: Mode, seed: u64, pace: Pace) -> FaultRates {
    let times = pace.faults;
    let calm = FaultRates { seed, ..FaultRates::default() };
    let usual = FaultRates {
        fail_before: 0.06 * times,
        fail_after: 0.06 * times,
        slow: 0.05 * times,
        slow_for: Span(Duration::from_millis(60)),
        quota: 0.04,
        capacity: 0.04,
        attach_limit: 0.05,
        throttled: 0.03 * times,
        throttled_for: Some(Span(Duration::from_millis(60))),
        fails: 0.05,
        ..calm.clone()
    };
    match mode {
        Mode::Settle => calm,
        Mode::Strict | Mode::Bill => usual,
        Mode::Wild => {
            let unknown_for = Span(Duration::from_millis(30));
            let twice = if pace.has_twins { 0.06 * times } else { 0.0 };
            FaultRates { twice, stale: 0.3, unknown: 0.02 * times, unknown_for, ..usual }
        }
    }
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Before(ProviderError::Quota(_)) => "quota",
        Fault::Before(ProviderError::Capacity(_)) => "capacity",
        Fault::Before(ProviderError::AttachLimit(_)) => "attach limit",
        Fault::Before(ProviderError::Throttled { .. }) => "throttled",
        Fault::Before(_) => "failed",
        Fault::After(_) => "done, answer lost",
        Fault::Slow(_) => "slow",
        Fault::Twice => "done twice",
        Fault::Vanish => "vanished",
        Fault::Fails => "not made",
        Fault::Stale => "stale",
        Fault::Unknown(_) => "not known",
    }
}

impl Witness {
    /// Over a provider that tells the truth.
    pub fn over(truth: Arc<dyn Provider>, log: Arc<Writer>, state: PathBuf, mode: Mode, seed: u64, pace: Pace) -> Self {
        let (stays, lag) = (Stays::default(), pace.lag.unwrap_or(truth.lag()));
        let tags = Mutex::default();
        let counted = Counted { truth, log: log.clone(), state, stays: stays.clone(), lag, tags };
        let told = log.clone();
        let observer = move |verb: surgetank_provider::Verb, fault: &Fault| {
            let what = format!("{verb:?}: {}", name(fault)).replace(' ', "_").to_lowercase();
            TOKEN_AT_HAND.with_borrow(|token| told.line(&["fault", token, &what]));
        };
        let faulty = Faulty::new(counted, Arc::new(SystemClock));
        let inner = faulty.with_rates(rates(mode, seed, pace)).with_observer(Box::new(observer));
        let chance = if mode == Mode::Settle { 0.0 } else { 0.03 };
        Self { inner, log, stays, hangs: Mutex::new((chance, Random::from_seed(!seed))) }
    }

    /// What was rented in this run, by the provider's own account.
    pub fn stays(&self) -> Vec<Stay> {
        self.stays.lock().unwrap().values().cloned().collect()
    }

    /// Notes whose call this is, and perhaps answers late.
    fn call<T>(&self, token: &str, call: impl FnOnce() -> T) -> T {
        TOKEN_AT_HAND.with_borrow_mut(|at_hand| token.clone_into(at_hand));
        let answer = call();
        let hang = {
            let mut hangs = self.hangs.lock().unwrap();
            let chance = hangs.0;
            hangs.1.chance(chance)
        };
        if hang {
            self.log.line(&["fault", token, "any:_answered_late"]);
            std::thread::sleep(Duration::from_millis(40));
        }
        TOKEN_AT_HAND.with_borrow_mut(|at_hand| "-".clone_into(at_hand));
        answer
    }

    fn of(&self, id: &VolumeId, call: impl FnOnce() -> Result<Change, ProviderError>) -> Result<Change, ProviderError> {
        let token = self.token_of(id);
        self.call(&token, call)
    }

    fn token_of(&self, id: &VolumeId) -> String {
        token(&self.inner.inner().tags_of(id))
    }
}

fn token(tags: &Tags) -> String {
    tags.get(TOKEN).cloned().unwrap_or_else(|| "-".to_owned())
}

impl Provider for Witness {
    fn home(&self) -> Home {
        self.inner.home()
    }

    fn create_is_exclusive(&self) -> bool {
        self.inner.create_is_exclusive()
    }

    fn lag(&self) -> Lag {
        self.inner.lag()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.log.line(&["asked", &request.token]);
        self.call(&request.token, || self.inner.create(request))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.of(id, || self.inner.change_state(id, transition))
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        let token = self.token_of(id);
        self.call(&token, || self.inner.describe(id))
    }

    fn disk_changed(&self) {
        self.inner.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.call(if key == TOKEN { value } else { "-" }, || self.inner.list(key, value))
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.of(id, || self.inner.set_tag(id, key, value))
    }
}

impl Provider for Counted {
    fn home(&self) -> Home {
        self.truth.home()
    }

    fn create_is_exclusive(&self) -> bool {
        self.truth.create_is_exclusive()
    }

    fn lag(&self) -> Lag {
        self.lag
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let made = self.truth.create(request)?;
        self.learn(&made.0);
        self.log.line(&["made", &token(&request.tags), &made.0.id.0]);
        let device = request.tags.get(tag::DEVICE).cloned().unwrap_or_default();
        let stay = Stay { device, mib: request.size.as_mib(), from: Instant::now(), until: None };
        self.stays.lock().unwrap().entry(made.0.id.clone()).or_insert(stay);
        Ok(made)
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        // Before: a provider stops charging when it is told to delete.
        let now = Instant::now();
        let is_dirty = transition == Transition::Delete && self.is_dirty(id);
        let change = self.truth.change_state(id, transition)?;
        if is_dirty && change == Change::Changed {
            self.log.line(&["dirty", &id.0]);
        }
        if transition == Transition::Delete
            && let Some(stay) = self.stays.lock().unwrap().get_mut(id)
        {
            stay.until.get_or_insert(now);
        }
        Ok(change)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.truth.describe(id).inspect(|volume| self.learn(volume))
    }

    fn disk_changed(&self) {
        self.truth.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.truth.list(key, value).inspect(|listed| listed.iter().for_each(|volume| self.learn(volume)))
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        if key == tag::DIRTY_EPOCH && value.is_some() {
            let tags = self.truth.describe(id).map(|volume| volume.tags).unwrap_or_default();
            self.log.line(&["used", &token(&tags)]);
        }
        self.truth.set_tag(id, key, value)
    }
}
