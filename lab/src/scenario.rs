//! Scenarios: guests, their disks, the steps that they run, and what is collected, in a TOML file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use surgetank_model::Bytes;
pub use surgetank_model::toml_error::ConfigError;
use surgetank_model::toml_error::Source;
use surgetank_model::units::Span;
use toml::Spanned;

use crate::plan::{Plan, quoted};

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct GuestScenario {
    /// The file's name without its suffix.
    pub name: String,
    /// What it shows, in a line.
    pub about: String,
    /// The guests; they run at the same time.
    pub guests: Vec<Plan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    about: String,
    timeout: Option<Spanned<Span>>,
    #[serde(default)]
    guest: BTreeMap<Spanned<String>, RawGuest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGuest {
    memory: Option<Spanned<Bytes>>,
    cores: Option<Spanned<u32>>,
    #[serde(default)]
    disks: Vec<Spanned<String>>,
    #[serde(default)]
    step: Vec<Spanned<RawStep>>,
    #[serde(default)]
    collect: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    name: Spanned<String>,
    run: Spanned<String>,
}

const MEMORY: (Bytes, Bytes) = (Bytes::from_mib(256), Bytes::from_gib(64));
const CORES_MAX: u32 = 64;
const TIMEOUT: Duration = Duration::from_secs(600);

impl GuestScenario {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            file: file.to_owned(),
            place: None,
            message: format!("cannot be read: {error}; check the path and its permissions"),
        })?;
        Self::from_text(file, &text)
    }

    /// Checks a text; `file` is for names and messages.
    pub fn from_text(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { file: file.to_owned(), text: text.to_owned() };
        let raw: Raw = source.parse()?;
        if raw.guest.is_empty() {
            return Err(source.at(None, "has no guest: add a section such as [guest.one] with [[guest.one.step]]"));
        }
        let timeout = match &raw.timeout {
            Some(span) if span.get_ref().0.is_zero() => {
                return Err(
                    source.at(Some(span.span()), "a timeout of nothing ends every guest at once: write \"1 min\"")
                );
            }
            Some(span) => span.get_ref().0,
            None => TIMEOUT,
        };
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut guests = Vec::new();
        for (guest, raw) in raw.guest {
            let plan = raw.check(&source, &guest)?;
            guests.push(Plan { timeout, ..plan });
        }
        Ok(Self { name, about: raw.about, guests })
    }
}

impl RawGuest {
    fn check(self, source: &Source, name: &Spanned<String>) -> Result<Plan, ConfigError> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if name.get_ref().is_empty() || name.get_ref().len() > 32 || !name.get_ref().chars().all(good) {
            let message = "a guest's name is its host name and its folder: up to 32 letters, digits or -";
            return Err(source.at(Some(name.span()), message));
        }
        let mut plan = Plan::new(name.get_ref(), "");
        if let Some(memory) = self.memory {
            plan.memory = *memory.get_ref();
            if plan.memory < MEMORY.0 || plan.memory > MEMORY.1 {
                let message = format!("memory is {}: a guest takes from {} to {}", plan.memory, MEMORY.0, MEMORY.1);
                return Err(source.at(Some(memory.span()), message));
            }
        }
        if let Some(cores) = self.cores {
            plan.cores = *cores.get_ref();
            if plan.cores == 0 || plan.cores > CORES_MAX {
                let message = format!("cores is {}: a guest takes from 1 to {CORES_MAX}", plan.cores);
                return Err(source.at(Some(cores.span()), message));
            }
        }
        for disk in self.disks {
            let checked = disk.get_ref().parse().map_err(|message: String| source.at(Some(disk.span()), message))?;
            plan.disks.push(checked);
        }
        if self.step.is_empty() {
            let message = "this guest has no step: add [[guest.NAME.step]] with name = \"…\" and run = \"…\"";
            return Err(source.at(Some(name.span()), message));
        }
        plan.script = script(source, &self.step, &self.collect)?;
        Ok(plan)
    }
}

