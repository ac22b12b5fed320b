//! Text that others wrote, made fit for people, terminals and logs: it stays where it is put, and what is read is what
//! is there.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character only shows itself: no control character (C0, DEL, C1), which ends a line or commands a terminal, no
/// other end of a line, and none that changes the direction of what follows (Unicode's `Bidi_Control`).
#[must_use]
pub const fn is_plain(character: char) -> bool {
    !matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// One line: what is not plain is written as `\n` or `\u{1b}`.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_plain, |character, escaped| escaped.extend(character.escape_default()))
}

/// Lines: as [`line`], and line feeds and tabs stay.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    let stays = |character| is_plain(character) || matches!(character, '\n' | '\t');
    escaped(text, stays, |character, escaped| escaped.extend(character.escape_default()))
}

/// A JSON document of the same content: what is not plain is written as `\u001b`. It can only be in its strings, except
/// for the white space between its parts, which stays.
#[must_use]
pub fn json(document: &str) -> Cow<'_, str> {
    let stays = |character| is_plain(character) || matches!(character, '\n' | '\t' | '\r');
    escaped(document, stays, |character, escaped| {
        // All of them are below U+10000. Writing to a string does not fail.
        let _ = write!(escaped, "\\u{:04x}", u32::from(character));
    })
}

/// At most about so many characters: of what is longer, the beginning and the end, where a message names its place and the
/// remedy.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let count = text.chars().count();
    if count <= most {
        return Cow::Borrowed(text);
    }
    let (first, last) = (most * 2 / 3, most / 3);
    let beginning: String = text.chars().take(first).collect();
    let end: String = text.chars().skip(count - last).collect();
    Cow::Owned(format!("{beginning} [… {} characters …] {end}", count - first - last))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if stays(character) {
            escaped.push(character);
        } else {
            escape(character, &mut escaped);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_plain_characters_is_left() {
        let evil = "a\nb\r\x1b[2J\x07\x7f\u{9b}31m\u{202e}gpj\u{2066}\u{2028}\u{61c}\t";
        assert_eq!(line(evil), "a\\nb\\r\\u{1b}[2J\\u{7}\\u{7f}\\u{9b}31m\\u{202e}gpj\\u{2066}\\u{2028}\\u{61c}\\t");
        assert_eq!(lines("a\n\tb\r\x1bc"), "a\n\tb\\r\\u{1b}c");
        assert_eq!(json("{\n \"a\": \"\x7f\u{202e}\"}\r\n"), "{\n \"a\": \"\\u007f\\u202e\"}\r\n");
        for character in (0..=0x10_ffff).filter_map(char::from_u32) {
            let text = String::from(character);
            assert!(line(&text).chars().all(is_plain), "{character:?}");
            assert!(!character.is_control() || !is_plain(character), "{character:?}");
        }
    }

    #[test]
    fn long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(shortened("ä".repeat(30).as_str(), 30), "ä".repeat(30));
        let long = format!("place: {}; remedy", "ü".repeat(1 << 20));
        let short = shortened(&long, 90);
        assert!(short.chars().count() < 130, "{short}");
        assert!(short.starts_with("place: ü") && short.ends_with("ü; remedy"), "{short}");
        assert!(short.contains("[… 1048501 characters …]"), "{short}");
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "device data: 10 GiB", "größer, 大きい, גדול, 👩‍👩‍👧", "C:\\n \\u{1b} \"quoted\""]
        {
            for escaped in [line(text), lines(text), json(text)] {
                assert!(matches!(escaped, Cow::Borrowed(same) if same == text), "{text}");
            }
        }
    }
}
