//! A file system that is a fifth full, as an image: a sparse file with data where something was written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use surgetank_model::random::Random;

use crate::bench::Bench;
use crate::bench::rig::Loop;
use crate::interrupt::output;

const SIZE: u64 = 8 << 30;
/// Share of its blocks that are in use at the end.
const FULL: f64 = 0.2;
/// Sizes of files, in powers of two: as many from 4 to 8 KiB as from 16 to 32 MiB.
const SIZES: (u64, u64) = (12, 25);
/// Files of a directory.
const FILES: u64 = 64;

/// A mounted file system.
struct Mounted(PathBuf);

impl Mounted {
    fn mount(device: &Path, place: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(place)?;
        output(Command::new("mount").args(["-t", "ext4"]).arg(device).arg(place))?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output(Command::new("umount").arg(&self.0));
    }
}

/// Makes the image.
pub fn make(bench: &Bench) -> anyhow::Result<PathBuf> {
    let image = bench.directory.join("ext4.disk");
    File::create(&image)?.set_len(SIZE)?;
    output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)).context("cannot make an ext4")?;
    let disk = Loop::attach(&image)?;
    let mounted = Mounted::mount(&disk.path, &bench.directory.join("ext4"))?;
    let mut random = Random::from_seed(1);
    let bytes = vec![0x5a; 1 << SIZES.1];
    for number in 0.. {
        let used = rustix::fs::statvfs(&mounted.0)?;
        if (used.f_blocks - used.f_bfree) as f64 >= FULL * used.f_blocks as f64 {
            break;
        }
        bench.interrupt.check()?;
        let directory = mounted.0.join(format!("{}", number / FILES));
        fs::create_dir_all(&directory)?;
        let exponent = SIZES.0 as f64 + random.unit() * (SIZES.1 - SIZES.0) as f64;
        let length = exponent.exp2() as usize;
        File::create(directory.join(format!("{number}")))?.write_all_at(&bytes[..length], 0)?;
    }
    output(Command::new("sync").arg("--file-system").arg(&mounted.0))?;
    Ok(image)
}
