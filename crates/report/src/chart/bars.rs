//! Bars from left to right, each with a name before it and a text behind it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Colour, Drawn, ink};

const BAR_HEIGHT: u32 = 24;
const HEAD_HEIGHT: u32 = 64;
const NAMES_WIDTH: u32 = 230;

/// A bar. Without name and parts it is a gap.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// What it stands for.
    pub name: String,
    /// Lengths, one behind the other.
    pub parts: Vec<(f64, Colour)>,
    /// The lengths in figures.
    pub text: String,
}

/// Bars below each other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above them.
    pub caption: String,
    /// Of their lengths.
    pub unit: &'static str,
    /// Where the axis ends, so that panels can be compared, and cuts longer bars; `None`: a little behind the longest bar.
    pub until: Option<f64>,
    /// From the top.
    pub bars: Vec<Bar>,
}

impl Bars {
    pub(super) fn height(&self) -> u32 {
        HEAD_HEIGHT + BAR_HEIGHT * self.bars.len() as u32
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Drawn {
        let lengths = self.bars.iter().map(|bar| bar.parts.iter().map(|part| part.0).sum::<f64>());
        let longest = self.until.unwrap_or_else(|| lengths.fold(1e-9, f64::max) * 1.15);
        let count = self.bars.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_left(NAMES_WIDTH)
            .margin_right(20)
            .caption(&self.caption, ink(14))
            .x_label_area_size(24)
            .build_cartesian_2d(0.0..longest, 0.0..count)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(Colour::INK.faint(0.12).style())
            .axis_style(Colour::INK.faint(0.5).style())
            .label_style(ink(12))
            .x_labels(8)
            .x_label_formatter(&|x| format!("{x:.0} {}", self.unit))
            .draw()?;
        let (_, above) = area.get_base_pixel();
        for (index, bar) in self.bars.iter().enumerate() {
            let top = count - index as f64;
            let mut from = 0.0;
            for (length, colour) in &bar.parts {
                let corners = [(from, top - 0.85), (from + length, top - 0.15)];
                chart.draw_series([Rectangle::new(corners, colour.style().filled())])?;
                from += length;
            }
            // Behind a bar that the axis cuts there is no room.
            let (text, at, style) = match from <= longest {
                true => (bar.text.clone(), from + longest * 0.005, ink(12)),
                false => (format!("{} →", bar.text), longest, ink(12).pos(Pos::new(HPos::Right, VPos::Top))),
            };
            chart.draw_series([Text::new(text, (at, top - 0.25), style)])?;
            let (_, y) = chart.backend_coord(&(0.0, top - 0.5));
            area.draw(&Text::new(bar.name.as_str(), (6, y - above - 6), ink(13)))?;
        }
        Ok(())
    }
}
