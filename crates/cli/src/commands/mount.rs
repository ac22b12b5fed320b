//! `surgetank mount` and `surgetank umount`: a staging pool as a file system.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use surgetank_mount::{Config, Error, point};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::parity::BadParity;
use surgetank_pool_core::placement::Media;
use surgetank_report::{Failure, Interrupt, output};

use super::foreground::Running;
use super::pool::managers;
use super::pool::shown::Shown;
use super::serve::notify;

/// How long a call of a program waits for the pool.
const TIMEOUT: Duration = Duration::from_secs(120);
/// After which time a mount says what it waits for: where nobody listens at all it has ended by then.
const LONG: Duration = Duration::from_secs(10);
/// Between two looks whether the mount is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a mount that is interrupted while it starts may take until it answers after all.
const BEGUN: Duration = Duration::from_secs(1);
/// What a mount that runs in the background says once it answers.
const READY: &str = "mounted";

/// Flags of `mount`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank mount pool://127.0.0.1:7440 /mnt/pool --target /scratch/run1
  surgetank mount pool://localhost /mnt/pool --target run1 \\
      --durable copies=2,media=ssd
  surgetank mount pool://node1 /mnt/pool --target run1 --durable parity=4+1
  surgetank mount pool://node1 /mnt/pool --target run1 \\
      --token run1.token --certificates pki/login1
  surgetank mount pool://127.0.0.1:7440 /mnt/pool --target s3://bucket/run1

The command returns when the file system answers; the process that serves it goes on in the background, or in front with \
--foreground. Files that are closed are drained to the target under the same names; `surgetank pool wait` waits for that.")]
pub struct Mount {
    /// The pool's address
    #[arg(value_name = "pool://ADDRESS")]
    pool: String,
    /// An empty directory
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// What files are drained to: a directory, or s3://BUCKET/PREFIX, for which the pool's managers have the credentials in their environment
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    target: PathBuf,
    /// When a commit counts: copies=N, of each chunk on so many benefactors; with media=ssd when it is flushed on their SSDs;
    /// parity=D+P, of P chunks beside each D, all on different benefactors [default: as before, or copies=2]
    #[arg(long, value_name = "copies=N[,media=ssd]|parity=D+P", value_parser = durability)]
    durable: Option<Durability>,
    /// Serve in the foreground, until it is unmounted or SIGTERM or SIGINT comes
    #[arg(long)]
    foreground: bool,
    /// Where a mount in the background writes its log [default: nowhere]
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log_file: Option<PathBuf>,
    /// The process in the background
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    running: Running,
}

/// Flags of `umount`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank umount /mnt/pool

What was closed stays in the pool and drains on without the mount.")]
pub struct Umount {
    /// Where the pool is mounted
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
}

fn durability(text: &str) -> Result<Durability, String> {
    if let Some(parity) = text.strip_prefix("parity=") {
        return match parity.parse() {
            Ok(of) => Ok(Durability::Parity(of)),
            Err(BadParity) if parity.ends_with(",media=ssd") => {
                Err(format!("`{text}` is no durability: parity counts in memory, write it without media=ssd"))
            }
            Err(why) => Err(format!("`{text}` is no durability: {why}")),
        };
    }
    let (copies, media) = match text.split_once(',') {
        Some((copies, "media=ssd")) => (copies, Media::Ssd),
        _ => (text, Media::Any),
    };
    match copies.strip_prefix("copies=").and_then(|number| number.parse::<u8>().ok()) {
        Some(copies) if copies > 0 => Ok(Durability::Copies { copies, media }),
        _ => Err(format!(
            "`{text}` is no durability: write copies=1, copies=2 and so on, copies=2,media=ssd, or parity=4+1"
        )),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Point(..) | Error::Target(..) | Error::Address(_) | Error::Refused(_) => Failure::invalid(error),
        Error::Interrupted => Failure::Interrupted(error.to_string()),
        Error::NoPool(..) | Error::Kernel(..) | Error::Process(_) => Failure::failed(error),
    }
}

/// Starts a mount. Whoever interrupts that need not wait for a manager that does not answer, and is told what is waited for once that takes long.
fn start(config: Config, interrupt: &Interrupt, tell: impl Fn(&str)) -> Result<surgetank_mount::Mount, Failure> {
    let waits = format!(
        "no manager at {} has said yet that {} can be mounted: it is waited for",
        config.managers.join(","),
        config.target.display()
    );
    let (sender, started) = mpsc::channel();
    // Nobody listens any more if it was interrupted.
    let heard = interrupt.clone();
    let start = move || drop(sender.send(surgetank_mount::Mount::start_unless(&config, || heard.raised())));
    std::thread::Builder::new().name("start".into()).spawn(start).map_err(Failure::failed)?;
    let (began, mut told) = (Instant::now(), false);
    let ended = loop {
        match started.recv_timeout(LOOK_AGAIN) {
            Err(RecvTimeoutError::Timeout) if !interrupt.raised() => {
                if !told && began.elapsed() >= LONG {
                    tell(&waits);
                    told = true;
                }
            }
            // What is being mounted already is unmounted as ever.
            Err(RecvTimeoutError::Timeout) => break started.recv_timeout(BEGUN),
            ended => break ended,
        }
    };
    match ended {
        Ok(started) => started.map_err(failure),
        Err(RecvTimeoutError::Timeout) => Err(failure(Error::Interrupted)),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::failed("the mount's start has crashed")),
    }
}

