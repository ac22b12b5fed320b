//! Job logs: what their jobs write, the disks that takes (Figures 8 to 10), and what becomes of it in one pool for all.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_planner::provision::{NODES_MAX, Plan, Problem, Provision, RATE_MAX, Rates, SIZE_MAX};
use surgetank_report::Table;
use surgetank_report::number::{digits, thousands};
use surgetank_trace::{Checkpoints, Job, JobLog, Lacking};
use surgetank_whatif::staging::{self, Jobs, Outcome, Pool};

use super::figure::Figure;
use super::heroes::{problem, staging_nodes};
use super::{jaguar, paper};
use crate::bar::{Bar, Limit};
use crate::output::say;

/// A log that is stored beside the tree, and its machine as the public descriptions of it have it.
struct Stored {
    name: &'static str,
    file: &'static str,
    machine: Machine,
}

/// What a log does not say.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Nodes of the machine.
    pub nodes: u64,
    /// Processors of the log for a node.
    pub processors_per_node: u64,
    /// Memory of each, if the log has none; `None`: it must.
    pub memory: Option<Bytes>,
    /// Where the nodes and memory come from.
    pub source: &'static str,
}

const STORED: [Stored; 4] = [
    Stored {
        name: "Curie 2012",
        file: "cea-curie-2012-sample.swf.xz",
        machine: Machine {
            nodes: 5_832,
            processors_per_node: 16,
            memory: Some(Bytes::from_gib(4)),
            source: "4 GiB a core: nodes of 16 cores with 64 GiB; assumed, the log has no memory",
        },
    },
    Stored {
        name: "Intrepid 2009",
        file: "alcf-intrepid-2009-3000.txt.xz",
        machine: Machine {
            nodes: 40_960,
            processors_per_node: 1,
            memory: Some(Bytes::from_gib(2)),
            source: "2 GiB a node; assumed, the log has no memory",
        },
    },
    Stored {
        name: "Theta 2018",
        file: "alcf-theta-2018-3000.txt.xz",
        machine: Machine {
            nodes: 4_392,
            processors_per_node: 1,
            memory: Some(Bytes::from_gib(192)),
            source: "192 GiB a node; assumed, the log has no memory",
        },
    },
    Stored {
        name: "Wagap 2013",
        file: "wagap-2013.swf.xz",
        machine: Machine {
            nodes: 68,
            processors_per_node: 12,
            memory: None,
            source: "the memory that each job asked for, from the log, as the whole job's",
        },
    },
];

/// Jobs, and where they are from.
pub struct Log {
    /// Its name.
    pub name: String,
    /// In its order.
    pub jobs: Vec<staging::Job>,
    /// See [`Machine`].
    pub machine: Machine,
}

/// A user's own log.
#[derive(Clone, Debug)]
pub struct Own {
    /// Where it is.
    pub log: PathBuf,
    /// See [`Machine`].
    pub memory: Option<Bytes>,
    /// See [`Machine`].
    pub processors_per_node: u64,
}

/// What the log's jobs need.
#[derive(Clone, Debug, Serialize)]
pub struct Needs {
    pub log: String,
    pub jobs: usize,
    pub run_mean_h: f64,
    pub nodes_most: u64,
    pub dataset_mean_tb: f64,
    pub dataset_most_tb: f64,
    /// Disks that take the largest data set in five minutes, without and with SSDs in a part of the nodes.
    pub disks: f64,
    pub disks_with_ssd: f64,
    /// What the disks cost less with what the SSDs cost, as a part.
    pub saved: f64,
}

/// What became of the jobs' checkpoints.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    pub log: String,
    pub pool: &'static str,
    pub nodes: u64,
    pub cost_usd: f64,
    pub checkpoints: usize,
    /// What the jobs of the log write, on average over its time, and what drains, in GB/s.
    pub written_gb_s: f64,
    pub drains_gb_s: f64,
    /// Part of them within five minutes.
    pub in_time: f64,
    pub mean_s: f64,
    pub most_s: f64,
    pub memory_most_tb: f64,
    pub ssd_most_tb: f64,
    pub processes_most: u64,
    pub events: u64,
    pub simulated_s: f64,
}

impl Log {
    /// Of a log whose jobs' memory is known.
    fn of(name: String, log: &JobLog, machine: Machine) -> Self {
        let job = |job: &Job| {
            let memory = machine.memory.or(job.memory)?;
            Some(staging::Job {
                start: Instant::ZERO + job.start,
                computes: job.run,
                processes: job.processors,
                dataset: Bytes::new(memory.get().saturating_mul(job.processors)),
            })
        };
        Self { name, jobs: log.jobs.iter().filter_map(job).collect(), machine }
    }

