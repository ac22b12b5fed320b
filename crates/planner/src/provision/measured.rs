//! What measured pools say of a node: T_H and D_link from runs with several numbers of nodes, and the file's sections with them.

use std::fmt::Write as _;

use surgetank_model::units::{GIB, MIB};

use super::problem::{LinkDivisor, Mode};

/// So many nodes, and what they took in together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// How many.
    pub nodes: u64,
    /// Bytes a second, above zero.
    pub bytes_s: f64,
}

/// What runs have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// T_H, in bytes a second.
    pub each_bytes_s: f64,
    /// D_link; `None`: more nodes took in no less each.
    pub link: Option<LinkDivisor>,
}

impl Fitted {
    /// The line T_H − δ·(N−1) (in-job; else with N) that is nearest to what one node of each run took in, by least squares. `None` without
    /// runs.
    #[must_use]
    pub fn of(mode: Mode, runs: &[Run]) -> Option<Self> {
        let remote = |run: &Run| match mode {
            Mode::InJob => run.nodes as f64 - 1.0,
            Mode::CentreWide => run.nodes as f64,
        };
        let each = |run: &Run| run.bytes_s / run.nodes as f64;
        let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let (mean_remote, mean_each) = (mean(&remote), mean(&each));
        let spread = mean(&|run| (remote(run) - mean_remote).powi(2));
        let together = mean(&|run| (remote(run) - mean_remote) * (each(run) - mean_each));
        let loss = if spread > 0.0 { -together / spread } else { 0.0 };
        let link = (loss > 0.0).then(|| LinkDivisor::new(GIB as f64 / loss)).flatten();
        // Where no loss is seen, all runs say the same of a node.
        let each_bytes_s = if link.is_some() { mean_each + loss * mean_remote } else { mean_each };
        (!runs.is_empty()).then_some(Self { each_bytes_s, link })
    }
}

/// What of a node was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Where nodes are taken to be.
    pub mode: Mode,
    /// Into memory.
    pub ingest: Fitted,
    /// To SSD, in bytes a second.
    pub ssd_write_bytes_s: Option<f64>,
    /// To the target, in bytes a second.
    pub drain_bytes_s: f64,
}

impl Measured {
    /// Sections of the file of `provision`.
    #[must_use]
    pub fn sections(&self) -> String {
        // A rate is never zero.
        let rate = |bytes_s: f64| match bytes_s / MIB as f64 {
            mib_s if mib_s >= 10.0 => format!("{mib_s:.1} MiB/s"),
            _ => format!("{:.0} B/s", bytes_s.max(1.0)),
        };
        let mut text = format!("[target]\nmode = \"{}\"\n", self.mode.name());
        if let Some(link) = self.ingest.link {
            let _ = writeln!(text, "link_divisor = {}", link.get());
        }
        let _ = write!(text, "\n[node]\ningest = \"{}\"\n", rate(self.ingest.each_bytes_s));
        if let Some(bytes_s) = self.ssd_write_bytes_s {
            let _ = writeln!(text, "ssd_write = \"{}\"", rate(bytes_s));
        }
        let _ = write!(text, "drain = \"{}\"", rate(self.drain_bytes_s));
        text
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bytes;
    use surgetank_model::toml_error::Source;

    use super::super::ProvisionFile;
    use super::*;

    const UNIT: f64 = GIB as f64;

    fn runs(of: &[(u64, f64)]) -> Vec<Run> {
        of.iter().map(|(nodes, gib_s)| Run { nodes: *nodes, bytes_s: gib_s * UNIT }).collect()
    }

    #[test]
    fn the_line_through_runs_is_found() {
        // 0.8 GiB/s a node, and each link costs 0.02 GiB/s.
        let in_job = |nodes: u64| (nodes, nodes as f64 * (0.8 - 0.02 * (nodes as f64 - 1.0)));
        let fitted = Fitted::of(Mode::InJob, &runs(&[in_job(1), in_job(2), in_job(5)])).unwrap();
        assert!(
            (fitted.each_bytes_s / UNIT - 0.8).abs() < 1e-12 && fitted.link == LinkDivisor::new(50.0),
            "{fitted:?}"
        );
        // The same runs, with the node itself counted as a link.
        let fitted = Fitted::of(Mode::CentreWide, &runs(&[in_job(1), in_job(2), in_job(5)])).unwrap();
        assert!(
            (fitted.each_bytes_s / UNIT - 0.82).abs() < 1e-12 && fitted.link == LinkDivisor::new(50.0),
            "{fitted:?}"
        );
    }

    #[test]
    fn where_no_loss_is_seen_there_is_none() {
        for of in [&[(3, 3.0)][..], &[(1, 1.0), (2, 2.0)], &[(1, 0.9), (2, 2.2)]] {
            let fitted = Fitted::of(Mode::InJob, &runs(of)).unwrap();
            assert!(fitted.link.is_none() && (fitted.each_bytes_s / UNIT - 1.0).abs() < 1e-12, "{of:?}: {fitted:?}");
        }
        assert_eq!(Fitted::of(Mode::InJob, &[]), None);
    }

    #[test]
    fn what_is_printed_is_read() {
        let ingest = Fitted { each_bytes_s: 0.8 * UNIT, link: LinkDivisor::new(63.127) };
        let measured = Measured { mode: Mode::CentreWide, ingest, ssd_write_bytes_s: Some(3e8), drain_bytes_s: 1e8 };
        let more =
            "\n[[candidate]]\nmemory = \"1 GiB\"\nssd = \"1 GiB\"\n[price]\nmemory_gib_usd = 5\nssd_gib_usd = 1\n";
        let target = "[target]\nthroughput = \"5 GiB/s\"\ndataset = \"9 GiB\"";
        let text = measured.sections().replace("[target]", target) + more;
        let problem = ProvisionFile::parse(Source { file: "pool.toml".into(), text }).unwrap().problem().unwrap();
        assert_eq!((problem.target.link, problem.target.mode), (ingest.link, Mode::CentreWide));
        let rates = problem.rates.unwrap();
        // To a tenth of a MiB/s.
        assert!((rates.ingest.get() as f64 - 0.8 * UNIT).abs() <= 6e4, "{rates:?}");
        assert!(rates.drain.get().abs_diff(100_000_000) <= 60_000, "{rates:?}");
        assert_eq!(problem.candidates[0].ssd, Bytes::from_gib(1));
        let without = Measured { ingest: Fitted { link: None, ..ingest }, ssd_write_bytes_s: None, ..measured };
        assert!(!without.sections().contains("link_divisor") && !without.sections().contains("ssd_write"));
    }
}
