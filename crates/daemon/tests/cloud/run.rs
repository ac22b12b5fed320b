//! A run on one cloud.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use surgetank_daemon::{Config, Daemon, DevicePhase, Overrides, Request};
use surgetank_device::discovery::Disks;
use surgetank_model::Bytes;
use surgetank_model::volume_type::Provision;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::{Provider, ProviderConfig};

use crate::common::{MIB, Machine, connect, pattern, status};
use crate::purse::{Paying, Purse};

/// The clouds; what the catalog calls each; what is rented there where nothing else is said, which costs little and is asked for the most.
const CLOUDS: [(&str, &str, Option<&str>); 4] = [
    ("aws", "aws", Some("gp3")),
    ("gce", "gcp", Some("pd-ssd")),
    ("azure", "azure", Some("premium-ssd-v2")),
    ("openstack", "openstack", None),
];
/// How long a boost may take to come or to go, and a volume to be deleted: clouds have taken 20 minutes.
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// What a burst writes, in MiB.
const BURST: u64 = 16;

/// A cloud, and what is rented there.
pub struct Run {
    cloud: &'static str,
    /// What the catalog of volume types calls it.
    catalog_name: &'static str,
    /// The section of its provider.
    section: String,
    config: Arc<dyn ProviderConfig>,
    volume_type: String,
    /// What is bought with each, by the section.
    bought: Provision,
    size: Bytes,
    /// Between two looks.
    pause: Duration,
    /// For how long nothing must be seen until nothing is left; `None`: as long as the cloud may not tell of it.
    patience: Option<Duration>,
    /// Where providers keep what outlives them.
    state: tempfile::TempDir,
}

impl Run {
    /// By the section of a daemon's configuration.
    ///
    /// # Errors
    /// One sentence.
    pub fn new(cloud: &str, text: &str, volume_type: Option<&str>, pause: Duration) -> Result<Self, String> {
        let (cloud, catalog_name, default) = CLOUDS
            .into_iter()
            .find(|(name, ..)| *name == cloud)
            .ok_or_else(|| format!("the cloud {cloud:?} is none of aws, gce, azure and openstack"))?;
        let table: toml::Table = text.parse().map_err(|error| format!("the file is no TOML: {error}"))?;
        let section = table.get("provider").and_then(|providers| providers.get(cloud));
        let section = section.ok_or_else(|| format!("there is no section [provider.{cloud}]: write one"))?;
        let types =
            section.get("types").and_then(|types| types.get(volume_type.unwrap_or(default.unwrap_or_default())));
        let bought = types.cloned().map(toml::Value::try_into).transpose();
        let bought: Provision =
            bought.map_err(|error| format!("[provider.{cloud}.types]: {error}"))?.unwrap_or_default();
        let provider = toml::Table::from_iter([(cloud.to_owned(), section.clone())]);
        let section = toml::Table::from_iter([("provider".to_owned(), provider.into())]).to_string();
        // No configuration is without a device.
        let whole =
            format!("{section}\n[device.data]\nbacking = \"memory:16 MiB\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n");
        let read = Config::from_text(Path::new("configuration"), &whole).map_err(|error| error.to_string())?;
        let config = Arc::clone(&read.providers[cloud]);
        let volume_type = volume_type.or(default).ok_or("which volume type to rent is not known: write TYPE=NAME")?;
        let limits = config.type_limits(volume_type).map_err(|error| error.to_string())?;
        let state = tempfile::tempdir().map_err(|error| format!("no temporary directory can be made: {error}"))?;
        // A volume of no size is what a cloud without limits has.
        let size = limits.sizes.0.max(Bytes::from_gib(1));
        Ok(Self {
            cloud,
            catalog_name,
            section,
            config,
            volume_type: volume_type.to_owned(),
            bought,
            size,
            pause,
            patience: None,
            state,
        })
    }

    /// The type and the size of what is rented.
    pub fn rentable(&self) -> (String, Bytes) {
        (self.volume_type.clone(), self.size)
    }

    /// The cloud's provider.
    ///
    /// # Errors
    /// One sentence.
    pub fn provider(&self) -> Result<Arc<dyn Provider>, String> {
        self.config.open(Some(self.state.path())).map_err(|error| error.to_string())
    }

