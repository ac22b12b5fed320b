//! The `surgetank` command.

mod calibrate;
mod commands;
mod logging;
mod mrc;
mod plan;
mod policy;
mod simulate;
mod source;

use std::process::ExitCode;

use clap::Parser;
use surgetank_report::{Failure, output};

fn main() -> ExitCode {
    let cli = match commands::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version go to stdout with status 0, wrong use to stderr with status 2.
            let _ = usage.print();
            return if usage.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::NoReader | Failure::Told(_)) {
                output::note(&format!("{}surgetank: {failure}", logging::error_prefix()));
            }
            ExitCode::from(failure.status())
        }
    }
}
