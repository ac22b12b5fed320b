//! Measuring in one guest that rents its volumes from the host: an order goes in, samples come out, one a line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use surgetank_model::{Bandwidth, Bytes};

use crate::host::Lab;
use crate::interrupt::Interrupt;
use crate::plan::{Disk, Plan, quoted};
use crate::service::Provisioning;

/// Where the guest finds its order and leaves its samples.
const ORDER: &str = "/lab/order.json";
const SAMPLES: &str = "/lab/samples.jsonl";
/// The same for people, in the directory of the results.
const KEPT: &str = "samples.jsonl";

/// A guest that measures.
pub struct Experiment {
    /// The guest's name; it runs this program's command `inside-NAME`.
    pub name: &'static str,
    /// Its memory.
    pub memory: Bytes,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What the volumes that it rents move.
    pub fast: Bandwidth,
}

impl Experiment {
    /// Measures what is ordered (`order` is told where volumes are rented) and keeps the samples in a directory.
    ///
    /// # Errors
    /// If no guest can be booted, or it fails.
    pub fn run<O: Serialize>(self, out: &Path, order: impl FnOnce(String) -> anyhow::Result<O>) -> anyhow::Result<()> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().context("no guest can be booted here")?;
        let results = tempfile::tempdir().context("cannot make a directory for the results")?;
        let qmp = results.path().join("qmp.socket");
        let volumes = lab.directory().context("cannot make a directory for volumes")?;
        let service = Provisioning::start(&qmp, volumes.path(), &results.path().join("token"), self.fast)?;
        let order = order(service.url.clone())?;
        fs::write(results.path().join("order.json"), serde_json::to_vec_pretty(&order)?)?;
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let inside = format!("inside-{}", self.name);
        let words = [program.to_string_lossy().as_ref(), &inside, ORDER, SAMPLES].map(str::to_owned);
        let plan = Plan {
            memory: self.memory,
            results: Some(results.path().to_owned()),
            qmp: Some(qmp),
            echo: true,
            timeout: Duration::from_secs(24 * 3600),
            disks: self.disks,
            ..Plan::new(self.name, quoted(&words))
        };
        let outcome = plan.boot(&lab, &interrupt)?.wait(&interrupt);
        // What was measured before a failure or Ctrl-C is kept: hours may be in it. Samples of an earlier run stay if
        // there are none; a line that is not whole is no sample.
        let samples = fs::read_to_string(results.path().join(KEPT)).unwrap_or_default();
        if let Some((whole, _)) = samples.rsplit_once('\n') {
            fs::write(out.join(KEPT), format!("{whole}\n"))?;
        }
        let outcome = outcome?;
        if !outcome.passed() {
            bail!("the guest failed: {}", outcome.describe());
        }
        Ok(())
    }
}

/// The samples that are kept in a directory.
///
/// # Errors
/// If they cannot be read.
pub fn samples<T: DeserializeOwned>(out: &Path) -> anyhow::Result<Vec<T>> {
    let kept = out.join(KEPT);
    let text = fs::read_to_string(&kept).with_context(|| format!("cannot read {}", kept.display()))?;
    text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("cannot read the samples")
}
