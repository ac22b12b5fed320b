//! The campaign: guest after guest, each struck by outages until it has lost something or has had its share.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes};
use surgetank_provider::VolumeId;

use super::console::Guarded;
use super::failing::Failing;
use super::plan::{Failure, Outage};
use super::report::{End, Report, Struck, struck};
use super::strike::{BACKING, Backing, Storage};
use crate::campaign::{Ready, keep};
use crate::cuts::lossy;
use crate::cuts::planted;
use crate::flags::name;
use crate::guest::Guest;
use crate::host::Lab;
use crate::inside::GuestJob;
use crate::inside::outages::{DRAIN_MAX, Judged, Order, RECOVERY_MAX, Round, Task};
use crate::interrupt::{Interrupt, POLL};
use crate::messages;
use crate::nbd::Server;
use crate::output::say;
use crate::plan::{Disk, Media, Plan};
use crate::service::{self, Provisioning};
use crate::surgetank::DeviceStatus;

/// The backing volume; its writes are slow enough that something is dirty when an outage strikes.
const SLOW: Bytes = Bytes::from_mib(192);
const SLOW_WRITES_PER_S: Bytes = Bytes::from_mib(8);
const FAST_MIB_S: u64 = 128;
/// So many outages strike one guest; the next one has another policy.
const SHARE: usize = 25;
const POLICIES: [&str; 2] = ["adaptive", "paper"];
/// Until a guest is ready for an outage: it boots, or drains and attaches.
const READY_MAX: Duration = Duration::from_secs(400);
/// Until a guest has judged: recovery, reading, draining, and as much again for a busy machine.
const JUDGE_MAX: Duration = Duration::from_secs(2 * (RECOVERY_MAX.as_secs() + DRAIN_MAX.as_secs()) + 60);
/// Until a guest has drained and written once more, and until it has stopped its daemon, which may take long to say that
/// it does not end.
const END_MAX: Duration = Duration::from_secs(RECOVERY_MAX.as_secs() + DRAIN_MAX.as_secs() + 900);
/// So many guests may die of QEMU's race.
const EMULATOR_FAILURES_MAX: u32 = 5;
/// So many outages of one guest may strike nothing.
const MISSES_MAX: u32 = 20;
/// Errors that nobody has met last so much longer, until somebody has.
const UNNOTICED_MAX: Duration = Duration::from_secs(20);
/// A guest that has stopped may take so long to judge what there is.
const STUCK_MAX: Duration = Duration::from_secs(60);

/// Runs all outages.
pub fn run(ready: &Ready, seed: u64, planned: &[Outage], report: &mut Report) -> anyhow::Result<()> {
    let mut left: VecDeque<Outage> = planned.iter().copied().collect();
    for life in 0.. {
        if left.is_empty() {
            break;
        }
        let site = Site::new(&ready.lab, seed + life as u64)?;
        let lived = live(&site, ready, life, &mut left, report);
        let lost = report.outages.iter().filter(|outage| !outage.is_whole()).count();
        if let Err(error) = &lived {
            ready.interrupt.check()?;
            if site.emulator_failed() && report.emulator_failures < EMULATOR_FAILURES_MAX {
                report.emulator_failures += 1;
                say(&format!("guest {life} died of its emulator, another one goes on: {error:#}"));
                continue;
            }
        }
        if lived.is_err() || (lost == 1 && report.outages.last().is_some_and(|outage| !outage.is_whole())) {
            site.keep(&ready.out)?;
        }
        lived.with_context(|| format!("guest {life}, seed {seed}"))?;
    }
    Ok(())
}

/// What is on the host for one guest.
struct Site {
    seed: u64,
    /// Dropped before the directory in which its socket is.
    backing: Backing,
    directory: tempfile::TempDir,
}

impl Site {
    fn new(lab: &Lab, seed: u64) -> anyhow::Result<Self> {
        let directory = lab.directory()?;
        for made in ["share", "volumes"] {
            fs::create_dir(directory.path().join(made))?;
        }
        let disk = Failing::over(lossy::Disk::new(directory.path(), BACKING, SLOW)?);
        let backing = Server::start(lossy::socket(directory.path(), BACKING), disk)?;
        Ok(Self { seed, backing, directory })
    }

