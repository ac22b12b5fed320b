//! What is written in each format is read back, however it is cut or compressed; what is broken is counted and named.

mod support;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use support::{FORMATS, Wanted, encode, encoded_as};
use surgetank_model::{Bytes, Instant};
use surgetank_trace::{Access, Format, Gathered, Keys, Only, Options, Parser, Reader, Request, Series, TraceError};

fn requests() -> impl Strategy<Value = Vec<Wanted>> {
    let one = (0u64..4_000_000, 0u32..3, 0u64..1 << 40, 1u64..1 << 12, any::<bool>());
    prop::collection::vec(one, 1..60).prop_map(|all| {
        all.into_iter()
            .map(|(time_s, volume, block, blocks, write)| Wanted { time_s, volume, block, blocks, write })
            .collect()
    })
}

/// Parses in pieces of these lengths, over and over.
fn parse_cut(format: Format, bytes: &[u8], pieces: &[usize]) -> (Vec<Request>, u64) {
    let mut parser = Parser::new(format, bytes, false).expect("the head is right");
    let mut found = Vec::new();
    let (mut taken, mut shown) = (0, 0);
    let mut pieces = pieces.iter().copied().cycle();
    while shown < bytes.len() || taken < bytes.len() {
        shown = (shown + pieces.next().expect("it cycles")).min(bytes.len());
        let last = shown == bytes.len();
        taken += parser.parse(&bytes[taken..shown], last, |request| found.push(request)).expect("it is not strict");
        assert!(!last || taken == bytes.len());
    }
    (found, parser.tally().broken)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn what_is_written_is_read_back(wanted in requests(), pieces in prop::collection::vec(1usize..200, 1..5)) {
        for format in FORMATS {
            let bytes = encode(*format, &wanted);
            let (found, broken) = parse_cut(*format, &bytes, &pieces);
            prop_assert_eq!(broken, 0, "{:?}", format);
            prop_assert_eq!(found, encoded_as(*format, &wanted), "{:?}", format);
        }
    }

    #[test]
    fn damage_is_the_same_however_it_is_cut(
        wanted in requests(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        pieces in prop::collection::vec(1usize..200, 1..5),
    ) {
        for format in FORMATS {
            let mut bytes = encode(*format, &wanted);
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if Parser::new(*format, &bytes, false).is_ok() {
                let whole = parse_cut(*format, &bytes, &[bytes.len()]);
                prop_assert_eq!(parse_cut(*format, &bytes, &pieces), whole, "{:?}", format);
            }
        }
    }
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn read(path: &Path, options: Options) -> Result<Vec<Request>, TraceError> {
    let mut found = Vec::new();
    Reader::open(path, options)?.read_all(|request| found.push(request))?;
    Ok(found)
}

fn sample(count: u64) -> Vec<Wanted> {
    let one = |index: u64| Wanted {
        time_s: index / 10,
        volume: 0,
        block: index * 7919 % 5000 * 8,
        blocks: 8,
        write: index.is_multiple_of(3),
    };
    (0..count).map(one).collect()
}

#[test]
fn formats_are_recognised_by_name_or_by_looking() {
    let directory = tempfile::tempdir().unwrap();
    let wanted = sample(100);
    for (name, format) in [
        ("a.txt", Format::Plain),
        ("a.keys", Format::Plain),
        ("hm_0.csv", Format::Msr),
        ("named.csv", Format::Csv),
        ("w01.vscsi", Format::Vscsi),
        ("trace", Format::Vscsi),
        ("a.oracleGeneral", Format::OracleGeneral),
        ("a.oracleGeneral.bin", Format::OracleGeneral),
        ("log", Format::FioIolog),
        ("trace.log", Format::Blkparse),
        ("OLTP.lis", Format::Arc),
        ("dxt.txt", Format::DarshanDxt),
        ("tpcc.trace", Format::MqSim),
    ] {
        let path = write(directory.path(), name, &encode(format, &wanted));
        let reader = Reader::open(&path, Options::default()).unwrap();
        assert_eq!(reader.format(), format, "{name}");
        assert_eq!(read(&path, Options::default()).unwrap(), encoded_as(format, &wanted), "{name}");
    }
}

/// In two frames, with a frame to skip between them.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let mut all = ruzstd::encoding::compress_to_vec(first, level);
    all.extend([0x52, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
    all.extend(ruzstd::encoding::compress_to_vec(second, level));
    all
}

/// In two members.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let member = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let (first, second) = bytes.split_at(bytes.len() / 3);
    [member(first), member(second)].concat()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A name and how to make one of such a name.
type Compression = (&'static str, fn(&[u8]) -> Vec<u8>);
const COMPRESSIONS: &[Compression] = &[("zst", zstd), ("gz", gzip), ("xz", xz)];

#[test]
fn compressed_traces_are_read_on_the_fly() {
    let directory = tempfile::tempdir().unwrap();
    // More than a buffer's worth, so that records lie across its end.
    let wanted = sample(60_000);
    for (suffix, compress) in COMPRESSIONS {
        let name = format!("a.oracleGeneral.{suffix}");
        let compressed = compress(&encode(Format::OracleGeneral, &wanted));
        let path = write(directory.path(), &name, &compressed);
        assert_eq!(read(&path, Options::default()).unwrap(), encoded_as(Format::OracleGeneral, &wanted), "{suffix}");
        let mut reader = Reader::open(&path, Options::default()).unwrap();
        while reader.read(|_| ()).unwrap() {}
        let length = compressed.len() as u64;
        assert_eq!(reader.progress(), (length, Some(length)), "{suffix}");
        for cut in [length / 2, length - 3] {
            let path = write(directory.path(), &name, &compressed[..cut as usize]);
            let error = read(&path, Options::default()).unwrap_err();
            assert!(
                matches!(&error, TraceError::Invalid(text) if text.contains("damaged")),
                "{suffix} {cut} {error:?}"
            );
        }
    }
}

#[test]
fn broken_lines_are_counted_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "a.txt", b"1 2\n3\n4x 5\n-6\n# 7\n* 8\n99999999999999999999\n9\n");
    let mut reader = Reader::open(&path, Options::default()).unwrap();
    let mut keys = Vec::new();
    while reader.read(|request| keys.push(request.address)).unwrap() {}
    assert_eq!(keys, [1, 2, 3, 5, 9]);
    assert_eq!(reader.tally().broken, 3);
    let warning = reader.warning().unwrap();
    assert!(
        warning.ends_with("a.txt:3: the key \"4x\" is not a number; it is the first that was left out (3 of 8)"),
        "{warning}"
    );
    let error = read(&path, Options { strict: true, format: None }).unwrap_err().to_string();
    assert!(error.contains("a.txt:3: the key \"4x\" is not a number; fix it"), "{error}");

    let words = write(directory.path(), "words.txt", b"a b c\na b 7\n");
    let keys: Vec<u64> = read(&words, Options::default()).unwrap().iter().map(|request| request.address).collect();
    assert_eq!((keys.len(), keys[0], keys[1]), (6, keys[3], keys[4]));

    let mut records = encode(Format::OracleGeneral, &sample(3));
    records.extend([1; 23]);
    let path = write(directory.path(), "cut.oracleGeneral", &records);
    assert_eq!(read(&path, Options::default()).unwrap().len(), 3);
    let error = read(&path, Options { strict: true, format: None }).unwrap_err().to_string();
    assert!(error.contains("cut.oracleGeneral: record 4: it is cut off: 23 of 24 bytes"), "{error}");
}

#[test]
fn what_is_no_trace_is_told_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let cases: &[(&str, &[u8], Option<Format>, &str)] = &[
        ("empty.txt", b"", None, "is empty"),
        ("comments.txt", b"# nothing\n\n", Some(Format::Plain), "holds no reads or writes"),
        ("zeros", &[0; 100], None, "cannot tell the format"),
        ("zeros.vscsi", &[0; 100], None, "is no vscsi trace"),
        ("prose.csv", b"a,b\nc,d\n", None, "prose.csv:1: the header names no column"),
        ("other.txt", b"hello\n", Some(Format::Msr), "other.txt:1: it has fewer than the six fields"),
        ("flush.blkparse", b"8,0 1 1 0.5 7 Q FN [x]\n", None, "holds no reads or writes"),
        ("packed.bz2", b"BZh91AY", None, "is compressed with bzip2, which is not read: decompress it first"),
        ("empty.gz", &[0x1f, 0x8b], None, "damaged: its gzip data ends too early"),
        ("io.txt", b"Linux 6.1 (h)\n\n10:00:00\nDevice r/s rkB/s w/s wkB/s\nsda 1 1 1 1\n", None, "a report of iostat"),
        ("x.dxt", b"# darshan log version: 3.41\n# total_POSIX_OPENS: 1\n", None, "DXT_ENABLE_IO_TRACE=1"),
        ("x.dxt", b"POSIX\t-1\t7\tPOSIX_OPENS\t1\n", None, "is not X_POSIX or X_MPIIO"),
    ];
    for (name, bytes, format, expected) in cases {
        let path = write(directory.path(), name, bytes);
        let error = read(&path, Options { format: *format, strict: false }).unwrap_err();
        let TraceError::Invalid(text) = error else { panic!("{name}: {error:?}") };
        assert!(text.contains(expected) && !text.contains('\n'), "{name}: {text}");
    }
    let missing = read(&directory.path().join("none"), Options::default()).unwrap_err();
    assert!(matches!(missing, TraceError::Invalid(_)), "{missing:?}");
    assert!(read(directory.path(), Options::default()).unwrap_err().to_string().contains("directory"));
}

#[test]
fn what_has_a_form_of_its_own_is_never_counted_as_keys() {
    let directory = tempfile::tempdir().unwrap();
    let job = "1 100 20 7200 4 -1 -1 4 7200 -1 1 -1 -1 -1 -1 -1 -1 -1\n";
    let commented = format!("; MaxProcs: 8\n{job}");
    let mut darshan = b"3.21\0\0\0\x0075d\0".to_vec();
    darshan.resize(200, 1);
    let cases: &[(&str, &[u8], &str)] = &[
        ("log.txt", commented.as_bytes(), "Standard Workload Format"),
        ("log", job.as_bytes(), "[jobs]"),
        ("log.plain", job.as_bytes(), "[jobs]"),
        ("six.swf.keys", b"{\"a\": 1}", "it is JSON"),
        ("six.swf", b"0 0 100 4 0 12\n10 1 100 4 1 12\n20 2 100 4 2 12\n", "[jobs]"),
        ("a.json", b"{\"requests\": [1, 2]}", "it is JSON"),
        ("a.txt", b"[\n1,\n2]", "it is JSON"),
        ("app.darshan", &darshan, "darshan-dxt-parser"),
        ("sda.blktrace.0", b"\x07tae\0\0\0\0\0\0\0\0", "blkparse"),
        ("sa24", b"\x96\xd5\0\0\0", "sar -d -f"),
        ("theta.txt", b"Job Submit Runtime Nodes\n164859 1514764835 11956 128\n164860 1514765541 12699 128\n", "table"),
        ("swarp.csv", b"ID START\n7 8\n", "as its name says"),
        ("a.csv", b"time_s;op;offset\n1;R;0\n", "semicolons"),
        ("noise", &[1, 2, 3, 200, 201], "cannot tell the format"),
    ];
    for (name, bytes, expected) in cases {
        let path = write(directory.path(), name, bytes);
        let error = read(&path, Options::default()).unwrap_err();
        let TraceError::Invalid(text) = error else { panic!("{name}: {error:?}") };
        assert!(text.contains(expected) && !text.contains('\n'), "{name}: {text}");
    }
    // Who says that it is keys is believed: here its numbers without a sign.
    let path = write(directory.path(), "log", job.as_bytes());
    assert_eq!(read(&path, Options { format: Some(Format::Plain), strict: false }).unwrap().len(), 8);
    // Keys that begin with words, or stand several in a line, are keys.
    for (keys, count) in [("a b c\nd e f\n", 6), ("1 2 3\n4 5 6\n", 6), ("1 2 3 4 1\n5 6 7 8 0\n1 2 3 4 2\n", 15)] {
        let path = write(directory.path(), "keys.txt", keys.as_bytes());
        assert_eq!(read(&path, Options::default()).unwrap().len(), count, "{keys}");
    }
}

#[test]
fn lines_of_any_length_do_not_fill_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = b"1,h,0,Read,0,512,0\n".to_vec();
    bytes.extend(vec![b'7'; 3 << 20]);
    bytes.extend(b"\n2,h,0,Write,512,512,0\n");
    let path = write(directory.path(), "long.csv", &bytes);
    let mut reader = Reader::open(&path, Options::default()).unwrap();
    let mut count = 0;
    while reader.read(|_| count += 1).unwrap() {}
    assert_eq!((count, reader.tally().broken), (2, 1));
    assert_eq!(reader.tally().first_broken.as_ref().map(|broken| broken.line), Some(2));
    // One token without an end, and one key a token without line ends.
    assert_eq!(parse_cut(Format::Plain, &vec![b'7'; 1 << 20], &[1000]).1, 1);
    assert_eq!(parse_cut(Format::Plain, &b"12 ".repeat(100_000), &[999]).0.len(), 100_000);
}

