//! Job logs of batch systems: which job ran when on how many processors. They are in the Standard Workload Format (SWF), in
//! Alea's extension of it, or in the table that Argonne's logs are passed on in. What such a log says of storage is a model: every
//! job writes a part of its memory at regular times and when it ends, as applications that write checkpoints do.

use std::path::Path;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use crate::error::TraceError;
use crate::look::{ARGONNE_HEADER, SWF_FIELDS};
use crate::parse::Broken;
use crate::parse::fields::shown_shortly;
use crate::parse::lines::Lines;
use crate::reader::{left_out, unreadable};
use crate::series::{SAMPLES_MAX, Sample, Series};
use crate::source::Source;

/// A job that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it started, since the log's own origin: its submission and its wait, which Argonne's table does not have.
    pub start: Duration,
    /// How long it ran.
    pub run: Duration,
    /// Processors that it had; nodes in Argonne's table, which has nothing smaller.
    pub processors: u64,
    /// Memory of each, if the log knows it.
    pub memory: Option<Bytes>,
}

/// What jobs write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// Run time between checkpoints, above zero; one more is written at the end.
    pub every: Duration,
    /// Bytes of a checkpoint for each processor; `None`: the memory of the log.
    pub per_processor: Option<Bytes>,
    /// Larger jobs write elsewhere.
    pub processors_max: Option<u64>,
}

/// The jobs of a log, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLog {
    /// Those that ran.
    pub jobs: Vec<Job>,
    /// Lines of jobs that never ran.
    pub others: u64,
    /// Lines that could not be read, and were left out.
    pub broken: u64,
    /// The first of them.
    pub first_broken: Option<Broken>,
    /// Lines in all, comments too.
    pub lines: u64,
    layout: Layout,
}

/// What lines are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Layout {
    /// Eighteen fields.
    #[default]
    Swf,
    /// A header, then name, submission, run time and nodes.
    Argonne,
}

/// How many of the jobs that write have no memory in the log, so that it is unknown what they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// So many.
    pub jobs: usize,
    /// Of so many.
    pub of: usize,
}

/// More memory than any processor has: 64 TiB.
const MEMORY_MAX_KB: f64 = (64u64 << 30) as f64;
/// More checkpoints than any log comes to at a sensible interval.
const CHECKPOINTS_MAX: u64 = 100_000_000;

impl JobLog {
    /// Reads a log, decompressing it by its name.
    ///
    /// # Errors
    /// If it cannot be read, holds no job, or (`strict`) has a broken line.
    pub fn read(path: &Path, strict: bool) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let (mut source, _) = Source::open(path)?;
        let mut log = Self::default();
        let mut lines = Lines::default();
        loop {
            let (window, last) = source.window().map_err(|error| unreadable(&name, &error))?;
            let take = |line, found: Result<&[u8], String>| {
                log.lines += 1;
                let Err(reason) = found.and_then(|words| log.line(words)) else { return Ok(()) };
                let broken = Broken { line, reason };
                log.broken += 1;
                log.first_broken.get_or_insert_with(|| broken.clone());
                if strict { Err(broken) } else { Ok(()) }
            };
            let taken = lines.cut(window, last, take).map_err(|Broken { line, reason }| {
                TraceError::Invalid(format!("{name}:{line}: {reason}; fix or remove the line"))
            })?;
            if source.consume(taken) {
                break;
            }
        }
        match &log.first_broken {
            _ if !log.jobs.is_empty() => Ok(log),
            Some(Broken { line, reason }) => Err(TraceError::Invalid(format!(
                "{name}:{line}: {reason}; it holds no job in the Standard Workload Format, nor in Argonne's table"
            ))),
            None => Err(TraceError::Invalid(format!("{name} holds no job that ran: name a log that does"))),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.starts_with(b";") {
            return Ok(());
        }
        if line.starts_with(ARGONNE_HEADER) {
            self.layout = Layout::Argonne;
            return Ok(());
        }
        match self.layout {
            Layout::Swf => self.swf(line),
            Layout::Argonne => self.argonne(line),
        }
    }

