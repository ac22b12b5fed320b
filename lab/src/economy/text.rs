//! The document.

use std::fmt::Write as _;

use surgetank_model::Catalog;
use surgetank_model::units::Span;
use surgetank_planner::economy::{Economy, Way};
use surgetank_report::Table;
use surgetank_report::number::plain;

use super::simulated::{BURSTS, Simulated};
use super::{Found, PROVIDERS};

const HEAD: &str = "\
# Economy

What elastic devices cost in money beside volumes that are as fast, for four typical loads at three capacities, on each provider
of the catalog. `make economy` generates this page from `crates/model/src/catalog.toml`, the planner and the simulator; a test
refuses any other text. Do not edit it.

AGBs, the papers' measure, charge what a volume *reserves*: size × bandwidth × time. They flatter an elastic device, because providers
do not bill so: they include a bandwidth with every volume, whatever its size, and bill capacity. The demo's elastic run costs a third of
static-fast in AGBs, but 0.76 × static-fast and 2.3 × static-slow in money. This page is in money alone.

![elastic over the cheapest other way](pictures/economy.svg)
";

const METHOD: &str = "\
## What is compared

Every way takes **every** burst of a month within the time that the load allows; what does not, is not listed.

- *static*: the cheapest volume, or array of equal volumes, that is as fast for ever, or on burst credits that every pause earns back.
- *raised*: the cheapest single volume that does for the time between bursts, whose performance is raised in place for each burst and
  lowered as soon as the provider lets it be modified again.
- *elastic*: a single volume that does for the time between bursts, and for each burst a stripe of caching volumes, rented, drained and
  deleted. The bursts are announced (`surgetank boost`, or the forecast of a regular load), so that the stripe is there when a
  burst begins.
- *unannounced*: the same where a boost begins when the burst is seen: the backing volume alone serves until the stripe is there, so that
  more volumes must make up for the time.
";

/// A provider's name for people.
pub fn title(catalog: &Catalog, provider: &str) -> String {
    catalog.provider(provider).map_or_else(|| provider.to_owned(), |known| known.title.clone())
}

/// The whole page.
pub fn document(catalog: &Catalog, found: &[Found], simulated: &[Simulated]) -> String {
    let mut text = format!("{HEAD}\n{}\n{METHOD}\n{}\n", summary(found), loads(found));
    for provider in PROVIDERS {
        let of_provider: Vec<&Found> = found.iter().filter(|one| one.provider == provider).collect();
        let _ = writeln!(text, "{}", section(catalog, provider, &of_provider));
    }
    let _ = write!(
        text,
        "## OpenStack\n\nIts operators set limits and prices, so that there is nothing to compare until a catalog file gives them \
         (`--catalog`, [PLANNING.md](PLANNING.md#money)).\n\n{}\n{}\n{ASSUMPTIONS}",
        simulation(simulated),
        facts(catalog)
    );
    text
}

fn name(one: &Found) -> String {
    format!("{}, {}", one.case.name, one.case.size)
}

fn summary(found: &[Found]) -> String {
    let ratios = |holds: fn(f64) -> bool| {
        found.iter().filter(move |one| one.economy.ratio().is_some_and(holds)).collect::<Vec<_>>()
    };
    let (wins, loses) = (ratios(|ratio| ratio < 0.95), ratios(|ratio| ratio > 1.05));
    let even = ratios(|ratio| (0.95..=1.05).contains(&ratio));
    let without = found.iter().filter(|one| one.economy.elastic.is_empty()).count();
    let mut text = format!(
        "Of {} combinations an elastic device costs less in {}, about the same (within 5 %) in {}, more in {}; in {without} there is \
         no elastic way that is fast enough.\n\n## Where it loses\n\n",
        found.len(),
        wins.len(),
        even.len(),
        loses.len()
    );
    for one in loses.iter().chain(&even) {
        let (Some(elastic), Some(ratio)) = (one.economy.elastic.first(), one.economy.ratio()) else { continue };
        let Some(other) = cheapest_other(&one.economy) else { continue };
        let _ = writeln!(
            text,
            "- {}, {}: {ratio:.2} ×, {} in place of {} ({})",
            one.provider,
            name(one),
            dollars(elastic.usd_month),
            dollars(other.usd_month),
            other.what
        );
    }
    for one in found.iter().filter(|one| one.economy.elastic.is_empty()) {
        let instead = cheapest_other(&one.economy).map_or_else(
            || "nor is any other way".to_owned(),
            |other| format!("{} costs {}", other.what, dollars(other.usd_month)),
        );
        let _ = writeln!(text, "- {}, {}: no elastic way is fast enough; {instead}", one.provider, name(one));
    }
    text += "\nIt loses where the time between bursts needs a fast volume anyway, where a provider's included rates or credits carry the \
             bursts, where raising in place costs less, and where limits hold for a machine instead of a volume.\n";
    text
}

