//! Which daemon a command talks to, and what to look at if there is none.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use surgetank_daemon::systemd::served_device;
use surgetank_daemon::{ClientError, Sockets};
use surgetank_model::text::line;
use surgetank_report::Failure;

/// The configuration where nobody names another.
const CONFIGURATION: &str = "/etc/surgetank/surgetank.toml";
/// Names another configuration.
const CONFIGURATION_VARIABLE: &str = "SURGETANK_CONFIG";
/// Names a control socket, for people who always talk to the same daemon.
const SOCKET_VARIABLE: &str = "SURGETANK_SOCKET";
/// There if systemd runs the machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// Which daemon.
#[derive(Debug, Args)]
pub struct Whereabouts {
    /// Control socket of the daemon [default: $SURGETANK_SOCKET, or as the configuration says]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Configuration of the daemon [default: $SURGETANK_CONFIG or /etc/surgetank/surgetank.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The configuration that is meant where none is named.
pub fn configuration() -> PathBuf {
    variable(CONFIGURATION_VARIABLE).unwrap_or_else(|| CONFIGURATION.into())
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from)
}

impl Whereabouts {
    /// The configuration that was named.
    pub fn config(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// The configuration that is meant.
    pub fn configuration(&self) -> PathBuf {
        self.config().unwrap_or_else(configuration)
    }

    /// Whether a socket was named, and no configuration that would take its place.
    pub fn names_socket(&self) -> bool {
        self.config.is_none() && (self.socket.is_some() || variable(SOCKET_VARIABLE).is_some())
    }

    /// Where the daemon is found.
    ///
    /// # Errors
    /// If a configuration was named that cannot be read.
    pub fn sockets(&self) -> Result<Sockets, Failure> {
        if let Some(file) = &self.config {
            return Sockets::load(file).map_err(Failure::invalid);
        }
        if let Some(control) = self.socket.clone().or_else(|| variable(SOCKET_VARIABLE)) {
            let run_directory = control.parent().unwrap_or(Path::new("")).to_owned();
            return Ok(Sockets { control, run_directory });
        }
        match variable(CONFIGURATION_VARIABLE) {
            Some(file) => Sockets::load(&file).map_err(Failure::invalid),
            // Nobody has named this one, and it need neither be there nor be readable.
            None => Ok(Sockets::load(Path::new(CONFIGURATION)).unwrap_or_default()),
        }
    }
}

/// Why a command failed.
pub fn failure(error: &ClientError, sockets: &Sockets) -> Failure {
    match error {
        ClientError::NoDaemon(_) => Failure::Failed(no_daemon(sockets, Path::new(SYSTEMD).is_dir())),
        error => Failure::failed(error),
    }
}

/// What to look at where no daemon answers.
fn no_daemon(sockets: &Sockets, systemd: bool) -> String {
    let waiting = waiting(&sockets.run_directory);
    let waiting = match &*waiting {
        [] => String::new(),
        waiting => format!("; who uses {} waits for it", waiting.join(" or ")),
    };
    let look = match systemd {
        true => "see `systemctl status surgetank` and `journalctl --unit surgetank`, ",
        false => "",
    };
    format!(
        "no daemon answers at {}: {look}start one with `surgetank serve`, or name its configuration with --config{waiting}",
        sockets.control.display()
    )
}

/// The devices whose requests wait for a daemon: those of ublk, which outlive one, and those that are mapped to such a one.
fn waiting(run_directory: &Path) -> Vec<String> {
    let links = fs::read_dir(run_directory).into_iter().flatten().flatten();
    let waiting = links.filter_map(|link| {
        let device = fs::read_link(link.path()).ok()?;
        let is_there = device.file_name()?.to_str()?.starts_with("ublkb") && device.exists();
        let name = link.file_name().to_string_lossy().into_owned();
        let name = served_device(&name).unwrap_or(&name);
        is_there.then(|| format!("{} ({})", line(name), line(&device.display().to_string())))
    });
    let mut waiting: Vec<String> = waiting.collect();
    waiting.sort();
    waiting
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn without_a_daemon_it_is_said_where_to_look_and_what_waits() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let sockets = Sockets { control: "/run/x.sock".into(), run_directory: at("run") };
        let plain = "no daemon answers at /run/x.sock: start one with `surgetank serve`, or name its configuration with --config";
        assert_eq!(no_daemon(&sockets, false), plain);
        fs::create_dir(at("run")).unwrap();
        fs::write(at("ublkb0"), "").unwrap();
        fs::write(at("ublkb2"), "").unwrap();
        fs::write(at("loop0"), "").unwrap();
        for (name, device) in [("data", "ublkb0"), ("gone", "ublkb1"), ("other", "loop0"), (".serving-more", "ublkb2")]
        {
            symlink(at(device), at("run").join(name)).unwrap();
        }
        let said = no_daemon(&sockets, true);
        assert!(said.contains("see `systemctl status surgetank` and `journalctl --unit surgetank`, start"), "{said}");
        let waits = format!("data ({}) or more ({})", at("ublkb0").display(), at("ublkb2").display());
        assert!(said.ends_with(&format!("; who uses {waits} waits for it")), "{said}");
    }
}
