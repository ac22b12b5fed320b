//! The lab: whatever measures. Guests under QEMU with throttled, hot-plugged disks, for what only a real machine shows;
//! benches on the host itself.
//!
//! A guest is a stock Debian kernel with a small initramfs; its root is the host's, read-only with an overlay, so that it
//! runs the host's own programs. [`Lab::open`] finds what that takes, [`Plan::boot`] starts a guest, [`Guest::wait`]
//! brings back what its script said. Whatever was started or made is ended and removed when its value is dropped.

mod apt;
mod arrays;
mod bar;
mod bench;
mod calm;
mod campaign;
pub mod command_line;
mod cuts;
mod economy;
mod experiment;
mod fio;
mod flags;
mod guest;
mod host;
mod initramfs;
mod inside;
mod interrupt;
mod kernel;
mod machine;
pub mod messages;
mod modules;
mod nbd;
mod outages;
mod output;
mod peers;
mod plan;
mod product;
mod replay;
mod reproduce;
mod samples;
mod scenario;
pub mod service;
mod share;
mod surgetank;
mod systemd;
mod validate;

/// What a test takes that cuts a guest's power: disks that forget, writers whose operations follow from a seed, and the judgement of
/// what is read after the cut.
pub mod power_cut {
    pub use crate::cuts::acks::{self, Acks};
    pub use crate::cuts::lossy::{Disk as LossyDisk, Lost};
    pub use crate::cuts::oracle::{BLOCK, Fault, Stretch};
    pub use crate::inside::stretch::{judge, write};
    pub use crate::machine::repair_ext4;
    pub use crate::nbd::Server;
}

pub use guest::{Guest, Outcome};
pub use host::{Lab, Unavailable};
pub use interrupt::Interrupt;
pub use plan::{Disk, Media, Plan};
