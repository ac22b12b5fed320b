//! The instance that this machine is: what its metadata service says, in the second version of it, and what EC2 says.

use roxmltree::Node;
use serde::Deserialize;
use ureq::http::{Method, StatusCode};

use super::credentials::{self, Credentials};
use super::ec2::{child, element, items};
use crate::cloud::http::{Client, Text, sentence};
use crate::cloud::{Hidden, metadata};
use crate::{Named, ProviderError};

/// What asks, for sentences.
const SERVICE: &str = "the metadata service";
/// The longest text that it tells, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// How long the token of a reading counts, in seconds.
const TOKEN_S: &str = "60";
/// The families of instances under Xen, which show disks without serials. There are no new ones. Their `metal` sizes have no
/// hypervisor.
const XEN: &[&str] = &[
    "t1", "t2", "m1", "m2", "m3", "m4", "c1", "c3", "c4", "cc2", "cr1", "r3", "r4", "x1", "x1e", "d2", "h1", "hs1",
    "i2", "i3", "f1", "g2", "g3", "g3s", "p2", "p3",
];

/// Which instance this machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `i-` and hex digits.
    pub instance: String,
    /// Its region.
    pub region: String,
}

/// What EC2 says of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The account that owns it.
    pub account: String,
    /// Its zone.
    pub zone: String,
}

/// A metadata service.
#[derive(Clone, Debug)]
pub struct Metadata {
    client: Client,
    url: String,
}

/// The document that says which instance this is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    instance_id: String,
    region: String,
}

impl Metadata {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// `Invalid`: the URL.
    pub fn new(url: &str) -> Result<Self, ProviderError> {
        Ok(Self { client: metadata::client(url)?, url: url.trim_end_matches('/').to_owned() })
    }

    /// Which instance this is.
    ///
    /// # Errors
    /// `Transient`, with a sentence.
    pub fn identity(&self) -> Result<Identity, ProviderError> {
        let unknown = |why: String| {
            ProviderError::Transient(format!(
                "which instance this machine is cannot be told ({why}): write instance and region in [provider.aws] if there is no metadata service"
            ))
        };
        let token = self.token().map_err(|error| unknown(error.to_string()))?;
        let text = self.read(&token, "/latest/dynamic/instance-identity/document");
        let text = text.map_err(|error| unknown(error.to_string()))?;
        let odd = || unknown("what the metadata service says of it is no identity document".to_owned());
        let document: Document = text.and_then(|text| serde_json::from_str(&text).ok()).ok_or_else(odd)?;
        if !super::is_instance(&document.instance_id) || !super::is_region(&document.region) {
            return Err(odd());
        }
        Ok(Identity { instance: document.instance_id, region: document.region })
    }

