//! What to do with a device that an earlier daemon left, decided from what the driver says of it.

use super::abi::{DeviceInfo, DeviceState, Features, Parameters};
use crate::front::ublk::UblkConfig;

/// What to do with a device that bears our identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Serve it: it waits for us. Whoever uses it goes on.
    TakeOver,
    /// It has a server, or one that is dying: look again.
    Wait,
    /// It was never started, or is stopped: nobody can be using it.
    Delete,
    /// It waits for a server, but not for one of this size or block: only one that nobody uses can be replaced.
    Replace,
}

/// Decides. `parameters` are those of a quiesced device.
pub(super) fn decide(info: &DeviceInfo, parameters: Option<&Parameters>, config: &UblkConfig) -> Found {
    const RECOVERS: Features = Features::USER_RECOVERY.and(Features::RECOVERY_REISSUE);
    match (info.state, parameters) {
        (DeviceState::Dead, _) => Found::Delete,
        (DeviceState::Live | DeviceState::Other(_), _) | (DeviceState::Quiesced, None) => Found::Wait,
        (DeviceState::Quiesced, Some(parameters)) => {
            let fits = parameters.logical_block == config.export.logical_block
                && parameters.size <= config.export.size
                && (parameters.write_cache, parameters.discards) == (config.write_cache, config.discards)
                && info.queues == 1
                && info.depth > 0
                && parameters.io_bytes_max <= info.io_bytes_max
                && info.features.has(RECOVERS);
            if fits { Found::TakeOver } else { Found::Replace }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::front::Export;

    proptest! {
        /// Only a device that waits is taken over, and only one that we can serve; one that is served is left alone.
        #[test]
        fn a_device_is_taken_over_only_if_it_waits_and_fits(
            state in prop::sample::select(vec![0u16, 1, 2, 3]),
            size in prop::sample::select(vec![1u64 << 20, 1 << 21, 1 << 22]),
            block in prop::sample::select(vec![512u32, 4096]),
            queues in 0u16..3,
            features in prop::sample::select(vec![0u64, 1 << 3, 1 << 4, 3 << 3, u64::MAX]),
            known in any::<bool>(),
            (write_cache, discards) in any::<(bool, bool)>(),
        ) {
            let export = Export { name: "data".into(), size: 1 << 21, logical_block: 512 };
            let config = UblkConfig { export, identity: 1, write_cache: true, discards: true, partitions: true };
            let state = match state {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                other => DeviceState::Other(other),
            };
            let info = DeviceInfo {
                queues,
                depth: 128,
                state,
                io_bytes_max: 1 << 19,
                device: 0,
                server: 1,
                features: Features(features),
                identity: 1,
            };
            let parameters = Parameters { size, logical_block: block, io_bytes_max: 1 << 19, write_cache, discards };
            let found = decide(&info, known.then_some(&parameters), &config);
            let recovers = features & (3 << 3) == 3 << 3;
            let fits = size <= 1 << 21 && block == 512 && queues == 1 && recovers && write_cache && discards;
            let expected = match state {
                DeviceState::Dead => Found::Delete,
                DeviceState::Quiesced if known && fits => Found::TakeOver,
                DeviceState::Quiesced if known => Found::Replace,
                _ => Found::Wait,
            };
            prop_assert_eq!(found, expected);
        }
    }
}
