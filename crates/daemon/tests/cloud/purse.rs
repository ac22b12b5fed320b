//! A provider that rents for so much money and no more, and knows everything that it has asked for.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use surgetank_model::volume_type::Provision;
use surgetank_model::{Bytes, Catalog, VolumeType};
use surgetank_provider::{
    Change, CreateVolume, Home, Lag, Provider, ProviderError, Transition, VolumeDescription, VolumeId, VolumeState, tag,
};

/// What one run may cost, in USD.
pub const BUDGET_USD: f64 = 0.10;
/// Of a type without a known price, how many volumes one run may rent.
const VOLUMES_MAX: u32 = 60;
/// A volume is reckoned with for this long: no run takes longer, and no cloud bills for more at least.
const RECKONED_H: f64 = 1.0;
/// How much beyond the time for which a cloud may not tell of a volume nothing must be seen: a call that is under way may make one late.
const CALL: Duration = Duration::from_secs(60);

/// What was spent and asked for.
#[derive(Default)]
struct Asked {
    usd: f64,
    count: u32,
    /// By token, the volumes that are known of it.
    volumes: BTreeMap<String, Vec<VolumeId>>,
}

/// What a run may spend, and the file with the tokens that it has used, one in a line.
pub struct Purse {
    /// What is rented, as far as the catalog knows it, and what is bought with it.
    known: Option<VolumeType>,
    bought: Provision,
    size: Bytes,
    tokens: PathBuf,
    asked: Mutex<Asked>,
}

impl Purse {
    /// With the tokens of a run before that was ended from outside.
    pub fn open(
        provider: &str,
        volume_type: &str,
        bought: Provision,
        size: Bytes,
        tokens: PathBuf,
    ) -> io::Result<Self> {
        let known = Catalog::builtin().find(provider, volume_type).cloned();
        let former = if tokens.exists() { fs::read_to_string(&tokens)? } else { String::new() };
        let volumes = former.lines().map(|token| (token.to_owned(), Vec::new())).collect();
        Ok(Self { known, bought, size, tokens, asked: Mutex::new(Asked { volumes, ..Asked::default() }) })
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much was spent at most, in USD, as far as prices are known, and on how many volumes.
    pub fn spent(&self) -> (f64, u32) {
        let asked = self.asked();
        (asked.usd, asked.count)
    }

    /// USD for a volume, or for so much more of one; `None`: unknown.
    fn price(&self, size: Bytes) -> Option<f64> {
        Some(self.known.as_ref()?.price_per_hour_with(size, &self.bought)? * RECKONED_H)
    }

    fn spend(asked: &mut Asked, price: Option<f64>) -> Result<(), ProviderError> {
        let usd = asked.usd + price.unwrap_or(0.0);
        if usd > BUDGET_USD || (price.is_none() && asked.count >= VOLUMES_MAX) {
            return Err(ProviderError::Invalid(format!(
                "the run has used its budget of {BUDGET_USD} USD, or of {VOLUMES_MAX} volumes without a price: it rents no more"
            )));
        }
        (asked.usd, asked.count) = (usd, asked.count + 1);
        Ok(())
    }

    /// A volume is paid for before it is asked for, and its token is on disk.
    fn pay(&self, token: &str) -> Result<(), ProviderError> {
        let mut asked = self.asked();
        if token.is_empty() || asked.volumes.contains_key(token) {
            return Ok(());
        }
        // Whatever the size that is asked for: no other one can be had.
        Self::spend(&mut asked, self.price(self.size))?;
        let written = fs::OpenOptions::new().create(true).append(true).open(&self.tokens).and_then(|mut file| {
            writeln!(file, "{token}")?;
            file.sync_all()
        });
        written
            .map_err(|error| ProviderError::Invalid(format!("{} cannot be written: {error}", self.tokens.display())))?;
        asked.volumes.insert(token.to_owned(), Vec::new());
        Ok(())
    }

    fn found(&self, token: &str, id: &VolumeId) {
        if let Some(ids) = self.asked().volumes.get_mut(token).filter(|ids| !ids.contains(id)) {
            ids.push(id.clone());
        }
    }

    /// Deletes whatever was rented, dirty or not, until nothing is left or the time is over. What is left then. Nothing is left when nothing was
    /// seen for as long as a volume may be there that is not told of; `patience`: instead of that.
    pub fn reap(
        &self,
        provider: &dyn Provider,
        longest: Duration,
        pause: Duration,
        patience: Option<Duration>,
    ) -> Vec<String> {
        let patience = patience.unwrap_or(provider.lag().longest() + CALL);
        let begun = Instant::now();
        let mut seen = begun;
        loop {
            let tokens: Vec<String> = self.asked().volumes.keys().cloned().collect();
            let left: Vec<String> = tokens.iter().flat_map(|token| self.reap_token(provider, token)).collect();
            if !left.is_empty() {
                seen = Instant::now();
            } else if tokens.is_empty() || seen.elapsed() >= patience {
                let _ = fs::remove_file(&self.tokens);
                return left;
            }
            if begun.elapsed() > longest {
                return left;
            }
            std::thread::sleep(pause);
        }
    }

    /// One step for the volumes of a token. What is left of it.
    fn reap_token(&self, provider: &dyn Provider, token: &str) -> Vec<String> {
        match provider.list(tag::TOKEN, token) {
            Ok(listed) => listed.iter().for_each(|volume| self.found(token, &volume.id)),
            Err(error) => return vec![format!("volumes of the token {token} cannot be listed: {error}")],
        }
        let ids = self.asked().volumes.get(token).cloned().unwrap_or_default();
        let step = |id: &VolumeId| {
            let seen = provider.describe(id).and_then(|volume| {
                match volume.state {
                    VolumeState::Attached | VolumeState::Attaching => drop(provider.detach(id)?),
                    VolumeState::Available | VolumeState::Failed => drop(provider.delete(id)?),
                    _ => {}
                }
                Ok(volume.state)
            });
            match seen {
                Err(ProviderError::NotFound(_)) => None,
                Err(error) => Some(format!("{}: {error}", id.0)),
                Ok(state) => Some(format!("{} is {state:?}", id.0)),
            }
        };
        ids.iter().filter_map(step).collect()
    }
}

/// A provider that pays from a purse.
pub struct Paying {
    pub provider: Arc<dyn Provider>,
    pub purse: Arc<Purse>,
}

impl Provider for Paying {
    fn home(&self) -> Home {
        self.provider.home()
    }
    fn create_is_exclusive(&self) -> bool {
        self.provider.create_is_exclusive()
    }
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.purse.pay(&request.token)?;
        let answer = self.provider.create(request)?;
        self.purse.found(&request.token, &answer.0.id);
        Ok(answer)
    }
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.provider.change_state(id, transition)
    }
    fn grows(&self) -> bool {
        self.provider.grows()
    }
    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        Purse::spend(&mut self.purse.asked(), self.purse.price(size))?;
        self.provider.grow(id, size)
    }
    fn lag(&self) -> Lag {
        self.provider.lag()
    }
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.provider.describe(id)
    }
    fn disk_changed(&self) {
        self.provider.disk_changed();
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.provider.list(key, value)
    }
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.provider.set_tag(id, key, value)
    }
}
