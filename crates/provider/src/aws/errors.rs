//! What EC2's refusals mean: its code says, and not the status, which is 400 for most of them.

use ureq::http::StatusCode;

use super::ec2::{Failure, Refusal};
use crate::cloud::failure::Meaning;
use crate::{ProviderError, VolumeId, VolumeState};

/// EC2 says of no other volume than one that it does not have.
const NO_VOLUME: &str = "InvalidVolume.NotFound";
/// A clock that differs by more than this is the reason for a refused signature; AWS tolerates 5 min.
const SKEW_MAX_S: u64 = 240;

/// What is said of the key that volumes are encrypted with.
const KEY_CODES: [&str; 3] = ["CustomerKeyHasBeenRevoked", "InvalidKmsKey", "KMS"];
const KEY_RIGHTS: &str = "let the daemon's role use the key that EBS encrypts with here, as packaging/aws/key-policy.json does, or set encrypted = false in \
                          [provider.aws]";

impl Refusal {
    /// Whether it is the code.
    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// Whether the credentials are refused, so that newer ones may do.
    #[must_use]
    pub fn is_of_credentials(&self) -> bool {
        matches!(
            &*self.code,
            "ExpiredToken"
                | "ExpiredTokenException"
                | "RequestExpired"
                | "AuthFailure"
                | "InvalidClientTokenId"
                | "InvalidSecurityToken"
                | "MissingAuthenticationToken"
                | "SignatureDoesNotMatch"
                | "UnrecognizedClientException"
        )
    }

    /// Whether the account may have no more of something.
    #[must_use]
    pub fn is_of_quota(&self) -> bool {
        matches!(&*self.code, "VolumeLimitExceeded" | "MaxIOPSLimitExceeded" | "VolumeModificationSizeLimitExceeded")
    }

    /// Whether the token has made a volume that is gone.
    #[must_use]
    pub fn is_of_used_token(&self) -> bool {
        self.is("IdempotentParameterMismatch") && self.said.contains("already deleted")
    }

    /// Whether the device name of an attachment is in use.
    #[must_use]
    pub fn is_of_device_name(&self) -> bool {
        self.is("InvalidDevice.InUse")
            || (self.is("InvalidParameterValue")
                && self.said.contains("ttachment point")
                && self.said.contains("already in use"))
    }

    /// By how much the clock is wrong, in words, if that is why a signature was refused.
    fn skew(&self) -> Option<String> {
        let ahead_s = self.ahead_s.filter(|ahead_s| ahead_s.unsigned_abs() > SKEW_MAX_S)?;
        let side = if ahead_s > 0 { "ahead of" } else { "behind" };
        Some(format!(
            "this machine's clock is {} s {side} AWS's: let it follow a time server, such as 169.254.169.123",
            ahead_s.unsigned_abs()
        ))
    }
}

/// Why a call that concerns no volume was not carried out.
#[must_use]
pub fn error(refusal: &Refusal) -> ProviderError {
    let Refusal { action, code, said, .. } = refusal;
    let text = format!("EC2 refuses {action} ({code}): {said}");
    if refusal.is_of_credentials() {
        return match refusal.skew() {
            Some(skew) => ProviderError::Transient(format!("{text} ({skew})")),
            None => ProviderError::Invalid(format!(
                "{text} (AWS does not accept the credentials: check whether they have ended, and their place in [provider.aws])"
            )),
        };
    }
    if refusal.is_of_quota() {
        return ProviderError::Quota(text);
    }
    match &**code {
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "SlowDown"
        | "TooManyRequestsException"
        | "BandwidthLimitExceeded"
        | "EC2ThrottledException"
        // A volume can be modified a few times a day.
        | "VolumeModificationRateExceeded" => ProviderError::Throttled { after: refusal.after, text },
        "InsufficientVolumeCapacity" | "InsufficientCapacity" => ProviderError::Capacity(text),
        "AttachmentLimitExceeded" => ProviderError::AttachLimit(text),
        "UnauthorizedOperation" => {
            // What follows is for AWS's own service alone, and too long to be told whole.
            let said = said.split("Encoded authorization failure message").next().unwrap_or_default().trim_end();
            ProviderError::Invalid(format!(
                "EC2 refuses {action} ({code}): allow ec2:{action} to the daemon's role, as packaging/aws/policy.json does ({said})"
            ))
        }
        // EC2 makes an encrypted volume, finds that it may not use the key, and takes the volume back without a word.
        _ if refusal.is_of_used_token() => ProviderError::Invalid(format!(
            "{text} (if nobody has deleted it, EC2 has taken the volume back: {KEY_RIGHTS})"
        )),
        _ if KEY_CODES.iter().any(|key| code.starts_with(key)) => {
            ProviderError::Invalid(format!("{text} ({KEY_RIGHTS})"))
        }
        "IdempotentParameterMismatch" => {
            ProviderError::Invalid(format!("{text} (the token has made another volume: draw a fresh token)"))
        }
        "InvalidInstanceID.NotFound" => ProviderError::Transient(format!(
            "{text} (the credentials or the region lead to an account without this machine: restore them)"
        )),
        "InvalidVolume.ZoneMismatch" => {
            ProviderError::Invalid(format!("{text} (the volume is in another zone than this machine)"))
        }
        "OptInRequired" | "PendingVerification" | "Blocked" | "InvalidAction" | "NoSuchVersion" => {
            ProviderError::Invalid(text)
        }
        _ if refusal.status.is_server_error() => ProviderError::Transient(text),
        _ if ["Invalid", "Malformed", "Missing", "Unknown", "Unsupported", "VolumeTypeNotAvailable"]
            .iter()
            .any(|family| code.starts_with(family))
            || refusal.status == StatusCode::FORBIDDEN =>
        {
            ProviderError::Invalid(text)
        }
        _ => ProviderError::Transient(text),
    }
}

