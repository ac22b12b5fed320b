//! Why a store did not do what it was asked.

use std::error::Error as _;
use std::io::{Error, ErrorKind};

/// What stores call it, what that is, and how it is told. The first that is found in the answer counts.
const CODES: &[(&[&str], ErrorKind, &str)] = &[
    (&["NoSuchBucket", "InvalidBucketName"], ErrorKind::InvalidInput, "there is no such bucket"),
    (&["NoSuchUpload"], ErrorKind::StaleNetworkFileHandle, "the store has ended the upload"),
    (
        &["EntityTooSmall", "EntityTooLarge", "InvalidPart"],
        ErrorKind::StaleNetworkFileHandle,
        "the store refuses parts of this size or content",
    ),
    (
        &["ExpiredToken", "TokenRefreshRequired", "RequestExpired", "Request has expired"],
        ErrorKind::PermissionDenied,
        "the credentials have expired",
    ),
    (
        &["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"],
        ErrorKind::PermissionDenied,
        "the store does not know the credentials",
    ),
    (&["AccessDenied"], ErrorKind::PermissionDenied, "the store denies access to the bucket"),
    (&["BadDigest", "InvalidDigest"], ErrorKind::Other, "the store received other bytes than were sent"),
    (&["SlowDown", "ServiceUnavailable"], ErrorKind::Other, "the store is overloaded"),
    (&["QuotaExceeded", "InsufficientStorage"], ErrorKind::StorageFull, "No space left in the store"),
];

/// Where a machine's credentials are asked for if the environment has none.
const METADATA: [&str; 2] = ["/latest/api/token", "/latest/meta-data/iam/"];

/// A client's error in one part of a sentence.
pub(super) fn failed(error: &object_store::Error) -> Error {
    use object_store::Error as Store;
    // What is around the store's answer names keys, and these are users'.
    let (mut texts, mut next) = (Vec::new(), error.source());
    while let Some(of) = next {
        texts.push(of.to_string());
        next = of.source();
    }
    if texts.iter().any(|text| METADATA.iter().any(|path| text.contains(path))) {
        return Error::other("there are no credentials, and the machine's metadata service gives none");
    }
    let text = texts.pop().unwrap_or_default();
    if let Some(known) = known(&text) {
        return known;
    }
    match error {
        Store::NotFound { .. } => Error::new(ErrorKind::NotFound, "nothing is there"),
        Store::AlreadyExists { .. } | Store::Precondition { .. } | Store::NotModified { .. } => {
            Error::new(ErrorKind::AlreadyExists, "another is there")
        }
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
            Error::new(ErrorKind::PermissionDenied, "the store denies access to the bucket")
        }
        Store::NotSupported { .. } | Store::NotImplemented { .. } => {
            Error::new(ErrorKind::Unsupported, "the store cannot do what a target needs")
        }
        _ => Error::other(told(&text)),
    }
}

/// The same of an answer to a signed request.
pub(super) fn refused(status: u16, body: &str) -> Error {
    match known(body) {
        Some(known) => known,
        None if status == 404 => Error::new(ErrorKind::NotFound, "nothing is there"),
        None if matches!(status, 401 | 403) => {
            Error::new(ErrorKind::PermissionDenied, "the store denies access to the bucket")
        }
        None => Error::other(told(&format!("status code: {status}"))),
    }
}

/// It is not reached.
pub(super) fn unreached() -> Error {
    Error::other("the store does not answer")
}

fn known(text: &str) -> Option<Error> {
    let is_code = |code: &&str| {
        text.contains(&format!("<Code>{code}</Code>")) || text.contains(&format!("<Message>{code}</Message>"))
    };
    let (_, kind, told) = CODES.iter().find(|(codes, ..)| codes.iter().any(is_code))?;
    Some(Error::new(*kind, *told))
}

/// What else a store may answer. Its own words may have anything in them.
fn told(text: &str) -> String {
    let status = text.split("status code: ").nth(1).and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
    match status {
        Some(503) => "the store is overloaded".to_owned(),
        Some(status @ 500..) => format!("the store fails with status {status}"),
        Some(status) => format!("the store refuses the request with status {status}"),
        None => "the store does not answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_path_is_not_taken_for_what_the_store_says() {
        #[derive(Debug, thiserror::Error)]
        #[error("Error performing PUT http://store/d/<Code>NoSuchBucket</Code> status code: 503 - {0}")]
        struct Around(#[source] Error);
        let of = |answer: &str| {
            let source = Box::new(Around(Error::other(answer.to_owned())));
            failed(&object_store::Error::Generic { store: "S3", source })
        };
        let refused = of("Server returned non-2xx status code: 418 I'm a teapot: ");
        assert_eq!(refused.to_string(), "the store refuses the request with status 418");
        let expired =
            of("Server returned non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>");
        assert_eq!(expired.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_a_store_answers_is_told_in_words_of_ours() {
        for (status, body, kind, told) in [
            (404, "<Code>NoSuchBucket</Code>", ErrorKind::InvalidInput, "there is no such bucket"),
            (404, "", ErrorKind::NotFound, "nothing is there"),
            (400, "<Code>ExpiredToken</Code>", ErrorKind::PermissionDenied, "the credentials have expired"),
            (
                403,
                "<Code>AccessDenied</Code><Message>Request has expired</Message>",
                ErrorKind::PermissionDenied,
                "the credentials have expired",
            ),
            (403, "", ErrorKind::PermissionDenied, "the store denies access to the bucket"),
            (500, "<Code>InternalError</Code>", ErrorKind::Other, "the store fails with status 500"),
            (503, "", ErrorKind::Other, "the store is overloaded"),
            (418, "\x1b[2J", ErrorKind::Other, "the store refuses the request with status 418"),
        ] {
            let error = refused(status, body);
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, told), "{status} {body}");
        }
        assert_eq!(told("error sending request"), "the store does not answer");
    }
}
