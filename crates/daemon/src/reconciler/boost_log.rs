//! What the log says of a device's boosts, for whoever runs it: why one begins, how long it takes to come into use, what was
//! written and drained, and what it cost.

use std::time::Duration;

use surgetank_cache::Event;
use surgetank_model::units::{GIB, MIB};
use surgetank_model::volume::VolumeId;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{BoostRecord, Cause, Phase};
use surgetank_rental::stripe;

use super::{Reconciler, Recovery};
use crate::accounting::Totals;
use crate::config::OnStop;
use crate::history::PastBoost;
use crate::journal::LastRun;
use crate::shard::{Command, Sample};

/// What was said so far.
#[derive(Debug)]
pub(super) struct BoostLog {
    phase: Phase,
    boosts: Option<u64>,
    boost: Option<Told>,
    /// Why the boost ends, if that is not for want of bursts.
    because: Option<&'static str>,
    refusal: Option<String>,
    stop_is_told: bool,
    /// Bytes written by the application when there was no caching volume in use.
    before: u64,
}

/// The present boost.
#[derive(Debug)]
struct Told {
    begun: Instant,
    /// Why, in one sentence; `None`: the last run left it.
    why: Option<String>,
    is_forecast: bool,
    /// Over how many volumes its caching volume is striped, as far as its name is known; at least 1.
    volumes: u32,
    written: u64,
    split: u64,
    drained: u64,
}

/// What is to be seen of a device.
#[derive(Clone, Debug)]
pub(super) struct Seen<'a> {
    pub now: Instant,
    pub phase: Phase,
    pub cause: Option<Cause>,
    /// The cause in words.
    pub why: Option<&'a str>,
    pub boosts: u64,
    /// Of the caching volume that is rented or being rented.
    pub size: Option<Bytes>,
    pub volume: &'a str,
    pub reason: Option<&'a str>,
    pub threshold: f64,
    pub delay: Duration,
    pub dirty: u64,
}

impl Default for BoostLog {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            boosts: None,
            boost: None,
            because: None,
            refusal: None,
            stop_is_told: false,
            before: 0,
        }
    }
}

impl BoostLog {
    /// Somebody or something ends the boost.
    pub(super) fn ends_because(&mut self, why: &'static str) {
        self.because = Some(why);
    }

    pub(super) fn observe(&mut self, sample: &Sample) {
        let (observation, status) = (&sample.observation, &sample.status);
        self.count(observation.written_bytes, observation.cache_bytes, status.split_bytes, status.drained_bytes);
    }

    fn count(&mut self, written: u64, cache: u64, split: u64, drained: u64) {
        match &mut self.boost {
            Some(boost) if cache > 0 => {
                boost.written = written.saturating_sub(self.before);
                // These count from the adoption on, and begin anew with the next caching volume.
                boost.split = boost.split.max(split);
                boost.drained = boost.drained.max(drained);
            }
            // The last sample of a boost that has ended is not yet before the next one.
            Some(boost) if boost.written > 0 => {}
            _ => self.before = written,
        }
    }

    /// What is new.
    pub(super) fn look(&mut self, seen: &Seen<'_>) -> Vec<String> {
        let mut said = Vec::new();
        if let (None, Some(size)) = (&self.boost, seen.size) {
            let why = seen.why.map(str::to_owned);
            let renting = bytes(size.get());
            said.extend(
                why.as_ref().map(|why| format!("a boost begins: {why}; renting a caching volume of {renting}")),
            );
            let is_forecast = matches!(seen.cause, Some(Cause::Forecast { .. }));
            self.boost = Some(Told { begun: seen.now, why, is_forecast, volumes: 1, written: 0, split: 0, drained: 0 });
        }
        if let Some(boost) = &mut self.boost {
            boost.volumes = boost.volumes.max(stripe::members(&VolumeId(seen.volume.to_owned())).len() as u32);
        }
        let boosts = self.boosts.replace(seen.boosts).unwrap_or(seen.boosts);
        if let (true, Some(boost)) = (seen.boosts > boosts, &self.boost) {
            let after = time(seen.now.since(boost.begun));
            said.push(format!("the caching volume {} absorbs, {after} after the boost began", seen.volume));
            self.refusal = None;
        }
        let before = std::mem::replace(&mut self.phase, seen.phase);
        match (before, seen.phase) {
            (Phase::Idle, Phase::Drain) => {
                said.push("draining what the last run left on its caching volume".to_owned())
            }
            (before, Phase::Drain) if before != Phase::Drain => {
                said.push(format!("the boost ends: {}; draining {}", self.why_it_ends(seen), bytes(seen.dirty)));
            }
            (Phase::Drain | Phase::Detaching, Phase::Boost) => {
                said.push("the boost goes on: another burst has begun".to_owned());
            }
            _ => {}
        }
        self.because = self.because.filter(|_| seen.phase != Phase::Idle);
        said
    }

