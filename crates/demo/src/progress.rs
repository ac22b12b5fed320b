//! Live progress of a run: one line a mode on a terminal, a few plain lines otherwise; always on stderr.

use std::io::IsTerminal;
use std::time::Instant;

use surgetank_report::output::note;
use surgetank_report::progress::{self, MultiProgress, ProgressBar};

/// What a mode's line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Live {
    /// What the application writes now.
    pub write_mib_s: f64,
    /// Not yet on the backing volume.
    pub dirty_mib: f64,
    /// Size of the caching volume; `None` without one.
    pub cache_mib: Option<f64>,
}

/// All lines.
#[derive(Debug)]
pub struct Board {
    lines: Option<MultiProgress>,
    began: Instant,
}

impl Board {
    /// For stderr as it is.
    #[must_use]
    pub fn new() -> Self {
        let lines = (std::io::stderr().is_terminal()).then(MultiProgress::new);
        Self { lines, began: Instant::now() }
    }

    /// The line of a mode whose bar has this length: bytes that its application writes, or parts of its time.
    #[must_use]
    pub fn line(&self, mode: &'static str, length: u64) -> Line {
        let bar = self.lines.as_ref().map(|lines| {
            let bar = lines.add(progress::bar("{prefix:11} {bar:24.colour} {percent:>3} %  {msg}", length));
            bar.set_prefix(mode);
            bar
        });
        Line { mode, bar, began: self.began, phase: String::new() }
    }

    /// Takes the lines off the screen.
    pub fn clear(&self) {
        if let Some(lines) = &self.lines {
            let _ = lines.clear();
        }
    }
}

/// One mode's line.
#[derive(Debug)]
pub struct Line {
    mode: &'static str,
    bar: Option<ProgressBar>,
    began: Instant,
    phase: String,
}

impl Line {
    /// The mode does something else from now on.
    pub fn phase(&mut self, phase: &str) {
        phase.clone_into(&mut self.phase);
        if let Some(bar) = &self.bar {
            bar.set_message(phase.to_owned());
        }
    }

    /// Something worth a line of its own is done.
    pub fn done(&self, what: &str) {
        if self.bar.is_none() {
            note(&format!("{:7.1} s  {:11}  {what}", self.began.elapsed().as_secs_f64(), self.mode));
        }
    }

    /// Shows how it goes while nothing is written.
    pub fn tick(&self, live: &Live) {
        if let Some(bar) = &self.bar {
            self.show(bar.position(), live);
        }
    }

    /// Shows how it goes; `written` bytes of the application's are on the device.
    pub fn show(&self, written: u64, live: &Live) {
        let Some(bar) = &self.bar else { return };
        bar.set_position(written.min(bar.length().unwrap_or(written)));
        let cache = match live.cache_mib {
            Some(size) => format!("  cache {size:.0} MiB, dirty {:.0} MiB", live.dirty_mib),
            None => String::new(),
        };
        bar.set_message(format!("{:18} {:4.0} MiB/s{cache}", self.phase, live.write_mib_s));
    }

    /// Shows that a share of the whole is done, and how it goes.
    pub fn at(&self, share: f64, message: &str) {
        let Some(bar) = &self.bar else { return };
        bar.set_position((share.clamp(0.0, 1.0) * bar.length().unwrap_or_default() as f64) as u64);
        bar.set_message(message.to_owned());
    }
}
