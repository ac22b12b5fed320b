//! The file of `allocate`: servers with caches, applications with curves, and what these are promised.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use surgetank_allocation::{
    Application, Demand, Description, Estimate, Hierarchy, InvalidProblem, LATENCY_MAX, Latencies, Level, MissCurve,
    Model, Problem, Server, Setting, Slo, Subject,
};
use surgetank_model::Bytes;
use surgetank_model::toml_error::{ConfigError, Source, nearest};
use surgetank_model::units::Span;
use toml::Spanned;

/// A file whose text has the right shape. What it says is checked where a problem is made of it, since curves may come from
/// elsewhere.
#[derive(Clone, Debug)]
pub struct AllocationFile {
    source: Source,
    raw: RawFile,
}

/// What a trace says of an application.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What it misses.
    pub curve: MissCurve,
    /// How often it accesses its blocks, if the trace has times. What the file says counts more.
    pub accesses_per_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    slo: Option<Spanned<RawSlo>>,
    latency: Option<Spanned<RawLatency>>,
    hierarchy: Option<RawHierarchy>,
    segment: Option<Spanned<Bytes>>,
    change_max: Option<Spanned<f64>>,
    margin: Option<Spanned<f64>>,
    #[serde(default)]
    demands_only: bool,
    #[serde(default)]
    server: RawServers,
    #[serde(default)]
    app: Vec<Spanned<RawApp>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLatency {
    level1: Span,
    level2: Span,
    disk: Span,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawHierarchy {
    #[default]
    Exclusive,
    Inclusive,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawServers {
    level1: Vec<Spanned<RawServer>>,
    level2: Vec<Spanned<RawServer>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    name: String,
    cache: Bytes,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawApp {
    name: Spanned<String>,
    level1: Option<Spanned<String>>,
    level2: Option<Spanned<Vec<String>>>,
    slo: Option<Spanned<RawSlo>>,
    mrc: Option<Spanned<Vec<Spanned<RawPoint>>>>,
    accesses_per_s: Option<Spanned<f64>>,
    margin: Option<Spanned<f64>>,
    demand: Option<Spanned<Bytes>>,
}

/// How far above the fair share, or a latency.
#[derive(Clone, Copy, Debug)]
struct RawSlo(Slo);

impl<'de> Deserialize<'de> for RawSlo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Slo::read(&toml::Value::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

/// A size of a cache, and what it misses.
#[derive(Clone, Copy, Debug)]
struct RawPoint(Bytes, f64);

impl<'de> Deserialize<'de> for RawPoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let is_none = || {
            D::Error::custom(
                "a point of a curve is a size and the miss ratio of a cache of that size, such as [\"100 MiB\", 0.4]",
            )
        };
        let toml::Value::Array(parts) = toml::Value::deserialize(deserializer)? else { return Err(is_none()) };
        let [size, ratio] = <[toml::Value; 2]>::try_from(parts).map_err(|_| is_none())?;
        let ratio = match ratio {
            toml::Value::Float(ratio) => ratio,
            toml::Value::Integer(ratio) => ratio as f64,
            _ => return Err(is_none()),
        };
        let size = size.try_into::<Bytes>().map_err(|error| D::Error::custom(error.message()))?;
        Ok(Self(size, ratio))
    }
}

/// What an application without a rate has: all of them the same.
const ACCESSES_PER_S: f64 = 1.0;

impl AllocationFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is not TOML, or not of this shape, with file, line and column.
    pub fn parse(source: Source) -> Result<Self, ConfigError> {
        let raw: RawFile = source.parse()?;
        Ok(Self { source, raw })
    }

    /// Whether it asks for a place of demands alone.
    #[must_use]
    pub fn demands_only(&self) -> bool {
        self.raw.demands_only
    }

    /// The most that any application can have of both levels together, for the sizes at which a trace's curve is of use.
    ///
    /// # Errors
    /// If the file has no application of this name: one sentence with the nearest.
    pub fn reach(&self, application: &str) -> Result<Bytes, String> {
        let raw = self.raw.app.iter().map(Spanned::get_ref).find(|app| app.name.get_ref() == application);
        let Some(raw) = raw else {
            let names = || self.raw.app.iter().map(|app| app.get_ref().name.get_ref().as_str());
            return Err(match nearest(application, names()) {
                Some(near) => format!("the file has no application {application}: did you mean {near}?"),
                None => format!("the file has no application {application}: add it, or leave out its trace"),
            });
        };
        let of = |servers: &[Spanned<RawServer>], names: &[String]| {
            let reached = servers.iter().map(Spanned::get_ref).filter(|server| names.contains(&server.name));
            reached.fold(0_u64, |sum, server| sum.saturating_add(server.cache.get()))
        };
        let first: Vec<String> = raw.level1.iter().map(|name| name.get_ref().clone()).collect();
        let second = raw.level2.as_ref().map(|names| names.get_ref().clone()).unwrap_or_default();
        let servers = &self.raw.server;
        Ok(Bytes::new(of(&servers.level1, &first).saturating_add(of(&servers.level2, &second))))
    }

    /// The problem that the file describes; curves of traces replace its own.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and column.
    pub fn problem(&self, measured: &BTreeMap<String, Measured>) -> Result<Problem, ConfigError> {
        let Some(latency) = self.raw.latency.as_ref().map(Spanned::get_ref) else {
            let message =
                "the file has no latencies: add latency = { level1 = \"0.1 ms\", level2 = \"1 ms\", disk = \"10 ms\" }";
            return Err(self.source.at(None, message));
        };
        let [level1, level2, disk] = [latency.level1, latency.level2, latency.disk].map(|span| span.0);
        self.check_times([level1, level2, disk])?;
        let segment = self.raw.segment.as_ref();
        if let Some(none) = segment.filter(|segment| *segment.get_ref() == Bytes::ZERO) {
            let message =
                "the segment is 0 B: every share is a whole number of them, so write at least \"1 B\", or leave it out";
            return Err(self.source.at(Some(none.span()), message));
        }
        let applications = self.raw.app.iter().map(|app| self.application(app, measured));
        let description = Description {
            latencies: Latencies { level1, level2, disk },
            hierarchy: match self.raw.hierarchy.unwrap_or_default() {
                RawHierarchy::Exclusive => Hierarchy::Exclusive,
                RawHierarchy::Inclusive => Hierarchy::Inclusive,
            },
            level1: servers(&self.raw.server.level1),
            level2: servers(&self.raw.server.level2),
            applications: applications.collect::<Result<_, _>>()?,
            segment: segment.map(|segment| *segment.get_ref()).unwrap_or_default(),
            change_max: self.raw.change_max.as_ref().map(|change| *change.get_ref()),
        };
        Problem::new(description).map_err(|error| self.refused(&error))
    }

    /// What the applications want of the second level, and the servers there.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and column.
    pub fn demands(&self) -> Result<(Vec<Server>, Vec<Demand>), ConfigError> {
        let demand = |app: &Spanned<RawApp>| {
            let raw = app.get_ref();
            let name = raw.name.get_ref();
            let Some(demand) = &raw.demand else {
                let message =
                    format!("application {name} has no demand: with demands_only = true add it, such as \"1.2 GiB\"");
                return Err(self.source.at(Some(app.span()), message));
            };
            if *demand.get_ref() == Bytes::ZERO {
                let message = format!("application {name} demands nothing: leave it out");
                return Err(self.source.at(Some(demand.span()), message));
            }
            let level2 = raw.level2.as_ref().map(|names| names.get_ref().clone()).unwrap_or_default();
            Ok(Demand { application: name.clone(), level2, demand: *demand.get_ref() })
        };
        if self.raw.app.is_empty() {
            return Err(self.source.at(None, "there is no application: add [[app]] with name, level2 and demand"));
        }
        Ok((servers(&self.raw.server.level2), self.raw.app.iter().map(demand).collect::<Result<_, _>>()?))
    }

    fn application(
        &self,
        app: &Spanned<RawApp>,
        measured: &BTreeMap<String, Measured>,
    ) -> Result<Application, ConfigError> {
        let raw = app.get_ref();
        let name = raw.name.get_ref();
        let refuse = |span: Range<usize>, message: String| Err(self.source.at(Some(span), message));
        if let Some(demand) = &raw.demand {
            let message = format!(
                "application {name} has a demand, which counts with demands_only = true alone: add that, or remove the demand"
            );
            return refuse(demand.span(), message);
        }
        let Some(level1) = &raw.level1 else {
            let message = format!("application {name} uses no first-level server: add level1 with its name");
            return refuse(app.span(), message);
        };
        let level2 = raw.level2.as_ref().map(|names| names.get_ref().clone()).unwrap_or_default();
        if level2.is_empty() && !self.raw.server.level2.is_empty() {
            let message = format!("application {name} reaches no second-level server: name at least one");
            return refuse(raw.level2.as_ref().map_or_else(|| app.span(), Spanned::span), message);
        }
        let Some(slo) = raw.slo.as_ref().or(self.raw.slo.as_ref()) else {
            let message = format!(
                "application {name} has no SLO: add slo = 0.05 here or at the top of the file, for a latency at most 5 % above the fair share's"
            );
            return refuse(app.span(), message);
        };
        let traced = measured.get(name);
        let curve = match (traced, &raw.mrc) {
            (Some(measured), _) => measured.curve.clone(),
            (None, Some(points)) => self.curve(name, points)?,
            (None, None) => {
                let message = format!(
                    "application {name} has no miss-ratio curve: add mrc = [[\"0 MiB\", 1.0], …] as surgetank mrc has it, or call with --trace {name}=FILE"
                );
                return refuse(app.span(), message);
            }
        };
        let rate = raw.accesses_per_s.as_ref().map(|rate| *rate.get_ref());
        Ok(Application {
            name: name.clone(),
            level1: level1.get_ref().clone(),
            level2,
            most: None,
            queue: None,
            slo: slo.get_ref().0,
            model: Model::Curve(curve),
            accesses_per_s: rate.or(traced.and_then(|one| one.accesses_per_s)).unwrap_or(ACCESSES_PER_S),
            latencies: None,
            estimate: Estimate::Split,
            margin: raw.margin.as_ref().or(self.raw.margin.as_ref()).map_or(0.0, |margin| *margin.get_ref()),
            violations: 0,
        })
    }

    fn curve(&self, name: &str, points: &Spanned<Vec<Spanned<RawPoint>>>) -> Result<MissCurve, ConfigError> {
        let pairs: Vec<(Bytes, f64)> =
            points.get_ref().iter().map(|point| (point.get_ref().0, point.get_ref().1)).collect();
        MissCurve::new(&pairs).map_err(|error| {
            // Whether a point is one depends on itself and the one before it.
            let is_wrong = |index: &usize| MissCurve::new(&pairs[index.saturating_sub(1)..=*index]).is_err();
            let at = (0..pairs.len()).find(is_wrong).map_or(points.span(), |index| points.get_ref()[index].span());
            self.source.at(Some(at), format!("application {name}: {error}"))
        })
    }

    /// A wrong unit is noticed before it makes every share look alike.
    fn check_times(&self, latencies: [Duration; 3]) -> Result<(), ConfigError> {
        let span = self.raw.latency.as_ref().map(Spanned::span);
        let longest = latencies.into_iter().max().unwrap_or_default();
        if longest > LATENCY_MAX {
            let message = format!("a latency is {}, more than any access takes: check the unit", Span(longest));
            return Err(self.source.at(span, message));
        }
        Ok(())
    }

    /// Where in the file that is which a problem was refused for.
    pub(super) fn refused(&self, error: &InvalidProblem) -> ConfigError {
        let raw = &self.raw;
        let servers = |level: Level| match level {
            Level::First => &raw.server.level1,
            Level::Second => &raw.server.level2,
        };
        let place = match error.subject {
            Subject::Latencies => raw.latency.as_ref().map(Spanned::span),
            Subject::ChangeMax => raw.change_max.as_ref().map(Spanned::span),
            Subject::Servers(_) | Subject::Applications => None,
            Subject::Server(level, index) => servers(level).get(index).map(Spanned::span),
            Subject::Application(index, setting) => raw.app.get(index).map(|app| {
                let of = app.get_ref();
                let own = match setting {
                    Setting::Name => Some(of.name.span()),
                    Setting::Level1 => of.level1.as_ref().map(Spanned::span),
                    Setting::Level2 => of.level2.as_ref().map(Spanned::span),
                    Setting::Slo => of.slo.as_ref().or(raw.slo.as_ref()).map(Spanned::span),
                    Setting::Rate => of.accesses_per_s.as_ref().map(Spanned::span),
                    Setting::Margin => of.margin.as_ref().or(raw.margin.as_ref()).map(Spanned::span),
                };
                own.unwrap_or_else(|| app.span())
            }),
        };
        self.source.at(place, error.to_string())
    }
}

fn servers(raw: &[Spanned<RawServer>]) -> Vec<Server> {
    let server = |raw: &Spanned<RawServer>| Server { name: raw.get_ref().name.clone(), cache: raw.get_ref().cache };
    raw.iter().map(server).collect()
}
