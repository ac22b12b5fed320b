//! What PVK11 prints, and the values that are fitted to it. A TB of its job logs counts 1,024 GB: 291.27 of them are the 298 TB of its largest
//! hero, 223,695 cores with 16/12 GB each.

use surgetank_model::Bandwidth;
use surgetank_planner::provision::Rates;

/// Bytes of a GB.
pub const GB: f64 = 1e9;
/// Bytes of a TB in Table III.
pub const TABLE_TB: f64 = 1024.0 * GB;

/// Table III.
pub const JOBS: usize = 304_361;
pub const RUN_MEAN_H: f64 = 443_803.0 / JOBS as f64;
pub const RUN_LEAST_S: f64 = 30.0;
pub const RUN_MOST_H: f64 = 7394.08;
pub const DATASET_LEAST: f64 = 2.28e6;
pub const DATASET_MEAN: f64 = 2.8 * TABLE_TB;
pub const DATASET_MOST: f64 = 291.27 * TABLE_TB;
/// Six years.
pub const SPAN_S: f64 = 6.0 * 365.25 * 86_400.0;
/// Section IV-B-4: the heroes, and the data set of the smallest that is shown.
pub const HEROES: usize = 515;
pub const HERO_LEAST: f64 = 41e12;

/// Jaguar. The paper has "18,000+" nodes of 12 cores and 16 GB, and 224,000 cores and more: 18,688 nodes have 224,256.
pub const NODES: u64 = 18_688;
pub const CORES_PER_NODE: u64 = 12;
pub const MEMORY_PER_CORE: f64 = 16.0 / 12.0 * GB;

/// Five minutes an hour.
pub const WITHIN_S: f64 = 300.0;
pub const HOUR_S: f64 = 3600.0;

/// Figures 9 and 10.
pub const DISKS: f64 = 11_696.0;
pub const DISKS_WITH_SSD: f64 = 6_550.0;
/// Fit: what a disk writes, so that the largest data set takes 11,696 of them five minutes.
pub const DISK_BYTES_S: f64 = 85e6;
/// Fit: nodes with an SSD that leave 6,550 disks. The paper has "slightly more than 10 %".
pub const SSD_NODES: u64 = 2_500;
/// Table II.
pub const SSD_BYTES_S: f64 = 175e6;
/// Table II.
pub const SSD_SIZE: f64 = 32.0 * GB;
/// Table I: 40 Gb/s.
pub const LINK_BYTES_S: f64 = 5e9;

/// Fit: what a GB of memory costs, in GB of SSD: 50 GB of the one cost as much as 250 GB of the other in Figure 6.
pub const MEMORY_OVER_SSD: f64 = 5.0;
/// Fit to Figure 12's 59.3 %: USD of a GB of memory.
pub const MEMORY_USD: f64 = 11.4298;
/// USD of a GB of SSD.
pub const SSD_USD: f64 = MEMORY_USD / MEMORY_OVER_SSD;
/// Neither printed nor fitted: USD of a GB of disk in 2010. It moves Figure 3's cost by a hundredth.
pub const DISK_GB_USD: f64 = 0.1;
/// Fit to the 36.3 % of the abstract: USD of a disk of the central file system with what belongs to it.
pub const DISK_USD: f64 = 333.0;

/// Figures 11 to 14: what is fitted there, a node of the staging area.
pub const STAGING_SSD_BYTES_S: f64 = 0.376_99e9;
pub const STAGING_DRAIN_BYTES_S: f64 = 0.183_516e9;
/// High enough not to count: 298 TB at 256:1 need 13.6 GB/s a node, more than a link of Table I.
pub const STAGING_INGEST_BYTES_S: f64 = 16e9;
pub const RATIOS: [u64; 3] = [64, 128, 256];
/// By their names.
pub const HERO_TB: [f64; 5] = [41.0, 109.0, 199.0, 260.0, 298.0];
pub const BUDGET_USD: f64 = 90_000.0;

/// Figure 14: time of the job.
pub const IN_JOB_S: f64 = 14_440.0;

fn rate(bytes_s: f64) -> Bandwidth {
    Bandwidth::new(bytes_s.round() as u64)
}

/// Rates of a node in bytes a second.
pub fn rates(ingest: f64, ssd_write: f64, drain: f64) -> Rates {
    Rates { ingest: rate(ingest), ssd_write: Some(rate(ssd_write)), drain: rate(drain) }
}

/// Figure 5's two lines: a fit of ingest and drain to the two throughputs that the text prints of each.
pub struct Line {
    pub processes: u64,
    pub dataset_gb: f64,
    pub ingest: f64,
    pub drain: f64,
    /// GB/s at the least and at the most memory.
    pub printed: [f64; 2],
}

pub const LINES: [Line; 2] = [
    Line { processes: 1800, dataset_gb: 450.0, ingest: 0.1727e9, drain: 0.092e9, printed: [31.0, 51.8] },
    Line { processes: 1200, dataset_gb: 290.0, ingest: 0.14567e9, drain: 0.04469e9, printed: [16.2, 43.7] },
];

impl Line {
    /// Of a node, with the SSD of Table II.
    pub fn rates(&self) -> Rates {
        rates(self.ingest, SSD_BYTES_S, self.drain)
    }
}

/// Figure 3's configurations: GB of memory and SSD of eight nodes.
pub const FIGURE_3: [(&str, f64, f64); 4] =
    [("8-0-8", 8.0, 0.0), ("3-8-5", 3.0, 8.0), ("2-6-8", 2.0, 6.0), ("4-0-12", 4.0, 0.0)];
