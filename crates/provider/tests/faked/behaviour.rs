//! What clients do alike.

use std::time::Duration;

use surgetank_provider::{Provider, ProviderError, VolumeId, VolumeState};

use super::{Account, Cloud, LOOKS_MAX};

/// How the daemon waits: with pauses that double from 5 ms to 500 ms.
pub fn poll<C: Cloud>(account: &Account<C>, provider: &dyn Provider, id: &VolumeId, wanted: Option<VolumeState>) {
    let mut pause = Duration::from_millis(5);
    for _ in 0..LOOKS_MAX {
        match provider.describe(id) {
            Ok(volume) if Some(volume.state) == wanted => return,
            Err(ProviderError::NotFound(_)) if wanted.is_none() => return,
            _ => account.pass(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
    panic!("{id:?} does not become {wanted:?}");
}

/// Checks that a client does nothing to a volume that another instance has.
pub fn leaves_alone(provider: &dyn Provider, id: &VolumeId, instance: &str) {
    let seen = provider.describe(id).unwrap();
    assert_eq!((seen.state, seen.is_located()), (VolumeState::Attached, false));
    for answer in [provider.attach(id), provider.detach(id)] {
        assert!(
            matches!(&answer, Err(ProviderError::Conflict { reason, .. }) if reason.contains(instance)),
            "{answer:?}"
        );
    }
    assert!(matches!(provider.delete(id), Err(ProviderError::Conflict { .. })));
}
