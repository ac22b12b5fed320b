//! At home under systemd: a Debian guest whose user does what the README says, and what happens to it then: kills, reboots,
//! power cuts, disks that are missing or mounted by hand.

mod guest;
mod image;
mod readme;
mod report;
mod scenarios;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use surgetank_model::{Bandwidth, Bytes};

use self::guest::Machine;
use self::image::Image;
use self::report::Report;
use self::scenarios::User;
use crate::flags::absolute;
use crate::host::{Lab, Unavailable};
use crate::interrupt::Interrupt;
use crate::output::{say, write};
use crate::plan::{Disk, Media};
use crate::product::{Product, tree};

/// Flags of `systemd`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Install, kill and reboot, and nothing else
    #[arg(long)]
    short: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Where the report and the consoles go
    #[arg(long, default_value = "bench-out/systemd", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    product: Product,
}

/// Those of the README's example, which has a cache of 10 GiB, and three more: size in MiB, rate in MiB/s.
const DISKS: [(&str, u64, u64); 5] =
    [("data", 12 * 1024, 33), ("nvme", 16 * 1024, 128), ("tree", 1024, 33), ("group", 1024, 33), ("hand", 512, 33)];

impl Arguments {
    /// Runs every scenario, and reports; whether all did well.
    ///
    /// # Errors
    /// If the guest fails in a way that is no result.
    pub fn run(&self) -> anyhow::Result<bool> {
        let interrupt = Interrupt::install()?;
        let Some(report) = run(&interrupt, &self.product.binary()?, &self.out, self.short)? else { return Ok(true) };
        if self.json {
            surgetank_report::output::print_json(&report).map_err(|failure| anyhow::anyhow!("{failure}"))?;
        }
        Ok(report.good())
    }
}

fn run(interrupt: &Interrupt, surgetank: &Path, out: &Path, short: bool) -> anyhow::Result<Option<Report>> {
    let opened = Lab::open().and_then(|lab| {
        let image = Image::prepare(&lab, interrupt).map_err(|error| Unavailable(format!("{error:#}")))?;
        Ok((lab, image))
    });
    interrupt.check()?;
    let (lab, image) = match opened {
        Ok(found) => found,
        Err(Unavailable(reason)) => {
            say(&format!("skipped: no Debian guest can be booted here: {reason}"));
            return Ok(None);
        }
    };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let work = lab.directory()?;
    let file = |name: &str| work.path().join(format!("{name}.disk"));
    image.copy(&file("root"))?;
    image::make_source(work.path(), &file("source"), tree(), surgetank)?;
    let own = ["root", "source"].map(|name| (name, None));
    for (name, mib, _) in DISKS {
        match name {
            "data" | "nvme" => image::make_ext4(&file(name), name, Bytes::from_mib(mib), None)?,
            _ => std::fs::File::create(file(name))?.set_len(Bytes::from_mib(mib).get())?,
        }
    }
    let disks = own.into_iter().chain(DISKS.map(|(name, _, mib_s)| (name, Some(mib_s))));
    let disks = disks.map(|(name, mib_s)| Disk {
        bandwidth: mib_s.map(Bandwidth::from_mib_s),
        media: Media::File(file(name)),
        ..Disk::new(name, Bytes::ZERO)
    });
    let machine = Machine::new(&lab, interrupt, &image, out, disks.collect());
    let mut report = Report::default();
    let ended = User::new(machine, &mut report).run(short);
    write(out, "systemd", &report.markdown(), &report)?;
    // What ended it early is a step of the report, but for an interruption.
    interrupt.check()?;
    if report.good() {
        ended?;
    }
    Ok(Some(report))
}
