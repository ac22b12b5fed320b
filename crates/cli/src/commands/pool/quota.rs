//! `surgetank pool quota`: how much users may have in a pool, and what they have.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use surgetank_model::Bytes;
use surgetank_model::text::line;
use surgetank_pool::client::PoolClient;
use surgetank_pool::manager::{QuotaReport, UserQuota};
use surgetank_pool_core::quota::{Limit, Quota, ROOT};
use surgetank_report::{Failure, Table, output};

use super::asked::Asked;

/// How long names of users are waited for: a directory service may be away when somebody needs to know who has what.
const NAMES: Duration = Duration::from_secs(2);

/// Flags of `pool quota`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool quota set --default --bytes '1 TiB' --files 1000000
  surgetank pool quota set --user alice --bytes '4 TiB'
  surgetank pool quota list

Bytes that count are those of files that their target does not have yet, once, however many copies there are. Files that count are \
all files and directories that the pool has a name for. docs/POOL.md says what programs see.")]
pub struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say how much a user may have
    Set(Set),
    /// Take back what was said of a user, whom the default limits from now on
    Remove(Remove),
    /// Show what users have, and what they may have
    List(List),
}

/// Whom it is about.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Who {
    /// The user, by name or number
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Option<u32>,
    /// Everybody of whom nothing else is said
    #[arg(long)]
    default: bool,
}

impl Who {
    /// `None`: everybody.
    fn user(&self) -> Result<Option<u32>, Failure> {
        match self.user {
            Some(ROOT) => Err(Failure::Invalid("--user root: nothing limits root".to_owned())),
            user => Ok(user),
        }
    }

    fn name(&self) -> String {
        self.user
            .map_or_else(|| "everybody of whom nothing else is said".to_owned(), |user| format!("user {}", named(user)))
    }
}

/// Flags of `pool quota set`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool quota set --user alice --bytes '4 TiB' --files 500000
  surgetank pool quota set --user 1000 --bytes none pool://node1 --token key
  surgetank pool quota set --default --bytes '1 TiB'

What is not said stays as it is. It holds within about two seconds, for whatever is written from then on; what is there stays. It \
takes the pool's key.")]
struct Set {
    #[command(flatten)]
    who: Who,
    /// Bytes at most; `none`: no limit; `default`: as everybody
    #[arg(long, value_name = "SIZE", value_parser = bytes, required_unless_present = "files")]
    bytes: Option<Limit>,
    /// Files and directories at most; `none`: no limit; `default`: as everybody
    #[arg(long, value_name = "N", value_parser = files)]
    files: Option<Limit>,
    #[command(flatten)]
    asked: Asked,
}

/// Flags of `pool quota remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool quota remove --user alice
  surgetank pool quota remove --default pool://node1 --token key")]
struct Remove {
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    asked: Asked,
}

/// Flags of `pool quota list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool quota list
  surgetank pool quota list --user alice --json pool://node1 --token alice.token

With the pool's key it shows everybody, with a token that has an owner that user.")]
struct List {
    /// This user alone, by name or number
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Option<u32>,
    #[command(flatten)]
    asked: Asked,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

/// Fields of a user as the system knows it, by name or number: from whatever source it has.
fn passwd(user: &str) -> Option<Vec<String>> {
    let output = Command::new("getent").args(["passwd", "--", user]).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.split(':').map(str::to_owned).collect())
}

fn user(text: &str) -> Result<u32, String> {
    let number = match text.parse::<u32>() {
        Ok(number) => Some(number),
        Err(_) => passwd(text).and_then(|fields| fields.get(2)?.parse().ok()),
    };
    // The largest number is nobody's: system calls take it for "as it is".
    number.filter(|number| *number != u32::MAX).ok_or_else(|| {
        format!(
            "there is no user `{text}` on this machine: write a name that `getent passwd` knows, or the user's number"
        )
    })
}

/// Names of users, as far as this machine knows them and says so soon.
fn names(users: impl Iterator<Item = u32>) -> BTreeMap<u32, String> {
    let numbers: Vec<String> = users.map(|user| user.to_string()).collect();
    if numbers.is_empty() {
        return BTreeMap::new();
    }
    let mut getent = Command::new("getent");
    getent.args(["passwd", "--"]).args(numbers).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = getent.spawn() else { return BTreeMap::new() };
    let (said, says) = channel();
    if let Some(mut output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes).map(|_| said.send(bytes));
        });
    }
    let bytes = says.recv_timeout(NAMES).unwrap_or_default();
    // It has said everything, or is waited for no longer.
    let _ = child.kill();
    let _ = child.wait();
    String::from_utf8_lossy(&bytes).lines().filter_map(name).collect()
}

/// The number and the name in a line of `getent`.
fn name(line: &str) -> Option<(u32, String)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
}

fn named(user: u32) -> String {
    names([user].into_iter()).remove(&user).unwrap_or_else(|| user.to_string())
}

fn limit(text: &str, amount: impl FnOnce() -> Result<u64, String>) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::Unlimited),
        "default" => Ok(Limit::AsDefault),
        _ => match amount()? {
            0 => Err("nothing could be written at all: write `none` for no limit".to_owned()),
            most => Ok(Limit::AtMost(most)),
        },
    }
}

fn bytes(text: &str) -> Result<Limit, String> {
    limit(text, || text.parse::<Bytes>().map(Bytes::get).map_err(|error| error.to_string()))
}

fn files(text: &str) -> Result<Limit, String> {
    limit(text, || text.parse().map_err(|_| format!("`{text}` is no number of files: write one, `none` or `default`")))
}

