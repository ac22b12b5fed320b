//! Measuring in one guest that rents its volumes from the host: an order goes in, samples come out, one a line.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use surgetank_model::{Bandwidth, Bytes};

use crate::flags::name;
use crate::host::Lab;
use crate::inside::Job;
use crate::interrupt::Interrupt;
use crate::messages::SHARE;
use crate::plan::{Disk, Plan};
use crate::service::Provisioning;

/// The samples, in the directory of the results.
const KEPT: &str = "samples.jsonl";
/// Those of the run before.
const KEPT_BEFORE: &str = "samples.old.jsonl";

/// A guest that measures.
pub struct Experiment {
    /// What it measures.
    pub job: Job,
    /// Its memory.
    pub memory: Bytes,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What the volumes that it rents move.
    pub fast: Bandwidth,
}

impl Experiment {
    /// Measures what is ordered (`order` is told where volumes are rented). Samples are in the directory as soon as they
    /// are taken.
    pub fn run<O: Serialize>(
        self,
        interrupt: &Interrupt,
        out: &Path,
        order: impl FnOnce(String) -> anyhow::Result<O>,
    ) -> anyhow::Result<()> {
        let lab = Lab::open().context("no guest can be booted here")?;
        // What the guest writes lies beside what is kept of it, so that both can be one file.
        let results = tempfile::tempdir_in(out).with_context(|| format!("cannot write to {}", out.display()))?;
        let volumes = lab.directory().context("cannot make a directory for volumes")?;
        let qmp = volumes.path().join("qmp.socket");
        let service = Provisioning::start(&qmp, volumes.path(), &results.path().join("token"), self.fast)?;
        let script = self.job.script(&order(service.url.clone())?, results.path())?;
        fs::write(results.path().join(KEPT), "")?;
        let plan = Plan {
            memory: self.memory,
            results: Some(results.path().to_owned()),
            qmp: Some(qmp),
            echo: true,
            timeout: Duration::from_secs(24 * 3600),
            disks: self.disks,
            ..Plan::new(&name(self.job), script)
        };
        let mut guest = plan.boot(&lab, interrupt)?;
        keep(out, results.path())?;
        let outcome = guest.wait(interrupt)?;
        if !outcome.passed() {
            bail!("the guest failed: {}", outcome.describe());
        }
        Ok(())
    }
}

/// Hours may be in the samples: they are kept while they are taken, and those of the run before beside them.
fn keep(out: &Path, results: &Path) -> anyhow::Result<()> {
    let (kept, before) = (out.join(KEPT), out.join(KEPT_BEFORE));
    if fs::metadata(&kept).is_ok_and(|samples| samples.len() > 0) {
        fs::rename(&kept, &before).with_context(|| format!("cannot write {}", before.display()))?;
    }
    let _ = fs::remove_file(&kept);
    fs::hard_link(results.join(KEPT), &kept).with_context(|| format!("cannot make {}", kept.display()))
}

/// The samples that are kept in a directory. A last line that is not whole is no sample.
pub fn samples<T: DeserializeOwned>(out: &Path) -> anyhow::Result<Vec<T>> {
    let kept = out.join(KEPT);
    let text = fs::read_to_string(&kept).with_context(|| format!("cannot read {}", kept.display()))?;
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(serde_json::from_str).collect::<Result<_, _>>().context("cannot read the samples")
}

/// Adds a sample to those that the host keeps, in the guest.
pub fn keep_sample(sample: &impl Serialize) -> anyhow::Result<()> {
    let file = fs::File::options().append(true).open(Path::new(SHARE).join(KEPT));
    let line = serde_json::to_string(sample)? + "\n";
    file.and_then(|mut file| file.write_all(line.as_bytes())).context("cannot write a sample")
}