    /// The user's.
    ///
    /// # Errors
    /// If it cannot be read, or says nothing of memory.
    pub fn own(own: &Own) -> anyhow::Result<Self> {
        let log = JobLog::read(&own.log, false)?;
        log.warnings(&own.log).iter().for_each(|warning| say(warning));
        let rule = Checkpoints { every: hour(), per_processor: own.memory, processors_max: None };
        let Lacking { jobs: lacking, of } = log.lacking(&rule);
        let name = own.log.display().to_string();
        if lacking == of {
            bail!(
                "{name}: the log does not say how much memory any of its {of} jobs used: add --memory, what a processor has, such as --memory \"2 GiB\""
            );
        }
        if lacking > 0 {
            say(&format!(
                "{name}: {lacking} of {of} jobs have no memory in the log and are left out: add --memory to count all jobs alike"
            ));
        }
        let most = log.jobs.iter().map(|job| job.processors).max().unwrap_or(1);
        let machine = Machine {
            nodes: most.div_ceil(own.processors_per_node).max(1),
            processors_per_node: own.processors_per_node,
            memory: own.memory,
            source: if own.memory.is_some() { "--memory, for all jobs" } else { "the log" },
        };
        let log = Self::of(name, &log, machine);
        let nodes = log.staging_nodes();
        let most = (SIZE_MAX as f64 * nodes as f64).min(RATE_MAX as f64 * paper::WITHIN_S);
        if log.most() > most {
            bail!(
                "{}: its largest job would write {} TB at once, more than any {nodes} nodes of a staging area take: give --memory and --node-processors as the machine has them",
                log.name,
                thousands(log.most() / 1e12)
            );
        }
        Ok(log)
    }