    fn swf(&mut self, line: &[u8]) -> Result<(), String> {
        let mut words = words(line);
        let (fields, found) = numbers::<SWF_FIELDS>(&mut words)?;
        if found < SWF_FIELDS {
            return Err(format!("a job has {found} fields, and {SWF_FIELDS} in the Standard Workload Format"));
        }
        // Alea appends the list of nodes. Its used memory is a constant, and its requested memory counts bytes of the whole job.
        let is_alea = words.next().is_some_and(|word| word.starts_with(b"{"));
        let [_, submitted, waited, ran, allocated, _, used, asked, _, memory, ..] = fields;
        // -1 is unknown.
        let processors = if allocated > 0.0 { allocated } else { asked };
        let kilobytes = match is_alea {
            true => Some(memory / processors / 1024.0).filter(|kilobytes| *kilobytes > 0.0),
            false => [used, memory].into_iter().find(|kilobytes| *kilobytes > 0.0),
        };
        self.job(submitted + waited.max(0.0), ran, processors, kilobytes)
    }

    fn argonne(&mut self, line: &[u8]) -> Result<(), String> {
        let mut words = words(line);
        words.next();
        let ([submitted, ran, nodes], found) = numbers(&mut words)?;
        if found < 3 {
            return Err(format!("a job has {found} numbers behind its name, and 3 in Argonne's table"));
        }
        self.job(submitted, ran, nodes, None)
    }

