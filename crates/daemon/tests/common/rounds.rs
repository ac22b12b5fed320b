//! What every test that kills the daemon again and again does in a round: people who boost, drain and change their
//! minds, and a kill that is aimed at a moment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use surgetank_daemon::{Client, DevicePhase, Request};
use surgetank_model::random::Random;

use super::child::Running;
use super::{Machine, Shape, eventually};

/// How many times as long as on a real processor everything takes: tests in an emulated guest have it.
const PACE: &str = "SURGETANK_PACE";

/// How long a kill waits for the moment it is meant for, at the usual pace.
const AIM_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether this test runs in an emulated guest.
pub fn is_emulated() -> bool {
    std::env::var_os(PACE).is_some()
}

/// People who changed their minds as fast in a guest as on a real processor would never let a boost begin.
fn pace() -> u32 {
    std::env::var(PACE).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Where a device is, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    Idle,
    Attach,
    Adopt,
    Recover,
    Absorb,
    Drain,
    /// A drain or a release has just been called off.
    Cancel,
    Release,
    Detach,
    Delete,
}

pub const MOMENTS: [Moment; 10] = [
    Moment::Idle,
    Moment::Attach,
    Moment::Adopt,
    Moment::Recover,
    Moment::Absorb,
    Moment::Drain,
    Moment::Cancel,
    Moment::Release,
    Moment::Detach,
    Moment::Delete,
];

/// What the threads of a round tell each other.
#[derive(Default)]
pub struct Seen {
    phase: Mutex<Option<DevicePhase>>,
    cancelled: Mutex<Option<Instant>>,
    over: AtomicBool,
    killing: AtomicBool,
    /// Drains and releases that were called off.
    pub calls_off: AtomicUsize,
}

impl Seen {
    pub fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether nothing was boosted when it was last looked at.
    pub fn idle(&self) -> bool {
        *self.phase.lock().unwrap() == Some(DevicePhase::Idle)
    }

    /// From just before the daemon is killed.
    pub fn killing(&self) -> bool {
        self.killing.load(Ordering::SeqCst)
    }

    fn moment(&self, machine: &Machine) -> Moment {
        let journal = json(&machine.path("state/data/journal.json"));
        let phase = *self.phase.lock().unwrap();
        match journal["rental"]["stage"].as_str() {
            None => Moment::Idle,
            Some("creating" | "created" | "attaching" | "attached") => Moment::Attach,
            Some("adopting") => Moment::Adopt,
            Some("released" | "detaching") => Moment::Detach,
            Some("deleting") => Moment::Delete,
            Some("adopted") => {
                let cancelled = *self.cancelled.lock().unwrap();
                match phase {
                    None | Some(DevicePhase::Attaching) => Moment::Recover,
                    _ if cancelled.is_some_and(|at| at.elapsed() < Duration::from_millis(40)) => Moment::Cancel,
                    Some(DevicePhase::Drain) => Moment::Drain,
                    Some(DevicePhase::Detaching) => Moment::Release,
                    Some(DevicePhase::Idle | DevicePhase::Boost | DevicePhase::Degraded) => Moment::Absorb,
                }
            }
            Some(other) => panic!("the journal says {other}"),
        }
    }
}

