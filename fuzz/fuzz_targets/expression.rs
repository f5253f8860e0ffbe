//! Fuzzes the expression language beside Kong's own router, as the tests of `stillgate-route` do.
#![no_main]

#[path = "../../crates/route/tests/all/oracle/mod.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracle::fuzzed::check(bytes));
