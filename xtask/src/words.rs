//! One word an idea: the glossary of `docs/ARCHITECTURE.md` says which words it replaces, and nobody writes those.
//!
//! The last column of the glossary's tables has the replaced words. Documents may not have them, except as code; neither
//! may sources, in names or comments, except for those that are still to be renamed.

use crate::finding::Finding;
use crate::tree::{File, Tree};

const GLOSSARY: &str = "docs/ARCHITECTURE.md";
const SECTION: &str = "## Words";
/// Dated decisions are frozen once merged, and keep the words of their day.
const FROZEN: &str = "docs/decisions/";
/// This file names the words.
const THIS: &str = "xtask/src/words.rs";

/// Replaced words that sources still use. This list only shrinks; `outage_patience` is a key of the configuration.
const STILL_IN_CODE: &[&str] = &["patience"];

/// How many words `…` stands for at most.
const GAP: usize = 4;

/// Forms of a word that no suffix makes.
const IRREGULAR: &[(&str, &[&str])] = &[("give", &["gave", "given"]), ("let", &["letting"])];

/// Finds replaced words, and entries of [`STILL_IN_CODE`] that have served.
pub fn check(tree: &Tree) -> Vec<Finding> {
    findings_of(tree, STILL_IN_CODE)
}

fn findings_of(tree: &Tree, still_in_code: &[&str]) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else {
        return vec![Finding::of(GLOSSARY, "the glossary is gone")];
    };
    let replaced = replaced(&glossary.text);
    if replaced.is_empty() {
        return vec![Finding::of(GLOSSARY, format!("no table under {SECTION:?} names the words that it replaces"))];
    }
    let mut findings = Vec::new();
    for entry in still_in_code.iter().filter(|entry| !replaced.iter().any(|phrase| phrase.text == **entry)) {
        findings.push(Finding::of(THIS, format!("STILL_IN_CODE has {entry:?}, and the glossary does not")));
    }
    let mut used = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.starts_with(FROZEN) && file.path != THIS) {
        let (tokens, is_source) = match file.path.rsplit_once('.').map(|(_, suffix)| suffix) {
            Some("md") => (words_of_document(file), false),
            Some("rs") => (words_of_source(&file.text), true),
            _ => continue,
        };
        for phrase in &replaced {
            let allowed = is_source && still_in_code.contains(&&*phrase.text);
            for line in phrase.lines(&tokens) {
                if allowed {
                    used.push(&*phrase.text);
                } else {
                    let message = format!("\"{}\": the glossary has \"{}\"", phrase.text, phrase.instead);
                    findings.push(Finding::at(&file.path, line, message));
                }
            }
        }
    }
    for entry in still_in_code.iter().filter(|entry| !used.contains(*entry)) {
        if replaced.iter().any(|phrase| phrase.text == **entry) {
            findings.push(Finding::of(THIS, format!("no source has {entry:?} any more: remove it from STILL_IN_CODE")));
        }
    }
    findings
}

/// A replaced word or phrase, and what the glossary has instead.
struct Phrase {
    text: String,
    instead: String,
}

/// A lowercase word and its line, from 0.
type Token = (usize, String);

impl Phrase {
    /// The lines on which it begins.
    fn lines(&self, tokens: &[Token]) -> Vec<usize> {
        let words: Vec<&str> = self.text.split(' ').collect();
        (0..tokens.len()).filter(|at| begins(&words, &tokens[*at..])).map(|at| tokens[at].0).collect()
    }
}

/// Whether tokens begin with these words, where `…` stands for up to [`GAP`] tokens.
fn begins(words: &[&str], tokens: &[Token]) -> bool {
    match words {
        [] => true,
        ["…", rest @ ..] => {
            let words = tokens.iter().take(GAP).take_while(|(_, token)| !token.is_empty()).count();
            (0..=words).any(|skipped| begins(rest, &tokens[skipped..]))
        }
        [word, rest @ ..] => {
            tokens.first().is_some_and(|(_, token)| is_form(token, word)) && begins(rest, &tokens[1..])
        }
    }
}

/// Whether a token is the word or an inflection of it.
fn is_form(token: &str, word: &str) -> bool {
    let stem = word.strip_suffix('e').unwrap_or(word);
    let is_regular = [(word, "s"), (stem, "es"), (stem, "ed"), (stem, "ing")]
        .iter()
        .any(|(stem, suffix)| token.strip_prefix(stem) == Some(*suffix));
    token == word || is_regular || IRREGULAR.iter().any(|(of, forms)| *of == word && forms.contains(&token))
}