    /// Those beside the tree, and the synthetic one.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn stored(data: &Path) -> anyhow::Result<Vec<Self>> {
        let mut all = Vec::new();
        for Stored { name, file, machine } in &STORED {
            let path = data.join(file);
            let log = JobLog::read(&path, false).with_context(|| format!("job log {name}"))?;
            log.warnings(&path).iter().for_each(|warning| say(warning));
            if *name == "Intrepid 2009" {
                let machine = Machine {
                    nodes: paper::NODES,
                    processors_per_node: paper::CORES_PER_NODE,
                    memory: None,
                    source: "16 GB a node; synthetic: Intrepid's jobs, drawn and scaled to Table III",
                };
                all.insert(0, Self { name: JAGUAR.to_owned(), jobs: jaguar::jobs(&log.jobs), machine });
            }
            all.push(Self::of((*name).to_owned(), &log, *machine));
        }
        Ok(all)
    }

    /// Of the smallest of the paper's ratios.
    fn staging_nodes(&self) -> u64 {
        staging_nodes(self.machine.nodes, paper::RATIOS[0]).min(NODES_MAX)
    }

    /// Nodes of a job.
    pub fn nodes(&self, job: &staging::Job) -> u64 {
        job.processes.div_ceil(self.machine.processors_per_node.max(1))
    }

    /// From the first start to the last end, were there no checkpoints.
    fn span_s(&self) -> f64 {
        let first = self.jobs.iter().map(|job| job.start).min().unwrap_or_default();
        let last = self.jobs.iter().map(|job| job.start + job.computes).max().unwrap_or_default();
        last.since(first).as_secs_f64().max(1.0)
    }

    /// The largest data set.
    pub fn most(&self) -> f64 {
        self.jobs.iter().map(|job| job.dataset.get()).max().unwrap_or(0) as f64
    }

    /// What the paper's SSDs of a part of the nodes take in, in bytes a second.
    pub fn ssd_bytes_s(&self) -> f64 {
        self.machine.nodes as f64 * (paper::SSD_NODES as f64 / paper::NODES as f64) * paper::SSD_BYTES_S
    }

    /// Figures 9 and 10.
    pub fn needs(&self) -> Needs {
        let all = self.jobs.len().max(1) as f64;
        let (disks, disks_with_ssd) = (disks(self.most(), 0.0), disks(self.most(), self.ssd_bytes_s()));
        let ssd_gb = self.ssd_bytes_s() * paper::WITHIN_S / paper::GB;
        let cost = disks_with_ssd * paper::DISK_USD + ssd_gb * paper::SSD_USD;
        Needs {
            log: self.name.clone(),
            jobs: self.jobs.len(),
            run_mean_h: self.jobs.iter().map(|job| job.computes.as_secs_f64()).sum::<f64>() / all / paper::HOUR_S,
            nodes_most: self.jobs.iter().map(|job| self.nodes(job)).max().unwrap_or(0),
            dataset_mean_tb: self.jobs.iter().map(|job| job.dataset.get() as f64).sum::<f64>() / all / 1e12,
            dataset_most_tb: self.most() / 1e12,
            disks,
            disks_with_ssd,
            saved: 1.0 - cost / (disks * paper::DISK_USD),
        }
    }

    /// Runs all jobs over disks alone, and over the cheapest staging areas for the largest: without and with SSD, and with a drain for all
    /// jobs, where that is more.
    ///
    /// # Errors
    /// If it cannot be simulated.
    pub fn run(&self) -> anyhow::Result<Vec<Ran>> {
        let nodes = self.staging_nodes();
        let file_system = Bandwidth::new((disks(self.most(), 0.0) * paper::DISK_BYTES_S) as u64);
        let rates = Rates { ingest: file_system, ssd_write: None, drain: file_system };
        let alone = Pool { nodes: 1, memory: Bytes::ZERO, ssd: Bytes::ZERO, rates };
        let mut ran = vec![self.over("disks alone", alone, disks(self.most(), 0.0) * paper::DISK_USD)?];
        let planned = paper::STAGING_DRAIN_BYTES_S;
        let sufficient = DRAIN_OVER_WRITTEN * ran[0].written_gb_s * paper::GB / nodes as f64;
        let mut pools = vec![("memory", false, planned), ("memory and SSD", true, planned)];
        if sufficient > planned {
            pools.push(("and a drain for all", true, sufficient));
        }
        for (name, has_ssd, drain) in pools {
            let problem = problem(self.most(), nodes, has_ssd);
            let drain = Bandwidth::new(drain as u64);
            let problem = Problem { rates: problem.rates.map(|rates| Rates { drain, ..rates }), ..problem };
            let (Some(Plan { nodes, memory_gib, ssd_gib, cost_usd, .. }), Some(rates)) =
                (Provision::of(&problem).best, problem.rates)
            else {
                continue;
            };
            let size = |gib: f64| Bytes::new((gib * (1_u64 << 30) as f64).round() as u64);
            let pool = Pool { nodes, memory: size(memory_gib), ssd: size(ssd_gib), rates };
            ran.push(self.over(name, pool, cost_usd)?);
        }
        Ok(ran)
    }

    fn over(&self, name: &'static str, pool: Pool, cost_usd: f64) -> anyhow::Result<Ran> {
        let began = std::time::Instant::now();
        let outcome = Jobs { jobs: &self.jobs, every: hour(), pool }.run().with_context(|| self.name.clone())?;
        let simulated_s = began.elapsed().as_secs_f64();
        let Outcome { checkpoints, .. } = &outcome;
        let took = || checkpoints.iter().map(|one| one.took.as_secs_f64());
        let all = checkpoints.len().max(1) as f64;
        // A plan's rates are whole bytes a second.
        let in_time = took().filter(|took_s| *took_s <= paper::WITHIN_S * 1.001).count();
        Ok(Ran {
            log: self.name.clone(),
            pool: name,
            nodes: pool.nodes,
            cost_usd,
            checkpoints: checkpoints.len(),
            written_gb_s: outcome.bytes as f64 / self.span_s() / paper::GB,
            drains_gb_s: pool.nodes as f64 * pool.rates.drain.get() as f64 / paper::GB,
            in_time: in_time as f64 / all,
            mean_s: took().sum::<f64>() / all,
            most_s: took().fold(0.0, f64::max),
            memory_most_tb: outcome.memory_most / 1e12,
            ssd_most_tb: outcome.ssd_most / 1e12,
            processes_most: outcome.processes_most,
            events: outcome.events,
            simulated_s,
        })
    }
}

/// A drain for all jobs is so many times what they write on average.
const DRAIN_OVER_WRITTEN: f64 = 2.0;

/// The synthetic log.
pub const JAGUAR: &str = "Jaguar (synthetic)";

fn hour() -> Duration {
    Duration::from_secs_f64(paper::HOUR_S)
}

/// Disks that take a data set in five minutes, beside SSDs that take so many bytes a second: at least so many that the SSDs are empty in an
/// hour.
pub fn disks(dataset: f64, ssd_bytes_s: f64) -> f64 {
    let written = (dataset / paper::WITHIN_S - ssd_bytes_s).max(dataset / paper::HOUR_S);
    (written / paper::DISK_BYTES_S).ceil()
}

