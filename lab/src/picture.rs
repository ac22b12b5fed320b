//! What all pictures share.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours that keep apart also for the colour-blind (after Okabe and Ito).
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
pub const SKY: RGBColor = RGBColor(0x56, 0xb4, 0xe9);
pub const ORANGE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
pub const VERMILION: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
pub const GREY: RGBColor = RGBColor(0x99, 0x99, 0x99);

const WIDTH: u32 = 960;

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A picture of this height.
///
/// # Errors
/// If it cannot be drawn.
pub fn svg(name: &str, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> anyhow::Result<String> {
    let mut text = String::new();
    let drawn = (|| {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        Ok::<(), Box<dyn std::error::Error>>(area.present()?)
    })();
    drawn.map_err(|error| anyhow::anyhow!("cannot draw {name}: {error}"))?;
    // What draws leaves blanks where a line ends.
    Ok(text.lines().map(|line| line.trim_end().to_owned() + "\n").filter(|line| line != "\n").collect())
}
