//! `cargo lab`: guests under QEMU with throttled, hot-plugged disks; benches on the host.

use std::process::ExitCode;

fn main() -> ExitCode {
    lab::command_line::main()
}
