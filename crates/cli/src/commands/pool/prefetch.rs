//! `surgetank pool prefetch`: brings files of a mounted pool back from the target.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use surgetank_model::text::line;
use surgetank_mount::{NAME, point};
use surgetank_pool::client::{Config, Error, PoolClient};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_report::number::count;
use surgetank_report::{Failure, Interrupt, output};

use super::asked::ANSWER;
use super::managers;
use super::shown::Shown;

/// Flags of `pool prefetch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool prefetch /mnt/pool/checkpoint
  surgetank pool prefetch /mnt/pool/run1 --token run1.token

PATH is a file, or a directory with all files below it. What is in the pool already stays as it is. The target hears nothing of it. When room is short, \
what was brought back leaves the pool as everything does that the target has.")]
pub struct Prefetch {
    /// A file or directory of a mounted pool
    path: PathBuf,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shown: Shown,
}

/// What it has come to.
#[derive(Default, Serialize)]
struct Brought {
    /// Files that were brought back, and their bytes.
    files: usize,
    gib: f64,
    /// Files that were in the pool.
    present: usize,
    seconds: f64,
}

impl Prefetch {
    pub fn run(&self) -> Result<(), Failure> {
        let shown = line(&self.path.display().to_string()).to_string();
        let full = std::fs::canonicalize(&self.path).map_err(|error| {
            Failure::Invalid(format!("{shown}: {error}: name a file or directory of a mounted pool"))
        })?;
        let mounted = point::of(&full).filter(point::is_pool);
        let mounted = mounted.ok_or_else(|| {
            Failure::Invalid(format!(
                "{shown}: it lies in no staging pool: `grep pool:// /proc/mounts` lists mounts of pools"
            ))
        })?;
        let pool = mounted.source.display().to_string();
        let mut name = vec![0; 4096];
        let length = rustix::fs::getxattr(&mounted.point, NAME, &mut name[..]).map_err(|error| {
            Failure::Failed(format!("{}: its mount does not say its name: {error}", mounted.point.display()))
        })?;
        let name = String::from_utf8_lossy(&name[..length]).into_owned();
        let files = files(&full)?;
        let config = Config::new(managers(&pool), self.shown.access()?, &name);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
        let brought = runtime.block_on(bring(config, &mounted.point, &files, &Interrupt::install()?))?;
        if self.json {
            return output::print_json(&brought);
        }
        output::print(&format!(
            "{} brought back, {:.1} MiB in {:.1} s; {} were in the pool",
            count(brought.files, "file"),
            brought.gib * 1024.0,
            brought.seconds,
            brought.present
        ))
    }
}

/// Regular files at or below a path.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |at: &Path| {
        let at = line(&at.display().to_string()).to_string();
        move |error: std::io::Error| Failure::Failed(format!("{at}: {error}"))
    };
    let (mut all, mut left) = (Vec::new(), vec![path.to_owned()]);
    while let Some(at) = left.pop() {
        match look(&at) {
            Ok((is_file, below)) => {
                left.extend(below);
                all.extend(is_file.then_some(at));
            }
            // It was removed since its directory was listed.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) && at != path => {}
            Err(error) => return Err(failed(&at)(error)),
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Whether a regular file is there, and what is in it if it is a directory.
fn look(at: &Path) -> std::io::Result<(bool, Vec<PathBuf>)> {
    let found = std::fs::symlink_metadata(at)?;
    let below = match found.is_dir() {
        true => std::fs::read_dir(at)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?,
        false => Vec::new(),
    };
    Ok((found.is_file(), below))
}

/// Waits until a user has asked so often to stop.
async fn asked(interrupt: &Interrupt, times: u32) {
    while interrupt.count() < times {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn bring(mut config: Config, point: &Path, files: &[PathBuf], interrupt: &Interrupt) -> Result<Brought, Failure> {
    let failed = |error: Error| Failure::Failed(error.to_string());
    let mut first = config.clone();
    first.timeout = ANSWER;
    // A pool that does not answer is told at once.
    PoolClient::ask_status(&first).await.map_err(failed)?;
    config.make = None;
    let client = PoolClient::begin(config).await.map_err(failed)?;
    let (mut brought, began) = (Brought::default(), Instant::now());
    for file in files {
        let below = file.strip_prefix(point).unwrap_or(file);
        let Some(path) = below.to_str() else {
            let shown = line(&file.display().to_string()).to_string();
            return Err(Failure::Failed(format!("{shown}: its name is not UTF-8: read it instead")));
        };
        let done = tokio::select! {
            done = client.prefetch_until(path, asked(interrupt, 1)) => done,
            // Whoever asks twice does not wait for managers that do not answer.
            () = asked(interrupt, 2) => Ok(false),
        };
        if interrupt.raised() && !matches!(done, Ok(true)) {
            let text = format!("interrupted: {} brought back before", count(brought.files, "file"));
            return Err(Failure::Failed(text));
        }
        let size = match done {
            Ok(true) => client.stat(path).await.map(|found| Some(found.size)),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        match size {
            Ok(Some(size)) => {
                brought.files += 1;
                brought.gib += size as f64 / super::GIB;
            }
            Ok(None) => brought.present += 1,
            // It was removed since it was listed.
            Err(Error::Refused(_, Refusal::NotFound)) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    brought.seconds = began.elapsed().as_secs_f64();
    Ok(brought)
}
