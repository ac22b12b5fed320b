//! `surgetank pool`: a staging pool of one machine, how it is, and where its files are.

mod asked;
mod calibrate;
mod drain;
mod members;
mod plan;
mod prefetch;
mod quota;
mod scrub;
pub mod shown;
mod store;
mod targets;
mod token;
mod wait;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;
use surgetank_model::Bytes;
use surgetank_model::text::line;
use surgetank_planner::provision::Redundancy;
use surgetank_pool::chunks::CHUNK;
use surgetank_pool::client::PoolClient;
use surgetank_pool::local::{self, Local, Undrained};
use surgetank_pool::manager::{self, State};
use surgetank_pool_core::benefactor::buffers::Buffers;
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::COPIES_MAX;
use surgetank_report::number::count;
use surgetank_report::{Failure, Interrupt, Table, output};

use self::asked::Asked;
use self::drain::Left;
use self::scrub::{Scrub, Scrubbed};
use self::store::Store;
use self::targets::MountStatus;
use super::foreground::Running;
use super::serve::notify;

/// Benefactors of one process, at most.
const BENEFACTORS_MAX: u32 = 64;
/// Where a pool listens unless it is said.
const LISTEN: &str = "127.0.0.1:7440";
/// The port of a pool unless it is said.
const PORT: u16 = 7440;
/// Between two looks at what changes.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long benefactors may take to join.
const JOIN: Duration = Duration::from_secs(60);
/// Files that are named at most.
const NAMED: usize = 20;

/// Flags of `pool`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool up --benefactors 3 --memory '256 MiB'
  surgetank pool status
  surgetank pool wait /mnt/pool/checkpoint --state drained

A staging pool takes in files at the speed of memory and drains them to a directory. docs/POOL.md says what it promises.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a pool on this machine, in the foreground: store, manager and benefactors
    Up(Up),
    /// Run a manager of a pool of several machines, in the foreground
    Manager(members::Manager),
    /// Run a benefactor of a pool of several machines, in the foreground
    Benefactor(members::Benefactor),
    /// Take a benefactor out: what it has is moved, until it may go
    Drain(drain::Drain),
    /// Expect no longer a benefactor that has ended and lent SSD
    Leave(members::Leave),
    /// Say how much users may have, and show what they have
    Quota(quota::Arguments),
    /// Make a token, which lets others mount the pool
    Token(token::Make),
    /// Take a token back
    Revoke(token::Revoke),
    /// Make the certificates of a pool of several machines
    Certificates(token::Certificates),
    /// Measure what provision needs to know of a node: rates, and the loss of a link
    Calibrate(calibrate::Calibrate),
    /// Show the benefactors and files of a pool
    Status(Status),
    /// Wait until files of a mounted pool are replicated or drained
    Wait(wait::Wait),
    /// Bring files of a mounted pool back from the target, to be read at the speed of memory
    Prefetch(prefetch::Prefetch),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool up --benefactors 3 --memory '256 MiB'
  surgetank pool up --benefactors 4 --memory '1 GiB' --directory pool
  surgetank pool up --memory '1 GiB' --ssd '16 GiB' --ssd-directory /nvme/pool
  surgetank pool up --plan plan.json --ssd-directory /nvme/pool

It prints the pool's address. SIGTERM and SIGINT end it once everything that was closed is drained; a second one ends it at \
once: what is not drained then and was in memory alone is lost. Names, what is drained and what is on SSD are there at the next \
start, whatever ended this one. What a mount with --durable copies=N,media=ssd acknowledges is on SSD.")]
struct Up {
    /// How many benefactors lend memory
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=i64::from(BENEFACTORS_MAX)))]
    benefactors: u32,
    /// Memory that each benefactor lends
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: Bytes,
    /// Take benefactors, memory and SSD from what surgetank provision --json answered
    #[arg(long, value_name = "PLAN.json", conflicts_with_all = ["benefactors", "memory", "ssd"])]
    plan: Option<PathBuf>,
    /// SSD that each benefactor lends; what former runs have left on it is served without this flag, too [default: none]
    #[arg(long, value_name = "SIZE")]
    ssd: Option<Bytes>,
    /// Where: a directory for each benefactor, by its number, is made below [default: `ssd` below --directory]
    #[arg(long, value_name = "DIR")]
    ssd_directory: Option<PathBuf>,
    /// Go on without SSD directories of the last run that are gone: files that they alone had are lost
    #[arg(long)]
    forget_ssd: bool,
    /// Where the pool's key is kept, and its names unless --store says otherwise
    #[arg(long, value_name = "DIR", default_value = shown::DIRECTORY)]
    directory: PathBuf,
    /// Where the pool is reached: loopback alone; `pool manager` and `pool benefactor` are for several machines
    #[arg(long, value_name = "HOST:PORT", default_value = LISTEN)]
    listen: String,
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    scrub: Scrub,
    #[command(flatten)]
    running: Running,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool status
  surgetank pool status pool://127.0.0.1:7440 --json | jq .files")]
