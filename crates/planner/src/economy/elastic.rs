//! With an elastic device: a volume that does for the time between bursts, and a stripe of caching volumes for each of them.

use std::time::Duration;

use surgetank_model::volume_type::{Offer, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Limits, VolumeType};

use super::{Caching, Kind, Load, Way, cheaper, named, operation};
use crate::fluid::{Absorb, Burst, Delays, Pipes};
use crate::stripe::{Machine, included};

/// What may be asked of each caching volume, MiB/s, beside what comes with its size.
const LEVELS: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// How long the controller waits for more before it ends a boost: the adaptive policy's.
const QUIET: Duration = Duration::from_secs(30);
/// The controller sees a burst at its next sample.
const SAMPLE: Duration = Duration::from_secs(1);
/// A drain writes in requests of this size at least.
const DRAIN_REQUEST: Bytes = Bytes::new(1 << 20);
/// Of a cache, this share is not the burst's: the log's own records.
const RECORDS: u64 = 20;

/// How long a provider takes. What it does not say of creating or detaching is taken to be as long as attaching.
struct Calls {
    create: Duration,
    attach: Duration,
    detach: Duration,
}

impl Calls {
    fn of(catalog: &Catalog, provider: &str) -> Option<Self> {
        let latency = catalog.provider(provider)?.latency.as_ref()?;
        let attach = latency.attach?.0;
        let or_attach = |span: Option<surgetank_model::units::Span>| span.map_or(attach, |span| span.0);
        Some(Self { create: or_attach(latency.create), attach, detach: or_attach(latency.detach) })
    }
}

/// The cheapest elastic device over each type, the cheapest first.
pub(super) fn over_each(catalog: &Catalog, provider: &str, types: &[&VolumeType], load: &Load, kind: Kind) -> Vec<Way> {
    let Some(calls) = Calls::of(catalog, provider) else { return Vec::new() };
    let over = |known: &&VolumeType| Backing::of(known, load)?.elastic(catalog, types, load, kind, &calls);
    let mut found: Vec<Way> = types.iter().filter_map(over).collect();
    found.sort_by(cheaper);
    found
}

/// The smallest volume of a type that does for the time between bursts, and drains in it.
struct Backing<'a> {
    known: &'a VolumeType,
    size: Bytes,
    usd_month: f64,
    /// What is left for a burst and its drain, in every month's bursts.
    rate: Bandwidth,
}

impl<'a> Backing<'a> {
    fn of(known: &'a VolumeType, load: &Load) -> Option<Self> {
        let offer = known.offer(load.capacity, &load.drain_limits(known), Supply::Sustained)?;
        let left = |limits: Limits| {
            let by_iops = limits.iops.map(|iops| {
                let left = iops.get().saturating_sub(load.between.map_or(0, surgetank_model::Iops::get));
                left.saturating_mul(operation(known).get())
            });
            let by_bandwidth = limits.bandwidth.map(|rate| rate.get().saturating_sub(load.between_cost(known)));
            let rate = by_iops.into_iter().chain(by_bandwidth).min()?;
            (rate > 0).then(|| Bandwidth::new(rate))
        };
        // On credits where these last, else what is sustained.
        let burst = left(known.limits_with(offer.size, &offer.bought))
            .filter(|rate| load.lasts(known, offer.size, 1, *rate, DRAIN_REQUEST));
        let rate = burst.or_else(|| left(known.sustained_with(offer.size, &offer.bought)))?;
        Some(Self { known, size: offer.size, usd_month: offer.usd_month?, rate })
    }

    fn elastic(&self, catalog: &Catalog, types: &[&VolumeType], load: &Load, kind: Kind, calls: &Calls) -> Option<Way> {
        let each_type = |known: &&VolumeType| {
            let least = included(known, known.size.min);
            let levels: Vec<Bandwidth> = least
                .into_iter()
                .chain(
                    LEVELS
                        .map(Bandwidth::from_mib_s)
                        .into_iter()
                        .filter(|level| least.is_none_or(|least| *level > least)),
                )
                .collect();
            levels.into_iter().filter_map(|each| self.striped(catalog, known, each, load, kind, calls)).min_by(cheaper)
        };
        types.iter().filter_map(each_type).min_by(cheaper)
    }

