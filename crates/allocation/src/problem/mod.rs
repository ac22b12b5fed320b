//! Who shares which caches, and what each application is promised.

mod check;

use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;

use crate::curve::MissCurve;
use crate::hull::Hull;
use crate::mlms::Surface;
use crate::plan::{Level, TOLERANCE};
use crate::planted::{Bug, planted};

pub use check::CACHE_MAX;

/// Longer than any access takes, and short enough to compute with: an hour.
pub const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// What a user describes; [`Problem::new`] checks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// How long an access takes, except for applications that have their own latencies.
    pub latencies: Latencies,
    /// What the second level holds.
    pub hierarchy: Hierarchy,
    /// First-level servers (I/O servers, hosts).
    pub level1: Vec<Server>,
    /// Second-level servers (storage servers, benefactors). None: there is one level, and no application reaches a second one.
    pub level2: Vec<Server>,
    /// Who shares them.
    pub applications: Vec<Application>,
    /// What caches are divided into: every share is a whole number of segments.
    pub segment: Bytes,
    /// How much one application's share of a level may change from one plan to the next, as a part of what it can reach
    /// there; without limit if none.
    pub change_max: Option<f64>,
}

/// How long an access takes, by what answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// A hit in the first level.
    pub level1: Duration,
    /// A hit in the second level.
    pub level2: Duration,
    /// A miss in both.
    pub disk: Duration,
}

/// What the second level holds of what the first one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Nothing: the first level demotes what it evicts (WW02), and the levels' sizes add up.
    Exclusive,
    /// All of it, as far as it has room.
    Inclusive,
}

/// A server with a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Of no other server of its level.
    pub name: String,
    /// What applications share.
    pub cache: Bytes,
}

/// Who has a share.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// Of no other application.
    pub name: String,
    /// Its first-level server.
    pub level1: String,
    /// The second-level servers that it reaches. None: it has a first level alone.
    pub level2: Vec<String>,
    /// How long its accesses take, if not as long as the problem says: its disk may be another one.
    pub latencies: Option<Latencies>,
    /// What its caches of both levels can have, if that is less than what it reaches.
    pub most: Option<[Bytes; 2]>,
    /// What its accesses wait for beside that, if they may: a queue before its disk.
    pub queue: Option<Queue>,
    /// Whether whoever enforces its shares splits them ([`crate::hull`]), and with that, what its SLO is judged by.
    pub estimate: Estimate,
    /// What it is promised.
    pub slo: Slo,
    /// What its latency depends on.
    pub model: Model,
    /// Accesses per second. Partitioned caches do not depend on it; shared ones do.
    pub accesses_per_s: f64,
    /// How much of its bound stays free because the model is an estimate, as a part of the bound:
    /// [`confidence::margin`](crate::confidence::margin) says how much. If that leaves less than the fair share's latency, an application
    /// whose SLO is above the fair share has that of both levels at least.
    pub margin: f64,
    /// For how many intervals in a row up to now its measured latency was above its bound.
    pub violations: u32,
}

/// A queue before a disk, which an application has that accesses it as fast as it answers. Where a part m of its accesses misses all caches, an
/// access takes `all`·m − `pause`, if that is longer than what its latencies come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// What an access and the pause before the next one take if all miss and the disk is always busy.
    pub all: Duration,
    /// That pause.
    pub pause: Duration,
}

impl Queue {
    /// What an access takes because of it if this part of them misses all caches, in ms; negative if nothing waits.
    pub(crate) fn latency_ms(self, misses: f64) -> f64 {
        (self.all.as_secs_f64() * misses - self.pause.as_secs_f64()) * 1e3
    }
}

/// A bound on the average latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slo {
    /// At most (1 + this) × the latency under the fair share.
    AboveFair(f64),
    /// At most this.
    Latency(Duration),
}

impl Slo {
    /// The farthest above the fair share that a promise is.
    pub const ABOVE_MAX: f64 = 1000.0;

    /// Whether it is one that can be promised.
    #[must_use]
    pub fn is_valid(self) -> bool {
        match self {
            Self::AboveFair(above) => above > 0.0 && above <= Self::ABOVE_MAX,
            Self::Latency(latency) => !latency.is_zero() && latency <= LATENCY_MAX,
        }
    }