/// What everybody may have of whom nothing else is said; `None`: there is no limit.
#[derive(Serialize)]
struct Everybody {
    bytes_limit: Option<u64>,
    files_limit: Option<u64>,
}

/// What a user has, and may have.
#[derive(Serialize)]
pub struct User {
    uid: u32,
    name: Option<String>,
    bytes_used: u64,
    bytes_limit: Option<u64>,
    files_used: u64,
    files_limit: Option<u64>,
}

impl User {
    fn all<'q>(quotas: impl Iterator<Item = &'q UserQuota> + Clone) -> Vec<Self> {
        let mut names = names(quotas.clone().map(|quota| quota.user));
        let of = |quota: &UserQuota| {
            let UserQuota { user, used, bytes, files, .. } = *quota;
            let (bytes_used, files_used) = (used.bytes, used.files);
            let name = names.remove(&user);
            Self { uid: user, name, bytes_used, bytes_limit: bytes, files_used, files_limit: files }
        };
        quotas.map(of).collect()
    }

    /// Users with a limit.
    pub fn limited(report: &QuotaReport) -> Vec<Self> {
        Self::all(report.users.iter().filter(|user| user.bytes.is_some() || user.files.is_some()))
    }

    /// The rows that people get.
    pub fn table(all: &[Self]) -> Option<Table> {
        if all.is_empty() {
            return None;
        }
        let mut table = Table::new(["user", "bytes", "at most", "files", "at most"]);
        for Self { uid, name, bytes_used, bytes_limit, files_used, files_limit } in all {
            let user = name.as_ref().map_or_else(|| uid.to_string(), |name| line(name).to_string());
            let size = |bytes: u64| Bytes::new(bytes).to_string();
            let none = || "none".to_owned();
            table.row([
                user,
                size(*bytes_used),
                bytes_limit.map_or_else(none, size),
                files_used.to_string(),
                files_limit.map_or_else(none, |files| files.to_string()),
            ]);
        }
        Some(table)
    }
}

#[derive(Serialize)]
struct Answer {
    /// `None`: nothing is said of everybody.
    default: Option<Everybody>,
    users: Vec<User>,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        match &self.command {
            What::Set(set) => {
                let user = set.who.user()?;
                if user.is_none() && [set.bytes, set.files].contains(&Some(Limit::AsDefault)) {
                    return Err(Failure::Invalid("--default: it is the default; write `none` for no limit".to_owned()));
                }
                say(&set.asked, user, (set.bytes, set.files))?;
                output::print(&format!("the quota of {} is set", set.who.name()))
            }
            What::Remove(remove) => {
                let nothing = Some(Limit::AsDefault);
                say(&remove.asked, remove.who.user()?, (nothing, nothing))?;
                output::print(&format!("{} has no quota of its own any more", remove.who.name()))
            }
            What::List(list) => list.run(),
        }
    }
}

fn say(asked: &Asked, user: Option<u32>, (bytes, files): (Option<Limit>, Option<Limit>)) -> Result<(), Failure> {
    asked.ask(async |config| PoolClient::set_quota(config, user, bytes, files).await)
}

impl List {
    fn run(&self) -> Result<(), Failure> {
        let report = self.asked.ask(async |config| PoolClient::ask_quotas(config).await)?;
        let shown = report.users.iter().filter(|user| self.user.is_none_or(|only| user.user == only));
        let users = User::all(shown);
        let most = |limit| match limit {
            Limit::AtMost(most) => Some(most),
            Limit::AsDefault | Limit::Unlimited => None,
        };
        let default = report
            .everybody
            .map(|Quota { bytes, files }| Everybody { bytes_limit: most(bytes), files_limit: most(files) });
        let answer = Answer { default, users };
        if self.json {
            return output::print_json(&answer);
        }
        let everybody = match &answer.default {
            None => "nobody of whom nothing is said has a limit".to_owned(),
            Some(Everybody { bytes_limit, files_limit }) => format!(
                "everybody of whom nothing else is said: {} at most, {} files",
                bytes_limit.map_or_else(|| "any bytes".to_owned(), |bytes| Bytes::new(bytes).to_string()),
                files_limit.map_or_else(|| "any number of".to_owned(), |files| format!("{files}"))
            ),
        };
        let table = User::table(&answer.users).map(|table| format!("{table}\n")).unwrap_or_default();
        output::print(&format!("{table}{everybody}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_numbers_none_or_the_default_and_zero_is_refused() {
        assert_eq!(bytes("1 GiB"), Ok(Limit::AtMost(1 << 30)));
        assert_eq!((bytes("none"), files("default")), (Ok(Limit::Unlimited), Ok(Limit::AsDefault)));
        assert_eq!(files("12"), Ok(Limit::AtMost(12)));
        for bad in [bytes("0 B"), files("0")] {
            assert!(bad.unwrap_err().contains("write `none` for no limit"));
        }
        assert!(files("-1").unwrap_err().contains("is no number of files"));
        assert!(bytes("5 parsecs").unwrap_err().contains("unknown unit"));
    }

    #[test]
    fn a_user_is_a_number_or_a_name_that_the_machine_knows() {
        assert_eq!(names([ROOT, 4_294_967_294].into_iter()), [(ROOT, "root".to_owned())].into());
        assert_eq!(name("alice:x:1000:1000::/home/alice:/bin/sh"), Some((1000, "alice".to_owned())));
        assert!(name("alice:x").is_none() && name("").is_none());
        assert_eq!((user("1000"), user("root")), (Ok(1000), Ok(ROOT)));
        assert!(user("no-such-user-here").unwrap_err().contains("there is no user `no-such-user-here`"));
        assert!(user("4294967295").is_err());
    }
}