fn cheapest_other(economy: &Economy) -> Option<&Way> {
    let others = [&economy.fixed, &economy.in_place].into_iter().flatten();
    others.min_by(|one, other| one.usd_month.total_cmp(&other.usd_month))
}

fn dollars(usd: f64) -> String {
    if usd < 10.0 { format!("${usd:.2}") } else { format!("${usd:.0}") }
}

fn loads(found: &[Found]) -> String {
    let mut table = Table::of("load | capacity | a burst | within | MiB/s | every | a month | between").words(2);
    for one in found.iter().filter(|one| one.provider == PROVIDERS[0]) {
        let load = &one.case.load;
        table.row([
            one.case.name.to_owned(),
            one.case.size.to_owned(),
            load.burst.to_string(),
            Span(load.within).to_string(),
            format!("{:.0}", load.rate().as_mib_s()),
            Span(load.every).to_string(),
            load.bursts_month.to_string(),
            load.between.map_or_else(|| "nothing".to_owned(), |iops| format!("{iops}")),
        ]);
    }
    format!(
        "{}\nBursts are written in order, in requests of 1 MiB (checkpoints, dumps) or 256 KiB; between bursts there are random \
         requests of 8 KiB.\n",
        table.markdown()
    )
}

fn cell(way: Option<&Way>) -> [String; 2] {
    way.map_or_else(|| ["none".to_owned(), String::new()], |way| [way.what.clone(), dollars(way.usd_month)])
}

fn section(catalog: &Catalog, provider: &str, found: &[&Found]) -> String {
    let mut table =
        Table::of("load | static | a month | raised | a month | elastic | a month | over the cheaper | unannounced")
            .words(1);
    for one in found {
        let economy = &one.economy;
        let mut row = vec![name(one)];
        row.extend(cell(economy.fixed.as_ref()));
        row.extend(cell(economy.in_place.as_ref()));
        row.extend(cell(economy.elastic.first()));
        row.push(economy.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2} ×")));
        row.push(economy.reactive.as_ref().map_or_else(|| "too late".to_owned(), |way| dollars(way.usd_month)));
        table.row(row);
    }
    format!(
        "## {}\n\n{}\nOver each type of backing volume, USD a month, with its stripe:\n\n{}",
        title(catalog, provider),
        table.markdown(),
        over_each(catalog, provider, found)
    )
}

/// A column for each type that is a backing volume of any load.
fn over_each(catalog: &Catalog, provider: &str, found: &[&Found]) -> String {
    let used = |name: &str| found.iter().any(|one| one.economy.elastic.iter().any(|way| way.volume_type == name));
    let types: Vec<&str> = catalog
        .iter()
        .filter(|known| known.provider == provider && used(&known.name))
        .map(|known| known.name.as_str())
        .collect();
    let mut table = Table::new(["load"].into_iter().chain(types.iter().copied())).words(1);
    for one in found {
        let of = |name: &&str| {
            let way = one.economy.elastic.iter().find(|way| way.volume_type == *name);
            way.and_then(|way| Some((way, way.caching.as_ref()?))).map_or_else(
                || "none".to_owned(),
                |(way, caching)| {
                    let (volumes, gib) = (caching.volumes, plain(caching.size_gib));
                    format!("{} ({volumes} × {gib} GiB {})", dollars(way.usd_month), caching.volume_type)
                },
            )
        };
        table.row([name(one)].into_iter().chain(types.iter().map(of)));
    }
    table.markdown()
}