/// The same of a call that concerns a volume which was in this state before.
#[must_use]
pub fn of_volume(refusal: &Refusal, id: &VolumeId, state: VolumeState) -> ProviderError {
    match &*refusal.code {
        NO_VOLUME => ProviderError::NotFound(id.clone()),
        "IncorrectState" | "VolumeInUse" | "IncorrectModificationState" | "InvalidAttachment.NotFound" => {
            ProviderError::Conflict {
                id: id.clone(),
                state,
                reason: format!("EC2 refuses {} ({}): {}", refusal.action, refusal.code, refusal.said),
            }
        }
        _ => error(refusal),
    }
}

impl Meaning for Refusal {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn general(&self) -> ProviderError {
        error(self)
    }
}

impl Failure {
    /// As callers of a provider are told of a volume that was in this state before.
    #[must_use]
    pub fn of_volume(self, id: &VolumeId, state: VolumeState) -> ProviderError {
        self.told(|refusal| of_volume(refusal, id, state))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(status: u16, code: &str, said: &str) -> Refusal {
        Refusal {
            action: "AttachVolume",
            status: StatusCode::from_u16(status).unwrap(),
            code: code.to_owned(),
            said: said.to_owned(),
            after: Some(Duration::from_secs(7)),
            ahead_s: Some(0),
        }
    }

    #[test]
    fn refusals_are_told_by_their_codes() {
        use ProviderError::{AttachLimit, Capacity, Invalid, Quota, Throttled, Transient};
        let kind = |error: &ProviderError| match error {
            Quota(_) => "quota",
            Capacity(_) => "capacity",
            AttachLimit(_) => "attach limit",
            Invalid(_) => "invalid",
            Transient(_) => "transient",
            Throttled { after: Some(_), .. } => "throttled",
            _ => "another",
        };
        for (status, code, expected) in [
            (400, "VolumeLimitExceeded", "quota"),
            (400, "MaxIOPSLimitExceeded", "quota"),
            (503, "RequestLimitExceeded", "throttled"),
            (400, "Throttling", "throttled"),
            (500, "InsufficientVolumeCapacity", "capacity"),
            (400, "AttachmentLimitExceeded", "attach limit"),
            (403, "UnauthorizedOperation", "invalid"),
            (401, "AuthFailure", "invalid"),
            (400, "RequestExpired", "invalid"),
            (400, "IdempotentParameterMismatch", "invalid"),
            (400, "CustomerKeyHasBeenRevoked", "invalid"),
            (400, "SlowDown", "throttled"),
            (400, "VolumeModificationRateExceeded", "throttled"),
            (400, "VolumeModificationSizeLimitExceeded", "quota"),
            (400, "InvalidInstanceID.NotFound", "transient"),
            (400, "InvalidVolume.ZoneMismatch", "invalid"),
            (400, "InvalidParameterValue", "invalid"),
            (400, "MissingParameter", "invalid"),
            (400, "VolumeTypeNotAvailableInZone", "invalid"),
            (500, "InternalError", "transient"),
            (503, "Unavailable", "transient"),
            (500, "InvalidAndBroken", "transient"),
            (400, "IncorrectInstanceState", "transient"),
        ] {
            let error = error(&refusal(status, code, "words"));
            assert_eq!(kind(&error), expected, "{code}");
            assert!(error.to_string().contains("words") && error.to_string().contains(code), "{error}");
        }
        let denied = error(&refusal(403, "UnauthorizedOperation", "You are not authorized.")).to_string();
        assert!(denied.contains("allow ec2:AttachVolume"), "{denied}");
        let denied =
            error(&refusal(403, "UnauthorizedOperation", "You may not. Encoded authorization failure message: kZdy9"));
        assert!(denied.to_string().ends_with("(You may not.)"), "{denied}");
        let gone = "The client token you have provided is associated with a resource that is already deleted.";
        assert!(
            matches!(error(&refusal(400, "IdempotentParameterMismatch", gone)), Invalid(text) if text.contains("key-policy"))
        );
        let skewed = |ahead_s| error(&Refusal { ahead_s, ..refusal(401, "AuthFailure", "words") });
        match skewed(Some(-900)) {
            Transient(text) => assert!(text.contains("clock is 900 s behind AWS's"), "{text}"),
            error => panic!("{error:?}"),
        }
        assert!(skewed(Some(900)).to_string().contains("ahead of"));
        assert!(matches!(skewed(None), Invalid(_)));
    }

    #[test]
    fn a_volume_is_gone_when_ec2_says_so_of_it() {
        let id = VolumeId("vol-0123456789abcdef0".to_owned());
        let of = |code: &str| of_volume(&refusal(400, code, "words"), &id, VolumeState::Attached);
        assert_eq!(of(NO_VOLUME), ProviderError::NotFound(id.clone()));
        for code in ["IncorrectState", "VolumeInUse", "IncorrectModificationState", "InvalidAttachment.NotFound"] {
            assert!(matches!(of(code), ProviderError::Conflict { state: VolumeState::Attached, .. }), "{code}");
        }
        assert!(matches!(of("InvalidInstanceID.NotFound"), ProviderError::Transient(_)));
        let in_use = "Invalid value '/dev/xvdba' for unixDevice. Attachment point /dev/xvdba is already in use";
        assert!(refusal(400, "InvalidParameterValue", in_use).is_of_device_name());
        assert!(!refusal(400, "InvalidParameterValue", "volumeType").is_of_device_name());
    }
}
