//! What the demo of arrays runs: volumes of the catalog's gp2 with all rates, times and sizes divided, so that credits end within
//! seconds and every ratio of the original holds: burst to baseline, copy to credits, what is asked for to what is given.

use std::time::Duration;

use surgetank_model::volume_type::{Credits, IopsBySize, Performance};
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, VolumeType};
use surgetank_policy::rotation::{self, Copying, Way};
use surgetank_provider::LocalType;
use surgetank_report::Failure;

use crate::content::BLOCK;
use crate::host::Export;

/// The unscaled setting: 100 GiB on ten members, which PGA20 rotates as well.
mod original {
    /// The catalog's name of the members' type.
    pub const VOLUME_TYPE: (&str, &str) = ("aws", "gp2");
    /// Members of the array.
    pub const MEMBERS: u32 = 10;
    /// Size of a member, GiB.
    pub const MEMBER_GIB: u64 = 10;
    /// What is asked of all volumes together: eight tenths of what ten of them burst to, so that a copy has room beside it.
    pub const DEMAND_IOPS: u64 = 24_000;
    /// How fast a member is copied, MiB/s.
    pub const COPY_MIB_S: u64 = 80;
    /// The application's files, of the capacity.
    pub const USED_SHARE: f64 = 0.625;
    /// Share of writes among the requests.
    pub const WRITE_SHARE: f64 = 0.5;
}

/// How many requests are in flight at most, over a file system.
const WORKERS: u32 = 64;
/// The same over NBD, where each needs a connection of its own and a server has few for one user.
const WORKERS_NBD: u32 = 16;
/// Bytes of one request.
pub const REQUEST: Bytes = Bytes::new(BLOCK as u64);

/// A volume of each mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// One volume with the capacity of the array.
    Single,
    /// The array, whose members stay.
    Array,
    /// The array, whose members are replaced before their credits end.
    Rotated,
}

impl Mode {
    /// In the order of reports.
    pub const ALL: [Self; 3] = [Self::Single, Self::Array, Self::Rotated];

    /// As reports and directories name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Array => "array",
            Self::Rotated => "rotated",
        }
    }
}

/// Everything that a run does, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayPlan {
    /// The type that the volumes stand for.
    pub volume_type: VolumeType,
    /// Rates are those of the original divided by this.
    pub rate_scale: u32,
    /// Times are those of the original divided by this.
    pub time_scale: u32,
    /// Sizes are those of the original divided by this.
    pub size_scale: u32,
    /// For how long requests are made.
    pub run: Duration,
    /// Of the files' content and of what is accessed.
    pub seed: u64,
}

impl ArrayPlan {
    /// The default run: credits carry a member for 20 s, about two minutes with preparation and verification.
    ///
    /// # Errors
    /// The catalog does not know the type.
    pub fn standard(seed: u64) -> Result<Self, Failure> {
        Self::scaled((120, 320), Duration::from_secs(80), seed)
    }

    /// The quick run: credits carry a member for 12 s, about forty seconds in all.
    ///
    /// # Errors
    /// The catalog does not know the type.
    pub fn quick(seed: u64) -> Result<Self, Failure> {
        Self::scaled((200, 640), Duration::from_secs(25), seed)
    }

    fn scaled((time_scale, size_scale): (u32, u32), run: Duration, seed: u64) -> Result<Self, Failure> {
        let (provider, name) = original::VOLUME_TYPE;
        let volume_type = Catalog::builtin().find(provider, name).cloned();
        let volume_type =
            volume_type.ok_or_else(|| Failure::Failed(format!("the catalog has no {provider}/{name}")))?;
        Ok(Self { volume_type, rate_scale: 20, time_scale, size_scale, run, seed })
    }

