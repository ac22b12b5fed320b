//! Quantities as text: what is printed is read back, what is wrong is one sentence.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::units::{Bandwidth, Bytes, Iops, Span};

/// Numbers as people write them: small ones, powers of two and ten, and any other.
fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..5000,
        (0u64..5000, 0u32..44).prop_map(|(number, shift)| number << shift),
        (0u64..5000, 0u32..13).prop_map(|(number, zeroes)| number * 10u64.pow(zeroes)),
        any::<u64>(),
    ]
}

proptest! {
    #[test]
    fn printed_is_read_back(amount in amounts()) {
        let bytes = Bytes::new(amount);
        prop_assert_eq!(bytes.to_string().parse::<Bytes>(), Ok(bytes));
        let bandwidth = Bandwidth::new(amount);
        prop_assert_eq!(bandwidth.to_string().parse::<Bandwidth>(), Ok(bandwidth));
        let iops = Iops::new(amount);
        prop_assert_eq!(iops.to_string().parse::<Iops>(), Ok(iops));
        let span = Span(Duration::from_nanos(amount));
        prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
    }

    #[test]
    fn decimals_are_exact(thousandths in 0u64..10_000_000) {
        let text = format!("{}.{:03} GiB", thousandths / 1000, thousandths % 1000);
        let exact = u128::from(thousandths) * (1 << 30) / 1000;
        prop_assert_eq!(u128::from(text.parse::<Bytes>().unwrap().get()), exact);
        let text = format!("{}.{:03} s", thousandths / 1000, thousandths % 1000);
        prop_assert_eq!(text.parse::<Span>().unwrap().0, Duration::from_millis(thousandths));
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}") {
        let _ = (text.parse::<Bytes>(), text.parse::<Bandwidth>(), text.parse::<Iops>(), text.parse::<Span>());
    }

    #[test]
    fn no_number_panics(number in "[0-9.]{0,30}", unit in "( )?(B|KiB|TiB|GB|MiB/s|GB/s|IOPS|d|h|ns)?") {
        let text = number + &unit;
        let _ = (text.parse::<Bytes>(), text.parse::<Bandwidth>(), text.parse::<Iops>(), text.parse::<Span>());
    }

    #[test]
    fn rounding_up_is_least(size in any::<u64>(), grain in 0u64..1 << 40) {
        let rounded = Bytes::new(size).round_up(Bytes::new(grain)).get();
        prop_assert!(rounded >= size);
        if grain > 0 && rounded != u64::MAX {
            prop_assert!(rounded.is_multiple_of(grain) && rounded - size < grain);
        }
    }

    #[test]
    fn time_for_is_the_least_whole_nanosecond(bytes in 0u64..1 << 50, rate in 1u64..1 << 50) {
        let nanoseconds = Bandwidth::new(rate).time_for(bytes).as_nanos();
        prop_assume!(nanoseconds < u128::from(u64::MAX));
        let needed = u128::from(bytes) * 1_000_000_000;
        prop_assert!(nanoseconds * u128::from(rate) >= needed);
        prop_assert!(nanoseconds == 0 || (nanoseconds - 1) * u128::from(rate) < needed);
    }
}

#[test]
fn what_people_write() {
    assert_eq!("50 GiB".parse(), Ok(Bytes::from_gib(50)));
    assert_eq!("50GB".parse(), Ok(Bytes::new(50_000_000_000)));
    assert_eq!(" 1.5 TiB ".parse(), Ok(Bytes::from_gib(1536)));
    assert_eq!("33 MiB/s".parse(), Ok(Bandwidth::from_mib_s(33)));
    assert_eq!("3000 IOPS".parse(), Ok(Iops::new(3000)));
    assert_eq!("5 min".parse(), Ok(Span(Duration::from_secs(300))));
    assert_eq!("1.5 h".parse(), Ok(Span(Duration::from_secs(5400))));
}

#[test]
fn what_is_wrong_names_the_remedy() {
    let cases = [
        ("50", "has no unit"),
        ("fifty GiB", "is not a size"),
        ("-1 GiB", "is negative"),
        ("1 GiBi", "unknown unit"),
        ("1.2.3 GiB", "is not a size"),
        ("99999999999 TiB", "too large"),
        ("", "is not a size"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Bytes>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    assert!("0 MiB/s".parse::<Bandwidth>().unwrap_err().to_string().contains("above zero"));
    assert!("0.5 ns".parse::<Span>().unwrap_err().to_string().contains("whole number"));
}

#[test]
fn a_bare_number_in_a_file_names_the_missing_unit() {
    #[derive(Debug, serde::Deserialize)]
    struct File {
        #[allow(dead_code, reason = "only read by Debug")]
        size: Bytes,
    }
    let error = toml::from_str::<File>("size = 50\n").unwrap_err().to_string();
    assert!(error.contains("no unit") && error.contains("50 GiB") && error.contains("line 1"), "{error}");
}
