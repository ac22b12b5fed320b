//! The lab: whatever measures. Guests under QEMU with throttled, hot-plugged disks, for what only a real machine shows;
//! benches on the host itself.
//!
//! A guest is a stock Debian kernel with a small initramfs; its root is the host's, read-only with an overlay, so that it
//! runs the host's own programs. [`Lab::open`] finds what that takes, [`Plan::boot`] starts a guest, [`Guest::wait`]
//! brings back what its script said. Whatever was started or made is ended and removed when its value is dropped.

pub mod bar;
pub mod bench;
mod campaign;
pub mod command_line;
pub mod cuts;
mod experiment;
pub mod fio;
mod flags;
pub mod guest;
pub mod host;
pub mod initramfs;
pub mod inside;
pub mod interrupt;
pub mod kernel;
pub mod machine;
pub mod modules;
pub mod nbd;
pub mod outages;
mod output;
pub mod peers;
pub mod plan;
pub mod product;
pub mod replay;
pub mod reproduce;
pub mod scenario;
pub mod service;
pub mod share;
pub mod surgetank;
pub mod validate;

pub use guest::{Guest, Outcome};
pub use host::{Lab, Unavailable};
pub use interrupt::Interrupt;
pub use plan::{Disk, Media, Plan};
