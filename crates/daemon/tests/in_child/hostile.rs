//! A good client beside clients that do their worst, and users of the machine who may do nothing: the good one is served,
//! its data are right, and the daemon's memory stays flat. `make soak` has it last for ten minutes.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::child::Running;
use crate::common::{Ends, MIB, Machine, Nbd, Shape, pattern};
use surgetank_model::random::Random;
use surgetank_nbd::wire::{self, RequestHeader, command};

const DEVICE: u64 = 4 << 30;
/// What the good client alone uses, at the device's end.
const OWN: u64 = 64 * MIB;
const BLOCK: u64 = 4096;
/// Pause of the good client between two requests.
const PAUSE: Duration = Duration::from_millis(2);
const NOBODY: u32 = 65534;
/// As whom a provisioning service on the same machine would run.
const SERVICE: u32 = 65533;
/// What sixteen connections of one address may hold (`docs/THREATS.md`, limits), and the daemon itself, in bytes.
const MEMORY_MAX: u64 = 16 * (16 + 32) * MIB + 64 * MIB;
/// What the daemon's memory may grow by from the first half of a soak to the second, in bytes.
const GROWTH_MAX: u64 = 32 * MIB;
/// A soak's memory is as high as it gets after this.
const SETTLED: Duration = Duration::from_secs(60);

/// How long the attack lasts.
fn lasting() -> Duration {
    let seconds = std::env::var("SURGETANK_SOAK_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(10))
}

/// A device held to 33 MiB/s, over its Unix socket and for everybody over TCP.
fn machine(port: u16) -> Machine {
    let machine = Machine::new();
    let backing = machine.backing("backing", DEVICE);
    let device = format!("throttle = true\nnbd.listen = \"127.0.0.1:{port}\"");
    let shape = Shape { device, policy: "sampling = \"1 h\"".to_owned(), ..Shape::default() };
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &shape);
    std::fs::write(machine.path("config.toml"), text).unwrap();
    // Only what the daemon itself does keeps others out.
    std::fs::set_permissions(machine.directory.path(), Permissions::from_mode(0o755)).unwrap();
    machine
}

/// Writes, reads back and flushes for so long; answers how long each request took, sorted.
fn use_well(nbd: &mut Nbd, lasts: Duration, versions: &mut [u64]) -> Vec<Duration> {
    let (begun, mut random, mut took) = (Instant::now(), Random::from_seed(1), Vec::new());
    let mut timed = |act: &mut dyn FnMut()| {
        let asked = Instant::now();
        act();
        took.push(asked.elapsed());
        std::thread::sleep(PAUSE);
    };
    for number in 1.. {
        let place = random.below(versions.len() as u64) as usize;
        let offset = DEVICE - OWN + place as u64 * BLOCK;
        versions[place] = number;
        let data = pattern(offset, number, BLOCK as usize);
        timed(&mut || nbd.write(offset, &data).unwrap());
        timed(&mut || assert_eq!(nbd.read(offset, BLOCK as usize).unwrap(), data));
        if number % 64 == 0 {
            timed(&mut || nbd.flush().unwrap());
        }
        if begun.elapsed() >= lasts {
            break;
        }
    }
    took.sort_unstable();
    took
}

/// A connection over TCP with an export.
fn connect(port: u16) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.read_exact(&mut [0; 18])?;
    // Export by its empty name, without the padding: an old option that ends in transmission at once.
    let mut hello = 3u32.to_be_bytes().to_vec();
    wire::encode_option(&mut hello, wire::option::EXPORT_NAME, &[]);
    stream.write_all(&hello)?;
    stream.read_exact(&mut [0; 10])?;
    Ok(stream)
}

fn request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { flags: 0, command, cookie: 7, offset, length }.encode()
}

/// One thing that a hostile client does. Whatever the daemon answers is right, if only the good client is served.
fn attack(kind: u64, port: u16, random: &mut Random) -> std::io::Result<()> {
    match kind {
        0 => {
            // Seven KiB that would zero the device 256 times, and gone.
            connect(port)?.write_all(&request(command::WRITE_ZEROES, 0, (DEVICE - OWN - MIB) as u32).repeat(256))
        }
        1 => {
            // Asks for as much as it may and does not read.
            let mut stream = connect(port)?;
            stream.write_all(&request(command::READ, 0, 32 << 20).repeat(16))?;
            std::thread::sleep(Duration::from_millis(300));
            Ok(())
        }
        2 => {
            let mut stream = connect(port)?;
            stream.write_all(&request(command::READ, 0, 1 << 20).repeat(64))?;
            let mut answers = vec![0; 1 << 20];
            for _ in 0..64 {
                stream.read_exact(&mut answers)?;
            }
            stream.shutdown(Shutdown::Write)
        }
        3 => {
            // Connections that say nothing, as many as there are places.
            let idle: Vec<_> = (0..32).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
            std::thread::sleep(Duration::from_millis(50));
            drop(idle);
            Ok(())
        }
        4 => {
            let mut stream = connect(port)?;
            let noise: Vec<u8> = (0..4096).map(|_| random.below(256) as u8).collect();
            stream.write_all(&noise)?;
            stream.read_exact(&mut [0; 16])
        }
        _ => {
            // A write of which the data never come.
            let mut stream = connect(port)?;
            stream.write_all(&request(command::WRITE, 0, 32 << 20))?;
            stream.write_all(&[0; 1000])?;
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        }
    }
}

