//! What the daemon's tests share: a machine in a temporary directory, and a small NBD client.

#![allow(dead_code, reason = "every test program uses its own part")]

pub mod block;
pub mod child;
pub mod failing;
pub mod mounted;
pub mod rounds;
pub mod writers;

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use surgetank_daemon::{Config, Daemon, DeviceStatus, Phase, Request};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// How long anything may take before a test fails: far more than it ever does.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with everything that a daemon needs.
pub struct Machine {
    pub directory: TempDir,
}

/// What differs from test to test, as TOML. Boosts last until somebody ends them.
pub struct Shape {
    pub provider: String,
    pub device: String,
    pub caching: String,
    pub policy: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            provider: String::new(),
            device: String::new(),
            caching: "initial_size = \"32 MiB\"".to_owned(),
            policy: "sampling = \"20 ms\"\ninactivity_delay = \"30 s\"\nsize_grain = \"1 MiB\"\nretry_first = \"100 ms\"\nretry_longest = \"200 ms\"".to_owned(),
        }
    }
}

impl Machine {
    pub fn new() -> Self {
        // Whatever the umask: a daemon refuses a directory in which others may write.
        let ours = std::fs::Permissions::from_mode(0o700);
        Self { directory: tempfile::Builder::new().permissions(ours).tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A backing file of zeroes.
    pub fn backing(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    pub fn config_text(&self, devices: &[(&str, &str)], shape: &Shape) -> String {
        let root = self.directory.path().display();
        let mut text = format!(
            "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n[provider.local]\ndirectory = \"{root}/volumes\"\n{}\n\
             [provider.local.types.fast]\nbandwidth = \"128 MiB/s\"\n",
            shape.provider
        );
        for (name, backing) in devices {
            text += &format!(
                "[device.{name}]\nbacking = \"{backing}\"\nexport = \"nbd\"\n{}\n[device.{name}.backing_limits]\nbandwidth = \"33 MiB/s\"\n\
                 [device.{name}.caching]\nthrottle = false\n{}\n[device.{name}.policy]\n{}\n",
                shape.device, shape.caching, shape.policy
            );
        }
        text
    }

    pub fn config(&self, devices: &[(&str, &str)], shape: &Shape) -> Config {
        let text = self.config_text(devices, shape);
        Config::from_text(Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// How many volumes are rented.
    pub fn rented(&self) -> usize {
        images(&self.path("volumes")).len()
    }
}

impl Machine {
    /// What the daemon in the child process said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// What the local provider remembers.
    pub fn records(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("volumes/state")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Files of at least a MiB below a directory: the images of volumes.
pub fn images(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let found = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => images(&entry.path()),
        Ok(metadata) if metadata.len() >= MIB => vec![entry.path()],
        Ok(_) | Err(_) => Vec::new(),
    };
    entries.filter_map(Result::ok).flat_map(found).collect()
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn boost(daemon: &Daemon, name: &str) {
    daemon.handle(Request::Boost { device: name.into() }).unwrap();
    eventually("boost", || status(daemon, name).phase == Phase::Boost);
}

pub fn drain(daemon: &Daemon, name: &str) {
    daemon.handle(Request::Drain { device: name.into() }).unwrap();
    eventually("idle", || status(daemon, name).phase == Phase::Idle);
}

/// To a device that is exported over NBD.
pub fn connect(machine: &Machine, name: &str) -> Nbd {
    Nbd::connect(&machine.path(&format!("run/{name}.sock"))).unwrap()
}

/// Writes the first mebibytes of a device, in one version.
pub fn fill(nbd: &mut Nbd, blocks: u64, version: u64) {
    for block in 0..blocks {
        nbd.write(block * MIB, &pattern(block, version, MIB as usize)).unwrap();
    }
}

/// Finds what [`fill`] wrote.
pub fn find(nbd: &mut Nbd, blocks: u64, version: u64) {
    for block in 0..blocks {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, version, MIB as usize), "{block}");
    }
}

pub fn status(daemon: &Daemon, name: &str) -> DeviceStatus {
    daemon.status().devices.into_iter().find(|device| device.name == name).unwrap()
}

/// A blocking NBD client of the newstyle protocol, one request at a time.
pub struct Nbd {
    stream: UnixStream,
    pub size: u64,
    cookie: u64,
}

const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

impl Nbd {
    /// Connects to the default export on a socket.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes())?;
        let mut option = Vec::from(*b"IHAVEOPT");
        option.extend(OPT_GO.to_be_bytes());
        option.extend(6u32.to_be_bytes());
        option.extend([0; 6]);
        stream.write_all(&option)?;
        let mut size = 0;
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(16) as usize];
            stream.read_exact(&mut data)?;
            match word(12) {
                REP_ACK => return Ok(Self { stream, size, cookie: 0 }),
                REP_INFO if data[..2] == [0, 0] => size = u64::from_be_bytes(data[2..10].try_into().unwrap()),
                REP_INFO => {}
                other => return Err(io::Error::other(format!("the server answered {other:#x}"))),
            }
        }
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(0x2560_9513u32.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)
    }

    fn reply(&mut self) -> io::Result<()> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.request(0, 0, offset, length as u32, &[])?;
        self.reply()?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(1, 0, offset, data.len() as u32, data)?;
        self.reply()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.request(3, 0, 0, 0, &[])?;
        self.reply()
    }

    pub fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.request(4, 0, offset, length, &[])?;
        self.reply()
    }

    /// A write that is durable when it is answered.
    pub fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(1, 1, offset, data.len() as u32, data)?;
        self.reply()
    }

    /// Asks without waiting for the answer.
    pub fn ask_to_zero(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.request(6, 0, offset, length, &[])
    }

    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.request(6, 0, offset, length, &[])?;
        self.reply()
    }
}

/// Bytes that say where they belong and in which version.
pub fn pattern(offset: u64, version: u64, length: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    for block in 0..length.div_ceil(512) as u64 {
        let mut word = (offset + block * 512) ^ version.rotate_left(40) ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..64 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            data.extend(word.to_le_bytes());
        }
    }
    data.truncate(length);
    data
}
