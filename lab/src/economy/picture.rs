//! The picture: for each provider, load and capacity the elastic device's money over that of the cheapest way without one.

use surgetank_model::Catalog;
use surgetank_report::chart::{Bar, Bars, Colour, Picture};

use super::text::title;
use super::{Found, PROVIDERS};

const CHEAPER: Colour = Colour::BLUE;
const DEARER: Colour = Colour::PINK;
/// Longer bars end here, so that the others can be told apart.
const LONGEST: f64 = 2.0;

/// One panel a provider.
pub fn draw(catalog: &Catalog, found: &[Found]) -> Picture {
    let picture = Picture::new("what elastic devices cost")
        .entry(CHEAPER, "elastic costs less than the cheapest way that is as fast")
        .entry(DEARER, "elastic costs more");
    PROVIDERS.iter().fold(picture, |picture, provider| {
        let bars = found.iter().filter(|one| one.provider == *provider).map(bar).collect();
        let caption = format!("{}: elastic over cheapest other", title(catalog, provider));
        picture.bars(Bars { caption, unit: "×", bars })
    })
}

fn bar(one: &Found) -> Bar {
    let name = format!("{}, {}", one.case.name, one.case.size);
    let economy = &one.economy;
    let others = [&economy.fixed, &economy.in_place].into_iter().flatten().map(|way| way.usd_month);
    let other = others.min_by(f64::total_cmp);
    let (parts, text) = match (economy.ratio(), economy.elastic.first(), other) {
        (Some(ratio), Some(elastic), Some(other)) => (
            vec![(ratio.min(LONGEST), if ratio < 1.0 { CHEAPER } else { DEARER })],
            format!("{ratio:.2}: ${:.0} in place of ${other:.0} a month", elastic.usd_month),
        ),
        (_, Some(elastic), None) => {
            (vec![(0.0, CHEAPER)], format!("${:.0} a month, nothing else is as fast", elastic.usd_month))
        }
        (_, None, Some(other)) => (vec![(0.0, DEARER)], format!("no elastic way; static ${other:.0} a month")),
        _ => (vec![], "nothing is as fast".to_owned()),
    };
    Bar { name, parts, text }
}
