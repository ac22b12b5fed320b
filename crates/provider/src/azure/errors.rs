//! What Azure's refusals mean, of calls and of operations that were accepted. The status alone does not say: 409 is also a quota, a
//! machine that takes no more disks, or one that is being changed.

use std::time::Duration;

use serde_json::Value;

use super::arm::Place;
use crate::cloud::failure::{self, Meaning, unless_of_gateway};
use crate::cloud::http::{Answer, sentence};
use crate::{ProviderError, VolumeId, VolumeState};

/// No room where the disk is to be.
const CAPACITY: &[&str] = &[
    "SkuNotAvailable",
    "AllocationFailed",
    "ZonalAllocationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
];
/// Too many calls. Some come with other statuses than 429.
const RATES: &[&str] = &[
    "TooManyRequests",
    "SubscriptionRequestsThrottled",
    "ResourceRequestsThrottled",
    "ResourceCollectionRequestsThrottled",
];

/// Why something was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 0: an operation has failed.
    status: u16,
    codes: Vec<String>,
    /// What it says, in one line.
    said: String,
    after: Option<Duration>,
}

/// Why a call was not carried out.
pub type Failure = failure::Failure<Refusal>;

impl Failure {
    /// Whether the same call may be accepted a moment later.
    #[must_use]
    pub const fn passes(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_passing(),
            Self::Other(error) => !matches!(error, ProviderError::AttachLimit(_)),
        }
    }
}

impl Refusal {
    /// What an answer says, if Azure says it: gateways, too, answer with JSON.
    #[must_use]
    pub fn of_answer(answer: &Answer) -> Option<Self> {
        Self::read(answer.status.as_u16(), &answer.body["error"], answer.after())
    }

    /// Why an operation that has ended was not carried out.
    #[must_use]
    pub fn of_operation(body: &Value) -> Self {
        // One that names no reason has failed as well.
        Self::read(0, &body["error"], None).unwrap_or_else(|| Self {
            status: 0,
            codes: Vec::new(),
            said: "an operation has failed for no reason that is told".to_owned(),
            after: None,
        })
    }

    fn read(status: u16, error: &Value, after: Option<Duration>) -> Option<Self> {
        let code = error["code"].as_str()?;
        let message = error["message"].as_str()?;
        let inner: Vec<&Value> = error["details"].as_array().into_iter().flatten().collect();
        let codes = std::iter::once(code).chain(inner.iter().filter_map(|inner| inner["code"].as_str()));
        // The innermost is the reason, as a rule.
        let reason = inner.iter().find_map(|inner| inner["message"].as_str()).filter(|inner| !message.contains(inner));
        let said = reason.map_or_else(|| message.to_owned(), |reason| format!("{message} {reason}"));
        Some(Self { status, codes: codes.map(str::to_owned).collect(), said: sentence(&said), after })
    }

    fn has(&self, code: &str) -> bool {
        self.codes.iter().any(|there| there.eq_ignore_ascii_case(code))
    }

    fn has_any(&self, codes: &[&str]) -> bool {
        codes.iter().any(|code| self.has(code))
    }

