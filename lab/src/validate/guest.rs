//! An application that sleeps and writes in a guest, on disks that QEMU throttles and plugs in.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use surgetank_model::{Bandwidth, Bytes};

use crate::experiment::Experiment;
use crate::inside::GuestJob;
use crate::inside::checkpoints::{Checkpoints, Order, SERIALS, Sample};
use crate::inside::modes::{Mode, Setting, Site, THRESHOLD};
use crate::interrupt::Interrupt;
use crate::plan::Disk;
use crate::samples;

const MODES: [Mode; 4] = [Mode::StaticSlow, Mode::StaticFast, Mode::Paper, Mode::Adaptive];
/// A quarter of the papers', which an emulated guest cannot fill through a file system.
const RATES_MIB_S: (u64, u64) = (8, 32);
/// The papers' sizes over 32, and times over 8, since disks are as much slower.
const SETTING: Setting = Setting {
    backing_mib: 1600,
    initial_mib: 320,
    grain_mib: 32,
    inactivity_s: 3.75,
    // In less than a second a mount is as much as a burst, and the first caching volume would be spent on it.
    sampling_s: 1.0,
    writeback_delay_s: 3.75,
};
const APPLICATION: Checkpoints = Checkpoints {
    dump_mib: 128,
    checkpoint_mib: 96,
    checkpoints: 3,
    // Twice a checkpoint at the slow rate and the inactivity delay, long enough for every drain: what waits for one is not
    // predicted here.
    compute_s: 27.75,
};
/// Seconds that a volume takes to be made, plugged in and found, and to be deleted, in a guest: the lab's own figures
/// (docs/measurements/2026-11-22-peers.md, attach and detach).
const ATTACH_S: f64 = 0.4;
const DETACH_S: f64 = 0.7;

/// Measures every mode. The samples stay in `out`.
pub fn measure(interrupt: &Interrupt, surgetank: PathBuf, out: &Path) -> anyhow::Result<Vec<Sample>> {
    let (slow, fast) = (Bandwidth::from_mib_s(RATES_MIB_S.0), Bandwidth::from_mib_s(RATES_MIB_S.1));
    let disk = |serial, rate| Disk::new(serial, Bytes::from_mib(SETTING.backing_mib)).throttled(rate);
    let disks = vec![disk(SERIALS[0], slow), disk(SERIALS[1], fast)];
    let experiment = Experiment { memory: Bytes::from_gib(3), ..Experiment::new(GuestJob::Validate, disks, fast) };
    experiment.run(interrupt, out, |service| {
        let site = Site { surgetank, service, rates_mib_s: RATES_MIB_S };
        Ok(Order { site, modes: MODES.to_vec(), load: (APPLICATION, SETTING) })
    })?;
    samples::read(out)
}

/// Completion in seconds, from the end of the initial dump, and cost in AGBs of a mode.
pub fn figures(samples: &[Sample], mode: Mode) -> anyhow::Result<[f64; 2]> {
    let sample = samples.iter().find(|sample| sample.mode == mode);
    let sample = sample.with_context(|| format!("the guest did not come to {}", mode.name()))?;
    let found = sample.outcome.as_ref().map_err(|error| anyhow!("{} failed: {error}", mode.name()))?;
    Ok([found.completion_s - found.work.dump_s, sample.agbs(found)])
}

/// What ran under a policy as a scenario of `surgetank simulate`: what was asked for, and nothing that was measured.
pub fn scenario(policy: &str) -> String {
    let Checkpoints { dump_mib, checkpoint_mib, checkpoints, compute_s } = APPLICATION;
    let Setting { backing_mib, initial_mib, grain_mib, inactivity_s, sampling_s, .. } = SETTING;
    let (slow, fast) = RATES_MIB_S;
    let compute_s = compute_s * f64::from(checkpoints);
    format!(
        "# What ran in the guest: surgetank simulate takes this file.\n\n\
         [app]\nvms = 1\ncompute = \"{compute_s} s\"\ncheckpoints = {checkpoints}\n\
         checkpoint_size = \"{checkpoint_mib} MiB\"\ninitial_dump = \"{dump_mib} MiB\"\n\n\
         [backing]\nsize = \"{backing_mib} MiB\"\nbandwidth = \"{slow} MiB/s\"\n\n\
         [caching]\nbandwidth = \"{fast} MiB/s\"\ninitial_cache = \"{initial_mib} MiB\"\n\n\
         [policy]\nname = \"{policy}\"\nutilization_threshold = {THRESHOLD}\ninactivity_delay = \"{inactivity_s} s\"\n\
         sampling = \"{sampling_s} s\"\nsize_grain = \"{grain_mib} MiB\"\n\n\
         [provider]\ncreate_s = 0\nattach_s = {ATTACH_S}\ndetach_s = {DETACH_S}\ndelete_s = 0\n"
    )
}
