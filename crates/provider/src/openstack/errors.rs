//! What OpenStack's refusals mean. The status alone does not say: 404 is also an unknown type of volumes, 403 a machine that
//! takes no more disks, 413 a quota.

use serde_json::Value;
use ureq::http::StatusCode;

use crate::cloud::http::{Answer, sentence};
use crate::{ProviderError, VolumeId, VolumeState};

/// What it says, if it is OpenStack: one object of any name with a `message`.
#[must_use]
pub fn message(answer: &Answer) -> Option<String> {
    let body = answer.body.as_object()?;
    let detail = body.values().find_map(Value::as_object)?;
    detail.get("message")?.as_str().map(sentence)
}

/// Why a service has not carried out a call that concerns no volume, or that it cannot have carried out.
#[must_use]
pub fn error(service: &str, answer: &Answer) -> ProviderError {
    let after = answer.after();
    let Some(said) = message(answer) else {
        return match answer.status {
            StatusCode::TOO_MANY_REQUESTS => {
                ProviderError::Throttled { after, text: format!("what answers for {service} wants fewer of them") }
            }
            status => ProviderError::Transient(format!(
                "what answers for {service} (with status {}) is no OpenStack: check auth_url, and the catalog of Keystone",
                status.as_u16()
            )),
        };
    };
    let text = format!("{service} says: {said}");
    match answer.status {
        StatusCode::TOO_MANY_REQUESTS => ProviderError::Throttled { after, text },
        // Cinder refuses by quota with the status that rate limits had.
        StatusCode::PAYLOAD_TOO_LARGE if is_quota(&said) => ProviderError::Quota(text),
        StatusCode::PAYLOAD_TOO_LARGE => ProviderError::Throttled { after, text },
        StatusCode::FORBIDDEN if is_quota(&said) => ProviderError::Quota(text),
        // Nova's `TooManyDiskDevices`.
        StatusCode::FORBIDDEN if said.contains("maximum allowed number of disk devices") => {
            ProviderError::AttachLimit(text)
        }
        StatusCode::FORBIDDEN => {
            ProviderError::Invalid(format!("{text} (the daemon's user needs the role `member` of its project)"))
        }
        StatusCode::NOT_ACCEPTABLE => {
            ProviderError::Invalid(format!("{text} (the cloud is older than OpenStack Train)"))
        }
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => ProviderError::Invalid(text),
        StatusCode::UNAUTHORIZED => ProviderError::Invalid(format!(
            "{text} (it refuses a token that Keystone has just given: look whether the application credential has access rules that do not permit this)"
        )),
        _ => ProviderError::Transient(text),
    }
}

/// Why a service has not carried out a change of a volume that was found in this state before: a state that does not allow
/// it is a conflict, whatever status says so. Only Cinder knows that a volume is gone.
#[must_use]
pub fn of_volume(service: &str, answer: &Answer, id: &VolumeId, state: VolumeState) -> ProviderError {
    let (error, said) = (error(service, answer), message(answer));
    match (answer.status, said) {
        (StatusCode::NOT_FOUND, Some(said)) if said.contains(&id.0) && service == "Cinder" => {
            ProviderError::NotFound(id.clone())
        }
        (StatusCode::NOT_FOUND, Some(said)) if said.contains(&id.0) => {
            ProviderError::Transient(format!("{service} says: {said}"))
        }
        // What is written in the request does not do, whatever the state.
        (StatusCode::BAD_REQUEST, Some(said)) if said.starts_with("Invalid input for field") => error,
        (StatusCode::BAD_REQUEST | StatusCode::CONFLICT, Some(said)) => {
            ProviderError::Conflict { id: id.clone(), state, reason: format!("{service} says: {said}") }
        }
        _ => error,
    }
}

fn is_quota(said: &str) -> bool {
    said.contains("quota") || said.contains("Quota")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use ureq::http::HeaderMap;

    use super::*;

    fn answer(status: u16, body: Value) -> Answer {
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), "0".parse().unwrap())]);
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body }
    }

    fn said(status: u16, text: &str) -> Answer {
        answer(status, json!({ "badRequest": { "code": status, "message": text } }))
    }

    /// As Cinder 29 and Nova 34 word them.
    #[test]
    fn refusals_are_told_by_status_and_words() {
        use ProviderError::{AttachLimit, Invalid, Quota, Throttled, Transient};
        let after = Some(Duration::ZERO);
        let kind = |error: ProviderError| match error {
            Quota(_) => "quota",
            AttachLimit(_) => "attach limit",
            Invalid(_) => "invalid",
            Transient(_) => "transient",
            Throttled { after: told, .. } if told == after => "throttled",
            error => panic!("{error:?}"),
        };
        for (status, text, expected) in [
            (
                413,
                "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 600G, quota is 500G and 1G has been consumed.",
                "quota",
            ),
            (413, "VolumeLimitExceeded: Maximum number of volumes allowed (20) exceeded for quota 'volumes'.", "quota"),
            (413, "This request was rate-limited.", "throttled"),
            (429, "Too Many Requests", "throttled"),
            (404, "Volume type with name no-such could not be found.", "invalid"),
            (400, "Invalid input for field/attribute size. Value: 0. 0 is less than the minimum of 1", "invalid"),
            (
                403,
                "The maximum allowed number of disk devices (26) to attach to a single instance has been exceeded.",
                "attach limit",
            ),
            (403, "Policy doesn't allow volume:create to be performed.", "invalid"),
            (406, "Version 3.42 is not supported by the API.", "invalid"),
            (401, "The request you have made requires authentication.", "invalid"),
            (500, "The server has either erred or is incapable of performing the requested operation.", "transient"),
            (503, "Unable to find a host", "transient"),
            (409, "Cannot 'attach_volume' instance while it is in task_state rebooting", "transient"),
        ] {
            assert_eq!(kind(error("Cinder", &said(status, text))), expected, "{status} {text}");
        }
        assert_eq!(
            kind(error("Cinder", &answer(404, json!({ "detail": "Not Found" })))),
            "transient",
            "it is no OpenStack"
        );
        assert_eq!(kind(error("Cinder", &answer(429, Value::Null))), "throttled");
    }

    #[test]
    fn a_state_that_does_not_allow_it_is_a_conflict_and_only_cinder_knows_that_a_volume_is_gone() {
        let id = VolumeId("f8fca740-6caa-4402-98ad-bcb7c4169e2d".to_owned());
        let of = |service, status, text: &str| of_volume(service, &said(status, text), &id, VolumeState::Attached);
        let gone = format!("Volume {} could not be found.", id.0);
        assert_eq!(of("Cinder", 404, &gone), ProviderError::NotFound(id.clone()));
        assert!(matches!(of("Nova", 404, &gone), ProviderError::Transient(_)));
        assert!(matches!(of("Nova", 404, "Instance 1 could not be found."), ProviderError::Invalid(_)));
        assert!(matches!(of("Cinder", 404, "The resource could not be found."), ProviderError::Invalid(_)));
        for status in [400, 409] {
            let refused = of("Cinder", status, "Invalid volume: Volume status must be available or error");
            assert!(matches!(refused, ProviderError::Conflict { state: VolumeState::Attached, .. }), "{refused:?}");
        }
        let odd = of("Cinder", 400, "Invalid input for field/attribute metadata. Value: {'\u{e4}': 'v'}.");
        assert!(matches!(odd, ProviderError::Invalid(_)));
        assert!(matches!(of("Cinder", 500, "erred"), ProviderError::Transient(_)));
    }
}
