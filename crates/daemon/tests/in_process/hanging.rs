//! A provider that does not answer.

use std::sync::{Arc, Condvar, Mutex};

use crate::common::{Machine, Shape, eventually, pattern, status};
use surgetank_daemon::{Daemon, DevicePhase, Overrides, Request};
use surgetank_provider::local::LocalProvider;
use surgetank_provider::{
    Change, CreateVolume, Home, Lag, Provider, ProviderError, SystemClock, Transition, VolumeDescription, VolumeId,
};

const MIB: u64 = 1 << 20;

/// Holds up the calls of a provider for as long as the gate is closed.
struct Gated {
    provider: LocalProvider,
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gated {
    fn close(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) -> &LocalProvider {
        drop(self.changed.wait_while(self.closed.lock().unwrap(), |closed| *closed).unwrap());
        &self.provider
    }
}

impl Provider for Gated {
    fn home(&self) -> Home {
        self.provider.home()
    }
    fn create_is_exclusive(&self) -> bool {
        self.provider.create_is_exclusive()
    }
    fn lag(&self) -> Lag {
        self.provider.lag()
    }
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.pass().create(request)
    }
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.pass().change_state(id, transition)
    }
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.pass().describe(id)
    }
    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.pass().list(key, value)
    }
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.pass().set_tag(id, key, value)
    }
}

#[test]
fn a_provider_that_does_not_answer_holds_up_neither_io_nor_status_nor_a_stop() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 32 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
    let local = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let provider = Arc::new(Gated { provider: local, closed: Mutex::new(false), changed: Condvar::new() });
    let overrides = Overrides { provider: Some(provider.clone()), ..Overrides::default() };
    let daemon = Daemon::start_with(config.clone(), overrides.clone()).unwrap();
    let mut nbd = crate::common::connect(&machine, "data");

    // While a volume is being created: it comes late, and is used.
    provider.close(true);
    daemon.handle(Request::boost("data")).unwrap();
    for version in 1..4 {
        nbd.write(0, &pattern(0, version, MIB as usize)).unwrap();
        assert_eq!(status(&daemon, "data").phase, DevicePhase::Attaching);
    }
    provider.close(false);
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);

    // While one is being deleted, in a daemon that stops meanwhile: the next one goes on.
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    provider.close(true);
    eventually("the drain has ended", || status(&daemon, "data").phase != DevicePhase::Drain);
    nbd.write(0, &pattern(0, 4, MIB as usize)).unwrap();
    daemon.stop();
    provider.close(false);
    let daemon = Daemon::start_with(config, overrides).unwrap();
    assert_eq!(crate::common::connect(&machine, "data").read(0, MIB as usize).unwrap(), pattern(0, 4, MIB as usize));
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
    assert_eq!(machine.rented(), 0);
}