fn simulation(simulated: &[Simulated]) -> String {
    let mut table =
        Table::of("load | elastic | a month, planner | a month, simulated | within | a burst, simulated | boosts")
            .words(2);
    for one in simulated {
        table.row([
            format!("{}, {}, {}", one.provider, one.name, one.size),
            one.what.clone(),
            dollars(one.predicted_usd),
            dollars(one.usd_month),
            format!("{:.1} s", one.within_s),
            format!("{:.1} s", one.burst_s),
            one.boosts.to_string(),
        ]);
    }
    format!(
        "## The controller over it\n\nThe same by `surgetank simulate` (flows): the `adaptive` policy with nothing announced, which \
         learns when bursts come, over {BURSTS} bursts of the loads that have no I/O between them, where elastic costs less.\n\n{}",
        table.markdown()
    )
}

/// Everything of the catalog that the figures rest on.
fn facts(catalog: &Catalog) -> String {
    let mut table = Table::of("type | price | of | confidence | billed").words(2);
    for known in catalog.iter().filter(|known| PROVIDERS.contains(&known.provider.as_str())) {
        let Some(price) = &known.price else { continue };
        let least = Span(known.billing.billed(std::time::Duration::ZERO));
        table.row([
            known.key(),
            price.source.clone(),
            price.as_of.clone().unwrap_or_else(|| "undated".to_owned()),
            price.confidence.clone(),
            format!("by {}, at least {least}", known.billing.granularity),
        ]);
    }
    let mut text =
        format!("## Facts\n\nPrices are USD, list, on demand, for a month of 730 hours.\n\n{}\n", table.markdown());
    for provider in PROVIDERS {
        let Some(known) = catalog.provider(provider) else { continue };
        let _ = writeln!(text, "- **{}**", known.title);
        if let Some(of) = &known.attachments {
            let date = of.as_of.as_deref().unwrap_or("undated");
            let _ = writeln!(
                text,
                "  - a machine takes {} volumes: {} ({}, {date}, {})",
                of.most, of.says, of.source, of.confidence
            );
        }
        if let Some(of) = &known.latency {
            let (date, said) = (of.as_of.as_deref().unwrap_or("undated"), |span: Option<Span>| {
                span.map_or_else(|| "unknown".to_owned(), |span| span.to_string())
            });
            let _ = writeln!(
                text,
                "  - create {}, attach {}, detach {}: {} ({}, {date}, {})",
                said(of.create),
                said(of.attach),
                said(of.detach),
                of.says,
                of.source,
                of.confidence
            );
        }
        if let Some(of) = &known.modification {
            let date = of.as_of.as_deref().unwrap_or("undated");
            let _ = writeln!(text, "  - in place: {} ({}, {date}, {})", of.says, of.source, of.confidence);
        }
    }
    text
}

const ASSUMPTIONS: &str = "\
## Assumptions

- The machine's own bandwidth and its room for volumes are not counted beyond the attachment limit: take a machine that moves the
  burst's rate twice (`[machine]` in a scenario has its limits). Caching volumes stay below the limit together with the
  backing volume, for one device.
- Caches are taken for what they sustain, never for their credits. A backing volume or a static one may use burst credits, if a
  month's bursts one after the other find enough of them; a random I/O of a volume with bandwidth credits costs 1 MiB of
  them.
- A static array can be of any number of volumes up to the attachment limit. It is the simpler thing: no daemon, no drain.
- A stripe is sized by the fluid model of a split burst: just what the backing volume does not take in time, and a twentieth for the
  log's records. The controller waits 30 s after a burst, a boost that is not announced begins after a sample of 1 s.
- A drain takes at most half of the time between two bursts by the backing volume's sustained rate. A boost that is not over when the
  next burst comes counts as none.
- Where a provider's time to create or detach is unknown, it is taken to be as long as attaching. Latencies are medians or nine of
  ten; a boost that comes later than that is late.
- Transactions that a provider bills are counted: 256 KiB each, those of bursts, drains, caches and of the time between. Hourly caps of
  unknown height, which make them cheaper, are left out.
- Raising in place takes effect at once and is possible as often as the provider says; in fact it takes minutes to hours and must
  be asked for ahead.
- Snapshots, taxes, discounts, requests between availability zones and failures are left out. Caching volumes hold the only copy of a part
  of the newest data for the minutes of a boost; a static volume never does.
";
