//! Axes with marks between them.

use std::fmt;
use std::ops::Range;

use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::{Area, Colour, Drawn, ink};
use crate::number::{plain, prefixed, thousands};

/// Panels lower than this have fewer labels.
const LOW: u32 = 200;
/// Of more powers of ten than these a logarithmic axis has lines at the powers alone.
const DECADES: f64 = 6.0;
/// Numbers from here on stand beside an axis with a prefix.
const LARGE: f64 = 1e8;
const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 86_400.0;

/// An axis.
#[derive(Clone)]
pub struct Axis {
    name: String,
    range: Range<f64>,
    is_logarithmic: bool,
    has_grid: bool,
    /// What the numbers beside the axis count, in units of the values.
    unit: f64,
    format: fn(f64) -> String,
}

/// "1.500 T" → "1.5 T".
fn short(prefixed: &str) -> String {
    match prefixed.split_once(' ') {
        Some((number, prefix)) => format!("{} {prefix}", number.trim_end_matches('0').trim_end_matches('.')),
        None => prefixed.to_owned(),
    }
}

impl fmt::Debug for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.range)
    }
}

impl Axis {
    /// Time from 0 on.
    #[must_use]
    pub fn seconds(until: f64) -> Self {
        let (unit, format): (f64, fn(f64) -> String) = match until {
            _ if until > 3.0 * DAY_S => (DAY_S, |days| format!("{} d", plain(days))),
            _ if until > 3.0 * HOUR_S => (HOUR_S, |hours| format!("{} h", plain(hours))),
            _ => (1.0, |seconds| format!("{seconds:.0} s")),
        };
        Self { has_grid: false, unit, ..Self::linear("", 0.0..until) }.format(format)
    }

    /// Numbers.
    #[must_use]
    pub fn linear(name: &str, range: Range<f64>) -> Self {
        let format = |value: f64| if value.abs() < LARGE { thousands(value) } else { short(&prefixed(value)) };
        Self { name: name.to_owned(), range, is_logarithmic: false, has_grid: true, unit: 1.0, format }
    }

    /// Numbers above 0, by their logarithm.
    #[must_use]
    pub fn logarithmic(name: &str, range: Range<f64>) -> Self {
        Self { is_logarithmic: true, ..Self::linear(name, range) }
    }

    /// Around these values with a margin below and above.
    #[must_use]
    pub fn around(name: &str, values: impl IntoIterator<Item = f64>, margin: f64) -> Self {
        let (low, high) =
            values.into_iter().fold((f64::MAX, f64::MIN), |(low, high), next| (low.min(next), high.max(next)));
        let (low, high) = if low < high { (low, high) } else { (low.min(0.0), high.max(1.0)) };
        let margin = (high - low) * margin;
        Self::linear(name, (low - margin)..(high + margin))
    }

    /// The same with its numbers written so.
    #[must_use]
    pub fn format(self, format: fn(f64) -> String) -> Self {
        Self { format, ..self }
    }
}

