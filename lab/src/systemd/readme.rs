//! What the README tells a user to do, read from the README itself.

use anyhow::{Context, bail};

/// The heading of the part that makes a disk elastic.
const HEADING: &str = "## Make a disk elastic, and plain again";
/// What begins the way back in it.
const WAY_BACK: &str = "**To use the plain disk again";

/// One thing that a user does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Root runs this.
    Run(String),
    /// This file gets this content.
    Write { file: String, text: String },
    /// This line takes the place of the one with the same mount point.
    Mount { file: String, line: String },
}

/// What makes the disk elastic, and what makes it plain again.
pub struct Steps {
    pub there: Vec<Act>,
    pub back: Vec<Act>,
}

/// Reads them.
pub fn steps(readme: &str) -> anyhow::Result<Steps> {
    let part = readme.split_once(HEADING).with_context(|| format!("the README has no \"{HEADING}\""))?.1;
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let (there, back) = part.split_once(WAY_BACK).with_context(|| format!("the README has no \"{WAY_BACK}\""))?;
    Ok(Steps { there: acts(there)?, back: acts(back)? })
}

/// The code blocks of a text, each with the file that the words before it name.
fn acts(text: &str) -> anyhow::Result<Vec<Act>> {
    let (mut acts, mut words, mut lines) = (Vec::new(), String::new(), text.lines());
    while let Some(line) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            words = words + line + "\n";
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let within = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
        let block: Vec<&str> = within.map(|line| line.get(indent..).unwrap_or_default()).collect();
        let file = || named(&words).with_context(|| format!("no file is named before: {}", block.join(" ")));
        match language {
            "console" => acts.extend(block.iter().filter_map(|line| line.strip_prefix("# ")).map(command)),
            "toml" | "ini" => acts.push(Act::Write { file: file()?, text: block.join("\n") + "\n" }),
            "" => {
                let file = file()?;
                acts.extend(block.iter().map(|line| Act::Mount { file: file.clone(), line: (*line).to_owned() }));
            }
            other => bail!("what to do with a block of {other} nobody knows"),
        }
        words.clear();
    }
    Ok(acts)
}

/// A command without the remark behind it.
fn command(line: &str) -> Act {
    Act::Run(line.split_once("  #").map_or(line, |(command, _)| command).trim_end().to_owned())
}

/// The last path of a file in `/etc` between backticks.
fn named(words: &str) -> Option<String> {
    words.split('`').skip(1).step_by(2).filter(|word| word.starts_with("/etc/")).last().map(str::to_owned)
}

impl Act {
    /// What does it in a shell.
    pub fn script(&self) -> String {
        match self {
            // The user is in the source when it is installed, and anywhere else later.
            Self::Run(command) => format!("cd /source; {command}"),
            Self::Write { file, text } => {
                format!("mkdir -p $(dirname {file}); cat >{file} <<'END-OF-FILE'\n{text}END-OF-FILE")
            }
            Self::Mount { file, line } => {
                let place = line.split_whitespace().nth(1).unwrap_or_default();
                format!(
                    "sed -i '\\|[[:space:]]{place}[[:space:]]|d' {file}; cat >>{file} <<'END-OF-FILE'\n{line}\nEND-OF-FILE"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_says_how_to_make_a_disk_elastic_and_plain_again() {
        let steps = steps(include_str!("../../../README.md")).unwrap();
        let runs = |acts: &[Act], text: &str| acts.iter().any(|act| matches!(act, Act::Run(run) if run.contains(text)));
        assert!(runs(&steps.there, "make install") && runs(&steps.there, "systemctl enable --now surgetank"));
        assert!(runs(&steps.back, "surgetank detach data --wait"));
        let wrote =
            |acts: &[Act], name: &str| acts.iter().any(|act| matches!(act, Act::Write { file, .. } if file == name));
        assert!(wrote(&steps.there, "/etc/surgetank/surgetank.toml"));
        let line = steps.there.iter().find_map(|act| match act {
            Act::Mount { file, line } if file == "/etc/fstab" => Some(line),
            _ => None,
        });
        assert!(line.is_some_and(|line| line.contains("/srv/data")), "{:?}", steps.there);
    }

    #[test]
    fn blocks_belong_to_the_file_that_was_named_last() {
        let text = "1. Do:\n\n   ```console\n   # one two   # a remark\n   $ not root\n   ```\n\n2. In `/etc/a` or `b`:\n\n   \
                    ```toml\n   x = 1\n     y\n   ```\n";
        let expected =
            [Act::Run("one two".to_owned()), Act::Write { file: "/etc/a".to_owned(), text: "x = 1\n  y\n".to_owned() }];
        assert_eq!(acts(text).unwrap(), expected);
        assert!(acts("```toml\nx\n```\n").is_err());
    }
}
