//! Where a bucket is: `s3://BUCKET[/PREFIX]`.

use std::str::FromStr;

const SCHEME: &str = "s3://";
/// Stores that are known, and why they are no targets.
const OTHERS: [(&str, &str); 2] = [
    ("gs://", "Google Cloud Storage is no target yet, since nothing has been run against it"),
    ("az://", "Azure is no target, since its client cannot mark what it uploads"),
];

/// A bucket, and what the keys of a target in it begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(super) bucket: String,
    pub(super) prefix: String,
}

/// Why a text is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: {1}: write s3://BUCKET/PREFIX")]
pub struct BadAddress(String, &'static str);

/// Whether a target is a bucket, or is meant to be one.
#[must_use]
pub fn is_address(target: &str) -> bool {
    // A directory is named in full.
    !target.starts_with('/') && target.contains("://")
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let wrong = |why| BadAddress(text.to_owned(), why);
        let unknown = || {
            let other = OTHERS.iter().find(|(of, _)| text.starts_with(of));
            wrong(other.map_or("no such store is known", |(_, why)| why))
        };
        let rest = text.strip_prefix(SCHEME).ok_or_else(unknown)?.trim_end_matches('/');
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) {
            return Err(wrong("a bucket's name has small letters, digits, dots and dashes"));
        }
        let is_name = |name: &str| !(name.is_empty() || name == "." || name == ".." || name.contains(char::is_control));
        if !prefix.is_empty() && !prefix.split('/').all(is_name) {
            return Err(wrong("its prefix has an empty name, `.`, `..` or a control character"));
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written_in_one_way() {
        for (text, written) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://my-bucket.2/", "s3://my-bucket.2"),
            ("s3://c/a b/ü/", "s3://c/a b/ü"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), written);
            assert!(is_address(text));
        }
        for wrong in ["s3://", "s3:///x", "ftp://b", "s3://b//x", "s3://b/../x", "s3://B", "s3://b?endpoint=x", "/d"] {
            let told = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(told.starts_with(&format!("`{wrong}`: ")) && told.contains("write s3://BUCKET/PREFIX"), "{told}");
        }
        for (other, why) in [("gs://b/run1", "Google Cloud Storage is no target yet"), ("az://c", "Azure is no target")]
        {
            assert!(is_address(other) && other.parse::<Address>().unwrap_err().to_string().contains(why), "{other}");
        }
        assert!(!is_address("/s3://b") && !is_address("relative/path"));
    }
}
