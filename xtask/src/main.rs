//! What make and CI call.

fn main() {}
