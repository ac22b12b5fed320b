//! Reports of iostat and sar: what they mean, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::{Options, Series};

const IOSTAT: &str = "Linux 6.1.0 (host) \t11/24/2026 \t_x86_64_\t(2 CPU)\n\n\
    11/24/2026 11:59:40 PM\navg-cpu:  %user   %nice %system %iowait  %steal   %idle\n           1.00    0.00    0.50    0.00    0.00   98.50\n\n\
    Device            r/s     rkB/s     w/s     wkB/s   %util\nsda            900.00   9000.00  900.00   9000.00    1.00\n\n\
    11/24/2026 11:59:50 PM\navg-cpu:  %user   %nice %system %iowait  %steal   %idle\n           1.00    0.00    0.50    0.00    0.00   98.50\n\n\
    Device            r/s     rkB/s     w/s     wkB/s   %util\nsda              2.00     10.00   10.00   1024.00    1.00\n\
    sda1             2.00     10.00   10.00   1024.00    1.00\ndm-0             2.00     10.00   10.00   1024.00    1.00\n\n\
    11/25/2026 12:00:00 AM\nDevice            r/s     rkB/s     w/s     wkB/s   %util\nsda              0.00      0,50    1.00      4.00    1.00\n\
    sdb              0.00      0.00    1.00      bad    1.00\n";

const SAR: &str = "Linux 6.1.0 (host) \t11/24/2026 \t_x86_64_\t(2 CPU)\n\n\
    23:40:00          tps      rtps      wtps      dtps   bread/s   bwrtn/s   bdscd/s\n\
    23:50:00         3.00      1.00      2.00      0.00    200.00   2048.00      0.00\n\
    00:00:00         0.00      0.00      0.00      0.00      0.00      0.00      0.00\n\
    Average:         1.50      0.50      1.00      0.00    100.00   1024.00      0.00\n\n\
    00:03:00     LINUX RESTART\t(2 CPU)\n\n\
    00:10:00          tps      rtps      wtps      dtps   bread/s   bwrtn/s   bdscd/s\n\
    00:20:00         3.00      1.00      2.00      0.00      0.00      2.00      0.00\n";

fn open(name: &str, text: &str, options: Options, interval: Duration) -> Result<Series, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    Series::open(&path, options, interval, |_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_report_of_iostat_is_spread_over_its_intervals() {
    let series = open("io.txt", IOSTAT, Options::default(), Duration::from_secs(5)).unwrap();
    let found: Vec<[u64; 3]> = series.samples.iter().map(|s| [s.read.get(), s.written.get(), s.requests]).collect();
    // The first report is about the time since the boot; of the second sda counts, and not what lies on it.
    let kib = 1024;
    assert_eq!(
        found,
        [[50 * kib, 5120 * kib, 60], [50 * kib, 5120 * kib, 60], [2560, 20 * kib, 5], [2560, 20 * kib, 5]]
    );
    assert_eq!((series.touched, series.broken), (None, 1));
    assert!(series.warnings[0].contains("io.txt:22: \"bad\" is no rate"), "{:?}", series.warnings);
    assert!(series.warnings[1].contains("devices of the report: sda1, dm-0"), "{:?}", series.warnings);
    let strict = Options { strict: true, ..Options::default() };
    assert!(open("io.txt", IOSTAT, strict, Duration::from_secs(5)).unwrap_err().contains("io.txt:22: \"bad\""));
}

#[test]
fn a_report_of_sar_goes_over_midnight_and_over_a_restart() {
    let series = open("sar.txt", SAR, Options::default(), Duration::from_secs(600)).unwrap();
    let found: Vec<[u64; 3]> = series.samples.iter().map(|s| [s.read.get(), s.written.get(), s.requests]).collect();
    let (read, written) = (200 * 512 * 600, 2048 * 512 * 600);
    assert_eq!(found, [[read, written, 1800], [0, 0, 0], [0, 0, 0], [0, 2 * 512 * 600, 1800]]);
    let devices = SAR.replace("tps      rtps", "DEV       tps").replace("bread/s", "rkB/s").replace("bwrtn/s", "wkB/s");
    assert!(open("sar.txt", &devices, Options::default(), Duration::from_secs(600)).is_ok());
}

#[test]
fn reports_without_times_or_without_io_are_refused_with_the_remedy() {
    let without: String = IOSTAT
        .lines()
        .filter(|line| !line.contains("M\n") && !line.ends_with('M'))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let said = open("io.txt", &without, Options::default(), Duration::from_secs(1)).unwrap_err();
    assert!(said.contains("iostat -t"), "{said}");
    let cpu = "Linux 6.1.0 (h) 11/24/2026\n\n12:00:01 AM     CPU     %user     %nice\n12:10:01 AM     all      1.00      2.00\n";
    let said = open("cpu.txt", cpu, Options::default(), Duration::from_secs(1)).unwrap_err();
    assert!(said.contains("sar -d"), "{said}");
    let once: String = IOSTAT.lines().take(8).map(|line| line.to_owned() + "\n").collect();
    assert!(open("io.txt", &once, Options::default(), Duration::from_secs(1)).unwrap_err().contains("-t 1"));
    assert!(open("io.txt", IOSTAT, Options::default(), Duration::ZERO).unwrap_err().contains("longer than zero"));
}

proptest! {
    #[test]
    fn no_report_is_too_odd(
        is_sar in any::<bool>(),
        lines in prop::collection::vec(
            prop_oneof![
                Just("Device r/s rkB/s".to_owned()),
                Just("12:00:01 PM DEV tps rkB/s".to_owned()),
                "([0-2][0-9]:[0-5][0-9]:[0-5][0-9] )?(AM |PM )?[a-z]{1,3}[0-9]? [0-9]{1,18}(\\.[0-9])? [0-9]{1,3}",
                "[0-2][0-9]:[0-5][0-9]:[0-5][0-9]",
                "\\PC{0,40}",
            ],
            0..30,
        ),
    ) {
        let name = if is_sar { Format::Sar } else { Format::Iostat };
        let options = Options { format: Some(name), strict: false };
        let _ = open("x", &lines.join("\n"), options, Duration::from_secs(60));
    }
}