    fn share(&self) -> PathBuf {
        self.directory.path().join("share")
    }

    fn volumes(&self) -> PathBuf {
        self.directory.path().join("volumes")
    }

    fn tell(&self, message: &str, what: &impl Serialize) -> anyhow::Result<()> {
        messages::tell(&self.share(), message, what)
    }

    /// What the guest says, if it does.
    fn heard<T: DeserializeOwned>(&self, message: &str) -> anyhow::Result<Option<T>> {
        messages::heard(&self.share(), message)
    }

    /// Whether the guest's kernel has met a breakpoint of nobody's: see `KERNEL_ARGUMENTS` in `guest.rs`.
    fn emulator_failed(&self) -> bool {
        let console = fs::read(self.share().join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&console).contains("Oops: int3")
    }

    /// What the provider has not deleted.
    fn left(&self) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        for name in ["volumes", "state"] {
            let place = self.volumes().join(name);
            let entries = fs::read_dir(&place).with_context(|| format!("cannot read {}", place.display()))?;
            for entry in entries {
                left.push(entry?.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(left)
    }

    fn keep(&self, out: &Path) -> anyhow::Result<()> {
        keep(out, &[self.share(), self.directory.path().to_owned(), self.volumes().join("volumes")])
    }
}

/// One guest, until it has had its share, or has lost something.
fn live(
    site: &Site,
    ready: &Ready,
    life: usize,
    left: &mut VecDeque<Outage>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let policy = POLICIES[life % POLICIES.len()];
    let qmp = site.directory.path().join("qmp.socket");
    let provider = service::provider(&qmp, &site.volumes(), Bandwidth::from_mib_s(FAST_MIB_S))?;
    let away = Arc::new(AtomicBool::new(false));
    let guarded = Arc::new(Guarded::new(Arc::clone(&provider), Arc::clone(&away)));
    let service = Provisioning::serve(guarded, &site.share().join("token"))?;
    let (surgetank, policy_name) = (ready.surgetank.clone(), policy.to_owned());
    let order = Order { surgetank, service: service.url.clone(), seed: site.seed, policy: policy_name };
    let guest = boot(&order, site, ready, qmp)?;
    let interrupt = &ready.interrupt;
    let storage = Storage::new(interrupt, guest.monitor(), provider, away, &site.backing, site.directory.path());
    storage.slow_down(SLOW_WRITES_PER_S.get())?;
    let mut struck_guest = StruckGuest { site, interrupt, guest, storage };
    let mut misses = 0;
    for number in 0.. {
        let Some(outage) = left.front().copied().filter(|_| number < SHARE) else {
            report.ends.push(struck_guest.end(number, life)?);
            return Ok(());
        };
        let mut record = struck(report.outages.len(), life, policy, &outage);
        if !struck_guest.strike(number, &outage, &mut record)? {
            report.missed += 1;
            misses += 1;
            // The drain was over before it, or nobody noticed it: sooner, then.
            if let Some(outage) = left.front_mut() {
                outage.delay /= 2;
            }
            if misses > MISSES_MAX {
                bail!("outages strike nothing again and again");
            }
            continue;
        }
        left.pop_front();
        say(&record.describe());
        let is_whole = record.is_whole();
        report.outages.push(record);
        if !is_whole {
            return Ok(());
        }
    }
    Ok(())
}

fn boot(order: &Order, site: &Site, ready: &Ready, qmp: PathBuf) -> anyhow::Result<Guest> {
    let media = Media::Nbd(site.backing.socket().to_owned());
    let plan = Plan {
        disks: vec![Disk { media, ..Disk::new(BACKING, SLOW) }],
        results: Some(site.share()),
        qmp: Some(qmp),
        timeout: Duration::from_secs(24 * 3600),
        ..Plan::new(&name(GuestJob::Outages), planted(&GuestJob::Outages.script(order, &site.share())?))
    };
    plan.boot(&ready.lab, &ready.interrupt)
}

/// A guest and the volumes that fail under it.
struct StruckGuest<'a> {
    site: &'a Site,
    interrupt: &'a Interrupt,
    guest: Guest,
    storage: Storage<'a>,
}

impl StruckGuest<'_> {
    /// One outage: its beginning, its length, its end, the guest's judgement. Whether it was: otherwise the caching volume
    /// had been deleted, or nobody met the errors.
    fn strike(&mut self, number: usize, outage: &Outage, record: &mut Struck) -> anyhow::Result<bool> {
        let site = self.site;
        let errors_below = outage.kind == Failure::Errors && outage.target.has_backing();
        let round = Round { moment: outage.moment, keep: outage.keep, errors_below };
        site.tell(&format!("task-{number}"), &Task::Stand(round))?;
        let ready = format!("ready-{number}");
        let () = messages::wait(self.interrupt, &mut self.guest, &ready, READY_MAX, || Ok(()))?;
        self.pause(outage.delay)?;
        let now: DeviceStatus = site.heard("now")?.context("the guest does not say how it is")?;
        let volume = VolumeId(now.volume().unwrap_or_default().to_owned());
        let mut struck = now.volume().is_some() && self.storage.begin(outage, &volume)?;
        // Taking a disk out takes a while; what was dirty at its end counts.
        record.dirty_mib = site.heard("now")?.unwrap_or(now).dirty_mib();
        if struck {
            let began = Instant::now();
            self.pause(outage.length)?;
            let until = Instant::now() + UNNOTICED_MAX;
            while !self.storage.is_noticed(outage) && Instant::now() < until {
                self.pause(POLL)?;
            }
            struck = self.storage.is_noticed(outage);
            self.storage.end(outage, &volume)?;
            record.lasted_s = began.elapsed().as_secs_f64();
        }
        site.tell(&format!("repaired-{number}"), &true)?;
        match self.hear(number, &format!("judged-{number}"), JUDGE_MAX) {
            Ok(judged) => record.judged = judged,
            Err(error) if site.emulator_failed() => return Err(error),
            Err(error) => {
                self.interrupt.check()?;
                let fault = format!("{error:#}");
                record.judged = Judged { faults: vec![fault], fault_count: 1, ..Judged::default() };
            }
        }
        // What was not struck and went wrong all the same is told as an outage.
        Ok(struck || !record.is_whole())
    }

