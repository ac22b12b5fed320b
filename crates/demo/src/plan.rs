//! What the demo runs: the papers' CM1 setting, scaled down in size and time by one factor, so that every ratio of
//! the original holds: burst to rates, compute to burst, volumes to bursts, latencies and delays to bursts.

use std::path::PathBuf;
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::Mode;

use crate::content::FileContent;

/// The unscaled setting (NRK15, table II and section IV-A, for one of its 32 VMs).
mod cm1 {
    /// Size of the backing volume, MiB.
    pub const BACKING_MIB: u64 = 50 << 10;
    /// Initial dump, MiB.
    pub const INITIAL_DUMP_MIB: u64 = 5 << 10;
    /// One checkpoint, MiB.
    pub const CHECKPOINT_MIB: u64 = 4 << 10;
    /// Checkpoints.
    pub const CHECKPOINTS: u32 = 3;
    /// Compute time over all iterations, seconds.
    pub const COMPUTE_S: f64 = 1100.0;
    /// Caching volume of the first boost, MiB.
    pub const INITIAL_CACHE_MIB: u64 = 10 << 10;
    /// Sizes of caching volumes are multiples of this, MiB.
    pub const GRAIN_MIB: u64 = 1 << 10;
    /// Backing bandwidth, MiB/s.
    pub const BACKING_MIB_S: u64 = 33;
    /// Caching bandwidth, MiB/s.
    pub const CACHING_MIB_S: u64 = 128;
    /// To rent and attach a volume, seconds: 4 s to make it (99th percentile) and 4 s to attach it (the slow end), by
    /// the Kubernetes EBS driver's figures. The papers' bursts lost 12 to 17 s, up to 5 s of them to notice the burst.
    pub const RENT_AND_ATTACH_S: f64 = 8.0;
    /// Inactivity delay, seconds.
    pub const INACTIVITY_S: f64 = 30.0;
    /// Sampling interval, seconds.
    pub const SAMPLING_S: f64 = 5.0;
}

/// A write phase: one file for each writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// Before the clock of `completion_s` starts.
    Initial,
    /// The n-th checkpoint, from 1.
    Checkpoint(u32),
}

/// Everything that a run does, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sizes and times are those of the papers divided by this.
    pub scale: u32,
    /// Size of every backing volume.
    pub backing_size: Bytes,
    /// Of the slow volumes.
    pub backing_bandwidth: Bandwidth,
    /// Of the fast volumes.
    pub caching_bandwidth: Bandwidth,
    /// Bytes of the initial dump, all writers together.
    pub initial_dump: Bytes,
    /// Bytes of one checkpoint, all writers together.
    pub checkpoint: Bytes,
    /// Number of checkpoints.
    pub checkpoints: u32,
    /// Compute time before each checkpoint.
    pub compute: Duration,
    /// Writer processes.
    pub writers: u32,
    /// Caching volume of the first boost.
    pub initial_cache: Bytes,
    /// Sizes of caching volumes are multiples of this.
    pub grain: Bytes,
    /// Time that the provider takes to rent a volume; attaching takes as long again.
    pub provider_latency: Duration,
    /// Inactivity delay of the controller.
    pub inactivity_delay: Duration,
    /// Sampling interval of the controller.
    pub sampling: Duration,
    /// Share of the backing bandwidth above which a boost starts.
    pub utilization_threshold: f64,
    /// Of the files' content.
    pub seed: u64,
}

impl Plan {
    /// The default run: a sixteenth of CM1, about two minutes.
    #[must_use]
    pub fn standard(seed: u64) -> Self {
        Self::scaled(16, seed)
    }

    /// The quick run: a forty-eighth of CM1, about forty seconds.
    #[must_use]
    pub fn quick(seed: u64) -> Self {
        Self::scaled(48, seed)
    }