    fn why_it_ends(&mut self, seen: &Seen<'_>) -> String {
        match (self.because.take(), seen.reason) {
            (Some(because), _) => because.to_owned(),
            (None, Some(reason)) => reason.to_owned(),
            (None, None) if self.boost.as_ref().is_some_and(|boost| boost.is_forecast) => {
                "the burst that was expected is over, or has not come".to_owned()
            }
            (None, None) => {
                format!("utilization has been below {:.0} % for {}", seen.threshold * 100.0, time(seen.delay))
            }
        }
    }

    /// A step was refused, and this is what follows. `None`: that was said already.
    pub(super) fn refused(&mut self, reason: &str, retry: Option<Duration>) -> Option<String> {
        if self.refusal.as_deref() == Some(reason) {
            return None;
        }
        self.refusal = Some(reason.to_owned());
        let retry = retry.map(|retry| format!("; it is tried again in {}", time(retry))).unwrap_or_default();
        Some(format!("{reason}{retry}"))
    }

    /// What the history keeps of a boost that is about to be told as [`BoostLog::ended`].
    /// Cost and length are those of all runs of the daemon.
    pub(super) fn past(
        &self,
        record: &BoostRecord,
        (cost, rented): (Option<Totals>, Duration),
        ended_unix_ms: u64,
    ) -> PastBoost {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        let moved = |pick: fn(&Told) -> u64| self.boost.as_ref().map_or(0.0, |boost| gib(pick(boost)));
        PastBoost {
            ended_unix_ms,
            cause: self.boost.as_ref().and_then(|boost| boost.why.clone()),
            cache_gib: record.size.as_gib(),
            first_cache_gib: grew_from(record).map(Bytes::as_gib),
            mean_cache_gib: grew_from(record).map(|_| record.mean_size.as_gib()),
            volumes: self.boost.as_ref().map(|boost| boost.volumes).filter(|volumes| *volumes > 1),
            refused: record.refused.clone(),
            attempts: None,
            attach_s: seconds(record.attach_time()),
            absorb_s: seconds(record.absorb_time()),
            drain_s: seconds(record.drain_time()),
            rented_s: rented.as_secs_f64(),
            written_gib: moved(|boost| boost.written),
            split_gib: moved(|boost| boost.split),
            drained_gib: moved(|boost| boost.drained),
            high_water_gib: record.high_water.as_gib(),
            evicted_gib: record.evicted.as_gib(),
            expected_saved_s: record.predicted.map(|predicted| predicted.saved.0.as_secs_f64()),
            expected_cost_agbs: record.predicted.map(|predicted| predicted.cost_agbs as f64),
            saved_s: record.observed.saved.0.as_secs_f64(),
            cost_agbs: cost.map(|cost| cost.agbs),
            cost_usd: cost.and_then(|cost| cost.usd),
        }
    }

    /// A caching volume has been deleted.
    pub(super) fn ended(&mut self, record: &BoostRecord, cost: Option<Totals>, next: Bytes) -> String {
        let rented = time(record.ended.since(record.started));
        let cost = cost.map(|Totals { agbs, usd }| {
            let usd = usd.map(|usd| format!(" or {} USD", dollars(usd))).unwrap_or_default();
            format!("{agbs:.0} AGBs{usd}")
        });
        let costs = |when: &str| cost.map(|cost| format!("; {when} {cost}")).unwrap_or_default();
        let boost = self.boost.take();
        self.because = None;
        let Some(Told { why, written, split, drained, .. }) = boost.filter(|_| record.adopted.is_some()) else {
            let cost = costs("it cost");
            return format!("the caching volume was deleted without having been in use, after {rented}{cost}");
        };
        let took = record.drain_time().map(|took| format!(" in {}", time(took))).unwrap_or_default();
        let (drained, next) = (bytes(drained), bytes(next.get()));
        if why.is_none() {
            let cost = costs("since the start the caching volume cost");
            return format!(
                "the boost that the last run left has ended: {drained} were drained{took}{cost}; the next caching volume has {next}"
            );
        }
        let saved = record.predicted.map_or_else(String::new, |predicted| {
            let [saved, expected] = [record.observed.saved.0, predicted.saved.0].map(time);
            format!(
                "; it saved {saved} of waiting for {} AGBs, where {expected} for {} were expected",
                record.observed.cost_agbs, predicted.cost_agbs
            )
        });
        let split = match split {
            0 => String::new(),
            split => format!(" ({} of it straight to the backing volume)", bytes(split)),
        };
        let grew = grew_from(record).map_or_else(String::new, |first| {
            let [first, last, mean] = [first, record.size, record.mean_size].map(|size| bytes(size.get()));
            format!("; the caching volume grew from {first} to {last}, {mean} on average")
        });
        let (written, cost) = (bytes(written), costs("it cost"));
        format!(
            "the boost has ended after {rented}: {written} were written while it was in use{split}, and {drained} drained{took}\
             {grew}{cost}{saved}; the next caching volume has {next}"
        )
    }
}