    /// Waits for what the guest says of a task. One whose requests never return says so, and may not come to it.
    fn hear<T: DeserializeOwned>(&mut self, number: usize, message: &str, timeout: Duration) -> anyhow::Result<T> {
        let mut since = None;
        messages::wait(self.interrupt, &mut self.guest, message, timeout, || {
            let Some(fault) = self.site.heard::<String>(&format!("stuck-{number}"))? else { return Ok(()) };
            if since.get_or_insert_with(Instant::now).elapsed() > STUCK_MAX {
                bail!("{fault}; and nothing could be judged");
            }
            Ok(())
        })
    }

    fn pause(&self, length: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.interrupt.check()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The guest takes everything away; what was not flushed is forgotten; it stops its daemon and reads its backing volume.
    fn end(&mut self, number: usize, life: usize) -> anyhow::Result<End> {
        let site = self.site;
        site.tell(&format!("task-{number}"), &Task::End)?;
        let () = self.hear(number, "settled", END_MAX)?;
        let mut left = self.storage.left()?;
        let forgotten_bytes = site.backing.medium().medium.cut(&mut Random::from_seed(0), 0.0)?.lost_bytes;
        site.tell("cut", &true)?;
        let judged: Judged = messages::wait(self.interrupt, &mut self.guest, "ended", END_MAX, || Ok(()))?;
        let outcome = self.guest.wait(self.interrupt)?;
        if !outcome.passed() {
            bail!("the guest did not end in order: {}", outcome.describe());
        }
        left.extend(site.left()?);
        Ok(End { life, judged, forgotten_bytes, left })
    }
}
