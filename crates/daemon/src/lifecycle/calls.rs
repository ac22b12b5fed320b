//! Calls of a provider.

use surgetank_provider::{Provider, ProviderError, Transition};
use surgetank_rental::{Answer, Call};

use crate::crash::crash_point;

/// Makes a call.
pub(crate) fn make(provider: &dyn Provider, call: &Call) -> Answer {
    match call {
        Call::Create(request) => {
            Answer::Described(amid("create", || provider.create(request).map(|(description, _)| description)))
        }
        Call::ChangeState(id, transition) => {
            let step = match transition {
                Transition::Attach => "attach",
                Transition::Detach => "detach",
                Transition::Delete => "delete",
            };
            Answer::Changed(amid(step, || provider.change_state(id, *transition)))
        }
        Call::Grow(id, size) => Answer::Changed(amid("grow", || provider.grow(id, *size))),
        Call::SetTag { id, key, value } => Answer::Changed(amid("tag", || provider.set_tag(id, key, Some(value)))),
        Call::Describe(id) => Answer::Described(provider.describe(id)),
        Call::List { key, value } => Answer::Listed(provider.list(key, value)),
    }
}

/// Makes a call between its crash points.
fn amid<T>(step: &str, call: impl FnOnce() -> Result<T, ProviderError>) -> Result<T, ProviderError> {
    crash_point(step, "before");
    let answer = call();
    if answer.is_ok() {
        crash_point(step, "after");
    }
    answer
}
