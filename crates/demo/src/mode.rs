//! One mode's run: device, file system, initial dump, compute pauses and checkpoints, last drain.

use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use surgetank_planner::Mode;
use surgetank_report::run::{ModeOutcome, PhaseSpan};
use surgetank_report::{Doing, Failure, Interrupt};

use crate::child;
use crate::filesystem::{self, Mount};
use crate::host::{self, Export, Host, Layout};
use crate::money;
use crate::plan::{Dump, Plan, PlannedFile};
use crate::progress::Line;
use crate::writer::{self, Destination, Written};

/// How often writers and the device are looked at.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often the progress line changes.
const SHOW_AGAIN: Duration = Duration::from_millis(250);
/// The last drain and the return of the caching volume take seconds; longer than this, something is stuck.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Of the file system.
const JOURNAL_MIB: u32 = 16;

/// A file that was written, as the verification expects it.
#[derive(Clone, Debug)]
pub struct WrittenFile {
    /// What was planned.
    pub file: PlannedFile,
    /// What its writer said.
    pub written: Written,
}

/// What a mode needs to run.
pub struct ModeRun<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Which mode.
    pub mode: Mode,
    /// Name of the controller's policy.
    pub policy: &'a str,
    /// How the device is exported.
    pub export: Export,
    /// Where its files go.
    pub layout: Layout,
    /// Ends the run.
    pub interrupt: &'a Interrupt,
    /// Shows how it goes.
    pub line: Line,
}

/// The user asked to stop.
pub fn interrupted() -> Failure {
    Failure::Interrupted("the demo was interrupted".into())
}

/// The device with its file system, while the run lasts. Fields are dropped in order: unmounted before stopped.
struct DemoStage {
    mount: Option<Mount>,
    host: Host,
    began: Instant,
}

impl ModeRun<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// The first thing that failed, or that it was interrupted. Everything is unmounted and stopped either way.
    pub fn run(&mut self) -> Result<(ModeOutcome, Vec<WrittenFile>), Failure> {
        self.line.phase("starting");
        self.layout.create(self.plan)?;
        let host = Host::start(self.plan, self.mode, self.policy, self.export, &self.layout)?;
        let mut stage = DemoStage { mount: None, host, began: Instant::now() };
        if self.export == Export::Fuse {
            self.line.phase("mkfs.ext4");
            let device = stage.host.address()?;
            filesystem::make_ext4(&device, JOURNAL_MIB)?;
            stage.mount = Some(Mount::ext4(&device, &self.layout.mount_point())?);
        }
        let mut written = Vec::new();
        let mut phases = Vec::new();
        for dump in self.plan.dumps() {
            if let Dump::Checkpoint(_) = dump {
                phases.push(self.compute(&stage)?);
            }
            phases.push(self.dump(dump, &stage, &mut written)?);
        }
        if let Some(mount) = stage.mount.take() {
            self.line.phase("unmounting");
            mount.unmount()?;
        }
        self.drain(&stage)?;
        let wall_s = stage.began.elapsed().as_secs_f64();
        let outcome = self.outcome(&stage.host, phases, wall_s)?;
        self.line.phase("stopping");
        stage.host.stop();
        host::check_released(&self.layout)?;
        self.line.phase("done");
        Ok((outcome, written))
    }

    fn bytes_written(written: &[WrittenFile]) -> u64 {
        written.iter().map(|file| file.file.size).sum()
    }

    fn show(&self, stage: &DemoStage, phase_began: f64, dump: Option<Dump>, written: &[WrittenFile]) {
        let live = stage.host.live();
        let running = stage.began.elapsed().as_secs_f64() - phase_began;
        // Between the files' ends the bar goes by the throughput seen.
        let estimate = dump.map_or(0.0, |_| live.write_mib_s * running) * f64::from(1 << 20);
        let limit = dump.map_or(0, |dump| self.plan.file_size(dump) * u64::from(self.plan.writers));
        self.line.show(Self::bytes_written(written) + (estimate as u64).min(limit), &live);
    }

    fn compute(&mut self, stage: &DemoStage) -> Result<PhaseSpan, Failure> {
        self.line.phase("compute");
        let start_s = stage.began.elapsed().as_secs_f64();
        let until = Instant::now() + self.plan.compute;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let end_s = stage.began.elapsed().as_secs_f64();
                return Ok(PhaseSpan { name: "compute".into(), start_s, end_s });
            }
            if self.interrupt.sleep(left.min(SHOW_AGAIN)) {
                return Err(interrupted());
            }
            self.line.tick(&stage.host.live());
        }
    }

    fn dump(&mut self, dump: Dump, stage: &DemoStage, written: &mut Vec<WrittenFile>) -> Result<PhaseSpan, Failure> {
        let name = match dump {
            Dump::Initial => "initial dump".to_owned(),
            Dump::Checkpoint(number) => format!("checkpoint {number} of {}", self.plan.checkpoints),
        };
        self.line.phase(&name);
        let socket = self.layout.socket();
        let destination = match &stage.mount {
            Some(mount) => Destination::Directory(mount.point()),
            None => Destination::Nbd(&socket),
        };
        let start_s = stage.began.elapsed().as_secs_f64();
        let mut writers = Writers::start(&self.plan.files(self.mode, dump), &destination)?;
        let mut shown = Instant::now();
        while !writers.are_done()? {
            if self.interrupt.sleep(LOOK_AGAIN) {
                return Err(interrupted());
            }
            if shown.elapsed() > SHOW_AGAIN {
                shown = Instant::now();
                self.show(stage, start_s, Some(dump), written);
            }
        }
        let end_s = stage.began.elapsed().as_secs_f64();
        let before = written.len();
        written.append(&mut writers.finish()?);
        let mib = Self::bytes_written(&written[before..]) as f64 / f64::from(1 << 20);
        let seconds = end_s - start_s;
        self.line.done(&format!("{name}: {mib:.0} MiB in {seconds:.1} s ({:.0} MiB/s)", mib / seconds.max(1e-9)));
        self.show(stage, end_s, None, written);
        Ok(PhaseSpan { name, start_s, end_s })
    }

    /// Waits until nothing is rented beside the backing volume.
    fn drain(&mut self, stage: &DemoStage) -> Result<(), Failure> {
        self.line.phase("last drain");
        let until = Instant::now() + DRAIN_TIMEOUT;
        while !stage.host.is_idle()? {
            if self.interrupt.sleep(LOOK_AGAIN) {
                return Err(interrupted());
            }
            self.line.tick(&stage.host.live());
            if Instant::now() > until {
                return Err(Failure::Failed(format!(
                    "the last drain did not end within {} s: run again with SURGETANK_LOG=info to see why",
                    DRAIN_TIMEOUT.as_secs()
                )));
            }
        }
        Ok(())
    }

    fn outcome(&self, host: &Host, phases: Vec<PhaseSpan>, wall_s: f64) -> Result<ModeOutcome, Failure> {
        let record = host.record()?;
        let initial = phases.first().map_or((0.0, 0.0), |phase| (phase.start_s, phase.end_s));
        let last = phases.last().map_or(0.0, |phase| phase.end_s);
        let writing: f64 =
            phases.iter().filter(|phase| phase.name != "compute").map(|phase| phase.end_s - phase.start_s).sum();
        let mib = self.plan.total_bytes() as f64 / f64::from(1 << 20);
        let (cost_usd, cost) = {
            let usd = money::usd(self.plan, &record);
            (usd(wall_s), record.cost(wall_s, &usd))
        };
        Ok(ModeOutcome {
            completion_s: last - initial.1,
            wall_s,
            initial_dump_s: initial.1 - initial.0,
            cost_agbs: record.agbs(wall_s),
            cost_usd,
            write_mib_s: Some(mib / writing.max(1e-9)),
            cost,
            boosts: record.boosts,
            activity: record.activity,
            phases,
            ..ModeOutcome::default()
        })
    }
}

