//! `surgetank calibrate`: measures B_M(x) and D_M(x) with the real engine on the volumes of a configuration (journal,
//! III-C).
//!
//! Two processes: one measures, the other waits for it. If the measuring one dies, the other deletes what it had
//! rented; if the waiting one dies, the measuring one is told to stop by the kernel. If both die at once, the next run
//! or the daemon finds the volume in the state directory's journal.

mod bench;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use surgetank_daemon::config::{CachingConfig, Config};
use surgetank_model::Bytes;
use surgetank_planner::points::{Points, Setting};
use surgetank_planner::scenario::CalibrationPoint;
use surgetank_report::{Doing, Failure, Interrupt, Table, output, progress};

use self::bench::{Bench, Target};
use crate::source;

/// Datasets and caches are multiples of this, as devices have it.
const BLOCK: u64 = 4096;
/// How often the waiting process looks at the measuring one.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Flags of `calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank calibrate --config surgetank.toml --out points.toml
  surgetank calibrate --config surgetank.toml --out points.toml \\
      --dataset \"3 GiB\" --dataset \"4 GiB\" --cache \"4 GiB\" --cache \"6 GiB\" \\
      --repeats 5
  surgetank predict cm1.toml --calibration points.toml

The configuration is one of surgetank serve with a single device that has a [caching] section; no daemon may serve \
it meanwhile. Each dataset is written through the device with each cache size, which rents and deletes a volume, \
so each measurement takes about dataset / backing bandwidth. WRITES TO THE BACKING VOLUME: it must be an empty \
file, or --overwrite must be given. If interrupted, it deletes its volumes; a second run continues where the first \
one stopped.")]
pub struct Arguments {
    /// The configuration, as of surgetank serve
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The points measured; what is in it already is not measured again
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Bytes to write; may be repeated [default: a quarter, half and all of initial_size]
    #[arg(long, value_name = "S")]
    dataset: Vec<Bytes>,
    /// Size of the caching volume; may be repeated [default: half and all of initial_size]
    #[arg(long, value_name = "M")]
    cache: Vec<Bytes>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Write to the backing volume whatever is on it: its data will be lost
    #[arg(long)]
    overwrite: bool,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
    /// Measure; without this a process is started that does
    #[arg(long, hide = true)]
    worker: bool,
}

/// What was done.
#[derive(Serialize)]
struct CalibrateAnswer<'a> {
    out: &'a Path,
    /// By this run.
    measured: usize,
    /// In the file.
    points: Vec<AnswerPoint>,
}

