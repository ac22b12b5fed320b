//! The `surgetank` command.

mod allocate;
mod calibrate;
mod commands;
mod logging;
mod mrc;
mod plan;
mod policy;
mod provision;
mod simulate;
mod source;

use std::process::ExitCode;

use clap::Parser;
use surgetank_report::{Failure, output};

fn main() -> ExitCode {
    let done = match commands::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(usage) if usage.use_stderr() => {
            output::note(&format!("{}surgetank: {}", logging::error_prefix(), commands::usage(&usage)));
            return ExitCode::from(2);
        }
        // Help and version go to stdout.
        Err(help) => output::written_out(help.print()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::NoReader | Failure::Told(_)) {
                output::note(&format!("{}surgetank: {failure}", logging::error_prefix()));
            }
            ExitCode::from(failure.status())
        }
    }
}
