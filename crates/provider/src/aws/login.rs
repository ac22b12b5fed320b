//! Sessions: credentials, which are read anew before they end, and the place to which the first ones have led.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::AwsConfig;
use super::credentials::{Credentials, Source};
use super::ec2::{Ec2, Endpoint, Query};
use super::instance::{self, Identity, Metadata};
use crate::clock::{Clock, whole_ms};
use crate::{ProviderError, cloud::http::sentence};

/// So long before they end credentials are read anew: by then the metadata service has new ones.
const EARLY: Duration = Duration::from_secs(300);
/// Credentials that end sooner are used for so long at least before they are read again.
const LEAST: Duration = Duration::from_secs(60);

/// Where volumes are. EC2 itself says that this machine is there: in another account or region each volume would seem to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where EC2 is.
    pub endpoint: Endpoint,
    /// The instance that this machine is.
    pub instance: String,
    /// Its zone, where its volumes must be.
    pub zone: String,
    /// The account that owns it.
    account: String,
}

/// Credentials that have led to the place.
#[derive(Debug)]
pub struct Session {
    /// What requests are signed with.
    pub credentials: Credentials,
    /// Where they lead.
    pub place: Place,
    renew_at_ms: Option<u64>,
}

/// Reads credentials, and again before they end.
pub struct Login {
    ec2: Ec2,
    clock: Arc<dyn Clock>,
    source: Source,
    metadata: Metadata,
    written: Written,
    state: Mutex<State>,
}

/// What the configuration says of the place.
#[derive(Debug)]
struct Written {
    region: Option<String>,
    endpoint: Option<String>,
    instance: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Session>>,
    identity: Option<Identity>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("source", &self.source).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Login {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// `Invalid`: the URL of the metadata service.
    pub fn new(ec2: Ec2, clock: Arc<dyn Clock>, config: &AwsConfig) -> Result<Self, ProviderError> {
        let AwsConfig { region, endpoint, instance, .. } = config.clone();
        Ok(Self {
            ec2,
            clock,
            source: config.source(),
            metadata: Metadata::new(&config.metadata_url)?,
            written: Written { region, endpoint, instance },
            state: Mutex::default(),
        })
    }

    /// The present session, or a new one if there is none or it ends soon. `refused`: a session whose credentials EC2 has refused,
    /// which counts no more.
    ///
    /// # Errors
    /// `Invalid`: credentials. `Transient`: they lead to another place than the first ones. Else as [`ProviderError`] says.
    pub fn session(&self, refused: Option<&Arc<Session>>) -> Result<Arc<Session>, ProviderError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.clock.now_ms();
        let counts = |session: &&Arc<Session>| {
            session.renew_at_ms.is_none_or(|at_ms| now_ms < at_ms)
                && !refused.is_some_and(|refused| Arc::ptr_eq(refused, session))
        };
        if let Some(session) = state.session.as_ref().filter(counts) {
            return Ok(Arc::clone(session));
        }
        let former = state.session.clone();
        match (self.renewed(&mut state, now_ms), former) {
            // What has been read so early counts for some minutes yet.
            (Err(error), Some(former))
                if refused.is_none() && former.credentials.ends_ms.is_some_and(|at_ms| now_ms < at_ms) =>
            {
                tracing::warn!("credentials of AWS that end soon cannot be renewed yet: {error}");
                let session = Session {
                    credentials: former.credentials.clone(),
                    place: former.place.clone(),
                    renew_at_ms: Some(now_ms + whole_ms(LEAST)),
                };
                let session = Arc::new(session);
                state.session = Some(Arc::clone(&session));
                Ok(session)
            }
            (renewed, _) => renewed,
        }
    }

    fn renewed(&self, state: &mut State, now_ms: u64) -> Result<Arc<Session>, ProviderError> {
        let identity = match (&state.identity, &self.written) {
            (Some(identity), _) => identity.clone(),
            (None, written) => identity_of(written, self.metadata.identity())?,
        };
        let credentials = match self.source.read().map_err(ProviderError::Invalid)? {
            Some(credentials) => credentials,
            None => self.metadata.role()?,
        };
        let known = state.session.as_ref().filter(|session| session.credentials == credentials);
        let place = match known {
            Some(session) => session.place.clone(),
            None => self.place(&identity, &credentials)?,
        };
        if let Some(first) = &state.session
            && first.place.account != place.account
        {
            return Err(ProviderError::Transient(format!(
                "the credentials now lead to the account {} (it was {}), where volumes that are rented cannot be seen: restore them",
                sentence(&place.account),
                sentence(&first.place.account)
            )));
        }
        let early = |ends_ms: u64| ends_ms.saturating_sub(whole_ms(EARLY)).max(now_ms + whole_ms(LEAST));
        let renew_at_ms = credentials.ends_ms.map(early);
        let session = Arc::new(Session { credentials, place, renew_at_ms });
        state.identity = Some(identity);
        state.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Where these credentials lead: EC2 describes this machine only to those of its account.
    fn place(&self, identity: &Identity, credentials: &Credentials) -> Result<Place, ProviderError> {
        let endpoint = Endpoint::new(&identity.region, self.written.endpoint.as_deref());
        let query = Query::new("DescribeInstances").with("InstanceId.1", &identity.instance);
        let read = |root: roxmltree::Node<'_, '_>| instance::read(root, &identity.instance);
        let found = self.ec2.ask(&endpoint, credentials, &query, read).map_err(super::ec2::Failure::general)?;
        Ok(Place { endpoint, instance: identity.instance.clone(), zone: found.zone, account: found.account })
    }
}

/// Which instance this is. What the configuration says is compared where the metadata service answers: disks would be attached to
/// another machine, and this one would wait for them in vain.
fn identity_of(written: &Written, told: Result<Identity, ProviderError>) -> Result<Identity, ProviderError> {
    if let (Some(instance), Ok(told)) = (&written.instance, &told)
        && *instance != told.instance
    {
        return Err(ProviderError::Invalid(format!(
            "instance in [provider.aws] is {instance:?}, and the metadata service says that this machine is {}: correct it, or take it out",
            told.instance
        )));
    }
    match (&written.region, &written.instance) {
        (Some(region), Some(instance)) => Ok(Identity { instance: instance.clone(), region: region.clone() }),
        (region, instance) => told.map(|told| Identity {
            instance: instance.clone().unwrap_or(told.instance),
            region: region.clone().unwrap_or(told.region),
        }),
    }
}
