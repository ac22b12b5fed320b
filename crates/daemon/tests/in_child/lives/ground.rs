//! Whose volumes a group rents: the local provider's; OpenStack's, with a file in place of each disk; or those of a fake of another cloud,
//! whose disks are loop devices.

use std::any::Any;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surgetank_daemon::Config;
use surgetank_model::{Bytes, Lag};
use surgetank_provider::fakes::Settings;
use surgetank_provider::{
    Change, CreateVolume, Home, LocalProvider, OpenStackConfig, OpenStackProvider, Provider, ProviderError,
    SystemClock, Transition, VolumeDescription, VolumeId, VolumeState,
};

use crate::cloud::Tenant;
use crate::common::{Machine, Shape, TIMEOUT};
use crate::hypervisor;

/// How fast a provider is, and what a group of devices asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub devices: usize,
    /// For how long a daemon lives, at least and at most.
    pub generation: (Duration, Duration),
    /// How often a daemon passes a step at most before it is killed there.
    pub passes: u64,
    /// How many times as often calls meet faults as the local provider's.
    pub faults: f64,
    /// A creation that is repeated may make a second volume. Where a name follows from the token there is none; there the network repeats calls.
    pub has_twins: bool,
    /// How long a step of a rental may take, and after which pauses it is tried again.
    pub step: Duration,
    pub retry: (Duration, Duration),
    /// Until nothing is rented any more: far more than it takes; and how often is looked whether that is so.
    pub settle: Duration,
    pub look: Duration,
    /// How far the provider is said to lag behind, if its client says that of a cloud's minute.
    pub lag: Option<Lag>,
    pub volume_type: &'static str,
    pub smallest: Bytes,
}

/// Of each cloud, how many devices rent there, and what.
const CLOUDS: [(&str, usize, &str, Bytes); 4] = [
    ("openstack", 8, "__DEFAULT__", Bytes::from_gib(1)),
    ("aws", 12, "gp3", Bytes::from_gib(1)),
    ("gce", 12, "pd-ssd", Bytes::from_gib(10)),
    ("azure", 10, "premium-ssd-v2", Bytes::from_gib(1)),
];

impl Pace {
    /// At the provider of this name.
    pub fn at(provider: &str) -> Self {
        let ms = Duration::from_millis;
        let Some((_, devices, volume_type, smallest)) = CLOUDS.into_iter().find(|(cloud, ..)| *cloud == provider)
        else {
            return Self {
                devices: 16,
                generation: (ms(200), ms(1000)),
                passes: 16,
                faults: 1.0,
                has_twins: true,
                step: ms(150),
                retry: (ms(5), ms(20)),
                settle: TIMEOUT,
                look: ms(20),
                lag: None,
                volume_type: "fast",
                smallest: Bytes::from_mib(1),
            };
        };
        Self {
            devices,
            // Most calls come to nothing in a second: one that is killed sooner has rented nothing. And none lives for as long as a cloud
            // may not know a volume: that one is gone, daemons believe together.
            generation: (ms(1500), ms(10_000)),
            passes: 32,
            // A boost waits for a volume by so many looks that few would else come to its use.
            faults: 0.05,
            has_twins: !matches!(provider, "gce" | "azure"),
            step: ms(10_000),
            retry: (ms(100), ms(400)),
            settle: TIMEOUT * 4,
            look: ms(250),
            // Far longer than what there lags does.
            lag: Some(Lag { created: ms(12_000), known: ms(6000) }),
            volume_type,
            smallest,
        }
    }

    pub fn of(config: &Config) -> Self {
        Self::at(config.providers.keys().next().unwrap())
    }
}

/// The configuration of a group that rents from the local provider.
pub fn of_files(machine: &Machine, devices: &[(&str, &str)]) -> String {
    let shape = Shape { caching: "initial_size = \"2 MiB\"".to_owned(), ..Shape::default() };
    let text = machine.config_text(devices, &shape);
    text.replace("\"128 MiB/s\"\n", "\"128 MiB/s\"\npreallocate = false\n")
}

