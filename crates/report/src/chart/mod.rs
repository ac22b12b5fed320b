//! Pictures as SVG: panels with axes and marks, or with bars.
//!
//! In a page a picture has no background and draws text and axes in the page's own colour, so it fits light and dark
//! ones. A file of its own has a white background and its legend inside.

mod bars;
mod plot;

use plotters::coord::Shift;
use plotters::prelude::*;

pub use bars::{Bar, Bars};
pub use plot::{Axis, Mark, Plot, stairs};

use crate::failure::{Doing, Failure};

/// A colour, and how much it covers of what is below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Colour {
    red: u8,
    green: u8,
    blue: u8,
    opacity: f64,
}

/// Colours that keep apart on light and dark pages and for the colour-blind (after Okabe and Ito).
impl Colour {
    /// The application, the elastic mode, ours.
    pub const BLUE: Self = Self::new(0x56, 0xa0, 0xd3);
    /// Caching volumes, the fast mode.
    pub const ORANGE: Self = Self::new(0xe6, 0x9f, 0x00);
    /// The backing volume, the slow mode.
    pub const GREEN: Self = Self::new(0x00, 0x9e, 0x73);
    /// The drain, what stands out.
    pub const PINK: Self = Self::new(0xcc, 0x4f, 0x7a);
    /// What others are compared with.
    pub const GREY: Self = Self::new(0x99, 0x99, 0x99);
    /// Stands for the colour of text while a picture is drawn.
    pub const INK: Self = Self::new(1, 2, 3);

    const fn new(red: u8, green: u8, blue: u8) -> Self {
        Self { red, green, blue, opacity: 1.0 }
    }

    /// The same, covering only so much.
    #[must_use]
    pub const fn faint(self, opacity: f64) -> Self {
        Self { opacity, ..self }
    }

    /// `#rrggbb`.
    #[must_use]
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.red, self.green, self.blue)
    }

    fn style(self) -> RGBAColor {
        RGBColor(self.red, self.green, self.blue).mix(self.opacity)
    }
}

/// A panel of a picture.
#[derive(Clone, Debug)]
pub enum Panel {
    /// Axes with marks.
    Plot(Plot),
    /// Bars from left to right.
    Bars(Bars),
}

impl Panel {
    fn height(&self) -> u32 {
        match self {
            Self::Plot(plot) => plot.height,
            Self::Bars(bars) => bars.height(),
        }
    }
}

/// Panels, one below the other.
#[derive(Clone, Debug)]
pub struct Picture {
    label: String,
    pub(crate) legend: Vec<(Colour, String)>,
    panels: Vec<Panel>,
}

