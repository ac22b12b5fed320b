//! The daemon under one mode's array, in this process: made from the same configuration text that `serve` reads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use surgetank_daemon::arrays::status::{ArrayStatus, ArraysReport};
use surgetank_daemon::config::Config;
use surgetank_daemon::{Daemon, OfflineArrays, Request};
use surgetank_model::Bandwidth;
use surgetank_provider::{LocalConfig, ProviderConfig};
use surgetank_report::{Doing, Failure};

use super::plan::{ArrayPlan, Mode};
use crate::host::{Export, Layout, milliseconds, quoted};

/// Name of the only array and of the only device over it.
const NAME: &str = "demo";
/// Name of the volumes' type.
const TYPE: &str = "burstable";
/// What the provider takes to create a volume, and again to attach it, unscaled: as in the demo of elastic devices.
const LATENCY: Duration = Duration::from_secs(4);

/// Whether members are held to their limits and credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// As in use.
    ToCredits,
    /// Not while the files are made and read back.
    ToNothing,
}

/// The configuration of a mode, as a user would write it.
fn configuration(
    plan: &ArrayPlan,
    mode: Mode,
    export: Export,
    layout: &Layout,
    held: Held,
) -> Result<String, toml::ser::Error> {
    let local_type = toml::Value::try_from(plan.local_type())?;
    let latency = milliseconds(LATENCY / plan.time_scale);
    let copy_rate = match held {
        Held::ToCredits => plan.copy_rate(),
        Held::ToNothing => Bandwidth::from_mib_s(1024),
    };
    Ok(format!(
        "state_directory = {state}\nrun_directory = {run}\ncontrol_socket = {control}\n\n\
         [provider.local]\ndirectory = {volumes}\ncreate_latency = {latency}\nattach_latency = {latency}\n\
         detach_latency = {latency}\ntypes.{TYPE} = {local_type}\n\n\
         [array.{NAME}]\nprovider = \"local\"\nvolume_type = \"{TYPE}\"\nmembers = {members}\n\
         member_size = \"{size} MiB\"\nrotate = \"never\"\ncopy_rate = \"{copy_rate}\"\nthrottle = {throttle}\n\n\
         [device.{NAME}]\nbacking = \"array:{NAME}\"\nexport = \"{export}\"\nsocket = {socket}\n",
        state = quoted(&layout.state()),
        run = quoted(&layout.run()),
        control = quoted(&layout.run().join("ctl.sock")),
        volumes = quoted(&layout.volumes()),
        members = plan.members(mode),
        size = plan.size(mode).get() >> 20,
        throttle = held == Held::ToCredits,
        export = export.name(),
        socket = quoted(&layout.socket()),
    ))
}

fn config(plan: &ArrayPlan, mode: Mode, export: Export, layout: &Layout, held: Held) -> Result<Config, Failure> {
    let text = configuration(plan, mode, export, layout, held).map_err(Failure::failed)?;
    Config::from_text(Path::new("the demo's configuration"), &text).map_err(Failure::failed)
}

/// A running daemon with one array and one device over it.
pub struct ArrayHost(Daemon);

impl ArrayHost {
    /// Rents the volumes of a mode and makes them an array.
    ///
    /// # Errors
    /// What the array's manager says.
    pub fn create(plan: &ArrayPlan, mode: Mode, export: Export, layout: &Layout) -> Result<(), Failure> {
        layout.create_directory()?;
        let config = config(plan, mode, export, layout, Held::ToNothing)?;
        let arrays = OfflineArrays::start(config).map_err(Failure::Failed)?;
        arrays.handle(&Request::ArrayCreate { name: NAME.to_owned() }).map(drop).map_err(Failure::Failed)
    }

    /// Starts the daemon: the array is assembled from its members.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn start(plan: &ArrayPlan, mode: Mode, export: Export, layout: &Layout, held: Held) -> Result<Self, Failure> {
        let config = config(plan, mode, export, layout, held)?;
        Daemon::start(config).map(Self).map_err(Failure::failed)
    }

    /// Where the device is: a block device or an NBD address.
    ///
    /// # Errors
    /// If it is not served.
    pub fn address(&self) -> Result<PathBuf, Failure> {
        self.0.address(NAME).map(PathBuf::from).map_err(Failure::Failed)
    }

    /// How the array stands.
    ///
    /// # Errors
    /// If its manager does not answer.
    pub fn status(&self) -> Result<ArrayStatus, Failure> {
        let request = Request::ArrayStatus { name: Some(NAME.to_owned()) };
        let report = self.0.handle(request).map_err(Failure::Failed)?;
        let report: ArraysReport = serde_json::from_value(report).map_err(Failure::failed)?;
        report.arrays.into_iter().next().ok_or_else(|| Failure::failed("the daemon does not know the demo's array"))
    }

    /// Has a slot's member be replaced.
    ///
    /// # Errors
    /// If the array's manager refuses.
    pub fn replace(&self, slot: u32) -> Result<(), Failure> {
        let request = Request::ArrayRotate { name: NAME.to_owned(), slot: Some(slot) };
        self.0.handle(request).map(drop).map_err(Failure::Failed)
    }

    /// Stops the daemon: its device is gone, the volumes are still rented.
    pub fn stop(self) {
        self.0.stop();
    }
}

/// Deletes the array with its volumes, and checks that the provider has none beside its members before, and none afterwards.
///
/// # Errors
/// If there are others, or some are left.
pub fn delete(plan: &ArrayPlan, mode: Mode, export: Export, layout: &Layout) -> Result<(), Failure> {
    expect_volumes(layout, plan.members(mode) as usize, "before the array is deleted")?;
    let arrays = OfflineArrays::start(config(plan, mode, export, layout, Held::ToNothing)?).map_err(Failure::Failed)?;
    arrays.handle(&Request::ArrayDelete { name: NAME.to_owned() }).map_err(Failure::Failed)?;
    drop(arrays);
    expect_volumes(layout, 0, "after the array was deleted")
}

/// So many volumes are rented for the array.
fn expect_volumes(layout: &Layout, expected: usize, when: &str) -> Result<(), Failure> {
    let directory = layout.volumes();
    let provider = LocalConfig::in_directory(&directory).open(None);
    let provider = provider.doing(|| format!("cannot ask the provider in {}", directory.display()))?;
    let found = provider.list(surgetank_provider::tag::DEVICE, &format!("array:{NAME}"));
    let found = found.doing(|| "cannot list volumes".to_owned())?.len();
    if found == expected {
        return Ok(());
    }
    Err(Failure::Failed(format!("{found} volumes are rented {when}, and {expected} should be")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_valid() {
        let directory = tempfile::tempdir().unwrap();
        for plan in [ArrayPlan::standard(1).unwrap(), ArrayPlan::quick(1).unwrap()] {
            for mode in Mode::ALL {
                let layout = Layout::new(directory.path(), mode.name());
                let config = config(&plan, mode, Export::Fuse, &layout, Held::ToCredits).unwrap();
                let array = &config.arrays[NAME];
                assert_eq!((array.members, array.member_size), (plan.members(mode), plan.size(mode)));
                assert_eq!((&array.credits, array.throttle), (&plan.credits(mode), true));
                assert_eq!(array.copy_rate, Some(plan.copy_rate()));
            }
        }
    }
}
