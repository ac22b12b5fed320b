//! The file of `provision`.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes};
use toml::Spanned;

use super::problem::{
    Candidate, LinkDivisor, Mode, NODES_MAX, Prices, Problem, RATE_MAX, REDUNDANCY_MAX, Rates, Redundancy, SIZE_MAX,
    Target, USD_MAX,
};

/// A file whose text has the right shape.
#[derive(Clone, Debug)]
pub struct ProvisionFile {
    source: Source,
    raw: RawFile,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    target: Option<Spanned<RawTarget>>,
    node: Option<Spanned<RawNode>>,
    #[serde(default)]
    candidate: Vec<Spanned<RawCandidate>>,
    grid: Option<Spanned<RawGrid>>,
    price: Option<Spanned<RawPrice>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    throughput: Option<Spanned<Bandwidth>>,
    time: Option<Spanned<Span>>,
    dataset: Option<Spanned<Bytes>>,
    mode: Option<RawMode>,
    link_divisor: Option<Spanned<f64>>,
    copies: Option<Spanned<u32>>,
    parity: Option<Spanned<String>>,
    nodes_max: Option<Spanned<u64>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawMode {
    InJob,
    CentreWide,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    ingest: Spanned<Bandwidth>,
    ssd_write: Option<Spanned<Bandwidth>>,
    drain: Spanned<Bandwidth>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCandidate {
    #[serde(default)]
    memory: Bytes,
    #[serde(default)]
    ssd: Bytes,
    throughput: Option<Spanned<Bandwidth>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGrid {
    memory: Vec<Bytes>,
    ssd: Vec<Bytes>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPrice {
    memory_gib_usd: Option<Spanned<f64>>,
    ssd_gib_usd: Option<Spanned<f64>>,
    node_usd: Option<Spanned<f64>>,
}

/// Candidates of a grid, with those of the file.
const CANDIDATES_MAX: usize = 1 << 22;
/// More than an application writes at once: 1 EiB.
const DATASET_MAX: u64 = 1 << 60;

impl ProvisionFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is not TOML, or not of this shape, with file, line and column.
    pub fn parse(source: Source) -> Result<Self, ConfigError> {
        let raw: RawFile = source.parse()?;
        Ok(Self { source, raw })
    }

    /// What it asks.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and column.
    pub fn problem(&self) -> Result<Problem, ConfigError> {
        let target = self.target()?;
        let rates = self.raw.node.as_ref().map(|node| self.rates(node.get_ref())).transpose()?;
        let candidates = self.candidates()?;
        let prices = self.prices(&candidates)?;
        for (candidate, span) in &candidates {
            self.check_model(candidate, span, &target, rates.as_ref())?;
        }
        Ok(Problem {
            target,
            rates,
            prices,
            candidates: candidates.into_iter().map(|(candidate, _)| candidate).collect(),
        })
    }

    fn refuse<T>(&self, span: Range<usize>, message: impl Into<String>) -> Result<T, ConfigError> {
        Err(self.source.at(Some(span), message))
    }

    fn target(&self) -> Result<Target, ConfigError> {
        let Some(spanned) = &self.raw.target else {
            let message = "the file has no target: add [target] with throughput = \"15 GiB/s\"";
            return Err(self.source.at(None, message));
        };
        let raw = spanned.get_ref();
        let dataset = match &raw.dataset {
            Some(none) if *none.get_ref() == Bytes::ZERO => {
                return self.refuse(none.span(), "the dataset is 0 B: write how much the application writes at once");
            }
            Some(much) if much.get_ref().get() > DATASET_MAX => {
                return self.refuse(
                    much.span(),
                    "the dataset is above 1 EiB, more than any application writes: check the unit",
                );
            }
            dataset => dataset.as_ref().map(|dataset| *dataset.get_ref()),
        };
        Ok(Target {
            throughput: self.throughput(spanned, dataset)?,
            dataset,
            mode: match raw.mode {
                None | Some(RawMode::InJob) => Mode::InJob,
                Some(RawMode::CentreWide) => Mode::CentreWide,
            },
            link: self.link(raw)?,
            redundancy: self.redundancy(raw)?,
            nodes_max: match &raw.nodes_max {
                Some(max) if !(1..=NODES_MAX).contains(max.get_ref()) => {
                    return self.refuse(
                        max.span(),
                        format!(
                            "nodes_max is a number of nodes from 1 to {NODES_MAX}: write such a one, or leave it out"
                        ),
                    );
                }
                max => max.as_ref().map_or(NODES_MAX, |max| *max.get_ref()),
            },
        })
    }

    fn throughput(&self, target: &Spanned<RawTarget>, dataset: Option<Bytes>) -> Result<Bandwidth, ConfigError> {
        let raw = target.get_ref();
        let (throughput, span) = match (&raw.throughput, &raw.time) {
            (Some(throughput), None) => (*throughput.get_ref(), throughput.span()),
            (None, Some(time)) => {
                let Some(dataset) = dataset else {
                    return self.refuse(
                        time.span(),
                        "the target has a time and no dataset: add dataset = \"450 GiB\", what is written in that time",
                    );
                };
                let nanoseconds = time.get_ref().0.as_nanos();
                if time.get_ref().0 == Duration::ZERO {
                    return self.refuse(
                        time.span(),
                        "the time is zero: write what the application tolerates, such as \"5 min\"",
                    );
                }
                // Rounded up: what is a byte a second too slow is too late.
                let rate = (u128::from(dataset.get()) * 1_000_000_000).div_ceil(nanoseconds);
                (Bandwidth::new(u64::try_from(rate).unwrap_or(u64::MAX)), time.span())
            }
            (Some(_), Some(time)) => {
                return self.refuse(time.span(), "the target has a throughput and a time: remove one of the two");
            }
            (None, None) => {
                return self.refuse(
                    target.span(),
                    "the target has no throughput: add throughput = \"15 GiB/s\", or dataset and time",
                );
            }
        };
        self.check_rate(throughput, span, "the target")?;
        Ok(throughput)
    }

    fn check_rate(&self, rate: Bandwidth, span: Range<usize>, what: &str) -> Result<(), ConfigError> {
        if rate.get() > RATE_MAX {
            return self.refuse(span, format!("{what} is above 1 PiB/s, more than there is: check the unit"));
        }
        Ok(())
    }

    fn link(&self, raw: &RawTarget) -> Result<Option<LinkDivisor>, ConfigError> {
        let Some(spanned) = &raw.link_divisor else { return Ok(None) };
        LinkDivisor::new(*spanned.get_ref()).map(Some).ok_or_else(|| {
            let message = "link_divisor is a number from 0.001 to 10⁹, since each link costs 1 ÷ link_divisor GiB/s: write such a one, or leave it out if links cost nothing";
            self.source.at(Some(spanned.span()), message)
        })
    }

    fn redundancy(&self, raw: &RawTarget) -> Result<Redundancy, ConfigError> {
        match (&raw.copies, &raw.parity) {
            (Some(_), Some(parity)) => {
                self.refuse(parity.span(), "the target has copies and parity: remove one of the two")
            }
            (None, None) => Ok(Redundancy::Copies(1)),
            (Some(copies), None) => match *copies.get_ref() {
                copies @ 1..=REDUNDANCY_MAX => Ok(Redundancy::Copies(copies)),
                _ => self
                    .refuse(copies.span(), format!("copies is a number from 1 to {REDUNDANCY_MAX}: write such a one")),
            },
            (None, Some(parity)) => {
                let parts = parity.get_ref().split_once('+');
                let number =
                    |text: &str| text.trim().parse().ok().filter(|number| (1..=REDUNDANCY_MAX).contains(number));
                match parts.and_then(|(data, parity)| Some((number(data)?, number(parity)?))) {
                    Some((data, parity)) => Ok(Redundancy::Parity { data, parity }),
                    None => self.refuse(
                        parity.span(),
                        format!("parity is \"d+p\", each from 1 to {REDUNDANCY_MAX}: write such as \"8+2\""),
                    ),
                }
            }
        }
    }

    fn rates(&self, raw: &RawNode) -> Result<Rates, ConfigError> {
        let rates = [Some(&raw.ingest), raw.ssd_write.as_ref(), Some(&raw.drain)];
        for rate in rates.into_iter().flatten() {
            self.check_rate(*rate.get_ref(), rate.span(), "the rate of a node")?;
        }
        let ssd_write = raw.ssd_write.as_ref().map(|rate| *rate.get_ref());
        Ok(Rates { ingest: *raw.ingest.get_ref(), ssd_write, drain: *raw.drain.get_ref() })
    }

    /// Those of the file, then those of its grid, each with its place.
    fn candidates(&self) -> Result<Vec<(Candidate, Range<usize>)>, ConfigError> {
        let own = self.raw.candidate.iter().map(|spanned| {
            let raw = spanned.get_ref();
            let throughput = raw.throughput.as_ref().map(|rate| *rate.get_ref());
            if let Some(rate) = &raw.throughput {
                self.check_rate(*rate.get_ref(), rate.span(), "the throughput of a candidate")?;
            }
            Ok((Candidate { memory: raw.memory, ssd: raw.ssd, throughput }, spanned.span()))
        });
        let mut candidates = own.collect::<Result<Vec<_>, ConfigError>>()?;
        if let Some(grid) = &self.raw.grid {
            let raw = grid.get_ref();
            if raw.memory.len().saturating_mul(raw.ssd.len()).saturating_add(candidates.len()) > CANDIDATES_MAX {
                return self.refuse(
                    grid.span(),
                    format!("the grid has more than {CANDIDATES_MAX} candidates: write fewer sizes"),
                );
            }
            let pairs = raw.memory.iter().flat_map(|memory| raw.ssd.iter().map(|ssd| (*memory, *ssd)));
            // A grid from nothing on has one pair that is no node.
            let pairs = pairs.filter(|(memory, ssd)| memory.get() > 0 || ssd.get() > 0);
            candidates.extend(pairs.map(|(memory, ssd)| (Candidate { memory, ssd, throughput: None }, grid.span())));
        }
        if candidates.is_empty() {
            let message = "there is no candidate: add [[candidate]] with memory, ssd and throughput, or [grid] with lists of memory and ssd beside [node]";
            return Err(self.source.at(None, message));
        }
        for (candidate, span) in &candidates {
            if candidate.memory == Bytes::ZERO && candidate.ssd == Bytes::ZERO {
                return self
                    .refuse(span.clone(), "the candidate lends nothing: add memory = \"2 GiB\" or ssd = \"4 GiB\"");
            }
            if candidate.memory.get().max(candidate.ssd.get()) > SIZE_MAX {
                return self.refuse(span.clone(), "the candidate has more than 1 PiB of memory or SSD: check the unit");
            }
        }
        Ok(candidates)
    }

    fn prices(&self, candidates: &[(Candidate, Range<usize>)]) -> Result<Prices, ConfigError> {
        let raw = self.raw.price.as_ref().map(Spanned::get_ref);
        let price = |pick: fn(&RawPrice) -> &Option<Spanned<f64>>| {
            let message = "a price is a number from 0 to 1000000 USD: write such a one";
            self.source.number(raw.and_then(|raw| pick(raw).as_ref()), |usd| (0.0..=USD_MAX).contains(&usd), message)
        };
        let memory = price(|raw| &raw.memory_gib_usd)?;
        let ssd = price(|raw| &raw.ssd_gib_usd)?;
        let node = price(|raw| &raw.node_usd)?;
        self.check_price("memory", candidates, |candidate| candidate.memory, memory)?;
        self.check_price("ssd", candidates, |candidate| candidate.ssd, ssd)?;
        Ok(Prices::new(memory.unwrap_or(0.0), ssd.unwrap_or(0.0), node.unwrap_or(0.0)))
    }

    /// What a candidate has needs a price.
    fn check_price(
        &self,
        name: &str,
        candidates: &[(Candidate, Range<usize>)],
        size: fn(&Candidate) -> Bytes,
        price: Option<f64>,
    ) -> Result<(), ConfigError> {
        let lends = candidates.iter().find(|(candidate, _)| size(candidate) > Bytes::ZERO);
        match (lends, price) {
            (Some((_, span)), None) => self.refuse(
                span.clone(),
                format!("the candidate has {name} without a price: add {name}_gib_usd to [price], what a GiB costs"),
            ),
            _ => Ok(()),
        }
    }

    /// A candidate that nobody has measured needs all that the model needs.
    fn check_model(
        &self,
        candidate: &Candidate,
        span: &Range<usize>,
        target: &Target,
        rates: Option<&Rates>,
    ) -> Result<(), ConfigError> {
        if candidate.throughput.is_some() {
            return Ok(());
        }
        let message = match (rates, target.dataset) {
            (None, _) => {
                "the candidate has no throughput: measure it, or add [node] with ingest, ssd_write and drain, of which it is modelled"
            }
            (_, None) => {
                "the throughput of the candidate is modelled from [node], which needs to know how much is written: add dataset = \"450 GiB\" to [target]"
            }
            (Some(rates), _) if candidate.ssd > Bytes::ZERO && rates.ssd_write.is_none() => {
                "the throughput of the candidate is modelled from [node], which does not say how fast its SSD is: add ssd_write = \"500 MiB/s\""
            }
            _ => return Ok(()),
        };
        self.refuse(span.clone(), message)
    }
}
