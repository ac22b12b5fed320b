//! A guest while it runs.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::host::Lab;
use crate::interrupt::{Interrupt, POLL, Running};
use crate::output::say;
use crate::plan::{Media, Plan};
use crate::share::Share;

/// With these words the kernel begins to say what has happened to it.
const KERNEL_TROUBLE: &[&str] =
    &["BUG: ", "kernel BUG", "Oops", "general protection", "WARNING: ", "blocked for more than"];
const CONSOLE_LINES_MAX: usize = 100;

/// All that the emulator has, but instructions that it emulates bit by bit.
pub const PROCESSOR: &str = "max,-sse4.2,-pclmulqdq";

/// For all guests. Linux changes its own code while it runs, with a breakpoint in it for a moment. QEMU before 8.1 may
/// translate that breakpoint for one processor while another one takes it out, and the translation stays: the kernel
/// meets a breakpoint of nobody's and panics (QEMU's commit deba78709ae8, "Always lock pages before translation").
/// So a guest boots on one processor, makes its first connections, and only then starts the others.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on maxcpus=1 noreplace-smp";

/// How a guest ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The script's exit status; `None`: it did not come to its end.
    pub status: Option<i32>,
    /// From the start of QEMU to the start of the script, if it came so far.
    pub boot_s: Option<f64>,
    /// From the start of the script to the guest's end.
    pub run_s: f64,
    /// Why it did not come to its end, in one sentence.
    pub trouble: Option<String>,
}

impl Outcome {
    /// Whether the script came to its end and said that all is well.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.status == Some(0)
    }

    /// The outcome in one sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match (&self.trouble, self.status) {
            (Some(trouble), _) => trouble.clone(),
            (None, Some(status)) => format!("the script ended with status {status}"),
            (None, None) => "the script did not end".to_owned(),
        }
    }
}

/// A running guest. Dropping it pulls its plug and removes what belongs to it.
#[derive(Debug)]
pub struct Guest {
    qemu: Running,
    // Dropped after QEMU, which uses them.
    _shares: [Share; 2],
    monitor: PathBuf,
    results: PathBuf,
    console: PathBuf,
    started: Instant,
    booted: Option<Instant>,
    boot_timeout: Duration,
    timeout: Duration,
    tails: Vec<Tail>,
    _directory: tempfile::TempDir,
}

impl Plan {
    /// Boots a guest. One that ends or hangs before its script begins is booted once more: an emulated kernel now and
    /// then dies as it starts, and nothing has happened yet. How the second one does, its wait tells.
    ///
    /// # Errors
    /// If something that belongs to it cannot be made or started, or on Ctrl-C.
    pub fn boot(&self, lab: &Lab, interrupt: &Interrupt) -> anyhow::Result<Guest> {
        let mut guest = self.start(lab, interrupt)?;
        let Err(trouble) = guest.wait_booted(interrupt) else { return Ok(guest) };
        interrupt.check()?;
        say(&format!("lab: {trouble:#}; it is booted once more"));
        drop(guest);
        self.start(lab, interrupt)
    }

    /// Starts QEMU. The guest is booting when this returns.
    fn start(&self, lab: &Lab, interrupt: &Interrupt) -> anyhow::Result<Guest> {
        let started = Instant::now();
        let directory = lab.directory().context("cannot make a directory for the guest")?;
        let own = directory.path();
        let results = self.results.clone().unwrap_or_else(|| own.join("results"));
        // virtiofsd changes its directory before it takes this for its root.
        let results = std::path::absolute(results).context("cannot tell where results go")?;
        self.write_orders(&results)?;
        let mut shares = [Share::root(lab, own)?, Share::writable(lab, own, &results)?];
        for share in &mut shares {
            share.wait(interrupt)?;
        }
        let qmp = self.qmp.clone().unwrap_or_else(|| own.join("qmp.socket"));
        let _ = fs::remove_file(&qmp);
        let console = results.join("console.log");
        let mut command = self.command(lab, own, &qmp, &console, &shares)?;
        let log = fs::File::create(own.join("qemu.log"))?;
        let qemu = Running::start(command.stdout(log.try_clone()?).stderr(log))?;
        let tails = if self.echo { Tail::both(&results) } else { Vec::new() };
        Ok(Guest {
            qemu,
            _shares: shares,
            monitor: monitor(own),
            results,
            console,
            started,
            booted: None,
            boot_timeout: self.boot_timeout,
            timeout: self.timeout,
            tails,
            _directory: directory,
        })
    }