struct Status {
    #[command(flatten)]
    asked: Asked,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Command::Up(up) => up.run(),
            Command::Manager(manager) => manager.run(),
            Command::Benefactor(benefactor) => benefactor.run(),
            Command::Drain(drain) => drain.run(),
            Command::Leave(leave) => leave.run(),
            Command::Quota(quota) => quota.run(),
            Command::Token(token) => token.run(),
            Command::Revoke(revoke) => revoke.run(),
            Command::Certificates(certificates) => certificates.run(),
            Command::Calibrate(calibrate) => calibrate.run(),
            Command::Status(status) => status.run(),
            Command::Wait(wait) => wait.run(),
            Command::Prefetch(prefetch) => prefetch.run(),
        }
    }
}

/// The managers' addresses of `pool://HOST[:PORT][,HOST:PORT…]`.
pub fn managers(pool: &str) -> Vec<String> {
    let addresses = pool.strip_prefix("pool://").unwrap_or(pool).trim_end_matches('/');
    addresses
        .split(',')
        .map(|address| if address.contains(':') { address.to_owned() } else { format!("{address}:{PORT}") })
        .collect()
}

/// Why a pool, or a part of one, does not start.
fn not_started(error: local::Error) -> Failure {
    match error {
        local::Error::Memory(..) | local::Error::MuchMemory { .. } => Failure::Invalid(format!("--memory: {error}")),
        local::Error::LittleSsd(_) => Failure::Invalid(format!("--ssd: {error}")),
        local::Error::Address(_) => Failure::Invalid(format!("--listen: {error}")),
        local::Error::Metrics(_) => Failure::Invalid(format!("--metrics: {error}")),
        local::Error::Certificates(_) => Failure::Invalid(format!("--certificates: {error}")),
        local::Error::Key(_) => Failure::invalid(error),
        local::Error::Etcd(_) => Failure::Failed(format!("--store: {error}")),
        error => Failure::failed(error),
    }
}

/// Says that it is ready, and waits for a signal to end; or until what runs has ended by itself.
fn run_until_told(interrupt: &Interrupt, mut has_ended: impl FnMut() -> Option<String>) -> Result<(), Failure> {
    notify("READY=1");
    while !interrupt.sleep(LOOK_AGAIN) {
        if let Some(why) = has_ended() {
            return Err(Failure::Failed(why));
        }
    }
    notify("STOPPING=1");
    Ok(())
}

impl Up {
    fn run(&self) -> Result<(), Failure> {
        let ((benefactors, memory, ssd), durable) = (self.lent()?, self.durable()?);
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        let config = local::Config {
            directory: self.directory.clone(),
            store: self.store.etcd()?,
            new_key: self.store.new_key,
            listen: self.listen.clone(),
            benefactors,
            memory,
            ssd,
            ssd_directory: self.ssd_directory.clone(),
            forget_ssd: self.forget_ssd,
            scrub: self.scrub.config(),
            metrics: self.metrics.clone(),
        };
        let mut pool = Local::start(&config).map_err(not_started)?;
        let found = pool.found();
        tell("lost, since they were in memory and not drained when the pool ended last", &found.lost);
        tell("lost before", &found.lost_before);
        tell(
            "not drained when the pool ended last, but kept on SSD or at their targets: they drain now",
            &found.on_ssd,
        );
        pool.remarks().iter().for_each(|remark| output::note(&format!("surgetank: {remark}")));
        if joined(&mut pool, benefactors as usize, &interrupt)? {
            self.tell_how_to_mount(&pool, &config, durable.as_deref())?;
            run_until_told(&interrupt, || pool.has_ended())?;
        }
        drain(&pool, &interrupt)?;
        let left = pool.end().map_err(Failure::failed)?;
        tell(
            "not drained, but kept on SSD or at their targets: the next `pool up` with the same directories drains them",
            &left.on_ssd,
        );
        if left.lost.is_empty() {
            return Ok(());
        }
        tell("lost, since they were in memory and not drained", &left.lost);
        Err(Failure::Failed(format!("{} lost: let the pool drain before it ends", count(left.lost.len(), "file"))))
    }