/// One script of all steps: each says its name and how long it took to `steps`; the first that fails ends it. What is
/// to be collected is collected in any case.
fn script(source: &Source, steps: &[Spanned<RawStep>], collect: &[Spanned<String>]) -> Result<String, ConfigError> {
    let mut script = String::from("status=0\n");
    let mut names: Vec<&str> = Vec::new();
    for step in steps.iter().map(Spanned::get_ref) {
        let (name, run) = (step.name.get_ref(), step.run.get_ref());
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' ');
        if name.is_empty() || !name.chars().all(good) {
            let message = "a step's name is made of letters, digits, blanks, - and _";
            return Err(source.at(Some(step.name.span()), message));
        }
        if names.contains(&name.as_str()) {
            return Err(source
                .at(Some(step.name.span()), format!("there is a step \"{name}\" before: name this one otherwise")));
        }
        if run.trim().is_empty() {
            return Err(source.at(Some(step.run.span()), "this step runs nothing: write a command, or remove the step"));
        }
        names.push(name);
        let inner = quoted(&["sh".to_owned(), "-eu".to_owned(), "-c".to_owned(), run.clone()]);
        script.push_str(&format!(
            "if [ $status = 0 ]; then\n  began=$(cut -d ' ' -f 1 /proc/uptime)\n  {inner} || status=$?\n  \
             echo '{name}' $began $(cut -d ' ' -f 1 /proc/uptime) $status >>/lab/steps\n  \
             [ $status = 0 ] || echo 'step {name} failed with status' $status >&2\nfi\n"
        ));
    }
    for path in collect {
        if !path.get_ref().starts_with('/') {
            return Err(source.at(Some(path.span()), "what is collected is a path in the guest and begins with /"));
        }
        let path = quoted(&[path.get_ref().clone()]);
        script.push_str(&format!("cp -r {path} /lab/ || [ $status != 0 ] || status=1\n"));
    }
    script.push_str("exit $status\n");
    Ok(script)
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bandwidth;

    use super::*;
    use crate::plan::Disk;

    const GOOD: &str = r#"about = "x"
timeout = "1 min"
[guest.one]
memory = "512 MiB"
cores = 1
collect = ["/tmp/x"]
disks = ["slow=1GiB,33MiB/s"]
[[guest.one.step]]
name = "first"
run = "true"
"#;

    #[test]
    fn a_good_one_is_read() {
        let scenario = GuestScenario::from_text(Path::new("a/smoke.toml"), GOOD).unwrap();
        assert_eq!((scenario.name.as_str(), scenario.guests.len()), ("smoke", 1));
        let guest = &scenario.guests[0];
        assert_eq!((guest.memory, guest.cores, guest.timeout), (Bytes::from_mib(512), 1, Duration::from_secs(60)));
        assert_eq!(guest.disks, [Disk::new("slow", Bytes::from_gib(1)).throttled(Bandwidth::from_mib_s(33))]);
    }

    #[test]
    fn every_mistake_is_placed() {
        for (from, to, expected) in [
            ("about = \"x\"\n", "", "x.toml:"),
            ("cores = 1", "cores = 0", "x.toml:5:9: cores is 0"),
            ("cores = 1", "cors = 1", "x.toml:5:1: unknown setting \"cors\""),
            ("\"512 MiB\"", "\"512\"", "x.toml:4:10: \"512\" has no unit"),
            ("\"512 MiB\"", "\"1 MiB\"", "x.toml:4:10: memory is 1 MiB"),
            ("slow=1GiB", "slow=0GiB", "x.toml:7:10: a disk of 0 B"),
            ("33MiB/s", "33", "x.toml:7:10: \"33\" has no unit"),
            ("slow=", "s/w=", "x.toml:7:10: \"s/w\" cannot be"),
            ("run = \"true\"", "run = \" \"", "x.toml:10:7: this step runs nothing"),
            ("\"first\"", "\"fi'rst\"", "x.toml:9:8: a step's name"),
            ("\"/tmp/x\"", "\"x\"", "x.toml:6:12: what is collected"),
            ("\"1 min\"", "\"0 s\"", "x.toml:2:11: a timeout of nothing"),
            ("guest.one]", "guest.\"o e\"]", "x.toml:3:8: a guest's name"),
            ("name = \"first\"", "name = ", "x.toml:9:"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let mistake = GuestScenario::from_text(Path::new("x.toml"), &text).unwrap_err().to_string();
            assert!(mistake.starts_with(expected), "{mistake}\nexpected {expected}");
        }
        let none = GuestScenario::from_text(Path::new("x.toml"), "about = \"x\"\n").unwrap_err().to_string();
        assert!(none.contains("has no guest"), "{none}");
        let text = format!("{GOOD}[[guest.one.step]]\nname = \"first\"\nrun = \"true\"\n");
        let twice = GuestScenario::from_text(Path::new("x.toml"), &text).unwrap_err().to_string();
        assert!(twice.starts_with("x.toml:12:8: there is a step"), "{twice}");
    }

    #[test]
    fn the_scenarios_of_the_tree_are_good() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            GuestScenario::load(&entry.unwrap().path()).unwrap();
            count += 1;
        }
        assert!(count >= 2, "{count}");
    }
}
