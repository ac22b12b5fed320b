//! Completions and man pages, from the same definitions as the parser.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use surgetank_report::{Doing, Failure, output};

use super::Cli;

/// Flags of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank completions bash > /usr/share/bash-completion/completions/surgetank
  surgetank completions zsh > ~/.zfunc/_surgetank")]
pub struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut visible(), "surgetank", &mut script);
        output::print(&String::from_utf8_lossy(&script))
    }
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Where to write them
    directory: PathBuf,
}

impl Man {
    pub fn run(&self) -> Result<(), Failure> {
        let doing = || format!("cannot write man pages into {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).doing(doing)?;
        let mut command = visible();
        command.build();
        render(&command, "surgetank", &self.directory).doing(doing)
    }
}

fn render(command: &clap::Command, name: &str, directory: &Path) -> std::io::Result<()> {
    let mut page = Vec::new();
    let titled: &'static str = Box::leak(name.to_owned().into_boxed_str());
    clap_mangen::Man::new(command.clone().name(titled)).render(&mut page)?;
    std::fs::write(directory.join(format!("{name}.1")), page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        render(sub, &format!("{name}-{}", sub.get_name()), directory)?;
    }
    Ok(())
}

/// The command line without what is hidden from people.
fn visible() -> clap::Command {
    let full = Cli::command();
    let subcommands: Vec<_> = full.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let mut command = clap::Command::new("surgetank")
        .version(env!("CARGO_PKG_VERSION"))
        .about(full.get_about().cloned().unwrap_or_default())
        .long_about(full.get_long_about().cloned().unwrap_or_default())
        .after_help(full.get_after_help().cloned().unwrap_or_default());
    for sub in subcommands {
        command = command.subcommand(sub);
    }
    command
}
