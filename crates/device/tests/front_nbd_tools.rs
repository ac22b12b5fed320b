//! The NBD front under the tools of others: libnbd's, QEMU's and fio's, at both sizes of logical blocks.

#![allow(clippy::print_stdout, reason = "tests say what they skip and which versions ran")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use front_support::{Driver, has, have, run, try_run};
use surgetank_device::front::nbd::{Limits, NbdConfig, NbdFront};
use surgetank_device::front::{Export, Front};

const MIB: usize = 1 << 20;
const BLOCKS: [usize; 2] = [512, 4096];

struct Server {
    driver: Driver,
    uri: String,
    directory: tempfile::TempDir,
}

impl Server {
    fn start(size: usize, block: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let front = NbdFront::open(NbdConfig {
            export: Export { name: "data".into(), size: size as u64, logical_block: block as u32 },
            unix: Some(directory.path().join("data.sock")),
            tcp: None,
            tls: None,
            limits: Limits::default(),
        })
        .unwrap();
        let uri = front.address();
        Self { driver: Driver::start(front, size), uri, directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        *self.driver.disk.lock().unwrap() == bytes
    }
}

/// As large as the blocks allow to be odd.
fn odd_size(block: usize) -> usize {
    16 * MIB + if block == 512 { 512 } else { 4096 }
}

/// Data with runs of zeroes, so that copies have holes to find.
fn sample(size: usize) -> Vec<u8> {
    let word = |index: u32| if index / 65536 % 3 == 1 { 0 } else { index.wrapping_mul(2_654_435_761) | 1 };
    (0..size as u32 / 4).flat_map(|index| word(index).to_be_bytes()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn libnbd_tools() {
    if !have(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    for block in BLOCKS {
        let size = odd_size(block);
        let server = Server::start(size, block);
        let info = run("nbdinfo", &["--json", &server.uri]);
        for expected in [
            "\"protocol\": \"newstyle-fixed\"",
            "\"TLS\": false",
            "\"structured\": true",
            "\"export-name\": \"data\"",
            "\"base:allocation\"",
            "\"can_cache\": false",
            "\"can_df\": true",
            "\"can_fast_zero\": false",
            "\"can_flush\": true",
            "\"can_fua\": true",
            "\"can_multi_conn\": true",
            "\"can_trim\": true",
            "\"can_zero\": true",
            "\"is_read_only\": false",
            "\"block_size_preferred\": 4096",
            "\"block_size_maximum\": 33554432",
            &format!("\"export-size\": {size}"),
            &format!("\"block_size_minimum\": {block}"),
        ] {
            assert!(info.contains(expected), "{expected} in {info}");
        }
        assert_eq!(run("nbdinfo", &["--size", &server.uri]).trim(), size.to_string());
        assert!(run("nbdinfo", &["--list", "--json", &server.uri]).contains("\"export-name\": \"data\""));
        let map = run("nbdinfo", &["--map", "--json", &server.uri]);
        assert!(map.contains("\"offset\": 0") && map.contains(&format!("\"length\": {size}")), "{map}");
        assert!(!try_run("nbdinfo", &["--is", "read-only", &server.uri]).status.success());

        let bytes = sample(size);
        let (source, copy) = (server.file("source"), server.file("copy"));
        std::fs::write(&source, &bytes).unwrap();
        for more in
            [&["--flush"][..], &["--connections=4", "--requests=16"], &["--synchronous"], &["--request-size=4096"]]
        {
            // Old data must go, also where the source has nothing.
            server.driver.disk.lock().unwrap().fill(0xee);
            let _ = std::fs::remove_file(&copy);
            run("nbdcopy", &[more, &[text(&source), &server.uri]].concat());
            assert!(server.holds(&bytes), "{more:?} to the export, blocks of {block}");
            run("nbdcopy", &[more, &[&server.uri, text(&copy)]].concat());
            assert!(std::fs::read(&copy).unwrap() == bytes, "{more:?} from the export, blocks of {block}");
        }
        assert!(server.driver.seen.flushes.load(Ordering::SeqCst) > 0);
        assert!(server.driver.seen.zeroed.load(Ordering::SeqCst) > 0, "holes were not written out");
    }
    // From export to export, from small blocks to large ones and back.
    let (small, large) = (Server::start(16 * MIB, 512), Server::start(16 * MIB, 4096));
    let bytes = sample(16 * MIB);
    small.driver.disk.lock().unwrap().copy_from_slice(&bytes);
    run("nbdcopy", &[&small.uri, &large.uri]);
    assert!(large.holds(&bytes));
    small.driver.disk.lock().unwrap().fill(1);
    run("nbdcopy", &["--flush", &large.uri, &small.uri]);
    assert!(small.holds(&bytes));
}

/// What a script of libnbd's shell does with every command; `B` is the block, `h` the connection.
const SCRIPT: &str = r#"
import errno
def refused(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, error
    else:
        raise AssertionError("not refused")
S = h.get_size()
assert h.get_block_size(nbd.SIZE_MINIMUM) == B
h.set_strict_mode(0)
one = bytes([1]) * B
h.pwrite(one, 0, nbd.CMD_FLAG_FUA)
assert h.pread(B, 0) == one
seen = []
def chunk(data, offset, status, error):
    seen.append((bytes(data), offset, status))
h.pread_structured(2 * B, 0, chunk, nbd.CMD_FLAG_DF)
assert seen == [(one + bytes(B), 0, nbd.READ_DATA)], "one chunk"
h.pwrite(b"\7" * 65536, 0)
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
h.trim(4096, 8192, nbd.CMD_FLAG_FUA)
assert h.pread(16384, 0) == b"\7" * 4096 + bytes(8192) + b"\7" * 4096
refused(errno.ENOTSUP, lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO))
for call in (
    lambda: h.pread(B // 2, 0), lambda: h.pread(B, B // 2), lambda: h.pwrite(bytes(B - 1), 0),
    lambda: h.pread(0, 0), lambda: h.trim(0, 0), lambda: h.zero(0, 0), lambda: h.trim(B, S), lambda: h.pread(B, S),
    lambda: h.cache(B, 0), lambda: h.pread(B, 0, nbd.CMD_FLAG_REQ_ONE), lambda: h.trim(B, 0, nbd.CMD_FLAG_NO_HOLE),
):
    refused(errno.EINVAL, call)
refused(errno.ENOSPC, lambda: h.pwrite(one, S))
refused(errno.ENOSPC, lambda: h.zero(2 * B, S - B))
h.pwrite(one, S - B)
assert h.pread(B, S - B) == one, "the last block"
extents = []
def extent(context, offset, entries, error):
    extents.append((context, offset, entries))
h.block_status(S, 0, extent, nbd.CMD_FLAG_REQ_ONE)
h.block_status(B, S - B, extent)
assert extents == [("base:allocation", 0, [S, 0]), ("base:allocation", S - B, [B, 0])], extents
cookies = []
for index in range(64):
    buffer = nbd.Buffer.from_bytearray(bytearray([index + 1]) * 4096)
    cookies.append(h.aio_pwrite(buffer, index * 4096))
while not all(h.aio_command_completed(c) for c in cookies[:1]):
    h.poll(-1)
cookies = cookies[1:]
while cookies:
    if h.aio_command_completed(cookies[0]):
        cookies.pop(0)
    else:
        h.poll(-1)
other = nbd.NBD()
other.connect_uri(URI)
assert h.can_multi_conn() and other.can_multi_conn()
other.flush()
for index in range(64):
    assert other.pread(4096, index * 4096) == bytes([index + 1]) * 4096
other.shutdown()
h.flush()
h.shutdown()
print("libnbd", h.get_version())
"#;

#[test]
fn nbdsh_scripts() {
    if !has("nbdsh") {
        return;
    }
    for block in BLOCKS {
        let server = Server::start(odd_size(block), block);
        let script = format!("B = {block}\nURI = {:?}\n{SCRIPT}", server.uri);
        // The Python that Debian's libnbd was built for, whichever comes first otherwise.
        let output = Command::new("nbdsh")
            .env("PATH", "/usr/bin:/bin")
            .args(["--base-allocation", "-u", &server.uri, "-c", &script])
            .output()
            .unwrap();
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("libnbd"), "blocks of {block}: {said}{complained}");
        println!("nbdsh: {}", said.trim());
    }
}

#[test]
fn qemu_tools() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    for block in BLOCKS {
        let size = odd_size(block);
        let server = Server::start(size, block);
        let seen = &server.driver.seen;
        let io = |commands: &[&str]| {
            let commands = commands.iter().flat_map(|command| ["-c", *command]);
            let arguments: Vec<&str> = ["-f", "raw", "-d", "unmap"].into_iter().chain(commands).collect();
            run("qemu-io", &[&arguments[..], &[&server.uri]].concat())
        };
        let output = io(&[
            "write -P 7 0 1M",
            "write -f -P 8 1M 64k",
            "read -P 7 0 1M",
            "write -z 0 4k",
            "write -z -u 4k 4k",
            "write -z -f 8k 4k",
            "write -z -u -f 12k 4k",
            "read -P 0 0 16k",
            "discard 16k 4k",
            "read -P 0 16k 4k",
            "flush",
            "read -P 8 1M 64k",
            "aio_write -P 5 2M 128k",
            "aio_write -f -P 6 3M 4k",
            "aio_write -z 4M 64k",
            "aio_flush",
            "aio_read -P 5 2M 128k",
            "aio_read -P 6 3M 4k",
            "aio_flush",
            "writev -P 9 5M 4k 8k 4k",
            "readv -P 9 5M 8k 8k",
            // Smaller than a block of 4096: the client reads, changes and writes.
            "write -P 3 6291968 512",
            "read -P 3 6291968 512",
            "read -P 0 6291456 512",
            "read -P 0 6292480 512",
            "length",
        ]);
        assert!(!output.contains("failed") && !output.contains("rror"), "{output}");
        assert!(seen.zeroed.load(Ordering::SeqCst) >= 4096 && seen.discarded.load(Ordering::SeqCst) >= 4096);
        assert!(seen.durable.load(Ordering::SeqCst) >= 3, "FUA came as such");
        let (source, copy) = (server.file("source"), server.file("copy"));
        let bytes = sample(size);
        std::fs::write(&source, &bytes).unwrap();
        let info = run("qemu-img", &["info", "--output=json", &server.uri]);
        assert!(info.contains(&format!("\"virtual-size\": {size}")), "{info}");
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &server.uri]);
        assert!(server.holds(&bytes), "blocks of {block}");
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &server.uri, text(&copy)]);
        assert!(std::fs::read(&copy).unwrap() == bytes);
        let same = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &server.uri]);
        assert!(same.contains("identical"), "{same}");
        server.driver.disk.lock().unwrap()[size - 1] ^= 1;
        assert_eq!(
            try_run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &server.uri]).status.code(),
            Some(1)
        );
        let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &server.uri]);
        assert!(map.contains("\"data\": true") && map.contains(&format!("\"length\": {size}")), "{map}");
        run("qemu-img", &["bench", "-f", "raw", "-w", "-c", "500", "-d", "16", "-s", "4096", &server.uri]);
    }
}

#[test]
fn fio_verifies() {
    if !have(&["fio"]) {
        return;
    }
    if !String::from_utf8_lossy(&try_run("fio", &["--enghelp"]).stdout).contains("nbd") {
        println!("skipped: fio has no nbd engine");
        return;
    }
    for block in BLOCKS {
        let server = Server::start(24 * MIB, block);
        let uri = format!("--uri={}", server.uri);
        let small = format!("--bs={block}");
        let jobs: [&[&str]; 4] = [
            &["--name=large", "--rw=write", "--bs=1M", "--iodepth=8"],
            &["--name=small", "--rw=randrw", &small, "--iodepth=32", "--io_size=8M"],
            &["--name=mixed", "--rw=randwrite", "--bsrange=4k-256k", "--iodepth=16"],
            &["--name=trimmed", "--rw=randtrimwrite", "--bs=16k", "--iodepth=8", "--fsync=32"],
        ];
        for job in jobs {
            let common = [
                "--ioengine=nbd",
                &uri,
                "--size=24M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--randseed=7",
                "--group_reporting",
            ];
            run("fio", &[job, &common].concat());
        }
    }
}