    /// Whether what was to be made is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.status == 412
    }

    /// Whether something is being changed just now, by whoever else.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_change = self.has("Conflict") && self.said.contains("concurrent request");
        let is_other = self.has("OperationNotAllowed") && self.said.contains("another operation is in progress");
        is_change || is_other || self.has("AttachDiskWhileBeingDetached") || self.has("OperationPreempted")
    }

    /// Whether Azure refuses for now: an operation that is asked for goes on.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        self.status == 429 || self.status == 401 || self.status >= 500
    }

    /// Whether Azure says that the resource group has no such disk (`disks/NAME`) or machine (`virtualMachines/NAME`), in its own words.
    #[must_use]
    pub fn lacks(&self, what: &str, place: &Place) -> bool {
        let words = format!(
            "The Resource 'Microsoft.Compute/{what}' under resource group '{}' was not found",
            place.resource_group
        );
        let said = self.said.as_bytes().get(..words.len());
        let is_absent = self.status == 404 && self.has("ResourceNotFound");
        is_absent && said.is_some_and(|said| said.eq_ignore_ascii_case(words.as_bytes()))
    }

    fn is_quota(&self) -> bool {
        let named = self.codes.iter().any(|code| code.ends_with("QuotaExceeded") || code.ends_with("LimitExceeded"));
        named || (self.has("OperationNotAllowed") && self.said.contains("exceeding approved"))
    }

    /// Of a change of a disk that was found in this state: a state that does not allow it is a conflict, whatever code says so.
    #[must_use]
    pub fn of_disk(&self, id: &str, place: &Place, state: VolumeState) -> ProviderError {
        if self.lacks(&format!("disks/{id}"), place) {
            return ProviderError::NotFound(VolumeId(id.to_owned()));
        }
        let error = self.general();
        let passes = matches!(error, ProviderError::Invalid(_) | ProviderError::Transient(_));
        // A unit that something else has taken meanwhile, or a disk that is detached already.
        let is_late = self.has("InvalidParameter") && (self.said.contains("LUN") || self.said.contains("not attached"));
        if passes && (self.status == 409 || self.is_busy() || is_late || self.has("ConflictingUserInput")) {
            let reason = format!("Azure says: {}", self.said);
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
        let text = format!("Azure says: {}", self.said);
        if self.status == 429 || self.has_any(RATES) {
            return ProviderError::Throttled { after: self.after, text };
        }
        if self.said.contains("attached to a VM of this size") {
            return ProviderError::AttachLimit(text);
        }
        if self.is_quota() {
            return ProviderError::Quota(text);
        }
        if self.has_any(CAPACITY) {
            return ProviderError::Capacity(text);
        }
        match self.status {
            401 => ProviderError::Invalid(format!(
                "{text} (it refuses a token that was just given: check the identity, or the credential_command)"
            )),
            403 if self.has("AuthorizationFailed") || self.has("LinkedAuthorizationFailed") => {
                ProviderError::Invalid(format!("{text} (give the identity the role that docs/OPERATIONS.md describes)"))
            }
            404 => ProviderError::Invalid(format!(
                "{text} (check subscription, resource_group and instance in [provider.azure])"
            )),
            400 | 403 | 405 | 412 => ProviderError::Invalid(text),
            // An operation has no status of its own.
            0 if self.has_any(&["InvalidParameter", "BadRequest", "NotSupported"]) => ProviderError::Invalid(text),
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

    fn place() -> Place {
        Place { subscription: "s".to_owned(), resource_group: "group".to_owned() }
    }

    fn refused(status: u16, code: &str, said: &str) -> Option<Refusal> {
        answered(status, json!({ "error": { "code": code, "message": said } }))
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
    fn refusals_are_told_by_status_code_and_words() {
        for (status, code, said, expected) in [
            (429, "TooManyRequests", "The request is being throttled", "throttled"),
            (429, "OperationNotAllowed", "The server rejected the request because too many requests", "throttled"),
            (
                409,
                "OperationNotAllowed",
                "The maximum number of data disks allowed to be attached to a VM of this size is 4.",
                "attach limit",
            ),
            (
                409,
                "OperationNotAllowed",
                "Operation could not be completed as it results in exceeding approved PremiumV2DiskCount quota.",
                "quota",
            ),
            (409, "QuotaExceeded", "q", "quota"),
            (409, "SkuNotAvailable", "not available in location", "capacity"),
            (409, "ZonalAllocationFailed", "Allocation failed", "capacity"),
            (409, "OperationNotAllowed", "Disk surgetank-t is attached to VM /subscriptions/s/x.", "conflict"),
            (409, "AttachDiskWhileBeingDetached", "Cannot attach data disk", "conflict"),
            (409, "Conflict", "The request failed due to conflict with a concurrent request.", "conflict"),
            (400, "InvalidParameter", "A disk at LUN 3 already exists.", "conflict"),
            (400, "InvalidParameter", "The value of parameter disk.diskSizeGB is invalid.", "invalid"),
            (403, "AuthorizationFailed", "The client 'c' does not have authorization to perform action", "invalid"),
            (403, "RequestDisallowedByPolicy", "Resource was disallowed by policy", "invalid"),
            (401, "ExpiredAuthenticationToken", "The access token expiry", "invalid"),
            (404, "ResourceGroupNotFound", "Resource group 'g' could not be found.", "invalid"),
            (
                404,
                "ResourceNotFound",
                "The Resource 'Microsoft.Compute/virtualMachines/i' under resource group 'group' was not found.",
                "invalid",
            ),
            (
                404,
                "ResourceNotFound",
                "The Resource 'Microsoft.Compute/disks/surgetank-t' under resource group 'GROUP' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix",
                "not found",
            ),
            (
                404,
                "ResourceNotFound",
                "The Resource 'Microsoft.Compute/disks/surgetank-t' under resource group 'other' was not found.",
                "transient",
            ),
            (
                404,
                "Other",
                "The Resource 'Microsoft.Compute/disks/surgetank-t' under resource group 'group' was not found.",
                "transient",
            ),
            (500, "InternalServerError", "Internal error", "transient"),
            (503, "ServerTimeout", "busy", "transient"),
        ] {
            let error = refused(status, code, said).unwrap().of_disk(ID, &place(), VolumeState::Available);
            assert_eq!(kind(&error), expected, "{status} {code} {said}: {error}");
        }
    }

    #[test]
    fn operations_that_fail_are_told_by_the_innermost_reason() {
        let body = json!({ "status": "Failed", "error": {
            "code": "DiskProcessingError", "message": "Disk processing halted.",
            "details": [{ "code": "SkuNotAvailable", "message": "None in zone 1." }],
        } });
        let error = Refusal::of_operation(&body).of_disk(ID, &place(), VolumeState::Available);
        assert_eq!(error, ProviderError::Capacity("Azure says: Disk processing halted. None in zone 1.".to_owned()));
        for (code, expected) in [
            ("OperationPreempted", "conflict"),
            ("InternalOperationError", "transient"),
            ("QuotaExceeded", "quota"),
            ("BadRequest", "invalid"),
        ] {
            let body = json!({ "status": "Failed", "error": { "code": code, "message": "m" } });
            let error = Refusal::of_operation(&body).of_disk(ID, &place(), VolumeState::Available);
            assert_eq!(kind(&error), expected, "{code}: {error}");
        }
        assert_eq!(kind(&Refusal::of_operation(&json!({ "status": "Canceled" })).general()), "transient");
    }

    #[test]
    fn what_is_not_azures_own_body_says_nothing() {
        for body in
            [Value::Null, json!({ "error": "gone" }), json!({ "error": { "code": 404, "message": "m" } }), json!([])]
        {
            assert_eq!(answered(404, body), None);
        }
    }
}