/// The size of a boost's caching volume at first; `None`: it did not grow.
fn grew_from(record: &BoostRecord) -> Option<Bytes> {
    record.sizes.first().map(|(first, _)| *first).filter(|first| *first != record.size)
}

/// What is done before requests are answered.
pub(super) fn reading_back(last_run: LastRun) -> &'static str {
    match last_run {
        LastRun::Unknown => "reading the caching volume back",
        LastRun::Running => "reading the caching volume back after a crash",
        LastRun::Stopped => "reading the caching volume back, on which the last stop left dirty data",
    }
}

/// Bytes for people.
fn bytes(bytes: u64) -> String {
    let at = |unit: u64, name| {
        let value = format!("{:.1}", bytes as f64 / unit as f64);
        format!("{} {name}", value.strip_suffix(".0").unwrap_or(&value))
    };
    match bytes {
        bytes if bytes >= GIB => at(GIB, "GiB"),
        bytes if bytes >= MIB => at(MIB, "MiB"),
        _ => at(1 << 10, "KiB"),
    }
}

/// USD for people: what costs something is not told as nothing.
fn dollars(usd: f64) -> String {
    if usd > 0.0 && usd < 0.000_000_5 { "under 0.000001".to_owned() } else { format!("{usd:.6}") }
}

/// A time for people.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => {
            let value = format!("{:.1}", time.as_secs_f64());
            format!("{} s", value.strip_suffix(".0").unwrap_or(&value))
        }
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

impl Reconciler {
    /// Says what is new.
    pub(super) fn tell(&mut self, now: Instant) {
        let Some((controller, lifecycle)) = &self.parts.boosting else { return };
        // What the controller knows of a volume that is being read back is from before.
        if self.recovery != Recovery::None {
            return;
        }
        let (status, config) = (controller.status(), controller.config());
        let volume = lifecycle.rental().record().and_then(|record| record.volume.as_ref());
        let said = self.log.look(&Seen {
            now,
            phase: status.phase,
            cause: controller.cause(),
            why: controller.why(),
            boosts: status.boosts,
            size: status.cache_size,
            volume: volume.map_or("", |id| &id.0),
            reason: status.backing_off.as_deref(),
            threshold: config.utilization_threshold,
            delay: config.inactivity_delay,
            dirty: self.last.as_ref().map_or(0, |sample| sample.status.dirty_bytes),
        });
        said.iter().for_each(|text| tracing::info!(device = self.parts.name, "{text}"));
    }

    /// Says why a step was refused, once. A step that the end of the device cut off is not: the next start goes on with it.
    pub(super) fn tell_refusal(&mut self) {
        if self.held() {
            return;
        }
        let Some((controller, _)) = &self.parts.boosting else { return };
        let status = controller.status();
        let Some(reason) = &status.backing_off else { return };
        if let Some(text) = self.log.refused(reason, status.retry_in.map(|retry| retry.0)) {
            tracing::warn!(device = self.parts.name, "{text}");
        }
    }

    /// Says what the engine has found, where nobody else does.
    pub(super) fn tell_event(&self, event: &Event) {
        let device = &self.parts.name;
        match event {
            Event::Recovered { dirty_bytes } => {
                tracing::info!(device, "the caching volume is read back: {} on it are dirty", bytes(*dirty_bytes));
            }
            Event::CacheFailing => {
                tracing::warn!(device, "the caching volume fails: what can be read of it is drained");
            }
            Event::CacheDropped => {
                tracing::info!(device, "the caching volume that failed is not needed any more: nothing is lost");
            }
            Event::CacheLost { lost_bytes } => tracing::error!(
                device,
                "{} are on a caching volume that cannot be read: they answer EIO until they are overwritten, read back or \
                 discarded",
                bytes(*lost_bytes)
            ),
            _ => tracing::debug!(device, ?event, "engine"),
        }
    }

