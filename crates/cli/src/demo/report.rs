//! The demo's answers for people: the table on the terminal and the self-contained page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::chart::{self, Curve, css, thousands};
use super::outcome::{ModeOutcome, Outcome};
use super::plan::Mode;
use crate::failure::{Doing, Failure};
use crate::output;

const HEADER: [&str; 7] = ["mode", "completion", "vs fast", "AGBs", "vs fast", "money", "write MiB/s"];

fn row(mode: Mode, found: &ModeOutcome) -> [String; 7] {
    [
        mode.name().to_owned(),
        format!("{:.1} s", found.completion_s),
        format!("{:+.1} %", (found.overhead_ratio - 1.0) * 100.0),
        thousands(found.cost_agbs),
        format!("× {:.2}", found.cost_ratio),
        found.cost_usd.map_or_else(|| "unknown".to_owned(), |usd| format!("${usd:.4}")),
        found.write_mib_s.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")),
    ]
}

const BOOST_HEADER: [&str; 7] = ["boost", "began", "attach", "absorb", "drain", "cache", "most used"];

fn boost_rows(outcome: &Outcome) -> Vec<[String; 7]> {
    let boosts = outcome.modes.get(&Mode::Elastic).map(|elastic| elastic.boosts.as_slice()).unwrap_or_default();
    let rows = boosts.iter().enumerate().map(|(index, boost)| {
        [
            (index + 1).to_string(),
            format!("{:.1} s", boost.start_s),
            format!("{:.2} s", boost.attach_s),
            format!("{:.2} s", boost.absorb_s),
            format!("{:.2} s", boost.drain_s),
            format!("{:.0} MiB", boost.cache_gib * 1024.0),
            format!("{:.0} MiB", boost.high_water_gib * 1024.0),
        ]
    });
    rows.collect()
}

/// What the run shows, in one sentence.
#[must_use]
pub fn verdict(outcome: &Outcome) -> String {
    let Some(elastic) = outcome.modes.get(&Mode::Elastic) else { return "The elastic mode did not run.".into() };
    let verified = match outcome.verified {
        Some(true) => "; every byte was verified",
        Some(false) => "; NOT every byte was verified",
        None => "",
    };
    let finishes = if outcome.verified.is_some() { "finished" } else { "finishes" };
    format!(
        "The elastic device {finishes} in {:.3} of static-fast's time at {:.2} of its cost{verified}.",
        elastic.overhead_ratio, elastic.cost_ratio
    )
}

/// The tables and the verdict, for a terminal.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let mut table = output::table(&HEADER);
    for (mode, found) in &outcome.modes {
        table.add_row(row(*mode, found));
    }
    let mut text = format!("{table}\n");
    let boosts = boost_rows(outcome);
    if !boosts.is_empty() {
        let mut table = output::table(&BOOST_HEADER);
        for row in boosts {
            table.add_row(row);
        }
        let _ = writeln!(text, "\n{table}");
    }
    let _ = write!(text, "\n{}", verdict(outcome));
    for (name, value) in outcome.parameters.iter().filter(|(name, _)| name == "money") {
        let _ = write!(text, "\n{name}: {value}");
    }
    text
}

/// Text as HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table that scrolls by itself where the page is narrow.
#[must_use]
pub fn html_table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
    for name in header {
        let _ = write!(html, "<th>{}</th>", escape(name));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}

fn legend(entries: &[(String, String)]) -> String {
    let mut html = String::from("<p class=\"legend\">");
    for (colour, name) in entries {
        let _ = write!(html, "<span><i style=\"background:{colour}\"></i>{}</span>", escape(name));
    }
    html.push_str("</p>");
    html
}

/// How our pages look, in light and dark.
pub const STYLE: &str = "
:root{color-scheme:light dark;--edge:rgba(128,128,128,.3);--soft:rgba(128,128,128,.1)}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2.5rem auto;padding:0 1.2rem;
background:Canvas;color:CanvasText}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p.lead{font-size:1.1rem;margin:.3rem 0 1.4rem}p.note,footer{opacity:.75;font-size:.9rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:.8rem;margin:1.2rem 0}
.cards div{border:1px solid var(--edge);border-radius:8px;padding:.7rem .9rem}
.cards b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}.cards span{opacity:.75;font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.35rem .7rem;border-bottom:1px solid var(--edge);white-space:nowrap}
th{font-weight:600;background:var(--soft)}th:first-child,td:first-child{text-align:left}
table.facts td{text-align:left;white-space:normal}table.facts td:first-child{white-space:nowrap;opacity:.75;width:14rem}
svg{width:100%;height:auto;display:block}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem;margin:.2rem 0 .6rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.4rem;vertical-align:-.08rem}
";

fn card(value: &str, what: &str) -> String {
    format!("<div><b>{}</b><span>{}</span></div>", escape(value), escape(what))
}

