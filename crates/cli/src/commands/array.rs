//! `surgetank array`: create, look at, rotate, assemble and delete the arrays of a configuration, with the daemon or without one.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use surgetank_daemon::arrays::status::{ArrayStatus, ArraysReport, VolumeStatus};
use surgetank_daemon::control::{Client, ClientError, Request};
use surgetank_daemon::{Config, OfflineArrays};
use surgetank_model::text::line;
use surgetank_report::number::duration;
use surgetank_report::{Failure, Interrupt, Table, output};

use crate::commands::whereabouts::{self, Whereabouts};

/// Between two looks of `--wait`.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Between two looks whether a creation was interrupted.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// Flags of `array`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array create scratch --config surgetank.toml
  surgetank array status
  surgetank array rotate scratch --wait

An array is a section [array.NAME] of the configuration; a device over it has backing = \"array:NAME\". Without a \
daemon the commands do their work themselves, but for rotate: members are replaced while a device serves.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Rent the volumes of an array and format them
    Create(Create),
    /// Show arrays, their volumes and what is being replaced
    Status(Status),
    /// Replace members by new volumes while the array serves
    Rotate(Rotate),
    /// Find the volumes of an array whose record is lost, or that was made elsewhere
    Assemble(Assemble),
    /// Delete an array with all its data
    Delete(Delete),
}

/// Which daemon, and how to answer.
#[derive(Debug, Args)]
struct Where {
    #[command(flatten)]
    whereabouts: Whereabouts,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array create scratch
  surgetank array create scratch --config surgetank.toml --json

All members are rented and attached at the same time. If one cannot be had, those that came are deleted, as when Ctrl-C \
interrupts the command; a daemon goes on without it. A device over the array that waits for it is served then.")]
struct Create {
    /// Name of the array
    name: String,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array status
  surgetank array status scratch --json | jq '.arrays[].volumes[].copied_share'")]
struct Status {
    /// Name of the array; all of them if it is not given
    name: Option<String>,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array rotate scratch
  surgetank array rotate scratch --slot 3 --wait

One member after the other is replaced: a new volume is rented, given the slot's data while requests are served, and \
takes over; then the old one is deleted, or kept for a while if the array is ephemeral. A rotation that was asked for \
goes on after a restart of the daemon.")]
struct Rotate {
    /// Name of the array
    name: String,
    /// Only the member of this slot
    #[arg(long)]
    slot: Option<u32>,
    /// Wait until it is done
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array assemble scratch
  surgetank array assemble scratch --config surgetank.toml --json

The provider is asked for volumes with the array's tags; they are attached to this machine, and what is on them says \
which of them count. Nothing changes unless all members are there.")]
struct Assemble {
    /// Name of the array
    name: String,
    /// The array's own name, if several of this one exist: 32 hex digits
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank array delete scratch
  surgetank array delete scratch --yes-delete scratch

Asks for the array's name to be typed, unless --yes-delete gives it. An array that a running device uses is not deleted.")]
struct Delete {
    /// Name of the array
    name: String,
    /// Its name again: deletes without asking
    #[arg(long, value_name = "NAME")]
    yes_delete: Option<String>,
    #[command(flatten)]
    place: Where,
}

/// Who looks after the arrays: a daemon, or this process.
enum Caretaker {
    Daemon(Client),
    Own(Box<OfflineArrays>),
}

impl Caretaker {
    fn ask(&self, request: &Request) -> Result<Value, Failure> {
        match self {
            Self::Daemon(client) => client.ask(request).map_err(Failure::failed),
            Self::Own(arrays) => arrays.handle(request).map_err(Failure::Failed),
        }
    }

    fn status(&self, name: Option<&str>) -> Result<ArraysReport, Failure> {
        let value = self.ask(&Request::ArrayStatus { name: name.map(str::to_owned) })?;
        serde_json::from_value(value)
            .map_err(|error| Failure::Failed(format!("the daemon speaks another version: {error}")))
    }

