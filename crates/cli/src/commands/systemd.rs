//! What systemd's generator and udev's rules call at boot. A configuration that is missing or broken changes nothing there.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use surgetank_daemon::Config;
use surgetank_daemon::systemd::{self, Block, Ours, UNIQUE_NAME};
use surgetank_report::{Doing, Failure, output};

/// Devices that lie on one another, at most: more is a mistake of the kernel's.
const DEPTH_MAX: usize = 64;

/// Flags of `generate-units`.
#[derive(Debug, Args)]
pub struct GenerateUnits {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where systemd reads generated units
    directory: PathBuf,
}

impl GenerateUnits {
    pub fn run(&self) -> Result<(), Failure> {
        if !self.config.exists() {
            return Ok(());
        }
        // Whoever generates units must not fail: the boot goes on without them.
        let config = match Config::load(&self.config) {
            Ok(config) => config,
            Err(error) => {
                tell_kernel(&format!("no units are generated: {error}"));
                return Ok(());
            }
        };
        self.write("surgetank.service", &systemd::drop_in(&config))?;
        self.write("surgetank-map.service", &systemd::map_drop_in(&config))
    }

    fn write(&self, unit: &str, drop_in: &str) -> Result<(), Failure> {
        let directory = self.directory.join(format!("{unit}.d"));
        fs::create_dir_all(&directory).doing(|| format!("cannot make {}", directory.display()))?;
        output::write_whole(&directory.join("50-devices.conf"), drop_in)
    }
}

/// At that time there is no journal: what generators say goes to the kernel's log.
fn tell_kernel(message: &str) {
    let line = format!("<4>surgetank: {message}");
    if fs::write("/dev/kmsg", line).is_err() {
        output::note(&format!("surgetank: {message}"));
    }
}

/// Flags of `udev-properties`.
#[derive(Debug, Args)]
pub struct UdevProperties {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The block device, by the kernel's name
    name: String,
    /// Its links, relative to /dev
    links: Vec<String>,
}

impl UdevProperties {
    pub fn run(&self) -> Result<(), Failure> {
        let config = Config::load(&self.config).map_err(Failure::invalid)?;
        let linked = |link: fn(&str) -> String| {
            let found =
                |device: &String| Some((device.clone(), kernel_name(&config.run_directory.join(link(device)))?));
            config.devices.keys().filter_map(found).collect()
        };
        let mut ours = Ours { exported: linked(str::to_owned), serving: linked(systemd::serving_link) };
        let mut on = vec![self.name.clone()];
        let mut at = 0;
        while let Some(name) = on.get(at).filter(|_| at < DEPTH_MAX) {
            let below = directly_below(name);
            on.extend(below);
            at += 1;
        }
        // Those that a mapping shows are known before their links are there.
        ours.exported.extend(on.iter().filter_map(|name| mapped_by_us(name)));
        let mapped = mapper_says(&self.name, "name");
        let block = Block {
            name: &self.name,
            links: &self.links,
            mapped: mapped.map(|name| Path::new("/dev/mapper").join(name)),
            on: &on,
        };
        let lines: String = systemd::properties(&config, &block, &ours, kernel_name)
            .into_iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        if lines.is_empty() { Ok(()) } else { output::print(&lines) }
    }
}

/// What device mapper says of a block device of its own.
fn mapper_says(name: &str, what: &str) -> Option<String> {
    let text = fs::read_to_string(sysfs(name).join("dm").join(what)).ok()?;
    Some(text.trim_end().to_owned())
}

/// The device of ours that a block device of device mapper's is.
fn mapped_by_us(name: &str) -> Option<(String, String)> {
    mapper_says(name, "uuid").filter(|unique| unique.starts_with(UNIQUE_NAME))?;
    Some((mapper_says(name, "name")?, name.to_owned()))
}

fn sysfs(name: &str) -> PathBuf {
    Path::new("/sys/class/block").join(name)
}

/// The kernel's name of what a path leads to, if it is a device.
fn kernel_name(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let name = path.strip_prefix("/dev").ok()?.to_str()?.to_owned();
    sysfs(&name).exists().then_some(name)
}

/// The disk of a partition; what a volume consists of.
fn directly_below(name: &str) -> Vec<String> {
    let own = sysfs(name);
    let disk = || Some(fs::canonicalize(&own).ok()?.parent()?.file_name()?.to_str()?.to_owned());
    let disk = own.join("partition").exists().then(disk).flatten();
    let parts = fs::read_dir(own.join("slaves")).into_iter().flatten().flatten();
    disk.into_iter().chain(parts.filter_map(|part| part.file_name().into_string().ok())).collect()
}
