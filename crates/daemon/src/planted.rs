//! Wakes the bug of the rental code that `SURGETANK_PLANT` names, to see that the tests of life cycles find it. Only the
//! feature `planted-bugs` has it.

/// Wakes it for this thread.
#[cfg(feature = "planted-bugs")]
pub fn plant() {
    let name = std::env::var("SURGETANK_PLANT").ok();
    surgetank_rental::planted::plant(name.and_then(|name| surgetank_rental::planted::Bug::named(&name)));
}

/// The feature is off.
#[cfg(not(feature = "planted-bugs"))]
pub const fn plant() {}
