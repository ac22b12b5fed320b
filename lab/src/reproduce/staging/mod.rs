//! The paper on a staging pool (PVK11): its Figures 3 and 5 to 14 as far as public data allow, beside its values.

mod figure;
mod heroes;
mod jaguar;
mod logs;
mod page;
mod paper;
mod testbed;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::bail;
use serde::Serialize;
use surgetank_model::Bytes;
use surgetank_whatif::staging::{Burst, Kind, Written};

use crate::bar::{Bar, Limit};
use crate::interrupt::Interrupt;
use crate::output::{say, write};
use crate::product::tree;
use figure::Figure;
use heroes::{Hero, InJob};
pub use logs::Own;
use logs::{Log, Needs, Ran};
use testbed::Testbed;

/// Simulates what the paper shows, or a user's own log.
pub struct Staging<'a> {
    /// Ends it.
    pub interrupt: &'a Interrupt,
    /// Where pages go.
    pub out: &'a Path,
    /// Where job logs are, if not beside the tree.
    pub data: Option<&'a Path>,
}

/// 3,000 benefactors under 100,000 processes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Crowd {
    benefactors: u64,
    processes: u64,
    chunks: u64,
    checkpoint_s: f64,
    planned_s: f64,
    simulated_s: f64,
}

/// Everything that is shown.
struct Found {
    figures: Vec<Figure>,
    testbed: Testbed,
    heroes: Vec<Hero>,
    in_job: Vec<InJob>,
    logs: Vec<Log>,
    needs: Vec<Needs>,
    ran: Vec<Ran>,
    crowd: Crowd,
}

/// The document for scripts.
#[derive(Serialize)]
struct Document<'a> {
    figures: &'a [Figure],
    logs: &'a [Needs],
    pools: &'a [Ran],
    crowd: Option<Crowd>,
}

impl Staging<'_> {
    /// Reports; the bars.
    pub fn reproduce(&self) -> anyhow::Result<Vec<Bar>> {
        let logs = self.jobs()?.map_or(Ok(Vec::new()), |jobs| Log::stored(&jobs))?;
        say("checkpoints of the testbed");
        let (mut figures, testbed) = testbed::reproduce()?;
        self.interrupt.check()?;
        say("heroes");
        let heroes = heroes::heroes()?;
        self.interrupt.check()?;
        let (in_job_figure, in_job) = heroes::in_job()?;
        let crowd = crowd()?;
        let needs: Vec<Needs> = logs.iter().map(Log::needs).collect();
        let ran = self.run(&logs)?;
        figures.extend(logs::figures(&logs, &needs));
        figures.extend(heroes::figures(&heroes));
        figures.push(in_job_figure);
        let found = Found { figures, testbed, heroes, in_job, logs, needs, ran, crowd };
        let document = Document { figures: &found.figures, logs: &found.needs, pools: &found.ran, crowd: Some(crowd) };
        write(self.out, "staging", &page::markdown(&found), &document)?;
        std::fs::write(self.out.join("staging.html"), page::html(&found)?)?;
        let crowded = Bar::new(
            "a checkpoint of 100,000 processes, beside the planner's",
            "s",
            crowd.checkpoint_s,
            (crowd.planned_s, "planned"),
        );
        Ok(found.figures.iter().flat_map(Figure::judged).chain([crowded.must_be(Limit::Within(0.01))]).collect())
    }

    /// A user's own log in place of the stored ones.
    pub fn own(&self, own: &Own) -> anyhow::Result<()> {
        let logs = [Log::own(own)?];
        let needs: Vec<Needs> = logs.iter().map(Log::needs).collect();
        let ran = self.run(&logs)?;
        let document = Document { figures: &[], logs: &needs, pools: &ran, crowd: None };
        write(self.out, "staging", &page::own(&logs[0], &needs, &ran), &document)
    }

    fn run(&self, logs: &[Log]) -> anyhow::Result<Vec<Ran>> {
        let mut ran = Vec::new();
        for log in logs {
            self.interrupt.check()?;
            say(&format!("all jobs of {}", log.name));
            ran.extend(log.run()?);
        }
        Ok(ran)
    }

    /// Where logs are; without them the figures that need none are left.
    fn jobs(&self) -> anyhow::Result<Option<PathBuf>> {
        let beside = || tree().parent().map(|parent| parent.join("shared/data"));
        let data = self.data.map(Path::to_owned).or_else(beside).map(|data| data.join("jobs"));
        match (data.filter(|data| data.is_dir()), self.data) {
            (None, Some(named)) => bail!(
                "there are no job logs at {}: name with --data the directory that has jobs, or a log with --log",
                named.join("jobs").display()
            ),
            (None, None) => {
                say("there are no job logs at ../shared/data/jobs beside the tree: Figures 8 to 10 are left out");
                Ok(None)
            }
            (data, _) => Ok(data),
        }
    }
}

/// The paper's 22 TB of a run of GTS, at once.
fn crowd() -> anyhow::Result<Crowd> {
    let (benefactors, processes) = (3_000, 100_000);
    let each = Bytes::new(220_000_000);
    let rates = testbed::rates();
    let (memory, ssd) = (Bytes::new(1_000_000_000), Bytes::new(2_000_000_000));
    let kinds = vec![Kind { count: benefactors, memory, ssd, rates }];
    say("100,000 processes");
    let began = Instant::now();
    let Written { took, chunks, bytes, .. } = Burst { kinds, processes, each, chunk: Bytes::from_mib(1) }.run()?;
    let simulated_s = began.elapsed().as_secs_f64();
    let planned_s = heroes::planned_s(bytes, benefactors, memory, ssd, rates);
    Ok(Crowd { benefactors, processes, chunks, checkpoint_s: took.as_secs_f64(), planned_s, simulated_s })
}
