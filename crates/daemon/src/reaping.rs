//! Looks at what all machines have rented in the accounts of a configuration, and deletes what has no machine any more. What is deleted,
//! [`surgetank_rental::reap`] decides; here it is asked and done.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Serialize;
use surgetank_model::Catalog;
use surgetank_provider::{Account, AccountVolume, Change, Machine, Named, ProviderError, VolumeState, tag};
pub use surgetank_rental::reap::{Reason, Rule};
use surgetank_rental::reap::{Renter, Verdict, age, decide};

/// Where list prices are.
static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
/// How often a call is repeated of which the cloud has had too many.
const TRIES_MAX: usize = 20;
/// The pause before such a repetition, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What became of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It would be deleted, and nothing was to be changed.
    WouldDelete,
    /// The cloud has accepted its deletion.
    Deleted,
    /// It should have been deleted, and is there.
    Failed,
    /// It is gone, or on its way, whoever has deleted it.
    Gone,
    /// It may hold the newest data of a device, and no machine is known that will write it back.
    Dirty,
    /// It stays, or goes by itself.
    Kept,
}

/// A volume of an account.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// The provider's name in the configuration.
    pub provider: &'static str,
    /// The provider's name of it.
    pub volume: String,
    /// Its type.
    pub volume_type: String,
    /// Its size.
    pub size_gib: f64,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Which daemon rented it: its state directory's random name.
    pub owner: Option<String>,
    /// Which device it serves.
    pub device: Option<String>,
    /// The machine on which it was rented.
    pub machine: Option<String>,
    /// What the cloud says of that machine; `None`: nothing.
    pub machine_state: Option<Machine>,
    /// The machine that has it attached.
    pub attached_to: Option<String>,
    /// The epoch whose data may be dirty on it.
    pub dirty_epoch: Option<String>,
    /// How old it is.
    pub age_s: Option<f64>,
    /// What it costs in a month, by the catalog's list price.
    pub usd_month: Option<f64>,
    /// What it has cost by now.
    pub cost_usd: Option<f64>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it is kept, if it is.
    pub kept_because: Option<Reason>,
}

/// What a look at accounts found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reaped {
    /// All volumes, by provider and name.
    pub volumes: Vec<Seen>,
    /// What could not be asked or done, one sentence each.
    pub errors: Vec<String>,
}

impl Reaped {
    /// How many volumes have this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.volumes.iter().filter(|seen| seen.outcome == outcome).count()
    }
}

/// Looks at accounts, one after the other.
pub struct Reaper<'a> {
    /// What may be deleted.
    pub rule: Rule,
    /// Whether it is. Else nothing is changed.
    pub deletes: bool,
    /// The time, in milliseconds since 1970-01-01 UTC.
    pub now_ms: u64,
    /// Lets time pass before a call is repeated.
    pub pause: &'a dyn Fn(Duration),
}

