//! Where the demo's volumes and its report go, and how its device is exported; what is left when it fails.

use std::path::{Path, PathBuf};

use surgetank_report::output::note;
use surgetank_report::{Doing, Failure};

use crate::filesystem;
use crate::host::Export;
use crate::workspace::{self, Workspace};

/// Unix socket paths are 107 bytes at most; below this place they need "/surgetank-demo-4194304/static-slow/run/nbd.sock".
const PLACE_LENGTH_MAX: usize = 107 - 48;

/// Makes the report's directory and runs something that fills it. If that fails, a directory that was not there is removed.
///
/// # Errors
/// Its own, or the directory cannot be made.
pub fn with_report<T>(out: &Path, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let was_there = out.exists();
    std::fs::create_dir_all(out)
        .doing(|| format!("the report's directory {} cannot be made, name another with --out", out.display()))?;
    let outcome = run();
    if outcome.is_err() && !was_there {
        // Without a report in it.
        let _ = std::fs::remove_dir(out);
    }
    outcome
}

/// Runs something in a work directory below `root`, and puts that away.
///
/// # Errors
/// Its own, in the words of somebody who finds everything put away, or the work directory cannot be made.
pub fn with_workspace<T>(
    root: &Path,
    keep: bool,
    run: impl FnOnce(&Workspace) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let finished = {
        let workspace = Workspace::create(root, keep)?;
        let finished = run(&workspace).map_err(|failure| blame_full_disk(failure, root));
        if keep {
            note(&format!("surgetank: the volumes are kept in {}", workspace.path().display()));
        }
        finished
    };
    finished.map_err(put_away)
}

/// By the time this is said, the work directory is gone.
fn put_away(failure: Failure) -> Failure {
    match failure {
        Failure::Interrupted(_) => {
            Failure::Interrupted("interrupted; everything is unmounted, released and removed".into())
        }
        other => other,
    }
}

/// A full disk below the volumes shows as all kinds of errors above them; asked while the volumes still lie there.
fn blame_full_disk(failure: Failure, root: &Path) -> Failure {
    const FULL: u64 = 16 << 20;
    match failure {
        Failure::Failed(_) if workspace::free_space(root).is_ok_and(|free| free < FULL) => Failure::Failed(format!(
            "the disk below the demo's volumes in {} ran full: free some, or set TMPDIR to a directory with room",
            root.display()
        )),
        other => other,
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Puts away what killed runs left, and finds a place with room for this one.
///
/// # Errors
/// There is none.
pub fn choose(needed: u64, out: &Path) -> Result<PathBuf, Failure> {
    let known: Vec<PathBuf> = workspace::places(out).into_iter().map(|(place, _)| place).collect();
    for left in workspace::sweep(&known) {
        note(&format!("surgetank: put away {}, which a killed run had left", left.display()));
    }
    let places = workspace::places(out);
    match places.first() {
        Some((place, _)) if !place.is_dir() => Err(Failure::Invalid(format!(
            "TMPDIR is {}, which is no directory: set it to one on a disk",
            place.display()
        ))),
        Some((place, _)) if place.as_os_str().len() > PLACE_LENGTH_MAX => Err(Failure::Invalid(format!(
            "the path {} is too long for sockets below it: set TMPDIR to a directory with a short path",
            place.display()
        ))),
        Some((place, free)) if *free >= needed => Ok(place.clone()),
        Some((place, free)) => Err(Failure::Failed(format!(
            "the demo needs {} of disk, but {} has {} free: free some, or set TMPDIR to a directory with room",
            gib(needed),
            place.display(),
            gib(*free)
        ))),
        None => Err(Failure::failed(
            "there is no place for the demo's volumes: set TMPDIR to a writable directory on a disk",
        )),
    }
}

/// A block device if this user and machine allow one, else NBD, saying why.
///
/// # Errors
/// A command is missing.
pub fn choose_export() -> Result<Export, Failure> {
    let opens = |path: &str| std::fs::File::options().read(true).write(true).open(path).is_ok();
    let obstacle = if !rustix::process::geteuid().is_root() {
        "this user is not root"
    } else if !opens("/dev/fuse") {
        "/dev/fuse cannot be opened"
    } else if !opens("/dev/loop-control") {
        "/dev/loop-control cannot be opened"
    } else {
        filesystem::check_commands()?;
        return Ok(Export::Fuse);
    };
    note(&format!(
        "surgetank: {obstacle}, so the demo uses its devices over NBD in this process, without a file system"
    ));
    Ok(Export::Nbd)
}
