//! Tags as labels of Compute Engine, which take lower-case letters, digits, `-` and `_` alone, and 63 of them at most.
//!
//! `surgetank:owner` is the label `surgetank-owner`. Every other sign that a label does not take is `_` and two hex digits, and `_`
//! is `__`. A value that is too long goes on in labels of its own: `KEY_z1`, `KEY_z2` and so on, which no key is written as.

use std::collections::BTreeMap;

use crate::{ProviderError, Tags};

/// Labels of a disk.
pub type Labels = BTreeMap<String, String>;

/// The longest key or value.
const LENGTH_MAX: usize = 63;
/// How many labels a value may take.
const PARTS_MAX: usize = 10;
/// How our own keys begin, and their labels.
const OURS: (&str, &str) = ("surgetank:", "surgetank-");

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => escaped.push(char::from(byte)),
            b'_' => escaped.push_str("__"),
            other => escaped.push_str(&format!("_{other:02x}")),
        }
    }
    escaped
}

/// The text that was escaped; `None`: none was.
fn unescaped(label: &str) -> Option<String> {
    let (mut bytes, mut text) = (label.bytes(), Vec::with_capacity(label.len()));
    while let Some(byte) = bytes.next() {
        let byte = match (byte, byte == b'_') {
            (byte, false) => byte,
            (_, true) => match bytes.next()? {
                b'_' => b'_',
                high => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    u8::try_from(digit(high)? * 16 + digit(bytes.next()?)?).ok()?
                }
            },
        };
        text.push(byte);
    }
    // Each text is escaped in one way, so that no two labels are the same key. People are told of tags, so they are one line.
    let text = String::from_utf8(text).ok().filter(|text| !text.contains(char::is_control))?;
    (escaped(&text) == label).then_some(text)
}

/// The label of a key.
fn label(key: &str) -> Option<String> {
    let label = match (key.strip_prefix(OURS.0), key.strip_prefix(OURS.1)) {
        (Some(rest), _) => format!("{}{}", OURS.1, escaped(rest)),
        // A key that reads as the label of one of ours.
        (None, Some(rest)) => format!("surgetank_2d{}", escaped(rest)),
        (None, None) => escaped(key),
    };
    let is_one = label.starts_with(|first: char| first.is_ascii_lowercase()) && label.len() <= LENGTH_MAX - "_z9".len();
    (is_one && !key.contains(char::is_control)).then_some(label)
}

fn key(label: &str) -> Option<String> {
    let key = match (label.strip_prefix(OURS.1), label.strip_prefix("surgetank_2d")) {
        (Some(rest), _) => format!("{}{}", OURS.0, unescaped(rest)?),
        (None, Some(rest)) => format!("{}{}", OURS.1, unescaped(rest)?),
        (None, None) => unescaped(label)?,
    };
    (self::label(&key).as_deref() == Some(label)).then_some(key)
}

fn part(label: &str, number: usize) -> String {
    if number == 0 { label.to_owned() } else { format!("{label}_z{number}") }
}

/// The labels of a tag.
fn parts(key: &str, value: &str) -> Option<Vec<(String, String)>> {
    let (label, value) = (label(key)?, escaped(value));
    let mut parts: Vec<(String, String)> = Vec::new();
    let mut rest = &*value;
    while parts.is_empty() || !rest.is_empty() {
        // What is escaped is ASCII.
        let (now, then) = rest.split_at(rest.len().min(LENGTH_MAX));
        parts.push((part(&label, parts.len()), now.to_owned()));
        rest = then;
    }
    (parts.len() <= PARTS_MAX).then_some(parts)
}

/// Sets a tag or removes it.
///
/// # Errors
/// `Invalid`: no labels can say it.
pub fn set(labels: &mut Labels, key: &str, value: Option<&str>) -> Result<(), ProviderError> {
    let wrong = || {
        ProviderError::Invalid(format!(
            "the tag {key:?} with {} characters of value does not fit into labels of Compute Engine: use a shorter one that begins with a lower-case letter and has no control characters",
            value.map_or(0, str::len)
        ))
    };
    if value.is_some_and(|value| value.contains(char::is_control)) {
        return Err(wrong());
    }
    let new = match value {
        Some(value) => parts(key, value).ok_or_else(wrong)?,
        None => Vec::new(),
    };
    if let Some(label) = label(key) {
        (0..PARTS_MAX).for_each(|number| drop(labels.remove(&part(&label, number))));
    }
    labels.extend(new);
    Ok(())
}

/// The tags that labels say. What others have written in another way is none.
#[must_use]
pub fn tags(labels: &Labels) -> Tags {
    let read = |(label, first): (&String, &String)| {
        let rest = (1..PARTS_MAX).map_while(|number| labels.get(&part(label, number)));
        let value: String = std::iter::once(first).chain(rest).map(String::as_str).collect();
        Some((key(label)?, unescaped(&value)?))
    };
    labels.iter().filter_map(read).collect()
}

