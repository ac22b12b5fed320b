//! One mode of the demo of arrays: volumes and files made, requests served, everything read back.

use std::time::{Duration, Instant};

use surgetank_daemon::arrays::status::ArrayStatus;
use surgetank_model::Instant as Moment;
use surgetank_report::number::count;
use surgetank_report::{Failure, Interrupt};

use super::host::{self, ArrayHost, Held};
use super::job::Job;
use super::load::{Order, Target, Task, Tick};
use super::plan::{ArrayPlan, Mode};
use super::record::Record;
use super::rotation::{Replacement, Rotator};
use crate::filesystem::{self, Mount};
use crate::host::{Export, Layout};
use crate::mode::interrupted;
use crate::progress::Line;

/// How often the array is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Of the file system. The least that there is: a copy of a member copies its share of the journal, and the load commits little.
const JOURNAL_MIB: u32 = 4;
/// The last replacement takes seconds; longer than this, something is stuck.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a mode needs to run.
pub struct ModeRun<'a> {
    /// What to do.
    pub plan: &'a ArrayPlan,
    /// Which mode.
    pub mode: Mode,
    /// How the device is exported.
    pub export: Export,
    /// Where its files go.
    pub layout: Layout,
    /// Ends the run.
    pub interrupt: &'a Interrupt,
    /// Shows how it goes.
    pub line: Line,
}

/// What a run came to.
pub struct Ran {
    /// Requests served over time.
    pub ticks: Vec<Tick>,
    /// The array over time.
    pub record: Record,
    /// Members that were replaced.
    pub replaced: Vec<Replacement>,
}

/// The device with its file system. Fields are dropped in order: unmounted before stopped.
struct Stage {
    mount: Option<Mount>,
    host: ArrayHost,
}

impl Stage {
    fn end(mut self) -> Result<(), Failure> {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        self.host.stop();
        Ok(())
    }
}