    /// The credentials of the instance's role.
    ///
    /// # Errors
    /// `Transient` or `Invalid`, with a sentence.
    pub fn role(&self) -> Result<Credentials, ProviderError> {
        const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
        let none = || {
            ProviderError::Invalid(
                "this instance has no role, and no other credentials are named in [provider.aws]: let the instance have one with the policy of packaging/aws/policy.json".to_owned(),
            )
        };
        let unknown = |error| match error {
            ProviderError::Transient(why) => ProviderError::Transient(format!(
                "the credentials of the instance's role cannot be read ({why}): let the metadata service answer this machine, or name others in [provider.aws]"
            )),
            error => error,
        };
        let token = self.token().map_err(unknown)?;
        let roles = self.read(&token, ROLES).map_err(unknown)?.ok_or_else(none)?;
        let role = roles.lines().next().map(str::trim).filter(|role| !role.is_empty()).ok_or_else(none)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte);
        if !role.bytes().all(is_name) {
            return Err(ProviderError::Transient(
                "the metadata service names a role with signs that are none: check metadata_url".to_owned(),
            ));
        }
        let text = self.read(&token, &format!("{ROLES}{role}")).map_err(unknown)?.ok_or_else(none)?;
        let place = format!("what the metadata service says of the role {role}");
        credentials::of_json(&place, &text).map_err(ProviderError::Transient)
    }

    fn token(&self) -> Result<Hidden, ProviderError> {
        let headers = [("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_S)];
        let token = self.ask(&Method::PUT, "/latest/api/token", &headers)?;
        let fits = |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        token.filter(fits).map(Hidden::new).ok_or_else(|| {
            ProviderError::Transient("the metadata service gives no token: let it answer in version 2".to_owned())
        })
    }

    /// `None`: there is none such.
    fn read(&self, token: &Hidden, path: &str) -> Result<Option<String>, ProviderError> {
        self.ask(&Method::GET, path, &[("x-aws-ec2-metadata-token", token.reveal())])
    }

    fn ask(
        &self,
        method: &Method,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Option<String>, ProviderError> {
        let url = format!("{}{path}", self.url);
        let answer = self.client.exchange(&Text { service: SERVICE, method, url: &url, headers, body: None })?;
        let status = answer.status.as_u16();
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let text = String::from_utf8(answer.text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
        text.filter(|_| answer.status.is_success()).map(Some).ok_or_else(|| {
            ProviderError::Transient(format!("{SERVICE} answers {path} with status {status} and no text of its own"))
        })
    }
}

/// Reads what EC2 says of this machine.
///
/// # Errors
/// `Transient`, with a sentence: it says nothing of it. `Invalid`: it is under Xen.
pub fn read(root: Node<'_, '_>, id: &str) -> Result<Instance, ProviderError> {
    let found = items(root, "reservationSet").find_map(|reservation| {
        let instance = items(reservation, "instancesSet").find(|item| child(*item, "instanceId") == Some(id))?;
        let zone = child(element(instance, "placement")?, "availabilityZone")?;
        Some((child(reservation, "ownerId")?, zone, child(instance, "instanceType")?))
    });
    let is_fit = |text: &str| {
        !text.is_empty()
            && text.len() <= 64
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    match found.filter(|(account, zone, kind)| is_fit(account) && is_fit(zone) && is_fit(kind)) {
        Some((_, _, kind)) if is_xen(kind) => Err(ProviderError::Invalid(format!(
            "this machine is a {} under Xen, where disks show no serials and volumes cannot be told apart: use an instance of the Nitro system",
            sentence(kind)
        ))),
        Some((account, zone, _)) => Ok(Instance { account: account.to_owned(), zone: zone.to_owned() }),
        None => Err(ProviderError::Transient(format!(
            "EC2 does not describe the instance {id}, which this machine is: check what answers for it"
        ))),
    }
}

/// Reads whether an instance is there. One that is terminated is shown for an hour, and does not come back.
///
/// # Errors
/// `Transient`, with a sentence: nothing is said of it.
pub fn state(root: Node<'_, '_>, id: &str) -> Result<Named, ProviderError> {
    let found = items(root, "reservationSet").find_map(|reservation| {
        let instance = items(reservation, "instancesSet").find(|item| child(*item, "instanceId") == Some(id))?;
        child(element(instance, "instanceState")?, "name")
    });
    match found {
        Some("terminated") => Ok(Named::Nobody),
        Some(_) => Ok(Named::Machine { since_ms: None }),
        None => Err(ProviderError::Transient(format!(
            "EC2 was asked for the instance {id} and does not say in which state it is: check what answers for it"
        ))),
    }
}

fn is_xen(kind: &str) -> bool {
    let (family, size) = kind.split_once('.').unwrap_or((kind, ""));
    XEN.contains(&family) && size != "metal"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_gone_once_it_is_terminated() {
        let state = |id: &str, name: &str| {
            let instance = format!("<instanceId>i-1</instanceId><instanceState><name>{name}</name></instanceState>");
            let set = format!("<instancesSet><item>{instance}</item></instancesSet>");
            let text = format!("<r><reservationSet><item>{set}</item></reservationSet></r>");
            super::state(roxmltree::Document::parse(&text).unwrap().root_element(), id)
        };
        for name in ["pending", "running", "stopping", "stopped", "shutting-down", "unheard-of"] {
            assert_eq!(state("i-1", name), Ok(Named::Machine { since_ms: None }), "{name}");
        }
        assert_eq!(state("i-1", "terminated"), Ok(Named::Nobody));
        assert!(matches!(state("i-2", "terminated"), Err(ProviderError::Transient(_))), "it is another one");
    }

    #[test]
    fn instances_under_xen_are_refused() {
        for (kind, expected) in [
            ("m4.large", true),
            ("i3.large", true),
            ("i3.metal", false),
            ("i3en.large", false),
            ("p3dn.24xlarge", false),
            ("m7i.large", false),
            ("t3.micro", false),
        ] {
            assert_eq!(is_xen(kind), expected, "{kind}");
        }
    }
}
