//! `surgetank provider`: the provisioning service of a host, in the foreground.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use surgetank_daemon::provisioning::{ServiceConfig, TlsFiles};
use surgetank_provider::ProviderError;
use surgetank_provider::service::Service;
use surgetank_provider::service::secret::Secret;
use surgetank_provider::service::tls::Credentials;
use surgetank_report::{Failure, Interrupt, output};

use super::foreground::Foreground;
use super::serve::notify;

/// How long one wait for a signal takes; there is always a next one.
const WAIT: Duration = Duration::from_secs(3600);

/// Flags of `provider`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank provider --config /etc/surgetank/provider.toml
  surgetank provider --config provider.toml --check

The service rents volumes of this machine to one guest, and hot-plugs them through QEMU. The guest's daemon uses \
it as its [provider.host]; docs/PROVISIONING.md describes both sides. SIGTERM and SIGINT stop it; rented volumes \
stay.")]
pub struct Arguments {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    foreground: Foreground,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let (file, check) = (&self.config, self.foreground.check);
        let config = ServiceConfig::load(file).map_err(Failure::invalid)?;
        if check {
            return output::print(&format!("{}: valid", file.display()));
        }
        self.foreground.begin()?;
        let interrupt = Interrupt::install()?;
        let provider = config.open().map_err(|error| match error {
            ProviderError::Invalid(text) => Failure::Invalid(format!("{}: {text}", file.display())),
            error => Failure::failed(error),
        })?;
        let secret = Secret::read_or_make(&config.token_file).map_err(Failure::Failed)?;
        let taken = |error: std::io::Error| {
            Failure::Failed(format!("{} cannot be listened on: {error}; name another in listen", config.listen))
        };
        let mut service = Service::bind(config.listen, provider, secret).map_err(taken)?;
        let scheme = match &config.tls {
            Some(TlsFiles { certificate, key }) => {
                let credentials = Credentials::load(certificate, key).map_err(Failure::Invalid)?;
                service = service.with_tls(credentials);
                "https"
            }
            None => "http",
        };
        output::print(&format!("{scheme}://{}", service.address().map_err(taken)?))?;
        notify("READY=1");
        let served = service.serve(move || {
            while !interrupt.sleep(WAIT) {}
            notify("STOPPING=1");
        });
        served.map_err(|error| Failure::Failed(format!("the service ended: {error}")))
    }
}
