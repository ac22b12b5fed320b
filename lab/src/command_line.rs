//! What the lab is asked to do.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes};

use crate::arrays;
use crate::bench;
use crate::calm;
use crate::cuts;
use crate::economy;
use crate::flags::absolute;
use crate::guest::Outcome;
use crate::host::{Lab, Unavailable};
use crate::inside::GuestJob;
use crate::interrupt::Interrupt;
use crate::kernel::Choice;
use crate::outages;
use crate::output::say;
use crate::peers;
use crate::plan::{Disk, Plan, quoted};
use crate::replay;
use crate::reproduce;
use crate::scenario::{ConfigError, GuestScenario};
use crate::service::Provisioning;
use crate::systemd;
use crate::validate;

/// Guests under QEMU with throttled, hot-plugged disks; benches on the host.
#[derive(Debug, Parser)]
#[command(name = "lab", max_term_width = 120)]
pub struct Arguments {
    /// The guests' kernel: newest, or a version of Debian's cloud kernels, such as 6.17 (SURGETANK_LAB_KERNEL; default 6.12)
    #[arg(long, global = true)]
    kernel: Option<Choice>,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run a command in a new guest: `lab exec --disk slow=2GiB,33MiB/s -- ls -l /dev/lab/slow`
    Exec(Exec),
    /// Run scenarios, by default all of lab/scenarios
    Run(Run),
    /// The bars of docs/BENCHMARKS.md, measured on this host
    Bench(bench::Arguments),
    /// The kernel's caches and surgetank side by side in one guest
    Peers(peers::Arguments),
    /// An array of small volumes and mdadm's RAID-0 over pairs, while members are replaced, in one guest
    Arrays(arrays::Arguments),
    /// A raw disk and the same disk under a calm device, in one guest
    Calm(calm::Arguments),
    /// Guests killed in every phase of a boost, over disks that lose what was not flushed
    Cuts(cuts::Arguments),
    /// What elastic devices cost in money beside volumes that are as fast: docs/ECONOMY.md
    Economy(economy::Arguments),
    /// One guest under a load whose volumes stall, fail, are unplugged and come back
    Outages(outages::Arguments),
    /// The papers' experiments: bonnie++ and LAMMPS on slow, fast and elastic disks in one guest
    Reproduce(reproduce::Arguments),
    /// The papers' applications at full scale in the simulator, beside what the papers print
    ReproduceSim(reproduce::simulated::Arguments),
    /// What the simulator predicts of the demo (and, with --lab, of a guest), beside what they measure
    Validate(validate::Arguments),
    /// A load whose every write is logged, and power cuts at the log's flushes, each recovered and checked
    Replay(replay::Arguments),
    /// A Debian guest under its own systemd: the README's steps, then kills, reboots, power cuts, missing disks
    Systemd(systemd::Arguments),
    /// What this program does in a guest
    #[command(hide = true)]
    Inside {
        /// Which
        job: GuestJob,
    },
    /// Check scenarios without running them
    Check {
        /// The files
        #[arg(required = true)]
        scenarios: Vec<PathBuf>,
    },
}

/// What volumes rented with `exec --service` move: the papers' fast ones.
const FAST: Bandwidth = Bandwidth::from_mib_s(128);

