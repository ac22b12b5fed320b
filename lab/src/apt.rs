//! Debian's archive, by the configuration that the host's apt has of it: packages are downloaded, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::interrupt::output;

/// After the release that the lab is built on: what has been released, backported and uploaded since. By their own names, since
/// a mirror may be late with the others (`stable`).
const SUITES: [&str; 3] = ["trixie", "trixie-backports", "sid"];

/// An apt to ask: the host's own, or one with lists of its own, which nothing of the host's sees.
#[derive(Debug, Default)]
pub struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// What the host's own sources offer, by the lists that the host has.
    pub fn of_the_host() -> Self {
        Self::default()
    }

    /// What the newer suites of the same archive offer. Their lists are fetched into a directory, from where the host fetches
    /// its own release, and by the same keys.
    pub fn of_newer_suites(directory: &Path) -> anyhow::Result<Self> {
        let source = Source::of(&codename()?)?;
        let place = |name: &str| directory.join(name).display().to_string();
        for made in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(made)).context("cannot make a directory")?;
        }
        fs::write(directory.join("status"), "").context("cannot write to the cache")?;
        fs::write(directory.join("suites.sources"), source.stanza(&SUITES)).context("cannot write to the cache")?;
        let options = [
            format!("Dir::State={}", directory.display()),
            format!("Dir::State::lists={}", place("lists")),
            format!("Dir::State::status={}", place("status")),
            format!("Dir::Cache={}", place("cache")),
            format!("Dir::Etc::sourcelist={}", place("suites.sources")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            // The directory is root's alone.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let apt = Self { options: options.into() };
        let suites = SUITES.join(", ");
        output(apt.command("apt-get").args(["--quiet", "--error-on=any", "update"]))
            .with_context(|| format!("cannot fetch the lists of Debian's {suites} from the host's mirror"))?;
        Ok(apt)
    }

    /// Packages whose names match a regular expression.
    pub fn search(&self, pattern: &str) -> anyhow::Result<Vec<String>> {
        let found = output(self.command("apt-cache").args(["search", "--names-only", pattern]))
            .context("no apt to ask for a package")?;
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// Downloads packages into a directory.
    pub fn download(&self, packages: &[String], into: &Path) -> anyhow::Result<()> {
        let mut download = self.command("apt-get");
        output(download.args(["--quiet", "download"]).args(packages).current_dir(into))
            .map(drop)
            .with_context(|| format!("cannot download {}", packages.join(", ")))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }
}

/// The packages that have been downloaded into a directory.
pub fn packages_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "deb"));
    Ok(files)
}

/// The host's own sources of a release, in the form of one file.
pub fn sources(release: &str) -> anyhow::Result<String> {
    let (stanzas, lines) = configured(release);
    match (stanzas.is_empty(), lines.is_empty()) {
        (false, _) => Ok(stanzas.join("\n\n")),
        (true, false) => Ok(lines.join("\n")),
        (true, true) => bail!("apt has no source of Debian {release} here"),
    }
}

/// What the host's files say of a release: stanzas of deb822, and lines of the old form.
fn configured(release: &str) -> (Vec<String>, Vec<String>) {
    let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().filter_map(Result::ok);
    let files = listed.map(|entry| entry.path()).chain([PathBuf::from("/etc/apt/sources.list")]);
    let (mut stanzas, mut lines) = (Vec::new(), Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|suffix| suffix.to_str()) {
            Some("sources") => {
                let ours = text.split("\n\n").filter(|stanza| is_stanza_of(stanza, release));
                stanzas.extend(ours.map(str::to_owned));
            }
            Some("list") => lines.extend(text.lines().filter(|line| is_line_of(line, release)).map(str::to_owned)),
            _ => {}
        }
    }
    (stanzas, lines)
}

/// Whether a stanza of deb822 names a suite of the release.
fn is_stanza_of(stanza: &str, release: &str) -> bool {
    field(stanza, "Suites").is_some_and(|suites| suites.split_whitespace().any(|word| is_suite(word, release)))
}

/// Whether a line of the old form does.
fn is_line_of(line: &str, release: &str) -> bool {
    line.starts_with("deb ") && line.split_whitespace().any(|word| is_suite(word, release))
}

