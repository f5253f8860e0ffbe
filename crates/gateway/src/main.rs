//! The binary `stillgate`: arguments, signals, wiring of the parts.

fn main() {}
