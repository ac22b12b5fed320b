//! The demo: one job on this machine, on real I/O, three ways; and, in [`array`], the same requests on arrays of burstable
//! volumes; in [`pool`], a checkpoint through a staging pool.
//!
//! Three modes run the same application on volumes of their own, at the same time: the volumes' rates are far below
//! the disk's, so the modes do not slow each other down. Each mode has a daemon of its own in this process. When all
//! are done every byte is read back from the backing volumes, without surgetank.

pub mod array;
mod child;
mod content;
mod filesystem;
mod host;
mod machine;
mod mode;
mod money;
mod place;
mod plan;
pub mod pool;
mod progress;
mod verify;
mod workspace;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use surgetank_planner::Mode;
use surgetank_report::output;
use surgetank_report::run::{self, ModeOutcome, RunOutcome};
use surgetank_report::{Failure, Interrupt};

pub use child::work;
pub use plan::Plan;

use crate::host::{Export, Layout};
use crate::mode::{LOOK_AGAIN, ModeRun};
use crate::progress::Board;
use crate::workspace::Workspace;

/// Beside the report: the run as a scenario, to predict and simulate it.
const SCENARIO: &str = "scenario.toml";

/// What to run, and where its report goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes and times.
    pub plan: Plan,
    /// Name of the elastic mode's policy.
    pub policy: &'static str,
    /// Where `report.html`, `report.json` and `scenario.toml` go.
    pub out: PathBuf,
    /// Keep the work directory with its volumes.
    pub keep: bool,
}

/// Runs the three modes and writes the report. This executable must hand its hidden command `demo-writer` to [`work`].
///
/// # Errors
/// The first thing that failed; everything is unmounted, released and removed by then.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<RunOutcome, Failure> {
    place::with_report(&options.out, || run_and_report(options, interrupt))
}

fn run_and_report(options: &Options, interrupt: &Interrupt) -> Result<RunOutcome, Failure> {
    let began = Instant::now();
    let Options { plan, policy, out, keep } = options;
    let root = place::choose(plan.disk_space(), out)?;
    let export = place::choose_export()?;
    let finished =
        place::with_workspace(&root, *keep, |workspace| run_modes(plan, policy, export, workspace, interrupt));
    let mut outcome = finished?;
    outcome.policy = (*policy).to_owned();
    outcome.export = export.name().to_owned();
    outcome.date = machine::date();
    outcome.elapsed_s = began.elapsed().as_secs_f64();
    outcome.parameters = parameters(plan, policy, export, &root);
    outcome.relate();
    run::write(&outcome, out)?;
    output::write_whole(&out.join(SCENARIO), &plan.scenario(policy))?;
    Ok(outcome)
}

/// What a mode found out, and how many bytes were verified.
type ModeResult = Result<(ModeOutcome, u64), Failure>;

fn run_modes(
    plan: &Plan,
    policy: &'static str,
    export: Export,
    workspace: &Workspace,
    interrupt: &Interrupt,
) -> Result<RunOutcome, Failure> {
    let board = Board::new();
    // Reading files back would slow a mode that still runs, so nobody does before all are done.
    let unfinished = AtomicUsize::new(Mode::ALL.len());
    let results: Vec<(Mode, ModeResult)> = std::thread::scope(|scope| {
        let running = Mode::ALL.map(|mode| {
            let run = ModeRun {
                plan,
                mode,
                policy,
                export,
                layout: Layout::new(workspace.path(), mode.name()),
                interrupt,
                line: board.line(mode.name(), plan.total_bytes()),
            };
            let unfinished = &unfinished;
            (mode, scope.spawn(move || run_one(run, unfinished)))
        });
        let crashed = || Err(Failure::failed("a part of the demo crashed"));
        let results = running.map(|(mode, thread)| (mode, thread.join().unwrap_or_else(|_| crashed())));
        results.into_iter().collect()
    });
    board.clear();
    let mut outcome = RunOutcome { title: "surgetank demo", ..RunOutcome::default() };
    let mut verified = true;
    for (mode, (found, verified_bytes)) in first_failure(results, |mode| mode.name())? {
        verified &= verified_bytes == plan.total_bytes();
        outcome.verified_bytes += verified_bytes;
        outcome.modes.insert(mode, found);
    }
    outcome.verified = Some(verified);
    Ok(outcome)
}