    fn scaled(scale: u32, seed: u64) -> Self {
        let writers = 8;
        // Whole MiB for each writer, so that every write is one full request.
        let size = |mib: u64| Bytes::from_mib((mib / u64::from(scale)).next_multiple_of(u64::from(writers)));
        let time = |seconds: f64| Duration::from_secs_f64(seconds / f64::from(scale));
        Self {
            scale,
            backing_size: size(cm1::BACKING_MIB),
            backing_bandwidth: Bandwidth::from_mib_s(cm1::BACKING_MIB_S),
            caching_bandwidth: Bandwidth::from_mib_s(cm1::CACHING_MIB_S),
            initial_dump: size(cm1::INITIAL_DUMP_MIB),
            checkpoint: size(cm1::CHECKPOINT_MIB),
            checkpoints: cm1::CHECKPOINTS,
            compute: time(cm1::COMPUTE_S / f64::from(cm1::CHECKPOINTS)),
            writers,
            initial_cache: size(cm1::INITIAL_CACHE_MIB),
            grain: size(cm1::GRAIN_MIB),
            provider_latency: time(cm1::RENT_AND_ATTACH_S / 2.0),
            inactivity_delay: time(cm1::INACTIVITY_S),
            sampling: time(cm1::SAMPLING_S),
            utilization_threshold: 0.30,
            seed,
        }
    }

    /// The write phases in order.
    pub fn dumps(&self) -> impl Iterator<Item = Dump> {
        std::iter::once(Dump::Initial).chain((1..=self.checkpoints).map(Dump::Checkpoint))
    }

    /// Bytes of one writer's file in this phase.
    #[must_use]
    pub fn file_size(&self, dump: Dump) -> u64 {
        let total = match dump {
            Dump::Initial => self.initial_dump,
            Dump::Checkpoint(_) => self.checkpoint,
        };
        total.get() / u64::from(self.writers)
    }

    /// Bytes that one mode writes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.initial_dump.get() + u64::from(self.checkpoints) * self.checkpoint.get()
    }

    /// The files of a phase in one mode, with where they lie relative to the file system's root and, for runs
    /// without a file system, their first byte on the device.
    #[must_use]
    pub fn files(&self, mode: Mode, dump: Dump) -> Vec<PlannedFile> {
        let (number, directory) = match dump {
            Dump::Initial => (0, "initial".to_owned()),
            Dump::Checkpoint(number) => (number, format!("checkpoint-{number}")),
        };
        let size = self.file_size(dump);
        let before = match dump {
            Dump::Initial => 0,
            Dump::Checkpoint(number) => self.initial_dump.get() + u64::from(number - 1) * self.checkpoint.get(),
        };
        (0..self.writers)
            .map(|writer| PlannedFile {
                path: PathBuf::from(&directory).join(format!("writer-{writer}.dat")),
                device_offset: before + u64::from(writer) * size,
                size,
                content: FileContent {
                    seed: self.seed,
                    file: (mode as u64) << 32 | u64::from(number) << 16 | u64::from(writer),
                },
                // Half of the writers bypass the page cache, half write through it and fsync: applications do both.
                direct: writer % 2 == 0,
            })
            .collect()
    }

    /// The same run as a scenario for `predict` and `simulate`.
    #[must_use]
    pub fn scenario(&self, policy: &str) -> String {
        let mib = |bytes: Bytes| format!("\"{} MiB\"", bytes.get() >> 20);
        let seconds = |time: Duration| time.as_secs_f64();
        format!(
            "# What surgetank demo ran: surgetank simulate and surgetank predict take this file.\n\n\
             [app]\nvms = 1\ncompute = \"{compute} s\"\ncheckpoints = {checkpoints}\n\
             checkpoint_size = {checkpoint}\ninitial_dump = {initial}\n\n\
             [backing]\nsize = {backing}\nbandwidth = \"{slow}\"\n\n\
             [caching]\nbandwidth = \"{fast}\"\ninitial_cache = {cache}\n\n\
             [policy]\nname = \"{policy}\"\nutilization_threshold = {threshold:.2}\n\
             inactivity_delay = \"{inactivity} s\"\nsampling = \"{sampling} s\"\nsize_grain = {grain}\n\n\
             [provider]\ncreate_s = {latency}\nattach_s = {latency}\ndetach_s = {latency}\ndelete_s = 0\n",
            compute = seconds(self.compute) * f64::from(self.checkpoints),
            checkpoints = self.checkpoints,
            checkpoint = mib(self.checkpoint),
            initial = mib(self.initial_dump),
            backing = mib(self.backing_size),
            slow = self.backing_bandwidth,
            fast = self.caching_bandwidth,
            cache = mib(self.initial_cache),
            threshold = self.utilization_threshold,
            inactivity = seconds(self.inactivity_delay),
            sampling = seconds(self.sampling),
            grain = mib(self.grain),
            latency = seconds(self.provider_latency),
        )
    }

    /// Disk space that a run needs at most: three backing volumes' data, file system metadata, and the cache.
    #[must_use]
    pub fn disk_space(&self) -> u64 {
        let modes = Mode::ALL.len() as u64;
        modes * (self.total_bytes() + self.total_bytes() / 8) + self.initial_cache.get()
    }
}

