//! Makes a failing scenario smaller, as long as it still fails.

use std::time::Duration;

use crate::scenario::CrashScenario;

/// Runs tried at most.
const TRIES_MAX: u32 = 2000;

/// The smallest scenario found that still `fails`. It starts from one that does.
pub fn shrink(scenario: &CrashScenario, mut fails: impl FnMut(&CrashScenario) -> bool) -> CrashScenario {
    let mut best = scenario.clone();
    let mut tries = 0;
    loop {
        let mut progress = false;
        for candidate in candidates(&best) {
            tries += 1;
            if tries > TRIES_MAX {
                return best;
            }
            if fails(&candidate) {
                best = candidate;
                progress = true;
                break;
            }
        }
        if !progress {
            return best;
        }
    }
}

/// Simpler scenarios, the boldest steps first.
fn candidates(from: &CrashScenario) -> Vec<CrashScenario> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut CrashScenario)| {
        let mut candidate = from.clone();
        change(&mut candidate);
        if candidate != *from {
            found.push(candidate);
        }
    };
    for crash in 0..from.crashes.len() {
        add(&|scenario| {
            scenario.crashes.remove(crash);
        });
    }
    for growth in 0..from.growths.len() {
        add(&|scenario| {
            scenario.growths.remove(growth);
        });
    }
    for growth in 0..from.cache_growths.len() {
        add(&|scenario| {
            scenario.cache_growths.remove(growth);
        });
    }
    add(&|scenario| scenario.trouble = None);
    add(&|scenario| scenario.stop = None);
    add(&|scenario| scenario.mapped = None);
    add(&|scenario| scenario.volumes = 1);
    add(&|scenario| scenario.announce = false);
    add(&|scenario| scenario.mapped.iter_mut().for_each(|mapped| mapped.faults = 0.0));
    add(&|scenario| scenario.mapped.iter_mut().for_each(|mapped| mapped.by_hand = false));
    add(&|scenario| scenario.provider_faults = scenario.provider_faults.map(|_| 0.0));
    for outage in 0..2 {
        add(&|scenario| scenario.trouble.iter_mut().for_each(|trouble| trouble.outages[outage] = None));
    }
    for latent in 0..3 {
        add(&|scenario| scenario.trouble.iter_mut().for_each(|trouble| trouble.latent[latent] = None));
    }
    for requests in [from.requests / 2, from.requests * 3 / 4, from.requests.saturating_sub(1)] {
        add(&|scenario| scenario.requests = requests);
    }
    for blocks in [from.device_blocks / 2, from.device_blocks * 3 / 4, from.device_blocks.saturating_sub(1)] {
        add(&|scenario| scenario.device_blocks = blocks.max(1));
    }
    add(&|scenario| scenario.depth = 1);
    add(&|scenario| scenario.depth = from.depth.div_ceil(2));
    add(&|scenario| scenario.tail = 0);
    add(&|scenario| scenario.split = false);
    add(&|scenario| scenario.filled = false);
    add(&|scenario| scenario.read_fill = surgetank_cache::ReadFill::Never);
    add(&|scenario| scenario.think_max = Duration::ZERO);
    for crash in 0..from.crashes.len() {
        let after = from.crashes[crash].after_events;
        for after in [after / 2, after.saturating_sub(1)] {
            add(&|scenario| scenario.crashes[crash].after_events = after);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;

    #[test]
    fn only_what_matters_is_left() {
        let scenario = Family::Growth.scenario(5);
        let needs = |scenario: &CrashScenario| !scenario.crashes.is_empty() && scenario.requests >= 7;
        assert!(needs(&scenario));
        let small = shrink(&scenario, needs);
        assert_eq!((small.crashes.len(), small.requests, small.growths.len()), (1, 7, 0));
        assert_eq!((small.device_blocks, small.depth, small.crashes[0].after_events), (1, 1, 0));
    }
}
