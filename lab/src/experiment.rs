//! Measuring in one guest that rents its volumes from the host: an order goes in, samples come out, one a line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use surgetank_model::{Bandwidth, Bytes};

use crate::flags::name;
use crate::host::Lab;
use crate::inside::GuestJob;
use crate::interrupt::Interrupt;
use crate::plan::{Disk, Plan};
use crate::samples;
use crate::service::{Limits, Provisioning};

/// A guest that measures.
pub struct Experiment {
    pub job: GuestJob,
    pub memory: Bytes,
    pub disks: Vec<Disk>,
    /// What QEMU holds the volumes that it rents to.
    pub fast: Limits,
    /// Volumes that it may have attached at once.
    pub ports: u32,
    /// How long it may take.
    pub timeout: Duration,
}

impl Experiment {
    /// A guest of 1 GiB and eight ports, which may take a day.
    pub fn new(job: GuestJob, disks: Vec<Disk>, fast: Bandwidth) -> Self {
        let (memory, timeout) = (Bytes::from_gib(1), Duration::from_secs(24 * 3600));
        Self { job, memory, disks, fast: fast.into(), ports: 8, timeout }
    }

    /// Measures what is ordered (`order` is told where volumes are rented). Samples are in the directory as soon as they
    /// are taken.
    pub fn run<O: Serialize>(
        self,
        interrupt: &Interrupt,
        out: &Path,
        order: impl FnOnce(String) -> anyhow::Result<O>,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let lab = Lab::open().context("no guest can be booted here")?;
        // What the guest writes lies beside what is kept of it, so that both can be one file.
        let results = tempfile::tempdir_in(out).with_context(|| format!("cannot write to {}", out.display()))?;
        let volumes = lab.directory().context("cannot make a directory for volumes")?;
        let qmp = volumes.path().join("qmp.socket");
        let service = Provisioning::start(&qmp, volumes.path(), &results.path().join("token"), self.fast)?;
        let script = self.job.script(&order(service.url.clone())?, results.path())?;
        samples::begin(results.path())?;
        let plan = Plan {
            memory: self.memory,
            results: Some(results.path().to_owned()),
            qmp: Some(qmp),
            echo: true,
            timeout: self.timeout,
            disks: self.disks,
            ports: self.ports,
            ..Plan::new(&name(self.job), script)
        };
        let mut guest = plan.boot(&lab, interrupt)?;
        samples::keep(out, results.path())?;
        let outcome = guest.wait(interrupt)?;
        if !outcome.passed() {
            bail!("the guest failed: {}", outcome.describe());
        }
        Ok(())
    }
}
