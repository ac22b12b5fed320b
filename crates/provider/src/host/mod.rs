//! A host that rents volumes to this machine: the client of its provisioning service, which is in [`crate::service`].

mod config;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::header::AUTHORIZATION;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

pub use config::HostConfig;

use crate::cloud::http::{agent, retry_after, sentence};
use crate::service::secret::Secret;
use crate::service::tls;
use crate::service::wire::{
    ANSWER_BYTES_MAX, ChangeBody, CreateBody, ErrorBody, ErrorDetail, Kind, ListBody, TagBody, VolumeBody, is_id,
};
use crate::{
    Change, CreateVolume, DiskIdentity, Home, Lag, Provider, ProviderConfig, ProviderError, Transition,
    VolumeDescription, VolumeId,
};

/// The longest path, serial, tag or type of a volume, in bytes: `PATH_MAX` of Linux.
const TEXT_BYTES_MAX: usize = 4096;
/// What bodies are.
const JSON: &str = "application/json";

/// A provider behind a provisioning service.
pub struct HostProvider {
    config: HostConfig,
    /// Without a slash at the end.
    base: String,
    agent: Agent,
}

impl HostProvider {
    /// Prepares the client; the service need not run yet.
    ///
    /// # Errors
    /// `Invalid`: the URL, the token file, or the file of the authority.
    pub fn open(config: HostConfig) -> Result<Self, ProviderError> {
        config.check().and_then(|()| Secret::read(&config.token_file)).map_err(ProviderError::Invalid)?;
        let authorities = config.ca_file.as_deref().map_or_else(|| Ok(Vec::new()), tls::authorities);
        let authorities = authorities.map_err(ProviderError::Invalid)?;
        let agent = agent(config.timeout.0, authorities);
        let base = format!("{}/v1/volumes", config.url.trim_end_matches('/'));
        Ok(Self { config, base, agent })
    }

    fn path(&self, id: &VolumeId, rest: &str) -> String {
        format!("{}/{}{rest}", self.base, id.0)
    }

    /// The value of [`AUTHORIZATION`]. Read each time: a token that was changed on both sides works at once.
    fn bearer(&self) -> Result<String, ProviderError> {
        Secret::read(&self.config.token_file).map(|secret| secret.header()).map_err(ProviderError::Transient)
    }

    fn answer<T: DeserializeOwned>(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<T, ProviderError> {
        let url = &self.config.url;
        let silent = |error: ureq::Error| {
            ProviderError::Transient(format!(
                "the provisioning service at {url} does not answer: {}; is it running there?",
                sentence(&error.to_string())
            ))
        };
        let mut answer = answer.map_err(silent)?;
        let status = answer.status();
        let after = retry_after(answer.headers());
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(silent)?;
        if status.is_success() {
            return serde_json::from_slice(&text).map_err(|error| {
                let error = sentence(&error.to_string());
                ProviderError::Transient(format!("the provisioning service at {url} answers something else: {error}"))
            });
        }
        Err(match serde_json::from_slice::<ErrorBody>(&text) {
            Ok(ErrorBody { error }) if error.kind == Kind::Unauthorized => ProviderError::Invalid(format!(
                "the provisioning service at {url} refuses the token in {}: copy the token file from its host",
                self.config.token_file.display()
            )),
            Ok(ErrorBody { error }) => {
                let message = sentence(&error.message);
                ErrorDetail { message, volume: error.volume.filter(|id| is_id(&id.0)), after, ..error }.into()
            }
            // A proxy before the service.
            Err(_) if status == StatusCode::TOO_MANY_REQUESTS => {
                ProviderError::Throttled { after, text: format!("what answers at {url} wants fewer of them") }
            }
            // Whatever answered, it has said nothing of any volume.
            Err(_) => ProviderError::Transient(format!(
                "what answers at {url} (with status {}) is no provisioning service: check the url",
                status.as_u16()
            )),
        })
    }
}

/// What no service gives as a name is no volume's name.
fn named(id: &VolumeId) -> Result<(), ProviderError> {
    if is_id(&id.0) { Ok(()) } else { Err(ProviderError::NotFound(id.clone())) }
}

/// What is said of another volume than the one that was asked for says nothing of that one.
fn about<T>(id: &VolumeId, answer: Result<T, ProviderError>) -> Result<T, ProviderError> {
    match answer {
        Err(ProviderError::NotFound(other) | ProviderError::Conflict { id: other, .. }) if other != *id => {
            Err(ProviderError::Transient(format!(
                "the provisioning service was asked for the volume {} and speaks of \"{}\"",
                id.0,
                sentence(&other.0)
            )))
        }
        answer => answer,
    }
}

/// A volume as a service describes it, if that is fit to be told: people see its id, its tags and where it is.
fn described(body: VolumeBody) -> Result<VolumeDescription, ProviderError> {
    let volume = VolumeDescription::from(body);
    let is_fit = |text: &str| text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control);
    let fit = is_id(&volume.id.0)
        && is_fit(&volume.volume_type)
        && volume.tags.iter().all(|(key, value)| is_fit(key) && is_fit(value))
        && volume.disk.as_ref().is_none_or(|disk| match disk {
            DiskIdentity::Serial(text) | DiskIdentity::Name(text) => is_fit(text),
            DiskIdentity::Lun(_) => true,
        })
        && volume.device.as_ref().is_none_or(|path| is_fit(&path.to_string_lossy()));
    if fit {
        return Ok(volume);
    }
    Err(ProviderError::Transient(format!(
        "the provisioning service describes a volume \"{}\" with an id that is no name for a path, a text of more than \
         {TEXT_BYTES_MAX} bytes, or signs that are none: fix the service",
        sentence(&volume.id.0)
    )))
}

