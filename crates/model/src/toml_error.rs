//! Errors in TOML files, for people: file, line and column, what is wrong, why, and how to fix it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::text;
use crate::units::Span;

/// A longer message echoes what somebody wrote.
const MESSAGE_MAX: usize = 700;
/// More of a name is not needed to find it.
const NAME_MAX: usize = 60;

/// What is wrong with a file. One sentence with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line and column, counted from 1; `None` when the whole file is meant.
    pub place: Option<(usize, usize)>,
    /// What is wrong and the remedy.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

/// A file's text, so that errors found later can still point into it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name, for messages.
    pub file: PathBuf,
    /// What it says.
    pub text: String,
}

impl Source {
    /// Reads the file's values.
    ///
    /// # Errors
    /// If the text is not TOML, or not of this shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| {
            let message = error.message();
            if message.contains("duplicate key") {
                let name = error.span().and_then(|span| self.text.get(span)).unwrap_or_default();
                let name = text::shortened(name.trim_matches(['"', '\'', '[', ']', ' ']), NAME_MAX);
                let message = format!("the setting \"{name}\" stands here a second time: remove one of the two");
                return self.at(error.span(), message);
            }
            if message.contains("recurs") {
                let message = "brackets or names are nested too deeply here: no setting is nested like that";
                return self.at(error.span().or_else(|| self.deepest()), message);
            }
            self.at(error.span(), remedy(message))
        })
    }

    /// Where brackets are nested most deeply; of dotted names, the line with the most dots.
    fn deepest(&self) -> Option<Range<usize>> {
        let (mut depth, mut deepest, mut at) = (0usize, 0, None);
        for (index, byte) in self.text.bytes().enumerate() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                b'\n' | b'.' if depth == 0 => {}
                _ => continue,
            }
            if depth > deepest {
                (deepest, at) = (depth, Some(index..index));
            }
        }
        let dots = |line: &str| line.matches('.').count();
        let start = |line: &str| line.as_ptr() as usize - self.text.as_ptr() as usize;
        let dotted = self.text.lines().max_by_key(|line| dots(line)).filter(|line| dots(line) > deepest);
        dotted.map(|line| start(line)..start(line)).or(at)
    }

    /// An error at a span of bytes of the text.
    #[must_use]
    pub fn at(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let place = span.map(|span| {
            // Spans of the parser begin at characters; what does not is shown at the file's beginning.
            let before = self.text.get(..span.start).unwrap_or_default();
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
        });
        let message = text::shortened(&message.into(), MESSAGE_MAX).into_owned();
        ConfigError { file: self.file.clone(), place, message }
    }
}

impl Source {
    /// A number that must be finite and allowed; `message` says what it must be.
    ///
    /// # Errors
    /// The message, where the number stands.
    pub fn number(
        &self,
        given: Option<&Spanned<f64>>,
        allowed: impl Fn(f64) -> bool,
        message: &str,
    ) -> Result<Option<f64>, ConfigError> {
        match given {
            Some(given) if !(given.get_ref().is_finite() && allowed(*given.get_ref())) => {
                Err(self.at(Some(given.span()), message))
            }
            given => Ok(given.map(|given| *given.get_ref())),
        }
    }

    /// A time that must not be so short that a program does nothing else; default and least in milliseconds.
    ///
    /// # Errors
    /// That it is too short, where it stands.
    pub fn at_least(
        &self,
        key: &str,
        given: Option<&Spanned<Span>>,
        (default, least): (u64, u64),
    ) -> Result<Duration, ConfigError> {
        let Some(given) = given else { return Ok(Duration::from_millis(default)) };
        let (time, least) = (given.get_ref().0, Duration::from_millis(least));
        if time < least {
            let message = format!("{key} is below {}: write a longer time, such as \"2 s\"", Span(least));
            return Err(self.at(Some(given.span()), message));
        }
        Ok(time)
    }
}

/// Rewrites the parser's message where it does not help enough: an unknown name is answered with the nearest known.
fn remedy(message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    for (what, kind) in [("unknown field `", "setting"), ("unknown variant `", "value")] {
        let Some(rest) = message.strip_prefix(what) else { continue };
        let Some((name, expected)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return match nearest(name, known.iter().copied()) {
            Some(nearest) => {
                format!("unknown {kind} \"{name}\": did you mean \"{nearest}\"? Known here: {}", known.join(", "))
            }
            None => format!("unknown {kind} \"{name}\": known here: {}", known.join(", ")),
        };
    }
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the setting \"{name}\" is missing here: add it");
    }
    if message == "wanted string or table" {
        return "expected a text in quotes".to_owned();
    }
    found(&message).unwrap_or(message)
}