    /// What a file says: a number, which is how far above the fair share a latency may be, or a latency with its unit. Whether that can be
    /// promised is not judged.
    ///
    /// # Errors
    /// What it is instead: one sentence.
    pub fn read(value: &toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::Float(above) => Ok(Self::AboveFair(*above)),
            toml::Value::Integer(above) => Ok(Self::AboveFair(*above as f64)),
            toml::Value::String(text) => text.parse::<Span>().map(|latency| Self::Latency(latency.0)).map_err(|error| {
                format!(
                    "{error}; an SLO without a unit is how far above the fair share a latency may be, such as 0.05, without quotes"
                )
            }),
            other => Err(format!(
                "{other} is no SLO: write how far above the fair share a latency may be, such as 0.05, or a latency, such as \"2 ms\""
            )),
        }
    }
}

/// What an application's latency depends on.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// Misses by size of a cache.
    Curve(MissCurve),
    /// Latencies that were measured at some shares, and a surface through them.
    Surface(Surface),
}

/// Why a description is no problem that can be solved: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidProblem {
    /// What of the description is wrong, so that whoever read it from a file can say where.
    pub subject: Subject,
    pub(crate) message: String,
}

/// A part of a description; servers and applications by their index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// How long accesses take.
    Latencies,
    /// The change per interval.
    ChangeMax,
    /// All servers of a level.
    Servers(Level),
    /// One of them.
    Server(Level, usize),
    /// All applications.
    Applications,
    /// What one of them says.
    Application(usize, Setting),
}

/// What an application says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Its name.
    Name,
    /// Its first-level server.
    Level1,
    /// Its second-level servers.
    Level2,
    /// What it is promised.
    Slo,
    /// How many accesses it has.
    Rate,
    /// How much of its bound stays free.
    Margin,
}

/// A checked description, with what follows from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) level1: Vec<Server>,
    pub(crate) level2: Vec<Server>,
    pub(crate) applications: Vec<Member>,
    /// At least a byte.
    pub(crate) segment: u64,
    pub(crate) change_max: Option<f64>,
}

/// An application of a problem; servers by their index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub name: String,
    pub level1: usize,
    /// Ascending.
    pub level2: Vec<usize>,
    pub latencies_ms: [f64; 3],
    pub most: Option<[Bytes; 2]>,
    pub queue: Option<Queue>,
    pub estimate: Estimate,
    pub slo: Slo,
    pub margin: f64,
    pub accesses_per_s: f64,
    pub violations: u32,
    pub model: Model,
    /// Of its curve, if it has one.
    pub hull: Option<Hull>,
    pub fair: Amount,
    pub fair_latency_ms: f64,
}

/// What one application has of both levels, as this crate computes with it; second-level servers by their index, ascending, without those of which it has
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub level1: Bytes,
    pub level2: Vec<(usize, Bytes)>,
}

impl Amount {
    /// Of all second-level servers.
    pub fn second(&self) -> Bytes {
        Bytes::new(self.level2.iter().map(|(_, bytes)| bytes.get()).sum())
    }
}

/// How a curve becomes a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// Each share is one cache.
    Whole,
    /// Shares are split in two where that misses less ([`crate::hull`]).
    Split,
}

impl Problem {
    /// Checks a description.
    ///
    /// # Errors
    /// One sentence on the first thing that is wrong with it.
    pub fn new(description: Description) -> Result<Self, InvalidProblem> {
        check::check(description)
    }

    /// Their names, in the order of the description.
    pub fn applications(&self) -> impl Iterator<Item = &str> {
        self.applications.iter().map(|member| &*member.name)
    }

    /// The hull of this application's curve, if it has a curve.
    #[must_use]
    pub fn hull(&self, application: usize) -> Option<&Hull> {
        self.applications.get(application)?.hull.as_ref()
    }

    /// This application's curve, if it has one.
    #[must_use]
    pub fn curve(&self, application: usize) -> Option<&MissCurve> {
        match &self.applications.get(application)?.model {
            Model::Curve(curve) => Some(curve),
            Model::Surface(_) => None,
        }
    }

    /// Servers of a level, in the order of the description.
    #[must_use]
    pub fn servers(&self, level: Level) -> &[Server] {
        match level {
            Level::First => &self.level1,
            Level::Second => &self.level2,
        }
    }

