//! The `souk` binary: every role of the market behind one command line.

fn main() {}