impl ModeRun<'_> {
    fn start(&self, held: Held) -> Result<Stage, Failure> {
        let host = ArrayHost::start(self.plan, self.mode, self.export, &self.layout, held)?;
        Ok(Stage { mount: None, host })
    }

    fn mount(&self, stage: &mut Stage) -> Result<(), Failure> {
        if self.export == Export::Fuse {
            stage.mount = Some(Mount::ext4(&stage.host.address()?, &self.layout.mount_point())?);
        }
        Ok(())
    }

    fn job(&self, task: Task) -> Result<Job, Failure> {
        let workers = self.plan.workers(self.export);
        Job::start(Order {
            target: match self.export {
                Export::Fuse => Target::Directory(self.layout.mount_point()),
                Export::Nbd => Target::Nbd(self.layout.socket()),
            },
            workers,
            bytes: self.plan.data() / u64::from(workers),
            seed: self.plan.seed ^ (self.mode as u64) << 32,
            versions: self.layout.file("versions"),
            task,
        })
    }

    /// Rents the volumes, and makes the file system and its files.
    ///
    /// # Errors
    /// The first thing that failed, or that it was interrupted.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        self.line.phase("renting volumes");
        ArrayHost::create(self.plan, self.mode, self.export, &self.layout)?;
        let mut stage = self.start(Held::ToNothing)?;
        if self.export == Export::Fuse {
            self.line.phase("mkfs.ext4");
            filesystem::make_ext4(&stage.host.address()?, JOURNAL_MIB)?;
        }
        self.mount(&mut stage)?;
        self.line.phase("making files");
        let bytes = self.job(Task::Fill)?.wait(self.interrupt)?;
        stage.end()?;
        let volumes = count(self.plan.members(self.mode) as usize, "volume");
        self.line.done(&format!("{volumes} of {} rented, {} MiB written", self.plan.size(self.mode), bytes >> 20));
        self.line.phase("ready");
        Ok(())
    }

    /// Serves requests from volumes with full credits, and replaces members if the mode does.
    ///
    /// # Errors
    /// The first thing that failed, or that it was interrupted.
    pub fn run(&mut self) -> Result<Ran, Failure> {
        let mut stage = self.start(Held::ToCredits)?;
        self.mount(&mut stage)?;
        self.line.phase("running");
        let mut job = self.job(Task::Run {
            iops: self.plan.demand().get(),
            write_share: self.plan.write_share(),
            length_ms: u64::try_from(self.plan.run.as_millis()).unwrap_or(u64::MAX),
        })?;
        let began = Instant::now();
        let mut rotator = (self.mode == Mode::Rotated).then(|| Rotator::new(self.plan.rotation()));
        let (mut record, mut before) = (Record::default(), Tick::default());
        while !job.has_ended()? {
            if self.interrupt.sleep(LOOK) {
                return Err(interrupted());
            }
            let status = stage.host.status()?;
            let elapsed = began.elapsed();
            record.see(elapsed.as_secs_f64(), &status);
            if let Some(rotator) = &mut rotator {
                self.rotate(rotator, elapsed, &status, &stage.host)?;
            }
            let tick = job.last_tick();
            if tick.at_s > before.at_s + 0.5 {
                self.show(before, tick, &record, rotator.as_ref());
                before = tick;
            }
        }
        let (ticks, _) = job.finish()?;
        self.line.phase("last replacement");
        self.settle(&stage.host)?;
        stage.end()?;
        let replaced = rotator.map_or_else(Vec::new, |rotator| rotator.replaced().to_vec());
        let run_s = self.plan.run.as_secs_f64();
        let replaced: Vec<Replacement> = replaced.into_iter().filter(|replaced| replaced.at_s <= run_s).collect();
        let served = super::outcome::served_until(&ticks, run_s);
        let members = match (self.mode, replaced.len()) {
            (Mode::Rotated, number) => format!(", {} replaced", count(number, "member")),
            _ => String::new(),
        };
        self.line.done(&format!("{:.0} requests in {run_s:.0} s: {:.0} IOPS{members}", served, served / run_s));
        self.line.phase("done");
        Ok(Ran { ticks, record, replaced })
    }

    /// Looks at the array, and begins the replacement that is due, while requests are made.
    fn rotate(
        &self,
        rotator: &mut Rotator,
        elapsed: Duration,
        status: &ArrayStatus,
        host: &ArrayHost,
    ) -> Result<(), Failure> {
        let now = Moment::ZERO + elapsed;
        rotator.look(now, status);
        while elapsed < self.plan.run
            && let Some(slot) = rotator.next(now)
        {
            host.replace(slot)?;
        }
        Ok(())
    }

    fn show(&self, before: Tick, tick: Tick, record: &Record, rotator: Option<&Rotator>) {
        let iops = (tick.served - before.served) as f64 / (tick.at_s - before.at_s);
        let credits = record.moments().last().map_or(&[][..], |moment| &moment.credits_ratio);
        let least = credits.iter().copied().fold(1.0, f64::min);
        let replaced = rotator.map_or_else(String::new, |rotator| format!("  {} replaced", rotator.replaced().len()));
        let share = (tick.at_s / self.plan.run.as_secs_f64()).min(1.0);
        self.line.at(share, &format!("{iops:5.0} IOPS  least credits {:3.0} %{replaced}", least * 100.0));
    }

    /// Waits until no member is being replaced.
    fn settle(&self, host: &ArrayHost) -> Result<(), Failure> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        let expected = self.plan.members(self.mode) as usize;
        loop {
            let status = host.status()?;
            if status.replacing.is_empty() && status.volumes.len() == expected {
                return Ok(());
            }
            if self.interrupt.sleep(LOOK) {
                return Err(interrupted());
            }
            if Instant::now() > until {
                let reason = status.reason.unwrap_or_else(|| "it gives no reason".to_owned());
                let timeout = SETTLE_TIMEOUT.as_secs();
                return Err(Failure::Failed(format!("the last replacement did not end within {timeout} s: {reason}")));
            }
        }
    }

    /// Has the array be assembled from its members, checks the file system, reads everything back, and deletes the array; bytes that
    /// matched.
    ///
    /// # Errors
    /// The first difference, or what else failed.
    pub fn verify(&mut self) -> Result<u64, Failure> {
        self.line.phase("verifying");
        let mut stage = self.start(Held::ToNothing)?;
        if self.export == Export::Fuse {
            filesystem::check_ext4(&stage.host.address()?)?;
        }
        self.mount(&mut stage)?;
        let bytes = self.job(Task::Verify)?.wait(self.interrupt)?;
        stage.end()?;
        host::delete(self.plan, self.mode, self.export, &self.layout)?;
        self.line.phase("verified");
        self.line.done(&format!("{} MiB read back and matched; volumes deleted", bytes >> 20));
        Ok(bytes)
    }
}