#[test]
fn published_lines_are_read() {
    let check = |format, text: &str, expected: &[(u64, u32, u64, u64, Access)]| {
        let (found, broken) = parse_cut(format, text.as_bytes(), &[text.len()]);
        let expected: Vec<Request> = expected
            .iter()
            .map(|(time, volume, address, length, operation)| Request {
                time: Instant::from_nanoseconds(*time),
                volume: *volume,
                address: *address,
                length: Bytes::new(*length),
                operation: *operation,
            })
            .collect();
        assert_eq!((found, broken), (expected, 0));
    };
    let (read, write) = (Access::Read, Access::Write);
    check(
        Format::Msr,
        "128166372003061629,hm,1,Read,383496192,32768,113736\n128166372016382155,hm,0,Write,2822144,4096,39421\n",
        &[
            (12_816_637_200_306_162_900, 0, 383_496_192, 32_768, read),
            (12_816_637_201_638_215_500, 1, 2_822_144, 4_096, write),
        ],
    );
    check(
        Format::Blkparse,
        "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n  \
         8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]\n  \
         8,0    1       11     0.009507758     0  C   W 223490 + 8 [0]\n  \
         8,16   1       12     1.5             1  Q FWS [x]\n  \
         8,16   1       12     1.500000000     1  Q  RA 8 + 1 [x]\n\
         CPU0 (8,0):\n Reads Queued:           0,        0KiB\t Writes Queued:\n",
        &[(1_829, 0, 223_490 * 512, 4096, write), (1_500_000_000, 1, 4096, 512, read)],
    );
    check(
        Format::FioIolog,
        "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a read 0 4096\n/dev/a wait 250 0\n/dev/b write 8192 512\n\
         /dev/a sync 0 0\n/dev/a close\n",
        &[(0, 0, 0, 4096, read), (250_000, 1, 8192, 512, write)],
    );
    check(
        Format::FioIolog,
        "fio version 3 iolog\n32 /f add\n198 /f write 0 4096\n66540 /f read 45056 4096\n",
        &[(198_000, 0, 0, 4096, write), (66_540_000, 0, 45_056, 4096, read)],
    );
    check(
        Format::Csv,
        "op,time_s,offset_bytes,length_bytes,latency_us\nW,0.000323,2282442752,4096,28\nFF,0.1,0,0,\nR,1,0,512,1\n",
        &[(323_000, 0, 2_282_442_752, 4096, write), (1_000_000_000, 0, 0, 512, read)],
    );
    check(
        Format::DarshanDxt,
        "# DXT, file_id: 14388265063268455899, file_name: /tmp/ior.txt\n# DXT, rank: 0, hostname: n1\n\
         # DXT, write_count: 1, read_count: 1\n# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)\n \
         X_POSIX       0  write        0               0       262144      0.0029      0.0032  [OST: 3]\n \
         X_POSIX       1   read        0          262144         4096      1.5000      1.5001\n\
         # DXT, file_id: 7, file_name: /tmp/b\n X_MPIIO       0  write        0               0       262144      0.0028      0.0033\n \
         X_POSIX       0  write        0               0           16      2.0000      2.0001\n",
        &[(2_900_000, 0, 0, 262_144, write), (1_500_000_000, 0, 262_144, 4096, read), (2_000_000_000, 1, 0, 16, write)],
    );
    check(
        Format::MqSim,
        "938513000 4 264719034 16 0\n938828000 3 197570570 8 1\n",
        &[(938_513_000, 0, 264_719_034 * 512, 8192, write), (938_828_000, 1, 197_570_570 * 512, 4096, read)],
    );
    check(Format::Arc, "7 3 0 0\n", &[(0, 0, 3584, 1536, Access::Unknown)]);
}

