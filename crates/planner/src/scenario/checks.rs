//! What can be meant, and what contradicts itself.

use std::time::Duration;

use surgetank_model::toml_error::{ConfigError, Source, nearest};
use surgetank_model::units::{Span, TIB};
use surgetank_model::{Bandwidth, Bytes, Catalog, VolumeType};
use surgetank_policy::Preset;
use toml::Spanned;

use super::{
    App, Backing, Caching, CalibrationPoint, Jobs, Latencies, RawApp, RawBacking, RawJobs, RawLatencies, RawPoint,
    RawScenario, Scenario, Seconds,
};

/// More VMs than any machine room has.
const VMS_MAX: i64 = 1_000_000;
/// More checkpoints than anybody waits for.
const CHECKPOINTS_MAX: i64 = 10_000_000;
/// Volumes of providers end far below.
const SIZE_MAX: Bytes = Bytes::new(1024 * TIB);
/// No single volume comes near.
const BANDWIDTH_MAX: Bandwidth = Bandwidth::new(TIB);
/// A hundred years.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest wait for a provider that still makes sense of a boost.
const LATENCY_MAX: Duration = Duration::from_secs(24 * 3600);
/// How often jobs write a checkpoint unless they say so: what centres ask for.
const JOBS_INTERVAL: Duration = Duration::from_secs(3600);
/// What a measured throughput may exceed the volumes' nominal one by: throttles let a little through at once.
const MEASURED_MAX: f64 = 1.25;

impl RawScenario {
    pub(super) fn check(self, source: &Source, catalog: &Catalog) -> Result<Scenario, ConfigError> {
        let backing = self.backing.check(source, catalog)?;
        let machine = self.machine.map(|machine| machine.check(source, &backing)).transpose()?.unwrap_or_default();
        let caching_at = self.caching.span();
        let caching = self.caching.into_inner();
        let auto_at = caching.auto_at();
        let caching = caching.check(source, catalog, caching_at, machine, &backing)?;
        if let Some(at) = auto_at.clone().filter(|_| !self.calibration.is_empty()) {
            let message = "volumes = \"auto\" compares stripes, and calibration points are of one: write the number of volumes that \
                 was measured, or remove the points";
            return Err(source.at(Some(at), message));
        }
        let (mut interval, mut trace, mut seed) = (self.interval, self.trace, self.seed);
        let app_span = self.app.as_ref().map(Spanned::span);
        let app = match self.app.map(Spanned::into_inner) {
            Some(mut raw) => {
                one_of(source, "interval", &mut interval, raw.interval.take())?;
                one_of(source, "trace", &mut trace, raw.trace.take())?;
                one_of(source, "seed", &mut seed, raw.seed.take())?;
                Some(raw.check(source, &backing)?)
            }
            None => None,
        };
        let jobs_span = self.jobs.as_ref().map(Spanned::span);
        let jobs = self.jobs.map(|jobs| jobs.into_inner().check(source)).transpose()?;
        if jobs.is_some() && trace.is_some() {
            return Err(source.at(jobs_span, "the file has a trace as well as [jobs]: remove one of the two"));
        }
        let replayed = if trace.is_some() { Some("a trace") } else { jobs.as_ref().map(|_| "[jobs]") };
        if let (Some(replayed), Some(_)) = (replayed, &app) {
            let message = format!(
                "the file has [app] as well as {replayed}, and one of them says what runs: remove the other (a trace stands at the \
                 top of the file)"
            );
            return Err(source.at(app_span, message));
        }
        if let (Some(replayed), Some(interval)) = (replayed, &interval) {
            let message = format!(
                "interval is the compute time between checkpoints of [app], and {replayed} has none: remove it"
            );
            return Err(source.at(Some(interval.span()), message));
        }
        if app.is_none() && trace.is_none() && jobs.is_none() {
            let message =
                "nothing runs: add [app] with vms, compute, checkpoints and checkpoint_size, a trace, or [jobs]";
            return Err(source.at(app_span, message));
        }
        let interval = interval.map(|interval| check_interval(source, &interval, app.as_ref())).transpose()?;
        let trace = trace.map(|trace| check_path(source, "trace", &trace)).transpose()?;
        let calibration = self
            .calibration
            .into_iter()
            .map(|point| point.check(source, &backing, &caching))
            .collect::<Result<_, _>>()?;
        let scenario = Scenario {
            app,
            backing,
            caching,
            machine,
            calibration,
            policy: self.policy.map(|policy| policy.or_named(Preset::ADAPTIVE).check(source)).transpose()?,
            provider: self.provider.check(source)?,
            interval,
            trace,
            jobs,
            seed: check_seed(source, seed.as_ref())?,
        };
        match auto_at {
            Some(at) => scenario.settled().map_err(|message| source.at(Some(at), message)),
            None => Ok(scenario),
        }
    }
}

