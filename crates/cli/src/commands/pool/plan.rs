//! A pool as `surgetank provision` has planned it.

use std::path::Path;

use surgetank_planner::provision::NodePlan;
use surgetank_report::Failure;

use crate::source;

/// Reads what `provision --json` answered.
///
/// # Errors
/// That it is no plan, or that none was feasible, in one sentence.
pub fn read(path: &Path) -> Result<NodePlan, Failure> {
    let text = source::read(path)?.text;
    serde_json::from_str(&text).map_err(|error| {
        let why = error.to_string();
        Failure::Invalid(format!(
            "{} is no plan: {why}; name a file that surgetank provision --json wrote",
            path.display()
        ))
    })
}
