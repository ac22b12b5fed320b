//! The pool: managers, benefactors and clients as processes of their own on this machine, stores, etcd, faults.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod claims;
mod compaction;
mod creations;
mod early;
mod early_faults;
mod etcd;
mod etcd_cluster;
mod etcd_room;
mod faults;
mod files;
mod imports;
mod kept;
mod leaving;
mod local;
mod locks;
mod managers;
mod network;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "objects")]
mod objects_faults;
mod parity;
mod parity_repair;
mod prefetch;
mod publishers;
mod quotas;
mod removed;
mod renamed;
mod repair;
mod rolling;
mod room;
mod scrub;
mod security;
mod shared_writers;
mod sharing;
mod sparse;
mod ssd;
mod standstill;
mod store;
mod support;
mod target_changes;
mod tls;