/// The section of a tenant.
pub fn section(tenant: &Tenant) -> String {
    let (clouds, server) = (tenant.file.display(), &tenant.server);
    format!(
        "[provider.openstack]\nclouds_file = \"{clouds}\"\ncloud = \"of-credential\"\nserver = \"{server}\"\n\
         reads_per_s = 1000000\nwrites_per_s = 1000000\ntimeout = \"2 s\"\n"
    )
}

/// The configuration of a group that rents from the cloud of this section.
pub fn of_a_cloud(machine: &Machine, cloud: &str, section: &str, devices: &[(&str, &str)]) -> String {
    let Pace { volume_type, smallest, .. } = Pace::at(cloud);
    let size = format!("initial_size = \"{smallest}\"\nmax_size = \"{smallest}\"");
    let caching = format!("provider = \"{cloud}\"\nvolume_type = \"{volume_type}\"\nbandwidth = \"128 MiB/s\"\n{size}");
    let text = machine.config_text(devices, &Shape { caching, ..Shape::default() });
    let (before, rest) = text.split_once("[provider.local]").unwrap();
    let (_, after) = rest.split_once("[device.").unwrap();
    format!("{before}{section}[device.{after}")
}

/// How fast a fake is, and how far it lags behind.
pub fn settings() -> Settings {
    let ms = Duration::from_millis;
    Settings {
        blind: ms(200),
        listing_lag: ms(400),
        state_lag: ms(100),
        // More than there are devices.
        attachments_max: 40,
        ..hypervisor::settings(ms(200))
    }
}

/// The provider that a configuration names, which tells the truth.
pub fn open(config: &Config) -> Arc<dyn Provider> {
    let (name, provider) = config.providers.iter().next().unwrap();
    match *name {
        "local" => Arc::new(LocalProvider::open(crate::common::local(config), Arc::new(SystemClock)).unwrap()),
        "openstack" => {
            let openstack: &dyn Any = &**provider;
            let cloud = OpenStackProvider::open(openstack.downcast_ref::<OpenStackConfig>().unwrap().clone()).unwrap();
            let disks = config.state_directory.with_file_name("disks");
            fs::create_dir_all(&disks).unwrap();
            Arc::new(Plugged { cloud, disks })
        }
        _ => provider.open(None).unwrap(),
    }
}

/// OpenStack's volumes, each with a file in place of the disk, since Nova's fake hypervisor plugs none. A file stays until its volume
/// is deleted, whoever is killed.
struct Plugged {
    cloud: OpenStackProvider,
    disks: PathBuf,
}

impl Plugged {
    fn disk(&self, id: &VolumeId) -> PathBuf {
        self.disks.join(&id.0)
    }

    fn located(&self, volume: VolumeDescription) -> VolumeDescription {
        if volume.state != VolumeState::Attached {
            return volume;
        }
        let disk = self.disk(&volume.id);
        grown(&disk, volume.size);
        VolumeDescription { device: Some(disk), disk: None, ..volume }
    }
}

fn grown(disk: &Path, size: Bytes) {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(disk).unwrap();
    if file.metadata().unwrap().len() < size.get() {
        file.set_len(size.get()).unwrap();
    }
}

impl Provider for Plugged {
    fn home(&self) -> Home {
        Home::Files(self.disks.clone())
    }

    fn create_is_exclusive(&self) -> bool {
        self.cloud.create_is_exclusive()
    }

    fn lag(&self) -> Lag {
        self.cloud.lag()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let (volume, change) = self.cloud.create(request)?;
        Ok((self.located(volume), change))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        let change = self.cloud.change_state(id, transition)?;
        if transition == Transition::Delete {
            match fs::remove_file(self.disk(id)) {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
        }
        Ok(change)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.cloud.describe(id).map(|volume| self.located(volume))
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        let listed = self.cloud.list(key, value)?;
        Ok(listed.into_iter().map(|volume| self.located(volume)).collect())
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.cloud.set_tag(id, key, value)
    }
}
