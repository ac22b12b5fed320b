//! What a guest has measured: a line for each sample, in the directory that it shares with the host.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::SHARE;

/// The samples, in the directory of the results.
const KEPT: &str = "samples.jsonl";
/// Those of the run before.
const KEPT_BEFORE: &str = "samples.old.jsonl";

/// Hours may be in the samples: they are kept while they are taken, and those of the run before beside them.
pub fn keep(out: &Path, results: &Path) -> anyhow::Result<()> {
    let (kept, before) = (out.join(KEPT), out.join(KEPT_BEFORE));
    if fs::metadata(&kept).is_ok_and(|samples| samples.len() > 0) {
        fs::rename(&kept, &before).with_context(|| format!("cannot write {}", before.display()))?;
    }
    let _ = fs::remove_file(&kept);
    fs::hard_link(results.join(KEPT), &kept).with_context(|| format!("cannot make {}", kept.display()))
}

/// Makes a place for samples, none of them taken yet.
pub fn begin(directory: &Path) -> anyhow::Result<()> {
    fs::write(directory.join(KEPT), "").with_context(|| format!("cannot write to {}", directory.display()))
}

/// The samples that are kept in a directory. A last line that is not whole is no sample.
pub fn read<T: DeserializeOwned>(out: &Path) -> anyhow::Result<Vec<T>> {
    let kept = out.join(KEPT);
    let text = fs::read_to_string(&kept).with_context(|| format!("cannot read {}", kept.display()))?;
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(serde_json::from_str).collect::<Result<_, _>>().context("cannot read the samples")
}

/// Adds a sample to those that the host keeps, in the guest.
pub fn add(sample: &impl Serialize) -> anyhow::Result<()> {
    let file = fs::File::options().append(true).open(Path::new(SHARE).join(KEPT));
    let line = serde_json::to_string(sample)? + "\n";
    file.and_then(|mut file| file.write_all(line.as_bytes())).context("cannot write a sample")
}
