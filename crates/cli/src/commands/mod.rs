//! The commands and their flags. Parser, help, man pages and completions all come from these types.

mod array;
mod control;
mod demo;
mod foreground;
mod gc;
mod history;
mod inspect;
mod map;
mod mount;
mod pool;
mod provider;
mod serve;
mod shell;
mod systemd;
mod upgrade;
mod whereabouts;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use surgetank_report::Failure;

use crate::allocate;
use crate::calibrate;
use crate::mrc;
use crate::plan;
use crate::provision;
use crate::simulate;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Rents fast volumes for the bursts of a slow one
///
/// Surgetank gives a cheap, slow volume the throughput of an expensive, fast one, only while that throughput is
/// needed: it rents a small fast volume when a burst starts, absorbs the burst on both, drains the data to the slow one
/// and deletes the fast one.
#[derive(Debug, Parser)]
#[command(name = "surgetank", version, styles = STYLES, max_term_width = 100, subcommand_required = true)]
#[command(
    arg_required_else_help = false,
    after_help = "See \"surgetank COMMAND --help\" for examples.

Exit status: 0 done; 1 failed while running; 2 invalid use or input; 3 no feasible answer."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the main job on this machine: static-slow, static-fast and elastic on real I/O
    Demo(demo::Arguments),
    /// Serve the elastic devices of a configuration, in the foreground
    Serve(serve::Arguments),
    /// Rent volumes of this machine to a guest, over HTTP, and hot-plug them through QEMU
    Provider(provider::Arguments),
    /// Show the devices of the running daemon
    Status(control::Status),
    /// Show the boosts of the past: why each began, what it moved, what it cost
    History(history::Arguments),
    /// Boost a device now, before its burst
    Boost(control::Boost),
    /// End a device's boost: drain its caching volume and delete it
    Drain(control::Drain),
    /// Drain and delete a device's caching volume, or accept the loss of its data
    Detach(control::Detach),
    /// Grow a device with its backing volume
    Resize(control::Resize),
    /// Delete rented volumes that no device owns
    Gc(gc::Arguments),
    /// Create, show, rotate, assemble and delete arrays of volumes
    Array(array::Arguments),
    /// Run a staging pool, show it, and wait for its files
    Pool(pool::Arguments),
    /// Mount a staging pool over a directory
    Mount(mount::Mount),
    /// Unmount a staging pool
    Umount(mount::Umount),
    /// Load renewed or revoked certificates
    Reload(control::Reload),
    /// Map devices straight to their backing volumes, before the daemon runs
    Map(map::Map),
    /// Remove the map of a device that nobody uses
    Unmap(map::Unmap),
    /// Show what is on a caching volume, and verify it
    Inspect(inspect::Arguments),
    /// Measure what bursts take with caching volumes of several sizes, on the volumes of a configuration
    Calibrate(calibrate::Arguments),
    /// Predict completion time and cost of an application: on a slow, a fast, and an elastic volume
    Predict(plan::predict::Arguments),
    /// Recommend the caching volume's size for an application
    Recommend(plan::recommend::Arguments),
    /// List every way to rent a capacity, cheapest first
    Price(plan::price::Arguments),
    /// Compute a closed form: burst, sizing, credits, rotation, interval
    Model(plan::model::Arguments),
    /// Choose the nodes of a staging pool for a throughput, at the least cost
    Provision(provision::Arguments),
    /// Share two levels of cache among applications, so that every SLO holds
    Allocate(allocate::Arguments),
    /// Draw the miss-ratio curve of a trace: what a cache of each size would miss
    Mrc(mrc::Arguments),
    /// Run a scenario in virtual time: completion and cost of the three modes
    Simulate(simulate::Arguments),
    /// Write a completion script for a shell
    Completions(shell::Completions),
    /// Write the man pages into a directory (for packages)
    #[command(hide = true)]
    Man(shell::Man),
    /// Tell systemd which disks the service waits for, and what is mounted after it (called by a generator)
    #[command(hide = true)]
    GenerateUnits(systemd::GenerateUnits),
    /// Tell udev what a block device is to us (called by a rule)
    #[command(hide = true)]
    UdevProperties(systemd::UdevProperties),
    /// Write one file of the demo (started by the demo itself)
    #[command(hide = true)]
    DemoWriter(demo::Writer),
}

