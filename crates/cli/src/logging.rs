//! The log on stderr. Whatever an event holds, it is one line of it and commands no terminal.

use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use surgetank_model::text;
use surgetank_report::{Failure, output};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Which log lines appear: as `RUST_LOG` of other programs, such as "debug" or "surgetank_daemon=trace".
pub const VARIABLE: &str = "SURGETANK_LOG";
/// By this systemd tells a service that its output goes to the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

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
pub fn start(form: Form, default: Level) -> Result<(), Failure> {
    let filter = EnvFilter::builder().with_default_directive(default.into()).with_env_var(VARIABLE);
    let filter = filter.from_env().map_err(|error| {
        Failure::Invalid(format!("{VARIABLE} cannot be used: {error}; write a level such as \"debug\""))
    })?;
    // What FUSE's library warns of is no trouble: that a mount is gone already when it takes it away, and that a program waits no more.
    let filter = match std::env::var_os(VARIABLE) {
        None => filter.add_directive("fuser=off".parse().map_err(Failure::failed)?),
        Some(_) => filter,
    };
    let to = if goes_to_the_journal() { Reader::Journal } else { Reader::People };
    let started = match form {
        Form::Text => for_people(filter, io::stderr, output::colours_on_stderr(), to).try_init(),
        Form::Json => as_json(filter, io::stderr).try_init(),
    };
    started.map_err(|error| Failure::Failed(format!("the log cannot be started: {error}")))
}

/// What a last sentence on stderr begins with, so that the journal knows that it is an error.
#[must_use]
pub fn error_prefix() -> &'static str {
    if goes_to_the_journal() { priority(Level::ERROR) } else { "" }
}

/// Whether stderr is the very stream that systemd speaks of: a child may have inherited the variable alone.
fn goes_to_the_journal() -> bool {
    let Ok(told) = std::env::var(JOURNAL_VARIABLE) else { return false };
    rustix::fs::fstat(io::stderr().as_fd()).is_ok_and(|stat| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// As sd-daemon(3) has it.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

fn for_people<W>(filter: EnvFilter, log: W, colours: bool, to: Reader) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(log).with_ansi(colours).event_format(to).finish()
}

/// Who reads the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    People,
    /// It has a time and a priority of its own for every line.
    Journal,
}

impl<S, N> FormatEvent<S, N> for Reader
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut said = Said::default();
        event.record(&mut said);
        match self {
            Self::Journal => writer.write_str(priority(level))?,
            Self::People => {
                SystemTime.format_time(&mut writer)?;
                write!(writer, " {} ", shown(level, writer.has_ansi_escapes()))?;
            }
        }
        if level > Level::INFO {
            write!(writer, "{}: ", text::line(said.target.as_deref().unwrap_or(target)))?;
        }
        if let Some(device) = &said.device {
            match writer.has_ansi_escapes() {
                true => write!(writer, "\x1b[1m{device}\x1b[0m: ")?,
                false => write!(writer, "{device}: ")?,
            }
        }
        writer.write_str(&said.message)?;
        if !said.details.is_empty() {
            write!(writer, " ({})", said.details)?;
        }
        writeln!(writer)
    }
}

fn shown(level: Level, colours: bool) -> String {
    let colour = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG | Level::TRACE => 34,
    };
    if colours { format!("\x1b[{colour}m{level:>5}\x1b[0m") } else { format!("{level:>5}") }
}

/// What an event says, cleaned: the colours are ours and stay, so what others wrote is cleaned before it is put among them.
#[derive(Debug, Default)]
struct Said {
    device: Option<String>,
    /// With what it gives as the reason.
    message: String,
    details: String,
    /// Of a library that writes to `log`.
    target: Option<String>,
}

impl Said {
    fn take(&mut self, name: &str, value: &str) {
        let value = text::line(value);
        match name {
            "device" => self.device = Some(value.into_owned()),
            "log.target" => self.target = Some(value.into_owned()),
            name if name.starts_with("log.") => {}
            // Whatever the order of the fields, the message comes first.
            "message" if self.message.is_empty() => self.message = value.into_owned(),
            "message" => self.message = format!("{value}: {}", self.message),
            "error" | "why" | "reason" if self.message.is_empty() => self.message = value.into_owned(),
            "error" | "why" | "reason" => {
                self.message.push_str(": ");
                self.message.push_str(&value);
            }
            // How many like it were not told.
            "untold" | "others" if value == "0" => {}
            "untold" | "others" => self.detail(format_args!("and {value} more like it")),
            name => self.detail(format_args!("{name}={value}")),
        }
    }

    fn detail(&mut self, detail: fmt::Arguments<'_>) {
        let comma = if self.details.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(self.details, "{comma}{detail}");
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field.name(), &format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.take(field.name(), &value.to_string());
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
        for reader in [Reader::People, Reader::Journal] {
            let writer = writer.clone();
            let people = for_people(filter(), move || writer.clone(), false, reader);
            tracing::subscriber::with_default(people, say_evil_things);
            let said = log.take();
            assert_eq!(said.lines().count(), 6, "{said}");
            for line in said.lines() {
                assert!(line.chars().all(text::is_plain) && line.contains("room") && line.contains("end"), "{line:?}");
            }
            assert!(said.contains("text: no\\nroom"), "{said}");
        }

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

    fn said_to(reader: Reader, colours: bool, say: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let people = for_people(EnvFilter::new("debug"), move || writer.clone(), colours, reader);
        tracing::subscriber::with_default(people, say);
        log.take()
    }

    #[test]
    fn our_own_colours_stay() {
        let said = said_to(Reader::People, true, || tracing::warn!(device = "data", "is \x1b[31mred"));
        assert!(said.ends_with(" \x1b[33m WARN\x1b[0m \x1b[1mdata\x1b[0m: is \\u{1b}[31mred\n"), "{said:?}");
    }

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        let error = io::Error::other("no room");
        let said = said_to(Reader::Journal, false, || {
            tracing::error!(device = "data", %error, "the journal cannot be written");
            tracing::warn!(untold = 0, others = 3, "refused");
            tracing::info!(volume = "vol-1", size = 3, "deleted");
            tracing::debug!("detail");
        });
        let expected = "<3>data: the journal cannot be written: no room\n<4>refused (and 3 more like it)\n\
                        <6>deleted (volume=vol-1, size=3)\n<7>surgetank::logging::tests: detail\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn people_get_a_time() {
        let said = said_to(Reader::People, false, || tracing::info!(device = "data", "served at /dev/x"));
        let (time, rest) = said.split_once(' ').unwrap();
        assert!(time.len() > 19 && time.ends_with('Z') && time.contains('T'), "{said}");
        assert_eq!(rest, " INFO data: served at /dev/x\n");
    }
}