/// The writer processes of one phase; killed when dropped.
struct Writers(Vec<(PlannedFile, Child, bool)>);

impl Writers {
    fn start(files: &[PlannedFile], destination: &Destination<'_>) -> Result<Self, Failure> {
        let mut writers = Self(Vec::with_capacity(files.len()));
        for file in files {
            let child = writer::spawn(file, destination).doing(|| "cannot start a writer process".to_owned())?;
            writers.0.push((file.clone(), child, false));
        }
        Ok(writers)
    }

    /// Whether all have ended well; the first that has not is an error.
    fn are_done(&mut self) -> Result<bool, Failure> {
        let mut running = 0;
        for (file, child, done) in &mut self.0 {
            if *done {
                continue;
            }
            match child.try_wait().doing(|| "cannot wait for a writer process".to_owned())? {
                None => running += 1,
                Some(status) if status.success() => *done = true,
                Some(status) => return Err(writer_failed(&file.path, child::reason(child), &status.to_string())),
            }
        }
        Ok(running == 0)
    }

    fn finish(mut self) -> Result<Vec<WrittenFile>, Failure> {
        let mut files = Vec::with_capacity(self.0.len());
        for (file, child, _) in &mut self.0 {
            let mut said = String::new();
            if let Some(stdout) = &mut child.stdout {
                stdout.read_to_string(&mut said).doing(|| "cannot hear a writer process".to_owned())?;
            }
            let written: Written = serde_json::from_str(&said)
                .doing(|| format!("the writer of {} did not say what it wrote", file.path.display()))?;
            files.push(WrittenFile { file: file.clone(), written });
        }
        Ok(files)
    }
}

fn writer_failed(path: &Path, reason: Option<String>, status: &str) -> Failure {
    Failure::Failed(match reason {
        Some(reason) => format!("a writer of the demo failed: {reason}"),
        None => format!("the writer of {} ended with {status}", path.display()),
    })
}

impl Drop for Writers {
    fn drop(&mut self) {
        for (_, child, _) in &mut self.0 {
            let _ = child.kill();
        }
        for (_, child, _) in &mut self.0 {
            let _ = child.wait();
        }
    }
}
