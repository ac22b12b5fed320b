//! The production controller over what the planner found: whether the simulator comes to the same money and the same time.

use anyhow::{Context, anyhow};
use surgetank_model::Catalog;
use surgetank_model::toml_error::Source;
use surgetank_planner::Mode;
use surgetank_planner::economy::{Caching, Load, Way};
use surgetank_planner::scenario::Scenario;
use surgetank_report::run::Spread;
use surgetank_whatif::{AppPhase, Fidelity, RunReport, Setup, run};

use super::Found;

/// Bursts that are simulated. The controller has seen none before, so the first ones are not expected.
pub const BURSTS: u32 = 24;

/// Stand for the papers' slow and fast disks: sold by size, and bandwidth follows the size, so that a bandwidth has a price.
pub const PAPERS_DISKS: [&str; 2] = ["gcp/pd-standard", "gcp/pd-ssd"];

/// A load as it came out.
pub struct Simulated {
    pub provider: &'static str,
    pub name: &'static str,
    pub size: &'static str,
    /// What ran.
    pub what: String,
    /// A month, as the planner says.
    pub predicted_usd: f64,
    /// The same in proportion to the simulated time.
    pub usd_month: f64,
    /// How long a burst may take, as the planner takes it.
    pub within_s: f64,
    /// How long a burst took: the median. The controller has to learn when they come, so that the first ones take longer.
    pub burst_s: f64,
    pub boosts: usize,
}

/// Every load without I/O between its bursts whose elastic way costs less than any other, where prices are by time alone.
pub fn all(catalog: &Catalog, found: &[Found]) -> anyhow::Result<Vec<Simulated>> {
    let wins = |one: &&Found| one.case.load.between.is_none() && one.economy.ratio().is_some_and(|ratio| ratio < 1.0);
    let mut all = Vec::new();
    for one in found.iter().filter(wins) {
        let Some(way) = one.economy.elastic.first().filter(|way| way.transactions_usd == 0.0) else { continue };
        let Some(caching) = &way.caching else { continue };
        all.push(
            simulate(catalog, one, way, caching).with_context(|| format!("{}, {}", one.case.name, one.case.size))?,
        );
    }
    Ok(all)
}

fn simulate(catalog: &Catalog, one: &Found, way: &Way, caching: &Caching) -> anyhow::Result<Simulated> {
    let text = scenario(catalog, one.provider, &one.case.load, way, caching);
    let source = Source { file: "economy.toml".into(), text };
    let scenario = Scenario::parse(&source, catalog)?;
    let mut setup = Setup::of(&scenario, None);
    setup.judge_by_bills();
    let report = run(&setup, Mode::Elastic, Fidelity::Fluid)?;
    let usd = report.cost.usd.ok_or_else(|| anyhow!("the run has no price"))?;
    let month_s = 730.0 * 3600.0;
    Ok(Simulated {
        provider: one.provider,
        name: one.case.name,
        size: one.case.size,
        what: way.what.clone(),
        predicted_usd: way.usd_month,
        usd_month: usd * month_s / report.end.as_seconds(),
        within_s: one.case.load.within.as_secs_f64(),
        burst_s: median(&report),
        boosts: report.boosts.len(),
    })
}

fn median(report: &RunReport) -> f64 {
    let writes = report.phases.iter().filter(|phase| matches!(phase.phase, AppPhase::Write(_)));
    Spread::of(writes.map(|phase| phase.time().as_secs_f64())).median
}

/// The papers' CM1 on disks of this provider that move what theirs do: elastic over static-fast in AGBs, then over static-fast and
/// static-slow in money.
pub fn papers(catalog: &Catalog) -> anyhow::Result<[f64; 3]> {
    let text = include_str!("../../../scenarios/cm1.toml")
        .replace("[backing]", &format!("[backing]\nvolume_type = \"{}\"", PAPERS_DISKS[0]))
        .replace("[caching]", &format!("[caching]\nvolume_type = \"{}\"", PAPERS_DISKS[1]));
    let scenario = Scenario::parse(&Source { file: "cm1.toml".into(), text }, catalog)?;
    let setup = Setup::of(&scenario, None);
    let cost = |mode| {
        let cost = run(&setup, mode, Fidelity::Fluid)?.cost;
        let usd = cost.usd.ok_or_else(|| anyhow!("the run has no price"))?;
        anyhow::Ok((cost.agbs, usd))
    };
    let (slow, fast, elastic) = (cost(Mode::StaticSlow)?, cost(Mode::StaticFast)?, cost(Mode::Elastic)?);
    Ok([elastic.0 / fast.0, elastic.1 / fast.1, elastic.1 / slow.1])
}

/// The scenario file of a load on what the planner found.
fn scenario(catalog: &Catalog, provider: &str, load: &Load, way: &Way, caching: &Caching) -> String {
    let latency = catalog.provider(provider).and_then(|provider| provider.latency.as_ref());
    let attach = latency.and_then(|latency| latency.attach).unwrap_or_default();
    let of = |span: Option<surgetank_model::units::Span>| span.unwrap_or(attach);
    let (create, detach) = latency.map_or((attach, attach), |latency| (of(latency.create), of(latency.detach)));
    let Load { capacity, burst, within, every, .. } = load;
    let compute_s = (*every - *within).as_secs_f64();
    let size_gib = caching.size_gib * f64::from(caching.volumes);
    // The planner's month: a volume that lives on credits sustains less than it gives to bursts.
    let usd_per_gib = (way.usd_month - way.bursts_usd - way.transactions_usd) / capacity.as_gib();
    format!(
        "interval = \"{compute_s} s\"\n[app]\nvms = 1\ncompute = \"{} s\"\ncheckpoints = {BURSTS}\ncheckpoint_size = \"{burst}\"\n\
         [backing]\nsize = \"{capacity}\"\nbandwidth = \"{:.3} MiB/s\"\nusd_per_gib_month = {usd_per_gib}\n\
         [caching]\nvolumes = {}\nbandwidth = \"{:.3} MiB/s\"\nvolume_type = \"{provider}/{}\"\ninitial_cache = \"{size_gib} GiB\"\n\
         [provider]\ncreate_s = \"{create}\"\nattach_s = \"{attach}\"\ndetach_s = \"{detach}\"\n",
        compute_s * f64::from(BURSTS),
        caching.backing_mib_s,
        caching.volumes,
        caching.mib_s,
        caching.volume_type,
    )
}