/// A file that a writer process makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Relative to the file system's root.
    pub path: PathBuf,
    /// First byte on the device, when there is no file system.
    pub device_offset: u64,
    /// Bytes.
    pub size: u64,
    /// What is in it.
    pub content: FileContent,
    /// O_DIRECT, or buffered with fsync.
    pub direct: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_papers() {
        for plan in [Plan::standard(1), Plan::quick(1)] {
            let bursts = plan.checkpoint.get() as f64 / plan.backing_size.get() as f64;
            assert!((bursts / 0.08 - 1.0).abs() < 0.05, "{bursts}");
            let compute = plan.compute.as_secs_f64() * 3.0;
            let absorb = 3.0 * plan.checkpoint.as_mib() / plan.caching_bandwidth.as_mib_s();
            assert!((absorb / compute / (96.0 / 1100.0) - 1.0).abs() < 0.05, "{absorb} {compute}");
            assert_eq!(plan.caching_bandwidth.get() * 33, plan.backing_bandwidth.get() * 128);
        }
    }

    #[test]
    fn the_run_is_a_scenario() {
        for plan in [Plan::standard(1), Plan::quick(1)] {
            let text = plan.scenario("adaptive");
            let catalog = surgetank_model::Catalog::builtin();
            let source = surgetank_model::toml_error::Source { file: "scenario.toml".into(), text };
            let scenario = surgetank_planner::scenario::Scenario::parse(&source, &catalog).unwrap();
            let app = scenario.app.unwrap();
            assert_eq!((app.checkpoint_size, app.initial_dump), (plan.checkpoint, plan.initial_dump));
            assert_eq!(scenario.backing.size, plan.backing_size);
            let apart = app.compute.as_secs_f64() - 3.0 * plan.compute.as_secs_f64();
            assert!(apart.abs() < 1e-6, "{apart}");
        }
    }

    #[test]
    fn files_do_not_overlap_and_fit() {
        let plan = Plan::quick(1);
        let files: Vec<_> = plan.dumps().flat_map(|dump| plan.files(Mode::Elastic, dump)).collect();
        assert_eq!(files.iter().map(|file| file.size).sum::<u64>(), plan.total_bytes());
        for pair in files.windows(2) {
            assert_eq!(pair[0].device_offset + pair[0].size, pair[1].device_offset);
        }
        assert!(files.iter().all(|file| file.size % (1 << 20) == 0));
        assert!(plan.total_bytes() < plan.backing_size.get() * 8 / 10);
        let numbers: std::collections::HashSet<_> = files.iter().map(|file| file.content.file).collect();
        assert_eq!(numbers.len(), files.len());
    }
}