/// Tells everybody that it is over when it is dropped.
pub struct Over<'a>(pub &'a Seen);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// A state file; they are replaced whole, so there is always a whole one.
pub fn json(path: &Path) -> Value {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Looks at the device all the time.
pub fn watch(client: &Client, seen: &Seen) {
    while !seen.over() {
        *seen.phase.lock().unwrap() = client.status().ok().and_then(|status| Some(status.devices.first()?.phase));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Boosts, drains, detaches and changes its mind, until the daemon has died.
pub fn conduct(client: &Client, seen: &Seen, random: &mut Random) {
    let device = || "data".to_owned();
    let pace = pace();
    let rest = |random: &mut Random, most: u64| std::thread::sleep(pace * Duration::from_millis(random.below(most)));
    while !seen.over() {
        // Refused while the caching volume is read back.
        let _ = client.ask(&Request::boost(&device()));
        rest(random, 300);
        let end = if random.chance(0.5) {
            Request::Drain { device: device() }
        } else {
            Request::Detach { device: device(), accept_loss: false }
        };
        let _ = client.ask(&end);
        rest(random, 120);
        if random.chance(0.5) {
            let ending = matches!(*seen.phase.lock().unwrap(), Some(DevicePhase::Drain | DevicePhase::Detaching));
            if client.ask(&Request::boost(&device())).is_ok() && ending {
                *seen.cancelled.lock().unwrap() = Some(Instant::now());
                seen.calls_off.fetch_add(1, Ordering::Relaxed);
            }
            rest(random, 120);
        } else {
            let until = Instant::now() + pace * Duration::from_millis(200 + random.below(2000));
            while !seen.over() && !seen.idle() && Instant::now() < until {
                rest(random, 10);
            }
            rest(random, 150);
        }
    }
}

/// Waits for the moment, if there is one, and a little longer.
fn wait_for(aim: Option<Moment>, machine: &Machine, seen: &Seen, random: &mut Random) {
    let until = Instant::now() + pace() * AIM_TIMEOUT;
    match aim {
        None => std::thread::sleep(Duration::from_millis(random.below(700))),
        Some(aim) => {
            while seen.moment(machine) != aim && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(300));
            }
            std::thread::sleep(Duration::from_micros(random.below(12_000)));
        }
    }
}

/// Which moment a round's kill is aimed at: every third at none, the others at one after the other.
pub fn aim(round: usize) -> Option<Moment> {
    (!round.is_multiple_of(3)).then(|| MOMENTS[round % MOMENTS.len()])
}

/// Boosts and drains and does `act` at the moment that is aimed at, again and again, until it has no more aims.
pub fn act_at(
    machine: &Machine,
    client: &Client,
    seen: &Seen,
    random: &mut Random,
    aims: impl IntoIterator<Item = Option<Moment>>,
    mut act: impl FnMut(Moment),
) {
    std::thread::scope(|scope| {
        let mut conducting = Random::from_seed(random.next_u64());
        scope.spawn(|| watch(client, seen));
        scope.spawn(move || conduct(client, seen, &mut conducting));
        let _over = Over(seen);
        for aim in aims {
            wait_for(aim, machine, seen, random);
            act(seen.moment(machine));
        }
    });
}

/// Kills the daemon and does not wait for its death; from now on its clients know that nothing counts.
pub fn kill(running: &Running, seen: &Seen) {
    seen.killing.store(true, Ordering::SeqCst);
    // SAFETY: signals our own child, which is not waited for yet.
    unsafe { libc::kill(running.child.id() as i32, libc::SIGKILL) };
}

/// Boosts, drains and kills the daemon at the moment that is aimed at. Answers the moment at which that was.
pub fn kill_at(machine: &Machine, running: &Running, seen: &Seen, random: &mut Random, aim: Option<Moment>) -> Moment {
    let mut killed_at = Moment::Idle;
    act_at(machine, &running.client, seen, random, [aim], |moment| {
        kill(running, seen);
        killed_at = moment;
    });
    killed_at
}

/// How many moments were hit.
#[derive(Debug, Default)]
pub struct Histogram(BTreeMap<Moment, usize>);

impl Histogram {
    pub fn add(&mut self, moment: Moment) {
        *self.0.entry(moment).or_default() += 1;
    }

    /// Most kills must fall into boosts, and into every part of them.
    pub fn are_telling(&self) {
        let all: usize = self.0.values().sum();
        let boosted = all - self.0.get(&Moment::Idle).copied().unwrap_or(0);
        assert!(boosted * 2 > all, "most kills must fall into boosts: {self}");
        let kinds = [Moment::Attach, Moment::Absorb, Moment::Drain, Moment::Detach];
        assert!(all < 60 || kinds.iter().all(|kind| self.0.contains_key(kind)), "a phase was never hit: {self}");
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(moment, count)| format!("{moment:?} {count}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// Writes the configuration of a machine with one device, `data`, whose boosts take long enough to be hit.
pub fn configure(machine: &Machine, backing: &Path, policy: &str, cache: &str, export: &str) {
    let mut shape = Shape {
        provider: "create_latency = \"20 ms\"\nattach_latency = \"40 ms\"\ndetach_latency = \"30 ms\"\n\
                   delete_latency = \"20 ms\""
            .to_owned(),
        device: "throttle = true".to_owned(),
        caching: format!(
            "initial_size = \"{cache}\"\nmin_size = \"{cache}\"\nmax_size = \"{cache}\"\nbandwidth = \"8 GiB/s\""
        ),
        ..Shape::default()
    };
    shape.policy += &format!("\nname = \"{policy}\"\nboost_interval = \"1 ms\"");
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &shape);
    let text = text.replace("\"33 MiB/s\"", "\"64 MiB/s\"").replace("\"nbd\"", &format!("\"{export}\""));
    std::fs::write(machine.path("config.toml"), text).unwrap();
}

/// Nothing is rented any more once the device is idle.
pub fn deletes_everything(machine: &Machine, running: &Running) {
    eventually("idle", || {
        // Refused while the volume is being read back.
        let _ = running.client.ask(&Request::Drain { device: "data".into() });
        running.phase() == Some(DevicePhase::Idle)
    });
    assert_eq!(machine.rented(), 0, "a volume was left behind");
    eventually("no record is left behind", || {
        // A deletion takes its time; the provider looks when it is asked.
        let swept = running.client.gc().unwrap();
        assert_eq!(swept.deleted, [] as [String; 0], "a volume that nobody owned");
        machine.records().is_empty()
    });
}

/// How many kills: `SURGETANK_KILLS` asks for more than the usual number.
pub fn kills(usual: usize) -> usize {
    std::env::var("SURGETANK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
