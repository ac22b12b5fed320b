//! What commands show a pool.

use std::path::{Path, PathBuf};

use clap::Args;
use surgetank_pool::security::Access;
use surgetank_pool::security::files::KEY_FILE;
use surgetank_pool::security::tls::Tls;
use surgetank_pool::security::token::Token;
use surgetank_report::Failure;

/// Where a pool of this machine is kept unless it is said.
pub const DIRECTORY: &str = "/var/lib/surgetank/pool";
/// The variable that has a token.
const VARIABLE: &str = "SURGETANK_POOL_TOKEN";

/// Their flags.
#[derive(Debug, Args)]
pub struct Shown {
    /// The file that has the pool's key, or a token [default: the token in SURGETANK_POOL_TOKEN, or the file `key` in
    /// /var/lib/surgetank/pool]
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
    /// The directory with this machine's certificates, for a pool beyond loopback
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
}

impl Shown {
    /// Reads it.
    pub fn access(&self) -> Result<Access, Failure> {
        let tls = self.certificates.as_deref().map(|directory| Tls::read(directory, false)).transpose();
        let tls = tls.map_err(Failure::invalid)?;
        let access = match (&self.token, std::env::var(VARIABLE)) {
            (Some(file), _) => Access::read(file).map_err(Failure::invalid)?,
            // What it has is not repeated.
            (None, Ok(text)) => Token::from_text(&text)
                .map(Access::with)
                .ok_or_else(|| Failure::Invalid(format!("{VARIABLE} is no token: `surgetank pool token` makes one")))?,
            (None, Err(_)) => Access::read(&Path::new(DIRECTORY).join(KEY_FILE)).map_err(Failure::invalid)?,
        };
        Ok(access.with_tls(tls))
    }
}