    /// Benefactors, and the memory and SSD of each.
    fn lent(&self) -> Result<(u32, Bytes, Bytes), Failure> {
        let Some(path) = &self.plan else {
            return Ok((self.benefactors, self.memory, self.ssd.unwrap_or(Bytes::ZERO)));
        };
        let plan = plan::read(path)?;
        let invalid = |why: String| Err(Failure::Invalid(format!("{}: {why}", path.display())));
        let of_several = "surgetank pool benefactor --plan on each node";
        match u32::try_from(plan.nodes) {
            _ if plan.memory == Bytes::ZERO => invalid(format!(
                "its nodes lend SSD alone, and benefactors of this command lend memory: start {of_several}"
            )),
            Ok(benefactors) if benefactors <= BENEFACTORS_MAX => Ok((benefactors, plan.memory, plan.ssd)),
            _ => invalid(format!(
                "it has {} nodes, and this command runs at most {BENEFACTORS_MAX} benefactors in one process: start {of_several}",
                plan.nodes
            )),
        }
    }

    /// What mounts are to be told, so that files are as durable as the plan has it; `None`: nothing.
    fn durable(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.plan else { return Ok(None) };
        match plan::read(path)?.redundancy {
            None | Some(Redundancy::Copies(2)) => Ok(None),
            Some(Redundancy::Copies(copies)) if copies <= COPIES_MAX => Ok(Some(format!("copies={copies}"))),
            Some(Redundancy::Copies(copies)) => Err(Failure::Invalid(format!(
                "{}: no mount has its {copies} copies: a chunk has 1 to {COPIES_MAX}; plan with fewer, or with parity",
                path.display()
            ))),
            Some(Redundancy::Parity { data, parity }) => match format!("{data}+{parity}").parse::<Parity>() {
                Ok(of) => Ok(Some(format!("parity={of}"))),
                Err(why) => {
                    Err(Failure::Invalid(format!("{}: no mount has its parity {data}+{parity}: {why}", path.display())))
                }
            },
        }
    }

    fn tell_how_to_mount(&self, pool: &Local, config: &local::Config, durable: Option<&str>) -> Result<(), Failure> {
        let durable = durable.map(|durable| format!(" --durable {durable}")).unwrap_or_default();
        let (address, memory) = (pool.address(), config.memory);
        let key = self.directory.join(surgetank_pool::security::files::KEY_FILE);
        let token = match self.directory == Path::new(shown::DIRECTORY) {
            true => String::new(),
            false => format!(" --token {}", line(&key.display().to_string())),
        };
        output::print(&format!(
            "pool://{address}: {} {memory}{} each\nmount it: surgetank mount pool://{address} MOUNTPOINT --target DIRECTORY{durable}{token}",
            match config.benefactors {
                1 => "1 benefactor lends".to_owned(),
                more => format!("{more} benefactors lend"),
            },
            if config.ssd > Bytes::ZERO { format!(" and {} of SSD", config.ssd) } else { String::new() }
        ))
    }
}

/// Waits until all benefactors have joined; `false`: a signal came first.
fn joined(pool: &mut Local, benefactors: usize, interrupt: &Interrupt) -> Result<bool, Failure> {
    let until = Instant::now() + JOIN;
    loop {
        match pool.wait_joined(benefactors, LOOK_AGAIN) {
            Ok(()) => return Ok(true),
            Err(_) if interrupt.count() > 0 => return Ok(false),
            Err(error) if Instant::now() >= until => return Err(Failure::failed(error)),
            Err(_) => {}
        }
        if let Some(why) = pool.has_ended() {
            return Err(Failure::Failed(why));
        }
    }
}

