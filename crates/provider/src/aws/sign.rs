//! Signatures of AWS, version 4: of a request by `POST` to the root of a host, which is all that EC2's Query interface takes.

use ring::{digest, hmac};
use time::OffsetDateTime;

use super::credentials::Credentials;

/// What a signature covers is called.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How a body of the Query interface is encoded.
pub const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";
/// The service whose requests are signed.
const SERVICE: &str = "ec2";

/// What is signed.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The host, with its port if that is not the usual one: as the header `Host` has it.
    pub host: &'a str,
    /// The region in which the signature counts.
    pub region: &'a str,
    /// The body.
    pub body: &'a str,
    /// The time, in seconds since 1970-01-01 UTC. The service refuses a time that is minutes from its own.
    pub unix_s: u64,
}

/// The headers that a signature consists of.
#[derive(Clone)]
pub struct Signed {
    /// `X-Amz-Date`.
    pub date: String,
    /// `Authorization`.
    pub authorization: String,
}

/// Signs a request.
#[must_use]
pub fn sign(request: &Request<'_>, credentials: &Credentials) -> Signed {
    let date = timestamp(request.unix_s);
    let day = &date[..8];
    let token = credentials.token.as_ref().map(super::Hidden::reveal);
    let names = if token.is_some() {
        "content-type;host;x-amz-date;x-amz-security-token"
    } else {
        "content-type;host;x-amz-date"
    };
    let token = token.map(|token| format!("x-amz-security-token:{token}\n")).unwrap_or_default();
    let canonical = format!(
        "POST\n/\n\ncontent-type:{FORM}\nhost:{}\nx-amz-date:{date}\n{token}\n{names}\n{}",
        request.host,
        hex(digest::digest(&digest::SHA256, request.body.as_bytes()).as_ref()),
    );
    let scope = format!("{day}/{}/{SERVICE}/aws4_request", request.region);
    let signed = format!(
        "{ALGORITHM}\n{date}\n{scope}\n{}",
        hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref())
    );
    let secret = format!("AWS4{}", credentials.secret.reveal());
    let key = [day, request.region, SERVICE, "aws4_request"]
        .into_iter()
        .fold(secret.into_bytes(), |key, part| mac(&key, part.as_bytes()));
    let authorization = format!(
        "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={}",
        credentials.id,
        hex(&mac(&key, signed.as_bytes()))
    );
    Signed { date, authorization }
}

fn mac(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time such as `20261128T095758Z`.
fn timestamp(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::Hidden;

    fn credentials(id: &str, secret: &str, token: Option<&str>) -> Credentials {
        Credentials { id: id.to_owned(), secret: Hidden::new(secret), token: token.map(Hidden::new), ends_ms: None }
    }

    /// Computed by botocore 1.44.8 (`SigV4Auth`) of the same requests.
    #[test]
    fn signatures_are_those_of_botocore() {
        let request = Request {
            host: "ec2.eu-north-1.amazonaws.com",
            region: "eu-north-1",
            body: "Action=DescribeVolumes&Version=2016-11-15&VolumeId.1=vol-0123456789abcdef0",
            unix_s: 1_795_859_878,
        };
        let signed = sign(&request, &credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None));
        assert_eq!(signed.date, "20261128T095758Z");
        assert_eq!(
            signed.authorization,
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261128/eu-north-1/ec2/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, \
             Signature=128993bdb205ec0f421bbf3e0599b4afc4359b472264fda77dd9475a245510a2"
        );
        let request = Request {
            host: "127.0.0.1:8443",
            region: "us-east-1",
            body: "Action=CreateTags&Tag.1.Value=a%20b%C3%A4",
            unix_s: 1_709_164_799,
        };
        let signed = sign(&request, &credentials("ASIDEXAMPLE", "swordfish", Some("tok/en+with==")));
        assert_eq!(signed.date, "20240228T235959Z");
        assert_eq!(
            signed.authorization,
            "AWS4-HMAC-SHA256 Credential=ASIDEXAMPLE/20240228/us-east-1/ec2/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, \
             Signature=938474311470ec1b20d4cbba38399b2e7e1098d8e0b57b9b564eda46da571de0"
        );
    }
}