/// What is wrong with a command line, in one sentence like every other failure.
pub fn usage(error: &clap::Error) -> String {
    format!("{}; see surgetank {}--help", wrong(error), named(std::env::args().skip(1)))
}

fn wrong(error: &clap::Error) -> String {
    if let Some(number) = negative(error) {
        return format!("a value that begins with '{number}' is negative: numbers, sizes and times are at least zero");
    }
    let rendered = error.render().to_string();
    let mut parts: Vec<String> = Vec::new();
    for line in rendered.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let tip = line.strip_prefix("tip: ");
        match parts.last_mut() {
            // What a line that ends in a colon announces, or the known values, belongs to it.
            Some(last) if last.ends_with(':') => {
                last.push(' ');
                last.push_str(line);
            }
            Some(last) if tip.is_none() && !line.starts_with('[') => {
                last.push_str(", ");
                last.push_str(line);
            }
            _ => parts.push(tip.unwrap_or(line).to_owned()),
        }
    }
    parts.join("; ")
}

/// What was taken for a flag, and is the beginning of a negative number. Flags that take one are asked for it first.
fn negative(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(text))) => {
            let is_number = text.strip_prefix('-')?.starts_with(|first: char| first.is_ascii_digit());
            is_number.then_some(text)
        }
        _ => None,
    }
}

/// The command and its subcommands that arguments begin with, each with a blank behind it.
fn named(arguments: impl Iterator<Item = String>) -> String {
    let (mut at, mut named) = (Cli::command(), String::new());
    for argument in arguments {
        let Some(command) = at.find_subcommand(&argument).cloned() else { break };
        named.push_str(&argument);
        named.push(' ');
        at = command;
    }
    named
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// # Errors
    /// How the command failed.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(arguments) => arguments.run(),
            Command::Provider(arguments) => arguments.run(),
            Command::Status(arguments) => arguments.run(),
            Command::History(arguments) => arguments.run(),
            Command::Boost(arguments) => arguments.run(),
            Command::Drain(arguments) => arguments.run(),
            Command::Detach(arguments) => arguments.run(),
            Command::Resize(arguments) => arguments.run(),
            Command::Gc(arguments) => arguments.run(),
            Command::Array(arguments) => arguments.run(),
            Command::Pool(arguments) => arguments.run(),
            Command::Mount(arguments) => arguments.run(),
            Command::Umount(arguments) => arguments.run(),
            Command::Reload(arguments) => arguments.run(),
            Command::Map(arguments) => arguments.run(),
            Command::Unmap(arguments) => arguments.run(),
            Command::Inspect(arguments) => arguments.run(),
            Command::Demo(arguments) => arguments.run(),
            Command::Calibrate(arguments) => arguments.run(),
            Command::Predict(arguments) => arguments.run(),
            Command::Recommend(arguments) => arguments.run(),
            Command::Price(arguments) => arguments.run(),
            Command::Model(arguments) => arguments.run(),
            Command::Provision(arguments) => arguments.run(),
            Command::Allocate(arguments) => arguments.run(),
            Command::Mrc(arguments) => arguments.run(),
            Command::Simulate(arguments) => arguments.run(),
            Command::Completions(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(),
            Command::GenerateUnits(arguments) => arguments.run(),
            Command::UdevProperties(arguments) => arguments.run(),
            Command::DemoWriter(arguments) => arguments.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_listed_command_has_help_with_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("surgetank {}", command.get_name())), "{}", command.get_name());
        }
    }

    #[test]
    fn help_wraps_well_at_80_columns_and_less() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let lines: Vec<&str> = help.lines().collect();
            let broken = lines.windows(2).find(|pair| is_prose(pair[0]) && is_prose(pair[1]));
            assert_eq!(broken, None, "{}: two lines of one paragraph", command.get_name());
            let long = lines.iter().find(|line| line.starts_with(' ') && line.chars().count() > 80);
            assert_eq!(long, None, "{}: an example that 80 columns wrap", command.get_name());
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
