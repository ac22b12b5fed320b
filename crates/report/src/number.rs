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
    dollars(Some(usd), if usd < 0.01 { 6 } else { 4 })
}

/// A ratio as the difference from 1: 1.008 → "+0.8 %".
#[must_use]
pub fn difference(ratio: f64, decimals: usize) -> String {
    format!("{:+.decimals$} %", (ratio - 1.0) * 100.0)
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
    fn digits_and_zeros_that_say_nothing_are_left_out() {
        assert_eq!(["1.23", "12.3", "123"], [1.234, 12.34, 123.4].map(digits).each_ref().map(String::as_str));
        assert_eq!(["4", "2.5", "0.125"], [4.0, 2.5, 0.125].map(plain).each_ref().map(String::as_str));
        assert_eq!((small_dollars(0.001_234), small_dollars(1.5)), ("$0.001234".to_owned(), "$1.5000".to_owned()));
        assert_eq!((difference(1.0081, 1), difference(0.5, 0)), ("+0.8 %".to_owned(), "-50 %".to_owned()));
    }
}
