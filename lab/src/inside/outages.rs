//! The guest of the outages: a load on a mounted file system that goes on whatever the volumes below do, and a judgement
//! of all that was synced once they work again.
//!
//! The host gives tasks, and is told how far they are, in files of the shared directory.

mod load;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::replay::complaint;
use crate::machine::{Mounted, disk, make_ext4, repair_ext4, wait_for};
use crate::messages::{host_told, tell_host};
use crate::outages::plan::OutageMoment;
use crate::surgetank::{DeviceStatus, Elastic, Places, Surgetank};

use load::{FILES, Load, Session};

/// What the guest is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub surgetank: PathBuf,
    /// Where volumes are rented.
    pub service: String,
    /// What contents follow from.
    pub seed: u64,
    pub policy: String,
}

/// The host's next wish, in the file `task-N`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Be struck.
    Stand(Round),
    /// Drain, detach, and look at the backing volume alone.
    End,
}

/// One outage, as the guest knows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Where in a boost it begins.
    pub moment: OutageMoment,
    /// Whether the boost is not drained after it.
    pub keep: bool,
    /// Whether requests to the backing volume fail, so that the file system may have to be mounted again.
    pub errors_below: bool,
}

/// What the guest found after an outage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Judged {
    /// From its end until every writer had something durable again.
    pub recovered_s: f64,
    /// From then until the boost was over; 0: it went on.
    pub drained_s: f64,
    /// Requests of the load that failed.
    pub failed_requests: u64,
    /// The first messages of them.
    pub failures: Vec<String>,
    /// How often the file system had to be mounted again.
    pub remounts: u32,
    /// What was read and compared.
    pub verified_mib: f64,
    /// What the daemon says it has lost.
    pub lost_bytes: u64,
    /// What was wrong: the first few.
    pub faults: Vec<String>,
    /// How many blocks or files were, and promises not kept.
    pub fault_count: usize,
}

impl Judged {
    fn add(&mut self, faults: impl IntoIterator<Item = String>) {
        for fault in faults {
            self.fault_count += 1;
            if self.faults.len() < 8 {
                self.faults.push(fault);
            }
        }
    }

    fn add_session(&mut self, session: &Session, out: &Out) {
        (self.failed_requests, self.failures) = session.failures();
        self.add(session.faults());
        match out {
            Out::Well => {}
            Out::ReadOnly => self.add(["the file system takes no more writes".to_owned()]),
            Out::Badly(fault) => self.add([fault.clone()]),
        }
    }
}

const CACHE_MIB: u64 = 128;
/// What the daemon is told of the rates: it has to believe that a caching volume is worth renting.
const RATES_MIB_S: (u64, u64) = (33, 128);
/// After an outage: until every writer has something durable.
pub const RECOVERY_MAX: Duration = Duration::from_secs(150);
/// And then until everything is drained and nothing is rented.
pub const DRAIN_MAX: Duration = Duration::from_secs(200);
/// The longest outage, and what it takes to begin and end it.
const OUTAGE_MAX: Duration = Duration::from_secs(240);
/// Until the host gives the next task.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// An outage is to strike when this much is on the caching volume alone; it does not wait longer for it.
const DIRTY_MIB: f64 = 16.0;
const BURST_MAX: Duration = Duration::from_secs(10);
/// How often the daemon is asked.
const LOOK: Duration = Duration::from_millis(200);

/// Does what the host says, until the end. Fails only for what no outage explains: losses are told to the host.
pub fn serve(order: &Order) -> anyhow::Result<()> {
    let mut stand = Stand::start(order)?;
    for number in 0.. {
        match told(&format!("task-{number}"), IDLE_MAX)? {
            Task::Stand(round) => {
                let judged = stand.round(number, round)?;
                tell_host(&format!("judged-{number}"), &judged)?;
            }
            Task::End => {
                let judged = stand.end(number)?;
                return tell_host("ended", &judged);
            }
        }
    }
    Ok(())
}

/// Waits for a message of the host's.
fn told<T: DeserializeOwned>(message: &str, timeout: Duration) -> anyhow::Result<T> {
    wait_for(&format!("the host's {message}"), timeout, || host_told(message))
}

/// The device and what is on it. Dropped in the order in which a machine goes down.
struct Stand {
    files: Option<Mounted>,
    surgetank: Surgetank,
    device: PathBuf,
    load: Load,
}

