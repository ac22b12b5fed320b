//! The demo of a staging pool: the same checkpoint straight to a slow file system, and through a pool in front of it, of which a benefactor and
//! the manager are killed in the middle; another manager begins.
//!
//! The slow file system is ext4 on a volume of a daemon in this process, limited to its rate. Every writer ends with fsync and close. When the
//! pool has drained, the volume is mounted alone, and every byte is compared.

mod page;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::Mode;
use surgetank_pool::local::{self, Local};
use surgetank_report::output;
use surgetank_report::{Doing, Failure, Interrupt};

pub use page::text;

use crate::content::{BLOCK, FileContent};
use crate::filesystem::{self, Mount};
use crate::host::{Export, Host, Layout};
use crate::mode::{LOOK_AGAIN, interrupted};
use crate::plan::Plan;
use crate::workspace::Workspace;
use crate::{machine, place};

/// Bytes of a write.
const WRITE: usize = 1 << 20;
/// Of the slow file system.
const JOURNAL_MIB: u32 = 16;
/// Which benefactor is killed.
const VICTIM: u32 = 1;
/// How often what was written is written down, in seconds.
const SAMPLING_S: f64 = 0.02;
/// Longer than this, a drain is stuck.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// What a run does, in numbers.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Programs that write at the same time, a file each.
    pub writers: u32,
    /// Bytes of a file.
    pub file: Bytes,
    /// Of the slow file system.
    pub bandwidth: Bandwidth,
    /// Benefactors.
    pub benefactors: u32,
    /// What each lends.
    pub memory: Bytes,
    /// Of the files' content.
    pub seed: u64,
}

impl PoolPlan {
    /// About a minute.
    #[must_use]
    pub const fn standard(seed: u64) -> Self {
        Self::sized(64, 16, seed)
    }

    /// About half a minute.
    #[must_use]
    pub const fn quick(seed: u64) -> Self {
        Self::sized(16, 10, seed)
    }

    /// Two benefactors that are left have room for both copies of all files.
    const fn sized(file_mib: u64, mib_s: u64, seed: u64) -> Self {
        let (writers, benefactors) = (4, 3);
        let memory = Bytes::from_mib(file_mib * 4 + file_mib * 4 / 2 + 12);
        Self {
            writers,
            file: Bytes::from_mib(file_mib),
            bandwidth: Bandwidth::from_mib_s(mib_s),
            benefactors,
            memory,
            seed,
        }
    }

    const fn total(&self) -> u64 {
        self.file.get() * self.writers as u64
    }
}

/// What to run, and where its report goes.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Sizes and rates.
    pub plan: PoolPlan,
    /// Where `report.html` and `report.json` go.
    pub out: PathBuf,
    /// Keep the work directory.
    pub keep: bool,
}

/// What a mode took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeOutcome {
    /// From the first write until every writer's close has returned.
    pub checkpoint_s: f64,
    /// Bytes of all writers in that time.
    pub mib_s: f64,
    /// From then on until the target had everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_s: Option<f64>,
    /// When a benefactor and the manager were killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_at_s: Option<f64>,
    /// Seconds, and MiB that the writers had written by then.
    pub written: Vec<(f64, f64)>,
    /// Seconds, and MiB that were written to the slow volume by then, with what the file system writes of its own.
    pub at_target: Vec<(f64, f64)>,
}

impl ModeOutcome {
    /// Takes up what the slow volume recorded since the writers began.
    fn record(&mut self, slow: &Slow, began: Instant) -> Result<(), Failure> {
        let began_s = began.duration_since(slow.began).as_secs_f64();
        let (mut at_s, mut mib) = (0.0, 0.0);
        for interval in slow.host.record()?.activity {
            let moved = interval.backing_mib_s * (interval.at_s - at_s).max(0.0);
            at_s = interval.at_s;
            if at_s > began_s {
                mib += moved;
                self.at_target.push((at_s - began_s, mib));
            }
        }
        Ok(())
    }
}

/// What a run found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PoolOutcome {
    /// `direct` and `pool`.
    pub modes: BTreeMap<&'static str, ModeOutcome>,
    /// Benefactors that were killed while the writers wrote.
    pub killed: u32,
    /// Managers, too.
    pub managers_killed: u32,
    /// Bytes that are missing at the target, or differ.
    pub lost_bytes: u64,
    /// Every byte was read back and matched.
    pub verified: bool,
    /// When, on which machine, with what.
    pub parameters: Vec<(String, String)>,
    #[serde(skip)]
    date: String,
}

