//! Bonnie++: what the papers' microbenchmark runs.
//!
//! Source: bonnie++ (`docs/REFERENCES.md`).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::interrupt::output;
use crate::machine::tell;

const CONTROL: &str = "/sys/fs/cgroup";
/// The group whose memory is as small against the file as the papers' machine was.
const GROUP: &str = "/sys/fs/cgroup/lab-bonnie";
/// Where the sequential figures stand in its line of CSV (bon_csv2txt(1)), in KiB/s.
const BLOCK_WRITE: usize = 11;
const REWRITE: usize = 13;
const BLOCK_READ: usize = 17;

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Blocks written to a new file.
    pub write_mib_s: f64,
    /// The same blocks read, changed and written back.
    pub rewrite_mib_s: f64,
    /// The same blocks read.
    pub read_mib_s: f64,
}

/// The file and the memory that stands against it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bonnie {
    /// The file.
    pub file_mib: u64,
    /// What the program and its pages in the page cache may take.
    pub memory_mib: u64,
    /// Each request.
    pub chunk_kib: u64,
}

impl Bonnie {
    /// Runs it in a directory, with its memory held to what it may have.
    pub fn run(&self, directory: &Path) -> anyhow::Result<Rates> {
        if !Path::new(GROUP).exists() {
            let _ = output(Command::new("mount").args(["-t", "cgroup2", "none", CONTROL]));
            tell(format!("{CONTROL}/cgroup.subtree_control"), "+memory +io")?;
            fs::create_dir(GROUP).context("cannot make a control group")?;
        }
        tell(format!("{GROUP}/memory.max"), &(self.memory_mib << 20).to_string())?;
        // The shell enters the group and becomes the program, so that nothing else is in it.
        let mut command = Command::new("sh");
        command.args(["-c", "echo 0 >\"$0/cgroup.procs\" && exec bonnie++ \"$@\"", GROUP]);
        command.args(self.words()).arg("-d").arg(directory);
        parse(&String::from_utf8_lossy(&output(&mut command)?.stdout))
    }

    /// No small files, no single bytes: what the papers report.
    fn words(&self) -> Vec<String> {
        let size = format!("{}M:{}k", self.file_mib, self.chunk_kib);
        let memory = self.memory_mib.to_string();
        ["-q", "-f", "-u", "root", "-m", "lab", "-n", "0", "-s", &size, "-r", &memory].map(str::to_owned).to_vec()
    }
}

fn parse(said: &str) -> anyhow::Result<Rates> {
    let line = said.lines().find(|line| line.matches(',').count() > BLOCK_READ).context("bonnie++ printed no CSV")?;
    let fields: Vec<&str> = line.split(',').collect();
    // What went too fast to be measured is written as pluses.
    let rate = |at: usize, what: &str| {
        let field = fields.get(at).copied().unwrap_or_default();
        let kib_s: f64 = field.parse().with_context(|| format!("bonnie++ says \"{field}\" of its {what}"))?;
        anyhow::Ok(kib_s / 1024.0)
    };
    Ok(Rates {
        write_mib_s: rate(BLOCK_WRITE, "write")?,
        rewrite_mib_s: rate(REWRITE, "rewrite")?,
        read_mib_s: rate(BLOCK_READ, "read")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_understood() {
        let fields = "1.98,2.00a,x,1,1795342884,512M,,32,5,,,28672,85,15872,61,,,34816,68,3777,601,,,,,,619ms";
        let rates = parse(&format!("a word before\n{fields}\n")).unwrap();
        assert_eq!(rates, Rates { write_mib_s: 28.0, rewrite_mib_s: 15.5, read_mib_s: 34.0 });
        let error = parse(&fields.replace("34816", "+++++")).unwrap_err();
        assert!(error.to_string().contains("read"), "{error}");
        assert!(parse("Can't open file").is_err());
    }
}
