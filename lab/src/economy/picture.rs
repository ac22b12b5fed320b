//! The picture: for each provider, load and capacity the elastic device's money in per cent of the cheapest way without one.

use surgetank_model::Catalog;
use surgetank_report::chart::{Bar, Bars, Colour, Picture};

use super::text::{ALIKE, title};
use super::{Found, PROVIDERS};

const CHEAPER: Colour = Colour::BLUE;
const ALIKE_COLOUR: Colour = Colour::GREY;
const DEARER: Colour = Colour::PINK;
/// Longer bars end here, per cent; what they stand for is written behind them.
const LONGEST: f64 = 160.0;
/// With room for what is written behind the longest bar.
const UNTIL: f64 = 220.0;

/// One panel a provider.
pub fn draw(catalog: &Catalog, found: &[Found]) -> Picture {
    let picture = Picture::new("what elastic devices cost")
        .entry(CHEAPER, "elastic costs less than the cheapest other way")
        .entry(ALIKE_COLOUR, "the same within 5 %")
        .entry(DEARER, "it costs more");
    PROVIDERS.iter().fold(picture, |picture, provider| {
        let bars = found.iter().filter(|one| one.provider == *provider).map(bar).collect();
        let caption = format!("{}: elastic in per cent of the cheapest other way", title(catalog, provider));
        picture.bars(Bars { caption, unit: "%", until: Some(UNTIL), bars })
    })
}

fn bar(one: &Found) -> Bar {
    let name = format!("{}, {}", one.case.name, one.case.size);
    let (economy, other) = (&one.economy, super::text::cheapest_other(&one.economy));
    let (parts, text) = match (economy.ratio(), economy.elastic.first(), other) {
        (Some(ratio), Some(elastic), Some(other)) => {
            let colour = match ratio {
                _ if ALIKE.contains(&ratio) => ALIKE_COLOUR,
                _ if ratio < 1.0 => CHEAPER,
                _ => DEARER,
            };
            let text = format!("{:.0} %: ${:.0} in place of ${:.0}", ratio * 100.0, elastic.usd_month, other.usd_month);
            (vec![((ratio * 100.0).min(LONGEST), colour)], text)
        }
        (_, Some(elastic), None) => (vec![], format!("${:.0}, nothing else is as fast", elastic.usd_month)),
        (_, None, Some(other)) => (vec![], format!("no elastic device is as fast; ${:.0}", other.usd_month)),
        _ => (vec![], "nothing is as fast".to_owned()),
    };
    Bar { name, parts, text }
}
