//! Commands that answer what a file asks: a directory with that file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub struct Place {
    directory: tempfile::TempDir,
    command: &'static str,
}

impl Place {
    /// `file` is what the command is given, as `a.toml`.
    pub fn new(command: &'static str, file: &str) -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap(), command };
        place.write("a.toml", file);
        place
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), text).unwrap();
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        command.args([self.command, "a.toml"]).args(arguments).current_dir(self.path());
        command.env_remove("SURGETANK_LOG").stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The command fails with this status and one sentence.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], status: i32) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.starts_with("surgetank: ") && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
        said
    }
}

/// A number of an answer.
#[track_caller]
pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}
