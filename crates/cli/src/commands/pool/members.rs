//! `surgetank pool manager` and `surgetank pool benefactor`: the parts of a pool of several machines.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use surgetank_model::Bytes;
use surgetank_pool::client::PoolClient;
use surgetank_pool::processes::{BenefactorConfig, BenefactorProcess, ManagerConfig, ManagerProcess};
use surgetank_pool_core::id::BenefactorId;
use surgetank_report::number::count;
use surgetank_report::{Failure, Interrupt, output};

use super::super::foreground::Running;
use super::asked::Asked;
use super::scrub::Scrub;
use super::shown::DIRECTORY;
use super::store::Store;
use super::{LISTEN, managers, not_started, plan, run_until_told};

/// Between two looks whether everything is drained.
const DRAINED: Duration = Duration::from_secs(1);

/// Flags of `pool manager`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool manager --listen node1:7440 --certificates pki/node1
  surgetank pool manager --listen node2:7440 --certificates pki/node2 \\
      --store etcd://node3:2379/scratch --store-ca etcd-ca.pem

It makes the pool's key at its first start: the file `key` in its directory, which benefactors and administrators need. It \
waits for an etcd that does not answer yet. SIGTERM and SIGINT end it; what the pool holds waits for its next start.")]
pub struct Manager {
    /// Where the pool's key is kept, and its names unless --store says otherwise
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
    #[command(flatten)]
    store: Store,
    /// Where it is reached; beyond loopback it needs certificates
    #[arg(long, value_name = "HOST:PORT", default_value = LISTEN)]
    listen: String,
    /// The directory with this machine's certificates
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    running: Running,
}

/// Flags of `pool benefactor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool benefactor --managers node1:7440 --memory '16 GiB' \\
      --listen node2:7441 --domain rack1 --key key --certificates pki/node2
  surgetank pool benefactor --managers node1:7440 --memory '16 GiB' \\
      --ssd '200 GiB' --ssd-directory /nvme/pool \\
      --listen node3:7441 --domain rack2 --key key --certificates pki/node3
  surgetank pool benefactor --managers node1:7440 --plan plan.json \\
      --ssd-directory /nvme/pool --listen node4:7441 --domain rack3 \\
      --key key --certificates pki/node4

What is on its SSD is served and drained by its next start with the same directory. SIGTERM and SIGINT end it once the pool has \
nothing to drain; a second one ends it at once: what it has in memory is lost then, and made again from copies on other benefactors.")]
pub struct Benefactor {
    /// The managers' addresses: HOST:PORT,HOST:PORT…
    #[arg(long, value_name = "ADDRESSES")]
    managers: String,
    /// Memory that it lends; without it, it lends SSD alone
    #[arg(long, value_name = "SIZE", required_unless_present_any = ["ssd", "leaving", "plan"])]
    memory: Option<Bytes>,
    /// SSD that it lends; what former runs have left in its directory is served without this flag, too
    #[arg(long, value_name = "SIZE", requires = "ssd_directory")]
    ssd: Option<Bytes>,
    /// Take memory and SSD of one node from what surgetank provision --json answered
    #[arg(long, value_name = "PLAN.json", conflicts_with_all = ["memory", "ssd"])]
    plan: Option<PathBuf>,
    /// Where: the directory of this benefactor alone
    #[arg(long, value_name = "DIR")]
    ssd_directory: Option<PathBuf>,
    /// Take nothing new, whatever --memory and --ssd say, and serve what its SSD has until that is drained
    #[arg(long, requires = "ssd_directory")]
    leaving: bool,
    /// Go on without the SSD that it lent before: files that this alone had are lost
    #[arg(long)]
    forget_ssd: bool,
    /// Where it is reached; beyond loopback it needs certificates
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Where others reach it, if that is not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// What it fails with, such as its host or rack: no chunk has two copies in one domain
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    domain: String,
    /// Its number in the pool [default: one made of its address]
    #[arg(long, value_name = "N")]
    id: Option<u32>,
    /// The pool's key: a copy of the file `key` in the manager's directory
    #[arg(long, value_name = "FILE", default_value = "/var/lib/surgetank/pool/key")]
    key: PathBuf,
    /// The directory with this machine's certificates
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Serve metrics for Prometheus here [default: nowhere]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    scrub: Scrub,
    #[command(flatten)]
    running: Running,
}

/// Flags of `pool leave`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool leave 3
  surgetank pool leave 3 pool://node1 --token key --certificates pki/login1

The pool expects a benefactor that had an SSD to return with what is on it, until this is said. Files that nobody else has count as \
lost then. To lose nothing, say `surgetank pool drain N --wait` first, and end it once it may go.")]
pub struct Leave {
    /// The benefactor's number, as `surgetank pool status` shows it
    #[arg(value_name = "N")]
    number: u32,
    #[command(flatten)]
    asked: Asked,
}

impl Leave {
    pub fn run(&self) -> Result<(), Failure> {
        self.asked.ask(async |config| PoolClient::leave(config, BenefactorId(self.number)).await)?;
        output::print(&format!("benefactor {} has left", self.number))
    }
}

