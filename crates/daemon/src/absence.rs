//! Whether a volume is there, of a provider that may not know one for a while.

use std::time::Duration;

use surgetank_model::Absence;
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeId};

use crate::clock::Clock;

/// How long it is until a volume that is not known is asked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the provider says of a volume; `None`: it is certain that there is none, which may take as long as [`Provider::lag`] says.
///
/// # Errors
/// Those of [`Provider::describe`], but for `NotFound`.
pub fn look(provider: &dyn Provider, id: &VolumeId, clock: Clock) -> Result<Option<VolumeDescription>, ProviderError> {
    let (mut absence, lag) = (Absence::default(), provider.lag().known);
    loop {
        match provider.describe(id) {
            Err(ProviderError::NotFound(_)) if absence.is_believed(clock.now(), lag) => return Ok(None),
            Err(ProviderError::NotFound(_)) => std::thread::sleep(LOOK_AGAIN.min(lag)),
            described => return described.map(Some),
        }
    }
}
