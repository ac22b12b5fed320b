//! What a session is begun with, as Python says it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use surgetank_pool::client;
use surgetank_pool::security::Access;
use surgetank_pool::security::files::KEY_FILE;
use surgetank_pool::security::tls::Tls;
use surgetank_pool::security::token::Token;
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

use crate::errors::Error;

/// Where a pool of this machine is kept unless it is said.
const DIRECTORY: &str = "/var/lib/surgetank/pool";
/// The variable that has a token.
const VARIABLE: &str = "SURGETANK_POOL_TOKEN";
/// The port of a pool unless it is said.
const PORT: u16 = 7440;
/// Bytes of each file that are kept in this process while they are not committed, as in a mount.
const KEPT_MAX: u64 = 64 << 20;
/// The longest wait that is counted: a longer one is for ever.
const TIMEOUT_MAX_S: f64 = 1e9;

/// What Python says.
pub struct Options {
    pub managers: String,
    pub target: PathBuf,
    pub token: Option<PathBuf>,
    pub certificates: Option<PathBuf>,
    pub durable: Option<String>,
    pub timeout_s: f64,
}

impl Options {
    /// With what a session begins, and which durability a target that is new to the pool gets.
    pub fn read(&self) -> Result<(client::Config, Option<Durability>), Error> {
        let durability = self.durable.as_deref().map(durability).transpose()?;
        if self.timeout_s.is_nan() || self.timeout_s <= 0.0 {
            return Err(Error::Option(format!("timeout is {}: write seconds, such as 120", self.timeout_s)));
        }
        let mut config = client::Config::new(managers(&self.managers)?, self.access()?, &self.target()?);
        config.timeout = Duration::from_secs_f64(self.timeout_s.min(TIMEOUT_MAX_S));
        config.kept_max = KEPT_MAX;
        Ok((config, durability))
    }

    /// What the pool is shown, as `surgetank mount` finds it.
    fn access(&self) -> Result<Access, Error> {
        let tls = self.certificates.as_deref().map(|directory| Tls::read(directory, false)).transpose();
        let tls = tls.map_err(|error| Error::Option(error.to_string()))?;
        let read = |file: &Path| {
            Access::read(file).map_err(|error| Error::System(rustix::io::Errno::ACCESS, error.to_string()))
        };
        let access = match (&self.token, std::env::var(VARIABLE)) {
            (Some(file), _) => read(file)?,
            // What it has is not repeated.
            (None, Ok(text)) => Token::from_text(&text)
                .map(Access::with)
                .ok_or_else(|| Error::Option(format!("{VARIABLE} is no token: `surgetank pool token` makes one")))?,
            (None, Err(_)) => read(&Path::new(DIRECTORY).join(KEY_FILE))?,
        };
        Ok(access.with_tls(tls))
    }

    /// The mount's name: the full path of its target.
    fn target(&self) -> Result<String, Error> {
        let shown = self.target.display();
        let full = std::fs::canonicalize(&self.target).map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::NOENT);
            Error::System(errno, format!("target {shown}: {error}: make it, or name another directory"))
        })?;
        if !full.is_dir() {
            let why = format!("target {shown}: it is no directory: name one");
            return Err(Error::System(rustix::io::Errno::NOTDIR, why));
        }
        let unreadable = || Error::Option(format!("target {shown}: its path is not UTF-8: choose another"));
        full.to_str().map(str::to_owned).ok_or_else(unreadable)
    }
}

/// The addresses of `HOST[:PORT][,HOST[:PORT]…]`.
fn managers(text: &str) -> Result<Vec<String>, Error> {
    let whole = |address: &str| match address.rsplit_once(':') {
        // An address of IPv6 without a port ends with a bracket.
        Some(_) if !address.ends_with(']') => address.to_owned(),
        _ => format!("{address}:{PORT}"),
    };
    if text.is_empty() || text.split(',').any(str::is_empty) {
        return Err(Error::Option(format!("pool://{text} names no manager: write pool://HOST:PORT/PATH")));
    }
    Ok(text.split(',').map(whole).collect())
}

/// As `--durable` of `surgetank mount` says it.
fn durability(text: &str) -> Result<Durability, Error> {
    let wrong = |why: &str| Error::Option(format!("durable is `{text}`: {why}"));
    if let Some(parity) = text.strip_prefix("parity=") {
        return parity.parse().map(Durability::Parity).map_err(|error| wrong(&format!("{error}")));
    }
    let (copies, media) = match text.split_once(',') {
        Some((copies, "media=ssd")) => (copies, Media::Ssd),
        _ => (text, Media::Any),
    };
    match copies.strip_prefix("copies=").and_then(|number| number.parse::<u8>().ok()) {
        Some(copies) if copies > 0 => Ok(Durability::Copies { copies, media }),
        _ => Err(wrong("write copies=1, copies=2 and so on, copies=2,media=ssd, or parity=4+1")),
    }
}