/// Runs a mode and reads back what it wrote. If that fails the other modes need not go on.
fn run_one(mut run: ModeRun<'_>, unfinished: &AtomicUsize) -> ModeResult {
    let interrupt = run.interrupt;
    let result = wait_until(interrupt, Instant::now() + start_delay(run.plan, run.mode)).and_then(|()| {
        let (found, files) = run.run()?;
        unfinished.fetch_sub(1, Ordering::AcqRel);
        while unfinished.load(Ordering::Acquire) > 0 {
            wait_until(interrupt, Instant::now() + LOOK_AGAIN)?;
        }
        run.line.phase("verifying");
        let bytes = verify::verify(run.mode, &run.layout, run.export, &files, interrupt)?;
        run.line.phase("verified");
        run.line.done(&format!("{} MiB read back from the backing volume alone and matched", bytes >> 20));
        Ok((found, bytes))
    });
    if result.is_err() {
        interrupt.raise();
    }
    result
}

fn wait_until(interrupt: &Interrupt, moment: Instant) -> Result<(), Failure> {
    if interrupt.sleep(moment.saturating_duration_since(Instant::now())) {
        return Err(mode::interrupted());
    }
    Ok(())
}

/// Keeps static-fast's bursts apart from elastic's, which they are compared with: its initial dump begins when
/// elastic's is over, and the checkpoints stay that far apart. It ends long before static-slow anyway.
fn start_delay(plan: &Plan, mode: Mode) -> Duration {
    match mode {
        Mode::StaticFast => 3 * plan.caching_bandwidth.time_for(plan.initial_dump.get()),
        Mode::StaticSlow | Mode::Elastic => Duration::ZERO,
    }
}

/// All results, or what went wrong first: one mode's failure interrupts the others, so it outranks interruptions.
fn first_failure<M, T>(
    results: Vec<(M, Result<T, Failure>)>,
    name: impl Fn(&M) -> &'static str,
) -> Result<Vec<(M, T)>, Failure> {
    let mut done = Vec::new();
    let mut interrupted = None;
    for (mode, result) in results {
        match result {
            Ok(value) => done.push((mode, value)),
            Err(Failure::Interrupted(text)) => interrupted = Some(Failure::Interrupted(text)),
            Err(failure) => return Err(Failure::Failed(format!("{}: {failure}", name(&mode)))),
        }
    }
    interrupted.map_or(Ok(done), Err)
}

fn parameters(plan: &Plan, policy: &str, export: Export, root: &Path) -> Vec<(String, String)> {
    let mib = |bytes: surgetank_model::Bytes| format!("{:.0} MiB", bytes.as_mib());
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    let kind = if export == Export::Fuse { "ext4 on a loop device over FUSE" } else { "NBD on a Unix socket" };
    [
        ("setting", format!("CM1 of the papers, sizes and times divided by {}", plan.scale)),
        ("backing volume", format!("{}, {}", mib(plan.backing_size), plan.backing_bandwidth)),
        (
            "fast and caching volumes",
            format!("{}; first caching volume {}", plan.caching_bandwidth, mib(plan.initial_cache)),
        ),
        (
            "application",
            format!(
                "initial dump {}, then {} × ({} of compute, checkpoint of {}) by {} processes",
                mib(plan.initial_dump),
                plan.checkpoints,
                seconds(plan.compute),
                mib(plan.checkpoint),
                plan.writers
            ),
        ),
        ("device", kind.to_owned()),
        (
            "controller",
            format!(
                "{}: utilization threshold {:.0} %, inactivity delay {}, sampling {}, size grain {}",
                policy,
                plan.utilization_threshold * 100.0,
                seconds(plan.inactivity_delay),
                seconds(plan.sampling),
                mib(plan.grain)
            ),
        ),
        (
            "provider",
            format!(
                "local files; {} to rent and {} to attach",
                seconds(plan.provider_latency),
                seconds(plan.provider_latency)
            ),
        ),
        ("money", money::explanation(plan)),
        ("seed", plan.seed.to_string()),
        ("machine", machine::description()),
        ("volumes in", root.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_outranks_the_interruptions_that_it_causes() {
        let interrupted = || Err::<(), _>(Failure::Interrupted("i".into()));
        let name = |mode: &Mode| mode.name();
        let results = vec![
            (Mode::StaticSlow, interrupted()),
            (Mode::StaticFast, Err(Failure::failed("no"))),
            (Mode::Elastic, Ok(())),
        ];
        assert_eq!(first_failure(results, name).unwrap_err().to_string(), "static-fast: no");
        assert_eq!(first_failure(vec![(Mode::Elastic, interrupted())], name).unwrap_err().status(), 130);
        assert_eq!(first_failure(vec![(Mode::Elastic, Ok(1))], name).unwrap(), [(Mode::Elastic, 1)]);
    }
}