/// Runs both modes and writes the report.
///
/// # Errors
/// The first thing that failed; everything is unmounted and removed by then.
pub fn run(options: &PoolOptions, interrupt: &Interrupt) -> Result<PoolOutcome, Failure> {
    let PoolOptions { plan, out, keep } = options;
    if place::choose_export()? != Export::Fuse {
        return Err(Failure::Invalid(
            "the demo of a pool mounts file systems: run it as root, with /dev/fuse and loop devices".into(),
        ));
    }
    place::with_report(out, || {
        let root = place::choose(2 * device(plan).backing_size.get(), out)?;
        let mut outcome = place::with_workspace(&root, *keep, |workspace| both(plan, workspace, interrupt))?;
        outcome.date = machine::date();
        outcome.parameters = parameters(plan, &root);
        output::write_into(out, ("report.html", &page::html(&outcome)?), &[("report.json", &output::json(&outcome)?)])?;
        Ok(outcome)
    })
}

/// The slow volume, as the plan of a static one.
fn device(plan: &PoolPlan) -> Plan {
    let size = (plan.total() >> 20) * 3 / 2 + 128;
    Plan { backing_size: Bytes::from_mib(size), backing_bandwidth: plan.bandwidth, ..Plan::quick(plan.seed) }
}

/// A slow file system. Fields are dropped in order: unmounted before stopped.
struct Slow {
    began: Instant,
    mount: Mount,
    host: Host,
    layout: Layout,
}

impl Slow {
    fn start(plan: &PoolPlan, workspace: &Workspace, mode: &str) -> Result<Self, Failure> {
        let (layout, device) = (Layout::new(workspace.path(), mode), device(plan));
        layout.create(&device)?;
        let host = Host::start(&device, Mode::StaticSlow, "", Export::Fuse, &layout)?;
        let began = Instant::now();
        let address = host.address()?;
        filesystem::make_ext4(&address, JOURNAL_MIB)?;
        let mount = Mount::ext4(&address, &layout.mount_point())?;
        Ok(Self { began, mount, host, layout })
    }

    /// Ends it; the bytes of its files that are missing or differ.
    fn verify(self, plan: &PoolPlan) -> Result<u64, Failure> {
        self.mount.unmount()?;
        self.host.stop();
        let alone = Mount::read_only_file(&self.layout.backing(), &self.layout.mount_point())?;
        let mut lost = 0;
        for writer in 0..plan.writers {
            lost += differing(plan, writer, &alone.point().join(name(writer)))?;
        }
        alone.unmount()?;
        Ok(lost)
    }
}

fn name(writer: u32) -> String {
    format!("rank{writer}")
}

fn both(plan: &PoolPlan, workspace: &Workspace, interrupt: &Interrupt) -> Result<PoolOutcome, Failure> {
    let mut outcome = PoolOutcome::default();
    let slow = Slow::start(plan, workspace, "direct")?;
    output::note(&format!("surgetank: {} straight to a file system of {}", Bytes::new(plan.total()), plan.bandwidth));
    let began = Instant::now();
    let mut direct = checkpoint(plan, slow.mount.point(), interrupt, || Ok(()))?;
    direct.record(&slow, began)?;
    direct.killed_at_s = None;
    outcome.modes.insert("direct", direct);
    outcome.lost_bytes += slow.verify(plan)?;
    let slow = Slow::start(plan, workspace, "pool")?;
    output::note("surgetank: the same through a staging pool");
    let pool = through_pool(plan, workspace, &slow, interrupt)?;
    (outcome.killed, outcome.managers_killed) = if pool.killed_at_s.is_some() { (1, 1) } else { (0, 0) };
    outcome.modes.insert("pool", pool);
    outcome.lost_bytes += slow.verify(plan)?;
    outcome.verified = outcome.lost_bytes == 0;
    Ok(outcome)
}

fn through_pool(
    plan: &PoolPlan,
    workspace: &Workspace,
    slow: &Slow,
    interrupt: &Interrupt,
) -> Result<ModeOutcome, Failure> {
    let directory = workspace.path().join("store");
    let config = local::Config::of_memory(directory, "127.0.0.1:0", plan.benefactors, plan.memory);
    let pool = Local::start(&config).map_err(Failure::failed)?;
    pool.wait_joined(plan.benefactors as usize, DRAIN_TIMEOUT).map_err(Failure::failed)?;
    let point = workspace.path().join("mount");
    std::fs::create_dir_all(&point).doing(|| format!("cannot make {}", point.display()))?;
    let mounted = surgetank_mount::Mount::start(&surgetank_mount::Config {
        managers: vec![pool.address().to_owned()],
        access: pool.access().clone(),
        point: point.clone(),
        target: slow.mount.point().to_owned(),
        durability: None,
        timeout: DRAIN_TIMEOUT,
        commit_within: surgetank_mount::COMMIT_WITHIN,
    })
    .map_err(Failure::failed)?;
    let began = Instant::now();
    let kill = || {
        pool.kill_benefactor(VICTIM);
        pool.replace_manager().map_err(Failure::failed)
    };
    let mut outcome = checkpoint(plan, &point, interrupt, kill)?;
    while !(0..plan.writers).all(|writer| is_drained(&point.join(name(writer)))) {
        if interrupt.sleep(LOOK_AGAIN) {
            return Err(interrupted());
        }
        if began.elapsed() > DRAIN_TIMEOUT {
            return Err(Failure::failed("the drain did not end: run again with SURGETANK_LOG=info to see why"));
        }
    }
    outcome.drain_s = Some(began.elapsed().as_secs_f64() - outcome.checkpoint_s);
    outcome.record(slow, began)?;
    mounted.unmount().map_err(|failed| Failure::failed(&failed.1))?;
    Ok(outcome)
}