/// How the load came out of an outage.
enum Out {
    Well,
    /// Its file system takes no more writes.
    ReadOnly,
    /// In one sentence.
    Badly(String),
}

impl Stand {
    fn start(order: &Order) -> anyhow::Result<Self> {
        let elastic = Elastic::steered(&order.policy, &disk("slow")?, CACHE_MIB, RATES_MIB_S);
        let surgetank = Surgetank::start(&order.surgetank, &elastic, &Places::plugged(order.service.clone()))?;
        let device = surgetank.device()?;
        make_ext4(&device, &["-b", "4096", "-E", "nodiscard,lazy_itable_init=0"])?;
        let files = Some(Mounted::at(&device, FILES, &[])?);
        Ok(Self { files, surgetank, device, load: Load::new(order.seed)? })
    }

    fn round(&mut self, number: u64, round: Round) -> anyhow::Result<Judged> {
        let mut judged = Judged::default();
        if let Some(fault) = self.boosted()? {
            judged.add([fault]);
            tell_host(&format!("ready-{number}"), &())?;
            return Ok(judged);
        }
        let session = Session::default();
        let mut repaired = None;
        let surgetank = &mut self.surgetank;
        let mut out = self.load.run(number, &session, || {
            stand(surgetank, number, round, &session).inspect(|(_, at)| repaired = Some(*at)).map(|(out, _)| out)
        })?;
        if let (Out::ReadOnly, true) = (&out, round.errors_below) {
            judged.remounts += 1;
            out = self.remounted(number, &session)?;
        }
        judged.recovered_s = repaired.map_or(0.0, |at: Instant| at.elapsed().as_secs_f64());
        judged.add_session(&session, &out);
        let (verified_mib, faults) = self.load.judge()?;
        judged.verified_mib = verified_mib;
        judged.add(faults);
        if !round.keep && judged.fault_count == 0 {
            let before = Instant::now();
            judged.add(self.idle()?);
            judged.drained_s = before.elapsed().as_secs_f64();
        }
        judged.lost_bytes = self.surgetank.health()?.lost_bytes;
        if judged.lost_bytes > 0 {
            judged.add([format!("the daemon has lost {} bytes", judged.lost_bytes)]);
        }
        Ok(judged)
    }

    /// Sees to it that there is a boost; what keeps one from its beginning.
    fn boosted(&mut self) -> anyhow::Result<Option<String>> {
        if self.surgetank.health()?.phase == "boost" {
            return Ok(None);
        }
        // What the outage before has left ends by itself.
        if let Some(fault) = self.idle()? {
            return Ok(Some(fault));
        }
        Ok(self.surgetank.attach().err().map(|error| format!("no boost after the outage before: {error:#}")))
    }

    /// How the load comes out of it when an administrator mounts the file system again.
    fn remounted(&mut self, number: u64, session: &Session) -> anyhow::Result<Out> {
        if let Err(error) = self.mount_again() {
            return Ok(Out::Badly(format!("the file system cannot be mounted again: {error:#}")));
        }
        let (surgetank, again) = (&mut self.surgetank, Session::default());
        let out = self.load.run(number, &again, || recover_or_tell(surgetank, &again, number))?;
        session.adopt(again);
        Ok(out)
    }

    /// Ends the boost, if there is one; what keeps it from its end.
    fn idle(&mut self) -> anyhow::Result<Option<String>> {
        self.surgetank.ask_to_drain();
        let idle = |health: &DeviceStatus| (health.phase == "idle" && health.volume().is_none()).then_some(());
        Ok(watch(&mut self.surgetank, DRAIN_MAX, idle)?.err().map(|last| format!("still {last} after {DRAIN_MAX:?}")))
    }

    /// As an administrator does it after errors of a disk.
    fn mount_again(&mut self) -> anyhow::Result<()> {
        self.files = None;
        repair_ext4(&self.device, "-p")?;
        self.files = Some(Mounted::at(&self.device, FILES, &[])?);
        Ok(())
    }

