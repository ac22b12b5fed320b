//! What Compute Engine's refusals mean, of calls and of operations that were accepted. The status alone does not say: 403 is also a
//! rate or a quota, 400 a machine that takes no more disks, 404 an instance that is elsewhere.

use std::time::Duration;

use serde_json::Value;

use crate::cloud::failure::{self, Meaning, unless_of_gateway};
use crate::cloud::http::{Answer, sentence};
use crate::{ProviderError, VolumeId, VolumeState};

/// Why something was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    /// In upper case, as operations have them: calls have `notFound` where those have `NOT_FOUND`.
    codes: Vec<String>,
    /// What it says, in one line.
    said: String,
    after: Option<Duration>,
}

/// Why a call was not carried out.
pub type Failure = failure::Failure<Refusal>;

/// A reason as a code: `rateLimitExceeded` is `RATE_LIMIT_EXCEEDED`.
fn code(reason: &str) -> String {
    if !reason.contains(|c: char| c.is_ascii_lowercase()) {
        return reason.to_owned();
    }
    let mut code = String::with_capacity(reason.len() + 4);
    for c in reason.chars() {
        if c.is_ascii_uppercase() && !code.is_empty() {
            code.push('_');
        }
        code.push(c.to_ascii_uppercase());
    }
    code
}

impl Refusal {
    /// What an answer says, if Compute Engine says it: gateways, too, answer with JSON.
    #[must_use]
    pub fn of_answer(answer: &Answer) -> Option<Self> {
        let error = answer.body.get("error")?;
        let status = answer.status.as_u16();
        // Its own body repeats the status.
        let is_own = error["code"].as_u64() == Some(status.into()) && error["errors"].is_array();
        let said = sentence(error["message"].as_str().filter(|_| is_own)?);
        let reasons = error["errors"].as_array().into_iter().flatten().map(|error| &error["reason"]);
        let details = error["details"].as_array().into_iter().flatten().map(|detail| &detail["reason"]);
        let told = reasons.chain(details).chain([&error["status"]]).filter_map(Value::as_str);
        Some(Self { status, codes: told.map(code).collect(), said, after: answer.after() })
    }

    /// Why an operation that is done was not carried out.
    #[must_use]
    pub fn of_operation(operation: &Value) -> Option<Self> {
        let status = operation["httpErrorStatusCode"].as_u64().and_then(|status| u16::try_from(status).ok());
        let errors = match &operation["error"] {
            Value::Null if status.is_none_or(|status| status < 400) => return None,
            // One that names no reason has failed as well.
            error => error["errors"].as_array().cloned().unwrap_or_default(),
        };
        let codes = errors.iter().filter_map(|error| error["code"].as_str()).map(code).collect();
        let said = errors.iter().find_map(|error| error["message"].as_str()).unwrap_or("no reason");
        Some(Self { status: status.unwrap_or_default(), codes, said: sentence(said), after: None })
    }

    fn has(&self, code: &str) -> bool {
        self.codes.iter().any(|there| there == code)
    }

    fn begins(&self, code: &str) -> bool {
        self.codes.iter().any(|there| there.starts_with(code))
    }