    /// With the fewest caching volumes of this kind that take the burst in time, and are gone before the next.
    fn striped(
        &self,
        catalog: &Catalog,
        caching: &VolumeType,
        each: Bandwidth,
        load: &Load,
        kind: Kind,
        calls: &Calls,
    ) -> Option<Way> {
        let lead = if kind == Kind::Reactive { SAMPLE + calls.create + calls.attach } else { Duration::ZERO };
        let left_s = load.within.checked_sub(lead).filter(|left| !left.is_zero())?.as_secs_f64();
        let alone = self.rate.get() as f64 * lead.as_secs_f64();
        let rest = (load.burst.get() as f64 - alone).max(0.0);
        let needed = rest / left_s - self.rate.get() as f64;
        // The backing volume alone is as fast: a static way.
        (needed > 0.0).then_some(())?;
        // What the backing volume does not take in time, the cache must hold.
        let cache = Bytes::new((rest - self.rate.get() as f64 * left_s).max(0.0).ceil() as u64);
        let boost = Boost { backing: self, caching, each, load, kind, calls, lead, cache };
        let most = Machine::default().volumes_max(catalog, Some(caching));
        let fewest = (needed / boost.gives(1)?.1 as f64).ceil().max(1.0);
        let fewest = (fewest <= f64::from(most)).then_some(fewest as u32)?;
        (fewest..=most).find_map(|volumes| boost.way(volumes, needed))
    }
}

/// What each burst is taken by, but for how many volumes the cache is striped over.
struct Boost<'a> {
    backing: &'a Backing<'a>,
    caching: &'a VolumeType,
    /// What is asked of each volume.
    each: Bandwidth,
    load: &'a Load,
    kind: Kind,
    calls: &'a Calls,
    /// From the burst's beginning until the stripe is there.
    lead: Duration,
    /// What it must hold.
    cache: Bytes,
}

impl Boost<'_> {
    /// Each of so many volumes, and its rate in the load's requests.
    fn gives(&self, volumes: u32) -> Option<(Offer, u64)> {
        let room = Bytes::new(self.cache.get() + self.cache.get().div_ceil(RECORDS));
        let need = Limits { bandwidth: Some(self.each), iops: None };
        let size = Bytes::new(room.get().div_ceil(u64::from(volumes)));
        let offer = self.caching.offer(size, &need, Supply::Sustained)?;
        let by_iops = offer.gives.iops.map(|iops| iops.get().saturating_mul(self.load.request.get()));
        let rate = offer.gives.bandwidth?.get().min(by_iops.unwrap_or(u64::MAX));
        Some((offer, rate))
    }

    /// With so many, if they give what is needed (bytes a second) and are gone before the next burst.
    fn way(&self, volumes: u32, needed: f64) -> Option<Way> {
        let Self { backing, caching, load, calls, cache, .. } = self;
        let (offer, rate) = self.gives(volumes)?;
        let all = rate.saturating_mul(u64::from(volumes));
        ((all as f64) >= needed).then_some(())?;
        let pipes = Pipes { backing: backing.rate, caching: Bandwidth::new(all) };
        let delays = Delays { boost: self.lead, quiet: QUIET, release: calls.detach };
        let Burst { absorb_s, occupied_s } = pipes.delayed(load.burst, *cache, Absorb::Split, &delays);
        // It is billed from when it is there, and must be gone before the next burst begins its own.
        let rented_s = calls.attach.as_secs_f64() + occupied_s;
        let from_call_s = calls.create.as_secs_f64() + rented_s;
        (from_call_s <= load.every.as_secs_f64()).then_some(())?;
        let billed = caching.billing.billed(Duration::try_from_secs_f64(rented_s).ok()?);
        let hours = f64::from(caching.billing.hours_per_month.max(1));
        let boost_usd = offer.usd_month? / hours * billed.as_secs_f64() / 3600.0 * f64::from(volumes);
        // Each byte of the cache is written once in the burst's requests, and read once by the drain.
        let cached = cache.get() as f64 / load.burst.get() as f64;
        let per_burst = cached * (load.burst_transactions(load.request) + load.burst_transactions(DRAIN_REQUEST));
        let each_usd = caching.price.as_ref().and_then(|price| price.transaction_usd()).unwrap_or_default();
        let cached_usd = each_usd * per_burst * f64::from(load.bursts_month);
        let transactions_usd = load.transactions_usd(backing.known, DRAIN_REQUEST) + cached_usd;
        let bursts_usd = boost_usd * f64::from(load.bursts_month);
        Some(Way {
            kind: self.kind,
            volume_type: backing.known.name.clone(),
            what: format!("{} with {}", named(1, backing.size, backing.known), named(volumes, offer.size, caching)),
            usd_month: backing.usd_month + bursts_usd + transactions_usd,
            transactions_usd,
            bursts_usd,
            burst_s: absorb_s,
            caching: Some(Caching {
                volume_type: caching.name.clone(),
                volumes,
                size_gib: offer.size.as_gib(),
                mib_s: Bandwidth::new(rate).as_mib_s(),
                backing_mib_s: backing.rate.as_mib_s(),
                boost_s: from_call_s,
            }),
            note: format!("each boost {rented_s:.0} s, billed {:.0} s", billed.as_secs_f64()),
        })
    }
}