/// A setting that may stand in two places stands in one.
fn one_of<T>(
    source: &Source,
    name: &str,
    at_top: &mut Option<Spanned<T>>,
    in_app: Option<Spanned<T>>,
) -> Result<(), ConfigError> {
    match (&at_top, in_app) {
        (Some(_), Some(again)) => {
            let message = format!("{name} stands at the top of the file already: remove one of the two");
            Err(source.at(Some(again.span()), message))
        }
        (None, Some(in_app)) => {
            *at_top = Some(in_app);
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

fn check_interval(source: &Source, interval: &Spanned<Span>, app: Option<&App>) -> Result<Duration, ConfigError> {
    let time = check_time(source, "interval", interval)?;
    if time.is_zero() {
        return Err(source.at(
            Some(interval.span()),
            "interval is zero: write the compute time between checkpoints, such as \"300 s\"",
        ));
    }
    if let Some(app) = app
        && time.saturating_mul(app.checkpoints) > app.compute
    {
        let message = format!(
            "{} checkpoints every {} need more than the compute time of {}: shorten the interval or raise compute",
            app.checkpoints,
            Span(time),
            Span(app.compute)
        );
        return Err(source.at(Some(interval.span()), message));
    }
    Ok(time)
}

impl RawJobs {
    fn check(self, source: &Source) -> Result<Jobs, ConfigError> {
        let log = check_path(source, "log", &self.log)?;
        let interval = match &self.interval {
            None => JOBS_INTERVAL,
            Some(interval) => check_time(source, "interval", interval)?,
        };
        if interval.is_zero() {
            let message = "interval is zero: write the run time between a job's checkpoints, such as \"1 h\"";
            return Err(source.at(self.interval.map(|interval| interval.span()), message));
        }
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.get_ref().get() == 0) {
            let message = "memory is zero: write the bytes of a checkpoint for each processor, such as \"1 GiB\"";
            return Err(source.at(Some(memory.span()), message));
        }
        let processors_max = self.processors_max.map(|most| {
            let fits = u64::try_from(*most.get_ref()).ok().filter(|most| *most > 0);
            fits.ok_or_else(|| {
                source.at(
                    Some(most.span()),
                    "processors_max is below 1: write the largest job's processors, or leave it out",
                )
            })
        });
        let memory = self.memory.map(Spanned::into_inner);
        Ok(Jobs { log, interval, memory, processors_max: processors_max.transpose()? })
    }
}

fn check_path(
    source: &Source,
    name: &str,
    trace: &Spanned<std::path::PathBuf>,
) -> Result<std::path::PathBuf, ConfigError> {
    if trace.get_ref().as_os_str().is_empty() {
        return Err(
            source.at(Some(trace.span()), format!("{name} is empty: write the path of a file, or leave it out"))
        );
    }
    let folder = source.file.parent().unwrap_or(std::path::Path::new(""));
    Ok(folder.join(trace.get_ref()))
}

pub(super) fn check_seed(source: &Source, seed: Option<&Spanned<i64>>) -> Result<u64, ConfigError> {
    let Some(seed) = seed else { return Ok(0) };
    u64::try_from(*seed.get_ref())
        .map_err(|_| source.at(Some(seed.span()), "seed is negative: write a whole number from 0 on"))
}

pub(super) fn check_time(source: &Source, name: &str, time: &Spanned<Span>) -> Result<Duration, ConfigError> {
    let given = time.get_ref().0;
    if given > TIME_MAX {
        let message = format!("{name} is {}, more than a hundred years: check the unit", time.get_ref());
        return Err(source.at(Some(time.span()), message));
    }
    Ok(given)
}

pub(super) fn check_size(source: &Source, name: &str, size: &Spanned<Bytes>) -> Result<Bytes, ConfigError> {
    let given = *size.get_ref();
    if given == Bytes::ZERO {
        let message = format!("{name} is zero: write a size above zero, such as \"4 GiB\"");
        return Err(source.at(Some(size.span()), message));
    }
    if given > SIZE_MAX {
        let message = format!("{name} is {given}, more than any volume has: check the unit");
        return Err(source.at(Some(size.span()), message));
    }
    Ok(given)
}

pub(super) fn check_bandwidth(
    source: &Source,
    name: &str,
    rate: &Spanned<Bandwidth>,
) -> Result<Bandwidth, ConfigError> {
    let given = *rate.get_ref();
    if given > BANDWIDTH_MAX {
        let message = format!("{name} is {given}, more than any volume has: check the unit");
        return Err(source.at(Some(rate.span()), message));
    }
    Ok(given)
}

/// A size of something that lies on the backing volume, or stands before it.
pub(super) fn check_within(
    source: &Source,
    name: &str,
    size: &Spanned<Bytes>,
    backing: &Backing,
) -> Result<Bytes, ConfigError> {
    let given = check_size(source, name, size)?;
    if given > backing.size {
        let message = format!(
            "{name} is {given}, larger than the backing volume of {}: lower it, or raise the size in [backing]",
            backing.size
        );
        return Err(source.at(Some(size.span()), message));
    }
    Ok(given)
}

pub(super) fn check_count(
    source: &Source,
    name: &str,
    count: &Spanned<i64>,
    range: (i64, i64),
) -> Result<u32, ConfigError> {
    let given = *count.get_ref();
    let (least, most) = range;
    u32::try_from(given).ok().filter(|_| (least..=most).contains(&given)).ok_or_else(|| {
        source.at(Some(count.span()), format!("{name} is {given}: write a whole number from {least} to {most}"))
    })
}

pub(super) fn check_price(source: &Source, given: Option<&Spanned<f64>>) -> Result<Option<f64>, ConfigError> {
    let message = "usd_per_gib_month must be a number of USD that is not negative: leave it out if it is unknown";
    source.number(given, |usd| (0.0..1e6).contains(&usd), message)
}

/// The type of the catalog that a file names, as `provider/name` or, if only one provider has it, by its name.
///
/// # Errors
/// One sentence that offers the nearest name.
pub fn find_type<'a>(catalog: &'a Catalog, written: &str) -> Result<&'a VolumeType, String> {
    let mut found = catalog.iter().filter(|known| known.key() == written || known.name == written);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(one), Some(_)) => Err(format!(
            "\"{written}\" is a volume type of several providers: write it in full, such as \"{}\"",
            one.key()
        )),
        (None, _) => {
            let keys: Vec<String> = catalog.iter().map(VolumeType::key).collect();
            let names = catalog.iter().map(|known| known.name.as_str()).chain(keys.iter().map(String::as_str));
            Err(match nearest(written, names) {
                Some(near) => format!("there is no volume type \"{written}\": did you mean \"{near}\"?"),
                None => format!("there is no volume type \"{written}\": known are {}", keys.join(", ")),
            })
        }
    }
}