#[derive(Serialize)]
struct AnswerPoint {
    dataset_gib: f64,
    cache_gib: f64,
    throughput_mib_s: f64,
    attached_s: f64,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        if self.worker { self.measure(&plan) } else { self.supervise(&plan) }
    }

    /// Everything that can be refused without renting anything.
    fn plan(&self) -> Result<Plan, Failure> {
        let config = Config::load(&self.config).map_err(Failure::invalid)?;
        let target = Target::of(config).map_err(|why| Failure::Invalid(format!("{}: {why}", self.config.display())))?;
        let caching = target.caching();
        let (datasets, caches) = (self.datasets(caching), self.caches(caching));
        let backing_size = target.backing_size()?;
        check_sizes(&datasets, &caches, caching, backing_size)?;
        let least =
            |limits: &surgetank_model::Limits| limits.bandwidth.unwrap_or(surgetank_model::Bandwidth::from_mib_s(1));
        let setting =
            Setting { backing_size, backing: least(target.backing_limits()), caching: least(&caching.limits) };
        let points = self.points(setting)?;
        target.refuse_data(datasets.iter().copied().max().unwrap_or_default(), self.overwrite)?;
        Ok(Plan { target, datasets, caches, points })
    }

    fn datasets(&self, caching: &CachingConfig) -> Vec<Bytes> {
        let of_initial = |divisor: u64| Bytes::new((caching.initial_size.get() / divisor).max(BLOCK) / BLOCK * BLOCK);
        if self.dataset.is_empty() { vec![of_initial(4), of_initial(2), of_initial(1)] } else { self.dataset.clone() }
    }

    fn caches(&self, caching: &CachingConfig) -> Vec<Bytes> {
        let half = Bytes::new(caching.initial_size.get() / 2).round_up(Bytes::new(BLOCK)).max(caching.size.0);
        let mut default = vec![half, caching.initial_size];
        default.dedup();
        if self.cache.is_empty() { default } else { self.cache.clone() }
    }

    /// What is measured already.
    fn points(&self, setting: Setting) -> Result<Points, Failure> {
        if !self.out.exists() {
            let folder = self.out.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                return Err(Failure::Invalid(format!(
                    "the directory {} of --out does not exist: make it",
                    folder.display()
                )));
            }
            return Ok(Points { setting, points: Vec::new() });
        }
        let source = source::read(&self.out)?;
        let points = Points::parse(&source).map_err(Failure::invalid)?;
        if !points.setting.fits(&setting) {
            return Err(Failure::Invalid(format!(
                "{} has points of other volumes ({} and {}, here {} and {}): name another file with --out",
                self.out.display(),
                points.setting.backing,
                points.setting.caching,
                setting.backing,
                setting.caching
            )));
        }
        Ok(points)
    }

    /// Starts the measuring process and waits for it. If it dies, deletes what it had rented.
    fn supervise(&self, plan: &Plan) -> Result<(), Failure> {
        let interrupt = Interrupt::install()?;
        let executable = std::env::current_exe().doing(|| "cannot find this program itself".to_owned())?;
        let mut worker = Command::new(executable)
            .args(std::env::args_os().skip(1))
            .arg("--worker")
            .stdin(Stdio::null())
            .spawn()
            .doing(|| "cannot start the measuring process".to_owned())?;
        let mut told = 0;
        let status = loop {
            if let Some(status) = worker.try_wait().doing(|| "cannot wait for the measuring process".to_owned())? {
                break status;
            }
            let asked = interrupt.wait_beyond(told, LOOK_AGAIN);
            if asked > told {
                told = asked;
                if let Some(pid) = i32::try_from(worker.id()).ok().and_then(rustix::process::Pid::from_raw) {
                    // It may have been told by the terminal already; it only counts.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            }
        };
        match status.code() {
            Some(0) => Ok(()),
            // It has said why.
            Some(code) => Err(Failure::Told(u8::try_from(code).unwrap_or(1))),
            None => {
                output::note("surgetank: the measuring process was killed; deleting what it had rented");
                plan.target.delete_rented()?;
                Err(Failure::Failed(format!(
                    "the measuring process was killed: no volume is left rented, and what was measured is in {}; run again to go on",
                    self.out.display()
                )))
            }
        }
    }

    fn measure(&self, plan: &Plan) -> Result<(), Failure> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .doing(|| "the kernel does not tell when the waiting process dies".to_owned())?;
        let interrupt = Interrupt::install()?;
        let mut points = plan.points.clone();
        let missing = plan.missing(self.repeats);
        let bar =
            progress::bar("calibrate {bar:24.colour} {pos}/{len}  {eta_precise} left  {msg}", missing.len() as u64);
        bar.enable_steady_tick(Duration::from_secs(1));
        plan.target.begin()?;
        let mut bench: Option<Bench> = None;
        let mut outcome = Ok(());
        for (cache, dataset) in &missing {
            bar.set_message(format!("{dataset} with a cache of {cache}"));
            outcome = self.one(plan, &mut bench, *cache, *dataset, &interrupt).and_then(|point| {
                points.points.push(point);
                output::write_whole(&self.out, &points.to_text())
            });
            if outcome.is_err() {
                break;
            }
            bar.inc(1);
        }
        // Whatever happened, what is rented is deleted before this process ends.
        let deleted = bench.map_or(Ok(()), Bench::end);
        bar.finish_and_clear();
        outcome.and(deleted)?;
        plan.target.finish()?;
        self.answer(&points, missing.len())
    }

    fn one(
        &self,
        plan: &Plan,
        bench: &mut Option<Bench>,
        cache: Bytes,
        dataset: Bytes,
        interrupt: &Interrupt,
    ) -> Result<CalibrationPoint, Failure> {
        if bench.as_ref().is_none_or(|bench| bench.cache() != cache) {
            bench.take().map_or(Ok(()), Bench::end)?;
            *bench = Some(plan.target.start(cache)?);
        }
        match bench {
            Some(bench) => bench.measure(dataset, interrupt),
            None => Err(Failure::failed("the device has not been started")),
        }
    }

    fn answer(&self, points: &Points, measured: usize) -> Result<(), Failure> {
        if self.json {
            let point = |point: &CalibrationPoint| AnswerPoint {
                dataset_gib: point.dataset.as_gib(),
                cache_gib: point.cache.as_gib(),
                throughput_mib_s: point.throughput.as_mib_s(),
                attached_s: point.attached.as_secs_f64(),
            };
            return output::print_json(&CalibrateAnswer {
                out: &self.out,
                measured,
                points: points.points.iter().map(point).collect(),
            });
        }
        let calibration = surgetank_planner::calibration::Calibration::new(&points.points);
        let mut table = Table::new(["dataset", "cache", "repeats", "throughput", "attached"]);
        let mut seen = Vec::new();
        for point in &points.points {
            if seen.contains(&(point.dataset, point.cache)) {
                continue;
            }
            seen.push((point.dataset, point.cache));
            let Ok(found) = calibration.at(point.dataset, point.cache) else { continue };
            table.row([
                point.dataset.to_string(),
                point.cache.to_string(),
                found.repeats.to_string(),
                format!("{:.1} MiB/s", point.dataset.as_mib() / found.write_s.median),
                format!("{:.1} s", found.attached_s.median),
            ]);
        }
        output::print(&format!("{table}\npoints: {} ({measured} measured now)", self.out.display()))
    }
}

/// What is to be measured, on what, and what is already.
struct Plan {
    target: Target,
    datasets: Vec<Bytes>,
    caches: Vec<Bytes>,
    points: Points,
}

impl Plan {
    /// Cache and dataset of each measurement that is missing: a round of everything before the next repeat, by cache.
    fn missing(&self, repeats: u32) -> Vec<(Bytes, Bytes)> {
        let mut missing = Vec::new();
        for cache in &self.caches {
            for dataset in &self.datasets {
                let done = self.points.repeats(*dataset, *cache);
                missing.extend((done..repeats as usize).map(|_| (*cache, *dataset)));
            }
        }
        missing
    }
}

fn check_sizes(datasets: &[Bytes], caches: &[Bytes], caching: &CachingConfig, backing: Bytes) -> Result<(), Failure> {
    for dataset in datasets {
        if *dataset == Bytes::ZERO || !dataset.get().is_multiple_of(BLOCK) || *dataset > backing {
            return Err(Failure::Invalid(format!(
                "a dataset of {dataset} cannot be written: take a multiple of 4 KiB up to the backing volume's {backing}"
            )));
        }
    }
    let (least, most) = caching.size;
    for cache in caches {
        if *cache < least || *cache > most.min(backing) || !cache.get().is_multiple_of(BLOCK) {
            return Err(Failure::Invalid(format!(
                "a cache of {cache} cannot be rented: take a multiple of 4 KiB from {least} to {}",
                most.min(backing)
            )));
        }
    }
    Ok(())
}