/// Waits for what is not drained, until a second signal comes.
fn drain(pool: &Local, interrupt: &Interrupt) -> Result<(), Failure> {
    let heard = interrupt.count();
    let mut told = false;
    loop {
        let left: Vec<Undrained> = undrained(pool)?.into_iter().filter(|file| !file.is_lost).collect();
        if left.is_empty() || interrupt.count() > heard {
            return Ok(());
        }
        if !told {
            tell(
                "not drained yet (the pool ends when all are, or at a second signal, which loses what is in memory)",
                &left,
            );
            told = true;
        }
        let _ = interrupt.wait_beyond(heard, LOOK_AGAIN);
    }
}

fn undrained(pool: &Local) -> Result<Vec<Undrained>, Failure> {
    pool.undrained().map_err(Failure::failed)
}

/// Names files on stderr.
fn tell(what: &str, files: &[Undrained]) {
    if files.is_empty() {
        return;
    }
    output::note(&format!("surgetank: {}, {what}:", count(files.len(), "file")));
    for file in files.iter().take(NAMED) {
        let conflict = if file.in_conflict { ", in conflict with what is there" } else { "" };
        output::note(&format!("  {} ({}{conflict})", line(&file.path.display().to_string()), file.size));
    }
    if files.len() > NAMED {
        output::note(&format!("  and {} more", files.len() - NAMED));
    }
}

#[derive(Serialize)]
struct BenefactorStatus {
    name: String,
    class: &'static str,
    memory_gib: f64,
    memory_used_gib: f64,
    ssd_gib: f64,
    ssd_used_gib: f64,
    /// What is over on the SSD and keeps room still, and what was copied to win such room; `None`: it is dead.
    ssd_garbage_gib: Option<f64>,
    ssd_copied_gib: Option<f64>,
    state: &'static str,
    /// Chunks that were found damaged; `None`: it is dead.
    damaged: Option<u64>,
    scrub: Option<Scrubbed>,
    /// How far it has come that it is taken out; `None`: it is not.
    leaving: Option<Left>,
}

#[derive(Default, Serialize)]
struct Files {
    staged: u64,
    replicated: u64,
    drained: u64,
    failed: u64,
    conflict: u64,
    torn: u64,
    repairing: u64,
}

/// How full the store is; only one with a quota has this.
#[derive(Serialize)]
struct StoreStatus {
    size_gib: f64,
    in_use_gib: f64,
    quota_gib: f64,
    takes_new_files: bool,
    /// Why it does not.
    refusal: Option<String>,
}

#[derive(Serialize)]
struct PoolStatus {
    benefactors: Vec<BenefactorStatus>,
    files: Files,
    drain_mib_s: f64,
    store: Option<StoreStatus>,
    mounts: Vec<MountStatus>,
    /// Users with a limit, as far as whoever asks may see them.
    quotas: Vec<quota::User>,
}

const GIB: f64 = (1_u64 << 30) as f64;

fn size(gib: f64) -> String {
    if gib < 1.0 { format!("{:.0} MiB", gib * 1024.0) } else { format!("{gib:.1} GiB") }
}