    /// The name of this application's first-level server.
    #[must_use]
    pub fn first_server(&self, application: usize) -> Option<&str> {
        Some(&self.level1[self.applications.get(application)?.level1].name)
    }

    /// What the second level holds of what the first one holds.
    #[must_use]
    pub fn hierarchy(&self) -> Hierarchy {
        self.hierarchy
    }

    /// An application's average latency with these shares, in bytes.
    pub(crate) fn latency_ms(&self, application: usize, first: f64, second: f64, estimate: Estimate) -> f64 {
        let member = &self.applications[application];
        let curve = match (&member.model, &member.hull, estimate) {
            (Model::Surface(surface), ..) => return surface.at(first, second),
            (_, Some(hull), Estimate::Split) => hull.points(),
            (Model::Curve(curve), ..) => curve.points(),
        };
        let misses = |size: f64| crate::curve::interpolate(curve, size);
        // What a cache cannot have misses as if it were not there.
        let most = member.most.map_or([f64::INFINITY; 2], |most| most.map(|most| most.get() as f64));
        let (first, second) = (first.min(most[0]), second.min(most[1]));
        let behind_both = match self.hierarchy {
            Hierarchy::Inclusive if !planted(Bug::InclusiveAdds) => misses(first.max(second)),
            _ => misses(first + second),
        };
        let [level1, level2, disk] = member.latencies_ms;
        let alone = level1 + (level2 - level1) * misses(first) + (disk - level2) * behind_both;
        let queued = member.queue.map(|queue| queue.latency_ms(behind_both));
        queued.map_or(alone, |queued| alone.max(queued))
    }

    /// The latency that a plan counts on: by the hull, if the application's shares are split.
    pub(crate) fn planned_ms(&self, application: usize, first: f64, second: f64) -> f64 {
        let own = self.applications[application].estimate;
        let estimate = if planted(Bug::EstimateIgnored) { Estimate::Split } else { own };
        self.latency_ms(application, first, second, estimate)
    }

    /// The latency that an application is promised.
    pub(crate) fn bound_ms(&self, application: usize) -> f64 {
        let member = &self.applications[application];
        match member.slo {
            Slo::AboveFair(slo) if planted(Bug::FactorWithoutOne) => slo * member.fair_latency_ms,
            Slo::AboveFair(slo) => (1.0 + slo) * member.fair_latency_ms,
            Slo::Latency(latency) => latency.as_secs_f64() * 1e3,
        }
    }

    /// Whether so little is known of an application that not even its fair share holds its SLO for sure by its curve. It has its fair share of
    /// both levels at least then: with that the SLO holds whatever the curve is.
    pub(crate) fn keeps_fair(&self, application: usize) -> bool {
        let member = &self.applications[application];
        matches!(member.slo, Slo::AboveFair(slo) if (1.0 + slo) * (1.0 - member.margin) < 1.0 - TOLERANCE)
    }

    /// The latency that a plan aims at: the bound without the margin; none if the application keeps its fair share.
    pub(crate) fn target_ms(&self, application: usize) -> f64 {
        if self.keeps_fair(application) {
            return f64::INFINITY;
        }
        let margin = self.applications[application].margin;
        self.bound_ms(application) * if planted(Bug::MarginLoosens) { 1.0 + margin } else { 1.0 - margin }
    }

    /// Segments of a server, without what is left at its end.
    pub(crate) fn segments(&self, server: &Server) -> u64 {
        server.cache.get() / self.segment
    }

    /// What a first-level server has in whole segments.
    pub(crate) fn first_cache(&self, server: usize) -> Bytes {
        Bytes::new(self.segments(&self.level1[server]) * self.segment)
    }

    /// What the second-level servers that an application reaches have together, in whole segments.
    pub(crate) fn reachable(&self, application: usize) -> Bytes {
        let reached = self.applications[application].level2.iter();
        Bytes::new(reached.map(|server| self.segments(&self.level2[*server]) * self.segment).sum())
    }

    /// Segments of all second-level servers.
    pub(crate) fn second_segments(&self) -> Vec<Bytes> {
        self.level2.iter().map(|server| Bytes::new(self.segments(server))).collect()
    }

    /// Which applications use each first-level server.
    pub(crate) fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.level1.len()];
        for (index, member) in self.applications.iter().enumerate() {
            users[member.level1].push(index);
        }
        users
    }
}