    /// The provider, with a purse.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(&self, tokens: &Path) -> Result<Paying, String> {
        let purse = Purse::open(self.catalog_name, &self.volume_type, self.bought, self.size, tokens.to_owned());
        let purse = Arc::new(purse.map_err(|error| format!("{} cannot be read: {error}", tokens.display()))?);
        Ok(Paying { provider: self.provider()?, purse })
    }

    /// Deletes what a run has left.
    ///
    /// # Errors
    /// What is left.
    pub fn reap(&self, tokens: PathBuf) -> Result<(), String> {
        self.reap_what(&self.open(&tokens)?)
    }

    fn reap_what(&self, paying: &Paying) -> Result<(), String> {
        match &*paying.purse.reap(&*paying.provider, LONGEST, self.pause, self.patience) {
            [] => Ok(()),
            left => Err(format!("volumes are left, look after them yourself: {}", left.join("; "))),
        }
    }

    /// Believes at once that nothing is left: of a cloud that does not lag.
    #[must_use]
    pub fn of_no_patience(self) -> Self {
        Self { patience: Some(Duration::ZERO), ..self }
    }

    /// The contract and a burst. Whatever happens, the reaper follows. `disks`: in place of this machine's.
    ///
    /// # Errors
    /// What went wrong, or is left.
    pub fn all(&self, tokens: PathBuf, disks: Option<Disks>) -> Result<(), String> {
        // What a run before has left, which was ended from outside.
        self.reap(tokens.clone())?;
        let paying = Arc::new(self.open(&tokens)?);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            eprintln!("{}: the contract, with volumes of {} {}", self.cloud, self.size, self.volume_type);
            contract::run(&Account { run: self, paying: Arc::clone(&paying) });
            eprintln!("{}: a burst", self.cloud);
            self.burst(&paying, disks);
        }));
        let (usd, count) = paying.purse.spent();
        eprintln!("{}: {count} volumes were paid for, at most {usd:.4} USD; the reaper looks after them", self.cloud);
        let reaped = self.reap_what(&paying);
        // The panic has told what went wrong.
        ran.map_err(|_| "the run has failed".to_owned()).and(reaped)
    }

    /// A device writes more than its backing volume takes, is boosted, and drained; every byte is read back.
    fn burst(&self, paying: &Arc<Paying>, disks: Option<Disks>) {
        let machine = Machine::new();
        let config = self.configured(&machine);
        let overrides = Overrides { provider: Some(paying.clone()), disks, ..Overrides::default() };
        let daemon = Daemon::start_with(config, overrides).unwrap_or_else(|error| panic!("{error}"));
        let begun = Instant::now();
        let came = |what: &str, phase: DevicePhase| {
            let mut told = None;
            while status(&daemon, "data").phase != phase {
                assert!(begun.elapsed() < LONGEST, "{what}: it never came to this");
                let reason = status(&daemon, "data").reason;
                if reason != told {
                    eprintln!("{}", reason.as_deref().unwrap_or("it goes on"));
                    told = reason;
                }
                std::thread::sleep(self.pause);
            }
            eprintln!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
        };
        daemon.handle(Request::boost("data")).unwrap();
        came("boosted", DevicePhase::Boost);
        let mut nbd = connect(&machine, "data");
        for block in 0..BURST {
            nbd.write(block * MIB, &pattern(block, 1, MIB as usize)).unwrap();
        }
        nbd.flush().unwrap();
        daemon.handle(Request::Drain { device: "data".into() }).unwrap();
        came("drained, detached and returned", DevicePhase::Idle);
        for block in 0..BURST {
            assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 1, MIB as usize), "block {block}");
        }
        drop(nbd);
        daemon.stop();
    }

    fn configured(&self, machine: &Machine) -> Config {
        let root = machine.directory.path().display();
        let size = self.size.as_gib();
        let text = format!(
            "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n{}\n\
             [device.data]\nbacking = \"{}\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
             [device.data.caching]\nvolume_type = \"{}\"\nbandwidth = \"2 GiB/s\"\ninitial_size = \"{size} GiB\"\nmax_size = \"{size} GiB\"\n\
             [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsize_grain = \"{size} GiB\"\ninactivity_delay = \"1 h\"\n\
             attach_timeout = \"20 min\"\ndetach_timeout = \"20 min\"\n",
            self.section,
            machine.backing("backing", 64 * MIB).display(),
            self.volume_type
        );
        Config::from_text(Path::new("configuration"), &text).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The account, as the contract knows it.
struct Account<'a> {
    run: &'a Run,
    paying: Arc<Paying>,
}

impl Subject for Account<'_> {
    fn open(&self) -> Arc<dyn Provider> {
        let provider = self.run.provider().unwrap_or_else(|why| panic!("{why}"));
        Arc::new(Paying { provider, purse: Arc::clone(&self.paying.purse) })
    }

    fn pass_time(&self) {
        std::thread::sleep(self.run.pause);
    }

    fn rentable(&self) -> (String, Bytes) {
        self.run.rentable()
    }
}
