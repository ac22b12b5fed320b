//! A page: everything inside, nothing fetched from elsewhere, in light and dark.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{Colour, Picture};
use crate::failure::Failure;
use crate::table::Table;

const STYLE: &str = "
:root{color-scheme:light dark;--edge:rgba(128,128,128,.3);--soft:rgba(128,128,128,.1)}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2.5rem auto;padding:0 1.2rem;
background:Canvas;color:CanvasText}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p.lead{font-size:1.1rem;margin:.3rem 0 1.4rem}p.note,footer{opacity:.75;font-size:.9rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:.8rem;margin:1.2rem 0}
.cards div{border:1px solid var(--edge);border-radius:8px;padding:.7rem .9rem}
.cards b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}.cards span{opacity:.75;font-size:.85rem}
.scroll{overflow-x:auto;margin-bottom:.6rem}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.35rem .7rem;border-bottom:1px solid var(--edge);white-space:nowrap}
th{font-weight:600;background:var(--soft)}.word{text-align:left}.word+td.word{white-space:normal;min-width:16rem}
table.facts td{text-align:left;white-space:normal}table.facts td:first-child{white-space:nowrap;opacity:.75;width:14rem}
svg{width:100%;min-width:46rem;height:auto;display:block}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem;margin:.2rem 0 .6rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.4rem;vertical-align:-.08rem}
";

/// A page that is being put together, part after part.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    parts: Vec<Markup>,
}

impl Page {
    /// With the window's title, a heading, and the answer in one sentence.
    #[must_use]
    pub fn new(title: &str, heading: &str, lead: &str) -> Self {
        let head = html! { h1 { (heading) } p class="lead" { (lead) } };
        Self { title: title.to_owned(), parts: vec![head] }
    }

    fn part(mut self, part: Markup) -> Self {
        self.parts.push(part);
        self
    }

    /// Begins a section.
    #[must_use]
    pub fn section(self, heading: &str) -> Self {
        self.part(html! { h2 { (heading) } })
    }

    /// Adds a paragraph.
    #[must_use]
    pub fn paragraph(self, text: &str) -> Self {
        self.part(html! { p { (text) } })
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(self, text: &str) -> Self {
        self.part(html! { p class="note" { (text) } })
    }

    /// Adds remarks.
    #[must_use]
    pub fn notes(self, texts: &[String]) -> Self {
        texts.iter().fold(self, |page, text| page.note(text))
    }

    /// Adds a table.
    #[must_use]
    pub fn table(self, table: &Table) -> Self {
        self.part(table.html())
    }

    /// Adds numbers that stand out, each with what it means.
    #[must_use]
    pub fn cards(self, cards: &[(String, &str)]) -> Self {
        self.part(html! {
            div class="cards" { @for (value, meaning) in cards { div { b { (value) } span { (meaning) } } } }
        })
    }

    /// Adds names and values.
    #[must_use]
    pub fn facts(self, facts: &[(String, String)]) -> Self {
        self.part(html! {
            table class="facts" { tbody { @for (name, value) in facts { tr { td { (name) } td { (value) } } } } }
        })
    }

    /// Adds a picture with its legend.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn picture(self, picture: &Picture) -> Result<Self, Failure> {
        let drawing = picture.inline()?;
        // As a table, it scrolls by itself where the page is so narrow that nobody could read it.
        Ok(self.part(html! { (legend(&picture.legend)) div class="scroll" { (PreEscaped(drawing)) } }))
    }

    /// The document; `footnote` follows the version.
    #[must_use]
    pub fn html(&self, footnote: &str) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width,initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    @for part in &self.parts { (part) "\n" }
                    footer { p { "surgetank " (env!("CARGO_PKG_VERSION")) (footnote) } }
                }
            }
        };
        page.into_string() + "\n"
    }
}

fn legend(entries: &[(Colour, String)]) -> Markup {
    html! {
        @if !entries.is_empty() {
            p class="legend" {
                @for (colour, name) in entries { span { i style={ "background:" (colour.css()) } {} (name) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_escapes_what_others_wrote_and_fetches_nothing() {
        let hostile = "<script src=\"x\">&";
        let page = Page::new(hostile, hostile, hostile)
            .section(hostile)
            .paragraph(hostile)
            .note(hostile)
            .cards(&[(hostile.to_owned(), hostile)])
            .facts(&[(hostile.to_owned(), hostile.to_owned())])
            .table(&Table::new([hostile]).with([[hostile]]))
            .picture(&Picture::new(hostile).entry(Colour::BLUE, hostile))
            .unwrap()
            .html(hostile);
        for outside in ["<script", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}: {page}");
        }
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
    }
}
