//! Wakes the bug of the rental code, of arrays or of read caches that `SURGETANK_PLANT` names, to see that the tests find it. Only the
//! feature `planted-bugs` has it.

/// Wakes it for this thread.
#[cfg(feature = "planted-bugs")]
pub fn plant() {
    let name = std::env::var("SURGETANK_PLANT").unwrap_or_default();
    surgetank_rental::planted::plant(surgetank_rental::planted::Bug::named(&name));
    surgetank_array::planted::plant(surgetank_array::planted::Bug::named(&name));
    surgetank_readcache::planted::plant(surgetank_readcache::planted::Bug::named(&name));
}

/// The feature is off.
#[cfg(not(feature = "planted-bugs"))]
pub const fn plant() {}
