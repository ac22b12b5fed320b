//! The curve as SVG, alone or in a page.

use std::path::Path;

use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot};
use surgetank_report::{Failure, Page, output};

use super::answer::MrcAnswer;

const HEIGHT: u32 = 420;

/// What a file's name asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Svg,
    Html,
}

impl Kind {
    /// # Errors
    /// If the name ends in neither.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("html" | "htm") => Ok(Self::Html),
            _ => Err(Failure::Invalid(format!(
                "cannot tell what {} shall be: let its name end in .svg or .html",
                path.display()
            ))),
        }
    }
}

/// Draws into a file, all of it or nothing.
///
/// # Errors
/// If it cannot be drawn or written.
pub fn write(path: &Path, answer: &MrcAnswer) -> Result<(), Failure> {
    let text = match Kind::of(path)? {
        Kind::Svg => curve(answer).file()?,
        Kind::Html => page(answer)?,
    };
    output::write_whole(path, &text)
}

fn curve(answer: &MrcAnswer) -> Picture {
    let points: Vec<(f64, f64)> =
        answer.ascending().iter().map(|point| (point.size_blocks as f64, point.miss_ratio)).collect();
    let first = points.first().map_or(1.0, |point| point.0);
    let last = points.last().map_or(1.0, |point| point.0);
    let x = Axis::logarithmic("cache size in blocks", first..last.max(first * 2.0));
    let y = Axis::linear("miss ratio", 0.0..1.0).format(|ratio| format!("{ratio:.1}"));
    let dots: Vec<Mark> = points.iter().map(|at| Mark::Dot { at: *at, colour: Colour::BLUE, radius: 3 }).collect();
    let plot = Plot::new("", HEIGHT, x, y).mark(Mark::line(points, Colour::BLUE, 2)).marks(dots);
    Picture::new("Miss ratio over cache size").plot(plot)
}

fn page(answer: &MrcAnswer) -> Result<String, Failure> {
    let page = Page::new("surgetank mrc", "Miss ratio over cache size", &answer.title());
    Ok(page.picture(&curve(answer))?.table(&answer.table()).html(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::answer::tests::sample;

    #[test]
    fn any_curve_can_be_drawn() {
        for points in [&[][..], &[(0, 1.0)], &[(5, 0.3)], &[(3, 0.2), (1, 0.4), (u64::MAX, 0.0)]] {
            let answer = sample(points);
            let text = curve(&answer).file().unwrap();
            assert!(text.starts_with("<svg") && !text.contains("NaN"));
            let page = page(&answer).unwrap();
            assert!(page.contains("a&lt;b") && !page.contains("a<b") && !page.contains("NaN"));
        }
    }

    #[test]
    fn names_say_what_is_drawn() {
        assert_eq!(Kind::of(Path::new("a/b.svg")).unwrap(), Kind::Svg);
        assert_eq!(Kind::of(Path::new("a.html")).unwrap(), Kind::Html);
        assert_eq!(Kind::of(Path::new("a.png")).unwrap_err().status(), 2);
    }
}
