//! A table, for a terminal, a page or Markdown.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement, presets};
use maud::{Markup, html};

/// A header and rows. Columns from the second on are numbers, aligned to the right.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    words: usize,
}

impl Table {
    /// Without rows.
    #[must_use]
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new(), words: 1 }
    }

    /// Without rows; the header as a line, "volume | MiB/s".
    #[must_use]
    pub fn of(header: &str) -> Self {
        Self::new(header.split('|').map(str::trim))
    }

    /// The same whose first so many columns are words, aligned to the left.
    #[must_use]
    pub fn words(self, words: usize) -> Self {
        Self { words, ..self }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The same with these rows after its own.
    #[must_use]
    pub fn with<S: Into<String>, R: IntoIterator<Item = S>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        rows.into_iter().for_each(|cells| self.row(cells));
        self
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As Markdown, with the end of its last line.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = (0..self.header.len()).map(|column| if column < self.words { "---|" } else { "---:|" });
        let rows = self.rows.iter().map(|cells| line(cells));
        format!("{}|{}\n{}", line(&self.header), rule.collect::<String>(), rows.collect::<String>())
    }

    pub(crate) fn html(&self) -> Markup {
        let left = |column: usize| (column < self.words).then_some("word");
        html! {
            // A table scrolls by itself where the page is narrow.
            div class="scroll" {
                table {
                    thead { tr { @for (column, name) in self.header.iter().enumerate() { th class=[left(column)] { (name) } } } }
                    tbody {
                        @for cells in &self.rows {
                            tr { @for (column, cell) in cells.iter().enumerate() { td class=[left(column)] { (cell) } } }
                        }
                    }
                }
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(&self.header).add_rows(&self.rows);
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_has_three_forms() {
        let table = Table::of("volume | MiB/s").with([["backing", "33"], ["<b>", "128"]]);
        assert_eq!(table.markdown(), "| volume | MiB/s |\n|---|---:|\n| backing | 33 |\n| <b> | 128 |\n");
        let text = table.to_string();
        assert!(text.contains(" backing      33 \n") && text.contains(" <b>         128 \n"), "{text}");
        let html = table.html().into_string();
        assert!(html.contains("<td class=\"word\">&lt;b&gt;</td><td>128</td>"), "{html}");
    }
}
