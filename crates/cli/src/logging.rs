//! The log on stderr.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::output;

/// Which log lines appear: as `RUST_LOG` of other programs, such as "debug" or "surgetank_daemon=trace".
pub const VARIABLE: &str = "SURGETANK_LOG";

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Form {
    /// For people
    Text,
    /// One JSON document a line
    Json,
}

/// Starts the log; `default` holds where the environment says nothing.
///
/// # Errors
/// If the environment's filter cannot be read.
pub fn start(form: Form, default: tracing::Level) -> Result<(), Failure> {
    let filter = EnvFilter::builder().with_default_directive(default.into()).with_env_var(VARIABLE);
    let filter = filter.from_env().map_err(|error| {
        Failure::Invalid(format!("{VARIABLE} cannot be used: {error}; write a level such as \"debug\""))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match form {
        Form::Text => builder.with_ansi(output::colours_on_stderr()).try_init(),
        Form::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::Failed(format!("the log cannot be started: {error}")))
}