    /// Members of a mode's volume.
    #[must_use]
    pub const fn members(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Single => 1,
            Mode::Array | Mode::Rotated => original::MEMBERS,
        }
    }

    /// Size of each of them, unscaled.
    #[must_use]
    pub const fn original_size(&self, mode: Mode) -> Bytes {
        Bytes::from_gib(original::MEMBER_GIB * (original::MEMBERS / self.members(mode)) as u64)
    }

    /// Size of each of them.
    #[must_use]
    pub fn size(&self, mode: Mode) -> Bytes {
        Bytes::new(self.original_size(mode).get() / u64::from(self.size_scale))
    }

    /// Requests per second that are made of each mode, if they are served.
    #[must_use]
    pub fn demand(&self) -> Iops {
        Iops::new(original::DEMAND_IOPS / u64::from(self.rate_scale))
    }

    /// The same, unscaled.
    #[must_use]
    pub const fn original_demand(&self) -> Iops {
        Iops::new(original::DEMAND_IOPS)
    }

    /// Share of writes among the requests.
    #[must_use]
    pub const fn write_share(&self) -> f64 {
        original::WRITE_SHARE
    }

    /// Bytes a second, which have the scales of sizes and of times.
    fn scaled_bandwidth(&self, original: Bandwidth) -> Bandwidth {
        Bandwidth::new(original.get() * u64::from(self.time_scale) / u64::from(self.size_scale))
    }

    /// How fast a member is copied to its successor.
    #[must_use]
    pub fn copy_rate(&self) -> Bandwidth {
        self.scaled_bandwidth(Bandwidth::from_mib_s(original::COPY_MIB_S))
    }

    /// Requests in flight at most, each with a file of its own.
    #[must_use]
    pub const fn workers(&self, export: Export) -> u32 {
        match export {
            Export::Fuse => WORKERS,
            Export::Nbd => WORKERS_NBD,
        }
    }

    /// Bytes of all files of a mode together.
    #[must_use]
    pub fn data(&self) -> u64 {
        let used = self.size(Mode::Single).get() as f64 * original::USED_SHARE;
        let grain = u64::from(WORKERS) * BLOCK as u64;
        used as u64 / grain * grain
    }

    /// The type of all volumes, as the provider of files has it.
    #[must_use]
    pub fn local_type(&self) -> LocalType {
        let limits = self.volume_type.limits_at(self.original_size(Mode::Array));
        let bandwidth = limits.bandwidth.map_or(Bandwidth::from_mib_s(128), |rate| self.scaled_bandwidth(rate));
        let mut scaled = LocalType::with_bandwidth(bandwidth);
        let rate = |iops: Iops| Iops::new(iops.get() / u64::from(self.rate_scale));
        if let Performance::IopsCredits { baseline, burst, bucket, .. } = &self.volume_type.performance {
            // A scaled GiB stands for so many.
            let per_gib = |rate: f64| rate * f64::from(self.size_scale) / f64::from(self.rate_scale);
            let baseline = IopsBySize {
                per_gib: baseline.per_gib.map(per_gib),
                min: baseline.min.map(rate),
                max: baseline.max.map(rate),
            };
            let bucket = bucket / (u64::from(self.rate_scale) * u64::from(self.time_scale));
            scaled.iops = Some(rate(*burst));
            scaled.iops_credits = Some(surgetank_provider::IopsCredits { baseline, bucket });
        }
        scaled
    }

    /// The burst credits of a mode's volumes.
    #[must_use]
    pub fn credits(&self, mode: Mode) -> Vec<Credits> {
        self.local_type().credits_at(self.size(mode))
    }

    /// How the rotation sees the array.
    #[must_use]
    pub fn rotation(&self) -> rotation::Config {
        let mode = Mode::Rotated;
        let copy = Copying { rate: self.copy_rate(), io_size: Bytes::from_mib(1) };
        let local = self.local_type();
        let limits = surgetank_model::Limits { bandwidth: Some(local.bandwidth), iops: local.iops };
        rotation::Config {
            credits: self.credits(mode),
            // A request of a local volume costs one credit, whatever its size.
            io_unit: None,
            limits,
            setup: Duration::from_millis(200),
            removal: Duration::from_millis(200),
            seed: self.seed,
            ..rotation::Config::of(&self.volume_type, self.members(mode), self.size(mode), Way::Staggered, copy)
        }
    }

    /// Disk space that a run needs at most: all volumes of all modes, which reserve it, and those that replace others.
    #[must_use]
    pub fn disk_space(&self) -> u64 {
        let modes: u64 = Mode::ALL.iter().map(|mode| self.size(*mode).get() * u64::from(self.members(*mode))).sum();
        modes + 4 * self.size(Mode::Rotated).get()
    }

    /// The run in the size of the original, as a scenario for `simulate`.
    #[must_use]
    pub fn scenario(&self) -> String {
        format!(
            "# What surgetank demo --array ran, in the size that it stands for: surgetank simulate takes this file.\n\n\
             [array]\nvolume_type = \"{key}\"\nmembers = {members}\nmember_size = \"{size}\"\nrotate = \"staggered\"\n\
             copy_rate = \"{copy} MiB/s\"\ncopy_io_size = \"256 KiB\"\n\n\
             [workload]\ndemand = \"{demand}\"\nrequest = \"{request}\"\nwrite_share = {writes}\nduration = \"{duration} s\"\n\
             used = \"{used} GiB\"\n",
            key = self.volume_type.key(),
            members = self.members(Mode::Array),
            size = self.original_size(Mode::Array),
            copy = original::COPY_MIB_S,
            demand = self.original_demand(),
            request = REQUEST,
            writes = self.write_share(),
            duration = self.run.as_secs() * u64::from(self.time_scale),
            used = self.original_size(Mode::Single).as_gib() * original::USED_SHARE,
        )
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::toml_error::Source;
    use surgetank_planner::scenario::ArrayScenario;

    use super::*;

    fn plans() -> [ArrayPlan; 2] {
        [ArrayPlan::standard(1).unwrap(), ArrayPlan::quick(1).unwrap()]
    }

    #[test]
    fn ratios_are_those_of_the_catalog() {
        for plan in plans() {
            for mode in Mode::ALL {
                let original = plan.volume_type.credits_at(plan.original_size(mode)).unwrap();
                let scaled = plan.credits(mode)[0];
                let ratio = |credits: Credits| credits.burst_per_s as f64 / credits.baseline_per_s as f64;
                assert!((ratio(original) / ratio(scaled) - 1.0).abs() < 0.01, "{original:?} {scaled:?}");
                let lasts_s = |credits: Credits| credits.burst_time().unwrap().as_secs_f64();
                let times = lasts_s(original) / lasts_s(scaled) / f64::from(plan.time_scale);
                assert!((times - 1.0).abs() < 0.01, "{times}");
            }
            assert_eq!(plan.size(Mode::Single).get(), plan.size(Mode::Array).get() * 10);
            assert!(plan.data() < plan.size(Mode::Single).get() * 8 / 10);
            assert_eq!(plan.data() % u64::from(WORKERS * 4096), 0);
        }
    }

    #[test]
    fn members_can_be_replaced_before_their_credits_end() {
        for plan in plans() {
            let holds = Bytes::new(plan.data() / u64::from(plan.members(Mode::Rotated)));
            assert_eq!(plan.rotation().check(holds), []);
        }
    }

    #[test]
    fn the_run_is_a_scenario() {
        for plan in plans() {
            let source = Source { file: "scenario.toml".into(), text: plan.scenario() };
            let scenario = ArrayScenario::parse(&source, &Catalog::builtin()).unwrap();
            assert_eq!(scenario.array.members, 10);
            assert!((scenario.workload.requests_per_s - 24_000.0).abs() < 1e-9);
        }
    }
}
