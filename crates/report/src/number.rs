//! Numbers as people read them.

use indicatif::HumanFloatCount;

/// 12345.6 → "12,346".
#[must_use]
pub fn thousands(value: f64) -> String {
    let sign = if value < -0.5 { "-" } else { "" };
    format!("{sign}{:.0}", HumanFloatCount(value.abs()))
}

/// Three significant digits or the whole number, whichever is more.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A number without trailing zeros, to three decimals.
#[must_use]
pub fn plain(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// USD with this many decimals; "unknown" without a price.
#[must_use]
pub fn dollars(usd: Option<f64>, decimals: usize) -> String {
    usd.map_or_else(|| "unknown".to_owned(), |usd| format!("${usd:.decimals$}"))
}

/// USD of a run, which may be a fraction of a cent.
#[must_use]
pub fn small_dollars(usd: f64) -> String {
    if usd > 0.0 && usd < 0.000_000_5 {
        return "under $0.000001".to_owned();
    }
    dollars(Some(usd), if usd < 0.01 { 6 } else { 4 })
}

/// A ratio as the difference from 1: 1.008 → "+0.8 %".
#[must_use]
pub fn difference(ratio: f64, decimals: usize) -> String {
    let text = format!("{:+.decimals$} %", (ratio - 1.0) * 100.0);
    // What rounds to nothing has no sign of its own.
    if text.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) { text } else { text.replace('-', "+") }
}

/// What AGBs are, where they are shown.
pub const AGBS_EXPLAINED: &str = "AGBs: GiB rented × MiB/s reserved × seconds";

/// From here on tenths of a second say nothing, and hours more than thousands of seconds.
const LONG_S: f64 = 3.0 * 3600.0;
const DAYS_S: f64 = 2.0 * 24.0 * 3600.0;

/// A time as people say it: "2.31 s", "1231.0 s", from three hours on "5 h 12 min", from two days on "29 d 3 h".
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = |unit: f64| (seconds / unit).floor();
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < LONG_S => format!("{seconds:.1} s"),
        _ if seconds < DAYS_S => format!("{:.0} h {:.0} min", whole(3600.0), (seconds % 3600.0 / 60.0).floor()),
        _ => format!("{} d {:.0} h", thousands(whole(86_400.0)), (seconds % 86_400.0 / 3600.0).floor()),
    }
}

/// "1 burst", "1,234 bursts".
#[must_use]
pub fn count(number: usize, what: &str) -> String {
    format!("{} {what}{}", thousands(number as f64), if number == 1 { "" } else { "s" })
}

/// A large number by its prefix, with four digits: 85,932,800 is "85.93 M". Below a million as [`thousands`].
#[must_use]
pub fn prefixed(value: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    // What rounds up to a thousand of one prefix is one of the next.
    match PREFIXES.iter().find(|(unit, _)| value.abs() >= unit * 0.999_95) {
        None => thousands(value),
        Some((unit, prefix)) => {
            let scaled = value / unit;
            let decimals = if scaled.abs() < 10.0 {
                3
            } else if scaled.abs() < 100.0 {
                2
            } else {
                1
            };
            format!("{scaled:.decimals$} {prefix}")
        }
    }
}

/// GiB with the unit that suits: "92 MiB", "6 GiB", "1.5 TiB".
#[must_use]
pub fn gibibytes(gib: f64) -> String {
    match gib {
        _ if gib.abs() < 0.000_95 => format!("{} KiB", plain((gib * 1_048_576.0).round())),
        _ if gib.abs() < 0.95 => format!("{} MiB", digits(gib * 1024.0).trim_end_matches(".00")),
        _ if gib.abs() < 1024.0 => format!("{} GiB", plain((gib * 100.0).round() / 100.0)),
        _ => format!("{} TiB", plain((gib / 10.24).round() / 100.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(thousands(0.0), "0");
        assert_eq!(thousands(-0.2), "0");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(-1234.0), "-1,234");
        assert_eq!(thousands(-123_456.0), "-123,456");
    }

    #[test]
    fn long_times_and_large_numbers_are_readable() {
        let times = [2.314, 1231.04, 10_800.0, 18_720.0, 172_799.0, 2_516_400.0];
        let shown = ["2.31 s", "1231.0 s", "3 h 0 min", "5 h 12 min", "47 h 59 min", "29 d 3 h"];
        assert_eq!(times.map(duration).each_ref().map(String::as_str), shown);
        assert_eq!((count(1, "burst"), count(1234, "boost")), ("1 burst".to_owned(), "1,234 boosts".to_owned()));
        let values = [2_685.4, 999_949.0, 999_999.0, 85_932_800.0, -1.5e9, 4.237e12];
        let shown = ["2,685", "999,949", "1.000 M", "85.93 M", "-1.500 G", "4.237 T"];
        assert_eq!(values.map(prefixed).each_ref().map(String::as_str), shown);
        let sizes = [0.0, 0.0625, 0.09, 0.5, 6.0, 10.244, 2048.0];
        let shown = ["0 KiB", "64.0 MiB", "92.2 MiB", "512 MiB", "6 GiB", "10.24 GiB", "2 TiB"];
        assert_eq!(sizes.map(gibibytes).each_ref().map(String::as_str), shown);
    }

    #[test]
    fn digits_and_zeros_that_say_nothing_are_left_out() {
        assert_eq!(["1.23", "12.3", "123"], [1.234, 12.34, 123.4].map(digits).each_ref().map(String::as_str));
        assert_eq!(["4", "2.5", "0.125"], [4.0, 2.5, 0.125].map(plain).each_ref().map(String::as_str));
        assert_eq!((small_dollars(0.001_234), small_dollars(1.5)), ("$0.001234".to_owned(), "$1.5000".to_owned()));
        assert_eq!(
            [4.7e-7, 0.0].map(small_dollars),
            ["under $0.000001", "$0.000000"],
            "what costs something is not shown as nothing"
        );
        assert_eq!((difference(1.0081, 1), difference(0.5, 0)), ("+0.8 %".to_owned(), "-50 %".to_owned()));
        assert_eq!((difference(0.99999, 1), difference(1.0, 1)), ("+0.0 %".to_owned(), "+0.0 %".to_owned()));
    }
}