    fn job(&mut self, start_s: f64, ran_s: f64, processors: f64, kilobytes: Option<f64>) -> Result<(), String> {
        let span = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} s is no time"));
        let run = span(ran_s.max(0.0))?;
        if run.is_zero() || processors < 1.0 {
            self.others += 1;
            return Ok(());
        }
        let start = span(start_s)?;
        if let Some(kilobytes) = kilobytes.filter(|kilobytes| *kilobytes > MEMORY_MAX_KB) {
            return Err(format!("{kilobytes} KB of memory a processor are more than any has: the log may count bytes"));
        }
        self.jobs.push(Job {
            start,
            run,
            processors: processors as u64,
            memory: kilobytes.map(|kilobytes| Bytes::new((kilobytes * 1024.0) as u64)),
        });
        Ok(())
    }

    /// How many jobs the rule counts whose memory is not known: they write nothing.
    #[must_use]
    pub fn lacking(&self, rule: &Checkpoints) -> Lacking {
        let largest = rule.processors_max.unwrap_or(u64::MAX);
        let counted = || self.jobs.iter().filter(|job| job.processors <= largest);
        let is_lacking = |job: &&Job| rule.per_processor.or(job.memory).is_none();
        Lacking { jobs: counted().filter(is_lacking).count(), of: counted().count() }
    }

    /// What people must know of it, in sentences: the first line that was left out and how many there are.
    #[must_use]
    pub fn warnings(&self, name: &Path) -> Vec<String> {
        let broken = self.first_broken.as_ref();
        let place = |Broken { line, reason }: &Broken| format!("{}:{line}: {reason}", name.display());
        broken.map(|first| left_out(&place(first), self.broken, self.lines)).into_iter().collect()
    }

    /// What the jobs write, interval by interval, from the start of the first job on.
    ///
    /// # Errors
    /// If no job's memory is known, or there would be absurdly many checkpoints or intervals.
    pub fn series(&self, rule: &Checkpoints, interval: Duration) -> Result<Series, TraceError> {
        let invalid = |text: String| Err(TraceError::Invalid(text));
        let jobs = || {
            let largest = rule.processors_max.unwrap_or(u64::MAX);
            self.jobs.iter().filter(move |job| job.processors <= largest)
        };
        let Some(origin) = jobs().map(|job| job.start).min() else {
            return invalid("no job of the log is as small as processors_max: raise it".to_owned());
        };
        let Lacking { jobs: lacking, of } = self.lacking(rule);
        if lacking == of {
            return invalid(format!(
                "the log does not say how much memory any of its {of} jobs used: write memory, bytes of a checkpoint for each \
                 processor, such as \"1 GiB\", in [jobs]"
            ));
        }
        let every = rule.every.max(Duration::from_millis(1));
        let regular = |job: &Job| (job.run.as_nanos() - 1) / every.as_nanos();
        if jobs().map(|job| regular(job) + 1).sum::<u128>() > u128::from(CHECKPOINTS_MAX) {
            return invalid(format!(
                "the jobs would write more than {CHECKPOINTS_MAX} checkpoints: lengthen the interval"
            ));
        }
        let mut samples: Vec<Sample> = Vec::new();
        for job in jobs() {
            let Some(memory) = rule.per_processor.or(job.memory) else { continue };
            let bytes = memory.get().saturating_mul(job.processors);
            let times = (1..=regular(job) as u32).map(|number| every.saturating_mul(number)).chain([job.run]);
            for after in times {
                let index = (job.start - origin).saturating_add(after).as_nanos() / interval.as_nanos().max(1);
                if index >= u128::from(SAMPLES_MAX) {
                    return invalid("the log spans too many intervals: choose a longer one".to_owned());
                }
                let index = index as usize;
                if index >= samples.len() {
                    samples.resize(index + 1, Sample::default());
                }
                samples[index].written = Bytes::new(samples[index].written.get().saturating_add(bytes));
                samples[index].requests += 1;
            }
        }
        Ok(Series { interval, start: Instant::ZERO, samples, touched: None, broken: self.broken, warnings: Vec::new() })
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The next numbers, and how many there are; what is missing is unknown.
fn numbers<'a, const N: usize>(words: &mut impl Iterator<Item = &'a [u8]>) -> Result<([f64; N], usize), String> {
    let mut fields = [-1.0; N];
    let mut found = 0;
    for (field, word) in fields.iter_mut().zip(words) {
        let text = shown_shortly(word);
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        *field = number.ok_or_else(|| format!("field {} is {text:?}, not a number", found + 1))?;
        found += 1;
    }
    Ok((fields, found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "; MaxProcs: 8\n\
        1 100 20 7200 4 -1 -1 4 7200 -1 1 -1 -1 -1 -1 -1 -1 -1\n\
        \n\
        2 100 0 0 4 -1 -1 4 7200 -1 0 -1 -1 -1 -1 -1 -1 -1\n\
        3 200 -1 1800 -1 -1 2048 2 3600 -1 1 -1 -1 -1 -1 -1 -1 -1\n\
        4 x\n";

    fn read(text: &str, strict: bool) -> Result<JobLog, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.swf");
        std::fs::write(&path, text).unwrap();
        JobLog::read(&path, strict).map_err(|error| error.to_string())
    }

    #[test]
    fn jobs_are_read_and_broken_lines_counted() {
        let log = read(LOG, false).unwrap();
        assert_eq!((log.jobs.len(), log.others, log.broken), (2, 1, 1));
        assert_eq!(log.jobs[0].start, Duration::from_secs(120));
        assert_eq!((log.jobs[1].processors, log.jobs[1].memory), (2, Some(Bytes::from_mib(2))));
        assert!(read(LOG, true).unwrap_err().contains("log.swf:6: field 2 is \"x\""));
        assert!(read("; nothing\n", false).unwrap_err().contains("no job that ran"));
        // A table of six columns is no such log, however numeric it is.
        let said = read("1 2 3 4 5 6\n7 8 9 10 11 12\n", false).unwrap_err();
        assert!(said.contains("log.swf:1: a job has 6 fields, and 18"), "{said}");
        let warnings = log.warnings(Path::new("log.swf"));
        assert!(warnings[0].contains("log.swf:6: field 2 is \"x\"") && warnings[0].contains("1 of 5"), "{warnings:?}");
        let bytes = LOG.replace("-1 1800 -1 -1 2048 2", "-1 1800 2 -1 99999999999 2");
        assert!(read(&bytes, true).unwrap_err().contains("log.swf:5: 99999999999 KB of memory"));
    }

    #[test]
    fn aleas_extension_counts_bytes_of_the_whole_job() {
        let job = "0 100 20 7200 4 1 1024 4 7200 8589934592 1 62 1 1 -1 1 1 1 {7,7,7,7} q_1d 1:ppn=4\n";
        let log = read(&format!("{job}{}", job.replace("8589934592", "-1")), true).unwrap();
        let memory: Vec<Option<Bytes>> = log.jobs.iter().map(|job| job.memory).collect();
        // Its used memory, 1024, is no memory of any job.
        assert_eq!(memory, [Some(Bytes::from_gib(2)), None]);
        assert_eq!((log.jobs[0].processors, log.jobs[0].start), (4, Duration::from_secs(120)));
    }

    #[test]
    fn argonnes_table_is_read() {
        const TABLE: &str =
            "Job_name Submit Runtime Nodes Comment Perc\n1 0 7560 512 1 90\n2 7 0 512 1 90\n3 9 x 1 1 1\n4 1 2\n";
        let log = read(TABLE, false).unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(log.jobs, [Job { start: seconds(0), run: seconds(7560), processors: 512, memory: None }]);
        assert_eq!((log.others, log.broken), (1, 2));
        assert!(read(TABLE, true).unwrap_err().contains("log.swf:4: field 2 is \"x\""));
        let said = read("Job_name Submit Runtime Nodes\n4 1 2\n", false).unwrap_err();
        assert!(said.contains("log.swf:2: a job has 2 numbers behind its name"), "{said}");
    }

    proptest! {
        #[test]
        fn no_line_and_no_job_is_too_odd(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            numbers in prop::collection::vec(prop_oneof![any::<f64>(), -2.0..1e6f64], 15..20),
        ) {
            let mut log = JobLog::default();
            let _ = log.line(&bytes);
            let words: Vec<String> = numbers.iter().map(f64::to_string).collect();
            let _ = log.line(words.join(" ").as_bytes());
            let _ = log.line(format!("{} {{1,1}}", words.join(" ")).as_bytes());
            let _ = log.argonne(words.join(" ").as_bytes());
            for every in [Duration::ZERO, Duration::from_secs(1000), Duration::MAX] {
                let rule = Checkpoints { every, per_processor: Some(Bytes::new(1)), processors_max: None };
                if log.jobs.iter().all(|job| job.run < Duration::from_secs(100)) {
                    let _ = log.series(&rule, Duration::from_secs(1000));
                }
            }
        }
    }

    #[test]
    fn every_job_writes_at_its_times_and_at_its_end() {
        let log = read(LOG, false).unwrap();
        let hourly = Checkpoints {
            every: Duration::from_secs(3600),
            per_processor: Some(Bytes::from_mib(10)),
            processors_max: None,
        };
        let series = log.series(&hourly, Duration::from_secs(10)).unwrap();
        let written: Vec<(usize, u64)> = (0..)
            .zip(&series.samples)
            .filter_map(|(index, sample)| (sample.requests > 0).then_some((index, sample.written.get() >> 20)))
            .collect();
        // The second started 80 s after the first; a checkpoint that would coincide with the end is written once.
        assert_eq!(written, [(188, 20), (360, 40), (720, 40)]);
        // One of the two jobs has no memory in the log: it is counted, and writes nothing.
        let of_the_log = Checkpoints { per_processor: None, ..hourly };
        assert_eq!(
            (log.lacking(&of_the_log), log.lacking(&hourly)),
            (Lacking { jobs: 1, of: 2 }, Lacking { jobs: 0, of: 2 })
        );
        assert_eq!(log.series(&of_the_log, Duration::from_secs(10)).unwrap().samples.len(), 189);
        let without = JobLog { jobs: vec![log.jobs[0]], ..JobLog::default() };
        let said = without.series(&of_the_log, Duration::from_secs(10)).unwrap_err().to_string();
        assert!(said.contains("any of its 1 jobs") && said.contains("write memory"), "{said}");
        let small = Checkpoints { processors_max: Some(2), ..of_the_log };
        assert_eq!(log.series(&small, Duration::from_secs(10)).unwrap().samples[180].written, Bytes::from_mib(4));
        let none = Checkpoints { processors_max: Some(1), ..hourly };
        assert!(log.series(&none, Duration::from_secs(10)).is_err());
        assert!(log.series(&hourly, Duration::ZERO).unwrap_err().to_string().contains("too many intervals"));
    }
}
