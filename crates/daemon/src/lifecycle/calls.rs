//! Calls of a provider.

use surgetank_provider::{Change, Provider, ProviderError, VolumeId};
use surgetank_rental::{Answer, Call};

use crate::crash::crash_point;

/// A verb that changes a volume.
type Verb = fn(&dyn Provider, &VolumeId) -> Result<Change, ProviderError>;

/// Makes a call.
pub(super) fn make(provider: &dyn Provider, call: &Call) -> Answer {
    let (point, change, id): (_, Verb, _) = match call {
        Call::Create(request) => {
            crash_point("create", "before");
            let created = provider.create(request).map(|(description, _)| description);
            if created.is_ok() {
                crash_point("create", "after");
            }
            return Answer::Described(created);
        }
        Call::Describe(id) => return Answer::Described(provider.describe(id)),
        Call::List { key, value } => return Answer::Listed(provider.list(key, value)),
        Call::Attach(id) => ("attach", |provider, id| provider.attach(id), id),
        Call::Detach(id) => ("detach", |provider, id| provider.detach(id), id),
        Call::Delete(id) => ("delete", |provider, id| provider.delete(id), id),
    };
    crash_point(point, "before");
    let changed = change(provider, id).map(|_| ());
    if changed.is_ok() {
        crash_point(point, "after");
    }
    Answer::Changed(changed)
}