/// The last columns of the glossary's tables, headings aside.
fn replaced(glossary: &str) -> Vec<Phrase> {
    let section = glossary.split_once(SECTION).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut phrases = Vec::new();
    let mut in_rows = false;
    for line in section.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|rest| rest.strip_suffix('|')) else {
            in_rows = line.starts_with("|-");
            continue;
        };
        if let (true, Some((cells, last))) = (in_rows, row.rsplit_once('|')) {
            let instead = cells.split('|').next().unwrap_or_default().trim();
            phrases.extend(
                last.split(',')
                    .map(str::trim)
                    .filter(|text| !text.is_empty())
                    .map(|text| Phrase { text: text.to_owned(), instead: instead.to_owned() }),
            );
        }
    }
    phrases
}

/// The words of a document: neither its code, nor where links lead, nor the glossary itself.
fn words_of_document(file: &File) -> Vec<Token> {
    let (mut tokens, mut in_block, mut in_span, mut in_glossary) = (Vec::new(), false, false, false);
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if line.starts_with("## ") {
            in_glossary = file.path == GLOSSARY && line == SECTION;
        }
        if in_block || in_glossary {
            continue;
        }
        if line.is_empty() {
            in_span = false;
        }
        for (at, part) in line.split('`').enumerate() {
            if at > 0 {
                in_span = !in_span;
            }
            if !in_span {
                push_words(&mut tokens, index, &without_targets(part), false);
            }
        }
    }
    tokens
}

fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push(' ');
        kept.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    kept
}

/// The words of a source, in names (`given_back`, `GivenBack`), comments and strings alike.
fn words_of_source(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let is_comment_sign = |letter: char| letter == '/' || letter == '!' || letter == ' ';
        push_words(&mut tokens, index, line.trim_start_matches(is_comment_sign), true);
    }
    tokens
}

fn push_words(tokens: &mut Vec<Token>, line: usize, text: &str, is_source: bool) {
    let mut word = String::new();
    let mut was_lowercase = false;
    for letter in text.chars().chain([' ']) {
        let begins_word = is_source && was_lowercase && letter.is_uppercase();
        if (begins_word || !letter.is_alphabetic()) && !word.is_empty() {
            tokens.push((line, std::mem::take(&mut word)));
        }
        if letter.is_alphabetic() {
            word.extend(letter.to_lowercase());
        } else if is_source && !matches!(letter, ' ' | '_' | '-' | '\'') {
            // No phrase goes on behind an operator or a bracket.
            tokens.push((line, String::new()));
        }
        was_lowercase = letter.is_lowercase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "# A\n\n## Words\n\n| word | means | replaces |\n|---|---|---|\n| delete | end `it` | give … back |\n\
        | volume | a disk | |\n\n| write | not |\n|---|---|\n| remedy | mend |\n| owner thread | keeper |\n\n## Code map\n";

    fn found(path: &str, text: &str, still_in_code: &[&str]) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = vec![file(GLOSSARY, TABLES), file(path, text)];
        findings_of(&Tree { root: "/".into(), files }, still_in_code).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn documents_have_no_replaced_word_in_any_form() {
        for text in [
            "It gives the caching\nvolume back.\n",
            "It was given back.\n",
            "What mends it.\n",
            "The mending `of` it.\n",
            "Two Keepers.\n",
            "[a mend](a.md)\n",
        ] {
            let found = found("docs/A.md", text, &["mend", "keeper"]);
            assert!(found.iter().any(|finding| finding.starts_with("docs/A.md:1: ")), "{text:?} gave {found:?}");
        }
    }

    #[test]
    fn code_links_frozen_decisions_and_the_glossary_may_have_them() {
        let text = "`mend` and `a\nkeeper` at [it](mend.md)\n\n```\nmend\n```\nAmend, keep, give it to me when you are there, back.\n";
        assert_eq!(found("docs/A.md", text, &[]), Vec::<String>::new());
        assert_eq!(found("docs/decisions/0001-mend.md", "A mend.\n", &[]), Vec::<String>::new());
    }

    #[test]
    fn sources_have_no_replaced_word_but_those_still_to_be_renamed() {
        let text = "fn given_back(of: OwnerKeeper) {} // the mend\n";
        assert_eq!(found("crates/a/src/a.rs", text, &["give … back", "keeper", "mend"]), Vec::<String>::new());
        let found = found("crates/a/src/a.rs", text, &[]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("the glossary has \"delete\""), "{found:?}");
    }

    #[test]
    fn the_list_of_words_to_be_renamed_only_shrinks() {
        let found = found("crates/a/src/a.rs", "fn f() {}\n", &["mend", "habit"]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("the glossary does not"), "{found:?}");
        assert!(found[1].contains("no source has \"mend\""), "{found:?}");
    }
}
