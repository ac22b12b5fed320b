//! A volume in flows: what it can serve at a moment, and what that costs it.

use std::time::Duration;

use surgetank_model::volume_type::{CreditUnit, Performance};
use surgetank_model::{Balance, Bytes, Limits, VolumeType};
use surgetank_policy::rotation::Served;

/// I/O, at once or per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations.
    pub operations: f64,
    /// The same as the provider counts them: a large one is several.
    pub counted: f64,
    /// Bytes.
    pub bytes: f64,
}

impl Work {
    /// So much of it.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { operations: self.operations * factor, counted: self.counted * factor, bytes: self.bytes * factor }
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            counted: self.counted + other.counted,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// What all volumes of a type and size have.
#[derive(Clone, Debug)]
pub struct Kind {
    limits: Limits,
    io_unit: Option<Bytes>,
    fresh: Vec<Balance>,
}

impl Kind {
    /// Of this type and size.
    #[must_use]
    pub fn new(volume_type: &VolumeType, size: Bytes) -> Self {
        let io_unit = match &volume_type.performance {
            Performance::IopsCredits { io_unit, .. } => Some(*io_unit),
            _ => None,
        };
        Self { limits: volume_type.limits_at(size), io_unit, fresh: Balance::of_new(volume_type, size) }
    }

    /// So many bytes in operations of a size.
    #[must_use]
    pub fn work(&self, bytes: f64, io_size: Bytes) -> Work {
        let io = io_size.get().max(1) as f64;
        let operations = bytes / io;
        let each = self.io_unit.map_or(1.0, |unit| (io / unit.get().max(1) as f64).max(1.0));
        Work { operations, counted: operations * each, bytes }
    }

    /// A new volume.
    #[must_use]
    pub fn member(&self) -> Member {
        Member { buckets: self.fresh.clone(), served: Work::default() }
    }

    /// What it gives for ever, of work such as this per second.
    #[must_use]
    pub fn sustained(&self, work: Work) -> f64 {
        let mut member = self.member();
        member.empty();
        self.headroom(&member, work, Work::default(), Duration::from_secs(1))
    }

    /// How many times a second a member can do `each` in the time to come, beside what is `taken` per second.
    #[must_use]
    pub fn headroom(&self, member: &Member, each: Work, taken: Work, over: Duration) -> f64 {
        let mut most = f64::INFINITY;
        let mut limit = |limit: f64, each: f64, taken: f64| {
            if each > 0.0 {
                most = most.min((limit - taken).max(0.0) / each);
            }
        };
        if let Some(iops) = self.limits.iops {
            limit(iops.get() as f64, each.counted, taken.counted);
        }
        if let Some(bandwidth) = self.limits.bandwidth {
            limit(bandwidth.get() as f64, each.bytes, taken.bytes);
        }
        for bucket in &member.buckets {
            let affords = bucket.affords(over.as_secs_f64());
            match bucket.credits().unit {
                CreditUnit::Operations => limit(affords, each.counted, taken.counted),
                CreditUnit::Bytes => limit(affords, each.bytes, taken.bytes),
            }
        }
        most
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Member {
    buckets: Vec<Balance>,
    /// Since this was taken last.
    served: Work,
}

impl Member {
    /// Takes all credits.
    pub fn empty(&mut self) {
        self.buckets.iter_mut().for_each(|bucket| bucket.correct(0.0));
    }

    /// Serves so much per second for a time.
    pub fn serve(&mut self, work: Work, over: Duration) {
        let seconds = over.as_secs_f64();
        let done = work.times(seconds);
        for bucket in &mut self.buckets {
            match bucket.credits().unit {
                CreditUnit::Operations => bucket.account(done.counted, seconds),
                CreditUnit::Bytes => bucket.account(done.bytes, seconds),
            }
        }
        self.served = self.served.plus(done);
    }

    /// What was served since the last call, as a policy is told.
    pub fn take_served(&mut self) -> Served {
        let Work { counted, bytes, .. } = std::mem::take(&mut self.served);
        Served { operations: counted, bytes }
    }

    /// Whether it serves only what refills: it has less than that in a second.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.level() < bucket.credits().baseline_per_s as f64)
    }

    /// The share of credits that are left, of the emptiest bucket; 1 without credits.
    #[must_use]
    pub fn credits(&self) -> f64 {
        self.buckets.iter().map(Balance::share).fold(1.0, f64::min)
    }
}