impl Reaper<'_> {
    /// Looks at one account, once.
    pub fn reap(&self, provider: &'static str, account: &dyn Account, reaped: &mut Reaped) {
        let listed = match self.ask(|| account.volumes()) {
            Ok(listed) => listed,
            Err(error) => {
                reaped.errors.push(format!("the volumes of [provider.{provider}] cannot be listed: {error}"));
                return;
            }
        };
        let mut machines = BTreeMap::new();
        for of in &listed {
            let renter = self.renter(account, of, &mut machines, reaped);
            let verdict = decide(of, renter, &self.rule, self.now_ms);
            let seen = if verdict == Verdict::Delete && self.deletes {
                self.delete(provider, account, of, reaped)
            } else {
                self.seen(provider, account, of, renter, verdict)
            };
            reaped.volumes.push(seen);
        }
    }

    /// Asks again as long as the cloud has had too many calls, or has trouble that passes.
    fn ask<T>(&self, call: impl Fn() -> Result<T, ProviderError>) -> Result<T, ProviderError> {
        for _ in 1..TRIES_MAX {
            match call() {
                Err(error @ (ProviderError::Throttled { .. } | ProviderError::Transient(_))) => {
                    (self.pause)(error.pause(PAUSE).min(PAUSE_MAX))
                }
                answer => return answer,
            }
        }
        call()
    }

    /// `machines`: who has each name, as far as it was asked for; `None`: that cannot be told.
    fn renter(
        &self,
        account: &dyn Account,
        of: &AccountVolume,
        machines: &mut BTreeMap<String, Option<Named>>,
        reaped: &mut Reaped,
    ) -> Renter {
        let Some(machine) = &of.machine else { return Renter::Unnamed };
        let named = *machines.entry(machine.clone()).or_insert_with(|| {
            let told = self.ask(|| account.machine(machine));
            told.map_err(|error| {
                reaped.errors.push(format!("whether the machine {machine} exists cannot be told: {error}"));
            })
            .ok()
        });
        named.map_or(Renter::Unanswered, |named| Renter::Known(named.renter(of)))
    }

    /// Deletes a volume if it is still as it was listed: listings lag behind, and its owner may have come back meanwhile.
    fn delete(&self, provider: &'static str, account: &dyn Account, of: &AccountVolume, reaped: &mut Reaped) -> Seen {
        let id = &of.volume.id;
        let failed =
            |renter| Seen { outcome: Outcome::Failed, ..self.seen(provider, account, of, renter, Verdict::Delete) };
        let (present, renter) = match self.ask(|| account.volume(id)) {
            Ok(Some(present)) => {
                let renter = self.renter(account, &present, &mut BTreeMap::new(), reaped);
                (present, renter)
            }
            Ok(None) => {
                return Seen {
                    outcome: Outcome::Gone,
                    ..self.seen(provider, account, of, Renter::Unanswered, Verdict::Delete)
                };
            }
            Err(error) => {
                reaped.errors.push(format!("the volume {} is not deleted, as it cannot be described: {error}", id.0));
                return failed(Renter::Unanswered);
            }
        };
        let verdict = decide(&present, renter, &self.rule, self.now_ms);
        let seen = self.seen(provider, account, &present, renter, verdict);
        if verdict != Verdict::Delete {
            return seen;
        }
        match self.ask(|| account.delete(id)) {
            Ok(Change::Changed) => Seen { outcome: Outcome::Deleted, ..seen },
            Ok(Change::Identity) => Seen { outcome: Outcome::Gone, ..seen },
            Err(error) => {
                reaped.errors.push(format!("the volume {} cannot be deleted: {error}", id.0));
                failed(renter)
            }
        }
    }

    fn seen(
        &self,
        provider: &'static str,
        account: &dyn Account,
        of: &AccountVolume,
        renter: Renter,
        verdict: Verdict,
    ) -> Seen {
        let (volume, tag_of) = (&of.volume, |key: &str| of.volume.tags.get(key).cloned());
        let known = account.catalog_name().and_then(|name| CATALOG.find(name, &volume.volume_type));
        let usd_hour = known.and_then(|known| known.price_per_hour(volume.size));
        let age_s = age(of, self.now_ms).map(|age| age.as_secs_f64());
        let (outcome, kept_because) = match verdict {
            Verdict::Delete => (Outcome::WouldDelete, None),
            Verdict::Dirty => (Outcome::Dirty, None),
            Verdict::Keep(reason) => (Outcome::Kept, Some(reason)),
        };
        Seen {
            provider,
            volume: volume.id.0.clone(),
            volume_type: volume.volume_type.clone(),
            size_gib: volume.size.as_gib(),
            state: volume.state,
            owner: tag_of(tag::OWNER),
            device: tag_of(tag::DEVICE),
            machine: of.machine.clone(),
            machine_state: if let Renter::Known(machine) = renter { Some(machine) } else { None },
            attached_to: of.attached_to.clone(),
            dirty_epoch: tag_of(tag::DIRTY_EPOCH),
            age_s,
            usd_month: known.zip(usd_hour).map(|(known, usd_hour)| usd_hour * f64::from(known.billing.hours_per_month)),
            cost_usd: usd_hour.zip(age_s).map(|(usd_hour, age_s)| usd_hour * age_s / 3600.0),
            outcome,
            kept_because,
        }
    }
}
