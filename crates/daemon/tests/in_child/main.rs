//! The daemon in a process of its own, which can be killed: this test program itself, at the test `daemon_in_a_child`.

#![allow(clippy::print_stdout, reason = "tables are results, and tests say what they skip")]
#![allow(clippy::print_stderr, reason = "counts are what tests are for")]

mod arrays;
mod arrays_mounted;
mod at_once;
#[allow(dead_code, reason = "the provider's tests use the rest")]
#[path = "../../../provider/tests/openstack/cloud.rs"]
mod cloud;
mod clouds;
#[path = "../common/mod.rs"]
mod common;
mod crash_losses;
mod crash_points;
mod growth;
mod hostile;
mod hotplug;
#[allow(dead_code, reason = "the provider's tests use the rest")]
#[path = "../../../provider/tests/openstack/http.rs"]
mod http;
#[path = "../common/hypervisor.rs"]
mod hypervisor;
mod kills;
mod kills_mounted;
mod lifecycles;
mod lives;
mod load;
mod mapped;
mod pool;
mod power_cuts;
#[allow(dead_code, reason = "the provider's tests use the rest")]
#[path = "../../../provider/tests/openstack/proxy.rs"]
mod proxy;
mod read_cache;
mod striped_boosts;
mod ublk;

/// Not a test by itself: the daemon that the others kill.
#[test]
fn daemon_in_a_child() {
    common::child::serve_if_asked();
}
