//! `surgetank price`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use surgetank_model::toml_error::nearest;
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits};
use surgetank_planner::price::{Need, PriceOption, options};
use surgetank_report::number::{dollars, plain, thousands};
use surgetank_report::{Failure, Table, output};

use super::{CatalogChoice, bare_iops};

/// Flags of `price`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank price --capacity \"500 GiB\" --iops \"30000 IOPS\"
  surgetank price --capacity \"1 TiB\" --throughput \"1 GiB/s\" --provider aws
  surgetank price --capacity \"500 GiB\" --catalog our-prices.toml --json

Arrays of equal volumes are options: for each type the least number of volumes at its lowest price. Options on \
burst credits follow the sustained ones. List prices, on demand, without taxes and snapshots. A catalog file \
overrides parts of the built-in one, for example:
  schema = 1
  [price.\"aws/gp3\"]
  gib_month_usd = 0.072
  iops_month_usd = [{ usd = 0.0045 }]")]
pub struct Arguments {
    /// What must fit
    #[arg(long, value_name = "S")]
    capacity: Bytes,
    /// Operations per second that must be served
    #[arg(long, value_name = "N", value_parser = bare_iops)]
    iops: Option<Iops>,
    /// Bandwidth that must be served
    #[arg(long, value_name = "R")]
    throughput: Option<Bandwidth>,
    /// One provider alone: aws, gcp, azure, openstack or local
    #[arg(long, value_name = "P")]
    provider: Option<String>,
    #[command(flatten)]
    catalog: CatalogChoice,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PriceAnswer<'a> {
    options: &'a [PriceOption],
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let catalog = self.catalog.load()?;
        if self.capacity == Bytes::ZERO {
            return Err(Failure::invalid("--capacity is zero: write what must fit, such as \"500 GiB\""));
        }
        check_provider(&catalog, self.provider.as_deref())?;
        let need = Need { capacity: self.capacity, limits: Limits { bandwidth: self.throughput, iops: self.iops } };
        let found = options(&catalog, &need, self.provider.as_deref());
        if self.json {
            output::print_json(&PriceAnswer { options: &found })?;
        }
        if found.is_empty() {
            return Err(Failure::Infeasible(self.nothing(&catalog)));
        }
        if self.json { Ok(()) } else { output::print(&text(&found)) }
    }

    /// Why nothing can be rented, and what nearly can.
    fn nothing(&self, catalog: &Catalog) -> String {
        let mut wanted = vec![self.capacity.to_string()];
        wanted.extend(self.iops.map(|iops| iops.to_string()));
        wanted.extend(self.throughput.map(|rate| rate.to_string()));
        let without = Need { capacity: self.capacity, limits: Limits::NONE };
        let capacity = options(catalog, &without, self.provider.as_deref()).len();
        let nearest = if capacity == 0 {
            "no array of volumes is so large: ask for less".to_owned()
        } else {
            format!("the capacity alone has {capacity} options: ask for less IOPS or throughput")
        };
        format!("nothing in the catalog gives {}; {nearest}", wanted.join(" with "))
    }
}

/// Whether the catalog has this provider.
///
/// # Errors
/// The nearest name.
pub fn check_provider(catalog: &Catalog, wanted: Option<&str>) -> Result<(), Failure> {
    let Some(wanted) = wanted else { return Ok(()) };
    let mut known: Vec<&str> = catalog.iter().map(|known| known.provider.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    if known.contains(&wanted) {
        return Ok(());
    }
    let list = known.join(", ");
    Err(Failure::Invalid(match nearest(wanted, known.into_iter()) {
        Some(near) => format!("there is no provider \"{wanted}\": did you mean \"{near}\"? Known are {list}"),
        None => format!("there is no provider \"{wanted}\": known are {list}"),
    }))
}

const HEADER: [&str; 7] = ["option", "volumes", "IOPS", "MiB/s", "a month", "sustained", "price of"];

fn row(option: &PriceOption) -> [String; 7] {
    let date = option.price_as_of.as_deref().unwrap_or("unknown");
    let confidence = option.price_confidence.as_ref().map_or(String::new(), |confidence| format!(", {confidence}"));
    [
        format!("{}/{}", option.provider, option.volume_type),
        format!("{} × {} GiB", option.volumes, plain(option.size_gib)),
        option.iops.map_or_else(|| "not limited".to_owned(), |iops| thousands(iops as f64)),
        option.throughput_mib_s.map_or_else(|| "not limited".to_owned(), thousands),
        match option.transactions_10k_usd {
            None => dollars(option.usd_month, 2),
            Some(_) => format!("{} + transactions", dollars(option.usd_month, 2)),
        },
        if option.sustained { "yes" } else { "on credits" }.to_owned(),
        format!("{date}{confidence}"),
    ]
}

fn text(found: &[PriceOption]) -> String {
    let table = Table::new(HEADER).with(found.iter().map(row));
    let mut text = format!("{table}\n");
    // The same note of many types is said once.
    let mut notes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for option in found {
        for part in option.note.split("; ").filter(|part| !part.is_empty()) {
            let name = format!("{} × {}/{}", option.volumes, option.provider, option.volume_type);
            let names = notes.entry(part).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    for (note, names) in notes {
        let _ = write!(text, "\n- {}: {note}", names.join(", "));
    }
    text
}
