//! `surgetank gc`: deletes rented volumes that nobody owns any more, of one daemon or of whole accounts.

use clap::Args;
use serde::Serialize;
use surgetank_daemon::clock::unix_ms;
use surgetank_daemon::reaping::{Outcome, Reaped, Reaper, Rule, Seen};
use surgetank_daemon::{Client, Config};
use surgetank_model::text::line;
use surgetank_model::units::Span;
use surgetank_provider::{Machine, ProviderError};
use surgetank_report::number::{count, duration, plain, small_dollars};
use surgetank_report::{Failure, Table, output};

use super::control::Daemon;

/// Flags of `gc`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank gc
  surgetank gc --json
  surgetank gc --account
  surgetank gc --account --dead-for '1 h' --delete

Deletes rented volumes that carry this daemon's tag and that none of its devices owns. The daemon does so at its \
start and every few minutes; it never deletes a volume that may hold data.

With --account it looks, without a daemon, at what all machines have rented in the accounts of the providers of the \
configuration. Nothing is changed unless --delete is given; then volumes are deleted that are attached nowhere, may \
hold no data, are old enough, and whose machine the cloud says is gone. Volumes whose tags name no machine are \
deleted only if --dead-for is given as well. Exit status 3 if volumes are left that --delete would delete, or that may \
hold data and have no machine: nobody deletes these but their owner, or you.")]
pub struct Arguments {
    /// Look at what all machines have rented in the accounts of the configuration
    #[arg(long)]
    account: bool,
    /// How old a volume must be at least before it is deleted [default: 2 h]
    #[arg(long, value_name = "TIME", requires = "account")]
    dead_for: Option<Span>,
    /// Delete what has no machine any more, instead of only showing it
    #[arg(long, requires = "account")]
    delete: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// What was found in accounts.
#[derive(Serialize)]
struct Answer {
    /// Whether volumes were to be deleted.
    deletes: bool,
    dead_for_s: f64,
    /// Providers of the configuration whose accounts were looked at.
    accounts: Vec<&'static str>,
    /// Those that have no account to look at.
    left_out: Vec<&'static str>,
    #[serde(flatten)]
    reaped: Reaped,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        if self.account { self.look_at_accounts() } else { self.sweep() }
    }

    fn sweep(&self) -> Result<(), Failure> {
        let swept = self.daemon.ask(Client::gc)?;
        self.daemon.answer(&swept, || {
            let deleted = swept.deleted.iter().map(|volume| format!("deleted {}", line(volume)));
            let detached = swept.detached.iter();
            let detached = detached.map(|volume| format!("detached {}; the next sweep deletes it", line(volume)));
            let warnings = swept.warnings.iter().map(|warning| format!("warning: {}", line(warning)));
            let mut lines: Vec<String> = deleted.chain(detached).chain(warnings).collect();
            if lines.is_empty() {
                lines.push("no volume is left over".into());
            }
            lines.join("\n")
        })
    }

    fn look_at_accounts(&self) -> Result<(), Failure> {
        let wrong = |why| Failure::Invalid(format!("--dead-for: {why}"));
        let rule = self.dead_for.map_or_else(|| Ok(Rule::default()), |span| Rule::older_than(span.0)).map_err(wrong)?;
        let whereabouts = self.daemon.whereabouts();
        let file = whereabouts.configuration();
        if whereabouts.names_socket() {
            return Err(Failure::invalid(
                "--account asks providers and no daemon: name the configuration with --config, and no socket",
            ));
        }
        let config = Config::load_any(&file).map_err(Failure::invalid)?;
        let reaper = Reaper { rule, deletes: self.delete, now_ms: unix_ms(), pause: &std::thread::sleep };
        let (mut left_out, mut reaped) = (Vec::new(), Reaped::default());
        let mut accounts = Vec::new();
        // What is wrong with one is told before anything is deleted in another.
        for (name, provider) in &config.providers {
            match provider.open_account() {
                Ok(Some(account)) => accounts.push((*name, account)),
                Ok(None) => left_out.push(*name),
                Err(ProviderError::Invalid(why)) => {
                    return Err(Failure::Invalid(format!("{}: [provider.{name}]: {why}", file.display())));
                }
                Err(error) => reaped.errors.push(format!("[provider.{name}] cannot be asked: {error}")),
            }
        }
        for (name, account) in &accounts {
            reaper.reap(name, &**account, &mut reaped);
        }
        let accounts = accounts.into_iter().map(|(name, _)| name).collect();
        for error in &reaped.errors {
            output::note(&format!("warning: {}", line(error)));
        }
        let dead_for_s = rule.dead_for().as_secs_f64();
        let answer = Answer { deletes: self.delete, dead_for_s, accounts, left_out, reaped };
        self.daemon.answer(&answer, || people(&answer))?;
        ended(&answer.reaped)
    }
}

