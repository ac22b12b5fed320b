//! Processes of the demo, from the same executable: what they read and write is that of ordinary programs, and they can be killed
//! whatever their device does.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use surgetank_report::Failure;

use crate::array::load;
use crate::writer;

/// What such a process is told, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// To write one file.
    Write(writer::Order),
    /// To make, access or verify the files of the demo of arrays.
    Load(load::Order),
}

/// The body of the hidden command `demo-writer`: carries out what the demo ordered.
///
/// # Errors
/// The first I/O error, or a block that is not what was written.
pub fn work(order: &str) -> Result<(), Failure> {
    match serde_json::from_str(order).map_err(Failure::invalid)? {
        Order::Write(order) => writer::write(&order),
        Order::Load(order) => load::carry_out(&order),
    }
}

/// Starts such a process. It ignores the terminal's Ctrl-C: the demo ends it in order.
///
/// # Errors
/// If the process cannot be started.
pub fn spawn(order: &Order) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("demo-writer").arg(serde_json::to_string(order)?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
}

/// Why such a process ended, as it said itself.
pub fn reason(child: &mut Child) -> Option<String> {
    let mut said = String::new();
    let _ = child.stderr.as_mut()?.read_to_string(&mut said);
    let line = said.lines().next()?.trim_start_matches("surgetank: ");
    (!line.is_empty()).then(|| line.to_owned())
}
