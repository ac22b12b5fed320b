//! Runs ignored tests of this very program in a guest, whose kernel has what the host's lacks.

#![expect(clippy::print_stderr, reason = "a skipped test says so, and the counts are what the tests are for")]

use std::time::Duration;

use lab::{Disk, Interrupt, Lab, Plan, Unavailable};
use surgetank_model::Bytes;

use super::rounds;

/// Where every thread of every program waits, for a test that hangs.
const TELL_STACKS: &str = "for thread in /proc/[0-9]*/task/*; do \
     echo \"$thread $(cat $thread/comm)\"; sed 's/^/    /' $thread/stack; done";

/// How much slower a boost comes and goes in a guest.
const PACE: u32 = 8;

/// Between the requests of whoever writes while the daemon is killed or switches: the emulated processors are the daemon's, else
/// most of a test's time is theirs.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Where guests boot; where none does, a line says so.
pub fn lab() -> Option<Lab> {
    match Lab::that_boots() {
        Ok(lab) => Some(lab),
        Err(Unavailable(reason)) => {
            eprintln!("skipped: no guest can be booted here: {reason}");
            None
        }
    }
}

/// The lines of a guest's script that become one of the ignored tests of this very program.
pub fn become_test(test: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "export SURGETANK_PACE={PACE}\nexec {} --ignored --exact {test} --nocapture --test-threads=1",
        program.display()
    )
}

/// Runs one of the ignored tests in a guest, on an ext4 of its own, with these further disks.
pub fn run(test: &str, disks: impl IntoIterator<Item = Disk>) {
    let Some(lab) = lab() else { return };
    let pass = |name: &str| std::env::var(name).map_or(String::new(), |value| format!("export {name}={value}\n"));
    // Far more than it takes.
    let timeout = Duration::from_secs(300 + 30 * rounds::kills(5) as u64);
    let script = format!(
        "set -e\n{}mkfs.ext4 -q /dev/lab/disk\nmkdir -p /run/disk\nmount /dev/lab/disk /run/disk\n\
         (sleep {}; {TELL_STACKS}) >&2 &\nexport TMPDIR=/run/disk\n{}",
        pass("SURGETANK_KILLS"),
        timeout.as_secs() - 30,
        become_test(test)
    );
    let plan = Plan { memory: Bytes::from_mib(1024), timeout, ..Plan::new("test", script) };
    let plan = disks.into_iter().fold(plan.disk(Disk::new("disk", Bytes::from_mib(512))), Plan::disk);
    let mut guest = plan.boot(&lab, &Interrupt::default()).unwrap();
    let outcome = guest.wait(&Interrupt::default()).unwrap();
    eprintln!("{}", guest.stderr());
    assert!(outcome.passed(), "{}\n{}", outcome.describe(), guest.stdout());
}