#[test]
fn a_series_has_the_bytes_of_each_interval() {
    let directory = tempfile::tempdir().unwrap();
    let text =
        b"time_s,op,offset_bytes,length_bytes\n10.5,W,0,100\n10.9,R,0,7\n12.6,W,4096,50\n10.2,W,0,1\n8.4,R,0,9\n";
    let path = write(directory.path(), "a.csv", text);
    let series = |path: &Path, interval| Series::open(path, Options::default(), interval, |_| ());
    let found = series(&path, Duration::from_secs(1)).unwrap();
    // 8.4 s is two whole intervals before the first request at 10.5 s.
    let bytes: Vec<(u64, u64)> = found.samples.iter().map(|s| (s.written.get(), s.read.get())).collect();
    assert_eq!(bytes, [(0, 9), (0, 0), (101, 7), (0, 0), (50, 0)]);
    assert_eq!(found.samples[2].requests, 3);
    assert_eq!((found.start.as_seconds(), found.touched), (8.5, Some(Bytes::new(4146))));
    assert!(series(&path, Duration::ZERO).is_err());
    assert!(series(&path, Duration::from_nanos(1)).unwrap_err().to_string().contains("longer interval"));
    let plain = write(directory.path(), "a.txt", b"1 2 3");
    let error = series(&plain, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("no times"), "{error}");
    let timeless = write(directory.path(), "b.csv", b"op,offset,length\nW,0,4096\nR,0,4096\n");
    let error = series(&timeless, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("b.csv:1: the header names no column time_s"), "{error}");
}