/// Figures 8 to 10.
pub fn figures(logs: &[Log], needs: &[Needs]) -> Vec<Figure> {
    let Some(jaguar) = needs.iter().find(|needs| needs.log == JAGUAR) else { return Vec::new() };
    let sources = logs.iter().map(|log| format!("{}: {}.", log.name, log.machine.source)).collect::<Vec<_>>().join(" ");
    let mut jaguar_bars = vec![
        Bar::new("jobs (fit)", "", jaguar.jobs as f64, (paper::JOBS as f64, "Table III")).must_be(Limit::Within(0.01)),
        Bar::new("mean time (fit)", "h", jaguar.run_mean_h, (paper::RUN_MEAN_H, "Table III"))
            .must_be(Limit::Within(0.01)),
        Bar::new("mean data set (fit)", "TB", jaguar.dataset_mean_tb, (paper::DATASET_MEAN / 1e12, "Table III"))
            .must_be(Limit::Within(0.01)),
    ];
    jaguar_bars.push(Bar::new(
        "most nodes of a job",
        "",
        jaguar.nodes_most as f64,
        (18_000.0, "the paper, \"more than\""),
    ));
    let with_ssd = format!("with the SSDs of {} nodes (fit)", paper::SSD_NODES);
    let tenth = disks(paper::DATASET_MOST, 0.1 * paper::NODES as f64 * paper::SSD_BYTES_S);
    vec![
        Figure::new("8", "Nodes of jobs", jaguar_bars)
            .says("The logs of Jaguar are not public. The synthetic one is Intrepid's, drawn and scaled; its number, mean, least and most of data and time and its 515 heroes are fitted, so what follows from these alone is no evidence.")
            .says(sources),
        Figure::new("9", "Disks that take each job's checkpoint in five minutes", vec![
            Bar::new("most (fit)", "disks", jaguar.disks, (paper::DISKS, "the paper")).must_be(Limit::Within(0.01)),
        ])
        .says("291.27 TB of Table III are the 298 TB of the largest hero in TB of 1,024 GB; a disk then writes 85.00 MB/s, a round number; in TB of 1,000 GB it would be 83.0."),
        Figure::new("10", "The same with SSDs in some nodes", vec![
            Bar::new(format!("most, {with_ssd}"), "disks", jaguar.disks_with_ssd, (paper::DISKS_WITH_SSD, "the paper")).must_be(Limit::Within(0.01)),
            Bar::new("part of the nodes that have an SSD", "%", 100.0 * paper::SSD_NODES as f64 / paper::NODES as f64, (10.0, "the paper, \"slightly more than\"")),
            Bar::new("with SSDs in exactly a tenth", "disks", tenth, (paper::DISKS_WITH_SSD, "the paper")),
            Bar::new("cost less than disks alone (fit)", "%", 100.0 * jaguar.saved, (36.3, "the paper")).must_be(Limit::Within(0.01)),
        ])
        .says("At the 175 MB/s of Table II, 2,500 SSDs leave 6,550 disks. Each takes 52.5 GB in five minutes, more than the 32 GB of Table II.")
        .says("The paper has 5,196 disks less, and 11,696 − 6,550 are 5,146. The price of a disk, $333 with what belongs to it, is fitted to the 36.3 % of the abstract."),
    ]
}

/// A row a log.
pub fn needs_table(needs: &[Needs]) -> Table {
    Table::of("log | jobs | mean time | most nodes | data, mean | most | disks | with SSDs | fewer | cost less").with(
        needs.iter().map(|of| {
            [
                of.log.clone(),
                thousands(of.jobs as f64),
                format!("{:.2} h", of.run_mean_h),
                thousands(of.nodes_most as f64),
                format!("{} TB", digits(of.dataset_mean_tb)),
                format!("{} TB", digits(of.dataset_most_tb)),
                thousands(of.disks),
                thousands(of.disks_with_ssd),
                format!("{:.1} %", 100.0 * (1.0 - of.disks_with_ssd / of.disks)),
                format!("{:.1} %", 100.0 * of.saved),
            ]
        }),
    )
}

/// A row a log and pool.
pub fn ran_table(ran: &[Ran]) -> Table {
    let head = "log | pool | nodes | cost | written, mean | drains | checkpoints | in 5 min | mean | longest | memory, most | SSD, most";
    Table::of(head).words(2).with(ran.iter().map(|of| {
        [
            of.log.clone(),
            of.pool.to_owned(),
            if of.pool == "disks alone" { String::new() } else { thousands(of.nodes as f64) },
            format!("${} k", thousands(of.cost_usd / 1000.0)),
            format!("{} GB/s", digits(of.written_gb_s)),
            format!("{} GB/s", digits(of.drains_gb_s)),
            thousands(of.checkpoints as f64),
            format!("{:.2} %", 100.0 * of.in_time),
            format!("{} s", digits(of.mean_s)),
            format!("{} s", thousands(of.most_s)),
            format!("{} TB", digits(of.memory_most_tb)),
            format!("{} TB", digits(of.ssd_most_tb)),
        ]
    }))
}