/// What stands where something else was expected. The parser names Rust's types; people write numbers, texts and sections.
fn found(message: &str) -> Option<String> {
    const EXPECTED: [(&str, &str); 9] = [
        ("i64", "a whole number"),
        ("u32", "a whole number from 0 on"),
        ("u64", "a whole number from 0 on"),
        ("f64", "a number"),
        ("a string", "a text in quotes"),
        ("path string", "a path in quotes"),
        ("a map", "a section"),
        ("a sequence", "a list of sections, [[in double brackets]]"),
        ("a boolean", "true or false"),
    ];
    const FOUND: [(&str, &str); 4] =
        [("integer ", "the number "), ("floating point ", "the number "), ("boolean ", ""), ("string ", "the text ")];
    let (what, expected) = message.strip_prefix("invalid ")?.split_once(": ")?.1.rsplit_once(", expected ")?;
    let expected = match EXPECTED.iter().find(|(rust, _)| *rust == expected) {
        Some((_, plain)) => plain,
        None if expected.starts_with("struct ") => "a section",
        None => expected,
    };
    let what = match what {
        "sequence" => "a list".to_owned(),
        "map" => "a section".to_owned(),
        what => {
            let of_kind = |(rust, plain): &(&str, &str)| Some(format!("{plain}{}", what.strip_prefix(rust)?));
            FOUND.iter().find_map(of_kind).unwrap_or_else(|| what.to_owned()).replace(['`'], "").replace(" as i128", "")
        }
    };
    Some(format!("found {}, expected {expected}", text::shortened(&what, NAME_MAX)))
}

/// The known name nearest to what was written, if it is near at all.
#[must_use]
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.map(|name| (distance(written, name), name)).min()?;
    (distance <= name.len().div_ceil(2).min(4)).then_some(name)
}

/// Edit distance (Levenshtein), by the row.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(128).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the errors are looked at")]
    struct Shape {
        backing: String,
        size: crate::Bytes,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Plain,
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only the errors are looked at")]
    struct Paths {
        path: PathBuf,
        kind: Kind,
    }

    fn error(text: &str) -> String {
        let source = Source { file: "x.toml".into(), text: text.into() };
        source.parse::<Shape>().unwrap_err().to_string()
    }

    #[test]
    fn errors_point_at_the_place_and_name_the_remedy() {
        assert_eq!(
            error("backing = \"a\"\n  bakcing = 1\nsize = \"1 GiB\""),
            "x.toml:2:3: unknown setting \"bakcing\": did you mean \"backing\"? Known here: backing, size"
        );
        assert!(error("backing = \"a\"\nsize = 5").starts_with("x.toml:2:8: 5 has no unit"));
        assert!(error("backing = \"a\"").contains("\"size\" is missing"));
        assert!(error("backing = ").starts_with("x.toml:1:"));
        assert!(error("ä = \"ü\"").starts_with("x.toml:1:1: "));
    }

    #[test]
    fn the_parsers_own_words_are_replaced_and_bounded() {
        let twice = error("backing = \"a\"\nsize = \"1 GiB\"\nsize = \"2 GiB\"");
        assert_eq!(twice, "x.toml:3:1: the setting \"size\" stands here a second time: remove one of the two");
        assert!(error("[backing]\na = 1\n[backing]\n").contains("the setting \"backing\" stands here a second time"));
        let deep = error(&format!("backing = \"a\"\nsize = {}", "[".repeat(5000)));
        assert!(deep.starts_with("x.toml:2:") && deep.contains("nested too deeply"), "{deep}");
        let long = error(&format!("backing = \"a\"\nsize = \"{}\"", "A".repeat(2 << 20)));
        assert!(long.starts_with("x.toml:2:8: ") && long.len() < 1000, "{}", long.len());
    }

    #[test]
    fn what_stands_in_the_wrong_place_is_named_as_people_write_it() {
        let long = format!("{}.5", "9".repeat(300));
        for (written, expected) in [
            ("backing = 0", "x.toml:1:11: found the number 0, expected a text in quotes"),
            ("backing = nan", "found the number NaN, expected a text in quotes"),
            ("backing = true", "found true, expected a text in quotes"),
            ("backing = [1]", "found a list, expected a text in quotes"),
            ("backing = {}", "found a section, expected a text in quotes"),
            ("backing = \"a\"\nsize = []", "x.toml:2:8: found a list, expected a size with its unit, such as"),
            (
                "backing = 99999999999999999999999",
                "found the number 99999999999999999999999, expected a text in quotes",
            ),
        ] {
            let error = error(written);
            assert!(error.contains(expected), "{error}\n expected {expected}");
        }
        assert!(error(&format!("backing = {long}")).len() < 160);
        let path =
            |text: &str| Source { file: "x.toml".into(), text: text.into() }.parse::<Paths>().unwrap_err().to_string();
        assert_eq!(path("path = 5"), "x.toml:1:8: found the number 5, expected a path in quotes");
        assert_eq!(path("path = \"a\"\nkind = 5"), "x.toml:2:8: expected a text in quotes");
    }

    #[test]
    fn nearest_is_near() {
        assert_eq!(nearest("indle", ["idle", "drain"].into_iter()), Some("idle"));
        assert_eq!(nearest("zzzzzzzz", ["idle", "drain"].into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
