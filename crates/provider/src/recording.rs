//! A decorator that writes down every call, for tests of those who call providers.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::{Change, CreateVolume, Provider, ProviderError, VolumeDescription, VolumeId};

/// A call of a provider and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is a verb of `Provider` with its arguments and its answer")]
pub enum Call {
    Create { request: CreateVolume, answer: Result<(VolumeId, Change), ProviderError> },
    Attach { id: VolumeId, answer: Result<Change, ProviderError> },
    Detach { id: VolumeId, answer: Result<Change, ProviderError> },
    Delete { id: VolumeId, answer: Result<Change, ProviderError> },
    SetTag { id: VolumeId, key: String, value: Option<String>, answer: Result<Change, ProviderError> },
}

/// Records the calls that change something; `describe` and `list`, which are polled, pass unrecorded.
#[derive(Debug)]
pub struct Recording<P> {
    inner: P,
    calls: Mutex<Vec<Call>>,
}

impl<P: Provider> Recording<P> {
    /// Decorates a provider.
    pub const fn new(inner: P) -> Self {
        Self { inner, calls: Mutex::new(Vec::new()) }
    }

    /// The calls so far, in the order of their answers.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, call: Call) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

impl<P: Provider> Provider for Recording<P> {
    fn files(&self) -> Option<PathBuf> {
        self.inner.files()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let answer = self.inner.create(request);
        let noted = answer.clone().map(|(volume, change)| (volume.id, change));
        self.record(Call::Create { request: request.clone(), answer: noted });
        answer
    }

    fn attach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let answer = self.inner.attach(id);
        self.record(Call::Attach { id: id.clone(), answer: answer.clone() });
        answer
    }

    fn detach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let answer = self.inner.detach(id);
        self.record(Call::Detach { id: id.clone(), answer: answer.clone() });
        answer
    }

    fn delete(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let answer = self.inner.delete(id);
        self.record(Call::Delete { id: id.clone(), answer: answer.clone() });
        answer
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.inner.describe(id)
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.inner.list(key, value)
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        let answer = self.inner.set_tag(id, key, value);
        let (key, value) = (key.to_owned(), value.map(str::to_owned));
        self.record(Call::SetTag { id: id.clone(), key, value, answer: answer.clone() });
        answer
    }
}