pub(super) fn check_type(
    source: &Source,
    catalog: &Catalog,
    written: Option<&Spanned<String>>,
) -> Result<Option<VolumeType>, ConfigError> {
    let Some(written) = written else { return Ok(None) };
    let found = find_type(catalog, written.get_ref());
    found.cloned().map(Some).map_err(|message| source.at(Some(written.span()), message))
}

impl RawApp {
    fn check(self, source: &Source, backing: &Backing) -> Result<App, ConfigError> {
        let checkpoints = check_count(source, "checkpoints", &self.checkpoints, (0, CHECKPOINTS_MAX))?;
        let checkpoint_size = if checkpoints == 0 && *self.checkpoint_size.get_ref() == Bytes::ZERO {
            Bytes::ZERO
        } else {
            check_within(source, "checkpoint_size", &self.checkpoint_size, backing)?
        };
        let initial_dump = match &self.initial_dump {
            Some(dump) if *dump.get_ref() != Bytes::ZERO => check_within(source, "initial_dump", dump, backing)?,
            _ => Bytes::ZERO,
        };
        Ok(App {
            vms: check_count(source, "vms", &self.vms, (1, VMS_MAX))?,
            compute: check_time(source, "compute", &self.compute)?,
            checkpoints,
            checkpoint_size,
            initial_dump,
        })
    }
}

