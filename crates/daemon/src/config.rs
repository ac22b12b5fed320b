//! The daemon's configuration file: `surgetank serve --config FILE`.
//!
//! Users rely on the shape of the file (`docs/OPERATIONS.md`); what leaves this module has been checked as far as that goes
//! without touching a device.

mod allocation;
mod array;
mod caching;
mod controller;
mod device;
mod nbd;
mod read_cache;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use surgetank_model::units::Span;
use surgetank_model::volume_type::BilledTime;
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits, VolumeType};
pub use surgetank_policy::file::{PolicyConfig, Timeouts};
use surgetank_provider::ProviderConfig;
use surgetank_provider::table::Rented;
use toml::Spanned;

pub use self::allocation::AllocationConfig;
use self::allocation::RawAllocation;
use self::array::RawArray;
pub use self::array::{ArrayConfig, Use};
pub use self::device::{Backing, DeviceConfig, OnStop};
use self::device::{OfMachine, RawDevice};
pub use self::nbd::NbdTcp;
pub use self::read_cache::ReadCacheConfig;
pub use crate::toml_error::ConfigError;
use crate::toml_error::{Source, nearest, read};

/// Where the daemon keeps what must survive it.
const STATE_DIRECTORY: &str = "/var/lib/surgetank";
/// Where the daemon keeps its sockets.
const RUN_DIRECTORY: &str = "/run/surgetank";
/// The longest Unix socket path that Linux takes, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Owner records, journals, the lock.
    pub state_directory: PathBuf,
    /// Sockets.
    pub run_directory: PathBuf,
    /// The control socket.
    pub control_socket: PathBuf,
    /// Who rents volumes out, by name.
    pub providers: BTreeMap<&'static str, Arc<dyn ProviderConfig>>,
    /// The arrays, by name.
    pub arrays: BTreeMap<String, ArrayConfig>,
    /// The elastic devices, by name.
    pub devices: BTreeMap<String, DeviceConfig>,
    /// How their read caches share what this machine has for them; `None`: each has its members.
    pub allocation: Option<AllocationConfig>,
    /// How often volumes that nobody owns are looked for.
    pub sweep_interval: Duration,
}

/// Where a configuration's daemon is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// The control socket.
    pub control: PathBuf,
    /// Where links and sockets are made.
    pub run_directory: PathBuf,
}

impl Sockets {
    /// What a file says of them, whatever is wrong with the rest of it: a daemon that runs has read another version.
    ///
    /// # Errors
    /// The file cannot be read, or is no TOML.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        struct Raw {
            run_directory: Option<PathBuf>,
            control_socket: Option<PathBuf>,
        }
        let raw: Raw = read(file)?.parse()?;
        Ok(Self::of(raw.run_directory, raw.control_socket))
    }

    fn of(run_directory: Option<PathBuf>, control: Option<PathBuf>) -> Self {
        let run_directory = run_directory.unwrap_or_else(|| RUN_DIRECTORY.into());
        Self { control: control.unwrap_or_else(|| run_directory.join("control.sock")), run_directory }
    }
}

impl Default for Sockets {
    /// Those of a configuration that does not say.
    fn default() -> Self {
        Self::of(None, None)
    }
}

/// The caching volumes of a device.
#[derive(Clone, Debug)]
pub struct CachingConfig {
    /// Who rents them out: a name of [`Config::providers`].
    pub provider: &'static str,
    /// The provider's name of the type.
    pub volume_type: String,
    /// Nominal limits of each volume. The bandwidth is what costs are computed from.
    pub limits: Limits,
    /// Over how many volumes of the provider a caching volume is striped; 1: it is one.
    pub volumes: u32,
    /// Whether that is the most that the limits allow (`volumes = "auto"`), so that fewer may do where they are refused.
    pub volumes_are_chosen: bool,
    /// What the machine moves beside the backing volume; `None`: not limited.
    pub machine_leaves: Option<Bandwidth>,
    /// Size of the first one, all of it.
    pub initial_size: Bytes,
    /// Smallest and largest one, all of it.
    pub size: (Bytes, Bytes),
    /// Whether the daemon holds caching volumes to their limits.
    pub throttle: bool,
    /// How long one that answers nothing is waited for, before the data on it counts as lost.
    pub outage_patience: Duration,
    /// What it costs, if known.
    pub usd_per_gib_month: Option<f64>,
    /// How long one is billed for.
    pub billed_time: BilledTime,
}

