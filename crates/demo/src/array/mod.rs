//! The demo of arrays: the same requests on one large volume, on an array of small ones, and on the array with rotation.
//!
//! All volumes live on burst credits, scaled so that they end within seconds. The modes run at the same time, each with a daemon of
//! its own in this process: their rates are far below the disk's. When all are done each array is assembled again from its members,
//! and every byte is read back.

mod host;
mod job;
pub(crate) mod load;
mod mode;
mod outcome;
mod page;
mod plan;
mod record;
mod rotation;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use surgetank_report::output;
use surgetank_report::{Failure, Interrupt};

pub use outcome::{ArrayOutcome, ModeOutcome};
pub use page::text;
pub use plan::{ArrayPlan, Mode};

use self::mode::ModeRun;
use crate::host::{Export, Layout};
use crate::mode::{LOOK_AGAIN, interrupted};
use crate::progress::Board;
use crate::workspace::Workspace;
use crate::{machine, place};

/// What to run, and where its report goes.
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    /// Rates, sizes and times.
    pub plan: ArrayPlan,
    /// Where `report.html`, `report.json` and `scenario.toml` go.
    pub out: PathBuf,
    /// Keep the work directory.
    pub keep: bool,
}

/// Runs the three modes and writes the report. This executable must hand its hidden command `demo-writer` to [`crate::work`].
///
/// # Errors
/// The first thing that failed; everything is unmounted, deleted and removed by then.
pub fn run(options: &ArrayOptions, interrupt: &Interrupt) -> Result<ArrayOutcome, Failure> {
    let ArrayOptions { plan, out, keep } = options;
    place::with_report(out, || {
        let began = Instant::now();
        let root = place::choose(plan.disk_space(), out)?;
        let export = place::choose_export()?;
        let ran = place::with_workspace(&root, *keep, |workspace| run_modes(plan, export, workspace, interrupt));
        let mut outcome = ran?;
        outcome.compare(plan);
        outcome.export = export.name().to_owned();
        outcome.date = machine::date();
        outcome.elapsed_s = began.elapsed().as_secs_f64();
        outcome.parameters = parameters(plan, export, &root);
        page::write(&outcome, plan.run.as_secs_f64(), out)?;
        output::write_whole(&out.join(crate::SCENARIO), &plan.scenario())?;
        Ok(outcome)
    })
}

/// Where the modes wait for each other.
struct Meeting(AtomicUsize);

impl Meeting {
    fn new() -> Self {
        Self(AtomicUsize::new(Mode::ALL.len()))
    }

    fn arrive(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        self.0.fetch_sub(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) > 0 {
            if interrupt.sleep(LOOK_AGAIN) {
                return Err(interrupted());
            }
        }
        Ok(())
    }
}

/// What the modes wait for: nobody makes or reads back files beside a mode that is measured.
struct Meetings {
    prepared: Meeting,
    ran: Meeting,
}

fn run_modes(
    plan: &ArrayPlan,
    export: Export,
    workspace: &Workspace,
    interrupt: &Interrupt,
) -> Result<ArrayOutcome, Failure> {
    let board = Board::new();
    let meetings = Meetings { prepared: Meeting::new(), ran: Meeting::new() };
    let results = std::thread::scope(|scope| {
        let running = Mode::ALL.map(|mode| {
            let run = ModeRun {
                plan,
                mode,
                export,
                layout: Layout::new(workspace.path(), mode.name()),
                interrupt,
                line: board.line(mode.name(), 1000),
            };
            let meetings = &meetings;
            (mode, scope.spawn(move || run_one(run, meetings)))
        });
        let crashed = || Err(Failure::failed("a part of the demo crashed"));
        running.map(|(mode, thread)| (mode, thread.join().unwrap_or_else(|_| crashed())))
    });
    board.clear();
    let mut outcome = ArrayOutcome { verified: true, offered_iops: plan.demand().get(), ..ArrayOutcome::default() };
    for (mode, (found, bytes)) in crate::first_failure(results.into_iter().collect(), |mode| mode.name())? {
        outcome.verified &= bytes == plan.data();
        outcome.verified_bytes += bytes;
        outcome.modes.insert(mode, found);
    }
    Ok(outcome)
}

/// Runs a mode and reads back what it wrote. If that fails the other modes need not go on.
fn run_one(mut run: ModeRun<'_>, meetings: &Meetings) -> Result<(ModeOutcome, u64), Failure> {
    let mut all = || {
        run.prepare()?;
        meetings.prepared.arrive(run.interrupt)?;
        let ran = run.run()?;
        meetings.ran.arrive(run.interrupt)?;
        let bytes = run.verify()?;
        Ok((ModeOutcome::new(run.plan, run.mode, ran), bytes))
    };
    let result = all();
    if result.is_err() {
        run.interrupt.raise();
    }
    result
}

fn parameters(plan: &ArrayPlan, export: Export, root: &Path) -> Vec<(String, String)> {
    let kind = if export == Export::Fuse { "ext4 on a loop device over FUSE" } else { "NBD on a Unix socket" };
    let key = plan.volume_type.key();
    let local = plan.local_type();
    let volumes = |mode: Mode| {
        let credits = plan.credits(mode);
        let credits = credits.first().map_or_else(String::new, |credits| {
            format!(
                ": {} IOPS while {} credits last, {} IOPS afterwards",
                credits.burst_per_s, credits.bucket, credits.baseline_per_s
            )
        });
        let original = page::volumes(plan.members(mode), plan.original_size(mode));
        format!("{}{credits} (stands for {original} {key})", page::volumes(plan.members(mode), plan.size(mode)))
    };
    let date = plan.volume_type.price.as_ref().and_then(|price| price.as_of.as_deref()).unwrap_or("undated");
    [
        (
            "setting",
            format!(
                "{key}; rates divided by {}, times by {}, sizes by {}",
                plan.rate_scale, plan.time_scale, plan.size_scale
            ),
        ),
        ("single", volumes(Mode::Single)),
        ("array, rotated", volumes(Mode::Array)),
        ("bandwidth of a volume", local.bandwidth.to_string()),
        (
            "application",
            format!(
                "{} requests of {} a second for {:.0} s, {:.0} % writes, evenly over {} MiB, at most {} in flight",
                plan.demand().get(),
                plan::REQUEST,
                plan.run.as_secs_f64(),
                plan.write_share() * 100.0,
                plan.data() >> 20,
                plan.workers(export)
            ),
        ),
        ("rotation", format!("staggered, one member at a time; copy rate {}", plan.copy_rate())),
        ("device", kind.to_owned()),
        ("money", format!("list prices of {key} at the original's size, of {date}; extra volumes as billed")),
        ("seed", plan.seed.to_string()),
        ("machine", machine::description()),
        ("volumes in", root.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