/// A block of the engine.
const SMALLEST: Bytes = Bytes::new(4096);

impl RawBacking {
    fn check(self, source: &Source, catalog: &Catalog) -> Result<Backing, ConfigError> {
        let size = check_size(source, "size", &self.size)?;
        if size < SMALLEST {
            let message = format!("size is {size}: the smallest backing volume is one block of {SMALLEST}");
            return Err(source.at(Some(self.size.span()), message));
        }
        let volume_type = check_type(source, catalog, self.volume_type.as_ref())?;
        if let (Some(volume_type), Some(written)) = (&volume_type, &self.volume_type)
            && volume_type.size.fit(size).is_none()
        {
            let most = volume_type.size.max;
            let message = format!("{} ends at {most}, below the size of {size}: take another type", volume_type.key());
            return Err(source.at(Some(written.span()), message));
        }
        Ok(Backing {
            size,
            bandwidth: check_bandwidth(source, "bandwidth", &self.bandwidth)?,
            volume_type,
            usd_per_gib_month: check_price(source, self.usd_per_gib_month.as_ref())?,
        })
    }
}

impl RawPoint {
    pub(crate) fn check(
        self,
        source: &Source,
        backing: &Backing,
        caching: &Caching,
    ) -> Result<CalibrationPoint, ConfigError> {
        let throughput = check_bandwidth(source, "throughput", &self.throughput)?;
        let both = backing.bandwidth.as_mib_s() + caching.bandwidth.as_mib_s();
        if throughput.as_mib_s() > both * MEASURED_MAX {
            let message = format!(
                "throughput is {throughput}, but both volumes together have {both:.0} MiB/s: measure again, or fix the \
                 bandwidths"
            );
            return Err(source.at(Some(self.throughput.span()), message));
        }
        Ok(CalibrationPoint {
            dataset: check_size(source, "dataset", &self.dataset)?,
            cache: check_size(source, "cache", &self.cache)?,
            throughput,
            attached: check_time(source, "attached", &self.attached)?,
        })
    }
}

impl RawLatencies {
    pub(super) fn check(&self, source: &Source) -> Result<Latencies, ConfigError> {
        let seconds = |name: &str, given: Option<&Spanned<Seconds>>| {
            let Some(given) = given else { return Ok(Duration::ZERO) };
            let time = match *given.get_ref() {
                Seconds::Span(span) => Some(span.0),
                Seconds::Number(number) => Duration::try_from_secs_f64(number).ok(),
            };
            time.filter(|time| *time <= LATENCY_MAX).ok_or_else(|| {
                let message = format!("{name} must be from 0 to {} s, such as 2.5", LATENCY_MAX.as_secs());
                source.at(Some(given.span()), message)
            })
        };
        let share = |name, given: Option<&Spanned<f64>>, allowed: fn(f64) -> bool, range| {
            let message = format!("{name} must be {range}, such as 0.1");
            Ok(source.number(given, allowed, &message)?.unwrap_or(0.0))
        };
        Ok(Latencies {
            create: seconds("create_s", self.create_s.as_ref())?,
            attach: seconds("attach_s", self.attach_s.as_ref())?,
            detach: seconds("detach_s", self.detach_s.as_ref())?,
            delete: seconds("delete_s", self.delete_s.as_ref())?,
            grow: self.grow_s.as_ref().map(|given| seconds("grow_s", Some(given))).transpose()?,
            jitter: share("jitter", self.jitter.as_ref(), |share| (0.0..=10.0).contains(&share), "from 0 to 10")?,
            faults: share("faults", self.faults.as_ref(), |share| (0.0..1.0).contains(&share), "from 0 to below 1")?,
        })
    }
}