    fn one(&self, name: &str) -> Result<ArrayStatus, Failure> {
        let mut report = self.status(Some(name))?;
        report
            .arrays
            .pop()
            .ok_or_else(|| Failure::Failed(format!("the daemon does not say how the array {name} stands")))
    }
}

impl Where {
    /// The daemon, if one answers; else this process alone, as the configuration says.
    fn caretaker(&self) -> Result<Caretaker, Failure> {
        let sockets = self.whereabouts.sockets()?;
        let client = Client::new(&sockets.control);
        match client.ask(&Request::ArrayStatus { name: None }) {
            Ok(_) | Err(ClientError::Refused(_)) => return Ok(Caretaker::Daemon(client)),
            Err(ClientError::NoDaemon(_)) => {}
            Err(error) => return Err(whereabouts::failure(&error, &sockets)),
        }
        let config = Config::load(&self.whereabouts.configuration());
        // A configuration that nobody named is that of the daemon that was, if it has the same socket.
        let is_meant = config.as_ref().is_ok_and(|config| config.control_socket == sockets.control);
        if self.whereabouts.names_socket() && !is_meant {
            return Err(whereabouts::failure(&ClientError::NoDaemon(sockets.control.clone()), &sockets));
        }
        let config = config.map_err(Failure::invalid)?;
        Ok(Caretaker::Own(Box::new(OfflineArrays::start(config).map_err(Failure::Failed)?)))
    }

    /// The caretaker, if it has an array of this name.
    fn caretaker_of(&self, name: &str) -> Result<(Caretaker, ArrayStatus), Failure> {
        let caretaker = self.caretaker()?;
        let status = caretaker.one(name).map_err(|failure| match failure {
            Failure::Failed(why) if why.contains("in this configuration") => Failure::Invalid(why),
            failure => failure,
        })?;
        Ok((caretaker, status))
    }