    /// What the guest reads before it starts the script. Results of an earlier guest go.
    fn write_orders(&self, results: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(results).with_context(|| format!("cannot make {}", results.display()))?;
        for old in ["status", "booted", "steps", "stdout", "stderr", "console.log"] {
            let _ = fs::remove_file(results.join(old));
        }
        for (name, text) in
            [("script", &self.script), ("name", &self.name), ("directory", &self.directory.display().to_string())]
        {
            fs::write(results.join(name), text).with_context(|| format!("cannot write to {}", results.display()))?;
        }
        Ok(())
    }

    fn command(
        &self,
        lab: &Lab,
        own: &Path,
        qmp: &Path,
        console: &Path,
        shares: &[Share; 2],
    ) -> anyhow::Result<Command> {
        let memory = self.memory.get().div_ceil(1 << 20);
        let mut command = Command::new(&lab.qemu);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-machine",
            "q35,memory-backend=memory",
        ]);
        command.args(["-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp"]).arg(self.cores.to_string());
        command.arg("-m").arg(format!("{memory}M"));
        command.arg("-object").arg(format!("memory-backend-memfd,id=memory,size={memory}M,share=on"));
        command.arg("-kernel").arg(&lab.kernel.image).arg("-initrd").arg(&lab.kernel.initramfs);
        command.arg("-append").arg(format!("{KERNEL_ARGUMENTS} {}", self.kernel_arguments));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor(own).display()));
        command.args(["-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="]);
        for (share, tag) in shares.iter().zip(["root", "lab"]) {
            command.arg("-chardev").arg(format!("socket,id={tag},path={}", share.socket.display()));
            command.arg("-device").arg(format!("vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"));
        }
        for port in 0..self.ports {
            command.arg("-device").arg(format!("pcie-root-port,id=port{port},chassis={},slot={port}", port + 1));
        }
        for disk in &self.disks {
            let file = own.join(format!("{}.disk", disk.name));
            if disk.media == Media::New {
                let made = fs::File::create(&file).and_then(|new| new.set_len(disk.size.get()));
                made.with_context(|| format!("cannot make {}", file.display()))?;
            }
            command.args(disk.arguments(&file));
        }
        Ok(command)
    }
}

/// QEMU talks to one client of a socket at a time: this one is the lab's own.
fn monitor(own: &Path) -> PathBuf {
    own.join("monitor.socket")
}

impl Guest {
    /// QEMU's monitor at a socket of the lab's own: a provider may use the plan's.
    #[must_use]
    pub fn monitor(&self) -> &Path {
        &self.monitor
    }

    /// The directory that the guest sees as `/lab`.
    #[must_use]
    pub fn results(&self) -> &Path {
        &self.results
    }

