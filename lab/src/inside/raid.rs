//! The paper's array of burstable volumes: mdadm's RAID-0 over pairs of RAID-1, of which one half is there until a member is replaced.
//!
//! Source: mdadm, md (`docs/REFERENCES.md`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::interrupt::output;
use crate::machine::{ask, forget, tell, wait_for};

/// The stripe; pairs follow.
const STRIPE: &str = "/dev/md100";
const FIRST_PAIR: usize = 101;
const TIMEOUT: Duration = Duration::from_secs(600);

/// The stripe of pairs, and the disk that no pair has.
pub struct Raid {
    /// By slot: the disk that has the data.
    members: Vec<PathBuf>,
    spare: PathBuf,
    /// The slot that gets the spare, while it does.
    replacing: Option<usize>,
}

impl Raid {
    /// Over these disks, with chunks of so many KiB; members are copied at this rate, whatever else they do.
    pub fn make(members: Vec<PathBuf>, spare: PathBuf, chunk_kib: u64, copy_kib_s: u64) -> anyhow::Result<Self> {
        for (slot, disk) in members.iter().enumerate() {
            let disk = disk.display().to_string();
            let words = ["--level=1", "--raid-devices=2", "--bitmap=none", "--assume-clean", &disk, "missing"];
            create(&pair(slot), &words)?;
            // The least is kept also while others use the disks, so that this is the rate and not only its bound.
            for bound in ["sync_speed_max", "sync_speed_min"] {
                tell(md(slot, bound), &copy_kib_s.to_string())?;
            }
        }
        let (chunk, count) = (format!("--chunk={chunk_kib}"), format!("--raid-devices={}", members.len()));
        let pairs: Vec<String> = (0..members.len()).map(pair).collect();
        let words = ["--level=0", &chunk, &count].into_iter().chain(pairs.iter().map(String::as_str));
        create(STRIPE, &words.collect::<Vec<_>>())?;
        Ok(Self { members, spare, replacing: None })
    }

    /// What is used.
    pub fn device(&self) -> PathBuf {
        STRIPE.into()
    }

    /// Gives a pair the spare disk as its other half, to which md then copies.
    pub fn rotate(&mut self, slot: usize) -> anyhow::Result<()> {
        forget(&self.spare)?;
        mdadm(&["--manage", &pair(slot), "--add", &self.spare.display().to_string()])?;
        wait_for("md's recovery", TIMEOUT, || Ok((ask(md(slot, "sync_action"))? == "recover").then_some(())))?;
        self.replacing = Some(slot);
        Ok(())
    }

    /// What the spare has of its pair, from 0 to 1. `None`: no member is being replaced.
    pub fn copied_share(&mut self) -> anyhow::Result<Option<f64>> {
        let Some(slot) = self.replacing else { return Ok(None) };
        if ask(md(slot, "sync_action"))? != "idle" || ask(md(slot, "degraded"))? != "0" {
            return share(&ask(md(slot, "sync_completed"))?).map(Some);
        }
        let old = self.members[slot].display().to_string();
        mdadm(&["--manage", &pair(slot), "--fail", &old])?;
        // Until what is in flight on it has ended, it is busy.
        wait_for("md's release of a disk", TIMEOUT, || Ok(mdadm(&["--manage", &pair(slot), "--remove", &old]).ok()))?;
        std::mem::swap(&mut self.members[slot], &mut self.spare);
        self.replacing = None;
        Ok(None)
    }
}

impl Drop for Raid {
    fn drop(&mut self) {
        let _ = mdadm(&["--stop", STRIPE]);
        for slot in 0..self.members.len() {
            let _ = mdadm(&["--stop", &pair(slot)]);
        }
    }
}

fn pair(slot: usize) -> String {
    format!("/dev/md{}", FIRST_PAIR + slot)
}

/// A file of a pair's in sysfs.
fn md(slot: usize, file: &str) -> PathBuf {
    Path::new("/sys/block").join(format!("md{}", FIRST_PAIR + slot)).join("md").join(file)
}

fn create(node: &str, words: &[&str]) -> anyhow::Result<()> {
    mdadm(&[&["--create", node, "--run", "--metadata=1.2"], words].concat())
}

/// Runs it. No udev makes nodes in a guest.
fn mdadm(words: &[&str]) -> anyhow::Result<()> {
    output(Command::new("mdadm").args(words).env("MDADM_NO_UDEV", "1")).map(drop)
}

/// `DONE / ALL` in sectors, or `none` and `delayed` before it begins and when it has ended.
fn share(text: &str) -> anyhow::Result<f64> {
    let Some((done, all)) = text.split_once(" / ") else { return Ok(0.0) };
    let number = |text: &str| text.trim().parse::<f64>().with_context(|| format!("md says {text} of its copy"));
    let (done, all) = (number(done)?, number(all)?);
    if all <= 0.0 {
        bail!("md copies nothing");
    }
    Ok(done / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_copy_is_is_read() {
        assert_eq!(share("5120 / 20480").unwrap(), 0.25);
        assert_eq!(share("none").unwrap(), 0.0);
        assert!(share("x / 5").is_err() && share("0 / 0").is_err());
    }
}