/// JSON of our own making.
fn json(body: &impl Serialize) -> Result<Vec<u8>, ProviderError> {
    serde_json::to_vec(body).map_err(|error| ProviderError::Invalid(format!("the request cannot be written: {error}")))
}

impl Provider for HostProvider {
    fn home(&self) -> Home {
        self.config.files.clone().into()
    }

    fn create_is_exclusive(&self) -> bool {
        true
    }

    fn lag(&self) -> Lag {
        Lag::NONE
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let post = self.agent.post(&self.base).header(AUTHORIZATION, self.bearer()?).content_type(JSON);
        let answer: ChangeBody = self.answer(post.send(json(&CreateBody::from(request))?))?;
        let missing =
            || ProviderError::Transient("the provisioning service does not say which volume it made".to_owned());
        let volume: VolumeDescription = answer.volume.ok_or_else(missing)?.into();
        if !is_id(&volume.id.0) {
            return Err(ProviderError::Invalid(format!(
                "the provisioning service calls the volume that it made \"{}\", which is no name for a path: delete it \
                 there, and let the service use letters, digits, \"-\", \"_\" and \".\"",
                sentence(&volume.id.0)
            )));
        }
        Ok((volume, answer.change))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        if named(id).is_err() {
            return transition.decide(id, None);
        }
        let (volume, attachment, bearer) = (self.path(id, ""), self.path(id, "/attachment"), self.bearer()?);
        let answer = match transition {
            Transition::Attach => self.agent.put(attachment).header(AUTHORIZATION, bearer).send_empty(),
            Transition::Detach => self.agent.delete(attachment).header(AUTHORIZATION, bearer).call(),
            Transition::Delete => self.agent.delete(volume).header(AUTHORIZATION, bearer).call(),
        };
        about(id, self.answer::<ChangeBody>(answer)).map(|body| body.change)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        named(id)?;
        let get = self.agent.get(self.path(id, "")).header(AUTHORIZATION, self.bearer()?);
        let volume = described(about(id, self.answer(get.call()))?)?;
        if volume.id == *id {
            return Ok(volume);
        }
        Err(ProviderError::Transient(format!(
            "the provisioning service was asked for {} and describes {}",
            id.0, volume.id.0
        )))
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        let get = self.agent.get(&self.base).query_pairs([("key", key), ("value", value)]);
        let answer: ListBody = self.answer(get.header(AUTHORIZATION, self.bearer()?).call())?;
        answer.volumes.into_iter().map(described).collect()
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        named(id)?;
        let body = TagBody { key: key.to_owned(), value: value.map(str::to_owned) };
        let put = self.agent.put(self.path(id, "/tags")).header(AUTHORIZATION, self.bearer()?).content_type(JSON);
        about(id, self.answer::<ChangeBody>(put.send(json(&body)?))).map(|body| body.change)
    }
}