#[derive(Args, Debug)]
struct Exec {
    /// A disk, NAME=SIZE[,RATE][,IOPS][,file=PATH][,nbd=SOCKET]; the guest finds it as /dev/lab/NAME
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<Disk>,
    /// The guest's memory
    #[arg(long, default_value = "1GiB")]
    memory: Bytes,
    /// The guest's cores
    #[arg(long, default_value_t = 2)]
    cores: u32,
    /// Free ports for disks that are plugged while it runs (port0, port1, …)
    #[arg(long, default_value_t = 8)]
    ports: u32,
    /// How long the command may take
    #[arg(long, default_value = "10min")]
    timeout: Span,
    /// A directory that the guest sees as /lab and may write to
    #[arg(long, value_parser = absolute)]
    results: Option<PathBuf>,
    /// Where QEMU's monitor listens (QMP)
    #[arg(long, value_parser = absolute)]
    qmp: Option<PathBuf>,
    /// Let the guest rent volumes that are plugged into it: $LAB_SERVICE is where, /lab/token lets it in
    #[arg(long)]
    service: bool,
    /// The command and its arguments; the host's files are there, changes to them are not seen by the host
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

#[derive(Args, Debug)]
struct Run {
    /// The files
    scenarios: Vec<PathBuf>,
    /// Where results go, a folder for each scenario and guest
    #[arg(long, default_value = "lab-out", value_parser = absolute)]
    out: PathBuf,
}

/// Does what was asked.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(kernel) = arguments.kernel {
        kernel.set();
    }
    if let Err(error) = Choice::get() {
        say(&format!("lab: {error}"));
        return ExitCode::from(2);
    }
    match run(arguments.task) {
        Ok(code) => code,
        // Wrong input has its place in a file, and a status of its own.
        Err(error) if error.is::<ConfigError>() => {
            say(&error.to_string());
            ExitCode::from(2)
        }
        Err(error) => {
            say(&format!("lab: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let good = match task {
        Task::Exec(exec) => return exec.run(),
        Task::Run(run) => run.run()?,
        Task::Bench(arguments) => arguments.run()?,
        Task::ReproduceSim(arguments) => arguments.run()?,
        Task::Validate(arguments) => arguments.run()?,
        Task::Peers(arguments) => arguments.run()?,
        Task::Arrays(arguments) => arguments.run()?,
        Task::Calm(arguments) => arguments.run()?,
        Task::Cuts(arguments) => arguments.run()?,
        Task::Economy(arguments) => arguments.run()?,
        Task::Reproduce(arguments) => arguments.run()?,
        Task::Replay(arguments) => arguments.run()?,
        Task::Outages(arguments) => arguments.run()?,
        Task::Systemd(arguments) => arguments.run()?,
        Task::Inside { job } => job.run().map(|()| true)?,
        Task::Check { scenarios } => {
            for file in scenarios {
                let scenario = GuestScenario::load(&file)?;
                say(&format!("{}: {} ({} guests)", scenario.name, scenario.about, scenario.guests.len()));
            }
            true
        }
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Exec {
    fn run(self) -> anyhow::Result<ExitCode> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().context("no guest can be booted here")?;
        let own = lab.directory().context("cannot make a directory")?;
        let mut script = quoted(&self.command);
        let (mut results, mut qmp) = (self.results, self.qmp);
        let _service = if self.service {
            let results = results.get_or_insert_with(|| own.path().join("results"));
            let volumes = own.path().join("volumes");
            for directory in [&*results, &volumes] {
                std::fs::create_dir_all(directory).context("cannot make a directory")?;
            }
            let qmp = qmp.get_or_insert_with(|| own.path().join("qmp.socket"));
            let service = Provisioning::start(qmp, &volumes, &results.join("token"), FAST)?;
            script = format!("export LAB_SERVICE={}; {script}", service.url);
            Some(service)
        } else {
            None
        };
        let plan = Plan {
            memory: self.memory,
            cores: self.cores,
            ports: self.ports,
            disks: self.disks,
            timeout: self.timeout.0,
            results,
            qmp,
            echo: true,
            directory: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            ..Plan::new("lab", script)
        };
        let outcome = plan.boot(&lab, &interrupt)?.wait(&interrupt)?;
        if let Some(trouble) = &outcome.trouble {
            say(&format!("lab: {trouble}"));
        }
        Ok(ExitCode::from(outcome.status.map_or(1, |status| u8::try_from(status).unwrap_or(1))))
    }
}

impl Run {
    fn run(self) -> anyhow::Result<bool> {
        let files = if self.scenarios.is_empty() { scenarios_of_the_tree()? } else { self.scenarios };
        // All files are read before anything is started: a mistake in the last one costs no time.
        let scenarios = files.iter().map(|file| GuestScenario::load(file)).collect::<Result<Vec<_>, _>>()?;
        let interrupt = Interrupt::install()?;
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        match Lab::open() {
            Err(Unavailable(reason)) => {
                say(&format!("lab: skipped: {reason}"));
                skipped = scenarios.len();
            }
            Ok(lab) => {
                for scenario in &scenarios {
                    let count =
                        if run_scenario(&lab, &interrupt, scenario, &self.out)? { &mut passed } else { &mut failed };
                    *count += 1;
                }
            }
        }
        say(&format!("lab: {passed} passed, {failed} failed, {skipped} skipped"));
        Ok(failed == 0)
    }
}

fn scenarios_of_the_tree() -> anyhow::Result<Vec<PathBuf>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "toml"));
    files.sort();
    Ok(files)
}

/// Runs all guests of a scenario at the same time; whether all did well.
fn run_scenario(lab: &Lab, interrupt: &Interrupt, scenario: &GuestScenario, out: &Path) -> anyhow::Result<bool> {
    let outcomes: Vec<anyhow::Result<Outcome>> = std::thread::scope(|scope| {
        let guests: Vec<_> = scenario
            .guests
            .iter()
            .map(|plan| {
                let results = out.join(&scenario.name).join(&plan.name);
                let plan = Plan { results: Some(results), ..plan.clone() };
                scope.spawn(move || plan.boot(lab, interrupt)?.wait(interrupt))
            })
            .collect();
        let died = |_| Err(anyhow::anyhow!("the guest's thread died"));
        guests.into_iter().map(|guest| guest.join().unwrap_or_else(died)).collect()
    });
    let mut passed = true;
    for (plan, outcome) in scenario.guests.iter().zip(outcomes) {
        let outcome = outcome.with_context(|| format!("{}, guest {}", scenario.name, plan.name))?;
        let boot = outcome.boot_s.map_or("did not boot".to_owned(), |boot| format!("booted in {boot:.1} s"));
        let word = if outcome.passed() { "passed" } else { "FAILED" };
        let results = out.join(&scenario.name).join(&plan.name);
        say(&format!("{word} {}/{}: {boot}, ran {:.1} s", scenario.name, plan.name, outcome.run_s));
        if !outcome.passed() {
            let said = std::fs::read_to_string(results.join("stderr")).unwrap_or_default();
            let last = said.trim().lines().last().unwrap_or("and said nothing").to_owned();
            say(&format!("  {}: {last} (all of it in {})", outcome.describe(), results.display()));
        }
        passed &= outcome.passed();
    }
    Ok(passed)
}