/// Whether there is a label of a tag, whatever it says.
#[must_use]
pub fn has(labels: &Labels, tag: &str) -> bool {
    label(tag).is_some_and(|label| labels.contains_key(&label))
}

/// The filter of a list that lets pass at least the disks with this tag; `None`: no disk has it.
#[must_use]
pub fn filter(key: &str, value: &str) -> Option<String> {
    let parts = parts(key, value)?;
    let (label, value) = parts.first()?;
    // Quoted, as a value of digits would be a number.
    Some(format!("labels.{label} = \"{value}\""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tag;

    fn is_label(text: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        text.len() <= LENGTH_MAX && text.bytes().all(allowed)
    }

    #[test]
    fn what_the_daemon_says_of_volumes_fits() {
        let device = format!("read-cache:{}", "X".repeat(32));
        let stripe = format!("{}-0-16", "f".repeat(32));
        for (key, value, label) in [
            (tag::OWNER, "0123456789abcdef0123456789abcdef", "surgetank-owner"),
            (tag::DEVICE, "array:Data.1_x", "surgetank-device"),
            (tag::DEVICE, &*device, "surgetank-device"),
            (tag::DIRTY_EPOCH, "18446744073709551615", "surgetank-dirty-epoch"),
            (tag::STRIPE, &*stripe, "surgetank-stripe"),
            (tag::SLOT, "3", "surgetank-slot"),
        ] {
            let mut labels = Labels::new();
            set(&mut labels, key, Some(value)).unwrap();
            assert!(labels.contains_key(label) && labels.iter().all(|(key, value)| is_label(key) && is_label(value)));
            assert_eq!(tags(&labels), Tags::from([(key.to_owned(), value.to_owned())]));
        }
        assert_eq!(filter(tag::SLOT, "3").unwrap(), "labels.surgetank-slot = \"3\"");
        assert_eq!(filter(tag::DEVICE, "array:A").unwrap(), "labels.surgetank-device = \"array_3a_41\"");
    }

    #[test]
    fn a_shorter_value_leaves_nothing_of_a_longer_one_and_other_labels_stay() {
        let foreign = [("env", "prod"), ("my_label", "x"), ("goog-terraform", "\u{e4}"), ("surgetank_zz", "x")];
        let mut labels: Labels = foreign.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let before = labels.clone();
        set(&mut labels, tag::DEVICE, Some(&"X".repeat(100))).unwrap();
        assert!(labels.contains_key("surgetank-device_z4"));
        set(&mut labels, tag::DEVICE, Some("x")).unwrap();
        assert_eq!(labels.len(), before.len() + 1);
        set(&mut labels, tag::DEVICE, None).unwrap();
        assert_eq!(labels, before);
        assert_eq!(tags(&labels), Tags::from([("env".to_owned(), "prod".to_owned())]), "what is readable");
        for (key, value) in [("K", "v"), ("", "v"), ("1", "v"), ("k", "a\nb"), ("k", &*"X".repeat(1000))] {
            assert!(matches!(set(&mut labels, key, Some(value)), Err(ProviderError::Invalid(_))), "{key:?}");
        }
        assert_eq!(labels, before);
        assert_eq!(filter("K", "v"), None);
    }

    proptest! {
        /// The promise of the encoding: each tag is read as it was written, whatever else is there, and no two are one label.
        #[test]
        fn tags_are_read_as_they_were_written(
            written in prop::collection::btree_map("[a-z][ -~ä-ö]{0,11}|surgetank[:_-][ -~]{0,9}", "[ -~ä-ö]{0,80}", 0..6),
        ) {
            let mut labels = Labels::new();
            for (key, value) in &written {
                set(&mut labels, key, Some(value)).unwrap();
            }
            prop_assert!(labels.iter().all(|(key, value)| is_label(key) && is_label(value)));
            prop_assert_eq!(&tags(&labels), &written);
            for (key, value) in &written {
                let (label, first) = parts(key, value).unwrap().swap_remove(0);
                prop_assert_eq!(&labels[&label], &first, "the filter lets it pass");
                set(&mut labels, key, None).unwrap();
            }
            prop_assert!(labels.is_empty());
        }

        /// No label of others is taken for a tag that would be written in another way.
        #[test]
        fn a_label_is_one_tag_or_none(label in "[a-z][a-z0-9_-]{0,59}", value in "[a-z0-9_-]{0,63}") {
            let labels = Labels::from([(label.clone(), value.clone())]);
            if let Some((key, read)) = tags(&labels).pop_first() {
                prop_assert_eq!(parts(&key, &read), Some(vec![(label, value)]));
            }
        }
    }
}