const WIDTH: u32 = 960;
const LEGEND_HEIGHT: u32 = 28;
/// Text of a file of its own.
const DARK: &str = "#222222";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Picture {
    /// Without panels. The label is for those who cannot see it, and for errors.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), legend: Vec::new(), panels: Vec::new() }
    }

    /// Adds a colour's meaning to the legend.
    #[must_use]
    pub fn entry(mut self, colour: Colour, meaning: &str) -> Self {
        self.legend.push((colour, meaning.to_owned()));
        self
    }

    /// Adds a panel at the bottom.
    #[must_use]
    pub fn plot(mut self, plot: Plot) -> Self {
        self.panels.push(Panel::Plot(plot));
        self
    }

    /// Adds a panel at the bottom.
    #[must_use]
    pub fn bars(mut self, bars: Bars) -> Self {
        self.panels.push(Panel::Bars(bars));
        self
    }

    /// To stand in a page, which writes the legend itself.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub(crate) fn inline(&self) -> Result<String, Failure> {
        let height = self.panels.iter().map(Panel::height).sum::<u32>().max(1);
        let drawn = self.draw(height, |area| self.draw_panels(area))?;
        let sized = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
        Ok(drawn.replace(&Colour::INK.css(), "currentColor").replacen(&sized, "<svg role=\"img\"", 1))
    }

    /// To stand in a file of its own.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn file(&self) -> Result<String, Failure> {
        let legend_height = if self.legend.is_empty() { 0 } else { LEGEND_HEIGHT };
        let height = legend_height + self.panels.iter().map(Panel::height).sum::<u32>().max(1);
        let drawn = self.draw(height, |area| {
            area.fill(&WHITE)?;
            let (top, rest) = area.split_vertically(legend_height);
            self.draw_legend(&top)?;
            self.draw_panels(&rest)
        })?;
        Ok(drawn.replace(&Colour::INK.css(), DARK))
    }

    fn draw(&self, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, Failure> {
        let mut text = String::new();
        let drawn = (|| {
            let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
            draw(&area)?;
            Ok::<(), Box<dyn std::error::Error>>(area.present()?)
        })();
        drawn.doing(|| format!("cannot draw the picture \"{}\"", self.label))?;
        // The backend leaves blanks at ends of lines, and empty lines.
        Ok(text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(|line| line.to_owned() + "\n").collect())
    }

    fn draw_panels(&self, area: &Area<'_>) -> Drawn {
        let mut rest = area.clone();
        for panel in &self.panels {
            let (top, below) = rest.split_vertically(panel.height());
            match panel {
                Panel::Plot(plot) => plot.draw(&top)?,
                Panel::Bars(bars) => bars.draw(&top)?,
            }
            rest = below;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        let mut x = 84;
        for (colour, meaning) in &self.legend {
            area.draw(&Rectangle::new([(x, 8), (x + 14, 20)], colour.style().filled()))?;
            area.draw(&Text::new(meaning.as_str(), (x + 20, 8), ink(13)))?;
            x += 44 + 7 * i32::try_from(meaning.chars().count()).unwrap_or(0);
        }
        Ok(())
    }
}

fn ink(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&Colour::INK.style())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(points: Vec<(f64, f64)>) -> Picture {
        let plot = Plot::new("", 300, Axis::seconds(10.0), Axis::linear("MiB/s", 0.0..5.0));
        let bar = Bar { name: "a<b".to_owned(), parts: vec![(2.0, Colour::BLUE)], text: "2".to_owned() };
        Picture::new("a picture")
            .entry(Colour::BLUE, "what it is")
            .plot(plot.mark(Mark::line(points, Colour::BLUE, 2)))
            .bars(Bars { caption: "bars".to_owned(), unit: "s", until: None, bars: vec![bar] })
    }

    #[test]
    fn pictures_take_the_pages_colour() {
        let text = picture(vec![(0.0, 1.0), (10.0, 2.0)]).inline().unwrap();
        assert!(text.starts_with("<svg role=\"img\""), "{}", &text[..80]);
        assert!(text.contains("currentColor") && !text.contains(&Colour::INK.css()) && !text.contains("NaN"));
        assert!(!text.contains("what it is"));
    }

    #[test]
    fn a_file_has_its_legend_and_its_own_colour() {
        let text = picture(vec![(0.0, 1.0), (10.0, 2.0)]).file().unwrap();
        assert!(text.starts_with("<svg width=") && text.ends_with("</svg>\n") && text.contains("what it is"));
        assert!(!text.contains("currentColor") && !text.contains(&Colour::INK.css()) && text.contains(DARK));
        assert!(text.contains("a&lt;b") && !text.lines().any(|line| line.ends_with(' ') || line.is_empty()));
    }

    #[test]
    fn a_bar_that_the_axis_cuts_has_its_figure_before_the_end() {
        let bar =
            |length: f64| Bar { name: String::new(), parts: vec![(length, Colour::BLUE)], text: "figure".to_owned() };
        let drawn = |length: f64| {
            let bars = Bars { caption: String::new(), unit: "%", until: Some(100.0), bars: vec![bar(length)] };
            Picture::new("bars").bars(bars).file().unwrap()
        };
        for (length, figure, is_cut) in [(90.0, "\nfigure\n", false), (150.0, "\nfigure →\n", true)] {
            let text = drawn(length);
            let before = &text[..text.find(figure).unwrap_or_else(|| panic!("{text}"))];
            let element = &before[before.rfind("<text").unwrap()..];
            assert_eq!(element.contains("text-anchor=\"end\""), is_cut, "{element}");
        }
    }

    #[test]
    fn anything_can_be_drawn() {
        assert!(Picture::new("empty").inline().is_ok() && Picture::new("empty").file().is_ok());
        for points in [vec![], vec![(0.0, 0.0)], vec![(20.0, -3.0), (1e6, 1e6)]] {
            assert!(!picture(points).file().unwrap().contains("NaN"));
        }
    }
}
