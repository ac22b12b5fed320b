//! The document.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use surgetank_model::Catalog;
use surgetank_model::units::Span;
use surgetank_planner::economy::{Economy, Kind, Way};
use surgetank_report::Table;
use surgetank_report::number::plain;

use super::simulated::{BURSTS, PAPERS_DISKS, Simulated};
use super::{Found, PROVIDERS};

const HEAD: &str = "\
# Economy

What elastic devices cost in money beside volumes that are as fast, for four typical loads at three capacities, on each provider
of the catalog. `make economy` generates this page from `crates/model/src/catalog.toml`, the planner and the simulator; a test
refuses any other text. Do not edit it.

";

/// What AGBs hide.
fn agbs([agbs, of_fast, of_slow]: [f64; 3]) -> String {
    let [slow, fast] = PAPERS_DISKS;
    format!(
        "AGBs, the papers' measure, charge what a volume *reserves*: size × bandwidth × time. They flatter an elastic device, because\n\
         providers do not bill so: they include a bandwidth with every volume and bill capacity, or sell both together. The papers'\n\
         CM1, simulated on {slow} and {fast} that move what the papers' disks moved, costs {agbs:.2} × static-fast in AGBs, but\n\
         {of_fast:.2} × static-fast and {of_slow:.1} × static-slow in money. This page is in money alone.\n\n\
         ![elastic over the cheapest other way](pictures/economy.svg)\n"
    )
}

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

/// Money over money that counts as the same.
pub const ALIKE: RangeInclusive<f64> = 0.95..=1.05;

/// A provider's name for people.
pub fn title(catalog: &Catalog, provider: &str) -> String {
    catalog.provider(provider).map_or_else(|| provider.to_owned(), |known| known.title.clone())
}

/// The whole page.
pub fn document(catalog: &Catalog, found: &[Found], simulated: &[Simulated], papers: [f64; 3]) -> String {
    let mut text = format!("{HEAD}{}\n{}\n{METHOD}\n{}\n", agbs(papers), summary(found), loads(found));
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
    let (wins, loses) = (ratios(|ratio| ratio < *ALIKE.start()), ratios(|ratio| ratio > *ALIKE.end()));
    let even = ratios(|ratio| ALIKE.contains(&ratio));
    let without = found.iter().filter(|one| one.economy.elastic.is_empty()).count();
    let slow = match without {
        0 => String::new(),
        _ => format!("; in {without} no elastic device is fast enough"),
    };
    let mut text = format!(
        "Of {} combinations of a load, a capacity and a provider, an elastic device costs less in {}, the same within 5 % in {}, and\n\
         more in {}{slow}.\n\n## Where it loses\n\nIt costs more:\n\n",
        found.len(),
        wins.len(),
        even.len(),
        loses.len()
    );
    compared(&mut text, &loses);
    text += "\nIt costs the same, so that it is not worth its daemon:\n\n";
    compared(&mut text, &even);
    for one in found.iter().filter(|one| one.economy.elastic.is_empty()) {
        let instead = cheapest_other(&one.economy).map_or_else(
            || "nor is any other way".to_owned(),
            |other| format!("{} costs {}", other.what, dollars(other.usd_month)),
        );
        let _ = writeln!(text, "- {}, {}: no elastic way is fast enough; {instead}", one.provider, name(one));
    }
    text += "\nIt loses where the time between bursts needs a fast volume anyway, where the rates that a provider includes or its credits\n\
             carry the bursts, and where raising in place costs less.\n";
    text
}

/// A line each: the elastic device and the cheapest other way.
fn compared(text: &mut String, found: &[&Found]) {
    for one in found {
        let (Some(elastic), Some(ratio)) = (one.economy.elastic.first(), one.economy.ratio()) else { continue };
        let Some(other) = cheapest_other(&one.economy) else { continue };
        let _ = writeln!(
            text,
            "- {}, {}: {ratio:.2} ×, {} in place of {} ({}{})",
            one.provider,
            name(one),
            dollars(elastic.usd_month),
            dollars(other.usd_month),
            other.what,
            if other.kind == Kind::InPlace { ", raised" } else { "" }
        );
    }
}

/// The cheapest without an elastic device.
pub fn cheapest_other(economy: &Economy) -> Option<&Way> {
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
            seconds(Span(load.within)),
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

/// "10.24 s", "5 min".
fn seconds(span: Span) -> String {
    match span.0.subsec_millis() {
        0 => span.to_string(),
        _ => format!("{} s", plain(span.0.as_secs_f64())),
    }
}

fn cell(way: Option<&Way>) -> String {
    way.map_or_else(|| "none".to_owned(), |way| format!("{} ({})", dollars(way.usd_month), way.what))
}

fn section(catalog: &Catalog, provider: &str, found: &[&Found]) -> String {
    let mut table = Table::of("load | static | raised | elastic | over the cheaper | unannounced").words(1);
    for one in found {
        let economy = &one.economy;
        let mut row = vec![name(one)];
        row.extend([economy.fixed.as_ref(), economy.in_place.as_ref(), economy.elastic.first()].map(cell));
        row.push(economy.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2} ×")));
        row.push(economy.reactive.as_ref().map_or_else(|| "too late".to_owned(), |way| dollars(way.usd_month)));
        table.row(row);
    }
    format!(
        "## {}\n\nUSD a month.\n\n{}\nOver each type of backing volume, USD a month, with its stripe:\n\n{}",
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
        "## The controller over it\n\nThe planner's comparison assumes a perfect controller. The simulator runs the one that ships, as\n\
         `surgetank simulate` does (flows): the `adaptive` policy, which nobody tells when bursts come, over {BURSTS} bursts of the loads\n\
         without I/O between them, where elastic costs less and nothing is billed by the transaction. A burst is the median:\n\
         the first ones, which the policy cannot expect, take longer.\n\n{}{}",
        table.markdown(),
        late(simulated)
    )
}

/// Where the controller does less than the planner's comparison asks for.
fn late(simulated: &[Simulated]) -> String {
    let late = simulated.iter().filter(|one| one.burst_s > one.within_s * *ALIKE.end());
    let names: Vec<String> = late.map(|one| format!("{}, {}, {}", one.provider, one.name, one.size)).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "\nLate in {} of {}: {}. The policy judges each boost by what it costs and by what a second is worth, twice what the\n\
         backing volume costs; over a cheap one that is little, and it takes a smaller cache. With a higher `value_of_time` it is in\n\
         time.\n",
        names.len(),
        simulated.len(),
        names.join("; ")
    )
}

/// Everything of the catalog that the figures rest on.
fn facts(catalog: &Catalog) -> String {
    let mut table = Table::of("type | price | of | confidence | billed").words(2);
    for known in catalog.iter().filter(|known| PROVIDERS.contains(&known.provider.as_str())) {
        let Some(price) = &known.price else { continue };
        let least = known.billing.billed(std::time::Duration::ZERO);
        let at_least = if least.is_zero() { String::new() } else { format!(", at least {}", Span(least)) };
        table.row([
            known.key(),
            price.source.clone(),
            price.as_of.clone().unwrap_or_else(|| "undated".to_owned()),
            price.confidence.clone(),
            format!("by {}{at_least}", known.billing.granularity),
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
                span.map_or_else(|| "unknown".to_owned(), seconds)
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
- The volume under an elastic device is one volume: over an array of small ones it could cost less yet where a provider's tiers or
  credits favour these.
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
