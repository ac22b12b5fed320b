//! A provider whose calls may hang, for threads that must not: each call has a thread of its own, and whoever asks
//! waits for a while only.
//!
//! A call that is still under way is not made a second time: asked again, its answer is taken when it has come. Any
//! other call is put off until then, so that nothing overtakes what was asked before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use surgetank_model::{Bytes, Lag};
use surgetank_provider::{
    Change, CreateVolume, Home, Provider, ProviderError, Transition, VolumeDescription, VolumeId,
};

/// A provider for one asker, who waits for its answers only so long.
pub struct TimedProvider {
    provider: Arc<dyn Provider>,
    patience: Duration,
    under_way: Mutex<Option<UnderWay>>,
}

struct UnderWay {
    call: Call,
    since: Instant,
    answer: Receiver<Result<CallAnswer, ProviderError>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Create(CreateVolume),
    ChangeState(VolumeId, Transition),
    Describe(VolumeId),
    List(String, String),
    SetTag(VolumeId, String, Option<String>),
    Grow(VolumeId, Bytes),
}

enum CallAnswer {
    Created(VolumeDescription, Change),
    Changed(Change),
    Described(VolumeDescription),
    Listed(Vec<VolumeDescription>),
}

impl Call {
    fn make(&self, provider: &dyn Provider) -> Result<CallAnswer, ProviderError> {
        match self {
            Self::Create(request) => provider.create(request).map(|(made, change)| CallAnswer::Created(made, change)),
            Self::ChangeState(id, transition) => provider.change_state(id, *transition).map(CallAnswer::Changed),
            Self::Describe(id) => provider.describe(id).map(CallAnswer::Described),
            Self::List(key, value) => provider.list(key, value).map(CallAnswer::Listed),
            Self::Grow(id, size) => provider.grow(id, *size).map(CallAnswer::Changed),
            Self::SetTag(id, key, value) => provider.set_tag(id, key, value.as_deref()).map(CallAnswer::Changed),
        }
    }
}

impl TimedProvider {
    /// Waits for each answer of `provider` for `patience` at most.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>, patience: Duration) -> Self {
        Self { provider, patience, under_way: Mutex::default() }
    }

    /// Whether the last answer was put off because a call is still under way.
    #[cfg(test)]
    fn is_waiting(&self) -> bool {
        self.guard().is_some()
    }

    fn guard(&self) -> MutexGuard<'_, Option<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, call: Call) -> Result<CallAnswer, ProviderError> {
        let mut slot = self.guard();
        if let Some(before) = slot.as_ref().filter(|before| before.call != call) {
            // What it answered is seen by describing the volume.
            let _ = self.await_answer(before)?;
            *slot = None;
        }
        let under_way = match slot.take() {
            Some(same) => same,
            None => self.start(call)?,
        };
        let answer = self.await_answer(slot.insert(under_way))?;
        *slot = None;
        answer
    }

    fn start(&self, call: Call) -> Result<UnderWay, ProviderError> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let (provider, made) = (self.provider.clone(), call.clone());
        let calling = move || {
            // Whoever asked may have gone.
            let _ = answer.send(made.make(&*provider));
        };
        let spawned = std::thread::Builder::new().name("provider".into()).spawn(calling);
        spawned.map_err(|error| ProviderError::Transient(format!("a thread cannot be started: {error}")))?;
        Ok(UnderWay { call, since: Instant::now(), answer: answered })
    }

    /// The answer; the error says that it has not come yet.
    fn await_answer(&self, under_way: &UnderWay) -> Result<Result<CallAnswer, ProviderError>, ProviderError> {
        let left = self.patience.saturating_sub(under_way.since.elapsed());
        match under_way.answer.recv_timeout(left) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = under_way.since.elapsed().as_secs();
                Err(ProviderError::Transient(format!("the provider has not answered for {seconds} s")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Ok(Err(ProviderError::Transient("the provider's call ended without an answer".to_owned())))
            }
        }
    }

    fn change(&self, call: Call) -> Result<Change, ProviderError> {
        match self.ask(call)? {
            CallAnswer::Changed(change) => Ok(change),
            _ => Err(mixed_up()),
        }
    }
}