fn is_suite(word: &str, release: &str) -> bool {
    word == release || word.strip_prefix(release).is_some_and(|rest| rest.starts_with('-'))
}

fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    stanza.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Which release the host is.
fn codename() -> anyhow::Result<String> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release does not name a release of Debian")?.trim_matches('"').to_owned())
}

/// Where the host has its release from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    address: String,
    /// The keys' file, if the source names one.
    signed_by: Option<String>,
}

impl Source {
    fn of(release: &str) -> anyhow::Result<Self> {
        let (stanzas, lines) = configured(release);
        let mut found = stanzas.iter().filter_map(|stanza| Self::of_stanza(stanza, release));
        let mut more = lines.iter().filter_map(|line| Self::of_line(line, release));
        found.next().or_else(|| more.next()).with_context(|| format!("apt has no source of Debian {release} here"))
    }

    /// The suite by itself: those of updates and security may lie elsewhere.
    fn of_stanza(stanza: &str, release: &str) -> Option<Self> {
        field(stanza, "Suites")?.split_whitespace().find(|suite| *suite == release)?;
        let address = field(stanza, "URIs")?.split_whitespace().next()?.to_owned();
        // Keys may stand in the stanza itself, over several lines: apt's own are tried instead.
        let signed_by = field(stanza, "Signed-By").filter(|file| file.starts_with('/')).map(str::to_owned);
        Some(Self { address, signed_by })
    }

    fn of_line(line: &str, release: &str) -> Option<Self> {
        let rest = line.strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let address = words.next()?.to_owned();
        words.next().filter(|suite| *suite == release)?;
        let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        Some(Self { address, signed_by: signed_by.map(str::to_owned) })
    }

    /// The same archive's other suites: their packages alone, without what desktops want to know of them.
    fn stanza(&self, suites: &[&str]) -> String {
        let keys = self.signed_by.as_ref().map_or(String::new(), |file| format!("Signed-By: {file}\n"));
        format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: amd64\nTargets: Packages\nLanguages: none\n{keys}",
            self.address,
            suites.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "/usr/share/keyrings/debian.gpg";

    #[test]
    fn only_sources_of_the_release_are_taken() {
        let is_stanza = |text| is_stanza_of(text, "bookworm");
        assert!(is_stanza("Types: deb\nSuites: bookworm bookworm-updates\nComponents: main"));
        assert!(is_stanza("Suites: bookworm-security"));
        assert!(!is_stanza("Types: deb\nSuites: nodistro\nComponents: main"));
        let is_line = |text| is_line_of(text, "bookworm");
        assert!(is_line("deb [signed-by=/k] http://mirror.example bookworm main"));
        assert!(!is_line("deb http://mirror.example cloud-bookworm main"));
        assert!(!is_line("# deb http://mirror.example bookworm main"));
    }

    #[test]
    fn other_suites_come_from_where_the_release_does_and_by_its_keys() {
        let source = Source { address: "http://mirror.example/debian".to_owned(), signed_by: Some(KEYS.to_owned()) };
        let stanza = "Types: deb\n# a note\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n\
                      Components: main\nSigned-By: /usr/share/keyrings/debian.gpg";
        assert_eq!(Source::of_stanza(stanza, "bookworm"), Some(source.clone()));
        assert_eq!(Source::of_stanza(&stanza.replace("bookworm ", ""), "bookworm"), None, "of the updates alone");
        let line =
            "deb [arch=amd64 signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm main";
        assert_eq!(Source::of_line(line, "bookworm"), Some(source.clone()));
        let plain = Source { signed_by: None, ..source.clone() };
        assert_eq!(Source::of_line("deb http://mirror.example/debian bookworm main", "bookworm"), Some(plain.clone()));
        assert_eq!(Source::of_line("deb http://mirror.example/debian bookworm-updates main", "bookworm"), None);
        assert_eq!(Source::of_line("deb [arch=amd64", "bookworm"), None);

        let written = source.stanza(&["stable", "sid"]);
        assert_eq!(Source::of_stanza(&written, "sid"), Some(source));
        assert!(!plain.stanza(&["sid"]).contains("Signed-By"), "apt's own keys");
    }
}
