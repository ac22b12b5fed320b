//! Two network namespaces with a cable between them, as two machines.

use std::fs::File;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Removes both at the end.
pub struct Network([String; 2]);

fn ip(arguments: &str) -> bool {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    done.is_ok_and(|output| output.status.success())
}

impl Network {
    /// `None`: this machine does not let us, which is said.
    pub fn new() -> Option<Self> {
        let number = std::process::id();
        let network = Self([format!("surgetank-{number}-0"), format!("surgetank-{number}-1")]);
        let [one, other] = &network.0;
        let cable = format!("link add st{number} netns {one} type veth peer name st{number} netns {other}");
        let mut is_made = rustix::process::geteuid().is_root()
            && network.0.iter().all(|name| ip(&format!("netns add {name}")))
            && ip(&cable);
        for (name, address) in network.0.iter().zip(network.addresses()) {
            is_made = is_made
                && ip(&format!("-n {name} link set lo up"))
                && ip(&format!("-n {name} addr add {address}/24 dev st{number}"))
                && ip(&format!("-n {name} link set st{number} up"));
        }
        if !is_made {
            println!("skipped: needs root, `ip`, network namespaces and veth");
        }
        is_made.then_some(network)
    }

    /// Of the two machines; nobody else has this network (RFC 5737).
    pub const fn addresses(&self) -> [&'static str; 2] {
        ["192.0.2.1", "192.0.2.2"]
    }

    /// Does something on one of the machines; threads that it starts stay there.
    pub fn inside<T: Send>(&self, machine: usize, what: impl FnOnce() -> T + Send) -> T {
        let name = File::open(format!("/run/netns/{}", self.0[machine])).unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&name), Some(LinkNameSpaceType::Network)).unwrap();
                what()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}
