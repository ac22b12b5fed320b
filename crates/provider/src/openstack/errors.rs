//! What OpenStack's refusals mean. The status alone does not say: 404 is also an unknown type of volumes, 403 a machine that
//! takes no more disks, 413 a quota.

use ureq::http::StatusCode;

use crate::cloud::http::{Answer, sentence};
use crate::{ProviderError, VolumeId, VolumeState};

/// What OpenStack calls its answers with 404.
const ITEM_NOT_FOUND: &str = "itemNotFound";

/// The kind of an answer, and what it says, if it is OpenStack: one object of any name with a `message`.
fn told(answer: &Answer) -> Option<(&str, &str)> {
    let (kind, detail) = answer.body.as_object()?.iter().find(|(_, detail)| detail.is_object())?;
    Some((kind, detail.get("message")?.as_str()?))
}

/// What it says, if it is OpenStack.
#[must_use]
pub fn message(answer: &Answer) -> Option<String> {
    told(answer).map(|(_, said)| sentence(said))
}

/// Whether Cinder says that there is no such volume, in its own words: gateways, too, answer 404 with JSON that has the path.
fn is_gone(answer: &Answer, id: &VolumeId) -> bool {
    let gone = format!("Volume {} could not be found.", id.0);
    answer.status == StatusCode::NOT_FOUND && told(answer) == Some((ITEM_NOT_FOUND, &gone))
}

/// Whether Nova says that there is no such server, in its own words.
#[must_use]
pub fn lacks_server(answer: &Answer, id: &str) -> bool {
    let gone = format!("Instance {id} could not be found.");
    answer.status == StatusCode::NOT_FOUND && told(answer) == Some((ITEM_NOT_FOUND, &gone))
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
        // Else a gateway, which has no such path.
        StatusCode::NOT_FOUND if told(answer).is_some_and(|(kind, _)| kind == ITEM_NOT_FOUND) => {
            ProviderError::Invalid(text)
        }
        StatusCode::BAD_REQUEST => ProviderError::Invalid(text),
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
    if service == "Cinder" && is_gone(answer, id) {
        return ProviderError::NotFound(id.clone());
    }
    let (error, said) = (error(service, answer), message(answer));
    match (answer.status, said) {
        (StatusCode::NOT_FOUND, Some(said)) if said.contains("is not attached to volume") => {
            ProviderError::Transient(format!(
                "{service} says: {said} (Cinder has an attachment of which Nova knows nothing: the cloud's operator must remove it and reset the volume's state)"
            ))
        }
        (StatusCode::NOT_FOUND, Some(said)) if said.contains(&id.0) => {
            ProviderError::Transient(format!("{service} says: {said}"))
        }
        // Nova's `cross_az_attach = False`.
        (StatusCode::BAD_REQUEST, Some(said)) if said.contains("not in the same availability_zone") => {
            ProviderError::Invalid(format!(
                "{service} says: {said} (write the server's zone as availability_zone in [provider.openstack])"
            ))
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

    use serde_json::{Value, json};
    use ureq::http::HeaderMap;

    use super::*;

    fn answer(status: u16, body: Value) -> Answer {
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), "0".parse().unwrap())]);
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body }
    }

    fn said(status: u16, text: &str) -> Answer {
        let kind = if status == 404 { ITEM_NOT_FOUND } else { "badRequest" };
        answer(status, json!({ kind: { "code": status, "message": text } }))
    }

    #[test]
    fn a_server_is_gone_if_nova_says_so_in_its_own_words() {
        let gone = |status, kind: &str, said: &str| {
            lacks_server(&answer(status, json!({ kind: { "code": status, "message": said } })), "s")
        };
        assert!(gone(404, "itemNotFound", "Instance s could not be found."));
        for (status, kind, said) in [
            (404, "itemNotFound", "Instance t could not be found."),
            (404, "error", "Instance s could not be found."),
            (404, "itemNotFound", "The resource could not be found."),
            (403, "itemNotFound", "Instance s could not be found."),
        ] {
            assert!(!gone(status, kind, said), "{status} {kind} {said}");
        }
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
        // A gateway's, which knows nothing of volumes.
        for (kind, text) in [
            ("error", format!("Cannot GET /v3/volumes/{}", id.0)),
            ("error", gone.clone()),
            ("itemNotFound", format!("no route to {}", id.0)),
            ("itemNotFound", format!("{gone} Or could it?")),
            ("itemNotFound", gone.replace("f8f", "f8e") + &id.0),
        ] {
            let gateway = answer(404, json!({ kind: { "code": 404, "message": text } }));
            let error = of_volume("Cinder", &gateway, &id, VolumeState::Attached);
            assert!(matches!(error, ProviderError::Transient(_)), "{text}: {error:?}");
        }
        match of("Nova", 404, &format!("Instance 1 is not attached to volume {}", id.0)) {
            ProviderError::Transient(text) => assert!(text.contains("operator"), "{text}"),
            error => panic!("{error:?}"),
        }
        let zone = "Invalid volume: Instance 1 and volume 2 are not in the same availability_zone. Instance is in a. Volume is in b";
        assert!(
            matches!(of("Nova", 400, zone), ProviderError::Invalid(text) if text.contains("availability_zone in ["))
        );
        for status in [400, 409] {
            let refused = of("Cinder", status, "Invalid volume: Volume status must be available or error");
            assert!(matches!(refused, ProviderError::Conflict { state: VolumeState::Attached, .. }), "{refused:?}");
        }
        let odd = of("Cinder", 400, "Invalid input for field/attribute metadata. Value: {'\u{e4}': 'v'}.");
        assert!(matches!(odd, ProviderError::Invalid(_)));
        assert!(matches!(of("Cinder", 500, "erred"), ProviderError::Transient(_)));
    }
}