    /// What the script has said so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.results.join("stdout")).unwrap_or_default()).into_owned()
    }

    /// What the script has complained of so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.results.join("stderr")).unwrap_or_default()).into_owned()
    }

    /// Whether it is off.
    pub fn has_ended(&mut self) -> bool {
        self.qemu.ended().is_some()
    }

    /// Pulls the plug: what the guest has not flushed is gone, and so may be what its disks have not.
    pub fn cut_power(&mut self) {
        self.qemu.kill();
    }

    /// Waits until the script starts.
    ///
    /// # Errors
    /// If the guest ends or hangs before, or on Ctrl-C.
    fn wait_booted(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let deadline = self.started + self.boot_timeout;
        loop {
            interrupt.check()?;
            if self.booted.is_none() && self.results.join("booted").exists() {
                self.booted = Some(Instant::now());
            }
            if self.booted.is_some() {
                return Ok(());
            }
            if self.qemu.ended().is_some() {
                bail!("{}", self.ended_early("before the script began"));
            }
            if Instant::now() > deadline {
                let seconds = self.boot_timeout.as_secs_f64();
                bail!("{}", self.with_console(&format!("the guest did not boot within {seconds} s")));
            }
            sleep(POLL);
        }
    }

    /// Waits for the script's and the guest's end. A script that does not end in time is ended with its guest.
    ///
    /// # Errors
    /// On Ctrl-C only: everything else is an outcome.
    pub fn wait(&mut self, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        if let Err(trouble) = self.wait_booted(interrupt) {
            interrupt.check()?;
            self.cut_power();
            return Ok(self.outcome(Some(format!("{trouble:#}"))));
        }
        let deadline = self.booted.unwrap_or(self.started) + self.timeout;
        loop {
            interrupt.check()?;
            let ended = self.qemu.ended().is_some();
            self.tails.iter_mut().for_each(Tail::forward);
            if ended {
                let trouble = self.status().is_none().then(|| self.ended_early("before the script's end"));
                return Ok(self.outcome(trouble));
            }
            if Instant::now() > deadline {
                self.cut_power();
                self.tails.iter_mut().for_each(Tail::forward);
                let seconds = self.timeout.as_secs_f64();
                return Ok(self.outcome(Some(format!("the script did not end within {seconds} s"))));
            }
            sleep(POLL);
        }
    }

    fn status(&self) -> Option<i32> {
        fs::read_to_string(self.results.join("status")).ok()?.trim().parse().ok()
    }

    fn outcome(&self, trouble: Option<String>) -> Outcome {
        Outcome {
            status: if trouble.is_none() { self.status() } else { None },
            boot_s: self.booted.map(|booted| (booted - self.started).as_secs_f64()),
            run_s: self.booted.map_or(0.0, |booted| booted.elapsed().as_secs_f64()),
            trouble,
        }
    }

    /// The guest's kernel or QEMU itself stopped.
    fn ended_early(&self, when: &str) -> String {
        let log = self._directory.path().join("qemu.log");
        let said = fs::read_to_string(log).unwrap_or_default();
        match said.trim().lines().last() {
            Some(last) => format!("QEMU ended {when}: {last}"),
            None => self.with_console(&format!("the guest ended {when}")),
        }
    }

    fn with_console(&self, message: &str) -> String {
        let console = String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = console.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let trouble = lines.iter().position(|line| KERNEL_TROUBLE.iter().any(|word| line.contains(word)));
        let from = trouble.unwrap_or(lines.len().saturating_sub(4));
        let said = lines[from..].iter().take(CONSOLE_LINES_MAX).copied().collect::<Vec<_>>().join(" | ");
        format!("{message}; its console ended with: {}", if said.is_empty() { "nothing" } else { &said })
    }
}

/// A file that grows, said again as it does.
#[derive(Debug)]
struct Tail {
    file: PathBuf,
    said: u64,
    to_stderr: bool,
}

impl Tail {
    fn both(results: &Path) -> Vec<Self> {
        let tail = |name, to_stderr| Self { file: results.join(name), said: 0, to_stderr };
        vec![tail("stdout", false), tail("stderr", true)]
    }

    fn forward(&mut self) {
        let Ok(mut file) = fs::File::open(&self.file) else { return };
        let mut new = Vec::new();
        if file.seek(SeekFrom::Start(self.said)).is_err() || file.read_to_end(&mut new).is_err() || new.is_empty() {
            return;
        }
        self.said += new.len() as u64;
        // A reader that has gone away does not stop the guest.
        let _ = if self.to_stderr {
            std::io::stderr().write_all(&new)
        } else {
            std::io::stdout().write_all(&new).and_then(|()| std::io::stdout().flush())
        };
    }
}