impl Manager {
    pub fn run(&self) -> Result<(), Failure> {
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        let config = ManagerConfig {
            directory: self.directory.clone(),
            store: self.store.etcd()?,
            new_key: self.store.new_key,
            listen: self.listen.clone(),
            certificates: self.certificates.clone(),
            metrics: self.metrics.clone(),
        };
        let waits = |why: &str| output::note(&format!("surgetank: --store: {why}; the manager waits for it"));
        let Some(mut manager) = ManagerProcess::start(&config, waits, || interrupt.raised()).map_err(not_started)?
        else {
            return Ok(());
        };
        output::print(&format!("pool://{}: a manager", manager.address()))?;
        run_until_told(&interrupt, || Some(format!("the manager has ended: {}", manager.has_ended()?)))?;
        match manager.undrained().map(|files| files.iter().filter(|file| !file.is_lost).count()) {
            Ok(0) => {}
            Ok(left) => output::note(&format!("surgetank: {} drain when a manager runs again", count(left, "file"))),
            Err(error) => output::note(&format!("surgetank: whether everything is drained is not known: {error}")),
        }
        Ok(())
    }
}

impl Benefactor {
    /// Memory and SSD, as flags say it or a plan.
    fn lent(&self) -> Result<(Option<Bytes>, Option<Bytes>), Failure> {
        let Some(path) = &self.plan else { return Ok((self.memory, self.ssd)) };
        let plan = plan::read(path)?;
        let ssd = Some(plan.ssd).filter(|ssd| *ssd > Bytes::ZERO);
        if ssd.is_some() && self.ssd_directory.is_none() {
            return Err(Failure::Invalid(format!(
                "{}: its nodes lend SSD, and nothing says where: add --ssd-directory",
                path.display()
            )));
        }
        Ok((Some(plan.memory), ssd))
    }

    pub fn run(&self) -> Result<(), Failure> {
        let lent = self.lent()?;
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        let (memory, ssd) = if self.leaving { (None, None) } else { lent };
        let memory = memory.filter(|memory| *memory > Bytes::ZERO);
        let config = BenefactorConfig {
            key: self.key.clone(),
            managers: managers(&self.managers),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            certificates: self.certificates.clone(),
            id: self.id,
            domain: self.domain.clone(),
            memory: memory.unwrap_or(Bytes::ZERO),
            ssd: self.ssd_directory.clone().map(|directory| (directory, ssd)),
            leaving: self.leaving,
            forget_ssd: self.forget_ssd,
            scrub: self.scrub.config(),
            metrics: self.metrics.clone(),
        };
        let late = || {
            output::note(&format!(
                "surgetank: no manager answers at {}: the benefactor waits for one for a minute, and lends nothing yet",
                config.managers.join(", ")
            ));
        };
        let Some(mut benefactor) =
            BenefactorProcess::start(&config, late, || interrupt.raised()).map_err(not_started)?
        else {
            return Ok(());
        };
        let (id, address) = (benefactor.id(), benefactor.address());
        let memory = memory.map(|memory| memory.to_string());
        let lends = [memory, ssd.map(|ssd| format!("{ssd} of SSD"))].into_iter().flatten().collect::<Vec<_>>();
        output::print(&match self.leaving {
            true => format!("benefactor {id} at {address} is leaving: it takes nothing new"),
            false => format!("benefactor {id} at {address} lends {}", lends.join(" and ")),
        })?;
        run_until_told(&interrupt, || Some(format!("the benefactor has ended: {}", benefactor.has_ended()?)))?;
        end(&mut benefactor, &interrupt)
    }
}

/// Waits until the pool has nothing to drain, or for a second signal.
fn end(benefactor: &mut BenefactorProcess, interrupt: &Interrupt) -> Result<(), Failure> {
    let heard = interrupt.count();
    let is_over = || interrupt.count() > heard;
    let (mut told_silent, mut told_undrained) = (false, false);
    while !is_over() {
        let mut silent = |why: &str| {
            if !std::mem::replace(&mut told_silent, true) {
                output::note(&format!(
                    "surgetank: {why}, so whether everything is drained is not known: this benefactor waits for a manager without \
                     limit, and keeps what it has; a second signal ends it at once: what it has on SSD stays there, and what it has in \
                     memory is lost unless other benefactors have copies, or parity, of it",
                ));
            }
        };
        match benefactor.undrained(|| silent("no manager answers"), is_over) {
            Some(Ok(0)) => return Ok(()),
            // One that was taken out waits for nobody once it is empty.
            Some(Ok(_)) if benefactor.may_go(is_over) => return Ok(()),
            Some(Ok(_)) if !std::mem::replace(&mut told_undrained, true) => output::note(
                "surgetank: the pool has files that are not drained: this benefactor ends when they are, or at a second signal",
            ),
            Some(Ok(_)) | None => {}
            Some(Err(why)) => silent(&why),
        }
        // One that no manager has taken in, or whose place another process has, holds nothing that counts.
        if let Some(why) = benefactor.has_ended() {
            return Err(Failure::Failed(format!("the benefactor has ended: {why}")));
        }
        let _ = interrupt.wait_beyond(heard, DRAINED);
    }
    Ok(())
}