/// Where a logarithmic axis has its lines, so far apart that their labels do not touch.
fn lines(range: &Range<f64>) -> Vec<f64> {
    let (low, high) = (range.start.max(f64::MIN_POSITIVE).log10(), range.end.max(f64::MIN_POSITIVE).log10());
    let digits: &[f64] = if high - low > DECADES { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = low.floor() as i32..=high.ceil() as i32;
    let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    all.filter(|line| range.contains(line)).collect()
}

/// What is drawn between the axes.
#[derive(Clone, Debug)]
pub enum Mark {
    /// A stretch of the x axis, over the whole height.
    Band {
        /// Where it begins.
        from: f64,
        /// Where it ends.
        until: f64,
        /// Its colour.
        colour: Colour,
    },
    /// What lies below a line.
    Area {
        /// The line.
        points: Vec<(f64, f64)>,
        /// The line's colour; the area is fainter.
        colour: Colour,
    },
    /// A line.
    Line {
        /// From left to right.
        points: Vec<(f64, f64)>,
        /// Its colour.
        colour: Colour,
        /// In pixels.
        width: u32,
    },
    /// A dot.
    Dot {
        /// Where.
        at: (f64, f64),
        /// Its colour.
        colour: Colour,
        /// Its radius in pixels.
        radius: u32,
    },
    /// A circle around a point.
    Ring {
        /// The point.
        at: (f64, f64),
        /// Its colour.
        colour: Colour,
    },
}

impl Mark {
    /// A line of this width in pixels.
    #[must_use]
    pub fn line(points: Vec<(f64, f64)>, colour: Colour, width: u32) -> Self {
        Self::Line { points, colour, width }
    }

    /// The parts of a line where something moves, with the ends at which it begins and stops: where nothing does, lines
    /// on the axis would only hide each other.
    pub fn moving(points: &[(f64, f64)], colour: Colour, width: u32) -> impl Iterator<Item = Self> {
        let stretches = points.chunk_by(|before, after| before.1 > 0.0 || after.1 > 0.0);
        stretches.filter(|stretch| stretch.len() > 1).map(move |stretch| Self::line(stretch.to_vec(), colour, width))
    }
}

/// Values of intervals as stairs: each holds from the end of the one before to its own end.
#[must_use]
pub fn stairs(ends_and_values: impl IntoIterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut begin = 0.0;
    let stair = |(end, value)| [(std::mem::replace(&mut begin, end), value), (end, value)];
    ends_and_values.into_iter().flat_map(stair).collect()
}

/// Axes with marks; the first mark is the lowest.
#[derive(Clone, Debug)]
pub struct Plot {
    caption: String,
    pub(super) height: u32,
    x: Axis,
    y: Axis,
    marks: Vec<Mark>,
}

impl Plot {
    /// Without marks; the caption may be empty.
    #[must_use]
    pub fn new(caption: &str, height: u32, x: Axis, y: Axis) -> Self {
        Self { caption: caption.to_owned(), height, x, y, marks: Vec::new() }
    }

    /// Adds a mark above the others.
    #[must_use]
    pub fn mark(self, mark: Mark) -> Self {
        self.marks([mark])
    }

    /// Adds marks above the others.
    #[must_use]
    pub fn marks(mut self, marks: impl IntoIterator<Item = Mark>) -> Self {
        self.marks.extend(marks);
        self
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Drawn {
        let mut builder = ChartBuilder::on(area);
        builder.margin_left(8).margin_right(20).margin_top(6).y_label_area_size(80);
        builder.x_label_area_size(if self.x.name.is_empty() { 28 } else { 44 });
        if !self.caption.is_empty() {
            builder.caption(&self.caption, ink(15));
        }
        let scaled = |axis: &Axis| (axis.range.start / axis.unit)..(axis.range.end / axis.unit);
        let (x, y) = (scaled(&self.x), scaled(&self.y));
        let logarithmic = |range: Range<f64>| {
            let lines = lines(&range);
            range.log_scale().with_key_points(lines)
        };
        match (self.x.is_logarithmic, self.y.is_logarithmic) {
            (false, false) => self.fill(builder.build_cartesian_2d(x, y)?),
            (true, false) => self.fill(builder.build_cartesian_2d(logarithmic(x), y)?),
            (false, true) => self.fill(builder.build_cartesian_2d(x, logarithmic(y))?),
            (true, true) => self.fill(builder.build_cartesian_2d(logarithmic(x), logarithmic(y))?),
        }
    }

    fn fill<X, Y>(&self, mut chart: ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>) -> Drawn
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let ink_line = |opacity| Colour::INK.faint(opacity).style();
        let y_labels = match self.y.is_logarithmic {
            true => 10,
            false if self.height < LOW => 5,
            false => 6,
        };
        let mut mesh = chart.configure_mesh();
        if !self.x.has_grid {
            mesh.disable_x_mesh();
        }
        mesh.light_line_style(TRANSPARENT)
            .bold_line_style(ink_line(0.12))
            .axis_style(ink_line(0.5))
            .x_labels(12)
            .y_labels(y_labels)
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .label_style(ink(12))
            .axis_desc_style(ink(12))
            .x_label_formatter(&|value| (self.x.format)(*value))
            .y_label_formatter(&|value| (self.y.format)(*value))
            .draw()?;
        let place = |(x, y): &(f64, f64)| (x / self.x.unit, y / self.y.unit);
        for mark in &self.marks {
            match mark {
                Mark::Band { from, until, colour } => {
                    let corners = [place(&(*from, self.y.range.start)), place(&(*until, self.y.range.end))];
                    chart.draw_series([Rectangle::new(corners, colour.style().filled())])?;
                }
                Mark::Area { points, colour } => {
                    let area = AreaSeries::new(points.iter().map(place), 0.0, colour.faint(0.35).style());
                    chart.draw_series(area.border_style(colour.style().stroke_width(1)))?;
                }
                Mark::Line { points, colour, width } => {
                    chart
                        .draw_series(LineSeries::new(points.iter().map(place), colour.style().stroke_width(*width)))?;
                }
                Mark::Dot { at, colour, radius } => {
                    chart.draw_series([Circle::new(place(at), *radius, colour.style().filled())])?;
                }
                Mark::Ring { at, colour } => {
                    chart.draw_series([Circle::new(place(at), 9, colour.style().stroke_width(3))])?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_where_something_moves() {
        let points = [(0.0, 0.0), (1.0, 0.0), (1.0, 5.0), (2.0, 5.0), (2.0, 0.0), (3.0, 0.0), (4.0, 0.0)];
        let moving: Vec<Mark> = Mark::moving(&points, Colour::BLUE, 2).collect();
        assert!(matches!(&moving[..], [Mark::Line { points: stretch, .. }] if *stretch == points[1..5]), "{moving:?}");
        assert_eq!(Mark::moving(&[], Colour::BLUE, 2).count(), 0);
    }

    #[test]
    fn an_interval_holds_its_value_to_its_end() {
        assert_eq!(stairs([(1.0, 5.0), (3.0, 6.0)]), [(0.0, 5.0), (1.0, 5.0), (1.0, 6.0), (3.0, 6.0)]);
    }

    #[test]
    fn long_axes_count_days_and_large_numbers_have_prefixes() {
        let days = Axis::seconds(2_500_000.0);
        assert_eq!((days.unit, (days.format)(5.0)), (86_400.0, "5 d".to_owned()));
        assert_eq!((Axis::seconds(600.0).format)(50.0), "50 s");
        let agbs = Axis::linear("AGBs", 0.0..2e12);
        assert_eq!([0.0, 5e11, 1.5e12].map(agbs.format).each_ref().map(String::as_str), ["0", "500 G", "1.5 T"]);
    }

    #[test]
    fn a_logarithmic_axis_has_lines_over_all_of_its_length() {
        let shown = |range: Range<f64>| lines(&range).into_iter().map(plain).collect::<Vec<_>>();
        assert_eq!(shown(0.003..1.5), ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(shown(0.5..2e7), ["1", "10", "100", "1000", "10000", "100000", "1000000", "10000000"]);
        assert!(lines(&(0.0..0.0)).is_empty() && lines(&(f64::NAN..1.0)).is_empty());
        let axis = |name| Axis::logarithmic(name, 0.003..1.5).format(plain);
        let picture = crate::chart::Picture::new("").plot(Plot::new("", 300, axis("x"), axis("y"))).file().unwrap();
        assert_eq!(picture.matches("\n0.005\n").count(), 2, "{picture}");
    }

    #[test]
    fn an_axis_around_one_value_or_none_has_a_length() {
        for values in [&[][..], &[5.0], &[-5.0]] {
            let range = Axis::around("", values.iter().copied(), 0.0).range;
            assert!(range.start < range.end && range.end.is_finite(), "{values:?}: {range:?}");
        }
    }
}
