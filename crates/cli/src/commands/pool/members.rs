//! `surgetank pool manager` and `surgetank pool benefactor`: the parts of a pool of several machines.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use surgetank_model::Bytes;
use surgetank_pool::processes::{BenefactorConfig, BenefactorProcess, ManagerConfig, ManagerProcess};
use surgetank_report::number::count;
use surgetank_report::{Failure, Interrupt, output};

use super::super::foreground::Running;
use super::shown::DIRECTORY;
use super::store::Store;
use super::{LISTEN, managers, not_started, run_until_told};

/// Between two looks whether everything is drained.
const DRAINED: Duration = Duration::from_secs(1);

/// Flags of `pool manager`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool manager --listen node1:7440 --certificates pki/node1
  surgetank pool manager --listen node2:7440 --certificates pki/node2 \\
      --store etcd://node3:2379/scratch --store-ca etcd-ca.pem

It makes the pool's key at its first start: the file `key` in its directory, which benefactors and administrators need. SIGTERM \
and SIGINT end it; what the pool holds waits for its next start.")]
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
    #[command(flatten)]
    running: Running,
}

/// Flags of `pool benefactor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool benefactor --managers node1:7440 --memory '16 GiB' \\
      --listen node2:7441 --domain rack1 --key key --certificates pki/node2

SIGTERM and SIGINT end it once the pool has nothing to drain; a second one ends it at once: what it has in memory is lost then, \
and made again from copies on other benefactors.")]
pub struct Benefactor {
    /// The managers' addresses: HOST:PORT,HOST:PORT…
    #[arg(long, value_name = "ADDRESSES")]
    managers: String,
    /// Memory that it lends
    #[arg(long, value_name = "SIZE")]
    memory: Bytes,
    /// Where it is reached; beyond loopback it needs certificates
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Where others reach it, if that is not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// What it fails with, such as its host or rack: no chunk has two copies in one domain
    #[arg(long, value_name = "NAME")]
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
    #[command(flatten)]
    running: Running,
}

impl Manager {
    pub fn run(&self) -> Result<(), Failure> {
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        let config = ManagerConfig {
            directory: self.directory.clone(),
            store: self.store.etcd()?,
            listen: self.listen.clone(),
            certificates: self.certificates.clone(),
        };
        let mut manager = ManagerProcess::start(&config).map_err(not_started)?;
        output::print(&format!("pool://{}: a manager", manager.address()))?;
        run_until_told(&interrupt, || Some(format!("the manager has ended: {}", manager.has_ended()?)))?;
        let left = manager.undrained().map_err(not_started)?.iter().filter(|file| !file.is_lost).count();
        if left > 0 {
            output::note(&format!("surgetank: {} drain when a manager runs again", count(left, "file")));
        }
        Ok(())
    }
}

impl Benefactor {
    pub fn run(&self) -> Result<(), Failure> {
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        let config = BenefactorConfig {
            key: self.key.clone(),
            managers: managers(&self.managers),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            certificates: self.certificates.clone(),
            id: self.id,
            domain: self.domain.clone(),
            memory: self.memory,
        };
        let mut benefactor = BenefactorProcess::start(&config).map_err(not_started)?;
        let (id, address) = (benefactor.id(), benefactor.address());
        output::print(&format!("benefactor {id} at {address} lends {}", self.memory))?;
        run_until_told(&interrupt, || Some(format!("the benefactor has ended: {}", benefactor.has_ended()?)))?;
        let heard = interrupt.count();
        let mut told = false;
        while interrupt.count() == heard && benefactor.undrained().is_none_or(|left| left > 0) {
            if !std::mem::replace(&mut told, true) {
                output::note(
                    "surgetank: the pool has files that are not drained: this benefactor ends when they are, or at a second signal",
                );
            }
            let _ = interrupt.wait_beyond(heard, DRAINED);
        }
        Ok(())
    }
}