    /// Whether a disk of the name is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.has("ALREADY_EXISTS") || self.has("RESOURCE_ALREADY_EXISTS")
    }

    /// Whether the labels have changed since they were read.
    #[must_use]
    pub fn is_of_fingerprint(&self) -> bool {
        // Policies of an organization are refused with the same status and code.
        (self.status == 412 || self.has("CONDITION_NOT_MET")) && self.said.contains("ingerprint")
    }

    /// Whether there is no operation of that name, or it is forgotten.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.status == 404 && self.has("NOT_FOUND")
    }

    /// Whether Compute Engine says that the zone has no such disk (`disks/NAME`) or instance (`instances/NAME`), in its own words.
    #[must_use]
    pub fn lacks(&self, what: &str, zone: &str) -> bool {
        let end = format!("/zones/{zone}/{what}' was not found");
        let is_absent = self.has("NOT_FOUND") || self.has("RESOURCE_NOT_FOUND");
        is_absent && self.said.starts_with("The resource 'projects/") && self.said.ends_with(&end)
    }

    /// Of a change of a disk that was found in this state: a state that does not allow it is a conflict, whatever code says so.
    #[must_use]
    pub fn of_disk(&self, id: &str, zone: &str, state: VolumeState) -> ProviderError {
        if self.lacks(&format!("disks/{id}"), zone) {
            return ProviderError::NotFound(VolumeId(id.to_owned()));
        }
        let error = self.general();
        let passes = matches!(error, ProviderError::Invalid(_) | ProviderError::Transient(_));
        let is_state = self.begins("RESOURCE_IN_USE")
            || self.begins("RESOURCE_NOT_READY")
            || self.is_of_fingerprint()
            || self.status == 409
            || self.said.contains("No attached disk found");
        if passes && is_state {
            let reason = format!("Compute Engine says: {}", self.said);
            return ProviderError::Conflict { id: VolumeId(id.to_owned()), state, reason };
        }
        unless_of_gateway(error, self.status == 404 && self.said.contains(id))
    }
}

impl Meaning for Refusal {
    fn status(&self) -> u16 {
        self.status
    }