/// From now on this thread is another user, and runs when nobody else wants to: what attackers compute is not what is
/// measured.
fn become_another(user: u32) {
    // SAFETY: a valid parameter, for the calling thread.
    let idle = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }) };
    assert_eq!(idle, 0);
    if rustix::process::geteuid().is_root() {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    }
}

/// What a user of the machine who is neither root nor the daemon's may try: nothing of it works.
fn try_everything(machine: &Path) {
    for socket in ["run/control.sock", "run/data.sock"] {
        assert!(UnixStream::connect(machine.join(socket)).is_err(), "{socket}");
    }
    for file in ["state", "state/data/owner.json", "state/data/journal.json", "volumes", "volumes/volumes"] {
        let path = machine.join(file);
        assert!(std::fs::read(&path).is_err() && std::fs::write(path.join("x"), "").is_err(), "{file}");
        assert!(std::fs::remove_file(&path).is_err(), "{file}");
    }
    assert!(std::os::unix::fs::symlink("/etc/passwd", machine.join("run/link")).is_err());
}

/// The resident memory of a process, in bytes.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1e3
}

#[test]
#[allow(clippy::print_stderr, reason = "what was measured, and what is skipped")]
fn a_good_client_is_served_beside_hostile_ones() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let machine = machine(port);
    let mut running = Running::start(&machine, None);
    let mut good = running.nbd().unwrap();
    let mut versions = vec![0; (OWN / BLOCK) as usize];
    let lasts = lasting();
    let quiet = use_well(&mut good, lasts / 4, &mut versions);
    let (over, attacks) = (AtomicBool::new(false), AtomicU64::new(0));
    let process = running.child.id();
    let (hostile, memory) = std::thread::scope(|scope| {
        let is_over = Ends(&over);
        let (over, attacks) = (&over, &attacks);
        for number in 0..12 {
            scope.spawn(move || {
                become_another([NOBODY, SERVICE][number as usize % 2]);
                let mut random = Random::from_seed(number);
                while !over.load(Ordering::Relaxed) {
                    // The daemon may hang up at any time.
                    let _ = attack(random.below(6), port, &mut random);
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let watcher = scope.spawn(move || {
            let mut memory = Vec::new();
            while !over.load(Ordering::Relaxed) {
                memory.push(resident(process));
                std::thread::sleep(Duration::from_millis(50));
            }
            memory
        });
        let path = machine.directory.path();
        let others = [NOBODY, SERVICE].map(|user| {
            scope.spawn(move || {
                if !rustix::process::geteuid().is_root() {
                    eprintln!("skipped: only root can become another user");
                    return;
                }
                become_another(user);
                while !over.load(Ordering::Relaxed) {
                    try_everything(path);
                    std::thread::sleep(Duration::from_millis(20));
                }
            })
        });
        let hostile = use_well(&mut good, lasts, &mut versions);
        drop(is_over);
        others.into_iter().for_each(|other| other.join().unwrap());
        (hostile, watcher.join().unwrap())
    });
    for (place, &version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
        let offset = DEVICE - OWN + place as u64 * BLOCK;
        assert_eq!(good.read(offset, BLOCK as usize).unwrap(), pattern(offset, version, BLOCK as usize));
    }
    let (first, second) = memory.split_at(memory.len() / 2);
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    eprintln!(
        "good client, {} requests quiet and {} amid {} attacks: p50 {:.2} and {:.2} ms, p99 {:.2} and {:.2} ms; memory at \
         most {} and {} MiB",
        quiet.len(),
        hostile.len(),
        attacks.load(Ordering::Relaxed),
        percentile(&quiet, 50),
        percentile(&hostile, 50),
        percentile(&quiet, 99),
        percentile(&hostile, 99),
        most(first) / MIB,
        most(second) / MIB,
    );
    assert!(most(&memory) <= MEMORY_MAX, "the daemon holds more than its limits");
    assert!(lasts < SETTLED || most(second) <= most(first) + GROWTH_MAX, "the daemon's memory grows");
    drop(good);
    running.stop();
}