impl CachingConfig {
    /// What all volumes of a stripe give together, and the machine passes.
    #[must_use]
    pub fn all_limits(&self) -> Limits {
        let volumes = u64::from(self.volumes);
        Limits {
            bandwidth: self.limits.bandwidth.map(|each| {
                Bandwidth::new(each.get().saturating_mul(volumes))
                    .min(self.machine_leaves.unwrap_or(Bandwidth::new(u64::MAX)))
            }),
            iops: self.limits.iops.map(|each| Iops::new(each.get().saturating_mul(volumes))),
        }
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::of_daemon(&read(file)?)
    }

    /// As [`Config::load`], also of a machine that serves nothing, such as one that cleans up an account.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn load_any(file: &Path) -> Result<Self, ConfigError> {
        Self::check(&read(file)?)
    }

    /// Checks a text; `file` is for messages.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn from_text(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::of_daemon(&Source { file: file.to_owned(), text: text.to_owned() })
    }

    /// A daemon serves something.
    fn of_daemon(source: &Source) -> Result<Self, ConfigError> {
        let config = Self::check(source)?;
        if config.devices.is_empty() && config.arrays.is_empty() {
            let remedy = "has no device: add a section such as [device.data] with backing = \"/dev/vdb\"";
            return Err(source.at(None, remedy));
        }
        Ok(config)
    }

    fn check(source: &Source) -> Result<Self, ConfigError> {
        let raw: RawConfig = source.parse()?;
        let state_directory = check_path(source, "state_directory", raw.state_directory)?;
        let run_directory = check_path(source, "run_directory", raw.run_directory)?;
        let span = raw.control_socket.as_ref().map(Spanned::span);
        let control_socket = check_path(source, "control_socket", raw.control_socket)?;
        let Sockets { control, run_directory } = Sockets::of(run_directory, control_socket);
        let control_socket = check_socket(source, span, control)?;
        let mut providers = caching::providers(source, raw.provider.sections())?;
        let arrays = array::arrays(source, raw.array, &mut providers)?;
        let machine = raw.machine.check(source)?;
        let mut devices: BTreeMap<String, DeviceConfig> = BTreeMap::new();
        for (name, device) in raw.device {
            check_name(source, "device", &name)?;
            let span = Some(device.backing.span());
            let of_machine = OfMachine { machine, arrays: &arrays, shares: raw.allocation.is_some() };
            let device = device.check(source, name.get_ref(), &run_directory, &mut providers, of_machine)?;
            let same = |other: &DeviceConfig| {
                !matches!(&device.backing, Backing::Memory(_)) && other.backing == device.backing
            };
            if let Some((other, _)) = devices.iter().find(|(_, other)| same(other)) {
                let message = format!("the device {other} has this backing volume already: give each device its own");
                return Err(source.at(span, message));
            }
            devices.insert(name.into_inner(), device);
        }
        let allocation = raw.allocation.map(|allocation| allocation.check(source, &mut devices)).transpose()?;
        Ok(Self {
            state_directory: state_directory.unwrap_or_else(|| STATE_DIRECTORY.into()),
            control_socket,
            run_directory,
            providers: providers.by_name,
            arrays,
            devices,
            allocation,
            sweep_interval: source.at_least("sweep_interval", raw.sweep_interval.as_ref(), (300_000, 1000))?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_directory: Option<Spanned<PathBuf>>,
    run_directory: Option<Spanned<PathBuf>>,
    control_socket: Option<Spanned<PathBuf>>,
    sweep_interval: Option<Spanned<Span>>,
    #[serde(default)]
    provider: Rented,
    #[serde(default)]
    machine: caching::RawMachine,
    #[serde(default)]
    array: BTreeMap<Spanned<String>, RawArray>,
    #[serde(default)]
    device: BTreeMap<Spanned<String>, RawDevice>,
    allocation: Option<RawAllocation>,
}

fn price(source: &Source, key: &str, given: Option<&Spanned<f64>>) -> Result<Option<f64>, ConfigError> {
    source.number(given, |usd| usd >= 0.0, &format!("{key} must be a number of USD that is not negative"))
}

/// A type of the built-in catalog.
fn catalog_type(source: &Source, key: &str, name: &Spanned<String>) -> Result<VolumeType, ConfigError> {
    let (catalog, written) = (Catalog::builtin(), name.get_ref());
    if let Some(known) = catalog.iter().find(|known| known.key() == *written) {
        return Ok(known.clone());
    }
    let keys: Vec<String> = catalog.iter().map(VolumeType::key).collect();
    let message = match nearest(written, keys.iter().map(String::as_str)) {
        Some(nearest) => format!("unknown {key} \"{written}\": did you mean \"{nearest}\"?"),
        None => format!(
            "unknown {key} \"{written}\": write a provider and a type, such as \"aws/gp3\" (`surgetank price` lists them)"
        ),
    };
    Err(source.at(Some(name.span()), message))
}

/// Names of our own files, and of the local provider's default directory, beside those of the devices.
const RESERVED: &[&str] = &["lock", "owner-id", "volumes"];

/// Names of devices and arrays become file names, socket names and thread names.
fn check_name(source: &Source, what: &str, name: &Spanned<String>) -> Result<(), ConfigError> {
    let text = name.get_ref();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 32 || text.starts_with('.') || !text.chars().all(allowed) {
        let message = format!(
            "the {what} name \"{text}\" does not do: take 1 to 32 letters, digits, '-', '_' and '.', not beginning with a dot"
        );
        return Err(source.at(Some(name.span()), message));
    }
    if RESERVED.contains(&text.as_str()) || text.ends_with(".sock") || text.ends_with(".new") {
        let message = format!("the {what} name \"{text}\" is one of the daemon's own files: take another");
        return Err(source.at(Some(name.span()), message));
    }
    Ok(())
}

/// A path that is one.
fn check_path(source: &Source, key: &str, path: Option<Spanned<PathBuf>>) -> Result<Option<PathBuf>, ConfigError> {
    if let Some(path) = &path {
        let bytes = path.get_ref().as_os_str().as_encoded_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            let is = if bytes.is_empty() { "is empty" } else { "has a NUL character in it" };
            let message = format!("{key} {is}: write a path, or leave it out for the default");
            return Err(source.at(Some(path.span()), message));
        }
    }
    Ok(path.map(Spanned::into_inner))
}

fn check_socket(
    source: &Source,
    span: Option<std::ops::Range<usize>>,
    socket: PathBuf,
) -> Result<PathBuf, ConfigError> {
    let length = socket.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        let message = format!(
            "the socket path {} has {length} bytes, and Linux takes {SOCKET_PATH_MAX}: choose a shorter one",
            socket.display()
        );
        return Err(source.at(span, message));
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_error::each_mistake_is_told;

    const MINIMAL: &str = r#"
[provider.local]
directory = "/tmp/volumes"

[device.data]
backing = "/dev/vdb"           # or a file
export = "auto"
[device.data.backing_limits]
bandwidth = "33 MiB/s"
[device.data.caching]
provider = "local"
volume_type = "fast"
bandwidth = "128 MiB/s"
initial_size = "10 GiB"
[device.data.policy]
name = "paper"
utilization_threshold = 0.30
inactivity_delay = "30 s"
"#;

    fn load(text: &str) -> Result<Config, String> {
        Config::from_text(Path::new("s.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_file_is_read() {
        let config = load(MINIMAL).unwrap();
        let device = &config.devices["data"];
        assert_eq!(device.backing, Backing::Path("/dev/vdb".into()));
        assert_eq!(device.socket, Path::new("/run/surgetank/data.sock"));
        let caching = device.caching.as_ref().unwrap();
        assert_eq!(caching.initial_size, Bytes::from_gib(10));
        assert_eq!(device.policy.inactivity_delay, Duration::from_secs(30));
        assert_eq!(config.control_socket, Path::new("/run/surgetank/control.sock"));
    }

    #[test]
    fn a_device_may_rent_from_a_staging_pool() {
        let pool = |section: &str| {
            let text = MINIMAL.replace("[provider.local]\ndirectory = \"/tmp/volumes\"", section);
            load(&text.replace("provider = \"local\"", "provider = \"pool\""))
        };
        let config =
            pool("[provider.pool]\naddress = \"pool://127.0.0.1:7440\"\ntarget = \"/scratch/volumes\"").unwrap();
        assert_eq!(config.devices["data"].caching.as_ref().unwrap().provider, "pool");
        assert!(pool("").is_ok(), "all keys have defaults");
        for (section, told) in [
            ("[provider.pool]\ntarget = \"volumes\"", "s.toml:2:1: target is \"volumes\": write the whole path"),
            ("[provider.pool]\ndurable = \"twice\"", "durable is \"twice\": write \"copies=1\""),
            ("[provider.pool]\naddress = \"localhost\"", "write \"pool://127.0.0.1:7440\""),
            ("[provider.pool]\ntarge = \"/t\"", "did you mean \"target\""),
        ] {
            let error = pool(section).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn every_mistake_has_a_place_and_a_remedy() {
        let mistakes = [
            ("\"33 MiB/s\"", "33", "s.toml:9:13: 33 has no unit"),
            ("export = \"auto\"", "export = \"ublock\"", "s.toml:7:10: unknown export \"ublock\""),
            ("export = \"auto\"", "export = \"fsue\"", "s.toml:7:10: unknown export \"fsue\": did you mean \"fuse\"?"),
            ("= 0.30", "= 3.0", "s.toml:17:25: utilization_threshold is 3"),
            ("[device.data", "[device.\"a/b\"", "s.toml:5:9: the device name \"a/b\""),
            (
                "\"fast\"",
                "\"fats\"",
                "s.toml:12:15: the local provider has no volume type \"fats\": did you mean \"fast\"",
            ),
            ("\"local\"", "\"elsewhere\"", "s.toml:11:12: the provider \"elsewhere\" is not supported"),
            ("backing = ", "bakcing = ", "did you mean \"backing\""),
            ("name = \"paper\"", "name = \"papr\"", "did you mean \"paper\""),
            ("\"/dev/vdb\"", "\"memory:5\"", "s.toml:6:11: \"5\" has no unit"),
            ("\"10 GiB\"", "\"10 KiB\"", "s.toml:14:16: initial_size is 10 KiB"),
            ("[device.data", "[device.\"control.sock\"", "s.toml:5:9: the device name \"control.sock\" is one of"),
            ("[device.data", "[device.lock", "s.toml:5:9: the device name \"lock\" is one of"),
            ("export = \"auto\"", "backing_usd_per_gib_month = nan", "s.toml:7:29: backing_usd_per_gib_month must be"),
            (
                "export = \"auto\"",
                "backing_volume_type = \"aws/gp4\"",
                "s.toml:7:23: unknown backing_volume_type \"aws/gp4\": did you mean \"aws/gp",
            ),
            ("volume_type = \"fast\"", "usd_per_gib_month = -1.0", "s.toml:12:21: usd_per_gib_month must be"),
            (
                "inactivity_delay = \"30 s\"",
                "value_of_time = \"3 USD/h\"",
                "s.toml:18:17: value_of_time is money, and for that the prices of both volumes must be known",
            ),
            ("inactivity_delay = \"30 s\"", "value_of_time = \"3 EUR/h\"", "s.toml:18:17: write AGBs a second"),
            (
                "inactivity_delay = \"30 s\"",
                "value_of_time = -1",
                "s.toml:18:17: value_of_time is in AGBs a second, or money",
            ),
            (
                "inactivity_delay = \"30 s\"",
                "value_of_time = \"inf\"",
                "s.toml:18:17: value_of_time is in AGBs a second",
            ),
            ("inactivity_delay = \"30 s\"", "budget.usd_per_day = 0", "s.toml:18:22: usd_per_day must be above zero"),
            ("inactivity_delay = \"30 s\"", "budget.agbs_per_hour = inf", "agbs_per_hour must be above zero"),
            ("volume_type = \"fast\"", "outage_patience = \"9 ms\"", "s.toml:12:19: outage_patience is below 1 s"),
            ("inactivity_delay = \"30 s\"", "retry_first = \"1 ms\"", "s.toml:18:15: retry_first is below 100 ms"),
            ("inactivity_delay = \"30 s\"", "retry_longest = \"0 s\"", "s.toml:18:17: retry_longest is below 100 ms"),
            ("inactivity_delay = \"30 s\"", "create_timeout = \"0 s\"", "s.toml:18:18: create_timeout is below 100 ms"),
            (
                "inactivity_delay = \"30 s\"",
                "attach_timeout = \"1 ns\"",
                "s.toml:18:18: attach_timeout is below 100 ms",
            ),
            (
                "inactivity_delay = \"30 s\"",
                "detach_timeout = \"9 ms\"",
                "s.toml:18:18: detach_timeout is below 100 ms",
            ),
            ("export = \"auto\"", "on_stop = 5", "s.toml:7:11: expected a text in quotes"),
            (
                "volume_type = \"fast\"",
                "min_size = \"20 GiB\"\nmax_size = \"15 GiB\"",
                "s.toml:13:12: no caching volume of type \"fast\" has 20 GiB or more and 15 GiB or less: write a smaller min_size",
            ),
            ("\n[provider", "state_directory = \"\"\n[provider", "s.toml:1:19: state_directory is empty: write a path"),
            ("\n[provider", "run_directory = \"\"\n[provider", "s.toml:1:17: run_directory is empty: write a path"),
            (
                "\n[provider",
                "control_socket = \"\\u0000\"\n[provider",
                "s.toml:1:18: control_socket has a NUL character",
            ),
            (
                "\n[provider",
                "state_directory = 5\n[provider",
                "s.toml:1:19: found the number 5, expected a path in quotes",
            ),
            ("export = \"auto\"", "socket = \"\"", "s.toml:7:10: socket is empty: write a path"),
            ("\"/tmp/volumes\"", "\"\"", "s.toml:2:1: directory is no path: write that of a directory of a fast disk"),
            ("\n[provider", "sweep_interval = \"0 s\"\n[provider", "s.toml:1:18: sweep_interval is below 1 s"),
        ];
        each_mistake_is_told(MINIMAL, load, &mistakes);
        let long = format!("control_socket = \"/{}\"\n[provider", "a".repeat(107));
        let mistakes =
            [("\n[provider", &*long, "s.toml:1:18: the socket path /aaa"), ("[provider", &long, "Linux takes 107")];
        each_mistake_is_told(MINIMAL, load, &mistakes);
        assert!(load("").unwrap_err().contains("has no device"));
        let remote = MINIMAL
            .replace("local]", "qemu]")
            .replace(
                "directory = \"/tmp/volumes\"",
                "url = \"https://10.0.2.2:7420\"\ntoken_file = \"/t\"\nca_file = \"/c\"",
            )
            .replace("\"local\"", "\"qemu\"");
        let config = load(&remote).unwrap();
        assert_eq!(config.providers.keys().copied().collect::<Vec<_>>(), ["host"], "by its former name");
        assert_eq!(config.devices["data"].caching.as_ref().unwrap().provider, "host");
        let today = remote.replace("qemu", "host");
        assert_eq!(format!("{config:?}"), format!("{:?}", load(&today).unwrap()), "both names mean the same");
        assert!(!config.devices["data"].caching.as_ref().unwrap().throttle, "QEMU holds its volumes to their limits");
        let mistakes = [
            ("https:", "http:", "s.toml:2:1: the url \"http://10.0.2.2:7420\" sends the token over a wire as it is"),
            ("ca_file = \"/c\"", "", "s.toml:2:1: the url \"https://10.0.2.2:7420\" asks for TLS, and who vouches"),
            ("token_file", "token_fil", "did you mean \"token_file\""),
            ("bandwidth = \"128 MiB/s\"\n", "", "s.toml:14:15: what a volume of type \"fast\" moves is known"),
            (
                "[device.data]\n",
                "[provider.host]\nurl = \"http://127.0.0.1:1\"\ntoken_file = \"/t\"\n[device.data]\n",
                "s.toml:2:1: [provider.host] and [provider.qemu] are one provider under two names: keep one of them",
            ),
            ("[provider.qemu]", "[provider.qmeu]", "s.toml:2:11: unknown setting \"qmeu\""),
        ];
        each_mistake_is_told(&remote, load, &mistakes);
        let two = "provider = \"local\"\n[device.b]\nbacking = \"/b\"\nbacking_limits.bandwidth = \"1 MiB/s\"\n\
                   [device.b.caching]\nprovider = \"qemu\"";
        let config = load(&remote.replace("provider = \"qemu\"", two)).unwrap();
        let names = config.devices.values().map(|device| device.caching.as_ref().unwrap().provider);
        assert_eq!(names.collect::<Vec<_>>(), ["host", "local"], "several providers");
        assert_eq!(config.providers.len(), 2);
        // Whatever the others name, a device that names none rents from the one that has a section.
        let device = |name: &str| {
            format!(
                "[device.{name}]\nbacking = \"/{name}\"\nbacking_limits.bandwidth = \"1 MiB/s\"\n\
                 caching = {{ bandwidth = \"1 MiB/s\" }}\n"
            )
        };
        let around =
            [device("a"), remote.replace("provider = \"qemu\"", "provider = \"local\""), device("z")].join("\n");
        let config = load(&around).unwrap();
        let names = config.devices.values().map(|device| device.caching.as_ref().unwrap().provider);
        assert_eq!(names.collect::<Vec<_>>(), ["host", "local", "host"]);
        for name in ["qemu", "host"] {
            let message = load(&MINIMAL.replace("\"local\"", &format!("\"{name}\""))).unwrap_err();
            let expected = "s.toml:11:12: there is no section [provider.host]: add it (missing field \"url\")";
            assert!(message.contains(expected), "{message}");
        }
        let twice = format!("{MINIMAL}\n[device.b]\nbacking = \"/dev/vdb\"\nbacking_limits.bandwidth = \"1 MiB/s\"");
        assert!(load(&twice).unwrap_err().contains("has this backing volume already"));
    }
}