#[test]
fn what_was_touched_is_the_sum_over_the_disks() {
    let directory = tempfile::tempdir().unwrap();
    let text = b"time_s,op,offset_bytes,length_bytes,disk\n0,W,3000,100,a\n1,W,2000,100,b\n2,R,900,100,c\nbad,R,0,1,c\n3,W,0,50,a\n";
    let path = write(directory.path(), "a.csv", text);
    let mut shown = None;
    let series = Series::open(&path, Options::default(), Duration::from_secs(1), |at| shown = Some(at)).unwrap();
    assert_eq!((series.touched, series.broken), (Some(Bytes::new(3100 + 2100 + 1000)), 1));
    assert!(series.warnings[0].contains("a.csv:5: the time \"bad\" is not a number"), "{:?}", series.warnings);
    assert!(series.warnings[0].ends_with("(1 of 6)"), "{:?}", series.warnings);
    assert_eq!(shown, Some((text.len() as u64, Some(text.len() as u64))));
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = encode(Format::OracleGeneral, &sample(800_000));
    let path = write(directory.path(), "a.oracleGeneral", &bytes);
    let mut reader = Reader::open(&path, Options::default()).unwrap();
    assert_eq!(reader.read(|_| ()), Ok(true));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(9 << 20).unwrap();
    let error = loop {
        match reader.read(|_| ()) {
            Ok(more) => assert!(more, "it ended as if nothing were missing"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, TraceError::Failed(text) if text.contains("shorter")), "{error:?}");
}

#[test]
fn keys_are_those_of_the_requests() {
    let directory = tempfile::tempdir().unwrap();
    for format in FORMATS {
        // Several windows, and a record that is cut off.
        let mut bytes = encode(*format, &sample(30_000));
        bytes.truncate(bytes.len() - 1);
        let path = write(directory.path(), "a.trace", &bytes);
        let options = Options { format: Some(*format), ..Options::default() };
        for only in [Only::All, Only::Reads] {
            let keys = Keys { block: None, only };
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            let tally = Reader::open(&path, options)
                .unwrap()
                .read_all(|request| keys.of(&request, |key| expected.push(key)))
                .unwrap();
            let mut reader = Reader::open(&path, options).unwrap();
            let mut gathered = Gathered::new(keys);
            while reader.read_keys(&mut gathered, |keys| found.extend_from_slice(keys)).unwrap() {}
            assert_eq!(reader.finish(), Ok(tally), "{format:?}");
            assert!(found == expected, "{format:?}: {} and {} keys", found.len(), expected.len());
        }
    }
}