    fn general(&self) -> ProviderError {
        let text = format!("Compute Engine says: {}", self.said);
        let is_rate = ["RATE_LIMIT_EXCEEDED", "USER_RATE_LIMIT_EXCEEDED", "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"];
        if self.status == 429
            || is_rate.iter().any(|code| self.has(code))
            || self.codes.iter().any(|code| code.ends_with("OPERATION_RATE_EXCEEDED"))
        {
            return ProviderError::Throttled { after: self.after, text };
        }
        if self.codes.iter().any(|code| code.ends_with("QUOTA_EXCEEDED")) {
            return ProviderError::Quota(text);
        }
        if self.begins("ZONE_RESOURCE_POOL_EXHAUSTED") || self.has("STOCKOUT") {
            return ProviderError::Capacity(text);
        }
        // One code for all limits of a resource.
        if ["maximum_persistent_disks", "maximum number of disks", "disks count should be less than or equal to"]
            .iter()
            .any(|limit| self.said.contains(limit))
        {
            return ProviderError::AttachLimit(text);
        }
        match self.status {
            401 => ProviderError::Invalid(format!(
                "{text} (it refuses a token that was just given: check the service account, or the credential_command)"
            )),
            403 if self.has("ACCESS_NOT_CONFIGURED") || self.has("SERVICE_DISABLED") => {
                ProviderError::Invalid(format!("{text} (enable the Compute Engine API in the project)"))
            }
            403 if self.has("INSUFFICIENT_PERMISSIONS") || self.has("ACCESS_TOKEN_SCOPE_INSUFFICIENT") => {
                ProviderError::Invalid(format!(
                    "{text} (stop this machine and give it the scope cloud-platform, or use a credential_command)"
                ))
            }
            403 => ProviderError::Invalid(format!(
                "{text} (give the service account the role that docs/OPERATIONS.md describes)"
            )),
            404 => ProviderError::Invalid(format!("{text} (check project, zone and instance in [provider.gce])")),
            400 | 412 => ProviderError::Invalid(text),
            _ => ProviderError::Transient(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use ureq::http::{HeaderMap, StatusCode};

    use super::*;

    const ID: &str = "surgetank-t";

    fn refused(status: u16, reason: &str, said: &str) -> Option<Refusal> {
        let error = json!({ "message": said, "domain": "global", "reason": reason });
        let body = json!({ "error": { "code": status, "message": said, "errors": [error] } });
        answered(status, body)
    }

    fn answered(status: u16, body: Value) -> Option<Refusal> {
        Refusal::of_answer(&Answer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body })
    }

    fn kind(error: &ProviderError) -> &'static str {
        match error {
            ProviderError::NotFound(_) => "not found",
            ProviderError::Quota(_) => "quota",
            ProviderError::Capacity(_) => "capacity",
            ProviderError::AttachLimit(_) => "attach limit",
            ProviderError::Conflict { .. } => "conflict",
            ProviderError::Invalid(_) => "invalid",
            ProviderError::Throttled { .. } => "throttled",
            ProviderError::Transient(_) => "transient",
        }
    }

    #[test]
    fn refusals_of_calls_are_told_by_status_and_reason() {
        for (status, reason, said, expected) in [
            (403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'", "throttled"),
            (429, "rateLimitExceeded", "slow down", "throttled"),
            (403, "quotaExceeded", "Quota 'SSD_TOTAL_GB' exceeded. Limit: 500.0 in region r.", "quota"),
            (403, "forbidden", "Required 'compute.disks.create' permission for 'projects/p'", "invalid"),
            (403, "insufficientPermissions", "Request had insufficient authentication scopes.", "invalid"),
            (403, "accessNotConfigured", "Compute Engine API has not been used in project 1", "invalid"),
            (401, "authError", "Invalid Credentials", "invalid"),
            (400, "invalid", "Invalid value for field 'resource.sizeGb': '1'.", "invalid"),
            (
                400,
                "limitExceeded",
                "Exceeded limit 'maximum_persistent_disks' on resource 'i'. Limit: 16.0",
                "attach limit",
            ),
            (400, "resourceInUseByAnotherResource", "The disk resource 'd' is already being used by 'i'", "conflict"),
            (400, "resourceNotReady", "The resource 'd' is not ready", "conflict"),
            (
                400,
                "invalid",
                "Invalid value for field 'disk': 'd'. No attached disk found with device name 'd'",
                "conflict",
            ),
            (412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed", "conflict"),
            (404, "notFound", "The resource 'projects/p/zones/z/instances/i' was not found", "invalid"),
            (404, "notFound", "The resource 'projects/p/zones/z/disks/surgetank-t' was not found", "not found"),
            (404, "notFound", "The resource 'projects/p/zones/y/disks/surgetank-t' was not found", "transient"),
            (404, "notFound", "The resource 'projects/p/zones/z/disks/surgetank-t' was not found.", "transient"),
            (404, "other", "The resource 'projects/p/zones/z/disks/surgetank-t' was not found", "transient"),
            (500, "internalError", "Internal error", "transient"),
            (503, "backendError", "Service Unavailable", "transient"),
        ] {
            let error = refused(status, reason, said).unwrap().of_disk(ID, "z", VolumeState::Available);
            assert_eq!(kind(&error), expected, "{status} {reason} {said}: {error}");
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn refusals_of_operations_are_told_by_code() {
        for (code, status, expected) in [
            ("QUOTA_EXCEEDED", 403, "quota"),
            ("REGION_QUOTA_EXCEEDED", 403, "quota"),
            ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", 403, "throttled"),
            ("ZONE_RESOURCE_POOL_EXHAUSTED", 503, "capacity"),
            ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503, "capacity"),
            ("RATE_LIMIT_EXCEEDED", 403, "throttled"),
            ("RESOURCE_OPERATION_RATE_EXCEEDED", 403, "throttled"),
            ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", 400, "conflict"),
            ("RESOURCE_NOT_READY", 400, "conflict"),
            ("PERMISSIONS_ERROR", 403, "invalid"),
            ("INTERNAL_ERROR", 503, "transient"),
            ("UNHEARD_OF", 0, "transient"),
        ] {
            let operation = json!({
                "status": "DONE", "httpErrorStatusCode": status, "error": { "errors": [{ "code": code, "message": "m" }] },
            });
            let error = Refusal::of_operation(&operation).unwrap().of_disk(ID, "z", VolumeState::Available);
            assert_eq!(kind(&error), expected, "{code}: {error}");
        }
        assert_eq!(Refusal::of_operation(&json!({ "status": "DONE" })), None);
    }

    #[test]
    fn what_is_not_compute_engines_own_body_says_nothing() {
        let gone = "The resource 'projects/p/zones/z/disks/surgetank-t' was not found";
        for body in [
            Value::Null,
            json!({ "error": gone }),
            json!({ "error": { "code": 404, "message": gone } }),
            json!({ "error": { "code": 403, "message": gone, "errors": [{ "reason": "notFound" }] } }),
            json!({ "message": gone }),
        ] {
            assert_eq!(answered(404, body), None);
        }
    }
}
