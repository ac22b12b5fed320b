//! The log on stderr. Whatever an event holds, it is one line of it and commands no terminal.

use std::fmt::{self, Debug};
use std::io::{self, Write};

use clap::ValueEnum;
use surgetank_model::text;
use surgetank_report::{Failure, output};
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::util::SubscriberInitExt;

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
    let started = match form {
        Form::Text => for_people(filter, io::stderr, output::colours_on_stderr()).try_init(),
        Form::Json => as_json(filter, io::stderr).try_init(),
    };
    started.map_err(|error| Failure::Failed(format!("the log cannot be started: {error}")))
}

fn for_people<W>(filter: EnvFilter, log: W, colours: bool) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The colours are ours and stay; so what others wrote is cleaned before it is put among them.
    let fields = format::debug_fn(write_field).delimited(" ");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(log).with_ansi(colours).fmt_fields(fields).finish()
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = text::line(&value);
    match field.name() {
        "message" => writer.write_str(&value),
        // Where a message of a library that writes to `log` comes from: its target is shown already.
        name if name.starts_with("log.") => Ok(()),
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        name => write!(writer, "{name}={value}"),
    }
}

fn as_json<W>(filter: EnvFilter, log: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let cleaned =
        tracing_subscriber::fmt().with_env_filter(filter).json().flatten_event(true).with_writer(Cleaned(log));
    cleaned.finish()
}

/// Writes JSON documents to a log; serde_json escapes what JSON must have escaped, and no more.
struct Cleaned<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Cleaned<W> {
    type Writer = Cleaned<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Cleaned(self.0.make_writer())
    }
}

impl<W: Write> Write for Cleaned<W> {
    /// An event is written at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let event_text = String::from_utf8_lossy(event);
        self.0.write_all(text::json(&event_text).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    const EVIL: &str = "no\nroom\r\x1b]0;x\x07\x1b[2J\x7f\u{9b}31m\u{202e}txt\u{2028}\u{85}end";

    /// Every way in which something gets into an event.
    fn say_evil_things() {
        let error = io::Error::other(EVIL);
        let chained = io::Error::other(format!("outer {EVIL}"));
        tracing::warn!("{EVIL}");
        tracing::warn!(reason = EVIL, "text");
        tracing::warn!(reason = %EVIL, "shown");
        tracing::warn!(reason = ?EVIL, "debug");
        tracing::warn!(%error, ?chained, error_too = &error as &dyn std::error::Error, "errors {error}");
        tracing::warn!(reason = EVIL);
    }

    #[test]
    fn no_field_forges_a_line_or_commands_the_terminal() {
        let log = Log::default();
        let writer = log.clone();
        let filter = || EnvFilter::new("warn");
        let people = for_people(filter(), move || writer.clone(), false);
        tracing::subscriber::with_default(people, say_evil_things);
        let said = log.take();
        assert_eq!(said.lines().count(), 6, "{said}");
        for line in said.lines() {
            assert!(line.chars().all(text::is_plain) && line.contains("room") && line.contains("end"), "{line:?}");
        }
        assert!(said.contains("reason=no\\nroom"), "{said}");

        let writer = log.clone();
        tracing::subscriber::with_default(as_json(filter(), move || writer.clone()), say_evil_things);
        let said = log.take();
        assert_eq!(said.lines().count(), 6, "{said}");
        for line in said.lines() {
            assert!(line.chars().all(text::is_plain), "{line:?}");
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let held =
                event.as_object().unwrap().values().any(|value| value.as_str().is_some_and(|text| text.contains(EVIL)));
            assert!(held || event["message"] == "debug", "{line}");
        }
    }

    #[test]
    fn our_own_colours_stay() {
        let log = Log::default();
        let writer = log.clone();
        let people = for_people(EnvFilter::new("warn"), move || writer.clone(), true);
        tracing::subscriber::with_default(people, || tracing::warn!(device = "data", "is \x1b[31mred"));
        let said = log.take();
        assert!(
            said.contains("\x1b[3mdevice\x1b[0m\x1b[2m=\x1b[0m\"data\"") && said.contains("is \\u{1b}[31mred"),
            "{said:?}"
        );
    }
}
