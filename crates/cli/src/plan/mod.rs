//! The planner's commands: `predict`, `recommend`, `price`, `model`.

mod findings;
pub mod model;
mod page;
pub mod predict;
pub mod price;
pub mod recommend;
mod trace;

use std::path::{Path, PathBuf};

use clap::Args;
use surgetank_model::{Catalog, Iops, VolumeType};
use surgetank_planner::points::{Points, Setting};
use surgetank_planner::scenario::{Scenario, find_type};
use surgetank_report::Failure;

use crate::source;

/// Which volume types and prices count.
#[derive(Debug, Args)]
pub struct CatalogChoice {
    /// Volume types and prices to lay over the built-in catalog
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
}

impl CatalogChoice {
    /// The catalog.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn load(&self) -> Result<Catalog, Failure> {
        match &self.catalog {
            None => Ok(Catalog::builtin()),
            Some(file) => {
                let source = source::read(file)?;
                Catalog::builtin().with_file(&source).map_err(Failure::invalid)
            }
        }
    }
}

/// Reads a scenario file.
///
/// # Errors
/// The first thing wrong with it.
pub fn scenario(file: &Path, catalog: &Catalog) -> Result<Scenario, Failure> {
    let source = source::read(file)?;
    let scenario = Scenario::parse(&source, catalog).map_err(Failure::invalid)?;
    let named = |warning: String| format!("{}: {warning}", file.display());
    source::tell(&scenario.warnings().into_iter().map(named).collect::<Vec<_>>());
    Ok(scenario)
}

/// Adds the points of a file to a scenario's own.
///
/// # Errors
/// What is wrong with the file, or that its points are of other volumes.
pub fn with_points(mut scenario: Scenario, file: Option<&Path>) -> Result<Scenario, Failure> {
    let Some(file) = file else { return Ok(scenario) };
    let source = source::read(file)?;
    let mut points = Points::parse(&source).map_err(Failure::invalid)?;
    let setting = Setting {
        backing_size: scenario.backing.size,
        backing: scenario.backing.bandwidth,
        caching: scenario.caching.bandwidth,
    };
    if !points.setting.fits(&setting) {
        return Err(Failure::Invalid(format!(
            "{} was measured on volumes of {} and {}, the scenario has {} and {}: calibrate those",
            file.display(),
            points.setting.backing,
            points.setting.caching,
            setting.backing,
            setting.caching
        )));
    }
    scenario.calibration.append(&mut points.points);
    Ok(scenario)
}

/// A volume type by its name, with or without its provider's.
///
/// # Errors
/// The nearest name.
pub fn volume_type<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a VolumeType, Failure> {
    find_type(catalog, name).map_err(Failure::invalid)
}

/// `"3000 IOPS"`, or a bare number where the flag's name is the unit.
///
/// # Errors
/// What is wrong with it.
pub fn bare_iops(text: &str) -> Result<Iops, String> {
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = if bare { format!("{text} IOPS") } else { text.to_owned() };
    text.parse().map_err(|error| format!("{error}"))
}
