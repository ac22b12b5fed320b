//! Wakes the bug of the rental code or of read caches that `SURGETANK_PLANT` names, to see that the tests of life cycles and of
//! devices with a read cache find it. Only the feature `planted-bugs` has it.

/// Wakes it for this thread.
#[cfg(feature = "planted-bugs")]
pub fn plant() {
    let name = std::env::var("SURGETANK_PLANT").ok();
    surgetank_rental::planted::plant(name.as_deref().and_then(surgetank_rental::planted::Bug::named));
    surgetank_readcache::planted::plant(name.as_deref().and_then(surgetank_readcache::planted::Bug::named));
}

/// The feature is off.
#[cfg(not(feature = "planted-bugs"))]
pub const fn plant() {}
