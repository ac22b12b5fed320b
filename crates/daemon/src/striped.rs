//! A provider whose volumes are stripes over several of another one: it makes the calls on all members at once, and has
//! [`stripe`] say which they are and what their answers mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use surgetank_model::{Bytes, Lag};
use surgetank_policy::stripe::fewer;
use surgetank_provider::{
    Change, CreateVolume, Home, Provider, ProviderError, Transition, VolumeDescription, VolumeId,
};
use surgetank_rental::stripe;

use crate::crash::crash_point;

/// See the module. What it is asked of a volume that is no stripe, the other provider answers.
pub struct StripedProvider {
    inner: Arc<dyn Provider>,
    volumes: u32,
    /// What was refused, where fewer volumes do.
    refused: Option<Mutex<Refused>>,
}

/// How long a refusal of so many volumes counts.
const FEWER_FOR: Duration = Duration::from_secs(3600);

/// What a provider has refused.
#[derive(Debug, Default)]
struct Refused {
    /// The most to ask for until then.
    fewer: Option<(u32, Instant)>,
    /// The stripe that was asked for last, by its token, and its volumes: asked again, it is the same one.
    last: Option<(String, u32)>,
}

impl StripedProvider {
    /// Rents stripes over so many volumes; 1: plain volumes. All stripes are known to it, however many volumes they have.
    #[must_use]
    pub fn new(inner: Arc<dyn Provider>, volumes: u32) -> Self {
        Self { inner, volumes, refused: None }
    }

    /// Rents stripes over so many volumes, and for a while over fewer where the provider has not enough of them.
    #[must_use]
    pub fn at_most(inner: Arc<dyn Provider>, volumes: u32) -> Self {
        Self { inner, volumes, refused: Some(Mutex::default()) }
    }

    /// The same provider, for stripes over another number of volumes.
    #[must_use]
    pub fn with_volumes(&self, volumes: u32) -> Self {
        Self { inner: Arc::clone(&self.inner), volumes, refused: None }
    }

    /// Over how many volumes the stripe with this token is to be.
    fn volumes_of(&self, token: &str) -> u32 {
        let Some(refused) = &self.refused else { return self.volumes };
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.fewer = refused.fewer.filter(|(_, until)| Instant::now() < *until);
        if let Some((_, volumes)) = refused.last.as_ref().filter(|(last, _)| last == token) {
            return *volumes;
        }
        let volumes = refused.fewer.map_or(self.volumes, |(fewer, _)| fewer);
        refused.last = Some((token.to_owned(), volumes));
        volumes
    }

    /// The next stripe is over fewer volumes, if it was their number that was refused.
    fn note<T>(&self, volumes: u32, answer: Result<T, ProviderError>) -> Result<T, ProviderError> {
        use ProviderError::{AttachLimit, Quota};
        if let (Some(refused), Err(error @ (Quota(_) | AttachLimit(_)))) = (&self.refused, &answer)
            && let Some(fewer) = fewer(volumes)
        {
            tracing::warn!("a stripe of {volumes} volumes is refused: {error}; the next one is over {fewer}");
            let until = Instant::now() + FEWER_FOR;
            refused.lock().unwrap_or_else(PoisonError::into_inner).fewer = Some((fewer, until));
        }
        answer
    }

    /// Calls the provider for each member of a volume.
    fn for_members<T: Send>(
        &self,
        id: &VolumeId,
        call: impl Fn(&dyn Provider, &VolumeId) -> Result<T, ProviderError> + Sync,
    ) -> Vec<Result<T, ProviderError>> {
        self.at_once(&stripe::members(id), call)
    }

    /// Makes a call for each, all at the same time, and waits for all answers.
    fn at_once<I: Sync, T: Send>(
        &self,
        all: &[I],
        call: impl Fn(&dyn Provider, &I) -> Result<T, ProviderError> + Sync,
    ) -> Vec<Result<T, ProviderError>> {
        let [others @ .., last] = all else { return Vec::new() };
        let call = &|one| {
            let answer = call(&*self.inner, one);
            crash_point("member", "after");
            answer
        };
        std::thread::scope(|scope| {
            let spawn = |one| std::thread::Builder::new().name("member".into()).spawn_scoped(scope, move || call(one));
            // Where no thread can be started, the call is made here and takes longer.
            let begun: Vec<_> = others.iter().map(|one| spawn(one).map_err(|_| call(one))).collect();
            let last = call(last);
            let ended = begun.into_iter().map(|begun| match begun {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(answer) => answer,
            });
            ended.chain([last]).collect()
        })
    }
}

impl Provider for StripedProvider {
    fn home(&self) -> Home {
        self.inner.home()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let volumes = self.volumes_of(&request.token);
        if volumes == 1 {
            return self.inner.create(request);
        }
        let requests = stripe::requests(request, volumes)?;
        self.note(volumes, stripe::created(self.at_once(&requests, |inner, request| inner.create(request))))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        if !stripe::is_stripe(id) {
            return self.inner.change_state(id, transition);
        }
        let volumes = stripe::members(id).len() as u32;
        let answers = self.for_members(id, |inner, member| inner.change_state(member, transition));
        self.note(volumes, stripe::changed(id, transition, answers))
    }

    fn create_is_exclusive(&self) -> bool {
        self.inner.create_is_exclusive()
    }

    fn grows(&self) -> bool {
        self.inner.grows()
    }

    fn lag(&self) -> Lag {
        self.inner.lag()
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        if !stripe::is_stripe(id) {
            return self.inner.grow(id, size);
        }
        let size = stripe::growth_of_members(id, size)?;
        stripe::grown(id, self.for_members(id, |inner, member| inner.grow(member, size)))
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        if !stripe::is_stripe(id) {
            return self.inner.describe(id);
        }
        stripe::described(id, self.for_members(id, |inner, member| inner.describe(member)))
    }

    fn disk_changed(&self) {
        self.inner.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.inner.list(key, value).map(stripe::listed)
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        if !stripe::is_stripe(id) {
            return self.inner.set_tag(id, key, value);
        }
        stripe::tagged(id, value.is_some(), self.for_members(id, |inner, member| inner.set_tag(member, key, value)))
    }
}