/// How the command ends once it has answered.
fn ended(reaped: &Reaped) -> Result<(), Failure> {
    if !reaped.errors.is_empty() {
        return Err(Failure::Failed(format!(
            "{} could not be asked or done in the account, as the warnings say: put that right and look again",
            count(reaped.errors.len(), "thing")
        )));
    }
    match (reaped.count(Outcome::Dirty), reaped.count(Outcome::WouldDelete)) {
        (0, 0) => Ok(()),
        (0, 1) => Err(Failure::Infeasible("1 volume is paid for and has no machine: --delete deletes it".to_owned())),
        (0, would) => Err(Failure::Infeasible(format!(
            "{} are paid for and have no machine: --delete deletes them",
            count(would, "volume")
        ))),
        (dirty, _) => Err(Failure::Infeasible(format!(
            "{} may hold the newest data of a device and no machine is known that will write it back: attach each to a \
             machine, look at it with `surgetank inspect` (at members of an array with `surgetank array assemble`), and \
             delete it yourself when its data is saved or not needed",
            count(dirty, "volume")
        ))),
    }
}

fn or_dash(text: Option<&String>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| line(text).into_owned())
}

/// What became of a volume, in words.
fn outcome(seen: &Seen) -> String {
    match (seen.outcome, seen.kept_because) {
        (Outcome::WouldDelete, _) => "to be deleted".to_owned(),
        (Outcome::Deleted, _) => "deleted".to_owned(),
        (Outcome::Failed, _) => "not deleted, as it failed".to_owned(),
        (Outcome::Gone, _) => "gone meanwhile".to_owned(),
        (Outcome::Dirty, _) => "kept: it may hold the newest data".to_owned(),
        (Outcome::Kept, Some(reason)) => format!("kept: {}", reason.words()),
        (Outcome::Kept, None) => "kept".to_owned(),
    }
}

/// The machine that rented a volume, and whether it is there.
fn machine(seen: &Seen) -> String {
    let state = match seen.machine_state {
        Some(Machine::Exists) => " (exists)",
        Some(Machine::Gone) => " (gone)",
        None => "",
    };
    or_dash(seen.machine.as_ref()) + state
}