    fn answer(&self, document: &impl serde::Serialize, people: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { output::print_json(document) } else { output::print(&people()) }
    }
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Command::Create(create) => create.run(),
            Command::Status(status) => status.run(),
            Command::Rotate(rotate) => rotate.run(),
            Command::Assemble(assemble) => assemble.run(),
            Command::Delete(delete) => delete.run(),
        }
    }
}

/// What an answer remarks.
fn remarks(answer: &Value) {
    for remark in answer["remarks"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output::note(&format!("surgetank: {remark}"));
    }
}

impl Create {
    fn run(&self) -> Result<(), Failure> {
        let (caretaker, _) = self.place.caretaker_of(&self.name)?;
        let request = Request::ArrayCreate { name: self.name.clone() };
        remarks(&match &caretaker {
            Caretaker::Daemon(_) => caretaker.ask(&request)?,
            Caretaker::Own(arrays) => self.unless_interrupted(arrays, &request)?,
        });
        let status = caretaker.one(&self.name)?;
        let text =
            || format!("created the array {}: {} members of {}", status.name, status.members, size(status.member_gib));
        self.place.answer(&status, text)
    }
}

impl Create {
    /// Nobody goes on with a creation after this process, so one that is interrupted is undone.
    fn unless_interrupted(&self, arrays: &OfflineArrays, request: &Request) -> Result<Value, Failure> {
        let interrupt = Interrupt::install()?;
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            // Who is told waits for it.
            scope.spawn(move || _ = tell.send(arrays.handle(request)));
            loop {
                match told.recv_timeout(LOOK_FOR_SIGNALS) {
                    Ok(answer) => return answer.map_err(Failure::Failed),
                    Err(RecvTimeoutError::Timeout) if !interrupt.raised() => {}
                    Err(_) => break,
                }
            }
            let name = &self.name;
            output::note(&format!("surgetank: interrupted: what was rented for the array {name} is being deleted"));
            arrays.handle(&Request::ArrayDelete { name: name.clone() }).map_err(Failure::Failed)?;
            Err(Failure::Interrupted(format!("the array {name} was not created, and no volume of it is left")))
        })
    }
}

impl Status {
    fn run(&self) -> Result<(), Failure> {
        let report = match &self.name {
            Some(name) => ArraysReport { arrays: vec![self.place.caretaker_of(name)?.1] },
            None => self.place.caretaker()?.status(None)?,
        };
        self.place.answer(&report, || people(&report))
    }
}

impl Rotate {
    fn run(&self) -> Result<(), Failure> {
        let (caretaker, before) = self.place.caretaker_of(&self.name)?;
        if let Caretaker::Own(_) = caretaker {
            return Err(Failure::Failed(format!(
                "no daemon runs, and members of the array {} are replaced while a device serves it: start `surgetank serve` first",
                self.name
            )));
        }
        let asked = caretaker.ask(&Request::ArrayRotate { name: self.name.clone(), slot: self.slot })?;
        let mut status = caretaker.one(&self.name)?;
        let mut told = String::new();
        while self.wait && !is_done(&status) {
            if status.state != "served" {
                let why = status.reason.unwrap_or_else(|| "no device serves it any more".to_owned());
                return Err(Failure::Failed(format!(
                    "the rotation of {} goes on when a device serves it again: {why}",
                    self.name
                )));
            }
            let progress = progress(&status);
            if progress != told {
                output::note(&format!("surgetank: {progress}"));
                told = progress;
            }
            std::thread::sleep(LOOK_AGAIN);
            status = caretaker.one(&self.name)?;
        }
        let count = asked["replacing"].as_array().map_or(0, Vec::len);
        let replaced = status.replaced - before.replaced.min(status.replaced);
        self.place.answer(&status, || match self.wait {
            true => format!("replaced {} of the array {}", members(replaced), self.name),
            false => format!(
                "members of the array {} that are being replaced: {count}; see `surgetank array status {0}`",
                self.name
            ),
        })
    }
}

/// Nothing is to be replaced, and no replaced member waits for its deletion.
fn is_done(status: &ArrayStatus) -> bool {
    status.replacing.is_empty()
        && !status.volumes.iter().any(|volume| matches!(&*volume.part, "coming" | "joining" | "leaving"))
}

fn members(count: u64) -> String {
    if count == 1 { "1 member".to_owned() } else { format!("{count} members") }
}

fn progress(status: &ArrayStatus) -> String {
    let joining = status.volumes.iter().find(|volume| volume.part == "joining");
    let left = format!("{} left", members(status.replacing.len() as u64));
    match (joining.and_then(|volume| Some((volume.slot?, volume.copied_share?))), &status.reason) {
        (Some((slot, share)), _) => format!("slot {slot}: {:.0} % copied, {left}", share * 100.0),
        (None, Some(why)) => format!("{left}: {why}"),
        (None, None) => left,
    }
}

impl Assemble {
    fn run(&self) -> Result<(), Failure> {
        let (caretaker, _) = self.place.caretaker_of(&self.name)?;
        remarks(&caretaker.ask(&Request::ArrayAssemble { name: self.name.clone(), id: self.id.clone() })?);
        let status = caretaker.one(&self.name)?;
        let text = || format!("assembled the array {}: all {} members are there", status.name, status.members);
        self.place.answer(&status, text)
    }
}

impl Delete {
    fn run(&self) -> Result<(), Failure> {
        let (caretaker, status) = self.place.caretaker_of(&self.name)?;
        let name = &self.name;
        if let ("refused", Some(why)) = (&*status.state, &status.reason) {
            return Err(Failure::Failed(why.clone()));
        }
        if status.id.is_none() {
            return Err(Failure::Failed(format!("there is no array {name}: nothing is deleted")));
        }
        let typed = match &self.yes_delete {
            Some(typed) => typed.clone(),
            None => {
                let (count, all) = (status.volumes.len(), status.volumes.iter().map(|volume| volume.size_gib).sum());
                output::note(&format!(
                    "this deletes the array {name} with all its data: {count} volumes, {} all in all; type its name to go on:",
                    size(all)
                ));
                let mut typed = String::new();
                std::io::stdin()
                    .read_line(&mut typed)
                    .map_err(|error| Failure::Failed(format!("nothing was typed: {error}")))?;
                typed.trim().to_owned()
            }
        };
        if typed.is_empty() {
            return Err(Failure::Invalid(format!(
                "no name was typed, so nothing is deleted: type {name}, or write --yes-delete {name}"
            )));
        }
        if typed != *name {
            return Err(Failure::Invalid(format!(
                "\"{}\" is not the name of the array, {name}: nothing is deleted",
                line(&typed)
            )));
        }
        let deleted = caretaker.ask(&Request::ArrayDelete { name: name.clone() })?;
        self.place.answer(&deleted, || format!("deleted the array {name}: {} volumes", status.volumes.len()))
    }
}

/// A size in the unit that suits it.
fn size(gib: f64) -> String {
    if gib < 1.0 { format!("{:.0} MiB", gib * 1024.0) } else { format!("{gib:.1} GiB") }
}

fn people(report: &ArraysReport) -> String {
    if report.arrays.is_empty() {
        return "this configuration has no arrays".to_owned();
    }
    let mut text = String::new();
    for array in &report.arrays {
        if !text.is_empty() {
            text.push('\n');
        }
        let device = array.device.as_ref().map(|device| format!(", device {}", line(device))).unwrap_or_default();
        let whole = array.size_gib.map(|gib| format!(", {}", size(gib))).unwrap_or_default();
        text.push_str(&format!(
            "array {}: {}{device}{whole}, {} members, {}, rotate {}\n",
            line(&array.name),
            array.state,
            array.members,
            array.usage,
            array.rotate
        ));
        if !array.volumes.is_empty() {
            text.push_str(&table(&array.volumes));
            text.push('\n');
        }
        if !array.replacing.is_empty() {
            text.push_str(&format!("{}\n", progress(array)));
        }
        for used in array.budget.iter().flatten() {
            let hours = used.window_h;
            if let Some(limit) = used.limit_agbs {
                text.push_str(&format!("{:.0} of {limit:.0} AGBs are spent in the last {hours} h\n", used.spent_agbs));
            }
            if let (Some(limit), Some(spent)) = (used.limit_usd, used.spent_usd) {
                text.push_str(&format!("${spent:.4} of ${limit:.4} are spent in the last {hours} h\n"));
            }
        }
        if let Some(why) = &array.reason {
            text.push_str(&format!("{}: {}\n", line(&array.name), line(why)));
        }
    }
    text.trim_end().to_owned()
}

fn table(volumes: &[VolumeStatus]) -> String {
    let mut table = Table::new(["slot", "volume", "part", "size", "age", "copied", "read", "written", "credits"]);
    let of = |gib: Option<f64>| gib.map_or_else(|| "-".to_owned(), size);
    for volume in volumes {
        table.row([
            volume.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()),
            volume.volume.as_ref().map_or_else(|| "-".to_owned(), |id| line(id).into_owned()),
            match volume.held_s {
                Some(left) => format!("{} for {}", volume.part, duration(left)),
                None => volume.part.clone(),
            },
            size(volume.size_gib),
            duration(volume.age_s),
            volume.copied_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            of(volume.read_gib),
            of(volume.written_gib),
            match (volume.credits_share, volume.credits_end_s) {
                (None, _) => "-".to_owned(),
                (Some(share), None) => format!("{:.0} %", share * 100.0),
                (Some(share), Some(left)) => format!("{:.0} %, for {}", share * 100.0, duration(left)),
            },
        ]);
    }
    table.to_string()
}
