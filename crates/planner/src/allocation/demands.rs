//! The second step alone: demands on second-level servers.

use std::collections::BTreeMap;

use serde::Serialize;
use surgetank_allocation::{PlacementError, place};
use surgetank_model::Bytes;
use surgetank_model::toml_error::ConfigError;

use super::answer::{LevelName, ServerShare};
use super::file::AllocationFile;

/// Where demands have their place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placement {
    /// Whether all have one.
    pub feasible: bool,
    /// In the order of the file.
    pub apps: Vec<Placed>,
    /// Second-level servers.
    pub servers: Vec<ServerShare>,
    /// Why not all have a place; null if they have.
    pub reason: Option<String>,
    /// Demands that have no place, when as much as possible has one.
    pub unplaced: Vec<Unplaced>,
}

/// An application's demand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// What it wants.
    pub demand_mib: f64,
    /// Of which server; nothing if not all demands have a place.
    pub level2_mib: BTreeMap<String, f64>,
}

/// What an application wants and cannot have: all demands have a place without it, or with as much more cache at any server that
/// the application reaches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unplaced {
    /// Whose.
    pub name: String,
    /// What it wants.
    pub demand_mib: f64,
    /// Of that.
    pub unplaced_mib: f64,
    /// The servers that it reaches.
    pub level2: Vec<String>,
}

impl Unplaced {
    /// What would suffice for it.
    fn remedy(&self) -> String {
        // Rounded so that it does suffice.
        let less_mib = ((self.demand_mib - self.unplaced_mib) * 10.0).floor() / 10.0;
        let more_mib = (self.unplaced_mib * 10.0).ceil() / 10.0;
        format!(
            "lower the demand of {} to {less_mib:.1} MiB or add {more_mib:.1} MiB at {}",
            self.name,
            self.level2.join(" or ")
        )
    }
}

impl Placement {
    /// Of the demands of a file.
    ///
    /// # Errors
    /// The first thing that is wrong with the file.
    pub fn of(file: &AllocationFile) -> Result<Self, ConfigError> {
        let (servers, demands) = file.demands()?;
        let (places, reason, unplaced) = match place(&servers, &demands) {
            Ok(places) => (places, None, Vec::new()),
            Err(PlacementError::Invalid(error)) => return Err(file.refused(&error)),
            Err(error) => {
                let reason = error.to_string();
                let lacking = match error {
                    PlacementError::Overcommitted { unplaced, .. } => unplaced,
                    PlacementError::Invalid(_) => Vec::new(),
                };
                let unplaced = lacking.into_iter().filter_map(|(name, bytes)| {
                    let demand = demands.iter().find(|demand| demand.application == name)?;
                    let level2 = demand.level2.clone();
                    let demand_mib = demand.demand.as_mib();
                    Some(Unplaced { name, demand_mib, unplaced_mib: bytes.as_mib(), level2 })
                });
                let unplaced: Vec<Unplaced> = unplaced.collect();
                let remedies: Vec<String> = unplaced.iter().map(Unplaced::remedy).collect();
                let reason = format!("{reason}; {}", remedies.join(", and "));
                (vec![BTreeMap::new(); demands.len()], Some(reason), unplaced)
            }
        };
        let placed =
            |server: &str| places.iter().filter_map(|place| place.get(server)).map(|bytes| bytes.as_mib()).sum();
        let servers = servers.iter().map(|server| ServerShare {
            level: LevelName::Level2,
            name: server.name.clone(),
            cache_mib: server.cache.as_mib(),
            shared_mib: placed(&server.name),
        });
        let servers = servers.collect();
        let app = |(demand, place): (&surgetank_allocation::Demand, &BTreeMap<String, Bytes>)| Placed {
            name: demand.application.clone(),
            demand_mib: demand.demand.as_mib(),
            level2_mib: place.iter().map(|(name, bytes)| (name.clone(), bytes.as_mib())).collect(),
        };
        let apps = demands.iter().zip(&places).map(app).collect();
        Ok(Self { feasible: reason.is_none(), apps, servers, reason, unplaced })
    }
}
