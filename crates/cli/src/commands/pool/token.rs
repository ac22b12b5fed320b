//! `surgetank pool token` and `surgetank pool certificates`: what others are let in with.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::Args;
use surgetank_model::units::Span;
use surgetank_pool::bucket;
use surgetank_pool::client::PoolClient;
use surgetank_pool::security::token::{Claims, Grant, Token, now, number_from_text, number_text};
use surgetank_pool::security::{Credentials, certificates, files, tls};
use surgetank_report::{Failure, output};

use super::asked::Asked;
use super::shown::DIRECTORY;

/// Flags of `pool token`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool token --target /scratch/a --owner 1000:1000 --out a.token
  surgetank pool token --target /scratch/run1 --valid '12 h' --out run1.token

Whoever has the token mounts the pool with that target, or one below it, by `surgetank mount … --token FILE`, until the token \
expires by the clocks of managers and benefactors, or until `surgetank pool revoke` takes it back.")]
pub struct Make {
    /// Mounts drain to this directory or below it: its full path, as managers see it
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// This mount alone [default: all with that target]
    #[arg(long, value_name = "NAME")]
    mount: Option<String>,
    /// Everything that is made belongs to this user and group [default: to whom the mount says]
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Files can be read, and not written
    #[arg(long)]
    read_only: bool,
    /// How long it allows anything
    #[arg(long, value_name = "TIME", default_value = "7 d")]
    valid: Span,
    /// The pool's directory
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
    /// A file to write it to, which nobody else reads [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    // The largest number is nobody's: system calls take it for "as it is".
    let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX);
    let parts = text.split_once(':').and_then(|(user, group)| Some((number(user)?, number(group)?)));
    parts.ok_or_else(|| format!("`{text}` is no owner: write the numbers of a user and a group, such as 1000:1000"))
}

impl Make {
    pub fn run(&self) -> Result<(), Failure> {
        let shown = self.target.display().to_string();
        let address = bucket::is_address(&shown).then(|| shown.parse::<bucket::Address>()).transpose();
        let address = address.map_err(|error| Failure::Invalid(format!("--target {error}")))?;
        let is_full = address.is_some()
            || self.target.is_absolute() && !self.target.components().any(|part| part == Component::ParentDir);
        let target = self.target.to_str().filter(|_| is_full).ok_or_else(|| {
            let shown = self.target.display();
            Failure::Invalid(format!("--target {shown}: write the full path of a directory, without `..` and in UTF-8"))
        })?;
        if self.valid.0.as_secs() == 0 {
            return Err(Failure::Invalid("--valid: a token is valid for a second at least".to_owned()));
        }
        let credentials = Credentials::read(&self.directory.join(files::KEY_FILE), None).map_err(Failure::invalid)?;
        let token = credentials.key().token(&Claims::Mount(Grant {
            // Without slashes at its end.
            target: if let Some(address) = address {
                address.to_string()
            } else {
                Path::new(target).components().collect::<PathBuf>().display().to_string()
            },
            mount: self.mount.clone(),
            owner: self.owner,
            writes: !self.read_only,
            expires: Some(now().saturating_add(self.valid.0.as_secs())),
        }));
        match &self.out {
            None => output::print(token.to_text())?,
            Some(out) if out.exists() => {
                return Err(Failure::Invalid(format!("--out {}: there is such a file: name another", out.display())));
            }
            Some(out) => files::write_private(out, &format!("{}\n", token.to_text())).map_err(|error| {
                Failure::Failed(format!("cannot write {}: {error}: name another file", out.display()))
            })?,
        }
        output::note(&format!(
            "surgetank: `surgetank pool revoke {0} --token {1}` takes this token back; its number is {0}",
            number_text(token.number()),
            self.directory.join(files::KEY_FILE).display()
        ));
        Ok(())
    }
}

/// Flags of `pool revoke`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool revoke alice.token
  surgetank pool revoke 4be9a1c03d52e687

Within seconds no manager or benefactor lets the token in, nor a mount that was made with it; what that had closed drains on. \
Other tokens go on working. It takes the pool's key.")]
pub struct Revoke {
    /// The file that has the token, or its number, which `surgetank pool token` has printed
    #[arg(value_name = "FILE|NUMBER")]
    what: PathBuf,
    #[command(flatten)]
    asked: Asked,
}

impl Revoke {
    pub fn run(&self) -> Result<(), Failure> {
        let shown = self.what.display();
        let (number, sentence) =
            match (std::fs::read_to_string(&self.what), self.what.to_str().and_then(number_from_text)) {
                (Ok(text), _) => {
                    let token = Token::from_text(&text).ok_or_else(|| {
                        Failure::Invalid(format!("{shown} has no token: `surgetank pool token` makes one"))
                    })?;
                    (token.number(), "is let in no more")
                }
                // Nothing has a list of those that were made.
                (Err(_), Some(number)) => {
                    (number, "is let in no more, if there is one: which were made, the pool does not know")
                }
                (Err(error), None) => {
                    let sentence = format!("{shown} cannot be read, and is no token's number: {error}");
                    return Err(Failure::Invalid(sentence));
                }
            };
        self.asked.ask(async |config| PoolClient::revoke(config, number).await)?;
        output::print(&format!("a token with the number {} {sentence}", number_text(number)))
    }
}

/// Flags of `pool certificates`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool certificates pki --host node1 --host node2 --client login1
  surgetank pool certificates pki --host 10.0.0.1 --valid '30 d'
  surgetank pool certificates pki --revoke node2

DIR/NAME is what a machine needs: give it to that machine, and name it with --certificates. DIR/ca-key.pem issues certificates \
and stays here. Another run with the same DIR makes more of the same authority, or replaces what has expired; running processes \
take new files up. --revoke makes ca-crl.pem, the list of what counts no more, in DIR and in each DIR/NAME: copy it to every \
machine beside its other files.")]
pub struct Certificates {
    /// Where they are made
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// A machine that runs managers or benefactors, by the name or address that others call it
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// A machine that mounts alone
    #[arg(long = "client", value_name = "NAME")]
    clients: Vec<String>,
    /// A machine whose present certificates are to count no more
    #[arg(long = "revoke", value_name = "NAME")]
    revoked: Vec<String>,
    /// How long they count
    #[arg(long, value_name = "TIME", default_value = "365 d")]
    valid: Span,
}

impl Certificates {
    pub fn run(&self) -> Result<(), Failure> {
        if !self.revoked.is_empty() {
            let given = certificates::revoke(&self.directory, &self.revoked).map_err(Failure::invalid)?;
            for at in given {
                output::print(&at.join(tls::REVOKED).display().to_string())?;
            }
        } else if self.hosts.is_empty() && self.clients.is_empty() {
            return Err(Failure::Invalid("name a machine at least, with --host, --client or --revoke".to_owned()));
        }
        let valid = self.valid.0.min(Duration::from_secs(100 * 365 * 86_400));
        let made = certificates::make(&self.directory, &self.hosts, &self.clients, valid).map_err(Failure::invalid)?;
        made.iter().try_for_each(|directory| output::print(&directory.display().to_string()))
    }
}
