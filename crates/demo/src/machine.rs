//! What the report says about the machine and the moment.

use std::time::{SystemTime, UNIX_EPOCH};

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().trim().to_owned()
}

/// The value after `key` in a file of "key : value" lines.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Processor, memory and kernel, in one line.
#[must_use]
pub fn description() -> String {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
        .map(|kib| format!(", {:.0} GiB of memory", kib as f64 / f64::from(1 << 20)))
        .unwrap_or_default();
    let kernel = first_line("/proc/sys/kernel/osrelease");
    format!("{processors} × {model}{memory}, Linux {kernel}")
}

/// Now, as "2026-01-31 12:00:00 UTC".
#[must_use]
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    format_date(seconds)
}

fn format_date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// The date of a day since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(format_date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(format_date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(format_date(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }

    #[test]
    fn the_machine_is_described() {
        assert!(description().contains("Linux "));
    }
}