impl Mount {
    pub fn run(&self) -> Result<(), Failure> {
        if !self.foreground && !self.detached {
            return self.in_background();
        }
        self.running.begin()?;
        let interrupt = Interrupt::install()?;
        if self.detached {
            // Whoever waits for it may be killed alone.
            Self::ends_with_parent(Some(rustix::process::Signal::TERM))?;
        }
        let config = Config {
            managers: managers(&self.pool),
            access: self.shown.access()?,
            point: self.point.clone(),
            target: self.target.clone(),
            durability: self.durable,
            timeout: TIMEOUT,
            commit_within: surgetank_mount::COMMIT_WITHIN,
        };
        let mut mount = start(config, &interrupt, |said| match self.detached {
            // Whoever has started this process passes it on.
            true => drop(output::print(said)),
            false => output::note(&format!("surgetank: {said}")),
        })?;
        if self.detached {
            for remark in mount.remarks() {
                output::print(remark)?;
            }
            // A session of its own: what ends the terminal's programs does not end it.
            let _ = rustix::process::setsid();
            // Before it is told, as whoever waits ends then; one that has ended before makes the telling fail.
            Self::ends_with_parent(None)?;
            output::print(READY)?;
            self.leave_terminal().map_err(Failure::failed)?;
        } else {
            mount.remarks().iter().for_each(|remark| output::note(&format!("surgetank: {remark}")));
            output::print(&format!("mounted on {}", mount.point().display()))?;
        }
        notify("READY=1");
        let mut heard = 0;
        while !mount.is_over() {
            let count = interrupt.wait_beyond(heard, LOOK_AGAIN);
            if count == heard {
                continue;
            }
            heard = count;
            notify("STOPPING=1");
            match mount.unmount() {
                Ok(()) => return Ok(()),
                Err(failed) => {
                    let (still, error) = *failed;
                    output::note(&format!("surgetank: {error}"));
                    mount = still;
                }
            }
        }
        mount.wait().map_err(|error| Failure::Failed(format!("{}: {error}", self.point.display())))
    }

    /// Has the kernel send this process a signal once the one that has started it has ended; `None`: no more.
    fn ends_with_parent(signal: Option<rustix::process::Signal>) -> Result<(), Failure> {
        rustix::process::set_parent_process_death_signal(signal).map_err(Failure::failed)
    }

    /// Nobody reads what this process says from now on, but in its log.
    fn leave_terminal(&self) -> std::io::Result<()> {
        let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
        let log = self.log_file.is_none().then_some(libc::STDERR_FILENO);
        for descriptor in [Some(libc::STDOUT_FILENO), log].into_iter().flatten() {
            // SAFETY: it replaces a standard descriptor, which no object of this program owns.
            if unsafe { libc::dup2(nowhere.as_raw_fd(), descriptor) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Starts the process that serves the mount, and waits until it does.
    fn in_background(&self) -> Result<(), Failure> {
        // Said here, whatever becomes of what the other process says.
        surgetank_mount::check(&self.point, &self.target).map_err(failure)?;
        let failed = |error: std::io::Error| Failure::Failed(format!("cannot start the mount's process: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(std::env::args_os().skip(1)).arg("--detached").stdin(Stdio::null()).stdout(Stdio::piped());
        match &self.log_file {
            None => command.stderr(Stdio::piped()),
            Some(file) => {
                let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
                let unusable =
                    |error| Failure::Invalid(format!("--log-file {}: {error}: name another", file.display()));
                command.stderr(opened.map_err(unusable)?)
            }
        };
        let mut child = command.spawn().map_err(failed)?;
        for said in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
            let said = said.map_err(failed)?;
            if said == READY {
                return Ok(());
            }
            output::note(&format!("surgetank: {said}"));
        }
        // It says why on its way out.
        let status = child.wait().map_err(failed)?;
        let mut why = Vec::new();
        match (child.stderr.take(), &self.log_file) {
            (Some(mut stderr), _) => {
                stderr.read_to_end(&mut why).map_err(failed)?;
                let _ = std::io::stderr().write_all(&why);
            }
            (None, Some(file)) => output::note(&format!("surgetank: nothing is mounted: see {}", file.display())),
            (None, None) => {}
        }
        Err(Failure::Told(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

impl Umount {
    pub fn run(&self) -> Result<(), Failure> {
        point::unmount(&self.point).map_err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durability_is_copies_and_where_they_lie() {
        let copies = |copies, media| Ok(Durability::Copies { copies, media });
        assert_eq!(durability("copies=1"), copies(1, Media::Any));
        assert_eq!(durability("copies=2,media=ssd"), copies(2, Media::Ssd));
        assert_eq!(durability("parity=4+1"), Ok(Durability::Parity("4+1".parse().unwrap())));
        for (wrong, why) in [
            ("parity=0+1", "with 1 to 32 data chunks and 1 to 8 parity chunks: write such as parity=4+1"),
            ("parity=4+0", "1 to 8 parity chunks"),
            ("parity=33+1", "1 to 32 data chunks"),
            ("parity=4", "parity is d+p"),
            ("parity=4+1,media=ssd", "write it without media=ssd"),
        ] {
            let said = durability(wrong).unwrap_err();
            assert!(said.contains(why) && said.contains(wrong), "{said}");
        }
        for wrong in
            ["", "copies=0", "copies=256", "media=ssd", "copies=2,", "copies=2,media=tape", "copies=2,copies=3"]
        {
            assert!(durability(wrong).is_err(), "{wrong}");
        }
    }
}
