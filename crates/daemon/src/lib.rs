//! Live drivers of the pure crates: shard, reconciler, control socket.