fn is_drained(file: &Path) -> bool {
    let mut state = [0_u8; 32];
    rustix::fs::getxattr(file, surgetank_mount::STATE, &mut state).is_ok_and(|length| &state[..length] == b"drained")
}

/// All writers write, sync and close. Once half of it is written, `at_half` is called, while they write the rest.
fn checkpoint(
    plan: &PoolPlan,
    directory: &Path,
    interrupt: &Interrupt,
    at_half: impl Fn() -> Result<(), Failure>,
) -> Result<ModeOutcome, Failure> {
    let (written, is_half, began) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    let mut outcome = ModeOutcome { written: vec![(0.0, 0.0)], ..ModeOutcome::default() };
    let now = |written: &AtomicU64| {
        (began.elapsed().as_secs_f64(), written.load(Ordering::Relaxed) as f64 / f64::from(1 << 20))
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..plan.writers)
            .map(|writer| {
                let (written, is_half) = (&written, &is_half);
                scope.spawn(move || {
                    write(plan, writer, &directory.join(name(writer)), written, || {
                        // Not before it is noticed.
                        while written.load(Ordering::Relaxed) >= plan.total() / 2
                            && !is_half.load(Ordering::Relaxed)
                            && !interrupt.raised()
                        {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        if interrupt.raised() { Err(interrupted()) } else { Ok(()) }
                    })
                })
            })
            .collect();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            if outcome.killed_at_s.is_none() && written.load(Ordering::Relaxed) >= plan.total() / 2 {
                outcome.killed_at_s = Some(began.elapsed().as_secs_f64());
                is_half.store(true, Ordering::Relaxed);
                at_half()?;
            }
            if outcome.written.last().is_none_or(|(at_s, _)| began.elapsed().as_secs_f64() - at_s >= SAMPLING_S) {
                outcome.written.push(now(&written));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let crashed = || Err(Failure::failed("a writer of the demo crashed"));
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| crashed()))
    })?;
    outcome.written.push(now(&written));
    outcome.checkpoint_s = began.elapsed().as_secs_f64();
    outcome.mib_s = plan.total() as f64 / f64::from(1 << 20) / outcome.checkpoint_s.max(1e-9);
    Ok(outcome)
}

/// Writes one file, each part of it once that may be.
fn write(
    plan: &PoolPlan,
    writer: u32,
    path: &Path,
    written: &AtomicU64,
    may: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let doing = || format!("cannot write {}", path.display());
    let file = File::create_new(path).doing(doing)?;
    let content = FileContent { seed: plan.seed, file: writer.into() };
    let mut buffer = vec![0; WRITE];
    for offset in (0..plan.file.get()).step_by(WRITE) {
        may()?;
        content.fill(offset / BLOCK as u64, &mut buffer);
        file.write_all_at(&buffer, offset).doing(doing)?;
        written.fetch_add(WRITE as u64, Ordering::Relaxed);
    }
    file.sync_all().doing(doing)
}

/// Bytes of a file that are missing, or differ from what was written.
fn differing(plan: &PoolPlan, writer: u32, path: &Path) -> Result<u64, Failure> {
    let Ok(file) = File::open(path) else { return Ok(plan.file.get()) };
    let content = FileContent { seed: plan.seed, file: writer.into() };
    let (mut expected, mut found, mut lost) = (vec![0; WRITE], vec![0; WRITE], 0);
    for offset in (0..plan.file.get()).step_by(WRITE) {
        content.fill(offset / BLOCK as u64, &mut expected);
        match file.read_exact_at(&mut found, offset) {
            Ok(()) => lost += expected.iter().zip(&found).filter(|(one, other)| one != other).count() as u64,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => lost += WRITE as u64,
            Err(error) => return Err(Failure::Failed(format!("cannot read {}: {error}", path.display()))),
        }
    }
    Ok(lost)
}

fn parameters(plan: &PoolPlan, root: &Path) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("writers", format!("{}, {} each", plan.writers, plan.file)),
        fact("slow file system", format!("ext4 on a volume of {}", plan.bandwidth)),
        fact("benefactors", format!("{}, {} of memory each", plan.benefactors, plan.memory)),
        fact("durability", "copies=2".to_owned()),
        fact("seed", plan.seed.to_string()),
        fact("directory", root.display().to_string()),
    ]
}