fn people(answer: &Answer) -> String {
    let volumes = &answer.reaped.volumes;
    let row = |seen: &Seen| {
        [
            seen.provider.to_owned(),
            line(&seen.volume).into_owned(),
            line(&seen.volume_type).into_owned(),
            or_dash(seen.owner.as_ref()),
            or_dash(seen.device.as_ref()),
            machine(seen),
            or_dash(seen.attached_to.as_ref()),
            outcome(seen),
            plain(seen.size_gib),
            seen.age_s.map_or_else(|| "-".to_owned(), duration),
            seen.usd_month.map_or_else(|| "-".to_owned(), small_dollars),
            seen.cost_usd.map_or_else(|| "-".to_owned(), small_dollars),
        ]
    };
    let table =
        Table::of("provider|volume|type|owner|device|machine|attached to|outcome|GiB|age|USD a month|USD so far")
            .words(8)
            .with(volumes.iter().map(row));
    let mut lines = Vec::new();
    if answer.accounts.is_empty() && answer.reaped.errors.is_empty() {
        lines.push("no provider of this configuration has an account to look at".to_owned());
    } else if volumes.is_empty() {
        let all =
            if answer.reaped.errors.is_empty() { "these accounts" } else { "what could be listed of these accounts" };
        lines.push(format!("no rented volume is in {all}"));
    } else {
        lines.push(table.to_string());
    }
    let would = answer.reaped.count(Outcome::WouldDelete);
    if would > 0 {
        lines.push(format!("--delete deletes {} for which no machine is known", count(would, "volume")));
    }
    for name in &answer.left_out {
        lines.push(format!("[provider.{name}] has no account to look at: those who rent there sweep"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use surgetank_daemon::reaping::Reason;
    use surgetank_provider::VolumeState;

    use super::*;

    fn seen(outcome: Outcome, kept_because: Option<Reason>) -> Seen {
        Seen {
            provider: "aws",
            volume: "vol-1".to_owned(),
            volume_type: "gp3".to_owned(),
            size_gib: 10.0,
            state: VolumeState::Available,
            owner: Some("0123".to_owned()),
            device: Some("data".to_owned()),
            machine: Some("i-1".to_owned()),
            machine_state: Some(Machine::Gone),
            attached_to: None,
            dirty_epoch: None,
            age_s: Some(200_000.0),
            usd_month: Some(0.8),
            cost_usd: Some(0.06),
            outcome,
            kept_because,
        }
    }

    fn answer(volumes: Vec<Seen>, errors: &[&str]) -> Answer {
        let errors = errors.iter().map(|&error| error.to_owned()).collect();
        let (accounts, left_out, reaped) = (vec!["aws"], vec!["local"], Reaped { volumes, errors });
        Answer { deletes: false, dead_for_s: 7200.0, accounts, left_out, reaped }
    }

    fn status(answer: &Answer) -> u8 {
        ended(&answer.reaped).map_or_else(|failure| failure.status(), |()| 0)
    }

    #[test]
    fn scripts_are_told_of_what_failed_and_of_volumes_that_are_left() {
        let dirty = || seen(Outcome::Dirty, None);
        let kept = || seen(Outcome::Kept, Some(Reason::MachineExists));
        assert_eq!(status(&answer(vec![kept(), seen(Outcome::Deleted, None)], &[])), 0);
        assert_eq!(status(&answer(vec![kept(), dirty()], &[])), 3);
        assert_eq!(status(&answer(vec![kept(), seen(Outcome::WouldDelete, None)], &[])), 3);
        assert_eq!(status(&answer(vec![seen(Outcome::Failed, None), dirty()], &["it cannot be deleted"])), 1);
    }

    #[test]
    fn people_see_whose_each_volume_is_what_it_costs_and_why_it_is_kept() {
        let text =
            people(&answer(vec![seen(Outcome::WouldDelete, None), seen(Outcome::Kept, Some(Reason::Young))], &[]));
        for part in ["vol-1", "0123", "data", "i-1 (gone)", "2 d 7 h", "$0.8", "$0.06", "kept: it is too young"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let left = ended(&answer(vec![seen(Outcome::WouldDelete, None)], &[]).reaped).unwrap_err().to_string();
        assert_eq!(left, "1 volume is paid for and has no machine: --delete deletes it");
        assert!(text.contains("--delete deletes 1 volume for which no machine is known"), "{text}");
        assert!(text.contains("[provider.local] has no account to look at"), "{text}");
        let empty = answer(Vec::new(), &[]);
        assert!(people(&empty).contains("no rented volume is in these accounts"));
        let none = Answer { accounts: Vec::new(), ..empty };
        assert!(people(&none).starts_with("no provider of this configuration has an account to look at"));
    }

    #[test]
    fn what_a_cloud_says_stays_on_its_line() {
        let evil = "x\nfine\u{1b}[2J";
        let volume = Seen { volume: evil.to_owned(), machine: Some(evil.to_owned()), ..seen(Outcome::Dirty, None) };
        let (text, harmless) =
            (people(&answer(vec![volume], &[])), people(&answer(vec![seen(Outcome::Dirty, None)], &[])));
        assert_eq!(text.lines().count(), harmless.lines().count(), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
