//! LAMMPS: the papers' melt of a Lennard-Jones crystal, with a checkpoint after each phase of computing.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::interrupt::output;

/// A restart file has 88 bytes for each atom, a dump of id, type, place and velocity 64.
pub const BYTES_PER_ATOM: u64 = 152;
const LOG: &str = "phases.log";

/// Liquid argon at the density and temperature of LAMMPS's own melt example. ApplicationPhase 0 only dumps the initial state, as the
/// papers' runs do. What is dumped is durable before computing goes on.
const INPUT: &str = "\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 ${L} 0 ${L} 0 ${L}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
timestep 0.005
variable i loop 0 ${phases}
label phase
shell echo compute ${i} `date +%s.%N` >> ${log}
if \"${i} > 0\" then \"run ${every} pre yes post no\"
shell echo write ${i} `date +%s.%N` >> ${log}
write_restart ${out}/melt.${i}.restart
write_dump all custom ${out}/melt.${i}.dump.bin id type x y z vx vy vz
shell echo sync ${i} `date +%s.%N` >> ${log}
shell sync -f ${out}
shell echo durable ${i} `date +%s.%N` >> ${log}
next i
jump SELF phase
";

/// How much is melted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Melt {
    /// Cells of the lattice along each edge; each has four atoms.
    pub cells: u64,
    /// Checkpoints after the dump of the initial state.
    pub phases: u32,
    /// Time steps before each of them.
    pub steps: u32,
}

/// A phase: computing, then a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationPhase {
    /// When it began, in seconds since 1970 as LAMMPS tells it, since the workload's start in a sample.
    pub began_s: f64,
    pub compute_s: f64,
    /// Handing the checkpoint to the kernel.
    pub write_s: f64,
    /// Until it was durable.
    pub sync_s: f64,
}

impl Melt {
    pub fn checkpoint_bytes(&self) -> u64 {
        4 * self.cells.pow(3) * BYTES_PER_ATOM
    }

    /// Melts in a directory.
    pub fn run(&self, directory: &Path, files: &Path) -> anyhow::Result<Vec<ApplicationPhase>> {
        let (input, log) = (files.join("in.melt"), files.join(LOG));
        fs::write(&input, INPUT).context("cannot write LAMMPS's input")?;
        let _ = fs::remove_file(&log);
        let mut command = Command::new("lmp");
        command.args(["-log", "none", "-screen", "none", "-in"]).arg(&input).current_dir(files);
        let variables = [
            ("L", self.cells.to_string()),
            ("every", self.steps.to_string()),
            ("phases", self.phases.to_string()),
            ("out", directory.display().to_string()),
            ("log", log.display().to_string()),
        ];
        for (name, value) in variables {
            command.args(["-var", name, &value]);
        }
        output(&mut command)?;
        let phases = parse(&fs::read_to_string(&log).context("LAMMPS left no log of its phases")?)?;
        ensure!(phases.len() == self.phases as usize + 1, "LAMMPS ended after {} phases", phases.len());
        Ok(phases)
    }
}

/// Lines of a mark, the phase and a time: `write 2 131.05`.
fn parse(log: &str) -> anyhow::Result<Vec<ApplicationPhase>> {
    let mut marks = Vec::new();
    for line in log.lines() {
        let mut words = line.split_whitespace();
        let mark = (|| Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?)))();
        let (name, phase, at_s): (&str, usize, f64) =
            mark.with_context(|| format!("the log of phases says \"{line}\""))?;
        marks.push((name, phase, at_s));
    }
    let phases = marks.chunks_exact(4).enumerate().map(|(index, marks)| match *marks {
        [("compute", a, began_s), ("write", b, write), ("sync", c, sync), ("durable", d, end)]
            if [a, b, c, d] == [index; 4] =>
        {
            Ok(ApplicationPhase { began_s, compute_s: write - began_s, write_s: sync - write, sync_s: end - sync })
        }
        _ => anyhow::bail!("the log of phases is out of order at phase {index}"),
    });
    phases.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_understood() {
        let log = "compute 0 10.0\nwrite 0 10.5\nsync 0 12.0\ndurable 0 15.0\n\
                   compute 1 15.25\nwrite 1 40.0\nsync 1 42.0\ndurable 1 46.0\n";
        let phases = parse(log).unwrap();
        assert_eq!(phases[0], ApplicationPhase { began_s: 10.0, compute_s: 0.5, write_s: 1.5, sync_s: 3.0 });
        assert_eq!((phases.len(), phases[1].compute_s), (2, 24.75));
        assert!(parse(&log.replace("sync 1", "sync 2")).is_err());
        assert!(parse("compute one 3").is_err());
        // One that was cut off has no last phase.
        assert_eq!(parse(&log[..log.len() - 16]).unwrap().len(), 1);
    }

    #[test]
    fn checkpoints_are_as_large_as_those_of_the_measured_trace() {
        // 2,048,000 atoms left 311.3 MB on the disk.
        let melt = Melt { cells: 80, phases: 3, steps: 1 };
        assert_eq!(melt.checkpoint_bytes(), 311_296_000);
    }
}
