//! Progress bars on stderr, hidden where that is no terminal.

pub use indicatif::{MultiProgress, ProgressBar};

use indicatif::ProgressStyle;

use crate::output::colours_on_stderr;

/// A bar of this length. In the template, as indicatif has it, `.colour` stands for our colour.
#[must_use]
pub fn bar(template: &str, length: u64) -> ProgressBar {
    let colour = if colours_on_stderr() { ".cyan/dim" } else { "" };
    let style = ProgressStyle::with_template(&template.replace(".colour", colour));
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("█▉▊▋▌▍▎▏ "))
}
