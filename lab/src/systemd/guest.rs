//! A machine under QEMU that boots its own disk, and does what the host says.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};

use super::image::Image;
use crate::guest::PROCESSOR;
use crate::host::Lab;
use crate::interrupt::{Interrupt, Running};
use crate::plan::Disk;

/// As in the lab's other guests, whose second processor starts late; and systemd's words on the console.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on maxcpus=1 \
                                noreplace-smp systemd.show_status=1 loglevel=4";
/// How long a boot may take until the guest answers, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(420);

/// The machine: its disks stay, whether it is on or off.
pub struct Machine<'a> {
    lab: &'a Lab,
    interrupt: &'a Interrupt,
    image: &'a Image,
    directory: &'a Path,
    disks: Vec<Disk>,
    boots: u32,
    on: Option<On>,
    command: u64,
}

struct On {
    qemu: Running,
    agent: Option<BufReader<UnixStream>>,
    since: Instant,
}

/// What a command said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its exit status.
    pub status: i32,
    /// Both of its outputs.
    pub said: String,
}

impl<'a> Machine<'a> {
    /// A machine that is off. Its console and other files are in the directory.
    pub fn new(
        lab: &'a Lab,
        interrupt: &'a Interrupt,
        image: &'a Image,
        directory: &'a Path,
        disks: Vec<Disk>,
    ) -> Self {
        Self { lab, interrupt, image, directory, disks, boots: 0, on: None, command: 0 }
    }

    /// Turns it on, without the disks of these names. It is booting when this returns.
    pub fn start(&mut self, without: &[&str]) -> anyhow::Result<()> {
        let socket = self.directory.join("agent.socket");
        let _ = fs::remove_file(&socket);
        self.boots += 1;
        let mut command = Command::new(&self.lab.qemu);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"]);
        command.args(["-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", "2", "-m", "1024M"]);
        command.arg("-kernel").arg(&self.lab.kernel.image).arg("-initrd").arg(&self.image.initramfs);
        command.args(["-append", KERNEL_ARGUMENTS]);
        command.arg("-serial").arg(format!("file:{}", self.console().display()));
        command.arg("-chardev").arg(format!("socket,id=agent,server=on,wait=off,path={}", socket.display()));
        command.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=lab"]);
        for disk in self.disks.iter().filter(|disk| !without.contains(&disk.name.as_str())) {
            command.args(disk.arguments(Path::new("")));
        }
        let log = fs::File::create(self.directory.join(format!("qemu-{}.log", self.boots)))?;
        let qemu = Running::start(command.stdout(log.try_clone()?).stderr(log))?;
        self.on = Some(On { qemu, agent: None, since: Instant::now() });
        Ok(())
    }

    /// Where what it says at this boot is written.
    fn console(&self) -> PathBuf {
        self.directory.join(format!("console-{}.log", self.boots))
    }

    /// Turns it on and waits until it has started everything; since when it is on.
    pub fn boot(&mut self, without: &[&str]) -> anyhow::Result<f64> {
        self.start(without)?;
        self.answers()?;
        self.run("systemctl is-system-running --wait")?;
        self.on_s()
    }

    /// Waits until it answers; since when it is on.
    pub fn answers(&mut self) -> anyhow::Result<f64> {
        let socket = self.directory.join("agent.socket");
        let connected = self
            .interrupt
            .wait_for("the connection to QEMU", Duration::from_secs(20), || Ok(UnixStream::connect(&socket).ok()))?;
        self.on()?.agent = Some(BufReader::new(connected));
        // Nothing that is written before the guest has opened its end is lost.
        self.run_for("true", BOOT_TIMEOUT).context("the guest does not boot")?;
        self.on_s()
    }

    fn on(&mut self) -> anyhow::Result<&mut On> {
        self.on.as_mut().context("the guest is off")
    }

    fn on_s(&mut self) -> anyhow::Result<f64> {
        Ok(self.on()?.since.elapsed().as_secs_f64())
    }

    /// Runs a script and answers what it said, whatever its status is.
    pub fn run(&mut self, script: &str) -> anyhow::Result<Answer> {
        self.run_for(script, ANSWER_TIMEOUT)
    }

    /// The same; it must succeed.
    pub fn must(&mut self, script: &str) -> anyhow::Result<String> {
        let answer = self.run(script)?;
        if answer.status != 0 {
            bail!("`{}` ended with status {}: {}", script.trim(), answer.status, answer.said.trim());
        }
        Ok(answer.said)
    }

    /// The same, a number.
    pub fn number(&mut self, script: &str) -> anyhow::Result<f64> {
        let said = self.must(script)?;
        let last = said.lines().last().unwrap_or_default().trim();
        last.parse().with_context(|| format!("`{}` answered no number: {said}", script.trim()))
    }

    fn run_for(&mut self, script: &str, timeout: Duration) -> anyhow::Result<Answer> {
        self.send(script)?;
        let (number, interrupt) = (self.command.to_string(), self.interrupt.clone());
        let on = self.on()?;
        let agent = on.agent.as_mut().context("the guest has not booted")?;
        agent.get_ref().set_read_timeout(Some(Duration::from_millis(200)))?;
        let (until, mut line) = (Instant::now() + timeout, String::new());
        loop {
            interrupt.check()?;
            match agent.read_line(&mut line) {
                Ok(0) => bail!("the guest went away"),
                Ok(_) if line.ends_with('\n') => {
                    let mut words = line.split_whitespace();
                    if words.next() == Some(&number) {
                        let status = words.next().and_then(|status| status.parse().ok()).context("no status")?;
                        let said = BASE64_STANDARD.decode(words.next().unwrap_or_default())?;
                        return Ok(Answer { status, said: String::from_utf8_lossy(&said).into_owned() });
                    }
                    line.clear();
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(error).context("the guest cannot be heard"),
            }
            if Instant::now() > until {
                bail!("`{}` did not end within {} s", script.trim(), timeout.as_secs());
            }
        }
    }

    /// Adds the last minute of its journal to a file beside its console.
    pub fn keep_journal(&mut self, name: &str) -> anyhow::Result<()> {
        let said = self.must("journalctl -b --no-pager -o short-precise --since '60 seconds ago'")?;
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.directory.join(name))?;
        file.write_all(said.as_bytes()).context("cannot keep the guest's journal")
    }

    /// Lets it run a script whose answer nobody waits for.
    pub fn send(&mut self, script: &str) -> anyhow::Result<()> {
        self.command += 1;
        let line = format!("{} {}\n", self.command, BASE64_STANDARD.encode(script));
        let agent = self.on()?.agent.as_mut().context("the guest has not booted")?;
        agent.get_mut().write_all(line.as_bytes()).context("the guest cannot be told anything")
    }

    /// Reboots, in order; how long it took to go down, and until everything is started again.
    pub fn reboot(&mut self, timeout: Duration) -> anyhow::Result<[f64; 2]> {
        let begin = Instant::now();
        self.send("systemctl --no-block reboot")?;
        self.wait_off(timeout)?;
        let down_s = begin.elapsed().as_secs_f64();
        self.boot(&[])?;
        Ok([down_s, begin.elapsed().as_secs_f64()])
    }

    /// Waits until it is off. One that does not go down is turned off, and reported.
    pub fn wait_off(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let interrupt = self.interrupt.clone();
        let on = self.on()?;
        let off = interrupt.wait_for("the end of the shutdown", timeout, || Ok(on.qemu.ended()));
        self.on = None;
        off.map(drop)
    }

    /// Pulls the plug.
    pub fn cut_power(&mut self) {
        self.on = None;
    }
}