impl PoolStatus {
    fn of(status: &manager::Status) -> Self {
        let free: BTreeMap<_, _> = status.benefactors.iter().map(|(lends, free)| (lends.place.id, *free)).collect();
        let integrity: BTreeMap<_, _> = status.integrity.iter().copied().collect();
        let logs: BTreeMap<_, _> = status.logs.iter().copied().collect();
        let leaving: BTreeMap<_, _> = status.leaving.iter().copied().collect();
        let benefactor = |(lends, state, ssd_used): &(Lends, State, u64)| {
            let (memory, ssd) = (lends.memory.get() as f64 / GIB, lends.ssd.get() as f64 / GIB);
            // What is left of a buffer behind its last whole chunk is never used.
            let usable = Buffers::new(lends.memory.get(), CHUNK).map_or(0, |buffers| buffers.credits() * CHUNK);
            // Nothing is in the memory of one that is gone.
            let free = free.get(&lends.place.id).map_or(usable, |free| *free * CHUNK);
            BenefactorStatus {
                name: lends.place.id.to_string(),
                class: match (memory > 0.0, ssd > 0.0) {
                    (true, true) => "ms",
                    (false, true) => "s",
                    _ => "m",
                },
                memory_gib: memory,
                memory_used_gib: usable.saturating_sub(free) as f64 / GIB,
                ssd_gib: ssd,
                ssd_used_gib: *ssd_used as f64 / GIB,
                ssd_garbage_gib: logs.get(&lends.place.id).map(|log| log.garbage as f64 / GIB),
                ssd_copied_gib: logs.get(&lends.place.id).map(|log| log.copied as f64 / GIB),
                state: match state {
                    State::Joined => "joined",
                    State::Leaving => "leaving",
                    State::Dead => "dead",
                },
                damaged: integrity.get(&lends.place.id).map(|of| of.damaged),
                scrub: integrity.get(&lends.place.id).map(|of| Scrubbed::of(&of.scrubbed)),
                leaving: leaving.get(&lends.place.id).map(Left::of),
            }
        };
        let of = |states: &[usize]| states.iter().filter_map(|state| status.files.get(*state)).sum();
        // Created, replicated, drained, evicted, failed, conflict, torn, repairing.
        let files = Files {
            staged: of(&[0]),
            replicated: of(&[1]),
            drained: of(&[2, 3]),
            failed: of(&[4]),
            conflict: of(&[5]),
            torn: of(&[6]),
            repairing: of(&[7]),
        };
        let drain_mib_s = status.drain_bytes_s as f64 / f64::from(1 << 20);
        let store = status.store.as_ref().map(|store| StoreStatus {
            size_gib: store.size as f64 / GIB,
            in_use_gib: store.in_use as f64 / GIB,
            quota_gib: store.quota as f64 / GIB,
            takes_new_files: store.refusal.is_none(),
            refusal: store.refusal.clone(),
        });
        let mounts = status.mounts.iter().map(MountStatus::of).collect();
        let quotas = quota::User::limited(&status.quotas);
        let benefactors = status.states.iter().map(benefactor).collect();
        Self { benefactors, files, drain_mib_s, store, mounts, quotas }
    }

    fn people(&self) -> String {
        let columns =
            ["benefactor", "class", "memory", "used", "SSD", "used", "garbage", "state", "damaged", "last scrubbed"];
        let mut table = Table::new(columns);
        for benefactor in &self.benefactors {
            table.row([
                benefactor.name.clone(),
                benefactor.class.to_owned(),
                size(benefactor.memory_gib),
                size(benefactor.memory_used_gib),
                size(benefactor.ssd_gib),
                size(benefactor.ssd_used_gib),
                benefactor.ssd_garbage_gib.map(size).unwrap_or_default(),
                benefactor.leaving.as_ref().map_or(benefactor.state.to_owned(), Left::people),
                benefactor.damaged.map(|damaged| damaged.to_string()).unwrap_or_default(),
                benefactor.scrub.as_ref().map(Scrubbed::people).unwrap_or_default(),
            ]);
        }
        let Files { staged, replicated, drained, failed, conflict, torn, repairing } = self.files;
        let store = self.store.as_ref().map(|store| {
            let sizes = format!(
                "\nstore: {} in use, a file of {}, quota {}",
                size(store.in_use_gib),
                size(store.size_gib),
                size(store.quota_gib)
            );
            store.refusal.as_ref().map_or(sizes.clone(), |why| format!("{sizes}\n{why}"))
        });
        let quotas = quota::User::table(&self.quotas).map(|table| format!("\n{table}")).unwrap_or_default();
        let standing: String = self.mounts.iter().filter_map(MountStatus::people).collect();
        format!(
            "{table}{}{quotas}\nfiles: {staged} staged, {replicated} replicated, {repairing} repairing, {drained} drained, {failed} failed, {conflict} in conflict, {torn} torn; draining at {:.1} MiB/s{standing}{}",
            MountStatus::table(&self.mounts),
            self.drain_mib_s,
            store.unwrap_or_default()
        )
    }
}

impl Status {
    fn run(&self) -> Result<(), Failure> {
        let status = self.asked.ask(async |config| PoolClient::ask_status(config).await)?;
        let status = PoolStatus::of(&status);
        if self.json { output::print_json(&status) } else { output::print(&status.people()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_by_its_addresses() {
        assert_eq!(managers("pool://127.0.0.1:7000/"), ["127.0.0.1:7000"]);
        assert_eq!(managers("pool://localhost"), ["localhost:7440"]);
        assert_eq!(managers("127.0.0.1:1,127.0.0.1:2"), ["127.0.0.1:1", "127.0.0.1:2"]);
    }
}