fn cards(outcome: &Outcome) -> String {
    let Some(elastic) = outcome.modes.get(&Mode::Elastic) else { return String::new() };
    let mib = outcome.verified_bytes >> 20;
    let verified = match outcome.verified {
        Some(true) => {
            card(&format!("{} MiB", thousands(mib as f64)), "read back from the backing volumes alone and matched")
        }
        Some(false) => card("no", "read back from the backing volumes alone and matched"),
        None => card(&outcome.vms.unwrap_or(1).to_string(), "VMs, all alike in cost and series: one is shown"),
    };
    [
        "<div class=\"cards\">".to_owned(),
        card(&format!("{:.3}", elastic.overhead_ratio), "of static-fast's completion time"),
        card(&format!("{:.2}", elastic.cost_ratio), "of static-fast's cost in AGBs"),
        card(&elastic.boosts.len().to_string(), "boosts: caching volumes rented and given back"),
        verified,
        "</div>".to_owned(),
    ]
    .concat()
}

/// The page: everything inside, nothing fetched from elsewhere.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(outcome: &Outcome) -> Result<String, Failure> {
    let modes: Vec<_> = outcome.modes.iter().map(|(mode, found)| row(*mode, found).to_vec()).collect();
    let boosts: Vec<_> = boost_rows(outcome).into_iter().map(|row| row.to_vec()).collect();
    let io_legend = [
        (css(chart::APPLICATION), "application writes".to_owned()),
        (css(chart::CACHE), "writes to the caching volume".to_owned()),
        (css(chart::BACKING), "writes to the backing volume, drain included".to_owned()),
        (css(chart::DRAIN), "drain".to_owned()),
    ];
    let cost_legend: Vec<_> =
        outcome.modes.keys().map(|mode| (css(chart::mode_colour(*mode)), mode.name().to_owned())).collect();
    let mut facts = String::from("<table class=\"facts\"><tbody>");
    for (name, value) in &outcome.parameters {
        let _ = write!(facts, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
    }
    facts.push_str("</tbody></table>");
    let boosts = if boosts.is_empty() {
        String::new()
    } else {
        format!("<h2>Boosts of the elastic device</h2>{}", html_table(&BOOST_HEADER, &boosts))
    };
    let body = format!(
        "{cards}\n{modes}\n\
         <h2>I/O activity over time</h2>{io_legend}{activity}\
         <p class=\"note\">Shaded: the application writes. Averages over each sampling interval.</p>\n\
         <h2>Accumulated cost over time</h2>{cost_legend}{cost}\
         <p class=\"note\">AGBs: size in GB × reserved bandwidth in MB/s × seconds.</p>\n\
         {boosts}\n<h2>Parameters</h2>{facts}\n\
         <footer><p>surgetank {version}{date}</p></footer>\n",
        cards = cards(outcome),
        modes = html_table(&HEADER, &modes),
        io_legend = legend(&io_legend),
        activity = chart::activity(outcome)?,
        cost_legend = legend(&cost_legend),
        cost = chart::cost(outcome)?,
        version = env!("CARGO_PKG_VERSION"),
        date = if outcome.date.is_empty() { String::new() } else { format!(", {}", escape(&outcome.date)) },
    );
    Ok(frame(outcome.title, &verdict(outcome), &body))
}

/// A page of ours around `body`.
#[must_use]
pub fn frame(title: &str, lead: &str, body: &str) -> String {
    let (title, lead) = (escape(title), escape(lead));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1><p class=\"lead\">{lead}</p>{body}</body></html>\n"
    )
}

/// Curves of several modes with their legend, for a page.
///
/// # Errors
/// If they cannot be drawn.
pub fn curves(title: &str, x: &str, y: &str, curves: &[Curve]) -> Result<String, Failure> {
    let names: Vec<_> = curves.iter().map(|curve| (css(curve.colour), curve.name.to_owned())).collect();
    Ok(format!("{}{}", legend(&names), chart::curves(title, x, y, curves)?))
}

/// Writes `report.html` and `report.json` into a directory, which is made if it is not there. Returns the page's path.
///
/// # Errors
/// If they cannot be made or written.
pub fn write(outcome: &Outcome, directory: &Path) -> Result<PathBuf, Failure> {
    let text = serde_json::to_string_pretty(outcome).doing(|| "cannot write the report as JSON".to_owned())?;
    write_pair(directory, &html(outcome)?, &text)
}

/// As [`write`], with both texts at hand.
///
/// # Errors
/// If they cannot be written.
pub fn write_pair(directory: &Path, page: &str, data: &str) -> Result<PathBuf, Failure> {
    std::fs::create_dir_all(directory).doing(|| format!("cannot make the directory {}", directory.display()))?;
    let path = directory.join("report.html");
    output::write_whole(&directory.join("report.json"), data)?;
    output::write_whole(&path, page)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::sample;

    #[test]
    fn the_page_fetches_nothing() {
        let mut outcome = sample::outcome();
        outcome.parameters.push(("kernel".into(), "<b>&\"".into()));
        let page = html(&outcome).unwrap();
        for outside in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        let links: Vec<_> = page.matches("http").collect();
        assert_eq!(links.len(), page.matches("http://www.w3.org/2000/svg").count());
        assert!(page.contains("&lt;b&gt;&amp;&quot;"));
        if let Some(path) = std::env::var_os("SURGETANK_TEST_REPORT") {
            std::fs::write(path, page).unwrap();
        }
    }

    #[test]
    fn the_text_has_a_row_for_each_mode() {
        let text = text(&sample::outcome());
        for mode in Mode::ALL {
            assert!(text.contains(mode.name()), "{text}");
        }
        assert!(text.contains("every byte was verified"));
    }
}
