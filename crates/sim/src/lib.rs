//! Virtual-time world that drives the pure crates over simulated volumes.