fn mixed_up() -> ProviderError {
    ProviderError::Transient("the provider answered another question".to_owned())
}

impl Provider for TimedProvider {
    fn home(&self) -> Home {
        self.provider.home()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        match self.ask(Call::Create(request.clone()))? {
            CallAnswer::Created(made, change) => Ok((made, change)),
            _ => Err(mixed_up()),
        }
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.change(Call::ChangeState(id.clone(), transition))
    }

    fn create_is_exclusive(&self) -> bool {
        self.provider.create_is_exclusive()
    }

    fn grows(&self) -> bool {
        self.provider.grows()
    }

    fn lag(&self) -> Lag {
        self.provider.lag()
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        self.change(Call::Grow(id.clone(), size))
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        match self.ask(Call::Describe(id.clone()))? {
            CallAnswer::Described(description) => Ok(description),
            _ => Err(mixed_up()),
        }
    }

    fn disk_changed(&self) {
        self.provider.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        match self.ask(Call::List(key.to_owned(), value.to_owned()))? {
            CallAnswer::Listed(volumes) => Ok(volumes),
            _ => Err(mixed_up()),
        }
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.change(Call::SetTag(id.clone(), key.to_owned(), value.map(str::to_owned)))
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::Sender;

    use super::*;

    /// Answers each listing only when it is told to, and everything else at once.
    struct Slow {
        told: Receiver<()>,
        listed: Sender<String>,
    }

    impl Provider for Slow {
        fn home(&self) -> Home {
            Home::Disks
        }
        fn create_is_exclusive(&self) -> bool {
            true
        }
        fn lag(&self) -> Lag {
            Lag::NONE
        }
        fn create(&self, _: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
            panic!("a call that dies")
        }
        fn change_state(&self, _: &VolumeId, _: Transition) -> Result<Change, ProviderError> {
            Ok(Change::Changed)
        }
        fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
            Err(ProviderError::NotFound(id.clone()))
        }
        fn list(&self, key: &str, _: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
            self.listed.send(key.to_owned()).unwrap();
            self.told.recv().unwrap();
            Ok(Vec::new())
        }
        fn set_tag(&self, _: &VolumeId, _: &str, _: Option<&str>) -> Result<Change, ProviderError> {
            Ok(Change::Identity)
        }
    }

    #[test]
    fn a_call_that_hangs_is_waited_for_once_and_overtaken_by_none() {
        let (tell, told) = crossbeam_channel::unbounded();
        let (listed, calls) = crossbeam_channel::unbounded();
        let timed = TimedProvider::new(Arc::new(Slow { told, listed }), Duration::from_millis(20));
        let id = VolumeId("v".into());
        assert_eq!(timed.attach(&id), Ok(Change::Changed));
        for _ in 0..3 {
            assert!(matches!(timed.list("a", ""), Err(ProviderError::Transient(why)) if why.contains("not answered")));
            assert!(matches!(timed.delete(&id), Err(ProviderError::Transient(_))), "put off");
            assert!(timed.is_waiting());
        }
        tell.send(()).unwrap();
        while timed.list("a", "").is_err() {}
        assert!(!timed.is_waiting());
        assert_eq!(calls.try_iter().count(), 1, "asked once");
        assert_eq!(timed.delete(&id), Ok(Change::Changed));
        assert_eq!(timed.describe(&id).unwrap_err(), ProviderError::NotFound(id));
    }

    #[test]
    fn a_call_that_dies_is_an_error() {
        let (listed, _calls) = crossbeam_channel::unbounded();
        let timed =
            TimedProvider::new(Arc::new(Slow { told: crossbeam_channel::never(), listed }), Duration::from_secs(60));
        let request = CreateVolume {
            token: "t".into(),
            volume_type: "fast".into(),
            size: surgetank_model::Bytes::from_mib(1),
            tags: surgetank_provider::Tags::new(),
        };
        assert!(timed.create(&request).unwrap_err().to_string().contains("without an answer"));
        assert!(!timed.is_waiting());
    }
}
