//! Files of calibration points: what `calibrate` writes, and `predict` and `recommend` read.
//!
//! A file holds the points of one setting, which stands in it: sizes and bandwidths of the volumes. It has the shape of
//! a scenario without its application, so the sections can be copied into one.

use std::fmt::Write as _;

use serde::Deserialize;
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::{Bandwidth, Bytes};
use toml::Spanned;

use crate::scenario::{Backing, Caching, CalibrationPoint, RawPoint};
use crate::stripe::Striping;

/// What the points were measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Size of the backing volume.
    pub backing_size: Bytes,
    /// Its bandwidth.
    pub backing: Bandwidth,
    /// Bandwidth of the caching volumes.
    pub caching: Bandwidth,
}

/// The points of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    /// What they were measured on.
    pub setting: Setting,
    /// In the order measured; the same dataset and cache again are repeats.
    pub points: Vec<CalibrationPoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPoints {
    backing: RawBacking,
    caching: RawCaching,
    #[serde(default)]
    calibration: Vec<Spanned<RawPoint>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBacking {
    size: Bytes,
    bandwidth: Bandwidth,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCaching {
    bandwidth: Bandwidth,
}

impl Setting {
    /// Whether points of the other setting answer for this one: the same bandwidths to a thousandth.
    #[must_use]
    pub fn fits(&self, other: &Self) -> bool {
        let near = |one: Bandwidth, other: Bandwidth| (one.as_mib_s() / other.as_mib_s() - 1.0).abs() < 1e-3;
        near(self.backing, other.backing) && near(self.caching, other.caching)
    }
}

impl Points {
    /// Reads a file.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn parse(source: &Source) -> Result<Self, ConfigError> {
        let raw: RawPoints = source.parse()?;
        let backing = Backing {
            size: raw.backing.size,
            bandwidth: raw.backing.bandwidth,
            volume_type: None,
            usd_per_gib_month: None,
        };
        let caching = Caching {
            bandwidth: raw.caching.bandwidth,
            striping: Striping::single(raw.caching.bandwidth),
            checkpoint_cache: None,
            initial_cache: None,
            volume_type: None,
            usd_per_gib_month: None,
        };
        let check = |point: Spanned<RawPoint>| point.into_inner().check(source, &backing, &caching);
        Ok(Self {
            setting: Setting { backing_size: backing.size, backing: backing.bandwidth, caching: caching.bandwidth },
            points: raw.calibration.into_iter().map(check).collect::<Result<_, _>>()?,
        })
    }

    /// The file's text. What is written is read back to a thousandth of a MiB/s and of a second.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Setting { backing_size, backing, caching } = self.setting;
        let mut text = format!(
            "# Calibration points, measured by surgetank calibrate: B is throughput, D is attached.\n\
             # The same dataset and cache again are repeats: medians count, and their spread.\n\n\
             [backing]\nsize = \"{backing_size}\"\nbandwidth = \"{backing}\"\n\n[caching]\nbandwidth = \"{caching}\"\n"
        );
        for point in &self.points {
            // Rounded down, so that it stays within what a reader takes for possible.
            let thousandths = (point.throughput.as_mib_s() * 1000.0).floor();
            let throughput = match thousandths > 0.0 {
                true => format!("{:.3} MiB/s", thousandths / 1000.0),
                false => point.throughput.to_string(),
            };
            let (dataset, cache, attached_s) = (point.dataset, point.cache, point.attached.as_secs_f64());
            let _ = write!(
                text,
                "\n[[calibration]]\ndataset = \"{dataset}\"\ncache = \"{cache}\"\nthroughput = \"{throughput}\"\n\
                 attached = \"{attached_s:.3} s\"\n"
            );
        }
        text
    }

    /// How often this dataset was measured with this cache.
    #[must_use]
    pub fn repeats(&self, dataset: Bytes, cache: Bytes) -> usize {
        self.points.iter().filter(|point| point.dataset == dataset && point.cache == cache).count()
    }
}
