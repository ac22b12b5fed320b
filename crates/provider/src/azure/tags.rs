//! Tags as Azure takes them: 50 of a disk, keys of 512 characters without some signs and without regard to case, values of 256.

use serde_json::Value;

use crate::{ProviderError, Tags};

/// How many a disk may have.
const COUNT_MAX: usize = 50;
/// The longest key, in characters.
const KEY_MAX: usize = 512;
/// The longest value, in characters.
const VALUE_MAX: usize = 256;
/// What no key has.
const FORBIDDEN: &[char] = &['<', '>', '%', '&', '\\', '?', '/'];
/// How our keys begin, all of which are in lower case.
const OURS: &str = "surgetank:";
/// How no key begins.
const RESERVED: &[&str] = &["microsoft", "azure", "windows"];

/// Whether Azure takes a key.
fn is_key(key: &str) -> bool {
    let is_reserved = |word: &&str| key.get(..word.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(word));
    !key.is_empty()
        && key.chars().count() <= KEY_MAX
        && !key.contains(FORBIDDEN)
        && !key.contains(char::is_control)
        && key.trim() == key
        && !RESERVED.iter().any(is_reserved)
}

/// Sets a tag or removes it.
///
/// # Errors
/// `Invalid`: Azure has no such tags.
pub fn set(tags: &mut Tags, key: &str, value: Option<&str>) -> Result<(), ProviderError> {
    let fits = |value: &str| value.chars().count() <= VALUE_MAX && !value.contains(char::is_control);
    if value.is_some_and(|value| !is_key(key) || !fits(value)) {
        return Err(ProviderError::Invalid(format!(
            "the tag {key:?} with {} characters of value is none that Azure takes: use a key without {} and a value of at most {VALUE_MAX} characters, neither with control characters",
            value.map_or(0, |value| value.chars().count()),
            FORBIDDEN.iter().collect::<String>()
        )));
    }
    // Somebody else's key in other letters is the same key there.
    tags.retain(|there, _| !there.eq_ignore_ascii_case(key));
    if let Some(value) = value {
        tags.insert(spell(key), value.to_owned());
    }
    if tags.len() > COUNT_MAX {
        return Err(ProviderError::Invalid(format!(
            "the disk has {COUNT_MAX} tags already, and Azure takes no more: remove some that are not of surgetank"
        )));
    }
    Ok(())
}

/// The value of a tag of what is listed, in whatever letters somebody else has written its key: to Azure it is the same.
#[must_use]
pub fn of_body<'a>(body: &'a Value, key: &str) -> Option<&'a str> {
    let mut tags = body["tags"].as_object().into_iter().flatten();
    tags.find(|(there, _)| there.eq_ignore_ascii_case(key)).and_then(|(_, value)| value.as_str())
}

/// A key as we write it, if it is one of ours.
fn spell(key: &str) -> String {
    let is_ours = key.get(..OURS.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(OURS));
    if is_ours { key.to_ascii_lowercase() } else { key.to_owned() }
}

/// Tags with our keys in our letters, whatever somebody else has made of them.
#[must_use]
pub fn spelled(tags: Tags) -> Tags {
    tags.into_iter().map(|(key, value)| (spell(&key), value)).collect()
}

/// Those that can be told to people: in one line each, of which others' keys may be longer than values.
#[must_use]
pub fn told(tags: &Tags) -> Tags {
    let is_line = |text: &String| !text.contains(char::is_control) && text.chars().count() <= VALUE_MAX;
    let fit = tags.iter().filter(|(key, value)| is_line(key) && is_line(value));
    fit.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag;

    #[test]
    fn what_the_daemon_says_of_volumes_fits() {
        let device = format!("read-cache:{}", "X".repeat(32));
        for (key, value) in [
            (tag::OWNER, "0123456789abcdef0123456789abcdef"),
            (tag::TOKEN, "0123456789abcdef-0"),
            (tag::DEVICE, &*device),
            (tag::DIRTY_EPOCH, "18446744073709551615"),
            (tag::STRIPE, "0123456789abcdef0123456789abcdef-0-16"),
            (tag::ARRAY, "0123456789abcdef0123456789abcdef"),
            (tag::SLOT, "3"),
        ] {
            let mut tags = Tags::new();
            set(&mut tags, key, Some(value)).unwrap();
            assert_eq!(spelled(Tags::from([(key.to_ascii_uppercase(), value.to_owned())])), tags);
            assert_eq!(told(&tags), Tags::from([(key.to_owned(), value.to_owned())]));
            set(&mut tags, key, None).unwrap();
            assert!(tags.is_empty());
        }
    }

    #[test]
    fn what_azure_does_not_take_is_refused_and_changes_nothing() {
        let mut tags = Tags::from([("Env".to_owned(), "x\ny".to_owned())]);
        let (long, longer) = ("x".repeat(256), "x".repeat(257));
        for (key, value) in [
            ("", "v"),
            ("a/b", "v"),
            ("a%b", "v"),
            ("a?b", "v"),
            ("a&b", "v"),
            ("a<b", "v"),
            ("a\\b", "v"),
            ("a\nb", "v"),
            (" a", "v"),
            ("Azure:x", "v"),
            ("windows", "v"),
            (&*"k".repeat(513), "v"),
            ("k", &*longer),
            ("k", "a\nb"),
        ] {
            assert!(matches!(set(&mut tags, key, Some(value)), Err(ProviderError::Invalid(_))), "{key:?}");
            assert_eq!(tags.len(), 1);
        }
        assert!(told(&tags).is_empty(), "people are told one line");
        assert_eq!(set(&mut tags, "k", Some(&long)), Ok(()));
        assert_eq!(set(&mut tags, "env", Some("b")), Ok(()));
        assert_eq!(tags.keys().collect::<Vec<_>>(), ["env", "k"], "one key in whatever letters");
        let mut full: Tags = (0..50).map(|number| (number.to_string(), String::new())).collect();
        assert!(set(&mut full, "7", Some("x")).is_ok() && set(&mut full, "more", Some("x")).is_err());
    }
}