    /// Takes everything away, and looks at what a user finds on the backing volume.
    fn end(mut self, number: u64) -> anyhow::Result<Judged> {
        let mut judged = Judged::default();
        judged.add(self.idle()?);
        // Without a boost, so that nothing but the load's own flushes makes it durable.
        let (surgetank, session) = (&mut self.surgetank, Session::default());
        let out = self.load.run(number, &session, || recover_or_tell(surgetank, &session, number))?;
        judged.add_session(&session, &out);
        judged.lost_bytes = self.surgetank.health()?.lost_bytes;
        self.files = None;
        // Everything is flushed, and no flush follows: now the backing volume loses its power.
        tell_host("settled", &())?;
        let _: bool = told("cut", IDLE_MAX)?;
        let Self { surgetank, mut load, .. } = self;
        judged.add(surgetank.stop().err().map(|error| format!("{error:#}")));
        fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")?;
        let slow = disk("slow")?;
        judged.add(complaint(&slow)?.map(|complaint| format!("e2fsck: {complaint}")));
        let _files = Mounted::at(&slow, FILES, &["-o", "ro"])?;
        let (verified_mib, faults) = load.judge()?;
        judged.verified_mib = verified_mib;
        judged.add(faults.into_iter().map(|fault| format!("on the backing volume: {fault}")));
        Ok(judged)
    }
}

/// The outage, from the load's beginning to its recovery; also when it ended.
fn stand(surgetank: &mut Surgetank, number: u64, round: Round, session: &Session) -> anyhow::Result<(Out, Instant)> {
    // The burst is under way then, or over: what of it is dirty is the policy's.
    let dirty = |health: &DeviceStatus| (health.dirty_mib() > DIRTY_MIB).then_some(());
    let _ = watch(surgetank, BURST_MAX, dirty)?;
    if round.moment == OutageMoment::Drain {
        surgetank.ask_to_drain();
    }
    tell_host(&format!("ready-{number}"), &())?;
    let repaired = watch(surgetank, OUTAGE_MAX, |_| host_told::<bool>(&format!("repaired-{number}")).ok().flatten())?;
    if repaired.is_err() {
        bail!("the host did not end the outage");
    }
    let at = Instant::now();
    let out = recover(surgetank, session, round.errors_below)?;
    tell_if_stuck(number, &out).map(|()| (out, at))
}

/// The same where the file system takes writes.
fn recover_or_tell(surgetank: &mut Surgetank, session: &Session, number: u64) -> anyhow::Result<Out> {
    let out = recover(surgetank, session, false)?;
    tell_if_stuck(number, &out).map(|()| out)
}

/// Tells the host at once what went badly: a request that never returns would keep the judgement from being told.
fn tell_if_stuck(number: u64, out: &Out) -> anyhow::Result<()> {
    match out {
        Out::Badly(fault) => tell_host(&format!("stuck-{number}"), fault),
        Out::Well | Out::ReadOnly => Ok(()),
    }
}

/// After an outage: waits until every writer has something durable that was not before, and the burst is.
fn recover(surgetank: &mut Surgetank, session: &Session, probes: bool) -> anyhow::Result<Out> {
    let before = session.acknowledged();
    if probes && probe().is_err() {
        return Ok(Out::ReadOnly);
    }
    let recovered = watch(surgetank, RECOVERY_MAX, |health| {
        if health.lost_bytes > 0 {
            return Some(Out::Badly(format!("the daemon has lost {} bytes", health.lost_bytes)));
        }
        let all = session.acknowledged().iter().zip(&before).all(|(now, before)| now > before);
        (all && session.burst_is_durable()).then_some(Out::Well)
    })?;
    Ok(recovered
        .unwrap_or_else(|last| Out::Badly(format!("writers have nothing durable after {RECOVERY_MAX:?}: {last}"))))
}

/// Whether the file system takes writes.
fn probe() -> anyhow::Result<()> {
    let mut file = File::create(Path::new(FILES).join("probe"))?;
    file.write_all(b"?")?;
    Ok(file.sync_all()?)
}

/// Looks at the daemon, and lets the host look, until `done` says something; what was seen last if it does not.
fn watch<T>(
    surgetank: &mut Surgetank,
    timeout: Duration,
    mut done: impl FnMut(&DeviceStatus) -> Option<T>,
) -> anyhow::Result<Result<T, String>> {
    let until = Instant::now() + timeout;
    loop {
        let health = surgetank.health()?;
        tell_host("now", &health)?;
        if let Some(answer) = done(&health) {
            return Ok(Ok(answer));
        }
        if Instant::now() > until {
            let reason = health.reason.as_deref().unwrap_or("no reason is given");
            return Ok(Err(format!("{} ({reason}), {:.1} MiB dirty", health.phase, health.dirty_mib())));
        }
        std::thread::sleep(LOOK);
    }
}
