//! The `surgetank` command.

fn main() {}