    /// Says what a stop leaves.
    pub(super) fn tell_stop(&mut self) {
        if std::mem::replace(&mut self.log.stop_is_told, true) {
            return;
        }
        let Some((_, lifecycle)) = &self.parts.boosting else { return };
        let Some(volume) = lifecycle.rental().record().and_then(|record| record.volume.as_ref()) else { return };
        let device = &self.parts.name;
        if self.recovery == Recovery::None
            && self.parts.on_stop == OnStop::Keep
            && let Ok(sample) = self.parts.shard.ask(|answer| Command::Sample { answer })
        {
            let dirty = bytes(sample.status.dirty_bytes);
            tracing::info!(device, "{dirty} of dirty data stay on the caching volume {}, which stays rented", volume.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::units::Span;
    use surgetank_policy::Prediction;

    use super::*;

    fn seen(at: u64, phase: Phase) -> Seen<'static> {
        Seen {
            now: Instant::ZERO + Duration::from_millis(at),
            phase,
            cause: Some(Cause::Utilization(0.92)),
            why: Some("utilization is 92 %"),
            boosts: 3,
            size: Some(Bytes::from_gib(10)),
            volume: "vol-1",
            reason: None,
            threshold: 0.3,
            delay: Duration::from_secs(30),
            dirty: 0,
        }
    }

    fn record(adopted: bool) -> BoostRecord {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        BoostRecord {
            was_there: true,
            size: Bytes::from_gib(10),
            mean_size: Bytes::from_gib(10),
            sizes: vec![(Bytes::from_gib(10), at(1))],
            started: at(1),
            adopted: adopted.then(|| at(4)),
            drain_started: adopted.then(|| at(70)),
            released: adopted.then(|| at(253)),
            ended: at(263),
            high_water: Bytes::ZERO,
            evicted: Bytes::ZERO,
            refused: None,
            predicted: None,
            observed: Prediction::default(),
        }
    }

    #[test]
    fn a_boost_is_told_from_its_reason_to_its_cost() {
        let mut log = BoostLog::default();
        let idle = Seen { size: None, cause: None, why: None, ..seen(0, Phase::Idle) };
        assert!(log.look(&idle).is_empty());
        log.count(500 * MIB, 0, 0, 0);
        assert_eq!(
            log.look(&seen(1000, Phase::Attaching)),
            ["a boost begins: utilization is 92 %; renting a caching volume of 10 GiB"]
        );
        assert!(log.look(&seen(2000, Phase::Attaching)).is_empty());
        assert_eq!(
            log.look(&Seen { boosts: 4, ..seen(4200, Phase::Boost) }),
            ["the caching volume vol-1 absorbs, 3.2 s after the boost began"]
        );
        log.count(500 * MIB + 9 * GIB, GIB, 2 * GIB, 3 * GIB);
        let drain = Seen { boosts: 4, dirty: 3 * GIB, ..seen(70_000, Phase::Drain) };
        let ends = "the boost ends: utilization has been below 30 % for 30 s; draining 3 GiB";
        assert_eq!(log.look(&drain), [ends]);
        let again = Seen { boosts: 4, ..seen(71_000, Phase::Boost) };
        assert_eq!(log.look(&again), ["the boost goes on: another burst has begun"]);
        log.ends_because("somebody asked for that");
        assert_eq!(log.look(&drain), ["the boost ends: somebody asked for that; draining 3 GiB"]);
        log.count(500 * MIB + 10 * GIB, GIB, 2 * GIB, 7 * GIB);
        // The caching volume is gone, and counters with it.
        log.count(500 * MIB + 11 * GIB, 0, 0, 0);
        assert!(log.look(&Seen { boosts: 4, ..seen(260_000, Phase::Detaching) }).is_empty());
        let cost = Some(Totals { agbs: 31_234.4, usd: Some(0.0123) });
        assert_eq!(
            log.ended(&record(true), cost, Bytes::from_gib(8)),
            "the boost has ended after 4 min 22 s: 10 GiB were written while it was in use (2 GiB of it straight to the backing \
             volume), and 7 GiB drained in 3 min 3 s; it cost 31234 AGBs or 0.012300 USD; the next caching volume has 8 GiB"
        );
        assert!(log.look(&Seen { boosts: 4, ..idle }).is_empty());
    }

    #[test]
    fn what_was_expected_is_told_beside_what_came() {
        let mut log = BoostLog::default();
        assert_eq!(log.look(&seen(0, Phase::Attaching)).len(), 1);
        let span = |seconds| Span(Duration::from_secs(seconds));
        let record = BoostRecord {
            predicted: Some(Prediction { saved: span(98), cost_agbs: 66_000 }),
            observed: Prediction { saved: span(91), cost_agbs: 65_024 },
            ..record(true)
        };
        let ended = log.ended(&record, None, Bytes::from_gib(8));
        let saved = "; it saved 1 min 31 s of waiting for 65024 AGBs, where 1 min 38 s for 66000 were expected;";
        assert!(ended.contains(saved), "{ended}");
    }

    #[test]
    fn a_volume_that_grew_is_told_and_kept_with_its_sizes() {
        let mut log = BoostLog::default();
        assert_eq!(log.look(&seen(0, Phase::Attaching)).len(), 1);
        let (gib, at) = (Bytes::from_gib, |seconds| Instant::ZERO + Duration::from_secs(seconds));
        let sizes = vec![(gib(2), at(1)), (gib(10), at(132))];
        let record = BoostRecord { mean_size: gib(6), sizes, ..record(true) };
        let cost = Some(Totals { agbs: 1.0, usd: Some(4.7e-7) });
        let rented = Duration::from_secs(262);
        let past = log.past(&record, (cost, rented), 7);
        assert_eq!((past.first_cache_gib, past.mean_cache_gib, past.cache_gib), (Some(2.0), Some(6.0), 10.0));
        let ended = log.ended(&record, cost, gib(8));
        let grew = " drained in 3 min 3 s; the caching volume grew from 2 GiB to 10 GiB, 6 GiB on average; it cost 1 AGBs or under 0.000001 USD;";
        assert!(ended.contains(grew), "{ended}");
        // A growth that was refused is none.
        let refused = BoostRecord { sizes: vec![(gib(10), at(1)), (gib(12), at(5)), (gib(10), at(6))], ..record };
        assert_eq!(log.past(&refused, (None, rented), 7).first_cache_gib, None);
    }

    #[test]
    fn what_the_last_run_left_is_told() {
        let mut log = BoostLog::default();
        let resumed = Seen { cause: None, why: None, dirty: 5 * MIB, ..seen(0, Phase::Drain) };
        assert_eq!(log.look(&resumed), ["draining what the last run left on its caching volume"]);
        let ended = log.ended(&record(true), None, Bytes::from_gib(8));
        let left = "the boost that the last run left has ended: 0 KiB were drained in 3 min 3 s; the next caching volume has 8 GiB";
        assert_eq!(ended, left);
        let mut log = BoostLog::default();
        log.look(&seen(0, Phase::Boost));
        let budget = Seen { reason: Some("the budget is spent"), ..seen(1, Phase::Drain) };
        assert_eq!(log.look(&budget), ["the boost ends: the budget is spent; draining 0 KiB"]);
    }

    #[test]
    fn a_refusal_is_told_once_until_a_boost_is_in_use() {
        let mut log = BoostLog::default();
        log.look(&seen(0, Phase::Attaching));
        let retry = Some(Duration::from_secs(8));
        assert_eq!(log.refused("no quota", retry).unwrap(), "no quota; it is tried again in 8 s");
        assert_eq!(log.refused("no quota", retry), None);
        assert_eq!(log.refused("no slot", None).unwrap(), "no slot");
        log.look(&Seen { boosts: 4, ..seen(1, Phase::Boost) });
        assert!(log.refused("no slot", None).is_some());
        let unused = log.ended(&record(false), None, Bytes::from_gib(1));
        assert_eq!(unused, "the caching volume was deleted without having been in use, after 4 min 22 s");
    }

    #[test]
    fn a_read_back_is_said_to_follow_a_crash_only_if_it_does() {
        let texts = [LastRun::Running, LastRun::Stopped, LastRun::Unknown].map(reading_back);
        assert_eq!(texts.map(|text| text.contains("crash")), [true, false, false]);
        assert!(texts.iter().all(|text| text.starts_with("reading the caching volume back")));
    }
}
